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
 * said otherwise.
 *
 * Its health (disk_health.c) is known to everybody by disk_state:
 *
 *	DISK_WELL	serves and keeps
 *	DISK_READ_ONLY	serves; its keeper, a thread of its own, probes it
 *	DISK_AWAY	nothing is asked of it; its keeper probes it, and takes it back with what it
 *			has by then
 *
 * A disk starts AWAY, and becomes WELL once its keeper has opened it and rebuilt its index. */
#ifndef STOKE_CACHED_DISK_H
#define STOKE_CACHED_DISK_H

#include <stdatomic.h>

#include "common/block/key.h"
#include "common/diskq.h"
#include "common/metrics.h"
#include "common/mtx.h"
#include "common/str.h"

enum { DISK_READ_THREADS = 4, DISK_WRITE_THREADS = 2, DISK_NODE_ID = 36 };

enum disk_state { DISK_WELL, DISK_READ_ONLY, DISK_AWAY };
enum disk_work { DISK_READS, DISK_WRITES, DISK_WORKS };

struct disk;

/* what a disk's keeper does for who uses the disk, in the keeper's thread */
struct disk_user {
	int (*recover)(struct disk *d, void *arg); /* its blocks into the index; 0 or -errno */
	void (*clean)(struct disk *d, void *arg);  /* what nobody needs, slowly */
	void (*away)(struct disk *d, void *arg);   /* it is not to be asked: close its files */
	void *arg;
};
enum { DISK_RECOVER = 1, DISK_CLEAN = 2 };

struct disk_metrics {
	struct metric *seconds[DISK_WORKS];
	struct metric *errors, *given_up, *set_aside, *skipped;
};

struct disk {
	unsigned number; /* in the index */
	char *dir;	 /* {cache-dir}, for people */
	char *uuid;
	int fd; /* {cache-dir}/{UUID}; the keeper replaces what is behind it; -1: not yet */
	atomic_int lock_fd;
	/* the member id: what its file says ("" nothing, or not known yet), and what it shall say;
	 * the keeper's, and the first one main's once it is open */
	char node[DISK_NODE_ID + 1], wanted[DISK_NODE_ID + 1];
	struct diskq *q[DISK_WORKS];
	uint64_t capacity;	   /* bytes it may use */
	double free_ratio;	   /* share of the file system's bytes and inodes left to others */
	atomic_uint_fast64_t used; /* bytes of present blocks, as the file system counts them */
	atomic_uint_fast64_t blocks;
	atomic_uint_fast64_t writing; /* bytes on their way */
	/* bytes of removed blocks that wait for mounts to close them (passed.h) */
	atomic_uint_fast64_t held;
	/* when a write last began or ended: a slow disk shows here */
	atomic_uint_fast64_t progress_us;
	atomic_uint tmp;
	unsigned checked; /* directories whose lengths recovery looked at */
	struct disk_metrics metrics;
	struct disk_health *health; /* disk_health.c's */
	struct mtx lock;	    /* over the members below */
	/* removed for space that has not shown up yet (open descriptors hold it) */
	uint64_t owed, owed_inodes, owed_since_us;
	/* bytes that were not written while removed blocks were held open: room is made for them,
	 * too, so that what is waited for once serves many */
	uint64_t refused;
};

/* --- health --- */
/* Starts the disk's threads; its keeper makes or takes {cache-dir}/{UUID}, and locks it. -EBUSY:
 * another daemon has it; -EEXIST: the directory is not ours; -EACCES and the like: err holds one
 * line. A disk that hangs or fails is no error: it is AWAY, said, and tried again. */
int disk_open(const char *dir, const char *uuid, unsigned number, uint64_t capacity,
	      double free_ratio, struct disk **ret, struct str *err);
/* Ends what is queued and its threads, releases the lock; waits at most us. false: a thread hangs
 * in the disk, and nothing was freed. NULL: true. */
bool disk_close(struct disk *d, uint64_t us);
/* Series of the metrics with its directory as label; m may be NULL. 0 or -ENOMEM. Before it is
 * used */
int disk_count(struct disk *d, struct metrics *m);
/* the member id kept there, "" when there is none or the disk does not say (yet) */
void disk_node(struct disk *d, char ret[DISK_NODE_ID + 1]);
/* the id that its keeper is to write there; before disk_use */
void disk_set_node(struct disk *d, const char id[DISK_NODE_ID + 1]);
/* From now on the keeper works for u (kept by pointer), and the disk may become WELL. */
void disk_use(struct disk *d, const struct disk_user *u);
/* orders of DISK_RECOVER | DISK_CLEAN to the keeper; carried out in that order, one after the
 * other, while the disk is not AWAY */
void disk_order(struct disk *d, unsigned orders);
/* Waits until the keeper has carried out what was ordered, or found that it cannot; at most us. */
void disk_wait(struct disk *d, uint64_t us);
enum disk_state disk_state(const struct disk *d); /* never waits */
/* a call on the disk ended with r after us. Says by itself when the disk is set aside. Never
 * waits. */
void disk_result(struct disk *d, enum disk_work w, int r, uint64_t us);
/* a tick (DISKQ_TICK_US) has passed: jobs that hang end, and a disk that hangs is set aside */
void disk_watch(struct disk *d);

/* --- the directory --- */
/* Opens and locks what is at the path now; again: takes over what is there instead of what was.
 * Errors as disk_open. The keeper's */
int disk_attach(struct disk *d, struct str *err);
/* -ENODEV: what it opened is gone from the path's file system, as a whole */
int disk_there(struct disk *d);
/* writes, reads and removes a small file. -EAGAIN: it works, but slowly */
int disk_probe(struct disk *d);
/* writes d->wanted as the member id, where the file says something else */
int disk_keep_node(struct disk *d);
/* directories of a volume, and no left-over temporaries in them */
int disk_volume_prepare(struct disk *d, const struct hash128 *volume);
/* Removes what belongs to other volumes below the same UUID than current(arg), which is asked again
 * before each removal: the volume may move meanwhile. Returns how many volumes, or -errno. Slow. */
int disk_remove_others(struct disk *d, struct hash128 (*current)(void *arg), void *arg);

/* what a block of this size takes on the disk */
uint64_t disk_cost(uint32_t size);
/* a block of so many bytes came (add) or went */
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
