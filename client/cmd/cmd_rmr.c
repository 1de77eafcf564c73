/* SPDX-License-Identifier: Apache-2.0 */
/* stoke rmr: removes trees, in the mount that they lie in, which is faster than rm -r. */
#include <inttypes.h>

#include "client/cmd/ask.h"

struct rmr_conf {
	uint64_t threads;
	bool skip_trash;
};

static const struct conf_option options[] = {
	{"skip-trash", 0, CONF_FLAG, offsetof(struct rmr_conf, skip_trash), "false", NULL,
	 "delete for good, past the trash (root only)"},
	{"threads", 'p', CONF_U64, offsetof(struct rmr_conf, threads), "4", NULL,
	 "directories that are worked on at once, 1 to 16"},
};

static const struct conf_table table = {
	.options = options,
	.n = ARRAY_LEN(options),
	.usage = "stoke rmr [options] PATH…",
	.summary = "remove directories and all that is in them",
	.min_args = 1,
	.max_args = SIZE_MAX,
};

static int remove_path(struct maint *m, const struct rmr_conf *conf, const struct asked_path *p,
		       const char *path)
{
	_cleanup_(str_fini) struct str request = STR_INIT;
	struct ask_answer answer;
	int r;

	if (p->name.len == 0) {
		(void)cmd_error("rmr", "%s: the top of a mount stays; name what lies in it", path);
		return -EBUSY;
	}
	str_addf(&request, "threads %" PRIu64 " rmr %d %" PRIu64 " %s\n", conf->threads,
		 conf->skip_trash, p->dir, str_c(&p->name));
	if (str_error(&request) < 0)
		return -ENOMEM;
	maint_begin(m, "entries removed", NULL);
	r = ask_run(m, p->control, str_c(&request), NULL, NULL, &answer);
	maint_end(m);
	if (r)
		(void)cmd_error("rmr", "%s: %s", path,
				r == -EINTR ? "interrupted; a part of it is gone" : ask_error(r));
	else
		maint_say(m, "removed %s: %" PRIu64 " entries", path, answer.files);
	return r;
}

static int rmr_run(int argc, char **argv)
{
	struct maint m = {.name = "rmr"};
	struct rmr_conf conf;
	char **args;
	size_t n;
	int r = maint_args("rmr", &table, &conf, argc, argv, &args, &n), failed = 0;

	if (r == 0 && conf.skip_trash && getuid() != 0) {
		(void)cmd_error("rmr", "--skip-trash: only root may delete past the trash");
		r = 2;
	}
	if (r == 0)
		conf.threads = ask_threads(conf.threads);
	if (r == 0)
		maint_catch(&m, "rmr");
	for (size_t i = 0; r == 0 && i < n && failed != -EINTR; i++) {
		struct asked_path p;
		int e = ask_open(args[i], true, &p);

		if (e) {
			(void)cmd_error("rmr", "%s: %s", args[i], ask_error(e));
		} else {
			e = remove_path(&m, &conf, &p, args[i]);
			ask_close(&p);
		}
		failed = e ? e : failed;
	}
	conf_fini(&table, &conf);
	return r ? r - 1 : failed != 0;
}

const struct cmd cmd_rmr = {"rmr", "remove directories and all that is in them", rmr_run, &table};
