/* SPDX-License-Identifier: Apache-2.0 */
/* The pace of reads after the object store asked for less, and a limit that is shared. The clock is
 * the test's; the store only counts what reaches it. */
#include "tests/unit/check.h"

#include "common/clock.h"
#include "common/object/object_limit.h"

static struct object_store store;
static struct loop *loop;
static struct object_limit *limit;
static unsigned started, ended, late; /* atomic */

static void start(struct object_store *s, struct object_req *req)
{
	(void)s;
	__atomic_fetch_add(&started, 1, __ATOMIC_SEQ_CST);
	object_done(s, req, 0);
}

static const struct object_ops ops = {.name = "count", .start = start};

static void done(struct object_req *req, int status)
{
	__atomic_fetch_add(status == -ETIMEDOUT ? &late : &ended, 1, __ATOMIC_SEQ_CST);
	free(req);
}

static uint64_t now_us;

static void begin(void)
{
	store = (struct object_store){.ops = &ops};
	started = ended = late = 0;
	now_us = 1000000000;
	clock_set(now_us);
	assert_int_equal(loop_new("limit", &loop), 0);
	assert_int_equal(object_limit_new(&store, loop, &limit), 0);
}

static void end(void)
{
	object_limit_free(limit);
	loop_free(loop);
	clock_set(0);
}

static void settle(void *arg)
{
	(void)arg;
}

static void get(uint64_t deadline_us)
{
	static unsigned char buf[1000];
	struct object_req *req = calloc(1, sizeof(*req));

	assert_non_null(req);
	*req = (struct object_req){.op = OBJECT_GET,
				   .key = "v/x",
				   .buf = buf,
				   .cap = sizeof(buf),
				   .deadline_us = deadline_us,
				   .done = done};
	list_init(&req->link);
	object_limit_start(limit, req);
}

/* the clock moves by a second in steps of 10 ms; in each the waiting are looked at */
static unsigned second(unsigned gets_each_step)
{
	unsigned before = __atomic_load_n(&started, __ATOMIC_SEQ_CST);

	for (unsigned i = 0; i < 100; i++) {
		for (unsigned k = 0; k < gets_each_step; k++)
			get(0);
		now_us += 10000;
		clock_set(now_us);
		object_limit_look(limit);
		loop_run_sync(loop, settle, NULL);
	}
	return __atomic_load_n(&started, __ATOMIC_SEQ_CST) - before;
}

static void reads_are_halved_and_grow_again_D05(void **state)
{
	unsigned n, last;

	(void)state;
	begin();
	assert_int_equal(second(2), 200);
	assert_int_equal(second(2), 200);
	assert_true(object_limit_slow(limit));
	assert_false(object_limit_slow(limit)); /* the same news from somebody else */
	n = second(2);
	assert_in_range(n, 90, 115);
	assert_true(object_limit_slow(limit));
	n = second(2);
	assert_in_range(n, 45, 60);
	for (unsigned i = 0; i < 10; i++) {
		last = n;
		n = second(2);
		assert_true(n + 2 >= last);
	}
	assert_in_range(n, 130, 170);
	for (unsigned i = 0; i < 20; i++)
		(void)second(0);
	assert_int_equal(second(5), 500);
	end();
}

static void the_least_is_not_nothing(void **state)
{
	(void)state;
	begin();
	get(0);
	for (unsigned i = 0; i < 10; i++) {
		(void)object_limit_slow(limit);
		assert_true(second(1) >= 2);
	}
	end();
}

static void who_has_no_time_left_does_not_wait(void **state)
{
	(void)state;
	begin();
	for (unsigned i = 0; i < 4; i++) {
		(void)object_limit_slow(limit);
		(void)second(1);
	}
	get(now_us + 1500000);
	(void)second(0);
	assert_int_equal(late, 0);
	(void)second(0);
	assert_int_equal(late, 1);
	end();
}

static void a_limit_is_shared(void **state)
{
	(void)state;
	begin();
	object_limit_set(limit, 0, 100000); /* 100 reads a second */
	assert_in_range(second(2), 100, 112);
	object_limit_share(limit, 4);
	(void)second(0);
	assert_in_range(second(2), 24, 27);
	object_limit_share(limit, 1);
	(void)second(0);
	assert_in_range(second(0), 99, 101);
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_are_halved_and_grow_again_D05),
		cmocka_unit_test(the_least_is_not_nothing),
		cmocka_unit_test(who_has_no_time_left_does_not_wait),
		cmocka_unit_test(a_limit_is_shared),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
