/* SPDX-License-Identifier: Apache-2.0 */
/* Deadlines of forks. Timers hang in lists by the magnitude of their delay; within one list delays
 * are alike, so that inserting in order from the tail is nearly free, and the next deadline is the
 * least of a few heads. One loop timer wakes for the nearest; it may wake too early after a
 * cancellation and then only goes back to sleep. Any thread adds and cancels; the loop's thread
 * fires. */
#include "common/block/source_clock.h"

#include "common/clock.h"
#include "common/mtx.h"

enum { LISTS = 40 };

struct req_clock {
	struct loop *loop;
	struct loop_timer timer; /* the loop's thread only */
	struct loop_job job;
	struct mtx lock;
	struct list_node list[LISTS]; /* by at_us */
	/* when the loop timer wakes, or will after the posted job; UINT64_MAX: never */
	uint64_t wake_us;
	bool posted;
};

static struct req_timer *timer_of(struct list_node *n)
{
	return container_of(n, struct req_timer, link);
}

static uint64_t nearest_locked(struct req_clock *c)
{
	uint64_t at = UINT64_MAX;

	for (int i = 0; i < LISTS; i++)
		if (!list_empty(&c->list[i]))
			at = MIN(at, timer_of(c->list[i].next)->at_us);
	return at;
}

/* sets the loop timer for the nearest deadline; on the loop's thread */
static void rearm(struct req_clock *c, bool posted)
{
	uint64_t at, now;

	mtx_lock(&c->lock);
	if (posted)
		c->posted = false; /* the job may be posted again */
	at = c->wake_us = nearest_locked(c);
	mtx_unlock(&c->lock);
	now = clock_us();
	if (at != UINT64_MAX)
		loop_timer_start(&c->timer, at > now ? at - now : 0);
}

static void rearm_job(struct loop_job *job)
{
	rearm(container_of(job, struct req_clock, job), true);
}

static void fire(struct loop_timer *lt)
{
	struct req_clock *c = container_of(lt, struct req_clock, timer);
	uint64_t now = clock_us();
	struct list_node due, *n;

	list_init(&due);
	mtx_lock(&c->lock);
	for (int i = 0; i < LISTS; i++)
		while (!list_empty(&c->list[i]) && timer_of(c->list[i].next)->at_us <= now) {
			n = list_pop(&c->list[i]);
			timer_of(n)->armed = false;
			list_add_tail(&due, n);
		}
	mtx_unlock(&c->lock);
	while ((n = list_pop(&due)))
		timer_of(n)->fn(timer_of(n));
	rearm(c, false);
}

static void init_timer(void *arg)
{
	struct req_clock *c = arg;

	loop_timer_init(&c->timer, c->loop, fire);
}

static void stop_timer(void *arg)
{
	struct req_clock *c = arg;

	loop_timer_stop(&c->timer);
}

int req_clock_new(struct loop *loop, struct req_clock **ret)
{
	struct req_clock *c = calloc(1, sizeof(*c));

	if (!c)
		return -ENOMEM;
	c->loop = loop;
	c->job.fn = rearm_job;
	c->wake_us = UINT64_MAX;
	mtx_init(&c->lock);
	for (int i = 0; i < LISTS; i++)
		list_init(&c->list[i]);
	loop_run_sync(loop, init_timer, c);
	*ret = c;
	return 0;
}

void req_clock_free(struct req_clock *c)
{
	if (!c)
		return;
	/* behind a posted job, which uses c */
	loop_run_sync(c->loop, stop_timer, c);
	for (int i = 0; i < LISTS; i++)
		assert(list_empty(&c->list[i]));
	mtx_fini(&c->lock);
	free(c);
}

void req_clock_add(struct req_clock *c, struct req_timer *t, uint64_t at_us)
{
	uint64_t now = clock_us();
	uint64_t delay = at_us > now ? at_us - now : 1;
	struct list_node *head = &c->list[MIN(63 - __builtin_clzll(delay), LISTS - 1)], *n;
	bool post;

	assert(!t->armed);
	t->at_us = at_us;
	t->armed = true;
	mtx_lock(&c->lock);
	for (n = head->prev; n != head && timer_of(n)->at_us > at_us;)
		n = n->prev;
	list_add_head(n, &t->link);
	post = at_us < c->wake_us && !c->posted;
	if (post) {
		c->posted = true;
		c->wake_us = at_us;
	}
	mtx_unlock(&c->lock);
	if (post)
		loop_post(c->loop, &c->job);
}

bool req_clock_del(struct req_clock *c, struct req_timer *t)
{
	bool was;

	mtx_lock(&c->lock);
	was = t->armed;
	if (was) {
		list_del(&t->link);
		t->armed = false;
	}
	mtx_unlock(&c->lock);
	return was;
}
