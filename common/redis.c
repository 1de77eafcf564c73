/* SPDX-License-Identifier: Apache-2.0 */
/* Connections to a Redis, lent out, and commands that are retried over them. Threads: any that may
 * block.
 *
 *	a connection is
 *	connecting	counted in n_conns, on nobody's list
 *	lent		its borrower's, from redis_acquire to redis_release
 *	idle		on r->idle, the last used first
 *	closed		when it comes back broken or with unread replies, or its server was left
 *
 * Invariant: n_conns <= max_conns. */
#include "common/redis.h"

#include <hiredis/hiredis.h>
#include <signal.h>
#include <stdarg.h>

#include "common/clock.h"
#include "common/fiber.h"
#include "common/log.h"
#include "common/redis_inner.h"

enum {
	DEFAULT_CONNS = 32,
	DEFAULT_CONNECT_US = 5000000,
	DEFAULT_IO_US = 30000000,
	BACKOFF_FIRST_US = 20000,
	BACKOFF_LAST_US = 1000000,
	REFUSAL_US = 60000000,
	ANOTHER_US = 1000000,
	FRESH_US = 100000,
};

/* --- connecting --- */

/* READONLY: a replica of a cluster answers those who say that they only read */
static int conn_readonly(struct redis_conn *c, uint64_t deadline_us)
{
	struct redis_reply *reply;
	int r = redis_cmd(c, deadline_us, &reply, "READONLY");

	if (r == 0)
		redis_reply_free(reply);
	return r;
}

static int conn_select(struct redis_conn *c, uint64_t deadline_us)
{
	struct redis_reply *reply;
	int r;

	if (!c->r->url.db)
		return 0;
	r = redis_cmd(c, deadline_us, &reply, "SELECT %u", c->r->url.db);
	if (r == 0)
		redis_reply_free(reply);
	return r == -EIO ? -EINVAL : r;
}

/* what a connection needs before it is used */
static int conn_greet(struct redis_conn *c, uint64_t deadline_us, struct str *why)
{
	struct redis *r = c->r;
	bool replica = r->route != ROUTE_PRIMARY;
	int e = 0;

	if (r->mode == REDIS_CLUSTER)
		return replica ? conn_readonly(c, deadline_us) : 0;
	if (r->mode == REDIS_SENTINEL) {
		e = redis_check_role(c, deadline_us, replica, why);
		if (e < 0)
			return e;
	}
	e = conn_select(c, deadline_us);
	if (e < 0 && why)
		str_add(why, c->error);
	return e;
}

/* on failure ret_conn is untouched, and why (may be NULL) tells more than the number */
static int conn_open(struct redis *r, uint64_t deadline_us, struct redis_conn **ret_conn,
		     struct str *why)
{
	struct redis_conn *c;
	uint64_t now = clock_us(), left = clock_left(deadline_us), epoch;
	struct redis_addr a;
	int e;

	deadline_us = now + MIN(left, r->conf.connect_timeout_us);
	e = redis_route_get(r, deadline_us, &a, &epoch, why);
	if (e < 0)
		return e;
	if (why)
		str_reset(why);
	e = redis_conn_open(r, &a, r->url.user, r->url.password, deadline_us, &c, why);
	if (e < 0) {
		redis_route_doubt(r, epoch);
		return e;
	}
	c->epoch = epoch;
	e = conn_greet(c, deadline_us, why);
	if (e < 0) {
		redis_route_doubt(r, epoch);
		redis_conn_close(c);
		return e;
	}
	mtx_lock(&r->lock);
	c->birth = ++r->births;
	mtx_unlock(&r->lock);
	*ret_conn = c;
	return 0;
}

/* doubled from the first to the last, each half by chance, so that clients of a server that came
 * back do not arrive together */
void redis_backoff(const struct redis *r, unsigned attempt, uint64_t deadline_us)
{
	static _Thread_local unsigned seed;
	uint64_t us = r->min_backoff_us;

	if (!seed)
		seed = (unsigned)clock_us() ^ (unsigned)(uintptr_t)&seed;
	for (; attempt && us < r->max_backoff_us; attempt--)
		us *= 2;
	us = MIN(us, r->max_backoff_us);
	us = us / 2 + (uint64_t)rand_r(&seed) % (us / 2 + 1);
	fiber_sleep_us(MIN(us, clock_left(deadline_us)));
}

/* 1: *ret is an idle connection; 0: there is room for a new one, counted already; -ETIMEDOUT */
static int redis_room_locked(struct redis *r, uint64_t deadline_us, struct redis_conn **ret,
			     bool *ret_left) REQUIRES(r->lock)
{
	for (;;) {
		struct list_node *n = list_pop(&r->idle);
		uint64_t left;

		if (n) {
			*ret = container_of(n, struct redis_conn, link);
			*ret_left = (*ret)->epoch != r->epoch;
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

static bool is_passing(int r)
{
	return r == -ECONNREFUSED || r == -ETIMEDOUT || r == -ECONNRESET || r == -EAGAIN;
}

int redis_acquire(struct redis *r, uint64_t deadline_us, struct redis_conn **ret)
{
	struct redis_conn *c = NULL;
	unsigned attempt = 0;
	bool left = false;
	int e;

	for (;;) {
		mtx_lock(&r->lock);
		e = redis_room_locked(r, deadline_us, &c, &left);
		mtx_unlock(&r->lock);
		if (e < 0)
			return e;
		/* who has just answered has not closed since, as a rule, and it is found out */
		if (e == 1 && !left &&
		    (clock_us() - c->used_us < FRESH_US || redis_conn_is_alive(c)))
			break;
		if (e == 1) {
			if (!left)
				redis_route_doubt(r, c->epoch);
			redis_conn_close(c); /* its room is ours */
			c = NULL;
		}
		e = conn_open(r, deadline_us, &c, NULL);
		if (e == 0)
			break;
		redis_forget(r);
		/* a master that no sentinel knows was known at the beginning */
		if (!is_passing(e) && !(e == -ENOENT && r->mode == REDIS_SENTINEL))
			return e;
		if (!clock_left(deadline_us))
			return e == -ENOENT ? -ECONNREFUSED : e;
		redis_backoff(r, attempt++, deadline_us);
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
	if (c->broken || c->stale || c->pending) {
		redis_conn_close(c);
		redis_forget(r);
		return;
	}
	c->used_us = clock_us();
	mtx_lock(&r->lock);
	list_add_head(&r->idle, &c->link);
	cond_signal(&r->freed);
	mtx_unlock(&r->lock);
}

/* --- the server --- */

/* a cluster, by the URL or by what its node said: keys have a prefix from now on */
static void cluster_begin(struct redis *r)
{
	snprintf(r->prefix, sizeof(r->prefix), "{%u}", r->url.db);
	r->slot = redis_cluster_slot(r->prefix, strlen(r->prefix));
}

/* The first word with the server of a URL that names one. What SELECT says tells of a cluster, too,
 * to a user who may not ask for it. */
static int single_begin(struct redis *r, uint64_t deadline_us, struct str *why)
{
	struct redis_conn *c;
	int e = redis_conn_open(r, &r->node, r->url.user, r->url.password, deadline_us, &c, why);

	if (e < 0)
		return e;
	e = redis_check_first(c, deadline_us, why);
	if (e == 0 && r->mode == REDIS_SINGLE) {
		e = conn_select(c, deadline_us);
		if (e == -EINVAL && strstr(c->error, "cluster mode")) {
			r->mode = REDIS_CLUSTER;
			e = 0;
		} else if (e < 0) {
			str_add(why, c->error);
		}
	}
	if (e == 0 && r->mode == REDIS_CLUSTER) {
		cluster_begin(r);
		e = redis_cluster_learn(c, deadline_us);
		if (e < 0)
			str_add(why, c->error);
	}
	redis_conn_close(c);
	return e;
}

static int redis_begin(struct redis *r, struct str *why)
{
	uint64_t deadline = clock_us() + r->conf.connect_timeout_us;
	bool single = r->mode == REDIS_SINGLE;
	struct redis_conn *c;
	int e = 0;

	if (r->url.n_addrs)
		r->node = r->url.addrs[0];
	if (single)
		e = single_begin(r, deadline, why);
	else if (r->mode == REDIS_CLUSTER)
		cluster_begin(r);
	if (e < 0)
		return e;
	r->known = r->mode == REDIS_SINGLE;
	if (r->mode == REDIS_SINGLE || (r->mode == REDIS_SENTINEL && r->url.route != ROUTE_REPLICA))
		r->route = ROUTE_PRIMARY;
	if (r->mode == REDIS_SINGLE)
		return 0;
	e = conn_open(r, deadline, &c, why);
	if (e < 0)
		return e;
	r->n_conns = 1;
	if (!single)
		e = redis_check_first(c, deadline, why);
	redis_release(c);
	return e;
}

static void redis_settings(struct redis *r, const struct redis_conf *conf)
{
	const struct redis_url *u = &r->url;

	if (conf)
		r->conf = *conf;
	if (!r->conf.max_conns)
		r->conf.max_conns = DEFAULT_CONNS;
	if (!r->conf.connect_timeout_us)
		r->conf.connect_timeout_us =
			u->dial_timeout_us ? u->dial_timeout_us : DEFAULT_CONNECT_US;
	if (!r->conf.io_timeout_us)
		r->conf.io_timeout_us = u->read_timeout_us ? u->read_timeout_us : DEFAULT_IO_US;
	r->min_backoff_us = u->min_backoff_us ? u->min_backoff_us : BACKOFF_FIRST_US;
	r->max_backoff_us =
		MAX(u->max_backoff_us ? u->max_backoff_us : BACKOFF_LAST_US, r->min_backoff_us);
	r->mode = u->mode;
	r->route = r->conf.read_only ? u->route : ROUTE_PRIMARY;
	r->epoch = 1;
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
	cond_init(&r->found);
	list_init(&r->idle);
	list_init(&r->pipe.asking);
	/* OpenSSL writes with write(): a server that goes away must not kill the program */
	signal(SIGPIPE, SIG_IGN);
	e = redis_url_parse(url, &r->url, err);
	if (e < 0)
		goto out;
	e = -ENOMEM;
	r->name = redis_url_name(&r->url);
	if (!r->name)
		goto out;
	redis_settings(r, conf);
	e = r->url.tls ? redis_tls_new(&r->url.tls_conf, &r->tls, &why) : 0;
	if (e == 0)
		e = redis_begin(r, &why);
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
		redis_conn_close(container_of(n, struct redis_conn, link));
		r->n_conns--;
	}
	assert(r->n_conns == 0); /* all are back */
	cond_fini(&r->freed);
	cond_fini(&r->found);
	mtx_fini(&r->lock);
	assert(!r->pipe.owner);
	str_fini(&r->pipe.out);
	str_fini(&r->pipe.spare);
	redis_tls_free(r->tls);
	redis_url_fini(&r->url);
	free(r->nodes.v);
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

bool redis_reads_replica(const struct redis *r)
{
	return r->route != ROUTE_PRIMARY;
}

/* --- commands that are retried --- */

static bool worth_retrying(int r, bool by_script)
{
	return !by_script && (r == -ETIMEDOUT || r == -ECONNRESET || r == -EAGAIN);
}

/* the server's own words, which the number that is returned does not tell */
static void refused(struct redis *r, const char *text)
{
	uint64_t now = clock_us();
	bool tell;

	mtx_lock(&r->lock);
	tell = !r->refusal_us || now - r->refusal_us >= REFUSAL_US ||
	       (strcmp(text, r->refusal) != 0 && now - r->refusal_us >= ANOTHER_US);
	if (tell)
		r->refusal_us = now;
	snprintf(r->refusal, sizeof(r->refusal), "%s", text);
	mtx_unlock(&r->lock);
	if (tell)
		log_error("%s: %s", r->name, text);
}

void redis_refusal(struct redis *r, struct str *out)
{
	mtx_lock(&r->lock);
	str_add(out, r->refusal);
	mtx_unlock(&r->lock);
}

void redis_ask_note(struct redis_ask *a, const struct redis_conn *c, int e)
{
	a->by_script = c->by_script;
	a->asked = c->asked;
	a->to = c->ask;
	a->text[0] = 0;
	if (e && !c->broken && !c->by_script && e != -ENOEXEC)
		snprintf(a->text, sizeof(a->text), "%s", c->error);
}

/* one command and its answer */
static int redis_try(struct redis *r, struct redis_ask *a)
{
	struct redis_conn *c;
	int e;

	a->by_script = a->asked = false;
	a->text[0] = 0;
	if (redis_pipe_ask(r, a, &e))
		return e;
	e = redis_acquire(r, a->deadline_us, &c);
	if (e)
		return e;
	e = redis_conn_append_raw(c, a->cmd, a->len);
	if (e == 0)
		e = redis_next(c, a->deadline_us, &a->reply);
	redis_ask_note(a, c, e);
	redis_release(c);
	return e;
}

/* The same to the node that was named: the slot is on its way to it (asking), or it has a key
 * without the prefix */
static int redis_ask(struct redis *r, const struct redis_addr *to, bool asking,
		     uint64_t deadline_us, const char *cmd, size_t len, struct redis_reply **ret)
{
	struct redis_reply *ok = NULL;
	struct redis_conn *c;
	int e = redis_conn_open(r, to, r->url.user, r->url.password, deadline_us, &c, NULL);

	if (e < 0)
		return e;
	if (asking) {
		e = redis_cmd(c, deadline_us, &ok, "ASKING");
		redis_reply_free(ok);
	}
	if (e == 0)
		e = redis_conn_append_raw(c, cmd, len);
	if (e == 0)
		e = redis_next(c, deadline_us, ret);
	redis_conn_close(c);
	return e;
}

/* script: what is half moved is not for it */
static int redis_insist(struct redis *r, uint64_t deadline_us, bool script, const char *cmd,
			size_t len, struct redis_reply **ret)
{
	struct redis_ask a = {.cmd = cmd, .len = len, .deadline_us = deadline_us};

	for (unsigned attempt = 0;; attempt++) {
		int e = redis_try(r, &a);

		if (a.asked && !script)
			e = redis_ask(r, &a.to, e == -EAGAIN, deadline_us, cmd, len, &a.reply);
		if (e == 0)
			*ret = a.reply;
		if (e == 0 || !worth_retrying(e, a.by_script) || !clock_left(deadline_us)) {
			if (e && *a.text)
				refused(r, a.text);
			return e;
		}
		redis_backoff(r, attempt, deadline_us);
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
	e = redis_insist(r, deadline_us, false, cmd, (size_t)len, ret);
	redisFreeCommand(cmd);
	return e;
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
	e = redis_insist(r, deadline_us, true, cmd.s, cmd.len, ret);
	if (e != -ENOEXEC)
		return e;
	str_reset(&cmd);
	add_eval(&cmd, "EVAL", s->text, n_keys, argc, argv, lens); /* the server keeps it, too */
	if (str_error(&cmd))
		return -ENOMEM;
	return redis_insist(r, deadline_us, true, cmd.s, cmd.len, ret);
}
