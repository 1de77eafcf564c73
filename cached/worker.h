/* SPDX-License-Identifier: Apache-2.0 */
/* The served side of the daemon: listeners, and the loops that own the accepted connections
 * (conn.h). */
#ifndef STOKE_CACHED_WORKER_H
#define STOKE_CACHED_WORKER_H

#include "cached/counters.h"
#include "cached/store.h"
#include "common/block/hello.h"

struct server;

struct server_conf {
	struct loop **loops; /* connections are spread over them */
	unsigned n_loops;
	struct req_env *env;
	struct source *chain; /* store on top */
	struct store *store;
	struct counters *counters;
	struct cluster_view *view; /* RING answers; NULL: no group */
	const char *group, *node;  /* "" without a group; kept by pointer */
	struct keys *keys;	   /* secret and TLS for TCP; NULL: secret, plain */
	const struct secret *secret;
	unsigned max_conns;
	/* answers of one block at once, before its owner sends askers to its successor; 0: never */
	unsigned hot_share;
	struct hot *hot;     /* the server's own, */
	struct turns *turns; /* set by server_new */
};

enum { SERVER_WORKERS_MAX = 16, SERVER_LISTENERS_MAX = 8 };

int server_new(const struct server_conf *conf, struct server **ret);
/* addr: an IP or host name, NULL: all; port 0: any free one. May be called more than once before
 * and after connections came. 0 or -errno */
int server_listen_tcp(struct server *s, const char *addr, uint16_t port, uint16_t *ret_port);
/* The socket is made with mode 0660. A socket that nobody listens on is replaced; -EADDRINUSE:
 * somebody does */
int server_listen_unix(struct server *s, const char *path);
/* No new connections and requests; waits until what is being served is answered, at most us, then
 * closes. true: all is answered and gone; false: requests are still with the chain, nothing may be
 * freed */
bool server_stop(struct server *s, uint64_t us);
/* after server_stop was true */
void server_free(struct server *s);

#endif
