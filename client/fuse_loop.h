/* SPDX-License-Identifier: Apache-2.0 */
/* The FUSE session: own receive threads, INIT's edit, the end. With fuse_ops.c and cmd_mount.c the
 * only files that know libfuse.
 *
 * A receive thread reads a request into its buffer and runs its handler: it replies, or hands the
 * request over. What waits for an answer of Redis waits as a fiber (fuse_loop_run): the thread goes
 * on, so reads, writes, forgets and interrupts are always received. A handler that needs the
 * buffer's bytes longer (a write that must wait for memory) keeps it with fuse_loop_hold; the
 * thread goes on with another one. How many are held is bounded by the kernel: one for each task
 * that is writing. */
#ifndef STOKE_CLIENT_FUSE_LOOP_H
#define STOKE_CLIENT_FUSE_LOOP_H

#include "common/str.h"

struct fuse_loop;
struct fuse_lowlevel_ops;
struct fuse_buffer;

struct fuse_loop_conf {
	const struct fuse_lowlevel_ops *ops;
	size_t ops_size;
	void *userdata;
	const char *mount_point;    /* kept by pointer */
	const char *options;	    /* for mount(2): "fsname=…,subtype=stoke,…" */
	struct fuse_notify *notify; /* runs as long as the threads do */
	unsigned threads;	    /* 0: 8, or as many as cores up to 16 */
	/* one of the receive threads has ended because the file system was unmounted; any thread */
	void (*ended)(void *arg);
	void *arg;
};

enum { FUSE_LOOP_IO_MAX = 1 << 20 };

/* mounts; 0 or -errno with err set. Nothing is answered before fuse_loop_start. */
int fuse_loop_new(const struct fuse_loop_conf *conf, struct fuse_loop **ret, struct str *err);
int fuse_loop_start(struct fuse_loop *l);
/* No handler runs after it returns; requests that were handed over may still be answered. */
void fuse_loop_stop(struct fuse_loop *l);
/* Unmounts if it still is mounted, closes the connection, frees. Every request was answered. NULL
 * is fine. */
void fuse_loop_free(struct fuse_loop *l);

/* in a handler of create: it is for a file without a name (O_TMPFILE) */
bool fuse_loop_tmpfile(void);
/* in a handler: keeps the bytes of the request that is being handled until fuse_loop_release */
struct fuse_buffer *fuse_loop_hold(void);
void fuse_loop_release(struct fuse_buffer *b);

/* In a handler: runs fn in this thread, which goes on with other requests while fn waits. false: it
 * has not begun: too many others wait, or this is no thread of a loop, or not a handler's own
 * stack. */
bool fuse_loop_run(void (*fn)(void *arg), void *arg);

#endif
