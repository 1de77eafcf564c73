/* SPDX-License-Identifier: Apache-2.0 */
/* Two daemons, each with a chain, a store and an object store of its own, that ask each other. */
#include "tests/unit/cached/served.h"

struct node {
	struct world *w;
	struct loop *loop;
	struct peers *peers;
	struct cluster_view view;
	struct server *server;
	uint16_t port;
	char id[2];
};

/* id serves, and asks those that its view will name */
static void node_start(struct node *n, const char *id)
{
	struct server_conf conf = {
		.n_loops = 1, .group = "g", .secret = &good, .max_conns = 100, .loops = &n->loop};
	struct peers_conf pc = {
		.id = {.role = ROLE_MEMBER, .volume = volume_a, .group = "g", .secret = &good},
		.n_loops = 1,
		.loops = &n->loop};

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
	conf.env = &n->w->env;
	conf.chain = n->w->chain;
	conf.store = n->w->store;
	conf.counters = &n->w->counters;
	assert_int_equal(server_new(&conf, &n->server), 0);
	assert_int_equal(server_listen_tcp(n->server, "127.0.0.1", 0, &n->port), 0);
}

/* n's ring is other alone: he holds everything */
static void node_asks(struct node *n, const struct node *other)
{
	struct member m = {
		.addr = "127.0.0.1", .port = other->port, .weight = 100, .state = MEMBER_ACTIVE};

	(void)snprintf(m.id, sizeof(m.id), "%s", other->id);
	cluster_view_set(&n->view, cluster_new(1, &m, 1));
}

/* both are members of n's ring; two of them in one order: of the ring, by the state of the first */
static void node_sees(struct node *n, const struct node *a, enum member_state state,
		      const struct node *b)
{
	struct member m[2] = {
		{.addr = "127.0.0.1", .port = a->port, .weight = 100, .state = state},
		{.addr = "127.0.0.1", .port = b->port, .weight = 100, .state = MEMBER_ACTIVE}};

	(void)snprintf(m[0].id, sizeof(m[0].id), "%s", a->id);
	(void)snprintf(m[1].id, sizeof(m[1].id), "%s", b->id);
	cluster_view_set(&n->view, cluster_new(2, m, 2));
}

/* the nth block whose owner is this member (0: a) */
static struct block_key owned(struct node *n, uint32_t member, unsigned nth)
{
	struct cluster *c = cluster_view_get(&n->view);

	for (uint64_t s = 1;; s++) {
		struct block_key k = key_of(&volume_a, s, BLOCK);
		uint32_t who;

		if (cluster_find(c, &k, &who, 1) == 1 && who == member && nth-- == 0) {
			cluster_unref(c);
			return k;
		}
	}
}

static void node_stop(struct node *n)
{
	assert_true(server_stop(n->server, 10000000));
	server_free(n->server);
	world_close(n->w);
	peers_free(n->peers);
	loop_free(n->loop);
	cluster_view_fini(&n->view);
	world_free(n->w);
}

struct asked {
	struct block_req *req;
	struct waited x;
};

static void ask_node(struct node *n, struct asked *a, const struct block_key *k)
{
	a->req = req_new(&n->w->env, k, 0, BLOCK, 0, POOL_DEMAND);
	assert_non_null(a->req);
	waited_begin(&a->x);
	source_get(n->w->chain, a->req, waited_done, &a->x);
}

static void asked_end(struct asked *a)
{
	assert_int_equal(waited_end(&a->x), 0);
	assert_int_equal(consume(a->req), 0);
	req_free(a->req);
}

static void rings_that_name_each_other_do_not_wait_for_each_other_G12(void **state)
{
	enum { N = 30 };
	struct node a, b;
	struct asked of_a[N], of_b[N];
	uint64_t start;

	(void)state;
	node_start(&a, "a");
	node_start(&b, "b");
	node_asks(&a, &b);
	node_asks(&b, &a);
	atomic_store(&a.w->objects.delay_us, 50000);
	atomic_store(&b.w->objects.delay_us, 50000);
	start = clock_us();
	for (unsigned i = 0; i < N; i++) {
		struct block_key k = key_of(&volume_a, 1 + i, BLOCK);

		ask_node(&a, &of_a[i], &k);
		ask_node(&b, &of_b[i], &k);
	}
	for (unsigned i = 0; i < N; i++) {
		asked_end(&of_a[i]);
		asked_end(&of_b[i]);
	}
	/* who waited for each other would do so for two minutes; the machine may be busy */
	assert_true(clock_us() - start < 10000000);
	assert_true(atomic_load(&a.w->objects.gets) <= N);
	assert_true(atomic_load(&b.w->objects.gets) <= N);
	node_stop(&a);
	node_stop(&b);
}

/* a hedge or a failure sends the reader to the successor while the owner's fetch is under way */
static void what_the_owner_is_fetching_is_not_fetched_again(void **state)
{
	struct node a, b;
	struct block_key k = key_of(&volume_a, 1, BLOCK);
	struct asked of_a, of_b;

	(void)state;
	node_start(&a, "a");
	node_start(&b, "b");
	node_asks(&b, &a);
	atomic_store(&a.w->objects.delay_us, 1000000);
	ask_node(&a, &of_a, &k);
	eventually(atomic_load(&a.w->objects.gets) == 1);
	ask_node(&b, &of_b, &k);
	asked_end(&of_a);
	asked_end(&of_b);
	assert_int_equal(atomic_load(&a.w->objects.gets), 1);
	assert_int_equal(atomic_load(&b.w->objects.gets), 0);
	node_stop(&a);
	node_stop(&b);
}

/* A hedge, or BUSY, sends a reader to the successor before the owner knows of the block: it is the
 * owner who fetches, for both. */
static void a_successor_has_the_owner_fetch(void **state)
{
	enum { N = 20 };
	struct node a, b;
	struct asked of_a[N], of_b[N];

	(void)state;
	node_start(&a, "a");
	node_start(&b, "b");
	node_sees(&a, &a, MEMBER_ACTIVE, &b);
	node_sees(&b, &a, MEMBER_ACTIVE, &b);
	atomic_store(&a.w->objects.delay_us, 600000); /* longer than he may be silent */
	for (unsigned i = 0; i < N; i++) {
		struct block_key k = owned(&a, 0, i);

		ask_node(&b, &of_b[i], &k);
		if (i % 2)
			ask_node(&a, &of_a[i], &k);
	}
	for (unsigned i = 0; i < N; i++) {
		asked_end(&of_b[i]);
		if (i % 2)
			asked_end(&of_a[i]);
	}
	assert_int_equal(atomic_load(&a.w->objects.gets), N);
	assert_int_equal(atomic_load(&b.w->objects.gets), 0);
	node_stop(&a);
	node_stop(&b);
}

/* a is joining: his blocks are on b's path, too. Mounts that know of it ask him, others b. */
static void while_one_joins_one_of_two_fetches(void **state)
{
	enum { N = 20 };
	struct node a, b;
	struct asked of_a[N], of_b[N];

	(void)state;
	node_start(&a, "a");
	node_start(&b, "b");
	node_sees(&a, &a, MEMBER_JOINING, &b);
	node_sees(&b, &a, MEMBER_JOINING, &b);
	atomic_store(&a.w->objects.delay_us, 200000);
	atomic_store(&b.w->objects.delay_us, 200000);
	for (unsigned i = 0; i < N; i++) {
		struct block_key k = owned(&a, 0, i);

		ask_node(&b, &of_b[i], &k);
		ask_node(&a, &of_a[i], &k);
	}
	for (unsigned i = 0; i < N; i++) {
		asked_end(&of_b[i]);
		asked_end(&of_a[i]);
	}
	assert_int_equal(atomic_load(&a.w->objects.gets) + atomic_load(&b.w->objects.gets), N);
	node_stop(&a);
	node_stop(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rings_that_name_each_other_do_not_wait_for_each_other_G12),
		cmocka_unit_test(what_the_owner_is_fetching_is_not_fetched_again),
		cmocka_unit_test(a_successor_has_the_owner_fetch),
		cmocka_unit_test(while_one_joins_one_of_two_fetches),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
