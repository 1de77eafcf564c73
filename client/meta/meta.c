/* SPDX-License-Identifier: Apache-2.0 */
/* The calls everybody makes: what is the same for every engine is checked here, the rest is the
 * engine's. Any thread that may block. */
#include "client/meta/meta.h"

#include <fcntl.h>
#include <time.h>

#include "client/meta/engine.h"
#include "common/clock.h"

#define TRASH_NAME ".trash"

static int check_name(const char *name)
{
	size_t n = strlen(name);

	if (n > NAME_LEN_MAX)
		return -ENAMETOOLONG;
	return n == 0 || strchr(name, '/') ? -EINVAL : 0;
}

static bool is_dots(const char *name)
{
	return !strcmp(name, ".") || !strcmp(name, "..");
}

static bool is_trash_root(const struct meta *m, uint64_t parent, const char *name)
{
	return parent == m->root && !strcmp(name, TRASH_NAME);
}

/* who is not checked by the kernel */
static int check_access(struct meta *m, const struct meta_ctx *c, uint64_t inode, unsigned want)
{
	return c && c->check ? meta_access(m, c, inode, want, NULL) : 0;
}

/* what the engine answered, as the caller names it */
static int shown(const struct meta *m, int r, uint64_t *inode, struct attr *a)
{
	if (r)
		return r;
	meta_show(m, *inode, a);
	*inode = meta_shown(m, *inode);
	return 0;
}

int meta_shown_attr(const struct meta *m, int r, uint64_t inode, struct attr *a)
{
	return shown(m, r, &inode, a);
}

int meta_check_there(struct meta *m)
{
	bool gone;

	mtx_lock(&m->lock);
	gone = m->gone;
	mtx_unlock(&m->lock);
	return gone ? -EIO : 0;
}

int meta_check_writable(struct meta *m)
{
	int r = 0;

	if (m->conf.read_only)
		return -EROFS;
	mtx_lock(&m->lock);
	if (m->gone)
		r = -EIO;
	else if (m->refuse_writes)
		r = -EROFS;
	mtx_unlock(&m->lock);
	return r;
}

/* something gets a name in parent */
static int check_create(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name)
{
	int r = meta_check_writable(m);

	if (!r)
		r = check_name(name);
	if (r)
		return r;
	if (is_dots(name))
		return -EEXIST;
	if (parent >= INODE_INTERNAL || is_trash_root(m, parent, name))
		return -EPERM;
	return check_access(m, c, parent, ACCESS_WRITE | ACCESS_EXECUTE);
}

/* a name goes from parent; only root takes things out of the trash */
static int check_remove(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name)
{
	int r = meta_check_writable(m);

	if (!r)
		r = check_name(name);
	if (r)
		return r;
	if (is_trash_root(m, parent, name) || (parent >= INODE_INTERNAL && parent < INODE_TRASH))
		return -EPERM;
	if (parent >= INODE_TRASH && c->uid != 0)
		return -EPERM;
	return check_access(m, c, parent, ACCESS_WRITE | ACCESS_EXECUTE);
}

/* what is shown when the record of a root is lost */
static void synthetic_dir(uint64_t inode, struct attr *ret)
{
	*ret = (struct attr){
		.type = INODE_DIR,
		.mode = inode == INODE_TRASH ? 0555 : 0777,
		.nlink = 2,
		.length = 4096,
		.parent = INODE_ROOT,
	};
}

int meta_getattr(struct meta *m, uint64_t inode, struct attr *ret)
{
	int r;

	inode = meta_rooted(m, inode);
	r = meta_check_there(m);
	if (!r)
		r = m->ops->getattr(m, inode, ret);
	if (r == -ENOENT && (inode == INODE_ROOT || inode == INODE_TRASH)) {
		synthetic_dir(inode, ret);
		return 0;
	}
	return meta_shown_attr(m, r, inode, ret);
}

static int lookup_dots(struct meta *m, uint64_t parent, bool up, uint64_t *ret,
		       struct attr *ret_attr)
{
	struct attr a;
	uint64_t inode = parent;
	int r = meta_getattr(m, parent, &a);

	if (r)
		return r;
	if (a.type != INODE_DIR)
		return -ENOTDIR;
	if (up && parent != m->root) {
		inode = meta_rooted(m, a.parent);
		r = meta_getattr(m, inode, &a);
		if (r)
			return r;
	}
	*ret = meta_shown(m, inode);
	*ret_attr = a;
	return 0;
}

int meta_lookup(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name,
		uint64_t *ret, struct attr *ret_attr)
{
	struct attr a;
	int r = check_name(name);

	parent = meta_rooted(m, parent);
	if (!r)
		r = meta_check_there(m);
	if (r)
		return r;
	r = check_access(m, c, parent, ACCESS_EXECUTE);
	if (r)
		return r;
	if (is_dots(name))
		return lookup_dots(m, parent, name[1], ret, ret_attr);
	if (!is_trash_root(m, parent, name) || m->root != INODE_ROOT)
		return shown(m, m->ops->lookup(m, c, parent, name, ret, ret_attr), ret, ret_attr);
	r = meta_getattr(m, INODE_TRASH, &a);
	if (r)
		return r;
	*ret = INODE_TRASH;
	*ret_attr = a;
	return 0;
}

int meta_setattr(struct meta *m, const struct meta_ctx *c, uint64_t inode, unsigned set,
		 const struct attr *want, struct attr *ret)
{
	int r = meta_check_writable(m);

	if (r)
		return r;
	inode = meta_rooted(m, inode);
	if (inode >= INODE_INTERNAL)
		return -EPERM;
	return meta_shown_attr(m, m->ops->setattr(m, c, inode, set, want, ret), inode, ret);
}

int meta_truncate(struct meta *m, const struct meta_ctx *c, uint64_t inode, uint64_t length,
		  bool through_handle, struct attr *ret)
{
	int r = meta_check_writable(m);

	if (r)
		return r;
	if (length > FILE_LENGTH_MAX)
		return -EFBIG;
	inode = meta_rooted(m, inode);
	r = through_handle ? 0 : check_access(m, c, inode, ACCESS_WRITE);
	if (r)
		return r;
	return meta_shown_attr(m, m->ops->truncate(m, c, inode, length, through_handle, ret), inode,
			       ret);
}

/* of a change of names, as the caller knows the directory */
static void show_dir(const struct meta *m, const struct meta_ctx *c, int which, uint64_t inode)
{
	if (c && c->ret_dirs && c->ret_dirs[which].type)
		meta_show(m, inode, &c->ret_dirs[which]);
}

int meta_mknod(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name,
	       uint8_t type, uint32_t mode, uint32_t umask, uint32_t rdev, const char *target,
	       uint64_t *ret, struct attr *ret_attr)
{
	int r;

	parent = meta_rooted(m, parent);
	r = check_create(m, c, parent, name);
	if (r)
		return r;
	if (type < INODE_FILE || type > INODE_SOCKET)
		return -EINVAL;
	if (type == INODE_SYMLINK) {
		if (!target || !*target)
			return -EINVAL;
		if (strlen(target) > SYMLINK_MAX)
			return -ENAMETOOLONG;
	}
	r = m->ops->mknod(m, c, parent, name, type, mode & 07777, umask & 07777, rdev,
			  type == INODE_SYMLINK ? target : "", ret, ret_attr);
	show_dir(m, c, 0, parent);
	return shown(m, r, ret, ret_attr);
}

int meta_link(struct meta *m, const struct meta_ctx *c, uint64_t inode, uint64_t parent,
	      const char *name, struct attr *ret)
{
	int r;

	parent = meta_rooted(m, parent);
	r = check_create(m, c, parent, name);
	if (r)
		return r;
	inode = meta_rooted(m, inode);
	if (inode >= INODE_INTERNAL || inode == m->root)
		return -EPERM;
	r = m->ops->link(m, c, inode, parent, name, ret);
	show_dir(m, c, 0, parent);
	return meta_shown_attr(m, r, inode, ret);
}

int meta_unlink(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name)
{
	int r;

	parent = meta_rooted(m, parent);
	r = check_remove(m, c, parent, name);
	if (r)
		return r;
	if (is_dots(name))
		return -EPERM;
	r = m->ops->unlink(m, c, parent, name);
	show_dir(m, c, 0, parent);
	return r;
}

int meta_rmdir(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name)
{
	int r;

	parent = meta_rooted(m, parent);
	if (!strcmp(name, "."))
		return -EINVAL;
	if (!strcmp(name, ".."))
		return -ENOTEMPTY;
	r = check_remove(m, c, parent, name);
	if (r)
		return r;
	if (parent == INODE_TRASH)
		return -EPERM;
	r = m->ops->rmdir(m, c, parent, name);
	show_dir(m, c, 0, parent);
	return r;
}

static int check_rename_flags(const struct meta_ctx *c, uint64_t parent, unsigned flags)
{
	bool from_trash = parent >= INODE_TRASH;

	switch (flags) {
	case 0:
	case RENAME_F_NOREPLACE:
		return 0;
	case RENAME_F_EXCHANGE: /* the other one would come into the trash */
	case RENAME_F_WHITEOUT:
	case RENAME_F_WHITEOUT | RENAME_F_NOREPLACE:
		return from_trash ? -EPERM : 0;
	case RENAME_F_NOREPLACE | RENAME_F_RESTORE:
		return from_trash && c->uid == 0 ? 0 : -EPERM;
	default:
		return -EINVAL;
	}
}

int meta_rename(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name,
		uint64_t new_parent, const char *new_name, unsigned flags, uint64_t *ret,
		struct attr *ret_attr)
{
	int r;

	parent = meta_rooted(m, parent);
	new_parent = meta_rooted(m, new_parent);
	r = check_rename_flags(c, parent, flags);
	if (!r)
		r = check_remove(m, c, parent, name);
	if (!r)
		r = check_create(m, c, new_parent, new_name);
	if (r)
		return r;
	if (is_dots(name))
		return -EBUSY;
	r = m->ops->rename(m, c, parent, name, new_parent, new_name, flags, ret, ret_attr);
	show_dir(m, c, 0, parent);
	show_dir(m, c, 1, new_parent);
	return shown(m, r, ret, ret_attr);
}

int meta_readlink(struct meta *m, uint64_t inode, char **ret)
{
	int r = meta_check_there(m);

	return r ? r : m->ops->readlink(m, inode, ret);
}

int meta_readdir(struct meta *m, uint64_t inode, bool with_attr, struct meta_dir **ret)
{
	int r = meta_check_there(m);

	if (!r)
		r = m->ops->readdir(m, meta_rooted(m, inode), with_attr, ret);
	for (size_t i = 0; !r && m->root != INODE_ROOT && i < (*ret)->n; i++)
		meta_show(m, (*ret)->entries[i].inode, &(*ret)->entries[i].attr);
	return r;
}

static unsigned open_wants(int flags)
{
	enum { FMODE_EXEC = 0x20 }; /* the kernel's: opened to be run */

	switch (flags & O_ACCMODE) {
	case O_RDONLY:
		return (flags & FMODE_EXEC ? ACCESS_EXECUTE : ACCESS_READ) |
		       (flags & O_TRUNC ? ACCESS_WRITE : 0);
	case O_WRONLY:
		return ACCESS_WRITE;
	default:
		return ACCESS_READ | ACCESS_WRITE;
	}
}

static int check_open(struct meta *m, const struct meta_ctx *c, uint64_t inode,
		      const struct attr *a, int flags)
{
	bool writes = (flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC);
	int r = c->check ? access_check(m, c, inode, a, open_wants(flags)) : 0;

	if (r)
		return r;
	if (!writes)
		return 0;
	if ((a->flags & ATTR_IMMUTABLE) || a->parent > INODE_TRASH)
		return -EPERM;
	if ((a->flags & ATTR_APPEND) && (!(flags & O_APPEND) || (flags & O_TRUNC)))
		return -EPERM;
	return 0;
}

int meta_open(struct meta *m, const struct meta_ctx *c, uint64_t inode, int flags,
	      struct chunk_list *ret)
{
	struct chunk_list l;
	bool last;
	int r = meta_check_there(m);

	inode = meta_rooted(m, inode);
	if (!r && ((flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC)))
		r = meta_check_writable(m);
	/* counted before the engine looks, so that an unlink meanwhile knows of it */
	if (!r)
		r = open_ref(m, inode);
	if (r)
		return r;
	r = m->ops->open(m, c, inode, flags, &l);
	if (!r) {
		r = check_open(m, c, inode, &l.attr, flags);
		if (r)
			chunk_list_fini(&l);
		else if (l.attr.nlink == 0) /* O_TMPFILE: gone at its last close */
			(void)open_unnamed(m, inode);
	}
	if (r) {
		open_unref(m, inode, &last);
		if (last)
			(void)m->ops->close(m, inode); /* what fails here ends with the session */
		return r;
	}
	meta_show(m, inode, &l.attr);
	*ret = l;
	return 0;
}

int meta_open_known(struct meta *m, uint64_t inode, const struct attr *a)
{
	int r = meta_check_there(m);

	inode = meta_rooted(m, inode);
	if (!r)
		r = open_ref(m, inode);
	if (!r && a->nlink == 0) /* O_TMPFILE: gone at its last close */
		(void)open_unnamed(m, inode);
	return r;
}

int meta_close(struct meta *m, uint64_t inode)
{
	bool last;
	int r;

	inode = meta_rooted(m, inode);
	r = open_unref(m, inode, &last);
	return r || !last ? r : m->ops->close(m, inode);
}

int meta_read(struct meta *m, uint64_t inode, uint32_t index, uint32_t n, struct chunk_list *ret)
{
	int r;

	if (n == 0 || n > 256 || index > UINT32_MAX - n)
		return -EINVAL;
	r = meta_check_there(m);
	if (!r)
		r = m->ops->read(m, inode, index, n, ret);
	for (uint32_t i = 0; !r && i < n; i++)
		meta_show(m, inode, &ret[i].attr);
	return r;
}

int meta_write(struct meta *m, uint64_t inode, uint32_t index, const struct slice *s,
	       struct time_ns mtime, struct attr *ret)
{
	int r = meta_check_writable(m);

	if (r)
		return r;
	if (s->pos > CHUNK_SIZE || s->len > CHUNK_SIZE - s->pos || s->len == 0 ||
	    (s->id && (s->off > s->size || s->len > s->size - s->off)))
		return -EINVAL;
	if (((uint64_t)index << CHUNK_BITS) + s->pos + s->len > FILE_LENGTH_MAX)
		return -EFBIG;
	return meta_shown_attr(m, m->ops->write(m, inode, index, s, mtime, ret), inode, ret);
}

int meta_new_slice(struct meta *m, uint64_t *ret, struct hash128 *ret_volume)
{
	int r = meta_check_writable(m);

	return r ? r : m->ops->new_slice(m, ret, ret_volume);
}

int meta_statfs(struct meta *m, uint64_t inode, struct meta_statfs *ret)
{
	int r = meta_check_there(m);

	return r ? r : m->ops->statfs(m, meta_rooted(m, inode), ret);
}

int meta_flock(struct meta *m, uint64_t inode, uint64_t owner, uint32_t type)
{
	int r = meta_check_writable(m);

	if (!r)
		r = META_HAS(m, flock);
	return r ? r : m->ops->flock(m, meta_rooted(m, inode), owner, type);
}

int meta_setlk(struct meta *m, uint64_t inode, uint64_t owner, const struct meta_lock *l)
{
	int r = meta_check_writable(m);

	if (!r)
		r = META_HAS(m, setlk);
	return r ? r : m->ops->setlk(m, meta_rooted(m, inode), owner, l);
}

int meta_getlk(struct meta *m, uint64_t inode, uint64_t owner, struct meta_lock *l)
{
	int r = meta_check_there(m);

	if (!r)
		r = META_HAS(m, getlk);
	return r ? r : m->ops->getlk(m, meta_rooted(m, inode), owner, l);
}

int meta_next_chunk(struct meta *m, uint64_t inode, uint32_t first, uint32_t end, uint32_t *ret)
{
	int r = META_HAS(m, next_chunk);

	return r ? r : m->ops->next_chunk(m, inode, first, end, ret);
}

int meta_fallocate(struct meta *m, const struct meta_ctx *c, uint64_t inode, int mode, uint64_t off,
		   uint64_t len, struct attr *ret)
{
	int r = meta_check_writable(m);

	if (!r)
		r = META_HAS(m, fallocate);
	if (r)
		return r;
	if (len == 0)
		return -EINVAL;
	if (off > FILE_LENGTH_MAX || len > FILE_LENGTH_MAX - off)
		return -EFBIG;
	inode = meta_rooted(m, inode);
	r = m->ops->fallocate(m, c, inode, mode, off, len, ret);
	return meta_shown_attr(m, r, inode, ret);
}

int meta_copy_file_range(struct meta *m, const struct meta_ctx *c, uint64_t in, uint64_t off_in,
			 uint64_t out, uint64_t off_out, uint64_t len, uint64_t *ret_copied,
			 struct attr *ret_out)
{
	int r = meta_check_writable(m);

	in = meta_rooted(m, in);
	out = meta_rooted(m, out);
	if (!r)
		r = META_HAS(m, copy_file_range);
	if (r)
		return r;
	if (off_in > FILE_LENGTH_MAX || off_out > FILE_LENGTH_MAX ||
	    len > FILE_LENGTH_MAX - off_out)
		return -EFBIG;
	if (in == out && off_in < off_out + len && off_out < off_in + len)
		return -EINVAL;
	r = m->ops->copy_file_range(m, c, in, off_in, out, off_out, len, ret_copied, ret_out);
	return meta_shown_attr(m, r, out, ret_out);
}

int meta_tmpfile(struct meta *m, const struct meta_ctx *c, uint64_t parent, uint32_t mode,
		 uint32_t umask, uint64_t *ret, struct attr *ret_attr)
{
	int r = meta_check_writable(m);

	parent = meta_rooted(m, parent);
	if (!r)
		r = META_HAS(m, tmpfile);
	if (!r && parent >= INODE_INTERNAL)
		r = -EPERM;
	if (!r)
		r = check_access(m, c, parent, ACCESS_WRITE | ACCESS_EXECUTE);
	if (!r)
		r = m->ops->tmpfile(m, c, parent, mode & 07777, umask & 07777, ret, ret_attr);
	return shown(m, r, ret, ret_attr);
}

int meta_remove_tree(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name,
		     bool skip_trash, struct meta_progress *p)
{
	int r;

	parent = meta_rooted(m, parent);
	r = check_remove(m, c, parent, name);
	if (!r)
		r = META_HAS(m, remove_tree);
	if (r)
		return r;
	return is_dots(name) ? -EINVAL : m->ops->remove_tree(m, c, parent, name, skip_trash, p);
}

int meta_clone(struct meta *m, const struct meta_ctx *c, uint64_t src, uint64_t parent,
	       const char *name, bool preserve, uint32_t umask, struct meta_progress *p)
{
	int r;

	parent = meta_rooted(m, parent);
	r = check_create(m, c, parent, name);
	if (!r)
		r = META_HAS(m, clone);
	src = meta_rooted(m, src);
	if (!r)
		r = src >= INODE_INTERNAL ? -EPERM : check_access(m, c, src, ACCESS_READ);
	return r ? r : m->ops->clone(m, c, src, parent, name, preserve, umask, p);
}

int meta_compact(struct meta *m, uint64_t inode, uint32_t index, uint64_t *ret_freed)
{
	int r = meta_check_writable(m);

	if (!r)
		r = META_HAS(m, compact);
	return r ? r : m->ops->compact(m, meta_rooted(m, inode), index, ret_freed);
}

int meta_quota_set(struct meta *m, const struct quota *q)
{
	int r = meta_check_writable(m);

	if (!r)
		r = META_HAS(m, quota_set);
	return r ? r : m->ops->quota_set(m, q);
}

int meta_quota_get(struct meta *m, enum quota_kind kind, uint64_t id, struct quota *ret)
{
	int r = meta_check_there(m);

	if (!r)
		r = META_HAS(m, quota_get);
	return r ? r : m->ops->quota_get(m, kind, id, ret);
}

int meta_quota_list(struct meta *m, enum quota_kind kind, struct quota **ret, size_t *ret_n)
{
	int r = meta_check_there(m);

	if (!r)
		r = META_HAS(m, quota_list);
	return r ? r : m->ops->quota_list(m, kind, ret, ret_n);
}

int meta_quota_delete(struct meta *m, enum quota_kind kind, uint64_t id)
{
	int r = meta_check_writable(m);

	if (!r)
		r = META_HAS(m, quota_delete);
	return r ? r : m->ops->quota_delete(m, kind, id);
}

int meta_quota_check(struct meta *m, enum quota_kind kind, uint64_t id, bool repair,
		     struct quota *ret_told, struct quota *ret, struct meta_progress *p)
{
	int r = repair ? meta_check_writable(m) : meta_check_there(m);

	if (!r)
		r = META_HAS(m, quota_check);
	return r ? r : m->ops->quota_check(m, kind, id, repair, ret_told, ret, p);
}

int meta_start(struct meta *m, struct str *err)
{
	int r = m->ops->start(m, err);

	if (r)
		return r;
	r = root_resolve(m, err);
	if (r)
		m->ops->stop(m);
	return r;
}

void meta_stop(struct meta *m)
{
	m->ops->stop(m);
}

void meta_free(struct meta *m)
{
	if (m)
		m->ops->free(m);
}

void chunk_list_fini(struct chunk_list *l)
{
	free(l->slices);
	*l = (struct chunk_list){0};
}

void meta_dir_free(struct meta_dir *d)
{
	if (!d)
		return;
	free(d->entries);
	free(d->names);
	free(d);
}
