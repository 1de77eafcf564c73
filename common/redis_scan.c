/* SPDX-License-Identifier: Apache-2.0 */
/* What a Redis gives in pages: SCAN and its kin. A cursor is a place in a table that is laid out
 * anew with each start of a server, so it is used only while it is certain that the same one
 * answers: over connections that were open already when the first page came. Any thread that may
 * block. */
#include "common/redis_inner.h"

#include "common/clock.h"

enum { STARTS_MAX = 100 };

struct pages {
	struct redis *r;
	const char *verb, *key, *match;
	char count[12];
	struct redis_cursor at;
};

static int page_ask(struct pages *p, struct redis_conn *c, uint64_t deadline_us,
		    struct redis_reply **ret)
{
	const char *v[7] = {p->verb};
	int n = 1;

	if (p->key)
		v[n++] = p->key;
	v[n++] = p->at.text;
	if (p->match) {
		v[n++] = "MATCH";
		v[n++] = p->match;
	}
	v[n++] = "COUNT";
	v[n++] = p->count;
	return redis_cmdv(c, deadline_us, ret, n, v, NULL);
}

static bool at_start(const struct pages *p)
{
	return !strcmp(p->at.text, "0");
}

/* -ESTALE: the cursor is void */
static int page_get(struct pages *p, uint64_t deadline_us, struct redis_reply **ret)
{
	struct redis_conn *c;
	int e = redis_acquire(p->r, deadline_us, &c);

	if (e < 0)
		return e;
	if (at_start(p)) {
		mtx_lock(&p->r->lock);
		p->at.births = p->r->births;
		mtx_unlock(&p->r->lock);
	}
	e = c->birth > p->at.births ? -ESTALE : page_ask(p, c, deadline_us, ret);
	redis_release(c);
	return e;
}

/* one page, given to fn; *ret_end: it was the last, or fn made an end */
static int page_take(struct pages *p, uint64_t deadline_us, redis_page_fn *fn, void *arg,
		     bool *ret_end)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	const struct redis_reply *next;
	const char *text;
	size_t n = 0;
	int e = page_get(p, deadline_us, &reply);

	if (e < 0)
		return e;
	next = redis_reply_at(reply, 0);
	text = next ? redis_reply_str(next, &n) : NULL;
	if (!text || n >= sizeof(p->at.text) || !redis_reply_at(reply, 1))
		return -EPROTO;
	memcpy(p->at.text, text, n + 1);
	e = fn(arg, redis_reply_at(reply, 1));
	*ret_end = e || at_start(p);
	return e;
}

int redis_page(struct redis *r, uint64_t page_us, const char *verb, const char *key, unsigned count,
	       struct redis_cursor *c, redis_page_fn *fn, void *arg)
{
	struct pages p = {.r = r, .verb = verb, .key = key, .at = *c};
	uint64_t deadline = clock_us() + page_us;

	snprintf(p.count, sizeof(p.count), "%u", count);
	for (unsigned i = 0;; i++) {
		int e;

		if (i > 0 || !p.at.text[0])
			snprintf(p.at.text, sizeof(p.at.text), "0");
		e = page_take(&p, deadline, fn, arg, &p.at.end);
		if (!e)
			*c = p.at;
		if (e != -ESTALE && e != -ECONNRESET && e != -EAGAIN)
			return e;
		if (i == STARTS_MAX || !clock_left(deadline))
			return e == -ESTALE ? -EAGAIN : e;
		if (e != -ESTALE)
			redis_backoff(r, i, deadline);
	}
}

/* from the first page to the last; -ESTALE: not the same server all the while */
static int pages_run(struct pages *p, uint64_t page_us, redis_page_fn *fn, void *arg,
		     uint64_t *io_deadline, bool *ret_end)
{
	int e = fn(arg, NULL);

	snprintf(p->at.text, sizeof(p->at.text), "0");
	*ret_end = e;
	while (!*ret_end && !e) {
		e = page_take(p, *io_deadline, fn, arg, ret_end);
		if (!e)
			*io_deadline = clock_us() + page_us;
	}
	return e;
}

int redis_pages(struct redis *r, uint64_t page_us, const char *verb, const char *key,
		const char *match, unsigned count, redis_page_fn *fn, void *arg)
{
	struct pages p = {.r = r, .verb = verb, .key = key, .match = match};
	uint64_t deadline = clock_us() + page_us;

	snprintf(p.count, sizeof(p.count), "%u", count);
	for (unsigned i = 0;; i++) {
		bool end = false;
		int e = pages_run(&p, page_us, fn, arg, &deadline, &end);

		if (end || (e != -ESTALE && e != -ECONNRESET && e != -EAGAIN))
			return e;
		if (i == STARTS_MAX || !clock_left(deadline))
			return e == -ESTALE ? -EAGAIN : e;
		if (e != -ESTALE)
			redis_backoff(r, i, deadline);
	}
}

/* --- all keys --- */

struct scan {
	size_t skip;
	int (*fn)(void *arg, const char *key, size_t len);
	void *arg;
};

static int scan_page(void *arg, const struct redis_reply *keys)
{
	struct scan *s = arg;
	int r = 0;

	for (size_t i = 0; keys && i < redis_reply_len(keys) && !r; i++) {
		size_t n;
		const char *key = redis_reply_str(redis_reply_at(keys, i), &n);

		if (key && n >= s->skip)
			r = s->fn(s->arg, key + s->skip, n - s->skip);
	}
	return r;
}

int redis_scan(struct redis *r, uint64_t page_us, const char *match,
	       int (*fn)(void *arg, const char *key, size_t len), void *arg)
{
	struct scan s = {.skip = strlen(r->prefix), .fn = fn, .arg = arg};
	_cleanup_(str_fini) struct str whole = STR_INIT;

	str_addf(&whole, "%s%s", r->prefix, match);
	if (str_error(&whole))
		return -ENOMEM;
	return redis_pages(r, page_us, "SCAN", NULL, str_c(&whole), 1000, scan_page, &s);
}
