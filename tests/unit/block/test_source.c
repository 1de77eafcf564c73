/* SPDX-License-Identifier: Apache-2.0 */
/* Requests, frames, reservation and races, with layers made for the purpose. */
#include "tests/unit/block/world.h"

#include <pthread.h>
#include <time.h>

static struct world w;
static struct waiter wt;
static struct read rd[64];

static void pass_up(struct block_req *req, int status, void *arg)
{
	(void)arg;
	req_done(req, status);
}

/* --- a layer that goes two ways: the second after a while or a loss, then the plain way --- */

struct hedge {
	struct source base;
	uint64_t timeout_us, tick_us;
	unsigned max_forks;
	unsigned forks, ticks, losts, passed; /* atomic */
	int last_status;
	unsigned last_running;
};

/* in the parent's progress_arg */
struct parent {
	unsigned forks, in_callback;
};

static void enter(struct block_req *parent)
{
	struct parent *p = parent->progress_arg;

	/* calls of one parent never overlap */
	assert_int_equal(__atomic_exchange_n(&p->in_callback, 1, __ATOMIC_ACQ_REL), 0);
}

static void leave(struct parent *p)
{
	__atomic_store_n(&p->in_callback, 0, __ATOMIC_RELEASE);
}

static void hedge_lost(struct block_req *parent, int status, unsigned running, void *arg);

static struct block_req *hedge_fork(struct hedge *h, struct block_req *parent)
{
	struct parent *p = parent->progress_arg;
	struct block_req *child;

	if (p->forks >= h->max_forks)
		return NULL;
	child = req_fork(parent, parent->flags, h->timeout_us, hedge_lost, h);
	if (child) {
		p->forks++;
		__atomic_fetch_add(&h->forks, 1, __ATOMIC_RELAXED);
	}
	return child;
}

static void hedge_pass(struct hedge *h, struct block_req *parent)
{
	__atomic_fetch_add(&h->passed, 1, __ATOMIC_RELAXED);
	source_get(h->base.next, parent, pass_up, NULL);
}

static void hedge_tick(struct block_req *parent, void *arg)
{
	struct hedge *h = arg;
	struct parent *p = parent->progress_arg;
	struct block_req *child;

	enter(parent);
	__atomic_fetch_add(&h->ticks, 1, __ATOMIC_RELAXED);
	child = hedge_fork(h, parent);
	if (child) {
		req_race_timer(parent, h->tick_us, hedge_tick, h);
		req_fork_start(child, h->base.next);
	}
	leave(p);
}

static void hedge_lost(struct block_req *parent, int status, unsigned running, void *arg)
{
	struct hedge *h = arg;
	struct parent *p = parent->progress_arg;
	struct block_req *child;

	enter(parent);
	__atomic_fetch_add(&h->losts, 1, __ATOMIC_RELAXED);
	__atomic_store_n(&h->last_status, status, __ATOMIC_RELAXED);
	__atomic_store_n(&h->last_running, running, __ATOMIC_RELAXED);
	child = hedge_fork(h, parent);
	if (child) {
		if (h->tick_us)
			req_race_timer(parent, h->tick_us, hedge_tick,
				       h); /* replaces the old one */
		req_fork_start(child, h->base.next);
		leave(p);
	} else if (!running) {
		leave(p);
		hedge_pass(h, parent);
	} else {
		leave(p);
	}
}

static void hedge_get(struct source *s, struct block_req *req)
{
	struct hedge *h = container_of(s, struct hedge, base);
	struct block_req *child = hedge_fork(h, req);

	if (!child) {
		hedge_pass(h, req);
		return;
	}
	if (h->tick_us)
		assert_int_equal(req_race_timer(req, h->tick_us, hedge_tick, h), 0);
	req_fork_start(child, s->next);
}

static void hedge_free(struct source *s)
{
	source_fini(s);
}

static const struct source_ops hedge_ops = {.name = "hedge", .get = hedge_get, .free = hedge_free};

static struct hedge hedge;
static struct parent parents[64];

static void begin(unsigned flags, size_t budget, uint64_t timeout_us, uint64_t tick_us,
		  unsigned max_forks)
{
	world_init(&w, flags, CODEC_NONE, budget);
	waiter_init(&wt);
	hedge = (struct hedge){
		.timeout_us = timeout_us, .tick_us = tick_us, .max_forks = max_forks};
	memset(parents, 0, sizeof(parents));
	assert_int_equal(source_init(&hedge.base, &hedge_ops, &w.env, w.top), 0);
	w.top = &hedge.base;
}

static void end(void)
{
	waiter_fini(&wt);
	world_fini(&w);
}

static void go(int i, const struct block_key *k, uint32_t off, uint32_t len)
{
	read_start(&w, &wt, &rd[i], k, off, len, 0);
	rd[i].req->progress_arg = &parents[i];
	rd[i].req->reserved = 0;
	read_send(&w, &rd[i]);
}

static void rule(enum fault_kind kind, unsigned after, unsigned count, int status, uint64_t us)
{
	const struct fault_rule r = {
		.kind = kind, .after = after, .count = count, .status = status, .delay_us = us};

	source_fault_add(w.fault, &r);
}

static void the_first_good_answer_wins_and_the_late_one_is_dropped(void **state)
{
	struct block_key k = key_of(1, 0);

	(void)state;
	begin(0, 16 * MIB, 0, 200 * 1000, 2);
	rule(FAULT_HANG, 0, 1, 0, 0);
	go(0, &k, 5, 1000);
	waiter_wait(&wt);
	assert_int_equal(hedge.ticks, 1);
	assert_int_equal(hedge.losts, 0);
	assert_int_equal(w.env.live, 2); /* the parent and the child that hangs */
	read_check(&rd[0], 0);
	source_fault_release(w.fault); /* comes long after its parent was freed */
	end();
}

static void a_child_whose_time_is_over_is_lost_and_its_answer_too(void **state)
{
	struct block_key k = key_of(2, 0);

	(void)state;
	begin(0, 16 * MIB, 200 * 1000, 0, 2);
	rule(FAULT_HANG, 0, 1, 0, 0);
	go(0, &k, 0, BLOCK);
	waiter_wait(&wt);
	assert_int_equal(hedge.losts, 1);
	assert_int_equal(hedge.last_status, -ETIMEDOUT);
	assert_int_equal(hedge.last_running, 0);
	assert_int_equal(hedge.forks, 2);
	read_check(&rd[0], 0);
	source_fault_release(w.fault);
	end();
}

/* who is lost stays lost: his good answer does not count even while others still run */
static void a_lost_childs_answer_does_not_complete_the_parent(void **state)
{
	const struct timespec ms = {.tv_nsec = 1000000};
	struct block_key k = key_of(12, 0);

	(void)state;
	begin(0, 16 * MIB, 300 * 1000, 0, 2);
	rule(FAULT_HANG, 0, 1, 0, 0);
	rule(FAULT_HANG, 1, 1, -EBUSY, 0);
	go(0, &k, 0, BLOCK);
	while (source_fault_seen(w.fault) <
	       2) /* the first one's time is over, the second one has left */
		nanosleep(&ms, NULL);
	source_fault_release(w.fault);
	waiter_wait(&wt);
	read_check(&rd[0], 0);
	assert_int_equal(hedge.losts, 2);
	assert_int_equal(hedge.passed, 1);
	end();
}

static void when_all_ways_are_lost_the_parent_goes_on_itself(void **state)
{
	struct block_key k = key_of(3, 0);

	(void)state;
	begin(0, 16 * MIB, 0, 0, 3);
	rule(FAULT_FAIL, 0, 3, -EHOSTDOWN, 0);
	go(0, &k, 0, BLOCK);
	waiter_wait(&wt);
	assert_int_equal(hedge.losts, 3);
	assert_int_equal(hedge.passed, 1);
	read_check(&rd[0], 0);
	assert_int_equal(source_fault_seen(w.fault), 4);
	end();
}

static void a_lost_child_leaves_its_reason(void **state)
{
	struct block_key k = key_of(4, 0);

	(void)state;
	begin(WITH_SYNC, 16 * MIB, 0, 0, 1);
	rule(FAULT_FAIL, 0, 2, -EBADMSG, 0);
	go(0, &k, 0, BLOCK);
	waiter_wait(&wt);
	assert_non_null(strstr(rd[0].req->reason, "fault"));
	read_check(&rd[0], -EBADMSG);
	end();
}

static void a_child_ends_with_its_parents_deadline_at_the_latest(void **state)
{
	struct block_key k = key_of(5, 0);
	uint64_t start = clock_us();

	(void)state;
	begin(0, 16 * MIB, 60 * 1000000, 0, 1);
	rule(FAULT_HANG, 0, 1, 0, 0);
	read_start(&w, &wt, &rd[0], &k, 0, BLOCK, 0);
	rd[0].req->progress_arg = &parents[0];
	rd[0].req->deadline_us = clock_us() + 5000;
	read_send(&w, &rd[0]);
	waiter_wait(&wt);
	assert_int_equal(hedge.last_status, -ETIMEDOUT);
	assert_true(clock_us() - start < 10 * 1000000);
	read_check(&rd[0], 0);
	source_fault_release(w.fault);
	end();
}

static void without_memory_there_is_no_fork(void **state)
{
	struct block_key k = key_of(6, 0);
	size_t taken = 0;

	(void)state;
	begin(0, 16 * MIB, 0, 0, 2);
	while (!pool_reserve(w.pool, POOL_DEMAND, 4096, NULL))
		taken += 4096;
	/* memory for the parent alone */
	pool_unreserve(w.pool, POOL_DEMAND, pool_cost(BLOCK + msg_sums_len(BLOCK)));
	taken -= pool_cost(BLOCK + msg_sums_len(BLOCK));
	read_start(&w, &wt, &rd[0], &k, 0, BLOCK, 0);
	rd[0].req->progress_arg = &parents[0];
	rd[0].req->reserved = req_need(rd[0].req);
	assert_int_equal(pool_reserve(w.pool, POOL_DEMAND, rd[0].req->reserved, NULL), 0);
	read_send(&w, &rd[0]);
	waiter_wait(&wt);
	assert_int_equal(hedge.forks, 0);
	assert_int_equal(hedge.passed, 1);
	read_check(&rd[0], 0);
	pool_unreserve(w.pool, POOL_DEMAND, taken);
	end();
}

static void a_fork_never_sent_is_freed(void **state)
{
	struct block_key k = key_of(7, 0);
	struct block_req *req, *child;

	(void)state;
	begin(0, 16 * MIB, 0, 0, 0);
	req = req_new(&w.env, &k, 0, BLOCK, 0, POOL_DEMAND);
	child = req_fork(req, 0, 1000, hedge_lost, &hedge);
	assert_non_null(child);
	assert_int_equal(req_race_timer(req, 1, hedge_tick, &hedge), 0);
	req_free(child);
	req_free(req);
	assert_int_equal(w.env.live, 0);
	assert_int_equal(hedge.ticks, 0);
	end();
}

/* --- frames and counters --- */

static void the_end_of_a_chain_has_nothing(void **state)
{
	struct block_key k = key_of(8, 0);

	(void)state;
	begin(0, 16 * MIB, 0, 0, 0);
	read_start(&w, &wt, &rd[0], &k, 0, 10, 0);
	source_get(NULL, rd[0].req, read_done, &rd[0]);
	read_check(&rd[0], -ENOENT);
	read_start(&w, &wt, &rd[0], &k, 0, 10, 0);
	source_drop(w.top, rd[0].req, read_done, &rd[0]);
	assert_true(read_is_done(&rd[0]));
	assert_int_equal(rd[0].status, 0);
	req_free(rd[0].req);
	end();
}

static void every_layer_is_counted_alike_and_reads_only_once(void **state)
{
	struct block_key k = key_of(9, 0), gone = key_of(9, 1);
	const char *reads = "stoke_block_reads_total", *req = "stoke_source_requests_total";

	(void)state;
	world_init(&w, WITH_RAM | WITH_FLIGHT | WITH_SYNC, CODEC_NONE, 16 * MIB);
	assert_int_equal(get_once(&w, &k, 0, BLOCK, 0, NULL, NULL), 0);
	assert_int_equal(get_once(&w, &k, 0, BLOCK, 0, NULL, NULL), 0);
	assert_int_equal(get_once(&w, &k, 100, 50, 0, NULL, NULL), 0);
	assert_int_equal(get_once(&w, &k, 100, 50, REQ_PREFETCH, NULL, NULL), 0);
	assert_int_equal(get_once(&w, &gone, 0, BLOCK, REQ_NO_FILL, NULL, NULL), -ENOENT);
	w.store.status = -EACCES;
	assert_int_equal(get_once(&w, &gone, 0, BLOCK, 0, NULL, NULL), -EACCES);
	assert_int_equal(counter(&w, reads, "kind=\"demand\",result=\"hit\""), 2);
	assert_int_equal(counter(&w, reads, "kind=\"demand\",result=\"miss\""), 1);
	assert_int_equal(counter(&w, reads, "kind=\"demand\",result=\"absent\""), 1);
	assert_int_equal(counter(&w, reads, "kind=\"demand\",result=\"error\""), 1);
	assert_int_equal(counter(&w, reads, "kind=\"prefetch\",result=\"hit\""), 1);
	assert_int_equal(counter(&w, req, "source=\"ram\",op=\"get\",result=\"hit\""), 3);
	assert_int_equal(counter(&w, req, "source=\"ram\",op=\"get\",result=\"miss\""), 1);
	assert_int_equal(counter(&w, req, "source=\"ram\",op=\"get\",result=\"absent\""), 1);
	assert_int_equal(counter(&w, req, "source=\"ram\",op=\"get\",result=\"error\""), 1);
	assert_int_equal(counter(&w, req, "source=\"flight\",op=\"get\",result=\"miss\""), 1);
	assert_int_equal(counter(&w, req, "source=\"object\",op=\"get\",result=\"hit\""), 1);
	assert_int_equal(counter(&w, "stoke_source_bytes_total", "source=\"ram\""), BLOCK + 100);
	assert_int_equal(counter(&w, "stoke_source_bytes_total", "source=\"object\""), BLOCK);
	assert_int_equal(counter(&w, "stoke_bytes_by_source_total", "source=\"s3\""), BLOCK);
	assert_int_equal(counter(&w, "stoke_bytes_by_source_total", "source=\"ram\""), BLOCK + 100);
	world_fini(&w);
}

static void forks_are_no_reads_of_their_own(void **state)
{
	struct block_key k = key_of(10, 0);

	(void)state;
	begin(0, 16 * MIB, 0, 0, 3);
	rule(FAULT_FAIL, 0, 2, -EHOSTDOWN, 0);
	go(0, &k, 0, BLOCK);
	waiter_wait(&wt);
	read_check(&rd[0], 0);
	assert_int_equal(hedge.forks, 3);
	assert_int_equal(counter(&w, "stoke_block_reads_total", "kind=\"demand\",result=\"miss\""),
			 1);
	assert_int_equal(counter(&w, "stoke_bytes_by_source_total", "source=\"s3\""), BLOCK);
	end();
}

static void what_a_request_needs_is_counted_in_pieces(void **state)
{
	struct block_key k = key_of(11, 0);
	struct block_req *req;

	(void)state;
	world_init(&w, 0, CODEC_LZ4, 16 * MIB);
	req = req_new(&w.env, &k, FRAME_PIECE - 1, 2, 0, POOL_DEMAND);
	assert_int_equal(req_need(req), pool_cost(2 * FRAME_PIECE + 8));
	req_free(req);
	req = req_new(&w.env, &k, 0, BLOCK, 0, POOL_DEMAND);
	assert_int_equal(req_need(req), pool_cost(BLOCK + msg_sums_len(BLOCK)) +
						pool_cost(codec_bound(CODEC_LZ4, BLOCK)));
	req->flags = REQ_NO_FILL; /* members give plain blocks */
	assert_int_equal(req_need(req), pool_cost(BLOCK + msg_sums_len(BLOCK)));
	req->flags = REQ_FILL;
	assert_int_equal(req_need(req), 0);
	req_free(req);
	world_fini(&w);
}

/* --- many at once, in any order --- */

/* the bottom: answers, or not, here or after some hops over two loops */
struct chaos {
	struct source base;
	struct loop *loops[2];
};

struct hop {
	struct loop_job job;
	struct chaos *chaos;
	struct block_req *req;
	unsigned left, seed;
};

static unsigned next_random(unsigned *seed)
{
	*seed = *seed * 1664525U + 1013904223U;
	return *seed >> 8;
}

static void chaos_end(struct block_req *req, unsigned dice)
{
	struct buf *b;

	if (dice % 4 == 0) {
		req_done(req, -EHOSTDOWN);
		return;
	}
	if (req->reserved < pool_cost(req->len)) {
		req_done(req, -EBUSY); /* a parent that was passed on without memory */
		return;
	}
	b = req_take(req, req->len);
	assert_non_null(b);
	for (uint32_t i = 0; i < req->len; i++)
		b->mem[i] = pattern(req->key.slice, req->key.index, req->off + i);
	req->data = blob_of_buf(b, 0, req->len);
	req_done(req, 0);
}

static void chaos_hop(struct loop_job *job)
{
	struct hop *h = container_of(job, struct hop, job);
	unsigned dice = next_random(&h->seed);
	struct block_req *req = h->req;

	if (h->left--) {
		loop_post(h->chaos->loops[dice & 1], &h->job);
		return;
	}
	free(h);
	chaos_end(req, dice);
}

static void chaos_get(struct source *s, struct block_req *req)
{
	static unsigned count;
	struct chaos *c = container_of(s, struct chaos, base);
	unsigned seed = __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED) * 2654435761U;
	unsigned dice = next_random(&seed);
	struct hop *h;

	if (dice % 8 == 0) {
		chaos_end(req, dice >> 3);
		return;
	}
	h = malloc(sizeof(*h));
	assert_non_null(h);
	*h = (struct hop){
		.job.fn = chaos_hop, .chaos = c, .req = req, .left = dice % 40, .seed = seed};
	loop_post(c->loops[dice & 1], &h->job);
}

static void chaos_free(struct source *s)
{
	source_fini(s);
}

static const struct source_ops chaos_ops = {.name = "chaos", .get = chaos_get, .free = chaos_free};

enum { THREADS = 3, ROUNDS = 400, RANGE = 4096 };

struct runner {
	pthread_t thread;
	unsigned seed;
	unsigned good, bad;
};

static void *run_reads(void *arg)
{
	struct runner *r = arg;
	struct parent *p = calloc(ROUNDS, sizeof(*p));
	struct read *reads = calloc(ROUNDS, sizeof(*reads));
	struct waiter mine;

	waiter_init(&mine);
	for (int i = 0; i < ROUNDS; i++) {
		struct block_key k = key_of(next_random(&r->seed) % 5, 0);
		uint32_t off = next_random(&r->seed) % (BLOCK / RANGE) * RANGE;

		read_start(&w, &mine, &reads[i], &k, off, RANGE, 0);
		reads[i].req->progress_arg = &p[i];
		read_send(&w, &reads[i]);
		if (i % 8 == 7)
			waiter_wait(&mine);
	}
	waiter_wait(&mine);
	for (int i = 0; i < ROUNDS; i++) {
		assert_true(reads[i].status == 0 || reads[i].status == -EHOSTDOWN ||
			    reads[i].status == -EBUSY);
		*(reads[i].status ? &r->bad : &r->good) += 1;
		read_check(&reads[i], reads[i].status);
	}
	waiter_fini(&mine);
	free(reads);
	free(p);
	return NULL;
}

/* A child may win, fail, be too late, or come after its parent is gone, while the tick and
 * time-outs come in between: every parent is answered once and right, and nothing is lost
 * (world_fini looks at the pool, drain at the requests, the sanitizers at the rest). */
static void races_end_well_in_any_order(void **state)
{
	struct runner runners[THREADS];
	struct chaos chaos = {0};
	unsigned good = 0;

	(void)state;
	world_init(&w, 0, CODEC_NONE, 64 * MIB);
	source_free(w.top);
	for (int i = 0; i < 2; i++)
		assert_int_equal(loop_new("chaos", &chaos.loops[i]), 0);
	assert_int_equal(source_init(&chaos.base, &chaos_ops, &w.env, NULL), 0);
	hedge = (struct hedge){.timeout_us = 150, .tick_us = 60, .max_forks = 4};
	assert_int_equal(source_init(&hedge.base, &hedge_ops, &w.env, &chaos.base), 0);
	w.top = &hedge.base;
	for (unsigned i = 0; i < THREADS; i++) {
		runners[i] = (struct runner){.seed = i + 1};
		assert_int_equal(pthread_create(&runners[i].thread, NULL, run_reads, &runners[i]),
				 0);
	}
	for (unsigned i = 0; i < THREADS; i++) {
		pthread_join(runners[i].thread, NULL);
		good += runners[i].good;
	}
	print_message("good %u of %d, forks %u ticks %u lost %u passed %u\n", good,
		      THREADS * ROUNDS, hedge.forks, hedge.ticks, hedge.losts, hedge.passed);
	assert_true(good > 0 && hedge.ticks > 0 && hedge.losts > 0);
	world_fini(&w);
	for (int i = 0; i < 2; i++)
		loop_free(chaos.loops[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_first_good_answer_wins_and_the_late_one_is_dropped),
		cmocka_unit_test(a_child_whose_time_is_over_is_lost_and_its_answer_too),
		cmocka_unit_test(a_lost_childs_answer_does_not_complete_the_parent),
		cmocka_unit_test(when_all_ways_are_lost_the_parent_goes_on_itself),
		cmocka_unit_test(a_lost_child_leaves_its_reason),
		cmocka_unit_test(a_child_ends_with_its_parents_deadline_at_the_latest),
		cmocka_unit_test(without_memory_there_is_no_fork),
		cmocka_unit_test(a_fork_never_sent_is_freed),
		cmocka_unit_test(the_end_of_a_chain_has_nothing),
		cmocka_unit_test(every_layer_is_counted_alike_and_reads_only_once),
		cmocka_unit_test(forks_are_no_reads_of_their_own),
		cmocka_unit_test(what_a_request_needs_is_counted_in_pieces),
		cmocka_unit_test(races_end_well_in_any_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
