/* SPDX-License-Identifier: Apache-2.0 */
/* Pipelined connections from this process to daemons. Per daemon at most two (bulk; answers up to SMALL bytes), opened when needed, each living on
 * one of the loops given; many calls in flight, answered in any order. */
#ifndef STOKE_COMMON_BLOCK_PEER_H
#define STOKE_COMMON_BLOCK_PEER_H

#include "common/blob.h"
#include "common/block/cluster.h"
#include "common/block/hello.h"
#include "common/block/source.h"

struct peers;			/* all of them */
struct peer;			/* one daemon; lives as long as peers */

enum { PEER_SMALL = 131072, PEER_MAX_IN_FLIGHT = 1024, PEER_MAX_TOMBSTONES = 64 };

struct peers_conf {
	struct hello_id id;		/* who we are; secret for TCP */
	struct loop **loops;
	unsigned n_loops;
	uint64_t connect_timeout_us;	/* TCP connect and handshake; 0: 1 s */
	struct metrics *metrics;
};

int peers_new(const struct peers_conf *conf, struct peers **ret);
void peers_free(struct peers *p);	/* closes; calls in flight end with -ECANCELED */
/* addr: host or absolute socket path; found or made. NULL: no memory or more than CLUSTER_MEMBERS_MAX */
struct peer *peers_get(struct peers *p, const char *addr, uint16_t port);

struct peer_call {
	uint8_t op;
	uint32_t flags;			/* enum frame_flag */
	uint64_t timeout_us;		/* travels as remaining time; 0: none. Not enforced here: the caller's fork does */
	uint8_t head[MSG_GET];		/* body: head, then out (PUT: data and sums) */
	size_t head_len;
	struct blob out[2];		/* memory blobs; references owned by the call until done */
	struct buf *in;			/* where the answer's body goes (reserved by the caller, owned by it) */
	size_t in_off, in_cap;		/* a body longer than this closes the connection */
	size_t in_len;			/* its length */
	int fd;				/* answer with FRAME_HAS_FD: the descriptor, caller closes; else -1 */
	char reason[REQ_REASON];	/* text of a final error */
	/* both on the connection's loop. filling: at most once, before done. status: 0 or a negative errno (msg_status_to_errno,
	 * -EHOSTDOWN, -ECONNREFUSED, -EPROTO, -EACCES, -ECANCELED) */
	void (*filling)(struct peer_call *c);
	void (*done)(struct peer_call *c, int status);
	/* private */
	struct list_node link;
	struct loop_job job;
	struct peer *peer;
	void *conn;
	uint64_t id, sent_us;
};

/* any thread; done is called exactly once, never before peer_start returned on the same loop's stack */
void peer_start(struct peer *p, struct peer_call *c, bool bulk);
/* On the call's loop thread: done will not be called any more and the call may go; the answer, if it comes, is skipped over (a tombstone). */
void peer_abandon(struct peer_call *c);

struct peer_health { bool down, slow; uint64_t p99_us; unsigned in_flight; };
void peer_health(struct peer *p, struct peer_health *ret);
/* outcome as the caller saw it (a hedge that had to be sent, a damaged answer): moves health */
void peer_note(struct peer *p, int status);
const char *peer_name(const struct peer *p);

/* --- the source layer --- */
enum source_peer_mode {
	PEER_OWNER,	/* mount: owner, then successor */
	PEER_HOLDER,	/* daemon: who should have it already, REQ_NO_FILL; never itself */
};
struct source_peer_conf {
	enum source_peer_mode mode;
	struct peers *peers;
	struct cluster_view *view;
	const char *self;		/* PEER_HOLDER: own member id. PEER_OWNER: id of the member on this node, reached through socket */
	const char *socket;		/* its unix socket; NULL: none */
	struct workq *disk;		/* reads passed descriptors that are not warm; needed with socket */
};
int source_peer_new(struct req_env *env, struct source *next, const struct source_peer_conf *conf, struct source **ret);
/* the copy on every member that may hold it is dropped: done when all that answered did; for warmup --evict */
#endif
