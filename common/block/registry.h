/* SPDX-License-Identifier: Apache-2.0 */
/* The member list in the volume's Redis, private keys below `_group:{name}:` (after the volume's key prefix): one hash of members, one sorted set by
 * ring version, judged by member.lua inside the heartbeat with Redis's own clock. Keys exist only while `setting` does. Calls block. */
#ifndef STOKE_COMMON_BLOCK_REGISTRY_H
#define STOKE_COMMON_BLOCK_REGISTRY_H

#include "common/block/cluster.h"
#include "common/block/setting.h"
#include "common/redis.h"

struct registry;

enum { REGISTRY_HEARTBEAT_US = 1000000, REGISTRY_LAPSE_US = 5000000 };

int registry_new(struct redis *r, const char *group, struct registry **ret);
void registry_free(struct registry *g);
/* Joins or refreshes self (joined anew when address, weight or state changed) and brings *io up to date: NULL or the last snapshot goes in, the newer one
 * comes out (a reference) when the ring version moved; unchanged otherwise. *ret_gen is the volume's generation now.
 * -ENOENT: the volume is gone from the database (the caller keeps its snapshot). */
int registry_heartbeat(struct registry *g, uint64_t deadline_us, const struct member *self, struct cluster **io, struct generation *ret_gen);
/* the same for one who only asks */
int registry_fetch(struct registry *g, uint64_t deadline_us, struct cluster **io, struct generation *ret_gen);
int registry_leave(struct registry *g, uint64_t deadline_us, const char *id);
/* all groups of this volume, for status: fn(name, cluster, arg) */
int registry_each(struct redis *r, uint64_t deadline_us, void (*fn)(const char *group, const struct cluster *c, void *arg), void *arg);

#endif
