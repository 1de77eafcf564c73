/* SPDX-License-Identifier: Apache-2.0 */
/* Removing and cloning trees over a real Redis: nothing is left, nothing is lost, counters,
 * statistics and references stay right; who fails half-way leaves nothing. */
#include <inttypes.h>

#include "client/meta/slice.h"
#include "tests/unit/meta/volume.h"

enum { WIDE = 1300 };

static uint64_t make(struct meta *m, uint64_t parent, const char *name, uint8_t type)
{
	uint64_t inode;
	struct attr a;

	assert_int_equal(
		meta_mknod(m, &root_ctx, parent, name, type, 0755, 0, 0, "target", &inode, &a), 0);
	return inode;
}

static struct slice put(struct meta *m, uint64_t inode, uint64_t off, uint32_t len)
{
	struct slice s = {.pos = (uint32_t)(off % CHUNK_SIZE), .size = len, .len = len};
	struct attr a;

	assert_int_equal(meta_new_slice(m, &s.id, &(struct hash128){{0}}), 0);
	assert_int_equal(meta_write(m, inode, (uint32_t)(off >> CHUNK_BITS), &s, time_of(9, 9), &a),
			 0);
	return s;
}

static uint64_t find(struct meta *m, uint64_t parent, const char *name, struct attr *ret)
{
	uint64_t inode;
	int r = meta_lookup(m, &root_ctx, parent, name, &inode, ret);

	if (r)
		fail_msg("%s: %d", name, r);
	return inode;
}

/* a tree of everything: many files, directories in directories, links, an attribute */
static uint64_t make_tree(struct meta *m)
{
	uint64_t top = make(m, INODE_ROOT, "tree", INODE_DIR), dir = top, f;
	char name[32];
	struct attr a;

	for (int i = 0; i < WIDE; i++) {
		snprintf(name, sizeof(name), "file%d", i);
		f = make(m, top, name, INODE_FILE);
		if (i % 100 == 0)
			put(m, f, 0, 1000);
	}
	for (int i = 0; i < 40; i++) {
		snprintf(name, sizeof(name), "dir%d", i);
		dir = make(m, i % 4 ? dir : top, name, INODE_DIR);
		f = make(m, dir, "f", INODE_FILE);
		put(m, f, 0, 5000);
		put(m, f, 100, 10);
		make(m, dir, "l", INODE_SYMLINK);
		make(m, dir, "p", INODE_FIFO);
	}
	f = find(m, top, "file0", &a);
	assert_int_equal(meta_link(m, &root_ctx, f, dir, "again", &a), 0);
	assert_int_equal(meta_link(m, &root_ctx, f, top, "here too", &a), 0);
	assert_int_equal(meta_setxattr(m, f, "user.x", "yz", 2, 0), 0);
	assert_int_equal(meta_setxattr(m, top, "user.d", "v", 1, 0), 0);
	return top;
}

static int64_t keys(const char *pattern)
{
	struct redis_reply *r = NULL;
	int64_t n;

	assert_int_equal(redis_once(raw, soon(), &r, "KEYS %s", pattern), 0);
	n = (int64_t)redis_reply_len(r);
	redis_reply_free(r);
	return n;
}

static void a_tree_goes_without_a_trace(void **state)
{
	struct meta_progress p = {0};
	struct deleted d = {0};
	struct meta *m;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(&d);
	make_tree(m);
	make(m, INODE_ROOT, "stays", INODE_FILE);
	assert_int_equal(meta_remove_tree(m, &root_ctx, INODE_ROOT, "tree", false, &p), 0);
	assert_int_equal(meta_remove_tree(m, &root_ctx, INODE_ROOT, "tree", false, &p), -ENOENT);
	assert_int_equal(p.files, 1 + WIDE + 40 * 4 + 2);
	close_meta(m);
	assert_int_equal(keys("i*"), 2); /* root, and what stays */
	assert_int_equal(keys("d[0-9]*"), 1);
	assert_int_equal(keys("[cspx][0-9]*"), 0);
	assert_int_equal(raw_int("GET usedSpace"), 4096);
	assert_int_equal(raw_int("GET totalInodes"), 1);
	assert_int_equal(raw_int("ZCARD delfiles"), 0);
	assert_int_equal(raw_int("HGET dirUsedInodes 1"), 1);
	assert_int_equal(raw_int("HLEN dirUsedInodes"), 1);
	assert_int_equal(d.n, 13 + 80);
	{
		struct attr a;

		m = open_redis(NULL);
		assert_int_equal(meta_getattr(m, INODE_ROOT, &a), 0);
		assert_int_equal(a.nlink, 2);
		close_meta(m);
	}
}

static void a_tree_goes_into_the_trash(void **state)
{
	struct deleted d = {0};
	struct meta *m;

	(void)state;
	NEED_SERVER();
	fresh_volume(1);
	m = open_redis(&d);
	make_tree(m);
	assert_int_equal(meta_remove_tree(m, &root_ctx, INODE_ROOT, "tree", false, NULL), 0);
	close_meta(m);
	assert_int_equal(d.n, 0);
	/* one hour, or two: all entries, and each inode */
	assert_int_equal(raw_int("HLEN d9223372032828243969") +
				 raw_int("HLEN d9223372032828243970"),
			 1 + WIDE + 40 * 4 + 2);
	assert_int_equal(raw_int("GET totalInodes"),
			 1 + WIDE + 40 * 4 + raw_int("HLEN d9223372032828243968"));
	assert_int_equal(raw_int("EXISTS i2"), 1);
}

static void past_the_trash_and_with_an_open_file(void **state)
{
	struct deleted d = {0};
	struct chunk_list l;
	struct meta *m;
	struct attr a;
	uint64_t f;

	(void)state;
	NEED_SERVER();
	fresh_volume(1);
	m = open_redis(&d);
	f = find(m, make_tree(m), "file100", &a);
	assert_int_equal(meta_open(m, &root_ctx, f, O_RDONLY, &l), 0);
	chunk_list_fini(&l);
	assert_int_equal(meta_remove_tree(m, &root_ctx, INODE_ROOT, "tree", true, NULL), 0);
	assert_int_equal(raw_int("EXISTS d9223372032828243968"), 0);
	assert_int_equal(meta_getattr(m, f, &a), 0);
	assert_int_equal(a.nlink, 0);
	assert_int_equal(keys("session[0-9]*"), 1);
	assert_int_equal(meta_close(m, f), 0);
	assert_int_equal(meta_getattr(m, f, &a), -ENOENT);
	close_meta(m);
	assert_int_equal(d.n, 13 + 80);
	assert_int_equal(raw_int("GET totalInodes"), 0);
}

static void what_may_not_go_stops_it(void **state)
{
	struct meta *m;
	uint64_t top;
	char cmd[64];
	struct attr a;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(NULL);
	top = make(m, INODE_ROOT, "top", INODE_DIR);
	make(m, top, "a", INODE_FILE);
	top = make(m, top, "b", INODE_DIR);
	snprintf(cmd, sizeof(cmd), "SETRANGE i%" PRIu64 " 0 \x01", make(m, top, "x", INODE_FILE));
	raw_run(cmd); /* immutable */
	assert_int_equal(meta_remove_tree(m, &root_ctx, INODE_ROOT, "top", true, NULL), -EPERM);
	find(m, top, "x", &a);
	assert_int_equal(meta_remove_tree(m, &root_ctx, INODE_ROOT, ".", true, NULL), -EINVAL);
	assert_int_equal(meta_remove_tree(m, &root_ctx, INODE_ROOT, ".trash", true, NULL), -EPERM);
	close_meta(m);
}

/* --- clones --- */

static void same_tree(struct meta *m, uint64_t a, uint64_t b, uint64_t parent)
{
	struct meta_dir *d;
	struct attr x, y;
	size_t n;

	assert_int_equal(meta_getattr(m, a, &x), 0);
	assert_int_equal(meta_getattr(m, b, &y), 0);
	assert_int_equal(x.type, y.type);
	assert_int_equal(x.mode, y.mode);
	assert_int_equal(x.length, y.length);
	assert_int_equal(y.parent, parent);
	assert_int_equal(y.nlink, x.type == INODE_DIR ? x.nlink : 1);
	if (x.type == INODE_SYMLINK) {
		char *s;

		assert_int_equal(meta_readlink(m, b, &s), 0);
		assert_string_equal(s, "target");
		free(s);
	}
	if (x.type == INODE_FILE) {
		struct chunk_list p, q;

		assert_int_equal(meta_read(m, a, 0, 1, &p), 0);
		assert_int_equal(meta_read(m, b, 0, 1, &q), 0);
		assert_int_equal(p.n, q.n);
		for (size_t i = 0; i < p.n; i++)
			assert_int_equal(p.slices[i].id, q.slices[i].id);
		chunk_list_fini(&p);
		chunk_list_fini(&q);
	}
	if (x.type != INODE_DIR)
		return;
	assert_int_equal(meta_readdir(m, a, false, &d), 0);
	n = d->n;
	for (size_t i = 0; i < d->n; i++) {
		struct attr z;

		same_tree(m, d->entries[i].inode, find(m, b, d->entries[i].name, &z), b);
	}
	meta_dir_free(d);
	assert_int_equal(meta_readdir(m, b, false, &d), 0);
	assert_int_equal(d->n, n);
	meta_dir_free(d);
}

static int64_t field(const char *hash, uint64_t dir)
{
	char cmd[64];

	snprintf(cmd, sizeof(cmd), "HGET %s %" PRIu64, hash, dir);
	return raw_int(cmd);
}

static void a_clone_is_the_same_tree_of_its_own(void **state)
{
	struct meta_progress p = {0};
	struct deleted d = {0};
	struct meta *m;
	uint64_t a, b, f;
	struct attr attr;
	char *value;
	size_t len;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(&d);
	a = make_tree(m);
	assert_int_equal(meta_clone(m, &root_ctx, a, INODE_ROOT, "copy", true, 0, &p), 0);
	b = find(m, INODE_ROOT, "copy", &attr);
	same_tree(m, a, b, INODE_ROOT);
	assert_int_equal(p.files, 1 + WIDE + 40 * 4 + 2);
	assert_int_equal(raw_int("EXISTS detachedNodes"), 0);
	assert_int_equal(meta_getxattr(m, b, "user.d", &value, &len), 0);
	free(value);
	f = find(m, b, "file0", &attr);
	assert_int_equal(meta_getxattr(m, f, "user.x", &value, &len), 0);
	assert_int_equal(len, 2);
	free(value);
	assert_int_equal(meta_getattr(m, INODE_ROOT, &attr), 0);
	assert_int_equal(attr.nlink, 4);
	stat_flush(redis_engine(m), soon());
	assert_int_equal(raw_int("GET totalInodes"), 2 * (1 + WIDE + 40 * 4) + 2);
	assert_int_equal(field("dirUsedInodes", b), field("dirUsedInodes", a));
	assert_int_equal(field("dirUsedSpace", b), field("dirUsedSpace", a));
	assert_int_equal(field("dirDataLength", b), field("dirDataLength", a));
	assert_int_equal(raw_int("HGET dirUsedInodes 1"), 2);
	assert_int_equal(raw_int("HGET dirDataLength 1"), 0);
	/* the slices outlive the first tree, and go with the second */
	assert_int_equal(meta_remove_tree(m, &root_ctx, INODE_ROOT, "tree", true, NULL), 0);
	close_meta(m);
	assert_int_equal(d.n, 0);
	m = open_redis(&d);
	assert_int_equal(meta_remove_tree(m, &root_ctx, INODE_ROOT, "copy", true, NULL), 0);
	close_meta(m);
	assert_int_equal(d.n, 13 + 80);
	assert_int_equal(raw_int("HLEN sliceRef"), 0);
	assert_int_equal(raw_int("GET usedSpace"), 0);
}

static void owner_mode_and_times_are_the_callers_unless_told(void **state)
{
	uint64_t f, g;
	struct attr a, b;
	struct meta *m;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(NULL);
	f = make(m, INODE_ROOT, "f", INODE_FILE);
	put(m, f, 0, 100);
	assert_int_equal(meta_clone(m, &user_ctx, f, INODE_ROOT, "g", false, 027, NULL), 0);
	g = find(m, INODE_ROOT, "g", &b);
	assert_int_equal(b.uid, 1000);
	assert_int_equal(b.gid, 1000);
	assert_int_equal(b.mode, 0750);
	assert_true(b.mtime.sec > 1000000);
	assert_int_equal(meta_clone(m, &user_ctx, f, INODE_ROOT, "h", true, 027, NULL), 0);
	find(m, INODE_ROOT, "h", &b);
	assert_int_equal(meta_getattr(m, f, &a), 0);
	assert_int_equal(b.uid, 0);
	assert_int_equal(b.mode, 0755);
	assert_int_equal(b.mtime.sec, a.mtime.sec);
	assert_int_equal(meta_clone(m, &root_ctx, f, INODE_ROOT, "g", true, 0, NULL), -EEXIST);
	assert_int_equal(meta_clone(m, &root_ctx, f, g, "x", true, 0, NULL), -ENOTDIR);
	assert_int_equal(meta_clone(m, &root_ctx, 4711, INODE_ROOT, "x", true, 0, NULL), -ENOENT);
	assert_int_equal(raw_int("GET totalInodes"), 3);
	close_meta(m);
}

static void a_file_of_many_lists_is_cloned_in_steps(void **state)
{
	struct chunk_list l;
	struct attr a;
	struct meta *m;
	uint64_t f, g;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(NULL);
	f = make(m, INODE_ROOT, "f", INODE_FILE);
	for (uint64_t i = 0; i < 700; i++)
		put(m, f, i * CHUNK_SIZE, 10);
	put(m, f, UINT64_C(30000) * CHUNK_SIZE, 10);
	assert_int_equal(meta_clone(m, &root_ctx, f, INODE_ROOT, "g", true, 0, NULL), 0);
	g = find(m, INODE_ROOT, "g", &a);
	assert_int_equal(a.parent, INODE_ROOT);
	assert_int_equal(a.length, UINT64_C(30000) * CHUNK_SIZE + 10);
	assert_int_equal(meta_read(m, g, 699, 1, &l), 0);
	assert_int_equal(l.n, 1);
	chunk_list_fini(&l);
	assert_int_equal(meta_read(m, g, 30000, 1, &l), 0);
	assert_int_equal(l.n, 1);
	chunk_list_fini(&l);
	assert_int_equal(raw_int("HLEN sliceRef"), 701);
	assert_int_equal(raw_int("EXISTS detachedNodes"), 0);
	assert_int_equal(raw_int("GET totalInodes"), 2);
	assert_int_equal(raw_int("GET usedSpace"), 2 * align4k(a.length));
	stat_flush(redis_engine(m), soon());
	assert_int_equal(raw_int("HGET dirUsedInodes 1"), 2);
	assert_int_equal(raw_int("HLEN dirUsedInodes"), 1);
	close_meta(m);
}

static int attach_to_root(struct meta *m, uint64_t dir, const char *name)
{
	struct meta_redis *mr = redis_engine(m);
	struct redis_reply *r = NULL;
	struct args args;
	int e;

	args_init(&args, mr);
	op_begin(mr, &args);
	args_be64(&args, dir);
	args_be64(&args, INODE_ROOT);
	args_text(&args, name);
	e = op_eval(mr, SC_ATTACH, &args, &r);
	op_end(mr, &args);
	redis_reply_free(r);
	return e;
}

/* a clone whose last answer was lost is removed again: there it may be the user's by now */
static void what_became_visible_is_not_emptied(void **state)
{
	struct meta *m;
	uint64_t dir;
	struct attr a;
	uint64_t f;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(NULL);
	dir = make_mode(m, &root_ctx, INODE_ROOT, "copy", INODE_DIR, 0755);
	make_mode(m, &root_ctx, dir, "f", INODE_FILE, 0644);
	assert_int_equal(detached_clean(redis_engine(m), dir, NULL), 0);
	assert_int_equal(meta_lookup(m, &root_ctx, dir, "f", &f, &a), 0);
	/* begun to be removed: it never becomes visible */
	raw_run("HDEL d1 copy");
	raw_of("ZADD detachedNodes 0 ", dir);
	assert_int_equal(attach_to_root(m, dir, "copy"), -ENOENT);
	raw_of("ZADD detachedNodes 5000 ", dir);
	assert_int_equal(attach_to_root(m, dir, "copy"), 0);
	assert_int_equal(detached_clean(redis_engine(m), dir, NULL), 0);
	assert_int_equal(meta_lookup(m, &root_ctx, dir, "f", &f, &a), 0);
	close_meta(m);
}

static void a_clone_that_is_given_up_leaves_nothing(void **state)
{
	struct meta_progress p = {.cancel = 1};
	struct meta *m;
	uint64_t a;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(NULL);
	a = make_tree(m);
	assert_int_equal(meta_clone(m, &root_ctx, a, INODE_ROOT, "copy", true, 0, &p), -EINTR);
	assert_int_equal(raw_int("GET totalInodes"), 1 + WIDE + 40 * 4);
	assert_int_equal(raw_int("EXISTS detachedNodes"), 0);
	assert_int_equal(raw_int("HLEN sliceRef"), 0);
	assert_int_equal(raw_int("HEXISTS d1 copy"), 0);
	close_meta(m);
}

/* STOKE_ENTRIES=1000000 for the whole of it */
static void redis_never_stands_still_for_a_large_directory(void **state)
{
	const char *env = getenv("STOKE_ENTRIES");
	uint64_t n = env ? strtoull(env, NULL, 10) : 20000;
	struct meta_progress p = {0};
	struct redis_reply *r = NULL;
	struct deleted d = {0};
	uint64_t us;
	struct meta *m;

	(void)state;
	NEED_SERVER();
	fresh_volume(1);
	m = open_redis(&d);
	assert_int_equal(make(m, INODE_ROOT, "large", INODE_DIR), 2);
	/* files of one page, as the format has them */
	for (uint64_t i = 0; i < n; i += 10000) {
		assert_int_equal(
			redis_once(
				raw, soon(), &r, "EVAL %s 0 %llu",
				"local p=function(v) return string.char(math.floor(v/16777216)%256,"
				"math.floor(v/65536)%256,math.floor(v/256)%256,v%256) end "
				"for i=1000+ARGV[1],10999+ARGV[1] do "
				"redis.call('SET','i'..i,'\\0\\16"
				"\\255'..string.rep('\\0',44)..p(1)..p(0)..p(5)..p(0)..p(0)..p(2)"
				"..'\\0') "
				"redis.call('HSET','d2','file'..i,'\\1\\0\\0\\0\\0'..p(i)) end",
				(unsigned long long)i),
			0);
		redis_reply_free(r);
		r = NULL;
	}
	raw_run("CONFIG RESETSTAT");
	assert_int_equal(meta_remove_tree(m, &root_ctx, INODE_ROOT, "large", true, &p), 0);
	assert_int_equal(p.files, n + 1);
	close_meta(m);
	/* at most 1 000 keys a script */
	assert_true(raw_scripts(&us) >= n / 1000);
	print_message("a script took %llu us\n", (unsigned long long)us);
	assert_true(us < 20000);
	assert_int_equal(keys("i*"), 2);
	assert_int_equal(raw_int("ZCARD delfiles"), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_tree_goes_without_a_trace),
		cmocka_unit_test(a_tree_goes_into_the_trash),
		cmocka_unit_test(past_the_trash_and_with_an_open_file),
		cmocka_unit_test(what_may_not_go_stops_it),
		cmocka_unit_test(a_clone_is_the_same_tree_of_its_own),
		cmocka_unit_test(owner_mode_and_times_are_the_callers_unless_told),
		cmocka_unit_test(a_file_of_many_lists_is_cloned_in_steps),
		cmocka_unit_test(a_clone_that_is_given_up_leaves_nothing),
		cmocka_unit_test(what_became_visible_is_not_emptied),
		cmocka_unit_test(redis_never_stands_still_for_a_large_directory),
	};

	return cmocka_run_group_tests(tests, start_server, stop_server);
}
