/* SPDX-License-Identifier: Apache-2.0 */
/* Between control.c (text) and warm.c (blocks): one request of .control. */
#ifndef STOKE_CLIENT_WARM_H
#define STOKE_CLIENT_WARM_H

#include "client/control.h"
#include "common/hashmap.h"
#include "common/mtx.h"

enum control_state { CONTROL_ASKING, CONTROL_RUNNING, CONTROL_DONE };
enum warm_mode { WARM_FILL, WARM_CHECK, WARM_EVICT, WARM_UNPIN };

struct tree_ask;
struct control {
	const struct control_conf *conf;
	struct meta_ctx who;   /* opened it */
	struct tree_ask *tree; /* the request, when it is not a warm-up */
	void (*wake)(void *arg);
	void *wake_arg;
	/* the request, until it runs */
	struct str in; /* a line not ended yet */
	size_t asked;
	bool begun;
	enum warm_mode mode;
	uint64_t pin_until; /* of a fill: unix seconds; 0: not pinned */
	unsigned parallel;
	uint64_t *inodes;
	size_t n_inodes, cap_inodes;
	struct mtx lock; /* of all below */
	struct cond changed;
	unsigned refs, waking;
	enum control_state state;
	bool closed;
	struct str out;
	/* of the run; blocks is of distinct ones that were looked at, found of those that are on
	 * their way too */
	unsigned in_flight;
	struct list_node again; /* struct warm_block that failed and is to be tried again */
	uint64_t files, blocks, bytes, missing, errors, found, refused;
};

/* The request, in its own thread: says progress, errors and done. Ends early when the file is
 * closed. */
void warm_run(struct control *c);
/* must: waits while the reader is far behind; else the line is left out then */
void control_say(struct control *c, bool must, const char *fmt, ...) _printf_(3, 4);
/* "text " and a line of any length; waits while the reader is far behind */
void control_text(struct control *c, const char *line);
bool control_closed(struct control *c);

#endif
