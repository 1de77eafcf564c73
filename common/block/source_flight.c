/* SPDX-License-Identifier: Apache-2.0 */
/* Equal requests become one. The first to ask for bytes leads a fetch; whoever asks for bytes
 * inside them meanwhile is parked on it, without memory of his own, and is answered with a slice of
 * the leader's buffer: as soon as the valid prefix covers his range, or at the end. A whole block
 * is never parked on a range, since no range covers it.
 *
 *	a fetch is	that is					entered by
 *	in line		listed, its leader waits for memory	flight_lead, flight_widen
 *			(a prefetch has it before)
 *	running		listed, the leader is below		leader_go
 *	over		not listed, its parked are answered	fetch_over
 *			or enter again
 *
 * A leader's error is everybody's error, but for two: its own deadline passed, and a prefetch found
 * no memory. Then those parked enter again, through the loop: the first of them leads, the others
 * join him. Any thread; one leaf lock over the table. */
#include "common/block/source.h"

#include "common/clock.h"
#include "common/hashmap.h"
#include "common/mtx.h"

enum { SEEN = 4096 }; /* blocks of which a first range is remembered */

struct source_flight {
	struct source base;
	bool whole_on_second;
	struct mtx lock;
	/* several of one block may run: ranges that do not cover each other */
	struct hashmap fetches;
	uint64_t seen[SEEN]; /* digests of blocks of which a range was fetched, by their low bits */
};

struct fetch {
	struct hash_node node;
	struct source_flight *flight;
	struct block_req *leader;
	bool own; /* the leader was made here, to fetch the whole block for a range */
	struct list_node parked;
	struct blob data; /* under the flight's lock: bytes from leader->off on, of which */
	size_t valid;	  /* so many are valid */
};

/* --- the table --- */

static bool covers(const struct hash_node *n, const void *arg)
{
	const struct fetch *f = container_of(n, const struct fetch, node);
	const struct block_req *req = arg, *l = f->leader;

	return l->off <= req->off && (uint64_t)req->off + req->len <= (uint64_t)l->off + l->len &&
	       block_key_eq(&l->key, &req->key);
}

/* Who asks without filling, or for another member, may be what a leader elsewhere waits for (rule
 * 7). So he does not wait for one who waits for a peer that may ask others in turn; and he who asks
 * without filling, whose asker waits for such as him, for nobody who waits for a peer at all. Who
 * has asked nobody yet will ask by NO_FILL alone, once somebody waits for him. Then there are no
 * loops: nobody begins to wait for a leader that waits by NO_FILL, but those that ask to fill; and
 * whom a NO_FILL waits for never asks to fill. */
static bool joins(const struct hash_node *n, const void *arg)
{
	const struct fetch *f = container_of(n, const struct fetch, node);
	const struct block_req *req = arg;
	enum req_way way = WAY_OPEN;

	if (!covers(n, arg))
		return false;
	if (!(req->flags & (REQ_NO_FILL | REQ_MEMBER)))
		return true;
	if (__atomic_compare_exchange_n(&f->leader->way, &way, WAY_PROMISED, false,
					__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return true;
	return way == WAY_OBJECT || way == WAY_PROMISED ||
	       (way == WAY_HOLDERS && !(req->flags & REQ_NO_FILL));
}

static bool fetch_has_locked(const struct fetch *f, const struct block_req *req)
{
	return f->data.len && (uint64_t)req->off + req->len <= (uint64_t)f->leader->off + f->valid;
}

static void answer(struct block_req *req)
{
	req->via = VIA_FLIGHT;
	req_unreserve(req);
	req_done(req, 0);
}

/* req joins a fetch that covers it; it may be answered and gone on return */
static bool join(struct source_flight *fl, struct block_req *req)
{
	struct hash_node *n;
	bool now = false;

	mtx_lock(&fl->lock);
	n = hashmap_find(&fl->fetches, req->key.digest, joins, req);
	if (n) {
		struct fetch *f = container_of(n, struct fetch, node);

		now = fetch_has_locked(f, req);
		if (now)
			req->data = blob_slice(&f->data, req->off - f->leader->off, req->len);
		else
			list_add_tail(&f->parked, &req->link);
	}
	mtx_unlock(&fl->lock);
	if (now)
		answer(req);
	return n;
}

/* Lists f, with first (NULL: none) parked on it, unless a fetch that it may join came first: then
 * false. */
static bool list_fetch(struct source_flight *fl, struct fetch *f, struct block_req *first)
{
	bool other;

	mtx_lock(&fl->lock);
	other = hashmap_find(&fl->fetches, f->leader->key.digest, joins, f->leader);
	if (!other) {
		hashmap_add(&fl->fetches, &f->node, f->leader->key.digest);
		if (first)
			list_add_tail(&f->parked, &first->link);
	}
	mtx_unlock(&fl->lock);
	return !other;
}

/* a range of this block was fetched before */
static bool is_second(struct source_flight *fl, uint64_t digest)
{
	uint64_t *slot = &fl->seen[digest % SEEN];
	bool second;

	mtx_lock(&fl->lock);
	second = *slot == digest;
	*slot = second ? 0 : digest;
	mtx_unlock(&fl->lock);
	return second;
}

/* --- the end of a fetch --- */

static void flight_get(struct source *s, struct block_req *req);

static void again_job(struct loop_job *job)
{
	struct block_req *req = container_of(job, struct block_req, job);

	flight_get(req->frame[req->depth - 1].source, req);
}

static void again(struct block_req *req)
{
	struct loop *l = req->env->timers;

	req->job.fn = again_job;
	if (l)
		loop_post(l, &req->job);
	else
		again_job(&req->job);
}

static void give(struct block_req *req, const struct block_req *leader)
{
	req->data = blob_slice(&leader->data, req->off - leader->off, req->len);
	if (leader->sums.len && req->len == req->key.size)
		req->sums = blob_slice(&leader->sums, 0, leader->sums.len);
	answer(req);
}

static void settle(struct block_req *req, const struct block_req *leader, int status)
{
	bool prefetch = req->klass == POOL_PREFETCH;

	if (status == -ETIMEDOUT && clock_left(req->deadline_us)) {
		again(req);
	} else if (status == -ENOBUFS && leader->klass == POOL_PREFETCH && !prefetch) {
		again(req);
	} else {
		memcpy(req->reason, leader->reason, sizeof(req->reason));
		req_unreserve(req);
		req_done(req, status);
	}
}

static void fetch_over(struct fetch *f, int status)
{
	struct source_flight *fl = f->flight;
	struct block_req *leader = f->leader;
	struct list_node parked, *n;
	bool own = f->own;

	list_init(&parked);
	mtx_lock(&fl->lock);
	hashmap_del(&fl->fetches, &f->node);
	list_splice_tail(&parked, &f->parked);
	mtx_unlock(&fl->lock);
	blob_fini(&f->data);
	free(f);
	leader->progress = NULL;
	if (own && !status)
		source_admit_above(&fl->base, leader);
	while ((n = list_pop(&parked))) {
		struct block_req *req = container_of(n, struct block_req, link);

		if (status)
			settle(req, leader, status);
		else
			give(req, leader);
	}
	if (own)
		req_free(leader);
	else
		req_done(leader, status);
}

/* --- leading --- */

static void leader_done(struct block_req *leader, int status, void *arg)
{
	(void)leader;
	fetch_over(arg, status);
}

/* the first valid bytes of the fetch stand in data: those who want no more are answered */
static void leader_progress(struct block_req *leader, const struct blob *data, size_t valid,
			    void *arg)
{
	struct fetch *f = arg;
	struct list_node ready, *n, *next;

	(void)leader;
	list_init(&ready);
	mtx_lock(&f->flight->lock);
	if (!f->data.len)
		f->data = blob_slice(data, 0, data->len);
	f->valid = MAX(f->valid, valid);
	list_for_each_safe(n, next, &f->parked)
	{
		struct block_req *req = container_of(n, struct block_req, link);

		if (!fetch_has_locked(f, req))
			continue;
		list_del(n);
		req->data = blob_slice(&f->data, req->off - f->leader->off, req->len);
		list_add_tail(&ready, n);
	}
	mtx_unlock(&f->flight->lock);
	while ((n = list_pop(&ready)))
		answer(container_of(n, struct block_req, link));
}

static void leader_go(struct block_req *leader, int status, void *arg)
{
	struct fetch *f = arg;

	if (status) {
		fetch_over(f, status);
		return;
	}
	leader->progress = leader_progress;
	leader->progress_arg = f;
	source_get(f->flight->base.next, leader, leader_done, f);
}

static struct fetch *fetch_new(struct source_flight *fl, struct block_req *leader, bool own)
{
	struct fetch *f = calloc(1, sizeof(*f));

	if (!f)
		return NULL;
	f->flight = fl;
	f->leader = leader;
	f->own = own;
	list_init(&f->parked);
	return f;
}

/* req leads, or joins who came first meanwhile */
static void flight_lead(struct source_flight *fl, struct block_req *req)
{
	struct fetch *f = fetch_new(fl, req, false);

	if (!f) {
		req_done(req, -ENOMEM);
		return;
	}
	while (!list_fetch(fl, f, NULL))
		if (join(fl, req)) {
			free(f);
			return;
		}
	req_reserve(req, leader_go, f);
}

static void prefetch_reserved(struct block_req *req, int status, void *arg)
{
	struct source_flight *fl = arg;

	if (status)
		req_done(req, status);
	else if (!join(fl, req))
		flight_lead(fl, req);
}

/* --- a whole block for a range --- */

/* The fetch is listed with req parked on it; whole has its memory when it is a prefetch. */
static void flight_widen(struct source_flight *fl, struct block_req *req, struct block_req *whole)
{
	struct fetch *f = fetch_new(fl, whole, true);

	if (!f) {
		req_free(whole);
		req_done(req, -ENOMEM);
		return;
	}
	while (!list_fetch(fl, f, req))
		if (join(fl, req)) {
			free(f);
			req_free(whole);
			return;
		}
	req_reserve(whole, leader_go, f);
}

static void whole_prefetch_reserved(struct block_req *whole, int status, void *arg)
{
	struct block_req *req = arg;
	struct source *s = req->frame[req->depth - 1].source;

	if (status) {
		req_free(whole);
		req_done(req, status);
		return;
	}
	flight_widen(container_of(s, struct source_flight, base), req, whole);
}

static bool wants_whole(struct source_flight *fl, const struct block_req *req)
{
	if (!fl->whole_on_second || req->len == req->key.size)
		return false;
	if (!coding_is_plain(req_coding(req->env)))
		return true;
	return !(req->flags & REQ_RANGE_ONLY) && is_second(fl, req->key.digest);
}

static void start_whole(struct source_flight *fl, struct block_req *req)
{
	struct block_req *whole = req_new(req->env, &req->key, 0, req->key.size,
					  req->flags & ~(uint32_t)REQ_RANGE_ONLY, req->klass);

	if (!whole) {
		req_done(req, -ENOMEM);
		return;
	}
	whole->inner = true;
	whole->deadline_us = req->deadline_us;
	if (req->klass == POOL_PREFETCH)
		req_reserve(whole, whole_prefetch_reserved, req);
	else
		flight_widen(fl, req, whole);
}

/* --- the layer --- */

static void pass_up(struct block_req *req, int status, void *arg)
{
	(void)arg;
	req_done(req, status);
}

static void flight_get(struct source *s, struct block_req *req)
{
	struct source_flight *fl = container_of(s, struct source_flight, base);

	/* here, so that memory served by the layer above costs no look at the clock */
	if (!req->deadline_us && s->env->budget_us && !(req->flags & (REQ_FILL | REQ_PROBE)))
		req->deadline_us = clock_us() + s->env->budget_us;
	if (req->flags & (REQ_FILL | REQ_PROBE))
		source_get(s->next, req, pass_up, NULL);
	else if (join(fl, req))
		return;
	else if (req->flags & REQ_NO_FILL)
		source_get(s->next, req, pass_up, NULL);
	else if (wants_whole(fl, req))
		start_whole(fl, req);
	else if (req->klass == POOL_PREFETCH)
		req_reserve(req, prefetch_reserved, fl);
	else
		flight_lead(fl, req);
}

static void flight_free(struct source *s)
{
	struct source_flight *fl = container_of(s, struct source_flight, base);

	source_fini(s);
	hashmap_fini(&fl->fetches);
	mtx_fini(&fl->lock);
	free(fl);
}

static const struct source_ops flight_ops = {
	.name = "flight", .get = flight_get, .free = flight_free};

bool source_flight_joins(struct source *s, const struct block_req *req, bool *ret_listed)
{
	struct source_flight *fl = container_of(s, struct source_flight, base);
	bool yes;

	*ret_listed = false;
	if (s->ops != &flight_ops)
		return false;
	mtx_lock(&fl->lock);
	yes = hashmap_find(&fl->fetches, req->key.digest, joins, req);
	*ret_listed = yes || hashmap_find(&fl->fetches, req->key.digest, covers, req);
	mtx_unlock(&fl->lock);
	return yes;
}

int source_flight_new(struct req_env *env, struct source *next, bool whole_on_second,
		      struct source **ret)
{
	struct source_flight *fl = calloc(1, sizeof(*fl));
	int r;

	if (!fl)
		return -ENOMEM;
	fl->whole_on_second = whole_on_second;
	r = hashmap_init(&fl->fetches, 256);
	if (!r) {
		r = source_init(&fl->base, &flight_ops, env, next);
		if (r)
			hashmap_fini(&fl->fetches);
	}
	if (r) {
		free(fl);
		return r;
	}
	mtx_init(&fl->lock);
	*ret = &fl->base;
	return 0;
}
