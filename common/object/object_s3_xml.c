/* SPDX-License-Identifier: Apache-2.0 */
/* XML as S3 servers write it: elements, attributes (read over), text with the five entities and
 * numeric ones, CDATA, comments, one declaration. A document type is refused, so entities cannot
 * multiply. The walk calls back at each end tag with the path of the element from the root,
 * namespace prefixes cut off, and the text that stood directly in it. Pure. */
#include "common/object/object_s3_xml.h"

#include <time.h>

#include "common/parse.h"

enum { MAX_DEPTH = 16, MAX_PATH = 256, MAX_TEXT = 8192 };

/* text is NUL-terminated and holds no other NUL */
typedef int leaf_fn(void *arg, const char *path, const char *text, size_t n);

struct xml {
	const char *p, *end;
	char path[MAX_PATH]; /* "ListBucketResult/Contents/Key" */
	size_t path_len;
	struct {
		const char *name;
		size_t len, path_len;
	} open[MAX_DEPTH];
	unsigned depth;
	bool seen_root;
	char text[MAX_TEXT];
	size_t text_len;
};

static bool at(const struct xml *x, const char *s)
{
	size_t n = strlen(s);

	return (size_t)(x->end - x->p) >= n && memcmp(x->p, s, n) == 0;
}

static bool is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static void skip_blanks(struct xml *x)
{
	while (x->p < x->end && is_blank(*x->p))
		x->p++;
}

/* behind the next s */
static int skip_past(struct xml *x, const char *s)
{
	const char *hit = memmem(x->p, (size_t)(x->end - x->p), s, strlen(s));

	if (!hit)
		return -EPROTO;
	x->p = hit + strlen(s);
	return 0;
}

static int add_text(struct xml *x, const char *s, size_t n)
{
	if (n > MAX_TEXT - 1 - x->text_len || memchr(s, 0, n))
		return -EPROTO;
	memcpy(x->text + x->text_len, s, n);
	x->text_len += n;
	return 0;
}

static int add_code_point(struct xml *x, uint64_t c)
{
	char u[4];

	if (c == 0 || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
		return -EPROTO;
	if (c < 0x80) {
		u[0] = (char)c;
		return add_text(x, u, 1);
	}
	if (c < 0x800) {
		u[0] = (char)(0xc0 | c >> 6);
		u[1] = (char)(0x80 | (c & 63));
		return add_text(x, u, 2);
	}
	if (c < 0x10000) {
		u[0] = (char)(0xe0 | c >> 12);
		u[1] = (char)(0x80 | (c >> 6 & 63));
		u[2] = (char)(0x80 | (c & 63));
		return add_text(x, u, 3);
	}
	u[0] = (char)(0xf0 | c >> 18);
	u[1] = (char)(0x80 | (c >> 12 & 63));
	u[2] = (char)(0x80 | (c >> 6 & 63));
	u[3] = (char)(0x80 | (c & 63));
	return add_text(x, u, 4);
}

static int digit_of(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c = (char)(c | 0x20);
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : 99;
}

/* "&#233;", "&#xe9;"; p stands behind the '#' */
static int numeric_entity(struct xml *x)
{
	int base = 10;
	uint64_t c = 0;
	const char *first;

	if (at(x, "x")) {
		base = 16;
		x->p++;
	}
	for (first = x->p; x->p < x->end && *x->p != ';'; x->p++) {
		int d = digit_of(*x->p);

		if (d >= base || x->p - first > 7)
			return -EPROTO;
		c = c * (unsigned)base + (unsigned)d;
	}
	if (x->p == x->end || x->p == first)
		return -EPROTO;
	x->p++;
	return add_code_point(x, c);
}

static int entity(struct xml *x)
{
	static const struct {
		const char *text;
		char c;
	} named[] = {
		{"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''},
	};

	if (at(x, "&#")) {
		x->p += 2;
		return numeric_entity(x);
	}
	for (size_t i = 0; i < ARRAY_LEN(named); i++) {
		if (at(x, named[i].text)) {
			x->p += strlen(named[i].text);
			return add_text(x, &named[i].c, 1);
		}
	}
	return -EPROTO;
}

static int characters(struct xml *x)
{
	const char *from = x->p;

	while (x->p < x->end && *x->p != '<' && *x->p != '&')
		x->p++;
	if (x->depth == 0) {
		/* around the root only blanks may stand */
		for (; from < x->p; from++) {
			if (!is_blank(*from))
				return -EPROTO;
		}
		return x->p < x->end && *x->p == '&' ? -EPROTO : 0;
	}
	if (add_text(x, from, (size_t)(x->p - from)) < 0)
		return -EPROTO;
	return x->p < x->end && *x->p == '&' ? entity(x) : 0;
}

static int cdata(struct xml *x)
{
	const char *from = x->p + strlen("<![CDATA[");

	if (x->depth == 0 || skip_past(x, "]]>") < 0)
		return -EPROTO;
	/* "<![CDATA[]>" with "]]>" overlapping its own opening has no room for text */
	if (x->p - 3 < from)
		return -EPROTO;
	return add_text(x, from, (size_t)(x->p - 3 - from));
}

static size_t name_len(const struct xml *x)
{
	const char *p = x->p;

	while (p < x->end && (is_blank(*p) || strchr("/>=<&\"'", *p) || !*p) == 0)
		p++;
	return (size_t)(p - x->p);
}

static int push(struct xml *x, const char *name, size_t n)
{
	const char *colon = memchr(name, ':', n);
	size_t local = colon ? n - (size_t)(colon + 1 - name) : n;

	if (x->depth == MAX_DEPTH || (x->depth == 0 && x->seen_root) || local == 0 ||
	    x->path_len + local + 2 > MAX_PATH)
		return -EPROTO;
	x->open[x->depth].name = name;
	x->open[x->depth].len = n;
	x->open[x->depth].path_len = x->path_len;
	if (x->depth)
		x->path[x->path_len++] = '/';
	memcpy(x->path + x->path_len, name + n - local, local);
	x->path_len += local;
	x->path[x->path_len] = '\0';
	x->depth++;
	x->seen_root = true;
	x->text_len = 0;
	return 0;
}

static int pop(struct xml *x, leaf_fn *leaf, void *arg)
{
	int r;

	x->text[x->text_len] = '\0';
	r = leaf(arg, x->path, x->text, x->text_len);
	x->depth--;
	x->path_len = x->open[x->depth].path_len;
	x->path[x->path_len] = '\0';
	x->text_len = 0;
	return r;
}

static int attribute(struct xml *x)
{
	size_t n = name_len(x);
	char quote[2] = {0, 0};

	if (n == 0)
		return -EPROTO;
	x->p += n;
	skip_blanks(x);
	if (!at(x, "="))
		return -EPROTO;
	x->p++;
	skip_blanks(x);
	if (!at(x, "\"") && !at(x, "'"))
		return -EPROTO;
	quote[0] = *x->p++;
	return skip_past(x, quote);
}

static int start_tag(struct xml *x, leaf_fn *leaf, void *arg)
{
	size_t n;

	x->p++;
	n = name_len(x);
	if (n == 0 || push(x, x->p, n) < 0)
		return -EPROTO;
	x->p += n;
	for (;;) {
		skip_blanks(x);
		if (at(x, "/>")) {
			x->p += 2;
			return pop(x, leaf, arg);
		}
		if (at(x, ">")) {
			x->p++;
			return 0;
		}
		if (attribute(x) < 0)
			return -EPROTO;
	}
}

static int end_tag(struct xml *x, leaf_fn *leaf, void *arg)
{
	size_t n;

	x->p += 2;
	n = name_len(x);
	if (x->depth == 0 || n != x->open[x->depth - 1].len ||
	    memcmp(x->p, x->open[x->depth - 1].name, n) != 0)
		return -EPROTO;
	x->p += n;
	skip_blanks(x);
	if (!at(x, ">"))
		return -EPROTO;
	x->p++;
	return pop(x, leaf, arg);
}

static int step(struct xml *x, leaf_fn *leaf, void *arg)
{
	if (*x->p != '<')
		return characters(x);
	if (at(x, "<!--"))
		return skip_past(x, "-->");
	if (at(x, "<![CDATA["))
		return cdata(x);
	if (at(x, "<?"))
		return skip_past(x, "?>");
	if (at(x, "<!"))
		return -EPROTO;
	if (at(x, "</"))
		return end_tag(x, leaf, arg);
	return start_tag(x, leaf, arg);
}

static int walk(const void *p, size_t n, leaf_fn *leaf, void *arg)
{
	struct xml *x = calloc(1, sizeof(*x));
	int r = 0;

	if (!x)
		return -ENOMEM;
	x->p = p;
	x->end = x->p + n;
	if (n >= 3 && memcmp(x->p, "\xef\xbb\xbf", 3) == 0)
		x->p += 3;
	while (r == 0 && x->p < x->end)
		r = step(x, leaf, arg);
	if (r == 0 && (x->depth || !x->seen_root))
		r = -EPROTO;
	free(x);
	return r;
}

/* --- ListObjectsV2 --- */

struct list_walk {
	struct s3xml_listing l;
	struct object_info now;
	bool url, has_size;
};

/* "%C3%A9+x" -> bytes, in place */
static int url_decode(char *s)
{
	char *to = s;

	for (; *s; s++) {
		if (*s == '%') {
			int hi = digit_of(s[1]), lo = hi < 16 ? digit_of(s[2]) : 99;

			if (hi > 15 || lo > 15 || hi + lo == 0)
				return -EPROTO;
			*to++ = (char)(hi * 16 + lo);
			s += 2;
		} else {
			*to++ = *s == '+' ? ' ' : *s;
		}
	}
	*to = '\0';
	return 0;
}

/* "2026-11-30T12:00:00.000Z" */
static int parse_time(const char *s, int64_t *ret)
{
	struct tm tm = {.tm_isdst = 0};
	const char *rest = strptime(s, "%Y-%m-%dT%H:%M:%S", &tm);

	if (!rest)
		return -EPROTO;
	if (*rest == '.')
		rest += 1 + strspn(rest + 1, "0123456789");
	if (strcmp(rest, "Z") != 0)
		return -EPROTO;
	*ret = (int64_t)timegm(&tm);
	return 0;
}

static int list_entry_end(struct list_walk *w)
{
	if (!w->now.key || !w->has_size || w->l.n == S3XML_MAX_KEYS)
		return -EPROTO;
	w->l.info[w->l.n++] = w->now;
	w->now = (struct object_info){.key = NULL};
	w->has_size = false;
	return 0;
}

static int list_leaf(void *arg, const char *path, const char *text, size_t n)
{
	struct list_walk *w = arg;

	if (strncmp(path, "ListBucketResult", 16) != 0)
		return -EPROTO;
	if (strcmp(path, "ListBucketResult/Contents/Key") == 0) {
		if (w->now.key || n == 0 || n > (size_t)3 * S3XML_MAX_KEY)
			return -EPROTO;
		w->now.key = strdup(text);
		return w->now.key ? 0 : -ENOMEM;
	}
	if (strcmp(path, "ListBucketResult/Contents/Size") == 0) {
		w->has_size = true;
		return parse_u64(text, INT64_MAX, &w->now.size) < 0 ? -EPROTO : 0;
	}
	if (strcmp(path, "ListBucketResult/Contents/LastModified") == 0)
		return parse_time(text, &w->now.mtime);
	if (strcmp(path, "ListBucketResult/Contents") == 0)
		return list_entry_end(w);
	if (strcmp(path, "ListBucketResult/IsTruncated") == 0)
		return parse_bool(text, &w->l.more) < 0 ? -EPROTO : 0;
	if (strcmp(path, "ListBucketResult/EncodingType") == 0)
		w->url = strcmp(text, "url") == 0;
	return 0;
}

static int by_key(const void *a, const void *b)
{
	return strcmp(((const struct object_info *)a)->key, ((const struct object_info *)b)->key);
}

static int list_finish(struct list_walk *w)
{
	for (size_t i = 0; i < w->l.n; i++) {
		char *key = w->l.info[i].key;

		if ((w->url && url_decode(key) < 0) || strlen(key) > S3XML_MAX_KEY)
			return -EPROTO;
	}
	if (w->l.n)
		qsort(w->l.info, w->l.n, sizeof(*w->l.info), by_key);
	return 0;
}

int s3xml_list(const void *p, size_t n, struct s3xml_listing *ret)
{
	struct list_walk w = {.url = false};
	int r;

	w.l.info = calloc(S3XML_MAX_KEYS, sizeof(*w.l.info));
	if (!w.l.info)
		return -ENOMEM;
	r = walk(p, n, list_leaf, &w);
	free(w.now.key);
	if (r == 0)
		r = list_finish(&w);
	if (r < 0) {
		s3xml_listing_fini(&w.l);
		return r;
	}
	*ret = w.l;
	return 0;
}

void s3xml_listing_fini(struct s3xml_listing *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->info[i].key);
	free(l->info);
	*l = (struct s3xml_listing){.info = NULL};
}

/* --- errors --- */

static void keep(char *to, size_t cap, const char *text)
{
	(void)snprintf(to, cap, "%s", text);
}

static int error_leaf(void *arg, const char *path, const char *text, size_t n _unused_)
{
	struct s3xml_error *e = arg;

	if (strncmp(path, "Error", 5) != 0)
		return -EPROTO;
	if (strcmp(path, "Error/Code") == 0)
		keep(e->code, sizeof(e->code), text);
	else if (strcmp(path, "Error/Message") == 0)
		keep(e->message, sizeof(e->message), text);
	else if (strcmp(path, "Error/Key") == 0)
		keep(e->key, sizeof(e->key), text);
	return 0;
}

int s3xml_error(const void *p, size_t n, struct s3xml_error *ret)
{
	*ret = (struct s3xml_error){.code = ""};
	return walk(p, n, error_leaf, ret);
}

struct delete_walk {
	struct s3xml_error now, first;
	int failed;
};

static int delete_leaf(void *arg, const char *path, const char *text, size_t n _unused_)
{
	struct delete_walk *w = arg;

	if (strncmp(path, "DeleteResult", 12) != 0)
		return -EPROTO;
	if (strcmp(path, "DeleteResult/Error/Code") == 0) {
		keep(w->now.code, sizeof(w->now.code), text);
	} else if (strcmp(path, "DeleteResult/Error/Message") == 0) {
		keep(w->now.message, sizeof(w->now.message), text);
	} else if (strcmp(path, "DeleteResult/Error/Key") == 0) {
		keep(w->now.key, sizeof(w->now.key), text);
	} else if (strcmp(path, "DeleteResult/Error") == 0) {
		if (strcmp(w->now.code, "NoSuchKey") != 0 && w->failed < S3XML_MAX_KEYS) {
			if (w->failed == 0)
				w->first = w->now;
			w->failed++;
		}
		w->now = (struct s3xml_error){.code = ""};
	}
	return 0;
}

int s3xml_delete(const void *p, size_t n, struct s3xml_error *ret)
{
	struct delete_walk w = {.failed = 0};
	int r = walk(p, n, delete_leaf, &w);

	if (r < 0)
		return r;
	*ret = w.first;
	return w.failed;
}
