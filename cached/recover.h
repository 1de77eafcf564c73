/* SPDX-License-Identifier: Apache-2.0 */
/* The index of a disk from the names and lengths of its files, at start. Contents are not read: a
 * block is verified where it is used. */
#ifndef STOKE_CACHED_RECOVER_H
#define STOKE_CACHED_RECOVER_H

#include "cached/disk.h"
#include "cached/index.h"

struct recover_stat {
	uint64_t blocks, bytes; /* found */
	uint64_t removed;	/* wrong name, place or length */
};

/* Adds every whole block of the volume on d to ix, removes the rest, and counts them in d->used.
 * Blocks on the disk. 0 or -errno */
int recover_disk(struct disk *d, struct index *ix, const struct hash128 *volume,
		 struct recover_stat *ret);

#endif
