/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cmd/table.h"

#include <stdio.h>

struct cell {
	const char *p;
	size_t n;
};

void table_init(struct table *t, const char *head)
{
	*t = (struct table){.n = 0};
	str_addn(&t->text, head, strlen(head) + 1);
}

void table_fini(struct table *t)
{
	str_fini(&t->text);
}

void table_row(struct table *t, const char *fields)
{
	str_addn(&t->text, fields, strlen(fields) + 1);
	t->n++;
}

/* the row at p; returns the one behind it */
static const char *row(const char *p, struct cell cells[TABLE_COLUMNS], size_t *ret_n)
{
	size_t n = 0;

	for (;;) {
		size_t len = strcspn(p, "\t");

		if (n < TABLE_COLUMNS)
			cells[n++] = (struct cell){p, len};
		p += len;
		if (!*p)
			break;
		p++;
	}
	*ret_n = n;
	return p + 1;
}

/* characters of UTF-8, as good as columns here */
static size_t columns(const struct cell *c)
{
	size_t n = 0;

	for (size_t i = 0; i < c->n; i++)
		n += ((unsigned char)c->p[i] & 0xc0) != 0x80;
	return n;
}

static void rule(const size_t *width, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		(void)putchar('+');
		for (size_t k = 0; k < width[i] + 2; k++)
			(void)putchar('-');
	}
	(void)puts("+");
}

static void spaces(size_t n)
{
	while (n-- > 0)
		(void)putchar(' ');
}

static void print_row(const struct cell *c, const size_t *width, size_t n, bool head, unsigned left)
{
	for (size_t i = 0; i < n; i++) {
		size_t room = width[i] - columns(&c[i]);
		size_t before = head ? room / 2 : left & 1u << i ? 0 : room;

		(void)fputs("| ", stdout);
		spaces(before);
		(void)fwrite(c[i].p, 1, c[i].n, stdout);
		spaces(room - before + 1);
	}
	(void)puts("|");
}

void table_print(struct table *t, unsigned left)
{
	size_t width[TABLE_COLUMNS] = {0}, n = 0, k;
	struct cell cells[TABLE_COLUMNS] = {{NULL, 0}};
	const char *p;

	if (str_error(&t->text) < 0)
		return;
	p = t->text.s;
	for (size_t r = 0; r <= t->n; r++) {
		p = row(p, cells, &k);
		n = MAX(n, k);
		for (size_t i = 0; i < k; i++)
			width[i] = MAX(width[i], columns(&cells[i]));
	}
	rule(width, n);
	p = t->text.s;
	for (size_t r = 0; r <= t->n; r++) {
		p = row(p, cells, &k);
		for (size_t i = k; i < n; i++)
			cells[i] = (struct cell){"", 0};
		print_row(cells, width, n, r == 0, left);
		if (r == 0)
			rule(width, n);
	}
	rule(width, n);
}
