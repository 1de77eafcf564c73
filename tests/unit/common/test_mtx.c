/* SPDX-License-Identifier: Apache-2.0 */
/* mtx: a second lock under a first one ends the program, and waiting is by the monotonic clock. */
#include "common/mtx.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <cmocka.h>

#include "common/clock.h"
#include "common/thread.h"

static struct mtx one = MTX_INIT, two = MTX_INIT;

NO_ANALYSIS static void lock_two(void)
{
	mtx_lock(&one);
	mtx_lock(&two);
}

NO_ANALYSIS static void unlock_not_held(void)
{
	mtx_lock(&one);
	mtx_unlock(&two);
}

static bool aborts(void (*fn)(void))
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		signal(SIGABRT, SIG_DFL);
		dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
		fn();
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void locks_are_leaves(void **state)
{
	(void)state;
	assert_true(aborts(lock_two));
	assert_true(aborts(unlock_not_held));
	mtx_lock(&one);
	mtx_unlock(&one);
	mtx_lock(&two); /* one after the other is fine */
	mtx_unlock(&two);
}

struct box {
	struct mtx lock;
	struct cond cond;
	bool full;
};

static void *fill(void *arg)
{
	struct box *b = arg;

	mtx_lock(&b->lock);
	b->full = true;
	cond_signal(&b->cond);
	mtx_unlock(&b->lock);
	return NULL;
}

static void cond_waits_no_longer_than_told(void **state)
{
	struct box b = {.full = false};
	uint64_t start = clock_us();
	pthread_t t;

	(void)state;
	mtx_init(&b.lock);
	cond_init(&b.cond);
	mtx_lock(&b.lock);
	while (cond_wait_us(&b.cond, &b.lock, 20000)) {
		/* woken for nothing */
	}
	mtx_unlock(&b.lock);
	assert_true(clock_us() - start >= 20000);
	assert_int_equal(thread_start("a name that is too long", fill, &b, &t), 0);
	mtx_lock(&b.lock);
	while (!b.full)
		assert_true(cond_wait_us(&b.cond, &b.lock, UINT64_MAX));
	mtx_unlock(&b.lock);
	pthread_join(t, NULL);
	cond_fini(&b.cond);
	mtx_fini(&b.lock);
}

static void *mask_of(void *arg)
{
	pthread_sigmask(SIG_SETMASK, NULL, arg);
	return NULL;
}

static void threads_block_signals(void **state)
{
	sigset_t set, mine;
	pthread_t t;

	(void)state;
	assert_int_equal(thread_start("mask", mask_of, &set, &t), 0);
	pthread_join(t, NULL);
	assert_int_equal(sigismember(&set, SIGTERM), 1);
	assert_int_equal(sigismember(&set, SIGPIPE), 1);
	assert_int_equal(sigismember(&set, SIGSEGV), 0);
	pthread_sigmask(SIG_SETMASK, NULL, &mine);
	assert_int_equal(sigismember(&mine, SIGTERM), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(locks_are_leaves),
		cmocka_unit_test(cond_waits_no_longer_than_told),
		cmocka_unit_test(threads_block_signals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
