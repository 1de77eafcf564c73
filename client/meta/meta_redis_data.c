/* SPDX-License-Identifier: Apache-2.0 */
/* Slices of files: open, read, write, close. A chunk's list and the attributes it belongs to are
 * read by one script. Any thread that may block. */
#include "client/meta/meta_redis.h"

#include "client/meta/meta_redis_quota.h"

#include "common/log.h"

static int reply_slices(const struct redis_reply *list, struct chunk_list *ret)
{
	size_t n = reply_len(list), len;
	struct slice *s = calloc(n + 1, sizeof(*s));
	const char *p;

	if (!s)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		p = reply_text(reply_at(list, i), &len);
		if (!p || slice_decode((const uint8_t *)p, len, &s[i])) {
			free(s);
			return -EIO;
		}
	}
	ret->n = n;
	ret->slices = s;
	return 0;
}

int lists_read(struct meta_redis *mr, uint64_t inode, uint32_t index, uint32_t n,
	       uint64_t deadline_us, struct chunk_list *ret)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct args args;
	struct mark k;
	struct attr a;
	int r;

	args_init(&args, mr);
	args_u64(&args, inode);
	args_u64(&args, index);
	args_u64(&args, n);
	r = op_eval_until(mr, SC_READ, &args, deadline_us, &k, &reply);
	if (!r)
		r = reply_attr(reply_at(reply, 0), &a);
	if (r)
		return r;
	nextchunk_seen(mr, reply_at(reply, 1));
	for (uint32_t i = 0; i < n; i++) {
		const struct redis_reply *list = reply_at(reply, 2 + (size_t)i);

		ret[i] = (struct chunk_list){.index = index + i, .volume = k.volume, .attr = a};
		r = list ? reply_slices(list, &ret[i]) : 0;
		if (r) {
			while (i-- > 0)
				chunk_list_fini(&ret[i]);
			return r;
		}
	}
	return 0;
}

int redis_open(struct meta *m, const struct meta_ctx *c, uint64_t inode, int flags,
	       struct chunk_list *ret)
{
	struct meta_redis *mr = redis_engine(m);
	struct chunk_list l;
	int r = lists_read(mr, inode, 0, 1, op_deadline(mr), &l);

	(void)c;
	(void)flags;
	if (r)
		return r;
	compact_read(mr, inode, &l);
	*ret = l;
	return 0;
}

int redis_read(struct meta *m, uint64_t inode, uint32_t index, uint32_t n, struct chunk_list *ret)
{
	struct meta_redis *mr = redis_engine(m);
	int r = lists_read(mr, inode, index, n, data_deadline(mr), ret);

	for (uint32_t i = 0; !r && i < n; i++)
		compact_read(mr, inode, &ret[i]);
	return r;
}

int sustained_delete(struct meta_redis *mr, uint64_t sid, const char *seen, uint64_t inode)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct args args;
	uint64_t length, owner;
	int r;

	args_init(&args, mr);
	op_begin(mr, &args);
	args_u64(&args, inode);
	args_u64(&args, sid);
	args_text(&args, seen);
	r = op_eval(mr, SC_SUSTAINED, &args, &reply);
	op_end(mr, &args);
	if (r || reply_is(reply_at(reply, 0), "kept"))
		return r;
	if (reply_is(reply_at(reply, 0), "lives"))
		return -EAGAIN;
	r = reply_be64(reply_at(reply, 1), &length);
	if (!r)
		r = reply_be64(reply_at(reply, 2), &owner);
	if (r)
		return r;
	quota_owner(mr, (uint32_t)(owner >> 32), (uint32_t)owner, -(int64_t)align4k(length), -1);
	if (reply_is(reply_at(reply, 0), "gone"))
		delete_later(mr, inode, length);
	return 0;
}

int redis_close(struct meta *m, uint64_t inode)
{
	return sustained_delete(redis_engine(m), session_now(m), "", inode);
}

int redis_new_slice(struct meta *m, uint64_t *ret, struct hash128 *ret_volume)
{
	struct meta_redis *mr = redis_engine(m);

	return id_pool_take(mr, &mr->slices, ret, ret_volume);
}

/* the volume that the slice's number is of; -ESTALE: there is another one by now */
int slice_mark(struct meta_redis *mr, const struct slice *s, struct mark *ret)
{
	bool old;
	int r = mark_take(mr, ret);

	if (r)
		return r;
	mtx_lock(&mr->base.lock);
	old = s->id && s->id <= mr->old_slices;
	mtx_unlock(&mr->base.lock);
	/* moved after the mark was taken: the script will say so */
	ret->highest_slice = MAX(ret->highest_slice, s->id);
	return old ? -ESTALE : 0;
}

/* room: as quota_room_text. 1: what is left in quotas has to be looked at first */
static int write_once(struct meta *m, uint64_t inode, uint32_t index, const struct slice *s,
		      struct time_ns mtime, const char *room, struct attr *ret)
{
	struct meta_redis *mr = redis_engine(m);
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	uint64_t capacity, inodes, before, deadline = data_deadline(mr);
	uint8_t record[SLICE_LEN];
	struct args args;
	struct mark k;
	struct attr a;
	bool stats;
	int r = slice_mark(mr, s, &k);

	if (r)
		return r;
	meta_limits(m, &capacity, &inodes, &stats);
	slice_encode(s, record);
	args_init(&args, mr);
	op_begin_until(mr, &args, deadline);
	args_u64(&args, inode);
	args_u64(&args, index);
	args_bytes(&args, record, sizeof(record));
	args_be64(&args, ((uint64_t)index << CHUNK_BITS) + s->pos + s->len);
	args_time(&args, mtime);
	args_u64(&args, capacity);
	args_text(&args, room);
	r = op_eval_once(mr, SC_WRITE, &args, deadline, &k, &reply);
	op_end(mr, &args);
	if (r == -ESTALE)
		(void)generation_check(mr, &k, deadline); /* else the next operation does it */
	if (!r && reply_is(reply_at(reply, 0), "room"))
		return 1;
	if (!r)
		r = reply_attr(reply_at(reply, 0), &a);
	if (!r)
		r = reply_be64(reply_at(reply, 2), &before);
	if (r)
		return r;
	stat_resized(mr, &a, before, reply_at(reply, 3));
	compact_written(mr, inode, index, (uint64_t)reply_int(reply_at(reply, 1)));
	*ret = a;
	return 0;
}

int redis_write(struct meta *m, uint64_t inode, uint32_t index, const struct slice *s,
		struct time_ns mtime, struct attr *ret)
{
	uint64_t end = ((uint64_t)index << CHUNK_BITS) + s->pos + s->len;
	char room[21];
	int r;

	quota_room_text(redis_engine(m), room);
	r = write_once(m, inode, index, s, mtime, room, ret);
	if (r <= 0)
		return r;
	r = quota_room_grow(redis_engine(m), inode, end);
	return r ? r : write_once(m, inode, index, s, mtime, "", ret);
}
