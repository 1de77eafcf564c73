/* SPDX-License-Identifier: Apache-2.0 */
/* Encrypted objects: whatever lies in the store never decodes to what nobody sealed, and never
 * reads or writes outside its buffers. The first byte picks algorithm and codec; the second, how
 * many bytes of a good object lie in front of the input, so that what is behind an intact wrapped
 * key is reached, too. */
#include "common/object/coding.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static const char pem[] = "-----BEGIN PRIVATE KEY-----\n"
			  "MIICdwIBADANBgkqhkiG9w0BAQEFAASCAmEwggJdAgEAAoGBAPfm2RscqIYouBQP\n"
			  "3mr6PeSBssetGZiQijR3BUmvqtDJKObzP45tPH+BprI0kyH8PnvKJK31Y1a8UDn+\n"
			  "rWkkemu9PcPGNFxEc10n6x01gLA0CwQUNuaMyz8WoIyYd28wM+RdEuZMntjnMClY\n"
			  "3DhHGwDkhmOyXqsvAeWQLp9sKdtXAgMBAAECgYAgrJ6lAiv8MtXAXy8TrpQF0Ep+\n"
			  "IwSipTpyG9XolmzPRBRODHWuEhvNOot8JY3XBuY9brFS9Gr5faydWEIG/7Xaxxfp\n"
			  "PzEB/qGIC1XyQU5rGsaYspfVAi/psP4EJ3Ee0jUgF4Gs0/zED2xPwuBKIrrKGYUg\n"
			  "zRRzCZB0TqJZWcXykQJBAP0PmP+r7gxvsAUUhKebbulD1Czn7x5AYItFIo4E9w35\n"
			  "UK1lxJaoXXSFdpxqQNeHX5Zyv4rDkTsvYq9axIeyOUMCQQD6x+k/BwCiPt64zJdF\n"
			  "vYesSn4Mon50gHDczowytwpSH3rzX3liskHykR3Oo/aEPEviKdvspsZRXsFCqvUH\n"
			  "ONpdAkAdUrNd3ORGmKKC1C/S5BXj/bIWSgHRNZB6UtaAMl8WRW9tyD8RXg0GNXjb\n"
			  "AwzkbJFM85ryT1sCyqjavN/NAX/VAkEA7RrT+cZaIAxHMfwlzkdbHle0A6gi3W2O\n"
			  "yAX1YgHTnT+sVKxhLSKS3Y+82eIGMpJ7wJKJH5+zA74OBUVzs+dZ9QJBALl1Ml1s\n"
			  "w0oC+Bp1JNqypCtdcS2vnVorODF48jBavEKW4WqcwRfgGY7dz2E4Du2RU2H0tEbg\n"
			  "r8XWlUAMuPP+/E8=\n"
			  "-----END PRIVATE KEY-----\n";

enum { SIZE = 64 };
static const char *const algos[] = {"aes256gcm-rsa", "chacha20-rsa", "sm4gcm"};

static struct crypt_block *key_of(unsigned i)
{
	static struct crypt_block *keys[ARRAY_LEN(algos)];
	struct str err = STR_INIT;

	if (!keys[i])
		assert(crypt_block_new(pem, NULL, algos[i], &keys[i], &err) == 0);
	str_fini(&err);
	return keys[i];
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	unsigned char out[SIZE], plain[SIZE], *obj, *exact;
	struct coding c;
	size_t cap, keep;
	ssize_t len;
	bool same;

	if (n < 2)
		return 0;
	c.crypt = key_of(p[0] % ARRAY_LEN(algos));
	c.codec = (enum codec)(p[0] / 16 % 3);
	memset(plain, 'a', sizeof(plain));
	cap = coding_bound(c, SIZE);
	obj = malloc(cap + n);
	assert(obj);
	len = coding_encode(c, plain, SIZE, obj, cap);
	assert(len > 0);
	keep = MIN((size_t)p[1], (size_t)len);
	same = keep + n - 2 == (size_t)len && memcmp(obj + keep, p + 2, n - 2) == 0;
	memcpy(obj + keep, p + 2, n - 2);
	/* in a buffer of its own, so that a byte too far is seen */
	exact = malloc(MAX(keep + n - 2, (size_t)1));
	assert(exact);
	memcpy(exact, obj, keep + n - 2);
	if (coding_decode(c, exact, keep + n - 2, out, SIZE) == 0)
		assert(same && memcmp(out, plain, SIZE) == 0);
	else
		assert(!same);
	free(exact);
	free(obj);
	return 0;
}
