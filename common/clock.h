/* SPDX-License-Identifier: Apache-2.0 */
/* Clocks in microseconds. Tests may stop and move the monotonic one. */
#ifndef STOKE_COMMON_CLOCK_H
#define STOKE_COMMON_CLOCK_H

#include "common/base.h"

uint64_t clock_us(void);		       /* monotonic: deadlines, latencies */
void clock_real(int64_t *sec, uint32_t *nsec); /* wall clock: file times */
/* tests: clock_us() answers us from now on; 0 gives the real clock back */
void clock_set(uint64_t us);
/* microseconds left until deadline, 0 when passed; UINT64_MAX when there is none (deadline 0) */
uint64_t clock_left(uint64_t deadline_us);

#endif
