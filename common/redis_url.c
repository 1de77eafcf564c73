/* SPDX-License-Identifier: Apache-2.0 */
/* The forms in which people name a Redis server (docs/format.md §1). Pure; any thread. */
#include "common/redis_url.h"

#include <fcntl.h>
#include <strings.h>
#include <sys/un.h>

#include "common/parse.h"
#include "common/redis.h"

enum { REDIS_PORT = 6379, PASSWORD_FILE_BYTES = 4096 };

/* the parts of scheme://userinfo@place?query, as places in the text; userinfo and query may be
 * NULL */
struct parts {
	const char *scheme;
	size_t scheme_len;
	const char *userinfo;
	size_t userinfo_len;
	const char *place; /* host[:port][/db], or /path */
	size_t place_len;
	const char *query;
};

static void url_split(const char *url, struct parts *p)
{
	const char *sep = strstr(url, "://");
	const char *rest = sep ? sep + 3 : url;
	size_t authority = strcspn(rest, "/?");
	const char *at = memrchr(rest, '@', authority);
	const char *q;

	*p = (struct parts){.scheme = "redis", .scheme_len = 5};
	if (sep) {
		p->scheme = url;
		p->scheme_len = (size_t)(sep - url);
	}
	if (at) {
		p->userinfo = rest;
		p->userinfo_len = (size_t)(at - rest);
		rest = at + 1;
	}
	q = strchr(rest, '?');
	p->place = rest;
	p->place_len = q ? (size_t)(q - rest) : strlen(rest);
	p->query = q ? q + 1 : NULL;
}

void redis_blank_password(char *url)
{
	struct parts p;
	const char *colon;
	size_t from;

	url_split(url, &p);
	colon = p.userinfo ? memchr(p.userinfo, ':', p.userinfo_len) : NULL;
	if (!colon)
		return;
	from = (size_t)(colon + 1 - url);
	memset(url + from, '*', (size_t)(p.userinfo + p.userinfo_len - colon - 1));
}

static int hex(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* a copy with %xx resolved; -EINVAL when one is not hex or is a NUL. An empty text gives NULL. */
static int unescape(const char *s, size_t n, char **ret)
{
	char *out, *o;

	if (!n)
		return 0;
	out = o = malloc(n + 1);
	if (!out)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		*o = s[i];
		if (s[i] == '%') {
			int a = i + 1 < n ? hex(s[i + 1]) : -1;
			int b = i + 2 < n ? hex(s[i + 2]) : -1;

			if (a < 0 || b < 0 || a + b == 0) {
				free(out);
				return -EINVAL;
			}
			*o = (char)(a * 16 + b);
			i += 2;
		}
		o++;
	}
	*o = 0;
	*ret = out;
	return 0;
}

static int bad(struct str *err, int r, const char *what)
{
	str_addf(err, "metadata URL: %s", what);
	return r;
}

static int parse_scheme(const struct parts *p, bool *ret_unix, struct str *err)
{
	if (p->scheme_len == 5 && !strncasecmp(p->scheme, "redis", 5)) {
		*ret_unix = false;
		return 0;
	}
	if (p->scheme_len == 4 && !strncasecmp(p->scheme, "unix", 4)) {
		*ret_unix = true;
		return 0;
	}
	if (p->scheme_len == 6 && !strncasecmp(p->scheme, "rediss", 6))
		return bad(err, -EOPNOTSUPP, "rediss:// (Redis over TLS) is not supported");
	str_addf(err, "metadata URL: engine '%.*s' is not supported, only redis:// and unix://",
		 (int)MIN(p->scheme_len, (size_t)32), p->scheme);
	return -EOPNOTSUPP;
}

static int parse_userinfo(const struct parts *p, struct redis_url *u, struct str *err)
{
	const char *colon = p->userinfo ? memchr(p->userinfo, ':', p->userinfo_len) : NULL;
	size_t user_len = colon ? (size_t)(colon - p->userinfo) : p->userinfo_len;
	int r;

	r = unescape(p->userinfo, user_len, &u->user);
	if (r == 0 && colon)
		r = unescape(colon + 1, p->userinfo_len - user_len - 1, &u->password);
	if (r == -EINVAL)
		return bad(err, r,
			   "user or password has a % that is not followed by two hex digits");
	return r;
}

static int parse_db(const char *s, size_t n, struct redis_url *u, struct str *err)
{
	char text[16];
	uint64_t v;

	if (n >= sizeof(text))
		return bad(err, -EINVAL, "the database is not a number");
	memcpy(text, s, n);
	text[n] = 0;
	if (parse_u64(text, INT32_MAX, &v) < 0)
		return bad(err, -EINVAL, "the database is not a number");
	u->db = (unsigned)v;
	return 0;
}

static int parse_place_tcp(const struct parts *p, struct redis_url *u, struct str *err)
{
	const char *slash = memchr(p->place, '/', p->place_len);
	size_t len = slash ? (size_t)(slash - p->place) : p->place_len;
	const char *comma = memchr(p->place, ',', len);
	const char *colon = memchr(p->place, ':', len);
	const char *host = p->place, *port = NULL;
	char number[8] = "";
	size_t host_len = len;
	uint64_t v;

	if (comma && colon && comma < colon)
		return bad(err, -EOPNOTSUPP,
			   "a master name and sentinels (Redis Sentinel) are not supported");
	if (comma)
		return bad(err, -EOPNOTSUPP, "several hosts (Redis Cluster) are not supported");
	if (len && *host == '[') {
		const char *end = memchr(host, ']', len);

		if (!end)
			return bad(err, -EINVAL, "'[' without ']'");
		host++;
		host_len = (size_t)(end - host);
		port = end + 1 < p->place + len ? end + 1 : NULL;
		if (port && *port != ':')
			return bad(err, -EINVAL, "something between ']' and the port");
	} else if (colon) {
		host_len = (size_t)(colon - host);
		port = colon;
	}
	u->port = REDIS_PORT;
	if (port && port + 1 < p->place + len) {
		size_t n = (size_t)(p->place + len - port - 1);

		if (n < sizeof(number))
			memcpy(number, port + 1, n);
		if (parse_u64(number, UINT16_MAX, &v) < 0 || v == 0)
			return bad(err, -EINVAL, "the port is not a number from 1 to 65535");
		u->port = (uint16_t)v;
	}
	u->host = host_len ? strndup(host, host_len) : strdup("localhost"); /* as go-redis */
	if (!u->host)
		return -ENOMEM;
	if (slash && slash + 1 < p->place + p->place_len)
		return parse_db(slash + 1, p->place_len - len - 1, u, err);
	return 0;
}

static int parse_place_unix(const struct parts *p, struct redis_url *u, struct str *err)
{
	int r;

	if (!p->place_len || *p->place != '/')
		return bad(err, -EINVAL, "unix:// needs the absolute path of a socket");
	r = unescape(p->place, p->place_len, &u->path);
	if (r == -EINVAL)
		return bad(err, r, "the path has a % that is not followed by two hex digits");
	if (r == 0 && strlen(u->path) >= sizeof(((struct sockaddr_un *)0)->sun_path))
		return bad(err, -EINVAL, "the path of the socket is too long");
	return r;
}

/* What JuiceFS and go-redis understand and what has no meaning here: tuning of their own client.
 * Anything else is a slip. */
static bool query_is_known(const char *name, size_t n)
{
	static const char *const known[] = {
		"min-retry-backoff",
		"max-retry-backoff",
		"write-timeout",
		"route-read",
		"client-cache",
		"client-cache-size",
		"client-cache-expire",
		"client-cache-preload",
		"protocol",
		"client-name",
		"max-retries",
		"dial-timeout",
		"pool-fifo",
		"pool-size",
		"pool-timeout",
		"min-idle-conns",
		"max-idle-conns",
		"max-active-conns",
		"conn-max-idle-time",
		"conn-max-lifetime",
		"idle-timeout",
		"max-conn-age",
		"idle-check-frequency",
		"insecure-skip-verify",
		"tls-cert-file",
		"tls-key-file",
		"tls-ca-cert-file",
		"tls-server-name",
	};

	for (size_t i = 0; i < ARRAY_LEN(known); i++) {
		size_t k = 0;

		while (k < n && known[i][k] && (name[k] == '_' ? '-' : name[k]) == known[i][k])
			k++;
		if (k == n && !known[i][k])
			return true;
	}
	return false;
}

static int parse_option(const char *s, size_t n, struct redis_url *u, struct str *err)
{
	const char *eq = memchr(s, '=', n);
	size_t name = eq ? (size_t)(eq - s) : n;
	char value[32] = "";

	if (name == 2 && !memcmp(s, "db", 2))
		return parse_db(eq ? eq + 1 : "", eq ? n - name - 1 : 0, u, err);
	if (name == 12 && (!memcmp(s, "read-timeout", 12) || !memcmp(s, "read_timeout", 12))) {
		if (eq && n - name - 1 < sizeof(value))
			memcpy(value, eq + 1, n - name - 1);
		if (parse_duration(value, &u->read_timeout_us) < 0)
			return bad(err, -EINVAL, "read-timeout is not a duration");
		return 0;
	}
	if (query_is_known(s, name))
		return 0;
	str_addf(err, "metadata URL: unknown option '%.*s'", (int)MIN(name, (size_t)64), s);
	return -EINVAL;
}

static int parse_query(const char *q, struct redis_url *u, struct str *err)
{
	while (q && *q) {
		size_t n = strcspn(q, "&");
		int r = n ? parse_option(q, n, u, err) : 0;

		if (r < 0)
			return r;
		q += n + (q[n] == '&');
	}
	return 0;
}

static int password_of_file(const char *path, char **ret, struct str *err)
{
	_cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
	char text[PASSWORD_FILE_BYTES];
	const char *s = text;
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	int r = 0;

	if (n < 0) {
		r = -errno;
		str_addf(err, "META_PASSWORD_FILE %s: %s", path, strerror(-r));
		return r;
	}
	while (n && strchr(" \t\r\n", text[n - 1]))
		n--;
	text[n] = 0;
	s += strspn(s, " \t\r\n");
	if (*s) {
		*ret = strdup(s);
		r = *ret ? 0 : -ENOMEM;
	}
	explicit_bzero(text, sizeof(text));
	return r;
}

static int find_password(struct redis_url *u, struct str *err)
{
	static const char *const names[] = {"REDIS_PASSWORD", "META_PASSWORD"};
	const char *s;

	if (u->password)
		return 0;
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		s = getenv(names[i]);
		if (s && *s) {
			u->password = strdup(s);
			return u->password ? 0 : -ENOMEM;
		}
	}
	s = getenv("META_PASSWORD_FILE");
	return s && *s ? password_of_file(s, &u->password, err) : 0;
}

int redis_url_parse(const char *url, struct redis_url *ret, struct str *err)
{
	struct redis_url u = {.host = NULL};
	struct parts p;
	bool is_unix;
	int r;

	url_split(url, &p);
	r = parse_scheme(&p, &is_unix, err);
	if (r == 0)
		r = parse_userinfo(&p, &u, err);
	if (r == 0)
		r = is_unix ? parse_place_unix(&p, &u, err) : parse_place_tcp(&p, &u, err);
	if (r == 0)
		r = parse_query(p.query, &u, err);
	if (r == 0)
		r = find_password(&u, err);
	if (r < 0) {
		if (!err->len)
			bad(err, r, strerror(-r));
		redis_url_fini(&u);
		return r;
	}
	*ret = u;
	return 0;
}

void redis_url_fini(struct redis_url *u)
{
	if (u->password)
		explicit_bzero(u->password, strlen(u->password));
	free(u->password);
	free(u->user);
	free(u->host);
	free(u->path);
	*u = (struct redis_url){.host = NULL};
}

char *redis_url_name(const struct redis_url *u)
{
	struct str s = STR_INIT;

	str_add(&s, u->host ? "redis://" : "unix://");
	if (u->user || u->password)
		str_addf(&s, "%s%s@", u->user ? u->user : "", u->password ? ":****" : "");
	if (!u->host)
		str_addf(&s, "%s?db=%u", u->path, u->db);
	else if (strchr(u->host, ':'))
		str_addf(&s, "[%s]:%u/%u", u->host, u->port, u->db);
	else
		str_addf(&s, "%s:%u/%u", u->host, u->port, u->db);
	return str_take(&s);
}
