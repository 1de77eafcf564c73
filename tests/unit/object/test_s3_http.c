/* SPDX-License-Identifier: Apache-2.0 */
/* Exchanges over real sockets: time-outs of each phase, connections used again, and an exchange
 * given up half-way. */
#include "common/object/object_s3_http.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/socket.h>

#include "common/clock.h"
#include "tests/unit/check.h"

/* a server of one connection at a time, which answers every request on it with text, then holds or
 * goes on */
static struct server {
	int fd;
	char url[64];
	const char *text;
	unsigned conns, requests;
	bool hold, deaf; /* deaf: does not even read */
	sem_t release;
	pthread_t thread;
} srv;

static struct loop *loop;
static struct s3_http *http;
static struct s3_exchange x;
static struct str got;
static sem_t ended;
static int result;
static bool done_ran;

static void serve_connection(int fd)
{
	char buf[65536];
	size_t len = 0;

	while (len < sizeof(buf) - 1) {
		ssize_t n = read(fd, buf + len, sizeof(buf) - 1 - len);

		if (n <= 0)
			return;
		len += (size_t)n;
		buf[len] = '\0';
		if (!strstr(buf, "\r\n\r\n"))
			continue;
		__atomic_add_fetch(&srv.requests, 1, __ATOMIC_RELAXED);
		len = 0;
		if (write(fd, srv.text, strlen(srv.text)) < 0)
			return;
		if (srv.hold) {
			sem_wait(&srv.release);
			return;
		}
	}
}

static void *serve(void *arg _unused_)
{
	for (;;) {
		int fd = accept(srv.fd, NULL, NULL);

		if (fd < 0)
			return NULL;
		__atomic_add_fetch(&srv.conns, 1, __ATOMIC_RELAXED);
		if (srv.deaf)
			sem_wait(&srv.release);
		else
			serve_connection(fd);
		close(fd);
	}
}

static int on_data(struct s3_exchange *e _unused_, const unsigned char *p, size_t n)
{
	str_addn(&got, p, n);
	return str_error(&got);
}

static void on_done(struct s3_exchange *e _unused_, int r)
{
	result = r;
	done_ran = true;
	sem_post(&ended);
}

static void loop_init(void *arg _unused_)
{
	assert(s3_http_new(loop, 4, &http) == 0);
	s3_exchange_init(&x, http);
}

static void loop_fini(void *arg _unused_)
{
	s3_exchange_fini(&x);
	s3_http_free(http);
}

static void loop_start(void *arg _unused_)
{
	assert(s3_exchange_start(&x) == 0);
}

static void start(const char *text, bool hold, bool deaf)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(a);

	memset(&srv, 0, sizeof(srv));
	srv.text = text;
	srv.hold = hold;
	srv.deaf = deaf;
	sem_init(&srv.release, 0, 0);
	sem_init(&ended, 0, 0);
	done_ran = false;
	srv.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(srv.fd, (struct sockaddr *)&a, len), 0);
	assert_int_equal(listen(srv.fd, 16), 0);
	assert_int_equal(getsockname(srv.fd, (struct sockaddr *)&a, &len), 0);
	(void)snprintf(srv.url, sizeof(srv.url), "http://127.0.0.1:%u/x", ntohs(a.sin_port));
	assert_int_equal(pthread_create(&srv.thread, NULL, serve, NULL), 0);
	assert_int_equal(loop_new("test", &loop), 0);
	loop_run_sync(loop, loop_init, NULL);
	x.method = "GET";
	x.url = srv.url;
	x.headers = "";
	x.direct = true;
	x.data = on_data;
	x.done = on_done;
}

static int run(void)
{
	str_reset(&got);
	loop_run_sync(loop, loop_start, NULL);
	while (sem_wait(&ended) < 0)
		assert(errno == EINTR);
	return result;
}

static void stop(void)
{
	loop_run_sync(loop, loop_fini, NULL);
	loop_free(loop);
	sem_post(&srv.release);
	shutdown(srv.fd, SHUT_RDWR);
	close(srv.fd);
	pthread_join(srv.thread, NULL);
	str_fini(&got);
}

static void a_connection_serves_many_exchanges(void **state _unused_)
{
	start("HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nhello", false, false);
	for (int i = 0; i < 20; i++) {
		assert_int_equal(run(), 0);
		assert_int_equal(x.status, 404);
		assert_int_equal(x.length, 5);
		assert_string_equal(str_c(&got), "hello");
	}
	assert_int_equal(srv.conns, 1);
	assert_int_equal(srv.requests, 20);
	stop();
}

static void no_first_byte_ends_it(void **state _unused_)
{
	uint64_t t0;

	start("", true, false);
	x.first_us = 200000;
	t0 = clock_us();
	assert_int_equal(run(), -ETIMEDOUT);
	assert_true(clock_us() - t0 >= 200000);
	assert_string_equal(x.error, "no answer came for 0.2 s");
	stop();
}

static void a_stall_ends_it(void **state _unused_)
{
	start("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", true, false);
	x.stall_us = 200000;
	assert_int_equal(run(), -ETIMEDOUT);
	assert_string_equal(x.error, "no more bytes came through for 0.2 s");
	assert_string_equal(str_c(&got), "half");
	stop();
}

static void a_server_that_does_not_read_ends_it(void **state _unused_)
{
	enum { N = 32 << 20 };
	unsigned char *bytes = calloc(1, N);

	assert_non_null(bytes);
	start("", false, true);
	x.method = "PUT";
	x.body = bytes;
	x.body_len = N;
	x.stall_us = 300000;
	assert_int_equal(run(), -ETIMEDOUT);
	assert_string_equal(x.error, "no more bytes came through for 0.3 s");
	stop();
	free(bytes);
}

static void the_deadline_ends_it(void **state _unused_)
{
	start("", true, false);
	x.deadline_us = clock_us() + 150000;
	assert_int_equal(run(), -ETIMEDOUT);
	assert_string_equal(x.error, "the deadline passed");
	stop();
}

static void nobody_listening_is_worth_a_retry(void **state _unused_)
{
	start("", false, false);
	x.url = "http://127.0.0.1:9/";
	assert_int_equal(run(), -ECONNRESET);
	x.url = "ftp://127.0.0.1/";
	assert_int_equal(run(), -EPROTO);
	stop();
}

static int refuse(struct s3_exchange *e _unused_, const unsigned char *p _unused_,
		  size_t n _unused_)
{
	return -EMSGSIZE;
}

static void the_receiver_may_refuse(void **state _unused_)
{
	start("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", false, false);
	x.data = refuse;
	assert_int_equal(run(), -EMSGSIZE);
	x.data = on_data;
	assert_int_equal(run(), 0);
	assert_string_equal(str_c(&got), "hello");
	stop();
}

static void given_up_half_way_it_says_nothing(void **state _unused_)
{
	start("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", true, false);
	loop_run_sync(loop, loop_start, NULL);
	while (__atomic_load_n(&srv.requests, __ATOMIC_RELAXED) == 0)
		usleep(1000);
	stop();
	assert_false(done_ran);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_connection_serves_many_exchanges),
		cmocka_unit_test(no_first_byte_ends_it),
		cmocka_unit_test(a_stall_ends_it),
		cmocka_unit_test(a_server_that_does_not_read_ends_it),
		cmocka_unit_test(the_deadline_ends_it),
		cmocka_unit_test(nobody_listening_is_worth_a_retry),
		cmocka_unit_test(the_receiver_may_refuse),
		cmocka_unit_test(given_up_half_way_it_says_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
