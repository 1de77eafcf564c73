/* SPDX-License-Identifier: Apache-2.0 */
/* What the disks hold, for the program that goes on in this process (SIGUSR2): memory that it
 * inherits as a descriptor, so that it has its index at once. What it does not take, for whatever
 * reason, is made of the names of files as at any start.
 *
 * Numbers are big-endian:
 *
 *	0	magic, 8 bytes: "stokeidx"
 *	8	version, 4: SNAPSHOT_VERSION
 *	12	number of disks, 4
 *	16	number of blocks, 8
 *	24	volume id, 16
 *	40	XXH3-64 of all that follows
 *	48	a row a disk, SNAPSHOT_DISK bytes:
 *		0	XXH3-64 of the directory's name as it was given
 *		8	device and inode of {cache-dir}/{UUID}, 8 and 8
 *		24	its first block's number, 8; how many there are, 8
 *		40	directories whose lengths were looked at (recover.h), 4
 *		44	0, 4
 *	…	a record a block, SNAPSHOT_BLOCK bytes, disk by disk:
 *		0	slice, 8; index, 4; size, 4
 *		16	enum evict_kind, 4 */
#ifndef STOKE_CACHED_SNAPSHOT_H
#define STOKE_CACHED_SNAPSHOT_H

#include "cached/recover.h"

enum { SNAPSHOT_VERSION = 1, SNAPSHOT_HEAD = 48, SNAPSHOT_DISK = 48, SNAPSHOT_BLOCK = 20 };

/* which directory a disk is. Blocks on it */
struct snapshot_place {
	uint64_t dir, device, inode;
};
int snapshot_place(const struct disk *d, struct snapshot_place *ret);

struct snapshot_row {
	struct snapshot_place place;
	unsigned disk, checked;
};

/* All blocks of these disks. *ret_fd: sealed. While nothing comes to them: a block that is missing
 * there takes room until the next start from names. 0 or -errno */
int snapshot_write(struct index *ix, const struct hash128 *volume, const struct snapshot_row *rows,
		   unsigned n_rows, int *ret_fd);

/* What is in a snapshot; the bytes stay the caller's. 0; -EPROTO: another version; -EBADMSG.
 * Pure */
struct snapshot_view {
	struct hash128 volume;
	unsigned n_disks;
	uint64_t n_blocks;
	const uint8_t *disks, *blocks;
};
int snapshot_parse(const uint8_t *p, size_t n, struct snapshot_view *ret);
/* Block i of it. 0 or -EBADMSG. Pure */
int snapshot_block(const struct snapshot_view *v, uint64_t i, struct block_key *ret,
		   enum evict_kind *ret_kind);
/* The blocks of the disk at this place: 0 with the first one's number, how many, and the lengths
 * looked at; -ENOENT: none. Pure */
int snapshot_find(const struct snapshot_view *v, const struct snapshot_place *place,
		  uint64_t *ret_first, uint64_t *ret_n, unsigned *ret_checked);

struct snapshot;

/* Takes the descriptor over; -1 is fine. NULL: there is none, or it is refused, which is said */
struct snapshot *snapshot_take(int fd);
void snapshot_free(struct snapshot *sn); /* NULL is fine */
/* As recover_disk, for a disk that it has; else -ENOENT, or another error. Blocks that it did add
 * stay. */
int snapshot_recover(const struct snapshot *sn, struct disk *d, struct index *ix,
		     const struct hash128 *volume, struct recover_stat *ret);

#endif
