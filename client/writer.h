/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers -> slices -> blocks in the object store -> records in Redis, in that order. One struct
 * wfile per inode that is being written. Locks are leaves: flush before truncate and the like are a
 * busy state and parked callbacks, never a lock held across Redis. */
#ifndef STOKE_CLIENT_WRITER_H
#define STOKE_CLIENT_WRITER_H

#include "client/meta/meta.h"
#include "common/block/source.h"
#include "common/workq.h"

struct writer;
struct wfile;

struct writer_conf {
	struct meta *meta;
	struct workq *metaq; /* commits run there */
	struct req_env *env;
	struct source *chain;
	unsigned max_uploads; /* 20 */
	uint64_t flush_us; /* a dirty slice is committed after that long (5 s), or idle for 1 s */
	/* attributes after a commit, or the error that will be reported: any thread */
	void (*committed)(void *arg, uint64_t inode, const struct attr *a);
	void *arg;
	struct workq *deleteq; /* waits for the object store; NULL: metaq */
	/* deletes the objects of a slice that could not be committed; runs in deleteq; NULL: they
	 * stay until a gc */
	meta_delete_fn *delete_slice;
	void *delete_arg;
	struct metrics *metrics;
};
int writer_new(const struct writer_conf *conf, struct writer **ret);
/* everything must be flushed (writer_flush_all), all files put, both queues gone or idle; NULL is
 * fine */
void writer_free(struct writer *w);

/* found or made, counted: one reference per handle open for writing. length: the file's now */
int wfile_get(struct writer *w, uint64_t inode, uint64_t length, struct wfile **ret);
void wfile_put(struct wfile *f);
/* the wfile of an inode if there is one (a reference), else NULL: for reads and stat by others of
 * this mount */
struct wfile *wfile_find(struct writer *w, uint64_t inode);
/* largest end of what was written and not yet committed, or the committed length, whichever is
 * larger; false: nothing dirty */
bool wfile_length(struct wfile *f, uint64_t *ret);
/* the same, and when the last of it was written */
bool wfile_dirty(struct wfile *f, uint64_t *ret_length, struct time_ns *ret_mtime);
/* the length was changed by somebody else than the writer (truncate, after a flush) */
void wfile_set_length(struct wfile *f, uint64_t length);
/* which storage class new blocks get (struct attr.tier); known from the open on */
void wfile_set_tier(struct wfile *f, uint8_t tier);
/* what people know it by: a directory that it lies in, and its name there, NULL when that is not
 * known. Of no consequence but in writer_pending. */
void wfile_named(struct wfile *f, uint64_t parent, const char *name);

/* Takes over nothing: data is copied into pool buffers, in this thread if there is room now, else
 * later (then data must live until done). done(op, status): any thread, maybe before writer_write
 * returned. append: off is the end of the file as this mount knows it. Errors of background uploads
 * are reported by the next write, flush and close. */
struct write_op {
	struct wfile *f;
	const void *data;
	uint32_t len;
	uint64_t off;
	void (*done)(struct write_op *op, int status);
	struct list_node link; /* the writer's, these two */
	struct pool_wait wait;
};
void writer_write(struct write_op *op);

/* all that was written before this call is uploaded and committed, then done(op, status). report:
 * status is the first error since it was last reported (fsync, close), which is forgotten then;
 * else only errors of this flush */
struct flush_op {
	struct wfile *f;
	bool report;
	void (*done)(struct flush_op *op, int status);
	struct list_node link; /* the writer's, these three */
	uint64_t upto;
	int status;
};
void writer_flush(struct flush_op *op);
/* blocks: for umount; 0 or the first error */
int writer_flush_all(struct writer *w);
/* bytes dirty and files dirty, for .stats */
void writer_stat(struct writer *w, uint64_t *ret_bytes, unsigned *ret_files);
/* blocks and slices that were stored since the start */
uint64_t writer_stored(struct writer *w);
/* Files with data that is not stored: at most max of them in ret. How many there are; 0 also when
 * there is no memory to look. */
struct writer_file {
	uint64_t inode, parent, bytes;
	char name[NAME_LEN_MAX + 1]; /* "": not known */
};
size_t writer_pending(struct writer *w, struct writer_file *ret, size_t max);

#endif
