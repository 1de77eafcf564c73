/* SPDX-License-Identifier: Apache-2.0 */
/* Levels lie on the heap, so that depth costs no stack. One thread. */
#include "client/maint/walk.h"

#include <inttypes.h>

#include "client/maint/listing.h"
#include "client/meta/reply.h"

enum { RECORDS_AT_ONCE = 500, DEPTH_MAX = 4096 };

struct level {
	struct level *up;
	struct walk_dir dir;
	struct str path;
	struct listing list;
	size_t next, from;
	struct pipe records; /* of entries [from, from + n) */
};
struct walk {
	const struct scan *scan;
	const struct walk_ops *ops;
	void *arg;
	bool recursive;
	struct level *top;
};

static void level_free(struct level *l)
{
	free(l->dir.record);
	str_fini(&l->path);
	listing_fini(&l->list);
	pipe_fini(&l->records);
	free(l);
}

static int set_record(struct walk_dir *d, const struct redis_reply *r)
{
	size_t n;
	const char *p = reply_text(r, &n);

	d->has_attr = p && attr_decode((const uint8_t *)p, n, &d->attr) == 0;
	if (!p)
		return 0;
	d->record = malloc(n + 1);
	if (!d->record)
		return -ENOMEM;
	memcpy(d->record, p, n);
	d->record_len = n;
	return 0;
}

/* path: of the directory above, and its name */
static int push(struct walk *w, uint64_t inode, uint64_t parent, const char *path, const char *name,
		const struct redis_reply *record)
{
	struct level *l = calloc(1, sizeof(*l));
	int r;

	if (!l)
		return -ENOMEM;
	pipe_init(&l->records, w->scan);
	l->dir.inode = inode;
	l->dir.parent = parent;
	str_add(&l->path, path);
	if (*name && (l->path.len == 0 || l->path.s[l->path.len - 1] != '/'))
		str_add(&l->path, "/");
	str_add(&l->path, name);
	l->dir.path = str_c(&l->path);
	l->up = w->top;
	l->dir.depth = w->top ? w->top->dir.depth + 1 : 0;
	w->top = l;
	r = set_record(&l->dir, record);
	if (r == 0)
		r = str_error(&l->path);
	if (r == 0)
		r = listing_read(w->scan, inode, &l->list);
	l->dir.damaged = l->list.damaged;
	return r;
}

/* whether an entry leads back to a directory that the walk is in: nothing else makes a ring */
static bool is_above(const struct walk *w, uint64_t inode)
{
	for (const struct level *l = w->top; l; l = l->up) {
		if (l->dir.inode == inode)
			return true;
	}
	return false;
}

static int read_records(struct level *l)
{
	pipe_reset(&l->records);
	l->from = l->next;
	for (size_t i = l->next; i < MIN(l->list.n, l->next + RECORDS_AT_ONCE); i++)
		pipe_add_inode(&l->records, "GET", "i", l->list.e[i].inode);
	return pipe_run(&l->records);
}

static int pop(struct walk *w)
{
	struct level *l = w->top;
	int r = w->ops->leave ? w->ops->leave(w->arg, &l->dir) : 0;

	w->top = l->up;
	if (l->up) {
		l->up->dir.all_length += l->dir.all_length;
		l->up->dir.all_space += l->dir.all_space;
		l->up->dir.all_dirs += l->dir.all_dirs;
		l->up->dir.all_inodes += l->dir.all_inodes;
	}
	level_free(l);
	return r;
}

static int step(struct walk *w)
{
	struct level *l = w->top;
	const struct redis_reply *record;
	const struct listed *e;
	const char *name, *p;
	struct attr attr;
	int64_t space;
	size_t n;
	bool has;
	int r = 0;

	if (l->next == l->list.n)
		return pop(w);
	if (l->next == l->from + l->records.n)
		r = read_records(l);
	if (r)
		return r;
	e = &l->list.e[l->next];
	name = listing_name(&l->list, l->next);
	record = l->records.reply[l->next++ - l->from];
	p = reply_text(record, &n);
	has = p && attr_decode((const uint8_t *)p, n, &attr) == 0;
	space = (int64_t)align4k(has && e->type == INODE_FILE ? attr.length : 0);
	l->dir.subdirs += e->type == INODE_DIR;
	l->dir.length += has && e->type == INODE_FILE ? (int64_t)attr.length : 0;
	l->dir.space += space;
	l->dir.inodes++;
	l->dir.all_space += space;
	l->dir.all_dirs += e->type == INODE_DIR;
	l->dir.all_length += has && e->type == INODE_FILE ? (int64_t)attr.length : 0;
	l->dir.all_inodes++;
	if (w->ops->entry)
		r = w->ops->entry(w->arg, &l->dir, name, e->inode, e->type, has ? &attr : NULL);
	if (r || e->type != INODE_DIR || !w->recursive)
		return r;
	if (is_above(w, e->inode)) {
		l->dir.damaged++;
		return 0;
	}
	return push(w, e->inode, l->dir.inode, l->dir.path, name, record);
	return r;
}

int walk_tree(const struct scan *s, uint64_t inode, const char *path, bool recursive,
	      const struct walk_ops *ops, void *arg)
{
	struct walk w = {.scan = s, .ops = ops, .arg = arg, .recursive = recursive};
	struct pipe p;
	int r;

	pipe_init(&p, s);
	pipe_add_inode(&p, "GET", "i", inode);
	r = pipe_run(&p);
	if (r == 0)
		r = push(&w, inode, 0, path, "", p.reply[0]);
	if (r == 0)
		w.top->dir.parent = w.top->dir.attr.parent;
	pipe_fini(&p);
	while (w.top && r == 0)
		r = step(&w);
	while (w.top) {
		struct level *l = w.top;

		w.top = l->up;
		level_free(l);
	}
	return r;
}

/* --- upwards --- */

struct wanted {
	uint64_t inode;
	struct str name;
};

static int find_name(void *arg, size_t n, const struct scan_item *items)
{
	struct wanted *w = arg;

	for (size_t i = 0; i < n; i++) {
		uint64_t inode;
		uint8_t type;

		if (entry_decode((const uint8_t *)items[i].value, items[i].value_len, &type,
				 &inode) == 0 &&
		    inode == w->inode) {
			str_reset(&w->name);
			str_addn(&w->name, items[i].name, items[i].name_len);
			return 1;
		}
	}
	return 0;
}

/* parents of a file with several names; the first that has one */
static int named_in(const struct scan *s, const struct redis_reply *parents, struct wanted *w,
		    uint64_t *ret)
{
	for (size_t i = 0; i + 1 < reply_len(parents); i += 2) {
		char key[32];
		size_t n;
		const char *text = reply_text(reply_at(parents, i), &n);
		int r;

		if (!text || !scan_u64(text, n, ret) || reply_int(reply_at(parents, i + 1)) <= 0)
			continue;
		(void)snprintf(key, sizeof(key), "d%" PRIu64, *ret);
		r = scan_hash(s, key, find_name, w);
		if (r)
			return r;
	}
	return 0;
}

/* 1: found; 0: not */
static int parent_of(const struct scan *s, struct wanted *w, uint64_t *ret)
{
	struct attr a;
	struct pipe p;
	size_t n;
	const char *v;
	char key[32];
	int r;

	pipe_init(&p, s);
	pipe_add_inode(&p, "GET", "i", w->inode);
	pipe_add_inode(&p, "HGETALL", "p", w->inode);
	r = pipe_run(&p);
	if (r == 0) {
		v = reply_text(p.reply[0], &n);
		if (w->inode == INODE_TRASH) {
			*ret = INODE_ROOT;
			str_reset(&w->name);
			str_add(&w->name, ".trash");
			r = 1;
		} else if (!v || attr_decode((const uint8_t *)v, n, &a) < 0) {
			r = 0;
		} else if (a.parent) {
			*ret = a.parent;
			(void)snprintf(key, sizeof(key), "d%" PRIu64, a.parent);
			r = scan_hash(s, key, find_name, w);
		} else {
			r = named_in(s, p.reply[1], w, ret);
		}
	}
	pipe_fini(&p);
	return r;
}

int walk_path(const struct scan *s, uint64_t inode, struct str *out)
{
	_cleanup_(str_fini) struct str path = STR_INIT;
	struct wanted w = {.inode = inode, .name = STR_INIT};
	int r = 1;

	for (int depth = 0; w.inode != INODE_ROOT && r == 1; depth++) {
		struct str more = STR_INIT;
		uint64_t parent = 0;

		r = depth < DEPTH_MAX ? parent_of(s, &w, &parent) : 0;
		if (r != 1)
			break;
		str_addf(&more, "/%s%s", str_c(&w.name), str_c(&path));
		str_fini(&path);
		path = more;
		w.inode = parent;
	}
	str_fini(&w.name);
	if (r == 1)
		str_add(out, path.len ? str_c(&path) : "/");
	if (r == 1)
		return str_error(out);
	return r == 0 ? -ENOENT : r;
}
