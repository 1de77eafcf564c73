/* SPDX-License-Identifier: Apache-2.0 */
/* Hot blocks: how many answers of one block are under way, and whether its owner shall send the
 * next asker to its successor, who gets the block from the owner once and keeps it as a guest. So a
 * block that everybody reads at once leaves from two nodes.
 *
 * Counted by the low bits of the block's digest: two blocks in one slot share their count, which
 * at worst sends somebody to a successor for less. Any thread. */
#ifndef STOKE_CACHED_HOT_H
#define STOKE_CACHED_HOT_H

#include "common/block/cluster.h"

enum { HOT_SLOTS = 1024 };

/* zero at the start; its members are atomic */
struct hot {
	uint32_t under_way[HOT_SLOTS], turn[HOT_SLOTS];
};

void hot_begin(struct hot *h, const struct block_key *k);
void hot_end(struct hot *h, const struct block_key *k);
/* True for every second one while at least share answers of the block are under way, when view
 * names self its owner and has a successor. share 0: never. */
bool hot_send_on(struct hot *h, const struct block_key *k, unsigned share,
		 struct cluster_view *view, const char *self);

#endif
