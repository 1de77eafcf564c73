/* SPDX-License-Identifier: Apache-2.0 */
/* One connection to a Redis: its bytes, commands and their errors. hiredis formats commands and
 * parses answers; the bytes move here, over a non-blocking socket or TLS on it, so that a deadline
 * is kept to the millisecond and both go one way. Thread: the borrower's, which may block.
 *
 *	open		commands may be sent; as many answers are taken
 *	stale		the server is not the right one (any more): closed when it is given back
 *	broken		an answer did not come, so the next one would be another request's: nothing
 *			more is sent or read, closed when it is given back */
#include "common/redis_inner.h"

#include <hiredis/hiredis.h>
#include <poll.h>
#include <stdarg.h>
#include <sys/socket.h>

#include "common/clock.h"
#include "common/fiber.h"
#include "common/parse.h"

enum {
	READ_BYTES = 65536,
	/* so long a server of several may be silent before it is asked whether it still serves */
	SILENCE_US = 1000000,
};

/* --- errors --- */

static int conn_break(struct redis_conn *c, int r, const char *what)
{
	c->broken = true;
	c->by_script = c->asked = false;
	snprintf(c->error, sizeof(c->error), "%s", what);
	if (c->epoch)
		redis_route_doubt(c->r, c->epoch);
	return r;
}

/* "MOVED 3999 10.0.0.1:6381" -> slot and place; an empty host is the server's own */
static bool redirect_read(const struct redis_conn *c, const char *s, uint64_t *ret_slot,
			  struct redis_addr *ret)
{
	const char *slot = strchr(s, ' '), *place = slot ? strchr(slot + 1, ' ') : NULL;
	char text[8] = "";
	const char *colon;
	size_t n;
	uint64_t port;

	if (!place || (size_t)(place - slot) > sizeof(text))
		return false;
	memcpy(text, slot + 1, (size_t)(place - slot - 1));
	place++;
	colon = strrchr(place, ':'); /* IPv6 comes without brackets */
	if (parse_u64(text, 16383, ret_slot) < 0 || !colon)
		return false;
	n = (size_t)(colon - place);
	if (n > REDIS_HOST_MAX || parse_u64(colon + 1, UINT16_MAX, &port) < 0 || !port)
		return false;
	*ret = c->addr;
	if (n && *place != '?') {
		memcpy(ret->host, place, n);
		ret->host[n] = 0;
	}
	ret->port = (uint16_t)port;
	return true;
}

static int moved_error(struct redis_conn *c, const char *s)
{
	bool ask = !strncmp(s, "ASK ", 4);
	struct redis_addr to;
	uint64_t slot;

	if (c->r->mode != REDIS_CLUSTER || !redirect_read(c, s, &slot, &to))
		return -EIO;
	c->asked = ask || slot != c->r->slot;
	c->ask = to;
	if (slot != c->r->slot) /* a key without the prefix: some other node's */
		return -EXDEV;
	if (ask)
		return -EAGAIN;
	c->stale = true;
	redis_route_moved(c->r, c->epoch, &to);
	return -EAGAIN;
}

/* the server cannot do it: perhaps another one can by now */
static int elsewhere_error(struct redis_conn *c)
{
	if (c->r->on_replica || c->r->route != ROUTE_PRIMARY)
		return -EROFS;
	c->stale = true;
	if (c->epoch)
		redis_route_doubt(c->r, c->epoch);
	return -EAGAIN;
}

/* before Redis 7 the error of a command within a script came wrapped */
static const char *unwrapped(const char *s)
{
	static const char *const codes[] = {"-READONLY ", "-OOM ", "-NOREPLICAS ", "-MOVED "};

	if (strncmp(s, "ERR Error running script", 24) != 0)
		return s;
	for (size_t i = 0; i < ARRAY_LEN(codes); i++) {
		const char *at = strstr(s, codes[i]);

		if (at)
			return at + 1;
	}
	return s;
}

enum { ELSEWHERE = 1, MOVED };

/* an error reply of the server -> -errno */
static int reply_error(struct redis_conn *c, const char *text)
{
	static const struct {
		const char *prefix;
		int r;
	} map[] = {
		{"OOM", -ENOSPC},
		{"NOAUTH", -EACCES},
		{"NOPERM", -EACCES},
		{"WRONGPASS", -EACCES},
		{"READONLY", ELSEWHERE},
		{"MASTERDOWN", ELSEWHERE},
		{"CLUSTERDOWN", ELSEWHERE},
		{"LOADING", -EAGAIN},
		{"BUSY ", -EAGAIN},
		{"TRYAGAIN", -EAGAIN},
		{"NOREPLICAS", -EAGAIN},
		{"EXECABORT", -EAGAIN},
		{"MOVED ", MOVED},
		{"ASK ", MOVED},
		{"NOSCRIPT", -ENOEXEC},
		{"ERR invalid password", -EACCES},		    /* before Redis 6 */
		{"ERR Client sent AUTH, but no password", -EACCES}, /* the same */
		{"ERR AUTH <password> called without any password", -EACCES},
		/* the slot is on its way to another node; see prelude.lua */
		{"ERR Script attempted to access a non local key", -EAGAIN},
	};
	const char *s = unwrapped(text);

	snprintf(c->error, sizeof(c->error), "%s", text);
	c->by_script = !strncmp(s, "ERRNO ", 6);
	c->asked = false;
	if (c->by_script) {
		long n = strtol(s + 6, NULL, 10);

		return n > 0 && n < 4096 ? -(int)n : -EIO;
	}
	for (size_t i = 0; i < ARRAY_LEN(map); i++) {
		if (strncmp(s, map[i].prefix, strlen(map[i].prefix)) != 0)
			continue;
		return map[i].r == ELSEWHERE ? elsewhere_error(c)
		       : map[i].r == MOVED   ? moved_error(c, s)
					     : map[i].r;
	}
	return -EIO;
}

const char *redis_error(const struct redis_conn *c)
{
	return c->error;
}

/* --- bytes --- */

static ssize_t io_send(struct redis_conn *c, const char *p, size_t n, uint64_t deadline_us)
{
	ssize_t put;
	int r;

	if (c->tls)
		return redis_tls_write(c->tls, p, n, deadline_us);
	for (;;) {
		put = send(c->fd, p, n, MSG_NOSIGNAL);
		if (put >= 0)
			return put;
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN)
			return -ECONNRESET;
		r = redis_fd_wait(c->fd, POLLOUT, deadline_us);
		if (r < 0)
			return r;
	}
}

struct taking {
	struct redis_conn *c;
	char *p;
	size_t n;
	ssize_t got;
	int e;
};

/* true: there are bytes, the end, or an error */
static bool take_what_came(void *arg)
{
	struct taking *t = arg;

	t->got = recv(t->c->fd, t->p, t->n, MSG_DONTWAIT);
	t->e = t->got < 0 ? errno : 0;
	return t->e != EAGAIN && t->e != EINTR;
}

/* A server nearby answers a single question sooner than this thread could sleep and wake. Not over
 * TLS: what came may lie within OpenSSL already. */
static ssize_t io_recv(struct redis_conn *c, char *p, size_t n, uint64_t deadline_us)
{
	struct taking t = {.c = c, .p = p, .n = n};
	int r;

	if (c->tls)
		return redis_tls_read(c->tls, p, n, deadline_us);
	if (c->pending != 1 || fiber_in() || !spin_until(&c->r->spin, take_what_came, &t)) {
		do {
			r = redis_fd_wait(c->fd, POLLIN, deadline_us);
			if (r < 0)
				return r;
		} while (!take_what_came(&t));
	}
	return t.e ? -ECONNRESET : t.got;
}

static int io_failed(struct redis_conn *c, int r)
{
	if (r == -ETIMEDOUT)
		return conn_break(c, r, "timed out");
	if (r == 0)
		return conn_break(c, -ECONNRESET, "connection closed by the server");
	if (c->tls && *redis_tls_error(c->tls))
		return conn_break(c, r, redis_tls_error(c->tls));
	return conn_break(c, r, strerror(-r));
}

int redis_conn_send(struct redis_conn *c, const char *p, size_t len, uint64_t deadline_us)
{
	size_t sent = 0;

	while (sent < len) {
		ssize_t n = io_send(c, p + sent, len - sent, deadline_us);

		if (n <= 0)
			return io_failed(c, (int)n);
		sent += (size_t)n;
	}
	return 0;
}

static int conn_flush(struct redis_conn *c, uint64_t deadline_us)
{
	int r = redis_conn_send(c, c->out.s, c->out.len, deadline_us);

	if (r == 0)
		str_reset(&c->out);
	return r;
}

/* more bytes for the parser; where there are several servers, not beyond the time that another one
 * took over */
static int conn_fill(struct redis_conn *c, uint64_t deadline_us)
{
	char buf[READ_BYTES];
	ssize_t n;

	for (;;) {
		uint64_t step = deadline_us;

		if (c->r->mode != REDIS_SINGLE && c->epoch)
			step = MIN(deadline_us, clock_us() + SILENCE_US);
		n = io_recv(c, buf, sizeof(buf), step);
		if (n > 0)
			break;
		if (n != -ETIMEDOUT || !clock_left(deadline_us))
			return io_failed(c, (int)n);
		if (redis_route_left(c->r, c->epoch))
			return conn_break(c, -ECONNRESET, "another server took its place");
	}
	if (redisReaderFeed(c->reader, buf, (size_t)n) != REDIS_OK)
		return conn_break(c, -ENOMEM, "out of memory");
	return 0;
}

/* --- commands --- */

static int conn_appended(struct redis_conn *c)
{
	if (str_error(&c->out))
		return conn_break(c, -ENOMEM, "out of memory");
	c->pending++;
	return 0;
}

int redis_conn_append_raw(struct redis_conn *c, const char *cmd, size_t len)
{
	if (c->broken)
		return -ECONNRESET;
	str_addn(&c->out, cmd, len);
	return conn_appended(c);
}

static int conn_vappend(struct redis_conn *c, const char *fmt, va_list ap)
{
	char *cmd = NULL;
	int n, r;

	if (c->broken)
		return -ECONNRESET;
	n = redisvFormatCommand(&cmd, fmt, ap);
	if (n < 0)
		return conn_break(c, -ENOMEM, "out of memory");
	r = redis_conn_append_raw(c, cmd, (size_t)n);
	redisFreeCommand(cmd);
	return r;
}

int redis_append(struct redis_conn *c, const char *fmt, ...)
{
	va_list ap;
	int r;

	va_start(ap, fmt);
	r = conn_vappend(c, fmt, ap);
	va_end(ap);
	return r;
}

int redis_appendv(struct redis_conn *c, int argc, const char **argv, const size_t *lens)
{
	if (c->broken)
		return -ECONNRESET;
	str_addf(&c->out, "*%d\r\n", argc);
	for (int i = 0; i < argc; i++) {
		size_t len = lens ? lens[i] : strlen(argv[i]);

		str_addf(&c->out, "$%zu\r\n", len);
		str_addn(&c->out, argv[i], len);
		str_add(&c->out, "\r\n");
	}
	return conn_appended(c);
}

/* the next whole answer, of any kind; NULL: it did not come, and *ret says why */
static redisReply *conn_reply(struct redis_conn *c, uint64_t deadline_us, int *ret)
{
	void *reply = NULL;
	int r = c->out.len ? conn_flush(c, deadline_us) : 0;

	while (r == 0) {
		if (redisReaderGetReply(c->reader, &reply) != REDIS_OK)
			r = conn_break(c, -EPROTO, c->reader->errstr);
		else if (reply)
			return reply;
		else
			r = conn_fill(c, deadline_us);
	}
	*ret = r;
	return NULL;
}

int redis_next(struct redis_conn *c, uint64_t deadline_us, struct redis_reply **ret)
{
	uint64_t left = clock_left(deadline_us);
	redisReply *reply;
	int r = -EIO;

	if (c->broken)
		return -ECONNRESET;
	assert(c->pending); /* as many as were appended */
	if (!left)
		return conn_break(c, -ETIMEDOUT, "timed out");
	reply = conn_reply(c, clock_us() + MIN(left, c->r->conf.io_timeout_us), &r);
	if (!reply)
		return r;
	c->pending--;
	c->by_script = c->asked = false;
	if (reply->type == REDIS_REPLY_ERROR) {
		r = reply_error(c, reply->str);
		freeReplyObject(reply);
		return r;
	}
	*ret = (struct redis_reply *)(void *)reply;
	return 0;
}

int redis_cmd(struct redis_conn *c, uint64_t deadline_us, struct redis_reply **ret, const char *fmt,
	      ...)
{
	va_list ap;
	int r;

	va_start(ap, fmt);
	r = conn_vappend(c, fmt, ap);
	va_end(ap);
	return r < 0 ? r : redis_next(c, deadline_us, ret);
}

int redis_cmdv(struct redis_conn *c, uint64_t deadline_us, struct redis_reply **ret, int argc,
	       const char **argv, const size_t *lens)
{
	int r = redis_appendv(c, argc, argv, lens);

	return r < 0 ? r : redis_next(c, deadline_us, ret);
}

/* --- opening --- */

void redis_conn_close(struct redis_conn *c)
{
	if (!c)
		return;
	redis_tls_close(c->tls);
	closep(&c->fd);
	if (c->reader)
		redisReaderFree(c->reader);
	str_fini(&c->out);
	free(c);
}

bool redis_conn_is_alive(struct redis_conn *c)
{
	char byte;

	if (c->tls)
		return redis_tls_is_quiet(c->tls);
	return recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

static int conn_auth(struct redis_conn *c, const char *user, const char *password,
		     uint64_t deadline_us)
{
	struct redis_reply *reply;
	int r;

	if (!password)
		return 0;
	if (user)
		r = redis_cmd(c, deadline_us, &reply, "AUTH %s %s", user, password);
	else
		r = redis_cmd(c, deadline_us, &reply, "AUTH %s", password);
	if (r < 0)
		return r;
	redis_reply_free(reply);
	return 0;
}

int redis_conn_open(struct redis *r, const struct redis_addr *a, const char *user,
		    const char *password, uint64_t deadline_us, struct redis_conn **ret,
		    struct str *why)
{
	const char *path = r->mode == REDIS_SINGLE ? r->url.path : NULL;
	struct redis_conn *c = calloc(1, sizeof(*c));
	int e;

	if (!c)
		return -ENOMEM;
	c->r = r;
	c->fd = -1;
	c->addr = *a;
	c->reader = redisReaderCreate();
	e = c->reader ? redis_connect_fd(path, a, deadline_us, &c->fd, why) : -ENOMEM;
	if (e == 0 && r->tls)
		e = redis_tls_connect(r->tls, c->fd, a->host, deadline_us, &c->tls, why);
	if (e == 0) {
		e = conn_auth(c, user, password, deadline_us);
		if (e < 0 && why)
			str_add(why, c->error);
	}
	if (e < 0) {
		redis_conn_close(c);
		return e;
	}
	*ret = c;
	return 0;
}
