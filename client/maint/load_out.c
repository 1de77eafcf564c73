/* SPDX-License-Identifier: Apache-2.0 */
/* How load writes: many commands on the way, in order. One thread. */
#include "client/maint/load.h"

#include <inttypes.h>

#include "common/clock.h"

enum { PENDING_MAX = 1000, BYTES_MAX = 1 << 20 };

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
