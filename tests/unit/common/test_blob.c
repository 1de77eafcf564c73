/* SPDX-License-Identifier: Apache-2.0 */
/* blob: slices hold what they name until the last one goes. */
#include "common/blob.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { BLOCK = 64 * 1024 };

static void blob_slices_keep_the_buffer(void **state)
{
	size_t reserved = BLOCK;
	struct pool_stat st;
	struct blob b, s, t;
	struct buf *buf;
	struct pool *p;

	(void)state;
	assert_int_equal(pool_new(4 * BLOCK, BLOCK, &p), 0);
	assert_int_equal(pool_reserve(p, POOL_DEMAND, BLOCK, NULL), 0);
	buf = pool_take(p, POOL_DEMAND, BLOCK, &reserved);
	for (int i = 0; i < BLOCK; i++)
		buf->mem[i] = (unsigned char)(i / 256);
	b = blob_of_buf(buf, 512, 4096);
	s = blob_slice(&b, 256, 1024);
	blob_fini(&b);
	assert_null(blob_mem(&b));
	t = blob_slice(&s, 1024, 0); /* empty, at the end: still a reference */
	assert_int_equal(s.len, 1024);
	assert_int_equal(blob_mem(&s)[0], 3);
	blob_fini(&s);
	pool_stat(p, &st);
	assert_int_equal(st.used, BLOCK);
	blob_fini(&t);
	blob_fini(&t);
	pool_stat(p, &st);
	assert_int_equal(st.used, 0);
	pool_free(p);
}

static void no_longer_used(struct blob_file *f, void *arg)
{
	*(struct blob_file **)arg = f;
}

static void blob_files_close_with_the_last_reference(void **state)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	struct blob_file *f, *last = NULL;
	struct blob b, s;

	(void)state;
	f = blob_file_new(fd, no_longer_used, &last);
	b = blob_of_file(blob_file_ref(f), 100, 50);
	s = blob_slice(&b, 10, 40);
	assert_int_equal(s.off, 110);
	assert_null(blob_mem(&s));
	blob_file_unref(f);
	blob_fini(&b);
	assert_null(last);
	blob_fini(&s);
	assert_ptr_equal(last, f);
	assert_true(fcntl(fd, F_GETFD) >= 0);
	blob_file_close(last);
	assert_int_equal(fcntl(fd, F_GETFD), -1);
	blob_file_unref(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(blob_slices_keep_the_buffer),
		cmocka_unit_test(blob_files_close_with_the_last_reference),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
