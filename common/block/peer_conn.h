/* SPDX-License-Identifier: Apache-2.0 */
/* Private to peer*.c: one connection to a daemon and what it shares with its peer. */
#ifndef STOKE_COMMON_BLOCK_PEER_CONN_H
#define STOKE_COMMON_BLOCK_PEER_CONN_H

#include <sys/socket.h>

#include "common/block/peer.h"
#include "common/hashmap.h"

enum {
	CONN_BULK,
	CONN_SMALL,
	CONN_COUNT,
};

struct conn_io; /* buffers and tables of an open connection: peer_io.c */

struct peer_conn {
	struct peer *peer;
	struct loop *loop;
	enum conn_state {
		CONN_IDLE,
		CONN_RESOLVING,
		CONN_CONNECTING,
		CONN_TLS,
		CONN_HELLO,
		CONN_PROOF,
		CONN_READY,
		CONN_CLOSED,
	} state;
	int fd;
	struct tls *tls; /* NULL: plain */
	struct loop_watch watch;
	struct loop_timer handshake, sweep;
	uint64_t sweep_us;	       /* atomic: when it is to run; 0: not */
	uint64_t retry_us, backoff_us; /* no connect before retry_us; 0: at once */
	struct list_node queue, sent;  /* calls not yet, and already given to io */
	unsigned n_queue, n_sent;
	unsigned posted; /* atomic: calls on their way here */
	uint8_t version; /* negotiated, while READY */
	bool restarting; /* nothing is sent any more; opened anew when all is answered */
	bool doomed;	 /* too many tombstones: closed by the next sweep */
	struct conn_io *io;
	/* host names are looked up in the resolver's thread */
	struct workq_job resolve;
	struct loop_job resolved;
	struct sockaddr_storage addr;
	socklen_t addr_len;
	int resolve_status;
};

struct peer_latency {
	uint32_t bucket[128]; /* quarter octaves of microseconds */
	uint32_t n;
};

struct peer {
	struct hash_node node;
	struct list_node link;
	struct peers *peers;
	char addr[MEMBER_ADDR_MAX];
	uint16_t port;
	bool local;
	char name[MEMBER_ADDR_MAX + 8];
	struct peer_conn conn[CONN_COUNT];
	uint64_t last_rx_us; /* atomic */
	/* it said RESTARTING: until then calls wait for its next program; atomic */
	uint64_t hold_until_us;
	unsigned in_flight; /* atomic */

	struct mtx lock;
	bool down GUARDED_BY(lock), slow GUARDED_BY(lock);
	int error GUARDED_BY(lock);
	unsigned damaged GUARDED_BY(lock);
	struct peer_latency latency GUARDED_BY(lock);
	/* probe_job is posted, or the probe's timer or call is alive */
	bool probing GUARDED_BY(lock);

	/* the small connection's loop only */
	struct loop_job probe_job;
	struct loop_timer probe_timer;
	struct peer_call probe_call;
	bool probe_out; /* the call is on its way */
	unsigned probe_failures;
};

struct peers {
	struct peers_conf conf;
	struct workq *resolver;
	bool closing; /* atomic */
	struct metric *ok, *failed, *timed_out, *held, *connects, *refused, *latency, *slow;

	struct mtx lock;
	struct hashmap map GUARDED_BY(lock);
	struct list_node all GUARDED_BY(lock);
	unsigned n GUARDED_BY(lock);
};

/* --- peer_conn.c: states of a connection; its loop's thread only --- */
void conn_init(struct peer_conn *c, struct peer *p, struct loop *l);
/* takes a call over: it waits for the next conn_flush, or ends */
void conn_submit(struct peer_conn *c, struct peer_call *call);
/* sends what waits, as far as the socket takes it */
void conn_flush(struct peer_conn *c);
/* the connection breaks: everything in it ends with status */
void conn_fail(struct peer_conn *c, int status, const char *why);
void conn_close(struct peer_conn *c); /* for good: -ECANCELED */
/* what to wait for now */
void conn_update_watch(struct peer_conn *c);
/* the handshake's answers, from peer_io.c; <0: the connection breaks */
int conn_handshake(struct peer_conn *c, const struct frame *f, const uint8_t *body);
/* the daemon answered RESTARTING: the call is sent again over the next connection. false: it was
 * once already */
bool conn_hold(struct peer_conn *c, struct peer_call *call);
/* takes call out of its list and tells its owner */
void conn_end(struct peer_conn *c, struct peer_call *call, int status);

/* --- peer_io.c: bytes of a connection; its loop's thread only --- */
enum call_state {
	CALL_POSTED,
	CALL_QUEUED,
	CALL_SENT,
	CALL_ENDING,
};
int io_new(struct conn_io **ret);
void io_free(struct conn_io *io); /* NULL is fine */
struct hello_state *io_hello(struct conn_io *io);
/* a handshake frame goes out before any call */
void io_send_raw(struct conn_io *io, uint8_t op, const uint8_t *body, size_t n);
bool io_wants_write(const struct peer_conn *c);
/* <0: the connection breaks */
int io_write(struct peer_conn *c);
int io_read(struct peer_conn *c, const char **why);
/* the slot of a sent call becomes a tombstone; -EOVERFLOW when there are too many */
int io_bury(struct peer_conn *c, struct peer_call *call);

/* --- peer.c --- */
void peer_connected(struct peer *p);		      /* a connection is ready */
void peer_connect_failed(struct peer *p, int status); /* and probing starts */
bool peer_gate(struct peer *p, int *ret_status);      /* false: down */
void peer_observe(struct peer *p, uint64_t us);

#endif
