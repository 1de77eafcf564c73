/* SPDX-License-Identifier: Apache-2.0 */
/* A chunk's list of slices -> what is visible, and a range of it -> block ranges. Pure
 * (docs/format.md §4.2). */
#ifndef STOKE_CLIENT_META_SLICE_H
#define STOKE_CLIENT_META_SLICE_H

#include "client/meta/attr.h"

/* what is visible. A piece: bytes [pos, pos + len) of the chunk are bytes [off, off + len) of slice
 * id (size bytes in all); id 0: zeros */
struct slice_view {
	size_t n;
	struct slice *pieces;
};

/* Later records win. Pieces come left to right from 0 without gaps, holes as id 0; nothing behind
 * the last. 0 or -ENOMEM */
int slice_view_build(const struct slice *records, size_t n, struct slice_view *ret);
void slice_view_fini(struct slice_view *v);

/* one block's part of a read: bytes [off, off + len) of block index of the slice go to out_off of
 * the answer; slice 0: zeros */
struct block_range {
	uint64_t slice;
	uint32_t index, size;
	uint32_t off, len;
	uint32_t out_off;
};
/* Calls fn for each part of chunk range [off, off + len) in order; what lies behind the last piece
 * is zeros. Stops and returns fn's non-zero. */
int slice_view_ranges(const struct slice_view *v, uint32_t block_size, uint32_t off, uint32_t len,
		      int (*fn)(const struct block_range *r, void *arg), void *arg);

/* Where data, or (hole) a hole, begins at or behind off in the chunk: CHUNK_SIZE when there is none
 * up to its end. What lies behind the last piece is a hole; the file's length is the caller's to
 * know */
uint32_t slice_view_seek(const struct slice_view *v, uint32_t off, bool hole);

#endif
