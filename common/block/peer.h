/* SPDX-License-Identifier: Apache-2.0 */
/* Pipelined connections from this process to daemons. Per daemon at most two (bulk; answers up to
 * PEER_SMALL bytes), opened when needed, each living on one of the loops given; many calls in
 * flight, answered in any order. */
#ifndef STOKE_COMMON_BLOCK_PEER_H
#define STOKE_COMMON_BLOCK_PEER_H

#include "common/blob.h"
#include "common/block/cluster.h"
#include "common/block/hello.h"
#include "common/block/source.h"
#include "common/diskq.h"

struct peers; /* all of them */
struct peer;  /* one daemon; lives as long as peers */

enum {
	PEER_SMALL = 131072,
	PEER_MAX_IN_FLIGHT = 1024,
	PEER_MAX_TOMBSTONES = 64,
	PEER_SWEEP_US = 50000,
	PEER_PROBE_US = 1000000,
	PEER_HOLD_US = 1000000 /* for a daemon that said RESTARTING */
};

struct peers_conf {
	struct hello_id id; /* who we are */
	struct keys *keys;  /* secret and TLS for TCP; NULL: id.secret, plain */
	struct loop **loops;
	unsigned n_loops;
	uint64_t connect_timeout_us; /* TCP connect, and a fifth of the handshake's; 0: 1 s */
	struct metrics *metrics;
};

/* loops and the texts in id are kept by pointer */
int peers_new(const struct peers_conf *conf, struct peers **ret);
/* Closes all connections for good: calls in flight and those to come end with -ECANCELED. For the
 * end, when nobody should wait for a daemon any more; not on one of the loops. */
void peers_close(struct peers *p);
/* peers_close, then frees. Nobody may use p any more; not on one of the loops. NULL is
 * fine */
void peers_free(struct peers *p);
/* the volume's id from now on, for handshakes to come; connections that are open stay. Any
 * thread */
void peers_set_volume(struct peers *p, const struct hash128 *volume);
/* addr: host or absolute socket path; found or made. NULL: no memory or more than
 * CLUSTER_MEMBERS_MAX */
struct peer *peers_get(struct peers *p, const char *addr, uint16_t port);

struct peer_call {
	uint8_t op;
	/* 0: any. Where a connection negotiated less the call is not sent and ends with
	 * -EPROTONOSUPPORT: do it the way of the older version */
	uint8_t min_version;
	uint32_t flags;	     /* enum frame_flag */
	uint64_t timeout_us; /* travels as remaining time; 0: none */
	/* The call ends with -ETIMEDOUT (and leaves a tombstone) when nothing of its answer came
	 * for that long: neither FILLING nor a byte of the body. Looked at every PEER_SWEEP_US, so
	 * always later than a fork's own timer; it only gives back what the fork already gave up.
	 * The owner may change it on the call's loop (in filling). 0: never */
	uint64_t quiet_us;
	uint8_t head[MSG_GET]; /* body: head, then out (PUT: data and sums) */
	size_t head_len;
	struct blob out[2]; /* memory blobs; references owned by the call until done */
	/* where a good answer's body goes (reserved by the caller, owned by it); NULL: a small one
	 * is skipped */
	struct buf *in;
	size_t in_off, in_cap; /* a body longer than in_cap closes the connection */
	size_t in_len;	       /* its length */
	int fd; /* answer with FRAME_HAS_FD: the descriptor, caller closes; else -1 */
	/* the answer's status (ops.def) when there was one, else ST_OK; tells -EACCES of an object
	 * from that of a handshake */
	uint16_t verdict;
	char reason[REQ_REASON]; /* text of an answered error, or what broke the connection */
	/* both on the connection's loop. filling: at most once, before done. status: 0 or a
	 * negative errno (msg_status_to_errno, -EHOSTDOWN, -ECONNREFUSED, -ETIMEDOUT, -EPROTO,
	 * -EACCES, -ESTALE, -EBUSY (PEER_MAX_IN_FLIGHT are waiting), -ECANCELED). filling may be
	 * NULL; done may free the call. */
	void (*filling)(struct peer_call *c);
	void (*done)(struct peer_call *c, int status);
	/* private */
	struct list_node link;
	struct loop_job job;
	struct peer *peer;
	void *conn;
	uint64_t id, sent_us, moved_us;
	uint8_t state;
	bool filled, probe, held;
};

/* any thread; done is called exactly once, never before peer_start returned on the same loop's
 * stack */
void peer_start(struct peer *p, struct peer_call *c, bool bulk);
/* On the call's loop thread (peer_loop), after peer_start's job ran there or from the call's own
 * callbacks: done will not be called any more and the call may go; the answer, if it comes, is
 * skipped over (a tombstone). */
void peer_abandon(struct peer_call *c);
/* the loop on which this peer's calls live */
struct loop *peer_loop(const struct peer *p, bool bulk);
/* any thread: sends op (BAD, CLOSED) and forgets it; its answer is awaited and dropped. Lost
 * without memory or connection. CLOSED goes over the connection that the descriptor came over: the
 * daemon counts there. */
void peer_tell(struct peer *p, bool bulk, uint8_t op, const uint8_t *body, size_t n);

/* down: calls end at once with the status of the last try to connect, and a probe tries again in
 * the background. slow: it answered too late; a probe asks until it answers in time. idle_us: since
 * the last byte from it came, over all its connections; time in which we did not run, and could not
 * have read it, does not count. p99_us: 0 while there are too few answers to tell. */
struct peer_health {
	bool down, slow;
	int error;
	uint64_t p99_us, idle_us;
	unsigned in_flight;
};
void peer_health(struct peer *p, struct peer_health *ret);
/* Outcome as the caller saw it: -ETIMEDOUT (a hedge had to be sent) makes it slow and starts
 * probing, -EBADMSG (a damaged answer) does so when it happens often; 0 is good news; others change
 * nothing. */
void peer_note(struct peer *p, int status);
/* asks in the background whether it still answers; if not within PEER_PROBE_US it is slow */
void peer_probe(struct peer *p);
const char *peer_name(const struct peer *p);
bool peer_is_local(const struct peer *p); /* a unix socket: descriptors can be asked for */

/* --- the source layer --- */
enum source_peer_mode {
	/* Mount: owner, then successor; before them its sub-group's owner, and before all the
	 * daemon of this node when that is no member and keeps what passes. */
	PEER_OWNER,
	/* Daemon, as a member: the others on the block's path (cluster.h), by NO_FILL, then the
	 * ring's owner, who fills it; each is left when he was silent for 300 ms; never itself. As
	 * a consumer: as a mount. Who is asked by a member (REQ_MEMBER) asks others by NO_FILL
	 * only: so there are no loops, whatever the rings are. */
	PEER_HOLDER,
};
struct source_peer_conf {
	enum source_peer_mode mode;
	struct peers *peers;
	struct cluster_view *view;
	/* PEER_HOLDER: own member id. PEER_OWNER: id of the member on this node, reached through
	 * socket */
	const char *self;
	const char *socket;    /* its unix socket; NULL: none */
	const char *sub_group; /* NULL: none */
	struct diskq *disk;    /* reads passed descriptors that are not warm; needed with socket */
	uint64_t remote_us;    /* a peer may be silent for so long (--remote-timeout); 0: 5 s */
};
/* Each try is a fork with memory of its own, and the request's reservation is given back for as
 * long, so a request costs one block of memory (two for the moment in which the fork is made).
 * Without memory for a fork the request is carried out with its own reservation, one peer after the
 * other, without a hedge. The layer below gets the request with its memory reserved again. A passed
 * descriptor that is in the cache serves a warm read at once, without a fork and without the
 * daemon. DROP goes to everybody who may have a copy: 0 when one of them did it, or when there is
 * nobody. Freed before peers, view and disk are. self and socket are kept by pointer. */
int source_peer_new(struct req_env *env, struct source *next, const struct source_peer_conf *conf,
		    struct source **ret);
#endif
