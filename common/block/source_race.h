/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the source*.c: what source.c needs of races (source_race.c) and the other way
 * round. */
#ifndef STOKE_COMMON_BLOCK_SOURCE_RACE_H
#define STOKE_COMMON_BLOCK_SOURCE_RACE_H

#include "common/block/source.h"

/* ends the race of req, which its holder passes on or completes; children that still run are
 * dropped when they end */
void race_end(struct block_req *req);
/* a child that was never started is freed */
void race_forget(struct block_req *child);
/* pushes a frame without a layer; the counters leave it out */
void req_push(struct block_req *req, req_fn *fn, void *arg);
/* pops a frame that req_push pushed, and calls it, without the checks of req_done */
void req_pop_call(struct block_req *req, int status);

#endif
