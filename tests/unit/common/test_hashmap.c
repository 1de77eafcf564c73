/* SPDX-License-Identifier: Apache-2.0 */
/* hashmap: random additions, removals and look-ups against a plain array. */
#include "common/hashmap.h"

#include <setjmp.h>
#include <stdarg.h>
#include <time.h>
#include <cmocka.h>

enum { KEYS = 2000, STEPS = 60000 };

struct item {
	struct hash_node node;
	unsigned key;
	bool in;
};

static struct item items[KEYS];

static bool item_eq(const struct hash_node *n, const void *key)
{
	return container_of(n, const struct item, node)->key == *(const unsigned *)key;
}

/* few distinct hashes: chains hold different keys with equal hashes too */
static uint64_t item_hash(unsigned key)
{
	return key / 3;
}

static void check_all(struct hashmap *m)
{
	size_t n = 0;

	for (unsigned k = 0; k < KEYS; k++) {
		struct hash_node *found = hashmap_find(m, item_hash(k), item_eq, &k);

		assert_ptr_equal(found, items[k].in ? &items[k].node : NULL);
		n += items[k].in;
	}
	assert_int_equal(m->count, n);
}

static void hashmap_agrees_with_an_array(void **state)
{
	unsigned seed = (unsigned)time(NULL);
	struct hashmap m;

	(void)state;
	print_message("seed %u\n", seed);
	assert_int_equal(hashmap_init(&m, 0), 0);
	for (int i = 0; i < STEPS; i++) {
		unsigned k = (unsigned)rand_r(&seed) % KEYS;

		items[k].key = k;
		if (items[k].in)
			hashmap_del(&m, &items[k].node);
		else
			hashmap_add(&m, &items[k].node, item_hash(k));
		items[k].in = !items[k].in;
		if (i % 5000 == 0)
			check_all(&m);
	}
	check_all(&m);
	hashmap_fini(&m);
	memset(items, 0, sizeof(items));
}

struct walk {
	struct hashmap *m;
	unsigned seen, stop_at;
};

static bool walk_deletes_odd(struct hash_node *n, void *arg)
{
	struct item *it = container_of(n, struct item, node);
	struct walk *w = arg;

	w->seen++;
	if (it->key % 2) {
		hashmap_del(w->m, n);
		memset(n, 0xa5, sizeof(*n)); /* as if freed */
		it->in = false;
	}
	return w->seen != w->stop_at;
}

static void hashmap_each_allows_deletion_and_stops(void **state)
{
	struct hashmap m;
	struct walk w = {.m = &m, .stop_at = 0};

	(void)state;
	assert_int_equal(hashmap_init(&m, 4), 0);
	for (unsigned k = 0; k < KEYS; k++) {
		items[k].key = k;
		items[k].in = true;
		hashmap_add(&m, &items[k].node, item_hash(k));
	}
	hashmap_each(&m, walk_deletes_odd, &w);
	assert_int_equal(w.seen, KEYS);
	check_all(&m);
	w = (struct walk){.m = &m, .stop_at = 7};
	hashmap_each(&m, walk_deletes_odd, &w);
	assert_int_equal(w.seen, 7);
	hashmap_fini(&m);
}

/* half stays while the other half comes and goes and the table grows */
static void hashmap_steps_meet_what_stays(void **state)
{
	static bool met[KEYS];
	uint32_t at = 0;
	unsigned added = KEYS / 2, steps = 0;
	struct hashmap m;

	(void)state;
	memset(met, 0, sizeof(met));
	assert_int_equal(hashmap_init(&m, 4), 0);
	for (unsigned k = 0; k < KEYS; k++) {
		items[k].key = k;
		if (k < KEYS / 2)
			hashmap_add(&m, &items[k].node, item_hash(k));
	}
	do {
		for (struct hash_node *n = hashmap_step(&m, &at); n; n = n->next)
			met[container_of(n, struct item, node)->key] = true;
		for (unsigned i = 0; i < 3 && added < KEYS; i++, added++)
			hashmap_add(&m, &items[added].node, item_hash(added));
		steps++;
	} while (at);
	assert_true(steps <= m.slots);
	for (unsigned k = 0; k < KEYS / 2; k++)
		assert_true(met[k]);
	hashmap_fini(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hashmap_agrees_with_an_array),
		cmocka_unit_test(hashmap_each_allows_deletion_and_stops),
		cmocka_unit_test(hashmap_steps_meet_what_stays),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
