/* SPDX-License-Identifier: Apache-2.0 */
/* The child of --cache-dir and the thread that minds it.
 *
 *	state		until
 *	STARTING	its socket accepts, or it ends, or it takes too long: the mount fails
 *	RUNNING		it ends: started again after a pause that doubles up to a minute, and is
 *			short again once it ran for a minute
 *	stop		its standard input is closed; waited for, killed when it does not end
 *
 * Between fork and exec only async-signal-safe calls are made: arguments and environment are ready
 * before. */
#include "client/private.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/redis.h"
#include "common/thread.h"

enum {
	START_US = 60000000,
	PAUSE_MIN_US = 500000,
	PAUSE_MAX_US = 60000000,
	GOOD_RUN_US = 60000000,
	END_US = 30000000,
	ARGS_MAX = 20,
	PATH_LEN = 108,
};

struct private
{
	char dir[PATH_LEN / 2], socket[PATH_LEN];
	char program[PATH_MAX];
	char *meta, *password_env, *cache_dir, *log;
	char size[32], ratio[32];
	const char *argv[ARGS_MAX]; /* as execvpe takes them, who does not change them */
	char **envp;
	pid_t pid;
	int pidfd, alive; /* alive: the child's standard input, our end */
	int here;	  /* where relative paths begin, for later starts too */
	int stop[2];	  /* a byte: the thread is to end */
	pthread_t thread;
	bool threaded;
};

/* --- what it is started with --- */

/* beside this program, else in PATH */
static void find_program(char ret[PATH_MAX])
{
	ssize_t n = readlink("/proc/self/exe", ret, PATH_MAX - 16);
	char *slash;

	if (n > 0) {
		ret[n] = 0;
		slash = strrchr(ret, '/');
		if (slash) {
			memcpy(slash + 1, "stoke-cached", sizeof("stoke-cached"));
			if (access(ret, X_OK) == 0)
				return;
		}
	}
	memcpy(ret, "stoke-cached", sizeof("stoke-cached"));
}

/* The URL without its password, which goes to the environment: arguments can be read by
 * everybody. */
static int split_password(struct private *p, const char *url)
{
	const char *scheme = strstr(url, "://"), *at, *colon;
	struct str meta = STR_INIT, env = STR_INIT;

	scheme = scheme ? scheme + 3 : url;
	at = strrchr(scheme, '@');
	colon = at ? memchr(scheme, ':', (size_t)(at - scheme)) : NULL;
	if (!colon) {
		p->meta = strdup(url);
		return p->meta ? 0 : -ENOMEM;
	}
	str_addn(&meta, url, (size_t)(colon - url));
	/* without a user nothing is left before the @ */
	str_add(&meta, colon == scheme ? at + 1 : at);
	str_add(&env, "REDIS_PASSWORD=");
	for (const char *c = colon + 1; c < at; c++) {
		unsigned byte;

		if (*c == '%' && at - c > 2 && sscanf(c + 1, "%2x", &byte) == 1) {
			str_addn(&env, &(char){(char)byte}, 1);
			c += 2;
		} else {
			str_addn(&env, c, 1);
		}
	}
	p->meta = str_take(&meta);
	p->password_env = str_take(&env);
	return p->meta && p->password_env ? 0 : -ENOMEM;
}

static int make_env(struct private *p)
{
	size_t n = 0, out = 0;

	while (environ[n])
		n++;
	p->envp = calloc(n + 2, sizeof(*p->envp));
	if (!p->envp)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		if (!p->password_env || strncmp(environ[i], "REDIS_PASSWORD=", 15) != 0)
			p->envp[out++] = environ[i];
	}
	if (p->password_env)
		p->envp[out] = p->password_env;
	return 0;
}

static int make_arguments(struct private *p, const struct private_conf *conf)
{
	const char *args[] = {
		p->program,   p->meta,	      "--private", "--cache-dir",
		p->cache_dir, "--cache-size", p->size,	   "--free-space-ratio",
		p->ratio,     "--socket",     p->socket,   "--metrics",
		"none",	      "--config",     "none",
	};

	memcpy(p->argv, args, sizeof(args));
	if (conf->log) {
		p->argv[ARRAY_LEN(args)] = "--log";
		p->argv[ARRAY_LEN(args) + 1] = p->log;
	}
	return make_env(p);
}

/* --- starting --- */

static void child(const struct private *p, int in)
{
	sigset_t none;

	(void)dup2(in, STDIN_FILENO);
	if (fchdir(p->here) < 0)
		_exit(126);
	/* in a session of its own a ^C at the terminal is the mount's alone */
	(void)setsid();
	sigemptyset(&none);
	(void)sigprocmask(SIG_SETMASK, &none, NULL);
	(void)signal(SIGPIPE, SIG_DFL);
	execvpe(p->program, (char *const *)(uintptr_t)p->argv, p->envp);
	_exit(127);
}

static int spawn(struct private *p)
{
	int fd[2];

	if (pipe2(fd, O_CLOEXEC) < 0)
		return -errno;
	p->pid = fork();
	if (p->pid == 0)
		child(p, fd[0]);
	(void)close(fd[0]);
	if (p->pid < 0) {
		(void)close(fd[1]);
		return -EAGAIN;
	}
	p->alive = fd[1];
	p->pidfd = (int)syscall(SYS_pidfd_open, p->pid, 0);
	return p->pidfd < 0 ? -errno : 0;
}

/* the child has ended or is to end now: its status, by waitpid */
static int reap(struct private *p, uint64_t patience_us)
{
	struct pollfd pf = {.fd = p->pidfd, .events = POLLIN};
	int status = 0;

	if (p->alive >= 0)
		(void)close(TAKE_FD(p->alive));
	if (p->pid <= 0)
		return 0;
	if (p->pidfd < 0 || poll(&pf, 1, (int)(patience_us / 1000)) == 0)
		(void)kill(p->pid, SIGKILL);
	while (waitpid(p->pid, &status, 0) < 0 && errno == EINTR)
		;
	if (p->pidfd >= 0)
		(void)close(TAKE_FD(p->pidfd));
	p->pid = 0;
	return status;
}

static bool listens(const struct private *p)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	_cleanup_(closep) int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	memcpy(un.sun_path, p->socket, sizeof(un.sun_path));
	return fd >= 0 && connect(fd, (const struct sockaddr *)&un, sizeof(un)) == 0;
}

static int wait_listen(struct private *p, struct str *err)
{
	uint64_t until = clock_us() + START_US;
	struct pollfd pf = {.fd = p->pidfd, .events = POLLIN};
	int status;

	while (!listens(p)) {
		if (poll(&pf, 1, 20) == 1) {
			status = reap(p, 0);
			str_addf(err,
				 "the private stoke-cached (%s) ended at once with status %d%s",
				 p->program,
				 WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
				 WIFEXITED(status) && WEXITSTATUS(status) == 127
					 ? ": it was not found"
					 : ": see its line above, or in the log");
			return -ECHILD;
		}
		if (clock_us() > until) {
			str_addf(err, "the private stoke-cached does not listen after %d s",
				 START_US / 1000000);
			return -ETIMEDOUT;
		}
	}
	return 0;
}

/* --- minding --- */

/* true: told to stop within us */
static bool stopped(struct private *p, uint64_t us)
{
	struct pollfd pf = {.fd = p->stop[0], .events = POLLIN};

	return poll(&pf, 1, (int)(us / 1000)) != 0;
}

static void *mind(void *arg)
{
	struct private *p = arg;
	uint64_t pause = PAUSE_MIN_US, began = clock_us();

	for (;;) {
		struct pollfd pf[] = {{.fd = p->stop[0], .events = POLLIN},
				      {.fd = p->pidfd, .events = POLLIN}};
		int n = poll(pf, p->pidfd >= 0 ? 2 : 1, p->pidfd >= 0 ? -1 : 0), status;

		if (n < 0 && errno != EINTR)
			return NULL;
		if (n < 0)
			continue;
		if (pf[0].revents)
			return NULL;
		status = reap(p, 0);
		if (clock_us() - began > GOOD_RUN_US)
			pause = PAUSE_MIN_US;
		log_warn("the private stoke-cached ended (status %d): reading from the object "
			 "store until it runs again, in %.1f s",
			 WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
			 (double)pause / 1e6);
		if (stopped(p, pause))
			return NULL;
		pause = MIN(pause * 2, (uint64_t)PAUSE_MAX_US);
		began = clock_us();
		if (spawn(p) < 0)
			log_error("cannot start the private stoke-cached");
	}
}

/* --- life --- */

static int make_dir(struct private *p)
{
	const char *base = access("/run", W_OK) == 0 ? "/run" : "/tmp";

	snprintf(p->dir, sizeof(p->dir), "%s/stoke-XXXXXX", base);
	if (!mkdtemp(p->dir)) {
		p->dir[0] = 0;
		return -errno;
	}
	snprintf(p->socket, sizeof(p->socket), "%s/cached.sock", p->dir);
	return 0;
}

static int prepare(struct private *p, const struct private_conf *conf)
{
	int r = make_dir(p);

	if (r == 0)
		r = split_password(p, conf->meta);
	if (r < 0)
		return r;
	find_program(p->program);
	snprintf(p->size, sizeof(p->size), "%" PRIu64, MAX(conf->cache_bytes >> 20, UINT64_C(1)));
	snprintf(p->ratio, sizeof(p->ratio), "%g", conf->free_space_ratio);
	p->cache_dir = strdup(conf->cache_dir);
	p->log = conf->log ? strdup(conf->log) : NULL;
	if (!p->cache_dir || (conf->log && !p->log))
		return -ENOMEM;
	p->here = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (p->here < 0 || pipe2(p->stop, O_CLOEXEC) < 0)
		return -errno;
	return make_arguments(p, conf);
}

int private_new(const struct private_conf *conf, struct private **ret, struct str *err)
{
	struct private *p = calloc(1, sizeof(*p));
	int r;

	if (!p)
		return -ENOMEM;
	p->pidfd = p->alive = p->here = p->stop[0] = p->stop[1] = -1;
	r = prepare(p, conf);
	if (r == 0)
		r = spawn(p);
	if (r < 0)
		str_addf(err, "cannot start a private stoke-cached: %s", strerror(-r));
	else
		r = wait_listen(p, err);
	if (r == 0)
		r = thread_start("private", mind, p, &p->thread);
	p->threaded = r == 0;
	if (r < 0) {
		private_free(p);
		return r;
	}
	*ret = p;
	return 0;
}

const char *private_socket(const struct private *p)
{
	return p->socket;
}

void private_free(struct private *p)
{
	if (!p)
		return;
	if (p->threaded) {
		if (write(p->stop[1], "1", 1) < 0)
			log_warn("pipe: %s", strerror(errno));
		(void)pthread_join(p->thread, NULL);
	}
	(void)reap(p, END_US);
	closep(&p->here);
	for (int i = 0; i < 2; i++)
		closep(&p->stop[i]);
	if (p->dir[0]) {
		(void)unlink(p->socket);
		(void)rmdir(p->dir);
	}
	free(p->meta);
	free(p->password_env);
	free(p->cache_dir);
	free(p->log);
	free(p->envp);
	free(p);
}
