/* SPDX-License-Identifier: Apache-2.0 */
/* Walking a tree as it lies in the volume, depth first, with the sums that directories are checked
 * by. For maintenance. Blocks; any thread. */
#ifndef STOKE_CLIENT_MAINT_WALK_H
#define STOKE_CLIENT_MAINT_WALK_H

#include "client/meta/attr.h"
#include "client/meta/scan.h"

struct walk_dir {
	uint64_t inode;
	const char *path;
	unsigned depth; /* 0: where the walk began */
	bool has_attr;
	struct attr attr;
	char *record; /* as read, of record_len bytes */
	size_t record_len;
	uint64_t parent; /* where it was found; of the top: as its record says */
	/* of its own entries; complete when leave is called */
	uint32_t subdirs;
	int64_t length, space, inodes;
	/* and of everything below: files are all that is no directory */
	int64_t all_length, all_space, all_inodes, all_dirs;
	size_t damaged; /* fields that are no entries, or lead back to a directory above */
};
struct walk_ops {
	/* each entry; attr NULL: it has no record, or not one. Not 0 ends the walk. */
	int (*entry)(void *arg, const struct walk_dir *dir, const char *name, uint64_t inode,
		     uint8_t type, const struct attr *attr);
	/* each directory, behind all that is in it */
	int (*leave)(void *arg, const struct walk_dir *dir);
};

/* Begins at a directory. recursive false: only its own entries, sums of its own. */
int walk_tree(const struct scan *s, uint64_t inode, const char *path, bool recursive,
	      const struct walk_ops *ops, void *arg);

#endif
