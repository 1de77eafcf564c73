/* SPDX-License-Identifier: Apache-2.0 */
/* Names and attributes over Redis: what lies in the database afterwards, who may do what, the root
 * of a sub-directory, the change log. */
#include "tests/unit/meta/volume.h"

static uint64_t make(struct meta *m, const char *name, uint8_t type)
{
	return make_mode(m, &root_ctx, INODE_ROOT, name, type, 0755);
}

static void a_file_without_a_name_is_linked_or_gone(void **state)
{
	struct deleted d = {0};
	struct chunk_list l;
	uint64_t f, g;
	struct meta *m;
	struct attr a;

	(void)state;
	NEED_SERVER();
	fresh_volume(1);
	m = open_redis(&d);
	assert_int_equal(meta_tmpfile(m, &root_ctx, INODE_ROOT, 0644, 022, &f, &a), 0);
	assert_int_equal(a.nlink, 0);
	assert_int_equal(a.parent, INODE_ROOT);
	assert_int_equal(raw_of("SISMEMBER session1 ", f), 1);
	assert_int_equal(raw_int("EXISTS d1"), 0);
	assert_int_equal(raw_int("GET usedSpace"), 4096);
	assert_int_equal(meta_open(m, &root_ctx, f, O_RDWR, &l), 0);
	chunk_list_fini(&l);
	assert_int_equal(meta_link(m, &root_ctx, f, INODE_ROOT, "named", &a), 0);
	assert_int_equal(a.nlink, 1);
	assert_int_equal(a.parent, INODE_ROOT);
	assert_int_equal(raw_of("EXISTS p", f), 0);
	assert_int_equal(raw_int("EXISTS session1"), 0);
	assert_int_equal(meta_close(m, f), 0);
	assert_int_equal(attr_of(m, f).nlink, 1);

	assert_int_equal(meta_tmpfile(m, &root_ctx, INODE_ROOT, 0644, 022, &g, &a), 0);
	assert_int_equal(meta_open(m, &root_ctx, g, O_RDWR, &l), 0);
	chunk_list_fini(&l);
	assert_int_equal(meta_close(m, g), 0);
	assert_int_equal(meta_getattr(m, g, &a), -ENOENT);
	assert_int_equal(raw_int("GET totalInodes"), 1);
	/* never opened: gone with the session */
	assert_int_equal(meta_tmpfile(m, &root_ctx, INODE_ROOT, 0644, 022, &g, &a), 0);
	close_meta(m);
	assert_int_equal(raw_int("GET totalInodes"), 1);
	assert_int_equal(raw_of("EXISTS i", g), 0);
}

static void a_whiteout_is_left_where_a_name_went(void **state)
{
	uint64_t f, dir, g;
	struct meta *m;
	struct attr a;

	(void)state;
	NEED_SERVER();
	fresh_volume(1);
	m = open_redis(NULL);
	dir = make_mode(m, &user_ctx, INODE_ROOT, "dir", INODE_DIR, 0777);
	f = make(m, "f", INODE_FILE);
	assert_int_equal(meta_rename(m, &user_ctx, INODE_ROOT, "f", dir, "g",
				     RENAME_F_WHITEOUT | RENAME_F_NOREPLACE, &g, &a),
			 0);
	assert_int_equal(g, f);
	assert_int_equal(meta_lookup(m, &root_ctx, dir, "g", &g, &a), 0);
	assert_int_equal(g, f);
	assert_int_equal(meta_lookup(m, &root_ctx, INODE_ROOT, "f", &g, &a), 0);
	assert_int_equal(a.type, INODE_CHAR);
	assert_int_equal(a.rdev, 0);
	assert_int_equal(a.mode, 0);
	assert_int_equal(a.uid, 1000);
	assert_int_equal(a.gid, 1000);
	assert_int_equal(a.nlink, 1);
	assert_int_equal(a.parent, INODE_ROOT);
	assert_int_equal(raw_int("HLEN d1"), 2);
	assert_int_equal(raw_int("GET totalInodes"), 3);
	assert_int_equal(raw_int("GET usedSpace"), 3 * 4096);
	assert_int_equal(meta_rename(m, &root_ctx, dir, "g", dir, "h",
				     RENAME_F_WHITEOUT | RENAME_F_EXCHANGE, &g, &a),
			 -EINVAL);
	/* a number that is taken is given up for others */
	raw_run("COPY i1 i5");
	assert_int_equal(meta_rename(m, &root_ctx, dir, "g", dir, "h", RENAME_F_WHITEOUT, &g, &a),
			 0);
	assert_int_equal(meta_lookup(m, &root_ctx, dir, "g", &g, &a), 0);
	assert_true(g > 1024);
	raw_run("DEL i5");
	meta_stop(m);
	assert_int_equal(raw_int("HGET dirUsedInodes 1"), 2);
	assert_int_equal(raw_int("HGET dirUsedSpace 1"), 2 * 4096);
	assert_int_equal(raw_of("HGET dirUsedInodes ", dir), 2);
	meta_free(m);
}

static void a_whiteout_is_counted_to_the_group_it_has(void **state)
{
	struct attr a, want = {.gid = 2000, .mode = 02777};
	struct meta *m;
	uint64_t d, f;

	(void)state;
	NEED_SERVER();
	fresh_volume(1);
	volume_enable("UserGroupQuota");
	m = open_redis(NULL);
	d = make(m, "d", INODE_DIR);
	assert_int_equal(meta_setattr(m, &root_ctx, d, SET_GID, &want, &a), 0);
	assert_int_equal(meta_setattr(m, &root_ctx, d, SET_MODE, &want, &a), 0);
	make_mode(m, &user_ctx, d, "f", INODE_FILE, 0644);
	assert_int_equal(meta_rename(m, &user_ctx, d, "f", d, "g", RENAME_F_WHITEOUT, &f, &a), 0);
	assert_int_equal(meta_lookup(m, &root_ctx, d, "f", &f, &a), 0);
	assert_int_equal(a.gid, 2000);
	close_meta(m);
	assert_int_equal(raw_int("HGET groupQuotaUsedInodes 2000"), 3);
	assert_int_equal(raw_int("HGET groupQuotaUsedInodes 1000"), 0);
	assert_int_equal(raw_int("HGET userQuotaUsedInodes 1000"), 2);
}

static void an_exchange_tells_the_other(void **state)
{
	uint64_t other = 0, d, f;
	struct meta_ctx c = {.ret_other = &other};
	struct meta *m;
	struct attr a;

	(void)state;
	NEED_SERVER();
	fresh_volume(1);
	m = open_redis(NULL);
	d = make(m, "d", INODE_DIR);
	f = make(m, "f", INODE_FILE);
	assert_int_equal(meta_rename(m, &c, 1, "f", 1, "g", 0, &f, &a), 0);
	assert_int_equal(other, 0);
	assert_int_equal(meta_rename(m, &c, 1, "g", 1, "d", RENAME_F_EXCHANGE, &f, &a), 0);
	assert_int_equal(other, d);
	close_meta(m);
}

static void root_restores_from_the_trash(void **state)
{
	struct meta_dir *d;
	uint64_t f, g;
	struct meta *m;
	struct attr a;
	char name[32];

	(void)state;
	NEED_SERVER();
	fresh_volume(1);
	m = open_redis(NULL);
	f = make_mode(m, &user_ctx, INODE_ROOT, "f", INODE_FILE, 0644);
	assert_int_equal(meta_unlink(m, &user_ctx, INODE_ROOT, "f"), 0);
	snprintf(name, sizeof(name), "1-%llu-f", (unsigned long long)f);
	assert_int_equal(meta_readdir(m, INODE_TRASH, false, &d), 0);
	assert_int_equal(d->n, 1);
	assert_int_equal(
		meta_rename(m, &user_ctx, d->entries[0].inode, name, INODE_ROOT, "f", 33, &g, &a),
		-EPERM);
	assert_int_equal(meta_rename(m, &root_ctx, INODE_ROOT, "f", INODE_ROOT, "g", 33, &g, &a),
			 -EPERM);
	assert_int_equal(
		meta_rename(m, &root_ctx, d->entries[0].inode, name, INODE_ROOT, "f", 33, &g, &a),
		0);
	assert_int_equal(a.parent, INODE_ROOT);
	meta_dir_free(d);
	close_meta(m);
}

static void times_before_1970_stay(void **state)
{
	struct attr a, want = {.atime = {-86400, 5}, .mtime = {-1, 999999999}};
	struct meta *m;
	uint64_t f;

	(void)state;
	NEED_SERVER();
	fresh_volume(1);
	m = open_redis(NULL);
	f = make(m, "f", INODE_FILE);
	assert_int_equal(meta_setattr(m, &root_ctx, f, SET_ATIME | SET_MTIME, &want, &a), 0);
	a = attr_of(m, f);
	assert_int_equal(a.atime.sec, -86400);
	assert_int_equal(a.atime.nsec, 5);
	assert_int_equal(a.mtime.sec, -1);
	assert_int_equal(a.mtime.nsec, 999999999);
	close_meta(m);
}

static void atime_moves_when_it_is_due(void **state)
{
	struct meta_conf conf = test_conf();
	struct attr a, want = {.atime = {1000, 0}, .mtime = {1000, 0}};
	struct meta *m;
	uint64_t f;

	(void)state;
	NEED_SERVER();
	fresh_volume(1);
	conf.atime = ATIME_RELATIVE;
	m = open_redis_conf(&conf, NULL);
	f = make(m, "f", INODE_FILE);
	assert_int_equal(meta_setattr(m, &root_ctx, f, SET_ATIME | SET_MTIME, &want, &a), 0);
	assert_int_equal(meta_touch_atime(m, f, &a), 0);
	assert_true(a.atime.sec > 1000 && a.mtime.sec == 1000);
	assert_int_equal(attr_of(m, f).atime.sec, a.atime.sec);
	/* newer than both others, and of today: nobody is asked */
	(void)raw_of("DEL i", f);
	assert_int_equal(meta_touch_atime(m, f, &a), 0);
	a.atime.sec -= 2 * 86400;
	assert_int_equal(meta_touch_atime(m, f, &a), -ENOENT);
	close_meta(m);
}

static void only_root_changes_what_chattr_protects(void **state)
{
	struct attr a, want = {.flags = ATTR_IMMUTABLE | 4, .mode = 0755, .uid = 1};
	struct meta *m;
	uint64_t f, d;
	char *p;
	size_t n;

	(void)state;
	NEED_SERVER();
	fresh_volume(1);
	m = open_redis(NULL);
	f = make_mode(m, &user_ctx, INODE_ROOT, "f", INODE_FILE, 06755);
	assert_int_equal(meta_setattr(m, &user_ctx, f, SET_FLAGS, &want, &a), -EPERM);
	assert_int_equal(meta_setattr(m, &root_ctx, f, SET_FLAGS, &want, &a), 0);
	assert_int_equal(a.flags, ATTR_IMMUTABLE); /* others than these three stay as they are */
	assert_int_equal(meta_setattr(m, &root_ctx, f, SET_MODE, &want, &a), -EPERM);
	assert_int_equal(meta_setattr(m, &root_ctx, f, SET_UID, &want, &a), -EPERM);
	assert_int_equal(meta_setattr(m, &root_ctx, f, SET_MTIME_NOW, &want, &a), -EPERM);
	assert_int_equal(meta_setxattr(m, f, "user.a", "1", 1, 0), -EPERM);
	assert_int_equal(meta_link(m, &root_ctx, f, INODE_ROOT, "g", &a), -EPERM);
	want.flags = ATTR_APPEND;
	assert_int_equal(meta_setattr(m, &root_ctx, f, SET_FLAGS, &want, &a), 0);
	assert_int_equal(meta_setattr(m, &root_ctx, f, SET_ATIME_NOW | SET_MTIME_NOW, &want, &a),
			 0);
	assert_int_equal(meta_setattr(m, &root_ctx, f, SET_MTIME_NOW, &want, &a), -EPERM);
	assert_int_equal(meta_setattr(m, &root_ctx, f, SET_MTIME, &want, &a), -EPERM);
	assert_int_equal(meta_setxattr(m, f, "user.a", "1", 1, 2), -EPERM);
	assert_int_equal(meta_setattr(m, &root_ctx, f, SET_MODE, &want, &a),
			 0); /* suid, sgid off */
	assert_int_equal(a.mode, 0755);
	want.mode = 0700;
	assert_int_equal(meta_setattr(m, &root_ctx, f, SET_MODE, &want, &a), -EPERM);
	assert_int_equal(meta_removexattr(m, f, "user.a"), -EPERM);
	/* the owner changes the third, and nothing of the two */
	want.flags = ATTR_APPEND | ATTR_SKIP_TRASH;
	assert_int_equal(meta_setattr(m, &user_ctx, f, SET_FLAGS, &want, &a), 0);
	assert_int_equal(meta_setattr(m, &other_ctx, f, SET_FLAGS, &want, &a), -EPERM);
	want.flags = 0;
	assert_int_equal(meta_setattr(m, &root_ctx, f, SET_FLAGS, &want, &a), 0);
	assert_int_equal(meta_getxattr(m, f, "user.a", &p, &n), -ENODATA);

	/* a directory that may only grow */
	d = make(m, "d", INODE_DIR);
	make_mode(m, &root_ctx, d, "f", INODE_FILE, 0644);
	want.flags = ATTR_APPEND;
	assert_int_equal(meta_setattr(m, &root_ctx, d, SET_FLAGS, &want, &a), 0);
	make_mode(m, &root_ctx, d, "g", INODE_FILE, 0644);
	assert_int_equal(meta_unlink(m, &root_ctx, d, "f"), -EPERM);
	assert_int_equal(meta_rename(m, &root_ctx, INODE_ROOT, "f", d, "f", 0, &f, &a), -EPERM);
	assert_int_equal(meta_rename(m, &root_ctx, INODE_ROOT, "f", d, "h", 0, &f, &a), 0);
	/* the protection comes before what else is wrong, as on other file systems */
	assert_int_equal(meta_rmdir(m, &root_ctx, INODE_ROOT, "d"), -EPERM);
	assert_int_equal(meta_rmdir(m, &root_ctx, d, "g"), -EPERM);
	close_meta(m);
}

static void a_change_to_the_same_is_a_change(void **state)
{
	struct attr a, want = {.mode = 0755, .mtime = {5, 0}};
	struct time_ns before;
	struct meta *m;
	uint64_t f;

	(void)state;
	NEED_SERVER();
	fresh_volume(1);
	m = open_redis(NULL);
	f = make(m, "f", INODE_FILE);
	assert_int_equal(meta_setattr(m, &root_ctx, f, SET_MTIME, &want, &a), 0);
	for (unsigned set = SET_MODE; set <= SET_MTIME; set *= 2) {
		before = a.ctime;
		if (set != 8)
			assert_int_equal(meta_setattr(m, &root_ctx, f, set, &want, &a), 0);
		assert_int_equal(set != 8,
				 a.ctime.sec != before.sec || a.ctime.nsec != before.nsec);
	}
	before = a.ctime;
	assert_int_equal(meta_setattr(m, &root_ctx, f, 0, &want, &a), 0);
	assert_true(a.ctime.sec == before.sec && a.ctime.nsec == before.nsec);
	close_meta(m);
}

static void an_open_file_in_the_trash_is_its_owners_still(void **state)
{
	struct attr a, want = {.mode = 0600};
	struct chunk_list l;
	struct meta *m;
	uint64_t f;

	(void)state;
	NEED_SERVER();
	fresh_volume(1);
	m = open_redis(NULL);
	f = make(m, "f", INODE_FILE);
	assert_int_equal(meta_open(m, &root_ctx, f, O_RDWR, &l), 0);
	chunk_list_fini(&l);
	assert_int_equal(meta_unlink(m, &root_ctx, INODE_ROOT, "f"), 0);
	assert_int_equal(meta_setattr(m, &root_ctx, f, SET_MODE, &want, &a), 0);
	assert_int_equal(a.mode, 0600);
	assert_int_equal(meta_close(m, f), 0);
	assert_int_equal(meta_setattr(m, &root_ctx, f, SET_MODE, &want, &a), -EPERM);
	close_meta(m);
}

static void a_file_without_data_waits_for_nobody(void **state)
{
	struct slice s = {.size = 100, .len = 100};
	struct deleted d = {0};
	struct chunk_list l;
	struct meta *m;
	struct attr a;
	uint64_t f;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(&d);
	make(m, "empty", INODE_FILE);
	f = make(m, "open", INODE_FILE);
	assert_int_equal(meta_open(m, &root_ctx, f, O_RDWR, &l), 0);
	chunk_list_fini(&l);
	raw_run("SET delfiles x"); /* whoever would write there stops */
	assert_int_equal(meta_unlink(m, &root_ctx, INODE_ROOT, "empty"), 0);
	raw_run("DEL delfiles");
	assert_int_equal(meta_unlink(m, &root_ctx, INODE_ROOT, "open"), 0);
	raw_run("SET delfiles x");
	assert_int_equal(meta_close(m, f), 0);
	raw_run("DEL delfiles");
	assert_int_equal(meta_getattr(m, f, &a), -ENOENT);
	/* cut to nothing: its slices are still there */
	f = make(m, "cut", INODE_FILE);
	assert_int_equal(meta_new_slice(m, &s.id, &(struct hash128){{0}}), 0);
	assert_int_equal(meta_write(m, f, 0, &s, time_of(1, 1), &a), 0);
	assert_int_equal(meta_truncate(m, &root_ctx, f, 0, false, &a), 0);
	assert_int_equal(meta_unlink(m, &root_ctx, INODE_ROOT, "cut"), 0);
	close_meta(m);
	assert_int_equal(d.n, 1);
	assert_int_equal(raw_int("ZCARD delfiles"), 0);
	assert_int_equal(raw_int("GET totalInodes"), 0);
}

static void links_have_a_limit(void **state)
{
	struct meta *m;
	struct attr a;
	uint64_t f;
	char cmd[64];

	(void)state;
	NEED_SERVER();
	fresh_volume(1);
	m = open_redis(NULL);
	f = make(m, "f", INODE_FILE);
	make(m, "d", INODE_DIR);
	raw_run("SET max x");
	for (int i = 0; i < 32; i++) {
		snprintf(cmd, sizeof(cmd), "SETBIT i%llu %d 1", (unsigned long long)f, 47 * 8 + i);
		raw_run(cmd);
		snprintf(cmd, sizeof(cmd), "SETBIT i1 %d 1", 47 * 8 + i);
		raw_run(cmd);
	}
	assert_int_equal(attr_of(m, f).nlink, UINT32_MAX);
	assert_int_equal(meta_link(m, &root_ctx, f, INODE_ROOT, "g", &a), -EMLINK);
	assert_int_equal(
		meta_mknod(m, &root_ctx, INODE_ROOT, "e", INODE_DIR, 0755, 0, 0, "", &f, &a),
		-EMLINK);
	close_meta(m);
}

/* who is not checked by the kernel */
static void permissions_are_checked_where_asked_for(void **state)
{
	static const uint32_t gids[] = {50};
	struct meta_ctx c = {.uid = 1000, .gid = 1000, .check = true, .gids = gids, .n_gids = 1};
	struct acl_entry e;
	struct acl rule = rule_for(&e, 5);
	struct attr a, want = {.mode = 02755, .uid = 1000, .gid = 50, .mtime = {5, 0}};
	uint64_t dir, f, g, x;
	struct chunk_list l;
	struct meta *m;

	(void)state;
	NEED_SERVER();
	acl_volume();
	m = open_redis(NULL);
	dir = make_mode(m, &root_ctx, INODE_ROOT, "dir", INODE_DIR, 0754);
	f = make_mode(m, &root_ctx, dir, "f", INODE_FILE, 0604);
	assert_int_equal(meta_lookup(m, &c, dir, "f", &x, &a), -EACCES);
	assert_int_equal(meta_mknod(m, &c, dir, "g", INODE_FILE, 0644, 0, 0, "", &x, &a), -EACCES);
	assert_int_equal(meta_unlink(m, &c, dir, "f"), -EACCES);
	assert_int_equal(meta_tmpfile(m, &c, dir, 0644, 0, &x, &a), -EACCES);
	assert_int_equal(meta_rename(m, &c, dir, "f", INODE_ROOT, "f", 0, &x, &a), -EACCES);
	assert_int_equal(meta_open(m, &c, f, O_RDONLY, &l), 0);
	chunk_list_fini(&l);
	assert_int_equal(meta_close(m, f), 0);
	assert_int_equal(meta_open(m, &c, f, O_RDWR, &l), -EACCES);
	assert_int_equal(meta_truncate(m, &c, f, 1, false, &a), -EACCES);
	assert_int_equal(meta_access(m, &c, dir, 1, NULL), -EACCES);
	/* the rule names him */
	assert_int_equal(meta_setfacl(m, &root_ctx, dir, ACL_ACCESS, &rule, &a), 0);
	assert_int_equal(meta_access(m, &c, dir, 5, NULL), 0);
	assert_int_equal(meta_access(m, &c, dir, 2, NULL), -EACCES);
	assert_int_equal(meta_lookup(m, &c, dir, "f", &x, &a), 0);
	/* root may all but run what nobody may */
	assert_int_equal(meta_access(m, &root_ctx, f, 6, NULL), 0);
	assert_int_equal(meta_access(m, &root_ctx, f, 1, NULL), -EACCES);
	assert_int_equal(meta_access(m, &root_ctx, dir, 7, NULL), 0);

	g = make_mode(m, &user_ctx, INODE_ROOT, "own", INODE_FILE, 0644);
	assert_int_equal(meta_setattr(m, &c, g, SET_UID, &(struct attr){.uid = 7}, &a), -EPERM);
	assert_int_equal(meta_setattr(m, &c, g, SET_GID, &(struct attr){.gid = 7}, &a), -EPERM);
	assert_int_equal(meta_setattr(m, &c, g, SET_GID, &want, &a), 0);
	assert_int_equal(meta_setattr(m, &c, g, SET_MODE, &want, &a), 0);
	assert_int_equal(a.mode, 02755);
	assert_int_equal(meta_setattr(m, &root_ctx, g, SET_GID, &(struct attr){.gid = 7}, &a), 0);
	assert_int_equal(meta_setattr(m, &c, g, SET_MODE, &want, &a), 0);
	assert_int_equal(a.mode, 0755); /* not a member any more */
	assert_int_equal(meta_setattr(m, &c, f, SET_MTIME_NOW, &want, &a), -EACCES);
	g = make_mode(m, &other_ctx, INODE_ROOT, "all", INODE_FILE, 0666);
	assert_int_equal(meta_setattr(m, &c, g, SET_MTIME_NOW, &want, &a), 0);
	assert_int_equal(meta_setattr(m, &c, g, SET_MTIME, &want, &a), -EPERM);
	close_meta(m);
}

static void a_sub_directory_is_the_root(void **state)
{
	struct meta_conf conf = test_conf();
	struct str err = STR_INIT;
	uint64_t x, d, real;
	struct meta_dir *list;
	struct meta *m, *all;
	struct attr a;

	(void)state;
	NEED_SERVER();
	fresh_volume(1);
	all = open_redis(NULL);
	conf.subdir = "/team//blue/";
	m = open_redis_conf(&conf, NULL);
	assert_int_equal(meta_lookup(all, &root_ctx, INODE_ROOT, "team", &x, &a), 0);
	assert_int_equal(a.mode, 0777);
	assert_int_equal(meta_lookup(all, &root_ctx, x, "blue", &real, &a), 0);
	assert_int_equal(a.mode, 0777);

	d = make(m, "d", INODE_DIR);
	assert_int_equal(attr_of(m, d).parent, INODE_ROOT);
	assert_int_equal(attr_of(all, d).parent, real);
	assert_int_equal(attr_of(m, INODE_ROOT).nlink, 3);
	assert_int_equal(attr_of(m, INODE_ROOT).parent, INODE_ROOT);
	assert_int_equal(attr_of(all, INODE_ROOT).nlink, 3);
	assert_int_equal(meta_lookup(m, &root_ctx, d, "..", &x, &a), 0);
	assert_int_equal(x, INODE_ROOT);
	assert_int_equal(meta_lookup(m, &root_ctx, INODE_ROOT, "..", &x, &a), 0);
	assert_int_equal(x, INODE_ROOT);
	assert_int_equal(a.nlink, 3);
	assert_int_equal(meta_lookup(m, &root_ctx, 0, "d", &x, &a), 0);
	assert_int_equal(x, d);
	/* its trash is the volume's, and not shown */
	assert_int_equal(meta_lookup(m, &root_ctx, INODE_ROOT, ".trash", &x, &a), -ENOENT);
	assert_int_equal(
		meta_mknod(m, &root_ctx, INODE_ROOT, ".trash", INODE_DIR, 0755, 0, 0, "", &x, &a),
		-EPERM);
	make_mode(m, &root_ctx, d, "f", INODE_FILE, 0644);
	assert_int_equal(meta_rename(m, &root_ctx, d, "f", INODE_ROOT, "f", 0, &x, &a), 0);
	assert_int_equal(a.parent, INODE_ROOT);
	assert_int_equal(attr_of(all, x).parent, real);
	assert_int_equal(meta_link(m, &root_ctx, INODE_ROOT, d, "r", &a), -EPERM);
	assert_int_equal(meta_readdir(m, INODE_ROOT, true, &list), 0);
	assert_int_equal(list->n, 2);
	for (size_t i = 0; i < list->n; i++)
		assert_int_equal(list->entries[i].attr.parent, INODE_ROOT);
	meta_dir_free(list);
	assert_int_equal(meta_unlink(m, &root_ctx, INODE_ROOT, "f"), 0);
	assert_int_equal(meta_rmdir(m, &root_ctx, INODE_ROOT, "d"), 0);
	assert_int_equal(raw_int("HLEN d9223372032828243969"), 2);
	close_meta(m);
	close_meta(all);

	make(all = open_redis(NULL), "file", INODE_FILE);
	close_meta(all);
	conf.subdir = "file";
	assert_int_equal(meta_redis_new(server.url, &conf, &m, &err), 0);
	assert_int_equal(meta_start(m, &err), -ENOTDIR);
	assert_non_null(strstr(str_c(&err), "--subdir"));
	close_meta(m);
	conf.subdir = "missing";
	conf.read_only = true;
	str_reset(&err);
	assert_int_equal(meta_redis_new(server.url, &conf, &m, &err), 0);
	assert_int_equal(meta_start(m, &err), -ENOENT);
	close_meta(m);
	str_fini(&err);
}

static int64_t script_calls(void)
{
	struct redis_reply *r = NULL;
	const char *p;
	int64_t v = 0;
	size_t n;

	assert_int_equal(redis_once(raw, soon(), &r, "INFO commandstats"), 0);
	p = strstr(redis_reply_str(r, &n), "cmdstat_evalsha:calls=");
	if (p)
		v = strtoll(p + strlen("cmdstat_evalsha:calls="), NULL, 10);
	redis_reply_free(r);
	return v;
}

static void more_open_files_than_a_script_is_told(void **state)
{
	struct chunk_list l;
	struct meta *m;
	uint64_t inode[OPEN_LIST_MAX + 10], f;
	int64_t calls = 0;
	struct attr a;
	char name[16];

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(NULL);
	for (size_t i = 0; i < ARRAY_LEN(inode); i++) {
		snprintf(name, sizeof(name), "f%zu", i);
		inode[i] = make(m, name, INODE_FILE);
		assert_int_equal(meta_open(m, &root_ctx, inode[i], O_RDONLY, &l), 0);
		chunk_list_fini(&l);
	}
	assert_int_equal(meta_unlink(m, &root_ctx, 1, "f3"), 0);
	assert_int_equal(raw_int("SCARD session1"), 1);
	make(m, "g", INODE_FILE);
	make(m, "h", INODE_FILE);
	assert_int_equal(meta_rename(m, &root_ctx, 1, "g", 1, "f4", 0, &f, &a), 0);
	assert_int_equal(raw_int("SCARD session1"), 2);
	assert_int_equal(meta_rename(m, &root_ctx, 1, "h", 1, "f4", 0, &f, &a), 0);
	assert_int_equal(raw_int("SCARD session1"), 2);
	assert_int_equal(meta_unlink(m, &root_ctx, 1, "f4"), 0);
	assert_int_equal(raw_int("SCARD session1"), 2);
	/* who only takes one of several links asks nothing: one question, but for others' */
	for (int i = 0; i < 5 && calls != 1; i++) {
		assert_int_equal(meta_link(m, &root_ctx, inode[5], 1, "link", &a), 0);
		raw_run("CONFIG RESETSTAT");
		assert_int_equal(meta_unlink(m, &root_ctx, 1, "link"), 0);
		calls = script_calls();
	}
	assert_int_equal(calls, 1);
	close_meta(m);
	assert_int_equal(raw_int("SCARD session1"), 0);
}

static void a_big_directory_lists_each_name_once(void **state)
{
	struct meta_dir *d;
	struct meta *m;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(NULL);
	raw_run("EVAL "
		"for\ti=1,25000\tdo\tredis.call('HSET','d1','n'..i,'\\1\\0\\0\\0\\0\\0\\0\\0\\9')"
		"\tend "
		"0");
	assert_int_equal(meta_readdir(m, 1, true, &d), 0);
	assert_int_equal(d->n, 25000);
	assert_false(d->entries[0].full); /* the record is not there */
	assert_int_equal(d->entries[0].attr.type, INODE_FILE);
	assert_int_equal(d->entries[24999].inode, 9);
	meta_dir_free(d);
	close_meta(m);
}

/* line i of the change log without its time and its transaction */
static void log_line(int i, char ret[512])
{
	struct redis_reply *r = NULL;
	const char *p, *q;
	char cmd[64];
	size_t n;

	snprintf(cmd, sizeof(cmd), "LINDEX txnLog %d", i);
	assert_int_equal(redis_once(raw, soon(), &r, cmd), 0);
	p = redis_reply_str(r, &n);
	assert_non_null(p);
	p = strchr(p, '|') + 1;
	q = strrchr(p, '|');
	assert_true(q && q - p < 512);
	memcpy(ret, p, (size_t)(q - p));
	ret[q - p] = '\0';
	redis_reply_free(r);
}

static void every_change_is_logged_as_juicefs_does(void **state)
{
	static const char *const want[] = {
		"INCR_COUNTER(nextSession,1)",
		"NEWSESSION(1,",
		"INCR_COUNTER(nextInode,1024)",
		"CREATE(1,dir,0,0,2,493,18,,linux,true):2",
		"CREATE(1,odd %28%29%2C%25%FF,1000,1000,1,420,18,,linux,true):3",
		"CREATE(1,sym,0,0,3,511,0,target%2C %28x%29,linux,true):4",
		"LINK(3,2,link,true):2",
		"CREATE(9223372032828243968,",
		"UNLINK(1,sym,9223372032828243969,false,true):4",
		"MOVE(2,link,2,moved,0,0,0):3",
		"SETATTR(3,1,0,1000,1000,384,0,",
		"SETXATTR(3,user.a,v%2C1,0)",
		"REMOVEXATTR(3,user.a)",
		"INCR_COUNTER(aclMaxId,1)",
		"SETFACL(3,1,%00%06%00%04%00%07%00%00%00%00%00%01%00%00%03%E8%00%06%00%00%00%00)",
		"CREATE(1,tmpfile_5,0,0,1,384,0,,linux,false):5",
		"UNLINK(1,tmpfile_5,0,true,false):5",
		"DELSUSTAINED(1,5)",
		"MOVE(2,moved,2,w,0,0,0):3",
		"CREATE(2,moved,0,0,6,0,0,,linux,false):6",
		"MOVE(1,dir,1,empty,2,7,0):2",
		"RMDIR(1,dir,9223372032828243969):7",
		"ACCESS(3)",
	};
	struct meta_conf conf = test_conf();
	struct acl_entry e;
	struct acl rule = rule_for(&e, 6);
	struct attr a, mode = {.mode = 0600};
	struct chunk_list l;
	uint64_t dir, f, x;
	struct meta *m;
	char line[512];

	(void)state;
	NEED_SERVER();
	acl_volume();
	volume_enable("ChangeLog");
	conf.atime = ATIME_STRICT;
	m = open_redis_conf(&conf, NULL);
	assert_int_equal(meta_mknod(m, &root_ctx, 1, "dir", INODE_DIR, 0755, 022, 0, "", &dir, &a),
			 0);
	assert_int_equal(
		meta_mknod(m, &user_ctx, 1, "odd (),%\xff", INODE_FILE, 0644, 022, 0, "", &f, &a),
		0);
	assert_int_equal(meta_mknod(m, &root_ctx, 1, "sym", INODE_SYMLINK, 0777, 0, 0,
				    "target, (x)", &x, &a),
			 0);
	assert_int_equal(meta_link(m, &root_ctx, f, dir, "link", &a), 0);
	assert_int_equal(meta_unlink(m, &root_ctx, 1, "sym"), 0);
	assert_int_equal(meta_rename(m, &root_ctx, dir, "link", dir, "moved", 0, &x, &a), 0);
	assert_int_equal(meta_setattr(m, &root_ctx, f, SET_MODE, &mode, &a), 0);
	assert_int_equal(meta_setxattr(m, f, "user.a", "v,1", 3, 0), 0);
	assert_int_equal(meta_removexattr(m, f, "user.a"), 0);
	assert_int_equal(meta_removexattr(m, f, "user.a"), -ENODATA);
	assert_int_equal(meta_setfacl(m, &root_ctx, f, ACL_ACCESS, &rule, &a), 0);
	assert_int_equal(meta_tmpfile(m, &root_ctx, 1, 0600, 0, &x, &a), 0);
	assert_int_equal(meta_open(m, &root_ctx, x, O_RDWR, &l), 0);
	chunk_list_fini(&l);
	assert_int_equal(meta_close(m, x), 0);
	assert_int_equal(meta_rename(m, &root_ctx, dir, "moved", dir, "w", 4, &x, &a), 0);
	make(m, "empty", INODE_DIR);
	assert_int_equal(meta_rename(m, &root_ctx, 1, "dir", 1, "empty", 2, &x, &a), 0);
	assert_int_equal(meta_rmdir(m, &root_ctx, 1, "dir"), 0);
	a = attr_of(m, f);
	assert_int_equal(meta_touch_atime(m, f, &a), 0);
	close_meta(m);
	for (int i = 0, at = 0; i < (int)ARRAY_LEN(want); at++) {
		log_line(at, line);
		if (!strncmp(line, "CREATE(1,empty,", 15) || !strncmp(line, "DELCHUNK", 8) ||
		    !strncmp(line, "DIRSTAT", 7))
			continue; /* not looked at here */
		if (strncmp(line, want[i], strlen(want[i])) != 0)
			fail_msg("line %d: %s, not %s", at, line, want[i]);
		i++;
	}
	log_line(-1, line);
	assert_string_equal(line, "CLEANSESSION(1)");
	assert_int_equal(raw_int("LLEN txnLog"), raw_int("GET txnLastLog"));
}

static int move(struct meta *m, uint64_t from, const char *name, uint64_t to, const char *new_name,
		unsigned flags)
{
	uint64_t moved;
	struct attr a;

	return meta_rename(m, &root_ctx, from, name, to, new_name, flags, &moved, &a);
}

/* as the kernels of two mounts let through: each knows where the directory was */
static void moves_into_what_lies_in_it(struct meta *m)
{
	uint64_t a = make(m, "a", INODE_DIR), b, c, d;

	b = make_mode(m, &root_ctx, a, "b", INODE_DIR, 0755);
	c = make_mode(m, &root_ctx, b, "c", INODE_DIR, 0755);
	d = make_mode(m, &root_ctx, c, "d", INODE_DIR, 0755);
	make_mode(m, &root_ctx, d, "x", INODE_DIR, 0755);
	make_mode(m, &root_ctx, INODE_ROOT, "f", INODE_FILE, 0644);
	assert_int_equal(move(m, INODE_ROOT, "a", d, "new", 0), -EINVAL);
	assert_int_equal(move(m, INODE_ROOT, "a", d, "x", 0), -EINVAL);
	assert_int_equal(move(m, INODE_ROOT, "a", d, "x", RENAME_F_EXCHANGE), -EINVAL);
	assert_int_equal(move(m, d, "x", INODE_ROOT, "a", RENAME_F_EXCHANGE), -EINVAL);
	assert_int_equal(move(m, d, "x", INODE_ROOT, "f", RENAME_F_EXCHANGE), 0);
	assert_int_equal(move(m, d, "x", INODE_ROOT, "f", RENAME_F_EXCHANGE), 0);
	assert_int_equal(attr_of(m, a).parent, INODE_ROOT);
	assert_int_equal(move(m, c, "d", INODE_ROOT, "d", 0), 0);
	assert_int_equal(move(m, INODE_ROOT, "a", d, "a", 0), 0);
	assert_int_equal(move(m, INODE_ROOT, "d", c, "d", 0), -EINVAL);
	assert_int_equal(attr_of(m, a).parent, d);
	assert_int_equal(attr_of(m, d).parent, INODE_ROOT);
	close_meta(m);
}

static void no_directory_goes_into_itself(void **state)
{
	struct deleted d = {0};

	(void)state;
	moves_into_what_lies_in_it(open_mem(1, &d));
	NEED_SERVER();
	fresh_volume(1);
	moves_into_what_lies_in_it(open_redis(NULL));
}

/* a script looks at so many directories above the new place */
static void far_down_only_what_is_empty_arrives(void **state)
{
	uint64_t deep = INODE_ROOT, full;
	struct meta *m;

	(void)state;
	NEED_SERVER();
	fresh_volume(1);
	m = open_redis(NULL);
	make(m, "empty", INODE_DIR);
	full = make(m, "full", INODE_DIR);
	make_mode(m, &root_ctx, full, "f", INODE_FILE, 0644);
	for (int i = 0; i < 890; i++)
		deep = make_mode(m, &root_ctx, deep, "d", INODE_DIR, 0755);
	assert_int_equal(move(m, INODE_ROOT, "full", deep, "full", 0), 0);
	assert_int_equal(move(m, deep, "full", INODE_ROOT, "full", 0), 0);
	for (int i = 0; i < 20; i++)
		deep = make_mode(m, &root_ctx, deep, "d", INODE_DIR, 0755);
	assert_int_equal(move(m, INODE_ROOT, "full", deep, "full", 0), -ELOOP);
	assert_int_equal(move(m, INODE_ROOT, "empty", deep, "empty", 0), 0);
	close_meta(m);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(more_open_files_than_a_script_is_told),
		cmocka_unit_test(a_big_directory_lists_each_name_once),
		cmocka_unit_test(a_file_without_a_name_is_linked_or_gone),
		cmocka_unit_test(a_whiteout_is_left_where_a_name_went),
		cmocka_unit_test(a_whiteout_is_counted_to_the_group_it_has),
		cmocka_unit_test(an_exchange_tells_the_other),
		cmocka_unit_test(root_restores_from_the_trash),
		cmocka_unit_test(times_before_1970_stay),
		cmocka_unit_test(atime_moves_when_it_is_due),
		cmocka_unit_test(only_root_changes_what_chattr_protects),
		cmocka_unit_test(a_change_to_the_same_is_a_change),
		cmocka_unit_test(an_open_file_in_the_trash_is_its_owners_still),
		cmocka_unit_test(a_file_without_data_waits_for_nobody),
		cmocka_unit_test(links_have_a_limit),
		cmocka_unit_test(permissions_are_checked_where_asked_for),
		cmocka_unit_test(a_sub_directory_is_the_root),
		cmocka_unit_test(every_change_is_logged_as_juicefs_does),
		cmocka_unit_test(no_directory_goes_into_itself),
		cmocka_unit_test(far_down_only_what_is_empty_arrives),
	};

	return cmocka_run_group_tests(tests, start_server, stop_server);
}
