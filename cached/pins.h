/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks that somebody wants kept until a date: a table in memory, and for each disk a file that
 * the table is made of again at the next start. What is pinned need not be on a disk (yet).
 *
 * The file {volume id}/pins is a list of changes, each one PINS_RECORD bytes, big-endian:
 *
 *	0	slice, 8 bytes
 *	8	index, 4
 *	12	size, 4
 *	16	until, 8: unix seconds; 0: no longer pinned
 *	24	0, 4
 *	28	CRC-32C of the volume id and the 28 bytes before
 *
 * The last one about a block counts. A record that is damaged or cut short is skipped and
 * counted. The file is written anew (beside, then renamed) when most of it does not count any
 * more.
 *
 * Any thread. Only load and flush wait for a disk; one of them at a time for each disk. */
#ifndef STOKE_CACHED_PINS_H
#define STOKE_CACHED_PINS_H

#include "common/block/key.h"

enum { PINS_RECORD = 32, PINS_PATH_MAX = 64 };

struct pins;
struct pins_stat {
	uint64_t blocks, bytes; /* as they take on the disks */
	uint64_t damaged;	/* records found damaged so far */
};

/* n_disks tables; 0 or -ENOMEM */
int pins_new(const struct hash128 *volume, unsigned n_disks, struct pins **ret);
void pins_free(struct pins *p);
/* forgets everything; from now on for another volume */
void pins_reset(struct pins *p, const struct hash128 *volume);
/* Pins k until the date (unix seconds), or no longer when that is over at now. *ret_was (may be
 * NULL): it was pinned. -ENOSPC: the disk's pinned blocks would take more than most bytes; -ESTALE:
 * another volume; -ENOMEM. Never waits; a flush makes it last. */
int pins_set(struct pins *p, unsigned disk, const struct block_key *k, uint64_t until, uint64_t now,
	     uint64_t most, bool *ret_was);
/* 0: it is not pinned */
uint64_t pins_until(struct pins *p, const struct block_key *k);
/* takes out at most max blocks whose date is over at now; returns how many */
size_t pins_expired(struct pins *p, uint64_t now, struct block_key *ret, size_t max);
void pins_stat(struct pins *p, struct pins_stat *ret);

/* The first time: what the disk's file says, added to the table; later, when the disk was away, the
 * table is right, and the file is to be written anew. dir is where the volumes' folders are. Calls
 * pinned for each block that is pinned now. 0 (also without a file) or -errno */
int pins_load(struct pins *p, unsigned disk, int dir, uint64_t now,
	      void (*pinned)(const struct block_key *k, void *arg), void *arg);
/* Writes what changed since the last time to the disk's file, and syncs it. 0 or -errno: all of the
 * disk's pins are written next time. */
int pins_flush(struct pins *p, unsigned disk, int dir);

/* one record; pure. -EBADMSG */
void pins_encode(const struct block_key *k, uint64_t until, uint8_t ret[PINS_RECORD]);
int pins_decode(const uint8_t p[PINS_RECORD], const struct hash128 *volume, struct block_key *ret,
		uint64_t *ret_until);

#endif
