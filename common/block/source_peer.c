/* SPDX-License-Identifier: Apache-2.0 */
/* The layer that asks other daemons. Threads: any; what happens to one request is serialised by its
 * race (source.h), or by there being only one try.
 *
 * A request that comes here becomes an "ask": one or two targets, tried one after the other.
 *
 *	ask_next	a try of the next target in a fork (own memory; the request's own
 *			reservation is given back), so that it can be raced
 *	ask_carry	without memory for a fork: the request itself is carried out with its own
 *			reservation, one target at a time; instead of a hedge the try is given up
 *			when it was quiet for CARRIED_US and there is another target
 *	ask_tick	no answer in the hedge's time. Bytes of other answers put it off. The next
 *			target is tried beside the first, or, when all were asked and none shows
 *			life, the layer below (ask_below). After FILLING nobody hedges as long as
 *			the peer lives: its health is watched (tick_watched). A daemon waits for a
 *			member as long as he shows life (tick_member)
 *	ask_failed	a try failed: the next target, or wait for the other, or ask_pass: the
 *			layer below
 *	ask_busy	the owner of a hot block said BUSY, and who was asked in his place failed:
 *			the owner once more, who must not say BUSY now (NO_FILL), before the object
 *			store is asked for what the group has
 *
 * When the request is over, whoever else is still asked for it is left alone (ask_abandon), so that
 * the loser of a race gives its memory back at once.
 *
 * So the first try never needs more memory than the request brought, but for the moment in which a
 * fork is made. Final verdicts of the object store that a peer reports complete the request. */
#include "common/block/source_peer.h"

#include "common/block/source_race.h"
#include "common/clock.h"

enum {
	FDS = 256, /* descriptors kept at most, and of so many bytes */
	FDS_BYTES = 1 << 30,
	HEDGE_MIN_US = 50000,
	HEDGE_MAX_US = 250000,
	WATCH_US = 250000, /* between looks at a peer that fetches: is it still alive? */
	GONE_US = 1000000, /* not one byte for so long, probes included: left even then */
	BUSY_TIMES = 8,	   /* a hedge is put off that often while the peer sends us other things */
	HEDGE_SHARE = 50,  /* one in so many requests to a peer that works may be hedged */
	LATE_US = 50000,   /* a timer so late tells that this machine has no time, not the peer */
	LATE_TIMES = 4,
	CARRIED_US = 1000000,	/* a try that stands in the way of the next */
	QUIET_US = 5000000,	/* a try without any answer; conf.remote_us goes before */
	FILLING_US = 120000000, /* the same after FILLING: the store's retries take their time */
	FILL_US = 600000000,	/* warm-up's */
	PROBE_US = 2000000,
	MEMBER_US = 300000, /* the same when a member asks another one */
	MEMBER_TIMES = 10,  /* half of it is waited so often for those who live */
	BELOW_US = 1000000, /* all are silent for so long: the layer below is asked, too */
	ASK_TARGETS = PEER_TARGETS + 1,
};

/* a request while peers are asked for it */
struct ask {
	struct source_peer *sp;
	unsigned refs; /* atomic: the request's, one a try */
	/* one more than are picked: who said BUSY is asked again */
	struct peer *target[ASK_TARGETS];
	struct peer *busy; /* said BUSY, and was not asked again */
	bool again;	   /* the last target is that one */
	unsigned n, next;  /* the one that is tried next */
	unsigned no_fill;  /* so many, the first, are asked by NO_FILL */
	bool member;	   /* a member asks members */
	unsigned put_off;
	uint64_t due_us;   /* when the timer was meant to fire */
	uint64_t asked_us; /* the newest target */
	unsigned late;
	bool filling[ASK_TARGETS]; /* atomic: they said so */
	bool below;		   /* the layer below was asked, too */
	struct buf *spare;
	struct ask_try *out[ASK_TARGETS]; /* atomic, counted: forked tries under way, by target */
};

enum { TRY_STARTED = 1, TRY_UNWANTED = 2 };

struct ask_try {
	struct peer_try t;
	struct ask *ask;
	unsigned nr;	/* which target */
	unsigned refs;	/* atomic: until it ended; the ask's out; who starts it; abandon's */
	unsigned state; /* atomic: TRY_*; whoever brings the second of them posts abandon */
	struct loop_job abandon;
};

static struct source_peer *peer_layer(struct source *s)
{
	return container_of(s, struct source_peer, base);
}

static bool is_final(int status)
{
	return status == -ENODATA || status == -EACCES || status == -EIO || status == -ENOENT;
}

static void ask_unref(struct ask *a)
{
	if (__atomic_sub_fetch(&a->refs, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	if (a->spare)
		buf_unref(a->spare);
	FREE_COUNTED(a);
}

static void try_unref(struct ask_try *at)
{
	if (__atomic_sub_fetch(&at->refs, 1, __ATOMIC_ACQ_REL) == 0)
		FREE_COUNTED(at);
}

static void try_abandon_job(struct loop_job *job)
{
	struct ask_try *at = container_of(job, struct ask_try, abandon);

	peer_try_abandon(&at->t);
	try_unref(at);
}

/* A try is abandoned on its loop, behind the job that peer_start posted there: so by whoever is the
 * later of him who started it and him who has no use for it any more. Takes his reference over. */
static void try_mark(struct ask_try *at, unsigned flag)
{
	unsigned before = __atomic_fetch_or(&at->state, flag, __ATOMIC_ACQ_REL);

	if ((before | flag) == (TRY_STARTED | TRY_UNWANTED)) {
		__atomic_fetch_add(&at->refs, 1, __ATOMIC_RELAXED);
		at->abandon.fn = try_abandon_job;
		loop_post(peer_try_loop(&at->t), &at->abandon);
	}
	try_unref(at);
}

/* nobody needs what is still asked for */
static void ask_abandon(struct ask *a)
{
	for (unsigned i = 0; i < ASK_TARGETS; i++) {
		struct ask_try *at = __atomic_exchange_n(&a->out[i], NULL, __ATOMIC_ACQ_REL);

		if (at)
			try_mark(at, TRY_UNWANTED);
	}
}

/* the frame under which the request is asked for: it ended, with whatever the race or ask_* gave
 * it */
static void ask_over(struct block_req *req, int status, void *arg)
{
	ask_abandon(arg);
	ask_unref(arg);
	req_done(req, status);
}

/* --- to the layer below --- */

static void pass_up(struct block_req *req, int status, void *arg)
{
	(void)arg;
	req_done(req, status);
}

static void pass_reserved(struct block_req *req, int status, void *arg)
{
	if (status < 0)
		req_done(req, status);
	else
		source_get(arg, req, pass_up, NULL);
}

static void ask_pass(struct ask *a, struct block_req *req)
{
	struct source *next = a->sp->base.next;

	metric_add(a->sp->passed, 1);
	race_end(req);
	assert(req->frame[req->depth - 1].fn == ask_over);
	req->depth--; /* the layer's own frame shall be the one that is marked as passed on */
	ask_abandon(a);
	ask_unref(a);
	req_reserve(req, pass_reserved, next);
}

/* --- tries --- */

static bool ask_next(struct ask *a, struct block_req *parent, unsigned running);
static void ask_failed(struct ask *a, struct block_req *parent, int status, unsigned running);

static uint64_t hedge_us(const struct peer_health *h)
{
	uint64_t us = MAX((uint64_t)HEDGE_MIN_US, 3 * h->p99_us);

	/* a peer that is not known yet gets the benefit of the doubt */
	return h->p99_us ? MIN(us, (uint64_t)HEDGE_MAX_US) : HEDGE_MAX_US;
}

static bool is_no_fill(const struct ask *a, unsigned nr)
{
	return nr < a->no_fill || (a->again && nr == a->n - 1);
}

static uint64_t try_quiet(const struct ask *a, const struct block_req *req, unsigned nr,
			  bool carried)
{
	uint64_t us;

	/* in a fork the tick looks whether he lives */
	if (nr < a->no_fill && carried)
		return MEMBER_US;
	if (req->flags & REQ_FILL)
		return FILL_US;
	if (req->flags & REQ_PROBE)
		return PROBE_US;
	if (carried && nr + 1 < a->n)
		return CARRIED_US;
	us = a->sp->conf.remote_us ? a->sp->conf.remote_us : QUIET_US;
	/* no fork's timer sees to who is carried */
	return carried ? MIN(us, clock_left(req->deadline_us)) : us;
}

/* a try ended with status: whoever is busy is remembered */
static void ask_busy(struct ask *a, struct peer *p, int status)
{
	struct peer *none = NULL;

	if (status != -EBUSY || a->member)
		return;
	metric_add(a->sp->busy, 1);
	(void)__atomic_compare_exchange_n(&a->busy, &none, p, false, __ATOMIC_RELEASE,
					  __ATOMIC_RELAXED);
}

/* Nobody is left to ask: true when one said BUSY, who is the next target now. */
static bool ask_again(struct ask *a, const struct block_req *req)
{
	struct peer *p = __atomic_load_n(&a->busy, __ATOMIC_ACQUIRE);

	if (!p || a->again || !is_get(req))
		return false;
	a->again = true;
	a->target[a->n++] = p;
	return true;
}

static void try_filling(struct peer_try *t)
{
	struct ask_try *at = container_of(t, struct ask_try, t);
	uint64_t left;

	__atomic_store_n(&at->ask->filling[at->nr], true, __ATOMIC_RELAXED);
	t->call.quiet_us = MAX(t->call.quiet_us, (uint64_t)FILLING_US);
	left = clock_left(t->req->deadline_us);
	t->call.quiet_us = MIN(t->call.quiet_us, left ? left : 1);
}

static struct ask_try *try_new(struct ask *a, struct block_req *req, peer_try_fn *done)
{
	struct ask_try *at = calloc(1, sizeof(*at));

	if (!at)
		return NULL;
	at->ask = a;
	at->refs = 1;
	at->t.env = &a->sp->env;
	at->t.req = req;
	at->t.filling = try_filling;
	at->t.done = done;
	return at;
}

static void try_go(struct ask_try *at, struct block_req *parent, bool carried)
{
	struct ask *a = at->ask;

	at->nr = a->next++;
	at->t.peer = a->target[at->nr];
	at->t.no_fill = is_no_fill(a, at->nr);
	at->t.quiet_us = try_quiet(a, at->t.req, at->nr, carried);
	if (at->nr >= a->no_fill)
		__atomic_store_n(&parent->way, WAY_ASKS, __ATOMIC_RELEASE);
	__atomic_fetch_add(&a->refs, 1, __ATOMIC_RELAXED);
}

static void try_free(struct ask_try *at)
{
	peer_try_fini(&at->t);
	try_unref(at);
}

/* --- the request itself is carried out, without a fork --- */

static void carried_done(struct peer_try *t, int status)
{
	struct ask_try *at = container_of(t, struct ask_try, t);
	struct block_req *req = t->req;
	struct peer *peer = t->peer;
	struct ask *a = at->ask;

	if (status < 0)
		a->spare = TAKE_PTR(t->buf); /* for the next try */
	if (status == -ETIMEDOUT)
		peer_note(t->peer, -ETIMEDOUT);
	try_free(at);
	if (status == 0) {
		req_unreserve(req);
		req_done(req, 0);
	} else {
		ask_busy(a, peer, status);
		ask_failed(a, req, status, 0);
	}
	ask_unref(a);
}

static void ask_carry_go(struct block_req *req, int status, void *arg)
{
	struct ask *a = arg;
	struct ask_try *at = status < 0 ? NULL : try_new(a, req, carried_done);

	if (status < 0) {
		req_done(req, status);
	} else if (!at) {
		ask_pass(a, req);
	} else {
		at->t.buf = TAKE_PTR(a->spare);
		try_go(at, req, true);
		peer_try_start(&at->t);
	}
}

static void ask_carry(struct ask *a, struct block_req *req)
{
	race_end(req);
	/* who has the answer's buffer already needs no more, and must not wait while it holds it */
	if (a->spare)
		ask_carry_go(req, 0, a);
	else
		req_reserve(req, ask_carry_go, a);
}

/* --- races --- */

static void ask_lost(struct block_req *parent, int status, unsigned running, void *arg)
{
	ask_failed(arg, parent, status, running);
}

static void below_lost(struct block_req *parent, int status, unsigned running, void *arg)
{
	(void)arg;
	if (running == 0 || is_final(status))
		req_done(parent, status);
}

static void ask_tick(struct block_req *parent, void *arg);

/* without a timer there is no hedge: the try's own end is the bound */
static void ask_arm(struct ask *a, struct block_req *parent, uint64_t us)
{
	a->due_us = clock_us() + us;
	(void)req_race_timer(parent, us, ask_tick, a);
}

/* both targets are silent: the layer below joins the race, later when there is no memory now */
static void ask_below(struct ask *a, struct block_req *parent)
{
	struct block_req *child;

	if (a->below || !is_get(parent))
		return;
	child = req_fork(parent, parent->flags, 0, below_lost, a);
	if (!child) {
		ask_arm(a, parent, WATCH_US);
		return;
	}
	a->below = true;
	req_fork_start(child, a->sp->base.next);
}

/* before the newest try starts */
static void ask_set_tick(struct ask *a, struct block_req *parent)
{
	struct peer_health h;
	uint64_t us = WATCH_US;

	if (parent->flags & REQ_PROBE)
		return;
	a->asked_us = clock_us();
	if (a->member)
		us = MEMBER_US / 2;
	else if (is_get(parent) && a->next < a->n) {
		peer_health(a->target[a->next - 1], &h);
		us = hedge_us(&h);
	}
	ask_arm(a, parent, us);
}

/* One in HEDGE_SHARE: slowness of a peer that works is no reason to ask everything twice. */
static bool hedge_allowed(struct source_peer *sp)
{
	uint64_t asked = __atomic_load_n(&sp->asked, __ATOMIC_RELAXED);

	if (__atomic_load_n(&sp->hedged, __ATOMIC_RELAXED) * HEDGE_SHARE >= asked)
		return false;
	__atomic_add_fetch(&sp->hedged, 1, __ATOMIC_RELAXED);
	return true;
}

/* Somebody who is still asked, and (filling: only if he said so) shows life: he is asked for more
 * signs of it when the last one is older than probe_us, and looked at again after that time. */
static bool tick_lives(struct ask *a, struct block_req *parent, bool filling, uint64_t gone_us,
		       uint64_t probe_us)
{
	struct peer_health h;

	for (unsigned i = 0; i < a->next; i++) {
		if (!__atomic_load_n(&a->out[i], __ATOMIC_ACQUIRE) ||
		    (filling && !__atomic_load_n(&a->filling[i], __ATOMIC_RELAXED)))
			continue;
		peer_health(a->target[i], &h);
		if (h.down || h.idle_us >= gone_us)
			continue;
		if (h.idle_us >= probe_us)
			peer_probe(a->target[i]);
		ask_arm(a, parent, probe_us);
		return true;
	}
	return false;
}

/* A peer said FILLING, or was asked to fill: nobody hedges, as long as it lives. */
static bool tick_watched(struct ask *a, struct block_req *parent)
{
	return tick_lives(a, parent, is_get(parent), GONE_US, WATCH_US);
}

/* No answer in the hedge's time. Bytes of other answers tell that the peer works, and ours waits
 * behind them. */
static bool tick_put_off(struct ask *a, struct block_req *parent, const struct peer_health *h)
{
	uint64_t us = hedge_us(h);

	if (h->down || h->slow || h->idle_us >= us)
		return false;
	if (a->put_off++ >= BUSY_TIMES && hedge_allowed(a->sp))
		return false;
	ask_arm(a, parent, us);
	return true;
}

/* One of the members that are still asked was not silent for MEMBER_US. Who gets near to that is
 * asked whether he lives. */
static bool member_lives(const struct ask *a)
{
	uint64_t asked = clock_us() - a->asked_us, silent;
	struct peer_health h;
	bool lives = false;

	for (unsigned i = 0; i < a->next; i++) {
		if (!__atomic_load_n(&a->out[i], __ATOMIC_ACQUIRE))
			continue;
		peer_health(a->target[i], &h);
		silent = MIN(h.idle_us, asked);
		if (h.down || silent >= MEMBER_US) {
			peer_note(a->target[i], -ETIMEDOUT);
			continue;
		}
		if (silent >= MEMBER_US / 4)
			peer_probe(a->target[i]);
		lives = true;
	}
	return lives;
}

/* A member that is asked by another one is given MEMBER_US of silence. Half-way he is asked whether
 * he lives (bytes of other answers tell the same): who does is waited for, since he is busy with
 * what everybody wants, and the object store is the last that should be asked for that; but not
 * for ever: it may be his disk that hangs. */
static void tick_member(struct ask *a, struct block_req *parent)
{
	if (tick_watched(a, parent))
		return;
	if (member_lives(a) && a->put_off++ < MEMBER_TIMES) {
		ask_arm(a, parent, MEMBER_US / 2);
		return;
	}
	if (ask_next(a, parent, 1))
		return;
	if (a->next == a->n) {
		ask_pass(a, parent);
		return;
	}
	ask_abandon(a); /* there is no memory for both */
	ask_carry(a, parent);
}

static void ask_tick(struct block_req *parent, void *arg)
{
	struct ask *a = arg;
	struct peer *p = a->target[a->next - 1];
	struct peer_health h;

	peer_health(p, &h);
	/* we were not run for a while, and maybe the peer neither, beside us: look again */
	if (clock_us() > a->due_us + LATE_US && a->late++ < LATE_TIMES) {
		ask_arm(a, parent, hedge_us(&h));
		return;
	}
	if (a->member) {
		tick_member(a, parent);
		return;
	}
	if (tick_watched(a, parent))
		return;
	if (is_get(parent) &&
	    (a->next < a->n ? tick_put_off(a, parent, &h)
			    : tick_lives(a, parent, false, BELOW_US, HEDGE_MAX_US)))
		return;
	/* a short silence is worth a hedge, but a peer is set behind the others only for a long
	 * one: the others would fetch what it holds */
	if (h.idle_us >= HEDGE_MAX_US)
		peer_note(p, -ETIMEDOUT);
	metric_add(a->sp->hedges, 1);
	if (!ask_next(a, parent, 1))
		ask_below(a, parent);
}

static void forked_done(struct peer_try *t, int status)
{
	struct ask_try *at = container_of(t, struct ask_try, t);
	struct block_req *child = t->req;
	struct ask_try *listed = at;
	struct ask *a = at->ask;

	if (__atomic_compare_exchange_n(&a->out[at->nr], &listed, NULL, false, __ATOMIC_ACQ_REL,
					__ATOMIC_RELAXED))
		try_unref(at);
	ask_busy(a, t->peer, status);
	try_free(at);
	req_done(child, status);
	ask_unref(a);
}

static uint64_t fork_us(const struct block_req *parent)
{
	return parent->flags & REQ_FILL	   ? FILL_US
	       : parent->flags & REQ_PROBE ? PROBE_US
					   : FILLING_US;
}

/* false: nothing was started, and the request is as it was. true: it may be gone */
static bool ask_next(struct ask *a, struct block_req *parent, unsigned running)
{
	struct block_req *child;
	struct ask_try *at;

	if (a->next == a->n)
		return false;
	at = try_new(a, NULL, forked_done);
	child = at ? req_fork(parent, parent->flags, fork_us(parent), ask_lost, a) : NULL;
	if (!child) {
		free(at);
		if (running > 0)
			return false;
		ask_carry(a, parent);
		return true;
	}
	at->t.req = child;
	/* two reservations only for a moment */
	req_unreserve(parent);
	if (a->spare)
		buf_unref(TAKE_PTR(a->spare));
	try_go(at, parent, false);
	ask_set_tick(a, parent);
	at->refs += 2;
	__atomic_store_n(&a->out[at->nr], at, __ATOMIC_RELEASE);
	req_fork_begin(child);
	peer_try_start(&at->t);
	try_mark(at, TRY_STARTED);
	return true;
}

/* FILL, PROBE: the last peer's word is what the asker hears */
static void ask_gave_up(struct ask *a, struct block_req *parent, int status)
{
	if (parent->reason[0])
		req_done(parent, status);
	else
		req_fail(parent, status, "%s: no answer in time",
			 peer_name(a->target[a->next - 1]));
}

static void ask_failed(struct ask *a, struct block_req *parent, int status, unsigned running)
{
	if (is_final(status)) {
		req_done(parent, status);
		return;
	}
	if (status == -ETIMEDOUT && a->next <= a->no_fill &&
	    !__atomic_load_n(&a->filling[a->next - 1], __ATOMIC_RELAXED))
		peer_note(a->target[a->next - 1], -ETIMEDOUT);
	if (status == -ETIMEDOUT && clock_left(parent->deadline_us) == 0) {
		if (running == 0)
			req_done(parent, status);
		return;
	}
	if (is_get(parent))
		parent->reason[0] = '\0'; /* of one peer; the next may do better */
	if (ask_next(a, parent, running))
		return;
	if (running > 0) {
		/* he was silent already, else nobody else would have been asked: looked at now */
		if (a->next == a->n && !a->below)
			ask_arm(a, parent, HEDGE_MIN_US);
		return;
	}
	if (ask_again(a, parent) && ask_next(a, parent, 0))
		return;
	if (!is_get(parent)) { /* below nobody can fill, or knows */
		ask_gave_up(a, parent, status);
		return;
	}
	if (a->spare)
		buf_unref(TAKE_PTR(a->spare));
	ask_pass(a, parent);
}

static bool is_asked(const struct source_peer *sp, const struct block_req *req)
{
	/* a request that must not lead never becomes another request (rule 7) */
	if (req->flags & REQ_NO_FILL)
		return false;
	return is_get(req) || sp->conf.mode == PEER_OWNER;
}

/* Who waits for req, and will be waited for: a member only as long as nobody is asked to fill it
 * (see flight). */
static unsigned pick(struct source_peer *sp, struct block_req *req,
		     struct peer *target[PEER_TARGETS], unsigned *ret_no_fill)
{
	bool member = req->flags & REQ_MEMBER;
	unsigned n = peer_pick(sp, req, member, target, ret_no_fill);
	enum req_way way = WAY_OPEN;

	if (*ret_no_fill < n &&
	    !__atomic_compare_exchange_n(&req->way, &way, *ret_no_fill ? WAY_HOLDERS : WAY_ASKS,
					 false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		n = peer_pick(sp, req, true, target, ret_no_fill);
	if (n > 0 && *ret_no_fill == n)
		__atomic_store_n(&req->way, WAY_HOLDERS, __ATOMIC_RELEASE);
	return n;
}

static void peer_get(struct source *s, struct block_req *req)
{
	struct source_peer *sp = peer_layer(s);
	struct peer *target[PEER_TARGETS];
	struct buf *spare = NULL;
	unsigned no_fill = 0, n = is_asked(sp, req) ? pick(sp, req, target, &no_fill) : 0;
	struct ask *a = NULL;

	if (n > 0 && is_get(req) && peer_is_local(target[0]) &&
	    peer_try_warm(&sp->env, req, &spare)) {
		req_unreserve(req);
		req_done(req, 0);
		return;
	}
	if (n > 0)
		a = calloc(1, sizeof(*a));
	if (!a && !is_get(req) && sp->conf.mode == PEER_OWNER) {
		req_fail(req, n > 0 ? -ENOMEM : -EHOSTDOWN, "%s",
			 n > 0 ? "no memory" : "no daemon could be reached: the group has none");
		return;
	}
	if (!a) {
		if (spare) {
			buf_unref(spare);
			req_reserve(req, pass_reserved, s->next);
		} else {
			source_get(s->next, req, pass_up, NULL);
		}
		return;
	}
	__atomic_add_fetch(&sp->asked, 1, __ATOMIC_RELAXED);
	a->sp = sp;
	a->refs = 1;
	a->n = n;
	a->no_fill = no_fill;
	a->member = sp->conf.mode == PEER_HOLDER &&
		    (no_fill > 0 || !__atomic_load_n(&sp->conf.view->consumer, __ATOMIC_RELAXED));
	a->spare = spare;
	memcpy(a->target, target, n * sizeof(*target));
	req_push(req, ask_over, a);
	ask_next(a, req, 0);
}

/* --- the layer --- */

static void peer_free(struct source *s)
{
	struct source_peer *sp = peer_layer(s);

	fd_cache_free(sp->env.fds);
	source_fini(s);
	free(sp);
}

/* A daemon is told DROP for itself alone, so the holder's layer has none. */
static const struct source_ops owner_ops = {
	.name = "peer", .get = peer_get, .drop = peer_drop, .free = peer_free};
static const struct source_ops holder_ops = {.name = "peer", .get = peer_get, .free = peer_free};

static int peer_metrics(struct source_peer *sp, struct metrics *m)
{
	if (!m)
		return 0;
	sp->hedges = metrics_get(m, "stoke_hedges_total", "", METRIC_COUNTER,
				 "second ways started because a peer was late");
	sp->busy = metrics_get(m, "stoke_peer_busy_total", "", METRIC_COUNTER,
			       "answers BUSY of other daemons: another one was asked");
	sp->passed = metrics_get(m, "stoke_peer_passed_total", "", METRIC_COUNTER,
				 "reads that no asked daemon could answer: the object store was "
				 "asked");
	sp->env.damaged = metrics_get(m, "stoke_damaged_answers_total", "", METRIC_COUNTER,
				      "blocks from other daemons or their files that failed their "
				      "checksums, and were not used");
	return sp->hedges && sp->busy && sp->passed && sp->env.damaged ? 0 : -ENOMEM;
}

int source_peer_new(struct req_env *env, struct source *next, const struct source_peer_conf *conf,
		    struct source **ret)
{
	struct source_peer *sp = calloc(1, sizeof(*sp));
	int r;

	if (!sp)
		return -ENOMEM;
	sp->conf = *conf;
	sp->env.disk = conf->disk;
	r = peer_metrics(sp, env->metrics);
	if (r == 0 && conf->disk && conf->mode == PEER_OWNER)
		r = fd_cache_new(FDS, FDS_BYTES, env->timers, conf->disk, &sp->env.fds);
	if (r == 0)
		r = source_init(&sp->base, conf->mode == PEER_OWNER ? &owner_ops : &holder_ops, env,
				next);
	if (r < 0) {
		fd_cache_free(sp->env.fds);
		free(sp);
		return r;
	}
	*ret = &sp->base;
	return 0;
}
