/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of record locks against a byte by byte picture, the format's vectors, and the script that
 * does the same in Redis. */
#include <fcntl.h>

#include "client/meta/plock.h"
#include "tests/unit/meta/vectors.h"
#include "tests/unit/meta/volume.h"

static void from_json(json_t *list, struct plock *p)
{
	p->n = json_array_size(list);
	p->l = calloc(p->n + 1, sizeof(*p->l));
	assert_non_null(p->l);
	for (size_t i = 0; i < p->n; i++) {
		json_t *r = json_array_get(list, i);

		p->l[i] = (struct meta_lock){(uint32_t)json_integer_value(json_array_get(r, 0)),
					     (uint32_t)json_integer_value(json_array_get(r, 1)),
					     (uint64_t)json_integer_value(json_array_get(r, 2)),
					     (uint64_t)json_integer_value(json_array_get(r, 3))};
	}
}

static bool is_plock_vector(json_t *v)
{
	return json_array_size(json_object_get(v, "new")) == 4 && json_object_get(v, "after_hex");
}

static void lists_become_the_vectors(void **state)
{
	json_error_t err;
	json_t *all = json_load_file("tests/golden/format-vectors.json", 0, &err), *group, *v;
	const char *name;
	unsigned seen = 0;
	size_t i;

	(void)state;
	assert_non_null(all);
	json_object_foreach(json_object_get(all, "vectors"), name, group)
	{
		json_array_foreach(group, i, v)
		{
			json_t *nl = json_object_get(v, "new");
			struct plock p;
			uint8_t want[1024], got[1024];
			struct meta_lock l;
			size_t n;

			if (!is_plock_vector(v))
				continue;
			from_json(json_object_get(v, "before"), &p);
			l = (struct meta_lock){(uint32_t)json_integer_value(json_array_get(nl, 0)),
					       (uint32_t)json_integer_value(json_array_get(nl, 1)),
					       (uint64_t)json_integer_value(json_array_get(nl, 2)),
					       (uint64_t)json_integer_value(json_array_get(nl, 3))};
			assert_int_equal(plock_set(&p, &l), 0);
			n = vector_hex(v, "after_hex", want, sizeof(want));
			assert_int_equal(p.n * PLOCK_LEN, n);
			plock_encode(&p, got);
			assert_memory_equal(got, want, n);
			plock_fini(&p);
			seen++;
		}
	}
	assert_true(seen > 0);
	json_decref(all);
}

enum { SPACE = 64 };

/* 0 … 63 of the picture: single bytes at the file's beginning and end, and one that stands for all
 * between them */
static uint64_t last_of(unsigned i)
{
	return i < SPACE / 2 ? i : LOCK_EOF - (SPACE - 1 - i);
}

static uint64_t first_of(unsigned i)
{
	return i ? last_of(i - 1) + 1 : 0;
}

static struct meta_lock random_lock(unsigned *ret_from, unsigned *ret_to)
{
	unsigned a = (unsigned)rand() % SPACE, b = (unsigned)rand() % SPACE;
	static const uint32_t types[] = {F_RDLCK, F_WRLCK, F_UNLCK};

	*ret_from = MIN(a, b);
	*ret_to = MAX(a, b);
	return (struct meta_lock){types[rand() % 3], 7 + (unsigned)rand() % 2, first_of(*ret_from),
				  last_of(*ret_to)};
}

static void check_list(const struct plock *p, const uint32_t *type, const uint32_t *pid)
{
	for (size_t i = 0; i < p->n; i++) {
		const struct meta_lock *l = &p->l[i];

		assert_true(l->start <= l->end && l->type != F_UNLCK);
		if (i == 0)
			continue;
		assert_true(p->l[i - 1].end < l->start);
		assert_false(p->l[i - 1].end + 1 == l->start && p->l[i - 1].type == l->type &&
			     p->l[i - 1].pid == l->pid);
	}
	for (unsigned b = 0; b < SPACE; b++) {
		const struct meta_lock *on = NULL;

		for (size_t i = 0; i < p->n; i++) {
			if (p->l[i].start <= first_of(b) && last_of(b) <= p->l[i].end)
				on = &p->l[i];
		}
		assert_int_equal(on ? on->type : F_UNLCK, type[b]);
		if (on)
			assert_int_equal(on->pid, pid[b]);
	}
}

static void random_locks_are_painted_the_same(void **state)
{
	unsigned seed = (unsigned)time(NULL);
	uint32_t type[SPACE], pid[SPACE];
	struct plock p = {0};

	(void)state;
	print_message("seed %u\n", seed);
	srand(seed);
	for (unsigned b = 0; b < SPACE; b++)
		type[b] = F_UNLCK;
	for (int round = 0; round < 20000; round++) {
		unsigned from, to;
		struct meta_lock l = random_lock(&from, &to), want = random_lock(&from, &to);
		uint64_t first = UINT64_MAX;
		const struct meta_lock *c;

		for (unsigned b = from; b <= to; b++) {
			if (want.type != F_UNLCK && type[b] != F_UNLCK &&
			    (want.type == F_WRLCK || type[b] == F_WRLCK)) {
				first = first_of(b);
				break;
			}
		}
		if (want.type != F_UNLCK) {
			c = plock_conflict(&p, &want);
			assert_int_equal(c != NULL, first != UINT64_MAX);
			if (c)
				assert_true(c->start <= first && first <= c->end);
		}
		assert_int_equal(plock_set(&p, &l), 0);
		for (unsigned b = 0; b < SPACE; b++) {
			if (first_of(b) >= l.start && last_of(b) <= l.end) {
				type[b] = l.type;
				pid[b] = l.pid;
			}
		}
		check_list(&p, type, pid);
	}
	plock_fini(&p);
}

static void damaged_lists_are_refused(void **state)
{
	uint8_t b[PLOCK_LEN] = {0};
	struct plock p = {0};

	(void)state;
	assert_int_equal(plock_decode(b, 23, &p), -EPROTO);
	assert_int_equal(plock_decode(b, 0, &p), 0);
	assert_int_equal(p.n, 0);
	b[3] = 2; /* an unlock is no record */
	assert_int_equal(plock_decode(b, PLOCK_LEN, &p), -EPROTO);
	b[3] = 1;
	b[15] = 1; /* from 1 to 0 */
	assert_int_equal(plock_decode(b, PLOCK_LEN, &p), -EPROTO);
	b[23] = 1;
	assert_int_equal(plock_decode(b, PLOCK_LEN, &p), 0);
	assert_int_equal(p.n, 1);
	plock_fini(&p);
}

static void a_list_has_an_end(void **state)
{
	struct plock p = {.n = PLOCK_MAX, .l = calloc(PLOCK_MAX, sizeof(*p.l))};
	struct meta_lock more = {F_WRLCK, 1, 1, 1}, all = {F_UNLCK, 0, 0, LOCK_EOF};

	(void)state;
	assert_non_null(p.l);
	for (size_t i = 0; i < p.n; i++)
		p.l[i] = (struct meta_lock){F_WRLCK, 1, 3 * i, 3 * i};
	assert_int_equal(plock_set(&p, &more),
			 0); /* joins its neighbour's place: no more records */
	more.start = more.end = 3 * PLOCK_MAX + 5;
	assert_int_equal(plock_set(&p, &more), -ENOLCK);
	assert_int_equal(p.n, PLOCK_MAX);
	assert_int_equal(plock_set(&p, &all), 0);
	assert_int_equal(p.n, 0);
	plock_fini(&p);
}

static void raw_field(const char *key, const char *field, uint8_t *ret, size_t *ret_n)
{
	struct redis_reply *r = NULL;
	const char *p;

	assert_int_equal(redis_once(raw, soon(), &r, "HGET %s %s", key, field), 0);
	p = redis_reply_str(r, ret_n);
	if (!p)
		*ret_n = 0;
	else
		memcpy(ret, p, *ret_n);
	redis_reply_free(r);
}

static void the_script_does_the_same(void **state)
{
	static uint8_t got[SPACE * 2 * PLOCK_LEN], want[SPACE * 2 * PLOCK_LEN];
	unsigned seed = (unsigned)time(NULL), from, to;
	struct plock p[2] = {{0}, {0}};
	char field[64];
	struct meta *m;
	size_t n;

	(void)state;
	NEED_SERVER();
	print_message("seed %u\n", seed);
	srand(seed);
	fresh_volume(1);
	m = open_redis(NULL);
	for (int round = 0; round < 3000; round++) {
		int who = rand() % 2;
		struct meta_lock l = random_lock(&from, &to), seen = l;
		const struct meta_lock *c = NULL;

		if (l.type != F_UNLCK) {
			c = plock_conflict(&p[!who], &l);
			assert_int_equal(meta_getlk(m, 7, 100 + (uint64_t)who, &seen), 0);
			assert_int_equal(seen.type, c ? c->type : F_UNLCK);
			if (c)
				assert_memory_equal(&seen, c, sizeof(seen));
		}
		assert_int_equal(meta_setlk(m, 7, 100 + (uint64_t)who, &l), c ? -EAGAIN : 0);
		if (!c)
			assert_int_equal(plock_set(&p[who], &l), 0);
		snprintf(field, sizeof(field), "%llu_%016X", (unsigned long long)m->session,
			 100 + who);
		raw_field("lockp7", field, got, &n);
		plock_encode(&p[who], want);
		assert_int_equal(n, p[who].n * PLOCK_LEN);
		assert_memory_equal(got, want, n);
		assert_int_equal(raw_int("SCARD locked1"), p[0].n || p[1].n);
	}
	plock_fini(&p[0]);
	plock_fini(&p[1]);
	close_meta(m);
	assert_int_equal(raw_int("EXISTS lockp7 locked1"), 0); /* they end with the session */
}

static void flocks_exclude_each_other(void **state)
{
	struct meta *m, *other;

	(void)state;
	NEED_SERVER();
	fresh_volume(1);
	m = open_redis(NULL);
	other = open_redis(NULL);
	assert_int_equal(meta_flock(m, 9, 1, F_RDLCK), 0);
	assert_int_equal(meta_flock(m, 9, 2, F_RDLCK), 0);
	assert_int_equal(meta_flock(other, 9, 1, F_WRLCK), -EAGAIN);
	assert_int_equal(meta_flock(m, 9, 1, F_WRLCK), -EAGAIN);
	assert_int_equal(raw_int("HLEN lockf9"), 2);
	assert_int_equal(meta_flock(m, 9, 2, F_UNLCK), 0);
	assert_int_equal(raw_int("SISMEMBER locked1 lockf9"), 1);
	assert_int_equal(meta_flock(m, 9, 1, F_WRLCK), 0); /* an upgrade */
	assert_int_equal(meta_flock(other, 9, 1, F_RDLCK), -EAGAIN);
	assert_int_equal(meta_flock(m, 9, 1, F_UNLCK), 0);
	assert_int_equal(raw_int("EXISTS lockf9 locked1"), 0);
	assert_int_equal(meta_flock(other, 9, 1, F_WRLCK), 0);
	close_meta(other);
	assert_int_equal(meta_flock(m, 9, 5, F_WRLCK), 0);
	close_meta(m);
	assert_int_equal(raw_int("EXISTS lockf9 locked1 locked2"), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lists_become_the_vectors),
		cmocka_unit_test(random_locks_are_painted_the_same),
		cmocka_unit_test(damaged_lists_are_refused),
		cmocka_unit_test(a_list_has_an_end),
		cmocka_unit_test(the_script_does_the_same),
		cmocka_unit_test(flocks_exclude_each_other),
	};

	return cmocka_run_group_tests(tests, start_server, stop_server);
}
