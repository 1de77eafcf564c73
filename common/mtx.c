/* SPDX-License-Identifier: Apache-2.0 */
/* Leaf locks: each thread remembers the one it holds. Any thread. */
#include "common/mtx.h"

#include <time.h>

#include "common/fiber.h"

enum { LOOK_US = 1000 };

static _Thread_local const struct mtx *held;

bool mtx_held(void)
{
	return held != NULL;
}

void mtx_init(struct mtx *m)
{
	int r = pthread_mutex_init(&m->m, NULL);

	assert(r == 0);
	(void)r;
}

void mtx_fini(struct mtx *m)
{
	int r = pthread_mutex_destroy(&m->m);

	assert(r == 0); /* EBUSY: somebody holds it */
	(void)r;
}

NO_ANALYSIS void mtx_lock(struct mtx *m)
{
	int r;

	assert(!held); /* locks are leaves */
	r = pthread_mutex_lock(&m->m);
	assert(r == 0);
	(void)r;
	held = m;
}

NO_ANALYSIS void mtx_unlock(struct mtx *m)
{
	int r;

	assert(held == m);
	held = NULL;
	r = pthread_mutex_unlock(&m->m);
	assert(r == 0);
	(void)r;
}

void cond_init(struct cond *c)
{
	pthread_condattr_t a;
	int r;

	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	r = pthread_cond_init(&c->c, &a);
	assert(r == 0);
	(void)r;
	pthread_condattr_destroy(&a);
}

void cond_fini(struct cond *c)
{
	pthread_cond_destroy(&c->c);
}

/* A fiber's way: nobody is woken for it, so it looks again after a while, as after any wake-up that
 * was for another. What is waited for by fibers is rare. */
NO_ANALYSIS static void look_later(struct mtx *m, uint64_t us)
{
	mtx_unlock(m);
	fiber_sleep_us(us);
	mtx_lock(m);
}

void cond_wait(struct cond *c, struct mtx *m)
{
	assert(held == m);
	if (fiber_in()) {
		look_later(m, LOOK_US);
		return;
	}
	pthread_cond_wait(&c->c, &m->m);
}

bool cond_wait_us(struct cond *c, struct mtx *m, uint64_t us)
{
	enum { LONGEST_S = 1000000 };
	struct timespec ts;
	uint64_t s;

	assert(held == m);
	if (fiber_in()) {
		look_later(m, MIN(us, (uint64_t)LOOK_US));
		return us > LOOK_US;
	}
	clock_gettime(CLOCK_MONOTONIC, &ts);
	s = MIN(us / 1000000, (uint64_t)LONGEST_S);
	ts.tv_sec += (time_t)s;
	ts.tv_nsec += (long)(us % 1000000) * 1000;
	if (ts.tv_nsec >= 1000000000) {
		ts.tv_nsec -= 1000000000;
		ts.tv_sec++;
	}
	return pthread_cond_timedwait(&c->c, &m->m, &ts) != ETIMEDOUT;
}

void cond_signal(struct cond *c)
{
	pthread_cond_signal(&c->c);
}

void cond_broadcast(struct cond *c)
{
	pthread_cond_broadcast(&c->c);
}
