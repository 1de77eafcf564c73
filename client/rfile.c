/* SPDX-License-Identifier: Apache-2.0 */
/* The inodes that are open for reading: length, and a view of every chunk whose slice list is
 * known. Any thread; lists are fetched by jobs in the meta queue, one at a time a file.
 *
 * Views belong to one (volume, ctime, mtime) of the inode. When another one passes by, or the
 * caller knows better, or the volume became another one, all are dropped and epoch moves.
 *
 *	idle		nobody waits, fetching is false
 *	fetching	a job is queued or runs: fetch_begin, meta_read, fetch_end
 *
 * Fetching ends only when nobody waits: lists that were read before epoch moved are thrown away and
 * read again. */
#include "client/rfile.h"

#include "common/log.h"

enum { VIEWS_MAX = 4096, PIECES_MAX = 262144, FETCH_MAX = 256 };

static uint64_t hash_inode(uint64_t inode)
{
	return hash64(&inode, sizeof(inode));
}

/* --- views --- */

void view_unref(struct view *v)
{
	if (v && __atomic_sub_fetch(&v->refs, 1, __ATOMIC_ACQ_REL) == 0) {
		slice_view_fini(&v->v);
		free(v);
	}
}

static struct view *view_of_list(const struct chunk_list *l)
{
	struct view *v = calloc(1, sizeof(*v));

	if (!v)
		return NULL;
	if (slice_view_build(l->slices, l->n, &v->v) < 0) {
		free(v);
		return NULL;
	}
	list_init(&v->link);
	v->refs = 1;
	v->index = l->index;
	v->volume = l->volume;
	return v;
}

static bool view_is(const struct hash_node *n, const void *index)
{
	return container_of(n, struct view, node)->index == *(const uint32_t *)index;
}

static struct view *view_find_locked(struct rfile *f, uint32_t index) REQUIRES(f->lock)
{
	struct hash_node *n = hashmap_find(&f->views, hash_inode(index), view_is, &index);

	return n ? container_of(n, struct view, node) : NULL;
}

static struct view *view_ref(struct view *v)
{
	__atomic_add_fetch(&v->refs, 1, __ATOMIC_RELAXED);
	return v;
}

static void view_drop_locked(struct rfile *f, struct view *v) REQUIRES(f->lock)
{
	hashmap_del(&f->views, &v->node);
	list_del(&v->link);
	f->n_views--;
	f->n_pieces -= v->v.n;
	view_unref(v);
}

static void views_drop_locked(struct rfile *f) REQUIRES(f->lock)
{
	while (!list_empty(&f->oldest))
		view_drop_locked(f, container_of(f->oldest.next, struct view, link));
	f->epoch++;
}

/* Every look at a file begins here: nothing of it counts any more once the volume is another
 * one. */
static void volume_check_locked(struct rfile *f) REQUIRES(f->lock)
{
	uint64_t moved = __atomic_load_n(&f->r->moved, __ATOMIC_ACQUIRE);

	if (f->moved == moved)
		return;
	f->moved = moved;
	f->have_attr = false;
	views_drop_locked(f);
}

/* takes the reference over */
static void view_add_locked(struct rfile *f, struct view *v) REQUIRES(f->lock)
{
	struct view *old = view_find_locked(f, v->index);

	if (old)
		view_drop_locked(f, old);
	while (f->n_views >= VIEWS_MAX || (f->n_views && f->n_pieces + v->v.n > PIECES_MAX))
		view_drop_locked(f, container_of(f->oldest.next, struct view, link));
	hashmap_add(&f->views, &v->node, hash_inode(v->index));
	list_add_tail(&f->oldest, &v->link);
	f->n_views++;
	f->n_pieces += v->v.n;
}

static bool same_time(const struct time_ns *a, const struct time_ns *b)
{
	return a->sec == b->sec && a->nsec == b->nsec;
}

static bool attr_same_locked(const struct rfile *f, const struct attr *a) REQUIRES(f->lock)
{
	return f->have_attr && same_time(&f->ctime, &a->ctime) && same_time(&f->mtime, &a->mtime);
}

static void attr_set_locked(struct rfile *f, const struct attr *a) REQUIRES(f->lock)
{
	if (!attr_same_locked(f, a)) {
		views_drop_locked(f);
		f->ctime = a->ctime;
		f->mtime = a->mtime;
		f->have_attr = true;
	}
	f->length = a->length;
	/* what we wrote is committed: from here on the file may become shorter again */
	if (f->writer_length <= f->length)
		f->writer_length = 0;
}

/* a is of the lists that come, of volume */
static void lists_attr_locked(struct rfile *f, const struct attr *a, const struct hash128 *volume)
	REQUIRES(f->lock)
{
	if (!hash128_eq(&f->volume, volume)) {
		views_drop_locked(f);
		f->volume = *volume;
	}
	attr_set_locked(f, a);
}

/* --- files --- */

static bool rfile_is(const struct hash_node *n, const void *inode)
{
	return container_of(n, struct rfile, node)->inode == *(const uint64_t *)inode;
}

static struct rfile *rfile_new(struct reader *r, uint64_t inode)
{
	struct rfile *f = calloc(1, sizeof(*f));

	if (!f)
		return NULL;
	if (hashmap_init(&f->views, 4) < 0) {
		free(f);
		return NULL;
	}
	f->r = r;
	f->moved = __atomic_load_n(&r->moved, __ATOMIC_ACQUIRE);
	f->inode = inode;
	f->refs = 1;
	f->fetch_n = FETCH_MAX;
	mtx_init(&f->lock);
	list_init(&f->oldest);
	list_init(&f->waiting);
	return f;
}

static void rfile_destroy(struct rfile *f)
{
	assert(list_empty(&f->waiting) && !f->fetching);
	mtx_lock(&f->lock);
	views_drop_locked(f);
	mtx_unlock(&f->lock);
	hashmap_fini(&f->views);
	mtx_fini(&f->lock);
	free(f);
}

void rfile_ref(struct rfile *f)
{
	mtx_lock(&f->r->lock);
	f->refs++;
	mtx_unlock(&f->r->lock);
}

void rfile_put(struct rfile *f)
{
	bool last;

	if (!f)
		return;
	mtx_lock(&f->r->lock);
	last = --f->refs == 0;
	if (last)
		hashmap_del(&f->r->files, &f->node);
	mtx_unlock(&f->r->lock);
	if (last)
		rfile_destroy(f);
}

static struct rfile *rfile_find_or_add(struct reader *r, struct rfile *made)
{
	struct hash_node *n;

	mtx_lock(&r->lock);
	n = hashmap_find(&r->files, hash_inode(made->inode), rfile_is, &made->inode);
	if (n)
		container_of(n, struct rfile, node)->refs++;
	else
		hashmap_add(&r->files, &made->node, hash_inode(made->inode));
	mtx_unlock(&r->lock);
	return n ? container_of(n, struct rfile, node) : made;
}

int rfile_get(struct reader *r, uint64_t inode, struct rfile **ret)
{
	struct rfile *made = rfile_new(r, inode);

	if (!made)
		return -ENOMEM;
	*ret = rfile_find_or_add(r, made);
	if (*ret != made)
		rfile_destroy(made);
	return 0;
}

size_t rfile_pieces(struct rfile *f)
{
	size_t n;

	mtx_lock(&f->lock);
	n = f->n_pieces;
	mtx_unlock(&f->lock);
	return n;
}

uint64_t rfile_epoch(struct rfile *f)
{
	uint64_t epoch;

	mtx_lock(&f->lock);
	volume_check_locked(f);
	epoch = f->epoch;
	mtx_unlock(&f->lock);
	return epoch;
}

int rfile_first(struct rfile *f, const struct chunk_list *l, uint64_t epoch)
{
	struct view *v = view_of_list(l);

	if (!v)
		return -ENOMEM;
	mtx_lock(&f->lock);
	volume_check_locked(f);
	if (f->epoch == epoch) {
		lists_attr_locked(f, &l->attr, &l->volume);
		view_add_locked(f, TAKE_PTR(v));
	}
	mtx_unlock(&f->lock);
	view_unref(v);
	return 0;
}

void rfile_attr(struct rfile *f, const struct attr *a, uint64_t epoch)
{
	mtx_lock(&f->lock);
	volume_check_locked(f);
	if (f->epoch == epoch)
		attr_set_locked(f, a);
	mtx_unlock(&f->lock);
}

void rfile_invalidate(struct rfile *f)
{
	mtx_lock(&f->lock);
	views_drop_locked(f);
	/* somebody is changing the file: what is read far ahead would be dropped soon */
	f->fetch_n = 1;
	mtx_unlock(&f->lock);
}

void rfile_set_length(struct rfile *f, uint64_t length)
{
	mtx_lock(&f->lock);
	f->writer_length = length > f->length ? length : 0;
	mtx_unlock(&f->lock);
}

/* --- fetching slice lists --- */

/* The views of w's range, or false with the first chunk that is missing. */
static bool views_take_locked(struct rfile *f, struct view_wait *w, uint32_t *ret_missing)
	REQUIRES(f->lock)
{
	uint64_t length = MAX(f->length, f->writer_length);
	uint32_t first = (uint32_t)(w->off >> CHUNK_BITS), last;
	struct view *v[2] = {NULL, NULL};

	*ret_missing = first;
	volume_check_locked(f);
	if (!f->have_attr)
		return false;
	w->clipped = 0;
	w->views[0] = w->views[1] = NULL;
	if (w->off >= length)
		return true;
	w->clipped = (uint32_t)MIN((uint64_t)w->len, length - w->off);
	last = (uint32_t)((w->off + w->clipped - 1) >> CHUNK_BITS);
	for (uint32_t i = first; i <= last; i++) {
		*ret_missing = i;
		v[i - first] = view_find_locked(f, i);
		if (!v[i - first])
			return false;
	}
	w->views[0] = v[0] ? view_ref(v[0]) : NULL;
	w->views[1] = v[1] ? view_ref(v[1]) : NULL;
	return true;
}

/* which lists to read now */
static void fetch_begin(struct rfile *f, uint32_t *ret_index, uint32_t *ret_n, uint64_t *ret_epoch)
{
	uint32_t index = 0, n, chunks;

	mtx_lock(&f->lock);
	volume_check_locked(f);
	if (!list_empty(&f->waiting)) {
		struct view_wait *w = container_of(f->waiting.next, struct view_wait, link);

		/* it may be complete by now; then its first chunk is as good as any */
		if (views_take_locked(f, w, &index)) {
			view_unref(w->views[0]);
			view_unref(w->views[1]);
			index = (uint32_t)(w->off >> CHUNK_BITS);
		}
	} else if (f->hinted) {
		index = f->hint;
	}
	f->hinted = false;
	n = f->fetch_n;
	if (f->have_attr) {
		chunks = (uint32_t)DIV_UP(f->length, (uint64_t)CHUNK_SIZE);
		n = chunks > index ? MIN(n, chunks - index) : 1;
	}
	f->fetch_n = MIN(f->fetch_n * 2, (uint32_t)FETCH_MAX);
	*ret_index = index;
	*ret_n = n;
	*ret_epoch = f->epoch;
	mtx_unlock(&f->lock);
}

/* reads lists and makes views of them; on success views[n] are references, attr and volume are what
 * they belong to */
static int fetch_read(struct rfile *f, uint32_t index, uint32_t n, struct view **views,
		      struct attr *ret_attr, struct hash128 *ret_volume)
{
	struct chunk_list *lists = calloc(n, sizeof(*lists));
	int r;

	if (!lists)
		return -ENOMEM;
	r = meta_read(f->r->conf.meta, f->inode, index, n, lists);
	if (r < 0) {
		free(lists);
		return r;
	}
	metric_add(f->r->lists, n);
	*ret_attr = lists[n - 1].attr;
	*ret_volume = lists[n - 1].volume;
	for (uint32_t i = 0; i < n; i++) {
		const struct attr *a = &lists[i].attr;

		/* read in several steps while somebody wrote: the last step's attributes decide */
		if (same_time(&a->ctime, &ret_attr->ctime) &&
		    same_time(&a->mtime, &ret_attr->mtime) &&
		    hash128_eq(&lists[i].volume, ret_volume)) {
			lists[i].index = index + i;
			views[i] = view_of_list(&lists[i]);
			if (!views[i])
				r = -ENOMEM;
		}
		chunk_list_fini(&lists[i]);
	}
	free(lists);
	return r;
}

/* Puts the views in, moves those who have all they need (or all, on failure) to ready. false:
 * somebody still waits. */
static bool fetch_end(struct rfile *f, int status, uint64_t epoch, struct view **views, uint32_t n,
		      const struct attr *a, const struct hash128 *volume, struct list_node *ready)
{
	struct list_node *node, *next;
	uint32_t missing;
	bool idle;

	mtx_lock(&f->lock);
	volume_check_locked(f);
	if (status == 0 && epoch == f->epoch) {
		lists_attr_locked(f, a, volume);
		for (uint32_t i = 0; i < n; i++)
			if (views[i])
				view_add_locked(f, TAKE_PTR(views[i]));
	}
	list_for_each_safe(node, next, &f->waiting)
	{
		if (status < 0 ||
		    views_take_locked(f, container_of(node, struct view_wait, link), &missing)) {
			list_del(node);
			list_add_tail(ready, node);
		}
	}
	idle = list_empty(&f->waiting);
	if (idle)
		f->fetching = false;
	mtx_unlock(&f->lock);
	return idle;
}

static void fetch_run(struct workq_job *job)
{
	struct rfile *f = container_of(job, struct rfile, job);
	struct workq *q = f->r->conf.metaq;
	struct view *views[FETCH_MAX] = {NULL};
	struct list_node ready, *node;
	struct attr a = {0};
	struct hash128 volume = {0};
	uint64_t epoch;
	uint32_t index, n;
	bool idle;
	int r;

	list_init(&ready);
	fetch_begin(f, &index, &n, &epoch);
	r = fetch_read(f, index, n, views, &a, &volume);
	idle = fetch_end(f, r, epoch, views, n, &a, &volume, &ready);
	for (uint32_t i = 0; i < n; i++)
		view_unref(views[i]);
	/* f is not ours any more once it is idle and its reference is given back; the reads in
	 * ready hold it themselves */
	if (idle)
		rfile_put(f);
	else
		workq_push_always(q, job);
	while ((node = list_pop(&ready))) {
		struct view_wait *w = container_of(node, struct view_wait, link);

		w->ready(w, r);
	}
}

static void fetch_push(struct rfile *f)
{
	rfile_ref(f);
	f->job.fn = fetch_run;
	/* bounded by the files that are open: one job a file */
	workq_push_always(f->r->conf.metaq, &f->job);
}

void rfile_views(struct rfile *f, struct view_wait *w)
{
	uint32_t missing;
	bool have, start = false;

	assert(w->len <= CHUNK_SIZE);
	mtx_lock(&f->lock);
	have = views_take_locked(f, w, &missing);
	if (!have) {
		list_add_tail(&f->waiting, &w->link);
		start = !f->fetching;
		f->fetching = true;
	}
	mtx_unlock(&f->lock);
	if (have)
		w->ready(w, 0);
	else if (start)
		fetch_push(f);
}

struct view *rfile_peek(struct rfile *f, uint32_t index)
{
	struct view *v;
	bool start = false;

	mtx_lock(&f->lock);
	volume_check_locked(f);
	v = view_find_locked(f, index);
	if (v) {
		view_ref(v);
	} else {
		f->hinted = true;
		f->hint = index;
		start = !f->fetching;
		f->fetching = true;
	}
	mtx_unlock(&f->lock);
	if (start)
		fetch_push(f);
	return v;
}
