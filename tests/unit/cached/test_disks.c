/* SPDX-License-Identifier: Apache-2.0 */
/* Disks that hang, vanish and come back below the store. */
#include "tests/unit/cached/fixture.h"

static void nap(void)
{
	const struct timespec ms = {.tv_nsec = 1000000};

	nanosleep(&ms, NULL);
}

static void await_state(struct world *w, unsigned disk, enum disk_state want)
{
	for (unsigned i = 0; disk_state(w->disks[disk]) != want; i++) {
		assert_true(i < 20000);
		nap();
	}
}

static unsigned gets(struct world *w)
{
	return atomic_load(&w->objects.gets);
}

static void await_gates(struct gate *g, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		while (!atomic_load(&g[i].gone))
			nap();
}

/* files that are open are no way to the disk's threads */
static void forget_open(struct world *w)
{
	world_close(w);
	world_open(w);
}

static void a_read_on_a_disk_that_hangs_goes_elsewhere_in_time(void **state)
{
	struct world *w = world_new(64 << 20, 1);
	struct block_key k = key_of(&volume_a, 1, BLOCK), other = key_of(&volume_a, 2, BLOCK);
	struct gate gate[DISK_READ_THREADS];
	atomic_bool open = false;
	enum req_via via = VIA_NONE;
	uint64_t began;
	unsigned n;

	(void)state;
	assert_int_equal(fill(w, &k), 0);
	forget_open(w);
	n = gets(w);
	hold(w, 0, DISK_READS, gate, DISK_READ_THREADS, &open);
	began = clock_us();
	assert_int_equal(get(w, &k, 0, BLOCK, 0, &via), 0);
	assert_int_equal(via, VIA_OBJECT);
	assert_int_equal(gets(w), n + 1);
	assert_true(clock_us() - began < 1500000);
	await_state(w, 0, DISK_AWAY);
	/* from now on nobody waits for it, and nothing is kept there */
	assert_int_equal(metric_value(w->disks[0]->metrics.set_aside), 1);
	assert_int_equal(get(w, &k, 0, BLOCK, 0, &via), 0);
	assert_int_equal(via, VIA_OBJECT);
	assert_int_equal(get(w, &other, 0, BLOCK, 0, NULL), 0);
	assert_int_equal(fill(w, &other), -EBUSY);
	assert_false(probe(w, &k));
	/* it is taken back with what it has */
	atomic_store(&open, true);
	await_gates(gate, DISK_READ_THREADS);
	await_state(w, 0, DISK_WELL);
	n = gets(w);
	assert_int_equal(get(w, &k, 0, BLOCK, 0, &via), 0);
	assert_int_equal(via, VIA_STORE);
	assert_int_equal(gets(w), n);
	assert_int_equal(fill(w, &other), 0);
	world_free(w);
}

static void it_is_not_taken_back_while_a_thread_is_stuck(void **state)
{
	struct world *w = world_new(64 << 20, 1);
	struct gate gate[1];
	atomic_bool open = false;

	(void)state;
	hold(w, 0, DISK_READS, gate, 1, &open);
	await_state(w, 0, DISK_AWAY);
	for (unsigned i = 0; i < 1500; i++) { /* probes work all the while */
		assert_int_equal(disk_state(w->disks[0]), DISK_AWAY);
		nap();
	}
	atomic_store(&open, true);
	await_gates(gate, 1);
	await_state(w, 0, DISK_WELL);
	world_free(w);
}

/* memory of what waits for a hanging disk is given back, who waits is told, and what hung is kept
 * if it ends well after all */
static void writes_that_hang_hold_nobody_up(void **state)
{
	struct world *w = world_new(64 << 20, 1);
	struct block_key k = key_of(&volume_a, 1, BLOCK);
	struct gate gate[DISK_WRITE_THREADS];
	atomic_bool open = false;
	struct pool_stat pool;
	uint64_t began = clock_us();

	(void)state;
	hold(w, 0, DISK_WRITES, gate, DISK_WRITE_THREADS, &open);
	for (uint64_t i = 10; i < 20; i++) {
		struct block_key more = key_of(&volume_a, i, BLOCK);

		assert_int_equal(get(w, &more, 0, BLOCK, 0, NULL), 0);
	}
	assert_int_equal(fill(w, &k), -EBUSY);
	assert_true(clock_us() - began < 4000000);
	await_state(w, 0, DISK_AWAY);
	for (unsigned i = 0; pool_stat(w->pool, &pool), pool.used; i++) {
		assert_true(i < 2000);
		nap();
	}
	atomic_store(&open, true);
	await_gates(gate, DISK_WRITE_THREADS);
	await_state(w, 0, DISK_WELL);
	assert_int_equal(fill(w, &k), 0);
	world_free(w);
}

static void a_block_of_a_disk_that_is_away_is_kept_by_another(void **state)
{
	struct world *w = world_new(64 << 20, 2);
	struct block_key k;
	struct gate gate[DISK_READ_THREADS];
	atomic_bool open = false;
	enum req_via via = VIA_NONE;
	uint64_t i = 0;
	unsigned n;

	(void)state;
	do { /* one that lies on the first */
		k = key_of(&volume_a, ++i, BLOCK);
		assert_int_equal(fill(w, &k), 0);
	} while (!atomic_load(&w->disks[0]->blocks));
	forget_open(w);
	hold(w, 0, DISK_READS, gate, DISK_READ_THREADS, &open);
	await_state(w, 0, DISK_AWAY);
	assert_int_equal(fill(w, &k), 0);
	n = gets(w);
	assert_int_equal(get(w, &k, 0, BLOCK, 0, &via), 0);
	assert_int_equal(via, VIA_STORE);
	assert_int_equal(gets(w), n);
	/* back with one copy too many: that one goes */
	atomic_store(&open, true);
	await_gates(gate, DISK_READ_THREADS);
	await_state(w, 0, DISK_WELL);
	assert_int_equal(atomic_load(&w->disks[0]->blocks), 0);
	assert_int_equal(get(w, &k, 0, BLOCK, 0, &via), 0);
	assert_int_equal(via, VIA_STORE);
	world_free(w);
}

static void a_directory_that_vanishes_is_made_anew(void **state)
{
	struct world *w = world_new(64 << 20, 1);
	struct block_key k = key_of(&volume_a, 1, BLOCK);
	enum req_via via = VIA_NONE;
	char dir[80];

	(void)state;
	assert_int_equal(fill(w, &k), 0);
	forget_open(w);
	(void)snprintf(dir, sizeof(dir), "%s/0", w->dir);
	assert_int_equal(nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
	assert_int_equal(get(w, &k, 0, BLOCK, 0, &via), 0);
	assert_int_equal(via, VIA_OBJECT);
	assert_int_equal(metric_value(w->disks[0]->metrics.set_aside), 1);
	await_state(w, 0, DISK_WELL);
	/* what it does not have any more is found out when it is used */
	assert_int_equal(get(w, &k, 0, BLOCK, 0, &via), 0);
	assert_int_equal(via, VIA_OBJECT);
	assert_int_equal(fill(w, &k), 0);
	assert_int_equal(get(w, &k, 0, BLOCK, 0, &via), 0);
	assert_int_equal(via, VIA_STORE);
	world_free(w);
}

static void a_disk_that_is_missing_at_start_is_no_error(void **state)
{
	struct world *w = world_new(64 << 20, 2);
	struct block_key k = key_of(&volume_a, 1, BLOCK);
	char dir[80], parked[96];
	int fd;

	(void)state;
	world_close(w);
	/* a link to nowhere, as a mount point of a dead file system */
	(void)snprintf(dir, sizeof(dir), "%s/1", w->dir);
	(void)snprintf(parked, sizeof(parked), "%s/parked", w->dir);
	assert_int_equal(rename(dir, parked), 0);
	assert_int_equal(symlink("/nonexistent/place", dir), 0);
	world_open(w);
	assert_int_equal(disk_state(w->disks[0]), DISK_WELL);
	assert_int_equal(disk_state(w->disks[1]), DISK_AWAY);
	for (uint64_t i = 1; i < 8; i++) {
		k = key_of(&volume_a, i, BLOCK);
		assert_int_equal(fill(w, &k), 0);
	}
	assert_int_equal(atomic_load(&w->disks[0]->blocks), 7);
	fd = unlink(dir);
	assert_int_equal(fd | rename(parked, dir), 0);
	await_state(w, 1, DISK_WELL);
	for (uint64_t i = 8; i < 40; i++) {
		k = key_of(&volume_a, i, BLOCK);
		assert_int_equal(fill(w, &k), 0);
	}
	assert_true(atomic_load(&w->disks[1]->blocks) > 0);
	world_free(w);
}

static void blocks_spread_as_the_budgets_do(void **state)
{
	enum { BLOCKS = 3000, SIZE = 512 };
	struct world *w = world_new(64 << 20, 2);
	double share;

	(void)state;
	world_close(w);
	w->uneven = true;
	world_open(w);
	for (uint64_t i = 0; i < BLOCKS; i++) {
		struct block_key k = key_of(&volume_a, i, SIZE);

		assert_int_equal(fill(w, &k), 0);
	}
	share = (double)atomic_load(&w->disks[1]->blocks) / BLOCKS;
	assert_true(share > 0.6 && share < 0.73);
	assert_int_equal(atomic_load(&w->disks[0]->blocks) + atomic_load(&w->disks[1]->blocks),
			 BLOCKS);
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_read_on_a_disk_that_hangs_goes_elsewhere_in_time),
		cmocka_unit_test(it_is_not_taken_back_while_a_thread_is_stuck),
		cmocka_unit_test(writes_that_hang_hold_nobody_up),
		cmocka_unit_test(a_block_of_a_disk_that_is_away_is_kept_by_another),
		cmocka_unit_test(a_directory_that_vanishes_is_made_anew),
		cmocka_unit_test(a_disk_that_is_missing_at_start_is_no_error),
		cmocka_unit_test(blocks_spread_as_the_budgets_do),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
