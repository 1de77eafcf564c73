/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a served connection and what it reads (states: conn.h). On its loop. */
#include "cached/conn.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/log.h"

enum { READS_PER_TURN = 8, DISCARD = 16384 };

/* --- life --- */

static void list_move(struct list_node *to, struct list_node *n)
{
	list_del(n);
	list_add_tail(to, n);
}

static const char *const reject_text[REJECT_KINDS] = {
	[REJECT_OTHER_VOLUME] = "HELLO of another volume",
	[REJECT_HANDSHAKE] = "handshake refused",
	[REJECT_SECOND_HANDSHAKE] = "a second handshake",
	[REJECT_NO_HANDSHAKE] = "no handshake in time",
	[REJECT_TOO_EARLY] = "a request before the handshake",
	[REJECT_BAD_LENGTH] = "a block whose length does not fit its key",
	[REJECT_GARBAGE] = "garbage",
	[REJECT_CROWD] = "too many connections",
	[REJECT_ENDLESS] = "a frame that does not end",
	[REJECT_STALLED] = "a reader that takes nothing",
	[REJECT_PLAIN] = "plain TCP, and this group speaks TLS (--group-tls-cert)",
	[REJECT_TLS] = "TLS handshake refused",
};

/* One line a minute and kind: strangers must not fill the log. */
static void log_rejected(enum reject why)
{
	static struct log_rate rates[REJECT_KINDS];
	unsigned suppressed;

	if (log_rate_ok(&rates[why], 60000000, &suppressed))
		log_warn("connection closed: %s (suppressed=%u)", reject_text[why], suppressed);
}

static void body_drop(struct conn *c)
{
	struct call *k = TAKE_PTR(c->body);

	if (!k)
		return;
	if (k->waiting && !pool_cancel(c->worker->conf->env->pool, &k->wait))
		return; /* its memory is on the way: memory_job frees it */
	call_free(k);
}

static void no_stranger(struct conn *c)
{
	if (!c->counted)
		return;
	c->counted = false;
	c->worker->n_strangers--;
	c->worker->strangers_of[c->bucket]--;
}

void conn_drop(struct conn *c, enum reject why)
{
	struct counters *counters = c->worker->conf->counters;

	if (c->state == CONN_CLOSED)
		return;
	if (why) {
		metric_add(counters->rejected, 1);
		log_rejected(why);
	}
	c->state = CONN_CLOSED;
	no_stranger(c);
	loop_watch_set(&c->watch, 0);
	(void)shutdown(c->fd, SHUT_RDWR); /* a disk thread that sends stops soon */
	list_move(&c->worker->closed, &c->link);
	counters_fds(counters, -(int)c->held.n);
	passed_drop(store_passed(c->worker->conf->store), &c->held);
	free(TAKE_PTR(c->hello));
	body_drop(c);
	turns_drop(c->worker->conf->turns, c);
}

void conn_settle(struct conn *c)
{
	struct list_node *n;

	if (c->state != CONN_CLOSED || c->lent || c->shedding || c->busy)
		return;
	while ((n = list_pop(&c->out)))
		call_free(container_of(n, struct call, link));
	if (c->n_calls)
		return;
	list_del(&c->link);
	tls_free(c->tls);
	closep(&c->fd);
	c->worker->n_conns--;
	counters_conns(c->worker->conf->counters, -1);
	free(c);
}

/* --- handshake --- */

static void refuse(struct conn *c, struct call *k, int r)
{
	metric_add(c->worker->conf->counters->rejected, 1);
	log_rejected(r == -ESTALE  ? REJECT_OTHER_VOLUME
		     : r == -EBUSY ? REJECT_CROWD
				   : REJECT_HANDSHAKE);
	c->last_answer = true;
	answer_status(k, msg_errno_to_status(r), NULL);
}

/* the member that was silent longest with nothing to wait for; NULL: none */
static struct conn *idle_member(struct worker *w)
{
	struct list_node *n;

	list_for_each(n, &w->conns)
	{
		struct conn *c = container_of(n, struct conn, link);

		if (!c->n_calls)
			return c;
	}
	return NULL;
}

/* for who has proved himself: an idle member goes when there are too many */
static int make_room(struct worker *w)
{
	struct conn *victim = w->n_conns > w->max_conns ? idle_member(w) : NULL;

	if (!victim)
		return w->n_conns > w->max_conns ? -EBUSY : 0;
	conn_drop(victim, REJECT_CROWD);
	conn_settle(victim);
	return 0;
}

static void become_member(struct conn *c)
{
	struct worker *w = c->worker;

	if (c->tls && w->handshakes_of[c->bucket] > 0)
		w->handshakes_of[c->bucket]--;
	c->state = CONN_SERVING;
	no_stranger(c);
	c->since_us = 0;
	free(TAKE_PTR(c->hello));
	list_move(&c->worker->conns, &c->link);
}

/* who we say we are, until greet_end: the secret may be exchanged afterwards */
struct greeting {
	struct hello_id id;
	uint8_t binding[TLS_BINDING];
};

static int greet_begin(struct conn *c, struct greeting *g)
{
	const struct server_conf *conf = c->worker->conf;
	int r;

	g->id = (struct hello_id){
		.role = ROLE_MEMBER,
		.volume = store_volume(conf->store),
		.group = conf->group,
		.node = conf->node,
	};
	if (c->tls) {
		r = tls_binding(c->tls, g->binding);
		if (r < 0)
			return r;
		g->id.binding = g->binding;
	}
	if (!c->local)
		g->id.secret = conf->keys ? keys_lock(conf->keys) : conf->secret;
	return 0;
}

static void greet_end(const struct conn *c)
{
	if (!c->local)
		keys_unlock(c->worker->conf->keys);
}

static int welcome(struct conn *c, const uint8_t *body, size_t n, uint8_t *ret, size_t *ret_len)
{
	struct greeting g;
	int r = greet_begin(c, &g);

	if (r < 0)
		return r;
	r = hello_answer(&g.id, c->hello, body, n, ret, ret_len, &c->role);
	greet_end(c);
	return r;
}

static void hello(struct conn *c, struct call *k, const uint8_t *body, size_t n)
{
	uint8_t *answer = malloc(MSG_HELLO_MAX);
	size_t len = 0;
	int r = -ENOMEM;

	if (!c->hello)
		c->hello = calloc(1, sizeof(*c->hello));
	if (c->hello && answer)
		r = welcome(c, body, n, answer, &len);
	if (r == 0 && c->local)
		r = make_room(c->worker);
	if (r < 0) {
		free(answer);
		refuse(c, k, r);
		return;
	}
	c->state = CONN_PROOF;
	c->version = c->hello->version;
	if (c->local)
		become_member(c);
	answer_bytes(k, ST_OK, answer, len);
}

static void proof(struct conn *c, struct call *k, const uint8_t *body, size_t n)
{
	struct greeting g;
	int r = greet_begin(c, &g);

	if (r == 0) {
		r = hello_verify(&g.id, c->hello, body, n);
		greet_end(c);
	}
	if (r == 0)
		r = make_room(c->worker);
	if (r < 0) {
		refuse(c, k, r);
		return;
	}
	become_member(c);
	answer_status(k, ST_OK, NULL);
}

static void shake(struct conn *c, const struct frame *f, const uint8_t *body)
{
	struct call *k;

	if (f->op != (c->state == CONN_HELLO ? OP_HELLO : OP_PROOF)) {
		conn_drop(c, REJECT_TOO_EARLY);
		return;
	}
	k = call_new(c, f);
	if (!k) {
		conn_drop(c, REJECT_NONE);
		return;
	}
	metric_add(c->worker->conf->counters->requests[f->op], 1);
	if (f->op == OP_HELLO)
		hello(c, k, body, f->body_len);
	else
		proof(c, k, body, f->body_len);
}

/* --- bodies of PUT --- */

static size_t body_len(const struct call *k)
{
	return k->frame.body_len - MSG_KEY;
}

static void body_memory(struct call *k, int r)
{
	struct req_env *env = k->conn->worker->conf->env;
	size_t len = body_len(k);
	struct buf *b = r == 0 ? pool_take(env->pool, POOL_UPLOAD, len, &k->reserved) : NULL;

	if (b)
		k->req = req_new(env, &k->key, 0, k->key.size, 0, POOL_UPLOAD);
	if (!k->req) {
		buf_unref(b);
		k->status = -ENOMEM;
		return;
	}
	k->req->data = blob_of_buf(b, 0, k->key.size);
	k->req->sums = blob_of_buf(buf_ref(b), k->key.size, len - k->key.size);
}

static void memory_job(struct loop_job *job)
{
	struct call *k = container_of(job, struct call, job);
	struct conn *c = k->conn;

	k->waiting = false;
	k->reserved = k->wait.bytes;
	c->busy++;
	if (c->state == CONN_CLOSED) {
		call_free(k);
	} else {
		body_memory(k, 0);
		c->since_us = clock_us();
		conn_run(c);
	}
	c->busy--;
	conn_settle(c);
}

static void memory_came(struct pool_wait *w)
{
	struct call *k = container_of(w, struct call, wait);

	k->job.fn = memory_job;
	loop_post(k->conn->worker->loop, &k->job);
}

/* A PUT's header and key have come. What is refused is read to its end and dropped, so that the
 * connection stays in step. */
static void body_begin(struct conn *c, const struct frame *f, const uint8_t *key)
{
	struct hash128 volume = store_volume(c->worker->conf->store);
	struct call *k = call_new(c, f);
	struct msg_key m;
	int r;

	if (!k) {
		conn_drop(c, REJECT_NONE);
		return;
	}
	if (msg_key_decode(key, MSG_KEY, &m) != MSG_KEY ||
	    f->body_len != MSG_KEY + m.size + msg_sums_len(m.size)) {
		call_free(k);
		conn_drop(c, REJECT_BAD_LENGTH);
		return;
	}
	metric_add(c->worker->conf->counters->requests[OP_PUT], 1);
	block_key_from_msg(&k->key, &m);
	k->len = m.size;
	c->body = k;
	c->body_have = 0;
	c->since_us = clock_us();
	if (c->worker->stopping)
		k->status = -EHOSTDOWN;
	else if (memcmp(volume.b, k->key.volume.b, sizeof(volume.b)) != 0)
		k->status = -ESTALE;
	if (k->status)
		return;
	k->wait = (struct pool_wait){
		.klass = POOL_UPLOAD, .bytes = pool_cost(body_len(k)), .fn = memory_came};
	list_init(&k->wait.link);
	k->waiting = true;
	r = pool_reserve(c->worker->conf->env->pool, POOL_UPLOAD, k->wait.bytes, &k->wait);
	if (r == -EAGAIN)
		return; /* memory_came will run, or has; memory_job comes later in this thread */
	k->waiting = false;
	if (r == 0)
		k->reserved = k->wait.bytes;
	body_memory(k, r);
}

static void body_end(struct conn *c)
{
	struct call *k = TAKE_PTR(c->body);

	c->since_us = 0;
	list_add_tail(&c->calls, &k->link);
	if (k->status)
		answer_status(k, msg_errno_to_status(k->status), NULL);
	else
		serve_put(k);
}

/* n more bytes of the body have come, at p (or already in place: NULL) */
static void body_got(struct conn *c, const uint8_t *p, size_t n)
{
	struct call *k = c->body;

	if (p && k->req)
		memcpy(k->req->data.buf->mem + c->body_have, p, n);
	c->body_have += n;
	if (c->body_have == body_len(k))
		body_end(c);
}

/* --- reading --- */

static bool may_read(const struct conn *c)
{
	if (c->state == CONN_CLOSED || c->last_answer)
		return false;
	if (c->tls && c->lent)
		return false; /* the session is the disk thread's */
	if (c->body)
		return !c->body->waiting;
	return c->n_calls < CONN_MAX_CALLS && c->memory_bytes < c->worker->memory_max;
}

void conn_watch(struct conn *c)
{
	bool reads = may_read(c);

	if (c->state == CONN_CLOSED)
		return;
	if (c->state == CONN_TLS) {
		loop_watch_set(&c->watch, tls_wants_write(c->tls) ? LOOP_WRITE : LOOP_READ);
		return;
	}
	loop_watch_set(&c->watch,
		       (reads ? LOOP_READ : 0) | (!c->lent && answer_waits(c) ? LOOP_WRITE : 0));
	if (reads && c->tls && tls_pending(c->tls))
		loop_watch_kick(&c->watch);
}

/* one frame, or a part of a body, from p: bytes used, 0: more must come */
static size_t take(struct conn *c, const uint8_t *p, size_t n)
{
	struct frame f;
	ssize_t used;

	if (c->body) {
		size_t part = MIN(n, body_len(c->body) - c->body_have);

		body_got(c, p, part);
		return part;
	}
	used = frame_decode(p, n, 0, &f);
	if (used == -EAGAIN)
		return 0;
	if (used < 0) {
		conn_drop(c, REJECT_GARBAGE);
		return 0;
	}
	if (f.op == OP_PUT && c->state == CONN_SERVING) {
		if (f.body_len < MSG_KEY) {
			conn_drop(c, REJECT_GARBAGE);
			return 0;
		}
		if (n < FRAME_HEADER + MSG_KEY)
			return 0;
		body_begin(c, &f, p + FRAME_HEADER);
		return FRAME_HEADER + MSG_KEY;
	}
	if (FRAME_HEADER + (size_t)f.body_len > CONN_IN) { /* a PUT before the handshake */
		conn_drop(c, REJECT_TOO_EARLY);
		return 0;
	}
	if (n < FRAME_HEADER + (size_t)f.body_len)
		return 0;
	if (c->state == CONN_SERVING && f.op != OP_HELLO && f.op != OP_PROOF)
		serve_frame(c, &f, p + FRAME_HEADER);
	else if (c->state == CONN_SERVING)
		conn_drop(c, REJECT_SECOND_HANDSHAKE);
	else
		shake(c, &f, p + FRAME_HEADER);
	return FRAME_HEADER + f.body_len;
}

/* true when something was taken */
static bool parse(struct conn *c)
{
	size_t pos = 0;
	bool blocked;

	while (pos < c->have && may_read(c)) {
		size_t used = take(c, c->in + pos, c->have - pos);

		if (!used)
			break;
		pos += used;
	}
	if (c->state == CONN_CLOSED)
		return false;
	blocked = !may_read(c);
	c->have -= pos;
	if (pos && c->have)
		memmove(c->in, c->in + pos, c->have);
	if (c->state == CONN_SERVING && !c->body)
		c->since_us =
			c->have && !blocked ? (c->since_us && !pos ? c->since_us : clock_us()) : 0;
	return pos > 0;
}

void conn_run(struct conn *c)
{
	bool blocked;

	if (c->state == CONN_CLOSED)
		return;
	do { /* answers that go out make room for requests that have been read already */
		(void)parse(c);
		blocked = c->have && !may_read(c);
		answer_flush(c);
	} while (blocked && may_read(c));
}

/* where the next bytes go, and how many at most; scratch takes those of a refused body */
static uint8_t *room(struct conn *c, uint8_t *scratch, size_t *ret)
{
	if (!c->body || c->have) {
		*ret = CONN_IN - c->have;
		return c->in + c->have;
	}
	*ret = body_len(c->body) - c->body_have;
	if (c->body->req)
		return c->body->req->data.buf->mem + c->body_have;
	*ret = MIN(*ret, (size_t)DISCARD);
	return scratch;
}

/* as recv */
static ssize_t conn_recv(struct conn *c, void *p, size_t n)
{
	ssize_t r;

	if (!c->tls)
		return recv(c->fd, p, n, MSG_DONTWAIT);
	r = tls_recv(c->tls, p, n);
	if (r >= 0)
		return r;
	errno = (int)-r;
	return -1;
}

static void conn_read(struct conn *c)
{
	uint8_t scratch[DISCARD];

	for (unsigned i = 0; i < READS_PER_TURN && may_read(c); i++) {
		size_t n;
		uint8_t *p = room(c, scratch, &n);
		bool direct = c->body && !c->have;
		ssize_t got;

		assert(n > 0); /* what is in the buffer is less than a frame */
		got = conn_recv(c, p, n);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && errno == EAGAIN)
			return;
		if (got <= 0) {
			conn_drop(c, REJECT_NONE);
			return;
		}
		if (direct)
			body_got(c, NULL, (size_t)got);
		else
			c->have += (size_t)got;
		while (c->have && parse(c))
			;
		if ((size_t)got < n && !c->tls)
			return;
	}
}

static void shake_tls(struct conn *c)
{
	int r = tls_handshake(c->tls);

	if (r == 0)
		c->state = CONN_HELLO;
	else if (r != -EAGAIN)
		conn_drop(c, r == -EPROTOTYPE	? REJECT_PLAIN
			     : r == -EACCES	? REJECT_TLS
			     : r == -ECONNRESET ? REJECT_NONE
						: REJECT_GARBAGE);
}

static void on_event(struct loop_watch *w, unsigned events)
{
	struct conn *c = container_of(w, struct conn, watch);

	c->busy++;
	if (c->state == CONN_TLS)
		shake_tls(c);
	if (c->state != CONN_TLS && (events & LOOP_READ)) {
		if (c->state == CONN_SERVING)
			list_move(&c->worker->conns, &c->link);
		conn_read(c);
	}
	conn_run(c);
	c->busy--;
	conn_settle(c);
}

/* --- start --- */

/* the oldest stranger, of the bucket if it is not negative, but not c itself; NULL: none */
static struct conn *oldest_stranger(struct worker *w, const struct conn * not, int bucket)
{
	struct list_node *n;

	list_for_each(n, &w->strangers)
	{
		struct conn *c = container_of(n, struct conn, link);

		if (c != not &&(bucket < 0 || c->bucket == bucket))
			return c;
	}
	return NULL;
}

/* Too many: strangers of the same address go first, then any. No member goes for a stranger: where
 * there are members alone, one stranger more may prove himself (make_room). */
static void make_place(struct worker *w, const struct conn *new)
{
	bool tls = new->tls;
	unsigned of_one = tls ? CONN_TLS_STRANGERS_PER_ADDRESS : CONN_STRANGERS_PER_ADDRESS;
	unsigned all = tls ? CONN_TLS_STRANGERS_MAX : CONN_STRANGERS_MAX;
	struct conn *victim = NULL;

	if (w->strangers_of[new->bucket] > of_one)
		victim = oldest_stranger(w, new, new->bucket);
	else if (w->n_strangers > all || w->n_conns > w->max_conns)
		victim = oldest_stranger(w, new, -1);
	if (!victim)
		return;
	conn_drop(victim, REJECT_CROWD);
	conn_settle(victim);
}

/* -EBUSY: this address has had its share of handshakes */
static int count_handshake(struct conn *c)
{
	struct worker *w = c->worker;
	uint64_t now = clock_us();

	if (now - w->second_us >= 1000000) {
		memset(w->handshakes_of, 0, sizeof(w->handshakes_of));
		w->second_us = now;
	}
	if (w->handshakes_of[c->bucket] >= CONN_TLS_PER_SECOND)
		return -EBUSY;
	w->handshakes_of[c->bucket]++;
	return 0;
}

static int start_tls(struct conn *c)
{
	struct tls_ctx *ctx = c->local ? NULL : keys_tls(c->worker->conf->keys);
	int r = 0;

	c->state = ctx ? CONN_TLS : CONN_HELLO;
	if (ctx)
		r = count_handshake(c);
	if (ctx && r == 0)
		r = tls_new(ctx, c->fd, true, &c->tls);
	tls_ctx_unref(ctx);
	return r;
}

static void start_job(struct loop_job *job)
{
	struct conn *c = container_of(job, struct conn, start);
	struct worker *w = c->worker;
	int r = start_tls(c);

	w->n_conns++;
	w->n_strangers++;
	w->strangers_of[c->bucket]++;
	c->counted = true;
	list_add_tail(&w->strangers, &c->link);
	loop_watch_init(&c->watch, w->loop, c->fd, on_event);
	c->since_us = clock_us();
	counters_conns(w->conf->counters, 1);
	metric_add(w->conf->counters->conns_total, 1);
	if (w->stopping || r < 0) {
		conn_drop(c, r == -EBUSY ? REJECT_CROWD : REJECT_NONE);
	} else {
		make_place(w, c);
		conn_watch(c);
	}
	conn_settle(c);
}

static uint8_t bucket_of(const struct sockaddr_storage *a)
{
	const struct sockaddr_in *v4 = (const void *)a;
	const struct sockaddr_in6 *v6 = (const void *)a;

	if (a->ss_family == AF_INET)
		return (uint8_t)hash64(&v4->sin_addr, sizeof(v4->sin_addr));
	return (uint8_t)hash64(&v6->sin6_addr, 8); /* a network of one owner */
}

int conn_new(struct worker *w, int fd, const struct sockaddr_storage *peer)
{
	struct conn *c = calloc(1, sizeof(*c));
	const int on = 1;

	if (!c)
		return -ENOMEM;
	if (peer) {
		const unsigned ms = CONN_WRITE_US / 1000;

		(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
		(void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
		(void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms));
	}
	c->worker = w;
	c->fd = fd;
	c->local = !peer;
	c->bucket = peer ? bucket_of(peer) : 0;
	c->start.fn = start_job;
	list_init(&c->link);
	list_init(&c->calls);
	list_init(&c->out);
	passed_holder_init(&c->held);
	turns_line_init(c->line);
	loop_post(w->loop, &c->start);
	return 0;
}
