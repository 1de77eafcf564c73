/* SPDX-License-Identifier: Apache-2.0 */
/* The S3 store against a server that misbehaves by script: one connection a request, the answers in
 * order, the requests kept for inspection. Real sockets on loopback; what a real S3 says is
 * test_s3_live.c's. */
#include "common/object/object.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <sys/socket.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/mtx.h"
#include "tests/unit/check.h"

enum { MAX_REQUESTS = 32 };

static struct server {
	int fd;
	char url[96], base[64];
	pthread_t thread;
	/* NULL: no answer, the connection stays open until the end */
	const char *answer[MAX_REQUESTS];
	size_t n_answers;
	struct mtx lock;
	struct str seen[MAX_REQUESTS];
	size_t n_seen;
	int held[MAX_REQUESTS];
	size_t n_held;
} srv;

/* a request's head and as much body as its Content-Length says */
static void read_request(int fd, struct str *into)
{
	char buf[4096];
	size_t want = SIZE_MAX;

	while (into->len < want) {
		ssize_t n = read(fd, buf, sizeof(buf));
		const char *end, *length;

		if (n <= 0)
			return;
		str_addn(into, buf, (size_t)n);
		end = strstr(str_c(into), "\r\n\r\n");
		if (!end)
			continue;
		length = strcasestr(str_c(into), "content-length:");
		want = (size_t)(end + 4 - into->s) +
		       (length && length < end ? strtoul(length + 15, NULL, 10) : 0);
	}
}

static void *serve(void *arg _unused_)
{
	for (;;) {
		struct str req = STR_INIT;
		const char *answer;
		size_t at;
		int fd = accept(srv.fd, NULL, NULL);

		if (fd < 0)
			return NULL;
		read_request(fd, &req);
		mtx_lock(&srv.lock);
		at = srv.n_seen++;
		if (at < MAX_REQUESTS)
			srv.seen[at] = req;
		mtx_unlock(&srv.lock);
		assert(at < MAX_REQUESTS);
		answer = at < srv.n_answers
				 ? srv.answer[at]
				 : "HTTP/1.1 500 Script Ended\r\nContent-Length: 0\r\n\r\n";
		if (!answer) {
			srv.held[srv.n_held++] = fd;
			continue;
		}
		if (write(fd, answer, strlen(answer)) < 0)
			perror("write");
		close(fd);
	}
}

static struct loop *loop;
static struct object_store *store;
static struct metrics *metrics;

static void start_server(const char *const *answers, size_t n)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(a);

	memset(&srv, 0, sizeof(srv));
	mtx_init(&srv.lock);
	memcpy(srv.answer, answers, n * sizeof(*answers));
	srv.n_answers = n;
	srv.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(srv.fd, (struct sockaddr *)&a, len), 0);
	assert_int_equal(listen(srv.fd, 64), 0);
	assert_int_equal(getsockname(srv.fd, (struct sockaddr *)&a, &len), 0);
	(void)snprintf(srv.base, sizeof(srv.base), "http://127.0.0.1:%u", ntohs(a.sin_port));
	(void)snprintf(srv.url, sizeof(srv.url), "%s/bucket", srv.base);
	assert_int_equal(pthread_create(&srv.thread, NULL, serve, NULL), 0);
}

static void open_store(unsigned conns, unsigned retries, const char *secret)
{
	struct object_conf conf = {
		.storage = "s3",
		.bucket = srv.url,
		.access_key = secret ? "AKTEST" : NULL,
		.secret_key = secret,
		.max_conns = conns,
		.retries = retries,
	};
	struct str err = STR_INIT;

	metrics = metrics_new();
	assert_non_null(metrics);
	conf.metrics = metrics;
	assert_int_equal(loop_new("test", &loop), 0);
	assert_int_equal(object_open(&conf, loop, &store, &err), 0);
	str_fini(&err);
}

#define START(answers, retries)                                                                    \
	do {                                                                                       \
		start_server(answers, ARRAY_LEN(answers));                                         \
		open_store(4, retries, "topsecret");                                               \
	} while (0)

static void stop(void)
{
	object_free(store);
	loop_free(loop);
	metrics_free(metrics);
	shutdown(srv.fd, SHUT_RDWR);
	close(srv.fd);
	pthread_join(srv.thread, NULL);
	for (size_t i = 0; i < srv.n_held; i++)
		close(srv.held[i]);
	for (size_t i = 0; i < MAX_REQUESTS; i++)
		str_fini(&srv.seen[i]);
	mtx_fini(&srv.lock);
}

/* what the nth request was: read after its answer came */
static const char *seen(size_t i)
{
	const char *s;

	mtx_lock(&srv.lock);
	s = i < srv.n_seen ? str_c(&srv.seen[i]) : "";
	mtx_unlock(&srv.lock);
	return s;
}

static size_t n_seen(void)
{
	size_t n;

	mtx_lock(&srv.lock);
	n = srv.n_seen;
	mtx_unlock(&srv.lock);
	return n;
}

static uint64_t counted(const char *name, const char *labels)
{
	return metric_value(metrics_get(metrics, name, labels, METRIC_COUNTER, ""));
}

static unsigned char buf[64];

static struct object_req get_req(void)
{
	memset(buf, 0, sizeof(buf));
	return (struct object_req){
		.op = OBJECT_GET, .key = "v/chunks/0/0/1_0_10", .buf = buf, .cap = 10};
}

#define OK_TEN "HTTP/1.1 200 OK\r\nContent-Length: 10\r\nETag: \"e1\"\r\n\r\n0123456789"
#define ERR(status, code)                                                                          \
	"HTTP/1.1 " status "\r\nConnection: close\r\n\r\n<Error><Code>" code                       \
	"</Code><Message>the message</Message></Error>"

static void server_errors_are_retried_and_counted(void **state _unused_)
{
	static const char *const answers[] = {ERR("500 Internal", "InternalError"),
					      ERR("503 Slow", "SlowDown"), "",
					      ERR("429 Many", "TooMany"), OK_TEN};
	struct object_req req = get_req();

	START(answers, 10);
	assert_int_equal(object_run(store, &req), 0);
	assert_memory_equal(buf, "0123456789", 10);
	assert_int_equal(req.got, 10);
	assert_int_equal(n_seen(), 5);
	assert_int_equal(counted("stoke_object_retries_total", ""), 4);
	assert_int_equal(
		counted("stoke_object_requests_total", "op=\"get\",range=\"0\",result=\"ok\""), 1);
	assert_int_equal(
		counted("stoke_object_requests_total", "op=\"get\",range=\"1\",result=\"ok\""), 0);
	assert_int_equal(counted("stoke_object_bytes_total", "op=\"get\""), 10);
	stop();
}

static void retries_end(void **state _unused_)
{
	static const char *const answers[] = {ERR("500 a", "InternalError"), ERR("502 b", ""),
					      ERR("504 c", "")};
	struct object_req req = get_req();

	START(answers, 2);
	assert_int_equal(object_run(store, &req), -EIO);
	assert_non_null(strstr(
		req.reason, "get v/chunks/0/0/1_0_10: HTTP 504 (the message) (tried 3 times in "));
	assert_int_equal(n_seen(), 3);
	stop();
}

static void denied_and_absent_are_final(void **state _unused_)
{
	static const char *const answers[] = {ERR("403 Forbidden", "SignatureDoesNotMatch"),
					      ERR("404 Not Found", "NoSuchKey"),
					      ERR("404 Not Found", "NoSuchBucket")};
	struct object_req req = get_req();

	START(answers, 10);
	assert_int_equal(object_run(store, &req), -EACCES);
	assert_string_equal(
		req.reason,
		"get v/chunks/0/0/1_0_10: HTTP 403 SignatureDoesNotMatch (the message)");
	assert_int_equal(object_run(store, &req), -ENOENT);
	assert_int_equal(object_run(store, &req), -ENODATA);
	assert_int_equal(n_seen(), 3);
	assert_non_null(strstr(seen(0), "GET /bucket/v/chunks/0/0/1_0_10 HTTP/1.1\r\n"));
	assert_non_null(strstr(seen(0), "Credential=AKTEST/"));
	assert_null(strstr(seen(0), "topsecret"));
	assert_int_equal(
		counted("stoke_object_requests_total", "op=\"get\",range=\"0\",result=\"denied\""),
		1);
	assert_int_equal(
		counted("stoke_object_requests_total", "op=\"get\",range=\"0\",result=\"absent\""),
		2);
	stop();
}

static size_t valid;
static bool fell;

static void on_progress(struct object_req *req, size_t n)
{
	fell |= n < valid;
	valid = n;
	assert(memcmp(req->buf, "0123456789", n) == 0);
}

#define HALF "HTTP/1.1 200 OK\r\nContent-Length: 10\r\nETag: \"e1\"\r\n\r\n01234"

static void a_broken_get_goes_on_behind_its_valid_bytes(void **state _unused_)
{
	static const char *const answers[] = {
		HALF, "",
		"HTTP/1.1 206 Partial\r\nContent-Range: bytes 5-9/10\r\nContent-Length: 5\r\nETag: "
		"\"e1\"\r\n\r\n56789"};
	struct object_req req = get_req();

	START(answers, 10);
	req.progress = on_progress;
	valid = 0;
	fell = false;
	assert_int_equal(object_run(store, &req), 0);
	assert_int_equal(req.got, 10);
	assert_int_equal(valid, 10);
	assert_false(fell);
	assert_null(strcasestr(seen(0), "\r\nrange:"));
	assert_non_null(strstr(seen(2), "\r\nrange: bytes=5-\r\n"));
	assert_non_null(strstr(seen(2), "\r\nif-match: \"e1\"\r\n"));
	stop();
}

static void an_object_replaced_meanwhile_is_stale(void **state _unused_)
{
	static const char *const answers[] = {
		HALF, ERR("412 Precondition Failed", "PreconditionFailed"), HALF,
		"HTTP/1.1 206 P\r\nContent-Range: bytes 5-9/10\r\nContent-Length: 5\r\nETag: "
		"\"e2\"\r\n\r\nabcde",
		/* no ETag: nothing to go on with, and what was shown must not change */
		"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n01234"};
	struct object_req req = get_req();

	START(answers, 10);
	req.progress = on_progress;
	for (int i = 0; i < 3; i++) {
		valid = 0;
		assert_int_equal(object_run(store, &req), -ESTALE);
		assert_memory_equal(buf, "01234\0\0", 7);
	}
	assert_int_equal(n_seen(), 5);
	stop();
}

static void a_broken_get_nobody_saw_starts_anew(void **state _unused_)
{
	static const char *const answers[] = {"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabcde",
					      OK_TEN};
	struct object_req req = get_req();

	START(answers, 10);
	assert_int_equal(object_run(store, &req), 0);
	assert_memory_equal(buf, "0123456789", 10);
	assert_null(strcasestr(seen(1), "\r\nrange:"));
	stop();
}

static void lengths_are_checked_before_bytes_are_shown(void **state _unused_)
{
	static const char *const answers[] = {
		"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n0123456789a",
		"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n0123456789a", /* without a length */
		"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n012345678",
		"HTTP/1.1 206 P\r\nContent-Range: bytes 0-3/9\r\nContent-Length: 4\r\n\r\n0123",
		"HTTP/1.1 206 P\r\nContent-Range: bytes 2-5/9\r\nContent-Length: 4\r\n\r\n2345",
		ERR("416 Range", "InvalidRange"),
	};
	struct object_req req = get_req();

	START(answers, 10);
	req.progress = on_progress;
	valid = 0;
	assert_int_equal(object_run(store, &req), -EMSGSIZE);
	assert_int_equal(object_run(store, &req), -EMSGSIZE);
	assert_int_equal(object_run(store, &req),
			 0); /* short: the caller sees it, nothing was shown */
	assert_int_equal(req.got, 9);
	req.off = 2;
	req.len = 4;
	assert_int_equal(object_run(store, &req), -EIO); /* another range */
	assert_int_equal(valid, 0);
	req.progress = NULL;
	assert_int_equal(object_run(store, &req), 0);
	assert_memory_equal(buf, "2345", 4);
	assert_non_null(strstr(seen(4), "\r\nrange: bytes=2-5\r\n"));
	req.off = 20;
	assert_int_equal(object_run(store, &req), 0); /* behind the end: no bytes */
	assert_int_equal(req.got, 0);
	assert_int_equal(n_seen(), 6);
	stop();
}

/* the vector s3_object_metadata: CRC-32C of "123456789" is 3808858755 */
static void a_stored_checksum_is_verified(void **state _unused_)
{
	static const char *const answers[] = {
		"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nx-amz-meta-crc32c: "
		"3808858755\r\n\r\n123456780",
		"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nX-Amz-Meta-Crc32c: "
		"3808858755\r\n\r\n123456789",
	};
	struct object_req req = get_req();

	START(answers, 1);
	assert_int_equal(object_run(store, &req), 0);
	assert_memory_equal(buf, "123456789", 9);
	assert_int_equal(n_seen(), 2);
	stop();
}

static void a_put_carries_its_checksums(void **state _unused_)
{
	static const char *const answers[] = {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
					      ERR("412 Precondition Failed", "PreconditionFailed")};
	struct object_req req = {.op = OBJECT_PUT, .key = "a b+c", .buf = buf, .cap = 5};

	START(answers, 1);
	memcpy(buf, "hello", 5);
	assert_int_equal(object_run(store, &req), 0);
	assert_non_null(strstr(seen(0), "PUT /bucket/a%20b%2Bc HTTP/1.1\r\n"));
	assert_non_null(strstr(seen(0), "\r\nx-amz-meta-crc32c: 2591144780\r\n"));
	/* sha256 of "hello": over http the payload is signed */
	assert_non_null(strstr(
		seen(0), "\r\nx-amz-content-sha256: "
			 "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824\r\n"));
	assert_non_null(strstr(seen(0), "\r\n\r\nhello"));
	assert_null(strstr(seen(0), "Expect"));
	req.if_absent = true;
	assert_int_equal(object_run(store, &req), -EEXIST);
	assert_non_null(strstr(seen(1), "\r\nif-none-match: *\r\n"));
	assert_int_equal(counted("stoke_object_bytes_total", "op=\"put\""), 5);
	stop();
}

#define STORED "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

static void change(const char *query, const struct object_tier *tiers, size_t n)
{
	char url[160];
	struct object_conf conf = {.storage = "s3",
				   .bucket = url,
				   .access_key = "AKNEW",
				   .secret_key = "newsecret",
				   .tiers = tiers,
				   .n_tiers = n};
	struct str err = STR_INIT;

	(void)snprintf(url, sizeof(url), "%.90s2%s", srv.url, query);
	if (object_change(store, &conf, &err))
		fail_msg("%s", str_c(&err));
	str_fini(&err);
}

/* bucket, keys, classes and tags of a setting that changed are in the next request */
static void a_changed_setting_is_used_at_once(void **state _unused_)
{
	static const char *const answers[] = {STORED, STORED, STORED, STORED, STORED};
	char class0[] = "STANDARD_IA", class2[] = "GLACIER", none[] = "", tag[] = "a key=b/c d";
	const struct object_tier tiers[] = {{0, class0, none}, {2, class2, tag}};
	struct object_conf wrong = {.storage = "s3", .bucket = "http://", .n_tiers = 0};
	struct object_req req = {.op = OBJECT_PUT, .key = "k", .buf = buf, .cap = 5, .tier = 2};
	struct str err = STR_INIT;

	START(answers, 1);
	assert_int_equal(object_run(store, &req), 0);
	assert_non_null(strstr(seen(0), "PUT /bucket/k HTTP/1.1\r\n"));
	assert_null(strstr(seen(0), "x-amz-storage-class"));
	change("", tiers, 2);
	assert_int_equal(object_run(store, &req), 0);
	assert_non_null(strstr(seen(1), "PUT /bucket2/k HTTP/1.1\r\n"));
	assert_non_null(strstr(seen(1), "Credential=AKNEW/"));
	assert_non_null(strstr(seen(1), "\r\nx-amz-storage-class: GLACIER\r\n"));
	assert_non_null(strstr(seen(1), "\r\nx-amz-tagging: a%20key=b%2Fc%20d\r\n"));
	req.tier = 3; /* not there: as tier 0 */
	assert_int_equal(object_run(store, &req), 0);
	assert_non_null(strstr(seen(2), "\r\nx-amz-storage-class: STANDARD_IA\r\n"));
	assert_null(strstr(seen(2), "x-amz-tagging"));
	assert_non_null(strstr(seen(2), "x-amz-meta-crc32c"));
	change("?disable-checksum=true", NULL, 0);
	assert_int_equal(object_run(store, &req), 0);
	assert_null(strstr(seen(3), "x-amz-meta-crc32c"));
	assert_null(strstr(seen(3), "x-amz-storage-class"));
	/* what makes no sense changes nothing */
	assert_int_equal(object_change(store, &wrong, &err), -EINVAL);
	assert_int_equal(object_run(store, &req), 0);
	assert_non_null(strstr(seen(4), "PUT /bucket2/k HTTP/1.1\r\n"));
	str_fini(&err);
	stop();
}

static void deleting_many_sends_md5_and_hears_refusals(void **state _unused_)
{
	static const char *const answers[] = {
		"HTTP/1.1 200 OK\r\nConnection: "
		"close\r\n\r\n<DeleteResult><Error><Key>k2</Key><Code>AccessDenied</Code>"
		"</Error></DeleteResult>",
		"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n<DeleteResult></DeleteResult>",
		"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n<html>no</html>",
	};
	static const char *const keys[] = {"k<1>", "k2"};
	struct object_req req = {.op = OBJECT_DELETE_MANY, .keys = keys, .n_keys = 2};

	START(answers, 1);
	assert_int_equal(object_run(store, &req), -EACCES);
	assert_non_null(strstr(req.reason, "k2"));
	assert_int_equal(object_run(store, &req), 0);
	assert_int_equal(object_run(store, &req), -EIO);
	assert_non_null(strstr(seen(0), "POST /bucket?delete= HTTP/1.1\r\n"));
	assert_non_null(strstr(seen(0), "\r\ncontent-md5: "));
	assert_non_null(strstr(
		seen(0), "<Object><Key>k&#60;1&#62;</Key></Object><Object><Key>k2</Key></Object>"));
	stop();
}

static void a_bucket_is_made_without_a_location_the_server_does_not_know(void **state _unused_)
{
	static const char *const answers[] = {ERR("400 Bad", "InvalidLocationConstraint"),
					      "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
					      ERR("409 Conflict", "BucketAlreadyOwnedByYou")};
	struct object_req req = {.op = OBJECT_CREATE_BUCKET};

	setenv("AWS_REGION", "mars-1", 1);
	START(answers, 1);
	unsetenv("AWS_REGION");
	assert_int_equal(object_run(store, &req), 0);
	assert_int_equal(object_run(store, &req), -EEXIST);
	assert_non_null(strstr(seen(0), "<LocationConstraint>mars-1</LocationConstraint>"));
	assert_null(strstr(seen(1), "LocationConstraint"));
	stop();
}

static void an_archived_object_is_asked_for_once(void **state _unused_)
{
	static const char *const answers[] = {"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n",
					      ERR("409 Conflict", "RestoreAlreadyInProgress"),
					      ERR("403 Forbidden", "InvalidObjectState"),
					      ERR("403 Forbidden", "AccessDenied"),
					      ERR("404 Not Found", "NoSuchKey")};
	struct object_req req = {.op = OBJECT_RESTORE, .key = "k", .days = 7};

	START(answers, 1);
	for (int i = 0; i < 3; i++)
		assert_int_equal(object_run(store, &req), 0);
	assert_int_equal(object_run(store, &req), -EACCES);
	assert_int_equal(object_run(store, &req), -ENOENT);
	assert_non_null(strstr(seen(0), "POST /bucket/k?restore= HTTP/1.1\r\n"));
	assert_non_null(strstr(seen(0), "<Days>7</Days></RestoreRequest>"));
	stop();
}

static void the_server_may_correct_the_region_once(void **state _unused_)
{
	static const char *const answers[] = {"HTTP/1.1 400 Bad\r\nx-amz-bucket-region: "
					      "eu-west-9\r\nConnection: close\r\n\r\n<Error><Code>"
					      "AuthorizationHeaderMalformed</Code></Error>",
					      OK_TEN};
	struct object_req req = get_req();

	START(answers, 1);
	assert_int_equal(object_run(store, &req), 0);
	assert_non_null(strstr(seen(0), "/us-east-1/s3/"));
	assert_non_null(strstr(seen(1), "/eu-west-9/s3/"));
	stop();
}

static void deadlines_hold_on_the_wire_and_in_the_queue(void **state _unused_)
{
	static const char *const answers[] = {NULL};
	struct object_req a = get_req(), b = get_req();
	uint64_t t0 = clock_us();

	start_server(answers, 1);
	open_store(1, 10, "topsecret");
	a.deadline_us = t0 + 300000;
	assert_int_equal(object_run(store, &a), -ETIMEDOUT);
	assert_true(clock_us() - t0 >= 300000);
	assert_true(clock_us() - t0 < 5000000);
	b.deadline_us = 1; /* long ago */
	assert_int_equal(object_run(store, &b), -ETIMEDOUT);
	assert_int_equal(n_seen(), 1);
	stop();
}

struct counter {
	struct mtx lock;
	struct cond cond;
	unsigned done;
	int status[8];
};
struct one {
	struct object_req req;
	struct counter *c;
	unsigned i;
};

static void one_done(struct object_req *req, int status)
{
	struct one *o = container_of(req, struct one, req);
	struct counter *c = o->c;

	mtx_lock(&c->lock);
	c->status[o->i] = status;
	c->done++;
	cond_signal(&c->cond);
	mtx_unlock(&c->lock);
}

static void wait_for(struct counter *c, unsigned n)
{
	mtx_lock(&c->lock);
	while (c->done < n)
		cond_wait(&c->cond, &c->lock);
	mtx_unlock(&c->lock);
}

static void start_ones(struct one *o, struct counter *c, unsigned n)
{
	memset(c, 0, sizeof(*c));
	mtx_init(&c->lock);
	cond_init(&c->cond);
	for (unsigned i = 0; i < n; i++) {
		o[i].req = get_req();
		o[i].req.buf = (unsigned char *)malloc(16);
		o[i].req.done = one_done;
		o[i].c = c;
		o[i].i = i;
	}
}

static void the_queue_is_first_in_first_out_and_keeps_deadlines(void **state _unused_)
{
	static const char *const answers[] = {NULL, NULL};
	struct one o[3] = {{.i = 0}};
	struct counter c;

	start_server(answers, 2);
	open_store(1, 10, "topsecret");
	start_ones(o, &c, 3);
	/* the first holds the only connection until its deadline; the second waits behind it and
	 * gives up first */
	o[0].req.deadline_us = clock_us() + 600000;
	o[1].req.deadline_us = clock_us() + 200000;
	for (unsigned i = 0; i < 3; i++)
		object_start(store, &o[i].req);
	wait_for(&c, 1);
	assert_int_equal(c.status[1], -ETIMEDOUT);
	assert_non_null(strstr(o[1].req.reason, "waited"));
	/* then the third has its turn */
	wait_for(&c, 2);
	assert_int_equal(c.status[0], -ETIMEDOUT);
	object_free(TAKE_PTR(store));
	assert_int_equal(c.done, 3);
	assert_int_equal(c.status[2], -ECANCELED);
	for (unsigned i = 0; i < 3; i++)
		free(o[i].req.buf);
	stop();
}

static void freeing_the_store_cancels_what_is_under_way(void **state _unused_)
{
	static const char *const answers[] = {NULL, NULL};
	struct one o[4] = {{.i = 0}};
	struct counter c;

	start_server(answers, 2);
	open_store(2, 10, "topsecret");
	start_ones(o, &c, 4);
	o[3].req.op = OBJECT_PUT; /* possibly still with the sums */
	for (unsigned i = 0; i < 4; i++)
		object_start(store, &o[i].req);
	object_free(TAKE_PTR(store));
	assert_int_equal(c.done, 4);
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(c.status[i], -ECANCELED);
		free(o[i].req.buf);
	}
	stop();
}

static void uploads_go_on_as_long_as_asked(void **state _unused_)
{
	static const char *const answers[] = {ERR("500 a", ""), ERR("500 a", ""), ERR("500 a", ""),
					      "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"};
	struct object_req req = {
		.op = OBJECT_PUT, .key = "k", .buf = buf, .cap = 5, .persist_us = 60000000};

	START(answers, 1);
	assert_int_equal(object_run(store, &req), 0);
	assert_int_equal(n_seen(), 4);
	stop();
}

/* attempts and their pauses of up to 10 s are for servers; who waits for one hears soon that it is
 * back, and has until his deadline */
static void where_no_server_is_is_knocked_at_until_the_deadline(void **state _unused_)
{
	static const char *answers[MAX_REQUESTS];
	struct object_req req = get_req();
	unsigned n = 0;

	while (n < MAX_REQUESTS)
		answers[n++] = ""; /* closed at once */
	START(answers, 1);
	req.deadline_us = clock_us() + 1500000;
	assert_int_equal(object_run(store, &req), -ETIMEDOUT);
	assert_true(n_seen() >= 4);
	stop();
}

#define JSON_KEYS(access, when)                                                                    \
	"HTTP/1.1 200 OK\r\nConnection: "                                                          \
	"close\r\n\r\n{\"Code\":\"Success\",\"AccessKeyId\":\"" access                             \
	"\",\"SecretAccessKey\":\"rolesecret\",\"Token\":\"roletoken\",\"Expiration\":\"" when     \
	"\"}"

static void a_role_signs_when_nobody_gave_keys(void **state _unused_)
{
	static const char *const answers[] = {
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\ntoken",
		"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nnode-role",
		JSON_KEYS("ASIAROLE", "2099-01-01T00:00:00Z"),
		OK_TEN,
	};
	struct object_req req = get_req();

	start_server(answers, ARRAY_LEN(answers));
	setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", srv.base, 1);
	open_store(4, 1, NULL);
	assert_int_equal(object_run(store, &req), 0);
	assert_non_null(strstr(seen(0), "PUT /latest/api/token HTTP/1.1\r\n"));
	assert_non_null(strstr(seen(0), "\r\nx-aws-ec2-metadata-token-ttl-seconds: 21600\r\n"));
	assert_non_null(
		strstr(seen(1), "GET /latest/meta-data/iam/security-credentials/ HTTP/1.1\r\n"));
	assert_non_null(strstr(seen(1), "\r\nx-aws-ec2-metadata-token: token\r\n"));
	assert_non_null(strstr(
		seen(2), "GET /latest/meta-data/iam/security-credentials/node-role HTTP/1.1\r\n"));
	assert_non_null(strstr(seen(3), "Credential=ASIAROLE/"));
	assert_non_null(strstr(seen(3), "\r\nx-amz-security-token: roletoken\r\n"));
	unsetenv("AWS_EC2_METADATA_SERVICE_ENDPOINT");
	stop();
}

static void no_role_means_unsigned(void **state _unused_)
{
	static const char *const answers[] = {ERR("404 Not Found", ""), OK_TEN};
	struct object_req req = get_req();

	start_server(answers, ARRAY_LEN(answers));
	setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", srv.base, 1);
	open_store(4, 1, "");
	assert_int_equal(object_run(store, &req), 0);
	assert_null(strcasestr(seen(1), "authorization:"));
	unsetenv("AWS_EC2_METADATA_SERVICE_ENDPOINT");
	stop();
}

static void the_environment_comes_before_the_setting(void **state _unused_)
{
	static const char *const answers[] = {OK_TEN, OK_TEN};
	struct object_req req = get_req();

	start_server(answers, 2);
	setenv("AWS_ACCESS_KEY_ID", "AKAWS", 1);
	setenv("AWS_SECRET_ACCESS_KEY", "s", 1);
	setenv("AWS_SESSION_TOKEN", "awstoken", 1);
	open_store(1, 1, "topsecret");
	assert_int_equal(object_run(store, &req), 0);
	assert_non_null(strstr(seen(0), "Credential=AKAWS/"));
	assert_non_null(strstr(seen(0), "\r\nx-amz-security-token: awstoken\r\n"));
	object_free(store);
	loop_free(loop);
	metrics_free(metrics);
	setenv("ACCESS_KEY", "AKFIRST", 1);
	setenv("SECRET_KEY", "s", 1);
	open_store(1, 1, "topsecret");
	assert_int_equal(object_run(store, &req), 0);
	assert_non_null(strstr(seen(1), "Credential=AKFIRST/"));
	assert_null(strstr(seen(1), "security-token"));
	unsetenv("AWS_ACCESS_KEY_ID");
	unsetenv("AWS_SECRET_ACCESS_KEY");
	unsetenv("AWS_SESSION_TOKEN");
	unsetenv("ACCESS_KEY");
	unsetenv("SECRET_KEY");
	stop();
}

static int clean_environment(void **state _unused_)
{
	static const char *const names[] = {"ACCESS_KEY",
					    "SECRET_KEY",
					    "SESSION_TOKEN",
					    "AWS_ACCESS_KEY_ID",
					    "AWS_SECRET_ACCESS_KEY",
					    "AWS_SESSION_TOKEN",
					    "AWS_REGION",
					    "AWS_DEFAULT_REGION",
					    "AWS_EC2_METADATA_DISABLED",
					    "http_proxy"};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		unsetenv(names[i]);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(server_errors_are_retried_and_counted),
		cmocka_unit_test(retries_end),
		cmocka_unit_test(denied_and_absent_are_final),
		cmocka_unit_test(a_broken_get_goes_on_behind_its_valid_bytes),
		cmocka_unit_test(an_object_replaced_meanwhile_is_stale),
		cmocka_unit_test(a_broken_get_nobody_saw_starts_anew),
		cmocka_unit_test(lengths_are_checked_before_bytes_are_shown),
		cmocka_unit_test(a_stored_checksum_is_verified),
		cmocka_unit_test(a_put_carries_its_checksums),
		cmocka_unit_test(deleting_many_sends_md5_and_hears_refusals),
		cmocka_unit_test(an_archived_object_is_asked_for_once),
		cmocka_unit_test(a_bucket_is_made_without_a_location_the_server_does_not_know),
		cmocka_unit_test(the_server_may_correct_the_region_once),
		cmocka_unit_test(deadlines_hold_on_the_wire_and_in_the_queue),
		cmocka_unit_test(the_queue_is_first_in_first_out_and_keeps_deadlines),
		cmocka_unit_test(freeing_the_store_cancels_what_is_under_way),
		cmocka_unit_test(a_changed_setting_is_used_at_once),
		cmocka_unit_test(uploads_go_on_as_long_as_asked),
		cmocka_unit_test(where_no_server_is_is_knocked_at_until_the_deadline),
		cmocka_unit_test(a_role_signs_when_nobody_gave_keys),
		cmocka_unit_test(no_role_means_unsigned),
		cmocka_unit_test(the_environment_comes_before_the_setting),
	};

	return cmocka_run_group_tests(tests, clean_environment, NULL);
}
