/* SPDX-License-Identifier: Apache-2.0 */
/* Private to store*.c: the store's members, and what reading (store.c), keeping (store_keep.c) and
 * the disks' upkeep (store_disks.c) need of each other. */
#ifndef STOKE_CACHED_STORE_INNER_H
#define STOKE_CACHED_STORE_INNER_H

#include "cached/files.h"
#include "cached/index.h"
#include "cached/passed.h"
#include "cached/pins.h"
#include "cached/snapshot.h"
#include "cached/store.h"
#include "common/hashmap.h"
#include "common/log.h"
#include "common/ring.h"

/* What the store knows of one of its disks: the keeper's, and main's once nothing comes and goes.
 * Its address is blob_file.arg. */
struct store_disk {
	struct store *store;
	struct disk *disk;
	struct snapshot_place place;
	bool looked;	      /* into the snapshot: once */
	atomic_bool complete; /* its blocks are in the index */
};

struct store {
	struct source top, keep; /* its two layers: above the flight, and below it */
	atomic_uint refs;
	struct req_env *env;
	struct store_conf conf;
	struct index *ix;
	struct files *files;
	struct passed *passed;
	struct pins *pins;
	struct ring *placement; /* of disks; NULL when there is one */
	struct disk_user user;	/* for the disks' keepers */
	struct store_disk disk[INDEX_DISKS_MAX];
	atomic_bool ends;     /* files are closed wherever they are used last */
	atomic_uint unlooked; /* disks that may still take the snapshot */
	uint64_t started_us;
	pthread_t watcher;
	bool has_watcher;
	struct mtx lock; /* over the members below */
	struct hash128 volume;
	struct hashmap pending; /* blocks on their way to a disk, by key */
	uint64_t pending_bytes[INDEX_DISKS_MAX];
	unsigned verifying;
	bool trimming[INDEX_DISKS_MAX];
	bool ending; /* the watcher is to end */
	struct cond end;
};

static inline struct store *store_of_top(struct source *s)
{
	return container_of(s, struct store, top);
}

static inline struct store *store_of_keep(struct source *s)
{
	return container_of(s, struct store, keep);
}

/* --- store_keep.c --- */
/* Keeps the whole block in req->data. waiter (may be NULL; a FILL's or PUT's request, maybe req
 * itself) is completed when the block is on a disk or cannot be; without one the block may be
 * skipped. */
void store_keep(struct store *s, struct block_req *req, struct block_req *waiter,
		struct metric *stored);
/* the bytes while the block is on its way */
bool store_pending(struct store *s, const struct block_key *k, uint32_t off, uint32_t len,
		   struct blob *ret);
/* joins the waiters of a pending block; drop: it is removed as soon as it is stored. false: it is
 * not pending */
bool store_pending_wait(struct store *s, struct block_req *waiter, bool drop);
/* a block that index_take or index_victim gave: its file and its entry go. In a disk's thread */
int store_remove(struct store *s, struct disk *d, const struct block_key *k);
/* removes blocks until so much is free again; returns the bytes removed. In a disk's thread */
uint64_t store_evict(struct store *s, struct disk *d, uint64_t bytes, uint64_t files,
		     struct disk_job *job);
/* evicts until so many bytes more fit. -ENOSPC: they do not (yet). In a disk's thread */
int store_make_room(struct store *s, struct disk *d, uint64_t bytes, struct disk_job *job);
/* the entry of a block on a disk that is AWAY is in the way of a new copy: forgotten, the file
 * stays */
void store_forget_away(struct store *s, const struct block_key *k);

/* where a block would go; NULL: all disks are set aside */
struct disk *store_choose_disk(struct store *s, const struct block_key *k);

/* --- store_pins.c --- */
/* a FILL that pins, or takes a pin away. true: it is done */
bool store_pin(struct store *s, struct block_req *req);
/* the block came to a disk, or its pin changed: the index is told what the table says */
void store_pin_align(struct store *s, const struct block_key *k);
/* pins whose date is over. Never waits */
void store_pins_expire(struct store *s);
/* what the disk says is pinned */
int store_pins_load(struct store *s, struct disk *d);

/* --- store.c --- */
/* something about one block to do in a disk's thread */
struct block_job {
	struct disk_job job;
	struct store *store;
	struct disk *disk;
	struct block_req *req; /* NULL: nobody waits */
	struct block_key key;
	struct blob_file *file; /* what run found */
};
/* 0; -ENOMEM; -EHOSTDOWN: the disk is set aside */
int store_push_job(struct store *s, struct disk *d, enum disk_work w, struct block_req *req,
		   const struct block_key *k, int (*run)(struct disk_job *j),
		   void (*end)(struct disk_job *j, int status));
/* the last of an end: frees the job, unless it hangs and its thread still has it */
void store_job_over(struct block_job *j, int status);
/* the copy is not what the index says: out with it, said once. In a disk's thread */
void store_drop_damaged(struct store *s, const struct block_key *k, const char *what);

/* --- store_disks.c --- */
/* blocks spread over the disks as their room does. 0 or -ENOMEM */
int store_place_disks(struct store *s);
/* hands the disks to their keepers and watches them; waits some time until they are WELL */
int store_start_disks(struct store *s);
/* the disk that has the block and may be asked for it; NULL: none. hit: the policy is told */
struct disk *store_disk_of(struct store *s, const struct block_key *k, bool hit);

#endif
