/* SPDX-License-Identifier: Apache-2.0 */
/* The writer, through the real chain, against a plain array; read back through the reader. The
 * metadata engine of data_env.h checks at every record that all its objects are there. */
#include "tests/unit/client/data_env.h"

#include "common/clock.h"

enum { BS = 64 * KIB };

static void small_write_is_read_back(void **state)
{
	struct data_env e;
	unsigned char buf[64];

	(void)state;
	env_start(&e, BS, 16 * BS, CODEC_NONE, 8 * BS);
	assert_int_equal(env_write(&e, 0, "hello", 5), 0);
	assert_int_equal(env_write(&e, 5, " world", 6), 0);
	assert_int_equal(e.meta.writes, 0);
	assert_int_equal(env_flush(&e, true), 0);
	assert_int_equal(e.meta.writes, 1);
	assert_int_equal(e.store->puts, 1);
	assert_int_equal(env_read(&e, 0, buf, sizeof(buf)), 11);
	assert_memory_equal(buf, "hello world", 11);
	env_stop(&e);
}

/* the older of two slices may come last: the time that stat showed stays */
static void commits_in_any_order_say_the_newest_time(void **state)
{
	struct data_env e;
	struct time_ns mtime;
	uint64_t length;

	(void)state;
	env_start(&e, BS, 16 * BS, CODEC_NONE, 8 * BS);
	assert_int_equal(env_write(&e, 0, "old", 3), 0);
	usleep(2000);
	assert_int_equal(env_write(&e, CHUNK_SIZE, "new", 3), 0);
	assert_true(wfile_dirty(e.wfile, &length, &mtime));
	assert_int_equal(env_flush(&e, true), 0);
	assert_int_equal(e.meta.writes, 2);
	assert_int_equal(e.meta.times, 0);
	assert_int_equal(e.meta.written.sec, mtime.sec);
	assert_int_equal(e.meta.written.nsec, mtime.nsec);
	env_stop(&e);
}

static void length_counts_what_is_not_committed(void **state)
{
	struct data_env e;
	uint64_t length, bytes;
	unsigned files;

	(void)state;
	env_start(&e, BS, 16 * BS, CODEC_NONE, 0);
	assert_false(wfile_length(e.wfile, &length));
	assert_int_equal(env_write(&e, 1000000, "x", 1), 0);
	assert_true(wfile_length(e.wfile, &length));
	assert_int_equal(length, 1000001);
	writer_stat(e.writer, &bytes, &files);
	assert_int_equal(bytes, 1);
	assert_int_equal(files, 1);
	assert_int_equal(env_flush(&e, true), 0);
	assert_false(wfile_length(e.wfile, &length));
	assert_int_equal(length, 1000001);
	writer_stat(e.writer, &bytes, &files);
	assert_int_equal(bytes, 0);
	assert_int_equal(files, 0);
	env_stop(&e);
}

static void full_blocks_leave_while_the_file_is_written(void **state)
{
	static unsigned char data[20 * BS], back[20 * BS];
	struct data_env e;

	(void)state;
	fill(data, sizeof(data), 1);
	env_start(&e, BS, 64 * BS, CODEC_NONE, 8 * BS);
	for (unsigned i = 0; i < sizeof(data); i += 4 * KIB)
		assert_int_equal(env_write(&e, i, data + i, 4 * KIB), 0);
	for (unsigned tries = 0;; tries++) {
		unsigned puts;

		mtx_lock(&e.store->lock);
		puts = e.store->puts;
		mtx_unlock(&e.store->lock);
		if (puts == 20)
			break;
		assert_true(tries < 5000);
		usleep(1000);
	}
	assert_int_equal(e.meta.writes, 0);
	assert_int_equal(env_flush(&e, true), 0);
	assert_int_equal(e.meta.writes, 1);
	assert_true(e.store->most_running <= 6);
	assert_int_equal(env_read(&e, 0, back, sizeof(back)), sizeof(back));
	assert_memory_equal(data, back, sizeof(data));
	env_stop(&e);
}

/* Far more than the pool holds, with a store that takes its time: writes wait, none fails, and
 * memory stays inside of the pool. */
static void writing_more_than_memory_waits(void **state)
{
	enum { N = 6 * MIB, STEP = 100 * KIB };
	unsigned char *data = malloc(N), *back = malloc(N);
	struct pool_stat ps;
	struct data_env e;

	(void)state;
	assert_true(data && back);
	fill(data, N, 2);
	env_start(&e, BS, 8 * BS, CODEC_NONE, 0);
	e.store->delay_us = 1000;
	for (uint32_t off = 0; off < N; off += STEP)
		assert_int_equal(env_write(&e, off, data + off, MIN((uint32_t)STEP, N - off)), 0);
	assert_int_equal(env_flush(&e, true), 0);
	pool_stat(e.env.pool, &ps);
	assert_true(ps.peak <= ps.budget);
	e.store->delay_us = 0;
	for (uint32_t off = 0; off < N; off += MIB)
		assert_int_equal(env_read(&e, off, back + off, MIB), MIB);
	assert_memory_equal(data, back, N);
	env_stop(&e);
	free(data);
	free(back);
}

/* small pieces everywhere: many open slices hold all the memory, none is full */
static void scattered_writes_do_not_starve(void **state)
{
	struct data_env e;
	unsigned char c;

	(void)state;
	env_start(&e, BS, 8 * BS, CODEC_NONE, 0);
	for (unsigned i = 0; i < 1500; i++) {
		c = (unsigned char)i;
		assert_int_equal(env_write(&e, (uint64_t)(i * 7919 % 1500) * 100000, &c, 1), 0);
	}
	assert_int_equal(env_flush(&e, true), 0);
	for (unsigned i = 0; i < 1500; i += 7) {
		assert_int_equal(env_read(&e, (uint64_t)(i * 7919 % 1500) * 100000, &c, 1), 1);
		assert_int_equal(c, (unsigned char)i);
	}
	env_stop(&e);
}

static void longer_file_never_shows_a_hole_that_was_written(void **state)
{
	static unsigned char data[3 * MIB];
	struct data_env e;
	uint64_t base = CHUNK_SIZE - MIB - 12345;

	(void)state;
	fill(data, sizeof(data), 3);
	env_start(&e, BS, 64 * BS, CODEC_NONE, 0);
	e.meta.delay_us = 2000;
	/* up to the first chunk's end first, so that the only gap is the one in front */
	for (unsigned round = 0; round < 3; round++) {
		for (uint32_t off = 0; off < sizeof(data); off += 300000)
			assert_int_equal(env_write(&e, base + round * (uint64_t)CHUNK_SIZE + off,
						   data + off,
						   MIN(300000u, (uint32_t)sizeof(data) - off)),
					 0);
	}
	assert_int_equal(env_flush(&e, true), 0);
	assert_true(e.meta.gap <= (uint64_t)CHUNK_SIZE - MIB);
	env_stop(&e);
}

static void failed_upload_is_reported_once_and_cleaned_up(void **state)
{
	static unsigned char data[5 * BS];
	struct data_env e;

	(void)state;
	fill(data, sizeof(data), 4);
	env_start(&e, BS, 16 * BS, CODEC_NONE, 0);
	e.store->fail_puts_after = 2;
	e.store->fail_puts = 1;
	e.store->delay_us = 50000; /* all is written when it fails: one slice */
	assert_int_equal(env_write(&e, 0, data, sizeof(data) - 100), 0);
	assert_int_equal(env_flush(&e, true), -EIO);
	assert_int_equal(env_flush(&e, true), 0);
	assert_int_equal(e.meta.writes, 0);
	(void)writer_flush_all(e.writer); /* waits for the objects to be deleted */
	mtx_lock(&e.store->lock);
	assert_int_equal(e.store->objects.count, 0);
	mtx_unlock(&e.store->lock);
	assert_int_equal(env_write(&e, 0, data, sizeof(data)), 0);
	assert_int_equal(env_flush(&e, true), 0);
	assert_int_equal(e.meta.attr.length, sizeof(data));
	env_stop(&e);
}

static void failure_of_the_background_stops_the_next_write(void **state)
{
	static unsigned char data[BS];
	struct data_env e;

	(void)state;
	env_start(&e, BS, 16 * BS, CODEC_NONE, 0);
	e.store->fail_puts = 1;
	assert_int_equal(env_write(&e, 0, data, sizeof(data)), 0);
	/* it may have failed before this flush began, which then is not its error */
	(void)env_flush(&e, false);
	assert_int_equal(env_write(&e, 0, data, 10), -EIO);
	assert_int_equal(env_flush(&e, true), -EIO);
	assert_int_equal(env_write(&e, 0, data, 10), 0);
	assert_int_equal(env_flush(&e, true), 0);
	env_stop(&e);
}

static void refused_record_deletes_its_objects_but_a_lost_answer_does_not(void **state)
{
	struct data_env e;

	(void)state;
	env_start(&e, BS, 16 * BS, CODEC_NONE, 0);
	e.meta.fail = -ENOSPC;
	assert_int_equal(env_write(&e, 0, "abc", 3), 0);
	assert_int_equal(env_flush(&e, true), -ENOSPC);
	(void)writer_flush_all(e.writer); /* waits for the objects to be deleted */
	assert_int_equal(e.store->objects.count, 0);
	e.meta.fail = -EIO;
	assert_int_equal(env_write(&e, 0, "abc", 3), 0);
	assert_int_equal(env_flush(&e, true), -EIO);
	(void)writer_flush_all(e.writer); /* waits for the objects to be deleted */
	assert_int_equal(e.store->objects.count, 1);
	env_stop(&e);
}

static void slow_deletes_keep_no_commit_waiting(void **state)
{
	uint64_t began;
	struct data_env e;

	(void)state;
	env_start(&e, BS, 16 * BS, CODEC_NONE, 0);
	e.store->delay_deletes_us = 1000000;
	/* as many as the queue of commits has threads */
	for (unsigned i = 0; i < 3; i++) {
		e.meta.fail = -ENOSPC;
		assert_int_equal(env_write(&e, 0, "abc", 3), 0);
		assert_int_equal(env_flush(&e, true), -ENOSPC);
	}
	began = clock_us();
	assert_int_equal(env_write(&e, 0, "abc", 3), 0);
	assert_int_equal(env_flush(&e, true), 0);
	assert_true(clock_us() - began < 700000);
	(void)writer_flush_all(e.writer);
	assert_int_equal(e.store->objects.count, 1);
	env_stop(&e);
}

static void changed_generation_writes_again_under_another_number(void **state)
{
	static unsigned char data[3 * BS + 77], back[3 * BS + 77];
	struct data_env e;

	(void)state;
	fill(data, sizeof(data), 5);
	env_start(&e, BS, 16 * BS, CODEC_NONE, 0);
	e.meta.stale = 2;
	assert_int_equal(env_write(&e, 10, data, sizeof(data)), 0);
	assert_int_equal(env_flush(&e, true), 0);
	assert_int_equal(e.meta.writes, 3);
	assert_true(e.meta.chunk[0].s[0].id > 2000);
	assert_int_equal(env_read(&e, 10, back, sizeof(back)), sizeof(back));
	assert_memory_equal(data, back, sizeof(data));
	e.meta.stale = 100;
	assert_int_equal(env_write(&e, 10, data, 5), 0);
	assert_int_equal(env_flush(&e, true), -EIO);
	env_stop(&e);
}

static void idle_slice_is_committed_by_the_clock(void **state)
{
	struct data_env e;
	unsigned writes = 0;

	(void)state;
	env_start(&e, BS, 16 * BS, CODEC_NONE, 0);
	assert_int_equal(env_write(&e, 0, "tick", 4), 0);
	for (unsigned tries = 0; !writes; tries++) {
		assert_true(tries < 5000);
		usleep(1000);
		mtx_lock(&e.meta.lock);
		writes = e.meta.writes;
		mtx_unlock(&e.meta.lock);
	}
	env_stop(&e);
}

static void last_handle_gone_with_dirty_data_loses_nothing(void **state)
{
	struct data_env e;
	unsigned char buf[8];

	(void)state;
	env_start(&e, BS, 16 * BS, CODEC_NONE, 0);
	assert_int_equal(env_write(&e, 0, "dirty", 5), 0);
	wfile_put(e.wfile);
	e.wfile = wfile_find(e.writer, INODE);
	assert_non_null(e.wfile);
	wfile_put(TAKE_PTR(e.wfile));
	(void)writer_flush_all(e.writer); /* waits for the objects to be deleted */
	assert_null(wfile_find(e.writer, INODE));
	assert_int_equal(env_read(&e, 0, buf, sizeof(buf)), 5);
	env_stop(&e);
}

/* --- model --- */

enum { WINDOW = 2 * MIB };

struct model {
	struct data_env e;
	unsigned char *bytes, *source, *back;
	uint64_t base, length; /* the array lies at base; length: end of what was written */
};

static void model_write(struct model *m, uint32_t at, uint32_t len)
{
	uint32_t from = (uint32_t)(rand() % MIB);

	if (env_write(&m->e, m->base + at, m->source + from, len) != 0)
		fail_msg("write at %u of %u failed", at, len);
	memcpy(m->bytes + at, m->source + from, len);
	m->length = MAX(m->length, m->base + at + len);
}

static void model_check(struct model *m, uint32_t at, uint32_t len)
{
	uint64_t off = m->base + at;
	uint32_t want = off < m->length ? (uint32_t)MIN((uint64_t)len, m->length - off) : 0;

	assert_int_equal(env_flush(&m->e, false), 0);
	assert_int_equal(env_read(&m->e, off, m->back, len), want);
	for (uint32_t i = 0; i < want; i++)
		if (m->back[i] != m->bytes[at + i])
			fail_msg("byte %u of [%u, %u) is %02x, not %02x", i, at, at + len,
				 m->back[i], m->bytes[at + i]);
}

static uint32_t some_length(void)
{
	switch (rand() % 4) {
	case 0:
		return 1 + (uint32_t)rand() % 100;
	case 1:
		return 1 + (uint32_t)rand() % 5000;
	case 2:
		return (1 + (uint32_t)rand() % 4) * BS;
	default:
		return 1 + (uint32_t)rand() % (3 * BS);
	}
}

static void model_run(struct meta *meta, uint64_t inode, enum codec codec, unsigned steps,
		      unsigned pool_blocks)
{
	struct model m = {.base = CHUNK_SIZE - MIB};
	struct a_flush flushes[8];
	unsigned n_flushes = 0;
	uint32_t next = 0;

	m.bytes = calloc(1, WINDOW);
	m.back = malloc(WINDOW);
	m.source = malloc(2 * MIB);
	assert_true(m.bytes && m.back && m.source);
	fill(m.source, 2 * MIB, (unsigned)rand());
	env_start_over(&m.e, meta, inode, BS, pool_blocks * (size_t)BS, codec, 4 * BS);
	for (unsigned i = 0; i < steps; i++) {
		uint32_t len = some_length(), at = (uint32_t)rand() % (WINDOW - len);

		switch (rand() % 8) {
		case 0:
		case 1:
			model_write(&m, at, len);
			next = at + len;
			break;
		case 2:
		case 3:
		case 4: /* append to the last one */
			len = MIN(len, WINDOW - next);
			if (len)
				model_write(&m, next, len);
			next += len;
			break;
		case 5: /* over the tail of the last one */
			at = next > 1000 ? next - (uint32_t)rand() % 1000 : next;
			len = MIN(len, WINDOW - at);
			if (len)
				model_write(&m, at, len);
			next = at + len;
			break;
		case 6:
			model_check(&m, at, len);
			break;
		default:
			if (n_flushes < ARRAY_LEN(flushes))
				a_flush_start(&m.e, &flushes[n_flushes++], rand() % 2);
			break;
		}
		if (n_flushes == ARRAY_LEN(flushes) || (n_flushes && rand() % 10 == 0))
			while (n_flushes)
				assert_int_equal(waited_wait(&flushes[--n_flushes].w), 0);
	}
	while (n_flushes)
		assert_int_equal(waited_wait(&flushes[--n_flushes].w), 0);
	model_check(&m, 0, WINDOW);
	env_stop(&m.e);
	free(m.bytes);
	free(m.back);
	free(m.source);
}

static void random_writes_match_an_array(void **state)
{
	unsigned seed =
		getenv("SEED") ? (unsigned)strtoul(getenv("SEED"), NULL, 10) : (unsigned)time(NULL);

	(void)state;
	print_message("seed %u\n", seed);
	srand(seed);
	for (unsigned i = 0; i < 4; i++)
		model_run(NULL, INODE, CODEC_NONE, 400, i % 2 ? 8 : 64);
	model_run(NULL, INODE, CODEC_LZ4, 300, 12);
	model_run(NULL, INODE, CODEC_ZSTD, 300, 64);
}

/* the same over the engine that other units use */
static void random_writes_match_an_array_over_meta_mem(void **state)
{
	const struct meta_ctx root = {0};
	const struct meta_conf mc = {
		.timeout_us = 1000000, .heartbeat_us = 12000000, .mount_point = "/m"};
	unsigned seed = (unsigned)time(NULL);
	struct meta *meta;
	uint64_t inode;
	struct attr a;

	(void)state;
	print_message("seed %u\n", seed);
	srand(seed);
	assert_int_equal(meta_mem_new(&mc, BS, 0, &meta), 0);
	assert_int_equal(
		meta_mknod(meta, &root, INODE_ROOT, "f", INODE_FILE, 0644, 0, 0, NULL, &inode, &a),
		0);
	model_run(meta, inode, CODEC_NONE, 500, 16);
	meta_free(meta);
}

/* --- threads --- */

enum { THREADS = 4, REGION = MIB };

struct worker {
	struct data_env *e;
	unsigned number, seed;
	unsigned char *bytes;
};

static void *worker_run(void *arg)
{
	struct worker *w = arg;
	unsigned seed = w->seed;
	uint64_t base = CHUNK_SIZE - 2 * (uint64_t)REGION + w->number * (uint64_t)REGION;

	for (unsigned i = 0; i < 200; i++) {
		uint32_t len = 1 + (uint32_t)rand_r(&seed) % (2 * BS),
			 at = (uint32_t)rand_r(&seed) % (REGION - len);

		if (rand_r(&seed) % 10 == 0) {
			assert(env_flush(w->e, false) == 0);
			continue;
		}
		fill(w->bytes + at, len, (unsigned)rand_r(&seed));
		assert(env_write(w->e, base + at, w->bytes + at, len) == 0);
	}
	return NULL;
}

static void threads_write_one_file_at_once(void **state)
{
	struct worker workers[THREADS];
	pthread_t threads[THREADS];
	unsigned char *back = malloc(REGION);
	struct data_env e;

	(void)state;
	assert_non_null(back);
	env_start(&e, BS, 10 * BS, CODEC_NONE, 0);
	for (unsigned i = 0; i < THREADS; i++) {
		workers[i] = (struct worker){&e, i, (unsigned)time(NULL) + i, calloc(1, REGION)};
		assert_non_null(workers[i].bytes);
		assert_int_equal(pthread_create(&threads[i], NULL, worker_run, &workers[i]), 0);
	}
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(env_flush(&e, true), 0);
	for (unsigned i = 0; i < THREADS; i++) {
		uint64_t off = CHUNK_SIZE - 2 * (uint64_t)REGION + i * (uint64_t)REGION;
		int n = env_read(&e, off, back, REGION);

		assert_true(n >= 0);
		assert_memory_equal(back, workers[i].bytes, (size_t)n);
		for (uint32_t k = (uint32_t)n; k < REGION; k++)
			assert_int_equal(workers[i].bytes[k], 0);
		free(workers[i].bytes);
	}
	env_stop(&e);
	free(back);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(small_write_is_read_back),
		cmocka_unit_test(commits_in_any_order_say_the_newest_time),
		cmocka_unit_test(length_counts_what_is_not_committed),
		cmocka_unit_test(full_blocks_leave_while_the_file_is_written),
		cmocka_unit_test(writing_more_than_memory_waits),
		cmocka_unit_test(scattered_writes_do_not_starve),
		cmocka_unit_test(longer_file_never_shows_a_hole_that_was_written),
		cmocka_unit_test(failed_upload_is_reported_once_and_cleaned_up),
		cmocka_unit_test(failure_of_the_background_stops_the_next_write),
		cmocka_unit_test(refused_record_deletes_its_objects_but_a_lost_answer_does_not),
		cmocka_unit_test(slow_deletes_keep_no_commit_waiting),
		cmocka_unit_test(changed_generation_writes_again_under_another_number),
		cmocka_unit_test(idle_slice_is_committed_by_the_clock),
		cmocka_unit_test(last_handle_gone_with_dirty_data_loses_nothing),
		cmocka_unit_test(random_writes_match_an_array),
		cmocka_unit_test(random_writes_match_an_array_over_meta_mem),
		cmocka_unit_test(threads_write_one_file_at_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
