/* SPDX-License-Identifier: Apache-2.0 */
/* Who leaves a full cache. Policy only: no I/O, no lock, no clock; the owner embeds an evict_node
 * in what it keeps and serialises the calls.
 *
 * Two policies. SIEVE (Zhang et al., "SIEVE is Simpler than LRU", NSDI 2024): a queue in order of
 * arrival, a bit per node set by a hit, and a hand that walks from the oldest to the newest, clears
 * set bits and takes the first node without one; a hit moves nothing. FIFO: the oldest leaves; for
 * tests. Guests (copies that a successor keeps) always leave before the rest, oldest first. */
#ifndef STOKE_CACHED_EVICT_H
#define STOKE_CACHED_EVICT_H

#include "common/list.h"

struct evict_node {
	struct list_node link;
	bool seen, guest;
};

struct evict;
struct evict_ops {
	const char *name;
	void (*add)(struct evict *e, struct evict_node *n);
	void (*hit)(struct evict *e, struct evict_node *n);
	void (*remove)(struct evict *e, struct evict_node *n);
	struct evict_node *(*victim)(struct evict *e);
	void (*free)(struct evict *e);
};
struct evict {
	const struct evict_ops *ops;
	size_t count;
};

typedef struct evict *evict_new_fn(void);
/* NULL: no memory */
evict_new_fn evict_sieve_new, evict_fifo_new;

/* nodes still inside stay their owner's */
static inline void evict_free(struct evict *e)
{
	if (e)
		e->ops->free(e);
}

/* n comes in as the newest */
static inline void evict_add(struct evict *e, struct evict_node *n, bool guest)
{
	n->seen = false;
	n->guest = guest;
	e->count++;
	e->ops->add(e, n);
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

#endif
