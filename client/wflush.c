/* SPDX-License-Identifier: Apache-2.0 */
/* When slices are frozen: flush, age, shutdown. The clock ticks in the timers' loop while anything
 * is dirty. */
#include "client/wslice.h"

#include "common/clock.h"

enum { TICK_US = 250000, IDLE_US = 1000000 };

void writer_flush(struct flush_op *op)
{
	struct wfile *f = op->f;
	struct writer *w = f->w;
	struct work k;

	work_init(&k);
	op->status = 0;
	mtx_lock(&f->lock);
	op->upto = f->seq;
	if (f->n_slices == 0) {
		if (op->report) {
			op->status = f->error;
			f->error = 0;
		}
		list_add_tail(&k.flushes, &op->link);
	} else {
		list_add_tail(&f->flushes, &op->link);
		wfile_freeze_locked(f, &k);
	}
	mtx_unlock(&f->lock);
	/* the flush may be over, and f gone with its last reference */
	work_run(w, &k);
}

/* --- every file --- */

struct all {
	struct wfile **files;
	size_t n;
};

static bool all_add(struct hash_node *node, void *arg)
{
	struct all *a = arg;
	struct wfile *f = container_of(node, struct wfile, node);

	f->refs++;
	a->files[a->n++] = f;
	return true;
}

/* Calls fn for each file. Without memory for the list: for none, the next tick comes. */
static void writer_each(struct writer *w, void (*fn)(struct wfile *f, void *arg), void *arg)
{
	struct all a = {0};

	mtx_lock(&w->lock);
	if (w->files.count)
		a.files = calloc(w->files.count, sizeof(void *));
	if (a.files)
		hashmap_each(&w->files, all_add, &a);
	mtx_unlock(&w->lock);
	for (size_t i = 0; i < a.n; i++) {
		fn(a.files[i], arg);
		wfile_put(a.files[i]);
	}
	free(a.files);
}

static void freeze_one(struct wfile *f, void *arg)
{
	struct work k;

	(void)arg;
	work_init(&k);
	mtx_lock(&f->lock);
	if (f->n_slices || f->state != WFILE_IDLE)
		wfile_freeze_locked(f, &k);
	mtx_unlock(&f->lock);
	work_run(f->w, &k);
}

void writer_freeze_all(struct writer *w)
{
	writer_each(w, freeze_one, NULL);
}

int writer_flush_all(struct writer *w)
{
	int r;

	mtx_lock(&w->lock);
	w->error = 0;
	mtx_unlock(&w->lock);
	for (;;) {
		bool clean;

		writer_freeze_all(w);
		mtx_lock(&w->lock);
		clean = w->busy == 0 ||
			(cond_wait_us(&w->clean, &w->lock, TICK_US) && w->busy == 0);
		r = w->error;
		mtx_unlock(&w->lock);
		if (clean)
			return r;
	}
}

struct pending {
	struct writer_file *v;
	size_t n, max;
};

static void pending_one(struct wfile *f, void *arg)
{
	struct pending *p = arg;
	struct writer_file one = {.inode = f->inode};
	struct list_node *n;
	bool dirty;

	mtx_lock(&f->lock);
	dirty = f->n_slices > 0;
	one.parent = f->parent;
	if (f->name)
		(void)snprintf(one.name, sizeof(one.name), "%s", f->name);
	list_for_each(n, &f->slices) one.bytes += container_of(n, struct wslice, link)->len;
	mtx_unlock(&f->lock);
	if (!dirty)
		return;
	if (p->n < p->max)
		p->v[p->n] = one;
	p->n++;
}

size_t writer_pending(struct writer *w, struct writer_file *ret, size_t max)
{
	struct pending p = {.v = ret, .max = max};

	writer_each(w, pending_one, &p);
	return p.n;
}

/* --- age --- */

static bool too_old(const struct writer *w, const struct wslice *s, uint64_t now)
{
	uint64_t age = now - s->began_us, idle = now - s->touched_us;

	return age >= w->conf.flush_us || (age >= IDLE_US && idle >= IDLE_US);
}

static void freeze_old(struct wfile *f, void *arg)
{
	uint64_t now = *(const uint64_t *)arg;
	struct list_node *n, *next;
	struct work k;

	work_init(&k);
	mtx_lock(&f->lock);
	list_for_each_safe(n, next, &f->slices)
	{
		struct wslice *s = container_of(n, struct wslice, link);

		if (s->frozen || !too_old(f->w, s, now))
			continue;
		if (f->state == WFILE_RUNNING) {
			f->freeze = true;
			break;
		}
		s->frozen = true;
		wslice_advance_locked(f, s, &k);
	}
	mtx_unlock(&f->lock);
	work_run(f->w, &k);
}

static void tick_run(struct loop_timer *t)
{
	struct writer *w = container_of(t, struct writer, tick);
	uint64_t now = clock_us();
	bool more, pressed;

	writer_each(w, freeze_old, &now);
	mtx_lock(&w->lock);
	pressed = !list_empty(&w->waiters);
	more = w->busy > 0;
	w->ticking = more;
	mtx_unlock(&w->lock);
	if (pressed)
		writer_press(w);
	if (more)
		loop_timer_start(&w->tick, TICK_US);
}

static void tick_begin(struct loop_job *job)
{
	struct writer *w = container_of(job, struct writer, tick_job);

	loop_timer_init(&w->tick, w->conf.env->timers, tick_run);
	loop_timer_start(&w->tick, TICK_US);
}

void writer_tick_start(struct writer *w)
{
	bool start;

	mtx_lock(&w->lock);
	start = !w->ticking;
	w->ticking = true;
	mtx_unlock(&w->lock);
	if (!start)
		return;
	w->tick_job.fn = tick_begin;
	loop_post(w->conf.env->timers, &w->tick_job);
}

static void tick_end(void *arg)
{
	struct writer *w = arg;

	if (w->tick.loop)
		loop_timer_stop(&w->tick);
}

void writer_tick_stop(struct writer *w)
{
	loop_run_sync(w->conf.env->timers, tick_end, w);
}
