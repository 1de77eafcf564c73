/* SPDX-License-Identifier: Apache-2.0 */
/* pool: random operations against the plain rules, the minimum of each class, the order of waiters,
 * reclaim, and threads. */
#include "common/pool.h"

#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <time.h>
#include <cmocka.h>

#include "common/mtx.h"

enum { KIB = 1024, BLOCK = 64 * KIB, BUDGET = 8 * BLOCK };

static size_t used(struct pool *p)
{
	struct pool_stat st;

	pool_stat(p, &st);
	assert_true(st.used <= st.budget && st.used <= st.peak);
	return st.used;
}

static struct pool *pool_make(void)
{
	struct pool *p;

	assert_int_equal(pool_new(BUDGET, BLOCK, &p), 0);
	return p;
}

static void pool_refuses_what_it_can_never_give(void **state)
{
	struct pool *p;

	(void)state;
	assert_int_equal(pool_new(4 * BLOCK - 1, BLOCK, &p), -EINVAL);
	assert_int_equal(pool_new(BUDGET, SIZE_MAX, &p), -EINVAL);
	p = pool_make();
	assert_int_equal(pool_reserve(p, POOL_DEMAND, BUDGET - 2 * BLOCK + 1, NULL), -EMSGSIZE);
	assert_int_equal(pool_reserve(p, POOL_PREFETCH, BUDGET - 2 * BLOCK + 1, NULL), -EMSGSIZE);
	assert_int_equal(pool_reserve(p, POOL_UPLOAD, pool_cost(SIZE_MAX), NULL), -EMSGSIZE);
	assert_int_equal(pool_cost(1), pool_cost(4096));
	assert_int_equal(pool_cost(0), pool_cost(1));
	pool_free(p);
	pool_free(NULL);
}

/* whoever fills the pool, one block of every other class can be had, and no second one */
static void pool_keeps_a_minimum_for_each_class(void **state)
{
	(void)state;
	for (int first = 0; first < POOL_CLASSES; first++) {
		struct pool *p = pool_make();
		size_t n = 0;

		while (pool_reserve(p, (enum pool_class)first, BLOCK, NULL) == 0)
			n++;
		assert_int_equal(n, 6);
		for (int c = 0; c < POOL_CLASSES; c++) {
			if (c == first)
				continue;
			assert_int_equal(pool_reserve(p, (enum pool_class)c, BLOCK, NULL), 0);
			assert_int_equal(pool_reserve(p, (enum pool_class)c, BLOCK, NULL),
					 -ENOBUFS);
			pool_unreserve(p, (enum pool_class)c, BLOCK);
		}
		pool_unreserve(p, (enum pool_class)first, n * BLOCK);
		assert_int_equal(used(p), 0);
		pool_free(p);
	}
}

/* a prefetch that the minimum has room for is not kept waiting by demand that waits */
static void pool_lets_prefetch_use_its_minimum(void **state)
{
	struct pool_wait w = {.fn = NULL};
	struct pool *p = pool_make();

	(void)state;
	assert_int_equal(pool_reserve(p, POOL_DEMAND, 6 * BLOCK, NULL), 0);
	assert_int_equal(pool_reserve(p, POOL_DEMAND, BLOCK, &w), -EAGAIN);
	assert_int_equal(pool_reserve(p, POOL_PREFETCH, BLOCK, NULL), 0);
	assert_int_equal(pool_reserve(p, POOL_PREFETCH, BLOCK, NULL), -ENOBUFS);
	assert_true(pool_cancel(p, &w));
	pool_unreserve(p, POOL_DEMAND, 6 * BLOCK);
	pool_unreserve(p, POOL_PREFETCH, BLOCK);
	pool_free(p);
}

static void pool_reuses_the_hottest_buffer(void **state)
{
	struct pool *p = pool_make();
	size_t reserved = 3 * BLOCK;
	struct buf *a, *b, *c;

	(void)state;
	assert_int_equal(pool_reserve(p, POOL_DEMAND, reserved, NULL), 0);
	a = pool_take(p, POOL_DEMAND, BLOCK, &reserved);
	b = pool_take(p, POOL_DEMAND, BLOCK - 5, &reserved);
	assert_int_equal(reserved, BLOCK);
	assert_int_equal((uintptr_t)a->mem % 4096, 0);
	memset(a->mem, 1, BLOCK);
	buf_unref(b);
	buf_unref(a);
	assert_int_equal(used(p), BLOCK);
	c = pool_take(p, POOL_DEMAND, BLOCK, &reserved);
	assert_ptr_equal(c, a);
	assert_int_equal(buf_ref(c)->refs, 2);
	buf_unref(c);
	assert_int_equal(used(p), BLOCK);
	buf_unref(c);
	buf_unref(NULL);
	assert_int_equal(used(p), 0);
	pool_free(p);
}

struct waiter {
	struct pool_wait wait;
	struct pool *pool;
	unsigned number;
	bool served;
};

static unsigned order[16], n_order;

static void waiter_served(struct pool_wait *wait)
{
	struct waiter *w = container_of(wait, struct waiter, wait);

	w->served = true;
	order[n_order++] = w->number;
	(void)used(w->pool); /* runs without the lock, or this would assert */
}

static void pool_serves_in_order_and_demand_first(void **state)
{
	static const enum pool_class classes[] = {POOL_UPLOAD, POOL_DEMAND, POOL_DEMAND,
						  POOL_UPLOAD};
	struct waiter w[ARRAY_LEN(classes)];
	struct pool *p = pool_make();
	const unsigned want[] = {1, 2, 0, 3};

	(void)state;
	n_order = 0;
	/* all minimums are in use, so that only the order decides */
	assert_int_equal(pool_reserve(p, POOL_PREFETCH, BLOCK, NULL), 0);
	assert_int_equal(pool_reserve(p, POOL_UPLOAD, 2 * BLOCK, NULL), 0);
	assert_int_equal(pool_reserve(p, POOL_DEMAND, 5 * BLOCK, NULL), 0);
	for (unsigned i = 0; i < ARRAY_LEN(w); i++) {
		size_t bytes = i == 1 ? 3 * BLOCK : BLOCK;

		w[i] = (struct waiter){.wait.fn = waiter_served, .pool = p, .number = i};
		assert_int_equal(pool_reserve(p, classes[i], bytes, &w[i].wait), -EAGAIN);
		assert_true(pool_pressed(p));
	}
	/* two blocks are not enough for the first of demand: nobody passes him */
	pool_unreserve(p, POOL_DEMAND, 2 * BLOCK);
	assert_int_equal(n_order, 0);
	assert_int_equal(pool_reserve(p, POOL_UPLOAD, BLOCK, NULL), -ENOBUFS);
	assert_int_equal(pool_reserve(p, POOL_PREFETCH, BLOCK, NULL), -ENOBUFS);
	pool_unreserve(p, POOL_DEMAND, BLOCK);
	assert_int_equal(n_order, 1);
	pool_unreserve(p, POOL_DEMAND, 3 * BLOCK);
	assert_int_equal(n_order, 4);
	assert_memory_equal(order, want, sizeof(want));
	assert_false(pool_pressed(p));
	assert_int_equal(used(p), 8 * BLOCK);
	pool_unreserve(p, POOL_DEMAND, 3 * BLOCK);
	pool_unreserve(p, POOL_UPLOAD, 4 * BLOCK);
	pool_unreserve(p, POOL_PREFETCH, BLOCK);
	pool_free(p);
}

static void pool_cancel_lets_the_next_one_in(void **state)
{
	struct waiter a, b;
	struct pool *p = pool_make();

	(void)state;
	n_order = 0;
	a = (struct waiter){.wait.fn = waiter_served, .pool = p, .number = 0};
	b = (struct waiter){.wait.fn = waiter_served, .pool = p, .number = 1};
	assert_int_equal(pool_reserve(p, POOL_DEMAND, 5 * BLOCK, NULL), 0);
	assert_int_equal(pool_reserve(p, POOL_DEMAND, 3 * BLOCK, &a.wait), -EAGAIN);
	assert_int_equal(pool_reserve(p, POOL_DEMAND, BLOCK, &b.wait),
			 -EAGAIN); /* it would fit, but is second */
	assert_true(pool_cancel(p, &a.wait));
	assert_false(a.served);
	assert_true(b.served);
	assert_false(pool_cancel(p, &a.wait));
	assert_false(pool_cancel(p, &b.wait));
	pool_unreserve(p, POOL_DEMAND, 6 * BLOCK);
	pool_free(p);
}

/* a cache that keeps buffers and gives up its oldest */
struct cache {
	struct pool *pool;
	struct buf *kept[BUDGET / BLOCK];
	unsigned n;
	size_t asked;
};

static void cache_keep(struct cache *c)
{
	size_t reserved = BLOCK;

	assert_int_equal(pool_reserve(c->pool, POOL_DEMAND, BLOCK, NULL), 0);
	c->kept[c->n++] = pool_take(c->pool, POOL_DEMAND, BLOCK, &reserved);
}

static void cache_reclaim(void *arg, size_t bytes)
{
	struct cache *c = arg;

	c->asked += bytes;
	for (size_t got = 0; c->n && got < bytes; got += BLOCK)
		buf_unref(c->kept[--c->n]);
}

static void pool_asks_the_cache_before_it_refuses(void **state)
{
	struct cache c = {.pool = pool_make()};
	struct waiter w = {.wait.fn = waiter_served, .pool = c.pool};

	(void)state;
	n_order = 0;
	pool_set_reclaim(c.pool, cache_reclaim, &c);
	for (int i = 0; i < 6; i++)
		cache_keep(&c);
	assert_int_equal(c.asked, 0);
	/* one block is missing, and one is given up */
	assert_int_equal(pool_reserve(c.pool, POOL_DEMAND, BLOCK, NULL), 0);
	assert_int_equal(c.asked, BLOCK);
	assert_int_equal(c.n, 5);
	/* the first prefetch has its minimum */
	assert_int_equal(pool_reserve(c.pool, POOL_PREFETCH, 2 * BLOCK, NULL), 0);
	assert_int_equal(c.n, 4);
	assert_int_equal(pool_reserve(c.pool, POOL_DEMAND, 6 * BLOCK, &w.wait), -EAGAIN);
	assert_int_equal(c.n, 0);
	pool_unreserve(c.pool, POOL_PREFETCH, 2 * BLOCK);
	pool_unreserve(c.pool, POOL_DEMAND, BLOCK);
	assert_true(w.served);
	pool_unreserve(c.pool, POOL_DEMAND, 6 * BLOCK);
	assert_int_equal(used(c.pool), 0);
	pool_free(c.pool);
}

/* what is held, by the plain rules */
enum { HOLDS = 40, STEPS = 30000 };

struct hold {
	struct waiter w;
	size_t bytes, reserved;
	struct buf *bufs[2];
	enum { NONE, WAITING, HELD } state;
};

static struct hold holds[HOLDS];

static void hold_check(struct hold *h)
{
	if (h->state == WAITING && h->w.served) {
		h->state = HELD;
		h->reserved = h->bytes;
	}
}

static void hold_begin(struct pool *p, struct hold *h, unsigned *seed)
{
	enum pool_class k = (enum pool_class)(rand_r(seed) % POOL_CLASSES);
	size_t a = (size_t)rand_r(seed) % BLOCK + 1;
	int r;

	h->bytes = pool_cost(a) * ((unsigned)rand_r(seed) % 2 + 1);
	h->w = (struct waiter){.wait = {.fn = waiter_served, .klass = k}, .pool = p};
	r = pool_reserve(p, k, h->bytes, k == POOL_PREFETCH ? NULL : &h->w.wait);
	if (r == 0) {
		h->state = HELD;
		h->reserved = h->bytes;
	} else if (r == -EAGAIN) {
		h->state = WAITING;
	} else {
		assert_int_equal(r, -ENOBUFS);
		assert_int_equal(k, POOL_PREFETCH);
	}
}

static void hold_end(struct pool *p, struct hold *h)
{
	if (h->state == WAITING) {
		if (pool_cancel(p, &h->w.wait))
			h->state = NONE;
		return;
	}
	for (unsigned i = 0; i < ARRAY_LEN(h->bufs); i++) {
		if (h->bufs[i]) {
			assert_int_equal(h->bufs[i]->mem[0], (unsigned char)(h - holds));
			buf_unref(h->bufs[i]);
			h->bufs[i] = NULL;
		}
	}
	pool_unreserve(p, h->w.wait.klass, h->reserved);
	h->state = NONE;
}

static void hold_take(struct pool *p, struct hold *h)
{
	for (unsigned i = 0; i < ARRAY_LEN(h->bufs); i++) {
		if (h->bufs[i] || h->reserved < pool_cost(h->bytes / 2))
			continue;
		h->bufs[i] = pool_take(p, h->w.wait.klass, h->bytes / 2, &h->reserved);
		assert_non_null(h->bufs[i]);
		memset(h->bufs[i]->mem, (int)(h - holds), h->bufs[i]->cap);
		return;
	}
}

static void check_model(struct pool *p)
{
	size_t sum = 0, by[POOL_CLASSES] = {0}, apart;
	unsigned waiting = 0;
	struct pool_stat st;

	for (unsigned i = 0; i < HOLDS; i++) {
		struct hold *h = &holds[i];

		hold_check(h);
		waiting += h->state == WAITING;
		if (h->state != HELD)
			continue;
		by[h->w.wait.klass] += h->reserved;
		for (unsigned k = 0; k < ARRAY_LEN(h->bufs); k++)
			if (h->bufs[k])
				by[h->w.wait.klass] += h->bufs[k]->cap;
	}
	for (int c = 0; c < POOL_CLASSES; c++)
		sum += by[c];
	pool_stat(p, &st);
	assert_int_equal(st.used, sum);
	assert_int_equal(st.waiting, waiting);
	apart = 0;
	for (int c = 0; c < POOL_CLASSES; c++)
		apart += by[c] < BLOCK ? BLOCK - by[c] : 0;
	assert_true(sum + apart <= BUDGET); /* the minimums are always there */
}

static void pool_agrees_with_a_model(void **state)
{
	unsigned seed = (unsigned)time(NULL);
	struct pool *p = pool_make();

	(void)state;
	print_message("seed %u\n", seed);
	for (int i = 0; i < STEPS; i++) {
		struct hold *h = &holds[(unsigned)rand_r(&seed) % HOLDS];

		n_order = 0;
		hold_check(h);
		if (h->state == NONE)
			hold_begin(p, h, &seed);
		else if (h->state == HELD && rand_r(&seed) % 2)
			hold_take(p, h);
		else
			hold_end(p, h);
		check_model(p);
	}
	for (int round = 0; round < 2; round++) {
		for (unsigned i = 0; i < HOLDS; i++) {
			n_order = 0;
			hold_check(&holds[i]);
			if (holds[i].state != NONE)
				hold_end(p, &holds[i]);
		}
	}
	assert_int_equal(used(p), 0);
	pool_free(p);
}

/* threads that all want most of the pool: nobody is forgotten */
struct worker {
	struct pool_wait wait;
	struct pool *pool;
	sem_t served;
	unsigned seed;
	pthread_t thread;
};

static void worker_served(struct pool_wait *wait)
{
	sem_post(&container_of(wait, struct worker, wait)->served);
}

static void *worker_run(void *arg)
{
	struct worker *w = arg;

	for (int i = 0; i < 2000; i++) {
		enum pool_class k = rand_r(&w->seed) % 2 ? POOL_DEMAND : POOL_UPLOAD;
		size_t reserved = pool_cost((size_t)rand_r(&w->seed) % (3 * BLOCK) + 1);
		struct buf *b;

		w->wait.fn = worker_served;
		if (pool_reserve(w->pool, k, reserved, &w->wait) == -EAGAIN)
			sem_wait(&w->served);
		b = pool_take(w->pool, k, MIN(reserved, (size_t)BLOCK), &reserved);
		b->mem[b->cap - 1] = (unsigned char)i;
		pool_unreserve(w->pool, k, reserved);
		buf_unref(b);
	}
	return NULL;
}

static void pool_forgets_no_thread(void **state)
{
	struct worker w[5];
	struct pool *p = pool_make();

	(void)state;
	for (unsigned i = 0; i < ARRAY_LEN(w); i++) {
		w[i] = (struct worker){.pool = p, .seed = i + 1};
		sem_init(&w[i].served, 0, 0);
		pthread_create(&w[i].thread, NULL, worker_run, &w[i]);
	}
	for (unsigned i = 0; i < ARRAY_LEN(w); i++) {
		pthread_join(w[i].thread, NULL);
		sem_destroy(&w[i].served);
	}
	assert_int_equal(used(p), 0);
	pool_free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pool_refuses_what_it_can_never_give),
		cmocka_unit_test(pool_keeps_a_minimum_for_each_class),
		cmocka_unit_test(pool_lets_prefetch_use_its_minimum),
		cmocka_unit_test(pool_reuses_the_hottest_buffer),
		cmocka_unit_test(pool_serves_in_order_and_demand_first),
		cmocka_unit_test(pool_cancel_lets_the_next_one_in),
		cmocka_unit_test(pool_asks_the_cache_before_it_refuses),
		cmocka_unit_test(pool_agrees_with_a_model),
		cmocka_unit_test(pool_forgets_no_thread),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
