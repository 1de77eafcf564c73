/* SPDX-License-Identifier: Apache-2.0 */
/* The engine in memory, for tests: an empty volume, its inodes, and what only reads. Any thread;
 * one lock over everything. */
#include "client/meta/meta_mem.h"

#include "common/hash.h"

static bool inode_eq(const struct hash_node *n, const void *key)
{
	return container_of(n, struct mem_inode, node)->inode == *(const uint64_t *)key;
}

struct mem_inode *mem_find_locked(struct meta_mem *mm, uint64_t inode)
{
	struct hash_node *n = hashmap_find(&mm->inodes, hash64(&inode, 8), inode_eq, &inode);

	return n ? container_of(n, struct mem_inode, node) : NULL;
}

struct mem_inode *mem_make_locked(struct meta_mem *mm, uint64_t inode, const struct attr *a)
{
	struct mem_inode *i = calloc(1, sizeof(*i));

	if (!i)
		return NULL;
	i->inode = inode;
	i->a = *a;
	list_init(&i->entries);
	list_init(&i->parents);
	list_init(&i->xattrs);
	list_init(&i->chunks);
	hashmap_add(&mm->inodes, &i->node, hash64(&inode, 8));
	return i;
}

void mem_take_locked(struct meta_mem *mm, struct mem_inode *i)
{
	hashmap_del(&mm->inodes, &i->node);
}

void mem_xattrs_free(struct mem_inode *i)
{
	struct list_node *n;

	while ((n = list_pop(&i->xattrs))) {
		struct mem_xattr *x = container_of(n, struct mem_xattr, link);

		free(x->value);
		free(x);
	}
}

void mem_inode_free(struct meta_mem *mm, struct mem_inode *i, bool data)
{
	struct list_node *n;

	if (!i)
		return;
	while ((n = list_pop(&i->chunks))) {
		struct mem_chunk *c = container_of(n, struct mem_chunk, link);

		for (size_t k = 0; data && mm->base.delete_fn && k < c->n; k++) {
			if (c->slices[k].id && mem_ref_drop(mm, c->slices[k].id))
				(void)mm->base.delete_fn(mm->base.delete_arg, c->slices[k].id,
							 c->slices[k].size);
		}
		free(c->slices);
		free(c);
	}
	while ((n = list_pop(&i->entries)))
		free(container_of(n, struct mem_entry, link));
	while ((n = list_pop(&i->parents)))
		free(container_of(n, struct mem_parent, link));
	mem_xattrs_free(i);
	free(i->target);
	free(i);
}

struct mem_entry *mem_entry_find(struct mem_inode *dir, const char *name)
{
	struct list_node *n;

	list_for_each(n, &dir->entries)
	{
		struct mem_entry *e = container_of(n, struct mem_entry, link);

		if (!strcmp(e->name, name))
			return e;
	}
	return NULL;
}

int mem_lookup(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name,
	       uint64_t *ret, struct attr *ret_attr)
{
	struct meta_mem *mm = mem_engine(m);
	struct mem_inode *dir, *i;
	struct mem_entry *e;
	int r = -ENOENT;

	(void)c;
	mtx_lock(&mm->lock);
	dir = mem_find_locked(mm, parent);
	e = dir ? mem_entry_find(dir, name) : NULL;
	i = e ? mem_find_locked(mm, e->inode) : NULL;
	if (i) {
		*ret = i->inode;
		*ret_attr = i->a;
		r = 0;
	}
	mtx_unlock(&mm->lock);
	return r;
}

static int mem_getattr(struct meta *m, uint64_t inode, struct attr *ret)
{
	struct meta_mem *mm = mem_engine(m);
	struct mem_inode *i;

	mtx_lock(&mm->lock);
	i = mem_find_locked(mm, inode);
	if (i)
		*ret = i->a;
	mtx_unlock(&mm->lock);
	return i ? 0 : -ENOENT;
}

static int mem_readlink(struct meta *m, uint64_t inode, char **ret)
{
	struct meta_mem *mm = mem_engine(m);
	struct mem_inode *i;
	char *s = NULL;
	bool there;

	mtx_lock(&mm->lock);
	i = mem_find_locked(mm, inode);
	there = i && i->target;
	if (there)
		s = strdup(i->target);
	mtx_unlock(&mm->lock);
	if (!there)
		return -ENOENT;
	*ret = s;
	return s ? 0 : -ENOMEM;
}

static int dir_copy_locked(struct meta_mem *mm, struct mem_inode *dir, bool with_attr,
			   struct meta_dir *d) REQUIRES(mm->lock)
{
	struct list_node *n;
	size_t bytes = 0;
	char *p;

	list_for_each(n, &dir->entries) bytes +=
		container_of(n, struct mem_entry, link)->name_len + 1;
	d->entries = calloc(dir->n_entries + 1, sizeof(*d->entries));
	d->names = p = malloc(bytes + 1);
	if (!d->entries || !p)
		return -ENOMEM;
	list_for_each(n, &dir->entries)
	{
		struct mem_entry *e = container_of(n, struct mem_entry, link);
		struct mem_inode *i = mem_find_locked(mm, e->inode);
		struct meta_entry *t = &d->entries[d->n++];

		memcpy(p, e->name, e->name_len + 1);
		*t = (struct meta_entry){.inode = e->inode,
					 .attr.type = e->type,
					 .name_len = e->name_len,
					 .name = p};
		p += e->name_len + 1;
		if (with_attr && i) {
			t->attr = i->a;
			t->full = true;
		}
	}
	return 0;
}

static int mem_readdir(struct meta *m, uint64_t inode, bool with_attr, struct meta_dir **ret)
{
	struct meta_mem *mm = mem_engine(m);
	struct meta_dir *d = calloc(1, sizeof(*d));
	struct mem_inode *dir;
	int r = 0;

	if (!d)
		return -ENOMEM;
	mtx_lock(&mm->lock);
	dir = mem_find_locked(mm, inode);
	if (dir)
		r = dir_copy_locked(mm, dir, with_attr, d);
	mtx_unlock(&mm->lock);
	if (r) {
		meta_dir_free(d);
		return r;
	}
	*ret = d;
	return 0;
}

static int mem_statfs(struct meta *m, uint64_t inode, struct meta_statfs *ret)
{
	struct meta_mem *mm = mem_engine(m);
	int64_t used, total;

	(void)inode;
	mtx_lock(&mm->lock);
	used = mm->used;
	total = mm->total;
	mtx_unlock(&mm->lock);
	meta_fill_statfs(m, (uint64_t)used, (uint64_t)total, ret);
	return 0;
}

static int mem_start(struct meta *m, struct str *err)
{
	(void)err;
	m->session = m->conf.read_only ? 0 : 1;
	return 0;
}

static bool unnamed_one(struct hash_node *n, void *arg)
{
	struct mem_inode *i = container_of(n, struct mem_inode, node);

	if (i->a.nlink == 0)
		*(uint64_t *)arg = i->inode;
	return i->a.nlink != 0;
}

/* files that are still open without a name are closed now */
static void mem_stop(struct meta *m)
{
	struct meta_mem *mm = mem_engine(m);
	uint64_t inode;

	do {
		inode = 0;
		mtx_lock(&mm->lock);
		hashmap_each(&mm->inodes, unnamed_one, &inode);
		mtx_unlock(&mm->lock);
	} while (inode && mem_close(m, inode) == 0);
	m->session = 0;
}

static bool free_one(struct hash_node *n, void *arg)
{
	mem_inode_free(arg, container_of(n, struct mem_inode, node), false);
	return true;
}

static void mem_free(struct meta *m)
{
	struct meta_mem *mm = mem_engine(m);

	if (mm->inodes.slot)
		hashmap_each(&mm->inodes, free_one, mm);
	hashmap_fini(&mm->inodes);
	mem_rules_free(mm);
	mem_refs_free(mm);
	mtx_fini(&mm->lock);
	meta_fini(m);
	free(mm);
}

static const struct meta_ops mem_ops = {
	.name = "memory",
	.lookup = mem_lookup,
	.getattr = mem_getattr,
	.setattr = mem_setattr,
	.truncate = mem_truncate,
	.mknod = mem_mknod,
	.link = mem_link,
	.unlink = mem_unlink,
	.rmdir = mem_rmdir,
	.rename = mem_rename,
	.readlink = mem_readlink,
	.readdir = mem_readdir,
	.open = mem_open,
	.close = mem_close,
	.read = mem_read,
	.write = mem_write,
	.new_slice = mem_new_slice,
	.fallocate = mem_fallocate,
	.copy_file_range = mem_copy_file_range,
	.statfs = mem_statfs,
	.getxattr = mem_getxattr,
	.setxattr = mem_setxattr,
	.listxattr = mem_listxattr,
	.removexattr = mem_removexattr,
	.getfacl = mem_getfacl,
	.setfacl = mem_setfacl,
	.touch_atime = mem_touch_atime,
	.tmpfile = mem_tmpfile,
	.start = mem_start,
	.stop = mem_stop,
	.free = mem_free,
};

static int mem_setting(uint32_t block_size, unsigned trash_days, struct setting **ret)
{
	_cleanup_(str_fini) struct str text = STR_INIT, err = STR_INIT;

	str_addf(&text,
		 "{\"Name\": \"memory\", \"UUID\": \"00000000-0000-4000-8000-000000000000\", "
		 "\"Storage\": \"file\", \"Bucket\": \"/nowhere/\", \"BlockSize\": %u, "
		 "\"Compression\": \"none\", \"TrashDays\": %u, \"MetaVersion\": 1, "
		 "\"DirStats\": true, \"EnableACL\": true}",
		 block_size / 1024, trash_days);
	return str_error(&text) ? -ENOMEM : setting_parse(str_c(&text), text.len, ret, &err);
}

static int mem_roots(struct meta_mem *mm, bool trash)
{
	struct time_ns now = {.sec = time_now().sec};
	struct attr a = {.type = INODE_DIR,
			 .mode = 0777,
			 .nlink = 2,
			 .length = 4096,
			 .parent = INODE_ROOT,
			 .atime = now,
			 .mtime = now,
			 .ctime = now};
	bool ok;

	mtx_lock(&mm->lock);
	ok = mem_make_locked(mm, INODE_ROOT, &a);
	a.mode = 0555;
	ok = ok && (!trash || mem_make_locked(mm, INODE_TRASH, &a));
	mtx_unlock(&mm->lock);
	return ok ? 0 : -ENOMEM;
}

int meta_mem_new(const struct meta_conf *conf, uint32_t block_size, unsigned trash_days,
		 struct meta **ret)
{
	struct meta_mem *mm = calloc(1, sizeof(*mm));
	struct generation gen = {.b = "memory"};
	struct setting *s = NULL;
	int r = mm ? mem_setting(block_size, trash_days, &s) : -ENOMEM;

	if (r) {
		free(mm);
		return r;
	}
	r = meta_init(&mm->base, &mem_ops, conf, s);
	mtx_init(&mm->lock);
	list_init(&mm->rules);
	mm->next_inode = INODE_ROOT + 1;
	mm->next_slice = 1;
	if (!r)
		r = hashmap_init(&mm->inodes, 256);
	if (!r)
		r = hashmap_init(&mm->refs, 16);
	if (!r) {
		meta_set_generation(&mm->base, &gen);
		r = mem_roots(mm, trash_days > 0);
	}
	if (r) {
		mem_free(&mm->base);
		return r;
	}
	*ret = &mm->base;
	return 0;
}
