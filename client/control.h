/* SPDX-License-Identifier: Apache-2.0 */
/* Requests through .control: the warm-up engine and info. The protocol is in client/internal.h. A
 * request runs in a thread of its own and may outlive the file it came through by what is in
 * flight. */
#ifndef STOKE_CLIENT_CONTROL_H
#define STOKE_CLIENT_CONTROL_H

#include "client/meta/meta.h"
#include "common/block/source.h"

struct control;
struct vfs;

struct control_conf {
	struct meta *meta;
	struct req_env *env;
	struct source *chain; /* FILL, PROBE and DROP go to its top */
	const char *no_group; /* why fill, check and evict cannot work, or NULL */
	struct vfs *vfs;      /* hears of names that change; may be NULL */
	const char *info;     /* answer to "info": one line of JSON without its newline */
};

enum {
	CONTROL_PARALLEL_MAX = 1024,
	CONTROL_REQUEST_MAX = 256 << 20, /* text of one request */
	CONTROL_ANSWER_MAX = 1 << 20,	 /* unread answer: the engine waits beyond it */
	CONTROL_TRIES = 4,		 /* of a block whose fill failed */
};

/* wake(arg): there is something to read, or the end; any thread, no locks held */
int control_open(const struct control_conf *conf, void (*wake)(void *arg), void *arg,
		 struct control **ret);
/* whose rights requests are done with: before the first write; nobody: root's */
void control_as(struct control *c, const struct meta_ctx *who);
/* a part of the request. -EINVAL: not the protocol; -EBUSY: a request is under way or done; -EFBIG;
 * -ENOMEM */
int control_write(struct control *c, const void *data, size_t len);
/* bytes of the answer, at most cap; 0: nothing now, and *ret_end tells whether there will be more.
 * Nothing was asked: the end. */
size_t control_read(struct control *c, void *buf, size_t cap, bool *ret_end);
/* wake is not called any more; a request that runs is given up */
void control_close(struct control *c);
/* blocks until no request runs in this process; for the end of a mount */
void control_wait(void);

#endif
