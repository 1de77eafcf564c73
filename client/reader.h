/* SPDX-License-Identifier: Apache-2.0 */
/* File ranges -> slice lists -> block requests -> bytes. Never waits in the caller's thread. The
 * reader owns no data: readahead is REQ_PREFETCH into ram.
 *
 * struct reader: one per mount. struct rfile: one per inode that is open (shared by its handles):
 * cached chunk views, each with the ctime it belongs to, discarded when another ctime or mtime
 * passes by. struct rhandle: one per open file handle: the readahead sessions. */
#ifndef STOKE_CLIENT_READER_H
#define STOKE_CLIENT_READER_H

#include <sys/uio.h>

#include "client/meta/meta.h"
#include "common/block/source.h"
#include "common/workq.h"

struct reader;
struct rfile;
struct rhandle;

struct reader_conf {
	struct meta *meta;
	struct workq *metaq; /* slice lists are fetched there */
	struct req_env *env;
	struct source *chain;
	uint64_t max_readahead; /* bytes; 0: none */
	unsigned io_retries;
	struct metrics *metrics;
};
int reader_new(const struct reader_conf *conf, struct reader **ret);
/* all rfiles are put, the chain is drained, the meta queue is gone; NULL is fine */
void reader_free(struct reader *r);
/* the volume is another one, or an older one of itself: all views are worth nothing; any thread */
void reader_volume_moved(struct reader *r);

/* found or made, counted */
int rfile_get(struct reader *r, uint64_t inode, struct rfile **ret);
void rfile_put(struct rfile *f);
/* Moves whenever the views are dropped. Whoever brings an answer takes it, then asks whether the
 * answer is the newest known, then brings the answer with it: one that was overtaken in between
 * changes nothing. */
uint64_t rfile_epoch(struct rfile *f);
/* what its views take */
size_t rfile_pieces(struct rfile *f);
/* the chunk list that open() brought; 0 or -ENOMEM */
int rfile_first(struct rfile *f, const struct chunk_list *l, uint64_t epoch);
/* attributes of the inode passed by: views of another ctime/mtime are dropped; length is what reads
 * are clipped to */
void rfile_attr(struct rfile *f, const struct attr *a, uint64_t epoch);
/* the slices changed under us for sure (own commit, truncate, read failure): drop all views */
void rfile_invalidate(struct rfile *f);
/* our own writer's length while dirty data exists (reads are clipped to the larger of both), 0 when
 * there is none any more */
void rfile_set_length(struct rfile *f, uint64_t length);
int rhandle_new(struct rfile *f, struct rhandle **ret);
/* no read of it is in flight */
void rhandle_free(struct rhandle *h);

/* One read of at most CHUNK_SIZE bytes. done runs once, on any thread: status 0 and iov[n] (total
 * bytes, less than asked only at the end of file; valid during the call), or a negative errno
 * (-EIO with a line in the log that names the object). */
struct read_op {
	struct rhandle *h;
	uint64_t off;
	uint32_t len;
	void (*done)(struct read_op *op, int status, const struct iovec *iov, int n, size_t total);
	void *priv; /* the reader's while the read runs */
};
void reader_read(struct read_op *op);

#endif
