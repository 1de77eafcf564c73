/* SPDX-License-Identifier: Apache-2.0 */
/* Who leaves a full cache, and who comes in. Policy only: no I/O, no lock, no clock; the owner
 * embeds an evict_node in what it keeps and serialises the calls.
 *
 * Training reads each block once an epoch, in another order each time. When the data set is larger
 * than the cache, whoever replaces blocks replaces ones that were not read yet this epoch by ones
 * that were: LRU gets nothing out of it, SIEVE and S3-FIFO part. So a block that comes back as
 * seldom as those that are kept is not let in while those are alive: the cache holds a stable part
 * of the data set, hits as often as it is large, and writes nothing (docs/store.md has the table).
 * What is asked for explicitly (a warm-up) always comes in, and pushes out what was used longest
 * ago. Guests (copies that a successor keeps) leave before the rest, oldest first. */
#ifndef STOKE_CACHED_EVICT_H
#define STOKE_CACHED_EVICT_H

#include "common/list.h"

enum evict_kind {
	EVICT_READ,  /* somebody read it */
	EVICT_WRITE, /* somebody wrote it: may never be read */
	EVICT_ASKED, /* somebody wants it here */
	EVICT_GUEST  /* another's */
};

struct evict_node {
	struct list_node link;
	uint32_t used; /* the policy's: time of the last use */
	uint32_t tag;  /* of the digest */
	uint8_t queue; /* the policy's */
};

struct evict;
typedef void evict_each_fn(struct evict_node *n, enum evict_kind kind, void *arg);
struct evict_ops {
	const char *name;
	bool (*admit)(struct evict *e, uint32_t tag);
	void (*add)(struct evict *e, struct evict_node *n, enum evict_kind kind);
	void (*hit)(struct evict *e, struct evict_node *n);
	void (*remove)(struct evict *e, struct evict_node *n);
	struct evict_node *(*victim)(struct evict *e);
	void (*free)(struct evict *e);
	void (*each)(struct evict *e, evict_each_fn *fn, void *arg);
};
struct evict {
	const struct evict_ops *ops;
	size_t count;
};

typedef struct evict *evict_new_fn(void);
/* NULL: no memory */
evict_new_fn evict_loop_new;

/* nodes still inside stay their owner's */
static inline void evict_free(struct evict *e)
{
	if (e)
		e->ops->free(e);
}

/* A block was read that is not inside: shall it come in? Asked once a read, for EVICT_READ
 * alone. */
static inline bool evict_admit(struct evict *e, uint64_t digest)
{
	return e->ops->admit(e, (uint32_t)digest);
}

/* n comes in */
static inline void evict_add(struct evict *e, struct evict_node *n, uint64_t digest,
			     enum evict_kind kind)
{
	n->tag = (uint32_t)digest;
	n->queue = 0;
	e->count++;
	e->ops->add(e, n, kind);
}

/* n, which is inside, was used */
static inline void evict_hit(struct evict *e, struct evict_node *n)
{
	e->ops->hit(e, n);
}

static inline void evict_remove(struct evict *e, struct evict_node *n)
{
	assert(e->count > 0);
	e->count--;
	e->ops->remove(e, n);
}

/* the node that leaves, taken out; NULL when there is none */
static inline struct evict_node *evict_victim(struct evict *e)
{
	struct evict_node *n = e->ops->victim(e);

	assert(!n == !e->count);
	if (n)
		evict_remove(e, n);
	return n;
}

/* All that are inside, in an order and each as a kind in which another policy, that they come into,
 * would let them leave in the same order. fn changes nothing. */
static inline void evict_each(struct evict *e, evict_each_fn *fn, void *arg)
{
	e->ops->each(e, fn, arg);
}

#endif
