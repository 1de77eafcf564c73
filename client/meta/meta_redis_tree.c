/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over what is below a directory: by looking at every entry, or by the statistics of its
 * directories, of which only those with sub-directories (by their number of links) are read then.
 * Any thread that may block. */
#include "client/meta/meta_redis.h"

#include "client/meta/meta_redis_quota.h"
#include "client/meta/tree.h"

/* Directories that wait, the deepest last; and those that the one in hand lies in: where one lies
 * in itself, the walk ends. */
struct todo {
	struct waiting {
		uint64_t dir;
		size_t depth;
	} * v;
	size_t n, cap, depth;
	uint64_t *path;
	size_t path_cap;
};

static int todo_push(struct todo *t, uint64_t dir)
{
	struct waiting *more;

	for (size_t i = 0; i < t->depth; i++) {
		if (t->path[i] == dir)
			return tree_ring(dir);
	}
	if (t->n == t->cap) {
		size_t cap = t->cap ? t->cap * 2 : 64;

		more = reallocarray(t->v, cap, sizeof(*more));
		if (!more)
			return -ENOMEM;
		t->v = more;
		t->cap = cap;
	}
	t->v[t->n++] = (struct waiting){dir, t->depth};
	return 0;
}

/* it is in hand now: what is pushed lies in it */
static int todo_pop(struct todo *t, uint64_t *ret)
{
	const struct waiting *w = &t->v[--t->n];

	if (w->depth == t->path_cap) {
		size_t cap = t->path_cap ? t->path_cap * 2 : 64;
		uint64_t *more = reallocarray(t->path, cap, sizeof(*more));

		if (!more)
			return -ENOMEM;
		t->path = more;
		t->path_cap = cap;
	}
	t->path[w->depth] = w->dir;
	t->depth = w->depth + 1;
	*ret = w->dir;
	return 0;
}

static void todo_fini(struct todo *t)
{
	free(t->v);
	free(t->path);
}

static void add_entry(const struct meta_entry *e, struct tree_sum *sum)
{
	uint64_t len = e->full && e->attr.type == INODE_FILE ? e->attr.length : 0;

	sum->length += (int64_t)len;
	sum->space += (int64_t)align4k(len);
	sum->inodes++;
}

/* entries of one directory: summed up when sum is not NULL; directories among them are to be done
 * */
static int read_entries(struct meta_redis *mr, uint64_t dir, struct todo *t, struct tree_sum *sum)
{
	struct meta_dir *d;
	int r = redis_readdir(&mr->base, dir, sum != NULL, &d);

	if (r)
		return r == -ENOENT ? 0 : r;
	for (size_t i = 0; i < d->n && !r; i++) {
		if (sum)
			add_entry(&d->entries[i], sum);
		if (d->entries[i].attr.type == INODE_DIR)
			r = todo_push(t, d->entries[i].inode);
	}
	meta_dir_free(d);
	return r;
}

/* false: it has no statistics */
static int read_stats(struct meta_redis *mr, uint64_t dir, struct tree_sum *sum, bool *ret_there)
{
	static const char *const keys[] = {"dirDataLength", "dirUsedSpace", "dirUsedInodes"};
	int64_t v[3] = {0};
	int r = 0;

	*ret_there = true;
	for (int i = 0; i < 3 && !r && *ret_there; i++) {
		_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;

		r = redis_once(mr->redis, op_deadline(mr), &reply, "HGET %s%s %llu", mr->prefix,
			       keys[i], (unsigned long long)dir);
		*ret_there = !r && reply_type(reply) != REDIS_NIL;
		v[i] = reply_int(reply);
	}
	if (r || !*ret_there)
		return op_error(r);
	sum->length += v[0];
	sum->space += v[1];
	sum->inodes += v[2];
	return 0;
}

static int sum_one(struct meta_redis *mr, uint64_t dir, bool exact, struct todo *t,
		   struct tree_sum *sum)
{
	bool there = false;
	struct attr a;
	int r = 0;

	if (!exact && meta_setting(&mr->base)->dir_stats) {
		r = redis_getattr(&mr->base, dir, &a);
		if (!r)
			r = read_stats(mr, dir, sum, &there);
		if (r)
			return r == -ENOENT ? 0 : r;
	}
	if (there && a.nlink <= 2)
		return 0;
	return read_entries(mr, dir, t, there ? NULL : sum);
}

/* a walk: sums, and the first directories when the caller has a list for them */
struct walk {
	bool exact;
	struct meta_progress *p;
	struct tree_sum sum;
	size_t most, n;
	uint8_t *list; /* most * 8 */
};

static int walk_tree(struct meta_redis *mr, uint64_t top, struct walk *w)
{
	struct meta_progress *p = w->p;
	struct todo t = {0};
	uint64_t dir;
	int r = todo_push(&t, top);

	while (!r && t.n) {
		r = p && __atomic_load_n(&p->cancel, __ATOMIC_RELAXED) ? -EINTR
								       : todo_pop(&t, &dir);
		if (!r)
			r = sum_one(mr, dir, w->exact, &t, &w->sum);
		if (!r && w->list && w->n < w->most)
			be64(w->list + w->n * 8, dir);
		w->n++;
		if (p) {
			__atomic_store_n(&p->files, (uint64_t)w->sum.inodes, __ATOMIC_RELAXED);
			__atomic_store_n(&p->bytes, (uint64_t)w->sum.space, __ATOMIC_RELAXED);
		}
	}
	todo_fini(&t);
	return r;
}

int tree_sum(struct meta_redis *mr, uint64_t dir, bool exact, struct meta_progress *p,
	     struct tree_sum *ret)
{
	struct walk w = {.exact = exact, .p = p};
	int r = walk_tree(mr, dir, &w);

	if (!r)
		*ret = w.sum;
	return r;
}

int tree_list(struct meta_redis *mr, uint64_t dir, size_t most, struct tree_sum *ret,
	      uint8_t **ret_list, size_t *ret_len)
{
	struct walk w = {.most = most, .list = malloc(most * 8)};
	int r = w.list ? walk_tree(mr, dir, &w) : -ENOMEM;

	if (r || w.n > most)
		free(TAKE_PTR(w.list));
	if (r)
		return r;
	*ret = w.sum;
	*ret_list = w.list;
	*ret_len = w.list ? w.n * 8 : 0;
	return 0;
}
