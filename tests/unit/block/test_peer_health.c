/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that are down, slow or silent, and the end of connections, against a scripted daemon. */
#include "tests/unit/block/script.h"

static struct peer_health health(struct peer *p)
{
	struct peer_health h;

	peer_health(p, &h);
	return h;
}

static void peer_down_costs_nobody_and_comes_back(void **state)
{
	struct daemon d;
	struct tcall t;
	struct peers *ps = asker(&good);
	struct peer *p;
	unsigned waited = 0;
	uint64_t start;

	(void)state;
	daemon_start(&d, false, serve);
	daemon_stop(&d); /* the port is known, and nobody listens */
	p = peer_of(ps, &d);
	for (unsigned i = 0; i < 50; i++) {
		start = clock_us();
		t_get(&t, 1, FRAME_PIECE);
		peer_start(p, &t.c, true);
		assert_int_equal(t_wait(&t), -ECONNREFUSED);
		assert_true(clock_us() - start < 500000);
		t_free(&t);
	}
	assert_true(health(p).down);
	assert_int_equal(health(p).error, -ECONNREFUSED);

	d.lfd = -1;
	daemon_listen(&d);
	assert_int_equal(pthread_create(&d.thread, NULL, daemon_thread, &d), 0);
	while (health(p).down && waited++ < 10000)
		usleep(1000);
	assert_false(health(p).down);
	/* this daemon serves one connection at a time, and the probe has it */
	t_get(&t, 4, FRAME_PIECE);
	peer_start(p, &t.c, false);
	t_expect(&t, 4, FRAME_PIECE);
	t_free(&t);
	peers_free(ps);
	daemon_stop(&d);
}

static void hangs_until_told(struct daemon *d, int fd)
{
	while (!__atomic_load_n(&d->note, __ATOMIC_SEQ_CST))
		usleep(1000);
	serve(d, fd);
}

static void peer_is_slow_until_the_probe_is_answered_G01_G02(void **state)
{
	struct daemon d;
	struct peers *ps = asker(&good);
	struct peer *p;
	unsigned waited = 0;

	(void)state;
	daemon_start(&d, false, hangs_until_told);
	p = peer_of(ps, &d);
	assert_false(health(p).slow);
	peer_note(p, -ETIMEDOUT);
	assert_true(health(p).slow);
	peer_note(p, 0);
	usleep(300000);
	assert_true(health(p).slow);
	__atomic_store_n(&d.note, 1, __ATOMIC_SEQ_CST);
	while (health(p).slow && waited++ < 10000)
		usleep(1000);
	assert_false(health(p).slow);
	peers_free(ps);
	daemon_stop(&d);

	/* nobody had to wait for it: a probe alone finds out */
	ps = asker(&good);
	daemon_start(&d, false, hangs_until_told);
	p = peer_of(ps, &d);
	peer_probe(p);
	for (waited = 0; !health(p).slow && waited < 10000; waited++)
		usleep(1000);
	assert_true(health(p).slow);
	__atomic_store_n(&d.note, 1, __ATOMIC_SEQ_CST);
	peers_free(ps);
	daemon_stop(&d);
}

static void peer_bounds_its_queue(void **state)
{
	enum { N = 2 * PEER_MAX_IN_FLIGHT + 100 };
	struct tcall *t = calloc(N, sizeof(*t));
	struct daemon d;
	struct peers *ps = asker(&good);
	unsigned busy = 0, cancelled = 0;

	(void)state;
	assert_non_null(t);
	daemon_start(&d, false, never);
	for (unsigned i = 0; i < N; i++) {
		stat_call(&t[i]);
		peer_start(peer_of(ps, &d), &t[i].c, true);
	}
	while (!__atomic_load_n(&d.accepted, __ATOMIC_SEQ_CST))
		usleep(1000);
	peers_free(ps);
	for (unsigned i = 0; i < N; i++) {
		int r = t_wait(&t[i]);

		busy += r == -EBUSY;
		cancelled += r == -ECANCELED;
	}
	assert_true(busy >= 100);
	assert_int_equal(busy + cancelled, N);
	daemon_stop(&d);
	free(t);
}

static void peers_free_cancels(void **state)
{
	struct daemon d;
	struct tcall t;
	struct peers *ps = asker(&good);

	(void)state;
	daemon_start(&d, false, never);
	t_get(&t, 1, FRAME_PIECE);
	peer_start(peer_of(ps, &d), &t.c, true);
	while (!__atomic_load_n(&d.accepted, __ATOMIC_SEQ_CST))
		usleep(1000);
	peers_free(ps);
	assert_int_equal(t_wait(&t), -ECANCELED);
	t_free(&t);
	daemon_stop(&d);
	peers_free(NULL);
}

static void peers_close_cancels_what_is_there_and_what_comes(void **state)
{
	struct peers *ps = asker(&good);
	struct daemon d;
	struct tcall t, late;
	struct peer *p;

	(void)state;
	daemon_start(&d, false, never);
	t_get(&t, 1, FRAME_PIECE);
	p = peer_of(ps, &d);
	peer_start(p, &t.c, true);
	while (!__atomic_load_n(&d.accepted, __ATOMIC_SEQ_CST))
		usleep(1000);
	peers_close(ps);
	assert_int_equal(t_wait(&t), -ECANCELED);
	t_get(&late, 2, FRAME_PIECE);
	peer_start(p, &late.c, true);
	assert_int_equal(t_wait(&late), -ECANCELED);
	assert_null(peers_get(ps, "127.0.0.1", 1)); /* one that was not asked before */
	peers_free(ps);
	t_free(&t);
	t_free(&late);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(peer_down_costs_nobody_and_comes_back),
		cmocka_unit_test(peer_is_slow_until_the_probe_is_answered_G01_G02),
		cmocka_unit_test(peer_bounds_its_queue),
		cmocka_unit_test(peers_free_cancels),
		cmocka_unit_test(peers_close_cancels_what_is_there_and_what_comes),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
