/* SPDX-License-Identifier: Apache-2.0 */
/* Quotas in memory: limits and usage as they were read, and what this client added since. Any thread;
 * one lock of its own, never held while Redis is asked.
 *
 *	what of an entry	changes
 *	max, used		quota_load: at start, at each sign of life, when limits changed
 *	fresh			operations of this client
 *	flying			quota_flush: fresh moves there, and into used once Redis has it
 *
 * What is used is used + flying + fresh. A load that began before a flush ended may have read either,
 * so it leaves the usage of those entries alone until the next one. */
#include "client/meta/meta_redis.h"

#include "client/meta/meta_redis_quota.h"

#include <fcntl.h>
#include <inttypes.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/log.h"
#include "common/parse.h"

enum { KINDS = 3, PARENTS_MAX = 65536, FLUSH_BATCH = 64, DEPTH_MAX = 4096 };

static const char *const kinds[KINDS] = {"dir", "user", "group"};

struct amount {
	int64_t space, inodes;
};

struct entry {
	struct hash_node node;
	uint64_t id;
	struct amount max, used, fresh, flying;
	uint64_t flush_no; /* the last flush that told of it */
	bool loaded;
};

struct dir_parent {
	struct hash_node node;
	uint64_t dir, parent;
};

/* a script's arguments that must stay until it is known what became of it */
struct flight {
	struct args args;
	char text[FLUSH_BATCH * 3][21];
	struct {
		int kind;
		uint64_t id;
	} of[FLUSH_BATCH];
	size_t n;
};

struct quotas {
	struct mtx lock;
	struct hashmap of[KINDS];
	struct hashmap parents;
	uint64_t moves; /* directories that this client moved: what was asked before is stale */
	uint64_t flush_no, version;
	struct cond flushed;
	bool flushing;
	struct flight *flight; /* of the one that flushes */
	/* atomic; read before anything else */
	bool dirs, limits; /* there are directories with quotas; anybody has a limit */
};

int quotas_new(struct quotas **ret)
{
	struct quotas *q = calloc(1, sizeof(*q));
	int r = q ? hashmap_init(&q->parents, 64) : -ENOMEM;

	for (int k = 0; k < KINDS && !r; k++)
		r = hashmap_init(&q->of[k], 16);
	if (r) {
		for (int k = 0; q && k < KINDS; k++)
			hashmap_fini(&q->of[k]);
		if (q)
			hashmap_fini(&q->parents);
		free(q);
		return r;
	}
	mtx_init(&q->lock);
	cond_init(&q->flushed);
	*ret = q;
	return 0;
}

static bool free_first(struct hash_node *n, void *arg)
{
	(void)arg;
	free(n); /* the node is the first member of all that is in a table here */
	return true;
}

static void empty_locked(struct hashmap *m)
{
	struct hashmap old = *m;

	if (hashmap_init(m, 64)) {
		*m = old; /* stays as it is: no memory */
		return;
	}
	hashmap_each(&old, free_first, NULL);
	hashmap_fini(&old);
}

void quotas_free(struct quotas *q)
{
	if (!q)
		return;
	for (int k = 0; k < KINDS; k++) {
		hashmap_each(&q->of[k], free_first, NULL);
		hashmap_fini(&q->of[k]);
	}
	hashmap_each(&q->parents, free_first, NULL);
	hashmap_fini(&q->parents);
	free(q->flight);
	cond_fini(&q->flushed);
	mtx_fini(&q->lock);
	free(q);
}

static bool has_dirs(struct meta_redis *mr)
{
	return __atomic_load_n(&mr->quotas->dirs, __ATOMIC_RELAXED);
}

static bool has_limits(struct meta_redis *mr)
{
	return __atomic_load_n(&mr->quotas->limits, __ATOMIC_RELAXED);
}

static bool has_owners(struct meta_redis *mr)
{
	return meta_setting(&mr->base)->user_group_quota;
}

static bool entry_eq(const struct hash_node *n, const void *key)
{
	return container_of(n, struct entry, node)->id == *(const uint64_t *)key;
}

static bool parent_eq(const struct hash_node *n, const void *key)
{
	return container_of(n, struct dir_parent, node)->dir == *(const uint64_t *)key;
}

static struct entry *find_locked(struct quotas *q, int kind, uint64_t id) REQUIRES(q->lock)
{
	struct hash_node *n = hashmap_find(&q->of[kind], hash64(&id, 8), entry_eq, &id);

	return n ? container_of(n, struct entry, node) : NULL;
}

/* takes spare when there is none yet; NULL: neither */
static struct entry *get_locked(struct quotas *q, int kind, uint64_t id, struct entry **spare)
	REQUIRES(q->lock)
{
	struct entry *e = find_locked(q, kind, id);

	if (e || !*spare)
		return e;
	e = TAKE_PTR(*spare);
	*e = (struct entry){.id = id, .max = {-1, -1}};
	hashmap_add(&q->of[kind], &e->node, hash64(&id, 8));
	return e;
}

static bool over(const struct entry *e, struct amount more)
{
	if (more.space > 0 && e->max.space > 0 &&
	    e->used.space + e->flying.space + e->fresh.space + more.space > e->max.space)
		return true;
	return more.inodes > 0 && e->max.inodes > 0 &&
	       e->used.inodes + e->flying.inodes + e->fresh.inodes + more.inodes > e->max.inodes;
}

static bool over_id(struct meta_redis *mr, int kind, uint64_t id, struct amount more)
{
	const struct entry *e;
	bool is;

	mtx_lock(&mr->quotas->lock);
	e = find_locked(mr->quotas, kind, id);
	is = e && over(e, more);
	mtx_unlock(&mr->quotas->lock);
	return is;
}

/* --- the way up --- */

static void parent_keep(struct quotas *q, uint64_t dir, uint64_t parent, uint64_t moves)
{
	struct dir_parent *d = calloc(1, sizeof(*d));
	struct hash_node *n;

	if (!d)
		return;
	mtx_lock(&q->lock);
	if (q->parents.count >= PARENTS_MAX)
		empty_locked(&q->parents);
	n = hashmap_find(&q->parents, hash64(&dir, 8), parent_eq, &dir);
	if (!n && q->moves == moves && q->parents.count < PARENTS_MAX) {
		d->dir = dir;
		d->parent = parent;
		hashmap_add(&q->parents, &d->node, hash64(&dir, 8));
		d = NULL;
	}
	mtx_unlock(&q->lock);
	free(d);
}

static int parent_of(struct meta_redis *mr, uint64_t dir, uint64_t *ret)
{
	struct quotas *q = mr->quotas;
	struct hash_node *n;
	uint64_t moves, parent = 0;
	struct attr a;
	int r;

	mtx_lock(&q->lock);
	n = hashmap_find(&q->parents, hash64(&dir, 8), parent_eq, &dir);
	if (n)
		parent = container_of(n, struct dir_parent, node)->parent;
	moves = q->moves;
	mtx_unlock(&q->lock);
	if (!n) {
		r = redis_getattr(&mr->base, dir, &a);
		if (r)
			return r;
		parent = a.parent;
		parent_keep(q, dir, parent, moves);
	}
	*ret = parent;
	return 0;
}

/* fn(dir) for dir and all above it, until it says false; 0, or why the way ends too early */
static int way_up(struct meta_redis *mr, uint64_t dir, bool (*fn)(void *arg, uint64_t dir),
		  void *arg)
{
	int r = 0;

	/* a damaged volume may go in circles */
	for (int i = 0; i < DEPTH_MAX && dir && dir < INODE_INTERNAL; i++) {
		if (!fn(arg, dir) || dir == INODE_ROOT)
			return 0;
		r = parent_of(mr, dir, &dir);
		if (r)
			return r == -ENOENT ? 0
					    : r; /* gone meanwhile: its own operation finds out */
	}
	return 0;
}

struct climb {
	struct meta_redis *mr;
	struct amount more;
	bool over;
	uint64_t *list; /* collect: dirs with quotas */
	size_t n, cap;
	const struct climb *but; /* not what is on this way too */
	int error;
};

static bool on_way(const struct climb *c, uint64_t dir)
{
	for (size_t i = 0; c && i < c->n; i++) {
		if (c->list[i] == dir)
			return true;
	}
	return false;
}

static bool check_dir(void *arg, uint64_t dir)
{
	struct climb *c = arg;

	if (on_way(c->but, dir))
		return false; /* from here on both ways are one */
	c->over = over_id(c->mr, QUOTA_DIR, dir, c->more);
	return !c->over;
}

static bool collect_dir(void *arg, uint64_t dir)
{
	struct climb *c = arg;
	uint64_t *more;

	if (c->n == c->cap) {
		more = realloc(c->list, (c->cap + 16) * sizeof(*more));
		if (!more) {
			c->error = -ENOMEM;
			return false;
		}
		c->list = more;
		c->cap += 16;
	}
	c->list[c->n++] = dir;
	return true;
}

static bool add_dir(void *arg, uint64_t dir)
{
	struct climb *c = arg;
	struct quotas *q = c->mr->quotas;
	struct entry *e;

	mtx_lock(&q->lock);
	e = find_locked(q, QUOTA_DIR, dir);
	if (e) {
		e->fresh.space += c->more.space;
		e->fresh.inodes += c->more.inodes;
	}
	mtx_unlock(&q->lock);
	return true;
}

/* the volume has no room either: that is what JuiceFS says first */
static int no_room(struct meta_redis *mr, struct amount more)
{
	uint64_t capacity, inodes;
	struct meta_statfs s;
	bool stats;

	meta_limits(&mr->base, &capacity, &inodes, &stats);
	if ((capacity || inodes) && !redis_statfs(&mr->base, 0, &s) &&
	    ((capacity && more.space > 0 && (int64_t)s.avail_bytes < more.space) ||
	     (inodes && more.inodes > 0 && (int64_t)s.avail_inodes < more.inodes)))
		return -ENOSPC;
	return -EDQUOT;
}

static int room_dir(struct meta_redis *mr, uint64_t dir, struct amount more)
{
	struct climb c = {.mr = mr, .more = more};
	int r;

	if (!has_dirs(mr))
		return 0;
	r = way_up(mr, dir, check_dir, &c);
	return r ? r : c.over ? no_room(mr, more) : 0;
}

static int room_owner(struct meta_redis *mr, const uint32_t *uid, const uint32_t *gid,
		      struct amount more)
{
	if (!has_owners(mr))
		return 0;
	if ((uid && over_id(mr, QUOTA_USER, *uid, more)) ||
	    (gid && over_id(mr, QUOTA_GROUP, *gid, more)))
		return -EDQUOT;
	return 0;
}

/* --- before a change --- */

int quota_room_tree(struct meta_redis *mr, uint64_t dir, const struct meta_ctx *c, int64_t space,
		    int64_t inodes)
{
	struct amount more = {space, inodes};
	uint32_t gid;
	struct attr a;
	int r = 0;

	if (!has_limits(mr))
		return 0;
	if (c && has_owners(mr)) {
		gid = c->gid;
		r = redis_getattr(&mr->base, dir, &a);
		if (r)
			return r == -ENOENT ? 0 : r;
		if (a.mode & S_ISGID)
			gid = a.gid;
		r = room_owner(mr, &c->uid, &gid, more);
	}
	return r ? r : room_dir(mr, dir, more);
}

int quota_room_make(struct meta_redis *mr, uint64_t dir, const struct meta_ctx *c)
{
	return quota_room_tree(mr, dir, c, (int64_t)align4k(0), 1);
}

static int64_t space_of(const struct attr *a)
{
	return (int64_t)align4k(a->type == INODE_FILE ? a->length : 0);
}

int quota_room_link(struct meta_redis *mr, uint64_t inode, uint64_t dir)
{
	struct attr a;
	int r;

	if (!has_dirs(mr))
		return 0;
	r = redis_getattr(&mr->base, inode, &a);
	if (r)
		return r == -ENOENT ? 0 : r;
	return room_dir(mr, dir, (struct amount){space_of(&a), 1});
}

int quota_room_grow(struct meta_redis *mr, uint64_t inode, uint64_t length)
{
	_cleanup_(redis_reply_freep) struct redis_reply *links = NULL;
	struct amount more = {0};
	struct attr a;
	int r;

	if (!has_limits(mr))
		return 0;
	r = redis_getattr(&mr->base, inode, &a);
	if (r)
		return r == -ENOENT ? 0 : r;
	more.space = (int64_t)(align4k(length) - align4k(a.length));
	if (length <= a.length || more.space == 0)
		return 0;
	r = room_owner(mr, &a.uid, &a.gid, more);
	if (r || !has_dirs(mr) || a.nlink == 0)
		return r;
	if (a.parent)
		return room_dir(mr, a.parent, more);
	r = op_error(redis_once(mr->redis, op_deadline(mr), &links, "HGETALL %sp%llu", mr->prefix,
				(unsigned long long)inode));
	for (size_t i = 0; !r && i + 1 < reply_len(links); i += 2) {
		int64_t dir = reply_int(reply_at(links, i)), n = reply_int(reply_at(links, i + 1));

		if (dir > 0 && n > 0)
			r = room_dir(mr, (uint64_t)dir, (struct amount){more.space * n, 0});
	}
	return r;
}

int quota_room_chown(struct meta_redis *mr, uint64_t inode, const uint32_t *uid,
		     const uint32_t *gid)
{
	struct attr a;
	int r;

	if (!has_limits(mr) || !has_owners(mr))
		return 0;
	r = redis_getattr(&mr->base, inode, &a);
	if (r)
		return r == -ENOENT ? 0 : r;
	if (uid && *uid == a.uid)
		uid = NULL;
	if (gid && *gid == a.gid)
		gid = NULL;
	return room_owner(mr, uid, gid, (struct amount){space_of(&a), 1});
}

int quota_room_copy(struct meta_redis *mr, uint64_t in, uint64_t off_in, uint64_t out,
		    uint64_t off_out, uint64_t len)
{
	struct attr a;
	int r;

	if (!has_limits(mr))
		return 0;
	r = redis_getattr(&mr->base, in, &a);
	if (r || a.length <= off_in)
		return r == -ENOENT ? 0 : r;
	return quota_room_grow(mr, out, off_out + MIN(len, a.length - off_in));
}

/* what an entry stands for, and of a directory what is below it */
static int weigh(struct meta_redis *mr, uint64_t dir, const char *name, struct amount *ret,
		 struct amount *ret_below)
{
	struct tree_sum sum = {0};
	struct amount own;
	uint64_t inode;
	struct attr a;
	int r = redis_lookup(&mr->base, NULL, dir, name, &inode, &a);

	if (r)
		return r == -ENOENT ? 0 : r; /* the operation says it */
	own = (struct amount){space_of(&a), 1};
	if (a.type == INODE_DIR) {
		/* what this client did is in the statistics first */
		stat_flush(mr, op_deadline(mr));
		r = tree_sum(mr, inode, false, NULL, &sum);
	}
	if (r)
		return r;
	*ret_below = (struct amount){sum.space, sum.inodes};
	*ret = (struct amount){own.space + sum.space, own.inodes + sum.inodes};
	return 0;
}

int quota_room_move(struct meta_redis *mr, uint64_t from, const char *name, uint64_t to,
		    const char *other_name, struct quota_move *ret)
{
	struct climb up = {.mr = mr}, back = {.mr = mr};
	struct amount there = {0}, here = {0}, below = {0}, other = {0};
	int r;

	*ret = (struct quota_move){0};
	if (from == to || !has_dirs(mr))
		return 0;
	r = way_up(mr, from, collect_dir, &up);
	if (!r)
		r = way_up(mr, to, collect_dir, &back);
	if (!r)
		r = up.error ? up.error : back.error;
	if (!r)
		r = weigh(mr, from, name, &there, &below);
	if (!r && other_name)
		r = weigh(mr, to, other_name, &here, &other);
	if (!r) {
		struct climb c = {.mr = mr,
				  .but = &up,
				  .more = {there.space - here.space, there.inodes - here.inodes}};

		r = way_up(mr, to, check_dir, &c);
		if (!r && c.over)
			r = -EDQUOT;
		if (!r && other_name) {
			c = (struct climb){
				.mr = mr,
				.but = &back,
				.more = {here.space - there.space, here.inodes - there.inodes}};
			r = way_up(mr, from, check_dir, &c);
			if (!r && c.over)
				r = -EDQUOT;
		}
	}
	if (!r)
		*ret = (struct quota_move){below.space - other.space, below.inodes - other.inodes};
	free(up.list);
	free(back.list);
	return r;
}

/* --- behind it --- */

void quota_dir(struct meta_redis *mr, uint64_t dir, int64_t space, int64_t inodes)
{
	static struct log_rate rate;
	struct climb c = {.mr = mr, .more = {space, inodes}};
	unsigned quiet;
	int r;

	if (!has_dirs(mr) || (space == 0 && inodes == 0))
		return;
	r = way_up(mr, dir, add_dir, &c);
	if (r && log_rate_ok(&rate, 10 * 1000000, &quiet))
		log_warn("usage of quotas above directory %" PRIu64 " is not counted (stoke quota "
			 "check --repair): %s",
			 dir, strerror(-r));
}

void quota_moved(struct meta_redis *mr, uint64_t from, uint64_t to, const struct quota_move *m)
{
	quota_dir(mr, from, -m->space, -m->inodes);
	quota_dir(mr, to, m->space, m->inodes);
}

void quota_reparented(struct meta_redis *mr, uint64_t dir)
{
	struct quotas *q = mr->quotas;
	struct hash_node *n;

	if (!has_dirs(mr))
		return;
	mtx_lock(&q->lock);
	q->moves++;
	n = hashmap_find(&q->parents, hash64(&dir, 8), parent_eq, &dir);
	if (n) {
		hashmap_del(&q->parents, n);
		free(container_of(n, struct dir_parent, node));
	}
	mtx_unlock(&q->lock);
}

void quota_owner(struct meta_redis *mr, uint32_t uid, uint32_t gid, int64_t space, int64_t inodes)
{
	const uint32_t ids[] = {uid, gid};
	struct quotas *q = mr->quotas;

	if (!has_owners(mr) || (space == 0 && inodes == 0))
		return;
	for (int i = 0; i < 2; i++) {
		struct entry *spare = calloc(1, sizeof(*spare)), *e;

		mtx_lock(&q->lock);
		e = get_locked(q, QUOTA_USER + i, ids[i], &spare);
		if (e) {
			e->fresh.space += space;
			e->fresh.inodes += inodes;
		}
		mtx_unlock(&q->lock);
		free(spare);
	}
}

/* --- flush --- */

static void flight_fill_locked(struct quotas *q, struct flight *f, int kind, struct entry *e)
	REQUIRES(q->lock)
{
	size_t t = f->n * 3;

	e->flying = e->fresh;
	e->fresh = (struct amount){0};
	e->flush_no = q->flush_no;
	f->of[f->n].kind = kind;
	f->of[f->n++].id = e->id;
	snprintf(f->text[t], sizeof(f->text[t]), "%" PRIu64, e->id);
	snprintf(f->text[t + 1], sizeof(f->text[t + 1]), "%" PRId64, e->flying.space);
	snprintf(f->text[t + 2], sizeof(f->text[t + 2]), "%" PRId64, e->flying.inodes);
}

struct fill {
	struct quotas *q;
	struct flight *f;
	int kind;
};

static bool is_fresh(const struct entry *e)
{
	return e->fresh.space || e->fresh.inodes;
}

static bool fill_one(struct hash_node *n, void *arg) NO_ANALYSIS
{
	struct entry *e = container_of(n, struct entry, node);
	struct fill *x = arg;

	if (is_fresh(e))
		flight_fill_locked(x->q, x->f, x->kind, e);
	return x->f->n < FLUSH_BATCH;
}

/* a batch that takes off; NULL: nothing to tell, or no memory */
static struct flight *flight_new(struct meta_redis *mr)
{
	struct quotas *q = mr->quotas;
	struct flight *f = calloc(1, sizeof(*f));

	if (!f)
		return NULL;
	mtx_lock(&q->lock);
	q->flush_no++;
	for (int k = 0; k < KINDS && f->n < FLUSH_BATCH; k++)
		hashmap_each(&q->of[k], fill_one, &(struct fill){q, f, k});
	mtx_unlock(&q->lock);
	if (f->n == 0) {
		free(f);
		return NULL;
	}
	args_init(&f->args, mr);
	op_begin(mr, &f->args);
	for (size_t i = 0; i < f->n; i++) {
		args_text(&f->args, kinds[f->of[i].kind]);
		for (size_t t = 0; t < 3; t++)
			args_text(&f->args, f->text[i * 3 + t]);
	}
	return f;
}

static void landed(struct meta_redis *mr, struct flight *f)
{
	struct quotas *q = mr->quotas;

	mtx_lock(&q->lock);
	q->flight = NULL;
	q->flush_no++;
	for (size_t i = 0; i < f->n; i++) {
		struct entry *e = find_locked(q, f->of[i].kind, f->of[i].id);

		if (!e)
			continue;
		e->used.space += e->flying.space;
		e->used.inodes += e->flying.inodes;
		e->flying = (struct amount){0};
		e->flush_no = q->flush_no;
	}
	mtx_unlock(&q->lock);
	op_end(mr, &f->args);
	free(f);
}

/* A batch whose script was not answered is asked for again, by the same number, until it is: it may
 * have been done. */
static void flush_all(struct meta_redis *mr, uint64_t deadline_us)
{
	struct quotas *q = mr->quotas;
	static struct log_rate rate;
	unsigned quiet;
	int r;

	for (;;) {
		_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
		struct flight *f = q->flight; /* nobody else flushes */

		if (!f)
			f = flight_new(mr);
		if (!f)
			return;
		mtx_lock(&q->lock);
		q->flight = f;
		mtx_unlock(&q->lock);
		r = own_eval(mr, SC_QUOTAFLUSH, &f->args, deadline_us, &reply);
		if (r) {
			if (log_rate_ok(&rate, 60 * 1000000, &quiet))
				log_warn("usage of quotas waits: %s", strerror(-r));
			return;
		}
		landed(mr, f);
	}
}

void quota_flush(struct meta_redis *mr, uint64_t deadline_us)
{
	struct quotas *q = mr->quotas;

	if (!has_dirs(mr) && !has_owners(mr))
		return;
	mtx_lock(&q->lock);
	while (q->flushing)
		cond_wait(&q->flushed, &q->lock);
	q->flushing = true;
	mtx_unlock(&q->lock);
	flush_all(mr, deadline_us);
	mtx_lock(&q->lock);
	q->flushing = false;
	cond_broadcast(&q->flushed);
	mtx_unlock(&q->lock);
}

static bool find_fresh(struct hash_node *n, void *arg)
{
	bool *any = arg;

	*any = is_fresh(container_of(n, struct entry, node));
	return !*any;
}

bool quota_waiting(struct meta_redis *mr)
{
	struct quotas *q = mr->quotas;
	bool any = false;

	if (!has_dirs(mr) && !has_owners(mr))
		return false;
	mtx_lock(&q->lock);
	any = q->flight != NULL;
	for (int k = 0; k < KINDS && !any; k++)
		hashmap_each(&q->of[k], find_fresh, &any);
	mtx_unlock(&q->lock);
	return any;
}

/* --- load --- */

static int64_t be64_signed(const char *p)
{
	uint64_t v = 0;

	for (int i = 0; i < 8; i++)
		v = v << 8 | (uint8_t)p[i];
	return (int64_t)v;
}

struct loading {
	struct hashmap found; /* struct entry */
	int what;	      /* 0 inodes, 1 space, 2 limits */
};

static struct entry *found_get(struct loading *l, uint64_t id, bool make)
{
	struct hash_node *n = hashmap_find(&l->found, hash64(&id, 8), entry_eq, &id);
	struct entry *e;

	if (n || !make)
		return n ? container_of(n, struct entry, node) : NULL;
	e = calloc(1, sizeof(*e));
	if (!e)
		return NULL;
	*e = (struct entry){.id = id, .max = {-1, -1}};
	hashmap_add(&l->found, &e->node, hash64(&id, 8));
	return e;
}

/* a field of one of the three hashes; what is damaged is left out */
static int take_field(struct loading *l, const struct redis_reply *field,
		      const struct redis_reply *value)
{
	struct entry *e;
	const char *f, *v;
	uint64_t id;
	size_t fn, n;

	f = reply_text(field, &fn);
	v = reply_text(value, &n);
	if (!f || !v || parse_u64(f, UINT64_MAX, &id))
		return 0;
	e = found_get(l, id, l->what == 0);
	if (!e)
		return l->what ? 0 : -ENOMEM;
	if (l->what == 0)
		e->used.inodes = reply_int(value);
	else if (l->what == 1)
		e->used.space = reply_int(value);
	else if (n == 16)
		e->max = (struct amount){be64_signed(v), be64_signed(v + 8)};
	return 0;
}

static int load_hash(struct meta_redis *mr, const char *kind, const char *rest, struct loading *l,
		     uint64_t deadline_us)
{
	char cursor[24] = "0";
	int r;

	do {
		_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
		const struct redis_reply *fields;
		const char *next;
		size_t n;

		r = redis_once(mr->own_redis, deadline_us, &reply,
			       "HSCAN %s%sQuota%s %s COUNT 1000", mr->prefix, kind, rest, cursor);
		if (r)
			return r;
		next = reply_text(reply_at(reply, 0), &n);
		if (!next || n >= sizeof(cursor))
			return -EIO;
		memcpy(cursor, next, n + 1);
		fields = reply_at(reply, 1);
		for (size_t i = 0; !r && i + 1 < reply_len(fields); i += 2)
			r = take_field(l, reply_at(fields, i), reply_at(fields, i + 1));
	} while (!r && strcmp(cursor, "0") != 0);
	return r;
}

static bool forget_loaded(struct hash_node *n, void *arg)
{
	(void)arg;
	container_of(n, struct entry, node)->loaded = false;
	return true;
}

struct merge {
	struct quotas *q;
	int kind;
	uint64_t began; /* flushes before the load */
	bool limits;
};

/* one that was found; the node is of the found table, which is given up behind it */
static bool merge_one(struct hash_node *n, void *arg) NO_ANALYSIS
{
	struct entry *f = container_of(n, struct entry, node), *e;
	struct merge *m = arg;

	e = find_locked(m->q, m->kind, f->id);
	if (e) {
		e->max = f->max;
		if (e->flush_no <= m->began && !e->flying.space && !e->flying.inodes)
			e->used = f->used;
	} else {
		e = malloc(sizeof(*e));
		if (!e)
			return true; /* the next beat */
		*e = *f;
		hashmap_add(&m->q->of[m->kind], &e->node, hash64(&e->id, 8));
	}
	e->loaded = true;
	if (e->max.space > 0 || e->max.inodes > 0)
		m->limits = true;
	return true;
}

/* directories' quotas that are gone; of users and groups, their limits */
static bool drop_one(struct hash_node *n, void *arg) NO_ANALYSIS
{
	struct entry *e = container_of(n, struct entry, node);
	struct merge *m = arg;

	if (e->loaded)
		return true;
	if (m->kind == QUOTA_DIR) {
		hashmap_del(&m->q->of[m->kind], &e->node);
		free(e);
	} else {
		e->max = (struct amount){-1, -1};
	}
	return true;
}

static int load_kind(struct meta_redis *mr, int kind, uint64_t deadline_us, bool *limits)
{
	static const char *const rests[] = {"UsedInodes", "UsedSpace", ""};
	struct merge m = {.q = mr->quotas, .kind = kind};
	struct loading l = {.what = 0};
	int r = hashmap_init(&l.found, 64);

	if (r)
		return r;
	mtx_lock(&mr->quotas->lock);
	m.began = mr->quotas->flush_no;
	mtx_unlock(&mr->quotas->lock);
	for (l.what = 0; l.what < 3 && !r; l.what++)
		r = load_hash(mr, kinds[kind], rests[l.what], &l, deadline_us);
	mtx_lock(&mr->quotas->lock);
	if (!r) {
		hashmap_each(&mr->quotas->of[kind], forget_loaded, NULL);
		hashmap_each(&l.found, merge_one, &m);
		hashmap_each(&mr->quotas->of[kind], drop_one, &m);
	}
	mtx_unlock(&mr->quotas->lock);
	hashmap_each(&l.found, free_first, NULL);
	hashmap_fini(&l.found);
	*limits |= m.limits;
	return r;
}

int quota_load(struct meta_redis *mr, bool any, uint64_t deadline_us)
{
	struct quotas *q = mr->quotas;
	bool limits = false;
	int r = 0;

	if (!any && !has_dirs(mr) && !has_limits(mr))
		return 0;
	if (meta_setting(&mr->base)->dir_stats)
		r = load_kind(mr, QUOTA_DIR, deadline_us, &limits);
	if (!r && has_owners(mr)) {
		r = load_kind(mr, QUOTA_USER, deadline_us, &limits);
		if (!r)
			r = load_kind(mr, QUOTA_GROUP, deadline_us, &limits);
	}
	if (r)
		return r;
	mtx_lock(&q->lock);
	__atomic_store_n(&q->dirs, q->of[QUOTA_DIR].count > 0, __ATOMIC_RELAXED);
	__atomic_store_n(&q->limits, limits, __ATOMIC_RELAXED);
	mtx_unlock(&q->lock);
	return 0;
}

void quota_beat(struct meta_redis *mr, bool any, uint64_t deadline_us)
{
	struct quotas *q = mr->quotas;
	static struct log_rate rate;
	unsigned quiet;
	int r;

	mtx_lock(&q->lock);
	q->moves++; /* what is being asked for now is not kept either */
	if (q->parents.count)
		empty_locked(&q->parents);
	mtx_unlock(&q->lock);
	r = quota_load(mr, any, deadline_us);
	if (r && log_rate_ok(&rate, 60 * 1000000, &quiet))
		log_warn("quotas cannot be read: %s", strerror(-r));
}

void quota_version(struct meta_redis *mr, uint64_t version, uint64_t deadline_us)
{
	struct quotas *q = mr->quotas;
	bool same;

	mtx_lock(&q->lock);
	same = q->version == version;
	q->version = version;
	mtx_unlock(&q->lock);
	if (!same)
		quota_beat(mr, true, deadline_us);
}

/* --- how full it is --- */

struct clamp {
	struct meta_redis *mr;
	struct meta_statfs *s;
	struct amount used; /* of the lowest quota */
	bool any;
};

/* a quota that more is used of than it allows shows as full */
static struct amount shown_used(const struct entry *e)
{
	return (struct amount){MAX(e->used.space + e->flying.space + e->fresh.space, 0),
			       MAX(e->used.inodes + e->flying.inodes + e->fresh.inodes, 0)};
}

static uint64_t left(int64_t max, int64_t used)
{
	return max > used ? (uint64_t)(max - used) : 0;
}

static bool clamp_dir(void *arg, uint64_t dir)
{
	struct clamp *c = arg;
	struct amount max = {-1, -1}, used = {0};
	const struct entry *e;

	mtx_lock(&c->mr->quotas->lock);
	e = find_locked(c->mr->quotas, QUOTA_DIR, dir);
	if (e) {
		max = e->max;
		used = shown_used(e);
	}
	mtx_unlock(&c->mr->quotas->lock);
	if (e && !c->any) {
		c->used = used;
		c->any = true;
	}
	if (max.space > 0)
		c->s->avail_bytes = MIN(c->s->avail_bytes, left(max.space, used.space));
	if (max.inodes > 0)
		c->s->avail_inodes = MIN(c->s->avail_inodes, left(max.inodes, used.inodes));
	return true;
}

void quota_clamp(struct meta_redis *mr, uint64_t dir, struct meta_statfs *s)
{
	struct clamp c = {.mr = mr, .s = s};

	if (!has_dirs(mr) || way_up(mr, dir, clamp_dir, &c) || !c.any)
		return;
	s->total_bytes = (uint64_t)c.used.space + s->avail_bytes;
	s->used_inodes = (uint64_t)c.used.inodes;
}

int redis_statfs(struct meta *m, uint64_t inode, struct meta_statfs *ret)
{
	struct meta_redis *mr = redis_engine(m);
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	int64_t used, inodes;
	int r = redis_once(mr->redis, op_deadline(mr), &reply, "MGET %susedSpace %stotalInodes",
			   mr->prefix, mr->prefix);

	if (r)
		return op_error(r);
	if (reply_len(reply) != 2)
		return -EIO;
	used = reply_int(reply_at(reply, 0));
	inodes = reply_int(reply_at(reply, 1));
	meta_fill_statfs(m, used > 0 ? (uint64_t)used : 0, inodes > 0 ? (uint64_t)inodes : 0, ret);
	if (inode)
		quota_clamp(mr, inode, ret);
	return 0;
}

void quota_look(struct meta_redis *mr, uint64_t deadline_us)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;

	if (!redis_once(mr->own_redis, deadline_us, &reply, "EXISTS %sdirQuotaUsedInodes",
			mr->prefix))
		quota_beat(mr, reply_int(reply) > 0, deadline_us);
}
