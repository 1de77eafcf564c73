/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <sys/stat.h>

#include "common/block/hello.h"

static struct secret good = {.len = 16, .b = (uint8_t[]){"0123456789abcdef"}};
static struct secret bad = {.len = 16, .b = (uint8_t[]){"0123456789abcdeF"}};

struct talk {
	struct hello_id asker, daemon;
	struct hello_state a, d;
	uint8_t ask[MSG_HELLO_MAX], welcome[MSG_HELLO_MAX + MSG_HMAC], proof[MSG_HMAC];
	size_t ask_len, welcome_len;
	uint8_t role;
};

static void talk_init(struct talk *t, const struct secret *a, const struct secret *d)
{
	memset(t, 0, sizeof(*t));
	t->asker = (struct hello_id){.role = ROLE_MOUNT, .group = "g", .node = "n1", .secret = a};
	t->daemon = (struct hello_id){.role = ROLE_MEMBER, .group = "g", .node = "n2", .secret = d};
	t->asker.volume.b[3] = t->daemon.volume.b[3] = 7;
}

/* the first step that fails */
static int talk_run(struct talk *t)
{
	int r;

	t->ask_len = hello_ask(&t->asker, &t->a, t->ask);
	assert_true(t->ask_len > 0);
	r = hello_answer(&t->daemon, &t->d, t->ask, t->ask_len, t->welcome, &t->welcome_len,
			 &t->role);
	if (r < 0)
		return r;
	r = hello_prove(&t->asker, &t->a, t->welcome, t->welcome_len, t->proof);
	if (r < 0)
		return r;
	return t->asker.secret ? hello_verify(&t->daemon, &t->d, t->proof, MSG_HMAC) : 0;
}

static void hello_same_secret_is_accepted(void **state)
{
	struct talk t;

	(void)state;
	talk_init(&t, &good, &good);
	assert_int_equal(talk_run(&t), 0);
	assert_int_equal(t.role, ROLE_MOUNT);
	assert_int_equal(t.a.version, HELLO_VERSION_MAX);
	assert_int_equal(t.d.version, HELLO_VERSION_MAX);
}

static void hello_unix_socket_needs_no_secret(void **state)
{
	struct talk t;

	(void)state;
	talk_init(&t, NULL, NULL);
	assert_int_equal(talk_run(&t), 0);
	/* a daemon without a secret accepts no proof at all */
	memset(t.proof, 0, sizeof(t.proof));
	assert_int_equal(hello_verify(&t.daemon, &t.d, t.proof, MSG_HMAC), -EACCES);
}

static void hello_wrong_secret_is_refused_by_both_S01(void **state)
{
	struct talk t;

	(void)state;
	talk_init(&t, &bad, &good);
	assert_int_equal(talk_run(&t), -EACCES); /* the asker does not believe the daemon */
	/* an asker that goes on all the same, with what it can compute */
	talk_init(&t, &good, &good);
	assert_int_equal(talk_run(&t), 0);
	for (unsigned i = 0; i < MSG_HMAC; i++) {
		t.proof[i] ^= 1;
		assert_int_equal(hello_verify(&t.daemon, &t.d, t.proof, MSG_HMAC), -EACCES);
		t.proof[i] ^= 1;
	}
	assert_int_equal(hello_verify(&t.daemon, &t.d, t.proof, MSG_HMAC - 1), -EACCES);
	/* an asker without a secret meets a daemon that has one: the proof is not zero */
	talk_init(&t, NULL, &good);
	assert_int_equal(talk_run(&t), -EACCES);
	/* a daemon that does not know the secret answers zeros */
	talk_init(&t, &good, NULL);
	assert_int_equal(talk_run(&t), -EACCES);
}

static void hello_replayed_exchange_is_refused_S01(void **state)
{
	struct talk t;
	uint8_t old[MSG_HMAC];

	(void)state;
	talk_init(&t, &good, &good);
	assert_int_equal(talk_run(&t), 0);
	memcpy(old, t.proof, sizeof(old));
	/* the same HELLO and PROOF again: the daemon's nonce is another */
	assert_int_equal(
		hello_answer(&t.daemon, &t.d, t.ask, t.ask_len, t.welcome, &t.welcome_len, &t.role),
		0);
	assert_int_equal(hello_verify(&t.daemon, &t.d, old, MSG_HMAC), -EACCES);
	/* the daemon's proof sent back as the asker's */
	assert_int_equal(
		hello_verify(&t.daemon, &t.d, t.welcome + t.welcome_len - MSG_HMAC, MSG_HMAC),
		-EACCES);
}

static void hello_other_volume_group_version(void **state)
{
	struct talk t;
	struct msg_hello h;
	uint8_t body[MSG_HELLO_MAX];
	size_t n;

	(void)state;
	talk_init(&t, &good, &good);
	t.asker.volume.b[0] = 1;
	assert_int_equal(talk_run(&t), -ESTALE);
	talk_init(&t, &good, &good);
	t.asker.group = "gg";
	assert_int_equal(talk_run(&t), -EACCES);
	talk_init(&t, &good, &good);
	t.asker.group = "";
	assert_int_equal(talk_run(&t), -EACCES);

	talk_init(&t, &good, &good);
	t.ask_len = hello_ask(&t.asker, &t.a, t.ask);
	assert_true(msg_hello_decode(t.ask, t.ask_len, &h) > 0);
	h.version_min = HELLO_VERSION_MAX + 1;
	h.version_max = HELLO_VERSION_MAX + 5;
	n = msg_hello_encode(&h, body);
	assert_int_equal(hello_answer(&t.daemon, &t.d, body, n, t.welcome, &t.welcome_len, &t.role),
			 -EPROTONOSUPPORT);
	/* a newer asker that still knows ours: G09 */
	h.version_min = HELLO_VERSION_MIN;
	n = msg_hello_encode(&h, body);
	assert_int_equal(hello_answer(&t.daemon, &t.d, body, n, t.welcome, &t.welcome_len, &t.role),
			 0);
	assert_int_equal(t.d.version, HELLO_VERSION_MAX);
}

static void hello_truncated_or_lengthened_bodies_are_refused(void **state)
{
	struct talk t;
	struct hello_state st;
	uint8_t out[MSG_HELLO_MAX + MSG_HMAC], role, longer[MSG_HELLO_MAX + MSG_HMAC + 1];
	size_t len;

	(void)state;
	talk_init(&t, &good, &good);
	assert_int_equal(talk_run(&t), 0);
	for (size_t n = 0; n < t.ask_len; n++)
		assert_true(hello_answer(&t.daemon, &st, t.ask, n, out, &len, &role) < 0);
	for (size_t n = 0; n < t.welcome_len; n++)
		assert_true(hello_prove(&t.asker, &t.a, t.welcome, n, t.proof) < 0);
	memcpy(longer, t.ask, t.ask_len);
	longer[t.ask_len] = 0;
	assert_int_equal(hello_answer(&t.daemon, &st, longer, t.ask_len + 1, out, &len, &role),
			 -EPROTO);
}

static void write_file(const char *path, const char *text, mode_t mode)
{
	int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	assert_int_equal(fchmod(fd, mode), 0);
	close(fd);
}

/* old -> old and new -> new: at every step everybody talks to everybody */
static void hello_secrets_rotate_without_a_stop_S01(void **state)
{
	static const uint8_t a[] = "the old secret", b[] = "the new secret";
	struct secret old = {.len = 14, .b = (uint8_t *)(uintptr_t)a};
	struct secret new = {.len = 14, .b = (uint8_t *)(uintptr_t)b};
	struct secret both = new, third = {.len = 16, .b = good.b};
	const struct secret *step[] = {&old, &both, &new};
	struct talk t;

	(void)state;
	both.next = &old;
	for (unsigned i = 0; i < 2; i++)
		for (unsigned k = 0; k < 4; k++) {
			talk_init(&t, step[i + k % 2], step[i + k / 2]);
			assert_int_equal(talk_run(&t), 0);
		}
	talk_init(&t, &old, &new);
	assert_int_equal(talk_run(&t), -EACCES);
	talk_init(&t, &third, &both);
	assert_int_equal(talk_run(&t), -EACCES);
}

/* what was said in one TLS session is worth nothing in another */
static void hello_is_bound_to_its_session_S01(void **state)
{
	uint8_t one[TLS_BINDING] = {1}, other[TLS_BINDING] = {2};
	struct talk t;

	(void)state;
	talk_init(&t, &good, &good);
	t.asker.binding = t.daemon.binding = one;
	assert_int_equal(talk_run(&t), 0);
	t.daemon.binding = other;
	assert_int_equal(talk_run(&t), -EACCES);
	t.asker.binding = NULL;
	t.daemon.binding = one;
	assert_int_equal(talk_run(&t), -EACCES);
	t.daemon.binding = NULL;
	assert_int_equal(talk_run(&t), 0);
}

static void secret_from_file_or_environment_S04(void **state)
{
	char path[] = "/tmp/stoke-secret-XXXXXX";
	int fd = mkstemp(path);
	struct secret s = {0};
	struct str err = STR_INIT;

	(void)state;
	assert_true(fd >= 0);
	close(fd);
	write_file(path, "a correct horse and a battery\n \n", 0640);
	assert_int_equal(secret_load(path, &s, &err), 0);
	assert_int_equal(s.len, strlen("a correct horse and a battery"));
	assert_memory_equal(s.b, "a correct horse and a battery", s.len);
	secret_fini(&s);
	secret_fini(&s);

	write_file(path, "a correct horse and a battery\n", 0644);
	assert_int_equal(secret_load(path, &s, &err), -EACCES);
	assert_non_null(strstr(str_c(&err), "chmod"));
	assert_null(strstr(str_c(&err), "horse"));
	write_file(path, "\n the first of secrets \nthe second of secrets\n", 0600);
	assert_int_equal(secret_load(path, &s, &err), 0);
	assert_memory_equal(s.b, "the first of secrets", s.len);
	assert_memory_equal(s.next->b, "the second of secrets", s.next->len);
	secret_fini(&s);
	write_file(path, "the first of secrets\nthe second of secrets\nthe third of secrets\n",
		   0600);
	assert_int_equal(secret_load(path, &s, &err), -EINVAL);
	write_file(path, "the first of secrets\nshort\n", 0600);
	assert_int_equal(secret_load(path, &s, &err), -EINVAL);
	write_file(path, "\n", 0600);
	assert_int_equal(secret_load(path, &s, &err), -EINVAL);
	write_file(path, "fifteen bytes..\n", 0600);
	assert_int_equal(secret_load(path, &s, &err), -EINVAL);
	write_file(path, "short\n", 0600);
	assert_int_equal(secret_load(path, &s, &err), -EINVAL);
	unlink(path);
	assert_int_equal(secret_load(path, &s, &err), -ENOENT);

	unsetenv("STOKE_GROUP_SECRET");
	str_reset(&err);
	assert_int_equal(secret_load(NULL, &s, &err), -ENOENT);
	assert_non_null(strstr(str_c(&err), "--group-secret-file"));
	setenv("STOKE_GROUP_SECRET", "from the environment", 1);
	assert_int_equal(secret_load(NULL, &s, &err), 0);
	assert_int_equal(s.len, strlen("from the environment"));
	secret_fini(&s);
	str_fini(&err);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hello_same_secret_is_accepted),
		cmocka_unit_test(hello_secrets_rotate_without_a_stop_S01),
		cmocka_unit_test(hello_is_bound_to_its_session_S01),
		cmocka_unit_test(hello_unix_socket_needs_no_secret),
		cmocka_unit_test(hello_wrong_secret_is_refused_by_both_S01),
		cmocka_unit_test(hello_replayed_exchange_is_refused_S01),
		cmocka_unit_test(hello_other_volume_group_version),
		cmocka_unit_test(hello_truncated_or_lengthened_bodies_are_refused),
		cmocka_unit_test(secret_from_file_or_environment_S04),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
