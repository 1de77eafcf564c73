/* SPDX-License-Identifier: Apache-2.0 */
/* stoke debug: what is worth knowing about a mount, or a volume, when something is wrong: one
 * directory, readable by its owner alone, and an archive of it. Passwords and keys are left out.
 * What cannot be found out is said in its place, and is no error. One thread; blocks. */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>

#include "client/cmd/cmd.h"
#include "client/cmd/maint.h"
#include "client/meta/meta.h"
#include "client/mount_text.h"
#include "common/clock.h"

enum { META_US = 10000000, READ_MAX = 64 << 20, LOG_LINE = 256 };

struct debug_conf {
	char *out_dir;
	uint64_t limit, stats_us;
};

static const struct conf_option options[] = {
	{"out-dir", 0, CONF_STR, offsetof(struct debug_conf, out_dir), "debug", NULL,
	 "directory for what is found; made when it is missing"},
	{"limit", 0, CONF_U64, offsetof(struct debug_conf, limit), "5000", NULL,
	 "last lines of the log to take"},
	{"stats-sec", 0, CONF_DURATION, offsetof(struct debug_conf, stats_us), "5", NULL,
	 "time between two looks at the mount's numbers; seconds"},
};

static const struct conf_table table = {
	.options = options,
	.n = ARRAY_LEN(options),
	.usage = "stoke debug [options] DIR|META",
	.summary = "collect what helps to find a fault of a mount (DIR) or a volume (META)",
	.min_args = 1,
	.max_args = 1,
};

struct job {
	struct debug_conf conf;
	char dir[PATH_MAX]; /* of this run */
	int fd;		    /* of it */
	int failed;
};

/* --- files --- */

static void save(struct job *j, const char *name, const char *text, size_t n)
{
	_cleanup_(closep) int fd =
		openat(j->fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);

	while (fd >= 0 && n) {
		ssize_t done = write(fd, text, n);

		if (done < 0)
			break;
		text += done;
		n -= (size_t)done;
	}
	if ((fd < 0 || n) && !j->failed) {
		j->failed = -errno;
		(void)cmd_error("debug", "%s/%s: %s", j->dir, name, strerror(errno));
	}
}

static void save_str(struct job *j, const char *name, struct str *s)
{
	save(j, name, str_c(s), s->len);
	str_fini(s);
}

/* the whole of a file that may grow while it is read, its last part when it is long; what went
 * wrong otherwise */
static void add_file(struct str *out, const char *path)
{
	_cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
	char buf[8192];
	size_t total = 0;
	ssize_t n = fd < 0 ? -1 : 0;

	while (fd >= 0 && total < READ_MAX && (n = read(fd, buf, sizeof(buf))) > 0) {
		str_addn(out, buf, (size_t)n);
		total += (size_t)n;
	}
	if (n < 0)
		str_addf(out, "(%s: %s)\n", path, strerror(errno));
}

static void save_file(struct job *j, const char *name, const char *path)
{
	struct str s = STR_INIT;

	add_file(&s, path);
	save_str(j, name, &s);
}

/* the last lines of a log */
static void save_tail(struct job *j, const char *name, const char *path)
{
	_cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
	uint64_t most = MIN(j->conf.limit * LOG_LINE, (uint64_t)READ_MAX), lines = 0;
	struct str s = STR_INIT;
	struct stat st;
	const char *text, *p;

	if (fd < 0 || fstat(fd, &st) < 0) {
		str_addf(&s, "(%s: %s)\n", path, strerror(errno));
		save_str(j, name, &s);
		return;
	}
	if ((uint64_t)st.st_size > most)
		(void)lseek(fd, st.st_size - (off_t)most, SEEK_SET);
	for (char buf[8192];;) {
		ssize_t n = read(fd, buf, sizeof(buf));

		if (n <= 0 || s.len > most + sizeof(buf))
			break;
		str_addn(&s, buf, (size_t)n);
	}
	text = str_c(&s);
	for (p = text + s.len; p > text; p--)
		if (p[-1] == '\n' && p < text + s.len && ++lines == j->conf.limit)
			break;
	save(j, name, p, s.len - (size_t)(p - text));
	str_fini(&s);
}

/* --- the machine --- */

static void save_system(struct job *j)
{
	static const char *const files[] = {"/etc/os-release",	 "/proc/meminfo",
					    "/proc/loadavg",	 "/proc/sys/fs/file-nr",
					    "/proc/self/limits", "/proc/net/sockstat"};
	struct str s = STR_INIT;
	struct utsname u;

	if (uname(&u) == 0)
		str_addf(&s, "stoke %s\n%s %s %s %s %s\nprocessors %ld\n", STOKE_VERSION, u.sysname,
			 u.nodename, u.release, u.version, u.machine,
			 sysconf(_SC_NPROCESSORS_ONLN));
	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		str_addf(&s, "\n== %s\n", files[i]);
		add_file(&s, files[i]);
	}
	save_str(j, "system.txt", &s);
}

/* --- a mount --- */

static bool ask_control(const char *dir, char *answer, size_t cap)
{
	static const char ask[] = "info\n";
	char path[PATH_MAX + 16];
	ssize_t n;
	int fd;

	(void)snprintf(path, sizeof(path), "%s/.control", dir);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return false;
	n = write(fd, ask, sizeof(ask) - 1);
	if (n > 0)
		n = read(fd, answer, cap - 1);
	(void)close(fd);
	answer[MAX(n, (ssize_t)0)] = 0;
	return n > 0;
}

static pid_t pid_in(const char *info)
{
	const char *p = strstr(info, "\"pid\":");

	return p ? (pid_t)strtol(p + 6, NULL, 10) : 0;
}

static unsigned count_entries(const char *path)
{
	DIR *d = opendir(path);
	unsigned n = 0;

	while (d && readdir(d))
		n++;
	if (d)
		(void)closedir(d);
	return n > 2 ? n - 2 : 0;
}

static void add_threads(struct str *out, pid_t pid)
{
	char path[64];
	struct dirent *e;
	DIR *d;

	(void)snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	d = opendir(path);
	while (d && (e = readdir(d))) {
		char file[PATH_MAX];

		if (e->d_name[0] == '.')
			continue;
		(void)snprintf(file, sizeof(file), "%s/%s/comm", path, e->d_name);
		str_addf(out, "%s ", e->d_name);
		add_file(out, file);
		(void)snprintf(file, sizeof(file), "%s/%s/wchan", path, e->d_name);
		str_add(out, "  waits in ");
		add_file(out, file);
		str_add(out, "\n");
	}
	if (d)
		(void)closedir(d);
}

static void save_process(struct job *j, pid_t pid)
{
	static const char *const files[] = {"status", "limits", "io", "smaps_rollup"};
	struct str s = STR_INIT;
	char path[64];

	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		(void)snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, files[i]);
		str_addf(&s, "\n== %s\n", path);
		add_file(&s, path);
	}
	(void)snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	str_addf(&s, "\nopen files %u\n\n== threads\n", count_entries(path));
	add_threads(&s, pid);
	save_str(j, "process.txt", &s);
}

/* "log":"/var/log/stoke.log" of .config; "" when it names none */
static void log_path(const char *config, char *ret, size_t cap)
{
	const char *p = strstr(config, "\"log\":\""), *end = p ? strchr(p + 7, '"') : NULL;

	ret[0] = 0;
	if (end && (size_t)(end - p - 7) < cap && !memchr(p, '\\', (size_t)(end - p)))
		(void)snprintf(ret, cap, "%.*s", (int)(end - p - 7), p + 7);
}

static void save_mount(struct job *j, const char *dir)
{
	char path[PATH_MAX + 16], log[PATH_MAX], info[4096];
	const struct timespec pause = {.tv_sec = (time_t)(j->conf.stats_us / 1000000),
				       .tv_nsec = (long)(j->conf.stats_us % 1000000) * 1000};
	struct str config = STR_INIT;

	(void)snprintf(path, sizeof(path), "%s/.config", dir);
	add_file(&config, path);
	log_path(str_c(&config), log, sizeof(log));
	save_str(j, "config.json", &config);
	if (ask_control(dir, info, sizeof(info))) {
		save(j, "mount.json", info, strlen(info));
		if (pid_in(info) > 0)
			save_process(j, pid_in(info));
	}
	(void)snprintf(path, sizeof(path), "%s/.stats", dir);
	save_file(j, "stats-1.txt", path);
	(void)nanosleep(&pause, NULL);
	save_file(j, "stats-2.txt", path);
	if (log[0])
		save_tail(j, "log.txt", log);
}

/* --- a volume --- */

static int save_volume(struct job *j, char *url)
{
	static const char *const sections[] = {"server",      "clients", "memory",  "persistence",
					       "replication", "stats",	 "cluster", "keyspace"};
	struct str s = STR_INIT, err = STR_INIT;
	struct setting *set = NULL;
	struct redis *redis = NULL;
	_cleanup_(freep) char *copy = strdup(url);
	int r;

	redis_blank_password(url);
	r = copy ? redis_new(copy, NULL, &redis, &err) : -ENOMEM;
	if (r == 0)
		r = setting_load(redis, clock_us() + META_US, &set, &err);
	if (r) {
		(void)cmd_error("debug", "%s", err.len ? str_c(&err) : strerror(-r));
		goto out;
	}
	(void)setting_redacted(set, &s);
	save_str(j, "setting.json", &s);
	(void)meta_sessions_json(redis, clock_us() + META_US, &s);
	save_str(j, "sessions.json", &s);
	(void)redis_advise(redis, clock_us() + META_US, false, &s);
	for (size_t i = 0; i < ARRAY_LEN(sections); i++) {
		_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
		size_t n;
		const char *text;

		if (redis_once(redis, clock_us() + META_US, &reply, "INFO %s", sections[i]))
			continue;
		text = redis_reply_str(reply, &n);
		str_addn(&s, text ? text : "", text ? n : 0);
		str_add(&s, "\n");
	}
	save_str(j, "redis.txt", &s);
out:
	setting_free(set);
	redis_free(redis);
	str_fini(&s);
	str_fini(&err);
	return r;
}

/* --- all of it --- */

static int make_dir(struct job *j)
{
	time_t now = time(NULL);
	struct tm tm;
	char stamp[32];

	if (mkdir(j->conf.out_dir, 0700) < 0 && errno != EEXIST)
		return -errno;
	(void)gmtime_r(&now, &tm);
	(void)strftime(stamp, sizeof(stamp), "%Y%m%d-%H%M%S", &tm);
	if (snprintf(j->dir, sizeof(j->dir), "%s/stoke-%s-%d", j->conf.out_dir, stamp,
		     (int)getpid()) >= (int)sizeof(j->dir))
		return -ENAMETOOLONG;
	if (mkdir(j->dir, 0700) < 0)
		return -errno;
	j->fd = open(j->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return j->fd < 0 ? -errno : 0;
}

/* an archive beside the directory, where tar is there */
static bool archive(struct job *j)
{
	char file[PATH_MAX + 16];
	const char *base = strrchr(j->dir, '/') + 1;
	pid_t pid;
	int status;

	(void)snprintf(file, sizeof(file), "%s.tar.gz", j->dir);
	pid = fork();
	if (pid == 0) {
		(void)umask(0077);
		execlp("tar", "tar", "-C", j->conf.out_dir, "-czf", file, "--", base, (char *)NULL);
		_exit(127);
	}
	return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) &&
	       WEXITSTATUS(status) == 0;
}

static int debug(struct job *j, char *what)
{
	struct mount_found found;
	char path[PATH_MAX];
	bool mount = mount_resolve(what, path) == 0 && mount_find(path, &found);
	int r;

	if (mount && strcmp(found.type, "fuse.stoke") != 0)
		return cmd_error("debug", "%s: is mounted by something else (%s)", path,
				 found.type);
	if (!mount && what[0] == '/')
		return cmd_error("debug", "%s: nothing is mounted there", what);
	r = make_dir(j);
	if (r < 0)
		return cmd_error("debug", "--out-dir %s: %s", j->conf.out_dir, strerror(-r));
	save_system(j);
	if (mount)
		save_mount(j, path);
	else if (save_volume(j, what) < 0)
		return 1;
	if (j->failed)
		return 1;
	(void)printf("%s%s\n", j->dir, archive(j) ? ".tar.gz" : "");
	return 0;
}

static int debug_run(int argc, char **argv)
{
	struct job j = {.fd = -1};
	char **args;
	size_t n;
	int r = maint_args("debug", &table, &j.conf, argc, argv, &args, &n);

	r = r ? r - 1 : debug(&j, args[0]);
	if (j.fd >= 0)
		(void)close(j.fd);
	conf_fini(&table, &j.conf);
	return r;
}

const struct cmd cmd_debug = {"debug", "collect what helps to find a fault", debug_run, &table};
