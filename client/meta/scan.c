/* SPDX-License-Identifier: Apache-2.0 */
/* Iterators and pipelines of reads, over the connections of a struct redis. In a cluster all keys
 * of a volume lie on one node, but SCAN walks all keys of that node: the prefix is part of its
 * pattern. Any thread that may block. */
#include "client/meta/scan.h"

#include <inttypes.h>
#include <stdarg.h>

#include "client/meta/reply.h"
#include "common/clock.h"

enum { KEYS_COUNT = 10000, FIELDS_COUNT = 1000 };

void scan_init(struct scan *s, struct redis *r, const int *cancel)
{
	*s = (struct scan){.redis = r,
			   .prefix = redis_prefix(r),
			   .timeout_us = SCAN_TIMEOUT_US,
			   .cancel = cancel};
}

static bool cancelled(const struct scan *s)
{
	return s->cancel && __atomic_load_n(s->cancel, __ATOMIC_RELAXED);
}

bool scan_u64(const char *s, size_t n, uint64_t *ret)
{
	uint64_t v = 0;

	if (n == 0 || n > 20)
		return false;
	for (size_t i = 0; i < n; i++) {
		unsigned d = (unsigned)(unsigned char)s[i] - '0';

		if (d > 9 || __builtin_mul_overflow(v, UINT64_C(10), &v) ||
		    __builtin_add_overflow(v, d, &v))
			return false;
	}
	*ret = v;
	return true;
}

/* hands a page over; pairs: two elements an item */
static int give(const struct scan *s, const struct redis_reply *page, bool pairs, scan_fn *fn,
		void *arg)
{
	size_t step = pairs ? 2 : 1, n = reply_len(page) / step, cut = strlen(s->prefix), kept = 0;
	struct scan_item *items;
	int r;

	if (n == 0)
		return 0;
	items = calloc(n, sizeof(*items));
	if (!items)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		struct scan_item *it = &items[kept];

		it->name = reply_text(reply_at(page, i * step), &it->name_len);
		if (pairs)
			it->value = reply_text(reply_at(page, i * step + 1), &it->value_len);
		if (!it->name || (pairs && !it->value))
			continue;
		if (!pairs) {
			if (it->name_len < cut || memcmp(it->name, s->prefix, cut) != 0)
				continue;
			it->name += cut;
			it->name_len -= cut;
		}
		kept++;
	}
	r = kept ? fn(arg, kept, items) : 0;
	free(items);
	return r;
}

/* one iteration: a page that redis_pages gives goes to fn */
struct pages {
	const struct scan *s;
	bool pairs;
	scan_fn *fn;
	void *arg;
};

static int page(void *arg, const struct redis_reply *reply)
{
	const struct pages *p = arg;

	if (cancelled(p->s))
		return -EINTR;
	/* from the start: those who iterate take it that anything comes twice */
	return reply ? give(p->s, reply, p->pairs, p->fn, p->arg) : 0;
}

/* a glob's special characters lose their meaning */
static void add_quoted(struct str *out, const char *text)
{
	for (; *text; text++) {
		if (strchr("*?[]\\^", *text))
			str_add(out, "\\");
		str_addn(out, text, 1);
	}
}

int scan_keys(const struct scan *s, const char *pattern, scan_fn *fn, void *arg)
{
	struct pages p = {.s = s, .fn = fn, .arg = arg};
	_cleanup_(str_fini) struct str match = STR_INIT;

	add_quoted(&match, s->prefix);
	str_add(&match, pattern);
	if (str_error(&match) < 0)
		return -ENOMEM;
	return redis_pages(s->redis, s->timeout_us, "SCAN", NULL, str_c(&match), KEYS_COUNT, page,
			   &p);
}

static int scan_pairs(const struct scan *s, const char *verb, const char *key, scan_fn *fn,
		      void *arg)
{
	struct pages p = {.s = s, .pairs = true, .fn = fn, .arg = arg};
	_cleanup_(str_fini) struct str full = STR_INIT;

	str_add(&full, s->prefix);
	str_add(&full, key);
	if (str_error(&full) < 0)
		return -ENOMEM;
	return redis_pages(s->redis, s->timeout_us, verb, str_c(&full), NULL, FIELDS_COUNT, page,
			   &p);
}

int scan_hash(const struct scan *s, const char *key, scan_fn *fn, void *arg)
{
	return scan_pairs(s, "HSCAN", key, fn, arg);
}

int scan_zset(const struct scan *s, const char *key, scan_fn *fn, void *arg)
{
	return scan_pairs(s, "ZSCAN", key, fn, arg);
}

/* --- pipelines --- */

void pipe_init(struct pipe *p, const struct scan *s)
{
	*p = (struct pipe){.scan = s};
}

static void free_replies(struct pipe *p)
{
	for (size_t i = 0; p->reply && i < p->n; i++)
		redis_reply_freep(&p->reply[i]);
	free(p->reply);
	p->reply = NULL;
}

void pipe_fini(struct pipe *p)
{
	free_replies(p);
	str_fini(&p->words);
	free(p->len);
	free(p->argc);
	pipe_init(p, p->scan);
}

void pipe_reset(struct pipe *p)
{
	free_replies(p);
	str_reset(&p->words);
	p->n = p->n_words = 0;
	p->err = 0;
}

static int grow(void *at, size_t *cap, size_t size)
{
	size_t n = *cap ? *cap * 2 : 64;
	void **v = at;
	void *more = reallocarray(*v, n, size);

	if (!more)
		return -ENOMEM;
	*v = more;
	*cap = n;
	return 0;
}

static void begin(struct pipe *p)
{
	if (p->n == p->cap && grow(&p->argc, &p->cap, sizeof(*p->argc)) < 0) {
		p->err = -ENOMEM;
		return;
	}
	p->argc[p->n++] = 0;
}

static void word(struct pipe *p, const char *a, const char *b, size_t b_len)
{
	size_t a_len = strlen(a);

	if (p->n_words == p->cap_words && grow(&p->len, &p->cap_words, sizeof(*p->len)) < 0)
		p->err = -ENOMEM;
	if (p->err)
		return;
	str_addn(&p->words, a, a_len);
	str_addn(&p->words, b, b_len);
	p->len[p->n_words++] = a_len + b_len;
	p->argc[p->n - 1]++;
}

void pipe_add(struct pipe *p, const char *verb, const char *key, ...)
{
	const char *w;
	va_list ap;

	begin(p);
	word(p, "", verb, strlen(verb));
	word(p, p->scan->prefix, key, strlen(key));
	va_start(ap, key);
	while ((w = va_arg(ap, const char *)))
		word(p, "", w, strlen(w));
	va_end(ap);
}

void pipe_add_inode(struct pipe *p, const char *verb, const char *kind, uint64_t inode)
{
	char key[32];

	(void)snprintf(key, sizeof(key), "%s%" PRIu64, kind, inode);
	pipe_add(p, verb, key, (char *)NULL);
}

static int send_all(struct pipe *p, struct redis_conn *c)
{
	const char *at = p->words.s;
	const char *v[16];
	size_t w = 0;

	for (size_t i = 0; i < p->n; i++) {
		int r;

		if (p->argc[i] > ARRAY_LEN(v))
			return -E2BIG;
		for (unsigned j = 0; j < p->argc[i]; j++) {
			v[j] = at;
			at += p->len[w + j];
		}
		r = redis_appendv(c, (int)p->argc[i], v, p->len + w);
		if (r)
			return r;
		w += p->argc[i];
	}
	return 0;
}

static int attempt(struct pipe *p, uint64_t deadline_us)
{
	struct redis_conn *c;
	int r = redis_acquire(p->scan->redis, deadline_us, &c), first = 0;

	if (r)
		return r;
	r = send_all(p, c);
	/* an error of the server's leaves the other replies to be read */
	for (size_t i = 0; i < p->n && r == 0; i++) {
		r = redis_next(c, deadline_us, &p->reply[i]);
		if (r && r != -ETIMEDOUT && r != -ECONNRESET && r != -ECONNREFUSED) {
			first = first ? first : r;
			r = 0;
		}
	}
	redis_release(c);
	return r ? r : first;
}

int pipe_run(struct pipe *p)
{
	uint64_t deadline = clock_us() + p->scan->timeout_us;
	int r;

	if (p->err || str_error(&p->words) < 0)
		return -ENOMEM;
	if (p->n == 0)
		return 0;
	do {
		if (cancelled(p->scan))
			return -EINTR;
		free_replies(p);
		p->reply = calloc(p->n, sizeof(struct redis_reply *));
		if (!p->reply)
			return -ENOMEM;
		r = attempt(p, deadline);
	} while ((r == -ETIMEDOUT || r == -ECONNRESET || r == -ECONNREFUSED || r == -EAGAIN) &&
		 clock_us() < deadline);
	return r;
}
