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
enum beat_kind {
	BEAT_AGAIN = 0,
	/* This process's first. A member that is there already is joining again, for others served
	 * its keys meanwhile, and with the weight that it had: what that made its own it holds. */
	BEAT_FIRST,
	/* what self says counts, without the rule for new members */
	BEAT_FORCED,
	/* what self says counts only if nobody changed anything since (*io)->version; else it is
	 * only a sign of life */
	BEAT_IF_SAME,
};

struct registry_beat {
	/* in */
	const struct member *self;
	enum beat_kind kind;
	bool slowed; /* the object store told us to slow down since the last beat */
	uint64_t moved,
		to_move; /* blocks: progress of joining or draining, for status; 0, 0: none */
	/* out */
	bool drain;		/* somebody asked this member to leave */
	uint64_t slowed_ago_us; /* since any member was slowed; UINT64_MAX: never */
	unsigned members;
};

/* Joins or refreshes self and brings *io up to
 * date: NULL or the last snapshot goes in (the caller's reference); when the ring version moved
 * that reference is dropped and *io is the newer one; unchanged otherwise. The list of a server
 * that lost it (failed over, emptied) is not believed: callers keep what they have while the
 * members return, 3 s. *ret_gen is the volume's generation now, zeros when there is none. -ENOENT:
 * the volume is gone from the database (the caller keeps its snapshot). -ENOSPC:
 * CLUSTER_MEMBERS_MAX are there. -EINVAL: not member_valid(self).
 *
 * What is registered may differ from self, and is what counts: a new member is joining, or active
 * at once when it is the only one; who lapsed and says that it is active is joining. */
int registry_heartbeat(struct registry *g, uint64_t deadline_us, struct registry_beat *beat,
		       struct cluster **io, struct generation *ret_gen);
/* The same for one who only asks. Once a second: every call, of members or of those who ask, is a
 * sign that the registry lives; after 2 s without one all clocks start again, so a group whose last
 * members died is judged as long as anybody asks. */
int registry_fetch(struct registry *g, uint64_t deadline_us, struct cluster **io,
		   struct generation *ret_gen);
/* io NULL: whatever changed meanwhile. Else only if nobody changed anything since (*io)->version,
 * and *io is brought up to date: who is still in it has to try again. lost: blocks that it could
 * not move */
int registry_leave(struct registry *g, uint64_t deadline_us, const char *id, uint64_t lost,
		   struct cluster **io);
/* asks a member to move what it holds to the others and leave, or takes that back. -ENOENT: no such
 * member */
int registry_wish(struct registry *g, uint64_t deadline_us, const char *id, bool drain);
/* 1: this one, which is no member, moved what it held, but for ret_lost blocks, and left; 0: it
 * went otherwise, or more than a day ago */
int registry_left(struct registry *g, uint64_t deadline_us, const char *id, uint64_t *ret_lost);

struct registry_note {
	bool drain;
	uint64_t moved, to_move;
};
/* all groups of this volume, for status; notes: one a member, in the same order */
typedef void registry_each_fn(const char *group, const struct cluster *c,
			      const struct registry_note *notes, void *arg);
int registry_each(struct redis *r, uint64_t deadline_us, registry_each_fn *fn, void *arg);

#endif
