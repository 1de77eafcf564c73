/* SPDX-License-Identifier: Apache-2.0 */
/* The codecs of a block: one call each into liblz4 and libzstd, with the lengths checked on both
 * sides. Pure, any thread; a call takes a few milliseconds for a 4 MiB block, so no loop makes
 * one. */
#include "common/object/codec.h"

#include <strings.h>

#include <lz4.h>
#include <zstd.h>

enum { ZSTD_LEVEL = 1 };

static const char *const names[] = {
	[CODEC_NONE] = "none", [CODEC_LZ4] = "lz4", [CODEC_ZSTD] = "zstd"};

int codec_parse(const char *name, enum codec *ret)
{
	if (!*name) {
		*ret = CODEC_NONE;
		return 0;
	}
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		if (strcasecmp(name, names[i]) == 0) {
			*ret = (enum codec)i;
			return 0;
		}
	}
	return -EOPNOTSUPP;
}

const char *codec_name(enum codec c)
{
	return names[c];
}

size_t codec_bound(enum codec c, size_t size)
{
	switch (c) {
	case CODEC_LZ4:
		return size <= LZ4_MAX_INPUT_SIZE ? (size_t)LZ4_compressBound((int)size) : 0;
	case CODEC_ZSTD:
		return ZSTD_compressBound(size);
	case CODEC_NONE:
		break;
	}
	return size;
}

static ssize_t encode_lz4(const void *src, size_t n, void *dst, size_t cap)
{
	int len;

	if (n > LZ4_MAX_INPUT_SIZE)
		return -EMSGSIZE;
	len = LZ4_compress_default(src, dst, (int)n, (int)MIN(cap, (size_t)INT32_MAX));
	return len > 0 ? len : -EMSGSIZE;
}

ssize_t codec_encode(enum codec c, const void *src, size_t n, void *dst, size_t cap)
{
	size_t len;

	switch (c) {
	case CODEC_LZ4:
		return encode_lz4(src, n, dst, cap);
	case CODEC_ZSTD:
		len = ZSTD_compress(dst, cap, src, n, ZSTD_LEVEL);
		return ZSTD_isError(len) ? -EMSGSIZE : (ssize_t)len;
	case CODEC_NONE:
		break;
	}
	if (n > cap)
		return -EMSGSIZE;
	if (n)
		memcpy(dst, src, n);
	return (ssize_t)n;
}

int codec_decode(enum codec c, const void *src, size_t n, void *dst, size_t size)
{
	size_t len;

	switch (c) {
	case CODEC_LZ4:
		if (n > INT32_MAX || size > LZ4_MAX_INPUT_SIZE)
			return -EBADMSG;
		return LZ4_decompress_safe(src, dst, (int)n, (int)size) == (int)size ? 0 : -EBADMSG;
	case CODEC_ZSTD:
		len = ZSTD_decompress(dst, size, src, n);
		return !ZSTD_isError(len) && len == size && n > 0 ? 0 : -EBADMSG;
	case CODEC_NONE:
		break;
	}
	if (n != size)
		return -EBADMSG;
	if (n)
		memcpy(dst, src, n);
	return 0;
}
