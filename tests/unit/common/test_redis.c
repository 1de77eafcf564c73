/* SPDX-License-Identifier: Apache-2.0 */
/* redis: the URL forms, and everything else against a real redis-server on a unix socket (and one
 * TCP port). When there is no redis-server, what needs it is counted as skipped. */
#include "common/redis.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <cmocka.h>

#include "common/clock.h"
#include "common/redis_url.h"

enum { SECOND = 1000000 };

static char dir[] = "/tmp/stoke-redis-XXXXXX";
static char sock_path[64], url[96];
static pid_t server;
static bool have_server;
static unsigned skipped;

/* --- a server --- */

static void pause_ms(long ms)
{
	struct timespec ts = {.tv_nsec = ms * 1000000};

	nanosleep(&ts, NULL);
}

static pid_t start_server(const char *const *more)
{
	const char *argv[32] = {"redis-server", "--save", "", "--appendonly", "no", "--dir", dir,
				"--daemonize",	"no"};
	unsigned n = 9;
	pid_t pid;

	while (*more && n < ARRAY_LEN(argv) - 1)
		argv[n++] = *more++;
	pid = fork();
	if (pid == 0) {
		int null = open("/dev/null", O_RDWR);

		dup2(null, 1);
		dup2(null, 2);
		execvp("redis-server", (char *const *)(uintptr_t)argv);
		_exit(127);
	}
	return pid;
}

static void stop_server(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static bool is_listening(const struct sockaddr *sa, socklen_t len)
{
	int fd = socket(sa->sa_family, SOCK_STREAM, 0);
	bool ok = connect(fd, sa, len) == 0;

	close(fd);
	return ok;
}

static void start_main_server(void)
{
	const char *const more[] = {"--port", "0",   "--unixsocket", sock_path,
				    "--user", "app", "on",	     ">secret%",
				    "~*",     "&*",  "+@all",	     NULL};
	struct sockaddr_un un = {.sun_family = AF_UNIX};

	memcpy(un.sun_path, sock_path, strlen(sock_path));
	unlink(sock_path);
	server = start_server(more);
	for (int i = 0; i < 500 && !is_listening((struct sockaddr *)&un, sizeof(un)); i++)
		pause_ms(20);
}

static int begin(void **state)
{
	(void)state;
	unsetenv("REDIS_PASSWORD");
	unsetenv("META_PASSWORD");
	unsetenv("META_PASSWORD_FILE");
	assert_non_null(mkdtemp(dir));
	snprintf(sock_path, sizeof(sock_path), "%s/s", dir);
	snprintf(url, sizeof(url), "unix://%s?db=3", sock_path);
	have_server = system("command -v redis-server >/dev/null") == 0;
	if (have_server)
		start_main_server();
	return 0;
}

static int end(void **state)
{
	char cmd[96];

	(void)state;
	if (have_server)
		stop_server(server);
	snprintf(cmd, sizeof(cmd), "rm -rf %s", dir);
	if (system(cmd) != 0)
		return -1;
	if (skipped)
		print_message("skipped: %u tests, no redis-server\n", skipped);
	return 0;
}

#define NEED_SERVER()                                                                              \
	do {                                                                                       \
		if (!have_server) {                                                                \
			skipped++;                                                                 \
			skip();                                                                    \
		}                                                                                  \
	} while (0)

static struct redis *open_main(unsigned max_conns)
{
	const struct redis_conf conf = {.max_conns = max_conns};
	struct str err = STR_INIT;
	struct redis *r = NULL;

	if (redis_new(url, &conf, &r, &err) < 0)
		fail_msg("%s", str_c(&err));
	str_fini(&err);
	return r;
}

static uint64_t within(uint64_t us)
{
	return clock_us() + us;
}

/* --- URLs --- */

/* "host:port" of each, with a blank between */
static void addrs_print(const struct redis_url *u, struct str *out)
{
	for (size_t i = 0; i < u->n_addrs; i++)
		str_addf(out, "%s%s:%u", i ? " " : "", u->addrs[i].host, u->addrs[i].port);
}

static void url_forms_are_read_as_juicefs_reads_them(void **state)
{
	static const struct {
		const char *url, *addrs, *path, *user, *password, *master, *name;
		unsigned db;
		enum redis_mode mode;
	} rows[] = {
		{"redis://h:7/2", "h:7", NULL, NULL, NULL, NULL, "redis://h:7/2", 2, 0},
		{"h:7/2", "h:7", NULL, NULL, NULL, NULL, "redis://h:7/2", 2, 0},
		{"h", "h:6379", NULL, NULL, NULL, NULL, "redis://h:6379/0", 0, 0},
		{"h/1", "h:6379", NULL, NULL, NULL, NULL, "redis://h:6379/1", 1, 0},
		{"redis:///1", "localhost:6379", NULL, NULL, NULL, NULL, "redis://localhost:6379/1",
		 1, 0},
		{"REDIS://:p%40w@h", "h:6379", NULL, NULL, "p@w", NULL, "redis://:****@h:6379/0", 0,
		 0},
		{"redis://u:p:q@h:1/", "h:1", NULL, "u", "p:q", NULL, "redis://u:****@h:1/0", 0, 0},
		{"redis://u:a@b@h:1", "h:1", NULL, "u", "a@b", NULL, "redis://u:****@h:1/0", 0, 0},
		{"redis://[::1]:8/4?pool_size=3&read-timeout=2s", "::1:8", NULL, NULL, NULL, NULL,
		 "redis://[::1]:8/4", 4, 0},
		{"redis://[::1]", "::1:6379", NULL, NULL, NULL, NULL, "redis://[::1]:6379/0", 0, 0},
		{"redis://h/1?db=6", "h:6379", NULL, NULL, NULL, NULL, "redis://h:6379/6", 6, 0},
		{"unix:///a/b.sock?db=5", "", "/a/b.sock", NULL, NULL, NULL,
		 "unix:///a/b.sock?db=5", 5, 0},
		{"unix://u:p@/a", "", "/a", "u", "p", NULL, "unix://u:****@/a?db=0", 0, 0},
		{"rediss://h/1", "h:6379", NULL, NULL, NULL, NULL, "rediss://h:6379/1", 1, 0},
		{"redis://m,s1:26380,s2/1", "s1:26380 s2:26379", NULL, NULL, NULL, "m",
		 "redis://m,s1:26380,s2:26379/1", 1, REDIS_SENTINEL},
		{"redis://:p@m,s1,s2:5000/1", "s1:5000 s2:5000", NULL, NULL, "p", "m",
		 "redis://:****@m,s1:5000,s2:5000/1", 1, REDIS_SENTINEL},
		{"rediss://m,[::1]:5000", "::1:5000", NULL, NULL, NULL, "m",
		 "rediss://m,[::1]:5000/0", 0, REDIS_SENTINEL},
		{"redis://h1:1,h2:2/1", "h1:1 h2:2", NULL, NULL, NULL, NULL, "redis://h1:1,h2:2/1",
		 1, REDIS_CLUSTER},
		{"redis://h1,h2/1", "h1:6379 h2:6379", NULL, NULL, NULL, NULL,
		 "redis://h1:6379,h2:6379/1", 1, REDIS_CLUSTER},
		{"rediss://[::1]:1,[::2]:2", "::1:1 ::2:2", NULL, NULL, NULL, NULL,
		 "rediss://[::1]:1,[::2]:2/0", 0, REDIS_CLUSTER},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct str err = STR_INIT, addrs = STR_INIT;
		struct redis_url u;
		char *name;

		if (redis_url_parse(rows[i].url, &u, &err) < 0)
			fail_msg("%s: %s", rows[i].url, str_c(&err));
#define SAME(a, b) assert_true((a) && (b) ? !strcmp(a, b) : !(a) && !(b))
		addrs_print(&u, &addrs);
		assert_string_equal(str_c(&addrs), rows[i].addrs);
		SAME(u.path, rows[i].path);
		SAME(u.user, rows[i].user);
		SAME(u.password, rows[i].password);
		SAME(u.master, rows[i].master);
		assert_int_equal(u.db, rows[i].db);
		assert_int_equal(u.mode, rows[i].mode);
		assert_int_equal(u.tls, !strncmp(rows[i].url, "rediss", 6));
		name = redis_url_name(&u);
		assert_string_equal(name, rows[i].name);
		free(name);
		redis_url_fini(&u);
		str_fini(&err);
		str_fini(&addrs);
	}
}

static void url_options_are_honoured_or_accepted(void **state)
{
	struct str err = STR_INIT;
	struct redis_url u;

	(void)state;
	if (redis_url_parse("rediss://h?min-retry-backoff=5ms&max_retry_backoff=2s&read_timeout=3"
			    "&dial_timeout=1m&tls-cert-file=%2fa%20b+c&tls-key-file=/k"
			    "&tls-ca-cert-file=/ca&tls-server-name=n&insecure-skip-verify=1"
			    "&route-read=replica&client-cache=true&client-cache-size=9"
			    "&client-cache-expire=1m&client-cache-preload=0&write-timeout=5s"
			    "&protocol=3&max_retries=-1&min_idle_conns=2&pool_timeout=2s",
			    &u, &err) < 0)
		fail_msg("%s", str_c(&err));
	assert_int_equal(u.min_backoff_us, 5000);
	assert_int_equal(u.max_backoff_us, 2000000);
	assert_int_equal(u.read_timeout_us, 3000000);
	assert_int_equal(u.dial_timeout_us, 60000000);
	assert_string_equal(u.tls_conf.cert, "/a b c");
	assert_string_equal(u.tls_conf.key, "/k");
	assert_string_equal(u.tls_conf.ca, "/ca");
	assert_string_equal(u.tls_conf.server_name, "n");
	assert_true(u.tls_conf.skip_verify);
	assert_int_equal(u.route, ROUTE_REPLICA);
	redis_url_fini(&u);
	str_fini(&err);
}

static void url_forms_that_are_wrong_are_refused_by_name(void **state)
{
	static const struct {
		const char *url, *says;
		int r;
	} rows[] = {
		{"mysql://u:geheim@(h:3306)/db", "'mysql'", -EOPNOTSUPP},
		{"redis://h:0/1", "port", -EINVAL},
		{"redis://h:99999/1", "port", -EINVAL},
		{"redis://h:12345678901/1", "port", -EINVAL},
		{"redis://h/x", "database", -EINVAL},
		{"redis://h/1/2", "database", -EINVAL},
		{"redis://[::1/1", "']'", -EINVAL},
		{"redis://h1:1,,h2:2/1", "empty name", -EINVAL},
		{"redis://,s:26379/1", "master", -EINVAL},
		{"redis://m,s:x/1", "port", -EINVAL},
		{"redis://h/1?poolsize=3", "'poolsize'", -EINVAL},
		{"redis://h/1?max-retries=3", "'max-retries'", -EINVAL}, /* as go-redis: '_' */
		{"redis://h/1?route-read=nearest", "route-read", -EINVAL},
		{"redis://h/1?read-timeout=soon", "read-timeout", -EINVAL},
		{"rediss://h/1?tls-cert-file=/c", "both", -EINVAL},
		{"rediss://h/1?tls-ca-cert-file=/no/where.pem", "/no/where.pem", -ENOENT},
		{"redis://:geheim%zz@h/1", "%", -EINVAL},
		{"unix://a/b", "absolute", -EINVAL},
		{"unix:///a?db=", "database", -EINVAL},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct str err = STR_INIT;
		struct redis *r = NULL;

		assert_int_equal(redis_new(rows[i].url, NULL, &r, &err), rows[i].r);
		assert_null(r);
		if (!strstr(str_c(&err), rows[i].says))
			fail_msg("%s: '%s'", rows[i].url, str_c(&err));
		assert_null(strstr(str_c(&err), "geheim"));
		str_fini(&err);
	}
}

static void blank_password_leaves_the_rest(void **state)
{
	char a[] = "redis://u:geh:eim@h:1/2?db=u:p@x", b[] = "h:1/2", c[] = "redis://u@h";

	(void)state;
	redis_blank_password(a);
	assert_string_equal(a, "redis://u:*******@h:1/2?db=u:p@x");
	redis_blank_password(b);
	assert_string_equal(b, "h:1/2");
	redis_blank_password(c);
	assert_string_equal(c, "redis://u@h");
}

static char *password_of(const char *text)
{
	struct str err = STR_INIT;
	struct redis_url u;
	char *p;

	assert_int_equal(redis_url_parse(text, &u, &err), 0);
	p = u.password ? strdup(u.password) : strdup("-");
	redis_url_fini(&u);
	str_fini(&err);
	return p;
}

static void check_password(const char *text, const char *want)
{
	char *p = password_of(text);

	assert_string_equal(p, want);
	free(p);
}

static void password_is_looked_for_in_order(void **state)
{
	struct str err = STR_INIT;
	struct redis_url u;
	char path[64];
	int fd;

	(void)state;
	snprintf(path, sizeof(path), "%s/password", dir);
	fd = open(path, O_WRONLY | O_CREAT, 0600);
	assert_int_equal(write(fd, "  of file \n", 11), 11);
	close(fd);
	check_password("h/1", "-");
	setenv("META_PASSWORD_FILE", path, 1);
	check_password("h/1", "of file");
	setenv("META_PASSWORD", "of meta", 1);
	check_password("h/1", "of meta");
	setenv("REDIS_PASSWORD", "of redis", 1);
	check_password("h/1", "of redis");
	check_password("redis://:@h/1", "of redis");
	check_password("redis://:url@h/1", "url");
	unsetenv("REDIS_PASSWORD");
	unsetenv("META_PASSWORD");
	setenv("META_PASSWORD_FILE", "/nowhere/at/all", 1);
	assert_int_equal(redis_url_parse("h/1", &u, &err), -ENOENT);
	assert_non_null(strstr(str_c(&err), "META_PASSWORD_FILE"));
	unsetenv("META_PASSWORD_FILE");
	str_fini(&err);
}

/* --- commands --- */

static void commands_and_pipelines_keep_bytes(void **state)
{
	struct redis *r;
	struct redis_conn *c;
	struct redis_reply *reply;
	const char *argv[] = {"GET", "k\0x"};
	const size_t lens[] = {3, 3};
	size_t len;

	(void)state;
	NEED_SERVER();
	r = open_main(2);
	assert_non_null(strstr(redis_name(r), "?db=3"));
	assert_int_equal(redis_acquire(r, within(SECOND), &c), 0);
	assert_int_equal(redis_cmd(c, within(SECOND), &reply, "SET %b %b", "k\0x", (size_t)3,
				   "a\0b\r\n", (size_t)5),
			 0);
	assert_int_equal(redis_reply_type(reply), REDIS_STATUS);
	redis_reply_free(reply);
	assert_int_equal(redis_cmdv(c, within(SECOND), &reply, 2, argv, lens), 0);
	assert_int_equal(redis_reply_type(reply), REDIS_STR);
	assert_memory_equal(redis_reply_str(reply, &len), "a\0b\r\n", 6);
	assert_int_equal(len, 5);
	assert_int_equal(redis_reply_int(reply), 0);
	redis_reply_free(reply);

	assert_int_equal(redis_append(c, "SET n %lld", -5LL), 0);
	assert_int_equal(redis_append(c, "LPUSH n x"), 0); /* wrong type */
	assert_int_equal(redis_appendv(c, 2, argv, lens), 0);
	assert_int_equal(redis_append(c, "MGET n nothing"), 0);
	assert_int_equal(redis_append(c, "STRLEN n"), 0);
	assert_int_equal(redis_next(c, within(SECOND), &reply), 0);
	redis_reply_free(reply);
	assert_int_equal(redis_next(c, within(SECOND), &reply), -EIO);
	assert_non_null(strstr(redis_error(c), "WRONGTYPE"));
	assert_int_equal(redis_next(c, within(SECOND), &reply), 0);
	redis_reply_free(reply);
	assert_int_equal(redis_next(c, within(SECOND), &reply), 0);
	assert_int_equal(redis_reply_type(reply), REDIS_ARRAY);
	assert_int_equal(redis_reply_len(reply), 2);
	assert_int_equal(redis_reply_int(redis_reply_at(reply, 0)), -5);
	assert_int_equal(redis_reply_type(redis_reply_at(reply, 1)), REDIS_NIL);
	assert_null(redis_reply_at(reply, 2));
	redis_reply_free(reply);
	assert_int_equal(redis_next(c, within(SECOND), &reply), 0);
	assert_int_equal(redis_reply_int(reply), 2);
	redis_reply_free(reply);
	redis_release(c);

	/* the database of the URL was chosen */
	assert_int_equal(redis_once(r, within(SECOND), &reply, "CLIENT LIST"), 0);
	assert_non_null(strstr(redis_reply_str(reply, NULL), " db=3 "));
	redis_reply_free(reply);
	redis_free(r);
}

static void a_connection_given_back_with_unread_replies_is_closed(void **state)
{
	struct redis *r;
	struct redis_conn *c;
	struct redis_reply *reply;

	(void)state;
	NEED_SERVER();
	r = open_main(1);
	assert_int_equal(redis_acquire(r, within(SECOND), &c), 0);
	assert_int_equal(redis_append(c, "ECHO old"), 0);
	redis_release(c);
	assert_int_equal(redis_once(r, within(SECOND), &reply, "ECHO mine"), 0);
	assert_string_equal(redis_reply_str(reply, NULL), "mine");
	redis_reply_free(reply);
	redis_free(r);
}

static void acquire_waits_beyond_its_bound(void **state)
{
	struct redis *r;
	struct redis_conn *a, *b, *c;
	uint64_t start;

	(void)state;
	NEED_SERVER();
	r = open_main(2);
	assert_int_equal(redis_acquire(r, within(SECOND), &a), 0);
	assert_int_equal(redis_acquire(r, within(SECOND), &b), 0);
	start = clock_us();
	assert_int_equal(redis_acquire(r, within(50000), &c), -ETIMEDOUT);
	assert_true(clock_us() - start >= 50000);
	redis_release(b);
	assert_int_equal(redis_acquire(r, within(SECOND), &c), 0);
	assert_ptr_equal(b, c); /* the hot one, not a third */
	redis_release(a);
	redis_release(c);
	redis_free(r);
}

/* --- who may, and what is there --- */

static int try_url(const char *text, const char *says)
{
	struct str err = STR_INIT;
	struct redis *r = NULL;
	const struct redis_conf conf = {.connect_timeout_us = 300000};
	int e = redis_new(text, &conf, &r, &err);

	redis_free(r);
	if (e < 0 && !strstr(str_c(&err), says))
		fail_msg("%s: %d, '%s'", text, e, str_c(&err));
	assert_null(strstr(str_c(&err), "secret"));
	str_fini(&err);
	return e;
}

static void passwords_and_databases_are_checked(void **state)
{
	char text[160];

	(void)state;
	NEED_SERVER();
	snprintf(text, sizeof(text), "unix://app:secret%%25@%s", sock_path);
	assert_int_equal(try_url(text, ""), 0);
	snprintf(text, sizeof(text), "unix://app:secret@%s", sock_path);
	assert_int_equal(try_url(text, "WRONGPASS"), -EACCES);
	snprintf(text, sizeof(text), "unix://:secret@%s", sock_path);
	assert_int_equal(try_url(text, "without any password"), -EACCES);
	snprintf(text, sizeof(text), "unix://%s?db=99", sock_path);
	assert_int_equal(try_url(text, "out of range"), -EINVAL);
	snprintf(text, sizeof(text), "unix://%s.none", sock_path);
	assert_int_equal(try_url(text, "No such file"), -ECONNREFUSED);
}

static void a_server_that_wants_a_password_gets_it(void **state)
{
	char path[64], text[160];
	const char *const more[] = {"--port", "0", "--unixsocket", path, "--requirepass",
				    "secret", NULL};
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	pid_t pid;

	(void)state;
	NEED_SERVER();
	snprintf(path, sizeof(path), "%s/p", dir);
	memcpy(un.sun_path, path, strlen(path));
	pid = start_server(more);
	for (int i = 0; i < 500 && !is_listening((struct sockaddr *)&un, sizeof(un)); i++)
		pause_ms(20);
	snprintf(text, sizeof(text), "unix://%s", path);
	assert_int_equal(try_url(text, "NOAUTH"), -EACCES);
	setenv("META_PASSWORD", "secret", 1);
	assert_int_equal(try_url(text, ""), 0);
	unsetenv("META_PASSWORD");
	stop_server(pid);
}

/* a port that is free now */
static uint16_t free_port(int *ret_fd)
{
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(in);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	assert_int_equal(bind(fd, (struct sockaddr *)&in, sizeof(in)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&in, &len), 0);
	if (ret_fd)
		*ret_fd = fd;
	else
		close(fd);
	return ntohs(in.sin_port);
}

static void a_cluster_is_recognised_over_tcp(void **state)
{
	char port[8], bus[8], text[64];
	const char *const more[] = {
		"--port",	  port, "--bind", "127.0.0.1", "--cluster-enabled", "yes",
		"--cluster-port", bus,	NULL};
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	pid_t pid;

	(void)state;
	NEED_SERVER();
	in.sin_port = htons(free_port(NULL));
	snprintf(port, sizeof(port), "%u", ntohs(in.sin_port));
	snprintf(bus, sizeof(bus), "%u", free_port(NULL));
	pid = start_server(more);
	for (int i = 0; i < 500 && !is_listening((struct sockaddr *)&in, sizeof(in)); i++)
		pause_ms(20);
	snprintf(text, sizeof(text), "127.0.0.1:%s/0", port);
	assert_int_equal(try_url(text, "has no node for slot"), -EAGAIN);
	snprintf(text, sizeof(text), "127.0.0.1:%s/1", port);
	assert_int_equal(try_url(text, "has no node for slot"), -EAGAIN);
	stop_server(pid);
	assert_int_equal(try_url(text, "refused"), -ECONNREFUSED);
}

/* says the given thing to whoever asks, then closes when the other one does */
struct liar {
	int fd;
	const char *first, *then;
	pthread_t thread;
};

static void *liar_run(void *arg)
{
	struct liar *l = arg;
	int fd = accept(l->fd, NULL, NULL);
	const char *say = l->first;
	char buf[256];

	while (read(fd, buf, sizeof(buf)) > 0 && say) {
		if (write(fd, say, strlen(say)) < 0)
			break;
		say = l->then;
	}
	close(fd);
	return NULL;
}

static int ask_liar(const char *first, const char *then, const char *says)
{
	struct liar l = {.first = first, .then = then};
	char text[64];
	int r;

	snprintf(text, sizeof(text), "127.0.0.1:%u", free_port(&l.fd));
	assert_int_equal(listen(l.fd, 1), 0);
	pthread_create(&l.thread, NULL, liar_run, &l);
	r = try_url(text, says);
	pthread_join(l.thread, NULL);
	close(l.fd);
	return r;
}

static void what_is_not_redis_is_told_so(void **state)
{
	(void)state;
	assert_int_equal(ask_liar("HTTP/1.1 400 Bad Request\r\n\r\n", NULL, "rotocol"), -EPROTO);
	assert_int_equal(ask_liar("-ERR no\r\n", "+fine\r\n", "INFO"), -EPROTO);
	assert_int_equal(ask_liar("-ERR no\r\n", "+redis_version:3.2.1\r\n", "too old"), -EPROTO);
	assert_int_equal(ask_liar("-ERR no\r\n", "-LOADING wait\r\n", "LOADING"), -EAGAIN);
	assert_int_equal(ask_liar("-ERR no\r\n", NULL, "closed"), -ECONNRESET);
	assert_int_equal(ask_liar("", "", "timed out"), -ETIMEDOUT);
}

/* --- scripts --- */

static void scripts_are_loaded_when_needed(void **state)
{
	static const char body[] =
		"if ARGV[1] == 'fail' then return redis.error_reply('ERRNO 17') end\n"
		"if ARGV[1] == 'again' then return redis.error_reply('ERRNO 11') end\n"
		"if ARGV[1] == 'bug' then return nothing.at.all end\n"
		"redis.call('SET', KEYS[1], ARGV[1]) return add(#ARGV[1])";
	const char *argv[] = {"script\0key", "a\0b"};
	const size_t lens[] = {10, 3};
	struct redis_script s;
	struct redis_reply *reply;
	struct redis *r;
	uint64_t start;

	(void)state;
	assert_int_equal(redis_script_init(&s, "abc", "a", "bc"), 0);
	assert_string_equal(s.sha, "a9993e364706816aba3e25717850c26c9cd0d89d");
	redis_script_fini(&s);
	assert_int_equal(redis_script_init(&s, "rfc", "abcdbcdecdefdefgefghfghighijhi",
					   "jkijkljklmklmnlmnomnopnopq"),
			 0);
	assert_string_equal(s.sha, "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
	redis_script_fini(&s);
	NEED_SERVER();
	r = open_main(2);
	assert_int_equal(
		redis_script_init(&s, "len", "local function add(n) return n + 1 end\n", body), 0);
	for (int i = 0; i < 3; i++) {
		if (i == 2) { /* the server was restarted, say */
			assert_int_equal(redis_once(r, within(SECOND), &reply, "SCRIPT FLUSH"), 0);
			redis_reply_free(reply);
		}
		assert_int_equal(redis_eval(r, within(SECOND), &s, 1, 2, argv, lens, &reply), 0);
		assert_int_equal(redis_reply_int(reply), 4);
		redis_reply_free(reply);
	}
	argv[1] = "fail";
	assert_int_equal(redis_eval(r, within(SECOND), &s, 1, 2, argv, NULL, &reply), -17);
	argv[1] = "bug";
	assert_int_equal(redis_eval(r, within(SECOND), &s, 1, 2, argv, NULL, &reply), -EIO);
	argv[1] = "again"; /* the script's own word, not the server's: not retried */
	start = clock_us();
	assert_int_equal(redis_eval(r, within(5 * SECOND), &s, 1, 2, argv, NULL, &reply), -EAGAIN);
	assert_true(clock_us() - start < SECOND);
	redis_script_fini(&s);
	redis_free(r);
}

/* --- failures --- */

static void a_server_that_hangs_costs_no_more_than_the_deadline(void **state)
{
	struct redis *r;
	struct redis_conn *c;
	struct redis_reply *reply;
	uint64_t start;

	(void)state;
	NEED_SERVER();
	r = open_main(2);
	assert_int_equal(redis_acquire(r, within(SECOND), &c), 0);
	kill(server, SIGSTOP);
	start = clock_us();
	assert_int_equal(redis_cmd(c, within(100000), &reply, "PING"), -ETIMEDOUT);
	assert_int_equal(redis_cmd(c, within(100000), &reply, "PING"), -ECONNRESET); /* broken */
	redis_release(c);
	assert_int_equal(redis_once(r, within(100000), &reply, "PING"), -ETIMEDOUT);
	assert_true(clock_us() - start < SECOND);
	kill(server, SIGCONT);
	assert_int_equal(redis_once(r, within(5 * SECOND), &reply, "PING"), 0);
	redis_reply_free(reply);
	redis_free(r);
}

static void *restart_later(void *arg)
{
	(void)arg;
	pause_ms(200);
	start_main_server();
	return NULL;
}

static void commands_survive_a_restart_of_the_server(void **state)
{
	struct redis *r;
	struct redis_conn *c;
	struct redis_reply *reply;
	pthread_t t;

	(void)state;
	NEED_SERVER();
	r = open_main(3);
	assert_int_equal(redis_acquire(r, within(SECOND), &c), 0);
	stop_server(server);
	assert_int_equal(redis_cmd(c, within(SECOND), &reply, "PING"), -ECONNRESET);
	redis_release(c);
	assert_int_equal(redis_acquire(r, within(100000), &c), -ECONNREFUSED);
	pthread_create(&t, NULL, restart_later, NULL);
	assert_int_equal(redis_once(r, within(10 * SECOND), &reply, "PING"), 0);
	redis_reply_free(reply);
	pthread_join(t, NULL);
	redis_free(r);
}

struct hammer {
	struct redis *r;
	unsigned failed;
};

static void *hammer_run(void *arg)
{
	struct hammer *h = arg;

	for (int i = 0; i < 300; i++) {
		struct redis_reply *reply;

		if (redis_once(h->r, within(10 * SECOND), &reply, "INCR hammered") == 0)
			redis_reply_free(reply);
		else
			h->failed++;
	}
	return NULL;
}

static void many_threads_share_few_connections(void **state)
{
	struct hammer h[6];
	pthread_t t[ARRAY_LEN(h)];
	struct redis_reply *reply;
	struct redis *r;

	(void)state;
	NEED_SERVER();
	r = open_main(3);
	assert_int_equal(redis_once(r, within(SECOND), &reply, "DEL hammered"), 0);
	redis_reply_free(reply);
	for (size_t i = 0; i < ARRAY_LEN(h); i++) {
		h[i] = (struct hammer){.r = r};
		pthread_create(&t[i], NULL, hammer_run, &h[i]);
	}
	for (size_t i = 0; i < ARRAY_LEN(h); i++) {
		pthread_join(t[i], NULL);
		assert_int_equal(h[i].failed, 0);
	}
	assert_int_equal(redis_once(r, within(SECOND), &reply, "GET hammered"), 0);
	assert_int_equal(redis_reply_int(reply), 300 * (int)ARRAY_LEN(h));
	redis_reply_free(reply);
	redis_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(url_forms_are_read_as_juicefs_reads_them),
		cmocka_unit_test(url_options_are_honoured_or_accepted),
		cmocka_unit_test(url_forms_that_are_wrong_are_refused_by_name),
		cmocka_unit_test(blank_password_leaves_the_rest),
		cmocka_unit_test(password_is_looked_for_in_order),
		cmocka_unit_test(commands_and_pipelines_keep_bytes),
		cmocka_unit_test(a_connection_given_back_with_unread_replies_is_closed),
		cmocka_unit_test(acquire_waits_beyond_its_bound),
		cmocka_unit_test(passwords_and_databases_are_checked),
		cmocka_unit_test(a_server_that_wants_a_password_gets_it),
		cmocka_unit_test(a_cluster_is_recognised_over_tcp),
		cmocka_unit_test(what_is_not_redis_is_told_so),
		cmocka_unit_test(scripts_are_loaded_when_needed),
		cmocka_unit_test(a_server_that_hangs_costs_no_more_than_the_deadline),
		cmocka_unit_test(commands_survive_a_restart_of_the_server),
		cmocka_unit_test(many_threads_share_few_connections),
	};

	return cmocka_run_group_tests(tests, begin, end);
}
