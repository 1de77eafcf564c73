/* SPDX-License-Identifier: Apache-2.0 */
/* A short wait for what comes soon. A core that slept takes tens of microseconds to wake, longer
 * than a Redis nearby takes to answer, so whoever waits for one looks a few times before it sleeps,
 * and lets every other thread go first (sched_yield). It learns: where nothing comes in time, or
 * others want the core for long, it stops looking, and tries again now and then. At most one thread
 * looks at a time. */
#ifndef STOKE_COMMON_SPIN_H
#define STOKE_COMMON_SPIN_H

#include "common/base.h"

struct spin {
	int busy;	 /* a thread looks; atomic */
	unsigned misses; /* in a row; relaxed atomic */
};

/* looks until ready(arg) or the time is over; returns what ready said last, or false at once when
 * looking does not pay */
bool spin_until(struct spin *s, bool (*ready)(void *arg), void *arg);

#endif
