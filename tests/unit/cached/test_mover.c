/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks that move between daemons over real sockets, and an object store that counts. What is to
 * be moved and how long it counts is test_mover_plan.c's. */
#include "tests/unit/cached/served.h"

#include "cached/mover.h"

enum { NODES = 3, KEYS = 60 };
#define FAR_AWAY UINT64_C(4000000000)

struct node {
	char id[8];
	struct loop *loop;
	struct peers *peers;
	struct cluster_view view;
	struct world *w;
	struct server *server;
	struct mover *mover;
	struct source *fault; /* on top of the chain */
	struct holder {
		struct source base;
		atomic_bool on;
		_Atomic(struct block_req *) held;
	} holder; /* where the mover's puts go to: keeps one when on */
	uint16_t port;
	atomic_uint done;
};

struct group {
	struct node node[NODES];
	enum member_state state[NODES]; /* 0: no member */
	uint64_t version;
};

static void node_done(void *arg)
{
	struct node *n = arg;

	atomic_fetch_add(&n->done, 1);
}

static void holder_passed(struct block_req *req, int status, void *arg)
{
	(void)arg;
	req_done(req, status);
}

static void holder_put(struct source *s, struct block_req *req)
{
	struct holder *h = container_of(s, struct holder, base);

	if (atomic_exchange(&h->on, false))
		atomic_store(&h->held, req);
	else
		source_put(s->next, req, holder_passed, h);
}

static const struct source_ops holder_ops = {.name = "holder", .put = holder_put};

static void node_start(struct node *n, const char *id)
{
	struct server_conf conf = {.loops = &n->loop,
				   .n_loops = 1,
				   .group = "g",
				   .secret = &good,
				   .max_conns = 100,
				   .view = &n->view};
	struct peers_conf pc = {
		.id = {.role = ROLE_MEMBER, .volume = volume_a, .group = "g", .secret = &good},
		.n_loops = 1,
		.loops = &n->loop};
	struct mover_conf mc = {.view = &n->view, .self = n->id, .done = node_done, .arg = n};

	(void)snprintf(n->id, sizeof(n->id), "%s", id);
	conf.node = pc.id.node = n->id;
	cluster_view_init(&n->view);
	assert_int_equal(loop_new(n->id, &n->loop), 0);
	assert_int_equal(peers_new(&pc, &n->peers), 0);
	n->w = world_new(64 << 20, 1);
	world_close(n->w);
	n->w->peer = (struct source_peer_conf){
		.mode = PEER_HOLDER, .peers = n->peers, .view = &n->view, .self = n->id};
	world_open(n->w);
	conf.env = mc.env = &n->w->env;
	assert_int_equal(source_fault_new(&n->w->env, n->w->chain, &n->fault), 0);
	n->w->chain = conf.chain = n->fault;
	assert_int_equal(source_init(&n->holder.base, &holder_ops, &n->w->env, n->w->chain), 0);
	mc.chain = &n->holder.base;
	mc.patience_us = 2000000;
	conf.store = mc.store = n->w->store;
	conf.counters = mc.counters = &n->w->counters;
	mc.peers = n->peers;
	assert_int_equal(server_new(&conf, &n->server), 0);
	assert_int_equal(server_listen_tcp(n->server, "127.0.0.1", 0, &n->port), 0);
	assert_int_equal(mover_new(&mc, &n->mover), 0);
}

static void node_stop(struct node *n)
{
	struct block_req *held;

	mover_free(TAKE_PTR(n->mover));
	held = atomic_exchange(&n->holder.held, NULL);
	if (held) /* its disk was slow */
		req_done(held, 0);
	source_fini(&n->holder.base);
	assert_true(server_stop(n->server, 10000000));
	server_free(n->server);
	world_close(n->w);
	peers_free(n->peers);
	loop_free(n->loop);
	cluster_view_fini(&n->view);
	world_free(n->w);
}

/* everybody hears of the states as they are now */
static void group_tell(struct group *g)
{
	struct member m[NODES];
	size_t n = 0;

	memset(m, 0, sizeof(m));
	for (unsigned i = 0; i < NODES; i++) {
		if (!g->state[i])
			continue;
		snprintf(m[n].id, sizeof(m[n].id), "%s", g->node[i].id);
		snprintf(m[n].addr, sizeof(m[n].addr), "127.0.0.1");
		m[n].port = g->node[i].port;
		m[n].weight = 100;
		m[n++].state = g->state[i];
	}
	g->version++;
	for (unsigned i = 0; i < NODES; i++) {
		struct cluster *old = cluster_view_get(&g->node[i].view);

		cluster_view_set(&g->node[i].view, cluster_next(old, g->version, m, n));
		cluster_unref(old);
	}
}

static void group_start(struct group *g, enum member_state a, enum member_state b,
			enum member_state c)
{
	memset(g, 0, sizeof(*g));
	node_start(&g->node[0], "a");
	node_start(&g->node[1], "b");
	node_start(&g->node[2], "c");
	g->state[0] = a;
	g->state[1] = b;
	g->state[2] = c;
	group_tell(g);
}

static void group_stop(struct group *g)
{
	for (unsigned i = 0; i < NODES; i++)
		node_stop(&g->node[i]);
}

static unsigned group_gets(struct group *g)
{
	unsigned n = 0;

	for (unsigned i = 0; i < NODES; i++)
		n += atomic_load(&g->node[i].w->objects.gets);
	return n;
}

static void node_fill(struct node *n, const struct block_key *k)
{
	struct block_req *req = req_new(&n->w->env, k, 0, k->size, REQ_FILL, POOL_DEMAND);
	struct waited x;

	assert_non_null(req);
	waited_begin(&x);
	source_get(n->w->chain, req, waited_done, &x);
	assert_int_equal(waited_end(&x), 0);
	req_free(req);
}

/* every third key is pinned: where it is held now */
static void node_pin(struct node *n, const struct block_key *k)
{
	struct block_req *req = req_new(&n->w->env, k, 0, k->size, REQ_FILL | REQ_PIN, POOL_DEMAND);
	struct waited x;

	assert_non_null(req);
	req->pin_until = FAR_AWAY;
	waited_begin(&x);
	source_get(n->w->chain, req, waited_done, &x);
	assert_int_equal(waited_end(&x), 0);
	req_free(req);
}

static void goal(struct node *n, unsigned tasks, bool leave)
{
	const struct mover_goal g = {.tasks = tasks, .weight = 100, .leave = leave};

	mover_set(n->mover, &g);
}

static bool is_done(struct node *n)
{
	struct cluster *now = cluster_view_get(&n->view);
	bool done = mover_done(n->mover, now);

	cluster_unref(now);
	return done;
}

static bool on_path(struct node *n, const struct block_key *k)
{
	struct cluster *c = cluster_view_get(&n->view);
	int i = cluster_index(c, n->id);
	bool yes = i >= 0 && cluster_on_path(c, k, (uint32_t)i);

	cluster_unref(c);
	return yes;
}

static void a_new_member_gets_its_keys_from_the_others_alone(void **state)
{
	struct group g;
	uint64_t moved, to_move;
	unsigned mine = 0;

	(void)state;
	group_start(&g, MEMBER_ACTIVE, MEMBER_ACTIVE, 0);
	for (unsigned i = 0; i < KEYS; i++) {
		struct block_key k = key_of(&volume_a, 1 + i, BLOCK);

		node_fill(&g.node[on_path(&g.node[1], &k)], &k);
		if (i % 3 == 0)
			node_pin(&g.node[on_path(&g.node[1], &k)], &k);
	}
	assert_int_equal(group_gets(&g), KEYS);
	g.state[2] = MEMBER_JOINING;
	group_tell(&g);
	goal(&g.node[2], MOVER_PULL, false);
	eventually(is_done(&g.node[2]));
	assert_int_equal(atomic_load(&g.node[2].done), 1);
	for (unsigned i = 0; i < KEYS; i++) {
		struct block_key k = key_of(&volume_a, 1 + i, BLOCK);

		assert_int_equal(store_has(g.node[2].w->store, &k), on_path(&g.node[2], &k));
		mine += on_path(&g.node[2], &k);
		assert_int_equal(store_pinned(g.node[2].w->store, &k),
				 i % 3 == 0 && on_path(&g.node[2], &k) ? FAR_AWAY : 0);
	}
	assert_true(mine > KEYS / 6 && mine < KEYS / 2);
	assert_int_equal(group_gets(&g), KEYS);
	mover_progress(g.node[2].mover, &moved, &to_move);
	assert_int_equal(moved, to_move);
	/* somebody goes, and what was done does not count any more; it is done anew */
	g.state[1] = MEMBER_DRAINING;
	group_tell(&g);
	assert_false(is_done(&g.node[2]));
	eventually(is_done(&g.node[2]));
	assert_int_equal(group_gets(&g), KEYS);
	group_stop(&g);
}

static void who_leaves_hands_on_what_it_holds(void **state)
{
	struct group g;
	uint64_t moved, to_move;

	(void)state;
	group_start(&g, MEMBER_ACTIVE, MEMBER_DRAINING, MEMBER_ACTIVE);
	for (unsigned i = 0; i < KEYS; i++) {
		struct block_key k = key_of(&volume_a, 1 + i, BLOCK);

		node_fill(&g.node[1], &k);
		if (i % 3 == 0)
			node_pin(&g.node[1], &k);
		if (i % 6 == 0 && on_path(&g.node[1], &k)) /* has it, and is to pin it */
			node_fill(&g.node[0], &k);
	}
	assert_int_equal(group_gets(&g), KEYS);
	goal(&g.node[1], MOVER_PUSH, true);
	eventually(is_done(&g.node[1]));
	mover_progress(g.node[1].mover, &moved, &to_move);
	assert_true(moved == to_move && moved > 0);
	for (unsigned i = 0; i < KEYS; i++) {
		struct block_key k = key_of(&volume_a, 1 + i, BLOCK);

		if (!on_path(&g.node[1], &k))
			continue;
		assert_true(store_has(g.node[0].w->store, &k) || store_has(g.node[2].w->store, &k));
		assert_int_equal(MAX(store_pinned(g.node[0].w->store, &k),
				     store_pinned(g.node[2].w->store, &k)),
				 i % 3 == 0 ? FAR_AWAY : 0);
	}
	assert_int_equal(group_gets(&g), KEYS);
	group_stop(&g);
}

/* who is registered, and does not answer: nothing counts until it is gone */
static void who_does_not_answer_is_waited_for_until_he_is_gone(void **state)
{
	struct group g;
	struct block_key k = key_of(&volume_a, 1, BLOCK);
	uint16_t port;

	(void)state;
	group_start(&g, MEMBER_ACTIVE, MEMBER_ACTIVE, MEMBER_JOINING);
	node_fill(&g.node[0], &k);
	port = g.node[1].port;
	g.node[1].port = 1; /* nobody listens there */
	group_tell(&g);
	goal(&g.node[2], MOVER_PULL, false);
	usleep(600000);
	assert_false(is_done(&g.node[2]));
	g.state[1] = 0;
	group_tell(&g);
	eventually(is_done(&g.node[2]));
	g.node[1].port = port;
	group_stop(&g);
}

static unsigned keys_on_path(struct node *n)
{
	unsigned yes = 0;

	for (unsigned i = 0; i < KEYS; i++) {
		struct block_key k = key_of(&volume_a, 1 + i, BLOCK);

		yes += on_path(n, &k);
	}
	return yes;
}

/* b has everything, and is to leave it to a */
static void group_with_a_leaver(struct group *g)
{
	group_start(g, 0, MEMBER_ACTIVE, 0);
	for (unsigned i = 0; i < KEYS; i++) {
		struct block_key k = key_of(&volume_a, 1 + i, BLOCK);

		node_fill(&g->node[1], &k);
	}
	g->state[0] = MEMBER_ACTIVE;
	g->state[1] = MEMBER_DRAINING;
	group_tell(g);
}

/* Its disk is busy for a moment: nothing is given up. For ever: then it says how many. */
static void what_is_refused_is_tried_again_before_anybody_leaves(void **state)
{
	const struct fault_rule busy = {.kind = FAULT_FAIL, .status = -EBUSY, .count = 2 * KEYS};
	const struct fault_rule always = {.kind = FAULT_FAIL, .status = -EBUSY};
	struct group g;

	(void)state;
	group_with_a_leaver(&g);
	source_fault_add(g.node[0].fault, &busy);
	goal(&g.node[1], MOVER_PUSH, true);
	eventually(is_done(&g.node[1]));
	assert_int_equal(mover_lost(g.node[1].mover), 0);
	for (unsigned i = 0; i < KEYS; i++) {
		struct block_key k = key_of(&volume_a, 1 + i, BLOCK);

		assert_true(store_has(g.node[0].w->store, &k) || !on_path(&g.node[1], &k));
	}
	group_stop(&g);

	group_with_a_leaver(&g);
	source_fault_add(g.node[0].fault, &always);
	goal(&g.node[1], MOVER_PUSH, true);
	eventually(is_done(&g.node[1]));
	assert_int_equal(mover_lost(g.node[1].mover), keys_on_path(&g.node[1]));
	group_stop(&g);
}

/* nobody can be asked: no memory for one more peer. What was not walked is not moved. */
static void who_cannot_ask_does_not_leave(void **state)
{
	struct group g;

	(void)state;
	group_with_a_leaver(&g);
	for (unsigned i = 0; i <= CLUSTER_MEMBERS_MAX; i++) {
		char ip[24];

		snprintf(ip, sizeof(ip), "10.%u.%u.1", i >> 8, i & 255);
		if (!peers_get(g.node[1].peers, ip, 1))
			break;
	}
	goal(&g.node[1], MOVER_PUSH, true);
	usleep(800000);
	assert_false(is_done(&g.node[1]));
	group_stop(&g);
}

/* a block that is on its way to the own store when the mover goes */
static void it_may_be_freed_before_the_store_has_answered(void **state)
{
	struct group g;

	(void)state;
	group_start(&g, MEMBER_ACTIVE, 0, 0);
	for (unsigned i = 0; i < KEYS; i++) {
		struct block_key k = key_of(&volume_a, 1 + i, BLOCK);

		node_fill(&g.node[0], &k);
	}
	g.state[2] = MEMBER_JOINING;
	group_tell(&g);
	atomic_store(&g.node[2].holder.on, true);
	goal(&g.node[2], MOVER_PULL, false);
	eventually(atomic_load(&g.node[2].holder.held));
	mover_stop(g.node[2].mover);
	group_stop(&g);
}

/* to stop is quick, whatever is under way */
static void it_stops_in_the_middle(void **state)
{
	struct group g;
	uint64_t start;

	(void)state;
	group_start(&g, MEMBER_ACTIVE, 0, 0);
	for (unsigned i = 0; i < KEYS; i++) {
		struct block_key k = key_of(&volume_a, 1 + i, BLOCK);

		node_fill(&g.node[0], &k);
	}
	g.state[2] = MEMBER_JOINING;
	group_tell(&g);
	mover_set_limit(g.node[2].mover, BLOCK); /* a block a second */
	goal(&g.node[2], MOVER_PULL, false);
	usleep(100000);
	start = clock_us();
	mover_stop(g.node[2].mover);
	assert_true(clock_us() - start < 2000000);
	assert_int_equal(atomic_load(&g.node[2].done), 0);
	group_stop(&g);
}

static void a_list_is_for_members_that_are_known(void **state)
{
	struct served *s = served_new(64 << 20, 10);
	struct msg_list l = {.member = hash64("d1", 2), .weight = 100};
	struct answer a = {0};
	uint8_t body[MSG_LIST];
	int fd = member_tcp(s);

	(void)state;
	msg_list_encode(&l, body);
	ask(fd, OP_LIST, 5, 0, body, sizeof(body));
	assert_true(hear(fd, &a));
	assert_int_equal(a.f.status, ST_OK);
	assert_int_equal(a.f.body_len, MSG_LIST_HEAD);
	l.weight = 50; /* our ring is older, or theirs is */
	msg_list_encode(&l, body);
	ask(fd, OP_LIST, 6, 0, body, sizeof(body));
	assert_true(hear(fd, &a));
	assert_int_equal(a.f.status, ST_STALE);
	ask(fd, OP_LIST, 7, 0, body, 8);
	assert_true(hear(fd, &a));
	assert_int_equal(a.f.status, ST_BAD_REQUEST);
	free(a.body);
	(void)close(fd);
	served_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_new_member_gets_its_keys_from_the_others_alone),
		cmocka_unit_test(who_leaves_hands_on_what_it_holds),
		cmocka_unit_test(who_does_not_answer_is_waited_for_until_he_is_gone),
		cmocka_unit_test(what_is_refused_is_tried_again_before_anybody_leaves),
		cmocka_unit_test(who_cannot_ask_does_not_leave),
		cmocka_unit_test(it_may_be_freed_before_the_store_has_answered),
		cmocka_unit_test(it_stops_in_the_middle),
		cmocka_unit_test(a_list_is_for_members_that_are_known),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
