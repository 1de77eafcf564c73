/* SPDX-License-Identifier: Apache-2.0 */
/* Clones of files and trees: new inodes that refer to the same slices. A tree is built where nobody
 * sees it, below a directory that only detachedNodes knows, and becomes visible in one step; one
 * that fails is removed again, and what even that leaves, `gc --delete` finds, ours and JuiceFS's.
 * A file with more lists than a script may touch is built the same way. Any thread that may block;
 * a few more are started (tree.c). */
#include "client/meta/meta_redis.h"

#include "client/meta/meta_redis_quota.h"
#include "client/meta/tree.h"
#include "common/log.h"

enum { LISTS_STEP = 300 };

struct cloning {
	struct tree t;
	const struct meta_ctx *c;
	bool preserve;
	uint32_t umask;
	int64_t space, inodes; /* made so far; relaxed atomics */
};

struct clone_buf {
	char entry[TREE_BATCH][8 + ENTRY_LEN + NAME_LEN_MAX];
	uint64_t inode[TREE_BATCH];
};

/* where: "in", "file", "dir" (clone.lua) */
static int clone_eval(struct cloning *cl, const char *where, uint64_t dir,
		      const struct tree_entry *e, size_t n, bool lists, struct clone_buf *b,
		      struct redis_reply **ret)
{
	struct meta_redis *mr = cl->t.mr;
	uint64_t capacity, inodes;
	struct hash128 volume;
	struct args args;
	bool stats;
	int r = 0;

	meta_limits(&mr->base, &capacity, &inodes, &stats);
	for (size_t i = 0; i < n && !r; i++)
		r = id_pool_take(mr, &mr->inodes, &b->inode[i], &volume);
	if (r)
		return r;
	args_init(&args, mr);
	op_begin(mr, &args);
	args_text(&args, where);
	args_be64(&args, dir);
	args_text(&args, cl->preserve ? "1" : "0");
	args_u64(&args, cl->c->uid);
	args_u64(&args, cl->c->gid);
	args_u64(&args, cl->umask & 07777);
	args_u64(&args, capacity);
	args_u64(&args, inodes);
	args_text(&args, lists ? "1" : "0");
	for (size_t i = 0; i < n; i++) {
		char *p = b->entry[i];

		be64((uint8_t *)p, b->inode[i]);
		entry_encode(e[i].type, e[i].inode, (uint8_t *)p + 8);
		memcpy(p + 8 + ENTRY_LEN, e[i].name, e[i].name_len);
		args_bytes(&args, p, 8 + ENTRY_LEN + e[i].name_len);
	}
	r = op_eval(mr, SC_CLONE, &args, ret);
	op_end(mr, &args);
	return r;
}

/* answer at of the script: something was made */
static void cloned(struct cloning *cl, const struct redis_reply *reply, size_t at, uint64_t length)
{
	int64_t space = (int64_t)align4k(length);
	uint64_t owner;

	__atomic_add_fetch(&cl->space, space, __ATOMIC_RELAXED);
	__atomic_add_fetch(&cl->inodes, 1, __ATOMIC_RELAXED);
	if (!reply_be64(reply_at(reply, at + 2), &owner))
		quota_owner(cl->t.mr, (uint32_t)(owner >> 32), (uint32_t)owner, space, 1);
}

/* one step: some of the chunks, *ret_n: how many */
static int lists_step(struct meta_redis *mr, uint64_t src, uint64_t new, const uint32_t *v,
		      uint32_t n, uint32_t *ret_n)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	uint8_t chunks[LISTS_STEP * 4];
	struct args args;
	int64_t done;
	int r;

	for (uint32_t i = 0; i < n; i++) {
		for (int b = 0; b < 4; b++)
			chunks[i * 4 + (uint32_t)b] = (uint8_t)(v[i] >> (24 - 8 * b));
	}
	args_init(&args, mr);
	op_begin(mr, &args);
	args_u64(&args, src);
	args_u64(&args, new);
	args_bytes(&args, chunks, (size_t)n * 4);
	r = op_eval(mr, SC_CLONELISTS, &args, &reply);
	op_end(mr, &args);
	done = reply_int(reply_at(reply, 0));
	if (!r && (done <= 0 || done > n))
		r = -EIO;
	if (!r)
		*ret_n = (uint32_t)done;
	return r;
}

/* the lists of a file whose copy is there without them */
static int lists_clone(struct cloning *cl, uint64_t src, uint64_t new)
{
	struct meta_redis *mr = cl->t.mr;
	struct lists l = {0};
	uint32_t n;
	struct attr a;
	int r = redis_getattr(&mr->base, new, &a);

	if (!r)
		r = lists_find_alone(mr, src, 0, (uint32_t)(a.length >> CHUNK_BITS) + 1, &l);
	for (uint32_t at = 0; at < l.n && !r; at += n) {
		n = 0;
		r = lists_step(mr, src, new, l.v + at, MIN(l.n - at, (uint32_t)LISTS_STEP), &n);
		if (!r && cl->t.progress &&
		    __atomic_load_n(&cl->t.progress->cancel, __ATOMIC_RELAXED))
			r = -EINTR;
	}
	lists_fini(&l);
	return r;
}

/* into a directory that nobody sees */
static int big_clone(struct cloning *cl, uint64_t dir, const struct tree_entry *e,
		     struct clone_buf *b, uint64_t *ret_inode, uint64_t *ret_length)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	int r = clone_eval(cl, "in", dir, e, 1, false, b, &reply);

	if (r)
		return r;
	*ret_length = 0;
	*ret_inode = 0;
	if (!reply_is(reply_at(reply, 0), "done"))
		return 0; /* gone, or there already */
	*ret_inode = b->inode[0];
	r = reply_be64(reply_at(reply, 1), ret_length);
	if (!r)
		cloned(cl, reply, 0, *ret_length);
	return r ? r : lists_clone(cl, e->inode, b->inode[0]);
}

static int may_read(struct cloning *cl, uint64_t inode, unsigned want)
{
	struct attr a;
	int r = cl->c->check ? redis_getattr(&cl->t.mr->base, inode, &a) : 0;

	return r || !cl->c->check ? r : access_check(&cl->t.mr->base, cl->c, inode, &a, want);
}

static int clone_some(struct cloning *cl, uint64_t dir, const struct tree_entry *e, size_t n,
		      struct clone_buf *b, size_t *ret_done)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	uint64_t length, inode, files = 0, bytes = 0;
	size_t done;
	int r = clone_eval(cl, "in", dir, e, n, true, b, &reply);

	if (r)
		return r;
	done = reply_len(reply) / 3;
	if (done == 0 || done > n)
		return -EIO;
	for (size_t i = 0; i < done && !r; i++) {
		r = reply_be64(reply_at(reply, 3 * i + 1), &length);
		if (!r && reply_is(reply_at(reply, 3 * i), "big"))
			r = big_clone(cl, dir, &e[i], b, &inode, &length);
		else if (reply_is(reply_at(reply, 3 * i), "skip"))
			continue;
		else if (!r)
			cloned(cl, reply, 3 * i, length);
		files++;
		bytes += length;
	}
	tree_count(&cl->t, files, bytes);
	*ret_done = done;
	return r;
}

static int clone_files(struct tree *t, const struct tree_dir *d, const struct tree_entry *e,
		       size_t n)
{
	struct cloning *cl = container_of(t, struct cloning, t);
	struct clone_buf *b = malloc(sizeof(*b));
	int r = b ? 0 : -ENOMEM;

	for (size_t i = 0; i < n && !r && cl->c->check; i++) {
		r = may_read(cl, e[i].inode, ACCESS_READ);
		r = r == -ENOENT ? 0 : r;
	}
	for (size_t at = 0, done; at < n && !r; at += done) {
		done = 0;
		r = clone_some(cl, d->tag, e + at, n - at, b, &done);
	}
	free(b);
	return r;
}

static int clone_enter(struct tree *t, const struct tree_dir *d, const struct tree_entry *e,
		       uint64_t *ret_tag)
{
	struct cloning *cl = container_of(t, struct cloning, t);
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct clone_buf *b = malloc(sizeof(*b));
	int r = b ? may_read(cl, e->inode, ACCESS_READ | ACCESS_EXECUTE) : -ENOMEM;

	if (r == -ENOENT) {
		free(b);
		return 1;
	}
	if (!r)
		r = clone_eval(cl, "in", d->tag, e, 1, true, b, &reply);
	if (!r && !reply_is(reply_at(reply, 0), "done"))
		r = 1;
	if (!r) {
		*ret_tag = b->inode[0];
		cloned(cl, reply, 0, 0);
		tree_count(t, 1, 0);
	}
	free(b);
	return r;
}

static const struct tree_ops cloning = {clone_files, clone_enter, NULL};

static int detached_eval(struct meta_redis *mr, uint64_t inode, const char *what,
			 struct redis_reply **ret)
{
	struct args args;
	int r;

	args_init(&args, mr);
	op_begin(mr, &args);
	args_u64(&args, inode);
	args_text(&args, what);
	r = op_eval(mr, SC_DETACHED, &args, ret);
	op_end(mr, &args);
	return r;
}

/* What became visible stays, even if nobody heard that it did: from the first script on it never
 * becomes visible any more. */
int detached_clean(struct meta_redis *mr, uint64_t inode, struct meta_progress *p)
{
	_cleanup_(redis_reply_freep) struct redis_reply *begin = NULL, *end = NULL;
	uint64_t owner;
	int r = detached_eval(mr, inode, "begin", &begin);

	if (r || !reply_is(reply_at(begin, 1), "detached"))
		return r;
	quota_detach(mr, inode);
	r = remove_below(mr, inode, true, p);
	quota_attach(mr, inode);
	if (!r)
		r = detached_eval(mr, inode, "end", &end);
	if (!r && !reply_be64(reply_at(end, 0), &owner))
		quota_owner(mr, (uint32_t)(owner >> 32), (uint32_t)owner, -(int64_t)align4k(0), -1);
	return r;
}

static int attach(struct cloning *cl, uint64_t inode, uint64_t parent, const char *name)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct meta_redis *mr = cl->t.mr;
	struct args args;
	int r;

	args_init(&args, mr);
	op_begin(mr, &args);
	args_be64(&args, inode);
	args_be64(&args, parent);
	args_text(&args, name);
	args_i64(&args, cl->space - 4096); /* what is below it */
	args_i64(&args, cl->inodes - 1);
	quota_tell(mr);
	r = op_eval(mr, SC_ATTACH, &args, &reply);
	quota_told(mr, r ? NULL : reply_at(reply, 1), false);
	op_end(mr, &args);
	if (r)
		return r;
	stat_add(mr, parent, 0, 4096, 1);
	return 0;
}

/* a directory that nobody sees: a copy of e's */
static int detached_new(struct cloning *cl, const struct tree_entry *e, uint64_t parent,
			uint64_t *ret)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct clone_buf *b = malloc(sizeof(*b));
	int r = b ? clone_eval(cl, "dir", parent, e, 1, true, b, &reply) : -ENOMEM;

	if (!r && !reply_is(reply_at(reply, 0), "done"))
		r = -EIO;
	if (!r) {
		*ret = b->inode[0];
		cloned(cl, reply, 0, 0);
	}
	free(b);
	return r;
}

static void detached_drop(struct cloning *cl, uint64_t inode)
{
	int r = detached_clean(cl->t.mr, inode, NULL);

	if (r)
		log_warn("what is left of a clone that failed stays until gc --delete: %s",
			 strerror(-r));
}

static int clone_dir(struct cloning *cl, const struct tree_entry *e, uint64_t parent)
{
	uint64_t inode;
	int r = may_read(cl, e->inode, ACCESS_READ | ACCESS_EXECUTE);

	if (!r)
		r = detached_new(cl, e, parent, &inode);
	if (r)
		return r;
	tree_count(&cl->t, 1, 0);
	r = tree_walk(&cl->t, e->inode, inode);
	if (!r)
		r = attach(cl, inode, parent, e->name);
	if (r)
		detached_drop(cl, inode);
	return r;
}

/* built in a directory that nobody sees, then renamed out of it */
static int clone_big_file(struct cloning *cl, const struct tree_entry *e, uint64_t parent,
			  struct clone_buf *b, uint64_t *ret_length)
{
	static const struct meta_ctx root = {0};
	/* the volume's root: a directory that is there; only its kind matters */
	struct tree_entry box = {e->name, e->name_len, INODE_DIR, INODE_ROOT};
	struct meta *m = &cl->t.mr->base;
	uint64_t dir, inode, moved;
	struct attr a;
	int r = detached_new(cl, &box, parent, &dir);

	if (r)
		return r;
	quota_detach(cl->t.mr, dir);
	r = big_clone(cl, dir, e, b, &inode, ret_length);
	if (!r && !inode)
		r = -ENOENT;
	if (!r)
		r = redis_rename(m, &root, dir, e->name, parent, e->name, RENAME_F_NOREPLACE,
				 &moved, &a);
	quota_attach(cl->t.mr, dir);
	detached_drop(cl, dir);
	return r;
}

static int clone_file(struct cloning *cl, const struct tree_entry *e, uint64_t parent)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct clone_buf *b = malloc(sizeof(*b));
	uint64_t length = 0;
	int r = b ? may_read(cl, e->inode, ACCESS_READ) : -ENOMEM;

	if (!r)
		r = clone_eval(cl, "file", parent, e, 1, true, b, &reply);
	if (!r && reply_is(reply_at(reply, 0), "big"))
		r = clone_big_file(cl, e, parent, b, &length);
	else if (!r && !reply_is(reply_at(reply, 0), "done"))
		r = -EIO;
	else if (!r)
		r = reply_be64(reply_at(reply, 1), &length);
	/* a rename told the statistics itself */
	if (!r && reply_is(reply_at(reply, 0), "done")) {
		cloned(cl, reply, 0, length);
		stat_add(cl->t.mr, parent, (int64_t)length, (int64_t)align4k(length), 1);
	}
	if (!r)
		tree_count(&cl->t, 1, length);
	free(b);
	return r;
}

/* kept owners are not asked: they have what they have */
static int room(struct cloning *cl, uint64_t src, const struct attr *a, uint64_t parent)
{
	struct meta_redis *mr = cl->t.mr;
	struct tree_sum sum = {0};
	int r = 0;

	if (!quota_limited(mr))
		return 0;
	if (a->type == INODE_DIR)
		r = tree_sum(mr, src, false, cl->t.progress, &sum);
	sum.space += (int64_t)align4k(a->type == INODE_FILE ? a->length : 0);
	return r ? r
		 : quota_room_tree(mr, parent, cl->preserve ? NULL : cl->c, sum.space,
				   sum.inodes + 1);
}

int redis_clone(struct meta *m, const struct meta_ctx *c, uint64_t src, uint64_t parent,
		const char *name, bool preserve, uint32_t umask, struct meta_progress *p)
{
	struct cloning cl = {.t = {.mr = redis_engine(m), .ops = &cloning, .progress = p},
			     .c = c,
			     .preserve = preserve,
			     .umask = umask};
	struct tree_entry e = {.name = name, .name_len = strlen(name), .inode = src};
	struct attr a, pa;
	int r = redis_getattr(m, src, &a);

	if (!r && c->check) {
		r = redis_getattr(m, parent, &pa);
		if (!r)
			r = access_check(m, c, parent, &pa, ACCESS_WRITE | ACCESS_EXECUTE);
	}
	if (!r)
		r = room(&cl, src, &a, parent);
	if (r)
		return r;
	e.type = a.type;
	return a.type == INODE_DIR ? clone_dir(&cl, &e, parent) : clone_file(&cl, &e, parent);
}
