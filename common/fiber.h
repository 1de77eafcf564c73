/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that wait without keeping their thread: each has a stack of its own, and while one
 * waits, its thread goes on with others. A thread that answers many questions, each with a short
 * wait for a server in it, so needs no other thread for any of them, and nobody is woken.
 *
 * A fiber stays in its thread. What waits asks here instead of the kernel, and is the same outside
 * of fibers: fiber_poll, fiber_sleep_us, and conditions (common/mtx.h), whose waiting is a look now
 * and then in a fiber. Anything else that takes long keeps the whole thread: fiber_blocks before
 * it. Nothing waits between a change of thread-local state and its use. */
#ifndef STOKE_COMMON_FIBER_H
#define STOKE_COMMON_FIBER_H

#include <poll.h>

#include "common/base.h"

enum { FIBERS_MAX = 24 };

struct fiber;
struct fibers; /* of one thread */

/* blocks: called in a fiber that is going to keep the thread; may be NULL */
int fibers_new(void (*blocks)(void *arg), void *arg, struct fibers **ret);
/* none waits; NULL is fine */
void fibers_free(struct fibers *s);
/* Runs fn until it waits or ends. -EAGAIN: FIBERS_MAX wait, or this is one; -ENOMEM. fn has not
 * begun then. */
int fibers_run(struct fibers *s, void (*fn)(void *arg), void *arg);
/* What the fibers wait for: their number, into ret; and until when the first does (UINT64_MAX: for
 * ever). */
unsigned fibers_fds(struct fibers *s, struct pollfd ret[FIBERS_MAX], uint64_t *ret_until_us);
/* goes on with those of the n that have something, or whose time is over */
void fibers_resume(struct fibers *s, const struct pollfd *fds, unsigned n);

bool fiber_in(void);
/* the fiber that runs; waits until another one of its thread wakes it, maybe for nothing; lets
 * every other one go first */
struct fiber *fiber_self(void);
void fiber_park(void);
void fiber_wake(struct fiber *f);
void fiber_yield(void);
/* poll(2) of one descriptor; timeout_ms is not negative */
int fiber_poll(int fd, short events, int timeout_ms);
void fiber_sleep_us(uint64_t us);
void fiber_blocks(void);

#endif
