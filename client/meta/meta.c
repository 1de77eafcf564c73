/* SPDX-License-Identifier: Apache-2.0 */
/* The calls everybody makes: what is the same for every engine is checked here, the rest is the
 * engine's. Any thread that may block. */
#include "client/meta/meta.h"

#include <fcntl.h>
#include <time.h>

#include "client/meta/engine.h"
#include "common/clock.h"

#define TRASH_NAME ".trash"

static uint64_t rooted(uint64_t inode)
{
	return inode ? inode : INODE_ROOT;
}

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

static bool is_trash_root(uint64_t parent, const char *name)
{
	return parent == INODE_ROOT && !strcmp(name, TRASH_NAME);
}

static int check_there(struct meta *m)
{
	bool gone;

	mtx_lock(&m->lock);
	gone = m->gone;
	mtx_unlock(&m->lock);
	return gone ? -EIO : 0;
}

static int check_writable(struct meta *m)
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
static int check_create(struct meta *m, uint64_t parent, const char *name)
{
	int r = check_writable(m);

	if (!r)
		r = check_name(name);
	if (r)
		return r;
	if (is_dots(name))
		return -EEXIST;
	return parent >= INODE_INTERNAL || is_trash_root(parent, name) ? -EPERM : 0;
}

/* a name goes from parent; only root takes things out of the trash */
static int check_remove(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name)
{
	int r = check_writable(m);

	if (!r)
		r = check_name(name);
	if (r)
		return r;
	if (is_trash_root(parent, name) || (parent >= INODE_INTERNAL && parent < INODE_TRASH))
		return -EPERM;
	return parent >= INODE_TRASH && c->uid != 0 ? -EPERM : 0;
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

	inode = rooted(inode);
	r = check_there(m);
	if (!r)
		r = m->ops->getattr(m, inode, ret);
	if (r == -ENOENT && (inode == INODE_ROOT || inode == INODE_TRASH)) {
		synthetic_dir(inode, ret);
		return 0;
	}
	return r;
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
	if (up && parent != INODE_ROOT) {
		inode = rooted(a.parent);
		r = meta_getattr(m, inode, &a);
		if (r)
			return r;
	}
	*ret = inode;
	*ret_attr = a;
	return 0;
}

int meta_lookup(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name,
		uint64_t *ret, struct attr *ret_attr)
{
	struct attr a;
	int r = check_name(name);

	parent = rooted(parent);
	if (!r)
		r = check_there(m);
	if (r)
		return r;
	if (is_dots(name))
		return lookup_dots(m, parent, name[1], ret, ret_attr);
	if (!is_trash_root(parent, name))
		return m->ops->lookup(m, c, parent, name, ret, ret_attr);
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
	int r = check_writable(m);

	if (r)
		return r;
	inode = rooted(inode);
	return inode >= INODE_INTERNAL ? -EPERM : m->ops->setattr(m, c, inode, set, want, ret);
}

int meta_truncate(struct meta *m, const struct meta_ctx *c, uint64_t inode, uint64_t length,
		  bool through_handle, struct attr *ret)
{
	int r = check_writable(m);

	if (r)
		return r;
	if (length > FILE_LENGTH_MAX)
		return -EFBIG;
	return m->ops->truncate(m, c, rooted(inode), length, through_handle, ret);
}

int meta_mknod(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name,
	       uint8_t type, uint32_t mode, uint32_t umask, uint32_t rdev, const char *target,
	       uint64_t *ret, struct attr *ret_attr)
{
	int r;

	parent = rooted(parent);
	r = check_create(m, parent, name);
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
	return m->ops->mknod(m, c, parent, name, type, mode & 07777, umask & 07777, rdev,
			     type == INODE_SYMLINK ? target : "", ret, ret_attr);
}

int meta_link(struct meta *m, const struct meta_ctx *c, uint64_t inode, uint64_t parent,
	      const char *name, struct attr *ret)
{
	int r;

	parent = rooted(parent);
	r = check_create(m, parent, name);
	if (r)
		return r;
	return rooted(inode) >= INODE_INTERNAL || rooted(inode) == INODE_ROOT
		       ? -EPERM
		       : m->ops->link(m, c, inode, parent, name, ret);
}

int meta_unlink(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name)
{
	int r;

	parent = rooted(parent);
	r = check_remove(m, c, parent, name);
	if (r)
		return r;
	return is_dots(name) ? -EPERM : m->ops->unlink(m, c, parent, name);
}

int meta_rmdir(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name)
{
	int r;

	parent = rooted(parent);
	if (!strcmp(name, "."))
		return -EINVAL;
	if (!strcmp(name, ".."))
		return -ENOTEMPTY;
	r = check_remove(m, c, parent, name);
	if (r)
		return r;
	return parent == INODE_TRASH ? -EPERM : m->ops->rmdir(m, c, parent, name);
}

int meta_rename(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name,
		uint64_t new_parent, const char *new_name, unsigned flags, uint64_t *ret,
		struct attr *ret_attr)
{
	int r;

	parent = rooted(parent);
	new_parent = rooted(new_parent);
	if (flags != 0 && flags != RENAME_F_NOREPLACE && flags != RENAME_F_EXCHANGE)
		return -EINVAL;
	r = check_remove(m, c, parent, name);
	if (!r)
		r = check_create(m, new_parent, new_name);
	if (r)
		return r;
	if (is_dots(name))
		return -EBUSY;
	if (flags == RENAME_F_EXCHANGE && parent >= INODE_TRASH)
		return -EPERM; /* the other one would come into the trash */
	return m->ops->rename(m, c, parent, name, new_parent, new_name, flags, ret, ret_attr);
}

int meta_readlink(struct meta *m, uint64_t inode, char **ret)
{
	int r = check_there(m);

	return r ? r : m->ops->readlink(m, inode, ret);
}

int meta_readdir(struct meta *m, uint64_t inode, bool with_attr, struct meta_dir **ret)
{
	int r = check_there(m);

	return r ? r : m->ops->readdir(m, rooted(inode), with_attr, ret);
}

static int check_open(const struct attr *a, int flags)
{
	bool writes = (flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC);

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
	int r = check_there(m);

	inode = rooted(inode);
	if (!r && ((flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC)))
		r = check_writable(m);
	/* counted before the engine looks, so that an unlink meanwhile knows of it */
	if (!r)
		r = open_ref(m, inode);
	if (r)
		return r;
	r = m->ops->open(m, c, inode, flags, &l);
	if (!r) {
		r = check_open(&l.attr, flags);
		if (r)
			chunk_list_fini(&l);
	}
	if (r) {
		open_unref(m, inode, &last);
		if (last)
			(void)m->ops->close(m, inode); /* what fails here ends with the session */
		return r;
	}
	*ret = l;
	return 0;
}

int meta_close(struct meta *m, uint64_t inode)
{
	bool last;
	int r;

	inode = rooted(inode);
	r = open_unref(m, inode, &last);
	return r || !last ? r : m->ops->close(m, inode);
}

int meta_read(struct meta *m, uint64_t inode, uint32_t index, uint32_t n, struct chunk_list *ret)
{
	int r;

	if (n == 0 || n > 256 || index > UINT32_MAX - n)
		return -EINVAL;
	r = check_there(m);
	return r ? r : m->ops->read(m, inode, index, n, ret);
}

int meta_write(struct meta *m, uint64_t inode, uint32_t index, const struct slice *s,
	       struct time_ns mtime, struct attr *ret)
{
	int r = check_writable(m);

	if (r)
		return r;
	if (s->pos > CHUNK_SIZE || s->len > CHUNK_SIZE - s->pos || s->len == 0 ||
	    (s->id && (s->off > s->size || s->len > s->size - s->off)))
		return -EINVAL;
	if (((uint64_t)index << CHUNK_BITS) + s->pos + s->len > FILE_LENGTH_MAX)
		return -EFBIG;
	return m->ops->write(m, inode, index, s, mtime, ret);
}

int meta_new_slice(struct meta *m, uint64_t *ret, struct hash128 *ret_volume)
{
	int r = check_writable(m);

	return r ? r : m->ops->new_slice(m, ret, ret_volume);
}

int meta_statfs(struct meta *m, struct meta_statfs *ret)
{
	int r = check_there(m);

	return r ? r : m->ops->statfs(m, ret);
}

static int check_xattr_name(const char *name)
{
	size_t n = strlen(name);

	if (n == 0)
		return -EINVAL;
	return n > NAME_LEN_MAX ? -ERANGE : 0;
}

/* POSIX ACLs are no common attributes */
static bool is_acl_name(const char *name)
{
	return !strcmp(name, ACL_NAME_ACCESS) || !strcmp(name, ACL_NAME_DEFAULT);
}

int meta_getxattr(struct meta *m, uint64_t inode, const char *name, char **ret, size_t *ret_len)
{
	int r = check_xattr_name(name);

	if (r)
		return r;
	if (is_acl_name(name))
		return -EOPNOTSUPP;
	r = check_there(m);
	return r ? r : m->ops->getxattr(m, rooted(inode), name, ret, ret_len);
}

int meta_setxattr(struct meta *m, uint64_t inode, const char *name, const void *value, size_t len,
		  int flags)
{
	int r = check_writable(m);

	if (!r)
		r = check_xattr_name(name);
	if (r)
		return r;
	if (rooted(inode) >= INODE_INTERNAL)
		return -EPERM;
	if (is_acl_name(name))
		return -EOPNOTSUPP;
	if (len > XATTR_VALUE_MAX)
		return -E2BIG;
	if (flags < 0 || flags > 2)
		return -EINVAL;
	return m->ops->setxattr(m, rooted(inode), name, value, len, flags);
}

int meta_listxattr(struct meta *m, uint64_t inode, char **ret, size_t *ret_len)
{
	int r = check_there(m);

	return r ? r : m->ops->listxattr(m, rooted(inode), ret, ret_len);
}

int meta_removexattr(struct meta *m, uint64_t inode, const char *name)
{
	int r = check_writable(m);

	if (!r)
		r = check_xattr_name(name);
	if (r)
		return r;
	if (rooted(inode) >= INODE_INTERNAL)
		return -EPERM;
	return is_acl_name(name) ? -EOPNOTSUPP : m->ops->removexattr(m, rooted(inode), name);
}

/* an operation that not every engine has */
#define HAS(m, op) ((m)->ops->op ? 0 : -EOPNOTSUPP)

int meta_getfacl(struct meta *m, uint64_t inode, enum acl_type type, struct acl *ret)
{
	int r = check_there(m);

	if (!r)
		r = HAS(m, getfacl);
	return r ? r : m->ops->getfacl(m, rooted(inode), type, ret);
}

int meta_setfacl(struct meta *m, const struct meta_ctx *c, uint64_t inode, enum acl_type type,
		 const struct acl *rule, struct attr *ret)
{
	int r = check_writable(m);

	if (!r)
		r = HAS(m, setfacl);
	if (r)
		return r;
	return rooted(inode) >= INODE_INTERNAL
		       ? -EPERM
		       : m->ops->setfacl(m, c, rooted(inode), type, rule, ret);
}

int meta_touch_atime(struct meta *m, uint64_t inode, struct attr *a)
{
	if (m->conf.atime == ATIME_NONE || rooted(inode) >= INODE_INTERNAL || check_writable(m) ||
	    HAS(m, touch_atime))
		return 0;
	return m->ops->touch_atime(m, rooted(inode), a);
}

int meta_flock(struct meta *m, uint64_t inode, uint64_t owner, uint32_t type)
{
	int r = check_writable(m);

	if (!r)
		r = HAS(m, flock);
	return r ? r : m->ops->flock(m, rooted(inode), owner, type);
}

int meta_setlk(struct meta *m, uint64_t inode, uint64_t owner, const struct meta_lock *l)
{
	int r = check_writable(m);

	if (!r)
		r = HAS(m, setlk);
	return r ? r : m->ops->setlk(m, rooted(inode), owner, l);
}

int meta_getlk(struct meta *m, uint64_t inode, uint64_t owner, struct meta_lock *l)
{
	int r = check_there(m);

	if (!r)
		r = HAS(m, getlk);
	return r ? r : m->ops->getlk(m, rooted(inode), owner, l);
}

int meta_fallocate(struct meta *m, const struct meta_ctx *c, uint64_t inode, int mode, uint64_t off,
		   uint64_t len, struct attr *ret)
{
	int r = check_writable(m);

	if (!r)
		r = HAS(m, fallocate);
	if (r)
		return r;
	if (len == 0)
		return -EINVAL;
	if (off > FILE_LENGTH_MAX || len > FILE_LENGTH_MAX - off)
		return -EFBIG;
	return m->ops->fallocate(m, c, rooted(inode), mode, off, len, ret);
}

int meta_copy_file_range(struct meta *m, const struct meta_ctx *c, uint64_t in, uint64_t off_in,
			 uint64_t out, uint64_t off_out, uint64_t len, uint64_t *ret_copied,
			 struct attr *ret_out)
{
	int r = check_writable(m);

	in = rooted(in);
	out = rooted(out);
	if (!r)
		r = HAS(m, copy_file_range);
	if (r)
		return r;
	if (off_in > FILE_LENGTH_MAX || off_out > FILE_LENGTH_MAX ||
	    len > FILE_LENGTH_MAX - off_out)
		return -EFBIG;
	if (in == out && off_in < off_out + len && off_out < off_in + len)
		return -EINVAL;
	return m->ops->copy_file_range(m, c, in, off_in, out, off_out, len, ret_copied, ret_out);
}

int meta_tmpfile(struct meta *m, const struct meta_ctx *c, uint64_t parent, uint32_t mode,
		 uint32_t umask, uint64_t *ret, struct attr *ret_attr)
{
	int r = check_writable(m);

	parent = rooted(parent);
	if (!r)
		r = HAS(m, tmpfile);
	if (!r && parent >= INODE_INTERNAL)
		r = -EPERM;
	return r ? r : m->ops->tmpfile(m, c, parent, mode & 07777, umask & 07777, ret, ret_attr);
}

int meta_remove_tree(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name,
		     bool skip_trash, struct meta_progress *p)
{
	int r;

	parent = rooted(parent);
	r = check_remove(m, c, parent, name);
	if (!r)
		r = HAS(m, remove_tree);
	if (r)
		return r;
	return is_dots(name) ? -EINVAL : m->ops->remove_tree(m, c, parent, name, skip_trash, p);
}

int meta_clone(struct meta *m, const struct meta_ctx *c, uint64_t src, uint64_t parent,
	       const char *name, bool preserve, uint32_t umask, struct meta_progress *p)
{
	int r;

	parent = rooted(parent);
	r = check_create(m, parent, name);
	if (!r)
		r = HAS(m, clone);
	if (r)
		return r;
	return rooted(src) >= INODE_INTERNAL
		       ? -EPERM
		       : m->ops->clone(m, c, rooted(src), parent, name, preserve, umask, p);
}

int meta_compact(struct meta *m, uint64_t inode, uint32_t index, uint64_t *ret_freed)
{
	int r = check_writable(m);

	if (!r)
		r = HAS(m, compact);
	return r ? r : m->ops->compact(m, rooted(inode), index, ret_freed);
}

int meta_quota_set(struct meta *m, const struct quota *q)
{
	int r = check_writable(m);

	if (!r)
		r = HAS(m, quota_set);
	return r ? r : m->ops->quota_set(m, q);
}

int meta_quota_get(struct meta *m, enum quota_kind kind, uint64_t id, struct quota *ret)
{
	int r = check_there(m);

	if (!r)
		r = HAS(m, quota_get);
	return r ? r : m->ops->quota_get(m, kind, id, ret);
}

int meta_quota_list(struct meta *m, enum quota_kind kind, struct quota **ret, size_t *ret_n)
{
	int r = check_there(m);

	if (!r)
		r = HAS(m, quota_list);
	return r ? r : m->ops->quota_list(m, kind, ret, ret_n);
}

int meta_quota_delete(struct meta *m, enum quota_kind kind, uint64_t id)
{
	int r = check_writable(m);

	if (!r)
		r = HAS(m, quota_delete);
	return r ? r : m->ops->quota_delete(m, kind, id);
}

int meta_quota_check(struct meta *m, enum quota_kind kind, uint64_t id, bool repair,
		     struct quota *ret, struct meta_progress *p)
{
	int r = repair ? check_writable(m) : check_there(m);

	if (!r)
		r = HAS(m, quota_check);
	return r ? r : m->ops->quota_check(m, kind, id, repair, ret, p);
}

int meta_start(struct meta *m, struct str *err)
{
	return m->ops->start(m, err);
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
