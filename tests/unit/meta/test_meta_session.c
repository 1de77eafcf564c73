/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions over a real Redis: who is dead and who only looks so, what a lapsed one loses and gets
 * back, numbers that come twice, and the results of scripts that outlive their session. */
#include <inttypes.h>

#include "tests/unit/meta/volume.h"

enum { BEAT_US = 50000, TRIES = 500, PAUSE_US = 10000 };

static struct meta *open_beating(void)
{
	struct meta_conf conf = test_conf();

	conf.heartbeat_us = BEAT_US;
	return open_redis_conf(&conf, NULL);
}

static bool becomes(const char *cmd, int64_t want)
{
	for (int i = 0; i < TRIES; i++, usleep(PAUSE_US)) {
		if (raw_int(cmd) == want)
			return true;
	}
	return false;
}

/* as a client leaves it: a lock, a nameless file (inode 9), a result */
static void session_of_another(uint64_t sid, const char *expiry)
{
	char cmd[256];

	snprintf(cmd, sizeof(cmd), "ZADD allSessions %s %" PRIu64, expiry, sid);
	raw_run(cmd);
	snprintf(cmd, sizeof(cmd), "HSET sessionInfos %" PRIu64 " {}", sid);
	raw_run(cmd);
	snprintf(cmd, sizeof(cmd), "HSET lockf9 %" PRIu64 "_01 R", sid);
	raw_run(cmd);
	snprintf(cmd, sizeof(cmd), "SADD locked%" PRIu64 " lockf9", sid);
	raw_run(cmd);
	snprintf(cmd, sizeof(cmd), "SADD session%" PRIu64 " 9", sid);
	raw_run(cmd);
}

/* its clock is behind, or ours ahead; a dead one beside it goes */
static void who_moves_its_expiry_lives(void **state)
{
	struct meta *m;
	char cmd[64];

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	session_of_another(77, "1000");
	session_of_another(78, "1000");
	m = open_beating();
	for (int i = 0; i < TRIES && raw_int("HEXISTS sessionInfos 78"); i++, usleep(PAUSE_US)) {
		snprintf(cmd, sizeof(cmd), "ZADD allSessions %d 77", 1001 + i);
		raw_run(cmd);
	}
	assert_int_equal(raw_int("EXISTS locked78 session78"), 0);
	assert_int_equal(raw_int("HEXISTS sessionInfos 77"), 1);
	assert_int_equal(raw_int("EXISTS locked77 session77"), 2);
	assert_int_equal(raw_int("HEXISTS lockf9 77_01"), 1);
	/* and once it does not move any more */
	assert_true(becomes("HEXISTS sessionInfos 77", 0));
	assert_int_equal(raw_int("EXISTS locked77 session77 lockf9"), 0);
	close_meta(m);
}

/* the scripts themselves: between the look and them it gave a sign of life */
static void what_takes_from_a_session_asks_again(void **state)
{
	struct meta_redis *mr;
	struct meta *m;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(NULL);
	mr = redis_engine(m);
	session_of_another(77, "2000");
	assert_int_equal(session_unlock(mr, 77, "1000", soon()), -EAGAIN);
	assert_int_equal(sustained_end(mr, 77, "1000"), -EAGAIN);
	assert_int_equal(session_leave(mr, 77, "1000", soon()), -EAGAIN);
	assert_int_equal(raw_int("EXISTS locked77 session77 lockf9"), 3);
	assert_int_equal(raw_int("HEXISTS sessionInfos 77"), 1);
	assert_int_equal(session_unlock(mr, 77, "2000", soon()), 0);
	assert_int_equal(sustained_end(mr, 77, "2000"), 0);
	assert_int_equal(session_leave(mr, 77, "2000", soon()), 0);
	assert_int_equal(raw_int("EXISTS locked77 session77 lockf9"), 0);
	/* somebody else was faster */
	assert_int_equal(session_leave(mr, 77, "2000", soon()), -EAGAIN);
	close_meta(m);
}

/* a beat that comes late, as when the database was away, is no look: what it finds is new */
static void what_was_seen_before_the_database_was_away_does_not_count(void **state)
{
	struct meta_conf conf = test_conf();
	struct meta_redis *mr;
	struct meta *m;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	conf.heartbeat_us = 100000;
	conf.no_bgjob = true; /* the test looks, not the thread */
	m = open_redis_conf(&conf, NULL);
	mr = redis_engine(m);
	session_of_another(77, "1000");
	stale_clean(mr, soon());
	usleep(1400000);
	raw_run("DEL lastCleanupSessions");
	stale_clean(mr, soon());
	assert_int_equal(raw_int("HEXISTS sessionInfos 77"), 1);
	usleep(350000);
	raw_run("DEL lastCleanupSessions");
	stale_clean(mr, soon());
	assert_int_equal(raw_int("HEXISTS sessionInfos 77"), 0);
	close_meta(m);
}

/* --- stored results --- */

static uint64_t make(struct meta *m, const char *name)
{
	return make_mode(m, &root_ctx, INODE_ROOT, name, INODE_FILE, 0644);
}

static void results_outlive_their_session_by_an_hour(void **state)
{
	struct meta_redis *mr;
	struct meta *m, *dead;
	char cmd[160];

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(NULL);
	mr = redis_engine(m);
	dead = open_redis(NULL);
	assert_int_equal(meta_session_id(dead), 2);
	make(dead, "f");
	raw_run("ZADD allSessions 1000 2");
	assert_int_equal(session_leave(mr, 2, "1000", soon()), 0);
	assert_int_equal(raw_int("HEXISTS _ops 2_0"), 1);
	stale_sweep(mr, false, soon());
	assert_int_equal(raw_int("HEXISTS _ops 2_0"), 1);
	/* an hour later; a number of 24, a result, its time */
	snprintf(
		cmd, sizeof(cmd),
		"EVAL redis.call('HSET','_ops','2_1',string.rep('n',24)..cmsgpack.pack({1},%" PRId64
		"),'2_2',string.rep('n',24)..cmsgpack.pack(7)) 0",
		(int64_t)time(NULL) - 3700);
	raw_run(cmd);
	stale_sweep(mr, false, soon());
	assert_int_equal(raw_int("HEXISTS _ops 2_0"), 1);
	assert_int_equal(raw_int("HEXISTS _ops 2_1"), 0);
	/* one that no time was written to gets one, and is still a result */
	assert_int_equal(raw_int("HEXISTS _ops 2_2"), 1);
	assert_int_equal(raw_int("EVAL return\tcmsgpack.unpack(redis.call('HGET','_ops','2_2'):sub("
				 "25)) 0"),
			 7);
	assert_true(raw_int("EVAL return\tselect(2,cmsgpack.unpack(redis.call('HGET','_ops','2_2'):"
			    "sub(25))) 0") >= (int64_t)time(NULL) - 10);
	close_meta(dead);
	assert_int_equal(raw_int("HEXISTS _ops 2_0"), 0); /* it ended itself */
	close_meta(m);
}

static void a_sweep_takes_pages(void **state)
{
	struct meta_redis *mr;
	struct meta *m;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(NULL);
	mr = redis_engine(m);
	make(m, "f");
	raw_run("EVAL for\ti=1,5000\tdo\tredis.call('HSET','_ops',100+math.fmod(i,50)..'_'..i,"
		"string.rep('n',24)..cmsgpack.pack({1},1500000000))end 0");
	raw_run("HSET _ops junk z 3x_1 y");
	stale_sweep(mr, true, soon());
	assert_int_equal(raw_int("HLEN _ops"), 1); /* ours */
	/* nothing tells that there are any: nobody looks */
	raw_run("HSET _ops 100_1 x");
	stale_sweep(mr, true, soon());
	assert_int_equal(raw_int("HLEN _ops"), 2);
	stale_sweep(mr, false, soon());
	assert_int_equal(raw_int("HLEN _ops"), 2); /* dated */
	close_meta(m);
}

/* the token is gone, the record is there */
static void a_write_that_stands_there_is_done(void **state)
{
	struct slice s = {.size = 10, .len = 10};
	struct attr a;
	struct meta *m;
	uint64_t f;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(NULL);
	f = make(m, "f");
	assert_int_equal(meta_new_slice(m, &s.id, &(struct hash128){{0}}), 0);
	assert_int_equal(meta_write(m, f, 0, &s, time_of(1, 1), &a), 0);
	raw_run("DEL _ops");
	assert_int_equal(meta_write(m, f, 0, &s, time_of(1, 1), &a), 0);
	assert_int_equal(a.length, 10);
	assert_int_equal(raw_int("LLEN c2_0"), 1);
	s.pos = 10; /* another part of it: nothing that stands there */
	assert_int_equal(meta_write(m, f, 0, &s, time_of(1, 1), &a), 0);
	assert_int_equal(raw_int("LLEN c2_0"), 2);
	close_meta(m);
}

/* --- our own --- */

static void count_lapses(void *arg)
{
	__atomic_add_fetch((unsigned *)arg, 1, __ATOMIC_RELAXED);
}

static uint64_t open_nameless(struct meta *m, const char *name)
{
	struct chunk_list l;
	uint64_t inode = make(m, name);

	assert_int_equal(meta_open(m, &root_ctx, inode, O_RDWR, &l), 0);
	chunk_list_fini(&l);
	assert_int_equal(meta_unlink(m, &root_ctx, INODE_ROOT, name), 0);
	return inode;
}

/* as others clean it up: one of its nameless files is gone, one they did not get to */
static void who_had_lapsed_takes_back_what_is_there(void **state)
{
	unsigned lapses = 0;
	uint64_t kept, lost;
	struct meta *m;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_beating();
	meta_set_lapsed(m, count_lapses, &lapses);
	kept = open_nameless(m, "kept");
	lost = open_nameless(m, "lost");
	assert_int_equal(raw_int("SCARD session1"), 2);
	usleep(3 * BEAT_US);
	assert_int_equal(__atomic_load_n(&lapses, __ATOMIC_RELAXED), 0);
	raw_of("DEL i", lost);
	raw_run("EVAL redis.call('DEL','session1')redis.call('HDEL','sessionInfos','1')"
		"redis.call('ZREM','allSessions','1') 0");
	assert_true(becomes("SCARD session1", 1));
	assert_int_equal(raw_of("SISMEMBER session1 ", kept), 1);
	for (int i = 0; i < TRIES && !__atomic_load_n(&lapses, __ATOMIC_RELAXED); i++)
		usleep(PAUSE_US);
	assert_int_equal(__atomic_load_n(&lapses, __ATOMIC_RELAXED), 1);
	assert_int_equal(meta_close(m, kept), 0);
	assert_int_equal(meta_close(m, lost), 0);
	assert_int_equal(raw_int("EXISTS session1"), 0);
	assert_int_equal(raw_of("EXISTS i", kept), 0);
	close_meta(m);
	assert_int_equal(raw_int("EXISTS allSessions sessionInfos"), 0);
}

static void a_number_that_went_back_is_raised(void **state)
{
	struct meta *a, *b;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	a = open_redis(NULL);
	b = open_beating();
	assert_int_equal(meta_session_id(b), 2);
	raw_run("SET nextsession 0");
	assert_true(becomes("GET nextsession", 2));
	/* what is no number is left alone, and nobody dies of it */
	raw_run("SET nextsession abc");
	raw_run("ZADD allSessions 1000 2");
	for (int i = 0; i < TRIES && raw_int("ZSCORE allSessions 2") <= 1000; i++)
		usleep(PAUSE_US);
	assert_true(raw_int("ZSCORE allSessions 2") > 1000);
	raw_run("SET nextsession 2");
	close_meta(b);
	close_meta(a);
}

static void a_number_that_is_anothers_is_given_up(void **state)
{
	unsigned lapses = 0;
	struct meta *m, *other;
	uint64_t kept;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_beating();
	meta_set_lapsed(m, count_lapses, &lapses);
	kept = open_nameless(m, "kept");
	/* the database went back to before we came, and another one came first */
	raw_run("EVAL redis.call('HSET','sessionInfos','1','{}')redis.call('DEL','session1')"
		"redis.call('SADD','session1','99')redis.call('SADD','locked1','lockf9')"
		"redis.call('ZADD','allSessions','4000000000','1') 0");
	for (int i = 0; i < TRIES && !__atomic_load_n(&lapses, __ATOMIC_RELAXED); i++)
		usleep(PAUSE_US);
	assert_int_equal(meta_session_id(m), 2);
	assert_int_equal(raw_of("SISMEMBER session2 ", kept), 1);
	assert_int_equal(raw_int("HEXISTS sessionInfos 2"), 1);
	make(m, "more");
	assert_int_equal(meta_close(m, kept), 0);
	assert_int_equal(raw_of("EXISTS i", kept), 0);
	/* who comes now asks for numbers until one is nobody's */
	raw_run("HSET sessionInfos 3 {}");
	other = open_redis(NULL);
	assert_int_equal(meta_session_id(other), 4);
	close_meta(other);
	/* and whoever ends with a number that is another's by now takes nothing from it */
	close_meta(m);
	assert_int_equal(raw_int("EXISTS session1 locked1"), 2);
	assert_int_equal(raw_int("HEXISTS sessionInfos 1"), 1);
}

static void who_ends_with_anothers_number_takes_nothing(void **state)
{
	struct meta *m;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(NULL);
	make(m, "f");
	raw_run("HSET sessionInfos 1 {}");
	raw_run("SADD session1 99");
	raw_run("SADD locked1 lockf9");
	raw_run("HSET lockf9 1_01 W");
	close_meta(m);
	assert_int_equal(raw_int("EXISTS session1 locked1 lockf9"), 3);
	assert_int_equal(raw_int("HEXISTS sessionInfos 1"), 1);
	assert_int_equal(raw_int("ZCARD allSessions"), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(who_moves_its_expiry_lives),
		cmocka_unit_test(what_takes_from_a_session_asks_again),
		cmocka_unit_test(what_was_seen_before_the_database_was_away_does_not_count),
		cmocka_unit_test(results_outlive_their_session_by_an_hour),
		cmocka_unit_test(a_sweep_takes_pages),
		cmocka_unit_test(a_write_that_stands_there_is_done),
		cmocka_unit_test(who_had_lapsed_takes_back_what_is_there),
		cmocka_unit_test(a_number_that_went_back_is_raised),
		cmocka_unit_test(a_number_that_is_anothers_is_given_up),
		cmocka_unit_test(who_ends_with_anothers_number_takes_nothing),
	};

	return cmocka_run_group_tests(tests, start_server, stop_server);
}
