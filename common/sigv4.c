/* SPDX-License-Identifier: Apache-2.0 */
/* Signing of S3 requests. Pure, any thread. The canonical request is written first, then hashed
 * into the string to sign, then sealed with a key derived from the day, the region and the service:
 * names below are those of the AWS documentation. */
#include "common/sigv4.h"

#include <time.h>

#include <openssl/evp.h>
#include <openssl/hmac.h>

enum { SHA256_LEN = 32, MAX_PARTS = 64 };

static void to_hex(const unsigned char *p, size_t n, char *ret)
{
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < n; i++) {
		ret[2 * i] = digits[p[i] >> 4];
		ret[2 * i + 1] = digits[p[i] & 15];
	}
	ret[2 * n] = '\0';
}

void sha256_hex(const void *p, size_t n, char ret[65])
{
	unsigned char md[EVP_MAX_MD_SIZE];
	int ok = EVP_Digest(p, n, md, NULL, EVP_sha256(), NULL);

	assert(ok == 1);
	to_hex(md, SHA256_LEN, ret);
}

void md5_base64(const void *p, size_t n, char ret[25])
{
	unsigned char md[EVP_MAX_MD_SIZE];
	unsigned char text[32];
	int ok = EVP_Digest(p, n, md, NULL, EVP_md5(), NULL);

	assert(ok == 1);
	EVP_EncodeBlock(text, md, 16);
	memcpy(ret, text, 25);
}

/* what a signed URL carries as it is; the C library's idea of letters depends on the locale */
static bool is_plain(unsigned char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       c == '-' || c == '.' || c == '_' || c == '~';
}

void sigv4_encode(struct str *out, const char *s, bool keep_slash)
{
	const char *from = s;

	/* runs of plain characters are added at once: keys have little else */
	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;

		if (is_plain(c) || (c == '/' && keep_slash))
			continue;
		str_addn(out, from, (size_t)(s - from));
		str_addf(out, "%%%02X", c);
		from = s + 1;
	}
	str_addn(out, from, (size_t)(s - from));
}

static void hmac(const void *key, size_t key_len, const char *text, size_t n,
		 unsigned char ret[SHA256_LEN])
{
	unsigned len = 0;
	unsigned char *ok =
		HMAC(EVP_sha256(), key, (int)key_len, (const unsigned char *)text, n, ret, &len);

	assert(ok && len == SHA256_LEN);
}

static int by_bytes(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* "b=2&a" -> "a=&b=2". Sorting whole "name=value" texts is sorting by name, then value, when no
 * name contains a character below '=': true of encoded names but for digits, '-' and '.', so the
 * '=' is made the smallest byte while sorting. */
static int canonical_query(struct str *out, const char *query)
{
	_cleanup_(str_fini) struct str copy = STR_INIT;
	const char *part[MAX_PARTS];
	size_t n = 0;
	char *save = NULL;

	str_add(&copy, query);
	if (str_error(&copy))
		return -ENOMEM;
	for (char *p = strtok_r(copy.s, "&", &save); p; p = strtok_r(NULL, "&", &save)) {
		char *eq = strchr(p, '=');

		if (n == MAX_PARTS)
			return -EINVAL;
		if (eq)
			*eq = '\1';
		part[n++] = p;
	}
	qsort(part, n, sizeof(part[0]), by_bytes);
	for (size_t i = 0; i < n; i++) {
		const char *eq = strchr(part[i], '\1');
		size_t name = eq ? (size_t)(eq - part[i]) : strlen(part[i]);

		if (i)
			str_add(out, "&");
		str_addn(out, part[i], name);
		str_add(out, "=");
		if (eq)
			str_add(out, eq + 1);
	}
	return str_error(out);
}

struct headers {
	const char *line[MAX_PARTS];
	size_t n;
};

static int by_name(const void *a, const void *b)
{
	const char *x = *(const char *const *)a, *y = *(const char *const *)b;
	size_t nx = strcspn(x, ":"), ny = strcspn(y, ":");
	int r = memcmp(x, y, MIN(nx, ny));

	return r ? r : (nx > ny) - (nx < ny);
}

/* "name:value" a line, the value without blanks around it and with one between its words */
static void canonical_headers(struct str *out, const struct headers *h, struct str *signed_names)
{
	for (size_t i = 0; i < h->n; i++) {
		const char *p = h->line[i];
		size_t name = strcspn(p, ":");
		bool blank = false, any = false;

		str_addn(out, p, name + 1);
		for (p += name + 1; *p; p++) {
			if (*p == ' ' || *p == '\t') {
				blank = any;
				continue;
			}
			if (blank)
				str_add(out, " ");
			str_addn(out, p, 1);
			blank = false;
			any = true;
		}
		str_add(out, "\n");
		if (i)
			str_add(signed_names, ";");
		str_addn(signed_names, h->line[i], name);
	}
}

/* the lines that this file adds, in front of those of the caller */
static void own_headers(const struct sigv4_request *r, const char *date, struct str *out)
{
	str_addf(out, "x-amz-date: %s\nx-amz-content-sha256: %s\n", date, r->payload_sha256);
	if (r->session_token && *r->session_token)
		str_addf(out, "x-amz-security-token: %s\n", r->session_token);
}

static int canonical_request(const struct sigv4_request *r, const char *own, struct str *out,
			     struct str *signed_names)
{
	_cleanup_(str_fini) struct str copy = STR_INIT;
	_cleanup_(str_fini) struct str host = STR_INIT;
	struct headers h = {.n = 0};
	char *save = NULL;
	int ret;

	str_addf(&host, "host: %s", r->host);
	str_add(&copy, own);
	if (str_error(&copy) || str_error(&host))
		return -ENOMEM;
	if (r->n_headers > MAX_PARTS - 4)
		return -EINVAL;
	h.line[h.n++] = str_c(&host);
	for (char *p = strtok_r(copy.s, "\n", &save); p; p = strtok_r(NULL, "\n", &save))
		h.line[h.n++] = p;
	for (size_t i = 0; i < r->n_headers; i++)
		h.line[h.n++] = r->headers[i];
	qsort(h.line, h.n, sizeof(h.line[0]), by_name);

	str_addf(out, "%s\n", r->method);
	sigv4_encode(out, r->path, true);
	str_add(out, "\n");
	ret = canonical_query(out, r->query);
	if (ret < 0)
		return ret;
	str_add(out, "\n");
	canonical_headers(out, &h, signed_names);
	str_addf(out, "\n%s\n%s", str_c(signed_names), r->payload_sha256);
	return str_error(out) ? str_error(out) : str_error(signed_names);
}

static int signature(const struct sigv4_request *r, const char *day, const char *to_sign,
		     char ret[65])
{
	_cleanup_(str_fini) struct str secret = STR_INIT;
	unsigned char k[SHA256_LEN];

	str_addf(&secret, "AWS4%s", r->secret_key);
	if (str_error(&secret))
		return -ENOMEM;
	hmac(secret.s, secret.len, day, strlen(day), k);
	explicit_bzero(secret.s, secret.len);
	hmac(k, sizeof(k), r->region, strlen(r->region), k);
	hmac(k, sizeof(k), r->service, strlen(r->service), k);
	hmac(k, sizeof(k), "aws4_request", strlen("aws4_request"), k);
	hmac(k, sizeof(k), to_sign, strlen(to_sign), k);
	to_hex(k, sizeof(k), ret);
	return 0;
}

int sigv4_sign(const struct sigv4_request *r, struct str *ret_headers)
{
	_cleanup_(str_fini) struct str own = STR_INIT;
	_cleanup_(str_fini) struct str request = STR_INIT;
	_cleanup_(str_fini) struct str names = STR_INIT;
	_cleanup_(str_fini) struct str to_sign = STR_INIT;
	char date[32], day[16], hash[65], sig[65];
	time_t when = (time_t)r->when;
	struct tm tm;
	int ret;

	if (!gmtime_r(&when, &tm) || !strftime(date, sizeof(date), "%Y%m%dT%H%M%SZ", &tm) ||
	    !strftime(day, sizeof(day), "%Y%m%d", &tm))
		return -EINVAL;
	own_headers(r, date, &own);
	if (str_error(&own))
		return -ENOMEM;
	ret = canonical_request(r, str_c(&own), &request, &names);
	if (ret < 0)
		return ret;
	sha256_hex(request.s, request.len, hash);
	str_addf(&to_sign, "AWS4-HMAC-SHA256\n%s\n%s/%s/%s/aws4_request\n%s", date, day, r->region,
		 r->service, hash);
	if (str_error(&to_sign))
		return -ENOMEM;
	ret = signature(r, day, str_c(&to_sign), sig);
	if (ret < 0)
		return ret;
	str_add(ret_headers, str_c(&own));
	str_addf(ret_headers,
		 "authorization: AWS4-HMAC-SHA256 Credential=%s/%s/%s/%s/aws4_request, "
		 "SignedHeaders=%s, Signature=%s\n",
		 r->access_key, day, r->region, r->service, str_c(&names), sig);
	return str_error(ret_headers);
}
