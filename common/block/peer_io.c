/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of one connection to a daemon. Thread: the connection's loop.
 *
 * Out: a call's header and head are copied into a tx and its blobs referenced, so that from then on
 * the call is not needed for writing; several tx leave with one sendmsg. In: header, then the body
 * straight into the call's buffer.
 *
 * A request id is slot | generation << 16. A slot is
 *	free		in the free list; its generation grew, so an old answer names nothing
 *	a call's	io_fill -> io_answer, or io_bury
 *	a tombstone	its call gave up; io_answer skips the answer and frees it
 */
#include "common/block/peer_conn.h"

#include <sys/uio.h>

#include "common/clock.h"

enum {
	SLOTS = PEER_MAX_IN_FLIGHT,
	TX_MAX = 16,
	SCRATCH = 16384,
	READ_BUDGET = 4 << 20, /* then others of the loop have their turn */
	WAKE_BYTES = 256 << 10,
	NONE = 0xffff,
};
static_assert(SLOTS < NONE, "a slot's number fits 16 bits");
static_assert((int)SCRATCH >= (int)FRAME_SMALL_MAX, "small bodies fit");

struct slot {
	struct peer_call *call; /* NULL: free, or a tombstone */
	uint32_t gen;
	uint16_t next_free, tomb;
	uint8_t op;
	bool tombstone;
};

struct tomb {
	uint16_t next_free;
	bool want_fd;
	uint8_t key[MSG_KEY]; /* of a GET: what CLOSED names when a descriptor comes too late */
};

struct tx {
	uint8_t b[FRAME_HEADER + MSG_MGET * MSG_MGET_MAX];
	size_t n, off; /* off counts through b and the blobs */
	struct blob out[2];
};

struct conn_io {
	struct hello_state hello;
	uint8_t raw[FRAME_HEADER + MSG_HELLO_MAX];
	size_t raw_n, raw_off;
	struct tx tx[TX_MAX];
	unsigned tx_first, tx_n;

	uint8_t head[FRAME_HEADER];
	size_t head_have;
	bool in_body;
	struct frame f;
	struct slot *slot;	/* of the answer being read; NULL in the handshake */
	struct peer_call *call; /* whose buffer takes the body; NULL: scratch */
	size_t body_have;
	int wake_at; /* SO_RCVLOWAT of the socket; 0: as it was made */
	int fd;	     /* came with this header */
	uint8_t scratch[SCRATCH];

	struct slot slots[SLOTS];
	struct tomb tombs[PEER_MAX_TOMBSTONES];
	uint16_t free_slot, free_tomb;
};

int io_new(struct conn_io **ret)
{
	struct conn_io *io = calloc(1, sizeof(*io));

	if (!io)
		return -ENOMEM;
	io->fd = -1;
	for (unsigned i = 0; i < SLOTS; i++)
		io->slots[i].next_free = (uint16_t)(i + 1 < SLOTS ? i + 1 : NONE);
	for (unsigned i = 0; i < PEER_MAX_TOMBSTONES; i++)
		io->tombs[i].next_free = (uint16_t)(i + 1 < PEER_MAX_TOMBSTONES ? i + 1 : NONE);
	*ret = io;
	return 0;
}

void io_free(struct conn_io *io)
{
	if (!io)
		return;
	for (unsigned i = 0; i < io->tx_n; i++) {
		struct tx *t = &io->tx[(io->tx_first + i) % TX_MAX];

		blob_fini(&t->out[0]);
		blob_fini(&t->out[1]);
	}
	closep(&io->fd);
	free(io);
}

struct hello_state *io_hello(struct conn_io *io)
{
	return &io->hello;
}

/* --- out --- */

void io_send_raw(struct conn_io *io, uint8_t op, const uint8_t *body, size_t n)
{
	struct frame f = {.version = FRAME_VERSION, .op = op, .body_len = (uint32_t)n};

	assert(io->raw_off == io->raw_n && n <= MSG_HELLO_MAX);
	frame_encode(&f, io->raw);
	memcpy(io->raw + FRAME_HEADER, body, n);
	io->raw_n = FRAME_HEADER + n;
	io->raw_off = 0;
}

bool io_wants_write(const struct peer_conn *c)
{
	const struct conn_io *io = c->io;

	return io->raw_off < io->raw_n || io->tx_n > 0 || (c->tls && tls_wants_write(c->tls)) ||
	       (c->state == CONN_READY && !c->restarting && !list_empty(&c->queue) &&
		io->free_slot != NONE);
}

static struct blob blob_again(const struct blob *b)
{
	return b->len ? blob_slice(b, 0, b->len) : (struct blob){0};
}

/* the next queued call gets a slot, and is sent from now on */
static struct peer_call *io_take(struct peer_conn *c)
{
	struct conn_io *io = c->io;
	struct peer_call *call = container_of(list_pop(&c->queue), struct peer_call, link);
	struct slot *s = &io->slots[io->free_slot];

	c->n_queue--;
	call->id = (uint64_t)s->gen << 16 | io->free_slot;
	io->free_slot = s->next_free;
	s->call = call;
	s->op = call->op;
	s->tombstone = false;
	call->sent_us = clock_us();
	call->moved_us = call->sent_us;
	call->state = CALL_SENT;
	list_add_tail(&c->sent, &call->link);
	c->n_sent++;
	return call;
}

static uint32_t left_of(const struct peer_call *call)
{
	return (uint32_t)MIN(call->timeout_us, (uint64_t)UINT32_MAX);
}

/* may it go in one frame with those like it? */
static bool is_mget(const struct peer_conn *c, const struct peer_call *call)
{
	return c->version >= 2 && call->op == OP_GET && call->in_cap <= PEER_SMALL;
}

/* how many of the next calls go in one frame */
static unsigned io_alike(const struct peer_conn *c)
{
	const struct peer_call *first = container_of(c->queue.next, struct peer_call, link);
	const struct list_node *node;
	unsigned n = 0;

	if (!is_mget(c, first))
		return 1;
	for (node = c->queue.next; node != &c->queue && n < MSG_MGET_MAX; node = node->next) {
		const struct peer_call *call = container_of(node, const struct peer_call, link);

		/* 0, no limit, is not the least */
		if (!is_mget(c, call) || call->flags != first->flags ||
		    !call->timeout_us != !first->timeout_us)
			break;
		n++;
	}
	return n;
}

/* n calls become one MGET; it carries the least of their times */
static void io_fill_mget(struct peer_conn *c, struct tx *t, unsigned n)
{
	struct frame f = {.version = FRAME_VERSION, .op = OP_MGET, .left_us = UINT32_MAX};
	unsigned i;

	for (i = 0; i < n && c->io->free_slot != NONE; i++) {
		const struct peer_call *call = io_take(c);

		msg_mget_encode(call->id, call->head, t->b + FRAME_HEADER + (size_t)i * MSG_MGET);
		f.id = call->id;
		f.flags = call->flags;
		f.left_us = MIN(f.left_us, left_of(call));
	}
	f.body_len = i * MSG_MGET;
	frame_encode(&f, t->b);
	t->n = FRAME_HEADER + f.body_len;
}

/* the next queued calls become a tx */
static void io_fill(struct peer_conn *c)
{
	struct conn_io *io = c->io;
	struct tx *t = &io->tx[(io->tx_first + io->tx_n) % TX_MAX];
	unsigned n = io_alike(c);
	struct peer_call *call;
	struct frame f = {.version = FRAME_VERSION};

	io->tx_n++;
	t->off = 0;
	t->out[0] = t->out[1] = (struct blob){0};
	if (n > 1) {
		io_fill_mget(c, t, n);
		return;
	}
	call = io_take(c);
	f.op = call->op;
	f.flags = call->flags;
	f.id = call->id;
	f.left_us = left_of(call);
	f.body_len = (uint32_t)(call->head_len + call->out[0].len + call->out[1].len);
	frame_encode(&f, t->b);
	memcpy(t->b + FRAME_HEADER, call->head, call->head_len);
	t->n = FRAME_HEADER + call->head_len;
	t->out[0] = blob_again(&call->out[0]);
	t->out[1] = blob_again(&call->out[1]);
}

static void iov_add(struct iovec *iov, int *n, const void *p, size_t len, size_t *skip)
{
	size_t s = MIN(*skip, len);

	*skip -= s;
	if (s == len)
		return;
	iov[*n].iov_base = (char *)(uintptr_t)p + s;
	iov[(*n)++].iov_len = len - s;
}

static int io_iov(struct conn_io *io, struct iovec *iov)
{
	size_t skip = io->raw_off;
	int n = 0;

	iov_add(iov, &n, io->raw, io->raw_n, &skip);
	for (unsigned i = 0; i < io->tx_n; i++) {
		const struct tx *t = &io->tx[(io->tx_first + i) % TX_MAX];

		skip = t->off;
		iov_add(iov, &n, t->b, t->n, &skip);
		for (unsigned k = 0; k < 2; k++)
			if (t->out[k].len)
				iov_add(iov, &n, blob_mem(&t->out[k]), t->out[k].len, &skip);
	}
	return n;
}

static void io_consume(struct conn_io *io, size_t n)
{
	size_t raw = MIN(n, io->raw_n - io->raw_off);

	io->raw_off += raw;
	n -= raw;
	while (io->tx_n > 0) {
		struct tx *t = &io->tx[io->tx_first];
		size_t left = t->n + t->out[0].len + t->out[1].len - t->off;

		if (n < left) {
			t->off += n;
			return;
		}
		n -= left;
		blob_fini(&t->out[0]);
		blob_fini(&t->out[1]);
		io->tx_first = (io->tx_first + 1) % TX_MAX;
		io->tx_n--;
	}
}

/* as sendmsg */
static ssize_t io_send(struct peer_conn *c, const struct iovec *iov, int n)
{
	struct msghdr m = {.msg_iov = (struct iovec *)(uintptr_t)iov, .msg_iovlen = (size_t)n};
	ssize_t r;

	if (!c->tls)
		return sendmsg(c->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
	r = tls_send(c->tls, iov, (unsigned)n);
	if (r >= 0)
		return r;
	errno = (int)-r;
	return -1;
}

int io_write(struct peer_conn *c)
{
	struct conn_io *io = c->io;

	for (;;) {
		struct iovec iov[1 + 3 * TX_MAX];
		ssize_t n;
		int parts, r;

		while (c->state == CONN_READY && !c->restarting && io->tx_n < TX_MAX &&
		       io->free_slot != NONE && !list_empty(&c->queue))
			io_fill(c);
		parts = io_iov(io, iov);
		if (parts == 0) {
			r = c->tls ? tls_flush(c->tls) : 0;
			return r == -EAGAIN ? 0 : r;
		}
		n = io_send(c, iov, parts);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN ? 0 : -errno;
		io_consume(io, (size_t)n);
	}
}

/* --- in --- */

static void slot_free(struct conn_io *io, struct slot *s)
{
	if (s->tombstone) {
		io->tombs[s->tomb].next_free = io->free_tomb;
		io->free_tomb = s->tomb;
	}
	s->call = NULL;
	s->tombstone = false;
	s->gen++;
	s->next_free = io->free_slot;
	io->free_slot = (uint16_t)(s - io->slots);
}

int io_bury(struct peer_conn *c, struct peer_call *call)
{
	struct conn_io *io = c->io;
	struct slot *s = &io->slots[call->id & 0xffff];
	struct tomb *t;

	assert(s->call == call);
	if (io->call == call)
		io->call = NULL; /* the rest of its body goes to scratch */
	s->call = NULL;
	if (io->free_tomb == NONE)
		return -EOVERFLOW; /* the slot is lost, and soon the connection */
	s->tomb = io->free_tomb;
	t = &io->tombs[s->tomb];
	io->free_tomb = t->next_free;
	t->want_fd = call->op == OP_GET && (call->flags & FRAME_WANT_FD);
	if (t->want_fd)
		memcpy(t->key, call->head, MSG_KEY);
	s->tombstone = true;
	return 0;
}

/* descriptors that came with these bytes: one is kept, a second is closed and refused */
static int io_take_fds(struct conn_io *io, struct msghdr *m)
{
	int r = m->msg_flags & MSG_CTRUNC ? -EPROTO : 0;

	for (struct cmsghdr *h = CMSG_FIRSTHDR(m); h; h = CMSG_NXTHDR(m, h)) {
		size_t n;

		if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
			continue;
		n = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(h) + i * sizeof(fd), sizeof(fd));
			if (io->fd < 0) {
				io->fd = fd;
			} else {
				close(fd);
				r = -EPROTO;
			}
		}
	}
	return r;
}

/* as recv */
static ssize_t io_recv(struct peer_conn *c, void *p, size_t n)
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

/* bytes of the header; 0 at the end of the stream */
static ssize_t io_recv_head(struct peer_conn *c)
{
	struct conn_io *io = c->io;
	alignas(struct cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
	struct iovec iov = {io->head + io->head_have, FRAME_HEADER - io->head_have};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t n;

	if (!c->peer->local)
		return io_recv(c, iov.iov_base, iov.iov_len);
	m.msg_control = control;
	m.msg_controllen = sizeof(control);
	n = recvmsg(c->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n >= 0 && io_take_fds(io, &m) < 0) {
		errno = EPROTO;
		return -1;
	}
	return n;
}

static ssize_t io_recv_body(struct peer_conn *c)
{
	struct conn_io *io = c->io;
	size_t left = io->f.body_len - io->body_have;

	if (io->call)
		return io_recv(c, io->call->in->mem + io->call->in_off + io->body_have, left);
	/* small bodies stay readable in scratch, larger ones are only skipped */
	if (io->f.body_len <= SCRATCH)
		return io_recv(c, io->scratch + io->body_have, left);
	return io_recv(c, io->scratch, MIN(left, (size_t)SCRATCH));
}

static struct slot *io_slot(struct conn_io *io, uint64_t id)
{
	struct slot *s;

	if ((id & 0xffff) >= SLOTS || id >> 48)
		return NULL;
	s = &io->slots[id & 0xffff];
	return s->gen == id >> 16 && (s->call || s->tombstone) ? s : NULL;
}

/* the header is there: is it an answer to something, and where does its body go? */
static int io_head(struct peer_conn *c, const char **why)
{
	struct conn_io *io = c->io;
	struct peer_call *call;
	bool has_fd;

	*why = "header damaged or not ours";
	if (frame_decode(io->head, FRAME_HEADER, 1, &io->f) < 0)
		return -EPROTO;
	has_fd = io->f.flags & FRAME_HAS_FD;
	io->head_have = 0;
	io->body_have = 0;
	io->call = NULL;
	io->slot = NULL;
	*why = "descriptor where none belongs";
	if (has_fd != (io->fd >= 0))
		return -EPROTO;
	if (c->state != CONN_READY) {
		*why = "the handshake was refused";
		return has_fd || io->f.body_len > FRAME_SMALL_MAX ? -EPROTO : 0;
	}
	*why = "answer to nothing that was asked";
	io->slot = io_slot(io, io->f.id);
	if (!io->slot || io->slot->op != io->f.op)
		return -EPROTO;
	call = io->slot->call;
	*why = "descriptor that was not asked for";
	if (has_fd && (io->f.status != ST_OK || io->f.body_len != 0 ||
		       !(call ? call->flags & FRAME_WANT_FD : io->tombs[io->slot->tomb].want_fd)))
		return -EPROTO;
	*why = "FILLING with a body";
	if (io->f.status == ST_FILLING)
		return io->f.body_len ? -EPROTO : 0;
	if (!call)
		return 0;
	call->moved_us = clock_us();
	if (io->f.status != ST_OK || io->f.body_len == 0)
		return 0;
	*why = "body longer than asked for";
	if (call->in && io->f.body_len <= call->in_cap)
		io->call = call;
	else if (call->in || io->f.body_len > FRAME_SMALL_MAX)
		return -EPROTO;
	return 0;
}

/* text of a daemon, for people: printable, cut */
static void io_reason(const struct conn_io *io, struct peer_call *call)
{
	size_t n = MIN((size_t)io->f.body_len, sizeof(call->reason) - 1);

	for (size_t i = 0; i < n; i++)
		call->reason[i] =
			(char)(io->scratch[i] < ' ' || io->scratch[i] == 127 ? '?'
									     : io->scratch[i]);
	call->reason[n] = '\0';
}

static void io_answer_tomb(struct peer_conn *c)
{
	struct conn_io *io = c->io;

	if (io->fd >= 0) {
		const struct tomb *t = &io->tombs[io->slot->tomb];

		closep(&io->fd);
		io->fd = -1;
		peer_tell(c->peer, c == &c->peer->conn[CONN_BULK], OP_CLOSED, t->key, MSG_KEY);
	}
	if (io->f.status != ST_FILLING)
		slot_free(io, io->slot);
}

/* header and body are complete */
static int io_answer(struct peer_conn *c)
{
	struct conn_io *io = c->io;
	struct slot *s = io->slot;
	struct peer_call *call;
	int status;

	io->in_body = false;
	if (!s)
		return conn_handshake(c, &io->f, io->scratch);
	call = s->call;
	io->call = NULL;
	if (!call) {
		if (s->tombstone)
			io_answer_tomb(c);
		return 0;
	}
	if (io->f.status == ST_FILLING) {
		if (!call->filled) {
			call->filled = true;
			call->moved_us = clock_us();
			if (call->filling)
				call->filling(call);
		}
		return 0;
	}
	if (io->f.status == ST_RESTARTING && conn_hold(c, call)) {
		slot_free(io, s);
		return 0;
	}
	status = msg_status_to_errno(io->f.status);
	call->verdict = io->f.status;
	if (io->f.status == ST_OK)
		call->in_len = io->f.body_len;
	else
		io_reason(io, call);
	call->fd = TAKE_FD(io->fd);
	slot_free(io, s);
	/* what hedges go by: blocks that were there */
	if (io->f.status == ST_OK && !call->filled && call->op == OP_GET)
		peer_observe(c->peer, clock_us() - call->sent_us);
	conn_end(c, call, status);
	return 0;
}

/* The loop will wait: in the middle of a block not for every packet, which costs sender and reader
 * a wake-up each. Before every wait, also when the budget ended the reading and not an empty
 * socket: never for more than the block lacks, or its last bytes would lie there unseen. */
static void io_wait_more(struct peer_conn *c)
{
	struct conn_io *io = c->io;
	size_t left = io->in_body ? io->f.body_len - io->body_have : 1;
	int at = (int)MIN(left, (size_t)WAKE_BYTES);

	if (c->peer->local || c->tls || at == (io->wake_at ? io->wake_at : 1))
		return;
	if (setsockopt(c->fd, SOL_SOCKET, SO_RCVLOWAT, &at, sizeof(at)) == 0)
		io->wake_at = at;
}

int io_read(struct peer_conn *c, const char **why)
{
	struct conn_io *io = c->io;
	size_t budget = READ_BUDGET;

	/* of what TLS has decrypted already the socket would not tell */
	while ((budget > 0 || (c->tls && tls_pending(c->tls))) && !c->doomed) {
		ssize_t n = io->in_body ? io_recv_body(c) : io_recv_head(c);
		int r = 0;

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			break;
		*why = n == 0	? "closed by the daemon"
		       : c->tls ? tls_error(c->tls)
				: "receiving failed";
		if (n <= 0)
			return n == 0 ? -ECONNRESET : -errno;
		budget -= MIN(budget, (size_t)n);
		__atomic_store_n(&c->peer->last_rx_us, clock_us(), __ATOMIC_RELAXED);
		if (io->in_body) {
			io->body_have += (size_t)n;
			if (io->call)
				io->call->moved_us = clock_us();
			if (io->body_have == io->f.body_len)
				r = io_answer(c);
		} else {
			io->head_have += (size_t)n;
			if (io->head_have < FRAME_HEADER)
				continue;
			r = io_head(c, why);
			if (r == 0) {
				io->in_body = true;
				if (io->f.body_len == 0)
					r = io_answer(c);
			}
		}
		if (r < 0)
			return r;
	}
	io_wait_more(c);
	return 0;
}
