/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over what is below a directory: by looking at every entry, or by the statistics of its
 * directories, of which only those with sub-directories (by their number of links) are read then.
 * Any thread that may block. */
#include "client/meta/meta_redis.h"

#include "client/meta/meta_redis_quota.h"

enum { DIRS_TOO_MANY = 1 << 26 }; /* a damaged volume may go in circles */

struct todo {
	uint64_t *dirs;
	size_t n, cap, done;
};

static int todo_push(struct todo *t, uint64_t dir)
{
	uint64_t *more;

	if (t->n == t->cap) {
		size_t cap = t->cap ? t->cap * 2 : 64;

		more = reallocarray(t->dirs, cap, sizeof(*more));
		if (!more)
			return -ENOMEM;
		t->dirs = more;
		t->cap = cap;
	}
	t->dirs[t->n++] = dir;
	return 0;
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

int tree_sum(struct meta_redis *mr, uint64_t dir, bool exact, struct meta_progress *p,
	     struct tree_sum *ret)
{
	struct tree_sum sum = {0};
	struct todo t = {0};
	int r = todo_push(&t, dir);

	while (!r && t.n) {
		if (++t.done > DIRS_TOO_MANY)
			r = -ELOOP;
		else if (p && __atomic_load_n(&p->cancel, __ATOMIC_RELAXED))
			r = -EINTR;
		else
			r = sum_one(mr, t.dirs[--t.n], exact, &t, &sum);
		if (p) {
			__atomic_store_n(&p->files, (uint64_t)sum.inodes, __ATOMIC_RELAXED);
			__atomic_store_n(&p->bytes, (uint64_t)sum.space, __ATOMIC_RELAXED);
		}
	}
	free(t.dirs);
	if (!r)
		*ret = sum;
	return r;
}
