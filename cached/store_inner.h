/* SPDX-License-Identifier: Apache-2.0 */
/* Private to store*.c: the store's members, and what reading (store.c) and keeping (store_keep.c)
 * need of each other. */
#ifndef STOKE_CACHED_STORE_INNER_H
#define STOKE_CACHED_STORE_INNER_H

#include "cached/files.h"
#include "cached/index.h"
#include "cached/passed.h"
#include "cached/store.h"
#include "common/hashmap.h"
#include "common/log.h"
#include "common/ring.h"

enum { DISK_SICK_AFTER = 3 };

struct disk_health {
	unsigned failures;	 /* in a row */
	uint64_t aside_until_us; /* no block goes there before; 0: it is well */
	bool trimming;
};

struct store {
	struct source top, keep; /* its two layers: above the flight, and below it */
	atomic_uint refs;
	struct req_env *env;
	struct store_conf conf;
	struct index *ix;
	struct files *files;
	struct passed *passed;
	struct ring *placement; /* of disks; NULL when there is one */
	struct workq *janitor;
	uint64_t started_us;
	struct mtx lock; /* over the members below */
	struct hash128 volume;
	struct hashmap pending; /* blocks on their way to a disk, by key */
	uint64_t pending_bytes;
	unsigned verifying;
	struct disk_health health[INDEX_DISKS_MAX];
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
uint64_t store_evict(struct store *s, struct disk *d, uint64_t bytes, uint64_t files);
/* evicts until so many bytes more fit. -ENOSPC: they do not (yet). In a disk's thread */
int store_make_room(struct store *s, struct disk *d, uint64_t bytes);
/* the disk failed (r < 0) or worked */
void store_disk_result(struct store *s, struct disk *d, const char *what, int r);

#endif
