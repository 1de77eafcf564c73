/* SPDX-License-Identifier: Apache-2.0 */
/* A directory as object store: the same promises as S3, and nothing but whole objects under their
 * names. */
#include "common/object/object.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "common/object/crypt.h"
#include "tests/unit/check.h"

static char dir[64];
static struct object_store *store;

static int remove_one(const char *path, const struct stat *st _unused_, int flag _unused_,
		      struct FTW *ftw _unused_)
{
	return remove(path);
}

static struct object_store *open_dir(const char *path)
{
	struct object_conf conf = {.storage = "File", .bucket = path};
	struct object_store *s = NULL;
	struct str err = STR_INIT;

	assert_int_equal(object_open(&conf, NULL, &s, &err), 0);
	str_fini(&err);
	return s;
}

static int setup(void **state _unused_)
{
	(void)snprintf(dir, sizeof(dir), "/tmp/stoke-file-XXXXXX");
	if (!mkdtemp(dir))
		return -1;
	strncat(dir, "/", sizeof(dir) - strlen(dir) - 1);
	store = open_dir(dir);
	return 0;
}

static int teardown(void **state _unused_)
{
	object_free(store);
	return nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static int put(const char *key, const char *bytes, bool if_absent)
{
	struct object_req req = {
		.op = OBJECT_PUT,
		.key = key,
		.cap = strlen(bytes),
		.if_absent = if_absent,
	};

	memcpy(&req.buf, &bytes, sizeof(bytes)); /* a PUT only reads */
	return object_run(store, &req);
}

static int get(const char *key, uint64_t off, uint64_t len, char *buf, size_t cap, size_t *got)
{
	struct object_req req = {
		.op = OBJECT_GET,
		.key = key,
		.off = off,
		.len = len,
		.buf = (unsigned char *)buf,
		.cap = cap,
	};
	int r = object_run(store, &req);

	*got = req.got;
	return r;
}

static void reads_what_was_put_whole_and_in_parts(void **state _unused_)
{
	char buf[64];
	size_t got;
	struct object_req head = {.op = OBJECT_HEAD, .key = "v/chunks/0/0/1_0_10"};

	assert_int_equal(put("v/chunks/0/0/1_0_10", "0123456789", false), 0);
	assert_int_equal(get("v/chunks/0/0/1_0_10", 0, 0, buf, sizeof(buf), &got), 0);
	assert_int_equal(got, 10);
	assert_memory_equal(buf, "0123456789", 10);
	assert_int_equal(get("v/chunks/0/0/1_0_10", 3, 4, buf, sizeof(buf), &got), 0);
	assert_int_equal(got, 4);
	assert_memory_equal(buf, "3456", 4);
	assert_int_equal(get("v/chunks/0/0/1_0_10", 8, 4, buf, sizeof(buf), &got), 0);
	assert_int_equal(got, 2);
	assert_int_equal(get("v/chunks/0/0/1_0_10", 10, 4, buf, sizeof(buf), &got), 0);
	assert_int_equal(got, 0);
	assert_int_equal(get("v/chunks/0/0/1_0_10", 0, 0, buf, 9, &got), -EMSGSIZE);
	assert_int_equal(object_run(store, &head), 0);
	assert_int_equal(head.got, 10);
	assert_int_equal(put("v/chunks/0/0/1_0_10", "new", false), 0);
	assert_int_equal(get("v/chunks/0/0/1_0_10", 0, 0, buf, sizeof(buf), &got), 0);
	assert_int_equal(got, 3);
}

static void tells_what_is_absent(void **state _unused_)
{
	char buf[4];
	size_t got;
	struct object_req del = {.op = OBJECT_DELETE, .key = "nothing"};
	struct object_req list = {.op = OBJECT_LIST, .key = ""};
	struct object_store *s;

	assert_int_equal(get("nothing", 0, 0, buf, sizeof(buf), &got), -ENOENT);
	assert_int_equal(get("no/thing", 0, 0, buf, sizeof(buf), &got), -ENOENT);
	assert_int_equal(object_run(store, &del), 0);
	s = open_dir("/tmp/stoke-not-there/");
	assert_int_equal(object_run(s, &list), -ENODATA);
	object_free(s);
}

static void put_if_absent_keeps_what_is_there(void **state _unused_)
{
	char buf[8];
	size_t got;

	assert_int_equal(put("once", "one", true), 0);
	assert_int_equal(put("once", "two", true), -EEXIST);
	assert_int_equal(get("once", 0, 0, buf, sizeof(buf), &got), 0);
	assert_memory_equal(buf, "one", 3);
}

static void names_cannot_leave_the_directory(void **state _unused_)
{
	static const char *const bad[] = {"../x", "a/../../x", "/x", "a//b", "./x", "a/."};
	char buf[4];
	size_t got;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		assert_int_equal(put(bad[i], "x", false), -EINVAL);
		assert_int_equal(get(bad[i], 0, 0, buf, sizeof(buf), &got), -EINVAL);
	}
}

static void expect_list(const char *prefix, const char *after, const char *want)
{
	struct object_req req = {.op = OBJECT_LIST, .key = prefix, .start_after = after};
	struct str seen = STR_INIT;

	assert_int_equal(object_run(store, &req), 0);
	assert_false(req.more);
	for (size_t i = 0; i < req.n_list; i++)
		str_addf(&seen, "%s ", req.list[i].key);
	assert_string_equal(str_c(&seen), want);
	str_fini(&seen);
	object_list_free(&req);
}

static void lists_by_the_bytes_of_whole_keys(void **state _unused_)
{
	static const char *const keys[] = {"a/b", "a.b", "a0", "a/c/d", "a/c.d", "b"};
	char path[128];
	int fd;

	for (size_t i = 0; i < ARRAY_LEN(keys); i++)
		assert_int_equal(put(keys[i], "x", false), 0);
	/* what a PUT that died left, ours and JuiceFS's */
	(void)snprintf(path, sizeof(path), "%sa/.b.tmp.0123456789abcdef", dir);
	fd = open(path, O_CREAT | O_WRONLY, 0600);
	assert_true(fd >= 0);
	close(fd);
	(void)snprintf(path, sizeof(path), "%sa/.jfs.b.tmp.123", dir);
	fd = open(path, O_CREAT | O_WRONLY, 0600);
	assert_true(fd >= 0);
	close(fd);
	expect_list("", NULL, "a.b a/b a/c.d a/c/d a0 b ");
	expect_list("a/", NULL, "a/b a/c.d a/c/d ");
	expect_list("a/c", NULL, "a/c.d a/c/d ");
	expect_list("", "a/c.d", "a/c/d a0 b ");
	expect_list("", "a/c", "a/c.d a/c/d a0 b ");
	expect_list("a", "a/zzz", "a0 ");
	expect_list("z", NULL, "");
}

static void lists_in_pages(void **state _unused_)
{
	char key[64], after[64] = "";
	size_t seen = 0;
	struct object_req req = {.op = OBJECT_LIST, .key = "p/", .start_after = after};

	for (int i = 0; i < 1100; i++) {
		(void)snprintf(key, sizeof(key), "p/%d/%d", i / 100, i);
		assert_int_equal(put(key, "", false), 0);
	}
	do {
		assert_int_equal(object_run(store, &req), 0);
		assert_true(req.n_list > 0);
		assert_true(strcmp(req.list[0].key, after) > 0);
		seen += req.n_list;
		(void)snprintf(after, sizeof(after), "%s", req.list[req.n_list - 1].key);
		object_list_free(&req);
	} while (req.more);
	assert_int_equal(seen, 1100);
}

static void deletes_many_and_empty_directories(void **state _unused_)
{
	static const char *const keys[] = {"testing/a", "missing", "testing/b"};
	struct object_req req = {.op = OBJECT_DELETE_MANY, .keys = keys, .n_keys = 3};
	struct object_req del = {.op = OBJECT_DELETE, .key = "testing/"};

	assert_int_equal(put("testing/a", "x", false), 0);
	assert_int_equal(put("testing/b", "x", false), 0);
	assert_int_equal(object_run(store, &req), 0);
	assert_int_equal(object_run(store, &del), 0);
	expect_list("", NULL, "");
}

static void creates_its_directory(void **state _unused_)
{
	char path[128];
	struct object_req create = {.op = OBJECT_CREATE_BUCKET},
			  head = {.op = OBJECT_HEAD, .key = "x"};
	struct object_store *s;

	(void)snprintf(path, sizeof(path), "%sone/two/", dir);
	s = open_dir(path);
	assert_int_equal(object_run(s, &create), 0);
	assert_int_equal(object_run(s, &create), -EEXIST);
	assert_int_equal(object_run(s, &head), -ENOENT);
	object_free(s);
}

/* RLIMIT_FSIZE stands for a disk that is full in the middle of a write */
static void a_write_that_fails_leaves_nothing(void **state _unused_)
{
	struct rlimit old, one = {.rlim_cur = 4096};
	unsigned char bytes[8192] = {1};
	struct object_req req = {
		.op = OBJECT_PUT, .key = "d/x", .buf = bytes, .cap = sizeof(bytes)};
	char path[128];
	struct dirent *e;
	DIR *d;

	assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
	one.rlim_max = old.rlim_max;
	(void)signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &one), 0);
	assert_int_equal(object_run(store, &req), -EIO);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
	assert_non_null(strstr(req.reason, "put d/x: File too large"));
	(void)snprintf(path, sizeof(path), "%sd", dir);
	d = opendir(path);
	assert_non_null(d);
	while ((e = readdir(d)))
		assert_true(strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0);
	closedir(d);
}

static void other_buckets_and_storages_are_refused(void **state _unused_)
{
	static const char *const bad[] = {"relative/", "/no/slash", ""};
	static const char *const unknown[] = {"hdfs", "webdav", "gs", "", "S4"};
	struct object_store *s = NULL;
	struct str err = STR_INIT;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct object_conf conf = {.storage = "file", .bucket = bad[i]};

		assert_int_equal(object_open(&conf, NULL, &s, &err), -EINVAL);
		assert_non_null(strstr(str_c(&err), "absolute"));
		str_reset(&err);
	}
	for (size_t i = 0; i < ARRAY_LEN(unknown); i++) {
		struct object_conf conf = {.storage = unknown[i], .bucket = "http://x/y"};

		assert_int_equal(object_open(&conf, NULL, &s, &err), -EOPNOTSUPP);
		assert_non_null(strstr(str_c(&err), unknown[i]));
		str_reset(&err);
	}
	str_fini(&err);
}

static size_t shown;

static void on_progress(struct object_req *req, size_t valid)
{
	assert(valid > shown && req->buf[valid - 1] == 'x');
	shown = valid;
}

static void progress_runs_when_the_length_is_right(void **state _unused_)
{
	enum { N = (2 << 20) + 5 };
	unsigned char *p = malloc(N);
	struct object_req req = {.op = OBJECT_PUT, .key = "big", .buf = p, .cap = N};

	assert_non_null(p);
	memset(p, 'x', N);
	assert_int_equal(object_run(store, &req), 0);
	memset(p, 0, N);
	req.op = OBJECT_GET;
	req.progress = on_progress;
	shown = 0;
	assert_int_equal(object_run(store, &req), 0);
	assert_int_equal(shown, N);
	/* a longer block was expected: nothing of it is shown before the end */
	req.len = N;
	req.off = 1;
	shown = 0;
	assert_int_equal(object_run(store, &req), 0);
	assert_int_equal(req.got, N - 1);
	assert_int_equal(shown, 0);
	free(p);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(reads_what_was_put_whole_and_in_parts),
		TEST(tells_what_is_absent),
		TEST(put_if_absent_keeps_what_is_there),
		TEST(names_cannot_leave_the_directory),
		TEST(lists_by_the_bytes_of_whole_keys),
		TEST(lists_in_pages),
		TEST(deletes_many_and_empty_directories),
		TEST(creates_its_directory),
		TEST(a_write_that_fails_leaves_nothing),
		TEST(other_buckets_and_storages_are_refused),
		TEST(progress_runs_when_the_length_is_right),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
