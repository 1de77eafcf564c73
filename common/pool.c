/* SPDX-License-Identifier: Apache-2.0 */
/* One budget, and the buffers it pays for. Any thread; one leaf lock; waiters, reclaim and the
 * kernel are called without it.
 *
 * A byte of the budget is: free -> reserved (pool_reserve, or granted to a waiter) -> in a buffer
 * (pool_take) -> free (the last buf_unref), or reserved -> free (pool_unreserve). `used` counts
 * reserved and in buffers, `taken` only what is in buffers. Memory of freed buffers is kept for the
 * next one of exactly the same cost, the hottest first: memory that was touched before costs a
 * fraction of fresh pages. The oldest goes back to the kernel only when a buffer of another cost
 * needs its room, so a reservation that is about to take a kept buffer does not first throw it out.
 *
 * Invariants: taken <= used <= budget; taken + kept <= budget: that is what is mapped. used = the
 * sum of used_by. A class is granted bytes only if the other classes' unused minimum stays free, so
 * one block of each class can always be had. Waiters of a class are served first in, first out;
 * upload and prefetch pass a waiting class that goes before them only inside their own minimum. */
#include "common/pool.h"

#include <sys/mman.h>

#include "common/mtx.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define POISON(mem, n)	 __asan_poison_memory_region(mem, n)
#define UNPOISON(mem, n) __asan_unpoison_memory_region(mem, n)
#else
#define POISON(mem, n)
#define UNPOISON(mem, n)
#endif

enum { HUGE = 2 << 20 }; /* a huge page */

struct pool {
	size_t budget, minimum; /* minimum: of each class */
	void (*reclaim)(void *arg, size_t bytes);
	void *reclaim_arg;
	size_t page, n_kept_lists;
	struct mtx lock;
	size_t used, taken, kept, peak GUARDED_BY(lock);
	size_t used_by[POOL_CLASSES] GUARDED_BY(lock);
	struct list_node waiters[POOL_CLASSES] GUARDED_BY(lock); /* prefetch's stays empty */
	size_t waiting_bytes[POOL_CLASSES] GUARDED_BY(lock);
	unsigned waiting; /* atomic for pool_pressed; changes under lock */
	uint64_t waited, refused GUARDED_BY(lock);
	struct list_node oldest GUARDED_BY(lock); /* kept buffers by age */
	struct list_node
		kept_of[] GUARDED_BY(lock); /* kept buffers by cost in pages, hottest first */
};

static size_t page_size(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

size_t pool_cost(size_t len)
{
	size_t page = page_size();

	/* a length no pool can have: a cost no pool can pay, instead of a sum that wrapped */
	if (len > SIZE_MAX / 4)
		return SIZE_MAX / 4;
	return len ? ROUND_UP(len, page) : page;
}

int pool_new(size_t budget, size_t block, struct pool **ret)
{
	size_t cost = pool_cost(block);
	size_t page = page_size();
	size_t n = cost / page + 1;
	struct pool *p;

	if (cost > budget / 4)
		return -EINVAL;
	p = calloc(1, sizeof(*p) + n * sizeof(p->kept_of[0]));
	if (!p)
		return -ENOMEM;
	p->budget = budget;
	p->minimum = cost;
	p->page = page;
	p->n_kept_lists = n;
	mtx_init(&p->lock);
	for (size_t i = 0; i < n; i++)
		list_init(&p->kept_of[i]);
	for (int c = 0; c < POOL_CLASSES; c++)
		list_init(&p->waiters[c]);
	list_init(&p->oldest);
	*ret = p;
	return 0;
}

/* Large buffers lie on huge pages: a twentieth of the faults, and copies run faster. */
static void *map_memory(size_t n)
{
	size_t room = n < HUGE ? n : n + HUGE, skip;
	unsigned char *mem =
		mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (mem == MAP_FAILED)
		return NULL;
	if (n < HUGE)
		return mem;
	skip = ROUND_UP((uintptr_t)mem, (uintptr_t)HUGE) - (uintptr_t)mem;
	if (skip)
		munmap(mem, skip);
	if (HUGE - skip)
		munmap(mem + skip + n, HUGE - skip);
	/* a kernel without them says no, and small pages serve */
	(void)madvise(mem + skip, n / HUGE * HUGE, MADV_HUGEPAGE);
	return mem + skip;
}

static void buf_unmap(struct buf *b)
{
	UNPOISON(b->mem, b->cap);
	munmap(b->mem, b->cap);
	free(b);
}

static void unmap_all(struct list_node *list)
{
	struct list_node *n;

	while ((n = list_pop(list)))
		buf_unmap(container_of(n, struct buf, age_link));
}

/* takes the oldest kept buffers out until taken + kept <= limit */
static void pool_trim_locked(struct pool *p, size_t limit, struct list_node *gone) REQUIRES(p->lock)
{
	struct list_node *n;

	while (p->taken + p->kept > limit && (n = list_pop(&p->oldest))) {
		struct buf *b = container_of(n, struct buf, age_link);

		list_del(&b->free_link);
		p->kept -= b->cap;
		list_add_tail(gone, &b->age_link);
	}
}

void pool_free(struct pool *p)
{
	struct list_node gone;

	if (!p)
		return;
	list_init(&gone);
	mtx_lock(&p->lock);
	assert(p->used == 0 && p->taken == 0 && p->waiting == 0);
	pool_trim_locked(p, 0, &gone);
	assert(p->kept == 0);
	mtx_unlock(&p->lock);
	unmap_all(&gone);
	mtx_fini(&p->lock);
	free(p);
}

/* what class c must leave free for the others */
static size_t pool_apart_locked(const struct pool *p, enum pool_class c) REQUIRES(p->lock)
{
	size_t apart = 0;

	for (int k = 0; k < POOL_CLASSES; k++)
		if (k != (int)c && p->used_by[k] < p->minimum)
			apart += p->minimum - p->used_by[k];
	return apart;
}

/* how many bytes are missing for a request of class c; 0: it may have them */
static size_t pool_missing_locked(const struct pool *p, enum pool_class c, size_t bytes)
	REQUIRES(p->lock)
{
	size_t want = p->used + pool_apart_locked(p, c) + bytes;

	return want > p->budget ? want - p->budget : 0;
}

/* a waiter of a class that goes first is waiting: what is free is meant for him, but for c's own
 * minimum */
static bool pool_must_let_pass_locked(const struct pool *p, enum pool_class c, size_t bytes)
	REQUIRES(p->lock)
{
	bool before = c != POOL_DEMAND && !list_empty(&p->waiters[POOL_DEMAND]);

	if (c == POOL_PREFETCH)
		before = p->waiting;
	return before && p->used_by[c] + bytes > p->minimum;
}

static void pool_grant_locked(struct pool *p, enum pool_class c, size_t bytes) REQUIRES(p->lock)
{
	p->used += bytes;
	p->used_by[c] += bytes;
	p->peak = MAX(p->peak, p->used);
}

static void pool_unqueue_locked(struct pool *p, struct pool_wait *w) REQUIRES(p->lock)
{
	list_del(&w->link);
	w->queued = false;
	p->waiting_bytes[w->klass] -= w->bytes;
	__atomic_store_n(&p->waiting, p->waiting - 1, __ATOMIC_RELEASE);
}

/* moves every waiter whose turn has come to ready, its bytes reserved */
static void pool_serve_locked(struct pool *p, struct list_node *ready) REQUIRES(p->lock)
{
	for (int c = POOL_DEMAND; c <= POOL_UPLOAD; c++) {
		while (!list_empty(&p->waiters[c])) {
			struct pool_wait *w =
				container_of(p->waiters[c].next, struct pool_wait, link);

			if (pool_missing_locked(p, w->klass, w->bytes) ||
			    pool_must_let_pass_locked(p, w->klass, w->bytes))
				break;
			pool_unqueue_locked(p, w);
			pool_grant_locked(p, w->klass, w->bytes);
			list_add_tail(ready, &w->link);
		}
	}
}

static void run_ready(struct list_node *ready)
{
	struct list_node *n;

	while ((n = list_pop(ready))) {
		struct pool_wait *w = container_of(n, struct pool_wait, link);

		w->fn(w); /* w may be gone afterwards */
	}
}

static void pool_give_back_locked(struct pool *p, enum pool_class c, size_t bytes) REQUIRES(p->lock)
{
	assert(p->used_by[c] >= bytes && p->used >= bytes);
	p->used -= bytes;
	p->used_by[c] -= bytes;
}

/* true: granted. Else *ret_missing says what the cache should give up: for those ahead too */
static bool pool_try_locked(struct pool *p, enum pool_class c, size_t bytes, size_t *ret_missing)
	REQUIRES(p->lock)
{
	size_t ahead = p->waiting_bytes[POOL_DEMAND] +
		       (c == POOL_DEMAND ? 0 : p->waiting_bytes[POOL_UPLOAD]);
	size_t missing = pool_missing_locked(p, c, bytes);

	if (!missing && list_empty(&p->waiters[c]) && !pool_must_let_pass_locked(p, c, bytes)) {
		pool_grant_locked(p, c, bytes);
		return true;
	}
	if (ahead)
		missing = MAX(missing, bytes) + ahead;
	*ret_missing = MIN(missing, p->budget);
	return false;
}

static bool pool_try(struct pool *p, enum pool_class c, size_t bytes, size_t *ret_missing)
{
	bool ok;

	mtx_lock(&p->lock);
	ok = pool_try_locked(p, c, bytes, ret_missing);
	mtx_unlock(&p->lock);
	return ok;
}

/* the last try; what cannot be had is queued (w) or refused */
static int pool_try_or_queue(struct pool *p, enum pool_class c, size_t bytes, struct pool_wait *w)
{
	size_t missing = 0;
	int r = 0;

	mtx_lock(&p->lock);
	if (pool_try_locked(p, c, bytes, &missing)) {
		/* granted */
	} else if (w && c != POOL_PREFETCH) {
		w->klass = c;
		w->bytes = bytes;
		w->queued = true;
		list_add_tail(&p->waiters[c], &w->link);
		p->waiting_bytes[c] += bytes;
		p->waited++;
		__atomic_store_n(&p->waiting, p->waiting + 1, __ATOMIC_RELEASE);
		r = -EAGAIN;
	} else {
		p->refused++;
		r = -ENOBUFS;
	}
	mtx_unlock(&p->lock);
	/* Once more, now that pool_pressed is true: what the cache took in between the first call
	 * and the queueing. */
	if (r == -EAGAIN && p->reclaim)
		p->reclaim(p->reclaim_arg, missing);
	return r;
}

int pool_reserve(struct pool *p, enum pool_class klass, size_t bytes, struct pool_wait *w)
{
	size_t missing = 0;

	if (w)
		w->queued = false;
	if (bytes > p->budget - (POOL_CLASSES - 1) * p->minimum)
		return -EMSGSIZE;
	if (pool_try(p, klass, bytes, &missing))
		return 0;
	if (p->reclaim)
		p->reclaim(p->reclaim_arg, missing);
	return pool_try_or_queue(p, klass, bytes, w);
}

bool pool_cancel(struct pool *p, struct pool_wait *w)
{
	struct list_node ready;
	bool was;

	list_init(&ready);
	mtx_lock(&p->lock);
	was = w->queued;
	if (was) {
		pool_unqueue_locked(p, w);
		pool_serve_locked(p, &ready); /* those behind him may fit */
	}
	mtx_unlock(&p->lock);
	run_ready(&ready);
	return was;
}

void pool_unreserve(struct pool *p, enum pool_class klass, size_t bytes)
{
	struct list_node ready;

	if (!bytes)
		return;
	list_init(&ready);
	mtx_lock(&p->lock);
	pool_give_back_locked(p, klass, bytes);
	pool_serve_locked(p, &ready);
	mtx_unlock(&p->lock);
	run_ready(&ready);
}

/* counts cost as taken; NULL: there was no kept buffer for it, and the room for one to be mapped
 * was made */
static struct buf *pool_kept_buf(struct pool *p, size_t cost)
{
	struct list_node *n = NULL, gone;
	struct buf *b = NULL;

	list_init(&gone);
	mtx_lock(&p->lock);
	p->taken += cost;
	if (cost / p->page < p->n_kept_lists)
		n = list_pop(&p->kept_of[cost / p->page]);
	if (n) {
		b = container_of(n, struct buf, free_link);
		list_del(&b->age_link);
		p->kept -= cost;
	} else {
		pool_trim_locked(p, p->budget, &gone);
	}
	assert(p->taken <= p->used);
	mtx_unlock(&p->lock);
	unmap_all(&gone);
	return b;
}

static struct buf *buf_map(struct pool *p, size_t cost)
{
	struct buf *b = calloc(1, sizeof(*b));
	void *mem;

	if (!b)
		return NULL;
	mem = map_memory(cost);
	if (!mem) {
		free(b);
		return NULL;
	}
	*b = (struct buf){.pool = p, .mem = mem, .cap = cost};
	list_init(&b->free_link);
	list_init(&b->age_link);
	return b;
}

/* all kept memory; the kernel may have some again */
static void pool_drop_kept(struct pool *p)
{
	struct list_node gone;

	list_init(&gone);
	mtx_lock(&p->lock);
	pool_trim_locked(p, 0, &gone);
	mtx_unlock(&p->lock);
	unmap_all(&gone);
}

struct buf *pool_take(struct pool *p, enum pool_class klass, size_t len, size_t *reserved)
{
	size_t cost = pool_cost(len);
	struct buf *b;

	assert(*reserved >= cost);
	b = pool_kept_buf(p, cost);
	if (!b)
		b = buf_map(p, cost);
	if (!b) {
		pool_drop_kept(p);
		b = buf_map(p, cost);
	}
	if (!b) {
		mtx_lock(&p->lock);
		p->taken -= cost;
		mtx_unlock(&p->lock);
		return NULL;
	}
	UNPOISON(b->mem, b->cap);
	b->klass = klass;
	__atomic_store_n(&b->refs, 1, __ATOMIC_RELAXED);
	*reserved -= cost;
	return b;
}

struct buf *buf_ref(struct buf *b)
{
	unsigned before = __atomic_fetch_add(&b->refs, 1, __ATOMIC_RELAXED);

	assert(before > 0);
	(void)before;
	return b;
}

void buf_unref(struct buf *b)
{
	struct list_node ready, gone;
	struct pool *p;
	unsigned before;

	if (!b)
		return;
	before = __atomic_fetch_sub(&b->refs, 1, __ATOMIC_ACQ_REL);
	assert(before > 0);
	if (before > 1)
		return;
	p = b->pool;
	list_init(&ready);
	list_init(&gone);
	POISON(b->mem, b->cap);
	mtx_lock(&p->lock);
	pool_give_back_locked(p, b->klass, b->cap);
	p->taken -= b->cap;
	if (b->cap / p->page < p->n_kept_lists) {
		list_add_tail(&p->oldest, &b->age_link);
		list_add_head(&p->kept_of[b->cap / p->page], &b->free_link);
		p->kept += b->cap;
	} else {
		list_add_tail(&gone, &b->age_link);
	}
	pool_serve_locked(p, &ready);
	mtx_unlock(&p->lock);
	unmap_all(&gone);
	run_ready(&ready);
}

void pool_set_reclaim(struct pool *p, void (*fn)(void *arg, size_t bytes), void *arg)
{
	p->reclaim = fn;
	p->reclaim_arg = arg;
}

bool pool_pressed(struct pool *p)
{
	return __atomic_load_n(&p->waiting, __ATOMIC_ACQUIRE) > 0;
}

void pool_stat(struct pool *p, struct pool_stat *ret)
{
	mtx_lock(&p->lock);
	*ret = (struct pool_stat){
		.budget = p->budget,
		.used = p->used,
		.peak = p->peak,
		.waiting = p->waiting,
		.waited = p->waited,
		.refused = p->refused,
	};
	mtx_unlock(&p->lock);
}
