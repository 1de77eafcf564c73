/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of mover.h against a model of a group: members that come, go and change their weight at
 * any moment, also in the middle of each other's passes, reads in between, each one step at a time.
 * A key is got from the object store at most once, as long as none of its copies was lost with a
 * member that died. */
#include "tests/unit/check.h"

#include "cached/mover.h"

enum { NODES = 7, KEYS = 96, ROUNDS = 400, ACTIONS = 260 };

enum step { STEP_IDLE, STEP_PULL, STEP_PUSH };

struct node {
	bool member, away; /* away: a consumer, or not started */
	enum member_state state;
	uint32_t weight, wanted;
	bool leave;
	bool has[KEYS];
	/* a pass: how far it is, and what it was begun in */
	enum step step;
	struct mover_goal goal;
	struct cluster *base, *target;
	size_t peer, at; /* pull: whom, and which key; push: which key */
	bool done;
};

struct model {
	struct node node[NODES];
	struct block_key key[KEYS];
	uint64_t version;
	bool fetched[KEYS], lost[KEYS];
	unsigned fetches, transitions, repeated;
	bool deaths;
	struct cluster *now; /* of this version */
};

static void node_id(size_t i, char id[8])
{
	snprintf(id, 8, "n%zu", i);
}

/* a reference */
static struct cluster *snapshot(struct model *g)
{
	struct member m[NODES];
	struct cluster *c;
	size_t n = 0;

	if (g->now && g->now->version == g->version)
		return cluster_ref(g->now);
	memset(m, 0, sizeof(m));
	for (size_t i = 0; i < NODES; i++) {
		if (!g->node[i].member)
			continue;
		node_id(i, m[n].id);
		snprintf(m[n].addr, sizeof(m[n].addr), "a");
		m[n].port = 1;
		m[n].weight = g->node[i].weight;
		m[n++].state = g->node[i].state;
	}
	c = cluster_next(g->now, g->version, m, n);
	assert_non_null(c);
	cluster_unref(g->now);
	g->now = c;
	return cluster_ref(c);
}

/* everybody sees every change */
static void bump(struct model *g)
{
	g->version++;
	cluster_unref(snapshot(g));
}

static size_t node_of(const struct cluster *c, uint32_t member)
{
	return (size_t)(c->members[member].id[1] - '0');
}

static void pass_drop(struct node *n)
{
	cluster_unref(TAKE_PTR(n->base));
	cluster_unref(TAKE_PTR(n->target));
	n->step = STEP_IDLE;
}

/* a read through whom the ring names */
static void model_read(struct model *g, size_t k)
{
	struct cluster *c = snapshot(g);
	uint32_t who[NODES], path[NODES];
	struct node *owner;
	bool found = false;

	if (cluster_find(c, &g->key[k], who, 1) == 1) {
		size_t n = cluster_find_path(c, &g->key[k], path, NODES);

		owner = &g->node[node_of(c, who[0])];
		found = owner->has[k];
		for (size_t i = 0; !found && i < n; i++)
			found = g->node[node_of(c, path[i])].has[k];
		if (!found) {
			g->fetches++;
			if (g->fetched[k] && !g->lost[k])
				g->repeated++;
			g->fetched[k] = true;
			g->lost[k] = false;
		}
		owner->has[k] = true;
	}
	cluster_unref(c);
}

static struct member member_of(const struct node *n)
{
	return (struct member){.weight = n->weight, .state = n->state};
}

static void become(struct model *g, struct node *n, const struct member *m)
{
	n->weight = m->weight;
	n->state = m->state;
	bump(g);
}

/* nothing that needs copying */
static void turns(struct model *g, struct node *n)
{
	struct member self = member_of(n), want;

	pass_drop(n); /* another goal */
	n->done = false;
	while (mover_turn(&self, n->wanted, n->leave, &want)) {
		become(g, n, &want);
		self = member_of(n);
	}
}

static void begin_pass(struct model *g, size_t i)
{
	struct node *n = &g->node[i];
	struct member self = member_of(n);
	char id[8];

	node_id(i, id);
	pass_drop(n);
	n->done = false;
	n->goal = mover_choose(&self, n->wanted, n->leave);
	if (!n->goal.tasks)
		return;
	n->base = snapshot(g);
	n->target = mover_target(n->base, id, &n->goal);
	assert_non_null(n->target);
	n->step = n->goal.tasks & MOVER_PULL ? STEP_PULL : STEP_PUSH;
	n->peer = n->at = 0;
}

/* LIST and GET of one key of one member: as he is now, but with the weight that we told him */
static void pull_step(struct model *g, size_t i)
{
	struct node *n = &g->node[i];
	struct node *from = &g->node[n->peer];

	if (n->peer != i && from->member && from->has[n->at] && !n->has[n->at]) {
		struct cluster *now = snapshot(g);
		char id[8];

		node_id(i, id);
		if (cluster_on_path(now, &g->key[n->at], (uint32_t)cluster_index(now, id)))
			n->has[n->at] = true;
		cluster_unref(now);
	}
	if (++n->at < KEYS)
		return;
	n->at = 0;
	if (++n->peer < NODES)
		return;
	n->step = STEP_IDLE;
	n->done = true;
}

static void push_step(struct model *g, size_t i)
{
	struct node *n = &g->node[i];
	char id[8];
	int heir;

	node_id(i, id);
	heir = n->has[n->at] ? mover_heir(n->base, n->target, id, &g->key[n->at]) : -1;
	if (heir >= 0) {
		struct node *to = &g->node[node_of(n->base, (uint32_t)heir)];

		if (!to->member) /* it does not answer: this pass is for nothing */
			begin_pass(g, i);
		else
			to->has[n->at] = true;
	}
	if (n->step != STEP_PUSH || ++n->at < KEYS)
		return;
	n->step = STEP_IDLE;
	n->done = true;
}

/* the registry's part: nothing that was not seen happened since */
static void transition(struct model *g, size_t i)
{
	struct node *n = &g->node[i];
	struct cluster *now = snapshot(g);
	char id[8];

	node_id(i, id);
	if (!mover_holds(n->base, now, id, n->goal.tasks)) {
		begin_pass(g, i);
	} else if (n->goal.tasks == MOVER_PUSH && n->target->active == 0 &&
		   n->target->serving > 0) {
		begin_pass(g, i);
	} else {
		g->transitions++;
		if (n->goal.leave) {
			n->member = false;
			n->away = true;
			/* stopped: the worst that may happen. Whoever goes as the last one, or with
			 * nobody but others who go, leaves to nobody. */
			for (size_t k = 0; k < KEYS; k++)
				g->lost[k] = g->lost[k] || (n->has[k] && !n->target->active);
			memset(n->has, 0, sizeof(n->has));
			bump(g);
		} else {
			struct member self = member_of(n), next = mover_next(&self, &n->goal);

			become(g, n, &next);
			turns(g, n);
		}
		pass_drop(n);
		n->done = false;
	}
	cluster_unref(now);
}

static void work(struct model *g, size_t i, unsigned steps)
{
	struct node *n = &g->node[i];

	if (!n->member)
		return;
	if (n->done) {
		transition(g, i);
		return;
	}
	if (n->step == STEP_IDLE)
		begin_pass(g, i);
	while (steps-- > 0 && n->step != STEP_IDLE)
		if (n->step == STEP_PULL)
			pull_step(g, i);
		else
			push_step(g, i);
}

static bool anybody(const struct model *g)
{
	for (size_t i = 0; i < NODES; i++)
		if (g->node[i].member)
			return true;
	return false;
}

static void join(struct model *g, struct node *n)
{
	n->state = anybody(g) ? MEMBER_JOINING : MEMBER_ACTIVE;
	n->member = true;
	n->away = n->leave = false;
	n->weight = n->wanted = (uint32_t)(1 + rand() % 3);

	bump(g);
}

static void die(struct model *g, struct node *n)
{
	for (size_t k = 0; k < KEYS; k++)
		g->lost[k] = g->lost[k] || n->has[k];
	memset(n->has, 0, sizeof(n->has));
	pass_drop(n);
	n->member = n->done = n->leave = false;
	n->away = true;
	bump(g);
}

static void wish(struct model *g, size_t i)
{
	struct node *n = &g->node[i];

	n->leave = !n->leave;
	turns(g, n);
}

static void weigh(struct model *g, struct node *n)
{
	n->wanted = (uint32_t)(1 + rand() % 3);
	turns(g, n);
}

/* the process is started again: it has what it had, and joins once more */
static void restart(struct model *g, struct node *n)
{
	pass_drop(n);
	n->done = false;
	n->state = MEMBER_JOINING;
	bump(g);
	weigh(g, n);
}

static void act(struct model *g)
{
	size_t i = (size_t)rand() % NODES;
	struct node *n = &g->node[i];
	int what = rand() % 100;

	if (what < 3 && !n->member)
		join(g, n);
	else if (what < 5 && n->member && (!n->leave || rand() % 3 == 0))
		wish(g, i);
	else if (what < 7 && n->member)
		weigh(g, n);
	else if (what < 8 && n->member)
		restart(g, n);
	else if (what < 9 && g->deaths && n->member)
		die(g, n);
	else if (what < 45)
		model_read(g, (size_t)rand() % KEYS);
	else
		work(g, i, (unsigned)(1 + rand() % (2 * KEYS)));
}

static unsigned run(unsigned seed, bool deaths, unsigned *ret_transitions)
{
	struct model *g = calloc(1, sizeof(*g));
	unsigned repeated;

	assert_non_null(g);
	srand(seed);
	g->version = 1;
	g->deaths = deaths;
	for (size_t k = 0; k < KEYS; k++)
		block_key_init(&g->key[k], &(struct hash128){{1}}, seed * KEYS + k + 1, 0, 1 << 20);
	for (size_t i = 0; i < 2; i++)
		join(g, &g->node[i]);
	for (unsigned a = 0; a < ACTIONS; a++)
		act(g);
	/* it comes to rest, whatever is going on: nobody waits for anybody for ever */
	for (unsigned a = 0; a < 40 * NODES; a++)
		work(g, a % NODES, NODES * KEYS * 2);
	for (size_t i = 0; i < NODES; i++)
		if (g->node[i].member) {
			assert_int_equal(g->node[i].state, MEMBER_ACTIVE);
			assert_int_equal(g->node[i].weight, g->node[i].wanted);
		}
	for (size_t k = 0; k < KEYS; k++)
		model_read(g, k);
	repeated = g->repeated;
	*ret_transitions += g->transitions;
	for (size_t i = 0; i < NODES; i++)
		pass_drop(&g->node[i]);
	cluster_unref(g->now);
	free(g);
	return repeated;
}

static void run_all(bool deaths)
{
	unsigned transitions = 0, first = (unsigned)time(NULL) % 100000 * ROUNDS;
	const char *s = getenv("STOKE_SEED");

	if (s)
		first = (unsigned)strtoul(s, NULL, 10);
	for (unsigned seed = first; seed < first + ROUNDS; seed++)
		if (run(seed, deaths, &transitions) > 0)
			fail_msg("a key was got again from the object store: STOKE_SEED=%u", seed);
	assert_true(transitions > ROUNDS);
}

static void whatever_comes_and_goes_no_key_is_fetched_twice(void **state)
{
	(void)state;
	run_all(false);
}

static void whoever_dies_only_his_keys_are_fetched_again(void **state)
{
	(void)state;
	run_all(true);
}

/* a group of three active members, and what changes it */
static struct cluster *of(const struct cluster *old, const char *who)
{
	struct member m[4];
	size_t n = 0;

	memset(m, 0, sizeof(m));
	for (; *who; who += 2, n++) {
		snprintf(m[n].id, sizeof(m[n].id), "%c", who[0]);
		snprintf(m[n].addr, sizeof(m[n].addr), "x");
		m[n].port = 1;
		m[n].weight = 100;
		m[n].state = who[1] == 'j'   ? MEMBER_JOINING
			     : who[1] == 'd' ? MEMBER_DRAINING
					     : MEMBER_ACTIVE;
	}
	return cluster_next(old, 1, m, n);
}

static bool holds(const char *base, const char *now, unsigned tasks)
{
	struct cluster *a = of(NULL, base), *b = of(a, now);
	bool r = mover_holds(a, b, "b", tasks);

	cluster_unref(a);
	cluster_unref(b);
	return r;
}

static void what_was_copied_holds_until_somebody_undoes_it(void **state)
{
	(void)state;
	assert_true(holds("aabj", "aabj", MOVER_PULL));
	assert_true(holds("aabj", "aabjcj", MOVER_PULL));    /* another one joins */
	assert_true(holds("aabjcj", "aabjca", MOVER_PULL));  /* and is there before us */
	assert_true(holds("aabjca", "aabaca", MOVER_PULL));  /* we ourselves */
	assert_false(holds("aabjca", "aabj", MOVER_PULL));   /* who held something is gone */
	assert_false(holds("aabjca", "aabjcd", MOVER_PULL)); /* or hands it on */
	assert_true(holds("aabd", "aabdcj", MOVER_PUSH));
	assert_false(holds("aabdcj", "aabdca", MOVER_PUSH)); /* he stands before our heir now */
	assert_false(holds("aabdca", "adbdca", MOVER_PUSH));
	assert_false(holds("aabdca", "bdca", MOVER_PUSH));
	assert_true(holds("aabdcd", "aabd", MOVER_PUSH));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(whatever_comes_and_goes_no_key_is_fetched_twice),
		cmocka_unit_test(whoever_dies_only_his_keys_are_fetched_again),
		cmocka_unit_test(what_was_copied_holds_until_somebody_undoes_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
