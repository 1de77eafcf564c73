/* SPDX-License-Identifier: Apache-2.0 */
/* From inodes to paths. Nothing in a volume leads from a file to its name but its directory, which
 * has to be read for it: many inodes are looked up together, and each directory is read once for
 * all of them that lie in it, not once for each. Blocks; any thread. */
#ifndef STOKE_CLIENT_MAINT_PATHS_H
#define STOKE_CLIENT_MAINT_PATHS_H

#include "client/maint/numtable.h"
#include "client/meta/scan.h"

/* all zero: empty */
struct paths {
	struct numtable at; /* inode: v its parent, w where its name is in names; 0: not known */
	struct str names;   /* NUL behind each */
};
void paths_fini(struct paths *p);
/* adds the inodes that inodes has (a), and the directories above them */
int paths_find(struct paths *p, const struct scan *s, const struct numtable *inodes);
/* appends a path, "/" the root's; -ENOENT: it has none */
int paths_get(const struct paths *p, uint64_t inode, struct str *out);
/* of one inode */
int path_of(const struct scan *s, uint64_t inode, struct str *out);

#endif
