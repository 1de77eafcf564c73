/* SPDX-License-Identifier: Apache-2.0 */
/* One block on its way between members: the copiers' threads. */
#include "cached/mover_inner.h"

#include "common/clock.h"
#include "proto/bytes.h"

enum {
	MEMORY_US = 20000,
	STAT_US = 3000000,
	GET_US = 10000000,
	FILL_US = 60000000,
};

/* --- a call, waited for --- */

static void asked_over(struct asked *a, int status)
{
	struct mover *m = a->m;

	mtx_lock(&m->lock);
	a->over = true;
	a->status = status;
	cond_broadcast(&m->changed);
	mtx_unlock(&m->lock);
}

static void answered(struct peer_call *c, int status)
{
	asked_over(container_of(c, struct asked, call), status);
}

/* on the call's loop, so that no answer comes in between */
static void give_up(void *arg)
{
	struct asked *a = arg;

	if (a->over)
		return;
	peer_abandon(&a->call);
	asked_over(a, -ECANCELED);
}

int mover_ask(struct mover *m, struct peer *p, struct asked *a, bool bulk)
{
	bool over;

	a->m = m;
	a->call.fd = -1;
	a->call.done = answered;
	peer_start(p, &a->call, bulk);
	mtx_lock(&m->lock);
	while (!a->over && !m->stop)
		cond_wait(&m->changed, &m->lock);
	over = a->over;
	mtx_unlock(&m->lock);
	if (!over)
		loop_run_sync(peer_loop(p, bulk), give_up, a);
	return a->status;
}

static void key_head(struct asked *a, const struct block_key *k)
{
	struct msg_key key;

	block_key_to_msg(k, &key);
	msg_key_encode(&key, a->call.head);
	a->call.head_len = MSG_KEY;
}

/* --- one block --- */

/* so many bytes may go now; false: it is time to end */
static bool take_turn(struct mover *m, uint64_t bytes)
{
	uint64_t now = clock_us(), at;
	bool go;

	mtx_lock(&m->lock);
	at = MAX(m->due_us, now);
	if (m->limit)
		m->due_us = at + bytes * 1000000 / m->limit;
	go = mover_rest_locked(m, at);
	mtx_unlock(&m->lock);
	return go;
}

struct buf *mover_memory(struct mover *m, size_t len)
{
	size_t reserved = pool_cost(len);
	struct pool *pool = m->conf.env->pool;
	struct buf *b;
	int r;

	while ((r = pool_reserve(pool, POOL_UPLOAD, reserved, NULL)) == -ENOBUFS) {
		bool go;

		mtx_lock(&m->lock);
		go = mover_rest_locked(m, clock_us() + MEMORY_US);
		mtx_unlock(&m->lock);
		if (!go)
			return NULL;
	}
	if (r < 0)
		return NULL;
	b = pool_take(pool, POOL_UPLOAD, len, &reserved);
	pool_unreserve(pool, POOL_UPLOAD, reserved);
	return b;
}

/* The own store is given a block. Its disk may hang: then the waiting is left to the callback,
 * which may come when the mover was freed. */
struct keeping {
	struct mover *m;
	struct block_req *req;
	unsigned refs;
	bool over;
	int status;
};

static void keeping_unref_locked(struct keeping *k)
{
	if (--k->refs == 0)
		free(k);
}

static void kept(struct block_req *req, int status, void *arg)
{
	struct keeping *k = arg;
	struct mover *m = k->m;

	mtx_lock(&m->lock);
	k->over = true;
	k->status = status;
	keeping_unref_locked(k);
	cond_broadcast(&m->changed);
	mtx_unlock(&m->lock);
	mover_unref(m);
	req_free(req);
}

static int keep(struct mover *m, const struct block_key *key, struct buf *buf)
{
	struct block_req *req = req_new(m->conf.env, key, 0, key->size, 0, POOL_UPLOAD);
	struct keeping *k = calloc(1, sizeof(*k));
	int r = -ECANCELED;

	if (!req || !k) {
		if (req)
			req_free(req);
		free(k);
		return -ENOMEM;
	}
	*k = (struct keeping){.m = m, .req = req, .refs = 2};
	req->inner = true;
	req->data = blob_of_buf(buf_ref(buf), 0, key->size);
	req->sums = blob_of_buf(buf_ref(buf), key->size, msg_sums_len(key->size));
	mtx_lock(&m->lock);
	m->refs++;
	mtx_unlock(&m->lock);
	source_put(m->conf.chain, req, kept, k);
	mtx_lock(&m->lock);
	while (!k->over && !m->stop)
		cond_wait(&m->changed, &m->lock);
	if (k->over)
		r = k->status;
	keeping_unref_locked(k);
	mtx_unlock(&m->lock);
	return r;
}

/* 1: it is here now; 0: it was */
static int pull(struct mover *m, const struct block_key *key, struct peer *p)
{
	size_t len = key->size + msg_sums_len(key->size);
	struct asked a = {.call = {.op = OP_GET, .flags = FRAME_NO_FILL, .quiet_us = GET_US}};
	struct msg_get get = {.len = key->size};
	int r;

	if (store_has(m->conf.store, key))
		return 0;
	if (!take_turn(m, key->size))
		return -ECANCELED;
	a.call.in = mover_memory(m, len);
	if (!a.call.in)
		return -ENOMEM;
	a.call.in_cap = len;
	block_key_to_msg(key, &get.key);
	a.call.head_len = msg_get_encode(&get, a.call.head);
	r = mover_ask(m, p, &a, true);
	if (r == 0 && a.call.in_len != len)
		r = -EPROTO;
	if (r == 0)
		r = block_sums_check(key, 0, a.call.in->mem, key->size, a.call.in->mem + key->size,
				     NULL);
	if (r == 0)
		r = keep(m, key, a.call.in);
	buf_unref(a.call.in);
	return r < 0 ? r : 1;
}

static int ask_fill(struct mover *m, struct peer *p, const struct block_key *key, uint64_t until)
{
	struct asked a = {
		.call = {.op = OP_FILL, .quiet_us = FILL_US, .min_version = until ? 2 : 0}};
	struct msg_fill fill = {.pins = until, .until = until};

	block_key_to_msg(key, &fill.key);
	a.call.head_len = msg_fill_encode(&fill, a.call.head);
	return mover_ask(m, p, &a, false);
}

static int push(struct mover *m, const struct block_key *key, struct peer *p)
{
	struct asked stat = {.call = {.op = OP_STAT, .quiet_us = STAT_US}};
	uint64_t until = store_pinned(m->conf.store, key);
	int r;

	key_head(&stat, key);
	r = mover_ask(m, p, &stat, false);
	if (r != -ENOENT && !(r == 0 && until))
		return r;
	if (!store_has(m->conf.store, key)) /* evicted: he would ask the object store */
		return 0;
	if (!take_turn(m, key->size))
		return -ECANCELED;
	r = ask_fill(m, p, key, until);
	if (until && (r == -ENOSPC || r == -EPROTONOSUPPORT)) /* he has no room for pins */
		r = ask_fill(m, p, key, 0);
	return r < 0 ? r : 1;
}

static bool is_missing(int r)
{
	return r == -EHOSTDOWN || r == -ECONNREFUSED || r == -ETIMEDOUT || r == -ECANCELED ||
	       r == -ECONNRESET || r == -EHOSTUNREACH || r == -ESTALE;
}

static int move(struct mover *m, struct move *v)
{
	bool silent;

	mtx_lock(&m->lock);
	silent = m->silent == v->peer;
	mtx_unlock(&m->lock);
	if (silent)
		return -EHOSTDOWN;
	if (v->until) /* before it is fetched, so that nothing takes it away in between */
		store_pin_moved(m->conf.store, &v->key, v->until);
	return v->push ? push(m, &v->key, v->peer) : pull(m, &v->key, v->peer);
}

void mover_move_run(struct workq_job *job)
{
	struct move *v = container_of(job, struct move, job);
	struct mover *m = v->m;
	struct counters *n = m->conf.counters;
	int r = move(m, v);

	if (r > 0)
		metric_add(v->push ? n->moved_out : n->moved_in, 1);
	else if (r < 0 && r != -ECANCELED)
		metric_add(n->move_failed, 1);
	mtx_lock(&m->lock);
	m->out--;
	if (r >= 0) {
		m->moved++;
	} else if (is_missing(r)) {
		m->missed++;
		m->silent = v->peer;
	} else {
		m->refused++;
	}
	free(v);
	cond_broadcast(&m->changed);
	mtx_unlock(&m->lock);
}
