/* SPDX-License-Identifier: Apache-2.0 */
#include "client/maint/inspect.h"

#include <inttypes.h>
#include <stdarg.h>

#include "client/maint/dump_text.h"
#include "client/maint/listing.h"
#include "client/meta/reply.h"
#include "client/meta/slice.h"
#include "client/maint/slices.h"
#include "client/maint/paths.h"
#include "client/maint/walk.h"
#include "common/block/key.h"

struct inspect {
	struct meta *m;
	struct scan scan;
	struct meta_progress *p;
	inspect_fn *emit;
	void *arg;
	bool raw, recursive;
	uint64_t files, dirs, length, size;
	/* records of the chunk that is being read */
	struct slice *records;
	size_t n, cap;
	uint32_t index;
};

static void line(struct inspect *in, const char *fmt, ...) _printf_(2, 3);
static void line(struct inspect *in, const char *fmt, ...)
{
	_cleanup_(freep) char *text = NULL;
	va_list ap;

	va_start(ap, fmt);
	if (vasprintf(&text, fmt, ap) < 0)
		text = NULL;
	va_end(ap);
	if (text)
		in->emit(in->arg, text);
}

static int begin(struct inspect *in, struct meta *m, struct meta_progress *p, inspect_fn *emit,
		 void *arg)
{
	*in = (struct inspect){.m = m, .p = p, .emit = emit, .arg = arg};
	if (!meta_redis(m))
		return -EOPNOTSUPP;
	scan_init(&in->scan, meta_redis(m), &p->cancel);
	return 0;
}

/* --- paths --- */

static int emit_path(struct inspect *in, uint64_t inode)
{
	_cleanup_(str_fini) struct str path = STR_INIT, text = STR_INIT;
	int r = path_of(&in->scan, inode, &path);

	if (r == -ENOENT)
		return 0; /* it has no name, or none that can be found */
	if (r)
		return r;
	dump_escape(path.s, path.len, &text);
	line(in, "path\t%s", str_c(&text));
	return 0;
}

/* every name that a directory has for it */
static int emit_names(struct inspect *in, uint64_t dir, uint64_t inode)
{
	_cleanup_(str_fini) struct str path = STR_INIT, text = STR_INIT;
	struct listing l = {.e = NULL};
	int r = path_of(&in->scan, dir, &path);

	if (r == -ENOENT)
		return 0;
	if (r == 0)
		r = listing_read(&in->scan, dir, &l);
	for (size_t i = 0; i < l.n && r == 0; i++) {
		if (l.e[i].inode != inode)
			continue;
		str_reset(&text);
		if (strcmp(str_c(&path), "/") != 0)
			dump_escape(path.s, path.len, &text);
		str_add(&text, "/");
		dump_escape(listing_name(&l, i), l.e[i].name_len, &text);
		line(in, "path\t%s", str_c(&text));
	}
	listing_fini(&l);
	return r;
}

static int emit_paths(struct inspect *in, uint64_t inode, bool several)
{
	struct pipe p;
	int r;

	if (!several)
		return emit_path(in, inode);
	pipe_init(&p, &in->scan);
	pipe_add_inode(&p, "HGETALL", "p", inode);
	r = pipe_run(&p);
	for (size_t i = 0; r == 0 && i + 1 < reply_len(p.reply[0]); i += 2) {
		uint64_t dir;
		size_t n;
		const char *text = reply_text(reply_at(p.reply[0], i), &n);

		if (text && scan_u64(text, n, &dir) && reply_int(reply_at(p.reply[0], i + 1)) > 0)
			r = emit_names(in, dir, inode);
	}
	pipe_fini(&p);
	return r;
}

/* --- what a file consists of --- */

static int range_line(const struct block_range *r, void *arg)
{
	struct inspect *in = arg;
	const struct setting *set = meta_setting(in->m);
	const struct hash128 any = {{0}};
	char name[BLOCK_NAME_MAX] = "";
	struct block_key k;

	if (r->slice) {
		block_key_init(&k, &any, r->slice, r->index, r->size);
		block_key_object(&k, set->name, set->hash_prefix, name);
	}
	line(in, "object\t%" PRIu32 "\t%s\t%" PRIu32 "\t%" PRIu32 "\t%" PRIu32 "\t%" PRIu32,
	     in->index, name, r->size, r->off, r->len, r->out_off);
	return 0;
}

static int flush_chunk(struct inspect *in)
{
	struct slice_view v;
	uint32_t end = 0;
	int r;

	if (in->n == 0)
		return 0;
	r = slice_view_build(in->records, in->n, &v);
	in->n = 0;
	if (r)
		return r;
	if (v.n)
		end = v.pieces[v.n - 1].pos + v.pieces[v.n - 1].len;
	if (end)
		r = slice_view_ranges(&v, meta_setting(in->m)->block_size, 0, end, range_line, in);
	slice_view_fini(&v);
	return r;
}

static int each_chunk(struct inspect *in, const struct chunk_list *l)
{
	int r = 0;

	in->index = l->index;
	for (size_t i = 0; i < l->n && r == 0; i++) {
		const struct slice *s = &l->slices[i];

		if (in->raw) {
			line(in,
			     "slice\t%" PRIu32 "\t%" PRIu64 "\t%" PRIu32 "\t%" PRIu32 "\t%" PRIu32
			     "\t%" PRIu32,
			     l->index, s->id, s->size, s->off, s->len, s->pos);
			continue;
		}
		if (in->n == in->cap) {
			size_t cap = in->cap ? in->cap * 2 : 64;
			struct slice *more = reallocarray(in->records, cap, sizeof(*more));

			if (!more)
				return -ENOMEM;
			in->records = more;
			in->cap = cap;
		}
		in->records[in->n++] = *s;
	}
	return flush_chunk(in);
}

static int emit_chunks(struct inspect *in, uint64_t inode, uint64_t length)
{
	enum { AT_ONCE = 16 };
	uint64_t n = (length + CHUNK_SIZE - 1) / CHUNK_SIZE;
	int r = 0;

	for (uint64_t at = 0; at < n && r == 0; at += AT_ONCE) {
		struct chunk_list l[AT_ONCE];
		uint32_t k = (uint32_t)MIN((uint64_t)AT_ONCE, n - at);

		if (__atomic_load_n(&in->p->cancel, __ATOMIC_RELAXED))
			return -EINTR;
		r = meta_read(in->m, inode, (uint32_t)at, k, l);
		for (uint32_t i = 0; i < k && r == 0; i++)
			r = each_chunk(in, &l[i]);
		/* lists of a read that failed are not there */
		if (r == 0) {
			for (uint32_t i = 0; i < k; i++)
				chunk_list_fini(&l[i]);
		}
	}
	free(in->records);
	in->records = NULL;
	in->n = in->cap = 0;
	return r;
}

/* --- sums --- */

static int count_entry(void *arg, const struct walk_dir *dir, const char *name, uint64_t inode,
		       uint8_t type, const struct attr *attr)
{
	struct inspect *in = arg;
	uint64_t length = attr && type == INODE_FILE ? attr->length : 0;

	(void)dir;
	(void)name;
	(void)inode;
	in->files += type != INODE_DIR;
	in->dirs += type == INODE_DIR;
	in->length += length;
	in->size += align4k(length);
	__atomic_fetch_add(&in->p->files, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&in->p->bytes, length, __ATOMIC_RELAXED);
	return 0;
}

int meta_inspect(struct meta *m, uint64_t inode, bool recursive, bool raw, struct meta_progress *p,
		 inspect_fn *emit, void *arg)
{
	static const struct walk_ops ops = {.entry = count_entry};
	struct inspect in;
	struct attr a;
	int r = begin(&in, m, p, emit, arg);

	in.raw = raw;
	if (r == 0)
		r = meta_getattr(m, inode, &a);
	if (r)
		return r;
	inode = meta_rooted(m, inode);
	in.size = align4k(a.type == INODE_FILE ? a.length : 0);
	in.length = a.type == INODE_FILE ? a.length : 0;
	in.files = a.type != INODE_DIR;
	in.dirs = a.type == INODE_DIR;
	if (a.type == INODE_DIR)
		r = walk_tree(&in.scan, inode, "/", recursive, &ops, &in);
	if (r)
		return r;
	line(&in, "inode\t%" PRIu64, inode);
	line(&in, "type\t%s", dump_type_name(a.type));
	line(&in, "files\t%" PRIu64, in.files);
	line(&in, "dirs\t%" PRIu64, in.dirs);
	line(&in, "length\t%" PRIu64, in.length);
	line(&in, "size\t%" PRIu64, in.size);
	r = emit_paths(&in, inode, a.type != INODE_DIR && a.parent == 0);
	if (r)
		return r;
	line(&in, "tier\t%u", a.tier);
	return a.type == INODE_FILE ? emit_chunks(&in, inode, a.length) : 0;
}
