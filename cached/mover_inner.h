/* SPDX-License-Identifier: Apache-2.0 */
/* The mover's insides: mover.c walks, mover_move.c copies one block. */
#ifndef STOKE_CACHED_MOVER_INNER_H
#define STOKE_CACHED_MOVER_INNER_H

#include "cached/mover.h"
#include "common/workq.h"

struct mover {
	struct mover_conf conf;
	struct workq *copiers;
	pthread_t thread;
	bool threaded;
	struct mtx lock;
	struct cond changed;
	unsigned refs; /* the owner's, and one for each block on its way to the own store */
	bool stop;
	struct mover_goal goal;
	uint64_t goal_nr;     /* grows with each other goal */
	bool done;	      /* in base, for this goal */
	struct cluster *base; /* of the last complete pass */
	uint64_t moved, to_move, limit;
	uint64_t due_us; /* when the next bytes may go */
	/* a pass */
	unsigned out;	     /* blocks handed out */
	unsigned missed;     /* somebody did not answer */
	unsigned refused;    /* or would not take a block, or did not have it any more */
	struct peer *silent; /* who did not answer: not asked again in this pass */
	uint64_t lost;	     /* blocks that nobody would take, when that was given up */
};

/* one block on its way */
struct move {
	struct workq_job job;
	struct mover *m;
	struct block_key key;
	struct peer *peer;
	uint64_t until; /* pull: he has it pinned; 0: no */
	bool push;
};

/* a call of a copier, waited for */
struct asked {
	struct peer_call call;
	struct mover *m;
	bool over;
	int status;
};

/* the call's status, or -ECANCELED: the mover ends */
int mover_ask(struct mover *m, struct peer *p, struct asked *a, bool bulk);
/* waits for room; NULL: none, or the mover ends */
struct buf *mover_memory(struct mover *m, size_t len);
/* sleeps; false: it is time to end */
bool mover_rest_locked(struct mover *m, uint64_t until_us) REQUIRES(m->lock);
void mover_unref(struct mover *m);
void mover_move_run(struct workq_job *job); /* of a struct move, which it frees */

#endif
