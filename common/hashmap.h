/* SPDX-License-Identifier: Apache-2.0 */
/* Intrusive hash table: the owner embeds a hash_node, gives its 64-bit hash, and compares keys
 * itself. Not locked. */
#ifndef STOKE_COMMON_HASHMAP_H
#define STOKE_COMMON_HASHMAP_H

#include "common/base.h"

struct hash_node {
	struct hash_node *next;
	uint64_t hash;
};
struct hashmap {
	struct hash_node **slot;
	size_t slots, count;
};
typedef bool hash_eq_fn(const struct hash_node *n, const void *key);

/* 0 or -ENOMEM. min_slots is a hint; the table doubles as it fills (a failed doubling only makes
 * chains longer). */
int hashmap_init(struct hashmap *m, size_t min_slots);
/* frees the slots, not the nodes */
void hashmap_fini(struct hashmap *m);
/* n must not be in a table; its hash is set here */
void hashmap_add(struct hashmap *m, struct hash_node *n, uint64_t hash);
/* NULL when no node has this hash and eq(node, key) */
struct hash_node *hashmap_find(const struct hashmap *m, uint64_t hash, hash_eq_fn *eq,
			       const void *key);
/* n must be in m */
void hashmap_del(struct hashmap *m, struct hash_node *n);
/* walks all nodes; fn may delete the node it is given from m. Stops when fn returns false. */
void hashmap_each(struct hashmap *m, bool (*fn)(struct hash_node *n, void *arg), void *arg);
/* One chain of a walk in steps, between which nodes may come and go and the table may grow: a node
 * that stays is met at least once. *io_at is 0 at first, and 0 again behind the last chain. Returns
 * the chain's first node, or NULL when it is empty. */
struct hash_node *hashmap_step(const struct hashmap *m, uint32_t *io_at);

#endif
