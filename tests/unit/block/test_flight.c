/* SPDX-License-Identifier: Apache-2.0 */
/* Equal requests become one: who joins whom, who is answered when, and what an error does to those
 * who wait. */
#include "tests/unit/block/world.h"

enum { N = 10, KIB = 1024 };

static struct world w;
static struct waiter wt;
static struct read rd[1000];

static void begin(unsigned flags, enum codec codec)
{
	world_init(&w, flags, codec, 16 * MIB);
	waiter_init(&wt);
}

static void end(void)
{
	waiter_fini(&wt);
	world_fini(&w);
}

static void whole(int i, const struct block_key *k, uint32_t flags)
{
	read_go(&w, &wt, &rd[i], k, 0, BLOCK, flags);
}

static void range(int i, const struct block_key *k, uint32_t off, uint32_t len, uint32_t flags)
{
	read_go(&w, &wt, &rd[i], k, off, len, flags);
}

/* whom the read, which the fault below holds, waits for, as the peers' layer there would say */
static void waits(int i, enum req_way way)
{
	__atomic_store_n(&rd[i].req->way, way, __ATOMIC_RELEASE);
}

static void equal_requests_become_one(void **state)
{
	struct block_key k = key_of(1, 0), other = key_of(1, 1);

	(void)state;
	begin(WITH_FLIGHT | WITH_SYNC | WITH_SUMS, CODEC_NONE);
	mem_hold(&w.store);
	for (int i = 0; i < N; i++)
		whole(i, &k, 0);
	whole(N, &other, 0);
	assert_int_equal(mem_gets(&w.store), 2);
	mem_release(&w.store);
	waiter_wait(&wt);
	assert_int_equal(rd[0].req->via, VIA_OBJECT);
	for (int i = 1; i < N; i++) {
		assert_int_equal(rd[i].req->via, VIA_FLIGHT);
		assert_int_equal(rd[i].req->sums.len, msg_sums_len(BLOCK));
		assert_int_equal(block_sums_check(&k, 0, blob_mem(&rd[i].req->data), BLOCK,
						  blob_mem(&rd[i].req->sums), NULL),
				 0);
	}
	for (int i = 0; i <= N; i++)
		read_check(&rd[i], 0);
	/* the fetch is over: the next one asks again */
	assert_int_equal(get_once(&w, &k, 0, BLOCK, 0, NULL, NULL), 0);
	assert_int_equal(mem_gets(&w.store), 3);
	end();
}

static void ranges_are_answered_as_the_prefix_grows(void **state)
{
	struct block_key k = key_of(2, 0);

	(void)state;
	begin(WITH_FLIGHT | WITH_SYNC, CODEC_NONE);
	mem_hold(&w.store);
	w.store.step = 64 * KIB;
	whole(0, &k, 0);
	range(1, &k, BLOCK - 10, 10, 0);
	range(2, &k, 64 * KIB, 64 * KIB, 0);
	range(3, &k, 100, 200, 0);
	range(4, &k, 64 * KIB - 10, 64 * KIB + 11, 0);
	assert_int_equal(mem_gets(&w.store), 1);
	mem_release(&w.store);
	waiter_wait(&wt);
	assert_int_equal(rd[3].order, 1); /* valid at 64 KiB */
	assert_int_equal(rd[2].order, 2); /* at 128 KiB */
	assert_int_equal(rd[4].order, 3); /* one byte more: at 192 KiB */
	assert_int_equal(rd[1].order, 4); /* with the end */
	assert_int_equal(rd[0].order, 5);
	for (int i = 0; i < 5; i++)
		read_check(&rd[i], 0);
	end();
}

/* a request that comes between two steps of the leader finds its bytes there */
static struct object_req *stalled;

static void who_comes_late_takes_what_is_there(void **state)
{
	struct block_key k = key_of(3, 0);

	(void)state;
	begin(WITH_FLIGHT | WITH_SYNC, CODEC_NONE);
	mem_hold(&w.store);
	whole(0, &k, 0);
	stalled = mem_take_held(&w.store);
	assert_non_null(stalled);
	for (uint32_t i = 0; i < 128 * KIB; i++)
		stalled->buf[i] = pattern(3, 0, i);
	stalled->progress(stalled, 128 * KIB);
	range(1, &k, 0, 128 * KIB, 0);
	assert_true(read_is_done(&rd[1]));
	read_check(&rd[1], 0);
	range(2, &k, 1, 128 * KIB, 0);
	assert_false(read_is_done(&rd[2]));
	/* a retry of the store begins again: what was valid stays so */
	stalled->progress(stalled, 10);
	range(3, &k, 127 * KIB, KIB, 0);
	assert_true(read_is_done(&rd[3]));
	read_check(&rd[3], 0);
	assert_int_equal(mem_gets(&w.store), 1);
	mem_go(&w.store, stalled);
	waiter_wait(&wt);
	read_check(&rd[0], 0);
	read_check(&rd[2], 0);
	mem_release(&w.store);
	end();
}

static void an_encoded_block_is_answered_only_when_it_is_whole(void **state)
{
	struct block_key k = key_of(4, 0);

	(void)state;
	begin(WITH_FLIGHT, CODEC_LZ4);
	mem_hold(&w.store);
	w.store.step = KIB;
	whole(0, &k, 0);
	range(1, &k, 0, 10, 0);
	range(2, &k, BLOCK - 10, 10, 0);
	assert_int_equal(mem_gets(&w.store), 1);
	mem_release(&w.store);
	waiter_wait(&wt);
	for (int i = 0; i < 3; i++)
		read_check(&rd[i], 0);
	/* one that does not decode gives nobody a byte */
	w.store.broken = true;
	mem_hold(&w.store);
	whole(0, &k, 0);
	range(1, &k, 0, 10, 0);
	mem_release(&w.store);
	waiter_wait(&wt);
	assert_non_null(strstr(rd[1].req->reason, "decode"));
	read_check(&rd[0], -EIO);
	read_check(&rd[1], -EIO);
	end();
}

static void a_whole_fetch_never_waits_behind_a_range(void **state)
{
	struct block_key k = key_of(5, 0);
	struct object_req *first;

	(void)state;
	begin(WITH_FLIGHT | WITH_SYNC, CODEC_NONE);
	mem_hold(&w.store);
	range(0, &k, 0, BLOCK - 1, 0);
	first = mem_take_held(&w.store);
	whole(1, &k, 0);
	assert_int_equal(mem_gets(&w.store), 2);
	mem_release(&w.store); /* the whole one; the range still hangs */
	assert_true(read_is_done(&rd[1]));
	assert_false(read_is_done(&rd[0]));
	mem_go(&w.store, first);
	waiter_wait(&wt);
	read_check(&rd[0], 0);
	read_check(&rd[1], 0);
	end();
}

static void a_range_joins_a_range_that_covers_it(void **state)
{
	struct block_key k = key_of(6, 0);

	(void)state;
	begin(WITH_FLIGHT | WITH_SYNC, CODEC_NONE);
	mem_hold(&w.store);
	range(0, &k, 1000, 1000, 0);
	range(1, &k, 1000, 1000, 0);
	range(2, &k, 1500, 500, 0);
	assert_int_equal(mem_gets(&w.store), 1);
	range(3, &k, 999, 10, 0);
	assert_int_equal(mem_gets(&w.store), 2);
	range(4, &k, 1999, 2, 0);
	assert_int_equal(mem_gets(&w.store), 3);
	mem_release(&w.store);
	waiter_wait(&wt);
	for (int i = 0; i < 5; i++)
		read_check(&rd[i], 0);
	assert_int_equal(w.store.whole_gets, 0);
	end();
}

static void in_a_daemon_the_second_range_starts_the_whole_fetch_once(void **state)
{
	struct block_key k = key_of(7, 0);
	enum req_via via;

	(void)state;
	begin(WITH_DAEMON | WITH_RAM | WITH_SYNC, CODEC_NONE);
	mem_hold(&w.store);
	range(0, &k, 0, 100, 0);
	assert_int_equal(w.store.whole_gets, 0);
	range(1, &k, 1000, 100, 0);
	assert_int_equal(w.store.whole_gets, 1);
	for (int i = 2; i < N; i++)
		range(i, &k, (uint32_t)i * 1000, 100, 0);
	assert_int_equal(mem_gets(&w.store), 2);
	mem_release(&w.store);
	waiter_wait(&wt);
	for (int i = 0; i < N; i++)
		read_check(&rd[i], 0);
	/* the layers above keep the block that only ranges were asked of */
	assert_int_equal(get_once(&w, &k, 0, BLOCK, 0, &via, NULL), 0);
	assert_int_equal(via, VIA_RAM);
	assert_int_equal(mem_gets(&w.store), 2);
	end();
}

static void the_second_range_counts_when_the_first_is_over_too(void **state)
{
	struct block_key k = key_of(8, 0), other = key_of(8, 1);

	(void)state;
	begin(WITH_DAEMON | WITH_RAM | WITH_SYNC, CODEC_NONE);
	assert_int_equal(get_once(&w, &k, 0, 100, 0, NULL, NULL), 0);
	assert_int_equal(get_once(&w, &other, 0, 100, 0, NULL, NULL), 0);
	assert_int_equal(w.store.whole_gets, 0);
	assert_int_equal(get_once(&w, &k, 500, 100, 0, NULL, NULL), 0);
	assert_int_equal(w.store.whole_gets, 1);
	assert_int_equal(get_once(&w, &k, 700, 100, 0, NULL, NULL), 0);
	assert_int_equal(mem_gets(&w.store), 3);
	end();
}

static void a_random_reader_is_not_given_whole_blocks(void **state)
{
	struct block_key k = key_of(9, 0);

	(void)state;
	begin(WITH_DAEMON | WITH_RAM | WITH_SYNC, CODEC_NONE);
	for (int i = 0; i < N; i++)
		assert_int_equal(
			get_once(&w, &k, (uint32_t)i * 500, 100, REQ_RANGE_ONLY, NULL, NULL), 0);
	assert_int_equal(mem_gets(&w.store), N);
	assert_int_equal(w.store.whole_gets, 0);
	end();
}

static void ranges_of_an_encoded_block_share_one_fetch(void **state)
{
	struct block_key k = key_of(10, 0);
	enum req_via via;

	(void)state;
	begin(WITH_DAEMON | WITH_RAM, CODEC_ZSTD);
	mem_hold(&w.store);
	for (int i = 0; i < N; i++)
		range(i, &k, (uint32_t)i * 1000, 100, REQ_RANGE_ONLY);
	assert_int_equal(mem_gets(&w.store), 1);
	mem_release(&w.store);
	waiter_wait(&wt);
	for (int i = 0; i < N; i++)
		read_check(&rd[i], 0);
	assert_int_equal(get_once(&w, &k, 5, 5, 0, &via, NULL), 0);
	assert_int_equal(via, VIA_RAM);
	end();
}

static void all_who_wait_get_the_stores_error(void **state)
{
	static const struct {
		int store, status;
	} verdicts[] = {{-ENOENT, -ENODATA}, {-EACCES, -EACCES}, {-EIO, -EIO}, {-ESTALE, -EIO}};

	(void)state;
	begin(WITH_FLIGHT | WITH_SYNC, CODEC_NONE);
	for (size_t v = 0; v < ARRAY_LEN(verdicts); v++) {
		struct block_key k = key_of(11, (uint32_t)v);
		unsigned before = mem_gets(&w.store);
		char name[BLOCK_NAME_MAX];

		block_key_object(&k, "vol", false, name);
		mem_hold(&w.store);
		whole(0, &k, 0);
		for (int i = 1; i < N; i++)
			range(i, &k, (uint32_t)i, 5, 0);
		w.store.status = verdicts[v].store;
		mem_release(&w.store);
		for (int i = 0; i < N; i++) {
			assert_true(read_is_done(&rd[i])); /* at once */
			assert_non_null(strstr(rd[i].req->reason, name));
			read_check(&rd[i], verdicts[v].status);
		}
		w.store.status = 0;
		assert_int_equal(mem_gets(&w.store), before + 1); /* and nobody asked again */
	}
	end();
}

static void when_the_leaders_time_is_over_the_next_one_leads(void **state)
{
	struct block_key k = key_of(12, 0);

	(void)state;
	begin(WITH_FLIGHT, CODEC_NONE);
	source_fault_add(w.fault, &(struct fault_rule){
					  .kind = FAULT_HANG, .count = 1, .status = -ETIMEDOUT});
	whole(0, &k, 0);
	for (int i = 1; i < N; i++)
		range(i, &k, (uint32_t)i, 5, 0);
	whole(N, &k, 0);
	/* his own deadline is over too: not worth another fetch */
	read_start(&w, &wt, &rd[N + 1], &k, 0, 5, 0);
	rd[N + 1].req->deadline_us = clock_us() - 1;
	read_send(&w, &rd[N + 1]);
	assert_int_equal(source_fault_seen(w.fault), 1);
	source_fault_release(w.fault);
	waiter_wait(&wt);
	read_check(&rd[0], -ETIMEDOUT);
	for (int i = 1; i <= N; i++)
		read_check(&rd[i], 0);
	read_check(&rd[N + 1], -ETIMEDOUT);
	/* the ranges before the whole one cover nothing of each other, so each may have led */
	assert_true(source_fault_seen(w.fault) <= N + 1);
	end();
}

/* Each leads in turn, each one's time is over at once, and each is led by the loop, not by whoever
 * ended the one before. */
static void leading_in_turn_is_no_recursion(void **state)
{
	enum { MANY = 1000 };
	struct block_key k = key_of(13, 0);

	(void)state;
	begin(WITH_FLIGHT | WITH_SYNC, CODEC_NONE);
	source_fault_add(w.fault, &(struct fault_rule){
					  .kind = FAULT_HANG, .count = 1, .status = -ETIMEDOUT});
	source_fault_add(
		w.fault,
		&(struct fault_rule){.kind = FAULT_FAIL, .count = MANY - 1, .status = -ETIMEDOUT});
	for (int i = 0; i < MANY; i++)
		whole(i, &k, 0);
	assert_int_equal(source_fault_seen(w.fault), 1);
	source_fault_release(w.fault);
	waiter_wait(&wt);
	for (int i = 0; i < MANY - 1; i++)
		read_check(&rd[i], -ETIMEDOUT);
	read_check(&rd[MANY - 1], 0);
	assert_true(w.store.on_watched);
	end();
}

static void a_demand_does_not_starve_behind_a_prefetch(void **state)
{
	struct block_key k = key_of(14, 0);

	(void)state;
	begin(WITH_FLIGHT, CODEC_NONE);
	source_fault_add(w.fault,
			 &(struct fault_rule){.kind = FAULT_HANG, .count = 1, .status = -ENOBUFS});
	whole(0, &k, REQ_PREFETCH);
	whole(1, &k, REQ_PREFETCH);
	whole(2, &k, 0);
	range(3, &k, 10, 10, 0);
	source_fault_release(w.fault);
	waiter_wait(&wt);
	read_check(&rd[0], -ENOBUFS);
	read_check(&rd[1], -ENOBUFS);
	read_check(&rd[2], 0);
	read_check(&rd[3], 0);
	end();
}

/* all the memory that others than this class may have */
static size_t take_all(enum pool_class c)
{
	size_t n = 0;

	while (!pool_reserve(w.pool, c, 4096, NULL))
		n += 4096;
	return n;
}

static void a_prefetch_without_memory_leads_nobody(void **state)
{
	struct block_key k = key_of(15, 0);
	size_t taken;

	(void)state;
	begin(WITH_FLIGHT | WITH_SYNC, CODEC_NONE);
	taken = take_all(POOL_PREFETCH);
	whole(0, &k, REQ_PREFETCH);
	assert_true(read_is_done(&rd[0]));
	read_check(&rd[0], -ENOBUFS);
	assert_int_equal(mem_gets(&w.store), 0);
	/* demand has its own minimum, and a prefetch may join it without memory */
	mem_hold(&w.store);
	whole(1, &k, 0);
	whole(2, &k, REQ_PREFETCH);
	assert_int_equal(mem_gets(&w.store), 1);
	mem_release(&w.store);
	waiter_wait(&wt);
	read_check(&rd[1], 0);
	read_check(&rd[2], 0);
	pool_unreserve(w.pool, POOL_PREFETCH, taken);
	end();
}

static void a_demand_waits_in_line_and_nothing_leaves_before(void **state)
{
	struct block_key k = key_of(16, 0);
	size_t taken;

	(void)state;
	begin(WITH_FLIGHT, CODEC_NONE);
	taken = take_all(POOL_DEMAND);
	for (int i = 0; i < N; i++)
		whole(i, &k, 0);
	loop_settle(&w);
	assert_int_equal(mem_gets(&w.store), 0);
	pool_unreserve(w.pool, POOL_DEMAND, taken);
	waiter_wait(&wt);
	assert_int_equal(mem_gets(&w.store), 1);
	for (int i = 0; i < N; i++)
		read_check(&rd[i], 0);
	end();
}

/* rule 7 */
static void who_does_not_fill_waits_for_nobody_who_may_wait_for_a_peer_G12(void **state)
{
	static const uint32_t flags[] = {REQ_NO_FILL, REQ_FILL, REQ_PROBE};
	struct block_key k = key_of(17, 0);

	(void)state;
	begin(WITH_FLIGHT | WITH_SYNC, CODEC_NONE);
	source_fault_add(w.fault, &(struct fault_rule){.kind = FAULT_HANG, .count = 1});
	whole(0, &k, 0);
	for (size_t i = 0; i < ARRAY_LEN(flags); i++) {
		waits(0, i % 2 ? WAY_ASKS : WAY_HOLDERS);
		assert_int_equal(get_once(&w, &k, 0, BLOCK, flags[i], NULL, NULL), -ENOENT);
		assert_int_equal(get_once(&w, &k, 0, 10, flags[i], NULL, NULL), -ENOENT);
	}
	/* nor can anyone join one of them */
	source_fault_add(w.fault, &(struct fault_rule){.kind = FAULT_HANG, .after = 1});
	whole(1, &k, REQ_NO_FILL);
	assert_int_equal(source_fault_seen(w.fault), 8);
	source_fault_release(w.fault);
	waiter_wait(&wt);
	read_check(&rd[0], 0);
	read_check(&rd[1], -ENOENT);
	assert_int_equal(mem_gets(&w.store), 1);
	end();
}

/* rule 7: who asks for a member waits for nobody who asked another one to fill, but leads himself;
 * two of them share one fetch */
static void who_asks_for_a_member_waits_for_nobody_who_waits_for_one(void **state)
{
	struct block_key k = key_of(17, 0);

	(void)state;
	begin(WITH_FLIGHT | WITH_SYNC, CODEC_NONE);
	source_fault_add(w.fault, &(struct fault_rule){.kind = FAULT_HANG, .count = 1});
	whole(0, &k, 0);
	waits(0, WAY_ASKS);
	whole(1, &k, REQ_MEMBER);
	for (unsigned i = 0; i < 5000 && !read_is_done(&rd[1]); i++)
		usleep(1000);
	assert_false(read_is_done(&rd[0]));
	read_check(&rd[1], 0);
	source_fault_release(w.fault);
	waiter_wait(&wt);
	read_check(&rd[0], 0);
	end();
	begin(WITH_FLIGHT | WITH_SYNC, CODEC_NONE);
	source_fault_add(w.fault, &(struct fault_rule){.kind = FAULT_HANG, .count = 1});
	whole(0, &k, REQ_MEMBER);
	whole(1, &k, REQ_MEMBER);
	whole(2, &k, 0); /* a mount may wait for either */
	assert_int_equal(source_fault_seen(w.fault), 1);
	source_fault_release(w.fault);
	waiter_wait(&wt);
	for (int i = 0; i < 3; i++)
		read_check(&rd[i], 0);
	assert_int_equal(mem_gets(&w.store), 1);
	end();
}

/* In line for memory, or on its way down: then it is told to ask by NO_FILL alone, and nobody else
 * goes to the object store beside it. */
static void who_has_asked_nobody_yet_is_waited_for_by_all(void **state)
{
	static const uint32_t flags[] = {REQ_NO_FILL, REQ_MEMBER};
	struct block_key k = key_of(17, 0);

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(flags); i++) {
		begin(WITH_FLIGHT | WITH_SYNC, CODEC_NONE);
		source_fault_add(w.fault, &(struct fault_rule){.kind = FAULT_HANG, .count = 1});
		whole(0, &k, 0);
		whole(1, &k, flags[i]);
		whole(2, &k, flags[i]);
		assert_int_equal(rd[0].req->way, WAY_PROMISED);
		assert_false(read_is_done(&rd[1]) || read_is_done(&rd[2]));
		waits(0, WAY_HOLDERS);
		whole(3, &k, REQ_MEMBER);
		assert_int_equal(source_fault_seen(w.fault), 1);
		source_fault_release(w.fault);
		waiter_wait(&wt);
		for (int r = 0; r < 4; r++)
			read_check(&rd[r], 0);
		assert_int_equal(mem_gets(&w.store), 1);
		end();
	}
}

static void who_does_not_fill_joins_what_comes_from_the_object_store(void **state)
{
	struct block_key k = key_of(17, 0);
	bool listed;

	(void)state;
	for (int failed = 0; failed < 2; failed++) {
		begin(WITH_FLIGHT | WITH_SYNC, CODEC_NONE);
		mem_hold(&w.store);
		whole(0, &k, 0);
		whole(1, &k, REQ_NO_FILL);
		assert_true(source_flight_joins(w.flight, rd[1].req, &listed));
		assert_true(listed);
		read_go(&w, &wt, &rd[2], &k, 100, 50, REQ_NO_FILL);
		assert_false(read_is_done(&rd[1]) || read_is_done(&rd[2]));
		/* these want the store's own word all the same */
		assert_int_equal(get_once(&w, &k, 0, BLOCK, REQ_FILL, NULL, NULL), -ENOENT);
		assert_int_equal(get_once(&w, &k, 0, BLOCK, REQ_PROBE, NULL, NULL), -ENOENT);
		w.store.status = failed ? -EACCES : 0;
		mem_release(&w.store);
		waiter_wait(&wt);
		for (int i = 0; i < 3; i++)
			read_check(&rd[i], failed ? -EACCES : 0);
		assert_int_equal(mem_gets(&w.store), 1);
		/* and never leads */
		assert_int_equal(get_once(&w, &k, 0, BLOCK, REQ_NO_FILL, NULL, NULL), -ENOENT);
		assert_int_equal(mem_gets(&w.store), 1);
		end();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(equal_requests_become_one),
		cmocka_unit_test(ranges_are_answered_as_the_prefix_grows),
		cmocka_unit_test(who_comes_late_takes_what_is_there),
		cmocka_unit_test(an_encoded_block_is_answered_only_when_it_is_whole),
		cmocka_unit_test(a_whole_fetch_never_waits_behind_a_range),
		cmocka_unit_test(a_range_joins_a_range_that_covers_it),
		cmocka_unit_test(in_a_daemon_the_second_range_starts_the_whole_fetch_once),
		cmocka_unit_test(the_second_range_counts_when_the_first_is_over_too),
		cmocka_unit_test(a_random_reader_is_not_given_whole_blocks),
		cmocka_unit_test(ranges_of_an_encoded_block_share_one_fetch),
		cmocka_unit_test(all_who_wait_get_the_stores_error),
		cmocka_unit_test(when_the_leaders_time_is_over_the_next_one_leads),
		cmocka_unit_test(leading_in_turn_is_no_recursion),
		cmocka_unit_test(a_demand_does_not_starve_behind_a_prefetch),
		cmocka_unit_test(a_prefetch_without_memory_leads_nobody),
		cmocka_unit_test(a_demand_waits_in_line_and_nothing_leaves_before),
		cmocka_unit_test(who_does_not_fill_waits_for_nobody_who_may_wait_for_a_peer_G12),
		cmocka_unit_test(who_asks_for_a_member_waits_for_nobody_who_waits_for_one),
		cmocka_unit_test(who_has_asked_nobody_yet_is_waited_for_by_all),
		cmocka_unit_test(who_does_not_fill_joins_what_comes_from_the_object_store),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
