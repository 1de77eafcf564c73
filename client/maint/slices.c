/* SPDX-License-Identifier: Apache-2.0 */
/* One thread; blocks. */
#include "client/maint/slices.h"

#include <inttypes.h>

#include "client/meta/reply.h"
#include "common/block/key.h"

enum { LISTS_AT_ONCE = 500, ENTRY12 = 12, CHUNKS_MAX = 10000 };

void slices_fini(struct slices *s)
{
	numtable_fini(&s->slice);
	numtable_fini(&s->deleted);
	numtable_fini(&s->by_id);
	numtable_fini(&s->again);
	free(s->leaked);
	*s = (struct slices){.leaked = NULL};
}

/* --- lists --- */

bool slices_chunk_key(const struct scan_item *it, uint64_t *ret_inode, uint32_t *ret_index)
{
	const char *under = memchr(it->name, '_', it->name_len);
	uint64_t index;

	if (!under || it->name_len < 4 || it->name[0] != 'c' ||
	    !scan_u64(it->name + 1, (size_t)(under - it->name) - 1, ret_inode) ||
	    !scan_u64(under + 1, it->name_len - (size_t)(under + 1 - it->name), &index) ||
	    index > UINT32_MAX)
		return false;
	*ret_index = (uint32_t)index;
	return true;
}

int slices_of_list(const struct redis_reply *list, uint64_t inode, uint32_t index, slices_fn *fn,
		   void *arg)
{
	for (size_t i = 0; i < reply_len(list); i++) {
		struct slice s;
		size_t n;
		const char *p = reply_text(reply_at(list, i), &n);
		int r;

		if (!p || slice_decode((const uint8_t *)p, n, &s) < 0)
			return -EPROTO;
		r = s.id ? fn(arg, inode, index, &s) : 0;
		if (r)
			return r;
	}
	return 0;
}

struct each {
	const struct scan *scan;
	slices_fn *fn;
	void *arg;
};

static int each_lists(const struct each *e, const struct scan_item *items, size_t n)
{
	uint64_t inode[LISTS_AT_ONCE] = {0};
	uint32_t index[LISTS_AT_ONCE] = {0};
	struct pipe p;
	int r;

	pipe_init(&p, e->scan);
	for (size_t i = 0; i < n; i++) {
		if (slices_chunk_key(&items[i], &inode[p.n], &index[p.n]))
			pipe_add(&p, "LRANGE", items[i].name, "0", "-1", (char *)NULL);
	}
	r = pipe_run(&p);
	for (size_t i = 0; i < p.n && r == 0; i++) {
		r = slices_of_list(p.reply[i], inode[i], index[i], e->fn, e->arg);
		r = r == -EPROTO ? 0 : r;
	}
	pipe_fini(&p);
	return r;
}

static int each_page(void *arg, size_t n, const struct scan_item *items)
{
	int r = 0;

	for (size_t at = 0; at < n && r == 0; at += LISTS_AT_ONCE)
		r = each_lists(arg, items + at, MIN((size_t)LISTS_AT_ONCE, n - at));
	return r;
}

int slices_each(const struct scan *scan, slices_fn *fn, void *arg)
{
	struct each e = {.scan = scan, .fn = fn, .arg = arg};

	return scan_keys(scan, "c[0-9]*_*", each_page, &e);
}

int slices_of_file(const struct scan *scan, uint64_t inode, uint64_t length, slices_fn *fn,
		   void *arg)
{
	struct each e = {.scan = scan, .fn = fn, .arg = arg};
	uint64_t n = (length + CHUNK_SIZE - 1) / CHUNK_SIZE;
	char key[40];
	struct pipe p;
	int r = 0;

	if (n > CHUNKS_MAX) {
		(void)snprintf(key, sizeof(key), "c%" PRIu64 "_*", inode);
		return scan_keys(scan, key, each_page, &e);
	}
	pipe_init(&p, scan);
	for (uint64_t at = 0; at < n && r == 0; at += LISTS_AT_ONCE) {
		pipe_reset(&p);
		for (uint64_t i = at; i < MIN(n, at + LISTS_AT_ONCE); i++) {
			(void)snprintf(key, sizeof(key), "c%" PRIu64 "_%" PRIu64, inode, i);
			pipe_add(&p, "LRANGE", key, "0", "-1", (char *)NULL);
		}
		r = pipe_run(&p);
		for (size_t i = 0; i < p.n && r == 0; i++)
			r = slices_of_list(p.reply[i], inode, (uint32_t)(at + i), fn, arg);
	}
	pipe_fini(&p);
	return r;
}

/* --- everything --- */

struct reading {
	const struct scan *scan;
	struct slices *s;
	struct meta_progress *progress;
	void (*warn)(void *arg, const char *line);
	void *warn_arg;
	enum slice_use use;
	size_t cap_leaked;
};

/* one more size of this number */
static int add_size(struct reading *rd, uint64_t id, uint32_t size)
{
	struct numslot *first = numtable_at(&rd->s->by_id, id, 0), *s;
	uint64_t n;
	char line[128];

	if (!first)
		return -ENOMEM;
	n = first->w++;
	s = n ? numtable_at(&rd->s->by_id, id, n) : first; /* first moves */
	if (!s)
		return -ENOMEM;
	s->v = size;
	if (n != 1 || ++rd->s->twice > TWICE_TOLD)
		return 0;
	first = numtable_find(&rd->s->by_id, id, 0);
	(void)snprintf(line, sizeof(line),
		       "slice %" PRIu64 " is there with %" PRIu64 " and with %" PRIu32
		       " bytes: its number was given twice",
		       id, first->v, size);
	rd->warn(rd->warn_arg, line);
	return 0;
}

struct numslot *slices_find(const struct slices *s, uint64_t id, uint32_t index, uint32_t plain,
			    uint32_t block_size)
{
	const struct numslot *size = numtable_find(&s->by_id, id, 0);
	uint64_t n = size ? size->w : 0;

	for (uint64_t i = 0; i < n; i++) {
		size = numtable_find(&s->by_id, id, i);
		if (size && block_size_at(size->v, block_size, index) == plain)
			return numtable_find(&s->slice, id, size->v);
	}
	return NULL;
}

static int add(struct reading *rd, uint64_t id, uint32_t size, uint64_t inode, enum slice_use use)
{
	struct numslot *s = numtable_find(&rd->s->slice, id, size);

	if (s) {
		if (use < slice_use(s)) {
			s->w = (uint64_t)use;
			s->v = inode;
		}
		return 0;
	}
	s = numtable_at(&rd->s->slice, id, size);
	if (!s)
		return -ENOMEM;
	s->v = inode;
	s->w = (uint64_t)use;
	__atomic_fetch_add(&rd->progress->files, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&rd->progress->bytes, size, __ATOMIC_RELAXED);
	return add_size(rd, id, size);
}

/* one of the places that sliceRef counts */
static int add_place(struct reading *rd, uint64_t id, uint32_t size, uint64_t inode,
		     enum slice_use use)
{
	struct numslot *s;

	if (!numtable_find(&rd->s->slice, id, size))
		return add(rd, id, size, inode, use);
	s = numtable_at(&rd->s->again, id, size);
	if (!s)
		return -ENOMEM;
	s->v++;
	return add(rd, id, size, inode, use);
}

static int add_record(void *arg, uint64_t inode, uint32_t index, const struct slice *s)
{
	struct reading *rd = arg;

	(void)index;
	return add_place(rd, s->id, s->size, inode, rd->use);
}

static int add_leaked(struct reading *rd, uint64_t inode, uint32_t index)
{
	struct slices *s = rd->s;

	if (s->n_leaked == rd->cap_leaked) {
		size_t cap = rd->cap_leaked ? rd->cap_leaked * 2 : 64;
		struct leaked_chunk *more = reallocarray(s->leaked, cap, sizeof(*more));

		if (!more)
			return -ENOMEM;
		s->leaked = more;
		rd->cap_leaked = cap;
	}
	s->leaked[s->n_leaked++] = (struct leaked_chunk){inode, index};
	return 0;
}

/* lists and whether their files are there: the list first, so that a file that goes meanwhile is in
 * delfiles when they are looked at again */
static int read_lists(struct reading *rd, const struct scan_item *items, size_t n)
{
	uint64_t inode[LISTS_AT_ONCE];
	uint32_t index[LISTS_AT_ONCE];
	struct pipe p;
	size_t kept = 0;
	int r;

	pipe_init(&p, rd->scan);
	for (size_t i = 0; i < n; i++) {
		if (!slices_chunk_key(&items[i], &inode[kept], &index[kept]))
			continue;
		pipe_add(&p, "LRANGE", items[i].name, "0", "-1", (char *)NULL);
		pipe_add_inode(&p, "EXISTS", "i", inode[kept++]);
	}
	r = pipe_run(&p);
	for (size_t i = 0; i < kept && r == 0; i++) {
		bool there = reply_int(p.reply[2 * i + 1]) > 0;
		char line[96];

		rd->use = there ? SLICE_FILE : SLICE_WAITING;
		r = slices_of_list(p.reply[2 * i], inode[i], index[i], add_record, rd);
		if (r == -EPROTO) {
			(void)snprintf(line, sizeof(line),
				       "inode %" PRIu64 ": the list of chunk %" PRIu32
				       " is damaged",
				       inode[i], index[i]);
			rd->s->damaged++;
			rd->warn(rd->warn_arg, line);
			r = 0;
		}
		if (r == 0 && !there && reply_len(p.reply[2 * i]) > 0)
			r = add_leaked(rd, inode[i], index[i]);
	}
	pipe_fini(&p);
	return r;
}

static int lists_page(void *arg, size_t n, const struct scan_item *items)
{
	int r = 0;

	for (size_t at = 0; at < n && r == 0; at += LISTS_AT_ONCE)
		r = read_lists(arg, items + at, MIN((size_t)LISTS_AT_ONCE, n - at));
	return r;
}

/* members "{inode}:{length}" */
static int deleted_page(void *arg, size_t n, const struct scan_item *items)
{
	struct reading *rd = arg;

	for (size_t i = 0; i < n; i++) {
		const struct scan_item *it = &items[i];
		const char *colon = memchr(it->name, ':', it->name_len);
		uint64_t inode, length;
		struct numslot *s;
		double when = strtod(it->value, NULL);

		if (!colon || !scan_u64(it->name, (size_t)(colon - it->name), &inode) ||
		    !scan_u64(colon + 1, it->name_len - (size_t)(colon + 1 - it->name), &length))
			continue;
		s = numtable_at(&rd->s->deleted, inode, 0);
		if (!s)
			return -ENOMEM;
		if (s->v == 0)
			rd->s->waiting_bytes += length;
		s->v = length;
		s->w = when > 0 && when < 1e15 ? (uint64_t)when & (UINT64_MAX >> 1) : 0;
	}
	return 0;
}

static uint64_t be(const char *p, int n)
{
	uint64_t v = 0;

	for (int i = 0; i < n; i++)
		v = v << 8 | (unsigned char)p[i];
	return v;
}

struct delayed {
	slices_delayed_fn *fn;
	void *arg;
};

static int delayed_page(void *arg, size_t n, const struct scan_item *items)
{
	const struct delayed *d = arg;
	int r = 0;

	for (size_t i = 0; i < n; i++) {
		const struct scan_item *it = &items[i];

		for (size_t at = 0; at + ENTRY12 <= it->value_len && r == 0; at += ENTRY12)
			r = d->fn(d->arg, be(it->value + at, 8),
				  (uint32_t)be(it->value + at + 8, 4));
	}
	return r;
}

int slices_delayed(const struct scan *scan, slices_delayed_fn *fn, void *arg)
{
	struct delayed d = {.fn = fn, .arg = arg};

	return scan_hash(scan, "delSlices", delayed_page, &d);
}

static int add_delayed(void *arg, uint64_t id, uint32_t size)
{
	return add_place(arg, id, size, 0, SLICE_TRASH);
}

/* "k{id}_{size}": below zero there is no reference */
static int refs_page(void *arg, size_t n, const struct scan_item *items)
{
	struct reading *rd = arg;
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++) {
		const struct scan_item *it = &items[i];
		const char *under = memchr(it->name, '_', it->name_len);
		struct numslot *again;
		uint64_t id, size, more;

		if (it->name[0] != 'k' || !under ||
		    !scan_u64(it->name + 1, (size_t)(under - it->name) - 1, &id) ||
		    !scan_u64(under + 1, it->name_len - (size_t)(under + 1 - it->name), &size) ||
		    size > UINT32_MAX || id == 0)
			continue;
		again = numtable_find(&rd->s->again, id, size);
		if (again && scan_u64(it->value, it->value_len, &more))
			again->w = more & (UINT64_MAX >> 1);
		if (it->value[0] == '-')
			r = add(arg, id, (uint32_t)size, 0, SLICE_PENDING);
	}
	return r;
}

/* Lists without a file that do not wait in delfiles, nor came from a file that went meanwhile. */
static int sift_leaked(struct reading *rd)
{
	struct slices *s = rd->s;
	struct pipe p;
	size_t kept = 0, at = 0;
	int r = 0;

	if (s->n_leaked == 0)
		return 0;
	r = scan_zset(rd->scan, "delfiles", deleted_page, rd);
	pipe_init(&p, rd->scan);
	while (at < s->n_leaked && r == 0) {
		struct leaked_chunk asked[LISTS_AT_ONCE];
		size_t n = 0;

		pipe_reset(&p);
		for (; at < s->n_leaked && n < LISTS_AT_ONCE; at++) {
			const struct leaked_chunk *l = &s->leaked[at];
			char key[48];

			if (numtable_find(&s->deleted, l->inode, 0))
				continue;
			asked[n++] = *l;
			(void)snprintf(key, sizeof(key), "c%" PRIu64 "_%" PRIu32, l->inode,
				       l->index);
			pipe_add(&p, "EXISTS", key, (char *)NULL);
			pipe_add_inode(&p, "EXISTS", "i", l->inode);
		}
		r = pipe_run(&p);
		for (size_t i = 0; i < n && r == 0; i++) {
			if (reply_int(p.reply[2 * i]) > 0 && reply_int(p.reply[2 * i + 1]) == 0)
				s->leaked[kept++] = asked[i];
		}
	}
	pipe_fini(&p);
	s->n_leaked = kept;
	return r;
}

int slices_read(const struct scan *scan, struct meta_progress *p,
		void (*warn)(void *arg, const char *line), void *arg, struct slices *ret)
{
	struct slices s = {.leaked = NULL};
	struct reading rd = {.scan = scan, .s = &s, .progress = p, .warn = warn, .warn_arg = arg};
	int r = scan_zset(scan, "delfiles", deleted_page, &rd);

	if (r == 0)
		r = scan_keys(scan, "c[0-9]*_*", lists_page, &rd);
	if (r == 0)
		r = slices_delayed(scan, add_delayed, &rd);
	if (r == 0)
		r = scan_hash(scan, "sliceRef", refs_page, &rd);
	if (r == 0)
		r = sift_leaked(&rd);
	if (r) {
		slices_fini(&s);
		return r;
	}
	*ret = s;
	return 0;
}
