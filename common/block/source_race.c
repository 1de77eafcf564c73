/* SPDX-License-Identifier: Apache-2.0 */
/* Several ways to one answer: children with memory of their own race for their parent.
 *
 * Everything that happens in a race (a child ended, a child's time is over, the tick) is an event
 * in its queue. Whichever thread brings an event while nobody works on the queue becomes the runner
 * and handles events one by one, without the lock; the others only leave theirs. So calls to lost
 * and tick of one parent never overlap, the parent is not completed under them, and a callback that
 * starts a child which fails at once does not recurse.
 *
 *	child		event		what happens
 *	running		ended, 0	first: its answer becomes the parent's, the race is over;
 *					its request is freed
 *	running		ended, < 0	lost(); its request is freed
 *	running		timed out	late from now on, lost(-ETIMEDOUT)
 *	late		ended		dropped
 *
 * The race is over when its parent is passed on or completed, by the runner or (before any child
 * was started) by its holder: parent is NULL then, and children that still run are dropped as they
 * end. Until the first child leaves nothing can happen in a race, so its holder needs no lock:
 * timers are armed only then. References: the parent's, one a child, one a tick, the runner's. */
#include "common/block/source_race.h"

#include "common/block/source_clock.h"
#include "common/clock.h"
#include "common/mtx.h"

enum event_kind { ENDED, TIMED_OUT, TICK };

struct event {
	struct list_node link;
	enum event_kind kind;
};

/* A tick that was replaced, or whose race is over, fires for nothing. */
struct tick {
	struct race *race;
	uint64_t at_us;
	struct req_timer timer;
	struct event event;
	void (*fn)(struct block_req *parent, void *arg);
	void *arg;
};

struct race {
	struct mtx lock;
	unsigned refs;		  /* atomic */
	struct block_req *parent; /* written under lock; read under it, or by the runner */
	struct req_env *env;
	unsigned running;	 /* children neither ended nor late; under lock */
	bool busy;		 /* there is a runner; under lock */
	struct list_node events; /* under lock */
	bool started;		 /* a child has left; under lock */
	struct tick *tick; /* the newest one; the holder's before the start, then the runner's */
};

struct fork {
	struct race *race;
	struct block_req *child; /* NULL once it ended */
	unsigned refs;		 /* atomic: the child's, an armed timer's */
	bool late;		 /* the runner's */
	int status;
	race_fn *lost;
	void *arg;
	struct req_timer timer;
	struct event ended, timed_out;
};

/* clang's analyzer takes each reference for the last one */
#ifdef __clang_analyzer__
#define FREE_COUNTED(p) ((void)(p))
#else
#define FREE_COUNTED(p) free(p)
#endif

static void race_unref(struct race *r)
{
	if (__atomic_sub_fetch(&r->refs, 1, __ATOMIC_ACQ_REL))
		return;
	assert(list_empty(&r->events));
	mtx_fini(&r->lock);
	FREE_COUNTED(r);
}

static void race_ref(struct race *r)
{
	__atomic_fetch_add(&r->refs, 1, __ATOMIC_RELAXED);
}

static void fork_unref(struct fork *f)
{
	if (__atomic_sub_fetch(&f->refs, 1, __ATOMIC_ACQ_REL))
		return;
	race_unref(f->race);
	FREE_COUNTED(f);
}

/* The tick, if there is one, is no longer wanted. */
static void tick_drop(struct race *r, bool started)
{
	struct tick *t = TAKE_PTR(r->tick);

	if (!t || (started && !req_clock_del(r->env->clock, &t->timer)))
		return; /* it fires, and on_tick frees it */
	free(t);
	race_unref(r);
}

void race_end(struct block_req *req)
{
	struct race *r = TAKE_PTR(req->race);
	bool started;

	if (!r)
		return;
	mtx_lock(&r->lock);
	r->parent = NULL;
	started = r->started;
	mtx_unlock(&r->lock);
	tick_drop(r, started);
	race_unref(r);
}

/* --- the runner --- */

static void child_lost(struct fork *f, int status)
{
	struct race *r = f->race;
	unsigned running;

	mtx_lock(&r->lock);
	running = --r->running;
	mtx_unlock(&r->lock);
	if (r->parent)
		f->lost(r->parent, status, running, f->arg);
}

static void child_won(struct block_req *parent, struct block_req *child)
{
	blob_fini(&parent->data);
	blob_fini(&parent->sums);
	parent->data = child->data;
	parent->sums = child->sums;
	child->data = child->sums = (struct blob){0};
	parent->via = child->via;
	req_free(child);
	req_unreserve(parent);
	req_done(parent, 0);
}

static void on_ended(struct fork *f)
{
	struct block_req *child = TAKE_PTR(f->child);
	struct block_req *parent = f->race->parent;

	if (f->race->env->clock && req_clock_del(f->race->env->clock, &f->timer))
		fork_unref(f);
	child->fork = NULL;
	if (!parent || f->late) {
		req_free(child);
	} else if (f->status) {
		if (child->reason[0])
			memcpy(parent->reason, child->reason, sizeof(parent->reason));
		req_free(child);
		child_lost(f, f->status);
	} else {
		child_won(parent, child);
	}
	fork_unref(f);
}

static void on_timed_out(struct fork *f)
{
	if (f->child && f->race->parent) {
		f->late = true;
		child_lost(f, -ETIMEDOUT);
	}
	fork_unref(f);
}

static void on_tick(struct tick *t)
{
	struct race *r = t->race;
	bool newest = r->tick == t;

	if (newest)
		r->tick = NULL;
	if (newest && r->parent)
		t->fn(r->parent, t->arg);
	free(t);
	race_unref(r);
}

static void handle(struct event *e)
{
	switch (e->kind) {
	case ENDED:
		on_ended(container_of(e, struct fork, ended));
		break;
	case TIMED_OUT:
		on_timed_out(container_of(e, struct fork, timed_out));
		break;
	case TICK:
		on_tick(container_of(e, struct tick, event));
		break;
	}
}

static void bring(struct race *r, struct event *e)
{
	struct list_node *n;

	mtx_lock(&r->lock);
	list_add_tail(&r->events, &e->link);
	if (r->busy) {
		mtx_unlock(&r->lock);
		return;
	}
	r->busy = true;
	race_ref(r);
	while ((n = list_pop(&r->events))) {
		mtx_unlock(&r->lock);
		handle(container_of(n, struct event, link));
		mtx_lock(&r->lock);
	}
	r->busy = false;
	mtx_unlock(&r->lock);
	race_unref(r);
}

/* --- children --- */

static void fork_done(struct block_req *child, int status, void *arg)
{
	struct fork *f = arg;

	(void)child;
	f->status = status;
	bring(f->race, &f->ended);
}

static void fork_timer_fired(struct req_timer *t)
{
	struct fork *f = container_of(t, struct fork, timer);

	bring(f->race, &f->timed_out);
}

static void tick_fired(struct req_timer *timer)
{
	struct tick *t = container_of(timer, struct tick, timer);

	bring(t->race, &t->event);
}

static struct race *race_of(struct block_req *parent)
{
	struct race *r = parent->race;

	if (r)
		return r;
	r = calloc(1, sizeof(*r));
	if (!r)
		return NULL;
	mtx_init(&r->lock);
	list_init(&r->events);
	r->refs = 1;
	r->parent = parent;
	r->env = parent->env;
	parent->race = r;
	return r;
}

/* the child's request with its memory, or NULL */
static struct block_req *child_new(struct block_req *parent, uint32_t flags)
{
	struct block_req *child =
		req_new(parent->env, &parent->key, parent->off, parent->len, flags, parent->klass);
	size_t need;

	if (!child)
		return NULL;
	child->inner = true;
	child->pin_until = parent->pin_until;
	need = req_need(child);
	if (need && pool_reserve(child->env->pool, child->klass, need, NULL)) {
		req_free(child);
		return NULL;
	}
	child->reserved = need;
	return child;
}

struct block_req *req_fork(struct block_req *parent, uint32_t flags, uint64_t timeout_us,
			   race_fn *lost, void *arg)
{
	struct fork *f = calloc(1, sizeof(*f));
	struct block_req *child = f ? child_new(parent, flags) : NULL;
	struct race *r = child ? race_of(parent) : NULL;
	uint64_t until = parent->deadline_us;

	if (!r) {
		req_free(child);
		free(f);
		return NULL;
	}
	if (timeout_us)
		until = MIN(clock_us() + timeout_us, until ? until : UINT64_MAX);
	child->deadline_us = until;
	child->fork = f;
	race_ref(r);
	f->race = r;
	f->child = child;
	f->refs = 1;
	f->lost = lost;
	f->arg = arg;
	f->timer.fn = fork_timer_fired;
	f->ended.kind = ENDED;
	f->timed_out.kind = TIMED_OUT;
	mtx_lock(&r->lock);
	r->running++;
	mtx_unlock(&r->lock);
	return child;
}

void race_forget(struct block_req *child)
{
	struct fork *f = TAKE_PTR(child->fork);

	mtx_lock(&f->race->lock);
	f->race->running--;
	mtx_unlock(&f->race->lock);
	f->child = NULL;
	fork_unref(f);
}

/* The child leaves; with the first one the race starts, and with it the tick. */
static void leave(struct fork *f, bool passed)
{
	struct race *r = f->race;
	struct req_clock *clock = r->env->clock;
	bool first;

	mtx_lock(&r->lock);
	first = !r->started;
	r->started = true;
	if (passed && r->parent && r->parent->depth)
		r->parent->frame[r->parent->depth - 1].passed = true;
	mtx_unlock(&r->lock);
	if (first && r->tick)
		req_clock_add(clock, &r->tick->timer, r->tick->at_us);
	if (!clock || !f->child->deadline_us)
		return;
	__atomic_fetch_add(&f->refs, 1, __ATOMIC_RELAXED);
	req_clock_add(clock, &f->timer, f->child->deadline_us);
}

void req_fork_start(struct block_req *child, struct source *s)
{
	struct fork *f = child->fork;

	leave(f, true);
	source_get(s, child, fork_done, f);
}

void req_fork_begin(struct block_req *child)
{
	struct fork *f = child->fork;

	req_push(child, fork_done, f);
	leave(f, false);
}

int req_race_timer(struct block_req *parent, uint64_t us,
		   void (*fn)(struct block_req *parent, void *arg), void *arg)
{
	struct req_clock *clock = parent->env->clock;
	struct race *r;
	struct tick *t;
	bool started;

	if (!clock)
		return -EOPNOTSUPP;
	r = race_of(parent);
	t = r ? calloc(1, sizeof(*t)) : NULL;
	if (!t)
		return -ENOMEM;
	mtx_lock(&r->lock);
	started = r->started;
	mtx_unlock(&r->lock);
	tick_drop(r, started);
	t->race = r;
	t->at_us = clock_us() + us;
	t->timer.fn = tick_fired;
	t->event.kind = TICK;
	t->fn = fn;
	t->arg = arg;
	race_ref(r);
	r->tick = t;
	if (started)
		req_clock_add(clock, &t->timer, t->at_us);
	return 0;
}
