/* SPDX-License-Identifier: Apache-2.0 */
/* A thread, its libevent base, and a mailbox: a list under a leaf lock with an eventfd that wakes
 * the base. Threads: its own; post from anywhere.
 *
 *	running		the mailbox is emptied batch by batch, in order, between I/O
 *	stopping	set by the last job, posted by loop_free; the base ends once the mailbox is
 *			empty
 */
#include "common/loop.h"

#include <event2/event.h>
#include <event2/event_struct.h>
#include <sys/eventfd.h>
#include <time.h>

#include "common/mtx.h"
#include "common/thread.h"

static_assert(sizeof(struct event) <= sizeof(struct loop_event), "loop_event holds an event");
static_assert(alignof(struct event) <= alignof(struct loop_event), "loop_event is aligned");

struct loop {
	struct event_base *base;
	pthread_t thread;
	int wake_fd;
	bool stopping; /* the loop's own thread */
	struct event wake;
	struct mtx lock;
	struct list_node mail GUARDED_BY(lock);
};

static _Thread_local const struct loop *mine;

static struct event *event_of(struct loop_event *e)
{
	return (struct event *)(void *)e->space;
}

/* by the real clock: tests may stop clock_us, and the kernel goes on */
static uint64_t now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

static void loop_take_mail(struct loop *l, struct list_node *batch)
{
	mtx_lock(&l->lock);
	list_splice_tail(batch, &l->mail);
	mtx_unlock(&l->lock);
}

static void loop_woken(evutil_socket_t fd, short what, void *arg)
{
	struct loop *l = arg;
	struct list_node batch, *n;
	uint64_t count;

	(void)what;
	/* first the eventfd, then the list: what comes after the list was taken wakes again */
	if (read((int)fd, &count, sizeof(count)) < 0)
		assert(errno == EAGAIN);
	list_init(&batch);
	loop_take_mail(l, &batch);
	do {
		while ((n = list_pop(&batch))) {
			struct loop_job *job = container_of(n, struct loop_job, link);

			job->fn(job); /* the job may be gone afterwards */
		}
		if (!l->stopping)
			return;
		loop_take_mail(l, &batch);
	} while (!list_empty(&batch));
	event_base_loopbreak(l->base);
}

static void *loop_thread(void *arg)
{
	struct loop *l = arg;

	mine = l;
	event_base_dispatch(l->base);
	return NULL;
}

static struct event_base *base_new(void)
{
	struct event_config *cfg = event_config_new();
	struct event_base *base;

	if (!cfg)
		return NULL;
	/* one thread owns the base: no locks in it */
	event_config_set_flag(cfg, EVENT_BASE_FLAG_NOLOCK);
	base = event_base_new_with_config(cfg);
	event_config_free(cfg);
	return base;
}

static void loop_destroy(struct loop *l)
{
	if (l->base) {
		if (event_initialized(&l->wake))
			event_del(&l->wake);
		event_base_free(l->base);
	}
	closep(&l->wake_fd);
	mtx_fini(&l->lock);
	free(l);
}

int loop_new(const char *name, struct loop **ret)
{
	struct loop *l = calloc(1, sizeof(*l));
	int r = -ENOMEM;

	if (!l)
		return -ENOMEM;
	mtx_init(&l->lock);
	list_init(&l->mail);
	l->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (l->wake_fd < 0) {
		r = -errno;
		goto out;
	}
	l->base = base_new();
	if (!l->base)
		goto out;
	if (event_assign(&l->wake, l->base, l->wake_fd, EV_READ | EV_PERSIST, loop_woken, l) < 0 ||
	    event_add(&l->wake, NULL) < 0)
		goto out;
	r = thread_start(name, loop_thread, l, &l->thread);
	if (r < 0)
		goto out;
	*ret = l;
	return 0;
out:
	loop_destroy(l);
	return r;
}

void loop_post(struct loop *l, struct loop_job *job)
{
	const uint64_t one = 1;
	bool first;

	mtx_lock(&l->lock);
	first = list_empty(&l->mail);
	list_add_tail(&l->mail, &job->link);
	/* Under the lock, because the job may lead to loop_free at once; an eventfd far from its
	 * limit does not block. */
	if (first && write(l->wake_fd, &one, sizeof(one)) < 0)
		assert(errno == EAGAIN);
	mtx_unlock(&l->lock);
}

struct loop_stop {
	struct loop_job job;
	struct loop *loop;
};

static void loop_stop(struct loop_job *job)
{
	container_of(job, struct loop_stop, job)->loop->stopping = true;
}

void loop_free(struct loop *l)
{
	struct loop_stop stop = {.job.fn = loop_stop, .loop = l};

	if (!l)
		return;
	assert(!loop_is_mine(l));
	loop_post(l, &stop.job);
	pthread_join(l->thread, NULL);
	loop_destroy(l);
}

struct loop_sync {
	struct loop_job job;
	void (*fn)(void *arg);
	void *arg;
	struct mtx lock;
	struct cond cond;
	bool done GUARDED_BY(lock);
};

static void loop_sync_run(struct loop_job *job)
{
	struct loop_sync *s = container_of(job, struct loop_sync, job);

	s->fn(s->arg);
	mtx_lock(&s->lock);
	s->done = true;
	cond_signal(&s->cond);
	mtx_unlock(&s->lock);
}

void loop_run_sync(struct loop *l, void (*fn)(void *arg), void *arg)
{
	struct loop_sync s = {.job.fn = loop_sync_run, .fn = fn, .arg = arg};

	if (loop_is_mine(l)) {
		fn(arg);
		return;
	}
	mtx_init(&s.lock);
	cond_init(&s.cond);
	loop_post(l, &s.job);
	mtx_lock(&s.lock);
	while (!s.done)
		cond_wait(&s.cond, &s.lock);
	mtx_unlock(&s.lock);
	cond_fini(&s.cond);
	mtx_fini(&s.lock);
}

bool loop_is_mine(const struct loop *l)
{
	return mine == l;
}

struct event_base *loop_base(struct loop *l)
{
	return l->base;
}

static void timer_add(struct loop_timer *t, uint64_t us)
{
	struct timeval tv = {.tv_sec = (time_t)(us / 1000000),
			     .tv_usec = (suseconds_t)(us % 1000000)};
	int r = event_add(event_of(&t->ev), &tv);

	/* A timer that is silently missing hangs its owner for ever, which is worse than an end
	 * with a core. libevent grows its heap of timers here, and no more than one array of
	 * pointers. */
	if (r < 0)
		abort();
}

static void timer_fired(evutil_socket_t fd, short what, void *arg)
{
	struct loop_timer *t = arg;
	uint64_t now = now_us();

	(void)fd;
	(void)what;
	/* libevent counts in coarse ticks from the start of the turn, so it may be a few
	 * milliseconds early */
	if (now < t->due_us) {
		timer_add(t, t->due_us - now);
		return;
	}
	t->pending = false;
	t->fn(t); /* t may be gone afterwards */
}

void loop_timer_init(struct loop_timer *t, struct loop *l, void (*fn)(struct loop_timer *t))
{
	*t = (struct loop_timer){.loop = l, .fn = fn};
	event_assign(event_of(&t->ev), l->base, -1, 0, timer_fired, t);
}

void loop_timer_start(struct loop_timer *t, uint64_t us)
{
	const uint64_t longest_us = 365ULL * 86400 * 1000000; /* keeps time_t and sums in range */

	assert(loop_is_mine(t->loop));
	us = MIN(us, longest_us);
	t->due_us = now_us() + us;
	t->pending = true;
	timer_add(t, us);
}

void loop_timer_stop(struct loop_timer *t)
{
	assert(loop_is_mine(t->loop));
	t->pending = false;
	event_del(event_of(&t->ev));
}

static void watch_ready(evutil_socket_t fd, short what, void *arg)
{
	struct loop_watch *w = arg;
	unsigned events = 0;

	(void)fd;
	if (what & EV_READ)
		events |= LOOP_READ;
	if (what & EV_WRITE)
		events |= LOOP_WRITE;
	w->fn(w, events); /* w may be gone afterwards */
}

void loop_watch_init(struct loop_watch *w, struct loop *l, int fd,
		     void (*fn)(struct loop_watch *w, unsigned events))
{
	*w = (struct loop_watch){.loop = l, .fd = fd, .fn = fn};
	event_assign(event_of(&w->ev), l->base, fd, EV_PERSIST, watch_ready, w);
}

void loop_watch_set(struct loop_watch *w, unsigned events)
{
	short what = EV_PERSIST;

	assert(loop_is_mine(w->loop));
	if (events == w->events)
		return;
	event_del(event_of(&w->ev));
	w->events = events;
	if (!events)
		return;
	if (events & LOOP_READ)
		what |= EV_READ;
	if (events & LOOP_WRITE)
		what |= EV_WRITE;
	event_assign(event_of(&w->ev), w->loop->base, w->fd, what, watch_ready, w);
	if (event_add(event_of(&w->ev), NULL) < 0)
		abort(); /* as timer_add */
}

void loop_watch_kick(struct loop_watch *w)
{
	assert(loop_is_mine(w->loop) && (w->events & LOOP_READ));
	event_active(event_of(&w->ev), EV_READ, 0);
}
