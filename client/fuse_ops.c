/* SPDX-License-Identifier: Apache-2.0 */
/* The table of FUSE operations. Each runs in a receive thread: reads, writes, forgets and what is
 * known without Redis are done there and then, the rest is copied into a job, which fuse_job.c runs
 * in the same thread as long as enough others receive, or in the meta workq; what takes time but
 * asks nobody has a queue of its own. What would be overtaken by a later commit of dirty data
 * (size, times, O_TRUNC) is queued behind a flush of the inode. A blocking step is named do_X, the
 * operation itself op_X. */
#include "client/fuse_ops.h"

#include <fcntl.h>

#include "client/fuse_job.h"
#include "common/clock.h"

enum { MAX_BACKGROUND = 128, CONGESTION = 96 };

/* --- session --- */

static void op_init(void *userdata, struct fuse_conn_info *conn)
{
	struct fuse_ops *f = userdata;

	conn->max_write = FUSE_LOOP_IO_MAX;
	conn->max_read = FUSE_LOOP_IO_MAX;
	conn->max_readahead = FUSE_LOOP_IO_MAX;
	conn->max_background = MAX_BACKGROUND;
	conn->congestion_threshold = CONGESTION;
	conn->time_gran = 1;
	conn->want |=
		conn->capable & (FUSE_CAP_ASYNC_READ | FUSE_CAP_READDIRPLUS |
				 FUSE_CAP_ATOMIC_O_TRUNC | FUSE_CAP_DONT_MASK | FUSE_CAP_ASYNC_DIO |
				 FUSE_CAP_PARALLEL_DIROPS | FUSE_CAP_CACHE_SYMLINKS);
	/* open decides about the page cache, by ctime too; suid and sgid are the kernel's to clear;
	 * no splice: replies come from buffers. A listing brings attributes always: "auto" stops
	 * after the first part of a large one */
	conn->want &=
		~(unsigned)(FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_WRITEBACK_CACHE |
			    FUSE_CAP_READDIRPLUS_AUTO | FUSE_CAP_HANDLE_KILLPRIV |
			    FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE);
	/* turns the kernel's permission checks on: not for a mount that makes its own */
	if (f->conf.acl)
		conn->want |= conn->capable & FUSE_CAP_POSIX_ACL;
	/* where nobody can write, locks are between the processes of this machine: the kernel's */
	if (f->locks)
		conn->want |= conn->capable & (FUSE_CAP_POSIX_LOCKS | FUSE_CAP_FLOCK_LOCKS);
	else
		conn->want &= ~(unsigned)(FUSE_CAP_POSIX_LOCKS | FUSE_CAP_FLOCK_LOCKS);
	f->conf.ready(f->conf.arg);
}

/* --- attributes --- */

static void do_lookup(struct job *j)
{
	struct vfs_entry e;
	int r = vfs_lookup(vfs_of(j), &j->ctx, j->ino, j->name, &e);

	if (r == -ENOENT && j->f->conf.negative_us > 0) {
		e = (struct vfs_entry){.entry_us = j->f->conf.negative_us};
		r = 0;
	}
	if (r < 0)
		job_reply_err(j, r);
	else
		job_reply_entry(j, &e);
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct job *j = job_new(req, FOP_LOOKUP, parent, name, NULL, NULL, 0);
	struct vfs_entry e;

	if (!j)
		return;
	if (vfs_lookup_made_up(vfs_of(j), parent, name, &e))
		job_reply_entry(j, &e);
	else
		job_queue(j, do_lookup);
}

static void do_getattr(struct job *j)
{
	struct vfs_entry e;
	int r = vfs_getattr(vfs_of(j), j->ino, &e);

	if (r < 0)
		job_reply_err(j, vfs_again(vfs_of(j), j->ino, r));
	else
		job_reply_attr(j, &e);
}

static void do_getattr_root(struct job *j)
{
	struct vfs_entry e;
	int r = vfs_getattr_root(vfs_of(j), j->f->conf.meta, &e);

	if (r < 0)
		job_reply_err(j, r);
	else
		job_reply_attr(j, &e);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct job *j = job_new(req, FOP_GETATTR, ino, NULL, NULL, NULL, 0);
	struct vfs_entry e;

	(void)fi;
	if (!j)
		return;
	if (vfs_getattr_made_up(vfs_of(j), ino, &e) || vfs_getattr_known(vfs_of(j), ino, &e))
		job_reply_attr(j, &e);
	else if (ino == INODE_ROOT)
		job_queue_local(j, do_getattr_root);
	else
		job_queue(j, do_getattr);
}

static void do_setattr(struct job *j)
{
	struct vfs_entry e;
	uint64_t size = j->size;
	int r = vfs_setattr(vfs_of(j), &j->ctx, j->ino, j->set, &j->want,
			    j->has_size ? &size : NULL, j->h, &e);

	if (r < 0)
		job_reply_err(j, j->h ? r : vfs_again(vfs_of(j), j->ino, r));
	else
		job_reply_attr(j, &e);
}

/* FUSE's bits and ours are told apart one by one: some of the kernel's others mean something else
 * in JuiceFS's mask */
static unsigned set_bits(int to_set)
{
	static const struct {
		int fuse;
		unsigned ours;
	} bits[] = {
		{FUSE_SET_ATTR_MODE, SET_MODE},
		{FUSE_SET_ATTR_UID, SET_UID},
		{FUSE_SET_ATTR_GID, SET_GID},
		{FUSE_SET_ATTR_ATIME, SET_ATIME},
		{FUSE_SET_ATTR_MTIME, SET_MTIME},
		{FUSE_SET_ATTR_ATIME_NOW, SET_ATIME_NOW},
		{FUSE_SET_ATTR_MTIME_NOW, SET_MTIME_NOW},
	};
	unsigned set = 0;

	for (size_t i = 0; i < ARRAY_LEN(bits); i++) {
		if (to_set & bits[i].fuse)
			set |= bits[i].ours;
	}
	/* "now" is the server's: the kernel sends both */
	if (set & SET_ATIME_NOW)
		set &= ~(unsigned)SET_ATIME;
	if (set & SET_MTIME_NOW)
		set &= ~(unsigned)SET_MTIME;
	return set;
}

static void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *st, int to_set,
		       struct fuse_file_info *fi)
{
	struct job *j = job_new(req, FOP_SETATTR, ino, NULL, NULL, NULL, 0);

	if (!j)
		return;
	j->set = set_bits(to_set);
	j->has_size = to_set & FUSE_SET_ATTR_SIZE;
	j->size = (size_t)st->st_size;
	j->h = fi ? handle_of(fi) : NULL;
	j->want = (struct attr){
		.mode = st->st_mode & 07777,
		.uid = st->st_uid,
		.gid = st->st_gid,
		.atime = {st->st_atim.tv_sec, (uint32_t)st->st_atim.tv_nsec},
		.mtime = {st->st_mtim.tv_sec, (uint32_t)st->st_mtim.tv_nsec},
	};
	/* open(O_TRUNC) of an internal file: nothing to cut */
	if (ino >= INODE_INTERNAL && ino < INODE_TRASH && j->has_size && !j->set) {
		do_getattr(j);
		return;
	}
	job_queue_flushed(j, ino, do_setattr);
}

static void do_readlink(struct job *j)
{
	_cleanup_(freep) char *target = NULL;
	int r = vfs_readlink(vfs_of(j), j->ino, &target);

	if (r < 0)
		job_reply_err(j, r);
	else
		job_reply_readlink(j, target);
}

static void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
	struct job *j = job_new(req, FOP_READLINK, ino, NULL, NULL, NULL, 0);

	if (j)
		job_queue(j, do_readlink);
}

static void do_statfs(struct job *j)
{
	struct meta_statfs s;
	int r = vfs_statfs(vfs_of(j), j->ino, &s);

	if (r < 0)
		job_reply_err(j, r);
	else
		job_reply_statfs(j, &s);
}

static void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct job *j = job_new(req, FOP_STATFS, ino, NULL, NULL, NULL, 0);

	if (j)
		job_queue(j, do_statfs);
}

static void do_access(struct job *j)
{
	job_reply_err(j, vfs_access(vfs_of(j), &j->ctx, j->ino, (unsigned)j->flags));
}

/* comes only where the kernel does not check permissions itself */
static void op_access(fuse_req_t req, fuse_ino_t ino, int mask)
{
	struct job *j = job_new(req, FOP_ACCESS, ino, NULL, NULL, NULL, 0);

	if (!j)
		return;
	j->flags = mask & 7;
	job_queue(j, do_access);
}

/* --- names --- */

static void do_mknod(struct job *j)
{
	struct vfs_entry e;
	uint8_t type = j->op == FOP_MKDIR     ? INODE_DIR
		       : j->op == FOP_SYMLINK ? INODE_SYMLINK
					      : inode_type_from_mode(j->mode);
	int r = -EPERM;

	if (type)
		r = vfs_mknod(vfs_of(j), &j->ctx, j->ino, j->name, type, j->mode & 07777, j->umask,
			      j->rdev, j->name2, &e);
	if (r < 0)
		job_reply_err(j, r);
	else
		job_reply_entry(j, &e);
}

static void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
	struct job *j = job_new(req, FOP_MKNOD, parent, name, NULL, NULL, 0);

	if (!j)
		return;
	/* without a type it is a regular file (mknod(2)) */
	j->mode = mode & S_IFMT ? mode : mode | S_IFREG;
	j->rdev = (uint32_t)rdev;
	job_queue(j, do_mknod);
}

static void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	struct job *j = job_new(req, FOP_MKDIR, parent, name, NULL, NULL, 0);

	if (!j)
		return;
	j->mode = mode;
	job_queue(j, do_mknod);
}

static void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
	struct job *j = job_new(req, FOP_SYMLINK, parent, name, target, NULL, 0);

	if (!j)
		return;
	j->mode = 0777;
	j->umask = 0;
	job_queue(j, do_mknod);
}

static void do_unlink(struct job *j)
{
	struct vfs *v = vfs_of(j);

	job_reply_err(j, j->op == FOP_RMDIR ? vfs_rmdir(v, &j->ctx, j->ino, j->name)
					    : vfs_unlink(v, &j->ctx, j->ino, j->name));
}

static void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct job *j = job_new(req, FOP_UNLINK, parent, name, NULL, NULL, 0);

	if (j)
		job_queue(j, do_unlink);
}

static void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct job *j = job_new(req, FOP_RMDIR, parent, name, NULL, NULL, 0);

	if (j)
		job_queue(j, do_unlink);
}

static void do_rename(struct job *j)
{
	job_reply_err(j, vfs_rename(vfs_of(j), &j->ctx, j->ino, j->name, j->ino2, j->name2,
				    (unsigned)j->flags));
}

static void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
		      const char *new_name, unsigned flags)
{
	struct job *j = job_new(req, FOP_RENAME, parent, name, new_name, NULL, 0);

	if (!j)
		return;
	j->ino2 = new_parent;
	j->flags = (int)flags;
	job_queue(j, do_rename);
}

static void do_link(struct job *j)
{
	struct vfs_entry e;
	int r = vfs_link(vfs_of(j), &j->ctx, j->ino, j->ino2, j->name, &e);

	if (r < 0)
		job_reply_err(j, r);
	else
		job_reply_entry(j, &e);
}

static void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name)
{
	struct job *j = job_new(req, FOP_LINK, ino, name, NULL, NULL, 0);

	if (!j)
		return;
	j->ino2 = parent;
	job_queue(j, do_link);
}

/* --- open files --- */

static void answer_open(struct job *j)
{
	job_reply_open(j, NULL, TAKE_PTR(j->h), j->keep);
}

static void do_open(struct job *j)
{
	struct handle *h;
	bool keep;
	int r = vfs_open(vfs_of(j), &j->ctx, j->ino, j->flags, &h, &keep);

	/* the name that the kernel came by may be another file's now: it looks again */
	if (r < 0)
		r = vfs_again(vfs_of(j), j->ino, r);
	if (r == 0 && vfs_open_again(h)) {
		vfs_release(h);
		r = -ESTALE;
	}
	if (r < 0) {
		job_reply_err(j, r);
	} else if (h->kernel_old) {
		j->h = h;
		j->keep = keep;
		/* close-to-open: a reader must not see the length of before */
		job_forget_attr(j, answer_open);
	} else {
		job_reply_open(j, NULL, h, keep);
	}
}

/* .stats is written when it is opened: all metrics */
static void do_open_internal(struct job *j)
{
	struct handle *h;
	int r = vfs_open_internal(vfs_of(j), &j->ctx, j->ino, j->flags, &h);

	if (r < 0)
		job_reply_err(j, r);
	else
		job_reply_open(j, NULL, h, false);
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct job *j = job_new(req, FOP_OPEN, ino, NULL, NULL, NULL, 0);

	if (!j)
		return;
	j->flags = fi->flags;
	j->fi = *fi;
	if (ino >= INODE_INTERNAL && ino < INODE_TRASH) {
		job_queue_local(j, do_open_internal);
	} else if (fi->flags & O_TRUNC) {
		job_queue_flushed(j, ino, do_open);
	} else {
		job_queue(j, do_open);
	}
}

static void do_create(struct job *j)
{
	struct vfs_entry e;
	struct handle *h;
	bool keep;
	int r = vfs_create(vfs_of(j), &j->ctx, j->ino, j->name, j->mode & 07777, j->umask, j->flags,
			   &e, &h, &keep);

	if (r < 0)
		job_reply_err(j, r);
	else
		job_reply_open(j, &e, h, keep);
}

static void do_tmpfile(struct job *j)
{
	struct vfs_entry e;
	struct handle *h;
	int r = vfs_tmpfile(vfs_of(j), &j->ctx, j->ino, j->mode & 07777, j->umask, j->flags, &e,
			    &h);

	if (r < 0)
		job_reply_err(j, r);
	else
		job_reply_open(j, &e, h, false);
}

static void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
		      struct fuse_file_info *fi)
{
	bool tmpfile = fuse_loop_tmpfile();
	struct job *j =
		job_new(req, tmpfile ? FOP_TMPFILE : FOP_CREATE, parent, name, NULL, NULL, 0);

	if (!j)
		return;
	j->mode = mode;
	j->flags = fi->flags;
	j->fi = *fi;
	job_queue(j, tmpfile ? do_tmpfile : do_create);
}

/* Begins what may outlive its asker: from here on he may be answered EINTR when he is killed.
 * false: he was, and j is gone. */
static bool begin_io(struct job *j)
{
	struct handle *h = j->h;

	vfs_io_begin(&j->io);
	if (job_watch_killed(j))
		return true;
	vfs_io_end(h);
	return false;
}

static void read_done(struct vfs_io *io, int status, const struct iovec *iov, int n, size_t total)
{
	struct job *j = container_of(io, struct job, io);

	if (!job_take(j))
		return;
	if (status < 0)
		job_reply_err(j, status);
	else
		job_reply_data(j, iov, n, total);
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		    struct fuse_file_info *fi)
{
	struct job *j = job_new(req, FOP_READ, ino, NULL, NULL, NULL, 0);

	if (!j)
		return;
	j->h = handle_of(fi);
	j->size = size;
	j->off = (uint64_t)off;
	j->io.h = j->h;
	j->io.off = j->off;
	j->io.len = (uint32_t)size;
	j->io.done = read_done;
	if (begin_io(j))
		vfs_read(&j->io);
}

static void write_done(struct vfs_io *io, int status, const struct iovec *iov, int n, size_t total)
{
	struct job *j = container_of(io, struct job, io);

	(void)iov;
	(void)n;
	if (!job_take(j))
		return;
	if (status < 0)
		job_reply_err(j, status);
	else
		job_reply_write(j, total);
}

static void op_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off,
		     struct fuse_file_info *fi)
{
	struct job *j = job_new(req, FOP_WRITE, ino, NULL, NULL, NULL, 0);

	if (!j)
		return;
	/* buf is a part of the receive buffer: it stays until the writer has copied it */
	j->held = fuse_loop_hold();
	j->h = handle_of(fi);
	j->size = size;
	j->off = (uint64_t)off;
	j->io.h = j->h;
	j->io.off = j->off;
	j->io.len = (uint32_t)size;
	j->io.data = buf;
	j->io.done = write_done;
	if (begin_io(j))
		vfs_write(&j->io);
}

static void flush_done(struct vfs_io *io, int status, const struct iovec *iov, int n, size_t total)
{
	(void)iov;
	(void)n;
	(void)total;
	lock_flush_end(container_of(io, struct job, io), status);
}

static void flush_handle(fuse_req_t req, enum fuse_op_number op, fuse_ino_t ino,
			 struct fuse_file_info *fi)
{
	struct job *j = job_new(req, op, ino, NULL, NULL, NULL, 0);

	if (!j)
		return;
	j->h = handle_of(fi);
	j->io.h = j->h;
	j->io.done = flush_done;
	lock_flush_begin(j, fi);
	if (!begin_io(j))
		return;
	if (op == FOP_FLUSH && vfs_dirty(j->h))
		job_leave_dying(j);
	vfs_flush(&j->io, true);
}

static void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	flush_handle(req, FOP_FLUSH, ino, fi);
}

static void op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	(void)datasync;
	flush_handle(req, FOP_FSYNC, ino, fi);
}

/* every change of a directory is in Redis when it is answered */
static void op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	(void)ino;
	(void)datasync;
	(void)fi;
	fuse_reply_err(req, 0);
}

void do_release(struct job *j)
{
	lock_release(j);
	vfs_release(TAKE_PTR(j->h));
	job_reply_err(j, 0);
}

static void release_idle(struct handle *h)
{
	job_queue_always(h->idle_arg, do_release);
}

static void release_flushed(struct vfs_io *io, int status, const struct iovec *iov, int n,
			    size_t total)
{
	(void)status; /* close has told it */
	(void)iov;
	(void)n;
	(void)total;
	vfs_when_idle(io->h, release_idle, container_of(io, struct job, io));
}

static void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct job *j = job_new(req, FOP_RELEASE, ino, NULL, NULL, NULL, 0);

	/* without memory for the job the handle stays until the mount ends */
	if (!j)
		return;
	j->h = handle_of(fi);
	j->io.h = j->h;
	j->io.done = release_flushed;
	vfs_flush(&j->io, false);
}

/* --- life --- */

/* nodes are not counted, so forget is libfuse's own */
static const struct fuse_lowlevel_ops table = {
	.init = op_init,
	.lookup = op_lookup,
	.getattr = op_getattr,
	.setattr = op_setattr,
	.readlink = op_readlink,
	.mknod = op_mknod,
	.mkdir = op_mkdir,
	.symlink = op_symlink,
	.unlink = op_unlink,
	.rmdir = op_rmdir,
	.rename = op_rename,
	.link = op_link,
	.open = op_open,
	.create = op_create,
	.read = op_read,
	.write = op_write,
	.flush = op_flush,
	.fsync = op_fsync,
	.release = op_release,
	.opendir = op_opendir,
	.readdir = op_readdir,
	.readdirplus = op_readdirplus,
	.releasedir = op_releasedir,
	.fsyncdir = op_fsyncdir,
	.statfs = op_statfs,
	.access = op_access,
	.setxattr = op_setxattr,
	.getxattr = op_getxattr,
	.listxattr = op_listxattr,
	.removexattr = op_removexattr,
	.ioctl = op_ioctl,
	.getlk = op_getlk,
	.setlk = op_setlk,
	.flock = op_flock,
	.fallocate = op_fallocate,
	.copy_file_range = op_copy_file_range,
	.lseek = op_lseek,
};

const struct fuse_lowlevel_ops *fuse_ops_table(size_t *ret_size)
{
	*ret_size = sizeof(table);
	return &table;
}

int fuse_ops_new(const struct fuse_ops_conf *conf, struct fuse_ops **ret)
{
	struct fuse_ops *f = calloc(1, sizeof(*f));
	int r = f ? 0 : -ENOMEM;

	if (r == 0 && conf->metrics)
		r = fuse_ops_metrics(f, conf->metrics);
	if (r == 0 && !conf->vfs->conf.read_only)
		r = locks_new(conf->vfs->conf.meta, &f->locks);
	if (r < 0) {
		free(f);
		return r;
	}
	f->conf = *conf;
	*ret = f;
	return 0;
}

void fuse_ops_drain(struct fuse_ops *f)
{
	if (f->locks)
		locks_stop(f->locks);
	/* once, at the end of a mount: not worth a wake-up at the end of every request */
	while (__atomic_load_n(&f->live, __ATOMIC_ACQUIRE) > 0)
		usleep(1000);
}

void fuse_ops_free(struct fuse_ops *f)
{
	if (f)
		locks_free(f->locks);
	free(f);
}
