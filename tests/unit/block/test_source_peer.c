/* SPDX-License-Identifier: Apache-2.0 */
/* The layer that asks peers, over real sockets: whom a mount asks, and what it makes of the
 * answers. */
#include "tests/unit/block/group.h"

static void owner_answers_ranges_and_whole_blocks(void **state)
{
	static const uint32_t range[][2] = {
		{0, BLOCK},	{0, 1},	     {BLOCK - 1, 1},	     {32767, 2},
		{32768, 32768}, {5, 100000}, {BLOCK - 40000, 40000}, {65536, 1},
	};
	struct group g;
	struct read rd;
	struct block_key k, odd;

	(void)state;
	group_start(&g, PEER_OWNER, NULL, false, 16 * MIB);
	for (uint32_t m = 0; m < 2; m++) {
		k = owned(&g, m, 0);
		for (unsigned i = 0; i < ARRAY_LEN(range); i++)
			get(&g, &k, range[i][0], range[i][1], 0, 0, VIA_PEER);
	}
	/* on a busy machine one may have been hedged */
	assert_in_range(counted(&g.d[0].gets), ARRAY_LEN(range), ARRAY_LEN(range) + 4);
	assert_in_range(counted(&g.d[1].gets), ARRAY_LEN(range), ARRAY_LEN(range) + 4);
	/* a whole block brings its checksums */
	read_go(&g.w, &g.wt, &rd, &k, 0, BLOCK, 0);
	waiter_wait(&g.wt);
	assert_int_equal(rd.req->sums.len, msg_sums_len(BLOCK));
	assert_int_equal(block_sums_check(&k, 0, blob_mem(&rd.req->data), BLOCK,
					  blob_mem(&rd.req->sums), NULL),
			 0);
	read_check(&rd, 0);
	/* a block that does not end with a whole piece */
	block_key_init(&odd, &k.volume, 99, 3, 70001);
	get(&g, &odd, 0, 70001, 0, 0, VIA_PEER);
	get(&g, &odd, 70000, 1, 0, 0, VIA_PEER);
	get(&g, &odd, 32768, 37233, 0, 0, VIA_PEER);
	assert_int_equal(mem_gets(&g.w.store), 0);
	group_stop(&g);
}

static void owner_refuses_then_successor_then_store(void **state)
{
	struct group g;
	struct block_key k;

	(void)state;
	group_start(&g, PEER_OWNER, NULL, false, 16 * MIB);
	k = owned(&g, 0, 0);
	behave(&g.d[0], BUSY);
	get(&g, &k, 0, BLOCK, 0, 0, VIA_PEER);
	assert_int_equal(counted(&g.d[1].gets), 1);
	daemon_stop(&g.d[0]);
	for (unsigned i = 0; i < 5; i++)
		assert_true(get(&g, &k, 0, BLOCK, 0, 0, VIA_PEER) < 500000);
	assert_int_equal(counted(&g.d[1].gets), 6);
	daemon_stop(&g.d[1]);
	for (unsigned i = 0; i < 5; i++)
		assert_true(get(&g, &k, 100, 1000, 0, 0, VIA_OBJECT) < 500000);
	assert_int_equal(mem_gets(&g.w.store), 5);
	group_stop(&g);
}

/* A hot block's owner sends its readers on. When nobody else has the block he is asked once more,
 * before the object store is. */
static void who_is_busy_is_asked_again_before_the_store(void **state)
{
	struct group g;
	struct block_key k;

	(void)state;
	group_start(&g, PEER_OWNER, NULL, false, 16 * MIB);
	k = owned(&g, 0, 0);
	behave(&g.d[0], BUSY);
	daemon_stop(&g.d[1]);
	get(&g, &k, 0, BLOCK, 0, 0, VIA_PEER);
	assert_int_equal(counted(&g.d[0].gets), 2);
	assert_int_equal(counted(&g.d[0].no_fills), 1);
	assert_int_equal(mem_gets(&g.w.store), 0);
	assert_int_equal(counter(&g.w, "stoke_peer_busy_total", ""), 1);
	/* he has it no more: then the store, and nobody a third time */
	behave(&g.d[0], NOT_HERE);
	get(&g, &k, 0, BLOCK, 0, 0, VIA_OBJECT);
	assert_int_equal(counted(&g.d[0].gets), 3);
	group_stop(&g);
}

static void damaged_answers_are_never_delivered_B01_B02_B09(void **state)
{
	static const enum behaviour how[] = {DAMAGE, OTHER_BLOCK};
	struct group g;
	struct block_key k;

	(void)state;
	for (unsigned i = 0; i < ARRAY_LEN(how); i++) {
		group_start(&g, PEER_OWNER, NULL, false, 16 * MIB);
		k = owned(&g, 0, 0);
		behave(&g.d[0], how[i]);
		get(&g, &k, 0, BLOCK, 0, 0, VIA_PEER);
		get(&g, &k, BLOCK - 10, 10, 0, 0, VIA_PEER);
		wait_for(&g.d[0].bads, 2);
		assert_int_equal(counted(&g.d[1].gets), 2);
		behave(&g.d[1], how[i]);
		get(&g, &k, 0, BLOCK, 0, 0, VIA_OBJECT);
		wait_for(&g.d[1].bads, 1);
		group_stop(&g);
	}
}

static void final_verdicts_are_final(void **state)
{
	static const struct {
		enum behaviour how;
		int status;
	} v[] = {{NO_OBJECT, -ENODATA}, {FORBIDDEN, -EACCES}, {STORE_ERROR, -EIO}};
	struct group g;
	struct read rd;
	struct block_key k;

	(void)state;
	group_start(&g, PEER_OWNER, NULL, false, 16 * MIB);
	k = owned(&g, 0, 0);
	for (unsigned i = 0; i < ARRAY_LEN(v); i++) {
		behave(&g.d[0], v[i].how);
		behave(&g.d[1], v[i].how); /* on a busy machine it may be asked, too */
		read_go(&g.w, &g.wt, &rd, &k, 0, BLOCK, 0);
		waiter_wait(&g.wt);
		assert_string_equal(rd.req->reason, "vol/chunks/1: it is so");
		read_check(&rd, v[i].status);
	}
	assert_true(counted(&g.d[1].gets) < ARRAY_LEN(v));
	assert_int_equal(mem_gets(&g.w.store), 0);
	group_stop(&g);
}

static void fill_probe_and_drop(void **state)
{
	struct group g;
	struct block_key k;
	struct read rd;

	(void)state;
	group_start(&g, PEER_OWNER, NULL, false, 16 * MIB);
	k = owned(&g, 1, 0);
	get(&g, &k, 0, BLOCK, REQ_FILL, 0, VIA_NONE);
	assert_int_equal(counted(&g.d[1].fills), 1);
	get(&g, &k, 0, BLOCK, REQ_PROBE, 0, VIA_NONE);
	behave(&g.d[1], NOT_HERE);
	get(&g, &k, 0, BLOCK, REQ_PROBE, -ENOENT, VIA_NONE);
	assert_int_equal(counted(&g.d[1].stats), 2);
	assert_int_equal(counted(&g.d[0].stats), 0);
	behave(&g.d[1], BUSY);
	get(&g, &k, 0, BLOCK, REQ_FILL, 0, VIA_NONE);
	assert_int_equal(counted(&g.d[0].fills), 1);
	behave(&g.d[1], NO_OBJECT);

	read_start(&g.w, &g.wt, &rd, &k, 0, BLOCK, 0);
	source_drop(g.w.top, rd.req, read_done, &rd);
	waiter_wait(&g.wt);
	assert_int_equal(rd.status, 0);
	req_free(rd.req);
	assert_int_equal(counted(&g.d[0].drops), 1);
	assert_int_equal(counted(&g.d[1].drops), 1);

	daemon_stop(&g.d[0]);
	daemon_stop(&g.d[1]);
	read_start(&g.w, &g.wt, &rd, &k, 0, BLOCK, 0);
	source_drop(g.w.top, rd.req, read_done, &rd);
	waiter_wait(&g.wt);
	assert_true(rd.status < 0);
	req_free(rd.req);
	assert_int_equal(mem_gets(&g.w.store), 0);
	group_stop(&g);
}

/* warm-up shows it to people, and a check must not take it for a block that is not there */
static void fill_and_probe_without_an_owner_tell_why(void **state)
{
	static const uint32_t flag[] = {REQ_FILL, REQ_PROBE};
	struct group g;
	struct block_key k;
	struct read rd;

	(void)state;
	group_start(&g, PEER_OWNER, NULL, false, 16 * MIB);
	k = owned(&g, 0, 0);
	behave(&g.d[0], BUSY);
	behave(&g.d[1], BUSY);
	read_go(&g.w, &g.wt, &rd, &k, 0, BLOCK, REQ_FILL);
	waiter_wait(&g.wt);
	assert_non_null(strstr(rd.req->reason, "127.0.0.1:"));
	read_check(&rd, -EBUSY);
	daemon_stop(&g.d[0]);
	daemon_stop(&g.d[1]);
	for (unsigned i = 0; i < 2 * ARRAY_LEN(flag); i++) {
		read_go(&g.w, &g.wt, &rd, &k, 0, BLOCK, flag[i % 2]);
		waiter_wait(&g.wt);
		assert_non_null(strstr(rd.req->reason, "no daemon could be reached: 127.0.0.1:"));
		read_check(&rd, -EHOSTDOWN);
	}
	cluster_view_set(&g.view, NULL);
	read_go(&g.w, &g.wt, &rd, &k, 0, BLOCK, REQ_FILL);
	waiter_wait(&g.wt);
	assert_non_null(strstr(rd.req->reason, "no daemon could be reached"));
	read_check(&rd, -EHOSTDOWN);
	group_stop(&g);
}

static void without_memory_for_a_fork_the_request_goes_on(void **state)
{
	struct group g;
	struct block_key k;
	size_t need, held = 0;
	struct read rd;

	(void)state;
	group_start(&g, PEER_OWNER, NULL, false, 5 * (BLOCK + 8192));
	k = owned(&g, 0, 0);
	for (unsigned round = 0; round < 5; round++) {
		read_start(&g.w, &g.wt, &rd, &k, 0, BLOCK, 0);
		need = req_need(rd.req);
		assert_int_equal(pool_reserve(g.w.pool, POOL_DEMAND, need, NULL), 0);
		rd.req->reserved = need;
		while (pool_reserve(g.w.pool, POOL_DEMAND, 4096, NULL) == 0)
			held += 4096;
		behave(&g.d[0], round == 0 ? SERVE : round == 1 ? DAMAGE : HANG);
		behave(&g.d[1], round < 3 ? SERVE : round == 3 ? NOT_HERE : BUSY);
		source_get(g.peer, rd.req, read_done, &rd);
		waiter_wait(&g.wt);
		assert_int_equal(rd.req->via, round == 3 ? VIA_OBJECT : VIA_PEER);
		read_check(&rd, 0);
		pool_unreserve(g.w.pool, POOL_DEMAND, held);
		held = 0;
	}
	group_stop(&g);
}

/* one of many: reads one block after the other */
struct reader {
	struct group *g;
	unsigned nr;
	pthread_t thread;
};

enum { READERS = 16, BLOCKS = 40 };

static void *reader_thread(void *arg)
{
	struct reader *r = arg;
	struct waiter wt;

	waiter_init(&wt);
	for (unsigned i = 0; i < BLOCKS; i++) {
		struct block_key k = key_of(1 + (i * 7 + r->nr / 2) % BLOCKS, 0);
		struct read rd;

		read_go(&r->g->w, &wt, &rd, &k, r->nr % 2 ? 1000 : 0, r->nr % 2 ? 50000 : BLOCK, 0);
		waiter_wait(&wt);
		read_check(&rd, 0);
	}
	waiter_fini(&wt);
	return NULL;
}

/* with memory for everybody, and with the least there may be */
static void many_readers_while_a_daemon_dies_G03(void **state)
{
	static const size_t budget[] = {32 * MIB, 4 * (BLOCK + 8192)};
	struct reader r[READERS];
	struct group g;

	(void)state;
	for (unsigned b = 0; b < ARRAY_LEN(budget); b++) {
		group_start(&g, PEER_OWNER, NULL, false, budget[b]);
		for (unsigned i = 0; i < READERS; i++) {
			r[i] = (struct reader){.g = &g, .nr = i};
			assert_int_equal(pthread_create(&r[i].thread, NULL, reader_thread, &r[i]),
					 0);
		}
		wait_at_least(&g.d[0].gets, 20);
		daemon_stop(&g.d[0]);
		for (unsigned i = 0; i < READERS; i++)
			pthread_join(r[i].thread, NULL);
		assert_int_equal(mem_gets(&g.w.store), 0);
		group_stop(&g);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(owner_answers_ranges_and_whole_blocks),
		cmocka_unit_test(owner_refuses_then_successor_then_store),
		cmocka_unit_test(who_is_busy_is_asked_again_before_the_store),
		cmocka_unit_test(damaged_answers_are_never_delivered_B01_B02_B09),
		cmocka_unit_test(final_verdicts_are_final),
		cmocka_unit_test(fill_probe_and_drop),
		cmocka_unit_test(fill_and_probe_without_an_owner_tell_why),
		cmocka_unit_test(without_memory_for_a_fork_the_request_goes_on),
		cmocka_unit_test(many_readers_while_a_daemon_dies_G03),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
