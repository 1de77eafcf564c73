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
	assert_int_equal(cluster_decode((uint8_t *)s.s, s.len, &d), 0);
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
	assert_int_equal(cluster_decode((uint8_t *)s.s, s.len, &d), 0);
	assert_int_equal(d->version, 5);
	assert_string_equal(d->members[0].sub_group, "");
	assert_string_equal(d->members[1].sub_group, "rack-7");
	cluster_unref(TAKE_PTR(d));
	for (size_t n = 0; n < s.len; n++)
		assert_int_equal(cluster_decode((uint8_t *)s.s, n, &d), -EPROTO);
	/* version 1: the same bytes as ever */
	assert_int_equal(cluster_encode(c, 1, &old), 0);
	assert_int_equal(s.len, old.len + 1 + 1 + strlen("rack-7"));
	assert_int_equal(cluster_decode((uint8_t *)old.s, old.len, &d), 0);
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
		assert_int_equal(cluster_decode(p, n, &d), -EPROTO);
	str_addn(&s, "x", 1);
	assert_int_equal(cluster_decode((uint8_t *)s.s, s.len, &d), -EPROTO);
	s.len--;
	p = (uint8_t *)s.s;
	p[8] = 0xff; /* four billion members in a hundred bytes */
	assert_int_equal(cluster_decode(p, s.len, &d), -EPROTO);
	p[8] = 0;
	p[12] = 9; /* unknown state */
	assert_int_equal(cluster_decode(p, s.len, &d), -EPROTO);
	p[12] = MEMBER_ACTIVE;
	p[12 + 9] = 'z'; /* not ascending */
	assert_int_equal(cluster_decode(p, s.len, &d), -EPROTO);
	p[12 + 9] = '\n';
	assert_int_equal(cluster_decode(p, s.len, &d), -EPROTO);
	p[12 + 9] = 'a';
	assert_int_equal(cluster_decode(p, s.len, &d), 0);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cluster_rings_follow_states),
		cmocka_unit_test(cluster_without_members),
		cmocka_unit_test(cluster_wire_form_round_trip),
		cmocka_unit_test(cluster_tells_sub_groups_to_who_knows_them),
		cmocka_unit_test(cluster_decode_refuses_what_is_cut_or_changed),
		cmocka_unit_test(cluster_view_swaps_whole),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
