/* SPDX-License-Identifier: Apache-2.0 */
/* The served side and the asking side over TLS: blocks from memory, from warm and cold files, many
 * at once; strangers; a secret that is exchanged. */
#include "tests/unit/cached/served.h"

#include <signal.h>

#include "tests/unit/certs.h"

static struct certs ours, others;
static char secret_path[64];

static void write_secret(const char *text)
{
	int fd = open(secret_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
}

static struct keys *keys_of(const struct certs *c)
{
	const struct keys_conf conf = {.secret_file = secret_path, .tls = c->files};
	struct str err = STR_INIT;
	struct keys *k = NULL;

	assert_int_equal(keys_new(&conf, &k, &err), 0);
	str_fini(&err);
	return k;
}

struct asker {
	struct loop *loop;
	struct peers *peers;
	struct pool *pool;
	struct peer *peer;
};

static void asker_start(struct asker *a, const struct served *s, struct keys *keys)
{
	struct peers_conf pc = {.id = {.role = ROLE_MOUNT,
				       .volume = volume_a,
				       .group = "g",
				       .node = "m1",
				       .secret = &good},
				.keys = keys,
				.n_loops = 1};

	assert_int_equal(loop_new("ask", &a->loop), 0);
	pc.loops = &a->loop;
	assert_int_equal(peers_new(&pc, &a->peers), 0);
	assert_int_equal(pool_new(64 << 20, BLOCK, &a->pool), 0);
	a->peer = peers_get(a->peers, "127.0.0.1", s->port);
	assert_non_null(a->peer);
}

static void asker_stop(struct asker *a)
{
	peers_free(a->peers);
	loop_free(a->loop);
	pool_free(a->pool);
}

struct one {
	struct peer_call call;
	struct block_key key;
	uint32_t off, len;
	atomic_int status;
};

enum { OPEN = 1 };

static void one_done(struct peer_call *c, int status)
{
	atomic_store(&container_of(c, struct one, call)->status, status);
}

static void one_start(struct asker *a, struct one *x, struct block_key key, uint32_t off,
		      uint32_t len)
{
	struct msg_get g = {.off = off, .len = len};
	size_t cost = pool_cost(len + msg_sums_len(len)), reserved = cost;

	*x = (struct one){.key = key, .off = off, .len = len, .status = OPEN};
	x->call = (struct peer_call){.op = OP_GET, .fd = -1, .done = one_done, .head_len = MSG_GET};
	block_key_to_msg(&key, &g.key);
	msg_get_encode(&g, x->call.head);
	assert_int_equal(pool_reserve(a->pool, POOL_DEMAND, cost, NULL), 0);
	x->call.in = pool_take(a->pool, POOL_DEMAND, len + msg_sums_len(len), &reserved);
	pool_unreserve(a->pool, POOL_DEMAND, reserved);
	x->call.in_cap = len + msg_sums_len(len);
	peer_start(a->peer, &x->call, len > PEER_SMALL / 2);
}

static int one_end(struct one *x)
{
	int r;

	while ((r = atomic_load(&x->status)) == OPEN)
		usleep(200);
	if (r == 0) {
		assert_int_equal(x->call.in_len, x->len + msg_sums_len(x->len));
		assert_true(has_pattern(&x->key, x->off, x->call.in->mem, x->len));
	}
	buf_unref(x->call.in);
	return r;
}

/* the first time the blocks come from the object store by memory, then from files, in ranges of all
 * sizes, over both connections at once */
static void every_byte_comes_over_TLS(void **state)
{
	enum { N = 24, ROUNDS = 20 };
	struct served *s = served_new(64 << 20, 100);
	static struct one x[N];
	struct asker a;

	(void)state;
	asker_start(&a, s, served_keys);
	for (unsigned round = 0; round < ROUNDS; round++) {
		for (unsigned i = 0; i < N; i++) {
			uint32_t off = round ? (uint32_t)random() % (BLOCK / FRAME_PIECE) : 0;
			uint32_t n = BLOCK / FRAME_PIECE - off;

			if (round)
				n = (uint32_t)random() % n + 1;
			one_start(&a, &x[i], key_of(&volume_a, 1 + i, BLOCK), off * FRAME_PIECE,
				  n * FRAME_PIECE);
		}
		for (unsigned i = 0; i < N; i++)
			assert_int_equal(one_end(&x[i]), 0);
	}
	assert_int_equal(atomic_load(&s->w->objects.gets), N);
	assert_int_equal(metric_value(s->w->counters.rejected), 0);
	asker_stop(&a);
	served_free(s);
}

static int ask_once(const struct served *s, struct keys *keys)
{
	struct asker a;
	struct one x;
	int r;

	asker_start(&a, s, keys);
	one_start(&a, &x, key_of(&volume_a, 1, BLOCK), 0, BLOCK);
	r = one_end(&x);
	asker_stop(&a);
	return r;
}

static void plain_and_others_certificates_are_refused_S01(void **state)
{
	struct served *s = served_new(64 << 20, 100);
	struct keys *stranger = keys_of(&others);
	int fd = dial_tcp(s), silent = dial_tcp(s);
	uint64_t began = clock_us();

	(void)state;
	send_all(fd, "STKE", 4);
	assert_true(closed_by_server(fd));
	(void)close(fd);
	assert_true(ask_once(s, NULL) < 0); /* asks in plain */
	assert_int_equal(ask_once(s, stranger), -EACCES);
	assert_int_equal(ask_once(s, served_keys), 0);
	eventually(metric_value(s->w->counters.rejected) >= 3);
	assert_int_equal(metric_value(s->w->counters.requests[OP_GET]), 1);
	send_all(silent, "\x16\x03\x01", 3); /* and no more */
	assert_true(closed_by_server(silent));
	assert_true(clock_us() - began < CONN_HELLO_US + 3000000);
	(void)close(silent);
	keys_free(stranger);
	served_free(s);
}

/* who proves nothing costs little: memory, and handshakes of one address in a second */
static void strangers_cost_little(void **state)
{
	enum { CROWD = 400 };
	struct served *s = served_new(64 << 20, 1000);
	int crowd[CROWD];

	(void)state;
	for (unsigned i = 0; i < CROWD; i++)
		crowd[i] = dial_tcp(s);
	eventually(metric_value(s->w->counters.conns_total) >= CROWD);
	assert_true(atomic_load(&s->w->counters.conns_now) <=
		    2 * CONN_TLS_STRANGERS_PER_ADDRESS + 2);
	assert_true(metric_value(s->w->counters.rejected) > 0);
	for (unsigned i = 0; i < CROWD; i++)
		(void)close(crowd[i]);
	usleep(1000000); /* the next second has its own */
	assert_int_equal(ask_once(s, served_keys), 0);
	served_free(s);
}

/* the secret changes in the file: read again, or not when it is not good */
static void a_secret_is_exchanged_S01(void **state)
{
	struct served *s = served_new(64 << 20, 100);
	struct keys *old = keys_of(&ours);
	struct str err = STR_INIT;
	bool changed = false;

	(void)state;
	write_secret("the very new secret\n0123456789abcdef\n");
	assert_int_equal(keys_reload(served_keys, &changed, &err), 0);
	assert_true(changed);
	assert_int_equal(ask_once(s, old), 0);
	keys_look(old);
	assert_int_equal(ask_once(s, old), 0);
	keys_free(old);
	write_secret("0123456789abcdef\n");
	old = keys_of(&ours);
	write_secret("the very new secret\n");
	assert_int_equal(keys_reload(served_keys, &changed, &err), 0);
	assert_int_equal(ask_once(s, old), -EACCES);
	write_secret("short");
	assert_int_equal(keys_reload(served_keys, &changed, &err), -EINVAL);
	write_secret("the very new secret\n");
	keys_look(old);
	assert_int_equal(ask_once(s, old), 0);
	keys_free(old);
	str_fini(&err);
	served_free(s);
}

static int before(void **state)
{
	(void)state;
	signal(SIGPIPE, SIG_IGN);
	certs_make(&ours, "node");
	certs_make(&others, "stranger");
	snprintf(secret_path, sizeof(secret_path), "%s/secret", ours.dir);
	write_secret("0123456789abcdef\n");
	served_keys = keys_of(&ours);
	return 0;
}

static int after(void **state)
{
	(void)state;
	keys_free(served_keys);
	certs_drop(&ours);
	certs_drop(&others);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_byte_comes_over_TLS),
		cmocka_unit_test(plain_and_others_certificates_are_refused_S01),
		cmocka_unit_test(strangers_cost_little),
		cmocka_unit_test(a_secret_is_exchanged_S01),
	};

	return cmocka_run_group_tests(tests, before, after);
}
