/* SPDX-License-Identifier: Apache-2.0 */
/* The machine has no memory: the k-th allocation fails, k = 1, 2, … until nothing fails any more,
 * first in the thread that reads or writes, then in the threads of the meta queue. Each time the
 * bytes are right or an error is told, the next try works, and afterwards as many pieces are
 * allocated as before. Needs the C library's own allocator, so sanitizer builds run the same steps
 * without failures. */
#include "tests/unit/client/data_env.h"

#include "common/log.h"

static _Thread_local long fail_at; /* allocations of this thread until one fails; 0: none does */
static bool armed, failed;
static long live; /* pieces allocated */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(__clang__)
enum { CAN_FAIL = 0 };
#else
enum { CAN_FAIL = 1 };

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
void __libc_free(void *p);

static bool fails(void)
{
	if (!__atomic_load_n(&armed, __ATOMIC_RELAXED) || !fail_at || --fail_at)
		return false;
	__atomic_store_n(&failed, true, __ATOMIC_RELAXED);
	errno = ENOMEM;
	return true;
}

static void *counted(void *p)
{
	if (p)
		__atomic_fetch_add(&live, 1, __ATOMIC_RELAXED);
	return p;
}

void *malloc(size_t n)
{
	return fails() ? NULL : counted(__libc_malloc(n));
}

void *calloc(size_t n, size_t size)
{
	return fails() ? NULL : counted(__libc_calloc(n, size));
}

void *realloc(void *p, size_t n)
{
	if (fails())
		return NULL;
	return p ? __libc_realloc(p, n) : counted(__libc_realloc(p, n));
}

void *aligned_alloc(size_t align, size_t n)
{
	return fails() ? NULL : counted(__libc_memalign(align, n));
}

int posix_memalign(void **ret, size_t align, size_t n)
{
	void *p = fails() ? NULL : counted(__libc_memalign(align, n));

	if (!p)
		return ENOMEM;
	*ret = p;
	return 0;
}

void free(void *p)
{
	if (p)
		__atomic_fetch_sub(&live, 1, __ATOMIC_RELAXED);
	__libc_free(p);
}
#endif

enum { BS = 64 * KIB, LEN = 2 * BS + 5000 };

static unsigned char data[LEN], back[LEN];
static long at_k;    /* what this thread shall fail at */
static long hook_at; /* what the threads of the meta queue shall fail at */

static void fail_here(void)
{
	fail_at = __atomic_exchange_n(&hook_at, 0, __ATOMIC_RELAXED);
}

static bool told(int r)
{
	return r == -ENOMEM || r == -EIO;
}

/* one round with the k-th allocation failing; false: none did */
static bool round_of(void (*step)(struct data_env *e), long k, bool in_meta)
{
	struct data_env e;
	bool any;

	env_start(&e, BS, 16 * BS, CODEC_NONE, 0);
	__atomic_store_n(&failed, false, __ATOMIC_RELAXED);
	at_k = in_meta ? 0 : k;
	__atomic_store_n(&hook_at, in_meta ? k : 0, __ATOMIC_RELAXED);
	step(&e);
	any = __atomic_load_n(&failed, __ATOMIC_RELAXED);
	env_stop(&e);
	return any;
}

static void rounds(void (*step)(struct data_env *e), bool in_meta)
{
	long k = 1, before;

	log_warn("a line, so that what printing needs is there");
	/* once without failures: what libraries keep for ever is there then */
	(void)round_of(step, 0, false);
	before = __atomic_load_n(&live, __ATOMIC_RELAXED);
	for (;; k++) {
		bool any;

		any = round_of(step, k, in_meta);
		if (__atomic_load_n(&live, __ATOMIC_RELAXED) != before)
			fail_msg("k = %ld: %ld pieces are left", k, live - before);
		if (!any)
			break;
	}
	print_message("%ld allocations failed\n", k - 1);
	assert_true(k > 1 || !CAN_FAIL);
}

static void read_step(struct data_env *e)
{
	int r;

	env_put_slice(e, 0, 0, data, LEN);
	/* this thread goes all the way once it has the lists; else the meta queue's does */
	if (at_k)
		assert_int_equal(env_read(e, LEN, back, 1), 0);
	else
		rfile_invalidate(e->rfile); /* then it reads one list, not 256 */
	e->meta.hook = fail_here;
	__atomic_store_n(&armed, true, __ATOMIC_RELAXED);
	fail_at = at_k;
	r = env_read(e, 100, back, LEN - 200);
	__atomic_store_n(&armed, false, __ATOMIC_RELAXED);
	if (r < 0)
		assert_true(told(r));
	else
		assert_memory_equal(back, data + 100, LEN - 200);
	assert_int_equal(env_read(e, 0, back, LEN), LEN);
	assert_memory_equal(back, data, LEN);
}

static void write_step(struct data_env *e)
{
	int r, flushed;

	e->meta.hook = fail_here;
	__atomic_store_n(&armed, true, __ATOMIC_RELAXED);
	fail_at = at_k;
	r = env_write(e, 0, data, LEN);
	assert_true(r == 0 || told(r));
	flushed = env_flush(e, true);
	__atomic_store_n(&armed, false, __ATOMIC_RELAXED);
	assert_true(flushed == 0 || told(flushed));
	if (r == 0 && flushed == 0) {
		assert_int_equal(env_read(e, 0, back, LEN), LEN);
		assert_memory_equal(back, data, LEN);
	}
	assert_int_equal(env_write(e, 0, data, LEN), 0);
	assert_int_equal(env_flush(e, true), 0);
	assert_int_equal(env_read(e, 0, back, LEN), LEN);
	assert_memory_equal(back, data, LEN);
}

static void reading(void **state)
{
	(void)state;
	fill(data, LEN, 1);
	rounds(read_step, false);
	rounds(read_step, true);
}

static void writing(void **state)
{
	(void)state;
	fill(data, LEN, 2);
	rounds(write_step, false);
	rounds(write_step, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reading),
		cmocka_unit_test(writing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
