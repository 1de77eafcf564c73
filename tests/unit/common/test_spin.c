/* SPDX-License-Identifier: Apache-2.0 */
/* Looking instead of sleeping: it ends, and learns when it does not pay. */
#include "common/spin.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static unsigned looks, ready_at;

static bool ready(void *arg)
{
	(void)arg;
	return ++looks >= ready_at;
}

static void test_comes(void **state)
{
	struct spin s = {0};
	bool came = false;

	(void)state;
	ready_at = 3;
	/* other programs may have the processor for longer than it looks, or is fine with */
	for (int i = 0; i < 1000 && !(came && !s.misses); i++) {
		looks = 0;
		came = spin_until(&s, ready, NULL);
	}
	assert_true(came);
	assert_int_equal(looks, 3);
	assert_int_equal(s.busy, 0);
	assert_int_equal(s.misses, 0);
}

/* where nothing comes, few looks are made; when something comes again, it learns that, too */
static void test_learns(void **state)
{
	struct spin s = {0};
	unsigned tries = 0, before;

	(void)state;
	ready_at = UINT32_MAX;
	for (int i = 0; i < 1000; i++) {
		looks = 0;
		assert_false(spin_until(&s, ready, NULL));
		tries += looks > 0;
	}
	assert_in_range(tries, 8, 30);
	ready_at = 1;
	before = s.misses;
	for (int i = 0; i < 200 && s.misses; i++)
		(void)spin_until(&s, ready, NULL);
	assert_true(before > 0 && s.misses == 0);
	looks = 0;
	assert_true(spin_until(&s, ready, NULL));
}

static void test_one_at_a_time(void **state)
{
	struct spin s = {.busy = 1};

	(void)state;
	looks = 0;
	ready_at = 1;
	assert_false(spin_until(&s, ready, NULL));
	assert_int_equal(looks, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_comes),
		cmocka_unit_test(test_learns),
		cmocka_unit_test(test_one_at_a_time),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
