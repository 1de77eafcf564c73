/* SPDX-License-Identifier: Apache-2.0 */
/* The entries of one directory as they lie in the volume, sorted by name, each once. For
 * maintenance; the engine reads directories by itself (meta_redis_dir.c). */
#ifndef STOKE_CLIENT_MAINT_LISTING_H
#define STOKE_CLIENT_MAINT_LISTING_H

#include "client/meta/attr.h"
#include "client/meta/scan.h"

struct listed {
	size_t name; /* offset in names, NUL behind */
	uint64_t inode;
	uint16_t name_len;
	uint8_t type;
};
struct listing {
	struct listed *e;
	size_t n, cap;
	struct str names;
	size_t damaged; /* fields that are no entries, left out */
};

void listing_fini(struct listing *l);
static inline const char *listing_name(const struct listing *l, size_t i)
{
	return l->names.s + l->e[i].name;
}
/* from a page of HSCAN; call listing_sort behind the last */
int listing_page(struct listing *l, size_t n, const struct scan_item *items);
void listing_sort(struct listing *l);
/* all of it; a missing directory is empty */
int listing_read(const struct scan *s, uint64_t inode, struct listing *ret);
/* a whole HSCAN reply with the cursor "0"; -EAGAIN: it is not the whole */
int listing_from_reply(const struct redis_reply *r, struct listing *ret);

/* whether a field of a directory's hash is an entry */
bool listing_is_entry(const struct scan_item *it);

#endif
