/* SPDX-License-Identifier: Apache-2.0 */
/* The layer that asks peers, over real sockets: daemons here are threads that answer from the
 * blocks' pattern and misbehave as told. */
#include "tests/unit/block/behave.h"

#include "common/block/source_peer.h"

/* --- two daemons, an object store, and the layer between --- */

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
static void group_start(struct group *g, enum source_peer_mode mode, const char *self, bool local,
			size_t budget)
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

static void group_stop(struct group *g)
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
static struct block_key owned(const struct group *g, uint32_t member, unsigned n)
{
	for (uint64_t s = 1;; s++) {
		struct block_key k = key_of(s, 0);
		uint32_t f;

		if (cluster_find(g->c, &k, &f, 1) == 1 && f == member && n-- == 0)
			return k;
	}
}

/* one read from start to end; how long it took */
static uint64_t get(struct group *g, const struct block_key *k, uint32_t off, uint32_t len,
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

static void wait_at_least(const unsigned *n, unsigned value)
{
	for (unsigned i = 0; i < 10000 && counted(n) < value; i++)
		usleep(1000);
	assert_true(counted(n) >= value);
}

static void wait_for(const unsigned *n, unsigned value)
{
	wait_at_least(n, value);
	assert_int_equal(counted(n), value);
}

/* --- tests --- */

static void owner_answers_ranges_and_whole_blocks(void **state)
{
	static const uint32_t range[][2] = {
		{0, BLOCK},	{0, 1},	     {BLOCK - 1, 1},	     {32767, 2},
		{32768, 32768}, {5, 100000}, {BLOCK - 40000, 40000}, {65536, 1},
	};
	struct group g;
	struct read rd;
	struct block_key k, odd;

	(void)state;
	group_start(&g, PEER_OWNER, NULL, false, 16 * MIB);
	for (uint32_t m = 0; m < 2; m++) {
		k = owned(&g, m, 0);
		for (unsigned i = 0; i < ARRAY_LEN(range); i++)
			get(&g, &k, range[i][0], range[i][1], 0, 0, VIA_PEER);
	}
	/* on a busy machine one may have been hedged */
	assert_in_range(counted(&g.d[0].gets), ARRAY_LEN(range), ARRAY_LEN(range) + 4);
	assert_in_range(counted(&g.d[1].gets), ARRAY_LEN(range), ARRAY_LEN(range) + 4);
	/* a whole block brings its checksums */
	read_go(&g.w, &g.wt, &rd, &k, 0, BLOCK, 0);
	waiter_wait(&g.wt);
	assert_int_equal(rd.req->sums.len, msg_sums_len(BLOCK));
	assert_int_equal(block_sums_check(&k, 0, blob_mem(&rd.req->data), BLOCK,
					  blob_mem(&rd.req->sums), NULL),
			 0);
	read_check(&rd, 0);
	/* a block that does not end with a whole piece */
	block_key_init(&odd, &k.volume, 99, 3, 70001);
	get(&g, &odd, 0, 70001, 0, 0, VIA_PEER);
	get(&g, &odd, 70000, 1, 0, 0, VIA_PEER);
	get(&g, &odd, 32768, 37233, 0, 0, VIA_PEER);
	assert_int_equal(mem_gets(&g.w.store), 0);
	group_stop(&g);
}

static void owner_refuses_then_successor_then_store(void **state)
{
	struct group g;
	struct block_key k;

	(void)state;
	group_start(&g, PEER_OWNER, NULL, false, 16 * MIB);
	k = owned(&g, 0, 0);
	behave(&g.d[0], BUSY);
	get(&g, &k, 0, BLOCK, 0, 0, VIA_PEER);
	assert_int_equal(counted(&g.d[1].gets), 1);
	daemon_stop(&g.d[0]);
	for (unsigned i = 0; i < 5; i++)
		assert_true(get(&g, &k, 0, BLOCK, 0, 0, VIA_PEER) < 500000);
	assert_int_equal(counted(&g.d[1].gets), 6);
	daemon_stop(&g.d[1]);
	for (unsigned i = 0; i < 5; i++)
		assert_true(get(&g, &k, 100, 1000, 0, 0, VIA_OBJECT) < 500000);
	assert_int_equal(mem_gets(&g.w.store), 5);
	group_stop(&g);
}

/* A hot block's owner sends its readers on. When nobody else has the block he is asked once more,
 * before the object store is. */
static void who_is_busy_is_asked_again_before_the_store(void **state)
{
	struct group g;
	struct block_key k;

	(void)state;
	group_start(&g, PEER_OWNER, NULL, false, 16 * MIB);
	k = owned(&g, 0, 0);
	behave(&g.d[0], BUSY);
	daemon_stop(&g.d[1]);
	get(&g, &k, 0, BLOCK, 0, 0, VIA_PEER);
	assert_int_equal(counted(&g.d[0].gets), 2);
	assert_int_equal(counted(&g.d[0].no_fills), 1);
	assert_int_equal(mem_gets(&g.w.store), 0);
	assert_int_equal(counter(&g.w, "stoke_peer_busy_total", ""), 1);
	/* he has it no more: then the store, and nobody a third time */
	behave(&g.d[0], NOT_HERE);
	get(&g, &k, 0, BLOCK, 0, 0, VIA_OBJECT);
	assert_int_equal(counted(&g.d[0].gets), 3);
	group_stop(&g);
}

static void owner_hangs_and_costs_one_hedge_G01_G02(void **state)
{
	struct group g;
	struct block_key k;
	struct peer_health h;
	struct peer *p;
	unsigned before;
	uint64_t us;

	(void)state;
	group_start(&g, PEER_OWNER, NULL, false, 32 * MIB);
	k = owned(&g, 0, 0);
	get(&g, &k, 0, BLOCK, 0, 0, VIA_PEER);
	before = counted(&g.d[1].gets);
	behave(&g.d[0], HANG);
	us = get(&g, &k, 0, BLOCK, 0, 0, VIA_PEER);
	assert_true(us >= 50000 && us < 600000);
	assert_int_equal(counted(&g.d[1].gets), before + 1);
	p = peers_get(g.peers, "127.0.0.1", g.d[0].port);
	peer_health(p, &h);
	assert_true(h.slow);
	/* and then none: the successor is asked first */
	for (unsigned i = 0; i < 10; i++)
		assert_true(get(&g, &k, 0, BLOCK, 0, 0, VIA_PEER) < 500000);
	assert_int_equal(counted(&g.d[0].gets), 2);
	behave(&g.d[0], SERVE);
	for (unsigned i = 0; i < 10000 && h.slow; i++) {
		usleep(1000);
		peer_health(p, &h);
	}
	assert_false(h.slow);
	get(&g, &k, 0, BLOCK, 0, 0, VIA_PEER);
	assert_int_equal(counted(&g.d[0].gets), 3);
	assert_int_equal(mem_gets(&g.w.store), 0);
	group_stop(&g);
}

/* nothing of what is sent to the owner's port arrives: its queue of connections is full, which on
 * loopback is what a firewall does elsewhere */
static void what_is_sent_to_the_owner_is_dropped_G04(void **state)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	struct member m[2] = {{.id = "a", .weight = 100, .state = MEMBER_ACTIVE},
			      {.id = "b", .weight = 100, .state = MEMBER_ACTIVE}};
	int lfd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fd[4];
	socklen_t len = sizeof(a);
	struct group g;
	struct block_key k;

	(void)state;
	group_start(&g, PEER_OWNER, NULL, false, 16 * MIB);
	assert_int_equal(bind(lfd, (struct sockaddr *)&a, len), 0);
	assert_int_equal(listen(lfd, 0), 0);
	assert_int_equal(getsockname(lfd, (struct sockaddr *)&a, &len), 0);
	for (unsigned i = 0; i < ARRAY_LEN(fd); i++) {
		fd[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		(void)connect(fd[i], (struct sockaddr *)&a, len);
	}
	for (unsigned i = 0; i < 2; i++)
		snprintf(m[i].addr, sizeof(m[i].addr), "127.0.0.1");
	m[0].port = ntohs(a.sin_port);
	m[1].port = g.d[1].port;
	cluster_view_set(&g.view, cluster_new(2, m, 2));
	k = owned(&g, 0, 0);
	assert_true(get(&g, &k, 0, BLOCK, 0, 0, VIA_PEER) < 700000);
	assert_int_equal(counter(&g.w, "stoke_hedges_total", ""), 1);
	assert_int_equal(counter(&g.w, "stoke_peer_slow_total", ""), 1);
	for (unsigned i = 0; i < 5; i++)
		assert_true(get(&g, &k, 0, BLOCK, 0, 0, VIA_PEER) < 240000);
	assert_int_equal(mem_gets(&g.w.store), 0);
	for (unsigned i = 0; i < ARRAY_LEN(fd); i++)
		close(fd[i]);
	close(lfd);
	group_stop(&g);
}

static void both_hang_and_the_store_answers(void **state)
{
	struct group g;
	struct block_key k;

	(void)state;
	group_start(&g, PEER_OWNER, NULL, false, 32 * MIB);
	k = owned(&g, 1, 0);
	behave(&g.d[0], HANG);
	behave(&g.d[1], HANG);
	assert_true(get(&g, &k, 0, BLOCK, 0, 0, VIA_OBJECT) < 2500000);
	assert_int_equal(mem_gets(&g.w.store), 1);
	group_stop(&g);
}

static void nobody_hedges_after_filling(void **state)
{
	struct group g;
	struct block_key k;
	uint64_t us = 0;

	(void)state;
	group_start(&g, PEER_OWNER, NULL, false, 16 * MIB);
	k = owned(&g, 0, 0);
	behave(&g.d[0], FILL_SLOWLY);
	/* on a busy machine FILLING itself may come later than the hedge, but not every time */
	for (unsigned i = 0; i < 5; i++) {
		unsigned before = counted(&g.d[1].gets);

		us = get(&g, &k, 0, BLOCK, 0, 0, VIA_PEER);
		if (counted(&g.d[1].gets) == before)
			break;
		us = 0;
	}
	assert_true(us >= 700000);
	group_stop(&g);
}

static void damaged_answers_are_never_delivered_B01_B02_B09(void **state)
{
	static const enum behaviour how[] = {DAMAGE, OTHER_BLOCK};
	struct group g;
	struct block_key k;

	(void)state;
	for (unsigned i = 0; i < ARRAY_LEN(how); i++) {
		group_start(&g, PEER_OWNER, NULL, false, 16 * MIB);
		k = owned(&g, 0, 0);
		behave(&g.d[0], how[i]);
		get(&g, &k, 0, BLOCK, 0, 0, VIA_PEER);
		get(&g, &k, BLOCK - 10, 10, 0, 0, VIA_PEER);
		wait_for(&g.d[0].bads, 2);
		assert_int_equal(counted(&g.d[1].gets), 2);
		behave(&g.d[1], how[i]);
		get(&g, &k, 0, BLOCK, 0, 0, VIA_OBJECT);
		wait_for(&g.d[1].bads, 1);
		group_stop(&g);
	}
}

static void final_verdicts_are_final(void **state)
{
	static const struct {
		enum behaviour how;
		int status;
	} v[] = {{NO_OBJECT, -ENODATA}, {FORBIDDEN, -EACCES}, {STORE_ERROR, -EIO}};
	struct group g;
	struct read rd;
	struct block_key k;

	(void)state;
	group_start(&g, PEER_OWNER, NULL, false, 16 * MIB);
	k = owned(&g, 0, 0);
	for (unsigned i = 0; i < ARRAY_LEN(v); i++) {
		behave(&g.d[0], v[i].how);
		behave(&g.d[1], v[i].how); /* on a busy machine it may be asked, too */
		read_go(&g.w, &g.wt, &rd, &k, 0, BLOCK, 0);
		waiter_wait(&g.wt);
		assert_string_equal(rd.req->reason, "vol/chunks/1: it is so");
		read_check(&rd, v[i].status);
	}
	assert_true(counted(&g.d[1].gets) < ARRAY_LEN(v));
	assert_int_equal(mem_gets(&g.w.store), 0);
	group_stop(&g);
}

static void fill_probe_and_drop(void **state)
{
	struct group g;
	struct block_key k;
	struct read rd;

	(void)state;
	group_start(&g, PEER_OWNER, NULL, false, 16 * MIB);
	k = owned(&g, 1, 0);
	get(&g, &k, 0, BLOCK, REQ_FILL, 0, VIA_NONE);
	assert_int_equal(counted(&g.d[1].fills), 1);
	get(&g, &k, 0, BLOCK, REQ_PROBE, 0, VIA_NONE);
	behave(&g.d[1], NOT_HERE);
	get(&g, &k, 0, BLOCK, REQ_PROBE, -ENOENT, VIA_NONE);
	assert_int_equal(counted(&g.d[1].stats), 2);
	assert_int_equal(counted(&g.d[0].stats), 0);
	behave(&g.d[1], BUSY);
	get(&g, &k, 0, BLOCK, REQ_FILL, 0, VIA_NONE);
	assert_int_equal(counted(&g.d[0].fills), 1);
	behave(&g.d[1], NO_OBJECT);

	read_start(&g.w, &g.wt, &rd, &k, 0, BLOCK, 0);
	source_drop(g.w.top, rd.req, read_done, &rd);
	waiter_wait(&g.wt);
	assert_int_equal(rd.status, 0);
	req_free(rd.req);
	assert_int_equal(counted(&g.d[0].drops), 1);
	assert_int_equal(counted(&g.d[1].drops), 1);

	daemon_stop(&g.d[0]);
	daemon_stop(&g.d[1]);
	read_start(&g.w, &g.wt, &rd, &k, 0, BLOCK, 0);
	source_drop(g.w.top, rd.req, read_done, &rd);
	waiter_wait(&g.wt);
	assert_true(rd.status < 0);
	req_free(rd.req);
	assert_int_equal(mem_gets(&g.w.store), 0);
	group_stop(&g);
}

/* warm-up shows it to people, and a check must not take it for a block that is not there */
static void fill_and_probe_without_an_owner_tell_why(void **state)
{
	static const uint32_t flag[] = {REQ_FILL, REQ_PROBE};
	struct group g;
	struct block_key k;
	struct read rd;

	(void)state;
	group_start(&g, PEER_OWNER, NULL, false, 16 * MIB);
	k = owned(&g, 0, 0);
	behave(&g.d[0], BUSY);
	behave(&g.d[1], BUSY);
	read_go(&g.w, &g.wt, &rd, &k, 0, BLOCK, REQ_FILL);
	waiter_wait(&g.wt);
	assert_non_null(strstr(rd.req->reason, "127.0.0.1:"));
	read_check(&rd, -EBUSY);
	daemon_stop(&g.d[0]);
	daemon_stop(&g.d[1]);
	for (unsigned i = 0; i < 2 * ARRAY_LEN(flag); i++) {
		read_go(&g.w, &g.wt, &rd, &k, 0, BLOCK, flag[i % 2]);
		waiter_wait(&g.wt);
		assert_non_null(strstr(rd.req->reason, "no daemon could be reached: 127.0.0.1:"));
		read_check(&rd, -EHOSTDOWN);
	}
	cluster_view_set(&g.view, NULL);
	read_go(&g.w, &g.wt, &rd, &k, 0, BLOCK, REQ_FILL);
	waiter_wait(&g.wt);
	assert_non_null(strstr(rd.req->reason, "no daemon could be reached"));
	read_check(&rd, -EHOSTDOWN);
	group_stop(&g);
}

static size_t pool_used(struct group *g)
{
	struct pool_stat st;

	pool_stat(g->w.pool, &st);
	return st.used;
}

/* his answer would come for seconds or minutes yet */
static void the_loser_of_a_hedge_gives_its_memory_back_at_once(void **state)
{
	static const enum behaviour how[] = {HANG, FILL_FOR_EVER};
	struct group g;
	struct block_key k;
	uint64_t start;

	(void)state;
	for (unsigned i = 0; i < ARRAY_LEN(how); i++) {
		group_start(&g, PEER_OWNER, NULL, false, 32 * MIB);
		k = owned(&g, 0, 0);
		behave(&g.d[0], how[i]);
		get(&g, &k, 0, BLOCK, 0, 0, VIA_PEER);
		assert_int_equal(counted(&g.d[0].gets), 1);
		assert_int_equal(counted(&g.d[1].gets), 1);
		start = clock_us();
		req_env_drain(&g.w.env);
		assert_true(clock_us() - start < 1000000);
		assert_int_equal(pool_used(&g), 0);
		/* its connection is in step all the same */
		behave(&g.d[0], SERVE);
		for (unsigned n = 0; n < 5; n++)
			get(&g, &k, 0, BLOCK, 0, 0, VIA_PEER);
		group_stop(&g);
	}
}

static void fill_leaves_an_owner_that_hangs(void **state)
{
	struct group g;
	struct block_key k;

	(void)state;
	group_start(&g, PEER_OWNER, NULL, false, 16 * MIB);
	k = owned(&g, 0, 0);
	behave(&g.d[0], HANG);
	assert_true(get(&g, &k, 0, BLOCK, REQ_FILL, 0, VIA_NONE) < 6000000);
	assert_int_equal(counted(&g.d[1].fills), 1);
	group_stop(&g);
}

static void no_fill_asks_nobody(void **state)
{
	struct group g;
	struct block_key k;

	(void)state;
	group_start(&g, PEER_OWNER, NULL, false, 16 * MIB);
	k = owned(&g, 0, 0);
	get(&g, &k, 0, BLOCK, REQ_NO_FILL, -ENOENT, VIA_NONE);
	assert_int_equal(counted(&g.d[0].gets) + counted(&g.d[1].gets), 0);
	group_stop(&g);
}

static void without_memory_for_a_fork_the_request_goes_on(void **state)
{
	struct group g;
	struct block_key k;
	size_t need, held = 0;
	struct read rd;

	(void)state;
	group_start(&g, PEER_OWNER, NULL, false, 5 * (BLOCK + 8192));
	k = owned(&g, 0, 0);
	for (unsigned round = 0; round < 5; round++) {
		read_start(&g.w, &g.wt, &rd, &k, 0, BLOCK, 0);
		need = req_need(rd.req);
		assert_int_equal(pool_reserve(g.w.pool, POOL_DEMAND, need, NULL), 0);
		rd.req->reserved = need;
		while (pool_reserve(g.w.pool, POOL_DEMAND, 4096, NULL) == 0)
			held += 4096;
		behave(&g.d[0], round == 0 ? SERVE : round == 1 ? DAMAGE : HANG);
		behave(&g.d[1], round < 3 ? SERVE : round == 3 ? NOT_HERE : BUSY);
		source_get(g.peer, rd.req, read_done, &rd);
		waiter_wait(&g.wt);
		assert_int_equal(rd.req->via, round == 3 ? VIA_OBJECT : VIA_PEER);
		read_check(&rd, 0);
		pool_unreserve(g.w.pool, POOL_DEMAND, held);
		held = 0;
	}
	group_stop(&g);
}

static bool is_slow(struct group *g, unsigned i)
{
	struct peer_health h;

	peer_health(peers_get(g->peers, "127.0.0.1", g->d[i].port), &h);
	return h.slow;
}

static void see(struct group *g, enum member_state a, enum member_state b)
{
	struct member m[2] = {g->c->members[0], g->c->members[1]};
	struct cluster *c;

	m[0].state = a;
	m[1].state = b;
	c = a ? cluster_new(2, m, 2) : cluster_new(2, m + 1, 1);
	assert_non_null(c);
	cluster_view_set(&g->view, c);
}

static void the_others_on_the_path_are_asked(void **state)
{
	struct group g;
	struct block_key mine, his;

	(void)state;
	group_start(&g, PEER_HOLDER, "a", false, 16 * MIB);
	mine = owned(&g, 0, 0);
	his = owned(&g, 1, 0);
	/* new here: who had it before me is behind me */
	see(&g, MEMBER_JOINING, MEMBER_ACTIVE);
	get(&g, &mine, 0, BLOCK, 0, 0, VIA_PEER);
	assert_int_equal(counted(&g.d[1].no_fills), 1);
	/* he goes, and what was his is mine */
	see(&g, MEMBER_ACTIVE, MEMBER_DRAINING);
	get(&g, &his, 0, BLOCK, 0, 0, VIA_PEER);
	assert_int_equal(counted(&g.d[1].no_fills), 2);
	/* what is behind me I have */
	get(&g, &mine, 0, BLOCK, 0, 0, VIA_OBJECT);
	assert_int_equal(counted(&g.d[1].gets), 2);
	/* no member any more: he is to get it, unless a member asks me */
	see(&g, 0, MEMBER_ACTIVE);
	get(&g, &mine, 0, BLOCK, 0, 0, VIA_PEER);
	assert_int_equal(counted(&g.d[1].no_fills), 3); /* a lapse */
	g.view.consumer = true;
	get(&g, &mine, 0, BLOCK, 0, 0, VIA_PEER);
	assert_int_equal(counted(&g.d[1].gets), 4);
	assert_int_equal(counted(&g.d[1].no_fills), 3);
	get(&g, &mine, 0, BLOCK, REQ_MEMBER, 0, VIA_PEER);
	assert_int_equal(counted(&g.d[1].no_fills), 4);
	group_stop(&g);
}

static void holder_is_asked_without_filling_G12(void **state)
{
	struct group g;
	struct block_key mine, his;

	(void)state;
	group_start(&g, PEER_HOLDER, "a", false, 16 * MIB);
	mine = owned(&g, 0, 0);
	his = owned(&g, 1, 0);
	/* who holds it by the ring is me: nobody to ask */
	get(&g, &mine, 0, BLOCK, 0, 0, VIA_OBJECT);
	assert_int_equal(counted(&g.d[0].gets) + counted(&g.d[1].gets), 0);
	/* I am only the successor: the owner is asked */
	get(&g, &his, 0, BLOCK, 0, 0, VIA_PEER);
	assert_int_equal(counted(&g.d[1].no_fills), 1);
	behave(&g.d[1], NOT_HERE);
	get(&g, &his, 0, BLOCK, 0, 0, VIA_OBJECT);
	behave(&g.d[1], NO_OBJECT); /* his verdict is not mine */
	get(&g, &his, 0, BLOCK, 0, 0, VIA_OBJECT);
	assert_int_equal(counted(&g.d[1].no_fills), counted(&g.d[1].gets));
	/* he is getting it himself: it comes */
	behave(&g.d[1], FILL_SLOWLY);
	assert_true(get(&g, &his, 0, BLOCK, 0, 0, VIA_PEER) >= 700000);
	/* and if he dies of it, that costs little */
	behave(&g.d[1], FILL_FOR_EVER);
	assert_true(get(&g, &his, 0, BLOCK, 0, 0, VIA_OBJECT) < 3500000);
	behave(&g.d[1], SERVE);
	for (unsigned i = 0; i < 10000 && is_slow(&g, 1); i++)
		usleep(1000);
	/* a filling daemon waits 300 ms for him, once */
	behave(&g.d[1], HANG);
	assert_true(get(&g, &his, 0, BLOCK, 0, 0, VIA_OBJECT) < 800000);
	for (unsigned i = 0; i < 5; i++)
		assert_true(get(&g, &his, 0, BLOCK, 0, 0, VIA_OBJECT) < 280000);
	get(&g, &his, 0, BLOCK, REQ_NO_FILL, -ENOENT, VIA_NONE);
	assert_int_equal(counted(&g.d[0].gets), 0);
	group_stop(&g);
}

/* who is asked for what everybody wants may be slow; the object store is asked when he is dead */
static void a_holder_that_lives_is_waited_for(void **state)
{
	struct group g;
	struct block_key k;
	uint64_t us;

	(void)state;
	group_start(&g, PEER_HOLDER, "b", false, 16 * MIB);
	k = owned(&g, 0, 0);
	behave(&g.d[0], SLOW);
	us = get(&g, &k, 0, BLOCK, 0, 0, VIA_PEER);
	assert_true(us >= 650000);
	assert_int_equal(mem_gets(&g.w.store), 0);
	behave(&g.d[0], HANG);
	us = get(&g, &k, 0, BLOCK, 0, 0, VIA_OBJECT);
	assert_in_range(us, 280000, 650000);
	group_stop(&g);
}

static void descriptors_serve_without_the_daemon(void **state)
{
	struct group g;
	struct block_key k;

	(void)state;
	group_start(&g, PEER_OWNER, "a", true, 16 * MIB);
	k = key_of(5, 0);
	behave(&g.d[0], PASS_FD);
	get(&g, &k, 0, BLOCK, 0, 0, VIA_LOCAL);
	for (unsigned i = 0; i < 20; i++)
		get(&g, &k, i * 10000, 20000, 0, 0, VIA_LOCAL);
	assert_int_equal(counted(&g.d[0].gets), 1);
	/* a daemon that has it only in memory sends the bytes */
	k = key_of(6, 0);
	behave(&g.d[0], SERVE);
	get(&g, &k, 3, 20000, 0, 0, VIA_LOCAL);
	/* the daemon is gone: what was passed still serves */
	daemon_stop(&g.d[0]);
	k = key_of(5, 0);
	get(&g, &k, 0, BLOCK, 0, 0, VIA_LOCAL);
	k = key_of(7, 0);
	get(&g, &k, 0, BLOCK, 0, 0, VIA_OBJECT);
	group_stop(&g);
}

static void damaged_files_are_reported_and_not_kept_B03(void **state)
{
	struct group g;
	struct block_key k = key_of(5, 0);

	(void)state;
	group_start(&g, PEER_OWNER, "a", true, 16 * MIB);
	behave(&g.d[0], PASS_BAD_FD);
	get(&g, &k, 0, BLOCK, 0, 0, VIA_OBJECT);
	wait_for(&g.d[0].bads, 1);
	wait_for(&g.d[0].closeds, 1);
	behave(&g.d[0], PASS_SHORT_FD);
	get(&g, &k, 0, BLOCK, 0, 0, VIA_OBJECT);
	wait_for(&g.d[0].bads, 2);
	wait_for(&g.d[0].closeds, 2);
	behave(&g.d[0], PASS_FD);
	get(&g, &k, 0, BLOCK, 0, 0, VIA_LOCAL);
	assert_int_equal(counted(&g.d[0].gets), 3);
	group_stop(&g);
}

static void descriptors_are_bounded_and_closed_ones_told(void **state)
{
	struct fd_cache *c;
	struct group g;
	struct peer *p;
	struct block_key k;
	struct fd_entry *e, *again;

	(void)state;
	group_start(&g, PEER_OWNER, "a", true, 16 * MIB);
	p = peers_get(g.peers, g.d[0].path, 0);
	assert_int_equal(fd_cache_new(4, UINT64_MAX, NULL, NULL, &c), 0);
	for (uint64_t s = 1; s <= 10; s++) {
		k = key_of(s, 0);
		e = fd_cache_add(c, &k, open("/dev/null", O_RDONLY), p, true);
		assert_non_null(e);
		fd_entry_unref(e);
	}
	wait_for(&g.d[0].closeds, 6);
	k = key_of(6, 0);
	assert_null(fd_cache_find(c, &k));
	k = key_of(7, 0);
	e = fd_cache_find(c, &k);
	assert_non_null(e);
	/* a second descriptor of one block is closed at once */
	again = fd_cache_add(c, &k, open("/dev/null", O_RDONLY), p, true);
	assert_ptr_equal(again, e);
	fd_entry_unref(again);
	wait_for(&g.d[0].closeds, 7);
	/* in use: dropped, but open until it is given back */
	fd_cache_drop(c, &k);
	assert_null(fd_cache_find(c, &k));
	assert_true(fcntl(fd_entry_fd(e), F_GETFD) >= 0);
	fd_entry_unref(e);
	wait_for(&g.d[0].closeds, 8);
	fd_cache_free(c);
	wait_for(&g.d[0].closeds, 11);
	group_stop(&g);
}

static int some_file(bool removed)
{
	char path[] = "/tmp/stoke-fd-XXXXXX";
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	if (removed)
		assert_int_equal(unlink(path), 0);
	return fd;
}

static void add_fd(struct group *g, struct fd_cache *c, uint64_t slice, int fd)
{
	struct block_key k = key_of(slice, 0);
	struct peer *p = peers_get(g->peers, g->d[0].path, 0);
	struct fd_entry *e = fd_cache_add(c, &k, fd, p, true);

	assert_non_null(e);
	fd_entry_unref(e);
}

/* a file that the daemon removed takes its disk's space until it is closed */
static void descriptors_of_removed_files_are_closed_soon(void **state)
{
	struct block_key k = key_of(1, 0);
	struct fd_cache *c;
	struct group g;
	struct fd_entry *e;

	(void)state;
	group_start(&g, PEER_OWNER, "a", true, 16 * MIB);
	/* when it is used, which it may be once more */
	assert_int_equal(fd_cache_new(100, UINT64_MAX, NULL, NULL, &c), 0);
	add_fd(&g, c, 1, some_file(true));
	e = fd_cache_find(c, &k);
	assert_non_null(e);
	assert_null(fd_cache_find(c, &k));
	assert_true(fcntl(fd_entry_fd(e), F_GETFD) >= 0);
	fd_entry_unref(e);
	wait_for(&g.d[0].closeds, 1);
	fd_cache_free(c);
	/* and when nobody uses it; others stay */
	assert_int_equal(fd_cache_new(100, UINT64_MAX, g.loop, NULL, &c), 0);
	for (uint64_t s = 1; s <= 60; s++)
		add_fd(&g, c, s, s == 7 ? open("/dev/null", O_RDONLY) : some_file(true));
	wait_for(&g.d[0].closeds, 60);
	k = key_of(7, 0);
	e = fd_cache_find(c, &k);
	assert_non_null(e);
	fd_entry_unref(e);
	fd_cache_free(c);
	wait_for(&g.d[0].closeds, 61);
	group_stop(&g);
}

static void descriptors_are_bounded_by_their_blocks_bytes(void **state)
{
	struct fd_cache *c;
	struct group g;

	(void)state;
	group_start(&g, PEER_OWNER, "a", true, 16 * MIB);
	assert_int_equal(fd_cache_new(100, 3 * (uint64_t)BLOCK + 1, NULL, NULL, &c), 0);
	for (uint64_t s = 1; s <= 10; s++)
		add_fd(&g, c, s, open("/dev/null", O_RDONLY));
	wait_for(&g.d[0].closeds, 7);
	fd_cache_free(c);
	wait_for(&g.d[0].closeds, 10);
	group_stop(&g);
}

/* one of many: reads one block after the other */
struct reader {
	struct group *g;
	unsigned nr;
	pthread_t thread;
};

enum { READERS = 16, BLOCKS = 40 };

static void *reader_thread(void *arg)
{
	struct reader *r = arg;
	struct waiter wt;

	waiter_init(&wt);
	for (unsigned i = 0; i < BLOCKS; i++) {
		struct block_key k = key_of(1 + (i * 7 + r->nr / 2) % BLOCKS, 0);
		struct read rd;

		read_go(&r->g->w, &wt, &rd, &k, r->nr % 2 ? 1000 : 0, r->nr % 2 ? 50000 : BLOCK, 0);
		waiter_wait(&wt);
		read_check(&rd, 0);
	}
	waiter_fini(&wt);
	return NULL;
}

/* with memory for everybody, and with the least there may be */
static void many_readers_while_a_daemon_dies_G03(void **state)
{
	static const size_t budget[] = {32 * MIB, 4 * (BLOCK + 8192)};
	struct reader r[READERS];
	struct group g;

	(void)state;
	for (unsigned b = 0; b < ARRAY_LEN(budget); b++) {
		group_start(&g, PEER_OWNER, NULL, false, budget[b]);
		for (unsigned i = 0; i < READERS; i++) {
			r[i] = (struct reader){.g = &g, .nr = i};
			assert_int_equal(pthread_create(&r[i].thread, NULL, reader_thread, &r[i]),
					 0);
		}
		wait_at_least(&g.d[0].gets, 20);
		daemon_stop(&g.d[0]);
		for (unsigned i = 0; i < READERS; i++)
			pthread_join(r[i].thread, NULL);
		assert_int_equal(mem_gets(&g.w.store), 0);
		group_stop(&g);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(owner_answers_ranges_and_whole_blocks),
		cmocka_unit_test(owner_refuses_then_successor_then_store),
		cmocka_unit_test(who_is_busy_is_asked_again_before_the_store),
		cmocka_unit_test(owner_hangs_and_costs_one_hedge_G01_G02),
		cmocka_unit_test(what_is_sent_to_the_owner_is_dropped_G04),
		cmocka_unit_test(both_hang_and_the_store_answers),
		cmocka_unit_test(nobody_hedges_after_filling),
		cmocka_unit_test(damaged_answers_are_never_delivered_B01_B02_B09),
		cmocka_unit_test(final_verdicts_are_final),
		cmocka_unit_test(fill_probe_and_drop),
		cmocka_unit_test(fill_and_probe_without_an_owner_tell_why),
		cmocka_unit_test(the_loser_of_a_hedge_gives_its_memory_back_at_once),
		cmocka_unit_test(fill_leaves_an_owner_that_hangs),
		cmocka_unit_test(no_fill_asks_nobody),
		cmocka_unit_test(without_memory_for_a_fork_the_request_goes_on),
		cmocka_unit_test(the_others_on_the_path_are_asked),
		cmocka_unit_test(holder_is_asked_without_filling_G12),
		cmocka_unit_test(a_holder_that_lives_is_waited_for),
		cmocka_unit_test(descriptors_serve_without_the_daemon),
		cmocka_unit_test(damaged_files_are_reported_and_not_kept_B03),
		cmocka_unit_test(descriptors_are_bounded_and_closed_ones_told),
		cmocka_unit_test(descriptors_of_removed_files_are_closed_soon),
		cmocka_unit_test(descriptors_are_bounded_by_their_blocks_bytes),
		cmocka_unit_test(many_readers_while_a_daemon_dies_G03),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
