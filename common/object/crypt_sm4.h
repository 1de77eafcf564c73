/* SPDX-License-Identifier: Apache-2.0 */
/* SM4 in Galois/Counter mode, which OpenSSL has from 3.1 only: its SM4 counter mode, with the GHASH
 * of NIST SP 800-38D over it. Nonces of 12 bytes, tags of 16, no associated data. Pure. */
#ifndef STOKE_COMMON_OBJECT_CRYPT_SM4_H
#define STOKE_COMMON_OBJECT_CRYPT_SM4_H

#include "common/base.h"

/* dst gets n bytes, src == dst is fine; tag is written. 0, -EIO, -ENOMEM */
int sm4_gcm_seal(const unsigned char key[16], const unsigned char nonce[12], const void *src,
		 size_t n, unsigned char *dst, unsigned char tag[16]);
/* the tag is checked before anything is decrypted: -EBADMSG leaves dst alone */
int sm4_gcm_open(const unsigned char key[16], const unsigned char nonce[12],
		 const unsigned char *src, size_t n, const unsigned char tag[16],
		 unsigned char *dst);

#endif
