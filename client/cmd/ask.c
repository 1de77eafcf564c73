/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cmd/ask.h"

#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <sys/stat.h>

#include "client/internal.h"
#include "client/maint/dump_text.h"
#include "common/parse.h"

enum { PATH_BUF = 4096, READ_MAX = 64 << 10, POLL_MS = 200 };

/* the topmost ancestor of a directory on the same file system, into ret */
static int mount_top(const char *dir, dev_t dev, struct str *ret)
{
	_cleanup_(freep) char *real = realpath(dir, NULL);

	if (!real)
		return -errno;
	for (;;) {
		char *slash = strrchr(real, '/'), parent[PATH_BUF];
		struct stat up;

		(void)snprintf(parent, sizeof(parent), "%.*s",
			       slash == real ? 1 : (int)(slash - real), real);
		if (strcmp(real, "/") == 0 || stat(parent, &up) < 0 || up.st_dev != dev)
			break;
		memcpy(real, parent, strlen(parent) + 1);
	}
	str_add(ret, real);
	return str_error(ret);
}

int ask_open_control(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);

	if (fd < 0 && errno == EROFS)
		fd = open(path, O_RDONLY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/* a copy: an ioctl's argument may be written, as far as libc knows */
static int send_ioctl(int control, const char *p, size_t n)
{
	char buf[CONTROL_IOC_MAX];

	memcpy(buf, p, n);
	return ioctl(control, (unsigned long)CONTROL_IOC(n), buf) < 0 ? -errno : 0;
}

int ask_send(int control, const void *data, size_t n)
{
	bool writes = (fcntl(control, F_GETFL) & O_ACCMODE) == O_RDWR;
	const char *p = data;

	while (n > 0) {
		size_t step = MIN(n, (size_t)CONTROL_IOC_MAX);
		ssize_t w = (ssize_t)step;
		int r = 0;

		if (writes) {
			w = write(control, p, n);
			r = w < 0 ? -errno : 0;
		} else {
			r = send_ioctl(control, p, step);
		}
		if (r == -EINTR)
			continue;
		if (r < 0)
			return r;
		p += w;
		n -= (size_t)w;
	}
	return 0;
}

static int open_control(struct asked_path *a, const char *dir)
{
	_cleanup_(str_fini) struct str name = STR_INIT;
	struct stat st;
	int r = mount_top(dir, a->dev, &a->root);

	if (r)
		return r;
	str_addf(&name, "%s/.control", str_c(&a->root));
	if (str_error(&name) < 0)
		return -ENOMEM;
	if (lstat(str_c(&name), &st) < 0 || st.st_ino != INODE_CONTROL)
		return -ENOTTY;
	r = ask_open_control(str_c(&name));
	if (r >= 0)
		a->control = r;
	return MIN(r, 0);
}

/* "a/b/" → "a" and "b"; false: it has no last element that is a name */
static bool split(const char *path, struct str *dir, struct str *name)
{
	size_t n = strlen(path), from;

	while (n > 1 && path[n - 1] == '/')
		n--;
	for (from = n; from > 0 && path[from - 1] != '/';)
		from--;
	str_addn(name, path + from, n - from);
	if (from)
		str_addn(dir, path, from);
	else
		str_add(dir, ".");
	return name->len && strcmp(str_c(name), ".") != 0 && strcmp(str_c(name), "..") != 0 &&
	       strcmp(str_c(name), "/") != 0;
}

static int find(const char *path, bool must_exist, struct asked_path *a)
{
	_cleanup_(str_fini) struct str dir = STR_INIT, name = STR_INIT;
	bool named = split(path, &dir, &name);
	struct stat st, up;

	if (str_error(&dir) < 0 || str_error(&name) < 0)
		return -ENOMEM;
	if (lstat(path, &st) < 0) {
		if (errno != ENOENT || must_exist)
			return -errno;
		st = (struct stat){.st_ino = 0};
	}
	if (stat(named ? str_c(&dir) : path, &up) < 0)
		return -errno;
	/* the top of a mount lies in another file system than its name */
	if (st.st_ino && up.st_dev != st.st_dev) {
		named = false;
		up = st;
	}
	a->inode = st.st_ino;
	a->mode = st.st_mode;
	a->dir = up.st_ino;
	a->dev = up.st_dev;
	if (named)
		dump_escape(name.s, name.len, &a->name);
	if (str_error(&a->name) < 0)
		return -ENOMEM;
	return open_control(a, named ? str_c(&dir) : S_ISDIR(up.st_mode) ? path : str_c(&dir));
}

int ask_open(const char *path, bool must_exist, struct asked_path *ret)
{
	int r;

	*ret = (struct asked_path){.control = -1};
	r = find(path, must_exist, ret);
	if (r)
		ask_close(ret);
	return r;
}

int ask_open_here(struct asked_path *ret)
{
	return ask_open(".", true, ret);
}

void ask_close(struct asked_path *a)
{
	if (a->control >= 0)
		(void)close(a->control);
	a->control = -1;
	str_fini(&a->name);
	str_fini(&a->root);
}

const char *ask_error(int r)
{
	if (r == -ENOTTY)
		return "not in a Stoke mount";
	if (r == -EACCES)
		return "only root and the user of the mount may ask it";
	return strerror(-r);
}

/* --- one request --- */

struct asking {
	struct maint *m;
	struct str in;
	void (*text)(void *arg, char *line);
	void *arg;
	struct ask_answer *answer;
	bool ended;
	int status;
};

static void take_line(struct asking *a, char *line)
{
	uint64_t files, bytes, chunks;
	int code;

	if (strncmp(line, "text ", 5) == 0) {
		if (a->text)
			a->text(a->arg, line + 5);
	} else if (sscanf(line, "progress %" SCNu64 " %" SCNu64, &files, &bytes) == 2) {
		__atomic_store_n(&a->m->progress.files, files, __ATOMIC_RELAXED);
		__atomic_store_n(&a->m->progress.bytes, bytes, __ATOMIC_RELAXED);
	} else if (sscanf(line, "done %" SCNu64 " %" SCNu64 " %" SCNu64, &files, &bytes, &chunks) ==
		   3) {
		*a->answer = (struct ask_answer){files, bytes, chunks};
		a->ended = true;
	} else if (sscanf(line, "failed %d", &code) == 1) {
		a->status = code > 0 ? -code : -EIO;
		a->ended = true;
	}
}

static int take_bytes(struct asking *a, const char *p, size_t n)
{
	while (n > 0) {
		const char *nl = memchr(p, '\n', n);
		size_t k = nl ? (size_t)(nl - p) : n;

		str_addn(&a->in, p, k);
		if (str_error(&a->in) < 0)
			return -ENOMEM;
		if (!nl)
			return 0;
		str_addn(&a->in, "", 1);
		take_line(a, a->in.s);
		str_reset(&a->in);
		p += k + 1;
		n -= k + 1;
	}
	return 0;
}

static int read_answer(struct asking *a, int control)
{
	_cleanup_(freep) char *buf = malloc(READ_MAX);
	int r = buf ? 0 : -ENOMEM;

	while (r == 0) {
		ssize_t n = read(control, buf, READ_MAX);

		if (n < 0 && errno == EINTR) {
			if (__atomic_load_n(&a->m->progress.cancel, __ATOMIC_RELAXED))
				return -EINTR;
			continue;
		}
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		r = take_bytes(a, buf, (size_t)n);
		if (__atomic_load_n(&a->m->progress.cancel, __ATOMIC_RELAXED))
			return -EINTR;
	}
	if (r == 0 && !a->ended)
		r = -EIO; /* the mount went away */
	return r ? r : a->status;
}

int ask_run(struct maint *m, int control, const char *request, void (*text)(void *arg, char *line),
	    void *arg, struct ask_answer *ret)
{
	struct asking a = {.m = m, .text = text, .arg = arg, .answer = ret};
	int r = ask_send(control, request, strlen(request));

	if (r == -EINVAL)
		r = -EOPNOTSUPP; /* an older mount */
	if (r == 0)
		r = read_answer(&a, control);
	str_fini(&a.in);
	return r;
}

uint64_t ask_threads(uint64_t n)
{
	return n ? MIN(n, UINT64_C(64)) : 1;
}
