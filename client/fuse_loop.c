/* SPDX-License-Identifier: Apache-2.0 */
/* The FUSE session and its receive threads. libfuse's own loop is not used: it makes a thread for
 * every request that blocks and lets blocked look-ups starve reads (bench/fuse_null). libfuse 3.14
 * does not know FUSE_PARALLEL_DIROPS in its answer to INIT, without which look-ups in one directory
 * run one after the other, so that answer is edited on its way out (custom io). Nor does it know
 * FUSE_TMPFILE, whose question and answer look like those of FUSE_CREATE: it is handed on as one,
 * and the handler asks fuse_loop_tmpfile.
 *
 * A buffer has one reference of the thread that reads into it and one of each handler that holds
 * it; a thread whose buffer is held when the handler returns leaves it to the holder and takes a
 * fresh one. */
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <pthread.h>
#include <signal.h>
#include <sys/uio.h>
#include <time.h>

#include "client/fuse_loop.h"

#include "client/fuse_notify.h"
#include "client/fuse_turn.h"
#include "common/log.h"
#include "common/thread.h"

enum {
	FUSE_OP_READ = 15,
	FUSE_OP_WRITE = 16,
	FUSE_OP_FSYNC = 20,
	FUSE_OP_INIT = 26,
	FUSE_OP_CREATE = 35,
	FUSE_OP_IOCTL = 39,
	FUSE_OP_BATCH_FORGET = 42,
	FUSE_OP_READDIRPLUS = 44,
	FUSE_OP_TMPFILE = 51,
	FLAG_PARALLEL_DIROPS = 1 << 18,
	THREADS_MIN = 8,
	THREADS_MAX = 16,
	FIBERS_EACH = 8, /* so many requests, at most, before fibers go on */
};

/* where things stand in the kernel's structures (linux/fuse.h), native byte order */
enum {
	IN_HEADER = 40,
	IN_OPCODE = 4,
	IN_UNIQUE = 8,
	INIT_IN_FLAGS = IN_HEADER + 12,
	OUT_HEADER = 16,
	OUT_UNIQUE = 8,
	INIT_OUT_FLAGS = 12,
};

struct fuse_buffer {
	unsigned refs;
	struct fuse_buf buf;
};

struct fuse_loop {
	struct fuse_loop_conf conf;
	struct fuse_session *se;
	struct fuse_args args;
	struct fuse_turn turn;
	struct receiver {
		struct fuse_loop *loop;
		unsigned number;
		pthread_t thread;
		struct fibers *fibers;
	} threads[THREADS_MAX];
	unsigned n_threads;
};

static _Thread_local struct fuse_buffer *current;
static _Thread_local bool is_tmpfile; /* the request that is being handled */
/* INIT is answered by the thread that received it, before it goes on. libfuse hands its own
 * userdata to custom io, so this is kept here */
static _Thread_local uint64_t init_unique; /* of the request; 0: none */
static _Thread_local uint32_t init_flags;  /* what the kernel offered */

/* --- INIT's edit --- */

static ssize_t io_read(int fd, void *buf, size_t len, void *userdata)
{
	ssize_t n = read(fd, buf, len);
	const unsigned char *p = buf;
	uint32_t opcode;

	(void)userdata;
	if (n < INIT_IN_FLAGS + 4)
		return n;
	memcpy(&opcode, p + IN_OPCODE, 4);
	if (opcode == FUSE_OP_INIT) {
		memcpy(&init_unique, p + IN_UNIQUE, 8);
		memcpy(&init_flags, p + INIT_IN_FLAGS, 4);
	}
	return n;
}

/* the answer to INIT carries FUSE_PARALLEL_DIROPS if the kernel offered it */
static void edit_init(struct iovec *iov, int count)
{
	unsigned char *p;
	uint64_t unique;
	uint32_t flags;

	if (count < 2 || iov[0].iov_len < OUT_HEADER || iov[1].iov_len < INIT_OUT_FLAGS + 4)
		return;
	p = iov[0].iov_base;
	memcpy(&unique, p + OUT_UNIQUE, 8);
	if (unique != init_unique)
		return;
	p = iov[1].iov_base;
	memcpy(&flags, p + INIT_OUT_FLAGS, 4);
	flags |= init_flags & FLAG_PARALLEL_DIROPS;
	memcpy(p + INIT_OUT_FLAGS, &flags, 4);
	init_unique = 0;
}

static ssize_t io_writev(int fd, struct iovec *iov, int count, void *userdata)
{
	(void)userdata;
	if (init_unique)
		edit_init(iov, count);
	return writev(fd, iov, count);
}

/* --- buffers --- */

static struct fuse_buffer *buffer_new(void)
{
	struct fuse_buffer *b = calloc(1, sizeof(*b));

	if (b)
		b->refs = 1;
	return b;
}

void fuse_loop_release(struct fuse_buffer *b)
{
	if (!b || __atomic_sub_fetch(&b->refs, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	free(b->buf.mem);
	free(b);
}

struct fuse_buffer *fuse_loop_hold(void)
{
	assert(current);
	__atomic_add_fetch(&current->refs, 1, __ATOMIC_RELAXED);
	return current;
}

/* a buffer that nobody else holds: the old one, or another; waits for memory rather than lose the
 * session */
static struct fuse_buffer *buffer_mine(struct fuse_buffer *b)
{
	if (b && __atomic_load_n(&b->refs, __ATOMIC_ACQUIRE) == 1)
		return b;
	fuse_loop_release(b);
	while (!(b = buffer_new()))
		usleep(10000);
	return b;
}

bool fuse_loop_tmpfile(void)
{
	return is_tmpfile;
}

/* see above */
static void edit_tmpfile(struct fuse_buffer *b)
{
	const uint32_t create = FUSE_OP_CREATE;
	unsigned char *p = b->buf.mem;
	uint32_t opcode;

	is_tmpfile = false;
	if (b->buf.size < IN_HEADER)
		return;
	memcpy(&opcode, p + IN_OPCODE, sizeof(opcode));
	if (opcode != FUSE_OP_TMPFILE)
		return;
	memcpy(p + IN_OPCODE, &create, sizeof(create));
	is_tmpfile = true;
}

/* --- threads --- */

static void wake_up(int sig)
{
	(void)sig;
}

/* SIGUSR1 only gets a thread out of poll(2): it restarts nothing */
static void let_signal_in(void)
{
	struct sigaction sa = {.sa_handler = wake_up};
	sigset_t set;

	sigaction(SIGUSR1, &sa, NULL);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

static _Thread_local struct receiver *mine;

bool fuse_loop_run(void (*fn)(void *arg), void *arg)
{
	return mine && fibers_run(mine->fibers, fn, arg) == 0;
}

static void leave(void *arg)
{
	fuse_turn_leave(&((struct receiver *)arg)->loop->turn);
}

/* what may keep this thread busy for long: another one receives meanwhile */
static bool takes_long(const struct fuse_buffer *b)
{
	static const uint64_t long_ones =
		UINT64_C(1) << FUSE_OP_READ | UINT64_C(1) << FUSE_OP_WRITE |
		UINT64_C(1) << FUSE_OP_FSYNC | UINT64_C(1) << FUSE_OP_IOCTL |
		UINT64_C(1) << FUSE_OP_BATCH_FORGET;
	const unsigned char *p = b->buf.mem;
	uint32_t opcode;

	memcpy(&opcode, p + IN_OPCODE, sizeof(opcode));
	return opcode > FUSE_OP_READDIRPLUS || (long_ones >> opcode & 1);
}

static void handle(struct receiver *me, struct fuse_buffer *b)
{
	current = b;
	if (takes_long(b))
		leave(me);
	edit_tmpfile(b);
	fuse_session_process_buf(me->loop->se, &b->buf);
	current = NULL;
}

/* false: the end */
static bool receive_one(struct receiver *me, struct fuse_buffer *b)
{
	int n = fuse_session_receive_buf(me->loop->se, &b->buf);

	if (n == -EAGAIN)
		fuse_turn_wait(&me->loop->turn, me->number, me->fibers);
	else if (n == -ENOMEM)
		usleep(10000);
	else if (n > 0)
		handle(me, b);
	return n > 0 || n == -EAGAIN || n == -EINTR || n == -ENOMEM;
}

static void *receive(void *arg)
{
	struct receiver *me = arg;
	struct fuse_loop *l = me->loop;
	struct fuse_buffer *b = NULL;
	unsigned n = 0;

	let_signal_in();
	mine = me;
	do {
		b = buffer_mine(b);
		if (++n % FIBERS_EACH == 0)
			fuse_turn_fibers(me->fibers);
	} while (receive_one(me, b) && !fuse_session_exited(l->se));
	fuse_loop_release(b);
	fuse_session_exit(l->se);
	/* the others see the end as soon as they have the turn */
	fuse_turn_leave(&l->turn);
	fuse_turn_drain(me->fibers);
	mine = NULL;
	l->conf.ended(l->conf.arg);
	return NULL;
}

static unsigned thread_count(unsigned wanted)
{
	long cores = sysconf(_SC_NPROCESSORS_ONLN);

	if (!wanted)
		wanted = cores > 0 ? (unsigned)cores : THREADS_MIN;
	wanted = MAX(wanted, (unsigned)THREADS_MIN);
	return MIN(wanted, (unsigned)THREADS_MAX);
}

int fuse_loop_start(struct fuse_loop *l)
{
	unsigned want = thread_count(l->conf.threads);
	int r = fuse_notify_start(l->conf.notify, l->se);

	if (r < 0)
		return r;
	for (; l->n_threads < want; l->n_threads++) {
		char name[16];

		struct receiver *me = &l->threads[l->n_threads];

		me->loop = l;
		me->number = l->n_threads;
		snprintf(name, sizeof(name), "fuse-%u", l->n_threads);
		r = me->fibers ? 0 : fibers_new(leave, me, &me->fibers);
		if (r == 0)
			r = thread_start(name, receive, me, &me->thread);
		if (r < 0 && l->n_threads > 0)
			break;
		if (r < 0)
			return r;
	}
	return 0;
}

void fuse_loop_stop(struct fuse_loop *l)
{
	fuse_session_exit(l->se);
	for (unsigned i = 0; i < l->n_threads; i++) {
		struct timespec ts;
		int r;

		/* the signal may come a moment before poll(2): knock until the thread has ended */
		do {
			pthread_kill(l->threads[i].thread, SIGUSR1);
			clock_gettime(CLOCK_REALTIME, &ts);
			ts.tv_nsec += 20000000;
			if (ts.tv_nsec >= 1000000000) {
				ts.tv_sec++;
				ts.tv_nsec -= 1000000000;
			}
			r = pthread_timedjoin_np(l->threads[i].thread, NULL, &ts);
		} while (r == ETIMEDOUT);
	}
	l->n_threads = 0;
	fuse_notify_stop(l->conf.notify);
}

/* --- start and end --- */

/* what libfuse would print on stderr: while a session is opened the last line is the reason of the
 * failure, afterwards a log line */
static char reason[256];

static void keep_reason(enum fuse_log_level level, const char *fmt, va_list ap)
{
	(void)level;
	vsnprintf(reason, sizeof(reason), fmt, ap);
	reason[strcspn(reason, "\n")] = 0;
}

static void pass_to_log(enum fuse_log_level level, const char *fmt, va_list ap)
{
	char line[256];

	(void)level;
	vsnprintf(line, sizeof(line), fmt, ap);
	line[strcspn(line, "\n")] = 0;
	log_warn("libfuse: %s", line);
}

static int session_open(struct fuse_loop *l, struct str *err)
{
	static const struct fuse_custom_io io = {.writev = io_writev, .read = io_read};
	int r;

	fuse_set_log_func(keep_reason);
	l->se = fuse_session_new(&l->args, l->conf.ops, l->conf.ops_size, l->conf.userdata);
	if (!l->se) {
		str_addf(err, "the options \"%s\" were refused: %s", l->conf.options, reason);
		return -EINVAL;
	}
	if (fuse_session_mount(l->se, l->conf.mount_point) != 0) {
		str_addf(err, "cannot mount on %s: %s", l->conf.mount_point, reason);
		return -EIO;
	}
	fuse_set_log_func(pass_to_log);
	l->turn.fd = fuse_session_fd(l->se);
	if (fcntl(l->turn.fd, F_SETFL, O_RDWR | O_NONBLOCK) < 0)
		r = -errno;
	else
		r = fuse_session_custom_io(l->se, &io, l->turn.fd);
	if (r < 0)
		str_addf(err, "cannot set input and output of libfuse: %s", strerror(-r));
	return r;
}

int fuse_loop_new(const struct fuse_loop_conf *conf, struct fuse_loop **ret, struct str *err)
{
	struct fuse_loop *l = calloc(1, sizeof(*l));
	int r = -ENOMEM;

	if (!l)
		return -ENOMEM;
	l->conf = *conf;
	r = fuse_turn_init(&l->turn);
	if (r == 0 && fuse_opt_add_arg(&l->args, "stoke") == 0 &&
	    fuse_opt_add_arg(&l->args, "-o") == 0 && fuse_opt_add_arg(&l->args, conf->options) == 0)
		r = session_open(l, err);
	else if (r == 0)
		r = -ENOMEM;
	if (r < 0) {
		fuse_loop_free(l);
		return r;
	}
	*ret = l;
	return 0;
}

void fuse_loop_free(struct fuse_loop *l)
{
	if (!l)
		return;
	assert(l->n_threads == 0);
	if (l->se) {
		fuse_session_unmount(l->se);
		fuse_session_destroy(l->se);
	}
	fuse_opt_free_args(&l->args);
	for (unsigned i = 0; i < THREADS_MAX; i++)
		fibers_free(l->threads[i].fibers);
	fuse_turn_fini(&l->turn);
	free(l);
}
