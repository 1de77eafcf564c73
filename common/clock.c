/* SPDX-License-Identifier: Apache-2.0 */
/* Clocks. Any thread. */
#include "common/clock.h"

#include <time.h>

static uint64_t stopped_us; /* 0: the real clock */

uint64_t clock_us(void)
{
	uint64_t us = __atomic_load_n(&stopped_us, __ATOMIC_RELAXED);
	struct timespec ts;

	if (us)
		return us;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

void clock_real(int64_t *sec, uint32_t *nsec)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	*sec = ts.tv_sec;
	*nsec = (uint32_t)ts.tv_nsec;
}

void clock_set(uint64_t us)
{
	__atomic_store_n(&stopped_us, us, __ATOMIC_RELAXED);
}

uint64_t clock_left(uint64_t deadline_us)
{
	uint64_t now;

	if (!deadline_us)
		return UINT64_MAX;
	now = clock_us();
	return now < deadline_us ? deadline_us - now : 0;
}
