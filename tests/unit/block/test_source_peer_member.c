/* SPDX-License-Identifier: Apache-2.0 */
/* The layer that asks peers, in a daemon: whom a member asks, and how. */
#include "tests/unit/block/group.h"

static void no_fill_asks_nobody(void **state)
{
	struct group g;
	struct block_key k;

	(void)state;
	group_start(&g, PEER_OWNER, NULL, false, 16 * MIB);
	k = owned(&g, 0, 0);
	get(&g, &k, 0, BLOCK, REQ_NO_FILL, -ENOENT, VIA_NONE);
	assert_int_equal(counted(&g.d[0].gets) + counted(&g.d[1].gets), 0);
	group_stop(&g);
}

static void the_others_on_the_path_are_asked(void **state)
{
	struct group g;
	struct block_key mine, his;

	(void)state;
	group_start(&g, PEER_HOLDER, "a", false, 16 * MIB);
	mine = owned(&g, 0, 0);
	his = owned(&g, 1, 0);
	/* new here: who had it before me is behind me */
	see(&g, MEMBER_JOINING, MEMBER_ACTIVE);
	get(&g, &mine, 0, BLOCK, 0, 0, VIA_PEER);
	assert_int_equal(counted(&g.d[1].no_fills), 1);
	/* he goes, and what was his is mine */
	see(&g, MEMBER_ACTIVE, MEMBER_DRAINING);
	get(&g, &his, 0, BLOCK, 0, 0, VIA_PEER);
	assert_int_equal(counted(&g.d[1].no_fills), 2);
	/* what is behind me I have */
	get(&g, &mine, 0, BLOCK, 0, 0, VIA_OBJECT);
	assert_int_equal(counted(&g.d[1].gets), 2);
	/* no member any more: he is to get it, unless a member asks me */
	see(&g, 0, MEMBER_ACTIVE);
	get(&g, &mine, 0, BLOCK, 0, 0, VIA_PEER); /* a lapse */
	g.view.consumer = true;
	get(&g, &mine, 0, BLOCK, 0, 0, VIA_PEER);
	assert_int_equal(counted(&g.d[1].gets), 4);
	assert_int_equal(counted(&g.d[1].no_fills), 2);
	get(&g, &mine, 0, BLOCK, REQ_MEMBER, 0, VIA_PEER);
	assert_int_equal(counted(&g.d[1].no_fills), 3);
	group_stop(&g);
}

/* Who is asked in the owner's place asks the owner, who is to fetch it for both; for a member, by
 * NO_FILL. */
static void owner_is_asked_by_his_successor_G12(void **state)
{
	struct group g;
	struct block_key mine, his;

	(void)state;
	group_start(&g, PEER_HOLDER, "a", false, 16 * MIB);
	mine = owned(&g, 0, 0);
	his = owned(&g, 1, 0);
	/* who holds it by the ring is me: nobody to ask */
	get(&g, &mine, 0, BLOCK, 0, 0, VIA_OBJECT);
	assert_int_equal(counted(&g.d[0].gets) + counted(&g.d[1].gets), 0);
	/* I am only the successor: the owner is asked */
	get(&g, &his, 0, BLOCK, 0, 0, VIA_PEER);
	assert_int_equal(counted(&g.d[1].no_fills), 0);
	behave(&g.d[1], NO_OBJECT); /* the store's word, which need not be asked for twice */
	get(&g, &his, 0, BLOCK, 0, -ENODATA, VIA_NONE);
	assert_int_equal(mem_gets(&g.w.store), 1);
	get(&g, &his, 0, BLOCK, REQ_MEMBER, 0, VIA_OBJECT);
	assert_int_equal(counted(&g.d[1].no_fills), 1);
	behave(&g.d[1], NOT_HERE);
	get(&g, &his, 0, BLOCK, REQ_MEMBER, 0, VIA_OBJECT);
	assert_int_equal(counted(&g.d[1].no_fills), 2);
	/* he is getting it himself: it comes */
	behave(&g.d[1], FILL_SLOWLY);
	assert_true(get(&g, &his, 0, BLOCK, 0, 0, VIA_PEER) >= 700000);
	/* and if he dies of it, that costs little */
	behave(&g.d[1], FILL_FOR_EVER);
	assert_true(get(&g, &his, 0, BLOCK, 0, 0, VIA_OBJECT) < 3500000);
	behave(&g.d[1], SERVE);
	for (unsigned i = 0; i < 10000 && is_slow(&g, 1); i++)
		usleep(1000);
	/* a filling daemon waits 300 ms for him, once */
	behave(&g.d[1], HANG);
	assert_true(get(&g, &his, 0, BLOCK, 0, 0, VIA_OBJECT) < 800000);
	for (unsigned i = 0; i < 5; i++)
		assert_true(get(&g, &his, 0, BLOCK, 0, 0, VIA_OBJECT) < 280000);
	get(&g, &his, 0, BLOCK, REQ_NO_FILL, -ENOENT, VIA_NONE);
	assert_int_equal(counted(&g.d[0].gets), 0);
	group_stop(&g);
}

/* who is asked for what everybody wants may be slow; the object store is asked when he is dead */
static void a_holder_that_lives_is_waited_for(void **state)
{
	struct group g;
	struct block_key k;
	uint64_t us;

	(void)state;
	group_start(&g, PEER_HOLDER, "b", false, 16 * MIB);
	k = owned(&g, 0, 0);
	behave(&g.d[0], SLOW);
	us = get(&g, &k, 0, BLOCK, 0, 0, VIA_PEER);
	assert_true(us >= 650000);
	assert_int_equal(mem_gets(&g.w.store), 0);
	behave(&g.d[0], HANG);
	us = get(&g, &k, 0, BLOCK, 0, 0, VIA_OBJECT);
	assert_in_range(us, 280000, 650000);
	group_stop(&g);
}

/* the one is silent, the other has answered already that he has nothing: his life is not the first
 * one's */
static void who_has_answered_does_not_stand_for_who_is_silent(void **state)
{
	struct group g;
	struct block_key k;
	uint64_t us;

	(void)state;
	group_start(&g, PEER_HOLDER, "c", false, 16 * MIB);
	k = owned(&g, 0, 0);
	see(&g, MEMBER_JOINING, MEMBER_ACTIVE);
	behave(&g.d[1], HANG); /* the active one comes first */
	behave(&g.d[0], NOT_HERE);
	us = get(&g, &k, 0, BLOCK, REQ_MEMBER, 0, VIA_OBJECT);
	assert_int_equal(counted(&g.d[0].no_fills), 1);
	assert_int_equal(counted(&g.d[1].no_fills), 1);
	assert_in_range(us, 280000, 1200000);
	group_stop(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_fill_asks_nobody),
		cmocka_unit_test(the_others_on_the_path_are_asked),
		cmocka_unit_test(owner_is_asked_by_his_successor_G12),
		cmocka_unit_test(a_holder_that_lives_is_waited_for),
		cmocka_unit_test(who_has_answered_does_not_stand_for_who_is_silent),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
