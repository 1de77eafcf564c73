/* SPDX-License-Identifier: Apache-2.0 */
/* Both metadata engines against each other: the same random operations on the engine in memory and
 * on Redis (a real redis-server), every answer compared, then the whole tree, counters, statistics
 * and deletes. */
#include "tests/unit/meta/volume.h"

enum { NODES = 400, NAMES = 12, OPS = 4000 };

/* printed with the test's name; STOKE_SEED repeats one */
static unsigned random_seed(void)
{
	const char *s = getenv("STOKE_SEED");

	return s ? (unsigned)strtoul(s, NULL, 10) : (unsigned)time(NULL);
}

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
	assert_int_equal(a->access_acl, b->access_acl);
	assert_int_equal(a->default_acl, b->default_acl);
	if (a->parent >= INODE_TRASH || a->parent == 0)
		assert_int_equal(a->parent, b->parent);
	else
		assert_int_equal(find_node(t, 0, a->parent), find_node(t, 1, b->parent));
}

static const struct meta_ctx *pick_ctx(struct twins *t)
{
	static const uint32_t gids[] = {1001, 7};
	static const struct meta_ctx checked[] = {
		{.uid = 1000, .gid = 1000, .check = true},
		{.uid = 1000, .gid = 1000, .check = true, .gids = gids, .n_gids = 2},
		{.uid = 1001, .gid = 1001, .check = true},
	};

	switch (pick(t, 8)) {
	case 6:
		return &checked[pick(t, ARRAY_LEN(checked))];
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

/* a node that nobody made by name */
static void add_node(struct twins *t, const uint64_t inode[2], bool dir)
{
	assert_int_equal(find_node(t, 0, inode[0]), find_node(t, 1, inode[1]));
	if (find_node(t, 0, inode[0]) >= 0 || t->n == NODES)
		return;
	t->node[t->n].dir = dir;
	t->node[t->n].opens = 0;
	for (int k = 0; k < 2; k++)
		t->node[t->n].inode[k] = inode[k];
	t->n++;
}

static void see_whiteout(struct twins *t, unsigned dir, const char *name)
{
	uint64_t inode[2];
	struct attr a[2];
	int r[2];

	for (int k = 0; k < 2; k++)
		r[k] = meta_lookup(t->m[k], &root_ctx, t->node[dir].inode[k], name, &inode[k],
				   &a[k]);
	assert_int_equal(r[0], r[1]);
	if (r[0])
		return;
	same_attr(t, &a[0], &a[1]);
	add_node(t, inode, a[0].type == INODE_DIR);
}

static void op_rename(struct twins *t)
{
	static const unsigned flags[] = {0,
					 0,
					 0,
					 RENAME_F_NOREPLACE,
					 RENAME_F_EXCHANGE,
					 RENAME_F_WHITEOUT,
					 RENAME_F_WHITEOUT | RENAME_F_NOREPLACE,
					 RENAME_F_WHITEOUT | RENAME_F_EXCHANGE,
					 3};
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
	if (f & RENAME_F_WHITEOUT)
		see_whiteout(t, from, name);
}

/* open, as a file without a name always is */
static void op_tmpfile(struct twins *t)
{
	unsigned dir = pick_node(t, true);
	const struct meta_ctx *c = pick_ctx(t);
	uint32_t mode = pick(t, 4096);
	struct chunk_list l[2];
	uint64_t inode[2];
	struct attr a[2];
	int r[2];

	if (t->n == NODES)
		return;
	for (int k = 0; k < 2; k++)
		r[k] = meta_tmpfile(t->m[k], c, t->node[dir].inode[k], mode, 027, &inode[k], &a[k]);
	assert_int_equal(r[0], r[1]);
	if (r[0])
		return;
	assert_int_equal(a[0].nlink, 0);
	same_attr(t, &a[0], &a[1]);
	add_node(t, inode, false);
	t->node[t->n - 1].opens = 1;
	for (int k = 0; k < 2; k++) {
		assert_int_equal(meta_open(t->m[k], &root_ctx, inode[k], O_RDWR, &l[k]), 0);
		chunk_list_fini(&l[k]);
	}
}

static void op_acl(struct twins *t)
{
	struct acl_entry users[] = {{1000, (uint16_t)pick(t, 8)}, {7, 5}};
	struct acl_entry groups[] = {{1001, (uint16_t)pick(t, 8)}};
	enum acl_type type = pick(t, 2) ? ACL_DEFAULT : ACL_ACCESS;
	unsigned node = type == ACL_DEFAULT ? pick_node(t, true) : pick(t, t->n);
	const struct meta_ctx *c = pick_ctx(t);
	struct acl rule = {.owner = 4 | pick(t, 4),
			   .group = (uint16_t)pick(t, 8),
			   .mask = (uint16_t)pick(t, 8),
			   .other = (uint16_t)pick(t, 8),
			   .n_users = pick(t, 3),
			   .users = users,
			   .n_groups = pick(t, 2),
			   .groups = groups};
	bool none = pick(t, 5) == 0, get = pick(t, 2);
	struct str text[2] = {STR_INIT, STR_INIT};
	struct acl got[2];
	struct attr a[2];
	int r[2];

	if (rule.n_users + rule.n_groups == 0)
		rule.mask = ACL_ABSENT;
	for (int k = 0; k < 2; k++) {
		uint64_t inode = t->node[node].inode[k];

		r[k] = get ? meta_getfacl(t->m[k], inode, type, &got[k])
			   : meta_setfacl(t->m[k], c, inode, type, none ? NULL : &rule, &a[k]);
		if (get && !r[k]) {
			acl_encode(&got[k], &text[k]);
			acl_fini(&got[k]);
		}
	}
	assert_int_equal(r[0], r[1]);
	assert_string_equal(str_c(&text[0]), str_c(&text[1]));
	if (!get && !r[0])
		same_attr(t, &a[0], &a[1]);
	str_fini(&text[0]);
	str_fini(&text[1]);
}

static void op_access(struct twins *t)
{
	unsigned node = pick(t, t->n), want = pick(t, 8);
	const struct meta_ctx *c = pick_ctx(t);
	int r[2];

	for (int k = 0; k < 2; k++)
		r[k] = meta_access(t->m[k], c, t->node[node].inode[k], want, NULL);
	assert_int_equal(r[0], r[1]);
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
	if (pick(t, 5) == 0) {
		set |= SET_FLAGS;
		want.flags = pick(t, 3) ? 0 : (uint8_t)pick(t, 64);
	}
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
		assert_int_equal(meta_new_slice(t->m[k], &id[k], &(struct hash128){{0}}), 0);
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
	const struct meta_ctx *c = pick_ctx(t);
	int f = flags[pick(t, ARRAY_LEN(flags))], r[2];
	struct chunk_list l[2];

	if (t->node[node].opens && pick(t, 2)) {
		t->node[node].opens--;
		for (int k = 0; k < 2; k++)
			assert_int_equal(meta_close(t->m[k], t->node[node].inode[k]), 0);
		return;
	}
	for (int k = 0; k < 2; k++)
		r[k] = meta_open(t->m[k], c, t->node[node].inode[k], f, &l[k]);
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
	if (!trashed && d[0]->n)
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
		op_mknod, op_mknod,   op_mknod,	   op_remove, op_remove, op_rename,  op_rename,
		op_link,  op_setattr, op_truncate, op_write,  op_write,	 op_read,    op_open,
		op_open,  op_xattr,   op_acl,	   op_acl,    op_access, op_tmpfile,
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
	volume_enable("EnableACL");
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
		assert_int_equal(meta_statfs(t.m[k], 0, &s[k]), 0);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(engines_agree_without_trash),
		cmocka_unit_test(engines_agree_with_trash),
	};

	return cmocka_run_group_tests(tests, start_server, stop_server);
}
