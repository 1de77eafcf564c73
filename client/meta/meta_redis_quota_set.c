/* SPDX-License-Identifier: Apache-2.0 */
/* Setting, listing and checking quotas. Any thread that may block, and may take long: usage is
 * counted, and what others did and did not tell yet would count twice: they get time for that. Of a
 * directory that gets a quota it is what was told of all below it at that moment, so that it is
 * right also while others work.
 *
 * A user's or group's usage counts every inode that is there but the root and those of the trash's
 * own directories, as operations count it. */
#include "client/meta/meta_redis.h"

#include <inttypes.h>

#include "client/meta/meta_redis_quota.h"
#include "client/meta/scan.h"
#include "common/clock.h"
#include "common/hash.h"

enum {
	OWN_TOLD_US = 1200000,
	JUICE_TOLD_US = 3300000,
	SESSIONS_ASKED = 1000,
	LIST_TRIES = 3,
};

static const char *const keys[] = {
	[QUOTA_DIR] = "dirQuota",
	[QUOTA_USER] = "userQuota",
	[QUOTA_GROUP] = "groupQuota",
};

static int hget(struct meta_redis *mr, enum quota_kind kind, const char *rest, uint64_t id,
		struct redis_reply **ret)
{
	return op_error(redis_once(mr->redis, op_deadline(mr), ret, "HGET %s%s%s %llu", mr->prefix,
				   keys[kind], rest, (unsigned long long)id));
}

static int64_t be64_at(const char *p)
{
	uint64_t v = 0;

	for (int i = 0; i < 8; i++)
		v = v << 8 | (uint8_t)p[i];
	return (int64_t)v;
}

int redis_quota_get(struct meta *m, enum quota_kind kind, uint64_t id, struct quota *ret)
{
	struct meta_redis *mr = redis_engine(m);
	_cleanup_(redis_reply_freep) struct redis_reply *max = NULL, *space = NULL, *inodes = NULL;
	struct quota q = {.kind = kind, .id = id, .max_space = -1, .max_inodes = -1};
	const char *p;
	size_t n;
	int r = hget(mr, kind, "", id, &max);

	if (!r)
		r = hget(mr, kind, "UsedSpace", id, &space);
	if (!r)
		r = hget(mr, kind, "UsedInodes", id, &inodes);
	if (r)
		return r;
	p = reply_text(max, &n);
	if (!p && reply_type(inodes) == REDIS_NIL)
		return -ENOENT;
	if (p && n != 16)
		return -EIO;
	if (p) {
		q.max_space = be64_at(p);
		q.max_inodes = be64_at(p + 8);
	}
	q.used_space = reply_int(space);
	q.used_inodes = reply_int(inodes);
	*ret = q;
	return 0;
}

static void args_limit(struct args *a, int64_t v)
{
	if (v >= 0)
		args_be64(a, (uint64_t)v);
	else
		args_text(a, "");
}

/* used NULL: as it is; old: only where there is one already; list: what is used is what was told of
 * these directories, -EAGAIN: they are not all of them */
static int write_quota(struct meta_redis *mr, const struct quota *q, const struct tree_sum *used,
		       bool old, const uint8_t *list, size_t list_len)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct args args;
	int r;

	args_init(&args, mr);
	op_begin(mr, &args);
	args_u64(&args, (uint64_t)q->kind);
	args_u64(&args, q->id);
	args_limit(&args, q->max_space);
	args_limit(&args, q->max_inodes);
	args_i64(&args, MAX(q->max_space, -1));
	args_i64(&args, MAX(q->max_inodes, -1));
	if (used) {
		args_i64(&args, used->space);
		args_i64(&args, used->inodes);
	} else {
		args_text(&args, "");
		args_text(&args, "");
	}
	args_text(&args, old ? "old" : "");
	args_bytes(&args, list ? list : (const uint8_t *)"", list_len);
	r = op_eval(mr, SC_QUOTASET, &args, &reply);
	op_end(mr, &args);
	if (!r && reply_is(reply_at(reply, 0), "below"))
		return -EAGAIN;
	if (!r)
		r = quota_load(mr, true, op_deadline(mr));
	return r;
}

static int kind_on(struct meta_redis *mr, enum quota_kind kind)
{
	const struct setting *s = meta_setting(&mr->base);

	return (kind == QUOTA_DIR ? s->dir_stats : s->user_group_quota) ? 0 : -EOPNOTSUPP;
}

int redis_quota_delete(struct meta *m, enum quota_kind kind, uint64_t id)
{
	struct meta_redis *mr = redis_engine(m);
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct args args;
	int r;

	args_init(&args, mr);
	op_begin(mr, &args);
	args_u64(&args, (uint64_t)kind);
	args_u64(&args, id);
	r = op_eval(mr, SC_QUOTADEL, &args, &reply);
	op_end(mr, &args);
	if (!r)
		r = quota_load(mr, true, op_deadline(mr));
	return r;
}

/* --- list --- */

struct list {
	enum quota_kind kind;
	struct quota *q;
	size_t n, cap;
};

static int list_page(void *arg, size_t n, const struct scan_item *items)
{
	struct list *l = arg;

	for (size_t i = 0; i < n; i++) {
		const struct scan_item *it = &items[i];
		struct quota q = {.kind = l->kind};
		struct quota *more;

		if (!scan_u64(it->name, it->name_len, &q.id) || it->value_len != 16)
			continue;
		q.max_space = be64_at(it->value);
		q.max_inodes = be64_at(it->value + 8);
		/* whoever merely owns something has an entry without limits */
		if (q.max_space <= 0 && q.max_inodes <= 0)
			continue;
		if (l->n == l->cap) {
			more = reallocarray(l->q, l->cap + 64, sizeof(*more));
			if (!more)
				return -ENOMEM;
			l->q = more;
			l->cap += 64;
		}
		l->q[l->n++] = q;
	}
	return 0;
}

static int by_id(const void *a, const void *b)
{
	const struct quota *x = a, *y = b;

	return x->id < y->id ? -1 : x->id > y->id;
}

int redis_quota_list(struct meta *m, enum quota_kind kind, struct quota **ret, size_t *ret_n)
{
	struct meta_redis *mr = redis_engine(m);
	struct list l = {.kind = kind};
	struct scan s;
	size_t k = 0;
	int r;

	scan_init(&s, mr->redis, NULL);
	r = scan_hash(&s, keys[kind], list_page, &l);
	if (r) {
		free(l.q);
		return r;
	}
	if (l.n)
		qsort(l.q, l.n, sizeof(*l.q), by_id);
	for (size_t i = 0; i < l.n; i++) {
		if (k && l.q[k - 1].id == l.q[i].id)
			continue; /* seen twice */
		l.q[k] = l.q[i];
		if (redis_quota_get(m, kind, l.q[i].id, &l.q[k]) == 0)
			k++;
	}
	*ret = l.q;
	*ret_n = k;
	return 0;
}

/* --- check --- */

struct census {
	const struct scan *scan;
	struct meta_progress *p;
	enum quota_kind kind;
	uint64_t id;
	struct tree_sum sum;
	struct hashmap seen; /* a scan gives some keys twice */
};

struct seen {
	struct hash_node node;
	uint64_t inode;
};

static bool seen_eq(const struct hash_node *n, const void *key)
{
	return container_of(n, struct seen, node)->inode == *(const uint64_t *)key;
}

static bool free_seen(struct hash_node *n, void *arg)
{
	(void)arg;
	free(container_of(n, struct seen, node));
	return true;
}

static int count_inode(struct census *c, uint64_t inode, const struct redis_reply *record)
{
	struct seen *s;
	struct attr a;

	if (reply_attr(record, &a))
		return 0; /* gone meanwhile, or damaged: fsck's business */
	if ((c->kind == QUOTA_USER ? a.uid : a.gid) != c->id)
		return 0;
	if (hashmap_find(&c->seen, hash64(&inode, 8), seen_eq, &inode))
		return 0;
	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->inode = inode;
	hashmap_add(&c->seen, &s->node, hash64(&inode, 8));
	c->sum.space += (int64_t)align4k(a.type == INODE_FILE ? a.length : 0);
	c->sum.inodes++;
	return 0;
}

static int census_page(void *arg, size_t n, const struct scan_item *items)
{
	struct census *c = arg;
	uint64_t inodes[PIPE_MAX];
	struct pipe p;
	int r = 0;

	pipe_init(&p, c->scan);
	for (size_t at = 0; at < n && !r;) {
		size_t k = 0;

		pipe_reset(&p);
		for (; at < n && k < PIPE_MAX; at++) {
			if (!scan_u64(items[at].name + 1, items[at].name_len - 1, &inodes[k]) ||
			    inodes[k] == INODE_ROOT || inodes[k] >= INODE_INTERNAL)
				continue;
			pipe_add_inode(&p, "GET", "i", inodes[k++]);
		}
		r = k ? pipe_run(&p) : 0;
		for (size_t i = 0; i < k && !r; i++)
			r = count_inode(c, inodes[i], p.reply[i]);
	}
	pipe_fini(&p);
	if (c->p) {
		__atomic_add_fetch(&c->p->files, n, __ATOMIC_RELAXED);
		if (!r && __atomic_load_n(&c->p->cancel, __ATOMIC_RELAXED))
			r = -EINTR;
	}
	return r;
}

static int census(struct meta_redis *mr, enum quota_kind kind, uint64_t id, struct meta_progress *p,
		  struct tree_sum *ret)
{
	struct scan s;
	struct census c = {.scan = &s, .p = p, .kind = kind, .id = id};
	int r = hashmap_init(&c.seen, 64);

	if (r)
		return r;
	scan_init(&s, mr->redis, NULL);
	r = scan_keys(&s, "i[0-9]*", census_page, &c);
	hashmap_each(&c.seen, free_seen, NULL);
	hashmap_fini(&c.seen);
	if (!r)
		*ret = c.sum;
	return r;
}

/* Clients tell what they did each second, JuiceFS every three. True: there are such, and they had
 * time for it. */
static bool others_told(struct meta_redis *mr)
{
	_cleanup_(redis_reply_freep) struct redis_reply *live = NULL;
	uint64_t own = session_now(&mr->base), wait_us = 0;
	struct time_ns now;

	clock_real(&now.sec, &now.nsec);
	if (redis_once(mr->redis, op_deadline(mr), &live,
		       "ZRANGEBYSCORE %sallSessions %lld +inf LIMIT 0 %d", mr->prefix,
		       (long long)now.sec, SESSIONS_ASKED))
		return false;
	for (size_t i = 0; i < reply_len(live); i++) {
		_cleanup_(redis_reply_freep) struct redis_reply *info = NULL;
		int64_t sid = reply_int(reply_at(live, i));
		const char *text;
		size_t n;

		if ((uint64_t)sid == own ||
		    redis_once(mr->redis, op_deadline(mr), &info, "HGET %ssessionInfos %lld",
			       mr->prefix, (long long)sid))
			continue;
		text = reply_text(info, &n);
		wait_us = MAX(wait_us, text && strstr(text, "-stoke+") ? (uint64_t)OWN_TOLD_US
								       : (uint64_t)JUICE_TOLD_US);
	}
	usleep((useconds_t)wait_us);
	return wait_us > 0;
}

static int usage_now(struct meta_redis *mr, enum quota_kind kind, uint64_t id,
		     struct meta_progress *p, struct tree_sum *ret)
{
	/* what this client did is told first */
	(void)stat_flush(mr, op_deadline(mr));
	quota_flush(mr, op_deadline(mr));
	return kind == QUOTA_DIR ? tree_sum(mr, id, true, p, ret) : census(mr, kind, id, p, ret);
}

/* what there is and was not told; the statistics may also be wrong by that */
static int untold(struct meta_redis *mr, uint64_t dir, struct tree_sum *ret_exact,
		  struct tree_sum *ret_gap)
{
	struct tree_sum by_stats;
	int r = usage_now(mr, QUOTA_DIR, dir, NULL, ret_exact);

	if (!r)
		r = tree_sum(mr, dir, false, NULL, &by_stats);
	if (!r)
		*ret_gap = (struct tree_sum){.space = ret_exact->space - by_stats.space,
					     .inodes = ret_exact->inodes - by_stats.inodes};
	return r;
}

/* by what was told of all below; -EAGAIN: somebody changes the tree, or has to tell yet what he
 * took from there, or not all has statistics */
static int set_by_list(struct meta_redis *mr, const struct quota *q)
{
	int r = -EAGAIN;

	for (int i = 0; i < LIST_TRIES && r == -EAGAIN; i++) {
		struct tree_sum sum;
		uint8_t *list;
		size_t len;

		r = tree_list(mr, q->id, QUOTA_LIST_MAX, &sum, &list, &len);
		if (r)
			return r;
		if (!list)
			return -EAGAIN;
		r = write_quota(mr, q, NULL, false, list, len);
		free(list);
	}
	return r;
}

/* What others did and did not tell is waited for, so that the usage is right at once. What does not
 * become less then is no such thing: the statistics are wrong, and what was counted counts. */
static int set_dir(struct meta_redis *mr, const struct quota *q)
{
	struct tree_sum exact, first, gap;
	int r = untold(mr, q->id, &exact, &first);

	if (!r && (first.space || first.inodes)) {
		gap = first;
		if (others_told(mr))
			r = untold(mr, q->id, &exact, &gap);
		if (!r && gap.space == first.space && gap.inodes == first.inodes)
			return write_quota(mr, q, &exact, false, NULL, 0);
	}
	if (!r)
		r = set_by_list(mr, q);
	if (r == -EAGAIN && others_told(mr))
		r = set_by_list(mr, q);
	if (r != -EAGAIN)
		return r;
	r = untold(mr, q->id, &exact, &gap);
	return r ? r : write_quota(mr, q, &exact, false, NULL, 0);
}

int redis_quota_set(struct meta *m, const struct quota *q)
{
	struct meta_redis *mr = redis_engine(m);
	struct tree_sum sum = {0};
	struct quota was;
	int r = kind_on(mr, q->kind);

	if (!r && q->kind == QUOTA_DIR && q->id >= INODE_INTERNAL)
		r = -EINVAL;
	if (r)
		return r;
	r = redis_quota_get(m, q->kind, q->id, &was);
	if (r && r != -ENOENT)
		return r;
	if (!r && was.used_space >= 0 && was.used_inodes >= 0)
		return write_quota(mr, q, NULL, false, NULL, 0);
	if (q->kind == QUOTA_DIR)
		return set_dir(mr, q);
	/* an owner without a sum, or with one below zero, was there before sums were kept */
	(void)others_told(mr);
	r = usage_now(mr, q->kind, q->id, NULL, &sum);
	return r ? r : write_quota(mr, q, &sum, false, NULL, 0);
}

static bool differs(const struct quota *q, const struct tree_sum *sum)
{
	return q->used_space != sum->space || q->used_inodes != sum->inodes;
}

int redis_quota_check(struct meta *m, enum quota_kind kind, uint64_t id, bool repair,
		      struct quota *ret_told, struct quota *ret, struct meta_progress *p)
{
	struct meta_redis *mr = redis_engine(m);
	struct quota q, as_it_is = {.kind = kind, .id = id, .max_space = -1, .max_inodes = -1};
	struct tree_sum sum = {0};
	int r = redis_quota_get(m, kind, id, &q);

	if (!r)
		r = usage_now(mr, kind, id, p, &sum);
	if (!r)
		r = redis_quota_get(m, kind, id, &q);
	if (!r && differs(&q, &sum) && others_told(mr)) {
		r = usage_now(mr, kind, id, p, &sum);
		if (!r)
			r = redis_quota_get(m, kind, id, &q);
	}
	if (!r && repair && differs(&q, &sum))
		r = write_quota(mr, &as_it_is, &sum, true, NULL, 0);
	if (r)
		return r;
	*ret_told = q;
	q.used_space = sum.space;
	q.used_inodes = sum.inodes;
	*ret = q;
	return 0;
}
