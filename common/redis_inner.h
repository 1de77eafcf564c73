/* SPDX-License-Identifier: Apache-2.0 */
/* What redis*.c share. redis.c: the pool and commands that are retried; redis_conn.c: one
 * connection; redis_route.c: which server is asked, with redis_sentinel.c and redis_cluster.c;
 * redis_check.c: what the server is and how it is set; redis_scan.c: what comes in pages. */
#ifndef STOKE_COMMON_REDIS_INNER_H
#define STOKE_COMMON_REDIS_INNER_H

#include "common/list.h"
#include "common/mtx.h"
#include "common/redis.h"
#include "common/redis_tls.h"
#include "common/redis_url.h"
#include "common/spin.h"

struct redisReader;

enum { REDIS_PROBE_US = 1000000 }; /* so long is one sentinel or node asked where the server is */

struct redis_nodes {
	struct redis_addr *v; /* up to REDIS_ADDRS_MAX */
	size_t n;
};

/* one command, ready for the wire, and what came back */
struct redis_ask {
	const char *cmd;
	size_t len;
	uint64_t deadline_us;
	struct redis_reply *reply;
	bool by_script, asked; /* as in redis_conn */
	struct redis_addr to;  /* whom to ask, if asked */
	char text[256];	       /* the server's words, when it refused; or empty */
};

/* see redis_pipe.c */
struct redis_pipe {
	const void *owner; /* a thread, while a fiber of it asks; atomic */
	struct redis_conn *c;
	struct list_node asking; /* in the order of sending */
	struct str out, spare;
	unsigned n_asking, n_unsent;
	bool led, sending;
};

struct redis {
	struct spin spin; /* of those who wait for an answer */
	struct redis_pipe pipe;
	struct redis_url url;
	enum redis_mode mode;
	struct redis_tls *tls; /* NULL: none */
	char *name;
	char prefix[REDIS_PREFIX_MAX];
	unsigned slot; /* of the prefix, in a cluster */
	struct redis_conf conf;
	enum redis_route route; /* PRIMARY unless the caller only reads */
	uint64_t min_backoff_us, max_backoff_us;
	bool on_replica; /* the server of the URL was a replica when it was first asked */

	struct mtx lock;
	struct cond freed; /* an idle connection, or room for one */
	struct list_node idle GUARDED_BY(lock);
	unsigned n_conns GUARDED_BY(lock);
	uint64_t births GUARDED_BY(lock); /* connections that were ever opened */

	char refusal[256] GUARDED_BY(lock);   /* what the server last refused with */
	uint64_t refusal_us GUARDED_BY(lock); /* when that was logged */

	/* which server is asked; see redis_route.c */
	struct cond found;
	struct redis_addr node GUARDED_BY(lock);
	uint64_t epoch GUARDED_BY(lock);   /* counts the servers; a connection knows its own */
	bool known GUARDED_BY(lock);	   /* node is believed */
	bool looking GUARDED_BY(lock);	   /* one thread asks; the three below are its own */
	uint64_t n_looks GUARDED_BY(lock); /* how often somebody asked */
	int look_result GUARDED_BY(lock);  /* of the last time */
	uint64_t looked_us GUARDED_BY(lock);
	struct redis_nodes nodes; /* sentinels or nodes of the cluster, as last told */
	unsigned first;		  /* who is asked first: the one that answered last time */
};

struct redis_conn {
	struct redis *r;
	int fd;
	struct redis_tls_conn *tls;
	struct redisReader *reader;
	struct str out; /* appended, not sent yet */
	struct list_node link;
	struct redis_addr addr;
	uint64_t epoch;	  /* r->epoch when it was opened; 0: not one of the pool */
	uint64_t used_us; /* when it was given back */
	uint64_t birth;	  /* r->births when it was opened */
	unsigned pending; /* replies not taken */
	bool broken;
	bool stale;	/* its server is not the right one any more: not to be used again */
	bool by_script; /* the last error is a script's own number: "ERRNO n" */
	bool asked;	/* the last error names ask as the one to ask for this key */
	struct redis_addr ask;
	char error[256];
};

/* --- redis.c --- */

/* sleeps before another attempt, longer with each, at most to the deadline */
void redis_backoff(const struct redis *r, unsigned attempt, uint64_t deadline_us);

/* --- redis_conn.c --- */

/* Connects, with TLS, and gives user and password (NULL: none). The connection belongs to no pool:
 * redis_conn_close. On failure ret is untouched and why (may be NULL) tells more. */
int redis_conn_open(struct redis *r, const struct redis_addr *a, const char *user,
		    const char *password, uint64_t deadline_us, struct redis_conn **ret,
		    struct str *why);
void redis_conn_close(struct redis_conn *c);
/* a server that closed or said something unasked is of no use */
bool redis_conn_is_alive(struct redis_conn *c);
/* bytes of commands that the caller counts in c->pending; on failure c is broken */
int redis_conn_send(struct redis_conn *c, const char *p, size_t len, uint64_t deadline_us);
/* a command ready for the wire */
int redis_conn_append_raw(struct redis_conn *c, const char *cmd, size_t len);

/* --- redis_pipe.c --- */

/* Asks over the connection that the fibers of this thread share. false: not now, or it is no fiber
 * that asks: it has to take a connection of its own. ret: as redis_next. */
bool redis_pipe_ask(struct redis *r, struct redis_ask *a, int *ret);
/* what c said last, into a; e: its result */
void redis_ask_note(struct redis_ask *a, const struct redis_conn *c, int e);

/* --- redis_route.c --- */

/* The server to ask now, found out by one thread for all. -ECONNREFUSED, -ETIMEDOUT, -EAGAIN. */
int redis_route_get(struct redis *r, uint64_t deadline_us, struct redis_addr *ret,
		    uint64_t *ret_epoch, struct str *why);
/* the server of that epoch failed or is not what it was: it is looked for again, by who needs it */
void redis_route_doubt(struct redis *r, uint64_t epoch);
/* the server of that epoch says that another one has the slot */
void redis_route_moved(struct redis *r, uint64_t epoch, const struct redis_addr *to);
/* The server of that epoch is silent: true when another one took its place. Asks at most once a
 * second, for all. */
bool redis_route_left(struct redis *r, uint64_t epoch);

/* one more, unless it is there or there is no room; v is freed by free */
void redis_nodes_add(struct redis_nodes *n, const struct redis_addr *a);
/* old becomes by, which must not be used afterwards, unless that is empty */
void redis_nodes_replace(struct redis_nodes *old, struct redis_nodes *by);

/* --- redis_sentinel.c, redis_cluster.c: called by one thread at a time --- */

/* What one of them says, and whom else it knows (r->nodes). keep: the server that was used last,
 * NULL if it is in doubt; among replicas it stays. */
int redis_sentinel_ask(struct redis *r, const struct redis_addr *sentinel, uint64_t deadline_us,
		       const struct redis_addr *keep, struct redis_addr *ret, struct str *why);
int redis_cluster_ask(struct redis *r, const struct redis_addr *node, uint64_t deadline_us,
		      const struct redis_addr *keep, struct redis_addr *ret, struct str *why);
/* only the latter, over a connection that is there */
int redis_cluster_learn(struct redis_conn *c, uint64_t deadline_us);
unsigned redis_cluster_slot(const char *key, size_t len);

/* --- redis_check.c --- */

/* the first connection: is it Redis, new enough, a cluster's node. Sets r->mode, r->on_replica. */
int redis_check_first(struct redis_conn *c, uint64_t deadline_us, struct str *why);
/* is it in the role that it is used in: 0, or -EAGAIN */
int redis_check_role(struct redis_conn *c, uint64_t deadline_us, bool replica, struct str *why);

#endif
