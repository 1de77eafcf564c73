/* SPDX-License-Identifier: Apache-2.0 */
/* Consistent hashing, pure. A member of weight w has points in proportion to its weight (1 000 at
 * weight 100); a point's place is hash64(member id ‖ "#" ‖ number). A key belongs to the first
 * point at or after its hash. Immutable and counted; 10 bytes a point, and an index of 1. */
#ifndef STOKE_COMMON_RING_H
#define STOKE_COMMON_RING_H

#include "common/base.h"

struct ring;
struct ring_node {
	const char *id;
	uint32_t weight; /* 0: no points */
};

enum { RING_WEIGHT_UNIT = 100, RING_POINTS_PER_UNIT = 1000 };
#define RING_NONE UINT32_MAX

/* Copies what it needs; nodes are known by their index afterwards. Same ids and weights give the
 * same ring whatever their order. Above 4 000 000 points weights are scaled down. 0, -ENOMEM,
 * -EINVAL (above 10 000 nodes) */
int ring_new(const struct ring_node *nodes, size_t n, struct ring **ret);
/* The same ring, made out of an old one in less time: from[i] is the index that nodes[i] had there
 * with the same id and weight, or RING_NONE. */
int ring_derive(const struct ring *old, const uint32_t *from, const struct ring_node *nodes,
		size_t n, struct ring **ret);
struct ring *ring_ref(struct ring *r);
void ring_free(struct ring *r); /* drops a reference; NULL is fine */
/* up to max distinct nodes for the key, owner first, then successors in ring order; returns how
 * many (0 on an empty ring) */
size_t ring_find(const struct ring *r, uint64_t key_hash, uint32_t *ret_nodes, size_t max);
/* A walk along all points from the key's on, for who skips nodes himself: at most ring_points
 * steps. */
size_t ring_points(const struct ring *r);
size_t ring_start(const struct ring *r, uint64_t key_hash);
/* the node of this point; moves on to the next. Not on an empty ring */
uint32_t ring_step(const struct ring *r, size_t *io_at);

#endif
