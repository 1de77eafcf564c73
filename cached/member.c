/* SPDX-License-Identifier: Apache-2.0 */
/* Heartbeats. One thread of its own, which alone touches everything here but `stop`.
 *
 *	joined		heartbeat every second; the snapshot moves with the ring version
 *	parted		Redis is away, or the volume is gone from it: the last snapshot stays in
 *			force; said once, and once when it is over
 */
#include "cached/member.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/thread.h"

enum { LEAVE_US = 2000000 };

struct membership {
	struct member_conf conf;
	struct registry *registry;
	struct cluster *seen; /* what the registry last gave */
	struct generation generation;
	int parted; /* why, 0: not */
	pthread_t thread;
	struct mtx lock;
	struct cond wake;
	bool stop GUARDED_BY(lock);
};

static void note(struct membership *m, int r)
{
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

static int beat(struct membership *m, uint64_t deadline_us)
{
	struct registry_beat b = {.self = &m->conf.self, .kind = BEAT_FORCED};
	uint64_t before = m->seen ? m->seen->version : 0;
	struct generation gen = m->generation;
	int r;

	if (m->registry)
		r = registry_heartbeat(m->registry, deadline_us, &b, &m->seen, &gen);
	else
		r = volume_generation(m->conf.redis, deadline_us, false, &gen);
	if (r < 0)
		return r;
	if (m->seen && m->seen->version != before) {
		cluster_view_set(m->conf.view, cluster_ref(m->seen));
		log_info("group %s: %zu member(s), ring version %llu", m->conf.group, m->seen->n,
			 (unsigned long long)m->seen->version);
	}
	if (memcmp(gen.b, m->generation.b, sizeof(gen.b)) != 0) {
		m->generation = gen;
		m->conf.moved(m->conf.arg, &gen);
	}
	return 0;
}

/* false: it is time to end */
static bool rest(struct membership *m, uint64_t until_us)
{
	bool stop;

	mtx_lock(&m->lock);
	while (!m->stop && clock_left(until_us))
		(void)cond_wait_us(&m->wake, &m->lock, clock_left(until_us));
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
		note(m, beat(m, clock_us() + REGISTRY_LAPSE_US / 2));
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
	mtx_init(&m->lock);
	cond_init(&m->wake);
	if (conf->group)
		r = registry_new(conf->redis, conf->group, &m->registry);
	if (r == 0)
		r = beat(m, deadline_us);
	if (r == 0)
		r = thread_start("member", member_thread, m, &m->thread);
	if (r < 0) {
		membership_free(m);
		return r;
	}
	*ret = m;
	return 0;
}

void membership_stop(struct membership *m)
{
	if (!m)
		return;
	mtx_lock(&m->lock);
	m->stop = true;
	cond_signal(&m->wake);
	mtx_unlock(&m->lock);
	(void)pthread_join(m->thread, NULL);
	if (m->registry &&
	    registry_leave(m->registry, clock_us() + LEAVE_US, m->conf.self.id, NULL) < 0)
		log_warn("could not leave the group: the others notice within seconds");
	membership_free(m);
}
