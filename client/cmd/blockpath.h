/* SPDX-License-Identifier: Apache-2.0 */
/* The data path of a command that reads and writes blocks itself: no group, nothing kept. */
#ifndef STOKE_CLIENT_CMD_BLOCKPATH_H
#define STOKE_CLIENT_CMD_BLOCKPATH_H

#include "client/compact.h"

struct blockpath;

/* set, loop and store must outlive it; a line in err */
int blockpath_new(const struct setting *set, struct loop *loop, struct object_store *store,
		  struct blockpath **ret, struct str *err);
/* a meta_compact_fn's arg */
struct client_compact *blockpath_compact(struct blockpath *b);
/* nobody uses it; NULL is fine */
void blockpath_free(struct blockpath *b);

#endif
