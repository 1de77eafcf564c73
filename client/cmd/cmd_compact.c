/* SPDX-License-Identifier: Apache-2.0 */
/* stoke compact: one slice of the many that chunks consist of. Asks the mount that they lie in. */
#include <inttypes.h>

#include "client/cmd/ask.h"

struct compact_conf {
	uint64_t threads;
};

static const struct conf_option options[] = {
	{"threads", 'p', CONF_U64, offsetof(struct compact_conf, threads), "10", NULL,
	 "chunks that are compacted at once, 1 to 64"},
};

static const struct conf_table table = {
	.options = options,
	.n = ARRAY_LEN(options),
	.usage = "stoke compact PATH…",
	.summary = "make one slice of the many that the chunks of files consist of",
	.min_args = 1,
	.max_args = SIZE_MAX,
};

static int one(struct maint *m, const struct compact_conf *conf, const char *path)
{
	struct ask_answer answer;
	struct asked_path p;
	char request[80];
	int r = ask_open(path, true, &p);

	if (r == 0) {
		(void)snprintf(request, sizeof(request),
			       "threads %" PRIu64 " compact %" PRIu64 "\n", conf->threads, p.inode);
		maint_begin(m, "files", "freed");
		r = ask_run(m, p.control, request, NULL, NULL, &answer);
		maint_end(m);
		ask_close(&p);
	}
	if (r)
		(void)cmd_error("compact", "%s: %s", path, ask_error(r));
	else
		maint_say(m,
			  "compacted %s: %" PRIu64 " files, %" PRIu64 " chunks, %" PRIu64
			  " bytes freed",
			  path, answer.files, answer.chunks, answer.bytes);
	return r;
}

static int compact_run(int argc, char **argv)
{
	struct maint m = {.name = "compact"};
	struct compact_conf conf;
	char **args;
	size_t n;
	int r = maint_args("compact", &table, &conf, argc, argv, &args, &n), failed = 0;

	if (r == 0)
		conf.threads = ask_threads(conf.threads);
	if (r == 0)
		maint_catch(&m, "compact");
	for (size_t i = 0; r == 0 && i < n && failed != -EINTR; i++) {
		int e = one(&m, &conf, args[i]);

		failed = e ? e : failed;
	}
	conf_fini(&table, &conf);
	return r ? r - 1 : failed != 0;
}

const struct cmd cmd_compact = {"compact", "make one slice of the many of a chunk", compact_run,
				&table};
