/* SPDX-License-Identifier: Apache-2.0 */
/* Writing the slice that pieces of others become: reads them through the chain, stores whole
 * blocks. */
#ifndef STOKE_CLIENT_COMPACT_H
#define STOKE_CLIENT_COMPACT_H

#include "client/meta/meta.h"
#include "client/upload.h"

struct client_compact {
	struct req_env *env;
	struct source *chain;
	struct uploads *uploads; /* by client_compact_init */
};

/* 0 or -ENOMEM */
int client_compact_init(struct client_compact *c, struct req_env *env, struct source *chain);
/* nothing of it runs; an empty one is fine */
void client_compact_fini(struct client_compact *c);
/* A meta_compact_fn; arg: struct client_compact. Blocks. 0: every block is stored; else the first
 * error, and some may be. Holds one block of memory of its own, and none of the pool while it waits
 * for some. */
int client_compact_slice(void *arg, const struct compact_job *job);

#endif
