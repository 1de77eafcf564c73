/* SPDX-License-Identifier: Apache-2.0 */
/* Removing trees: what lies in a directory goes in batches, one script each, then its
 * subdirectories, then the directory. What is open in this client stays without a name; data is
 * deleted in the background. Any thread that may block; a few more are started (tree.c). */
#include "client/meta/meta_redis.h"

#include "client/meta/tree.h"

struct removal {
	struct tree t;
	const struct meta_ctx *c;
	bool skip_trash, force;
};

static void hour_of(struct meta_redis *mr, uint64_t dir, bool skip_trash, int64_t sec,
		    char hour[16])
{
	hour[0] = '\0';
	if (!skip_trash)
		trash_hour_name(&mr->base, dir, sec, hour);
}

/* which of the batch are open here: 8 bytes each */
static size_t batch_open(struct meta_redis *mr, const struct tree_entry *e, size_t n,
			 uint8_t ret[TREE_BATCH * 8])
{
	size_t len = 0;

	for (size_t i = 0; i < n; i++) {
		if (e[i].type == INODE_FILE && open_is(&mr->base, e[i].inode)) {
			be64(ret + len, e[i].inode);
			len += 8;
		}
	}
	return len;
}

struct batch_buf {
	char entry[TREE_BATCH][ENTRY_LEN + NAME_LEN_MAX];
	uint8_t open[TREE_BATCH * 8];
};

static int batch_eval(struct removal *rm, uint64_t dir, const struct tree_entry *e, size_t n,
		      struct batch_buf *b, struct redis_reply **ret)
{
	struct meta_redis *mr = rm->t.mr;
	struct args args;
	char hour[16];
	int r;

	args_init(&args, mr);
	op_begin(mr, &args);
	hour_of(mr, dir, rm->skip_trash, args.now.sec, hour);
	args_be64(&args, dir);
	args_u64(&args, rm->c->uid);
	args_u64(&args, mr->base.conf.skip_dir_mtime_us * 1000);
	args_text(&args, hour);
	args_u64(&args, session_now(&mr->base));
	args_bytes(&args, b->open, batch_open(mr, e, n, b->open));
	args_text(&args, rm->force ? "1" : "0");
	for (size_t i = 0; i < n; i++) {
		entry_encode(e[i].type, e[i].inode, (uint8_t *)b->entry[i]);
		memcpy(b->entry[i] + ENTRY_LEN, e[i].name, e[i].name_len);
		args_bytes(&args, b->entry[i], ENTRY_LEN + e[i].name_len);
	}
	r = op_eval(mr, SC_UNLINKBATCH, &args, ret);
	op_end(mr, &args);
	return r;
}

/* so often is a tree emptied into which others put new things */
enum { TRIES = 20 };

static int remove_batch(struct removal *rm, uint64_t dir, const struct tree_entry *e, size_t n)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct batch_buf *b = malloc(sizeof(*b));
	uint64_t bytes = 0, files = 0;
	struct removed d;
	int r = b ? batch_eval(rm, dir, e, n, b, &reply) : -ENOMEM;

	free(b);
	for (size_t i = 0; !r && i < reply_len(reply); i += REMOVED_LEN) {
		r = reply_removed(reply, i, &d);
		if (r)
			break;
		files++;
		bytes += d.length;
		removed_done(rm->t.mr, dir, &d);
	}
	tree_count(&rm->t, files, bytes);
	return r;
}

static int remove_files(struct tree *t, const struct tree_dir *d, const struct tree_entry *e,
			size_t n)
{
	return remove_batch(container_of(t, struct removal, t), d->inode, e, n);
}

static int may_empty(struct removal *rm, uint64_t dir)
{
	struct attr a;
	int r = rm->c->check ? redis_getattr(&rm->t.mr->base, dir, &a) : 0;

	if (r || !rm->c->check)
		return r;
	return access_check(&rm->t.mr->base, rm->c, dir, &a, ACCESS_WRITE | ACCESS_EXECUTE);
}

static int remove_enter(struct tree *t, const struct tree_dir *d, const struct tree_entry *e,
			uint64_t *ret_tag)
{
	int r = may_empty(container_of(t, struct removal, t), e->inode);

	(void)d;
	(void)ret_tag;
	return r == -ENOENT ? 1 : r;
}

int remove_dir(struct meta_redis *mr, const struct meta_ctx *c, uint64_t parent, const char *name,
	       bool skip_trash)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct removed d;
	struct args args;
	char hour[16];
	int r;

	args_init(&args, mr);
	op_begin(mr, &args);
	hour_of(mr, parent, skip_trash, args.now.sec, hour);
	args_be64(&args, parent);
	args_text(&args, name);
	args_u64(&args, c->uid);
	args_text(&args, hour);
	r = op_eval(mr, SC_RMDIR, &args, &reply);
	op_end(mr, &args);
	if (!r)
		r = reply_removed(reply, 0, &d);
	/* the trash itself has no statistics */
	if (!r && parent != INODE_TRASH)
		removed_done(mr, parent, &d);
	return r;
}

static int remove_leave(struct tree *t, const struct tree_dir *d)
{
	struct removal *rm = container_of(t, struct removal, t);
	int r = d->up ? remove_dir(t->mr, rm->c, d->up->inode, d->name, rm->skip_trash) : 0;

	if (!r)
		tree_count(t, d->up != NULL, 0);
	return r == -ENOENT ? 0 : r;
}

static const struct tree_ops removing = {remove_files, remove_enter, remove_leave};

int remove_below(struct meta_redis *mr, uint64_t dir, bool force, struct meta_progress *p)
{
	static const struct meta_ctx root = {0};
	struct removal rm = {.t = {.mr = mr, .ops = &removing, .progress = p},
			     .c = &root,
			     .skip_trash = true,
			     .force = force};

	return tree_walk(&rm.t, dir, 0);
}

int redis_remove_tree(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name,
		      bool skip_trash, struct meta_progress *p)
{
	struct meta_redis *mr = redis_engine(m);
	struct removal rm = {
		.t = {.mr = mr, .ops = &removing, .progress = p}, .c = c, .skip_trash = skip_trash};
	struct tree_entry e = {.name = name, .name_len = strlen(name)};
	struct attr a;
	int r = redis_lookup(m, c, parent, name, &e.inode, &a);

	if (r)
		return r;
	e.type = a.type;
	r = may_empty(&rm, parent);
	if (r)
		return r;
	if (a.type != INODE_DIR)
		return remove_batch(&rm, parent, &e, 1);
	r = may_empty(&rm, e.inode);
	for (int i = 0; i < TRIES && !r; i++) {
		r = tree_walk(&rm.t, e.inode, 0);
		if (!r)
			r = remove_dir(mr, c, parent, name, skip_trash);
		if (r == -ENOTEMPTY && rm.t.damaged)
			r = -EIO; /* only fsck takes that out */
		/* else somebody made something new in it */
		if (r != -ENOTEMPTY || i == TRIES - 1)
			break;
		r = 0;
	}
	if (!r)
		tree_count(&rm.t, 1, 0);
	return r;
}
