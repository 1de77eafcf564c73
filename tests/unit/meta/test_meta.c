/* SPDX-License-Identifier: Apache-2.0 */
/* Both metadata engines against each other: the same random operations on the engine in memory and
 * on Redis (a real redis-server), every answer compared; then what only Redis has: counters,
 * statistics, sessions, deletes, retries, the generation. */
#include "tests/unit/check.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>

#include "client/meta/meta_redis.h"
#include "common/clock.h"
#include "tests/unit/meta/redis_server.h"

enum { MB = 1 << 20, NODES = 400, NAMES = 12, OPS = 4000 };

static struct redis_server server;
static struct redis *raw;
static bool have_server;

static const struct meta_ctx root_ctx = {.uid = 0}, user_ctx = {.uid = 1000, .gid = 1000},
			     other_ctx = {.uid = 1001, .gid = 1001};

/* deleted slices, added up: the order does not matter */
struct deleted {
	uint64_t n, sum;
};

static int count_deleted(void *arg, uint64_t slice, uint32_t size)
{
	struct deleted *d = arg;

	__atomic_add_fetch(&d->n, 1, __ATOMIC_RELAXED);
	__atomic_add_fetch(&d->sum, slice * 1000003 + size, __ATOMIC_RELAXED);
	return 0;
}

static int start_server(void **state)
{
	struct str err = STR_INIT;

	(void)state;
	have_server = redis_server_start(&server) == 0;
	if (have_server)
		assert_int_equal(redis_new(server.url, NULL, &raw, &err), 0);
	str_fini(&err);
	return 0;
}

static int stop_server(void **state)
{
	(void)state;
	if (have_server) {
		redis_free(raw);
		redis_server_stop(&server);
	}
	return 0;
}

static uint64_t soon(void)
{
	return clock_us() + 5000000;
}

static int64_t raw_int(const char *cmd)
{
	struct redis_reply *r = NULL;
	int64_t v;

	assert_int_equal(redis_once(raw, soon(), &r, cmd), 0);
	v = redis_reply_int(r);
	redis_reply_free(r);
	return v;
}

static void raw_run(const char *cmd)
{
	(void)raw_int(cmd);
}

static struct meta_conf test_conf(void)
{
	return (struct meta_conf){.timeout_us = 5000000,
				  .heartbeat_us = 12000000,
				  .skip_dir_mtime_us = 0,
				  .mount_point = "/mnt/test"};
}

static void fresh_volume(unsigned trash_days)
{
	struct format_request f = {.name = "test",
				   .storage = "file",
				   .bucket = "/nowhere",
				   .block_size = 4 * MB,
				   .trash_days = trash_days};
	struct str err = STR_INIT;
	struct setting *s = NULL;
	bool created;

	raw_run("FLUSHDB");
	assert_int_equal(meta_format(raw, soon(), &f, &s, &created, &err), 0);
	assert_true(created);
	setting_free(s);
	str_fini(&err);
}

static struct meta *open_redis_conf(const struct meta_conf *conf, struct deleted *d)
{
	struct str err = STR_INIT;
	struct meta *m = NULL;
	int r = meta_redis_new(server.url, conf, &m, &err);

	if (r)
		fail_msg("meta_redis_new: %d %s", r, str_c(&err));
	meta_set_delete(m, d ? count_deleted : NULL, d);
	assert_int_equal(meta_start(m, &err), 0);
	str_fini(&err);
	return m;
}

static struct meta *open_redis(struct deleted *d)
{
	struct meta_conf conf = test_conf();

	return open_redis_conf(&conf, d);
}

static struct meta *open_mem(unsigned trash_days, struct deleted *d)
{
	struct meta_conf conf = test_conf();
	struct str err = STR_INIT;
	struct meta *m = NULL;

	assert_int_equal(meta_mem_new(&conf, 4 * MB, trash_days, &m), 0);
	meta_set_delete(m, count_deleted, d);
	assert_int_equal(meta_start(m, &err), 0);
	return m;
}

static void close_meta(struct meta *m)
{
	meta_stop(m);
	meta_free(m);
}

#define NEED_SERVER()                                                                              \
	do {                                                                                       \
		if (!have_server)                                                                  \
			skip();                                                                    \
	} while (0)

/* printed with the test's name; STOKE_SEED repeats one */
static unsigned random_seed(void)
{
	const char *s = getenv("STOKE_SEED");

	return s ? (unsigned)strtoul(s, NULL, 10) : (unsigned)time(NULL);
}

/* --- the model test --- */

/* [0]: in memory, [1]: Redis. Node numbers are the test's own; inode numbers differ, since Redis
 * uses one up for a create that fails */
struct twins {
	struct meta *m[2];
	struct deleted d[2];
	struct {
		uint64_t inode[2];
		bool dir;
		int opens;
	} node[NODES];
	unsigned n;
	unsigned seed;
	uint64_t slices;
};

static unsigned pick(struct twins *t, unsigned n)
{
	t->seed = t->seed * 1103515245 + 12345;
	return (t->seed >> 8) % n;
}

static const char *pick_name(struct twins *t, char buf[300])
{
	static const char *const odd[] = {".", "..", ".trash", "", "a/b", "\xff\xfe line\n"};
	unsigned k = pick(t, NAMES + 2);

	if (k == NAMES)
		return odd[pick(t, ARRAY_LEN(odd))];
	if (k == NAMES + 1) {
		size_t len = 253 + pick(t, 4);

		memset(buf, 'n', len);
		buf[len] = '\0';
		return buf;
	}
	snprintf(buf, 300, "name%u", k);
	return buf;
}

static unsigned pick_node(struct twins *t, bool dir)
{
	unsigned k;

	for (int i = 0; i < 50; i++) {
		k = pick(t, t->n);
		if (t->node[k].dir == dir)
			return k;
	}
	return 0;
}

static int find_node(struct twins *t, int side, uint64_t inode)
{
	for (unsigned k = 0; k < t->n; k++) {
		if (t->node[k].inode[side] == inode)
			return (int)k;
	}
	return -1;
}

static void same_attr(struct twins *t, const struct attr *a, const struct attr *b)
{
	assert_int_equal(a->flags, b->flags);
	assert_int_equal(a->type, b->type);
	assert_int_equal(a->mode, b->mode);
	assert_int_equal(a->uid, b->uid);
	assert_int_equal(a->gid, b->gid);
	assert_int_equal(a->rdev, b->rdev);
	assert_int_equal(a->nlink, b->nlink);
	assert_int_equal(a->length, b->length);
	if (a->parent >= INODE_TRASH || a->parent == 0)
		assert_int_equal(a->parent, b->parent);
	else
		assert_int_equal(find_node(t, 0, a->parent), find_node(t, 1, b->parent));
}

static const struct meta_ctx *pick_ctx(struct twins *t)
{
	switch (pick(t, 6)) {
	case 0:
		return &user_ctx;
	case 1:
		return &other_ctx;
	default:
		return &root_ctx;
	}
}

static void op_mknod(struct twins *t)
{
	static const uint32_t modes[] = {0644, 0777, 04755, 02775, 01777, 0600, 0};
	unsigned dir = pick_node(t, true);
	uint8_t type =
		pick(t, 3) ? (pick(t, 2) ? INODE_FILE : INODE_DIR) : (uint8_t)(1 + pick(t, 7));
	uint32_t mode = modes[pick(t, ARRAY_LEN(modes))], umask = pick(t, 2) ? 022 : 0;
	const struct meta_ctx *c = pick_ctx(t);
	uint64_t inode[2] = {0};
	struct attr a[2];
	char buf[300];
	const char *name = pick_name(t, buf);
	int r[2];

	if (t->n == NODES)
		return;
	for (int k = 0; k < 2; k++)
		r[k] = meta_mknod(t->m[k], c, t->node[dir].inode[k], name, type, mode, umask, 0x103,
				  "target", &inode[k], &a[k]);
	assert_int_equal(r[0], r[1]);
	if (r[0])
		return;
	same_attr(t, &a[0], &a[1]);
	t->node[t->n].dir = type == INODE_DIR;
	t->node[t->n].opens = 0;
	for (int k = 0; k < 2; k++)
		t->node[t->n].inode[k] = inode[k];
	t->n++;
}

static void op_remove(struct twins *t)
{
	unsigned dir = pick_node(t, true);
	const struct meta_ctx *c = pick_ctx(t);
	bool rmdir = pick(t, 3) == 0;
	char buf[300];
	const char *name = pick_name(t, buf);
	int r[2];

	for (int k = 0; k < 2; k++) {
		uint64_t inode = t->node[dir].inode[k];

		r[k] = rmdir ? meta_rmdir(t->m[k], c, inode, name)
			     : meta_unlink(t->m[k], c, inode, name);
	}
	assert_int_equal(r[0], r[1]);
}

static void op_rename(struct twins *t)
{
	static const unsigned flags[] = {0, 0, 0, RENAME_F_NOREPLACE, RENAME_F_EXCHANGE, 4, 3};
	unsigned from = pick_node(t, true), to = pick(t, 2) ? from : pick_node(t, true);
	unsigned f = flags[pick(t, ARRAY_LEN(flags))];
	const struct meta_ctx *c = pick_ctx(t);
	uint64_t inode[2];
	struct attr a[2];
	char b1[300], b2[300];
	const char *name = pick_name(t, b1), *new_name = pick_name(t, b2);
	int r[2];

	for (int k = 0; k < 2; k++)
		r[k] = meta_rename(t->m[k], c, t->node[from].inode[k], name, t->node[to].inode[k],
				   new_name, f, &inode[k], &a[k]);
	assert_int_equal(r[0], r[1]);
	if (r[0])
		return;
	assert_int_equal(find_node(t, 0, inode[0]), find_node(t, 1, inode[1]));
	same_attr(t, &a[0], &a[1]);
}

static void op_link(struct twins *t)
{
	unsigned node = pick_node(t, false), dir = pick_node(t, true);
	struct attr a[2];
	char buf[300];
	const char *name = pick_name(t, buf);
	int r[2];

	for (int k = 0; k < 2; k++)
		r[k] = meta_link(t->m[k], &root_ctx, t->node[node].inode[k], t->node[dir].inode[k],
				 name, &a[k]);
	assert_int_equal(r[0], r[1]);
	if (!r[0])
		same_attr(t, &a[0], &a[1]);
}

static void op_setattr(struct twins *t)
{
	unsigned node = pick(t, t->n), set = 0;
	const struct meta_ctx *c = pick_ctx(t);
	struct attr want = {.mode = (uint16_t)(pick(t, 4096)),
			    .uid = 1000 + pick(t, 2),
			    .gid = 1000 + pick(t, 2),
			    .atime = {1700000000 + pick(t, 2), 5},
			    .mtime = {pick(t, 3) ? 1600000000 : -5, 7}};
	struct attr a[2];
	int r[2];

	for (unsigned bit = 1; bit <= SET_MTIME_NOW; bit *= 2)
		set |= pick(t, 4) == 0 && bit != 8 && bit != 64 ? bit : 0;
	for (int k = 0; k < 2; k++)
		r[k] = meta_setattr(t->m[k], c, t->node[node].inode[k], set, &want, &a[k]);
	assert_int_equal(r[0], r[1]);
	if (!r[0])
		same_attr(t, &a[0], &a[1]);
}

static void op_truncate(struct twins *t)
{
	static const uint64_t lengths[] = {0,
					   1,
					   4095,
					   4096,
					   4097,
					   5 * MB,
					   CHUNK_SIZE - 1,
					   CHUNK_SIZE,
					   CHUNK_SIZE + 1,
					   UINT64_C(3) * CHUNK_SIZE + 9};
	unsigned node = pick(t, t->n);
	uint64_t length = lengths[pick(t, ARRAY_LEN(lengths))];
	bool handle = pick(t, 2);
	struct attr a[2];
	int r[2];

	for (int k = 0; k < 2; k++)
		r[k] = meta_truncate(t->m[k], &root_ctx, t->node[node].inode[k], length, handle,
				     &a[k]);
	assert_int_equal(r[0], r[1]);
	if (!r[0])
		same_attr(t, &a[0], &a[1]);
}

static void op_write(struct twins *t)
{
	unsigned node = pick(t, t->n);
	uint32_t index = pick(t, 4), len = 1 + pick(t, 3 * MB);
	struct slice s = {.pos = pick(t, CHUNK_SIZE - len), .size = len, .len = len};
	struct attr a[2];
	uint64_t id[2];
	int r[2];

	for (int k = 0; k < 2; k++) {
		assert_int_equal(meta_new_slice(t->m[k], &id[k]), 0);
		s.id = id[k];
		r[k] = meta_write(t->m[k], t->node[node].inode[k], index, &s,
				  time_of(1700000000, 1), &a[k]);
	}
	assert_int_equal(id[0], id[1]);
	assert_int_equal(r[0], r[1]);
	if (!r[0])
		same_attr(t, &a[0], &a[1]);
}

static void same_lists(struct twins *t, uint64_t a, uint64_t b)
{
	struct chunk_list l[2][5];
	int r[2] = {meta_read(t->m[0], a, 0, 5, l[0]), meta_read(t->m[1], b, 0, 5, l[1])};

	assert_int_equal(r[0], r[1]);
	for (int i = 0; !r[0] && i < 5; i++) {
		assert_int_equal(l[0][i].n, l[1][i].n);
		assert_int_equal(l[1][i].index, i);
		for (size_t j = 0; j < l[0][i].n; j++) {
			uint8_t p[SLICE_LEN], q[SLICE_LEN];

			slice_encode(&l[0][i].slices[j], p);
			slice_encode(&l[1][i].slices[j], q);
			assert_memory_equal(p, q, SLICE_LEN);
		}
		same_attr(t, &l[0][i].attr, &l[1][i].attr);
		chunk_list_fini(&l[0][i]);
		chunk_list_fini(&l[1][i]);
	}
}

static void op_read(struct twins *t)
{
	unsigned node = pick(t, t->n);

	same_lists(t, t->node[node].inode[0], t->node[node].inode[1]);
}

static void op_open(struct twins *t)
{
	static const int flags[] = {O_RDONLY, O_RDWR, O_WRONLY | O_APPEND, O_RDONLY | O_TRUNC};
	unsigned node = pick_node(t, false);
	int f = flags[pick(t, ARRAY_LEN(flags))], r[2];
	struct chunk_list l[2];

	if (t->node[node].opens && pick(t, 2)) {
		t->node[node].opens--;
		for (int k = 0; k < 2; k++)
			assert_int_equal(meta_close(t->m[k], t->node[node].inode[k]), 0);
		return;
	}
	for (int k = 0; k < 2; k++)
		r[k] = meta_open(t->m[k], &root_ctx, t->node[node].inode[k], f, &l[k]);
	assert_int_equal(r[0], r[1]);
	if (r[0])
		return;
	t->node[node].opens++;
	same_attr(t, &l[0].attr, &l[1].attr);
	assert_int_equal(l[0].n, l[1].n);
	for (int k = 0; k < 2; k++)
		chunk_list_fini(&l[k]);
}

static void op_xattr(struct twins *t)
{
	static const char *const names[] = {"user.a", "user.b", "system.posix_acl_access", ""};
	unsigned node = pick(t, t->n), what = pick(t, 3);
	const char *name = names[pick(t, ARRAY_LEN(names))];
	int flags = (int)pick(t, 3), r[2] = {0};
	char *v[2] = {NULL}, value[8];
	size_t n[2] = {0};

	snprintf(value, sizeof(value), "%u", pick(t, 1000));
	for (int k = 0; k < 2; k++) {
		uint64_t inode = t->node[node].inode[k];

		if (what == 0)
			r[k] = meta_setxattr(t->m[k], inode, name, value, strlen(value), flags);
		else if (what == 1)
			r[k] = meta_getxattr(t->m[k], inode, name, &v[k], &n[k]);
		else
			r[k] = meta_removexattr(t->m[k], inode, name);
	}
	assert_int_equal(r[0], r[1]);
	assert_int_equal(n[0], n[1]);
	if (n[0])
		assert_memory_equal(v[0], v[1], n[0]);
	free(v[0]);
	free(v[1]);
}

static int entry_cmp(const void *a, const void *b)
{
	return strcmp(((const struct meta_entry *)a)->name, ((const struct meta_entry *)b)->name);
}

/* in the trash names hold inode numbers: only the part behind them is the same on both sides */
static const char *plain_name(const struct meta_entry *e, bool trashed)
{
	const char *p = e->name;

	for (int i = 0; trashed && i < 2 && p; i++)
		p = strchr(p, '-') ? strchr(p, '-') + 1 : NULL;
	return p;
}

static void same_tree(struct twins *t, uint64_t a, uint64_t b, bool trashed)
{
	struct meta_dir *d[2];

	assert_int_equal(meta_readdir(t->m[0], a, true, &d[0]), 0);
	assert_int_equal(meta_readdir(t->m[1], b, true, &d[1]), 0);
	assert_int_equal(d[0]->n, d[1]->n);
	if (!trashed)
		for (int k = 0; k < 2; k++)
			qsort(d[k]->entries, d[k]->n, sizeof(*d[k]->entries), entry_cmp);
	for (size_t i = 0; i < d[0]->n; i++) {
		struct meta_entry *x = &d[0]->entries[i], *y = NULL;

		for (size_t j = 0; j < d[1]->n && !y; j++) {
			struct meta_entry *z = &d[1]->entries[j];

			if ((trashed && find_node(t, 0, x->inode) == find_node(t, 1, z->inode) &&
			     !strncmp(plain_name(x, true), plain_name(z, true), 200)) ||
			    (!trashed && !strcmp(x->name, z->name)))
				y = z;
		}
		assert_non_null(y);
		assert_true(x->full && y->full);
		same_attr(t, &x->attr, &y->attr);
		if (x->attr.type == INODE_FILE)
			same_lists(t, x->inode, y->inode);
		if (x->attr.type == INODE_DIR)
			same_tree(t, x->inode, y->inode, trashed || a == INODE_TRASH);
	}
	meta_dir_free(d[0]);
	meta_dir_free(d[1]);
}

/* what Redis adds up outside the operations is what is there */
static void check_dirstats(struct meta *m, uint64_t inode, int *checked)
{
	struct meta_dir *d;
	int64_t length = 0, space = 0;
	char cmd[96];

	assert_int_equal(meta_readdir(m, inode, true, &d), 0);
	for (size_t i = 0; i < d->n; i++) {
		const struct attr *a = &d->entries[i].attr;
		uint64_t len = a->type == INODE_FILE ? a->length : 0;

		length += (int64_t)len;
		space += (int64_t)align4k(len);
		if (a->type == INODE_DIR)
			check_dirstats(m, d->entries[i].inode, checked);
	}
	if (inode != INODE_TRASH) { /* as JuiceFS: the trash's root is not counted */
		snprintf(cmd, sizeof(cmd), "HGET dirUsedInodes %llu", (unsigned long long)inode);
		assert_int_equal(raw_int(cmd), d->n);
		snprintf(cmd, sizeof(cmd), "HGET dirUsedSpace %llu", (unsigned long long)inode);
		assert_int_equal(raw_int(cmd), space);
		snprintf(cmd, sizeof(cmd), "HGET dirDataLength %llu", (unsigned long long)inode);
		assert_int_equal(raw_int(cmd), length);
		++*checked;
	}
	meta_dir_free(d);
}

static void random_op(struct twins *t)
{
	static void (*const ops[])(struct twins * t) = {
		op_mknod,  op_mknod, op_mknod,	 op_remove,   op_remove, op_rename,
		op_rename, op_link,  op_setattr, op_truncate, op_write,	 op_write,
		op_read,   op_open,  op_open,	 op_xattr,
	};

	ops[pick(t, ARRAY_LEN(ops))](t);
}

static void engines_agree(unsigned trash_days, unsigned seed)
{
	struct twins t = {.seed = seed, .n = 1};
	struct meta_statfs s[2];
	int dirs = 0;

	print_message("seed %u trash %u\n", seed, trash_days);
	fresh_volume(trash_days);
	t.m[0] = open_mem(trash_days, &t.d[0]);
	t.m[1] = open_redis(&t.d[1]);
	t.node[0].dir = true;
	t.node[0].inode[0] = t.node[0].inode[1] = INODE_ROOT;
	for (int i = 0; i < OPS; i++)
		random_op(&t);
	same_tree(&t, INODE_ROOT, INODE_ROOT, false);
	if (trash_days)
		same_tree(&t, INODE_TRASH, INODE_TRASH, false);
	for (unsigned i = 0; i < t.n; i++)
		for (; t.node[i].opens; t.node[i].opens--)
			for (int k = 0; k < 2; k++)
				assert_int_equal(meta_close(t.m[k], t.node[i].inode[k]), 0);
	for (int k = 0; k < 2; k++)
		assert_int_equal(meta_statfs(t.m[k], &s[k]), 0);
	assert_int_equal(s[0].used_inodes, s[1].used_inodes);
	assert_int_equal(s[0].avail_bytes, s[1].avail_bytes);
	meta_stop(t.m[1]);
	check_dirstats(t.m[1], INODE_ROOT, &dirs);
	if (trash_days)
		check_dirstats(t.m[1], INODE_TRASH, &dirs);
	assert_true(dirs > 3);
	meta_free(t.m[1]);
	close_meta(t.m[0]);
	assert_int_equal(t.d[0].n, t.d[1].n);
	assert_int_equal(t.d[0].sum, t.d[1].sum);
	assert_int_equal(raw_int("ZCARD delfiles"), 0);
	assert_int_equal(raw_int("HLEN sliceRef"), 0);
	assert_int_equal(raw_int("EXISTS _ops"), 0);
	assert_int_equal(raw_int("ZCARD allSessions"), 0);
	assert_int_equal(raw_int("HLEN sessionInfos"), 0);
}

static void engines_agree_without_trash(void **state)
{
	(void)state;
	NEED_SERVER();
	engines_agree(0, 1);
	engines_agree(0, random_seed());
}

static void engines_agree_with_trash(void **state)
{
	(void)state;
	NEED_SERVER();
	engines_agree(1, 2);
	engines_agree(1, random_seed());
}

/* --- what only Redis has --- */

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
		assert_int_equal(meta_new_slice(m, &s.id), 0);
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
		assert_int_equal(meta_new_slice(m, &s.id), 0);
	assert_int_equal(s.id, 5000);
	raw_run("SET nextchunk 100"); /* as a stale replica has it */
	assert_int_equal(meta_write(m, inode, 0, &s, time_of(1, 1), &a), -ESTALE);
	assert_int_equal(told, 1);
	after = meta_volume_id(m);
	assert_memory_not_equal(before.b, after.b, 16);
	assert_int_equal(meta_new_slice(m, &id), 0);
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
	assert_int_equal(meta_new_slice(m, &s.id), 0);
	raw_run("SET _gen abcdefgh");
	assert_int_equal(meta_write(m, inode, 0, &s, time_of(1, 1), &a), -ESTALE);
	assert_int_equal(raw_int("EXISTS c2_0"), 0);
	assert_int_equal(meta_new_slice(m, &s.id), 0);
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

static void a_quota_or_a_new_setting_ends_writing_by_name(void **state)
{
	struct meta_conf conf = test_conf();
	struct str err = STR_INIT;
	struct meta *m = NULL;
	struct attr a;
	uint64_t x;
	int r = 0;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	conf.heartbeat_us = 100000;
	m = open_redis_conf(&conf, NULL);
	raw_run("HSET dirQuota 1 xxxxxxxxxxxxxxxx");
	for (int i = 0; i < 500 && r != -EROFS; i++) {
		r = meta_mknod(m, &root_ctx, 1, "d", INODE_FILE, 0, 0, 0, "", &x, &a);
		usleep(10000);
	}
	assert_int_equal(r, -EROFS);
	close_meta(m);
	m = NULL;
	assert_int_equal(meta_redis_new(server.url, &conf, &m, &err), -EOPNOTSUPP);
	assert_non_null(strstr(str_c(&err), "directory quotas"));
	conf.read_only = true;
	str_reset(&err);
	assert_int_equal(meta_redis_new(server.url, &conf, &m, &err), 0);
	assert_int_equal(meta_start(m, &err), 0);
	assert_int_equal(meta_session_id(m), 0);
	assert_int_equal(meta_mknod(m, &root_ctx, 1, "q", INODE_FILE, 0, 0, 0, "", &x, &a), -EROFS);
	assert_int_equal(meta_getattr(m, 1, &a), 0);
	close_meta(m);
	str_fini(&err);
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
	assert_int_equal(meta_new_slice(m, &s.id), 0);
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

static void entries_of_dead_sessions_leave_ops(void **state)
{
	struct meta *m;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	raw_run("HSET _ops 77_0 x 77_1 y junk z");
	m = open_redis(NULL);
	make(m, "a", INODE_FILE);
	assert_int_equal(raw_int("HLEN _ops"), 1);
	close_meta(m);
	assert_int_equal(raw_int("HLEN _ops"), 0);
}

static void more_open_files_than_a_script_is_told(void **state)
{
	struct chunk_list l;
	struct meta *m;
	uint64_t inode[OPEN_LIST_MAX + 10];
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(engines_agree_without_trash),
		cmocka_unit_test(engines_agree_with_trash),
		cmocka_unit_test(a_script_asked_again_does_nothing_and_answers_the_same),
		cmocka_unit_test(inode_numbers_above_2_53_are_exact),
		cmocka_unit_test(lengths_up_to_2_57_are_exact),
		cmocka_unit_test(truncating_a_huge_sparse_file_puts_zeros_over_all_lists),
		cmocka_unit_test(a_limit_of_the_volume_is_enospc),
		cmocka_unit_test(formatting_twice_makes_one_volume),
		cmocka_unit_test(a_database_that_went_back_changes_the_volume_id),
		cmocka_unit_test(another_generation_makes_a_write_stale_once),
		cmocka_unit_test(a_volume_that_is_gone_takes_no_more_writes),
		cmocka_unit_test(a_quota_or_a_new_setting_ends_writing_by_name),
		cmocka_unit_test(a_reader_of_a_volume_without_generation_uses_no_group),
		cmocka_unit_test(a_file_open_here_lives_until_its_last_close),
		cmocka_unit_test(entries_of_dead_sessions_leave_ops),
		cmocka_unit_test(more_open_files_than_a_script_is_told),
		cmocka_unit_test(a_big_directory_lists_each_name_once),
	};

	return cmocka_run_group_tests(tests, start_server, stop_server);
}
