/* SPDX-License-Identifier: Apache-2.0 */
/* Changing a file's length: what lies between the two lengths becomes zeros, in both directions. A
 * script does it up to MIDDLE_MAX chunks; beyond, WATCH, reads and one MULTI do, with a scan for
 * the lists that exist when there are very many. Any thread that may block. */
#include "client/meta/meta_redis.h"

#include "client/meta/meta_redis_quota.h"

#include <inttypes.h>

#include "common/clock.h"

enum { MIDDLE_MAX = 900, TRIES = 50 };

struct truncation {
	uint64_t inode, length;
	bool through_handle;
	uint64_t capacity;
	struct attr before, after;
	uint32_t first, last; /* chunks of the smaller and the larger length */
	struct lists lists;   /* chunks between that have one */
};

static void truncation_place(struct truncation *t)
{
	uint64_t left = MIN(t->before.length, t->length), right = MAX(t->before.length, t->length);

	t->first = (uint32_t)(left >> CHUNK_BITS);
	t->last = (uint32_t)(right >> CHUNK_BITS);
}

static int append_zeros(struct meta_redis *mr, struct redis_conn *c, const char *cmd,
			uint64_t inode, uint32_t index, uint32_t pos, uint32_t len)
{
	struct slice s = {.pos = pos, .len = len};
	uint8_t p[SLICE_LEN];

	slice_encode(&s, p);
	return redis_append(c, "%s %sc%llu_%lu %b", cmd, mr->prefix, (unsigned long long)inode,
			    (unsigned long)index, p, sizeof(p));
}

/* MULTI … EXEC in one go; *ret_commands: replies to take */
static int truncation_append(struct meta_redis *mr, struct truncation *t, struct redis_conn *c,
			     const struct args *op, size_t *ret_commands)
{
	uint64_t left = MIN(t->before.length, t->length), right = MAX(t->before.length, t->length);
	uint32_t lo = (uint32_t)(left % CHUNK_SIZE), ro = (uint32_t)(right % CHUNK_SIZE);
	int64_t space = (int64_t)(align4k(t->length) - align4k(t->before.length));
	uint8_t record[ATTR_MAX];
	size_t len = attr_encode(&t->after, record), n = 3;
	int r = redis_append(c, "MULTI");

	if (!r && ++n)
		r = redis_append(c, "INCRBY %susedSpace %lld", mr->prefix, (long long)space);
	if (!r)
		r = redis_append(c, "SET %si%llu %b", mr->prefix, (unsigned long long)t->inode,
				 record, len);
	if (!r && ++n)
		r = append_zeros(mr, c, "RPUSH", t->inode, t->first, lo, CHUNK_SIZE - lo);
	for (uint32_t i = 0; !r && i < t->lists.n; i++, n++)
		r = append_zeros(mr, c, "RPUSHX", t->inode, t->lists.v[i], 0, CHUNK_SIZE);
	if (!r && ro && ++n)
		r = append_zeros(mr, c, "RPUSH", t->inode, t->last, 0, ro);
	/* so that a lost answer can be told from a lost command */
	if (!r && ++n)
		r = redis_append(c, "HSET %s_ops %b %b", mr->prefix, op->v[1], op->len[1], op->v[2],
				 op->len[2]);
	if (!r)
		r = redis_append(c, "EXEC");
	*ret_commands = n;
	return r;
}

static int truncation_check(const struct truncation *t)
{
	const struct attr *a = &t->before;

	if (a->type != INODE_FILE || (a->flags & (ATTR_IMMUTABLE | ATTR_APPEND)) ||
	    (!t->through_handle && a->parent > INODE_TRASH))
		return -EPERM;
	return 0;
}

/* Which chunks have a list; and that all are lists, since a command that fails inside the
 * transaction would not undo the others. */
static int truncation_lists(struct meta_redis *mr, struct truncation *t, struct redis_conn *c,
			    uint64_t deadline)
{
	int r = lists_find(mr, c, deadline, t->inode, t->first, t->first + 1, &t->lists);

	if (!r)
		r = lists_find(mr, c, deadline, t->inode, t->last, t->last + 1, &t->lists);
	return r ? r : lists_find(mr, c, deadline, t->inode, t->first + 1, t->last, &t->lists);
}

/* the counter is one, and has room; _ops is a hash */
static int truncation_fits(struct meta_redis *mr, const struct truncation *t, struct redis_conn *c,
			   uint64_t deadline)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL, *ops = NULL;
	int64_t more = (int64_t)(align4k(t->length) - align4k(t->before.length)), used;
	const char *text;
	size_t n;
	int r = redis_cmd(c, deadline, &ops, "HLEN %s_ops", mr->prefix);

	if (!r)
		r = redis_cmd(c, deadline, &reply, "GET %susedSpace", mr->prefix);
	if (r)
		return r;
	text = reply_text(reply, &n);
	used = reply_int(reply);
	if (text && !used && strcmp(text, "0") != 0)
		return -EIO;
	if (used > INT64_MAX - ((int64_t)1 << 58) || used < INT64_MIN + ((int64_t)1 << 58))
		return -EIO;
	return t->capacity && more > 0 && used + more > (int64_t)t->capacity ? -ENOSPC : 0;
}

/* -EAGAIN: somebody else changed the file */
static int truncation_try(struct meta_redis *mr, struct truncation *t, struct redis_conn *c,
			  const struct args *op, const struct mark *k, uint64_t deadline)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	size_t n;
	int r = redis_cmd(c, deadline, &reply, "WATCH %si%llu %s_gen", mr->prefix,
			  (unsigned long long)t->inode, mr->prefix);

	if (r)
		return r;
	redis_reply_freep(&reply);
	reply = NULL;
	r = redis_cmd(c, deadline, &reply, "MGET %si%llu %s_gen", mr->prefix,
		      (unsigned long long)t->inode, mr->prefix);
	if (r)
		return r;
	if (!mark_fits(k, reply_at(reply, 1), NULL))
		return -EIO; /* the volume moved since the script looked */
	if (reply_type(reply_at(reply, 0)) == REDIS_NIL)
		return -ENOENT;
	r = reply_attr(reply_at(reply, 0), &t->before);
	if (!r)
		r = truncation_check(t);
	if (r)
		return r;
	t->after = t->before;
	if (t->before.length == t->length)
		return 0;
	r = truncation_fits(mr, t, c, deadline);
	if (r)
		return r;
	t->after.length = t->length;
	t->after.mtime = t->after.ctime = op->now;
	truncation_place(t);
	r = truncation_lists(mr, t, c, deadline);
	if (r)
		return r;
	r = truncation_append(mr, t, c, op, &n);
	if (r)
		return r;
	for (size_t i = 0; i < n; i++) {
		int one;

		redis_reply_freep(&reply);
		reply = NULL;
		one = redis_next(c, deadline, &reply);
		if (one == -ECONNRESET || one == -ETIMEDOUT)
			return one;
		r = r ? r : one;
	}
	if (r)
		return r;
	for (size_t i = 0; i < reply_len(reply); i++) {
		if (reply_type(reply_at(reply, i)) == REDIS_ERR)
			return -EIO; /* in spite of all that was looked at */
	}
	return reply_type(reply) == REDIS_NIL ? -EAGAIN : 0;
}

/* after a broken connection: did it happen? */
static int truncation_done(struct meta_redis *mr, const struct args *op, bool *ret)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	const char *p;
	size_t n;
	int r = redis_once(mr->redis, op_deadline(mr), &reply, "HGET %s_ops %b", mr->prefix,
			   op->v[1], op->len[1]);

	if (r)
		return r;
	p = reply_text(reply, &n);
	*ret = p && n >= SEQ_LEN && !memcmp(p, op->v[2], SEQ_LEN);
	return 0;
}

static int truncate_steps(struct meta_redis *mr, struct truncation *t, const struct args *op,
			  const struct mark *k)
{
	uint64_t deadline = op_deadline(mr);
	struct redis_conn *c;
	bool happened = false;
	int r = -EAGAIN;

	for (int i = 0; i < TRIES && r == -EAGAIN; i++) {
		r = redis_acquire(mr->redis, deadline, &c);
		if (r)
			break;
		r = truncation_try(mr, t, c, op, k, deadline);
		if (r && r != -EAGAIN && r != -ECONNRESET && r != -ETIMEDOUT) {
			struct redis_reply *reply = NULL;

			(void)redis_cmd(c, deadline, &reply, "UNWATCH");
			redis_reply_free(reply);
		}
		redis_release(c);
		if (r == -ECONNRESET) {
			r = truncation_done(mr, op, &happened);
			r = r ? r : happened ? 0 : -EAGAIN;
		}
		if (r == -EAGAIN)
			usleep((useconds_t)((i * i + 1) * 500));
	}
	return op_error(r);
}

int redis_truncate(struct meta *m, const struct meta_ctx *c, uint64_t inode, uint64_t length,
		   bool through_handle, struct attr *ret)
{
	struct meta_redis *mr = redis_engine(m);
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct truncation t = {.inode = inode, .length = length, .through_handle = through_handle};
	uint64_t inodes, before = 0;
	struct args args;
	struct mark k;
	struct attr a;
	bool stats;
	int r = quota_room_grow(mr, inode, length);

	(void)c;
	if (r)
		return r;
	meta_limits(m, &t.capacity, &inodes, &stats);
	args_init(&args, mr);
	op_begin(mr, &args);
	args_u64(&args, inode);
	args_be64(&args, length);
	args_text(&args, through_handle ? "1" : "0");
	args_u64(&args, t.capacity);
	args_u64(&args, MIDDLE_MAX);
	r = op_eval_until(mr, SC_TRUNCATE, &args, op_deadline(mr), &k, &reply);
	if (!r && reply_type(reply_at(reply, 0)) == REDIS_NIL) {
		r = truncate_steps(mr, &t, &args, &k);
		a = t.after;
		before = t.before.length;
	} else if (!r) {
		r = reply_attr(reply_at(reply, 0), &a);
		if (!r)
			r = reply_be64(reply_at(reply, 2), &before);
	}
	op_end(mr, &args);
	lists_fini(&t.lists);
	if (r)
		return r;
	stat_resized(mr, inode, &a, before);
	*ret = a;
	return 0;
}
