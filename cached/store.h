/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's store: blocks of one volume on the cache disks, as two layers of the chain with the
 * flight between them.
 *
 * The upper one answers. get: a hit is a blob of the block's file (common/block/blockfile.h: the
 * checksums stand behind the block's bytes in the same file), or memory while the block is still on
 * its way to the disk; a miss asks the next layer. REQ_FILL is done when the block is on a disk, or
 * with the reason why it cannot be; REQ_PROBE says whether it is. put keeps the block (data, sums)
 * and goes no further; drop forgets the copy.
 *
 * The lower one keeps whole blocks that come up from below, before the flight forgets that they
 * were fetched, and looks again before it passes on what the flight sends down: so a block that
 * arrives between somebody's look into the store and his fetch is not fetched twice.
 *
 * What is kept: blocks of which the own ring makes this member owner or successor (then as a guest,
 * the first to leave); everything when there is no ring, and whatever a FILL or PUT brings. A block
 * found short, missing or damaged is dropped, counted, logged, and the next layer asked. The next
 * layer is asked, too, when the block's disk is set aside, fails, or takes too long (disk.h); then
 * the block is only forgotten when another disk comes to have it. */
#ifndef STOKE_CACHED_STORE_H
#define STOKE_CACHED_STORE_H

#include "cached/counters.h"
#include "cached/disk.h"
#include "cached/evict.h"
#include "common/block/cluster.h"
#include "common/block/source.h"

struct passed;
struct snapshot;
struct store;

struct store_conf {
	struct disk **disks; /* taken over on success: closed with the store */
	unsigned n_disks;
	struct hash128 volume;
	evict_new_fn *policy;
	struct counters *counters;
	struct cluster_view *view; /* NULL: keeps everything */
	const char *self;	   /* own member id, kept by pointer */
	unsigned max_open;	   /* files kept open */
	struct snapshot *snapshot; /* of the program before; taken over in any case; NULL: none */
};

/* Rebuilds the index from the disks: waits for that, but not for a disk that takes long; what it
 * has is found later. One reference. 0 or -errno */
int store_new(struct req_env *env, const struct store_conf *conf, struct store **ret);
void store_unref(struct store *s);
/* Before the end, when no request is under way: ends the disks' threads, waits for them at most us.
 * false: one hangs in its disk, and nothing may be freed */
bool store_stop(struct store *s, uint64_t us);
/* For the program that goes on in this process: when what is on its way to the disks has come
 * there, at most us, no more is kept, and the index is written down. The descriptor, or -1: nothing
 * could be. Nothing may be done with s any more but by exec. */
int store_hand_over(struct store *s, uint64_t us);
/* Its two layers, each once and each with a reference of its own. 0 or -ENOMEM */
int store_keep_new(struct store *s, struct source *next, struct source **ret);
int store_top_new(struct store *s, struct source *next, struct source **ret);
/* present or on its way to the disk: a get will not have to ask the next layer. Any thread, never
 * waits. */
bool store_has(struct store *s, const struct block_key *k);
struct hash128 store_volume(struct store *s);
/* Another generation of the volume: forgets all blocks, goes on with what the disks hold of the new
 * one. Blocks; main's or the heartbeat's thread. */
int store_move(struct store *s, const struct hash128 *volume);
/* starts to remove what other volume ids left on the disks, in the background */
void store_clean(struct store *s);
/* somebody found this block damaged: read it and drop it if it is. In the background; forgotten
 * when too many are being looked at. */
void store_verify(struct store *s, const struct block_key *k);
/* every now and then: keeps the free space that others take away from us. Any thread. */
void store_trim(struct store *s);
void store_stat(struct store *s, struct msg_stat *ret);
/* a walk over the keys of the blocks on the disks: index_each. Any thread, never waits */
int store_each(struct store *s, uint64_t *io_cursor, struct block_key *ret, size_t max,
	       size_t *ret_n);
/* until when a block is pinned, in unix seconds; 0: it is not. Any thread */
uint64_t store_pinned(struct store *s, const struct block_key *k);
/* another member held the block pinned until then: here, too, unless it is for longer, or too much
 * is pinned already (counted). Any thread, never waits */
void store_pin_moved(struct store *s, const struct block_key *k, uint64_t until);
/* a get of req, which the store has not, waits for a fetch that is under way (*ret_listed: there is
 * one, but maybe not for him). Any thread */
bool store_fetching(struct store *s, const struct block_req *req, bool *ret_listed);
/* who holds descriptors of its files; as long as s */
struct passed *store_passed(struct store *s);
/* Pushes a job to the readers of the disk that has the block, or of the file. 0, -ENOENT: no disk
 * has it; -EHOSTDOWN: the disk is set aside. Any thread, never waits */
int store_push(struct store *s, const struct block_key *k, struct disk_job *j);
int store_push_read(const struct blob *b, struct disk_job *j);
/* The block's file, a reference. -ENOENT, or errors of the system. Blocks: in those threads. */
int store_file(struct store *s, const struct block_key *k, struct blob_file **ret);
/* In those threads, before the first byte of a file is sent: waits for it. 0; -EIO and the like,
 * the block is dropped and the chain is to be asked again */
int store_touch(struct store *s, const struct block_key *k, const struct blob *b);
/* in those threads: a read of the block failed with r */
void store_failed(struct store *s, const struct block_key *k, const struct blob *b, int r);

#endif
