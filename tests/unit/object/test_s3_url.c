/* SPDX-License-Identifier: Apache-2.0 */
/* Bucket URLs as people type them for JuiceFS. */
#include "common/object/object_s3_url.h"

#include "common/object/object.h"
#include "tests/unit/check.h"

static const struct row {
	const char *storage, *url, *host, *bucket, *region, *prefix;
	bool https, path_style;
} rows[] = {
	{"s3", "https://b.s3.eu-west-1.amazonaws.com", "b.s3.eu-west-1.amazonaws.com", "b",
	 "eu-west-1", "", true, false},
	{"s3", "b.s3-eu-west-1.amazonaws.com", "b.s3-eu-west-1.amazonaws.com", "b", "eu-west-1", "",
	 true, false},
	{"s3", "https://b.s3.amazonaws.com/", "b.s3.amazonaws.com", "b", "us-east-1", "", true,
	 false},
	{"s3", "https://b.s3.dualstack.eu-west-1.amazonaws.com",
	 "b.s3.dualstack.eu-west-1.amazonaws.com", "b", "eu-west-1", "", true, false},
	{"s3", "https://b.s3.cn-north-1.amazonaws.com.cn", "b.s3.cn-north-1.amazonaws.com.cn", "b",
	 "cn-north-1", "", true, false},
	{"s3", "https://s3.eu-west-1.amazonaws.com/b", "b.s3.eu-west-1.amazonaws.com", "b",
	 "eu-west-1", "", true, false},
	{"s3", "https://my.dotted.s3.eu-west-1.amazonaws.com", "s3.eu-west-1.amazonaws.com",
	 "my.dotted", "eu-west-1", "", true, true},
	{"s3", "https://b.vpce-0a1b.s3.eu-west-1.vpce.amazonaws.com",
	 "vpce-0a1b.s3.eu-west-1.vpce.amazonaws.com", "b", "eu-west-1", "", true, true},
	{"s3", "mybucket", "mybucket.s3.us-east-1.amazonaws.com", "mybucket", "us-east-1", "", true,
	 false},
	{"s3", "http://127.0.0.1:9000/golden", "127.0.0.1:9000", "golden", "us-east-1", "", false,
	 true},
	{"s3", "127.0.0.1:9000/golden", "127.0.0.1:9000", "golden", "us-east-1", "", false, true},
	{"s3", "localhost:80/golden/", "localhost", "golden", "us-east-1", "", false, true},
	{"s3", "https://store.example.com:443/b", "store.example.com", "b", "us-east-1", "", true,
	 true},
	{"s3", "https://store.example.com:8443/b", "store.example.com:8443", "b", "us-east-1", "",
	 true, true},
	{"s3", "http://[::1]:9000/b", "[::1]:9000", "b", "us-east-1", "", false, true},
	{"s3", "https://b.store.example.com", "store.example.com", "b", "us-east-1", "", true,
	 true},
	{"s3", "https://b.oss-cn-hangzhou.aliyuncs.com", "b.oss-cn-hangzhou.aliyuncs.com", "b",
	 "oss-cn-hangzhou", "", true, false},
	{"s3", "http://127.0.0.1:9000/b?region=mars&x=1", "127.0.0.1:9000", "b", "mars", "", false,
	 true},
	{"minio", "http://minio:9000/b", "minio:9000", "b", "us-east-1", "", false, true},
	{"minio", "minio.local:9000/b/sub/dir", "minio.local:9000", "b", "us-east-1", "sub/dir/",
	 false, true},
	{"MinIO", "https://minio/b?region=eu-1", "minio", "b", "eu-1", "", true, true},
	{"ceph", "http://gateway:7480/b", "gateway:7480", "b", "us-east-1", "", false, true},
	{"wasabi", "https://b.s3.us-west-1.wasabisys.com", "b.s3.us-west-1.wasabisys.com", "b",
	 "us-west-1", "", true, false},
	{"space", "b.nyc3.digitaloceanspaces.com", "b.nyc3.digitaloceanspaces.com", "b", "nyc3", "",
	 true, false},
	{"obs", "https://b.obs.cn-east-3.myhuaweicloud.com", "b.obs.cn-east-3.myhuaweicloud.com",
	 "b", "cn-east-3", "", true, false},
	{"cos", "https://b-123.cos.ap-beijing.myqcloud.com", "b-123.cos.ap-beijing.myqcloud.com",
	 "b-123", "ap-beijing", "", true, false},
	{"oss", "https://b.oss-cn-hangzhou-internal.aliyuncs.com",
	 "b.oss-cn-hangzhou-internal.aliyuncs.com", "b", "oss-cn-hangzhou", "", true, false},
	{"ks3", "https://b.ks3-cn-beijing.ksyuncs.com", "b.ks3-cn-beijing.ksyuncs.com", "b",
	 "cn-beijing", "", true, false},
};

static int no_region(void **state _unused_)
{
	unsetenv("AWS_REGION");
	unsetenv("AWS_DEFAULT_REGION");
	unsetenv("MINIO_REGION");
	return 0;
}

static void reads_the_forms_of_every_storage(void **state _unused_)
{
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const struct row *w = &rows[i];
		struct s3_endpoint e;
		struct str err = STR_INIT;

		if (s3_endpoint_parse(w->storage, w->url, &e, &err) < 0)
			fail_msg("%s", str_c(&err));
		if (strcmp(e.host, w->host) || strcmp(e.bucket, w->bucket) ||
		    strcmp(e.region, w->region) || strcmp(e.prefix, w->prefix) ||
		    e.https != w->https || e.path_style != w->path_style)
			fail_msg("%s %s: host %s bucket %s region %s prefix %s https %d path %d",
				 w->storage, w->url, e.host, e.bucket, e.region, e.prefix, e.https,
				 e.path_style);
	}
}

static void refuses_what_names_no_bucket(void **state _unused_)
{
	static const char *const bad[] = {
		"",
		"http://",
		"http://127.0.0.1:9000",
		"http://127.0.0.1:9000/",
		"http://localhost:9000",
		"ftp://h/b",
		"http://h:/b",
		"http://h:123456/b",
		"http://h:9x/b",
		"http://h a/b",
		"http://u:p@h/b",
		"ceph://pool",
		"http://h/..",
		"http://h\n/b",
	};
	struct s3_endpoint e;
	struct str err = STR_INIT;
	char longest[600];

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		str_reset(&err);
		if (s3_endpoint_parse("s3", bad[i], &e, &err) != -EINVAL)
			fail_msg("taken: %s", bad[i]);
	}
	memset(longest, 'a', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = '\0';
	assert_int_equal(s3_endpoint_parse("s3", longest, &e, &err), -EINVAL);
	memcpy(longest, "http://h/", 9);
	assert_int_equal(s3_endpoint_parse("s3", longest, &e, &err), -EINVAL);
	assert_int_equal(s3_endpoint_parse("wasabi", "https://b", &e, &err), -EINVAL);
	str_fini(&err);
}

static void the_region_comes_from_the_url_then_the_environment(void **state _unused_)
{
	struct s3_endpoint e;
	struct str err = STR_INIT;

	setenv("AWS_DEFAULT_REGION", "r2", 1);
	assert_int_equal(s3_endpoint_parse("s3", "http://h:1/b", &e, &err), 0);
	assert_string_equal(e.region, "r2");
	setenv("AWS_REGION", "r1", 1);
	assert_int_equal(s3_endpoint_parse("s3", "http://h:1/b", &e, &err), 0);
	assert_string_equal(e.region, "r1");
	assert_int_equal(s3_endpoint_parse("s3", "bucket", &e, &err), 0);
	assert_string_equal(e.host, "bucket.s3.r1.amazonaws.com");
	assert_int_equal(s3_endpoint_parse("s3", "https://b.s3.eu-west-1.amazonaws.com", &e, &err),
			 0);
	assert_string_equal(e.region, "eu-west-1");
	setenv("MINIO_REGION", "r0", 1);
	assert_int_equal(s3_endpoint_parse("minio", "http://h:1/b", &e, &err), 0);
	assert_string_equal(e.region, "r0");
	no_region(NULL);
	str_fini(&err);
}

static void knows_who_speaks_s3(void **state _unused_)
{
	static const char *const no[] = {"",	 "file",  "gs",	   "wasb", "b2",
					 "hdfs", "swift", "qiniu", "s33"};

	assert_true(s3_storage_known("s3"));
	assert_true(s3_storage_known("OSS"));
	for (size_t i = 0; i < ARRAY_LEN(no); i++)
		assert_false(s3_storage_known(no[i]));
}

static void a_description_carries_no_keys(void **state _unused_)
{
	struct object_conf conf = {
		.storage = "s3",
		.bucket = "http://user:pass@h:1/b?token=x",
		.access_key = "AK",
		.secret_key = "SK",
	};
	struct str out = STR_INIT;

	object_describe(&conf, &out);
	assert_string_equal(str_c(&out), "s3 http://h:1/b");
	str_reset(&out);
	conf.bucket = "b.s3.amazonaws.com";
	object_describe(&conf, &out);
	assert_string_equal(str_c(&out), "s3 b.s3.amazonaws.com");
	str_reset(&out);
	conf.storage = "file";
	conf.bucket = "/var/a?b@c/";
	object_describe(&conf, &out);
	assert_string_equal(str_c(&out), "file /var/a?b@c/");
	str_fini(&out);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_the_forms_of_every_storage),
		cmocka_unit_test(refuses_what_names_no_bucket),
		cmocka_unit_test(the_region_comes_from_the_url_then_the_environment),
		cmocka_unit_test(knows_who_speaks_s3),
		cmocka_unit_test(a_description_carries_no_keys),
	};

	return cmocka_run_group_tests(tests, no_region, NULL);
}
