/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the receive threads waits for the kernel's next request. One at a time has the turn; the
 * others that have nothing to do are parked. Were they all to read, the kernel would wake each in
 * its turn, every request a thread that has slept longest, whose core and caches are cold (seen: a
 * request costs three times as much with eight such threads as with one).
 *
 * Who has the turn keeps it while it handles what it received, if that is short, and while its
 * fibers wait (common/fiber.h); it gives it up before anything that takes long. */
#ifndef STOKE_CLIENT_FUSE_TURN_H
#define STOKE_CLIENT_FUSE_TURN_H

#include <semaphore.h>

#include "common/fiber.h"
#include "common/spin.h"

enum { FUSE_TURN_THREADS_MAX = 32 };

struct fuse_turn {
	int fd;	   /* the session's; not blocking */
	int freed; /* eventfd: nobody has the turn, look at state */
	struct spin spin;
	uint64_t state; /* atomic: see fuse_turn.c */
	sem_t parked[FUSE_TURN_THREADS_MAX];
};

/* 0 or -errno; fd is set before the threads start */
int fuse_turn_init(struct fuse_turn *t);
void fuse_turn_fini(struct fuse_turn *t);
/* In the thread of that number, when there was nothing to read: goes on with its fibers, and
 * returns when there may be something to read, or after a signal. */
void fuse_turn_wait(struct fuse_turn *t, unsigned number, struct fibers *f);
/* goes on with those of the fibers that can: now and then when there is much to read */
void fuse_turn_fibers(struct fibers *f);
/* until none waits */
void fuse_turn_drain(struct fibers *f);
/* another thread has the turn now, if this one had it */
void fuse_turn_leave(struct fuse_turn *t);

#endif
