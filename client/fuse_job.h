/* SPDX-License-Identifier: Apache-2.0 */
/* One FUSE request on its way: between fuse_*.c only,
 * which are one file's worth of libfuse. */
#ifndef STOKE_CLIENT_FUSE_JOB_H
#define STOKE_CLIENT_FUSE_JOB_H

#include <fuse_lowlevel.h>

#include "client/fuse_loop.h"
#include "client/fuse_notify.h"
#include "client/fuse_ops.h"
#include "client/locks.h"
#include "common/workq.h"

#define FUSE_OP_LIST(X)                                                                            \
	X(LOOKUP, "lookup")                                                                        \
	X(GETATTR, "getattr")                                                                      \
	X(SETATTR, "setattr")                                                                      \
	X(READLINK, "readlink")                                                                    \
	X(MKNOD, "mknod")                                                                          \
	X(MKDIR, "mkdir")                                                                          \
	X(SYMLINK, "symlink")                                                                      \
	X(UNLINK, "unlink")                                                                        \
	X(RMDIR, "rmdir")                                                                          \
	X(RENAME, "rename")                                                                        \
	X(LINK, "link")                                                                            \
	X(OPEN, "open")                                                                            \
	X(CREATE, "create")                                                                        \
	X(READ, "read")                                                                            \
	X(WRITE, "write")                                                                          \
	X(FLUSH, "flush")                                                                          \
	X(FSYNC, "fsync")                                                                          \
	X(RELEASE, "release")                                                                      \
	X(OPENDIR, "opendir")                                                                      \
	X(READDIR, "readdir")                                                                      \
	X(READDIRPLUS, "readdirplus")                                                              \
	X(RELEASEDIR, "releasedir")                                                                \
	X(STATFS, "statfs")                                                                        \
	X(SETXATTR, "setxattr")                                                                    \
	X(GETXATTR, "getxattr")                                                                    \
	X(LISTXATTR, "listxattr")                                                                  \
	X(REMOVEXATTR, "removexattr")                                                              \
	X(IOCTL, "ioctl")                                                                          \
	X(FALLOCATE, "fallocate")                                                                  \
	X(COPY_FILE_RANGE, "copy_file_range")                                                      \
	X(LSEEK, "lseek")                                                                          \
	X(TMPFILE, "tmpfile")                                                                      \
	X(ACCESS, "access")                                                                        \
	X(GETLK, "getlk")                                                                          \
	X(SETLK, "setlk")                                                                          \
	X(FLOCK, "flock")

enum fuse_op_number {
#define X(name, text) FOP_##name,
	FUSE_OP_LIST(X)
#undef X
		FOP_COUNT
};

struct fuse_ops {
	struct fuse_ops_conf conf;
	struct locks *locks; /* NULL: the kernel keeps them for this mount alone */
	unsigned live;	     /* jobs; atomic */
	struct metric *seconds[FOP_COUNT], *errors[FOP_COUNT], *read_bytes, *write_bytes;
};

/* steps of a job that waits for a thread (fuse_job.c) */
enum job_state {
	JOB_QUEUED,
	JOB_TAKEN,
	JOB_INTERRUPTED,
	JOB_INTERRUPTED_EARLY,
	JOB_LEFT,
	JOB_ANSWERED
};

struct job {
	struct workq_job work;
	struct vfs_io io;
	struct fuse_ops *f;
	fuse_req_t req;
	int state;    /* enum job_state, atomic */
	bool watched; /* an interrupt function is registered */
	enum fuse_op_number op;
	void (*run)(struct job *j); /* in the meta workq; replies */
	struct meta_ctx ctx;
	uint32_t *gids; /* ctx.gids */
	uint32_t umask, mode, rdev;
	uint64_t start_us;
	uint64_t ino, ino2, off, off2, len;
	size_t size;
	int flags;
	unsigned set, cmd;
	bool has_size;
	struct attr want;
	struct handle *h, *h2;
	struct handle *reads; /* a directory, held until the job ends */
	struct dir_reading dir;
	struct fuse_file_info fi;
	struct fuse_note note;
	bool keep;
	uint64_t drop; /* vfs_pages_old */
	struct fuse_buffer *held;
	struct lock_req lock;
	const char *name, *name2; /* in text */
	const void *value;	  /* in text */
	char text[];
};

static inline struct handle *handle_of(const struct fuse_file_info *fi)
{
	return (struct handle *)(uintptr_t)fi->fh;
}

static inline struct vfs *vfs_of(const struct job *j)
{
	return j->f->conf.vfs;
}

/* copies the names (NULL: none) and extra bytes of value behind the job; NULL: no memory, and the
 * request was answered */
struct job *job_new(fuse_req_t req, enum fuse_op_number op, uint64_t ino, const char *name,
		    const char *name2, const void *value, size_t extra);
/* A job that has begun finishes by itself when its asker is killed: he has his EINTR at once. Run
 * here and now as a fiber (a job handed over costs two more wake-ups), or, when too many wait, in
 * the meta workq: an interrupt before it began answers EINTR. */
void job_queue(struct job *j, void (*run)(struct job *j));
/* the same, but in the meta workq: it takes more than waiting */
void job_queue_busy(struct job *j, void (*run)(struct job *j));
/* the same once the inode's dirty data is committed; its failure is the answer */
void job_queue_flushed(struct job *j, uint64_t inode, void (*run)(struct job *j));
/* of two inodes */
void job_queue_flushed2(struct job *j, uint64_t inode, uint64_t inode2, void (*run)(struct job *j));
/* must be done: never interrupted */
void job_queue_always(struct job *j, void (*run)(struct job *j));
/* the same, in the queue for what asks nobody */
void job_queue_local(struct job *j, void (*run)(struct job *j));

/* The kernel forgets the attributes of j->ino, then run(j) in the meta workq. For a job that has
 * begun. */
void job_forget_attr(struct job *j, void (*run)(struct job *j));
/* its pages, too */
void job_forget_pages(struct job *j, void (*run)(struct job *j));

/* For what is not queued but may take long: an interrupt answers EINTR if its asker is being
 * killed. Other signals let it finish: they must not turn a page fault into SIGBUS or a read(2)
 * into an error. false: it was killed before and is answered. */
bool job_watch_killed(struct job *j);
/* The same for a process that a signal has ended already, and whose files are being closed: no
 * interrupt will come. Answers EINTR then; what was asked is to be done all the same. */
void job_leave_dying(struct job *j);
/* at its end: false when it was answered meanwhile; j is gone then */
bool job_take(struct job *j);

/* Before an answer: false: the asker was killed meanwhile and has one; j->req is gone. */
bool job_claim(struct job *j);

/* 0 or -ENOMEM */
int fuse_ops_metrics(struct fuse_ops *f, struct metrics *m);

/* answers; j is gone afterwards. status: 0 or negative errno */
/* it was answered */
void job_free(struct job *j);
void job_reply_err(struct job *j, int status);
void job_reply_entry(struct job *j, const struct vfs_entry *e);
void job_reply_attr(struct job *j, const struct vfs_entry *e);
void job_reply_open(struct job *j, const struct vfs_entry *created, struct handle *h, bool keep);
void job_reply_data(struct job *j, const struct iovec *iov, int n, size_t total);
void job_reply_write(struct job *j, size_t total);
void job_reply_readlink(struct job *j, const char *target);
void job_reply_statfs(struct job *j, const struct meta_statfs *s);
/* value of len bytes to one who has room for j->size (0: asks how much) */
void job_reply_xattr(struct job *j, const char *value, size_t len);
void job_reply_dir(struct job *j, bool plus);
void job_reply_lock(struct job *j, const struct meta_lock *l);
void job_reply_lseek(struct job *j, uint64_t at);
void job_reply_ioctl(struct job *j, const void *out, size_t len);

/* fuse_ops.c: closes j->h and answers */
void do_release(struct job *j);

/* operations for the table in fuse_ops.c: of fuse_xattr.c */
void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size);
void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size);
void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size,
		 int flags);
void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name);
/* of fuse_dir.c */
void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		    struct fuse_file_info *fi);
void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
/* of fuse_range.c */
void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len,
		  struct fuse_file_info *fi);
void op_copy_file_range(fuse_req_t req, fuse_ino_t ino, off_t off, struct fuse_file_info *fi,
			fuse_ino_t ino_out, off_t off_out, struct fuse_file_info *fi_out,
			size_t len, int flags);
void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi);
/* of fuse_lock.c */
void op_getlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lock);
void op_setlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lock,
	      int sleep);
void op_flock(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, int op);
/* a flush ends the record locks of its owner, once the data is committed; _end answers */
void lock_flush_begin(struct job *j, const struct fuse_file_info *fi);
void lock_flush_end(struct job *j, int status);
/* blocks: the end of what was locked through j->h */
void lock_release(struct job *j);
/* of fuse_ioctl.c */
void op_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned cmd, void *arg, struct fuse_file_info *fi,
	      unsigned flags, const void *in, size_t in_size, size_t out_size);

#endif
