/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's layers, from the top: [store] [flight] [keep] [peer: holder] [object]; store and
 * keep are one (store.h). */
#ifndef STOKE_CACHED_CHAIN_H
#define STOKE_CACHED_CHAIN_H

#include "cached/store.h"
#include "common/block/peer.h"

struct chain_conf {
	struct source_object_conf object;
	struct source_peer_conf peer; /* peers NULL: no group, no such layer */
	struct store_conf store;
};

/* *ret is the top, freed by source_free; *ret_store its store, which lives as long. Takes conf's
 * disks over on success */
int chain_new(struct req_env *env, const struct chain_conf *conf, struct source **ret,
	      struct store **ret_store);

#endif
