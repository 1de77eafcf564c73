/* SPDX-License-Identifier: Apache-2.0 */
/* Which definitions of the prelude a script needs: identifiers are looked for, outside of texts and
 * comments, in the body, then in what that needs. Pure. */
#include "client/meta/script_text.h"

#include <ctype.h>

enum { UNITS_MAX = 192, NAMES_MAX = 384 };

struct span {
	const char *p;
	size_t n;
};
struct name {
	struct span text;
	unsigned unit;
};
struct prelude {
	struct span units[UNITS_MAX];
	bool needed[UNITS_MAX], looked[UNITS_MAX];
	unsigned n_units;
	struct name names[NAMES_MAX];
	unsigned n_names;
};

static bool is_word(char c)
{
	return isalnum((unsigned char)c) || c == '_';
}

static const char *line_end(const char *p, const char *end)
{
	const char *q = memchr(p, '\n', (size_t)(end - p));

	return q ? q + 1 : end;
}

static bool begins(const char *p, const char *end, const char *word)
{
	size_t n = strlen(word);

	return (size_t)(end - p) >= n && !memcmp(p, word, n);
}

/* behind a text, a comment, or any other single character */
static const char *skip(const char *p, const char *end)
{
	char quote = *p;

	if (begins(p, end, "--"))
		return line_end(p, end);
	p++;
	if (quote != '\'' && quote != '"')
		return p;
	while (p < end && *p != quote)
		p += *p == '\\' && p + 1 < end ? 2 : 1;
	return p < end ? p + 1 : end;
}

/* the next identifier that is no field ("redis.call"); NULL: none */
static const char *next_word(const char *p, const char *end, size_t *ret_len)
{
	bool field = false;

	while (p < end) {
		const char *begin = p;

		while (p < end && is_word(*p))
			p++;
		if (p > begin && !field) {
			*ret_len = (size_t)(p - begin);
			return begin;
		}
		field = false;
		if (p == begin) {
			/* ".." joins two texts */
			field = *p == '.' && !begins(p, end, "..");
			p = begins(p, end, "..") ? p + 2 : skip(p, end);
		}
	}
	return NULL;
}

/* "local function NAME" or "local A, B = …" */
static int add_names(struct prelude *pr, struct span text)
{
	const char *p = text.p + strlen("local "), *end = text.p + text.n;

	if (begins(p, end, "function "))
		p += strlen("function ");
	for (;;) {
		const char *q = p;

		while (q < end && is_word(*q))
			q++;
		if (q == p || pr->n_names == NAMES_MAX)
			return -EINVAL;
		pr->names[pr->n_names++] = (struct name){{p, (size_t)(q - p)}, pr->n_units};
		if (!begins(q, end, ", "))
			return 0;
		p = q + 2;
	}
}

static int split(struct prelude *pr, const char *text)
{
	const char *end = text + strlen(text), *begin = NULL;

	for (const char *p = text; p <= end; p = line_end(p, end)) {
		bool starts = begins(p, end, "local ");

		if (begin && (starts || p == end)) {
			pr->units[pr->n_units] = (struct span){begin, (size_t)(p - begin)};
			if (add_names(pr, pr->units[pr->n_units]) < 0)
				return -EINVAL;
			pr->n_units++;
		}
		if (starts) {
			if (pr->n_units == UNITS_MAX)
				return -EINVAL;
			begin = p;
		}
		if (p == end)
			break;
	}
	return 0;
}

static void need(struct prelude *pr, const char *text, size_t n)
{
	const char *p = text, *end = text + n;
	size_t len;

	while ((p = next_word(p, end, &len))) {
		for (unsigned i = 0; i < pr->n_names; i++) {
			const struct span *name = &pr->names[i].text;

			if (name->n == len && !memcmp(name->p, p, len))
				pr->needed[pr->names[i].unit] = true;
		}
		p += len;
	}
}

/* a definition uses only those before it: one way back through them is enough */
static void need_all(struct prelude *pr, const char *body)
{
	need(pr, body, strlen(body));
	for (unsigned i = pr->n_units; i-- > 0;) {
		if (pr->needed[i])
			need(pr, pr->units[i].p, pr->units[i].n);
	}
}

static void add_lines(struct str *out, const char *p, size_t n)
{
	const char *end = p + n, *next;

	for (; p < end; p = next) {
		const char *q = p;

		next = line_end(p, end);
		while (q < next && (*q == ' ' || *q == '\t'))
			q++;
		if (q < next && *q != '\n' && !begins(q, next, "--"))
			str_addn(out, p, (size_t)(next - p));
	}
}

int script_text_add(struct str *out, const char *prelude, const char *body)
{
	struct prelude *pr = calloc(1, sizeof(*pr));
	int r;

	if (!pr)
		return -ENOMEM;
	r = split(pr, prelude);
	if (!r) {
		need_all(pr, body);
		for (unsigned i = 0; i < pr->n_units; i++) {
			if (pr->needed[i])
				add_lines(out, pr->units[i].p, pr->units[i].n);
		}
		add_lines(out, body, strlen(body));
		r = str_error(out) ? -ENOMEM : 0;
	}
	free(pr);
	return r;
}
