/* SPDX-License-Identifier: Apache-2.0 */
/* A directory as object store: an object is a file below it. Requests run in a set of threads,
 * since every call here may block.
 *
 * A PUT is written aside as .NAME.tmp.RANDOM in the directory of the object, synced, then renamed:
 * readers see all of an object or nothing, and a PUT that was answered survives a power loss. Such
 * names are no objects, nor are those that JuiceFS leaves (.jfs.NAME.tmp.RANDOM). */
#include "common/object/object.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>

#include "common/clock.h"
#include "common/object/crypt.h"
#include "common/object/object_file_list.h"
#include "common/workq.h"

enum { THREADS = 16, MAX_QUEUED = 1 << 16, STEP = 1 << 20 };

struct object_file {
	struct object_store base;
	struct workq *threads;
	char root[]; /* absolute, ends in '/' */
};

struct file_job {
	struct workq_job job;
	struct object_file *f;
	struct object_req *req;
};

/* "a/../b" must not leave the root, "/a" and "a//b" would give one file two names */
static bool key_is_clean(const char *key)
{
	while (*key) {
		size_t n = strcspn(key, "/");

		if (n == 0 || (n <= 2 && strspn(key, ".") == n))
			return false;
		key += n;
		if (*key == '/')
			key++;
	}
	return true;
}

static int path_of(const struct object_file *f, const char *key, char ret[PATH_MAX])
{
	int n;

	if (!key_is_clean(key))
		return -EINVAL;
	n = snprintf(ret, PATH_MAX, "%s%s", f->root, key);
	return n < PATH_MAX ? 0 : -ENAMETOOLONG;
}

/* makes the directories of path behind the first keep bytes; mode as the umask allows */
static int make_parents(const char *path, size_t keep)
{
	char dir[PATH_MAX];

	for (const char *p = strchr(path + keep, '/'); p; p = strchr(p + 1, '/')) {
		size_t n = (size_t)(p - path);

		if (n == 0)
			continue;
		memcpy(dir, path, n);
		dir[n] = '\0';
		if (mkdir(dir, 0777) < 0 && errno != EEXIST)
			return -errno;
	}
	return 0;
}

static int open_object(const struct object_file *f, const char *key, int *ret_fd,
		       struct stat *ret_st)
{
	char path[PATH_MAX];
	_cleanup_(closep) int fd = -1;
	int r = path_of(f, key, path);

	if (r < 0)
		return r;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return -errno;
	if (fstat(fd, ret_st) < 0)
		return -errno;
	if (!S_ISREG(ret_st->st_mode))
		return -ENOENT;
	*ret_fd = TAKE_FD(fd);
	return 0;
}

static int do_get(const struct object_file *f, struct object_req *req)
{
	_cleanup_(closep) int fd = -1;
	struct stat st = {.st_size = 0};
	uint64_t size, want;
	int r = open_object(f, req->key, &fd, &st);

	if (r < 0)
		return r;
	size = (uint64_t)st.st_size;
	want = req->off < size ? size - req->off : 0;
	if (req->len)
		want = MIN(want, req->len);
	if (want > req->cap) {
		object_reason(req, "%llu bytes, %zu were expected", (unsigned long long)want,
			      req->cap);
		return -EMSGSIZE;
	}
	while (req->got < want) {
		ssize_t n =
			pread(fd, req->buf + req->got, MIN((size_t)(want - req->got), (size_t)STEP),
			      (off_t)(req->off + req->got));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break; /* cut while it was read: the caller sees fewer bytes */
		req->got += (size_t)n;
		if (req->progress && want == (req->len ? req->len : req->cap))
			req->progress(req, req->got);
	}
	return 0;
}

static int write_all(int fd, const unsigned char *p, size_t n)
{
	while (n) {
		ssize_t w = write(fd, p, n);

		if (w < 0 && errno == EINTR)
			continue;
		if (w < 0)
			return -errno;
		p += w;
		n -= (size_t)w;
	}
	return 0;
}

static int sync_parent(const char *path)
{
	char dir[PATH_MAX];
	const char *slash = strrchr(path, '/');
	_cleanup_(closep) int fd = -1;

	(void)snprintf(dir, sizeof(dir), "%.*s", (int)(slash - path), path);
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || (fsync(fd) < 0 && errno != EINVAL)) /* EINVAL: a file system without it */
		return -errno;
	return 0;
}

/* the temporary file is written and synced; it gets its name */
static int publish(const struct object_req *req, const char *tmp, const char *path)
{
	if (!req->if_absent)
		return rename(tmp, path) < 0 ? -errno : 0;
	if (link(tmp, path) < 0)
		return -errno;
	return unlink(tmp) < 0 ? -errno : 0;
}

static int do_put(const struct object_file *f, const struct object_req *req)
{
	char path[PATH_MAX], tmp[PATH_MAX];
	_cleanup_(closep) int fd = -1;
	const char *name;
	uint64_t tag;
	int n, r = path_of(f, req->key, path);

	if (r < 0)
		return r;
	name = strrchr(path, '/') + 1;
	if (!*name)
		return -EINVAL;
	crypt_random(&tag, sizeof(tag));
	n = snprintf(tmp, sizeof(tmp), "%.*s.%s.tmp.%016llx", (int)(name - path), path, name,
		     (unsigned long long)tag);
	if (n >= PATH_MAX)
		return -ENAMETOOLONG;
	fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (fd < 0 && errno == ENOENT) {
		r = make_parents(tmp, strlen(f->root));
		if (r < 0)
			return r;
		fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	}
	if (fd < 0)
		return -errno;
	r = write_all(fd, req->buf, req->cap);
	if (r == 0 && fdatasync(fd) < 0)
		r = -errno;
	if (r == 0)
		r = publish(req, tmp, path);
	if (r < 0)
		(void)unlink(tmp);
	return r < 0 ? r : sync_parent(path);
}

static int do_head(const struct object_file *f, struct object_req *req)
{
	_cleanup_(closep) int fd = -1;
	struct stat st = {.st_size = 0};
	int r = open_object(f, req->key, &fd, &st);

	if (r == 0)
		req->got = (size_t)st.st_size;
	return r;
}

static int delete_key(const struct object_file *f, const char *key)
{
	char path[PATH_MAX];
	int r = path_of(f, key, path);

	if (r < 0)
		return r;
	if (key[strlen(key) - 1] == '/')
		r = rmdir(path);
	else
		r = unlink(path);
	return r < 0 && errno != ENOENT ? -errno : 0;
}

static int do_delete_many(const struct object_file *f, struct object_req *req)
{
	int r, ret = 0;

	for (size_t i = 0; i < req->n_keys; i++) {
		r = delete_key(f, req->keys[i]);
		if (r < 0 && ret == 0) {
			object_reason(req, "%.80s: %s", req->keys[i], strerror(-r));
			ret = r;
		}
	}
	return ret;
}

static int do_create(const struct object_file *f)
{
	struct stat st;
	int r;

	if (stat(f->root, &st) == 0)
		return S_ISDIR(st.st_mode) ? -EEXIST : -ENOTDIR;
	r = make_parents(f->root, 0);
	return r;
}

static int run(const struct object_file *f, struct object_req *req)
{
	switch (req->op) {
	case OBJECT_GET:
		return do_get(f, req);
	case OBJECT_PUT:
		return do_put(f, req);
	case OBJECT_HEAD:
		return do_head(f, req);
	case OBJECT_DELETE:
		return delete_key(f, req->key);
	case OBJECT_DELETE_MANY:
		return do_delete_many(f, req);
	case OBJECT_LIST:
		return object_file_list(f->root, req);
	case OBJECT_CREATE_BUCKET:
		return do_create(f);
	case OBJECT_RESTORE:
		return -EOPNOTSUPP; /* a directory archives nothing */
	}
	return -EINVAL;
}

/* errno of the file system -> the errors of object.h; the reason keeps the original */
static int as_object_error(const struct object_file *f, struct object_req *req, int r)
{
	switch (r) {
	case 0:
	case -EMSGSIZE:
	case -ENOMEM:
	case -EEXIST:
	case -EINVAL:
		return r;
	case -ENOENT:
		return access(f->root, F_OK) < 0 ? -ENODATA : -ENOENT;
	case -ENOTDIR:
	case -EISDIR:
		return -ENOENT;
	case -EPERM:
	case -EACCES:
	case -EROFS:
		object_reason(req, "%s", strerror(-r));
		return -EACCES;
	default:
		if (!req->reason[0])
			object_reason(req, "%s", strerror(-r));
		return -EIO;
	}
}

static void job_run(struct workq_job *j)
{
	struct file_job *job = container_of(j, struct file_job, job);
	struct object_file *f = job->f;
	struct object_req *req = job->req;
	int r;

	free(job);
	if (clock_left(req->deadline_us) == 0)
		r = -ETIMEDOUT;
	else
		r = as_object_error(f, req, run(f, req));
	object_done(&f->base, req, r);
}

static void file_start(struct object_store *s, struct object_req *req)
{
	struct object_file *f = container_of(s, struct object_file, base);
	struct file_job *job = calloc(1, sizeof(*job));

	if (!job) {
		object_done(s, req, -ENOMEM);
		return;
	}
	*job = (struct file_job){.job.fn = job_run, .f = f, .req = req};
	workq_push_always(f->threads, &job->job);
}

static void file_free(struct object_store *s)
{
	struct object_file *f = container_of(s, struct object_file, base);

	workq_free(f->threads);
	free(f);
}

static const struct object_ops file_ops = {"file", file_start, file_free, NULL};

int object_file_new(const struct object_conf *conf, struct object_store **ret, struct str *err)
{
	size_t n = strlen(conf->bucket);
	_cleanup_(freep) struct object_file *f = NULL;
	int r;

	if (n == 0 || conf->bucket[0] != '/' || conf->bucket[n - 1] != '/' || n > PATH_MAX / 2) {
		str_addf(err,
			 "bucket \"%s\": storage file wants an absolute directory that ends in /",
			 conf->bucket);
		return -EINVAL;
	}
	f = calloc(1, sizeof(*f) + n + 1);
	if (!f)
		return -ENOMEM;
	f->base.ops = &file_ops;
	memcpy(f->root, conf->bucket, n + 1);
	r = workq_new("object", conf->max_conns ? MIN(conf->max_conns, (unsigned)THREADS) : THREADS,
		      MAX_QUEUED, &f->threads);
	if (r < 0)
		return r;
	*ret = &TAKE_PTR(f)->base;
	return 0;
}
