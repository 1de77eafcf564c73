/* SPDX-License-Identifier: Apache-2.0 */
/* Clean-ups over a real Redis: what is old enough goes, what is not stays, exactly once, and
 * whatever the object store refuses is found again. */
#include "client/meta/jobs.h"

#include <inttypes.h>

#include "tests/unit/meta/volume.h"

static uint64_t make(struct meta *m, uint64_t parent, const char *name, uint8_t type)
{
	uint64_t inode;
	struct attr a;

	assert_int_equal(meta_mknod(m, &root_ctx, parent, name, type, 0755, 0, 0, "t", &inode, &a),
			 0);
	return inode;
}

static void put(struct meta *m, uint64_t inode, uint64_t off, uint32_t len)
{
	struct slice s = {.pos = (uint32_t)(off % CHUNK_SIZE), .size = len, .len = len};
	struct attr a;

	assert_int_equal(meta_new_slice(m, &s.id, &(struct hash128){{0}}), 0);
	assert_int_equal(meta_write(m, inode, (uint32_t)(off >> CHUNK_BITS), &s, time_of(9, 9), &a),
			 0);
}

/* cmd, a number, and what follows it */
static void raw_cmd(const char *cmd, uint64_t v, const char *rest)
{
	char text[160];

	snprintf(text, sizeof(text), "%s%" PRIu64 "%s", cmd, v, rest);
	raw_run(text);
}

static int refuse(void *arg, uint64_t slice, uint32_t size)
{
	(void)slice;
	(void)size;
	__atomic_add_fetch((unsigned *)arg, 1, __ATOMIC_RELAXED);
	return -EIO;
}

/* an hour of the trash gets another name, as if it were as old */
static void trash_ages(const char *name)
{
	struct trash_hour *v;
	struct redis_reply *r = NULL;
	size_t n;
	struct meta *m = open_redis(NULL);

	assert_int_equal(meta_trash_hours(m, &v, &n), 0);
	assert_int_equal(n, 1);
	assert_int_equal(redis_once(raw, soon(), &r, "EVAL %s 0 %s %s",
				    "local k='d9223372032828243968' "
				    "redis.call('HSET',k,ARGV[2],redis.call('HGET',k,ARGV[1])) "
				    "redis.call('HDEL',k,ARGV[1])",
				    v[0].name, name),
			 0);
	redis_reply_free(r);
	free(v);
	close_meta(m);
}

static void old_hours_of_the_trash_go_with_all_in_them(void **state)
{
	struct meta_progress p = {0};
	struct trash_hour *v;
	struct deleted d = {0};
	struct meta *m;
	uint64_t dir;
	size_t n;

	(void)state;
	NEED_SERVER();
	fresh_volume(1);
	m = open_redis(&d);
	dir = make(m, INODE_ROOT, "dir", INODE_DIR);
	put(m, make(m, dir, "f", INODE_FILE), 0, 100);
	put(m, make(m, INODE_ROOT, "g", INODE_FILE), 0, 100);
	assert_int_equal(meta_remove_tree(m, &root_ctx, INODE_ROOT, "dir", false, NULL), 0);
	assert_int_equal(meta_unlink(m, &root_ctx, INODE_ROOT, "g"), 0);
	close_meta(m);
	trash_ages("2020-02-29-23");
	m = open_redis(&d);
	put(m, make(m, INODE_ROOT, "h", INODE_FILE), 0, 100);
	assert_int_equal(meta_unlink(m, &root_ctx, INODE_ROOT, "h"), 0);
	assert_int_equal(meta_trash_hours(m, &v, &n), 0);
	assert_int_equal(n, 2);
	assert_int_equal(v[0].sec, 1583017200);
	free(v);
	assert_int_equal(meta_trash_expire(m, 1583017200, &p), 0);
	assert_int_equal(p.files, 0);
	jobs_hourly(redis_engine(m)); /* what the thread does */
	jobs_hourly(redis_engine(m));
	assert_int_equal(meta_trash_hours(m, &v, &n), 0);
	assert_int_equal(n, 1);
	free(v);
	close_meta(m);
	assert_int_equal(d.n, 2);
	assert_int_equal(raw_int("GET totalInodes"), 2); /* h and its hour */
	assert_int_equal(raw_int("GET usedSpace"), 8192);
	assert_int_equal(raw_int("EXISTS delfiles sliceRef"), 0);
	assert_true(raw_int("GET lastCleanupTrash") > 1600000000);
	assert_true(raw_int("GET lastCleanupFiles") > 1600000000);
	assert_true(raw_int("GET nextCleanupSlices") > 1600000000);
}

static void slices_in_the_trash_go_when_they_are_old(void **state)
{
	struct meta_progress p = {0};
	struct redis_reply *r = NULL;
	struct deleted d = {0};
	struct meta *m;

	(void)state;
	NEED_SERVER();
	fresh_volume(1);
	m = open_redis(&d);
	/* 7 (of 10 bytes) twice, 8 once; 9 is referred to once more */
	raw_run("HSET sliceRef k7_10 1 k9_10 1");
	assert_int_equal(
		redis_once(raw, soon(), &r, "HSET delSlices 20_1000 %b 21_1001 %b x %s 22_5000 %b",
			   "\0\0\0\0\0\0\0\7\0\0\0\12\0\0\0\0\0\0\0\10\0\0\0\12", (size_t)24,
			   "\0\0\0\0\0\0\0\7\0\0\0\12\0\0\0\0\0\0\0\11\0\0\0\12", (size_t)24, "y",
			   "\0\0\0\0\0\0\0\6\0\0\0\12", (size_t)12),
		0);
	redis_reply_free(r);
	assert_int_equal(meta_delayed_clean(m, 1000, &p), 0);
	assert_int_equal(p.files, 0);
	assert_int_equal(meta_delayed_clean(m, 5000, &p), 0);
	assert_int_equal(p.files, 2);
	assert_int_equal(d.n, 2);
	assert_int_equal(d.sum, 7 * 1000003 + 10 + 8 * 1000003 + 10);
	assert_int_equal(raw_int("HLEN delSlices"), 2);
	assert_int_equal(raw_int("HGET sliceRef k9_10"), 0);
	assert_int_equal(raw_int("HLEN sliceRef"), 1);
	assert_int_equal(meta_slices_clean(m, NULL), 0); /* "0" says nothing */
	assert_int_equal(raw_int("HLEN sliceRef"), 0);
	assert_int_equal(d.n, 2);
	close_meta(m);
}

static void what_the_store_refuses_is_found_again(void **state)
{
	struct deleted d = {0};
	unsigned asked = 0;
	struct meta *m;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(NULL);
	meta_stop(m);
	meta_set_delete(m, refuse, &asked);
	meta_free(m);
	{
		struct meta_conf conf = test_conf();
		struct str err = STR_INIT;

		assert_int_equal(meta_redis_new(server.url, &conf, &m, &err), 0);
		meta_set_delete(m, refuse, &asked);
		assert_int_equal(meta_start(m, &err), 0);
	}
	for (int i = 0; i < 120; i++) {
		char name[16];

		snprintf(name, sizeof(name), "f%d", i);
		put(m, make(m, INODE_ROOT, name, INODE_FILE), 0, 10);
		assert_int_equal(meta_unlink(m, &root_ctx, INODE_ROOT, name), 0);
	}
	close_meta(m);
	assert_int_equal(asked, 120);
	assert_int_equal(raw_int("ZCARD delfiles"), 0);
	assert_int_equal(raw_int("HLEN sliceRef"), 120);
	m = open_redis(&d);
	assert_int_equal(meta_slices_clean(m, NULL), 0);
	assert_int_equal(d.n, 120);
	assert_int_equal(raw_int("HLEN sliceRef"), 0);
	close_meta(m);
}

static void a_client_without_deletes_deletes_nothing(void **state)
{
	struct meta_conf conf = test_conf();
	struct deleted d = {0};
	struct meta *m;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	conf.max_deletes = 0;
	m = open_redis_conf(&conf, &d);
	put(m, make(m, INODE_ROOT, "f", INODE_FILE), 0, 10);
	assert_int_equal(meta_unlink(m, &root_ctx, INODE_ROOT, "f"), 0);
	assert_int_equal(meta_deleted_clean(m, INT64_C(99999999999), NULL), -EOPNOTSUPP);
	jobs_hourly(redis_engine(m));
	close_meta(m);
	assert_int_equal(d.n, 0);
	assert_int_equal(raw_int("ZCARD delfiles"), 1);
	m = open_redis(&d);
	assert_int_equal(meta_deleted_clean(m, INT64_C(99999999999), NULL), 0);
	close_meta(m);
	assert_int_equal(d.n, 1);
	assert_int_equal(raw_int("EXISTS delfiles c2_0 sliceRef"), 0);
}

static void thousands_of_deleted_files_and_one_of_many_lists(void **state)
{
	struct meta_progress p = {0};
	struct deleted d = {0};
	struct meta *m;
	struct attr a;
	uint64_t f;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(&d);
	f = make(m, INODE_ROOT, "f", INODE_FILE);
	for (uint64_t i = 0; i < 300; i++)
		put(m, f, i * CHUNK_SIZE, 10);
	assert_int_equal(meta_truncate(m, &root_ctx, f, 250 * (uint64_t)CHUNK_SIZE, false, &a), 0);
	raw_cmd("DEL i", f, "");
	raw_cmd("ZADD delfiles 1000 ", f, ":16777216000");
	raw_run("EVAL for\ti=1,2500\tdo\tredis.call('ZADD','delfiles',1000,(100000+i)..':5')"
		"redis.call('RPUSH','c'..(100000+i)..'_0','1234567890123456')end 0");
	assert_int_equal(meta_deleted_clean(m, 1000, &p), 0);
	assert_int_equal(p.files, 2501);
	assert_int_equal(d.n, 300);
	assert_int_equal(raw_int("EXISTS delfiles sliceRef"), 0);
	assert_int_equal(raw_int("EXISTS c100001_0 c102500_0 c2_299"), 0);
	close_meta(m);
}

static void the_change_log_is_trimmed(void **state)
{
	static const char *const json =
		"local s=redis.call('GET','setting') redis.call('SET','setting',(string.gsub(s,'{',"
		"'{\"ChangeLog\":true,\"ChangeLogMaxLines\":100,\"ChangeLogMaxAge\":3600,',1)))";
	struct redis_reply *r = NULL;
	struct meta *m;
	int64_t lines;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	assert_int_equal(redis_once(raw, soon(), &r, "EVAL %s 0", json), 0);
	redis_reply_free(r);
	m = open_redis(NULL);
	raw_run("EVAL "
		"for\ti=1,25000\tdo\tredis.call('RPUSH','txnLog','1000.000000000|X()|(1,1)')end 0");
	raw_run("SET txnLastLog 25000");
	make(m, INODE_ROOT, "f", INODE_FILE);
	make(m, INODE_ROOT, "g", INODE_FILE);
	lines = raw_int("GET txnLastLog") - 25000;
	assert_true(lines >= 2);
	assert_int_equal(meta_log_trim(m), 0);
	/* 100 by number, and those of them that are too old */
	assert_int_equal(raw_int("LLEN txnLog"), lines);
	close_meta(m);
}

static void what_nobody_names_goes(void **state)
{
	struct deleted d = {0};
	struct meta *m;
	uint64_t f;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(&d);
	f = make(m, INODE_ROOT, "f", INODE_FILE);
	put(m, f, 0, 10);
	assert_int_equal(meta_chunk_clean(m, f, 0, NULL), -EEXIST);
	raw_run("HDEL d1 f");
	assert_int_equal(meta_inode_clean(m, f, NULL), 0);
	assert_int_equal(meta_inode_clean(m, INODE_ROOT, NULL), -EPERM);
	raw_run("EVAL return\tredis.call('RPUSH','c9_3',string.rep('\\0',11)..'\\5\\0\\0\\0\\10'.."
		"string.rep('\\0',7)..'\\10') 0");
	assert_int_equal(meta_chunk_clean(m, 9, 3, NULL), 0);
	close_meta(m);
	assert_int_equal(d.n, 2);
	assert_int_equal(raw_int("GET totalInodes"), 0);
	assert_int_equal(raw_int("EXISTS c2_0 c9_3 i2 delfiles"), 0);
}

static void unfinished_clones_go(void **state)
{
	struct deleted d = {0};
	struct meta *m;
	uint64_t dir;

	(void)state;
	NEED_SERVER();
	fresh_volume(1);
	m = open_redis(&d);
	dir = make(m, INODE_ROOT, "dir", INODE_DIR);
	put(m, make(m, dir, "f", INODE_FILE), 0, 10);
	make(m, make(m, dir, "sub", INODE_DIR), "l", INODE_SYMLINK);
	raw_run("HDEL d1 dir");
	raw_cmd("ZADD detachedNodes 5000 ", dir, "");
	assert_int_equal(meta_detached_clean(m, 5000, NULL), 0);
	assert_int_equal(raw_int("ZCARD detachedNodes"), 1);
	assert_int_equal(meta_detached_clean(m, 5001, NULL), 0);
	close_meta(m);
	assert_int_equal(d.n, 1);
	assert_int_equal(raw_int("GET totalInodes"), 0);
	assert_int_equal(raw_int("GET usedSpace"), 0);
	assert_int_equal(raw_int("EXISTS detachedNodes d9223372032828243968 i2 i3 i4 i5 s5"), 0);
}

static void a_file_that_lives_is_not_looked_at_for_ever(void **state)
{
	struct meta_progress p = {0};
	struct deleted d = {0};
	struct chunk_list l;
	struct meta *m;
	uint64_t f;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(&d);
	f = make(m, INODE_ROOT, "f", INODE_FILE);
	put(m, f, 0, 10);
	raw_cmd("ZADD delfiles 1000 ", f, ":5");
	raw_cmd("ZADD delfiles 1000 ", f, ":16777216000");
	raw_run("ZADD delfiles 1000 0100:5");
	raw_run("ZADD delfiles 1000 100:05");
	assert_int_equal(meta_deleted_clean(m, 1000, &p), 0);
	assert_int_equal(raw_int("ZCARD delfiles"), 2); /* in a form that nobody writes */
	assert_int_equal(meta_read(m, f, 0, 1, &l), 0);
	assert_int_equal(l.n, 1);
	chunk_list_fini(&l);
	assert_int_equal(d.n, 0);
	close_meta(m);
}

static void two_members_of_a_file_take_its_references_once(void **state)
{
	struct meta_progress p = {0};
	struct deleted d = {0};
	struct meta *m;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(&d);
	/* slice 5 of 10 bytes: another file has it too */
	raw_run("EVAL for\ti=0,1\tdo\tredis.call('RPUSH','c9_'..i,string.rep('\\0',11).."
		"'\\5\\0\\0\\0\\10'..string.rep('\\0',7)..'\\10')end 0");
	raw_run("HSET sliceRef k5_10 2");
	raw_run("ZADD delfiles 1000 9:10 1000 9:100 1000 9:67108870");
	assert_int_equal(meta_deleted_clean(m, 1000, &p), 0);
	assert_int_equal(raw_int("HGET sliceRef k5_10"), 0);
	assert_int_equal(raw_int("EXISTS delfiles c9_0 c9_1"), 0);
	assert_int_equal(d.n, 0);
	close_meta(m);
}

/* the longest that a command took */
static void long_lists_go_in_steps(void **state)
{
	static const char *const fill =
		"local n=0 for c=0,99 do for i=1,300 do n=n+1 "
		"redis.call('RPUSH','c9_'..c,string.rep('\\0',10)..string.char(math.floor(n/256),"
		"n%256)..'\\0\\0\\0\\10'..string.rep('\\0',7)..'\\10') "
		"redis.call('RPUSH','c8_0',string.rep('\\0',9)..string.char(1,math.floor(n/256),"
		"n%256)..'\\0\\0\\0\\10'..string.rep('\\0',7)..'\\10') end end";
	struct meta_progress p = {0};
	struct redis_reply *r = NULL;
	struct deleted d = {0};
	uint64_t us;
	struct meta *m;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(&d);
	assert_int_equal(redis_once(raw, soon(), &r, "EVAL %s 0", fill), 0);
	redis_reply_free(r);
	raw_run("ZADD delfiles 1000 9:6710886399 1000 8:10");
	raw_run("CONFIG RESETSTAT");
	assert_int_equal(meta_deleted_clean(m, 1000, &p), 0);
	/* at most 1 500 records a script; all in one would take 300 ms */
	assert_true(raw_scripts(&us) >= 60000 / 1500);
	print_message("a script took %llu us\n", (unsigned long long)us);
	assert_true(us < 20000);
	assert_int_equal(d.n, 60000);
	assert_int_equal(raw_int("EXISTS delfiles c9_0 c9_99 c8_0 sliceRef"), 0);
	close_meta(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(old_hours_of_the_trash_go_with_all_in_them),
		cmocka_unit_test(slices_in_the_trash_go_when_they_are_old),
		cmocka_unit_test(what_the_store_refuses_is_found_again),
		cmocka_unit_test(a_client_without_deletes_deletes_nothing),
		cmocka_unit_test(thousands_of_deleted_files_and_one_of_many_lists),
		cmocka_unit_test(the_change_log_is_trimmed),
		cmocka_unit_test(what_nobody_names_goes),
		cmocka_unit_test(unfinished_clones_go),
		cmocka_unit_test(a_file_that_lives_is_not_looked_at_for_ever),
		cmocka_unit_test(two_members_of_a_file_take_its_references_once),
		cmocka_unit_test(long_lists_go_in_steps),
	};

	return cmocka_run_group_tests(tests, start_server, stop_server);
}
