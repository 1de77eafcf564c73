/* SPDX-License-Identifier: Apache-2.0 */
/* Counts of answers under way, by block (hot.h). Any thread, no lock. */
#include "cached/hot.h"

static unsigned slot_of(const struct block_key *k)
{
	return (unsigned)(k->digest % HOT_SLOTS);
}

void hot_begin(struct hot *h, const struct block_key *k)
{
	__atomic_fetch_add(&h->under_way[slot_of(k)], 1, __ATOMIC_RELAXED);
}

void hot_end(struct hot *h, const struct block_key *k)
{
	uint32_t before = __atomic_fetch_sub(&h->under_way[slot_of(k)], 1, __ATOMIC_RELAXED);

	assert(before > 0);
	(void)before;
}

static bool is_owner_of_two(const struct block_key *k, struct cluster_view *view, const char *self)
{
	struct cluster *c = view ? cluster_view_get(view) : NULL;
	uint32_t m[2];
	bool yes = c && cluster_find(c, k, m, 2) == 2 && strcmp(c->members[m[0]].id, self) == 0;

	cluster_unref(c);
	return yes;
}

bool hot_send_on(struct hot *h, const struct block_key *k, unsigned share,
		 struct cluster_view *view, const char *self)
{
	unsigned s = slot_of(k);

	if (!share || __atomic_load_n(&h->under_way[s], __ATOMIC_RELAXED) < share ||
	    !is_owner_of_two(k, view, self))
		return false;
	return __atomic_fetch_add(&h->turn[s], 1, __ATOMIC_RELAXED) % 2 == 0;
}
