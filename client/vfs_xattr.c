/* SPDX-License-Identifier: Apache-2.0 */
/* Extended attributes, and POSIX ACLs under their names: the kernel asks for both by getxattr and
 * setxattr, the volume keeps them apart. All but vfs_xattr_unknown block on Redis: meta workq. */
#include "client/vfs.h"

/* labels of the kernel's own that need a mount flag which is not there: asked for at every write
 * and exec, so never a question to Redis */
bool vfs_xattr_unknown(const char *name)
{
	return strcmp(name, "security.capability") == 0 || strcmp(name, "security.selinux") == 0;
}

/* 0: no ACL's name */
static enum acl_type acl_named(const char *name)
{
	if (strcmp(name, ACL_NAME_ACCESS) == 0)
		return ACL_ACCESS;
	return strcmp(name, ACL_NAME_DEFAULT) == 0 ? ACL_DEFAULT : 0;
}

static bool made_up(uint64_t inode)
{
	return inode >= INODE_INTERNAL && inode <= INODE_TRASH;
}

static int check_xattr(struct vfs *v, uint64_t inode, const char *name)
{
	size_t n = strlen(name);

	if (acl_named(name) ? !v->conf.acl : !v->conf.xattr)
		return -ENOTSUP;
	if (n == 0 || n > NAME_LEN_MAX)
		return n ? -ERANGE : -EINVAL;
	return made_up(inode) ? -ENODATA : 0;
}

/* --- ACLs --- */

static int get_acl(struct vfs *v, uint64_t inode, enum acl_type type, char **ret, size_t *ret_len)
{
	struct str out = STR_INIT;
	struct acl rule = {0};
	size_t len;
	char *text;
	int r = meta_getfacl(v->conf.meta, inode, type, &rule);

	if (r < 0)
		return r;
	acl_to_xattr(&rule, &out);
	acl_fini(&rule);
	len = out.len;
	text = str_take(&out);
	if (!text)
		return -ENOMEM;
	*ret = text;
	*ret_len = len;
	return 0;
}

/* value NULL: none any more */
static int set_acl(struct vfs *v, const struct meta_ctx *c, uint64_t inode, enum acl_type type,
		   const void *value, size_t len)
{
	struct acl rule = {0};
	struct attr a;
	int r = value ? acl_from_xattr(value, len, &rule) : 0;

	if (r < 0)
		return r;
	r = meta_setfacl(v->conf.meta, c, inode, type, value && !acl_is_empty(&rule) ? &rule : NULL,
			 &a);
	acl_fini(&rule);
	if (r == 0)
		vfs_changed(v, inode, &a, false);
	return r;
}

static bool lists_name(const char *list, size_t len, const char *name)
{
	for (size_t at = 0; at < len; at += strlen(list + at) + 1) {
		if (strcmp(list + at, name) == 0)
			return true;
	}
	return false;
}

/* the names of the ACLs that inode has, behind those that the engine gave */
static int list_acls(struct vfs *v, uint64_t inode, char **list, size_t *len)
{
	static const char names[2][sizeof(ACL_NAME_DEFAULT)] = {ACL_NAME_ACCESS, ACL_NAME_DEFAULT};
	struct attr a;
	int r = meta_getattr(v->conf.meta, inode, &a);

	for (int i = 0; i < 2 && r == 0; i++) {
		size_t n = strlen(names[i]) + 1;
		char *more;

		if (!(i ? a.default_acl : a.access_acl) || lists_name(*list, *len, names[i]))
			continue;
		more = realloc(*list, *len + n);
		if (!more)
			return -ENOMEM;
		memcpy(more + *len, names[i], n);
		*list = more;
		*len += n;
	}
	return r;
}

/* --- all --- */

int vfs_getxattr(struct vfs *v, uint64_t inode, const char *name, char **ret, size_t *ret_len)
{
	int r = check_xattr(v, inode, name);

	if (r < 0)
		return r;
	if (vfs_xattr_unknown(name))
		return -ENODATA;
	if (acl_named(name))
		return get_acl(v, inode, acl_named(name), ret, ret_len);
	return meta_getxattr(v->conf.meta, inode, name, ret, ret_len);
}

int vfs_setxattr(struct vfs *v, const struct meta_ctx *c, uint64_t inode, const char *name,
		 const void *value, size_t len, int flags)
{
	int r = check_xattr(v, inode, name);

	if (r < 0)
		return r == -ENODATA ? -EPERM : r;
	if (vfs_xattr_unknown(name))
		return -ENOTSUP;
	if (len > XATTR_VALUE_MAX)
		return -E2BIG;
	if (acl_named(name))
		return set_acl(v, c, inode, acl_named(name), value, len);
	return meta_setxattr(v->conf.meta, inode, name, value, len, flags);
}

int vfs_listxattr(struct vfs *v, uint64_t inode, char **ret, size_t *ret_len)
{
	char *list = NULL;
	size_t len = 0;
	int r;

	if (!v->conf.xattr)
		return -ENOTSUP;
	if (made_up(inode))
		return -ENODATA;
	r = meta_listxattr(v->conf.meta, inode, &list, &len);
	if (r == 0 && v->conf.acl)
		r = list_acls(v, inode, &list, &len);
	if (r < 0) {
		free(list);
		return r;
	}
	*ret = list;
	*ret_len = len;
	return 0;
}

int vfs_removexattr(struct vfs *v, const struct meta_ctx *c, uint64_t inode, const char *name)
{
	int r = check_xattr(v, inode, name);

	if (r < 0)
		return r == -ENODATA ? -EPERM : r;
	if (vfs_xattr_unknown(name))
		return -ENOTSUP;
	if (acl_named(name))
		return set_acl(v, c, inode, acl_named(name), NULL, 0);
	return meta_removexattr(v->conf.meta, inode, name);
}
