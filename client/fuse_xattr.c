/* SPDX-License-Identifier: Apache-2.0 */
/* FUSE operations on extended attributes. Threads and names as in fuse_ops.c. */
#include "client/fuse_job.h"

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
	int r = j->op == FOP_LISTXATTR
			? vfs_listxattr(vfs_of(j), &j->ctx, j->ino, &value, &len)
			: vfs_getxattr(vfs_of(j), &j->ctx, j->ino, j->name, &value, &len);

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

	job_reply_err(j, j->op == FOP_REMOVEXATTR ? vfs_removexattr(v, &j->ctx, j->ino, j->name)
						  : vfs_setxattr(v, &j->ctx, j->ino, j->name,
								 j->value, j->size, j->flags));
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
