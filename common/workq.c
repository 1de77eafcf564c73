/* SPDX-License-Identifier: Apache-2.0 */
/* Fixed threads that take jobs from one list. Threads: its own; push from anywhere.
 *
 *	open		pushes are taken, threads sleep on `work` when the list is empty
 *	closing		workq_free: only running jobs may still push; threads leave once the list is
 *			empty
 */
#include "common/workq.h"

#include "common/mtx.h"
#include "common/thread.h"

struct workq {
	struct mtx lock;
	struct cond work;
	struct list_node jobs GUARDED_BY(lock);
	unsigned waiting GUARDED_BY(lock);
	bool closing GUARDED_BY(lock);
	unsigned max_queued, n_threads;
	pthread_t threads[];
};

static struct workq_job *workq_next_locked(struct workq *q) REQUIRES(q->lock)
{
	struct list_node *n;

	while (list_empty(&q->jobs)) {
		if (q->closing)
			return NULL;
		cond_wait(&q->work, &q->lock);
	}
	n = list_pop(&q->jobs);
	q->waiting--;
	return container_of(n, struct workq_job, link);
}

static void *workq_thread(void *arg)
{
	struct workq *q = arg;
	struct workq_job *job;

	for (;;) {
		mtx_lock(&q->lock);
		job = workq_next_locked(q);
		mtx_unlock(&q->lock);
		if (!job)
			return NULL;
		job->fn(job); /* the job may be gone afterwards */
	}
}

static void workq_close(struct workq *q)
{
	mtx_lock(&q->lock);
	q->closing = true;
	cond_broadcast(&q->work);
	mtx_unlock(&q->lock);
	for (unsigned i = 0; i < q->n_threads; i++)
		pthread_join(q->threads[i], NULL);
	assert(list_empty(&q->jobs));
	cond_fini(&q->work);
	mtx_fini(&q->lock);
	free(q);
}

int workq_new(const char *name, unsigned threads, unsigned max_queued, struct workq **ret)
{
	struct workq *q;
	char title[24];
	int r;

	if (!threads || threads > 4096)
		return -EINVAL;
	q = calloc(1, sizeof(*q) + threads * sizeof(q->threads[0]));
	if (!q)
		return -ENOMEM;
	mtx_init(&q->lock);
	cond_init(&q->work);
	list_init(&q->jobs);
	q->max_queued = max_queued;
	while (q->n_threads < threads) {
		snprintf(title, sizeof(title), "%.10s-%u", name, q->n_threads);
		r = thread_start(title, workq_thread, q, &q->threads[q->n_threads]);
		if (r < 0) {
			workq_close(q);
			return r;
		}
		q->n_threads++;
	}
	*ret = q;
	return 0;
}

void workq_free(struct workq *q)
{
	if (q)
		workq_close(q);
}

static int workq_add(struct workq *q, struct workq_job *job, bool always)
{
	int r = 0;

	mtx_lock(&q->lock);
	if (!always && q->waiting >= q->max_queued) {
		r = -EBUSY;
	} else {
		list_add_tail(&q->jobs, &job->link);
		q->waiting++;
		cond_signal(&q->work);
	}
	mtx_unlock(&q->lock);
	return r;
}

int workq_push(struct workq *q, struct workq_job *job)
{
	return workq_add(q, job, false);
}

void workq_push_always(struct workq *q, struct workq_job *job)
{
	(void)workq_add(q, job, true);
}

unsigned workq_waiting(struct workq *q)
{
	unsigned n;

	mtx_lock(&q->lock);
	n = q->waiting;
	mtx_unlock(&q->lock);
	return n;
}
