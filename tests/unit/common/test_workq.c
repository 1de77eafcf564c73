/* SPDX-License-Identifier: Apache-2.0 */
/* workq: order, bound, and that nothing queued is lost. */
#include "common/workq.h"

#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "common/mtx.h"

enum { JOBS = 500 };

struct task {
	struct workq_job job;
	unsigned number;
};

static struct task tasks[JOBS];
static unsigned order[JOBS], done;
static sem_t gate, entered;

static void task_note(struct workq_job *job)
{
	unsigned at = __atomic_fetch_add(&done, 1, __ATOMIC_RELAXED);

	order[at] = container_of(job, struct task, job)->number;
}

static void task_block(struct workq_job *job)
{
	(void)job;
	sem_post(&entered);
	sem_wait(&gate);
}

static int reset(void **state)
{
	(void)state;
	done = 0;
	for (unsigned i = 0; i < JOBS; i++)
		tasks[i] = (struct task){.job.fn = task_note, .number = i};
	sem_init(&gate, 0, 0);
	sem_init(&entered, 0, 0);
	return 0;
}

static void workq_one_thread_keeps_order(void **state)
{
	struct workq *q;

	(void)state;
	assert_int_equal(workq_new("order", 1, JOBS, &q), 0);
	for (unsigned i = 0; i < JOBS; i++)
		assert_int_equal(workq_push(q, &tasks[i].job), 0);
	workq_free(q); /* runs what is queued */
	assert_int_equal(done, JOBS);
	for (unsigned i = 0; i < JOBS; i++)
		assert_int_equal(order[i], i);
}

static void workq_many_threads_run_each_job_once(void **state)
{
	bool seen[JOBS] = {false};
	struct workq *q;

	(void)state;
	assert_int_equal(workq_new("many", 4, JOBS, &q), 0);
	for (unsigned i = 0; i < JOBS; i++)
		assert_int_equal(workq_push(q, &tasks[i].job), 0);
	workq_free(q);
	assert_int_equal(done, JOBS);
	for (unsigned i = 0; i < JOBS; i++) {
		assert_false(seen[order[i]]);
		seen[order[i]] = true;
	}
}

static void workq_refuses_beyond_its_bound(void **state)
{
	struct workq_job block = {.fn = task_block};
	struct workq *q;

	(void)state;
	assert_int_equal(workq_new("bound", 1, 2, &q), 0);
	assert_int_equal(workq_push(q, &block), 0);
	sem_wait(&entered);
	assert_int_equal(workq_waiting(q), 0);
	assert_int_equal(workq_push(q, &tasks[0].job), 0);
	assert_int_equal(workq_push(q, &tasks[1].job), 0);
	assert_int_equal(workq_push(q, &tasks[2].job), -EBUSY);
	workq_push_always(q, &tasks[3].job);
	assert_int_equal(workq_waiting(q), 3);
	sem_post(&gate);
	workq_free(q);
	assert_int_equal(done, 3);
	assert_int_equal(order[2], 3);
}

static void workq_without_threads_is_refused(void **state)
{
	struct workq *q;

	(void)state;
	assert_int_equal(workq_new("none", 0, 1, &q), -EINVAL);
	workq_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(workq_one_thread_keeps_order, reset),
		cmocka_unit_test_setup(workq_many_threads_run_each_job_once, reset),
		cmocka_unit_test_setup(workq_refuses_beyond_its_bound, reset),
		cmocka_unit_test(workq_without_threads_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
