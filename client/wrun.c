/* SPDX-License-Identifier: Apache-2.0 */
/* Writes: bytes are copied into the buffers of slices. Runs in the caller's thread; when a write
 * has to wait, it goes on in the timers' loop.
 *
 * One thread at a time runs a file's writes (WFILE_RUNNING); others leave theirs in the queue. The
 * runner alone adds to slices, so it copies without a lock. It waits for memory, or for commits
 * when too many slices are open, without holding a thread (WFILE_WAITING):
 *
 *	idle     -> running	writer_write
 *	running  -> waiting	run_park: no room for the next buffer
 *	waiting  -> running	resume_run, posted by who gave the room
 *	running  -> idle	run_next: the queue is empty
 *
 * A buffer is paid for twice: out of the writer's own cap, so that reading and encoding always have
 * some of the pool, then out of the pool. Who waits holds neither; what the file holds already goes
 * out by itself, writer_press sees to it. */
#include "client/wslice.h"

#include "common/clock.h"

enum { BUFFER_FIRST = 65536, GROWTH = 4 };

static void wfile_run(struct wfile *f);

static void resume_run(struct loop_job *job)
{
	struct wfile *f = container_of(job, struct wfile, resume);

	mtx_lock(&f->lock);
	assert(f->state == WFILE_WAITING);
	f->state = WFILE_RUNNING;
	mtx_unlock(&f->lock);
	wfile_run(f);
}

void wfile_resume(struct wfile *f)
{
	f->resume.fn = resume_run;
	loop_post(f->w->conf.env->timers, &f->resume);
}

/* --- room for a buffer --- */

static void room_give_back(struct wfile *f)
{
	struct writer *w = f->w;

	if (f->reserved)
		pool_unreserve(w->conf.env->pool, POOL_UPLOAD, f->reserved);
	f->reserved = 0;
	if (f->granted)
		writer_release(w, f->granted);
	f->granted = 0;
}

static void room_from_pool(struct pool_wait *wait)
{
	struct write_op *op = container_of(wait, struct write_op, wait);

	op->f->reserved = wait->bytes;
	wfile_resume(op->f);
}

/* From here on anybody may freeze, and once a waiter is queued, anybody may resume. false (for
 * slices only): no need to wait. */
static bool run_park(struct wfile *f, bool for_slices)
{
	struct writer *w = f->w;
	struct work k;
	bool parked = true;

	work_init(&k);
	mtx_lock(&f->lock);
	f->state = WFILE_WAITING;
	if (f->freeze || for_slices)
		wfile_freeze_locked(f, &k);
	if (for_slices && f->n_slices < SLICES_MANY) {
		f->state = WFILE_RUNNING;
		parked = false;
	}
	f->wants_slices = for_slices && parked;
	mtx_unlock(&f->lock);
	/* f may be somebody else's by now */
	metric_add(w->waited, 1);
	work_run(w, &k);
	return parked;
}

static void run_unpark(struct wfile *f)
{
	mtx_lock(&f->lock);
	f->state = WFILE_RUNNING;
	mtx_unlock(&f->lock);
}

/* enough of the cap: true, at once. Else f waits in line (park), or does not (then false means
 * no) */
static bool room_of_cap(struct wfile *f, size_t cost, bool park)
{
	struct writer *w = f->w;
	bool ok;

	mtx_lock(&w->lock);
	ok = list_empty(&w->waiters) && (w->held == 0 || w->held + cost <= w->cap);
	if (ok) {
		w->held += cost;
		f->granted = cost;
	} else if (park) {
		f->wanted = cost;
		list_add_tail(&w->waiters, &f->wait_link);
	}
	mtx_unlock(&w->lock);
	return ok;
}

/* Memory for a buffer of cost bytes is f->granted and f->reserved. 0; -EAGAIN: look for the slice
 * again, others may have frozen it; -EINPROGRESS: the write goes on elsewhere, f is not ours any
 * more; -ENOMEM. */
static int room_make(struct wfile *f, struct write_op *op, size_t cost)
{
	struct writer *w = f->w;
	struct pool *pool = w->conf.env->pool;
	int r;

	if ((f->granted && f->granted != cost) || (f->reserved && f->reserved != cost))
		room_give_back(f);
	if (!f->granted && !room_of_cap(f, cost, false)) {
		(void)run_park(f, false);
		writer_press(w);
		if (!room_of_cap(f, cost, true)) {
			/* whoever gave something back since the press looked at the line before we
			 * stood in it */
			writer_release(w, 0);
			return -EINPROGRESS;
		}
		run_unpark(f);
		return -EAGAIN;
	}
	if (f->reserved)
		return 0;
	r = pool_reserve(pool, POOL_UPLOAD, cost, NULL);
	if (r == 0) {
		f->reserved = cost;
		return 0;
	}
	if (r != -ENOBUFS)
		return -ENOMEM;
	(void)run_park(f, false);
	writer_press(w);
	op->wait.fn = room_from_pool;
	r = pool_reserve(pool, POOL_UPLOAD, cost, &op->wait);
	if (r == -EAGAIN)
		return -EINPROGRESS;
	run_unpark(f);
	if (r < 0)
		return -ENOMEM;
	f->reserved = cost;
	return -EAGAIN;
}

/* the buffer that room_make paid for; NULL: no memory in the machine */
static struct buf *room_take(struct wfile *f, size_t len)
{
	struct buf *buf = pool_take(f->w->conf.env->pool, POOL_UPLOAD, len, &f->reserved);

	if (buf)
		f->granted = 0;
	return buf;
}

/* --- where a piece goes --- */

static bool overlaps(const struct wslice *s, uint32_t pos, uint32_t len)
{
	return pos < s->pos + s->len && s->pos < pos + len;
}

/* The newest slice of the chunk that the piece may be added to: it begins in the part that was not
 * sent or right behind, and nothing newer lies on it. */
static struct wslice *slice_find_locked(struct wfile *f, uint32_t index, uint32_t pos, uint32_t len,
					struct work *k) REQUIRES(f->lock)
{
	struct list_node *n, *before;
	unsigned seen = 0;

	for (n = f->slices.prev; n != &f->slices; n = before) {
		struct wslice *s = container_of(n, struct wslice, link);

		before = n->prev;
		if (s->index != index)
			continue;
		if (!s->frozen && !s->error) {
			/* full blocks are on their way, or will be any moment */
			uint32_t kept = s->pos + s->len / f->w->block_size * f->w->block_size;

			if (pos >= kept && pos <= s->pos + s->len)
				return s;
		}
		if (overlaps(s, pos, len))
			return NULL;
		if (++seen >= SLICES_LOOKED_AT) {
			if (!s->frozen) {
				s->frozen = true;
				wslice_advance_locked(f, s, k);
			}
			return NULL;
		}
	}
	return NULL;
}

/* one block's part of a write */
struct piece {
	const unsigned char *data;
	uint32_t index, pos, len;
	struct wslice *s;    /* NULL: a new one */
	uint32_t block, off; /* in it */
};

static uint32_t buffer_size(const struct writer *w, const struct piece *p)
{
	uint32_t size = MIN((uint32_t)BUFFER_FIRST, w->block_size);

	/* a slice with a full block will have another */
	if (p->block > 0)
		return w->block_size;
	while (size < p->off + p->len)
		size = MIN(size * GROWTH, w->block_size);
	return size;
}

/* the bytes of p stand in b: they belong to s from now on */
static void piece_show_locked(struct wfile *f, const struct piece *p, struct wslice *s,
			      struct wblock *b, struct work *k) REQUIRES(f->lock)
{
	struct writer *w = f->w;
	uint32_t end = p->pos + p->len - s->pos;

	s->blocks[p->block] = b;
	if (!p->s) {
		s->seq = ++f->seq;
		list_add_tail(&f->slices, &s->link);
		if (f->n_slices++ == 0) {
			f->newest = (struct time_ns){0};
			__atomic_add_fetch(&w->dirty_files, 1, __ATOMIC_RELAXED);
		}
	}
	b->len = MAX(b->len, p->off + p->len);
	if (end > s->len) {
		__atomic_add_fetch(&w->dirty_bytes, end - s->len, __ATOMIC_RELAXED);
		s->len = end;
	}
	s->touched_us = clock_us();
	clock_real(&s->mtime.sec, &s->mtime.nsec);
	if (time_later(&s->mtime, &f->newest))
		f->newest = s->mtime;
	if (s->pos + s->len == CHUNK_SIZE)
		s->frozen = true;
	wslice_advance_locked(f, s, k);
}

/* Puts the bytes where they belong and makes them seen. buf: NULL, or the block's new buffer. */
static int piece_put(struct wfile *f, const struct piece *p, struct buf *buf, uint32_t cap,
		     size_t cost)
{
	struct writer *w = f->w;
	struct wslice *s = p->s ? p->s : wslice_new(f, p->index, p->pos);
	struct wblock *b = s ? s->blocks[p->block] : NULL;
	bool begun = s && !s->blocks[p->block];
	struct buf *old = NULL;
	size_t old_cost = 0;
	struct work k;

	if (begun)
		b = calloc(1, sizeof(*b));
	if (!b) {
		if (s && !p->s)
			wslice_free(s);
		buf_unref(buf);
		writer_release(w, cost);
		return -ENOMEM;
	}
	b->s = s;
	if (buf) {
		old = b->buf;
		old_cost = b->cost;
		if (old)
			memcpy(buf->mem, old->mem, b->len);
		b->buf = buf;
		b->cap = cap;
		b->cost = cost;
	}
	assert(b->buf);
	memcpy(b->buf->mem + p->off, p->data, p->len);

	work_init(&k);
	mtx_lock(&f->lock);
	piece_show_locked(f, p, s, b, &k);
	mtx_unlock(&f->lock);
	/* a full slice may be gone from here on */
	if (old) {
		buf_unref(old);
		writer_release(w, old_cost);
	}
	work_run(w, &k);
	return 0;
}

/* The next piece of op: 0 done, else what room_make says. */
static int piece_write(struct wfile *f, struct write_op *op)
{
	uint64_t off = op->off + f->copied;
	uint32_t block_size = f->w->block_size, at, size;
	struct piece p = {
		.data = (const unsigned char *)op->data + f->copied,
		.index = (uint32_t)(off >> CHUNK_BITS),
		.pos = (uint32_t)(off & (CHUNK_SIZE - 1)),
	};
	struct buf *buf = NULL;
	struct wblock *b;
	struct work k;
	bool full;
	int r;

	p.len = MIN(op->len - f->copied, CHUNK_SIZE - p.pos);
	work_init(&k);
	mtx_lock(&f->lock);
	p.s = slice_find_locked(f, p.index, p.pos, p.len, &k);
	full = !p.s && f->n_slices >= SLICES_MAX;
	mtx_unlock(&f->lock);
	work_run(f->w, &k);
	if (full)
		return run_park(f, true) ? -EINPROGRESS : -EAGAIN;
	at = p.s ? p.pos - p.s->pos : 0;
	p.block = at / block_size;
	p.off = at % block_size;
	p.len = MIN(p.len, block_size - p.off);
	b = p.s ? p.s->blocks[p.block] : NULL;
	size = buffer_size(f->w, &p);
	if (!b || b->cap < p.off + p.len) {
		r = room_make(f, op, pool_cost(size));
		if (r < 0)
			return r;
		buf = room_take(f, size);
		if (!buf)
			return -ENOMEM;
	}
	r = piece_put(f, &p, buf, size, pool_cost(size));
	if (r == 0)
		f->copied += p.len;
	return r;
}

/* --- running --- */

static void run_begin(struct wfile *f)
{
	mtx_lock(&f->w->lock);
	f->refs++;
	f->w->busy++;
	mtx_unlock(&f->w->lock);
}

static void run_end(struct wfile *f)
{
	struct writer *w = f->w;
	bool last;

	mtx_lock(&w->lock);
	last = wfile_unref_locked(w, f);
	if (--w->busy == 0)
		cond_broadcast(&w->clean);
	mtx_unlock(&w->lock);
	/* w may be gone */
	if (last)
		wfile_destroy(f);
}

/* The next write of the queue, or NULL: idle, and f may be gone. */
static struct write_op *run_next(struct wfile *f, int *ret_error)
{
	struct list_node *n;
	struct work k;

	work_init(&k);
	mtx_lock(&f->lock);
	if (f->freeze || f->n_slices >= SLICES_MANY) {
		/* between two writes nobody runs */
		f->state = WFILE_WAITING;
		wfile_freeze_locked(f, &k);
		f->state = WFILE_RUNNING;
	}
	n = list_pop(&f->queue);
	if (!n)
		f->state = WFILE_IDLE;
	*ret_error = f->error;
	mtx_unlock(&f->lock);
	work_run(f->w, &k);
	if (n)
		return container_of(n, struct write_op, link);
	run_end(f);
	return NULL;
}

static void wfile_run(struct wfile *f)
{
	for (;;) {
		struct write_op *op;
		int r = 0;

		if (!f->current) {
			op = run_next(f, &r);
			if (!op)
				return;
			f->current = op;
			f->copied = 0;
		}
		while ((r == 0 && f->copied < f->current->len) || r == -EAGAIN)
			r = piece_write(f, f->current);
		if (r == -EINPROGRESS)
			return;
		room_give_back(f);
		op = TAKE_PTR(f->current);
		op->done(op, r);
	}
}

void writer_write(struct write_op *op)
{
	struct wfile *f = op->f;
	bool run;

	if (op->off > FILE_LENGTH_MAX || op->len > FILE_LENGTH_MAX - op->off) {
		op->done(op, -EFBIG);
		return;
	}
	mtx_lock(&f->lock);
	list_add_tail(&f->queue, &op->link);
	run = f->state == WFILE_IDLE;
	if (run)
		f->state = WFILE_RUNNING;
	mtx_unlock(&f->lock);
	if (run) {
		run_begin(f);
		wfile_run(f);
	}
}
