/* SPDX-License-Identifier: Apache-2.0 */
/* What `stoke info` and `stoke summary` show, as lines of fields with tabs between them; names are
 * escaped as in a dump (dump_text.h). Reads the volume itself; sums are exact. Blocks; any
 * thread. */
#ifndef STOKE_CLIENT_MAINT_INSPECT_H
#define STOKE_CLIENT_MAINT_INSPECT_H

#include "client/meta/meta.h"

/* one line without its end */
typedef void inspect_fn(void *arg, const char *line);

/* inode N · type T · files N · dirs N · length N · size N · path P (each) · tier N · then of a
 * file: object CHUNK NAME SIZE OFF LEN POS (what is visible; no name: a hole), or raw: slice CHUNK
 * ID SIZE OFF LEN (records). recursive: of a directory, all below it.
 * -EOPNOTSUPP: the engine is not Redis */
int meta_inspect(struct meta *m, uint64_t inode, bool recursive, bool raw, struct meta_progress *p,
		 inspect_fn *emit, void *arg);

/* PATH SIZE DIRS FILES: the largest entries of each directory down to depth, the rest in a line
 * "...". PATH: below inode, a directory's with a slash behind it; inode's own is "/" */
int meta_summary(struct meta *m, uint64_t inode, unsigned depth, unsigned entries,
		 struct meta_progress *p, inspect_fn *emit, void *arg);

#endif
