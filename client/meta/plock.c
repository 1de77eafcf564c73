/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of record locks. Pure; any thread. */
#include "client/meta/plock.h"

#include <fcntl.h>

void plock_fini(struct plock *p)
{
	free(p->l);
	*p = (struct plock){0};
}

static uint32_t get32(const uint8_t *p)
{
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static uint64_t get64(const uint8_t *p)
{
	return (uint64_t)get32(p) << 32 | get32(p + 4);
}

static void put32(uint8_t *p, uint32_t v)
{
	for (int i = 0; i < 4; i++)
		p[i] = (uint8_t)(v >> (24 - 8 * i));
}

static void put64(uint8_t *p, uint64_t v)
{
	put32(p, (uint32_t)(v >> 32));
	put32(p + 4, (uint32_t)v);
}

int plock_decode(const uint8_t *b, size_t n, struct plock *ret)
{
	struct plock p = {0};

	if (n % PLOCK_LEN)
		return -EPROTO;
	if (n == 0) {
		*ret = p;
		return 0;
	}
	p.l = calloc(n / PLOCK_LEN, sizeof(*p.l));
	if (!p.l)
		return -ENOMEM;
	for (; p.n < n / PLOCK_LEN; p.n++, b += PLOCK_LEN) {
		p.l[p.n] = (struct meta_lock){get32(b), get32(b + 4), get64(b + 8), get64(b + 16)};
		if ((p.l[p.n].type != F_RDLCK && p.l[p.n].type != F_WRLCK) ||
		    p.l[p.n].start > p.l[p.n].end) {
			plock_fini(&p);
			return -EPROTO;
		}
	}
	*ret = p;
	return 0;
}

void plock_encode(const struct plock *p, uint8_t *b)
{
	for (size_t i = 0; i < p->n; i++, b += PLOCK_LEN) {
		put32(b, p->l[i].type);
		put32(b + 4, p->l[i].pid);
		put64(b + 8, p->l[i].start);
		put64(b + 16, p->l[i].end);
	}
}

static bool overlap(const struct meta_lock *a, const struct meta_lock *b)
{
	return a->end >= b->start && a->start <= b->end;
}

static int by_start(const void *a, const void *b)
{
	const struct meta_lock *x = a, *y = b;

	return x->start < y->start ? -1 : x->start > y->start;
}

/* neighbours of one kind become one */
static size_t join(struct meta_lock *l, size_t n)
{
	size_t k = 0;

	for (size_t i = 0; i < n; i++) {
		struct meta_lock *last = k ? &l[k - 1] : NULL;

		if (last && last->type == l[i].type && last->pid == l[i].pid &&
		    last->end != UINT64_MAX && last->end + 1 == l[i].start)
			last->end = l[i].end;
		else
			l[k++] = l[i];
	}
	return k;
}

int plock_set(struct plock *p, const struct meta_lock *l)
{
	struct meta_lock *out;
	size_t n = 0;

	out = calloc(p->n * 2 + 1, sizeof(*out));
	if (!out)
		return -ENOMEM;
	for (size_t i = 0; i < p->n; i++) {
		const struct meta_lock *o = &p->l[i];

		if (!overlap(o, l)) {
			out[n++] = *o;
			continue;
		}
		if (o->start < l->start)
			out[n++] = (struct meta_lock){o->type, o->pid, o->start, l->start - 1};
		if (o->end > l->end)
			out[n++] = (struct meta_lock){o->type, o->pid, l->end + 1, o->end};
	}
	if (l->type != F_UNLCK)
		out[n++] = *l;
	qsort(out, n, sizeof(*out), by_start);
	n = join(out, n);
	if (n > PLOCK_MAX && n > p->n) {
		free(out);
		return -ENOLCK;
	}
	free(p->l);
	p->l = out;
	p->n = n;
	return 0;
}

const struct meta_lock *plock_conflict(const struct plock *p, const struct meta_lock *l)
{
	const struct meta_lock *first = NULL;

	for (size_t i = 0; i < p->n; i++) {
		const struct meta_lock *o = &p->l[i];

		if (overlap(o, l) && (l->type == F_WRLCK || o->type == F_WRLCK) &&
		    (!first || o->start < first->start))
			first = o;
	}
	return first;
}
