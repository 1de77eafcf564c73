/* SPDX-License-Identifier: Apache-2.0 */
/* ACL rules against the format's vectors, what the kernel may not hand over, what rules grant. */
#include "tests/unit/meta/vectors.h"

#include "client/meta/acl.h"

static void rules_are_the_vectors_bytes_in_both_forms(void **state)
{
	unsigned seen = 0;
	size_t i;
	json_t *v;

	(void)state;
	json_array_foreach(vectors("acl_rule"), i, v)
	{
		uint8_t rule[256], xattr[256];
		size_t n = vector_hex(v, "redis_hash_value_hex", rule, sizeof(rule)), nx;
		struct str out = STR_INIT;
		struct acl a, b;

		assert_int_equal(acl_decode(rule, n, &a), 0);
		acl_encode(&a, &out);
		assert_int_equal(out.len, n);
		assert_memory_equal(out.s, rule, n);
		if (!json_object_get(v, "posix_acl_xattr_hex_little_endian")) {
			assert_true(acl_is_empty(&a));
			acl_fini(&a);
			str_fini(&out);
			continue;
		}
		nx = vector_hex(v, "posix_acl_xattr_hex_little_endian", xattr, sizeof(xattr));
		str_reset(&out);
		acl_to_xattr(&a, &out);
		assert_int_equal(out.len, nx);
		assert_memory_equal(out.s, xattr, nx);
		assert_int_equal(acl_from_xattr(xattr, nx, &b), 0);
		str_reset(&out);
		acl_encode(&b, &out);
		assert_int_equal(out.len, n);
		assert_memory_equal(out.s, rule, n);
		assert_int_equal(acl_is_minimal(&b), b.mask == ACL_ABSENT);
		acl_fini(&a);
		acl_fini(&b);
		str_fini(&out);
		seen++;
	}
	assert_true(seen >= 3);
}

static void damaged_rules_are_refused(void **state)
{
	static const uint8_t good[] = {0, 6, 0, 4, 0,	 7, 0, 4, 0, 0, 0,
				       1, 0, 0, 3, 0xe8, 0, 7, 0, 0, 0, 0};
	uint8_t bad[sizeof(good) + 1] = {0};
	struct acl a = {.owner = 42};

	(void)state;
	for (size_t n = 0; n < sizeof(good); n++)
		assert_int_equal(acl_decode(good, n, &a), -EPROTO);
	memcpy(bad, good, sizeof(good));
	assert_int_equal(acl_decode(bad, sizeof(bad), &a), -EPROTO); /* one byte more */
	bad[8] = 0xff;						     /* four billion users */
	assert_int_equal(acl_decode(bad, sizeof(good), &a), -EPROTO);
	assert_int_equal(a.owner, 42);
}

struct xattr_case {
	const char *hex;
	int want;
};

static size_t unhex(const char *s, uint8_t *p)
{
	size_t n = 0;

	for (; s[2 * n]; n++) {
		unsigned v;

		assert_int_equal(sscanf(s + 2 * n, "%2x", &v), 1);
		p[n] = (uint8_t)v;
	}
	return n;
}

#define E(tag, perm, id) tag "00" perm "00" id
#define ANY		 "ffffffff"
#define MINIMAL		 E("01", "06", ANY) E("04", "04", ANY) E("20", "04", ANY)

static void what_the_kernel_may_not_say_is_refused(void **state)
{
	static const struct xattr_case cases[] = {
		{"", 0},
		{"02000000", 0},
		{"02000000" MINIMAL, 0},
		{"0200", -EINVAL},
		{"01000000" MINIMAL, -EOPNOTSUPP},
		{"02000000" MINIMAL "00", -EINVAL},
		/* owner, group, other: each once */
		{"02000000" E("01", "06", ANY) E("04", "04", ANY), -EINVAL},
		{"02000000" E("04", "06", ANY) E("20", "04", ANY), -EINVAL},
		{"02000000" E("01", "06", ANY) E("01", "06", ANY) E("04", "04", ANY)
			 E("20", "04", ANY),
		 -EINVAL},
		/* named ones need a mask and an id; tags are known and in order */
		{"02000000" E("01", "06", ANY) E("02", "07", "e8030000") E("04", "04", ANY)
			 E("20", "04", ANY),
		 -EINVAL},
		{"02000000" E("01", "06", ANY) E("02", "07", "e8030000") E("04", "04", ANY)
			 E("10", "07", ANY) E("20", "04", ANY),
		 0},
		{"02000000" E("01", "06", ANY) E("02", "07", ANY) E("04", "04", ANY)
			 E("10", "07", ANY) E("20", "04", ANY),
		 -EINVAL},
		{"02000000" E("01", "0f", ANY) E("04", "04", ANY) E("20", "04", ANY), -EINVAL},
		{"02000000" E("01", "06", ANY) E("03", "04", ANY) E("20", "04", ANY), -EINVAL},
		{"02000000" E("04", "04", ANY) E("01", "06", ANY) E("20", "04", ANY), -EINVAL},
	};
	uint8_t p[256];

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		size_t n = unhex(cases[i].hex, p);
		struct acl a = {0};

		if (acl_from_xattr(p, n, &a) != cases[i].want)
			fail_msg("case %zu: not %d", i, cases[i].want);
		if (!cases[i].want)
			assert_int_equal(acl_is_empty(&a), n <= 4);
		acl_fini(&a);
	}
}

static void the_first_class_of_a_caller_decides(void **state)
{
	struct acl_entry users[] = {{1000, 7}, {1001, 4}, {1002, 0}};
	struct acl_entry groups[] = {{50, 4}, {51, 2}, {52, 0}};
	struct acl a = {.owner = 6,
			.group = 1,
			.mask = 5,
			.other = 7,
			.n_users = 3,
			.users = users,
			.n_groups = 3,
			.groups = groups};
	struct {
		uint32_t uid, gids[2];
		size_t n;
		unsigned want;
		bool granted;
	} cases[] = {
		{1, {0}, 0, 6, true}, /* the owner, past the mask */
		{1, {0}, 0, 1, false},
		{1000, {0}, 0, 5, true}, /* named: through the mask */
		{1000, {0}, 0, 2, false},
		{1002, {50}, 1, 4, false}, /* named with nothing: his groups do not help */
		{2000, {9}, 1, 1, true},   /* the file's group */
		{2000, {9}, 1, 4, false},
		{2000, {9, 50}, 2, 4, true},  /* one group is enough … */
		{2000, {9, 50}, 2, 5, false}, /* … but it must grant all */
		{2000, {51}, 1, 2, false},    /* the mask takes it away */
		{2000, {52}, 1, 4, false},    /* a group with nothing: not other's */
		{2000, {77}, 1, 7, true},     /* nobody's: other, past the mask */
		{2000, {77}, 1, 0, true},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		if (acl_grants(&a, 1, 9, cases[i].uid, cases[i].gids, cases[i].n, cases[i].want) !=
		    cases[i].granted)
			fail_msg("case %zu", i);
	}
	a.mask = ACL_ABSENT;
	a.n_users = a.n_groups = 0;
	a.group = 4;
	a.other = 0;
	assert_true(acl_is_minimal(&a));
	assert_true(acl_grants(&a, 1, 9, 2000, (uint32_t[]){9}, 1, 4));
	assert_false(acl_grants(&a, 1, 9, 2000, (uint32_t[]){8}, 1, 4));
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(rules_are_the_vectors_bytes_in_both_forms),
		cmocka_unit_test(damaged_rules_are_refused),
		cmocka_unit_test(what_the_kernel_may_not_say_is_refused),
		cmocka_unit_test(the_first_class_of_a_caller_decides),
	};

	return cmocka_run_group_tests(tests, NULL, vectors_free);
}
