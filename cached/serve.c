/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of the wire -> requests of the chain -> answers. On the connection's loop; a request
 * is completed by anybody, who posts it back here. */
#include "cached/conn.h"
#include "common/clock.h"

enum { TURN_LEAST = 64 << 10 }; /* what the smallest fetch counts: it takes a connection, too */

/* A status of the chain (source.h) -> the wire's. ops.def's rows of a refusal are for the
 * handshake; here -EACCES is the object store's. What no row has is this daemon's own trouble:
 * another may do better. */
static unsigned chain_status(int r)
{
	unsigned status = msg_errno_to_status(r);

	if (r == -EACCES)
		return ST_FORBIDDEN;
	if (r == -EPERM || (status == ST_STORE_ERROR && r != -EIO))
		return ST_BUSY;
	return status;
}

static void call_ended(struct call *k)
{
	struct conn *c = k->conn;
	int r = k->status;

	turns_end(c->worker->conf->turns, k);
	if (c->state == CONN_CLOSED)
		call_free(k);
	else if (r == 0 && k->frame.op == OP_GET)
		answer_block(k);
	else if (r == 0)
		answer_status(k, ST_OK, NULL);
	else
		answer_status(k, chain_status(r),
			      k->req && k->req->reason[0] ? k->req->reason : NULL);
}

static void call_job(struct loop_job *job)
{
	struct call *k = container_of(job, struct call, job);
	struct conn *c = k->conn;

	c->busy++;
	call_ended(k);
	conn_run(c);
	c->busy--;
	conn_settle(c);
}

/* any thread; on the connection's own loop the answer is made at once, and whoever runs there
 * writes it */
static void call_done(struct block_req *req, int status, void *arg)
{
	struct call *k = arg;
	struct conn *c = k->conn;

	(void)req;
	k->status = status;
	if (loop_is_mine(c->worker->loop) && c->busy) {
		call_ended(k);
		return;
	}
	k->job.fn = call_job;
	loop_post(c->worker->loop, &k->job);
}

static int call_request(struct call *k, uint32_t flags, enum pool_class klass)
{
	k->req = req_new(k->conn->worker->conf->env, &k->key, k->off, k->len, flags, klass);
	return k->req ? 0 : -ENOMEM;
}

static void serve_go(struct call *k)
{
	source_get(k->conn->worker->conf->chain, k->req, call_done, k);
}

/* what has to be fetched, in turn with the other connections */
static void serve_in_turn(struct call *k, enum turn_class class, size_t bytes)
{
	list_del(&k->link);
	turns_wait(k->conn->worker->conf->turns, k, class, MAX(bytes, (size_t)TURN_LEAST),
		   serve_go);
}

/* A block that many read at once: the asker is sent to its successor. Mounts of this node are not,
 * they share the file; nor is a successor, who asks for those that were; nor are small ranges,
 * which cost little. */
static bool sent_on(struct call *k)
{
	const struct server_conf *conf = k->conn->worker->conf;

	if (k->conn->local || k->conn->role == ROLE_MEMBER || k->len <= CONN_INLINE_MAX)
		return false;
	if (hot_send_on(conf->hot, &k->key, __atomic_load_n(&conf->hot_share, __ATOMIC_RELAXED),
			conf->view, conf->node)) {
		metric_add(conf->counters->sent_on, 1);
		return true;
	}
	k->hot = true;
	hot_begin(conf->hot, &k->key);
	return false;
}

/* Who must not lead, but asks for what somebody here waits to fetch: he becomes one of those (rule
 * 7 of the chain lets him wait for who has asked nobody yet). */
static void take_along(struct call *k)
{
	k->req->flags = (k->req->flags & ~(uint32_t)REQ_NO_FILL) | REQ_MEMBER;
}

static void serve_get(struct call *k)
{
	struct worker *w = k->conn->worker;
	uint32_t flags = k->frame.flags & FRAME_NO_FILL ? REQ_NO_FILL : 0;
	uint32_t member = k->conn->role == ROLE_MEMBER ? REQ_MEMBER : 0;
	/* What nobody waits for yet stands in line behind demand. It is not refused when memory is
	 * short, as a reader's own prefetch is: he would ask others for it, who would fetch it,
	 * too. */
	enum pool_class klass = k->frame.flags & FRAME_PREFETCH ? POOL_UPLOAD : POOL_DEMAND;
	bool joins, listed;

	if (call_request(k, flags | member, klass) < 0) {
		answer_status(k, ST_NO_MEMORY, NULL);
		return;
	}
	/* half of the asker's time, so that he has the other half to ask elsewhere, when what we
	 * ask is silent. Who waits for the same fetch and has more time goes on by himself. */
	if (k->frame.left_us)
		k->req->deadline_us = clock_us() + k->frame.left_us / 2;
	if (store_has(w->conf->store, &k->key)) {
		if (!(flags & REQ_NO_FILL) && sent_on(k))
			answer_status(k, ST_BUSY, NULL);
		else
			serve_go(k);
		return;
	}
	joins = store_fetching(w->conf->store, k->req, &listed);
	if (flags && !listed && turns_has(w->conf->turns, &k->key)) {
		take_along(k);
		flags = 0;
	}
	if (!flags || joins)
		answer_filling(k);
	if (flags || joins)
		serve_go(k); /* it leads nothing, and needs no memory of its own */
	else
		serve_in_turn(k,
			      member		     ? TURN_MEMBER
			      : klass == POOL_DEMAND ? TURN_DEMAND
						     : TURN_AHEAD,
			      req_need(k->req));
}

void serve_again(struct call *k)
{
	struct conn *c = k->conn;

	if (k->hot)
		hot_end(c->worker->conf->hot, &k->key);
	k->hot = false;
	list_add_tail(&c->calls, &k->link);
	if (k->asked_again) {
		answer_status(k, ST_BUSY, NULL);
		return;
	}
	k->asked_again = true;
	serve_get(k);
}

static void serve_fill(struct call *k)
{
	if (call_request(k, REQ_FILL | (k->pins ? REQ_PIN : 0), POOL_UPLOAD) < 0) {
		answer_status(k, ST_NO_MEMORY, NULL);
		return;
	}
	k->req->pin_until = k->pin_until;
	if (store_has(k->conn->worker->conf->store, &k->key))
		serve_go(k);
	else
		serve_in_turn(k, TURN_AHEAD, k->key.size);
}

static void serve_drop(struct call *k)
{
	if (call_request(k, 0, POOL_DEMAND) < 0)
		answer_status(k, ST_NO_MEMORY, NULL);
	else
		source_drop(k->conn->worker->conf->chain, k->req, call_done, k);
}

void serve_put(struct call *k)
{
	struct worker *w = k->conn->worker;

	if (block_sums_check(&k->key, 0, blob_mem(&k->req->data), k->key.size,
			     blob_mem(&k->req->sums), NULL) < 0) {
		metric_add(w->conf->counters->refused, 1);
		answer_status(k, ST_DAMAGED, NULL);
		return;
	}
	source_put(w->conf->chain, k->req, call_done, k);
}

static void serve_stat(struct call *k, bool of_block)
{
	uint8_t *body;
	struct msg_stat st;

	if (of_block) {
		answer_status(
			k, store_has(k->conn->worker->conf->store, &k->key) ? ST_OK : ST_NOT_HERE,
			NULL);
		return;
	}
	body = malloc(MSG_STAT);
	if (!body) {
		answer_status(k, ST_NO_MEMORY, NULL);
		return;
	}
	store_stat(k->conn->worker->conf->store, &st);
	(void)msg_stat_encode(&st, body);
	answer_bytes(k, ST_OK, body, k->conn->version < 2 ? MSG_STAT_1 : MSG_STAT);
}

static void serve_ring(struct call *k, const uint8_t *body)
{
	struct cluster_view *view = k->conn->worker->conf->view;
	struct cluster *c = view ? cluster_view_get(view) : NULL;
	struct str out = STR_INIT;
	uint64_t known = 0;

	for (unsigned i = 0; i < 8; i++)
		known = known << 8 | body[i];
	if (!c || c->version == known) {
		answer_status(k, ST_OK, NULL);
	} else if (cluster_encode(c, k->conn->version, &out) < 0) {
		answer_status(k, ST_NO_MEMORY, NULL);
	} else {
		size_t len = out.len;

		answer_bytes(k, ST_OK, (uint8_t *)str_take(&out), len);
	}
	str_fini(&out);
	cluster_unref(c);
}

static void serve_bad(struct call *k)
{
	struct worker *w = k->conn->worker;

	metric_add(w->conf->counters->reported, 1);
	store_verify(w->conf->store, &k->key);
	answer_status(k, ST_OK, NULL);
}

static void serve_closed(struct call *k)
{
	struct conn *c = k->conn;

	if (passed_closed(store_passed(c->worker->conf->store), &c->held, &k->key))
		counters_fds(c->worker->conf->counters, -1);
	answer_status(k, ST_OK, NULL);
}

/* the key (and for a GET the range) at the start of the body; -EPROTO */
static int decode_key(struct call *k, const uint8_t *body)
{
	uint32_t n = k->frame.body_len;
	struct msg_fill fill;
	struct msg_get g;
	struct msg_key m;

	if (k->frame.op == OP_GET) {
		if (msg_get_decode(body, n, &g) != (ssize_t)n)
			return -EPROTO;
		block_key_from_msg(&k->key, &g.key);
		k->off = g.off;
		k->len = g.len;
		return 0;
	}
	if (k->frame.op == OP_FILL) {
		if (msg_fill_decode(body, n, &fill) < 0)
			return -EPROTO;
		block_key_from_msg(&k->key, &fill.key);
		k->len = k->key.size;
		k->pins = fill.pins;
		k->pin_until = fill.until;
		return 0;
	}
	if (msg_key_decode(body, n, &m) != MSG_KEY || (n != MSG_KEY && k->frame.op != OP_BAD))
		return -EPROTO;
	block_key_from_msg(&k->key, &m);
	k->len = m.size;
	return 0;
}

static void serve_key(struct call *k)
{
	struct hash128 volume = store_volume(k->conn->worker->conf->store);

	if (k->frame.op == OP_CLOSED) { /* of the generation before, too */
		serve_closed(k);
		return;
	}
	if (memcmp(volume.b, k->key.volume.b, sizeof(volume.b)) != 0) {
		metric_add(k->conn->worker->conf->counters->stale, 1);
		answer_status(k, ST_STALE, NULL);
		return;
	}
	switch (k->frame.op) {
	case OP_GET:
		serve_get(k);
		break;
	case OP_FILL:
		serve_fill(k);
		break;
	case OP_DROP:
		serve_drop(k);
		break;
	case OP_STAT:
		serve_stat(k, true);
		break;
	default:
		serve_bad(k);
	}
}

static void serve_call(struct call *k, const uint8_t *body)
{
	uint32_t n = k->frame.body_len;

	if (k->conn->worker->restarting && k->conn->version >= 2)
		answer_status(k, ST_RESTARTING, NULL);
	else if (k->conn->worker->stopping)
		answer_status(k, ST_STOPPING, NULL);
	else if (k->frame.op == OP_STAT && n == 0)
		serve_stat(k, false);
	else if (k->frame.op == OP_RING)
		serve_ring(k, body);
	else if (k->frame.op == OP_LIST)
		serve_list(k, body);
	else
		serve_key(k);
}

static void serve_one(struct conn *c, const struct frame *f, const uint8_t *body)
{
	struct call *k = call_new(c, f);
	/* a connection of version 1 has no MGET: its key would be garbage */
	bool keyless =
		f->op == OP_RING || f->op == OP_LIST || (f->op == OP_STAT && f->body_len == 0);

	if (!k) {
		conn_drop(c, REJECT_NONE);
		return;
	}
	metric_add(c->worker->conf->counters->requests[f->op < COUNTERS_OPS ? f->op : 0], 1);
	list_add_tail(&c->calls, &k->link);
	if (keyless ? f->op == OP_RING && f->body_len != 8 : decode_key(k, body) < 0) {
		answer_status(k, ST_BAD_REQUEST, NULL);
		return;
	}
	serve_call(k, body);
}

/* GETs that came in one frame: from here on as if each had come by itself */
static void serve_mget(struct conn *c, const struct frame *f, const uint8_t *body)
{
	struct frame one = *f;
	size_t at = 0;

	metric_add(c->worker->conf->counters->requests[OP_MGET], 1);
	one.op = OP_GET;
	one.body_len = MSG_GET;
	while (at < f->body_len && c->state == CONN_SERVING) {
		const uint8_t *get;
		ssize_t n = msg_mget_decode(body + at, f->body_len - at, &one.id, &get);

		if (n < 0) {
			conn_drop(c, REJECT_GARBAGE);
			return;
		}
		serve_one(c, &one, get);
		at += (size_t)n;
	}
}

void serve_frame(struct conn *c, const struct frame *f, const uint8_t *body)
{
	if (f->op == OP_MGET && c->version >= 2)
		serve_mget(c, f, body);
	else
		serve_one(c, f, body);
}
