/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel is told to forget, by threads that do nothing else: the kernel may make them
 * wait for locks that are held until one of our answers comes, so no thread that answers may do it
 * (architecture.md, Rules of FUSE). Any thread may call. */
#ifndef STOKE_CLIENT_FUSE_NOTIFY_H
#define STOKE_CLIENT_FUSE_NOTIFY_H

#include "common/list.h"

struct fuse_notify;
struct fuse_session;

/* entries and inodes that wait; what comes when the queue is full is left to the kernel's
 * time-outs, and counted */
enum { FUSE_NOTIFY_MAX = 65536 };

/* the caller's until done has run, in the notify thread, where it may not wait */
struct fuse_note {
	struct list_node link; /* private */
	uint64_t inode;
	bool pages; /* they are forgotten, too; that may take as long as reading one takes */
	void (*done)(struct fuse_note *note);
};

int fuse_notify_new(struct fuse_notify **ret);
int fuse_notify_start(struct fuse_notify *n, struct fuse_session *se);
/* nothing is told to the kernel any more; notes that wait are done, and later ones are at once */
void fuse_notify_stop(struct fuse_notify *n);
/* stopped; NULL is fine */
void fuse_notify_free(struct fuse_notify *n);

/* the inode's attributes, then note->done */
void fuse_notify_note(struct fuse_notify *n, struct fuse_note *note);
/* what a name stands for */
void fuse_notify_entry(struct fuse_notify *n, uint64_t parent, const char *name);
/* the inode's attributes and pages */
void fuse_notify_inode(struct fuse_notify *n, uint64_t inode);
uint64_t fuse_notify_lost(struct fuse_notify *n);

#endif
