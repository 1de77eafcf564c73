/* SPDX-License-Identifier: Apache-2.0 */
/* The threads that copy. One walks: it asks the others for lists, or goes through the own store,
 * and hands blocks out; a few copy one block each at a time. Everything below `lock` is shared with
 * who sets the goal.
 *
 *	idle		no goal, or it is done
 *	passing		a pass over everything, in the snapshot `base`; it is given up when what it
 *			did would not hold any more, and begins again in the newest one. What is
 *			where it should be already is skipped
 *	resting		a pass was not complete (somebody did not answer, or did not know of us
 *			yet): again in a moment
 *
 * Who does not answer leaves the registry within seconds; if he does not, because only we cannot
 * reach him, a pull goes on without him after GIVE_UP_US, and a push says whom it waits for.
 * Blocks that nobody will take hold a push up for REFUSED_US; then they are counted as lost. */
#include "cached/mover.h"

#include "cached/mover_inner.h"
#include "common/clock.h"
#include "common/hash.h"
#include "common/log.h"
#include "common/thread.h"
#include "proto/bytes.h"

enum {
	COPIERS = 8,
	WINDOW = 32, /* blocks handed out at once */
	STEP = 256,
	REST_US = 300000,
	LIST_US = 3000000,
	GIVE_UP_US = 15000000,
	REFUSED_PASSES = 3,
	REFUSED_US = 180000000,
	SAY_US = 30000000,
};

struct pass {
	struct mover *m;
	struct mover_goal goal;
	uint64_t goal_nr;
	struct cluster *base, *target;
	int self; /* in base */
};

/* --- what the others see --- */

void mover_set(struct mover *m, const struct mover_goal *goal)
{
	bool same;

	mtx_lock(&m->lock);
	same = m->goal.tasks == goal->tasks && m->goal.weight == goal->weight &&
	       m->goal.leave == goal->leave;
	if (!same) {
		m->goal = *goal;
		m->goal_nr++;
		m->done = false;
		m->moved = m->to_move = m->lost = 0;
		cond_broadcast(&m->changed);
	}
	mtx_unlock(&m->lock);
}

bool mover_done(struct mover *m, const struct cluster *now)
{
	bool done;

	mtx_lock(&m->lock);
	if (m->done && !mover_holds(m->base, now, m->conf.self, m->goal.tasks)) {
		m->done = false;
		cond_broadcast(&m->changed);
	}
	done = m->done;
	mtx_unlock(&m->lock);
	return done;
}

void mover_progress(struct mover *m, uint64_t *ret_moved, uint64_t *ret_to_move)
{
	mtx_lock(&m->lock);
	*ret_moved = m->moved;
	*ret_to_move = m->to_move;
	mtx_unlock(&m->lock);
}

uint64_t mover_lost(struct mover *m)
{
	uint64_t n;

	mtx_lock(&m->lock);
	n = m->lost;
	mtx_unlock(&m->lock);
	return n;
}

void mover_set_limit(struct mover *m, uint64_t bytes)
{
	mtx_lock(&m->lock);
	m->limit = bytes;
	mtx_unlock(&m->lock);
}

/* --- a pass --- */

/* what this pass did so far would still count */
static bool pass_holds(const struct pass *p)
{
	struct mover *m = p->m;
	struct cluster *now = cluster_view_get(m->conf.view);
	bool holds = now && (now->version == p->base->version ||
			     mover_holds(p->base, now, m->conf.self, p->goal.tasks));

	cluster_unref(now);
	mtx_lock(&m->lock);
	holds = holds && !m->stop && m->goal_nr == p->goal_nr;
	mtx_unlock(&m->lock);
	return holds;
}

static int hand_out(struct pass *p, const struct block_key *k, struct peer *peer, bool push,
		    uint64_t until)
{
	struct mover *m = p->m;
	struct move *v = calloc(1, sizeof(*v));
	bool go, silent;

	if (!v)
		return -ENOMEM;
	*v = (struct move){.job.fn = mover_move_run,
			   .m = m,
			   .key = *k,
			   .peer = peer,
			   .until = until,
			   .push = push};
	mtx_lock(&m->lock);
	while (!m->stop && m->goal_nr == p->goal_nr && m->out >= WINDOW)
		cond_wait(&m->changed, &m->lock);
	silent = m->silent == peer;
	go = !m->stop && m->goal_nr == p->goal_nr && !silent;
	if (go) {
		m->out++;
		if (!push) /* what is pushed was counted before */
			m->to_move++;
	}
	mtx_unlock(&m->lock);
	if (go)
		workq_push_always(m->copiers, &v->job); /* at most WINDOW */
	else
		free(v);
	return go ? 0 : silent ? -EHOSTDOWN : -ECANCELED;
}

static void pass_missed(struct pass *p)
{
	mtx_lock(&p->m->lock);
	p->m->missed++;
	mtx_unlock(&p->m->lock);
}

/* keys of one answer; -EPROTO, or what hand_out says: what he does not answer ends it */
static int pull_listed(struct pass *p, struct peer *peer, const uint8_t *b, size_t n)
{
	struct hash128 volume = store_volume(p->m->conf.store);

	if (n % MSG_LIST_KEY)
		return -EPROTO;
	for (; n > 0; b += MSG_LIST_KEY, n -= MSG_LIST_KEY) {
		struct block_key k;
		struct msg_key key;
		uint64_t until;
		int r;

		if (msg_list_key_decode(b, n, &key, &until) < 0)
			return -EPROTO;
		block_key_init(&k, &volume, key.slice, key.index, key.size);
		if (store_has(p->m->conf.store, &k)) {
			store_pin_moved(p->m->conf.store, &k, until);
			continue;
		}
		r = hand_out(p, &k, peer, false, until);
		if (r < 0)
			return r;
	}
	return 0;
}

/* everything that one member holds for us */
static int pull_from(struct pass *p, struct peer *peer)
{
	struct mover *m = p->m;
	struct msg_list l = {.weight = p->base->members[p->self].weight,
			     .member = hash64(m->conf.self, strlen(m->conf.self))};
	struct buf *in = mover_memory(m, FRAME_LIST_MAX);
	int r = in ? 0 : -ENOMEM;

	while (r == 0) {
		struct asked a = {.call = {.op = OP_LIST,
					   .min_version = 2,
					   .quiet_us = LIST_US,
					   .head_len = MSG_LIST,
					   .in = in,
					   .in_cap = FRAME_LIST_MAX}};
		uint64_t next;

		msg_list_encode(&l, a.call.head);
		r = mover_ask(m, peer, &a, false);
		if (r == 0 && a.call.in_len < MSG_LIST_HEAD)
			r = -EPROTO;
		if (r < 0)
			break;
		next = get64(in->mem);
		r = pull_listed(p, peer, in->mem + MSG_LIST_HEAD, a.call.in_len - MSG_LIST_HEAD);
		if (r < 0 || next == 0)
			break;
		if (next == l.cursor && a.call.in_len == MSG_LIST_HEAD)
			r = -EPROTO; /* it does not get on */
		l.cursor = next;
		if (r == 0 && !pass_holds(p))
			r = -ECANCELED;
	}
	if (in)
		buf_unref(in);
	return r;
}

static void pass_pull(struct pass *p)
{
	struct mover *m = p->m;
	const struct cluster *c = p->base;

	/* those who join at once begin with different members */
	for (size_t i = 1; i < c->n && pass_holds(p); i++) {
		const struct member *from = &c->members[((size_t)p->self + i) % c->n];
		struct peer *peer;
		int r;

		if (from->weight == 0)
			continue;
		peer = peers_get(m->conf.peers, from->addr, from->port);
		r = peer ? pull_from(p, peer) : -ENOMEM;
		if (r == -EPROTONOSUPPORT)
			log_warn("member %s (%s) is of an older version: what it holds is not "
				 "copied",
				 from->id, from->addr);
		else if (r < 0)
			pass_missed(p);
	}
}

/* 0 when all of it was walked; fn NULL: only counts */
static int pass_own(struct pass *p, int (*fn)(struct pass *p, const struct block_key *k, int heir),
		    uint64_t *ret_found)
{
	struct mover *m = p->m;
	struct block_key k[STEP];
	uint64_t cursor = 0;
	size_t n;

	*ret_found = 0;
	do {
		int r = pass_holds(p) ? store_each(m->conf.store, &cursor, k, STEP, &n)
				      : -ECANCELED;

		if (r < 0)
			return r;
		for (size_t i = 0; i < n; i++) {
			int heir = mover_heir(p->base, p->target, m->conf.self, &k[i]);

			if (heir < 0 || strcmp(p->base->members[heir].id, m->conf.self) == 0)
				continue;
			++*ret_found;
			r = fn ? fn(p, &k[i], heir) : 0;
			if (r < 0)
				return r;
		}
	} while (cursor);
	return 0;
}

static int push_one(struct pass *p, const struct block_key *k, int heir)
{
	const struct member *to = &p->base->members[heir];
	struct peer *peer = peers_get(p->m->conf.peers, to->addr, to->port);
	int r = peer ? hand_out(p, k, peer, true, 0) : -ENOMEM;

	if (r != -EHOSTDOWN)
		return r;
	pass_missed(p); /* the others' go on */
	return 0;
}

static void pass_push(struct pass *p)
{
	const struct cluster *t = p->target;
	uint64_t n, found;
	int r = pass_own(p, NULL, &n);

	/* nobody to give anything to yet: who joins gets it from us, and then is active */
	if (t->active == 0 && t->serving > 0)
		pass_missed(p);
	mtx_lock(&p->m->lock);
	p->m->to_move += n;
	mtx_unlock(&p->m->lock);
	if (r == 0)
		r = pass_own(p, push_one, &found);
	if (r < 0) /* what was not walked is not moved */
		pass_missed(p);
}

/* true: all of it was done */
static bool pass_run(struct pass *p)
{
	struct mover *m = p->m;
	bool complete;

	mtx_lock(&m->lock);
	m->missed = m->refused = 0;
	m->moved = m->to_move = 0;
	m->silent = NULL;
	mtx_unlock(&m->lock);
	if (p->goal.tasks & MOVER_PULL)
		pass_pull(p);
	if (p->goal.tasks & MOVER_PUSH)
		pass_push(p);
	mtx_lock(&m->lock);
	while (m->out > 0)
		cond_wait(&m->changed, &m->lock);
	complete = m->missed == 0;
	mtx_unlock(&m->lock);
	return complete && pass_holds(p);
}

/* --- the thread --- */

/* how a goal gets on */
struct course {
	uint64_t goal_nr, began_us; /* of its first pass */
	uint64_t refused_us;	    /* since when all but what is refused is done; 0: it is not */
	unsigned passes;	    /* that were complete, but for blocks that were refused */
	uint64_t said_us;
};

/* false: there is nothing to do now */
static bool pass_begin(struct mover *m, struct pass *p)
{
	*p = (struct pass){.m = m, .base = cluster_view_get(m->conf.view)};
	mtx_lock(&m->lock);
	p->goal = m->goal;
	p->goal_nr = m->goal_nr;
	mtx_unlock(&m->lock);
	p->self = p->base ? cluster_index(p->base, m->conf.self) : -1;
	if (p->self >= 0)
		p->target = mover_target(p->base, m->conf.self, &p->goal);
	return p->target;
}

static void pass_end(struct pass *p)
{
	cluster_unref(p->base);
	cluster_unref(p->target);
}

/* somebody keeps us waiting: who */
static void say_waiting(struct mover *m, struct course *c, unsigned missed, unsigned refused,
			const struct peer *silent)
{
	uint64_t now = clock_us();

	if (now < c->began_us + SAY_US || now < c->said_us + SAY_US)
		return;
	c->said_us = now;
	if (missed && silent)
		log_warn("group: member at %s does not answer: waiting to copy blocks %s",
			 peer_name(silent), m->goal.tasks & MOVER_PUSH ? "to it" : "from it");
	else if (refused)
		log_warn("group: %u block(s) are not taken by who is to have them: trying again",
			 refused);
}

/* What was refused is tried again: to come without a block costs a request to the object store,
 * once; to leave with it, too, but nobody has it any more. So that has more patience. */
static bool is_over(const struct mover *m, const struct mover_goal *goal, struct course *c)
{
	if (!(goal->tasks & MOVER_PUSH))
		return ++c->passes >= REFUSED_PASSES;
	if (!c->refused_us)
		c->refused_us = clock_us();
	return clock_us() >=
	       c->refused_us + (m->conf.patience_us ? m->conf.patience_us : REFUSED_US);
}

/* the pass counts: what it was meant for may happen */
static bool pass_counts(struct pass *p, struct course *c, bool complete, uint64_t began_us)
{
	struct mover *m = p->m;
	unsigned refused, missed;
	const struct peer *silent;

	mtx_lock(&m->lock);
	refused = m->refused;
	missed = m->missed;
	silent = m->silent;
	mtx_unlock(&m->lock);
	say_waiting(m, c, missed, refused, silent);
	if (!complete && !(missed && !(p->goal.tasks & MOVER_PUSH) && pass_holds(p) &&
			   clock_us() > c->began_us + GIVE_UP_US)) {
		c->refused_us = 0;
		return false;
	}
	if (began_us < p->goal.since_us)
		return false;
	if (refused && !is_over(m, &p->goal, c))
		return false;
	if (missed || refused)
		log_warn("%u block(s) could not be copied, %u time(s) a member did not answer: the "
			 "object store will be asked for what is missing",
			 refused, missed);
	return true;
}

/* one pass; true: there is another one to make, in a moment */
static bool mover_pass(struct mover *m, struct course *c)
{
	uint64_t began_us = clock_us();
	struct pass p;
	bool counts = false, again = true;

	if (pass_begin(m, &p)) {
		if (c->goal_nr != p.goal_nr)
			*c = (struct course){.goal_nr = p.goal_nr, .began_us = began_us};
		counts = pass_counts(&p, c, pass_run(&p), began_us);
	}
	mtx_lock(&m->lock);
	if (counts && m->goal_nr == p.goal_nr && !m->stop) {
		cluster_unref(m->base);
		m->base = TAKE_PTR(p.base);
		m->done = true;
		m->moved = m->to_move;
		m->lost = m->refused;
		again = false;
	}
	mtx_unlock(&m->lock);
	pass_end(&p);
	return again;
}

static void *mover_thread(void *arg)
{
	struct mover *m = arg;
	struct course c = {0};

	mtx_lock(&m->lock);
	while (!m->stop) {
		bool again;

		if (!m->goal.tasks || m->done) {
			cond_wait(&m->changed, &m->lock);
			continue;
		}
		mtx_unlock(&m->lock);
		again = mover_pass(m, &c);
		if (!again)
			m->conf.done(m->conf.arg);
		mtx_lock(&m->lock);
		if (again)
			(void)mover_rest_locked(m, clock_us() + REST_US);
	}
	mtx_unlock(&m->lock);
	return NULL;
}

/* --- life --- */

bool mover_rest_locked(struct mover *m, uint64_t until_us)
{
	while (!m->stop && clock_left(until_us))
		(void)cond_wait_us(&m->changed, &m->lock, clock_left(until_us));
	return !m->stop;
}

void mover_unref(struct mover *m)
{
	bool last;

	mtx_lock(&m->lock);
	last = --m->refs == 0;
	mtx_unlock(&m->lock);
	if (!last)
		return;
	cluster_unref(m->base);
	cond_fini(&m->changed);
	mtx_fini(&m->lock);
	free(m);
}

int mover_new(const struct mover_conf *conf, struct mover **ret)
{
	struct mover *m = calloc(1, sizeof(*m));
	int r;

	if (!m)
		return -ENOMEM;
	m->conf = *conf;
	m->refs = 1;
	m->limit = conf->limit;
	mtx_init(&m->lock);
	cond_init(&m->changed);
	r = workq_new("copy", COPIERS, WINDOW, &m->copiers);
	if (r == 0)
		r = thread_start("mover", mover_thread, m, &m->thread);
	if (r < 0) {
		mover_free(m);
		return r;
	}
	m->threaded = true;
	*ret = m;
	return 0;
}

void mover_stop(struct mover *m)
{
	if (!m)
		return;
	mtx_lock(&m->lock);
	m->stop = true;
	cond_broadcast(&m->changed);
	mtx_unlock(&m->lock);
	if (m->threaded)
		(void)pthread_join(m->thread, NULL);
	m->threaded = false;
}

void mover_free(struct mover *m)
{
	if (!m)
		return;
	mover_stop(m);
	workq_free(m->copiers);
	mover_unref(m);
}
