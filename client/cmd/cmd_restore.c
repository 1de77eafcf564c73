/* SPDX-License-Identifier: Apache-2.0 */
/* stoke restore: builds the trees of an hour of the trash again, and with --put-back moves them to
 * where they were. An entry's name in the trash is {parent}-{inode}-{name} (docs/format.md §2.14).
 * An hour's entries are shared out among a few threads; blocks. */
#include <inttypes.h>

#include "client/cmd/maint.h"
#include "client/maint/numtable.h"
#include "client/maint/repair.h"
#include "common/mtx.h"

enum { THREADS_MAX = 32 };

struct restore_conf {
	uint64_t threads;
	bool put_back;
};

static const struct conf_option options[] = {
	{"put-back", 0, CONF_FLAG, offsetof(struct restore_conf, put_back), "false", NULL,
	 "move everything to the directory that it was in; else only what lay in a directory of "
	 "the "
	 "same hour"},
	{"threads", 0, CONF_U64, offsetof(struct restore_conf, threads), "10", NULL,
	 "entries that are moved at once, 1 to 32"},
};

static const struct conf_table table = {
	.options = options,
	.n = ARRAY_LEN(options),
	.usage = "stoke restore [options] META HOUR…",
	.summary = "restore files from the trash (HOUR: a directory below .trash, 2026-05-10-01)",
	.min_args = 2,
	.max_args = SIZE_MAX,
};

struct restore {
	struct maint *m;
	const struct restore_conf *conf;
	struct meta *meta;
	struct mtx lock;
	struct numtable back; /* directories that came back */
	uint64_t done, kept, conflicts, failed;
	/* of the hour */
	uint64_t hour;
	const struct meta_dir *dir;
	struct numtable dirs; /* that lie in it */
	size_t next;
};

static void told(struct restore *rs, const char *name, const char *why)
{
	_cleanup_(str_fini) struct str line = STR_INIT;

	str_addf(&line, "%s: %s", name, why);
	maint_warn(rs->m, str_c(&line));
}

/* the parts of an entry's name; false: it is not of that form */
static bool parts(const char *name, uint64_t *ret_parent, const char **ret_name)
{
	const char *a = strchr(name, '-'), *b = a ? strchr(a + 1, '-') : NULL;
	uint64_t inode;

	if (!b || !b[1])
		return false;
	*ret_name = b + 1;
	return scan_u64(name, (size_t)(a - name), ret_parent) &&
	       scan_u64(a + 1, (size_t)(b - a) - 1, &inode);
}

static void count(struct restore *rs, uint64_t *what)
{
	mtx_lock(&rs->lock);
	++*what;
	mtx_unlock(&rs->lock);
}

static void came_back(struct restore *rs, uint64_t inode, bool dir)
{
	mtx_lock(&rs->lock);
	rs->done++;
	if (dir)
		(void)numtable_at(&rs->back, inode, 0);
	mtx_unlock(&rs->lock);
	__atomic_fetch_add(&rs->m->progress.files, 1, __ATOMIC_RELAXED);
}

static void one(struct restore *rs, const struct meta_entry *e)
{
	static const struct meta_ctx root = {.uid = 0};
	uint64_t parent, inode;
	struct attr attr;
	const char *name;
	int r;

	if (!parts(e->name, &parent, &name)) {
		told(rs, e->name, "not a name of the trash");
		count(rs, &rs->failed);
		return;
	}
	if (!rs->conf->put_back && !numtable_find(&rs->dirs, parent, 0)) {
		count(rs, &rs->kept);
		return;
	}
	r = meta_rename(rs->meta, &root, rs->hour, e->name, parent, name,
			RENAME_F_NOREPLACE | RENAME_F_RESTORE, &inode, &attr);
	if (r == 0) {
		came_back(rs, inode, attr.type == INODE_DIR);
		return;
	}
	told(rs, e->name,
	     r == -EEXIST   ? "there is something of that name"
	     : r == -ENOENT ? "the directory that it was in is gone: restore that first"
			    : strerror(-r));
	count(rs, r == -EEXIST ? &rs->conflicts : &rs->failed);
}

static void *work(void *arg)
{
	struct restore *rs = arg;
	const struct meta_entry *e;

	do {
		e = NULL;
		mtx_lock(&rs->lock);
		if (rs->next < rs->dir->n &&
		    !__atomic_load_n(&rs->m->progress.cancel, __ATOMIC_RELAXED))
			e = &rs->dir->entries[rs->next++];
		mtx_unlock(&rs->lock);
		if (e)
			one(rs, e);
	} while (e);
	return NULL;
}

static int restore_hour(struct restore *rs, const char *hour)
{
	static const struct meta_ctx root = {.uid = 0};
	struct meta_dir *d = NULL;
	struct attr attr;
	uint64_t inode;
	int r = meta_lookup(rs->meta, &root, INODE_TRASH, hour, &inode, &attr);

	if (r == 0)
		r = meta_readdir(rs->meta, inode, false, &d);
	if (r) {
		told(rs, hour, r == -ENOENT ? "no such hour in the trash" : strerror(-r));
		return r;
	}
	/* only into directories of the same hour, unless all is put back */
	for (size_t i = 0; i < d->n && r == 0; i++) {
		if (d->entries[i].attr.type == INODE_DIR &&
		    !numtable_at(&rs->dirs, d->entries[i].inode, 0))
			r = -ENOMEM;
	}
	rs->hour = inode;
	rs->dir = d;
	rs->next = 0;
	if (r == 0)
		maint_threads("restore", MIN(rs->conf->threads, (uint64_t)THREADS_MAX), work, rs);
	if (r == 0 && __atomic_load_n(&rs->m->progress.cancel, __ATOMIC_RELAXED))
		r = -EINTR;
	numtable_fini(&rs->dirs);
	meta_dir_free(d);
	return r;
}

static int count_it(void *arg, const struct walk_dir *d)
{
	struct restore *rs = arg;

	return d->has_attr ? meta_repair_dir(&rs->m->scan, rs->m->setting, d, NULL, true) : 0;
}

/* A directory loses its statistics on its way into the trash. Those that got entries again were
 * counted by the engine, which is stopped by now; the others are counted here. */
static void count_all(struct restore *rs)
{
	static const struct walk_ops ops = {.leave = count_it};
	struct pipe p;
	char field[24];

	pipe_init(&p, &rs->m->scan);
	for (size_t i = 0; i < rs->back.cap && rs->m->setting->dir_stats; i++) {
		if (!rs->back.slot[i].used)
			continue;
		pipe_reset(&p);
		(void)snprintf(field, sizeof(field), "%" PRIu64, rs->back.slot[i].a);
		pipe_add(&p, "HEXISTS", "dirUsedSpace", field, (char *)NULL);
		/* what is missing still is counted by whoever changes it next, or by fsck */
		if (pipe_run(&p) == 0 && redis_reply_int(p.reply[0]) == 0)
			(void)walk_tree(&rs->m->scan, rs->back.slot[i].a, "", false, &ops, rs);
	}
	pipe_fini(&p);
	numtable_fini(&rs->back);
}

static int restore(struct restore *rs, char **hours, size_t n)
{
	int failed = 0;

	maint_begin(rs->m, "entries restored", NULL);
	for (size_t i = 0; i < n && failed != -EINTR; i++) {
		int r = restore_hour(rs, hours[i]);

		failed = r ? r : failed;
	}
	maint_end(rs->m);
	maint_say(rs->m,
		  "restored %" PRIu64 " entries, %" PRIu64 " need --put-back, %" PRIu64
		  " conflicts, %" PRIu64 " failed",
		  rs->done, rs->kept, rs->conflicts, rs->failed);
	return failed || rs->failed || rs->conflicts;
}

static int restore_run(int argc, char **argv)
{
	struct maint m = {.name = "restore"};
	struct restore_conf conf;
	struct restore rs = {.m = &m, .conf = &conf};
	char **args;
	size_t n;
	int r = maint_args("restore", &table, &conf, argc, argv, &args, &n);

	if (r == 0 && getuid() != 0) {
		(void)cmd_error("restore", "only root can restore files from the trash");
		r = 2;
	}
	if (r) {
		conf_fini(&table, &conf);
		return r - 1;
	}
	mtx_init(&rs.lock);
	r = 1;
	if (maint_open(&m, "restore", args[0], false) == 0 &&
	    maint_engine(&m, &(struct maint_engine_conf){.change = true}, &rs.meta) == 0)
		r = restore(&rs, args + 1, n - 1);
	maint_engine_free(rs.meta);
	if (m.redis)
		count_all(&rs);
	mtx_fini(&rs.lock);
	maint_close(&m);
	conf_fini(&table, &conf);
	return r;
}

const struct cmd cmd_restore = {"restore", "restore files from the trash", restore_run, &table};
