/* SPDX-License-Identifier: Apache-2.0 */
/* Fibers that share a connection: everybody gets his own answer, also when the server hangs up in
 * between, against a real redis-server on a unix socket. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <time.h>
#include <cmocka.h>

#include "common/clock.h"
#include "common/fiber.h"
#include "common/redis.h"

enum { SECOND = 1000000, ASKERS = 20, ROUNDS = 40 };

static char dir[] = "/tmp/stoke-pipe-XXXXXX";
static char path[64], url[96];
static pid_t server;
static struct redis *r;
static struct fibers *s;

static int begin(void **state)
{
	struct str err = STR_INIT;

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/s", dir);
	snprintf(url, sizeof(url), "unix://%s", path);
	if (system("command -v redis-server >/dev/null") != 0)
		return 0;
	server = fork();
	if (server == 0) {
		int null = open("/dev/null", O_RDWR);

		dup2(null, 1);
		execlp("redis-server", "redis-server", "--port", "0", "--save", "", "--unixsocket",
		       path, "--dir", dir, NULL);
		_exit(127);
	}
	for (int i = 0; i < 500 && !r; i++) {
		nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
		(void)redis_new(url, NULL, &r, &err);
	}
	str_fini(&err);
	assert_non_null(r);
	return fibers_new(NULL, NULL, &s);
}

static int end(void **state)
{
	(void)state;
	fibers_free(s);
	redis_free(r);
	if (server > 0) {
		kill(server, SIGKILL);
		waitpid(server, NULL, 0);
	}
	unlink(path);
	rmdir(dir);
	return 0;
}

static unsigned right, refused;

static void asks(void *arg)
{
	unsigned n = *(unsigned *)arg;
	struct redis_reply *reply = NULL;

	for (unsigned i = 0; i < ROUNDS; i++) {
		char want[32];
		size_t len;
		const char *got;

		snprintf(want, sizeof(want), "%u.%u", n, i);
		assert_int_equal(redis_once(r, clock_us() + 10 * SECOND, &reply, "ECHO %s", want),
				 0);
		got = redis_reply_str(reply, &len);
		right += got && len == strlen(want) && !memcmp(got, want, len);
		redis_reply_free(reply);
		/* what the server refuses is the answer of who asked for it, and of nobody else */
		if (i % 8 == 0)
			refused += redis_once(r, clock_us() + SECOND, &reply, "HGET a") == -EIO;
	}
}

static uint64_t number_of(const char *section, const char *field)
{
	struct redis_reply *reply = NULL;
	uint64_t v = 0;
	size_t len;
	const char *p;

	assert_int_equal(redis_once(r, clock_us() + SECOND, &reply, "INFO %s", section), 0);
	p = strstr(redis_reply_str(reply, &len), field);
	if (p)
		v = strtoull(p + strlen(field), NULL, 10);
	redis_reply_free(reply);
	return v;
}

/* hang_up: the server closes the connections now and then */
static void all_ask(bool hang_up)
{
	unsigned numbers[ASKERS], turn = 0, n;
	struct pollfd fds[FIBERS_MAX];
	uint64_t until;

	right = refused = 0;
	for (unsigned i = 0; i < ASKERS; i++) {
		numbers[i] = i;
		assert_int_equal(fibers_run(s, asks, &numbers[i]), 0);
	}
	while ((n = fibers_fds(s, fds, &until))) {
		uint64_t left = until == UINT64_MAX ? SECOND : clock_left(MAX(until, 1u));

		(void)poll(fds, n, (int)DIV_UP(left, 1000));
		fibers_resume(s, fds, n);
		if (hang_up && ++turn % 16 == 0) {
			struct redis_reply *reply = NULL;

			if (!redis_once(r, clock_us() + SECOND, &reply, "CLIENT KILL TYPE normal"))
				redis_reply_free(reply);
		}
	}
	assert_int_equal(right, ASKERS * ROUNDS);
}

static void test_own_answers(void **state)
{
	uint64_t before;

	(void)state;
	if (!r)
		skip();
	before = number_of("stats", "total_connections_received:");
	all_ask(false);
	assert_int_equal(refused, ASKERS * ROUNDS / 8);
	assert_in_range(number_of("stats", "total_connections_received:") - before, 0, 1);
}

static void test_hung_up(void **state)
{
	uint64_t before;

	(void)state;
	if (!r)
		skip();
	before = number_of("stats", "total_connections_received:");
	all_ask(true);
	assert_true(number_of("stats", "total_connections_received:") > before + 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_own_answers),
		cmocka_unit_test(test_hung_up),
	};

	return cmocka_run_group_tests(tests, begin, end);
}
