/* SPDX-License-Identifier: Apache-2.0 */
/* The layer that asks peers, when one is silent, or slow, or this process is. */
#include "tests/unit/block/group.h"

static void owner_hangs_and_costs_one_hedge_G01_G02(void **state)
{
	struct group g;
	struct block_key k;
	struct peer_health h;
	struct peer *p;
	unsigned before;
	uint64_t us;

	(void)state;
	group_start(&g, PEER_OWNER, NULL, false, 32 * MIB);
	k = owned(&g, 0, 0);
	get(&g, &k, 0, BLOCK, 0, 0, VIA_PEER);
	before = counted(&g.d[1].gets);
	behave(&g.d[0], HANG);
	us = get(&g, &k, 0, BLOCK, 0, 0, VIA_PEER);
	assert_true(us >= 50000 && us < 600000);
	assert_int_equal(counted(&g.d[1].gets), before + 1);
	p = peers_get(g.peers, "127.0.0.1", g.d[0].port);
	peer_health(p, &h);
	assert_true(h.slow);
	/* and then none: the successor is asked first */
	for (unsigned i = 0; i < 10; i++)
		assert_true(get(&g, &k, 0, BLOCK, 0, 0, VIA_PEER) < 500000);
	assert_int_equal(counted(&g.d[0].gets), 2);
	behave(&g.d[0], SERVE);
	for (unsigned i = 0; i < 10000 && h.slow; i++) {
		usleep(1000);
		peer_health(p, &h);
	}
	assert_false(h.slow);
	get(&g, &k, 0, BLOCK, 0, 0, VIA_PEER);
	assert_int_equal(counted(&g.d[0].gets), 3);
	assert_int_equal(mem_gets(&g.w.store), 0);
	group_stop(&g);
}

/* nothing of what is sent to the owner's port arrives: its queue of connections is full, which on
 * loopback is what a firewall does elsewhere */
static void what_is_sent_to_the_owner_is_dropped_G04(void **state)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	struct member m[2] = {{.id = "a", .weight = 100, .state = MEMBER_ACTIVE},
			      {.id = "b", .weight = 100, .state = MEMBER_ACTIVE}};
	int lfd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fd[4];
	socklen_t len = sizeof(a);
	struct group g;
	struct block_key k;

	(void)state;
	group_start(&g, PEER_OWNER, NULL, false, 16 * MIB);
	assert_int_equal(bind(lfd, (struct sockaddr *)&a, len), 0);
	assert_int_equal(listen(lfd, 0), 0);
	assert_int_equal(getsockname(lfd, (struct sockaddr *)&a, &len), 0);
	for (unsigned i = 0; i < ARRAY_LEN(fd); i++) {
		fd[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		(void)connect(fd[i], (struct sockaddr *)&a, len);
	}
	for (unsigned i = 0; i < 2; i++)
		snprintf(m[i].addr, sizeof(m[i].addr), "127.0.0.1");
	m[0].port = ntohs(a.sin_port);
	m[1].port = g.d[1].port;
	cluster_view_set(&g.view, cluster_new(2, m, 2));
	k = owned(&g, 0, 0);
	assert_true(get(&g, &k, 0, BLOCK, 0, 0, VIA_PEER) < 700000);
	assert_int_equal(counter(&g.w, "stoke_hedges_total", ""), 1);
	assert_int_equal(counter(&g.w, "stoke_peer_slow_total", ""), 1);
	for (unsigned i = 0; i < 5; i++)
		assert_true(get(&g, &k, 0, BLOCK, 0, 0, VIA_PEER) < 240000);
	assert_int_equal(mem_gets(&g.w.store), 0);
	for (unsigned i = 0; i < ARRAY_LEN(fd); i++)
		close(fd[i]);
	close(lfd);
	group_stop(&g);
}

static void both_hang_and_the_store_answers(void **state)
{
	struct group g;
	struct block_key k;

	(void)state;
	group_start(&g, PEER_OWNER, NULL, false, 32 * MIB);
	k = owned(&g, 1, 0);
	behave(&g.d[0], HANG);
	behave(&g.d[1], HANG);
	assert_true(get(&g, &k, 0, BLOCK, 0, 0, VIA_OBJECT) < 2500000);
	assert_int_equal(mem_gets(&g.w.store), 1);
	group_stop(&g);
}

static void nobody_hedges_after_filling(void **state)
{
	struct group g;
	struct block_key k;
	uint64_t us = 0;

	(void)state;
	group_start(&g, PEER_OWNER, NULL, false, 16 * MIB);
	k = owned(&g, 0, 0);
	behave(&g.d[0], FILL_SLOWLY);
	/* on a busy machine FILLING itself may come later than the hedge, but not every time */
	for (unsigned i = 0; i < 5; i++) {
		unsigned before = counted(&g.d[1].gets);

		us = get(&g, &k, 0, BLOCK, 0, 0, VIA_PEER);
		if (counted(&g.d[1].gets) == before)
			break;
		us = 0;
	}
	assert_true(us >= 700000);
	group_stop(&g);
}

/* his answer would come for seconds or minutes yet */
static void the_loser_of_a_hedge_gives_its_memory_back_at_once(void **state)
{
	static const enum behaviour how[] = {HANG, FILL_FOR_EVER};
	struct group g;
	struct block_key k;
	uint64_t start;

	(void)state;
	for (unsigned i = 0; i < ARRAY_LEN(how); i++) {
		group_start(&g, PEER_OWNER, NULL, false, 32 * MIB);
		k = owned(&g, 0, 0);
		behave(&g.d[0], how[i]);
		get(&g, &k, 0, BLOCK, 0, 0, VIA_PEER);
		assert_int_equal(counted(&g.d[0].gets), 1);
		assert_int_equal(counted(&g.d[1].gets), 1);
		start = clock_us();
		req_env_drain(&g.w.env);
		assert_true(clock_us() - start < 1000000);
		assert_int_equal(pool_used(&g), 0);
		/* its connection is in step all the same */
		behave(&g.d[0], SERVE);
		for (unsigned n = 0; n < 5; n++)
			get(&g, &k, 0, BLOCK, 0, 0, VIA_PEER);
		group_stop(&g);
	}
}

static void fill_leaves_an_owner_that_hangs(void **state)
{
	struct group g;
	struct block_key k;

	(void)state;
	group_start(&g, PEER_OWNER, NULL, false, 16 * MIB);
	k = owned(&g, 0, 0);
	behave(&g.d[0], HANG);
	assert_true(get(&g, &k, 0, BLOCK, REQ_FILL, 0, VIA_NONE) < 6000000);
	assert_int_equal(counted(&g.d[1].fills), 1);
	group_stop(&g);
}

/* FILLING came when the successor was asked already, who is silent: the store is not asked too */
static void who_says_filling_late_is_waited_for(void **state)
{
	struct group g;
	struct block_key k;

	(void)state;
	group_start(&g, PEER_OWNER, NULL, false, 32 * MIB);
	k = owned(&g, 0, 0);
	behave(&g.d[0], FILL_LATE);
	behave(&g.d[1], HANG);
	get(&g, &k, 0, BLOCK, 0, 0, VIA_PEER);
	assert_int_equal(counted(&g.d[1].gets), 1);
	assert_int_equal(mem_gets(&g.w.store), 0);
	group_stop(&g);
}

static void stand_still(struct loop_job *job)
{
	(void)job;
	usleep(900000);
}

/* The thread that reads answers did not run: they were there. */
static void who_did_not_run_himself_hedges_nobody(void **state)
{
	struct loop_job job = {.fn = stand_still};
	struct group g;
	struct read rd;
	struct block_key k;

	(void)state;
	group_start(&g, PEER_OWNER, NULL, false, 32 * MIB);
	k = owned(&g, 0, 0);
	get(&g, &k, 0, BLOCK, 0, 0, VIA_PEER);
	behave(&g.d[0], FILL_SLOWLY);
	read_go(&g.w, &g.wt, &rd, &k, 0, BLOCK, 0);
	wait_for(&g.d[0].gets, 2);
	loop_post(g.loop, &job);
	waiter_wait(&g.wt);
	read_check(&rd, 0);
	assert_int_equal(counted(&g.d[1].gets), 0);
	assert_int_equal(mem_gets(&g.w.store), 0);
	group_stop(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(owner_hangs_and_costs_one_hedge_G01_G02),
		cmocka_unit_test(what_is_sent_to_the_owner_is_dropped_G04),
		cmocka_unit_test(both_hang_and_the_store_answers),
		cmocka_unit_test(nobody_hedges_after_filling),
		cmocka_unit_test(the_loser_of_a_hedge_gives_its_memory_back_at_once),
		cmocka_unit_test(who_says_filling_late_is_waited_for),
		cmocka_unit_test(who_did_not_run_himself_hedges_nobody),
		cmocka_unit_test(fill_leaves_an_owner_that_hangs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
