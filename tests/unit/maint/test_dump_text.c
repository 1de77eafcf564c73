/* SPDX-License-Identifier: Apache-2.0 */
/* The text of dumps: escapes as JuiceFS writes and reads them, and the reader that takes JSON in
 * one pass. */
#include "client/maint/dump_text.h"
#include "client/maint/json_stream.h"
#include "client/maint/numtable.h"
#include "tests/unit/check.h"

static void names_are_escaped_as_in_dumps_of_juicefs(void **state)
{
	static const struct {
		const char *bytes, *text;
	} names[] = {
		{"plain", "plain"},
		{"two words", "two%20words"},
		{"per%41cent", "per%2541cent"},
		{"bad-\xff\xfe-utf8", "bad-%FF%FE-utf8"},
		{"\"quotes'", "%22quotes'"},
		{"back\\slash", "back%5Cslash"},
		{"new\nline", "new%0Aline"},
		{"dir-\xc3(", "dir-%C3("},
		{"\xc3\xa9t\xc3\xa9", "\xc3\xa9t\xc3\xa9"},
		{"\x7f", "\x7f"},
		/* an overlong form, half a pair, and the character that JuiceFS loses */
		{"\xc0\xaf", "%C0%AF"},
		{"\xed\xa0\x80", "%ED%A0%80"},
		{"\xef\xbf\xbd", "%EF%BF%BD"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		struct str out = STR_INIT;
		size_t n;

		dump_escape(names[i].bytes, strlen(names[i].bytes), &out);
		assert_string_equal(str_c(&out), names[i].text);
		n = dump_unescape(out.s, out.len);
		assert_int_equal(n, strlen(names[i].bytes));
		assert_memory_equal(out.s, names[i].bytes, n);
		str_fini(&out);
	}
}

static void what_is_no_escape_stays(void **state)
{
	char text[] = "100% %zz %4 %a0 %";
	size_t n = dump_unescape(text, strlen(text));

	(void)state;
	assert_int_equal(n, strlen("100% %zz %4 %a0 %"));
	assert_memory_equal(text, "100% %zz %4 %a0 %", n);
}

static void records_are_written_without_what_is_zero(void **state)
{
	struct attr a = {.type = INODE_FILE, .mode = 0644, .uid = 1, .gid = 2, .nlink = 1};
	struct slice s[] = {{.id = 7, .size = 10, .len = 10}, {.pos = 3, .len = 4}};
	struct str out = STR_INIT;

	(void)state;
	a.length = 144115188075855871;
	a.mtime = (struct time_ns){-5, 7};
	dump_attr(9, &a, &out);
	assert_string_equal(str_c(&out),
			    "{\"inode\":9,\"type\":\"regular\",\"mode\":420,\"uid\":1,\"gid\":2,"
			    "\"atime\":0,\"mtime\":-5,\"ctime\":0,\"mtimensec\":7,\"nlink\":1,"
			    "\"length\":144115188075855871}");
	str_reset(&out);
	dump_chunk(4, s, 2, &out);
	assert_string_equal(str_c(&out),
			    "{\"index\":4,\"slices\":[{\"id\":7,\"size\":10,\"len\":10},"
			    "{\"id\":0,\"pos\":3,\"size\":0,\"len\":4}]}");
	str_fini(&out);
	for (uint8_t t = INODE_FILE; t <= INODE_SOCKET; t++)
		assert_int_equal(dump_type(dump_type_name(t)), t);
	assert_int_equal(dump_type("dir"), 0);
}

struct input {
	const char *p;
	size_t n, step;
};

static ssize_t feed(void *arg, void *to, size_t cap)
{
	struct input *in = arg;
	size_t n = MIN(in->n, in->step);

	n = MIN(n, cap);
	memcpy(to, in->p, n);
	in->p += n;
	in->n -= n;
	return (ssize_t)n;
}

static void a_document_is_walked_in_pieces_of_any_size(void **state)
{
	const char *doc =
		" {\"a\" : [1, {\"x\":\"]}\\\"\"} ,\"\\u00e9\\ud83d\\ude00\\n\"],\n\"b\":{},"
		"\"c\":null} ";

	(void)state;
	for (size_t step = 1; step < 20; step++) {
		struct input in = {doc, strlen(doc), step};
		struct str text = STR_INIT;
		struct json_stream s;
		bool more;

		json_stream_init(&s, feed, &in);
		assert_int_equal(json_take(&s, '{'), 0);
		assert_int_equal(json_more(&s, '}', true, &more), 0);
		assert_true(more);
		assert_int_equal(json_name(&s, &text), 0);
		assert_string_equal(str_c(&text), "a");
		assert_int_equal(json_take(&s, '['), 0);
		assert_int_equal(json_more(&s, ']', true, &more), 0);
		assert_int_equal(json_value(&s, &text), 0);
		assert_string_equal(str_c(&text), "1");
		assert_int_equal(json_more(&s, ']', false, &more), 0);
		assert_int_equal(json_value(&s, &text), 0);
		assert_string_equal(str_c(&text), "{\"x\":\"]}\\\"\"}");
		assert_int_equal(json_more(&s, ']', false, &more), 0);
		assert_int_equal(json_text(&s, &text), 0);
		assert_string_equal(str_c(&text), "\xc3\xa9\xf0\x9f\x98\x80\n");
		assert_int_equal(json_more(&s, ']', false, &more), 0);
		assert_false(more);
		for (int i = 0; i < 2; i++) {
			assert_int_equal(json_more(&s, '}', false, &more), 0);
			assert_true(more);
			assert_int_equal(json_name(&s, &text), 0);
			assert_int_equal(json_skip(&s), 0);
		}
		assert_int_equal(json_more(&s, '}', false, &more), 0);
		assert_false(more);
		assert_int_equal(json_end(&s), 0);
		assert_int_equal(json_offset(&s), strlen(doc));
		json_stream_fini(&s);
		str_fini(&text);
	}
}

static void what_is_no_json_is_refused(void **state)
{
	static const char *const bad[] = {"",  "{",	"{\"a\":[1}", "\"abc",	 "[\"\\x\"]",
					  "]", "[1,2}", "\"\\u12",    "\"a\nb\""};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct input in = {bad[i], strlen(bad[i]), 3};
		struct str text = STR_INIT;
		struct json_stream s;
		int r;

		json_stream_init(&s, feed, &in);
		r = bad[i][0] == '"' ? json_text(&s, &text) : json_value(&s, &text);
		/* a value is taken out as it stands: jansson judges what is inside */
		if (strcmp(bad[i], "[\"\\x\"]") != 0)
			assert_int_equal(r, -EPROTO);
		json_stream_fini(&s);
		str_fini(&text);
	}
}

static ssize_t broken(void *arg, void *to, size_t cap)
{
	(void)arg;
	(void)to;
	(void)cap;
	return -EIO;
}

static void an_error_of_the_file_comes_through(void **state)
{
	struct json_stream s;
	char c;

	(void)state;
	json_stream_init(&s, broken, NULL);
	assert_int_equal(json_peek(&s, &c), -EIO);
	assert_int_equal(json_skip(&s), -EIO);
	json_stream_fini(&s);
}

static void a_table_keeps_what_it_was_given(void **state)
{
	struct numtable t = {.slot = NULL};
	enum { N = 20000 };

	(void)state;
	assert_null(numtable_find(&t, 1, 0));
	for (uint64_t i = 0; i < N; i++) {
		struct numslot *s = numtable_at(&t, i * 7, i % 3);

		assert_non_null(s);
		s->v = i;
		s->w++;
	}
	assert_int_equal(t.n, N);
	for (uint64_t i = 0; i < N; i++) {
		const struct numslot *s = numtable_find(&t, i * 7, i % 3);

		assert_non_null(s);
		assert_int_equal(s->v, i);
		assert_int_equal(s->w, 1);
		assert_null(numtable_find(&t, i * 7, 5));
	}
	numtable_fini(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_are_escaped_as_in_dumps_of_juicefs),
		cmocka_unit_test(what_is_no_escape_stays),
		cmocka_unit_test(records_are_written_without_what_is_zero),
		cmocka_unit_test(a_document_is_walked_in_pieces_of_any_size),
		cmocka_unit_test(what_is_no_json_is_refused),
		cmocka_unit_test(an_error_of_the_file_comes_through),
		cmocka_unit_test(a_table_keeps_what_it_was_given),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
