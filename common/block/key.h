/* SPDX-License-Identifier: Apache-2.0 */
/* Identity of a block: volume id, slice, index, size. It names its bytes for ever. Pure. */
#ifndef STOKE_COMMON_BLOCK_KEY_H
#define STOKE_COMMON_BLOCK_KEY_H

#include "common/hash.h"
#include "proto/msg.h"

enum { BLOCK_NAME_MAX = 192, BLOCK_CACHE_NAME_MAX = 64 };

/* digest = hash64 of the 32 wire bytes: place on the ring, in hash tables, seed of checksums */
struct block_key {
	struct hash128 volume;
	uint64_t slice;
	uint32_t index, size;
	uint64_t digest;
};

void block_key_init(struct block_key *k, const struct hash128 *volume, uint64_t slice,
		    uint32_t index, uint32_t size);
bool block_key_eq(const struct block_key *a, const struct block_key *b);
void block_key_to_msg(const struct block_key *k, struct msg_key *m);
void block_key_from_msg(struct block_key *k, const struct msg_key *m);

/* "NAME/chunks/A/B/{slice}_{index}_{size}" (docs/format.md §5.1) */
void block_key_object(const struct block_key *k, const char *volume_name, bool hash_prefix,
		      char ret[BLOCK_NAME_MAX]);
/* the file's name in a cache directory: "{xx}/{slice}_{index}_{size}", xx = low byte of the digest
 * in hex */
void block_key_cache_name(const struct block_key *k, char ret[BLOCK_CACHE_NAME_MAX]);
/* last path element "{slice}_{index}_{size}" -> key; -EINVAL */
int block_key_parse(const char *name, const struct hash128 *volume, struct block_key *ret);
/* size of block index of a slice of slice_size bytes; 0 when there is none */
uint32_t block_size_at(uint64_t slice_size, uint32_t block_size, uint32_t index);

/* CRC-32C of piece number piece (of FRAME_PIECE bytes, the last may be shorter), seeded with digest
 * and number */
uint32_t block_piece_sum(const struct block_key *k, uint32_t piece, const void *p, size_t n);
/* fills sums (4 bytes big-endian each) for data that starts at piece boundary off of the block */
void block_sums(const struct block_key *k, uint32_t off, const void *data, size_t len,
		uint8_t *sums);
/* -EBADMSG when a piece differs; *ret_piece (may be NULL) is the first bad one */
int block_sums_check(const struct block_key *k, uint32_t off, const void *data, size_t len,
		     const uint8_t *sums, uint32_t *ret_piece);

#endif
