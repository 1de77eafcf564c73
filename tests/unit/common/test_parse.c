/* SPDX-License-Identifier: Apache-2.0 */
/* parse: what is a number and what is not. */
#include "common/parse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void numbers(void **state)
{
	static const struct {
		const char *s;
		int r;
		uint64_t v;
	} rows[] = {
		{"0", 0, 0},	     {"18446744073709551615", 0, UINT64_MAX},
		{"007", 0, 7},	     {"18446744073709551616", -ERANGE, 0},
		{"", -EINVAL, 0},    {" 1", -EINVAL, 0},
		{"1 ", -EINVAL, 0},  {"-1", -EINVAL, 0},
		{"+1", -EINVAL, 0},  {"0x10", -EINVAL, 0},
		{"1.0", -EINVAL, 0}, {"99999999999999999999999", -ERANGE, 0},
	};
	uint64_t v;
	int64_t i;

	(void)state;
	for (size_t n = 0; n < ARRAY_LEN(rows); n++) {
		v = 42;
		assert_int_equal(parse_u64(rows[n].s, UINT64_MAX, &v), rows[n].r);
		assert_int_equal(v, rows[n].r ? 42 : rows[n].v);
	}
	assert_int_equal(parse_u64("65536", 65535, &v), -ERANGE);
	assert_int_equal(parse_i64("-9223372036854775808", &i), 0);
	assert_true(i == INT64_MIN);
	assert_int_equal(parse_i64("9223372036854775808", &i), -ERANGE);
	assert_int_equal(parse_i64("-", &i), -EINVAL);
	assert_int_equal(parse_i64("--1", &i), -EINVAL);
}

static void sizes(void **state)
{
	static const struct {
		const char *s;
		uint64_t unit;
		int r;
		uint64_t v;
	} rows[] = {
		{"100", 1 << 20, 0, 100ULL << 20},
		{"0.5", 1 << 20, 0, 1 << 19},
		{"4M", 1, 0, 4 << 20},
		{"4m", 1 << 20, 0, 4 << 20},
		{"4MB", 1, 0, 4 << 20},
		{"4MiB", 1, 0, 4 << 20},
		{"1.5G", 1, 0, 3ULL << 29},
		{"10B", 1 << 20, 0, 10},
		{"15E", 1, 0, 15ULL << 60},
		{"16E", 1, -ERANGE, 0},
		{"20000000000000000000", 1, -ERANGE, 0},
		{"", 1, -EINVAL, 0},
		{"M", 1, -EINVAL, 0},
		{"1.", 1, -EINVAL, 0},
		{".5", 1, -EINVAL, 0},
		{"1.5.5", 1, -EINVAL, 0},
		{"1X", 1, -EINVAL, 0},
		{"1Mi", 1, -EINVAL, 0},
		{"1MBB", 1, -EINVAL, 0},
		{"-1M", 1, -EINVAL, 0},
		{"1 M", 1, -EINVAL, 0},
		{"1.0000000000", 1, -EINVAL, 0},
	};

	(void)state;
	for (size_t n = 0; n < ARRAY_LEN(rows); n++) {
		uint64_t v = 42;

		if (parse_size(rows[n].s, rows[n].unit, &v) != rows[n].r ||
		    v != (rows[n].r ? 42 : rows[n].v))
			fail_msg("%s: %llu", rows[n].s, (unsigned long long)v);
	}
}

static void durations(void **state)
{
	static const struct {
		const char *s;
		int r;
		uint64_t v;
	} rows[] = {
		{"12s", 0, 12000000},
		{"250ms", 0, 250000},
		{"7us", 0, 7},
		{"1h", 0, 3600000000},
		{"1d", 0, 86400000000},
		{"0.5", 0, 500000},
		{"30", 0, 30000000},
		{"1h30m", 0, 5400000000},
		{"1.5m", 0, 90000000},
		{"0", 0, 0},
		{"", -EINVAL, 0},
		{"s", -EINVAL, 0},
		{"1h30", -EINVAL, 0},
		{"1x", -EINVAL, 0},
		{"1 s", -EINVAL, 0},
		{"-1s", -EINVAL, 0},
		{"300000000d", -ERANGE, 0},
		{"200000000d100000000d", -ERANGE, 0},
	};

	(void)state;
	for (size_t n = 0; n < ARRAY_LEN(rows); n++) {
		uint64_t v = 42;

		if (parse_duration(rows[n].s, &v) != rows[n].r || v != (rows[n].r ? 42 : rows[n].v))
			fail_msg("%s: %llu", rows[n].s, (unsigned long long)v);
	}
}

static void booleans(void **state)
{
	bool b = false;

	(void)state;
	assert_int_equal(parse_bool("Yes", &b), 0);
	assert_true(b);
	assert_int_equal(parse_bool("off", &b), 0);
	assert_false(b);
	assert_int_equal(parse_bool("1", &b), 0);
	assert_true(b);
	assert_int_equal(parse_bool("", &b), -EINVAL);
	assert_int_equal(parse_bool("truee", &b), -EINVAL);
	assert_true(b);
}

static void hosts_and_ports(void **state)
{
	static const struct {
		const char *s;
		int r;
		const char *host;
		unsigned port;
	} rows[] = {
		{"h:1", 0, "h", 1},
		{"[::1]:65535", 0, "::1", 65535},
		{"1.2.3.4:0", 0, "1.2.3.4", 0},
		{"h", -EINVAL, "", 0},
		{":1", -EINVAL, "", 0},
		{"h:", -EINVAL, "", 0},
		{"::1:5", -EINVAL, "", 0},
		{"[::1:5", -EINVAL, "", 0},
		{"[]:5", -EINVAL, "", 0},
		{"h:65536", -ERANGE, "", 0},
		{"h:1x", -EINVAL, "", 0},
		{"a-host-that-is-too-long:1", -ERANGE, "", 0},
	};

	(void)state;
	for (size_t n = 0; n < ARRAY_LEN(rows); n++) {
		char host[16] = "";
		uint16_t port = 0;

		if (parse_host_port(rows[n].s, host, sizeof(host), &port) != rows[n].r ||
		    strcmp(host, rows[n].host) != 0 || port != rows[n].port)
			fail_msg("%s: %s %u", rows[n].s, host, port);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(numbers),	   cmocka_unit_test(sizes),
		cmocka_unit_test(durations),	   cmocka_unit_test(booleans),
		cmocka_unit_test(hosts_and_ports),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
