/* SPDX-License-Identifier: Apache-2.0 */
/* A script that fails half-way leaves what it wrote. So every changing operation is tried on a
 * volume in which one thing is damaged, each thing in turn: a key of another type, a counter or a
 * field that is no number. Whoever fails must have changed nothing at all. */
#include <inttypes.h>

#include "tests/unit/meta/volume.h"

enum { KEYS_MAX = 64, FIELDS_MAX = 200 };

/* the volume that every try begins with: f in one slice of a big length, two links of l in two
 * directories, two files and two directories to replace, a directory with ACLs, files without a
 * name, one deleted */
struct world {
	struct meta *m;
	struct meta_redis *mr;
	uint64_t a, b, f, l, gone, opened, empty, ruled, unnamed;
	struct slice next;
};

static char *lua(const char *script)
{
	struct redis_reply *r = NULL;
	const char *p;
	char *s;
	size_t n;

	assert_int_equal(redis_once(raw, soon(), &r, "EVAL %s 0", script), 0);
	p = redis_reply_str(r, &n);
	s = p ? strdup(p) : NULL;
	redis_reply_free(r);
	return s;
}

/* everything there is, as one digest */
static char *dump(void)
{
	return lua("local k, t = redis.call('KEYS', '*'), {} table.sort(k)\n"
		   "for i, key in ipairs(k) do t[i] = key .. redis.call('DUMP', key) end\n"
		   "return redis.sha1hex(table.concat(t))");
}

static void save(void)
{
	free(lua("local t = {}\n"
		 "for i, key in ipairs(redis.call('KEYS', '*')) do\n"
		 "t[#t + 1] = key t[#t + 1] = redis.call('DUMP', key) end\n"
		 "redis.call('SELECT', 2) redis.call('FLUSHDB')\n"
		 "redis.call('HSET', 'saved', unpack(t)) redis.call('SELECT', 1)"));
}

static void restore(void)
{
	free(lua("redis.call('SELECT', 2)\n"
		 "local t = redis.call('HGETALL', 'saved')\n"
		 "redis.call('SELECT', 1) redis.call('FLUSHDB')\n"
		 "for i = 1, #t, 2 do redis.call('RESTORE', t[i], 0, t[i + 1]) end"));
}

static uint64_t make(struct meta *m, uint64_t parent, const char *name, uint8_t type)
{
	uint64_t inode;
	struct attr a;

	assert_int_equal(meta_mknod(m, &root_ctx, parent, name, type, 0755, 0, 0, "t", &inode, &a),
			 0);
	return inode;
}

static void world_start(struct world *w, unsigned trash_days, bool change_log)
{
	struct acl_entry e = {1000, 6};
	struct acl rule = {
		.owner = 7, .group = 5, .mask = 7, .other = 0, .n_users = 1, .users = &e};
	struct meta_conf conf = test_conf();
	struct slice s = {.size = 10, .len = 10};
	struct chunk_list l;
	struct attr a;
	char cmd[128];

	fresh_volume(trash_days);
	volume_enable("EnableACL");
	if (change_log)
		volume_enable("ChangeLog");
	conf.atime = ATIME_STRICT;
	conf.heartbeat_us = UINT64_C(600) * 1000000; /* nobody else writes */
	w->m = open_redis_conf(&conf, NULL);
	w->mr = redis_engine(w->m);
	w->a = make(w->m, 1, "a", INODE_DIR);
	w->b = make(w->m, 1, "b", INODE_DIR);
	w->empty = make(w->m, w->a, "empty", INODE_DIR);
	make(w->m, w->b, "other", INODE_DIR);
	w->f = make(w->m, 1, "f", INODE_FILE);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(meta_new_slice(w->m, &s.id, &(struct hash128){{0}}), 0);
		assert_int_equal(meta_write(w->m, w->f, (uint32_t)i, &s, time_of(1, 1), &a), 0);
	}
	make(w->m, 1, "g", INODE_FILE);
	w->l = make(w->m, w->a, "l", INODE_FILE);
	assert_int_equal(meta_link(w->m, &root_ctx, w->l, w->b, "l2", &a), 0);
	assert_int_equal(meta_setxattr(w->m, w->f, "user.x", "1", 1, 0), 0);
	w->ruled = make(w->m, 1, "ruled", INODE_DIR);
	assert_int_equal(meta_setfacl(w->m, &root_ctx, w->ruled, ACL_DEFAULT, &rule, &a), 0);
	assert_int_equal(meta_setfacl(w->m, &root_ctx, w->ruled, ACL_ACCESS, &rule, &a), 0);
	w->opened = make(w->m, 1, "opened", INODE_FILE);
	assert_int_equal(meta_open(w->m, &root_ctx, w->opened, O_RDWR, &l), 0);
	chunk_list_fini(&l);
	/* as a removal and a lapsed session leave them */
	w->gone = make(w->m, 1, "gone", INODE_FILE);
	snprintf(cmd, sizeof(cmd), "EVAL redis.call('COPY','c%" PRIu64 "_0','c99_0') 0", w->f);
	raw_run(cmd);
	snprintf(cmd, sizeof(cmd), "SADD session77 %" PRIu64, w->gone);
	raw_run(cmd);
	snprintf(cmd, sizeof(cmd), "HDEL d1 gone");
	raw_run(cmd);
	snprintf(cmd, sizeof(cmd),
		 "EVAL redis.call('SETRANGE','i%" PRIu64 "',47,string.rep('\\0',4)) 0", w->gone);
	raw_run(cmd);
	raw_run("ZADD delfiles 1000 99:10");
	raw_run("HSET sliceRef k1_10 0 k77_1 3");
	raw_run("ZADD allSessions 1000 77");
	raw_run("HSET sessionInfos 77 {}");
	raw_run("HSET _ops 77_0 x");
	raw_run("SADD locked77 lockf5");
	raw_run("HSET lockf5 77_01 W 78_01 R");
	raw_run("HSET dirQuotaUsedSpace 77 1");
	assert_int_equal(meta_tmpfile(w->m, &root_ctx, w->a, 0600, 0, &w->unnamed, &a), 0);
	if (trash_days) { /* the hour is there for most */
		make(w->m, 1, "thrown", INODE_FILE);
		assert_int_equal(meta_unlink(w->m, &root_ctx, 1, "thrown"), 0);
	}
	assert_int_equal(meta_new_slice(w->m, &w->next.id, &(struct hash128){{0}}), 0);
	w->next.size = w->next.len = 10;
	stat_flush(w->mr, soon());
	save();
}

/* --- operations --- */

typedef int op_fn(struct world *w);

static int do_mknod(struct world *w)
{
	struct attr a;
	uint64_t x;

	return meta_mknod(w->m, &root_ctx, 1, "new", INODE_FILE, 0644, 0, 0, "", &x, &a);
}

static int do_mkdir(struct world *w)
{
	struct attr a;
	uint64_t x;

	return meta_mknod(w->m, &root_ctx, 1, "new", INODE_DIR, 0755, 0, 0, "", &x, &a);
}

static int do_symlink(struct world *w)
{
	struct attr a;
	uint64_t x;

	return meta_mknod(w->m, &root_ctx, 1, "new", INODE_SYMLINK, 0777, 0, 0, "to", &x, &a);
}

static int do_link(struct world *w)
{
	struct attr a;

	return meta_link(w->m, &root_ctx, w->f, w->a, "f2", &a);
}

static int do_link_third(struct world *w)
{
	struct attr a;

	return meta_link(w->m, &root_ctx, w->l, w->a, "l3", &a);
}

static int do_unlink(struct world *w)
{
	return meta_unlink(w->m, &root_ctx, 1, "f");
}

static int do_unlink_one_of_two(struct world *w)
{
	return meta_unlink(w->m, &root_ctx, w->b, "l2");
}

static int do_unlink_open(struct world *w)
{
	return meta_unlink(w->m, &root_ctx, 1, "opened");
}

static int do_rmdir(struct world *w)
{
	return meta_rmdir(w->m, &root_ctx, w->a, "empty");
}

static int do_rename(struct world *w)
{
	struct attr a;
	uint64_t x;

	return meta_rename(w->m, &root_ctx, 1, "f", w->a, "f", 0, &x, &a);
}

static int do_rename_over(struct world *w)
{
	struct attr a;
	uint64_t x;

	return meta_rename(w->m, &root_ctx, 1, "f", 1, "g", 0, &x, &a);
}

static int do_rename_link_over_file(struct world *w)
{
	struct attr a;
	uint64_t x;

	return meta_rename(w->m, &root_ctx, w->a, "l", 1, "g", 0, &x, &a);
}

static int do_rename_over_link(struct world *w)
{
	struct attr a;
	uint64_t x;

	return meta_rename(w->m, &root_ctx, 1, "f", w->b, "l2", 0, &x, &a);
}

static int do_rename_dir_over(struct world *w)
{
	struct attr a;
	uint64_t x;

	return meta_rename(w->m, &root_ctx, w->a, "empty", w->b, "other", 0, &x, &a);
}

static int do_exchange(struct world *w)
{
	struct attr a;
	uint64_t x;

	return meta_rename(w->m, &root_ctx, 1, "f", w->b, "l2", RENAME_F_EXCHANGE, &x, &a);
}

static int do_setattr(struct world *w)
{
	struct attr want = {.mode = 0600}, a;

	return meta_setattr(w->m, &root_ctx, w->f, SET_MODE, &want, &a);
}

static int do_mknod_ruled(struct world *w)
{
	struct attr a;
	uint64_t x;

	return meta_mknod(w->m, &root_ctx, w->ruled, "new", INODE_FILE, 0644, 0, 0, "", &x, &a);
}

static int do_chmod_ruled(struct world *w)
{
	struct attr a, want = {.mode = 0711};

	return meta_setattr(w->m, &root_ctx, w->ruled, SET_MODE, &want, &a);
}

static int do_setfacl(struct world *w)
{
	struct acl_entry e = {1001, 6};
	struct acl rule = {
		.owner = 7, .group = 5, .mask = 7, .other = 0, .n_groups = 1, .groups = &e};
	struct attr a;

	return meta_setfacl(w->m, &root_ctx, w->f, ACL_ACCESS, &rule, &a);
}

static int do_tmpfile(struct world *w)
{
	struct attr a;
	uint64_t x;

	return meta_tmpfile(w->m, &root_ctx, w->ruled, 0644, 0, &x, &a);
}

static int do_link_unnamed(struct world *w)
{
	struct attr a;

	/* as this session's */
	assert_int_equal(w->m->session, 1);
	return meta_link(w->m, &root_ctx, w->unnamed, w->b, "named", &a);
}

static int do_whiteout(struct world *w)
{
	struct attr a;
	uint64_t x;

	return meta_rename(w->m, &root_ctx, 1, "f", w->b, "f", RENAME_F_WHITEOUT, &x, &a);
}

static int do_touch(struct world *w)
{
	struct attr a = {.mtime = {1, 0}, .parent = 1, .type = INODE_FILE};

	return meta_touch_atime(w->m, w->f, &a);
}

static int do_truncate(struct world *w)
{
	struct attr a;

	return meta_truncate(w->m, &root_ctx, w->f, 5, false, &a);
}

static int do_truncate_in_steps(struct world *w)
{
	struct attr a;

	return meta_truncate(w->m, &root_ctx, w->f, UINT64_C(1000) * CHUNK_SIZE, false, &a);
}

static int do_truncate_after_a_scan(struct world *w)
{
	struct attr a;

	return meta_truncate(w->m, &root_ctx, w->f, UINT64_C(20000) * CHUNK_SIZE, false, &a);
}

static int do_write(struct world *w)
{
	struct attr a;

	return meta_write(w->m, w->f, 0, &w->next, time_of(2, 2), &a);
}

static int do_setxattr(struct world *w)
{
	return meta_setxattr(w->m, w->f, "user.y", "2", 1, 0);
}

static int do_removexattr(struct world *w)
{
	return meta_removexattr(w->m, w->f, "user.x");
}

static int do_last_close(struct world *w)
{
	return sustained_delete(w->mr, 77, "", w->gone);
}

static int run_args(struct world *w, enum script s, struct args *args)
{
	struct redis_reply *reply = NULL;
	int r = own_eval(w->mr, s, args, soon(), &reply);

	redis_reply_free(reply);
	return r;
}

static int do_delchunk(struct world *w)
{
	struct args args;
	int r;

	args_init(&args, w->mr);
	op_begin(w->mr, &args);
	args_u64(&args, 99);
	args_u64(&args, 0);
	r = run_args(w, SC_DELCHUNK, &args);
	op_end(w->mr, &args);
	return r;
}

static int do_dirstat(struct world *w)
{
	struct args args;
	int r;

	args_init(&args, w->mr);
	op_begin(w->mr, &args);
	args_u64(&args, w->a);
	for (int i = 0; i < 3; i++)
		args_u64(&args, 1);
	args_u64(&args, w->b);
	for (int i = 0; i < 3; i++)
		args_u64(&args, 1);
	r = run_args(w, SC_DIRSTAT, &args);
	op_end(w->mr, &args);
	return r;
}

static int do_dircount(struct world *w)
{
	struct args args;

	args_init(&args, w->mr);
	args_u64(&args, w->a);
	for (int i = 0; i < 3; i++)
		args_u64(&args, 7);
	args_now(&args);
	return run_args(w, SC_DIRCOUNT, &args);
}

static int do_heartbeat(struct world *w)
{
	struct mark k;
	int r = mark_take(w->mr, &k);

	return r ? r : generation_check(w->mr, &k, soon());
}

static int do_leave(struct world *w)
{
	return session_leave(w->mr, 77, "", soon());
}

static int do_leave_if_lapsed(struct world *w)
{
	return session_leave(w->mr, 77, "1000", soon());
}

static int do_sweep(struct world *w)
{
	struct args args;

	args_init(&args, w->mr);
	args_now(&args);
	args_u64(&args, 3600);
	args_text(&args, "77_0");
	args_text(&args, "78_1");
	return run_args(w, SC_SWEEP, &args);
}

static int do_gate(struct world *w)
{
	struct args args;

	args_init(&args, w->mr);
	args_text(&args, "lastCleanupSessions");
	args_u64(&args, 5000);
	args_u64(&args, 10);
	return run_args(w, SC_GATE, &args);
}

static int do_unlock(struct world *w)
{
	struct args args;

	args_init(&args, w->mr);
	args_u64(&args, 77);
	args_text(&args, "lockf5");
	args_text(&args, "1000");
	return run_args(w, SC_UNLOCK, &args);
}

static int do_sustain(struct world *w)
{
	struct args args;

	args_init(&args, w->mr);
	args_u64(&args, 77);
	args_u64(&args, w->gone);
	args_u64(&args, w->f);
	return run_args(w, SC_SUSTAIN, &args);
}

static int do_flock(struct world *w)
{
	return meta_flock(w->m, w->f, 5, F_WRLCK);
}

static int do_setlk(struct world *w)
{
	const struct meta_lock l = {F_WRLCK, 1, 10, 20};

	return meta_setlk(w->m, w->f, 5, &l);
}

static int do_quota_set(struct world *w)
{
	const struct quota q = {.kind = QUOTA_DIR, .id = w->a, .max_space = 7, .max_inodes = 8};

	return meta_quota_set(w->m, &q);
}

static int do_quota_flush(struct world *w)
{
	struct args args;
	int r;

	args_init(&args, w->mr);
	op_begin(w->mr, &args);
	args_text(&args, "user");
	args_u64(&args, 5);
	args_text(&args, "4096");
	args_text(&args, "1");
	r = run_args(w, SC_QUOTAFLUSH, &args);
	op_end(w->mr, &args);
	return r;
}

static int do_counter(struct world *w)
{
	struct args args;

	args_init(&args, w->mr);
	args_text(&args, "nextinode");
	args_u64(&args, 10);
	args_now(&args);
	return run_args(w, SC_COUNTER, &args);
}

static const struct {
	const char *name;
	op_fn *fn;
	unsigned least; /* so many damages make it fail */
} ops[] = {
	{"mknod", do_mknod, 4},
	{"mkdir", do_mkdir, 7},
	{"symlink", do_symlink, 4},
	{"link", do_link, 3},
	{"link_third", do_link_third, 4},
	{"unlink", do_unlink, 3},
	{"unlink_one_of_two", do_unlink_one_of_two, 3},
	{"unlink_open", do_unlink_open, 3},
	{"rmdir", do_rmdir, 6},
	{"rename", do_rename, 3},
	{"rename_over", do_rename_over, 3},
	{"rename_link_over_file", do_rename_link_over_file, 4},
	{"rename_over_link", do_rename_over_link, 4},
	{"rename_dir_over", do_rename_dir_over, 6},
	{"exchange", do_exchange, 4},
	{"setattr", do_setattr, 2},
	{"mknod_ruled", do_mknod_ruled, 8},
	{"chmod_ruled", do_chmod_ruled, 6},
	{"setfacl", do_setfacl, 5},
	{"tmpfile", do_tmpfile, 5},
	{"link_unnamed", do_link_unnamed, 4},
	{"whiteout", do_whiteout, 5},
	{"touch", do_touch, 2},
	{"truncate", do_truncate, 5},
	{"truncate_in_steps", do_truncate_in_steps, 7},
	{"truncate_after_a_scan", do_truncate_after_a_scan, 7},
	{"write", do_write, 4},
	{"setxattr", do_setxattr, 2},
	{"removexattr", do_removexattr, 2},
	{"last_close", do_last_close, 5},
	{"delchunk", do_delchunk, 3},
	{"dirstat", do_dirstat, 6},
	{"dircount", do_dircount, 3},
	{"heartbeat", do_heartbeat, 2},
	{"leave", do_leave, 3},
	{"leave_if_lapsed", do_leave_if_lapsed, 3},
	{"sweep", do_sweep, 2},
	{"gate", do_gate, 0},
	{"unlock", do_unlock, 1},
	{"sustain", do_sustain, 1},
	{"counter", do_counter, 2},
	{"flock", do_flock, 2},
	{"setlk", do_setlk, 2},
	{"quota_set", do_quota_set, 4},
	{"quota_flush", do_quota_flush, 3},
};

/* --- damages --- */

/* each is a command; what tells one volume from another stays whole, and nextchunk a number: that
 * it is none heals itself, by a new generation */
static size_t damages(char *ret[], size_t max)
{
	char *all = lua("local r = {}\n"
			"for i, k in ipairs(redis.call('KEYS', '*')) do\n"
			"local t = redis.call('TYPE', k).ok\n"
			"if k ~= 'setting' and k ~= '_gen' then\n"
			"r[#r + 1] = 'type ' .. k\n"
			"if t == 'string' and k ~= 'nextchunk' then r[#r + 1] = 'text ' .. k\n"
			"r[#r + 1] = 'full ' .. k end\n"
			"if t == 'hash' and k ~= 'sessionInfos' and k ~= '_acl' then\n"
			"for j, f in ipairs(redis.call('HKEYS', k)) do r[#r + 1] = 'field ' .. k "
			".. ' ' .. f\n"
			"end end end end\n"
			/* keys that an operation may be the first to make */
			"for i, k in ipairs({ 'nextTrash', 'delfiles', 'session1', 'p6', "
			"'sliceRef', 'x6',\n"
			"'dirQuota', 'lastCleanupSessions', 'd9223372032828243969',\n"
			"'d9223372032828243968', 'nextinode', 'c6_500', 'lockf6', 'lockp6',\n"
			"'locked1', '_quotas', 'dirQuotaUsedSpace', 'userQuota',\n"
			"'userQuotaUsedInodes' }) do\n"
			"if redis.call('EXISTS', k) == 0 then r[#r + 1] = 'type ' .. k end end\n"
			"table.sort(r)\n"
			"return table.concat(r, '\\n')");
	char *save_p = NULL;
	size_t n = 0;

	for (char *p = strtok_r(all, "\n", &save_p); p; p = strtok_r(NULL, "\n", &save_p)) {
		assert_true(n < max);
		ret[n++] = strdup(p);
	}
	free(all);
	return n;
}

static void damage(const char *what)
{
	char kind[16] = "", key[64] = "", field[64] = "", script[512];
	int n = sscanf(what, "%15s %63s %63s", kind, key, field);

	assert_true(n >= 2);
	if (!strcmp(kind, "type"))
		snprintf(script, sizeof(script),
			 "local t = redis.call('TYPE', '%s').ok redis.call('DEL', '%s')\n"
			 "if t == 'list' then redis.call('HSET', '%s', 'a', 'b')\n"
			 "else redis.call('RPUSH', '%s', 'x') end",
			 key, key, key, key);
	else if (!strcmp(kind, "text"))
		snprintf(script, sizeof(script), "redis.call('SET', '%s', 'abc')", key);
	else if (!strcmp(kind, "full"))
		snprintf(script, sizeof(script), "redis.call('SET', '%s', '9223372036854775807')",
			 key);
	else
		snprintf(script, sizeof(script), "redis.call('HSET', '%s', '%s', 'abc')", key,
			 field);
	free(lua(script));
}

static void try_all(unsigned trash_days, bool new_hour, bool change_log)
{
	char *what[FIELDS_MAX];
	struct world w = {0};
	size_t n;

	world_start(&w, trash_days, change_log);
	if (new_hour) {
		raw_run("DEL d9223372032828243968 nextTrash");
		save();
	}
	n = damages(what, ARRAY_LEN(what));
	for (size_t o = 0; o < ARRAY_LEN(ops); o++) {
		unsigned failed = 0;
		int r;

		restore();
		r = ops[o].fn(&w);
		if (r)
			fail_msg("%s on a whole volume: %d", ops[o].name, r);
		for (size_t i = 0; i < n; i++) {
			char *before, *after;

			restore();
			stat_flush(w.mr, soon()); /* of the last one, before anything is damaged */
			restore();
			damage(what[i]);
			before = dump();
			r = ops[o].fn(&w);
			after = dump();
			failed += r != 0;
			if (r && strcmp(before, after) != 0)
				fail_msg("%s failed (%d) with damage \"%s\" and changed something",
					 ops[o].name, r, what[i]);
			free(before);
			free(after);
		}
		if (failed < ops[o].least)
			fail_msg("%s: only %u of %zu damages made it fail", ops[o].name, failed, n);
	}
	for (size_t i = 0; i < n; i++)
		free(what[i]);
	restore();
	close_meta(w.m);
}

static void who_fails_changed_nothing(void **state)
{
	(void)state;
	NEED_SERVER();
	try_all(0, false, false);
}

static void who_fails_to_throw_away_changed_nothing(void **state)
{
	(void)state;
	NEED_SERVER();
	try_all(1, false, true);
}

static void who_fails_to_make_the_hours_trash_changed_nothing(void **state)
{
	(void)state;
	NEED_SERVER();
	try_all(1, true, false);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(who_fails_changed_nothing),
		cmocka_unit_test(who_fails_to_throw_away_changed_nothing),
		cmocka_unit_test(who_fails_to_make_the_hours_trash_changed_nothing),
	};

	return cmocka_run_group_tests(tests, start_server, stop_server);
}
