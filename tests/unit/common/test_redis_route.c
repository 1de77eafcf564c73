/* SPDX-License-Identifier: Apache-2.0 */
/* redis_route, redis_sentinel, redis_cluster: which server is asked when servers say strange things
 * at strange moments. Servers are threads of ours that answer commands as a test tells them. */
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <cmocka.h>

#include "common/clock.h"
#include "common/redis_inner.h"

enum { SECOND = 1000000, FAKES_MAX = 6, WORDS_MAX = 16 };

struct fake;
/* answers a command of n words in out; false: closes the connection */
typedef bool answer_fn(struct fake *f, int n, char **word, struct str *out);

struct fake {
	int fd;
	uint16_t port;
	answer_fn *answer;
	pthread_t thread;
	int stopping;			/* atomic, as what follows */
	int replica, broken, slow, cut; /* what the tests turn */
	int asked, served;
	struct fake *other;
	int asking; /* ASKING was said, and the command it is for has not come yet */
};

/* --- servers --- */

static void pause_ms(long ms)
{
	struct timespec ts = {.tv_nsec = ms * 1000000};

	nanosleep(&ts, NULL);
}

static int get(const int *p)
{
	return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}

static void set(int *p, int v)
{
	__atomic_store_n(p, v, __ATOMIC_SEQ_CST);
}

/* one whole command from the front of in: its words are cut out of a copy; 0: not all there */
static size_t command_read(const char *in, size_t len, char *copy, int *ret_n, char **word)
{
	size_t at = 0;
	long n;

	memcpy(copy, in, len);
	copy[len] = 0;
	if (!memchr(copy, '\n', len))
		return 0;
	assert_true(copy[0] == '*');
	n = strtol(copy + 1, NULL, 10);
	assert_in_range(n, 1, WORDS_MAX);
	at = (size_t)(strchr(copy, '\n') - copy) + 1;
	for (long i = 0; i < n; i++) {
		char *line = copy + at, *end = len > at ? memchr(line, '\n', len - at) : NULL;
		size_t size;

		if (!end)
			return 0;
		size = (size_t)strtol(line + 1, NULL, 10);
		at = (size_t)(end - copy) + 1;
		if (at + size + 2 > len)
			return 0;
		word[i] = copy + at;
		at += size + 2;
		copy[at - 2] = 0;
	}
	*ret_n = (int)n;
	return at;
}

struct guest {
	struct fake *f;
	int fd;
};

static void *guest_run(void *arg)
{
	struct guest *g = arg;
	struct str in = STR_INIT, out = STR_INIT;
	char buf[4096], copy[16384], *word[WORDS_MAX];
	bool on = true;
	int n;

	while (on && !get(&g->f->stopping)) {
		struct timeval tv = {.tv_usec = 20000};
		ssize_t got;
		size_t used;

		setsockopt(g->fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
		got = recv(g->fd, buf, sizeof(buf), 0);
		if (got < 0 && errno == EAGAIN)
			continue;
		if (got <= 0)
			break;
		str_addn(&in, buf, (size_t)got);
		while (on && (used = command_read(in.s, in.len, copy, &n, word))) {
			memmove(in.s, in.s + used, in.len - used);
			in.len -= used;
			str_reset(&out);
			on = g->f->answer(g->f, n, word, &out);
			if (on && out.len)
				on = send(g->fd, out.s, out.len, MSG_NOSIGNAL) > 0;
		}
	}
	close(g->fd);
	str_fini(&in);
	str_fini(&out);
	free(g);
	return NULL;
}

static void *fake_run(void *arg)
{
	struct fake *f = arg;
	pthread_t guests[64];
	unsigned n = 0;

	while (!get(&f->stopping)) {
		struct guest *g;
		int fd = accept(f->fd, NULL, NULL);

		if (fd < 0)
			continue;
		g = malloc(sizeof(*g));
		assert_non_null(g);
		*g = (struct guest){.f = f, .fd = fd};
		assert_true(n < ARRAY_LEN(guests));
		pthread_create(&guests[n++], NULL, guest_run, g);
	}
	while (n)
		pthread_join(guests[--n], NULL);
	return NULL;
}

static void fake_start(struct fake *f, answer_fn *answer)
{
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct timeval tv = {.tv_usec = 20000};
	socklen_t len = sizeof(in);

	*f = (struct fake){.answer = answer};
	f->fd = socket(AF_INET, SOCK_STREAM, 0);
	assert_int_equal(bind(f->fd, (struct sockaddr *)&in, sizeof(in)), 0);
	assert_int_equal(getsockname(f->fd, (struct sockaddr *)&in, &len), 0);
	f->port = ntohs(in.sin_port);
	setsockopt(f->fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	assert_int_equal(listen(f->fd, 16), 0);
	pthread_create(&f->thread, NULL, fake_run, f);
}

static void fake_stop(struct fake *f)
{
	set(&f->stopping, 1);
	pthread_join(f->thread, NULL);
	close(f->fd);
}

static bool say(struct str *out, const char *text)
{
	str_add(out, text);
	return true;
}

static bool is(const char *word, const char *what)
{
	return !strcasecmp(word, what);
}

static void bulk(struct str *out, const char *text)
{
	str_addf(out, "$%zu\r\n%s\r\n", strlen(text), text);
}

/* what every server says; false: it is for the caller to answer */
static bool common_answer(struct fake *f, char **word, struct str *out)
{
	if (is(word[0], "INFO"))
		bulk(out, get(&f->replica) ? "redis_version:7.0.1\r\nrole:slave\r\n"
					   : "redis_version:7.0.1\r\nrole:master\r\n");
	else if (is(word[0], "ROLE"))
		str_add(out, get(&f->replica) ? "*1\r\n$5\r\nslave\r\n" : "*1\r\n$6\r\nmaster\r\n");
	else if (is(word[0], "SELECT"))
		str_add(out, "+OK\r\n");
	else
		return false;
	return true;
}

/* --- what is told --- */

/* names f->other as the master of "main" */
static bool sentinel(struct fake *f, int n, char **word, struct str *out)
{
	char port[8];

	assert_true(is(word[0], "SENTINEL"));
	__atomic_add_fetch(&f->asked, 1, __ATOMIC_SEQ_CST);
	if (n < 3 || !is(word[2], "main"))
		return say(out, "*-1\r\n");
	if (is(word[1], "sentinels") && get(&f->cut)) { /* another one, at this port */
		snprintf(port, sizeof(port), "%d", get(&f->cut));
		str_add(out, "*1\r\n*4\r\n$2\r\nip\r\n$9\r\n127.0.0.1\r\n$4\r\nport\r\n");
		bulk(out, port);
		return true;
	}
	if (is(word[1], "sentinels"))
		return say(out, "*0\r\n");
	snprintf(port, sizeof(port), "%u", __atomic_load_n(&f->other, __ATOMIC_SEQ_CST)->port);
	str_add(out, "*2\r\n");
	bulk(out, "127.0.0.1");
	bulk(out, port);
	return true;
}

/* a server: says who it is; as a replica it takes no writes */
static bool server(struct fake *f, int n, char **word, struct str *out)
{
	(void)n;
	if (common_answer(f, word, out))
		return true;
	if (is(word[0], "CLUSTER"))
		return say(out, "-ERR This instance has cluster support disabled\r\n");
	if (is(word[0], "EVALSHA") && get(&f->replica))
		return say(out, "-ERR Error running script (call to f_0): @user_script:1: "
				"@user_script: 1: -READONLY You can't write against a read only "
				"replica. \r\n");
	if (is(word[0], "SET") && get(&f->replica))
		return say(out, "-READONLY You can't write against a read only replica.\r\n");
	if (get(&f->broken))
		return false;
	if (get(&f->slow)) {
		while (get(&f->slow) && !get(&f->stopping))
			pause_ms(5);
		return say(out, "+too late\r\n");
	}
	if (is(word[0], "HSCAN")) { /* two pages of one name each */
		bool first = is(word[2], "0");

		if (!first && get(&f->cut)) {
			set(&f->cut, 0);
			return false;
		}
		return say(out, first ? "*2\r\n$1\r\n7\r\n*1\r\n$1\r\na\r\n"
				      : "*2\r\n$1\r\n0\r\n*1\r\n$1\r\nb\r\n");
	}
	__atomic_add_fetch(&f->served, 1, __ATOMIC_SEQ_CST);
	str_addf(out, ":%u\r\n", f->port);
	return true;
}

/* a node whose slots are f->other's (its own, if that is NULL) */
static bool node(struct fake *f, int n, char **word, struct str *out)
{
	struct fake *owner = __atomic_load_n(&f->other, __ATOMIC_SEQ_CST);
	unsigned slot = redis_cluster_slot("{3}", 3);

	if (common_answer(f, word, out))
		return true;
	if (is(word[0], "CLUSTER") && is(word[1], "INFO")) {
		bulk(out, "cluster_state:ok\r\n");
		return true;
	}
	if (is(word[0], "CLUSTER")) { /* SLOTS */
		__atomic_add_fetch(&f->asked, 1, __ATOMIC_SEQ_CST);
		str_addf(out,
			 "*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:%u\r\n$1\r\nx\r\n",
			 owner ? owner->port : f->port);
		return true;
	}
	if (is(word[0], "ASKING")) {
		set(&f->asking, 1);
		return say(out, "+OK\r\n");
	}
	if (n > 1 && is(word[1], "sessions") && owner) { /* not in the volume's slot */
		str_addf(out, "-MOVED 77 127.0.0.1:%u\r\n", owner->port);
		return true;
	}
	if (get(&f->broken) && !get(&f->asking)) { /* the slot is on its way to the other one */
		str_addf(out, "-ASK %u 127.0.0.1:%d\r\n", slot, get(&f->broken));
		return true;
	}
	if (owner && !get(&f->asking)) {
		str_addf(out, "-MOVED %u 127.0.0.1:%u\r\n", slot, owner->port);
		return true;
	}
	set(&f->asking, 0);
	__atomic_add_fetch(&f->served, 1, __ATOMIC_SEQ_CST);
	str_addf(out, ":%u\r\n", f->port);
	return true;
}

/* --- tests --- */

static uint64_t within(uint64_t us)
{
	return clock_us() + us;
}

static struct redis *open_url(const char *url)
{
	struct str err = STR_INIT;
	struct redis *r = NULL;

	if (redis_new(url, NULL, &r, &err) < 0)
		fail_msg("%s", str_c(&err));
	str_fini(&err);
	return r;
}

static struct redis *open_sentinel(const struct fake *s)
{
	char url[64];

	snprintf(url, sizeof(url), "redis://main,127.0.0.1:%u/2", s->port);
	return open_url(url);
}

/* the port of who answered, or an error */
static int64_t ask(struct redis *r, uint64_t us, const char *what)
{
	struct redis_reply *reply;
	int64_t port;
	int e = redis_once(r, within(us), &reply, what);

	if (e < 0)
		return e;
	port = redis_reply_int(reply);
	redis_reply_free(reply);
	return port;
}

static int64_t eval(struct redis *r, uint64_t us)
{
	const char *argv[] = {"{3}setting"};
	struct redis_script s;
	struct redis_reply *reply;
	int64_t port;
	int e;

	assert_int_equal(redis_script_init(&s, "s", "", "return 1"), 0);
	e = redis_eval(r, within(us), &s, 1, 1, argv, NULL, &reply);
	redis_script_fini(&s);
	if (e < 0)
		return e;
	port = redis_reply_int(reply);
	redis_reply_free(reply);
	return port;
}

static void point(struct fake *f, struct fake *to)
{
	__atomic_store_n(&f->other, to, __ATOMIC_SEQ_CST);
}

static void slots_are_those_of_the_specification(void **state)
{
	(void)state;
	assert_int_equal(redis_cluster_slot("123456789", 9), 0x31c3);
	assert_int_equal(redis_cluster_slot("foo", 3), 12182);
	assert_int_equal(redis_cluster_slot("{user1000}.following", 20),
			 redis_cluster_slot("user1000", 8));
	assert_int_equal(redis_cluster_slot("foo{}{bar}", 10), 8363);
	assert_int_equal(redis_cluster_slot("foo{{bar}}zap", 13), redis_cluster_slot("{bar", 4));
}

static void a_server_that_became_a_replica_is_left(void **state)
{
	struct fake a, b, s;
	struct redis *r;

	(void)state;
	fake_start(&a, server);
	fake_start(&b, server);
	fake_start(&s, sentinel);
	point(&s, &a);
	r = open_sentinel(&s);
	assert_int_equal(ask(r, SECOND, "SET k v"), a.port);
	set(&a.replica, 1);
	point(&s, &b);
	assert_int_equal(ask(r, SECOND, "SET k v"), b.port);
	assert_int_equal(ask(r, SECOND, "GET k"), b.port);
	/* the same within a script, as servers before 7 put it */
	set(&b.replica, 1);
	set(&a.replica, 0);
	point(&s, &a);
	assert_int_equal(eval(r, SECOND), a.port);
	redis_free(r);
	fake_stop(&a);
	fake_stop(&b);
	fake_stop(&s);
}

static void *promote_later(void *arg)
{
	struct fake *s = arg;

	pause_ms(150);
	point(s, s->other->other);
	return NULL;
}

static void a_server_in_the_wrong_role_is_not_used(void **state)
{
	struct fake a, b, s;
	struct redis *r;
	pthread_t t;

	(void)state;
	fake_start(&a, server);
	fake_start(&b, server);
	fake_start(&s, sentinel);
	point(&s, &a);
	r = open_sentinel(&s);
	assert_int_equal(ask(r, SECOND, "GET k"), a.port);
	set(&a.broken, 1); /* closes, comes back as a replica, and the sentinels do not know yet */
	set(&a.replica, 1);
	point(&a, &b);
	pthread_create(&t, NULL, promote_later, &s);
	assert_int_equal(ask(r, 5 * SECOND, "GET k"), b.port);
	pthread_join(t, NULL);
	assert_int_equal(a.served, 1);
	redis_free(r);
	fake_stop(&a);
	fake_stop(&b);
	fake_stop(&s);
}

static void a_server_that_is_silent_is_left_when_another_one_took_over(void **state)
{
	struct fake a, b, s;
	struct redis *r;
	uint64_t begin;

	(void)state;
	fake_start(&a, server);
	fake_start(&b, server);
	fake_start(&s, sentinel);
	point(&s, &a);
	r = open_sentinel(&s);
	set(&a.slow, 1);
	point(&s, &b);
	begin = clock_us();
	assert_int_equal(ask(r, 20 * SECOND, "GET k"), b.port);
	assert_in_range(clock_us() - begin, SECOND, 3 * SECOND);
	/* while nobody took over, its answer is waited for */
	set(&a.slow, 0);
	redis_free(r);
	fake_stop(&a);
	fake_stop(&b);
	fake_stop(&s);
}

static void a_late_answer_is_nobody_elses(void **state)
{
	char url[64];
	struct fake a;
	struct redis *r;

	(void)state;
	fake_start(&a, server);
	snprintf(url, sizeof(url), "redis://127.0.0.1:%u", a.port);
	r = open_url(url);
	set(&a.slow, 1);
	assert_int_equal(ask(r, 50000, "GET k"), -ETIMEDOUT);
	set(&a.slow, 0); /* "too late" is on its way */
	pause_ms(30);
	assert_int_equal(ask(r, SECOND, "GET k"), a.port);
	redis_free(r);
	fake_stop(&a);
}

static void what_sentinels_do_not_know_is_said(void **state)
{
	struct str err = STR_INIT;
	struct redis *r = NULL;
	struct fake s, a;
	char url[96];

	(void)state;
	fake_start(&s, sentinel);
	fake_start(&a, server);
	point(&s, &a);
	snprintf(url, sizeof(url), "redis://nobody,127.0.0.1:%u/2", s.port);
	assert_int_equal(redis_new(url, NULL, &r, &err), -ENOENT);
	assert_non_null(strstr(str_c(&err), "no master named 'nobody'"));
	str_reset(&err);
	/* one that is away costs nothing but the asking */
	snprintf(url, sizeof(url), "redis://main,127.0.0.1:1,127.0.0.1:%u/2", s.port);
	r = open_url(url);
	assert_int_equal(ask(r, SECOND, "GET k"), a.port);
	redis_free(r);
	fake_stop(&s);
	r = NULL;
	assert_int_equal(redis_new(url, NULL, &r, &err), -ECONNREFUSED);
	assert_non_null(strstr(str_c(&err), "sentinel 127.0.0.1"));
	str_fini(&err);
	fake_stop(&a);
}

static void sentinels_that_the_url_does_not_name_are_learned(void **state)
{
	struct fake s, t, a, b;
	struct redis *r;

	(void)state;
	fake_start(&s, sentinel);
	fake_start(&t, sentinel);
	fake_start(&a, server);
	fake_start(&b, server);
	point(&s, &a);
	point(&t, &b);
	set(&s.cut, t.port);
	r = open_sentinel(&s);
	assert_int_equal(ask(r, SECOND, "GET k"), a.port);
	fake_stop(&s);
	fake_stop(&a);
	assert_int_equal(ask(r, 5 * SECOND, "GET k"), b.port);
	redis_free(r);
	fake_stop(&t);
	fake_stop(&b);
}

static void a_url_of_a_replica_is_told_at_once_that_it_may_not_write(void **state)
{
	char url[64];
	struct fake a;
	struct redis *r;

	(void)state;
	fake_start(&a, server);
	set(&a.replica, 1);
	snprintf(url, sizeof(url), "redis://127.0.0.1:%u", a.port);
	r = open_url(url);
	assert_int_equal(ask(r, 20 * SECOND, "SET k v"), -EROFS);
	assert_int_equal(ask(r, SECOND, "GET k"), a.port);
	redis_free(r);
	fake_stop(&a);
}

static void moved_is_followed_and_remembered(void **state)
{
	char url[64];
	struct fake a, b;
	struct redis *r;
	int asked;

	(void)state;
	fake_start(&a, node);
	fake_start(&b, node);
	snprintf(url, sizeof(url), "redis://127.0.0.1:%u/3", a.port);
	r = open_url(url);
	assert_string_equal(redis_prefix(r), "{3}");
	assert_int_equal(ask(r, SECOND, "GET {3}k"), a.port);
	asked = get(&a.asked) + get(&b.asked);
	point(&a, &b);
	assert_int_equal(ask(r, SECOND, "GET {3}k"), b.port);
	assert_int_equal(eval(r, SECOND), b.port);
	assert_int_equal(get(&a.served), 1);
	assert_int_equal(get(&a.asked) + get(&b.asked),
			 asked); /* the word of the node was enough */
	/* another slot's node is asked, and does not become ours */
	point(&a, NULL);
	point(&b, &a);
	assert_int_equal(ask(r, SECOND, "GET sessions"), a.port);
	point(&b, NULL);
	point(&a, &b);
	assert_int_equal(ask(r, SECOND, "GET {3}k"), b.port);
	redis_free(r);
	fake_stop(&a);
	fake_stop(&b);
}

static void ask_is_followed_by_commands_and_waited_out_by_scripts(void **state)
{
	char url[64];
	struct fake a, b;
	struct redis *r;
	int64_t e;

	(void)state;
	fake_start(&a, node);
	fake_start(&b, node);
	point(&b, &a); /* b has the slot only for those who were told to ask */
	snprintf(url, sizeof(url), "redis://127.0.0.1:%u,127.0.0.1:%u/3", a.port, b.port);
	r = open_url(url);
	set(&a.broken, b.port);
	assert_int_equal(ask(r, SECOND, "GET {3}k"), b.port);
	assert_int_equal(get(&b.served), 1);
	e = eval(r, 200000);
	assert_true(e == -EAGAIN || e == -ETIMEDOUT);
	assert_int_equal(get(&b.served), 1);
	set(&a.broken, 0);
	assert_int_equal(eval(r, SECOND), a.port);
	redis_free(r);
	fake_stop(&a);
	fake_stop(&b);
}

static void a_node_that_is_gone_is_looked_for_among_the_others(void **state)
{
	char url[64];
	struct fake a, b, c;
	struct redis *r;

	(void)state;
	fake_start(&a, node);
	fake_start(&b, node);
	fake_start(&c, node);
	point(&b, &a);
	point(&c, &a);
	snprintf(url, sizeof(url), "redis://127.0.0.1:%u,127.0.0.1:%u/3", a.port, b.port);
	r = open_url(url);
	assert_int_equal(ask(r, SECOND, "GET {3}k"), a.port);
	point(&b, &c);
	point(&c, NULL);
	fake_stop(&a);
	assert_int_equal(ask(r, 5 * SECOND, "GET {3}k"), c.port);
	redis_free(r);
	fake_stop(&b);
	fake_stop(&c);
}

struct pages_seen {
	struct redis *r;
	struct redis_conn *held; /* so that the next page needs another connection */
	bool hold;
	unsigned starts;
	char names[16];
};

static int page_seen(void *arg, const struct redis_reply *page)
{
	struct pages_seen *s = arg;

	if (!page) {
		s->starts++;
		s->names[0] = 0;
		return 0;
	}
	strncat(s->names, redis_reply_str(redis_reply_at(page, 0), NULL), 2);
	if (s->hold && !s->held)
		assert_int_equal(redis_acquire(s->r, within(SECOND), &s->held), 0);
	return 0;
}

static void pages_begin_anew_when_it_may_be_another_server(void **state)
{
	struct pages_seen s = {.r = NULL};
	struct fake a;
	char url[64];

	(void)state;
	fake_start(&a, server);
	snprintf(url, sizeof(url), "redis://127.0.0.1:%u", a.port);
	s.r = open_url(url);
	assert_int_equal(redis_pages(s.r, SECOND, "HSCAN", "k", NULL, 10, page_seen, &s), 0);
	assert_string_equal(s.names, "ab");
	assert_int_equal(s.starts, 1);
	set(&a.cut, 1);
	assert_int_equal(redis_pages(s.r, SECOND, "HSCAN", "k", NULL, 10, page_seen, &s), 0);
	assert_string_equal(s.names, "ab");
	assert_int_equal(s.starts, 3);
	s.hold = true;
	assert_int_equal(redis_pages(s.r, SECOND, "HSCAN", "k", NULL, 10, page_seen, &s), 0);
	assert_string_equal(s.names, "ab");
	assert_int_equal(s.starts, 5);
	redis_release(s.held);
	redis_free(s.r);
	fake_stop(&a);
}

static void tls_that_is_none_is_told_so(void **state)
{
	static const char *const says[] = {"TLS: ", "in the TLS handshake"};
	const struct redis_conf conf = {.connect_timeout_us = 300000};
	struct str err = STR_INIT;
	struct redis *r = NULL;
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(in);
	char url[64], buf[512];
	int fd = socket(AF_INET, SOCK_STREAM, 0), peer;
	pid_t child;

	(void)state;
	assert_int_equal(bind(fd, (struct sockaddr *)&in, sizeof(in)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&in, &len), 0);
	assert_int_equal(listen(fd, 4), 0);
	snprintf(url, sizeof(url), "rediss://127.0.0.1:%u", ntohs(in.sin_port));
	/* silence: nobody accepts */
	assert_int_equal(redis_new(url, &conf, &r, &err), -ETIMEDOUT);
	assert_non_null(strstr(str_c(&err), says[1]));
	str_reset(&err);
	/* what a server without TLS says: it waits in the socket before we ask */
	peer = accept(fd, NULL, NULL);
	close(peer);
	child = fork();
	if (child == 0) {
		peer = accept(fd, NULL, NULL);
		if (recv(peer, buf, sizeof(buf), 0) > 0)
			(void)!write(peer, "-ERR Protocol error: unbalanced quotes in request\r\n",
				     51);
		_exit(0);
	}
	assert_int_equal(redis_new(url, NULL, &r, &err), -EPROTO);
	assert_non_null(strstr(str_c(&err), says[0]));
	waitpid(child, NULL, 0);
	str_fini(&err);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(slots_are_those_of_the_specification),
		cmocka_unit_test(a_server_that_became_a_replica_is_left),
		cmocka_unit_test(a_server_in_the_wrong_role_is_not_used),
		cmocka_unit_test(a_server_that_is_silent_is_left_when_another_one_took_over),
		cmocka_unit_test(a_late_answer_is_nobody_elses),
		cmocka_unit_test(what_sentinels_do_not_know_is_said),
		cmocka_unit_test(sentinels_that_the_url_does_not_name_are_learned),
		cmocka_unit_test(a_url_of_a_replica_is_told_at_once_that_it_may_not_write),
		cmocka_unit_test(moved_is_followed_and_remembered),
		cmocka_unit_test(ask_is_followed_by_commands_and_waited_out_by_scripts),
		cmocka_unit_test(a_node_that_is_gone_is_looked_for_among_the_others),
		cmocka_unit_test(pages_begin_anew_when_it_may_be_another_server),
		cmocka_unit_test(tls_that_is_none_is_told_so),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
