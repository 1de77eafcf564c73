/* SPDX-License-Identifier: Apache-2.0 */
/* Between reader.c, rfile.c and prefetch.c: the cached views of an open inode and how a read gets
 * them; what a handle will want next. */
#ifndef STOKE_CLIENT_RFILE_H
#define STOKE_CLIENT_RFILE_H

#include "client/readahead.h"
#include "client/reader.h"
#include "client/meta/slice.h"
#include "common/hashmap.h"
#include "common/mtx.h"

struct reader {
	struct reader_conf conf;
	struct mtx lock;		  /* of files and their refs, and of the four below */
	struct hashmap files;		  /* by inode */
	uint64_t period;		  /* number of the running period of streams */
	unsigned streams, streams_before; /* sequential handles, in this period and the last */
	uint64_t share;			  /* bytes of the pool that all windows may fill together */
	uint64_t prefetch_max;		  /* bytes of prefetch in flight, at most */
	uint64_t prefetching;		  /* now (atomic) */
	unsigned prefetches;		  /* requests now (atomic) */
	uint64_t moved;			  /* how often the volume was another one since (atomic) */
	struct metric *refused, *retried, *failed, *lists;
};

/* What a chunk shows; immutable once it is in a file's table, counted. */
struct view {
	struct hash_node node;
	struct list_node link; /* oldest first, for giving up */
	unsigned refs;	       /* atomic */
	uint32_t index;
	struct hash128 volume; /* its blocks' */
	struct slice_view v;
};
void view_unref(struct view *v); /* NULL is fine */

struct rfile {
	struct reader *r;
	struct hash_node node;
	uint64_t inode;
	unsigned refs;	 /* under r->lock: handles, and one for a running fetch */
	struct mtx lock; /* of all below */
	uint64_t moved;	 /* r->moved, when the views were dropped for it */
	bool have_attr;
	uint64_t length, writer_length;
	struct time_ns ctime, mtime; /* what all views belong to, with the volume */
	struct hash128 volume;
	/* moves whenever views are dropped: a fetch that began before is worth nothing */
	uint64_t epoch;
	struct hashmap views;
	struct list_node oldest;
	size_t n_views, n_pieces;
	bool fetching;
	uint32_t fetch_n; /* chunks of the next fetch */
	bool hinted;	  /* a chunk that reading ahead will want */
	uint32_t hint;
	struct list_node waiting; /* of struct view_wait */
	struct workq_job job;
	/* a block that a read was given up for when its time was over, and when */
	struct block_range silent;
	uint64_t silent_us; /* atomic; 0: none yet */
};

/* One read that needs the views of its range. */
struct view_wait {
	struct list_node link;
	uint64_t off;
	uint32_t len;	  /* as asked, at most CHUNK_SIZE */
	uint32_t clipped; /* result: bytes inside of the file */
	/* result: references; of the chunk that off is in, and of the next one if the range gets
	 * there */
	struct view *views[2];
	void (*ready)(struct view_wait *w, int status);
};
/* calls w->ready, at once or when a thread of the meta queue has the lists; status: 0 or what
 * meta_read said */
void rfile_views(struct rfile *f, struct view_wait *w);
/* a reference to the chunk's view, or NULL: then its list is fetched for a later one */
struct view *rfile_peek(struct rfile *f, uint32_t index);
/* another reference, by somebody who has one; given back with rfile_put */
void rfile_ref(struct rfile *f);

struct rhandle {
	struct rfile *f;
	struct mtx lock;
	struct readahead ra; /* under lock */
	uint64_t period;     /* under r->lock: the last one in which it counted as a stream */
};

/* a read of [off, off + len), inside of the file, passes by */
void prefetch_plan(struct rhandle *h, uint64_t off, uint32_t len, struct ra_plan *ret);
/* Asks for the whole block; nobody waits for it. -ENOBUFS, -ENOMEM: not now */
int prefetch_whole(struct reader *r, const struct block_key *key);
/* Asks for the whole blocks of a file range; nobody waits for them. Those that lie in asked as a
 * whole are left to the read that asks for them. A chunk whose list is not known is left out: its
 * list is on its way then, and its blocks are fetched as they are entered. */
void prefetch_range(struct rfile *f, const struct ra_range *range, const struct ra_range *asked);

#endif
