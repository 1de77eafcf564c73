/* SPDX-License-Identifier: Apache-2.0 */
/* What is known of descriptors that went out, and what a disk waits for. */
#include "tests/unit/cached/fixture.h"

#include "cached/passed.h"

enum { COST = 4096 };

static struct disk disk;
static struct passed *passed;
static struct passed_holder a, b;

static void begin(void)
{
	assert_int_equal(passed_new(&passed), 0);
	passed_holder_init(&a);
	passed_holder_init(&b);
	atomic_store(&disk.held, 0);
}

static void end(void)
{
	passed_drop(passed, &a);
	passed_drop(passed, &b);
	assert_int_equal(a.n + b.n, 0);
	assert_int_equal(atomic_load(&disk.held), 0);
	passed_free(passed);
}

static void removed(uint64_t slice)
{
	struct block_key k = key_of(&volume_a, slice, COST);

	passed_unlinked(passed, &disk, &k, COST);
}

static void add(struct passed_holder *h, uint64_t slice)
{
	struct block_key k = key_of(&volume_a, slice, COST);

	assert_int_equal(passed_add(passed, h, &k), 0);
}

static bool closed(struct passed_holder *h, uint64_t slice)
{
	struct block_key k = key_of(&volume_a, slice, COST);

	return passed_closed(passed, h, &k);
}

static void a_removed_file_counts_until_its_last_holder_closed_it(void **state)
{
	(void)state;
	begin();
	removed(1); /* nobody has it: free at once */
	assert_int_equal(atomic_load(&disk.held), 0);
	add(&a, 1);
	add(&b, 1);
	add(&b, 2);
	assert_int_equal(b.n, 2);
	removed(1);
	assert_int_equal(atomic_load(&disk.held), COST);
	assert_true(closed(&a, 1));
	assert_false(closed(&a, 1)); /* more than he was given */
	assert_int_equal(atomic_load(&disk.held), COST);
	assert_true(closed(&b, 1));
	assert_int_equal(atomic_load(&disk.held), 0);
	assert_true(closed(&b, 2));
	removed(2);
	assert_int_equal(atomic_load(&disk.held), 0);
	end();
}

static void a_block_that_came_back_has_another_file(void **state)
{
	(void)state;
	begin();
	add(&a, 1);
	removed(1);
	add(&a, 1);
	assert_int_equal(atomic_load(&disk.held), COST);
	removed(1);
	assert_int_equal(atomic_load(&disk.held), 2 * COST);
	add(&a, 1);
	assert_true(closed(&a, 1)); /* the oldest one's */
	assert_true(closed(&a, 1));
	assert_int_equal(atomic_load(&disk.held), 0);
	assert_int_equal(a.n, 1);
	end();
}

static void a_holder_that_is_gone_holds_nothing(void **state)
{
	(void)state;
	begin();
	for (uint64_t i = 0; i < 100; i++) {
		add(&a, i);
		if (i % 2)
			add(&b, i);
		removed(i);
	}
	assert_int_equal(atomic_load(&disk.held), 100 * COST);
	passed_drop(passed, &a);
	assert_int_equal(a.n, 0);
	assert_int_equal(atomic_load(&disk.held), 50 * COST);
	end();
}

static void nobody_is_waited_for_for_ever(void **state)
{
	uint64_t now = clock_us();

	(void)state;
	clock_set(now);
	begin();
	add(&a, 1);
	add(&a, 2);
	removed(1);
	clock_set(now + PASSED_WAIT_US / 2);
	removed(2);
	passed_expire(passed);
	assert_int_equal(atomic_load(&disk.held), 2 * COST);
	clock_set(now + PASSED_WAIT_US);
	passed_expire(passed);
	assert_int_equal(atomic_load(&disk.held), COST);
	assert_true(closed(&a, 1)); /* still his, but counted no more */
	assert_int_equal(atomic_load(&disk.held), COST);
	end();
	clock_set(0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_removed_file_counts_until_its_last_holder_closed_it),
		cmocka_unit_test(a_block_that_came_back_has_another_file),
		cmocka_unit_test(a_holder_that_is_gone_holds_nothing),
		cmocka_unit_test(nobody_is_waited_for_for_ever),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
