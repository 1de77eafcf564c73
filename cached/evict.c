/* SPDX-License-Identifier: Apache-2.0 */
/* The two policies of evict.h. No thread of its own: called under the lock of an index shard.
 *
 * Both keep two queues, newest at the head: residents and guests. SIEVE's hand is the resident to
 * be looked at next, NULL: the oldest. */
#include "cached/evict.h"

#include "common/base.h"

struct queues {
	struct evict base;
	struct list_node residents, guests;
	struct list_node *hand;
};

static struct queues *queues_of(struct evict *e)
{
	return container_of(e, struct queues, base);
}

static struct evict_node *oldest(struct list_node *queue)
{
	return list_empty(queue) ? NULL : container_of(queue->prev, struct evict_node, link);
}

static void queues_add(struct evict *e, struct evict_node *n)
{
	struct queues *q = queues_of(e);

	list_add_head(n->guest ? &q->guests : &q->residents, &n->link);
}

static void queues_remove(struct evict *e, struct evict_node *n)
{
	struct queues *q = queues_of(e);

	if (q->hand == &n->link)
		q->hand = n->link.prev == &q->residents ? NULL : n->link.prev;
	list_del(&n->link);
}

static void queues_free(struct evict *e)
{
	free(queues_of(e));
}

static void sieve_hit(struct evict *e, struct evict_node *n)
{
	(void)e;
	n->seen = true;
}

static struct evict_node *sieve_victim(struct evict *e)
{
	struct queues *q = queues_of(e);
	struct evict_node *n = oldest(&q->guests);

	if (n || list_empty(&q->residents))
		return n;
	if (!q->hand)
		q->hand = q->residents.prev;
	for (;;) { /* ends: after one round every bit is clear */
		n = container_of(q->hand, struct evict_node, link);
		if (!n->seen)
			return n;
		n->seen = false;
		q->hand = q->hand->prev;
		if (q->hand == &q->residents)
			q->hand = q->residents.prev;
	}
}

static void fifo_hit(struct evict *e, struct evict_node *n)
{
	(void)e;
	(void)n;
}

static struct evict_node *fifo_victim(struct evict *e)
{
	struct queues *q = queues_of(e);
	struct evict_node *n = oldest(&q->guests);

	return n ? n : oldest(&q->residents);
}

static const struct evict_ops sieve_ops = {
	.name = "sieve",
	.add = queues_add,
	.hit = sieve_hit,
	.remove = queues_remove,
	.victim = sieve_victim,
	.free = queues_free,
};

static const struct evict_ops fifo_ops = {
	.name = "fifo",
	.add = queues_add,
	.hit = fifo_hit,
	.remove = queues_remove,
	.victim = fifo_victim,
	.free = queues_free,
};

static struct evict *queues_new(const struct evict_ops *ops)
{
	struct queues *q = calloc(1, sizeof(*q));

	if (!q)
		return NULL;
	q->base.ops = ops;
	list_init(&q->residents);
	list_init(&q->guests);
	return &q->base;
}

struct evict *evict_sieve_new(void)
{
	return queues_new(&sieve_ops);
}

struct evict *evict_fifo_new(void)
{
	return queues_new(&fifo_ops);
}
