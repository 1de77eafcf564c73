/* SPDX-License-Identifier: Apache-2.0 */
/* A scripted daemon (a thread that takes one connection after the other, shakes hands, and then
 * does what the test's script says, with the encoders of proto/), and calls that a test can wait
 * for. */
#ifndef STOKE_TESTS_UNIT_BLOCK_SCRIPT_H
#define STOKE_TESTS_UNIT_BLOCK_SCRIPT_H

#include "tests/unit/check.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "common/block/peer.h"
#include "common/clock.h"

enum { BLOCK = 1 << 20, WAIT_US = 20000000 };

static struct secret good = {.len = 16, .b = (uint8_t[]){"0123456789abcdef"}};

/* --- the daemon --- */

struct daemon {
	int lfd;
	uint16_t port;
	char path[100];
	struct hello_id id;
	void (*script)(struct daemon *d, int fd);
	pthread_t thread;
	unsigned accepted; /* atomic */
	int note;	   /* what the script saw, atomic */
};

struct asked {
	struct frame f;
	uint8_t body[FRAME_SMALL_MAX];
};

static inline bool read_all(int fd, void *p, size_t n)
{
	size_t have = 0;

	while (have < n) {
		ssize_t r = recv(fd, (char *)p + have, n - have, 0);

		if (r <= 0)
			return false;
		have += (size_t)r;
	}
	return true;
}

/* the rest of an MGET, which is asked one by one; one daemon thread at a time */
static struct asked asked_rest;
static size_t asked_at;
static int asked_fd = -1;

static inline bool next_of_mget(struct asked *a)
{
	const uint8_t *get;

	if (asked_at >= asked_rest.f.body_len)
		return false;
	a->f = asked_rest.f;
	a->f.op = OP_GET;
	a->f.body_len = MSG_GET;
	assert_int_equal(msg_mget_decode(asked_rest.body + asked_at,
					 asked_rest.f.body_len - asked_at, &a->f.id, &get),
			 MSG_MGET);
	memcpy(a->body, get, MSG_GET);
	asked_at += MSG_MGET;
	return true;
}

static inline bool next(int fd, struct asked *a)
{
	uint8_t h[FRAME_HEADER];

	if (asked_fd == fd && next_of_mget(a))
		return true;
	asked_fd = -1;
	if (!read_all(fd, h, sizeof(h)) || frame_decode(h, sizeof(h), 0, &a->f) != FRAME_HEADER)
		return false;
	if (a->f.body_len > sizeof(a->body) || !read_all(fd, a->body, a->f.body_len))
		return false;
	if (a->f.op != OP_MGET)
		return true;
	asked_rest = *a;
	asked_at = 0;
	asked_fd = fd;
	return next_of_mget(a);
}

static inline void send_raw(int fd, const void *p, size_t n)
{
	size_t off = 0;

	while (off < n) {
		ssize_t r = send(fd, (const char *)p + off, n - off, MSG_NOSIGNAL);

		if (r <= 0)
			return;
		off += (size_t)r;
	}
}

static inline void answer_head(int fd, const struct asked *a, unsigned status, uint32_t flags,
			       size_t n)
{
	struct frame f = {.version = FRAME_VERSION,
			  .op = a->f.op,
			  .status = (uint16_t)status,
			  .id = a->f.id,
			  .flags = flags,
			  .body_len = (uint32_t)n};
	uint8_t h[FRAME_HEADER];

	frame_encode(&f, h);
	send_raw(fd, h, sizeof(h));
}

static inline void answer(int fd, const struct asked *a, unsigned status, const void *p, size_t n)
{
	answer_head(fd, a, status, 0, n);
	send_raw(fd, p, n);
}

/* GET's bytes are told by its slice number */
static inline void answer_get(int fd, const struct asked *a)
{
	static uint8_t data[BLOCK]; /* one daemon thread at a time */
	struct msg_get g;

	if (a->f.op != OP_GET) { /* a probe that came after the test's call broke */
		answer(fd, a, ST_OK, NULL, 0);
		return;
	}
	assert_int_equal(msg_get_decode(a->body, a->f.body_len, &g), MSG_GET);
	memset(data, (int)g.key.slice, g.len);
	answer(fd, a, ST_OK, data, g.len);
}

static inline void answer_fds(int fd, const struct asked *a, uint32_t flags, int n_fds)
{
	struct frame f = {.version = FRAME_VERSION, .op = a->f.op, .id = a->f.id, .flags = flags};
	uint8_t h[FRAME_HEADER];
	alignas(struct cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))] = {0};
	struct iovec iov = {h, sizeof(h)};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control};
	struct cmsghdr *cm;
	int fds[4];

	frame_encode(&f, h);
	for (int i = 0; i < n_fds; i++)
		fds[i] = open("/dev/zero", O_RDONLY);
	m.msg_controllen = CMSG_SPACE((size_t)n_fds * sizeof(int));
	cm = (struct cmsghdr *)(void *)control;
	cm->cmsg_level = SOL_SOCKET;
	cm->cmsg_type = SCM_RIGHTS;
	cm->cmsg_len = CMSG_LEN((size_t)n_fds * sizeof(int));
	memcpy(CMSG_DATA(cm), fds, (size_t)n_fds * sizeof(int));
	(void)sendmsg(fd, &m, MSG_NOSIGNAL); /* a probe's connection may be gone */
	for (int i = 0; i < n_fds; i++)
		close(fds[i]);
}

static inline bool shake(struct daemon *d, int fd)
{
	uint8_t body[MSG_HELLO_MAX + MSG_HMAC], role;
	struct hello_state st;
	struct asked a;
	size_t n;
	int r;

	asked_fd = -1; /* of a connection before */
	if (!next(fd, &a) || a.f.op != OP_HELLO)
		return false;
	r = hello_answer(&d->id, &st, a.body, a.f.body_len, body, &n, &role);
	if (r < 0) {
		answer(fd, &a, r == -ESTALE ? ST_STALE : ST_DENIED, NULL, 0);
		return false;
	}
	answer(fd, &a, ST_OK, body, n);
	if (!d->id.secret)
		return true;
	if (!next(fd, &a) || a.f.op != OP_PROOF)
		return false;
	r = hello_verify(&d->id, &st, a.body, a.f.body_len);
	answer(fd, &a, r < 0 ? ST_DENIED : ST_OK, NULL, 0);
	return r == 0;
}

static inline void *daemon_thread(void *arg)
{
	struct daemon *d = arg;
	int fd;

	while ((fd = accept(d->lfd, NULL, NULL)) >= 0) {
		__atomic_fetch_add(&d->accepted, 1, __ATOMIC_SEQ_CST);
		if (shake(d, fd))
			d->script(d, fd);
		close(fd);
	}
	return NULL;
}

static inline void daemon_listen(struct daemon *d)
{
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(d->port)};
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	socklen_t n = sizeof(in);
	int on = 1;

	in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	d->lfd = socket(d->path[0] ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (d->path[0]) {
		snprintf(un.sun_path, sizeof(un.sun_path), "%s", d->path);
		unlink(d->path);
		assert_int_equal(bind(d->lfd, (struct sockaddr *)&un, sizeof(un)), 0);
	} else {
		setsockopt(d->lfd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
		assert_int_equal(bind(d->lfd, (struct sockaddr *)&in, sizeof(in)), 0);
		assert_int_equal(getsockname(d->lfd, (struct sockaddr *)&in, &n), 0);
		d->port = ntohs(in.sin_port);
	}
	assert_int_equal(listen(d->lfd, 16), 0);
}

static inline void daemon_start(struct daemon *d, bool local, void (*script)(struct daemon *, int))
{
	memset(d, 0, sizeof(*d));
	d->script = script;
	d->id = (struct hello_id){.role = ROLE_MEMBER, .group = "g", .node = "d"};
	if (local)
		snprintf(d->path, sizeof(d->path), "/tmp/stoke-test-peer-%d.sock", getpid());
	else
		d->id.secret = &good;
	daemon_listen(d);
	assert_int_equal(pthread_create(&d->thread, NULL, daemon_thread, d), 0);
}

/* the connection is closed by peers_free before */
static inline void daemon_stop(struct daemon *d)
{
	shutdown(d->lfd, SHUT_RDWR);
	pthread_join(d->thread, NULL);
	close(d->lfd);
	if (d->path[0])
		unlink(d->path);
}

/* --- the asker --- */

static struct loop *loops[2];
static struct pool *pool;
static struct mtx lock = MTX_INIT;
static struct cond cond;

struct tcall {
	struct peer_call c;
	int status;
	unsigned done, filled;
	uint64_t order;
};
static uint64_t order;

static inline void t_filling(struct peer_call *c)
{
	mtx_lock(&lock);
	container_of(c, struct tcall, c)->filled++;
	cond_broadcast(&cond);
	mtx_unlock(&lock);
}

static inline void t_done(struct peer_call *c, int status)
{
	struct tcall *t = container_of(c, struct tcall, c);

	mtx_lock(&lock);
	t->done++;
	t->status = status;
	t->order = ++order;
	cond_broadcast(&cond);
	mtx_unlock(&lock);
}

static inline void t_get(struct tcall *t, uint64_t slice, size_t len)
{
	struct msg_get g = {.key = {.slice = slice, .size = BLOCK}, .len = (uint32_t)len};
	size_t reserved = 0;

	memset(t, 0, sizeof(*t));
	t->c.op = OP_GET;
	t->c.timeout_us = 1000000;
	t->c.head_len = msg_get_encode(&g, t->c.head);
	assert_int_equal(pool_reserve(pool, POOL_DEMAND, pool_cost(len), NULL), 0);
	reserved = pool_cost(len);
	t->c.in = pool_take(pool, POOL_DEMAND, len, &reserved);
	assert_non_null(t->c.in);
	t->c.in_cap = len;
	t->c.filling = t_filling;
	t->c.done = t_done;
}

static inline void t_free(struct tcall *t)
{
	buf_unref(t->c.in);
}

static inline int t_wait(struct tcall *t)
{
	uint64_t end = clock_us() + WAIT_US;

	mtx_lock(&lock);
	while (!t->done && clock_us() < end)
		cond_wait_us(&cond, &lock, 100000);
	mtx_unlock(&lock);
	assert_int_equal(t->done, 1);
	return t->status;
}

static inline void t_expect(struct tcall *t, uint64_t slice, size_t len)
{
	assert_int_equal(t_wait(t), 0);
	assert_int_equal(t->c.in_len, len);
	for (size_t i = 0; i < len; i++)
		assert_int_equal(t->c.in->mem[i], (uint8_t)slice);
}

static inline struct peers *asker(const struct secret *s)
{
	struct peers_conf conf = {
		.id = {.role = ROLE_MOUNT, .group = "g", .node = "m", .secret = s},
		.loops = loops,
		.n_loops = 2,
	};
	struct peers *ps;

	assert_int_equal(peers_new(&conf, &ps), 0);
	return ps;
}

static inline struct peer *peer_of(struct peers *ps, const struct daemon *d)
{
	struct peer *p =
		d->path[0] ? peers_get(ps, d->path, 0) : peers_get(ps, "127.0.0.1", d->port);

	assert_non_null(p);
	return p;
}

/* one GET against a daemon that does script: its status */
static inline int one_get(void (*script)(struct daemon *, int), bool local, uint32_t flags)
{
	struct daemon d;
	struct tcall t;
	struct peers *ps = asker(&good);
	int r;

	daemon_start(&d, local, script);
	t_get(&t, 3, FRAME_PIECE);
	t.c.flags = flags;
	peer_start(peer_of(ps, &d), &t.c, true);
	r = t_wait(&t);
	assert_true(r == 0 || t.c.fd < 0);
	if (t.c.fd >= 0)
		close(t.c.fd);
	peers_free(ps);
	daemon_stop(&d);
	t_free(&t);
	return r;
}

/* --- scripts and calls that many tests use --- */

static inline void serve(struct daemon *d, int fd)
{
	struct asked a;

	(void)d;
	while (next(fd, &a)) {
		if (a.f.op == OP_GET)
			answer_get(fd, &a);
		else
			answer(fd, &a, ST_OK, NULL, 0);
	}
}

static inline void never(struct daemon *d, int fd)
{
	struct asked a;

	if (__atomic_load_n(&d->accepted, __ATOMIC_SEQ_CST) > 1) {
		serve(d, fd);
		return;
	}
	while (next(fd, &a))
		;
}

static inline void stat_call(struct tcall *t)
{
	memset(t, 0, sizeof(*t));
	t->c.op = OP_STAT;
	t->c.done = t_done;
}

static inline int setup(void **state)
{
	(void)state;
	cond_init(&cond);
	assert_int_equal(pool_new(16 * BLOCK, BLOCK, &pool), 0);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(loop_new("loop", &loops[i]), 0);
	return 0;
}

static inline int teardown(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 2; i++)
		loop_free(loops[i]);
	pool_free(pool); /* asserts that every buffer is back */
	cond_fini(&cond);
	return 0;
}

#endif
