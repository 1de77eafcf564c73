/* SPDX-License-Identifier: Apache-2.0 */
/* zlib reads and writes gzip and plain bytes alike. One thread. */
#include "client/maint/dumpfile.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <zlib.h>

#include "common/str.h"

enum { BUFFER = 256 << 10, WRITE_MAX = 1 << 20 };

struct dumpfile {
	gzFile z;
	int sync_fd;	  /* of what is written into a regular file, else -1 */
	char *path, *tmp; /* NULL: nothing to rename */
	int err;
	unsigned char head[12]; /* read ahead to see what it is */
	size_t head_len, head_at;
};

static void dumpfile_free(struct dumpfile *f)
{
	if (f->z)
		(void)gzclose(f->z);
	if (f->sync_fd >= 0)
		(void)close(f->sync_fd);
	free(f->path);
	free(f->tmp);
	free(f);
}

static bool ends_with(const char *s, const char *end)
{
	size_t n = strlen(s), m = strlen(end);

	return n >= m && strcmp(s + n - m, end) == 0;
}

/* takes over fd, also on failure */
static int attach(struct dumpfile *f, int fd, const char *mode)
{
	if (fd < 0)
		return -errno;
	f->z = gzdopen(fd, mode);
	if (!f->z) {
		(void)close(fd);
		return -ENOMEM;
	}
	(void)gzbuffer(f->z, BUFFER);
	return 0;
}

static int create(struct dumpfile *f, const char *path)
{
	_cleanup_(str_fini) struct str tmp = STR_INIT;
	struct stat st;
	int fd, r;

	/* a pipe or a device is written as it is */
	if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
		return attach(f, open(path, O_WRONLY | O_CLOEXEC),
			      ends_with(path, ".gz") ? "wb6" : "wT");
	str_addf(&tmp, "%s.tmp.%d", path, (int)getpid());
	f->path = strdup(path);
	f->tmp = str_take(&tmp);
	if (!f->path || !f->tmp)
		return -ENOMEM;
	fd = open(f->tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0) {
		r = -errno;
		free(f->tmp);
		f->tmp = NULL;
		return r;
	}
	f->sync_fd = dup(fd);
	r = attach(f, fd, ends_with(path, ".gz") ? "wb6" : "wT");
	if (r == 0 && f->sync_fd < 0)
		r = -errno;
	if (r)
		(void)unlink(f->tmp);
	return r;
}

int dumpfile_create(const char *path, struct dumpfile **ret)
{
	struct dumpfile *f = calloc(1, sizeof(*f));
	int r;

	if (!f)
		return -ENOMEM;
	f->sync_fd = -1;
	r = path ? create(f, path) : attach(f, dup(STDOUT_FILENO), "wT");
	if (r) {
		dumpfile_free(f);
		return r;
	}
	*ret = f;
	return 0;
}

/* A zstd frame; or the binary format: the number of a segment's kind (1: the setting) and its
 * length, both big-endian */
static bool foreign(const unsigned char *p, size_t n)
{
	static const unsigned char zstd[] = {0x28, 0xb5, 0x2f, 0xfd};
	static const unsigned char segment[] = {0, 0, 0, 1, 0, 0, 0, 0};

	return (n >= sizeof(zstd) && memcmp(p, zstd, sizeof(zstd)) == 0) ||
	       (n >= sizeof(segment) && memcmp(p, segment, sizeof(segment)) == 0);
}

int dumpfile_open(const char *path, struct dumpfile **ret)
{
	struct dumpfile *f = calloc(1, sizeof(*f));
	int r, n;

	if (!f)
		return -ENOMEM;
	f->sync_fd = -1;
	r = attach(f, path ? open(path, O_RDONLY | O_CLOEXEC) : dup(STDIN_FILENO), "rb");
	if (r == 0) {
		n = gzread(f->z, f->head, sizeof(f->head));
		f->head_len = n > 0 ? (size_t)n : 0;
		r = n < 0 ? -EIO : foreign(f->head, f->head_len) ? -EOPNOTSUPP : 0;
	}
	if (r) {
		dumpfile_free(f);
		return r;
	}
	*ret = f;
	return 0;
}

int dumpfile_write(struct dumpfile *f, const void *p, size_t n)
{
	const char *at = p;

	while (n > 0 && f->err == 0) {
		unsigned step = (unsigned)MIN(n, (size_t)WRITE_MAX);

		errno = 0;
		if (gzwrite(f->z, at, step) != (int)step)
			f->err = errno ? -errno : -EIO;
		at += step;
		n -= step;
	}
	return f->err;
}

ssize_t dumpfile_read(struct dumpfile *f, void *p, size_t cap)
{
	size_t n = MIN(cap, f->head_len - f->head_at);
	int got, code;

	if (n > 0) {
		memcpy(p, f->head + f->head_at, n);
		f->head_at += n;
		return (ssize_t)n;
	}
	got = gzread(f->z, p, (unsigned)MIN(cap, (size_t)WRITE_MAX));
	/* a gzip file that was cut short ends without an error of its own */
	if (got < 0 || (got == 0 && (gzerror(f->z, &code), code) == Z_BUF_ERROR))
		return -EIO;
	return got;
}

int dumpfile_close(struct dumpfile *f, bool keep)
{
	int r = f->err, z;

	errno = 0;
	z = gzclose(f->z);
	f->z = NULL;
	if (r == 0 && z != Z_OK && keep)
		r = errno ? -errno : -EIO;
	if (f->tmp && r == 0 && keep) {
		if (fsync(f->sync_fd) < 0 || rename(f->tmp, f->path) < 0)
			r = -errno;
	}
	if (f->tmp && (r || !keep))
		(void)unlink(f->tmp);
	dumpfile_free(f);
	return r;
}
