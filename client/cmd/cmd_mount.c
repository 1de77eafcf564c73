/* SPDX-License-Identifier: Apache-2.0 */
/* stoke mount: reads what was typed, checks the mount point, goes to the background if asked to,
 * and waits for the end: the file system was unmounted, or a signal came. mount.c does the rest.
 * Main thread; all other threads block signals.
 *
 * In the background the first process waits on a pipe: one byte means mounted, the end of the pipe
 * means that the other process has told why not on stderr, which is still the caller's then. */
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>

#include "client/cmd/cmd.h"
#include "client/mount.h"
#include "client/mount_text.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/redis.h"

#define OPTION(member, name, letter, type, dflt, env, help)                                        \
	{name, letter, CONF_##type, offsetof(struct mount_conf, member), dflt, env, help},
static const struct conf_option options[] = {
#include "client/conf.def"
};
#undef OPTION

static const struct conf_table table = {
	.options = options,
	.n = ARRAY_LEN(options),
	.usage = "stoke mount [options] META DIR",
	.summary = "mount the volume of the Redis database META on DIR. SIGTERM, SIGINT or umount "
		   "ends it "
		   "once all that was written is stored; a second SIGTERM or SIGINT gives up what "
		   "is not, "
		   "names those files in the log, and ends it with status 1",
	.min_args = 2,
	.max_args = 2,
};

#define DEFAULT_LOG "/var/log/stoke.log"
enum { OPEN_FILES = 1 << 20 };

/* --- what was typed --- */

static int bad(const char *why)
{
	(void)cmd_error("mount", "%s", why);
	return 2;
}

static int check_options(const struct mount_conf *c)
{
	enum atime_mode atime;
	uint32_t uid, gid;
	int umask;

	if (c->cache_dir && c->cache_group)
		return bad("--cache-dir makes a private cache; with --cache-group the node's "
			   "stoke-cached owns the disks "
			   "(give it --cache-dir, and the mount --socket)");
	if (c->cache_dir && c->socket)
		return bad("--cache-dir starts a private stoke-cached; --socket uses one that "
			   "runs: give one of them");
	if (c->socket && !c->cache_group)
		return bad("--socket is of a stoke-cached in a group: name it with --cache-group");
	if (c->socket && c->socket[0] != '/')
		return bad("--socket: an absolute path is needed");
	if (c->max_uploads == 0 || c->max_uploads > 10000)
		return bad("--max-uploads: from 1 to 10000");
	if (c->max_downloads == 0 || c->max_downloads > 10000)
		return bad("--max-downloads: from 1 to 10000");
	if (c->root_squash && mount_parse_squash(c->root_squash, &uid, &gid) < 0)
		return bad("--root-squash: UID:GID is needed, such as 65534:65534");
	if (c->all_squash && mount_parse_squash(c->all_squash, &uid, &gid) < 0)
		return bad("--all-squash: UID:GID is needed, such as 1000:1000");
	if (c->umask && mount_parse_umask(c->umask, &umask) < 0)
		return bad("--umask: an octal number up to 0777 is needed");
	if (mount_parse_atime(c->atime_mode, &atime) < 0)
		return bad("--atime-mode: noatime, relatime or strictatime");
	if (mount_checks(c) && c->options && mount_has_option(c->options, "default_permissions"))
		return bad("-o default_permissions: with --root-squash, --all-squash or "
			   "--non-default-permission it is not the kernel that checks permissions");
	if (c->max_deletes > 1000)
		return bad("--max-deletes: at most 1000");
	if (c->io_retries > 1000)
		return bad("--io-retries: at most 1000");
	if (c->heartbeat < 1000000)
		return bad("--heartbeat: at least 1 second");
	if (c->meta_timeout < 100000)
		return bad("--meta-timeout: at least 100ms");
	return 0;
}

/* the mount point as the kernel names it */
static int check_point(const char *dir, char ret[PATH_MAX])
{
	struct mount_found found;
	struct stat st;

	if (!realpath(dir, ret))
		return cmd_error("mount", "%s: %s%s", dir, strerror(errno),
				 errno == ENOENT     ? " (make the directory first)"
				 : errno == ENOTCONN ? " (a mount that died is there: umount it)"
						     : "");
	if (mount_find(ret, &found) && strcmp(found.type, "fuse.stoke") == 0)
		return cmd_error("mount", "%s: %s is mounted there already (stoke umount %s)", ret,
				 found.source, ret);
	if (stat(ret, &st) < 0)
		return cmd_error("mount", "%s: %s", ret, strerror(errno));
	if (!S_ISDIR(st.st_mode))
		return cmd_error("mount", "%s: not a directory", ret);
	return 0;
}

static int check_fuse(void)
{
	int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);

	if (fd < 0)
		return cmd_error(
			"mount", "/dev/fuse: %s (%s)", strerror(errno),
			errno == EACCES || errno == EPERM
				? "this user may not mount; in a container it needs --device "
				  "/dev/fuse and CAP_SYS_ADMIN"
				: "load the module fuse; a container needs --device /dev/fuse");
	(void)close(fd);
	return 0;
}

/* --- the background --- */

/* in the child: *ret_pipe is where success is told; the parent does not return */
static int go_background(int *ret_pipe)
{
	int fd[2];
	pid_t pid;
	char byte;

	if (pipe2(fd, O_CLOEXEC) < 0)
		return -errno;
	pid = fork();
	if (pid < 0)
		return -errno;
	if (pid == 0) {
		(void)close(fd[0]);
		(void)setsid();
		*ret_pipe = fd[1];
		return 0;
	}
	(void)close(fd[1]);
	/* not exit: buffers and handlers are the child's now */
	_exit(read(fd[0], &byte, 1) == 1 ? 0 : 1);
}

static int open_log(const struct mount_conf *c)
{
	const char *path = c->log;
	int r;

	if (!path && c->background && geteuid() == 0)
		path = DEFAULT_LOG;
	if (!path)
		return 0;
	r = log_to_file(path);
	/* a default that cannot be opened is no reason not to mount */
	if (r < 0 && c->log)
		return cmd_error("mount", "--log %s: %s", path, strerror(-r));
	return 0;
}

static void leave_terminal(int pipe_fd)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (write(pipe_fd, "1", 1) < 0)
		log_warn("the process that started this mount has gone");
	(void)close(pipe_fd);
	if (null < 0)
		return;
	for (int fd = 0; fd <= 2; fd++)
		(void)dup2(null, fd);
	if (null > 2)
		(void)close(null);
	if (chdir("/") < 0)
		log_warn("cannot leave the directory this mount was started in: %s",
			 strerror(errno));
}

/* --- waiting --- */

struct waiter {
	int ready, ended, signals;
	uint64_t told_us; /* when a signal said that it is to end; 0: none did */
};

/* what comes as one request to end: Ctrl-C that reaches a group twice, SIGHUP and SIGTERM */
enum { ONE_REQUEST_US = 1000000 };

static void knock(int fd)
{
	uint64_t one = 1;

	if (write(fd, &one, sizeof(one)) < 0)
		log_error("eventfd: %s", strerror(errno));
}

static void ready(void *arg)
{
	knock(((struct waiter *)arg)->ready);
}

static void ended(void *arg)
{
	knock(((struct waiter *)arg)->ended);
}

/* a signal while the mount ends: the second one that asks for it */
static bool again(void *arg)
{
	struct waiter *w = arg;
	struct signalfd_siginfo si;
	uint64_t now = clock_us();

	if (read(w->signals, &si, sizeof(si)) != (ssize_t)sizeof(si))
		return false;
	log_info("signal=%s", strsignal((int)si.ssi_signo));
	if (si.ssi_signo == SIGHUP)
		return false;
	if (!w->told_us) {
		w->told_us = now;
		return false;
	}
	return now - w->told_us >= ONE_REQUEST_US;
}

/* signals reach this process by a descriptor only */
static int waiter_open(struct waiter *w)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
		return -errno;
	w->ready = eventfd(0, EFD_CLOEXEC);
	w->ended = eventfd(0, EFD_CLOEXEC);
	w->signals = signalfd(-1, &set, SFD_CLOEXEC);
	return w->ready < 0 || w->ended < 0 || w->signals < 0 ? -errno : 0;
}

/* true: fd became readable; false: the mount is to end */
static bool wait_for(struct waiter *w, int fd)
{
	struct pollfd p[] = {{.fd = w->ended, .events = POLLIN},
			     {.fd = w->signals, .events = POLLIN},
			     {.fd = fd, .events = POLLIN}};
	struct signalfd_siginfo si;

	for (;;) {
		int n = poll(p, fd < 0 ? 2 : 3, -1);

		if (n < 0 && errno != EINTR)
			return false;
		if (n <= 0)
			continue;
		if (p[0].revents)
			return false;
		if (p[1].revents) {
			if (read(w->signals, &si, sizeof(si)) == (ssize_t)sizeof(si))
				log_info("signal=%s", strsignal((int)si.ssi_signo));
			w->told_us = clock_us();
			return false;
		}
		if (fd >= 0 && p[2].revents)
			return true;
	}
}

/* many peers, many descriptors passed by the daemon */
static void raise_limits(void)
{
	struct rlimit lim;

	if (getrlimit(RLIMIT_NOFILE, &lim) < 0)
		return;
	lim.rlim_cur = MIN(lim.rlim_max, (rlim_t)OPEN_FILES);
	(void)setrlimit(RLIMIT_NOFILE, &lim);
}

static int serve(struct mount_conf *conf, int pipe_fd)
{
	_cleanup_(str_fini) struct str err = STR_INIT;
	static struct waiter w; /* one mount a process */
	struct mount *m;
	bool mounted;
	int r = waiter_open(&w);

	if (r < 0)
		return cmd_error("mount", "cannot wait for signals: %s", strerror(-r));
	raise_limits();
	conf->ready = ready;
	conf->ended = ended;
	conf->again = again;
	conf->again_fd = w.signals;
	conf->arg = &w;
	r = mount_start(conf, &m, &err);
	if (r < 0)
		return cmd_error("mount", "%s",
				 str_error(&err) < 0 || !err.len ? strerror(-r) : str_c(&err));
	mounted = wait_for(&w, w.ready);
	if (mounted) {
		log_info("mounted point=%s version=%s", conf->mount_point, STOKE_VERSION);
		if (pipe_fd >= 0)
			leave_terminal(pipe_fd);
		(void)wait_for(&w, -1);
	}
	r = mount_stop(m);
	if (r < 0)
		log_error("some of the data written was not stored: %s", strerror(-r));
	else
		log_info("unmounted point=%s", conf->mount_point);
	return r < 0 || !mounted ? 1 : 0;
}

/* meta: META with its password; dir: as typed */
static int mount_typed(struct mount_conf *conf, const char *meta, const char *dir)
{
	static char point[PATH_MAX]; /* one mount a process */
	int pipe_fd = -1, r;

	r = check_options(conf);
	if (r == 0)
		r = check_point(dir, point);
	if (r == 0)
		r = check_fuse();
	if (r == 0)
		r = open_log(conf);
	if (r)
		return r;
	conf->meta = meta;
	conf->mount_point = point;
	conf->table = &table;
	if (conf->options && mount_has_option(conf->options, "ro"))
		conf->read_only = true;
	if (conf->background) {
		r = go_background(&pipe_fd);
		if (r < 0)
			return cmd_error("mount", "cannot fork: %s", strerror(-r));
	}
	return serve(conf, pipe_fd);
}

static int run(int argc, char **argv)
{
	_cleanup_(str_fini) struct str err = STR_INIT;
	struct mount_conf conf = {0};
	char **args, *meta;
	size_t n;
	int r = conf_parse(&table, &conf, argc, argv, &args, &n, &err);

	if (r == 1) {
		r = 0;
	} else if (r < 0) {
		r = bad(str_c(&err));
	} else {
		meta = strdup(args[0]);
		/* first of all: what was typed shows in ps */
		redis_blank_password(args[0]);
		r = meta ? mount_typed(&conf, meta, args[1]) : cmd_error("mount", "no memory");
		free(meta);
	}
	conf_fini(&table, &conf);
	return r;
}

const struct cmd cmd_mount = {"mount", "mount a volume", run, &table};
