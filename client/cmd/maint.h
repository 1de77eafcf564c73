/* SPDX-License-Identifier: Apache-2.0 */
/* What the maintenance commands share: a volume opened by its URL, a line of progress, Ctrl-C, and
 * the question before what cannot be undone. One of them in a process. */
#ifndef STOKE_CLIENT_CMD_MAINT_H
#define STOKE_CLIENT_CMD_MAINT_H

#include "client/cmd/cmd.h"
#include "client/meta/meta.h"
#include "client/meta/scan.h"

struct maint {
	const char *name; /* of the command */
	char *url;	  /* with its password */
	struct redis *redis;
	struct setting *setting;
	struct scan scan; /* ends with -EINTR at Ctrl-C */
	struct meta_progress progress;
	struct maint_bar *bar;
};

/* Parses argv as t says. 0: *args are the words that are no options; else the exit status plus one
 * (1: --help was printed). conf_fini(t, conf) is due always. */
int maint_args(const char *name, const struct conf_table *t, void *conf, int argc, char **argv,
	       char ***args, size_t *n_args);

/* Connects to url, whose password is blanked in argv, and loads the setting unless empty_ok and
 * there is none. Ctrl-C sets progress.cancel from now on. 0; else what happened was told. */
int maint_open(struct maint *m, const char *name, char *url, bool empty_ok);
void maint_close(struct maint *m);
/* An engine on the same volume: with a session when it is to change something, and without
 * background jobs. 0; else what happened was told. */
struct maint_engine_conf {
	bool change;
	unsigned deletes; /* threads that delete objects; 0: none */
	meta_delete_fn *remove;
	void *remove_arg;
	meta_compact_fn *compact;
	void *compact_arg;
};
int maint_engine(struct maint *m, const struct maint_engine_conf *c, struct meta **ret);
/* ends the session; NULL is fine */
void maint_engine_free(struct meta *meta);
/* Ctrl-C and SIGTERM set progress.cancel; the second one ends the process */
void maint_catch(struct maint *m, const char *name);

/* fn(arg) in n threads at once, of which this one is one, so that it is done where no other can be
 * started; at most MAINT_THREADS. Returns when all have. */
enum { MAINT_THREADS = 64 };
void maint_threads(const char *name, uint64_t n, void *(*fn)(void *arg), void *arg);

/* Shows "stoke NAME: 1234 FILES, 5.6 GiB" from progress: on a terminal five times a second, on
 * another stderr every ten seconds. bytes: what they are, or NULL. */
void maint_begin(struct maint *m, const char *files, const char *bytes);
void maint_end(struct maint *m);
/* a line on stderr, or stdout, past the progress line */
void maint_warn(void *m, const char *line);
void maint_say(struct maint *m, const char *fmt, ...) _printf_(2, 3);

/* true: the user says yes at the terminal, or yes is set. Without a terminal it says how to go
 * on. */
bool maint_sure(const char *name, bool yes, const char *question);

/* the exit status of a command that ended with r; says why when err or r tells */
int maint_exit(struct maint *m, int r, const struct str *err);

#endif
