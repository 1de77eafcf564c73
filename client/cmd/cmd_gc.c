/* SPDX-License-Identifier: Apache-2.0 */
/* stoke gc: what a volume holds that nothing refers to, and what waits to be deleted. Without flags
 * it only counts; with --delete it clears away what nobody can miss. One thread; blocks. */
#include <inttypes.h>

#include "client/cmd/gc.h"
#include "common/clock.h"
#include "common/parse.h"

static const struct conf_option options[] = {
	{"delete", 0, CONF_FLAG, offsetof(struct gc_conf, remove), "false", NULL,
	 "delete leaked objects and records, files that wait for it, and what the trash has kept "
	 "long "
	 "enough"},
	{"compact", 0, CONF_FLAG, offsetof(struct gc_conf, compact), "false", NULL,
	 "make one slice of the many that chunks consist of"},
	{"threads", 'p', CONF_U64, offsetof(struct gc_conf, threads), "10", NULL,
	 "requests to the object store at once"},
};

static const struct conf_table table = {
	.options = options,
	.n = ARRAY_LEN(options),
	.usage = "stoke gc [options] META",
	.summary = "count, or delete, objects and records that a volume does not need",
	.min_args = 1,
	.max_args = 1,
};

static void warn(void *arg, const char *line)
{
	struct gc *g = arg;

	maint_warn(g->m, line);
}

static int read_slices(struct gc *g, struct slices *ret)
{
	int r;

	maint_begin(g->m, "slices", "of data");
	r = slices_read(&g->m->scan, &g->m->progress, warn, g, ret);
	maint_end(g->m);
	return r;
}

/* before anything is counted down: what is counted too low would be deleted */
static int count_up(struct gc *g)
{
	struct slices s = {.leaked = NULL};
	int r = gc_fold(g);

	if (r == 0)
		r = read_slices(g, &s);
	if (r == 0)
		r = gc_surplus(g, &s);
	slices_fini(&s);
	return r;
}

static int scan(struct gc *g)
{
	struct numtable lost = {.slot = NULL};
	struct slices s = {.leaked = NULL};
	int r = g->conf->remove ? count_up(g) : 0;

	if (r == 0)
		r = gc_clean(g);

	if (r == 0)
		r = gc_inodes(g, &lost);
	if (r == 0 && g->conf->remove)
		r = gc_clean_inodes(g, &lost);
	if (r == 0)
		r = gc_trash(g);
	if (r == 0)
		r = read_slices(g, &s);
	if (r == 0 && !g->conf->remove)
		r = gc_surplus(g, &s);
	if (r == 0) {
		g->files = (struct gc_sum){.n = s.deleted.n, .bytes = s.waiting_bytes};
		g->leaked_chunks = s.n_leaked;
		if (g->conf->remove)
			r = gc_clean_chunks(g, &s);
	}
	if (r == 0)
		r = gc_objects(g, &s);
	numtable_fini(&lost);
	slices_fini(&s);
	return r;
}

static void line(struct gc *g, const char *what, uint64_t n, uint64_t bytes)
{
	maint_say(g->m, "%-28s %12" PRIu64 " %18" PRIu64 " bytes", what, n, bytes);
}

static void summary(struct gc *g)
{
	line(g, "valid objects", g->used.n, g->used.bytes);
	line(g, "objects of deleted files", g->waiting.n, g->waiting.bytes);
	line(g, "objects of delayed slices", g->delayed.n, g->delayed.bytes);
	line(g, "objects pending delete", g->pending.n, g->pending.bytes);
	line(g, "leaked objects", g->leaked.n, g->leaked.bytes);
	line(g, "skipped (younger than 1 h)", g->skipped.n, g->skipped.bytes);
	line(g, "deleted files pending", g->files.n, g->files.bytes);
	line(g, "files in the trash", g->trash_files.n, g->trash_files.bytes);
	maint_say(g->m,
		  "trash: %" PRIu64 " hours, %" PRIu64
		  " directories; leaked lists of chunks: %" PRIu64 ", leaked inodes: %" PRIu64
		  ", detached nodes: %" PRIu64 ", objects that are no blocks: %" PRIu64,
		  g->hours, g->trash_dirs.n, g->leaked_chunks, g->leaked_inodes, g->detached,
		  g->other);
	if (g->conf->remove)
		maint_say(g->m, "deleted %" PRIu64 " leaked objects (%" PRIu64 " bytes)",
			  g->removed.n, g->removed.bytes);
	else if (g->leaked.n || g->files.n || g->pending.n || g->leaked_chunks ||
		 g->leaked_inodes || g->surplus)
		maint_say(g->m, "stoke gc --delete clears away what is leaked or pending");
}

static int gc(struct gc *g)
{
	const char *skip = getenv("JFS_GC_SKIPPEDTIME");
	uint64_t seconds;
	uint32_t nsec;
	int r;

	clock_real(&g->now_sec, &nsec);
	g->skip_sec = 3600;
	if (skip && parse_u64(skip, UINT32_MAX, &seconds) == 0)
		g->skip_sec = (int64_t)seconds - 1;
	r = objects_open(g->m->setting, (unsigned)g->conf->threads, &g->objects, &g->err);
	if (r)
		return r;
	maint_say(g->m, "data: %s", objects_where(g->objects));
	r = gc_start(g);
	if (r == 0)
		r = scan(g);
	gc_stop(g);
	objects_free(g->objects);
	return r;
}

static int gc_run(int argc, char **argv)
{
	struct maint m = {.name = "gc"};
	struct gc_conf conf;
	struct gc g = {.m = &m, .conf = &conf, .err = STR_INIT};
	char **args;
	size_t n;
	int r = maint_args("gc", &table, &conf, argc, argv, &args, &n);

	if (r) {
		conf_fini(&table, &conf);
		return r - 1;
	}
	r = 1;
	if (maint_open(&m, "gc", args[0], false) == 0) {
		r = maint_exit(&m, gc(&g), &g.err);
		if (r == 0)
			summary(&g);
	}
	maint_close(&m);
	str_fini(&g.err);
	conf_fini(&table, &conf);
	return r;
}

const struct cmd cmd_gc = {"gc", "count or delete what a volume does not need", gc_run, &table};
