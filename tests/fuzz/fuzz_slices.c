/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of slices: every accepted list becomes a view without gaps, and every range of it whole
 * blocks' parts, in order. The first bytes choose block size and range. */
#include "client/meta/slice.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

struct walk {
	uint32_t done, block;
};

static int part(const struct block_range *r, void *arg)
{
	struct walk *w = arg;

	assert(r->out_off == w->done && r->len > 0);
	if (r->slice)
		assert(r->size <= w->block && r->off <= r->size && r->len <= r->size - r->off);
	w->done += r->len;
	return 0;
}

static uint32_t be32(const uint8_t *p)
{
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	struct slice *list;
	struct slice_view v;
	struct walk w = {0};
	uint32_t off, len, end = 0;
	size_t k = 0;

	if (n < 9 || n > 1 << 16)
		return 0;
	w.block = UINT32_C(65536) << (p[0] % 9);
	off = be32(p + 1) & (CHUNK_SIZE - 1);
	len = be32(p + 5) & (CHUNK_SIZE - 1);
	len = MIN(len, CHUNK_SIZE - off);
	list = calloc(n / SLICE_LEN + 1, sizeof(*list));
	if (!list)
		return 0;
	for (p += 9, n -= 9; n >= SLICE_LEN; p += SLICE_LEN, n -= SLICE_LEN) {
		if (slice_decode(p, SLICE_LEN, &list[k]) == 0)
			k++;
	}
	if (slice_view_build(list, k, &v) == 0) {
		for (size_t i = 0; i < v.n; i++) {
			assert(v.pieces[i].pos == end && v.pieces[i].len > 0);
			end += v.pieces[i].len;
		}
		assert(end <= CHUNK_SIZE);
		assert(slice_view_ranges(&v, w.block, off, len, part, &w) == 0 && w.done == len);
		slice_view_fini(&v);
	}
	free(list);
	return 0;
}
