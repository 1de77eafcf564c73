/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3 (the xxhash library) and CRC-32C (Castagnoli, reflected, as iSCSI's; hardware where there is
 * some). */
#ifndef STOKE_COMMON_HASH_H
#define STOKE_COMMON_HASH_H

#include "common/base.h"

/* canonical, big-endian */
struct hash128 {
	uint8_t b[16];
};

static inline bool hash128_eq(const struct hash128 *a, const struct hash128 *b)
{
	return memcmp(a->b, b->b, sizeof(a->b)) == 0;
}

uint64_t hash64(const void *p, size_t n);
struct hash128 hash128(const void *p, size_t n);
/* crc of a first part (0 at the start) continued over n more bytes */
uint32_t crc32c(uint32_t crc, const void *p, size_t n);
/* three parts of n bytes each (a multiple of 8), one behind the other in p, each continuing its own
 * crc: the processor overlaps them, about three times as fast as one after the other */
void crc32c_x3(uint32_t crc[3], const void *p, size_t n);
/* the same as crc32c by tables: what processors without the instruction use, and tests compare
 * with */
uint32_t crc32c_soft(uint32_t crc, const void *p, size_t n);

#endif
