/* SPDX-License-Identifier: Apache-2.0 */
/* Truncating files of thousands of lists over a real Redis: in steps, and at any moment all behind
 * the length reads as zeros. */
#include "tests/unit/meta/volume.h"

#include <pthread.h>

enum { LISTS = 2500, FAR = 5000 };

/* file 2 (f) of FAR chunks: in each of the first LISTS one slice fills the whole chunk */
static uint64_t dense_file(struct meta *m)
{
	static const char *const fill =
		"local p=function(v) return string.char(math.floor(v/16777216)%256,"
		"math.floor(v/65536)%256,math.floor(v/256)%256,v%256) end "
		"for c=0,ARGV[1]-1 do redis.call('RPUSH','c'..ARGV[2]..'_'..c,"
		"p(0)..p(0)..p(c+1)..p(67108864)..p(0)..p(67108864)) end";
	uint64_t f = make_mode(m, &root_ctx, INODE_ROOT, "f", INODE_FILE, 0644);
	struct redis_reply *r = NULL;
	struct attr a;

	assert_int_equal(meta_truncate(m, &root_ctx, f, (uint64_t)FAR * CHUNK_SIZE, false, &a), 0);
	assert_int_equal(f, 2);
	raw_run("DEL c2_0");
	assert_int_equal(redis_once(raw, soon(), &r, "EVAL %s 0 %d %llu", fill, LISTS,
				    (unsigned long long)f),
			 0);
	redis_reply_free(r);
	return f;
}

/* of the file's chunks those that show data behind the length */
static int64_t data_behind(uint64_t f)
{
	static const char *const look =
		"local u=function(s,i) local a,b,c,d=string.byte(s,i,i+3) "
		"return ((a*256+b)*256+c)*256+d end "
		"local a=redis.call('GET','i'..ARGV[1]) local len=u(a,52)*4294967296+u(a,56) "
		"local bad=0 for c=0,4999 do local "
		"l=redis.call('LRANGE','c'..ARGV[1]..'_'..c,0,-1) "
		"local top=0 for _,s in ipairs(l) do local p,e=u(s,1),u(s,1)+u(s,21) "
		"if string.sub(s,5,12)~=string.rep('\\0',8) then top=math.max(top,e) "
		"elseif p<top and e>=top then top=p end end "
		"if c*67108864+top>len and top>0 then bad=bad+1 end end return bad";
	struct redis_reply *r = NULL;
	int64_t n;

	assert_int_equal(redis_once(raw, soon(), &r, "EVAL %s 0 %llu", look, (unsigned long long)f),
			 0);
	n = redis_reply_int(r);
	redis_reply_free(r);
	return n;
}

/* steps of truncations that the change log tells of */
static int64_t steps(void)
{
	return raw_int(
		"EVAL local\tn=0\tfor\t_,l\tin\tipairs(redis.call('LRANGE','txnLog',0,-1))do\t"
		"if\tstring.find(l,'|TRUNCATE(',1,true)then\tn=n+1\tend\tend\treturn\tn 0");
}

static void a_dense_file_becomes_shorter_from_its_end(void **state)
{
	uint64_t f, small = 3 * (uint64_t)CHUNK_SIZE + 7;
	struct meta *m, *other;
	int64_t before;
	struct attr a;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	volume_enable("ChangeLog");
	m = open_redis(NULL);
	f = dense_file(m);
	before = steps();
	assert_int_equal(meta_truncate(m, &root_ctx, f, small, false, &a), 0);
	assert_int_equal(a.length, small);
	assert_int_equal(attr_of(m, f).length, small);
	assert_int_equal(steps() - before, 3);
	assert_int_equal(raw_int("LLEN txnLog"), raw_int("GET txnLastLog"));
	assert_int_equal(data_behind(f), 0);
	assert_int_equal(raw_int("GET usedSpace"), (int64_t)align4k(small));
	assert_int_equal(raw_int("LLEN c2_2"), 1);
	assert_int_equal(raw_int("LLEN c2_2499"), 2);
	/* and grows: zeros, then the length */
	assert_int_equal(meta_truncate(m, &root_ctx, f, (uint64_t)FAR * CHUNK_SIZE, false, &a), 0);
	assert_int_equal(steps() - before, 4);
	assert_int_equal(raw_int("LLEN c2_3"), 3);
	assert_int_equal(raw_int("LLEN c2_4"), 3);
	assert_int_equal(raw_int("LLEN c2_2499"), 3);
	assert_int_equal(raw_int("EXISTS c2_2500"), 0);
	assert_int_equal(raw_int("GET usedSpace"), (int64_t)FAR * CHUNK_SIZE);
	close_meta(m);
	other = open_redis(NULL);
	assert_int_equal(raw_int("HGET dirDataLength 1"), (int64_t)FAR * CHUNK_SIZE);
	close_meta(other);
}

struct beside {
	pthread_t thread;
	struct meta *m;
	bool stop;
	int (*once)(struct beside *b); /* and how often it did something */
	int did;
};

static void *beside_main(void *arg)
{
	struct beside *b = arg;

	while (!__atomic_load_n(&b->stop, __ATOMIC_RELAXED))
		b->did += b->once(b);
	return NULL;
}

static void beside_start(struct beside *b)
{
	assert_int_equal(pthread_create(&b->thread, NULL, beside_main, b), 0);
}

static void beside_end(struct beside *b)
{
	__atomic_store_n(&b->stop, true, __ATOMIC_RELAXED);
	pthread_join(b->thread, NULL);
}

/* how many found something; the file is looked at at whatever moment */
static int look(struct beside *b)
{
	(void)b;
	return data_behind(2) != 0;
}

static void at_every_moment_all_behind_the_length_is_zeros(void **state)
{
	struct beside b = {.once = look};
	struct meta *m;
	struct attr a;
	uint64_t f;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(NULL);
	f = dense_file(m);
	beside_start(&b);
	assert_int_equal(meta_truncate(m, &root_ctx, f, 10, false, &a), 0);
	assert_int_equal(meta_truncate(m, &root_ctx, f, (uint64_t)FAR * CHUNK_SIZE, false, &a), 0);
	beside_end(&b);
	assert_int_equal(b.did, 0);
	close_meta(m);
}

/* another client writes far behind, again and again */
static int append(struct beside *b)
{
	struct slice s = {.pos = 5, .size = 10, .len = 10};
	struct attr a;

	usleep(50000);
	if (meta_new_slice(b->m, &s.id, &(struct hash128){{0}}))
		return 0;
	return meta_write(b->m, 2, 4000 + (uint32_t)b->did, &s, time_of(9, (uint32_t)b->did), &a) ==
	       0;
}

static void what_is_written_meanwhile_is_not_behind_the_end(void **state)
{
	struct beside b = {.once = append};
	struct meta *m;
	struct attr a;
	uint64_t f;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(NULL);
	b.m = open_redis(NULL);
	f = dense_file(m);
	beside_start(&b);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(meta_truncate(m, &root_ctx, f, 10 + (uint64_t)i, false, &a), 0);
		assert_int_equal(data_behind(f), 0);
		assert_int_equal(
			meta_truncate(m, &root_ctx, f, (uint64_t)FAR * CHUNK_SIZE, false, &a), 0);
		assert_int_equal(data_behind(f), 0);
	}
	beside_end(&b);
	assert_true(b.did > 0);
	assert_int_equal(raw_int("GET usedSpace"), (int64_t)align4k(attr_of(m, f).length));
	close_meta(b.m);
	close_meta(m);
}

static int break_connections(struct beside *b)
{
	struct redis_reply *r = NULL;

	(void)b;
	usleep(3000);
	(void)redis_once(raw, soon(), &r, "CLIENT KILL TYPE normal SKIPME yes");
	redis_reply_free(r);
	return 1;
}

static void lost_answers_count_nothing_twice(void **state)
{
	struct beside b = {.once = break_connections};
	struct meta *m;
	struct attr a;
	uint64_t f;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(NULL);
	f = dense_file(m);
	beside_start(&b);
	for (int i = 0; i < 5; i++) {
		assert_int_equal(meta_truncate(m, &root_ctx, f, 10 + (uint64_t)i, false, &a), 0);
		assert_int_equal(a.length, 10 + i);
		assert_int_equal(
			meta_truncate(m, &root_ctx, f, (uint64_t)FAR * CHUNK_SIZE, false, &a), 0);
	}
	beside_end(&b);
	assert_int_equal(raw_int("GET usedSpace"), (int64_t)FAR * CHUNK_SIZE);
	assert_int_equal(data_behind(f), 0);
	close_meta(m);
}

/* a server that is quiet for longer than read-timeout has not lost what it was told */
static void a_late_answer_is_asked_for_again(void **state)
{
	struct meta_conf conf = test_conf();
	char url[sizeof(server.url) + 32];
	struct str err = STR_INIT;
	struct lists lists = {0};
	struct meta *m;
	struct attr a;
	uint64_t f;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	snprintf(url, sizeof(url), "%s&read-timeout=300ms", server.url);
	assert_int_equal(meta_redis_new(url, &conf, &m, &err), 0);
	assert_int_equal(meta_start(m, &err), 0);
	f = dense_file(m);
	raw_run("CLIENT PAUSE 1000 WRITE");
	assert_int_equal(meta_truncate(m, &root_ctx, f, 10, false, &a), 0);
	assert_int_equal(a.length, 10);
	assert_int_equal(data_behind(f), 0);
	assert_int_equal(raw_int("GET usedSpace"), 4096);
	raw_run("CLIENT PAUSE 1000 ALL");
	assert_int_equal(lists_find_alone(redis_engine(m), f, 0, LISTS, &lists), 0);
	assert_int_equal(lists.n, LISTS);
	lists_fini(&lists);
	close_meta(m);
	str_fini(&err);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_dense_file_becomes_shorter_from_its_end),
		cmocka_unit_test(at_every_moment_all_behind_the_length_is_zeros),
		cmocka_unit_test(what_is_written_meanwhile_is_not_behind_the_end),
		cmocka_unit_test(lost_answers_count_nothing_twice),
		cmocka_unit_test(a_late_answer_is_asked_for_again),
	};

	return cmocka_run_group_tests(tests, start_server, stop_server);
}
