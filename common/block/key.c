/* SPDX-License-Identifier: Apache-2.0 */
/* Block identity, its names, and the checksums of its pieces. Pure, any thread. */
#include "common/block/key.h"

#include <inttypes.h>

static void put_be32(uint8_t *p, uint32_t v)
{
	for (int i = 0; i < 4; i++)
		p[i] = (uint8_t)(v >> (24 - 8 * i));
}

static uint32_t get_be32(const uint8_t *p)
{
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void set_digest(struct block_key *k)
{
	uint8_t wire[MSG_KEY];
	struct msg_key m;

	block_key_to_msg(k, &m);
	msg_key_encode(&m, wire);
	k->digest = hash64(wire, sizeof(wire));
}

void block_key_init(struct block_key *k, const struct hash128 *volume, uint64_t slice,
		    uint32_t index, uint32_t size)
{
	*k = (struct block_key){.volume = *volume, .slice = slice, .index = index, .size = size};
	set_digest(k);
}

bool block_key_eq(const struct block_key *a, const struct block_key *b)
{
	return a->digest == b->digest && a->slice == b->slice && a->index == b->index &&
	       a->size == b->size && !memcmp(a->volume.b, b->volume.b, sizeof(a->volume.b));
}

void block_key_to_msg(const struct block_key *k, struct msg_key *m)
{
	static_assert(sizeof(m->volume) == sizeof(k->volume.b), "the volume id is 16 bytes");
	memcpy(m->volume, k->volume.b, sizeof(m->volume));
	m->slice = k->slice;
	m->index = k->index;
	m->size = k->size;
}

void block_key_from_msg(struct block_key *k, const struct msg_key *m)
{
	struct hash128 volume;

	memcpy(volume.b, m->volume, sizeof(volume.b));
	block_key_init(k, &volume, m->slice, m->index, m->size);
}

void block_key_object(const struct block_key *k, const char *volume_name, bool hash_prefix,
		      char ret[BLOCK_NAME_MAX])
{
	uint64_t million = k->slice / 1000 / 1000;
	int n;

	if (hash_prefix)
		n = snprintf(ret, BLOCK_NAME_MAX,
			     "%s/chunks/%02X/%" PRIu64 "/%" PRIu64 "_%" PRIu32 "_%" PRIu32,
			     volume_name, (unsigned)(k->slice % 256), million, k->slice, k->index,
			     k->size);
	else
		n = snprintf(ret, BLOCK_NAME_MAX,
			     "%s/chunks/%" PRIu64 "/%" PRIu64 "/%" PRIu64 "_%" PRIu32 "_%" PRIu32,
			     volume_name, million, k->slice / 1000, k->slice, k->index, k->size);
	assert(n > 0 && n < BLOCK_NAME_MAX); /* setting_parse bounds the volume's name */
}

void block_key_cache_name(const struct block_key *k, char ret[BLOCK_CACHE_NAME_MAX])
{
	int n = snprintf(ret, BLOCK_CACHE_NAME_MAX, "%02x/%" PRIu64 "_%" PRIu32 "_%" PRIu32,
			 (unsigned)(k->digest & 0xff), k->slice, k->index, k->size);

	assert(n > 0 && n < BLOCK_CACHE_NAME_MAX);
}

/* One decimal number in its only spelling (no sign, no leading zero); *p moves behind it. */
static int take_number(const char **p, uint64_t max, uint64_t *ret)
{
	const char *s = *p;
	uint64_t v = 0;

	if (*s < '0' || *s > '9' || (s[0] == '0' && s[1] >= '0' && s[1] <= '9'))
		return -EINVAL;
	for (; *s >= '0' && *s <= '9'; s++)
		if (__builtin_mul_overflow(v, 10, &v) ||
		    __builtin_add_overflow(v, (uint64_t)(*s - '0'), &v) || v > max)
			return -EINVAL;
	*p = s;
	*ret = v;
	return 0;
}

int block_key_parse(const char *name, const struct hash128 *volume, struct block_key *ret)
{
	uint64_t slice, index, size;

	if (take_number(&name, UINT64_MAX, &slice) || *name++ != '_' ||
	    take_number(&name, UINT32_MAX, &index) || *name++ != '_' ||
	    take_number(&name, FRAME_BLOCK_MAX, &size) || *name || !size)
		return -EINVAL;
	block_key_init(ret, volume, slice, (uint32_t)index, (uint32_t)size);
	return 0;
}

uint32_t block_size_at(uint64_t slice_size, uint32_t block_size, uint32_t index)
{
	uint64_t start = (uint64_t)index * block_size;

	if (start >= slice_size)
		return 0;
	return (uint32_t)MIN(slice_size - start, (uint64_t)block_size);
}

static uint32_t seeded(const struct block_key *k, uint32_t piece)
{
	uint8_t seed[12];

	put_be32(seed, (uint32_t)(k->digest >> 32));
	put_be32(seed + 4, (uint32_t)k->digest);
	put_be32(seed + 8, piece);
	return crc32c(0, seed, sizeof(seed));
}

uint32_t block_piece_sum(const struct block_key *k, uint32_t piece, const void *p, size_t n)
{
	return crc32c(seeded(k, piece), p, n);
}

/* The sums of the next pieces, three at a time while there are whole ones (a processor computes
 * them side by side); returns how many. */
static unsigned next_sums(const struct block_key *k, uint32_t piece, const uint8_t *p, size_t len,
			  uint32_t ret[3])
{
	if (len < 3 * (size_t)FRAME_PIECE) {
		ret[0] = block_piece_sum(k, piece, p, MIN(len, (size_t)FRAME_PIECE));
		return 1;
	}
	for (unsigned i = 0; i < 3; i++)
		ret[i] = seeded(k, piece + i);
	crc32c_x3(ret, p, FRAME_PIECE);
	return 3;
}

void block_sums(const struct block_key *k, uint32_t off, const void *data, size_t len,
		uint8_t *sums)
{
	const uint8_t *p = data, *end = p + len;
	uint32_t piece = off / FRAME_PIECE, sum[3];

	assert(off % FRAME_PIECE == 0);
	while (p < end) {
		unsigned n = next_sums(k, piece, p, (size_t)(end - p), sum);

		for (unsigned i = 0; i < n; i++, sums += 4)
			put_be32(sums, sum[i]);
		piece += n;
		p += MIN((size_t)n * FRAME_PIECE, (size_t)(end - p));
	}
}

int block_sums_check(const struct block_key *k, uint32_t off, const void *data, size_t len,
		     const uint8_t *sums, uint32_t *ret_piece)
{
	const uint8_t *p = data, *end = p + len;
	uint32_t piece = off / FRAME_PIECE, sum[3];

	assert(off % FRAME_PIECE == 0);
	while (p < end) {
		unsigned n = next_sums(k, piece, p, (size_t)(end - p), sum);

		for (unsigned i = 0; i < n; i++, sums += 4) {
			if (get_be32(sums) == sum[i])
				continue;
			if (ret_piece)
				*ret_piece = piece + i;
			return -EBADMSG;
		}
		piece += n;
		p += MIN((size_t)n * FRAME_PIECE, (size_t)(end - p));
	}
	return 0;
}
