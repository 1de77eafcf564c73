/* SPDX-License-Identifier: Apache-2.0 */
/* Records that nobody names, and what waits in the trash. */
#include "client/cmd/gc.h"

#include <inttypes.h>

#include "client/maint/surplus.h"
#include "client/meta/reply.h"
#include "client/maint/walk.h"

enum { AT_ONCE = 500 };

struct names {
	struct gc *g;
	struct numtable named; /* inodes that a directory or a session has */
	struct numtable *lost; /* records that nobody has */
};

/* --- who is named --- */

static int name_it(struct names *n, uint64_t inode)
{
	return numtable_at(&n->named, inode, 0) ? 0 : -ENOMEM;
}

static int entries_page(void *arg, size_t n, const struct scan_item *items)
{
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++) {
		uint64_t inode;
		uint8_t type;

		if (entry_decode((const uint8_t *)items[i].value, items[i].value_len, &type,
				 &inode) == 0)
			r = name_it(arg, inode);
	}
	return r;
}

static int dirs_page(void *arg, size_t n, const struct scan_item *items)
{
	struct names *names = arg;
	struct pipe p;
	int r = 0;

	pipe_init(&p, &names->g->m->scan);
	for (size_t at = 0; at < n && r == 0; at += AT_ONCE) {
		pipe_reset(&p);
		for (size_t i = at; i < MIN(n, at + AT_ONCE); i++)
			pipe_add(&p, "HSCAN", items[i].name, "0", "COUNT", "1000", (char *)NULL);
		r = pipe_run(&p);
		for (size_t i = 0; i < p.n && r == 0; i++) {
			const struct redis_reply *fields = reply_at(p.reply[i], 1);
			size_t len;
			const char *cursor = reply_text(reply_at(p.reply[i], 0), &len);

			if (!cursor || strcmp(cursor, "0") != 0) {
				r = scan_hash(&names->g->m->scan, items[at + i].name, entries_page,
					      names);
				continue;
			}
			for (size_t j = 0; j + 1 < reply_len(fields) && r == 0; j += 2) {
				struct scan_item it = {.name = ""};

				it.value = reply_text(reply_at(fields, j + 1), &it.value_len);
				if (it.value)
					r = entries_page(names, 1, &it);
			}
		}
	}
	pipe_fini(&p);
	return r;
}

static int members_page(void *arg, size_t n, const struct scan_item *items)
{
	struct names *names = arg;
	struct pipe p;
	int r;

	pipe_init(&p, &names->g->m->scan);
	for (size_t i = 0; i < n; i++)
		pipe_add(&p, "SMEMBERS", items[i].name, (char *)NULL);
	r = pipe_run(&p);
	for (size_t i = 0; i < p.n && r == 0; i++) {
		for (size_t j = 0; j < reply_len(p.reply[i]) && r == 0; j++) {
			size_t len;
			const char *text = reply_text(reply_at(p.reply[i], j), &len);
			uint64_t inode;

			if (text && scan_u64(text, len, &inode))
				r = name_it(names, inode);
		}
	}
	pipe_fini(&p);
	return r;
}

static int detached_page(void *arg, size_t n, const struct scan_item *items)
{
	struct names *names = arg;
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++) {
		uint64_t inode;

		names->g->detached++;
		if (scan_u64(items[i].name, items[i].name_len, &inode))
			r = name_it(names, inode);
	}
	return r;
}

/* --- who is there --- */

static int records_page(void *arg, size_t n, const struct scan_item *items)
{
	struct names *names = arg;

	for (size_t i = 0; i < n; i++) {
		uint64_t inode;

		__atomic_fetch_add(&names->g->m->progress.files, 1, __ATOMIC_RELAXED);
		if (scan_u64(items[i].name + 1, items[i].name_len - 1, &inode) &&
		    !numtable_find(&names->named, inode, 0) && !numtable_at(names->lost, inode, 0))
			return -ENOMEM;
	}
	return 0;
}

/* what changed within the hour may just be on its way into a directory, or out of one */
static int sift(struct names *names)
{
	struct gc *g = names->g;
	struct pipe p;
	int r = 0;

	pipe_init(&p, &g->m->scan);
	for (size_t i = 0; i < names->lost->cap && r == 0; i++) {
		struct numslot *s = &names->lost->slot[i];
		struct attr a = {.length = 0};
		const char *v;
		size_t len;

		if (!s->used || numtable_find(&names->named, s->a, 0))
			continue;
		pipe_reset(&p);
		pipe_add_inode(&p, "GET", "i", s->a);
		r = pipe_run(&p);
		if (r)
			break;
		v = reply_text(p.reply[0], &len);
		/* w: leaked; v: its length */
		s->w = v && (attr_decode((const uint8_t *)v, len, &a) < 0 ||
			     a.ctime.sec < g->now_sec - 3600);
		s->v = s->w ? a.length : 0;
		if (s->w)
			g->leaked_inodes++;
	}
	pipe_fini(&p);
	return r;
}

int gc_inodes(struct gc *g, struct numtable *ret)
{
	struct names names = {.g = g, .lost = ret};
	const struct scan *s = &g->m->scan;
	int r = name_it(&names, INODE_ROOT);

	maint_begin(g->m, "inodes", NULL);
	if (r == 0)
		r = name_it(&names, INODE_TRASH);
	if (r == 0)
		r = scan_keys(s, "session[0-9]*", members_page, &names);
	if (r == 0)
		r = scan_keys(s, "d[0-9]*", dirs_page, &names);
	if (r == 0)
		r = scan_zset(s, "detachedNodes", detached_page, &names);
	if (r == 0)
		r = scan_keys(s, "i[0-9]*", records_page, &names);
	/* directories were read one after the other: what moved meanwhile is looked for again */
	if (r == 0 && ret->n)
		r = scan_keys(s, "d[0-9]*", dirs_page, &names);
	if (r == 0)
		r = sift(&names);
	maint_end(g->m);
	numtable_fini(&names.named);
	return r;
}

/* --- the trash --- */

static int trash_entry(void *arg, const struct walk_dir *dir, const char *name, uint64_t inode,
		       uint8_t type, const struct attr *attr)
{
	struct gc *g = arg;

	(void)name;
	(void)inode;
	__atomic_fetch_add(&g->m->progress.files, 1, __ATOMIC_RELAXED);
	if (dir->inode == INODE_TRASH)
		g->hours++;
	else if (type == INODE_DIR)
		g->trash_dirs.n++;
	else {
		g->trash_files.n++;
		g->trash_files.bytes += attr && type == INODE_FILE ? attr->length : 0;
	}
	return 0;
}

int gc_trash(struct gc *g)
{
	static const struct walk_ops ops = {.entry = trash_entry};
	int r;

	maint_begin(g->m, "entries of the trash", NULL);
	r = walk_tree(&g->m->scan, INODE_TRASH, "/.trash", true, &ops, g);
	maint_end(g->m);
	return r;
}

/* --- references --- */

int gc_surplus(struct gc *g, const struct slices *s)
{
	_cleanup_(freep) struct surplus *v = NULL;
	size_t n = 0;
	int r = surplus_find(&g->m->scan, s, &v, &n);

	for (size_t i = 0; i < n && r == 0; i++) {
		maint_say(g->m,
			  "inode %" PRIu64 ": slice %" PRIu64 " of %" PRIu32
			  " bytes stands in %" PRIu64 " places, but %" PRIu64 " are counted%s",
			  v[i].inode, v[i].id, v[i].size, v[i].places, v[i].counted,
			  g->conf->remove ? ": now all are" : ": its data would go too early");
		if (g->conf->remove)
			r = surplus_repair(&g->m->scan, &v[i]);
		r = r == -EAGAIN ? 0 : r; /* the next gc looks again */
	}
	g->surplus = n;
	return r;
}
