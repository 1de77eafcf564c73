/* SPDX-License-Identifier: Apache-2.0 */
/* --open-cache: what the last open of a file saw, for opens for reading soon after it, and the
 * file's slice lists meanwhile. Bounded; the file that was opened longest ago is forgotten.
 * Thread-safe. */
#ifndef STOKE_CLIENT_OPENCACHE_H
#define STOKE_CLIENT_OPENCACHE_H

#include "client/meta/attr.h"

struct opencache;
struct rfile;

/* us: how long an answer counts; max: files, at least 1; put: gives a file's lists up. 0 or
 * -ENOMEM */
int opencache_new(uint64_t us, size_t max, void (*put)(struct rfile *f), struct opencache **ret);
/* NULL is fine, here and below: a cache that knows nothing */
void opencache_free(struct opencache *c);
/* an open that asked at asked_us saw a */
void opencache_seen(struct opencache *c, uint64_t inode, const struct attr *a, uint64_t asked_us);
/* what an open may go by now; false: it has to ask */
bool opencache_get(struct opencache *c, uint64_t inode, uint64_t now_us, struct attr *ret,
		   uint64_t *ret_asked_us);
/* Takes a reference over: kept as long as the file is known and its lists are small, else given up.
 * c is no NULL */
void opencache_keep(struct opencache *c, uint64_t inode, struct rfile *f, size_t pieces);
void opencache_forget_all(struct opencache *c);

#endif
