/* SPDX-License-Identifier: Apache-2.0 */
/* Encrypted objects: those of the format's vectors (made by Python's cryptography), every kind of
 * private key, and what damage does to them. */
#include "common/object/coding.h"
#include "common/object/crypt.h"
#include "common/object/crypt_sm4.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include "tests/unit/meta/vectors.h"

static const char passphrase[] = "12345678";

static struct crypt_block *open_key(const char *pem, const char *pass, const char *algo)
{
	struct crypt_block *c = NULL;
	struct str err = STR_INIT;

	if (crypt_block_new(pem, pass, algo, &c, &err))
		fail_msg("%s: %s", algo, str_c(&err));
	str_fini(&err);
	return c;
}

static struct crypt_block *key_of(struct coding c)
{
	return (struct crypt_block *)(uintptr_t)c.crypt;
}

static const char *text(json_t *v, const char *field)
{
	const char *s = json_string_value(json_object_get(v, field));

	assert_non_null(s);
	return s;
}

static const char *vector_pem(void)
{
	return text(json_array_get(vectors("encrypted_object"), 0),
		    "test_only_private_key_pem_pkcs1");
}

static void opens_what_others_encrypted(void **state _unused_)
{
	static const char *const forms[] = {"test_only_private_key_pem_pkcs1",
					    "same_key_pkcs8_passphrase_12345678"};
	unsigned char obj[1024], plain[256], *at;
	json_t *v;
	size_t i, len, seen = 0;

	json_array_foreach(vectors("encrypted_object"), i, v)
	{
		const char *want = text(v, "plaintext");

		for (size_t k = 0; k < ARRAY_LEN(forms); k++) {
			const char *pem = json_string_value(json_object_get(v, forms[k]));
			size_t n = vector_hex(v, "object_hex", obj, sizeof(obj));
			struct crypt_block *c;

			if (!pem)
				continue;
			c = open_key(pem, passphrase, text(v, "algo"));
			assert_int_equal(
				crypt_block_open(c, obj, n, plain, sizeof(plain), &at, &len), 0);
			assert_ptr_equal(at, plain);
			assert_int_equal(len, strlen(want));
			assert_memory_equal(plain, want, len);
			/* and in its own place */
			assert_int_equal(crypt_block_open(c, obj, n, NULL, 0, &at, &len), 0);
			assert_memory_equal(at, want, len);
			crypt_block_free(c);
			seen++;
		}
	}
	assert_true(seen >= 3);
}

static void goes_round_with_every_algorithm_and_codec(void **state _unused_)
{
	static const char *const algos[] = {"", "AES256GCM-RSA", "chacha20-rsa", "sm4gcm"};
	static const enum codec codecs[] = {CODEC_NONE, CODEC_LZ4, CODEC_ZSTD};
	static unsigned char in[300001], out[sizeof(in)];

	for (size_t i = 0; i < sizeof(in); i++)
		in[i] = (unsigned char)(i * i >> 7);
	for (size_t a = 0; a < ARRAY_LEN(algos); a++) {
		struct crypt_block *crypt = open_key(vector_pem(), NULL, algos[a]);

		for (size_t k = 0; k < ARRAY_LEN(codecs); k++)
			for (size_t n = 1; n <= sizeof(in); n += 150000) {
				struct coding c = {codecs[k], crypt};
				size_t cap = coding_bound(c, n);
				unsigned char *obj = malloc(cap);
				ssize_t len = coding_encode(c, in, n, obj, cap);

				assert_true(len > 0 && (size_t)len <= cap);
				if (codecs[k] == CODEC_NONE)
					assert_int_equal(len, n + crypt_block_overhead(crypt));
				if (n > 64)
					assert_null(memmem(obj, (size_t)len, in + n - 64, 64));
				memset(out, 0, n);
				assert_int_equal(coding_decode(c, obj, (size_t)len, out, n), 0);
				assert_memory_equal(out, in, n);
				free(obj);
			}
		crypt_block_free(crypt);
	}
}

static void two_objects_of_the_same_bytes_differ(void **state _unused_)
{
	struct coding c = {CODEC_NONE, open_key(vector_pem(), NULL, "")};
	unsigned char a[512], b[512];

	assert_true(coding_encode(c, "same", 4, a, sizeof(a)) > 0);
	assert_true(coding_encode(c, "same", 4, b, sizeof(b)) > 0);
	assert_memory_not_equal(a + 3, b + 3, 64);
	assert_memory_not_equal(a + 271, b + 271, 4);
	crypt_block_free(key_of(c));
}

static void every_damaged_byte_and_every_cut_is_found(void **state _unused_)
{
	static const char *const algos[] = {"", "chacha20-rsa", "sm4gcm"};

	for (size_t k = 0; k < ARRAY_LEN(algos); k++) {
		struct coding c = {CODEC_NONE, open_key(vector_pem(), NULL, algos[k])};
		unsigned char obj[512], copy[512], out[40] = {0};
		ssize_t n = coding_encode(c, out, sizeof(out), obj, sizeof(obj));

		assert_true(n > 0);
		for (ssize_t i = 0; i<n; i += i> 8 && i < 250 ? 16 : 1) {
			memcpy(copy, obj, (size_t)n);
			copy[i] ^= 0x10;
			assert_int_equal(coding_decode(c, copy, (size_t)n, out, sizeof(out)),
					 -EBADMSG);
		}
		for (ssize_t i = 0; i<n; i += i> 8 && i < 250 ? 16 : 1) {
			memcpy(copy, obj, (size_t)n);
			assert_int_equal(coding_decode(c, copy, (size_t)i, out, sizeof(out)),
					 -EBADMSG);
		}
		memcpy(copy, obj, (size_t)n);
		assert_int_equal(coding_decode(c, copy, (size_t)n, out, sizeof(out) - 1), -EBADMSG);
		memcpy(copy, obj, (size_t)n);
		assert_int_equal(coding_decode(c, copy, (size_t)n, out, sizeof(out)), 0);
		crypt_block_free(key_of(c));
	}
}

static void another_key_does_not_open_it(void **state _unused_)
{
	EVP_PKEY *other = EVP_RSA_gen(2048);
	BIO *b = BIO_new(BIO_s_mem());
	struct coding ours = {CODEC_NONE, open_key(vector_pem(), NULL, "")}, theirs = ours;
	unsigned char obj[512], out[4];
	char *pem;
	ssize_t n;

	assert_int_equal(PEM_write_bio_PKCS8PrivateKey(b, other, NULL, NULL, 0, NULL, NULL), 1);
	assert_int_equal(BIO_write(b, "", 1), 1);
	assert_true(BIO_get_mem_data(b, &pem) > 0);
	theirs.crypt = open_key(pem, NULL, "");
	n = coding_encode(theirs, "text", 4, obj, sizeof(obj));
	assert_int_equal(coding_decode(ours, obj, (size_t)n, out, 4), -EBADMSG);
	crypt_block_free(key_of(ours));
	crypt_block_free(key_of(theirs));
	BIO_free(b);
	EVP_PKEY_free(other);
}

/* an SM2 key, and all forms of one RSA key */
static void takes_every_form_of_private_key(void **state _unused_)
{
	EVP_PKEY *keys[] = {EVP_RSA_gen(2048), EVP_PKEY_Q_keygen(NULL, NULL, "SM2")};
	char pass[] = "two words";

	for (size_t k = 0; k < ARRAY_LEN(keys); k++)
		for (int form = 0; form < 4; form++) {
			const EVP_CIPHER *cipher = form & 1 ? EVP_aes_256_cbc() : NULL;
			BIO *b = BIO_new(BIO_s_mem());
			unsigned char obj[1024], out[5];
			struct coding c = {.codec = CODEC_NONE};
			struct str err = STR_INIT;
			struct crypt_block *got = NULL;
			char *pem;
			ssize_t n;

			if (form & 2)
				assert_int_equal(PEM_write_bio_PKCS8PrivateKey(
							 b, keys[k], cipher, pass,
							 cipher ? (int)strlen(pass) : 0, NULL,
							 NULL),
						 1);
			else
				assert_int_equal(PEM_write_bio_PrivateKey_traditional(
							 b, keys[k], cipher, (unsigned char *)pass,
							 cipher ? (int)strlen(pass) : 0, NULL,
							 NULL),
						 1);
			assert_int_equal(BIO_write(b, "", 1), 1);
			assert_true(BIO_get_mem_data(b, &pem) > 0);
			c.crypt = open_key(pem, pass, k ? "sm4gcm" : "");
			n = coding_encode(c, "bytes", 5, obj, sizeof(obj));
			assert_true(n > 0 && (size_t)n <= coding_bound(c, 5));
			assert_int_equal(coding_decode(c, obj, (size_t)n, out, 5), 0);
			assert_memory_equal(out, "bytes", 5);
			crypt_block_free(key_of(c));
			if (cipher) {
				assert_int_equal(crypt_block_new(pem, "wrong", "", &got, &err),
						 -EACCES);
				assert_non_null(strstr(str_c(&err), CRYPT_PASSPHRASE_ENV));
				str_reset(&err);
				assert_int_equal(crypt_block_new(pem, NULL, "", &got, &err),
						 -EACCES);
				assert_non_null(strstr(str_c(&err), "is encrypted"));
			}
			str_fini(&err);
			BIO_free(b);
		}
	EVP_PKEY_free(keys[0]);
	EVP_PKEY_free(keys[1]);
}

static void what_is_no_key_is_refused(void **state _unused_)
{
	struct crypt_block *c = NULL;
	EVP_PKEY *ec = EVP_EC_gen("P-256");
	BIO *b = BIO_new(BIO_s_mem());
	struct str err = STR_INIT;
	char *pem;

	assert_int_equal(crypt_block_new("no PEM", NULL, "", &c, &err), -EINVAL);
	assert_int_equal(crypt_block_new("", NULL, "", &c, &err), -EINVAL);
	str_reset(&err);
	assert_int_equal(crypt_block_new(vector_pem(), NULL, "rot13", &c, &err), -EINVAL);
	assert_non_null(strstr(str_c(&err), "rot13"));
	assert_int_equal(PEM_write_bio_PKCS8PrivateKey(b, ec, NULL, NULL, 0, NULL, NULL), 1);
	assert_int_equal(BIO_write(b, "", 1), 1);
	assert_true(BIO_get_mem_data(b, &pem) > 0);
	assert_int_equal(crypt_block_new(pem, NULL, "", &c, &err), -EINVAL);
	assert_null(c);
	str_fini(&err);
	BIO_free(b);
	EVP_PKEY_free(ec);
}

/* RFC 8998, appendix A.1, without its associated data cannot be used: so the tag is checked against
 * a second way to the same sums, bit by bit */
static void slow_multiply(unsigned char x[16], const unsigned char h[16])
{
	unsigned char z[16] = {0}, v[16];

	memcpy(v, h, 16);
	for (int i = 0; i < 128; i++) {
		bool low = v[15] & 1;

		if (x[i / 8] >> (7 - i % 8) & 1)
			for (int k = 0; k < 16; k++)
				z[k] ^= v[k];
		for (int k = 15; k > 0; k--)
			v[k] = (unsigned char)(v[k] >> 1 | v[k - 1] << 7);
		v[0] >>= 1;
		if (low)
			v[0] ^= 0xe1;
	}
	memcpy(x, z, 16);
}

static void sm4_block(const unsigned char *key, const unsigned char *in, unsigned char *out)
{
	EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
	int n;

	assert_int_equal(EVP_EncryptInit_ex(c, EVP_sm4_ecb(), NULL, key, NULL), 1);
	assert_int_equal(EVP_EncryptUpdate(c, out, &n, in, 16), 1);
	EVP_CIPHER_CTX_free(c);
}

static void sm4_tags_are_those_of_the_standard(void **state _unused_)
{
	unsigned char key[16], nonce[12], in[100], out[100], tag[16], h[16] = {0}, x[16], pad[16];

	for (size_t n = 0; n <= sizeof(in); n += 25) {
		crypt_random(key, sizeof(key));
		crypt_random(nonce, sizeof(nonce));
		crypt_random(in, sizeof(in));
		assert_int_equal(sm4_gcm_seal(key, nonce, in, n, out, tag), 0);
		memset(h, 0, 16);
		sm4_block(key, h, h);
		memset(x, 0, 16);
		for (size_t at = 0; at < n; at += 16) {
			for (size_t i = at; i < MIN(n, at + 16); i++)
				x[i - at] ^= out[i];
			slow_multiply(x, h);
		}
		x[14] ^= (unsigned char)(n * 8 >> 8);
		x[15] ^= (unsigned char)(n * 8);
		slow_multiply(x, h);
		memcpy(pad, nonce, 12);
		memcpy(pad + 12, "\0\0\0\1", 4);
		sm4_block(key, pad, pad);
		for (int i = 0; i < 16; i++)
			x[i] ^= pad[i];
		assert_memory_equal(x, tag, 16);
		/* the first block of the key stream is that of counter 2 */
		memcpy(pad, nonce, 12);
		memcpy(pad + 12, "\0\0\0\2", 4);
		sm4_block(key, pad, pad);
		for (size_t i = 0; i < MIN(n, (size_t)16); i++)
			assert_int_equal(in[i] ^ pad[i], out[i]);
		assert_int_equal(sm4_gcm_open(key, nonce, out, n, tag, out), 0);
		assert_memory_equal(out, in, n);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(opens_what_others_encrypted),
		cmocka_unit_test(goes_round_with_every_algorithm_and_codec),
		cmocka_unit_test(two_objects_of_the_same_bytes_differ),
		cmocka_unit_test(every_damaged_byte_and_every_cut_is_found),
		cmocka_unit_test(another_key_does_not_open_it),
		cmocka_unit_test(takes_every_form_of_private_key),
		cmocka_unit_test(what_is_no_key_is_refused),
		cmocka_unit_test(sm4_tags_are_those_of_the_standard),
	};

	return cmocka_run_group_tests(tests, NULL, vectors_free);
}
