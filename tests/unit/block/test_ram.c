/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks in memory: hits, order of leaving, bounds, and giving memory back to those who need it. */
#include "tests/unit/block/world.h"

static struct world w;

/* what a block in memory costs: its buffer has room for no sums here */
enum { COST = BLOCK };

static void begin(size_t max_bytes, size_t budget, unsigned flags)
{
	world_init(&w, WITH_SYNC | flags, CODEC_NONE, budget);
	assert_int_equal(source_ram_new(&w.env, w.top, max_bytes, &w.ram), 0);
	w.top = w.ram;
}

static enum req_via via_of(uint32_t index)
{
	struct block_key k = key_of(1, index);
	enum req_via via = VIA_NONE;

	assert_int_equal(get_once(&w, &k, 0, BLOCK, 0, &via, NULL), 0);
	return via;
}

static void a_block_is_found_again_whole_and_in_parts(void **state)
{
	struct block_key k = key_of(1, 0);
	enum req_via via;

	(void)state;
	begin(4 * MIB, 16 * MIB, WITH_SUMS);
	assert_int_equal(via_of(0), VIA_OBJECT);
	assert_int_equal(via_of(0), VIA_RAM);
	assert_int_equal(get_once(&w, &k, BLOCK - 1, 1, 0, &via, NULL), 0);
	assert_int_equal(via, VIA_RAM);
	/* somebody without a use for bytes is not answered from here: the question is what the
	 * owner keeps */
	assert_int_equal(get_once(&w, &k, 0, BLOCK, REQ_PROBE, NULL, NULL), -ENOENT);
	assert_int_equal(get_once(&w, &k, 0, BLOCK, REQ_FILL, NULL, NULL), -ENOENT);
	/* but one that must cause no fetch is */
	assert_int_equal(get_once(&w, &k, 0, BLOCK, REQ_NO_FILL, &via, NULL), 0);
	assert_int_equal(via, VIA_RAM);
	world_fini(&w);
}

static void the_sums_come_with_the_whole_block_only(void **state)
{
	struct block_key k = key_of(1, 0);
	struct waiter wt;
	struct read rd;

	(void)state;
	begin(4 * MIB, 16 * MIB, WITH_SUMS);
	waiter_init(&wt);
	assert_int_equal(via_of(0), VIA_OBJECT);
	read_go(&w, &wt, &rd, &k, 0, BLOCK, 0);
	assert_int_equal(block_sums_check(&k, 0, blob_mem(&rd.req->data), BLOCK,
					  blob_mem(&rd.req->sums), NULL),
			 0);
	read_check(&rd, 0);
	read_go(&w, &wt, &rd, &k, 0, BLOCK - 1, 0);
	assert_int_equal(rd.req->sums.len, 0);
	read_check(&rd, 0);
	waiter_fini(&wt);
	world_fini(&w);
}

static void the_least_recently_used_leaves(void **state)
{
	(void)state;
	begin(3 * COST, 16 * MIB, 0);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(via_of(i), VIA_OBJECT);
	assert_int_equal(via_of(0), VIA_RAM); /* 1 is the oldest now */
	assert_int_equal(via_of(3), VIA_OBJECT);
	assert_int_equal(via_of(0), VIA_RAM);
	assert_int_equal(via_of(2), VIA_RAM);
	assert_int_equal(via_of(3), VIA_RAM);
	assert_int_equal(via_of(1), VIA_OBJECT);
	world_fini(&w);
}

static void nothing_is_kept_without_room(void **state)
{
	struct pool_stat st;

	(void)state;
	begin(COST - 1, 16 * MIB, 0);
	assert_int_equal(via_of(0), VIA_OBJECT);
	assert_int_equal(via_of(0), VIA_OBJECT);
	pool_stat(w.pool, &st);
	assert_int_equal(st.used, 0);
	world_fini(&w);
}

static void a_drop_forgets(void **state)
{
	struct block_key k = key_of(1, 0);
	struct waiter wt;
	struct read rd;

	(void)state;
	begin(4 * MIB, 16 * MIB, 0);
	waiter_init(&wt);
	assert_int_equal(via_of(0), VIA_OBJECT);
	assert_int_equal(via_of(1), VIA_OBJECT);
	read_start(&w, &wt, &rd, &k, 0, BLOCK, 0);
	source_drop(w.top, rd.req, read_done, &rd);
	assert_int_equal(rd.status, 0);
	req_free(rd.req);
	assert_int_equal(via_of(0), VIA_OBJECT);
	assert_int_equal(via_of(1), VIA_RAM);
	waiter_fini(&wt);
	world_fini(&w);
}

static void the_pool_gets_its_memory_back(void **state)
{
	size_t n = 0, budget = 4 * MIB;
	struct pool_stat st;

	(void)state;
	begin(budget, budget, 0);
	for (uint32_t i = 0; i < 12; i++)
		assert_int_equal(via_of(i), VIA_OBJECT);
	pool_stat(w.pool, &st);
	assert_true(st.used >= 10 * COST);
	/* all of the pool but the others' minimums can be had */
	while (!pool_reserve(w.pool, POOL_DEMAND, 4096, NULL))
		n += 4096;
	assert_true(n >= budget - 2 * (BLOCK + 2 * 4096));
	pool_unreserve(w.pool, POOL_DEMAND, n);
	assert_int_equal(via_of(0), VIA_OBJECT);
	world_fini(&w);
}

struct later {
	struct pool_wait wait;
	bool given;
};

static void later_given(struct pool_wait *wait)
{
	container_of(wait, struct later, wait)->given = true;
}

/* A block that is being read gives no memory back when it is asked to; who waits must get it when
 * the reader is done, not never. */
static void who_waits_is_served_when_the_readers_of_kept_blocks_are_done(void **state)
{
	enum { N = 12 };
	struct later later = {.wait.fn = later_given};
	size_t want = 3 * MIB;
	struct waiter wt;
	struct read rd[N];

	(void)state;
	begin(4 * MIB, 4 * MIB, 0);
	waiter_init(&wt);
	for (uint32_t i = 0; i < N; i++) {
		struct block_key k = key_of(1, i);

		read_go(&w, &wt, &rd[i], &k, 0, BLOCK, 0);
	}
	assert_int_equal(pool_reserve(w.pool, POOL_DEMAND, want, &later.wait), -EAGAIN);
	for (int i = 0; i < N; i++)
		read_check(&rd[i], 0);
	assert_true(later.given);
	pool_unreserve(w.pool, POOL_DEMAND, want);
	waiter_fini(&wt);
	world_fini(&w);
}

static void a_block_admitted_while_others_wait_is_given_up(void **state)
{
	struct later later = {.wait.fn = later_given};
	struct block_key k = key_of(1, 0);
	size_t taken = 0, need = pool_cost(BLOCK + msg_sums_len(BLOCK));
	struct waiter wt;
	struct read rd;

	(void)state;
	begin(4 * MIB, 4 * MIB, 0);
	waiter_init(&wt);
	mem_hold(&w.store);
	read_start(&w, &wt, &rd, &k, 0, BLOCK, 0);
	rd.req->reserved = need;
	assert_int_equal(pool_reserve(w.pool, POOL_DEMAND, need, NULL), 0);
	read_send(&w, &rd);
	while (!pool_reserve(w.pool, POOL_DEMAND, 4096, NULL))
		taken += 4096;
	assert_int_equal(pool_reserve(w.pool, POOL_DEMAND, need, &later.wait), -EAGAIN);
	mem_release(&w.store);
	read_check(&rd, 0);
	assert_true(later.given);
	pool_unreserve(w.pool, POOL_DEMAND, taken + need);
	waiter_fini(&wt);
	world_fini(&w);
}

/* front -> late -> flight -> keep -> store: a request that missed in front and comes late to the
 * flight, after the fetch that it would have joined is over, finds the block below */
static void who_comes_between_fetches_nothing_again(void **state)
{
	struct block_key k = key_of(1, 0);
	struct source *late, *keep;
	struct waiter wt;
	struct read rd;

	(void)state;
	world_init(&w, WITH_SYNC | WITH_SUMS, CODEC_NONE, 16 * MIB);
	assert_int_equal(source_keep_new(&w.env, w.top, 4 * MIB, &keep), 0);
	w.top = keep;
	assert_int_equal(source_flight_new(&w.env, w.top, false, &w.flight), 0);
	w.top = w.flight;
	assert_int_equal(source_fault_new(&w.env, w.top, &late), 0);
	w.top = late;
	assert_int_equal(source_front_new(&w.env, w.top, keep, &w.top), 0);
	source_fault_add(late, &(struct fault_rule){.kind = FAULT_HANG, .count = 1});
	waiter_init(&wt);
	read_go(&w, &wt, &rd, &k, 0, 1000, 0); /* misses in front, and is held */
	assert_int_equal(get_once(&w, &k, 0, BLOCK, 0, NULL, NULL), 0);
	assert_int_equal(mem_gets(&w.store), 1);
	source_fault_release(late);
	waiter_wait(&wt);
	read_check(&rd, 0);
	assert_int_equal(mem_gets(&w.store), 1);
	waiter_fini(&wt);
	assert_int_equal(via_of(0), VIA_RAM);
	world_fini(&w);
}

/* two of sixteen may be spent; what was asked for again stays */
static void what_was_given_out_once_goes_first(void **state)
{
	struct source *keep;

	(void)state;
	world_init(&w, WITH_SYNC, CODEC_NONE, 16 * MIB);
	assert_int_equal(source_keep_new(&w.env, w.top, 16 * COST, &keep), 0);
	assert_int_equal(source_front_new(&w.env, keep, keep, &w.top), 0);
	for (uint32_t i = 0; i < 6; i++)
		assert_int_equal(via_of(i), VIA_OBJECT);
	assert_int_equal(via_of(4), VIA_RAM);
	assert_int_equal(via_of(3), VIA_OBJECT);
	for (uint32_t i = 10; i < 16; i++)
		assert_int_equal(via_of(i), VIA_OBJECT);
	assert_int_equal(via_of(3), VIA_OBJECT);
	assert_int_equal(via_of(4), VIA_RAM);
	world_fini(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_block_is_found_again_whole_and_in_parts),
		cmocka_unit_test(the_sums_come_with_the_whole_block_only),
		cmocka_unit_test(the_least_recently_used_leaves),
		cmocka_unit_test(nothing_is_kept_without_room),
		cmocka_unit_test(a_drop_forgets),
		cmocka_unit_test(the_pool_gets_its_memory_back),
		cmocka_unit_test(who_waits_is_served_when_the_readers_of_kept_blocks_are_done),
		cmocka_unit_test(a_block_admitted_while_others_wait_is_given_up),
		cmocka_unit_test(who_comes_between_fetches_nothing_again),
		cmocka_unit_test(what_was_given_out_once_goes_first),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
