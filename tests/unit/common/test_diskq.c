/* SPDX-License-Identifier: Apache-2.0 */
#include "common/diskq.h"

#include <stdatomic.h>
#include <time.h>

#include "tests/unit/check.h"

struct job {
	struct disk_job job;
	atomic_bool *hold; /* run waits while it is true */
	atomic_bool running, moves;
	atomic_int ended, late, status;
};

static void nap(void)
{
	const struct timespec ms = {.tv_nsec = 1000000};

	nanosleep(&ms, NULL);
}

static int job_run(struct disk_job *j)
{
	struct job *x = container_of(j, struct job, job);

	atomic_store(&x->running, true);
	while (x->hold && atomic_load(x->hold)) {
		if (atomic_load(&x->moves))
			diskq_progress(j);
		nap();
	}
	return -ENOENT;
}

static void job_end(struct disk_job *j, int status)
{
	struct job *x = container_of(j, struct job, job);

	atomic_store(&x->status, status);
	atomic_fetch_add(&x->ended, 1);
}

static void job_late(struct disk_job *j, int status)
{
	struct job *x = container_of(j, struct job, job);

	assert_int_equal(status, -ENOENT);
	assert_int_equal(atomic_load(&x->ended), 1);
	atomic_fetch_add(&x->late, 1);
}

static void job_init(struct job *x, atomic_bool *hold)
{
	memset(x, 0, sizeof(*x));
	x->job = (struct disk_job){.run = job_run, .end = job_end, .late = job_late};
	x->hold = hold;
}

#define AWAIT(x)                                                                                   \
	while (!(x))                                                                               \
	nap()

static void a_job_runs_and_ends_once(void **state)
{
	struct diskq *q;
	struct job x;

	(void)state;
	assert_int_equal(diskq_new("t", 2, &q), 0);
	job_init(&x, NULL);
	assert_int_equal(diskq_push(q, &x.job), 0);
	AWAIT(atomic_load(&x.ended));
	assert_int_equal(atomic_load(&x.status), -ENOENT);
	assert_true(diskq_free(q, UINT64_MAX));
	assert_int_equal(atomic_load(&x.ended), 1);
	assert_int_equal(atomic_load(&x.late), 0);
}

static void a_job_that_hangs_is_given_up_and_late(void **state)
{
	atomic_bool hold = true;
	struct diskq_look look;
	struct job x, y;
	struct diskq *q;

	(void)state;
	assert_int_equal(diskq_new("t", 1, &q), 0);
	job_init(&x, &hold);
	job_init(&y, &hold);
	assert_int_equal(diskq_push(q, &x.job), 0);
	AWAIT(atomic_load(&x.running));
	assert_int_equal(diskq_push(q, &y.job), 0);
	for (int i = 0; i < 3; i++)
		diskq_watch(q, 3, 5, &look);
	assert_int_equal(atomic_load(&x.ended), 0);
	diskq_watch(q, 3, 5, &look);
	assert_int_equal(atomic_load(&x.status), -ETIMEDOUT);
	assert_int_equal(look.given_up, 1);
	assert_int_equal(look.stuck, 1);
	assert_int_equal(look.waiting, 1);
	/* who waits behind it waits no longer than his own time */
	diskq_watch(q, 3, 5, &look);
	diskq_watch(q, 3, 5, &look);
	assert_int_equal(atomic_load(&y.status), -EHOSTDOWN);
	assert_int_equal(look.waiting, 0);
	assert_false(diskq_free(q, 1000));
	atomic_store(&hold, false);
	assert_true(diskq_free(q, UINT64_MAX));
	assert_int_equal(atomic_load(&x.ended), 1);
	assert_int_equal(atomic_load(&x.late), 1);
	assert_int_equal(atomic_load(&y.ended), 1);
	assert_false(atomic_load(&y.running));
}

static void a_job_that_moves_is_left_alone(void **state)
{
	atomic_bool hold = true;
	struct diskq_look look;
	struct diskq *q;
	struct job x;

	(void)state;
	assert_int_equal(diskq_new("t", 1, &q), 0);
	job_init(&x, &hold);
	atomic_store(&x.moves, true);
	assert_int_equal(diskq_push(q, &x.job), 0);
	AWAIT(atomic_load(&x.running));
	for (int i = 0; i < 20; i++) {
		diskq_watch(q, 3, 5, &look);
		for (int j = 0; j < 4; j++)
			nap();
	}
	assert_int_equal(atomic_load(&x.ended), 0);
	atomic_store(&hold, false);
	assert_true(diskq_free(q, UINT64_MAX));
	assert_int_equal(atomic_load(&x.status), -ENOENT);
}

static void what_waits_ends_when_it_is_shut(void **state)
{
	atomic_bool hold = true;
	struct job x, y, z;
	struct diskq *q;

	(void)state;
	assert_int_equal(diskq_new("t", 1, &q), 0);
	job_init(&x, &hold);
	job_init(&y, NULL);
	job_init(&z, NULL);
	assert_int_equal(diskq_push(q, &x.job), 0);
	AWAIT(atomic_load(&x.running));
	assert_int_equal(diskq_push(q, &y.job), 0);
	diskq_shut(q);
	assert_int_equal(atomic_load(&y.status), -EHOSTDOWN);
	assert_int_equal(diskq_push(q, &z.job), -EHOSTDOWN);
	assert_int_equal(atomic_load(&z.ended), 0);
	diskq_open(q);
	assert_int_equal(diskq_push(q, &z.job), 0);
	atomic_store(&hold, false);
	assert_true(diskq_free(q, UINT64_MAX));
	assert_int_equal(atomic_load(&x.status), -ENOENT);
	assert_int_equal(atomic_load(&z.status), -ENOENT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_job_runs_and_ends_once),
		cmocka_unit_test(a_job_that_hangs_is_given_up_and_late),
		cmocka_unit_test(a_job_that_moves_is_left_alone),
		cmocka_unit_test(what_waits_ends_when_it_is_shut),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
