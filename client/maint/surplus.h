/* SPDX-License-Identifier: Apache-2.0 */
/* Slices that lists and delSlices show more often than sliceRef counts: a write that was committed
 * twice, or a reference that was lost. When the first of these places goes, the data is deleted
 * under the others. Blocks; any thread. */
#ifndef STOKE_CLIENT_MAINT_SURPLUS_H
#define STOKE_CLIENT_MAINT_SURPLUS_H

#include "client/maint/slices.h"

struct surplus {
	uint64_t id;
	uint32_t size;
	uint64_t inode; /* one of the files, 0: it is in delSlices only */
	uint32_t index; /* its chunk */
	uint64_t places, counted;
	int64_t ref; /* as sliceRef has it: one less, or anything below zero */
};
/* Those of s, looked at once more, so that what moved meanwhile is none of them. *ret is the
 * caller's to free. */
int surplus_find(const struct scan *scan, const struct slices *s, struct surplus **ret,
		 size_t *ret_n);
/* Lets sliceRef count all places. -EAGAIN: it moved since */
int surplus_repair(const struct scan *scan, const struct surplus *s);

#endif
