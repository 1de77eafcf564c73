/* SPDX-License-Identifier: Apache-2.0 */
/* What a mount calls its root: inode 1 of the caller. With --subdir it is a directory inside the
 * volume; its entries have the volume's numbers, only it and its parent are called 1. Any
 * thread. */
#include "client/meta/engine.h"

uint64_t meta_rooted(const struct meta *m, uint64_t inode)
{
	return inode <= INODE_ROOT ? m->root : inode;
}

uint64_t meta_shown(const struct meta *m, uint64_t inode)
{
	return inode == m->root ? INODE_ROOT : inode;
}

void meta_show(const struct meta *m, uint64_t inode, struct attr *a)
{
	if (inode == m->root || a->parent == m->root)
		a->parent = INODE_ROOT;
}

/* one directory below another; made when it is missing */
static int root_step(struct meta *m, uint64_t parent, const char *name, uint64_t *ret)
{
	static const struct meta_ctx root = {.uid = 0};
	struct attr a;
	int r = m->ops->lookup(m, &root, parent, name, ret, &a);

	if (r == -ENOENT && !m->conf.read_only) {
		r = m->ops->mknod(m, &root, parent, name, INODE_DIR, 0777, 0, 0, "", ret, &a);
		if (r == -EEXIST) /* somebody was faster */
			r = m->ops->lookup(m, &root, parent, name, ret, &a);
	}
	return !r && a.type != INODE_DIR ? -ENOTDIR : r;
}

int root_resolve(struct meta *m, struct str *err)
{
	char name[NAME_LEN_MAX + 1];
	const char *p = m->conf.subdir;
	uint64_t at = INODE_ROOT;
	int r = 0;

	while (p && !r) {
		size_t n;

		p += strspn(p, "/");
		n = strcspn(p, "/");
		if (n == 0)
			break;
		memcpy(name, p, MIN(n, sizeof(name)));
		if (n < sizeof(name))
			name[n] = '\0';
		p += n;
		if (n > NAME_LEN_MAX)
			r = -ENAMETOOLONG;
		else if (!strcmp(name, ".."))
			r = -EINVAL;
		else if (strcmp(name, ".") != 0)
			r = root_step(m, at, name, &at);
	}
	if (r)
		str_addf(err, "the sub-directory %s (--subdir): %s%s", m->conf.subdir, strerror(-r),
			 r == -ENOENT ? ": a read-only mount does not make it" : "");
	else
		m->root = at;
	return r;
}

int meta_access(struct meta *m, const struct meta_ctx *c, uint64_t inode, unsigned want,
		struct attr *ret_attr)
{
	struct attr a;
	int r = meta_getattr(m, inode, &a);

	if (!r)
		r = access_check(m, c, meta_rooted(m, inode), &a, want);
	if (!r && ret_attr)
		*ret_attr = a;
	return r;
}
