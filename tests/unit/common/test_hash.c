/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/check.h"

#include "common/hash.h"

/* check values: RFC 3720 B.4 (iSCSI) and the catalogue's "123456789" */
static void crc32c_gives_the_published_values(void **state)
{
	uint8_t zeros[32] = {0}, ones[32];

	(void)state;
	memset(ones, 0xff, sizeof(ones));
	assert_int_equal(crc32c(0, "123456789", 9), 0xe3069283);
	assert_int_equal(crc32c(0, zeros, 32), 0x8a9136aa);
	assert_int_equal(crc32c(0, ones, 32), 0x62a8ab43);
	assert_int_equal(crc32c_soft(0, "123456789", 9), 0xe3069283);
}

static void all_ways_to_compute_agree(void **state)
{
	static uint8_t data[6 * 4096 + 5];
	uint32_t x = 1;

	(void)state;
	for (size_t i = 0; i < sizeof(data); i++) {
		x = x * 1664525 + 1013904223;
		data[i] = (uint8_t)(x >> 24);
	}
	for (size_t n = 0; n < 300; n++)
		for (size_t off = 0; off < 9; off++)
			assert_int_equal(crc32c(n, data + off, n),
					 crc32c_soft((uint32_t)n, data + off, n));
	for (size_t n = 8; n <= 4096; n *= 2) {
		uint32_t crc[3] = {1, 2, 3};

		crc32c_x3(crc, data, n);
		for (uint32_t i = 0; i < 3; i++)
			assert_int_equal(crc[i], crc32c_soft(i + 1, data + i * n, n));
	}
	/* long input, in three streams with rests */
	for (size_t n = sizeof(data) - 9; n <= sizeof(data); n++)
		assert_int_equal(crc32c(5, data, n), crc32c_soft(5, data, n));
	/* continued over two parts */
	assert_int_equal(crc32c(crc32c(0, data, 1000), data + 1000, 2000), crc32c(0, data, 3000));
}

/* reference values of XXH3 for the empty input (xxhash's own documentation of seed 0) */
static void xxh3_is_canonical(void **state)
{
	static const uint8_t empty[16] = {0x99, 0xaa, 0x06, 0xd3, 0x01, 0x47, 0x98, 0xd8,
					  0x60, 0x01, 0xc3, 0x24, 0x46, 0x8d, 0x49, 0x7f};
	struct hash128 h = hash128("", 0);

	(void)state;
	assert_int_equal(hash64("", 0), 0x2d06800538d394c2ULL);
	assert_memory_equal(h.b, empty, 16);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(crc32c_gives_the_published_values),
		cmocka_unit_test(all_ways_to_compute_agree),
		cmocka_unit_test(xxh3_is_canonical),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
