/* SPDX-License-Identifier: Apache-2.0 */
/* The volume's setting: real ones of JuiceFS, damaged ones, what is refused, and the generation in
 * a real Redis (skipped when there is no redis-server). */
#include "tests/unit/check.h"

#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "common/block/setting.h"
#include "common/clock.h"

#define DIR_SETTINGS "tests/golden/settings"

static char *file_text(const char *name, size_t *ret_len)
{
	char path[256], *text = malloc(65536);
	FILE *f;

	snprintf(path, sizeof(path), DIR_SETTINGS "/%s", name);
	f = fopen(path, "r");
	if (!f || !text)
		fail_msg("%s is not there", path);
	*ret_len = fread(text, 1, 65535, f);
	text[*ret_len] = '\0';
	fclose(f);
	return text;
}

static struct setting *load(const char *name)
{
	struct str err = STR_INIT;
	struct setting *s = NULL;
	size_t n;
	char *text = file_text(name, &n);

	if (setting_parse(text, n, &s, &err))
		fail_msg("%s: %s", name, str_c(&err));
	str_fini(&err);
	free(text);
	return s;
}

static void every_real_setting_is_read(void **state)
{
	DIR *d = opendir(DIR_SETTINGS);
	unsigned seen = 0;
	struct dirent *e;

	(void)state;
	assert_non_null(d);
	while ((e = readdir(d))) {
		struct setting *s;
		json_t *root;
		size_t n;
		char *text;

		if (!strstr(e->d_name, ".json"))
			continue;
		s = load(e->d_name);
		text = file_text(e->d_name, &n);
		root = json_loads(text, 0, NULL);
		assert_string_equal(s->name, json_string_value(json_object_get(root, "Name")));
		assert_string_equal(s->uuid, json_string_value(json_object_get(root, "UUID")));
		assert_string_equal(s->storage,
				    json_string_value(json_object_get(root, "Storage")));
		assert_int_equal(s->block_size,
				 json_integer_value(json_object_get(root, "BlockSize")) << 10);
		assert_int_equal(s->trash_days,
				 json_integer_value(json_object_get(root, "TrashDays")));
		assert_int_equal(s->enable_acl, json_is_true(json_object_get(root, "EnableACL")));
		assert_int_equal(s->dir_stats, json_is_true(json_object_get(root, "DirStats")));
		assert_int_equal(s->hash_prefix, json_is_true(json_object_get(root, "HashPrefix")));
		assert_int_equal(s->capacity,
				 json_integer_value(json_object_get(root, "Capacity")));
		assert_int_equal(s->inodes, json_integer_value(json_object_get(root, "Inodes")));
		assert_string_equal(s->text, text);
		json_decref(root);
		free(text);
		setting_free(s);
		seen++;
	}
	closedir(d);
	assert_true(seen >= 23);
}

static void sealed_secrets_are_opened(void **state)
{
	struct setting *s = load("s3-setting.json");

	(void)state;
	assert_string_equal(s->access_key, "golden-access");
	assert_string_equal(s->secret_key, "golden/secret+key");
	assert_string_equal(s->session_token, "golden-token");
	assert_string_equal(s->bucket, "http://127.0.0.1:9000/golden");
	setting_free(s);
	s = load("s3-class.json");
	assert_string_equal(s->secret_key, "golden/secret+key");
	assert_null(s->session_token);
	assert_int_equal(s->codec, CODEC_LZ4);
	assert_int_equal(s->upload_limit, 100);
	assert_int_equal(s->download_limit, 200);
	assert_string_equal(s->max_client, "9.0.0");
	setting_free(s);
}

/* made by JuiceFS 1.4.2 with --encrypt-algo sm4gcm */
static void secrets_sealed_with_sm4_are_opened(void **state)
{
	struct setting *s = load("sm4gcm.json");

	(void)state;
	assert_true(setting_is_sm4(s) && s->sealed && s->encrypted);
	assert_int_equal(strncmp(s->encrypt_key, "-----BEGIN RSA PRIVATE KEY-----\n", 32), 0);
	assert_non_null(strstr(s->encrypt_key, "-----END RSA PRIVATE KEY-----"));
	setting_free(s);
}

static void tiers_are_read(void **state)
{
	struct setting *s = load("tiers.json");

	(void)state;
	assert_int_equal(s->n_tiers, 3);
	for (unsigned i = 0; i < 3; i++) {
		static const char *const class[] = {"", "STANDARD_IA", "ARCHIVE"};

		assert_int_equal(s->tiers[i].id, i);
		assert_string_equal(s->tiers[i].storage_class, class[i]);
		assert_string_equal(s->tiers[i].tag, "");
	}
	setting_free(s);
	s = load("old-client.json"); /* of 1.3, which has none */
	assert_int_equal(s->n_tiers, 1);
	assert_string_equal(s->tiers[0].storage_class, "");
	setting_free(s);
	s = load("s3-class.json");
	assert_true(s->n_tiers >= 1 && s->tiers[0].id == 0);
	assert_string_not_equal(s->tiers[0].storage_class, "");
	setting_free(s);
}

/* whatever JuiceFS 1.3 and 1.4 can make */
static void every_golden_setting_is_handled(void **state)
{
	DIR *d = opendir("tests/golden/settings");
	struct dirent *e;
	unsigned seen = 0;

	(void)state;
	assert_non_null(d);
	while ((e = readdir(d))) {
		struct str why = STR_INIT;
		struct setting *s;

		if (!strstr(e->d_name, ".json"))
			continue;
		s = load(e->d_name);
		assert_int_equal(setting_check(s, &why), 0);
		assert_string_equal(str_c(&why), "");
		str_fini(&why);
		setting_free(s);
		seen++;
	}
	closedir(d);
	assert_true(seen >= 24);
}

/* the plain setting with one field set to a JSON value, or taken out (NULL) */
static char *changed(const char *field, const char *value)
{
	size_t n;
	char *text = file_text("plain.json", &n), *out;
	json_t *root = json_loads(text, 0, NULL);

	if (value)
		json_object_set_new(root, field, json_loads(value, JSON_DECODE_ANY, NULL));
	else
		json_object_del(root, field);
	out = json_dumps(root, 0);
	json_decref(root);
	free(text);
	return out;
}

static int parse_changed(const char *field, const char *value, struct setting **ret,
			 struct str *err)
{
	char *text = changed(field, value);
	int r = setting_parse(text, strlen(text), ret, err);

	free(text);
	return r;
}

static void a_wrong_field_is_named(void **state)
{
	static const struct {
		const char *field, *value;
	} bad[] = {
		{"Name", NULL},		{"Name", "\"\""},
		{"Name", "\"a/b\""},	{"Name", "\"..\""},
		{"Name", "7"},		{"UUID", NULL},
		{"UUID", "\"short\""},	{"Storage", NULL},
		{"Bucket", NULL},	{"Bucket", "[]"},
		{"BlockSize", NULL},	{"BlockSize", "0"},
		{"BlockSize", "32"},	{"BlockSize", "4097"},
		{"BlockSize", "32768"}, {"BlockSize", "-64"},
		{"BlockSize", "64.0"},	{"BlockSize", "\"64\""},
		{"TrashDays", "-1"},	{"Capacity", "-5"},
		{"HashPrefix", "1"},	{"EnableACL", "\"x\""},
		{"Tiers", "[1]"},	{"Tiers", "{\"0\":1}"},
		{"Shards", "257"},	{"MinClientVersion", "1"},
		{"Compression", "3"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct str err = STR_INIT;
		struct setting *s = NULL;

		assert_int_equal(parse_changed(bad[i].field, bad[i].value, &s, &err), -EINVAL);
		assert_null(s);
		assert_non_null(strstr(str_c(&err), bad[i].field));
		str_fini(&err);
	}
}

static void versions_gate(void **state)
{
	static const struct {
		const char *field, *value;
		int r;
	} gates[] = {
		{"MetaVersion", "1", 0},
		{"MetaVersion", "2", -EPROTONOSUPPORT},
		{"MinClientVersion", "\"1.5.0\"", 0},
		{"MinClientVersion", "\"1.5.1\"", -EPROTONOSUPPORT},
		{"MinClientVersion", "\"2.0.0-A\"", -EPROTONOSUPPORT},
		{"MaxClientVersion", "\"1.5.0\"", 0},
		{"MaxClientVersion", "\"1.4.9\"", -EPROTONOSUPPORT},
		{"MaxClientVersion", "\"\"", 0},
		{"Compression", "\"LZ4\"", 0},
		{"Compression", "\"brotli\"", -EOPNOTSUPP},
		{"KerbConf", "\"[libdefaults]\"", 0},
		{"Shards", "1", 0},
		{"Unknown", "{\"a\":[1]}", 0},
		{"Tiers", "null", 0},
		{"Tiers", "{}", 0},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(gates); i++) {
		struct str err = STR_INIT;
		struct setting *s = NULL;

		assert_int_equal(parse_changed(gates[i].field, gates[i].value, &s, &err), 0);
		if (!s)
			fail();
		assert_int_equal(setting_check(s, &err), gates[i].r);
		assert_int_equal(gates[i].r != 0, err.len != 0);
		str_fini(&err);
		setting_free(s);
	}
}

static void versions_compare_as_the_vectors(void **state)
{
	json_t *root = json_load_file("tests/golden/format-vectors.json", 0, NULL);
	json_t *list = json_object_get(json_object_get(root, "vectors"), "version_compare"), *v;
	size_t i, seen = 0;

	(void)state;
	json_array_foreach(list, i, v)
	{
		const char *a = json_string_value(json_object_get(v, "v1"));
		const char *b = json_string_value(json_object_get(v, "v2"));
		int want = (int)json_integer_value(json_object_get(v, "result"));

		assert_int_equal(setting_version_cmp(a, b), want);
		assert_int_equal(setting_version_cmp(b, a), -want);
		seen++;
	}
	json_decref(root);
	assert_true(seen >= 6);
	assert_true(setting_version_cmp("1.10.0", "1.9.9") > 0);
	assert_int_equal(setting_version_cmp("1.5", "1.5.0"), 0);
	assert_int_equal(setting_version_cmp("", "0.0.0"), 0);
}

static void secrets_that_do_not_open_are_an_error(void **state)
{
	static const char *const bad[] = {"removed", "AAAA", "not base64 !!"};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct str err = STR_INIT;
		struct setting *s = NULL;
		size_t n;
		char *text = file_text("s3-setting.json", &n);
		json_t *root = json_loads(text, 0, NULL);

		free(text);
		json_object_set_new(root, "SecretKey", json_string(bad[i]));
		text = json_dumps(root, 0);
		json_decref(root);
		assert_int_equal(setting_parse(text, strlen(text), &s, &err), -EBADMSG);
		assert_non_null(strstr(str_c(&err), "SecretKey"));
		free(text);
		str_fini(&err);
	}
}

static void what_people_see_has_no_secret(void **state)
{
	static const char *const files[] = {"s3-setting.json", "s3-encrypted.json"};
	struct str err = STR_INIT, out = STR_INIT;
	struct setting *s = NULL;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		json_t *stored, *root;

		s = load(files[i]);
		str_reset(&out);
		assert_int_equal(setting_redacted(s, &out), 0);
		root = json_loads(str_c(&out), 0, NULL);
		stored = json_loads(s->text, 0, NULL);
		assert_non_null(root);
		assert_null(strstr(str_c(&out), s->secret_key));
		assert_string_equal(json_string_value(json_object_get(root, "SecretKey")), "****");
		assert_true(json_equal(json_object_get(root, "Bucket"),
				       json_object_get(stored, "Bucket")));
		assert_int_equal(json_object_size(root), json_object_size(stored));
		if (json_object_get(stored, "EncryptKey"))
			assert_string_equal(json_string_value(json_object_get(root, "EncryptKey")),
					    "****");
		json_decref(root);
		json_decref(stored);
		setting_free(s);
	}
	assert_int_equal(parse_changed("Bucket", "\"http://me:hidden@host/b@c\"", &s, &err), 0);
	str_reset(&out);
	assert_int_equal(setting_redacted(s, &out), 0);
	assert_null(strstr(str_c(&out), "hidden"));
	assert_non_null(strstr(str_c(&out), "http://****@host/b@c"));
	setting_free(s);
	str_fini(&out);
	str_fini(&err);
}

static void damaged_texts_are_refused(void **state)
{
	size_t n;
	char *text = file_text("s3-setting.json", &n);

	(void)state;
	for (size_t cut = 0; cut < n - 1; cut += 3) {
		struct str err = STR_INIT;
		struct setting *s = NULL;

		assert_int_equal(setting_parse(text, cut, &s, &err), -EINVAL);
		assert_true(err.len > 0);
		str_fini(&err);
	}
	free(text);
}

static void the_volume_id_follows_uuid_and_generation(void **state)
{
	const struct generation a = {{1, 2, 3, 4, 5, 6, 7, 8}}, b = {{1, 2, 3, 4, 5, 6, 7, 9}};
	const char *uuid = "e1acd4b1-5bc5-4336-a595-d4aebc220100";
	const char *other = "e1acd4b1-5bc5-4336-a595-d4aebc220101";
	struct hash128 id = volume_id(uuid, &a), again = volume_id(uuid, &a),
		       x = volume_id(uuid, &b), y = volume_id(other, &a), whole;
	uint8_t text[44];

	(void)state;
	memcpy(text, uuid, 36);
	memcpy(text + 36, a.b, 8);
	whole = hash128(text, sizeof(text));
	assert_memory_equal(&id, &again, sizeof(id));
	assert_memory_equal(&id, &whole, sizeof(id));
	assert_memory_not_equal(&id, &x, sizeof(id));
	assert_memory_not_equal(&id, &y, sizeof(id));
}

/* --- in Redis --- */

static char dir[] = "/tmp/stoke-setting-XXXXXX";
static pid_t server;

static struct redis *start_redis(void)
{
	char sock[64], url[96];
	struct redis *r = NULL;
	struct str err = STR_INIT;
	int rc = -ECONNREFUSED;

	if (system("command -v redis-server >/dev/null"))
		return NULL;
	if (!mkdtemp(dir))
		fail();
	snprintf(sock, sizeof(sock), "%s/s", dir);
	snprintf(url, sizeof(url), "unix://%s?db=0", sock);
	server = fork();
	if (server == 0) {
		int null = open("/dev/null", O_RDWR);

		dup2(null, 1);
		execlp("redis-server", "redis-server", "--port", "0", "--unixsocket", sock,
		       "--save", "", (char *)NULL);
		_exit(127);
	}
	for (int i = 0; i < 200 && rc; i++) {
		const struct timespec ts = {.tv_nsec = 20000000};

		nanosleep(&ts, NULL);
		str_reset(&err);
		rc = redis_new(url, NULL, &r, &err);
	}
	assert_int_equal(rc, 0);
	str_fini(&err);
	return r;
}

static void stop_redis(struct redis *r)
{
	char sock[64];

	redis_free(r);
	kill(server, SIGKILL);
	waitpid(server, NULL, 0);
	snprintf(sock, sizeof(sock), "%s/s", dir);
	unlink(sock);
	rmdir(dir);
}

static void command(struct redis *r, const char *fmt, const char *arg)
{
	struct redis_reply *reply = NULL;

	assert_int_equal(redis_once(r, clock_us() + 5000000, &reply, fmt, arg), 0);
	redis_reply_free(reply);
}

static void the_generation_lives_with_its_volume(void **state)
{
	struct redis *r = start_redis();
	struct str err = STR_INIT;
	struct generation a, b;
	struct setting *s = NULL;
	uint64_t until = clock_us() + 10000000;
	size_t n;
	char *text;

	(void)state;
	if (!r) {
		print_message("skipped: no redis-server\n");
		skip();
	}
	assert_int_equal(setting_load(r, until, &s, &err), -ENOENT);
	assert_non_null(strstr(str_c(&err), "stoke format"));
	/* an empty database stays empty: JuiceFS loads dumps into empty ones only */
	assert_int_equal(volume_generation(r, until, true, &a), -ENOENT);
	text = file_text("s3-setting.json", &n);
	command(r, "SET setting %s", text);
	free(text);
	assert_int_equal(volume_generation(r, until, false, &a), -ENOENT);
	assert_int_equal(volume_generation(r, until, true, &a), 0);
	assert_int_equal(volume_generation(r, until, true, &b), 0);
	assert_memory_equal(&a, &b, sizeof(a));
	assert_int_equal(volume_generation(r, until, false, &b), 0);
	assert_memory_equal(&a, &b, sizeof(a));
	assert_int_equal(setting_load(r, until, &s, &err), 0);
	assert_string_equal(s->name, "golden-s3");
	setting_free(s);
	/* the volume goes, and another one comes under the same name */
	command(r, "FLUSHDB%s", "");
	assert_int_equal(volume_generation(r, until, true, &b), -ENOENT);
	text = file_text("s3-setting.json", &n);
	command(r, "SET setting %s", text);
	free(text);
	assert_int_equal(volume_generation(r, until, true, &b), 0);
	assert_memory_not_equal(&a, &b, sizeof(a));
	/* somebody else's value under that name is no generation */
	command(r, "SET _gen %s", "short");
	assert_int_equal(volume_generation(r, until, true, &b), -EBADMSG);
	str_fini(&err);
	stop_redis(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_real_setting_is_read),
		cmocka_unit_test(sealed_secrets_are_opened),
		cmocka_unit_test(secrets_sealed_with_sm4_are_opened),
		cmocka_unit_test(tiers_are_read),
		cmocka_unit_test(every_golden_setting_is_handled),
		cmocka_unit_test(a_wrong_field_is_named),
		cmocka_unit_test(versions_gate),
		cmocka_unit_test(versions_compare_as_the_vectors),
		cmocka_unit_test(secrets_that_do_not_open_are_an_error),
		cmocka_unit_test(what_people_see_has_no_secret),
		cmocka_unit_test(damaged_texts_are_refused),
		cmocka_unit_test(the_volume_id_follows_uuid_and_generation),
		cmocka_unit_test(the_generation_lives_with_its_volume),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
