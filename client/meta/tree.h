/* SPDX-License-Identifier: Apache-2.0 */
/* Walking a directory tree of a volume, depth first, by a few threads: what lies in a directory is
 * given out in batches while it is read, its subdirectories are walked after it, the directory
 * itself is left last. Memory: the subdirectories of the directories that are open, never the C
 * stack. Private to client/meta. */
#ifndef STOKE_CLIENT_META_TREE_H
#define STOKE_CLIENT_META_TREE_H

#include "client/meta/meta_redis.h"

/* threads: as progress says, else TREE_THREADS */
enum { TREE_BATCH = 100, TREE_THREADS = 4, TREE_THREADS_MAX = 16 };

struct tree;

struct tree_entry {
	const char *name;
	size_t name_len;
	uint8_t type;
	uint64_t inode;
};
struct tree_dir {
	const struct tree_dir *up; /* NULL: the top */
	uint64_t inode;
	uint64_t tag; /* of enter */
	size_t name_len;
	char name[NAME_LEN_MAX + 1]; /* "" for the top */
};

struct tree_ops {
	/* n <= TREE_BATCH entries of d that are no directories; some may come twice */
	int (*files)(struct tree *t, const struct tree_dir *d, const struct tree_entry *e,
		     size_t n);
	/* before a subdirectory of d; 1: leave it out. May be NULL */
	int (*enter)(struct tree *t, const struct tree_dir *d, const struct tree_entry *e,
		     uint64_t *ret_tag);
	/* behind all in d; -ENOTEMPTY: once more, there is something new. May be NULL */
	int (*leave)(struct tree *t, const struct tree_dir *d);
};

/* ops run in several threads at once, but for one directory never together with its own leave */
struct tree {
	struct meta_redis *mr;
	const struct tree_ops *ops;
	struct meta_progress *progress; /* may be NULL */
	/* tree.c's */
	struct workq *threads;
	struct mtx lock;
	struct cond ended;
	unsigned idle; /* threads that could be started */
	int error;     /* the first */
	bool damaged;  /* some directory has fields that are no entries; relaxed atomic */
};

/* 0, or the first error of ops or of Redis; -EINTR: progress->cancel was set; -ELOOP: a directory
 * lies in itself (a damaged volume) */
int tree_walk(struct tree *t, uint64_t inode, uint64_t tag);
/* says, not too often, that entries of a directory are left out */
void tree_damaged(uint64_t inode, size_t n);
/* says, not too often, that a directory lies in itself; returns -ELOOP */
int tree_ring(uint64_t inode);
void tree_count(struct tree *t, uint64_t files, uint64_t bytes);

#endif
