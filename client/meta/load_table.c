/* SPDX-License-Identifier: Apache-2.0 */
/* What load keeps in memory, and how it writes. One thread. */
#include "client/meta/load.h"

#include <inttypes.h>

#include "common/clock.h"
#include "common/hash.h"

enum { PENDING_MAX = 1000, BYTES_MAX = 1 << 20 };

/* --- tables --- */

void load_table_fini(struct load_table *t)
{
	free(t->slot);
	*t = (struct load_table){.slot = NULL};
}

static size_t slot_of(const struct load_table *t, uint64_t a, uint64_t b)
{
	uint64_t key[2] = {a, b};
	size_t i = hash64(key, sizeof(key)) & (t->cap - 1);

	while (t->slot[i].used && (t->slot[i].a != a || t->slot[i].b != b))
		i = (i + 1) & (t->cap - 1);
	return i;
}

static int table_grow(struct load_table *t)
{
	struct load_table more = {.cap = t->cap ? t->cap * 2 : 1024, .n = t->n};

	more.slot = calloc(more.cap, sizeof(*more.slot));
	if (!more.slot)
		return -ENOMEM;
	for (size_t i = 0; i < t->cap; i++) {
		if (t->slot[i].used)
			more.slot[slot_of(&more, t->slot[i].a, t->slot[i].b)] = t->slot[i];
	}
	free(t->slot);
	*t = more;
	return 0;
}

struct load_slot *load_table_at(struct load_table *t, uint64_t a, uint64_t b)
{
	struct load_slot *s;

	if (t->n >= t->cap / 4 * 3 && table_grow(t) < 0)
		return NULL;
	s = &t->slot[slot_of(t, a, b)];
	if (!s->used) {
		*s = (struct load_slot){.a = a, .b = b, .used = true};
		t->n++;
	}
	return s;
}

struct load_slot *load_table_find(const struct load_table *t, uint64_t a, uint64_t b)
{
	struct load_slot *s = t->cap ? &t->slot[slot_of(t, a, b)] : NULL;

	return s && s->used ? s : NULL;
}

/* --- writes --- */

int load_begin(struct load_out *o, const struct scan *s)
{
	*o = (struct load_out){.scan = s};
	return redis_acquire(s->redis, clock_us() + s->timeout_us, &o->conn);
}

int load_flush(struct load_out *o)
{
	uint64_t deadline = clock_us() + o->scan->timeout_us;

	for (; o->pending > 0; o->pending--) {
		struct redis_reply *reply = NULL;
		int r;

		/* nothing more can be read from a connection that broke */
		if (o->err == -ETIMEDOUT || o->err == -ECONNRESET)
			continue;
		r = redis_next(o->conn, deadline, &reply);
		if (r && o->err == 0) {
			o->err = r;
			(void)snprintf(o->text, sizeof(o->text), "%.150s", redis_error(o->conn));
		}
		redis_reply_free(reply);
	}
	o->bytes = 0;
	if (o->err == 0 && o->scan->cancel && __atomic_load_n(o->scan->cancel, __ATOMIC_RELAXED))
		o->err = -EINTR;
	return o->err;
}

int load_end(struct load_out *o)
{
	int r;

	if (!o->conn)
		return o->err;
	r = load_flush(o);
	redis_release(o->conn);
	o->conn = NULL;
	return r;
}

int load_put(struct load_out *o, const char *verb, const char *key, int n, const char *const *word,
	     const size_t *len)
{
	const char *v[16] = {verb};
	size_t l[16] = {strlen(verb)};
	char full[128];
	int k;

	assert(n + 2 <= (int)ARRAY_LEN(v));
	if (o->err)
		return o->err;
	k = snprintf(full, sizeof(full), "%s%s", o->scan->prefix, key);
	assert(k > 0 && k < (int)sizeof(full));
	v[1] = full;
	l[1] = (size_t)k;
	for (int i = 0; i < n; i++) {
		v[i + 2] = word[i];
		l[i + 2] = len[i];
		o->bytes += len[i];
	}
	o->err = redis_appendv(o->conn, n + 2, v, l);
	if (o->err)
		return o->err;
	o->wrote = true;
	if (++o->pending >= PENDING_MAX || o->bytes >= BYTES_MAX)
		return load_flush(o);
	return 0;
}

int load_put_text(struct load_out *o, const char *verb, const char *key, const char *a,
		  const char *b)
{
	const char *v[] = {a, b};
	size_t l[] = {strlen(a), b ? strlen(b) : 0};

	return load_put(o, verb, key, b ? 2 : 1, v, l);
}

int load_put_number(struct load_out *o, const char *verb, const char *key, uint64_t field,
		    int64_t value)
{
	char f[24], v[24];

	(void)snprintf(f, sizeof(f), "%" PRIu64, field);
	(void)snprintf(v, sizeof(v), "%" PRId64, value);
	return load_put_text(o, verb, key, f, v);
}
