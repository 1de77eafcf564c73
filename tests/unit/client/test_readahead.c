/* SPDX-License-Identifier: Apache-2.0 */
/* Reading ahead against a model: which blocks were asked for, how often, and that nothing outside
 * of the file ever is. */
#include "tests/unit/check.h"

#include <time.h>

#include "client/readahead.h"

enum { KIB = 1024, MIB = 1024 * 1024, BLOCK = 4 * MIB };

static void offset_zero_gets_its_block_and_the_next(void **state)
{
	struct readahead ra;
	struct ra_plan p;

	(void)state;
	readahead_init(&ra, BLOCK, 8 * BLOCK);
	readahead_plan(&ra, 0, 128 * KIB, UINT64_C(1) << 30, UINT64_MAX, &p);
	assert_false(p.random);
	assert_int_equal(p.now.off, 0);
	assert_int_equal(p.now.len, BLOCK);
	assert_int_equal(p.ahead.off, BLOCK);
	assert_true(p.ahead.len >= BLOCK && p.ahead.len <= 2 * BLOCK);
	readahead_plan(&ra, 128 * KIB, 128 * KIB, UINT64_C(1) << 30, UINT64_MAX, &p);
	assert_int_equal(p.now.len, 0);
}

static void small_file_stays_inside(void **state)
{
	struct readahead ra;
	struct ra_plan p;

	(void)state;
	readahead_init(&ra, BLOCK, 8 * BLOCK);
	readahead_plan(&ra, 0, 100000, 100000, UINT64_MAX, &p);
	assert_int_equal(p.now.off, 0);
	assert_int_equal(p.now.len, 100000);
	assert_int_equal(p.ahead.len, 0);
}

static void reader_far_from_everything_is_random(void **state)
{
	struct readahead ra;
	struct ra_plan p;

	(void)state;
	readahead_init(&ra, BLOCK, 8 * BLOCK);
	for (uint64_t i = 1; i < 50; i++) {
		readahead_plan(&ra, (i * 7919 % 50) * 1000 * MIB + 4096, 4096, UINT64_C(1) << 40,
			       UINT64_MAX, &p);
		assert_true(p.random);
		assert_int_equal(p.now.len + p.ahead.len, 0);
	}
}

/* a file of which nearly all would be fetched if two reads that happen to be neighbours were a
 * stream */
static void random_reads_of_a_small_file_stay_random(void **state)
{
	const uint64_t length = 128 * MIB;
	uint64_t fetched = 0;
	struct readahead ra;

	(void)state;
	srand(5);
	readahead_init(&ra, BLOCK, 8 * BLOCK);
	for (unsigned i = 0; i < 1000; i++) {
		uint64_t at = (1 + (uint64_t)rand() % (length / 4096 - 1)) * 4096;
		struct ra_plan p;

		readahead_plan(&ra, at, 4096, length, UINT64_MAX, &p);
		fetched += p.now.len + p.ahead.len;
	}
	assert_true(fetched < length / 2);
}

/* every fourth piece is a stream, one of a hundred is not */
static void strides(void **state)
{
	(void)state;
	for (unsigned step = 4; step <= 100; step += 96) {
		struct readahead ra;
		unsigned random = 0;
		struct ra_plan p;

		readahead_init(&ra, BLOCK, 8 * BLOCK);
		for (uint64_t i = 1; i <= 200; i++) {
			readahead_plan(&ra, i * step * 4096, 4096, UINT64_C(1) << 30, UINT64_MAX,
				       &p);
			random += p.random;
		}
		assert_int_equal(random, step == 4 ? 1 : 200);
	}
}

static void second_read_in_the_middle_is_sequential(void **state)
{
	struct readahead ra;
	struct ra_plan p;

	(void)state;
	readahead_init(&ra, BLOCK, 8 * BLOCK);
	readahead_plan(&ra, 100 * MIB + 5, 4096, UINT64_C(1) << 30, UINT64_MAX, &p);
	assert_true(p.random);
	readahead_plan(&ra, 100 * MIB + 5 + 4096, 4096, UINT64_C(1) << 30, UINT64_MAX, &p);
	assert_false(p.random);
	assert_int_equal(p.now.off, 100 * MIB);
	assert_int_equal(p.now.len, BLOCK);
}

static void window_reaches_its_largest_within_sixteen_mebibytes(void **state)
{
	struct readahead ra;
	struct ra_plan p;
	uint64_t reached = 0, ahead = 0;

	(void)state;
	readahead_init(&ra, BLOCK, 8 * BLOCK);
	for (uint64_t off = 0; off < 64 * MIB; off += MIB) {
		readahead_plan(&ra, off, MIB, UINT64_C(1) << 30, UINT64_MAX, &p);
		if (p.ahead.len)
			ahead = p.ahead.off + p.ahead.len;
		if (!reached && ahead >= off + 8 * BLOCK)
			reached = off;
		assert_true(ahead <= off + MIB + 9 * BLOCK);
	}
	assert_true(reached > 0 && reached <= 16 * MIB);
}

static void two_streams_of_one_handle_do_not_disturb_each_other(void **state)
{
	struct readahead ra;
	struct ra_plan p;

	(void)state;
	readahead_init(&ra, BLOCK, 8 * BLOCK);
	for (uint64_t off = 0; off < 64 * MIB; off += MIB)
		for (uint64_t base = 0; base < 2; base++) {
			readahead_plan(&ra, base * 2048 * MIB + off, MIB, UINT64_C(1) << 40,
				       UINT64_MAX, &p);
			if (off > 0)
				assert_false(p.random);
		}
}

static void no_window_means_nothing_ahead(void **state)
{
	struct readahead ra;
	struct ra_plan p;

	(void)state;
	readahead_init(&ra, BLOCK, 0);
	for (uint64_t off = 0; off < 64 * MIB; off += MIB) {
		readahead_plan(&ra, off, MIB, UINT64_C(1) << 40, UINT64_MAX, &p);
		assert_true(p.random);
		assert_int_equal(p.now.len + p.ahead.len, 0);
	}
}

/* A sequential reader whose requests arrive a little out of order, with a budget that comes and
 * goes: every block is planned ahead at most once and entered at most once, all whole, and no block
 * is read that was not planned. */
static void model_of_a_stream(unsigned seed)
{
	enum { BS = 64 * KIB, N = 300 };
	struct readahead ra;
	uint64_t length = (uint64_t)N * BS - (uint64_t)rand() % BS;
	unsigned now[N] = {0}, ahead[N] = {0}, twice = 0;
	uint32_t len = 4096u << (rand() % 5);

	readahead_init(&ra, BS, 8 * BS);
	for (uint64_t off = 0; off < length; off += 2 * (uint64_t)len) {
		bool swap = off > 0 && rand() % 3 == 0;

		for (unsigned k = 0; k < 2; k++) {
			uint64_t at = off + (swap ? 1 - k : k) * (uint64_t)len;
			uint64_t budget = rand() % 4 ? UINT64_MAX : (uint64_t)(rand() % 4) * BS;
			struct ra_plan p;

			if (at >= length)
				continue;
			readahead_plan(&ra, at, (uint32_t)MIN(len, length - at), length, budget,
				       &p);
			assert_false(p.random);
			for (unsigned j = 0; j < 2; j++) {
				const struct ra_range *r = j ? &p.ahead : &p.now;

				if (r->len == 0)
					continue;
				assert_int_equal(r->off % BS, 0);
				assert_true(r->off + r->len == length ||
					    (r->off + r->len) % BS == 0);
				assert_true(r->off + r->len <= length);
				if (j)
					assert_true(r->len <= budget);
				for (uint64_t b = r->off / BS; b * BS < r->off + r->len; b++)
					(j ? ahead : now)[b]++;
			}
			if (now[at / BS] + ahead[at / BS] == 0)
				fail_msg("seed %u: block %llu read but never planned", seed,
					 (unsigned long long)(at / BS));
		}
	}
	for (unsigned b = 0; b < N; b++) {
		if (now[b] > 1 || ahead[b] > 1 || now[b] + ahead[b] == 0)
			fail_msg("seed %u: block %u planned %u + %u times", seed, b, now[b],
				 ahead[b]);
		twice += now[b] + ahead[b] > 1;
	}
	/* a reader that jumps over what is planned and back: at the start, and when the budget is
	 * gone */
	if (twice > N / 20)
		fail_msg("seed %u: %u blocks planned twice", seed, twice);
}

static void every_block_once_against_the_model(void **state)
{
	unsigned seed = (unsigned)time(NULL);

	(void)state;
	print_message("seed %u\n", seed);
	srand(seed);
	for (unsigned i = 0; i < 200; i++)
		model_of_a_stream(seed);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(offset_zero_gets_its_block_and_the_next),
		cmocka_unit_test(small_file_stays_inside),
		cmocka_unit_test(reader_far_from_everything_is_random),
		cmocka_unit_test(random_reads_of_a_small_file_stay_random),
		cmocka_unit_test(strides),
		cmocka_unit_test(second_read_in_the_middle_is_sequential),
		cmocka_unit_test(window_reaches_its_largest_within_sixteen_mebibytes),
		cmocka_unit_test(two_streams_of_one_handle_do_not_disturb_each_other),
		cmocka_unit_test(no_window_means_nothing_ahead),
		cmocka_unit_test(every_block_once_against_the_model),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
