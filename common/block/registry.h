/* SPDX-License-Identifier: Apache-2.0 */
/* The member list in the volume's Redis, private keys below `_group:{name}:` (after the volume's
 * key prefix): one hash of members, one sorted set by ring version (members that left stay in it),
 * judged by member.lua inside the heartbeat with Redis's own clock. Keys exist only while `setting`
 * does. Calls block. */
#ifndef STOKE_COMMON_BLOCK_REGISTRY_H
#define STOKE_COMMON_BLOCK_REGISTRY_H

#include "common/block/cluster.h"
#include "common/block/setting.h"
#include "common/redis.h"

struct registry;

enum { REGISTRY_HEARTBEAT_US = 1000000, REGISTRY_LAPSE_US = 5000000 };

/* group: 1 to MSG_NAME_MAX printable bytes without blanks, else -EINVAL; r is kept by pointer */
int registry_new(struct redis *r, const char *group, struct registry **ret);
void registry_free(struct registry *g);
/* Joins or refreshes self (joined anew when address, weight or state changed) and brings *io up to
 * date: NULL or the last snapshot goes in (the caller's reference); when the ring version moved
 * that reference is dropped and *io is the newer one; unchanged otherwise. The list of a server
 * that lost it (failed over, emptied) is not believed: callers keep what they have while the
 * members return, 3 s. *ret_gen is the volume's generation now, zeros when there is none. -ENOENT:
 * the volume is gone from the database (the caller keeps its snapshot). -ENOSPC:
 * CLUSTER_MEMBERS_MAX are there. -EINVAL: not member_valid(self). */
int registry_heartbeat(struct registry *g, uint64_t deadline_us, const struct member *self,
		       struct cluster **io, struct generation *ret_gen);
/* The same for one who only asks. Once a second: every call, of members or of those who ask, is a
 * sign that the registry lives; after 2 s without one all clocks start again, so a group whose last
 * members died is judged as long as anybody asks. */
int registry_fetch(struct registry *g, uint64_t deadline_us, struct cluster **io,
		   struct generation *ret_gen);
int registry_leave(struct registry *g, uint64_t deadline_us, const char *id);
/* all groups of this volume, for status: fn(name, cluster, arg) */
int registry_each(struct redis *r, uint64_t deadline_us,
		  void (*fn)(const char *group, const struct cluster *c, void *arg), void *arg);

#endif
