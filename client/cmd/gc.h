/* SPDX-License-Identifier: Apache-2.0 */
/* What gc looks for and clears away. One thread; blocks. */
#ifndef STOKE_CLIENT_CMD_GC_H
#define STOKE_CLIENT_CMD_GC_H

#include "client/cmd/maint.h"
#include "client/maint/slices.h"
#include "client/cmd/objects.h"

struct gc_conf {
	bool remove, compact;
	uint64_t threads;
};
/* how many, and bytes of them */
struct gc_sum {
	uint64_t n, bytes;
};
struct gc {
	struct maint *m;
	const struct gc_conf *conf;
	struct objects *objects;
	struct meta *meta;	/* an engine with a session, when something is to be changed */
	struct blockpath *path; /* with --compact */
	int64_t now_sec;	/* when it began: what is younger than an hour is left alone */
	int64_t skip_sec;	/* 3600, or what JFS_GC_SKIPPEDTIME says */
	struct gc_sum used, waiting, delayed, pending, leaked, skipped, compacted, removed;
	struct gc_sum files, trash_files, trash_dirs;
	uint64_t leaked_chunks, leaked_inodes, detached, hours, other, surplus;
	struct str err;
};

/* gc_clean.c: engine and data path, if something is to be changed; what waits is ended, lists
 * become short; records and lists that were found are removed */
int gc_start(struct gc *g);
void gc_stop(struct gc *g);
int gc_fold(struct gc *g); /* references of old clients, before any is counted down */
int gc_clean(struct gc *g);
int gc_clean_inodes(struct gc *g, const struct numtable *lost);
int gc_clean_chunks(struct gc *g, const struct slices *s);
/* gc_objects.c: everything in the object store; deletes what is leaked */
int gc_objects(struct gc *g, struct slices *s);
/* gc_meta.c: inodes that no directory names (ret: those with w set), detached nodes */
int gc_inodes(struct gc *g, struct numtable *ret);
/* slices that more places show than are counted; with --delete they are counted */
int gc_surplus(struct gc *g, const struct slices *s);
/* what lies in the trash */
int gc_trash(struct gc *g);

#endif
