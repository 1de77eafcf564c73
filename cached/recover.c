/* SPDX-License-Identifier: Apache-2.0 */
/* Index from disk. recover_disk runs before blocks of the volume are served from the disk, with
 * threads of its own: most of its time is waiting for directories. recover_lengths runs beside
 * them, in its caller's thread. */
#include "cached/recover.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "common/block/blockfile.h"
#include "common/clock.h"
#include "common/thread.h"

enum { RECOVER_THREADS = 8 };

struct recovery {
	struct disk *disk;
	struct index *ix; /* NULL: only lengths are looked at */
	const struct hash128 *volume;
	int blocks; /* the directory of directories */
	uint64_t lengths_until_us;
	void (*bad)(const struct block_key *k, void *arg);
	void *arg;
	/* of all threads */
	atomic_uint next, checked;
	atomic_int error;
	atomic_uint_fast64_t n, bytes, removed;
};

/* true when the name under directory xx is the one the block would be stored under */
static bool is_name(const struct recovery *rc, const char *xx, const char *name,
		    struct block_key *k)
{
	char want[BLOCK_CACHE_NAME_MAX];

	if (block_key_parse(name, rc->volume, k) < 0)
		return false;
	block_key_cache_name(k, want); /* "xx/name" */
	return !strncmp(want, xx, 2) && !strcmp(want + 3, name);
}

static bool has_length(int dir, const char *name, const struct block_key *k)
{
	struct stat st;

	return fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
	       (uint64_t)st.st_size == blockfile_len(k->size);
}

/* -EEXIST: another disk has the block, this copy is one too many */
static int add(struct recovery *rc, const struct block_key *k)
{
	unsigned disk;
	int r = index_add(rc->ix, k, rc->disk->number, EVICT_ASKED);

	if (r == -EEXIST && index_find(rc->ix, k, &disk) && disk == rc->disk->number)
		return 0; /* stored by somebody while we look */
	if (r < 0)
		return r == -EBUSY ? 0 : r;
	disk_used(rc->disk, disk_cost(k->size), true);
	atomic_fetch_add_explicit(&rc->n, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&rc->bytes, disk_cost(k->size), memory_order_relaxed);
	return 0;
}

static int recover_entry(struct recovery *rc, int dir, const char *xx, const char *name,
			 bool lengths)
{
	struct block_key k;
	bool good = is_name(rc, xx, name, &k);
	int r = -EBADMSG;

	if (!rc->ix) {
		errno = 0;
		if (good && !has_length(dir, name, &k) && errno != ENOENT) /* evicted meanwhile */
			rc->bad(&k, rc->arg);
		return 0;
	}
	if (good && (!lengths || has_length(dir, name, &k)))
		r = add(rc, &k);
	if (r != -EBADMSG && r != -EEXIST)
		return r;
	(void)unlinkat(dir, name, 0);
	atomic_fetch_add_explicit(&rc->removed, 1, memory_order_relaxed);
	return 0;
}

/* asked again for each file: behind a cold disk a length takes a millisecond */
static bool in_time(const struct recovery *rc)
{
	return clock_us() < rc->lengths_until_us;
}

static int recover_dir(struct recovery *rc, const char *xx)
{
	int fd = openat(rc->blocks, xx, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW), r = 0;
	struct dirent *e;
	DIR *s;

	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	s = fdopendir(fd);
	if (!s) {
		r = -errno;
		(void)close(fd);
		return r;
	}
	while (r == 0 && (errno = 0, e = readdir(s)))
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
			r = recover_entry(rc, fd, xx, e->d_name, in_time(rc));
	if (r == 0 && errno)
		r = -errno;
	(void)closedir(s);
	return r;
}

/* directories, one after the other, until there are none or somebody failed */
static void *recover_dirs(void *arg)
{
	struct recovery *rc = arg;
	char xx[3];
	unsigned i;
	int r = 0;

	while ((i = atomic_fetch_add(&rc->next, 1)) < RECOVER_DIRS && !atomic_load(&rc->error)) {
		unsigned least = atomic_load(&rc->checked);

		(void)snprintf(xx, sizeof(xx), "%02x", i);
		r = recover_dir(rc, xx);
		while (!in_time(rc) && i < least &&
		       !atomic_compare_exchange_weak(&rc->checked, &least, i))
			;
		if (r < 0)
			atomic_store(&rc->error, r);
	}
	return NULL;
}

static int open_blocks(struct recovery *rc)
{
	char path[DISK_PATH_MAX];

	disk_blocks_path(rc->volume, path);
	rc->blocks = openat(rc->disk->fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	return rc->blocks < 0 ? -errno : 0;
}

int recover_disk(struct disk *d, struct index *ix, const struct hash128 *volume,
		 uint64_t lengths_us, struct recover_stat *ret)
{
	struct recovery rc = {.disk = d,
			      .ix = ix,
			      .volume = volume,
			      .blocks = -1,
			      .lengths_until_us = clock_us() + lengths_us,
			      .checked = RECOVER_DIRS};
	pthread_t threads[RECOVER_THREADS - 1];
	unsigned n = 0;
	int r = disk_volume_prepare(d, volume);

	if (r == 0)
		r = open_blocks(&rc);
	if (r < 0)
		return r;
	while (n < RECOVER_THREADS - 1 &&
	       thread_start("recover", recover_dirs, &rc, &threads[n]) == 0)
		n++;
	(void)recover_dirs(&rc); /* fewer threads only take longer */
	while (n > 0)
		(void)pthread_join(threads[--n], NULL);
	closep(&rc.blocks);
	r = atomic_load(&rc.error);
	if (r < 0)
		return r;
	*ret = (struct recover_stat){.blocks = atomic_load(&rc.n),
				     .bytes = atomic_load(&rc.bytes),
				     .removed = atomic_load(&rc.removed),
				     .checked = atomic_load(&rc.checked)};
	return 0;
}

int recover_lengths(struct disk *d, const struct hash128 *volume, unsigned from,
		    void (*bad)(const struct block_key *k, void *arg), void *arg)
{
	struct recovery rc = {.disk = d,
			      .volume = volume,
			      .next = from,
			      .checked = RECOVER_DIRS,
			      .bad = bad,
			      .arg = arg};
	int r = open_blocks(&rc);

	if (r < 0)
		return r;
	(void)recover_dirs(&rc);
	closep(&rc.blocks);
	return atomic_load(&rc.error);
}
