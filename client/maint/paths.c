/* SPDX-License-Identifier: Apache-2.0 */
/* Level by level: where the inodes' records and parents say that they lie, which names they have
 * there, and the same for those directories, until all that is new is the root. One thread. */
#include "client/maint/paths.h"

#include <inttypes.h>

#include "client/meta/attr.h"
#include "client/meta/reply.h"

enum { AT_ONCE = 500, DEPTH_MAX = 4096 };

/* one level: inodes whose names are wanted */
struct level {
	struct paths *p;
	const struct scan *scan;
	struct numtable dirs; /* that may have them */
	uint64_t dir;	      /* that is read */
	struct numtable new;  /* those in which one was found, not known yet */
};

void paths_fini(struct paths *p)
{
	numtable_fini(&p->at);
	str_fini(&p->names);
}

static int named(struct paths *p, uint64_t inode, uint64_t parent, const char *name, size_t len)
{
	struct numslot *s = numtable_at(&p->at, inode, 0);

	if (!s)
		return -ENOMEM;
	if (p->names.len == 0)
		str_addn(&p->names, "", 1); /* nobody's name is at 0 */
	s->v = parent;
	s->w = p->names.len;
	str_addn(&p->names, name, len);
	str_addn(&p->names, "", 1);
	return str_error(&p->names);
}

static int dir_page(void *arg, size_t n, const struct scan_item *items)
{
	struct level *l = arg;

	for (size_t i = 0; i < n; i++) {
		const struct numslot *s;
		uint64_t inode;
		uint8_t type;

		if (entry_decode((const uint8_t *)items[i].value, items[i].value_len, &type,
				 &inode) < 0)
			continue;
		s = numtable_find(&l->p->at, inode, 0);
		if (!s || s->w)
			continue;
		if (named(l->p, inode, l->dir, items[i].name, items[i].name_len) < 0)
			return -ENOMEM;
		if (l->dir != INODE_ROOT && !numtable_find(&l->p->at, l->dir, 0) &&
		    !numtable_at(&l->new, l->dir, 0))
			return -ENOMEM;
	}
	return 0;
}

/* the directories that an inode may lie in: its record's, or of a file with several names all that
 * it counts names in */
static int note_parents(struct level *l, const struct redis_reply *record,
			const struct redis_reply *parents)
{
	struct attr a;
	size_t n;
	const char *v = reply_text(record, &n);
	uint64_t dir;

	if (!v || attr_decode((const uint8_t *)v, n, &a) < 0)
		return 0;
	if (a.parent)
		return numtable_at(&l->dirs, a.parent, 0) ? 0 : -ENOMEM;
	for (size_t i = 0; i + 1 < reply_len(parents); i += 2) {
		const char *text = reply_text(reply_at(parents, i), &n);

		if (text && scan_u64(text, n, &dir) && reply_int(reply_at(parents, i + 1)) > 0 &&
		    !numtable_at(&l->dirs, dir, 0))
			return -ENOMEM;
	}
	return 0;
}

/* the wanted get a slot, and their directories are collected */
static int level_parents(struct level *l, const struct numtable *wanted)
{
	struct pipe p;
	int r = 0;

	pipe_init(&p, l->scan);
	for (size_t at = 0; at < wanted->cap && r == 0;) {
		pipe_reset(&p);
		for (; at < wanted->cap && p.n < AT_ONCE; at++) {
			uint64_t inode = wanted->slot[at].a;

			if (!wanted->slot[at].used || numtable_find(&l->p->at, inode, 0))
				continue;
			if (!numtable_at(&l->p->at, inode, 0)) {
				r = -ENOMEM;
				break;
			}
			if (inode == INODE_TRASH) {
				r = named(l->p, inode, INODE_ROOT, ".trash", 6);
				continue;
			}
			pipe_add_inode(&p, "GET", "i", inode);
			pipe_add_inode(&p, "HGETALL", "p", inode);
		}
		r = r ? r : pipe_run(&p);
		for (size_t i = 0; i + 1 < p.n && r == 0; i += 2)
			r = note_parents(l, p.reply[i], p.reply[i + 1]);
	}
	pipe_fini(&p);
	return r;
}

static int level_names(struct level *l)
{
	char key[32];
	int r = 0;

	for (size_t i = 0; i < l->dirs.cap && r == 0; i++) {
		if (!l->dirs.slot[i].used)
			continue;
		l->dir = l->dirs.slot[i].a;
		(void)snprintf(key, sizeof(key), "d%" PRIu64, l->dir);
		r = scan_hash(l->scan, key, dir_page, l);
	}
	return r;
}

int paths_find(struct paths *p, const struct scan *s, const struct numtable *inodes)
{
	struct numtable wanted = {.slot = NULL};
	int r = 0;

	for (int depth = 0; r == 0 && depth < DEPTH_MAX; depth++) {
		struct level l = {.p = p, .scan = s};

		r = level_parents(&l, depth ? &wanted : inodes);
		if (r == 0)
			r = level_names(&l);
		numtable_fini(&l.dirs);
		numtable_fini(&wanted);
		wanted = l.new;
		if (wanted.n == 0)
			break;
	}
	numtable_fini(&wanted);
	return r;
}

int paths_get(const struct paths *p, uint64_t inode, struct str *out)
{
	_cleanup_(freep) const char **names = NULL;
	size_t n = 0, cap = 0;

	if (inode == INODE_ROOT)
		str_add(out, "/");
	for (; inode != INODE_ROOT; n++) {
		const struct numslot *s = numtable_find(&p->at, inode, 0);

		if (!s || !s->w || n == DEPTH_MAX)
			return -ENOENT;
		if (n == cap) {
			const char **more =
				reallocarray(names, cap = cap ? 2 * cap : 16, sizeof(*names));

			if (!more)
				return -ENOMEM;
			names = more;
		}
		names[n] = p->names.s + s->w;
		inode = s->v;
	}
	while (n) {
		str_add(out, "/");
		str_add(out, names[--n]);
	}
	return str_error(out);
}

int path_of(const struct scan *s, uint64_t inode, struct str *out)
{
	struct numtable one = {.slot = NULL};
	struct paths p = {.names = STR_INIT};
	int r = numtable_at(&one, inode, 0) ? paths_find(&p, s, &one) : -ENOMEM;

	if (r == 0)
		r = paths_get(&p, inode, out);
	numtable_fini(&one);
	paths_fini(&p);
	return r;
}
