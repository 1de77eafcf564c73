/* SPDX-License-Identifier: Apache-2.0 */
/* stoke-cached: options, background, the wait for the end. Main's thread alone; every other thread
 * blocks signals. */
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "cached/daemon.h"
#include "cached/notify.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/redis.h"

enum { EXIT_USAGE = 2, CHECK_US = 10000000 };

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
	.env_prefix = "STOKE_CACHED_",
	.file = "/etc/stoke/cached.conf",
};

/* how it was started: the configuration is read again, and the next program gets the same */
struct start {
	int argc;
	char **argv; /* a copy: the process's own loses its password */
	char program[PATH_MAX];
};

static int complain(const char *what)
{
	(void)fprintf(stderr, "stoke-cached: %s\n", what);
	return 1;
}

/* what one option says about another; NULL: fine */
static const char *check(const struct daemon_conf *c, size_t n_args)
{
	if (n_args != 1 && !c->meta)
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
	(void)sigaddset(&set, SIGUSR2);
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

/* --- signals --- */

static char **copy_argv(const struct start *st)
{
	char **argv = calloc((size_t)st->argc + 1, sizeof(*argv));

	if (argv)
		memcpy(argv, st->argv, (size_t)st->argc * sizeof(*argv));
	return argv;
}

/* an option that daemon_reload takes */
static bool is_changing(const char *name)
{
	static const char *const names[] = {DAEMON_CHANGING};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (!strcmp(names[i], name))
			return true;
	return false;
}

/* What the file says now; only some of it can change without a restart. false: it is not good */
static bool read_again(const struct daemon_conf *running, const struct start *st,
		       struct daemon_conf *now)
{
	_cleanup_(freep) char **argv = copy_argv(st);
	struct str err = STR_INIT;
	const char *wrong = NULL;
	char **args;
	size_t n;
	int r = argv ? conf_parse(&table, now, st->argc, argv, &args, &n, &err) : -ENOMEM;

	if (r == 0)
		wrong = check(now, n);
	if (r < 0 || wrong)
		log_error("%s: all stays as it was", wrong ? wrong : str_c(&err));
	for (size_t i = 0; r == 0 && !wrong && i < table.n; i++) {
		const char *name = options[i].name;

		if (conf_same(&table, i, running, now) || is_changing(name))
			continue;
		if (!strcmp(name, "verbose"))
			log_info("verbose: %s from now on", now->verbose ? "true" : "false");
		else
			log_warn("%s was changed: that needs a restart", name);
	}
	if (r == 0 && !wrong)
		log_init("stoke-cached", now->verbose ? LOG_LVL_DEBUG : LOG_LVL_INFO);
	str_fini(&err);
	return r == 0 && !wrong;
}

static void reload(struct daemon *d, const struct daemon_conf *running, const struct start *st)
{
	struct daemon_conf now = {0};
	char text[64];

	(void)snprintf(text, sizeof(text), "RELOADING=1\nMONOTONIC_USEC=%llu",
		       (unsigned long long)clock_us());
	notify(text);
	log_info("SIGHUP: reading the configuration again");
	daemon_reload(d, read_again(running, st, &now) ? &now : NULL);
	conf_fini(&table, &now);
	notify("READY=1");
}

/* the program with --check-config, its standard error into a pipe: the other end. 0 or -errno */
static int spawn_check(const struct start *st, pid_t *ret_pid, int *ret_fd)
{
	_cleanup_(freep) char **argv = calloc((size_t)st->argc + 2, sizeof(*argv));
	posix_spawn_file_actions_t files;
	char check_config[] = "--check-config";
	int p[2], r;

	if (!argv || pipe2(p, O_CLOEXEC) < 0)
		return argv ? -errno : -ENOMEM;
	argv[0] = st->argv[0];
	argv[1] = check_config;
	memcpy(argv + 2, st->argv + 1, ((size_t)st->argc - 1) * sizeof(*argv));
	r = posix_spawn_file_actions_init(&files);
	if (r == 0) {
		r = posix_spawn_file_actions_adddup2(&files, p[1], STDERR_FILENO);
		if (r == 0)
			r = posix_spawn(ret_pid, st->program, &files, NULL, argv, environ);
		(void)posix_spawn_file_actions_destroy(&files);
	}
	(void)close(p[1]);
	if (r)
		(void)close(p[0]);
	*ret_fd = p[0];
	return -r;
}

/* Would the program take our options and their files? false: line has what it says about them */
static bool would_start(const struct start *st, char *line, size_t n)
{
	uint64_t end = clock_us() + CHECK_US;
	size_t have = 0;
	ssize_t got = 1;
	int fd = -1, status = 1, r;
	pid_t pid = 0;

	r = spawn_check(st, &pid, &fd);
	(void)snprintf(line, n, "%s", r < 0 ? strerror(-r) : "");
	if (r < 0)
		return false;
	while (got > 0 && clock_left(end)) {
		struct pollfd f = {.fd = fd, .events = POLLIN};

		if (poll(&f, 1, (int)(clock_left(end) / 1000) + 1) <= 0)
			continue;
		got = read(fd, line + have, n - 1 - have);
		have += got > 0 ? (size_t)got : 0;
		if (have == n - 1)
			break;
	}
	line[have] = 0;
	line[strcspn(line, "\n")] = 0;
	(void)close(fd);
	if (got > 0)
		(void)kill(pid, SIGKILL);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* The program's file, which may be a newer one, goes on in this process. Returns only when that was
 * refused at once. */
static void replace(struct daemon *d, const struct start *st)
{
	int fd[DAEMON_SOCKETS], index_fd, r;
	uint64_t began = clock_us();
	char said[512];
	unsigned n;

	if (access(st->program, X_OK) < 0) {
		log_error("SIGUSR2: %s cannot be executed (%s): going on as before", st->program,
			  strerror(errno));
		return;
	}
	r = daemon_hears_redis(d);
	if (r < 0) {
		log_error("SIGUSR2: the next program needs Redis, which does not answer (%s): "
			  "going on as before",
			  strerror(-r));
		return;
	}
	if (!would_start(st, said, sizeof(said))) {
		log_error("SIGUSR2: %s --check-config: %s: going on as before", st->program,
			  said[0] ? said : "failed");
		return;
	}
	notify("RELOADING=1");
	n = daemon_hand_over(d, fd, &index_fd);
	log_info("SIGUSR2: %s goes on with %u socket(s), after %.3f s", st->program, n,
		 (double)(clock_us() - began) / 1e6);
	r = notify_give(fd, n, index_fd);
	if (r == 0)
		(void)execv(st->program, st->argv);
	log_error("%s could not be executed: %s", st->program, strerror(r < 0 ? -r : errno));
	_exit(1); /* to be started again: nothing here accepts any more */
}

static void wait_for_end(struct daemon *d, const struct daemon_conf *conf, const struct start *st,
			 int signals)
{
	struct pollfd p[2] = {
		{.fd = signals, .events = POLLIN},
		{.fd = conf->private ? STDIN_FILENO : -1, .events = POLLIN},
	};
	uint64_t watchdog = notify_watchdog_us();
	struct signalfd_siginfo s;

	for (;;) {
		int n = poll(p, 2, watchdog ? (int)MIN(watchdog / 1000 + 1, UINT64_C(60000)) : -1);

		if (watchdog && n >= 0 && daemon_is_alive(d))
			notify("WATCHDOG=1");
		if (n <= 0)
			continue;
		if (p[0].revents && read(signals, &s, sizeof(s)) == sizeof(s)) {
			if (s.ssi_signo == SIGHUP) { /* or the terminal went away */
				reload(d, conf, st);
				continue;
			}
			if (s.ssi_signo == SIGUSR2) {
				replace(d, st);
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

static int serve(const struct daemon_conf *conf, const char *meta, const struct start *st,
		 int ready_fd)
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
	notify("READY=1");
	wait_for_end(d, conf, st, signals);
	notify("STOPPING=1");
	r = daemon_is_replaced(d);
	if (!daemon_stop(d)) {
		log_warn("requests were still under way after the time allowed for them");
		_exit(r);
	}
	log_info("stopped");
	return r;
}

static int start_copy(int argc, char **argv, struct start *ret)
{
	ssize_t n = readlink("/proc/self/exe", ret->program, sizeof(ret->program) - 1);

	if (n < 0)
		return -errno;
	ret->program[n] = 0;
	ret->argc = argc;
	ret->argv = calloc((size_t)argc + 1, sizeof(*ret->argv));
	if (!ret->argv)
		return -ENOMEM;
	for (int i = 0; i < argc; i++) {
		ret->argv[i] = strdup(argv[i]);
		if (!ret->argv[i])
			return -ENOMEM;
	}
	return 0;
}

static void start_free(struct start *st)
{
	for (int i = 0; st->argv && i < st->argc; i++) {
		if (st->argv[i])
			explicit_bzero(st->argv[i], strlen(st->argv[i]));
		free(st->argv[i]);
	}
	free(st->argv);
}

/* options that only say something; -1: go on */
static int only_said(const struct daemon_conf *conf, size_t n_args)
{
	const char *wrong = NULL;
	struct str s = STR_INIT;
	int r = 0;

	if (conf->version) {
		(void)printf("stoke-cached %s\n", STOKE_VERSION);
		return 0;
	}
	if (conf->print_config) {
		conf_sample(&table, &s);
		(void)fputs(str_c(&s), stdout);
		str_fini(&s);
		return 0;
	}
	wrong = check(conf, n_args);
	if (wrong) {
		(void)complain(wrong);
		return EXIT_USAGE;
	}
	if (!conf->check_config)
		return -1;
	r = daemon_check(conf, &s);
	if (r < 0)
		(void)complain(s.len ? str_c(&s) : strerror(-r));
	else
		(void)printf("the options and the files they name are good\n");
	str_fini(&s);
	return r < 0 ? 1 : 0;
}

static int run(const struct daemon_conf *conf, char *arg, const struct start *st)
{
	_cleanup_(freep) char *meta = strdup(arg ? arg : conf->meta);
	bool again = getenv("STOKE_SOCKETS") != NULL; /* in the background already */
	int r = meta ? 0 : -ENOMEM, ready_fd = -1;

	if (arg)
		redis_blank_password(arg);
	log_init("stoke-cached", conf->verbose ? LOG_LVL_DEBUG : LOG_LVL_INFO);
	(void)umask(077);
	if (r == 0 && conf->background && !again)
		r = ready_fd = to_background();
	if (r >= 0 && conf->log)
		r = log_to_file(conf->log);
	return r < 0 ? complain(strerror(-r)) : serve(conf, meta, st, ready_fd);
}

int main(int argc, char **argv)
{
	struct daemon_conf conf = {0};
	struct start st = {0};
	struct str err = STR_INIT;
	char **args;
	size_t n_args;
	int r = start_copy(argc, argv, &st);

	if (r < 0)
		return complain(strerror(-r));
	r = conf_parse(&table, &conf, argc, argv, &args, &n_args, &err);
	if (r < 0) {
		(void)complain(str_c(&err));
		str_fini(&err);
		return EXIT_USAGE;
	}
	if (r > 0)
		return 0;
	r = only_said(&conf, n_args);
	if (r < 0)
		r = run(&conf, n_args ? args[0] : NULL, &st);
	conf_fini(&table, &conf);
	start_free(&st);
	return r;
}
