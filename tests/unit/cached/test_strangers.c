/* SPDX-License-Identifier: Apache-2.0 */
/* The served side over real sockets: the handshake, what strangers do, and askers that go away. */
#include "tests/unit/cached/served.h"

static struct secret bad = {.len = 16, .b = (uint8_t[]){"0123456789abcdeF"}};

static void nothing_is_served_before_the_proof(void **state)
{
	struct served *s = served_new(64 << 20, 100);
	struct block_key k = key_of(&volume_a, 1, BLOCK);
	const struct hello_id liar = me(&bad);
	uint8_t body[MSG_HELLO_MAX], proof[MSG_HMAC];
	struct hello_state st;
	struct answer a = {0};
	int fd = dial_tcp(s);

	(void)state;
	ask_get(fd, 1, 0, &k, 0, BLOCK); /* no HELLO */
	assert_true(closed_by_server(fd));
	(void)close(fd);

	fd = dial_tcp(s); /* a wrong secret */
	ask(fd, OP_HELLO, 1, 0, body, hello_ask(&liar, &st, body));
	assert_true(hear(fd, &a));
	assert_int_equal(hello_prove(&liar, &st, a.body, a.f.body_len, proof), -EACCES);
	ask(fd, OP_PROOF, 2, 0, proof, sizeof(proof));
	assert_true(hear(fd, &a));
	assert_int_equal(a.f.status, ST_DENIED);
	assert_true(closed_by_server(fd));
	(void)close(fd);

	fd = dial_tcp(s); /* HELLO, then straight to business */
	ask(fd, OP_HELLO, 1, 0, body, hello_ask(&liar, &st, body));
	assert_true(hear(fd, &a));
	ask_get(fd, 2, 0, &k, 0, BLOCK);
	assert_true(closed_by_server(fd));
	(void)close(fd);
	eventually(metric_value(s->w->counters.rejected) == 3);
	assert_int_equal(metric_value(s->w->counters.requests[OP_GET]), 0);
	assert_int_equal(atomic_load(&s->w->objects.gets), 0);
	free(a.body);
	served_free(s);
}

static unsigned hello_status(struct served *s, const struct hello_id *id)
{
	uint8_t body[MSG_HELLO_MAX];
	struct hello_state st;
	struct answer a = {0};
	int fd = dial_tcp(s);
	unsigned status;

	ask(fd, OP_HELLO, 1, 0, body, hello_ask(id, &st, body));
	assert_true(hear(fd, &a));
	status = a.f.status;
	assert_true(closed_by_server(fd));
	free(a.body);
	(void)close(fd);
	return status;
}

static void other_groups_and_volumes_are_refused(void **state)
{
	struct served *s = served_new(64 << 20, 100);
	struct hello_id id = me(&good);

	(void)state;
	id.group = "h";
	assert_int_equal(hello_status(s, &id), ST_DENIED);
	id = me(&good);
	id.volume = volume_b;
	assert_int_equal(hello_status(s, &id), ST_STALE);
	served_free(s);
}

static void garbage_is_closed(void **state)
{
	struct served *s = served_new(64 << 20, 100);
	struct frame f = {.version = FRAME_VERSION, .op = OP_HELLO, .body_len = 1u << 31};
	uint8_t h[FRAME_HEADER];
	int fd = dial_tcp(s), member;
	struct block_key k = key_of(&volume_a, 1, BLOCK);

	(void)state;
	send_all(fd, "GET / HTTP/1.1\r\n\r\n", 18);
	assert_true(closed_by_server(fd));
	(void)close(fd);
	fd = dial_tcp(s);
	frame_encode(&f, h);
	send_all(fd, h, sizeof(h));
	assert_true(closed_by_server(fd));
	(void)close(fd);
	fd = member_tcp(s); /* a member that goes mad: an unknown operation */
	f = (struct frame){.version = FRAME_VERSION, .op = 99};
	frame_encode(&f, h);
	send_all(fd, h, sizeof(h));
	assert_true(closed_by_server(fd));
	(void)close(fd);
	member = member_tcp(s);
	assert_int_equal(status_of(member, OP_FILL, &k), ST_OK);
	(void)close(member);
	served_free(s);
}

/* S02, S03 */
static void the_silent_and_the_slow_are_closed(void **state)
{
	struct served *s = served_new(64 << 20, 100);
	uint64_t began = clock_us();
	int silent = dial_tcp(s), slow = member_tcp(s), quiet = member_tcp(s);
	struct block_key k = key_of(&volume_a, 1, BLOCK);

	(void)state;
	send_all(slow, "S", 1); /* the first byte of a frame, then nothing */
	assert_true(closed_by_server(silent));
	assert_true(clock_us() - began >= CONN_HELLO_US);
	assert_true(closed_by_server(slow));
	assert_true(clock_us() - began >= CONN_FRAME_US);
	assert_int_equal(status_of(quiet, OP_FILL, &k), ST_OK); /* a member may be silent */
	(void)close(silent);
	(void)close(slow);
	(void)close(quiet);
	served_free(s);
}

static void a_crowd_of_strangers_does_not_keep_members_out(void **state)
{
	enum { LIMIT = 64, CROWD = 300 };
	struct served *s = served_new(64 << 20, LIMIT);
	struct block_key k = key_of(&volume_a, 1, BLOCK);
	int crowd[CROWD], early = member_tcp(s), late;

	(void)state;
	for (unsigned i = 0; i < CROWD; i++)
		crowd[i] = dial_tcp(s);
	late = member_tcp(s);
	assert_int_equal(status_of(early, OP_FILL, &k), ST_OK);
	assert_int_equal(status_of(late, OP_STAT, &k), ST_OK);
	assert_true(atomic_load(&s->w->counters.conns_now) <= LIMIT + 2);
	for (unsigned i = 0; i < CROWD; i++)
		(void)close(crowd[i]);
	(void)close(early);
	(void)close(late);
	served_free(s);
}

/* as many members as there may be, all idle: none goes for a stranger, one for another member */
static void no_member_goes_for_a_stranger(void **state)
{
	enum { LIMIT = 8, CROWD = 40 };
	struct served *s = served_new(64 << 20, LIMIT);
	struct block_key k = key_of(&volume_a, 1, BLOCK);
	int member[LIMIT], crowd[CROWD], late;

	(void)state;
	for (unsigned i = 0; i < LIMIT; i++)
		member[i] = member_tcp(s);
	for (unsigned i = 0; i < CROWD; i++)
		crowd[i] = dial_tcp(s);
	for (unsigned i = 0; i < CROWD; i++)
		(void)close(crowd[i]);
	for (unsigned i = 0; i < LIMIT; i++)
		assert_int_equal(status_of(member[i], OP_FILL, &k), ST_OK);
	late = member_tcp(s);
	assert_int_equal(status_of(late, OP_STAT, &k), ST_OK);
	assert_true(atomic_load(&s->w->counters.conns_now) <= LIMIT + 2);
	(void)close(late);
	for (unsigned i = 0; i < LIMIT; i++)
		(void)close(member[i]);
	served_free(s);
}

/* askers that go away in the middle of everything */
static void askers_vanish(void **state)
{
	struct served *s = served_new(64 << 20, 200);
	size_t len;
	struct block_key put_key = key_of(&volume_a, 9999, BLOCK);
	uint8_t *body = put_body(&put_key, &len);

	(void)state;
	atomic_store(&s->w->objects.delay_us, 3000);
	for (unsigned i = 0; i < 60; i++) {
		int fd = i % 2 ? member_tcp(s) : member_unix(s);

		for (unsigned n = 0; n < 20; n++) {
			struct block_key k = key_of(&volume_a, 1 + i * 7 + n, BLOCK);

			ask_get(fd, n, n % 4 ? 0 : FRAME_WANT_FD, &k, 0, BLOCK);
			ask_key(fd, OP_FILL, 100 + n, &k);
		}
		if (i % 3 == 0) {
			const struct frame f = {
				.version = FRAME_VERSION, .op = OP_PUT, .body_len = (uint32_t)len};
			uint8_t h[FRAME_HEADER];

			frame_encode(&f, h);
			send_all(fd, h, sizeof(h));
			send_all(fd, body, len / 2);
		}
		(void)close(fd);
	}
	free(body);
	served_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_is_served_before_the_proof),
		cmocka_unit_test(other_groups_and_volumes_are_refused),
		cmocka_unit_test(garbage_is_closed),
		cmocka_unit_test(a_crowd_of_strangers_does_not_keep_members_out),
		cmocka_unit_test(no_member_goes_for_a_stranger),
		cmocka_unit_test(askers_vanish),
		cmocka_unit_test(the_silent_and_the_slow_are_closed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
