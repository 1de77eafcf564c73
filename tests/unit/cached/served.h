/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon that serves over real sockets, and an asker that speaks to it frame by frame with the
 * encoders of proto/. */
#ifndef STOKE_TESTS_UNIT_CACHED_SERVED_H
#define STOKE_TESTS_UNIT_CACHED_SERVED_H

#include "tests/unit/cached/fixture.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "cached/conn.h"
#include "cached/worker.h"
#include "common/block/peer.h"

static struct secret good = {.len = 16, .b = (uint8_t[]){"0123456789abcdef"}};

static struct keys *served_keys; /* of daemons to come; NULL: good, plain */

struct served {
	struct world *w;
	struct loop *loops[2];
	struct server *server;
	struct cluster_view view;
	uint16_t port;
	char path[80];
};

/* ret_fault: a layer for faults on top of the chain; NULL: none */
static inline struct served *served_over(uint64_t capacity, unsigned max_conns,
					 struct source **ret_fault)
{
	struct served *s = calloc(1, sizeof(*s));
	struct server_conf conf = {
		.n_loops = 2, .group = "g", .node = "d1", .secret = &good, .max_conns = max_conns};
	const struct member m = {
		.id = "d1", .addr = "127.0.0.1", .port = 1, .weight = 100, .state = MEMBER_ACTIVE};

	conf.keys = served_keys;
	assert_non_null(s);
	s->w = world_new(capacity, 1);
	if (ret_fault) {
		assert_int_equal(source_fault_new(&s->w->env, s->w->chain, ret_fault), 0);
		s->w->chain = *ret_fault;
	}
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(loop_new("serve", &s->loops[i]), 0);
	cluster_view_init(&s->view);
	cluster_view_set(&s->view, cluster_new(5, &m, 1));
	conf.loops = s->loops;
	conf.env = &s->w->env;
	conf.chain = s->w->chain;
	conf.store = s->w->store;
	conf.counters = &s->w->counters;
	conf.view = &s->view;
	assert_int_equal(server_new(&conf, &s->server), 0);
	assert_int_equal(server_listen_tcp(s->server, "127.0.0.1", 0, &s->port), 0);
	(void)snprintf(s->path, sizeof(s->path), "%s/socket", s->w->dir);
	assert_int_equal(server_listen_unix(s->server, s->path), 0);
	return s;
}

static inline struct served *served_new(uint64_t capacity, unsigned max_conns)
{
	return served_over(capacity, max_conns, NULL);
}

static inline void served_free(struct served *s)
{
	assert_true(server_stop(s->server, 10000000));
	server_free(s->server);
	world_close(s->w);
	for (unsigned i = 0; i < 2; i++)
		loop_free(s->loops[i]);
	cluster_view_fini(&s->view);
	world_free(s->w);
	free(s);
}

/* --- the asker --- */

static inline int dial_tcp(const struct served *s)
{
	struct sockaddr_in a = {.sin_family = AF_INET,
				.sin_port = htons(s->port),
				.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (const struct sockaddr *)&a, sizeof(a)), 0);
	return fd;
}

static inline int dial_unix(const struct served *s)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	memcpy(a.sun_path, s->path, strlen(s->path));
	assert_int_equal(connect(fd, (const struct sockaddr *)&a, sizeof(a)), 0);
	return fd;
}

static inline void send_all(int fd, const void *p, size_t n)
{
	while (n) {
		ssize_t r = send(fd, p, n, MSG_NOSIGNAL);

		assert_true(r > 0);
		p = (const char *)p + r;
		n -= (size_t)r;
	}
}

static inline void ask(int fd, uint8_t op, uint64_t id, uint32_t flags, const void *body, size_t n)
{
	const struct frame f = {.version = FRAME_VERSION,
				.op = op,
				.id = id,
				.flags = flags,
				.body_len = (uint32_t)n};
	uint8_t h[FRAME_HEADER];

	frame_encode(&f, h);
	send_all(fd, h, sizeof(h));
	send_all(fd, body, n);
}

static inline bool recv_all(int fd, void *p, size_t n, int *ret_fd)
{
	size_t have = 0;

	while (have < n) {
		char control[CMSG_SPACE(sizeof(int))];
		struct iovec v = {(char *)p + have, n - have};
		struct msghdr m = {.msg_iov = &v,
				   .msg_iovlen = 1,
				   .msg_control = control,
				   .msg_controllen = sizeof(control)};
		ssize_t r = recvmsg(fd, &m, MSG_CMSG_CLOEXEC);

		if (r <= 0)
			return false;
		if (ret_fd && CMSG_FIRSTHDR(&m))
			memcpy(ret_fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(int));
		have += (size_t)r;
	}
	return true;
}

struct answer {
	struct frame f;
	uint8_t *body;
	int fd;
};

/* false: the connection was closed */
static inline bool hear(int fd, struct answer *a)
{
	uint8_t h[FRAME_HEADER];

	free(a->body);
	*a = (struct answer){.fd = -1};
	if (!recv_all(fd, h, sizeof(h), &a->fd))
		return false;
	assert_int_equal(frame_decode(h, sizeof(h), 1, &a->f), FRAME_HEADER);
	a->body = malloc(a->f.body_len + 1);
	assert_non_null(a->body);
	return recv_all(fd, a->body, a->f.body_len, NULL);
}

static inline struct hello_id me(const struct secret *secret)
{
	return (struct hello_id){.role = ROLE_MOUNT,
				 .volume = volume_a,
				 .group = "g",
				 .node = "m1",
				 .secret = secret};
}

static inline void shake(int fd, const struct secret *secret)
{
	const struct hello_id id = me(secret);
	uint8_t body[MSG_HELLO_MAX], proof[MSG_HMAC];
	struct answer a = {0};
	struct hello_state st;

	ask(fd, OP_HELLO, 1, 0, body, hello_ask(&id, &st, body));
	assert_true(hear(fd, &a));
	assert_int_equal(a.f.status, ST_OK);
	assert_int_equal(hello_prove(&id, &st, a.body, a.f.body_len, proof), 0);
	if (secret) {
		ask(fd, OP_PROOF, 2, 0, proof, sizeof(proof));
		assert_true(hear(fd, &a));
		assert_int_equal(a.f.status, ST_OK);
	}
	free(a.body);
}

static inline int member_tcp(const struct served *s)
{
	int fd = dial_tcp(s);

	shake(fd, &good);
	return fd;
}

static inline int member_unix(const struct served *s)
{
	int fd = dial_unix(s);

	shake(fd, NULL);
	return fd;
}

static inline void ask_get(int fd, uint64_t id, uint32_t flags, const struct block_key *k,
			   uint32_t off, uint32_t len)
{
	struct msg_get g = {.off = off, .len = len};
	uint8_t body[MSG_GET];

	block_key_to_msg(k, &g.key);
	ask(fd, OP_GET, id, flags, body, msg_get_encode(&g, body));
}

static inline void ask_key(int fd, uint8_t op, uint64_t id, const struct block_key *k)
{
	uint8_t body[MSG_KEY];
	struct msg_key m;

	block_key_to_msg(k, &m);
	msg_key_encode(&m, body);
	ask(fd, op, id, 0, body, sizeof(body));
}

static inline unsigned status_of(int fd, uint8_t op, const struct block_key *k)
{
	struct answer a = {0};
	unsigned status;

	ask_key(fd, op, 77, k);
	assert_true(hear(fd, &a));
	assert_int_equal(a.f.id, 77);
	assert_int_equal(a.f.op, op);
	status = a.f.status;
	free(a.body);
	return status;
}

static inline void check_data(const struct answer *a, const struct block_key *k, uint32_t off,
			      uint32_t len)
{
	assert_int_equal(a->f.status, ST_OK);
	assert_int_equal(a->f.body_len, len + msg_sums_len(len));
	assert_true(has_pattern(k, off, a->body, len));
	assert_int_equal(block_sums_check(k, off, a->body, len, a->body + len, NULL), 0);
}

/* nothing but the end of the stream comes */
static inline bool closed_by_server(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	char byte;

	return poll(&p, 1, 10000) == 1 && recv(fd, &byte, 1, 0) <= 0;
}

static inline uint8_t *put_body(const struct block_key *k, size_t *ret_len)
{
	uint8_t *body = malloc(MSG_KEY + k->size + msg_sums_len(k->size));
	struct msg_key m;

	assert_non_null(body);
	block_key_to_msg(k, &m);
	msg_key_encode(&m, body);
	fill_pattern(k->slice, k->index, k->size, body + MSG_KEY, 0, k->size);
	block_sums(k, 0, body + MSG_KEY, k->size, body + MSG_KEY + k->size);
	*ret_len = MSG_KEY + k->size + msg_sums_len(k->size);
	return body;
}

#endif
