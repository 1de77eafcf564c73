/* SPDX-License-Identifier: Apache-2.0 */
/* stoke clone: another file or tree with the same data, which is not copied. Asks the mount. */
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>

#include "client/cmd/ask.h"

struct clone_conf {
	uint64_t threads;
	bool preserve;
};

static const struct conf_option options[] = {
	{"preserve", 'p', CONF_FLAG, offsetof(struct clone_conf, preserve), "false", NULL,
	 "keep owners, modes and times"},
	{"threads", 0, CONF_U64, offsetof(struct clone_conf, threads), "4", NULL,
	 "directories that are worked on at once, 1 to 16"},
};

static const struct conf_table table = {
	.options = options,
	.n = ARRAY_LEN(options),
	.usage = "stoke clone [options] SRC DST",
	.summary = "make another file or tree with the same data, without copying it",
	.min_args = 2,
	.max_args = 2,
};

/* what was written through this mount is in the volume before it is cloned */
static void flush_file(const char *path)
{
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
	struct stat st;

	if (fd < 0)
		return;
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
		(void)fsync(fd);
	(void)close(fd);
}

static int clone_to(struct maint *m, const struct clone_conf *conf, const struct asked_path *src,
		    const char *src_path, const char *dst_path)
{
	_cleanup_(str_fini) struct str request = STR_INIT;
	struct ask_answer answer;
	struct asked_path dst;
	mode_t mask = umask(0);
	int r = ask_open(dst_path, false, &dst);

	(void)umask(mask);
	if (r == 0 && dst.dev != src->dev)
		r = -EXDEV;
	if (r == 0 && dst.inode)
		r = -EEXIST;
	if (r) {
		(void)cmd_error("clone", "%s: %s", dst_path,
				r == -EXDEV ? "lies in another mount than SRC" : ask_error(r));
		if (r != -EXDEV && r != -EEXIST)
			return r;
		ask_close(&dst);
		return r;
	}
	str_addf(&request, "threads %" PRIu64 " clone %" PRIu64 " %d %u %" PRIu64 " %s\n",
		 conf->threads, src->inode, conf->preserve, (unsigned)mask, dst.dir,
		 str_c(&dst.name));
	r = str_error(&request);
	if (r == 0 && S_ISREG(src->mode))
		flush_file(src_path);
	maint_begin(m, "entries cloned", NULL);
	if (r == 0)
		r = ask_run(m, dst.control, str_c(&request), NULL, NULL, &answer);
	maint_end(m);
	if (r)
		(void)cmd_error("clone", "%s: %s", src_path,
				r == -EINTR ? "interrupted; nothing is there yet, gc clears the "
					      "rest away"
					    : ask_error(r));
	else
		maint_say(m, "cloned %s to %s: %" PRIu64 " entries", src_path, dst_path,
			  answer.files);
	ask_close(&dst);
	return r;
}

/* "dir/" as the goal: under the name of the source in it */
static char *goal(const char *src, const char *dst)
{
	size_t n = strlen(src), from;
	char *path;

	while (n > 1 && src[n - 1] == '/')
		n--;
	for (from = n; from > 0 && src[from - 1] != '/';)
		from--;
	if (!*dst || dst[strlen(dst) - 1] != '/')
		return strdup(dst);
	return asprintf(&path, "%s%.*s", dst, (int)(n - from), src + from) < 0 ? NULL : path;
}

static int clone_run(int argc, char **argv)
{
	struct maint m = {.name = "clone"};
	struct clone_conf conf;
	struct asked_path src;
	char **args;
	size_t n;
	int r = maint_args("clone", &table, &conf, argc, argv, &args, &n), e;

	if (r == 0) {
		_cleanup_(freep) char *dst = goal(args[0], args[1]);

		conf.threads = ask_threads(conf.threads);
		maint_catch(&m, "clone");
		e = dst ? ask_open(args[0], true, &src) : -ENOMEM;
		if (e) {
			(void)cmd_error("clone", "%s: %s", args[0], ask_error(e));
		} else {
			e = clone_to(&m, &conf, &src, args[0], dst);
			ask_close(&src);
		}
		r = e ? 2 : 1;
	}
	conf_fini(&table, &conf);
	return r - 1;
}

const struct cmd cmd_clone = {"clone", "make another tree with the same data", clone_run, &table};
