/* SPDX-License-Identifier: Apache-2.0 */
/* Gauges of a mount: rows of client/metrics.def that are not counted but asked for. */
#ifndef STOKE_CLIENT_MOUNT_GAUGES_H
#define STOKE_CLIENT_MOUNT_GAUGES_H

#include "client/vfs.h"
#include "common/block/cluster.h"

/* where the values are; writer may be NULL */
struct mount_gauges {
	struct metrics *metrics;
	struct pool *pool;
	struct vfs *vfs;
	struct writer *writer;
	struct workq *metaq;
	struct cluster_view *view;
	uint64_t started_us;
};

/* g and what it points at must live until the last printing. 0 or -ENOMEM */
int mount_gauges_add(struct mount_gauges *g);

#endif
