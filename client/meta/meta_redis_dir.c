/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a directory: HSCAN to the end, names once (a hash that is being resized repeats some),
 * then the records in batches. Any thread that may block. */
#include "client/meta/tree.h"

#include "common/clock.h"
#include "common/hash.h"

enum { SCAN_COUNT = 10000, RECORD_BATCH = 1000 };

/* entries grow by doubling; names lie one after the other in a str, found by offset until that is
 * complete */
struct listing {
	struct meta_entry *e;
	size_t *at; /* offset of each name */
	size_t n, cap;
	struct str names;
	size_t damaged; /* left out */
};

static int listing_grow(struct listing *l)
{
	size_t cap = l->cap ? l->cap * 2 : 256;
	struct meta_entry *e = reallocarray(l->e, cap, sizeof(*e));
	size_t *at;

	if (!e)
		return -ENOMEM;
	l->e = e;
	at = reallocarray(l->at, cap, sizeof(*at));
	if (!at)
		return -ENOMEM;
	l->at = at;
	l->cap = cap;
	return 0;
}

static int listing_add(struct listing *l, const struct redis_reply *name,
		       const struct redis_reply *value)
{
	size_t n = 0, len = 0;
	const char *s = name ? reply_text(name, &n) : NULL;
	const char *v = value ? reply_text(value, &len) : NULL;
	uint64_t inode;
	uint8_t type;
	int r;

	/* one that is damaged must not hide the others */
	if (!s || n == 0 || n > NAME_LEN_MAX || memchr(s, '/', n) || memchr(s, '\0', n) || !v ||
	    entry_decode((const uint8_t *)v, len, &type, &inode)) {
		l->damaged++;
		return 0;
	}
	if (l->n == l->cap) {
		r = listing_grow(l);
		if (r)
			return r;
	}
	l->at[l->n] = l->names.len;
	str_addn(&l->names, s, n);
	str_addn(&l->names, "", 1);
	l->e[l->n++] = (struct meta_entry){.inode = inode, .attr.type = type, .name_len = n};
	return str_error(&l->names);
}

static int listing_page(void *arg, const struct redis_reply *page)
{
	struct listing *l = arg;
	int r = 0;

	if (!page) { /* the beginning, perhaps again */
		l->n = l->damaged = 0;
		str_reset(&l->names);
		return 0;
	}
	for (size_t i = 0; i + 1 < reply_len(page) && !r; i += 2)
		r = listing_add(l, reply_at(page, i), reply_at(page, i + 1));
	return r;
}

static int listing_scan(struct meta_redis *mr, uint64_t inode, struct listing *l)
{
	char key[48];

	snprintf(key, sizeof(key), "%sd%llu", mr->prefix, (unsigned long long)inode);
	return op_error(redis_pages(mr->redis, mr->base.conf.timeout_us, "HSCAN", key, NULL,
				    SCAN_COUNT, listing_page, l));
}

/* names become pointers, and those seen before go */
static int listing_unique(struct listing *l)
{
	size_t slots = 16, kept = 0;
	uint32_t *table; /* entry number + 1 */

	if (l->n >= UINT32_MAX)
		return -ENOMEM;
	while (slots < l->n * 2)
		slots *= 2;
	table = calloc(slots, sizeof(*table));
	if (!table)
		return -ENOMEM;
	for (size_t i = 0; i < l->n; i++) {
		struct meta_entry e = l->e[i];
		size_t h;

		e.name = l->names.s + l->at[i];
		h = hash64(e.name, e.name_len) & (slots - 1);
		while (table[h] && strcmp(l->e[table[h] - 1].name, e.name) != 0)
			h = (h + 1) & (slots - 1);
		if (table[h])
			continue;
		l->e[kept++] = e;
		table[h] = (uint32_t)kept;
	}
	l->n = kept;
	free(table);
	return 0;
}

/* the records of n entries, and what tells whether they are of the mark's volume: -ESTALE if not */
static int listing_records(struct meta_redis *mr, const struct mark *k, struct meta_entry *e,
			   size_t n)
{
	_cleanup_(str_fini) struct str keys = STR_INIT;
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	const char *v[RECORD_BATCH + 3] = {"MGET"};
	size_t len[RECORD_BATCH + 3] = {4};
	int r;

	for (size_t i = 0; i < n + 2; i++) {
		size_t before = keys.len;

		if (i < n)
			str_addf(&keys, "%si%llu", mr->prefix, (unsigned long long)e[i].inode);
		else
			str_addf(&keys, "%s%s", mr->prefix, i == n ? "_gen" : mark_key(k));
		len[1 + i] = keys.len - before;
		str_addn(&keys, "", 1);
	}
	if (str_error(&keys))
		return -ENOMEM;
	for (size_t i = 0, at = 0; i < n + 2; i++) {
		v[1 + i] = keys.s + at;
		at += len[1 + i] + 1;
	}
	r = op_cmdv(mr, (int)(n + 3), v, len, &reply);
	if (!r && !mark_fits(k, reply_at(reply, n), reply_at(reply, n + 1)))
		r = -ESTALE;
	if (r)
		return r;
	for (size_t i = 0; i < n; i++) {
		struct attr a;

		if (!reply_attr(reply_at(reply, i), &a)) {
			e[i].attr = a;
			e[i].full = true;
		}
	}
	return 0;
}

static int listing_read(struct meta_redis *mr, uint64_t inode, bool with_attr, struct listing *l)
{
	size_t i = 0, n;
	struct mark k;
	int r = mark_take(mr, &k);

	if (!r)
		r = listing_scan(mr, inode, l);
	if (!r)
		r = listing_unique(l);
	while (!r) {
		n = with_attr ? MIN(l->n - i, (size_t)RECORD_BATCH) : 0;
		r = listing_records(mr, &k, l->e + i, n);
		i += n;
		if (n < RECORD_BATCH)
			break;
	}
	if (r == -ESTALE && generation_check(mr, &k, op_deadline(mr)))
		r = -EIO;
	return r;
}

static void listing_fini(struct listing *l)
{
	free(l->e);
	free(l->at);
	str_fini(&l->names);
	*l = (struct listing){.names = STR_INIT};
}

int redis_readdir(struct meta *m, uint64_t inode, bool with_attr, struct meta_dir **ret)
{
	struct meta_redis *mr = redis_engine(m);
	struct meta_dir *d = calloc(1, sizeof(*d));
	struct listing l = {.names = STR_INIT};
	uint64_t begin = clock_us();
	int r = -ESTALE;

	if (!d)
		return -ENOMEM;
	for (int i = 0; i < MARK_TRIES && r == -ESTALE; i++) {
		listing_fini(&l);
		r = listing_read(mr, inode, with_attr, &l);
	}
	metric_observe_us(mr->seconds[OP_READDIR], clock_us() - begin);
	if (r) {
		listing_fini(&l);
		free(d);
		return r == -ESTALE ? -EIO : r;
	}
	if (l.damaged)
		tree_damaged(inode, l.damaged);
	free(l.at);
	d->n = l.n;
	d->entries = l.e;
	d->names = l.names.s; /* the entries' names point into it */
	*ret = d;
	return 0;
}
