/* SPDX-License-Identifier: Apache-2.0 */
/* Peer connections against a scripted daemon: answers, nonsense, handshakes, descriptors. */
#include "tests/unit/block/script.h"

static struct secret bad = {.len = 16, .b = (uint8_t[]){"0123456789abcdeF"}};

static void peer_gets_over_tcp_and_unix(void **state)
{
	(void)state;
	for (int local = 0; local < 2; local++) {
		struct daemon d;
		struct tcall t[20];
		struct peers *ps = asker(&good);

		daemon_start(&d, local, serve);
		for (unsigned i = 0; i < 20; i++) {
			t_get(&t[i], i + 1, i % 2 ? FRAME_PIECE : 5 * FRAME_PIECE);
			peer_start(peer_of(ps, &d), &t[i].c, true);
		}
		for (unsigned i = 0; i < 20; i++) {
			t_expect(&t[i], i + 1, i % 2 ? FRAME_PIECE : 5 * FRAME_PIECE);
			t_free(&t[i]);
		}
		assert_ptr_equal(peer_of(ps, &d), peer_of(ps, &d));
		assert_int_equal(d.accepted, 1);
		peers_free(ps);
		daemon_stop(&d);
	}
}

static void peer_finds_a_host_name(void **state)
{
	struct daemon d;
	struct tcall t;
	struct peers *ps = asker(&good);

	(void)state;
	daemon_start(&d, false, serve);
	t_get(&t, 9, FRAME_PIECE);
	peer_start(peers_get(ps, "localhost", d.port), &t.c, true);
	t_expect(&t, 9, FRAME_PIECE);
	peers_free(ps);
	daemon_stop(&d);
	t_free(&t);
}

/* a call of a later version ends without being sent; before the handshake and after it */
static void peer_does_not_send_what_the_daemon_is_too_old_for_G09(void **state)
{
	struct daemon d;
	struct tcall t[4];
	struct peers *ps = asker(&good);

	(void)state;
	daemon_start(&d, true, serve);
	for (unsigned i = 0; i < 4; i++) {
		t_get(&t[i], i + 1, FRAME_PIECE);
		t[i].c.min_version = i % 2 ? HELLO_VERSION_MAX : HELLO_VERSION_MAX + 1;
		peer_start(peer_of(ps, &d), &t[i].c, true);
		if (i % 2)
			t_expect(&t[i], i + 1, FRAME_PIECE);
		else if (i)
			assert_int_equal(t_wait(&t[i]), -EPROTONOSUPPORT);
	}
	assert_int_equal(t_wait(&t[0]), -EPROTONOSUPPORT);
	assert_int_equal(d.accepted, 1);
	for (unsigned i = 0; i < 4; i++)
		t_free(&t[i]);
	peers_free(ps);
	daemon_stop(&d);
}

/* calls that wait for the same daemon go in one frame, large ones alone */
static void counts_mgets(struct daemon *d, int fd)
{
	struct asked a;

	while (next(fd, &a)) {
		if (asked_fd == fd && asked_at == MSG_MGET) /* the first of one */
			__atomic_fetch_add(&d->note, 1, __ATOMIC_SEQ_CST);
		answer_get(fd, &a);
	}
}

static void peer_sends_what_waits_in_one_frame(void **state)
{
	enum { N = 100 };
	struct daemon d;
	struct tcall t[N];
	struct peers *ps = asker(&good);

	(void)state;
	daemon_start(&d, true, counts_mgets);
	/* they wait for the handshake */
	for (unsigned i = 0; i < N; i++) {
		t_get(&t[i], i + 1, FRAME_PIECE);
		peer_start(peer_of(ps, &d), &t[i].c, false);
	}
	for (unsigned i = 0; i < N; i++) {
		t_expect(&t[i], (int)i + 1, FRAME_PIECE);
		t_free(&t[i]);
	}
	assert_in_range(d.note, DIV_UP(N, MSG_MGET_MAX), N / 4);
	peers_free(ps);
	daemon_stop(&d);
}

/* the first program says RESTARTING and goes; the next one is behind the same socket */
static void restarts(struct daemon *d, int fd)
{
	struct asked a;

	if (d->accepted > 1) {
		serve(d, fd);
		return;
	}
	for (unsigned i = 0; i < 2 && next(fd, &a); i++)
		answer(fd, &a, ST_RESTARTING, NULL, 0);
	(void)next(fd, &a); /* the third is not answered */
}

static void peer_waits_for_a_daemon_that_restarts(void **state)
{
	struct daemon d;
	struct tcall t[4];
	struct peers *ps = asker(&good);

	(void)state;
	daemon_start(&d, false, restarts);
	for (unsigned i = 0; i < 4; i++) {
		t_get(&t[i], i + 1, FRAME_PIECE);
		peer_start(peer_of(ps, &d), &t[i].c, true);
	}
	for (unsigned i = 0; i < 4; i++) {
		t_expect(&t[i], i + 1, FRAME_PIECE);
		t_free(&t[i]);
	}
	assert_int_equal(d.accepted, 2);
	peers_free(ps);
	daemon_stop(&d);
}

/* for ever: each call is told once, then it ends */
static void restarts_for_ever(struct daemon *d, int fd)
{
	struct asked a;

	(void)d;
	while (next(fd, &a))
		answer(fd, &a, ST_RESTARTING, NULL, 0);
}

static void peer_does_not_wait_twice(void **state)
{
	(void)state;
	assert_int_equal(one_get(restarts_for_ever, false, 0), -ERESTART);
}

static void backwards(struct daemon *d, int fd)
{
	struct asked a[3];

	for (unsigned i = 0; i < 3; i++)
		if (!next(fd, &a[i]))
			return;
	answer_get(fd, &a[2]);
	answer_get(fd, &a[0]);
	answer_get(fd, &a[1]);
	serve(d, fd);
}

static void peer_takes_answers_out_of_order(void **state)
{
	struct daemon d;
	struct tcall t[3];
	struct peers *ps = asker(&good);

	(void)state;
	daemon_start(&d, false, backwards);
	for (unsigned i = 0; i < 3; i++) {
		t_get(&t[i], i + 1, (i + 1) * FRAME_PIECE);
		peer_start(peer_of(ps, &d), &t[i].c, true);
	}
	for (unsigned i = 0; i < 3; i++)
		t_expect(&t[i], i + 1, (i + 1) * FRAME_PIECE);
	assert_true(t[2].order < t[0].order && t[0].order < t[1].order);
	for (unsigned i = 0; i < 3; i++)
		t_free(&t[i]);
	peers_free(ps);
	daemon_stop(&d);
}

static void fill_first(struct daemon *d, int fd)
{
	struct asked a, b;

	if (!next(fd, &a) || !next(fd, &b))
		return;
	answer(fd, &a, ST_FILLING, NULL, 0);
	answer(fd, &a, ST_FILLING, NULL, 0);
	answer_get(fd, &b);
	answer_get(fd, &a);
	serve(d, fd);
}

static void peer_tells_filling_once(void **state)
{
	struct daemon d;
	struct tcall t[2];
	struct peers *ps = asker(&good);
	struct peer_health h;

	(void)state;
	daemon_start(&d, false, fill_first);
	for (unsigned i = 0; i < 2; i++) {
		t_get(&t[i], i + 1, FRAME_PIECE);
		peer_start(peer_of(ps, &d), &t[i].c, true);
	}
	for (unsigned i = 0; i < 2; i++)
		t_expect(&t[i], i + 1, FRAME_PIECE);
	assert_int_equal(t[0].filled, 1);
	assert_int_equal(t[1].filled, 0);
	peer_health(peer_of(ps, &d), &h);
	assert_true(!h.down && !h.slow && h.p99_us == 0 && h.in_flight == 0);
	for (unsigned i = 0; i < 2; i++)
		t_free(&t[i]);
	peers_free(ps);
	daemon_stop(&d);
}

static void peer_learns_how_long_answers_take(void **state)
{
	struct daemon d;
	struct peers *ps = asker(&good);
	struct peer_health h;

	(void)state;
	daemon_start(&d, true, serve);
	for (unsigned i = 0; i < 100; i++) {
		struct tcall t;

		t_get(&t, 1, FRAME_PIECE);
		peer_start(peer_of(ps, &d), &t.c, true);
		t_expect(&t, 1, FRAME_PIECE);
		t_free(&t);
	}
	peer_health(peer_of(ps, &d), &h);
	assert_in_range(h.p99_us, 1, 10000000);
	peers_free(ps);
	daemon_stop(&d);
}

static void no_object(struct daemon *d, int fd)
{
	struct asked a;

	(void)d;
	while (next(fd, &a))
		answer(fd, &a, ST_NO_OBJECT, "vol/chunks/0/0/3_0_9: 404\n", 26);
}

static void peer_hands_up_final_verdicts(void **state)
{
	struct daemon d;
	struct tcall t;
	struct peers *ps = asker(&good);

	(void)state;
	daemon_start(&d, false, no_object);
	t_get(&t, 3, FRAME_PIECE);
	peer_start(peer_of(ps, &d), &t.c, true);
	assert_int_equal(t_wait(&t), -ENODATA);
	assert_int_equal(t.c.verdict, ST_NO_OBJECT);
	assert_string_equal(t.c.reason, "vol/chunks/0/0/3_0_9: 404?");
	t_free(&t);
	peers_free(ps);
	daemon_stop(&d);
}

static void garbage(struct daemon *d, int fd)
{
	struct asked a;

	(void)d;
	if (next(fd, &a))
		send_raw(fd, "HTTP/1.1 400 Bad Request\r\n\r\nand more of it", 42);
	(void)next(fd, &a);
}

static void oversize(struct daemon *d, int fd)
{
	static const uint8_t data[2 * FRAME_PIECE];
	struct asked a;

	(void)d;
	if (next(fd, &a))
		answer(fd, &a, ST_OK, data, sizeof(data));
	(void)next(fd, &a);
}

static void huge(struct daemon *d, int fd)
{
	struct asked a;

	(void)d;
	if (next(fd, &a))
		answer_head(fd, &a, ST_OK, 0, FRAME_BODY_MAX + 1);
	(void)next(fd, &a);
}

static void wrong_id(struct daemon *d, int fd)
{
	struct asked a;

	(void)d;
	if (!next(fd, &a))
		return;
	a.f.id += 1 << 16;
	answer_get(fd, &a);
	(void)next(fd, &a);
}

static void twice(struct daemon *d, int fd)
{
	struct asked a, b;

	(void)d;
	if (!next(fd, &a))
		return;
	answer_get(fd, &a);
	answer_get(fd, &a);
	(void)next(fd, &b);
}

static void wrong_op(struct daemon *d, int fd)
{
	struct asked a;

	(void)d;
	if (!next(fd, &a))
		return;
	a.f.op = OP_DROP;
	answer(fd, &a, ST_OK, NULL, 0);
	(void)next(fd, &a);
}

static void mid_body(struct daemon *d, int fd)
{
	struct asked a;

	(void)d;
	if (!next(fd, &a))
		return;
	answer_head(fd, &a, ST_OK, 0, FRAME_PIECE);
	send_raw(fd, "some bytes", 10);
}

static void mid_head(struct daemon *d, int fd)
{
	struct asked a;

	(void)d;
	if (next(fd, &a))
		send_raw(fd, "STKE", 4);
}

static void peer_survives_nonsense_S02(void **state)
{
	(void)state;
	for (int local = 0; local < 2; local++) {
		assert_int_equal(one_get(garbage, local, 0), -EPROTO);
		assert_int_equal(one_get(oversize, local, 0), -EPROTO);
		assert_int_equal(one_get(huge, local, 0), -EPROTO);
		assert_int_equal(one_get(wrong_id, local, 0), -EPROTO);
		assert_int_equal(one_get(wrong_op, local, 0), -EPROTO);
		assert_int_equal(one_get(twice, local, 0), 0);
		assert_int_equal(one_get(mid_body, local, 0), -EHOSTDOWN);
		assert_int_equal(one_get(mid_head, local, 0), -EHOSTDOWN);
	}
}

static void peer_and_daemon_prove_themselves_S01(void **state)
{
	struct daemon d;
	struct tcall t;
	struct peers *ps;

	(void)state;
	for (int k = 0; k < 3; k++) {
		ps = asker(k == 0 ? &bad : k == 1 ? NULL : &good);
		daemon_start(&d, false, serve);
		if (k == 2)
			d.id.volume.b[0] = 1;
		t_get(&t, 1, FRAME_PIECE);
		peer_start(peer_of(ps, &d), &t.c, true);
		assert_int_equal(t_wait(&t), k == 2 ? -ESTALE : -EACCES);
		assert_int_equal(t.c.verdict, ST_OK); /* nobody's verdict on the object */
		assert_non_null(strstr(t.c.reason, "127.0.0.1"));
		t_free(&t);
		peers_free(ps);
		daemon_stop(&d);
	}
}

/* answers every second GET, the others later, when a STAT comes */
static void half(struct daemon *d, int fd)
{
	struct asked kept[4], a;
	unsigned n = 0, gets = 0;

	(void)d;
	while (next(fd, &a)) {
		if (a.f.op == OP_GET && gets++ % 2 == 0 && n < ARRAY_LEN(kept)) {
			kept[n++] = a;
		} else if (a.f.op == OP_GET) {
			answer_get(fd, &a);
		} else {
			while (n > 0)
				answer_get(fd, &kept[--n]);
			answer(fd, &a, ST_OK, NULL, 0);
		}
	}
}

static void peer_skips_late_answers_G02(void **state)
{
	struct daemon d;
	struct tcall late, t, st;
	struct peers *ps = asker(&good);

	(void)state;
	daemon_start(&d, false, half);
	for (unsigned i = 0; i < 4; i++) {
		t_get(&late, 1, FRAME_PIECE);
		late.c.quiet_us = 100000;
		peer_start(peer_of(ps, &d), &late.c, true);
		assert_int_equal(t_wait(&late), -ETIMEDOUT);
		memset(late.c.in->mem, 0xee, FRAME_PIECE);
		t_get(&t, 2, FRAME_PIECE);
		peer_start(peer_of(ps, &d), &t.c, true);
		t_expect(&t, 2, FRAME_PIECE);
		stat_call(&st);
		peer_start(peer_of(ps, &d), &st.c, true);
		assert_int_equal(t_wait(&st), 0);
		assert_int_equal(late.c.in->mem[0], 0xee);
		assert_int_equal(late.done, 1);
		t_free(&t);
		t_free(&late);
	}
	assert_int_equal(d.accepted, 1);
	peers_free(ps);
	daemon_stop(&d);
}

static void peer_closes_after_too_many_tombstones(void **state)
{
	static struct tcall t[PEER_MAX_TOMBSTONES + 6];
	struct daemon d;
	struct tcall after;
	struct peers *ps = asker(&good);
	unsigned late = 0;

	(void)state;
	daemon_start(&d, false, never);
	for (unsigned i = 0; i < ARRAY_LEN(t); i++) {
		t_get(&t[i], 1, FRAME_PIECE);
		t[i].c.quiet_us = i < PEER_MAX_TOMBSTONES + 1 ? 100000 : 0;
		peer_start(peer_of(ps, &d), &t[i].c, true);
	}
	for (unsigned i = 0; i < ARRAY_LEN(t); i++) {
		int r = t_wait(&t[i]);

		assert_true(r == -ETIMEDOUT || r == -EHOSTDOWN);
		late += r == -ETIMEDOUT;
		t_free(&t[i]);
	}
	assert_int_equal(late, PEER_MAX_TOMBSTONES + 1);
	t_get(&after, 7, FRAME_PIECE);
	peer_start(peer_of(ps, &d), &after.c, true);
	t_expect(&after, 7, FRAME_PIECE);
	t_free(&after);
	assert_int_equal(d.accepted, 2);
	peers_free(ps);
	daemon_stop(&d);
}

static void half_body(struct daemon *d, int fd)
{
	static const uint8_t data[4 * FRAME_PIECE];
	struct asked a, b;

	if (!next(fd, &a))
		return;
	answer_head(fd, &a, ST_OK, 0, sizeof(data));
	send_raw(fd, data, FRAME_PIECE);
	__atomic_store_n(&d->note, 1, __ATOMIC_SEQ_CST);
	if (!next(fd, &b)) /* sent after the first was abandoned */
		return;
	send_raw(fd, data + FRAME_PIECE, 3 * FRAME_PIECE);
	answer_get(fd, &b);
	serve(d, fd);
}

static void abandon(void *arg)
{
	peer_abandon(arg);
}

static void peer_abandons_in_the_middle_of_a_body(void **state)
{
	struct daemon d;
	struct tcall t, u;
	struct peers *ps = asker(&good);

	(void)state;
	daemon_start(&d, false, half_body);
	t_get(&t, 0x55, 4 * FRAME_PIECE);
	peer_start(peer_of(ps, &d), &t.c, true);
	while (!__atomic_load_n(&d.note, __ATOMIC_SEQ_CST))
		usleep(1000);
	loop_run_sync(peer_loop(peer_of(ps, &d), true), abandon, &t.c);
	t_free(&t); /* gone: nothing may touch it */
	t_get(&u, 6, FRAME_PIECE);
	peer_start(peer_of(ps, &d), &u.c, true);
	t_expect(&u, 6, FRAME_PIECE);
	t_free(&u);
	assert_int_equal(t.done, 0);
	assert_int_equal(d.accepted, 1);
	peers_free(ps);
	daemon_stop(&d);
}

static void one_fd(struct daemon *d, int fd)
{
	struct asked a;

	(void)d;
	if (next(fd, &a))
		answer_fds(fd, &a, FRAME_HAS_FD, 1);
	(void)next(fd, &a);
}

static void two_fds(struct daemon *d, int fd)
{
	struct asked a;

	(void)d;
	if (next(fd, &a))
		answer_fds(fd, &a, FRAME_HAS_FD, 2);
	(void)next(fd, &a);
}

static void hidden_fd(struct daemon *d, int fd)
{
	struct asked a;

	(void)d;
	if (next(fd, &a))
		answer_fds(fd, &a, 0, 1);
	(void)next(fd, &a);
}

static void no_fd(struct daemon *d, int fd)
{
	struct asked a;

	(void)d;
	if (next(fd, &a))
		answer_head(fd, &a, ST_OK, FRAME_HAS_FD, 0);
	(void)next(fd, &a);
}

static unsigned open_fds(void)
{
	unsigned n = 0;

	for (int i = 0; i < 256; i++)
		n += fcntl(i, F_GETFD) >= 0;
	return n;
}

static void peer_takes_descriptors_only_when_asked(void **state)
{
	unsigned before;

	(void)state;
	assert_int_equal(one_get(one_fd, true, FRAME_WANT_FD), 0);
	before = open_fds();
	assert_int_equal(one_get(one_fd, true, 0), -EPROTO);
	assert_int_equal(one_get(two_fds, true, FRAME_WANT_FD), -EPROTO);
	assert_int_equal(one_get(hidden_fd, true, FRAME_WANT_FD), -EPROTO);
	assert_int_equal(one_get(no_fd, true, FRAME_WANT_FD), -EPROTO);
	assert_int_equal(one_get(no_fd, false, FRAME_WANT_FD), -EPROTO);
	assert_int_equal(open_fds(), before);
}

/* CLOSED must come over the connection on which the descriptor went out */
static void fd_late(struct daemon *d, int fd)
{
	struct asked a, b;
	struct msg_key k;

	if (!next(fd, &a) || !next(fd, &b)) /* b is sent after a timed out */
		return;
	answer_fds(fd, &a, FRAME_HAS_FD, 1);
	answer(fd, &b, ST_OK, NULL, 0);
	while (next(fd, &a)) {
		if (a.f.op == OP_CLOSED && msg_key_decode(a.body, a.f.body_len, &k) == MSG_KEY)
			__atomic_store_n(&d->note, (int)k.slice, __ATOMIC_SEQ_CST);
		answer(fd, &a, ST_OK, NULL, 0);
	}
}

static void peer_says_closed_for_a_descriptor_that_comes_too_late(void **state)
{
	struct daemon d;
	struct tcall t, st;
	struct peers *ps = asker(&good);
	unsigned before = open_fds(), waited = 0;

	(void)state;
	daemon_start(&d, true, fd_late);
	t_get(&t, 77, FRAME_PIECE);
	t.c.flags = FRAME_WANT_FD;
	t.c.quiet_us = 50000;
	peer_start(peer_of(ps, &d), &t.c, true);
	assert_int_equal(t_wait(&t), -ETIMEDOUT);
	stat_call(&st);
	peer_start(peer_of(ps, &d), &st.c, true);
	assert_int_equal(t_wait(&st), 0);
	while (__atomic_load_n(&d.note, __ATOMIC_SEQ_CST) != 77 && waited++ < 10000)
		usleep(1000);
	assert_int_equal(d.note, 77);
	t_free(&t);
	peers_free(ps);
	daemon_stop(&d);
	assert_int_equal(open_fds(), before);
}

static void put_check(struct daemon *d, int fd)
{
	uint8_t h[FRAME_HEADER], *body = malloc(FRAME_BODY_MAX);
	struct asked a;
	int sum = 0;

	assert_non_null(body);
	usleep(50000); /* let the socket fill */
	if (read_all(fd, h, sizeof(h)) && frame_decode(h, sizeof(h), 0, &a.f) == FRAME_HEADER &&
	    read_all(fd, body, a.f.body_len)) {
		for (size_t i = 0; i < a.f.body_len; i++)
			sum += body[i];
		__atomic_store_n(&d->note, sum, __ATOMIC_SEQ_CST);
		answer(fd, &a, ST_OK, NULL, 0);
	}
	free(body);
	serve(d, fd);
}

static struct blob filled_blob(int byte, size_t n)
{
	size_t reserved = pool_cost(n);
	struct buf *b;

	assert_int_equal(pool_reserve(pool, POOL_DEMAND, reserved, NULL), 0);
	b = pool_take(pool, POOL_DEMAND, n, &reserved);
	assert_non_null(b);
	memset(b->mem, byte, n);
	return blob_of_buf(b, 0, n);
}

static void peer_puts_more_than_a_socket_takes(void **state)
{
	struct daemon d;
	struct tcall t, u;
	struct peers *ps = asker(&good);

	(void)state;
	daemon_start(&d, true, put_check);
	memset(&t, 0, sizeof(t));
	t.c.op = OP_PUT;
	t.c.done = t_done;
	t.c.head_len = MSG_KEY;
	memset(t.c.head, 1, MSG_KEY);
	t.c.out[0] = filled_blob(2, BLOCK);
	t.c.out[1] = filled_blob(3, 4096);
	peer_start(peer_of(ps, &d), &t.c, true);
	t_get(&u, 5, FRAME_PIECE);
	peer_start(peer_of(ps, &d), &u.c, true);
	assert_int_equal(t_wait(&t), 0);
	assert_int_equal(d.note, 32 * 1 + BLOCK * 2 + 4096 * 3);
	t_expect(&u, 5, FRAME_PIECE);
	t_free(&u);
	peers_free(ps);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(peer_sends_what_waits_in_one_frame),
		cmocka_unit_test(peer_gets_over_tcp_and_unix),
		cmocka_unit_test(peer_finds_a_host_name),
		cmocka_unit_test(peer_waits_for_a_daemon_that_restarts),
		cmocka_unit_test(peer_does_not_wait_twice),
		cmocka_unit_test(peer_does_not_send_what_the_daemon_is_too_old_for_G09),
		cmocka_unit_test(peer_takes_answers_out_of_order),
		cmocka_unit_test(peer_tells_filling_once),
		cmocka_unit_test(peer_learns_how_long_answers_take),
		cmocka_unit_test(peer_hands_up_final_verdicts),
		cmocka_unit_test(peer_survives_nonsense_S02),
		cmocka_unit_test(peer_and_daemon_prove_themselves_S01),
		cmocka_unit_test(peer_skips_late_answers_G02),
		cmocka_unit_test(peer_closes_after_too_many_tombstones),
		cmocka_unit_test(peer_abandons_in_the_middle_of_a_body),
		cmocka_unit_test(peer_takes_descriptors_only_when_asked),
		cmocka_unit_test(peer_says_closed_for_a_descriptor_that_comes_too_late),
		cmocka_unit_test(peer_puts_more_than_a_socket_takes),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
