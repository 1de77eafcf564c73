/* SPDX-License-Identifier: Apache-2.0 */
/* Commands that ask a mount for something, through its .control file (client/internal.h). Block. */
#ifndef STOKE_CLIENT_CMD_ASK_H
#define STOKE_CLIENT_CMD_ASK_H

#include <sys/types.h>

#include "client/cmd/maint.h"

/* a mount, and what a path means in it */
struct asked_path {
	int control; /* open; the caller closes it; -1 */
	dev_t dev;
	uint64_t inode; /* of the path itself */
	uint64_t dir;	/* of the directory that it lies in */
	struct str
		name; /* in there, escaped as the request has it; "" when it is the mount's top */
	struct str root; /* where it is mounted */
	mode_t mode;
};
/* must_exist false: the last element of the path need not be there (inode 0). 0; -ENOTTY: no Stoke
 * mount; -EACCES: only root and the mount's user may ask; -errno of the path */
int ask_open(const char *path, bool must_exist, struct asked_path *ret);
/* an inode number, in the mount that the current directory lies in */
int ask_open_here(struct asked_path *ret);
void ask_close(struct asked_path *a);
/* one line for people on why ask_open failed */
const char *ask_error(int r);

/* .control, open for asking; -errno */
int ask_open_control(const char *path);
/* a part of a request; 0 or -errno */
int ask_send(int control, const void *data, size_t n);

/* what --threads may be in a request: JuiceFS's scripts ask for more than a mount gives */
uint64_t ask_threads(uint64_t n);

/* what came back */
struct ask_answer {
	uint64_t files, bytes, chunks;
};
/* Sends one line and reads to the end: text is called for each line of text; progress goes to the
 * command's. -errno of what was asked for; -EINTR after Ctrl-C, which ends the work too. */
int ask_run(struct maint *m, int control, const char *request, void (*text)(void *arg, char *line),
	    void *arg, struct ask_answer *ret);

#endif
