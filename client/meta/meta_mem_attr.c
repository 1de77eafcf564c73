/* SPDX-License-Identifier: Apache-2.0 */
/* The engine in memory: attributes and extended attributes; the rules are those of setattr.lua. */
#include "client/meta/meta_mem.h"

enum { SUGID = 06000 };

struct change {
	struct attr a;
	bool changed;
};

static int set_owner(const struct attr *cur, const struct meta_ctx *c, unsigned set,
		     const struct attr *want, uint16_t *mode, struct change *ch)
{
	if (!(set & (SET_UID | SET_GID)))
		return 0;
	if (set & SET_MODE)
		*mode |= cur->mode & SUGID;
	if (cur->mode & SUGID) {
		uint16_t keep = c->uid != 0 || (cur->mode & 010) ? 01777 : 03777;

		if (cur->type != INODE_DIR) {
			ch->a.mode &= keep;
			*mode &= keep;
		}
		ch->changed = true;
	}
	if (set & SET_GID) {
		if (c->uid != 0 && c->uid != cur->uid)
			return -EPERM;
		ch->changed |= cur->gid != want->gid;
		ch->a.gid = want->gid;
	}
	if (set & SET_UID) {
		ch->changed |= cur->uid != want->uid;
		ch->a.uid = want->uid;
	}
	return 0;
}

static int set_mode(const struct attr *cur, const struct meta_ctx *c, uint16_t mode,
		    struct change *ch)
{
	if (mode == cur->mode)
		return 0;
	if (c->uid != 0 && c->uid != cur->uid &&
	    ((cur->mode & 01777) != (mode & 01777) || (mode & 02000) > (cur->mode & 02000) ||
	     (mode & 04000) > (cur->mode & 04000)))
		return -EPERM;
	ch->a.mode = mode;
	ch->changed = true;
	return 0;
}

static int set_time(const struct attr *cur, const struct meta_ctx *c, bool given, bool to_now,
		    struct time_ns want, struct time_ns now, struct time_ns *t, struct change *ch)
{
	if (to_now || (given && want.sec < 0)) {
		*t = now;
		ch->changed = true;
	} else if (given && (t->sec != want.sec || t->nsec != want.nsec)) {
		if (cur->uid == 0 && c->uid != 0)
			return -EPERM;
		*t = want;
		ch->changed = true;
	}
	return 0;
}

static int merge(const struct attr *cur, const struct meta_ctx *c, unsigned set,
		 const struct attr *want, struct time_ns now, struct change *ch)
{
	uint16_t mode = want->mode & 07777;
	int r;

	*ch = (struct change){.a = *cur};
	if (cur->parent > INODE_TRASH)
		return -EPERM;
	r = set_owner(cur, c, set, want, &mode, ch);
	if (!r && (set & SET_MODE))
		r = set_mode(cur, c, mode, ch);
	if (!r)
		r = set_time(cur, c, set & SET_ATIME, set & SET_ATIME_NOW, want->atime, now,
			     &ch->a.atime, ch);
	if (!r)
		r = set_time(cur, c, set & SET_MTIME, set & SET_MTIME_NOW, want->mtime, now,
			     &ch->a.mtime, ch);
	if (ch->changed)
		ch->a.ctime = now;
	return r;
}

int mem_setattr(struct meta *m, const struct meta_ctx *c, uint64_t inode, unsigned set,
		const struct attr *want, struct attr *ret)
{
	struct meta_mem *mm = mem_engine(m);
	struct time_ns now = time_now();
	struct mem_inode *i;
	struct change ch;
	int r = -ENOENT;

	mtx_lock(&mm->lock);
	i = mem_find_locked(mm, inode);
	if (i)
		r = merge(&i->a, c, set, want, now, &ch);
	if (!r)
		*ret = i->a = ch.a;
	mtx_unlock(&mm->lock);
	return r;
}

static struct mem_xattr *xattr_find(struct mem_inode *i, const char *name)
{
	struct list_node *n;

	list_for_each(n, &i->xattrs)
	{
		struct mem_xattr *x = container_of(n, struct mem_xattr, link);

		if (!strcmp(x->name, name))
			return x;
	}
	return NULL;
}

int mem_getxattr(struct meta *m, uint64_t inode, const char *name, char **ret, size_t *ret_len)
{
	struct meta_mem *mm = mem_engine(m);
	struct mem_inode *i;
	struct mem_xattr *x;
	char *copy = NULL;
	size_t n = 0;

	mtx_lock(&mm->lock);
	i = mem_find_locked(mm, inode);
	x = i ? xattr_find(i, name) : NULL;
	if (x) {
		n = x->len;
		copy = malloc(n + 1);
		if (copy) {
			memcpy(copy, x->value, n);
			copy[n] = '\0';
		}
	}
	mtx_unlock(&mm->lock);
	if (!x)
		return -ENODATA;
	if (!copy)
		return -ENOMEM;
	*ret = copy;
	*ret_len = n;
	return 0;
}

int mem_setxattr(struct meta *m, uint64_t inode, const char *name, const void *value, size_t len,
		 int flags)
{
	struct meta_mem *mm = mem_engine(m);
	size_t n = strlen(name) + 1;
	struct mem_xattr *x = calloc(1, sizeof(*x) + n), *old;
	struct mem_inode *i;
	int r = 0;

	if (!x || !(x->value = malloc(len + 1))) {
		free(x);
		return -ENOMEM;
	}
	memcpy(x->name, name, n);
	if (len)
		memcpy(x->value, value, len);
	x->len = len;
	mtx_lock(&mm->lock);
	i = mem_find_locked(mm, inode);
	old = i ? xattr_find(i, name) : NULL;
	if (flags == 1 && old)
		r = -EEXIST;
	else if (flags == 2 && !old)
		r = -ENODATA;
	else if (!i)
		r = -ENOENT;
	if (!r) {
		list_add_tail(&i->xattrs, &x->link);
		if (old)
			list_del(&old->link);
		x = old;
	}
	mtx_unlock(&mm->lock);
	if (x)
		free(x->value);
	free(x);
	return r;
}

int mem_listxattr(struct meta *m, uint64_t inode, char **ret, size_t *ret_len)
{
	struct meta_mem *mm = mem_engine(m);
	struct str names = STR_INIT;
	struct mem_inode *i;
	struct list_node *n;

	mtx_lock(&mm->lock);
	i = mem_find_locked(mm, inode);
	for (n = i ? i->xattrs.next : NULL; n && n != &i->xattrs; n = n->next) {
		const char *name = container_of(n, struct mem_xattr, link)->name;

		str_addn(&names, name, strlen(name) + 1);
	}
	mtx_unlock(&mm->lock);
	*ret_len = names.len;
	str_addn(&names, "", 1); /* so that an empty list has memory too */
	*ret = str_take(&names);
	return *ret ? 0 : -ENOMEM;
}

int mem_removexattr(struct meta *m, uint64_t inode, const char *name)
{
	struct meta_mem *mm = mem_engine(m);
	struct mem_inode *i;
	struct mem_xattr *x;

	mtx_lock(&mm->lock);
	i = mem_find_locked(mm, inode);
	x = i ? xattr_find(i, name) : NULL;
	if (x)
		list_del(&x->link);
	mtx_unlock(&mm->lock);
	if (!x)
		return -ENODATA;
	free(x->value);
	free(x);
	return 0;
}
