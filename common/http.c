/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP server for scrapers and probes: libevent's evhttp on a loop's base. Thread: the loop's;
 * http_new and http_free may be called from others, and wait for it. */
#include "common/http.h"

#include <event2/buffer.h>
#include <event2/http.h>
#include <netdb.h>
#include <sys/socket.h>

#include "common/parse.h"

enum { HTTP_TRIES = 100, HTTP_HEADER_BYTES = 16384, HTTP_BODY_BYTES = 4096, HTTP_TIMEOUT_S = 30 };

struct http {
	struct loop *loop;
	struct metrics *metrics;
	bool (*ready)(void *arg);
	void *arg;
	struct evhttp *server;
	int fd; /* until evhttp has it */
};

static void reply_text(struct evhttp_request *req, int code, const char *reason, const char *type,
		       const void *text, size_t n)
{
	struct evkeyvalq *headers = evhttp_request_get_output_headers(req);
	struct evbuffer *body = evbuffer_new();

	if (!body || evhttp_add_header(headers, "Content-Type", type) < 0 ||
	    evbuffer_add(body, text, n) < 0)
		evhttp_send_error(req, HTTP_INTERNAL, "out of memory");
	else
		evhttp_send_reply(req, code, reason, body);
	if (body)
		evbuffer_free(body);
}

static void reply_line(struct evhttp_request *req, int code, const char *reason, const char *line)
{
	reply_text(req, code, reason, "text/plain; charset=utf-8", line, strlen(line));
}

static void on_metrics(struct evhttp_request *req, void *arg)
{
	_cleanup_(str_fini) struct str out = STR_INIT;
	struct http *h = arg;

	metrics_print(h->metrics, &out);
	if (str_error(&out))
		evhttp_send_error(req, HTTP_INTERNAL, "out of memory");
	else
		reply_text(req, HTTP_OK, "OK", "text/plain; version=0.0.4; charset=utf-8",
			   str_c(&out), out.len);
}

static void on_healthz(struct evhttp_request *req, void *arg)
{
	(void)arg;
	reply_line(req, HTTP_OK, "OK", "ok\n");
}

static void on_readyz(struct evhttp_request *req, void *arg)
{
	struct http *h = arg;

	if (!h->ready || h->ready(h->arg))
		reply_line(req, HTTP_OK, "OK", "ready\n");
	else
		reply_line(req, HTTP_SERVUNAVAIL, "Service Unavailable", "not ready\n");
}

static int bind_one(const struct addrinfo *a)
{
	_cleanup_(closep) int fd = -1;
	const int on = 1;

	fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
	    bind(fd, a->ai_addr, a->ai_addrlen) < 0 || listen(fd, SOMAXCONN) < 0)
		return -errno;
	return TAKE_FD(fd);
}

/* a listening socket, or -errno */
static int bind_to(const char *host, uint16_t port)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
	struct addrinfo *all, *a;
	char number[8];
	int fd = -EADDRNOTAVAIL;

	snprintf(number, sizeof(number), "%u", port);
	if (getaddrinfo(host, number, &hints, &all))
		return -EADDRNOTAVAIL;
	for (a = all; a && fd < 0; a = a->ai_next)
		fd = bind_one(a);
	freeaddrinfo(all);
	return fd;
}

static int bind_next(const char *host, uint16_t first, bool exact, uint16_t *ret_port)
{
	struct sockaddr_storage sa;
	socklen_t len = sizeof(sa);
	char number[8];
	int fd = -EADDRINUSE;

	for (unsigned i = 0; fd == -EADDRINUSE && i < (exact ? 1 : HTTP_TRIES); i++) {
		if (first + i > UINT16_MAX)
			break;
		fd = bind_to(host, (uint16_t)(first + i));
	}
	if (fd < 0)
		return fd;
	/* port 0 was any */
	if (getsockname(fd, (struct sockaddr *)&sa, &len) < 0 ||
	    getnameinfo((struct sockaddr *)&sa, len, NULL, 0, number, sizeof(number),
			NI_NUMERICSERV) != 0) {
		close(fd);
		return -EIO;
	}
	*ret_port = (uint16_t)strtoul(number, NULL, 10);
	return fd;
}

static void http_start(void *arg)
{
	struct http *h = arg;

	h->server = evhttp_new(loop_base(h->loop));
	if (!h->server)
		return;
	evhttp_set_max_headers_size(h->server, HTTP_HEADER_BYTES);
	evhttp_set_max_body_size(h->server, HTTP_BODY_BYTES);
	evhttp_set_timeout(h->server, HTTP_TIMEOUT_S);
	evhttp_set_allowed_methods(h->server, EVHTTP_REQ_GET | EVHTTP_REQ_HEAD);
	if (evhttp_set_cb(h->server, "/metrics", on_metrics, h) < 0 ||
	    evhttp_set_cb(h->server, "/healthz", on_healthz, h) < 0 ||
	    evhttp_set_cb(h->server, "/readyz", on_readyz, h) < 0 ||
	    !evhttp_accept_socket_with_handle(h->server, h->fd)) {
		evhttp_free(TAKE_PTR(h->server));
		return;
	}
	TAKE_FD(h->fd);
}

static void http_stop(void *arg)
{
	struct http *h = arg;

	if (h->server)
		evhttp_free(h->server);
}

int http_new(struct loop *l, const char *addr, bool exact, struct metrics *m,
	     bool (*ready)(void *arg), void *arg, struct http **ret, uint16_t *ret_port)
{
	struct http *h;
	char host[256];
	uint16_t port;
	int r = parse_host_port(addr, host, sizeof(host), &port);

	if (r < 0)
		return r;
	h = calloc(1, sizeof(*h));
	if (!h)
		return -ENOMEM;
	*h = (struct http){.loop = l, .metrics = m, .ready = ready, .arg = arg};
	h->fd = bind_next(host, port, exact, &port);
	r = h->fd;
	if (r >= 0) {
		loop_run_sync(l, http_start, h);
		r = h->server ? 0 : -ENOMEM;
	}
	if (r < 0) {
		closep(&h->fd);
		free(h);
		return r;
	}
	*ret = h;
	*ret_port = port;
	return 0;
}

void http_free(struct http *h)
{
	if (!h)
		return;
	loop_run_sync(h->loop, http_stop, h);
	free(h);
}
