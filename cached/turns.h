/* SPDX-License-Identifier: Apache-2.0 */
/* Whose turn it is: requests whose block has to be fetched wait here, by connection, until there
 * is room for them in memory, and connections take turns by bytes. So who asks for 256 blocks at
 * once is 256 blocks behind nobody, and in nobody's way. What nobody waits for yet (prefetch,
 * warm-up) comes behind all demand, and never takes the last quarter. What members ask for goes
 * first, and has some room that nobody else takes: else two members, each full of requests that
 * wait for the other one, would wait for ever.
 *
 * Any thread; one leaf lock. Requests go on on their connection's loop. */
#ifndef STOKE_CACHED_TURNS_H
#define STOKE_CACHED_TURNS_H

#include "common/hashmap.h"
#include "common/list.h"
#include "common/mtx.h"

struct block_key;
struct call;
struct conn;

enum turn_class { TURN_MEMBER, TURN_DEMAND, TURN_AHEAD, TURN_CLASSES };

struct turns {
	struct mtx lock;
	size_t bytes, max;		      /* of requests under way; at most, but for one */
	struct list_node conns[TURN_CLASSES]; /* those with somebody in line */
	struct hashmap calls;		      /* in line or under way, by their block */
};

/* a connection's part */
struct turns_line {
	struct list_node calls, link;
	size_t credit;
};

/* max: bytes of memory that requests under way may need, and one eighth more for members; 0 or
 * -ENOMEM */
int turns_init(struct turns *t, size_t max);
void turns_fini(struct turns *t);
void turns_line_init(struct turns_line line[TURN_CLASSES]);

/* k, in no list, waits for its turn: then go(k) runs, at once or later, always on its connection's
 * loop and while the connection stands; else the call is freed. */
void turns_wait(struct turns *t, struct call *k, enum turn_class class, size_t bytes,
		void (*go)(struct call *k));
/* the request of k is over, or k had no turn: then nothing */
void turns_end(struct turns *t, struct call *k);
/* somebody waits for his turn to fetch this block, or does */
bool turns_has(struct turns *t, const struct block_key *k);
/* the connection is closed: who is still in line is freed */
void turns_drop(struct turns *t, struct conn *c);

#endif
