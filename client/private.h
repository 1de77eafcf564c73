/* SPDX-License-Identifier: Apache-2.0 */
/* A private stoke-cached for --cache-dir without a group: a child on a unix socket in a directory
 * that only this user may enter. It ends when its standard input, a pipe from here, ends: with the
 * mount, however that goes. When it dies, it is started again with back-off; reads go on from the
 * object store meanwhile. */
#ifndef STOKE_CLIENT_PRIVATE_H
#define STOKE_CLIENT_PRIVATE_H

#include "common/str.h"

struct private;

struct private_conf {
	/* URL with its password, which goes to the child's environment, not to its arguments */
	const char *meta;
	const char *cache_dir;
	uint64_t cache_bytes;
	double free_space_ratio;
	const char *log; /* file for its lines, or NULL: ours */
};

/* starts it and waits until it listens. 0 or -errno with err set */
int private_new(const struct private_conf *conf, struct private **ret, struct str *err);
const char *private_socket(const struct private *p);
/* ends it, waits, removes the directory. NULL is fine. */
void private_free(struct private *p);

#endif
