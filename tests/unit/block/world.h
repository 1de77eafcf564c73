/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of layers share: an object store in memory whose bytes follow from the key, a
 * world of loop, pool and chain, and requests that tests can wait for. */
#ifndef STOKE_TESTS_UNIT_BLOCK_WORLD_H
#define STOKE_TESTS_UNIT_BLOCK_WORLD_H

#include "tests/unit/check.h"

#include "common/block/source.h"
#include "common/clock.h"
#include "common/mtx.h"

enum { BLOCK = 256 << 10, MIB = 1 << 20 };

/* --- the bytes of a block --- */

static inline unsigned char pattern(uint64_t slice, uint32_t index, uint32_t at)
{
	return (unsigned char)((slice * 31 + index * 7 + at + (at >> 8) * 13 + (at >> 16)) & 0xff);
}

static inline bool is_pattern(const struct block_key *k, uint32_t off, const unsigned char *p,
			      size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] != pattern(k->slice, k->index, off + (uint32_t)i))
			return false;
	return true;
}

/* --- the store --- */

struct mem_object {
	char name[BLOCK_NAME_MAX];
	size_t len;
	unsigned char *mem;
};

struct mem_store {
	struct object_store base;
	struct mtx lock;
	struct list_node held;
	bool hold;	      /* keep what starts until mem_release */
	struct loop *loop;    /* complete there; NULL: inside object_start */
	struct coding coding; /* objects are encoded like this */
	int status;	      /* what every request gets, unless 0 */
	long longer;	      /* bytes an object has more than its block */
	bool broken;	      /* objects do not decode */
	size_t step;	      /* call progress every so many bytes */
	unsigned gets, puts, whole_gets;
	void (*pause)(bool on); /* called around what the store does itself */
	struct loop *watch;	/* did the last request come on this loop's thread */
	bool on_watched;
	struct mem_object put[64];
};

struct mem_job {
	struct loop_job job;
	struct mem_store *ms;
	struct object_req *req;
};

static inline void key_of_object(const char *name, struct block_key *ret)
{
	const struct hash128 volume = {0};

	assert_int_equal(block_key_parse(strrchr(name, '/') + 1, &volume, ret), 0);
}

static inline int mem_get(struct mem_store *ms, struct object_req *req)
{
	struct block_key k;
	unsigned char *plain;
	size_t len, cap;

	key_of_object(req->key, &k);
	cap = MAX(coding_bound(ms->coding, k.size), (size_t)k.size) + MIB;
	plain = malloc(cap);
	assert_non_null(plain);
	len = (size_t)((long)k.size + ms->longer);
	for (size_t i = 0; i < len; i++)
		plain[i] = pattern(k.slice, k.index, (uint32_t)i);
	if (!coding_is_plain(ms->coding)) {
		unsigned char *enc = malloc(cap);
		ssize_t n = coding_encode(ms->coding, plain, len, enc, cap);

		assert_true(n > 0);
		memcpy(plain, enc, (size_t)n);
		len = (size_t)n;
		free(enc);
		if (ms->broken)
			memset(plain, 0xee, len);
	}
	if (req->off >= len)
		len = 0;
	else
		len -= req->off;
	if (req->len)
		len = MIN(len, (size_t)req->len);
	if (len > req->cap) {
		free(plain);
		return -EMSGSIZE;
	}
	memcpy(req->buf, plain + req->off, len);
	free(plain);
	req->got = len;
	if (req->progress && ms->step && len == (req->len ? req->len : req->cap))
		for (size_t v = ms->step; v < len; v += ms->step)
			req->progress(req, v);
	return 0;
}

static inline int mem_put(struct mem_store *ms, struct object_req *req)
{
	struct mem_object *o = &ms->put[ms->puts % ARRAY_LEN(ms->put)];

	snprintf(o->name, sizeof(o->name), "%s", req->key);
	free(o->mem);
	o->mem = malloc(req->cap);
	assert_non_null(o->mem);
	memcpy(o->mem, req->buf, req->cap);
	o->len = req->cap;
	return 0;
}

static inline void mem_finish(struct mem_store *ms, struct object_req *req)
{
	int r = ms->status;

	if (ms->pause)
		ms->pause(true);
	if (!r)
		r = req->op == OBJECT_GET ? mem_get(ms, req) : mem_put(ms, req);
	if (ms->pause)
		ms->pause(false);
	if (req->op == OBJECT_PUT)
		ms->puts++;
	object_done(&ms->base, req, r);
}

static inline void mem_job_run(struct loop_job *job)
{
	struct mem_job *m = container_of(job, struct mem_job, job);
	struct mem_store *ms = m->ms;
	struct object_req *req = m->req;

	free(m);
	mem_finish(ms, req);
}

static inline void mem_go(struct mem_store *ms, struct object_req *req)
{
	struct mem_job *m;

	if (!ms->loop) {
		mem_finish(ms, req);
		return;
	}
	m = malloc(sizeof(*m));
	assert_non_null(m);
	*m = (struct mem_job){.job.fn = mem_job_run, .ms = ms, .req = req};
	loop_post(ms->loop, &m->job);
}

static inline void mem_start(struct object_store *s, struct object_req *req)
{
	struct mem_store *ms = container_of(s, struct mem_store, base);
	bool held;

	mtx_lock(&ms->lock);
	if (req->op == OBJECT_GET) {
		__atomic_fetch_add(&ms->gets, 1, __ATOMIC_RELAXED);
		if (!req->len)
			__atomic_fetch_add(&ms->whole_gets, 1, __ATOMIC_RELAXED);
	}
	ms->on_watched = ms->watch && loop_is_mine(ms->watch);
	held = ms->hold;
	if (held)
		list_add_tail(&ms->held, &req->link);
	mtx_unlock(&ms->lock);
	if (!held)
		mem_go(ms, req);
}

static inline unsigned mem_gets(struct mem_store *ms)
{
	return __atomic_load_n(&ms->gets, __ATOMIC_RELAXED);
}

static inline void mem_hold(struct mem_store *ms)
{
	mtx_lock(&ms->lock);
	ms->hold = true;
	mtx_unlock(&ms->lock);
}

/* the first that is held back, still with the store; NULL: none */
static inline struct object_req *mem_take_held(struct mem_store *ms)
{
	struct list_node *n;

	mtx_lock(&ms->lock);
	n = list_pop(&ms->held);
	mtx_unlock(&ms->lock);
	return n ? container_of(n, struct object_req, link) : NULL;
}

static inline void mem_release(struct mem_store *ms)
{
	struct object_req *req;

	mtx_lock(&ms->lock);
	ms->hold = false;
	mtx_unlock(&ms->lock);
	while ((req = mem_take_held(ms)))
		mem_go(ms, req);
}

static inline void mem_free(struct object_store *s)
{
	(void)s;
}

static const struct object_ops mem_ops = {.name = "mem", .start = mem_start, .free = mem_free};

/* --- the world --- */

struct world {
	struct loop *loop;
	struct pool *pool;
	struct metrics *metrics;
	struct workq *codecs;
	struct req_env env;
	struct mem_store store;
	struct source *object, *fault, *flight, *ram, *top;
};

enum world_flag { WITH_RAM = 1, WITH_FLIGHT = 2, WITH_DAEMON = 4, WITH_SUMS = 8, WITH_SYNC = 16 };

/* tests of encrypted volumes set it before world_init */
static const struct crypt_block *world_crypt;

/* what the pool must have room for in one piece, as the programs tell it: block, and object */
static inline size_t world_block(enum codec codec)
{
	struct coding c = {codec, world_crypt};

	return BLOCK + 4096 + (coding_is_plain(c) ? 0 : pool_cost(coding_bound(c, BLOCK)));
}

static inline void world_init(struct world *w, unsigned flags, enum codec codec, size_t budget)
{
	struct source_object_conf conf = {.volume_name = "vol"};

	memset(w, 0, sizeof(*w));
	assert_int_equal(loop_new("test", &w->loop), 0);
	assert_int_equal(workq_new("codec", 2, 64, &w->codecs), 0);
	assert_int_equal(pool_new(budget, world_block(codec), &w->pool), 0);
	w->metrics = metrics_new();
	assert_non_null(w->metrics);
	w->env = (struct req_env){.pool = w->pool,
				  .timers = w->loop,
				  .metrics = w->metrics,
				  .codec = codec,
				  .crypt = world_crypt,
				  .block_size = BLOCK,
				  .want_sums = flags & WITH_SUMS};
	w->store.base.ops = &mem_ops;
	w->store.watch = w->loop;
	w->store.coding = req_coding(&w->env);
	w->store.loop = flags & WITH_SYNC ? NULL : w->loop;
	mtx_init(&w->store.lock);
	list_init(&w->store.held);
	conf.store = &w->store.base;
	conf.codecs = w->codecs;
	assert_int_equal(source_object_new(&w->env, &conf, &w->object), 0);
	assert_int_equal(source_fault_new(&w->env, w->object, &w->fault), 0);
	w->top = w->fault;
	if (flags & (WITH_FLIGHT | WITH_DAEMON)) {
		assert_int_equal(
			source_flight_new(&w->env, w->top, flags & WITH_DAEMON, &w->flight), 0);
		w->top = w->flight;
	}
	if (flags & WITH_RAM) {
		assert_int_equal(source_ram_new(&w->env, w->top, budget / 2, &w->ram), 0);
		w->top = w->ram;
	}
}

static inline void world_fini(struct world *w)
{
	struct pool_stat st;

	req_env_drain(&w->env);
	workq_free(w->codecs);
	source_free(w->top);
	pool_stat(w->pool, &st);
	assert_int_equal(st.used, 0); /* nothing was lost */
	pool_free(w->pool);
	loop_free(w->loop);
	metrics_free(w->metrics);
	for (size_t i = 0; i < ARRAY_LEN(w->store.put); i++)
		free(w->store.put[i].mem);
	mtx_fini(&w->store.lock);
}

static inline struct block_key key_of(uint64_t slice, uint32_t index)
{
	const struct hash128 volume = {{1, 2, 3}};
	struct block_key k;

	block_key_init(&k, &volume, slice, index, BLOCK);
	return k;
}

/* --- requests to wait for --- */

struct waiter {
	struct mtx lock;
	struct cond cond;
	unsigned pending, ended;
};

static inline void waiter_init(struct waiter *wt)
{
	mtx_init(&wt->lock);
	cond_init(&wt->cond);
	wt->pending = wt->ended = 0;
}

static inline void waiter_fini(struct waiter *wt)
{
	cond_fini(&wt->cond);
	mtx_fini(&wt->lock);
}

static inline void waiter_wait(struct waiter *wt)
{
	mtx_lock(&wt->lock);
	while (wt->pending)
		if (!cond_wait_us(&wt->cond, &wt->lock, 20 * 1000000))
			break;
	assert_int_equal(wt->pending, 0); /* nobody waits for ever */
	mtx_unlock(&wt->lock);
}

struct read {
	struct waiter *wt;
	struct block_req *req;
	bool done;
	unsigned order; /* the how manieth to end, from 1 */
	int status;
};

static inline void read_done(struct block_req *req, int status, void *arg)
{
	struct read *rd = arg;

	(void)req;
	rd->status = status;
	mtx_lock(&rd->wt->lock);
	rd->done = true;
	rd->order = ++rd->wt->ended;
	rd->wt->pending--;
	cond_broadcast(&rd->wt->cond);
	mtx_unlock(&rd->wt->lock);
}

static inline bool read_is_done(struct read *rd)
{
	bool done;

	mtx_lock(&rd->wt->lock);
	done = rd->done;
	mtx_unlock(&rd->wt->lock);
	return done;
}

static inline void read_start(struct world *w, struct waiter *wt, struct read *rd,
			      const struct block_key *k, uint32_t off, uint32_t len, uint32_t flags)
{
	*rd = (struct read){.wt = wt};
	rd->req = req_new(&w->env, k, off, len, flags, POOL_DEMAND);
	assert_non_null(rd->req);
	mtx_lock(&wt->lock);
	wt->pending++;
	mtx_unlock(&wt->lock);
}

static inline void read_send(struct world *w, struct read *rd)
{
	source_get(w->top, rd->req, read_done, rd);
}

static inline void read_go(struct world *w, struct waiter *wt, struct read *rd,
			   const struct block_key *k, uint32_t off, uint32_t len, uint32_t flags)
{
	read_start(w, wt, rd, k, off, len, flags);
	read_send(w, rd);
}

/* the answer is right, or the error expected; frees the request */
static inline void read_check(struct read *rd, int status)
{
	struct block_req *req = rd->req;

	assert_true(read_is_done(rd));
	assert_int_equal(rd->status, status);
	if (!status && !(req->flags & (REQ_FILL | REQ_PROBE))) {
		assert_int_equal(req->data.len, req->len);
		assert_true(is_pattern(&req->key, req->off, blob_mem(&req->data), req->len));
	}
	req_free(req);
	rd->req = NULL;
}

/* one get from start to end */
static inline int get_once(struct world *w, const struct block_key *k, uint32_t off, uint32_t len,
			   uint32_t flags, enum req_via *ret_via, char *ret_reason)
{
	struct waiter wt;
	struct read rd;
	int status;

	waiter_init(&wt);
	read_go(w, &wt, &rd, k, off, len, flags);
	waiter_wait(&wt);
	status = rd.status;
	if (ret_via)
		*ret_via = rd.req->via;
	if (ret_reason)
		memcpy(ret_reason, rd.req->reason, REQ_REASON);
	read_check(&rd, status);
	waiter_fini(&wt);
	return status;
}

/* what was posted to the loop before this call has run */
static inline void loop_nothing(void *arg)
{
	(void)arg;
}

static inline void loop_settle(struct world *w)
{
	for (int i = 0; i < 3; i++)
		loop_run_sync(w->loop, loop_nothing, NULL);
}

static inline uint64_t counter(struct world *w, const char *name, const char *labels)
{
	return metric_value(metrics_get(w->metrics, name, labels, METRIC_COUNTER, ""));
}

#endif
