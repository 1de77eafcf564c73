/* SPDX-License-Identifier: Apache-2.0 */
/* http: the three pages, over a real socket, and which port is used. */
#include "common/http.h"

#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <cmocka.h>

static struct loop *loop;
static struct metrics *metrics;
static bool is_ready;

static int begin(void **state)
{
	(void)state;
	metrics = metrics_new();
	return metrics ? loop_new("http", &loop) : -1;
}

static int end(void **state)
{
	(void)state;
	loop_free(loop);
	metrics_free(metrics);
	return 0;
}

static bool ready(void *arg)
{
	return __atomic_load_n((bool *)arg, __ATOMIC_RELAXED);
}

static void ask(uint16_t port, const char *request, struct str *ret)
{
	struct sockaddr_in in = {.sin_family = AF_INET,
				 .sin_port = htons(port),
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	char buf[1024];
	ssize_t n;

	str_reset(ret);
	assert_int_equal(connect(fd, (struct sockaddr *)&in, sizeof(in)), 0);
	assert_int_equal(write(fd, request, strlen(request)), strlen(request));
	while ((n = read(fd, buf, sizeof(buf))) > 0)
		str_addn(ret, buf, (size_t)n);
	close(fd);
}

static void says(uint16_t port, const char *request, const char *status, const char *body)
{
	struct str answer = STR_INIT;

	ask(port, request, &answer);
	/* "HTTP/1.x 200"; what is not understood may have no answer at all */
	if ((*status && (answer.len < 12 || strncmp(answer.s + 8, status, 4) != 0)) ||
	    !strstr(str_c(&answer), body))
		fail_msg("%s: %s", request, str_c(&answer));
	str_fini(&answer);
}

static void http_serves_its_three_pages(void **state)
{
	struct http *h;
	uint16_t port;

	(void)state;
	metric_add(metrics_get(metrics, "stoke_test_total", "", METRIC_COUNTER, "t"), 5);
	assert_int_equal(http_new(loop, "127.0.0.1:0", true, metrics, ready, &is_ready, &h, &port),
			 0);
	says(port, "GET /metrics HTTP/1.0\r\n\r\n", " 200", "\nstoke_test_total 5\n");
	says(port, "GET /healthz HTTP/1.0\r\n\r\n", " 200", "ok\n");
	says(port, "GET /readyz HTTP/1.0\r\n\r\n", " 503", "not ready\n");
	__atomic_store_n(&is_ready, true, __ATOMIC_RELAXED);
	says(port, "GET /readyz HTTP/1.0\r\n\r\n", " 200", "ready\n");
	says(port, "GET /passwd HTTP/1.0\r\n\r\n", " 404", "");
	says(port, "POST /metrics HTTP/1.0\r\nContent-Length: 0\r\n\r\n", " 501", "");
	says(port, "no http at all\r\n\r\n", "", "");
	http_free(h);
	http_free(NULL);
}

static void http_takes_the_next_port_unless_exact(void **state)
{
	struct http *a, *b, *c;
	char addr[32];
	uint16_t p, q, r;

	(void)state;
	assert_int_equal(http_new(loop, "127.0.0.1:0", true, metrics, NULL, NULL, &a, &p), 0);
	snprintf(addr, sizeof(addr), "127.0.0.1:%u", p);
	assert_int_equal(http_new(loop, addr, true, metrics, NULL, NULL, &c, &r), -EADDRINUSE);
	if (p < 60000) { /* room above it */
		assert_int_equal(http_new(loop, addr, false, metrics, NULL, NULL, &b, &q), 0);
		assert_true(q > p && q < p + 100);
		says(q, "GET /readyz HTTP/1.0\r\n\r\n", " 200", "ready\n");
		http_free(b);
	}
	http_free(a);
	assert_int_equal(http_new(loop, "nonsense", true, metrics, NULL, NULL, &a, &p), -EINVAL);
	assert_int_equal(http_new(loop, "192.0.2.1:0", true, metrics, NULL, NULL, &a, &p),
			 -EADDRNOTAVAIL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(http_serves_its_three_pages),
		cmocka_unit_test(http_takes_the_next_port_unless_exact),
	};

	return cmocka_run_group_tests(tests, begin, end);
}
