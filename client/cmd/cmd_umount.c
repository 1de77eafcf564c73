/* SPDX-License-Identifier: Apache-2.0 */
/* stoke umount: unmounts, and waits until the mount's process has flushed, left the volume and
 * ended. One thread; blocks. */
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "client/cmd/cmd.h"
#include "client/mount_text.h"
#include "common/clock.h"

enum { QUIET_US = 2000000 };

struct umount_conf {
	bool force, lazy;
	uint64_t wait_us;
};

static const struct conf_option options[] = {
	{"force", 'f', CONF_FLAG, offsetof(struct umount_conf, force), "false", NULL,
	 "also when files are open: their users get errors"},
	{"lazy", 'l', CONF_FLAG, offsetof(struct umount_conf, lazy), "false", NULL,
	 "take it out of the tree now, and end it when its last file is closed"},
	{"wait", 0, CONF_DURATION, offsetof(struct umount_conf, wait_us), "300", NULL,
	 "how long to wait for the mount's process to store everything and end; seconds. It goes "
	 "on "
	 "afterwards; kill -TERM twice makes it give up, and its log names what is lost"},
};

static const struct conf_table table = {
	.options = options,
	.n = ARRAY_LEN(options),
	.usage = "stoke umount [options] DIR",
	.summary = "unmount a volume; what was written is stored when it returns",
	.min_args = 1,
	.max_args = 1,
};

/* asks the mount for its process through .control; 0: it does not say */
static pid_t pid_of(const char *path)
{
	static const char ask[] = "info\n", key[] = "\"pid\":";
	char name[PATH_MAX + 16], answer[4096], *p;
	ssize_t n;
	int fd;

	snprintf(name, sizeof(name), "%s/.control", path);
	fd = open(name, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return 0;
	n = write(fd, ask, sizeof(ask) - 1);
	if (n > 0)
		n = read(fd, answer, sizeof(answer) - 1);
	(void)close(fd);
	if (n <= 0)
		return 0;
	answer[n] = 0;
	p = strstr(answer, key);
	return p ? (pid_t)strtol(p + sizeof(key) - 1, NULL, 10) : 0;
}

/* for users who are not root */
static int run_fusermount(const char *path, bool lazy)
{
	int status;
	pid_t pid = fork();

	if (pid < 0)
		return -errno;
	if (pid == 0) {
		if (lazy)
			execlp("fusermount3", "fusermount3", "-u", "-z", "-q", "--", path,
			       (char *)NULL);
		else
			execlp("fusermount3", "fusermount3", "-u", "-q", "--", path, (char *)NULL);
		_exit(127);
	}
	if (waitpid(pid, &status, 0) < 0)
		return -errno;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
		return -ENOENT;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -EBUSY;
}

static int unmount(const char *path, const struct umount_conf *conf)
{
	int flags = UMOUNT_NOFOLLOW | (conf->force ? MNT_FORCE : 0) | (conf->lazy ? MNT_DETACH : 0);

	if (geteuid() != 0)
		return run_fusermount(path, conf->lazy);
	return umount2(path, flags) == 0 ? 0 : -errno;
}

/* false: it is there still when the time is over */
static bool wait_end(int pidfd, uint64_t us)
{
	struct pollfd p = {.fd = pidfd, .events = POLLIN};

	return poll(&p, 1, (int)MIN(us / 1000, (uint64_t)INT_MAX)) == 1;
}

static int umount_path(const char *dir, const struct umount_conf *conf)
{
	_cleanup_(closep) int pidfd = -1;
	struct mount_found found;
	char path[PATH_MAX];
	bool over = true;
	uint64_t quiet;
	pid_t pid;
	int r;

	r = mount_resolve(dir, path);
	if (r < 0)
		return cmd_error("umount", "%s: %s", dir, strerror(-r));
	if (!mount_find(path, &found))
		return cmd_error("umount", "%s: nothing is mounted there", path);
	if (strcmp(found.type, "fuse.stoke") != 0)
		return cmd_error("umount", "%s: is mounted by something else (%s): use umount",
				 path, found.type);
	pid = pid_of(path);
	if (pid > 0)
		pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	r = unmount(path, conf);
	if (r == -EBUSY)
		return cmd_error("umount",
				 "%s: in use (close its files and leave it, or use --lazy)", path);
	if (r < 0)
		return cmd_error("umount", "%s: %s", path, strerror(-r));
	quiet = MIN(conf->wait_us, (uint64_t)QUIET_US);
	if (pidfd >= 0 && !conf->lazy && !wait_end(pidfd, quiet)) {
		(void)fprintf(stderr,
			      "stoke umount: %s: unmounted; process %d still stores what was "
			      "written, as its log tells (waiting for it %" PRIu64 " s more)\n",
			      path, (int)pid, (conf->wait_us - quiet) / 1000000);
		over = wait_end(pidfd, conf->wait_us - quiet);
	}
	if (!over)
		return cmd_error("umount",
				 "%s: unmounted, but its process %d has not ended yet (it may "
				 "still be storing data)",
				 path, (int)pid);
	return 0;
}

static int run(int argc, char **argv)
{
	_cleanup_(str_fini) struct str err = STR_INIT;
	struct umount_conf conf = {0};
	char **args;
	size_t n;
	int r = conf_parse(&table, &conf, argc, argv, &args, &n, &err);

	if (r == 1)
		return 0;
	if (r < 0) {
		(void)cmd_error("umount", "%s", str_c(&err));
		return 2;
	}
	return umount_path(args[0], &conf);
}

const struct cmd cmd_umount = {"umount", "unmount a volume", run, &table};
