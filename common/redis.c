/* SPDX-License-Identifier: Apache-2.0 */
/* Connections to one Redis server, lent out, and what is said over them. Threads: any that may
 * block.
 *
 *	a connection is
 *	connecting	counted in n_conns, on nobody's list
 *	lent		its borrower's, from redis_acquire to redis_release
 *	idle		on r->idle, the last used first
 *	closed		when it comes back broken or with unread replies
 *
 * Invariant: n_conns <= max_conns. */
#include "common/redis.h"

#include <hiredis/hiredis.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <time.h>

#include "common/clock.h"
#include "common/list.h"
#include "common/mtx.h"
#include "common/spin.h"
#include "common/redis_url.h"
#include "common/sha1.h"

enum {
	DEFAULT_CONNS = 32,
	DEFAULT_CONNECT_US = 5000000,
	DEFAULT_IO_US = 30000000,
	BACKOFF_FIRST_US = 20000,
	BACKOFF_LAST_US = 1000000,
	OLDEST_MAJOR = 4,
};

struct redis {
	struct spin spin; /* of those who wait for an answer */
	struct redis_url url;
	char *name;
	char prefix[REDIS_PREFIX_MAX];
	struct redis_conf conf;
	struct mtx lock;
	struct cond freed; /* an idle connection, or room for one */
	struct list_node idle GUARDED_BY(lock);
	unsigned n_conns GUARDED_BY(lock);
};

struct redis_conn {
	struct redis *r;
	redisContext *ctx;
	struct list_node link;
	uint64_t timeout_us; /* what its socket has */
	unsigned pending;    /* replies not taken */
	bool broken;
	bool by_script; /* the last error is a script's own number: "ERRNO n" */
	char error[256];
};

/* --- replies --- */

static const redisReply *reply_of(const struct redis_reply *r)
{
	return (const redisReply *)(const void *)r;
}

enum redis_type redis_reply_type(const struct redis_reply *r)
{
	switch (reply_of(r)->type) {
	case REDIS_REPLY_INTEGER:
		return REDIS_INT;
	case REDIS_REPLY_STRING:
		return REDIS_STR;
	case REDIS_REPLY_STATUS:
		return REDIS_STATUS;
	case REDIS_REPLY_ERROR:
		return REDIS_ERR;
	case REDIS_REPLY_ARRAY:
		return REDIS_ARRAY;
	default:
		return REDIS_NIL;
	}
}

int64_t redis_reply_int(const struct redis_reply *r)
{
	const redisReply *h = reply_of(r);
	char *end;
	long long v;

	if (h->type == REDIS_REPLY_INTEGER)
		return h->integer;
	if (h->type != REDIS_REPLY_STRING || !h->len)
		return 0;
	errno = 0;
	v = strtoll(h->str, &end, 10);
	return errno || end != h->str + h->len ? 0 : v;
}

const char *redis_reply_str(const struct redis_reply *r, size_t *len)
{
	const redisReply *h = reply_of(r);
	bool text = h->type == REDIS_REPLY_STRING || h->type == REDIS_REPLY_STATUS ||
		    h->type == REDIS_REPLY_ERROR;

	if (len)
		*len = text ? (size_t)h->len : 0;
	return text ? h->str : NULL;
}

size_t redis_reply_len(const struct redis_reply *r)
{
	const redisReply *h = reply_of(r);

	return h->type == REDIS_REPLY_ARRAY ? h->elements : 0;
}

const struct redis_reply *redis_reply_at(const struct redis_reply *r, size_t i)
{
	const redisReply *h = reply_of(r);

	if (h->type != REDIS_REPLY_ARRAY || i >= h->elements)
		return NULL;
	return (const struct redis_reply *)(const void *)h->element[i];
}

void redis_reply_free(struct redis_reply *r)
{
	if (r)
		freeReplyObject(r);
}

void redis_reply_freep(struct redis_reply **r)
{
	redis_reply_free(*r);
}

/* --- errors --- */

static int conn_break(struct redis_conn *c, int r, const char *what)
{
	c->broken = true;
	c->by_script = false;
	snprintf(c->error, sizeof(c->error), "%s", what);
	return r;
}

/* hiredis gave up on the connection; errno is still its last call's */
static int conn_failed(struct redis_conn *c)
{
	int e = errno;

	switch (c->ctx->err) {
	case REDIS_ERR_IO:
		if (e == EAGAIN || e == EWOULDBLOCK)
			return conn_break(c, -ETIMEDOUT, "timed out");
		return conn_break(c, -ECONNRESET, c->ctx->errstr);
#ifdef REDIS_ERR_TIMEOUT /* since hiredis 1.0 */
	case REDIS_ERR_TIMEOUT:
		return conn_break(c, -ETIMEDOUT, "timed out");
#endif
	case REDIS_ERR_EOF:
		return conn_break(c, -ECONNRESET, "connection closed by the server");
	case REDIS_ERR_OOM:
		return conn_break(c, -ENOMEM, "out of memory");
	default:
		return conn_break(c, -EPROTO, c->ctx->errstr);
	}
}

/* an error reply of the server -> -errno */
static int reply_error(struct redis_conn *c, const redisReply *h)
{
	static const struct {
		const char *prefix;
		int r;
	} map[] = {
		{"OOM", -ENOSPC},
		{"NOAUTH", -EACCES},
		{"NOPERM", -EACCES},
		{"WRONGPASS", -EACCES},
		{"READONLY", -EROFS},
		{"LOADING", -EAGAIN},
		{"BUSY ", -EAGAIN},
		{"TRYAGAIN", -EAGAIN},
		{"CLUSTERDOWN", -EAGAIN},
		{"MASTERDOWN", -EAGAIN},
		{"EXECABORT", -EAGAIN},
		{"NOSCRIPT", -ENOEXEC},
		{"ERR invalid password", -EACCES},		    /* before Redis 6 */
		{"ERR Client sent AUTH, but no password", -EACCES}, /* the same */
		{"ERR AUTH <password> called without any password", -EACCES},
	};
	const char *s = h->str;

	snprintf(c->error, sizeof(c->error), "%s", s);
	c->by_script = !strncmp(s, "ERRNO ", 6);
	if (c->by_script) {
		long n = strtol(s + 6, NULL, 10);

		return n > 0 && n < 4096 ? -(int)n : -EIO;
	}
	for (size_t i = 0; i < ARRAY_LEN(map); i++)
		if (!strncmp(s, map[i].prefix, strlen(map[i].prefix)))
			return map[i].r;
	return -EIO;
}

const char *redis_error(const struct redis_conn *c)
{
	return c->error;
}

/* --- commands on a connection --- */

/* gives the socket the time that is left; 0, or -ETIMEDOUT when there is none */
static int conn_set_timeout(struct redis_conn *c, uint64_t deadline_us)
{
	const uint64_t step = 100000;
	uint64_t us = MIN(clock_left(deadline_us), c->r->conf.io_timeout_us);
	struct timeval tv;

	if (!us)
		return -ETIMEDOUT;
	if (us > 10 * step) /* coarse, so that most calls need not tell the kernel anything */
		us = MIN(us / step * step + step, c->r->conf.io_timeout_us);
	if (us == c->timeout_us)
		return 0;
	tv.tv_sec = (time_t)(us / 1000000);
	tv.tv_usec = (suseconds_t)(us % 1000000);
	if (redisSetTimeout(c->ctx, tv) != REDIS_OK)
		return conn_break(c, -ECONNRESET, "cannot set the socket's time-out");
	c->timeout_us = us;
	return 0;
}

static int conn_appended(struct redis_conn *c, int r)
{
	if (r != REDIS_OK)
		return conn_break(c, -ENOMEM, "out of memory");
	c->pending++;
	return 0;
}

int redis_append(struct redis_conn *c, const char *fmt, ...)
{
	va_list ap;
	int r;

	if (c->broken)
		return -ECONNRESET;
	va_start(ap, fmt);
	r = redisvAppendCommand(c->ctx, fmt, ap);
	va_end(ap);
	return conn_appended(c, r);
}

int redis_appendv(struct redis_conn *c, int argc, const char **argv, const size_t *lens)
{
	if (c->broken)
		return -ECONNRESET;
	return conn_appended(c, redisAppendCommandArgv(c->ctx, argc, argv, lens));
}

static int conn_append_raw(struct redis_conn *c, const char *cmd, size_t len)
{
	if (c->broken)
		return -ECONNRESET;
	return conn_appended(c, redisAppendFormattedCommand(c->ctx, cmd, len));
}

/* or the connection's end */
static bool has_answer(void *arg)
{
	const struct redis_conn *c = arg;
	char byte;

	return recv(c->ctx->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || errno != EAGAIN;
}

/* a server nearby answers sooner than this thread could sleep and wake; errors are met again when
 * the answer is read */
static void look_for_answer(struct redis_conn *c)
{
	int sent = 0;

	if (c->pending != 1)
		return;
	while (!sent) {
		if (redisBufferWrite(c->ctx, &sent) != REDIS_OK)
			return;
	}
	(void)spin_until(&c->r->spin, has_answer, c);
}

int redis_next(struct redis_conn *c, uint64_t deadline_us, struct redis_reply **ret)
{
	void *reply = NULL;
	int r;

	if (c->broken)
		return -ECONNRESET;
	assert(c->pending); /* as many as were appended */
	r = conn_set_timeout(c, deadline_us);
	if (r < 0)
		return conn_break(c, r, "timed out");
	look_for_answer(c);
	errno = 0;
	if (redisGetReply(c->ctx, &reply) != REDIS_OK)
		return conn_failed(c);
	c->pending--;
	c->by_script = false;
	if (((redisReply *)reply)->type == REDIS_REPLY_ERROR) {
		r = reply_error(c, reply);
		freeReplyObject(reply);
		return r;
	}
	*ret = reply;
	return 0;
}

int redis_cmd(struct redis_conn *c, uint64_t deadline_us, struct redis_reply **ret, const char *fmt,
	      ...)
{
	va_list ap;
	int r;

	if (c->broken)
		return -ECONNRESET;
	va_start(ap, fmt);
	r = conn_appended(c, redisvAppendCommand(c->ctx, fmt, ap));
	va_end(ap);
	return r < 0 ? r : redis_next(c, deadline_us, ret);
}

int redis_cmdv(struct redis_conn *c, uint64_t deadline_us, struct redis_reply **ret, int argc,
	       const char **argv, const size_t *lens)
{
	int r = redis_appendv(c, argc, argv, lens);

	return r < 0 ? r : redis_next(c, deadline_us, ret);
}

/* --- connecting --- */

static void conn_close(struct redis_conn *c)
{
	if (c->ctx)
		redisFree(c->ctx);
	free(c);
}

/* password and database */
static int conn_greet(struct redis_conn *c, uint64_t deadline_us)
{
	const struct redis_url *u = &c->r->url;
	struct redis_reply *reply;
	int r = 0;

	if (u->password) {
		if (u->user)
			r = redis_cmd(c, deadline_us, &reply, "AUTH %s %s", u->user, u->password);
		else
			r = redis_cmd(c, deadline_us, &reply, "AUTH %s", u->password);
		if (r < 0)
			return r;
		redis_reply_free(reply);
	}
	if (u->db) {
		r = redis_cmd(c, deadline_us, &reply, "SELECT %u", u->db);
		if (r == -EIO)
			r = strstr(c->error, "cluster mode") ? -EOPNOTSUPP : -EINVAL;
		if (r < 0)
			return r;
		redis_reply_free(reply);
	}
	return 0;
}

/* on failure ret_conn is untouched, and why (may be NULL) tells more than the number */
static int conn_open(struct redis *r, uint64_t deadline_us, struct redis_conn **ret_conn,
		     struct str *why)
{
	_cleanup_(closep) int fd = -1;
	struct redis_conn *c;
	uint64_t now = clock_us(), left = clock_left(deadline_us);
	int e;

	deadline_us = now + MIN(left, r->conf.connect_timeout_us);
	e = redis_connect_fd(&r->url, deadline_us, &fd, why);
	if (e < 0)
		return e;
	c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->r = r;
	c->ctx = redisConnectFd(fd);
	if (!c->ctx || c->ctx->err) {
		conn_close(c);
		return -ENOMEM;
	}
	TAKE_FD(fd); /* the context closes it */
	e = conn_greet(c, deadline_us);
	if (e < 0) {
		if (why)
			str_add(why, c->error);
		conn_close(c);
		return e;
	}
	*ret_conn = c;
	return 0;
}

/* a server that closed or said something unasked is of no use */
static bool conn_is_alive(struct redis_conn *c)
{
	char byte;

	return recv(c->ctx->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

/* 20 ms, doubled up to 1 s, each half by chance, so that clients of a server that came back do not
 * arrive together */
static void backoff(unsigned attempt, uint64_t deadline_us)
{
	static _Thread_local unsigned seed;
	uint64_t us = BACKOFF_FIRST_US;
	struct timespec ts;

	if (!seed)
		seed = (unsigned)clock_us() ^ (unsigned)(uintptr_t)&seed;
	for (; attempt && us < BACKOFF_LAST_US; attempt--)
		us *= 2;
	us = MIN(us, (uint64_t)BACKOFF_LAST_US);
	us = us / 2 + (uint64_t)rand_r(&seed) % (us / 2);
	us = MIN(us, clock_left(deadline_us));
	ts.tv_sec = (time_t)(us / 1000000);
	ts.tv_nsec = (long)(us % 1000000) * 1000;
	nanosleep(&ts, NULL);
}

/* 1: *ret is an idle connection; 0: there is room for a new one, counted already; -ETIMEDOUT */
static int redis_room_locked(struct redis *r, uint64_t deadline_us, struct redis_conn **ret)
	REQUIRES(r->lock)
{
	for (;;) {
		struct list_node *n = list_pop(&r->idle);
		uint64_t left;

		if (n) {
			*ret = container_of(n, struct redis_conn, link);
			return 1;
		}
		if (r->n_conns < r->conf.max_conns) {
			r->n_conns++;
			return 0;
		}
		left = clock_left(deadline_us);
		if (!left)
			return -ETIMEDOUT;
		(void)cond_wait_us(&r->freed, &r->lock, left);
	}
}

static void redis_forget(struct redis *r)
{
	mtx_lock(&r->lock);
	r->n_conns--;
	cond_signal(&r->freed);
	mtx_unlock(&r->lock);
}

int redis_acquire(struct redis *r, uint64_t deadline_us, struct redis_conn **ret)
{
	struct redis_conn *c = NULL;
	unsigned attempt = 0;
	int e;

	for (;;) {
		mtx_lock(&r->lock);
		e = redis_room_locked(r, deadline_us, &c);
		mtx_unlock(&r->lock);
		if (e < 0)
			return e;
		if (e == 1 && conn_is_alive(c))
			break;
		if (e == 1) {
			conn_close(c); /* its room is ours */
			c = NULL;
		}
		e = conn_open(r, deadline_us, &c, NULL);
		if (e == 0)
			break;
		redis_forget(r);
		if (e != -ECONNREFUSED && e != -ETIMEDOUT && e != -ECONNRESET && e != -EAGAIN)
			return e;
		if (!clock_left(deadline_us))
			return e;
		backoff(attempt++, deadline_us);
	}
	c->error[0] = 0;
	c->by_script = false;
	*ret = c;
	return 0;
}

void redis_release(struct redis_conn *c)
{
	struct redis *r;

	if (!c)
		return;
	r = c->r;
	if (c->broken || c->pending) {
		conn_close(c);
		redis_forget(r);
		return;
	}
	mtx_lock(&r->lock);
	list_add_head(&r->idle, &c->link);
	cond_signal(&r->freed);
	mtx_unlock(&r->lock);
}

/* --- the server --- */

static int check_version(struct redis_conn *c, uint64_t deadline_us, struct str *why)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	const char *text, *v;
	int r = redis_cmd(c, deadline_us, &reply, "INFO server");

	if (r < 0) {
		str_add(why, c->error);
		return r == -EIO ? -EPROTO : r;
	}
	text = redis_reply_str(reply, NULL);
	v = text ? strstr(text, "redis_version:") : NULL;
	if (!v) {
		str_add(why, "the server does not answer INFO as Redis does");
		return -EPROTO;
	}
	v += strlen("redis_version:");
	if (strtol(v, NULL, 10) < OLDEST_MAJOR) {
		str_addf(why, "Redis %.*s is too old, 4.0 is needed", (int)strcspn(v, "\r\n"), v);
		return -EPROTO;
	}
	return 0;
}

static int check_not_clustered(struct redis_conn *c, uint64_t deadline_us, struct str *why)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	const char *text;
	int r = redis_cmd(c, deadline_us, &reply, "CLUSTER INFO");

	if (c->broken)
		return r;
	text = r == 0 ? redis_reply_str(reply, NULL) : NULL;
	if (!text || !strstr(text, "cluster_state:"))
		return 0; /* an error means: no cluster, or not allowed to ask */
	str_add(why, "the server is a node of a Redis Cluster, which is not supported");
	return -EOPNOTSUPP;
}

static int redis_first_conn(struct redis *r, struct str *why)
{
	uint64_t deadline = clock_us() + r->conf.connect_timeout_us;
	struct redis_conn *c;
	int e = conn_open(r, deadline, &c, why);

	if (e < 0)
		return e;
	r->n_conns = 1;
	e = check_not_clustered(c, deadline, why);
	if (e == 0)
		e = check_version(c, deadline, why);
	redis_release(c);
	return e;
}

int redis_new(const char *url, const struct redis_conf *conf, struct redis **ret, struct str *err)
{
	_cleanup_(str_fini) struct str why = STR_INIT;
	struct redis *r = calloc(1, sizeof(*r));
	int e;

	if (!r)
		return -ENOMEM;
	mtx_init(&r->lock);
	cond_init(&r->freed);
	list_init(&r->idle);
	/* hiredis writes with write(): a server that goes away must not kill the program */
	signal(SIGPIPE, SIG_IGN);
	e = redis_url_parse(url, &r->url, err);
	if (e < 0)
		goto out;
	e = -ENOMEM;
	r->name = redis_url_name(&r->url);
	if (!r->name)
		goto out;
	if (conf)
		r->conf = *conf;
	if (!r->conf.max_conns)
		r->conf.max_conns = DEFAULT_CONNS;
	if (!r->conf.connect_timeout_us)
		r->conf.connect_timeout_us = DEFAULT_CONNECT_US;
	if (!r->conf.io_timeout_us)
		r->conf.io_timeout_us =
			r->url.read_timeout_us ? r->url.read_timeout_us : DEFAULT_IO_US;
	e = redis_first_conn(r, &why);
	if (e < 0) {
		str_addf(err, "%s: %s", r->name, why.len ? str_c(&why) : strerror(-e));
		goto out;
	}
	*ret = r;
	return 0;
out:
	redis_free(r);
	return e;
}

void redis_free(struct redis *r)
{
	struct list_node *n;

	if (!r)
		return;
	while ((n = list_pop(&r->idle))) {
		conn_close(container_of(n, struct redis_conn, link));
		r->n_conns--;
	}
	assert(r->n_conns == 0); /* all are back */
	cond_fini(&r->freed);
	mtx_fini(&r->lock);
	redis_url_fini(&r->url);
	free(r->name);
	free(r);
}

const char *redis_name(const struct redis *r)
{
	return r->name;
}

const char *redis_prefix(const struct redis *r)
{
	return r->prefix;
}

/* --- commands that are retried --- */

static bool worth_retrying(int r, bool by_script)
{
	return !by_script && (r == -ETIMEDOUT || r == -ECONNRESET || r == -EAGAIN);
}

/* one command, ready for the wire */
static int redis_insist(struct redis *r, uint64_t deadline_us, const char *cmd, size_t len,
			struct redis_reply **ret)
{
	for (unsigned attempt = 0;; attempt++) {
		struct redis_conn *c;
		bool by_script;
		int e = redis_acquire(r, deadline_us, &c);

		if (e)
			return e;
		e = conn_append_raw(c, cmd, len);
		if (e == 0)
			e = redis_next(c, deadline_us, ret);
		by_script = c->by_script;
		redis_release(c);
		if (e == 0 || !worth_retrying(e, by_script) || !clock_left(deadline_us))
			return e;
		backoff(attempt, deadline_us);
	}
}

int redis_once(struct redis *r, uint64_t deadline_us, struct redis_reply **ret, const char *fmt,
	       ...)
{
	char *cmd = NULL;
	va_list ap;
	int len, e;

	va_start(ap, fmt);
	len = redisvFormatCommand(&cmd, fmt, ap);
	va_end(ap);
	if (len < 0)
		return -ENOMEM;
	e = redis_insist(r, deadline_us, cmd, (size_t)len, ret);
	redisFreeCommand(cmd);
	return e;
}

int redis_script_init(struct redis_script *s, const char *name, const char *prelude,
		      const char *body)
{
	struct str text = STR_INIT;

	str_add(&text, prelude);
	str_add(&text, body);
	sha1_hex(str_c(&text), text.len, s->sha);
	s->name = name;
	s->text = str_take(&text);
	return s->text ? 0 : -ENOMEM;
}

void redis_script_fini(struct redis_script *s)
{
	free(s->text);
	*s = (struct redis_script){.name = NULL};
}

/* "verb what n_keys argv…" for the wire; "EVALSHA" or "EVAL" */
static void add_eval(struct str *out, const char *verb, const char *what, int n_keys, int argc,
		     const char **argv, const size_t *lens)
{
	char keys[16];
	int n = snprintf(keys, sizeof(keys), "%d", n_keys);

	str_addf(out, "*%d\r\n$%zu\r\n%s\r\n$%zu\r\n", argc + 3, strlen(verb), verb, strlen(what));
	str_add(out, what);
	str_addf(out, "\r\n$%d\r\n%s\r\n", n, keys);
	for (int i = 0; i < argc; i++) {
		size_t len = lens ? lens[i] : strlen(argv[i]);

		str_addf(out, "$%zu\r\n", len);
		str_addn(out, argv[i], len);
		str_add(out, "\r\n");
	}
}

int redis_eval(struct redis *r, uint64_t deadline_us, const struct redis_script *s, int n_keys,
	       int argc, const char **argv, const size_t *lens, struct redis_reply **ret)
{
	_cleanup_(str_fini) struct str cmd = STR_INIT;
	int e;

	assert(n_keys <= argc);
	add_eval(&cmd, "EVALSHA", s->sha, n_keys, argc, argv, lens);
	if (str_error(&cmd))
		return -ENOMEM;
	e = redis_insist(r, deadline_us, cmd.s, cmd.len, ret);
	if (e != -ENOEXEC)
		return e;
	str_reset(&cmd);
	add_eval(&cmd, "EVAL", s->text, n_keys, argc, argv, lens); /* the server keeps it, too */
	if (str_error(&cmd))
		return -ENOMEM;
	return redis_insist(r, deadline_us, cmd.s, cmd.len, ret);
}
