/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the source*.c: many deadlines on one loop timer. Setting and cancelling cost a lock
 * and no wake-up unless the new deadline is the nearest. */
#ifndef STOKE_COMMON_BLOCK_SOURCE_CLOCK_H
#define STOKE_COMMON_BLOCK_SOURCE_CLOCK_H

#include "common/loop.h"

struct req_clock;
/* zero at the start. fn runs on the loop's thread, without locks. */
struct req_timer {
	struct list_node link;
	uint64_t at_us;
	bool armed;
	void (*fn)(struct req_timer *t);
};

/* 0 or -ENOMEM */
int req_clock_new(struct loop *loop, struct req_clock **ret);
/* no timer may be armed. NULL is fine */
void req_clock_free(struct req_clock *c);
/* t->fn runs once when at_us (monotonic) has come; t must not be armed. Any thread. */
void req_clock_add(struct req_clock *c, struct req_timer *t, uint64_t at_us);
/* true: t was armed and will not run. false: it was not, or it runs now or soon. Any thread. */
bool req_clock_del(struct req_clock *c, struct req_timer *t);

#endif
