/* SPDX-License-Identifier: Apache-2.0 */
/* How blocks come to a disk and go from it. Asked for from any thread; files change in the disks'
 * own threads.
 *
 * A block on its way ("pending") holds its memory and is served from there:
 *
 *	store_keep -> pending, queued -> index_begin -> room made, file written (keep_run)
 *		   -> index_commit -> not pending any more -> waiters told (keep_end)
 *	a full disk, one that fails or is set aside: index_abort -> waiters told why
 *
 * Bound: pending blocks hold pool memory, a disk's at most half of its share of the pool when it
 * makes no progress, three quarters in any case; beyond that, blocks that nobody waits for are
 * skipped.
 *
 * A write that hangs is given up: it is not pending any more, its entry is gone, and the thread
 * keeps the memory. If it ends well after all, its file is taken into the index then. */
#include "cached/store_inner.h"

#include <time.h>

#include "common/clock.h"

enum { STUCK_US = 100000, BEGIN_TRIES = 50 };

enum { NOT_BEGUN, BEGUN, GIVEN_UP };

struct pending {
	struct hash_node node;
	struct block_key key;
	struct blob data;
	uint8_t *sums;
	struct list_node waiters, droppers; /* block_req.link */
	struct disk_job job;
	struct store *store;
	struct disk *disk;
	struct metric *stored;
	enum evict_kind kind;
	bool there;	   /* somebody else stored it */
	atomic_uint begun; /* NOT_BEGUN -> BEGUN, by run; -> GIVEN_UP, when it hangs */
};

static bool pending_eq(const struct hash_node *n, const void *key)
{
	return block_key_eq(&container_of(n, const struct pending, node)->key, key);
}

static struct pending *pending_find_locked(struct store *s, const struct block_key *k)
{
	struct hash_node *n = hashmap_find(&s->pending, k->digest, pending_eq, k);

	return n ? container_of(n, struct pending, node) : NULL;
}

bool store_pending(struct store *s, const struct block_key *k, uint32_t off, uint32_t len,
		   struct blob *ret)
{
	struct pending *p;

	mtx_lock(&s->lock);
	p = pending_find_locked(s, k);
	if (p && ret)
		*ret = blob_slice(&p->data, off, len);
	mtx_unlock(&s->lock);
	return p;
}

bool store_pending_wait(struct store *s, struct block_req *waiter, bool drop)
{
	struct pending *p;

	mtx_lock(&s->lock);
	p = pending_find_locked(s, &waiter->key);
	if (p)
		list_add_tail(drop ? &p->droppers : &p->waiters, &waiter->link);
	mtx_unlock(&s->lock);
	return p;
}

static void pending_free(struct pending *p)
{
	blob_fini(&p->data);
	free(p->sums);
	free(p);
}

/* A disk's trouble as a status of the chain, where -EIO, -EACCES are the object store's alone. */
static int keep_status(int r)
{
	switch (r) {
	case 0:
	case -ENOSPC:
	case -ENOMEM:
	case -ESTALE:
		return r;
	case -EDQUOT:
		return -ENOSPC;
	default:
		return -EBUSY;
	}
}

static void keep_failed(struct block_req *w, int r, const char *why)
{
	req_fail(w, keep_status(r), "block %llu_%u_%u could not be kept: %s",
		 (unsigned long long)w->key.slice, w->key.index, w->key.size, why);
}

static void skipped(struct store *s, struct disk *d)
{
	metric_add(s->conf.counters->skipped, 1);
	if (d)
		metric_add(d->metrics.skipped, 1);
}

/* The block is on a disk (0), or will not be. Who waited to keep it hears how that went, who waited
 * to drop it whether it is gone, which it also is when it never came. */
static void pending_end(struct pending *p, int status)
{
	struct store *s = p->store;
	struct list_node waiters, droppers, *n;
	unsigned disk;
	int gone = 0;

	list_init(&waiters);
	list_init(&droppers);
	mtx_lock(&s->lock);
	hashmap_del(&s->pending, &p->node);
	s->pending_bytes[p->disk->number] -= p->key.size;
	list_splice_tail(&waiters, &p->waiters);
	list_splice_tail(&droppers, &p->droppers);
	mtx_unlock(&s->lock);
	if (status)
		skipped(s, p->disk);
	else if (!p->there)
		metric_add(p->stored, 1);
	if (!list_empty(&droppers) && status == 0 && index_take(s->ix, &p->key, &disk) == 0)
		gone = store_remove(s, s->conf.disks[disk], &p->key);
	while ((n = list_pop(&waiters))) {
		struct block_req *w = container_of(n, struct block_req, link);

		if (status)
			keep_failed(w, status, strerror(-status));
		else
			req_done(w, 0);
	}
	while ((n = list_pop(&droppers)))
		req_done(container_of(n, struct block_req, link), keep_status(gone));
}

/* --- which blocks, on which disk --- */

/* Owner in the ring, or in the sub-group's own: mine; successor: a guest. Who is no member keeps
 * what passes. */
static bool is_mine(struct store *s, const struct block_key *k, bool *ret_guest)
{
	struct cluster *c = s->conf.view ? cluster_view_get(s->conf.view) : NULL;
	uint32_t who[2], near;
	bool owner = true, next = false;
	int self = c ? cluster_index(c, s->conf.self) : -1;

	if (self >= 0) {
		size_t n = cluster_find(c, k, who, 2);

		owner = (n > 0 && who[0] == (uint32_t)self) ||
			(cluster_find_sub(c, k, c->members[self].sub_group, &near, 1) > 0 &&
			 near == (uint32_t)self);
		next = n > 1 && who[1] == (uint32_t)self;
	}
	cluster_unref(c);
	*ret_guest = !owner;
	return owner || next;
}

/* NULL: none takes new blocks */
struct disk *store_choose_disk(struct store *s, const struct block_key *k)
{
	uint32_t order[INDEX_DISKS_MAX] = {0};
	size_t n = 1;

	if (s->placement)
		n = ring_find(s->placement, k->digest, order, INDEX_DISKS_MAX);
	for (size_t i = 0; i < n; i++)
		if (disk_state(s->conf.disks[order[i]]) == DISK_WELL)
			return s->conf.disks[order[i]];
	return NULL;
}

/* --- going --- */

int store_remove(struct store *s, struct disk *d, const struct block_key *k)
{
	int r;

	files_drop(s->files, k);
	r = disk_remove_block(d, k);
	if (r < 0)
		disk_result(d, DISK_WRITES, r, 0);
	else
		passed_unlinked(s->passed, d, k, disk_cost(k->size));
	disk_used(d, disk_cost(k->size), false);
	index_gone(s->ix, k);
	return r;
}

void store_forget_away(struct store *s, const struct block_key *k)
{
	unsigned disk;

	if (!index_where(s->ix, k, &disk) || disk_state(s->conf.disks[disk]) != DISK_AWAY ||
	    index_take(s->ix, k, &disk) < 0)
		return;
	disk_used(s->conf.disks[disk], disk_cost(k->size), false);
	index_gone(s->ix, k);
}

uint64_t store_evict(struct store *s, struct disk *d, uint64_t bytes, uint64_t files,
		     struct disk_job *job)
{
	uint64_t freed = 0, n = 0;
	struct block_key k;

	while ((freed < bytes || n < files) && index_victim(s->ix, d->number, &k) == 0) {
		(void)store_remove(s, d, &k);
		metric_add(s->conf.counters->evictions, 1);
		freed += disk_cost(k.size);
		n++;
		diskq_progress(job); /* however many they are */
	}
	return freed;
}

/* The deficit is computed once: what was removed and is still held open by somebody counts as on
 * its way, so that one mount's open descriptors do not empty the cache; until it is really free
 * nothing new is written. */
int store_make_room(struct store *s, struct disk *d, uint64_t bytes, struct disk_job *job)
{
	struct disk_deficit def;
	uint64_t freed, held;
	int r;

	if (bytes > d->capacity)
		return -ENOSPC;
	passed_expire(s->passed);
	files_close(s->files, &s->disk[d->number]);
	r = disk_deficit(d, bytes, &def);
	if (r < 0)
		return r;
	held = atomic_load_explicit(&d->held, memory_order_relaxed);
	freed = def.bytes || def.files ? store_evict(s, d, def.bytes, def.files, job) : 0;
	if (disk_has_room(d, bytes)) {
		if (bytes)
			disk_refused(d, 0);
		return 0;
	}
	held = atomic_load_explicit(&d->held, memory_order_relaxed) - held;
	if (freed > held && (int64_t)held >= 0)
		disk_owe(d, freed - held, def.files);
	if (bytes && atomic_load_explicit(&d->held, memory_order_relaxed))
		disk_refused(d, bytes);
	return -ENOSPC;
}

/* --- coming --- */

/* -EEXIST: it is there already. A copy that is just being removed is waited for: that takes one
 * unlink in another thread. */
static int begin(struct store *s, const struct block_key *k)
{
	const struct timespec ms = {.tv_nsec = 1000000};
	int r = index_begin(s->ix, k);

	for (int i = 0; r == -EBUSY && i < BEGIN_TRIES; i++) {
		nanosleep(&ms, NULL);
		r = index_begin(s->ix, k);
	}
	return r;
}

/* *ret_full: the disk has less room than it says (a quota) */
static int write_once(struct store *s, struct pending *p, bool *ret_full)
{
	uint64_t cost = disk_cost(p->key.size);
	struct disk *d = p->disk;
	int r = store_make_room(s, d, cost, &p->job);

	*ret_full = false;
	if (r < 0)
		return r;
	atomic_fetch_add_explicit(&d->writing, cost, memory_order_relaxed);
	r = disk_write_block(d, &p->key, blob_mem(&p->data), p->sums);
	atomic_fetch_sub_explicit(&d->writing, cost, memory_order_relaxed);
	*ret_full = (r == -ENOSPC || r == -EDQUOT) &&
		    !atomic_load_explicit(&d->held, memory_order_relaxed);
	return r;
}

/* the entry is ours, and the watcher has not given us up; else -errno */
static int begin_pending(struct store *s, struct pending *p)
{
	unsigned none = NOT_BEGUN;
	int r = begin(s, &p->key);

	if (r < 0)
		return r;
	if (atomic_compare_exchange_strong(&p->begun, &none, BEGUN))
		return 0;
	index_abort(s->ix, &p->key);
	return -EIO;
}

static int keep_run(struct disk_job *job)
{
	struct pending *p = container_of(job, struct pending, job);
	struct store *s = p->store;
	struct disk *d = p->disk;
	uint64_t began = clock_us();
	bool full;
	int r = begin_pending(s, p);

	if (r < 0)
		return r;
	atomic_store_explicit(&d->progress_us, began, memory_order_relaxed);
	r = write_once(s, p, &full);
	if (full) {
		(void)store_evict(s, d, disk_cost(p->key.size), 1, job);
		r = write_once(s, p, &full);
	}
	atomic_store_explicit(&d->progress_us, clock_us(), memory_order_relaxed);
	disk_result(d, DISK_WRITES, r, clock_us() - began);
	return r;
}

/* the file stands under its name, and so does its entry now */
static int commit(struct store *s, struct pending *p)
{
	uint64_t cost = disk_cost(p->key.size);
	int r;

	disk_used(p->disk, cost, true);
	r = index_commit(s->ix, &p->key, p->disk->number, p->kind);
	if (r < 0)
		disk_used(p->disk, cost, false);
	else
		store_pin_align(s, &p->key);
	return r;
}

static void keep_end(struct disk_job *job, int status)
{
	struct pending *p = container_of(job, struct pending, job);
	struct store *s = p->store;
	bool begun = atomic_exchange(&p->begun, GIVEN_UP) == BEGUN;
	int r = status;

	p->there = status == -EEXIST;
	if (p->there)
		r = 0;
	else if (status == 0)
		r = commit(s, p);
	else if (begun)
		index_abort(s->ix, &p->key);
	pending_end(p, r);
	if (status == 0 && r < 0) /* the volume moved meanwhile */
		(void)disk_remove_block(p->disk, &p->key);
	if (status != -ETIMEDOUT)
		pending_free(p);
}

/* It hung, and came back. */
static void keep_late(struct disk_job *job, int status)
{
	struct pending *p = container_of(job, struct pending, job);
	struct store *s = p->store;
	unsigned disk;
	int r = status == 0 ? index_begin(s->ix, &p->key) : status;

	if (r == 0)
		r = commit(s, p);
	/* another disk has it, or the volume moved */
	if (status == 0 && r < 0 &&
	    !(index_where(s->ix, &p->key, &disk) && disk == p->disk->number))
		(void)disk_remove_block(p->disk, &p->key);
	pending_free(p);
}

static bool too_much_locked(struct store *s, const struct disk *d, uint32_t size, size_t budget)
{
	uint64_t held = s->pending_bytes[d->number] + size;
	uint64_t idle = clock_us() - atomic_load_explicit(&d->progress_us, memory_order_relaxed);

	budget /= s->conf.n_disks;
	return held > size && (held > budget / 4 * 3 || (held > budget / 2 && idle > STUCK_US));
}

/* with the sums that came with the block, or computed now; NULL: no memory */
static struct pending *pending_new(struct store *s, struct block_req *req, struct metric *stored)
{
	struct pending *p = calloc(1, sizeof(*p));
	size_t len = msg_sums_len(req->key.size);

	if (!p)
		return NULL;
	p->sums = malloc(len);
	if (!p->sums) {
		free(p);
		return NULL;
	}
	if (blob_mem(&req->sums) && req->sums.len == len)
		memcpy(p->sums, blob_mem(&req->sums), len);
	else
		block_sums(&req->key, 0, blob_mem(&req->data), req->key.size, p->sums);
	p->key = req->key;
	p->data = blob_slice(&req->data, 0, req->key.size);
	p->store = s;
	p->stored = stored;
	p->job = (struct disk_job){.run = keep_run, .end = keep_end, .late = keep_late};
	list_init(&p->waiters);
	list_init(&p->droppers);
	return p;
}

enum listed { LISTED, JOINED, SKIPPED };

/* p becomes pending, or waiter joins the one that is, or there is too much already */
static enum listed list_pending(struct store *s, struct pending *p, struct block_req *waiter,
				size_t budget)
{
	enum listed r = LISTED;
	struct pending *there;

	mtx_lock(&s->lock);
	there = pending_find_locked(s, &p->key);
	if (there) {
		r = JOINED;
	} else if (!waiter && too_much_locked(s, p->disk, p->key.size, budget)) {
		r = SKIPPED;
	} else {
		hashmap_add(&s->pending, &p->node, p->key.digest);
		s->pending_bytes[p->disk->number] += p->key.size;
		there = p;
	}
	if (waiter)
		list_add_tail(&there->waiters, &waiter->link);
	mtx_unlock(&s->lock);
	return r;
}

static void not_kept(struct store *s, struct disk *d, struct block_req *waiter, int r,
		     const char *why)
{
	if (waiter)
		keep_failed(waiter, r, why);
	else
		skipped(s, d);
}

void store_keep(struct store *s, struct block_req *req, struct block_req *waiter,
		struct metric *stored)
{
	bool guest, mine = is_mine(s, &req->key, &guest);
	struct pool_stat pool;
	struct pending *p;
	struct disk *d;

	if (waiter && store_disk_of(s, &req->key, false)) {
		req_done(waiter, 0);
		return;
	}
	if (!waiter && store_has(s, &req->key))
		return;
	d = store_choose_disk(s, &req->key);
	if (!d || (!waiter && !mine)) {
		not_kept(s, NULL, waiter, -EIO, "all cache directories are set aside");
		return;
	}
	if (!waiter && !guest && !index_admit(s->ix, &req->key, d->number)) {
		metric_add(s->conf.counters->declined, 1);
		return;
	}
	store_forget_away(s, &req->key);
	p = pending_new(s, req, stored);
	if (!p) {
		not_kept(s, d, waiter, -ENOMEM, strerror(ENOMEM));
		return;
	}
	p->disk = d;
	p->kind = guest				     ? EVICT_GUEST
		  : !waiter			     ? EVICT_READ
		  : stored == s->conf.counters->puts ? EVICT_WRITE
						     : EVICT_ASKED;
	pool_stat(req->env->pool, &pool);
	switch (list_pending(s, p, waiter, pool.budget)) {
	case LISTED: /* bounded: each holds memory of the pool */
		if (diskq_push(d->q[DISK_WRITES], &p->job) < 0)
			keep_end(&p->job, -EHOSTDOWN);
		return;
	case SKIPPED:
		not_kept(s, d, NULL, 0, NULL);
		break;
	case JOINED:
		break;
	}
	pending_free(p);
}
