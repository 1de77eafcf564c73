/* SPDX-License-Identifier: Apache-2.0 */
/* Heartbeats, and the way through the group. One thread of its own, which alone touches everything
 * here but what is below `lock`.
 *
 *	joined		heartbeat every second; the snapshot moves with the ring version
 *	parted		Redis is away, or the volume is gone from it: the last snapshot stays in
 *			force; said once, and once when it is over
 *
 * What it is and what has to be copied first: mover.h. It is gone when it was asked to leave and
 * did, or is a consumer: then it only follows the group.
 *
 * The registry says what the member is; what is done here is to ask for the next step. */
#include "cached/member.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/thread.h"

enum {
	LEAVE_US = 2000000,
	/* by then everybody knows our last step: they look once a second */
	KNOWN_US = 1200000,
	STEPS = 8, /* tries of a step in which others were first; more are made a second later */
};

struct membership {
	struct member_conf conf;
	struct registry *registry;
	struct cluster *seen; /* what the registry last gave */
	struct generation generation;
	int parted;	    /* why, 0: not */
	struct member self; /* as it is registered */
	bool drain, gone;

	struct mover_goal goal;
	pthread_t thread;
	struct mtx lock;
	struct cond wake;
	bool stop GUARDED_BY(lock), kicked GUARDED_BY(lock);
};

static void note(struct membership *m, int r)
{
	if (r < 0 && m->conf.counters)
		metric_add(m->conf.counters->beats_failed, 1);
	if (r == m->parted)
		return;
	if (r == -ENOENT)
		log_warn("the volume is gone from Redis: the group stays as it was");
	else if (r < 0 && !m->parted)
		log_warn("Redis %s does not answer (%s): the group stays as it was",
			 redis_name(m->conf.redis), strerror(-r));
	else if (r == 0)
		log_info("Redis %s answers again", redis_name(m->conf.redis));
	m->parted = r;
}

/* --- talking to the registry --- */

static const char *state_name(enum member_state s)
{
	return s == MEMBER_JOINING ? "joining" : s == MEMBER_ACTIVE ? "active" : "draining";
}

/* the newest snapshot is in m->seen */
static void take_seen(struct membership *m, uint64_t before)
{
	int i;

	if (!m->seen || m->seen->version == before)
		return;
	cluster_view_set(m->conf.view, cluster_ref(m->seen));
	log_info("group %s: %zu member(s), ring version %llu", m->conf.group, m->seen->n,
		 (unsigned long long)m->seen->version);
	i = cluster_index(m->seen, m->conf.self.id);
	if (i < 0 || m->gone)
		return;
	if (m->seen->members[i].state != m->self.state)
		log_info("group %s: this member is %s now", m->conf.group,
			 state_name(m->seen->members[i].state));
	m->self = m->seen->members[i];
}

static int take_generation(struct membership *m, const struct generation *gen)
{
	if (memcmp(gen->b, m->generation.b, sizeof(gen->b)) != 0) {
		m->generation = *gen;
		m->conf.moved(m->conf.arg, gen);
	}
	return 0;
}

/* a heartbeat that says what is in self */
static int say(struct membership *m, uint64_t deadline_us, const struct member *self,
	       enum beat_kind kind)
{
	struct registry_beat b = {.self = self, .kind = kind};
	uint64_t before = m->seen ? m->seen->version : 0;
	struct generation gen = m->generation;
	int r;

	if (m->conf.slowed)
		b.slowed = m->conf.slowed(m->conf.arg);
	if (m->conf.mover && m->goal.tasks)
		mover_progress(m->conf.mover, &b.moved, &b.to_move);
	r = registry_heartbeat(m->registry, deadline_us, &b, &m->seen, &gen);
	if (r < 0)
		return r;
	m->drain = b.drain;
	if (m->conf.beaten)
		m->conf.beaten(m->conf.arg, &b);
	take_seen(m, before);
	return take_generation(m, &gen);
}

static int follow(struct membership *m, uint64_t deadline_us)
{
	uint64_t before = m->seen ? m->seen->version : 0;
	struct generation gen = m->generation;
	int r = m->registry ? registry_fetch(m->registry, deadline_us, &m->seen, &gen)
			    : volume_generation(m->conf.redis, deadline_us, false, &gen);

	if (r < 0)
		return r;
	take_seen(m, before);
	return take_generation(m, &gen);
}

static int beat(struct membership *m, uint64_t deadline_us)
{
	return m->gone ? follow(m, deadline_us) : say(m, deadline_us, &m->self, BEAT_AGAIN);
}

static int join(struct membership *m, uint64_t deadline_us)
{
	m->self = m->conf.self;
	m->self.state = m->conf.join_now ? MEMBER_ACTIVE : MEMBER_JOINING;
	return say(m, deadline_us, &m->self, m->conf.join_now ? BEAT_FORCED : BEAT_FIRST);
}

/* --- the way through the group --- */

static void choose_goal(struct membership *m)
{
	struct mover_goal g = {.tasks = 0};

	if (!m->gone)
		g = mover_choose(&m->self, m->conf.self.weight, m->drain);
	if (g.tasks != m->goal.tasks || g.weight != m->goal.weight || g.leave != m->goal.leave) {
		g.since_us = clock_us() + KNOWN_US;
		m->goal = g;
	}
	if (m->conf.mover)
		mover_set(m->conf.mover, &m->goal);
}

static bool goal_reached(struct membership *m)
{
	if (!m->goal.tasks)
		return false;
	return !m->conf.mover || mover_done(m->conf.mover, m->seen);
}

static int leave(struct membership *m, uint64_t deadline_us)
{
	uint64_t before = m->seen->version;
	int r = registry_leave(m->registry, deadline_us, m->self.id,
			       m->conf.mover ? mover_lost(m->conf.mover) : 0, &m->seen);

	if (r < 0)
		return r;
	m->gone = cluster_index(m->seen, m->self.id) < 0;
	__atomic_store_n(&m->conf.view->consumer, m->gone, __ATOMIC_RELAXED);
	take_seen(m, before);
	if (m->gone)
		log_info("group %s: this member has moved what it held and left; it goes on as a "
			 "consumer until it is stopped",
			 m->conf.group);
	return 0;
}

/* all was copied for it; in force only when nobody changed anything meanwhile */
static int next_state(struct membership *m, uint64_t deadline_us)
{
	struct member want;

	if (m->goal.leave)
		return leave(m, deadline_us);
	want = mover_next(&m->self, &m->goal);
	return say(m, deadline_us, &want, BEAT_IF_SAME);
}

static int steps(struct membership *m, uint64_t deadline_us)
{
	int r = 0;

	for (unsigned i = 0; r == 0 && i < STEPS && !m->gone; i++) {
		struct member want;

		if (mover_turn(&m->self, m->conf.self.weight, m->drain, &want)) {
			r = say(m, deadline_us, &want, BEAT_AGAIN);
			continue;
		}
		choose_goal(m);
		if (!goal_reached(m))
			return r;
		r = next_state(m, deadline_us);
	}
	if (r == 0)
		choose_goal(m);
	return r;
}

/* --- the thread --- */

/* false: it is time to end */
static bool rest(struct membership *m, uint64_t until_us)
{
	bool stop;

	mtx_lock(&m->lock);
	while (!m->stop && !m->kicked && clock_left(until_us))
		(void)cond_wait_us(&m->wake, &m->lock, clock_left(until_us));
	m->kicked = false;
	stop = m->stop;
	mtx_unlock(&m->lock);
	return !stop;
}

static void *member_thread(void *arg)
{
	struct membership *m = arg;
	uint64_t next = clock_us() + REGISTRY_HEARTBEAT_US;

	while (rest(m, next)) {
		/* A heartbeat has its own deadline: a hung Redis must not make them queue up. A
		 * late one may still count. */
		uint64_t deadline = clock_us() + REGISTRY_LAPSE_US / 2;
		bool due = clock_us() >= next;
		int r = beat(m, deadline);

		if (r == 0 && m->registry)
			r = steps(m, deadline);
		note(m, r);
		if (!due) /* woken: the next one is when it was */
			continue;
		m->conf.tick(m->conf.arg);
		next = MAX(next + REGISTRY_HEARTBEAT_US, clock_us() + REGISTRY_HEARTBEAT_US / 2);
	}
	return NULL;
}

static void membership_free(struct membership *m)
{
	registry_free(m->registry);
	cluster_unref(m->seen);
	cond_fini(&m->wake);
	mtx_fini(&m->lock);
	free(m);
}

int membership_start(const struct member_conf *conf, uint64_t deadline_us, struct membership **ret)
{
	struct membership *m = calloc(1, sizeof(*m));
	int r = 0;

	if (!m)
		return -ENOMEM;
	m->conf = *conf;
	m->generation = conf->generation;
	m->gone = conf->consumer || !conf->group;
	__atomic_store_n(&conf->view->consumer, m->gone, __ATOMIC_RELAXED);
	mtx_init(&m->lock);
	cond_init(&m->wake);
	if (conf->group)
		r = registry_new(conf->redis, conf->group, &m->registry);
	if (r == 0)
		r = m->gone ? follow(m, deadline_us) : join(m, deadline_us);
	if (r == 0)
		choose_goal(m);
	if (r == 0)
		r = thread_start("member", member_thread, m, &m->thread);
	if (r < 0) {
		membership_free(m);
		return r;
	}
	*ret = m;
	return 0;
}

void membership_wake(struct membership *m)
{
	mtx_lock(&m->lock);
	m->kicked = true;
	cond_signal(&m->wake);
	mtx_unlock(&m->lock);
}

static void membership_join_thread(struct membership *m)
{
	mtx_lock(&m->lock);
	m->stop = true;
	cond_signal(&m->wake);
	mtx_unlock(&m->lock);
	(void)pthread_join(m->thread, NULL);
}

void membership_hand_over(struct membership *m)
{
	if (!m)
		return;
	membership_join_thread(m);
	membership_free(m);
}

void membership_stop(struct membership *m)
{
	if (!m)
		return;
	membership_join_thread(m);
	if (m->registry && !m->gone &&
	    registry_leave(m->registry, clock_us() + LEAVE_US, m->conf.self.id, 0, NULL) < 0)
		log_warn("could not leave the group: the others notice within seconds");
	membership_free(m);
}
