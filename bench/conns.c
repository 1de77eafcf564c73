/* SPDX-License-Identifier: Apache-2.0 */
/* What a connection costs a daemon: opens many, proves on each that it belongs to the group, keeps
 * them, and prints the memory of the daemon's process before and after. One thread. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "common/block/hello.h"
#include "common/clock.h"
#include "common/parse.h"

enum { ADDRESSES = 16, WAIT_MS = 10000 };

static void die(const char *what)
{
	(void)fprintf(stderr, "conns: %s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t rss_kib(uint64_t pid)
{
	char path[64], line[256];
	unsigned long long kib = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%llu/status", (unsigned long long)pid);
	f = fopen(path, "re");
	if (!f)
		die(path);
	while (fgets(line, sizeof(line), f))
		(void)sscanf(line, "VmRSS: %llu", &kib);
	fclose(f);
	return kib;
}

struct line {
	int fd;
	struct tls *tls;
};

static void wait_for(const struct line *l, bool write)
{
	struct pollfd p = {.fd = l->fd, .events = write ? POLLOUT : POLLIN};

	if (poll(&p, 1, WAIT_MS) <= 0)
		die("the daemon does not answer");
}

static void put(const struct line *l, const uint8_t *p, size_t n)
{
	const struct iovec v = {.iov_base = (void *)(uintptr_t)p, .iov_len = n};
	ssize_t r = l->tls ? tls_send(l->tls, &v, 1) : send(l->fd, p, n, MSG_NOSIGNAL);

	if (r != (ssize_t)n) /* a few bytes on an empty socket */
		die("send");
}

static void get(const struct line *l, uint8_t *p, size_t n)
{
	while (n > 0) {
		ssize_t r = l->tls ? tls_recv(l->tls, p, n) : recv(l->fd, p, n, MSG_DONTWAIT);

		if (r == -EAGAIN || (r < 0 && !l->tls && errno == EAGAIN)) {
			wait_for(l, false);
			continue;
		}
		if (r <= 0)
			die("closed by the daemon");
		p += r;
		n -= (size_t)r;
	}
}

static size_t ask(const struct line *l, uint8_t op, const uint8_t *body, size_t n, uint8_t *answer)
{
	uint8_t b[FRAME_HEADER + MSG_HELLO_MAX];
	struct frame f = {.version = FRAME_VERSION, .op = op, .id = 1, .body_len = (uint32_t)n};

	frame_encode(&f, b);
	memcpy(b + FRAME_HEADER, body, n);
	put(l, b, FRAME_HEADER + n);
	get(l, b, FRAME_HEADER);
	if (frame_decode(b, FRAME_HEADER, 1, &f) < 0 || f.body_len > FRAME_SMALL_MAX)
		die("no answer of ours");
	get(l, answer, f.body_len);
	if (f.status != ST_OK) {
		(void)fprintf(stderr, "conns: %s\n", status_name(f.status));
		exit(1);
	}
	return f.body_len;
}

static void line_open(struct line *l, uint64_t i, uint16_t port, struct tls_ctx *ctx)
{
	struct sockaddr_in a = {.sin_family = AF_INET,
				.sin_addr.s_addr = htonl(0x7f000002 + (uint32_t)(i % ADDRESSES))};
	int r;

	l->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	(void)setsockopt(l->fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
	if (l->fd < 0 || bind(l->fd, (struct sockaddr *)&a, sizeof(a)) < 0)
		die("socket");
	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	a.sin_port = htons(port);
	if (connect(l->fd, (struct sockaddr *)&a, sizeof(a)) < 0)
		die("connect");
	if (!ctx)
		return;
	if (fcntl(l->fd, F_SETFL, O_NONBLOCK) < 0 || tls_new(ctx, l->fd, false, &l->tls) < 0)
		die("TLS");
	while ((r = tls_handshake(l->tls)) == -EAGAIN)
		wait_for(l, tls_wants_write(l->tls));
	if (r < 0) {
		(void)fprintf(stderr, "conns: %s\n", tls_error(l->tls));
		exit(1);
	}
}

static void line_prove(struct line *l, struct hello_id id)
{
	uint8_t body[MSG_HELLO_MAX], answer[FRAME_SMALL_MAX], proof[MSG_HMAC], binding[TLS_BINDING];
	struct hello_state st;
	size_t n;

	if (l->tls && tls_binding(l->tls, binding) == 0)
		id.binding = binding;
	n = ask(l, OP_HELLO, body, hello_ask(&id, &st, body), answer);
	if (hello_prove(&id, &st, answer, n, proof) < 0)
		die("the daemon's proof");
	(void)ask(l, OP_PROOF, proof, sizeof(proof), answer);
}

int main(int argc, char **argv)
{
	struct hello_id id = {.role = ROLE_TOOL, .node = "conns"};
	struct rlimit rl;
	struct secret secret = {0};
	struct str err = STR_INIT;
	struct tls_ctx *ctx = NULL;
	uint64_t port, pid, n, before, start;
	struct line *lines;

	if ((argc != 7 && argc != 10) || parse_u64(argv[1], 65535, &port) < 0 ||
	    parse_u64(argv[5], INT32_MAX, &pid) < 0 || parse_u64(argv[6], 1000000, &n) < 0) {
		(void)fprintf(stderr, "usage: conns PORT GROUP SECRET_FILE VOLUME_HEX PID N "
				      "[CERT KEY CA]\n");
		return 2;
	}
	(void)signal(SIGPIPE, SIG_IGN);
	for (size_t i = 0; i < sizeof(id.volume.b); i++)
		if (sscanf(argv[4] + 2 * i, "%2hhx", &id.volume.b[i]) != 1)
			die("VOLUME_HEX");
	if (getrlimit(RLIMIT_NOFILE, &rl) == 0) {
		rl.rlim_cur = rl.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &rl);
	}
	lines = calloc(n, sizeof(*lines));
	if (!lines || secret_load(argv[3], &secret, &err) < 0 ||
	    (argc == 10 &&
	     tls_ctx_new(&(struct tls_files){argv[7], argv[8], argv[9], NULL}, &ctx, &err) < 0))
		die(str_c(&err));
	id.group = argv[2];
	id.secret = &secret;
	before = rss_kib(pid);
	start = clock_us();
	for (uint64_t i = 0; i < n; i++) {
		line_open(&lines[i], i, (uint16_t)port, ctx);
		line_prove(&lines[i], id);
	}
	printf("{\"connections\": %llu, \"before_mib\": %.1f, \"after_mib\": %.1f, "
	       "\"bytes_each\": %.0f, \"each_us\": %.1f}\n",
	       (unsigned long long)n, (double)before / 1024, (double)rss_kib(pid) / 1024,
	       (double)(rss_kib(pid) - before) * 1024 / (double)n,
	       (double)(clock_us() - start) / (double)n);
	return 0;
}
