/* SPDX-License-Identifier: Apache-2.0 */
/* stoke-cached: options, background, the wait for the end. Main's thread alone; every other thread
 * blocks signals. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "cached/daemon.h"
#include "common/log.h"
#include "common/redis.h"

enum { EXIT_USAGE = 2 };

static const struct conf_option options[] = {
#define OPTION(member, name, letter, type, dflt, env, help)                                        \
	{name, letter, CONF_##type, offsetof(struct daemon_conf, member), dflt, env, help},
#include "cached/conf.def"
#undef OPTION
};

static const struct conf_table table = {
	.options = options,
	.n = ARRAY_LEN(options),
	.usage = "stoke-cached [options] META",
	.summary = "keep blocks of the volume META (a Redis URL) on this node's disks, and serve "
		   "them to its cache group",
	.min_args = 0,
	.max_args = 1,
};

static int complain(const char *what)
{
	(void)fprintf(stderr, "stoke-cached: %s\n", what);
	return 1;
}

/* what one option says about another; NULL: fine */
static const char *check(const struct daemon_conf *c, size_t n_args)
{
	if (n_args != 1)
		return "META is missing: the Redis URL of the volume (see --help)";
	if (!c->cache_dir || !*c->cache_dir)
		return "--cache-dir is missing: the directories for blocks (see --help)";
	if (c->private && c->cache_group)
		return "--private is without a group: leave --cache-group away";
	if (!c->cache_group && !c->socket)
		return "nobody could ask: give --cache-group, or --socket, or both";
	if (c->group_port > 65535)
		return "--group-port must be at most 65535";
	if (c->no_sharing && (!c->cache_group || !c->socket))
		return "--no-sharing reads through a group for the mounts of this node: give "
		       "--cache-group and --socket";
	if (c->sub_group && (!c->cache_group || !*c->sub_group || strlen(c->sub_group) > 63 ||
			     strpbrk(c->sub_group, " \t\n")))
		return "--sub-group is for members of a --cache-group, and a name of at most 63 "
		       "letters without blanks";
	if (c->group_weight > 100000)
		return "--group-weight must be at most 100000";
	return NULL;
}

/* --- background --- */

/* The child goes on with the writing end of a pipe, the parent waits for a byte from it: then the
 * child is ready. Returns that end, or ends the parent with the child's exit status; -errno. */
static int to_background(void)
{
	int p[2], status;
	ssize_t n;
	char byte;
	pid_t pid;

	if (pipe2(p, O_CLOEXEC) < 0)
		return -errno;
	pid = fork();
	if (pid < 0)
		return -errno;
	if (pid == 0) {
		(void)close(p[0]);
		(void)setsid();
		return p[1];
	}
	(void)close(p[1]);
	do
		n = read(p[0], &byte, 1);
	while (n < 0 && errno == EINTR);
	if (n == 1)
		_exit(0);
	if (waitpid(pid, &status, 0) < 0) /* it has ended, and said why */
		_exit(1);
	_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

static void detach(bool keep_stdin)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (null < 0)
		return;
	for (int fd = keep_stdin ? 1 : 0; fd <= 2; fd++)
		(void)dup2(null, fd);
	if (null > 2)
		(void)close(null);
}

/* --- the wait --- */

static int block_signals(void)
{
	sigset_t set;

	(void)signal(SIGPIPE, SIG_IGN);
	(void)sigemptyset(&set);
	(void)sigaddset(&set, SIGTERM);
	(void)sigaddset(&set, SIGINT);
	(void)sigaddset(&set, SIGHUP);
	if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
		return -errno;
	return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* true when standard input has ended */
static bool input_ended(void)
{
	char buf[256];
	ssize_t n = read(STDIN_FILENO, buf, sizeof(buf));

	return n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN);
}

static void wait_for_end(struct daemon *d, int signals, bool private)
{
	struct pollfd p[2] = {
		{.fd = signals, .events = POLLIN},
		{.fd = private ? STDIN_FILENO : -1, .events = POLLIN},
	};
	struct signalfd_siginfo s;

	for (;;) {
		if (poll(p, 2, -1) < 0)
			continue;
		if (p[0].revents && read(signals, &s, sizeof(s)) == sizeof(s)) {
			if (s.ssi_signo == SIGHUP) { /* or the terminal went away */
				log_info("signal %u: reading the configuration again", s.ssi_signo);
				daemon_reload(d);
				continue;
			}
			log_info("signal %u: stopping", s.ssi_signo);
			return;
		}
		if (p[1].revents && input_ended()) {
			log_info("the mount has ended: stopping");
			return;
		}
	}
}

static int serve(const struct daemon_conf *conf, const char *meta, int ready_fd)
{
	int signals = block_signals(), r;
	struct str err = STR_INIT;
	struct daemon *d;

	if (signals < 0)
		return complain(strerror(-signals));
	r = daemon_start(conf, meta, &d, &err);
	if (r < 0) {
		(void)complain(err.len ? str_c(&err) : strerror(-r));
		str_fini(&err);
		return 1;
	}
	str_fini(&err);
	if (ready_fd >= 0) {
		detach(conf->private);
		if (write(ready_fd, "", 1) < 0)
			log_warn("whoever started the daemon did not wait for it");
		(void)close(ready_fd);
	}
	wait_for_end(d, signals, conf->private);
	r = daemon_is_replaced(d);
	if (!daemon_stop(d)) {
		log_warn("requests were still under way after the time allowed for them");
		_exit(r);
	}
	log_info("stopped");
	return r;
}

int main(int argc, char **argv)
{
	struct daemon_conf conf = {0};
	struct str err = STR_INIT;
	const char *wrong;
	char **args, *meta;
	size_t n_args;
	int r = conf_parse(&table, &conf, argc, argv, &args, &n_args, &err), ready_fd = -1;

	if (r < 0) {
		(void)complain(str_c(&err));
		str_fini(&err);
		return EXIT_USAGE;
	}
	if (r > 0)
		return 0;
	if (conf.version) {
		(void)printf("stoke-cached %s\n", STOKE_VERSION);
		conf_fini(&table, &conf);
		return 0;
	}
	wrong = check(&conf, n_args);
	if (wrong) {
		(void)complain(wrong);
		conf_fini(&table, &conf);
		return EXIT_USAGE;
	}
	meta = strdup(args[0]);
	redis_blank_password(args[0]);
	log_init("stoke-cached", conf.verbose ? LOG_LVL_DEBUG : LOG_LVL_INFO);
	(void)umask(077);
	r = meta ? 0 : -ENOMEM;
	if (r == 0 && conf.background)
		r = ready_fd = to_background();
	if (r >= 0 && conf.log)
		r = log_to_file(conf.log);
	if (r < 0)
		r = complain(strerror(-r));
	else
		r = serve(&conf, meta, ready_fd);
	free(meta);
	conf_fini(&table, &conf);
	return r;
}
