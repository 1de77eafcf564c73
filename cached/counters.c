/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's counters. Any thread. */
#include "cached/counters.h"

#include "proto/frame.h"

int counters_init(struct counters *c, struct metrics *m)
{
	bool failed = false;
	char labels[32];

#define METRIC(member, name, type, help)                                                           \
	c->member = metrics_get(m, name, "", METRIC_##type, help);                                 \
	failed |= !c->member;
#include "cached/metrics.def"
#undef METRIC
	for (unsigned op = 1; op < COUNTERS_OPS; op++) {
		if (!strcmp(op_name(op), "?"))
			continue;
		(void)snprintf(labels, sizeof(labels), "op=\"%s\"", op_name(op));
		c->requests[op] = metrics_get(m, "stoke_cached_requests_total", labels,
					      METRIC_COUNTER, "requests by operation");
		failed |= !c->requests[op];
	}
	return failed ? -ENOMEM : 0;
}

void counters_conns(struct counters *c, int by)
{
	int n = atomic_fetch_add_explicit(&c->conns_now, by, memory_order_relaxed) + by;

	if (c->conns)
		metric_set(c->conns, n);
}

void counters_fds(struct counters *c, int by)
{
	int n = atomic_fetch_add_explicit(&c->fds_now, by, memory_order_relaxed) + by;

	if (c->fds_out)
		metric_set(c->fds_out, n);
}
