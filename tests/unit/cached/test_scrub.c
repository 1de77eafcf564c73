/* SPDX-License-Identifier: Apache-2.0 */
/* The scrubber finds each kind of damage, says nothing about good blocks, waits for readers, and
 * leaves the page cache alone. */
#include "tests/unit/cached/fixture.h"

#include <sys/uio.h>
#include <sys/vfs.h>

#include "cached/scrub.h"
#include "cached/store_inner.h"

enum { BLOCKS = 12, PIECE = 32 << 10 };

static uint64_t count(struct metric *m)
{
	return metric_value(m);
}

/* sizes at the edges of pieces, of what is read at once, and of pages */
static uint32_t size_of(uint64_t slice)
{
	static const uint32_t sizes[] = {
		1,     4095,	  4096,		4097,	      PIECE, PIECE + 1,
		BLOCK, BLOCK - 1, BLOCK - 4096, BLOCK - 4097, 5000,  100000,
	};

	return sizes[slice % BLOCKS];
}

static void fill_all(struct world *w)
{
	for (uint64_t i = 0; i < BLOCKS; i++) {
		struct block_key k = key_of(&volume_a, i, size_of(i));

		assert_int_equal(fill(w, &k), 0);
	}
}

static void good_blocks_are_counted(void **state)
{
	struct world *w = world_new(64 << 20, 2);
	struct scrub *sc;

	(void)state;
	fill_all(w);
	assert_int_equal(scrub_start(w->store, "1G", &sc, NULL), 0);
	eventually(count(w->counters.scrub_passes) >= 2);
	scrub_stop(sc);
	assert_true(count(w->counters.scrubbed) >= BLOCKS);
	assert_int_equal(count(w->counters.scrub_damaged), 0);
	for (uint64_t i = 0; i < BLOCKS; i++) {
		struct block_key k = key_of(&volume_a, i, size_of(i));

		assert_true(probe(w, &k));
	}
	world_free(w);
}

static void damage(const char *path, unsigned how, uint32_t size)
{
	static const char zeros[BLOCK + 64];
	int fd = open(path, O_RDWR);
	char c;

	assert_true(fd >= 0);
	switch (how) {
	case 0: /* a bit, anywhere in the bytes */
	case 1: /* or in the sums */
		assert_int_equal(pread(fd, &c, 1, how ? size : size / 2), 1);
		c ^= 4;
		assert_int_equal(pwrite(fd, &c, 1, how ? size : size / 2), 1);
		break;
	case 2:
		assert_int_equal(ftruncate(fd, 0), 0);
		break;
	case 3:
		assert_int_equal(ftruncate(fd, size), 0);
		break;
	default:
		assert_int_equal(pwrite(fd, zeros, blockfile_len(size), 0), blockfile_len(size));
	}
	assert_int_equal(close(fd), 0);
}

static void each_damage_is_found_and_dropped(void **state)
{
	struct world *w = world_new(64 << 20, 1);
	struct scrub *sc;
	char path[320];

	(void)state;
	fill_all(w);
	for (uint64_t i = 0; i < 6; i++) {
		struct block_key k = key_of(&volume_a, i, size_of(i));

		block_file(w, 0, &k, path);
		if (i == 5)
			assert_int_equal(unlink(path), 0);
		else
			damage(path, (unsigned)i, k.size);
	}
	assert_int_equal(scrub_start(w->store, "1G", &sc, NULL), 0);
	eventually(count(w->counters.scrub_damaged) == 6);
	eventually(count(w->counters.scrub_passes) >= 2);
	scrub_stop(sc);
	assert_int_equal(count(w->counters.scrub_damaged), 6);
	assert_int_equal(count(w->counters.damaged), 6);
	for (uint64_t i = 0; i < BLOCKS; i++) {
		struct block_key k = key_of(&volume_a, i, size_of(i));

		assert_int_equal(probe(w, &k), i >= 6);
		block_file(w, 0, &k, path);
		assert_int_equal(access(path, F_OK) == 0, i >= 6);
	}
	world_free(w);
}

static void readers_go_first(void **state)
{
	struct world *w = world_new(64 << 20, 1);
	struct gate gate[DISK_READ_THREADS + 1];
	struct diskq *q = w->store->conf.disks[0]->q[DISK_READS];
	atomic_bool open = false;
	uint64_t before;
	struct scrub *sc;

	(void)state;
	fill_all(w);
	/* one more than there are threads: it waits */
	for (unsigned i = 0; i < ARRAY_LEN(gate); i++) {
		gate[i] = (struct gate){.job = {.run = gate_run, .end = gate_end}, .open = &open};
		assert_int_equal(diskq_push(q, &gate[i].job), 0);
	}
	eventually(diskq_waiting(q) == 1);
	before = count(w->counters.scrubbed);
	assert_int_equal(scrub_start(w->store, "1G", &sc, NULL), 0);
	usleep(50000);
	assert_int_equal(diskq_waiting(q), 1); /* it did not queue up behind */
	assert_int_equal(count(w->counters.scrubbed), before);
	atomic_store(&open, true);
	eventually(count(w->counters.scrubbed) >= before + BLOCKS);
	scrub_stop(sc);
	world_free(w);
}

static void the_pace_is_kept(void **state)
{
	struct world *w = world_new(64 << 20, 1);
	struct block_key k = key_of(&volume_a, 6, BLOCK);
	struct str err = STR_INIT;
	uint64_t began;
	struct scrub *sc;

	(void)state;
	assert_int_equal(fill(w, &k), 0);
	began = clock_us();
	assert_int_equal(scrub_start(w->store, "1280K", &sc, NULL), 0);
	eventually(count(w->counters.scrubbed) >= 3);
	scrub_stop(sc);
	assert_true(clock_us() - began >= 290000);
	/* none, and no rate at all */
	sc = NULL;
	assert_int_equal(scrub_start(w->store, "0", &sc, NULL), 0);
	assert_null(sc);
	assert_int_equal(scrub_start(w->store, "fast", &sc, &err), -EINVAL);
	assert_non_null(strstr(str_c(&err), "--scrub-rate fast"));
	str_fini(&err);
	/* and an end does not wait for it */
	assert_int_equal(scrub_start(w->store, "weekly", &sc, NULL), 0);
	began = clock_us();
	scrub_stop(sc);
	assert_true(clock_us() - began < 2000000);
	world_free(w);
}

/* The first page of the file is in memory. Asked once: asking may bring it there. */
static bool in_memory(const char *path)
{
	char page[4096];
	struct iovec v = {page, sizeof(page)};
	int fd = open(path, O_RDONLY);
	ssize_t n;

	assert_true(fd >= 0);
	n = preadv2(fd, &v, 1, 0, RWF_NOWAIT);
	assert_int_equal(close(fd), 0);
	return n > 0;
}

static void pages_stay_as_they_were(void **state)
{
	struct world *w = world_new(64 << 20, 1);
	struct block_key cold = key_of(&volume_a, 6, BLOCK), warm = key_of(&volume_a, 7, BLOCK - 1);
	char of_cold[320], of_warm[320];
	struct scrub *sc;
	struct statfs fs;
	int fd;

	(void)state;
	assert_int_equal(fill(w, &cold), 0);
	assert_int_equal(fill(w, &warm), 0);
	block_file(w, 0, &cold, of_cold);
	block_file(w, 0, &warm, of_warm);
	fd = open(of_cold, O_RDONLY);
	assert_true(fd >= 0);
	assert_int_equal(fdatasync(fd), 0);
	assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
	assert_int_equal(close(fd), 0);
	assert_int_equal(statfs(w->dir, &fs), 0);
	if (fs.f_type != 0x01021994) { /* tmpfs: where all files are in memory */
		assert_int_equal(scrub_start(w->store, "1G", &sc, NULL), 0);
		eventually(count(w->counters.scrub_passes) >= 2);
		scrub_stop(sc);
		assert_false(in_memory(of_cold));
		assert_true(in_memory(of_warm));
	}
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(good_blocks_are_counted),
		cmocka_unit_test(each_damage_is_found_and_dropped),
		cmocka_unit_test(readers_go_first),
		cmocka_unit_test(the_pace_is_kept),
		cmocka_unit_test(pages_stay_as_they_were),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
