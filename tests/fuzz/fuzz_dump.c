/* SPDX-License-Identifier: Apache-2.0 */
/* Dumps: what jansson takes as JSON the one-pass reader takes too, with the same strings, in
 * whatever pieces it comes; any bytes survive the escapes of names. */
#include <jansson.h>

#include "client/maint/dump_text.h"
#include "client/maint/json_stream.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

struct input {
	const uint8_t *p;
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

/* walks a value that jansson read from the same text */
static int same(struct json_stream *s, const json_t *v, unsigned depth)
{
	struct str text = STR_INIT;
	bool more = true, object = json_is_object(v);
	size_t i = 0;
	int r = 0;

	if (depth > 20 || !(object || json_is_array(v))) {
		if (json_is_string(v)) {
			r = json_text(s, &text);
			assert(r < 0 ||
			       (text.len == json_string_length(v) &&
				memcmp(str_c(&text), json_string_value(v), text.len) == 0));
		} else {
			r = json_skip(s);
		}
		str_fini(&text);
		return r;
	}
	r = json_take(s, object ? '{' : '[');
	for (bool first = true; r == 0; first = false) {
		r = json_more(s, object ? '}' : ']', first, &more);
		if (r || !more)
			break;
		if (object) {
			r = json_name(s, &text);
			/* a name that comes twice: the last one counts to jansson */
			if (r == 0)
				r = json_skip(s);
		} else {
			assert(i < json_array_size(v));
			r = same(s, json_array_get(v, i), depth + 1);
		}
		i++;
	}
	assert(r < 0 || object || i == json_array_size(v));
	str_fini(&text);
	return r;
}

static unsigned depth_of(const uint8_t *p, size_t n)
{
	unsigned open = 0;

	for (size_t i = 0; i < n; i++)
		open += p[i] == '{' || p[i] == '[';
	return open;
}

static void read_it(const uint8_t *p, size_t n, size_t step)
{
	json_t *v = json_loadb((const char *)p, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
	struct input in = {p, n, step};
	struct str text = STR_INIT;
	struct json_stream s;
	int r;

	json_stream_init(&s, feed, &in);
	r = v ? same(&s, v, 0) : json_value(&s, &text);
	if (r == 0)
		r = json_end(&s);
	/* NUL bytes are no part of JSON text, but jansson takes some; depth is bounded here */
	assert(!v || r == 0 || depth_of(p, n) >= JSON_DEPTH_MAX || memchr(p, '\0', n) ||
	       memmem(p, n, "\\u", 2) || n > 64);
	assert(json_offset(&s) <= n);
	json_decref(v);
	json_stream_fini(&s);
	str_fini(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	struct str text = STR_INIT, json = STR_INIT;
	json_t *v;
	size_t len;

	if (n == 0)
		return 0;
	dump_escape((const char *)p + 1, n - 1, &text);
	assert(dump_is_utf8(str_c(&text), text.len) && !memchr(str_c(&text), '"', text.len));
	dump_string(str_c(&text), text.len, &json);
	v = json_loadb(str_c(&json), json.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
	assert(v && json_string_length(v) == text.len);
	len = text.len ? dump_unescape(text.s, text.len) : 0;
	assert(len == n - 1 && (len == 0 || memcmp(text.s, p + 1, len) == 0));
	json_decref(v);
	str_reset(&json);
	dump_string((const char *)p + 1, n - 1, &json);
	v = json_loadb(str_c(&json), json.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
	assert(v);
	assert(!dump_is_utf8((const char *)p + 1, n - 1) || json_string_length(v) == n - 1);
	json_decref(v);
	str_fini(&json);
	str_fini(&text);
	read_it(p + 1, n - 1, 1 + p[0] % 64);
	return 0;
}
