/* SPDX-License-Identifier: Apache-2.0 */
/* The S3 store against a real server: STOKE_TEST_S3=http://host:port/bucket with ACCESS_KEY and
 * SECRET_KEY; the bucket is made when missing. Without them all is skipped, and said so. */
#include "common/object/object.h"

#include "common/clock.h"
#include "common/hash.h"
#include "common/object/crypt.h"
#include "tests/unit/check.h"

enum { BLOCK = 4 << 20 };

static struct loop *loop;
static struct object_store *store;
static char base[64]; /* all keys of this run begin with it */

static struct object_store *open_store(const char *url, const char *secret, unsigned retries)
{
	struct object_conf conf = {
		.storage = "s3",
		.bucket = url,
		.access_key = "",
		.secret_key = secret,
		.retries = retries,
	};
	struct object_store *s = NULL;
	struct str err = STR_INIT;
	int r = object_open(&conf, loop, &s, &err);

	if (r < 0)
		fail_msg("%s", str_c(&err));
	str_fini(&err);
	return s;
}

static int setup(void **state _unused_)
{
	struct object_req req = {.op = OBJECT_CREATE_BUCKET};
	uint64_t tag;
	int r;

	if (!getenv("STOKE_TEST_S3"))
		return 0;
	crypt_random(&tag, sizeof(tag));
	(void)snprintf(base, sizeof(base), "live-%016llx/", (unsigned long long)tag);
	assert_int_equal(loop_new("test", &loop), 0);
	store = open_store(getenv("STOKE_TEST_S3"), "", 3);
	r = object_run(store, &req);
	if (r < 0 && r != -EEXIST)
		fail_msg("%s", req.reason);
	return 0;
}

static int teardown(void **state _unused_)
{
	object_free(store);
	loop_free(loop);
	return 0;
}

static void need_server(void)
{
	if (!store) {
		print_message("skipped: STOKE_TEST_S3, ACCESS_KEY, SECRET_KEY are not set\n");
		skip();
	}
}

static const char *key_of(const char *name, char ret[256])
{
	(void)snprintf(ret, 256, "%s%s", base, name);
	return ret;
}

static int put(const char *key, const void *p, size_t n)
{
	struct object_req req = {.op = OBJECT_PUT, .key = key, .cap = n};
	int r;

	/* a PUT only reads its bytes */
	memcpy(&req.buf, &p, sizeof(p));
	r = object_run(store, &req);
	if (r < 0)
		print_message("%s\n", req.reason);
	return r;
}

static int get(const char *key, uint64_t off, uint64_t len, void *buf, size_t cap, size_t *got)
{
	struct object_req req = {
		.op = OBJECT_GET, .key = key, .off = off, .len = len, .buf = buf, .cap = cap};
	int r = object_run(store, &req);

	*got = req.got;
	return r;
}

static void roundtrips_whole_objects_and_ranges(void **state _unused_)
{
	unsigned char *a = malloc(BLOCK), *b = malloc(BLOCK);
	char key[256];
	size_t got;
	struct object_req head = {.op = OBJECT_HEAD};

	need_server();
	assert_non_null(a);
	assert_non_null(b);
	crypt_random(a, BLOCK);
	key_of("chunks/0/0/1_0_4194304", key);
	assert_int_equal(put(key, a, BLOCK), 0);
	assert_int_equal(get(key, 0, 0, b, BLOCK, &got), 0);
	assert_int_equal(got, BLOCK);
	assert_memory_equal(a, b, BLOCK);
	memset(b, 0, BLOCK);
	assert_int_equal(get(key, 32768, 65536, b, BLOCK, &got), 0);
	assert_int_equal(got, 65536);
	assert_memory_equal(a + 32768, b, 65536);
	assert_int_equal(get(key, BLOCK - 10, 100, b, 100, &got),
			 0); /* past the end: fewer bytes */
	assert_int_equal(got, 10);
	assert_memory_equal(a + BLOCK - 10, b, 10);
	assert_int_equal(get(key, BLOCK, 100, b, 100, &got), 0);
	assert_int_equal(got, 0);
	assert_int_equal(get(key, 0, 0, b, BLOCK - 1, &got), -EMSGSIZE);
	head.key = key;
	assert_int_equal(object_run(store, &head), 0);
	assert_int_equal(head.got, BLOCK);
	free(a);
	free(b);
}

static void tells_what_is_absent(void **state _unused_)
{
	char key[256], buf[16];
	size_t got;
	struct object_req req = {.op = OBJECT_HEAD}, del = {.op = OBJECT_DELETE};
	struct object_store *other;

	need_server();
	key_of("nothing", key);
	assert_int_equal(get(key, 0, 0, buf, sizeof(buf), &got), -ENOENT);
	req.key = key;
	assert_int_equal(object_run(store, &req), -ENOENT);
	del.key = key;
	assert_int_equal(object_run(store, &del), 0);
	other = open_store("http://127.0.0.1:9/nowhere", "", 1);
	req.op = OBJECT_GET;
	req.cap = 0;
	assert_int_equal(object_run(other, &req), -EIO);
	assert_non_null(strstr(req.reason, "tried 2 times"));
	object_free(other);
}

static void a_bucket_that_is_not_there_is_told_apart(void **state _unused_)
{
	const char *url = getenv("STOKE_TEST_S3");
	char missing[256], buf[16];
	struct object_req req = {
		.op = OBJECT_GET, .key = "x", .buf = (unsigned char *)buf, .cap = sizeof(buf)};
	struct object_store *other;

	need_server();
	(void)snprintf(missing, sizeof(missing), "%s-not-there", url);
	other = open_store(missing, "", 1);
	assert_int_equal(object_run(other, &req), -ENODATA);
	assert_non_null(strstr(req.reason, "NoSuchBucket"));
	object_free(other);
}

static void a_wrong_secret_is_denied_at_once(void **state _unused_)
{
	char *secret = getenv("SECRET_KEY") ? strdup(getenv("SECRET_KEY")) : NULL;
	struct object_req req = {.op = OBJECT_GET, .key = "x"};
	struct object_store *other;

	need_server();
	setenv("SECRET_KEY", "not-the-secret", 1);
	other = open_store(getenv("STOKE_TEST_S3"), "", 5);
	setenv("SECRET_KEY", secret, 1);
	assert_int_equal(object_run(other, &req), -EACCES);
	assert_non_null(strstr(req.reason, "403"));
	assert_null(strstr(req.reason, "not-the-secret"));
	object_free(other);
	free(secret);
}

static void lists_in_order_and_deletes_many(void **state _unused_)
{
	static const char *const odd[] = {"l/a b", "l/a+b", "l/\xc3\xa9", "l/&<>\"'", "l/a%20b"};
	enum { N = 1105 };
	char(*names)[256] = calloc(N, sizeof(*names));
	const char **keys = calloc(N, sizeof(*keys));
	char prefix[256], after[1100] = "";
	size_t seen = 0;

	need_server();
	assert_non_null(names);
	assert_non_null(keys);
	for (size_t i = 0; i < N; i++) {
		char name[64];

		(void)snprintf(name, sizeof(name), "l/%05zu", i);
		keys[i] = key_of(i < ARRAY_LEN(odd) ? odd[i] : name, names[i]);
		assert_int_equal(put(keys[i], "x", 1), 0);
	}
	key_of("l/", prefix);
	for (bool more = true; more;) {
		struct object_req req = {.op = OBJECT_LIST, .key = prefix, .start_after = after};

		assert_int_equal(object_run(store, &req), 0);
		for (size_t i = 0; i < req.n_list; i++) {
			assert_true(strcmp(req.list[i].key, after) > 0);
			assert_int_equal(req.list[i].size, 1);
			assert_true(req.list[i].mtime > 1600000000);
			(void)snprintf(after, sizeof(after), "%s", req.list[i].key);
		}
		seen += req.n_list;
		more = req.more;
		object_list_free(&req);
	}
	assert_int_equal(seen, N);
	for (size_t i = 0; i < N; i += 1000) {
		struct object_req req = {
			.op = OBJECT_DELETE_MANY, .keys = keys + i, .n_keys = MIN(1000UL, N - i)};

		assert_int_equal(object_run(store, &req), 0);
		assert_int_equal(object_run(store, &req), 0); /* missing ones are no error */
	}
	{
		struct object_req req = {.op = OBJECT_LIST, .key = prefix};

		assert_int_equal(object_run(store, &req), 0);
		assert_int_equal(req.n_list, 0);
		assert_false(req.more);
		object_list_free(&req);
	}
	free(names);
	free(keys);
}

static void put_if_absent_keeps_what_is_there(void **state _unused_)
{
	char key[256], buf[16];
	size_t got;
	unsigned char two[] = "two";
	struct object_req req = {.op = OBJECT_PUT, .buf = two, .cap = 3, .if_absent = true};

	need_server();
	req.key = key_of("once", key);
	assert_int_equal(put(key, "one", 3), 0);
	assert_int_equal(object_run(store, &req), -EEXIST);
	assert_int_equal(get(key, 0, 0, buf, sizeof(buf), &got), 0);
	assert_int_equal(got, 3);
	assert_memory_equal(buf, "one", 3);
}

static void empty_objects_are_objects(void **state _unused_)
{
	char key[256], buf[1];
	size_t got = 1;

	need_server();
	key_of("empty", key);
	assert_int_equal(put(key, "", 0), 0);
	assert_int_equal(get(key, 0, 0, buf, sizeof(buf), &got), 0);
	assert_int_equal(got, 0);
}

/* many at once, more than connections */
enum { FLIGHT = 200, PIECE = 100000 };
struct many {
	struct object_req req;
	size_t valid;
	char key[256];
};
static unsigned left;

static void many_progress(struct object_req *req, size_t valid)
{
	struct many *m = container_of(req, struct many, req);

	assert(valid >= m->valid && valid <= PIECE);
	m->valid = valid;
}

static void many_done(struct object_req *req _unused_, int status)
{
	assert(status == 0);
	__atomic_sub_fetch(&left, 1, __ATOMIC_RELEASE);
}

static void run_many(struct many *m, enum object_op op)
{
	__atomic_store_n(&left, FLIGHT, __ATOMIC_RELAXED);
	for (unsigned i = 0; i < FLIGHT; i++) {
		m[i].req.op = op;
		m[i].req.done = many_done;
		m[i].req.progress = many_progress;
		object_start(store, &m[i].req);
	}
	while (__atomic_load_n(&left, __ATOMIC_ACQUIRE))
		usleep(1000);
}

static void many_at_once_come_whole_and_with_progress(void **state _unused_)
{
	struct many *m = calloc(FLIGHT, sizeof(*m));

	need_server();
	assert_non_null(m);
	for (unsigned i = 0; i < FLIGHT; i++) {
		m[i].req.key = m[i].key;
		(void)snprintf(m[i].key, sizeof(m[i].key), "%smany/%u", base, i);
		m[i].req.buf = malloc(PIECE);
		m[i].req.cap = PIECE;
		assert_non_null(m[i].req.buf);
		memset(m[i].req.buf, (int)i, PIECE);
	}
	run_many(m, OBJECT_PUT);
	for (unsigned i = 0; i < FLIGHT; i++)
		memset(m[i].req.buf, 255, PIECE);
	run_many(m, OBJECT_GET);
	for (unsigned i = 0; i < FLIGHT; i++) {
		assert_int_equal(m[i].req.got, PIECE);
		assert_int_equal(m[i].valid, PIECE);
		for (unsigned j = 0; j < PIECE; j++)
			assert_int_equal(m[i].req.buf[j], i & 255);
		free(m[i].req.buf);
	}
	free(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(roundtrips_whole_objects_and_ranges),
		cmocka_unit_test(tells_what_is_absent),
		cmocka_unit_test(a_bucket_that_is_not_there_is_told_apart),
		cmocka_unit_test(a_wrong_secret_is_denied_at_once),
		cmocka_unit_test(lists_in_order_and_deletes_many),
		cmocka_unit_test(put_if_absent_keeps_what_is_there),
		cmocka_unit_test(empty_objects_are_objects),
		cmocka_unit_test(many_at_once_come_whole_and_with_progress),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
