/* SPDX-License-Identifier: Apache-2.0 */
/* What S3 servers answer, and what must never be taken for it. Model answers are those of the S3
 * API reference. */
#include "common/object/object_s3_xml.h"

#include "tests/unit/check.h"

#define DECL "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
#define NS   " xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\""

static int list(const char *xml, struct s3xml_listing *l)
{
	return s3xml_list(xml, strlen(xml), l);
}

static void reads_a_listing(void **state _unused_)
{
	struct s3xml_listing l;

	assert_int_equal(
		list(DECL
		     "<ListBucketResult" NS "><Name>b</Name><Prefix/><KeyCount>2</KeyCount>"
		     "<MaxKeys>1000</MaxKeys><IsTruncated>true</IsTruncated>\n"
		     "<Contents><Key>v/a&amp;b&#233;&#x1F600;</"
		     "Key><LastModified>2009-10-12T17:50:30.000Z</LastModified>"
		     "<ETag>&quot;fba9dede5f27731c9771645a39863328&quot;</ETag><Size>434234</Size>"
		     "<StorageClass>STANDARD</StorageClass><Owner><ID>x</ID></Owner></Contents>"
		     "<!-- between "
		     "--><Contents><Size>0</Size><Key><![CDATA[v/<c>]]></Key></Contents>"
		     "</ListBucketResult>\n",
		     &l),
		0);
	assert_int_equal(l.n, 2);
	assert_true(l.more);
	assert_string_equal(l.info[0].key, "v/<c>"); /* sorted */
	assert_int_equal(l.info[0].size, 0);
	assert_string_equal(l.info[1].key, "v/a&b\xc3\xa9\xf0\x9f\x98\x80");
	assert_int_equal(l.info[1].size, 434234);
	assert_int_equal(l.info[1].mtime, 1255369830);
	s3xml_listing_fini(&l);
}

static void decodes_urls_only_when_told(void **state _unused_)
{
	struct s3xml_listing l;

	assert_int_equal(
		list("<ListBucketResult><Contents><Key>a%2Fb+c%25</Key><Size>1</Size></Contents>"
		     "<EncodingType>url</EncodingType></ListBucketResult>",
		     &l),
		0);
	assert_string_equal(l.info[0].key, "a/b c%");
	s3xml_listing_fini(&l);
	assert_int_equal(
		list("<ListBucketResult><Contents><Key>a%2Fb+c%25</Key><Size>1</Size></Contents>"
		     "</ListBucketResult>",
		     &l),
		0);
	assert_string_equal(l.info[0].key, "a%2Fb+c%25");
	s3xml_listing_fini(&l);
}

static void refuses_what_is_no_listing(void **state _unused_)
{
	static const char *const bad[] = {
		"",
		"   ",
		"<",
		"<ListBucketResult>",
		"</ListBucketResult>",
		"<ListBucketResult></ListBucketresult>",
		"<ListBucketResult/><ListBucketResult/>",
		"x<ListBucketResult/>",
		"<ListBucketResult/>x",
		"<ListBucketResult a></ListBucketResult>",
		"<ListBucketResult a=1/>",
		"<ListBucketResult a=\"1/>",
		"<!DOCTYPE x [<!ENTITY a \"aaaa\">]><ListBucketResult>&a;</ListBucketResult>",
		"<ListBucketResult>&nbsp;</ListBucketResult>",
		"<ListBucketResult>&#0;</ListBucketResult>",
		"<ListBucketResult>&#xD800;</ListBucketResult>",
		"<ListBucketResult>&#1114112;</ListBucketResult>",
		"<ListBucketResult>&#99999999999999999999;</ListBucketResult>",
		"<ListBucketResult>&amp</ListBucketResult>",
		"<ListBucketResult><![CDATA[]></ListBucketResult>",
		"<ListBucketResult><!-- </ListBucketResult>",
		"<html><body>504 Gateway Time-out</body></html>",
		"<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>",
		"<ListBucketResult><Contents><Size>1</Size></Contents></ListBucketResult>",
		"<ListBucketResult><Contents><Key></Key><Size>1</Size></Contents></"
		"ListBucketResult>",
		"<ListBucketResult><Contents><Key>a</Key><Key>b</Key><Size>1</Size></Contents></"
		"ListBucketResult>",
		"<ListBucketResult><Contents><Key>a</Key><Size>-1</Size></Contents></"
		"ListBucketResult>",
		"<ListBucketResult><Contents><Key>a</Key><Size>99999999999999999999</Size></"
		"Contents></ListBucketResult>",
		"<ListBucketResult><Contents><Key>a</Key><Size>1</Size><LastModified>now</"
		"LastModified></Contents>"
		"</ListBucketResult>",
		"<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>a%0</"
		"Key><Size>1</Size></Contents>"
		"</ListBucketResult>",
		"<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>a%00</"
		"Key><Size>1</Size></Contents>"
		"</ListBucketResult>",
		"<ListBucketResult><IsTruncated>maybe</IsTruncated></ListBucketResult>",
	};
	struct s3xml_listing l;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		if (list(bad[i], &l) != -EPROTO)
			fail_msg("taken: %s", bad[i]);
	}
	assert_int_equal(s3xml_list("<ListBucketResult>\0</ListBucketResult>", 38, &l), -EPROTO);
}

static void depth_text_and_count_are_bounded(void **state _unused_)
{
	struct str x = STR_INIT;
	struct s3xml_listing l;

	for (int i = 0; i < 17; i++)
		str_add(&x, "<a>");
	for (int i = 0; i < 17; i++)
		str_add(&x, "</a>");
	assert_int_equal(list(str_c(&x), &l), -EPROTO);
	str_reset(&x);
	str_add(&x, "<ListBucketResult>");
	for (int i = 0; i < 1000; i++)
		str_addf(&x, "<Contents><Key>%d</Key><Size>%d</Size></Contents>", i, i);
	str_add(&x, "</ListBucketResult>");
	assert_int_equal(list(str_c(&x), &l), 0);
	assert_int_equal(l.n, 1000);
	s3xml_listing_fini(&l);
	x.len -= strlen("</ListBucketResult>");
	str_add(&x, "<Contents><Key>one</Key><Size>1</Size></Contents></ListBucketResult>");
	assert_int_equal(list(str_c(&x), &l), -EPROTO);
	str_reset(&x);
	str_add(&x, "<ListBucketResult><Contents><Key>");
	for (int i = 0; i < 1025; i++)
		str_add(&x, "k");
	str_add(&x, "</Key><Size>1</Size></Contents></ListBucketResult>");
	assert_int_equal(list(str_c(&x), &l), -EPROTO);
	str_fini(&x);
}

static void reads_errors(void **state _unused_)
{
	static const char xml[] = DECL
		"<Error><Code>NoSuchKey</Code><Message>The resource you requested does not exist"
		"</Message><Key>k</Key><RequestId>4442587FB7D0A2F9</RequestId></Error>";
	struct s3xml_error e;

	assert_int_equal(s3xml_error(xml, sizeof(xml) - 1, &e), 0);
	assert_string_equal(e.code, "NoSuchKey");
	assert_string_equal(e.message, "The resource you requested does not exist");
	assert_string_equal(e.key, "k");
	/* an answer that was cut still tells its code */
	assert_int_equal(s3xml_error(xml, 90, &e), -EPROTO);
	assert_string_equal(e.code, "NoSuchKey");
	assert_int_equal(s3xml_error("<html/>", 7, &e), -EPROTO);
	assert_string_equal(e.code, "");
}

static void counts_keys_that_stayed(void **state _unused_)
{
	static const char xml[] =
		DECL "<DeleteResult" NS "><Deleted><Key>a</Key></Deleted><Error><Key>gone</"
		     "Key><Code>NoSuchKey</Code></Error>"
		     "<Error><Key>b</Key><Code>AccessDenied</Code><Message>Access "
		     "Denied</Message></Error>"
		     "<Error><Key>c</Key><Code>InternalError</Code></Error></DeleteResult>";
	struct s3xml_error e;

	assert_int_equal(s3xml_delete(xml, sizeof(xml) - 1, &e), 2);
	assert_string_equal(e.key, "b");
	assert_string_equal(e.code, "AccessDenied");
	assert_int_equal(s3xml_delete("<DeleteResult/>", 15, &e), 0);
	assert_int_equal(s3xml_delete("<DeleteResult>", 14, &e), -EPROTO);
	assert_int_equal(s3xml_delete("<Other/>", 8, &e), -EPROTO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_a_listing),
		cmocka_unit_test(decodes_urls_only_when_told),
		cmocka_unit_test(refuses_what_is_no_listing),
		cmocka_unit_test(depth_text_and_count_are_bounded),
		cmocka_unit_test(reads_errors),
		cmocka_unit_test(counts_keys_that_stayed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
