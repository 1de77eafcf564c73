/* SPDX-License-Identifier: Apache-2.0 */
#include "client/maint/json_stream.h"

void json_stream_init(struct json_stream *s, json_read_fn *read, void *arg)
{
	*s = (struct json_stream){.read = read, .arg = arg};
}

void json_stream_fini(struct json_stream *s)
{
	free(s->buf);
	s->buf = NULL;
}

uint64_t json_offset(const struct json_stream *s)
{
	return s->before + s->at;
}

/* a byte at s->at, or *ret -1 at the end */
static int look(struct json_stream *s, int *ret)
{
	ssize_t n;

	if (s->at == s->end && !s->eof) {
		if (!s->buf)
			s->buf = malloc(JSON_BUFFER);
		if (!s->buf)
			return -ENOMEM;
		n = s->read(s->arg, s->buf, JSON_BUFFER);
		if (n < 0)
			return (int)n;
		s->before += s->end;
		s->at = 0;
		s->end = (size_t)n;
		s->eof = n == 0;
	}
	*ret = s->at < s->end ? s->buf[s->at] : -1;
	return 0;
}

static bool is_space(int c)
{
	return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

int json_peek(struct json_stream *s, char *ret)
{
	int c, r;

	while ((r = look(s, &c)) == 0 && is_space(c))
		s->at++;
	if (r == 0)
		*ret = c < 0 ? '\0' : (char)c;
	return r;
}

int json_take(struct json_stream *s, char c)
{
	char got;
	int r = json_peek(s, &got);

	if (r == 0 && (got != c || c == '\0'))
		r = -EPROTO;
	if (r == 0)
		s->at++;
	return r;
}

/* --- strings --- */

static int hex4(struct json_stream *s, uint32_t *ret)
{
	uint32_t v = 0;

	for (int i = 0; i < 4; i++) {
		int c, r = look(s, &c);

		if (r)
			return r;
		if (c >= '0' && c <= '9')
			c -= '0';
		else if ((c | 32) >= 'a' && (c | 32) <= 'f')
			c = (c | 32) - 'a' + 10;
		else
			return -EPROTO;
		v = v << 4 | (uint32_t)c;
		s->at++;
	}
	*ret = v;
	return 0;
}

static void add_utf8(struct str *out, uint32_t c)
{
	char b[4];
	size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
	static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};

	for (size_t i = n; i-- > 1; c >>= 6)
		b[i] = (char)(0x80 | (c & 0x3f));
	b[0] = (char)(lead[n] | c);
	str_addn(out, b, n);
}

/* behind \u; half a pair is U+FFFD, as Go reads it */
static int add_unicode(struct json_stream *s, struct str *out)
{
	uint32_t c, low;
	int next, r = hex4(s, &c);

	while (r == 0 && c >= 0xd800 && c < 0xdc00) {
		r = look(s, &next);
		if (r || next != '\\')
			break;
		s->at++;
		r = look(s, &next);
		if (r)
			return r;
		if (next != 'u') {
			/* a common escape behind half a pair: rare enough to be an error */
			return -EPROTO;
		}
		s->at++;
		r = hex4(s, &low);
		if (r)
			return r;
		if (low >= 0xdc00 && low < 0xe000) {
			add_utf8(out, 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00));
			return 0;
		}
		add_utf8(out, 0xfffd);
		c = low;
	}
	if (r == 0)
		add_utf8(out, c >= 0xd800 && c < 0xe000 ? 0xfffd : c);
	return r;
}

static int add_escape(struct json_stream *s, struct str *out)
{
	static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
	const char *p;
	int c, r = look(s, &c);

	if (r)
		return r;
	if (c <= 0)
		return -EPROTO;
	s->at++;
	if (c == 'u')
		return add_unicode(s, out);
	p = strchr(from, c);
	if (!p)
		return -EPROTO;
	str_addn(out, &to[p - from], 1);
	return 0;
}

int json_text(struct json_stream *s, struct str *out)
{
	int r = json_take(s, '"');

	str_reset(out);
	while (r == 0) {
		size_t n = 0;
		int c;

		r = look(s, &c);
		if (r)
			break;
		if (c < 32)
			return -EPROTO;
		if (c == '"') {
			s->at++;
			return str_error(out);
		}
		if (c == '\\') {
			s->at++;
			r = add_escape(s, out);
			continue;
		}
		while (s->at + n < s->end && s->buf[s->at + n] >= 32 && s->buf[s->at + n] != '"' &&
		       s->buf[s->at + n] != '\\')
			n++;
		str_addn(out, s->buf + s->at, n);
		s->at += n;
		if (out->len > JSON_TEXT_MAX)
			return -EFBIG;
	}
	return r;
}

/* --- whole values --- */

static int keep(struct json_stream *s, struct str *out, int c)
{
	s->at++;
	if (!out)
		return 0;
	str_addn(out, &(char){(char)c}, 1);
	return out->len > JSON_TEXT_MAX ? -EFBIG : 0;
}

/* to the closing quote, whose opening one was kept */
static int keep_string(struct json_stream *s, struct str *out)
{
	bool escaped = false;
	int c, r;

	while ((r = look(s, &c)) == 0) {
		if (c < 0)
			return -EPROTO;
		r = keep(s, out, c);
		if (r || (c == '"' && !escaped))
			return r;
		escaped = c == '\\' && !escaped;
	}
	return r;
}

/* a number or word, to what ends it */
static int keep_word(struct json_stream *s, struct str *out)
{
	size_t n = 0;
	int c, r;

	while ((r = look(s, &c)) == 0) {
		if (c < 0 || is_space(c) || strchr(",]}:[{\"", c))
			return n ? 0 : -EPROTO;
		if (++n > 64)
			return -EPROTO;
		r = keep(s, out, c);
		if (r)
			return r;
	}
	return r;
}

static int walk(struct json_stream *s, struct str *out)
{
	char open[JSON_DEPTH_MAX];
	unsigned depth = 0;
	int c, r;
	char first;

	r = json_peek(s, &first);
	if (r == 0 && (first == '\0' || strchr("]},:", first)))
		r = -EPROTO;
	while (r == 0) {
		r = look(s, &c);
		if (r)
			break;
		if (c <= 0)
			return -EPROTO;
		if (c == '{' || c == '[') {
			if (depth == JSON_DEPTH_MAX)
				return -EPROTO;
			open[depth++] = c == '{' ? '}' : ']';
			r = keep(s, out, c);
			continue;
		}
		if (c == '}' || c == ']') {
			if (depth == 0 || open[--depth] != c)
				return -EPROTO;
			r = keep(s, out, c);
		} else if (c == '"') {
			r = keep(s, out, c);
			r = r ? r : keep_string(s, out);
		} else if (is_space(c) || c == ',' || c == ':') {
			r = keep(s, out, c);
			continue;
		} else {
			r = keep_word(s, out);
		}
		if (r == 0 && depth == 0)
			return out ? str_error(out) : 0;
	}
	return r;
}

int json_value(struct json_stream *s, struct str *out)
{
	str_reset(out);
	return walk(s, out);
}

int json_skip(struct json_stream *s)
{
	return walk(s, NULL);
}

int json_more(struct json_stream *s, char close, bool first, bool *ret_more)
{
	char c;
	int r = json_peek(s, &c);

	if (r)
		return r;
	*ret_more = c != close;
	if (c == close) {
		s->at++;
		return 0;
	}
	return first ? 0 : json_take(s, ',');
}

int json_name(struct json_stream *s, struct str *out)
{
	int r = json_text(s, out);

	return r ? r : json_take(s, ':');
}

int json_end(struct json_stream *s)
{
	char c;
	int r = json_peek(s, &c);

	return r == 0 && (c != '\0' || !s->eof) ? -EPROTO : r;
}
