/* SPDX-License-Identifier: Apache-2.0 */
/* The format's test vectors (tests/golden/format-vectors.json); tests run in the tree's root. */
#ifndef STOKE_TESTS_UNIT_META_VECTORS_H
#define STOKE_TESTS_UNIT_META_VECTORS_H

#include <jansson.h>

#include "tests/unit/check.h"

static json_t *vectors_all;

/* a group of vectors; fails the test when it is not there */
static inline json_t *vectors(const char *group)
{
	json_error_t err;
	json_t *v;

	if (!vectors_all)
		vectors_all = json_load_file("tests/golden/format-vectors.json", 0, &err);
	if (!vectors_all)
		fail_msg("tests/golden/format-vectors.json: %s", err.text);
	v = json_object_get(json_object_get(vectors_all, "vectors"), group);
	if (!json_array_size(v))
		fail_msg("no vectors %s", group);
	return v;
}

static inline uint64_t vector_number(json_t *o, const char *field)
{
	return (uint64_t)json_integer_value(json_object_get(o, field));
}

static inline size_t vector_hex(json_t *o, const char *field, uint8_t *p, size_t cap)
{
	const char *s = json_string_value(json_object_get(o, field));
	size_t n = 0;

	assert_non_null(s);
	for (; s[0] && s[1] && n < cap; s += 2, n++) {
		unsigned v;

		assert_int_equal(sscanf(s, "%2x", &v), 1);
		p[n] = (uint8_t)v;
	}
	assert_int_equal(*s, 0);
	return n;
}

static inline int vectors_free(void **state)
{
	(void)state;
	json_decref(vectors_all);
	return 0;
}

#endif
