/* SPDX-License-Identifier: Apache-2.0 */
/* Intrusive hash table with chains. The thread (or lock) is the owner's.
 *
 * Invariants: slots is a power of two; count is the number of nodes in all chains; a node hangs in
 * slot[mix(hash) & (slots - 1)]. */
#include "common/hashmap.h"

enum { HASHMAP_MIN_SLOTS = 8 };

/* owners may give plain numbers (inodes) as hashes: spread them (Fibonacci hashing) */
static size_t slot_of(const struct hashmap *m, uint64_t hash)
{
	return (size_t)((hash * 0x9e3779b97f4a7c15ULL) >> 32) & (m->slots - 1);
}

int hashmap_init(struct hashmap *m, size_t min_slots)
{
	size_t slots = HASHMAP_MIN_SLOTS;

	while (slots < min_slots && slots < SIZE_MAX / 2 / sizeof(struct hash_node *))
		slots *= 2;
	m->slot = calloc(slots, sizeof(struct hash_node *));
	if (!m->slot)
		return -ENOMEM;
	m->slots = slots;
	m->count = 0;
	return 0;
}

void hashmap_fini(struct hashmap *m)
{
	free(m->slot);
	*m = (struct hashmap){0};
}

static void hashmap_grow(struct hashmap *m)
{
	struct hashmap bigger = {.slots = m->slots * 2};

	bigger.slot = calloc(bigger.slots, sizeof(struct hash_node *));
	if (!bigger.slot)
		return; /* longer chains still find everything */
	for (size_t i = 0; i < m->slots; i++) {
		while (m->slot[i]) {
			struct hash_node *n = m->slot[i];
			size_t to = slot_of(&bigger, n->hash);

			m->slot[i] = n->next;
			n->next = bigger.slot[to];
			bigger.slot[to] = n;
		}
	}
	free(m->slot);
	m->slot = bigger.slot;
	m->slots = bigger.slots;
}

void hashmap_add(struct hashmap *m, struct hash_node *n, uint64_t hash)
{
	size_t at;

	/* slot_of gives 32 bits: a table beyond that would not spread further */
	if (m->count >= m->slots && m->slots < (size_t)1 << 31)
		hashmap_grow(m);
	at = slot_of(m, hash);
	n->hash = hash;
	n->next = m->slot[at];
	m->slot[at] = n;
	m->count++;
}

struct hash_node *hashmap_find(const struct hashmap *m, uint64_t hash, hash_eq_fn *eq,
			       const void *key)
{
	struct hash_node *n;

	for (n = m->slot[slot_of(m, hash)]; n; n = n->next)
		if (n->hash == hash && eq(n, key))
			return n;
	return NULL;
}

void hashmap_del(struct hashmap *m, struct hash_node *n)
{
	struct hash_node **at = &m->slot[slot_of(m, n->hash)];

	while (*at != n) {
		assert(*at); /* n must be in m */
		at = &(*at)->next;
	}
	*at = n->next;
	n->next = NULL;
	m->count--;
}

void hashmap_each(struct hashmap *m, bool (*fn)(struct hash_node *n, void *arg), void *arg)
{
	for (size_t i = 0; i < m->slots; i++) {
		struct hash_node *n, *next;

		for (n = m->slot[i]; n; n = next) {
			next = n->next;
			if (!fn(n, arg))
				return;
		}
	}
}

static uint32_t reversed(uint32_t v)
{
	uint32_t r = 0;

	for (unsigned i = 0; i < 32; i++, v >>= 1)
		r = r << 1 | (v & 1);
	return r;
}

/* Slots are visited in the order of their numbers read backwards: a table that doubles splits
 * slot i into i and i + slots, which are neighbours in this order, so what was visited stays
 * visited. */
struct hash_node *hashmap_step(const struct hashmap *m, uint32_t *io_at)
{
	uint32_t mask = (uint32_t)(m->slots - 1), at = *io_at & mask;

	*io_at = reversed(reversed(at | ~mask) + 1);
	return m->slot[at];
}
