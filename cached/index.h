/* SPDX-License-Identifier: Apache-2.0 */
/* Which blocks of one volume are in the store, on which disk, and who leaves next. Sharded by the
 * key's digest; each shard has its own lock, table and policies (one per disk), so that one lock
 * covers a block's place and its rank. About 100 bytes a block. Any thread; never blocks on a disk.
 *
 * Files change outside of the lock, so a block being written or removed is marked, and only who
 * marked it moves it on:
 *
 *	absent	--index_begin-->		writing
 *	writing	--index_commit-->		present
 *	writing	--index_abort-->		absent
 *	present	--index_take, index_victim-->	leaving
 *	leaving	--index_gone-->			absent
 */
#ifndef STOKE_CACHED_INDEX_H
#define STOKE_CACHED_INDEX_H

#include "cached/evict.h"
#include "common/block/key.h"

enum { INDEX_DISKS_MAX = 64 };

struct index;

/* an empty index of one volume's blocks on n_disks disks; 0 or -ENOMEM */
int index_new(const struct hash128 *volume, unsigned n_disks, evict_new_fn *policy,
	      struct index **ret);
void index_free(struct index *ix);
/* Forgets everything; from now on keys of another volume are refused. Steps of the old volume still
 * on their way find nothing and say so. */
void index_reset(struct index *ix, const struct hash128 *volume);

/* true when the block is present; tells the policy. *ret_disk (may be NULL) is its disk */
bool index_find(struct index *ix, const struct block_key *k, unsigned *ret_disk);
/* as above without telling the policy */
bool index_peek(struct index *ix, const struct block_key *k);
bool index_where(struct index *ix, const struct block_key *k, unsigned *ret_disk);
/* somebody read this block, and it could be stored on this disk: shall it? For what is not asked
 * for explicitly (evict.h) */
bool index_admit(struct index *ix, const struct block_key *k, unsigned disk);
/* 0; -EEXIST: present; -EBUSY: being written or removed; -ESTALE: another volume; -ENOMEM */
int index_begin(struct index *ix, const struct block_key *k);
/* -ESTALE: the volume moved meanwhile, nothing is recorded: the caller removes the file */
int index_commit(struct index *ix, const struct block_key *k, unsigned disk, enum evict_kind kind);
/* both steps at once, for a block whose file is there already: 0, or as index_begin */
int index_add(struct index *ix, const struct block_key *k, unsigned disk, enum evict_kind kind);
void index_abort(struct index *ix, const struct block_key *k);
/* this block is to go: 0, -ENOENT, -EBUSY (somebody else's step is on its way) */
int index_take(struct index *ix, const struct block_key *k, unsigned *ret_disk);
/* the next block of this disk that is to go; -ENOENT: none */
int index_victim(struct index *ix, unsigned disk, struct block_key *ret);
/* a block that is present is pinned (no victim, until it is not pinned any more) or not; false:
 * it is not present */
bool index_pin(struct index *ix, const struct block_key *k, bool pinned);
void index_gone(struct index *ix, const struct block_key *k);
/* The next present blocks of a walk over all of them, at most max (at least INDEX_EACH_MIN).
 * *io_cursor is 0 at first, and 0 again when the walk is over; a step may give none and not be
 * the last. Safe beside changes: a block that is present during the whole walk is given at least
 * once. A step looks at a bounded part of one shard. */
enum { INDEX_EACH_MIN = 64 };
int index_each(struct index *ix, uint64_t *io_cursor, struct block_key *ret, size_t max,
	       size_t *ret_n);
/* The present blocks of a disk that are in one of INDEX_PARTS parts: all parts are all blocks, and
 * who adds a part's in this order gets the same ranks. fn is called under a lock: it only takes
 * notes. */
enum { INDEX_PARTS = 16 };
struct index_block {
	uint64_t slice;
	uint32_t index, size;
	enum evict_kind kind;
};
void index_list(struct index *ix, unsigned part, unsigned disk,
		void (*fn)(const struct index_block *b, void *arg), void *arg);
/* present blocks */
uint64_t index_count(struct index *ix);

#endif
