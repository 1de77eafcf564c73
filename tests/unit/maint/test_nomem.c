/* SPDX-License-Identifier: Apache-2.0 */
/* The pure parts of maintenance without memory. */
#include "tests/unit/nomem.h"

#include "client/maint/dump_text.h"
#include "client/maint/json_stream.h"
#include "client/maint/numtable.h"
#include "client/maint/paths.h"

static int table(void)
{
	struct numtable t = {.slot = NULL};
	int r = 0;

	for (uint64_t i = 0; i < 5000 && r == 0; i++) {
		struct numslot *s = numtable_at(&t, i * 7, i);

		if (s)
			s->v = i;
		else
			r = -ENOMEM;
	}
	for (uint64_t i = 0; i < 5000 && r == 0; i++)
		assert_int_equal(numtable_find(&t, i * 7, i)->v, i);
	numtable_fini(&t);
	return r;
}

struct source {
	const char *at;
};

static ssize_t give(void *arg, void *p, size_t cap)
{
	struct source *s = arg;
	size_t n = strnlen(s->at, cap < 5 ? cap : 5);

	memcpy(p, s->at, n);
	s->at += n;
	return (ssize_t)n;
}

static int json(void)
{
	static const char text[] =
		"{\"first\": [1, 2, {\"deep\": \"er\"}], \"a\\nlong enough name\": "
		"\"and a value that is longer than a first buffer would be\"}";
	struct source source = {text};
	struct str name = STR_INIT, value = STR_INIT;
	struct json_stream s;
	bool more;
	int r;

	json_stream_init(&s, give, &source);
	r = json_take(&s, '{');
	for (int i = 0; r == 0; i++) {
		r = json_more(&s, '}', i == 0, &more);
		if (r || !more)
			break;
		str_reset(&name);
		str_reset(&value);
		r = json_name(&s, &name);
		if (r == 0)
			r = json_value(&s, &value);
	}
	if (r == 0)
		r = json_end(&s);
	if (r == 0)
		assert_string_equal(str_c(&name), "a\nlong enough name");
	json_stream_fini(&s);
	str_fini(&name);
	str_fini(&value);
	return r;
}

static int text(void)
{
	static const char name[] =
		"a \"name\" with \x01 and \xff and more of it, and more, and more";
	const struct slice s[] = {{.id = 1, .size = 5, .len = 5}, {.pos = 9, .id = 2, .size = 6}};
	const struct attr a = {.type = INODE_FILE, .mode = 0644, .nlink = 1, .length = 5};
	struct str out = STR_INIT;
	int r;

	dump_string(name, sizeof(name) - 1, &out);
	dump_escape(name, sizeof(name) - 1, &out);
	dump_attr(7, &a, &out);
	dump_chunk(0, s, ARRAY_LEN(s), &out);
	r = str_error(&out) ? -ENOMEM : 0;
	str_fini(&out);
	return r;
}

/* what paths_find leaves, by hand: 40 directories in each other */
static int path(void)
{
	struct paths p = {.names = STR_INIT};
	struct str out = STR_INIT;
	int r = 0;

	str_addn(&p.names, "", 1);
	for (uint64_t i = 2; i < 42 && r == 0; i++) {
		struct numslot *s = numtable_at(&p.at, i, 0);

		if (s) {
			s->v = i - 1;
			s->w = p.names.len;
			str_addn(&p.names, "d", 2);
		}
		r = s && !str_error(&p.names) ? 0 : -ENOMEM;
	}
	if (r == 0)
		r = paths_get(&p, 41, &out);
	if (r == 0)
		assert_int_equal(out.len, 80);
	str_fini(&out);
	paths_fini(&p);
	return r;
}

static void tables_of_numbers(void **state)
{
	(void)state;
	nomem_each(table);
}

static void json_that_is_read(void **state)
{
	(void)state;
	nomem_each(json);
}

static void json_that_is_written(void **state)
{
	(void)state;
	nomem_each(text);
}

static void paths_of_inodes(void **state)
{
	(void)state;
	nomem_each(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tables_of_numbers),
		cmocka_unit_test(json_that_is_read),
		cmocka_unit_test(json_that_is_written),
		cmocka_unit_test(paths_of_inodes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
