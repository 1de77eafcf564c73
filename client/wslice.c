/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of a slice. Any thread; numbers and commits by jobs in the meta queue.
 *
 *	open		data is added, full blocks are sent once id is known: wrun.c
 *	asking		a job asks for id: wslice_advance_locked
 *	frozen		length is final, the last block is sent: wfile_freeze_locked
 *	ready		all blocks are stored: wslice_advance_locked
 *	committing	a job writes the record: file_pump_locked, when order_ok
 *	dead		committed or given up, out of the file: slice_remove_locked
 *
 * A slice with an error sends nothing more and is removed once it is frozen and its uploads are
 * back. When the generation of the volume changed (-ESTALE) it is frozen again, without id: its
 * blocks are read back and stored once more, under the new one.
 *
 * Whatever an upload or a job that is on its way points to stays: a slice dies only when out is 0
 * and neither asking nor committing is set. Steps are found under the file's lock, as struct work,
 * and taken without it. */
#include "client/wslice.h"

#include "common/clock.h"
#include "common/log.h"

static void ask_run(struct workq_job *job);
static void commit_run(struct workq_job *job);

/* --- work --- */

void work_init(struct work *k)
{
	list_init(&k->uploads);
	list_init(&k->jobs);
	list_init(&k->dead);
	list_init(&k->flushes);
	k->resume = NULL;
	k->cleaned = false;
}

static void delete_run(struct workq_job *job)
{
	struct wslice *s = container_of(job, struct wslice, job);
	const struct writer_conf *conf = &s->f->w->conf;
	int r = conf->delete_slice(conf->delete_arg, s->id, s->len);

	if (r < 0)
		log_warn("objects of slice %llu are left behind: %s", (unsigned long long)s->id,
			 strerror(-r));
	wslice_free(s);
}

static void dead_run(struct writer *w, struct wslice *s)
{
	metric_add(s->error ? w->failed : w->committed, 1);
	if (s->error && s->id && !s->keep_objects && w->conf.delete_slice) {
		s->job.fn = delete_run;
		workq_push_always(w->conf.deleteq ? w->conf.deleteq : w->conf.metaq, &s->job);
	} else {
		wslice_free(s);
	}
}

void work_run(struct writer *w, struct work *k)
{
	struct list_node *n;

	if (k->cleaned)
		__atomic_sub_fetch(&w->dirty_files, 1, __ATOMIC_RELAXED);
	if (k->resume)
		wfile_resume(k->resume);
	/* bounded by slices, which hold memory of the pool or wait in a bounded number */
	while ((n = list_pop(&k->jobs)))
		workq_push_always(w->conf.metaq, &container_of(n, struct wslice, work)->job);
	while ((n = list_pop(&k->uploads)))
		upload_start(w->uploads, container_of(n, struct upload, link));
	while ((n = list_pop(&k->dead)))
		dead_run(w, container_of(n, struct wslice, work));
	while ((n = list_pop(&k->flushes))) {
		struct flush_op *op = container_of(n, struct flush_op, link);

		op->done(op, op->status);
	}
}

/* --- life --- */

struct wslice *wslice_new(struct wfile *f, uint32_t index, uint32_t pos)
{
	struct writer *w = f->w;
	uint32_t n = DIV_UP(CHUNK_SIZE - pos, w->block_size);
	struct wslice *s = calloc(1, sizeof(*s) + n * sizeof(void *));

	if (!s)
		return NULL;
	s->f = f;
	s->index = index;
	s->pos = pos;
	s->n_blocks = n;
	s->began_us = clock_us();
	list_init(&s->link);
	list_init(&s->work);
	mtx_lock(&w->lock);
	f->refs++;
	w->busy++;
	mtx_unlock(&w->lock);
	writer_tick_start(w);
	return s;
}

void wslice_free(struct wslice *s)
{
	struct wfile *f = s->f;
	struct writer *w = f->w;
	size_t held = 0;
	bool last;

	__atomic_sub_fetch(&w->dirty_bytes, s->len, __ATOMIC_RELAXED);
	for (uint32_t i = 0; i < s->n_blocks; i++) {
		struct wblock *b = s->blocks[i];

		if (b && b->buf) {
			held += b->cost;
			buf_unref(b->buf);
		}
		free(b);
	}
	if (held)
		writer_release(w, held);
	mtx_lock(&w->lock);
	if (s->error && !w->error)
		w->error = s->error;
	last = wfile_unref_locked(w, f);
	if (--w->busy == 0)
		cond_broadcast(&w->clean);
	mtx_unlock(&w->lock);
	/* who waited may have freed the writer */
	free(s);
	if (last)
		wfile_destroy(f);
}

/* --- out of the file --- */

static void flushes_check_locked(struct wfile *f, struct work *k) REQUIRES(f->lock)
{
	struct list_node *n, *next;
	uint64_t oldest = UINT64_MAX;

	if (!list_empty(&f->slices))
		oldest = container_of(f->slices.next, struct wslice, link)->seq;
	list_for_each_safe(n, next, &f->flushes)
	{
		struct flush_op *op = container_of(n, struct flush_op, link);

		if (op->upto >= oldest)
			continue;
		if (op->report) {
			op->status = f->error;
			f->error = 0;
		}
		list_del(n);
		list_add_tail(&k->flushes, n);
	}
}

static void slice_remove_locked(struct wfile *f, struct wslice *s, struct work *k) REQUIRES(f->lock)
{
	struct list_node *n;

	list_del(&s->link);
	if (--f->n_slices == 0)
		k->cleaned = true;
	list_add_tail(&k->dead, &s->work);
	if (s->error) {
		if (!f->error)
			f->error = s->error;
		list_for_each(n, &f->flushes)
		{
			struct flush_op *op = container_of(n, struct flush_op, link);

			if (op->upto >= s->seq && !op->status)
				op->status = s->error;
		}
	}
	flushes_check_locked(f, k);
	if (f->wants_slices && f->n_slices < SLICES_MANY) {
		f->wants_slices = false;
		k->resume = f;
	}
}

/* --- order of commits --- */

static bool extends(const struct wfile *f, const struct wslice *s)
{
	return wslice_end(s) > f->length;
}

/* In a chunk in the order they were begun; and one that makes the file longer not before those that
 * make it longer in a chunk below: a crash never leaves a length with a hole in front of it. */
static bool order_ok(const struct wfile *f, const struct wslice *s)
{
	struct list_node *n;

	for (n = f->slices.next; n != &s->link; n = n->next) {
		const struct wslice *e = container_of(n, struct wslice, link);

		if (e->index == s->index || (e->index < s->index && extends(f, s) && extends(f, e)))
			return false;
	}
	return true;
}

static void file_pump_locked(struct wfile *f, struct work *k) REQUIRES(f->lock)
{
	struct list_node *n;
	unsigned looked = 0;

	list_for_each(n, &f->slices)
	{
		struct wslice *s = container_of(n, struct wslice, link);

		if (looked++ == COMMITS_LOOKED_AT)
			break;
		if (!s->ready || s->committing || !order_ok(f, s))
			continue;
		s->committing = true;
		s->job.fn = commit_run;
		list_add_tail(&k->jobs, &s->work);
	}
}

/* --- sending --- */

static void block_done(struct upload *up, int status)
{
	struct wblock *b = container_of(up, struct wblock, up);
	struct wslice *s = b->s;
	struct wfile *f = s->f;
	struct writer *w = f->w;
	size_t cost = b->cost;
	struct work k;

	work_init(&k);
	if (status < 0)
		log_error("write failed inode=%llu block=%llu_%u_%u: %s: %s",
			  (unsigned long long)f->inode, (unsigned long long)up->key.slice,
			  up->key.index, up->key.size, strerror(-status), up->reason);
	/* before the block counts as back: as long as it does not, slice, file and writer stay */
	blob_fini(&up->data);
	if (cost) {
		__atomic_sub_fetch(&w->sending, cost, __ATOMIC_RELAXED);
		writer_release(w, cost);
	}
	mtx_lock(&f->lock);
	b->cost = 0;
	b->state = WB_STORED;
	s->out--;
	if (status == 0)
		__atomic_add_fetch(&w->stored, 1, __ATOMIC_RELAXED);
	if (status < 0 && !s->error)
		s->error = status == -ENOMEM ? -ENOMEM : -EIO;
	wslice_advance_locked(f, s, &k);
	mtx_unlock(&f->lock);
	work_run(w, &k);
}

static void block_send_locked(struct wfile *f, struct wslice *s, uint32_t i, struct work *k)
	REQUIRES(f->lock)
{
	struct wblock *b = s->blocks[i];

	b->state = WB_SENT;
	s->out++;
	block_key_init(&b->up.key, &s->volume, s->id, i, b->len);
	if (b->buf)
		b->up.data = blob_of_buf(TAKE_PTR(b->buf), 0, b->len);
	__atomic_add_fetch(&f->w->sending, b->cost, __ATOMIC_RELAXED);
	b->up.done = block_done;
	b->up.tier = f->tier;
	list_add_tail(&k->uploads, &b->up.link);
}

static bool block_is_full(const struct wslice *s, uint32_t i)
{
	const struct wblock *b = i < s->n_blocks ? s->blocks[i] : NULL;

	return b && b->len && b->state == WB_OPEN && (s->frozen || b->len == s->f->w->block_size);
}

void wslice_advance_locked(struct wfile *f, struct wslice *s, struct work *k)
{
	if (s->asking || s->committing || s->ready)
		return;
	if (s->error) {
		if (f->state != WFILE_RUNNING)
			s->frozen = true;
		else if (!s->frozen)
			f->freeze = true;
		if (s->frozen && s->out == 0) {
			slice_remove_locked(f, s, k);
			file_pump_locked(f, k);
		}
		return;
	}
	if (s->id == 0 && block_is_full(s, s->sent)) {
		s->asking = true;
		s->job.fn = ask_run;
		list_add_tail(&k->jobs, &s->work);
		return;
	}
	while (block_is_full(s, s->sent))
		block_send_locked(f, s, s->sent++, k);
	if (s->frozen && s->out == 0 && s->id) {
		s->ready = true;
		file_pump_locked(f, k);
	}
}

void wfile_freeze_locked(struct wfile *f, struct work *k)
{
	struct list_node *n, *next;

	if (f->state == WFILE_RUNNING) {
		f->freeze = true;
		return;
	}
	f->freeze = false;
	list_for_each_safe(n, next, &f->slices)
	{
		struct wslice *s = container_of(n, struct wslice, link);

		if (s->frozen)
			continue;
		s->frozen = true;
		wslice_advance_locked(f, s, k);
	}
}

/* --- jobs --- */

static void ask_run(struct workq_job *job)
{
	struct wslice *s = container_of(job, struct wslice, job);
	struct wfile *f = s->f;
	struct writer *w = f->w;
	struct hash128 volume;
	struct work k;
	uint64_t id = 0;
	int r = meta_new_slice(w->conf.meta, &id, &volume);

	work_init(&k);
	if (r < 0)
		log_error("write failed inode=%llu: no number for a slice: %s",
			  (unsigned long long)f->inode, strerror(-r));
	mtx_lock(&f->lock);
	s->asking = false;
	if (r < 0) {
		s->error = r;
	} else {
		s->id = id;
		s->volume = volume;
	}
	wslice_advance_locked(f, s, &k);
	mtx_unlock(&f->lock);
	work_run(w, &k);
}

/* the number is worth nothing any more: from the start, with what is stored under it */
static void commit_again(struct wslice *s)
{
	s->committing = s->ready = false;
	s->restarts++;
	s->id = 0;
	s->sent = 0;
	for (uint32_t i = 0; i < s->n_blocks && s->blocks[i]; i++) {
		s->blocks[i]->state = WB_OPEN;
		s->blocks[i]->up.old = s->blocks[i]->up.key;
	}
}

/* the record is surely not there: nobody will ever look for the objects */
static bool surely_refused(int r)
{
	return r == -ENOENT || r == -ENOSPC || r == -EDQUOT || r == -EROFS || r == -EPERM ||
	       r == -EINVAL || r == -EFBIG;
}

static void commit_run(struct workq_job *job)
{
	struct wslice *s = container_of(job, struct wslice, job);
	const struct slice record = {
		.pos = s->pos, .id = s->id, .size = s->len, .off = 0, .len = s->len};
	struct wfile *f = s->f;
	struct writer *w = f->w;
	struct time_ns mtime;
	struct attr a = {0};
	struct work k;
	bool again;
	int r;

	/* slices are committed in any order, but the file's time never goes back */
	mtx_lock(&f->lock);
	mtime = f->newest;
	mtx_unlock(&f->lock);
	r = meta_write(w->conf.meta, f->inode, s->index, &record, mtime, &a);
	again = r == -ESTALE && s->restarts < RESTARTS_MAX;
	work_init(&k);
	if (r == 0 && w->conf.committed)
		w->conf.committed(w->conf.arg, f->inode, &a);
	if (r < 0 && !again)
		log_error(
			"write failed inode=%llu chunk=%u slice=%llu length=%u: not committed: %s",
			(unsigned long long)f->inode, s->index, (unsigned long long)s->id, s->len,
			strerror(-r));
	mtx_lock(&f->lock);
	if (again) {
		commit_again(s);
		wslice_advance_locked(f, s, &k);
	} else {
		s->committing = false;
		if (r == 0) {
			__atomic_add_fetch(&w->stored, 1, __ATOMIC_RELAXED);
			f->length = a.length;
			f->tier = a.tier;
		} else {
			s->error = r == -ESTALE ? -EIO : r;
			s->keep_objects = !surely_refused(r);
		}
		slice_remove_locked(f, s, &k);
		file_pump_locked(f, &k);
	}
	mtx_unlock(&f->lock);
	work_run(w, &k);
}
