/* SPDX-License-Identifier: Apache-2.0 */
/* Values of a mount that are asked for when the metrics are printed: by a reader of .stats or of
 * /metrics, on any thread. */
#include "client/mount_gauges.h"

#include "client/mount_text.h"
#include "common/clock.h"

static double uptime(void *arg)
{
	struct mount_gauges *g = arg;

	return (double)(clock_us() - g->started_us) / 1e6;
}

static double pool_used(void *arg)
{
	struct pool_stat st;

	pool_stat(((struct mount_gauges *)arg)->pool, &st);
	return (double)st.used;
}

static double pool_budget(void *arg)
{
	struct pool_stat st;

	pool_stat(((struct mount_gauges *)arg)->pool, &st);
	return (double)st.budget;
}

static double pool_peak(void *arg)
{
	struct pool_stat st;

	pool_stat(((struct mount_gauges *)arg)->pool, &st);
	return (double)st.peak;
}

static double pool_waiting(void *arg)
{
	struct pool_stat st;

	pool_stat(((struct mount_gauges *)arg)->pool, &st);
	return st.waiting;
}

static double dirty_bytes(void *arg)
{
	struct mount_gauges *g = arg;
	uint64_t bytes = 0;
	unsigned files;

	if (g->writer)
		writer_stat(g->writer, &bytes, &files);
	return (double)bytes;
}

static double dirty_files(void *arg)
{
	struct mount_gauges *g = arg;
	uint64_t bytes;
	unsigned files = 0;

	if (g->writer)
		writer_stat(g->writer, &bytes, &files);
	return files;
}

static double handles(void *arg)
{
	return (double)vfs_open_handles(((struct mount_gauges *)arg)->vfs);
}

static double waiting(void *arg)
{
	return workq_waiting(((struct mount_gauges *)arg)->metaq);
}

static double group_members(void *arg)
{
	struct cluster *c = cluster_view_get(((struct mount_gauges *)arg)->view);
	double n = c ? (double)c->n : 0;

	cluster_unref(c);
	return n;
}

static double group_version(void *arg)
{
	struct cluster *c = cluster_view_get(((struct mount_gauges *)arg)->view);
	double n = c ? (double)c->version : 0;

	cluster_unref(c);
	return n;
}

int mount_gauges_add(struct mount_gauges *g)
{
	static const struct {
		const char *name;
		double (*fn)(void *arg);
	} gauges[] = {
		{"stoke_uptime_seconds", uptime},	  {"stoke_pool_used_bytes", pool_used},
		{"stoke_pool_budget_bytes", pool_budget}, {"stoke_pool_peak_bytes", pool_peak},
		{"stoke_pool_waiting", pool_waiting},	  {"stoke_dirty_bytes", dirty_bytes},
		{"stoke_dirty_files", dirty_files},	  {"stoke_fuse_handles", handles},
		{"stoke_fuse_waiting", waiting},	  {"stoke_group_members", group_members},
		{"stoke_group_version", group_version},
	};
	int r = 0;

	for (size_t i = 0; i < ARRAY_LEN(gauges) && r == 0; i++)
		r = metrics_callback(g->metrics, gauges[i].name, "", METRIC_GAUGE,
				     mount_metric_help(gauges[i].name), gauges[i].fn, g);
	return r;
}
