/* SPDX-License-Identifier: Apache-2.0 */
/* Quotas in memory: limits and usage as they were read, and what this client added since. Private
 * to meta_redis_quota*.c; the lock is a leaf, never held while Redis is asked.
 *
 *	what of an entry	changes
 *	max, used		quota_load: at start, at each sign of life, when limits changed
 *	fresh			operations of this client
 *	flying			of users and groups: quota_flush moves fresh there, and into used
 *				once Redis has it. Of directories what a script says that it told
 *				goes from fresh to used: it may not be what was added here, as
 *				others move directories, so once all is told fresh is 0.
 *
 * What is used is used + flying + fresh. A load that began before something was told may have read
 * either, so it leaves the usage of those entries alone until the next one. */
#ifndef STOKE_CLIENT_META_QUOTAS_H
#define STOKE_CLIENT_META_QUOTAS_H

#include "client/meta/meta_redis.h"
#include "client/meta/meta_redis_quota.h"

enum { QUOTA_KINDS = 3 };

struct amount {
	int64_t space, inodes;
};

struct quota_entry {
	struct hash_node node;
	uint64_t id;
	struct amount max, used, fresh, flying;
	uint64_t flush_no; /* the last flush that told of it */
	bool loaded;
};

struct flight; /* meta_redis_quota_load.c */

struct quotas {
	struct mtx lock;
	struct hashmap of[QUOTA_KINDS]; /* struct quota_entry by id */
	struct hashmap detached;	/* directories, struct dir_parent without a parent */
	struct hashmap parents;		/* of directories, as this client knows them */
	uint64_t moves; /* directories that this client moved: what was asked before is stale */
	uint64_t flush_no, version;
	struct cond flushed;
	bool flushing;
	unsigned telling; /* scripts that tell usage of directories */
	uint64_t begun,
		ended; /* changes of directories' usage: those between are not to be told yet */
	struct flight *flight; /* of the one that flushes */
	/* atomic; read before anything else */
	bool dirs, limits; /* there are directories with quotas; anybody has a limit */
};

static inline bool has_dirs(struct meta_redis *mr)
{
	return __atomic_load_n(&mr->quotas->dirs, __ATOMIC_RELAXED);
}

static inline bool has_limits(struct meta_redis *mr)
{
	return __atomic_load_n(&mr->quotas->limits, __ATOMIC_RELAXED);
}

static inline bool has_owners(struct meta_redis *mr)
{
	return meta_setting(&mr->base)->user_group_quota;
}

/* compares ids of entries */
bool quota_entry_eq(const struct hash_node *n, const void *key);
bool quota_free_node(struct hash_node *n, void *arg);
/* NULL: none */
struct quota_entry *quota_find_locked(struct quotas *q, int kind, uint64_t id) REQUIRES(q->lock);
/* what is there is forgotten, if there is memory for that */
void quota_empty_locked(struct hashmap *m);
/* fn(dir) for dir and all above it, until it says false; 0, or why the way ends too early */
int quota_way_up(struct meta_redis *mr, uint64_t dir, bool (*fn)(void *arg, uint64_t dir),
		 void *arg);

#endif
