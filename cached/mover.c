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
 * reach him, a pull goes on without him after GIVE_UP_US. */
#include "cached/mover.h"

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
	POLL_US = 100000,
	MEMORY_US = 20000,
	LIST_US = 3000000,
	STAT_US = 3000000,
	GET_US = 10000000,
	FILL_US = 60000000,
	GIVE_UP_US = 15000000,
	REFUSED_PASSES = 3,
};

struct mover {
	struct mover_conf conf;
	struct workq *copiers;
	pthread_t thread;
	bool threaded;
	struct mtx lock;
	struct cond changed;
	bool stop;
	struct mover_goal goal;
	uint64_t goal_nr;     /* grows with each other goal */
	bool done;	      /* in base, for this goal */
	struct cluster *base; /* of the last complete pass */
	uint64_t moved, to_move, limit;
	uint64_t due_us; /* when the next bytes may go */
	/* a pass */
	unsigned out;	  /* blocks handed out */
	unsigned missed;  /* somebody did not answer */
	unsigned refused; /* or would not take a block, or did not have it any more */
};

/* one block on its way */
struct move {
	struct workq_job job;
	struct mover *m;
	struct block_key key;
	struct peer *peer;
	uint64_t until; /* pull: he has it pinned; 0: no */
	bool push;
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
		m->moved = m->to_move = 0;
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

void mover_set_limit(struct mover *m, uint64_t bytes)
{
	mtx_lock(&m->lock);
	m->limit = bytes;
	mtx_unlock(&m->lock);
}

/* --- a call, waited for --- */

struct asked {
	struct peer_call call;
	struct mover *m;
	bool over;
	int status;
};

static void asked_over(struct asked *a, int status)
{
	struct mover *m = a->m;

	mtx_lock(&m->lock);
	a->over = true;
	a->status = status;
	cond_broadcast(&m->changed);
	mtx_unlock(&m->lock);
}

static void answered(struct peer_call *c, int status)
{
	asked_over(container_of(c, struct asked, call), status);
}

/* on the call's loop, so that no answer comes in between */
static void give_up(void *arg)
{
	struct asked *a = arg;

	if (a->over)
		return;
	peer_abandon(&a->call);
	asked_over(a, -ECANCELED);
}

static int ask(struct mover *m, struct peer *p, struct asked *a, bool bulk)
{
	bool over;

	a->m = m;
	a->call.fd = -1;
	a->call.done = answered;
	peer_start(p, &a->call, bulk);
	mtx_lock(&m->lock);
	while (!a->over && !m->stop)
		cond_wait(&m->changed, &m->lock);
	over = a->over;
	mtx_unlock(&m->lock);
	if (!over)
		loop_run_sync(peer_loop(p, bulk), give_up, a);
	return a->status;
}

static void key_head(struct asked *a, const struct block_key *k)
{
	struct msg_key key;

	block_key_to_msg(k, &key);
	msg_key_encode(&key, a->call.head);
	a->call.head_len = MSG_KEY;
}

/* --- one block --- */

/* sleeps; false: it is time to end */
static bool rest_locked(struct mover *m, uint64_t until_us)
{
	while (!m->stop && clock_left(until_us))
		(void)cond_wait_us(&m->changed, &m->lock, clock_left(until_us));
	return !m->stop;
}

/* so many bytes may go now; false: it is time to end */
static bool take_turn(struct mover *m, uint64_t bytes)
{
	uint64_t now = clock_us(), at;
	bool go;

	mtx_lock(&m->lock);
	at = MAX(m->due_us, now);
	if (m->limit)
		m->due_us = at + bytes * 1000000 / m->limit;
	go = rest_locked(m, at);
	mtx_unlock(&m->lock);
	return go;
}

static struct buf *take_memory(struct mover *m, size_t len)
{
	size_t reserved = pool_cost(len);
	struct pool *pool = m->conf.env->pool;
	struct buf *b;
	int r;

	while ((r = pool_reserve(pool, POOL_UPLOAD, reserved, NULL)) == -ENOBUFS) {
		bool go;

		mtx_lock(&m->lock);
		go = rest_locked(m, clock_us() + MEMORY_US);
		mtx_unlock(&m->lock);
		if (!go)
			return NULL;
	}
	if (r < 0)
		return NULL;
	b = pool_take(pool, POOL_UPLOAD, len, &reserved);
	pool_unreserve(pool, POOL_UPLOAD, reserved);
	return b;
}

/* The own store is given a block. Its disk may hang: then the waiting is left to the callback. */
struct keeping {
	struct mover *m;
	struct block_req *req;
	unsigned refs;
	bool over;
	int status;
};

static void keeping_unref_locked(struct keeping *k)
{
	if (--k->refs == 0)
		free(k);
}

static void kept(struct block_req *req, int status, void *arg)
{
	struct keeping *k = arg;
	struct mover *m = k->m;

	mtx_lock(&m->lock);
	k->over = true;
	k->status = status;
	keeping_unref_locked(k);
	cond_broadcast(&m->changed);
	mtx_unlock(&m->lock);
	req_free(req);
}

static int keep(struct mover *m, const struct block_key *key, struct buf *buf)
{
	struct block_req *req = req_new(m->conf.env, key, 0, key->size, 0, POOL_UPLOAD);
	struct keeping *k = calloc(1, sizeof(*k));
	int r = -ECANCELED;

	if (!req || !k) {
		if (req)
			req_free(req);
		free(k);
		return -ENOMEM;
	}
	*k = (struct keeping){.m = m, .req = req, .refs = 2};
	req->inner = true;
	req->data = blob_of_buf(buf_ref(buf), 0, key->size);
	req->sums = blob_of_buf(buf_ref(buf), key->size, msg_sums_len(key->size));
	source_put(m->conf.chain, req, kept, k);
	mtx_lock(&m->lock);
	while (!k->over && !m->stop)
		cond_wait(&m->changed, &m->lock);
	if (k->over)
		r = k->status;
	keeping_unref_locked(k);
	mtx_unlock(&m->lock);
	return r;
}

/* 1: it is here now; 0: it was */
static int pull(struct mover *m, const struct block_key *key, struct peer *p)
{
	size_t len = key->size + msg_sums_len(key->size);
	struct asked a = {.call = {.op = OP_GET, .flags = FRAME_NO_FILL, .quiet_us = GET_US}};
	struct msg_get get = {.len = key->size};
	int r;

	if (store_has(m->conf.store, key))
		return 0;
	if (!take_turn(m, key->size))
		return -ECANCELED;
	a.call.in = take_memory(m, len);
	if (!a.call.in)
		return -ENOMEM;
	a.call.in_cap = len;
	block_key_to_msg(key, &get.key);
	a.call.head_len = msg_get_encode(&get, a.call.head);
	r = ask(m, p, &a, true);
	if (r == 0 && a.call.in_len != len)
		r = -EPROTO;
	if (r == 0)
		r = block_sums_check(key, 0, a.call.in->mem, key->size, a.call.in->mem + key->size,
				     NULL);
	if (r == 0)
		r = keep(m, key, a.call.in);
	buf_unref(a.call.in);
	return r < 0 ? r : 1;
}

static int ask_fill(struct mover *m, struct peer *p, const struct block_key *key, uint64_t until)
{
	struct asked a = {
		.call = {.op = OP_FILL, .quiet_us = FILL_US, .min_version = until ? 2 : 0}};
	struct msg_fill fill = {.pins = until, .until = until};

	block_key_to_msg(key, &fill.key);
	a.call.head_len = msg_fill_encode(&fill, a.call.head);
	return ask(m, p, &a, false);
}

static int push(struct mover *m, const struct block_key *key, struct peer *p)
{
	struct asked stat = {.call = {.op = OP_STAT, .quiet_us = STAT_US}};
	uint64_t until = store_pinned(m->conf.store, key);
	int r;

	key_head(&stat, key);
	r = ask(m, p, &stat, false);
	if (r != -ENOENT && !(r == 0 && until))
		return r;
	if (!store_has(m->conf.store, key)) /* evicted: he would ask the object store */
		return 0;
	if (!take_turn(m, key->size))
		return -ECANCELED;
	r = ask_fill(m, p, key, until);
	if (until && (r == -ENOSPC || r == -EPROTONOSUPPORT)) /* he has no room for pins */
		r = ask_fill(m, p, key, 0);
	return r < 0 ? r : 1;
}

static bool is_missing(int r)
{
	return r == -EHOSTDOWN || r == -ECONNREFUSED || r == -ETIMEDOUT || r == -ECANCELED ||
	       r == -ECONNRESET || r == -EHOSTUNREACH || r == -ESTALE;
}

static void move_run(struct workq_job *job)
{
	struct move *v = container_of(job, struct move, job);
	struct mover *m = v->m;
	struct counters *n = m->conf.counters;
	int r;

	if (v->until) /* before it is fetched, so that nothing takes it away in between */
		store_pin_moved(m->conf.store, &v->key, v->until);
	r = v->push ? push(m, &v->key, v->peer) : pull(m, &v->key, v->peer);

	if (r > 0)
		metric_add(v->push ? n->moved_out : n->moved_in, 1);
	else if (r < 0 && r != -ECANCELED)
		metric_add(n->move_failed, 1);
	free(v);
	mtx_lock(&m->lock);
	m->out--;
	if (r >= 0)
		m->moved++;
	else if (is_missing(r))
		m->missed++;
	else
		m->refused++;
	cond_broadcast(&m->changed);
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
	bool go;

	if (!v)
		return -ENOMEM;
	*v = (struct move){
		.job.fn = move_run, .m = m, .key = *k, .peer = peer, .until = until, .push = push};
	mtx_lock(&m->lock);
	while (!m->stop && m->goal_nr == p->goal_nr && m->out >= WINDOW)
		cond_wait(&m->changed, &m->lock);
	go = !m->stop && m->goal_nr == p->goal_nr;
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
	return go ? 0 : -ECANCELED;
}

static void pass_missed(struct pass *p)
{
	mtx_lock(&p->m->lock);
	p->m->missed++;
	mtx_unlock(&p->m->lock);
}

/* keys of one answer; -EPROTO, or what hand_out says */
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
	struct buf *in = take_memory(m, FRAME_LIST_MAX);
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
		r = ask(m, peer, &a, false);
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

/* fn NULL: only counts */
static uint64_t pass_own(struct pass *p,
			 int (*fn)(struct pass *p, const struct block_key *k, int heir))
{
	struct mover *m = p->m;
	struct block_key k[STEP];
	uint64_t cursor = 0, found = 0;
	size_t n;

	do {
		if (!pass_holds(p) || store_each(m->conf.store, &cursor, k, STEP, &n) < 0)
			break;
		for (size_t i = 0; i < n; i++) {
			int heir = mover_heir(p->base, p->target, m->conf.self, &k[i]);

			if (heir < 0 || strcmp(p->base->members[heir].id, m->conf.self) == 0)
				continue;
			found++;
			if (fn && fn(p, &k[i], heir) < 0)
				return found;
		}
	} while (cursor);
	return found;
}

static int push_one(struct pass *p, const struct block_key *k, int heir)
{
	const struct member *to = &p->base->members[heir];
	struct peer *peer = peers_get(p->m->conf.peers, to->addr, to->port);

	return peer ? hand_out(p, k, peer, true, 0) : -ENOMEM;
}

static void pass_push(struct pass *p)
{
	const struct cluster *t = p->target;
	uint64_t n = pass_own(p, NULL);

	/* nobody to give anything to yet: who joins gets it from us, and then is active */
	if (t->active == 0 && t->serving > 0)
		pass_missed(p);
	mtx_lock(&p->m->lock);
	p->m->to_move += n;
	mtx_unlock(&p->m->lock);
	(void)pass_own(p, push_one);
}

/* true: all of it was done */
static bool pass_run(struct pass *p)
{
	struct mover *m = p->m;
	bool complete;

	mtx_lock(&m->lock);
	m->missed = m->refused = 0;
	m->moved = m->to_move = 0;
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
	unsigned passes;	    /* that were complete, but for blocks that were refused */
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

/* the pass counts: what it was meant for may happen */
static bool pass_counts(struct pass *p, struct course *c, bool complete, uint64_t began_us)
{
	struct mover *m = p->m;
	unsigned refused, missed;

	mtx_lock(&m->lock);
	refused = m->refused;
	missed = m->missed;
	mtx_unlock(&m->lock);
	if (!complete && !(missed && !(p->goal.tasks & MOVER_PUSH) && pass_holds(p) &&
			   clock_us() > c->began_us + GIVE_UP_US))
		return false;
	if (began_us < p->goal.since_us)
		return false;
	if (refused && ++c->passes < REFUSED_PASSES)
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
			(void)rest_locked(m, clock_us() + REST_US);
	}
	mtx_unlock(&m->lock);
	return NULL;
}

/* --- life --- */

int mover_new(const struct mover_conf *conf, struct mover **ret)
{
	struct mover *m = calloc(1, sizeof(*m));
	int r;

	if (!m)
		return -ENOMEM;
	m->conf = *conf;
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
	cluster_unref(m->base);
	cond_fini(&m->changed);
	mtx_fini(&m->lock);
	free(m);
}
