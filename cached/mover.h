/* SPDX-License-Identifier: Apache-2.0 */
/* Copies blocks when the group changes, so that no change of members makes anybody ask the object
 * store for what a member has. A thread that walks, and a few that copy; it never waits for Redis.
 *
 * The rules (cluster.h has what a path is; by them, a block that the group has is on its path):
 *
 *	pull	Before a member becomes active, its point cuts off what lies behind it on each path
 *		that it is on. So it asks everybody (LIST) for what they hold of those keys, and
 *		gets it from them (GET with NO_FILL: never from the object store).
 *	push	Before a member leaves, or has a smaller weight, it is draining: it gets nothing
 *		new. Then it tells (FILL) the end of each path that it drops out of, the active
 *		member there, to get the block: from it.
 *
 *	joining -> active			when all is pulled
 *	active -> joining			at once: after a start, with a larger weight
 *	joining, active -> draining		at once: to leave, to have a smaller weight
 *	draining -> gone, joining (smaller)	when all is pushed
 *	draining -> joining			at once: it stays after all
 *
 * What was done holds as long as nobody else did what undoes it (mover_holds); the registry lets a
 * member become active or drop out of paths only as long as nothing changed that it has not
 * seen. */
#ifndef STOKE_CACHED_MOVER_H
#define STOKE_CACHED_MOVER_H

#include "cached/counters.h"
#include "cached/store.h"
#include "common/block/peer.h"

struct mover;

struct mover_conf { /* all of it outlives the mover */
	struct req_env *env;
	struct source *chain;
	struct store *store;
	struct peers *peers;
	struct cluster_view *view;
	const char *self; /* own member id */
	uint64_t limit;	  /* bytes a second, both ways together; 0: none */
	struct counters *counters;
	uint64_t patience_us;	 /* with those who will not take our blocks; 0: minutes */
	void (*done)(void *arg); /* on the mover's thread, no lock held: look at mover_done */
	void *arg;
};

enum mover_task { MOVER_PULL = 1, MOVER_PUSH = 2 };

/* what has to be copied before what; tasks 0: nothing */
struct mover_goal {
	unsigned tasks;	 /* one of them, or 0 */
	uint32_t weight; /* the one that it will have */
	bool leave;
	/* A pass that began before may have missed what came by those who did not know of us yet */
	uint64_t since_us;
};

int mover_new(const struct mover_conf *conf, struct mover **ret);
/* from here on nothing is copied and done is not called; waits for its threads */
void mover_stop(struct mover *m);
/* NULL is fine. A block that it gave to the chain may still be on its way there */
void mover_free(struct mover *m);
/* Any thread. Starts what is not done yet, and leaves alone what is under way for the same goal */
void mover_set(struct mover *m, const struct mover_goal *goal);
/* the goal's tasks are done, and hold in this snapshot; else they are done anew */
bool mover_done(struct mover *m, const struct cluster *now);
/* blocks of the present goal; to_move grows while they are found */
void mover_progress(struct mover *m, uint64_t *ret_moved, uint64_t *ret_to_move);
/* once it is done: blocks that nobody would take */
uint64_t mover_lost(struct mover *m);
void mover_set_limit(struct mover *m, uint64_t bytes);

/* what was done for these tasks in base still holds in now, which came from it by cluster_next.
 * Pure */
bool mover_holds(const struct cluster *base, const struct cluster *now, const char *self,
		 unsigned tasks);
/* The snapshot that the goal leads to: self active with that weight, or gone. A reference, NULL: no
 * memory. Pure */
struct cluster *mover_target(const struct cluster *base, const char *self,
			     const struct mover_goal *goal);
/* Who has to get a block of this key from self before base becomes target: a member's index in
 * base, or -1: nobody. Pure */
int mover_heir(const struct cluster *base, const struct cluster *target, const char *self,
	       const struct block_key *k);

/* The turn that a member takes at once, which needs no copying: true and what it says of itself
 * then. weight: the one that it is to have. Pure */
bool mover_turn(const struct member *self, uint32_t weight, bool leave, struct member *ret);
/* what it has to copy, when there is no such turn; since_us is left 0. Pure */
struct mover_goal mover_choose(const struct member *self, uint32_t weight, bool leave);
/* what it is when that is done, unless it leaves. Pure */
struct member mover_next(const struct member *self, const struct mover_goal *goal);

#endif
