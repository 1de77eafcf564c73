/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of .control on the volume's tree (client/internal.h): info, summary, rmr, clone,
 * compact. Between control.c (text) and the metadata engine. */
#ifndef STOKE_CLIENT_CONTROL_TREE_H
#define STOKE_CLIENT_CONTROL_TREE_H

#include "client/control.h"

enum tree_verb { TREE_INSPECT, TREE_SUMMARY, TREE_REMOVE, TREE_CLONE, TREE_COMPACT };
struct tree_ask {
	enum tree_verb verb;
	uint64_t inode;		 /* what it is about: of REMOVE and CLONE's goal, the directory */
	uint64_t src;		 /* CLONE */
	unsigned depth, entries; /* SUMMARY */
	unsigned threads;	 /* 0: as usual */
	uint32_t umask;
	bool recursive, raw, skip_trash, preserve;
	struct str name; /* bytes, without escapes */
};

/* A request's line, cut into words here: 0 and *ret, or NULL when it is none of these; -EINVAL,
 * -ENOMEM */
int tree_ask_parse(const char *line, struct tree_ask **ret);
void tree_ask_free(struct tree_ask *a);

/* Does it, and says how it goes and how it ended. In a thread of its own; blocks. */
void tree_run(struct control *c, const struct tree_ask *a);

#endif
