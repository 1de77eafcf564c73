/* SPDX-License-Identifier: Apache-2.0 */
/* gc's changes: what waits in the metadata is ended, and with --compact lists become short. By the
 * engine's own clean-ups, in a session. */
#include "client/cmd/gc.h"

#include <inttypes.h>
#include <limits.h>

#include "client/cmd/blockpath.h"
#include "client/maint/compact_lists.h"
#include "client/maint/repair.h"
#include "client/meta/jobs.h"

enum { DAY = 86400 };

int gc_start(struct gc *g)
{
	int r = 0;

	if (g->conf->compact)
		r = blockpath_new(g->m->setting, objects_loop(g->objects),
				  objects_store(g->objects), &g->path, &g->err);
	if (r == 0 && (g->conf->compact || g->conf->remove))
		r = maint_engine(
			g->m,
			&(struct maint_engine_conf){
				.change = true,
				.deletes = (unsigned)g->conf->threads,
				.remove = objects_delete_slice,
				.remove_arg = g->objects,
				.compact = g->path ? client_compact_slice : NULL,
				.compact_arg = g->path ? blockpath_compact(g->path) : NULL},
			&g->meta);
	return r;
}

void gc_stop(struct gc *g)
{
	maint_engine_free(g->meta);
	blockpath_free(g->path);
	g->meta = NULL;
	g->path = NULL;
}

/* one clean-up: what it did is told */
typedef int clean_fn(struct meta *m, int64_t before_sec, struct meta_progress *p);

static int clean(struct gc *g, clean_fn *fn, int64_t before_sec, const char *what)
{
	int r;

	maint_begin(g->m, what, "of data");
	r = fn(g->meta, before_sec, &g->m->progress);
	maint_end(g->m);
	if (g->m->progress.files && g->m->progress.bytes)
		maint_say(g->m, "%s: %" PRIu64 " (%" PRIu64 " bytes)", what, g->m->progress.files,
			  g->m->progress.bytes);
	else if (g->m->progress.files)
		maint_say(g->m, "%s: %" PRIu64, what, g->m->progress.files);
	return r;
}

static int slices(struct meta *m, int64_t before_sec, struct meta_progress *p)
{
	(void)before_sec;
	return meta_slices_clean(m, p);
}

static int compact(struct gc *g)
{
	int r;

	maint_begin(g->m, "chunks looked at", "freed");
	g->m->progress.threads = (unsigned)MIN(g->conf->threads, (uint64_t)UINT_MAX);
	r = meta_compact_all(g->meta, &g->m->progress);
	maint_end(g->m);
	maint_say(g->m, "compacted: %" PRIu64 " chunks looked at, %" PRIu64 " bytes freed",
		  g->m->progress.files, g->m->progress.bytes);
	return r;
}

int gc_fold(struct gc *g)
{
	size_t n = 0;
	int r = meta_fold_refs(&g->m->scan, &n);

	if (n)
		maint_say(g->m, "references of old clients moved to sliceRef: %zu", n);
	return r;
}

/* what was deleted for good is ended at once; what is in the trash stays as long as the volume
 * says */
int gc_clean(struct gc *g)
{
	int64_t edge = g->now_sec - (int64_t)g->m->setting->trash_days * DAY;
	int r = 0;

	if (g->conf->remove) {
		r = clean(g, meta_trash_expire, edge, "entries of the trash removed");
		if (r == 0)
			r = clean(g, meta_detached_clean, g->now_sec - DAY,
				  "entries of unfinished clones removed");
		if (r == 0)
			r = clean(g, meta_deleted_clean, g->now_sec + DAY, "deleted files ended");
	}
	if (r == 0 && g->conf->compact)
		r = compact(g);
	if (r == 0 && g->conf->remove)
		r = clean(g, slices, 0, "slices without references deleted");
	if (r == 0 && g->conf->remove)
		r = clean(g, meta_delayed_clean, edge, "slices of the trash deleted");
	return r;
}

int gc_clean_inodes(struct gc *g, const struct numtable *lost)
{
	struct meta_progress p = {.files = 0};
	int r = 0;

	for (size_t i = 0; i < lost->cap && r == 0; i++) {
		if (lost->slot[i].used && lost->slot[i].w)
			r = meta_inode_clean(g->meta, lost->slot[i].a, &p);
		if (r == -ENOENT)
			r = 0;
	}
	return r;
}

int gc_clean_chunks(struct gc *g, const struct slices *s)
{
	struct meta_progress p = {.files = 0};
	int r = 0;

	for (size_t i = 0; i < s->n_leaked && r == 0; i++) {
		r = meta_chunk_clean(g->meta, s->leaked[i].inode, s->leaked[i].index, &p);
		/* the file is there after all */
		if (r == -EEXIST)
			r = 0;
	}
	return r;
}
