/* SPDX-License-Identifier: Apache-2.0 */
/* Two daemons that behave as told, an object store, and between them the layer that asks peers. */
#ifndef STOKE_TESTS_UNIT_BLOCK_GROUP_H
#define STOKE_TESTS_UNIT_BLOCK_GROUP_H

#include "tests/unit/block/behave.h"

#include "common/block/source_peer.h"

struct group {
	struct world w;
	struct daemon d[2]; /* members "a" and "b" */
	struct cluster_view view;
	struct cluster *c;
	struct loop *loop;
	struct peers *peers;
	struct diskq *disk;
	struct source *peer;
	struct waiter wt;
};

/* local: member "a" is reached through a unix socket, and is the only one */
static inline void group_start(struct group *g, enum source_peer_mode mode, const char *self,
			       bool local, size_t budget)
{
	struct member m[2] = {{.id = "a", .weight = 100, .state = MEMBER_ACTIVE},
			      {.id = "b", .weight = 100, .state = MEMBER_ACTIVE}};
	struct peers_conf pc = {
		.id = {.role = ROLE_MOUNT, .group = "g", .node = "m", .secret = &group_secret},
		.n_loops = 1};
	struct source_peer_conf sc = {.mode = mode, .self = self};

	memset(g, 0, sizeof(*g));
	world_init(&g->w, 0, CODEC_NONE, budget);
	waiter_init(&g->wt);
	for (unsigned i = 0; i < 2; i++) {
		daemon_start(&g->d[i], local && i == 0);
		m[i].port = g->d[i].port;
		snprintf(m[i].addr, sizeof(m[i].addr), "%s",
			 g->d[i].path[0] ? g->d[i].path : "127.0.0.1");
	}
	cluster_view_init(&g->view);
	g->c = cluster_new(1, m, local ? 1 : 2);
	assert_non_null(g->c);
	cluster_view_set(&g->view, cluster_ref(g->c));
	assert_int_equal(loop_new("peer", &g->loop), 0);
	pc.loops = &g->loop;
	pc.metrics = g->w.metrics;
	assert_int_equal(peers_new(&pc, &g->peers), 0);
	assert_int_equal(diskq_new("disk", 2, &g->disk), 0);
	sc.peers = g->peers;
	sc.view = &g->view;
	sc.disk = local ? g->disk : NULL;
	assert_int_equal(source_peer_new(&g->w.env, g->w.top, &sc, &g->peer), 0);
	g->w.top = g->peer;
	assert_int_equal(source_flight_new(&g->w.env, g->w.top, false, &g->w.flight), 0);
	g->w.top = g->w.flight;
}

static inline void group_stop(struct group *g)
{
	for (unsigned i = 0; i < 2; i++)
		daemon_stop(&g->d[i]);
	req_env_drain(&g->w.env);
	source_free(TAKE_PTR(g->w.top));
	peers_free(g->peers);
	assert_true(diskq_free(g->disk, UINT64_MAX));
	loop_free(g->loop);
	cluster_view_fini(&g->view);
	cluster_unref(g->c);
	waiter_fini(&g->wt);
	world_fini(&g->w);
}

/* the nth block whose owner is this member */
static inline struct block_key owned(const struct group *g, uint32_t member, unsigned n)
{
	for (uint64_t s = 1;; s++) {
		struct block_key k = key_of(s, 0);
		uint32_t f;

		if (cluster_find(g->c, &k, &f, 1) == 1 && f == member && n-- == 0)
			return k;
	}
}

/* one read from start to end; how long it took */
static inline uint64_t get(struct group *g, const struct block_key *k, uint32_t off, uint32_t len,
			   uint32_t flags, int status, enum req_via via)
{
	uint64_t start = clock_us(), us;
	struct read rd;

	read_go(&g->w, &g->wt, &rd, k, off, len, flags);
	waiter_wait(&g->wt);
	us = clock_us() - start;
	if (status == 0 && !(flags & (REQ_FILL | REQ_PROBE)))
		assert_int_equal(rd.req->via, via);
	read_check(&rd, status);
	return us;
}

static inline void wait_at_least(const unsigned *n, unsigned value)
{
	for (unsigned i = 0; i < 10000 && counted(n) < value; i++)
		usleep(1000);
	assert_true(counted(n) >= value);
}

static inline void wait_for(const unsigned *n, unsigned value)
{
	wait_at_least(n, value);
	assert_int_equal(counted(n), value);
}
static inline size_t pool_used(struct group *g)
{
	struct pool_stat st;

	pool_stat(g->w.pool, &st);
	return st.used;
}

static inline bool is_slow(struct group *g, unsigned i)
{
	struct peer_health h;

	peer_health(peers_get(g->peers, "127.0.0.1", g->d[i].port), &h);
	return h.slow;
}

static inline void see(struct group *g, enum member_state a, enum member_state b)
{
	struct member m[2] = {g->c->members[0], g->c->members[1]};
	struct cluster *c;

	m[0].state = a;
	m[1].state = b;
	c = a ? cluster_new(2, m, 2) : cluster_new(2, m + 1, 1);
	assert_non_null(c);
	cluster_view_set(&g->view, c);
}

#endif
