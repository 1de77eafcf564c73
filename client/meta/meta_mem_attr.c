/* SPDX-License-Identifier: Apache-2.0 */
/* The engine in memory: attributes and extended attributes; the rules are those of setattr.lua. */
#include "client/meta/meta_mem.h"

enum {
	SGID = 02000,
	SUGID = 06000,
	FIXED = ATTR_IMMUTABLE | ATTR_APPEND,
	CHATTR = FIXED | ATTR_SKIP_TRASH
};

/* one call of setattr */
struct change {
	const struct attr *cur, *want;
	const struct meta_ctx *c;
	unsigned set;
	struct time_ns now;
	bool owner, check, may_write, open;
	uint16_t mode;
	/* results */
	struct attr a;
	struct acl rule;
	bool new_rule;
};

static bool of_group(const struct meta_ctx *c, uint32_t gid)
{
	for (size_t i = 0; i < c->n_gids; i++) {
		if (c->gids[i] == gid)
			return true;
	}
	return c->gid == gid;
}

static int check_flags(const struct change *ch)
{
	const struct attr *cur = ch->cur;
	uint16_t mode = ch->want->mode & 07777;
	bool owner = ch->set & (SET_UID | SET_GID);
	bool cleared = !owner && (mode == (cur->mode & 01777) || mode == (cur->mode & 03777));
	unsigned now = SET_ATIME_NOW | SET_MTIME_NOW;
	bool given = (ch->set & SET_TIMES) && (ch->set & now) != now;

	if ((cur->flags & ATTR_IMMUTABLE) && (owner || (ch->set & (SET_MODE | SET_TIMES))))
		return -EPERM;
	if ((cur->flags & ATTR_APPEND) && (owner || given || ((ch->set & SET_MODE) && !cleared)))
		return -EPERM;
	return 0;
}

static int set_flags(struct change *ch)
{
	uint8_t flags = ch->want->flags & CHATTR, cur = ch->cur->flags;

	if (!(ch->set & SET_FLAGS))
		return 0;
	if (!ch->owner || (ch->c->uid != 0 && ((flags ^ cur) & FIXED)))
		return -EPERM;
	ch->a.flags = (uint8_t)((cur & ~CHATTR) | flags);
	return 0;
}

static int set_owner(struct change *ch)
{
	const struct attr *cur = ch->cur, *want = ch->want;

	if (!(ch->set & (SET_UID | SET_GID)))
		return 0;
	if (ch->set & SET_MODE)
		ch->mode |= cur->mode & SUGID;
	if ((cur->mode & SUGID) && cur->type != INODE_DIR) {
		uint16_t keep = ch->c->uid != 0 || (cur->mode & 010) ? 01777 : 03777;

		ch->a.mode &= keep;
		ch->mode &= keep;
	}
	if (ch->set & SET_GID) {
		if (!ch->owner)
			return -EPERM;
		if (cur->gid != want->gid && ch->check && !of_group(ch->c, want->gid))
			return -EPERM;
		ch->a.gid = want->gid;
	}
	if ((ch->set & SET_UID) && cur->uid != want->uid) {
		if (ch->check)
			return -EPERM;
		ch->a.uid = want->uid;
	}
	return 0;
}

static int set_mode_locked(struct meta_mem *mm, struct change *ch) REQUIRES(mm->lock)
{
	const struct attr *cur = ch->cur;
	int r;

	if (!(ch->set & SET_MODE))
		return 0;
	if (ch->check && !of_group(ch->c, cur->gid))
		ch->mode &= (uint16_t)~SGID;
	if (!ch->owner && ch->mode != cur->mode &&
	    ((cur->mode & 01777) != (ch->mode & 01777) || (ch->mode & SGID) > (cur->mode & SGID) ||
	     (ch->mode & 04000) > (cur->mode & 04000)))
		return -EPERM;
	if (cur->access_acl) {
		r = mem_rule_get_locked(mm, cur->access_acl, &ch->rule);
		if (r)
			return r;
		ch->new_rule = mem_rule_mode(&ch->rule) != (ch->mode & 0777);
		mem_rule_chmod(&ch->rule, ch->mode);
	}
	ch->a.mode = ch->mode;
	return 0;
}

static int set_time(struct change *ch, bool given, bool to_now, struct time_ns want,
		    struct time_ns *t)
{
	if (!to_now && (!given || (t->sec == want.sec && t->nsec == want.nsec)))
		return 0;
	if (!to_now && ((ch->cur->uid == 0 && ch->c->uid != 0) || (ch->check && !ch->owner)))
		return -EPERM;
	if (ch->check && !ch->owner && !ch->may_write)
		return -EACCES;
	*t = to_now ? ch->now : want;
	return 0;
}

static int merge_locked(struct meta_mem *mm, struct change *ch) REQUIRES(mm->lock)
{
	unsigned set = ch->set;
	int r = ch->cur->parent > INODE_TRASH && !ch->open ? -EPERM : check_flags(ch);

	if (!r)
		r = set_flags(ch);
	if (!r)
		r = set_owner(ch);
	if (!r)
		r = set_mode_locked(mm, ch);
	if (!r)
		r = set_time(ch, set & SET_ATIME, set & SET_ATIME_NOW, ch->want->atime,
			     &ch->a.atime);
	if (!r)
		r = set_time(ch, set & SET_MTIME, set & SET_MTIME_NOW, ch->want->mtime,
			     &ch->a.mtime);
	if (!r && ch->new_rule)
		r = mem_rule_number_locked(mm, &ch->rule, &ch->a.access_acl);
	if (set)
		ch->a.ctime = ch->now;
	acl_fini(&ch->rule);
	return r;
}

int mem_setattr(struct meta *m, const struct meta_ctx *c, uint64_t inode, unsigned set,
		const struct attr *want, struct attr *ret)
{
	struct meta_mem *mm = mem_engine(m);
	struct change ch = {.want = want,
			    .c = c,
			    .set = set,
			    .now = time_now(),
			    .check = c->check && c->uid != 0,
			    .open = open_is(m, inode),
			    .mode = want->mode & 07777};
	struct mem_inode *i;
	int r = -ENOENT;

	if (ch.check && (set & SET_TIMES))
		ch.may_write = meta_access(m, c, inode, ACCESS_WRITE, NULL) == 0;
	mtx_lock(&mm->lock);
	i = mem_find_locked(mm, inode);
	if (i) {
		ch.cur = &i->a;
		ch.a = i->a;
		ch.owner = c->uid == 0 || c->uid == i->a.uid;
		r = merge_locked(mm, &ch);
	}
	if (!r)
		*ret = i->a = ch.a;
	mtx_unlock(&mm->lock);
	return r;
}

static bool later(struct time_ns a, struct time_ns b)
{
	return a.sec != b.sec ? a.sec > b.sec : a.nsec > b.nsec;
}

int mem_touch_atime(struct meta *m, uint64_t inode, struct attr *a)
{
	struct meta_mem *mm = mem_engine(m);
	struct time_ns now = time_now(), limit;
	struct mem_inode *i;

	mtx_lock(&mm->lock);
	i = mem_find_locked(mm, inode);
	if (i) {
		limit = i->a.atime;
		limit.sec += m->conf.atime == ATIME_STRICT ? 1 : 24 * 3600;
		if (later(now, limit) || later(i->a.mtime, i->a.atime) ||
		    later(i->a.ctime, i->a.atime))
			i->a.atime = now;
		*a = i->a;
	}
	mtx_unlock(&mm->lock);
	return i ? 0 : -ENOENT;
}

static bool is_fixed(const struct mem_inode *i)
{
	return i->a.flags & FIXED;
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
	if (!i)
		r = -ENOENT;
	else if (is_fixed(i))
		r = -EPERM;
	else if (flags == 1 && old)
		r = -EEXIST;
	else if (flags == 2 && !old)
		r = -ENODATA;
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
	if (i)
		acl_names(&i->a, &names);
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
	bool fixed;

	mtx_lock(&mm->lock);
	i = mem_find_locked(mm, inode);
	fixed = i && is_fixed(i);
	x = i && !fixed ? xattr_find(i, name) : NULL;
	if (x)
		list_del(&x->link);
	mtx_unlock(&mm->lock);
	if (!x)
		return fixed ? -EPERM : -ENODATA;
	free(x->value);
	free(x);
	return 0;
}
