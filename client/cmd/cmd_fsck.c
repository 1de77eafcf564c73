/* SPDX-License-Identifier: Apache-2.0 */
/* stoke fsck: looks for what is wrong with a volume: objects that are missing or have not the right
 * size, directories whose records or statistics do not fit what is in them. Registers no session.
 * One thread; blocks. */
#include <inttypes.h>
#include <stdarg.h>

#include "client/cmd/fsck.h"
#include "client/maint/dump.h"

static const struct conf_option options[] = {
	{"path", 0, CONF_STR, offsetof(struct fsck_conf, path), NULL, NULL,
	 "only what this path of the volume names (all of it with --recursive)"},
	{"repair", 0, CONF_FLAG, offsetof(struct fsck_conf, repair), "false", NULL,
	 "repair directories at --path"},
	{"recursive", 'r', CONF_FLAG, offsetof(struct fsck_conf, recursive), "false", NULL,
	 "everything below --path, too"},
	{"sync-dir-stat", 0, CONF_FLAG, offsetof(struct fsck_conf, sync_stat), "false", NULL,
	 "count what each directory holds and compare; with --repair, write it"},
	{"repair-dir-mode", 0, CONF_STR, offsetof(struct fsck_conf, dir_mode), "0755", NULL,
	 "mode of directories whose attributes are lost"},
	{"threads", 'p', CONF_U64, offsetof(struct fsck_conf, threads), "10", NULL,
	 "requests to the object store at once"},
};

static const struct conf_table table = {
	.options = options,
	.n = ARRAY_LEN(options),
	.usage = "stoke fsck [options] META",
	.summary = "check a volume: objects, directories; exit status 1 when something is wrong",
	.min_args = 1,
	.max_args = 1,
};

void fsck_found(struct fsck *f, uint64_t inode, const char *path, const char *fmt, ...)
{
	char what[400];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	f->findings++;
	maint_say(f->m, "inode %" PRIu64 " %s: %s", inode, *path ? path : "(no name)", what);
}

static int some(struct fsck *f)
{
	struct numtable files = {.slot = NULL};
	uint64_t inode;
	uint8_t type;
	int r = scan_resolve(&f->m->scan, f->conf->path, &inode, &type);

	if (r) {
		str_addf(&f->err, "%s: %s", f->conf->path, strerror(-r));
		return r;
	}
	r = fsck_tree(f, inode, type, f->conf->path, f->conf->recursive ? &files : NULL);
	if (r == 0 && type == INODE_FILE) {
		struct numslot *s = numtable_at(&files, inode, 0);

		if (!s)
			r = -ENOMEM;
		else
			s->v = FILE_LENGTH_MAX; /* whatever chunks there are */
		f->nodes++;
	}
	if (r == 0 && files.n)
		r = fsck_data(f, &files);
	numtable_fini(&files);
	return r;
}

static int all(struct fsck *f)
{
	int r = fsck_tree(f, INODE_ROOT, INODE_DIR, "/", NULL);

	return r ? r : fsck_data(f, NULL);
}

static void summary(struct fsck *f)
{
	maint_say(f->m, "checked %" PRIu64 " entries, %" PRIu64 " objects (%" PRIu64 " bytes)",
		  f->nodes, f->blocks, f->block_bytes);
	if (f->unsure)
		maint_say(f->m, "%s", f->unsure);
	if (f->repaired)
		maint_say(f->m, "repaired %" PRIu64 " times", f->repaired);
	if (f->unknown)
		maint_say(f->m, "%" PRIu64 " objects could not be checked", f->unknown);
	if (f->lost)
		maint_say(f->m,
			  "%" PRIu64 " objects are lost or damaged (%" PRIu64 " bytes) in %" PRIu64
			  " files",
			  f->lost, f->lost_bytes, f->broken_files);
	if (f->findings)
		maint_say(f->m, "%" PRIu64 " things are wrong", f->findings);
}

/* 0, or -EINVAL and told */
static int options_ok(struct fsck *f, struct fsck_conf *conf)
{
	char *end;
	unsigned long mode = strtoul(conf->dir_mode, &end, 8);

	if (*end || !conf->dir_mode[0] || mode > 07777)
		(void)cmd_error("fsck", "--repair-dir-mode %s: not a mode (octal, 0755)",
				conf->dir_mode);
	else if (conf->path && conf->path[0] != '/')
		(void)cmd_error("fsck", "--path %s: give the path within the volume, from /",
				conf->path);
	else if (conf->repair && !conf->path)
		(void)cmd_error("fsck", "--repair needs --path: say which directory (/ and "
					"--recursive: all)");
	else {
		f->dir_mode = (uint16_t)mode;
		if (!conf->path)
			conf->recursive = true;
		return 0;
	}
	return -EINVAL;
}

static int fsck_run(int argc, char **argv)
{
	struct maint m = {.name = "fsck"};
	struct fsck_conf conf;
	struct fsck f = {.m = &m, .conf = &conf, .err = STR_INIT};
	char **args;
	size_t n;
	int r = maint_args("fsck", &table, &conf, argc, argv, &args, &n);

	if (r == 0 && options_ok(&f, &conf) < 0)
		r = 3;
	if (r) {
		conf_fini(&table, &conf);
		return r - 1;
	}
	r = 1;
	if (maint_open(&m, "fsck", args[0], false) == 0) {
		r = conf.path ? some(&f) : all(&f);
		r = maint_exit(&m, r, &f.err);
		if (r == 0) {
			summary(&f);
			r = f.findings || f.unknown;
		}
	}
	maint_close(&m);
	str_fini(&f.err);
	conf_fini(&table, &conf);
	return r;
}

const struct cmd cmd_fsck = {"fsck", "check a volume", fsck_run, &table};
