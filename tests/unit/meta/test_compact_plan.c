/* SPDX-License-Identifier: Apache-2.0 */
/* What a list becomes when it is compacted: random lists show the same bytes afterwards, holes cost
 * nothing, large records in front stay. */
#include "tests/unit/check.h"

#include <time.h>

#include "client/meta/compact_plan.h"

enum { MODEL = 6000, ROUNDS = 3000, KIB = 1024, MIB = 1024 * 1024 };

static unsigned seed;

static unsigned pick(unsigned n)
{
	seed = seed * 1103515245 + 12345;
	return (seed >> 8) % n;
}

/* what byte i shows: slice and offset in it; scaled, so that records are as long as real ones */
struct paint {
	uint64_t id[MODEL];
	uint32_t off[MODEL];
};

static void paint(struct paint *p, const struct slice *r, uint32_t unit)
{
	for (uint32_t i = r->pos / unit; i < (r->pos + r->len) / unit; i++) {
		p->id[i] = r->id;
		p->off[i] = r->id ? r->off + (i * unit - r->pos) : 0;
	}
}

/* the new list's record of a slice that is written: its bytes are those of the pieces */
static void paint_run(struct paint *p, const struct compact_plan *plan,
		      const struct compact_run *run, uint32_t unit)
{
	uint32_t at = run->record.pos;

	if (!run->rewrite) {
		paint(p, &run->record, unit);
		return;
	}
	for (size_t i = 0; i < run->n; i++) {
		struct slice s = plan->view.pieces[run->first + i];

		assert_int_equal(s.pos, at);
		paint(p, &s, unit);
		at += s.len;
	}
	assert_int_equal(at, run->record.pos + run->record.len);
	assert_int_equal(run->record.size, run->record.len);
	assert_int_equal(run->record.off, 0);
}

static void random_lists_show_the_same_bytes(void **state)
{
	static struct paint before, after;
	unsigned shorter = 0;

	(void)state;
	seed = (unsigned)time(NULL);
	print_message("seed %u\n", seed);
	for (unsigned k = 0; k < ROUNDS; k++) {
		uint32_t unit = pick(2) ? 512 : 10000;
		struct slice r[40];
		size_t n = pick(ARRAY_LEN(r)) + 1;
		struct compact_plan plan;

		memset(&before, 0, sizeof(before));
		memset(&after, 0, sizeof(after));
		for (size_t i = 0; i < n; i++) {
			uint32_t len = pick(i == 0 || !pick(8) ? 3000 : 60) + 1;
			uint32_t pos = pick(MODEL - len);
			bool hole = !pick(6);

			r[i] = (struct slice){.pos = pos * unit,
					      .id = hole ? 0 : i + 1,
					      .size = hole ? 0 : len * unit + 7 * unit,
					      .off = hole ? 0 : pick(8) * unit,
					      .len = len * unit};
			paint(&before, &r[i], unit);
		}
		if (compact_plan_make(r, n, &plan) == -EALREADY)
			continue;
		shorter++;
		assert_true(plan.skipped + plan.n_runs < n);
		for (size_t i = 0; i < plan.skipped; i++)
			paint(&after, &r[i], unit);
		for (size_t i = 0; i < plan.n_runs; i++)
			paint_run(&after, &plan, &plan.runs[i], unit);
		assert_memory_equal(before.id, after.id, sizeof(before.id));
		assert_memory_equal(before.off, after.off, sizeof(before.off));
		compact_plan_fini(&plan);
	}
	assert_true(shorter > ROUNDS / 4);
}

static void holes_are_not_stored(void **state)
{
	/* three times ten bytes, wide apart, the last two written twice */
	const struct slice r[] = {{.pos = 0, .id = 1, .size = 10, .len = 10},
				  {.pos = 20 * MIB, .id = 2, .size = 10, .len = 10},
				  {.pos = 40 * MIB, .id = 3, .size = 10, .len = 10},
				  {.pos = 20 * MIB, .id = 4, .size = 10, .len = 10},
				  {.pos = 40 * MIB + 10, .id = 5, .size = 10, .len = 10}};
	uint64_t stored = 0;
	struct compact_plan p;

	(void)state;
	assert_int_equal(compact_plan_make(r, 3, &p), -EALREADY);
	assert_int_equal(compact_plan_make(r, ARRAY_LEN(r), &p), 0);
	assert_int_equal(p.n_runs, 3);
	for (size_t i = 0; i < p.n_runs; i++)
		stored += p.runs[i].rewrite ? p.runs[i].record.size : 0;
	assert_int_equal(stored, 20);
	assert_int_equal(p.runs[1].record.id, 4);
	compact_plan_fini(&p);
}

static void small_gaps_are_filled_and_long_appends_become_one(void **state)
{
	struct slice r[500];
	struct compact_plan p;

	(void)state;
	for (uint32_t i = 0; i < ARRAY_LEN(r); i++)
		r[i] = (struct slice){.pos = i * 1100, .id = i + 1, .size = 1000, .len = 1000};
	assert_int_equal(compact_plan_make(r, ARRAY_LEN(r), &p), 0);
	assert_int_equal(p.n_runs, 1);
	assert_int_equal(p.runs[0].record.len, 499 * 1100 + 1000);
	compact_plan_fini(&p);
}

static void large_records_in_front_stay(void **state)
{
	const struct slice r[] = {
		{.pos = 0, .id = 1, .size = 8 * MIB, .len = 8 * MIB},
		{.pos = 8 * MIB, .id = 2, .size = 4 * MIB, .len = 4 * MIB},
		{.pos = 12 * MIB, .id = 3, .size = 4 * KIB, .len = 4 * KIB},
		{.pos = 12 * MIB + 4 * KIB, .id = 4, .size = 4 * KIB, .len = 4 * KIB}};
	struct compact_plan p;

	(void)state;
	assert_int_equal(compact_plan_make(r, ARRAY_LEN(r), &p), 0);
	assert_int_equal(p.skipped, 2);
	assert_int_equal(p.n_runs, 1);
	assert_int_equal(p.runs[0].record.pos, 12 * MIB);
	assert_int_equal(p.runs[0].record.len, 8 * KIB);
	compact_plan_fini(&p);
}

static void zeros_over_everything_leave_one_record(void **state)
{
	const struct slice r[] = {{.pos = 0, .id = 1, .size = 100, .len = 100},
				  {.pos = 0, .len = CHUNK_SIZE}};
	struct compact_plan p;

	(void)state;
	assert_int_equal(compact_plan_make(r, ARRAY_LEN(r), &p), 0);
	assert_int_equal(p.skipped, 0);
	assert_int_equal(p.n_runs, 1);
	assert_int_equal(p.runs[0].record.id, 0);
	assert_false(p.runs[0].rewrite);
	compact_plan_fini(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_lists_show_the_same_bytes),
		cmocka_unit_test(holes_are_not_stored),
		cmocka_unit_test(small_gaps_are_filled_and_long_appends_become_one),
		cmocka_unit_test(large_records_in_front_stay),
		cmocka_unit_test(zeros_over_everything_leave_one_record),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
