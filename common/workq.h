/* SPDX-License-Identifier: Apache-2.0 */
/* Fixed threads for calls that block (disk, Redis, codecs): a bounded first-in-first-out queue of
 * jobs embedded in their owners. */
#ifndef STOKE_COMMON_WORKQ_H
#define STOKE_COMMON_WORKQ_H

#include "common/list.h"

struct workq;
struct workq_job {
	struct list_node link;
	void (*fn)(struct workq_job *job);
};

/* threads are named name-0 …; at most max_queued jobs wait. 0 or -errno */
int workq_new(const char *name, unsigned threads, unsigned max_queued, struct workq **ret);
/* stops intake, runs what is queued, joins. NULL is fine. */
void workq_free(struct workq *q);
/* job->fn(job) runs once in one of the threads; the job belongs to the queue until then. -EBUSY
 * when full: nothing was queued. */
int workq_push(struct workq *q, struct workq_job *job);
/* queues even when full: for a job whose bound is kept by its owner (one per connection, one per
 * request that holds memory) */
void workq_push_always(struct workq *q, struct workq_job *job);
unsigned workq_waiting(struct workq *q);

#endif
