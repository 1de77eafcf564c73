/* SPDX-License-Identifier: Apache-2.0 */
/* This daemon in the registry: a thread that says every second that it lives, keeps the snapshot of
 * the group current, takes the member through joining and draining, and notices when the volume
 * becomes another one. Without a group it only looks at the volume's generation; a consumer only
 * follows the group. */
#ifndef STOKE_CACHED_MEMBER_H
#define STOKE_CACHED_MEMBER_H

#include "cached/mover.h"
#include "common/block/registry.h"

struct membership;

struct member_conf {
	struct redis *redis;
	const char *group; /* NULL: no group */
	bool consumer;	   /* never a member */
	bool join_now;	   /* active at once, without what the others hold */
	struct member self;
	struct counters *counters; /* NULL: nothing is counted */
	struct cluster_view *view;
	struct mover *mover;	      /* NULL: nothing is copied */
	struct generation generation; /* of the volume, now */
	/* on the member thread, which may block: the volume has another generation; every second */
	void (*moved)(void *arg, const struct generation *generation);
	void (*tick)(void *arg);
	/* before a heartbeat: was this member told to slow down since the last; after it: what the
	 * registry said. May be NULL */
	bool (*slowed)(void *arg);
	void (*beaten)(void *arg, const struct registry_beat *beat);
	void *arg;
};

/* Joins (blocks, at most deadline_us) and starts the thread. 0 or -errno of the registry */
int membership_start(const struct member_conf *conf, uint64_t deadline_us, struct membership **ret);
/* look now: what was to be copied is copied. Any thread */
void membership_wake(struct membership *m);
/* ends the thread and takes the member out of the registry; NULL is fine. The mover is stopped
 * before */
void membership_stop(struct membership *m);
/* The same, but the member stays in the registry: its next process goes on where this one ends. */
void membership_hand_over(struct membership *m);

#endif
