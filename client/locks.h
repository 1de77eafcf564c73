/* SPDX-License-Identifier: Apache-2.0 */
/* The locks that this mount holds, and those who wait for one. Owners are the kernel's, made
 * different by kind: a flock's belongs to an open file, a record lock's to a process or (OFD) an
 * open file.
 *
 * Nobody tells a client that a lock is free, so waiting is asking again: one thread asks for all
 * who wait, each after 1 ms, then less and less often, up to 50 ms (more when very many wait); an
 * unlock by this mount makes those of its file due at once. */
#ifndef STOKE_CLIENT_LOCKS_H
#define STOKE_CLIENT_LOCKS_H

#include "client/meta/meta.h"
#include "common/list.h"

struct locks;
struct lock_holder;

/* one request; of its asker, who keeps it until done */
struct lock_req {
	uint64_t inode, owner, handle; /* handle: number of the open file it came through */
	bool flock;
	struct meta_lock lock; /* flock: only the type counts */
	/* locks_wait: any thread, once. status: 0, negative errno, or LOCK_GONE: locks_cancel has
	 * told the asker already, this is only the end. */
	void (*done)(struct lock_req *q, int status);
	/* private */
	struct list_node link;
	struct lock_holder *holder;
	enum { LOCK_NEW, LOCK_WAITING, LOCK_ASKING, LOCK_OVER } state;
	bool cancelled;
	uint64_t due_us, pause_us;
};
enum { LOCK_GONE = 1 };

int locks_new(struct meta *m, struct locks **ret);
/* every waiter ends with -ENOTCONN (the kernel takes -EINTR for "ask again" and nobody does); none
 * can begin afterwards */
void locks_stop(struct locks *l);
/* stopped, and no call under way; NULL is fine. What is still held ends with the session. */
void locks_free(struct locks *l);

/* Blocks: asks once. -EAGAIN: another owner has it; with wait, locks_wait or locks_cancel must
 * follow then. */
int locks_set(struct locks *l, struct lock_req *q, bool wait);
/* after locks_set said -EAGAIN; does not block. false: q was cancelled before, and has ended. */
bool locks_wait(struct locks *l, struct lock_req *q);
enum lock_cancel {
	CANCEL_LATE, /* it was decided: done runs or ran */
	CANCEL_LEFT, /* it is cancelled; its end (done, or locks_wait's false) is still to come */
	CANCEL_ENDED /* it is cancelled, and nobody touches q any more */
};
/* does not block; q has been to locks_set and done has not returned */
enum lock_cancel locks_cancel(struct locks *l, struct lock_req *q);

/* the owner has record locks in the file; does not block */
bool locks_held(struct locks *l, uint64_t inode, uint64_t owner);
/* Block: the end of an owner's record locks in a file (close), of all that came through an open
 * file (its last close). What cannot be told to the volume now is told later. */
void locks_close(struct locks *l, uint64_t inode, uint64_t owner);
void locks_release(struct locks *l, uint64_t handle);

/* for tests: waiters now, and owners of which anything is known */
void locks_count(struct locks *l, size_t *ret_waiters, size_t *ret_holders);

#endif
