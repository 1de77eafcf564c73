/* SPDX-License-Identifier: Apache-2.0 */
/* Connecting a socket within a given time, which is for all of a name's addresses together. Any
 * thread that may block. */
#include "common/redis_url.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "common/clock.h"
#include "common/fiber.h"

static int connect_wait(int fd, const struct sockaddr *sa, socklen_t len, uint64_t deadline_us)
{
	socklen_t n = sizeof(int);
	int e = 0, r;

	if (connect(fd, sa, len) == 0)
		return 0;
	if (errno != EINPROGRESS) /* EAGAIN: a unix socket whose backlog is full */
		return errno == EAGAIN ? -ECONNREFUSED : -errno;
	do {
		uint64_t left = clock_left(deadline_us);

		if (!left)
			return -ETIMEDOUT;
		left = MIN(left, (uint64_t)60000000);
		r = fiber_poll(fd, POLLOUT, (int)DIV_UP(left, 1000));
	} while (r == 0 || (r < 0 && errno == EINTR));
	if (r < 0)
		return -errno;
	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &n) < 0)
		return -errno;
	return -e;
}

static int connect_to(const struct sockaddr *sa, socklen_t len, uint64_t deadline_us, int *ret_fd)
{
	_cleanup_(closep) int fd = -1;
	const int on = 1;
	int r;

	fd = socket(sa->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	r = connect_wait(fd, sa, len, deadline_us);
	if (r < 0)
		return r;
	if (sa->sa_family != AF_UNIX) {
		(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
		(void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	}
	*ret_fd = TAKE_FD(fd);
	return 0;
}

static int connect_unix(const char *path, uint64_t deadline_us, int *ret_fd)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};

	memcpy(un.sun_path, path, strlen(path)); /* redis_url_parse checked that it fits */
	return connect_to((const struct sockaddr *)&un, sizeof(un), deadline_us, ret_fd);
}

static int connect_tcp(const struct redis_addr *to, uint64_t deadline_us, int *ret_fd,
		       struct str *why)
{
	const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
	struct addrinfo *all, *a;
	char port[8];
	int r;

	snprintf(port, sizeof(port), "%u", to->port);
	fiber_blocks(); /* for a name that is looked up */
	r = getaddrinfo(to->host, port, &hints, &all);
	if (r) {
		if (why)
			str_add(why, gai_strerror(r));
		return -ECONNREFUSED; /* as far as the caller goes: not there now, perhaps later */
	}
	r = -ECONNREFUSED;
	for (a = all; a; a = a->ai_next) {
		r = connect_to(a->ai_addr, a->ai_addrlen, deadline_us, ret_fd);
		if (r == 0 || r == -ETIMEDOUT)
			break;
	}
	freeaddrinfo(all);
	return r;
}

int redis_connect_fd(const char *path, const struct redis_addr *a, uint64_t deadline_us,
		     int *ret_fd, struct str *why)
{
	size_t before = why ? why->len : 0;
	int r;

	if (path)
		r = connect_unix(path, deadline_us, ret_fd);
	else
		r = connect_tcp(a, deadline_us, ret_fd, why);
	if (r < 0 && why && why->len == before)
		str_add(why, strerror(-r));
	/* no route, no socket file: all mean that nobody is there */
	if (r == -ENOENT || r == -EHOSTUNREACH || r == -ENETUNREACH)
		r = -ECONNREFUSED;
	return r;
}
