/* SPDX-License-Identifier: Apache-2.0 */
/* The calls everybody makes, as in meta.c: extended attributes, ACLs, access times. Any thread that
 * may block. */
#include "client/meta/engine.h"

#include "common/clock.h"

static int check_xattr_name(const char *name)
{
	size_t n = strlen(name);

	if (n == 0)
		return -EINVAL;
	return n > NAME_LEN_MAX ? -ERANGE : 0;
}

/* POSIX ACLs are no common attributes; 0: it is one */
static enum acl_type acl_type_of(const char *name)
{
	if (!strcmp(name, ACL_NAME_ACCESS))
		return ACL_ACCESS;
	return strcmp(name, ACL_NAME_DEFAULT) ? 0 : ACL_DEFAULT;
}

static int get_acl_xattr(struct meta *m, uint64_t inode, enum acl_type type, char **ret,
			 size_t *ret_len)
{
	_cleanup_(str_fini) struct str text = STR_INIT;
	struct acl a;
	int r = meta_getfacl(m, inode, type, &a);

	if (r)
		return r;
	acl_to_xattr(&a, &text);
	acl_fini(&a);
	if (str_error(&text))
		return -ENOMEM;
	*ret_len = text.len;
	*ret = str_take(&text);
	return 0;
}

/* for who has no context: nobody's rights are looked at */
static int set_acl_xattr(struct meta *m, uint64_t inode, enum acl_type type, const void *value,
			 size_t len)
{
	static const struct meta_ctx root = {.uid = 0};
	struct acl a;
	struct attr attr;
	int r = acl_from_xattr(value, len, &a);

	if (r)
		return r;
	r = meta_setfacl(m, &root, inode, type, acl_is_empty(&a) ? NULL : &a, &attr);
	acl_fini(&a);
	return r;
}

int meta_getxattr(struct meta *m, uint64_t inode, const char *name, char **ret, size_t *ret_len)
{
	int r = check_xattr_name(name);

	if (r)
		return r;
	if (acl_type_of(name))
		return get_acl_xattr(m, inode, acl_type_of(name), ret, ret_len);
	r = meta_check_there(m);
	return r ? r : m->ops->getxattr(m, meta_rooted(m, inode), name, ret, ret_len);
}

int meta_setxattr(struct meta *m, uint64_t inode, const char *name, const void *value, size_t len,
		  int flags)
{
	int r = meta_check_writable(m);

	if (!r)
		r = check_xattr_name(name);
	if (r)
		return r;
	if (meta_rooted(m, inode) >= INODE_INTERNAL)
		return -EPERM;
	if (len > XATTR_VALUE_MAX)
		return -E2BIG;
	if (acl_type_of(name))
		return set_acl_xattr(m, inode, acl_type_of(name), value, len);
	if (flags < 0 || flags > 2)
		return -EINVAL;
	return m->ops->setxattr(m, meta_rooted(m, inode), name, value, len, flags);
}

int meta_listxattr(struct meta *m, uint64_t inode, char **ret, size_t *ret_len)
{
	int r = meta_check_there(m);

	return r ? r : m->ops->listxattr(m, meta_rooted(m, inode), ret, ret_len);
}

int meta_removexattr(struct meta *m, uint64_t inode, const char *name)
{
	int r = meta_check_writable(m);

	if (!r)
		r = check_xattr_name(name);
	if (r)
		return r;
	if (meta_rooted(m, inode) >= INODE_INTERNAL)
		return -EPERM;
	if (acl_type_of(name))
		return set_acl_xattr(m, inode, acl_type_of(name), "", 0);
	return m->ops->removexattr(m, meta_rooted(m, inode), name);
}

/* a kernel takes -EOPNOTSUPP for: there are none */
static int has_acl(const struct meta *m)
{
	return m->ops->getfacl && meta_setting(m)->enable_acl ? 0 : -EOPNOTSUPP;
}

int meta_getfacl(struct meta *m, uint64_t inode, enum acl_type type, struct acl *ret)
{
	int r = meta_check_there(m);

	if (!r)
		r = has_acl(m);
	return r ? r : m->ops->getfacl(m, meta_rooted(m, inode), type, ret);
}

int meta_setfacl(struct meta *m, const struct meta_ctx *c, uint64_t inode, enum acl_type type,
		 const struct acl *rule, struct attr *ret)
{
	int r = meta_check_writable(m);

	if (!r)
		r = has_acl(m);
	if (r)
		return r;
	inode = meta_rooted(m, inode);
	if (inode >= INODE_INTERNAL)
		return -EPERM;
	if (rule && acl_is_empty(rule))
		rule = NULL;
	return meta_shown_attr(m, m->ops->setfacl(m, c, inode, type, rule, ret), inode, ret);
}

static bool later(struct time_ns a, struct time_ns b)
{
	return a.sec != b.sec ? a.sec > b.sec : a.nsec > b.nsec;
}

/* by what the reader knows; the engine looks again */
static bool atime_due(enum atime_mode mode, const struct attr *a)
{
	struct time_ns now, old = a->atime;

	clock_real(&now.sec, &now.nsec);
	old.sec += mode == ATIME_STRICT ? 1 : 24 * 3600;
	return later(now, old) || later(a->mtime, a->atime) || later(a->ctime, a->atime);
}

int meta_touch_atime(struct meta *m, uint64_t inode, struct attr *a)
{
	if (m->conf.atime == ATIME_NONE || !atime_due(m->conf.atime, a) ||
	    meta_rooted(m, inode) >= INODE_INTERNAL || meta_check_writable(m) ||
	    META_HAS(m, touch_atime))
		return 0;
	inode = meta_rooted(m, inode);
	return meta_shown_attr(m, m->ops->touch_atime(m, inode, a), inode, a);
}
