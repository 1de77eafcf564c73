/* SPDX-License-Identifier: Apache-2.0 */
/* Compression and encryption one after the other, in the object's own buffer: what is compressed is
 * encrypted where it lies, and the other way round, so that a block never needs a third buffer.
 * Pure, any thread. */
#include "common/object/coding.h"

size_t coding_bound(struct coding c, size_t size)
{
	return codec_bound(c.codec, size) + (c.crypt ? crypt_block_overhead(c.crypt) : 0);
}

static ssize_t encode_body(struct coding c, struct crypt_head *head, const void *src, size_t n,
			   unsigned char *dst, size_t cap)
{
	ssize_t len = (ssize_t)n;

	if (c.codec != CODEC_NONE) {
		len = codec_encode(c.codec, src, n, dst, cap);
		src = dst;
	}
	if (len < 0 || (size_t)len > cap)
		return len < 0 ? len : -EMSGSIZE;
	return crypt_block_seal(c.crypt, head, src, (size_t)len, dst);
}

ssize_t coding_encode(struct coding c, const void *src, size_t n, unsigned char *dst, size_t cap)
{
	struct crypt_head head;
	ssize_t at, len;

	if (!c.crypt)
		return codec_encode(c.codec, src, n, dst, cap);
	at = crypt_block_head(c.crypt, dst, cap, &head);
	if (at < 0)
		return at;
	/* the head was written within the overhead, which holds the tag, too */
	len = encode_body(c, &head, src, n, dst + at, cap - crypt_block_overhead(c.crypt));
	return len < 0 ? len : at + len;
}

int coding_decode(struct coding c, unsigned char *obj, size_t n, unsigned char *dst, size_t size)
{
	unsigned char *plain;
	size_t len;
	int r;

	if (!c.crypt)
		return codec_decode(c.codec, obj, n, dst, size);
	r = crypt_block_open(c.crypt, obj, n, c.codec == CODEC_NONE ? dst : NULL, size, &plain,
			     &len);
	if (r)
		return r == -ENOMEM ? r : -EBADMSG;
	if (c.codec != CODEC_NONE)
		return codec_decode(c.codec, plain, len, dst, size);
	return len == size ? 0 : -EBADMSG;
}
