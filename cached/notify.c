/* SPDX-License-Identifier: Apache-2.0 */
/* The service manager's side of the environment. Main's thread. */
#include "cached/notify.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "common/parse.h"

static const char OURS[] = "STOKE_SOCKETS", INDEX[] = "STOKE_INDEX";

void notify(const char *text)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	size_t n = path ? strlen(path) : 0;
	_cleanup_(closep) int fd = -1;

	if (n < 2 || n >= sizeof(a.sun_path) || (path[0] != '/' && path[0] != '@'))
		return;
	memcpy(a.sun_path, path, n);
	if (path[0] == '@') /* an abstract name */
		a.sun_path[0] = 0;
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	/* nobody is told when this fails: it is the manager who would be */
	if (fd >= 0)
		(void)sendto(fd, text, strlen(text), MSG_NOSIGNAL, (struct sockaddr *)&a,
			     (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n));
}

static bool for_us(const char *pid_name)
{
	const char *s = getenv(pid_name);
	uint64_t pid;

	return s && parse_u64(s, INT32_MAX, &pid) == 0 && (pid_t)pid == getpid();
}

uint64_t notify_watchdog_us(void)
{
	const char *s = getenv("WATCHDOG_USEC");
	uint64_t us;

	if (!s || parse_u64(s, UINT64_MAX, &us) < 0 ||
	    (getenv("WATCHDOG_PID") && !for_us("WATCHDOG_PID")))
		return 0;
	return us / 2;
}

static unsigned ours(const char *s, int *ret, unsigned max)
{
	unsigned n = 0;

	while (n < max && *s) {
		char one[12];
		size_t len = strcspn(s, ",");
		uint64_t fd;

		if (len >= sizeof(one))
			break;
		memcpy(one, s, len);
		one[len] = 0;
		if (parse_u64(one, INT32_MAX, &fd) < 0)
			break;
		ret[n++] = (int)fd;
		s += len + (s[len] == ',');
	}
	return n;
}

unsigned notify_sockets(int *ret, unsigned max, bool *ret_ours)
{
	const char *s = getenv(OURS);
	uint64_t count = 0;
	unsigned n = 0;

	*ret_ours = s != NULL;
	if (s) {
		n = ours(s, ret, max);
	} else if (for_us("LISTEN_PID") && getenv("LISTEN_FDS") &&
		   parse_u64(getenv("LISTEN_FDS"), max, &count) == 0) {
		for (; n < count; n++)
			ret[n] = 3 + (int)n;
	}
	(void)unsetenv(OURS);
	(void)unsetenv("LISTEN_PID");
	(void)unsetenv("LISTEN_FDS");
	(void)unsetenv("LISTEN_FDNAMES");
	return n;
}

int notify_index(void)
{
	const char *s = getenv(INDEX);
	uint64_t fd;
	bool given = s && parse_u64(s, INT32_MAX, &fd) == 0;

	(void)unsetenv(INDEX);
	return given ? (int)fd : -1;
}

static int give_index(int fd)
{
	char text[12];

	(void)snprintf(text, sizeof(text), "%d", fd);
	return fcntl(fd, F_SETFD, 0) < 0 || setenv(INDEX, text, 1) < 0 ? -errno : 0;
}

int notify_give(const int *fd, unsigned n, int index_fd)
{
	char text[128];
	int len = 0;

	/* They all have it already, but what a library may have opened; kernels before 5.11 cannot.
	 * That is no reason to stop here: nothing accepts any more. */
	(void)syscall(SYS_close_range, 3, ~0U, CLOSE_RANGE_CLOEXEC);
	if (index_fd >= 0 && give_index(index_fd) < 0)
		return -errno;
	for (unsigned i = 0; i < n; i++) {
		if (fcntl(fd[i], F_SETFD, 0) < 0)
			return -errno;
		len += snprintf(text + len, sizeof(text) - (size_t)len, "%s%d", i ? "," : "",
				fd[i]);
		if (len >= (int)sizeof(text))
			return -ENOSPC;
	}
	return n && setenv(OURS, text, 1) < 0 ? -errno : 0;
}
