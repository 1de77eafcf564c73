/* SPDX-License-Identifier: Apache-2.0 */
/* Codecs against the format vectors (compression, compress_bound: liblz4 1.9.4, libzstd 1.5.4),
 * round trips, and damaged input. */
#include "common/object/codec.h"

#include "common/object/crypt.h"
#include "tests/unit/check.h"

static void names_are_those_of_settings(void **state _unused_)
{
	enum codec c = CODEC_ZSTD;

	assert_int_equal(codec_parse("", &c), 0);
	assert_int_equal(c, CODEC_NONE);
	assert_int_equal(codec_parse("LZ4", &c), 0);
	assert_int_equal(c, CODEC_LZ4);
	assert_int_equal(codec_parse("Zstd", &c), 0);
	assert_int_equal(c, CODEC_ZSTD);
	assert_int_equal(codec_parse("gzip", &c), -EOPNOTSUPP);
	assert_int_equal(c, CODEC_ZSTD);
	assert_string_equal(codec_name(CODEC_NONE), "none");
}

static void decodes_what_others_wrote(void **state _unused_)
{
	static const char lz4[] = "Phello", zstd[] = "\x28\xb5\x2f\xfd\x20\x05\x29\x00\x00hello";
	static const char abc_lz4[] = "\x3f\x61\x62\x63\x03\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff"
				      "\xff\xff\xa8\x50\x62\x63\x61\x62\x63";
	static const char abc_zstd[] =
		"\x28\xb5\x2f\xfd\x60\xb8\x0a\x55\x00\x00\x18\x61\x62\x63\x01\x00\xb2\xd3\x77\x43";
	static const char zero_zstd[] =
		"\x28\xb5\x2f\xfd\x60\x00\xff\x55\x00\x00\x10\x00\x00\x01\x00\xfb\x7f\x1d\x60\x01";
	static char out[65537], want[65536];

	assert_int_equal(codec_decode(CODEC_LZ4, lz4, sizeof(lz4) - 1, out, 5), 0);
	assert_memory_equal(out, "hello", 5);
	memset(out, 0, 5);
	assert_int_equal(codec_decode(CODEC_ZSTD, zstd, sizeof(zstd) - 1, out, 5), 0);
	assert_memory_equal(out, "hello", 5);
	for (size_t i = 0; i < 3000; i++)
		want[i] = "abc"[i % 3];
	assert_int_equal(codec_decode(CODEC_LZ4, abc_lz4, sizeof(abc_lz4) - 1, out, 3000), 0);
	assert_memory_equal(out, want, 3000);
	memset(out, 0, 3000);
	assert_int_equal(codec_decode(CODEC_ZSTD, abc_zstd, sizeof(abc_zstd) - 1, out, 3000), 0);
	assert_memory_equal(out, want, 3000);
	memset(want, 0, sizeof(want));
	memset(out, 1, sizeof(out));
	assert_int_equal(codec_decode(CODEC_ZSTD, zero_zstd, sizeof(zero_zstd) - 1, out, 65536), 0);
	assert_memory_equal(out, want, 65536);
	assert_int_equal(out[65536], 1);
}

static void bounds_are_the_libraries(void **state _unused_)
{
	assert_int_equal(codec_bound(CODEC_LZ4, 0), 16);
	assert_int_equal(codec_bound(CODEC_LZ4, 65536), 65809);
	assert_int_equal(codec_bound(CODEC_LZ4, 4194304), 4210768);
	assert_int_equal(codec_bound(CODEC_ZSTD, 0), 64);
	assert_int_equal(codec_bound(CODEC_ZSTD, 65536), 65824);
	assert_int_equal(codec_bound(CODEC_ZSTD, 4194304), 4210688);
	assert_int_equal(codec_bound(CODEC_NONE, 77), 77);
}

static void round_trips_and_refuses_other_lengths(void **state _unused_)
{
	enum { N = 100000 };
	unsigned char *in = malloc(N), *out = malloc(N + 1);
	unsigned char *packed = malloc(codec_bound(CODEC_ZSTD, N) + codec_bound(CODEC_LZ4, N));

	assert_non_null(in);
	assert_non_null(out);
	assert_non_null(packed);
	for (int i = 0; i < 2; i++) {
		/* random bytes grow, zeros shrink: there is no raw fallback */
		crypt_random(in, N);
		if (i)
			memset(in, 0, N);
		for (enum codec c = CODEC_NONE; c <= CODEC_ZSTD; c++) {
			ssize_t n = codec_encode(c, in, N, packed, codec_bound(c, N));

			assert_true(n > 0);
			assert_int_equal(codec_decode(c, packed, (size_t)n, out, N), 0);
			assert_memory_equal(in, out, N);
			assert_int_equal(codec_decode(c, packed, (size_t)n, out, N - 1), -EBADMSG);
			assert_int_equal(codec_decode(c, packed, (size_t)n, out, N + 1), -EBADMSG);
			assert_int_equal(codec_decode(c, packed, (size_t)n - 1, out, N), -EBADMSG);
			assert_int_equal(codec_decode(c, packed, 0, out, N), -EBADMSG);
			assert_int_equal(codec_encode(c, in, N, packed, (size_t)n - 1), -EMSGSIZE);
		}
	}
	free(in);
	free(out);
	free(packed);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_are_those_of_settings),
		cmocka_unit_test(decodes_what_others_wrote),
		cmocka_unit_test(bounds_are_the_libraries),
		cmocka_unit_test(round_trips_and_refuses_other_lengths),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
