/* SPDX-License-Identifier: Apache-2.0 */
/* A directory passed through, with faults on command: the sick disk of the tests.
 *
 *	faultfs SOURCE MOUNTPOINT SOCKET	serves until it is unmounted or ended (SIGTERM)
 *
 * Each connection to SOCKET sends one line and is answered by one line, "ok …" or "error …":
 *
 *	OP error NAME		answered with that error: EIO, ENOSPC, EROFS, ENOENT, ENOTCONN or
 *				ESTALE
 *	OP hang			not answered before the fault is cleared (or the asker is killed)
 *	OP delay MS		answered later
 *	OP flip			read: a bit in the middle of the answer is turned over
 *	OP short		read: half of the answer
 *	readonly		EROFS for all that changes something
 *	clear			no faults any more; what hung goes on
 *	cold			the kernel forgets the pages that it keeps
 *	stat			"ok hung=N read=N write=N …": operations that hang now, and by name
 *				those that came so far
 *
 * OP is one of the names in op_names, or "all". A later fault of an operation replaces its earlier
 * one. Threads: libfuse's, one per operation in hand, which a hang or a delay keeps; and one for
 * commands. */
#include <dirent.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <time.h>

#include "common/base.h"
#include "common/parse.h"

enum { THREADS_MAX = 512, BUCKETS = 4096, IO_MAX = 1 << 20, LINE = 256 };

enum op { READ, WRITE, OPEN, CREATE, RENAME, UNLINK, FSYNC, STATFS, LOOKUP, ATTR, DIRS, OPS };
static const char *const op_names[OPS] = {"read",  "write",  "open",   "create", "rename", "unlink",
					  "fsync", "statfs", "lookup", "attr",	 "dirs"};

struct fault {
	int error;
	uint64_t delay_ms;
	bool hang, flip, cut;
};

struct inode {
	struct inode *next;
	int fd; /* O_PATH */
	dev_t dev;
	ino_t ino;
	uint64_t lookups;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* over all of these */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct fault faults[OPS];
static bool readonly;
static uint64_t counts[OPS], hung;
static struct inode *table[BUCKETS];
static struct inode root;

static struct fuse_session *session;

/* --- faults --- */

struct waiting {
	bool killed; /* under lock */
};

static void on_interrupt(fuse_req_t req, void *arg)
{
	struct waiting *w = arg;

	(void)req;
	pthread_mutex_lock(&lock);
	w->killed = true;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

static bool changes(enum op op)
{
	return op == WRITE || op == CREATE || op == RENAME || op == UNLINK;
}

/* Does to req what was ordered for op; 0: carry it out, else it was answered. */
static int meet(fuse_req_t req, enum op op, struct fault *ret)
{
	struct waiting w = {false};
	struct fault f;
	int error;

	fuse_req_interrupt_func(req, on_interrupt, &w);
	pthread_mutex_lock(&lock);
	counts[op]++;
	hung++;
	while (faults[op].hang && !w.killed)
		pthread_cond_wait(&changed, &lock);
	hung--;
	f = faults[op];
	error = w.killed ? EINTR : f.error;
	if (!error && readonly && changes(op))
		error = EROFS;
	pthread_mutex_unlock(&lock);
	fuse_req_interrupt_func(req, NULL, NULL);
	if (f.delay_ms) {
		const struct timespec t = {.tv_sec = (time_t)(f.delay_ms / 1000),
					   .tv_nsec = (long)(f.delay_ms % 1000) * 1000000};

		(void)nanosleep(&t, NULL);
	}
	if (ret)
		*ret = f;
	if (error)
		(void)fuse_reply_err(req, error);
	return error;
}

/* --- inodes --- */

static struct inode *inode_of(fuse_ino_t ino)
{
	return ino == FUSE_ROOT_ID ? &root : (struct inode *)(uintptr_t)ino;
}

static int fd_of(fuse_ino_t ino)
{
	return inode_of(ino)->fd;
}

static void path_of(fuse_ino_t ino, char ret[32])
{
	(void)snprintf(ret, 32, "/proc/self/fd/%d", fd_of(ino));
}

/* takes fd over */
static struct inode *inode_get(int fd, const struct stat *st)
{
	struct inode **bucket = &table[st->st_ino % BUCKETS], *i;

	pthread_mutex_lock(&lock);
	for (i = *bucket; i && (i->ino != st->st_ino || i->dev != st->st_dev); i = i->next)
		;
	if (i) {
		close(fd);
		i->lookups++;
	} else if ((i = calloc(1, sizeof(*i)))) {
		*i = (struct inode){*bucket, fd, st->st_dev, st->st_ino, 1};
		*bucket = i;
	}
	pthread_mutex_unlock(&lock);
	return i;
}

static void inode_put(struct inode *i, uint64_t n)
{
	struct inode **at = &table[i->ino % BUCKETS];

	if (i == &root)
		return;
	pthread_mutex_lock(&lock);
	i->lookups -= n;
	if (i->lookups) {
		i = NULL;
	} else {
		while (*at != i)
			at = &(*at)->next;
		*at = i->next;
	}
	pthread_mutex_unlock(&lock);
	if (i)
		close(i->fd);
	free(i);
}

static int entry_of(fuse_ino_t parent, const char *name, struct fuse_entry_param *e)
{
	int fd = openat(fd_of(parent), name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	struct inode *i;

	memset(e, 0, sizeof(*e));
	if (fd < 0)
		return errno;
	if (fstatat(fd, "", &e->attr, AT_EMPTY_PATH) < 0) {
		close(fd);
		return EIO;
	}
	i = inode_get(fd, &e->attr);
	if (!i)
		return ENOMEM;
	e->ino = (fuse_ino_t)(uintptr_t)i;
	return 0;
}

/* --- operations --- */

static void reply(fuse_req_t req, int r)
{
	(void)fuse_reply_err(req, r < 0 ? errno : 0);
}

static void do_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param e;
	int r;

	if (meet(req, LOOKUP, NULL))
		return;
	r = entry_of(parent, name, &e);
	if (r)
		(void)fuse_reply_err(req, r);
	else
		(void)fuse_reply_entry(req, &e);
}

static void do_forget(fuse_req_t req, fuse_ino_t ino, uint64_t n)
{
	inode_put(inode_of(ino), n);
	fuse_reply_none(req);
}

static void do_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct stat st;

	(void)fi;
	if (meet(req, ATTR, NULL))
		return;
	if (fstatat(fd_of(ino), "", &st, AT_EMPTY_PATH) < 0)
		reply(req, -1);
	else
		(void)fuse_reply_attr(req, &st, 0);
}

static void do_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int set,
		       struct fuse_file_info *fi)
{
	struct stat st;
	char path[32];
	int r = 0;

	(void)fi;
	path_of(ino, path);
	if (meet(req, WRITE, NULL))
		return;
	if (set & FUSE_SET_ATTR_MODE)
		r = chmod(path, attr->st_mode);
	if (r == 0 && (set & FUSE_SET_ATTR_SIZE))
		r = truncate(path, attr->st_size);
	if (r == 0)
		r = fstatat(fd_of(ino), "", &st, AT_EMPTY_PATH);
	if (r < 0)
		reply(req, r);
	else
		(void)fuse_reply_attr(req, &st, 0);
}

static void do_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	struct fuse_entry_param e;

	if (meet(req, CREATE, NULL))
		return;
	if (mkdirat(fd_of(parent), name, mode) < 0 || (errno = entry_of(parent, name, &e)))
		reply(req, -1);
	else
		(void)fuse_reply_entry(req, &e);
}

static void do_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	if (!meet(req, UNLINK, NULL))
		reply(req, unlinkat(fd_of(parent), name, 0));
}

static void do_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	if (!meet(req, UNLINK, NULL))
		reply(req, unlinkat(fd_of(parent), name, AT_REMOVEDIR));
}

static void do_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t to,
		      const char *to_name, unsigned flags)
{
	if (!meet(req, RENAME, NULL))
		reply(req, renameat2(fd_of(parent), name, fd_of(to), to_name, flags));
}

static void do_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
		      struct fuse_file_info *fi)
{
	struct fuse_entry_param e;
	int fd;

	if (meet(req, CREATE, NULL))
		return;
	fd = openat(fd_of(parent), name, (fi->flags | O_CREAT | O_CLOEXEC) & ~O_NOFOLLOW, mode);
	if (fd < 0 || (errno = entry_of(parent, name, &e))) {
		reply(req, -1);
		return;
	}
	fi->fh = (uint64_t)fd;
	(void)fuse_reply_create(req, &e, fi);
}

static void do_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	char path[32];
	int fd;

	if (meet(req, OPEN, NULL))
		return;
	path_of(ino, path);
	fd = open(path, (fi->flags | O_CLOEXEC) & ~O_NOFOLLOW);
	if (fd < 0) {
		reply(req, -1);
		return;
	}
	fi->fh = (uint64_t)fd;
	fi->keep_cache = 1;
	(void)fuse_reply_open(req, fi);
}

static void do_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		    struct fuse_file_info *fi)
{
	struct fault f;
	char *buf;
	ssize_t n;

	(void)ino;
	if (meet(req, READ, &f))
		return;
	buf = malloc(size);
	n = buf ? pread((int)fi->fh, buf, size, off) : -1;
	if (n < 0) {
		reply(req, -1);
	} else {
		if (f.flip && n)
			buf[n / 2] ^= 4;
		if (f.cut)
			n /= 2;
		(void)fuse_reply_buf(req, buf, (size_t)n);
	}
	free(buf);
}

static void do_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off,
		     struct fuse_file_info *fi)
{
	ssize_t n;

	(void)ino;
	if (meet(req, WRITE, NULL))
		return;
	n = pwrite((int)fi->fh, buf, size, off);
	if (n < 0)
		reply(req, -1);
	else
		(void)fuse_reply_write(req, (size_t)n);
}

static void do_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	close((int)fi->fh);
	(void)fuse_reply_err(req, 0);
}

static void do_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	(void)ino;
	(void)datasync;
	if (!meet(req, FSYNC, NULL))
		reply(req, fdatasync((int)fi->fh));
}

static void do_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	char path[32];
	DIR *d;

	if (meet(req, DIRS, NULL))
		return;
	path_of(ino, path);
	d = opendir(path);
	if (!d) {
		reply(req, -1);
		return;
	}
	fi->fh = (uintptr_t)d;
	(void)fuse_reply_open(req, fi);
}

static void do_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		       struct fuse_file_info *fi)
{
	DIR *d = (DIR *)(uintptr_t)fi->fh;
	size_t used = 0, n;
	struct dirent *e;
	char *buf;

	(void)ino;
	if (meet(req, DIRS, NULL))
		return;
	buf = malloc(size);
	if (!buf) {
		(void)fuse_reply_err(req, ENOMEM);
		return;
	}
	seekdir(d, off);
	while ((e = readdir(d))) {
		const struct stat st = {.st_ino = e->d_ino, .st_mode = (mode_t)DTTOIF(e->d_type)};

		n = fuse_add_direntry(req, buf + used, size - used, e->d_name, &st, e->d_off);
		if (n > size - used)
			break;
		used += n;
	}
	(void)fuse_reply_buf(req, buf, used);
	free(buf);
}

static void do_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	closedir((DIR *)(uintptr_t)fi->fh);
	(void)fuse_reply_err(req, 0);
}

static void do_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct statvfs v;

	(void)ino;
	if (meet(req, STATFS, NULL))
		return;
	if (fstatvfs(root.fd, &v) < 0)
		reply(req, -1);
	else
		(void)fuse_reply_statfs(req, &v);
}

static void do_init(void *arg, struct fuse_conn_info *conn)
{
	(void)arg;
	conn->max_background = THREADS_MAX / 2;
	conn->want &= ~(unsigned)FUSE_CAP_AUTO_INVAL_DATA;
}

static const struct fuse_lowlevel_ops ops = {
	.init = do_init,
	.lookup = do_lookup,
	.forget = do_forget,
	.getattr = do_getattr,
	.setattr = do_setattr,
	.mkdir = do_mkdir,
	.unlink = do_unlink,
	.rmdir = do_rmdir,
	.rename = do_rename,
	.create = do_create,
	.open = do_open,
	.read = do_read,
	.write = do_write,
	.release = do_release,
	.fsync = do_fsync,
	.opendir = do_opendir,
	.readdir = do_readdir,
	.releasedir = do_releasedir,
	.statfs = do_statfs,
};

/* --- commands --- */

static int error_of(const char *name)
{
	static const struct {
		const char *name;
		int error;
	} errors[] = {{"EIO", EIO},	  {"ENOSPC", ENOSPC},	  {"EROFS", EROFS},
		      {"ENOENT", ENOENT}, {"ENOTCONN", ENOTCONN}, {"ESTALE", ESTALE}};

	for (size_t i = 0; name && i < ARRAY_LEN(errors); i++)
		if (!strcmp(name, errors[i].name))
			return errors[i].error;
	return -1;
}

static bool fault_of(const char *kind, const char *arg, struct fault *ret)
{
	*ret = (struct fault){0};
	if (!kind)
		return false;
	if (!strcmp(kind, "error"))
		return (ret->error = error_of(arg)) > 0;
	if (!strcmp(kind, "delay"))
		return arg && parse_u64(arg, 3600000, &ret->delay_ms) == 0;
	if (!strcmp(kind, "hang"))
		return ret->hang = true;
	if (!strcmp(kind, "flip"))
		return ret->flip = true;
	return ret->cut = !strcmp(kind, "short");
}

static bool order(const char *op, const char *kind, const char *arg)
{
	bool all = !strcmp(op, "all"), found = false;
	struct fault f;

	if (!fault_of(kind, arg, &f))
		return false;
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < OPS; i++)
		if (all || !strcmp(op, op_names[i])) {
			faults[i] = f;
			found = true;
		}
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	return found;
}

static void clear(void)
{
	pthread_mutex_lock(&lock);
	memset(faults, 0, sizeof(faults));
	readonly = false;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

/* nothing may be locked while the kernel is told: it may ask us meanwhile */
static void cold(void)
{
	fuse_ino_t *all = NULL;
	size_t n = 0, room = 0;

	pthread_mutex_lock(&lock);
	for (unsigned b = 0; b < BUCKETS; b++)
		for (struct inode *i = table[b]; i; i = i->next) {
			if (n == room) {
				room = room ? 2 * room : 256;
				all = realloc(all, room * sizeof(*all));
				if (!all)
					abort();
			}
			all[n++] = (fuse_ino_t)(uintptr_t)i;
		}
	pthread_mutex_unlock(&lock);
	for (size_t i = 0; i < n; i++)
		(void)fuse_lowlevel_notify_inval_inode(session, all[i], 0, 0);
	free(all);
}

static void stat_line(char *ret, size_t room)
{
	size_t n;

	pthread_mutex_lock(&lock);
	n = (size_t)snprintf(ret, room, "ok hung=%llu", (unsigned long long)hung);
	for (unsigned i = 0; i < OPS && n < room; i++)
		n += (size_t)snprintf(ret + n, room - n, " %s=%llu", op_names[i],
				      (unsigned long long)counts[i]);
	pthread_mutex_unlock(&lock);
}

static void command(char *line, char *ret, size_t room)
{
	char *save = NULL, *op = strtok_r(line, " \n", &save);
	char *kind = strtok_r(NULL, " \n", &save), *arg = strtok_r(NULL, " \n", &save);
	bool good = true;

	if (!op) {
		good = false;
	} else if (!strcmp(op, "clear")) {
		clear();
	} else if (!strcmp(op, "cold")) {
		cold();
	} else if (!strcmp(op, "readonly")) {
		pthread_mutex_lock(&lock);
		readonly = true;
		pthread_mutex_unlock(&lock);
	} else if (!strcmp(op, "stat")) {
		stat_line(ret, room);
		return;
	} else {
		good = order(op, kind, arg);
	}
	(void)snprintf(ret, room, "%s", good ? "ok" : "error: not understood");
}

static void *serve_commands(void *arg)
{
	int listener = *(int *)arg, fd;

	while ((fd = accept(listener, NULL, NULL)) >= 0) {
		char line[LINE + 1], answer[2 * LINE];
		ssize_t n = read(fd, line, LINE);

		line[n > 0 ? n : 0] = '\0';
		command(line, answer, sizeof(answer) - 1);
		n = write(fd, answer, strlen(answer));
		(void)n;
		close(fd);
	}
	return NULL;
}

static int listen_at(const char *path)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (strlen(path) >= sizeof(a.sun_path))
		return -1;
	memcpy(a.sun_path, path, strlen(path) + 1);
	(void)unlink(path);
	return bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(fd, 16) == 0 ? fd : -1;
}

static int serve(const char *mountpoint, char *argv0)
{
	char opt[] = "-o",
	     opts[] = "allow_other,default_permissions,fsname=faultfs,subtype=faultfs";
	char *argv[] = {argv0, opt, opts, NULL};
	struct fuse_args args = FUSE_ARGS_INIT(3, argv);
	struct fuse_loop_config *conf = fuse_loop_cfg_create();
	int r;

	session = fuse_session_new(&args, &ops, sizeof(ops), NULL);
	if (!session || !conf || fuse_set_signal_handlers(session) < 0 ||
	    fuse_session_mount(session, mountpoint) < 0)
		return 1;
	fuse_loop_cfg_set_max_threads(conf, THREADS_MAX);
	fuse_loop_cfg_set_idle_threads(conf, 8);
	r = fuse_session_loop_mt(session, conf);
	fuse_session_unmount(session);
	/* threads may still hang: the process ends with them */
	return r == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
	struct rlimit rl;
	pthread_t thread;
	int listener;

	if (argc != 4) {
		(void)fprintf(stderr, "faultfs SOURCE MOUNTPOINT SOCKET\n");
		return 2;
	}
	(void)signal(SIGPIPE, SIG_IGN);
	(void)umask(0);
	if (getrlimit(RLIMIT_NOFILE, &rl) == 0) {
		rl.rlim_cur = rl.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &rl);
	}
	root.fd = open(argv[1], O_PATH | O_DIRECTORY | O_CLOEXEC);
	listener = listen_at(argv[3]);
	if (root.fd < 0 || listener < 0) {
		perror(root.fd < 0 ? argv[1] : argv[3]);
		return 1;
	}
	if (pthread_create(&thread, NULL, serve_commands, &listener) != 0)
		return 1;
	return serve(argv[2], argv[0]);
}
