/* SPDX-License-Identifier: Apache-2.0 */
/* Quotas of the engine over Redis: limits are kept, usage in Redis is what a count of the volume
 * finds, whatever was done. */
#include "client/meta/meta_redis_quota.h"
#include "tests/unit/meta/volume.h"

static void owners_on(void)
{
	struct redis_reply *reply = NULL;
	struct str text = STR_INIT;
	const char *old;
	size_t n;

	assert_int_equal(redis_once(raw, soon(), &reply, "GET setting"), 0);
	old = strchr(redis_reply_str(reply, &n), '{');
	assert_non_null(old);
	str_addf(&text, "{\"UserGroupQuota\": true, \"DirStats\": true,%s", old + 1);
	redis_reply_free(reply);
	assert_int_equal(redis_once(raw, soon(), &reply, "SET setting %s", str_c(&text)), 0);
	redis_reply_free(reply);
	str_fini(&text);
}

static int make(struct meta *m, const struct meta_ctx *c, uint64_t dir, const char *name,
		uint8_t type, uint64_t *ret)
{
	struct attr a;

	return meta_mknod(m, c, dir, name, type, 0777, 0, 0, "t", ret, &a);
}

static uint64_t made(struct meta *m, uint64_t dir, const char *name, uint8_t type)
{
	uint64_t inode = 0;

	assert_int_equal(make(m, &root_ctx, dir, name, type, &inode), 0);
	return inode;
}

static void told(struct meta *m)
{
	stat_flush(redis_engine(m), soon());
	quota_flush(redis_engine(m), soon());
}

static int limit(struct meta *m, enum quota_kind kind, uint64_t id, int64_t space, int64_t inodes)
{
	struct quota q = {.kind = kind, .id = id, .max_space = space, .max_inodes = inodes};

	return meta_quota_set(m, &q);
}

static void usage_is(struct meta *m, enum quota_kind kind, uint64_t id, int64_t space,
		     int64_t inodes)
{
	struct quota q;

	told(m);
	assert_int_equal(meta_quota_get(m, kind, id, &q), 0);
	assert_int_equal(q.used_space, space);
	assert_int_equal(q.used_inodes, inodes);
}

static void a_new_quota_knows_its_usage_at_once(void **state)
{
	struct meta *m, *other;
	struct quota q, *list;
	struct attr a;
	uint64_t d, s, f;
	size_t n;

	(void)state;
	NEED_SERVER();
	fresh_volume(1);
	m = open_redis(NULL);
	other = open_redis(NULL); /* as a command */
	d = made(m, 1, "d", INODE_DIR);
	s = made(m, d, "s", INODE_DIR);
	f = made(m, s, "f", INODE_FILE);
	assert_int_equal(meta_truncate(m, &root_ctx, f, 10000, false, &a), 0);
	told(m);
	made(m, s, "last", INODE_FILE); /* comes on top once m tells it: counted once */
	assert_int_equal(meta_quota_get(m, QUOTA_DIR, d, &q), -ENOENT);
	assert_int_equal(limit(other, QUOTA_DIR, d, 1 << 20, 5), 0);
	assert_int_equal(meta_quota_get(m, QUOTA_DIR, d, &q), 0);
	assert_in_range(q.used_space, 4096 + 12288, 4096 + 12288 + 4096);
	assert_in_range(q.used_inodes, 2, 3);
	assert_int_equal(q.max_space, 1 << 20);
	assert_int_equal(q.max_inodes, 5);
	/* the other side stays as it is */
	assert_int_equal(limit(other, QUOTA_DIR, d, -1, 7), 0);
	assert_int_equal(meta_quota_list(m, QUOTA_DIR, &list, &n), 0);
	assert_int_equal(n, 1);
	assert_int_equal(list[0].id, d);
	assert_int_equal(list[0].max_space, 1 << 20);
	assert_int_equal(list[0].max_inodes, 7);
	free(list);
	/* m hears of it with its next statistics */
	told(m);
	usage_is(m, QUOTA_DIR, d, 4096 + 12288 + 4096, 3);
	made(m, s, "g", INODE_FILE);
	usage_is(m, QUOTA_DIR, d, 4096 + 12288 + 4096 + 4096, 4);
	assert_int_equal(limit(m, QUOTA_DIR, f, 1, 1), -ENOTDIR);
	assert_int_equal(limit(m, QUOTA_DIR, 4711, 1, 1), -ENOENT);
	assert_int_equal(limit(m, QUOTA_USER, 1, 1, 1), -EOPNOTSUPP);
	assert_int_equal(meta_quota_delete(m, QUOTA_DIR, d), 0);
	assert_int_equal(meta_quota_delete(m, QUOTA_DIR, d), -ENOENT);
	assert_int_equal(raw_int("EXISTS dirQuota dirQuotaUsedSpace dirQuotaUsedInodes"), 0);
	/* what is told late does not bring it back */
	assert_int_equal(limit(m, QUOTA_DIR, d, 1 << 20, 50), 0);
	made(m, d, "h", INODE_FILE);
	assert_int_equal(meta_quota_delete(other, QUOTA_DIR, d), 0);
	told(m);
	assert_int_equal(raw_int("EXISTS dirQuota dirQuotaUsedSpace dirQuotaUsedInodes"), 0);
	close_meta(other);
	close_meta(m);
}

static void move(struct meta *m, uint64_t from, uint64_t to)
{
	uint64_t inode;
	struct attr a;

	assert_int_equal(meta_rename(m, &root_ctx, from, "x", to, "x", 0, &inode, &a), 0);
}

/* one works in a directory and tells it later, the other moves it meanwhile */
static void what_is_told_late_goes_where_the_directory_is(void **state)
{
	struct meta *m, *other;
	uint64_t a, b, x, sub;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(NULL);
	a = made(m, 1, "a", INODE_DIR);
	b = made(m, 1, "b", INODE_DIR);
	x = made(m, a, "x", INODE_DIR);
	assert_int_equal(limit(m, QUOTA_DIR, a, -1, 100), 0);
	assert_int_equal(limit(m, QUOTA_DIR, b, -1, 100), 0);
	other = open_redis(NULL);
	made(m, x, "f", INODE_FILE);
	told(m);
	made(m, x, "g", INODE_FILE);
	move(other, a, b);
	told(other);
	usage_is(m, QUOTA_DIR, a, 0, 0);
	usage_is(m, QUOTA_DIR, b, 3 * 4096, 3);
	/* and what was in one that is gone goes where that was */
	sub = made(m, x, "sub", INODE_DIR);
	made(m, sub, "h", INODE_FILE);
	told(m);
	assert_int_equal(meta_unlink(m, &root_ctx, sub, "h"), 0);
	assert_int_equal(meta_rmdir(other, &root_ctx, x, "sub"), 0);
	move(other, b, a);
	told(other);
	usage_is(m, QUOTA_DIR, a, 3 * 4096, 3);
	usage_is(m, QUOTA_DIR, b, 0, 0);
	/* x owes nothing any more, and who forgets to tell is forgotten */
	assert_int_equal(raw_int("EXISTS _late4"), 0);
	made(m, x, "i", INODE_FILE);
	sub = made(m, x, "sub", INODE_DIR);
	made(m, sub, "j", INODE_FILE);
	told(m);
	assert_int_equal(meta_unlink(m, &root_ctx, sub, "j"), 0);
	assert_int_equal(meta_rmdir(other, &root_ctx, x, "sub"), 0);
	assert_int_equal(raw_int("HGET _late4 i"), 1);
	assert_int_equal(raw_int("HGET _late4 s"), 4096);
	assert_in_range(raw_int("TTL _late4"), 1, 10);
	told(m);
	assert_int_equal(raw_int("EXISTS _late4"), 0);
	/* what nobody took back, as he was killed: a new quota waits for it, then does without */
	raw_run("HSET _late4 i 5 s 20480");
	told(other);
	assert_int_equal(limit(other, QUOTA_DIR, x, -1, 100), 0);
	usage_is(m, QUOTA_DIR, x, 3 * 4096, 3);
	close_meta(other);
	close_meta(m);
}

struct beside {
	struct meta *m;
	uint64_t dir;
	bool stop; /* atomic */
};

static void *flushes(void *arg)
{
	struct beside *b = arg;

	while (!__atomic_load_n(&b->stop, __ATOMIC_RELAXED))
		stat_flush(redis_engine(b->m), soon());
	return NULL;
}

static void *renames(void *arg)
{
	struct beside *b = arg;
	struct attr a;
	uint64_t x;

	while (!__atomic_load_n(&b->stop, __ATOMIC_RELAXED)) {
		assert_int_equal(meta_rename(b->m, &root_ctx, b->dir, "a", b->dir, "b", 0, &x, &a),
				 0);
		assert_int_equal(meta_rename(b->m, &root_ctx, b->dir, "b", b->dir, "a", 0, &x, &a),
				 0);
	}
	return NULL;
}

/* what is being told counts once, also between the batches */
static void a_quota_is_full_when_it_is_full(void **state)
{
	enum { SUBS = 3 * STAT_BATCH, FILES = 4 * SUBS };
	struct beside b = {0};
	uint64_t d, sub[SUBS], x;
	pthread_t t;
	char name[16];

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	b.m = open_redis(NULL);
	d = made(b.m, 1, "d", INODE_DIR);
	assert_int_equal(limit(b.m, QUOTA_DIR, d, -1, SUBS + FILES), 0);
	for (int i = 0; i < SUBS; i++) {
		snprintf(name, sizeof(name), "s%d", i);
		sub[i] = made(b.m, d, name, INODE_DIR);
	}
	assert_int_equal(pthread_create(&t, NULL, flushes, &b), 0);
	for (int i = 0; i < FILES; i++) {
		snprintf(name, sizeof(name), "f%d", i);
		if (make(b.m, &root_ctx, sub[i % SUBS], name, INODE_FILE, &x)) {
			__atomic_store_n(&b.stop, true, __ATOMIC_RELAXED);
			pthread_join(t, NULL);
			fail_msg("full at %d of %d", i, FILES);
		}
	}
	assert_int_equal(make(b.m, &root_ctx, d, "more", INODE_FILE, &x), -EDQUOT);
	__atomic_store_n(&b.stop, true, __ATOMIC_RELAXED);
	pthread_join(t, NULL);
	assert_int_equal(make(b.m, &root_ctx, d, "more", INODE_FILE, &x), -EDQUOT);
	assert_int_equal(meta_unlink(b.m, &root_ctx, sub[7], "f7"), 0);
	assert_int_equal(make(b.m, &root_ctx, d, "more", INODE_FILE, &x), 0);
	usage_is(b.m, QUOTA_DIR, d, 4096LL * (SUBS + FILES), SUBS + FILES);
	close_meta(b.m);
}

static void who_renames_all_the_time_hears_what_others_used(void **state)
{
	struct beside b = {0};
	struct meta *other;
	pthread_t t;
	uint64_t d, x;
	char name[16];

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	b.m = open_redis(NULL);
	d = made(b.m, 1, "d", INODE_DIR);
	b.dir = made(b.m, 1, "r", INODE_DIR);
	made(b.m, b.dir, "a", INODE_FILE);
	assert_int_equal(limit(b.m, QUOTA_DIR, d, -1, 5), 0);
	other = open_redis(NULL);
	assert_int_equal(pthread_create(&t, NULL, renames, &b), 0);
	for (int i = 0; i < 5; i++) {
		snprintf(name, sizeof(name), "f%d", i);
		made(other, d, name, INODE_FILE);
	}
	told(other);
	quota_beat(redis_engine(b.m), true, soon());
	assert_int_equal(make(b.m, &root_ctx, d, "more", INODE_FILE, &x), -EDQUOT);
	__atomic_store_n(&b.stop, true, __ATOMIC_RELAXED);
	pthread_join(t, NULL);
	close_meta(other);
	close_meta(b.m);
}

static void limits_are_kept(void **state)
{
	const struct slice piece = {.id = 0, .len = 20000};
	const struct time_ns now = {1, 2};
	struct meta *m;
	struct attr a;
	uint64_t d, e, f, x, out;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(NULL);
	d = made(m, 1, "d", INODE_DIR);
	e = made(m, d, "e", INODE_DIR);
	out = made(m, 1, "out", INODE_FILE);
	assert_int_equal(limit(m, QUOTA_DIR, d, 40960, 4), 0);
	f = made(m, e, "f", INODE_FILE);
	assert_int_equal(make(m, &root_ctx, d, "2", INODE_FILE, &x), 0);
	assert_int_equal(make(m, &root_ctx, e, "3", INODE_DIR, &x), 0);
	assert_int_equal(make(m, &root_ctx, e, "4", INODE_FILE, &x), -EDQUOT);
	assert_int_equal(make(m, &root_ctx, d, "4", INODE_SYMLINK, &x), -EDQUOT);
	assert_int_equal(meta_link(m, &root_ctx, out, e, "l", &a), -EDQUOT);
	assert_int_equal(meta_rename(m, &root_ctx, 1, "out", e, "out", 0, &x, &a), -EDQUOT);
	/* within the quota nothing moves */
	assert_int_equal(meta_rename(m, &root_ctx, d, "2", e, "2", 0, &x, &a), 0);
	assert_int_equal(meta_unlink(m, &root_ctx, e, "2"), 0);
	assert_int_equal(make(m, &root_ctx, e, "4", INODE_FILE, &x), 0);
	/* 4 entries, of a page each: 6 pages are left */
	assert_int_equal(meta_truncate(m, &root_ctx, f, 7 * 4096, false, &a), 0);
	assert_int_equal(meta_truncate(m, &root_ctx, f, 7 * 4096 + 1, false, &a), -EDQUOT);
	assert_int_equal(meta_truncate(m, &root_ctx, f, 100, false, &a), 0);
	assert_int_equal(meta_write(m, f, 0, &piece, now, &a), 0);
	assert_int_equal(meta_write(m, f, 1, &piece, now, &a), -EDQUOT);
	assert_int_equal(meta_fallocate(m, &root_ctx, f, 0, 0, 50000, &a), -EDQUOT);
	assert_int_equal(meta_fallocate(m, &root_ctx, f, 0, 0, 25000, &a), 0);
	assert_int_equal(meta_truncate(m, &root_ctx, out, 50000, false, &a), 0);
	assert_int_equal(meta_copy_file_range(m, &root_ctx, out, 0, f, 0, 50000, &x, &a), -EDQUOT);
	assert_int_equal(meta_copy_file_range(m, &root_ctx, out, 40000, f, 0, 50000, &x, &a), 0);
	assert_int_equal(x, 10000);
	usage_is(m, QUOTA_DIR, d, 10 * 4096, 4);
	close_meta(m);
}

static void owners_have_limits(void **state)
{
	struct meta *m;
	struct attr a, to = {.uid = 1000};
	uint64_t x, d;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(NULL); /* sums of owners are not kept yet */
	assert_int_equal(make(m, &other_ctx, 1, "old", INODE_FILE, &x), 0);
	assert_int_equal(meta_truncate(m, &root_ctx, x, 5000, false, &a), 0);
	close_meta(m);
	owners_on();
	m = open_redis(NULL);
	assert_int_equal(limit(m, QUOTA_USER, 1001, -1, 10), 0);
	usage_is(m, QUOTA_USER, 1001, 8192, 1);
	assert_int_equal(meta_unlink(m, &root_ctx, 1, "old"), 0);
	assert_int_equal(limit(m, QUOTA_USER, 1000, -1, 2), 0);
	assert_int_equal(limit(m, QUOTA_GROUP, 1001, 8192, -1), 0);
	assert_int_equal(make(m, &user_ctx, 1, "a", INODE_FILE, &x), 0);
	assert_int_equal(make(m, &user_ctx, 1, "b", INODE_FILE, &x), 0);
	assert_int_equal(make(m, &user_ctx, 1, "c", INODE_FILE, &x), -EDQUOT);
	assert_int_equal(make(m, &root_ctx, 1, "c", INODE_FILE, &x), 0);
	assert_int_equal(meta_setattr(m, &root_ctx, x, SET_UID, &to, &a), -EDQUOT);
	assert_int_equal(meta_unlink(m, &root_ctx, 1, "a"), 0);
	assert_int_equal(meta_setattr(m, &root_ctx, x, SET_UID, &to, &a), 0);
	usage_is(m, QUOTA_USER, 1000, 8192, 2);
	/* the group of a directory is inherited */
	d = made(m, 1, "sgid", INODE_DIR);
	to = (struct attr){.gid = 1001, .mode = 02777};
	assert_int_equal(meta_setattr(m, &root_ctx, d, SET_GID, &to, &a), 0);
	assert_int_equal(meta_setattr(m, &root_ctx, d, SET_MODE, &to, &a), 0);
	assert_int_equal(make(m, &root_ctx, d, "x", INODE_FILE, &x), 0);
	assert_int_equal(make(m, &root_ctx, d, "y", INODE_FILE, &x), -EDQUOT);
	assert_int_equal(make(m, &other_ctx, 1, "z", INODE_FILE, &x), -EDQUOT);
	usage_is(m, QUOTA_GROUP, 1001, 8192, 2);
	/* a user's end leaves his usage */
	assert_int_equal(meta_quota_delete(m, QUOTA_USER, 1000), 0);
	assert_int_equal(make(m, &user_ctx, 1, "more", INODE_FILE, &x), 0);
	usage_is(m, QUOTA_USER, 1000, 12288, 3);
	close_meta(m);
}

static void statfs_shows_the_tightest_quota(void **state)
{
	struct meta_statfs s, root;
	struct meta *m;
	uint64_t d, e;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(NULL);
	d = made(m, 1, "d", INODE_DIR);
	e = made(m, d, "e", INODE_DIR);
	assert_int_equal(limit(m, QUOTA_DIR, d, 1 << 20, 10), 0);
	assert_int_equal(limit(m, QUOTA_DIR, e, -1, 3), 0);
	made(m, e, "f", INODE_FILE);
	assert_int_equal(meta_statfs(m, 1, &root), 0);
	assert_int_equal(root.total_bytes, UINT64_C(1) << 50);
	assert_int_equal(meta_statfs(m, d, &s), 0);
	assert_int_equal(s.total_bytes, 1 << 20);
	assert_int_equal(s.avail_bytes, (1 << 20) - 8192);
	assert_int_equal(s.used_inodes, 2);
	assert_int_equal(s.avail_inodes, 8);
	assert_int_equal(meta_statfs(m, e, &s), 0);
	assert_int_equal(s.total_bytes, (1 << 20) - 4096);
	assert_int_equal(s.avail_bytes, (1 << 20) - 8192);
	assert_int_equal(s.used_inodes, 1);
	assert_int_equal(s.avail_inodes, 2);
	close_meta(m);
}

/* --- anything at all --- */

enum { DIRS = 8, OPS = 3000, OWNERS = 3 };

struct world {
	struct meta *m;
	uint64_t dir[DIRS]; /* [0]: the root; 1 and 3 in it, 2 in 1, the rest come and go */
	unsigned seed;
	uint64_t slices;
};

static unsigned pick(struct world *w, unsigned n)
{
	w->seed = w->seed * 1103515245 + 12345;
	return (w->seed >> 8) % n;
}

/* the kernel keeps directories out of themselves, not the engine */
static bool in_itself(struct world *w, uint64_t from, const char *name, uint64_t to)
{
	uint64_t x;
	struct attr a;

	if (meta_lookup(w->m, &root_ctx, from, name, &x, &a) || a.type != INODE_DIR)
		return false;
	while (to != x && to != INODE_ROOT && !meta_getattr(w->m, to, &a))
		to = a.parent;
	return to == x;
}

static void step(struct world *w)
{
	const struct meta_ctx *who[] = {&root_ctx, &user_ctx, &other_ctx};
	uint64_t a = w->dir[pick(w, DIRS)], b = w->dir[pick(w, DIRS)], x = 0;
	char one[8], two[8];
	struct attr at = {.uid = pick(w, 2) ? 1000 : 1001, .gid = pick(w, 2) ? 1000 : 0};
	struct attr now;
	struct slice s;

	snprintf(one, sizeof(one), "n%u", pick(w, 6));
	snprintf(two, sizeof(two), "n%u", pick(w, 6));
	switch (pick(w, 14)) {
	case 0:
	case 1:
	case 2:
		(void)make(w->m, who[pick(w, OWNERS)], a, one,
			   pick(w, 4) ? INODE_FILE : INODE_SYMLINK, &x);
		break;
	case 3:
		(void)make(w->m, who[pick(w, OWNERS)], a, one, INODE_DIR, &x);
		if (x)
			w->dir[4 + pick(w, DIRS - 4)] = x;
		break;
	case 4:
		(void)meta_unlink(w->m, &root_ctx, a, one);
		break;
	case 5:
		(void)meta_rmdir(w->m, &root_ctx, a, one);
		break;
	case 6:
	case 7:
		if (in_itself(w, a, one, b) || in_itself(w, b, two, a))
			break;
		(void)meta_rename(w->m, &root_ctx, a, one, b, two,
				  pick(w, 4) ? 0 : RENAME_F_EXCHANGE, &x, &now);
		break;
	case 8:
		if (!meta_lookup(w->m, &root_ctx, a, one, &x, &now))
			(void)meta_link(w->m, &root_ctx, x, b, two, &now);
		break;
	case 9:
		if (!meta_lookup(w->m, &root_ctx, a, one, &x, &now))
			(void)meta_truncate(w->m, &root_ctx, x, pick(w, 40000), false, &now);
		break;
	case 10:
		if (!meta_lookup(w->m, &root_ctx, a, one, &x, &now))
			(void)meta_setattr(w->m, &root_ctx, x, SET_UID | SET_GID, &at, &now);
		break;
	case 11: /* trees, seldom: they grow */
		if (pick(w, 4) || meta_lookup(w->m, &root_ctx, a, one, &x, &now) ||
		    in_itself(w, a, one, b))
			break;
		(void)meta_clone(w->m, who[pick(w, OWNERS)], x, b, two, pick(w, 2), 0, NULL);
		break;
	case 12:
		if (pick(w, 3))
			break;
		if (pick(w, 2))
			(void)meta_remove_tree(w->m, &root_ctx, a, one, pick(w, 2), NULL);
		else if (!meta_tmpfile(w->m, who[pick(w, OWNERS)], a, 0600, 0, &x, &now))
			(void)meta_link(w->m, &root_ctx, x, b, two, &now);
		break;
	default:
		s = (struct slice){.pos = pick(w, 30000), .id = 0, .len = 1 + pick(w, 9000)};
		if (!meta_lookup(w->m, &root_ctx, a, one, &x, &now) && now.type == INODE_FILE)
			(void)meta_write(w->m, x, 0, &s, (struct time_ns){1, 1}, &now);
	}
}

static void counted_is_told(struct world *w, enum quota_kind kind, uint64_t id)
{
	struct quota told_of, counted;

	if (meta_quota_get(w->m, kind, id, &told_of) == -ENOENT)
		return;
	assert_int_equal(meta_quota_check(w->m, kind, id, false, &told_of, &counted, NULL), 0);
	if (told_of.used_space != counted.used_space || told_of.used_inodes != counted.used_inodes)
		fail_msg("kind %d id %llu: %lld bytes %lld inodes told, %lld and %lld counted",
			 (int)kind, (unsigned long long)id, (long long)told_of.used_space,
			 (long long)told_of.used_inodes, (long long)counted.used_space,
			 (long long)counted.used_inodes);
}

static void stats_are_right(struct world *w, uint64_t dir)
{
	struct tree_sum by_stats = {0}, exact = {0};

	assert_int_equal(tree_sum(redis_engine(w->m), dir, false, NULL, &by_stats), 0);
	assert_int_equal(tree_sum(redis_engine(w->m), dir, true, NULL, &exact), 0);
	assert_int_equal(by_stats.inodes, exact.inodes);
	assert_int_equal(by_stats.space, exact.space);
	assert_int_equal(by_stats.length, exact.length);
}

static void told_is_counted(unsigned trash_days)
{
	static const uint64_t ids[] = {0, 1000, 1001};
	const char *seed = getenv("STOKE_SEED");
	struct world w = {.seed = seed ? (unsigned)strtoul(seed, NULL, 10) : (unsigned)time(NULL)};

	print_message("seed %u\n", w.seed);
	fresh_volume(trash_days);
	owners_on();
	w.m = open_redis(NULL);
	w.dir[0] = 1;
	w.dir[1] = made(w.m, 1, "q1", INODE_DIR);
	w.dir[2] = made(w.m, w.dir[1], "q2", INODE_DIR);
	w.dir[3] = made(w.m, 1, "q3", INODE_DIR);
	for (int i = 4; i < DIRS; i++)
		w.dir[i] = w.dir[i - 4];
	assert_int_equal(limit(w.m, QUOTA_DIR, w.dir[1], -1, 60), 0);
	assert_int_equal(limit(w.m, QUOTA_DIR, w.dir[2], 300000, -1), 0);
	assert_int_equal(limit(w.m, QUOTA_DIR, w.dir[3], 1 << 30, 1000), 0);
	assert_int_equal(limit(w.m, QUOTA_USER, 1000, 1 << 20, 60), 0);
	for (int i = 1; i <= OPS; i++) {
		step(&w);
		if (i % (OPS / 6))
			continue;
		told(w.m);
		for (int k = 1; k < 4; k++)
			counted_is_told(&w, QUOTA_DIR, w.dir[k]);
		for (size_t k = 0; k < ARRAY_LEN(ids); k++) {
			counted_is_told(&w, QUOTA_USER, ids[k]);
			counted_is_told(&w, QUOTA_GROUP, ids[k]);
		}
		stats_are_right(&w, 1);
	}
	close_meta(w.m);
}

static void what_is_told_is_what_is_counted(void **state)
{
	(void)state;
	NEED_SERVER();
	told_is_counted(0);
	told_is_counted(1);
}

static void a_wrong_usage_is_found_and_repaired(void **state)
{
	struct meta *m;
	struct quota found, q;
	uint64_t d;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	owners_on();
	m = open_redis(NULL);
	d = made(m, 1, "d", INODE_DIR);
	made(m, d, "f", INODE_FILE);
	assert_int_equal(limit(m, QUOTA_DIR, d, 1 << 20, 10), 0);
	told(m);
	raw_run("HINCRBY userQuotaUsedInodes 0 5");
	raw_run("HSET dirQuotaUsedSpace 2 12345");
	assert_int_equal(meta_quota_check(m, QUOTA_DIR, d, false, &found, &q, NULL), 0);
	assert_int_equal(q.used_space, 4096);
	assert_int_equal(raw_int("HGET dirQuotaUsedSpace 2"), 12345);
	assert_int_equal(meta_quota_check(m, QUOTA_DIR, d, true, &found, &q, NULL), 0);
	assert_int_equal(raw_int("HGET dirQuotaUsedSpace 2"), 4096);
	assert_int_equal(meta_quota_check(m, QUOTA_USER, 0, true, &found, &q, NULL), 0);
	assert_int_equal(q.used_inodes, 2);
	assert_int_equal(raw_int("HGET userQuotaUsedInodes 0"), 2);
	assert_int_equal(meta_quota_check(m, QUOTA_DIR, 99, true, &found, &q, NULL), -ENOENT);
	close_meta(m);
}

static int64_t calls(const char *what)
{
	struct redis_reply *r = NULL;
	const char *p;
	int64_t v;
	size_t n;

	assert_int_equal(redis_once(raw, soon(), &r, "INFO commandstats"), 0);
	p = strstr(redis_reply_str(r, &n), what);
	v = p ? strtoll(p + strlen(what), NULL, 10) : 0;
	redis_reply_free(r);
	return v;
}

static void a_move_between_the_same_quotas_weighs_nothing(void **state)
{
	struct meta *m;
	uint64_t q, a, b, d, x;
	struct attr attr;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(NULL);
	q = made(m, 1, "q", INODE_DIR);
	a = made(m, 1, "a", INODE_DIR);
	b = made(m, q, "b", INODE_DIR);
	x = made(m, q, "c", INODE_DIR);
	assert_int_equal(limit(m, QUOTA_DIR, q, 1 << 30, 100), 0);
	d = made(m, b, "d", INODE_DIR);
	made(m, d, "f", INODE_FILE);
	raw_run("CONFIG RESETSTAT");
	/* within one quota, and outside of all */
	assert_int_equal(meta_rename(m, &root_ctx, b, "d", x, "d", 0, &x, &attr), 0);
	d = made(m, 1, "e", INODE_DIR);
	made(m, d, "f", INODE_FILE);
	assert_int_equal(meta_rename(m, &root_ctx, 1, "e", a, "e", 0, &x, &attr), 0);
	assert_int_equal(calls("cmdstat_hscan:calls="), 0);
	usage_is(m, QUOTA_DIR, q, 4 * 4096, 4);
	/* into it */
	assert_int_equal(meta_rename(m, &root_ctx, a, "e", q, "e", 0, &x, &attr), 0);
	assert_true(calls("cmdstat_hscan:calls=") > 0);
	usage_is(m, QUOTA_DIR, q, 6 * 4096, 6);
	close_meta(m);
}

static void with_a_quota_an_operation_is_one_question(void **state)
{
	const struct slice piece = {.id = 0, .len = 20000};
	const struct time_ns now = {1, 2};
	struct attr a, to = {.mode = 0600};
	uint64_t d, e, f, x;
	struct meta *m;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(NULL);
	d = made(m, 1, "d", INODE_DIR);
	for (int i = 0; i < 4; i++)
		d = made(m, d, "d", INODE_DIR);
	assert_int_equal(limit(m, QUOTA_DIR, 2, 1 << 30, 100), 0);
	told(m);			/* and hears that limits changed */
	e = made(m, d, "e", INODE_DIR); /* the way up is known now */
	raw_run("CONFIG RESETSTAT");
	f = made(m, e, "f", INODE_FILE);
	assert_int_equal(meta_write(m, f, 0, &piece, now, &a), 0);
	assert_int_equal(meta_truncate(m, &root_ctx, f, 50000, false, &a), 0);
	assert_int_equal(meta_setattr(m, &root_ctx, f, SET_MODE, &to, &a), 0);
	assert_int_equal(meta_rename(m, &root_ctx, e, "f", e, "g", 0, &x, &a), 0);
	assert_int_equal(meta_rename(m, &root_ctx, e, "g", d, "g", 0, &x, &a), 0);
	assert_int_equal(meta_unlink(m, &root_ctx, d, "g"), 0);
	/* nothing but the scripts; the statistics are told each second, too */
	assert_int_equal(calls("cmdstat_mget:calls="), 0);
	assert_in_range(calls("cmdstat_evalsha:calls="), 7, 8);
	usage_is(m, QUOTA_DIR, 2, 4 * 4096 + 4096, 5);
	close_meta(m);
}

static void without_quotas_nothing_is_asked(void **state)
{
	struct meta *m;
	uint64_t x, d;
	struct attr a;
	int64_t before;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(NULL);
	d = made(m, 1, "d", INODE_DIR);
	made(m, d, "warm", INODE_FILE);
	told(m);
	raw_run("CONFIG RESETSTAT");
	assert_int_equal(make(m, &root_ctx, d, "f", INODE_FILE, &x), 0);
	assert_int_equal(meta_link(m, &root_ctx, x, 1, "l", &a), 0);
	assert_int_equal(meta_truncate(m, &root_ctx, x, 5000, false, &a), 0);
	assert_int_equal(meta_rename(m, &root_ctx, d, "f", 1, "f", 0, &x, &a), 0);
	assert_int_equal(meta_unlink(m, &root_ctx, 1, "f"), 0);
	quota_flush(redis_engine(m), soon());
	{
		struct redis_reply *r = NULL;
		const char *p;
		size_t n;

		assert_int_equal(redis_once(raw, soon(), &r, "INFO commandstats"), 0);
		p = redis_reply_str(r, &n);
		assert_non_null(p);
		p = strstr(p, "cmdstat_evalsha:calls=");
		assert_non_null(p);
		before = strtoll(p + strlen("cmdstat_evalsha:calls="), NULL, 10);
		redis_reply_free(r);
	}
	/* five operations; the truncation of a file with several links reads p{inode} besides */
	assert_in_range(before, 5, 6);
	assert_int_equal(raw_int("EXISTS userQuotaUsedSpace dirQuotaUsedSpace dirQuota"), 0);
	close_meta(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_new_quota_knows_its_usage_at_once),
		cmocka_unit_test(what_is_told_late_goes_where_the_directory_is),
		cmocka_unit_test(a_quota_is_full_when_it_is_full),
		cmocka_unit_test(who_renames_all_the_time_hears_what_others_used),
		cmocka_unit_test(limits_are_kept),
		cmocka_unit_test(owners_have_limits),
		cmocka_unit_test(statfs_shows_the_tightest_quota),
		cmocka_unit_test(what_is_told_is_what_is_counted),
		cmocka_unit_test(a_wrong_usage_is_found_and_repaired),
		cmocka_unit_test(a_move_between_the_same_quotas_weighs_nothing),
		cmocka_unit_test(with_a_quota_an_operation_is_one_question),
		cmocka_unit_test(without_quotas_nothing_is_asked),
	};

	return cmocka_run_group_tests(tests, start_server, stop_server);
}
