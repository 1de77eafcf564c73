/* SPDX-License-Identifier: Apache-2.0 */
/* The lists were read over a long time, while slices moved. So the few lists that show a slice in
 * question are found, then read again at once, between two looks at sliceRef: who changed between
 * these is left out. One thread; blocks. */
#include "client/maint/surplus.h"

#include <inttypes.h>

#include "client/maint/repair.h"
#include "client/meta/reply.h"

enum { AT_ONCE = 500 };

struct search {
	const struct scan *scan;
	struct surplus *v;
	size_t n;
	struct numtable at;    /* (id, size): v its place in v[] */
	struct numtable lists; /* (inode, index) that show one */
};

static struct surplus *of(struct search *s, uint64_t id, uint32_t size)
{
	const struct numslot *slot = numtable_find(&s->at, id, size);

	return slot ? &s->v[slot->v] : NULL;
}

static int note_list(void *arg, uint64_t inode, uint32_t index, const struct slice *sl)
{
	struct search *s = arg;

	return !of(s, sl->id, sl->size) || numtable_at(&s->lists, inode, index) ? 0 : -ENOMEM;
}

static int count_record(void *arg, uint64_t inode, uint32_t index, const struct slice *sl)
{
	struct surplus *v = of(arg, sl->id, sl->size);

	if (v) {
		v->places++;
		v->inode = inode;
		v->index = index;
	}
	return 0;
}

static int count_delayed(void *arg, uint64_t id, uint32_t size)
{
	struct surplus *v = of(arg, id, size);

	if (v)
		v->places++;
	return 0;
}

static int count_lists(struct search *s)
{
	struct pipe p;
	int r = 0;

	pipe_init(&p, s->scan);
	for (size_t at = 0; at < s->lists.cap && r == 0;) {
		const struct numslot *now[AT_ONCE] = {NULL};

		pipe_reset(&p);
		for (; at < s->lists.cap && p.n < AT_ONCE; at++) {
			const struct numslot *l = &s->lists.slot[at];
			char key[48];

			if (!l->used)
				continue;
			(void)snprintf(key, sizeof(key), "c%" PRIu64 "_%" PRIu64, l->a, l->b);
			now[p.n] = l;
			pipe_add(&p, "LRANGE", key, "0", "-1", (char *)NULL);
		}
		r = pipe_run(&p);
		for (size_t i = 0; i < p.n && now[i] && r == 0; i++) {
			r = slices_of_list(p.reply[i], now[i]->a, (uint32_t)now[i]->b, count_record,
					   s);
			r = r == -EPROTO ? 0 : r; /* damaged: told elsewhere */
		}
	}
	pipe_fini(&p);
	return r;
}

/* what sliceRef counts; again: those that moved since are dropped */
static int look(struct search *s, bool again)
{
	struct pipe p;
	size_t kept = 0;
	int r = 0;

	pipe_init(&p, s->scan);
	for (size_t at = 0; at < s->n && r == 0; at += AT_ONCE) {
		size_t n = MIN((size_t)AT_ONCE, s->n - at);

		pipe_reset(&p);
		for (size_t i = 0; i < n; i++) {
			char field[48];

			(void)snprintf(field, sizeof(field), "k%" PRIu64 "_%" PRIu32,
				       s->v[at + i].id, s->v[at + i].size);
			pipe_add(&p, "HGET", "sliceRef", field, (char *)NULL);
		}
		r = pipe_run(&p);
		for (size_t i = 0; i < n && r == 0; i++) {
			struct surplus *v = &s->v[at + i];
			int64_t more = reply_int(p.reply[i]);
			uint64_t counted = more < 0 ? 0 : (uint64_t)more + 1;

			if (!again) {
				v->counted = counted;
				v->ref = more;
			} else if (v->ref == more && v->places > counted) {
				s->v[kept++] = *v;
			}
		}
	}
	pipe_fini(&p);
	if (again)
		s->n = kept;
	return r;
}

static int choose(struct search *s, const struct slices *sl)
{
	for (size_t i = 0; i < sl->again.cap; i++) {
		const struct numslot *a = &sl->again.slot[i];
		struct numslot *slot;

		if (!a->used || a->v <= a->w)
			continue;
		slot = numtable_at(&s->at, a->a, a->b);
		if (!slot)
			return -ENOMEM;
		slot->v = s->n;
		s->v[s->n++] = (struct surplus){.id = a->a, .size = (uint32_t)a->b};
	}
	return 0;
}

int surplus_find(const struct scan *scan, const struct slices *sl, struct surplus **ret,
		 size_t *ret_n)
{
	struct search s = {.scan = scan, .v = calloc(sl->again.n + 1, sizeof(*s.v))};
	int r = s.v ? choose(&s, sl) : -ENOMEM;

	if (r == 0 && s.n) {
		r = slices_each(scan, note_list, &s);
		r = r ? r : look(&s, false);
		r = r ? r : count_lists(&s);
		r = r ? r : slices_delayed(scan, count_delayed, &s);
		r = r ? r : look(&s, true);
	}
	numtable_fini(&s.at);
	numtable_fini(&s.lists);
	if (r) {
		free(s.v);
		return r;
	}
	*ret = s.v;
	*ret_n = s.n;
	return 0;
}

int surplus_repair(const struct scan *scan, const struct surplus *s)
{
	return meta_set_ref(scan, s->id, s->size, s->ref, (int64_t)s->places - 1);
}
