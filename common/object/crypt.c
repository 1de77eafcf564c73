/* SPDX-License-Identifier: Apache-2.0 */
/* Secrets of the setting, and random bytes. Stored text = base64(nonce ‖ ciphertext ‖ tag); the key
 * is no secret from those who can read the setting, so this keeps keys out of sight, not out of
 * reach. Pure, any thread. */
#include "common/object/crypt.h"

#include <sys/random.h>

#include <openssl/evp.h>

#include "common/object/crypt_sm4.h"

enum { NONCE = 12, TAG = 16, SM4_KEY = 16, MAX_SECRET = 1 << 20 };

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

/* GB/T 32918.4's derivation with SM3, of which the first hash is enough: SM3(uuid ‖ 00000001) */
static bool sm4_key(const char *uuid, unsigned char key[SM4_KEY])
{
	static const unsigned char count[4] = {0, 0, 0, 1};
	unsigned char hash[EVP_MAX_MD_SIZE];
	EVP_MD_CTX *c = EVP_MD_CTX_new();
	bool ok = c && EVP_DigestInit_ex(c, EVP_sm3(), NULL) == 1 &&
		  EVP_DigestUpdate(c, uuid, strlen(uuid)) == 1 &&
		  EVP_DigestUpdate(c, count, sizeof(count)) == 1 &&
		  EVP_DigestFinal_ex(c, hash, NULL) == 1;

	EVP_MD_CTX_free(c);
	if (ok)
		memcpy(key, hash, SM4_KEY);
	return ok;
}

static const char base64_digits[] =
	"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* standard base64 with padding and nothing around it; raw has room for 3/4 of text. The length, or
 * -EBADMSG */
static ssize_t from_base64(const char *text, unsigned char *raw)
{
	size_t n = strlen(text), digits = strspn(text, base64_digits), pad = n - digits;

	/* EVP_DecodeBlock would also take blanks, and '=' in the middle */
	if (n % 4 || pad > 2 || strspn(text + digits, "=") != pad ||
	    EVP_DecodeBlock(raw, (const unsigned char *)text, (int)n) < 0)
		return -EBADMSG;
	return (ssize_t)(n / 4 * 3 - pad);
}

/* raw: nonce, ciphertext of n bytes, tag */
static int decrypt(const char *uuid, bool sm4, unsigned char *raw, size_t n, unsigned char *plain)
{
	unsigned char key[SM4_KEY];
	EVP_CIPHER_CTX *c;
	int len = 0, rest = 0, r = -EBADMSG;

	if (sm4)
		return sm4_key(uuid, key)
			       ? sm4_gcm_open(key, raw, raw + NONCE, n, raw + NONCE + n, plain)
			       : -ENOMEM;
	c = cipher_new(uuid, raw, false);
	if (!c)
		return -ENOMEM;
	if (EVP_DecryptUpdate(c, plain, &len, raw + NONCE, (int)n) == 1 &&
	    EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_SET_TAG, TAG, raw + NONCE + n) == 1 &&
	    EVP_DecryptFinal_ex(c, plain + len, &rest) == 1)
		r = 0;
	EVP_CIPHER_CTX_free(c);
	return r;
}

static int encrypt(const char *uuid, bool sm4, const char *plain, size_t n, unsigned char *raw)
{
	unsigned char key[SM4_KEY];
	EVP_CIPHER_CTX *c;
	int len = 0, rest = 0, r = -EIO;

	if (sm4)
		return sm4_key(uuid, key)
			       ? sm4_gcm_seal(key, raw, plain, n, raw + NONCE, raw + NONCE + n)
			       : -ENOMEM;
	c = cipher_new(uuid, raw, true);
	if (!c)
		return -ENOMEM;
	if (EVP_EncryptUpdate(c, raw + NONCE, &len, (const unsigned char *)plain, (int)n) == 1 &&
	    EVP_EncryptFinal_ex(c, raw + NONCE + len, &rest) == 1 &&
	    EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_GET_TAG, TAG, raw + NONCE + n) == 1)
		r = 0;
	EVP_CIPHER_CTX_free(c);
	return r;
}

int crypt_unseal(const char *uuid, bool sm4, const char *sealed, char **ret)
{
	size_t text = strlen(sealed);
	unsigned char *raw = NULL, *plain = NULL;
	ssize_t n;
	int r = -ENOMEM;

	if (strcmp(sealed, "removed") == 0)
		return -ENOENT;
	if (text > MAX_SECRET)
		return -EBADMSG;
	raw = malloc(text + 1);
	plain = calloc(1, text + 1);
	if (!raw || !plain)
		goto out;
	r = 0;
	if (text == 0)
		goto out;
	n = from_base64(sealed, raw);
	r = n < NONCE + TAG ? -EBADMSG : decrypt(uuid, sm4, raw, (size_t)n - NONCE - TAG, plain);
	if (r == 0 && memchr(plain, 0, (size_t)n - NONCE - TAG))
		r = -EBADMSG;
out:
	free(raw);
	if (r == 0) {
		*ret = (char *)plain;
		return 0;
	}
	if (plain)
		explicit_bzero(plain, text);
	free(plain);
	return r;
}

int crypt_seal(const char *uuid, bool sm4, const char *plain, char **ret)
{
	size_t n = strlen(plain);
	unsigned char *raw = NULL, *text = NULL;
	int r = -ENOMEM;

	if (n > MAX_SECRET / 2)
		return -EINVAL;
	raw = malloc(NONCE + n + TAG);
	text = calloc(1, (NONCE + n + TAG + 2) / 3 * 4 + 1);
	if (!raw || !text)
		goto out;
	r = 0;
	if (n == 0)
		goto out;
	crypt_random(raw, NONCE);
	r = encrypt(uuid, sm4, plain, n, raw);
	if (r == 0)
		EVP_EncodeBlock(text, raw, (int)(NONCE + n + TAG));
out:
	free(raw);
	if (r < 0)
		free(text);
	else
		*ret = (char *)text;
	return r;
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
