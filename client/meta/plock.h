/* SPDX-License-Identifier: Apache-2.0 */
/* The record locks of one owner on one file, as they lie in Redis (docs/format.md §2.11): 24 bytes
 * each, sorted by start, without overlaps, neighbours of the same type and pid joined. Pure. The
 * script setlk.lua does the same to the bytes. */
#ifndef STOKE_CLIENT_META_PLOCK_H
#define STOKE_CLIENT_META_PLOCK_H

#include "client/meta/meta.h"

enum { PLOCK_LEN = 24, PLOCK_MAX = 16384 /* records of one owner in one file */ };

struct plock {
	size_t n;
	struct meta_lock *l;
};

void plock_fini(struct plock *p);
/* -EPROTO: not whole records, or of unknown types; -ENOMEM. Order and overlaps are taken as they
 * come: plock_set leaves them right. *ret was empty. */
int plock_decode(const uint8_t *b, size_t n, struct plock *ret);
/* n * PLOCK_LEN bytes */
void plock_encode(const struct plock *p, uint8_t *b);
/* l takes the place of what is there in its range; F_UNLCK: nothing does. -ENOLCK: too many
 * records; -ENOMEM; p is as it was then. */
int plock_set(struct plock *p, const struct meta_lock *l);
/* the first (by start) record that keeps another owner from l; NULL: none */
const struct meta_lock *plock_conflict(const struct plock *p, const struct meta_lock *l);

#endif
