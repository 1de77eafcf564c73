/* SPDX-License-Identifier: Apache-2.0 */
/* The index that a program inherits: what is taken is whole, and its blocks and disks are in
 * bounds. The checksum is made good first, else nothing but it would be tried. */
#include "cached/snapshot.h"
#include "common/hash.h"
#include "proto/bytes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check(const struct snapshot_view *v, size_t n)
{
	struct snapshot_place place;
	enum evict_kind kind;
	struct block_key k;
	uint64_t first, blocks;
	unsigned checked;

	assert(v->n_disks <= INDEX_DISKS_MAX);
	assert(SNAPSHOT_HEAD + v->n_disks * (size_t)SNAPSHOT_DISK +
		       v->n_blocks * (size_t)SNAPSHOT_BLOCK ==
	       n);
	for (uint64_t i = 0; i < v->n_blocks; i++)
		if (snapshot_block(v, i, &k, &kind) == 0)
			assert(k.size > 0 && k.size <= FRAME_BLOCK_MAX && kind <= EVICT_GUEST);
	for (unsigned i = 0; i < v->n_disks; i++) {
		const uint8_t *row = v->disks + (size_t)i * SNAPSHOT_DISK;

		place = (struct snapshot_place){get64(row), get64(row + 8), get64(row + 16)};
		if (snapshot_find(v, &place, &first, &blocks, &checked) == 0)
			assert(first <= v->n_blocks && blocks <= v->n_blocks - first &&
			       checked <= RECOVER_DIRS);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct snapshot_view v;
	uint8_t *p = calloc(1, n + 1);

	assert(p);
	if (n)
		memcpy(p, data, n);
	if (snapshot_parse(p, n, &v) == 0)
		check(&v, n);
	if (n >= SNAPSHOT_HEAD) {
		put64(p + 40, hash64(p + SNAPSHOT_HEAD, n - SNAPSHOT_HEAD));
		if (snapshot_parse(p, n, &v) == 0)
			check(&v, n);
	}
	free(p);
	return 0;
}
