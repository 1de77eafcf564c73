/* SPDX-License-Identifier: Apache-2.0 */
/* The store in its real chain (flight, object layer) over a real directory: what is kept, served,
 * refused, dropped; damage behind its back; restarts; another generation. One test does random
 * steps against a plain map, with a printed seed. */
#include "tests/unit/cached/fixture.h"

#include <pthread.h>

#include "cached/store_inner.h"

static uint64_t count(const struct metric *m)
{
	return metric_value(m);
}

static void a_miss_is_fetched_once_and_kept(void **state)
{
	struct world *w = world_new(64 << 20, 1);
	struct block_key k = key_of(&volume_a, 1, BLOCK);
	enum req_via via = VIA_NONE;

	(void)state;
	assert_int_equal(get(w, &k, 0, BLOCK, 0, &via), 0);
	assert_int_equal(via, VIA_OBJECT);
	assert_int_equal(get(w, &k, 0, BLOCK, 0, &via), 0);
	assert_int_equal(via, VIA_STORE);
	assert_int_equal(get(w, &k, FRAME_PIECE, FRAME_PIECE, REQ_NO_FILL, &via), 0);
	assert_int_equal(via, VIA_STORE);
	assert_int_equal(atomic_load(&w->objects.gets), 1);
	eventually(count(w->counters.fills) == 1);
	assert_int_equal(count(w->counters.hits), 2);
	assert_int_equal(count(w->counters.misses), 1);
	world_free(w);
}

static void no_fill_looks_in_the_store_only(void **state)
{
	struct world *w = world_new(64 << 20, 1);
	struct block_key k = key_of(&volume_a, 1, BLOCK);

	(void)state;
	assert_int_equal(get(w, &k, 0, BLOCK, REQ_NO_FILL, NULL), -ENOENT);
	assert_int_equal(atomic_load(&w->objects.gets), 0);
	world_free(w);
}

static void a_second_range_brings_the_whole_block(void **state)
{
	struct world *w = world_new(64 << 20, 1);
	struct block_key k = key_of(&volume_a, 1, BLOCK);

	(void)state;
	assert_int_equal(get(w, &k, 0, FRAME_PIECE, 0, NULL), 0);
	assert_false(probe(w, &k));
	assert_int_equal(get(w, &k, FRAME_PIECE, FRAME_PIECE, 0, NULL), 0);
	eventually(probe(w, &k));
	assert_int_equal(atomic_load(&w->objects.gets), 2);
	world_free(w);
}

static void fill_is_done_when_the_block_is_on_the_disk(void **state)
{
	struct world *w = world_new(64 << 20, 1);
	struct block_key k = key_of(&volume_a, 7, 1000);
	char path[320];
	struct stat st;

	(void)state;
	assert_int_equal(fill(w, &k), 0);
	block_file(w, 0, &k, path);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, 1004);
	assert_true(probe(w, &k));
	assert_int_equal(fill(w, &k), 0);
	assert_int_equal(atomic_load(&w->objects.gets), 1);
	world_free(w);
}

static void fill_tells_why_it_could_not(void **state)
{
	struct world *w = world_new(64 << 10, 1); /* smaller than a block */
	struct block_key k = key_of(&volume_a, 7, BLOCK);

	(void)state;
	assert_int_equal(fill(w, &k), -ENOSPC);
	assert_int_equal(get(w, &k, 0, BLOCK, 0, NULL),
			 0); /* a cache's failure is not the reader's */
	atomic_store(&w->objects.status, -ENOENT);
	k = key_of(&volume_a, 8, BLOCK);
	assert_int_equal(fill(w, &k), -ENODATA);
	assert_int_equal(get(w, &k, 0, BLOCK, 0, NULL), -ENODATA);
	world_free(w);
}

static void put_is_kept_and_goes_no_further(void **state)
{
	struct world *w = world_new(64 << 20, 1);
	struct block_key k = key_of(&volume_a, 3, 50000);
	enum req_via via = VIA_NONE;

	(void)state;
	assert_int_equal(put(w, &k), 0);
	assert_int_equal(get(w, &k, 0, 50000, REQ_NO_FILL, &via), 0);
	assert_int_equal(via, VIA_STORE);
	assert_int_equal(count(w->counters.puts), 1);
	assert_int_equal(atomic_load(&w->objects.gets), 0);
	world_free(w);
}

static void drop_forgets_also_what_is_on_its_way(void **state)
{
	struct world *w = world_new(64 << 20, 1);
	char path[320];

	(void)state;
	for (uint64_t i = 0; i < 50; i++) {
		struct block_key k = key_of(&volume_a, i, BLOCK);

		assert_int_equal(get(w, &k, 0, BLOCK, 0, NULL), 0);
		assert_int_equal(drop(w, &k), 0);
		assert_false(probe(w, &k));
		block_file(w, 0, &k, path);
		assert_int_not_equal(access(path, F_OK), 0);
		assert_int_equal(drop(w, &k), 0);
	}
	world_free(w);
}

/* a drop that came while the block was on its way wants it gone, and that it is */
static void drop_of_a_block_that_could_not_be_kept_is_done(void **state)
{
	struct world *w = world_new(64 << 10, 1); /* smaller than a block */
	struct block_key k = key_of(&volume_a, 1, BLOCK);
	struct block_req *req = req_new(&w->env, &k, 0, BLOCK, 0, POOL_DEMAND);
	struct gate gate[DISK_WRITE_THREADS];
	atomic_bool open = false;
	struct waited x;

	(void)state;
	assert_non_null(req);
	hold(w, 0, DISK_WRITES, gate, DISK_WRITE_THREADS, &open);
	assert_int_equal(get(w, &k, 0, BLOCK, 0, NULL), 0);
	waited_begin(&x);
	source_drop(w->chain, req, waited_done, &x);
	assert_false(x.over);
	atomic_store(&open, true);
	assert_int_equal(waited_end(&x), 0);
	assert_int_equal(count(w->counters.skipped), 1);
	req_free(req);
	world_free(w);
}

/* G08 within one daemon: however the readers meet the fetch, its admission and the disk, a block is
 * fetched once */
enum { READERS = 8, SHARED = 64 };

static void *reader(void *arg)
{
	struct world *w = arg;

	for (uint64_t i = 0; i < SHARED; i++) {
		struct block_key k = key_of(&volume_a, i, BLOCK);

		if (get(w, &k, 0, BLOCK, 0, NULL) != 0)
			return arg;
	}
	return NULL;
}

static void many_readers_fetch_a_block_once(void **state)
{
	struct world *w = world_new(64 << 20, 2);
	pthread_t t[READERS];
	void *failed;

	(void)state;
	for (unsigned i = 0; i < READERS; i++)
		assert_int_equal(pthread_create(&t[i], NULL, reader, w), 0);
	for (unsigned i = 0; i < READERS; i++) {
		assert_int_equal(pthread_join(t[i], &failed), 0);
		assert_null(failed);
	}
	assert_int_equal(atomic_load(&w->objects.gets), SHARED);
	assert_int_equal(count(w->counters.hits) + count(w->counters.misses), READERS * SHARED);
	world_free(w);
}

static void the_budget_is_kept(void **state)
{
	enum { ROOM = 20 };
	struct world *w = world_new(ROOM * (BLOCK + 4096), 1);
	struct msg_stat st;

	(void)state;
	for (uint64_t i = 0; i < 4 * ROOM; i++) {
		struct block_key k = key_of(&volume_a, i, BLOCK);

		assert_int_equal(fill(w, &k), 0);
		store_stat(w->store, &st);
		assert_true(st.bytes <= st.capacity_bytes);
	}
	assert_int_equal(st.blocks, ROOM);
	assert_int_equal(count(w->counters.evictions), 3 * ROOM);
	world_free(w);
}

/* --- damage --- */

static void damage_length(struct world *w, const struct block_key *k, off_t len)
{
	char path[320];

	block_file(w, 0, k, path);
	assert_int_equal(truncate(path, len), 0);
}

static void a_cut_file_is_a_miss_and_filled_again(void **state)
{
	const off_t lengths[] = {0, 1, BLOCK - 1, BLOCK, BLOCK + 15, BLOCK + 17};
	struct world *w = world_new(64 << 20, 1);
	struct block_key k = key_of(&volume_a, 1, BLOCK);

	(void)state;
	for (unsigned i = 0; i < ARRAY_LEN(lengths); i++) {
		enum req_via via = VIA_NONE;

		assert_int_equal(fill(w, &k), 0);
		if (i % 2) /* once with the file open in the store, once not */
			assert_int_equal(get(w, &k, 0, BLOCK, 0, NULL), 0);
		damage_length(w, &k, lengths[i]);
		assert_int_equal(get(w, &k, 0, BLOCK, 0, &via), 0);
		assert_int_equal(via, VIA_OBJECT);
		eventually(count(w->counters.damaged) == i + 1);
		assert_int_equal(fill(w, &k), 0);
	}
	world_free(w);
}

static void write_at(const char *path, off_t at, const void *p, size_t n)
{
	int fd = open(path, O_WRONLY);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, p, n, at), n);
	assert_int_equal(close(fd), 0);
}

/* what the consumer finds, reports, and the daemon then does */
static void reported_and_dropped(struct world *w, const struct block_key *k, uint64_t nth)
{
	enum req_via via = VIA_NONE;

	assert_int_equal(get(w, k, 0, k->size, REQ_NO_FILL, NULL), -EBADMSG);
	store_verify(w->store, k);
	eventually(count(w->counters.damaged) == nth);
	assert_false(probe(w, k));
	assert_int_equal(get(w, k, 0, k->size, 0, &via), 0);
	assert_int_equal(via, VIA_OBJECT);
}

static void other_bytes_never_pass(void **state)
{
	struct world *w = world_new(64 << 20, 1);
	struct block_key k = key_of(&volume_a, 1, BLOCK), other = key_of(&volume_a, 2, BLOCK);
	static const char zeros[BLOCK + 16];
	char path[320], path2[320];

	(void)state;
	block_file(w, 0, &k, path);
	block_file(w, 0, &other, path2);
	assert_int_equal(fill(w, &k), 0);
	write_at(path, BLOCK - 1, "\xff", 1); /* one byte */
	reported_and_dropped(w, &k, 1);

	assert_int_equal(fill(w, &k), 0);
	write_at(path, 0, zeros, sizeof(zeros)); /* after a power loss */
	reported_and_dropped(w, &k, 2);

	assert_int_equal(fill(w, &k), 0);
	assert_int_equal(fill(w, &other), 0);
	assert_int_equal(rename(path2, path),
			 0); /* another block's file, whole and with right checksums of its own */
	reported_and_dropped(w, &k, 3);
	assert_int_equal(get(w, &other, 0, BLOCK, 0, NULL), 0);
	world_free(w);
}

static void a_good_block_survives_a_report(void **state)
{
	struct world *w = world_new(64 << 20, 1);
	struct block_key k = key_of(&volume_a, 1, BLOCK), last = key_of(&volume_a, 2, 10);

	(void)state;
	assert_int_equal(fill(w, &k), 0);
	assert_int_equal(fill(w, &last), 0);
	store_verify(w->store, &k);
	store_verify(w->store, &last);
	world_close(w); /* ends what is queued */
	world_open(w);
	assert_true(probe(w, &k));
	assert_true(probe(w, &last));
	world_free(w);
}

/* --- restart, generations --- */

static void a_restart_finds_what_was_stored(void **state)
{
	struct world *w = world_new(64 << 20, 3);
	enum req_via via;

	(void)state;
	for (uint64_t i = 0; i < 60; i++) {
		struct block_key k = key_of(&volume_a, i, 5000);

		assert_int_equal(fill(w, &k), 0);
	}
	world_close(w);
	world_open(w);
	for (uint64_t i = 0; i < 60; i++) {
		struct block_key k = key_of(&volume_a, i, 5000);

		assert_int_equal(get(w, &k, 0, 5000, REQ_NO_FILL, &via), 0);
	}
	assert_int_equal(atomic_load(&w->objects.gets), 60);
	world_free(w);
}

static void another_generation_starts_empty(void **state)
{
	struct world *w = world_new(64 << 20, 1);
	struct block_key a = key_of(&volume_a, 1, BLOCK), b = key_of(&volume_b, 1, BLOCK);
	struct msg_stat st;
	char path[320];

	(void)state;
	assert_int_equal(fill(w, &a), 0);
	assert_int_equal(store_move(w->store, &volume_b), 0);
	assert_false(probe(w, &a));
	assert_false(probe(w, &b));
	assert_int_equal(fill(w, &a), -ESTALE); /* an old key is not kept any more */
	assert_int_equal(fill(w, &b), 0);
	store_stat(w->store, &st);
	assert_int_equal(st.blocks, 1);
	store_clean(w->store);
	block_file(w, 0, &a, path);
	eventually(access(path, F_OK) != 0);
	assert_true(probe(w, &b));
	world_free(w);
}

struct moving {
	struct disk *disk;
	unsigned asked;
};

/* the volume moves to b while others' folders are being removed */
static struct hash128 current_of_moving(void *arg)
{
	struct moving *m = arg;

	if (m->asked++ == 0)
		return volume_a;
	assert_int_equal(disk_volume_prepare(m->disk, &volume_b), 0);
	return volume_b;
}

static void a_generation_that_just_came_is_not_removed(void **state)
{
	struct world *w = world_new(64 << 20, 1);
	struct moving m = {.disk = w->store->conf.disks[0]};
	struct hash128 old = {{0xcc, 3}};
	struct block_key b = key_of(&volume_b, 1, BLOCK);
	char path[320];

	(void)state;
	assert_int_equal(disk_volume_prepare(m.disk, &old), 0);
	assert_true(disk_remove_others(m.disk, current_of_moving, &m) > 0);
	assert_true(m.asked > 1); /* before each removal */
	block_file(w, 0, &b, path);
	*strrchr(path, '/') = '\0';
	assert_int_equal(access(path, F_OK), 0);
	world_free(w);
}

/* --- a plain map --- */

enum { MODEL_KEYS = 48, MODEL_STEPS = 1500 };

static void random_step(struct world *w, const struct block_key *k, bool *may_have)
{
	uint32_t pieces = DIV_UP(k->size, (uint32_t)FRAME_PIECE),
		 first = (uint32_t)random() % pieces;
	uint32_t off = first * FRAME_PIECE, len = MIN((uint32_t)FRAME_PIECE, k->size - off);
	int r;

	switch (random() % 6) {
	case 0:
		assert_int_equal(fill(w, k), 0);
		*may_have = true;
		break;
	case 1:
		assert_int_equal(drop(w, k), 0);
		*may_have = false;
		break;
	case 2:
		assert_int_equal(put(w, k), 0);
		*may_have = true;
		break;
	case 3:
		r = get(w, k, off, len, REQ_NO_FILL, NULL);
		assert_true(r == 0 || r == -ENOENT);
		assert_true(*may_have ||
			    r == -ENOENT); /* what was dropped, and never came back, is not there */
		break;
	case 4:
		assert_int_equal(get(w, k, off, len, 0, NULL), 0);
		*may_have = true;
		break;
	default:
		assert_int_equal(get(w, k, 0, k->size, 0, NULL), 0);
		*may_have = true;
	}
}

static void follows_a_plain_map(void **state)
{
	struct world *w = world_new(10 * BLOCK, 2); /* less than half of the keys */
	unsigned seed = (unsigned)time(NULL);
	bool may_have[MODEL_KEYS] = {false};
	uint64_t evictions = 0, last = 0;
	struct msg_stat st;

	(void)state;
	print_message("seed %u\n", seed);
	srandom(seed);
	for (unsigned i = 0; i < MODEL_STEPS; i++) {
		unsigned n = (unsigned)random() % MODEL_KEYS;
		struct block_key k = key_of(&volume_a, n, n % 3 ? BLOCK : 1 + n * 1000);

		random_step(w, &k, &may_have[n]);
		store_stat(w->store, &st);
		assert_true(st.bytes <= st.capacity_bytes);
		evictions += count(w->counters.evictions) - last;
		last = count(w->counters.evictions);
		if (i % 500 != 499)
			continue;
		last = 0;
		world_close(w);
		world_open(w);
	}
	assert_true(evictions > 0);
	world_free(w);
}

static void a_directory_of_others_is_refused(void **state)
{
	struct world *w = world_new(1 << 20, 1);
	struct str err = STR_INIT;
	struct disk *d = NULL;
	char dir[80], sub[160];

	(void)state;
	(void)snprintf(dir, sizeof(dir), "%s/0", w->dir);
	assert_int_equal(disk_open(dir, UUID, 0, 1 << 20, 0.1, &d, &err), -EBUSY);
	assert_non_null(strstr(str_c(&err), dir));
	str_reset(&err);
	(void)snprintf(dir, sizeof(dir), "%s/juicefs", w->dir);
	(void)snprintf(sub, sizeof(sub), "%s/" UUID, dir);
	assert_int_equal(mkdir(dir, 0700) | mkdir(sub, 0700), 0);
	(void)snprintf(sub, sizeof(sub), "%s/" UUID "/raw", dir);
	assert_int_equal(mkdir(sub, 0700), 0);
	assert_int_equal(disk_open(dir, UUID, 0, 1 << 20, 0.1, &d, &err), -EEXIST);
	assert_non_null(strstr(str_c(&err), "raw"));
	str_reset(&err);
	(void)snprintf(dir, sizeof(dir), "%s/home", w->dir);
	(void)snprintf(sub, sizeof(sub), "%s/alice", dir);
	assert_int_equal(mkdir(dir, 0700) | mkdir(sub, 0700), 0);
	assert_int_equal(disk_open(dir, UUID, 0, 1 << 20, 0.1, &d, &err), -EEXIST);
	str_fini(&err);
	world_free(w);
}

static void the_node_id_is_kept(void **state)
{
	struct world *w = world_new(1 << 20, 1);
	char first[DISK_NODE_ID + 1];
	struct disk *d;

	(void)state;
	world_close(w);
	d = world_disk(w, 0);
	disk_node(d, first);
	assert_string_equal(first, "");
	disk_set_node(d, "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee");
	assert_int_equal(disk_keep_node(d), 0);
	assert_true(disk_close(d, UINT64_MAX));
	d = world_disk(w, 0);
	disk_node(d, first);
	assert_string_equal(first, "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee");
	assert_true(disk_close(d, UINT64_MAX));
	world_free(w);
}

/* an answer may hold the last reference of a file that is removed: who sends must not wait for the
 * disk */
static void a_removed_file_is_closed_by_its_disk(void **state)
{
	struct world *w = world_new(64 << 20, 1);
	struct block_key k = key_of(&volume_a, 1, BLOCK);
	struct blob_file *f;
	struct stat st;
	int fd;

	(void)state;
	assert_int_equal(fill(w, &k), 0);
	assert_int_equal(get(w, &k, 0, BLOCK, 0, NULL), 0);
	assert_int_equal(store_file(w->store, &k, &f), 0);
	fd = f->fd;
	assert_int_equal(drop(w, &k), 0);
	blob_file_unref(f);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_nlink, 0);
	store_trim(w->store);
	eventually(fcntl(fd, F_GETFD) < 0);
	/* and one that is still there is no trouble */
	assert_int_equal(fill(w, &k), 0);
	assert_int_equal(get(w, &k, 0, BLOCK, 0, NULL), 0);
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_removed_file_is_closed_by_its_disk),
		cmocka_unit_test(a_miss_is_fetched_once_and_kept),
		cmocka_unit_test(no_fill_looks_in_the_store_only),
		cmocka_unit_test(a_second_range_brings_the_whole_block),
		cmocka_unit_test(fill_is_done_when_the_block_is_on_the_disk),
		cmocka_unit_test(fill_tells_why_it_could_not),
		cmocka_unit_test(put_is_kept_and_goes_no_further),
		cmocka_unit_test(drop_forgets_also_what_is_on_its_way),
		cmocka_unit_test(drop_of_a_block_that_could_not_be_kept_is_done),
		cmocka_unit_test(many_readers_fetch_a_block_once),
		cmocka_unit_test(the_budget_is_kept),
		cmocka_unit_test(a_cut_file_is_a_miss_and_filled_again),
		cmocka_unit_test(other_bytes_never_pass),
		cmocka_unit_test(a_good_block_survives_a_report),
		cmocka_unit_test(a_restart_finds_what_was_stored),
		cmocka_unit_test(another_generation_starts_empty),
		cmocka_unit_test(a_generation_that_just_came_is_not_removed),
		cmocka_unit_test(follows_a_plain_map),
		cmocka_unit_test(a_directory_of_others_is_refused),
		cmocka_unit_test(the_node_id_is_kept),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
