/* SPDX-License-Identifier: Apache-2.0 */
/* Compaction over a real Redis: what lists become, references, the trash, and what happens when
 * somebody else is faster. Instead of an object store, a table knows what each slice holds. */
#include "client/meta/slice.h"
#include "tests/unit/meta/volume.h"

enum { SLICES = 4000, BYTES = 64 };

/* slice i holds BYTES bytes at most; each byte of the whole is written once, so its value tells
 * where it came from */
static struct store {
	struct mtx lock;
	uint8_t data[SLICES][BYTES * 80];
	uint32_t size[SLICES];
	bool deleted[SLICES];
	unsigned writes, deletes;
	uint64_t bytes;
	int fail;
	void (*before)(struct meta *m);
	struct meta *m;
} store;

static int store_delete(void *arg, uint64_t slice, uint32_t size)
{
	(void)arg;
	assert_true(slice < SLICES);
	mtx_lock(&store.lock);
	assert_true(!store.deleted[slice]);
	assert_int_equal(store.size[slice], size);
	store.deleted[slice] = true;
	store.deletes++;
	mtx_unlock(&store.lock);
	return 0;
}

static int store_compact(void *arg, const struct compact_job *job)
{
	uint32_t at = 0;

	(void)arg;
	assert_true(job->id < SLICES && job->size <= sizeof(store.data[0]));
	if (store.before)
		store.before(store.m);
	mtx_lock(&store.lock);
	for (size_t i = 0; i < job->n; i++) {
		const struct slice *s = &job->pieces[i];

		if (s->id) {
			assert_true(!store.deleted[s->id]);
			memcpy(store.data[job->id] + at, store.data[s->id] + s->off, s->len);
		} else {
			memset(store.data[job->id] + at, 0, s->len);
		}
		at += s->len;
	}
	assert_int_equal(at, job->size);
	store.size[job->id] = job->size;
	store.writes++;
	store.bytes += job->size;
	mtx_unlock(&store.lock);
	return store.fail;
}

static struct meta *open_compacting(unsigned trash_days)
{
	struct meta_conf conf = test_conf();
	struct str err = STR_INIT;
	struct meta *m = NULL;

	fresh_volume(trash_days);
	memset(&store, 0, sizeof(store));
	mtx_init(&store.lock);
	assert_int_equal(meta_redis_new(server.url, &conf, &m, &err), 0);
	meta_set_delete(m, store_delete, NULL);
	meta_set_compact(m, store_compact, NULL);
	assert_int_equal(meta_start(m, &err), 0);
	store.m = m;
	str_fini(&err);
	return m;
}

static uint64_t make(struct meta *m, const char *name)
{
	uint64_t inode;
	struct attr a;

	assert_int_equal(
		meta_mknod(m, &root_ctx, INODE_ROOT, name, INODE_FILE, 0644, 0, 0, "", &inode, &a),
		0);
	return inode;
}

static void put(struct meta *m, uint64_t inode, uint32_t pos, uint32_t len, uint8_t value)
{
	struct slice s = {.pos = pos, .size = len, .len = len};
	struct attr a;

	assert_int_equal(meta_new_slice(m, &s.id, &(struct hash128){{0}}), 0);
	assert_true(s.id < SLICES);
	mtx_lock(&store.lock);
	store.size[s.id] = len;
	memset(store.data[s.id], value, len);
	mtx_unlock(&store.lock);
	assert_int_equal(meta_write(m, inode, 0, &s, time_of(9, 9), &a), 0);
}

/* bytes [0, n) of the chunk; returns how many records the list has */
static size_t look(struct meta *m, uint64_t inode, uint8_t *ret, uint32_t n)
{
	struct chunk_list l;
	struct slice_view v;
	size_t records;

	assert_int_equal(lists_read(redis_engine(m), inode, 0, 1, soon(), &l), 0);
	assert_int_equal(slice_view_build(l.slices, l.n, &v), 0);
	memset(ret, 0, n);
	mtx_lock(&store.lock);
	for (size_t i = 0; i < v.n; i++) {
		const struct slice *s = &v.pieces[i];

		assert_true(!s->id || !store.deleted[s->id]);
		for (uint32_t k = 0; s->id && k < s->len && s->pos + k < n; k++)
			ret[s->pos + k] = store.data[s->id][s->off + k];
	}
	mtx_unlock(&store.lock);
	records = l.n;
	slice_view_fini(&v);
	chunk_list_fini(&l);
	return records;
}

static void many_small_writes_become_one_slice(void **state)
{
	uint8_t before[5000], after[5000];
	uint64_t f, freed = 0;
	struct meta *m;

	(void)state;
	NEED_SERVER();
	m = open_compacting(0);
	f = make(m, "f");
	for (uint32_t i = 0; i < 80; i++)
		put(m, f, i * 50, 60, (uint8_t)(i + 1));
	assert_int_equal(look(m, f, before, sizeof(before)), 80);
	assert_int_equal(meta_compact(m, f, 0, &freed), 0);
	assert_int_equal(look(m, f, after, sizeof(after)), 1);
	assert_memory_equal(before, after, sizeof(before));
	assert_int_equal(freed, 80 * 60);
	assert_int_equal(store.writes, 1);
	assert_int_equal(store.bytes, 79 * 50 + 60);
	assert_int_equal(store.deletes, 80);
	assert_int_equal(raw_int("HLEN sliceRef"), 0);
	assert_int_equal(raw_int("EXISTS delSlices"), 0);
	/* again: nothing to do */
	assert_int_equal(meta_compact(m, f, 0, &freed), 0);
	assert_int_equal(freed, 0);
	assert_int_equal(store.writes, 1);
	close_meta(m);
}

static void with_trash_old_slices_wait(void **state)
{
	uint8_t bytes[100];
	uint64_t f, freed = 0;
	struct meta *m;

	(void)state;
	NEED_SERVER();
	m = open_compacting(1);
	f = make(m, "f");
	for (uint32_t i = 0; i < 3; i++)
		put(m, f, i * 10, 10, 7);
	assert_int_equal(meta_compact(m, f, 0, &freed), 0);
	assert_int_equal(look(m, f, bytes, sizeof(bytes)), 1);
	assert_int_equal(store.deletes, 0);
	assert_int_equal(freed, 0);
	assert_int_equal(raw_int("HLEN delSlices"), 1);
	assert_int_equal(raw_int("HLEN sliceRef"), 0);
	{
		struct redis_reply *r = NULL;
		size_t n;

		/* three of 12 bytes: number and size */
		assert_int_equal(redis_once(raw, soon(), &r, "HVALS delSlices"), 0);
		assert_non_null(redis_reply_str(redis_reply_at(r, 0), &n));
		assert_int_equal(n, 36);
		redis_reply_free(r);
	}
	close_meta(m);
}

/* slices that a copy refers to as well, and pieces that keep theirs */
static void references_are_counted_by_record(void **state)
{
	uint8_t before[400], after[400];
	uint64_t f, g, freed = 0, copied;
	struct meta *m;
	struct attr a;

	(void)state;
	NEED_SERVER();
	m = open_compacting(0);
	f = make(m, "f");
	g = make(m, "g");
	put(m, f, 0, 100, 1);
	put(m, f, 100, 100, 2);
	assert_int_equal(meta_copy_file_range(m, &root_ctx, f, 0, g, 0, 200, &copied, &a), 0);
	assert_int_equal(meta_copy_file_range(m, &root_ctx, f, 50, f, 200, 100, &copied, &a), 0);
	look(m, f, before, sizeof(before));
	assert_int_equal(meta_compact(m, f, 0, &freed), 0);
	assert_int_equal(look(m, f, after, sizeof(after)), 1);
	assert_memory_equal(before, after, sizeof(before));
	assert_int_equal(store.deletes, 0); /* g has them */
	assert_int_equal(meta_unlink(m, &root_ctx, INODE_ROOT, "g"), 0);
	assert_int_equal(meta_unlink(m, &root_ctx, INODE_ROOT, "f"), 0);
	close_meta(m);
	assert_int_equal(store.deletes, 3);
	assert_int_equal(raw_int("HLEN sliceRef"), 0);
}

static void pieces_that_stand_alone_keep_their_slice(void **state)
{
	enum { FAR = 10 * MB };
	uint64_t f, freed = 0;
	struct chunk_list l;
	struct meta *m;

	(void)state;
	NEED_SERVER();
	m = open_compacting(0);
	f = make(m, "f");
	put(m, f, FAR, 50, 1);		/* 1 */
	put(m, f, 2 * FAR, 50, 2);	/* 2 */
	put(m, f, FAR, 50, 3);		/* 3 covers 1 */
	put(m, f, 3 * FAR, 50, 4);	/* 4 */
	put(m, f, 2 * FAR + 20, 10, 5); /* cuts 2 in two, with 5 between */
	assert_int_equal(meta_compact(m, f, 0, &freed), 0);
	assert_int_equal(meta_read(m, f, 0, 1, &l), 0);
	assert_int_equal(l.n, 3);
	assert_int_equal(l.slices[0].id, 3);
	assert_int_equal(l.slices[2].id, 4);
	chunk_list_fini(&l);
	assert_int_equal(store.bytes, 50);
	assert_int_equal(store.deletes, 3); /* 1, 2, 5 */
	assert_int_equal(freed, 110);
	assert_int_equal(raw_int("HLEN sliceRef"), 0);
	close_meta(m);
}

static void append_meanwhile(struct meta *m)
{
	store.before = NULL;
	put(m, 2, 4000, 10, 99);
}

static void what_was_appended_meanwhile_stays(void **state)
{
	uint8_t bytes[5000];
	uint64_t f, freed = 0;
	struct meta *m;

	(void)state;
	NEED_SERVER();
	m = open_compacting(0);
	f = make(m, "f");
	assert_int_equal(f, 2);
	put(m, f, 3990, 20, 1);
	put(m, f, 4010, 20, 2);
	put(m, f, 4030, 20, 3);
	store.before = append_meanwhile;
	assert_int_equal(meta_compact(m, f, 0, &freed), 0);
	look(m, f, bytes, sizeof(bytes));
	assert_int_equal(bytes[3995], 1);
	assert_int_equal(bytes[4005], 99);
	assert_int_equal(bytes[4049], 3);
	close_meta(m);
}

static void cut_meanwhile(struct meta *m)
{
	uint64_t freed;

	store.before = NULL;
	(void)m;
	(void)freed;
	raw_run("LPOP c2_0"); /* as if another client had compacted */
}

static void who_was_overtaken_leaves_nothing(void **state)
{
	uint8_t bytes[5000];
	uint64_t f, freed = 0;
	struct meta *m;

	(void)state;
	NEED_SERVER();
	m = open_compacting(0);
	f = make(m, "f");
	put(m, f, 0, 20, 1);
	put(m, f, 20, 20, 2);
	put(m, f, 40, 20, 3);
	store.before = cut_meanwhile;
	assert_int_equal(meta_compact(m, f, 0, &freed), 0);
	assert_int_equal(store.writes, 2); /* in vain, then of what is there */
	assert_int_equal(look(m, f, bytes, sizeof(bytes)), 1);
	assert_int_equal(bytes[10], 0);
	assert_int_equal(bytes[45], 3);
	assert_int_equal(store.deletes, 3); /* what was written in vain, and 2 and 3 */
	close_meta(m);
}

static void a_store_that_fails_changes_nothing(void **state)
{
	uint8_t bytes[100];
	uint64_t f, freed = 0;
	struct meta *m;

	(void)state;
	NEED_SERVER();
	m = open_compacting(0);
	f = make(m, "f");
	put(m, f, 0, 20, 1);
	put(m, f, 20, 20, 2);
	store.fail = -EIO;
	assert_int_equal(meta_compact(m, f, 0, &freed), -EIO);
	assert_int_equal(look(m, f, bytes, sizeof(bytes)), 2);
	assert_int_equal(store.deletes, 1);
	close_meta(m);
}

static void long_lists_become_short_by_themselves(void **state)
{
	uint8_t bytes[5000];
	struct chunk_list l;
	struct meta *m;
	size_t n = 999;
	uint64_t f, g;

	(void)state;
	NEED_SERVER();
	m = open_compacting(0);
	f = make(m, "f");
	g = make(m, "g");
	for (uint32_t i = 0; i < 99; i++)
		put(m, f, i * 10, 10, (uint8_t)i);
	for (int i = 0; i < 500 && n > 1; i++, usleep(10000))
		n = look(m, f, bytes, sizeof(bytes));
	assert_int_equal(n, 1);
	/* a reader that finds five */
	for (uint32_t i = 0; i < 5; i++)
		put(m, g, i * 10, 10, (uint8_t)i);
	assert_int_equal(meta_read(m, g, 0, 1, &l), 0);
	chunk_list_fini(&l);
	n = 99;
	for (int i = 0; i < 500 && n > 1; i++, usleep(10000))
		n = look(m, g, bytes, sizeof(bytes));
	assert_int_equal(n, 1);
	for (uint32_t i = 0; i < 50; i++)
		assert_int_equal(bytes[i], i / 10);
	close_meta(m);
}

/* far apart, so that nothing can be gained: it is not tried at each write */
static void what_is_futile_is_left_alone(void **state)
{
	struct chunk_list l;
	struct meta *m;
	uint64_t f;

	(void)state;
	NEED_SERVER();
	m = open_compacting(0);
	f = make(m, "f");
	for (uint32_t i = 0; i < 400; i++)
		put(m, f, i * 100000, 10, 1);
	for (int i = 0; i < 20; i++) {
		assert_int_equal(meta_read(m, f, 0, 1, &l), 0);
		assert_int_equal(l.n, 400);
		chunk_list_fini(&l);
	}
	close_meta(m);
	assert_int_equal(store.writes, 0);
	assert_int_equal(raw_int("LLEN c2_0"), 400);
}

/* the record of zeros that tells so survives */
static void a_file_that_was_longer_is_deleted_in_full(void **state)
{
	struct slice s = {.size = 60, .len = 60};
	uint64_t f, freed = 0;
	struct meta *m;
	struct attr a;

	(void)state;
	NEED_SERVER();
	m = open_compacting(0);
	f = make(m, "f");
	put(m, f, 0, 60, 1);
	put(m, f, 60, 60, 1);
	assert_int_equal(meta_new_slice(m, &s.id, &(struct hash128){{0}}), 0);
	store.size[s.id] = 60;
	assert_int_equal(meta_write(m, f, 3, &s, time_of(9, 9), &a), 0);
	assert_int_equal(meta_truncate(m, &root_ctx, f, 100, false, &a), 0);
	assert_int_equal(meta_compact(m, f, 0, &freed), 0);
	assert_int_equal(raw_int("LLEN c2_0"), 2);
	assert_int_equal(meta_truncate(m, &root_ctx, f, 0, false, &a), 0);
	assert_int_equal(meta_compact(m, f, 0, &freed), 0);
	assert_int_equal(raw_int("LLEN c2_0"), 1);
	assert_int_equal(meta_unlink(m, &root_ctx, INODE_ROOT, "f"), 0);
	close_meta(m);
	assert_int_equal(raw_int("EXISTS c2_0 c2_3 delfiles sliceRef"), 0);
	assert_int_equal(store.deletes, 4);
}

/* a write whose answer was lost, committed twice: counted once, shown twice */
static void what_a_list_still_shows_is_never_let_go(void **state)
{
	enum { FAR = 10 * MB };
	uint64_t f, freed = 0;

	(void)state;
	NEED_SERVER();
	for (unsigned trash_days = 0; trash_days < 2; trash_days++) {
		struct meta *m = open_compacting(trash_days);

		f = make(m, "f");
		assert_int_equal(f, 2);
		put(m, f, 0, 50, 1);
		raw_run("EVAL redis.call('RPUSH','c2_0',redis.call('LINDEX','c2_0',0)) 0");
		put(m, f, FAR, 50, 2);
		put(m, f, FAR, 50, 3);
		assert_int_equal(meta_compact(m, f, 0, &freed), 0);
		assert_int_equal(raw_int("LLEN c2_0"), 2);
		assert_false(store.deleted[1]);
		assert_int_equal(raw_int("HEXISTS sliceRef k1_50"), 0);
		if (trash_days) /* only what was covered */
			assert_int_equal(
				raw_int("EVAL return\t#redis.call('HVALS','delSlices')[1] 0"), 12);
		else
			assert_int_equal(store.deletes, 1);
		close_meta(m);
	}
}

/* the script alone, with a token that nobody has used; returns elements of the answer, 'done' or
 * not */
static size_t compact_by_hand(struct meta *m, const struct slice *seen, size_t n,
			      const struct slice *new, bool *ret_done)
{
	uint8_t was[4 * SLICE_LEN], is[SLICE_LEN];
	struct meta_redis *mr = redis_engine(m);
	struct redis_reply *reply = NULL;
	struct args args;
	size_t len;

	for (size_t i = 0; i < n; i++)
		slice_encode(&seen[i], was + i * SLICE_LEN);
	slice_encode(new, is);
	args_init(&args, mr);
	op_begin(mr, &args);
	args_u64(&args, 2);
	args_u64(&args, 0);
	args_bytes(&args, was, n * SLICE_LEN);
	args_u64(&args, 0);
	args_bytes(&args, is, sizeof(is));
	args_u64(&args, new->id);
	args_text(&args, "0");
	assert_int_equal(op_eval(mr, SC_COMPACT, &args, &reply), 0);
	op_end(mr, &args);
	*ret_done = reply_is(reply_at(reply, 0), "done");
	len = reply_len(reply);
	redis_reply_free(reply);
	return len;
}

static void records_behind_those_looked_at_count_too(void **state)
{
	struct slice seen[2] = {{.id = 1, .size = 50, .len = 50}, {.id = 2, .size = 50, .len = 50}};
	bool done;
	struct meta *m;

	(void)state;
	NEED_SERVER();
	m = open_compacting(0);
	assert_int_equal(make(m, "f"), 2);
	put(m, 2, 0, 50, 1);
	put(m, 2, 0, 50, 2);
	raw_run("EVAL redis.call('RPUSH','c2_0',redis.call('LINDEX','c2_0',0)) 0");
	assert_int_equal(compact_by_hand(m, seen, 2, &seen[1], &done), 1);
	assert_true(done);
	assert_int_equal(raw_int("LLEN c2_0"), 2);
	assert_int_equal(raw_int("HLEN sliceRef"), 0);
	/* and is let go as often as it was counted */
	raw_run("DEL c2_0 sliceRef");
	put(m, 2, 0, 50, 3);
	put(m, 2, 0, 50, 4);
	raw_run("EVAL local\tr=redis.call('LINDEX','c2_0',0)redis.call('DEL','c2_0')"
		"redis.call('RPUSH','c2_0',r,r,r) 0");
	raw_run("HSET sliceRef k3_50 1");
	seen[0].id = seen[1].id = 3;
	assert_int_equal(compact_by_hand(m, seen, 2, &seen[1], &done), 1);
	assert_true(done);
	assert_int_equal(raw_int("HGET sliceRef k3_50"), 1);
	assert_int_equal(compact_by_hand(m, seen, 2, &seen[1], &done), 1);
	assert_int_equal(raw_int("LLEN c2_0"), 1);
	assert_int_equal(raw_int("HGET sliceRef k3_50"), 0);
	close_meta(m);
}

/* As it is asked again after its token was taken away: it happened, so what it wrote is shown, or
 * was counted since, and must not be deleted. */
static void a_compaction_without_its_token_knows_that_it_happened(void **state)
{
	const struct slice seen[2] = {{.id = 1, .size = 50, .len = 50},
				      {.pos = 50, .id = 2, .size = 50, .len = 50}};
	struct slice new = {.id = 3, .size = 100, .len = 100};
	struct meta *m;
	bool done;

	(void)state;
	NEED_SERVER();
	m = open_compacting(0);
	assert_int_equal(make(m, "f"), 2);
	put(m, 2, 0, 50, 1);
	put(m, 2, 50, 50, 2);
	assert_int_equal(compact_by_hand(m, seen, 2, &new, &done), 5);
	assert_true(done);
	raw_run("DEL _ops");
	assert_int_equal(compact_by_hand(m, seen, 2, &new, &done), 1);
	assert_true(done);
	assert_int_equal(raw_int("LLEN c2_0"), 1);
	/* not in this list any more, but a copy has it */
	raw_run("DEL c2_0");
	raw_run("HSET sliceRef k3_100 0");
	assert_int_equal(compact_by_hand(m, seen, 2, &new, &done), 1);
	assert_true(done);
	/* it never was */
	raw_run("HDEL sliceRef k3_100");
	assert_int_equal(compact_by_hand(m, seen, 2, &new, &done), 1);
	assert_false(done);
	close_meta(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(many_small_writes_become_one_slice),
		cmocka_unit_test(with_trash_old_slices_wait),
		cmocka_unit_test(references_are_counted_by_record),
		cmocka_unit_test(pieces_that_stand_alone_keep_their_slice),
		cmocka_unit_test(what_was_appended_meanwhile_stays),
		cmocka_unit_test(who_was_overtaken_leaves_nothing),
		cmocka_unit_test(a_store_that_fails_changes_nothing),
		cmocka_unit_test(long_lists_become_short_by_themselves),
		cmocka_unit_test(what_is_futile_is_left_alone),
		cmocka_unit_test(a_file_that_was_longer_is_deleted_in_full),
		cmocka_unit_test(what_a_list_still_shows_is_never_let_go),
		cmocka_unit_test(records_behind_those_looked_at_count_too),
		cmocka_unit_test(a_compaction_without_its_token_knows_that_it_happened),
	};

	return cmocka_run_group_tests(tests, start_server, stop_server);
}
