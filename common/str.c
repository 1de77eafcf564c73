/* SPDX-License-Identifier: Apache-2.0 */
/* Growable string. Any thread, one at a time: the caller owns it. */
#include "common/str.h"

#include <stdarg.h>

enum { STR_FIRST_BYTES = 64 };

/* room for n more bytes and the NUL */
static bool str_room(struct str *b, size_t n)
{
	size_t want, cap;
	char *s;

	if (b->err)
		return false;
	if (n >= SIZE_MAX / 2 - b->len) {
		b->err = -ENOMEM;
		return false;
	}
	want = b->len + n + 1;
	if (want <= b->cap)
		return true;
	cap = MAX(b->cap, (size_t)STR_FIRST_BYTES);
	while (cap < want)
		cap *= 2;
	s = realloc(b->s, cap);
	if (!s) {
		b->err = -ENOMEM;
		return false;
	}
	b->s = s;
	b->cap = cap;
	return true;
}

void str_fini(struct str *b)
{
	free(b->s);
	*b = (struct str)STR_INIT;
}

void str_addn(struct str *b, const void *p, size_t n)
{
	if (!str_room(b, n))
		return;
	if (n)
		memcpy(b->s + b->len, p, n);
	b->len += n;
	b->s[b->len] = 0;
}

void str_add(struct str *b, const char *s)
{
	str_addn(b, s, strlen(s));
}

void str_addf(struct str *b, const char *fmt, ...)
{
	va_list ap, again;
	int n;

	va_start(ap, fmt);
	va_copy(again, ap);
	n = vsnprintf(NULL, 0, fmt, ap);
	if (n < 0) {
		b->err = -ENOMEM;
	} else if (str_room(b, (size_t)n)) {
		vsnprintf(b->s + b->len, (size_t)n + 1, fmt, again);
		b->len += (size_t)n;
	}
	va_end(again);
	va_end(ap);
}

void str_reset(struct str *b)
{
	b->len = 0;
	b->err = 0;
	if (b->s)
		b->s[0] = 0;
}

int str_error(const struct str *b)
{
	return b->err;
}

const char *str_c(const struct str *b)
{
	return b->s ? b->s : "";
}

char *str_take(struct str *b)
{
	char *s;

	(void)str_room(b, 0);
	if (b->err) {
		str_fini(b);
		return NULL;
	}
	s = TAKE_PTR(b->s);
	s[b->len] = 0;
	*b = (struct str)STR_INIT;
	return s;
}
