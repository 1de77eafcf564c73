/* SPDX-License-Identifier: Apache-2.0 */
/* One cache directory: its layout, lock, space, and the threads that may wait for it.
 *
 *	{cache-dir}/{UUID}/
 *		lock				held (flock) by the daemon that uses it
 *		node				the member id: random, made once
 *		{volume id}/
 *			blocks/{xx}/{slice}_{index}_{size}
 *						a block: common/block/blockfile.h
 *			tmp/{number}		being written; left-overs are removed at start
 *
 * A file appears under its name only complete (rename), but without fsync: after a power loss it
 * may be short or zeroed, which its length or its checksums show. Calls block on the disk unless
 * said otherwise. */
#ifndef STOKE_CACHED_DISK_H
#define STOKE_CACHED_DISK_H

#include <stdatomic.h>

#include "common/block/key.h"
#include "common/mtx.h"
#include "common/str.h"
#include "common/workq.h"

enum { DISK_READ_THREADS = 4, DISK_WRITE_THREADS = 2, DISK_QUEUE_MAX = 4096, DISK_NODE_ID = 36 };

struct disk {
	unsigned number; /* in the index */
	char *dir;	 /* {cache-dir}, for people */
	int fd;		 /* {cache-dir}/{UUID} */
	int lock_fd;
	struct workq *reads, *writes;
	uint64_t capacity;	   /* bytes it may use */
	double free_ratio;	   /* share of the file system's bytes and inodes left to others */
	atomic_uint_fast64_t used; /* bytes of present blocks, as the file system counts them */
	atomic_uint_fast64_t writing; /* bytes on their way */
	/* bytes of removed blocks that wait for mounts to close them (passed.h) */
	atomic_uint_fast64_t held;
	/* when a write last began or ended: a hung disk shows here */
	atomic_uint_fast64_t progress_us;
	atomic_uint_fast64_t errors;
	atomic_uint tmp;
	unsigned checked; /* directories whose lengths recovery looked at */
	struct mtx lock;  /* over the members below */
	/* removed for space that has not shown up yet (open descriptors hold it) */
	uint64_t owed, owed_inodes, owed_since_us;
	/* bytes that were not written while removed blocks were held open: room is made for them,
	 * too, so that what is waited for once serves many */
	uint64_t refused;
};

/* Makes or takes {cache-dir}/{UUID}, locks it and starts its threads. -EBUSY: another daemon has
 * it; -EEXIST: the directory is not ours; other errors of the system; err holds one line. */
int disk_open(const char *dir, const char *uuid, unsigned number, uint64_t capacity,
	      double free_ratio, struct disk **ret, struct str *err);
/* waits for its threads' queues, releases the lock. NULL is fine. */
void disk_close(struct disk *d);
/* the member id kept there, made when absent */
int disk_node_id(struct disk *d, char ret[DISK_NODE_ID + 1]);
/* directories of a volume, and no left-over temporaries in them */
int disk_volume_prepare(struct disk *d, const struct hash128 *volume);
/* Removes what belongs to other volumes below the same UUID than current(arg), which is asked again
 * before each removal: the volume may move meanwhile. Returns how many volumes, or -errno. Slow. */
int disk_remove_others(struct disk *d, struct hash128 (*current)(void *arg), void *arg);

/* what a block of this size takes on the disk */
uint64_t disk_cost(uint32_t size);
/* bytes more (add) or less are used */
void disk_used(struct disk *d, uint64_t bytes, bool add);
/* -ENOENT; -EBADMSG: its length is wrong; errors of the system */
int disk_open_block(struct disk *d, const struct block_key *k, int *ret_fd);
/* temporary, write, rename; -ENOSPC, -EDQUOT … leave nothing behind */
int disk_write_block(struct disk *d, const struct block_key *k, const void *data,
		     const uint8_t *sums);
/* 0 also when it is not there */
int disk_remove_block(struct disk *d, const struct block_key *k);
/* "{volume id}/blocks", for recovery */
enum { DISK_PATH_MAX = 128 };
void disk_blocks_path(const struct hash128 *volume, char ret[DISK_PATH_MAX]);

/* How much must go before bytes more (one more file) fit into the budget and leave the free ratio.
 * Counts what was removed already and is still held open. */
struct disk_deficit {
	uint64_t bytes, files;
};
int disk_deficit(struct disk *d, uint64_t bytes, struct disk_deficit *ret);
/* bytes in files were removed to make room; says so until they show up as free. Not those in
 * d->held */
void disk_owe(struct disk *d, uint64_t bytes, uint64_t files);
/* bytes were not written, because what was removed is held open; 0: some were */
void disk_refused(struct disk *d, uint64_t bytes);
/* room on the file system itself for bytes more; false also when removed files are still held
 * open */
bool disk_has_room(struct disk *d, uint64_t bytes);

#endif
