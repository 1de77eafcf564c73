/* SPDX-License-Identifier: Apache-2.0 */
/* The registry against a real redis-server on a unix socket. Time passes by moving the stored
 * clocks back, so that no test sleeps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include "common/block/registry.h"
#include "common/clock.h"

static char dir[] = "/tmp/stoke-registry-XXXXXX";
static pid_t server;
static struct redis *redis;

static uint64_t soon(void)
{
	return clock_us() + 5000000;
}

static void cmd(const char *fmt, const char *arg)
{
	struct redis_reply *reply = NULL;

	assert_int_equal(redis_once(redis, soon(), &reply, fmt, arg), 0);
	redis_reply_free(reply);
}

static int64_t number(const char *command)
{
	struct redis_reply *reply = NULL;
	int64_t v;

	assert_int_equal(redis_once(redis, soon(), &reply, command), 0);
	v = redis_reply_int(reply);
	redis_reply_free(reply);
	return v;
}

/* as if ms had passed: for everything, or for the heartbeats of one member alone */
static void time_passes(int ms, const char *only)
{
	static const char lua[] = "for _, f in ipairs({'any', 'epoch', 'settle', 'window'}) do "
				  "  if ARGV[2] == '' and redis.call('HEXISTS', KEYS[2], f) == 1 "
				  "then redis.call('HINCRBY', KEYS[2], f, -ARGV[1]) end "
				  "end "
				  "for _, m in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do "
				  "  if ARGV[2] == '' or ARGV[2] == m then redis.call('ZINCRBY', "
				  "KEYS[1], -ARGV[1], m) end "
				  "end";
	struct redis_script s;
	struct redis_reply *reply = NULL;
	char text[16];
	const char *argv[] = {"_group:g:seen", "_group:g:state", text, only ? only : ""};
	size_t lens[4];

	snprintf(text, sizeof(text), "%d", ms);
	for (unsigned i = 0; i < 4; i++)
		lens[i] = strlen(argv[i]);
	assert_int_equal(redis_script_init(&s, "time", "", lua), 0);
	assert_int_equal(redis_eval(redis, soon(), &s, 2, 4, argv, lens, &reply), 0);
	redis_reply_free(reply);
	redis_script_fini(&s);
}

static struct member member(unsigned i)
{
	struct member m = {.port = (uint16_t)(7000 + i), .weight = 100, .state = MEMBER_ACTIVE};

	snprintf(m.id, sizeof(m.id), "m%u", i);
	snprintf(m.addr, sizeof(m.addr), "10.0.0.%u", i);
	return m;
}

static int say(struct registry *g, const struct member *m, enum beat_kind kind, struct cluster **io)
{
	struct registry_beat b = {.self = m, .kind = kind};
	struct generation gen;

	return registry_heartbeat(g, soon(), &b, io, &gen);
}

static int beat(struct registry *g, unsigned i, struct cluster **io)
{
	struct member m = member(i);

	return say(g, &m, BEAT_FORCED, io);
}

static int fetch(struct registry *g, struct cluster **io)
{
	struct generation gen;

	return registry_fetch(g, soon(), io, &gen);
}

static void drop(struct cluster **c)
{
	cluster_unref(TAKE_PTR(*c));
}

static void registry_needs_a_volume(void **state)
{
	struct registry *g = *state;
	struct cluster *c = NULL;

	cmd("DEL %s", "setting");
	assert_int_equal(beat(g, 1, &c), -ENOENT);
	assert_int_equal(fetch(g, &c), -ENOENT);
	assert_null(c);
	/* a stray key would make juicefs load refuse the database */
	assert_int_equal(number("DBSIZE"), 0);
}

static void registry_joins_and_tells_changes(void **state)
{
	struct registry *g = *state;
	struct cluster *a = NULL, *b = NULL, *same;
	struct member m = member(2);
	struct registry_beat beats = {.slowed = false};
	struct generation gen;

	assert_int_equal(beat(g, 1, &a), 0);
	assert_int_equal(a->n, 1);
	assert_string_equal(a->members[0].id, "m1");
	assert_string_equal(a->members[0].addr, "10.0.0.1");
	assert_int_equal(a->members[0].port, 7001);
	assert_int_equal(a->members[0].state, MEMBER_ACTIVE);
	same = a;
	assert_int_equal(beat(g, 1, &a), 0);
	assert_ptr_equal(a, same); /* nothing moved: not even a copy */

	assert_int_equal(beat(g, 2, &b), 0);
	assert_int_equal(b->n, 2);
	assert_int_equal(beat(g, 1, &a), 0);
	assert_int_equal(a->n, 2);
	assert_int_equal(a->version, b->version);

	m.weight = 300;
	m.state = MEMBER_DRAINING;
	cmd("SET _gen %s", "12345678");
	beats.self = &m;
	assert_int_equal(registry_heartbeat(g, soon(), &beats, &b, &gen), 0);
	assert_memory_equal(gen.b, "12345678", 8);
	assert_true(b->version > a->version);
	assert_int_equal(fetch(g, &a), 0);
	assert_int_equal(a->members[1].weight, 300);
	assert_int_equal(a->members[1].state, MEMBER_DRAINING);

	assert_int_equal(registry_leave(g, soon(), "m2", 0, NULL), 0);
	assert_int_equal(registry_leave(g, soon(), "m2", 0, NULL), 0);
	assert_int_equal(fetch(g, &a), 0);
	assert_int_equal(a->n, 1);
	assert_int_equal(fetch(g, &b), 0);
	assert_int_equal(b->n, 1);
	drop(&a);
	drop(&b);
}

static void registry_lapses_who_is_silent(void **state)
{
	struct registry *g = *state;
	struct cluster *c = NULL;

	for (unsigned i = 1; i <= 3; i++)
		assert_int_equal(beat(g, i, &c), 0);
	time_passes(100000, NULL);
	assert_int_equal(beat(g, 1, &c), 0); /* away for 100 s: clocks start again */
	time_passes(5100, NULL);
	cmd("HINCRBY _group:g:state any %s", "5100"); /* but somebody called all the time */
	time_passes(-5100, "m1");
	time_passes(-5100, "m3");
	time_passes(-100000, "m3");
	assert_int_equal(fetch(g, &c), 0);
	assert_int_equal(c->n, 2);
	assert_int_equal(cluster_index(c, "m2"), -1);
	/* it comes back by its next heartbeat */
	assert_int_equal(beat(g, 2, &c), 0);
	assert_int_equal(c->n, 3);
	drop(&c);
}

static void registry_that_was_away_lapses_nobody_G13(void **state)
{
	struct registry *g = *state;
	struct cluster *c = NULL;
	uint64_t version;

	for (unsigned i = 1; i <= 50; i++)
		assert_int_equal(beat(g, i, &c), 0);
	version = c->version;
	time_passes(60000, NULL);
	assert_int_equal(fetch(g, &c), 0);
	for (unsigned i = 1; i <= 50; i++)
		assert_int_equal(beat(g, i, &c), 0);
	assert_int_equal(c->n, 50);
	assert_int_equal(c->version, version);
	drop(&c);
}

static void registry_lapses_a_tenth_at_a_time(void **state)
{
	struct registry *g = *state;
	struct cluster *c = NULL;

	for (unsigned i = 1; i <= 50; i++)
		assert_int_equal(beat(g, i, &c), 0);
	time_passes(20000, NULL);
	cmd("HINCRBY _group:g:state any %s", "20000");
	for (unsigned k = 0; k < 3; k++) {
		assert_int_equal(fetch(g, &c), 0);
		assert_int_equal(c->n, 45);
	}
	time_passes(5000, NULL);
	cmd("HINCRBY _group:g:state any %s", "5000");
	assert_int_equal(fetch(g, &c), 0);
	assert_int_equal(c->n, 41);
	drop(&c);
}

static void registry_never_goes_back_G11(void **state)
{
	struct registry *g = *state;
	struct cluster *c = NULL, *d = NULL;
	uint64_t version;

	for (unsigned i = 1; i <= 4; i++)
		assert_int_equal(beat(g, i, &c), 0);
	for (unsigned i = 0; i < 5; i++) {
		assert_int_equal(registry_leave(g, soon(), "m4", 0, NULL), 0);
		assert_int_equal(beat(g, 4, &c), 0);
	}
	version = c->version;
	assert_int_equal(c->n, 4);
	/* failed over to a replica that lost the group, but has the volume */
	cmd("DEL _group:g:members _group:g:versions _group:g:seen %s", "_group:g:state");
	assert_int_equal(fetch(g, &c), 0);
	assert_int_equal(c->n, 4); /* the ring is kept */
	assert_int_equal(beat(g, 1, &c), 0);
	assert_int_equal(c->n, 4);
	assert_int_equal(beat(g, 2, &c), 0);
	assert_int_equal(c->n, 4);
	/* who has nothing yet takes what there is */
	assert_int_equal(fetch(g, &d), 0);
	assert_int_equal(d->n, 2);
	assert_true(d->version > version);
	assert_int_equal(beat(g, 3, &c), 0);
	time_passes(3000, NULL);
	cmd("HINCRBY _group:g:state any %s", "3000");
	assert_int_equal(fetch(g, &c), 0);
	assert_int_equal(c->n, 3);
	assert_true(c->version > version);
	drop(&c);
	drop(&d);
}

static void registry_empty_list_is_not_believed_G11(void **state)
{
	struct registry *g = *state;
	struct cluster *c = NULL, *same;

	assert_int_equal(beat(g, 1, &c), 0);
	assert_int_equal(beat(g, 2, &c), 0);
	same = c;
	cmd("DEL _group:g:members _group:g:versions _group:g:seen %s", "_group:g:state");
	assert_int_equal(fetch(g, &c), 0);
	time_passes(4000, NULL);
	assert_int_equal(fetch(g, &c), 0);
	assert_ptr_equal(c, same);
	/* a bare server */
	cmd("FLUSHALL%s", "");
	assert_int_equal(fetch(g, &c), -ENOENT);
	assert_ptr_equal(c, same);
	drop(&c);
}

static void registry_forgets_old_changes_but_nobody_misses_any(void **state)
{
	struct registry *g = *state;
	struct cluster *old = NULL, *mid = NULL, *c = NULL;

	assert_int_equal(beat(g, 1, &c), 0);
	assert_int_equal(beat(g, 2, &old), 0);
	cmd("HSET _group:g:state epoch %s", "9000000000000"); /* nobody lapses while this runs */
	for (unsigned i = 100; i < 100 + 1100; i++) {
		assert_int_equal(beat(g, i, &c), 0);
		if (i < 100 + 1000) {
			char id[16];

			snprintf(id, sizeof(id), "m%u", i);
			assert_int_equal(registry_leave(g, soon(), id, 0, NULL), 0);
		}
		if (i == 1150) {
			assert_int_equal(fetch(g, &mid), 0);
			assert_int_equal(mid->n, 2 + 51);
		}
	}
	assert_true(number("ZCARD _group:g:versions") <= 1024);
	assert_int_equal(fetch(g, &c), 0);
	assert_int_equal(c->n, 102);
	assert_int_equal(fetch(g, &mid), 0); /* by changes */
	assert_int_equal(mid->n, 102);
	assert_int_equal(fetch(g, &old), 0); /* everybody */
	assert_int_equal(old->n, 102);
	drop(&c);
	drop(&old);
	drop(&mid);
}

static void registry_survives_records_that_are_not_ours(void **state)
{
	struct registry *g = *state;
	struct cluster *c = NULL;

	assert_int_equal(beat(g, 1, &c), 0);
	cmd("HSET _group:g:members bad %s", "nonsense");
	cmd("HSET _group:g:members worse %s", "2 100 99999 10.0.0.9");
	cmd("HSET _group:g:members ok %s", "2 100 999 10.0.0.9");
	drop(&c);
	assert_int_equal(fetch(g, &c), 0);
	assert_int_equal(c->n, 2);
	assert_int_equal(cluster_index(c, "ok"), 1);
	drop(&c);
}

static enum member_state state_in(const struct cluster *c, const char *id)
{
	int i = cluster_index(c, id);

	assert_true(i >= 0);
	return c->members[i].state;
}

static void registry_has_a_new_member_join_unless_it_is_alone(void **state)
{
	struct registry *g = *state;
	struct cluster *c = NULL;
	struct member m = member(1);

	m.state = MEMBER_JOINING;
	assert_int_equal(say(g, &m, BEAT_FIRST, &c), 0);
	assert_int_equal(state_in(c, "m1"), MEMBER_ACTIVE);
	m = member(2);
	m.state = MEMBER_JOINING;
	assert_int_equal(say(g, &m, BEAT_FIRST, &c), 0);
	assert_int_equal(say(g, &m, BEAT_AGAIN, &c), 0);
	assert_int_equal(state_in(c, "m2"), MEMBER_JOINING);
	/* nobody is active any more: who joins is not, for others may have what it lacks */
	assert_int_equal(registry_leave(g, soon(), "m1", 0, NULL), 0);
	m = member(3);
	m.state = MEMBER_JOINING;
	assert_int_equal(say(g, &m, BEAT_FIRST, &c), 0);
	assert_int_equal(state_in(c, "m3"), MEMBER_JOINING);
	/* forced */
	m.state = MEMBER_ACTIVE;
	assert_int_equal(say(g, &m, BEAT_FORCED, &c), 0);
	assert_int_equal(state_in(c, "m3"), MEMBER_ACTIVE);
	drop(&c);
}

static void registry_has_who_was_away_join_again(void **state)
{
	struct registry *g = *state;
	struct cluster *c = NULL;
	struct member m = member(2);

	assert_int_equal(beat(g, 1, &c), 0);
	assert_int_equal(beat(g, 2, &c), 0);
	/* the process was started again, elsewhere, with another weight: that comes later */
	m.state = MEMBER_JOINING;
	m.weight = 300;
	m.port = 9;
	assert_int_equal(say(g, &m, BEAT_FIRST, &c), 0);
	assert_int_equal(state_in(c, "m2"), MEMBER_JOINING);
	assert_int_equal(c->members[1].weight, 100);
	assert_int_equal(c->members[1].port, 9);
	/* it lapsed and does not know */
	assert_int_equal(registry_leave(g, soon(), "m2", 0, NULL), 0);
	m.state = MEMBER_ACTIVE;
	assert_int_equal(say(g, &m, BEAT_AGAIN, &c), 0);
	assert_int_equal(state_in(c, "m2"), MEMBER_JOINING);
	drop(&c);
}

static void registry_lets_nobody_step_on_what_he_has_not_seen(void **state)
{
	struct registry *g = *state;
	struct cluster *c = NULL, *old = NULL;
	struct member m = member(2);
	uint64_t lost = 1;

	assert_int_equal(beat(g, 1, &c), 0);
	m.state = MEMBER_JOINING;
	assert_int_equal(say(g, &m, BEAT_FIRST, &c), 0);
	old = cluster_ref(c);
	assert_int_equal(beat(g, 3, &c), 0); /* another change */
	m.state = MEMBER_ACTIVE;
	assert_int_equal(say(g, &m, BEAT_IF_SAME, &old), 0);
	assert_int_equal(state_in(old, "m2"), MEMBER_JOINING);
	assert_int_equal(old->n, 3); /* and is told what he missed */
	assert_int_equal(say(g, &m, BEAT_IF_SAME, &old), 0);
	assert_int_equal(state_in(old, "m2"), MEMBER_ACTIVE);
	/* nor does anybody who lapsed meanwhile */
	assert_int_equal(registry_leave(g, soon(), "m3", 0, NULL), 0);
	m = member(3);
	assert_int_equal(fetch(g, &old), 0);
	assert_int_equal(say(g, &m, BEAT_IF_SAME, &old), 0);
	assert_int_equal(state_in(old, "m3"), MEMBER_JOINING);
	m = member(2);
	/* leaving: the same */
	assert_int_equal(registry_leave(g, soon(), "m2", 0, &c), 0);
	assert_int_equal(state_in(c, "m2"), MEMBER_ACTIVE);
	assert_int_equal(registry_left(g, soon(), "m2", &lost), 0);
	assert_int_equal(registry_leave(g, soon(), "m2", 7, &c), 0);
	assert_int_equal(cluster_index(c, "m2"), -1);
	assert_int_equal(registry_left(g, soon(), "m2", &lost), 1);
	assert_int_equal(lost, 7);
	assert_int_equal(say(g, &m, BEAT_FIRST, &c), 0);
	assert_int_equal(registry_left(g, soon(), "m2", &lost), 0);
	drop(&c);
	drop(&old);
}

static void registry_counts_who_went(void **state)
{
	struct registry *g = *state;
	struct cluster *a = NULL, *c = NULL;
	struct member m;
	uint64_t losses;

	for (unsigned i = 1; i <= 3; i++)
		assert_int_equal(beat(g, i, &a), 0);
	losses = a->losses;
	assert_int_equal(beat(g, 4, &a), 0);
	assert_int_equal(a->losses, losses); /* who comes is no loss */
	/* somebody comes and goes while a does not look */
	assert_int_equal(beat(g, 5, &c), 0);
	assert_int_equal(registry_leave(g, soon(), "m5", 0, NULL), 0);
	assert_int_equal(fetch(g, &a), 0);
	assert_int_equal(a->losses, losses + 1);
	m = member(4);
	m.state = MEMBER_DRAINING;
	assert_int_equal(say(g, &m, BEAT_AGAIN, &a), 0);
	assert_int_equal(a->losses, losses + 2);
	assert_int_equal(registry_leave(g, soon(), "m4", 0, NULL), 0);
	assert_int_equal(fetch(g, &a), 0);
	assert_int_equal(a->losses, losses + 3);
	drop(&a);
	drop(&c);
}

static void registry_passes_wishes_progress_and_slow_downs_on(void **state)
{
	struct registry *g = *state;
	struct cluster *c = NULL;
	struct member m = member(1);
	struct registry_beat b = {.self = &m, .kind = BEAT_FORCED};
	struct generation gen;

	snprintf(m.sub_group, sizeof(m.sub_group), "rack");
	assert_int_equal(registry_heartbeat(g, soon(), &b, &c, &gen), 0);
	assert_string_equal(c->members[0].sub_group, "rack");
	assert_false(b.drain);
	assert_true(b.slowed_ago_us == UINT64_MAX);
	assert_int_equal(b.members, 1);
	assert_int_equal(registry_wish(g, soon(), "m2", true), -ENOENT);
	assert_int_equal(registry_wish(g, soon(), "m1", true), 0);
	b.slowed = true;
	b.moved = 3;
	b.to_move = 7;
	assert_int_equal(registry_heartbeat(g, soon(), &b, &c, &gen), 0);
	assert_true(b.drain);
	assert_true(b.slowed_ago_us < 1000000);
	b.slowed = false;
	assert_int_equal(beat(g, 2, &c), 0);
	assert_int_equal(registry_heartbeat(g, soon(), &b, &c, &gen), 0);
	assert_true(b.slowed_ago_us < 5000000);
	assert_int_equal(b.members, 2);
	assert_int_equal(registry_wish(g, soon(), "m1", false), 0);
	assert_int_equal(registry_heartbeat(g, soon(), &b, &c, &gen), 0);
	assert_false(b.drain);
	/* nothing of a member outlives it */
	assert_int_equal(registry_wish(g, soon(), "m1", true), 0);
	assert_int_equal(registry_leave(g, soon(), "m1", 0, NULL), 0);
	assert_int_equal(number("HLEN _group:g:notes"), 0);
	drop(&c);
}

static void check_notes(const char *group, const struct cluster *c,
			const struct registry_note *notes, void *arg)
{
	bool *checked = arg;

	(void)group;
	assert_int_equal(c->n, 2);
	assert_true(notes[1].drain);
	assert_int_equal(notes[1].moved, 3);
	assert_int_equal(notes[1].to_move, 7);
	assert_false(notes[0].drain);
	assert_int_equal(notes[0].to_move, 0);
	*checked = true;
}

static void registry_each_tells_progress(void **state)
{
	struct registry *g = *state;
	struct cluster *c = NULL;
	struct member m = member(2);
	struct registry_beat b = {.self = &m, .kind = BEAT_FORCED, .moved = 3, .to_move = 7};
	struct generation gen;
	bool checked = false;

	assert_int_equal(beat(g, 1, &c), 0);
	assert_int_equal(registry_heartbeat(g, soon(), &b, &c, &gen), 0);
	assert_int_equal(registry_wish(g, soon(), "m2", true), 0);
	assert_int_equal(registry_each(redis, soon(), check_notes, &checked), 0);
	assert_true(checked);
	drop(&c);
}

static void count_group(const char *group, const struct cluster *c,
			const struct registry_note *notes, void *arg)
{
	size_t *n = arg;

	assert_false(notes[0].drain);
	assert_true(strcmp(group, "g") == 0 || strcmp(group, "other:one") == 0);
	n[group[0] == 'g'] = c->n;
}

static void registry_each_lists_the_groups(void **state)
{
	struct registry *g = *state, *other;
	struct cluster *c = NULL;
	size_t n[2] = {0};

	assert_int_equal(beat(g, 1, &c), 0);
	assert_int_equal(beat(g, 2, &c), 0);
	drop(&c);
	assert_int_equal(registry_new(redis, "other:one", &other), 0);
	assert_int_equal(beat(other, 1, &c), 0);
	registry_free(other);
	drop(&c);
	assert_int_equal(registry_each(redis, soon(), count_group, n), 0);
	assert_int_equal(n[1], 2);
	assert_int_equal(n[0], 1);
	assert_int_equal(registry_new(redis, "", &other), -EINVAL);
	assert_int_equal(registry_new(redis, "a b", &other), -EINVAL);
}

static int fresh(void **state)
{
	struct registry *g;

	cmd("FLUSHALL%s", "");
	cmd("SET setting %s", "{}");
	if (registry_new(redis, "g", &g) < 0)
		return -1;
	*state = g;
	return 0;
}

static int over(void **state)
{
	registry_free(*state);
	return 0;
}

static int start_server(void **state)
{
	char path[64], url[96];
	struct str err = STR_INIT;
	int r = -ECONNREFUSED;

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/s", dir);
	snprintf(url, sizeof(url), "unix://%s", path);
	server = fork();
	if (server == 0) {
		int null = open("/dev/null", O_RDWR);

		dup2(null, 1);
		dup2(null, 2);
		execlp("redis-server", "redis-server", "--port", "0", "--unixsocket", path,
		       "--save", "", "--appendonly", "no", "--dir", dir, NULL);
		_exit(127);
	}
	for (unsigned i = 0; i < 500 && r < 0; i++) {
		str_reset(&err);
		r = redis_new(url, NULL, &redis, &err);
		if (r < 0)
			usleep(20000);
	}
	if (r < 0)
		print_error("%s\n", str_c(&err));
	str_fini(&err);
	return r;
}

static int stop_server(void **state)
{
	char command[96];

	(void)state;
	redis_free(redis);
	kill(server, SIGKILL);
	waitpid(server, NULL, 0);
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	return system(command);
}

int main(void)
{
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, fresh, over)
	const struct CMUnitTest tests[] = {
		TEST(registry_needs_a_volume),
		TEST(registry_joins_and_tells_changes),
		TEST(registry_lapses_who_is_silent),
		TEST(registry_that_was_away_lapses_nobody_G13),
		TEST(registry_lapses_a_tenth_at_a_time),
		TEST(registry_never_goes_back_G11),
		TEST(registry_empty_list_is_not_believed_G11),
		TEST(registry_forgets_old_changes_but_nobody_misses_any),
		TEST(registry_survives_records_that_are_not_ours),
		TEST(registry_has_a_new_member_join_unless_it_is_alone),
		TEST(registry_has_who_was_away_join_again),
		TEST(registry_lets_nobody_step_on_what_he_has_not_seen),
		TEST(registry_counts_who_went),
		TEST(registry_passes_wishes_progress_and_slow_downs_on),
		TEST(registry_each_tells_progress),
		TEST(registry_each_lists_the_groups),
	};

	if (system("command -v redis-server >/dev/null") != 0) {
		print_message("skipped: no redis-server\n");
		return 0;
	}
	return cmocka_run_group_tests(tests, start_server, stop_server);
}
