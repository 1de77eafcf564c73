/* SPDX-License-Identifier: Apache-2.0 */
/* The engine in memory: names in directories; the rules are those of mknod.lua, link.lua,
 * unlink.lua, rmdir.lua, rename.lua and trash.lua. */
#include "client/meta/meta_mem.h"

#include <inttypes.h>

static struct mem_entry *entry_new(const char *name, size_t n, uint8_t type, uint64_t inode)
{
	struct mem_entry *e = calloc(1, sizeof(*e) + n + 1);

	if (!e)
		return NULL;
	e->type = type;
	e->inode = inode;
	e->name_len = n;
	memcpy(e->name, name, n);
	return e;
}

static void entry_link(struct mem_inode *dir, struct mem_entry *e)
{
	list_add_tail(&dir->entries, &e->link);
	dir->n_entries++;
}

static void entry_unlink(struct mem_inode *dir, struct mem_entry *e)
{
	list_del(&e->link);
	dir->n_entries--;
	free(e);
}

static int parent_count(struct mem_inode *i, uint64_t dir, int64_t by)
{
	struct list_node *n;
	struct mem_parent *p;

	list_for_each(n, &i->parents)
	{
		p = container_of(n, struct mem_parent, link);
		if (p->dir == dir) {
			p->count += by;
			return 0;
		}
	}
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->dir = dir;
	p->count = by;
	list_add_tail(&i->parents, &p->link);
	return 0;
}

static bool touchable(const struct meta_mem *mm, const struct attr *a, struct time_ns now)
{
	int64_t ns = (now.sec - a->mtime.sec) * 1000000000 + now.nsec - a->mtime.nsec;

	return ns >= (int64_t)mm->base.conf.skip_dir_mtime_us * 1000;
}

static void touch(struct mem_inode *dir, struct time_ns now)
{
	dir->a.mtime = dir->a.ctime = now;
}

static bool sticky(const struct mem_inode *dir, const struct mem_inode *i, uint32_t uid)
{
	return uid != 0 && (dir->a.mode & 01000) && uid != dir->a.uid && uid != i->a.uid;
}

int mem_check_into(const struct mem_inode *dir)
{
	if (!dir)
		return -ENOENT;
	if (dir->a.type != INODE_DIR)
		return -ENOTDIR;
	if (dir->a.parent > INODE_TRASH)
		return -ENOENT;
	return dir->a.flags & ATTR_IMMUTABLE ? -EPERM : 0;
}

int mem_mknod(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name,
	      uint8_t type, uint32_t mode, uint32_t umask, uint32_t rdev, const char *target,
	      uint64_t *ret, struct attr *ret_attr)
{
	struct meta_mem *mm = mem_engine(m);
	struct mem_entry *e = entry_new(name, strlen(name), type, 0);
	struct mem_make k = {.c = c,
			     .type = type,
			     .mode = mode,
			     .umask = umask,
			     .rdev = rdev,
			     .target = target,
			     .now = time_now()};
	struct mem_inode *dir, *i = NULL;
	int r = e ? 0 : -ENOMEM;

	mtx_lock(&mm->lock);
	dir = mem_find_locked(mm, parent);
	if (!r)
		r = mem_check_into(dir);
	if (!r && mem_entry_find(dir, name))
		r = -EEXIST;
	if (!r)
		r = mem_make_in_locked(mm, dir, &k, &i);
	if (!r) {
		e->inode = i->inode;
		entry_link(dir, TAKE_PTR(e));
		if (type == INODE_DIR)
			dir->a.nlink++;
		if (type == INODE_DIR || touchable(mm, &dir->a, k.now))
			touch(dir, k.now);
		*ret = i->inode;
		*ret_attr = i->a;
	}
	mtx_unlock(&mm->lock);
	free(e);
	return r;
}

static int link_locked(struct meta_mem *mm, struct mem_inode *dir, struct mem_inode *i,
		       const char *name, struct time_ns now) REQUIRES(mm->lock)
{
	struct mem_entry *e;
	int r;

	(void)mm;
	if (!dir || !i)
		return -ENOENT;
	if (dir->a.type != INODE_DIR)
		return -ENOTDIR;
	if (dir->a.parent > INODE_TRASH || i->a.parent > INODE_TRASH)
		return -ENOENT;
	if ((dir->a.flags & ATTR_IMMUTABLE) || i->a.type == INODE_DIR ||
	    (i->a.flags & (ATTR_APPEND | ATTR_IMMUTABLE)))
		return -EPERM;
	if (mem_entry_find(dir, name))
		return -EEXIST;
	e = entry_new(name, strlen(name), i->a.type, i->inode);
	if (!e)
		return -ENOMEM;
	if (i->a.nlink == 0) { /* an open file without a name gets one */
		i->a.parent = dir->inode;
	} else {
		r = i->a.parent ? parent_count(i, i->a.parent, 1) : 0;
		if (!r)
			r = parent_count(i, dir->inode, 1);
		if (r) {
			free(e);
			return r;
		}
		i->a.parent = 0;
	}
	i->a.nlink++;
	i->a.ctime = now;
	entry_link(dir, e);
	if (touchable(mm, &dir->a, now))
		touch(dir, now);
	return 0;
}

int mem_link(struct meta *m, const struct meta_ctx *c, uint64_t inode, uint64_t parent,
	     const char *name, struct attr *ret)
{
	struct meta_mem *mm = mem_engine(m);
	struct time_ns now = time_now();
	struct mem_inode *dir, *i;
	int r;

	(void)c;
	mtx_lock(&mm->lock);
	dir = mem_find_locked(mm, parent);
	i = mem_find_locked(mm, inode);
	r = link_locked(mm, dir, i, name, now);
	if (!r)
		*ret = i->a;
	mtx_unlock(&mm->lock);
	if (!r)
		open_named(m, inode);
	return r;
}

/* one removal: what it needs to know, and what is left to do after the lock */
struct removal {
	struct time_ns now;
	char hour[16];
	uint8_t open[OPEN_LIST_MAX * 8];
	size_t open_len;
	/* results */
	struct mem_inode *dead; /* taken out: free it, with its data */
	uint64_t unnamed;	/* open, without a name now */
};

static int removal_begin(struct meta *m, struct removal *rm, uint64_t parent, const char *name)
{
	struct attr a;
	uint64_t inode;
	int r;

	*rm = (struct removal){.now = time_now()};
	trash_hour_name(m, parent, rm->now.sec, rm->hour);
	if (open_list(m, rm->open, &rm->open_len))
		return 0;
	r = mem_lookup(m, NULL, parent, name, &inode, &a);
	if (r == 0 && open_is(m, inode)) {
		be64(rm->open, inode);
		rm->open_len = 8;
	}
	return r == -ENOENT ? 0 : r;
}

static void removal_end(struct meta *m, struct removal *rm)
{
	mem_inode_free(mem_engine(m), rm->dead, true);
	if (rm->unnamed && !open_unnamed(m, rm->unnamed))
		(void)mem_close(m, rm->unnamed);
}

static bool removal_open(const struct removal *rm, uint64_t inode)
{
	uint8_t b[8];

	be64(b, inode);
	for (size_t i = 0; i < rm->open_len; i += 8) {
		if (!memcmp(rm->open + i, b, 8))
			return true;
	}
	return false;
}

static struct mem_inode *hour_locked(struct meta_mem *mm, const struct removal *rm)
	REQUIRES(mm->lock)
{
	struct mem_inode *root = mem_find_locked(mm, INODE_TRASH), *hour;
	struct mem_entry *e = root ? mem_entry_find(root, rm->hour) : NULL;
	struct attr a = {.type = INODE_DIR,
			 .mode = 0555,
			 .nlink = 2,
			 .length = 4096,
			 .parent = INODE_TRASH,
			 .atime = rm->now,
			 .mtime = rm->now,
			 .ctime = rm->now};

	if (e || !root)
		return e ? mem_find_locked(mm, e->inode) : NULL;
	e = entry_new(rm->hour, strlen(rm->hour), INODE_DIR, INODE_TRASH + mm->next_trash + 1);
	hour = e ? mem_make_locked(mm, e->inode, &a) : NULL;
	if (!hour) {
		free(e);
		return NULL;
	}
	mm->next_trash++;
	entry_link(root, e);
	mm->used += 4096;
	mm->total++;
	return hour;
}

static int to_trash_locked(struct mem_inode *hour, struct mem_inode *dir, struct mem_inode *i,
			   const char *name, struct removal *rm)
{
	struct mem_entry *e = entry_new(name, strlen(name), i->a.type, i->inode);
	int r = 0;

	if (!e)
		return -ENOMEM;
	if (i->a.parent) {
		i->a.parent = hour->inode;
	} else {
		r = parent_count(i, hour->inode, 1);
		if (!r)
			r = parent_count(i, dir->inode, -1);
	}
	if (r) {
		free(e);
		return r;
	}
	i->a.ctime = rm->now;
	entry_link(hour, e);
	return 0;
}

/* what becomes of inode i when its entry name in dir goes; the entry itself is the caller's */
static int remove_locked(struct meta_mem *mm, struct mem_inode *dir, const char *name,
			 struct mem_inode *i, struct removal *rm) REQUIRES(mm->lock)
{
	char tname[NAME_LEN_MAX + 1];

	if (rm->hour[0] && !(i->a.flags & ATTR_SKIP_TRASH)) {
		struct mem_inode *hour = hour_locked(mm, rm);

		if (!hour)
			return -ENOENT;
		snprintf(tname, sizeof(tname), "%" PRIu64 "-%" PRIu64 "-%s", dir->inode, i->inode,
			 name);
		if (i->a.type == INODE_DIR || i->a.nlink <= 1 || !mem_entry_find(hour, tname))
			return to_trash_locked(hour, dir, i, tname, rm);
	}
	if (i->a.type != INODE_DIR && i->a.nlink > 1) {
		i->a.nlink--;
		i->a.ctime = rm->now;
		return i->a.parent ? 0 : parent_count(i, dir->inode, -1);
	}
	if (i->a.type == INODE_FILE && removal_open(rm, i->inode)) {
		i->a.nlink = 0;
		i->a.ctime = rm->now;
		mem_xattrs_free(i);
		rm->unnamed = i->inode;
		return 0;
	}
	mm->used -= i->a.type == INODE_FILE ? (int64_t)align4k(i->a.length) : 4096;
	mm->total--;
	mem_take_locked(mm, i);
	rm->dead = i;
	return 0;
}

static int check_from(const struct mem_inode *dir, const struct mem_inode *i, uint32_t uid)
{
	if (dir->a.flags & (ATTR_APPEND | ATTR_IMMUTABLE))
		return -EPERM;
	if (sticky(dir, i, uid))
		return -EACCES;
	return i->a.flags & (ATTR_APPEND | ATTR_IMMUTABLE) ? -EPERM : 0;
}

int mem_unlink(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name)
{
	struct meta_mem *mm = mem_engine(m);
	struct mem_inode *dir, *i;
	struct mem_entry *e;
	struct removal rm;
	int r = removal_begin(m, &rm, parent, name);

	mtx_lock(&mm->lock);
	dir = mem_find_locked(mm, parent);
	e = dir ? mem_entry_find(dir, name) : NULL;
	i = e ? mem_find_locked(mm, e->inode) : NULL;
	if (!r && !i)
		r = -ENOENT;
	if (!r)
		r = check_from(dir, i, c->uid);
	if (!r && i->a.type == INODE_DIR)
		r = -EPERM;
	if (!r)
		r = remove_locked(mm, dir, name, i, &rm);
	if (!r) {
		entry_unlink(dir, e);
		if (parent < INODE_TRASH && touchable(mm, &dir->a, rm.now))
			touch(dir, rm.now);
	}
	mtx_unlock(&mm->lock);
	removal_end(m, &rm);
	return r;
}

int mem_rmdir(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name)
{
	struct meta_mem *mm = mem_engine(m);
	struct mem_inode *dir, *i;
	struct mem_entry *e;
	struct removal rm;
	int r = removal_begin(m, &rm, parent, name);

	mtx_lock(&mm->lock);
	dir = mem_find_locked(mm, parent);
	e = dir ? mem_entry_find(dir, name) : NULL;
	i = e ? mem_find_locked(mm, e->inode) : NULL;
	if (!r && !i)
		r = -ENOENT;
	if (!r)
		r = check_from(dir, i, c->uid);
	if (!r && i->a.type != INODE_DIR)
		r = -ENOTDIR;
	if (!r && i->n_entries)
		r = -ENOTEMPTY;
	if (!r)
		r = remove_locked(mm, dir, name, i, &rm);
	if (!r) {
		entry_unlink(dir, e);
		if (parent < INODE_TRASH) {
			dir->a.nlink -= dir->a.nlink > 0;
			touch(dir, rm.now);
		}
	}
	mtx_unlock(&mm->lock);
	removal_end(m, &rm);
	return r;
}

int mem_close(struct meta *m, uint64_t inode)
{
	struct meta_mem *mm = mem_engine(m);
	struct mem_inode *i;

	mtx_lock(&mm->lock);
	i = mem_find_locked(mm, inode);
	if (i && i->a.nlink)
		i = NULL; /* it got a name again */
	if (i) {
		mm->used -= (int64_t)align4k(i->a.length);
		mm->total--;
		mem_take_locked(mm, i);
	}
	mtx_unlock(&mm->lock);
	mem_inode_free(mm, i, true);
	return 0;
}

/* everybody who takes part in a rename */
struct renaming {
	struct mem_inode *sd, *dd, *i, *j; /* directories, what moves, what is there */
	struct mem_entry *se, *de;
	const struct meta_ctx *c;
	uint32_t uid;
	bool exchange, whiteout, restore;
};

static int rename_check(const struct renaming *n)
{
	const struct mem_inode *sd = n->sd, *dd = n->dd, *i = n->i, *j = n->j;

	if (dd->a.type != INODE_DIR)
		return -ENOTDIR;
	if ((dd->a.parent > INODE_TRASH && !n->restore) ||
	    (n->whiteout && sd->a.parent > INODE_TRASH))
		return -ENOENT;
	if ((sd->a.flags & (ATTR_APPEND | ATTR_IMMUTABLE)) || (dd->a.flags & ATTR_IMMUTABLE) ||
	    (j && (dd->a.flags & ATTR_APPEND)) || (i->a.flags & (ATTR_APPEND | ATTR_IMMUTABLE)))
		return -EPERM;
	if (i == dd || i->inode == dd->a.parent)
		return -EPERM;
	if (j == i)
		return 1;
	if (!j && n->exchange)
		return -ENOENT;
	if (n->c->check && sd != dd && (sd->a.mode & 01000) && n->uid != 0 && n->uid != i->a.uid &&
	    (n->uid != sd->a.uid || i->a.type == INODE_DIR))
		return -EACCES;
	if (sticky(sd, i, n->uid))
		return -EACCES;
	if (!j)
		return 0;
	if (j->a.flags & (ATTR_APPEND | ATTR_IMMUTABLE))
		return -EPERM;
	if (sticky(dd, j, n->uid))
		return -EACCES;
	if (n->exchange && (j == sd || j->inode == sd->a.parent))
		return -EPERM;
	if (!n->exchange && i->a.type == INODE_DIR && j->a.type != INODE_DIR)
		return -ENOTDIR;
	if (!n->exchange && i->a.type != INODE_DIR && j->a.type == INODE_DIR)
		return -EISDIR;
	if (!n->exchange && j->n_entries)
		return -ENOTEMPTY;
	return 0;
}

/* directory i would lie in itself when it went into dir */
static bool in_itself_locked(struct meta_mem *mm, const struct mem_inode *i,
			     const struct mem_inode *dir) REQUIRES(mm->lock)
{
	while (dir && dir != i && dir->inode != INODE_ROOT && dir->inode < INODE_TRASH)
		dir = mem_find_locked(mm, dir->a.parent);
	return dir == i;
}

/* the one link of i goes from directory to directory */
static int reparent(struct mem_inode *i, struct mem_inode *from, struct mem_inode *to)
{
	int r;

	if (i->a.parent || i->a.type == INODE_DIR) {
		i->a.parent = to->inode;
		return 0;
	}
	r = parent_count(i, to->inode, 1);
	return r ? r : parent_count(i, from->inode, -1);
}

static int rename_locked(struct meta_mem *mm, struct renaming *n, const char *new_name,
			 struct removal *rm) REQUIRES(mm->lock)
{
	bool moves = n->sd != n->dd, dir = n->i->a.type == INODE_DIR;
	bool jdir = n->j && n->j->a.type == INODE_DIR;
	bool dirs = moves && (dir || (n->exchange && jdir));
	int sdelta = 0, ddelta = 0, r = 0;
	struct mem_entry *e = NULL;
	struct mem_make k = {.c = n->c, .type = INODE_CHAR, .target = "", .now = rm->now};
	struct mem_inode *white = NULL;

	if (!n->exchange && !n->j) {
		e = entry_new(new_name, strlen(new_name), n->i->a.type, n->i->inode);
		if (!e)
			return -ENOMEM;
	}
	if (n->whiteout)
		r = mem_make_in_locked(mm, n->sd, &k, &white);
	if (!r && n->j && !n->exchange)
		r = remove_locked(mm, n->dd, new_name, n->j, rm);
	if (!r && moves)
		r = reparent(n->i, n->sd, n->dd);
	if (!r && moves && n->exchange)
		r = reparent(n->j, n->dd, n->sd);
	if (r) {
		free(e);
		if (white) {
			mm->used -= 4096;
			mm->total--;
			mem_take_locked(mm, white);
			mem_inode_free(mm, white, false);
		}
		return r;
	}
	if (moves && dir)
		sdelta--, ddelta++;
	if (n->exchange) {
		n->j->a.ctime = rm->now;
		if (moves && jdir)
			sdelta++, ddelta--;
		n->se->type = n->j->a.type;
		n->se->inode = n->j->inode;
	} else if (white) {
		n->se->type = INODE_CHAR;
		n->se->inode = white->inode;
		ddelta -= jdir;
	} else {
		entry_unlink(n->sd, n->se);
		ddelta -= jdir;
	}
	if (e) {
		entry_link(n->dd, e);
	} else {
		n->de->type = n->i->a.type;
		n->de->inode = n->i->inode;
	}
	n->i->a.ctime = rm->now;
	if (moves && n->sd->inode < INODE_TRASH && (dirs || touchable(mm, &n->sd->a, rm->now))) {
		n->sd->a.nlink += (uint32_t)sdelta;
		touch(n->sd, rm->now);
	}
	if (dirs || ddelta || touchable(mm, &n->dd->a, rm->now)) {
		n->dd->a.nlink += (uint32_t)ddelta;
		touch(n->dd, rm->now);
	}
	return 0;
}

int mem_rename(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name,
	       uint64_t new_parent, const char *new_name, unsigned flags, uint64_t *ret,
	       struct attr *ret_attr)
{
	struct meta_mem *mm = mem_engine(m);
	struct renaming n = {.c = c,
			     .uid = c->uid,
			     .exchange = flags & RENAME_F_EXCHANGE,
			     .whiteout = flags & RENAME_F_WHITEOUT,
			     .restore = flags & RENAME_F_RESTORE};
	struct removal rm;
	int r = removal_begin(m, &rm, new_parent, new_name);

	mtx_lock(&mm->lock);
	n.sd = mem_find_locked(mm, parent);
	n.dd = mem_find_locked(mm, new_parent);
	n.se = n.sd ? mem_entry_find(n.sd, name) : NULL;
	n.de = n.dd ? mem_entry_find(n.dd, new_name) : NULL;
	n.i = n.se ? mem_find_locked(mm, n.se->inode) : NULL;
	n.j = n.de ? mem_find_locked(mm, n.de->inode) : NULL;
	if (!r && (!n.i || !n.dd))
		r = -ENOENT;
	if (!r && n.sd == n.dd && n.se == n.de)
		r = 1;
	if (!r && n.j && (flags & RENAME_F_NOREPLACE))
		r = -EEXIST;
	if (!r)
		r = rename_check(&n);
	if (!r && n.sd != n.dd &&
	    (in_itself_locked(mm, n.i, n.dd) || (n.exchange && in_itself_locked(mm, n.j, n.sd))))
		r = -EINVAL;
	if (!r)
		r = rename_locked(mm, &n, new_name, &rm);
	if (r == 0 && n.exchange && c->ret_other)
		*c->ret_other = n.j->inode;
	if (r >= 0 && n.i) { /* 1: nothing to do */
		*ret = n.i->inode;
		*ret_attr = n.i->a;
		r = 0;
	}
	mtx_unlock(&mm->lock);
	removal_end(m, &rm);
	return r;
}
