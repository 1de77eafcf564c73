/* SPDX-License-Identifier: Apache-2.0 */
/* One bounded pool of page-aligned buffers. "Reserve, then ask": bytes are taken from the budget in
 * one step before a request leaves, and turned into buffers later, which then cannot fail for want
 * of budget. Thread-safe; its lock is a leaf.
 *
 * Classes: demand > upload > prefetch. Each has a reserved minimum (one block) that the others
 * cannot take; prefetch never waits. Waiters of a class are served first in first out,
 * demand before upload. */
#ifndef STOKE_COMMON_POOL_H
#define STOKE_COMMON_POOL_H

#include "common/list.h"

struct pool;

enum pool_class { POOL_DEMAND, POOL_UPLOAD, POOL_PREFETCH, POOL_CLASSES };

struct buf {
	struct pool *pool;
	unsigned char *mem;
	size_t cap;
	unsigned refs;
	enum pool_class klass;
	struct list_node free_link, age_link;
};

struct pool_wait {
	struct list_node link;
	enum pool_class klass;
	size_t bytes;
	bool queued; /* these four are the pool's */
	/* the bytes are reserved now; runs without locks on the thread that freed them */
	void (*fn)(struct pool_wait *w);
};

/* block: the largest single buffer anyone will ask for, in bytes; budget must be at least four of
 * them, else -EINVAL */
int pool_new(size_t budget, size_t block, struct pool **ret);
/* everything must be back */
void pool_free(struct pool *p);
/* what a buffer of len bytes costs */
size_t pool_cost(size_t len);
/* 0: bytes (a sum of pool_cost) are reserved. -EAGAIN: not now; w is queued and w->fn will be
 * called with the bytes reserved, by any thread, maybe before this returns: w and its owner may be
 * gone then. -ENOBUFS: not now, and nothing was queued (class prefetch, or w is NULL). -EMSGSIZE:
 * more than the pool can ever give. */
int pool_reserve(struct pool *p, enum pool_class klass, size_t bytes, struct pool_wait *w);
/* a queued waiter is taken back; false when its fn ran or is about to run */
bool pool_cancel(struct pool *p, struct pool_wait *w);
/* klass here and below: the one the bytes were reserved for */
void pool_unreserve(struct pool *p, enum pool_class klass, size_t bytes);
/* a buffer of at least len bytes, one reference, paid from *reserved (less by pool_cost(len)
 * afterwards). NULL only when the machine has no memory left: then *reserved is unchanged. Contents
 * are undefined. */
struct buf *pool_take(struct pool *p, enum pool_class klass, size_t len, size_t *reserved);
struct buf *buf_ref(struct buf *b);
/* the last reference gives memory and budget back, and may run waiters */
void buf_unref(struct buf *b);
/* called without locks, before anyone waits or is refused, with the bytes that are missing: the
 * cache of blocks in memory gives up its oldest. One owner, set before the pool is used. */
void pool_set_reclaim(struct pool *p, void (*fn)(void *arg, size_t bytes), void *arg);
/* Somebody waits for memory. Who keeps buffers that he could give up (the cache of blocks in
 * memory) asks after each one that he has kept, and if so gives up his oldest until it is false or
 * he has none: else a waiter could wait for ever for what was kept after he asked. */
bool pool_pressed(struct pool *p);

struct pool_stat {
	size_t budget, used, peak;
	unsigned waiting;
	uint64_t waited, refused;
};
void pool_stat(struct pool *p, struct pool_stat *ret);

#endif
