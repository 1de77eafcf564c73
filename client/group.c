/* SPDX-License-Identifier: Apache-2.0 */
/* Follows the members of the group in a thread of its own, which may block on Redis or wait for the
 * daemon's answer. A call that the daemon does not answer is left alone until it ends (with its
 * connection, at the latest): no second one is sent meanwhile. A daemon that has not answered for
 * AWAY_US may be gone for long, while members come and go: then Redis is asked, once a second.
 *
 * With a socket the daemon's own id is asked for once, at the start, by a HELLO of our own:
 * requests for blocks it owns go through the socket. */
#include "client/group.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/mtx.h"
#include "common/thread.h"

enum {
	PERIOD_US = 1000000,
	ANSWER_US = 3000000,
	RING_ROOM = 65536,
	HELLO_SECONDS = 5,
	MOVED_US = 3000000, /* heartbeats come every second */
	RETRY_US = 100000,
	AWAY_US = 5000000, /* the daemon does not answer: then Redis is asked */
	MEMBER_ROOM = 256,
};

struct group {
	struct group_conf conf;
	struct registry *registry;
	struct cluster *seen; /* thread only: what the view has */
	pthread_t thread;
	bool threaded;
	struct mtx lock;
	struct cond changed;
	bool stop;
	unsigned rounds; /* asked so often */
	/* the daemon's answer */
	struct peer_call call;
	size_t room; /* what the next answer may be long */
	bool calling, answered;
	int status;
	bool away; /* said already */
	uint64_t heard_us;
};

/* --- who the daemon is --- */

static int socket_open(const char *path)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	struct timeval tv = {.tv_sec = HELLO_SECONDS};
	size_t n = strlen(path);
	int fd;

	if (n >= sizeof(un.sun_path))
		return -ENAMETOOLONG;
	memcpy(un.sun_path, path, n + 1);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)) < 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv)) < 0 ||
	    connect(fd, (const struct sockaddr *)&un, sizeof(un)) < 0) {
		int r = -errno;

		(void)close(fd);
		return r;
	}
	return fd;
}

static int read_all(int fd, uint8_t *p, size_t n)
{
	while (n > 0) {
		ssize_t got = recv(fd, p, n, 0);

		if (got == 0)
			return -ECONNRESET;
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return errno == EAGAIN ? -ETIMEDOUT : -errno;
		p += got;
		n -= (size_t)got;
	}
	return 0;
}

static int ask_hello(int fd, const struct hello_id *id, struct hello_state *st)
{
	uint8_t out[FRAME_HEADER + MSG_HELLO_MAX];
	struct frame f = {.version = FRAME_VERSION, .op = OP_HELLO, .id = 1};
	size_t n = FRAME_HEADER + hello_ask(id, st, out + FRAME_HEADER);

	f.body_len = (uint32_t)(n - FRAME_HEADER);
	frame_encode(&f, out);
	if (send(fd, out, n, MSG_NOSIGNAL) != (ssize_t)n)
		return errno ? -errno : -EIO;
	return 0;
}

static int take_welcome(int fd, const struct hello_id *id, struct hello_state *st,
			char self[MEMBER_ID_MAX])
{
	uint8_t head[FRAME_HEADER], body[FRAME_SMALL_MAX], proof[MSG_HMAC];
	struct msg_welcome w;
	struct frame f;
	int r = read_all(fd, head, sizeof(head));

	if (r < 0)
		return r;
	if (frame_decode(head, sizeof(head), 1, &f) < 0 || f.op != OP_HELLO ||
	    f.body_len > sizeof(body))
		return -EPROTO;
	if (f.status != ST_OK)
		return msg_status_to_errno(f.status);
	r = read_all(fd, body, f.body_len);
	if (r == 0)
		r = hello_prove(id, st, body, f.body_len, proof);
	if (r < 0)
		return r;
	if (msg_welcome_decode(body, f.body_len, &w) < 0 || w.hello.node_len >= MEMBER_ID_MAX)
		return -EPROTO;
	memcpy(self, w.hello.node, w.hello.node_len);
	self[w.hello.node_len] = 0;
	return 0;
}

static int ask_self_once(const char *socket, const struct hello_id *id, char self[MEMBER_ID_MAX])
{
	struct hello_id local = *id;
	struct hello_state st;
	int fd = socket_open(socket), r;

	if (fd < 0)
		return fd;
	local.secret = NULL; /* a unix socket's permissions guard it */
	errno = 0;
	r = ask_hello(fd, &local, &st);
	if (r == 0)
		r = take_welcome(fd, &local, &st, self);
	(void)close(fd);
	return r;
}

int group_ask_self(const char *socket, const struct hello_id *id, char self[MEMBER_ID_MAX])
{
	uint64_t until = clock_us() + MOVED_US;
	int r;

	/* when the generation has just changed, a daemon hears of it with its next heartbeat */
	while ((r = ask_self_once(socket, id, self)) == -ESTALE && clock_left(until))
		usleep(RETRY_US);
	return r;
}

/* --- one round --- */

static void swap(struct group *g, struct cluster *c)
{
	/* versions only grow; the daemon may be a second behind Redis, which was asked at the
	 * start */
	if (g->seen && (c->version < g->seen->version ||
			(c->version == g->seen->version && c->n == g->seen->n))) {
		cluster_unref(c);
		return;
	}
	log_info("group=%s members=%zu version=%llu", g->conf.name ? g->conf.name : "private", c->n,
		 (unsigned long long)c->version);
	cluster_unref(g->seen);
	g->seen = cluster_ref(c);
	cluster_view_set(g->conf.view, c);
}

static void away(struct group *g, int status)
{
	if (!status == g->away)
		log_warn("group=%s %s", g->conf.name ? g->conf.name : "private",
			 status ? g->conf.socket
					  ? "the daemon of this node does not answer: the last "
					    "list of members stays, unless Redis has another"
					  : "Redis does not answer: the last list of members stays"
				: "the list of members is followed again");
	g->away = status;
}

static int ask_registry(struct group *g)
{
	struct cluster *c = g->seen ? cluster_ref(g->seen) : NULL;
	struct generation gen;
	int r = registry_fetch(g->registry, clock_us() + ANSWER_US, &c, &gen);

	/* no member at all (a database that was emptied or failed over): the ring is kept */
	if (r == 0 && c && (c->n > 0 || !g->seen || g->seen->n == 0))
		swap(g, c);
	else
		cluster_unref(c);
	return r;
}

static void ring_done(struct peer_call *call, int status)
{
	struct group *g = container_of(call, struct group, call);

	mtx_lock(&g->lock);
	g->answered = true;
	g->status = status;
	cond_broadcast(&g->changed);
	mtx_unlock(&g->lock);
}

/* the answer is here: memory back, members out */
static int ring_take(struct group *g)
{
	struct buf *in = TAKE_PTR(g->call.in);
	struct cluster *c = NULL;
	int r = g->status;

	g->calling = false;
	if (r == -EPROTO && g->room < FRAME_RING_MAX)
		g->room = MIN(g->room * 4, (size_t)FRAME_RING_MAX);
	if (r == 0 && g->call.in_len > 0)
		r = cluster_decode(g->seen, in->mem, g->call.in_len, &c);
	buf_unref(in);
	if (c)
		swap(g, c);
	return r;
}

static int ring_send(struct group *g)
{
	size_t cost, reserved, want;
	struct peer *p = peers_get(g->conf.peers, g->conf.socket, 0);
	uint64_t version = g->seen ? g->seen->version : 0;
	int r;

	if (!p)
		return -ENOMEM;
	want = g->seen ? MIN(g->seen->n * MEMBER_ROOM, (size_t)FRAME_RING_MAX) : 0;
	g->room = MAX(g->room, want);
	reserved = cost = pool_cost(g->room);
	/* without waiting: the next round is a second away */
	r = pool_reserve(g->conf.pool, POOL_DEMAND, cost, NULL);
	if (r < 0)
		return r;
	g->call = (struct peer_call){
		.op = OP_RING, .timeout_us = ANSWER_US, .head_len = 8, .fd = -1, .done = ring_done};
	for (int i = 0; i < 8; i++)
		g->call.head[i] = (uint8_t)(version >> (56 - 8 * i));
	g->call.in = pool_take(g->conf.pool, POOL_DEMAND, g->room, &reserved);
	pool_unreserve(g->conf.pool, POOL_DEMAND, reserved);
	if (!g->call.in)
		return -ENOMEM;
	g->call.in_cap = g->room;
	g->answered = false;
	g->calling = true;
	peer_start(p, &g->call, false);
	return 0;
}

static int ask_daemon(struct group *g)
{
	uint64_t until = clock_us() + ANSWER_US;
	bool answered;
	int r = g->calling ? 0 : ring_send(g);

	if (r < 0)
		return r;
	mtx_lock(&g->lock);
	while (!g->answered && !g->stop && clock_us() < until)
		cond_wait_us(&g->changed, &g->lock, clock_left(until));
	answered = g->answered;
	mtx_unlock(&g->lock);
	return answered ? ring_take(g) : -ETIMEDOUT;
}

static void *follow(void *arg)
{
	struct group *g = arg;
	bool stop = false;

	g->heard_us = clock_us();
	/* the newest list to begin with: a daemon that has just started may know nobody yet */
	if (g->conf.socket && g->registry)
		(void)ask_registry(g);
	while (!stop) {
		int r;

		if (g->conf.keys)
			keys_look(g->conf.keys);
		r = g->conf.socket ? ask_daemon(g) : ask_registry(g);
		if (r == 0)
			g->heard_us = clock_us();
		else if (g->conf.socket && g->registry && clock_us() > g->heard_us + AWAY_US)
			(void)ask_registry(g);
		away(g, r);
		mtx_lock(&g->lock);
		g->rounds++;
		cond_broadcast(&g->changed);
		if (!g->stop)
			cond_wait_us(&g->changed, &g->lock, PERIOD_US);
		stop = g->stop;
		mtx_unlock(&g->lock);
	}
	return NULL;
}

/* --- life --- */

static int start(struct group *g, uint64_t wait_us)
{
	uint64_t until = clock_us() + wait_us;
	int r = thread_start("group", follow, g, &g->thread);

	if (r < 0)
		return r;
	g->threaded = true;
	mtx_lock(&g->lock);
	while (g->rounds == 0 && clock_us() < until)
		cond_wait_us(&g->changed, &g->lock, clock_left(until));
	mtx_unlock(&g->lock);
	return 0;
}

/* a private daemon is a ring of one */
static int ring_of_one(struct group *g)
{
	struct member m = {.id = "private", .weight = RING_WEIGHT_UNIT, .state = MEMBER_ACTIVE};
	struct cluster *c;

	if (strlen(g->conf.socket) >= sizeof(m.addr))
		return -ENAMETOOLONG;
	memcpy(m.addr, g->conf.socket, strlen(g->conf.socket));
	c = cluster_new(1, &m, 1);
	if (!c)
		return -ENOMEM;
	cluster_view_set(g->conf.view, c);
	return 0;
}

int group_new(const struct group_conf *conf, uint64_t wait_us, struct group **ret)
{
	struct group *g = calloc(1, sizeof(*g));
	int r = 0;

	if (!g)
		return -ENOMEM;
	g->conf = *conf;
	g->room = RING_ROOM;
	mtx_init(&g->lock);
	cond_init(&g->changed);
	if (!conf->name)
		r = ring_of_one(g);
	else if (conf->redis)
		r = registry_new(conf->redis, conf->name, &g->registry);
	if (r == 0 && conf->name)
		r = start(g, wait_us);
	if (r < 0) {
		group_free(g);
		return r;
	}
	*ret = g;
	return 0;
}

void group_stop(struct group *g)
{
	if (!g)
		return;
	mtx_lock(&g->lock);
	g->stop = true;
	cond_broadcast(&g->changed);
	mtx_unlock(&g->lock);
	if (g->threaded)
		(void)pthread_join(g->thread, NULL);
	g->threaded = false;
}

/* a call that was out has ended with the peers */
void group_free(struct group *g)
{
	if (!g)
		return;
	group_stop(g);
	if (g->calling)
		buf_unref(TAKE_PTR(g->call.in));
	registry_free(g->registry);
	cluster_unref(g->seen);
	cond_fini(&g->changed);
	mtx_fini(&g->lock);
	free(g);
}
