/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's policy (evict.h). No thread of its own: called under the lock of an index shard.
 *
 * Three queues, newest at the head:
 *
 *	kept	in order of use. What was asked for; what fresh ones became; what came back from
 *		the ghosts
 *	fresh	in order of arrival; a tenth of the cache, or what there is room for: what is read
 *		for the first time waits here for a second use, so that what is read only once
 *		pushes out nothing
 *	guests
 *
 * Time is counted in uses; uses of one block in quick succession (ranges of a block, a reader who
 * comes back for the rest) are one. Behind them a table of ghosts: when blocks that are not inside
 * were last read. From hits and ghosts follows how long it takes until a block is used again (the
 * interval that nine of ten uses keep). A block that comes back from the ghosts is let in only when
 * the one used longest ago is overdue by that measure; else a loop larger than the cache would push
 * out its own blocks just before they are read. When hits cease altogether while unknown blocks are
 * read, the work has changed and they come in at once. */
#include "cached/evict.h"

#include "common/base.h"

enum { GUESTS, FRESH, KEPT, QUEUES };
enum {
	FRESH_SHARE = 10,    /* a tenth */
	REPEAT_SHARE = 16,   /* uses closer than this part of the cache are one */
	WINDOW_SHARE = 8,    /* the last uses are this part of the cache … */
	FORSAKEN_SHARE = 16, /* … and are next to no hits when they are less than this part */
	GHOST_WAYS = 4,
	TRY_ONE_IN = 64, /* who is let in all the same: there may be room again */
	GHOST_SHARE = 2, /* as many ghosts as twice the blocks */
};

struct ghost {
	uint32_t tag, read; /* tag 0: none */
};

struct loop {
	struct evict base;
	struct list_node queue[QUEUES];
	size_t fresh;	 /* in that queue */
	uint32_t now;	 /* uses so far */
	double interval; /* see above; 0: not known yet */
	double hits;	 /* part of the last uses that were hits of kept ones */
	unsigned refused;
	bool asked;  /* what came last was asked for */
	size_t full; /* blocks inside when the last one had to leave; 0: there is room */
	struct ghost *ghost;
	size_t sets; /* of GHOST_WAYS; a power of two */
};

static struct loop *loop_of(struct evict *e)
{
	return container_of(e, struct loop, base);
}

static struct evict_node *oldest(struct list_node *queue)
{
	return list_empty(queue) ? NULL : container_of(queue->prev, struct evict_node, link);
}

static void push(struct loop *l, struct evict_node *n, unsigned queue)
{
	n->queue = (uint8_t)queue;
	n->used = l->now;
	l->fresh += queue == FRESH;
	list_add_head(&l->queue[queue], &n->link);
}

static void loop_remove(struct evict *e, struct evict_node *n)
{
	struct loop *l = loop_of(e);

	l->fresh -= n->queue == FRESH;
	list_del(&n->link);
	if (e->count < l->full - l->full / 8)
		l->full = 0;
}

/* --- ghosts --- */

static struct ghost *ghost_find(struct loop *l, uint32_t tag)
{
	struct ghost *set = l->ghost + (tag & (l->sets - 1)) * GHOST_WAYS;

	tag |= 1;
	for (unsigned i = 0; l->ghost && i < GHOST_WAYS; i++)
		if (set[i].tag == tag)
			return &set[i];
	return NULL;
}

static void ghost_put(struct loop *l, uint32_t tag, uint32_t read)
{
	struct ghost *set = l->ghost + (tag & (l->sets - 1)) * GHOST_WAYS, *at = set;

	tag |= 1;
	if (!l->ghost)
		return;
	for (unsigned i = 0; i < GHOST_WAYS; i++) {
		if (!set[i].tag || set[i].tag == tag) {
			at = &set[i];
			break;
		}
		if (l->now - set[i].read > l->now - at->read)
			at = &set[i];
	}
	*at = (struct ghost){tag, read};
}

/* The cache is full. Its ghosts are made when it is for the first time, or has grown since; without
 * memory all blocks are unknown ones. */
static void is_full(struct loop *l)
{
	size_t want = 1;

	l->full = l->base.count;
	while (want * GHOST_WAYS < l->full * GHOST_SHARE)
		want *= 2;
	if (want <= l->sets)
		return;
	free(l->ghost);
	l->ghost = calloc(want * GHOST_WAYS, sizeof(*l->ghost));
	l->sets = l->ghost ? want : 0;
}

/* --- time --- */

static void tick(struct loop *l, bool hit)
{
	double window = (double)l->base.count / WINDOW_SHARE + 8;

	l->now++;
	l->hits += ((hit ? 1 : 0) - l->hits) / window;
}

/* a block was used again after so long: the estimate goes up nine steps or down one */
static void learn(struct loop *l, uint32_t after)
{
	if (l->interval == 0)
		l->interval = after;
	l->interval *= after > l->interval ? 1 + 9.0 / 256 : 1 - 1.0 / 256;
}

static bool overdue(const struct loop *l, uint32_t after)
{
	return l->interval > 0 && after > l->interval * 3 / 2;
}

/* nothing that is kept is used any more, as far as the last uses tell */
static bool forsaken(const struct loop *l)
{
	return l->hits < 1.0 / FORSAKEN_SHARE;
}

/* who leaves next: the oldest fresh one beyond their share, then the kept one used longest ago */
static struct evict_node *next_to_leave(struct loop *l)
{
	struct evict_node *fresh = oldest(&l->queue[FRESH]), *kept = oldest(&l->queue[KEPT]);

	if (!fresh || !kept)
		return fresh ? fresh : kept;
	return l->asked || l->fresh > l->base.count / FRESH_SHARE ? fresh : kept;
}

/* --- the policy --- */

static bool loop_admit(struct evict *e, uint32_t tag)
{
	struct loop *l = loop_of(e);
	struct evict_node *n;
	struct ghost *g;
	uint32_t after, idle;

	g = ghost_find(l, tag);
	if (!l->full || !g)
		return true;
	after = l->now - g->read;
	n = next_to_leave(l);
	idle = n ? l->now - n->used : UINT32_MAX;
	if (after < idle - idle / 8 && (forsaken(l) || (n && n->queue == FRESH)))
		return true;
	if (after >= e->count / REPEAT_SHARE)
		learn(l, after);
	if (overdue(l, idle) || ++l->refused % TRY_ONE_IN == 0)
		return true;
	tick(l, false);
	g->read = l->now;
	return false;
}

static void loop_add(struct evict *e, struct evict_node *n, enum evict_kind kind)
{
	struct loop *l = loop_of(e);
	struct ghost *g = ghost_find(l, n->tag);
	bool keep = l->full && (g || forsaken(l));

	if (e->count > l->full + l->full / 16 + 1)
		l->full = 0; /* they come and nobody has to leave */
	if (g)
		g->tag = 0;
	l->asked = kind == EVICT_ASKED;
	if (l->asked)
		l->hits = 1; /* they are going to be used */
	if (kind == EVICT_READ)
		tick(l, false);
	if (kind == EVICT_GUEST)
		push(l, n, GUESTS);
	else if (kind == EVICT_ASKED)
		push(l, n, KEPT);
	else
		push(l, n, keep && kind == EVICT_READ ? KEPT : FRESH);
}

static void loop_hit(struct evict *e, struct evict_node *n)
{
	struct loop *l = loop_of(e);
	uint32_t after = l->now - n->used;

	if (after < e->count / REPEAT_SHARE)
		return;
	tick(l, n->queue == KEPT || !l->full);
	learn(l, after);
	if (n->queue == GUESTS)
		return;
	l->fresh -= n->queue == FRESH;
	list_del(&n->link);
	push(l, n, KEPT);
}

static struct evict_node *loop_victim(struct evict *e)
{
	struct loop *l = loop_of(e);
	struct evict_node *n = oldest(&l->queue[GUESTS]);

	is_full(l);
	if (n || !e->count)
		return n;
	n = next_to_leave(l);
	ghost_put(l, n->tag, n->used);
	return n;
}

static void each_of(struct list_node *queue, enum evict_kind kind, evict_each_fn *fn, void *arg)
{
	for (struct list_node *n = queue->prev; n != queue; n = n->prev)
		fn(container_of(n, struct evict_node, link), kind, arg);
}

/* what is written comes to the fresh ones without counting as a use */
static void loop_each(struct evict *e, evict_each_fn *fn, void *arg)
{
	struct loop *l = loop_of(e);

	each_of(&l->queue[GUESTS], EVICT_GUEST, fn, arg);
	each_of(&l->queue[KEPT], EVICT_ASKED, fn, arg);
	each_of(&l->queue[FRESH], EVICT_WRITE, fn, arg);
}

static void loop_free(struct evict *e)
{
	struct loop *l = loop_of(e);

	free(l->ghost);
	free(l);
}

static const struct evict_ops loop_ops = {
	.name = "loop",
	.admit = loop_admit,
	.add = loop_add,
	.hit = loop_hit,
	.remove = loop_remove,
	.victim = loop_victim,
	.each = loop_each,
	.free = loop_free,
};

struct evict *evict_loop_new(void)
{
	struct loop *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	l->base.ops = &loop_ops;
	l->hits = 1;
	for (unsigned i = 0; i < QUEUES; i++)
		list_init(&l->queue[i]);
	return &l->base;
}
