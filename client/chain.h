/* SPDX-License-Identifier: Apache-2.0 */
/* The client's whole stack: [ram] -> [flight] -> [ram] -> [peer: owner, then successor] ->
 * [object]. [ram] is one memory in two halves (source_front_new, source_keep_new). */
#ifndef STOKE_CLIENT_CHAIN_H
#define STOKE_CLIENT_CHAIN_H

#include "common/block/peer.h"

/* pointers are kept, and must outlive the chain */
struct client_chain_conf {
	struct req_env *env;
	size_t ram_bytes; /* of the pool, for blocks kept in memory */
	struct object_store *store;
	const char *volume_name;
	bool hash_prefix;
	struct workq *codecs; /* NULL when blocks are not encoded */
	/* NULL: no group, no peer layer; the four below are not looked at then */
	struct peers *peers;
	struct cluster_view *view;
	const char *self;      /* id of the member on this node, NULL: none */
	const char *socket;    /* its unix socket, NULL: none */
	const char *sub_group; /* NULL: none */
	struct diskq *disk;    /* reads its descriptors; needed with socket */
	uint64_t remote_us;    /* source_peer_conf's */
};

/* freed with source_free, after req_env_drain */
int client_chain_new(const struct client_chain_conf *conf, struct source **ret);

#endif
