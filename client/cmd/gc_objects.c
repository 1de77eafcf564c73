/* SPDX-License-Identifier: Apache-2.0 */
/* Objects that no slice has. The metadata was read before the store is listed, so an object of a
 * slice that is written meanwhile is younger than the hour that is left alone; and before anything
 * is deleted the metadata is read once more for the slices in question, since a slice that is
 * cloned and whose first file goes can slip through one reading. */
#include "client/cmd/gc.h"

#include <inttypes.h>

#include "common/block/key.h"

enum { DELETE_AT_ONCE = 1000 };

struct leak {
	char *key;
	uint64_t slice, size;
	uint32_t index, plain;
};
struct sweep {
	struct gc *g;
	struct slices *s;
	struct leak *leak;
	size_t n, cap;
};

static void count(struct gc_sum *s, uint64_t bytes)
{
	s->n++;
	s->bytes += bytes;
}

static int remember(struct sweep *w, const struct object_found *o)
{
	if (w->n == w->cap) {
		size_t cap = w->cap ? w->cap * 2 : 256;
		struct leak *more = reallocarray(w->leak, cap, sizeof(*more));

		if (!more)
			return -ENOMEM;
		w->leak = more;
		w->cap = cap;
	}
	w->leak[w->n] = (struct leak){.key = strdup(o->key),
				      .slice = o->slice,
				      .size = o->size,
				      .index = o->index,
				      .plain = o->plain};
	return w->leak[w->n++].key ? 0 : -ENOMEM;
}

static int found(void *arg, const struct object_found *o)
{
	struct sweep *w = arg;
	struct gc *g = w->g;
	const struct numslot *s;

	__atomic_fetch_add(&g->m->progress.files, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&g->m->progress.bytes, o->size, __ATOMIC_RELAXED);
	if (!o->block) {
		g->other++;
		return 0;
	}
	s = slices_find(w->s, o->slice, o->index, o->plain, g->m->setting->block_size);
	if (s) {
		struct gc_sum *sums[SLICE_USES] = {[SLICE_FILE] = &g->used,
						   [SLICE_WAITING] = &g->waiting,
						   [SLICE_TRASH] = &g->delayed,
						   [SLICE_PENDING] = &g->pending};

		count(sums[slice_use(s)], o->size);
		return 0;
	}
	if (o->mtime > g->now_sec - g->skip_sec) {
		count(&g->skipped, o->size);
		return 0;
	}
	count(&g->leaked, o->size);
	return g->conf->remove ? remember(w, o) : 0;
}

static void quiet(void *arg, const char *line)
{
	(void)arg;
	(void)line;
}

/* those that are in use after all are taken off the list */
static int look_again(struct sweep *w)
{
	struct meta_progress p = {.files = 0};
	struct slices again;
	size_t kept = 0;
	int r = slices_read(&w->g->m->scan, &p, quiet, NULL, &again);

	if (r)
		return r;
	for (size_t i = 0; i < w->n; i++) {
		const struct leak *l = &w->leak[i];
		bool was = numtable_find(&w->s->by_id, l->slice, 0);

		/* of a number that was known both times it is a block of a wrong size or place */
		if ((!was && numtable_find(&again.by_id, l->slice, 0)) ||
		    slices_find(&again, l->slice, l->index, l->plain,
				w->g->m->setting->block_size)) {
			free(w->leak[i].key);
			w->g->leaked.n--;
			w->g->leaked.bytes -= w->leak[i].size;
			continue;
		}
		w->leak[kept++] = w->leak[i];
	}
	w->n = kept;
	slices_fini(&again);
	return 0;
}

static int remove_all(struct sweep *w)
{
	const char *keys[DELETE_AT_ONCE];
	int r = 0;

	for (size_t at = 0; at < w->n && r == 0;) {
		size_t n = 0;

		if (__atomic_load_n(&w->g->m->progress.cancel, __ATOMIC_RELAXED))
			return -EINTR;
		while (n < DELETE_AT_ONCE && at + n < w->n) {
			keys[n] = w->leak[at + n].key;
			n++;
		}
		r = objects_delete(w->g->objects, keys, n, &w->g->err);
		for (size_t i = 0; i < n && r == 0; i++)
			count(&w->g->removed, w->leak[at + i].size);
		at += n;
	}
	return r;
}

int gc_objects(struct gc *g, struct slices *s)
{
	struct sweep w = {.g = g, .s = s};
	int r;

	maint_begin(g->m, "objects", "of data");
	r = objects_each(g->objects, &g->m->progress.cancel, found, &w, &g->err);
	if (r == 0 && w.n)
		r = look_again(&w);
	if (r == 0)
		r = remove_all(&w);
	maint_end(g->m);
	for (size_t i = 0; i < w.n; i++)
		free(w.leak[i].key);
	free(w.leak);
	return r;
}
