/* SPDX-License-Identifier: Apache-2.0 */
/* The writer's files, and who gets memory. Any thread; the writer's lock is a leaf, and so is each
 * file's.
 *
 * held is what the buffers of all slices take, and what was promised to writes that are about to
 * take one. At most cap of the pool is held; who finds no room stands in line (waiters), and gets
 * it from whoever gives some back. */
#include "client/writer.h"

#include "client/wslice.h"

static uint64_t hash_inode(uint64_t inode)
{
	return hash64(&inode, sizeof(inode));
}

/* --- life --- */

int writer_new(const struct writer_conf *conf, struct writer **ret)
{
	struct writer *w = calloc(1, sizeof(*w));
	struct metrics *m = conf->metrics;
	struct pool_stat ps;
	int r;

	if (!w)
		return -ENOMEM;
	r = hashmap_init(&w->files, 64);
	if (r == 0)
		r = uploads_new(conf->env, conf->chain, conf->max_uploads, &w->uploads);
	if (r < 0) {
		hashmap_fini(&w->files);
		free(w);
		return r;
	}
	w->conf = *conf;
	w->block_size = conf->env->block_size;
	pool_stat(conf->env->pool, &ps);
	w->cap = ps.budget - MAX(ps.budget / 4, 2 * pool_cost(w->block_size));
	mtx_init(&w->lock);
	cond_init(&w->clean);
	list_init(&w->waiters);
	if (m) {
		w->committed = metrics_get(m, "stoke_slices_committed_total", "", METRIC_COUNTER,
					   "Slices written and recorded");
		w->failed = metrics_get(m, "stoke_slices_failed_total", "", METRIC_COUNTER,
					"Slices lost, reported to who wrote them");
		w->waited = metrics_get(m, "stoke_write_waits_total", "", METRIC_COUNTER,
					"Writes that waited for memory or commits");
	}
	*ret = w;
	return 0;
}

void writer_free(struct writer *w)
{
	if (!w)
		return;
	writer_tick_stop(w);
	assert(w->files.count == 0 && w->busy == 0);
	uploads_free(w->uploads);
	hashmap_fini(&w->files);
	cond_fini(&w->clean);
	mtx_fini(&w->lock);
	free(w);
}

static bool wfile_is(const struct hash_node *n, const void *inode)
{
	return container_of(n, struct wfile, node)->inode == *(const uint64_t *)inode;
}

static struct wfile *find_locked(struct writer *w, uint64_t inode) REQUIRES(w->lock)
{
	struct hash_node *n = hashmap_find(&w->files, hash_inode(inode), wfile_is, &inode);
	struct wfile *f = n ? container_of(n, struct wfile, node) : NULL;

	if (f)
		f->refs++;
	return f;
}

static struct wfile *wfile_new(struct writer *w, uint64_t inode, uint64_t length)
{
	struct wfile *f = calloc(1, sizeof(*f));

	if (!f)
		return NULL;
	f->w = w;
	f->inode = inode;
	f->length = length;
	f->refs = 1;
	mtx_init(&f->lock);
	list_init(&f->wait_link);
	list_init(&f->slices);
	list_init(&f->queue);
	list_init(&f->flushes);
	return f;
}

void wfile_destroy(struct wfile *f)
{
	assert(f->state == WFILE_IDLE && f->n_slices == 0 && list_empty(&f->queue) &&
	       list_empty(&f->flushes));
	mtx_fini(&f->lock);
	free(f->name);
	free(f);
}

int wfile_get(struct writer *w, uint64_t inode, uint64_t length, struct wfile **ret)
{
	struct wfile *made = wfile_new(w, inode, length), *f;

	if (!made)
		return -ENOMEM;
	mtx_lock(&w->lock);
	f = find_locked(w, inode);
	if (!f)
		hashmap_add(&w->files, &made->node, hash_inode(inode));
	mtx_unlock(&w->lock);
	if (f) {
		wfile_destroy(made);
		mtx_lock(&f->lock);
		if (f->n_slices == 0)
			f->length = length;
		mtx_unlock(&f->lock);
	}
	*ret = f ? f : made;
	return 0;
}

struct wfile *wfile_find(struct writer *w, uint64_t inode)
{
	struct wfile *f;

	mtx_lock(&w->lock);
	f = find_locked(w, inode);
	mtx_unlock(&w->lock);
	return f;
}

bool wfile_unref_locked(struct writer *w, struct wfile *f)
{
	if (--f->refs)
		return false;
	hashmap_del(&w->files, &f->node);
	return true;
}

void wfile_put(struct wfile *f)
{
	struct writer *w;
	bool last;

	if (!f)
		return;
	w = f->w;
	mtx_lock(&w->lock);
	last = wfile_unref_locked(w, f);
	mtx_unlock(&w->lock);
	if (last)
		wfile_destroy(f);
}

bool wfile_dirty(struct wfile *f, uint64_t *ret_length, struct time_ns *ret_mtime)
{
	struct time_ns mtime = {0};
	struct list_node *n;
	uint64_t length;
	bool dirty;

	mtx_lock(&f->lock);
	length = f->length;
	dirty = f->n_slices > 0;
	list_for_each(n, &f->slices)
	{
		const struct wslice *s = container_of(n, struct wslice, link);

		length = MAX(length, wslice_end(s));
		if (time_later(&s->mtime, &mtime))
			mtime = s->mtime;
	}
	mtx_unlock(&f->lock);
	*ret_length = length;
	*ret_mtime = mtime;
	return dirty;
}

bool wfile_length(struct wfile *f, uint64_t *ret)
{
	struct time_ns mtime;

	return wfile_dirty(f, ret, &mtime);
}

void wfile_set_tier(struct wfile *f, uint8_t tier)
{
	mtx_lock(&f->lock);
	f->tier = tier;
	mtx_unlock(&f->lock);
}

void wfile_named(struct wfile *f, uint64_t parent, const char *name)
{
	char *copy = name ? strdup(name) : NULL, *old;

	mtx_lock(&f->lock);
	old = f->name;
	f->parent = parent;
	f->name = copy;
	mtx_unlock(&f->lock);
	free(old);
}

void wfile_set_length(struct wfile *f, uint64_t length)
{
	mtx_lock(&f->lock);
	f->length = length;
	mtx_unlock(&f->lock);
}

void writer_stat(struct writer *w, uint64_t *ret_bytes, unsigned *ret_files)
{
	*ret_bytes = __atomic_load_n(&w->dirty_bytes, __ATOMIC_RELAXED);
	*ret_files = __atomic_load_n(&w->dirty_files, __ATOMIC_RELAXED);
}

uint64_t writer_stored(struct writer *w)
{
	return __atomic_load_n(&w->stored, __ATOMIC_RELAXED);
}

/* --- memory --- */

/* gives held bytes to who waits first; those who got them are moved to ready */
static void grant_locked(struct writer *w, struct list_node *ready) REQUIRES(w->lock)
{
	while (!list_empty(&w->waiters)) {
		struct wfile *f = container_of(w->waiters.next, struct wfile, wait_link);

		if (w->held && w->held + f->wanted > w->cap)
			return;
		w->held += f->wanted;
		f->granted = f->wanted;
		list_del(&f->wait_link);
		list_add_tail(ready, &f->wait_link);
	}
}

void writer_release(struct writer *w, size_t bytes)
{
	struct list_node ready, *n;
	bool more;

	list_init(&ready);
	mtx_lock(&w->lock);
	assert(w->held >= bytes);
	w->held -= bytes;
	grant_locked(w, &ready);
	more = !list_empty(&w->waiters);
	mtx_unlock(&w->lock);
	while ((n = list_pop(&ready)))
		wfile_resume(container_of(n, struct wfile, wait_link));
	if (more)
		writer_press(w);
}

void writer_press(struct writer *w)
{
	size_t sending = __atomic_load_n(&w->sending, __ATOMIC_RELAXED), held;

	mtx_lock(&w->lock);
	held = w->held;
	mtx_unlock(&w->lock);
	if (sending < held / 2 || sending == 0)
		writer_freeze_all(w);
}
