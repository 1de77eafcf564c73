/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/check.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/bytes.h"
#include "proto/msg.h"

static const struct msg_key key = {
	.volume = "0123456789abcde", .slice = 77, .index = 3, .size = 4 << 20};

static void key_takes_32_bytes_in_order(void **state)
{
	uint8_t p[MSG_KEY];
	struct msg_key k;

	(void)state;
	msg_key_encode(&key, p);
	assert_memory_equal(p, key.volume, 16);
	assert_int_equal(get64(p + 16), 77);
	assert_int_equal(get32(p + 24), 3);
	assert_int_equal(get32(p + 28), 4 << 20);
	assert_int_equal(msg_key_decode(p, MSG_KEY - 1, &k), -EAGAIN);
	assert_int_equal(msg_key_decode(p, MSG_KEY, &k), MSG_KEY);
	assert_memory_equal(&k, &key, sizeof(k));
	put32(p + 28, 0);
	assert_int_equal(msg_key_decode(p, MSG_KEY, &k), -EPROTO);
	put32(p + 28, FRAME_BLOCK_MAX + 1);
	assert_int_equal(msg_key_decode(p, MSG_KEY, &k), -EPROTO);
}

static ssize_t get_of(uint32_t size, uint32_t off, uint32_t len)
{
	struct msg_get g = {.key = key, .off = off, .len = len};
	uint8_t p[MSG_GET];

	g.key.size = size;
	msg_get_encode(&g, p);
	return msg_get_decode(p, sizeof(p), &g);
}

static void ranges_are_whole_pieces_inside_the_block(void **state)
{
	(void)state;
	assert_int_equal(get_of(100, 0, 100), MSG_GET);
	assert_int_equal(get_of(100, 0, 99), -EPROTO);
	assert_int_equal(get_of(FRAME_PIECE * 2 + 5, FRAME_PIECE, FRAME_PIECE), MSG_GET);
	assert_int_equal(get_of(FRAME_PIECE * 2 + 5, FRAME_PIECE * 2, 5), MSG_GET);
	assert_int_equal(get_of(FRAME_PIECE * 2 + 5, FRAME_PIECE * 2, 6), -EPROTO);
	assert_int_equal(get_of(FRAME_PIECE * 2, 1, FRAME_PIECE), -EPROTO);
	assert_int_equal(get_of(FRAME_PIECE * 2, 0, 0), -EPROTO);
	assert_int_equal(get_of(FRAME_PIECE, FRAME_PIECE, FRAME_PIECE), -EPROTO);
	assert_int_equal(get_of(FRAME_PIECE * 4, FRAME_PIECE * 3, 0xffff8000u), -EPROTO);
}

static void hello_round_trips_and_refuses_cuts(void **state)
{
	struct msg_welcome w = {.hello = {.role = ROLE_MEMBER,
					  .version_min = 1,
					  .version_max = 4,
					  .group = "train",
					  .group_len = 5,
					  .node = "n1",
					  .node_len = 2}};
	struct msg_welcome out;
	uint8_t p[MSG_HELLO_MAX];
	size_t n;

	(void)state;
	memset(w.hmac, 7, sizeof(w.hmac));
	memset(w.hello.nonce, 9, MSG_NONCE);
	n = msg_welcome_encode(&w, p);
	assert_int_equal(msg_welcome_decode(p, n, &out), n);
	assert_int_equal(out.hello.group_len, 5);
	assert_memory_equal(out.hello.group, "train", 5);
	assert_memory_equal(out.hello.node, "n1", 2);
	assert_memory_equal(out.hmac, w.hmac, MSG_HMAC);
	for (size_t cut = 0; cut < n; cut++) {
		/* an exact copy, so that ASan sees a read behind the end */
		uint8_t *q = malloc(cut ? cut : 1);

		assert_non_null(q);
		memcpy(q, p, cut);
		assert_int_equal(msg_welcome_decode(q, cut, &out), -EAGAIN);
		free(q);
	}
	p[0] = 9;
	assert_int_equal(msg_welcome_decode(p, n, &out), -EPROTO);
}

static void statuses_and_errnos_meet(void **state)
{
	(void)state;
	assert_int_equal(msg_errno_to_status(0), ST_OK);
	assert_int_equal(msg_errno_to_status(-ENODATA), ST_NO_OBJECT);
	assert_int_equal(msg_errno_to_status(-ENOENT), ST_NOT_HERE);
	assert_int_equal(msg_errno_to_status(-EPERM), ST_FORBIDDEN);
	assert_int_equal(msg_errno_to_status(-EMLINK), ST_STORE_ERROR);
	for (unsigned st = ST_NOT_HERE; st <= ST_STOPPING; st++)
		assert_int_equal(msg_errno_to_status(msg_status_to_errno(st)), st);
	assert_int_equal(msg_status_to_errno(12345), -EIO);
}

static void sums_are_four_bytes_a_piece(void **state)
{
	(void)state;
	assert_int_equal(msg_sums_len(1), 4);
	assert_int_equal(msg_sums_len(FRAME_PIECE), 4);
	assert_int_equal(msg_sums_len(FRAME_PIECE + 1), 8);
	assert_int_equal(msg_sums_len(FRAME_BLOCK_MAX), FRAME_SUMS_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(key_takes_32_bytes_in_order),
		cmocka_unit_test(ranges_are_whole_pieces_inside_the_block),
		cmocka_unit_test(hello_round_trips_and_refuses_cuts),
		cmocka_unit_test(statuses_and_errnos_meet),
		cmocka_unit_test(sums_are_four_bytes_a_piece),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
