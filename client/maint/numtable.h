/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers by a pair of numbers, 32 bytes each, for what maintenance has to remember of a whole
 * volume. Not locked. */
#ifndef STOKE_CLIENT_MAINT_NUMTABLE_H
#define STOKE_CLIENT_MAINT_NUMTABLE_H

#include "common/base.h"

struct numslot {
	uint64_t a, b; /* the key */
	uint64_t v;
	uint64_t w : 63;
	uint64_t used : 1;
};
/* all zero: empty */
struct numtable {
	struct numslot *slot;
	size_t n, cap; /* a walk looks at slot[0…cap) that are used */
};
void numtable_fini(struct numtable *t);
/* the slot of (a, b), made when it is missing; NULL: no memory. Moves at the next call. */
struct numslot *numtable_at(struct numtable *t, uint64_t a, uint64_t b);
struct numslot *numtable_find(const struct numtable *t, uint64_t a, uint64_t b);

#endif
