/* SPDX-License-Identifier: Apache-2.0 */
/* The served side of the daemon: listeners, and the loops that own the accepted connections
 * (conn.h). */
#ifndef STOKE_CACHED_WORKER_H
#define STOKE_CACHED_WORKER_H

#include <sys/types.h>

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
	mode_t socket_mode; /* of the unix socket; 0: 0660 */
	gid_t socket_group; /* 0: of this process */
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
/* A socket that nobody listens on is replaced; -EADDRINUSE:
 * somebody does */
int server_listen_unix(struct server *s, const char *path);
/* conf.hot_share from now on. Any thread */
void server_set_hot_share(struct server *s, unsigned share);
/* As server_stop, but the listening sockets stay and are given to the caller, connections that come
 * meanwhile wait in them, and requests are answered RESTARTING. Nothing of s may be used any more
 * but by exec. ret: SERVER_LISTENERS_MAX; returns how many */
unsigned server_hand_over(struct server *s, uint64_t us, int *ret);
/* takes over a socket that listens already; ours: the path of a unix socket is removed at the end;
 * *ret_port: of TCP, else 0. 0 or -errno */
int server_adopt(struct server *s, int fd, bool ours, uint16_t *ret_port);
/* No new connections and requests; waits until what is being served is answered, at most us, then
 * closes, within a second. true: all is answered and gone; false: requests are still with the
 * chain, nothing may be freed */
bool server_stop(struct server *s, uint64_t us);
/* after server_stop was true */
void server_free(struct server *s);

#endif
