/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon that serves every block from its pattern, over real sockets, a thread a connection, and
 * misbehaves as told. */
#ifndef STOKE_TESTS_UNIT_BLOCK_BEHAVE_H
#define STOKE_TESTS_UNIT_BLOCK_BEHAVE_H

#include "tests/unit/block/world.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "common/block/blockfile.h"
#include "common/block/peer.h"

static struct secret group_secret = {.len = 16, .b = (uint8_t[]){"0123456789abcdef"}};

/* --- a daemon --- */

enum behaviour {
	SERVE,
	HANG,
	BUSY, /* but to NO_FILL, as the protocol has it */
	DAMAGE,
	OTHER_BLOCK, /* right checksums of its own, but not what was asked for */
	NOT_HERE,
	NO_OBJECT,
	FORBIDDEN,
	STORE_ERROR,
	FILL_SLOWLY,
	SLOW,	   /* and says nothing, but to others */
	FILL_LATE, /* says FILLING after longer than a hedge, and more than twice as long nothing */
	FILL_FOR_EVER, /* says FILLING and then nothing more, not even to a probe */
	PASS_FD,
	PASS_BAD_FD,
	PASS_SHORT_FD,
};

enum { CONNS = 16 };

struct daemon {
	int lfd, fd[CONNS];
	unsigned n;
	uint16_t port;
	char path[100];
	pthread_t accepter, conn[CONNS];
	struct mtx lock;
	enum behaviour how;					     /* atomic */
	unsigned gets, no_fills, fills, stats, drops, bads, closeds; /* atomic */
};

static inline unsigned counted(const unsigned *n)
{
	return __atomic_load_n(n, __ATOMIC_SEQ_CST);
}

static inline void count_one(unsigned *n)
{
	__atomic_fetch_add(n, 1, __ATOMIC_SEQ_CST);
}

static inline bool read_all(int fd, void *p, size_t n)
{
	return recv(fd, p, n, MSG_WAITALL) == (ssize_t)n;
}

static inline void send_all(int fd, const void *p, size_t n)
{
	size_t off = 0;

	while (off < n) {
		ssize_t r = send(fd, (const char *)p + off, n - off, MSG_NOSIGNAL);

		if (r <= 0)
			return;
		off += (size_t)r;
	}
}

static inline void answer(int fd, const struct frame *q, unsigned status, const void *p, size_t n)
{
	struct frame f = {.version = FRAME_VERSION,
			  .op = q->op,
			  .status = (uint16_t)status,
			  .id = q->id,
			  .body_len = (uint32_t)n};
	uint8_t h[FRAME_HEADER];

	frame_encode(&f, h);
	send_all(fd, h, sizeof(h));
	send_all(fd, p, n);
}

static inline void answer_block(int fd, const struct frame *q, const struct block_key *k,
				const struct msg_get *g, enum behaviour how)
{
	struct block_key other = *k;
	size_t sums = msg_sums_len(g->len);
	uint8_t *b = malloc(g->len + sums);

	assert_non_null(b);
	if (how == OTHER_BLOCK)
		block_key_init(&other, &k->volume, k->slice + 1, k->index, k->size);
	for (uint32_t i = 0; i < g->len; i++)
		b[i] = pattern(other.slice, other.index, g->off + i);
	block_sums(&other, g->off, b, g->len, b + g->len);
	if (how == DAMAGE)
		b[g->len - 1] ^= 1;
	answer(fd, q, ST_OK, b, g->len + sums);
	free(b);
}

/* Files of blocks keep their names while the test runs: one without a name is one that the daemon
 * removed. */
enum { BLOCK_FILES = 256 };
static char block_files[BLOCK_FILES][32];
static unsigned n_block_files; /* atomic */

static inline void block_files_remove(void)
{
	for (unsigned i = 0; i < MIN(counted(&n_block_files), (unsigned)BLOCK_FILES); i++)
		unlink(block_files[i]);
}

static inline int block_file_new(void)
{
	unsigned i = __atomic_fetch_add(&n_block_files, 1, __ATOMIC_SEQ_CST);

	assert_true(i < BLOCK_FILES);
	if (i == 0)
		assert_int_equal(atexit(block_files_remove), 0);
	snprintf(block_files[i], sizeof(block_files[i]), "/tmp/stoke-block-XXXXXX");
	return mkstemp(block_files[i]);
}

static inline int block_file(const struct block_key *k, enum behaviour how)
{
	int fd = block_file_new();
	uint8_t *b = malloc(k->size + msg_sums_len(k->size));

	assert_true(fd >= 0);
	assert_non_null(b);
	for (uint32_t i = 0; i < k->size; i++)
		b[i] = pattern(k->slice, k->index, i);
	block_sums(k, 0, b, k->size, b + k->size);
	if (how == PASS_BAD_FD)
		b[0] ^= 1;
	assert_int_equal(blockfile_write(fd, k, b, b + k->size), 0);
	if (how == PASS_SHORT_FD)
		assert_int_equal(ftruncate(fd, k->size - 1), 0);
	free(b);
	return fd;
}

static inline void answer_fd(int fd, const struct frame *q, const struct block_key *k,
			     enum behaviour how)
{
	struct frame f = {
		.version = FRAME_VERSION, .op = q->op, .id = q->id, .flags = FRAME_HAS_FD};
	uint8_t h[FRAME_HEADER];
	alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {0};
	struct cmsghdr *cm = (struct cmsghdr *)(void *)control;
	struct iovec iov = {h, sizeof(h)};
	struct msghdr m = {.msg_iov = &iov,
			   .msg_iovlen = 1,
			   .msg_control = control,
			   .msg_controllen = sizeof(control)};
	int file = block_file(k, how);

	frame_encode(&f, h);
	cm->cmsg_level = SOL_SOCKET;
	cm->cmsg_type = SCM_RIGHTS;
	cm->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(cm), &file, sizeof(int));
	(void)sendmsg(fd, &m, MSG_NOSIGNAL);
	close(file);
}

/* while it hangs */
static inline void daemon_wait(struct daemon *d)
{
	enum behaviour how;

	while ((how = __atomic_load_n(&d->how, __ATOMIC_SEQ_CST)) == HANG || how == FILL_FOR_EVER)
		usleep(1000);
}

static inline void on_get(struct daemon *d, int fd, const struct frame *q, const uint8_t *body)
{
	enum behaviour how = __atomic_load_n(&d->how, __ATOMIC_SEQ_CST);
	static const char text[] = "vol/chunks/1: it is so";
	struct block_key k;
	struct msg_get g;

	assert_int_equal(msg_get_decode(body, q->body_len, &g), MSG_GET);
	block_key_from_msg(&k, &g.key);
	count_one(&d->gets);
	if (q->flags & FRAME_NO_FILL)
		count_one(&d->no_fills);
	if (how == FILL_FOR_EVER)
		answer(fd, q, ST_FILLING, NULL, 0);
	daemon_wait(d);
	if (how == BUSY && !(q->flags & FRAME_NO_FILL)) {
		answer(fd, q, ST_BUSY, NULL, 0);
	} else if (how == NOT_HERE) {
		answer(fd, q, ST_NOT_HERE, NULL, 0);
	} else if (how == NO_OBJECT || how == FORBIDDEN || how == STORE_ERROR) {
		answer(fd, q,
		       how == NO_OBJECT	  ? ST_NO_OBJECT
		       : how == FORBIDDEN ? ST_FORBIDDEN
					  : ST_STORE_ERROR,
		       text, strlen(text));
	} else if (how == BUSY) {
		answer_block(fd, q, &k, &g, SERVE);
	} else if (how >= PASS_FD && (q->flags & FRAME_WANT_FD)) {
		answer_fd(fd, q, &k, how);
	} else {
		if (how == FILL_LATE)
			usleep(600000);
		if (how == FILL_SLOWLY || how == FILL_LATE)
			answer(fd, q, ST_FILLING, NULL, 0);
		if (how == FILL_SLOWLY || how == SLOW)
			usleep(700000);
		if (how == FILL_LATE)
			usleep(2400000);
		answer_block(fd, q, &k, &g, how);
	}
}

static inline void on_mget(struct daemon *d, int fd, const struct frame *q, const uint8_t *body)
{
	struct frame one = *q;
	const uint8_t *get;

	one.op = OP_GET;
	one.body_len = MSG_GET;
	for (size_t at = 0; at < q->body_len; at += MSG_MGET) {
		assert_int_equal(msg_mget_decode(body + at, q->body_len - at, &one.id, &get),
				 MSG_MGET);
		on_get(d, fd, &one, get);
	}
}

static inline void on_other(struct daemon *d, int fd, const struct frame *q)
{
	enum behaviour how = __atomic_load_n(&d->how, __ATOMIC_SEQ_CST);

	if (q->op == OP_FILL)
		count_one(&d->fills);
	if (q->op == OP_STAT && q->body_len)
		count_one(&d->stats);
	if (q->op == OP_DROP)
		count_one(&d->drops);
	if (q->op == OP_BAD)
		count_one(&d->bads);
	if (q->op == OP_CLOSED)
		count_one(&d->closeds);
	daemon_wait(d);
	if (q->op == OP_FILL && how == BUSY)
		answer(fd, q, ST_BUSY, NULL, 0);
	else if (q->op == OP_STAT && how == NOT_HERE && q->body_len)
		answer(fd, q, ST_NOT_HERE, NULL, 0);
	else
		answer(fd, q, ST_OK, NULL, 0);
}

static inline bool shake(const struct daemon *d, int fd)
{
	struct hello_id id = {.role = ROLE_MEMBER, .group = "g", .node = "d"};
	uint8_t h[FRAME_HEADER], body[FRAME_SMALL_MAX], out[MSG_HELLO_MAX + MSG_HMAC], role;
	struct hello_state st;
	struct frame q;
	size_t n;

	id.secret = d->path[0] ? NULL : &group_secret;
	if (!read_all(fd, h, sizeof(h)) || frame_decode(h, sizeof(h), 0, &q) < 0 ||
	    !read_all(fd, body, q.body_len) ||
	    hello_answer(&id, &st, body, q.body_len, out, &n, &role) < 0)
		return false;
	answer(fd, &q, ST_OK, out, n);
	if (!id.secret)
		return true;
	if (!read_all(fd, h, sizeof(h)) || frame_decode(h, sizeof(h), 0, &q) < 0 ||
	    !read_all(fd, body, q.body_len) || hello_verify(&id, &st, body, q.body_len) < 0)
		return false;
	answer(fd, &q, ST_OK, NULL, 0);
	return true;
}

struct conn {
	struct daemon *d;
	int fd;
};

static inline void *conn_thread(void *arg)
{
	struct conn c = *(struct conn *)arg;
	uint8_t h[FRAME_HEADER], body[FRAME_SMALL_MAX];
	struct frame q;

	free(arg);
	if (!shake(c.d, c.fd))
		return NULL;
	while (read_all(c.fd, h, sizeof(h)) && frame_decode(h, sizeof(h), 0, &q) > 0 &&
	       (q.body_len == 0 || read_all(c.fd, body, q.body_len))) {
		if (q.op == OP_GET)
			on_get(c.d, c.fd, &q, body);
		else if (q.op == OP_MGET)
			on_mget(c.d, c.fd, &q, body);
		else
			on_other(c.d, c.fd, &q);
	}
	return NULL;
}

static inline void *accept_thread(void *arg)
{
	struct daemon *d = arg;
	int fd;

	while ((fd = accept(d->lfd, NULL, NULL)) >= 0 && d->n < CONNS) {
		struct conn *c = malloc(sizeof(*c));

		assert_non_null(c);
		*c = (struct conn){d, fd};
		d->fd[d->n] = fd;
		assert_int_equal(pthread_create(&d->conn[d->n++], NULL, conn_thread, c), 0);
	}
	return NULL;
}

static inline void daemon_start(struct daemon *d, bool local)
{
	struct sockaddr_in in = {.sin_family = AF_INET};
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	socklen_t n = sizeof(in);

	memset(d, 0, sizeof(*d));
	in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	d->lfd = socket(local ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (local) {
		snprintf(d->path, sizeof(d->path), "/tmp/stoke-test-sp-%d.sock", getpid());
		snprintf(un.sun_path, sizeof(un.sun_path), "%s", d->path);
		unlink(d->path);
		assert_int_equal(bind(d->lfd, (struct sockaddr *)&un, sizeof(un)), 0);
	} else {
		assert_int_equal(bind(d->lfd, (struct sockaddr *)&in, sizeof(in)), 0);
		assert_int_equal(getsockname(d->lfd, (struct sockaddr *)&in, &n), 0);
		d->port = ntohs(in.sin_port);
	}
	assert_int_equal(listen(d->lfd, 16), 0);
	assert_int_equal(pthread_create(&d->accepter, NULL, accept_thread, d), 0);
}

/* its connections end, too; may be called twice */
static inline void daemon_stop(struct daemon *d)
{
	if (d->lfd < 0)
		return;
	__atomic_store_n(&d->how, SERVE, __ATOMIC_SEQ_CST);
	shutdown(d->lfd, SHUT_RDWR);
	pthread_join(d->accepter, NULL);
	close(d->lfd);
	d->lfd = -1;
	for (unsigned i = 0; i < d->n; i++) {
		shutdown(d->fd[i], SHUT_RDWR);
		pthread_join(d->conn[i], NULL);
		close(d->fd[i]);
	}
	if (d->path[0])
		unlink(d->path);
}

static inline void behave(struct daemon *d, enum behaviour how)
{
	__atomic_store_n(&d->how, how, __ATOMIC_SEQ_CST);
}

#endif
