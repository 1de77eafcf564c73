/* SPDX-License-Identifier: Apache-2.0 */
/* A request that cannot be answered in its receive thread.
 *
 *	state			by
 *	QUEUED
 *	-> TAKEN		begin, in a meta or receive thread; job_take, at the end of others
 *	   -> ANSWERED		job_claim, right before the answer
 *	   -> LEFT		interrupted, when its asker is being killed: answered EINTR; what
 *				was asked is done all the same, and its answer dropped. Not locks,
 *				which have their own way (fuse_lock.c)
 *	-> INTERRUPTED		interrupted, in the receive thread of the INTERRUPT: answered EINTR;
 *				run_job only frees
 *	-> INTERRUPTED_EARLY	interrupted, while watch registers it: watch answers EINTR
 *
 * libfuse calls the interrupt function with the request's lock held; taking the function away
 * (job_take) takes that lock too, so the function does not run any more when a job ends. When an
 * interrupt was there first, fuse_req_interrupt_func itself calls it, and would use the request
 * after an answer had freed it: hence INTERRUPTED_EARLY. */
#include "client/fuse_job.h"

#include <fcntl.h>
#include <signal.h>

#include "common/clock.h"

static _Thread_local bool registering;

/* Every group of the asker, where the kernel does not check permissions. What /proc does not tell
 * (another pid namespace) is his main group alone. */
static void get_groups(struct job *j, uint32_t gid)
{
	enum { AT_FIRST = 32, MOST = 65536 };
	gid_t *list = NULL;
	int room = 0, n = AT_FIRST;

	do {
		gid_t *more = realloc(list, ((size_t)n + 1) * sizeof(*list));

		if (!more)
			break;
		list = more;
		room = n;
		n = fuse_req_getgroups(j->req, room, list + 1);
	} while (n > room && n <= MOST);
	if (!list)
		return;
	list[0] = gid;
	j->gids = list;
	j->ctx.gids = list;
	j->ctx.n_gids = n > 0 && n <= room ? (size_t)n + 1 : 1;
}

/* who asks, as the volume is to see him */
static void set_asker(struct job *j, const struct fuse_ctx *c)
{
	const struct fuse_ops_conf *conf = &j->f->conf;
	const struct squash *s = conf->all_squash.on		       ? &conf->all_squash
				 : conf->root_squash.on && c->uid == 0 ? &conf->root_squash
								       : NULL;

	j->ctx = (struct meta_ctx){.uid = c->uid, .gid = c->gid, .pid = (uint32_t)c->pid};
	j->ctx.check = conf->check;
	if (s) {
		/* his own groups do not count: they may be root's */
		j->ctx.uid = s->uid;
		j->ctx.gid = s->gid;
		j->ctx.gids = &j->ctx.gid;
		j->ctx.n_gids = 1;
	} else if ((conf->check || j->op == FOP_SETXATTR || j->op == FOP_REMOVEXATTR) &&
		   c->uid != 0) {
		/* who sets an ACL without being in the file's group takes sgid off */
		get_groups(j, c->gid);
	}
}

struct job *job_new(fuse_req_t req, enum fuse_op_number op, uint64_t ino, const char *name,
		    const char *name2, const void *value, size_t extra)
{
	const struct fuse_ctx *c = fuse_req_ctx(req);
	size_t n = name ? strlen(name) + 1 : 0, n2 = name2 ? strlen(name2) + 1 : 0;
	struct job *j = calloc(1, sizeof(*j) + n + n2 + extra);
	char *p;

	if (!j) {
		fuse_reply_err(req, ENOMEM);
		return NULL;
	}
	p = j->text;
	if (name) {
		memcpy(p, name, n);
		j->name = p;
	}
	if (name2) {
		memcpy(p + n, name2, n2);
		j->name2 = p + n;
	}
	if (extra) {
		memcpy(p + n + n2, value, extra);
		j->value = p + n + n2;
	}
	j->f = fuse_req_userdata(req);
	j->req = req;
	j->op = op;
	j->ino = ino;
	j->start_us = clock_us();
	set_asker(j, c);
	j->umask = j->f->conf.umask >= 0 ? (uint32_t)j->f->conf.umask : c->umask;
	__atomic_add_fetch(&j->f->live, 1, __ATOMIC_RELAXED);
	return j;
}

/* --- interrupts --- */

static bool step(struct job *j, int to)
{
	int from = JOB_QUEUED;

	return __atomic_compare_exchange_n(&j->state, &from, to, false, __ATOMIC_ACQ_REL,
					   __ATOMIC_ACQUIRE);
}

/* /proc/PID/what as text; false: not to be had. pid 0: it lives in another pid namespace */
static bool proc_text(uint32_t pid, const char *what, char *text, size_t room)
{
	char name[32];
	_cleanup_(closep) int fd = -1;
	ssize_t n;

	if (!pid)
		return false;
	snprintf(name, sizeof(name), "/proc/%u/%s", pid, what);
	fd = open(name, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, text, room - 1);
	if (n <= 0)
		return false;
	text[n] = 0;
	return true;
}

/* SIGKILL is pending: also what the kernel makes of any other signal that ends the process */
static bool is_killed(uint32_t pid)
{
	static const char *const keys[] = {"\nSigPnd:\t", "\nShdPnd:\t"};
	char text[4096];

	if (!proc_text(pid, "status", text, sizeof(text)))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
		const char *p = strstr(text, keys[i]);

		if (p && (strtoull(p + strlen(keys[i]), NULL, 16) & (UINT64_C(1) << (SIGKILL - 1))))
			return true;
	}
	return false;
}

/* it is on its way out, and a signal is the reason (proc(5), stat: flags and exit_code) */
static bool is_dying(uint32_t pid)
{
	enum { STATE = 3, FLAGS = 9, EXIT_CODE = 52, EXITING = 4, SIGNAL_BITS = 0x7f };
	unsigned long flags = 0, code = 0;
	char text[4096], *p;

	if (!proc_text(pid, "stat", text, sizeof(text)))
		return false;
	p = strrchr(text, ')'); /* the name may have anything in it */
	for (int i = STATE; p && i <= EXIT_CODE; i++) {
		p = strchr(p + 1, ' ');
		if (p && i == FLAGS)
			flags = strtoul(p + 1, NULL, 10);
		if (p && i == EXIT_CODE)
			code = strtoul(p + 1, NULL, 10);
	}
	return (flags & EXITING) && (code & SIGNAL_BITS);
}

/* begun, and its asker is on the way out */
static bool leave(struct job *j)
{
	int from = JOB_TAKEN;

	if (j->op == FOP_SETLK || j->op == FOP_FLOCK ||
	    __atomic_load_n(&j->state, __ATOMIC_ACQUIRE) != JOB_TAKEN || !is_killed(j->ctx.pid))
		return false;
	return __atomic_compare_exchange_n(&j->state, &from, JOB_LEFT, false, __ATOMIC_ACQ_REL,
					   __ATOMIC_ACQUIRE);
}

static void interrupted(fuse_req_t req, void *data)
{
	struct job *j = data;

	if (registering)
		step(j, JOB_INTERRUPTED_EARLY);
	else if (step(j, JOB_INTERRUPTED) || leave(j))
		fuse_reply_err(req, EINTR);
}

static void interrupted_killed(fuse_req_t req, void *data)
{
	if (is_killed(((struct job *)data)->ctx.pid))
		interrupted(req, data);
}

/* taking the function away waits until it does not run any more */
static void unwatch(struct job *j)
{
	if (j->watched)
		fuse_req_interrupt_func(j->req, NULL, NULL);
	j->watched = false;
}

/* false: it was interrupted before and is answered */
static bool watch(struct job *j, void (*fn)(fuse_req_t req, void *data))
{
	registering = true;
	j->watched = true;
	fuse_req_interrupt_func(j->req, fn, j);
	registering = false;
	if (__atomic_load_n(&j->state, __ATOMIC_ACQUIRE) != JOB_INTERRUPTED_EARLY)
		return true;
	job_reply_err(j, -EINTR);
	return false;
}

void job_free(struct job *j)
{
	meta_list_put(j->dir.list);
	if (j->reads)
		vfs_let(j->reads);
	fuse_loop_release(j->held);
	free(j->gids);
	free(j);
}

static void drop(struct job *j)
{
	struct fuse_ops *f = j->f;

	job_free(j);
	__atomic_sub_fetch(&f->live, 1, __ATOMIC_RELEASE);
}

bool job_watch_killed(struct job *j)
{
	return watch(j, interrupted_killed);
}

void job_leave_dying(struct job *j)
{
	if (is_dying(j->ctx.pid) && step(j, JOB_INTERRUPTED)) {
		unwatch(j);
		fuse_reply_err(j->req, EINTR);
	}
}

bool job_take(struct job *j)
{
	if (!step(j, JOB_TAKEN)) {
		drop(j);
		return false;
	}
	unwatch(j);
	return true;
}

bool job_claim(struct job *j)
{
	int s = __atomic_load_n(&j->state, __ATOMIC_ACQUIRE);

	do {
		if (s == JOB_LEFT)
			return false;
	} while (!__atomic_compare_exchange_n(&j->state, &s, JOB_ANSWERED, false, __ATOMIC_ACQ_REL,
					      __ATOMIC_ACQUIRE));
	/* when it returns, the function does not run any more */
	unwatch(j);
	return true;
}

/* --- queue --- */

/* false: interrupted before, and gone */
static bool begin(struct job *j)
{
	if (step(j, JOB_TAKEN))
		return true;
	drop(j);
	return false;
}

static void run_job(struct workq_job *work)
{
	struct job *j = container_of(work, struct job, work);

	if (begin(j))
		j->run(j);
}

/* The bound is the kernel's: a job is a request of a task that waits for its answer, so a full
 * house makes tasks wait, and none of them an error. */
static void push(struct job *j)
{
	j->work.fn = run_job;
	workq_push_always(j->f->conf.meta, &j->work);
}

static void begin_run(void *arg)
{
	struct job *j = arg;

	if (begin(j))
		j->run(j);
}

static void start(struct job *j)
{
	if (!fuse_loop_run(begin_run, j))
		push(j);
}

void job_queue(struct job *j, void (*run)(struct job *j))
{
	j->run = run;
	if (watch(j, interrupted))
		start(j);
}

void job_queue_busy(struct job *j, void (*run)(struct job *j))
{
	j->run = run;
	if (watch(j, interrupted))
		push(j);
}

static void flushed(struct vfs_io *io, int status, const struct iovec *iov, int n, size_t total)
{
	struct job *j = container_of(io, struct job, io);

	(void)iov;
	(void)n;
	(void)total;
	if (status == 0) {
		start(j);
	} else if (job_take(j)) {
		job_reply_err(j, status);
	}
}

static void flushed_first(struct vfs_io *io, int status, const struct iovec *iov, int n,
			  size_t total)
{
	struct job *j = container_of(io, struct job, io);

	if (status < 0) {
		flushed(io, status, iov, n, total);
		return;
	}
	j->io = (struct vfs_io){.done = flushed};
	vfs_flush_inode(j->f->conf.vfs, j->ino2, &j->io);
}

void job_queue_flushed2(struct job *j, uint64_t inode, uint64_t inode2, void (*run)(struct job *j))
{
	j->run = run;
	j->ino2 = inode2;
	if (!watch(j, interrupted))
		return;
	j->io.done = flushed_first;
	vfs_flush_inode(j->f->conf.vfs, inode, &j->io);
}

void job_queue_flushed(struct job *j, uint64_t inode, void (*run)(struct job *j))
{
	j->run = run;
	if (!watch(j, interrupted))
		return;
	j->io.done = flushed;
	vfs_flush_inode(j->f->conf.vfs, inode, &j->io);
}

static void run_always(struct workq_job *work)
{
	struct job *j = container_of(work, struct job, work);

	j->run(j);
}

static void run_here(void *arg)
{
	struct job *j = arg;

	j->run(j);
}

void job_queue_always(struct job *j, void (*run)(struct job *j))
{
	j->run = run;
	if (fuse_loop_run(run_here, j))
		return;
	j->work.fn = run_always;
	workq_push_always(j->f->conf.meta, &j->work);
}

static void forgotten(struct fuse_note *note)
{
	struct job *j = container_of(note, struct job, note);

	j->work.fn = run_always;
	workq_push_always(j->f->conf.meta, &j->work);
}

static void forget(struct job *j, bool pages, void (*run)(struct job *j))
{
	j->run = run;
	j->note = (struct fuse_note){.inode = j->ino, .pages = pages, .done = forgotten};
	fuse_notify_note(j->f->conf.notify, &j->note);
}

void job_forget_attr(struct job *j, void (*run)(struct job *j))
{
	forget(j, false, run);
}

void job_forget_pages(struct job *j, void (*run)(struct job *j))
{
	forget(j, true, run);
}

void job_queue_local(struct job *j, void (*run)(struct job *j))
{
	j->run = run;
	j->work.fn = run_always;
	workq_push_always(j->f->conf.local, &j->work);
}
