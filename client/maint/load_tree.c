/* SPDX-License-Identifier: Apache-2.0 */
/* The tree of a dump, in the order of the file. A frame is an entry that has begun; frames lie on
 * the heap, so that depth costs no stack. One thread; blocks.
 *
 *	members   reading "attr" (first), "xattrs", …; "entries" → entries; '}' → it is written
 *	entries   reading names; each begins a frame on top; '}' → members */
#include "client/maint/load.h"

#include <inttypes.h>

#include "client/maint/dump_text.h"
#include "common/clock.h"

struct frame {
	struct frame *up;
	uint64_t inode, parent;
	struct attr attr;
	bool has_attr, keep; /* keep: the first entry of this inode */
	bool in_entries, had_entries, first_member, first_entry;
	/* of a directory: its statistics, and what lies in all of it */
	int64_t length, space, inodes, sub_space, sub_inodes;
	uint32_t subdirs;
	size_t name_len;
	char name[]; /* in up */
};

static int push(struct frame **top, const char *name, size_t n)
{
	struct frame *f = calloc(1, sizeof(*f) + n + 1);

	if (!f)
		return -ENOMEM;
	f->up = *top;
	f->first_member = f->first_entry = true;
	f->name_len = n;
	memcpy(f->name, name, n);
	*top = f;
	return 0;
}

static int64_t space_of(const struct attr *a)
{
	return (int64_t)align4k(a->type == INODE_FILE ? a->length : 0);
}

static int count_owner(struct load *l, enum quota_kind kind, uint32_t id, int64_t space)
{
	struct numslot *s = numtable_at(&l->owners, (uint64_t)kind, id);

	if (!s)
		return -ENOMEM;
	s->v += (uint64_t)space;
	s->w++;
	return 0;
}

/* an inode seen for the first time */
static int count(struct load *l, const struct frame *f)
{
	int64_t space = space_of(&f->attr);
	int r;

	if (f->inode < INODE_TRASH)
		l->next_inode = MAX(l->next_inode, f->inode + 1);
	else
		l->next_trash = MAX(l->next_trash, f->inode - INODE_TRASH);
	__atomic_fetch_add(&l->progress->files, 1, __ATOMIC_RELAXED);
	if (f->inode == INODE_ROOT || f->inode == INODE_TRASH)
		return 0;
	if (f->attr.type == INODE_FILE)
		__atomic_fetch_add(&l->progress->bytes, f->attr.length, __ATOMIC_RELAXED);
	l->used_space += (uint64_t)space;
	l->used_inodes++;
	if (!l->owner_quotas)
		return 0;
	r = count_owner(l, QUOTA_USER, f->attr.uid, space);
	return r ? r : count_owner(l, QUOTA_GROUP, f->attr.gid, space);
}

/* a second name: parents are counted in a hash from now on */
static int link_again(struct load *l, const struct frame *f, struct numslot *s)
{
	char key[32];
	int r = 0;

	if (f->attr.type == INODE_DIR)
		return load_bad(l, "directory %" PRIu64 " has two names", f->inode);
	(void)snprintf(key, sizeof(key), "p%" PRIu64, f->inode);
	if (s->w++ == 1)
		r = load_put_number(&l->out, "HINCRBY", key, s->v, 1);
	return r ? r : load_put_number(&l->out, "HINCRBY", key, f->parent, 1);
}

/* which numbers may be where */
static int place(struct load *l, struct frame *f, bool trash)
{
	if (!f->up) {
		if (f->attr.type != INODE_DIR || (trash && f->inode != INODE_TRASH))
			return load_bad(l, "the top of the tree is no directory");
		if (!trash)
			f->inode = INODE_ROOT; /* of a dump of a subdirectory, too */
		f->parent = INODE_ROOT;
		/* a volume that never had a trash is dumped with an empty record */
		if (trash && f->attr.mode == 0 && f->attr.ctime.sec == 0) {
			f->attr.mode = 0555;
			clock_real(&f->attr.ctime.sec, &f->attr.ctime.nsec);
			f->attr.atime = f->attr.mtime = f->attr.ctime;
		}
		return 0;
	}
	f->parent = f->up->inode;
	if (f->inode == INODE_ROOT || f->inode == INODE_TRASH ||
	    (f->inode >= INODE_INTERNAL &&
	     (f->inode < INODE_TRASH || f->parent != INODE_TRASH || f->attr.type != INODE_DIR)))
		return load_bad(l, "inode %" PRIu64 " cannot be there", f->inode);
	return 0;
}

static int take_attr(struct load *l, struct frame *f, bool trash)
{
	struct numslot *s;
	int r = f->has_attr ? load_bad(l, "attr is there twice")
			    : load_attr(l, &f->inode, &f->attr);

	if (r == 0)
		r = place(l, f, trash);
	if (r)
		return r;
	f->has_attr = true;
	s = numtable_at(&l->inodes, f->inode, 0);
	if (!s)
		return -ENOMEM;
	f->keep = s->w == 0;
	if (!f->keep)
		return link_again(l, f, s);
	s->v = f->parent;
	s->w = 1;
	return count(l, f);
}

static int take_member(struct load *l, struct frame *f, const char *name, bool trash)
{
	size_t n;
	int r;

	if (strcmp(name, "attr") == 0)
		return take_attr(l, f, trash);
	if (!f->has_attr)
		return load_bad(l, "an entry does not begin with its attr");
	if (strcmp(name, "xattrs") == 0)
		return load_xattrs(l, f->inode, f->keep);
	if (strcmp(name, "posix_acl_access") == 0)
		return load_rule(l, &f->attr.access_acl);
	if (strcmp(name, "posix_acl_default") == 0)
		return load_rule(l, &f->attr.default_acl);
	if (strcmp(name, "chunks") == 0 && f->attr.type == INODE_FILE)
		return load_chunks(l, f->inode, f->keep);
	if (strcmp(name, "symlink") == 0 && f->attr.type == INODE_SYMLINK) {
		r = load_target(l, f->inode, f->keep, &n);
		f->attr.length = n;
		return r;
	}
	if (strcmp(name, "entries") == 0 && f->attr.type == INODE_DIR && !f->had_entries) {
		f->in_entries = f->had_entries = true;
		return json_take(l->in, '{');
	}
	return json_skip(l->in);
}

static int put_stat(struct load *l, const struct frame *f)
{
	int r = load_put_number(&l->out, "HSET", "dirDataLength", f->inode, f->length);

	if (r == 0)
		r = load_put_number(&l->out, "HSET", "dirUsedSpace", f->inode, f->space);
	if (r == 0)
		r = load_put_number(&l->out, "HSET", "dirUsedInodes", f->inode, f->inodes);
	return r;
}

static int put_record(struct load *l, struct frame *f, bool trash)
{
	uint8_t record[ATTR_MAX];
	const char *word[] = {(const char *)record};
	struct load_quota *q;
	size_t len[1];
	char key[32];
	int r = 0;

	f->attr.nlink = f->attr.type == INODE_DIR ? 2 + f->subdirs : 1;
	f->attr.parent = f->parent;
	len[0] = attr_encode(&f->attr, record);
	(void)snprintf(key, sizeof(key), "i%" PRIu64, f->inode);
	r = load_put(&l->out, "SET", key, 1, word, len);
	if (r || f->attr.type != INODE_DIR)
		return r;
	q = trash ? NULL : load_quota_of(l, QUOTA_DIR, f->inode);
	if (q) {
		q->seen = true;
		q->used_space = f->sub_space;
		q->used_inodes = f->sub_inodes;
	}
	return put_stat(l, f);
}

/* the entry in its directory, and what the directory holds thereby */
static int put_entry(struct load *l, const struct frame *f)
{
	uint8_t entry[ENTRY_LEN];
	const char *word[] = {f->name, (const char *)entry};
	size_t len[] = {f->name_len, ENTRY_LEN};
	struct frame *up = f->up;
	char key[32];

	entry_encode(f->attr.type, f->inode, entry);
	up->length += f->attr.type == INODE_FILE ? (int64_t)f->attr.length : 0;
	up->space += space_of(&f->attr);
	up->inodes++;
	up->sub_space += space_of(&f->attr) + f->sub_space;
	up->sub_inodes += 1 + f->sub_inodes;
	if (f->attr.type == INODE_DIR && up->inode < INODE_TRASH)
		up->subdirs++;
	(void)snprintf(key, sizeof(key), "d%" PRIu64, up->inode);
	return load_put(&l->out, "HSET", key, 2, word, len);
}

static int finish(struct load *l, struct frame **top, bool trash)
{
	struct frame *f = *top;
	int r = f->has_attr ? 0 : load_bad(l, "an entry has no attr");

	if (r == 0 && f->keep)
		r = put_record(l, f, trash);
	if (r == 0 && f->up)
		r = put_entry(l, f);
	*top = f->up;
	free(f);
	return r;
}

static int begin_entry(struct load *l, struct frame **top)
{
	struct str *t = &l->text;
	int r = json_name(l->in, t);

	if (r)
		return r;
	if (t->len)
		t->len = dump_unescape(t->s, t->len);
	if (t->len == 0 || t->len > NAME_LEN_MAX || memchr(t->s, '/', t->len) ||
	    memchr(t->s, '\0', t->len) || (t->len == 1 && t->s[0] == '.') ||
	    (t->len == 2 && t->s[0] == '.' && t->s[1] == '.'))
		return load_bad(l, "a name that no file can have in directory %" PRIu64,
				(*top)->inode);
	r = push(top, t->s, t->len);
	return r ? r : json_take(l->in, '{');
}

static int step(struct load *l, struct frame **top, bool trash)
{
	struct frame *f = *top;
	bool more = false, *first = f->in_entries ? &f->first_entry : &f->first_member;
	int r = json_more(l->in, '}', *first, &more);

	*first = false;
	if (r)
		return r;
	if (f->in_entries) {
		if (more)
			return begin_entry(l, top);
		f->in_entries = false;
		return 0;
	}
	if (!more)
		return finish(l, top, trash);
	r = json_name(l->in, &l->text);
	if (r == 0) {
		char name[24];

		(void)snprintf(name, sizeof(name), "%.23s", str_c(&l->text));
		r = take_member(l, f, name, trash);
	}
	return r;
}

int load_tree(struct load *l, bool trash)
{
	struct frame *top = NULL;
	int r = json_take(l->in, '{');

	l->has_tree = true;
	if (r == 0)
		r = push(&top, "", 0);
	while (top && r == 0)
		r = step(l, &top, trash);
	while (top) {
		struct frame *f = top;

		top = f->up;
		free(f);
	}
	return r;
}
