/* SPDX-License-Identifier: Apache-2.0 */
/* Requests and their way through the layers: frames, dispatch, reservation, admission, counters. No
 * thread and no lock of its own: a request belongs to whoever holds it.
 *
 * A request's frames are who wants to hear of it, innermost last. source_get pushes one, req_done
 * pops one; a request without frames is its maker's. The innermost frame with a layer tells which
 * layer has the baton; a layer that passes the baton on marks that frame "passed", so that what it
 * answered itself and what it only handed up are counted apart. */
#include "common/block/source.h"

#include <stdarg.h>
#include <time.h>

#include "common/block/source_clock.h"
#include "common/block/source_race.h"
#include "common/clock.h"

enum req_op { GET, PUT, DROP, FILL, PROBE, OPS };
enum result { HIT, MISS, ABSENT, ERROR, RESULTS };

static const char *const op_names[OPS] = {"get", "put", "drop", "fill", "probe"};
static const char *const result_names[RESULTS] = {"hit", "miss", "absent", "error"};
static const char *const via_names[VIA_COUNT] = {"none",  "ram",  "flight", "store",
						 "local", "peer", "s3"};

struct source_metrics {
	struct metric *requests[OPS][RESULTS];
	struct metric *bytes, *seconds;
	/* of the whole chain, counted by the outermost frame */
	struct metric *reads[2][RESULTS]; /* [prefetch] */
	struct metric *via_bytes[VIA_COUNT];
};

const char *req_via_name(enum req_via v)
{
	return v < VIA_COUNT ? via_names[v] : "?";
}

/* --- layers --- */

static struct metric *counter(struct metrics *m, bool *failed, const char *name, const char *help,
			      const char *labels)
{
	struct metric *c = metrics_get(m, name, labels, METRIC_COUNTER, help);

	if (!c)
		*failed = true;
	return c;
}

static bool get_layer_metrics(struct source_metrics *sm, struct metrics *m, const char *layer)
{
	bool failed = false;
	char labels[128];

	for (int op = 0; op < OPS; op++)
		for (int r = 0; r < RESULTS; r++) {
			snprintf(labels, sizeof(labels), "source=\"%s\",op=\"%s\",result=\"%s\"",
				 layer, op_names[op], result_names[r]);
			sm->requests[op][r] =
				counter(m, &failed, "stoke_source_requests_total",
					"requests a layer answered (hit), handed up from below "
					"(miss), did not have (absent), failed (error)",
					labels);
		}
	snprintf(labels, sizeof(labels), "source=\"%s\"", layer);
	sm->bytes = counter(m, &failed, "stoke_source_bytes_total", "bytes a layer answered itself",
			    labels);
	sm->seconds = metrics_get(m, "stoke_source_seconds", labels, METRIC_HISTOGRAM,
				  "time of a get in a layer and all below it");
	return !failed && sm->seconds;
}

static bool get_chain_metrics(struct source_metrics *sm, struct metrics *m)
{
	bool failed = false;
	char labels[128];

	for (int prefetch = 0; prefetch < 2; prefetch++)
		for (int r = 0; r < RESULTS; r++) {
			snprintf(labels, sizeof(labels), "kind=\"%s\",result=\"%s\"",
				 prefetch ? "prefetch" : "demand", result_names[r]);
			sm->reads[prefetch][r] =
				counter(m, &failed, "stoke_block_reads_total",
					"reads of blocks or ranges: from the group or memory "
					"(hit), the object store (miss), nowhere",
					labels);
		}
	for (int v = 0; v < VIA_COUNT; v++) {
		snprintf(labels, sizeof(labels), "source=\"%s\"", via_names[v]);
		sm->via_bytes[v] = counter(m, &failed, "stoke_bytes_by_source_total",
					   "bytes read, by where they came from", labels);
	}
	return !failed;
}

int source_init(struct source *s, const struct source_ops *ops, struct req_env *env,
		struct source *next)
{
	struct source_metrics *sm = NULL;

	if (env->metrics) {
		sm = calloc(1, sizeof(*sm));
		if (!sm || !get_layer_metrics(sm, env->metrics, ops->name) ||
		    !get_chain_metrics(sm, env->metrics)) {
			free(sm);
			return -ENOMEM;
		}
	}
	if (env->timers && !env->clock && req_clock_new(env->timers, &env->clock) < 0) {
		free(sm);
		return -ENOMEM;
	}
	*s = (struct source){.ops = ops, .next = next, .env = env, .metrics = sm};
	env->layers++;
	if (next && !next->prev)
		next->prev = s;
	return 0;
}

void source_fini(struct source *s)
{
	struct req_env *env = s->env;

	if (s->next && s->next->prev == s)
		s->next->prev = NULL;
	free(s->metrics);
	if (--env->layers == 0) {
		req_clock_free(env->clock);
		env->clock = NULL;
	}
}

void source_free(struct source *s)
{
	while (s) {
		struct source *next = s->next;

		s->ops->free(s);
		s = next;
	}
}

/* --- requests --- */

struct block_req *req_new(struct req_env *env, const struct block_key *key, uint32_t off,
			  uint32_t len, uint32_t flags, enum pool_class klass)
{
	struct block_req *req = calloc(1, sizeof(*req));

	assert(len && off <= key->size && len <= key->size - off);
	if (!req)
		return NULL;
	req->env = env;
	req->key = *key;
	req->off = off;
	req->len = len;
	req->flags = flags;
	req->klass = flags & REQ_PREFETCH ? POOL_PREFETCH : klass;
	list_init(&req->link);
	__atomic_fetch_add(&env->live, 1, __ATOMIC_RELAXED);
	return req;
}

void req_free(struct block_req *req)
{
	struct req_env *env;

	if (!req)
		return;
	env = req->env;
	assert(!req->depth);
	if (req->fork)
		race_forget(req);
	race_end(req);
	blob_fini(&req->data);
	blob_fini(&req->sums);
	req_unreserve(req);
	free(req);
	/* last: after it the drain may free env */
	__atomic_fetch_sub(&env->live, 1, __ATOMIC_RELEASE);
}

void req_env_drain(struct req_env *env)
{
	const struct timespec ms = {.tv_nsec = 1000000};

	/* once in a process's life, so that looking again is good enough */
	while (__atomic_load_n(&env->live, __ATOMIC_ACQUIRE))
		nanosleep(&ms, NULL);
}

/* --- frames --- */

static enum req_op get_op(const struct block_req *req)
{
	return req->flags & REQ_PROBE ? PROBE : req->flags & REQ_FILL ? FILL : GET;
}

static void push(struct block_req *req, req_fn *fn, void *arg, struct source *s, enum req_op op)
{
	assert(req->depth < REQ_DEPTH);
	req->frame[req->depth].fn = fn;
	req->frame[req->depth].arg = arg;
	req->frame[req->depth].source = s;
	req->frame[req->depth].op = (uint8_t)op;
	req->frame[req->depth].passed = false;
	req->frame[req->depth].start_us = s ? clock_us() : 0;
	req->depth++;
}

void req_push(struct block_req *req, req_fn *fn, void *arg)
{
	push(req, fn, arg, NULL, get_op(req));
}

void req_pop_call(struct block_req *req, int status)
{
	req_fn *fn;
	void *arg;

	assert(req->depth && !req->frame[req->depth - 1].source);
	req->depth--;
	fn = req->frame[req->depth].fn;
	arg = req->frame[req->depth].arg;
	fn(req, status, arg);
}

typedef void source_fn(struct source *s, struct block_req *req);

static source_fn *operation(const struct source *s, enum req_op op)
{
	return op == PUT ? s->ops->put : op == DROP ? s->ops->drop : s->ops->get;
}

static void dispatch(struct source *s, struct block_req *req, req_fn *fn, void *arg, enum req_op op)
{
	race_end(req);
	if (req->depth)
		req->frame[req->depth - 1].passed = true;
	while (s && !operation(s, op))
		s = s->next;
	push(req, fn, arg, s, op);
	if (s)
		operation(s, op)(s, req);
	else
		req_done(req, op == DROP ? 0 : -ENOENT);
}

void source_get(struct source *s, struct block_req *req, req_fn *fn, void *arg)
{
	dispatch(s, req, fn, arg, get_op(req));
}

void source_put(struct source *s, struct block_req *req, req_fn *fn, void *arg)
{
	dispatch(s, req, fn, arg, PUT);
}

void source_drop(struct source *s, struct block_req *req, req_fn *fn, void *arg)
{
	dispatch(s, req, fn, arg, DROP);
}

static bool is_whole(const struct block_req *req)
{
	return req->off == 0 && req->len == req->key.size;
}

void source_admit(struct source *s, struct block_req *req)
{
	if (!s->ops->admit || (req->flags & REQ_NO_ADMIT) || !is_whole(req) ||
	    req->data.len != req->len || !blob_mem(&req->data))
		return;
	s->ops->admit(s, req);
}

void source_admit_above(struct source *s, struct block_req *req)
{
	while ((s = s->prev))
		source_admit(s, req);
}

/* how one finished frame counts */
static enum result result_of(int status, bool passed)
{
	if (status)
		return status == -ENOENT ? ABSENT : ERROR;
	return passed ? MISS : HIT;
}

static void count(const struct block_req *req, int status)
{
	unsigned d = req->depth; /* the frame that was popped */
	const struct source_metrics *sm = req->frame[d].source->metrics;
	enum req_op op = req->frame[d].op;
	enum result r = result_of(status, req->frame[d].passed);

	if (!sm)
		return;
	metric_add(sm->requests[op][r], 1);
	if (r == HIT && (op == GET || op == PUT))
		metric_add(sm->bytes, op == GET ? req->len : req->data.len);
	if (op != GET)
		return;
	metric_observe_us(sm->seconds, clock_us() - req->frame[d].start_us);
	if (d || req->inner)
		return;
	if (!status) {
		r = req->via == VIA_OBJECT ? MISS : HIT;
		metric_add(sm->via_bytes[req->via], req->len);
	}
	metric_add(sm->reads[!!(req->flags & REQ_PREFETCH)][r], 1);
}

void req_done(struct block_req *req, int status)
{
	req_fn *fn;
	void *arg;
	enum req_op op;

	race_end(req);
	assert(req->depth && status <= 0);
	req->depth--;
	op = req->frame[req->depth].op;
	/* exactly the bytes that were asked for, whoever answers */
	assert(status || op != GET || req->data.len == req->len);
	if (req->frame[req->depth].source)
		count(req, status);
	if (!req->depth)
		req_unreserve(req); /* nobody will ask for more with it */
	fn = req->frame[req->depth].fn;
	arg = req->frame[req->depth].arg;
	fn(req, status, arg);
}

void req_fail(struct block_req *req, int status, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(req->reason, sizeof(req->reason), fmt, ap);
	va_end(ap);
	assert(status < 0);
	req_done(req, status);
}

void req_progress(struct block_req *req, const struct blob *data, size_t valid)
{
	assert(valid <= req->len && valid <= data->len);
	if (req->progress)
		req->progress(req, data, valid, req->progress_arg);
}

/* --- memory --- */

size_t req_need(const struct block_req *req)
{
	uint64_t start = req->off / FRAME_PIECE * FRAME_PIECE;
	uint64_t end = ROUND_UP((uint64_t)req->off + req->len, (uint64_t)FRAME_PIECE);
	size_t len = (size_t)(MIN(end, (uint64_t)req->key.size) - start);
	size_t need;

	if (req->flags & (REQ_FILL | REQ_PROBE))
		return 0;
	need = pool_cost(len + msg_sums_len(len));
	if (!coding_is_plain(req_coding(req->env)) && is_whole(req) && !(req->flags & REQ_NO_FILL))
		need += pool_cost(coding_bound(req_coding(req->env), req->key.size));
	return need;
}

size_t req_put_need(const struct req_env *env, uint32_t size)
{
	struct coding c = req_coding(env);

	return coding_is_plain(c) ? 0 : pool_cost(coding_bound(c, size));
}

void req_unreserve(struct block_req *req)
{
	size_t n = req->reserved;

	req->reserved = 0;
	if (n)
		pool_unreserve(req->env->pool, req->klass, n);
}

static void reserved_job(struct loop_job *job)
{
	req_pop_call(container_of(job, struct block_req, job), 0);
}

/* The pool has given the bytes, on the thread of whoever freed them. The request goes on in the
 * timers' loop: else those who wait in line would wake each other in one growing stack when each of
 * them fails at once. */
static void reserved_later(struct pool_wait *w)
{
	struct block_req *req = container_of(w, struct block_req, wait);

	req->reserved = w->bytes;
	if (!req->env->timers) {
		req_pop_call(req, 0);
		return;
	}
	req->job.fn = reserved_job;
	loop_post(req->env->timers, &req->job);
}

void req_reserve(struct block_req *req, req_fn *go, void *arg)
{
	bool waits = req->klass != POOL_PREFETCH;
	size_t need = req_need(req);
	int r;

	if (req->reserved >= need) {
		go(req, 0, arg);
		return;
	}
	req_unreserve(req); /* who waits holds nothing */
	req->wait = (struct pool_wait){.klass = req->klass, .bytes = need, .fn = reserved_later};
	list_init(&req->wait.link);
	req_push(req, go, arg);
	r = pool_reserve(req->env->pool, req->wait.klass, need, waits ? &req->wait : NULL);
	if (r == -EAGAIN)
		return;
	if (!r)
		req->reserved = need;
	req_pop_call(req, r ? -ENOBUFS : 0);
}

struct buf *req_take(struct block_req *req, size_t len)
{
	assert(pool_cost(len) <= req->reserved);
	return pool_take(req->env->pool, req->klass, len, &req->reserved);
}

/* --- a range out of the whole block --- */

static void whole_done(struct block_req *whole, int status, void *arg)
{
	struct block_req *parent = arg;

	if (status) {
		memcpy(parent->reason, whole->reason, sizeof(parent->reason));
	} else {
		blob_fini(&parent->data);
		parent->data = blob_slice(&whole->data, parent->off, parent->len);
		parent->via = whole->via;
	}
	req_free(whole);
	req_done(parent, status);
}

static void pass_up(struct block_req *req, int status, void *arg)
{
	(void)arg;
	req_done(req, status);
}

static void whole_reserved(struct block_req *whole, int status, void *arg)
{
	if (status)
		req_done(whole, status);
	else
		source_get(arg, whole, pass_up, NULL);
}

void req_whole(struct block_req *parent, struct source *s)
{
	struct block_req *whole = req_new(parent->env, &parent->key, 0, parent->key.size,
					  parent->flags, parent->klass);

	if (!whole) {
		req_done(parent, -ENOMEM);
		return;
	}
	race_end(parent);
	req_unreserve(parent);
	parent->frame[parent->depth - 1].passed = true;
	whole->inner = true;
	whole->deadline_us = parent->deadline_us;
	req_push(whole, whole_done, parent);
	req_reserve(whole, whole_reserved, s);
}
