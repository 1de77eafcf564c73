/* SPDX-License-Identifier: Apache-2.0 */
/* The mount's view of its cache group: a thread asks once a second, the node's daemon (RING through
 * its socket) or the volume's Redis, and swaps the snapshot. When neither answers, the last one
 * stays. */
#ifndef STOKE_CLIENT_GROUP_H
#define STOKE_CLIENT_GROUP_H

#include "common/block/peer.h"
#include "common/block/registry.h"

struct group;

struct group_conf {
	struct cluster_view *view;
	struct peers *peers; /* to ask the daemon */
	struct pool *pool;   /* memory of its answers */
	struct keys *keys;   /* looked at each second: new files are read; NULL: none */
	const char *socket;  /* its unix socket, or NULL */
	struct redis *redis; /* for the registry: asked at the start, and always without a socket */
	const char *name;    /* of the group; for the registry */
};

/* Asks the daemon behind socket who it is: its member id. Blocks for at most some seconds. -ENOENT,
 * -ECONNREFUSED: nobody is there; -ESTALE: it serves another volume, and goes on to (when the
 * generation changes, it hears of that a second later than we may); -EACCES: another group;
 * -EPROTO, -EPROTONOSUPPORT, -ETIMEDOUT */
int group_ask_self(const char *socket, const struct hello_id *id, char self[MEMBER_ID_MAX]);

/* name NULL: a private daemon, which is a ring of one. Else asks once before it returns, for at
 * most wait_us; 0 also when nobody answered yet, or -errno */
int group_new(const struct group_conf *conf, uint64_t wait_us, struct group **ret);
/* Two steps, because a call to the daemon may be out: group_stop, peers_close or peers_free,
 * group_free. NULL is fine. */
void group_stop(struct group *g);
void group_free(struct group *g);

#endif
