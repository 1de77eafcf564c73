/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's counters. Any thread. */
#include "cached/counters.h"

#include "cached/store.h"
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

static double stat_blocks(void *arg)
{
	struct msg_stat st;

	store_stat(arg, &st);
	return (double)st.blocks;
}

static double stat_bytes(void *arg)
{
	struct msg_stat st;

	store_stat(arg, &st);
	return (double)st.bytes;
}

static double stat_capacity(void *arg)
{
	struct msg_stat st;

	store_stat(arg, &st);
	return (double)st.capacity_bytes;
}

static double stat_pool(void *arg)
{
	struct pool_stat st;

	pool_stat(arg, &st);
	return (double)st.used;
}

int counters_gauges(struct metrics *m, struct store *s, struct pool *p)
{
	const struct {
		const char *name, *help;
		double (*fn)(void *arg);
		void *arg;
	} rows[] = {
		{"stoke_cached_blocks", "blocks in the store", stat_blocks, s},
		{"stoke_cached_bytes", "bytes of the cache disks in use for blocks", stat_bytes, s},
		{"stoke_cached_capacity_bytes", "bytes that blocks may use", stat_capacity, s},
		{"stoke_cached_buffer_bytes", "buffer memory in use", stat_pool, p},
	};
	int r = 0;

	for (size_t i = 0; r == 0 && i < ARRAY_LEN(rows); i++)
		r = metrics_callback(m, rows[i].name, "", METRIC_GAUGE, rows[i].help, rows[i].fn,
				     rows[i].arg);
	return r;
}
