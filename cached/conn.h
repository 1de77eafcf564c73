/* SPDX-License-Identifier: Apache-2.0 */
/* One served connection, and the calls on it. Everything here runs on the connection's loop, except
 * that a call's block request is completed by anybody, and that a disk thread sends while the
 * connection is lent to it. Private to worker.c, conn.c (reading, life), serve.c (operations) and
 * answer.c (writing).
 *
 * Connection: who may do what
 *
 *	state		reads			answers			leaves by
 *	TLS		its handshake		its handshake		the same; plain bytes
 *	HELLO		one HELLO		WELCOME or a refusal	5 s of silence;
 *									anything else
 *	PROOF		one PROOF (TCP only)	OK or DENIED		the same
 *	SERVING		requests, while fewer	out of order		end of stream, garbage,
 *			than CONN_MAX_CALLS				a stalled frame or
 *			are unanswered and				reader
 *			fewer bytes than
 *			memory_max wait
 *			in memory
 *	CLOSED		nothing			nothing			freed when its last call
 *									ended and no disk thread
 *									works for it
 *
 * Call: received -> in line for its turn (turns.h) -> with the chain (in conn->calls) -> answer in
 * conn->out -> sent -> freed; on a closed connection it ends as soon as the chain gives it back. */
#ifndef STOKE_CACHED_CONN_H
#define STOKE_CACHED_CONN_H

#include <sys/socket.h>

#include "cached/hot.h"
#include "cached/passed.h"
#include "cached/turns.h"
#include "cached/worker.h"
#include "common/block/source.h"

enum {
	CONN_IN = 2048, /* room for frames; bodies of PUT go to their own memory */
	CONN_MAX_CALLS = 256,
	CONN_MAX_FDS = 4096, /* descriptors of blocks a mount may hold; beyond it bytes are sent */
	/* ranges up to this are read on the loop when their pages are in memory */
	CONN_INLINE_MAX = 131072,
	CONN_HELLO_US = 5000000, /* for TLS, HELLO and PROOF together */
	/* connections of a worker that are not yet SERVING, and those of one address (of two that
	 * share a bucket); then the oldest of them goes */
	CONN_STRANGERS_MAX = 2048,
	CONN_STRANGERS_PER_ADDRESS = 256,
	/* the same with TLS, where each of them holds 26 KiB: at most 54 MiB for eight workers */
	CONN_TLS_STRANGERS_MAX = 256,
	CONN_TLS_STRANGERS_PER_ADDRESS = 64,
	/* TLS handshakes of one address in a second that no proof followed: they cost a
	 * millisecond each of the loop that serves members */
	CONN_TLS_PER_SECOND = 64,
	CONN_BUCKETS = 256,
	CONN_FRAME_US = 10000000, /* from a frame's first byte to its last */
	CONN_BODY_US = 60000000,  /* the same for the body of a PUT */
	CONN_WRITE_US = 30000000, /* without a byte taken by the reader */
	CONN_STALL_US = 2000000,  /* the same for one whose answers others wait for */
	/* answers that wait in memory, at most (or a quarter of the pool): then nothing
	 * more is read from the connection */
	CONN_MEMORY_MAX = 32 << 20,
	CONN_SHED_US =
		200000, /* answers that wait so long need no memory if their block is stored */
	WORKER_INLINE_BYTES = 16 << 20, /* memory for answers read on the loop */
};

/* why a connection is closed, as counted and logged; REJECT_NONE: it ended by itself */
enum reject {
	REJECT_NONE,
	REJECT_OTHER_VOLUME,
	REJECT_HANDSHAKE,
	REJECT_SECOND_HANDSHAKE,
	REJECT_NO_HANDSHAKE,
	REJECT_TOO_EARLY,
	REJECT_BAD_LENGTH,
	REJECT_GARBAGE,
	REJECT_CROWD,
	REJECT_ENDLESS,
	REJECT_STALLED,
	REJECT_PLAIN,
	REJECT_TLS,
	REJECT_KINDS,
};

struct worker {
	const struct server_conf *conf;
	struct loop *loop;
	struct list_node strangers;  /* connections before SERVING, oldest first */
	struct list_node conns;	     /* SERVING, the one that was silent longest first */
	struct list_node closed;     /* not yet freed */
	unsigned n_conns, max_conns; /* not freed yet; most of them */
	unsigned n_strangers;
	uint16_t strangers_of[CONN_BUCKETS];  /* by address */
	uint16_t handshakes_of[CONN_BUCKETS]; /* TLS, since second_us */
	uint64_t second_us;
	size_t inline_bytes, memory_max;
	struct loop_timer sweep;
	bool stopping;
	bool restarting; /* with stopping: another program goes on behind the same sockets */
};

enum conn_state { CONN_TLS, CONN_HELLO, CONN_PROOF, CONN_SERVING, CONN_CLOSED };

struct conn {
	struct list_node link; /* in one of the worker's lists */
	struct worker *worker;
	struct loop_job start;
	struct loop_watch watch;
	int fd;
	enum conn_state state;
	uint8_t version;     /* of the protocol, negotiated; from PROOF on */
	uint8_t role;	     /* enum msg_role, from PROOF on */
	bool local;	     /* unix socket */
	bool counted;	     /* among the worker's strangers */
	uint8_t bucket;	     /* of its address */
	bool last_answer;    /* closes when everything is sent */
	bool lent;	     /* to a disk thread, which sends the first of out */
	unsigned busy;	     /* frames of this connection on the stack: not freed meanwhile */
	uint64_t since_us;   /* a stranger's connect, an unfinished frame's first byte; 0: none */
	uint64_t written_us; /* when the reader last took a byte while something waits */
	struct hello_state *hello; /* until SERVING */
	struct tls *tls;	   /* NULL: plain; the disk thread's while lent */
	struct list_node calls, out;
	unsigned n_calls; /* both lists, those in line, and a body being read */
	struct turns_line line[TURN_CLASSES];
	struct passed_holder held; /* descriptors that went out */
	struct call *body;	   /* a PUT whose body is being read */
	size_t body_have;
	size_t memory_bytes; /* in answers: of the pool, and long bodies */
	/* a disk thread opens the file of a block whose answer waits in memory; NULL: none does */
	struct shed *shedding;
	size_t have;
	uint8_t in[CONN_IN];
};

struct call {
	struct list_node link;
	struct conn *conn;
	struct loop_job job;
	struct frame frame; /* the request's */
	struct block_key key;
	uint32_t off, len;
	bool pins; /* FILL: keep it until pin_until */
	uint64_t pin_until;
	struct block_req *req;
	struct pool_wait wait; /* PUT: memory for the body */
	bool waiting;	       /* for it */
	size_t reserved;
	int status;
	/* turns.c's: what it counts there, and what happens when its turn has come */
	size_t turn_bytes;
	struct hash_node turn_node;
	void (*go)(struct call *k);
	bool under_way, hot; /* counted among the turns; in the worker's hot blocks */
	/* the answer: head, then data, then tail (or the same from a file) */
	uint8_t head[FRAME_HEADER];
	struct blob data;
	struct blob sums_file; /* behind data that is a file */
	uint8_t *tail;
	/* counted in the worker's inline_bytes, in the connection's memory_bytes */
	size_t tail_len, inline_len, memory_len;
	bool pass_fd;
	size_t sent;
	/* sent by a disk thread, which uses these, head, data and sums_file alone. When the disk
	 * hangs the thread keeps the call, and it belongs to no connection any more */
	struct disk_job send_job;
	struct loop_job sent_job, late_job;
	struct loop *late_loop;
	int send_fd, sent_result;
	atomic_uint send_state;
	struct tls *send_tls;
	bool owns_fd;	  /* send_fd and send_tls end with it */
	bool asked_again; /* of the chain a second time: its file could not be read */
};

/* --- conn.c --- */
/* takes fd over; starts on the worker's loop. peer: the address, NULL: unix socket. 0 or -ENOMEM */
int conn_new(struct worker *w, int fd, const struct sockaddr_storage *peer);
/* no byte goes in or out any more; why counts it as rejected and says so in the log, but for
 * REJECT_NONE */
void conn_drop(struct conn *c, enum reject why);
/* frees c when nothing holds it; the last statement of everything that ran for it */
void conn_settle(struct conn *c);
/* reads and writes as far as the state wants it */
void conn_watch(struct conn *c);
/* takes frames that have been read, and writes answers, as far as both go */
void conn_run(struct conn *c);

/* --- serve.c --- */
/* one request, complete but for a PUT's body; a refusal may close the connection */
void serve_frame(struct conn *c, const struct frame *f, const uint8_t *body);
/* its body has come */
void serve_put(struct call *k);
/* serve_list.c */
void serve_list(struct call *k, const uint8_t *body);
/* a GET whose answer could not be read: in no list, without data; the chain is asked once more */
void serve_again(struct call *k);

/* --- answer.c --- */
struct call *call_new(struct conn *c, const struct frame *f);
/* drops all it holds; it must be in no list */
void call_free(struct call *k);
/* status without data; text (may be NULL) is its body */
void answer_status(struct call *k, unsigned status, const char *text);
/* takes body (malloc'ed) over */
void answer_bytes(struct call *k, unsigned status, uint8_t *body, size_t len);
/* interim: I am fetching it */
void answer_filling(struct call *k);
/* the range of the block in k->req->data */
void answer_block(struct call *k);
/* something waits to be written */
bool answer_waits(const struct conn *c);
/* writes what waits, or lends the connection */
void answer_flush(struct conn *c);
/* A reader that is slow: answers that wait in memory become answers from the files of their blocks,
 * one after the other. */
void answer_shed(struct conn *c);

#endif
