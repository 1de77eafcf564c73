/* SPDX-License-Identifier: Apache-2.0 */
/* A chunk's list -> the list that it becomes. Pure; any thread. */
#include "client/meta/compact_plan.h"

enum {
	SKIP_MIN = 1 << 20, /* records shorter than that are not left alone */
	SKIP_SHARE = 5,	    /* nor those shorter than that part of what follows */
	HOLE_MIN = 4096,    /* holes up to that are stored, */
	HOLE_SHARE = 8,	    /* or up to that part of the data before them */
};

static bool same_record(const struct slice *a, const struct slice *b)
{
	return a->pos == b->pos && a->id == b->id && a->size == b->size && a->off == b->off &&
	       a->len == b->len;
}

/* holes at both ends are no part of it */
static void view_trim(const struct slice_view *v, size_t *ret_first, size_t *ret_n)
{
	size_t first = 0, end = v->n;

	while (first < end && v->pieces[first].id == 0)
		first++;
	while (end > first && v->pieces[end - 1].id == 0)
		end--;
	*ret_first = first;
	*ret_n = end - first;
}

/* *ret_skip: the first of the records stays as it is */
static int first_stays(const struct slice *r, size_t n, bool *ret_skip)
{
	uint64_t total = 0;
	struct slice_view v;
	size_t first, k;

	*ret_skip = false;
	if (r->len < SKIP_MIN || n < 2)
		return 0;
	if (slice_view_build(r, n, &v) < 0)
		return -ENOMEM;
	view_trim(&v, &first, &k);
	for (size_t i = 0; i < k; i++)
		total += v.pieces[first + i].len;
	*ret_skip = k && same_record(&v.pieces[first], r) && total <= (uint64_t)r->len * SKIP_SHARE;
	slice_view_fini(&v);
	for (size_t i = 1; i < n && *ret_skip; i++)
		*ret_skip = !same_record(r, r + i);
	return 0;
}

static bool hole_splits(uint32_t hole, uint64_t data)
{
	return hole > HOLE_MIN && hole > data / HOLE_SHARE;
}

static void run_end(struct compact_plan *p, struct compact_run *run)
{
	const struct slice *first = &p->view.pieces[run->first];
	const struct slice *last = &p->view.pieces[run->first + run->n - 1];

	run->record = *first;
	/* most of its slice is covered by others: the space comes back */
	run->rewrite = run->n > 1 || first->len < first->size / 2;
	if (run->rewrite)
		run->record = (struct slice){.pos = first->pos,
					     .len = last->pos + last->len - first->pos};
	if (run->rewrite)
		run->record.size = run->record.len;
	p->runs[p->n_runs++] = *run;
}

static void plan_runs(struct compact_plan *p, size_t first, size_t n)
{
	struct compact_run run = {.first = first};
	uint64_t data = 0;

	for (size_t i = first; i < first + n; i++) {
		const struct slice *s = &p->view.pieces[i];

		if (s->id) {
			data += s->len;
		} else if (hole_splits(s->len, data)) {
			run.n = i - run.first;
			run_end(p, &run);
			run = (struct compact_run){.first = i + 1};
			data = 0;
		}
	}
	run.n = first + n - run.first;
	if (run.n)
		run_end(p, &run);
}

/* A zero record tells that the file was once longer: who deletes it looks behind its end. One
 * stays, in front, where it covers nothing: no record overlaps those that are skipped. */
static void plan_mark(struct compact_plan *p, const struct slice *records)
{
	for (size_t i = p->records; i > p->skipped; i--) {
		if (records[i - 1].id == 0 && records[i - 1].len) {
			p->runs[p->n_runs++] = (struct compact_run){.record = records[i - 1]};
			return;
		}
	}
}

int compact_plan_make(const struct slice *records, size_t n, struct compact_plan *ret)
{
	struct compact_plan p = {.records = 0};
	bool more = true;
	size_t first, k;
	int r = 0;

	p.records = MIN(n, (size_t)COMPACT_RECORDS);
	while (!r && more && p.skipped < p.records) {
		r = first_stays(records + p.skipped, p.records - p.skipped, &more);
		p.skipped += !r && more;
	}
	if (!r && p.records - p.skipped < 2)
		r = -EALREADY;
	if (!r)
		r = slice_view_build(records + p.skipped, p.records - p.skipped, &p.view);
	if (r)
		return r;
	view_trim(&p.view, &first, &k);
	p.runs = calloc(k + 2, sizeof(*p.runs));
	if (p.runs) {
		plan_mark(&p, records);
		plan_runs(&p, first, k);
	} else {
		r = -ENOMEM;
	}
	if (!r && p.n_runs >= p.records - p.skipped)
		r = -EALREADY;
	if (r)
		compact_plan_fini(&p);
	else
		*ret = p;
	return r;
}

void compact_plan_fini(struct compact_plan *p)
{
	slice_view_fini(&p->view);
	free(p->runs);
	*p = (struct compact_plan){0};
}

size_t compact_pieces(const struct slice_view *v)
{
	size_t n = 0;

	for (size_t i = 0; i < v->n; i++)
		n += v->pieces[i].id != 0;
	return n;
}
