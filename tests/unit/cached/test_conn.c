/* SPDX-License-Identifier: Apache-2.0 */
/* The served side over real sockets, spoken to frame by frame with the encoders of proto/:
 * handshake, every operation, what strangers do. */
#include "tests/unit/cached/fixture.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "cached/conn.h"
#include "cached/worker.h"
#include "common/block/peer.h"

static struct secret good = {16, (uint8_t[]){"0123456789abcdef"}};
static struct secret bad = {16, (uint8_t[]){"0123456789abcdeF"}};

struct served {
	struct world *w;
	struct loop *loops[2];
	struct server *server;
	struct cluster_view view;
	uint16_t port;
	char path[80];
};

/* ret_fault: a layer for faults on top of the chain; NULL: none */
static struct served *served_over(uint64_t capacity, unsigned max_conns, struct source **ret_fault)
{
	struct served *s = calloc(1, sizeof(*s));
	struct server_conf conf = {
		.n_loops = 2, .group = "g", .node = "d1", .secret = &good, .max_conns = max_conns};
	const struct member m = {
		.id = "d1", .addr = "127.0.0.1", .port = 1, .weight = 100, .state = MEMBER_ACTIVE};

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

static struct served *served_new(uint64_t capacity, unsigned max_conns)
{
	return served_over(capacity, max_conns, NULL);
}

static void served_free(struct served *s)
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

static int dial_tcp(const struct served *s)
{
	struct sockaddr_in a = {.sin_family = AF_INET,
				.sin_port = htons(s->port),
				.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (const struct sockaddr *)&a, sizeof(a)), 0);
	return fd;
}

static int dial_unix(const struct served *s)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	memcpy(a.sun_path, s->path, strlen(s->path));
	assert_int_equal(connect(fd, (const struct sockaddr *)&a, sizeof(a)), 0);
	return fd;
}

static void send_all(int fd, const void *p, size_t n)
{
	while (n) {
		ssize_t r = send(fd, p, n, MSG_NOSIGNAL);

		assert_true(r > 0);
		p = (const char *)p + r;
		n -= (size_t)r;
	}
}

static void ask(int fd, uint8_t op, uint64_t id, uint32_t flags, const void *body, size_t n)
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

static bool recv_all(int fd, void *p, size_t n, int *ret_fd)
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
static bool hear(int fd, struct answer *a)
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

static struct hello_id me(const struct secret *secret)
{
	return (struct hello_id){.role = ROLE_MOUNT,
				 .volume = volume_a,
				 .group = "g",
				 .node = "m1",
				 .secret = secret};
}

static void shake(int fd, const struct secret *secret)
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

static int member_tcp(const struct served *s)
{
	int fd = dial_tcp(s);

	shake(fd, &good);
	return fd;
}

static int member_unix(const struct served *s)
{
	int fd = dial_unix(s);

	shake(fd, NULL);
	return fd;
}

static void ask_get(int fd, uint64_t id, uint32_t flags, const struct block_key *k, uint32_t off,
		    uint32_t len)
{
	struct msg_get g = {.off = off, .len = len};
	uint8_t body[MSG_GET];

	block_key_to_msg(k, &g.key);
	ask(fd, OP_GET, id, flags, body, msg_get_encode(&g, body));
}

static void ask_key(int fd, uint8_t op, uint64_t id, const struct block_key *k)
{
	uint8_t body[MSG_KEY];
	struct msg_key m;

	block_key_to_msg(k, &m);
	msg_key_encode(&m, body);
	ask(fd, op, id, 0, body, sizeof(body));
}

static unsigned status_of(int fd, uint8_t op, const struct block_key *k)
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

static void check_data(const struct answer *a, const struct block_key *k, uint32_t off,
		       uint32_t len)
{
	assert_int_equal(a->f.status, ST_OK);
	assert_int_equal(a->f.body_len, len + msg_sums_len(len));
	assert_true(has_pattern(k, off, a->body, len));
	assert_int_equal(block_sums_check(k, off, a->body, len, a->body + len, NULL), 0);
}

/* nothing but the end of the stream comes */
static bool closed_by_server(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	char byte;

	return poll(&p, 1, 10000) == 1 && recv(fd, &byte, 1, 0) <= 0;
}

/* --- operations --- */

static void a_miss_says_filling_then_the_bytes(void **state)
{
	struct served *s = served_new(64 << 20, 100);
	struct block_key k = key_of(&volume_a, 1, BLOCK);
	struct answer a = {0};
	int fd = member_tcp(s);

	(void)state;
	ask_get(fd, 9, 0, &k, 0, BLOCK);
	assert_true(hear(fd, &a));
	assert_int_equal(a.f.status, ST_FILLING);
	assert_int_equal(a.f.id, 9);
	assert_int_equal(a.f.body_len, 0);
	assert_true(hear(fd, &a));
	check_data(&a, &k, 0, BLOCK);
	eventually(metric_value(s->w->counters.fills) == 1);
	for (unsigned i = 0; i < 20;
	     i++) { /* from the disk now, whole and in pieces, over both sockets */
		int local = i % 2 ? fd : member_unix(s);

		ask_get(local, 10, FRAME_NO_FILL, &k, 0, BLOCK);
		assert_true(hear(local, &a));
		check_data(&a, &k, 0, BLOCK);
		ask_get(local, 11, 0, &k, 3 * FRAME_PIECE, FRAME_PIECE);
		assert_true(hear(local, &a));
		check_data(&a, &k, 3 * FRAME_PIECE, FRAME_PIECE);
		if (local != fd)
			(void)close(local);
	}
	free(a.body);
	(void)close(fd);
	served_free(s);
}

static void the_last_short_piece_is_served(void **state)
{
	struct served *s = served_new(64 << 20, 100);
	struct block_key k = key_of(&volume_a, 1, FRAME_PIECE + 5);
	struct answer a = {0};
	int fd = member_unix(s);

	(void)state;
	assert_int_equal(status_of(fd, OP_FILL, &k), ST_OK);
	ask_get(fd, 1, 0, &k, FRAME_PIECE, 5);
	assert_true(hear(fd, &a));
	check_data(&a, &k, FRAME_PIECE, 5);
	ask_get(fd, 1, 0, &k, FRAME_PIECE, 6); /* past the end */
	assert_true(hear(fd, &a));
	assert_int_equal(a.f.status, ST_BAD_REQUEST);
	ask_get(fd, 1, 0, &k, 5, 5); /* not whole pieces */
	assert_true(hear(fd, &a));
	assert_int_equal(a.f.status, ST_BAD_REQUEST);
	free(a.body);
	(void)close(fd);
	served_free(s);
}

static void fill_stat_drop(void **state)
{
	struct served *s = served_new(64 << 20, 100);
	struct block_key k = key_of(&volume_a, 1, BLOCK), other = key_of(&volume_b, 1, BLOCK);
	struct answer a = {0};
	struct msg_stat st;
	int fd = member_tcp(s);

	(void)state;
	assert_int_equal(status_of(fd, OP_STAT, &k), ST_NOT_HERE);
	assert_int_equal(status_of(fd, OP_FILL, &k), ST_OK);
	assert_int_equal(status_of(fd, OP_STAT, &k), ST_OK);
	ask(fd, OP_STAT, 5, 0, "", 0);
	assert_true(hear(fd, &a));
	assert_int_equal(msg_stat_decode(a.body, a.f.body_len, &st), MSG_STAT);
	assert_int_equal(st.blocks, 1);
	assert_int_equal(st.fills, 1);
	assert_int_equal(status_of(fd, OP_BAD, &k), ST_OK); /* it is good, and stays */
	assert_int_equal(status_of(fd, OP_DROP, &k), ST_OK);
	assert_int_equal(status_of(fd, OP_STAT, &k), ST_NOT_HERE);
	ask_get(fd, 6, FRAME_NO_FILL, &k, 0, BLOCK);
	assert_true(hear(fd, &a));
	assert_int_equal(a.f.status, ST_NOT_HERE);
	assert_int_equal(status_of(fd, OP_FILL, &other), ST_STALE);
	assert_int_equal(status_of(fd, OP_DROP, &other), ST_STALE);
	free(a.body);
	(void)close(fd);
	served_free(s);
}

static void the_ring_comes_when_it_is_newer(void **state)
{
	struct served *s = served_new(64 << 20, 100);
	uint8_t version[8] = {0};
	struct answer a = {0};
	struct cluster *c;
	int fd = member_tcp(s);

	(void)state;
	ask(fd, OP_RING, 1, 0, version, sizeof(version));
	assert_true(hear(fd, &a));
	assert_int_equal(cluster_decode(a.body, a.f.body_len, &c), 0);
	assert_int_equal(c->version, 5);
	assert_int_equal(cluster_index(c, "d1"), 0);
	cluster_unref(c);
	version[7] = 5;
	ask(fd, OP_RING, 1, 0, version, sizeof(version));
	assert_true(hear(fd, &a));
	assert_int_equal(a.f.body_len, 0);
	free(a.body);
	(void)close(fd);
	served_free(s);
}

static uint8_t *put_body(const struct block_key *k, size_t *ret_len)
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

static void put_is_checked_and_kept(void **state)
{
	struct served *s = served_new(64 << 20, 100);
	struct block_key k = key_of(&volume_a, 1, BLOCK - 7), stale = key_of(&volume_b, 1, 70000);
	struct answer a = {0};
	int fd = member_tcp(s);
	size_t len;
	uint8_t *body = put_body(&k, &len);

	(void)state;
	body[MSG_KEY + 40000] ^= 1;
	ask(fd, OP_PUT, 1, 0, body, len);
	assert_true(hear(fd, &a));
	assert_int_equal(a.f.status, ST_DAMAGED);
	assert_int_equal(metric_value(s->w->counters.refused), 1);
	assert_int_equal(status_of(fd, OP_STAT, &k), ST_NOT_HERE);
	body[MSG_KEY + 40000] ^= 1;
	ask(fd, OP_PUT, 2, 0, body, len);
	ask_key(fd, OP_STAT, 3, &k); /* right behind it, in the same packet maybe */
	for (unsigned i = 0; i < 2; i++) {
		assert_true(hear(fd, &a));
		assert_true(a.f.id == 2 ? a.f.status == ST_OK : a.f.id == 3);
	}
	ask_get(fd, 4, FRAME_NO_FILL, &k, 0, k.size);
	assert_true(hear(fd, &a));
	check_data(&a, &k, 0, k.size);
	free(body);
	body = put_body(&stale,
			&len); /* read to its end and refused; the connection stays in step */
	ask(fd, OP_PUT, 5, 0, body, len);
	assert_true(hear(fd, &a));
	assert_int_equal(a.f.status, ST_STALE);
	assert_int_equal(status_of(fd, OP_STAT, &k), ST_OK);
	body[MSG_KEY - 1] ^= 1; /* a size that does not fit the length */
	ask(fd, OP_PUT, 6, 0, body, len);
	assert_true(closed_by_server(fd));
	free(body);
	free(a.body);
	(void)close(fd);
	served_free(s);
}

static void a_local_mount_gets_the_file(void **state)
{
	struct served *s = served_new(64 << 20, 100);
	struct block_key k = key_of(&volume_a, 1, BLOCK);
	unsigned char *buf = malloc(blockfile_room(0, BLOCK));
	int fd = member_unix(s), remote = member_tcp(s);
	struct answer a = {0};
	size_t skip;

	(void)state;
	assert_int_equal(status_of(fd, OP_FILL, &k), ST_OK);
	ask_get(fd, 4, FRAME_WANT_FD, &k, 0, FRAME_PIECE);
	assert_true(hear(fd, &a));
	assert_int_equal(a.f.flags, FRAME_HAS_FD);
	assert_int_equal(a.f.body_len, 0);
	assert_true(a.fd >= 0);
	assert_int_equal(metric_value(s->w->counters.conns_total), 2);
	eventually(atomic_load(&s->w->counters.fds_now) == 1);
	assert_int_equal(status_of(fd, OP_DROP, &k), ST_OK);
	assert_int_equal(blockfile_read(a.fd, &k, 0, BLOCK, false, buf, &skip),
			 0); /* his for as long as he holds it */
	assert_true(has_pattern(&k, 0, buf, BLOCK));
	(void)close(a.fd);
	assert_int_equal(status_of(fd, OP_CLOSED, &k), ST_OK);
	assert_int_equal(atomic_load(&s->w->counters.fds_now), 0);
	assert_int_equal(status_of(fd, OP_FILL, &k), ST_OK);
	ask_get(remote, 4, FRAME_WANT_FD, &k, 0, FRAME_PIECE); /* not over TCP */
	assert_true(hear(remote, &a));
	check_data(&a, &k, 0, FRAME_PIECE);
	free(buf);
	free(a.body);
	(void)close(fd);
	(void)close(remote);
	served_free(s);
}

static void final_errors_bring_their_reason(void **state)
{
	struct served *s = served_new(64 << 20, 100);
	struct block_key k = key_of(&volume_a, 123, BLOCK);
	struct answer a = {0};
	int fd = member_tcp(s);

	(void)state;
	atomic_store(&s->w->objects.status, -ENOENT);
	ask_get(fd, 1, 0, &k, 0, BLOCK);
	assert_true(hear(fd, &a));
	assert_int_equal(a.f.status, ST_FILLING);
	assert_true(hear(fd, &a));
	assert_int_equal(a.f.status, ST_NO_OBJECT);
	a.body[a.f.body_len] = '\0';
	assert_non_null(strstr((char *)a.body, "123_0_131072"));
	free(a.body);
	(void)close(fd);
	served_free(s);
}

/* --- another process's chain, which asks this daemon alone --- */

struct asker {
	struct world *w; /* whose chain is replaced */
	struct loop *loop;
	struct peers *peers;
	struct cluster_view view;
};

static void asker_start(struct asker *a, const struct served *s)
{
	struct member m = {.id = "d1", .addr = "127.0.0.1", .weight = 100, .state = MEMBER_ACTIVE};
	struct peers_conf pc = {.id = {.role = ROLE_MOUNT,
				       .volume = volume_a,
				       .group = "g",
				       .node = "m1",
				       .secret = &good},
				.n_loops = 1};
	struct source_peer_conf sc = {.mode = PEER_OWNER};

	a->w = world_new(1 << 20, 1);
	source_free(TAKE_PTR(a->w->chain));
	assert_int_equal(loop_new("ask", &a->loop), 0);
	pc.loops = &a->loop;
	assert_int_equal(peers_new(&pc, &a->peers), 0);
	m.port = s->port;
	cluster_view_init(&a->view);
	cluster_view_set(&a->view, cluster_new(1, &m, 1));
	sc.peers = a->peers;
	sc.view = &a->view;
	assert_int_equal(source_peer_new(&a->w->env, NULL, &sc, &a->w->chain), 0);
	assert_int_equal(source_flight_new(&a->w->env, a->w->chain, false, &a->w->chain), 0);
}

static void asker_stop(struct asker *a)
{
	world_close(a->w);
	peers_free(a->peers);
	loop_free(a->loop);
	cluster_view_fini(&a->view);
	world_free(a->w);
}

/* The object store's verdicts are final also when a peer reports them; whatever else happens, the
 * next layer is asked (here there is none: -ENOENT). */
static void every_status_of_the_chain_goes_round(void **state)
{
	static const int status[] = {-EACCES,  -ENODATA,   -EIO,       -ENOENT,
				     -EBADMSG, -EBUSY,	   -ETIMEDOUT, -ENOMEM,
				     -ENOBUFS, -EHOSTDOWN, -ENOSPC,    -ECONNREFUSED,
				     -EPERM,   -ECANCELED, -ESTALE,    -EROFS};
	struct source *fault;
	struct served *s = served_over(64 << 20, 100, &fault);
	struct block_key k = key_of(&volume_a, 1, BLOCK);
	struct asker a;

	(void)state;
	for (unsigned i = 0; i < ARRAY_LEN(status); i++)
		source_fault_add(fault, &(struct fault_rule){.kind = FAULT_FAIL,
							     .after = i + 1,
							     .count = 1,
							     .status = status[i]});
	asker_start(&a, s);
	assert_int_equal(get(a.w, &k, 0, BLOCK, 0, NULL), 0);
	for (unsigned i = 0; i < ARRAY_LEN(status); i++) {
		assert_int_equal(get(a.w, &k, 0, BLOCK, 0, NULL), i < 3 ? status[i] : -ENOENT);
		assert_int_equal(source_fault_seen(fault), i + 2);
	}
	asker_stop(&a);
	served_free(s);
}

/* G16: whoever waits for a block that the object store refuses hears it from one attempt */
static void a_refused_block_is_tried_once_for_all_who_wait_G16(void **state)
{
	enum { N = 1000 };
	struct served *s = served_new(64 << 20, 100);
	struct block_key k = key_of(&volume_a, 1, BLOCK);
	struct waited *x = calloc(N, sizeof(*x));
	struct block_req *req[N];
	struct asker a;

	(void)state;
	assert_non_null(x);
	asker_start(&a, s);
	atomic_store(&s->w->objects.status, -EACCES);
	atomic_store(&s->w->objects.delay_us, 300000);
	for (unsigned i = 0; i < N; i++) {
		req[i] = req_new(&a.w->env, &k, 0, BLOCK, 0, POOL_DEMAND);
		assert_non_null(req[i]);
		waited_begin(&x[i]);
		source_get(a.w->chain, req[i], waited_done, &x[i]);
	}
	for (unsigned i = 0; i < N; i++) {
		assert_int_equal(waited_end(&x[i]), -EACCES);
		assert_non_null(strstr(req[i]->reason, "1_0_131072"));
		req_free(req[i]);
	}
	assert_int_equal(atomic_load(&s->w->objects.gets), 1);
	free(x);
	asker_stop(&a);
	served_free(s);
}

/* more requests than may be unanswered, sent before one answer is read */
static void a_thousand_requests_at_once(void **state)
{
	enum { N = 1000 };
	struct served *s = served_new(64 << 20, 100);
	static uint8_t all[N][FRAME_HEADER + MSG_GET];
	static bool heard[N];
	struct answer a = {0};
	int fd = member_unix(s);

	(void)state;
	for (unsigned i = 0; i < 10; i++) {
		struct block_key k = key_of(&volume_a, 1 + i, BLOCK);

		assert_int_equal(status_of(fd, OP_FILL, &k), ST_OK);
	}
	for (unsigned i = 0; i < N; i++) {
		struct block_key k = key_of(&volume_a, 1 + i % 10, BLOCK);
		const struct frame f = {.version = FRAME_VERSION,
					.op = OP_GET,
					.id = i,
					.flags = FRAME_NO_FILL,
					.body_len = MSG_GET};
		struct msg_get g = {.len = i % 3 ? BLOCK : FRAME_PIECE};

		block_key_to_msg(&k, &g.key);
		frame_encode(&f, all[i]);
		(void)msg_get_encode(&g, all[i] + FRAME_HEADER);
	}
	send_all(fd, all,
		 sizeof(all)); /* fits into the socket, so that nobody waits for the other */
	for (unsigned i = 0; i < N; i++) {
		struct block_key k;

		assert_true(hear(fd, &a));
		k = key_of(&volume_a, 1 + a.f.id % 10, BLOCK);
		check_data(&a, &k, 0, a.f.id % 3 ? BLOCK : FRAME_PIECE);
		assert_false(heard[a.f.id]);
		heard[a.f.id] = true;
	}
	free(a.body);
	(void)close(fd);
	served_free(s);
}

static void a_block_cut_while_it_is_served_is_never_delivered(void **state)
{
	struct served *s = served_new(64 << 20, 100);
	struct block_key k = key_of(&volume_a, 1, BLOCK);
	struct answer a = {0};
	char path[320];
	int fd = member_tcp(s);

	(void)state;
	assert_int_equal(status_of(fd, OP_FILL, &k), ST_OK);
	block_file(s->w, 0, &k, path);
	assert_int_equal(truncate(path, BLOCK / 2), 0);
	ask_get(fd, 1, 0, &k, 0, BLOCK);
	while (hear(fd, &a) && a.f.status == ST_FILLING)
		;
	check_data(&a, &k, 0, BLOCK);
	assert_int_equal(metric_value(s->w->counters.damaged), 1);
	free(a.body);
	(void)close(fd);
	served_free(s);
}

/* --- strangers --- */

static void nothing_is_served_before_the_proof(void **state)
{
	struct served *s = served_new(64 << 20, 100);
	struct block_key k = key_of(&volume_a, 1, BLOCK);
	const struct hello_id liar = me(&bad);
	uint8_t body[MSG_HELLO_MAX], proof[MSG_HMAC];
	struct hello_state st;
	struct answer a = {0};
	int fd = dial_tcp(s);

	(void)state;
	ask_get(fd, 1, 0, &k, 0, BLOCK); /* no HELLO */
	assert_true(closed_by_server(fd));
	(void)close(fd);

	fd = dial_tcp(s); /* a wrong secret */
	ask(fd, OP_HELLO, 1, 0, body, hello_ask(&liar, &st, body));
	assert_true(hear(fd, &a));
	assert_int_equal(hello_prove(&liar, &st, a.body, a.f.body_len, proof), -EACCES);
	ask(fd, OP_PROOF, 2, 0, proof, sizeof(proof));
	assert_true(hear(fd, &a));
	assert_int_equal(a.f.status, ST_DENIED);
	assert_true(closed_by_server(fd));
	(void)close(fd);

	fd = dial_tcp(s); /* HELLO, then straight to business */
	ask(fd, OP_HELLO, 1, 0, body, hello_ask(&liar, &st, body));
	assert_true(hear(fd, &a));
	ask_get(fd, 2, 0, &k, 0, BLOCK);
	assert_true(closed_by_server(fd));
	(void)close(fd);
	eventually(metric_value(s->w->counters.rejected) == 3);
	assert_int_equal(metric_value(s->w->counters.requests[OP_GET]), 0);
	assert_int_equal(atomic_load(&s->w->objects.gets), 0);
	free(a.body);
	served_free(s);
}

static unsigned hello_status(struct served *s, const struct hello_id *id)
{
	uint8_t body[MSG_HELLO_MAX];
	struct hello_state st;
	struct answer a = {0};
	int fd = dial_tcp(s);
	unsigned status;

	ask(fd, OP_HELLO, 1, 0, body, hello_ask(id, &st, body));
	assert_true(hear(fd, &a));
	status = a.f.status;
	assert_true(closed_by_server(fd));
	free(a.body);
	(void)close(fd);
	return status;
}

static void other_groups_and_volumes_are_refused(void **state)
{
	struct served *s = served_new(64 << 20, 100);
	struct hello_id id = me(&good);

	(void)state;
	id.group = "h";
	assert_int_equal(hello_status(s, &id), ST_DENIED);
	id = me(&good);
	id.volume = volume_b;
	assert_int_equal(hello_status(s, &id), ST_STALE);
	served_free(s);
}

static void garbage_is_closed(void **state)
{
	struct served *s = served_new(64 << 20, 100);
	struct frame f = {.version = FRAME_VERSION, .op = OP_HELLO, .body_len = 1u << 31};
	uint8_t h[FRAME_HEADER];
	int fd = dial_tcp(s), member;
	struct block_key k = key_of(&volume_a, 1, BLOCK);

	(void)state;
	send_all(fd, "GET / HTTP/1.1\r\n\r\n", 18);
	assert_true(closed_by_server(fd));
	(void)close(fd);
	fd = dial_tcp(s);
	frame_encode(&f, h);
	send_all(fd, h, sizeof(h));
	assert_true(closed_by_server(fd));
	(void)close(fd);
	fd = member_tcp(s); /* a member that goes mad: an unknown operation */
	f = (struct frame){.version = FRAME_VERSION, .op = 99};
	frame_encode(&f, h);
	send_all(fd, h, sizeof(h));
	assert_true(closed_by_server(fd));
	(void)close(fd);
	member = member_tcp(s);
	assert_int_equal(status_of(member, OP_FILL, &k), ST_OK);
	(void)close(member);
	served_free(s);
}

/* S02, S03 */
static void the_silent_and_the_slow_are_closed(void **state)
{
	struct served *s = served_new(64 << 20, 100);
	uint64_t began = clock_us();
	int silent = dial_tcp(s), slow = member_tcp(s), quiet = member_tcp(s);
	struct block_key k = key_of(&volume_a, 1, BLOCK);

	(void)state;
	send_all(slow, "S", 1); /* the first byte of a frame, then nothing */
	assert_true(closed_by_server(silent));
	assert_true(clock_us() - began >= CONN_HELLO_US);
	assert_true(closed_by_server(slow));
	assert_true(clock_us() - began >= CONN_FRAME_US);
	assert_int_equal(status_of(quiet, OP_FILL, &k), ST_OK); /* a member may be silent */
	(void)close(silent);
	(void)close(slow);
	(void)close(quiet);
	served_free(s);
}

static void a_crowd_of_strangers_does_not_keep_members_out(void **state)
{
	enum { LIMIT = 64, CROWD = 300 };
	struct served *s = served_new(64 << 20, LIMIT);
	struct block_key k = key_of(&volume_a, 1, BLOCK);
	int crowd[CROWD], early = member_tcp(s), late;

	(void)state;
	for (unsigned i = 0; i < CROWD; i++)
		crowd[i] = dial_tcp(s);
	late = member_tcp(s);
	assert_int_equal(status_of(early, OP_FILL, &k), ST_OK);
	assert_int_equal(status_of(late, OP_STAT, &k), ST_OK);
	assert_true(atomic_load(&s->w->counters.conns_now) <= LIMIT + 2);
	for (unsigned i = 0; i < CROWD; i++)
		(void)close(crowd[i]);
	(void)close(early);
	(void)close(late);
	served_free(s);
}

/* askers that go away in the middle of everything */
static void askers_vanish(void **state)
{
	struct served *s = served_new(64 << 20, 200);
	size_t len;
	struct block_key put_key = key_of(&volume_a, 9999, BLOCK);
	uint8_t *body = put_body(&put_key, &len);

	(void)state;
	atomic_store(&s->w->objects.delay_us, 3000);
	for (unsigned i = 0; i < 60; i++) {
		int fd = i % 2 ? member_tcp(s) : member_unix(s);

		for (unsigned n = 0; n < 20; n++) {
			struct block_key k = key_of(&volume_a, 1 + i * 7 + n, BLOCK);

			ask_get(fd, n, n % 4 ? 0 : FRAME_WANT_FD, &k, 0, BLOCK);
			ask_key(fd, OP_FILL, 100 + n, &k);
		}
		if (i % 3 == 0) {
			const struct frame f = {
				.version = FRAME_VERSION, .op = OP_PUT, .body_len = (uint32_t)len};
			uint8_t h[FRAME_HEADER];

			frame_encode(&f, h);
			send_all(fd, h, sizeof(h));
			send_all(fd, body, len / 2);
		}
		(void)close(fd);
	}
	free(body);
	served_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_miss_says_filling_then_the_bytes),
		cmocka_unit_test(the_last_short_piece_is_served),
		cmocka_unit_test(fill_stat_drop),
		cmocka_unit_test(the_ring_comes_when_it_is_newer),
		cmocka_unit_test(put_is_checked_and_kept),
		cmocka_unit_test(a_local_mount_gets_the_file),
		cmocka_unit_test(final_errors_bring_their_reason),
		cmocka_unit_test(every_status_of_the_chain_goes_round),
		cmocka_unit_test(a_refused_block_is_tried_once_for_all_who_wait_G16),
		cmocka_unit_test(a_thousand_requests_at_once),
		cmocka_unit_test(a_block_cut_while_it_is_served_is_never_delivered),
		cmocka_unit_test(nothing_is_served_before_the_proof),
		cmocka_unit_test(other_groups_and_volumes_are_refused),
		cmocka_unit_test(garbage_is_closed),
		cmocka_unit_test(a_crowd_of_strangers_does_not_keep_members_out),
		cmocka_unit_test(askers_vanish),
		cmocka_unit_test(the_silent_and_the_slow_are_closed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
