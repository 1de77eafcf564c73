/* SPDX-License-Identifier: Apache-2.0 */
/* Recovery from what may lie in a cache directory: whole blocks, cut ones, left-overs, files with
 * other names, in other places, on two disks. */
#include "tests/unit/cached/fixture.h"

#include <ftw.h>
#include <sys/wait.h>

#include "cached/index.h"
#include "cached/recover.h"

static void make_file(const char *path, size_t len)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)len), 0);
	assert_int_equal(close(fd), 0);
}

static bool there(const char *path)
{
	return access(path, F_OK) == 0;
}

static void only_whole_blocks_in_their_place_count(void **state)
{
	struct world *w = world_new(64 << 20, 1);
	struct block_key good = key_of(&volume_a, 1, BLOCK), cut = key_of(&volume_a, 2, BLOCK),
			 long_one = key_of(&volume_a, 3, BLOCK),
			 empty = key_of(&volume_a, 4, BLOCK), moved = key_of(&volume_a, 5, BLOCK);
	char path[320], elsewhere[400], junk[400], *slash;
	struct recover_stat st;
	struct index *ix;
	struct disk *d;

	(void)state;
	world_close(w);
	block_file(w, 0, &good, path);
	make_file(path, blockfile_len(BLOCK));
	block_file(w, 0, &cut, path);
	make_file(path, blockfile_len(BLOCK) - 1);
	block_file(w, 0, &long_one, path);
	make_file(path, blockfile_len(BLOCK) + 1);
	block_file(w, 0, &empty, path);
	make_file(path, 0);
	block_file(w, 0, &moved, path);
	slash = strrchr(path, '/');
	(void)snprintf(elsewhere, sizeof(elsewhere), "%.*s/%02x%s", (int)(slash - path - 3), path,
		       (unsigned)((moved.digest + 1) & 0xff), slash);
	make_file(elsewhere, blockfile_len(BLOCK));
	(void)snprintf(junk, sizeof(junk), "%.*s/core", (int)(slash - path), path);
	make_file(junk, 5);

	assert_int_equal(index_new(&volume_a, 1, evict_loop_new, &ix), 0);
	d = world_disk(w, 0);
	assert_int_equal(recover_disk(d, ix, &volume_a, RECOVER_LENGTHS_US, &st), 0);
	assert_int_equal(st.blocks, 1);
	assert_int_equal(st.removed, 5);
	assert_int_equal(st.checked, RECOVER_DIRS);
	assert_int_equal(atomic_load(&d->used), disk_cost(BLOCK));
	assert_true(index_peek(ix, &good));
	assert_int_equal(index_count(ix), 1);
	assert_false(there(elsewhere) || there(junk));
	block_file(w, 0, &good, path);
	assert_true(there(path));
	assert_true(disk_close(d, UINT64_MAX));
	index_free(ix);
	world_free(w);
}

static void count_bad(const struct block_key *k, void *arg)
{
	assert_int_equal(k->slice, 2);
	++*(unsigned *)arg;
}

/* a million blocks: names first, lengths behind */
static void lengths_that_start_had_no_time_for_are_found_later(void **state)
{
	struct world *w = world_new(64 << 20, 1);
	struct block_key good = key_of(&volume_a, 1, BLOCK), cut = key_of(&volume_a, 2, BLOCK);
	struct recover_stat st;
	struct index *ix;
	char path[320];
	unsigned bad = 0;
	struct disk *d;

	(void)state;
	world_close(w);
	block_file(w, 0, &good, path);
	make_file(path, blockfile_len(BLOCK));
	block_file(w, 0, &cut, path);
	make_file(path, 7);
	assert_int_equal(index_new(&volume_a, 1, evict_loop_new, &ix), 0);
	d = world_disk(w, 0);
	assert_int_equal(recover_disk(d, ix, &volume_a, 0, &st), 0);
	assert_int_equal(st.blocks, 2);
	assert_int_equal(st.checked, 0);
	assert_int_equal(recover_lengths(d, &volume_a, 0, count_bad, &bad), 0);
	assert_int_equal(bad, 1);
	assert_true(disk_close(d, UINT64_MAX));
	index_free(ix);
	/* and in the store the block goes */
	world_open(w);
	make_file(path, 7);
	store_clean(w->store);
	assert_false(probe(w, &cut));
	assert_true(probe(w, &good));
	world_free(w);
}

static void left_over_temporaries_go(void **state)
{
	struct world *w = world_new(64 << 20, 1);
	char tmp[DISK_PATH_MAX], path[320], *slash;

	(void)state;
	world_close(w);
	disk_blocks_path(&volume_a, tmp);
	slash = strrchr(tmp, '/');
	(void)snprintf(path, sizeof(path), "%s/0/" UUID "/%.*s/tmp/17", w->dir, (int)(slash - tmp),
		       tmp);
	make_file(path, 12345);
	world_open(w);
	assert_false(there(path));
	world_free(w);
}

static void a_block_on_two_disks_is_kept_once(void **state)
{
	struct world *w = world_new(64 << 20, 2);
	struct block_key k = key_of(&volume_a, 1, BLOCK);
	char first[320], second[320];
	struct msg_stat st;

	(void)state;
	world_close(w);
	block_file(w, 0, &k, first);
	block_file(w, 1, &k, second);
	make_file(first, blockfile_len(BLOCK));
	make_file(second, blockfile_len(BLOCK));
	world_open(w);
	store_stat(w->store, &st);
	assert_int_equal(st.blocks, 1);
	assert_int_equal(st.bytes, disk_cost(BLOCK));
	assert_true(there(first) != there(second));
	world_free(w);
}

/* D03: a process is killed while it admits; what the next one finds is whole */
static void filler(struct world *w)
{
	for (uint64_t i = 0;; i++) {
		struct block_key k = key_of(&volume_a, i % 200, BLOCK);

		(void)fill(w, &k);
		(void)drop(w, &k);
		(void)fill(w, &k);
	}
}

/* goes on in a directory that others have used */
static void settle_in(struct world *w, const char *dir)
{
	world_close(w);
	(void)nftw(w->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	(void)snprintf(w->dir, sizeof(w->dir), "%s", dir);
	world_open(w);
}

static bool block_seen;

static int look(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	/* a block's name, not a temporary's */
	block_seen |= type == FTW_F && path[ftw->base] >= '0' && path[ftw->base] <= '9';
	return block_seen;
}

/* the child is at work: its first block is there */
static void wait_for_block(const char *dir)
{
	block_seen = false;
	for (unsigned i = 0; i < 2000 && !block_seen; i++) {
		(void)nftw(dir, look, 16, FTW_PHYS);
		if (!block_seen)
			(void)usleep(5000);
	}
	assert_true(block_seen);
}

static void nothing_partial_after_a_kill(void **state)
{
	char dir[] = "/tmp/stoke-cached-kill-XXXXXX";

	(void)state;
	assert_non_null(mkdtemp(dir));
	for (unsigned round = 0; round < 5; round++) {
		const struct timespec some = {.tv_nsec = 60000000 + round * 17000000};
		struct world *w;
		pid_t pid = fork();
		uint64_t good = 0;
		int status;

		assert_true(pid >= 0);
		if (pid == 0) {
			w = world_new(64 << 20, 1);
			settle_in(w, dir);
			filler(w);
		}
		wait_for_block(dir);
		nanosleep(&some, NULL);
		assert_int_equal(kill(pid, SIGKILL), 0);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		w = world_new(64 << 20, 1);
		settle_in(w, dir);
		for (uint64_t i = 0; i < 200; i++) {
			struct block_key k = key_of(&volume_a, i, BLOCK);
			int r = get(w, &k, 0, BLOCK, REQ_NO_FILL, NULL); /* checks the bytes */

			assert_true(r == 0 || r == -ENOENT);
			good += r == 0;
		}
		if (round == 4) {
			assert_true(good > 0);
			world_free(w);
		} else {
			world_close(w);
			loop_free(w->loop);
			pool_free(w->pool);
			free(w);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(only_whole_blocks_in_their_place_count),
		cmocka_unit_test(lengths_that_start_had_no_time_for_are_found_later),
		cmocka_unit_test(left_over_temporaries_go),
		cmocka_unit_test(a_block_on_two_disks_is_kept_once),
		cmocka_unit_test(nothing_partial_after_a_kill),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
