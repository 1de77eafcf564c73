/* SPDX-License-Identifier: Apache-2.0 */
/* Usage of users and groups to Redis (of directories: meta_redis_stat.c), and limits and usage from
 * it. Threads: the statistics' and whoever checks usage flush, one at a time; the heartbeat, and
 * who changed a limit, load. */
#include "client/meta/quotas.h"

#include <inttypes.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/log.h"
#include "common/parse.h"

enum { FLUSH_BATCH = 64 };

static const char *const kinds[QUOTA_KINDS] = {"dir", "user", "group"};

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

static void flight_fill_locked(struct quotas *q, struct flight *f, int kind, struct quota_entry *e)
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

static bool is_fresh(const struct quota_entry *e)
{
	return e->fresh.space || e->fresh.inodes;
}

static bool fill_one(struct hash_node *n, void *arg) NO_ANALYSIS
{
	struct quota_entry *e = container_of(n, struct quota_entry, node);
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
	for (int k = QUOTA_USER; k < QUOTA_KINDS && f->n < FLUSH_BATCH; k++)
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
		struct quota_entry *e = quota_find_locked(q, f->of[i].kind, f->of[i].id);

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
		if (r == -EIO || (r && op_error(r) != -EIO)) {
			/* refused, and not for lack of an answer: it would be again */
			if (log_rate_ok(&rate, 10 * 1000000, &quiet))
				log_warn("usage of some quotas is lost (stoke quota check "
					 "--repair): %s",
					 strerror(-r));
			landed(mr, f);
			continue;
		}
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

	if (!has_owners(mr))
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

	*any = is_fresh(container_of(n, struct quota_entry, node));
	return !*any;
}

bool quota_waiting(struct meta_redis *mr)
{
	struct quotas *q = mr->quotas;
	bool any = false;

	if (!has_owners(mr))
		return false;
	mtx_lock(&q->lock);
	any = q->flight != NULL;
	for (int k = QUOTA_USER; k < QUOTA_KINDS && !any; k++)
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
	struct hashmap found; /* struct quota_entry */
	int what;	      /* 0 inodes, 1 space, 2 limits */
};

static struct quota_entry *found_get(struct loading *l, uint64_t id, bool make)
{
	struct hash_node *n = hashmap_find(&l->found, hash64(&id, 8), quota_entry_eq, &id);
	struct quota_entry *e;

	if (n || !make)
		return n ? container_of(n, struct quota_entry, node) : NULL;
	e = calloc(1, sizeof(*e));
	if (!e)
		return NULL;
	*e = (struct quota_entry){.id = id, .max = {-1, -1}};
	hashmap_add(&l->found, &e->node, hash64(&id, 8));
	return e;
}

/* a field of one of the three hashes; what is damaged is left out */
static int take_field(struct loading *l, const struct redis_reply *field,
		      const struct redis_reply *value)
{
	struct quota_entry *e;
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
	container_of(n, struct quota_entry, node)->loaded = false;
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
	struct quota_entry *f = container_of(n, struct quota_entry, node), *e;
	struct merge *m = arg;

	e = quota_find_locked(m->q, m->kind, f->id);
	if (e) {
		e->max = f->max;
		if (e->flush_no <= m->began &&
		    (m->kind == QUOTA_DIR ? !m->q->telling : !e->flying.space && !e->flying.inodes))
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
	struct quota_entry *e = container_of(n, struct quota_entry, node);
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
	hashmap_each(&l.found, quota_free_node, NULL);
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
		quota_empty_locked(&q->parents);
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

void quota_look(struct meta_redis *mr, uint64_t deadline_us)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;

	if (!redis_once(mr->own_redis, deadline_us, &reply, "EXISTS %sdirQuotaUsedInodes",
			mr->prefix))
		quota_beat(mr, reply_int(reply) > 0, deadline_us);
}
