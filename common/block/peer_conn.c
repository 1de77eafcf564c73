/* SPDX-License-Identifier: Apache-2.0 */
/* One connection to a daemon: opening, handshake, calls, end. Thread: the connection's loop; a host
 * name is looked up by the resolver's thread, which comes back through the loop's mailbox.
 *
 *	IDLE		no socket. A call opens it (conn_open), unless it failed less than
 *			backoff_us ago
 *	RESOLVING	the name is being looked up	-> conn_connect
 *	CONNECTING	-> TLS where the group speaks it, else conn_greet sends HELLO
 *	TLS		its handshake goes on		-> conn_greet sends HELLO
 *	HELLO		waits for WELCOME		-> PROOF on TCP, READY on a unix socket
 *	PROOF		waits for OK			-> READY
 *	READY		calls are written and answered (peer_io.c)
 *	CLOSED		peers_free was called
 *
 * A daemon that replaces its program says RESTARTING and keeps its listening sockets: what was not
 * answered goes back to the queue, and a new connection is opened, which waits until the next
 * program accepts it (conn_hold, conn_reopen). Once for each call, and for PEER_HOLD_US at most.
 *
 * conn_fail leads from every state to IDLE and ends all calls; a socket exists from CONNECTING to
 * READY. A call is in queue or sent, except while its end is told. */
#include "common/block/peer_conn.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/un.h>

#include "common/clock.h"

enum {
	BACKOFF_MIN_US = 50000,
	BACKOFF_MAX_US = 2000000,
	HANDSHAKE_TIMES = 5, /* so much longer than for the connect, as the served side has it */
};

static void conn_shut(struct peer_conn *c);
static void conn_open(struct peer_conn *c);

static struct peer_conn *conn_of(const struct peer_call *call)
{
	return call->conn;
}

/* --- calls --- */

static void call_unlink(struct peer_conn *c, struct peer_call *call)
{
	list_del(&call->link);
	if (call->state == CALL_QUEUED)
		c->n_queue--;
	else if (call->state == CALL_SENT)
		c->n_sent--;
}

static void call_done(struct peer_conn *c, struct peer_call *call, int status)
{
	struct peers *ps = c->peer->peers;

	blob_fini(&call->out[0]);
	blob_fini(&call->out[1]);
	metric_add(status == 0 ? ps->ok : status == -ETIMEDOUT ? ps->timed_out : ps->failed, 1);
	__atomic_fetch_sub(&c->peer->in_flight, 1, __ATOMIC_RELAXED);
	call->done(call, status);
}

void conn_end(struct peer_conn *c, struct peer_call *call, int status)
{
	call_unlink(c, call);
	call_done(c, call, status);
}

/* tells all of the list, any of which may abandon others of it */
static void conn_end_all(struct peer_conn *c, struct list_node *ending, int status, const char *why)
{
	struct list_node *n;

	while ((n = list_pop(ending))) {
		struct peer_call *call = container_of(n, struct peer_call, link);

		if (!call->reason[0])
			snprintf(call->reason, sizeof(call->reason), "%s: %s", c->peer->name, why);
		call_done(c, call, status);
	}
}

static void conn_start_sweep(struct peer_conn *c)
{
	if (c->sweep.pending)
		return;
	__atomic_store_n(&c->sweep_us, clock_us() + PEER_SWEEP_US, __ATOMIC_RELAXED);
	loop_timer_start(&c->sweep, PEER_SWEEP_US);
}

static void shift(uint64_t *io_us, uint64_t late, uint64_t now)
{
	*io_us = MIN(*io_us + late, now);
}

/* While this loop did not run, nobody was silent: what he sent may lie in the socket. */
static void conn_stood_still(struct peer_conn *c, uint64_t now)
{
	uint64_t due = __atomic_exchange_n(&c->sweep_us, 0, __ATOMIC_RELAXED);
	uint64_t rx = __atomic_load_n(&c->peer->last_rx_us, __ATOMIC_RELAXED);
	uint64_t late = due && now > due ? now - due : 0;
	struct list_node *n;

	if (late < PEER_SWEEP_US / 2)
		return;
	shift(&rx, late, now);
	__atomic_store_n(&c->peer->last_rx_us, rx, __ATOMIC_RELAXED);
	list_for_each(n, &c->queue)
		shift(&container_of(n, struct peer_call, link)->moved_us, late, now);
	list_for_each(n, &c->sent)
		shift(&container_of(n, struct peer_call, link)->moved_us, late, now);
}

static bool call_quiet(const struct peer_call *call, uint64_t now)
{
	return call->quiet_us && now >= call->moved_us && now - call->moved_us >= call->quiet_us;
}

/* --- a daemon that replaces its program --- */

static bool peer_is_held(const struct peer *p)
{
	return clock_us() < __atomic_load_n(&p->hold_until_us, __ATOMIC_RELAXED);
}

/* It waits like for a fetch: nobody hedges meanwhile. */
static void call_held(struct peer_call *call)
{
	call->moved_us = clock_us();
	if (call->filled)
		return;
	call->filled = true;
	if (call->filling)
		call->filling(call);
}

/* from sent back to the queue */
static void call_again(struct peer_conn *c, struct peer_call *call)
{
	list_del(&call->link);
	c->n_sent--;
	call->held = true;
	call->state = CALL_QUEUED;
	list_add_tail(&c->queue, &call->link);
	c->n_queue++;
	call->moved_us = clock_us();
	metric_add(c->peer->peers->held, 1);
}

bool conn_hold(struct peer_conn *c, struct peer_call *call)
{
	if (call->held || call->probe)
		return false;
	if (!peer_is_held(c->peer))
		__atomic_store_n(&c->peer->hold_until_us, clock_us() + PEER_HOLD_US,
				 __ATOMIC_RELAXED);
	c->restarting = true;
	call_again(c, call);
	loop_timer_start(&c->sweep, 0);
	call_held(call); /* which may end it */
	return true;
}

/* the connection of before is over; who waits in the queue goes over a new one */
static void conn_reopen(struct peer_conn *c)
{
	conn_shut(c);
	c->state = CONN_IDLE;
	if (c->n_queue)
		conn_open(c);
}

/* calls that wait too long end; a connection with too many tombstones does */
static void conn_sweep(struct loop_timer *t)
{
	struct peer_conn *c = container_of(t, struct peer_conn, sweep);
	struct list_node ending, *n, *next;
	uint64_t now = clock_us();

	conn_stood_still(c, now);
	list_init(&ending);
	list_for_each_safe(n, next, &c->queue)
	{
		struct peer_call *call = container_of(n, struct peer_call, link);

		if (!call_quiet(call, now))
			continue;
		call_unlink(c, call);
		call->state = CALL_ENDING;
		list_add_tail(&ending, &call->link);
	}
	list_for_each_safe(n, next, &c->sent)
	{
		struct peer_call *call = container_of(n, struct peer_call, link);

		if (!call_quiet(call, now))
			continue;
		if (io_bury(c, call) < 0)
			c->doomed = true;
		call_unlink(c, call);
		call->state = CALL_ENDING;
		list_add_tail(&ending, &call->link);
	}
	conn_end_all(c, &ending, -ETIMEDOUT, "no answer in time");
	if (c->doomed)
		conn_fail(c, -EHOSTDOWN, "too many answers outstanding that nobody waits for");
	else if (c->restarting && c->n_sent == 0 && c->state == CONN_READY)
		conn_reopen(c);
	if (c->n_queue + c->n_sent > 0)
		conn_start_sweep(c);
}

void peer_abandon(struct peer_call *call)
{
	struct peer_conn *c = conn_of(call);
	bool buried = true;

	assert(loop_is_mine(c->loop) && call->state != CALL_POSTED);
	if (call->state == CALL_SENT)
		buried = io_bury(c, call) == 0;
	call_unlink(c, call);
	blob_fini(&call->out[0]);
	blob_fini(&call->out[1]);
	__atomic_fetch_sub(&c->peer->in_flight, 1, __ATOMIC_RELAXED);
	if (!buried) {
		/* not from here: others would hear of their end on this caller's stack */
		c->doomed = true;
		loop_timer_start(&c->sweep, 0);
	}
}

/* --- the end of a connection --- */

static void conn_shut(struct peer_conn *c)
{
	loop_timer_stop(&c->handshake);
	if (c->fd >= 0) {
		loop_watch_set(&c->watch, 0);
		close(c->fd);
		c->fd = -1;
	}
	io_free(TAKE_PTR(c->io));
	tls_free(TAKE_PTR(c->tls));
	c->doomed = c->restarting = false;
}

/* the daemon went away behind its RESTARTING: what it did not answer is asked again */
static void conn_save(struct peer_conn *c)
{
	struct list_node *n, *next;

	list_for_each_safe(n, next, &c->sent)
	{
		struct peer_call *call = container_of(n, struct peer_call, link);

		if (!call->held && !call->probe)
			call_again(c, call);
	}
}

/* all that wait are told; whoever is told may give up others */
static void conn_tell_held(struct peer_conn *c)
{
	struct list_node *n;
again:
	list_for_each(n, &c->queue)
	{
		struct peer_call *call = container_of(n, struct peer_call, link);

		if (call->filled)
			continue;
		call_held(call);
		goto again;
	}
}

void conn_fail(struct peer_conn *c, int status, const char *why)
{
	bool was_ready = c->state == CONN_READY, was_idle = c->state == CONN_IDLE;
	bool goes_on = was_ready && !c->doomed && status != -EPROTO && peer_is_held(c->peer);
	struct list_node ending, *n;
	struct peer *p = c->peer;
	char text[REQ_REASON];

	snprintf(text, sizeof(text), "%s", why); /* it may be the TLS session's, which ends here */
	why = text;
	list_init(&ending);
	if (goes_on)
		conn_save(c);
	list_splice_tail(&ending, &c->sent);
	c->n_sent = 0;
	if (!goes_on) {
		list_splice_tail(&ending, &c->queue);
		c->n_queue = 0;
	}
	list_for_each(n, &ending) container_of(n, struct peer_call, link)->state = CALL_ENDING;
	conn_shut(c);
	if (c->state == CONN_CLOSED) {
		conn_end_all(c, &ending, status, why);
		return;
	}
	c->state = CONN_IDLE;
	if (!was_idle && (!was_ready || status == -EPROTO)) {
		c->backoff_us = c->backoff_us ? MIN(c->backoff_us * 2, (uint64_t)BACKOFF_MAX_US)
					      : BACKOFF_MIN_US;
		c->retry_us = clock_us() + c->backoff_us;
		metric_add(p->peers->refused, 1);
		peer_connect_failed(p, status);
	}
	/* who asked while it stood hears that the host went away, whatever broke first */
	conn_end_all(c, &ending, was_ready && status != -EPROTO ? -EHOSTDOWN : status, why);
	/* unless somebody who was told opened it already */
	if (goes_on && c->state == CONN_IDLE && c->n_queue)
		conn_open(c);
	if (goes_on)
		conn_tell_held(c);
}

void conn_close(struct peer_conn *c)
{
	c->state = CONN_CLOSED;
	loop_timer_stop(&c->sweep);
	__atomic_store_n(&c->sweep_us, 0, __ATOMIC_RELAXED);
	conn_fail(c, -ECANCELED, "closing");
}

/* --- opening --- */

void conn_update_watch(struct peer_conn *c)
{
	if (c->fd < 0)
		return;
	if (c->state == CONN_CONNECTING)
		loop_watch_set(&c->watch, LOOP_WRITE);
	else if (c->state == CONN_TLS)
		loop_watch_set(&c->watch, tls_wants_write(c->tls) ? LOOP_WRITE : LOOP_READ);
	else
		loop_watch_set(&c->watch, LOOP_READ | (io_wants_write(c) ? LOOP_WRITE : 0));
}

/* who we say we are, until greet_end: the secret may be exchanged afterwards */
struct greeting {
	struct hello_id id;
	uint8_t binding[TLS_BINDING];
};

static int greet_begin(const struct peer_conn *c, struct greeting *g)
{
	struct peers *ps = c->peer->peers;
	int r;

	mtx_lock(&ps->lock); /* the volume's id may move */
	g->id = ps->conf.id;
	mtx_unlock(&ps->lock);
	if (c->peer->local) {
		g->id.secret = NULL;
		return 0;
	}
	if (c->tls) {
		r = tls_binding(c->tls, g->binding);
		if (r < 0)
			return r;
		g->id.binding = g->binding;
	}
	if (ps->conf.keys)
		g->id.secret = keys_lock(ps->conf.keys);
	return 0;
}

static void greet_end(const struct peer_conn *c)
{
	if (!c->peer->local)
		keys_unlock(c->peer->peers->conf.keys);
}

static void conn_write(struct peer_conn *c)
{
	int r = io_write(c);

	if (r < 0)
		conn_fail(c, -EHOSTDOWN, strerror(-r));
	else
		conn_update_watch(c);
}

static void conn_greet(struct peer_conn *c)
{
	uint8_t body[MSG_HELLO_MAX];
	struct greeting g;
	size_t n;

	if (greet_begin(c, &g) < 0) {
		conn_fail(c, -EPROTO, tls_error(c->tls));
		return;
	}
	n = hello_ask(&g.id, io_hello(c->io), body);
	greet_end(c);
	if (n == 0) {
		conn_fail(c, -EIO, "no random numbers");
		return;
	}
	io_send_raw(c->io, OP_HELLO, body, n);
	c->state = CONN_HELLO;
	conn_write(c);
}

static void conn_tls(struct peer_conn *c)
{
	int r = tls_handshake(c->tls);

	if (r == 0)
		conn_greet(c);
	else if (r == -EAGAIN)
		conn_update_watch(c);
	else
		conn_fail(c, r, tls_error(c->tls));
}

static uint64_t conn_limit(const struct peer_conn *c)
{
	uint64_t us = c->peer->peers->conf.connect_timeout_us;

	return us ? us : 1000000;
}

static void conn_connected(struct peer_conn *c)
{
	struct tls_ctx *ctx = c->peer->local ? NULL : keys_tls(c->peer->peers->conf.keys);
	int r;

	/* His machine answers, he himself may be busy. Who waits asks another one meanwhile; but a
	 * daemon that is taken for dead is not asked at all, and others fetch what he has. */
	loop_timer_start(&c->handshake, HANDSHAKE_TIMES * conn_limit(c));
	if (!ctx) {
		conn_greet(c);
		return;
	}
	r = tls_new(ctx, c->fd, false, &c->tls);
	tls_ctx_unref(ctx);
	if (r < 0) {
		conn_fail(c, r, strerror(-r));
		return;
	}
	c->state = CONN_TLS;
	conn_tls(c);
}

static const char TOO_OLD[] = "the daemon speaks an older version of the protocol";

/* calls that this daemon is too old for */
static void conn_end_newer(struct peer_conn *c)
{
	struct list_node ending, *n, *next;

	list_init(&ending);
	list_for_each_safe(n, next, &c->queue)
	{
		struct peer_call *call = container_of(n, struct peer_call, link);

		if (call->min_version <= c->version)
			continue;
		call_unlink(c, call);
		call->state = CALL_ENDING;
		list_add_tail(&ending, &call->link);
	}
	conn_end_all(c, &ending, -EPROTONOSUPPORT, TOO_OLD);
}

static void conn_ready(struct peer_conn *c)
{
	c->version = io_hello(c->io)->version;
	loop_timer_stop(&c->handshake);
	c->state = CONN_READY;
	c->backoff_us = c->retry_us = 0;
	metric_add(c->peer->peers->connects, 1);
	peer_connected(c->peer);
	conn_end_newer(c);
}

int conn_handshake(struct peer_conn *c, const struct frame *f, const uint8_t *body)
{
	uint8_t proof[MSG_HMAC];
	struct greeting g;
	bool proves;
	int r;

	if (f->op != (c->state == CONN_HELLO ? OP_HELLO : OP_PROOF) || f->status == ST_FILLING ||
	    io_wants_write(c))
		return -EPROTO;
	if (f->status != ST_OK)
		return msg_status_to_errno(f->status);
	if (c->state == CONN_HELLO) {
		r = greet_begin(c, &g);
		if (r < 0)
			return r;
		r = hello_prove(&g.id, io_hello(c->io), body, f->body_len, proof);
		proves = g.id.secret;
		greet_end(c);
		if (r < 0)
			return r;
		if (proves) {
			io_send_raw(c->io, OP_PROOF, proof, sizeof(proof));
			c->state = CONN_PROOF;
			return 0;
		}
	}
	conn_ready(c);
	return 0;
}

static void conn_events(struct loop_watch *w, unsigned events)
{
	struct peer_conn *c = container_of(w, struct peer_conn, watch);
	const char *why = "closed by the daemon";
	int r = 0;

	if (c->state == CONN_CONNECTING) {
		socklen_t n = sizeof(r);

		if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &r, &n) < 0)
			r = errno;
		if (r)
			conn_fail(c, -r, strerror(r));
		else
			conn_connected(c);
		return;
	}
	if (c->state == CONN_TLS) {
		conn_tls(c);
		return;
	}
	/* over TLS what is read may wait for the socket to be writable */
	if ((events & LOOP_READ) || c->tls)
		r = io_read(c, &why);
	if (r < 0) {
		conn_fail(c, r, why);
		return;
	}
	if (c->doomed)
		conn_fail(c, -EHOSTDOWN, "too many answers outstanding that nobody waits for");
	else if (c->io)
		conn_write(c);
}

static void conn_handshake_late(struct loop_timer *t)
{
	conn_fail(container_of(t, struct peer_conn, handshake), -ETIMEDOUT,
		  "no connection in time");
}

static void set_tcp(int fd)
{
	int on = 1, idle = 5, count = 3, user_ms = 10000;

	/* none of them is needed for being right */
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	(void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle, sizeof(idle));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_ms, sizeof(user_ms));
}

static void conn_connect(struct peer_conn *c)
{
	int r = io_new(&c->io);

	if (r == 0) {
		c->fd = socket(c->addr.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		r = c->fd < 0 ? -errno : 0;
	}
	if (r < 0) {
		conn_fail(c, r, strerror(-r));
		return;
	}
	loop_watch_init(&c->watch, c->loop, c->fd, conn_events);
	if (!c->peer->local)
		set_tcp(c->fd);
	c->state = CONN_CONNECTING;
	if (connect(c->fd, (struct sockaddr *)&c->addr, c->addr_len) == 0) {
		conn_connected(c);
		return;
	}
	/* EAGAIN: the unix socket's queue is full */
	if (errno != EINPROGRESS) {
		r = errno == EAGAIN ? EBUSY : errno == ENOENT ? ECONNREFUSED : errno;
		conn_fail(c, -r, strerror(r));
		return;
	}
	conn_update_watch(c);
}

static int conn_literal(struct peer_conn *c)
{
	const struct peer *p = c->peer;
	struct sockaddr_un *un = (struct sockaddr_un *)&c->addr;
	struct sockaddr_in *v4 = (struct sockaddr_in *)&c->addr;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&c->addr;

	memset(&c->addr, 0, sizeof(c->addr));
	if (p->local) {
		un->sun_family = AF_UNIX;
		snprintf(un->sun_path, sizeof(un->sun_path), "%s", p->addr);
		c->addr_len = sizeof(*un);
	} else if (inet_pton(AF_INET, p->addr, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(p->port);
		c->addr_len = sizeof(*v4);
	} else if (inet_pton(AF_INET6, p->addr, &v6->sin6_addr) == 1) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(p->port);
		c->addr_len = sizeof(*v6);
	} else {
		return -ENOENT;
	}
	return 0;
}

/* the resolver's thread (which has time-outs of its own): the connection is RESOLVING and waits for
 * resolved */
static void conn_resolve(struct workq_job *job)
{
	struct peer_conn *c = container_of(job, struct peer_conn, resolve);
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};
	struct addrinfo *found = NULL;
	char port[8];

	snprintf(port, sizeof(port), "%u", (unsigned)c->peer->port);
	c->resolve_status = -EHOSTUNREACH;
	if (getaddrinfo(c->peer->addr, port, &hints, &found) == 0 &&
	    found->ai_addrlen <= sizeof(c->addr)) {
		memcpy(&c->addr, found->ai_addr, found->ai_addrlen);
		c->addr_len = found->ai_addrlen;
		c->resolve_status = 0;
	}
	if (found)
		freeaddrinfo(found);
	loop_post(c->loop, &c->resolved);
}

static void conn_resolved(struct loop_job *job)
{
	struct peer_conn *c = container_of(job, struct peer_conn, resolved);

	if (c->state != CONN_RESOLVING)
		return; /* closed meanwhile */
	if (c->resolve_status < 0) {
		conn_fail(c, c->resolve_status, "its name is not known");
	} else {
		loop_timer_start(&c->handshake, conn_limit(c));
		conn_connect(c);
	}
}

static void conn_open(struct peer_conn *c)
{
	struct peers *ps = c->peer->peers;

	c->state = CONN_RESOLVING;
	if (!c->peer->local && !ps->conf.id.secret && !ps->conf.keys) {
		conn_fail(c, -EACCES, "TCP needs the group secret");
		return;
	}
	if (conn_literal(c) == 0) {
		loop_timer_start(&c->handshake, conn_limit(c));
		conn_connect(c);
	} else if (workq_push(ps->resolver, &c->resolve) < 0) {
		conn_fail(c, -EBUSY, "too many names to look up");
	}
}

void conn_submit(struct peer_conn *c, struct peer_call *call)
{
	int status = 0;

	assert(loop_is_mine(c->loop));
	call->state = CALL_ENDING;
	list_init(&call->link);
	call->moved_us = clock_us();
	if (c->state == CONN_CLOSED)
		status = -ECANCELED;
	else if (c->n_queue >= PEER_MAX_IN_FLIGHT)
		status = -EBUSY;
	else if (!call->probe && !peer_gate(c->peer, &status))
		assert(status < 0);
	else if (!call->probe && c->state == CONN_IDLE && c->retry_us > call->moved_us)
		status = -EHOSTDOWN;
	else if (c->state == CONN_READY && call->min_version > c->version)
		status = -EPROTONOSUPPORT;
	if (status < 0) {
		snprintf(call->reason, sizeof(call->reason), "%s: %s", c->peer->name,
			 status == -EPROTONOSUPPORT ? TOO_OLD : "not asked");
		call_done(c, call, status);
		return;
	}
	call->state = CALL_QUEUED;
	list_add_tail(&c->queue, &call->link);
	c->n_queue++;
	conn_start_sweep(c);
	if (c->state != CONN_READY && peer_is_held(c->peer))
		call_held(call);
	if (c->state == CONN_IDLE)
		conn_open(c);
}

void conn_flush(struct peer_conn *c)
{
	if (c->state == CONN_READY && !list_empty(&c->queue))
		conn_write(c);
}

void conn_init(struct peer_conn *c, struct peer *p, struct loop *l)
{
	c->peer = p;
	c->loop = l;
	c->state = CONN_IDLE;
	c->fd = -1;
	list_init(&c->queue);
	list_init(&c->sent);
	loop_timer_init(&c->handshake, l, conn_handshake_late);
	loop_timer_init(&c->sweep, l, conn_sweep);
	c->resolve.fn = conn_resolve;
	c->resolved.fn = conn_resolved;
}
