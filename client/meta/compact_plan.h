/* SPDX-License-Identifier: Apache-2.0 */
/* What a chunk's list becomes when it is compacted: pure (docs/format.md §4.4).
 *
 * Large records in front stay as they are, as JuiceFS leaves them. Of the rest, what lies together
 * becomes one slice each; a piece that stands alone keeps the slice it has; holes are left out, so
 * that nothing is stored for them: JuiceFS stores them as zeros. (One record of zeros stays, if
 * there was any.) The bytes that the list shows stay
 * the same. */
#ifndef STOKE_CLIENT_META_COMPACT_PLAN_H
#define STOKE_CLIENT_META_COMPACT_PLAN_H

#include "client/meta/slice.h"

enum { COMPACT_RECORDS = 1000 /* as many are looked at */ };

/* A record of the new list. first, n: the pieces of the view that become it; a run of one keeps its
 * slice when rewrite is false; of none: zeros */
struct compact_run {
	size_t first, n;
	bool rewrite;
	struct slice record; /* id and size of a slice that is to be written are not set: 0, len */
};
struct compact_plan {
	size_t records; /* that were looked at: the first of the list */
	size_t skipped; /* of them stay in front */
	struct slice_view view;
	size_t n_runs;
	struct compact_run *runs;
};
/* 0; -EALREADY when the list would not become shorter; -ENOMEM */
int compact_plan_make(const struct slice *records, size_t n, struct compact_plan *ret);
void compact_plan_fini(struct compact_plan *p);

/* pieces of a view that are data: many are slow to read, holes are not */
size_t compact_pieces(const struct slice_view *v);

#endif
