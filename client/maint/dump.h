/* SPDX-License-Identifier: Apache-2.0 */
/* Dump: a volume's metadata as JSON that `juicefs load` takes, byte for byte what `juicefs dump`
 * writes (docs/format.md §2). What the volume's clients change meanwhile may be in it or not; each
 * entry is whole. Memory goes with the largest directories on the way down one path, not with the
 * volume. Blocks; any thread. */
#ifndef STOKE_CLIENT_MAINT_DUMP_H
#define STOKE_CLIENT_MAINT_DUMP_H

#include "client/maint/dumpfile.h"
#include "client/meta/meta.h"
#include "client/meta/scan.h"

struct dump_conf {
	const char *subdir; /* only below it; NULL: all */
	bool keep_secret, skip_trash;
	/* something is damaged and left out: one line */
	void (*warn)(void *arg, const char *line);
	void *warn_arg;
};

/* Appends what a path (from the root; "" and "/" are the root) names; -ENOENT, -ENOTDIR */
int scan_resolve(const struct scan *s, const char *path, uint64_t *ret_inode, uint8_t *ret_type);

/* -ENOENT, -ENOTDIR (subdir), errors of scan.h and of the file; err: one line */
int meta_dump(const struct scan *s, const struct setting *set, const struct dump_conf *conf,
	      struct dumpfile *out, struct meta_progress *p, struct str *err);

/* parts, for dump.c: everything before the tree, closed by a comma */
int dump_head(const struct scan *s, const struct setting *set, const struct dump_conf *conf,
	      bool whole, struct str *out);

#endif
