/* SPDX-License-Identifier: Apache-2.0 */
/* What only the engine over Redis has: retries, exact numbers, steps, limits, sessions, the
 * generation, what others do to the volume meanwhile. */
#include <pthread.h>

#include "tests/unit/meta/vectors.h"
#include "tests/unit/meta/volume.h"

static uint64_t make(struct meta *m, const char *name, uint8_t type)
{
	uint64_t inode;
	struct attr a;

	assert_int_equal(
		meta_mknod(m, &root_ctx, INODE_ROOT, name, type, 0755, 0, 0, "t", &inode, &a), 0);
	return inode;
}

static void a_script_asked_again_does_nothing_and_answers_the_same(void **state)
{
	struct redis_reply *first = NULL, *second = NULL;
	struct meta_redis *mr;
	struct args args;
	struct attr a, b;
	struct meta *m;

	(void)state;
	NEED_SERVER();
	fresh_volume(1);
	m = open_redis(NULL);
	make(m, "dir", INODE_DIR);
	mr = redis_engine(m);
	args_init(&args, mr);
	op_begin(mr, &args);
	args_be64(&args, INODE_ROOT);
	args_text(&args, "dir");
	args_u64(&args, 0);
	args_text(&args, "2026-11-30-13");
	assert_int_equal(op_eval(mr, SC_RMDIR, &args, &first), 0);
	assert_int_equal(meta_getattr(m, INODE_ROOT, &a), 0);
	make(m, "dir", INODE_DIR); /* the name is there again, and must stay */
	assert_int_equal(op_eval(mr, SC_RMDIR, &args, &second), 0);
	op_end(mr, &args);
	assert_int_equal(redis_reply_len(first), redis_reply_len(second));
	for (size_t i = 0; i < redis_reply_len(first); i++) {
		size_t n1, n2;
		const char *p = redis_reply_str(redis_reply_at(first, i), &n1);
		const char *q = redis_reply_str(redis_reply_at(second, i), &n2);

		assert_int_equal(n1, n2);
		if (n1)
			assert_memory_equal(p, q, n1);
	}
	assert_int_equal(meta_getattr(m, INODE_ROOT, &b), 0);
	assert_int_equal(b.nlink, a.nlink + 1);
	redis_reply_free(first);
	redis_reply_free(second);
	close_meta(m);
}

static void inode_numbers_above_2_53_are_exact(void **state)
{
	struct meta *m;
	struct attr a;
	uint64_t inode, other;

	(void)state;
	NEED_SERVER();
	fresh_volume(1);
	raw_run("SET nextinode 9007199254740993");
	m = open_redis(NULL);
	inode = make(m, "big", INODE_DIR);
	assert_int_equal(inode, UINT64_C(9007199254740994));
	assert_int_equal(meta_lookup(m, &root_ctx, INODE_ROOT, "big", &other, &a), 0);
	assert_int_equal(other, inode);
	assert_int_equal(
		meta_mknod(m, &root_ctx, inode, "f", INODE_FILE, 0644, 0, 0, "", &other, &a), 0);
	assert_int_equal(a.parent, inode);
	assert_int_equal(raw_int("HLEN d9007199254740994"), 1);
	assert_int_equal(raw_int("EXISTS i9007199254740995"), 1);
	/* and the trash: 2^63 - 2^31 … */
	assert_int_equal(meta_unlink(m, &root_ctx, inode, "f"), 0);
	assert_int_equal(raw_int("EXISTS i9223372032828243969"), 1);
	assert_int_equal(raw_int("HLEN d9223372032828243969"), 1);
	assert_int_equal(raw_int("HLEN d9223372032828243968"), 1);
	close_meta(m);
}

static void lengths_up_to_2_57_are_exact(void **state)
{
	static const uint64_t lengths[] = {FILE_LENGTH_MAX, FILE_LENGTH_MAX - 1,
					   (UINT64_C(1) << 53) + 1, 4097, 0};
	struct meta *m;
	struct attr a;
	uint64_t inode;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(NULL);
	inode = make(m, "f", INODE_FILE);
	for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
		assert_int_equal(meta_truncate(m, &root_ctx, inode, lengths[i], false, &a), 0);
		assert_int_equal(a.length, lengths[i]);
		assert_int_equal(raw_int("GET usedSpace"), align4k(lengths[i]));
	}
	assert_int_equal(meta_truncate(m, &root_ctx, inode, FILE_LENGTH_MAX + 1, false, &a),
			 -EFBIG);
	close_meta(m);
}

/* more chunks than a script may touch: in steps, with the same result */
static void truncating_a_huge_sparse_file_puts_zeros_over_all_lists(void **state)
{
	static const uint32_t chunks[] = {0, 5, 901, 20000, 32767};
	struct slice s = {.size = 100, .len = 100};
	struct chunk_list l;
	struct meta *m;
	struct attr a;
	uint64_t inode;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(NULL);
	inode = make(m, "f", INODE_FILE);
	for (size_t i = 0; i < ARRAY_LEN(chunks); i++) {
		assert_int_equal(meta_new_slice(m, &s.id, &(struct hash128){{0}}), 0);
		assert_int_equal(meta_write(m, inode, chunks[i], &s, time_of(1, 1), &a), 0);
	}
	assert_int_equal(a.length, UINT64_C(32767) * CHUNK_SIZE + 100);
	assert_int_equal(meta_truncate(m, &root_ctx, inode, 50, false, &a), 0);
	assert_int_equal(a.length, 50);
	assert_int_equal(raw_int("GET usedSpace"), 4096);
	for (size_t i = 0; i < ARRAY_LEN(chunks); i++) {
		assert_int_equal(meta_read(m, inode, chunks[i], 1, &l), 0);
		assert_int_equal(l.n, 2);
		assert_int_equal(l.slices[1].id, 0);
		assert_int_equal(l.slices[1].pos, chunks[i] ? 0 : 50);
		assert_int_equal(l.slices[1].len, chunks[i] == 0       ? CHUNK_SIZE - 50
						  : chunks[i] == 32767 ? 100
								       : CHUNK_SIZE);
		chunk_list_fini(&l);
	}
	/* the others have no list */
	assert_int_equal(raw_int("DBSIZE") - raw_int("EXISTS setting _gen _ops nextinode nextchunk "
						     "nextsession usedSpace totalInodes i1 d1 i2 "
						     "allSessions sessionInfos dirUsedSpace "
						     "dirUsedInodes dirDataLength"),
			 ARRAY_LEN(chunks));
	close_meta(m);
}

static void a_limit_of_the_volume_is_enospc(void **state)
{
	struct format_request f = {.name = "test",
				   .storage = "file",
				   .bucket = "/nowhere",
				   .block_size = 4 * MB,
				   .capacity = 1 * MB,
				   .inodes = 3};
	struct str err = STR_INIT;
	struct setting *s = NULL;
	struct meta *m;
	struct attr a;
	uint64_t inode, x;
	bool created;

	(void)state;
	NEED_SERVER();
	raw_run("FLUSHDB");
	assert_int_equal(meta_format(raw, soon(), &f, &s, &created, &err), 0);
	setting_free(s);
	m = open_redis(NULL);
	inode = make(m, "a", INODE_FILE);
	assert_int_equal(meta_truncate(m, &root_ctx, inode, 2 * MB, false, &a), -ENOSPC);
	assert_int_equal(meta_truncate(m, &root_ctx, inode, 100000, false, &a), 0);
	make(m, "b", INODE_FILE);
	make(m, "c", INODE_DIR);
	/* in steps, too */
	assert_int_equal(meta_truncate(m, &root_ctx, inode, UINT64_C(2000) * CHUNK_SIZE, false, &a),
			 -ENOSPC);
	assert_int_equal(meta_mknod(m, &root_ctx, 1, "d", INODE_FILE, 0, 0, 0, "", &x, &a),
			 -ENOSPC);
	assert_int_equal(raw_int("GET totalInodes"), 3);
	close_meta(m);
	str_fini(&err);
}

static void formatting_twice_makes_one_volume(void **state)
{
	struct format_request f = {.name = "test",
				   .storage = "s3",
				   .bucket = "http://127.0.0.1:9000/b",
				   .access_key = "key",
				   .secret_key = "secret \"quoted\"",
				   .block_size = MB,
				   .codec = CODEC_LZ4,
				   .hash_prefix = true,
				   .trash_days = 7};
	struct str err = STR_INIT;
	struct setting *s = NULL, *again = NULL;
	bool created;

	(void)state;
	NEED_SERVER();
	raw_run("FLUSHDB");
	assert_int_equal(meta_format(raw, soon(), &f, &s, &created, &err), 0);
	assert_true(created);
	assert_string_equal(s->secret_key, "secret \"quoted\"");
	assert_int_equal(s->block_size, MB);
	assert_int_equal(s->codec, CODEC_LZ4);
	assert_int_equal(s->trash_days, 7);
	assert_true(s->hash_prefix && s->dir_stats);
	assert_null(strstr(s->text, "quoted"));
	assert_int_equal(raw_int("EXISTS i1 i9223372032828243968"), 2);
	assert_int_equal(raw_int("STRLEN i1"), 72);
	assert_int_equal(meta_format(raw, soon(), &f, &again, &created, &err), 0);
	assert_false(created);
	assert_string_equal(again->uuid, s->uuid);
	setting_free(again);
	f.block_size = 4 * MB;
	assert_int_equal(meta_format(raw, soon(), &f, &again, &created, &err), -EEXIST);
	assert_non_null(strstr(str_c(&err), "block size"));
	str_reset(&err);
	f.name = "other";
	assert_int_equal(meta_format(raw, soon(), &f, &again, &created, &err), -EEXIST);
	setting_free(s);
	raw_run("FLUSHDB");
	raw_run("SET i1 x");
	assert_int_equal(meta_format(raw, soon(), &f, &again, &created, &err), -EEXIST);
	str_fini(&err);
}

static int told;
static void on_changed(void *arg, bool gone)
{
	(void)arg;
	__atomic_store_n(&told, gone ? 2 : 1, __ATOMIC_RELEASE);
}

static void a_database_that_went_back_changes_the_volume_id(void **state)
{
	struct slice s = {.size = 10, .len = 10};
	struct hash128 before, after;
	struct meta *m;
	struct attr a;
	uint64_t inode, id;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(NULL);
	told = 0;
	meta_set_changed(m, on_changed, NULL);
	before = meta_volume_id(m);
	inode = make(m, "f", INODE_FILE);
	for (int i = 0; i < 5000; i++)
		assert_int_equal(meta_new_slice(m, &s.id, &(struct hash128){{0}}), 0);
	assert_int_equal(s.id, 5000);
	raw_run("SET nextchunk 100"); /* as a stale replica has it */
	assert_int_equal(meta_write(m, inode, 0, &s, time_of(1, 1), &a), -ESTALE);
	assert_int_equal(told, 1);
	after = meta_volume_id(m);
	assert_memory_not_equal(before.b, after.b, 16);
	assert_int_equal(meta_new_slice(m, &id, &(struct hash128){{0}}), 0);
	assert_true(id > 8192); /* above all that was ever handed out */
	s.id = id;
	assert_int_equal(meta_write(m, inode, 0, &s, time_of(1, 1), &a), 0);
	close_meta(m);
}

static void another_generation_makes_a_write_stale_once(void **state)
{
	struct slice s = {.size = 10, .len = 10};
	struct meta *m;
	struct attr a;
	uint64_t inode;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(NULL);
	inode = make(m, "f", INODE_FILE);
	assert_int_equal(meta_new_slice(m, &s.id, &(struct hash128){{0}}), 0);
	raw_run("SET _gen abcdefgh");
	assert_int_equal(meta_write(m, inode, 0, &s, time_of(1, 1), &a), -ESTALE);
	assert_int_equal(raw_int("EXISTS c2_0"), 0);
	assert_int_equal(meta_new_slice(m, &s.id, &(struct hash128){{0}}), 0);
	assert_true(s.id > 4096);
	assert_int_equal(meta_write(m, inode, 0, &s, time_of(1, 1), &a), 0);
	close_meta(m);
}

static void a_volume_that_is_gone_takes_no_more_writes(void **state)
{
	struct meta_conf conf = test_conf();
	struct meta *m;
	struct attr a;
	uint64_t x;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	conf.heartbeat_us = 100000;
	m = open_redis_conf(&conf, NULL);
	told = 0;
	meta_set_changed(m, on_changed, NULL);
	raw_run("FLUSHDB");
	for (int i = 0; i < 500 && __atomic_load_n(&told, __ATOMIC_ACQUIRE) != 2; i++)
		usleep(10000);
	assert_int_equal(told, 2);
	assert_int_equal(meta_mknod(m, &root_ctx, 1, "d", INODE_FILE, 0, 0, 0, "", &x, &a), -EIO);
	assert_int_equal(raw_int("DBSIZE"), 0); /* no stray key: a load would refuse them */
	close_meta(m);
}

static void another_volume_in_the_same_database_is_left_alone(void **state)
{
	struct meta_conf conf = test_conf();
	struct meta *m;
	struct attr a;
	uint64_t x;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	conf.heartbeat_us = 100000;
	m = open_redis_conf(&conf, NULL);
	told = 0;
	meta_set_changed(m, on_changed, NULL);
	fresh_volume(0); /* destroyed and formatted again under the same name */
	for (int i = 0; i < 500 && __atomic_load_n(&told, __ATOMIC_ACQUIRE) != 2; i++)
		usleep(10000);
	assert_int_equal(told, 2);
	assert_int_equal(meta_mknod(m, &root_ctx, 1, "d", INODE_FILE, 0, 0, 0, "", &x, &a), -EIO);
	close_meta(m);
	assert_int_equal(raw_int("EXISTS allSessions sessionInfos _ops _gen nextinode"), 0);
}

static void a_changed_setting_counts_from_the_next_heartbeat_on(void **state)
{
	struct meta_conf conf = test_conf();
	const struct setting *first;
	struct meta *m;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	conf.heartbeat_us = 50000;
	m = open_redis_conf(&conf, NULL);
	first = meta_setting(m);
	assert_int_equal(first->trash_days, 0);
	make(m, "a", INODE_FILE);
	raw_run("EVAL "
		"return\tredis.call('SET','setting',(string.gsub(redis.call('GET','setting'),"
		"'\"TrashDays\":.0','\"TrashDays\":2'))) 0");
	for (int i = 0; i < 500 && meta_setting(m)->trash_days == 0; i++)
		usleep(10000);
	assert_int_equal(meta_setting(m)->trash_days, 2);
	assert_int_equal(first->trash_days, 0); /* pointers handed out stay good */
	raw_run("SETNX i9223372032828243968 x");
	assert_int_equal(meta_unlink(m, &root_ctx, 1, "a"), 0);
	assert_int_equal(raw_int("HLEN d9223372032828243969"), 1);
	close_meta(m);
}

static void sessions_are_told_as_json(void **state)
{
	struct str out = STR_INIT;
	struct meta *m;
	json_t *list, *o;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(NULL);
	raw_run("ZADD allSessions 2000000000 77"); /* one without information */
	assert_int_equal(meta_sessions_json(raw, soon(), &out), 0);
	list = json_loads(str_c(&out), 0, NULL);
	assert_int_equal(json_array_size(list), 2);
	o = json_array_get(list, 0);
	assert_int_equal(json_integer_value(json_object_get(o, "Sid")), 1);
	assert_string_equal(json_string_value(json_object_get(o, "MountPoint")), "/mnt/test");
	assert_int_equal(
		strncmp(json_string_value(json_object_get(o, "Version")), "1.5.0-stoke", 11), 0);
	assert_int_equal(json_integer_value(json_object_get(o, "ProcessID")), getpid());
	/* RFC 3339 with nanoseconds, or JuiceFS drops the session */
	assert_int_equal(strlen(json_string_value(json_object_get(o, "MountTime"))), 30);
	assert_int_equal(json_integer_value(json_object_get(json_array_get(list, 1), "Sid")), 77);
	json_decref(list);
	str_fini(&out);
	close_meta(m);
}

static void a_new_setting_ends_writing_by_name(void **state)
{
	struct meta_conf conf = test_conf();
	struct str err = STR_INIT, text = STR_INIT;
	struct redis_reply *reply = NULL;
	struct meta *m = NULL;
	const char *old;
	struct attr a;
	uint64_t x;
	size_t n;
	int r = 0;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	conf.heartbeat_us = 100000;
	m = open_redis_conf(&conf, NULL);
	/* a compression that nobody has */
	assert_int_equal(redis_once(raw, soon(), &reply, "GET setting"), 0);
	old = strstr(redis_reply_str(reply, &n), "\"none\"");
	assert_non_null(old);
	str_addn(&text, redis_reply_str(reply, &n), (size_t)(old - redis_reply_str(reply, &n)));
	str_addf(&text, "\"newest\"%s", old + strlen("\"none\""));
	redis_reply_free(reply);
	assert_int_equal(redis_once(raw, soon(), &reply, "SET setting %s", str_c(&text)), 0);
	redis_reply_free(reply);
	for (int i = 0; i < 500 && r != -EROFS; i++) {
		r = meta_mknod(m, &root_ctx, 1, "d", INODE_FILE, 0, 0, 0, "", &x, &a);
		usleep(10000);
	}
	assert_int_equal(r, -EROFS);
	assert_int_equal(meta_getattr(m, 1, &a), 0);
	close_meta(m);
	m = NULL;
	assert_int_equal(meta_redis_new(server.url, &conf, &m, &err), -EOPNOTSUPP);
	assert_non_null(strstr(str_c(&err), "compression newest"));
	str_fini(&text);
	str_fini(&err);
}

static void a_read_only_engine_has_no_session(void **state)
{
	struct meta_conf conf = test_conf();
	struct meta *m;
	struct attr a;
	uint64_t x;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	conf.read_only = true;
	m = open_redis_conf(&conf, NULL);
	assert_int_equal(meta_session_id(m), 0);
	assert_int_equal(meta_mknod(m, &root_ctx, 1, "q", INODE_FILE, 0, 0, 0, "", &x, &a), -EROFS);
	assert_int_equal(meta_getattr(m, 1, &a), 0);
	close_meta(m);
}

static void a_reader_of_a_volume_without_generation_uses_no_group(void **state)
{
	struct meta_conf conf = test_conf();
	struct meta *m;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	conf.read_only = true;
	m = open_redis_conf(&conf, NULL);
	assert_false(meta_has_generation(m));
	assert_int_equal(raw_int("EXISTS _gen nextsession allSessions"), 0);
	close_meta(m);
}

static void a_file_open_here_lives_until_its_last_close(void **state)
{
	struct slice s = {.size = 10, .len = 10};
	struct deleted d = {0};
	struct chunk_list l;
	struct meta *m;
	struct attr a;
	uint64_t inode;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(&d);
	inode = make(m, "f", INODE_FILE);
	assert_int_equal(meta_open(m, &root_ctx, inode, O_RDWR, &l), 0);
	chunk_list_fini(&l);
	assert_int_equal(meta_new_slice(m, &s.id, &(struct hash128){{0}}), 0);
	assert_int_equal(meta_write(m, inode, 0, &s, time_of(1, 1), &a), 0);
	assert_int_equal(meta_unlink(m, &root_ctx, 1, "f"), 0);
	assert_int_equal(raw_int("SISMEMBER session1 2"), 1);
	assert_int_equal(meta_getattr(m, inode, &a), 0);
	assert_int_equal(a.nlink, 0);
	/* it gets a name again, and loses it */
	assert_int_equal(meta_link(m, &root_ctx, inode, 1, "g", &a), 0);
	assert_int_equal(a.nlink, 1);
	assert_int_equal(a.parent, 1);
	assert_int_equal(raw_int("EXISTS session1 p2"), 0);
	assert_int_equal(meta_unlink(m, &root_ctx, 1, "g"), 0);
	assert_int_equal(meta_truncate(m, &root_ctx, inode, 5, true, &a), 0);
	assert_int_equal(meta_close(m, inode), 0);
	assert_int_equal(meta_getattr(m, inode, &a), -ENOENT);
	meta_stop(m);
	assert_int_equal(d.n, 1);
	assert_int_equal(raw_int("EXISTS session1 i2 c2_0 delfiles sliceRef"), 0);
	assert_int_equal(raw_int("GET usedSpace"), 0);
	meta_free(m);
}

static void a_lapsed_sessions_locks_and_unlinked_files_are_given_up(void **state)
{
	struct meta_conf conf = test_conf();
	struct deleted d = {0};
	struct slice s = {.size = 10, .len = 10};
	struct meta *dead, *m;
	struct chunk_list l;
	struct attr a;
	uint64_t inode;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	dead = open_redis(NULL);
	inode = make(dead, "f", INODE_FILE);
	assert_int_equal(meta_open(dead, &root_ctx, inode, O_RDWR, &l), 0);
	chunk_list_fini(&l);
	assert_int_equal(meta_new_slice(dead, &s.id, &(struct hash128){{0}}), 0);
	assert_int_equal(meta_write(dead, inode, 0, &s, time_of(1, 1), &a), 0);
	assert_int_equal(meta_unlink(dead, &root_ctx, 1, "f"), 0);
	raw_run("HSET lockf9 1_00000000000000AB W 2_00000000000000AB R 11_00000000000000AB R");
	raw_run("SADD locked1 lockf9 lockp9");
	raw_run("ZADD allSessions 1000 1");
	conf.heartbeat_us = 50000;
	m = open_redis_conf(&conf, &d);
	for (int i = 0; i < 500 && raw_int("HEXISTS sessionInfos 1"); i++)
		usleep(10000);
	assert_int_equal(raw_int("EXISTS session1 locked1 i2"), 0);
	assert_int_equal(raw_int("HLEN lockf9"), 2); /* those of 2 and 11 */
	assert_int_equal(raw_int("ZCARD allSessions"), 1);
	assert_int_equal(raw_int("GET totalInodes"), 0);
	close_meta(m);
	assert_int_equal(d.n, 1);
	assert_int_equal(raw_int("EXISTS c2_0 delfiles sliceRef"), 0);
	close_meta(dead);
}

static void data_of_files_deleted_long_ago_is_deleted(void **state)
{
	struct deleted d = {0};
	struct meta *m;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(&d);
	/* a list of one slice (id 5, size 10) of an inode that is gone; a file that may still be at
	 * work; an old client's member */
	raw_run("EVAL return\tredis.call('RPUSH','c9_0',string.rep('\\0',11)..'\\5\\0\\0\\0\\10'.."
		"string.rep('\\0',7)..'\\10') 0");
	/* and a slice that nobody refers to any more, one that two refer to */
	raw_run("HSET sliceRef k6_20 -1 k7_20 1");
	raw_run("ZADD delfiles 1000 9:10 99999999999 10:10 1000 11");
	files_clean(redis_engine(m), 3600, soon());
	files_clean(redis_engine(m), 3600, soon()); /* once an hour */
	for (int i = 0; i < 500 && __atomic_load_n(&d.n, __ATOMIC_RELAXED) < 2; i++)
		usleep(10000);
	meta_stop(m);
	assert_int_equal(raw_int("ZCARD delfiles"), 2);
	assert_int_equal(raw_int("EXISTS c9_0"), 0);
	assert_int_equal(raw_int("HLEN sliceRef"), 1);
	assert_true(d.n >= 2); /* both jobs may have met the same slice */
	meta_free(m);
}

/* --- lost answers --- */

enum { WORKERS = 4, FILES = 152 };

struct worker {
	struct meta *m;
	int id, errors;
	pthread_t thread;
};

/* a whiteout is made and thrown away; the directory gets a rule of its own */
static void whiteout_and_rule(struct worker *w, int i, const char *dir, const char *name)
{
	struct acl_entry e = {(uint32_t)(w->id * FILES + i), 6};
	struct acl rule = {
		.owner = 7, .group = 5, .mask = 7, .other = 0, .n_users = 1, .users = &e};
	struct attr a;
	uint64_t x;

	w->errors += meta_rename(w->m, &root_ctx, 1, dir, 1, name, RENAME_F_WHITEOUT, &x, &a) != 0;
	w->errors += meta_unlink(w->m, &root_ctx, 1, dir) != 0;
	w->errors += meta_setfacl(w->m, &root_ctx, x, ACL_ACCESS, &rule, &a) != 0;
	w->errors += meta_rename(w->m, &root_ctx, 1, name, 1, dir, 0, &x, &a) != 0;
}

static void unnamed_and_named(struct worker *w, const char *name)
{
	struct attr a;
	uint64_t x;

	w->errors += meta_tmpfile(w->m, &root_ctx, 1, 0644, 0, &x, &a) != 0;
	w->errors += meta_link(w->m, &root_ctx, x, 1, name, &a) != 0;
	w->errors += a.nlink != 1;
	w->errors += meta_unlink(w->m, &root_ctx, 1, name) != 0;
}

static void *worker_main(void *arg)
{
	struct worker *w = arg;
	char name[32], other[32];
	struct attr a;
	uint64_t x;

	for (int i = 0; i < FILES; i++) {
		snprintf(name, sizeof(name), "w%d-%d", w->id, i);
		snprintf(other, sizeof(other), "x%d-%d", w->id, i);
		w->errors += meta_mknod(w->m, &root_ctx, 1, name, i % 2 ? INODE_FILE : INODE_DIR,
					0755, 0, 0, "", &x, &a) != 0;
		w->errors += meta_rename(w->m, &root_ctx, 1, name, 1, other, 0, &x, &a) != 0;
		if (i % 2)
			w->errors += meta_unlink(w->m, &root_ctx, 1, other) != 0;
		if (i % 4 == 0)
			whiteout_and_rule(w, i, other, name);
		if (i % 4 == 1)
			unnamed_and_named(w, name);
	}
	return NULL;
}

/* F13: every connection is cut again and again; nothing is done twice (EEXIST, ENOENT), nothing is
 * left out */
static void operations_whose_answers_are_lost_are_done_once(void **state)
{
	struct worker w[WORKERS];
	struct meta *m;
	struct attr a;
	int cuts = 0;

	(void)state;
	NEED_SERVER();
	acl_volume();
	m = open_redis(NULL);
	for (int i = 0; i < WORKERS; i++) {
		w[i] = (struct worker){.m = m, .id = i};
		assert_int_equal(pthread_create(&w[i].thread, NULL, worker_main, &w[i]), 0);
	}
	for (int i = 0; i < WORKERS;) {
		raw_run("CLIENT KILL TYPE normal SKIPME yes");
		cuts++;
		usleep(3000);
		if (pthread_tryjoin_np(w[i].thread, NULL) == 0)
			i++;
	}
	for (int i = 0; i < WORKERS; i++)
		assert_int_equal(w[i].errors, 0);
	assert_true(cuts > 10);
	/* directories stay, files are in the trash, with its one directory of the hour (or two) */
	assert_int_equal(raw_int("HLEN d1"), WORKERS * FILES / 2);
	assert_int_equal(meta_getattr(m, 1, &a), 0);
	assert_int_equal(a.nlink, 2 + WORKERS * FILES / 2);
	assert_int_equal(raw_int("GET totalInodes"),
			 WORKERS * FILES * 3 / 2 + raw_int("GET nextTrash"));
	assert_int_equal(raw_int("HLEN acl"), WORKERS * FILES / 4);
	assert_int_equal(raw_int("GET aclMaxId"), WORKERS * FILES / 4);
	assert_int_equal(raw_int("EXISTS session1"), 0);
	assert_int_equal(raw_int("GET usedSpace"), 4096 * raw_int("GET totalInodes"));
	close_meta(m);
	assert_int_equal(raw_int("HGET dirUsedInodes 1"), WORKERS * FILES / 2);
}

static void a_server_that_does_not_answer_is_eio_after_the_timeout(void **state)
{
	struct meta_conf conf = test_conf();
	uint64_t begin, took;
	struct meta *m;
	struct attr a;
	uint64_t x;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	conf.timeout_us = 300000;
	m = open_redis_conf(&conf, NULL);
	kill(server.pid, SIGSTOP);
	begin = clock_us();
	assert_int_equal(meta_getattr(m, 1, &a), -EIO);
	assert_int_equal(meta_mknod(m, &root_ctx, 1, "d", INODE_FILE, 0, 0, 0, "", &x, &a), -EIO);
	took = clock_us() - begin;
	kill(server.pid, SIGCONT);
	assert_in_range(took, 500000, 3000000);
	assert_int_equal(meta_getattr(m, 1, &a), 0);
	make(m, "d", INODE_FILE);
	close_meta(m);
}

static uint64_t vector_length(json_t *v, const char *field)
{
	return (uint64_t)json_integer_value(json_object_get(v, field));
}

/* each vector on a file whose chunks all have a list already, so that RPUSHX shows too */
static void truncations_are_the_vectors(void **state)
{
	struct meta *m;
	size_t i, k;
	json_t *v, *op;

	(void)state;
	NEED_SERVER();
	json_array_foreach(vectors("truncate_ops"), i, v)
	{
		uint64_t inode, old = vector_length(v, "old_length");
		json_t *ops = json_object_get(v, "chunk_ops");
		struct attr a;
		int64_t used;

		fresh_volume(0);
		m = open_redis(NULL);
		inode = make(m, "f", INODE_FILE);
		assert_int_equal(meta_truncate(m, &root_ctx, inode, old, false, &a), 0);
		raw_run("DEL c2_0 c2_1 c2_2 c2_3");
		json_array_foreach(ops, k, op)
		{
			char cmd[64];

			snprintf(cmd, sizeof(cmd), "RPUSH c2_%d %024d",
				 (int)vector_length(op, "chunk"), 0);
			raw_run(cmd);
		}
		used = raw_int("GET usedSpace");
		assert_int_equal(meta_truncate(m, &root_ctx, inode, vector_length(v, "new_length"),
					       false, &a),
				 0);
		assert_int_equal(raw_int("GET usedSpace") - used,
				 json_integer_value(json_object_get(v, "used_space_incrby")));
		json_array_foreach(ops, k, op)
		{
			uint8_t want[SLICE_LEN];
			struct redis_reply *r = NULL;
			size_t n;

			vector_hex(op, "hex", want, sizeof(want));
			assert_int_equal(redis_once(raw, soon(), &r, "LRANGE c2_%d 1 -1",
						    (int)vector_length(op, "chunk")),
					 0);
			assert_int_equal(redis_reply_len(r), 1);
			assert_memory_equal(redis_reply_str(redis_reply_at(r, 0), &n), want,
					    SLICE_LEN);
			redis_reply_free(r);
		}
		assert_int_equal(raw_int("EXISTS c2_0 c2_1 c2_2 c2_3"), json_array_size(ops));
		close_meta(m);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_script_asked_again_does_nothing_and_answers_the_same),
		cmocka_unit_test(inode_numbers_above_2_53_are_exact),
		cmocka_unit_test(lengths_up_to_2_57_are_exact),
		cmocka_unit_test(truncating_a_huge_sparse_file_puts_zeros_over_all_lists),
		cmocka_unit_test(a_limit_of_the_volume_is_enospc),
		cmocka_unit_test(formatting_twice_makes_one_volume),
		cmocka_unit_test(a_database_that_went_back_changes_the_volume_id),
		cmocka_unit_test(another_generation_makes_a_write_stale_once),
		cmocka_unit_test(a_volume_that_is_gone_takes_no_more_writes),
		cmocka_unit_test(another_volume_in_the_same_database_is_left_alone),
		cmocka_unit_test(a_changed_setting_counts_from_the_next_heartbeat_on),
		cmocka_unit_test(sessions_are_told_as_json),
		cmocka_unit_test(a_new_setting_ends_writing_by_name),
		cmocka_unit_test(a_read_only_engine_has_no_session),
		cmocka_unit_test(a_reader_of_a_volume_without_generation_uses_no_group),
		cmocka_unit_test(a_file_open_here_lives_until_its_last_close),
		cmocka_unit_test(a_lapsed_sessions_locks_and_unlinked_files_are_given_up),
		cmocka_unit_test(data_of_files_deleted_long_ago_is_deleted),
		cmocka_unit_test(operations_whose_answers_are_lost_are_done_once),
		cmocka_unit_test(a_server_that_does_not_answer_is_eio_after_the_timeout),
		cmocka_unit_test(truncations_are_the_vectors),
	};

	return cmocka_run_group_tests(tests, start_server, stop_server);
}
