/* SPDX-License-Identifier: Apache-2.0 */
/* Private to source_peer*.c: one try of one peer, and descriptors that the daemon of this node
 * passed. */
#ifndef STOKE_COMMON_BLOCK_SOURCE_PEER_H
#define STOKE_COMMON_BLOCK_SOURCE_PEER_H

#include "common/block/peer.h"

/* clang's analyzer takes each reference for the last one */
#ifdef __clang_analyzer__
#define FREE_COUNTED(p) ((void)(p))
#else
#define FREE_COUNTED(p) free(p)
#endif

/* --- source_peer_fd.c: descriptors of whole block files, newest kept. Any thread --- */
struct fd_cache;
struct fd_entry; /* counted */

/* at most max of together max_bytes of blocks; loop closes those that are of no use any more (NULL:
 * nobody does) */
int fd_cache_new(unsigned max, uint64_t max_bytes, struct loop *loop, struct diskq *disk,
		 struct fd_cache **ret);
/* a read of one hung lately: none is found, and none shall be asked for */
bool fd_cache_off(const struct fd_cache *c);
void fd_cache_free(struct fd_cache *c); /* NULL is fine */
/* a reference, or NULL */
struct fd_entry *fd_cache_find(struct fd_cache *c, const struct block_key *k);
/* takes fd over, which peer passed for k over its bulk or small connection; a reference. NULL: no
 * memory (fd is closed, and peer told) */
struct fd_entry *fd_cache_add(struct fd_cache *c, const struct block_key *k, int fd,
			      struct peer *peer, bool bulk);
void fd_cache_drop(struct fd_cache *c, const struct block_key *k);
int fd_entry_fd(const struct fd_entry *e);
/* the last one closes, and tells the daemon CLOSED */
void fd_entry_unref(struct fd_entry *e);

/* --- source_peer_try.c --- */
struct peer_try;
/* Where a try ends: on any thread, exactly once; the try may be freed in it. status as for the
 * whole layer, where only final verdicts of the object store are -ENODATA, -EACCES, -EIO (with
 * req->reason), and -ENOENT only that a probed block is not there. */
typedef void peer_try_fn(struct peer_try *t, int status);

struct peer_try {
	struct source_env_peer *env;
	struct block_req *req; /* whose reservation pays and whose data is filled in */
	struct peer *peer;
	bool no_fill; /* asked of a holder */
	uint64_t quiet_us;
	/* room for the answer: taken from req->reserved when NULL; kept by the try's owner */
	struct buf *buf;
	peer_try_fn *done;
	void (*filling)(struct peer_try *t);
	/* private */
	struct peer_call call;
	struct fd_entry *fd;
	bool calling; /* the call's loop's, once the try is started: the peer is waited for */
};

/* what tries share */
struct source_env_peer {
	struct diskq *disk;
	struct fd_cache *fds; /* NULL: descriptors are not asked for */
	struct metric *damaged;
};

void peer_try_start(struct peer_try *t);
/* the loop that a try with a call lives on; once it is started */
struct loop *peer_try_loop(const struct peer_try *t);
/* On that loop, in a job that was posted after peer_try_start returned: who still waits for his
 * peer ends with -ECANCELED, and his memory is free; others go on. */
void peer_try_abandon(struct peer_try *t);
void peer_try_fini(struct peer_try *t);
/* A block whose descriptor is here and whose pages are in memory: fills in req->data, out of
 * req->reserved. false: go the long way; *ret_spare is set when the buffer was taken already. */
bool peer_try_warm(struct source_env_peer *env, struct block_req *req, struct buf **ret_spare);

/* --- the layer --- */
enum {
	PEER_OWNERS = 2, /* owner and successor */
	PEER_TARGETS = 4,
	/* those two, the path, the daemon of this node, the sub-group's owner */
	PEER_COPIES = PEER_OWNERS + PEER_TARGETS + 2,
};

struct source_peer {
	struct source base;
	struct source_peer_conf conf;
	struct source_env_peer env;
	struct metric *hedges, *busy, *passed;
	uint64_t asked, hedged; /* atomic: requests, and those hedged although the peer works */
};

static inline bool is_get(const struct block_req *req)
{
	return !(req->flags & (REQ_FILL | REQ_PROBE));
}

/* source_peer_pick.c: how many, in this order, the first *ret_no_fill of them by NO_FILL. member:
 * in a daemon, a member waits for it (REQ_MEMBER is not looked at) */
unsigned peer_pick(struct source_peer *sp, const struct block_req *req, bool member,
		   struct peer *ret[PEER_TARGETS], unsigned *ret_no_fill);
/* who may have a copy: each once */
unsigned peer_pick_copies(struct source_peer *sp, const struct block_req *req,
			  struct peer *ret[PEER_COPIES]);
/* source_peer_drop.c: the layer's operation */
void peer_drop(struct source *s, struct block_req *req);

#endif
