/* SPDX-License-Identifier: Apache-2.0 */
/* str: what was added is there, and a lost addition is remembered. */
#include "common/str.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void str_is_empty_before_anything_was_added(void **state)
{
	struct str b = STR_INIT;

	(void)state;
	assert_string_equal(str_c(&b), "");
	assert_int_equal(str_error(&b), 0);
	str_reset(&b);
	str_fini(&b);
}

static void str_keeps_all_additions_in_order(void **state)
{
	struct str b = STR_INIT;
	char want[4096] = "";
	size_t at = 0;

	(void)state;
	for (int i = 0; i < 300; i++) {
		str_addf(&b, "%d,", i);
		at += (size_t)snprintf(want + at, sizeof(want) - at, "%d,", i);
	}
	str_add(&b, "end");
	str_addn(&b, "\0x", 2);
	assert_int_equal(b.len, at + 5);
	assert_memory_equal(b.s, want, at);
	assert_memory_equal(b.s + at, "end\0x", 6);
	str_fini(&b);
}

static void str_take_empties_the_giver(void **state)
{
	struct str b = STR_INIT;
	char *s = str_take(&b);

	(void)state;
	assert_string_equal(s, "");
	free(s);
	str_add(&b, "abc");
	s = str_take(&b);
	assert_string_equal(s, "abc");
	assert_string_equal(str_c(&b), "");
	assert_int_equal(b.len, 0);
	free(s);
}

static void str_remembers_a_lost_addition(void **state)
{
	struct str b = STR_INIT;

	(void)state;
	str_add(&b, "kept");
	str_addn(&b, "x", SIZE_MAX / 2); /* refused before it is read */
	assert_int_equal(str_error(&b), -ENOMEM);
	str_add(&b, "more");
	assert_string_equal(str_c(&b), "kept");
	assert_null(str_take(&b));
	assert_int_equal(str_error(&b), 0);
	str_fini(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(str_is_empty_before_anything_was_added),
		cmocka_unit_test(str_keeps_all_additions_in_order),
		cmocka_unit_test(str_take_empties_the_giver),
		cmocka_unit_test(str_remembers_a_lost_addition),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
