/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's own counters, made of metrics.def. */
#ifndef STOKE_CACHED_COUNTERS_H
#define STOKE_CACHED_COUNTERS_H

#include <stdatomic.h>

#include "common/metrics.h"

enum { COUNTERS_OPS = 16 };

struct pool;
struct store;

struct counters {
#define METRIC(member, name, type, help) struct metric *member;
#include "cached/metrics.def"
#undef METRIC
	struct metric *requests[COUNTERS_OPS]; /* by operation of the wire */
	atomic_int conns_now, fds_now;	       /* what the gauges show */
};

/* 0 or -ENOMEM. The registry must outlive c */
int counters_init(struct counters *c, struct metrics *m);
/* series that ask the store and the pool, which outlive m. 0 or -ENOMEM */
int counters_gauges(struct metrics *m, struct store *s, struct pool *p);
/* the gauges of what c counts: connections and descriptors; by is 1 or -1 */
void counters_conns(struct counters *c, int by);
void counters_fds(struct counters *c, int by);

#endif
