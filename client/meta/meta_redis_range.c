/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges of files: holes, zeros and room (fallocate), and copying without copying
 * (copy_file_range). Each is one script where few chunks are touched, else several, one after the
 * other: what somebody else writes into the range meanwhile may be before or behind either. Any
 * thread that may block. */
#include "client/meta/meta_redis.h"

#include <fcntl.h>

#include "client/meta/meta_redis_quota.h"

enum {
	STEP_CHUNKS = 900, /* of a hole */
	COPY_CHUNKS = 128, /* of a source */
	COPY_RECORDS = 2000,
};

struct hole {
	uint64_t inode, off, len, before;
	int mode;
	uint8_t named[STEP_CHUNKS * 4];
	size_t named_len;
	bool first;
};

static int fallocate_step(struct meta_redis *mr, struct hole *h, bool *ret_many, struct attr *ret)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	uint64_t capacity, inodes;
	struct args args;
	struct attr a;
	bool stats;
	int r;

	meta_limits(&mr->base, &capacity, &inodes, &stats);
	args_init(&args, mr);
	op_begin(mr, &args);
	args_u64(&args, h->inode);
	args_u64(&args, (uint64_t)h->mode);
	args_be64(&args, h->off);
	args_be64(&args, h->off + h->len);
	args_u64(&args, capacity);
	args_bytes(&args, h->named, h->named_len);
	args_text(&args, h->first ? "1" : "0");
	args_u64(&args, h->len);
	r = op_eval(mr, SC_FALLOCATE, &args, &reply);
	op_end(mr, &args);
	if (r)
		return r;
	if (reply_is(reply_at(reply, 0), "fifo"))
		return -EPIPE;
	*ret_many = reply_type(reply_at(reply, 0)) == REDIS_NIL;
	if (*ret_many)
		return 0;
	r = reply_attr(reply_at(reply, 0), &a);
	if (!r)
		r = reply_be64(reply_at(reply, 2), &h->before);
	if (r)
		return r;
	stat_resized(mr, &a, h->before, reply_at(reply, 3));
	*ret = a;
	return 0;
}

/* the lists that are there, some at a time; where there is none, there are zeros already */
static int fallocate_steps(struct meta_redis *mr, struct hole *h, struct attr *ret)
{
	uint64_t end = h->off + h->len;
	struct lists l = {0};
	uint32_t at = 0;
	struct attr a;
	bool many;
	int r = redis_getattr(&mr->base, h->inode, &a);

	if (r)
		return r;
	end = MIN(end, a.length);
	r = lists_find_alone(mr, h->inode, (uint32_t)(h->off >> CHUNK_BITS) + 1,
			     (uint32_t)(end >> CHUNK_BITS), &l);
	do {
		uint32_t n = MIN(l.n - at, (uint32_t)STEP_CHUNKS);

		h->first = at == 0;
		for (uint32_t i = 0; i < n; i++) {
			for (int b = 0; b < 4; b++)
				h->named[i * 4 + b] = (uint8_t)(l.v[at + i] >> (24 - 8 * b));
		}
		/* the first chunk has its own part: named, it says that the others are, too */
		if (n == 0) {
			for (int b = 0; b < 4; b++)
				h->named[b] = (uint8_t)(h->off >> CHUNK_BITS >> (24 - 8 * b));
		}
		h->named_len = MAX(n, 1U) * 4;
		if (!r)
			r = fallocate_step(mr, h, &many, ret);
		at += n;
	} while (!r && at < l.n);
	lists_fini(&l);
	return r;
}

int redis_fallocate(struct meta *m, const struct meta_ctx *c, uint64_t inode, int mode,
		    uint64_t off, uint64_t len, struct attr *ret)
{
	struct hole h = {.inode = inode, .off = off, .len = len, .mode = mode, .first = true};
	bool many = false;
	int r = meta_fallocate_mode(mode);

	(void)c;
	if (!r && !(mode & FALLOC_FL_KEEP_SIZE))
		r = quota_room_grow(redis_engine(m), inode, off + len);
	if (!r)
		r = fallocate_step(redis_engine(m), &h, &many, ret);
	return !r && many ? fallocate_steps(redis_engine(m), &h, ret) : r;
}

struct copy {
	uint64_t in, off_in, out, off_out;
};

static int copy_step(struct meta_redis *mr, const struct copy *c, uint64_t len, uint64_t *ret_n,
		     uint64_t *ret_length, struct attr *ret)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	uint64_t capacity, inodes, before;
	struct args args;
	struct attr a;
	bool stats;
	int r;

	meta_limits(&mr->base, &capacity, &inodes, &stats);
	args_init(&args, mr);
	op_begin(mr, &args);
	args_u64(&args, c->in);
	args_u64(&args, c->off_in >> CHUNK_BITS);
	args_u64(&args, c->off_in % CHUNK_SIZE);
	args_u64(&args, c->out);
	args_u64(&args, c->off_out >> CHUNK_BITS);
	args_u64(&args, c->off_out % CHUNK_SIZE);
	args_u64(&args, len);
	args_u64(&args, capacity);
	args_u64(&args, COPY_RECORDS);
	r = op_eval(mr, SC_COPY, &args, &reply);
	op_end(mr, &args);
	if (!r)
		r = reply_attr(reply_at(reply, 0), &a);
	if (!r)
		r = reply_be64(reply_at(reply, 2), &before);
	if (!r)
		r = reply_be64(reply_at(reply, 3), ret_length);
	if (r)
		return r;
	stat_resized(mr, &a, before, reply_at(reply, 4));
	*ret_n = (uint64_t)reply_int(reply_at(reply, 1));
	*ret = a;
	return 0;
}

int redis_copy_file_range(struct meta *m, const struct meta_ctx *c, uint64_t in, uint64_t off_in,
			  uint64_t out, uint64_t off_out, uint64_t len, uint64_t *ret_copied,
			  struct attr *ret_out)
{
	uint64_t done = 0, n, length;
	struct attr a;
	int r = quota_room_copy(redis_engine(m), in, off_in, out, off_out, len);

	(void)c;
	if (r)
		return r;
	do {
		const struct copy part = {in, off_in + done, out, off_out + done};
		uint64_t most = COPY_CHUNKS * (uint64_t)CHUNK_SIZE - part.off_in % CHUNK_SIZE;

		r = copy_step(redis_engine(m), &part, MIN(len - done, most), &n, &length, &a);
		/* as it was at first: the copy may lie behind, in the same file */
		if (!r && !done)
			len = MIN(len, length > off_in ? length - off_in : 0);
		if (!r)
			done += n;
	} while (!r && n && done < len);
	/* what was copied is told, as every copy that ends early does */
	if (r && !done)
		return r;
	if (r)
		r = redis_getattr(m, out, &a);
	if (r)
		return r;
	*ret_copied = done;
	*ret_out = a;
	return 0;
}
