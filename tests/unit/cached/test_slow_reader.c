/* SPDX-License-Identifier: Apache-2.0 */
/* A reader that asks for much and takes nothing must not keep the pool's memory from the others. */
#include "tests/unit/cached/served.h"

enum { ASKED = 200 }; /* blocks: more than the pool of 16 MiB */

/* asks for all of them over a connection that then reads nothing */
static int ask_and_stop(const struct served *s)
{
	int fd = member_tcp(s);

	for (unsigned i = 0; i < ASKED; i++) {
		struct block_key k = key_of(&volume_a, 1 + i, BLOCK);

		ask_get(fd, 1 + i, 0, &k, 0, BLOCK);
	}
	return fd;
}

/* how long somebody else waits for a block that nobody has yet */
static uint64_t cold_block_us(struct served *s, uint64_t slice)
{
	struct block_key k = key_of(&volume_a, slice, BLOCK);
	struct answer a = {.f.status = ST_FILLING};
	uint64_t start = clock_us();
	int fd = member_unix(s);

	ask_get(fd, 1, 0, &k, 0, BLOCK);
	while (a.f.status == ST_FILLING)
		assert_true(hear(fd, &a));
	check_data(&a, &k, 0, BLOCK);
	free(a.body);
	(void)close(fd);
	return clock_us() - start;
}

static void a_stopped_reader_leaves_memory_for_others(void **state)
{
	struct served *s = served_new(64 << 20, 100);
	int fd = ask_and_stop(s);
	struct answer a = {0};
	unsigned got = 0;

	(void)state;
	eventually(atomic_load(&s->w->objects.gets) >= 64);
	for (uint64_t i = 0; i < 10; i++)
		assert_true(cold_block_us(s, 1000 + i) < CONN_STALL_US / 2);
	/* he was not dropped for it, and has lost nothing */
	while (got < ASKED) {
		struct block_key k;

		assert_true(hear(fd, &a));
		if (a.f.status == ST_FILLING)
			continue;
		k = key_of(&volume_a, a.f.id, BLOCK);
		check_data(&a, &k, 0, BLOCK);
		got++;
	}
	assert_int_equal(metric_value(s->w->counters.rejected), 0);
	free(a.body);
	(void)close(fd);
	served_free(s);
}

/* nothing is kept that could be sent from a file: whoever stands in the others' way goes */
static void a_stopped_reader_of_what_is_not_kept_is_dropped_soon(void **state)
{
	struct served *s = served_new(64 << 10, 100); /* smaller than a block */
	int fd = ask_and_stop(s);

	(void)state;
	eventually(pool_pressed(s->w->pool));
	assert_true(cold_block_us(s, 1000) < 3 * CONN_STALL_US);
	assert_int_equal(metric_value(s->w->counters.rejected), 1);
	(void)close(fd);
	served_free(s);
}

/* one who only pauses is not dropped while nobody is in want of memory, and one who reads slowly
 * gets all of it */
static void a_slow_reader_gets_everything(void **state)
{
	const struct timespec pause = {.tv_nsec = 20000000};
	struct served *s = served_new(64 << 20, 100);
	struct block_key k = key_of(&volume_a, 1, BLOCK);
	struct answer a = {0};
	int fd = ask_and_stop(s);

	(void)state;
	for (unsigned got = 0; got < ASKED;) {
		assert_true(hear(fd, &a));
		if (a.f.status == ST_FILLING)
			continue;
		k = key_of(&volume_a, a.f.id, BLOCK);
		check_data(&a, &k, 0, BLOCK);
		got++;
		nanosleep(&pause, NULL);
	}
	free(a.body);
	(void)close(fd);
	served_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_stopped_reader_leaves_memory_for_others),
		cmocka_unit_test(a_stopped_reader_of_what_is_not_kept_is_dropped_soon),
		cmocka_unit_test(a_slow_reader_gets_everything),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
