/* SPDX-License-Identifier: Apache-2.0 */
/* log: a line is a line whatever is in it, files can be changed, floods are held back. */
#include "common/log.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "common/clock.h"

static char a[] = "/tmp/stoke-log-a-XXXXXX", b[] = "/tmp/stoke-log-b-XXXXXX";
static char text[8192];

static int begin(void **state)
{
	(void)state;
	close(mkstemp(a));
	close(mkstemp(b));
	log_init("test", LOG_LVL_INFO);
	return 0;
}

static int end(void **state)
{
	(void)state;
	return unlink(a) || unlink(b);
}

static const char *content(const char *path)
{
	int fd = open(path, O_RDONLY);
	ssize_t n = read(fd, text, sizeof(text) - 1);

	close(fd);
	text[n < 0 ? 0 : n] = 0;
	return text;
}

static void log_writes_lines_of_its_level(void **state)
{
	char long_text[3000];
	const char *s;

	(void)state;
	assert_int_equal(log_to_file("/nowhere/at/all"), -ENOENT);
	assert_int_equal(log_to_file(a), 0);
	log_debug("not shown");
	log_info("hello name=%s", "x\ny\x1b[31m");
	s = content(a);
	assert_null(strstr(s, "not shown"));
	assert_non_null(strstr(s, " info  test["));
	assert_non_null(strstr(s, "] hello name=x y [31m\n"));
	assert_ptr_equal(strchr(s, '\n'), s + strlen(s) - 1);

	assert_int_equal(log_to_file(b), 0);
	memset(long_text, 'l', sizeof(long_text) - 1);
	long_text[sizeof(long_text) - 1] = 0;
	errno = ENOENT;
	log_error("%m %s", long_text);
	assert_int_equal(errno, ENOENT);
	s = content(b);
	assert_true(strlen(s) < sizeof(long_text));
	assert_non_null(strstr(s, "No such file"));
	assert_non_null(strstr(s, "lll...\n"));
	assert_null(strstr(content(a), "lll"));
	assert_int_equal(log_to_file(a), 0);
	log_warn("back");
	assert_non_null(strstr(content(a), "warn  test["));
	assert_null(strstr(content(b), "back"));
}

static void log_rate_counts_what_it_swallows(void **state)
{
	struct log_rate rate = {0};
	unsigned n = 99;

	(void)state;
	clock_set(1000000);
	assert_true(log_rate_ok(&rate, 500, &n));
	assert_int_equal(n, 0);
	assert_false(log_rate_ok(&rate, 500, &n));
	clock_set(1000499);
	assert_false(log_rate_ok(&rate, 500, &n));
	clock_set(1000500);
	assert_true(log_rate_ok(&rate, 500, &n));
	assert_int_equal(n, 2);
	assert_int_equal(clock_left(1000600), 100);
	assert_int_equal(clock_left(1000500), 0);
	assert_true(clock_left(0) == UINT64_MAX);
	clock_set(0);
	assert_true(clock_us() != 1000500);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(log_writes_lines_of_its_level),
		cmocka_unit_test(log_rate_counts_what_it_swallows),
	};

	return cmocka_run_group_tests(tests, begin, end);
}
