/* SPDX-License-Identifier: Apache-2.0 */
/* The largest entries of a tree. Nodes are kept down to the depth that is asked for; each directory
 * keeps its largest ones once it is complete. One thread. */
#include <inttypes.h>

#include "client/maint/dump_text.h"
#include "client/maint/inspect.h"
#include "client/maint/walk.h"

struct node {
	char *name; /* escaped; a directory's ends with a slash */
	int64_t size, dirs, files;
	struct node **child;
	size_t n, cap;
	struct node *rest; /* those that were left out */
};
struct summary {
	struct meta_progress *p;
	unsigned depth, entries;
	struct node **at; /* the directory on each level */
	inspect_fn *emit;
	void *arg;
};

static void node_free(struct node *n)
{
	if (!n)
		return;
	for (size_t i = 0; i < n->n; i++)
		node_free(n->child[i]);
	node_free(n->rest);
	free(n->child);
	free(n->name);
	free(n);
}

static struct node *node_new(const char *name, bool dir)
{
	struct str text = STR_INIT;
	struct node *n = calloc(1, sizeof(*n));

	dump_escape(name, strlen(name), &text);
	str_add(&text, dir ? "/" : "");
	if (n)
		n->name = str_take(&text);
	str_fini(&text);
	if (n && !n->name) {
		node_free(n);
		n = NULL;
	}
	return n;
}

static int entry(void *arg, const struct walk_dir *dir, const char *name, uint64_t inode,
		 uint8_t type, const struct attr *attr)
{
	struct summary *s = arg;
	struct node *up, *n;

	(void)inode;
	__atomic_fetch_add(&s->p->files, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&s->p->bytes, attr && type == INODE_FILE ? attr->length : 0,
			   __ATOMIC_RELAXED);
	if (dir->depth >= s->depth)
		return 0;
	up = s->at[dir->depth];
	n = node_new(name, type == INODE_DIR);
	if (n && up->n == up->cap) {
		size_t cap = up->cap ? up->cap * 2 : 16;
		struct node **more = reallocarray(up->child, cap, sizeof(*more));

		if (more) {
			up->child = more;
			up->cap = cap;
		}
	}
	if (!n || up->n == up->cap) {
		node_free(n);
		return -ENOMEM;
	}
	up->child[up->n++] = n;
	if (type == INODE_DIR) {
		s->at[dir->depth + 1] = n;
	} else {
		n->size = (int64_t)align4k(attr && type == INODE_FILE ? attr->length : 0);
		n->files = 1;
	}
	return 0;
}

static int by_size(const void *a, const void *b)
{
	const struct node *x = *(struct node *const *)a, *y = *(struct node *const *)b;

	if (x->size != y->size)
		return x->size > y->size ? -1 : 1;
	return strcmp(x->name, y->name);
}

/* the largest stay, the others become one */
static int prune(struct summary *s, struct node *n)
{
	if (n->n == 0)
		return 0;
	qsort(n->child, n->n, sizeof(struct node *), by_size);
	if (n->n <= s->entries)
		return 0;
	n->rest = node_new("...", false);
	if (!n->rest)
		return -ENOMEM;
	while (n->n > s->entries) {
		struct node *last = n->child[--n->n];

		n->rest->size += last->size;
		n->rest->dirs += last->dirs;
		n->rest->files += last->files;
		node_free(last);
	}
	return 0;
}

static int leave(void *arg, const struct walk_dir *d)
{
	struct summary *s = arg;
	struct node *n;

	if (d->depth > s->depth)
		return 0;
	n = s->at[d->depth];
	n->size = d->all_space + 4096;
	n->dirs = d->all_dirs + 1;
	n->files = d->all_inodes - d->all_dirs;
	return prune(s, n);
}

static void tell(struct summary *s, const struct node *n, const char *before)
{
	char *text, *path;

	if (asprintf(&path, "%s%s", before, n->name) < 0)
		return;
	if (asprintf(&text, "%s\t%" PRId64 "\t%" PRId64 "\t%" PRId64, path, n->size, n->dirs,
		     n->files) >= 0) {
		s->emit(s->arg, text);
		free(text);
	}
	/* the top is "/", and no part of the paths below it */
	for (size_t i = 0; i < n->n; i++)
		tell(s, n->child[i], strcmp(path, "/") ? path : "");
	if (n->rest)
		tell(s, n->rest, strcmp(path, "/") ? path : "");
	free(path);
}

int meta_summary(struct meta *m, uint64_t inode, unsigned depth, unsigned entries,
		 struct meta_progress *p, inspect_fn *emit, void *arg)
{
	static const struct walk_ops ops = {.entry = entry, .leave = leave};
	struct summary s = {.p = p, .depth = depth, .entries = entries, .emit = emit, .arg = arg};
	struct scan scan;
	struct attr a;
	int r = meta_redis(m) ? meta_getattr(m, inode, &a) : -EOPNOTSUPP;

	if (r)
		return r;
	scan_init(&scan, meta_redis(m), &p->cancel);
	s.at = calloc((size_t)depth + 2, sizeof(struct node *));
	if (s.at)
		s.at[0] = node_new("", true);
	if (!s.at || !s.at[0])
		r = -ENOMEM;
	if (r == 0 && a.type == INODE_DIR) {
		r = walk_tree(&scan, meta_rooted(m, inode), "/", true, &ops, &s);
	} else if (r == 0) {
		s.at[0]->size = (int64_t)align4k(a.type == INODE_FILE ? a.length : 0);
		s.at[0]->files = 1;
	}
	if (r == 0)
		tell(&s, s.at[0], "");
	node_free(s.at ? s.at[0] : NULL);
	free(s.at);
	return r;
}
