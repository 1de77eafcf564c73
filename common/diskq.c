/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of one disk. Jobs in order of arrival; each thread has a slot that says which job it
 * runs.
 *
 * Time is counted in ticks of the watcher, so that a machine which stood still as a whole does not
 * look like a disk that hangs.
 *
 *	a job is	and goes on by
 *	queued		a thread's taking it -> running; the watcher, diskq_shut -> ended
 *	running		run's return -> ended; the watcher -> given up (and ended for its owner)
 *	given up	run's return -> late
 *
 * end and late are called without the lock. */
#include "common/diskq.h"

#include <time.h>

#include "common/clock.h"
#include "common/mtx.h"
#include "common/thread.h"

struct slot {
	struct diskq *q;
	struct disk_job *job; /* under lock */
	/* the same; ending: the watcher is just telling the job's owner, late waits for that */
	bool given_up, ending;
	bool idle; /* waits for a job */
	bool joined;
	pthread_t thread;
};

struct diskq {
	struct mtx lock; /* over what follows, but for threads and tick */
	struct cond work, told;
	struct list_node jobs;
	unsigned waiting;
	bool shut, closing;
	uint64_t tick; /* atomic */
	unsigned n_slots;
	struct slot slots[DISKQ_THREADS_MAX];
};

static uint64_t now(const struct diskq *q)
{
	return __atomic_load_n(&q->tick, __ATOMIC_RELAXED);
}

void diskq_progress(struct disk_job *j)
{
	__atomic_store_n(&j->since, now(j->q), __ATOMIC_RELAXED);
}

static uint64_t age(const struct diskq *q, const struct disk_job *j)
{
	return now(q) - __atomic_load_n(&j->since, __ATOMIC_RELAXED);
}

/* the next job, in the slot; NULL: the end */
static struct disk_job *next_locked(struct diskq *q, struct slot *s) REQUIRES(q->lock)
{
	struct list_node *n;

	s->idle = true;
	while (!(n = list_pop(&q->jobs))) {
		if (q->closing)
			return NULL;
		cond_wait(&q->work, &q->lock);
	}
	q->waiting--;
	s->idle = false;
	s->job = container_of(n, struct disk_job, link);
	s->given_up = false;
	diskq_progress(s->job);
	return s->job;
}

static void *thread_main(void *arg)
{
	struct slot *s = arg;
	struct diskq *q = s->q;
	struct disk_job *j;
	bool given_up;
	int r;

	for (;;) {
		mtx_lock(&q->lock);
		j = next_locked(q, s);
		mtx_unlock(&q->lock);
		if (!j)
			return NULL;
		r = j->run(j);
		mtx_lock(&q->lock);
		while (s->ending)
			cond_wait(&q->told, &q->lock);
		given_up = s->given_up;
		s->job = NULL;
		mtx_unlock(&q->lock);
		/* -ETIMEDOUT is the watcher's word */
		r = r == -ETIMEDOUT ? -EIO : r;
		if (given_up)
			j->late(j, r);
		else
			j->end(j, r);
	}
}

int diskq_new(const char *name, unsigned threads, struct diskq **ret)
{
	struct diskq *q = calloc(1, sizeof(*q));
	char title[24];
	int r = 0;

	assert(threads && threads <= DISKQ_THREADS_MAX);
	if (!q)
		return -ENOMEM;
	mtx_init(&q->lock);
	cond_init(&q->work);
	cond_init(&q->told);
	list_init(&q->jobs);
	while (r == 0 && q->n_slots < threads) {
		struct slot *s = &q->slots[q->n_slots];

		s->q = q;
		(void)snprintf(title, sizeof(title), "%.10s-%u", name, q->n_slots);
		r = thread_start(title, thread_main, s, &s->thread);
		if (r == 0)
			q->n_slots++;
	}
	if (r < 0) {
		(void)diskq_free(q, UINT64_MAX);
		return r;
	}
	*ret = q;
	return 0;
}

/* false: it has not ended at the time of the wall clock */
static bool join(struct slot *s, const struct timespec *until)
{
	if (!s->joined)
		s->joined = until ? pthread_timedjoin_np(s->thread, NULL, until) == 0
				  : pthread_join(s->thread, NULL) == 0;
	return s->joined;
}

bool diskq_free(struct diskq *q, uint64_t us)
{
	struct timespec until;
	bool ended = true;

	if (!q)
		return true;
	mtx_lock(&q->lock);
	q->closing = true;
	cond_broadcast(&q->work);
	mtx_unlock(&q->lock);
	(void)clock_gettime(CLOCK_REALTIME, &until);
	if (us != UINT64_MAX) {
		until.tv_sec += (time_t)(us / 1000000);
		until.tv_nsec += (long)(us % 1000000) * 1000;
		until.tv_sec += until.tv_nsec / 1000000000;
		until.tv_nsec %= 1000000000;
	}
	for (unsigned i = 0; i < q->n_slots; i++)
		ended &= join(&q->slots[i], us == UINT64_MAX ? NULL : &until);
	if (!ended)
		return false;
	assert(list_empty(&q->jobs));
	cond_fini(&q->work);
	cond_fini(&q->told);
	mtx_fini(&q->lock);
	free(q);
	return true;
}

int diskq_push(struct diskq *q, struct disk_job *j)
{
	bool shut;

	j->q = q;
	mtx_lock(&q->lock);
	shut = q->shut;
	if (!shut) {
		diskq_progress(j);
		list_add_tail(&q->jobs, &j->link);
		q->waiting++;
		cond_signal(&q->work);
	}
	mtx_unlock(&q->lock);
	return shut ? -EHOSTDOWN : 0;
}

static unsigned end_all(struct list_node *jobs, int status)
{
	struct list_node *n;
	unsigned ended = 0;

	while ((n = list_pop(jobs))) {
		struct disk_job *j = container_of(n, struct disk_job, link);

		j->end(j, status);
		ended++;
	}
	return ended;
}

void diskq_shut(struct diskq *q)
{
	struct list_node jobs;

	list_init(&jobs);
	mtx_lock(&q->lock);
	q->shut = true;
	list_splice_tail(&jobs, &q->jobs);
	q->waiting = 0;
	mtx_unlock(&q->lock);
	(void)end_all(&jobs, -EHOSTDOWN);
}

void diskq_open(struct diskq *q)
{
	mtx_lock(&q->lock);
	q->shut = false;
	mtx_unlock(&q->lock);
}

/* looks at the threads, and marks jobs that hang; how many */
static unsigned give_up_locked(struct diskq *q, uint64_t run_ticks, struct diskq_look *look)
	REQUIRES(q->lock)
{
	unsigned n = 0;

	for (unsigned i = 0; i < q->n_slots; i++) {
		struct slot *s = &q->slots[i];

		if (!s->job)
			continue;
		look->busy++;
		look->stuck += s->given_up;
		look->longest = MAX(look->longest, age(q, s->job));
		if (s->given_up || age(q, s->job) <= run_ticks)
			continue;
		s->given_up = s->ending = true;
		look->stuck++;
		n++;
	}
	return n;
}

/* tells the owners of those; only the watcher sets and clears ending */
static void tell_hanging(struct diskq *q)
{
	for (unsigned i = 0; i < q->n_slots; i++) {
		struct slot *s = &q->slots[i];
		struct disk_job *j;

		mtx_lock(&q->lock);
		j = s->ending ? s->job : NULL;
		mtx_unlock(&q->lock);
		if (!j)
			continue;
		j->end(j, -ETIMEDOUT);
		mtx_lock(&q->lock);
		s->ending = false;
		cond_broadcast(&q->told);
		mtx_unlock(&q->lock);
	}
}

void diskq_watch(struct diskq *q, uint64_t run_ticks, uint64_t queue_ticks, struct diskq_look *ret)
{
	struct list_node waited;
	unsigned n;

	*ret = (struct diskq_look){0};
	list_init(&waited);
	__atomic_fetch_add(&q->tick, 1, __ATOMIC_RELAXED);
	mtx_lock(&q->lock);
	n = give_up_locked(q, run_ticks, ret);
	while (!list_empty(&q->jobs)) { /* the first one waits longest */
		struct list_node *first = q->jobs.next;

		if (age(q, container_of(first, struct disk_job, link)) <= queue_ticks)
			break;
		list_del(first);
		list_add_tail(&waited, first);
		q->waiting--;
	}
	ret->waiting = q->waiting;
	mtx_unlock(&q->lock);
	if (n)
		tell_hanging(q);
	ret->given_up = n + end_all(&waited, -EHOSTDOWN);
}

unsigned diskq_waiting(struct diskq *q)
{
	unsigned n;

	mtx_lock(&q->lock);
	n = q->waiting;
	mtx_unlock(&q->lock);
	return n;
}

bool diskq_idle(struct diskq *q)
{
	bool idle;

	mtx_lock(&q->lock);
	idle = q->waiting == 0;
	for (unsigned i = 0; i < q->n_slots; i++)
		idle = idle && q->slots[i].idle;
	mtx_unlock(&q->lock);
	return idle;
}
