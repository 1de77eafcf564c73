/* SPDX-License-Identifier: Apache-2.0 */
/* The ring against a plain model: every point in an unsorted list, the next one found by looking at
 * all. */
#include "tests/unit/check.h"

#include "common/hash.h"
#include "common/ring.h"

enum { KEYS = 20000 };

static uint64_t key_of(uint32_t i)
{
	return hash64(&i, sizeof(i));
}

static struct ring *make(const struct ring_node *nodes, size_t n)
{
	struct ring *r = NULL;

	assert_int_equal(ring_new(nodes, n, &r), 0);
	return r;
}

static void same_members_give_the_same_ring_in_any_order(void **state)
{
	struct ring_node a[] = {{"d1", 100}, {"d2", 100}, {"d3", 50}};
	struct ring_node b[] = {{"d3", 50}, {"d1", 100}, {"d2", 100}};
	struct ring *ra = make(a, 3), *rb = make(b, 3);

	(void)state;
	for (uint32_t i = 0; i < KEYS; i++) {
		uint32_t x[3], y[3];

		assert_int_equal(ring_find(ra, key_of(i), x, 3), 3);
		assert_int_equal(ring_find(rb, key_of(i), y, 3), 3);
		for (int j = 0; j < 3; j++)
			assert_string_equal(a[x[j]].id, b[y[j]].id);
	}
	ring_free(ra);
	ring_free(rb);
}

/* consistent hashing's promise: who stays keeps his keys, and the leaver's keys go to their former
 * successors */
static void ring_moves_only_the_leavers_keys(void **state)
{
	struct ring_node nodes[] = {{"d1", 100}, {"d2", 100}, {"d3", 100}, {"d4", 100}};
	struct ring *four = make(nodes, 4), *three = make(nodes, 3);
	unsigned moved = 0;

	(void)state;
	for (uint32_t i = 0; i < KEYS; i++) {
		uint32_t before[2], after[1];

		ring_find(four, key_of(i), before, 2);
		ring_find(three, key_of(i), after, 1);
		if (before[0] != 3) {
			assert_int_equal(after[0], before[0]);
			continue;
		}
		assert_int_equal(after[0], before[1]);
		moved++;
	}
	assert_true(moved <= KEYS / 4 + KEYS / 20);
	assert_true(moved >= KEYS / 4 - KEYS / 20);
	ring_free(four);
	ring_free(three);
}

static void weights_share_keys_in_proportion(void **state)
{
	struct ring_node nodes[] = {{"a", 100}, {"b", 200}, {"c", 400}, {"none", 0}};
	unsigned got[4] = {0};
	struct ring *r = make(nodes, 4);

	(void)state;
	for (uint32_t i = 0; i < KEYS; i++) {
		uint32_t n[4];

		assert_int_equal(ring_find(r, key_of(i), n, 4), 3); /* weight 0 is never found */
		got[n[0]]++;
	}
	for (int i = 0; i < 3; i++)
		assert_in_range(got[i], KEYS * (1u << i) / 7 * 9 / 10,
				KEYS * (1u << i) / 7 * 11 / 10);
	assert_int_equal(got[3], 0);
	ring_free(r);
}

/* the definition in ring.h, computed without the sorted table */
static void owner_is_the_first_point_at_or_after_the_key(void **state)
{
	struct ring_node nodes[] = {{"m1", 1}, {"m2", 2}, {"m3", 3}};
	struct ring *r = make(nodes, 3);
	struct {
		uint64_t place;
		uint32_t node;
	} all[60];
	size_t n = 0;

	(void)state;
	for (uint32_t i = 0; i < 3; i++)
		for (uint32_t j = 0; j < nodes[i].weight * RING_POINTS_PER_UNIT / RING_WEIGHT_UNIT;
		     j++) {
			uint8_t t[7] = {(uint8_t)nodes[i].id[0],
					(uint8_t)nodes[i].id[1],
					'#',
					0,
					0,
					0,
					(uint8_t)j};

			all[n].place = hash64(t, sizeof(t));
			all[n++].node = i;
		}
	for (uint32_t i = 0; i < KEYS; i++) {
		uint64_t best = UINT64_MAX;
		uint32_t want = 0, got[1];

		for (size_t j = 0; j < n; j++)
			if (all[j].place - key_of(i) <= best) {
				best = all[j].place -
				       key_of(i); /* distance clockwise, modulo 2^64 */
				want = all[j].node;
			}
		ring_find(r, key_of(i), got, 1);
		assert_int_equal(got[0], want);
	}
	ring_free(r);
}

static void empty_ring_has_no_owner(void **state)
{
	struct ring *r = make(NULL, 0);
	uint32_t n[1];

	(void)state;
	assert_int_equal(ring_find(r, 1, n, 1), 0);
	ring_free(r);
	ring_free(NULL);
}

static void heavy_weights_are_scaled_down(void **state)
{
	struct ring_node nodes[] = {{"a", 400000}, {"b", 400000}};
	struct ring *r = make(nodes, 2);
	uint32_t n[2];

	(void)state;
	assert_int_equal(ring_find(r, 1, n, 2), 2);
	ring_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(same_members_give_the_same_ring_in_any_order),
		cmocka_unit_test(ring_moves_only_the_leavers_keys),
		cmocka_unit_test(weights_share_keys_in_proportion),
		cmocka_unit_test(owner_is_the_first_point_at_or_after_the_key),
		cmocka_unit_test(empty_ring_has_no_owner),
		cmocka_unit_test(heavy_weights_are_scaled_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
