/* SPDX-License-Identifier: Apache-2.0 */
/* Fibers: who waits lets the others go on, and goes on when what it waits for is there. */
#include "common/fiber.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "common/clock.h"
#include "common/mtx.h"

static struct fibers *s;
static char seen[64];
static int pipes[2];

static int begin(void **state)
{
	(void)state;
	seen[0] = 0;
	assert_int_equal(pipe(pipes), 0);
	return fibers_new(NULL, NULL, &s);
}

static int end(void **state)
{
	(void)state;
	fibers_free(s);
	close(pipes[0]);
	close(pipes[1]);
	return 0;
}

static void saw(const char *what)
{
	size_t n = strlen(seen);

	snprintf(seen + n, sizeof(seen) - n, "%s", what);
}

/* until all have ended */
static void run_all(void)
{
	struct pollfd fds[FIBERS_MAX];
	uint64_t until;
	unsigned n;

	while ((n = fibers_fds(s, fds, &until))) {
		uint64_t left = until == UINT64_MAX ? 1000000 : clock_left(MAX(until, 1u));

		(void)poll(fds, n, (int)DIV_UP(left, 1000));
		fibers_resume(s, fds, n);
	}
}

static void yields(void *arg)
{
	saw(arg);
	fiber_yield();
	saw(arg);
}

static void test_turns(void **state)
{
	char a[] = "a", b[] = "b";

	(void)state;
	assert_false(fiber_in());
	assert_int_equal(fibers_run(s, yields, a), 0);
	assert_int_equal(fibers_run(s, yields, b), 0);
	saw("-");
	run_all();
	assert_string_equal(seen, "ab-ab");
}

static void reads(void *arg)
{
	char c = 0;

	(void)arg;
	assert_true(fiber_in());
	assert_int_equal(fiber_poll(pipes[0], POLLIN, 20), 0);
	saw("late,");
	assert_int_equal(fiber_poll(pipes[0], POLLIN, 60000), 1);
	assert_int_equal(read(pipes[0], &c, 1), 1);
	saw("read");
}

static void writes(void *arg)
{
	uint64_t begin_us = clock_us();

	(void)arg;
	fiber_sleep_us(60000);
	assert_true(clock_us() - begin_us >= 60000);
	assert_int_equal(write(pipes[1], "x", 1), 1);
}

static void test_poll(void **state)
{
	(void)state;
	assert_int_equal(fibers_run(s, reads, NULL), 0);
	assert_int_equal(fibers_run(s, writes, NULL), 0);
	run_all();
	assert_string_equal(seen, "late,read");
}

static void nested(void *arg)
{
	(void)arg;
	assert_int_equal(fibers_run(s, yields, NULL), -EAGAIN);
	fiber_sleep_us(1000);
}

static void test_bounds(void **state)
{
	(void)state;
	for (unsigned i = 0; i < FIBERS_MAX; i++)
		assert_int_equal(fibers_run(s, nested, NULL), 0);
	assert_int_equal(fibers_run(s, nested, NULL), -EAGAIN);
	run_all();
	assert_int_equal(fibers_run(s, nested, NULL), 0);
	run_all();
}

static struct fiber *sleeper;

static void parks(void *arg)
{
	(void)arg;
	sleeper = fiber_self();
	fiber_park();
	saw("woken");
}

static void wakes(void *arg)
{
	(void)arg;
	fiber_yield();
	saw("wakes,");
	fiber_wake(sleeper);
}

static void test_wake(void **state)
{
	(void)state;
	assert_int_equal(fibers_run(s, parks, NULL), 0);
	assert_int_equal(fibers_run(s, wakes, NULL), 0);
	run_all();
	assert_string_equal(seen, "wakes,woken");
}

static struct mtx lock = MTX_INIT;
static struct cond changed;
static bool there;

/* a condition that another fiber of the same thread brings about */
static void waits(void *arg)
{
	(void)arg;
	mtx_lock(&lock);
	while (!there)
		cond_wait(&changed, &lock);
	assert_true(cond_wait_us(&changed, &lock, 1000000));
	assert_false(cond_wait_us(&changed, &lock, 500));
	mtx_unlock(&lock);
	saw("there");
}

static void brings(void *arg)
{
	(void)arg;
	fiber_yield();
	mtx_lock(&lock);
	there = true;
	cond_signal(&changed);
	mtx_unlock(&lock);
}

static void test_condition(void **state)
{
	(void)state;
	cond_init(&changed);
	assert_int_equal(fibers_run(s, waits, NULL), 0);
	assert_int_equal(fibers_run(s, brings, NULL), 0);
	run_all();
	assert_string_equal(seen, "there");
	cond_fini(&changed);
}

static unsigned blocked;

static void count(void *arg)
{
	(void)arg;
	blocked++;
}

static void blocks(void *arg)
{
	(void)arg;
	fiber_blocks();
}

static void test_blocks(void **state)
{
	struct fibers *mine;

	(void)state;
	fiber_blocks();
	assert_int_equal(fibers_new(count, NULL, &mine), 0);
	assert_int_equal(fibers_run(mine, blocks, NULL), 0);
	assert_int_equal(blocked, 1);
	fibers_free(mine);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_turns, begin, end),
		cmocka_unit_test_setup_teardown(test_poll, begin, end),
		cmocka_unit_test_setup_teardown(test_bounds, begin, end),
		cmocka_unit_test_setup_teardown(test_wake, begin, end),
		cmocka_unit_test_setup_teardown(test_condition, begin, end),
		cmocka_unit_test(test_blocks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
