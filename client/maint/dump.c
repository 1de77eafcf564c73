/* SPDX-License-Identifier: Apache-2.0 */
/* The tree of a dump, depth first. A level is a directory: its listing, and the records of the next
 * BATCH of its entries, read in one go, with the listings of small directories among them. Levels
 * lie on the heap, so that depth costs no stack. One thread; blocks. */
#include "client/maint/dump.h"

#include <inttypes.h>
#include <stdarg.h>

#include "client/maint/dump_text.h"
#include "client/maint/listing.h"
#include "client/meta/reply.h"
#include "common/clock.h"

enum {
	BATCH = 100,
	FLUSH_BYTES = 256 << 10,
	CHUNKS_MAX = 10000, /* a file of more is looked for with SCAN instead */
};

/* the next entries of a level, read */
struct record {
	struct attr attr;
	bool has_listing;
	struct listing listing; /* of a directory, when it is small */
	struct str text;	/* what comes behind "attr", complete but for entries */
};
struct level {
	struct level *up;
	uint64_t inode;
	unsigned depth;
	struct listing list;
	size_t next; /* entry */
	size_t from; /* of which records[0] is */
	size_t n;
	struct record records[BATCH];
};
/* a rule of the volume, by number */
struct rule {
	uint64_t id;
	struct acl acl;
};
struct dump {
	const struct scan *scan;
	const struct dump_conf *conf;
	struct dumpfile *file;
	struct meta_progress *progress;
	struct str out;
	struct rule *rules;
	size_t n_rules;
	uint64_t rules_to; /* the highest number that rules were looked at for */
};

static void warnf(struct dump *d, const char *fmt, ...) _printf_(2, 3);
static void warnf(struct dump *d, const char *fmt, ...)
{
	char line[128];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	if (d->conf->warn)
		d->conf->warn(d->conf->warn_arg, line);
}

static int flush(struct dump *d, size_t beyond)
{
	int r = str_error(&d->out);

	if (r == 0 && d->out.len > beyond) {
		r = dumpfile_write(d->file, d->out.s, d->out.len);
		str_reset(&d->out);
	}
	return r;
}

/* --- rules --- */

static int rules_page(void *arg, size_t n, const struct scan_item *items)
{
	struct dump *d = arg;
	struct rule *more = reallocarray(d->rules, d->n_rules + n, sizeof(*more));

	if (!more)
		return -ENOMEM;
	d->rules = more;
	for (size_t i = 0; i < n; i++) {
		struct rule *r = &d->rules[d->n_rules];
		int e;

		if (!scan_u64(items[i].name, items[i].name_len, &r->id))
			continue;
		e = acl_decode(items[i].value, items[i].value_len, &r->acl);
		if (e == -ENOMEM)
			return e;
		if (e)
			warnf(d, "ACL rule %" PRIu64 " is damaged: left out", r->id);
		else
			d->n_rules++;
	}
	return 0;
}

static void free_rules(struct dump *d)
{
	for (size_t i = 0; i < d->n_rules; i++)
		acl_fini(&d->rules[i].acl);
	free(d->rules);
	d->rules = NULL;
	d->n_rules = 0;
}

/* rules never change, but there may be new ones, with higher numbers */
static int find_rule(struct dump *d, uint32_t id, const struct acl **ret)
{
	*ret = NULL;
	if (id > d->rules_to) {
		int r;

		free_rules(d);
		r = scan_hash(d->scan, "acl", rules_page, d);
		if (r)
			return r;
		d->rules_to = id;
		for (size_t i = 0; i < d->n_rules; i++)
			d->rules_to = MAX(d->rules_to, d->rules[i].id);
	}
	for (size_t i = 0; i < d->n_rules; i++) {
		if (d->rules[i].id == id) {
			*ret = &d->rules[i].acl;
			return 0;
		}
	}
	warnf(d, "ACL rule %u is missing: left out", id);
	return 0;
}

static int add_rule(struct dump *d, const char *name, uint32_t id, unsigned depth, struct str *out)
{
	const struct acl *a;
	int r = id ? find_rule(d, id, &a) : 0;

	if (r == 0 && id && a) {
		str_add(out, ",");
		dump_line(depth, out);
		str_addf(out, "\"%s\": ", name);
		dump_acl(a, out);
	}
	return r;
}

/* --- records --- */

static int by_xattr(const void *a, const void *b)
{
	const struct scan_item *x = a, *y = b;

	return strcmp(x->name, y->name);
}

static int add_xattrs(struct dump *d, uint64_t inode, const struct redis_reply *r, unsigned depth,
		      struct str *out)
{
	_cleanup_(str_fini) struct str value = STR_INIT;
	size_t n = reply_len(r) / 2, kept = 0;
	struct scan_item *x = n ? calloc(n, sizeof(*x)) : NULL;

	if (n && !x)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		x[kept].name = reply_text(reply_at(r, 2 * i), &x[kept].name_len);
		x[kept].value = reply_text(reply_at(r, 2 * i + 1), &x[kept].value_len);
		kept += x[kept].name && x[kept].value;
	}
	if (kept) {
		qsort(x, kept, sizeof(*x), by_xattr);
		str_add(out, ",");
		dump_line(depth, out);
		str_add(out, "\"xattrs\": [");
	}
	for (size_t i = 0; i < kept; i++) {
		str_add(out, i ? ",{\"name\":" : "{\"name\":");
		dump_string(x[i].name, x[i].name_len, out);
		if (!dump_is_utf8(x[i].name, x[i].name_len))
			warnf(d,
			      "the name of an xattr of inode %" PRIu64
			      " is not UTF-8: the format cannot keep it",
			      inode);
		str_reset(&value);
		dump_escape(x[i].value, x[i].value_len, &value);
		str_add(out, ",\"value\":");
		dump_string(str_c(&value), value.len, out);
		str_add(out, "}");
	}
	if (kept)
		str_add(out, "]");
	free(x);
	return str_error(&value);
}

/* appends a chunk's line to text when its list holds something */
static int add_chunk(struct dump *d, uint64_t inode, uint32_t index, const struct redis_reply *r,
		     size_t *n_chunks, struct str *text)
{
	size_t n = reply_len(r), len;
	struct slice *s;

	if (n == 0)
		return 0;
	s = calloc(n, sizeof(*s));
	if (!s)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		const char *p = reply_text(reply_at(r, i), &len);

		if (!p || slice_decode((const uint8_t *)p, len, &s[i]) < 0) {
			warnf(d, "chunk %u of inode %" PRIu64 " is damaged: left out", index,
			      inode);
			n = 0;
		}
	}
	if (*n_chunks)
		str_add(text, "\n");
	(*n_chunks)++;
	dump_chunk(index, s, n, text);
	free(s);
	return 0;
}

static int indexes_page(void *arg, size_t n, const struct scan_item *items)
{
	struct str *list = arg;
	uint64_t index;

	for (size_t i = 0; i < n; i++) {
		const char *under = strchr(items[i].name, '_');

		if (under && scan_u64(under + 1, strlen(under + 1), &index) && index <= UINT32_MAX)
			str_addn(list, &(uint32_t){(uint32_t)index}, sizeof(uint32_t));
	}
	return str_error(list);
}

static int by_u32(const void *a, const void *b)
{
	const uint32_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

/* which chunks behind the first to ask for */
static int indexes(struct dump *d, uint64_t inode, uint64_t length, struct str *list)
{
	uint64_t n = (length + CHUNK_SIZE - 1) / CHUNK_SIZE;
	char pattern[40];
	int r = 0;

	if (n <= CHUNKS_MAX) {
		for (uint32_t i = 1; i < n; i++)
			str_addn(list, &i, sizeof(i));
		return str_error(list);
	}
	(void)snprintf(pattern, sizeof(pattern), "c%" PRIu64 "_*", inode);
	r = scan_keys(d->scan, pattern, indexes_page, list);
	if (r == 0 && list->len)
		qsort(list->s, list->len / sizeof(uint32_t), sizeof(uint32_t), by_u32);
	return r;
}

static int add_far_chunks(struct dump *d, uint64_t inode, uint64_t length, size_t *n_chunks,
			  struct str *text)
{
	_cleanup_(str_fini) struct str list = STR_INIT;
	uint64_t end = (length + CHUNK_SIZE - 1) / CHUNK_SIZE;
	uint32_t last = 0, index[BATCH];
	struct pipe p;
	int r = indexes(d, inode, length, &list);

	pipe_init(&p, d->scan);
	for (size_t at = 0; at < list.len && r == 0;) {
		size_t n = 0;

		pipe_reset(&p);
		for (; n < BATCH && at < list.len; at += sizeof(uint32_t)) {
			char key[40];

			memcpy(&index[n], list.s + at, sizeof(uint32_t));
			if (index[n] <= last || index[n] >= end)
				continue;
			last = index[n];
			(void)snprintf(key, sizeof(key), "c%" PRIu64 "_%u", inode, index[n++]);
			pipe_add(&p, "LRANGE", key, "0", "-1", (char *)NULL);
		}
		r = pipe_run(&p);
		for (size_t i = 0; i < n && r == 0; i++)
			r = add_chunk(d, inode, index[i], p.reply[i], n_chunks, text);
	}
	pipe_fini(&p);
	return r;
}

/* one chunk lies on the line, several on lines of their own */
static void add_chunks(size_t n, const struct str *text, unsigned depth, struct str *out)
{
	const char *p = str_c(text);

	if (n == 0)
		return;
	str_add(out, ",");
	dump_line(depth, out);
	str_add(out, "\"chunks\": [");
	while (n > 1 && *p) {
		const char *nl = strchrnul(p, '\n');

		dump_line(depth + 1, out);
		str_addn(out, p, (size_t)(nl - p));
		if (!*nl)
			break;
		str_add(out, ",");
		p = nl + 1;
	}
	if (n == 1)
		str_addn(out, text->s, text->len);
	else
		dump_line(depth, out);
	str_add(out, "]");
}

static void add_target(struct dump *d, uint64_t inode, const struct redis_reply *r, unsigned depth,
		       struct str *out)
{
	size_t n;
	const char *target = reply_text(r, &n);

	if (!target)
		warnf(d, "the target of symlink %" PRIu64 " is missing", inode);
	if (!target || n == 0)
		return;
	str_add(out, ",");
	dump_line(depth, out);
	str_add(out, "\"symlink\": \"");
	dump_escape(target, n, out);
	str_add(out, "\"");
}

static int add_file(struct dump *d, uint64_t inode, uint64_t length,
		    const struct redis_reply *first, unsigned depth, struct str *out)
{
	_cleanup_(str_fini) struct str chunks = STR_INIT;
	size_t n = 0;
	int r = length ? add_chunk(d, inode, 0, first, &n, &chunks) : 0;

	if (r == 0 && length > CHUNK_SIZE)
		r = add_far_chunks(d, inode, length, &n, &chunks);
	if (r == 0)
		add_chunks(n, &chunks, depth, out);
	return r ? r : str_error(&chunks);
}

/* what the volume says of an entry; without a record it is an empty one of the entry's type */
static void take_attr(struct dump *d, const struct listed *e, const struct redis_reply *r,
		      struct attr *ret)
{
	size_t n;
	const char *p = reply_text(r, &n);

	if (p && attr_decode((const uint8_t *)p, n, ret) == 0)
		return;
	if (e->inode != INODE_TRASH)
		warnf(d, "inode %" PRIu64 " has no attributes", e->inode);
	*ret = (struct attr){.type = e->type, .nlink = e->type == INODE_DIR ? 2 : 1};
}

/* replies: of ask() */
static int take(struct dump *d, const struct listed *e, struct redis_reply *const *reply,
		unsigned depth, struct record *rec)
{
	int r = 0;

	take_attr(d, e, reply[0], &rec->attr);
	if (rec->attr.type != e->type) {
		warnf(d, "inode %" PRIu64 " is not of the kind that its entry says", e->inode);
		rec->attr.type = e->type;
	}
	if (e->type == INODE_SYMLINK)
		add_target(d, e->inode, reply[2], depth, &rec->text);
	r = add_xattrs(d, e->inode, reply[1], depth, &rec->text);
	if (r == 0)
		r = add_rule(d, "posix_acl_access", rec->attr.access_acl, depth, &rec->text);
	if (r == 0)
		r = add_rule(d, "posix_acl_default", rec->attr.default_acl, depth, &rec->text);
	if (r == 0 && e->type == INODE_FILE)
		r = add_file(d, e->inode, rec->attr.length, reply[2], depth, &rec->text);
	if (r == 0 && e->type == INODE_DIR) {
		r = listing_from_reply(reply[2], &rec->listing);
		rec->has_listing = r == 0;
		r = r == -EAGAIN ? 0 : r;
	}
	return r ? r : str_error(&rec->text);
}

/* three reads an entry */
static void ask(struct pipe *p, const struct listed *e)
{
	char key[40];

	pipe_add_inode(p, "GET", "i", e->inode);
	pipe_add_inode(p, "HGETALL", "x", e->inode);
	(void)snprintf(key, sizeof(key), e->type == INODE_FILE ? "c%" PRIu64 "_0" : "d%" PRIu64,
		       e->inode);
	if (e->type == INODE_FILE)
		pipe_add(p, "LRANGE", key, "0", "-1", (char *)NULL);
	else if (e->type == INODE_DIR)
		pipe_add(p, "HSCAN", key, "0", "COUNT", "1000", (char *)NULL);
	else if (e->type == INODE_SYMLINK)
		pipe_add_inode(p, "GET", "s", e->inode);
	else
		pipe_add(p, "EXISTS", "setting", (char *)NULL);
}

static void record_fini(struct record *r)
{
	listing_fini(&r->listing);
	str_fini(&r->text);
	*r = (struct record){.has_listing = false};
}

static int read_records(struct dump *d, struct level *l)
{
	struct pipe p;
	int r;

	for (size_t i = 0; i < l->n; i++)
		record_fini(&l->records[i]);
	l->from = l->next;
	l->n = MIN((size_t)BATCH, l->list.n - l->from);
	pipe_init(&p, d->scan);
	for (size_t i = 0; i < l->n; i++)
		ask(&p, &l->list.e[l->from + i]);
	r = pipe_run(&p);
	for (size_t i = 0; i < l->n && r == 0; i++)
		r = take(d, &l->list.e[l->from + i], p.reply + 3 * i, l->depth + 3, &l->records[i]);
	pipe_fini(&p);
	return r;
}

/* --- the walk --- */

static void begin_entry(const char *name, size_t n, uint64_t inode, const struct record *rec,
			unsigned depth, struct str *out)
{
	dump_line(depth, out);
	str_add(out, "\"");
	dump_escape(name, n, out);
	str_add(out, "\": {");
	dump_line(depth + 1, out);
	str_add(out, "\"attr\": ");
	dump_attr(inode, &rec->attr, out);
	str_addn(out, str_c(&rec->text), rec->text.len);
}

static void level_free(struct level *l)
{
	for (size_t i = 0; i < l->n; i++)
		record_fini(&l->records[i]);
	listing_fini(&l->list);
	free(l);
}

/* what leads back to l or above it would be dumped without end */
static void drop_rings(struct level *l)
{
	struct listing *list = &l->list;
	size_t kept = 0;

	for (size_t i = 0; i < list->n; i++) {
		const struct level *up = list->e[i].type == INODE_DIR ? l : NULL;

		while (up && up->inode != list->e[i].inode)
			up = up->up;
		if (!up)
			list->e[kept++] = list->e[i];
	}
	list->damaged += list->n - kept;
	list->n = kept;
}

/* begins a directory whose record was read: its entries come next */
static int descend(struct dump *d, uint64_t inode, struct record *rec, unsigned depth,
		   struct level **top)
{
	struct level *l = calloc(1, sizeof(*l));
	int r = 0;

	if (!l)
		return -ENOMEM;
	l->inode = inode;
	l->depth = depth;
	l->list = rec->listing;
	if (rec->has_listing)
		rec->listing = (struct listing){.e = NULL};
	else
		r = listing_read(d->scan, inode, &l->list);
	l->up = *top;
	drop_rings(l);
	if (l->list.damaged)
		warnf(d, "%zu entries of directory %" PRIu64 " are damaged: left out",
		      l->list.damaged, inode);
	str_add(&d->out, ",");
	dump_line(depth + 1, &d->out);
	str_add(&d->out, "\"entries\": {");
	*top = l;
	return r;
}

static int step(struct dump *d, struct level **top)
{
	struct level *l = *top;
	const struct listed *e;
	struct record *rec;
	int r = 0;

	if (l->next == l->list.n) {
		dump_line(l->depth + 1, &d->out);
		str_add(&d->out, "}");
		dump_line(l->depth, &d->out);
		str_add(&d->out, "}");
		*top = l->up;
		level_free(l);
		return 0;
	}
	if (l->next == l->from + l->n)
		r = read_records(d, l);
	if (r)
		return r;
	e = &l->list.e[l->next];
	rec = &l->records[l->next - l->from];
	if (l->next++)
		str_add(&d->out, ",");
	begin_entry(listing_name(&l->list, l->next - 1), e->name_len, e->inode, rec, l->depth + 2,
		    &d->out);
	__atomic_fetch_add(&d->progress->files, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&d->progress->bytes, rec->attr.type == INODE_FILE ? rec->attr.length : 0,
			   __ATOMIC_RELAXED);
	if (e->type == INODE_DIR)
		return descend(d, e->inode, rec, l->depth + 2, top);
	dump_line(l->depth + 2, &d->out);
	str_add(&d->out, "}");
	return flush(d, FLUSH_BYTES);
}

static int tree(struct dump *d, const char *name, uint64_t inode)
{
	struct listed e = {.inode = inode, .type = INODE_DIR};
	struct record rec = {.has_listing = false};
	struct level *top = NULL;
	struct pipe p;
	int r;

	pipe_init(&p, d->scan);
	ask(&p, &e);
	r = pipe_run(&p);
	if (r == 0)
		r = take(d, &e, p.reply, 2, &rec);
	pipe_fini(&p);
	if (r == 0) {
		begin_entry(name, strlen(name), inode, &rec, 1, &d->out);
		r = descend(d, inode, &rec, 1, &top);
	}
	record_fini(&rec);
	while (top && r == 0)
		r = step(d, &top);
	while (top) {
		struct level *l = top;

		top = l->up;
		level_free(l);
	}
	return r;
}

int scan_resolve(const struct scan *s, const char *path, uint64_t *ret_inode, uint8_t *ret_type)
{
	uint64_t inode = INODE_ROOT;
	uint8_t type = INODE_DIR;

	while (*(path += strspn(path, "/"))) {
		_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
		size_t n = strcspn(path, "/"), len;
		const char *v;
		int r;

		if (type != INODE_DIR)
			return -ENOTDIR;
		if (inode == INODE_ROOT && n == 6 && memcmp(path, ".trash", 6) == 0) {
			inode = INODE_TRASH;
			path += n;
			continue;
		}
		r = redis_once(s->redis, clock_us() + s->timeout_us, &reply, "HGET %sd%llu %b",
			       s->prefix, (unsigned long long)inode, path, n);
		if (r)
			return r;
		v = reply_text(reply, &len);
		if (!v)
			return -ENOENT;
		if (entry_decode((const uint8_t *)v, len, &type, &inode) < 0)
			return -EIO;
		path += n;
	}
	*ret_inode = inode;
	*ret_type = type;
	return 0;
}

int meta_dump(const struct scan *s, const struct setting *set, const struct dump_conf *conf,
	      struct dumpfile *out, struct meta_progress *p, struct str *err)
{
	struct dump d = {.scan = s, .conf = conf, .file = out, .progress = p};
	uint64_t root = INODE_ROOT;
	uint8_t type = INODE_DIR;
	int r = conf->subdir ? scan_resolve(s, conf->subdir, &root, &type) : 0;

	if (r == 0 && type != INODE_DIR)
		r = -ENOTDIR;
	if (r) {
		str_addf(err, "%s: %s", conf->subdir, strerror(-r));
		return r;
	}
	r = dump_head(s, set, conf, root == INODE_ROOT, &d.out);
	if (r == 0)
		r = tree(&d, "FSTree", root);
	if (r == 0 && root == INODE_ROOT && !conf->skip_trash) {
		str_add(&d.out, ",");
		r = tree(&d, "Trash", INODE_TRASH);
	}
	str_add(&d.out, "\n}\n");
	if (r == 0)
		r = flush(&d, 0);
	free_rules(&d);
	str_fini(&d.out);
	if (r && err->len == 0)
		str_addf(err, "%s", strerror(-r));
	return r;
}
