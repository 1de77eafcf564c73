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
