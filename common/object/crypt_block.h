/* SPDX-License-Identifier: Apache-2.0 */
/* Encrypted objects (docs/format.md §5.4): each has a data key of its own, wrapped with the
 * volume's RSA (or SM2) key, and is sealed whole with an AEAD.
 *
 *	length of the wrapped key, 2 bytes · of the nonce, 1 byte · wrapped key · nonce ·
 *	ciphertext · tag of 16 bytes
 *
 * Any thread, many at once. Unwrapping is the private key's work: 0.25 ms of a core with RSA-2048,
 * 4 ms with RSA-4096 (measured), for every object that is read; no loop calls any of this. */
#ifndef STOKE_COMMON_OBJECT_CRYPT_BLOCK_H
#define STOKE_COMMON_OBJECT_CRYPT_BLOCK_H

#include "common/str.h"

struct crypt_block;

/* the environment variable that unlocks a private key, JuiceFS's */
#define CRYPT_PASSPHRASE_ENV "JFS_RSA_PASSPHRASE"

/* pem: a private key as PKCS#1, encrypted in the old way or not, or PKCS#8, encrypted or not.
 * passphrase: NULL when there is none; not looked at when the key is not encrypted. algo:
 * "aes256gcm-rsa" (and ""), "chacha20-rsa", "sm4gcm", in any case. -EINVAL with one line in err: an
 * unknown algorithm, no private key; -EACCES: the passphrase is missing or wrong; -ENOMEM */
int crypt_block_new(const char *pem, const char *passphrase, const char *algo,
		    struct crypt_block **ret, struct str *err);
void crypt_block_free(struct crypt_block *c);
const char *crypt_block_algo(const struct crypt_block *c); /* "aes256gcm-rsa" */
/* by how many bytes an object is longer than what it holds, at most */
size_t crypt_block_overhead(const struct crypt_block *c);

/* at least; the same with RSA */
size_t crypt_block_overhead_least(const struct crypt_block *c);

/* what one object is sealed with */
struct crypt_head {
	unsigned char key[32], nonce[12];
};
/* Begins an object in dst: a new data key, its wrapped form written. Returns the bytes written, or
 * -EMSGSIZE, -EIO, -ENOMEM. */
ssize_t crypt_block_head(const struct crypt_block *c, unsigned char *dst, size_t cap,
			 struct crypt_head *ret);
/* Seals n bytes into dst, which has room for the tag behind them; src == dst is fine. Wipes the
 * head. Returns the bytes written, or -EIO, -ENOMEM. */
ssize_t crypt_block_seal(const struct crypt_block *c, struct crypt_head *head, const void *src,
			 size_t n, unsigned char *dst);
/* Verifies and decrypts an object into dst, or, dst NULL, in its own place. *ret: where the plain
 * bytes are. -EBADMSG: not an object of this key, or damaged; then neither dst nor obj is of any
 * use. -EMSGSIZE: more than cap bytes (dst) */
int crypt_block_open(const struct crypt_block *c, unsigned char *obj, size_t n, unsigned char *dst,
		     size_t cap, unsigned char **ret, size_t *ret_len);

#endif
