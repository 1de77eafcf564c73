/* SPDX-License-Identifier: Apache-2.0 */
/* FUSE operations on ranges of open files: fallocate, copy_file_range, lseek. Threads and names as
 * in fuse_ops.c. The kernel drops its own pages of what these change. */
#include "client/fuse_job.h"

#include <unistd.h>

/* an answer's count has 32 bits */
#define COPY_MAX ((uint64_t)UINT32_MAX & ~(uint64_t)4095)

static void do_fallocate(struct job *j)
{
	job_reply_err(j, vfs_fallocate(vfs_of(j), &j->ctx, j->h, j->flags, j->off, j->len));
}

void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len,
		  struct fuse_file_info *fi)
{
	struct job *j = job_new(req, FOP_FALLOCATE, ino, NULL, NULL, NULL, 0);

	if (!j)
		return;
	j->h = handle_of(fi);
	j->flags = mode;
	j->off = (uint64_t)off;
	j->len = (uint64_t)len;
	if (off < 0 || len <= 0)
		job_reply_err(j, -EINVAL);
	else
		job_queue_flushed(j, ino, do_fallocate);
}

/* --- copying --- */

static void do_copy(struct job *j)
{
	uint64_t copied = 0;
	int r = vfs_copy_range(vfs_of(j), &j->ctx, j->h, j->off, j->h2, j->off2, j->len, &copied);

	if (r < 0)
		job_reply_err(j, r);
	else
		job_reply_write(j, copied);
}

void op_copy_file_range(fuse_req_t req, fuse_ino_t ino, off_t off, struct fuse_file_info *fi,
			fuse_ino_t ino_out, off_t off_out, struct fuse_file_info *fi_out,
			size_t len, int flags)
{
	struct job *j = job_new(req, FOP_COPY_FILE_RANGE, ino, NULL, NULL, NULL, 0);

	if (!j)
		return;
	j->h = handle_of(fi);
	j->h2 = handle_of(fi_out);
	j->ino2 = ino_out;
	j->off = (uint64_t)off;
	j->off2 = (uint64_t)off_out;
	j->len = MIN((uint64_t)len, COPY_MAX);
	if (flags || off < 0 || off_out < 0)
		job_reply_err(j, -EINVAL);
	else
		job_queue_flushed2(j, ino, ino_out, do_copy);
}

/* --- seeking --- */

static void do_lseek(struct job *j)
{
	uint64_t at;
	int r = vfs_seek(vfs_of(j), j->ino, j->off, j->flags == SEEK_HOLE, &at);

	if (r < 0)
		job_reply_err(j, r);
	else
		job_reply_lseek(j, at);
}

void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi)
{
	struct job *j = job_new(req, FOP_LSEEK, ino, NULL, NULL, NULL, 0);

	if (!j)
		return;
	j->h = handle_of(fi);
	j->off = (uint64_t)off;
	j->flags = whence;
	if (whence != SEEK_DATA && whence != SEEK_HOLE)
		job_reply_err(j, -EINVAL);
	else if (off < 0)
		job_reply_err(j, -ENXIO);
	else
		job_queue_flushed(j, ino, do_lseek);
}
