/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that wait for one disk, and the jobs that wait for them. A disk may hang, and a thread
 * that waits for it cannot be called back; so a job whose run does not come back is given up: who
 * asked for it is told, the thread keeps the job until it does come back. No further thread is
 * started for it. */
#ifndef STOKE_COMMON_DISKQ_H
#define STOKE_COMMON_DISKQ_H

#include "common/list.h"

enum { DISKQ_THREADS_MAX = 8, DISKQ_TICK_US = 50000 };

struct diskq;

/* Embedded in its owner. run waits for the disk, in one of the threads, and uses nothing that end
 * gives away. end is called exactly once:
 *
 *	in the thread		with what run returned; the job is its owner's again
 *	by diskq_watch		-ETIMEDOUT: run has not come back; late follows when it does, with
 *				what it returned (never 'end' once more), and only then is the job
 *				its owner's again
 *	by diskq_watch,		-EHOSTDOWN: run was not called: waited too long, or the queue was
 *	diskq_shut		shut; the job is its owner's again */
struct disk_job {
	struct list_node link;
	int (*run)(struct disk_job *j);
	void (*end)(struct disk_job *j, int status);
	void (*late)(struct disk_job *j, int status);
	uint64_t since; /* in ticks: queued, begun, or last progress (atomic) */
	struct diskq *q;
};

/* 0 or -errno. Open. */
int diskq_new(const char *name, unsigned threads, struct diskq **ret);
/* Runs what is queued and ends the threads; waits for them at most us. false: one of them hangs in
 * its job, and nothing was freed. NULL: true. May be called again. */
bool diskq_free(struct diskq *q, uint64_t us);
/* Queues: its owners bound their number (one a connection, one a request, memory of the pool). 0,
 * or -EHOSTDOWN when it is shut: nothing was queued, end is not called */
int diskq_push(struct diskq *q, struct disk_job *j);
/* from run, in its thread: it moves, and is no more seen as hanging */
void diskq_progress(struct disk_job *j);
/* No jobs are taken any more; those that wait end. Any thread */
void diskq_shut(struct diskq *q);
void diskq_open(struct diskq *q);

struct diskq_look {
	unsigned waiting;  /* jobs in the queue */
	unsigned busy;	   /* threads in a job */
	unsigned stuck;	   /* those in a job that was given up */
	unsigned given_up; /* jobs that were given up since the last look, in run or in the queue */
	uint64_t longest;  /* ticks that a run has shown no progress */
};
/* One tick has passed. Ends jobs that run for more than run_ticks without progress, and those that
 * waited for more than queue_ticks. One thread */
void diskq_watch(struct diskq *q, uint64_t run_ticks, uint64_t queue_ticks, struct diskq_look *ret);
unsigned diskq_waiting(struct diskq *q);
/* nothing is queued, and no thread is in a run, end or late */
bool diskq_idle(struct diskq *q);

#endif
