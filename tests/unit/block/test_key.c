/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/check.h"

#include <jansson.h>

#include "common/block/key.h"

static const struct hash128 volume = {{9, 8, 7, 6}};

static json_t *vectors(const char *group)
{
	static json_t *root;

	if (!root)
		root = json_load_file("tests/golden/format-vectors.json", 0, NULL);
	assert_non_null(root);
	return json_object_get(json_object_get(root, "vectors"), group);
}

static uint64_t number(const json_t *v, const char *name)
{
	return (uint64_t)json_integer_value(json_object_get(v, name));
}

static void names_follow_the_vectors(void **state)
{
	json_t *list = vectors("block_keys"), *v;
	size_t i, checked = 0;

	(void)state;
	json_array_foreach(list, i, v)
	{
		json_t *keys = json_object_get(v, "full_keys");
		uint32_t block_size = (uint32_t)number(v, "block_size_bytes");
		uint64_t slice_size = number(v, "slice_size");

		for (uint32_t index = 0; index < json_array_size(keys); index++) {
			char name[BLOCK_NAME_MAX];
			struct block_key k;
			uint32_t size = block_size_at(slice_size, block_size, index);

			assert_true(size > 0);
			block_key_init(&k, &volume, number(v, "slice_id"), index, size);
			block_key_object(&k, json_string_value(json_object_get(v, "volume")),
					 json_is_true(json_object_get(v, "hash_prefix")), name);
			assert_string_equal(name, json_string_value(json_array_get(keys, index)));
			checked++;
		}
		assert_int_equal(
			block_size_at(slice_size, block_size, (uint32_t)json_array_size(keys)), 0);
	}
	assert_true(checked > 22);
}

static void a_name_gives_its_key_back(void **state)
{
	struct block_key k, back;
	char name[BLOCK_CACHE_NAME_MAX];

	(void)state;
	block_key_init(&k, &volume, UINT64_MAX, UINT32_MAX, FRAME_BLOCK_MAX);
	block_key_cache_name(&k, name);
	assert_int_equal(strspn(name, "0123456789abcdef"), 2);
	assert_int_equal(name[2], '/');
	assert_int_equal(block_key_parse(name + 3, &volume, &back), 0);
	assert_true(block_key_eq(&k, &back));
	assert_int_equal(k.digest, back.digest);
}

static void other_names_are_refused(void **state)
{
	static const char *const bad[] = {"",
					  "1_2",
					  "1_2_",
					  "1_2_0",
					  "01_2_3",
					  "1_02_3",
					  "1_2_3 ",
					  " 1_2_3",
					  "-1_2_3",
					  "+1_2_3",
					  "1_2_3_4",
					  "1__3",
					  "a_2_3",
					  "1_4294967296_3",
					  "1_2_16777217",
					  "18446744073709551616_0_1",
					  "0x1_0_1"};
	struct block_key k;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(block_key_parse(bad[i], &volume, &k), -EINVAL);
	assert_int_equal(block_key_parse("0_0_1", &volume, &k), 0);
}

static void every_part_of_a_key_counts(void **state)
{
	struct hash128 other = volume;
	struct block_key a, b[4];

	(void)state;
	other.b[15] ^= 1;
	block_key_init(&a, &volume, 5, 6, 7);
	block_key_init(&b[0], &other, 5, 6, 7);
	block_key_init(&b[1], &volume, 4, 6, 7);
	block_key_init(&b[2], &volume, 5, 7, 7);
	block_key_init(&b[3], &volume, 5, 6, 8);
	for (int i = 0; i < 4; i++) {
		assert_false(block_key_eq(&a, &b[i]));
		assert_true(a.digest != b[i].digest);
	}
}

static void the_wire_form_keeps_a_key(void **state)
{
	struct block_key a, b;
	struct msg_key m;

	(void)state;
	block_key_init(&a, &volume, 1234567, 8, 4096);
	block_key_to_msg(&a, &m);
	block_key_from_msg(&b, &m);
	assert_true(block_key_eq(&a, &b));
}

enum { PIECES = 9, LEN = (PIECES - 1) * FRAME_PIECE + 1000 };

/* the definition, bit by bit: CRC-32C over digest and piece number, then the data */
static uint32_t plain_sum(const struct block_key *k, uint32_t piece, const uint8_t *p, size_t n)
{
	uint8_t seed[12];
	uint32_t crc = ~0U;

	for (int i = 0; i < 8; i++)
		seed[i] = (uint8_t)(k->digest >> (56 - 8 * i));
	for (int i = 0; i < 4; i++)
		seed[8 + i] = (uint8_t)(piece >> (24 - 8 * i));
	for (size_t i = 0; i < sizeof(seed) + n; i++) {
		crc ^= i < sizeof(seed) ? seed[i] : p[i - sizeof(seed)];
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78U : 0);
	}
	return ~crc;
}

static void sums_are_seeded_with_key_and_piece(void **state)
{
	static uint8_t data[LEN];
	uint8_t sums[4 * PIECES], part[4 * PIECES];
	struct block_key k, other;

	(void)state;
	for (size_t i = 0; i < LEN; i++)
		data[i] = (uint8_t)(i * 7);
	block_key_init(&k, &volume, 1, 2, LEN);
	block_key_init(&other, &volume, 1, 3, LEN);
	assert_int_equal(msg_sums_len(LEN), sizeof(sums));
	block_sums(&k, 0, data, LEN, sums);
	for (uint32_t piece = 0; piece < PIECES; piece++) {
		size_t n = piece < PIECES - 1 ? FRAME_PIECE : 1000;
		uint32_t want = plain_sum(&k, piece, data + piece * FRAME_PIECE, n);
		const uint8_t *s = sums + 4 * piece;

		assert_int_equal((uint32_t)s[0] << 24 | s[1] << 16 | s[2] << 8 | s[3], want);
		assert_int_equal(block_piece_sum(&k, piece, data + piece * FRAME_PIECE, n), want);
	}
	/* a part of the block has that part of the sums */
	block_sums(&k, FRAME_PIECE, data + FRAME_PIECE, LEN - FRAME_PIECE, part);
	assert_memory_equal(part, sums + 4, sizeof(sums) - 4);
	assert_int_equal(block_sums_check(&k, 0, data, LEN, sums, NULL), 0);
	/* another block's, and another place's */
	assert_int_equal(block_sums_check(&other, 0, data, LEN, sums, NULL), -EBADMSG);
	assert_int_equal(block_sums_check(&k, FRAME_PIECE, data, FRAME_PIECE, sums, NULL),
			 -EBADMSG);
}

static void a_changed_bit_is_found_where_it_is(void **state)
{
	static uint8_t data[LEN];
	uint8_t sums[4 * PIECES];
	struct block_key k;
	uint32_t piece = 99;

	(void)state;
	block_key_init(&k, &volume, 1, 2, LEN);
	block_sums(&k, 0, data, LEN, sums);
	for (uint32_t at = 0; at < PIECES; at++) {
		data[at * FRAME_PIECE + 5] ^= 0x10;
		assert_int_equal(block_sums_check(&k, 0, data, LEN, sums, &piece), -EBADMSG);
		assert_int_equal(piece, at);
		data[at * FRAME_PIECE + 5] ^= 0x10;
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_follow_the_vectors),
		cmocka_unit_test(a_name_gives_its_key_back),
		cmocka_unit_test(other_names_are_refused),
		cmocka_unit_test(every_part_of_a_key_counts),
		cmocka_unit_test(the_wire_form_keeps_a_key),
		cmocka_unit_test(sums_are_seeded_with_key_and_piece),
		cmocka_unit_test(a_changed_bit_is_found_where_it_is),
	};
	int r = cmocka_run_group_tests(tests, NULL, NULL);

	return r;
}
