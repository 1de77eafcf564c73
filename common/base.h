/* SPDX-License-Identifier: Apache-2.0 */
/* What every file may use: containers of members, cleanup attributes, rounding, and the list of
 * functions nobody calls. */
#ifndef STOKE_COMMON_BASE_H
#define STOKE_COMMON_BASE_H

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* by way of a number, so that type may be const where ptr is (-Wcast-qual) */
#define container_of(ptr, type, member) ((type *)((uintptr_t)(ptr)-offsetof(type, member)))
#define ARRAY_LEN(a)			(sizeof(a) / sizeof((a)[0]))
#define MIN(a, b)                                                                                  \
	({                                                                                         \
		__typeof__(a) a_ = (a);                                                            \
		__typeof__(b) b_ = (b);                                                            \
		a_ < b_ ? a_ : b_;                                                                 \
	})
#define MAX(a, b)                                                                                  \
	({                                                                                         \
		__typeof__(a) a_ = (a);                                                            \
		__typeof__(b) b_ = (b);                                                            \
		a_ > b_ ? a_ : b_;                                                                 \
	})
/* n up to the next multiple of to, a power of two */
#define ROUND_UP(n, to) (((n) + ((to)-1)) & ~((__typeof__(n))(to)-1))
#define DIV_UP(n, by)	(((n) + (by)-1) / (by))

/* the value of p, which is empty afterwards: the giver no longer owns it */
#define TAKE_PTR(p)                                                                                \
	({                                                                                         \
		__typeof__(p) taken_ = (p);                                                        \
		(p) = NULL;                                                                        \
		taken_;                                                                            \
	})
#define TAKE_FD(fd)                                                                                \
	({                                                                                         \
		int taken_ = (fd);                                                                 \
		(fd) = -1;                                                                         \
		taken_;                                                                            \
	})

#define _cleanup_(fn)  __attribute__((cleanup(fn)))
#define _printf_(f, a) __attribute__((format(printf, f, a)))
#define _unused_       __attribute__((unused))

static inline void freep(void *p)
{
	free(*(void **)p);
}

static inline void closep(int *fd)
{
	if (*fd >= 0)
		(void)close(*fd);
}

/* never called: their result cannot be bounded or checked */
#pragma GCC poison strcpy strcat sprintf strtok atoi

#endif
