/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "client/attrcache.h"

static struct attr version(int64_t ctime, int64_t mtime, uint64_t length)
{
	return (struct attr){
		.type = INODE_FILE, .length = length, .mtime = {mtime, 7}, .ctime = {ctime, 9}};
}

static struct attrcache *make(size_t max)
{
	struct attrcache *c;

	assert_int_equal(attrcache_new(max, &c), 0);
	return c;
}

static void an_answer_asked_before_a_newer_one_is_stale(void **state)
{
	struct attrcache *c = make(8);

	(void)state;
	assert_true(attrcache_seen(c, 5, 100));
	assert_true(attrcache_seen(c, 5, 300));
	assert_false(attrcache_seen(c, 5, 200));
	assert_true(attrcache_seen(c, 6, 200));
	assert_true(attrcache_seen(c, 5, 300));
	attrcache_free(c);
}

static void an_answer_asked_before_our_change_is_stale(void **state)
{
	struct attrcache *c = make(8);

	(void)state;
	attrcache_changed(c, 5, 200);
	assert_false(attrcache_seen(c, 5, 150));
	assert_false(attrcache_seen(c, 5, 200));
	assert_true(attrcache_seen(c, 5, 201));
	assert_true(attrcache_changed_since(c, 5, 200));
	assert_true(attrcache_changed_since(c, 5, 100));
	assert_false(attrcache_changed_since(c, 5, 201));
	assert_false(attrcache_changed_since(c, 9, 0));
	attrcache_free(c);
}

static void pages_are_kept_only_for_the_very_same_version(void **state)
{
	struct attrcache *c = make(8);
	struct attr a = version(10, 10, 100), same_mtime = version(11, 10, 100);
	struct attr longer = version(11, 10, 101);

	(void)state;
	assert_false(attrcache_pages_match(c, 5, &a, NULL)); /* nothing known */
	assert_true(attrcache_pages_match(c, 5, &a, NULL));
	/* rewritten with its mtime put back: only ctime tells */
	assert_false(attrcache_pages_match(c, 5, &same_mtime, NULL));
	assert_true(attrcache_pages_match(c, 5, &same_mtime, NULL));
	assert_false(attrcache_pages_match(c, 5, &longer, NULL));
	attrcache_pages_forget(c, 5);
	assert_false(attrcache_pages_match(c, 5, &longer, NULL));
	attrcache_free(c);
}

static void nothing_known_of_another_volume_counts(void **state)
{
	struct attrcache *c = make(8);
	struct attr a = version(10, 10, 100);

	(void)state;
	assert_true(attrcache_seen(c, 5, 100));
	assert_false(attrcache_pages_match(c, 5, &a, NULL));
	assert_true(attrcache_pages_match(c, 5, &a, NULL));
	attrcache_volume_moved(c, 200);
	assert_false(attrcache_seen(c, 5, 200)); /* asked of the old one */
	assert_false(attrcache_seen(c, 6, 150)); /* also where nothing was known */
	assert_false(attrcache_pages_match(c, 5, &a, NULL));
	assert_true(attrcache_seen(c, 5, 201));
	attrcache_free(c);
}

static void the_oldest_inode_is_forgotten_at_the_limit(void **state)
{
	struct attrcache *c = make(3);
	struct attr a = version(1, 1, 1);

	(void)state;
	for (uint64_t i = 1; i <= 3; i++)
		assert_false(attrcache_pages_match(c, i, &a, NULL));
	assert_true(attrcache_pages_match(c, 1, &a, NULL)); /* used again: 2 is the oldest now */
	assert_false(attrcache_pages_match(c, 4, &a, NULL));
	assert_true(attrcache_pages_match(c, 1, &a, NULL));
	assert_true(attrcache_pages_match(c, 3, &a, NULL));
	assert_false(attrcache_pages_match(c, 2, &a, NULL));
	attrcache_free(c);
}

/* a directory is known as the last change of its names left it, unless two of them crossed */
static void directories(void **state)
{
	struct attr before = {.type = INODE_DIR, .nlink = 2},
		    after = {.type = INODE_DIR, .nlink = 3};
	struct attrcache *c;
	uint64_t first, second, asked = 0;
	struct attr a;

	(void)state;
	assert_int_equal(attrcache_new(4, &c), 0);
	assert_false(attrcache_dir(c, 1, &a, &asked));
	first = attrcache_names_begin(c, 1);
	attrcache_names_end(c, 1, first, &before, 100, 110);
	assert_true(attrcache_dir(c, 1, &a, &asked));
	assert_int_equal(a.nlink, 2);
	assert_int_equal(asked, 100);
	/* as if it was changed at the end: answers asked for before are stale */
	assert_false(attrcache_seen(c, 1, 105));

	first = attrcache_names_begin(c, 1);
	assert_false(attrcache_dir(c, 1, &a, &asked));
	second = attrcache_names_begin(c, 1);
	attrcache_names_end(c, 1, second, &after, 210, 230);
	assert_true(attrcache_dir(c, 1, &a, &asked));
	attrcache_names_end(c, 1, first, &before, 200, 240);
	assert_false(attrcache_dir(c, 1, &a, &asked));

	/* one that failed, or did not tell; an attribute that was set meanwhile */
	first = attrcache_names_begin(c, 1);
	attrcache_names_end(c, 1, first, NULL, 300, 310);
	assert_false(attrcache_dir(c, 1, &a, &asked));
	first = attrcache_names_begin(c, 1);
	attrcache_changed(c, 1, 405);
	attrcache_names_end(c, 1, first, &after, 400, 410);
	assert_false(attrcache_dir(c, 1, &a, &asked));
	first = attrcache_names_begin(c, 1);
	attrcache_names_end(c, 1, first, &after, 500, 510);
	attrcache_volume_moved(c, 520);
	assert_false(attrcache_dir(c, 1, &a, &asked));
	first = attrcache_names_begin(c, 1);
	attrcache_names_end(c, 1, first, &after, 600, 610);
	attrcache_dirs_forget(c, 620);
	assert_false(attrcache_dir(c, 1, &a, &asked));
	first = attrcache_names_begin(c, 1);
	attrcache_names_end(c, 1, first, &after, 630, 640);
	assert_true(attrcache_dir(c, 1, &a, &asked));
	attrcache_free(c);
}

static void answers_are_kept_until_something_changes(void **state)
{
	const struct attr a = {.type = INODE_FILE, .length = 5};
	struct attrcache *c;
	struct attr got;
	uint64_t asked;

	(void)state;
	assert_int_equal(attrcache_new(10, &c), 0);
	assert_true(attrcache_seen(c, 1, 100));
	attrcache_keep(c, 1, &a, 100);
	assert_true(attrcache_dir(c, 1, &got, &asked) && got.length == 5 && asked == 100);
	attrcache_changed(c, 1, 150);
	assert_false(attrcache_dir(c, 1, &got, &asked));
	/* asked for before the change */
	assert_false(attrcache_seen(c, 1, 140));
	attrcache_keep(c, 1, &a, 140);
	assert_false(attrcache_dir(c, 1, &got, &asked));
	assert_true(attrcache_seen(c, 1, 200));
	attrcache_keep(c, 1, &a, 200);
	assert_true(attrcache_dir(c, 1, &got, &asked));
	/* somebody lost a name: it may be this one */
	attrcache_changed_some(c, 250);
	assert_false(attrcache_dir(c, 1, &got, &asked));
	assert_true(attrcache_seen(c, 1, 240));
	attrcache_keep(c, 1, &a, 240);
	assert_false(attrcache_dir(c, 1, &got, &asked));
	attrcache_free(c);
}

/* two opens, or an open and the grant of a lock, at the same time: the second must not be told that
 * the pages are right before the first has dropped them */
static void pages_match_only_when_the_others_are_dropped(void **state)
{
	const struct attr a = {.ctime = {.sec = 1}}, b = {.ctime = {.sec = 2}};
	struct attrcache *c;
	uint64_t first, second, third;

	(void)state;
	assert_int_equal(attrcache_new(10, &c), 0);
	assert_false(attrcache_pages_match(c, 5, &a, &first));
	assert_false(attrcache_pages_match(c, 5, &a, &second));
	assert_true(first && first == second);
	attrcache_pages_dropped(c, 5, first);
	assert_true(attrcache_pages_match(c, 5, &a, &third));
	assert_int_equal(third, 0);
	/* what was dropped for one version does not do for the next */
	assert_false(attrcache_pages_match(c, 5, &b, &first));
	assert_false(attrcache_pages_match(c, 5, &a, &second));
	assert_true(first != second);
	attrcache_pages_dropped(c, 5, first);
	assert_false(attrcache_pages_match(c, 5, &a, &third));
	attrcache_pages_dropped(c, 5, second);
	assert_true(attrcache_pages_match(c, 5, &a, &third));
	/* nor for what was forgotten meanwhile */
	assert_false(attrcache_pages_match(c, 5, &b, &first));
	attrcache_pages_forget(c, 5);
	assert_false(attrcache_pages_match(c, 5, &b, &second));
	attrcache_pages_dropped(c, 5, first);
	assert_false(attrcache_pages_match(c, 5, &b, &third));
	attrcache_free(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pages_match_only_when_the_others_are_dropped),
		cmocka_unit_test(an_answer_asked_before_a_newer_one_is_stale),
		cmocka_unit_test(an_answer_asked_before_our_change_is_stale),
		cmocka_unit_test(pages_are_kept_only_for_the_very_same_version),
		cmocka_unit_test(nothing_known_of_another_volume_counts),
		cmocka_unit_test(the_oldest_inode_is_forgotten_at_the_limit),
		cmocka_unit_test(directories),
		cmocka_unit_test(answers_are_kept_until_something_changes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
