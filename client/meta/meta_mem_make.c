/* SPDX-License-Identifier: Apache-2.0 */
/* The engine in memory: inodes that are made; the rules are those of mknod.lua and tmpfile.lua. Any
 * thread. */
#include "client/meta/meta_mem.h"

enum { SGID = 02000 };

static bool of_group(const struct meta_ctx *c, uint32_t gid)
{
	for (size_t i = 0; i < c->n_gids; i++) {
		if (c->gids[i] == gid)
			return true;
	}
	return c->gid == gid;
}

static int fresh_attr_locked(struct meta_mem *mm, const struct mem_inode *dir,
			     const struct mem_make *k, struct attr *ret) REQUIRES(mm->lock)
{
	const struct meta_ctx *c = k->c;
	struct attr a = {
		.flags = dir->a.flags & ATTR_SKIP_TRASH,
		.type = k->type,
		.tier = dir->a.tier,
		.mode = k->mode & 07777,
		.uid = c->uid,
		.gid = c->gid,
		.rdev = k->rdev,
		.nlink = k->type == INODE_DIR ? 2 : 1,
		.length = k->type == INODE_DIR ? 4096 : strlen(k->target),
		.parent = dir->inode,
		.atime = k->now,
		.mtime = k->now,
		.ctime = k->now,
	};
	int r = 0;

	if (dir->a.default_acl && k->type != INODE_SYMLINK)
		r = mem_inherit_locked(mm, &dir->a, &a);
	else
		a.mode &= (uint16_t)~k->umask;
	if (dir->a.mode & SGID) {
		a.gid = dir->a.gid;
		if (k->type == INODE_DIR)
			a.mode |= SGID;
		else if (c->check && c->uid != 0 && (a.mode & 02010) == 02010 &&
			 !of_group(c, a.gid))
			a.mode &= (uint16_t)~SGID;
	}
	*ret = a;
	return r;
}

int mem_make_in_locked(struct meta_mem *mm, const struct mem_inode *dir, const struct mem_make *k,
		       struct mem_inode **ret)
{
	char *copy = k->type == INODE_SYMLINK ? strdup(k->target) : NULL;
	struct mem_inode *i = NULL;
	struct attr a;
	int r = k->type == INODE_SYMLINK && !copy ? -ENOMEM : 0;

	if (!r)
		r = fresh_attr_locked(mm, dir, k, &a);
	if (!r) {
		i = mem_make_locked(mm, mm->next_inode, &a);
		r = i ? 0 : -ENOMEM;
	}
	if (r) {
		free(copy);
		return r;
	}
	mm->next_inode++;
	mm->used += 4096;
	mm->total++;
	i->target = copy;
	*ret = i;
	return 0;
}

int mem_tmpfile(struct meta *m, const struct meta_ctx *c, uint64_t parent, uint32_t mode,
		uint32_t umask, uint64_t *ret, struct attr *ret_attr)
{
	struct meta_mem *mm = mem_engine(m);
	struct mem_make k = {.c = c,
			     .type = INODE_FILE,
			     .mode = mode,
			     .umask = umask,
			     .target = "",
			     .now = time_now()};
	struct mem_inode *dir, *i = NULL;
	int r;

	mtx_lock(&mm->lock);
	dir = mem_find_locked(mm, parent);
	r = mem_check_into(dir);
	if (!r)
		r = mem_make_in_locked(mm, dir, &k, &i);
	if (!r) {
		i->a.nlink = 0;
		*ret = i->inode;
		*ret_attr = i->a;
	}
	mtx_unlock(&mm->lock);
	return r;
}
