/* SPDX-License-Identifier: Apache-2.0 */
/* libcurl's multi interface driven by our loop: curl names the sockets to watch and the time to
 * wake, the loop tells it what happened. One thread, the loop's. An exchange is idle, or on the
 * wire from s3_exchange_start until done or s3_exchange_fini. */
#include "common/object/object_s3_http.h"

#include <pthread.h>
#include <strings.h>

#include <curl/curl.h>

#include "common/clock.h"

enum {
	/* a quarter of the default's CPU (docs/performance.md); the most that curl 7.88 takes */
	RECEIVE_BUFFER = 512 << 10,
	SEND_BUFFER = 256 << 10,
};

static_assert(sizeof(((struct s3_exchange *)NULL)->detail) >= CURL_ERROR_SIZE,
	      "curl writes so much");

struct s3_socket {
	struct loop_watch watch;
	struct s3_http *http;
	struct list_node link; /* in busy or idle */
};

struct s3_http {
	struct loop *loop;
	CURLM *multi;
	struct loop_timer timer;
	/* struct s3_socket: of connections, and of closed ones, kept: one may be freed inside its
	 * own callback */
	struct list_node busy, idle;
};

static void global_init(void)
{
	/* fails only for want of memory at start; every curl_easy_init then fails too and says
	 * so */
	(void)curl_global_init(CURL_GLOBAL_DEFAULT);
}

/* --- the loop's side --- */

static void finish(struct s3_exchange *x, int r);

static int result_of(struct s3_exchange *x, CURLcode code)
{
	const char *text = x->detail[0] ? x->detail : curl_easy_strerror(code);

	if (x->abort)
		return x->abort;
	if (code == CURLE_OK)
		return 0;
	(void)snprintf(x->error, sizeof(x->error), "%.*s", (int)sizeof(x->error) - 1, text);
	switch (code) {
	case CURLE_OUT_OF_MEMORY:
		return -ENOMEM;
	case CURLE_UNSUPPORTED_PROTOCOL:
	case CURLE_URL_MALFORMAT:
	case CURLE_PEER_FAILED_VERIFICATION:
	case CURLE_SSL_CACERT_BADFILE:
	case CURLE_SSL_CERTPROBLEM:
	case CURLE_SSL_CIPHER:
	case CURLE_BAD_FUNCTION_ARGUMENT:
		return -EPROTO;
	case CURLE_OPERATION_TIMEDOUT:
		(void)snprintf(x->error, sizeof(x->error), "time-out while connecting");
		return -ETIMEDOUT;
	default:
		return -ECONNRESET;
	}
}

/* Exchanges that ended since the last call. done may start others: the queue is read anew each
 * time. */
static void reap(struct s3_http *h)
{
	CURLMsg *m;
	int left;

	while ((m = curl_multi_info_read(h->multi, &left))) {
		struct s3_exchange *x;
		char *priv = NULL;
		CURLcode code = m->data.result;

		if (m->msg != CURLMSG_DONE)
			continue;
		curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &priv);
		x = (struct s3_exchange *)(void *)priv;
		finish(x, result_of(x, code));
	}
}

static void act(struct s3_http *h, curl_socket_t fd, int mask)
{
	int running;

	curl_multi_socket_action(h->multi, fd, mask, &running);
	reap(h);
}

static void socket_ready(struct loop_watch *w, unsigned events)
{
	struct s3_socket *s = container_of(w, struct s3_socket, watch);
	int mask = 0;

	if (events & LOOP_READ)
		mask |= CURL_CSELECT_IN;
	if (events & LOOP_WRITE)
		mask |= CURL_CSELECT_OUT;
	act(s->http, w->fd, mask);
}

static void timer_fired(struct loop_timer *t)
{
	act(container_of(t, struct s3_http, timer), CURL_SOCKET_TIMEOUT, 0);
}

/* --- curl's side --- */

static struct s3_socket *socket_get(struct s3_http *h, int fd)
{
	struct list_node *n = list_pop(&h->idle);
	struct s3_socket *s = n ? container_of(n, struct s3_socket, link) : calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->http = h;
	list_add_head(&h->busy, &s->link);
	loop_watch_init(&s->watch, h->loop, fd, socket_ready);
	return s;
}

static int curl_wants_socket(CURL *easy _unused_, curl_socket_t fd, int what, void *arg, void *sp)
{
	struct s3_http *h = arg;
	struct s3_socket *s = sp;
	unsigned events = 0;

	if (what == CURL_POLL_REMOVE) {
		if (s) {
			loop_watch_set(&s->watch, 0);
			list_del(&s->link);
			list_add_head(&h->idle, &s->link);
			curl_multi_assign(h->multi, fd, NULL);
		}
		return 0;
	}
	if (!s) {
		s = socket_get(h, fd);
		if (!s)
			return -1;
		curl_multi_assign(h->multi, fd, s);
	}
	if (what & CURL_POLL_IN)
		events |= LOOP_READ;
	if (what & CURL_POLL_OUT)
		events |= LOOP_WRITE;
	loop_watch_set(&s->watch, events);
	return 0;
}

/* curl may close first and tell afterwards: by then the number can be another thread's file */
static int curl_closes_socket(void *arg, curl_socket_t fd)
{
	struct s3_http *h = arg;

	for (struct list_node *n = h->busy.next; n != &h->busy; n = n->next) {
		struct s3_socket *s = container_of(n, struct s3_socket, link);

		if (s->watch.fd == fd)
			loop_watch_set(&s->watch, 0);
	}
	return close(fd);
}

static int curl_wants_timer(CURLM *multi _unused_, long ms, void *arg)
{
	struct s3_http *h = arg;

	if (ms < 0)
		loop_timer_stop(&h->timer);
	else
		loop_timer_start(&h->timer, (uint64_t)ms * 1000);
	return 0;
}

/* what is waited for right now, and for how long at most after the last byte */
static uint64_t phase(const struct s3_exchange *x, const char **ret_name)
{
	if (!x->answering && x->sent == x->body_len) {
		*ret_name = "no answer came";
		return x->first_us ? x->first_us : S3_HTTP_FIRST_US;
	}
	*ret_name = "no more bytes came through";
	return x->stall_us ? x->stall_us : S3_HTTP_STALL_US;
}

static void watch(struct s3_exchange *x)
{
	const char *name;

	loop_timer_start(&x->watchdog, MIN(phase(x, &name), clock_left(x->deadline_us)));
}

static size_t curl_header(char *p, size_t size, size_t n, void *arg)
{
	struct s3_exchange *x = arg;
	char line[1024];
	char *colon, *value;
	size_t len = size * n;

	x->last_us = clock_us();
	if (!x->answering) {
		x->answering = true;
		watch(x); /* from now on a shorter wait holds */
	}
	if (len >= 5 && memcmp(p, "HTTP/", 5) == 0)
		return len; /* the status is asked of curl when the body or the end comes */
	if (!x->header || len >= sizeof(line))
		return len;
	memcpy(line, p, len);
	while (len && (line[len - 1] == '\r' || line[len - 1] == '\n' || line[len - 1] == ' '))
		len--;
	line[len] = '\0';
	colon = strchr(line, ':');
	if (!colon)
		return size * n;
	value = colon + 1 + strspn(colon + 1, " \t");
	x->header(x, line, (size_t)(colon - line), value);
	return size * n;
}

static void take_status(struct s3_exchange *x)
{
	long status = 0;
	curl_off_t length = -1;

	curl_easy_getinfo(x->easy, CURLINFO_RESPONSE_CODE, &status);
	curl_easy_getinfo(x->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
	x->status = (unsigned)status;
	x->length = length;
}

static size_t curl_data(char *p, size_t size, size_t n, void *arg)
{
	struct s3_exchange *x = arg;
	size_t len = size * n;
	int r;

	x->last_us = clock_us();
	if (x->status == 0)
		take_status(x);
	r = x->data(x, (const unsigned char *)p, len);
	if (r < 0) {
		x->abort = r;
		return 0; /* curl ends the transfer */
	}
	return len;
}

static size_t curl_body(char *p, size_t size, size_t n, void *arg)
{
	struct s3_exchange *x = arg;
	size_t len = MIN(size * n, x->body_len - x->sent);

	if (len)
		memcpy(p, x->body + x->sent, len);
	x->sent += len;
	x->last_us = clock_us();
	return len;
}

/* curl sends again when a connection that it kept turns out to be closed */
static int curl_seek(void *arg, curl_off_t off, int origin)
{
	struct s3_exchange *x = arg;

	if (origin != SEEK_SET || off < 0 || (uint64_t)off > x->body_len)
		return CURL_SEEKFUNC_FAIL;
	x->sent = (size_t)off;
	return CURL_SEEKFUNC_OK;
}

/* --- exchanges --- */

/* off the wire; curl keeps the connection for the next one when the answer was read to its end */
static void stop(struct s3_exchange *x)
{
	loop_timer_stop(&x->watchdog);
	if (x->on_wire)
		curl_multi_remove_handle(x->http->multi, x->easy);
	x->on_wire = false;
	curl_slist_free_all(x->slist);
	x->slist = NULL;
}

static void finish(struct s3_exchange *x, int r)
{
	if (r == 0)
		take_status(x);
	stop(x);
	x->done(x, r);
}

static void watchdog_fired(struct loop_timer *t)
{
	struct s3_exchange *x = container_of(t, struct s3_exchange, watchdog);
	const char *name;
	uint64_t limit = phase(x, &name);
	uint64_t now = clock_us(), quiet = now - x->last_us;

	if (clock_left(x->deadline_us) == 0) {
		(void)snprintf(x->error, sizeof(x->error), "the deadline passed");
		finish(x, -ETIMEDOUT);
		return;
	}
	if (quiet >= limit) {
		(void)snprintf(x->error, sizeof(x->error), "%s for %.1f s", name,
			       (double)limit / 1e6);
		finish(x, -ETIMEDOUT);
		return;
	}
	loop_timer_start(t, MIN(limit - quiet, clock_left(x->deadline_us)));
}

void s3_exchange_init(struct s3_exchange *x, struct s3_http *h)
{
	*x = (struct s3_exchange){.http = h};
	loop_timer_init(&x->watchdog, h->loop, watchdog_fired);
}

void s3_exchange_fini(struct s3_exchange *x)
{
	if (!x->http)
		return;
	stop(x);
	if (x->easy)
		curl_easy_cleanup(x->easy);
	x->easy = NULL;
}

static int add_header(struct s3_exchange *x, const char *line)
{
	struct curl_slist *grown = curl_slist_append(x->slist, line);

	if (!grown)
		return -ENOMEM;
	x->slist = grown;
	return 0;
}

static int set_headers(struct s3_exchange *x)
{
	_cleanup_(str_fini) struct str copy = STR_INIT;
	char *save = NULL;
	/* curl would ask for "100 Continue" before a large body: a round trip that no store
	 * needs */
	int r = add_header(x, "Expect:");

	str_add(&copy, x->headers);
	if (str_error(&copy))
		return -ENOMEM;
	for (char *p = strtok_r(copy.s, "\n", &save); p && r == 0; p = strtok_r(NULL, "\n", &save))
		r = add_header(x, p);
	return r;
}

/* what is the same for all exchanges of a handle */
static void set_handle(CURL *e, struct s3_exchange *x)
{
	const char *authorities = getenv("AWS_CA_BUNDLE");

	if (authorities && *authorities)
		curl_easy_setopt(e, CURLOPT_CAINFO, authorities);
	curl_easy_setopt(e, CURLOPT_PRIVATE, x);
	curl_easy_setopt(e, CURLOPT_ERRORBUFFER, x->detail);
	curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(e, CURLOPT_CLOSESOCKETFUNCTION, curl_closes_socket);
	curl_easy_setopt(e, CURLOPT_CLOSESOCKETDATA, x->http);
	curl_easy_setopt(e, CURLOPT_TCP_NODELAY, 1L);
	curl_easy_setopt(e, CURLOPT_TCP_KEEPALIVE, 1L);
	curl_easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
	curl_easy_setopt(e, CURLOPT_PATH_AS_IS, 1L); /* the path is signed as it is */
	curl_easy_setopt(e, CURLOPT_BUFFERSIZE, (long)RECEIVE_BUFFER);
	curl_easy_setopt(e, CURLOPT_UPLOAD_BUFFERSIZE, (long)SEND_BUFFER);
	curl_easy_setopt(e, CURLOPT_USERAGENT, "stoke/" STOKE_VERSION);
	curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, curl_header);
	curl_easy_setopt(e, CURLOPT_HEADERDATA, x);
	curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, curl_data);
	curl_easy_setopt(e, CURLOPT_WRITEDATA, x);
	curl_easy_setopt(e, CURLOPT_READFUNCTION, curl_body);
	curl_easy_setopt(e, CURLOPT_READDATA, x);
	curl_easy_setopt(e, CURLOPT_SEEKFUNCTION, curl_seek);
	curl_easy_setopt(e, CURLOPT_SEEKDATA, x);
}

static void set_method(CURL *e, const struct s3_exchange *x)
{
	bool upload = strcmp(x->method, "PUT") == 0 || strcmp(x->method, "POST") == 0;

	if (upload) {
		curl_easy_setopt(e, CURLOPT_UPLOAD, 1L);
		curl_easy_setopt(e, CURLOPT_INFILESIZE_LARGE, (curl_off_t)x->body_len);
		curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, x->method);
	} else if (strcmp(x->method, "HEAD") == 0) {
		curl_easy_setopt(e, CURLOPT_NOBODY, 1L);
	} else {
		curl_easy_setopt(e, CURLOPT_HTTPGET, 1L);
		curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, x->method);
	}
}

static int prepare(struct s3_exchange *x)
{
	CURL *e;
	int r;

	if (!x->easy)
		x->easy = curl_easy_init();
	e = x->easy;
	if (!e)
		return -ENOMEM;
	curl_easy_reset(e); /* keeps connections, DNS and TLS sessions */
	set_handle(e, x);
	set_method(e, x);
	r = set_headers(x);
	if (r < 0)
		return r;
	if (curl_easy_setopt(e, CURLOPT_URL, x->url) != CURLE_OK ||
	    curl_easy_setopt(e, CURLOPT_HTTPHEADER, x->slist) != CURLE_OK)
		return -ENOMEM;
	curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS,
			 (long)((x->connect_us ? x->connect_us : S3_HTTP_CONNECT_US) / 1000));
	if (x->direct)
		curl_easy_setopt(e, CURLOPT_PROXY, "");
	return 0;
}

int s3_exchange_start(struct s3_exchange *x)
{
	int r;

	assert(!x->on_wire && x->method && x->url && x->data && x->done);
	x->status = 0;
	x->length = -1;
	x->error[0] = '\0';
	x->detail[0] = '\0';
	x->sent = 0;
	x->abort = 0;
	x->answering = false;
	x->last_us = clock_us();
	r = prepare(x);
	if (r == 0 && curl_multi_add_handle(x->http->multi, x->easy) != CURLM_OK)
		r = -ENOMEM;
	if (r < 0) {
		stop(x);
		return r;
	}
	x->on_wire = true;
	watch(x);
	return 0;
}

int s3_http_new(struct loop *l, unsigned max_conns, struct s3_http **ret)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct s3_http *h = calloc(1, sizeof(*h));

	if (!h)
		return -ENOMEM;
	pthread_once(&once, global_init);
	h->loop = l;
	list_init(&h->busy);
	list_init(&h->idle);
	loop_timer_init(&h->timer, l, timer_fired);
	h->multi = curl_multi_init();
	if (!h->multi) {
		free(h);
		return -ENOMEM;
	}
	curl_multi_setopt(h->multi, CURLMOPT_SOCKETFUNCTION, curl_wants_socket);
	curl_multi_setopt(h->multi, CURLMOPT_SOCKETDATA, h);
	curl_multi_setopt(h->multi, CURLMOPT_TIMERFUNCTION, curl_wants_timer);
	curl_multi_setopt(h->multi, CURLMOPT_TIMERDATA, h);
	curl_multi_setopt(h->multi, CURLMOPT_PIPELINING, (long)CURLPIPE_NOTHING);
	curl_multi_setopt(h->multi, CURLMOPT_MAXCONNECTS, (long)max_conns);
	curl_multi_setopt(h->multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, (long)max_conns);
	*ret = h;
	return 0;
}

void s3_http_free(struct s3_http *h)
{
	struct list_node *n;

	if (!h)
		return;
	curl_multi_cleanup(h->multi);
	loop_timer_stop(&h->timer);
	while ((n = list_pop(&h->busy)) || (n = list_pop(&h->idle)))
		free(container_of(n, struct s3_socket, link));
	free(h);
}
