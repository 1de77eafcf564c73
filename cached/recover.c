/* SPDX-License-Identifier: Apache-2.0 */
/* Index from disk. recover_disk runs in the thread that starts the daemon (or the one that moves to
 * another volume), before blocks of the volume are served; recover_lengths in the store's janitor,
 * beside them. */
#include "cached/recover.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "common/block/blockfile.h"
#include "common/clock.h"

struct recovery {
	struct disk *disk;
	struct index *ix; /* NULL: only lengths are looked at */
	const struct hash128 *volume;
	bool lengths;
	struct recover_stat stat;
	void (*bad)(const struct block_key *k, void *arg);
	void *arg;
};

/* true when the name under directory xx is the one the block would be stored under */
static bool is_name(const struct recovery *rc, const char *xx, const char *name,
		    struct block_key *k)
{
	char path[BLOCK_CACHE_NAME_MAX], want[BLOCK_CACHE_NAME_MAX];
	int n = snprintf(path, sizeof(path), "%s/%s", xx, name);

	if (n >= (int)sizeof(path) || block_key_parse(name, rc->volume, k) < 0)
		return false;
	block_key_cache_name(k, want);
	return !strcmp(path, want);
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
	int r = index_begin(rc->ix, k);

	if (r == -EEXIST && index_find(rc->ix, k, &disk) && disk == rc->disk->number)
		return 0; /* stored by somebody while we look */
	if (r < 0)
		return r == -EBUSY ? 0 : r;
	r = index_commit(rc->ix, k, rc->disk->number, EVICT_ASKED);
	if (r < 0)
		return r;
	disk_used(rc->disk, disk_cost(k->size), true);
	rc->stat.blocks++;
	rc->stat.bytes += disk_cost(k->size);
	return 0;
}

static int recover_entry(struct recovery *rc, int dir, const char *xx, const char *name)
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
	if (good && (!rc->lengths || has_length(dir, name, &k)))
		r = add(rc, &k);
	if (r != -EBADMSG && r != -EEXIST)
		return r;
	(void)unlinkat(dir, name, 0);
	rc->stat.removed++;
	return 0;
}

static int recover_dir(struct recovery *rc, int blocks, const char *xx)
{
	int fd = openat(blocks, xx, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW), r = 0;
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
			r = recover_entry(rc, fd, xx, e->d_name);
	if (r == 0 && errno)
		r = -errno;
	(void)closedir(s);
	return r;
}

static int recover_from(struct recovery *rc, unsigned from, uint64_t lengths_us)
{
	_cleanup_(closep) int blocks = -1;
	uint64_t end = clock_us() + lengths_us;
	char path[DISK_PATH_MAX], xx[3];
	int r = 0;

	disk_blocks_path(rc->volume, path);
	blocks = openat(rc->disk->fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (blocks < 0)
		return -errno;
	for (unsigned i = from; i < RECOVER_DIRS && r == 0; i++) {
		(void)snprintf(xx, sizeof(xx), "%02x", i);
		rc->lengths = clock_us() < end;
		r = recover_dir(rc, blocks, xx);
		if (rc->lengths)
			rc->stat.checked = i + 1;
	}
	return r;
}

int recover_disk(struct disk *d, struct index *ix, const struct hash128 *volume,
		 uint64_t lengths_us, struct recover_stat *ret)
{
	struct recovery rc = {.disk = d, .ix = ix, .volume = volume};
	int r = disk_volume_prepare(d, volume);

	if (r == 0)
		r = recover_from(&rc, 0, lengths_us);
	if (r < 0)
		return r;
	*ret = rc.stat;
	return 0;
}

int recover_lengths(struct disk *d, const struct hash128 *volume, unsigned from,
		    void (*bad)(const struct block_key *k, void *arg), void *arg)
{
	struct recovery rc = {.disk = d, .volume = volume, .bad = bad, .arg = arg};

	return recover_from(&rc, from, 0);
}
