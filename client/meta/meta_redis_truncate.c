/* SPDX-License-Identifier: Apache-2.0 */
/* Changing a file's length: what lies between the two lengths becomes zeros, in both directions. A
 * script does it up to MIDDLE_MAX chunks; beyond, WATCH, reads and MULTI do, with a scan for the
 * lists that exist when there are very many. No MULTI touches more than about STEP lists: a file
 * with more becomes shorter from its end, step by step, each as if somebody truncated it to a
 * length on the way; one that grows gets zeros behind its end first and the length last. So at any
 * moment all behind a file's length is zeros, whoever reads or crashes. Any thread that may block.
 */
#include "client/meta/meta_redis.h"

#include "client/meta/meta_redis_quota.h"

#include <inttypes.h>

#include "common/clock.h"
#include "common/fiber.h"

enum { MIDDLE_MAX = 900, STEP = 900, TRIES = 50, LOG_LINE_MAX = 256 };

struct truncation {
	uint64_t inode, length;
	bool through_handle;
	uint64_t capacity;
	struct attr before, after; /* of the step */
	struct lists lists;	   /* between the two lengths; those that were done are gone */
	uint32_t at, n;		   /* the step: zeros for that part of the lists, */
	uint32_t keep, done;	   /* and then the first so many lists are left, done of them */
	/* The file as the last step read or left it: if it is the same still, nobody wrote, and the
	 * lists are the same. */
	uint8_t record[ATTR_MAX];
	size_t record_len;
	struct redis_reply *links; /* directories that name it, as of before */
	bool sent;		   /* the step's answer is not here */
	bool watches;		   /* the connection that is used */
	char log[LOG_LINE_MAX];
};

/* what one try came to, beside errors */
enum { TRUNCATED = 0, ON_THE_WAY = 1 };

static int append_zeros(struct meta_redis *mr, struct redis_conn *c, const char *cmd,
			uint64_t inode, uint32_t index, uint32_t pos, uint32_t len)
{
	struct slice s = {.pos = pos, .len = len};
	uint8_t p[SLICE_LEN];

	slice_encode(&s, p);
	return redis_append(c, "%s %sc%llu_%lu %b", cmd, mr->prefix, (unsigned long long)inode,
			    (unsigned long)index, p, sizeof(p));
}

static void truncation_last(struct truncation *t, struct time_ns now)
{
	t->after = t->before;
	t->after.length = t->length;
	t->after.mtime = t->after.ctime = now;
}

/* what the next step does, with the lists found */
static void truncation_plan(struct truncation *t, struct time_ns now)
{
	uint32_t n = t->lists.n;

	truncation_last(t, now);
	t->at = t->done;
	t->n = n - t->done;
	t->keep = n;
	if (t->n <= STEP)
		return;
	if (t->length < t->before.length) {
		t->at = n - STEP + 1; /* the one before is the step's first chunk */
		t->n = STEP - 1;
		t->keep = n - STEP;
		t->after.length = (uint64_t)t->lists.v[t->keep] << CHUNK_BITS;
	} else {
		t->n = STEP;
		t->after = t->before; /* only zeros behind its end */
	}
}

/* the step happened */
static void truncation_went(struct meta_redis *mr, struct truncation *t)
{
	if (t->after.length == t->before.length)
		t->done += t->n;
	else
		stat_resized(mr, &t->after, t->before.length, t->links);
	t->lists.n = t->keep;
	t->sent = false;
}

static void truncation_log(struct meta_redis *mr, struct truncation *t)
{
	t->log[0] = '\0';
	if (!meta_setting(&mr->base)->change_log)
		return;
	snprintf(t->log, sizeof(t->log),
		 "%" PRId64 ".%09" PRIu32 "|TRUNCATE(%" PRIu64 ",%" PRIu64 ",%" PRIu64
		 ",%d)|(%" PRIu64 ",%" PRIu64 ")",
		 t->after.ctime.sec, t->after.ctime.nsec, t->inode, t->before.length,
		 t->after.length, t->through_handle, session_now(&mr->base),
		 __atomic_add_fetch(&mr->logged, 1, __ATOMIC_RELAXED));
}

/* zeros from the smaller length to the end of its chunk, and from the start of the larger's chunk
 * to it */
static int append_borders(struct meta_redis *mr, const struct truncation *t, struct redis_conn *c,
			  size_t *n)
{
	uint64_t left = MIN(t->before.length, t->after.length);
	uint64_t right = MAX(t->before.length, t->after.length);
	uint32_t first = (uint32_t)(left >> CHUNK_BITS), last = (uint32_t)(right >> CHUNK_BITS);
	uint32_t lo = (uint32_t)(left % CHUNK_SIZE), ro = (uint32_t)(right % CHUNK_SIZE);
	int r = append_zeros(mr, c, "RPUSH", t->inode, first, lo,
			     first == last ? ro - lo : CHUNK_SIZE - lo);

	++*n;
	if (!r && first != last && ro && ++*n)
		r = append_zeros(mr, c, "RPUSH", t->inode, last, 0, ro);
	return r;
}

/* the file itself, beside its lists */
static int append_file(struct meta_redis *mr, struct truncation *t, struct redis_conn *c,
		       const struct args *op, size_t *n)
{
	int64_t space = (int64_t)(align4k(t->after.length) - align4k(t->before.length));
	int r = redis_append(c, "INCRBY %susedSpace %lld", mr->prefix, (long long)space);

	t->record_len = attr_encode(&t->after, t->record);
	*n += 2;
	if (!r)
		r = redis_append(c, "SET %si%llu %b", mr->prefix, (unsigned long long)t->inode,
				 t->record, t->record_len);
	if (!r)
		r = append_borders(mr, t, c, n);
	truncation_log(mr, t);
	if (!r && t->log[0] && ++*n)
		r = redis_append(c, "RPUSH %stxnLog %s", mr->prefix, t->log);
	if (!r && t->log[0] && ++*n)
		r = redis_append(c, "INCR %stxnLastLog", mr->prefix);
	/* so that a lost answer can be told from a lost command */
	if (!r && t->after.length == t->length && ++*n)
		r = redis_append(c, "HSET %s_ops %b %b", mr->prefix, op->v[1], op->len[1], op->v[2],
				 op->len[2]);
	return r;
}

/* MULTI … EXEC in one go; *ret_commands: replies to take */
static int truncation_append(struct meta_redis *mr, struct truncation *t, struct redis_conn *c,
			     const struct args *op, size_t *ret_commands)
{
	size_t n = 2;
	int r = redis_append(c, "MULTI");

	if (!r && t->after.length != t->before.length)
		r = append_file(mr, t, c, op, &n);
	for (uint32_t i = 0; !r && i < t->n; i++, n++)
		r = append_zeros(mr, c, "RPUSHX", t->inode, t->lists.v[t->at + i], 0, CHUNK_SIZE);
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
	uint64_t left = MIN(t->before.length, t->length), right = MAX(t->before.length, t->length);
	uint32_t first = (uint32_t)(left >> CHUNK_BITS), last = (uint32_t)(right >> CHUNK_BITS);
	int r = lists_find(mr, c, deadline, t->inode, first, first + 1, &t->lists);

	t->done = 0;
	if (!r)
		r = lists_find(mr, c, deadline, t->inode, last, last + 1, &t->lists);
	return r ? r : lists_find(mr, c, deadline, t->inode, first + 1, last, &t->lists);
}

/* what may be added to; not there: 0 */
static int counter_read(struct meta_redis *mr, struct redis_conn *c, const char *name,
			uint64_t deadline, int64_t *ret)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	int64_t room = (int64_t)1 << 58, v;
	const char *text;
	size_t n;
	int r = redis_cmd(c, deadline, &reply, "GET %s%s", mr->prefix, name);

	if (r)
		return r;
	text = reply_text(reply, &n);
	v = reply_int(reply);
	if ((text && !v && strcmp(text, "0") != 0) || v > INT64_MAX - room || v < INT64_MIN + room)
		return -EIO;
	*ret = v;
	return 0;
}

/* counters are that, and have room; _ops is a hash, the change log a list */
static int truncation_fits(struct meta_redis *mr, const struct truncation *t, struct redis_conn *c,
			   uint64_t deadline)
{
	_cleanup_(redis_reply_freep) struct redis_reply *ops = NULL, *log = NULL;
	int64_t more = (int64_t)(align4k(t->length) - align4k(t->before.length)), used = 0, lines;
	bool logs = meta_setting(&mr->base)->change_log;
	int r = redis_cmd(c, deadline, &ops, "HLEN %s_ops", mr->prefix);

	if (!r && logs)
		r = redis_cmd(c, deadline, &log, "LLEN %stxnLog", mr->prefix);
	if (!r && logs)
		r = counter_read(mr, c, "txnLastLog", deadline, &lines);
	if (!r)
		r = counter_read(mr, c, "usedSpace", deadline, &used);
	if (r)
		return r;
	return t->capacity && more > 0 && used + more > (int64_t)t->capacity ? -ENOSPC : 0;
}

/* the last step happened, though its answer was lost */
static int truncation_done(struct meta_redis *mr, struct redis_conn *c, const struct args *op,
			   uint64_t deadline, bool *ret)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	const char *p;
	size_t n;
	int r = redis_cmd(c, deadline, &reply, "HGET %s_ops %b", mr->prefix, op->v[1], op->len[1]);

	if (r)
		return r;
	p = reply_text(reply, &n);
	*ret = p && n >= SEQ_LEN && !memcmp(p, op->v[2], SEQ_LEN);
	return 0;
}

/* what EXEC answered, behind what the commands before it did; -EAGAIN: somebody else changed the
 * file */
static int truncation_answer(struct redis_conn *c, size_t n, uint64_t deadline)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	int r = 0;

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

/* the file as it is; *ret_same: as the last step left it */
static int truncation_read(struct meta_redis *mr, struct truncation *t, struct redis_conn *c,
			   const struct mark *k, uint64_t deadline, bool *ret_same)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	const char *p;
	size_t n;
	int r = redis_cmd(c, deadline, &reply, "MGET %si%llu %s_gen", mr->prefix,
			  (unsigned long long)t->inode, mr->prefix);

	if (r)
		return r;
	if (!mark_fits(k, reply_at(reply, 1), NULL))
		return -EIO; /* the volume moved since the script looked */
	p = reply_text(reply_at(reply, 0), &n);
	if (!p)
		return -ENOENT;
	*ret_same = n == t->record_len && !memcmp(p, t->record, n);
	if (t->sent && *ret_same && t->after.length != t->before.length)
		truncation_went(mr, t);
	t->sent = false;
	r = reply_attr(reply_at(reply, 0), &t->before);
	if (!r && n <= sizeof(t->record)) {
		memcpy(t->record, p, n);
		t->record_len = n;
	}
	return r ? r : truncation_check(t);
}

/* TRUNCATED, ON_THE_WAY; -EAGAIN: somebody else changed the file */
static int truncation_try(struct meta_redis *mr, struct truncation *t, struct redis_conn *c,
			  const struct args *op, const struct mark *k, uint64_t deadline)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	bool done = false, same = false;
	size_t n;
	int r = redis_cmd(c, deadline, &reply, "WATCH %si%llu %sp%llu %s_gen", mr->prefix,
			  (unsigned long long)t->inode, mr->prefix, (unsigned long long)t->inode,
			  mr->prefix);

	t->watches = !r;
	if (!r)
		r = truncation_done(mr, c, op, deadline, &done);
	if (!r &&
	    done) { /* before is what it saw: who looked in between did so before it happened */
		truncation_last(t, op->now);
		truncation_went(mr, t);
		return TRUNCATED;
	}
	if (!r)
		r = truncation_read(mr, t, c, k, deadline, &same);
	if (r)
		return r;
	t->after = t->before;
	if (t->before.length == t->length)
		return TRUNCATED;
	redis_reply_free(TAKE_PTR(t->links));
	r = redis_cmd(c, deadline, &t->links, "HGETALL %sp%llu", mr->prefix,
		      (unsigned long long)t->inode);
	if (!r)
		r = truncation_fits(mr, t, c, deadline);
	if (!r && !same)
		r = truncation_lists(mr, t, c, deadline);
	if (r)
		return r;
	truncation_plan(t, op->now);
	t->sent = true;
	r = truncation_append(mr, t, c, op, &n);
	if (!r)
		r = truncation_answer(c, n, deadline);
	t->watches = r && r != -EAGAIN;
	if (r)
		return r;
	truncation_went(mr, t);
	return t->after.length == t->length ? TRUNCATED : ON_THE_WAY;
}

static int truncate_steps(struct meta_redis *mr, struct truncation *t, const struct args *op,
			  const struct mark *k)
{
	uint64_t deadline = op_deadline(mr);
	struct redis_conn *c;
	int r = -EAGAIN;

	for (int i = 0; i < TRIES && (r == -EAGAIN || r == ON_THE_WAY); i++) {
		r = redis_acquire(mr->redis, deadline, &c);
		if (r)
			break;
		r = truncation_try(mr, t, c, op, k, deadline);
		if (t->watches && r != -ECONNRESET && r != -ETIMEDOUT) {
			struct redis_reply *reply = NULL;

			(void)redis_cmd(c, deadline, &reply, "UNWATCH");
			redis_reply_free(reply);
		}
		redis_release(c);
		/* the next try asks whether it happened */
		if ((r == -ECONNRESET || r == -ETIMEDOUT) && clock_left(deadline))
			r = -EAGAIN;
		if (r == -EAGAIN)
			fiber_sleep_us((uint64_t)(i * i + 1) * 500);
		if (r == ON_THE_WAY) {
			deadline = op_deadline(mr);
			i = -1;
		}
	}
	return op_error(r);
}

/* room: as quota_room_text. 1: what is left in quotas has to be looked at first */
static int truncate_once(struct meta *m, uint64_t inode, uint64_t length, bool through_handle,
			 const char *room, struct attr *ret)
{
	struct meta_redis *mr = redis_engine(m);
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct truncation t = {.inode = inode, .length = length, .through_handle = through_handle};
	uint64_t inodes, before = 0;
	struct args args;
	struct mark k;
	struct attr a;
	bool stats;
	int r;

	meta_limits(m, &t.capacity, &inodes, &stats);
	args_init(&args, mr);
	op_begin(mr, &args);
	args_u64(&args, inode);
	args_be64(&args, length);
	args_text(&args, through_handle ? "1" : "0");
	args_u64(&args, t.capacity);
	args_u64(&args, MIDDLE_MAX);
	args_text(&args, room);
	r = op_eval_until(mr, SC_TRUNCATE, &args, args.deadline_us, &k, &reply);
	if (!r && reply_type(reply_at(reply, 0)) == REDIS_NIL) {
		r = truncate_steps(mr, &t, &args, &k);
		a = t.after;
	} else if (!r && reply_is(reply_at(reply, 0), "room")) {
		r = 1;
	} else if (!r) {
		r = reply_attr(reply_at(reply, 0), &a);
		if (!r)
			r = reply_be64(reply_at(reply, 2), &before);
		if (!r)
			stat_resized(mr, &a, before, reply_at(reply, 3));
	}
	op_end(mr, &args);
	lists_fini(&t.lists);
	redis_reply_free(t.links);
	if (r)
		return r;
	*ret = a;
	return 0;
}

int redis_truncate(struct meta *m, const struct meta_ctx *c, uint64_t inode, uint64_t length,
		   bool through_handle, struct attr *ret)
{
	char room[21];
	int r;

	(void)c;
	quota_room_text(redis_engine(m), room);
	r = truncate_once(m, inode, length, through_handle, room, ret);
	if (r <= 0)
		return r;
	r = quota_room_grow(redis_engine(m), inode, length);
	return r ? r : truncate_once(m, inode, length, through_handle, "", ret);
}
