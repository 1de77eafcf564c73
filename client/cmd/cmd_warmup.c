/* SPDX-License-Identifier: Apache-2.0 */
/* stoke warmup: has the blocks of files brought to their owners (or looked for, or dropped). It
 * walks the paths and hands inode numbers to the mount they lie in, through the mount's .control
 * file; the mount asks the group and counts (client/internal.h). One thread; blocks. */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <time.h>

#include "client/cmd/ask.h"
#include "client/cmd/cmd.h"
#include "client/internal.h"
#include "common/clock.h"

enum { PARALLEL_DEFAULT = 50, PARALLEL_MAX = 1024, WRITE_MAX = 64 << 10, PATH_BUF = 4096 };

struct warmup_conf {
	char *list;
	uint64_t parallel, pin_us;
	char *pin_until;
	bool check, evict, unpin, quiet;
};

static const struct conf_option options[] = {
	{"file", 'f', CONF_STR, offsetof(struct warmup_conf, list), NULL, NULL,
	 "file with one path a line; - is standard input"},
	{"threads", 'p', CONF_U64, offsetof(struct warmup_conf, parallel), "50", NULL,
	 "blocks that are fetched at once"},
	{"check", 0, CONF_FLAG, offsetof(struct warmup_conf, check), "false", NULL,
	 "only tell how much is cached"},
	{"evict", 0, CONF_FLAG, offsetof(struct warmup_conf, evict), "false", NULL,
	 "drop the blocks from the group's cache"},
	{"pin", 0, CONF_DURATION, offsetof(struct warmup_conf, pin_us), NULL, NULL,
	 "keep the blocks for so long, whatever else has to leave the cache (7d, 12h)"},
	{"pin-until", 0, CONF_STR, offsetof(struct warmup_conf, pin_until), NULL, NULL,
	 "the same until a date: 2030-12-31, or 2030-12-31T18:00, local time"},
	{"unpin", 0, CONF_FLAG, offsetof(struct warmup_conf, unpin), "false", NULL,
	 "let pinned blocks leave the cache again; fetches nothing"},
	{"quiet", 'q', CONF_FLAG, offsetof(struct warmup_conf, quiet), "false", NULL,
	 "no progress line"},
};

static const struct conf_table table = {
	.options = options,
	.n = ARRAY_LEN(options),
	.usage = "stoke warmup [options] PATH…",
	.summary = "bring files into the cache group before they are read",
	.min_args = 0,
	.max_args = SIZE_MAX,
};

/* the mount that all paths lie in, and the inodes found so far */
struct warmup {
	const struct warmup_conf *conf;
	dev_t dev;
	int control;
	struct str out; /* inode numbers to be written */
	uint64_t files, started_us;
	unsigned errors; /* paths that could not be walked */
	/* the mount's last word */
	uint64_t seen, blocks, bytes, missing, failed, total, refused;
	uint64_t until; /* unix seconds; 0: nothing is pinned */
	bool done;
};

static void path_error(struct warmup *w, const char *path, const char *what)
{
	(void)cmd_error("warmup", "%s: %s", path, what);
	w->errors++;
}

/* the directory where path's file system is mounted: the topmost ancestor on the same device */
static int mount_root(const char *path, struct str *ret)
{
	_cleanup_(freep) char *real = realpath(path, NULL);
	struct stat st, up;
	char parent[PATH_BUF];

	if (!real || stat(real, &st) < 0)
		return -errno;
	for (;;) {
		char *slash = strrchr(real, '/');

		(void)snprintf(parent, sizeof(parent), "%.*s",
			       slash == real ? 1 : (int)(slash - real), real);
		if (strcmp(real, "/") == 0 || stat(parent, &up) < 0 || up.st_dev != st.st_dev)
			break;
		(void)memcpy(real, parent, strlen(parent) + 1);
	}
	str_add(ret, real);
	return str_error(ret);
}

static int open_control(struct warmup *w, const char *path)
{
	struct str root = STR_INIT, name = STR_INIT;
	struct stat st;
	int r = mount_root(path, &root);

	if (r == 0) {
		str_addf(&name, "%s/.control", str_c(&root));
		if (lstat(str_c(&name), &st) < 0 || st.st_ino != INODE_CONTROL)
			r = -ENOTTY;
	}
	if (r == 0) {
		w->dev = st.st_dev;
		w->control = ask_open_control(str_c(&name));
		r = MIN(w->control, 0);
	}
	str_fini(&root);
	str_fini(&name);
	return r;
}

static int flush(struct warmup *w)
{
	int r = str_error(&w->out) < 0 ? -ENOMEM : 0;

	for (size_t off = 0; off < w->out.len && r == 0; off += WRITE_MAX)
		r = ask_send(w->control, w->out.s + off, MIN(w->out.len - off, (size_t)WRITE_MAX));
	if (r == 0)
		str_reset(&w->out);
	return r;
}

static int add_inode(struct warmup *w, uint64_t inode)
{
	w->files++;
	str_addf(&w->out, "%" PRIu64 "\n", inode);
	return w->out.len < WRITE_MAX - 32 ? 0 : flush(w);
}

static int walk(struct warmup *w, int dir_fd, const char *path);

static int walk_entry(struct warmup *w, int fd, const struct dirent *e, const char *path)
{
	struct str full = STR_INIT;
	struct stat st;
	int r = 0, sub;

	if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
	    e->d_ino >= INODE_INTERNAL)
		return 0;
	if (e->d_type == DT_REG)
		return add_inode(w, e->d_ino);
	if (e->d_type != DT_DIR && e->d_type != DT_UNKNOWN)
		return 0;
	str_addf(&full, "%s/%s", path, e->d_name);
	if (fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
		path_error(w, str_c(&full), strerror(errno));
	} else if (S_ISREG(st.st_mode)) {
		r = add_inode(w, st.st_ino);
	} else if (S_ISDIR(st.st_mode) && st.st_dev == w->dev) {
		sub = openat(fd, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (sub < 0)
			path_error(w, str_c(&full), strerror(errno));
		else
			r = walk(w, sub, str_c(&full));
	}
	str_fini(&full);
	return r;
}

/* takes over dir_fd */
static int walk(struct warmup *w, int dir_fd, const char *path)
{
	DIR *d = fdopendir(dir_fd);
	struct dirent *e;
	int r = 0;

	if (!d) {
		(void)close(dir_fd);
		return -ENOMEM;
	}
	while (r == 0 && (errno = 0, e = readdir(d)))
		r = walk_entry(w, dir_fd, e, path);
	if (r == 0 && errno)
		path_error(w, path, strerror(errno));
	(void)closedir(d);
	return r;
}

static int begin(struct warmup *w)
{
	w->started_us = clock_us();
	str_addf(&w->out, "warmup %s %" PRIu64,
		 w->conf->check	  ? "check"
		 : w->conf->evict ? "evict"
		 : w->conf->unpin ? "unpin"
				  : "fill",
		 w->conf->parallel);
	if (w->until)
		str_addf(&w->out, " %" PRIu64, w->until);
	str_add(&w->out, "\n");
	return 0;
}

/* A path that is not there is told and counted; the rest is done all the same. */
static int add_path(struct warmup *w, const char *path)
{
	struct stat st;
	int r, fd;

	if (lstat(path, &st) < 0) {
		path_error(w, path, strerror(errno));
		return 0;
	}
	if (w->control < 0) {
		r = open_control(w, path);
		if (r < 0) {
			path_error(w, path, r == -ENOTTY ? "not in a Stoke mount" : strerror(-r));
			return 0;
		}
		(void)begin(w);
	}
	if (st.st_dev != w->dev) {
		path_error(w, path,
			   "lies in another mount than the paths before it; warm it up by itself");
		return 0;
	}
	if (S_ISREG(st.st_mode))
		return add_inode(w, st.st_ino);
	if (!S_ISDIR(st.st_mode))
		return 0;
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0) {
		path_error(w, path, strerror(errno));
		return 0;
	}
	return walk(w, fd, path);
}

static int add_list(struct warmup *w, const char *name)
{
	FILE *f = strcmp(name, "-") == 0 ? stdin : fopen(name, "re");
	_cleanup_(freep) char *line = NULL;
	size_t cap = 0;
	ssize_t n;
	int r = 0;

	if (!f) {
		path_error(w, name, strerror(errno));
		return 0;
	}
	while (r == 0 && (n = getline(&line, &cap, f)) >= 0) {
		if (n > 0 && line[n - 1] == '\n')
			line[n - 1] = '\0';
		if (line[0])
			r = add_path(w, line);
	}
	if (f != stdin)
		(void)fclose(f);
	return r;
}

static void show_progress(const struct warmup *w)
{
	double s = (double)(clock_us() - w->started_us) / 1e6;
	char bytes[16], rate[16];
	uint64_t left = w->total > w->blocks ? w->total - w->blocks : 0;

	if (w->conf->quiet || !isatty(STDERR_FILENO))
		return;
	(void)fprintf(stderr,
		      "\r%" PRIu64 "/%" PRIu64 " blocks, %s, %s/s, %" PRIu64
		      " missing, ETA %.0f s    ",
		      w->blocks, w->total, cmd_bytes(w->bytes, bytes),
		      cmd_bytes((uint64_t)((double)w->bytes / MAX(s, 0.001)), rate), w->missing,
		      w->blocks ? s * (double)left / (double)w->blocks : 0.0);
}

static void take_line(struct warmup *w, const char *line)
{
	if (sscanf(line,
		   "progress %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64,
		   &w->seen, &w->blocks, &w->bytes, &w->missing, &w->failed, &w->total) == 6)
		show_progress(w);
	else if (sscanf(line, "done %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64,
			&w->seen, &w->blocks, &w->bytes, &w->missing, &w->failed) == 5)
		w->done = true;
	else if (sscanf(line, "refused %" SCNu64, &w->refused) == 1)
		(void)cmd_error("warmup",
				"%" PRIu64
				" blocks could not be pinned: what is pinned may take 80 %% of a "
				"cache directory. Unpin others (--unpin), or add space or nodes",
				w->refused);
	else if (strncmp(line, "error ", 6) == 0)
		(void)cmd_error("warmup", "%s", line + 6);
}

/* reads the mount's answers until it is done */
static int follow(struct warmup *w)
{
	struct str in = STR_INIT;
	char part[4096];
	ssize_t n;
	char *nl;
	int r;

	str_add(&w->out, "\n");
	r = flush(w);
	while (r == 0 && (n = read(w->control, part, sizeof(part))) != 0) {
		if (n < 0) {
			r = errno == EINTR ? 0 : -errno;
			continue;
		}
		str_addn(&in, part, (size_t)n);
		while (in.len && (nl = memchr(in.s, '\n', in.len))) {
			size_t used = (size_t)(nl - in.s) + 1;

			*nl = '\0';
			take_line(w, in.s);
			in.len -= used;
			(void)memmove(in.s, in.s + used, in.len + 1);
		}
	}
	if (w->seen && !w->conf->quiet && isatty(STDERR_FILENO))
		(void)fputc('\n', stderr);
	str_fini(&in);
	return r == 0 && !w->done ? -ECONNABORTED : r;
}

static void summary(const struct warmup *w)
{
	double s = w->started_us ? (double)(clock_us() - w->started_us) / 1e6 : 0;
	uint64_t there = w->blocks - MIN(w->missing, w->blocks);
	char bytes[16];

	(void)cmd_bytes(w->bytes, bytes);
	if (w->conf->check)
		(void)printf("cached %.1f %%: %" PRIu64 " of %" PRIu64 " blocks of %" PRIu64
			     " files (%s)\n",
			     w->blocks ? 100.0 * (double)there / (double)w->blocks : 100.0, there,
			     w->blocks, w->seen, bytes);
	else
		(void)printf("%s %" PRIu64 " files: %" PRIu64 " blocks (%s), %" PRIu64
			     " missing, %" PRIu64 " errors, %.1f s\n",
			     w->conf->evict   ? "evicted"
			     : w->conf->unpin ? "unpinned"
			     : w->until	      ? "pinned"
					      : "warmed",
			     w->seen, w->blocks, bytes, w->missing, w->failed, s);
}

static int warmup(struct warmup *w, char **paths, size_t n)
{
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++)
		r = add_path(w, paths[i]);
	if (r == 0 && w->conf->list)
		r = add_list(w, w->conf->list);
	/* no path was good: nobody to ask, and the errors are told */
	if (r == 0 && w->control >= 0)
		r = follow(w);
	if (r < 0)
		return cmd_error("warmup", "%s",
				 r == -ECONNABORTED ? "the mount ended before it was done"
						    : strerror(-r));
	summary(w);
	return w->errors || w->failed || (w->missing && !w->conf->evict && !w->conf->unpin);
}

/* the end of the pin, or 0; -EINVAL with err */
static int pin_date(const struct warmup_conf *conf, uint64_t *ret, struct str *err)
{
	struct tm tm = {.tm_isdst = -1};
	const char *rest;
	time_t now = time(NULL), at;

	*ret = conf->pin_us ? (uint64_t)now + conf->pin_us / 1000000 : 0;
	if (!conf->pin_until && !conf->pin_us)
		return 0;
	if (conf->check || conf->evict || conf->unpin || (conf->pin_until && conf->pin_us)) {
		str_add(err, "--pin, --pin-until, --unpin, --check and --evict exclude each other");
		return -EINVAL;
	}
	if (!conf->pin_until)
		return 0;
	rest = strptime(conf->pin_until, "%Y-%m-%d", &tm);
	if (rest && *rest == 'T')
		rest = strptime(rest, "T%H:%M", &tm);
	if (!rest || *rest) {
		str_addf(err, "--pin-until %s: give a date like 2030-12-31 or 2030-12-31T18:00",
			 conf->pin_until);
		return -EINVAL;
	}
	at = mktime(&tm);
	if (at <= now) {
		str_addf(err, "--pin-until %s is over", conf->pin_until);
		return -EINVAL;
	}
	*ret = (uint64_t)at;
	return 0;
}

static int warmup_run(int argc, char **argv)
{
	struct warmup_conf conf;
	struct warmup w = {.conf = &conf, .control = -1, .out = STR_INIT};
	struct str err = STR_INIT;
	char **args;
	size_t n;
	int r = conf_parse(&table, &conf, argc, argv, &args, &n, &err);

	if (r == 0 && n == 0 && !conf.list) {
		str_add(&err, "no PATH and no -f LIST (see stoke warmup --help)");
		r = -EINVAL;
	} else if (r == 0 && (conf.parallel == 0 || conf.parallel > PARALLEL_MAX)) {
		str_add(&err, "--threads: 1 to 1024");
		r = -EINVAL;
	} else if (r == 0 && conf.check + conf.evict + conf.unpin > 1) {
		str_add(&err, "--check, --evict and --unpin exclude each other");
		r = -EINVAL;
	} else if (r == 0) {
		r = pin_date(&conf, &w.until, &err);
	}
	if (r) {
		if (r < 0)
			(void)cmd_error("warmup", "%s", str_c(&err));
		r = r < 0 ? 2 : 0;
	} else {
		r = warmup(&w, args, n);
	}
	if (w.control >= 0)
		(void)close(w.control);
	str_fini(&w.out);
	str_fini(&err);
	conf_fini(&table, &conf);
	return r;
}

const struct cmd cmd_warmup = {"warmup", "bring files into the cache group", warmup_run, &table};
