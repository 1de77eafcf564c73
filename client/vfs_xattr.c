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

/* trusted.* is for root's eyes; the length that is left */
static size_t hide_trusted(char *list, size_t len)
{
	size_t kept = 0;

	for (size_t at = 0, n; at < len; at += n) {
		n = strnlen(list + at, len - at - 1) + 1;
		if (strncmp(list + at, "trusted.", 8) == 0)
			continue;
		memmove(list + kept, list + at, n);
		kept += n;
	}
	return kept;
}

/* where it is not the kernel that checks; 4: to read, 2: to change */
static int check_access(struct vfs *v, const struct meta_ctx *c, uint64_t inode, unsigned want)
{
	return c->check ? meta_access(v->conf.meta, c, inode, want, NULL) : 0;
}

/* --- all --- */

int vfs_getxattr(struct vfs *v, const struct meta_ctx *c, uint64_t inode, const char *name,
		 char **ret, size_t *ret_len)
{
	int r = check_xattr(v, inode, name);

	if (r < 0)
		return r;
	if (vfs_xattr_unknown(name))
		return -ENODATA;
	if (acl_named(name))
		return get_acl(v, inode, acl_named(name), ret, ret_len);
	r = check_access(v, c, inode, 4);
	return r < 0 ? r : meta_getxattr(v->conf.meta, inode, name, ret, ret_len);
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
	r = check_access(v, c, inode, 2);
	return r < 0 ? r : meta_setxattr(v->conf.meta, inode, name, value, len, flags);
}

int vfs_listxattr(struct vfs *v, const struct meta_ctx *c, uint64_t inode, char **ret,
		  size_t *ret_len)
{
	int r;

	if (!v->conf.xattr)
		return -ENOTSUP;
	if (made_up(inode))
		return -ENODATA;
	r = meta_listxattr(v->conf.meta, inode, ret, ret_len);
	if (r == 0 && c->uid != 0)
		*ret_len = hide_trusted(*ret, *ret_len);
	return r;
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
	r = check_access(v, c, inode, 2);
	return r < 0 ? r : meta_removexattr(v->conf.meta, inode, name);
}
