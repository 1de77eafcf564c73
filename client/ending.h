/* SPDX-License-Identifier: Apache-2.0 */
/* Looks on while a mount ends: says what it waits for and how long still, and gives up when nothing
 * was stored for PATIENCE, or when it is told to. Giving up ends the process, with status 1, after
 * it named the files whose data is lost and took the file system out of the tree. */
#ifndef STOKE_CLIENT_ENDING_H
#define STOKE_CLIENT_ENDING_H

#include "client/meta/meta.h"
#include "client/writer.h"

struct ending;
struct ending_conf {
	struct meta *meta;
	struct writer *writer;
	const char *mount_point;
	int again_fd; /* readable: again(arg) says whether it is time; -1: none */
	bool (*again)(void *arg);
	void *arg;
};
/* NULL: no memory or no thread; the mount ends without it */
struct ending *ending_start(const struct ending_conf *conf);
/* everything is stored or has failed: does not return when it was given up before. NULL is fine */
void ending_stop(struct ending *e);

#endif
