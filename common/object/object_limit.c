/* SPDX-License-Identifier: Apache-2.0 */
/* A leaky bucket for each direction. `free_us` is when all bytes that were let through have passed
 * at the given rate; a request starts when that lies at most BURST_US ahead, and moves it on by its
 * size. Whoever comes too early waits in line; a timer on the loop starts the first.
 *
 * Any thread; the timer is the loop's. The lock is over the line and the clocks alone: requests are
 * started without it, from the line only on the loop, so in order. */
#include "common/object/object_limit.h"

#include "common/clock.h"
#include "common/mtx.h"

enum { BURST_US = 100000 };

struct way {
	uint64_t rate;	  /* bytes a second; 0: no limit */
	uint64_t free_us; /* all that went so far has passed by then */
	struct list_node waiting;
};

struct object_limit {
	struct object_store *store;
	struct loop *loop;
	struct mtx lock;
	struct way up, down;
	bool posted;
	struct loop_job job;
	struct loop_timer timer;
};

static uint64_t cost_us(const struct way *w, uint64_t bytes)
{
	return w->rate ? bytes * 1000000 / w->rate : 0;
}

static uint64_t size_of(const struct object_req *req)
{
	return req->op == OBJECT_GET && req->len ? req->len : req->cap;
}

/* us until it may start; 0: it has its place */
static uint64_t take(struct way *w, const struct object_req *req, uint64_t now)
{
	if (!w->rate)
		return 0;
	if (w->free_us > now + BURST_US)
		return w->free_us - now - BURST_US;
	w->free_us = MAX(w->free_us, now) + cost_us(w, size_of(req));
	return 0;
}

/* those whose turn it is, into out; us until the next one, UINT64_MAX: none waits */
static uint64_t take_waiting(struct way *w, uint64_t now, struct list_node *out)
{
	while (!list_empty(&w->waiting)) {
		struct list_node *n = w->waiting.next;
		uint64_t us = take(w, container_of(n, struct object_req, link), now);

		if (us)
			return us;
		list_del(n);
		list_add_tail(out, n);
	}
	return UINT64_MAX;
}

static void start_waiting(struct object_limit *l)
{
	struct list_node out, *n;
	uint64_t now = clock_us(), next;

	list_init(&out);
	mtx_lock(&l->lock);
	l->posted = false;
	next = take_waiting(&l->up, now, &out);
	next = MIN(next, take_waiting(&l->down, now, &out));
	mtx_unlock(&l->lock);
	if (next != UINT64_MAX)
		loop_timer_start(&l->timer, next);
	while ((n = list_pop(&out)))
		l->store->ops->start(l->store, container_of(n, struct object_req, link));
}

static void timer_fired(struct loop_timer *t)
{
	start_waiting(container_of(t, struct object_limit, timer));
}

static void job_run(struct loop_job *job)
{
	start_waiting(container_of(job, struct object_limit, job));
}

void object_limit_start(struct object_limit *l, struct object_req *req)
{
	struct way *w = req->op == OBJECT_PUT ? &l->up : &l->down;
	bool now, post = false;

	if (req->op != OBJECT_PUT && req->op != OBJECT_GET) {
		l->store->ops->start(l->store, req);
		return;
	}
	mtx_lock(&l->lock);
	now = list_empty(&w->waiting) && take(w, req, clock_us()) == 0;
	if (!now) {
		list_add_tail(&w->waiting, &req->link);
		post = !l->posted;
		l->posted = true;
	}
	mtx_unlock(&l->lock);
	if (post)
		loop_post(l->loop, &l->job);
	if (now)
		l->store->ops->start(l->store, req);
}

void object_limit_done(struct object_limit *l, const struct object_req *req)
{
	uint64_t asked = size_of(req), us;

	if (req->op != OBJECT_GET || req->got >= asked)
		return;
	mtx_lock(&l->lock);
	us = cost_us(&l->down, asked - req->got);
	l->down.free_us -= MIN(us, l->down.free_us);
	mtx_unlock(&l->lock);
}

void object_limit_set(struct object_limit *l, uint64_t up, uint64_t down)
{
	bool post;

	mtx_lock(&l->lock);
	l->up.rate = up;
	l->down.rate = down;
	/* what was let through at the old rate is forgiven */
	l->up.free_us = l->down.free_us = 0;
	post = !l->posted;
	l->posted = true;
	mtx_unlock(&l->lock);
	if (post)
		loop_post(l->loop, &l->job);
}

static void init_on_loop(void *arg)
{
	struct object_limit *l = arg;

	loop_timer_init(&l->timer, l->loop, timer_fired);
}

int object_limit_new(struct object_store *s, struct loop *loop, struct object_limit **ret)
{
	struct object_limit *l = calloc(1, sizeof(*l));

	if (!l)
		return -ENOMEM;
	l->store = s;
	l->loop = loop;
	mtx_init(&l->lock);
	list_init(&l->up.waiting);
	list_init(&l->down.waiting);
	list_init(&l->job.link);
	l->job.fn = job_run;
	loop_run_sync(loop, init_on_loop, l);
	*ret = l;
	return 0;
}

/* behind a job that was posted before */
static void stop_on_loop(void *arg)
{
	struct object_limit *l = arg;

	loop_timer_stop(&l->timer);
}

void object_limit_free(struct object_limit *l)
{
	struct list_node *n;

	if (!l)
		return;
	loop_run_sync(l->loop, stop_on_loop, l);
	while ((n = list_pop(&l->up.waiting)) || (n = list_pop(&l->down.waiting)))
		object_done(l->store, container_of(n, struct object_req, link), -ECANCELED);
	mtx_fini(&l->lock);
	free(l);
}
