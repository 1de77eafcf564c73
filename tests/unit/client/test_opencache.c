/* SPDX-License-Identifier: Apache-2.0 */
/* What opens may go by: how long, how many, and that slice lists are given up exactly once. */
#include "tests/unit/check.h"

#include "client/opencache.h"

struct rfile {
	int puts;
};

static void put(struct rfile *f)
{
	f->puts++;
}

static void seen(struct opencache *c, uint64_t inode, uint64_t length, uint64_t asked_us)
{
	const struct attr a = {.type = INODE_FILE, .length = length};

	opencache_seen(c, inode, &a, asked_us);
}

static bool knows(struct opencache *c, uint64_t inode, uint64_t now_us, uint64_t length)
{
	struct attr a;
	uint64_t asked;

	return opencache_get(c, inode, now_us, &a, &asked) && a.length == length;
}

static void an_answer_counts_as_long_as_was_asked_for(void **state)
{
	struct opencache *c;

	(void)state;
	assert_int_equal(opencache_new(1000, 10, put, &c), 0);
	assert_false(knows(c, 7, 50, 1));
	seen(c, 7, 1, 100);
	assert_true(knows(c, 7, 1099, 1));
	assert_false(knows(c, 7, 1100, 1));
	seen(c, 7, 2, 2000);
	seen(c, 7, 1, 1500); /* overtaken */
	assert_true(knows(c, 7, 2001, 2));
	opencache_forget_all(c);
	assert_false(knows(c, 7, 2001, 2));
	opencache_free(c);
}

static void the_file_opened_longest_ago_is_forgotten(void **state)
{
	struct rfile files[3] = {0};
	struct opencache *c;

	(void)state;
	assert_int_equal(opencache_new(1000, 2, put, &c), 0);
	seen(c, 1, 1, 1);
	seen(c, 2, 2, 1);
	for (int i = 0; i < 2; i++)
		opencache_keep(c, (uint64_t)i + 1, &files[i], 1);
	assert_true(knows(c, 1, 2, 1));
	seen(c, 3, 3, 1);
	assert_true(knows(c, 1, 2, 1) && knows(c, 3, 2, 3));
	assert_false(knows(c, 2, 2, 2));
	assert_int_equal(files[1].puts, 1);
	assert_int_equal(files[0].puts, 0);
	opencache_free(c);
	assert_int_equal(files[0].puts, 1);
}

static void lists_are_kept_once_and_only_small_ones(void **state)
{
	struct rfile a = {0}, b = {0}, large = {0}, unknown = {0};
	struct opencache *c;

	(void)state;
	assert_int_equal(opencache_new(1000, 2, put, &c), 0);
	seen(c, 1, 1, 1);
	opencache_keep(c, 1, &a, 3);
	opencache_keep(c, 1, &b, 3);
	assert_int_equal(a.puts, 1);
	opencache_keep(c, 1, &large, 100000);
	assert_int_equal(large.puts, 1);
	opencache_keep(c, 2, &unknown, 1);
	assert_int_equal(unknown.puts, 1);
	assert_int_equal(b.puts, 0);
	opencache_free(c);
	assert_int_equal(b.puts, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_answer_counts_as_long_as_was_asked_for),
		cmocka_unit_test(the_file_opened_longest_ago_is_forgotten),
		cmocka_unit_test(lists_are_kept_once_and_only_small_ones),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
