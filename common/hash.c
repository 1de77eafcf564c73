/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3 by the xxhash library; CRC-32C by the processor's instruction where it has one, else by
 * slicing-by-8 tables. Pure. */
#include "common/hash.h"

#include <pthread.h>
#include <xxhash.h>
#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

uint64_t hash64(const void *p, size_t n)
{
	return XXH3_64bits(p, n);
}

struct hash128 hash128(const void *p, size_t n)
{
	XXH128_canonical_t c;
	struct hash128 h;

	XXH128_canonicalFromHash(&c, XXH3_128bits(p, n));
	memcpy(h.b, c.digest, sizeof(h.b));
	return h;
}

static uint32_t table[8][256];
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

static void table_make(void)
{
	for (uint32_t i = 0; i < 256; i++) {
		uint32_t c = i;

		for (int b = 0; b < 8; b++)
			c = (c & 1) ? (c >> 1) ^ 0x82f63b78U : c >> 1;
		table[0][i] = c;
	}
	for (uint32_t i = 0; i < 256; i++)
		for (int t = 1; t < 8; t++)
			table[t][i] = (table[t - 1][i] >> 8) ^ table[0][table[t - 1][i] & 0xff];
}

uint32_t crc32c_soft(uint32_t crc, const void *data, size_t n)
{
	const uint8_t *p = data;
	uint32_t c = ~crc;

	(void)pthread_once(&table_once, table_make);
	for (; n >= 8; p += 8, n -= 8) {
		uint32_t lo = c ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
				   (uint32_t)p[3] << 24);

		c = table[7][lo & 0xff] ^ table[6][(lo >> 8) & 0xff] ^ table[5][(lo >> 16) & 0xff] ^
		    table[4][lo >> 24] ^ table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^
		    table[0][p[7]];
	}
	while (n--)
		c = (c >> 8) ^ table[0][(c ^ *p++) & 0xff];
	return ~c;
}

#if defined(__x86_64__)
/* Long input runs in three streams of STREAM bytes, since the instruction has a latency of three
 * and a throughput of one. The sums become one because a checksum is linear: after STREAM further
 * bytes a register's bits are what the same number of zero bytes makes of them, looked up by its
 * bytes. */
enum { STREAM = 4096 };
static uint32_t after_stream[4][256];
static pthread_once_t after_once = PTHREAD_ONCE_INIT;

static void after_make(void)
{
	static const uint8_t zeros[STREAM];

	for (unsigned i = 0; i < 4; i++)
		for (uint32_t v = 0; v < 256; v++) {
			uint32_t low = v & (v - 1); /* without its lowest bit: made before */

			after_stream[i][v] = low ? after_stream[i][low] ^ after_stream[i][v ^ low]
					     : v ? ~crc32c_soft(~(v << 8 * i), zeros, STREAM)
						 : 0;
		}
}

static uint32_t after(uint32_t c)
{
	return after_stream[0][c & 0xff] ^ after_stream[1][(c >> 8) & 0xff] ^
	       after_stream[2][(c >> 16) & 0xff] ^ after_stream[3][c >> 24];
}

__attribute__((target("sse4.2"))) static uint32_t crc32c_hard(uint32_t crc, const void *data,
							      size_t n)
{
	const uint8_t *p = data;
	uint64_t c = (uint32_t)~crc;

	if (n >= 3 * STREAM)
		(void)pthread_once(&after_once, after_make);
	for (; n >= 3 * STREAM; p += 3 * STREAM, n -= 3 * STREAM) {
		uint64_t b = 0, d = 0;

		for (size_t i = 0; i < STREAM; i += 8) {
			uint64_t x, y, z;

			memcpy(&x, p + i, 8);
			memcpy(&y, p + STREAM + i, 8);
			memcpy(&z, p + 2 * STREAM + i, 8);
			c = _mm_crc32_u64(c, x);
			b = _mm_crc32_u64(b, y);
			d = _mm_crc32_u64(d, z);
		}
		c = after(after((uint32_t)c) ^ (uint32_t)b) ^ (uint32_t)d;
	}
	for (; n >= 8; p += 8, n -= 8) {
		uint64_t v;

		memcpy(&v, p, sizeof(v));
		c = _mm_crc32_u64(c, v);
	}
	while (n--)
		c = _mm_crc32_u8((uint32_t)c, *p++);
	return ~(uint32_t)c;
}

uint32_t crc32c(uint32_t crc, const void *p, size_t n)
{
	return __builtin_cpu_supports("sse4.2") ? crc32c_hard(crc, p, n) : crc32c_soft(crc, p, n);
}

/* Three streams at once: the instruction has a latency of three and a throughput of one. */
__attribute__((target("sse4.2"))) static void crc32c_hard3(uint32_t crc[3], const uint8_t *p,
							   size_t n)
{
	uint64_t a = (uint32_t)~crc[0], b = (uint32_t)~crc[1], c = (uint32_t)~crc[2];

	for (size_t i = 0; i < n; i += 8) {
		uint64_t x, y, z;

		memcpy(&x, p + i, 8);
		memcpy(&y, p + n + i, 8);
		memcpy(&z, p + 2 * n + i, 8);
		a = _mm_crc32_u64(a, x);
		b = _mm_crc32_u64(b, y);
		c = _mm_crc32_u64(c, z);
	}
	crc[0] = ~(uint32_t)a;
	crc[1] = ~(uint32_t)b;
	crc[2] = ~(uint32_t)c;
}

void crc32c_x3(uint32_t crc[3], const void *p, size_t n)
{
	assert(n % 8 == 0);
	if (__builtin_cpu_supports("sse4.2")) {
		crc32c_hard3(crc, p, n);
		return;
	}
	for (int i = 0; i < 3; i++)
		crc[i] = crc32c_soft(crc[i], (const uint8_t *)p + (size_t)i * n, n);
}
#else
uint32_t crc32c(uint32_t crc, const void *data, size_t n)
{
#if defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
	const uint8_t *p = data;
	uint32_t c = ~crc;

	for (; n >= 8; p += 8, n -= 8) {
		uint64_t v;

		memcpy(&v, p, sizeof(v));
		c = __crc32cd(c, v);
	}
	while (n--)
		c = __crc32cb(c, *p++);
	return ~c;
#else
	return crc32c_soft(crc, data, n);
#endif
}

void crc32c_x3(uint32_t crc[3], const void *p, size_t n)
{
	assert(n % 8 == 0);
	for (int i = 0; i < 3; i++)
		crc[i] = crc32c(crc[i], (const uint8_t *)p + (size_t)i * n, n);
}
#endif
