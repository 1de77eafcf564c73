/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/check.h"
#include <errno.h>
#include <string.h>

#include "proto/bytes.h"
#include "proto/frame.h"

static const struct frame sample = {
	.version = FRAME_VERSION,
	.op = OP_GET,
	.status = 0,
	.id = 0x0102030405060708ULL,
	.flags = FRAME_NO_FILL,
	.left_us = 250000,
	.body_len = 40,
};

/* the same bytes computed from the table in frame.h by hand (CRC-32C by an independent Python
 * program) */
static void header_has_the_documented_layout(void **state)
{
	static const uint8_t want[28] = {
		0x53, 0x54, 0x4b, 0x45, 1, 3, 0, 0, 1,	  2,	3, 4, 5, 6,
		7,    8,    0,	  0,	0, 1, 0, 3, 0xd0, 0x90, 0, 0, 0, 40,
	};
	uint8_t p[FRAME_HEADER];

	(void)state;
	frame_encode(&sample, p);
	assert_memory_equal(p, want, 28);
	assert_int_equal(get32(p + 28), 0xbc92e015);
}

static void every_flipped_bit_is_refused(void **state)
{
	uint8_t p[FRAME_HEADER];
	struct frame f;

	(void)state;
	frame_encode(&sample, p);
	assert_int_equal(frame_decode(p, sizeof(p), 0, &f), FRAME_HEADER);
	assert_int_equal(f.id, sample.id);
	assert_int_equal(f.left_us, sample.left_us);
	for (unsigned bit = 0; bit < 8 * FRAME_HEADER; bit++) {
		p[bit / 8] ^= (uint8_t)(1 << bit % 8);
		assert_int_equal(frame_decode(p, sizeof(p), 0, &f), -EPROTO);
		p[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
}

static void short_input_waits_unless_it_is_foreign(void **state)
{
	uint8_t p[FRAME_HEADER];
	struct frame f;

	(void)state;
	frame_encode(&sample, p);
	for (size_t n = 0; n < FRAME_HEADER; n++)
		assert_int_equal(frame_decode(p, n, 0, &f), -EAGAIN);
	assert_int_equal(frame_decode((const uint8_t *)"GET / HT", 8, 0, &f), -EPROTO);
}

static ssize_t recode(struct frame f, int is_answer)
{
	uint8_t p[FRAME_HEADER];
	struct frame out;

	frame_encode(&f, p);
	return frame_decode(p, sizeof(p), is_answer, &out);
}

static void bodies_are_bounded_by_operation(void **state)
{
	struct frame f = sample;

	(void)state;
	f.body_len = 41;
	assert_int_equal(recode(f, 0), -EPROTO);
	f.body_len = FRAME_BODY_MAX;
	assert_int_equal(recode(f, 1), FRAME_HEADER);
	f.body_len = FRAME_BODY_MAX + 1;
	assert_int_equal(recode(f, 1), -EPROTO);
	f.body_len = 0x80000000;
	f.op = OP_PUT;
	assert_int_equal(recode(f, 0), -EPROTO);
	f.body_len = FRAME_SMALL_MAX + 1;
	f.op = OP_GET;
	f.status = ST_NO_OBJECT;
	assert_int_equal(recode(f, 1), -EPROTO);
}

static void unknown_numbers_are_refused(void **state)
{
	struct frame f = sample;

	(void)state;
	f.op = 200;
	assert_int_equal(recode(f, 0), -EPROTO);
	f = sample;
	f.version = 9;
	assert_int_equal(recode(f, 0), -EPROTO);
	f = sample;
	f.flags = 1u << 30;
	assert_int_equal(recode(f, 0), -EPROTO);
	f = sample;
	f.status = 999;
	assert_int_equal(recode(f, 1), -EPROTO);
	f.status = ST_BUSY; /* a request has no status */
	assert_int_equal(recode(f, 0), -EPROTO);
}

static void names_come_from_the_table(void **state)
{
	(void)state;
	assert_string_equal(op_name(OP_FILL), "FILL");
	assert_string_equal(op_name(99), "?");
	assert_string_equal(status_name(ST_FILLING), "FILLING");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(header_has_the_documented_layout),
		cmocka_unit_test(every_flipped_bit_is_refused),
		cmocka_unit_test(short_input_waits_unless_it_is_foreign),
		cmocka_unit_test(bodies_are_bounded_by_operation),
		cmocka_unit_test(unknown_numbers_are_refused),
		cmocka_unit_test(names_come_from_the_table),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
