/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/block/cluster.h"
#include "common/str.h"

static struct member member(const char *id, enum member_state state, uint32_t weight)
{
	struct member m = {.addr = "10.0.0.1", .port = 7000, .weight = weight, .state = state};

	snprintf(m.id, sizeof(m.id), "%s", id);
	return m;
}

static struct block_key key(uint64_t slice)
{
	static const struct hash128 volume;
	struct block_key k;

	block_key_init(&k, &volume, slice, 0, 4 << 20);
	return k;
}

static void cluster_rings_follow_states(void **state)
{
	struct member m[] = {
		member("joining", MEMBER_JOINING, 100),
		member("active", MEMBER_ACTIVE, 100),
		member("draining", MEMBER_DRAINING, 100),
		member("nothing", MEMBER_ACTIVE, 0),
	};
	struct cluster *c = cluster_new(9, m, ARRAY_LEN(m));
	unsigned owns[4] = {0}, holds[4] = {0};

	(void)state;
	assert_non_null(c);
	assert_string_equal(c->members[0].id, "active");
	assert_int_equal(cluster_index(c, "joining"), 2);
	assert_int_equal(cluster_index(c, "nobody"), -1);
	for (uint64_t s = 1; s <= 2000; s++) {
		struct block_key k = key(s);
		uint32_t f[4];

		assert_int_equal(cluster_find(c, &k, f, 4), 2);
		assert_int_not_equal(f[0], f[1]);
		owns[f[0]]++;
		assert_int_equal(cluster_find_holders(c, &k, f, 4), 2);
		holds[f[0]]++;
	}
	/* sorted: active 0, draining 1, joining 2, nothing 3 */
	assert_true(owns[0] > 800 && owns[2] > 800 && owns[1] == 0 && owns[3] == 0);
	assert_true(holds[0] > 800 && holds[1] > 800 && holds[2] == 0 && holds[3] == 0);
	cluster_unref(c);
}

/* against the definition, on random groups: the members in ring order come from a ring of all of
 * them as active */
static void cluster_path_is_what_it_says(void **state)
{
	(void)state;
	srand(7);
	for (unsigned round = 0; round < 30; round++) {
		struct member m[8], all[8];
		size_t n = (size_t)(1 + rand() % 8);
		struct cluster *c, *a;

		for (size_t i = 0; i < n; i++) {
			char id[24];

			snprintf(id, sizeof(id), "m%zu", i);
			m[i] = member(id, (enum member_state)(1 + rand() % 3),
				      rand() % 5 ? 100 : 0);
			all[i] = m[i];
			all[i].state = MEMBER_ACTIVE;
		}
		c = cluster_new(1, m, n);
		a = cluster_new(1, all, n);
		for (uint64_t j = 0; j < 200; j++) {
			struct block_key k = key(j);
			uint32_t order[8], path[8];
			size_t len = cluster_find(a, &k, order, 8), want = 0, got;
			int active = -1;

			while (want < len && active < 0) {
				if (m[order[want]].state == MEMBER_ACTIVE)
					active = (int)order[want];
				want++;
			}
			got = cluster_find_path(c, &k, path, 8);
			assert_int_equal(got, want);
			assert_int_equal(cluster_find_active(c, &k), active);
			for (size_t i = 0; i < want; i++) {
				bool there = false;

				for (size_t x = 0; x < got; x++)
					there = there || path[x] == order[i];
				assert_true(there);
			}
			if (got && cluster_find_holders(c, &k, order, 1))
				assert_int_equal(path[0], order[0]);
			for (size_t i = 0; i < n; i++) {
				bool there = false;

				for (size_t x = 0; x < got; x++)
					there = there || path[x] == i;
				assert_int_equal(cluster_on_path(c, &k, (uint32_t)i), there);
			}
		}
		cluster_unref(c);
		cluster_unref(a);
	}
}

static void cluster_has_a_ring_for_each_sub_group(void **state)
{
	struct member m[] = {member("a", MEMBER_ACTIVE, 100), member("b", MEMBER_ACTIVE, 100),
			     member("c", MEMBER_DRAINING, 100), member("d", MEMBER_JOINING, 100),
			     member("e", MEMBER_ACTIVE, 0)};
	struct cluster *c;
	unsigned owned[4] = {0};

	(void)state;
	snprintf(m[0].sub_group, sizeof(m[0].sub_group), "x");
	snprintf(m[2].sub_group, sizeof(m[2].sub_group), "x");
	snprintf(m[3].sub_group, sizeof(m[3].sub_group), "x");
	snprintf(m[4].sub_group, sizeof(m[4].sub_group), "y");
	c = cluster_new(1, m, ARRAY_LEN(m));
	for (uint64_t j = 0; j < 1000; j++) {
		struct block_key k = key(j);
		uint32_t got[4], whole[4];

		assert_int_equal(cluster_find_sub(c, &k, "x", got, 4), 2);
		assert_true(got[0] == 0 || got[0] == 3);
		assert_int_equal(cluster_find(c, &k, whole, 4), 3);
		/* who owns it in the whole ring owns it in his own */
		if (whole[0] != 1)
			assert_int_equal(got[0], whole[0]);
		owned[got[0]]++;
		assert_int_equal(cluster_find_sub(c, &k, "y", got, 4), 0);
		assert_int_equal(cluster_find_sub(c, &k, "z", got, 4), 0);
		assert_int_equal(cluster_find_sub(c, &k, "", got, 4), 0);
	}
	assert_true(owned[0] > 400 && owned[3] > 400);
	cluster_unref(c);
}

/* derived from the last one, a snapshot is the one that is made anew */
static void cluster_next_is_cluster_new(void **state)
{
	struct cluster *last = NULL;

	(void)state;
	srand(11);
	for (unsigned round = 0; round < 60; round++) {
		struct cluster *next, *anew;
		struct member m[12];
		size_t n = 0;

		for (unsigned i = 0; i < 12; i++) {
			char id[8];

			snprintf(id, sizeof(id), "m%u", i);
			if (rand() % 4 || round % 7 == 0)
				m[n++] = member(id, (enum member_state)(1 + rand() % 3),
						round % 3 ? 100 : (uint32_t)(rand() % 3) * 100);
		}
		next = cluster_next(last, round, m, n);
		anew = cluster_new(round, m, n);
		for (uint64_t j = 0; j < 300; j++) {
			struct block_key k = key(j);
			uint32_t a[3], b[3];
			size_t found = cluster_find(next, &k, a, 3);

			assert_int_equal(cluster_find(anew, &k, b, 3), found);
			assert_memory_equal(a, b, found * sizeof(*a));
		}
		cluster_unref(anew);
		cluster_unref(last);
		last = next;
	}
	cluster_unref(last);
}

static void cluster_without_members(void **state)
{
	struct cluster *c = cluster_new(0, NULL, 0);
	struct block_key k = key(1);
	uint32_t f;

	(void)state;
	assert_non_null(c);
	assert_int_equal(cluster_find(c, &k, &f, 1), 0);
	cluster_unref(c);
	cluster_unref(NULL);
}

static struct cluster *three(void)
{
	struct member m[] = {member("c", MEMBER_DRAINING, 50), member("a", MEMBER_ACTIVE, 100),
			     member("b", MEMBER_JOINING, 0)};

	snprintf(m[2].addr, sizeof(m[2].addr), "/run/stoke.sock");
	m[2].port = 0;
	return cluster_new(0x1122334455667788, m, ARRAY_LEN(m));
}

static void cluster_wire_form_round_trip(void **state)
{
	struct cluster *c = three(), *d = NULL;
	struct str s = STR_INIT;

	(void)state;
	assert_int_equal(cluster_encode(c, 2, &s), 0);
	assert_int_equal(cluster_decode(NULL, (uint8_t *)s.s, s.len, &d), 0);
	assert_int_equal(d->version, c->version);
	assert_int_equal(d->n, c->n);
	for (size_t i = 0; i < c->n; i++) {
		assert_string_equal(d->members[i].id, c->members[i].id);
		assert_string_equal(d->members[i].addr, c->members[i].addr);
		assert_int_equal(d->members[i].port, c->members[i].port);
		assert_int_equal(d->members[i].weight, c->members[i].weight);
		assert_int_equal(d->members[i].state, c->members[i].state);
	}
	cluster_unref(d);
	cluster_unref(c);
	str_fini(&s);
}

static void cluster_tells_sub_groups_to_who_knows_them(void **state)
{
	struct member m[] = {member("a", MEMBER_ACTIVE, 100), member("b", MEMBER_ACTIVE, 100)};
	struct cluster *c, *d = NULL;
	struct str old = STR_INIT, s = STR_INIT;

	(void)state;
	snprintf(m[1].sub_group, sizeof(m[1].sub_group), "rack-7");
	c = cluster_new(5, m, 2);
	assert_int_equal(cluster_encode(c, 2, &s), 0);
	assert_int_equal(cluster_decode(NULL, (uint8_t *)s.s, s.len, &d), 0);
	assert_int_equal(d->version, 5);
	assert_string_equal(d->members[0].sub_group, "");
	assert_string_equal(d->members[1].sub_group, "rack-7");
	cluster_unref(TAKE_PTR(d));
	for (size_t n = 0; n < s.len; n++)
		assert_int_equal(cluster_decode(NULL, (uint8_t *)s.s, n, &d), -EPROTO);
	/* version 1: the same bytes as ever */
	assert_int_equal(cluster_encode(c, 1, &old), 0);
	assert_int_equal(s.len, old.len + 1 + 1 + strlen("rack-7"));
	assert_int_equal(cluster_decode(NULL, (uint8_t *)old.s, old.len, &d), 0);
	assert_string_equal(d->members[1].sub_group, "");
	cluster_unref(d);
	cluster_unref(c);
	str_fini(&old);
	str_fini(&s);
}

static void cluster_decode_refuses_what_is_cut_or_changed(void **state)
{
	struct cluster *c = three(), *d = NULL;
	struct str s = STR_INIT;
	uint8_t *p;

	(void)state;
	assert_int_equal(cluster_encode(c, 2, &s), 0);
	p = (uint8_t *)s.s;
	for (size_t n = 0; n < s.len; n++)
		assert_int_equal(cluster_decode(NULL, p, n, &d), -EPROTO);
	str_addn(&s, "x", 1);
	assert_int_equal(cluster_decode(NULL, (uint8_t *)s.s, s.len, &d), -EPROTO);
	s.len--;
	p = (uint8_t *)s.s;
	p[8] = 0xff; /* four billion members in a hundred bytes */
	assert_int_equal(cluster_decode(NULL, p, s.len, &d), -EPROTO);
	p[8] = 0;
	p[12] = 9; /* unknown state */
	assert_int_equal(cluster_decode(NULL, p, s.len, &d), -EPROTO);
	p[12] = MEMBER_ACTIVE;
	p[12 + 9] = 'z'; /* not ascending */
	assert_int_equal(cluster_decode(NULL, p, s.len, &d), -EPROTO);
	p[12 + 9] = '\n';
	assert_int_equal(cluster_decode(NULL, p, s.len, &d), -EPROTO);
	p[12 + 9] = 'a';
	assert_int_equal(cluster_decode(NULL, p, s.len, &d), 0);
	cluster_unref(d);
	cluster_unref(c);
	str_fini(&s);
}

static void cluster_view_swaps_whole(void **state)
{
	struct cluster_view v;
	struct cluster *a = three(), *got;

	(void)state;
	cluster_view_init(&v);
	assert_null(cluster_view_get(&v));
	cluster_view_set(&v, a);
	got = cluster_view_get(&v);
	assert_ptr_equal(got, a);
	cluster_view_set(&v, cluster_new(1, NULL, 0));
	assert_int_equal(got->n, 3); /* the reference still counts */
	cluster_unref(got);
	got = cluster_view_get(&v);
	assert_int_equal(got->n, 0);
	cluster_unref(got);
	cluster_view_fini(&v);
}

static void cluster_shares_bytes_by_weight_G07(void **state)
{
	enum { KEYS = 70000 };
	struct member m[] = {
		member("one", MEMBER_ACTIVE, 100),
		member("three", MEMBER_ACTIVE, 400),
		member("two", MEMBER_ACTIVE, 200),
	};
	const double fair[] = {1, 4, 2}; /* sorted as above */
	struct cluster *c = cluster_new(1, m, ARRAY_LEN(m));
	double bytes[3] = {0}, all = 0;

	(void)state;
	assert_non_null(c);
	for (uint64_t s = 1; s <= KEYS; s++) {
		struct block_key k = key(s);
		uint32_t owner;

		assert_int_equal(cluster_find(c, &k, &owner, 1), 1);
		bytes[owner] += k.size;
		all += k.size;
	}
	for (unsigned i = 0; i < 3; i++) {
		double share = bytes[i] / (all * fair[i] / 7);

		assert_true(share > 0.9 && share < 1.1);
	}
	cluster_unref(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cluster_rings_follow_states),
		cmocka_unit_test(cluster_shares_bytes_by_weight_G07),
		cmocka_unit_test(cluster_path_is_what_it_says),
		cmocka_unit_test(cluster_has_a_ring_for_each_sub_group),
		cmocka_unit_test(cluster_next_is_cluster_new),
		cmocka_unit_test(cluster_without_members),
		cmocka_unit_test(cluster_wire_form_round_trip),
		cmocka_unit_test(cluster_tells_sub_groups_to_who_knows_them),
		cmocka_unit_test(cluster_decode_refuses_what_is_cut_or_changed),
		cmocka_unit_test(cluster_view_swaps_whole),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
