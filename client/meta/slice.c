/* SPDX-License-Identifier: Apache-2.0 */
/* A chunk's list of slices -> what is visible. Pure; any thread.
 *
 * A sweep from left to right over all starts and ends: a heap holds the records that may cover the
 * current position, the latest on top, and ended ones leave when they come up. O(n log n), whatever
 * somebody wrote into the list. */
#include "client/meta/slice.h"

struct sweep {
	const struct slice *records;
	uint32_t *heap; /* record numbers, largest first */
	size_t heap_len;
	struct slice *pieces;
	size_t n;
	uint32_t last; /* record of the last piece, NO_RECORD for a gap */
	uint32_t end;  /* where the last piece ends */
};
#define NO_RECORD UINT32_MAX

static void heap_push(struct sweep *s, uint32_t v)
{
	size_t i = s->heap_len++;

	while (i > 0 && s->heap[(i - 1) / 2] < v) {
		s->heap[i] = s->heap[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	s->heap[i] = v;
}

static void heap_pop(struct sweep *s)
{
	uint32_t v = s->heap[--s->heap_len];
	size_t i = 0, c;

	while ((c = 2 * i + 1) < s->heap_len) {
		if (c + 1 < s->heap_len && s->heap[c + 1] > s->heap[c])
			c++;
		if (s->heap[c] <= v)
			break;
		s->heap[i] = s->heap[c];
		i = c;
	}
	s->heap[i] = v;
}

/* what [from, to) shows goes behind the pieces so far; gaps are emitted only once something follows
 * them */
static void sweep_emit(struct sweep *s, uint32_t from, uint32_t to, uint32_t record)
{
	const struct slice *r = &s->records[record];

	if (from > s->end) {
		s->pieces[s->n++] = (struct slice){.pos = s->end, .len = from - s->end};
		s->last = NO_RECORD;
	}
	if (s->n && s->last == record) {
		s->pieces[s->n - 1].len += to - from;
	} else {
		s->pieces[s->n++] = (struct slice){
			.pos = from,
			.id = r->id,
			.size = r->id ? r->size : 0,
			.off = r->id ? r->off + (from - r->pos) : 0,
			.len = to - from,
		};
	}
	s->last = record;
	s->end = to;
}

struct start {
	uint32_t pos, record;
};

static int start_cmp(const void *a, const void *b)
{
	const struct start *x = a, *y = b;

	if (x->pos != y->pos)
		return x->pos < y->pos ? -1 : 1;
	return x->record < y->record ? -1 : x->record > y->record;
}

static int u32_cmp(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static void sweep_run(struct sweep *s, const struct start *starts, size_t n_starts,
		      const uint32_t *edges, size_t n_edges)
{
	size_t next = 0;

	for (size_t i = 0; i + 1 < n_edges; i++) {
		if (edges[i] == edges[i + 1])
			continue;
		while (next < n_starts && starts[next].pos <= edges[i])
			heap_push(s, starts[next++].record);
		while (s->heap_len) {
			const struct slice *top = &s->records[s->heap[0]];

			if (top->pos + top->len > edges[i])
				break;
			heap_pop(s);
		}
		if (s->heap_len)
			sweep_emit(s, edges[i], edges[i + 1], s->heap[0]);
	}
}

/* starts and edges of the records that cover anything; returns how many */
static size_t sweep_begin(const struct slice *records, size_t n, struct start *starts,
			  uint32_t *edges)
{
	size_t k = 0;

	for (size_t i = 0; i < n; i++) {
		if (!records[i].len)
			continue;
		starts[k] = (struct start){records[i].pos, (uint32_t)i};
		edges[2 * k] = records[i].pos;
		edges[2 * k + 1] = records[i].pos + records[i].len;
		k++;
	}
	qsort(starts, k, sizeof(*starts), start_cmp);
	qsort(edges, 2 * k, sizeof(*edges), u32_cmp);
	return k;
}

int slice_view_build(const struct slice *records, size_t n, struct slice_view *ret)
{
	struct start *starts = calloc(n + 1, sizeof(*starts));
	uint32_t *edges = calloc(2 * n + 1, sizeof(*edges));
	/* an edge begins at most one piece, and at most one gap comes before a record's first */
	struct sweep s = {
		.records = records,
		.heap = calloc(n + 1, sizeof(*s.heap)),
		.pieces = calloc(3 * n + 1, sizeof(*s.pieces)),
		.last = NO_RECORD,
	};
	bool ok = starts && edges && s.heap && s.pieces && n < NO_RECORD;

	if (ok) {
		size_t k = sweep_begin(records, n, starts, edges);

		sweep_run(&s, starts, k, edges, 2 * k);
		ret->n = s.n;
		ret->pieces = TAKE_PTR(s.pieces);
	}
	free(starts);
	free(edges);
	free(s.heap);
	free(s.pieces);
	return ok ? 0 : -ENOMEM;
}

void slice_view_fini(struct slice_view *v)
{
	free(v->pieces);
	*v = (struct slice_view){0};
}

/* first piece that ends behind off; v->n when none does */
static size_t view_find(const struct slice_view *v, uint32_t off)
{
	size_t lo = 0, hi = v->n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (v->pieces[mid].pos + v->pieces[mid].len <= off)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* [off, off + len) of piece p, cut at the slice's own block borders */
static int piece_ranges(const struct slice *p, uint32_t block_size, uint32_t off, uint32_t len,
			uint32_t out_off, int (*fn)(const struct block_range *r, void *arg),
			void *arg)
{
	while (len) {
		struct block_range r = {.slice = p->id, .out_off = out_off, .len = len};
		uint32_t at = p->off + (off - p->pos);
		int err;

		if (p->id) {
			r.index = at / block_size;
			r.off = at % block_size;
			r.size = MIN(block_size, p->size - r.index * block_size);
			r.len = MIN(len, r.size - r.off);
		}
		err = fn(&r, arg);
		if (err)
			return err;
		off += r.len;
		out_off += r.len;
		len -= r.len;
	}
	return 0;
}

int slice_view_ranges(const struct slice_view *v, uint32_t block_size, uint32_t off, uint32_t len,
		      int (*fn)(const struct block_range *r, void *arg), void *arg)
{
	static const struct slice zeros = {0};
	uint32_t out = 0;
	int r;

	for (size_t i = view_find(v, off); i < v->n && len; i++) {
		const struct slice *p = &v->pieces[i];
		uint32_t n = MIN(len, p->pos + p->len - off);

		r = piece_ranges(p, block_size, off, n, out, fn, arg);
		if (r)
			return r;
		off += n;
		out += n;
		len -= n;
	}
	return len ? piece_ranges(&zeros, block_size, off, len, out, fn, arg) : 0;
}

uint32_t slice_view_seek(const struct slice_view *v, uint32_t off, bool hole)
{
	for (size_t i = view_find(v, off); i < v->n; i++) {
		const struct slice *p = &v->pieces[i];

		if (hole == (p->id == 0))
			return MAX(off, p->pos);
		off = p->pos + p->len;
	}
	return hole ? MIN(off, (uint32_t)CHUNK_SIZE) : CHUNK_SIZE;
}
