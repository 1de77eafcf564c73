/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes a second to and from an object store, and GETs a second after it asked for less: requests
 * start as the limit lets them, in order, PUTs and GETs apart. Private to common/object. */
#ifndef STOKE_COMMON_OBJECT_OBJECT_LIMIT_H
#define STOKE_COMMON_OBJECT_OBJECT_LIMIT_H

#include "common/object/object.h"

struct object_limit;

/* loop runs the waiting. 0 or -ENOMEM */
int object_limit_new(struct object_store *s, struct loop *loop, struct object_limit **ret);
/* bytes a second; 0: no limit. Any thread */
void object_limit_set(struct object_limit *l, uint64_t up, uint64_t down);
/* the limit of GETs is shared by so many processes, this one among them. Any thread */
void object_limit_share(struct object_limit *l, unsigned n);
/* The object store asked for less: half of the GETs a second, at most once a second; they grow
 * again within half a minute. false: it was cut less than a second ago. Any thread */
bool object_limit_slow(struct object_limit *l);
/* starts req now or later; one whose deadline passes in line ends with -ETIMEDOUT */
void object_limit_start(struct object_limit *l, struct object_req *req);
/* looks at those who wait: for tests that set the clock. Any thread */
void object_limit_look(struct object_limit *l);
/* what a GET asked for and did not come costs nothing */
void object_limit_done(struct object_limit *l, const struct object_req *req);
/* those that wait end with -ECANCELED; no start is under way. NULL is fine */
void object_limit_free(struct object_limit *l);

#endif
