/* SPDX-License-Identifier: Apache-2.0 */
/* One cache directory. Called from the disk's own threads and its keeper; counters are atomics
 * (relaxed: they only steer), what was removed but not yet freed sits under the leaf lock. */
#include "cached/disk.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "common/block/blockfile.h"
#include "common/clock.h"

enum {
	OWED_US = 5000000,
	FS_BLOCK = 4096,
	TREE_DEPTH = 4,
	REFUSED_MAX = 64 << 20,
	PROBE_LEN = 4096,
	PROBE_SLOW_US = 250000
};

static void hex_of(const struct hash128 *volume, char ret[33])
{
	for (unsigned i = 0; i < 16; i++)
		(void)snprintf(ret + 2 * i, 3, "%02x", volume->b[i]);
}

static bool is_hex(const char *s, size_t n)
{
	return strlen(s) == n && strspn(s, "0123456789abcdef") == n;
}

static bool is_uuid(const char *s)
{
	return strlen(s) == 36 && strspn(s, "0123456789abcdefABCDEF-") == 36 && s[8] == '-' &&
	       s[13] == '-';
}

static bool is_dot(const char *s)
{
	return !strcmp(s, ".") || !strcmp(s, "..");
}

/* a stream over a directory below fd, or NULL with errno */
static DIR *dir_at(int fd, const char *path)
{
	int sub = openat(fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	DIR *d;

	if (sub < 0)
		return NULL;
	d = fdopendir(sub);
	if (!d)
		(void)close(sub);
	return d;
}

/* --- opening --- */

/* A directory with other people's directories in it is taken for a typing error: blocks fill what
 * they are given. */
static int check_ours(int fd, const char *dir, const char *uuid, struct str *err)
{
	DIR *s = dir_at(fd, ".");
	struct stat st;
	struct dirent *e;
	int r = 0;

	if (!s)
		return -errno;
	while (!r && (e = readdir(s))) {
		if (is_dot(e->d_name) || is_uuid(e->d_name) || !strcmp(e->d_name, "lost+found"))
			continue;
		if (fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode)) {
			str_addf(err,
				 "%s is not a cache directory (it holds %s): name an empty one",
				 dir, e->d_name);
			r = -EEXIST;
		}
	}
	(void)closedir(s);
	if (r)
		return r;
	s = dir_at(fd, uuid);
	if (!s)
		return errno == ENOENT ? 0 : -errno;
	while (!r && (e = readdir(s))) {
		if (is_dot(e->d_name) || !strcmp(e->d_name, "lock") ||
		    !strncmp(e->d_name, "node", 4) || !strcmp(e->d_name, "probe") ||
		    is_hex(e->d_name, 32))
			continue;
		str_addf(err,
			 "%s/%s was made by another program (it holds %s): name another cache "
			 "directory",
			 dir, uuid, e->d_name);
		r = -EEXIST;
	}
	(void)closedir(s);
	return r;
}

static int make_dirs(const char *dir, struct str *err)
{
	char *p = strdup(dir);
	int r = 0;

	if (!p)
		return -ENOMEM;
	for (char *s = p + 1; !r; s++) {
		char c = *s;

		if (c && c != '/')
			continue;
		*s = '\0';
		if (mkdir(p, 0755) < 0 && errno != EEXIST) {
			r = -errno;
			str_addf(err, "cannot make %s: %s", p, strerror(-r));
		}
		*s = c;
		if (!c)
			break;
	}
	free(p);
	return r;
}

static int take_lock(struct disk *d, int dir, struct str *err)
{
	_cleanup_(closep) int fd =
		openat(dir, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

	if (fd < 0)
		return -errno;
	if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		if (errno != EWOULDBLOCK)
			return -errno;
		str_addf(err, "another stoke-cached uses the cache directory %s for this volume",
			 d->dir);
		return -EBUSY;
	}
	return TAKE_FD(fd);
}

/* the lock file of what we have open is the one in dir */
static bool is_locked(struct disk *d, int dir)
{
	int lock_fd = atomic_load_explicit(&d->lock_fd, memory_order_relaxed);
	struct stat mine, theirs;

	return lock_fd >= 0 && fstat(lock_fd, &mine) == 0 &&
	       fstatat(dir, "lock", &theirs, AT_SYMLINK_NOFOLLOW) == 0 &&
	       mine.st_dev == theirs.st_dev && mine.st_ino == theirs.st_ino;
}

static int open_top(struct disk *d, struct str *err)
{
	_cleanup_(closep) int top = -1;
	int r = make_dirs(d->dir, err), fd;

	if (r < 0)
		return r;
	top = open(d->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (top < 0)
		return -errno;
	r = check_ours(top, d->dir, d->uuid, err);
	if (r < 0)
		return r;
	if (mkdirat(top, d->uuid, 0700) < 0 && errno != EEXIST)
		return -errno;
	fd = openat(top, d->uuid, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	return fd < 0 ? -errno : fd;
}

static int read_id(int dir, char ret[DISK_NODE_ID + 1]);

int disk_attach(struct disk *d, struct str *err)
{
	_cleanup_(closep) int fd = open_top(d, err);
	int lock_fd, old, r;

	if (fd < 0)
		return fd;
	if (is_locked(d, fd))
		return 0;
	lock_fd = take_lock(d, fd, err);
	if (lock_fd < 0)
		return lock_fd;
	d->node[0] = '\0';
	r = read_id(fd, d->node);
	if (r < 0 && r != -ENOENT) {
		(void)close(lock_fd);
		return r;
	}
	old = atomic_exchange_explicit(&d->lock_fd, lock_fd, memory_order_relaxed);
	closep(&old);
	if (d->fd < 0)
		d->fd = TAKE_FD(fd);
	else if (dup3(fd, d->fd, O_CLOEXEC) < 0) /* who uses the number finds the new directory */
		return -errno;
	return 0;
}

int disk_there(struct disk *d)
{
	int fd = openat(d->fd, "lock", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

	if (fd < 0)
		return errno == ENOENT || errno == ENOTCONN || errno == ESTALE ? -ENODEV : -errno;
	(void)close(fd);
	return 0;
}

/* the read shall come from the disk, not from memory */
static int probe_file(int fd, uint64_t *ret_us)
{
	char in[PROBE_LEN], out[PROBE_LEN];
	uint64_t began;

	memset(out, 'p', sizeof(out));
	if (write(fd, out, sizeof(out)) != (ssize_t)sizeof(out) || fdatasync(fd) < 0)
		return errno ? -errno : -EIO;
	(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	began = clock_us();
	if (pread(fd, in, sizeof(in), 0) != (ssize_t)sizeof(in))
		return errno ? -errno : -EIO;
	*ret_us = clock_us() - began;
	return memcmp(in, out, sizeof(in)) != 0 ? -EIO : 0;
}

int disk_probe(struct disk *d)
{
	int fd, r = disk_there(d);
	uint64_t us = 0;

	if (r < 0)
		return r;
	fd = openat(d->fd, "probe", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return -errno;
	errno = 0;
	r = probe_file(fd, &us);
	(void)close(fd);
	if (unlinkat(d->fd, "probe", 0) < 0 && r == 0)
		r = -errno;
	if (r == -ENOSPC || r == -EDQUOT)
		r = 0; /* full is not sick */
	return r == 0 && us > PROBE_SLOW_US ? -EAGAIN : r;
}

static int read_id(int dir, char ret[DISK_NODE_ID + 1])
{
	_cleanup_(closep) int fd = openat(dir, "node", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	char id[DISK_NODE_ID + 1] = "";
	ssize_t n;

	if (fd < 0)
		return -errno;
	n = read(fd, id, DISK_NODE_ID);
	if (n < 0)
		return -errno;
	if (n != DISK_NODE_ID || !is_uuid(id))
		return -ENOENT; /* cut short by a crash: made anew */
	memcpy(ret, id, sizeof(id));
	return 0;
}

int disk_keep_node(struct disk *d)
{
	ssize_t n;
	int r, fd;

	if (!d->wanted[0] || !strcmp(d->node, d->wanted))
		return 0;
	fd = openat(d->fd, "node.new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return -errno;
	n = write(fd, d->wanted, DISK_NODE_ID);
	r = n == DISK_NODE_ID && fsync(fd) == 0 ? 0 : n < 0 ? -errno : -EIO;
	(void)close(fd);
	if (r == 0 && renameat(d->fd, "node.new", d->fd, "node") < 0)
		r = -errno;
	if (r == 0)
		memcpy(d->node, d->wanted, sizeof(d->node));
	return r;
}

/* --- directories of volumes --- */

/* everything below name, then name itself; what cannot be removed stays */
static int remove_tree(int fd, const char *name, int depth)
{
	DIR *s = dir_at(fd, name);
	struct dirent *e;
	int r = 0;

	if (!s)
		return unlinkat(fd, name, 0) < 0 ? -errno : 0;
	while ((e = readdir(s))) {
		if (is_dot(e->d_name))
			continue;
		if (unlinkat(dirfd(s), e->d_name, 0) < 0 && errno != ENOENT)
			r = depth > 0 ? remove_tree(dirfd(s), e->d_name, depth - 1) : -ELOOP;
	}
	(void)closedir(s);
	if (unlinkat(fd, name, AT_REMOVEDIR) < 0 && r == 0)
		r = -errno;
	return r;
}

int disk_volume_prepare(struct disk *d, const struct hash128 *volume)
{
	char hex[33], path[DISK_PATH_MAX];
	int r = 0;

	hex_of(volume, hex);
	if (mkdirat(d->fd, hex, 0700) < 0 && errno != EEXIST)
		return -errno;
	(void)snprintf(path, sizeof(path), "%s/tmp", hex);
	(void)remove_tree(d->fd, path, 1);
	if (mkdirat(d->fd, path, 0700) < 0 && errno != EEXIST)
		return -errno;
	disk_blocks_path(volume, path);
	if (mkdirat(d->fd, path, 0700) < 0 && errno != EEXIST)
		return -errno;
	for (unsigned i = 0; i < 256 && r == 0; i++) {
		(void)snprintf(path, sizeof(path), "%s/blocks/%02x", hex, i);
		if (mkdirat(d->fd, path, 0700) < 0 && errno != EEXIST)
			r = -errno;
	}
	/* with few inodes some of these may be missing; a write that finds its directory missing
	 * makes it */
	return r == -ENOSPC ? 0 : r;
}

int disk_remove_others(struct disk *d, struct hash128 (*current)(void *arg), void *arg)
{
	DIR *s = dir_at(d->fd, ".");
	struct dirent *e;
	char hex[33];
	int n = 0;

	if (!s)
		return -errno;
	while ((e = readdir(s))) {
		struct hash128 keep = current(arg);

		hex_of(&keep, hex);
		if (is_hex(e->d_name, 32) && strcmp(e->d_name, hex) != 0)
			n += remove_tree(d->fd, e->d_name, TREE_DEPTH) == 0;
	}
	(void)closedir(s);
	return n;
}

void disk_blocks_path(const struct hash128 *volume, char ret[DISK_PATH_MAX])
{
	char hex[33];

	hex_of(volume, hex);
	(void)snprintf(ret, DISK_PATH_MAX, "%s/blocks", hex);
}

/* --- blocks --- */

static void block_path(const struct block_key *k, char ret[DISK_PATH_MAX])
{
	char dir[DISK_PATH_MAX], name[BLOCK_CACHE_NAME_MAX];
	int n;

	disk_blocks_path(&k->volume, dir);
	block_key_cache_name(k, name);
	n = snprintf(ret, DISK_PATH_MAX, "%s/%s", dir, name);
	assert(n < DISK_PATH_MAX);
}

uint64_t disk_cost(uint32_t size)
{
	return ROUND_UP(blockfile_len(size), (uint64_t)FS_BLOCK);
}

void disk_used(struct disk *d, uint64_t bytes, bool add)
{
	uint_fast64_t have = atomic_load_explicit(&d->used, memory_order_relaxed), want;

	/* never below zero: a move to another volume starts the count again while removals of the
	 * old one end */
	do {
		want = add ? have + bytes : have - MIN((uint_fast64_t)bytes, have);
	} while (!atomic_compare_exchange_weak_explicit(&d->used, &have, want, memory_order_relaxed,
							memory_order_relaxed));
	have = atomic_load_explicit(&d->blocks, memory_order_relaxed);
	do {
		want = add ? have + 1 : have - (have > 0);
	} while (!atomic_compare_exchange_weak_explicit(
		&d->blocks, &have, want, memory_order_relaxed, memory_order_relaxed));
}

int disk_open_block(struct disk *d, const struct block_key *k, int *ret_fd)
{
	_cleanup_(closep) int fd = -1;
	char path[DISK_PATH_MAX];
	struct stat st;

	block_path(k, path);
	fd = openat(d->fd, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != blockfile_len(k->size))
		return -EBADMSG;
	*ret_fd = TAKE_FD(fd);
	return 0;
}

/* a missing directory (few inodes at start, or somebody's rm -r) is made once more */
static int publish(struct disk *d, const char *tmp, const char *path)
{
	char dir[DISK_PATH_MAX];
	char *slash;

	if (renameat(d->fd, tmp, d->fd, path) == 0)
		return 0;
	if (errno != ENOENT)
		return -errno;
	(void)snprintf(dir, sizeof(dir), "%s", path);
	slash = strrchr(dir, '/');
	*slash = '\0';
	if (mkdirat(d->fd, dir, 0700) < 0 && errno != EEXIST)
		return -errno;
	return renameat(d->fd, tmp, d->fd, path) < 0 ? -errno : 0;
}

int disk_write_block(struct disk *d, const struct block_key *k, const void *data,
		     const uint8_t *sums)
{
	char hex[33], tmp[DISK_PATH_MAX], path[DISK_PATH_MAX];
	int fd, r;

	hex_of(&k->volume, hex);
	(void)snprintf(tmp, sizeof(tmp), "%s/tmp/%u", hex,
		       atomic_fetch_add_explicit(&d->tmp, 1, memory_order_relaxed));
	block_path(k, path);
	fd = openat(d->fd, tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0 && errno == ENOENT && disk_volume_prepare(d, &k->volume) == 0)
		fd = openat(d->fd, tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW,
			    0600);
	if (fd < 0)
		return -errno;
	r = blockfile_write(fd, k, data, sums);
	if (close(fd) < 0 && r == 0)
		r = -errno;
	if (r == 0)
		r = publish(d, tmp, path);
	if (r < 0)
		(void)unlinkat(d->fd, tmp, 0);
	return r;
}

int disk_remove_block(struct disk *d, const struct block_key *k)
{
	char path[DISK_PATH_MAX];

	block_path(k, path);
	return unlinkat(d->fd, path, 0) < 0 && errno != ENOENT ? -errno : 0;
}

/* --- space --- */

struct space {
	uint64_t bytes, bytes_wanted, files, files_wanted; /* free now; to be left free */
};

static int space_of(struct disk *d, struct space *ret)
{
	struct statvfs v;

	if (fstatvfs(d->fd, &v) < 0)
		return -errno;
	ret->bytes = (uint64_t)v.f_bavail * v.f_frsize;
	ret->bytes_wanted = (uint64_t)((double)v.f_blocks * (double)v.f_frsize * d->free_ratio);
	ret->files = v.f_files ? v.f_favail : UINT64_MAX / 2; /* btrfs has no number of inodes */
	ret->files_wanted = (uint64_t)((double)v.f_files * d->free_ratio);
	return 0;
}

static uint64_t missing(uint64_t wanted, uint64_t have)
{
	return wanted > have ? wanted - have : 0;
}

int disk_deficit(struct disk *d, uint64_t bytes, struct disk_deficit *ret)
{
	uint64_t used = atomic_load_explicit(&d->used, memory_order_relaxed);
	uint64_t writing = atomic_load_explicit(&d->writing, memory_order_relaxed);
	uint64_t owed, owed_files, refused;
	struct space s = {0};
	int r = space_of(d, &s);

	if (r < 0)
		return r;
	mtx_lock(&d->lock);
	if (clock_us() - d->owed_since_us > OWED_US)
		d->owed = d->owed_inodes = 0;
	owed = d->owed + atomic_load_explicit(&d->held, memory_order_relaxed);
	refused = bytes ? d->refused : 0;
	owed_files = d->owed_inodes;
	mtx_unlock(&d->lock);
	ret->bytes = MAX(missing(used + writing + bytes, d->capacity),
			 missing(s.bytes_wanted + writing + bytes + refused, s.bytes + owed));
	ret->files = missing(s.files_wanted + 1, s.files + owed_files);
	return 0;
}

void disk_owe(struct disk *d, uint64_t bytes, uint64_t files)
{
	mtx_lock(&d->lock);
	d->owed += bytes;
	d->owed_inodes += files;
	d->owed_since_us = clock_us();
	mtx_unlock(&d->lock);
}

void disk_refused(struct disk *d, uint64_t bytes)
{
	uint64_t most = MIN(d->capacity / 8, (uint64_t)REFUSED_MAX);

	mtx_lock(&d->lock);
	d->refused = bytes ? MIN(d->refused + bytes, most) : 0;
	mtx_unlock(&d->lock);
}

bool disk_has_room(struct disk *d, uint64_t bytes)
{
	struct space s = {0};

	if (space_of(d, &s) < 0)
		return false;
	bytes += atomic_load_explicit(&d->writing, memory_order_relaxed);
	return s.bytes >= s.bytes_wanted + bytes && s.files > s.files_wanted;
}
