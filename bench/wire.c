/* SPDX-License-Identifier: Apache-2.0 */
/* What the wire gives: the block files of a cache directory, whole, over loopback TCP.
 *
 *	wire bare DIR CONNS ROUNDS
 *		a bare server (sendfile) and bare readers (recv into one buffer a connection): the
 *		ceiling
 *	wire daemon DIR CONNS ROUNDS HOST PORT GROUP SECRET_FILE VOLUME_HEX
 *		the same blocks from stoke-cached through the protocol, checksums verified, 4
 *		requests in flight a connection
 *
 *	wire small DIR CONNS ROUNDS HOST PORT GROUP SECRET_FILE VOLUME_HEX
 *		the same for blocks of at most 100 KB: 32 requests in flight, over the connections
 *		for small answers, where a daemon of version 2 is asked by MGET
 *	wire echo COUNT ASK ANSWER
 *		one bare connection: ASK bytes there and ANSWER bytes back, COUNT times
 *
 * Each connection reads all blocks ROUNDS times. Prints one line of JSON: bytes, seconds, mib_s,
 * requests, the server's CPU time when it is the bare one, and ours; echo: p50_us, p99_us. */
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "common/base.h"
#include "common/block/key.h"
#include "common/block/peer.h"
#include "common/clock.h"
#include "common/parse.h"

enum { BLOCKS_MAX = 4096, CONNS_MAX = 32, WINDOW_MAX = 32, ECHO_MAX = 1 << 20 };

/* requests in flight a connection, room for an answer, which connection */
static unsigned window = 4;
static size_t in_size = (4 << 20) + FRAME_SUMS_MAX;
static bool bulk = true;

static char *paths[BLOCKS_MAX];
static struct block_key keys[BLOCKS_MAX];
static size_t n_blocks;
static uint64_t rounds;
static struct hash128 volume;

static void collect(const char *dir)
{
	DIR *d = opendir(dir);
	struct dirent *e;

	while (d && (e = readdir(d)) && n_blocks < BLOCKS_MAX) {
		char *path;

		if (e->d_name[0] == '.' || asprintf(&path, "%s/%s", dir, e->d_name) < 0)
			continue;
		if (e->d_type == DT_DIR) {
			collect(path);
		} else if (block_key_parse(e->d_name, &volume, &keys[n_blocks]) == 0) {
			paths[n_blocks++] = path;
			continue;
		}
		free(path);
	}
	if (d)
		(void)closedir(d);
}

static void die(const char *what)
{
	perror(what);
	exit(1);
}

/* --- bare --- */

static int listener;
static uint64_t server_cpu_us; /* atomic: of all its threads */

static void *bare_server(void *arg)
{
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	struct rusage ru = {0};

	(void)arg;
	if (fd < 0)
		die("accept");
	for (uint64_t r = 0; r < rounds; r++)
		for (size_t i = 0; i < n_blocks; i++) {
			int f = open(paths[i], O_RDONLY | O_CLOEXEC);
			off_t off = 0;

			while (off < keys[i].size) {
				ssize_t n = sendfile(fd, f, &off, keys[i].size - (size_t)off);

				if (n <= 0)
					die("sendfile");
			}
			(void)close(f);
		}
	(void)close(fd);
	(void)getrusage(RUSAGE_THREAD, &ru);
	__atomic_add_fetch(&server_cpu_us,
			   (uint64_t)(ru.ru_utime.tv_sec + ru.ru_stime.tv_sec) * 1000000 +
				   (uint64_t)(ru.ru_utime.tv_usec + ru.ru_stime.tv_usec),
			   __ATOMIC_RELAXED);
	return NULL;
}

static void *bare_reader(void *arg)
{
	const struct sockaddr_in *to = arg;
	unsigned char *buf = aligned_alloc(4096, FRAME_BLOCK_MAX);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	size_t at = 0;
	ssize_t n;

	if (!buf || fd < 0 || connect(fd, (const struct sockaddr *)to, sizeof(*to)) < 0)
		die("connect");
	while ((n = recv(fd, buf + at, (4 << 20) - at, 0)) > 0)
		at = (at + (size_t)n) % (4 << 20);
	(void)close(fd);
	free(buf);
	return NULL;
}

static void run_bare(uint64_t conns)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t len = sizeof(a);
	pthread_t s[CONNS_MAX], c[CONNS_MAX];

	listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (listener < 0 || bind(listener, (struct sockaddr *)&a, sizeof(a)) < 0 ||
	    listen(listener, CONNS_MAX) < 0 ||
	    getsockname(listener, (struct sockaddr *)&a, &len) < 0)
		die("listen");
	for (uint64_t i = 0; i < conns; i++)
		if (pthread_create(&s[i], NULL, bare_server, NULL) ||
		    pthread_create(&c[i], NULL, bare_reader, &a))
			die("thread");
	for (uint64_t i = 0; i < conns; i++) {
		(void)pthread_join(s[i], NULL);
		(void)pthread_join(c[i], NULL);
	}
}

/* --- daemon --- */

struct line { /* one connection: peers of its own, window calls in flight */
	struct loop *loop;
	struct peers *peers;
	struct peer *peer;
	uint64_t next, done, total;
	unsigned running;
	struct mtx lock;
	struct cond over;
	struct slot {
		struct peer_call call;
		struct line *line;
		struct block_key *key;
		struct loop_job again;
	} slot[WINDOW_MAX];
};

static void ask(struct slot *s);

static void again(struct loop_job *job)
{
	ask(container_of(job, struct slot, again));
}

static void got(struct peer_call *c, int status)
{
	struct slot *s = container_of(c, struct slot, call);
	struct line *l = s->line;

	if (status == 0 && (c->in_len != s->key->size + msg_sums_len(s->key->size) ||
			    block_sums_check(s->key, 0, c->in->mem, s->key->size,
					     c->in->mem + s->key->size, NULL) < 0))
		status = -EBADMSG;
	if (status < 0) {
		(void)fprintf(stderr, "wire: %s\n", strerror(-status));
		exit(1);
	}
	mtx_lock(&l->lock);
	l->done++;
	if (l->next >= l->total && --l->running == 0)
		cond_signal(&l->over);
	mtx_unlock(&l->lock);
	if (l->next < l->total)
		loop_post(l->loop, &s->again);
}

static void ask(struct slot *s)
{
	struct line *l = s->line;
	struct msg_get g = {.off = 0};
	struct buf *in = s->call.in;

	if (l->next >= l->total) {
		mtx_lock(&l->lock);
		if (--l->running == 0)
			cond_signal(&l->over);
		mtx_unlock(&l->lock);
		return;
	}
	s->key = &keys[l->next++ % n_blocks];
	block_key_to_msg(s->key, &g.key);
	g.len = s->key->size;
	s->call = (struct peer_call){.op = OP_GET,
				     .head_len = MSG_GET,
				     .in = in,
				     .in_cap = MIN(in->cap, in_size),
				     .fd = -1,
				     .done = got};
	(void)msg_get_encode(&g, s->call.head);
	peer_start(l->peer, &s->call, bulk);
}

static void run_daemon(uint64_t conns, char **argv)
{
	static struct line lines[CONNS_MAX];
	struct secret secret;
	struct str err = STR_INIT;
	struct pool *pool;
	uint64_t port;

	if (parse_u64(argv[1], 65535, &port) < 0 || secret_load(argv[3], &secret, &err) < 0 ||
	    pool_new((CONNS_MAX * WINDOW_MAX + 4) * pool_cost(FRAME_BLOCK_MAX + FRAME_SUMS_MAX),
		     FRAME_BLOCK_MAX + FRAME_SUMS_MAX, &pool) < 0)
		die("wire daemon: arguments");
	for (uint64_t i = 0; i < conns; i++) {
		struct line *l = &lines[i];
		struct peers_conf pc = {.id = {.role = ROLE_TOOL,
					       .volume = volume,
					       .group = argv[2],
					       .node = "wire",
					       .secret = &secret},
					.loops = &l->loop,
					.n_loops = 1};

		mtx_init(&l->lock);
		cond_init(&l->over);
		if (loop_new("wire", &l->loop) < 0 || peers_new(&pc, &l->peers) < 0 ||
		    !(l->peer = peers_get(l->peers, argv[0], (uint16_t)port)))
			die("peers");
		l->total = rounds * n_blocks;
		l->running = window;
		for (unsigned k = 0; k < window; k++) {
			size_t reserved = pool_cost(in_size);

			l->slot[k].line = l;
			l->slot[k].again.fn = again;
			if (pool_reserve(pool, POOL_DEMAND, reserved, NULL) < 0)
				die("pool");
			l->slot[k].call.in = pool_take(pool, POOL_DEMAND, in_size, &reserved);
			loop_post(l->loop, &l->slot[k].again);
		}
	}
	for (uint64_t i = 0; i < conns; i++) {
		mtx_lock(&lines[i].lock);
		while (lines[i].running)
			cond_wait(&lines[i].over, &lines[i].lock);
		mtx_unlock(&lines[i].lock);
	}
}

/* --- echo --- */

static size_t echo_ask, echo_answer;

static void echo_move(int fd, unsigned char *buf, size_t n, bool out)
{
	while (n > 0) {
		ssize_t r = out ? send(fd, buf, n, MSG_NOSIGNAL) : recv(fd, buf, n, 0);

		if (r <= 0)
			die("echo");
		n -= (size_t)r;
	}
}

static void *echo_server(void *arg)
{
	static unsigned char buf[ECHO_MAX];
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

	(void)arg;
	if (fd < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)) < 0)
		die("accept");
	for (uint64_t r = 0; r < rounds; r++) {
		echo_move(fd, buf, echo_ask, false);
		echo_move(fd, buf, echo_answer, true);
	}
	(void)close(fd);
	return NULL;
}

static int by_value(const void *a, const void *b)
{
	const uint32_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

static void run_echo(void)
{
	static unsigned char buf[ECHO_MAX];
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t len = sizeof(a);
	uint32_t *us = calloc(rounds, sizeof(*us));
	pthread_t t;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (!us || fd < 0 || listener < 0 || bind(listener, (struct sockaddr *)&a, len) < 0 ||
	    listen(listener, 1) < 0 || getsockname(listener, (struct sockaddr *)&a, &len) < 0 ||
	    pthread_create(&t, NULL, echo_server, NULL) ||
	    connect(fd, (struct sockaddr *)&a, len) < 0 ||
	    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)) < 0)
		die("echo");
	for (uint64_t i = 0; i < rounds; i++) {
		uint64_t t0 = clock_us();

		echo_move(fd, buf, echo_ask, true);
		echo_move(fd, buf, echo_answer, false);
		us[i] = (uint32_t)(clock_us() - t0);
	}
	(void)pthread_join(t, NULL);
	qsort(us, rounds, sizeof(*us), by_value);
	(void)printf("{\"p50_us\": %u, \"p99_us\": %u}\n", us[rounds / 2], us[rounds * 99 / 100]);
	free(us);
}

static int parse_hex(const char *s, uint8_t *out, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		unsigned v;

		if (sscanf(s + 2 * i, "%2x", &v) != 1)
			return -EINVAL;
		out[i] = (uint8_t)v;
	}
	return 0;
}

static void usage(void)
{
	(void)fprintf(stderr, "usage: wire bare DIR CONNS ROUNDS | wire daemon|small DIR CONNS "
			      "ROUNDS HOST PORT GROUP SECRET_FILE VOLUME_HEX | wire echo COUNT "
			      "ASK ANSWER\n");
	exit(2);
}

static int main_echo(char **argv)
{
	uint64_t ask = 0, answer = 0;

	if (parse_u64(argv[0], 1000000, &rounds) < 0 || parse_u64(argv[1], ECHO_MAX, &ask) < 0 ||
	    parse_u64(argv[2], ECHO_MAX, &answer) < 0 || rounds == 0)
		usage();
	echo_ask = ask;
	echo_answer = answer;
	run_echo();
	return 0;
}

static uint64_t own_cpu_us(void)
{
	struct rusage ru = {0};

	(void)getrusage(RUSAGE_SELF, &ru);
	return (uint64_t)(ru.ru_utime.tv_sec + ru.ru_stime.tv_sec) * 1000000 +
	       (uint64_t)(ru.ru_utime.tv_usec + ru.ru_stime.tv_usec);
}

int main(int argc, char **argv)
{
	bool small = argc == 10 && strcmp(argv[1], "small") == 0;
	bool daemon = small || (argc == 10 && strcmp(argv[1], "daemon") == 0);
	uint64_t conns = 0, start, bytes = 0;
	double s;

	if (argc == 5 && strcmp(argv[1], "echo") == 0)
		return main_echo(argv + 2);
	if ((!daemon && (argc != 5 || strcmp(argv[1], "bare") != 0)) ||
	    parse_u64(argv[3], CONNS_MAX, &conns) < 0 || conns == 0 ||
	    parse_u64(argv[4], 1000000, &rounds) < 0 ||
	    (daemon && parse_hex(argv[9], volume.b, sizeof(volume.b)) < 0))
		usage();
	if (small) {
		window = WINDOW_MAX;
		in_size = PEER_SMALL;
		bulk = false;
	}
	collect(argv[2]);
	if (n_blocks == 0) {
		(void)fprintf(stderr, "wire: no block files below %s\n", argv[2]);
		return 1;
	}
	for (size_t i = 0; i < n_blocks; i++)
		bytes += keys[i].size * rounds * conns;
	start = clock_us();
	if (daemon)
		run_daemon(conns, argv + 5);
	else
		run_bare(conns);
	s = (double)(clock_us() - start) / 1e6;
	(void)printf("{\"bytes\": %llu, \"seconds\": %.6f, \"mib_s\": %.1f, \"requests\": %llu, "
		     "\"server_cpu_us\": %llu, \"cpu_us\": %llu}\n",
		     (unsigned long long)bytes, s, (double)bytes / 1048576 / s,
		     (unsigned long long)(n_blocks * rounds * conns),
		     (unsigned long long)server_cpu_us, (unsigned long long)own_cpu_us());
	(void)fflush(stdout);
	_exit(0); /* the connections need no farewell */
}
