/* SPDX-License-Identifier: Apache-2.0 */
/* Adaptive spinning. Any thread. */
#include "common/spin.h"

#include <sched.h>

#include "common/clock.h"

enum { SPIN_US = 60, LATE_US = 250, MISSES_MAX = 8, RETRY_EACH = 64 };

bool spin_until(struct spin *s, bool (*ready)(void *arg), void *arg)
{
	unsigned misses = __atomic_load_n(&s->misses, __ATOMIC_RELAXED);
	uint64_t begin;
	bool yes;

	if (misses >= MISSES_MAX) {
		misses = __atomic_add_fetch(&s->misses, 1, __ATOMIC_RELAXED);
		if (misses % RETRY_EACH)
			return false;
	}
	if (__atomic_exchange_n(&s->busy, 1, __ATOMIC_ACQUIRE))
		return false;
	begin = clock_us();
	while (!(yes = ready(arg)) && clock_us() - begin < SPIN_US)
		sched_yield();
	__atomic_store_n(&s->busy, 0, __ATOMIC_RELEASE);
	/* who let others go first and got the core back so late would have been woken sooner */
	if (clock_us() - begin > LATE_US)
		__atomic_store_n(&s->misses, MISSES_MAX, __ATOMIC_RELAXED);
	else if (yes)
		__atomic_store_n(&s->misses, 0, __ATOMIC_RELAXED);
	else
		__atomic_add_fetch(&s->misses, 1, __ATOMIC_RELAXED);
	return yes;
}
