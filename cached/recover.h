/* SPDX-License-Identifier: Apache-2.0 */
/* The index of a disk from the names and lengths of its files, at start. Contents are not read: a
 * block is verified where it is used. Lengths cost a call a file, so they are looked at for some
 * time only; what is left then is looked at in the background (and at each use). */
#ifndef STOKE_CACHED_RECOVER_H
#define STOKE_CACHED_RECOVER_H

#include "cached/disk.h"
#include "cached/index.h"

enum { RECOVER_DIRS = 256, RECOVER_LENGTHS_US = 500000 };

struct recover_stat {
	uint64_t blocks, bytes; /* found */
	uint64_t removed;	/* wrong name, place or length */
	unsigned checked;	/* directories whose lengths were looked at: RECOVER_DIRS is all */
};

/* Adds every whole block of the volume on d to ix, removes the rest, and counts them in d->used.
 * Lengths are looked at for lengths_us. Blocks on the disk. 0 or -errno */
int recover_disk(struct disk *d, struct index *ix, const struct hash128 *volume,
		 uint64_t lengths_us, struct recover_stat *ret);
/* Calls bad(k, arg) for the blocks in directories [from, RECOVER_DIRS) whose length is wrong */
int recover_lengths(struct disk *d, const struct hash128 *volume, unsigned from,
		    void (*bad)(const struct block_key *k, void *arg), void *arg);

#endif
