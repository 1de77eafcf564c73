/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of the chain (docs/architecture.md §3), each broken through source_fault.c or watched
 * by layers that write down who calls whom. */
#include "tests/unit/block/world.h"

static struct world w;
static struct waiter wt;
static struct read rd[64];

static void begin(unsigned flags, size_t budget)
{
	world_init(&w, flags, CODEC_NONE, budget);
	waiter_init(&wt);
}

static void end(void)
{
	waiter_fini(&wt);
	world_fini(&w);
}

static void rule(enum fault_kind kind, unsigned after, unsigned count, int status)
{
	const struct fault_rule r = {
		.kind = kind, .after = after, .count = count, .status = status};

	source_fault_add(w.fault, &r);
}

/* --- order of calls --- */

static struct str calls;

struct scribe {
	struct source base;
	const char *name;
	bool has;
};

static void scribe_back(struct block_req *req, int status, void *arg)
{
	struct scribe *s = arg;

	str_addf(&calls, "%s< ", s->name);
	if (!status)
		source_admit(&s->base, req);
	req_done(req, status);
}

static void scribe_get(struct source *src, struct block_req *req)
{
	struct scribe *s = container_of(src, struct scribe, base);

	str_addf(&calls, "%s> ", s->name);
	if (s->has)
		req_done(req, -EHOSTDOWN);
	else
		source_get(src->next, req, scribe_back, s);
}

static void scribe_admit(struct source *src, struct block_req *req)
{
	(void)req;
	str_addf(&calls, "%s+ ", container_of(src, struct scribe, base)->name);
}

static void scribe_drop_back(struct block_req *req, int status, void *arg)
{
	(void)arg;
	req_done(req, status);
}

static void scribe_drop(struct source *src, struct block_req *req)
{
	str_addf(&calls, "%s- ", container_of(src, struct scribe, base)->name);
	source_drop(src->next, req, scribe_drop_back, NULL);
}

static void scribe_free(struct source *s)
{
	source_fini(s);
}

static const struct source_ops keeper_ops = {.name = "keeper",
					     .get = scribe_get,
					     .admit = scribe_admit,
					     .drop = scribe_drop,
					     .free = scribe_free};
static const struct source_ops plain_ops = {
	.name = "plain", .get = scribe_get, .free = scribe_free};

static void three_layers_are_asked_down_and_admit_on_the_way_back(void **state)
{
	struct scribe a = {.name = "a"}, b = {.name = "b"}, c = {.name = "c"};
	struct block_key k = key_of(1, 0);

	(void)state;
	begin(WITH_SYNC, 16 * MIB);
	assert_int_equal(source_init(&c.base, &keeper_ops, &w.env, w.top), 0);
	assert_int_equal(source_init(&b.base, &plain_ops, &w.env, &c.base), 0);
	assert_int_equal(source_init(&a.base, &keeper_ops, &w.env, &b.base), 0);
	w.top = &a.base;
	assert_int_equal(get_once(&w, &k, 0, BLOCK, 0, NULL, NULL), 0);
	assert_string_equal(str_c(&calls), "a> b> c> c< c+ b< a< a+ ");
	/* a range, and a whole block not to be kept, are admitted nowhere */
	str_reset(&calls);
	assert_int_equal(get_once(&w, &k, 0, BLOCK - 1, 0, NULL, NULL), 0);
	assert_int_equal(get_once(&w, &k, 0, BLOCK, REQ_NO_ADMIT, NULL, NULL), 0);
	assert_string_equal(str_c(&calls), "a> b> c> c< b< a< a> b> c> c< b< a< ");
	/* neither is an error */
	str_reset(&calls);
	rule(FAULT_FAIL, 2, 1, -EIO);
	rule(FAULT_FAIL, 3, 1, -EIO);
	assert_int_equal(get_once(&w, &k, 0, BLOCK, 0, NULL, NULL), -EIO);
	assert_string_equal(str_c(&calls), "a> b> c> c< b< a< ");
	/* a drop passes those who keep nothing */
	str_reset(&calls);
	read_start(&w, &wt, &rd[0], &k, 0, BLOCK, 0);
	source_drop(w.top, rd[0].req, read_done, &rd[0]);
	assert_int_equal(rd[0].status, 0);
	req_free(rd[0].req);
	assert_string_equal(str_c(&calls), "a- c- ");
	str_fini(&calls);
	end();
}

/* --- rule 1 --- */

/* asks its next as a cache that may fail, and on a failure that is not final asks again */
static void cautious_back(struct block_req *req, int status, void *arg)
{
	struct source *s = arg;

	if (status == -EHOSTDOWN || status == -EBADMSG || status == -ETIMEDOUT)
		source_get(s->next, req, scribe_drop_back, NULL);
	else
		req_done(req, status);
}

static void cautious_get(struct source *s, struct block_req *req)
{
	source_get(s->next, req, cautious_back, s);
}

static const struct source_ops cautious_ops = {
	.name = "cautious", .get = cautious_get, .free = scribe_free};

static void a_caches_failure_is_not_the_readers_but_the_stores_verdict_is(void **state)
{
	static const int soft[] = {-EHOSTDOWN, -EBADMSG, -ETIMEDOUT};
	static const struct {
		int store, status;
	} final[] = {{-ENOENT, -ENODATA}, {-EACCES, -EACCES}, {-EIO, -EIO}};
	struct source cautious;
	char reason[REQ_REASON];

	(void)state;
	begin(WITH_SYNC, 16 * MIB);
	assert_int_equal(source_init(&cautious, &cautious_ops, &w.env, w.top), 0);
	w.top = &cautious;
	for (unsigned i = 0; i < ARRAY_LEN(soft); i++) {
		struct block_key k = key_of(2, i);

		rule(FAULT_FAIL, source_fault_seen(w.fault), 1, soft[i]);
		assert_int_equal(get_once(&w, &k, 0, BLOCK, 0, NULL, NULL), 0);
	}
	for (unsigned i = 0; i < ARRAY_LEN(final); i++) {
		struct block_key k = key_of(3, i);
		unsigned before = mem_gets(&w.store);

		w.store.status = final[i].store;
		assert_int_equal(get_once(&w, &k, 0, BLOCK, 0, NULL, reason), final[i].status);
		assert_int_equal(mem_gets(&w.store), before + 1);
		assert_non_null(strstr(reason, "vol/chunks/0/0/3_"));
	}
	end();
}

/* --- rule 2 --- */

static void only_whole_blocks_are_kept_and_answers_are_exact(void **state)
{
	struct block_key k = key_of(4, 0);
	enum req_via via;

	(void)state;
	begin(WITH_RAM | WITH_FLIGHT | WITH_SYNC, 16 * MIB);
	assert_int_equal(get_once(&w, &k, 10, BLOCK - 10, 0, &via, NULL), 0);
	assert_int_equal(get_once(&w, &k, 10, BLOCK - 10, 0, &via, NULL), 0);
	assert_int_equal(via, VIA_OBJECT);
	assert_int_equal(get_once(&w, &k, 0, BLOCK, REQ_NO_ADMIT, &via, NULL), 0);
	assert_int_equal(get_once(&w, &k, 0, BLOCK, 0, &via, NULL), 0);
	assert_int_equal(via, VIA_OBJECT);
	for (uint32_t off = 0; off < BLOCK; off += 33333) {
		assert_int_equal(get_once(&w, &k, off, MIN(1000U, BLOCK - off), 0, &via, NULL), 0);
		assert_int_equal(via, VIA_RAM);
	}
	assert_int_equal(mem_gets(&w.store), 4);
	end();
}

static void a_short_or_long_object_is_never_kept(void **state)
{
	static const long lengths[] = {-1, 1, -BLOCK};
	struct block_key k = key_of(5, 0);
	char reason[REQ_REASON];

	(void)state;
	begin(WITH_RAM | WITH_FLIGHT | WITH_SYNC, 16 * MIB);
	for (unsigned i = 0; i < ARRAY_LEN(lengths); i++) {
		w.store.longer = lengths[i];
		assert_int_equal(get_once(&w, &k, 0, BLOCK, 0, NULL, reason), -EIO);
		assert_non_null(strstr(reason, "5_0_262144"));
	}
	w.store.longer = 0;
	assert_int_equal(get_once(&w, &k, 0, BLOCK, 0, NULL, NULL), 0);
	assert_int_equal(mem_gets(&w.store), ARRAY_LEN(lengths) + 1);
	end();
}

/* --- rule 4 --- */

/* The smallest pool, many more readers of different blocks than it has room for, and a memory cache
 * that eats half of it. */
static void the_smallest_pool_serves_all_in_line(void **state)
{
	enum { N = 64 };

	(void)state;
	begin(WITH_RAM | WITH_FLIGHT, 4 * (BLOCK + 4096));
	for (int i = 0; i < N; i++) {
		struct block_key k = key_of(6, (uint32_t)i);

		read_go(&w, &wt, &rd[i], &k, 0, BLOCK, 0);
	}
	/* who has his answer lets go of it, as a reader does */
	for (int i = 0; i < N; i++) {
		mtx_lock(&wt.lock);
		while (!rd[i].done)
			assert_true(cond_wait_us(&wt.cond, &wt.lock, 20 * 1000000));
		mtx_unlock(&wt.lock);
		read_check(&rd[i], 0);
	}
	assert_int_equal(mem_gets(&w.store), N);
	end();
}

/* Ranges of encoded blocks: each needs the whole block and its object, and must not hold its own
 * memory while it waits for theirs. */
static void the_smallest_pool_serves_ranges_of_encoded_blocks(void **state)
{
	enum { N = 64 };

	(void)state;
	for (int side = 0; side < 2; side++) {
		world_init(&w, WITH_RAM | (side ? WITH_DAEMON : WITH_FLIGHT), CODEC_LZ4,
			   4 * world_block(CODEC_LZ4));
		waiter_init(&wt);
		for (int i = 0; i < N; i++) {
			struct block_key k = key_of(16, (uint32_t)i / 4);

			read_go(&w, &wt, &rd[i], &k, (uint32_t)i * 1000, 2000, 0);
		}
		for (int i = 0; i < N; i++) {
			mtx_lock(&wt.lock);
			while (!rd[i].done)
				assert_true(cond_wait_us(&wt.cond, &wt.lock, 20 * 1000000));
			mtx_unlock(&wt.lock);
			read_check(&rd[i], 0);
		}
		/* ranges of one block share its fetch, or find it in memory while it is there */
		assert_true(mem_gets(&w.store) >= N / 4 && mem_gets(&w.store) <= N);
		end();
	}
}

static void nothing_is_asked_for_before_there_is_room_for_the_answer(void **state)
{
	struct block_key k = key_of(7, 0);
	size_t taken = 0;

	(void)state;
	begin(WITH_RAM | WITH_FLIGHT, 16 * MIB);
	while (!pool_reserve(w.pool, POOL_DEMAND, 4096, NULL))
		taken += 4096;
	read_go(&w, &wt, &rd[0], &k, 0, BLOCK, 0);
	read_go(&w, &wt, &rd[1], &k, 0, BLOCK, REQ_PREFETCH);
	loop_settle(&w);
	assert_int_equal(source_fault_seen(w.fault), 0);
	pool_unreserve(w.pool, POOL_DEMAND, taken);
	waiter_wait(&wt);
	read_check(&rd[0], 0);
	read_check(&rd[1], 0); /* it joined who waits */
	end();
}

/* --- rule 8 --- */

static void damage_on_the_way_does_not_pass_the_checksums(void **state)
{
	struct block_key k = key_of(8, 0);
	uint32_t piece = 0;

	(void)state;
	begin(WITH_SYNC | WITH_SUMS, 16 * MIB);
	rule(FAULT_CORRUPT, 0, 1, 0);
	for (int i = 0; i < 2; i++) {
		const struct block_req *req;
		int r;

		read_go(&w, &wt, &rd[i], &k, 0, BLOCK, 0);
		waiter_wait(&wt); /* the sums are made by the codecs' threads */
		req = rd[i].req;
		assert_int_equal(rd[i].status, 0);
		assert_int_equal(req->sums.len, msg_sums_len(BLOCK));
		r = block_sums_check(&k, 0, blob_mem(&req->data), BLOCK, blob_mem(&req->sums),
				     &piece);
		assert_int_equal(r, i ? 0 : -EBADMSG);
	}
	assert_int_equal(piece, BLOCK / 2 / FRAME_PIECE);
	req_free(rd[0].req);
	read_check(&rd[1], 0);
	end();
}

/* --- all together --- */

static void answers_are_right_whatever_is_slow(void **state)
{
	unsigned seed = 4711;

	(void)state;
	begin(WITH_RAM | WITH_DAEMON, 8 * MIB);
	source_fault_add(w.fault,
			 &(struct fault_rule){
				 .kind = FAULT_DELAY, .after = 3, .count = 5, .delay_us = 2000});
	source_fault_add(w.fault, &(struct fault_rule){.kind = FAULT_FAIL,
						       .after = 20,
						       .count = 3,
						       .status = -ETIMEDOUT});
	w.store.step = 4096;
	for (int round = 0; round < 40; round++) {
		for (unsigned i = 0; i < ARRAY_LEN(rd); i++) {
			struct block_key k =
				key_of(9, (seed = seed * 1103515245 + 12345) >> 16 & 15);
			uint32_t off = (seed >> 8) % BLOCK;
			uint32_t len = MIN(BLOCK - off, 1 + (seed >> 4) % 40000);
			bool whole = seed >> 20 & 1;

			read_go(&w, &wt, &rd[i], &k, whole ? 0 : off, whole ? BLOCK : len,
				seed >> 24 & 1 ? REQ_PREFETCH : 0);
		}
		waiter_wait(&wt);
		for (unsigned i = 0; i < ARRAY_LEN(rd); i++) {
			assert_true(!rd[i].status || rd[i].status == -ETIMEDOUT ||
				    rd[i].status == -ENOBUFS);
			read_check(&rd[i], rd[i].status);
		}
	}
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(three_layers_are_asked_down_and_admit_on_the_way_back),
		cmocka_unit_test(a_caches_failure_is_not_the_readers_but_the_stores_verdict_is),
		cmocka_unit_test(only_whole_blocks_are_kept_and_answers_are_exact),
		cmocka_unit_test(a_short_or_long_object_is_never_kept),
		cmocka_unit_test(the_smallest_pool_serves_all_in_line),
		cmocka_unit_test(the_smallest_pool_serves_ranges_of_encoded_blocks),
		cmocka_unit_test(nothing_is_asked_for_before_there_is_room_for_the_answer),
		cmocka_unit_test(damage_on_the_way_does_not_pass_the_checksums),
		cmocka_unit_test(answers_are_right_whatever_is_slow),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
