/* SPDX-License-Identifier: Apache-2.0 */
/* How a block becomes its object: compressed, then encrypted, or either, or neither. */
#ifndef STOKE_COMMON_OBJECT_CODING_H
#define STOKE_COMMON_OBJECT_CODING_H

#include "common/object/codec.h"
#include "common/object/crypt_block.h"

struct coding {
	enum codec codec;
	const struct crypt_block *crypt; /* NULL: not encrypted */
};

static inline bool coding_is_plain(struct coding c)
{
	return c.codec == CODEC_NONE && !c.crypt;
}
/* most bytes that an object of size bytes has */
size_t coding_bound(struct coding c, size_t size);
/* Returns the length written to dst, or -EMSGSIZE, -EIO, -ENOMEM. Milliseconds: on no loop. */
ssize_t coding_encode(struct coding c, const void *src, size_t n, unsigned char *dst, size_t cap);
/* dst gets exactly size bytes, else -EBADMSG (-ENOMEM); obj is overwritten. Nothing of dst is valid
 * before it returned 0. */
int coding_decode(struct coding c, unsigned char *obj, size_t n, unsigned char *dst, size_t size);

#endif
