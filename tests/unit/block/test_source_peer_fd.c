/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors of block files that the daemon of this node passed. */
#include "tests/unit/block/group.h"

static void descriptors_serve_without_the_daemon(void **state)
{
	struct group g;
	struct block_key k;

	(void)state;
	group_start(&g, PEER_OWNER, "a", true, 16 * MIB);
	k = key_of(5, 0);
	behave(&g.d[0], PASS_FD);
	get(&g, &k, 0, BLOCK, 0, 0, VIA_LOCAL);
	for (unsigned i = 0; i < 20; i++)
		get(&g, &k, i * 10000, 20000, 0, 0, VIA_LOCAL);
	assert_int_equal(counted(&g.d[0].gets), 1);
	/* a daemon that has it only in memory sends the bytes */
	k = key_of(6, 0);
	behave(&g.d[0], SERVE);
	get(&g, &k, 3, 20000, 0, 0, VIA_LOCAL);
	/* the daemon is gone: what was passed still serves */
	daemon_stop(&g.d[0]);
	k = key_of(5, 0);
	get(&g, &k, 0, BLOCK, 0, 0, VIA_LOCAL);
	k = key_of(7, 0);
	get(&g, &k, 0, BLOCK, 0, 0, VIA_OBJECT);
	group_stop(&g);
}

static void damaged_files_are_reported_and_not_kept_B03(void **state)
{
	struct group g;
	struct block_key k = key_of(5, 0);

	(void)state;
	group_start(&g, PEER_OWNER, "a", true, 16 * MIB);
	behave(&g.d[0], PASS_BAD_FD);
	get(&g, &k, 0, BLOCK, 0, 0, VIA_OBJECT);
	wait_for(&g.d[0].bads, 1);
	wait_for(&g.d[0].closeds, 1);
	behave(&g.d[0], PASS_SHORT_FD);
	get(&g, &k, 0, BLOCK, 0, 0, VIA_OBJECT);
	wait_for(&g.d[0].bads, 2);
	wait_for(&g.d[0].closeds, 2);
	behave(&g.d[0], PASS_FD);
	get(&g, &k, 0, BLOCK, 0, 0, VIA_LOCAL);
	assert_int_equal(counted(&g.d[0].gets), 3);
	group_stop(&g);
}

static void descriptors_are_bounded_and_closed_ones_told(void **state)
{
	struct fd_cache *c;
	struct group g;
	struct peer *p;
	struct block_key k;
	struct fd_entry *e, *again;

	(void)state;
	group_start(&g, PEER_OWNER, "a", true, 16 * MIB);
	p = peers_get(g.peers, g.d[0].path, 0);
	assert_int_equal(fd_cache_new(4, UINT64_MAX, NULL, NULL, &c), 0);
	for (uint64_t s = 1; s <= 10; s++) {
		k = key_of(s, 0);
		e = fd_cache_add(c, &k, open("/dev/null", O_RDONLY), p, true);
		assert_non_null(e);
		fd_entry_unref(e);
	}
	wait_for(&g.d[0].closeds, 6);
	k = key_of(6, 0);
	assert_null(fd_cache_find(c, &k));
	k = key_of(7, 0);
	e = fd_cache_find(c, &k);
	assert_non_null(e);
	/* a second descriptor of one block is closed at once */
	again = fd_cache_add(c, &k, open("/dev/null", O_RDONLY), p, true);
	assert_ptr_equal(again, e);
	fd_entry_unref(again);
	wait_for(&g.d[0].closeds, 7);
	/* in use: dropped, but open until it is given back */
	fd_cache_drop(c, &k);
	assert_null(fd_cache_find(c, &k));
	assert_true(fcntl(fd_entry_fd(e), F_GETFD) >= 0);
	fd_entry_unref(e);
	wait_for(&g.d[0].closeds, 8);
	fd_cache_free(c);
	wait_for(&g.d[0].closeds, 11);
	group_stop(&g);
}

static int some_file(bool removed)
{
	char path[] = "/tmp/stoke-fd-XXXXXX";
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	if (removed)
		assert_int_equal(unlink(path), 0);
	return fd;
}

static void add_fd(struct group *g, struct fd_cache *c, uint64_t slice, int fd)
{
	struct block_key k = key_of(slice, 0);
	struct peer *p = peers_get(g->peers, g->d[0].path, 0);
	struct fd_entry *e = fd_cache_add(c, &k, fd, p, true);

	assert_non_null(e);
	fd_entry_unref(e);
}

/* a file that the daemon removed takes its disk's space until it is closed */
static void descriptors_of_removed_files_are_closed_soon(void **state)
{
	struct block_key k = key_of(1, 0);
	struct fd_cache *c;
	struct group g;
	struct fd_entry *e;

	(void)state;
	group_start(&g, PEER_OWNER, "a", true, 16 * MIB);
	/* when it is used, which it may be once more */
	assert_int_equal(fd_cache_new(100, UINT64_MAX, NULL, NULL, &c), 0);
	add_fd(&g, c, 1, some_file(true));
	e = fd_cache_find(c, &k);
	assert_non_null(e);
	assert_null(fd_cache_find(c, &k));
	assert_true(fcntl(fd_entry_fd(e), F_GETFD) >= 0);
	fd_entry_unref(e);
	wait_for(&g.d[0].closeds, 1);
	fd_cache_free(c);
	/* and when nobody uses it; others stay */
	assert_int_equal(fd_cache_new(100, UINT64_MAX, g.loop, NULL, &c), 0);
	for (uint64_t s = 1; s <= 60; s++)
		add_fd(&g, c, s, s == 7 ? open("/dev/null", O_RDONLY) : some_file(true));
	wait_for(&g.d[0].closeds, 60);
	k = key_of(7, 0);
	e = fd_cache_find(c, &k);
	assert_non_null(e);
	fd_entry_unref(e);
	fd_cache_free(c);
	wait_for(&g.d[0].closeds, 61);
	group_stop(&g);
}

static void descriptors_are_bounded_by_their_blocks_bytes(void **state)
{
	struct fd_cache *c;
	struct group g;

	(void)state;
	group_start(&g, PEER_OWNER, "a", true, 16 * MIB);
	assert_int_equal(fd_cache_new(100, 3 * (uint64_t)BLOCK + 1, NULL, NULL, &c), 0);
	for (uint64_t s = 1; s <= 10; s++)
		add_fd(&g, c, s, open("/dev/null", O_RDONLY));
	wait_for(&g.d[0].closeds, 7);
	fd_cache_free(c);
	wait_for(&g.d[0].closeds, 10);
	group_stop(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(descriptors_serve_without_the_daemon),
		cmocka_unit_test(damaged_files_are_reported_and_not_kept_B03),
		cmocka_unit_test(descriptors_are_bounded_and_closed_ones_told),
		cmocka_unit_test(descriptors_of_removed_files_are_closed_soon),
		cmocka_unit_test(descriptors_are_bounded_by_their_blocks_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
