/* SPDX-License-Identifier: Apache-2.0 */
/* The served side over real sockets: every operation, and what another process's chain makes of its
 * answers. */
#include "tests/unit/cached/served.h"

static void a_miss_says_filling_then_the_bytes(void **state)
{
	struct served *s = served_new(64 << 20, 100);
	struct block_key k = key_of(&volume_a, 1, BLOCK);
	struct answer a = {0};
	int fd = member_tcp(s);

	(void)state;
	ask_get(fd, 9, 0, &k, 0, BLOCK);
	assert_true(hear(fd, &a));
	assert_int_equal(a.f.status, ST_FILLING);
	assert_int_equal(a.f.id, 9);
	assert_int_equal(a.f.body_len, 0);
	assert_true(hear(fd, &a));
	check_data(&a, &k, 0, BLOCK);
	eventually(metric_value(s->w->counters.fills) == 1);
	for (unsigned i = 0; i < 20;
	     i++) { /* from the disk now, whole and in pieces, over both sockets */
		int local = i % 2 ? fd : member_unix(s);

		ask_get(local, 10, FRAME_NO_FILL, &k, 0, BLOCK);
		assert_true(hear(local, &a));
		check_data(&a, &k, 0, BLOCK);
		ask_get(local, 11, 0, &k, 3 * FRAME_PIECE, FRAME_PIECE);
		assert_true(hear(local, &a));
		check_data(&a, &k, 3 * FRAME_PIECE, FRAME_PIECE);
		if (local != fd)
			(void)close(local);
	}
	free(a.body);
	(void)close(fd);
	served_free(s);
}

static void the_last_short_piece_is_served(void **state)
{
	struct served *s = served_new(64 << 20, 100);
	struct block_key k = key_of(&volume_a, 1, FRAME_PIECE + 5);
	struct answer a = {0};
	int fd = member_unix(s);

	(void)state;
	assert_int_equal(status_of(fd, OP_FILL, &k), ST_OK);
	ask_get(fd, 1, 0, &k, FRAME_PIECE, 5);
	assert_true(hear(fd, &a));
	check_data(&a, &k, FRAME_PIECE, 5);
	ask_get(fd, 1, 0, &k, FRAME_PIECE, 6); /* past the end */
	assert_true(hear(fd, &a));
	assert_int_equal(a.f.status, ST_BAD_REQUEST);
	ask_get(fd, 1, 0, &k, 5, 5); /* not whole pieces */
	assert_true(hear(fd, &a));
	assert_int_equal(a.f.status, ST_BAD_REQUEST);
	free(a.body);
	(void)close(fd);
	served_free(s);
}

static void fill_stat_drop(void **state)
{
	struct served *s = served_new(64 << 20, 100);
	struct block_key k = key_of(&volume_a, 1, BLOCK), other = key_of(&volume_b, 1, BLOCK);
	struct answer a = {0};
	struct msg_stat st;
	int fd = member_tcp(s);

	(void)state;
	assert_int_equal(status_of(fd, OP_STAT, &k), ST_NOT_HERE);
	assert_int_equal(status_of(fd, OP_FILL, &k), ST_OK);
	assert_int_equal(status_of(fd, OP_STAT, &k), ST_OK);
	ask(fd, OP_STAT, 5, 0, "", 0);
	assert_true(hear(fd, &a));
	assert_int_equal(msg_stat_decode(a.body, a.f.body_len, &st), MSG_STAT);
	assert_int_equal(st.blocks, 1);
	assert_int_equal(st.fills, 1);
	assert_int_equal(status_of(fd, OP_BAD, &k), ST_OK); /* it is good, and stays */
	assert_int_equal(status_of(fd, OP_DROP, &k), ST_OK);
	assert_int_equal(status_of(fd, OP_STAT, &k), ST_NOT_HERE);
	ask_get(fd, 6, FRAME_NO_FILL, &k, 0, BLOCK);
	assert_true(hear(fd, &a));
	assert_int_equal(a.f.status, ST_NOT_HERE);
	assert_int_equal(status_of(fd, OP_FILL, &other), ST_STALE);
	assert_int_equal(status_of(fd, OP_DROP, &other), ST_STALE);
	free(a.body);
	(void)close(fd);
	served_free(s);
}

static void the_ring_comes_when_it_is_newer(void **state)
{
	struct served *s = served_new(64 << 20, 100);
	uint8_t version[8] = {0};
	struct answer a = {0};
	struct cluster *c;
	int fd = member_tcp(s);

	(void)state;
	ask(fd, OP_RING, 1, 0, version, sizeof(version));
	assert_true(hear(fd, &a));
	assert_int_equal(cluster_decode(NULL, a.body, a.f.body_len, &c), 0);
	assert_int_equal(c->version, 5);
	assert_int_equal(cluster_index(c, "d1"), 0);
	cluster_unref(c);
	version[7] = 5;
	ask(fd, OP_RING, 1, 0, version, sizeof(version));
	assert_true(hear(fd, &a));
	assert_int_equal(a.f.body_len, 0);
	free(a.body);
	(void)close(fd);
	served_free(s);
}

static void put_is_checked_and_kept_B07(void **state)
{
	struct served *s = served_new(64 << 20, 100);
	struct block_key k = key_of(&volume_a, 1, BLOCK - 7), stale = key_of(&volume_b, 1, 70000);
	struct answer a = {0};
	int fd = member_tcp(s);
	size_t len;
	uint8_t *body = put_body(&k, &len);

	(void)state;
	body[MSG_KEY + 40000] ^= 1;
	ask(fd, OP_PUT, 1, 0, body, len);
	assert_true(hear(fd, &a));
	assert_int_equal(a.f.status, ST_DAMAGED);
	assert_int_equal(metric_value(s->w->counters.refused), 1);
	assert_int_equal(status_of(fd, OP_STAT, &k), ST_NOT_HERE);
	body[MSG_KEY + 40000] ^= 1;
	ask(fd, OP_PUT, 2, 0, body, len);
	ask_key(fd, OP_STAT, 3, &k); /* right behind it, in the same packet maybe */
	for (unsigned i = 0; i < 2; i++) {
		assert_true(hear(fd, &a));
		assert_true(a.f.id == 2 ? a.f.status == ST_OK : a.f.id == 3);
	}
	ask_get(fd, 4, FRAME_NO_FILL, &k, 0, k.size);
	assert_true(hear(fd, &a));
	check_data(&a, &k, 0, k.size);
	free(body);
	body = put_body(&stale,
			&len); /* read to its end and refused; the connection stays in step */
	ask(fd, OP_PUT, 5, 0, body, len);
	assert_true(hear(fd, &a));
	assert_int_equal(a.f.status, ST_STALE);
	assert_int_equal(status_of(fd, OP_STAT, &k), ST_OK);
	body[MSG_KEY - 1] ^= 1; /* a size that does not fit the length */
	ask(fd, OP_PUT, 6, 0, body, len);
	assert_true(closed_by_server(fd));
	free(body);
	free(a.body);
	(void)close(fd);
	served_free(s);
}

static void a_local_mount_gets_the_file(void **state)
{
	struct served *s = served_new(64 << 20, 100);
	struct block_key k = key_of(&volume_a, 1, BLOCK);
	unsigned char *buf = malloc(blockfile_room(0, BLOCK));
	int fd = member_unix(s), remote = member_tcp(s);
	struct answer a = {0};
	size_t skip;

	(void)state;
	assert_int_equal(status_of(fd, OP_FILL, &k), ST_OK);
	ask_get(fd, 4, FRAME_WANT_FD, &k, 0, FRAME_PIECE);
	assert_true(hear(fd, &a));
	assert_int_equal(a.f.flags, FRAME_HAS_FD);
	assert_int_equal(a.f.body_len, 0);
	assert_true(a.fd >= 0);
	assert_int_equal(metric_value(s->w->counters.conns_total), 2);
	eventually(atomic_load(&s->w->counters.fds_now) == 1);
	assert_int_equal(status_of(fd, OP_DROP, &k), ST_OK);
	assert_int_equal(blockfile_read(a.fd, &k, 0, BLOCK, false, buf, &skip),
			 0); /* his for as long as he holds it */
	assert_true(has_pattern(&k, 0, buf, BLOCK));
	(void)close(a.fd);
	assert_int_equal(status_of(fd, OP_CLOSED, &k), ST_OK);
	assert_int_equal(atomic_load(&s->w->counters.fds_now), 0);
	assert_int_equal(status_of(fd, OP_FILL, &k), ST_OK);
	ask_get(remote, 4, FRAME_WANT_FD, &k, 0, FRAME_PIECE); /* not over TCP */
	assert_true(hear(remote, &a));
	check_data(&a, &k, 0, FRAME_PIECE);
	free(buf);
	free(a.body);
	(void)close(fd);
	(void)close(remote);
	served_free(s);
}

static void final_errors_bring_their_reason(void **state)
{
	struct served *s = served_new(64 << 20, 100);
	struct block_key k = key_of(&volume_a, 123, BLOCK);
	struct answer a = {0};
	int fd = member_tcp(s);

	(void)state;
	atomic_store(&s->w->objects.status, -ENOENT);
	ask_get(fd, 1, 0, &k, 0, BLOCK);
	assert_true(hear(fd, &a));
	assert_int_equal(a.f.status, ST_FILLING);
	assert_true(hear(fd, &a));
	assert_int_equal(a.f.status, ST_NO_OBJECT);
	a.body[a.f.body_len] = '\0';
	assert_non_null(strstr((char *)a.body, "123_0_131072"));
	free(a.body);
	(void)close(fd);
	served_free(s);
}

/* --- another process's chain, which asks this daemon alone --- */

struct asker {
	struct world *w; /* whose chain is replaced */
	struct loop *loop;
	struct peers *peers;
	struct cluster_view view;
};

static void asker_start(struct asker *a, const struct served *s)
{
	struct member m = {.id = "d1", .addr = "127.0.0.1", .weight = 100, .state = MEMBER_ACTIVE};
	struct peers_conf pc = {.id = {.role = ROLE_MOUNT,
				       .volume = volume_a,
				       .group = "g",
				       .node = "m1",
				       .secret = &good},
				.n_loops = 1};
	struct source_peer_conf sc = {.mode = PEER_OWNER};

	a->w = world_new(1 << 20, 1);
	source_free(TAKE_PTR(a->w->chain));
	assert_int_equal(loop_new("ask", &a->loop), 0);
	pc.loops = &a->loop;
	assert_int_equal(peers_new(&pc, &a->peers), 0);
	m.port = s->port;
	cluster_view_init(&a->view);
	cluster_view_set(&a->view, cluster_new(1, &m, 1));
	sc.peers = a->peers;
	sc.view = &a->view;
	assert_int_equal(source_peer_new(&a->w->env, NULL, &sc, &a->w->chain), 0);
	assert_int_equal(source_flight_new(&a->w->env, a->w->chain, false, &a->w->chain), 0);
}

static void asker_stop(struct asker *a)
{
	world_close(a->w);
	peers_free(a->peers);
	loop_free(a->loop);
	cluster_view_fini(&a->view);
	world_free(a->w);
}

/* what this daemon cannot answer for reasons of its own: it is asked once more, it may have it */
static bool is_asked_again(int status)
{
	return status == -EBUSY || status == -EPERM ||
	       (status != -EIO && msg_errno_to_status(status) == ST_STORE_ERROR);
}

/* The object store's verdicts are final also when a peer reports them; whatever else happens, the
 * next layer is asked (here there is none: -ENOENT). */
static void every_status_of_the_chain_goes_round(void **state)
{
	static const int status[] = {-EACCES,  -ENODATA,   -EIO,       -ENOENT,
				     -EBADMSG, -EBUSY,	   -ETIMEDOUT, -ENOMEM,
				     -ENOBUFS, -EHOSTDOWN, -ENOSPC,    -ECONNREFUSED,
				     -EPERM,   -ECANCELED, -ESTALE,    -EROFS};
	struct source *fault;
	struct served *s = served_over(64 << 20, 100, &fault);
	struct block_key k = key_of(&volume_a, 1, BLOCK);
	struct asker a;
	unsigned seen = 1;

	(void)state;
	for (unsigned i = 0; i < ARRAY_LEN(status); i++) {
		struct fault_rule rule = {.kind = FAULT_FAIL,
					  .after = seen,
					  .count = is_asked_again(status[i]) ? 2 : 1,
					  .status = status[i]};

		source_fault_add(fault, &rule);
		seen += rule.count;
	}
	seen = 1;
	asker_start(&a, s);
	assert_int_equal(get(a.w, &k, 0, BLOCK, 0, NULL), 0);
	for (unsigned i = 0; i < ARRAY_LEN(status); i++) {
		assert_int_equal(get(a.w, &k, 0, BLOCK, 0, NULL), i < 3 ? status[i] : -ENOENT);
		seen += is_asked_again(status[i]) ? 2 : 1;
		assert_int_equal(source_fault_seen(fault), seen);
	}
	asker_stop(&a);
	served_free(s);
}

/* G16: whoever waits for a block that the object store refuses hears it from one attempt */
static void a_refused_block_is_tried_once_for_all_who_wait_G16(void **state)
{
	enum { N = 1000 };
	struct served *s = served_new(64 << 20, 100);
	struct block_key k = key_of(&volume_a, 1, BLOCK);
	struct waited *x = calloc(N, sizeof(*x));
	struct block_req *req[N];
	struct asker a;

	(void)state;
	assert_non_null(x);
	asker_start(&a, s);
	atomic_store(&s->w->objects.status, -EACCES);
	atomic_store(&s->w->objects.delay_us, 300000);
	for (unsigned i = 0; i < N; i++) {
		req[i] = req_new(&a.w->env, &k, 0, BLOCK, 0, POOL_DEMAND);
		assert_non_null(req[i]);
		waited_begin(&x[i]);
		source_get(a.w->chain, req[i], waited_done, &x[i]);
	}
	for (unsigned i = 0; i < N; i++) {
		assert_int_equal(waited_end(&x[i]), -EACCES);
		assert_non_null(strstr(req[i]->reason, "1_0_131072"));
		req_free(req[i]);
	}
	assert_int_equal(atomic_load(&s->w->objects.gets), 1);
	free(x);
	asker_stop(&a);
	served_free(s);
}

/* many small blocks in one round trip: each is answered under its own id */
static void gets_in_one_frame_are_answered_one_by_one(void **state)
{
	enum { N = MSG_MGET_MAX };
	struct served *s = served_new(64 << 20, 100);
	uint8_t body[N * MSG_MGET];
	struct answer a = {0};
	bool heard[N] = {false};
	int fd = member_tcp(s);

	(void)state;
	for (unsigned i = 0; i < N; i++) {
		struct block_key k = key_of(&volume_a, 1 + i, i % 2 ? 1000 : BLOCK);
		struct msg_get g = {.len = MIN(k.size, (uint32_t)FRAME_PIECE)};
		uint8_t get[MSG_GET];

		block_key_to_msg(&k, &g.key);
		(void)msg_get_encode(&g, get);
		msg_mget_encode(100 + i, get, body + i * MSG_MGET);
	}
	ask(fd, OP_MGET, 1, 0, body, sizeof(body));
	for (unsigned i = 0; i < N;) {
		struct block_key k;
		unsigned n;

		assert_true(hear(fd, &a));
		assert_int_equal(a.f.op, OP_GET);
		n = (unsigned)a.f.id - 100;
		assert_true(n < N && !heard[n]);
		if (a.f.status == ST_FILLING)
			continue;
		k = key_of(&volume_a, 1 + n, n % 2 ? 1000 : BLOCK);
		check_data(&a, &k, 0, MIN(k.size, (uint32_t)FRAME_PIECE));
		heard[n] = true;
		i++;
	}
	/* a frame that ends in the middle of one is garbage */
	ask(fd, OP_MGET, 1, 0, body, sizeof(body) - 1);
	while (hear(fd, &a))
		assert_int_equal(a.f.op, OP_GET);
	free(a.body);
	(void)close(fd);
	served_free(s);
}

/* more requests than may be unanswered, sent before one answer is read */
static void a_thousand_requests_at_once(void **state)
{
	enum { N = 1000 };
	struct served *s = served_new(64 << 20, 100);
	static uint8_t all[N][FRAME_HEADER + MSG_GET];
	static bool heard[N];
	struct answer a = {0};
	int fd = member_unix(s);

	(void)state;
	for (unsigned i = 0; i < 10; i++) {
		struct block_key k = key_of(&volume_a, 1 + i, BLOCK);

		assert_int_equal(status_of(fd, OP_FILL, &k), ST_OK);
	}
	for (unsigned i = 0; i < N; i++) {
		struct block_key k = key_of(&volume_a, 1 + i % 10, BLOCK);
		const struct frame f = {.version = FRAME_VERSION,
					.op = OP_GET,
					.id = i,
					.flags = FRAME_NO_FILL,
					.body_len = MSG_GET};
		struct msg_get g = {.len = i % 3 ? BLOCK : FRAME_PIECE};

		block_key_to_msg(&k, &g.key);
		frame_encode(&f, all[i]);
		(void)msg_get_encode(&g, all[i] + FRAME_HEADER);
	}
	send_all(fd, all,
		 sizeof(all)); /* fits into the socket, so that nobody waits for the other */
	for (unsigned i = 0; i < N; i++) {
		struct block_key k;

		assert_true(hear(fd, &a));
		k = key_of(&volume_a, 1 + a.f.id % 10, BLOCK);
		check_data(&a, &k, 0, a.f.id % 3 ? BLOCK : FRAME_PIECE);
		assert_false(heard[a.f.id]);
		heard[a.f.id] = true;
	}
	free(a.body);
	(void)close(fd);
	served_free(s);
}

static void a_block_cut_while_it_is_served_is_never_delivered(void **state)
{
	struct served *s = served_new(64 << 20, 100);
	struct block_key k = key_of(&volume_a, 1, BLOCK);
	struct answer a = {0};
	char path[320];
	int fd = member_tcp(s);

	(void)state;
	assert_int_equal(status_of(fd, OP_FILL, &k), ST_OK);
	block_file(s->w, 0, &k, path);
	assert_int_equal(truncate(path, BLOCK / 2), 0);
	ask_get(fd, 1, 0, &k, 0, BLOCK);
	while (hear(fd, &a) && a.f.status == ST_FILLING)
		;
	check_data(&a, &k, 0, BLOCK);
	assert_int_equal(metric_value(s->w->counters.damaged), 1);
	free(a.body);
	(void)close(fd);
	served_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_miss_says_filling_then_the_bytes),
		cmocka_unit_test(the_last_short_piece_is_served),
		cmocka_unit_test(fill_stat_drop),
		cmocka_unit_test(the_ring_comes_when_it_is_newer),
		cmocka_unit_test(put_is_checked_and_kept_B07),
		cmocka_unit_test(a_local_mount_gets_the_file),
		cmocka_unit_test(final_errors_bring_their_reason),
		cmocka_unit_test(every_status_of_the_chain_goes_round),
		cmocka_unit_test(a_refused_block_is_tried_once_for_all_who_wait_G16),
		cmocka_unit_test(gets_in_one_frame_are_answered_one_by_one),
		cmocka_unit_test(a_thousand_requests_at_once),
		cmocka_unit_test(a_block_cut_while_it_is_served_is_never_delivered),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
