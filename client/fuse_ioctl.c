/* SPDX-License-Identifier: Apache-2.0 */
/* ioctl: the flags that lsattr, chattr and their like ask for and set. The kernel itself lets only
 * those who may change "immutable" and "append only". Threads and names as in fuse_ops.c. */
#include "client/fuse_job.h"
#include "client/internal.h"

#include <linux/fs.h>

enum { SETTABLE = FS_SECRM_FL | FS_IMMUTABLE_FL | FS_APPEND_FL };

static const struct {
	uint32_t flag, xflag; /* xflag 0: none */
	uint8_t attr;
} pairs[] = {
	/* a file that is deleted past the trash */
	{FS_SECRM_FL, 0, ATTR_SKIP_TRASH},
	{FS_IMMUTABLE_FL, FS_XFLAG_IMMUTABLE, ATTR_IMMUTABLE},
	{FS_APPEND_FL, FS_XFLAG_APPEND, ATTR_APPEND},
};

static bool is_xattr(const struct job *j)
{
	return j->cmd == FS_IOC_FSGETXATTR || j->cmd == FS_IOC_FSSETXATTR;
}

static void do_get(struct job *j)
{
	struct fsxattr x = {0};
	struct vfs_entry e;
	uint32_t flags = 0;
	int r = vfs_getattr(vfs_of(j), j->ino, &e);

	if (r < 0) {
		job_reply_err(j, r);
		return;
	}
	for (size_t i = 0; i < ARRAY_LEN(pairs); i++) {
		if (e.attr.flags & pairs[i].attr) {
			flags |= pairs[i].flag;
			x.fsx_xflags |= pairs[i].xflag;
		}
	}
	if (is_xattr(j))
		job_reply_ioctl(j, &x, sizeof(x));
	else
		job_reply_ioctl(j, &flags, sizeof(flags));
}

/* the attribute's flags as asked for; -EOPNOTSUPP: some that no volume keeps */
static int wanted(struct job *j, uint8_t *ret)
{
	struct fsxattr x;
	struct vfs_entry e;
	uint32_t flags;
	int r;

	if (!is_xattr(j)) {
		memcpy(&flags, j->value, sizeof(flags));
		if (flags & ~(uint32_t)SETTABLE)
			return -EOPNOTSUPP;
		*ret = 0;
		for (size_t i = 0; i < ARRAY_LEN(pairs); i++)
			*ret |= flags & pairs[i].flag ? pairs[i].attr : 0;
		return 0;
	}
	memcpy(&x, j->value, sizeof(x));
	if ((x.fsx_xflags & ~(uint32_t)(FS_XFLAG_IMMUTABLE | FS_XFLAG_APPEND)) || x.fsx_extsize ||
	    x.fsx_projid || x.fsx_cowextsize)
		return -EOPNOTSUPP;
	r = vfs_getattr(vfs_of(j), j->ino, &e);
	if (r < 0)
		return r;
	*ret = e.attr.flags & ATTR_SKIP_TRASH;
	for (size_t i = 0; i < ARRAY_LEN(pairs); i++)
		*ret |= x.fsx_xflags & pairs[i].xflag ? pairs[i].attr : 0;
	return 0;
}

static void answer_set(struct job *j)
{
	job_reply_ioctl(j, NULL, 0);
}

static void do_set(struct job *j)
{
	struct attr want = {0};
	struct vfs_entry e;
	int r = wanted(j, &want.flags);

	/* where the kernel does not check permissions */
	if (r == 0 && j->ctx.check && j->ctx.uid != 0)
		r = -EPERM;
	if (r == 0)
		r = vfs_setattr(vfs_of(j), &j->ctx, j->ino, SET_FLAGS, &want, NULL, NULL, &e);
	if (r < 0)
		job_reply_err(j, r);
	else
		/* the kernel does not know that an ioctl changes them */
		job_forget_attr(j, answer_set);
}

/* a part of a request (client/internal.h): does not wait */
static void control(struct job *j, struct fuse_file_info *fi, const void *in, size_t n)
{
	struct handle *h = fi ? handle_of(fi) : NULL;
	int r = h && h->kind == HANDLE_INTERNAL ? internal_write(h->internal, in, n) : -EBADF;

	if (r < 0)
		job_reply_err(j, r);
	else
		job_reply_ioctl(j, NULL, 0);
}

void op_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned cmd, void *arg, struct fuse_file_info *fi,
	      unsigned flags, const void *in, size_t in_size, size_t out_size)
{
	struct job *j = job_new(req, FOP_IOCTL, ino, NULL, NULL, in, in_size);
	bool set = cmd == (unsigned)FS_IOC_SETFLAGS || cmd == (unsigned)FS_IOC_FSSETXATTR,
	     get = cmd == (unsigned)FS_IOC_GETFLAGS || cmd == (unsigned)FS_IOC_FSGETXATTR;
	size_t need;

	(void)arg;
	(void)flags;
	if (!j)
		return;
	if (ino == INODE_CONTROL && cmd == (unsigned)CONTROL_IOC(in_size)) {
		control(j, fi, in, in_size);
		return;
	}
	j->cmd = cmd;
	need = is_xattr(j) ? sizeof(struct fsxattr) : sizeof(uint32_t);
	/* reading harms nobody, so lsattr needs no option */
	if (!get && !(set && j->f->conf.ioctl))
		job_reply_err(j, -ENOTTY);
	else if ((get ? out_size : in_size) < need)
		job_reply_err(j, -EINVAL);
	else if (ino >= INODE_INTERNAL && ino <= INODE_TRASH)
		job_reply_err(j, -EPERM);
	else
		job_queue(j, get ? do_get : do_set);
}
