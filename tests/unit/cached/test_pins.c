/* SPDX-License-Identifier: Apache-2.0 */
/* Pins against a plain map with restarts in between (a printed seed), files that are cut or
 * damaged, dates, and the share of a disk. */
#include "tests/unit/check.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>

#include "cached/disk.h"
#include "cached/pins.h"

enum { NOW = 1000, KEYS = 64, STEPS = 6000, SIZE = 4000 };

static const struct hash128 volume = {{7}}, other = {{8}};
static char dir[64], file[240];
static int fd;

static int begin(void **state)
{
	char sub[224], blocks[DISK_PATH_MAX];

	(void)state;
	(void)snprintf(dir, sizeof(dir), "/tmp/stoke-pins-test-XXXXXX");
	assert_non_null(mkdtemp(dir));
	for (unsigned i = 0; i < 2; i++) {
		disk_blocks_path(i ? &other : &volume, blocks);
		*strchr(blocks, '/') = '\0';
		(void)snprintf(sub, sizeof(sub), "%s/%s", dir, blocks);
		assert_int_equal(mkdir(sub, 0700), 0);
		if (!i)
			(void)snprintf(file, sizeof(file), "%s/pins", sub);
	}
	fd = open(dir, O_RDONLY | O_DIRECTORY);
	assert_true(fd >= 0);
	return 0;
}

static int end(void **state)
{
	char command[128];

	(void)state;
	assert_int_equal(close(fd), 0);
	(void)snprintf(command, sizeof(command), "rm -r %s", dir);
	return system(command);
}

static struct pins *make(void)
{
	struct pins *p;

	assert_int_equal(pins_new(&volume, 2, &p), 0);
	return p;
}

static struct block_key key(uint64_t slice)
{
	struct block_key k;

	block_key_init(&k, &volume, slice, 0, SIZE);
	return k;
}

static int set(struct pins *p, uint64_t slice, uint64_t until)
{
	struct block_key k = key(slice);

	return pins_set(p, 0, &k, until, NOW, UINT64_MAX, NULL);
}

static bool has(struct pins *p, uint64_t slice)
{
	struct block_key k = key(slice);

	return pins_until(p, &k) != 0;
}

static uint64_t count(struct pins *p)
{
	struct pins_stat st;

	pins_stat(p, &st);
	assert_int_equal(st.bytes, st.blocks * disk_cost(SIZE));
	return st.blocks;
}

static uint64_t damaged(struct pins *p)
{
	struct pins_stat st;

	pins_stat(p, &st);
	return st.damaged;
}

static void note(const struct block_key *k, void *arg)
{
	bool *told = arg;

	assert_true(k->slice < KEYS && !told[k->slice]);
	told[k->slice] = true;
}

static struct pins *again(struct pins *p, bool told[KEYS])
{
	pins_free(p);
	p = make();
	memset(told, 0, KEYS * sizeof(told[0]));
	assert_int_equal(pins_load(p, 0, fd, NOW, note, told), 0);
	return p;
}

static off_t length(void)
{
	struct stat st;

	assert_int_equal(stat(file, &st), 0);
	return st.st_size;
}

static void follows_a_plain_map(void **state)
{
	unsigned seed = (unsigned)time(NULL);
	uint64_t until[KEYS] = {0}, want;
	struct pins *p = make();
	bool told[KEYS];

	(void)state;
	print_message("seed %u\n", seed);
	srandom(seed);
	assert_int_equal(pins_load(p, 0, fd, NOW, note, told), 0); /* as at start */
	for (unsigned i = 0; i < STEPS; i++) {
		unsigned s = (unsigned)random() % KEYS;

		until[s] = random() % 3 ? NOW + 1 + (uint64_t)random() % 100 : 0;
		assert_int_equal(set(p, s, until[s]), 0);
		if (random() % 50 == 0)
			assert_int_equal(pins_flush(p, 0, fd), 0);
		if (random() % 100 == 0) { /* the disk was away: what it has not heard holds */
			memset(told, 0, sizeof(told));
			assert_int_equal(pins_load(p, 0, fd, NOW, note, told), 0);
			for (unsigned k = 0; k < KEYS; k++)
				assert_true(has(p, k) == (until[k] != 0) &&
					    told[k] == (until[k] != 0));
		}
		if (i % 1000 != 999)
			continue;
		assert_int_equal(pins_flush(p, 0, fd), 0);
		p = again(p, told);
		want = 0;
		for (unsigned k = 0; k < KEYS; k++) {
			assert_int_equal(has(p, k), until[k] != 0);
			assert_int_equal(told[k], until[k] != 0);
			want += until[k] != 0;
		}
		assert_int_equal(count(p), want);
		assert_int_equal(damaged(p), 0);
	}
	/* what does not count any more does not stay for ever */
	assert_true(length() <= (2 * KEYS + 1024 + 256) * PINS_RECORD);
	pins_free(p);
}

static void a_date_that_is_over_is_told_once(void **state)
{
	struct pins *p = make();
	struct block_key k[4];
	bool told[KEYS];

	(void)state;
	for (uint64_t i = 0; i < 10; i++)
		assert_int_equal(set(p, i, NOW + 10 + i), 0);
	assert_int_equal(pins_expired(p, NOW + 9, k, 4), 0);
	assert_int_equal(pins_expired(p, NOW + 10, k, 4), 1);
	assert_int_equal(k[0].slice, 0);
	assert_int_equal(pins_expired(p, NOW + 15, k, 4), 4);
	assert_int_equal(pins_expired(p, NOW + 15, k, 4), 1);
	assert_int_equal(pins_expired(p, NOW + 15, k, 4), 0);
	assert_int_equal(count(p), 4);
	assert_int_equal(pins_flush(p, 0, fd), 0);
	p = again(p, told);
	assert_int_equal(count(p), 4);
	/* also when the daemon was away meanwhile */
	pins_free(p);
	p = make();
	memset(told, 0, sizeof(told));
	assert_int_equal(pins_load(p, 0, fd, NOW + 18, note, told), 0);
	assert_int_equal(count(p), 1);
	assert_true(told[9]);
	pins_free(p);
}

static void a_disk_has_its_share(void **state)
{
	struct pins *p = make();
	uint64_t most = 3 * disk_cost(SIZE);
	struct block_key k;
	bool was = true;

	(void)state;
	for (uint64_t i = 0; i < 3; i++) {
		k = key(i);
		assert_int_equal(pins_set(p, 0, &k, NOW + 1, NOW, most, &was), 0);
		assert_false(was);
	}
	k = key(3);
	assert_int_equal(pins_set(p, 0, &k, NOW + 1, NOW, most, NULL), -ENOSPC);
	assert_int_equal(pins_set(p, 1, &k, NOW + 1, NOW, most, NULL), 0);
	k = key(0); /* a later date takes no more */
	assert_int_equal(pins_set(p, 0, &k, NOW + 2, NOW, most, &was), 0);
	assert_true(was);
	assert_int_equal(pins_set(p, 0, &k, 0, NOW, most, NULL), 0);
	k = key(4);
	assert_int_equal(pins_set(p, 0, &k, NOW + 1, NOW, most, NULL), 0);
	block_key_init(&k, &other, 5, 0, SIZE);
	assert_int_equal(pins_set(p, 0, &k, NOW + 1, NOW, most, NULL), -ESTALE);
	pins_free(p);
}

/* killed while it was written, at any byte: what was said before counts */
static void a_file_that_is_cut_keeps_what_was_whole(void **state)
{
	struct pins *p = make();
	bool told[KEYS];
	off_t full;

	(void)state;
	for (uint64_t i = 0; i < 4; i++)
		assert_int_equal(set(p, i, NOW + 5), 0);
	assert_int_equal(pins_flush(p, 0, fd), 0);
	full = length();
	assert_int_equal(full, 4 * PINS_RECORD);
	for (off_t cut = full - 1; cut >= 0; cut--) {
		assert_int_equal(truncate(file, cut), 0);
		p = again(p, told);
		assert_int_equal(count(p), cut / PINS_RECORD);
		assert_int_equal(damaged(p), cut % PINS_RECORD != 0);
		for (uint64_t i = 0; i < 4; i++)
			assert_int_equal(has(p, i), (off_t)i < cut / PINS_RECORD);
	}
	/* and what comes behind a cut is found again */
	assert_int_equal(set(p, 1, NOW + 5), 0);
	assert_int_equal(pins_flush(p, 0, fd), 0);
	assert_int_equal(truncate(file, PINS_RECORD / 2), 0);
	p = again(p, told);
	assert_int_equal(set(p, 2, NOW + 5), 0);
	assert_int_equal(pins_flush(p, 0, fd), 0);
	p = again(p, told);
	assert_true(has(p, 2) && count(p) == 1 && damaged(p) == 0);
	pins_free(p);
}

static void a_damaged_record_is_skipped(void **state)
{
	struct pins *p = make();
	bool told[KEYS];
	int f;

	(void)state;
	for (uint64_t i = 0; i < 4; i++)
		assert_int_equal(set(p, i, NOW + 5), 0);
	assert_int_equal(pins_flush(p, 0, fd), 0);
	f = open(file, O_WRONLY);
	assert_true(f >= 0);
	assert_int_equal(pwrite(f, "\xff", 1, PINS_RECORD + 3), 1);
	assert_int_equal(close(f), 0);
	p = again(p, told);
	assert_int_equal(damaged(p), 1);
	assert_true(has(p, 0) && !has(p, 1) && has(p, 2) && has(p, 3));
	assert_int_equal(pins_flush(p, 0, fd), 0); /* written anew */
	p = again(p, told);
	assert_int_equal(damaged(p), 0);
	assert_int_equal(count(p), 3);
	pins_free(p);
}

static void another_volume_starts_without(void **state)
{
	struct pins *p = make();
	struct block_key k;
	bool told[KEYS] = {false};

	(void)state;
	assert_int_equal(set(p, 1, NOW + 5), 0);
	assert_int_equal(pins_flush(p, 0, fd), 0);
	pins_reset(p, &other);
	assert_int_equal(count(p), 0);
	assert_int_equal(pins_load(p, 0, fd, NOW, note, told), 0);
	assert_int_equal(count(p), 0);
	block_key_init(&k, &other, 2, 0, SIZE);
	assert_int_equal(pins_set(p, 0, &k, NOW + 5, NOW, UINT64_MAX, NULL), 0);
	assert_int_equal(pins_flush(p, 0, fd), 0);
	p = again(p, told);
	assert_true(has(p, 1) && count(p) == 1);
	pins_free(p);
}

/* a disk that cannot be written: in force, and written whole when it can */
static void what_could_not_be_written_is_written_later(void **state)
{
	struct pins *p = make();
	bool told[KEYS];

	(void)state;
	assert_int_equal(set(p, 1, NOW + 5), 0);
	assert_int_equal(pins_flush(p, 0, -1), -EBADF);
	assert_true(has(p, 1));
	assert_int_equal(set(p, 2, NOW + 5), 0);
	assert_int_equal(pins_flush(p, 0, fd), 0);
	p = again(p, told);
	assert_int_equal(count(p), 2);
	pins_free(p);
}

int main(void)
{
#define PINS_TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
	const struct CMUnitTest tests[] = {
		PINS_TEST(follows_a_plain_map),
		PINS_TEST(a_date_that_is_over_is_told_once),
		PINS_TEST(a_disk_has_its_share),
		PINS_TEST(a_file_that_is_cut_keeps_what_was_whole),
		PINS_TEST(a_damaged_record_is_skipped),
		PINS_TEST(another_volume_starts_without),
		PINS_TEST(what_could_not_be_written_is_written_later),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
