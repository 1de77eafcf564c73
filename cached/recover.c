/* SPDX-License-Identifier: Apache-2.0 */
/* Index from disk. Runs in the thread that starts the daemon (or the one that moves to another
 * volume), before blocks of the volume are served. */
#include "cached/recover.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "common/block/blockfile.h"

struct recovery {
	struct disk *disk;
	struct index *ix;
	const struct hash128 *volume;
	struct recover_stat stat;
};

/* true when the name under directory xx is the one the block would be stored under, and the file
 * has its length */
static bool is_block(const struct recovery *rc, int dir, const char *xx, const char *name,
		     struct block_key *k)
{
	char path[BLOCK_CACHE_NAME_MAX], want[BLOCK_CACHE_NAME_MAX];
	struct stat st;
	int n = snprintf(path, sizeof(path), "%s/%s", xx, name);

	if (n >= (int)sizeof(path) || block_key_parse(name, rc->volume, k) < 0)
		return false;
	block_key_cache_name(k, want);
	if (strcmp(path, want) != 0)
		return false;
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
	r = index_commit(rc->ix, k, rc->disk->number, false);
	if (r < 0)
		return r;
	disk_used(rc->disk, disk_cost(k->size), true);
	rc->stat.blocks++;
	rc->stat.bytes += disk_cost(k->size);
	return 0;
}

static int recover_dir(struct recovery *rc, int blocks, const char *xx)
{
	int fd = openat(blocks, xx, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW), r = 0;
	struct block_key k;
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
	while (r == 0 && (errno = 0, e = readdir(s))) {
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		r = is_block(rc, fd, xx, e->d_name, &k) ? add(rc, &k) : -EBADMSG;
		if (r == -EBADMSG || r == -EEXIST) {
			(void)unlinkat(fd, e->d_name, 0);
			rc->stat.removed++;
			r = 0;
		}
	}
	if (r == 0 && errno)
		r = -errno;
	(void)closedir(s);
	return r;
}

int recover_disk(struct disk *d, struct index *ix, const struct hash128 *volume,
		 struct recover_stat *ret)
{
	struct recovery rc = {.disk = d, .ix = ix, .volume = volume};
	_cleanup_(closep) int blocks = -1;
	char path[DISK_PATH_MAX], xx[3];
	int r = disk_volume_prepare(d, volume);

	if (r < 0)
		return r;
	disk_blocks_path(volume, path);
	blocks = openat(d->fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (blocks < 0)
		return -errno;
	for (unsigned i = 0; i < 256 && r == 0; i++) {
		(void)snprintf(xx, sizeof(xx), "%02x", i);
		r = recover_dir(&rc, blocks, xx);
	}
	if (r < 0)
		return r;
	*ret = rc.stat;
	return 0;
}
