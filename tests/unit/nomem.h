/* SPDX-License-Identifier: Apache-2.0 */
/* The k-th allocation fails, k = 1, 2, … until a step gets all it wants. Each time it says -ENOMEM,
 * or is right, and leaves as many pieces allocated as there were. For steps in one thread; included
 * by one file of a program. Needs the C library's own allocator, so that sanitizer builds take the
 * step once, without failures. */
#ifndef STOKE_TESTS_UNIT_NOMEM_H
#define STOKE_TESTS_UNIT_NOMEM_H

#include "tests/unit/check.h"

#include "common/base.h"

static long nomem_at; /* allocations until one fails; 0: none does */
static bool nomem_failed;
static long nomem_live; /* pieces allocated */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(__clang__)
enum { NOMEM_CAN_FAIL = 0 };
#else
enum { NOMEM_CAN_FAIL = 1 };

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void __libc_free(void *p);

static bool nomem_fails(void)
{
	if (!nomem_at || --nomem_at)
		return false;
	nomem_failed = true;
	errno = ENOMEM;
	return true;
}

static void *nomem_counted(void *p)
{
	nomem_live += p != NULL;
	return p;
}

void *malloc(size_t n)
{
	return nomem_fails() ? NULL : nomem_counted(__libc_malloc(n));
}

void *calloc(size_t n, size_t size)
{
	return nomem_fails() ? NULL : nomem_counted(__libc_calloc(n, size));
}

void *realloc(void *p, size_t n)
{
	if (nomem_fails())
		return NULL;
	return p ? __libc_realloc(p, n) : nomem_counted(__libc_realloc(p, n));
}

void free(void *p)
{
	nomem_live -= p != NULL;
	__libc_free(p);
}
#endif

static inline void nomem_each(int (*step)(void))
{
	for (long k = 1;; k++) {
		long before = nomem_live;
		int r;

		nomem_failed = false;
		nomem_at = NOMEM_CAN_FAIL ? k : 0;
		r = step();
		nomem_at = 0;
		if (nomem_live != before)
			fail_msg("allocation %ld failed: %ld pieces are left", k,
				 nomem_live - before);
		if (r != 0 && (r != -ENOMEM || !nomem_failed))
			fail_msg("allocation %ld failed: %d", k, r);
		if (!nomem_failed) {
			assert_int_equal(r, 0);
			assert_true(!NOMEM_CAN_FAIL || k > 1); /* it allocates at all */
			return;
		}
	}
}

#endif
