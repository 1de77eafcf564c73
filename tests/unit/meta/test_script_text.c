/* SPDX-License-Identifier: Apache-2.0 */
/* What of the prelude comes into a script. */
#include "client/meta/script_text.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static const char prelude[] = "-- about the prelude\n"
			      "local a, b = 1, 2\n"
			      "\n"
			      "-- about one\n"
			      "local function one()\n"
			      "\t-- two() is only spoken of\n"
			      "\treturn a .. 'two'\n"
			      "end\n"
			      "\n"
			      "local function two(t)\n"
			      "\treturn t.three, one()\n"
			      "end\n"
			      "local function three()\n"
			      "\treturn \"\\\"\" .. b\n"
			      "end\n";

static void expect(const char *body, const char *want)
{
	struct str out = STR_INIT;

	assert_int_equal(script_text_add(&out, prelude, body), 0);
	assert_string_equal(str_c(&out), want);
	str_fini(&out);
}

static void test_needed(void **state)
{
	(void)state;
	expect("return 5\n", "return 5\n");
	expect("return x.one, 'two', \"three\" -- a\n", "return x.one, 'two', \"three\" -- a\n");
	expect("return b\n", "local a, b = 1, 2\nreturn b\n");
	expect("return one()\n",
	       "local a, b = 1, 2\nlocal function one()\n\treturn a .. 'two'\nend\n"
	       "return one()\n");
	/* what is needed by something needed, and no field of a table */
	expect("return ''..two({})\n",
	       "local a, b = 1, 2\nlocal function one()\n\treturn a .. 'two'\nend\n"
	       "local function two(t)\n\treturn t.three, one()\nend\nreturn ''..two({})\n");
	expect("-- one\n\nreturn three()\n",
	       "local a, b = 1, 2\nlocal function three()\n\treturn \"\\\"\" .. b\nend\nreturn "
	       "three()\n");
}

static void test_form(void **state)
{
	struct str out = STR_INIT;

	(void)state;
	assert_int_equal(script_text_add(&out, "local = 5\n", "return 1\n"), -EINVAL);
	assert_int_equal(script_text_add(&out, "local function (x)\nend\n", "return 1\n"), -EINVAL);
	assert_int_equal(script_text_add(&out, "", "return 'open"), 0);
	assert_string_equal(str_c(&out), "return 'open");
	str_fini(&out);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_needed),
		cmocka_unit_test(test_form),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
