/* SPDX-License-Identifier: Apache-2.0 */
/* Objects against slices. The store is listed once and each slice's good blocks are counted; only
 * where some are missing is the store asked for each block, and only for those that are bad is the
 * metadata read again: what went in between is no finding. Which files have them is found for all
 * together, since a path costs reading the directories on it. */
#include "client/cmd/fsck.h"

#include <inttypes.h>

#include "client/maint/paths.h"
#include "client/maint/surplus.h"
#include "common/block/key.h"

/* a block that is missing or has not the right size */
struct bad {
	uint64_t slice;
	uint32_t size, index, plain;
	int64_t stored; /* -1: it is not there */
};
struct data {
	struct fsck *f;
	struct objects *o;
	struct slices s;
	struct bad *bad;
	size_t n_bad, cap_bad;
	int err;
	struct object_slice asked[OBJECTS_AT_ONCE];
	size_t n_asked;
	struct broken *broken; /* a file and a slice of it that has bad blocks */
	size_t n_broken, cap_broken;
	struct numtable told;  /* (inode, slice): among them */
	struct numtable files; /* inodes of them */
};
struct broken {
	uint64_t inode, slice;
	uint32_t size;
};

/* room for one more of the n elements at *v; -ENOMEM */
static int more(void *at, size_t n, size_t *cap, size_t size)
{
	void **v = at, *bigger;

	if (n < *cap)
		return 0;
	bigger = reallocarray(*v, *cap ? *cap * 2 : 64, size);
	if (!bigger)
		return -ENOMEM;
	*v = bigger;
	*cap = *cap ? *cap * 2 : 64;
	return 0;
}

static void unknown(void *arg, const char *why)
{
	struct data *d = arg;

	d->f->unknown++;
	maint_warn(d->f->m, why);
}

static void bad(void *arg, const struct object_slice *s, uint32_t index, uint32_t plain,
		int64_t stored)
{
	struct data *d = arg;

	if (more(&d->bad, d->n_bad, &d->cap_bad, sizeof(*d->bad)) < 0) {
		d->err = -ENOMEM;
		return;
	}
	d->bad[d->n_bad++] = (struct bad){.slice = s->slice,
					  .size = s->size,
					  .index = index,
					  .plain = plain,
					  .stored = stored};
}

static int found(void *arg, const struct object_found *o)
{
	struct data *d = arg;
	struct numslot *s;

	d->f->blocks++;
	d->f->block_bytes += o->size;
	__atomic_fetch_add(&d->f->m->progress.files, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&d->f->m->progress.bytes, o->size, __ATOMIC_RELAXED);
	s = o->block
		    ? slices_find(&d->s, o->slice, o->index, o->plain, d->f->m->setting->block_size)
		    : NULL;
	if (s && objects_size_fits(d->o, o->plain, o->size))
		s->w += 4; /* good blocks are counted above the use */
	return 0;
}

static bool given_twice(const struct data *d, uint64_t slice)
{
	const struct numslot *s = numtable_find(&d->s.by_id, slice, 0);

	return s && s->w > 1;
}

static int ask(struct data *d)
{
	struct object_check oc = {.bad = bad, .unknown = unknown, .arg = d};
	int r = objects_check(d->o, d->asked, d->n_asked, &oc);

	d->n_asked = 0;
	return r ? r : d->err;
}

/* all: those of which the listing has not shown every block; else every slice */
static int check_slices(struct data *d, bool all)
{
	for (size_t i = 0; i < d->s.slice.cap; i++) {
		const struct numslot *s = &d->s.slice.slot[i];
		uint32_t size = (uint32_t)s->b;
		int r;

		if (!s->used || slice_use(s) != SLICE_FILE)
			continue;
		/* blocks of a number that was given twice may be either's */
		if (!all && s->w >> 2 >= objects_count(d->o, size) && !given_twice(d, s->a))
			continue;
		if (__atomic_load_n(&d->f->m->progress.cancel, __ATOMIC_RELAXED))
			return -EINTR;
		if (all) {
			d->f->blocks += objects_count(d->o, size);
			d->f->block_bytes += size;
		}
		d->asked[d->n_asked++] = (struct object_slice){s->a, size};
		r = d->n_asked == OBJECTS_AT_ONCE ? ask(d) : 0;
		if (r)
			return r;
	}
	return ask(d);
}

/* --- telling --- */

static int by_slice(const void *a, const void *b)
{
	const struct bad *x = a, *y = b;

	if (x->slice != y->slice)
		return x->slice < y->slice ? -1 : 1;
	return x->index < y->index ? -1 : x->index > y->index;
}

static void tell(struct data *d, uint64_t inode, const char *path, const struct bad *b)
{
	const struct setting *set = d->f->m->setting;
	const struct hash128 any = {{0}};
	char key[BLOCK_NAME_MAX];
	struct block_key k;

	block_key_init(&k, &any, b->slice, b->index, b->plain);
	block_key_object(&k, set->name, set->hash_prefix, key);
	d->f->lost++;
	d->f->lost_bytes += b->plain;
	if (b->stored < 0)
		fsck_found(d->f, inode, path, "object %s is missing", key);
	else
		fsck_found(d->f, inode, path, "object %s has %" PRId64 " bytes, not %" PRIu32, key,
			   b->stored, b->plain);
}

static const struct bad *first_bad(const struct data *d, uint64_t slice)
{
	size_t lo = 0, hi = d->n_bad;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (d->bad[mid].slice < slice)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < d->n_bad && d->bad[lo].slice == slice ? &d->bad[lo] : NULL;
}

static int still_used(void *arg, uint64_t inode, uint32_t index, const struct slice *s)
{
	struct data *d = arg;
	const struct bad *b = first_bad(d, s->id);

	(void)index;
	while (b && b->size != s->size) /* of another slice of that number */
		b = b + 1 < d->bad + d->n_bad && b[1].slice == s->id ? b + 1 : NULL;
	if (!b || numtable_find(&d->s.deleted, inode, 0) || numtable_find(&d->told, inode, s->id))
		return 0;
	if (!numtable_at(&d->told, inode, s->id) || !numtable_at(&d->files, inode, 0) ||
	    more(&d->broken, d->n_broken, &d->cap_broken, sizeof(*d->broken)) < 0)
		return -ENOMEM;
	d->broken[d->n_broken++] = (struct broken){inode, s->id, s->size};
	return 0;
}

static int tell_all(struct data *d)
{
	struct paths paths = {.names = STR_INIT};
	struct str path = STR_INIT;
	int r = paths_find(&paths, &d->f->m->scan, &d->files);

	for (size_t i = 0; i < d->n_broken && r == 0; i++) {
		const struct broken *f = &d->broken[i];
		const struct bad *b = first_bad(d, f->slice);

		str_reset(&path);
		r = paths_get(&paths, f->inode, &path);
		r = r == -ENOENT ? 0 : r;
		for (; r == 0 && b && b < d->bad + d->n_bad && b->slice == f->slice; b++) {
			if (b->size == f->size)
				tell(d, f->inode, str_c(&path), b);
		}
	}
	d->f->broken_files = d->files.n;
	str_fini(&path);
	paths_fini(&paths);
	return r;
}

static int each_file(struct data *d, const struct numtable *files, slices_fn *fn)
{
	int r = 0;

	for (size_t i = 0; i < files->cap && r == 0; i++) {
		if (files->slot[i].used)
			r = slices_of_file(&d->f->m->scan, files->slot[i].a, files->slot[i].v, fn,
					   d);
		if (r == -EPROTO) {
			fsck_found(d->f, files->slot[i].a, "", "a chunk's list is damaged");
			r = 0;
		}
	}
	return r;
}

static int note(void *arg, uint64_t inode, uint32_t index, const struct slice *s)
{
	struct data *d = arg;
	struct numslot *t = numtable_at(&d->s.slice, s->id, s->size);

	(void)index;
	if (!t)
		return -ENOMEM;
	t->v = inode;
	return 0;
}

static void damaged_list(void *arg, const char *line)
{
	struct fsck *f = arg;

	f->findings++;
	maint_say(f->m, "%s", line);
}

/* slices that more places show than sliceRef counts */
static int surplus(struct data *d)
{
	_cleanup_(freep) struct surplus *v = NULL;
	size_t n = 0;
	int r = surplus_find(&d->f->m->scan, &d->s, &v, &n);

	for (size_t i = 0; i < n && r == 0; i++)
		fsck_found(d->f, v[i].inode, "",
			   "slice %" PRIu64 " of %" PRIu32 " bytes stands in %" PRIu64
			   " places, but %" PRIu64
			   " are counted: its data would go too early (stoke gc --delete counts "
			   "them)",
			   v[i].id, v[i].size, v[i].places, v[i].counted);
	return r;
}

static int whole(struct data *d)
{
	struct fsck *f = d->f;
	int r;

	maint_begin(f->m, "slices", "of data");
	r = slices_read(&f->m->scan, &f->m->progress, damaged_list, f, &d->s);
	if (r)
		return r;
	for (size_t i = 0; i < d->s.n_leaked; i++)
		fsck_found(f, d->s.leaked[i].inode, "",
			   "chunk %" PRIu32 " has a list, but no file: gc --delete removes it",
			   d->s.leaked[i].index);
	r = surplus(d);
	if (r)
		return r;
	maint_begin(f->m, "objects", "of data");
	r = objects_each(d->o, &f->m->progress.cancel, found, d, &f->err);
	return r ? r : check_slices(d, false);
}

static int chosen(struct data *d, const struct numtable *files)
{
	int r;

	maint_begin(d->f->m, "files", NULL);
	r = each_file(d, files, note);
	return r ? r : check_slices(d, true);
}

int fsck_data(struct fsck *f, const struct numtable *files)
{
	struct data d = {.f = f};
	int r = objects_open(f->m->setting, (unsigned)f->conf->threads, &d.o, &f->err);

	if (r)
		return r;
	f->unsure = objects_unsure(d.o);
	r = files ? chosen(&d, files) : whole(&d);
	if (r == 0 && d.n_bad) {
		qsort(d.bad, d.n_bad, sizeof(*d.bad), by_slice);
		r = files ? each_file(&d, files, still_used)
			  : slices_each(&f->m->scan, still_used, &d);
	}
	if (r == 0 && d.n_broken)
		r = tell_all(&d);
	maint_end(f->m);
	objects_free(d.o);
	slices_fini(&d.s);
	numtable_fini(&d.told);
	numtable_fini(&d.files);
	free(d.broken);
	free(d.bad);
	return r;
}
