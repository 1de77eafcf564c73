/* SPDX-License-Identifier: Apache-2.0 */
/* Between writer.c, wrun.c, wslice.c and wflush.c: slices that are being written, and what is to be
 * done for them once no lock is held. */
#ifndef STOKE_CLIENT_WSLICE_H
#define STOKE_CLIENT_WSLICE_H

#include "client/upload.h"
#include "client/writer.h"
#include "common/hashmap.h"
#include "common/mtx.h"

enum {
	SLICES_MAX = 1000,	/* of one file, not committed: then writers wait */
	SLICES_MANY = 800,	/* then all are frozen */
	SLICES_LOOKED_AT = 4,	/* of one chunk, to add to; older ones are frozen when passed */
	COMMITS_LOOKED_AT = 64, /* oldest slices of a file that may be committed now */
	RESTARTS_MAX = 3,
};

struct writer {
	struct writer_conf conf;
	struct uploads *uploads;
	uint32_t block_size;
	size_t cap; /* bytes of buffers that may be held: the rest is to read and encode with */
	struct mtx lock;	  /* of all below but the atomics */
	struct cond clean;	  /* busy fell to 0 */
	struct hashmap files;	  /* by inode */
	size_t held;		  /* bytes of buffers */
	struct list_node waiters; /* files that wait for held to fall */
	unsigned busy;		  /* slices not committed, and files that are not idle */
	bool ticking;
	int error; /* first one since writer_flush_all began */
	struct loop_job tick_job;
	struct loop_timer tick;
	size_t sending; /* of held, with upload.c; atomic: these three */
	uint64_t dirty_bytes;
	unsigned dirty_files;
	uint64_t stored; /* blocks and slices; atomic */
	struct metric *committed, *failed, *waited;
};

/* who may touch the data of a file's slices that are not frozen */
enum wfile_state {
	WFILE_IDLE,
	WFILE_RUNNING, /* one thread, in wfile_run; nobody else freezes */
	WFILE_WAITING, /* a write waits for memory or for commits; anybody may freeze */
};

struct wfile {
	struct writer *w;
	struct hash_node node;
	uint64_t inode;
	unsigned refs;		    /* under w->lock: handles, slices, and one while not idle */
	struct list_node wait_link; /* in w->waiters, under w->lock; wanted bytes */
	size_t wanted;
	struct mtx lock; /* of all below but the last five */
	uint64_t length; /* committed */
	uint8_t tier;	 /* storage class of new blocks */
	uint64_t parent; /* and name: wfile_named */
	char *name;
	uint64_t seq;		 /* of the newest slice */
	struct list_node slices; /* in the order they were begun */
	unsigned n_slices;
	struct time_ns newest; /* write since the file was clean; what every commit says */
	enum wfile_state state;
	bool freeze;		/* the one who runs is to freeze all */
	bool wants_slices;	/* waits for n_slices to fall */
	struct list_node queue; /* writes that wait for their turn */
	struct list_node flushes;
	int error; /* first one since it was reported */
	/* of whoever runs */
	struct write_op *current;
	uint32_t copied;
	size_t granted, reserved; /* of w->held, of the pool; for the next buffer */
	struct loop_job resume;
};

static inline bool time_later(const struct time_ns *a, const struct time_ns *b)
{
	return a->sec > b->sec || (a->sec == b->sec && a->nsec > b->nsec);
}

enum wblock_state { WB_OPEN, WB_SENT, WB_STORED };

struct wblock {
	struct wslice *s;
	struct buf *buf; /* until it is sent */
	uint32_t cap, len;
	size_t cost; /* counted in w->held */
	enum wblock_state state;
	struct upload up;
};

struct wslice {
	struct wfile *f;
	struct list_node link; /* f->slices */
	struct list_node work; /* struct work */
	uint64_t seq;
	uint32_t index, pos, len; /* of the chunk; grows until frozen */
	uint64_t id;		  /* 0: not given yet */
	struct hash128 volume;	  /* when it was */
	bool frozen, asking, ready, committing, keep_objects;
	int error;
	unsigned out;  /* uploads on their way */
	uint32_t sent; /* blocks before this one were sent */
	unsigned restarts;
	struct time_ns mtime;
	uint64_t began_us, touched_us;
	struct workq_job job;
	uint32_t n_blocks; /* room */
	struct wblock *blocks[];
};

/* Found under a file's lock, done without. */
struct work {
	struct list_node uploads; /* of struct wblock: up.link */
	struct list_node jobs;	  /* of struct wslice: for metaq */
	struct list_node dead;	  /* of struct wslice: out of the file */
	struct list_node flushes; /* of struct flush_op: done */
	struct wfile *resume;	  /* a write of it goes on */
	bool cleaned;		  /* the file has no slice any more */
};
void work_init(struct work *k);
/* the file may be gone afterwards, unless the caller has a reference */
void work_run(struct writer *w, struct work *k);

static inline uint64_t wslice_end(const struct wslice *s)
{
	return ((uint64_t)s->index << CHUNK_BITS) + s->pos + s->len;
}

/* wslice.c. NULL: no memory. Counts in w and takes a reference of f */
struct wslice *wslice_new(struct wfile *f, uint32_t index, uint32_t pos);
void wslice_free(struct wslice *s);
/* whatever can be done for s now: ask for its number, send blocks, commit, give up */
void wslice_advance_locked(struct wfile *f, struct wslice *s, struct work *k) REQUIRES(f->lock);
/* nothing is added to any slice any more; when somebody runs, he does it */
void wfile_freeze_locked(struct wfile *f, struct work *k) REQUIRES(f->lock);

/* writer.c */
/* true: out of the table, to be destroyed without the lock */
bool wfile_unref_locked(struct writer *w, struct wfile *f) REQUIRES(w->lock);
void wfile_destroy(struct wfile *f);

/* bytes of buffers are free again: those who wait get them */
void writer_release(struct writer *w, size_t bytes);
/* somebody waits for memory: when too little of it is on its way out, all slices are frozen */
void writer_press(struct writer *w);

/* wrun.c: a write that waited goes on, in the timers' loop */
void wfile_resume(struct wfile *f);

/* wflush.c */
void writer_tick_start(struct writer *w);
void writer_tick_stop(struct writer *w);
/* freezes all slices of all files */
void writer_freeze_all(struct writer *w);

#endif
