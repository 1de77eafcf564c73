/* SPDX-License-Identifier: Apache-2.0 */
/* One try of one peer for one request: the call and its checks, or the read of a descriptor that
 * was passed. Threads: started on any; goes on on the connection's loop, cold pages in the disk's
 * threads.
 *
 *	start -> a cached descriptor?	-> warm: done | cold: disk thread -> done
 *	      -> call			-> data: checked, done
 *					-> descriptor: cached, then as above
 *	damaged bytes -> BAD to the daemon, -EBADMSG */
#include "common/block/source_peer.h"

#include "common/block/blockfile.h"
#include "common/clock.h"

/* the whole pieces around [off, off + len) */
struct span {
	uint32_t off, len;
	size_t sums;
};

static struct span span_of(const struct block_req *req)
{
	struct span s = {.off = req->off / FRAME_PIECE * FRAME_PIECE};
	uint64_t end = ROUND_UP((uint64_t)req->off + req->len, (uint64_t)FRAME_PIECE);

	s.len = (uint32_t)(MIN(end, (uint64_t)req->key.size) - s.off);
	s.sums = msg_sums_len(s.len);
	return s;
}

/* buf holds the span's bytes and their sums, checked; its reference is taken over */
static void give(struct block_req *req, struct buf *buf, const struct span *s, bool local)
{
	req->via = local ? VIA_LOCAL : VIA_PEER;
	if (s->len == req->key.size && req->len == req->key.size)
		req->sums = blob_of_buf(buf_ref(buf), s->len, s->sums);
	req->data = blob_of_buf(buf, req->off - s->off, req->len);
}

static void try_end(struct peer_try *t, int status)
{
	if (t->fd)
		fd_entry_unref(TAKE_PTR(t->fd));
	t->done(t, status);
}

static int try_room(struct peer_try *t, const struct span *s)
{
	if (!t->buf)
		t->buf = req_take(t->req, s->len + s->sums);
	return t->buf ? 0 : -ENOMEM;
}

static void tell_bad(struct peer_try *t, uint32_t piece)
{
	struct msg_get m = {.off = piece};
	uint8_t body[MSG_GET];

	block_key_to_msg(&t->req->key, &m.key);
	peer_tell(t->peer, false, OP_BAD, body, msg_get_encode(&m, body));
	peer_note(t->peer, -EBADMSG);
	metric_add(t->env->damaged, 1);
}

/* --- descriptors --- */

static int try_read(struct peer_try *t)
{
	struct span s = span_of(t->req);
	size_t skip;
	int r = try_room(t, &s);

	if (r < 0)
		return r;
	r = blockfile_read(fd_entry_fd(t->fd), &t->req->key, t->req->off, t->req->len, true,
			   t->buf->mem, &skip);
	if (r == 0)
		give(t->req, TAKE_PTR(t->buf), &s, true);
	return r;
}

static void try_read_end(struct peer_try *t, int r)
{
	if (r < 0) {
		/* whatever is wrong with the file, the daemon looks at it and passes another one */
		fd_cache_drop(t->env->fds, &t->req->key);
		if (r == -EBADMSG)
			tell_bad(t, t->req->off / FRAME_PIECE);
		else
			r = -EHOSTDOWN;
	}
	try_end(t, r);
}

/* A read that waits for the disk. It has the buffer and a reference of the descriptor, because the
 * disk may hang, and the try then goes on without it. */
struct cold_read {
	struct disk_job job;
	struct peer_try *t; /* until the end */
	struct fd_entry *fd;
	struct buf *buf;
	struct block_key key;
	uint32_t off, len;
};

static void cold_free(struct cold_read *c)
{
	if (c->buf)
		buf_unref(c->buf);
	fd_entry_unref(c->fd);
	free(c);
}

static int cold_run(struct disk_job *job)
{
	struct cold_read *c = container_of(job, struct cold_read, job);
	size_t skip;

	return blockfile_read(fd_entry_fd(c->fd), &c->key, c->off, c->len, false, c->buf->mem,
			      &skip);
}

static void cold_end(struct disk_job *job, int status)
{
	struct cold_read *c = container_of(job, struct cold_read, job);
	struct peer_try *t = c->t;

	if (status == -ETIMEDOUT) { /* the rest is the thread's */
		try_end(t, -EHOSTDOWN);
		return;
	}
	t->buf = TAKE_PTR(c->buf);
	t->fd = TAKE_PTR(c->fd);
	free(c);
	if (status == -EHOSTDOWN) { /* other reads hang */
		try_end(t, status);
		return;
	}
	if (status == 0) {
		struct span s = span_of(t->req);

		give(t->req, TAKE_PTR(t->buf), &s, true);
	}
	try_read_end(t, status);
}

static void cold_late(struct disk_job *job, int status)
{
	(void)status;
	cold_free(container_of(job, struct cold_read, job));
}

static void try_cold(struct peer_try *t)
{
	struct cold_read *c = calloc(1, sizeof(*c));

	if (!c) {
		try_end(t, -ENOMEM);
		return;
	}
	*c = (struct cold_read){
		.job = {.run = cold_run, .end = cold_end, .late = cold_late},
		.t = t,
		.key = t->req->key,
		.off = t->req->off,
		.len = t->req->len,
	};
	c->fd = TAKE_PTR(t->fd);
	c->buf = TAKE_PTR(t->buf);
	if (diskq_push(t->env->disk, &c->job) < 0) /* bounded: each holds memory of the pool */
		cold_end(&c->job, -EHOSTDOWN);
}

/* t->fd is there */
static void try_fd(struct peer_try *t)
{
	int r = try_read(t);

	if (r == -EAGAIN)
		try_cold(t);
	else
		try_read_end(t, r);
}

bool peer_try_warm(struct source_env_peer *env, struct block_req *req, struct buf **ret_spare)
{
	struct span s = span_of(req);
	struct fd_entry *fd;
	struct buf *buf;
	size_t skip;
	int r;

	if (!env->fds || pool_cost(s.len + s.sums) > req->reserved)
		return false;
	fd = fd_cache_find(env->fds, &req->key);
	if (!fd)
		return false;
	buf = req_take(req, s.len + s.sums);
	if (!buf) {
		fd_entry_unref(fd);
		return false;
	}
	r = blockfile_read(fd_entry_fd(fd), &req->key, req->off, req->len, true, buf->mem, &skip);
	fd_entry_unref(fd);
	if (r < 0) {
		*ret_spare = buf; /* the long way finds out more */
		return false;
	}
	give(req, buf, &s, true);
	return true;
}

/* --- calls --- */

static void try_filling(struct peer_call *c)
{
	struct peer_try *t = container_of(c, struct peer_try, call);

	t->filling(t);
}

/* FILL, PROBE: nobody below can answer either, so this may be what the asker is told */
static int try_no_block(struct peer_try *t, int status)
{
	const struct peer_call *c = &t->call;
	char *reason = t->req->reason;

	if (c->verdict != ST_OK)
		snprintf(reason, REQ_REASON, "%s: %.180s", peer_name(t->peer),
			 c->reason[0] ? c->reason : strerror(-status));
	else
		snprintf(reason, REQ_REASON, "no daemon could be reached: %.180s", c->reason);
	/* how a connection broke is not a word about the block */
	return c->verdict != ST_OK || status == -ETIMEDOUT || status == -ECANCELED ? status
										   : -EHOSTDOWN;
}

/* what the layer above shall think of it */
static int try_status(struct peer_try *t, int status)
{
	switch (t->call.verdict) {
	case ST_NO_OBJECT:
		status = -ENODATA;
		break;
	case ST_FORBIDDEN:
		status = -EACCES;
		break;
	case ST_STORE_ERROR:
		status = -EIO;
		break;
	case ST_NOT_HERE:
		return t->req->flags & REQ_PROBE ? -ENOENT : -EHOSTDOWN;
	case ST_TIMED_OUT: /* what he asked is slow, not he */
		if (is_get(t->req))
			return -EHOSTDOWN;
		return try_no_block(t, status);
	default:
		if (!is_get(t->req))
			return try_no_block(t, status);
		/* of the connection, not of the object */
		return status == -EACCES || status == -EIO || status == -ENODATA ||
				       status == -ENOENT
			       ? -EHOSTDOWN
			       : status;
	}
	if (t->no_fill)
		return -EHOSTDOWN;
	snprintf(t->req->reason, sizeof(t->req->reason), "%s", t->call.reason);
	return status;
}

static int try_data(struct peer_try *t)
{
	struct span s = span_of(t->req);
	uint32_t piece = 0;

	if (t->call.in_len != s.len + s.sums)
		return -EPROTO;
	if (block_sums_check(&t->req->key, s.off, t->buf->mem, s.len, t->buf->mem + s.len, &piece) <
	    0) {
		tell_bad(t, s.off / FRAME_PIECE + piece);
		return -EBADMSG;
	}
	peer_note(t->peer, 0);
	give(t->req, TAKE_PTR(t->buf), &s, peer_is_local(t->peer));
	return 0;
}

/* small answers do not wait behind large ones */
static bool try_bulk(const struct peer_try *t)
{
	return t->call.in_cap > PEER_SMALL;
}

static void try_answered(struct peer_call *c, int status)
{
	struct peer_try *t = container_of(c, struct peer_try, call);

	t->calling = false;
	if (status < 0) {
		try_end(t, try_status(t, status));
	} else if (t->req->flags & (REQ_FILL | REQ_PROBE)) {
		try_end(t, 0);
	} else if (c->fd >= 0) {
		t->fd = fd_cache_add(t->env->fds, &t->req->key, TAKE_FD(c->fd), t->peer,
				     try_bulk(t));
		if (t->fd)
			try_fd(t);
		else
			try_end(t, -ENOMEM);
	} else {
		try_end(t, try_data(t));
	}
}

static void try_call_key(struct peer_try *t, uint8_t op)
{
	struct msg_key m;

	block_key_to_msg(&t->req->key, &m);
	msg_key_encode(&m, t->call.head);
	t->call.head_len = MSG_KEY;
	t->call.op = op;
}

static void try_call_fill(struct peer_try *t)
{
	struct msg_fill m = {.pins = t->req->flags & REQ_PIN, .until = t->req->pin_until};

	block_key_to_msg(&t->req->key, &m.key);
	t->call.head_len = msg_fill_encode(&m, t->call.head);
	t->call.op = OP_FILL;
	t->call.min_version = m.pins ? 2 : 0;
}

static int try_call_get(struct peer_try *t)
{
	struct span s = span_of(t->req);
	struct msg_get m = {.off = s.off, .len = s.len};
	int r = try_room(t, &s);

	if (r < 0)
		return r;
	block_key_to_msg(&t->req->key, &m.key);
	t->call.head_len = msg_get_encode(&m, t->call.head);
	t->call.op = OP_GET;
	t->call.in = t->buf;
	t->call.in_cap = s.len + s.sums;
	if (t->no_fill)
		t->call.flags |= FRAME_NO_FILL;
	if (t->req->flags & REQ_PREFETCH)
		t->call.flags |= FRAME_PREFETCH;
	if (t->env->fds && !fd_cache_off(t->env->fds) && peer_is_local(t->peer))
		t->call.flags |= FRAME_WANT_FD;
	return 0;
}

void peer_try_start(struct peer_try *t)
{
	bool get = !(t->req->flags & (REQ_FILL | REQ_PROBE));
	int r = 0;

	if (get && t->env->fds && peer_is_local(t->peer)) {
		t->fd = fd_cache_find(t->env->fds, &t->req->key);
		if (t->fd) {
			try_fd(t);
			return;
		}
	}
	if (get)
		r = try_call_get(t);
	else if (t->req->flags & REQ_FILL)
		try_call_fill(t);
	else
		try_call_key(t, OP_STAT);
	if (r < 0) {
		try_end(t, r);
		return;
	}
	t->call.timeout_us = t->req->deadline_us ? clock_left(t->req->deadline_us) : 0;
	t->call.quiet_us = t->quiet_us;
	t->call.filling = try_filling;
	t->call.done = try_answered;
	t->calling = true;
	peer_start(t->peer, &t->call, try_bulk(t));
}

struct loop *peer_try_loop(const struct peer_try *t)
{
	return peer_loop(t->peer, try_bulk(t));
}

void peer_try_abandon(struct peer_try *t)
{
	if (!t->calling)
		return;
	t->calling = false;
	peer_abandon(&t->call);
	try_end(t, -ECANCELED);
}

void peer_try_fini(struct peer_try *t)
{
	if (t->buf)
		buf_unref(TAKE_PTR(t->buf));
}
