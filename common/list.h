/* SPDX-License-Identifier: Apache-2.0 */
/* Intrusive doubly linked ring. A node that is in no list points at itself (after list_init) and
 * may be removed twice. */
#ifndef STOKE_COMMON_LIST_H
#define STOKE_COMMON_LIST_H

#include "common/base.h"

struct list_node {
	struct list_node *next, *prev;
};

static inline void list_init(struct list_node *n)
{
	n->next = n->prev = n;
}
static inline bool list_empty(const struct list_node *head)
{
	return head->next == head;
}

static inline void list_add_tail(struct list_node *head, struct list_node *n)
{
	n->prev = head->prev;
	n->next = head;
	head->prev->next = n;
	head->prev = n;
}

static inline void list_add_head(struct list_node *head, struct list_node *n)
{
	list_add_tail(head->next, n);
}

static inline void list_del(struct list_node *n)
{
	n->prev->next = n->next;
	n->next->prev = n->prev;
	list_init(n);
}

/* first node, taken out; NULL when empty */
static inline struct list_node *list_pop(struct list_node *head)
{
	struct list_node *n = head->next;

	if (n == head)
		return NULL;
	list_del(n);
	return n;
}

/* all nodes of from move to the end of to; from is empty afterwards */
static inline void list_splice_tail(struct list_node *to, struct list_node *from)
{
	if (list_empty(from))
		return;
	from->next->prev = to->prev;
	to->prev->next = from->next;
	from->prev->next = to;
	to->prev = from->prev;
	list_init(from);
}

#define list_for_each(n, head) for ((n) = (head)->next; (n) != (head); (n) = (n)->next)
/* the current node may be removed */
#define list_for_each_safe(n, t, head)                                                             \
	for ((n) = (head)->next, (t) = (n)->next; (n) != (head); (n) = (t), (t) = (n)->next)

#endif
