/* SPDX-License-Identifier: Apache-2.0 */
/* This daemon in the registry: a thread that says every second that it lives, keeps the snapshot of
 * the group current, and notices when the volume becomes another one. Without a group it only looks
 * at the volume's generation. */
#ifndef STOKE_CACHED_MEMBER_H
#define STOKE_CACHED_MEMBER_H

#include "common/block/registry.h"

struct membership;

struct member_conf {
	struct redis *redis;
	const char *group; /* NULL: no group */
	struct member self;
	struct cluster_view *view;
	struct generation generation; /* of the volume, now */
	/* on the member thread, which may block: the volume has another generation; every second */
	void (*moved)(void *arg, const struct generation *generation);
	void (*tick)(void *arg);
	void *arg;
};

/* Joins (blocks, at most deadline_us) and starts the thread. 0 or -errno of the registry */
int membership_start(const struct member_conf *conf, uint64_t deadline_us, struct membership **ret);
/* ends the thread and takes the member out of the registry; NULL is fine */
void membership_stop(struct membership *m);

#endif
