/* SPDX-License-Identifier: Apache-2.0 */
/* Encrypted objects with OpenSSL. The key is read once; every call has contexts of its own, so that
 * any number of threads work at once. */
#include "common/object/crypt_block.h"

#include <strings.h>

#include <openssl/bio.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>

#include "common/object/crypt.h"
#include "common/object/crypt_sm4.h"

enum { FIXED = 3, NONCE = 12, TAG = 16, WRAPPED_MAX = 2048, PEM_LEN_MAX = 1 << 17 };
/* SM2's ciphertext of a short key is a DER sequence of two coordinates, a hash and the key */
enum { SM2_EXTRA = 112 };

static const char label[] = "keys";

struct algo {
	const char *name, *cipher;
	size_t key_len;
};
static const struct algo algos[] = {
	{"aes256gcm-rsa", "AES-256-GCM", 32},
	{"chacha20-rsa", "ChaCha20-Poly1305", 32},
	{"sm4gcm", NULL, 16}, /* crypt_sm4.c */
};

struct crypt_block {
	const struct algo *algo;
	EVP_CIPHER *cipher; /* NULL: SM4 */
	EVP_PKEY *key;
	bool rsa;
	size_t wrapped_max;
};

/* --- the private key --- */

static const struct algo *find_algo(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(algos); i++)
		if (strcasecmp(name, algos[i].name) == 0)
			return &algos[i];
	return *name ? NULL : &algos[0];
}

struct asked {
	const char *passphrase;
	bool asked;
};

static int give_passphrase(char *buf, int size, int rwflag, void *arg)
{
	struct asked *a = arg;
	size_t n = a->passphrase ? strlen(a->passphrase) : 0;

	(void)rwflag;
	a->asked = true;
	if (n == 0 || n > (size_t)size)
		return -1;
	memcpy(buf, a->passphrase, n);
	return (int)n;
}

static int read_key(const char *pem, const char *passphrase, EVP_PKEY **ret, struct str *err)
{
	struct asked a = {.passphrase = passphrase};
	size_t n = strlen(pem);
	BIO *b = n <= PEM_LEN_MAX ? BIO_new_mem_buf(pem, (int)n) : NULL;
	EVP_PKEY *key = b ? PEM_read_bio_PrivateKey(b, NULL, give_passphrase, &a) : NULL;

	BIO_free(b);
	ERR_clear_error();
	if (key) {
		*ret = key;
		return 0;
	}
	if (a.asked && !(passphrase && *passphrase)) {
		str_add(err, "the private key is encrypted: give its passphrase in the environment "
			     "variable " CRYPT_PASSPHRASE_ENV);
		return -EACCES;
	}
	if (a.asked) {
		str_add(err, "the private key does not open with the passphrase in "
			     "" CRYPT_PASSPHRASE_ENV);
		return -EACCES;
	}
	str_add(err, "not a private key in PEM");
	return -EINVAL;
}

static int check_key(struct crypt_block *c, struct str *err)
{
	int bits = EVP_PKEY_get_bits(c->key);

	c->rsa = EVP_PKEY_is_a(c->key, "RSA") == 1;
	if (c->rsa) {
		c->wrapped_max = (size_t)EVP_PKEY_get_size(c->key);
		if (bits >= 1024 && c->wrapped_max <= WRAPPED_MAX)
			return 0;
		str_addf(err, "an RSA key of %d bits is not taken (2048 to 16384 are)", bits);
		return -EINVAL;
	}
	if (EVP_PKEY_is_a(c->key, "SM2") == 1) {
		c->wrapped_max = c->algo->key_len + SM2_EXTRA;
		return 0;
	}
	str_add(err, "the private key is neither RSA nor SM2");
	return -EINVAL;
}

int crypt_block_new(const char *pem, const char *passphrase, const char *algo,
		    struct crypt_block **ret, struct str *err)
{
	struct crypt_block *c = calloc(1, sizeof(*c));
	int r;

	if (!c)
		return -ENOMEM;
	c->algo = find_algo(algo);
	if (!c->algo) {
		str_addf(err,
			 "unknown encryption %s: aes256gcm-rsa, chacha20-rsa and sm4gcm are known",
			 algo);
		r = -EINVAL;
		goto out;
	}
	r = read_key(pem, passphrase, &c->key, err);
	if (r == 0)
		r = check_key(c, err);
	if (r == 0 && c->algo->cipher) {
		c->cipher = EVP_CIPHER_fetch(NULL, c->algo->cipher, NULL);
		if (!c->cipher) {
			str_addf(err, "OpenSSL of this machine lacks %s", c->algo->cipher);
			r = -EOPNOTSUPP;
		}
	}
out:
	ERR_clear_error();
	if (r) {
		crypt_block_free(c);
		return r;
	}
	*ret = c;
	return 0;
}

void crypt_block_free(struct crypt_block *c)
{
	if (!c)
		return;
	EVP_PKEY_free(c->key);
	EVP_CIPHER_free(c->cipher);
	free(c);
}

const char *crypt_block_algo(const struct crypt_block *c)
{
	return c->algo->name;
}

size_t crypt_block_overhead(const struct crypt_block *c)
{
	return FIXED + c->wrapped_max + NONCE + TAG;
}

size_t crypt_block_overhead_least(const struct crypt_block *c)
{
	return FIXED + (c->rsa ? c->wrapped_max : c->algo->key_len) + NONCE + TAG;
}

/* --- wrapping --- */

static bool set_oaep(EVP_PKEY_CTX *ctx)
{
	void *copy = OPENSSL_memdup(label, sizeof(label) - 1);

	if (!copy || EVP_PKEY_CTX_set_rsa_padding(ctx, RSA_PKCS1_OAEP_PADDING) <= 0 ||
	    EVP_PKEY_CTX_set_rsa_oaep_md(ctx, EVP_sha256()) <= 0 ||
	    EVP_PKEY_CTX_set_rsa_mgf1_md(ctx, EVP_sha256()) <= 0 ||
	    EVP_PKEY_CTX_set0_rsa_oaep_label(ctx, copy, sizeof(label) - 1) <= 0) {
		OPENSSL_free(copy);
		return false;
	}
	return true; /* copy is the context's */
}

static ssize_t wrap(const struct crypt_block *c, const unsigned char *key, unsigned char *dst)
{
	EVP_PKEY_CTX *ctx = EVP_PKEY_CTX_new_from_pkey(NULL, c->key, NULL);
	size_t n = c->wrapped_max;
	ssize_t r = -EIO;

	if (!ctx)
		return -ENOMEM;
	if (EVP_PKEY_encrypt_init(ctx) == 1 && (!c->rsa || set_oaep(ctx)) &&
	    EVP_PKEY_encrypt(ctx, dst, &n, key, c->algo->key_len) == 1)
		r = (ssize_t)n;
	EVP_PKEY_CTX_free(ctx);
	ERR_clear_error();
	return r;
}

/* key: room for WRAPPED_MAX bytes, as OpenSSL asks for the modulus's length */
static int unwrap(const struct crypt_block *c, const unsigned char *wrapped, size_t n,
		  unsigned char key[WRAPPED_MAX])
{
	EVP_PKEY_CTX *ctx = EVP_PKEY_CTX_new_from_pkey(NULL, c->key, NULL);
	size_t len = WRAPPED_MAX;
	int r = -EBADMSG;

	if (!ctx)
		return -ENOMEM;
	if (EVP_PKEY_decrypt_init(ctx) == 1 && (!c->rsa || set_oaep(ctx)) &&
	    EVP_PKEY_decrypt(ctx, key, &len, wrapped, n) == 1 && len == c->algo->key_len)
		r = 0;
	EVP_PKEY_CTX_free(ctx);
	ERR_clear_error();
	return r;
}

/* --- objects --- */

ssize_t crypt_block_head(const struct crypt_block *c, unsigned char *dst, size_t cap,
			 struct crypt_head *ret)
{
	struct crypt_head h = {.key = {0}};
	ssize_t n;

	if (cap < crypt_block_overhead(c))
		return -EMSGSIZE;
	crypt_random(h.key, sizeof(h.key));
	crypt_random(h.nonce, sizeof(h.nonce));
	n = wrap(c, h.key, dst + FIXED);
	if (n > 0) {
		dst[0] = (unsigned char)(n >> 8);
		dst[1] = (unsigned char)n;
		dst[2] = NONCE;
		memcpy(dst + FIXED + n, h.nonce, NONCE);
		*ret = h;
		n += FIXED + NONCE;
	}
	OPENSSL_cleanse(&h, sizeof(h));
	return n;
}

static int aead(const struct crypt_block *c, const unsigned char *key, const unsigned char *nonce,
		bool seal, const unsigned char *src, size_t n, unsigned char *dst,
		unsigned char *tag)
{
	EVP_CIPHER_CTX *ctx = EVP_CIPHER_CTX_new();
	int r = -EIO, len = 0, rest = 0;

	if (!ctx)
		return -ENOMEM;
	if (EVP_CipherInit_ex2(ctx, c->cipher, key, nonce, seal, NULL) == 1 &&
	    EVP_CipherUpdate(ctx, dst, &len, src, (int)n) == 1 &&
	    (seal || EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_SET_TAG, TAG, tag) == 1)) {
		r = EVP_CipherFinal_ex(ctx, dst + len, &rest) == 1 ? 0 : -EBADMSG;
		if (r == 0 && seal &&
		    EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_GET_TAG, TAG, tag) != 1)
			r = -EIO;
	}
	EVP_CIPHER_CTX_free(ctx);
	ERR_clear_error();
	return r;
}

ssize_t crypt_block_seal(const struct crypt_block *c, struct crypt_head *head, const void *src,
			 size_t n, unsigned char *dst)
{
	int r = -EMSGSIZE;

	if (n <= INT32_MAX - TAG)
		r = c->cipher ? aead(c, head->key, head->nonce, true, src, n, dst, dst + n)
			      : sm4_gcm_seal(head->key, head->nonce, src, n, dst, dst + n);
	OPENSSL_cleanse(head, sizeof(*head));
	return r ? r : (ssize_t)(n + TAG);
}

int crypt_block_open(const struct crypt_block *c, unsigned char *obj, size_t n, unsigned char *dst,
		     size_t cap, unsigned char **ret, size_t *ret_len)
{
	unsigned char key[WRAPPED_MAX];
	size_t wrapped, body, len;
	int r;

	if (n < FIXED || n > INT32_MAX)
		return -EBADMSG;
	wrapped = (size_t)obj[0] << 8 | obj[1];
	body = FIXED + wrapped + obj[2];
	if (obj[2] != NONCE || wrapped == 0 || wrapped > WRAPPED_MAX || n < body || n - body < TAG)
		return -EBADMSG;
	len = n - body - TAG;
	if (dst && len > cap)
		return -EMSGSIZE;
	if (!dst)
		dst = obj + body;
	r = unwrap(c, obj + FIXED, wrapped, key);
	if (r == 0 && c->cipher)
		r = aead(c, key, obj + FIXED + wrapped, false, obj + body, len, dst,
			 obj + body + len);
	else if (r == 0)
		r = sm4_gcm_open(key, obj + FIXED + wrapped, obj + body, len, obj + body + len,
				 dst);
	OPENSSL_cleanse(key, sizeof(key));
	if (r)
		return r;
	*ret = dst;
	*ret_len = len;
	return 0;
}
