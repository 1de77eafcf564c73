/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-1 as RFC 3174 §6.1 has it. Pure; any thread. */
#include "common/sha1.h"

enum { SHA1_BLOCK = 64 };

static uint32_t rol(uint32_t v, unsigned n)
{
	return v << n | v >> (32 - n);
}

static uint32_t be32(const uint8_t *p)
{
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void sha1_block(uint32_t h[5], const uint8_t *p)
{
	uint32_t w[80], a = h[0], b = h[1], c = h[2], d = h[3], e = h[4];

	for (unsigned t = 0; t < 16; t++)
		w[t] = be32(p + t * 4);
	for (unsigned t = 16; t < 80; t++)
		w[t] = rol(w[t - 3] ^ w[t - 8] ^ w[t - 14] ^ w[t - 16], 1);
	for (unsigned t = 0; t < 80; t++) {
		uint32_t f, k, temp;

		if (t < 20) {
			f = (b & c) | (~b & d);
			k = 0x5a827999;
		} else if (t < 40) {
			f = b ^ c ^ d;
			k = 0x6ed9eba1;
		} else if (t < 60) {
			f = (b & c) | (b & d) | (c & d);
			k = 0x8f1bbcdc;
		} else {
			f = b ^ c ^ d;
			k = 0xca62c1d6;
		}
		temp = rol(a, 5) + f + e + w[t] + k;
		e = d;
		d = c;
		c = rol(b, 30);
		b = a;
		a = temp;
	}
	h[0] += a;
	h[1] += b;
	h[2] += c;
	h[3] += d;
	h[4] += e;
}

void sha1_hex(const void *p, size_t n, char ret[41])
{
	uint32_t h[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
	uint8_t last[2 * SHA1_BLOCK] = {0};
	const uint8_t *at = p;
	size_t left = n, tail;
	uint64_t bits = (uint64_t)n * 8;

	for (; left >= SHA1_BLOCK; left -= SHA1_BLOCK, at += SHA1_BLOCK)
		sha1_block(h, at);
	if (left)
		memcpy(last, at, left);
	last[left] = 0x80;
	tail = left + 9 > SHA1_BLOCK ? 2 * SHA1_BLOCK : SHA1_BLOCK;
	for (unsigned i = 0; i < 8; i++)
		last[tail - 1 - i] = (uint8_t)(bits >> (8 * i));
	for (size_t i = 0; i < tail; i += SHA1_BLOCK)
		sha1_block(h, last + i);
	for (unsigned i = 0; i < 5; i++)
		snprintf(ret + i * 8, 9, "%08x", h[i]);
}
