/* SPDX-License-Identifier: Apache-2.0 */
/* A leaf lock. A thread holds at most one at a time, and under it calls nothing that locks, waits
 * or completes: mtx_lock asserts it. Annotated for clang -Wthread-safety: mark functions that need
 * it with REQUIRES(x->lock). */
#ifndef STOKE_COMMON_MTX_H
#define STOKE_COMMON_MTX_H

#include <pthread.h>

#include "common/base.h"

#if defined(__clang__)
#define CAPABILITY(x) __attribute__((capability(x)))
#define ACQUIRE(...)  __attribute__((acquire_capability(__VA_ARGS__)))
#define RELEASE(...)  __attribute__((release_capability(__VA_ARGS__)))
#define REQUIRES(...) __attribute__((requires_capability(__VA_ARGS__)))
#define NO_ANALYSIS   __attribute__((no_thread_safety_analysis))
#else
#define CAPABILITY(x)
#define ACQUIRE(...)
#define RELEASE(...)
#define REQUIRES(...)
#define NO_ANALYSIS
#endif
#define GUARDED_BY(x) /* clang 14 cannot follow it to a neighbouring member */

struct CAPABILITY("mutex") mtx {
	pthread_mutex_t m;
};
/* waits by the monotonic clock */
struct cond {
	pthread_cond_t c;
};

#define MTX_INIT                                                                                   \
	{                                                                                          \
		PTHREAD_MUTEX_INITIALIZER                                                          \
	}
void mtx_init(struct mtx *m);
void mtx_fini(struct mtx *m);
void mtx_lock(struct mtx *m) ACQUIRE(m);
void mtx_unlock(struct mtx *m) RELEASE(m);
/* this thread holds one: for asserts where something waits */
bool mtx_held(void);

void cond_init(struct cond *c);
void cond_fini(struct cond *c);
/* waiting gives the lock up, so it is allowed while holding m alone; in a fiber it looks again
 * now and then. Never in a loop thread, nor in a FUSE thread outside of a fiber */
void cond_wait(struct cond *c, struct mtx *m) REQUIRES(m);
/* false when us passed */
bool cond_wait_us(struct cond *c, struct mtx *m, uint64_t us) REQUIRES(m);
void cond_signal(struct cond *c);
void cond_broadcast(struct cond *c);

#endif
