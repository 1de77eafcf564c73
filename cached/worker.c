/* SPDX-License-Identifier: Apache-2.0 */
/* Listeners and workers. A worker is a loop and the connections it owns for life; listeners live on
 * the first one and deal sockets out in turn. Start and stop come from main's thread and go through
 * the loops' mailboxes. */
#include "cached/worker.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>

#include "cached/conn.h"
#include "common/clock.h"

enum {
	SWEEP_US = 250000,
	CLOSE_US = 1000000,
	ACCEPTS_PER_TURN = 64,
	BACKLOG = 4096,
	PAUSE_US = 100000,
	RESTART_TELL_US = 20000
};

struct listener {
	struct server *server;
	struct loop_watch watch;
	struct loop_timer pause; /* out of descriptors */
	int fd;
	bool local;
	char *path; /* unix socket: removed at the end */
};

struct server {
	struct server_conf conf;
	struct worker workers[SERVER_WORKERS_MAX];
	struct listener listeners[SERVER_LISTENERS_MAX];
	unsigned n_listeners, next_worker;
	struct hot hot;
	struct turns turns;
};

/* --- workers --- */

/* pressed: somebody waits for memory */
static enum reject overdue(const struct conn *c, uint64_t now, bool pressed)
{
	uint64_t limit = c->body ? CONN_BODY_US : CONN_FRAME_US;

	if (c->state != CONN_SERVING)
		return now - c->since_us > CONN_HELLO_US ? REJECT_NO_HANDSHAKE : REJECT_NONE;
	if (c->since_us && !(c->body && c->body->waiting) && now - c->since_us > limit)
		return REJECT_ENDLESS;
	if (list_empty(&c->out))
		return REJECT_NONE;
	if (now - c->written_us > CONN_WRITE_US)
		return REJECT_STALLED;
	if (pressed && c->memory_bytes && !c->lent && now - c->written_us > CONN_STALL_US)
		return REJECT_STALLED;
	return REJECT_NONE;
}

static void sweep_list(struct list_node *conns, bool pressed)
{
	struct list_node *n, *next;
	uint64_t now = clock_us();

	list_for_each_safe(n, next, conns)
	{
		struct conn *c = container_of(n, struct conn, link);
		enum reject why = overdue(c, now, pressed);

		if (!why) {
			answer_shed(c);
			continue;
		}
		conn_drop(c, why);
		conn_settle(c);
	}
}

static void sweep(struct loop_timer *t)
{
	struct worker *w = container_of(t, struct worker, sweep);

	bool pressed = pool_pressed(w->conf->env->pool);

	sweep_list(&w->strangers, pressed);
	sweep_list(&w->conns, pressed);
	loop_timer_start(t, SWEEP_US);
}

static void worker_start(void *arg)
{
	struct worker *w = arg;

	loop_timer_init(&w->sweep, w->loop, sweep);
	loop_timer_start(&w->sweep, SWEEP_US);
}

int server_new(const struct server_conf *conf, struct server **ret)
{
	struct server *s = calloc(1, sizeof(*s));
	struct pool_stat pool;

	assert(conf->n_loops > 0 && conf->n_loops <= SERVER_WORKERS_MAX);
	if (!s)
		return -ENOMEM;
	s->conf = *conf;
	pool_stat(conf->env->pool, &pool);
	s->conf.hot = &s->hot;
	s->conf.turns = &s->turns;
	if (turns_init(&s->turns, pool.budget / 4 * 3) < 0) {
		free(s);
		return -ENOMEM;
	}
	for (unsigned i = 0; i < conf->n_loops; i++) {
		struct worker *w = &s->workers[i];

		w->conf = &s->conf;
		w->loop = conf->loops[i];
		w->max_conns = MAX(conf->max_conns / conf->n_loops, 16u);
		w->memory_max = MIN(pool.budget / 4, (size_t)CONN_MEMORY_MAX);
		list_init(&w->strangers);
		list_init(&w->conns);
		list_init(&w->closed);
		loop_run_sync(w->loop, worker_start, w);
	}
	*ret = s;
	return 0;
}

/* --- listeners --- */

static void resume(struct loop_timer *t)
{
	struct listener *l = container_of(t, struct listener, pause);

	loop_watch_set(&l->watch, LOOP_READ);
}

static void on_accept(struct loop_watch *watch, unsigned events)
{
	struct listener *l = container_of(watch, struct listener, watch);
	struct server *s = l->server;

	(void)events;
	for (unsigned i = 0; i < ACCEPTS_PER_TURN; i++) {
		struct sockaddr_storage from = {0};
		socklen_t len = sizeof(from);
		int fd = accept4(l->fd, (struct sockaddr *)&from, &len,
				 SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd < 0 &&
		    (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
			loop_watch_set(watch, 0);
			loop_timer_start(&l->pause, PAUSE_US);
			return;
		}
		if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
			continue;
		if (fd < 0)
			return;
		if (conn_new(&s->workers[s->next_worker++ % s->conf.n_loops], fd,
			     l->local ? NULL : &from) < 0)
			(void)close(fd);
	}
}

static void listener_start(void *arg)
{
	struct listener *l = arg;

	loop_watch_init(&l->watch, l->server->conf.loops[0], l->fd, on_accept);
	loop_timer_init(&l->pause, l->server->conf.loops[0], resume);
	loop_watch_set(&l->watch, LOOP_READ);
}

static int add_listener(struct server *s, int fd, bool local, const char *path)
{
	struct listener *l = &s->listeners[s->n_listeners];

	if (s->n_listeners == SERVER_LISTENERS_MAX)
		return -ENOSPC;
	if (path) {
		l->path = strdup(path);
		if (!l->path)
			return -ENOMEM;
	}
	l->server = s;
	l->fd = fd;
	l->local = local;
	s->n_listeners++;
	loop_run_sync(s->conf.loops[0], listener_start, l);
	return 0;
}

static int bind_tcp(const struct addrinfo *a, uint16_t *ret_port)
{
	_cleanup_(closep) int fd =
		socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	struct sockaddr_storage bound = {0};
	socklen_t len = sizeof(bound);
	struct sockaddr_in in;
	const int on = 1;

	if (fd < 0)
		return -errno;
	(void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(fd, a->ai_addr, a->ai_addrlen) < 0 || listen(fd, BACKLOG) < 0 ||
	    getsockname(fd, (struct sockaddr *)&bound, &len) < 0)
		return -errno;
	/* the port stands at the same place in both families */
	memcpy(&in, &bound, sizeof(in));
	*ret_port = ntohs(in.sin_port);
	return TAKE_FD(fd);
}

int server_listen_tcp(struct server *s, const char *addr, uint16_t port, uint16_t *ret_port)
{
	const struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV,
				       .ai_socktype = SOCK_STREAM};
	struct addrinfo *list = NULL, *a;
	char service[8];
	uint16_t bound = 0;
	int fd = -EADDRNOTAVAIL, r;

	(void)snprintf(service, sizeof(service), "%u", port);
	if (getaddrinfo(addr, service, &hints, &list) != 0)
		return -EADDRNOTAVAIL;
	for (a = list; a && fd < 0; a = a->ai_next)
		fd = bind_tcp(a, &bound);
	freeaddrinfo(list);
	if (fd < 0)
		return fd;
	r = add_listener(s, fd, false, NULL);
	if (r < 0) {
		(void)close(fd);
		return r;
	}
	*ret_port = bound;
	return 0;
}

/* true when somebody accepts connections there */
static bool is_alive(const struct sockaddr_un *a)
{
	_cleanup_(closep) int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	return fd >= 0 &&
	       (connect(fd, (const struct sockaddr *)a, sizeof(*a)) == 0 || errno == EAGAIN);
}

int server_listen_unix(struct server *s, const char *path)
{
	_cleanup_(closep) int fd = -1;
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	struct stat st;
	int r;

	if (strlen(path) >= sizeof(a.sun_path))
		return -ENAMETOOLONG;
	memcpy(a.sun_path, path, strlen(path));
	if (lstat(path, &st) == 0) {
		if (!S_ISSOCK(st.st_mode))
			return -EEXIST;
		if (is_alive(&a))
			return -EADDRINUSE;
		if (unlink(path) < 0)
			return -errno;
	}
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	/* the mode is set before anybody can connect: that needs listen */
	if (fd < 0 || bind(fd, (const struct sockaddr *)&a, sizeof(a)) < 0 ||
	    (s->conf.socket_group && chown(path, (uid_t)-1, s->conf.socket_group) < 0) ||
	    chmod(path, s->conf.socket_mode ? s->conf.socket_mode : 0660) < 0 ||
	    listen(fd, BACKLOG) < 0)
		return -errno;
	r = add_listener(s, fd, true, path);
	if (r == 0)
		TAKE_FD(fd);
	return r;
}

int server_adopt(struct server *s, int fd, bool ours, uint16_t *ret_port)
{
	struct sockaddr_storage a = {0};
	socklen_t len = sizeof(a);
	int listens = 0, r;
	socklen_t int_len = sizeof(listens);
	char path[sizeof(((struct sockaddr_un *)0)->sun_path) + 1] = "";
	struct sockaddr_in in;

	if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &int_len) < 0 ||
	    getsockname(fd, (struct sockaddr *)&a, &len) < 0)
		return -errno;
	if (!listens ||
	    (a.ss_family != AF_UNIX && a.ss_family != AF_INET && a.ss_family != AF_INET6))
		return -EINVAL;
	if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0 || fcntl(fd, F_SETFL, O_NONBLOCK) < 0)
		return -errno;
	if (a.ss_family == AF_UNIX && len > offsetof(struct sockaddr_un, sun_path))
		memcpy(path, ((struct sockaddr_un *)&a)->sun_path,
		       len - offsetof(struct sockaddr_un, sun_path));
	r = add_listener(s, fd, a.ss_family == AF_UNIX, ours && path[0] ? path : NULL);
	if (r == 0) {
		memcpy(&in, &a,
		       sizeof(in)); /* the port stands at the same place in both families */
		*ret_port = a.ss_family == AF_UNIX ? 0 : ntohs(in.sin_port);
	}
	return r;
}

/* nothing is accepted any more; who connects waits */
static void listeners_pause(void *arg)
{
	struct server *s = arg;

	for (unsigned i = 0; i < s->n_listeners; i++) {
		loop_watch_set(&s->listeners[i].watch, 0);
		loop_timer_stop(&s->listeners[i].pause);
	}
}

static void listeners_close(void *arg)
{
	struct server *s = arg;

	for (unsigned i = 0; i < s->n_listeners; i++) {
		struct listener *l = &s->listeners[i];

		loop_watch_set(&l->watch, 0);
		loop_timer_stop(&l->pause);
		if (l->path)
			(void)unlink(l->path);
		free(TAKE_PTR(l->path));
		closep(&l->fd);
	}
	s->n_listeners = 0;
}

/* --- the end --- */

struct census {
	struct worker *worker;
	unsigned conns, calls;
	bool close, restart;
};

static void census_list(struct census *n, struct list_node *conns)
{
	struct list_node *node, *next;

	list_for_each_safe(node, next, conns)
	{
		struct conn *c = container_of(node, struct conn, link);

		n->calls += c->n_calls;
		if (!n->close)
			continue;
		conn_drop(c, REJECT_NONE);
		conn_settle(c);
	}
}

/* also keeps new requests out; close: and closes */
static void take_census(void *arg)
{
	struct census *n = arg;
	struct worker *w = n->worker;

	w->stopping = true;
	w->restarting = n->restart;
	census_list(n, &w->strangers);
	census_list(n, &w->conns);
	if (n->close) {
		struct list_node *node, *next;

		list_for_each_safe(node, next, &w->closed)
			conn_settle(container_of(node, struct conn, link));
	}
	n->conns = w->n_conns;
}

static unsigned census(struct server *s, bool close, bool restart, unsigned *ret_conns)
{
	unsigned calls = 0;

	*ret_conns = 0;
	for (unsigned i = 0; i < s->conf.n_loops; i++) {
		struct census n = {.worker = &s->workers[i], .close = close, .restart = restart};

		loop_run_sync(s->workers[i].loop, take_census, &n);
		calls += n.calls;
		*ret_conns += n.conns;
	}
	return calls;
}

static const struct timespec census_pause = {.tv_nsec = 2000000};

unsigned server_hand_over(struct server *s, uint64_t us, int *ret)
{
	uint64_t began = clock_us(), end = began + us;
	unsigned conns;

	loop_run_sync(s->conf.loops[0], listeners_pause, s);
	/* for a moment even when nothing is under way: who asks now is told, and asks again */
	while ((census(s, false, true, &conns) && clock_us() < end) ||
	       clock_us() - began < RESTART_TELL_US)
		nanosleep(&census_pause, NULL);
	for (unsigned i = 0; i < s->n_listeners; i++)
		ret[i] = s->listeners[i].fd;
	return s->n_listeners;
}

static void sweep_stop(void *arg)
{
	struct worker *w = arg;

	loop_timer_stop(&w->sweep);
}

bool server_stop(struct server *s, uint64_t us)
{
	uint64_t end = clock_us() + us;
	unsigned conns;

	loop_run_sync(s->conf.loops[0], listeners_close, s);
	while (census(s, false, false, &conns) && clock_us() < end)
		nanosleep(&census_pause, NULL);
	/* what is with the chain now waits for something that does not answer */
	end = clock_us() + MIN(us, (uint64_t)CLOSE_US);
	while (census(s, true, false, &conns), conns && clock_us() < end)
		nanosleep(&census_pause, NULL);
	for (unsigned i = 0; i < s->conf.n_loops; i++)
		loop_run_sync(s->workers[i].loop, sweep_stop, &s->workers[i]);
	return conns == 0;
}

void server_set_hot_share(struct server *s, unsigned share)
{
	__atomic_store_n(&s->conf.hot_share, share, __ATOMIC_RELAXED);
}

void server_free(struct server *s)
{
	if (!s)
		return;
	turns_fini(&s->turns);
	free(s);
}
