/* SPDX-License-Identifier: Apache-2.0 */
/* AWS Signature Version 4, pure (docs.aws.amazon.com, "Create a signed AWS API request"); also the
 * MD5 and SHA-256 that S3 headers need. */
#ifndef STOKE_COMMON_SIGV4_H
#define STOKE_COMMON_SIGV4_H

#include "common/str.h"

struct sigv4_request {
	const char *method; /* "GET" */
	const char *host;   /* Host header as sent, port included when it is not the scheme's */
	const char *path;   /* not encoded: "/bucket/chunks/0/0/1_0_4096" (done here, "/" kept) */
	const char *query;  /* already encoded "a=b&c=d", any order (sorted here); "" for none */
	const char *payload_sha256;   /* hex, or "UNSIGNED-PAYLOAD" */
	const char *region, *service; /* "us-east-1", "s3" */
	const char *access_key, *secret_key;
	const char *session_token; /* NULL: none */
	int64_t when;		   /* unix seconds */
	/* further headers to be signed, "name: value" in lower case, any order */
	const char *const *headers;
	size_t n_headers;
};

/* Appends complete header lines, one a line without CR: x-amz-date, x-amz-content-sha256,
 * x-amz-security-token (if any), authorization. 0 or -ENOMEM */
int sigv4_sign(const struct sigv4_request *r, struct str *ret_headers);
/* appends s percent-encoded as SigV4 wants it; keep_slash leaves "/" */
void sigv4_encode(struct str *out, const char *s, bool keep_slash);
void sha256_hex(const void *p, size_t n, char ret[65]);
void md5_base64(const void *p, size_t n, char ret[25]);

#endif
