/* SPDX-License-Identifier: Apache-2.0 */
/* What fsck looks for. Each finding is one line on standard output, with inode and path. One
 * thread; blocks. */
#ifndef STOKE_CLIENT_CMD_FSCK_H
#define STOKE_CLIENT_CMD_FSCK_H

#include "client/cmd/maint.h"
#include "client/maint/slices.h"
#include "client/maint/walk.h"
#include "client/cmd/objects.h"

struct fsck_conf {
	char *path, *dir_mode;
	bool repair, recursive, sync_stat;
	uint64_t threads;
};
struct fsck {
	struct maint *m;
	const struct fsck_conf *conf;
	uint16_t dir_mode;
	uint64_t nodes, findings, repaired, blocks, block_bytes, lost, lost_bytes, broken_files,
		unknown;
	const char *unsure; /* what was not checked */
	struct str err;
};

/* one finding */
void fsck_found(struct fsck *f, uint64_t inode, const char *path, const char *fmt, ...)
	_printf_(4, 5);
/* objects of all files, or of those in files (inodes, v: length) */
int fsck_data(struct fsck *f, const struct numtable *files);
/* directories below inode; files: gets what is a file there, may be NULL */
int fsck_tree(struct fsck *f, uint64_t inode, uint8_t type, const char *path,
	      struct numtable *files);

#endif
