/* SPDX-License-Identifier: Apache-2.0 */
/* Names in directories: look up, make, link, remove, rename. Any thread that may block. */
#include "client/meta/meta_redis.h"

#include "client/meta/meta_redis_quota.h"

#include <inttypes.h>

/* LOOKS_MAX: then others change a tree faster than it can be looked at, or it is damaged */
enum { MKNOD_TRIES = 3, ASKED_MAX = 20, LOOKS_MAX = 3 };

static int reply_entry(const struct redis_reply *r, uint8_t *ret_type, uint64_t *ret_inode)
{
	size_t n;
	const char *p = r ? reply_text(r, &n) : NULL;

	return p && entry_decode((const uint8_t *)p, n, ret_type, ret_inode) == 0 ? 0 : -EIO;
}

int redis_lookup(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name,
		 uint64_t *ret, struct attr *ret_attr)
{
	struct meta_redis *mr = redis_engine(m);
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	const struct redis_reply *record;
	struct attr a = {0};
	uint64_t inode;
	uint8_t type;
	struct args args;
	int r;

	(void)c;
	args_init(&args, mr);
	args_u64(&args, parent);
	args_text(&args, name);
	r = op_eval(mr, SC_LOOKUP, &args, &reply);
	if (r)
		return r;
	r = reply_entry(reply_at(reply, 0), &type, &inode);
	if (r)
		return r;
	/* an entry whose record is lost is still there, with nothing but its type */
	record = reply_at(reply, 1);
	if (record && reply_type(record) == REDIS_STR)
		r = reply_attr(record, &a);
	else
		a.type = type;
	if (r)
		return r;
	*ret = inode;
	*ret_attr = a;
	return 0;
}

/* something has the number that we reserved: others are reserved */
static int pool_used_up(struct meta_redis *mr)
{
	mtx_lock(&mr->base.lock);
	mr->inodes.next = mr->inodes.end;
	mtx_unlock(&mr->base.lock);
	return -EAGAIN;
}

/* groups of a caller whose permissions nobody checked yet */
static void args_checked(struct args *a, const struct meta_ctx *c, struct str *buf)
{
	if (c->check)
		args_gids(a, c, buf);
	else
		args_text(a, "");
}

/* a script tells the record of a directory that it changed */
static void tell_dir(struct meta_redis *mr, const struct meta_ctx *c, int which, uint64_t dir,
		     const struct redis_reply *record)
{
	struct attr a;

	if (!record || reply_attr(record, &a))
		return;
	quota_learn(mr, dir, &a);
	if (c && c->ret_dirs)
		c->ret_dirs[which] = a;
}

/* the n-th element from the end */
static const struct redis_reply *reply_last(const struct redis_reply *r, size_t n)
{
	return reply_len(r) > n ? reply_at(r, reply_len(r) - 1 - n) : NULL;
}

/* -EAGAIN: pool_used_up */
static int mknod_once(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name,
		      uint8_t type, uint32_t mode, uint32_t umask, uint32_t rdev,
		      const char *target, uint64_t *ret, struct attr *ret_attr)
{
	struct meta_redis *mr = redis_engine(m);
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	_cleanup_(str_fini) struct str gids = STR_INIT;
	uint64_t inode, capacity, inodes;
	struct hash128 volume;
	struct args args;
	bool stats;
	int r = id_pool_take(mr, &mr->inodes, &inode, &volume);

	if (r)
		return r;
	meta_limits(m, &capacity, &inodes, &stats);
	args_init(&args, mr);
	op_begin(mr, &args);
	args_be64(&args, parent);
	args_text(&args, name);
	args_be64(&args, inode);
	args_u64(&args, type);
	args_u64(&args, mode);
	args_u64(&args, umask);
	args_u64(&args, c->uid);
	args_u64(&args, c->gid);
	args_u64(&args, rdev);
	args_text(&args, target);
	args_checked(&args, c, &gids);
	args_u64(&args, m->conf.skip_dir_mtime_us * 1000);
	args_u64(&args, capacity);
	args_u64(&args, inodes);
	r = str_error(&gids);
	if (!r)
		r = op_eval(mr, SC_MKNOD, &args, &reply);
	op_end(mr, &args);
	if (!r && reply_type(reply_at(reply, 0)) == REDIS_NIL)
		return pool_used_up(mr);
	if (!r)
		r = reply_attr(reply_at(reply, 0), ret_attr);
	if (r)
		return r;
	tell_dir(mr, c, 0, parent, reply_at(reply, 1));
	if (type == INODE_DIR)
		quota_learn(mr, inode, ret_attr);
	stat_add(mr, parent, 0, 4096, 1);
	quota_owner(mr, ret_attr->uid, ret_attr->gid, 4096, 1);
	*ret = inode;
	return 0;
}

int redis_mknod(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name,
		uint8_t type, uint32_t mode, uint32_t umask, uint32_t rdev, const char *target,
		uint64_t *ret, struct attr *ret_attr)
{
	int r = quota_room_make(redis_engine(m), parent, c);

	if (r)
		return r;
	r = -EAGAIN;
	for (int i = 0; i < MKNOD_TRIES && r == -EAGAIN; i++)
		r = mknod_once(m, c, parent, name, type, mode, umask, rdev, target, ret, ret_attr);
	return op_error(r);
}

static int tmpfile_once(struct meta *m, const struct meta_ctx *c, uint64_t parent, uint32_t mode,
			uint32_t umask, uint64_t *ret, struct attr *ret_attr)
{
	struct meta_redis *mr = redis_engine(m);
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	_cleanup_(str_fini) struct str gids = STR_INIT;
	uint64_t inode, capacity, inodes;
	struct hash128 volume;
	struct args args;
	bool stats;
	int r = id_pool_take(mr, &mr->inodes, &inode, &volume);

	if (r)
		return r;
	meta_limits(m, &capacity, &inodes, &stats);
	args_init(&args, mr);
	op_begin(mr, &args);
	args_be64(&args, parent);
	args_be64(&args, inode);
	args_u64(&args, mode);
	args_u64(&args, umask);
	args_u64(&args, c->uid);
	args_u64(&args, c->gid);
	args_checked(&args, c, &gids);
	args_u64(&args, session_now(m));
	args_u64(&args, capacity);
	args_u64(&args, inodes);
	r = str_error(&gids);
	if (!r)
		r = op_eval(mr, SC_TMPFILE, &args, &reply);
	op_end(mr, &args);
	if (!r && reply_type(reply_at(reply, 0)) == REDIS_NIL)
		return pool_used_up(mr);
	if (!r)
		r = reply_attr(reply_at(reply, 0), ret_attr);
	if (r)
		return r;
	quota_owner(mr, ret_attr->uid, ret_attr->gid, 4096, 1);
	*ret = inode;
	return 0;
}

int redis_tmpfile(struct meta *m, const struct meta_ctx *c, uint64_t parent, uint32_t mode,
		  uint32_t umask, uint64_t *ret, struct attr *ret_attr)
{
	int r = quota_room_make(redis_engine(m), parent, c);

	if (r)
		return r;
	r = -EAGAIN;
	for (int i = 0; i < MKNOD_TRIES && r == -EAGAIN; i++)
		r = tmpfile_once(m, c, parent, mode, umask, ret, ret_attr);
	return op_error(r);
}

int redis_link(struct meta *m, const struct meta_ctx *c, uint64_t inode, uint64_t parent,
	       const char *name, struct attr *ret)
{
	struct meta_redis *mr = redis_engine(m);
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	uint64_t length;
	struct args args;
	struct attr a;
	int r = quota_room_link(mr, inode, parent);

	if (r)
		return r;
	args_init(&args, mr);
	op_begin(mr, &args);
	args_be64(&args, inode);
	args_be64(&args, parent);
	args_text(&args, name);
	args_u64(&args, m->conf.skip_dir_mtime_us * 1000);
	args_u64(&args, session_now(m));
	r = op_eval(mr, SC_LINK, &args, &reply);
	op_end(mr, &args);
	if (!r)
		r = reply_attr(reply_at(reply, 0), &a);
	if (r)
		return r;
	tell_dir(mr, c, 0, parent, reply_at(reply, 1));
	open_named(m, inode);
	length = a.type == INODE_FILE ? a.length : 0;
	stat_add(mr, parent, (int64_t)length, (int64_t)align4k(length), 1);
	*ret = a;
	return 0;
}

int reply_removed(const struct redis_reply *r, size_t at, struct removed *ret)
{
	size_t n;
	struct removed d = {.what = reply_text(reply_at(r, at), &n)};
	uint64_t owner;

	d.type = (uint8_t)reply_int(reply_at(r, at + 1));
	if (!d.what || reply_be64(reply_at(r, at + 2), &d.inode) ||
	    reply_be64(reply_at(r, at + 3), &d.length) || reply_be64(reply_at(r, at + 4), &d.hour))
		return -EIO;
	d.owned = reply_be64(reply_at(r, at + 5), &owner) == 0;
	if (d.owned) {
		d.uid = (uint32_t)(owner >> 32);
		d.gid = (uint32_t)owner;
	}
	*ret = d;
	return 0;
}

void removed_done(struct meta_redis *mr, uint64_t parent, const struct removed *d)
{
	int64_t length = (int64_t)d->length, space = (int64_t)align4k(d->length);

	stat_add(mr, parent, -length, -space, -1);
	if (d->hour)
		stat_add(mr, d->hour, length, space, 1);
	if (d->owned && (!strcmp(d->what, "gone") || !strcmp(d->what, "nothing")))
		quota_owner(mr, d->uid, d->gid, -space, -1);
	if (!strcmp(d->what, "gone") && d->type == INODE_FILE) {
		delete_later(mr, d->inode, d->length);
	} else if (!strcmp(d->what, "open") && !open_unnamed(&mr->base, d->inode)) {
		/* closed in the meantime; what fails here ends with the session */
		(void)redis_close(&mr->base, d->inode);
	}
}

/* which open files a removal is told of: all, or, when there are too many, the one it asks for */
struct open_arg {
	uint8_t v[OPEN_LIST_MAX * 8];
	int at;
};

static void args_open(struct meta_redis *mr, struct args *a, struct open_arg *o)
{
	size_t n = 0;

	if (!open_list(&mr->base, o->v, &n)) {
		o->v[0] = '?';
		n = 1;
	}
	o->at = a->n;
	args_bytes(a, o->v, n);
}

/* a script that removes (trash.lua); it asks once, or again when the name was given to another file
 * in between */
static int removal_eval(struct meta_redis *mr, enum script s, struct args *a, struct open_arg *o,
			struct redis_reply **ret)
{
	int r = 0;

	for (int i = 0; i < ASKED_MAX && !r; i++) {
		_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
		uint64_t inode;

		r = op_eval(mr, s, a, &reply);
		if (r)
			return r;
		if (!reply_is(reply_at(reply, 0), "which")) {
			*ret = TAKE_PTR(reply);
			return 0;
		}
		r = reply_be64(reply_at(reply, 1), &inode);
		if (r)
			return r;
		o->v[0] = '?';
		be64(o->v + 1, inode);
		o->v[9] = open_is(&mr->base, inode) ? '1' : '0';
		a->len[o->at] = 10;
	}
	return -EIO;
}

int redis_unlink(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name)
{
	struct meta_redis *mr = redis_engine(m);
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct open_arg open;
	struct removed d;
	struct args args;
	char hour[16];
	int r;

	args_init(&args, mr);
	op_begin(mr, &args);
	trash_hour_name(m, parent, args.now.sec, hour);
	args_be64(&args, parent);
	args_text(&args, name);
	args_u64(&args, c->uid);
	args_u64(&args, m->conf.skip_dir_mtime_us * 1000);
	args_text(&args, hour);
	args_u64(&args, session_now(m));
	args_open(mr, &args, &open);
	r = removal_eval(mr, SC_UNLINK, &args, &open, &reply);
	op_end(mr, &args);
	if (!r)
		r = reply_removed(reply, 0, &d);
	if (r)
		return r;
	tell_dir(mr, c, 0, parent, reply_last(reply, 0));
	removed_done(mr, parent, &d);
	return 0;
}

int redis_rmdir(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name)
{
	struct meta_redis *mr = redis_engine(m);
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct removed d;
	struct args args;
	char hour[16];
	int r;

	args_init(&args, mr);
	op_begin(mr, &args);
	trash_hour_name(m, parent, args.now.sec, hour);
	args_be64(&args, parent);
	args_text(&args, name);
	args_u64(&args, c->uid);
	args_text(&args, hour);
	r = op_eval(mr, SC_RMDIR, &args, &reply);
	op_end(mr, &args);
	if (!r)
		r = reply_removed(reply, 0, &d);
	if (r)
		return r;
	tell_dir(mr, c, 0, parent, reply_last(reply, 0));
	removed_done(mr, parent, &d);
	return 0;
}

/* an entry with record a went from one directory to another */
static void stat_move(struct meta_redis *mr, uint64_t inode, const struct attr *a, uint64_t from,
		      uint64_t to)
{
	uint64_t length = a->type == INODE_FILE ? a->length : 0;

	if (from == to)
		return;
	if (a->type == INODE_DIR)
		quota_reparented(mr, inode);
	stat_add(mr, from, -(int64_t)length, -(int64_t)align4k(length), -1);
	stat_add(mr, to, (int64_t)length, (int64_t)align4k(length), 1);
}

static int renamed(struct meta_redis *mr, const struct meta_ctx *c, const struct redis_reply *reply,
		   uint64_t parent, uint64_t new_parent, uint64_t *ret, struct attr *ret_attr)
{
	const struct redis_reply *what = reply_at(reply, 2);
	struct attr a, b;
	struct removed d;
	uint64_t inode;
	int r = reply_attr(reply_at(reply, 0), &a);

	if (!r)
		r = reply_be64(reply_at(reply, 1), &inode);
	if (r)
		return r;
	*ret = inode;
	*ret_attr = a;
	if (reply_is(what, ""))
		return 0;
	tell_dir(mr, c, 0, parent, reply_last(reply, 1));
	tell_dir(mr, c, 1, new_parent, reply_last(reply, 0));
	stat_move(mr, inode, &a, parent, new_parent);
	if (reply_is(what, "exchange")) {
		r = reply_attr(reply_at(reply, 3), &b);
		if (!r)
			r = reply_be64(reply_at(reply, 4), &inode);
		if (!r && c->ret_other)
			*c->ret_other = inode;
		if (!r)
			stat_move(mr, inode, &b, new_parent, parent);
	} else if (reply_len(reply) > 6) {
		r = reply_removed(reply, 3, &d);
		if (!r)
			removed_done(mr, new_parent, &d);
	}
	return r;
}

/* everything a rename is told, behind token, number and now */
struct renaming {
	unsigned looks; /* so often the script wanted to know more of what is below */
	const struct meta_ctx *c;
	uint64_t parent, new_parent;
	const char *name, *new_name;
	unsigned flags;
	uint64_t whiteout; /* 0: none */
	char hour[16];
	struct open_arg open;
	struct str gids;
	struct quota_weight below[2];
	char sums[2][2][21];
};

static void args_below(struct args *args, const struct quota_weight *w, char sums[2][21])
{
	args_bytes(args, w->list ? w->list : (const uint8_t *)"", w->list_len);
	sums[0][0] = sums[1][0] = '\0';
	if (w->known) {
		snprintf(sums[0], sizeof(sums[0]), "%" PRId64, w->space);
		snprintf(sums[1], sizeof(sums[1]), "%" PRId64, w->inodes);
	}
	args_text(args, sums[0]);
	args_text(args, sums[1]);
}

static int rename_args(struct meta *m, struct args *args, struct renaming *n)
{
	struct meta_redis *mr = redis_engine(m);
	uint64_t capacity, inodes;
	bool stats;

	trash_hour_name(m, n->new_parent, args->now.sec, n->hour);
	meta_limits(m, &capacity, &inodes, &stats);
	args_be64(args, n->parent);
	args_text(args, n->name);
	args_be64(args, n->new_parent);
	args_text(args, n->new_name);
	args_u64(args, n->flags);
	args_u64(args, n->c->uid);
	args_u64(args, m->conf.skip_dir_mtime_us * 1000);
	args_text(args, n->hour);
	args_u64(args, session_now(m));
	args_open(mr, args, &n->open);
	args_u64(args, n->c->gid);
	args_checked(args, n->c, &n->gids);
	if (n->whiteout)
		args_be64(args, n->whiteout);
	else
		args_text(args, "");
	args_u64(args, capacity);
	args_u64(args, inodes);
	for (int i = 0; i < 2; i++)
		args_below(args, &n->below[i], n->sums[i]);
	return str_error(&n->gids);
}

/* dir: the record of the directory that it is in */
static void whiteout_made(struct meta_redis *mr, const struct renaming *n,
			  const struct redis_reply *dir)
{
	enum { SGID = 02000 };
	uint32_t gid = n->c->gid;
	struct attr a;

	if (dir && reply_attr(dir, &a) == 0 && (a.mode & SGID))
		gid = a.gid;
	stat_add(mr, n->parent, 0, 4096, 1);
	quota_owner(mr, n->c->uid, gid, 4096, 1);
}

static int rename_once(struct meta *m, struct renaming *n, uint64_t *ret, struct attr *ret_attr)
{
	struct meta_redis *mr = redis_engine(m);
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct hash128 volume;
	struct args args;
	bool carries;
	int r = quota_room_move(mr, n->parent, n->name, n->new_parent,
				n->flags & RENAME_F_EXCHANGE ? n->new_name : NULL, n->looks > 0,
				n->looks >= LOOKS_MAX, n->below);

	if (r)
		return r;
	if (n->flags & RENAME_F_WHITEOUT) {
		r = id_pool_take(mr, &mr->inodes, &n->whiteout, &volume);
		if (r)
			return r;
	}
	args_init(&args, mr);
	op_begin(mr, &args);
	r = rename_args(m, &args, n);
	/* where nobody looked what is below, the script carries nothing from quota to quota */
	carries = n->below[0].known || n->below[1].known;
	if (carries)
		quota_tell(mr);
	if (!r)
		r = removal_eval(mr, SC_RENAME, &args, &n->open, &reply);
	if (carries)
		quota_told(mr, r ? NULL : reply_last(reply, 2), false);
	op_end(mr, &args);
	if (!r && reply_is(reply_at(reply, 0), "below"))
		return n->looks++, -EAGAIN;
	if (!r && reply_type(reply_at(reply, 0)) == REDIS_NIL)
		return pool_used_up(mr);
	if (!r)
		r = renamed(mr, n->c, reply, n->parent, n->new_parent, ret, ret_attr);
	if (r || reply_is(reply_at(reply, 2), ""))
		return r;
	if (n->whiteout)
		whiteout_made(mr, n, reply_last(reply, 1));
	return 0;
}

int redis_rename(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name,
		 uint64_t new_parent, const char *new_name, unsigned flags, uint64_t *ret,
		 struct attr *ret_attr)
{
	unsigned looks = 0;
	int r = -EAGAIN;

	for (int i = 0; i < MKNOD_TRIES + LOOKS_MAX && r == -EAGAIN; i++) {
		struct renaming n = {.looks = looks,
				     .c = c,
				     .parent = parent,
				     .new_parent = new_parent,
				     .name = name,
				     .new_name = new_name,
				     .flags = flags,
				     .gids = STR_INIT};

		r = rename_once(m, &n, ret, ret_attr);
		looks = n.looks;
		str_fini(&n.gids);
		free(n.below[0].list);
		free(n.below[1].list);
	}
	return op_error(r);
}

int redis_readlink(struct meta *m, uint64_t inode, char **ret)
{
	struct meta_redis *mr = redis_engine(m);
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	const char *p;
	size_t n;
	char *s;
	int r = op_get(mr, "s", inode, &reply);

	if (r)
		return r;
	p = reply_text(reply_at(reply, 0), &n);
	if (!p)
		return -ENOENT;
	if (n == 0 || n > SYMLINK_MAX + 1 || memchr(p, '\0', n))
		return -EIO;
	s = strndup(p, n);
	if (!s)
		return -ENOMEM;
	*ret = s;
	return 0;
}
