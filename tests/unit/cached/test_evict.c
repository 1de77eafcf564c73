/* SPDX-License-Identifier: Apache-2.0 */
/* What the policy promises (evict.h), on small traces, and its bookkeeping under random steps
 * with a printed seed. bench/evictsim.c compares it with others. */
#include "tests/unit/check.h"

#include <time.h>

#include "cached/evict.h"
#include "common/hash.h"

enum { CACHE = 1000, BLOCKS = 8 * CACHE, STEPS = 40000 };

/* a cache of CACHE blocks, whose blocks are numbers */
struct cache {
	struct evict *e;
	struct evict_node node[BLOCKS];
	bool in[BLOCKS];
	unsigned count, written;
};

static struct cache *cache_new(void)
{
	struct cache *c = calloc(1, sizeof(*c));

	assert_non_null(c);
	c->e = evict_loop_new();
	assert_non_null(c->e);
	return c;
}

static void cache_free(struct cache *c)
{
	evict_free(c->e);
	free(c);
}

static unsigned leave(struct cache *c)
{
	struct evict_node *n = evict_victim(c->e);
	unsigned b;

	assert_non_null(n);
	b = (unsigned)(n - c->node);
	assert_true(b < BLOCKS && c->in[b]);
	c->in[b] = false;
	c->count--;
	return b;
}

static void come(struct cache *c, unsigned b, enum evict_kind kind)
{
	if (c->count == CACHE)
		(void)leave(c);
	evict_add(c->e, &c->node[b], hash64(&b, sizeof(b)), kind);
	c->in[b] = true;
	c->count++;
	c->written++;
}

static bool use(struct cache *c, unsigned b)
{
	if (c->in[b]) {
		evict_hit(c->e, &c->node[b]);
		return true;
	}
	if (evict_admit(c->e, hash64(&b, sizeof(b))))
		come(c, b, EVICT_READ);
	return false;
}

/* hits of one epoch over n blocks from first on */
static unsigned epoch(struct cache *c, unsigned first, unsigned n, bool shuffled)
{
	unsigned *order = malloc(n * sizeof(*order)), hits = 0;

	assert_non_null(order);
	for (unsigned i = 0; i < n; i++)
		order[i] = first + i;
	for (unsigned i = n; shuffled && i > 1; i--) {
		unsigned j = (unsigned)random() % i, x = order[i - 1];

		order[i - 1] = order[j];
		order[j] = x;
	}
	for (unsigned i = 0; i < n; i++)
		hits += use(c, order[i]);
	free(order);
	return hits;
}

static void a_loop_hits_as_often_as_the_cache_is_large(void **state)
{
	(void)state;
	for (unsigned shuffled = 0; shuffled < 2; shuffled++)
		for (unsigned n = CACHE; n <= 2 * CACHE; n += CACHE / 4) {
			struct cache *c = cache_new();
			unsigned hits = 0;

			srandom(n);
			for (unsigned i = 0; i < 3; i++)
				(void)epoch(c, 0, n, shuffled);
			c->written = 0;
			for (unsigned i = 0; i < 5; i++)
				hits += epoch(c, 0, n, shuffled);
			print_message("%u blocks: %u of %u hits, %u written\n", n, hits, 5 * n,
				      c->written);
			assert_true(hits >= 5 * CACHE * 96 / 100);
			assert_true(c->written <= 5 * n / 50);
			cache_free(c);
		}
}

static void what_is_read_once_pushes_out_nothing_that_is_used(void **state)
{
	struct cache *c = cache_new();
	unsigned scan = CACHE, hits = 0;

	(void)state;
	srandom(1);
	for (unsigned i = 0; i < 3; i++)
		(void)epoch(c, 0, CACHE * 8 / 10, true);
	for (unsigned i = 0; i < CACHE * 8 / 10; i++) {
		hits += use(c, (unsigned)random() % (CACHE * 8 / 10));
		for (unsigned k = 0; k < 2; k++)
			(void)use(c, scan++);
	}
	hits += epoch(c, 0, CACHE * 8 / 10, true);
	assert_true(hits >= CACHE * 16 / 10 * 98 / 100);
	cache_free(c);
}

static void another_data_set_gets_in(void **state)
{
	struct cache *c = cache_new();
	unsigned third, fourth;

	(void)state;
	srandom(2);
	for (unsigned i = 0; i < 4; i++)
		(void)epoch(c, 0, CACHE, true);
	(void)epoch(c, 2 * CACHE, CACHE * 9 / 10, true);
	(void)epoch(c, 2 * CACHE, CACHE * 9 / 10, true);
	third = epoch(c, 2 * CACHE, CACHE * 9 / 10, true);
	fourth = epoch(c, 2 * CACHE, CACHE * 9 / 10, true);
	print_message("third epoch %u, fourth %u of %u\n", third, fourth, CACHE * 9 / 10);
	assert_true(third >= CACHE * 9 / 10 / 2);
	assert_true(fourth >= CACHE * 9 / 10 * 95 / 100);
	cache_free(c);
}

/* a warm-up is worth nothing when its blocks do not stay until they are read */
static void what_was_asked_for_is_there_afterwards(void **state)
{
	struct cache *c = cache_new();

	(void)state;
	srandom(3);
	for (unsigned i = 0; i < 3; i++)
		(void)epoch(c, 0, CACHE * 15 / 10, true);
	for (unsigned b = 0; b < CACHE; b++)
		come(c, 4 * CACHE + b, EVICT_ASKED);
	for (unsigned b = 0; b < CACHE; b++)
		assert_true(c->in[4 * CACHE + b]);
	/* and what is read for the first time meanwhile leaves before most of it */
	(void)epoch(c, 6 * CACHE, CACHE / 3, false);
	assert_true(epoch(c, 4 * CACHE, CACHE, true) >= CACHE * 89 / 100);
	cache_free(c);
}

/* checkpoints do not push out what is read */
static void what_is_written_leaves_first(void **state)
{
	struct cache *c = cache_new();

	(void)state;
	srandom(4);
	for (unsigned i = 0; i < 3; i++)
		(void)epoch(c, 0, CACHE * 9 / 10, true);
	for (unsigned b = 0; b < 3 * CACHE; b++)
		come(c, 2 * CACHE + b, EVICT_WRITE);
	assert_true(epoch(c, 0, CACHE * 9 / 10, true) >= CACHE * 9 / 10 - 1);
	cache_free(c);
}

/* a cache that may hold more again finds out */
static void room_is_used(void **state)
{
	struct cache *c = cache_new();
	unsigned last;

	(void)state;
	srandom(5);
	for (unsigned i = 0; i < 3; i++)
		(void)epoch(c, 0, CACHE * 12 / 10, true);
	for (unsigned i = 0; i < 40; i++)
		c->count -= MIN(c->count, 20u); /* as if it were larger */
	for (unsigned i = 0; i < 60; i++)
		last = epoch(c, 0, CACHE * 12 / 10, true);
	assert_true(last >= CACHE * 118 / 100);
	cache_free(c);
}

static void guests_leave_first(void **state)
{
	struct evict *e = evict_loop_new();
	struct evict_node old, guest, young;

	(void)state;
	evict_add(e, &old, 1, EVICT_READ);
	evict_add(e, &guest, 2, EVICT_GUEST);
	evict_add(e, &young, 3, EVICT_ASKED);
	evict_hit(e, &guest);
	assert_ptr_equal(evict_victim(e), &guest);
	assert_ptr_equal(evict_victim(e), &old);
	assert_ptr_equal(evict_victim(e), &young);
	assert_null(evict_victim(e));
	evict_free(e);
}

static void random_steps_lose_nothing(void **state)
{
	unsigned seed = (unsigned)time(NULL);
	struct cache *c = cache_new();

	(void)state;
	print_message("seed %u\n", seed);
	srandom(seed);
	for (unsigned i = 0; i < STEPS; i++) {
		unsigned b = (unsigned)random() % (2 * CACHE);

		switch (random() % 5) {
		case 0:
			if (!c->in[b])
				come(c, b, (enum evict_kind)(random() % (EVICT_GUEST + 1)));
			break;
		case 1:
			if (random() % 4 || !c->in[b])
				break;
			evict_remove(c->e, &c->node[b]);
			c->in[b] = false;
			c->count--;
			break;
		default:
			(void)use(c, b);
		}
		assert_int_equal(c->e->count, c->count);
	}
	while (c->count)
		(void)leave(c);
	assert_null(evict_victim(c->e));
	cache_free(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_loop_hits_as_often_as_the_cache_is_large),
		cmocka_unit_test(what_is_read_once_pushes_out_nothing_that_is_used),
		cmocka_unit_test(another_data_set_gets_in),
		cmocka_unit_test(what_was_asked_for_is_there_afterwards),
		cmocka_unit_test(what_is_written_leaves_first),
		cmocka_unit_test(room_is_used),
		cmocka_unit_test(guests_leave_first),
		cmocka_unit_test(random_steps_lose_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
