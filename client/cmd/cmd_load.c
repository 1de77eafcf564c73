/* SPDX-License-Identifier: Apache-2.0 */
/* stoke load: a dump, ours or JuiceFS's, into an empty database. One thread; blocks. */
#include "client/cmd/maint.h"
#include "client/maint/dumpfile.h"
#include "client/maint/load.h"

struct load_options {
	char *rsa_key, *algo;
	uint64_t threads;
	bool binary;
};

static const struct conf_option options[] = {
	{"threads", 0, CONF_U64, offsetof(struct load_options, threads), "10", NULL, NULL},
	{"binary", 0, CONF_FLAG, offsetof(struct load_options, binary), "false", NULL,
	 "JuiceFS's binary format: not handled"},
	{"encrypt-rsa-key", 0, CONF_STR, offsetof(struct load_options, rsa_key), NULL, NULL,
	 "JuiceFS's encrypted dumps: not handled"},
	{"encrypt-algo", 0, CONF_STR, offsetof(struct load_options, algo), NULL, NULL,
	 "goes with --encrypt-rsa-key"},
};

static const struct conf_table table = {
	.options = options,
	.n = ARRAY_LEN(options),
	.usage = "stoke load [options] META [FILE]",
	.summary = "load metadata that stoke dump or juicefs dump wrote into an empty database "
		   "(FILE may "
		   "be compressed with gzip; default: standard input)",
	.min_args = 1,
	.max_args = 2,
};

static ssize_t read_file(void *arg, void *p, size_t cap)
{
	return dumpfile_read(arg, p, cap);
}

static int load(struct maint *m, const char *path, struct load_result *ret, struct str *err)
{
	struct dumpfile *f;
	int r = dumpfile_open(path, &f);

	if (r == -EOPNOTSUPP)
		str_addf(err,
			 "%s: zstd, or JuiceFS's binary format: decompress it first (zstd -d), or "
			 "load a dump in JSON",
			 path ? path : "standard input");
	else if (r < 0)
		str_addf(err, "%s: %s", path ? path : "standard input", strerror(-r));
	if (r < 0)
		return r;
	maint_begin(m, "inodes", "of files");
	r = meta_load(&m->scan, read_file, f, &m->progress, maint_warn, m, ret, err);
	(void)dumpfile_close(f, false);
	maint_end(m);
	return r;
}

static int load_run(int argc, char **argv)
{
	struct load_result res = {.name = NULL};
	struct maint m = {.name = "load"};
	struct load_options o;
	struct str err = STR_INIT;
	char **args;
	size_t n;
	int r = maint_args("load", &table, &o, argc, argv, &args, &n);

	if (r == 0 && (o.binary || o.rsa_key)) {
		(void)cmd_error("load", "%s: load it with juicefs",
				o.binary ? "JuiceFS's binary format is not handled"
					 : "encrypted dumps are not handled");
		r = 3;
	}
	if (r) {
		conf_fini(&table, &o);
		return r - 1;
	}
	r = maint_open(&m, "load", args[0], true);
	if (r == 0 && m.setting) {
		(void)cmd_error("load", "%s is used by volume %s: choose an empty database",
				redis_name(m.redis), m.setting->name);
		r = 1;
	} else if (r == 0) {
		r = maint_exit(&m, load(&m, n > 1 ? args[1] : NULL, &res, &err), &err);
	} else {
		r = 1;
	}
	if (r == 0)
		maint_say(&m, "loaded volume %s: %llu inodes, %llu bytes", res.name,
			  (unsigned long long)res.inodes, (unsigned long long)res.bytes);
	if (r == 0 && res.secret_removed)
		maint_warn(&m, "the secret of the object store was removed from the dump: set it "
			       "with stoke config");
	free(res.name);
	maint_close(&m);
	str_fini(&err);
	conf_fini(&table, &o);
	return r;
}

const struct cmd cmd_load = {"load", "load a dump into an empty database", load_run, &table};
