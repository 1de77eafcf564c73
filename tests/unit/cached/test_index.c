/* SPDX-License-Identifier: Apache-2.0 */
/* The index against a plain array, random steps with a printed seed; its refusals; threads. */
#include "tests/unit/check.h"

#include <malloc.h>
#include <pthread.h>
#include <time.h>

#include "cached/index.h"

enum { KEYS = 256, STEPS = 40000, DISKS = 3 };
enum state { ABSENT, WRITING, PRESENT, LEAVING };

static const struct hash128 volume = {{1}}, other = {{2}};

struct slot {
	struct block_key key;
	enum state state;
	unsigned disk;
	bool pinned;
};

static struct index *make(void)
{
	struct index *ix;

	assert_int_equal(index_new(&volume, DISKS, evict_loop_new, &ix), 0);
	return ix;
}

static int status_of_begin(enum state s)
{
	return s == ABSENT ? 0 : s == PRESENT ? -EEXIST : -EBUSY;
}

static int status_of_take(enum state s)
{
	return s == PRESENT ? 0 : s == ABSENT ? -ENOENT : -EBUSY;
}

static void take_victim(struct index *ix, struct slot *slots)
{
	unsigned disk = (unsigned)random() % DISKS, have = 0;
	struct block_key k;

	for (unsigned i = 0; i < KEYS; i++)
		have += slots[i].state == PRESENT && slots[i].disk == disk && !slots[i].pinned;
	assert_int_equal(index_victim(ix, disk, &k), have ? 0 : -ENOENT);
	if (!have)
		return;
	for (unsigned i = 0; i < KEYS; i++)
		if (block_key_eq(&slots[i].key, &k)) {
			assert_true(slots[i].state == PRESENT && slots[i].disk == disk &&
				    !slots[i].pinned);
			slots[i].state = LEAVING;
			return;
		}
	fail_msg("a victim that was never there");
}

static void step(struct index *ix, struct slot *slots)
{
	struct slot *s = &slots[(unsigned)random() % KEYS];
	unsigned disk = 99;

	switch (random() % 8) {
	case 0:
		assert_int_equal(index_begin(ix, &s->key), status_of_begin(s->state));
		if (s->state == ABSENT)
			s->state = WRITING;
		break;
	case 1:
		if (s->state != WRITING)
			break;
		s->disk = (unsigned)random() % DISKS;
		assert_int_equal(index_commit(ix, &s->key, s->disk,
					      (enum evict_kind)(random() % (EVICT_GUEST + 1))),
				 0);
		s->state = PRESENT;
		s->pinned = false;
		break;
	case 2:
		if (s->state != WRITING)
			break;
		index_abort(ix, &s->key);
		s->state = ABSENT;
		break;
	case 3:
		assert_int_equal(index_take(ix, &s->key, &disk), status_of_take(s->state));
		if (s->state == PRESENT) {
			assert_int_equal(disk, s->disk);
			s->state = LEAVING;
		}
		break;
	case 4:
		if (s->state != LEAVING)
			break;
		index_gone(ix, &s->key);
		s->state = ABSENT;
		break;
	case 5:
		if (random() % 4 == 0)
			take_victim(ix, slots);
		break;
	case 6:
		s->pinned = random() % 2;
		assert_int_equal(index_pin(ix, &s->key, s->pinned), s->state == PRESENT);
		break;
	default:
		assert_int_equal(index_find(ix, &s->key, &disk), s->state == PRESENT);
		if (s->state == PRESENT)
			assert_int_equal(disk, s->disk);
	}
}

static void follows_a_plain_map(void **state)
{
	static struct slot slots[KEYS];
	unsigned seed = (unsigned)time(NULL);
	struct index *ix = make();

	(void)state;
	print_message("seed %u\n", seed);
	srandom(seed);
	for (unsigned i = 0; i < KEYS; i++)
		block_key_init(&slots[i].key, &volume, 1 + i / 4, i % 4, 4096);
	for (unsigned n = 0; n < STEPS; n++) {
		uint64_t present = 0;

		step(ix, slots);
		if (n % 64)
			continue;
		for (unsigned i = 0; i < KEYS; i++)
			present += slots[i].state == PRESENT;
		assert_int_equal(index_count(ix), present);
	}
	index_free(ix);
}

static void another_volume_is_refused_and_a_move_forgets(void **state)
{
	struct index *ix = make();
	struct block_key a, b, late;
	unsigned disk;

	(void)state;
	block_key_init(&a, &volume, 1, 0, 100);
	block_key_init(&late, &volume, 2, 0, 100);
	block_key_init(&b, &other, 1, 0, 100);
	assert_int_equal(index_begin(ix, &b), -ESTALE);
	assert_int_equal(index_begin(ix, &a), 0);
	assert_int_equal(index_commit(ix, &a, 0, EVICT_READ), 0);
	assert_int_equal(index_begin(ix, &late), 0);
	index_reset(ix, &other);
	assert_int_equal(index_count(ix), 0);
	assert_false(index_find(ix, &a, &disk));
	assert_false(index_find(ix, &b, &disk));
	/* the write that was under way learns that its block does not count */
	assert_int_equal(index_commit(ix, &late, 0, EVICT_READ), -ESTALE);
	index_gone(ix, &a);
	assert_int_equal(index_begin(ix, &b), 0);
	assert_int_equal(index_commit(ix, &b, 1, EVICT_READ), 0);
	assert_true(index_find(ix, &b, &disk));
	assert_int_equal(disk, 1);
	index_free(ix);
}

#if !defined(__SANITIZE_ADDRESS__) &&                                                              \
	!defined(__SANITIZE_THREAD__) /* they count memory of their own */
static void a_block_costs_little_memory(void **state)
{
	enum { N = 100000 };
	struct index *ix = make();
	size_t before = mallinfo2().uordblks, each;

	(void)state;
	for (unsigned i = 0; i < N; i++) {
		struct block_key k;

		block_key_init(&k, &volume, i, 0, 4 << 20);
		assert_int_equal(index_begin(ix, &k), 0);
		assert_int_equal(index_commit(ix, &k, i % DISKS, EVICT_READ), 0);
	}
	each = (mallinfo2().uordblks - before) / N;
	print_message("%zu bytes a block\n", each);
	assert_true(each <= 160);
	index_free(ix);
}
#endif

static void *writer(void *arg)
{
	struct index *ix = arg;

	for (unsigned i = 0; i < 20000; i++) {
		struct block_key k;
		unsigned disk;

		block_key_init(&k, &volume, i % 97, 0, 4096);
		if (index_begin(ix, &k) == 0 && index_commit(ix, &k, i % DISKS, EVICT_READ) == 0)
			continue;
		if (index_take(ix, &k, &disk) == 0)
			index_gone(ix, &k);
		else if (index_victim(ix, i % DISKS, &k) == 0)
			index_gone(ix, &k);
	}
	return NULL;
}

static void threads_do_not_disturb_each_other(void **state)
{
	struct index *ix = make();
	pthread_t t[4];
	uint64_t n = 0;

	(void)state;
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&t[i], NULL, writer, ix), 0);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(pthread_join(t[i], NULL), 0);
	for (unsigned i = 0; i < 97; i++) {
		struct block_key k;

		block_key_init(&k, &volume, i, 0, 4096);
		n += index_peek(ix, &k);
	}
	assert_int_equal(index_count(ix), n);
	index_free(ix);
}

enum { STAY = 3000, COME = 20000, STEP = INDEX_EACH_MIN };

/* what stays is given while others come, making the tables grow, and leave */
static void a_walk_meets_what_stays(void **state)
{
	struct index *ix = make();
	unsigned *given = calloc(STAY + COME, sizeof(*given)), came = 0, last = 0, disk;
	struct block_key k[STEP];
	uint64_t cursor = 0;
	size_t n;

	(void)state;
	assert_non_null(given);
	for (unsigned i = 0; i < STAY; i++) {
		block_key_init(&k[0], &volume, i, 0, 4096);
		assert_int_equal(index_begin(ix, &k[0]), 0);
		assert_int_equal(index_commit(ix, &k[0], i % DISKS, EVICT_READ), 0);
	}
	do {
		assert_int_equal(index_each(ix, &cursor, k, STEP, &n), 0);
		assert_true(n <= STEP);
		for (size_t i = 0; i < n; i++) {
			assert_true(k[i].slice < STAY + COME && k[i].size == 4096);
			assert_memory_equal(k[i].volume.b, volume.b, sizeof(volume.b));
			given[k[i].slice]++;
		}
		for (unsigned i = 0; i < 400 && came < COME; i++, came++) {
			block_key_init(&k[0], &volume, STAY + came, 0, 4096);
			assert_int_equal(index_begin(ix, &k[0]), 0);
			if (came % 3 == 0) /* being written: not present */
				continue;
			assert_int_equal(index_commit(ix, &k[0], 0, EVICT_READ), 0);
			if (last && came % 3 == 1 && index_take(ix, &k[0], &disk) == 0)
				index_gone(ix, &k[0]);
			last = came;
		}
	} while (cursor);
	assert_int_equal(came, COME);
	for (unsigned i = 0; i < STAY; i++)
		assert_true(given[i] >= 1);
	for (unsigned i = 0; i < COME; i += 3)
		assert_int_equal(given[STAY + i], 0);
	cursor = UINT64_MAX; /* cursors come from peers */
	assert_int_equal(index_each(ix, &cursor, k, STEP, &n), -EINVAL);
	free(given);
	index_free(ix);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(follows_a_plain_map),
		cmocka_unit_test(another_volume_is_refused_and_a_move_forgets),
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
		cmocka_unit_test(a_block_costs_little_memory),
#endif
		cmocka_unit_test(a_walk_meets_what_stays),
		cmocka_unit_test(threads_do_not_disturb_each_other),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
