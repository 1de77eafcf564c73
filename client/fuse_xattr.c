/* SPDX-License-Identifier: Apache-2.0 */
/* FUSE operations on extended attributes, and the one ioctl. Threads and names as in fuse_ops.c. */
#include "client/fuse_job.h"

#include <linux/fs.h>

/* true: the mount has none, so the kernel is told not to ask again */
static bool no_xattr(fuse_req_t req)
{
	struct fuse_ops *f = fuse_req_userdata(req);

	if (!f->conf.xattr)
		fuse_reply_err(req, ENOSYS);
	return !f->conf.xattr;
}

static void do_getxattr(struct job *j)
{
	_cleanup_(freep) char *value = NULL;
	size_t len = 0;
	int r = j->op == FOP_LISTXATTR ? vfs_listxattr(vfs_of(j), j->ino, &value, &len)
				       : vfs_getxattr(vfs_of(j), j->ino, j->name, &value, &len);

	if (r < 0)
		job_reply_err(j, r);
	else
		job_reply_xattr(j, value, len);
}

void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	struct job *j = no_xattr(req) ? NULL : job_new(req, FOP_GETXATTR, ino, name, NULL, NULL, 0);

	if (!j)
		return;
	j->size = size;
	/* the kernel's questions about its labels, before every write, are answered without a
	 * thread */
	if (vfs_xattr_unknown(name))
		job_reply_err(j, -ENODATA);
	else
		job_queue(j, do_getxattr);
}

void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	struct job *j =
		no_xattr(req) ? NULL : job_new(req, FOP_LISTXATTR, ino, NULL, NULL, NULL, 0);

	if (!j)
		return;
	j->size = size;
	job_queue(j, do_getxattr);
}

static void do_setxattr(struct job *j)
{
	struct vfs *v = vfs_of(j);

	job_reply_err(j, j->op == FOP_REMOVEXATTR
				 ? vfs_removexattr(v, j->ino, j->name)
				 : vfs_setxattr(v, j->ino, j->name, j->value, j->size, j->flags));
}

void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size,
		 int flags)
{
	struct job *j =
		no_xattr(req) ? NULL : job_new(req, FOP_SETXATTR, ino, name, NULL, value, size);

	if (!j)
		return;
	j->size = size;
	j->flags = flags;
	job_queue(j, do_setxattr);
}

void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	struct job *j =
		no_xattr(req) ? NULL : job_new(req, FOP_REMOVEXATTR, ino, name, NULL, NULL, 0);

	if (j)
		job_queue(j, do_setxattr);
}

/* --- the one ioctl --- */

static void do_getflags(struct job *j)
{
	struct vfs_entry e;
	int r = vfs_getattr(vfs_of(j), j->ino, &e);
	uint32_t flags = 0;

	if (r < 0) {
		job_reply_err(j, r);
		return;
	}
	if (e.attr.flags & ATTR_IMMUTABLE)
		flags |= FS_IMMUTABLE_FL;
	if (e.attr.flags & ATTR_APPEND)
		flags |= FS_APPEND_FL;
	job_reply_ioctl_flags(j, flags);
}

/* lsattr; every other request is unknown to this file system */
void op_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned cmd, void *arg, struct fuse_file_info *fi,
	      unsigned flags, const void *in, size_t in_size, size_t out_size)
{
	struct job *j = job_new(req, FOP_IOCTL, ino, NULL, NULL, NULL, 0);

	(void)arg;
	(void)fi;
	(void)flags;
	(void)in;
	(void)in_size;
	if (!j)
		return;
	if (cmd != (unsigned)FS_IOC_GETFLAGS || out_size < sizeof(uint32_t))
		job_reply_err(j, -ENOTTY);
	else
		job_queue(j, do_getflags);
}
