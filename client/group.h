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
	const char *socket;  /* its unix socket, or NULL: */
	struct redis *redis; /* then the registry is asked */
	const char *name;    /* of the group; for the registry */
};

/* asks once before it returns, for at most wait_us; 0 also when nobody answered yet, or -errno */
int group_new(const struct group_conf *conf, uint64_t wait_us, struct group **ret);
/* id of the daemon on this node, as it was known when group_new returned; NULL: none, or not known.
 * Owned by g */
const char *group_self(const struct group *g);
/* NULL is fine. The peers must still be there. */
void group_free(struct group *g);

#endif
