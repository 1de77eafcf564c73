/* SPDX-License-Identifier: Apache-2.0 */
/* Fibers of one thread ask over one connection: their commands leave together, and the server
 * answers them together, with fewer system calls on both sides. Thread: the one whose fibers ask
 * now; another's take connections of their own meanwhile. Not over TLS: its reading and writing are
 * not independent.
 *
 *	asking, unsent	its command is in out
 *	asking, sent	one of c->pending; answers come in the order of p->asking
 *	leading		the one that takes answers, for all before it and its own; then the first of
 *			those that are left leads
 *	answered	not in p->asking any more
 *
 * The connection is lent from the pool as long as anybody asks. When it breaks, all who ask are
 * told, and ask again (redis_insist). */
#include "common/redis_inner.h"

#include <sys/socket.h>

#include "common/fiber.h"

struct asking {
	struct list_node link;
	struct redis_ask *a;
	struct fiber *fiber;
	bool answered, leads;
	int e;
};

static _Thread_local char me; /* its address is the thread's */

static bool enter(struct redis_pipe *p)
{
	const void *none = NULL;

	if (__atomic_load_n(&p->owner, __ATOMIC_RELAXED) != &me &&
	    !__atomic_compare_exchange_n(&p->owner, &none, &me, false, __ATOMIC_ACQ_REL,
					 __ATOMIC_RELAXED))
		return false;
	p->n_asking++;
	return true;
}

static void leave(struct redis_pipe *p)
{
	if (--p->n_asking > 0)
		return;
	assert(list_empty(&p->asking) && !p->led && !p->c);
	__atomic_store_n(&p->owner, NULL, __ATOMIC_RELEASE);
}

/* whatever was asked meanwhile, too; when somebody sends already, he does it */
static void send_all(struct redis_pipe *p, uint64_t deadline_us)
{
	if (p->sending || !p->c)
		return;
	p->sending = true;
	while (p->n_unsent > 0 && !p->c->broken) {
		struct str going = p->out;

		p->out = p->spare;
		p->spare = (struct str)STR_INIT;
		p->c->pending += p->n_unsent;
		p->n_unsent = 0;
		(void)redis_conn_send(p->c, going.s, going.len, deadline_us);
		str_reset(&going);
		p->spare = going;
	}
	p->sending = false;
}

static void answer(struct asking *w, int e)
{
	w->e = e;
	w->answered = true;
	fiber_wake(w->fiber);
}

/* the connection is of no use (any more): e for the one who leads, the others ask again */
static void fail(struct redis_pipe *p, struct asking *leader, int e)
{
	struct list_node *n;

	if (p->sending)
		(void)shutdown(p->c->fd, SHUT_RDWR); /* which ends it */
	while (p->sending)
		fiber_yield();
	while ((n = list_pop(&p->asking))) {
		struct asking *w = container_of(n, struct asking, link);

		answer(w, w == leader ? e : -ECONNRESET);
	}
	str_reset(&p->out);
	p->n_unsent = 0;
	p->led = false;
	if (p->c)
		p->c->broken = true;
	redis_release(TAKE_PTR(p->c));
}

static int take_answer(struct redis_pipe *p, uint64_t deadline_us)
{
	struct asking *w = container_of(p->asking.next, struct asking, link);
	int e = redis_next(p->c, deadline_us, &w->a->reply);

	/* who sends may have found it broken behind this answer */
	if (e && p->c->broken)
		return e;
	redis_ask_note(w->a, p->c, e);
	list_del(&w->link);
	answer(w, e);
	return 0;
}

static bool is_left(struct redis *r, const struct redis_conn *c)
{
	bool left;

	mtx_lock(&r->lock);
	left = c->epoch != r->epoch;
	mtx_unlock(&r->lock);
	return left || c->stale;
}

static void hand_on(struct redis *r)
{
	struct redis_pipe *p = &r->pipe;
	struct asking *next = container_of(p->asking.next, struct asking, link);

	if (list_empty(&p->asking)) {
		p->led = false;
		redis_release(TAKE_PTR(p->c));
	} else if (is_left(r, p->c)) {
		fail(p, NULL, 0);
	} else {
		next->leads = true;
		fiber_wake(next->fiber);
	}
}

/* until w is answered */
static void lead(struct redis *r, struct asking *w)
{
	struct redis_pipe *p = &r->pipe;
	struct redis_conn *c;
	int e = 0;

	if (!p->c) {
		e = redis_acquire(r, w->a->deadline_us, &c);
		if (e == 0)
			p->c = c;
	}
	if (e == 0)
		send_all(p, w->a->deadline_us);
	while (e == 0 && !w->answered)
		e = take_answer(p, w->a->deadline_us);
	if (e)
		fail(p, w, e);
	else
		hand_on(r);
}

static int ask(struct redis *r, struct redis_ask *a)
{
	struct redis_pipe *p = &r->pipe;
	struct asking w = {.a = a, .fiber = fiber_self()};

	str_addn(&p->out, a->cmd, a->len);
	if (str_error(&p->out)) {
		p->out.err = 0; /* of this one alone: what was there is there */
		return -ENOMEM;
	}
	p->n_unsent++;
	list_add_tail(&p->asking, &w.link);
	w.leads = !p->led;
	p->led = true;
	fiber_yield(); /* others may have something to ask, too */
	if (!w.leads && !w.answered)
		send_all(p, a->deadline_us);
	while (!w.answered) {
		if (w.leads)
			lead(r, &w);
		else
			fiber_park();
	}
	return w.e;
}

bool redis_pipe_ask(struct redis *r, struct redis_ask *a, int *ret)
{
	if (!fiber_in() || r->tls || !enter(&r->pipe))
		return false;
	*ret = ask(r, a);
	leave(&r->pipe);
	return true;
}
