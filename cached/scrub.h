/* SPDX-License-Identifier: Apache-2.0 */
/* A slow look at every block on the disks, one after the other, over and over: all checksums are
 * verified, and what is damaged is dropped before somebody needs it. One block at a time, read past
 * the page cache with idle I/O priority by the disk's own threads, and only while no read waits for
 * that disk. */
#ifndef STOKE_CACHED_SCRUB_H
#define STOKE_CACHED_SCRUB_H

#include "cached/store.h"

struct scrub;

/* Starts its thread. rate: bytes a second ("1M"), "weekly": a pass takes about a week, however much
 * there is; "0": none, and *ret stays. s must outlive it. 0 or -errno; err holds one line when the
 * rate is none of these */
int scrub_start(struct store *s, const char *rate, struct scrub **ret, struct str *err);
/* waits for the block being read (not for ever: a disk that hangs is given up). NULL is fine */
void scrub_stop(struct scrub *sc);

#endif
