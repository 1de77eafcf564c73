/* SPDX-License-Identifier: Apache-2.0 */
/* Secrets of the setting, and random bytes. Stored text = base64(nonce ‖ ciphertext ‖ tag); the key
 * is no secret from those who can read the setting, so this keeps keys out of sight, not out of
 * reach. Pure, any thread. */
#include "common/object/crypt.h"

#include <sys/random.h>

#include <openssl/evp.h>

enum { NONCE = 12, TAG = 16, MAX_SECRET = 1 << 20 };

static EVP_CIPHER_CTX *cipher_new(const char *uuid, const unsigned char *nonce, bool seal)
{
	EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
	unsigned char key[EVP_MAX_MD_SIZE];

	if (c && EVP_Digest(uuid, strlen(uuid), key, NULL, EVP_md5(), NULL) == 1 &&
	    EVP_CipherInit_ex(c, EVP_aes_128_gcm(), NULL, key, nonce, seal) == 1)
		return c;
	EVP_CIPHER_CTX_free(c);
	return NULL;
}

static void cipher_freep(EVP_CIPHER_CTX **c)
{
	EVP_CIPHER_CTX_free(*c);
}

/* standard base64 with padding, nothing else around it; *ret_len is its true length */
static int from_base64(const char *text, unsigned char **ret, size_t *ret_len)
{
	size_t n = strlen(text), pad = 0;
	_cleanup_(freep) unsigned char *raw = NULL;

	if (n % 4 || n > MAX_SECRET)
		return -EBADMSG;
	/* EVP_DecodeBlock also takes blanks, and '=' in the middle */
	if (strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/") +
		    strspn(text + strcspn(text, "="), "=") !=
	    n)
		return -EBADMSG;
	while (pad < 3 && pad < n && text[n - 1 - pad] == '=')
		pad++;
	raw = malloc(n / 4 * 3 + 1);
	if (!raw)
		return -ENOMEM;
	if (pad > 2 || EVP_DecodeBlock(raw, (const unsigned char *)text, (int)n) < 0)
		return -EBADMSG;
	*ret_len = n / 4 * 3 - pad;
	*ret = TAKE_PTR(raw);
	return 0;
}

int crypt_unseal(const char *uuid, const char *sealed, char **ret)
{
	_cleanup_(freep) unsigned char *raw = NULL;
	_cleanup_(freep) unsigned char *plain = NULL;
	_cleanup_(cipher_freep) EVP_CIPHER_CTX *c = NULL;
	size_t n = 0;
	int len = 0, rest = 0, r;

	if (!*sealed) {
		plain = calloc(1, 1);
		if (!plain)
			return -ENOMEM;
		*ret = (char *)TAKE_PTR(plain);
		return 0;
	}
	if (strcmp(sealed, "removed") == 0)
		return -ENOENT;
	r = from_base64(sealed, &raw, &n);
	if (r < 0)
		return r;
	if (n < NONCE + TAG)
		return -EBADMSG;
	n -= NONCE + TAG;
	plain = calloc(1, n + 1);
	c = cipher_new(uuid, raw, false);
	if (!plain || !c)
		return -ENOMEM;
	if (EVP_DecryptUpdate(c, plain, &len, raw + NONCE, (int)n) != 1 ||
	    EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_SET_TAG, TAG, raw + NONCE + n) != 1 ||
	    EVP_DecryptFinal_ex(c, plain + len, &rest) != 1 || memchr(plain, 0, n)) {
		explicit_bzero(plain, n);
		return -EBADMSG;
	}
	*ret = (char *)TAKE_PTR(plain);
	return 0;
}

int crypt_seal(const char *uuid, const char *plain, char **ret)
{
	size_t n = strlen(plain);
	_cleanup_(freep) unsigned char *raw = NULL;
	_cleanup_(freep) unsigned char *text = NULL;
	_cleanup_(cipher_freep) EVP_CIPHER_CTX *c = NULL;
	int len = 0, rest = 0;

	if (n > MAX_SECRET / 2)
		return -EINVAL;
	raw = malloc(NONCE + n + TAG);
	text = calloc(1, (NONCE + n + TAG + 2) / 3 * 4 + 1);
	if (!raw || !text)
		return -ENOMEM;
	if (n == 0) {
		*ret = (char *)TAKE_PTR(text);
		return 0;
	}
	crypt_random(raw, NONCE);
	c = cipher_new(uuid, raw, true);
	if (!c)
		return -ENOMEM;
	if (EVP_EncryptUpdate(c, raw + NONCE, &len, (const unsigned char *)plain, (int)n) != 1 ||
	    EVP_EncryptFinal_ex(c, raw + NONCE + len, &rest) != 1 ||
	    EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_GET_TAG, TAG, raw + NONCE + n) != 1)
		return -EIO;
	EVP_EncodeBlock(text, raw, (int)(NONCE + n + TAG));
	*ret = (char *)TAKE_PTR(text);
	return 0;
}

void crypt_random(void *p, size_t n)
{
	unsigned char *to = p;

	while (n) {
		ssize_t got = getrandom(to, n, 0);

		if (got < 0) {
			assert(errno ==
			       EINTR); /* nothing else can happen on a kernel that runs us */
			continue;
		}
		to += got;
		n -= (size_t)got;
	}
}

void crypt_uuid(char ret[37])
{
	unsigned char b[16];

	crypt_random(b, sizeof(b));
	b[6] = (unsigned char)(0x40 | (b[6] & 0x0f));
	b[8] = (unsigned char)(0x80 | (b[8] & 0x3f));
	(void)snprintf(ret, 37,
		       "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
		       b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12],
		       b[13], b[14], b[15]);
}
