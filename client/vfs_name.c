/* SPDX-License-Identifier: Apache-2.0 */
/* Names: what changes a directory is told to attrcache, so that a directory snapshot taken before
 * does not bring a name back that was removed meanwhile. All block on Redis: meta workq. */
#include "client/attrcache.h"
#include "client/vfs.h"

#include "common/clock.h"

/* the names that this mount makes up in the root cannot be made, removed or replaced */
static int check_name(struct vfs *v, uint64_t parent, const char *name, int errnum)
{
	struct vfs_entry e;

	return vfs_lookup_made_up(v, parent, name, &e) ? errnum : 0;
}

/* a change of names under way: in a directory, or in two */
struct names_change {
	struct meta_ctx ctx; /* the caller's, and where the directories' attributes go */
	struct attr dirs[2];
	uint64_t inodes[2], tokens[2], asked_us;
	uint64_t other; /* exchanged */
	bool removes;	/* a name goes, and with it something of an inode */
};

static const struct meta_ctx *names_begin(struct vfs *v, const struct meta_ctx *c, uint64_t dir,
					  uint64_t second, struct names_change *n)
{
	*n = (struct names_change){.ctx = *c, .inodes = {dir, second}, .asked_us = clock_us()};
	n->ctx.ret_dirs = n->dirs;
	n->ctx.ret_other = &n->other;
	n->tokens[0] = attrcache_names_begin(v->known, dir);
	if (second != dir)
		n->tokens[1] = attrcache_names_begin(v->known, second);
	return &n->ctx;
}

static void names_end(struct vfs *v, const struct names_change *n, int r)
{
	uint64_t now = clock_us();

	/* also when it failed: it may have been done */
	if (n->removes)
		attrcache_changed_some(v->known, now);
	for (int i = 0; i < 2; i++) {
		const struct attr *a = r == 0 && n->dirs[i].type ? &n->dirs[i] : NULL;

		if (!n->tokens[i])
			continue;
		if (v->listed)
			attrcache_pages_forget(v->listed, n->inodes[i]);
		attrcache_names_end(v->known, n->inodes[i], n->tokens[i], a, n->asked_us, now);
	}
}

int vfs_mknod(struct vfs *v, const struct meta_ctx *c, uint64_t parent, const char *name,
	      uint8_t type, uint32_t mode, uint32_t umask, uint32_t rdev, const char *target,
	      struct vfs_entry *ret)
{
	struct vfs_entry e = {0};
	struct names_change change;
	int r = check_name(v, parent, name, -EEXIST);

	if (r < 0)
		return r;
	if (target && strlen(target) > SYMLINK_MAX)
		return -ENAMETOOLONG;
	c = names_begin(v, c, parent, parent, &change);
	r = meta_mknod(v->conf.meta, c, parent, name, type, mode, umask, rdev, target, &e.inode,
		       &e.attr);
	names_end(v, &change, r);
	if (r < 0)
		return r;
	vfs_fill(v, &e);
	*ret = e;
	return 0;
}

static int remove_name(struct vfs *v, const struct meta_ctx *c, uint64_t parent, const char *name,
		       int (*remove)(struct meta *m, const struct meta_ctx *c, uint64_t parent,
				     const char *name))
{
	struct names_change change;
	int r = check_name(v, parent, name, -EPERM);

	if (r < 0)
		return r;
	c = names_begin(v, c, parent, parent, &change);
	change.removes = true;
	r = remove(v->conf.meta, c, parent, name);
	names_end(v, &change, r);
	return r;
}

int vfs_unlink(struct vfs *v, const struct meta_ctx *c, uint64_t parent, const char *name)
{
	return remove_name(v, c, parent, name, meta_unlink);
}

int vfs_rmdir(struct vfs *v, const struct meta_ctx *c, uint64_t parent, const char *name)
{
	return remove_name(v, c, parent, name, meta_rmdir);
}

int vfs_rename(struct vfs *v, const struct meta_ctx *c, uint64_t parent, const char *name,
	       uint64_t new_parent, const char *new_name, unsigned flags)
{
	struct names_change change;
	struct wfile *f;
	uint64_t inode;
	struct attr a;
	int r = check_name(v, parent, name, -EPERM);

	if (r == 0)
		r = check_name(v, new_parent, new_name, -EPERM);
	if (r < 0)
		return r;
	c = names_begin(v, c, parent, new_parent, &change);
	change.removes = true;
	r = meta_rename(v->conf.meta, c, parent, name, new_parent, new_name, flags, &inode, &a);
	names_end(v, &change, r);
	/* what came the other way may be a directory, too */
	if (flags & RENAME_F_EXCHANGE)
		attrcache_dirs_forget(v->known, clock_us());
	if (r < 0)
		return r;
	vfs_changed(v, inode, NULL, false);
	if (change.other)
		vfs_changed(v, change.other, NULL, false);
	f = v->writer ? wfile_find(v->writer, inode) : NULL;
	if (f)
		wfile_named(f, new_parent, new_name);
	wfile_put(f);
	return 0;
}

int vfs_link(struct vfs *v, const struct meta_ctx *c, uint64_t inode, uint64_t parent,
	     const char *name, struct vfs_entry *ret)
{
	struct vfs_entry e = {.inode = inode};
	struct names_change change;
	bool stale;
	int r = check_name(v, parent, name, -EEXIST);

	if (inode >= INODE_INTERNAL && inode <= INODE_TRASH)
		return -EPERM;
	if (r < 0)
		return r;
	c = names_begin(v, c, parent, parent, &change);
	r = meta_link(v->conf.meta, c, inode, parent, name, &e.attr);
	names_end(v, &change, r);
	if (r < 0)
		return r;
	vfs_fill(v, &e);
	stale = vfs_overtaken(v, &e, change.asked_us);
	vfs_changed(v, inode, &e.attr, false);
	if (stale)
		return vfs_getattr(v, inode, ret);
	*ret = e;
	return 0;
}

int vfs_readlink(struct vfs *v, uint64_t inode, char **ret)
{
	struct attr a;
	int r = meta_readlink(v->conf.meta, inode, ret);

	if (r == 0 && v->conf.atime != ATIME_NONE && meta_getattr(v->conf.meta, inode, &a) == 0)
		(void)meta_touch_atime(v->conf.meta, inode, &a);
	return r;
}
