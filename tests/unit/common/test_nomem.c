/* SPDX-License-Identifier: Apache-2.0 */
/* The k-th allocation fails, k = 1, 2, … until the call succeeds: each failure is -ENOMEM (or
 * -EAGAIN of a thread), and leaves nothing behind. The allocator is taken over here, so sanitizers,
 * who do the same, are left out. */
#include "common/base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "common/blob.h"
#include "common/conf.h"
#include "common/hashmap.h"
#include "common/http.h"
#include "common/loop.h"
#include "common/metrics.h"
#include "common/redis.h"
#include "common/redis_url.h"
#include "common/workq.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static void the_sanitizer_owns_the_allocator(void **state)
{
	(void)state;
	skip();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_sanitizer_owns_the_allocator),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
#else

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
void __libc_free(void *p);

static _Thread_local long left; /* allocations until one fails; 0: none does */
static long live;		/* atomic: allocated and not freed */

static bool fails(void)
{
	return left && !--left;
}

static void *count(void *p)
{
	if (p)
		__atomic_fetch_add(&live, 1, __ATOMIC_RELAXED);
	else
		errno = ENOMEM;
	return p;
}

void *malloc(size_t n)
{
	return count(fails() ? NULL : __libc_malloc(n));
}

void *calloc(size_t n, size_t size)
{
	return count(fails() ? NULL : __libc_calloc(n, size));
}

void *aligned_alloc(size_t align, size_t n)
{
	return count(fails() ? NULL : __libc_memalign(align, n));
}

void *realloc(void *p, size_t n)
{
	void *q;

	if (!p)
		return malloc(n);
	q = fails() ? NULL : __libc_realloc(p, n);
	if (!q)
		errno = ENOMEM;
	return q;
}

void free(void *p)
{
	if (p)
		__atomic_fetch_sub(&live, 1, __ATOMIC_RELAXED);
	__libc_free(p);
}

/* fn makes a thing and frees it: 0, or why not */
static void until_success(int (*fn)(void))
{
	long before;
	int r;

	assert_int_equal(fn(), 0); /* what libraries allocate once and for all */
	for (long k = 1;; k++) {
		before = live;
		left = k;
		r = fn();
		if (left) { /* it needed fewer than k */
			left = 0;
			assert_int_equal(r, 0);
			assert_true(k > 1);
			return;
		}
		if (r == 0 && live == before)
			continue; /* it did without */
		if ((r != -ENOMEM && r != -EAGAIN) || live != before)
			fail_msg("allocation %ld: %d, %ld left over", k, r, live - before);
	}
}

static int make_str(void)
{
	struct str s = STR_INIT;
	char *text;

	for (int i = 0; i < 40; i++)
		str_addf(&s, "%d,", i);
	text = str_take(&s);
	free(text);
	return text ? 0 : -ENOMEM;
}

static int make_hashmap(void)
{
	static struct hash_node nodes[100];
	struct hashmap m;
	int r = hashmap_init(&m, 0);

	if (r < 0)
		return r;
	for (size_t i = 0; i < ARRAY_LEN(nodes); i++) /* doubling may fail, adding not */
		hashmap_add(&m, &nodes[i], i);
	assert_int_equal(m.count, ARRAY_LEN(nodes));
	hashmap_fini(&m);
	return 0;
}

static int make_workq(void)
{
	struct workq *q;
	int r = workq_new("nomem", 2, 1, &q);

	if (r == 0)
		workq_free(q);
	return r;
}

static int make_loop(void)
{
	struct loop *l;
	int r = loop_new("nomem", &l);

	if (r == 0)
		loop_free(l);
	return r;
}

static int make_pool(void)
{
	size_t reserved = 8192;
	struct buf *b = NULL;
	struct pool *p;
	int r = pool_new(1 << 20, 1 << 16, &p);

	if (r < 0)
		return r;
	assert_int_equal(pool_reserve(p, POOL_DEMAND, reserved, NULL), 0);
	b = pool_take(p, POOL_DEMAND, 8192, &reserved);
	assert_int_equal(reserved, b ? 0 : 8192);
	pool_unreserve(p, POOL_DEMAND, reserved);
	buf_unref(b);
	pool_free(p);
	return b ? 0 : -ENOMEM;
}

static double zero(void *arg)
{
	(void)arg;
	return 0;
}

static int make_metrics(void)
{
	struct metrics *m = metrics_new();
	struct str out = STR_INIT;
	int r = -ENOMEM;

	if (m && metrics_get(m, "a", "", METRIC_COUNTER, "a") &&
	    metrics_get(m, "b", "x=\"y\"", METRIC_HISTOGRAM, "b"))
		r = metrics_callback(m, "c", "", METRIC_GAUGE, "c", zero, NULL);
	if (r == 0) {
		metrics_print(m, &out);
		r = str_error(&out);
	}
	str_fini(&out);
	metrics_free(m);
	return r;
}

struct one_conf {
	char *a, *b;
};

static int make_conf(void)
{
	static const struct conf_option options[] = {
		{"a", 0, CONF_STR, offsetof(struct one_conf, a), "default", NULL, "a"},
		{"b", 0, CONF_STR, offsetof(struct one_conf, b), NULL, NULL, "b"},
	};
	static const struct conf_table t = {.options = options,
					    .n = ARRAY_LEN(options),
					    .usage = "t",
					    .summary = "t",
					    .max_args = 1};
	char name[] = "t", a[] = "--a=x", word[] = "w", b[] = "--b", v[] = "v";
	char *argv[] = {name, a, word, b, v, NULL}, **args;
	struct str err = STR_INIT;
	struct one_conf c;
	size_t n;
	int r = conf_parse(&t, &c, 5, argv, &args, &n, &err);

	if (r == 0) {
		assert_string_equal(c.b, "v");
		assert_string_equal(args[0], "w");
	}
	conf_fini(&t, &c);
	str_fini(&err);
	return r;
}

static int make_redis_url(void)
{
	struct str err = STR_INIT;
	struct redis_script s;
	struct redis_url u;
	char *name = NULL;
	int r = redis_url_parse("redis://us%65r:p%40ss@host:1/2", &u, &err);

	if (r == 0) {
		name = redis_url_name(&u);
		r = name ? 0 : -ENOMEM;
		redis_url_fini(&u);
	}
	if (r == 0) {
		r = redis_script_init(&s, "s", "a", "b");
		redis_script_fini(&s);
	}
	free(name);
	str_fini(&err);
	return r;
}

static int make_blob_file(void)
{
	struct blob_file *f = blob_file_new(-1, NULL, NULL);

	blob_file_unref(f);
	return f ? 0 : -ENOMEM;
}

#define NOMEM(what)                                                                                \
	static void what##_survives_without_memory(void **state)                                   \
	{                                                                                          \
		(void)state;                                                                       \
		until_success(make_##what);                                                        \
	}
NOMEM(str)
NOMEM(hashmap)
NOMEM(workq)
NOMEM(loop)
NOMEM(pool)
NOMEM(metrics)
NOMEM(conf)
NOMEM(redis_url)
NOMEM(blob_file)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(str_survives_without_memory),
		cmocka_unit_test(hashmap_survives_without_memory),
		cmocka_unit_test(workq_survives_without_memory),
		cmocka_unit_test(loop_survives_without_memory),
		cmocka_unit_test(pool_survives_without_memory),
		cmocka_unit_test(metrics_survives_without_memory),
		cmocka_unit_test(conf_survives_without_memory),
		cmocka_unit_test(redis_url_survives_without_memory),
		cmocka_unit_test(blob_file_survives_without_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
