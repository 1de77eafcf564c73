/* SPDX-License-Identifier: Apache-2.0 */
/* Directories: opened, listed page by page, closed. The first page is asked for in the receive
 * thread, as a fiber, and answered at once; the next ones are loaded by the meta workq while the
 * kernel is busy with what it got. */
#include "client/fuse_job.h"

static void do_opendir(struct job *j)
{
	struct handle *h;
	bool keep;
	int r = vfs_opendir(vfs_of(j), &j->ctx, j->ino, &h, &keep);

	j->fi.cache_readdir = j->f->conf.readdir_cache;
	if (r < 0)
		job_reply_err(j, r);
	else
		job_reply_open(j, NULL, h, keep);
}

void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct job *j = job_new(req, FOP_OPENDIR, ino, NULL, NULL, NULL, 0);

	if (!j)
		return;
	j->fi = *fi;
	if (j->ctx.check || j->f->conf.readdir_cache)
		job_queue(j, do_opendir);
	else
		do_opendir(j);
}

struct ahead {
	struct workq_job work;
	struct meta_list *list;
};

static void run_ahead(struct workq_job *work)
{
	struct ahead *a = container_of(work, struct ahead, work);

	meta_list_ahead(a->list);
	free(a);
}

/* list: NULL is fine */
static void queue_ahead(struct fuse_ops *f, struct meta_list *list)
{
	struct ahead *a = list ? malloc(sizeof(*a)) : NULL;

	if (!a) {
		/* then nobody reads ahead any more: each asks for what he needs */
		meta_list_put(list);
		return;
	}
	*a = (struct ahead){.work.fn = run_ahead, .list = list};
	workq_push_always(f->conf.meta, &a->work);
}

static void do_readdir(struct job *j)
{
	bool plus = j->op == FOP_READDIRPLUS;
	struct fuse_ops *f = j->f;
	struct meta_list *ahead;
	int r = vfs_readdir_load(j->h, j->off, plus, &j->dir);

	/* whose reader was killed may have been followed by another one */
	if (r < 0 || !job_claim(j)) {
		job_reply_err(j, r < 0 ? r : -EINTR);
		return;
	}
	vfs_readdir_use(j->h, &j->dir);
	ahead = vfs_readdir_reached(j->h, j->off);
	job_reply_dir(j, plus);
	/* while the kernel is busy with what it got */
	queue_ahead(f, ahead);
}

/* from offset 0 the directory is read anew; the kernel lets one reader at a time into an open
 * directory */
static void list(fuse_req_t req, enum fuse_op_number op, fuse_ino_t ino, size_t size, off_t off,
		 struct fuse_file_info *fi)
{
	struct job *j = job_new(req, op, ino, NULL, NULL, NULL, 0);
	struct meta_list *ahead;
	struct fuse_ops *f;

	if (!j)
		return;
	f = j->f;
	j->h = handle_of(fi);
	j->size = MIN(size, (size_t)FUSE_LOOP_IO_MAX);
	j->off = (uint64_t)off;
	if (j->h->kind != HANDLE_DIR) {
		job_reply_err(j, -ENOTDIR);
	} else if (!vfs_readdir_ready(j->h, j->off)) {
		j->reads = j->h;
		vfs_hold(j->reads);
		j->dir = vfs_readdir_begin(j->h, j->off);
		/* the first page is small; later ones are waited for, and another thread loads */
		if (!j->dir.list)
			job_queue(j, do_readdir);
		else
			job_queue_busy(j, do_readdir);
	} else {
		ahead = vfs_readdir_reached(j->h, j->off);
		job_reply_dir(j, op == FOP_READDIRPLUS);
		queue_ahead(f, ahead);
	}
}

void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	list(req, FOP_READDIR, ino, size, off, fi);
}

void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		    struct fuse_file_info *fi)
{
	list(req, FOP_READDIRPLUS, ino, size, off, fi);
}

static void releasedir_idle(struct handle *h)
{
	job_queue_local(h->idle_arg, do_release);
}

void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct job *j = job_new(req, FOP_RELEASEDIR, ino, NULL, NULL, NULL, 0);

	if (!j)
		return;
	j->h = handle_of(fi);
	/* a large directory has many entries to free; one whose reader was killed may still be
	 * read */
	vfs_when_idle(j->h, releasedir_idle, j);
}
