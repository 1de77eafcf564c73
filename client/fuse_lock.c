/* SPDX-License-Identifier: Apache-2.0 */
/* FUSE operations on locks. A lock that is to be waited for keeps its job in client/locks.c: no
 * thread waits. An interrupt answers EINTR at once, and the waiter is gone.
 *
 * What happens to a waiting job is decided under the request's lock (libfuse calls the interrupt
 * function under it, and taking the function away takes it): see locks_cancel. */
#include "client/locks.h"

#include <fcntl.h>
#include <sys/file.h>

#include "client/fuse_job.h"

static _Thread_local bool registering;

static bool ready(struct job *j)
{
	if (j->f->locks)
		return true;
	job_reply_err(j, -ENOSYS);
	return false;
}

static void end_unanswered(struct job *j)
{
	__atomic_store_n(&j->state, JOB_INTERRUPTED, __ATOMIC_RELEASE);
	(void)job_take(j); /* it was answered: frees */
}

static void answer_granted(struct job *j)
{
	if (j->drop)
		vfs_pages_dropped(vfs_of(j), j->ino, j->drop);
	job_reply_err(j, 0);
}

/* Who gets a lock sees what its holder before him wrote, on another mount too: the kernel's pages
 * are of that version, or are dropped before he has his answer. Blocks. */
static void granted(struct job *j)
{
	if (vfs_pages_old(vfs_of(j), j->ino, &j->drop))
		job_forget_pages(j, answer_granted);
	else
		answer_granted(j);
}

static void lock_done(struct lock_req *q, int status)
{
	struct job *j = container_of(q, struct job, lock);

	if (status == LOCK_GONE) {
		end_unanswered(j);
		return;
	}
	/* behind it no interrupt looks at the job any more */
	fuse_req_interrupt_func(j->req, NULL, NULL);
	if (status == 0)
		job_queue_always(j, granted);
	else
		job_reply_err(j, status);
}

static void lock_interrupted(fuse_req_t req, void *data)
{
	struct job *j = data;
	enum lock_cancel how;

	if (registering) {
		__atomic_store_n(&j->state, JOB_INTERRUPTED_EARLY, __ATOMIC_RELEASE);
		return;
	}
	how = locks_cancel(j->f->locks, &j->lock);
	if (how == CANCEL_LATE)
		return;
	fuse_reply_err(req, EINTR);
	if (how == CANCEL_ENDED)
		end_unanswered(j);
}

static void begin_waiting(struct job *j)
{
	struct locks *l = j->f->locks;

	registering = true;
	fuse_req_interrupt_func(j->req, lock_interrupted, j);
	registering = false;
	if (__atomic_load_n(&j->state, __ATOMIC_ACQUIRE) == JOB_INTERRUPTED_EARLY) {
		fuse_req_interrupt_func(j->req, NULL, NULL);
		(void)locks_cancel(l, &j->lock);
		(void)locks_wait(l, &j->lock);
		job_reply_err(j, -EINTR);
	} else if (!locks_wait(l, &j->lock)) {
		end_unanswered(j);
	}
}

static void do_lock(struct job *j)
{
	bool wait = j->flags;
	int r = locks_set(j->f->locks, &j->lock, wait);

	if (r == -EAGAIN && wait)
		begin_waiting(j);
	else if (r == 0 && j->lock.lock.type != F_UNLCK)
		granted(j);
	else
		job_reply_err(j, r);
}

/* what was written under a lock is there for the next one who has it */
static void lock_queue(struct job *j)
{
	if (j->lock.lock.type == F_UNLCK)
		job_queue_flushed(j, j->ino, do_lock);
	else
		job_queue(j, do_lock);
}

static struct meta_lock lock_of(const struct flock *f)
{
	struct meta_lock l = {.type = (uint32_t)f->l_type,
			      .pid = (uint32_t)f->l_pid,
			      .start = (uint64_t)f->l_start,
			      .end = LOCK_EOF};

	if (f->l_len)
		l.end = l.start + (uint64_t)f->l_len - 1;
	return l;
}

/* NULL: answered */
static struct job *lock_job(fuse_req_t req, enum fuse_op_number op, fuse_ino_t ino,
			    const struct fuse_file_info *fi)
{
	struct job *j = job_new(req, op, ino, NULL, NULL, NULL, 0);
	struct handle *h = (struct handle *)(uintptr_t)fi->fh;

	if (!j || !ready(j))
		return NULL;
	j->h = h;
	j->lock.inode = ino;
	j->lock.owner = fi->lock_owner;
	j->lock.handle = h->number;
	j->lock.done = lock_done;
	return j;
}

void op_setlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lock,
	      int sleep)
{
	struct job *j = lock_job(req, FOP_SETLK, ino, fi);

	if (!j)
		return;
	j->lock.lock = lock_of(lock);
	j->flags = sleep && lock->l_type != F_UNLCK;
	__atomic_store_n(&j->h->locked, true, __ATOMIC_RELAXED);
	lock_queue(j);
}

void op_flock(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, int op)
{
	struct job *j = lock_job(req, FOP_FLOCK, ino, fi);

	if (!j)
		return;
	j->lock.owner ^= j->h->number;
	j->lock.flock = true;
	j->lock.lock.type = op & LOCK_EX ? F_WRLCK : op & LOCK_SH ? F_RDLCK : F_UNLCK;
	j->flags = !(op & LOCK_NB) && !(op & LOCK_UN);
	__atomic_store_n(&j->h->locked, true, __ATOMIC_RELAXED);
	lock_queue(j);
}

static void do_getlk(struct job *j)
{
	struct meta_lock l = j->lock.lock;
	int r = meta_getlk(vfs_of(j)->conf.meta, j->ino, j->lock.owner, &l);

	if (r)
		job_reply_err(j, r);
	else
		job_reply_lock(j, &l);
}

void op_getlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lock)
{
	struct job *j = lock_job(req, FOP_GETLK, ino, fi);

	if (!j)
		return;
	j->lock.lock = lock_of(lock);
	job_queue(j, do_getlk);
}

/* --- the end of open files --- */

void lock_flush_begin(struct job *j, const struct fuse_file_info *fi)
{
	j->lock.inode = j->ino;
	j->lock.owner = fi->lock_owner;
}

static void do_close(struct job *j)
{
	locks_close(j->f->locks, j->lock.inode, j->lock.owner);
	if (job_take(j))
		job_reply_err(j, j->flags);
}

void lock_flush_end(struct job *j, int status)
{
	struct locks *l = j->f->locks;

	if (j->op == FOP_FLUSH && l && locks_held(l, j->lock.inode, j->lock.owner)) {
		j->flags = status;
		job_queue_always(j, do_close);
	} else if (job_take(j)) {
		job_reply_err(j, status);
	}
}

void lock_release(struct job *j)
{
	if (j->h->kind == HANDLE_FILE && __atomic_load_n(&j->h->locked, __ATOMIC_RELAXED))
		locks_release(j->f->locks, j->h->number);
}
