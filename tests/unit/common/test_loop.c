/* SPDX-License-Identifier: Apache-2.0 */
/* loop: jobs in order from several threads, timers, watches, and an end that loses nothing. */
#include "common/loop.h"

#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <cmocka.h>

#include "common/clock.h"

enum { THREADS = 3, JOBS = 2000 };

struct counted {
	struct loop_job job;
	unsigned thread, number;
};

static struct counted jobs[THREADS][JOBS];
static unsigned last[THREADS], total;
static struct loop *loop;

static void counted_run(struct loop_job *job)
{
	struct counted *c = container_of(job, struct counted, job);

	assert_true(loop_is_mine(loop));
	assert_int_equal(c->number, last[c->thread]);
	last[c->thread]++;
	total++;
}

static void *poster(void *arg)
{
	unsigned t = (unsigned)(uintptr_t)arg;

	for (unsigned i = 0; i < JOBS; i++) {
		jobs[t][i] = (struct counted){.job.fn = counted_run, .thread = t, .number = i};
		loop_post(loop, &jobs[t][i].job);
	}
	return NULL;
}

static void loop_runs_jobs_in_the_order_posted(void **state)
{
	pthread_t th[THREADS];

	(void)state;
	assert_int_equal(loop_new("order", &loop), 0);
	assert_false(loop_is_mine(loop));
	for (uintptr_t t = 0; t < THREADS; t++)
		pthread_create(&th[t], NULL, poster, (void *)t);
	for (int t = 0; t < THREADS; t++)
		pthread_join(th[t], NULL);
	loop_free(loop); /* runs what was posted */
	assert_int_equal(total, THREADS * JOBS);
}

struct chain {
	struct loop_job job;
	unsigned left;
};

static void chain_run(struct loop_job *job)
{
	struct chain *c = container_of(job, struct chain, job);

	if (c->left--)
		loop_post(loop, job);
}

static void loop_free_runs_what_jobs_post_last(void **state)
{
	struct chain c = {.job.fn = chain_run, .left = 50};

	(void)state;
	assert_int_equal(loop_new("last", &loop), 0);
	loop_post(loop, &c.job);
	loop_free(loop);
	assert_int_equal(c.left, UINT32_MAX);
	loop_free(NULL);
}

struct ticks {
	struct loop_timer t, never;
	uint64_t due;
	unsigned fired;
	bool early;
	sem_t done;
};

static void never_fired(struct loop_timer *t)
{
	container_of(t, struct ticks, never)->early = true;
}

static void tick(struct loop_timer *t)
{
	struct ticks *k = container_of(t, struct ticks, t);

	if (clock_us() < k->due)
		k->early = true;
	if (++k->fired == 5) {
		sem_post(&k->done);
		return;
	}
	k->due = clock_us() + 3000;
	loop_timer_start(t, 3000);
}

static void ticks_begin(void *arg)
{
	struct ticks *k = arg;

	loop_timer_init(&k->t, loop, tick);
	loop_timer_init(&k->never, loop, never_fired);
	loop_timer_start(&k->never, 1000);
	loop_timer_start(&k->t, 3600000000ULL);
	assert_true(k->t.pending);
	k->due = clock_us() + 3000;
	loop_timer_start(&k->t, 3000); /* moved */
	loop_timer_stop(&k->never);
	loop_timer_stop(&k->never);
	assert_false(k->never.pending);
}

static void loop_timers_are_never_early_and_can_be_stopped(void **state)
{
	struct ticks k = {.fired = 0};

	(void)state;
	sem_init(&k.done, 0, 0);
	assert_int_equal(loop_new("timers", &loop), 0);
	loop_run_sync(loop, ticks_begin, &k);
	sem_wait(&k.done);
	loop_free(loop);
	assert_int_equal(k.fired, 5);
	assert_false(k.early);
	sem_destroy(&k.done);
}

struct echo {
	struct loop_watch w;
	int fd;
	unsigned reads, writes;
	sem_t got;
};

static void echo_ready(struct loop_watch *w, unsigned events)
{
	struct echo *e = container_of(w, struct echo, w);
	char c;

	if (events & LOOP_WRITE) {
		e->writes++;
		loop_watch_set(w, LOOP_READ);
	}
	if (events & LOOP_READ) {
		assert_int_equal(read(w->fd, &c, 1), 1); /* level-triggered: one byte a call */
		e->reads++;
		sem_post(&e->got);
	}
}

static void echo_begin(void *arg)
{
	struct echo *e = arg;

	loop_watch_init(&e->w, loop, e->fd, echo_ready);
	loop_watch_set(&e->w, LOOP_READ | LOOP_WRITE);
}

static void echo_end(void *arg)
{
	struct echo *e = arg;

	loop_watch_set(&e->w, 0);
}

static void loop_watches_are_level_triggered_and_persistent(void **state)
{
	struct echo e = {.reads = 0};
	int fds[2];

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
	sem_init(&e.got, 0, 0);
	e.fd = fds[0];
	assert_int_equal(loop_new("watch", &loop), 0);
	loop_run_sync(loop, echo_begin, &e);
	assert_int_equal(write(fds[1], "abc", 3), 3);
	for (int i = 0; i < 3; i++)
		sem_wait(&e.got);
	loop_run_sync(loop, echo_end, &e);
	assert_int_equal(write(fds[1], "d", 1), 1); /* nobody watches any more */
	loop_free(loop);
	assert_int_equal(e.reads, 3);
	assert_int_equal(e.writes, 1);
	sem_destroy(&e.got);
	close(fds[0]);
	close(fds[1]);
}

static void sync_inner(void *arg)
{
	*(int *)arg += 1;
}

static void sync_outer(void *arg)
{
	loop_run_sync(loop, sync_inner, arg); /* at once, else it would wait for itself */
	*(int *)arg *= 10;
}

static void loop_run_sync_works_from_both_sides(void **state)
{
	int n = 1;

	(void)state;
	assert_int_equal(loop_new("sync", &loop), 0);
	loop_run_sync(loop, sync_outer, &n);
	assert_int_equal(n, 20);
	loop_free(loop);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(loop_runs_jobs_in_the_order_posted),
		cmocka_unit_test(loop_free_runs_what_jobs_post_last),
		cmocka_unit_test(loop_timers_are_never_early_and_can_be_stopped),
		cmocka_unit_test(loop_watches_are_level_triggered_and_persistent),
		cmocka_unit_test(loop_run_sync_works_from_both_sides),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
