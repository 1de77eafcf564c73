/* SPDX-License-Identifier: Apache-2.0 */
/* The ceiling of FUSE itself: a file system of FILES files of MIB MiB each that answers every read
 * at once from memory, with the mount options of stoke mount (1 MiB requests, own receive threads,
 * no attribute calls in between).
 *
 *	fuse_null DIR FILES MIB THREADS [FROM]	serves until it is unmounted or killed
 *
 * With FROM the files are those of that directory, f0, f1, …, opened and read for each request (MIB
 * is not used): what the file system below and FUSE cost together. */
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>

#include "common/base.h"
#include "common/parse.h"

enum { IO_MAX = 1 << 20 };

static uint64_t files, file_bytes;
static unsigned char *data;
static struct fuse_session *session;
static int from = -1;	    /* FROM */
static __thread char *page; /* bytes read from there */

static int from_stat(fuse_ino_t ino, struct stat *st)
{
	char name[32];

	(void)snprintf(name, sizeof(name), "f%llu", (unsigned long long)ino - 2);
	if (fstatat(from, name, st, 0) < 0)
		return -errno;
	st->st_ino = ino;
	return 0;
}

static int from_open(fuse_ino_t ino)
{
	char name[32];

	(void)snprintf(name, sizeof(name), "f%llu", (unsigned long long)ino - 2);
	return openat(from, name, O_RDONLY | O_CLOEXEC);
}

static void from_read(fuse_req_t req, int fd, size_t size, off_t off)
{
	ssize_t n;

	if (!page)
		page = aligned_alloc(4096, IO_MAX);
	n = page ? pread(fd, page, MIN(size, (size_t)IO_MAX), off) : -1;
	if (n < 0)
		(void)fuse_reply_err(req, EIO);
	else
		(void)fuse_reply_buf(req, page, (size_t)n);
}

static void fill_attr(fuse_ino_t ino, struct stat *st)
{
	memset(st, 0, sizeof(*st));
	st->st_ino = ino;
	st->st_mode = ino == 1 ? S_IFDIR | 0755 : S_IFREG | 0644;
	st->st_nlink = 1;
	st->st_size = ino == 1 ? 4096 : (off_t)file_bytes;
}

static void null_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct stat st;

	(void)fi;
	fill_attr(ino, &st);
	if (ino != 1 && from >= 0 && from_stat(ino, &st) < 0) {
		(void)fuse_reply_err(req, ENOENT);
		return;
	}
	(void)fuse_reply_attr(req, &st, 3600);
}

/* files are called f0, f1, … */
static void null_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param e = {.attr_timeout = 3600, .entry_timeout = 3600};
	uint64_t n;

	if (parent != 1 || name[0] != 'f' || parse_u64(name + 1, files - 1, &n) < 0) {
		(void)fuse_reply_err(req, ENOENT);
		return;
	}
	e.ino = n + 2;
	fill_attr(e.ino, &e.attr);
	if (from >= 0 && from_stat(e.ino, &e.attr) < 0) {
		(void)fuse_reply_err(req, ENOENT);
		return;
	}
	(void)fuse_reply_entry(req, &e);
}

static void null_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	int fd = from >= 0 ? from_open(ino) : 0;

	if (fd < 0) {
		(void)fuse_reply_err(req, ENOENT);
		return;
	}
	fi->fh = (uint64_t)fd;
	(void)fuse_reply_open(req, fi);
}

static void null_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	if (from >= 0)
		(void)close((int)fi->fh);
	(void)fuse_reply_err(req, 0);
}

static void null_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		      struct fuse_file_info *fi)
{
	size_t len = MIN(size, (size_t)IO_MAX);
	uint64_t left = (uint64_t)off < file_bytes ? file_bytes - (uint64_t)off : 0;

	(void)ino;
	if (from >= 0) {
		from_read(req, (int)fi->fh, size, off);
		return;
	}
	(void)fuse_reply_buf(req, (const char *)data, MIN(len, left));
}

static void null_init(void *userdata, struct fuse_conn_info *conn)
{
	(void)userdata;
	conn->max_read = IO_MAX;
	conn->max_background = 128;
	conn->congestion_threshold = 96;
	conn->want &= ~(unsigned)(FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_SPLICE_READ |
				  FUSE_CAP_SPLICE_WRITE);
}

static const struct fuse_lowlevel_ops ops = {
	.init = null_init,
	.lookup = null_lookup,
	.getattr = null_getattr,
	.open = null_open,
	.read = null_read,
	.release = null_release,
};

static void *serve(void *arg)
{
	struct fuse_buf buf = {.mem = NULL};

	(void)arg;
	while (!fuse_session_exited(session)) {
		int r = fuse_session_receive_buf(session, &buf);

		if (r == -EINTR)
			continue;
		if (r <= 0)
			break;
		fuse_session_process_buf(session, &buf);
	}
	free(buf.mem);
	(void)kill(getpid(), SIGTERM); /* unmounted from outside: main goes on */
	return NULL;
}

int main(int argc, char **argv)
{
	char *args[] = {argv[0], (char *)(uintptr_t) "-omax_read=1048576,fsname=null"};
	struct fuse_args fa = FUSE_ARGS_INIT(2, args);
	uint64_t mib = 0, threads = 0;
	pthread_t t[16];
	sigset_t set;
	int sig;

	if (argc < 5 || argc > 6 || parse_u64(argv[2], 1000000, &files) < 0 ||
	    parse_u64(argv[3], 1 << 20, &mib) < 0 || parse_u64(argv[4], 16, &threads) < 0 ||
	    threads == 0) {
		(void)fprintf(stderr, "usage: fuse_null DIR FILES MIB THREADS [FROM]\n");
		return 2;
	}
	if (argc == 6 && (from = open(argv[5], O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0) {
		perror(argv[5]);
		return 1;
	}
	file_bytes = mib << 20;
	data = aligned_alloc(4096, IO_MAX);
	if (!data)
		return 1;
	memset(data, 'x', IO_MAX);
	/* the signals that end it come to main alone */
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	session = fuse_session_new(&fa, &ops, sizeof(ops), NULL);
	if (!session || fuse_session_mount(session, argv[1]) < 0)
		return 1;
	for (uint64_t i = 0; i < threads; i++)
		if (pthread_create(&t[i], NULL, serve, NULL))
			return 1;
	(void)sigwait(&set, &sig);
	fuse_session_exit(session);
	/* threads that are in read(2) return when the kernel has ended the connection */
	fuse_session_unmount(session);
	for (uint64_t i = 0; i < threads; i++)
		(void)pthread_join(t[i], NULL);
	fuse_session_destroy(session);
	free(data);
	return 0;
}
