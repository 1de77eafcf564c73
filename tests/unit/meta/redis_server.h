/* SPDX-License-Identifier: Apache-2.0 */
/* A real redis-server of the test's own, on a unix socket in a temporary directory; it keeps
 * nothing on disk and ends with the test. */
#ifndef STOKE_TESTS_UNIT_META_REDIS_SERVER_H
#define STOKE_TESTS_UNIT_META_REDIS_SERVER_H

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/redis.h"

struct redis_server {
	pid_t pid;
	char dir[64], url[128];
};

static inline void redis_server_exec(const char *dir)
{
	char path[96];
	int null = open("/dev/null", O_RDWR);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dup2(null, 0);
	dup2(null, 1);
	dup2(null, 2);
	snprintf(path, sizeof(path), "%s/redis.sock", dir);
	execlp("redis-server", "redis-server", "--port", "0", "--unixsocket", path, "--save", "",
	       "--appendonly", "no", "--dir", dir, (char *)NULL);
	_exit(127);
}

/* the socket is there a moment before the server listens on it */
static inline bool redis_server_answers(const char *path)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	bool ok;

	snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	ok = fd >= 0 && connect(fd, (const struct sockaddr *)(const void *)&a, sizeof(a)) == 0;
	if (fd >= 0)
		close(fd);
	return ok;
}

/* 0, or -1 when there is no redis-server here */
static inline int redis_server_start(struct redis_server *s)
{
	char path[96];
	int status;

	snprintf(s->dir, sizeof(s->dir), "/tmp/stoke-test-XXXXXX");
	if (!mkdtemp(s->dir))
		return -1;
	snprintf(path, sizeof(path), "%s/redis.sock", s->dir);
	snprintf(s->url, sizeof(s->url), "unix://%s?db=1", path);
	s->pid = fork();
	if (s->pid == 0)
		redis_server_exec(s->dir);
	for (int i = 0; i < 500; i++) {
		if (redis_server_answers(path))
			return 0;
		if (waitpid(s->pid, &status, WNOHANG) == s->pid)
			break;
		usleep(10000);
	}
	return -1;
}

static inline void redis_server_stop(struct redis_server *s)
{
	char path[96];

	kill(s->pid, SIGKILL);
	waitpid(s->pid, NULL, 0);
	snprintf(path, sizeof(path), "%s/redis.sock", s->dir);
	unlink(path);
	rmdir(s->dir);
}

#endif
