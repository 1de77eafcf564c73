/* SPDX-License-Identifier: Apache-2.0 */
/* The index as it passes from a program to the next: all of it, in the same order, or refused. */
#include "tests/unit/cached/fixture.h"

#include <sys/mman.h>

#include "cached/index.h"
#include "cached/snapshot.h"
#include "proto/bytes.h"

enum { MANY = 100000, QUICK_S = 3 /* of a processor, sanitizers and all */ };

static struct index *index_of(unsigned n_disks)
{
	struct index *ix;

	assert_int_equal(index_new(&volume_a, n_disks, evict_loop_new, &ix), 0);
	return ix;
}

static void leave(struct index *ix, unsigned disk, struct block_key *ret, size_t max, size_t *ret_n)
{
	*ret_n = 0;
	while (*ret_n < max && index_victim(ix, disk, &ret[*ret_n]) == 0)
		index_gone(ix, &ret[(*ret_n)++]);
}

/* the row of a disk that is open */
static struct snapshot_row row_of(const struct disk *d)
{
	struct snapshot_row r = {.disk = d->number, .checked = 17};

	assert_int_equal(snapshot_place(d, &r.place), 0);
	return r;
}

static void the_order_stays(enum evict_kind others)
{
	struct world *w = world_new(64 << 20, 2);
	struct index *a = index_of(2), *b = index_of(2);
	struct snapshot_row rows[2] = {row_of(w->disks[0]), row_of(w->disks[1])};
	struct block_key k, was[600], is[600];
	struct recover_stat st;
	struct snapshot *sn;
	size_t n_was, n_is;
	int fd = -1;

	for (uint64_t i = 0; i < 600; i++) {
		k = key_of(&volume_a, i, BLOCK);
		assert_int_equal(index_add(a, &k, i % 5 == 0, i % 7 ? others : EVICT_GUEST), 0);
	}
	k = key_of(&volume_a, 1, BLOCK);
	assert_true(index_pin(a, &k, true));
	assert_int_equal(snapshot_write(a, &volume_a, rows, 2, &fd), 0);
	/* nobody changes it any more */
	assert_true(write(fd, "x", 1) < 0);
	sn = snapshot_take(fd);
	assert_non_null(sn);
	for (unsigned d = 0; d < 2; d++) {
		assert_int_equal(snapshot_recover(sn, w->disks[d], b, &volume_a, &st), 0);
		assert_int_equal(st.blocks, d ? 120 : 480);
		assert_int_equal(st.bytes, st.blocks * disk_cost(BLOCK));
		assert_int_equal(atomic_load(&w->disks[d]->used), st.bytes);
		assert_int_equal(st.checked, 17);
	}
	assert_int_equal(index_count(b), 600);
	assert_true(index_pin(b, &k, true));
	for (unsigned d = 0; d < 2; d++) {
		leave(a, d, was, 600, &n_was);
		leave(b, d, is, 600, &n_is);
		assert_int_equal(n_was, n_is);
		for (size_t i = 0; i < n_was; i++)
			assert_true(block_key_eq(&was[i], &is[i]));
	}
	snapshot_free(sn);
	index_free(a);
	index_free(b);
	world_free(w);
}

static void who_leaves_next_stays_the_same(void **state)
{
	(void)state;
	the_order_stays(EVICT_READ);
	the_order_stays(EVICT_ASKED);
}

static uint8_t *bytes_of(int fd, size_t *ret_n)
{
	struct stat st;
	uint8_t *p;

	assert_int_equal(fstat(fd, &st), 0);
	p = malloc((size_t)st.st_size);
	assert_non_null(p);
	assert_int_equal(pread(fd, p, (size_t)st.st_size, 0), st.st_size);
	*ret_n = (size_t)st.st_size;
	return p;
}

static void what_is_not_whole_is_refused(void **state)
{
	struct world *w = world_new(64 << 20, 1);
	struct snapshot_row row = row_of(w->disks[0]);
	struct index *ix = index_of(1);
	struct snapshot_view v;
	size_t n;
	uint8_t *p;
	int fd = -1;

	(void)state;
	for (uint64_t i = 0; i < 3; i++) {
		struct block_key k = key_of(&volume_a, i, BLOCK);

		assert_int_equal(index_add(ix, &k, 0, EVICT_ASKED), 0);
	}
	assert_int_equal(snapshot_write(ix, &volume_a, &row, 1, &fd), 0);
	p = bytes_of(fd, &n);
	assert_int_equal(n, SNAPSHOT_HEAD + SNAPSHOT_DISK + 3 * SNAPSHOT_BLOCK);
	assert_int_equal(snapshot_parse(p, n, &v), 0);
	assert_int_equal(v.n_blocks, 3);
	for (size_t cut = 0; cut < n; cut++)
		assert_int_equal(snapshot_parse(p, cut, &v), -EBADMSG);
	/* any bit but those of the volume, which is compared by who takes it */
	for (size_t i = 0; i < n; i++) {
		if (i >= 24 && i < 40)
			continue;
		p[i] ^= 4;
		assert_int_equal(snapshot_parse(p, n, &v), i >= 8 && i < 12 ? -EPROTO : -EBADMSG);
		p[i] ^= 4;
	}
	free(p);
	(void)close(fd);
	index_free(ix);
	assert_null(snapshot_take(-1));
	fd = memfd_create("empty", MFD_CLOEXEC);
	assert_null(snapshot_take(fd));
	world_free(w);
}

static void another_disk_or_volume_gets_nothing(void **state)
{
	struct world *w = world_new(64 << 20, 2);
	struct snapshot_row row = row_of(w->disks[0]);
	struct block_key k = key_of(&volume_a, 1, BLOCK);
	struct index *a = index_of(2), *b = index_of(2);
	struct recover_stat st;
	struct snapshot *sn;
	int fd = -1;

	(void)state;
	assert_int_equal(index_add(a, &k, 0, EVICT_ASKED), 0);
	assert_int_equal(snapshot_write(a, &volume_a, &row, 1, &fd), 0);
	sn = snapshot_take(fd);
	assert_non_null(sn);
	assert_int_equal(snapshot_recover(sn, w->disks[1], b, &volume_a, &st), -ENOENT);
	assert_int_equal(snapshot_recover(sn, w->disks[0], b, &volume_b, &st), -ENOENT);
	assert_int_equal(index_count(b), 0);
	assert_int_equal(snapshot_recover(sn, w->disks[0], b, &volume_a, &st), 0);
	assert_int_equal(index_count(b), 1);
	snapshot_free(sn);
	index_free(a);
	index_free(b);
	world_free(w);
}

/* the store uses it instead of names, with its pins, and keeps nothing more meanwhile */
static void a_store_goes_on_with_it(void **state)
{
	struct world *w = world_new(64 << 20, 1);
	struct block_key k[5], late = key_of(&volume_a, 9, BLOCK);
	struct msg_stat st;
	char path[320];
	int fd;

	(void)state;
	for (uint64_t i = 0; i < 5; i++) {
		k[i] = key_of(&volume_a, i, BLOCK);
		assert_int_equal(fill(w, &k[i]), 0);
	}
	fd = store_hand_over(w->store, 1000000);
	assert_true(fd >= 0);
	assert_int_equal(fill(w, &late), -EBUSY);
	/* names say less: so it is not them who are asked */
	block_file(w, 0, &k[3], path);
	world_close(w);
	assert_int_equal(unlink(path), 0);
	w->snapshot = snapshot_take(fd);
	assert_non_null(w->snapshot);
	world_open(w);
	store_stat(w->store, &st);
	assert_int_equal(st.blocks, 5);
	assert_int_equal(st.bytes, 5 * disk_cost(BLOCK));
	assert_int_equal(atomic_load(&w->objects.gets), 6);
	for (uint64_t i = 0; i < 5; i++)
		assert_int_equal(get(w, &k[i], 0, BLOCK, 0, NULL), 0);
	assert_int_equal(atomic_load(&w->objects.gets), 7); /* the one that is missing */
	assert_int_equal(fill(w, &late), 0);
	/* and after a restart names count */
	w->snapshot = NULL;
	eventually(probe(w, &k[3]));
	world_close(w);
	assert_int_equal(unlink(path), 0);
	world_open(w);
	store_stat(w->store, &st);
	assert_int_equal(st.blocks, 5);
	world_free(w);
}

/* the gap that readers see: a million blocks take ten times as long (bench/blocks) */
static void many_blocks_are_quick(void **state)
{
	struct world *w = world_new(UINT64_C(1) << 40, 1);
	struct snapshot_row row = row_of(w->disks[0]);
	struct index *a = index_of(1), *b = index_of(1);
	struct recover_stat st;
	struct snapshot *sn;
	clock_t took;
	int fd = -1;

	(void)state;
	for (uint64_t i = 0; i < MANY; i++) {
		struct block_key k = key_of(&volume_a, i, BLOCK);

		assert_int_equal(index_add(a, &k, 0, EVICT_READ), 0);
	}
	took = clock();
	assert_int_equal(snapshot_write(a, &volume_a, &row, 1, &fd), 0);
	sn = snapshot_take(fd);
	assert_non_null(sn);
	assert_int_equal(snapshot_recover(sn, w->disks[0], b, &volume_a, &st), 0);
	took = clock() - took;
	print_message("%d blocks written and taken over: %.3f s of a processor\n", MANY,
		      (double)took / CLOCKS_PER_SEC);
	assert_true(took < QUICK_S * CLOCKS_PER_SEC);
	assert_int_equal(index_count(b), MANY);
	snapshot_free(sn);
	index_free(a);
	index_free(b);
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(who_leaves_next_stays_the_same),
		cmocka_unit_test(what_is_not_whole_is_refused),
		cmocka_unit_test(another_disk_or_volume_gets_nothing),
		cmocka_unit_test(a_store_goes_on_with_it),
		cmocka_unit_test(many_blocks_are_quick),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
