/* SPDX-License-Identifier: Apache-2.0 */
#include "client/maint/numtable.h"

#include "common/hash.h"

void numtable_fini(struct numtable *t)
{
	free(t->slot);
	*t = (struct numtable){.slot = NULL};
}

static size_t slot_of(const struct numtable *t, uint64_t a, uint64_t b)
{
	uint64_t key[2] = {a, b};
	size_t i = hash64(key, sizeof(key)) & (t->cap - 1);

	while (t->slot[i].used && (t->slot[i].a != a || t->slot[i].b != b))
		i = (i + 1) & (t->cap - 1);
	return i;
}

static int table_grow(struct numtable *t)
{
	struct numtable more = {.cap = t->cap ? t->cap * 2 : 1024, .n = t->n};

	more.slot = calloc(more.cap, sizeof(*more.slot));
	if (!more.slot)
		return -ENOMEM;
	for (size_t i = 0; i < t->cap; i++) {
		if (t->slot[i].used)
			more.slot[slot_of(&more, t->slot[i].a, t->slot[i].b)] = t->slot[i];
	}
	free(t->slot);
	*t = more;
	return 0;
}

struct numslot *numtable_at(struct numtable *t, uint64_t a, uint64_t b)
{
	struct numslot *s;

	if (t->n >= t->cap / 4 * 3 && table_grow(t) < 0)
		return NULL;
	s = &t->slot[slot_of(t, a, b)];
	if (!s->used) {
		*s = (struct numslot){.a = a, .b = b, .used = 1};
		t->n++;
	}
	return s;
}

struct numslot *numtable_find(const struct numtable *t, uint64_t a, uint64_t b)
{
	struct numslot *s = t->cap ? &t->slot[slot_of(t, a, b)] : NULL;

	return s && s->used ? s : NULL;
}
