/* SPDX-License-Identifier: Apache-2.0 */
/* Signatures against the examples of the S3 documentation ("Signature Calculations for the
 * Authorization Header", keys and date of that page), and against values computed with Python's
 * hmac and hashlib as the document describes them (derivations at each). */
#include "common/sigv4.h"

#include "tests/unit/check.h"

static const struct sigv4_request example = {
	.method = "GET",
	.host = "examplebucket.s3.amazonaws.com",
	.path = "/",
	.query = "",
	.payload_sha256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
	.region = "us-east-1",
	.service = "s3",
	.access_key = "AKIAIOSFODNN7EXAMPLE",
	.secret_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
	.when = 1369353600, /* 20130524T000000Z */
};

static void check(const struct sigv4_request *r, const char *signed_headers, const char *signature)
{
	struct str out = STR_INIT;
	char want[512];

	assert_int_equal(sigv4_sign(r, &out), 0);
	(void)snprintf(want, sizeof(want), "SignedHeaders=%s, Signature=%s\n", signed_headers,
		       signature);
	if (!strstr(str_c(&out), want))
		fail_msg("\n%s\nlacks\n%s", str_c(&out), want);
	str_fini(&out);
}

static void signs_get_with_range_as_documented(void **state _unused_)
{
	static const char *const headers[] = {"range: bytes=0-9"};
	struct sigv4_request r = example;
	struct str out = STR_INIT;

	r.path = "/test.txt";
	r.headers = headers;
	r.n_headers = 1;
	check(&r, "host;range;x-amz-content-sha256;x-amz-date",
	      "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
	assert_int_equal(sigv4_sign(&r, &out), 0);
	assert_string_equal(
		str_c(&out),
		"x-amz-date: 20130524T000000Z\n"
		"x-amz-content-sha256: "
		"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\n"
		"authorization: AWS4-HMAC-SHA256 "
		"Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/"
		"aws4_request, SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, "
		"Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41\n");
	str_fini(&out);
}

static void signs_put_as_documented(void **state _unused_)
{
	static const char *const headers[] = {"x-amz-storage-class: REDUCED_REDUNDANCY",
					      "date:  Fri, 24 May   2013 00:00:00 GMT "};
	struct sigv4_request r = example;
	char sha[65];

	sha256_hex("Welcome to Amazon S3.", 21, sha);
	assert_string_equal(sha,
			    "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072");
	r.method = "PUT";
	r.path = "/test$file.text";
	r.payload_sha256 = sha;
	r.headers = headers;
	r.n_headers = 2;
	check(&r, "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
	      "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
}

static void signs_queries_as_documented(void **state _unused_)
{
	struct sigv4_request r = example;

	r.query = "lifecycle";
	check(&r, "host;x-amz-content-sha256;x-amz-date",
	      "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
	r.query = "max-keys=2&prefix=J";
	check(&r, "host;x-amz-content-sha256;x-amz-date",
	      "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
	r.query = "prefix=J&max-keys=2"; /* in any order */
	check(&r, "host;x-amz-content-sha256;x-amz-date",
	      "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

/* Computed with Python's hashlib and hmac over the canonical request
 *	GET, /b/a%20b%2Bc/%C3%A9~, a=&a=1&a-b=2, the four headers, "", their names, UNSIGNED-PAYLOAD
 */
static void signs_token_odd_names_and_query_order(void **state _unused_)
{
	struct sigv4_request r = example;

	r.host = "127.0.0.1:9000";
	r.path = "/b/a b+c/\xc3\xa9~";
	r.query = "a-b=2&a=1&a";
	r.region = "eu-central-1";
	r.session_token = "AQoDYXdzEJr/token==";
	r.payload_sha256 = "UNSIGNED-PAYLOAD";
	r.when = 1764502445; /* 20251130T113405Z */
	check(&r, "host;x-amz-content-sha256;x-amz-date;x-amz-security-token",
	      "6c11f0deb5fe09c5770404e1a65461ddebeb006565eab78c58881067ec9ef8d2");
}

static void encodes_all_but_plain_characters(void **state _unused_)
{
	struct str out = STR_INIT;

	sigv4_encode(&out, "aZ09-._~/ +%\xc3\xa9", true);
	assert_string_equal(str_c(&out), "aZ09-._~/%20%2B%25%C3%A9");
	str_reset(&out);
	sigv4_encode(&out, "/", false);
	sigv4_encode(&out, "", false);
	assert_string_equal(str_c(&out), "%2F");
	str_fini(&out);
}

static void hashes_for_headers(void **state _unused_)
{
	char sha[65], md5[25];

	sha256_hex("", 0, sha);
	assert_string_equal(sha, example.payload_sha256);
	md5_base64("", 0, md5); /* d41d8cd98f00b204e9800998ecf8427e */
	assert_string_equal(md5, "1B2M2Y8AsgTpgAmY7PhCfg==");
	md5_base64("abc", 3, md5); /* RFC 1321: 900150983cd24fb0d6963f7d28e17f72 */
	assert_string_equal(md5, "kAFQmDzST7DWlj99KOF/cg==");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(signs_get_with_range_as_documented),
		cmocka_unit_test(signs_put_as_documented),
		cmocka_unit_test(signs_queries_as_documented),
		cmocka_unit_test(signs_token_odd_names_and_query_order),
		cmocka_unit_test(encodes_all_but_plain_characters),
		cmocka_unit_test(hashes_for_headers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
