/* SPDX-License-Identifier: Apache-2.0 */
/* What lies between a block's bytes and its object's: nothing, one raw LZ4 block, or one zstd frame
 * (docs/format.md §5.3). Pure. */
#ifndef STOKE_COMMON_OBJECT_CODEC_H
#define STOKE_COMMON_OBJECT_CODEC_H

#include "common/base.h"

enum codec { CODEC_NONE, CODEC_LZ4, CODEC_ZSTD };

/* "", "none", "lz4", "zstd" in any case; -EOPNOTSUPP otherwise */
int codec_parse(const char *name, enum codec *ret);
const char *codec_name(enum codec c);
/* most bytes that size bytes can become */
size_t codec_bound(enum codec c, size_t size);
/* returns the length written to dst, or -EMSGSIZE */
ssize_t codec_encode(enum codec c, const void *src, size_t n, void *dst, size_t cap);
/* dst gets exactly size bytes, else -EBADMSG */
int codec_decode(enum codec c, const void *src, size_t n, void *dst, size_t size);

#endif
