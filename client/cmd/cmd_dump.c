/* SPDX-License-Identifier: Apache-2.0 */
/* stoke dump: the metadata of a volume as a file that can be loaded into an empty database. One
 * thread; blocks. */
#include "client/cmd/maint.h"
#include "client/maint/dump.h"

struct dump_options {
	char *subdir;
	uint64_t threads;
	bool keep_secret, skip_trash, fast, binary;
};

static const struct conf_option options[] = {
	{"subdir", 0, CONF_STR, offsetof(struct dump_options, subdir), NULL, NULL,
	 "only what lies below this directory of the volume"},
	{"keep-secret-key", 0, CONF_FLAG, offsetof(struct dump_options, keep_secret), "false", NULL,
	 "keep the object store's secrets; else they become \"removed\""},
	{"skip-trash", 0, CONF_FLAG, offsetof(struct dump_options, skip_trash), "false", NULL,
	 "leave the trash out"},
	{"threads", 0, CONF_U64, offsetof(struct dump_options, threads), "10", NULL, NULL},
	{"fast", 0, CONF_FLAG, offsetof(struct dump_options, fast), "false", NULL, NULL},
	{"binary", 0, CONF_FLAG, offsetof(struct dump_options, binary), "false", NULL,
	 "JuiceFS's binary format: not handled"},
};

static const struct conf_table table = {
	.options = options,
	.n = ARRAY_LEN(options),
	.usage = "stoke dump [options] META [FILE]",
	.summary = "write a volume's metadata into FILE (JSON, compressed when it ends in .gz; "
		   "default: "
		   "standard output); juicefs load takes it",
	.min_args = 1,
	.max_args = 2,
};

static int dump(struct maint *m, const struct dump_options *o, const char *path, struct str *err)
{
	struct dump_conf conf = {.subdir = o->subdir,
				 .keep_secret = o->keep_secret,
				 .skip_trash = o->skip_trash,
				 .warn = maint_warn,
				 .warn_arg = m};
	struct dumpfile *f;
	int r = dumpfile_create(path, &f), e;

	if (r < 0) {
		str_addf(err, "%s: %s", path ? path : "standard output", strerror(-r));
		return r;
	}
	maint_begin(m, "entries", "of files");
	r = meta_dump(&m->scan, m->setting, &conf, f, &m->progress, err);
	e = dumpfile_close(f, r == 0);
	maint_end(m);
	if (r == 0 && e < 0) {
		str_addf(err, "%s: %s", path ? path : "standard output", strerror(-e));
		r = e;
	}
	return r;
}

static int dump_run(int argc, char **argv)
{
	struct dump_options o;
	struct maint m = {.name = "dump"};
	struct str err = STR_INIT;
	char **args;
	size_t n;
	int r = maint_args("dump", &table, &o, argc, argv, &args, &n);

	if (r == 0 && o.binary) {
		(void)cmd_error("dump",
				"--binary: JuiceFS's binary format is not handled: leave it out, "
				"or dump with juicefs");
		r = 3;
	}
	if (r) {
		conf_fini(&table, &o);
		return r - 1;
	}
	r = maint_open(&m, "dump", args[0], false);
	if (r == 0) {
		r = dump(&m, &o, n > 1 ? args[1] : NULL, &err);
		if (r == 0 && n > 1)
			maint_say(&m, "dumped %llu entries into %s",
				  (unsigned long long)m.progress.files, args[1]);
		r = maint_exit(&m, r, &err);
	} else {
		r = 1;
	}
	maint_close(&m);
	str_fini(&err);
	conf_fini(&table, &o);
	return r;
}

const struct cmd cmd_dump = {"dump", "write a volume's metadata into a file", dump_run, &table};
