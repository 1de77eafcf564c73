/* SPDX-License-Identifier: Apache-2.0 */
/* Fifty members and a Redis that stands still for longer than a member may be silent. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/block/registry.h"
#include "common/clock.h"
#include "tests/unit/meta/redis_server.h"

enum { MEMBERS = 50, STOP_US = REGISTRY_LAPSE_US + 500000 };

static int beat(struct registry *g, unsigned i, uint64_t wait_us, struct cluster **io)
{
	struct member m = {.port = (uint16_t)(7000 + i), .weight = 100, .state = MEMBER_ACTIVE};
	struct registry_beat b = {.self = &m, .kind = *io ? BEAT_AGAIN : BEAT_FORCED};
	struct generation gen;

	snprintf(m.id, sizeof(m.id), "m%u", i);
	snprintf(m.addr, sizeof(m.addr), "10.0.0.%u", i);
	return registry_heartbeat(g, clock_us() + wait_us, &b, io, &gen);
}

static void fifty_members_outlive_a_redis_that_stops_G13(void **state)
{
	struct redis_server *s = *state;
	struct registry *g[MEMBERS];
	struct cluster *seen[MEMBERS] = {0};
	struct str err = STR_INIT;
	struct redis_reply *reply = NULL;
	struct redis *redis;
	uint64_t version, until;

	assert_int_equal(redis_new(s->url, NULL, &redis, &err), 0);
	assert_int_equal(redis_once(redis, clock_us() + 5000000, &reply, "SET setting %s", "{}"),
			 0);
	redis_reply_free(reply);
	for (unsigned i = 0; i < MEMBERS; i++) {
		assert_int_equal(registry_new(redis, "g", &g[i]), 0);
		assert_int_equal(beat(g[i], i, 5000000, &seen[i]), 0);
	}
	for (unsigned i = 0; i < MEMBERS; i++)
		assert_int_equal(beat(g[i], i, 5000000, &seen[i]), 0);
	version = seen[0]->version;
	assert_int_equal(seen[0]->n, MEMBERS);
	assert_int_equal(kill(s->pid, SIGSTOP), 0);
	until = clock_us() + STOP_US;
	while (clock_us() < until) /* they try, and wait in vain */
		assert_true(beat(g[7], 7, 300000, &seen[7]) < 0);
	assert_int_equal(kill(s->pid, SIGCONT), 0);
	/* the first one who gets through judges nobody by the time that Redis was away, nor does
	 * the last */
	for (unsigned round = 0; round < 2; round++) {
		for (unsigned i = 0; i < MEMBERS; i++) {
			assert_int_equal(beat(g[i], i, 5000000, &seen[i]), 0);
			assert_int_equal(seen[i]->n, MEMBERS);
			assert_int_equal(seen[i]->version, version);
		}
	}
	for (unsigned i = 0; i < MEMBERS; i++) {
		cluster_unref(seen[i]);
		registry_free(g[i]);
	}
	redis_free(redis);
	str_fini(&err);
}

int main(void)
{
	struct redis_server s;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_prestate(fifty_members_outlive_a_redis_that_stops_G13, &s),
	};
	int r;

	if (redis_server_start(&s) < 0) {
		print_message("no redis-server here\n");
		return 1;
	}
	r = cmocka_run_group_tests(tests, NULL, NULL);
	redis_server_stop(&s);
	return r;
}
