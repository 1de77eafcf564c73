/* SPDX-License-Identifier: Apache-2.0 */
/* The pure parts of the metadata engine without memory. */
#include "tests/unit/nomem.h"

#include <fcntl.h>

#include "client/meta/acl.h"
#include "client/meta/compact_plan.h"
#include "client/meta/plock.h"
#include "client/meta/script_text.h"
#include "client/meta/slice.h"

enum { N = 200 };

static struct slice records[N];

/* overlapping each other, with holes, so that pieces are cut again and again */
static void make_records(void)
{
	for (uint32_t i = 0; i < N; i++)
		records[i] = (struct slice){.pos = i * 37 % 1000 * 100,
					    .id = i % 7 ? i + 1 : 0,
					    .size = 500 + i,
					    .len = 500 + i};
}

static int view(void)
{
	struct slice_view v;
	int r = slice_view_build(records, N, &v);

	if (r == 0)
		slice_view_fini(&v);
	return r;
}

static int plan(void)
{
	struct compact_plan p;
	int r = compact_plan_make(records, N, &p);

	if (r == 0)
		compact_plan_fini(&p);
	return r;
}

static int rule(void)
{
	static const uint8_t bytes[] = {0, 7, 0, 5, 0,	 7, 0, 0, 0, 0, 0, 2, 0, 0, 3,	 232, 0,
					7, 0, 0, 3, 233, 0, 4, 0, 0, 0, 1, 0, 0, 7, 208, 0,   6};
	struct str one = STR_INIT, two = STR_INIT;
	struct acl a, b;
	int r = acl_decode(bytes, sizeof(bytes), &a);

	if (r)
		return r;
	acl_encode(&a, &one);
	acl_to_xattr(&a, &two);
	r = str_error(&one) || str_error(&two) ? -ENOMEM : 0;
	if (r == 0) {
		assert_int_equal(one.len, sizeof(bytes));
		assert_memory_equal(one.s, bytes, sizeof(bytes));
		r = acl_from_xattr(two.s, two.len, &b);
	}
	if (r == 0)
		acl_fini(&b);
	acl_fini(&a);
	str_fini(&one);
	str_fini(&two);
	return r;
}

/* one lock over everything, then holes of another kind in it */
static int locks(void)
{
	struct plock p = {.n = 0};
	struct meta_lock l = {.type = F_WRLCK, .pid = 1, .start = 0, .end = 10000};
	int r = plock_set(&p, &l);

	for (uint64_t i = 0; i < 50 && r == 0; i++) {
		struct meta_lock hole = {
			.type = F_UNLCK, .pid = 1, .start = i * 100, .end = i * 100 + 10};

		r = plock_set(&p, &hole);
	}
	if (r == 0) {
		uint8_t bytes[51 * PLOCK_LEN];
		struct plock again;

		assert_in_range(p.n, 50, 51);
		plock_encode(&p, bytes);
		r = plock_decode(bytes, p.n * PLOCK_LEN, &again);
		if (r == 0)
			plock_fini(&again);
	}
	plock_fini(&p);
	return r;
}

static int script(void)
{
	struct str out = STR_INIT;
	int r = script_text_add(&out,
				"local function two()\n\treturn 2\nend\n\n"
				"local function one()\n\treturn two() - 1\nend\n",
				"return one()\n");

	str_fini(&out);
	return r;
}

static void views_of_chunks(void **state)
{
	(void)state;
	nomem_each(view);
}

static void plans_of_compaction(void **state)
{
	(void)state;
	nomem_each(plan);
}

static void access_rules(void **state)
{
	(void)state;
	nomem_each(rule);
}

static void record_locks(void **state)
{
	(void)state;
	nomem_each(locks);
}

static void texts_of_scripts(void **state)
{
	(void)state;
	nomem_each(script);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(views_of_chunks),  cmocka_unit_test(plans_of_compaction),
		cmocka_unit_test(access_rules),	    cmocka_unit_test(record_locks),
		cmocka_unit_test(texts_of_scripts),
	};

	make_records();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
