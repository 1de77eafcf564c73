/* SPDX-License-Identifier: Apache-2.0 */
/* Compaction of many lists at once. Blocks; any thread. -EOPNOTSUPP: the engine is not Redis, or
 * compacts nothing (meta_set_compact). */
#ifndef STOKE_CLIENT_MAINT_COMPACT_LISTS_H
#define STOKE_CLIENT_MAINT_COMPACT_LISTS_H

#include "client/meta/meta.h"

/* every list of the volume that can become shorter; files: lists looked at, bytes: freed.
 * p->threads lists at once. */
int meta_compact_all(struct meta *m, struct meta_progress *p);
/* those of the files at and below inode; files: files, bytes: freed */
int meta_compact_tree(struct meta *m, uint64_t inode, struct meta_progress *p,
		      uint64_t *ret_chunks);

#endif
