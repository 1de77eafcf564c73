/* SPDX-License-Identifier: Apache-2.0 */
/* A leaky bucket for each direction. `free_us` is when all bytes that were let through have passed
 * at the given rate; a request starts when that lies at most BURST_US ahead, and moves it on by its
 * size. Whoever comes too early waits in line; a timer on the loop starts the first.
 *
 * GETs have a second bucket, of requests a second, after the object store asked for less (told):
 *
 *	told, last cut a second ago or more	half of what went through in the last second
 *	each second without			a twentieth more of what it was before the first cut
 *	CALM_US without				no limit
 *
 * Any thread; the timer is the loop's. The lock is over the line and the clocks alone: requests are
 * started without it, from the line only on the loop, so in order. */
#include "common/object/object_limit.h"

#include "common/clock.h"
#include "common/mtx.h"

enum {
	BURST_US = 100000,
	SECOND_US = 1000000,
	CALM_US = 30 * SECOND_US,
	STEPS = 20,	     /* seconds from nothing to the rate before the cut */
	LEAST = 2,	     /* GETs a second */
	LOOK_US = SECOND_US, /* at those who wait: has somebody's time passed? */
};

struct way {
	uint64_t rate;	  /* bytes a second; 0: no limit */
	uint64_t free_us; /* all that went so far has passed by then */
	struct list_node waiting;
};

/* how many GETs a second, after the object store asked for less */
struct pace {
	uint64_t cut_us;  /* the last cut, 0: none */
	uint64_t rate;	  /* right after it */
	uint64_t before;  /* before the first one */
	uint64_t free_us; /* as that of a way */
	/* what goes through: this second's, and the last whole one's */
	uint64_t second_us, n, last_n;
};

struct object_limit {
	struct object_store *store;
	struct loop *loop;
	struct mtx lock;
	struct way up, down;
	uint64_t download; /* what all who share it may have; 0: no limit */
	unsigned share;	   /* so many do */
	struct pace pace;
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

/* --- the pace of GETs --- */

/* GETs a second now; 0: no limit */
static uint64_t pace_rate(struct pace *p, uint64_t now)
{
	uint64_t ago = now - p->cut_us;

	if (!p->cut_us || ago >= CALM_US) {
		p->cut_us = 0;
		return 0;
	}
	return p->rate + p->before * (ago / SECOND_US) / STEPS;
}

static void pace_turn(struct pace *p, uint64_t now)
{
	if (now - p->second_us < SECOND_US)
		return;
	p->last_n = now - p->second_us < 2 * SECOND_US ? p->n : 0;
	p->n = 0;
	p->second_us = now;
}

static uint64_t pace_wait(struct pace *p, uint64_t now)
{
	uint64_t rate = pace_rate(p, now);

	if (!rate || p->free_us <= now + BURST_US)
		return 0;
	return p->free_us - now - BURST_US;
}

static void pace_take(struct pace *p, uint64_t now)
{
	uint64_t rate = pace_rate(p, now);

	pace_turn(p, now);
	p->n++;
	if (rate)
		p->free_us = MAX(p->free_us, now) + SECOND_US / rate;
}

/* false: it was cut a moment ago, and this is news of the same */
static bool pace_cut(struct pace *p, uint64_t now)
{
	uint64_t rate = pace_rate(p, now);

	if (p->cut_us && now - p->cut_us < SECOND_US)
		return false;
	pace_turn(p, now);
	if (!rate) {
		rate = MAX(p->n, p->last_n);
		p->before = rate = MAX(rate, (uint64_t)2 * LEAST);
	}
	p->rate = MAX(rate / 2, (uint64_t)LEAST);
	p->cut_us = now;
	return true;
}

/* --- the line --- */

static struct object_req *req_of(struct list_node *n)
{
	return container_of(n, struct object_req, link);
}

/* us until it may start; 0: it has its place */
static uint64_t take(struct object_limit *l, struct way *w, const struct object_req *req,
		     uint64_t now)
{
	uint64_t us = w == &l->down ? pace_wait(&l->pace, now) : 0;

	if (w->rate && w->free_us > now + BURST_US)
		us = MAX(us, w->free_us - now - BURST_US);
	if (us)
		return us;
	if (w->rate)
		w->free_us = MAX(w->free_us, now) + cost_us(w, size_of(req));
	if (w == &l->down)
		pace_take(&l->pace, now);
	return 0;
}

/* those whose turn it is, into out, those whose time passed into late; us until the next look,
 * UINT64_MAX: none waits */
static uint64_t take_waiting(struct object_limit *l, struct way *w, uint64_t now,
			     struct list_node *out, struct list_node *late)
{
	struct list_node *n, *next;

	list_for_each_safe(n, next, &w->waiting)
	{
		if (clock_left(req_of(n)->deadline_us) > 0)
			continue;
		list_del(n);
		list_add_tail(late, n);
	}
	while (!list_empty(&w->waiting)) {
		uint64_t us;

		n = w->waiting.next;
		us = take(l, w, req_of(n), now);
		if (us)
			return MIN(us, (uint64_t)LOOK_US);
		list_del(n);
		list_add_tail(out, n);
	}
	return UINT64_MAX;
}

static void start_waiting(struct object_limit *l)
{
	struct list_node out, late, *n;
	uint64_t now = clock_us(), next, down;

	list_init(&out);
	list_init(&late);
	mtx_lock(&l->lock);
	l->posted = false;
	next = take_waiting(l, &l->up, now, &out, &late);
	down = take_waiting(l, &l->down, now, &out, &late);
	mtx_unlock(&l->lock);
	next = MIN(next, down);
	if (next != UINT64_MAX)
		loop_timer_start(&l->timer, next);
	while ((n = list_pop(&late))) {
		object_reason(req_of(n), "its time passed while it waited for its turn: the "
					 "volume's limit, or the object store asked for less");
		object_done(l->store, req_of(n), -ETIMEDOUT);
	}
	while ((n = list_pop(&out)))
		l->store->ops->start(l->store, req_of(n));
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
	now = list_empty(&w->waiting) && take(l, w, req, clock_us()) == 0;
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

/* rounded up: none is 0 */
static void share_locked(struct object_limit *l)
{
	l->down.rate = DIV_UP(l->download, (uint64_t)l->share);
}

void object_limit_share(struct object_limit *l, unsigned n)
{
	mtx_lock(&l->lock);
	l->share = MAX(n, 1U);
	share_locked(l);
	mtx_unlock(&l->lock);
}

bool object_limit_slow(struct object_limit *l)
{
	bool cut;

	mtx_lock(&l->lock);
	cut = pace_cut(&l->pace, clock_us());
	mtx_unlock(&l->lock);
	return cut;
}

void object_limit_look(struct object_limit *l)
{
	bool post;

	mtx_lock(&l->lock);
	post = !l->posted;
	l->posted = true;
	mtx_unlock(&l->lock);
	if (post)
		loop_post(l->loop, &l->job);
}

void object_limit_set(struct object_limit *l, uint64_t up, uint64_t down)
{
	mtx_lock(&l->lock);
	l->up.rate = up;
	l->download = down;
	share_locked(l);
	/* what was let through at the old rate is forgiven */
	l->up.free_us = l->down.free_us = 0;
	mtx_unlock(&l->lock);
	object_limit_look(l);
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
	l->share = 1;
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
		object_done(l->store, req_of(n), -ECANCELED);
	mtx_fini(&l->lock);
	free(l);
}
