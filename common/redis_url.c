/* SPDX-License-Identifier: Apache-2.0 */
/* The forms in which people name a Redis server (docs/format.md §1). Pure; any thread. */
#include "common/redis_url.h"

#include <fcntl.h>
#include <strings.h>
#include <sys/un.h>

#include "common/parse.h"
#include "common/redis.h"

enum { REDIS_PORT = 6379, SENTINEL_PORT = 26379, PASSWORD_FILE_BYTES = 4096 };

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

int redis_url_unescape(const char *s, size_t n, bool query, char **ret)
{
	char *out, *o;

	if (!n)
		return 0;
	out = o = malloc(n + 1);
	if (!out)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		*o = query && s[i] == '+' ? ' ' : s[i];
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
	free(*ret);
	*ret = out;
	return 0;
}

static int bad(struct str *err, int r, const char *what)
{
	str_addf(err, "metadata URL: %s", what);
	return r;
}

static int parse_scheme(const struct parts *p, bool *ret_unix, bool *ret_tls, struct str *err)
{
	static const struct {
		const char *name;
		bool is_unix, tls;
	} known[] = {{"redis", false, false}, {"rediss", false, true}, {"unix", true, false}};

	for (size_t i = 0; i < ARRAY_LEN(known); i++) {
		if (p->scheme_len != strlen(known[i].name) ||
		    strncasecmp(p->scheme, known[i].name, p->scheme_len) != 0)
			continue;
		*ret_unix = known[i].is_unix;
		*ret_tls = known[i].tls;
		return 0;
	}
	str_addf(err,
		 "metadata URL: engine '%.*s' is not supported, only redis://, rediss:// and "
		 "unix://",
		 (int)MIN(p->scheme_len, (size_t)32), p->scheme);
	return -EOPNOTSUPP;
}

static int parse_userinfo(const struct parts *p, struct redis_url *u, struct str *err)
{
	const char *colon = p->userinfo ? memchr(p->userinfo, ':', p->userinfo_len) : NULL;
	size_t user_len = colon ? (size_t)(colon - p->userinfo) : p->userinfo_len;
	int r;

	r = redis_url_unescape(p->userinfo, user_len, false, &u->user);
	if (r == 0 && colon)
		r = redis_url_unescape(colon + 1, p->userinfo_len - user_len - 1, false,
				       &u->password);
	if (r == -EINVAL)
		return bad(err, r,
			   "user or password has a % that is not followed by two hex digits");
	return r;
}

int redis_url_db(const char *s, size_t n, struct redis_url *u, struct str *err)
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

/* host, host:port, [v6], [v6]:port; port 0: none is said */
static int parse_addr(const char *s, size_t len, struct redis_addr *ret, struct str *err)
{
	const char *host = s, *port = memchr(s, ':', len);
	size_t host_len = port ? (size_t)(port - s) : len;
	char number[8] = "";
	uint64_t v;

	if (len && *host == '[') {
		const char *end = memchr(host, ']', len);

		if (!end)
			return bad(err, -EINVAL, "'[' without ']'");
		host++;
		host_len = (size_t)(end - host);
		port = end + 1 < s + len ? end + 1 : NULL;
		if (port && *port != ':')
			return bad(err, -EINVAL, "something between ']' and the port");
	}
	if (host_len > REDIS_HOST_MAX)
		return bad(err, -EINVAL, "a host's name is too long");
	*ret = (struct redis_addr){.port = 0};
	if (port && port + 1 < s + len) {
		size_t n = (size_t)(s + len - port - 1);

		if (n < sizeof(number))
			memcpy(number, port + 1, n);
		if (parse_u64(number, UINT16_MAX, &v) < 0 || v == 0)
			return bad(err, -EINVAL, "the port is not a number from 1 to 65535");
		ret->port = (uint16_t)v;
	}
	memcpy(ret->host, host, host_len);
	if (!host_len) /* as go-redis */
		snprintf(ret->host, sizeof(ret->host), "localhost");
	return 0;
}

static int parse_addrs(const char *s, size_t len, struct redis_url *u, struct str *err)
{
	size_t n = 1;

	for (size_t i = 0; i < len; i++)
		n += s[i] == ',';
	if (n > REDIS_ADDRS_MAX)
		return bad(err, -EINVAL, "too many hosts");
	u->addrs = calloc(n, sizeof(*u->addrs));
	if (!u->addrs)
		return -ENOMEM;
	while (u->n_addrs < n) {
		const char *comma = memchr(s, ',', len);
		size_t one = comma ? (size_t)(comma - s) : len;
		int r;

		if (!one && n > 1)
			return bad(err, -EINVAL, "an empty name in the list of hosts");
		r = parse_addr(s, one, &u->addrs[u->n_addrs], err);
		if (r < 0)
			return r;
		u->n_addrs++;
		s += one + !!comma;
		len -= one + !!comma;
	}
	return 0;
}

/* those without a port have the last one's, as JuiceFS has it; servers and nodes have Redis's */
static void default_ports(struct redis_url *u)
{
	uint16_t last = u->addrs[u->n_addrs - 1].port;
	uint16_t port = u->mode != REDIS_SENTINEL ? REDIS_PORT : last ? last : SENTINEL_PORT;

	for (size_t i = 0; i < u->n_addrs; i++)
		if (!u->addrs[i].port)
			u->addrs[i].port = port;
}

/* host, host,host (a cluster), or master,sentinel,sentinel: then the comma is before any colon, and
 * some port must be said */
static int parse_place_tcp(const struct parts *p, struct redis_url *u, struct str *err)
{
	const char *slash = memchr(p->place, '/', p->place_len);
	size_t len = slash ? (size_t)(slash - p->place) : p->place_len, rest = len;
	const char *hosts = p->place;
	const char *comma = memchr(hosts, ',', len), *colon = memchr(hosts, ':', len);
	int r;

	if (comma && colon && comma < colon) {
		u->mode = REDIS_SENTINEL;
		if (comma == hosts)
			return bad(err, -EINVAL, "no name of a master before the sentinels");
		u->master = strndup(hosts, (size_t)(comma - hosts));
		if (!u->master)
			return -ENOMEM;
		rest = (size_t)(hosts + len - comma - 1);
		hosts = comma + 1;
	} else if (comma) {
		u->mode = REDIS_CLUSTER;
	}
	r = parse_addrs(hosts, rest, u, err);
	if (r < 0)
		return r;
	default_ports(u);
	if (slash && slash + 1 < p->place + p->place_len)
		return redis_url_db(slash + 1, p->place_len - len - 1, u, err);
	return 0;
}

static int parse_place_unix(const struct parts *p, struct redis_url *u, struct str *err)
{
	int r;

	if (!p->place_len || *p->place != '/')
		return bad(err, -EINVAL, "unix:// needs the absolute path of a socket");
	r = redis_url_unescape(p->place, p->place_len, false, &u->path);
	if (r == -EINVAL)
		return bad(err, r, "the path has a % that is not followed by two hex digits");
	if (r == 0 && strlen(u->path) >= sizeof(((struct sockaddr_un *)0)->sun_path))
		return bad(err, -EINVAL, "the path of the socket is too long");
	return r;
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

static int sentinel_password(struct redis_url *u)
{
	const char *s = u->mode == REDIS_SENTINEL ? getenv("SENTINEL_PASSWORD") : NULL;

	if (!s || !*s)
		return 0;
	u->sentinel_password = strdup(s);
	return u->sentinel_password ? 0 : -ENOMEM;
}

int redis_url_parse(const char *url, struct redis_url *ret, struct str *err)
{
	struct redis_url u = {.mode = REDIS_SINGLE};
	struct parts p;
	bool is_unix;
	int r;

	url_split(url, &p);
	r = parse_scheme(&p, &is_unix, &u.tls, err);
	if (r == 0)
		r = parse_userinfo(&p, &u, err);
	if (r == 0)
		r = is_unix ? parse_place_unix(&p, &u, err) : parse_place_tcp(&p, &u, err);
	if (r == 0)
		r = redis_url_options(p.query, &u, err);
	if (r == 0)
		r = find_password(&u, err);
	if (r == 0)
		r = sentinel_password(&u);
	if (r < 0) {
		if (!err->len)
			bad(err, r, strerror(-r));
		redis_url_fini(&u);
		return r;
	}
	*ret = u;
	return 0;
}

static void secret_free(char *s)
{
	if (s)
		explicit_bzero(s, strlen(s));
	free(s);
}

void redis_url_fini(struct redis_url *u)
{
	secret_free(u->password);
	secret_free(u->sentinel_password);
	free(u->user);
	free(u->addrs);
	free(u->master);
	free(u->path);
	free(u->tls_conf.cert);
	free(u->tls_conf.key);
	free(u->tls_conf.ca);
	free(u->tls_conf.server_name);
	*u = (struct redis_url){.mode = REDIS_SINGLE};
}

char *redis_url_name(const struct redis_url *u)
{
	struct str s = STR_INIT;

	str_add(&s, u->path ? "unix://" : u->tls ? "rediss://" : "redis://");
	if (u->user || u->password)
		str_addf(&s, "%s%s@", u->user ? u->user : "", u->password ? ":****" : "");
	if (u->path) {
		str_addf(&s, "%s?db=%u", u->path, u->db);
		return str_take(&s);
	}
	if (u->master)
		str_addf(&s, "%s,", u->master);
	for (size_t i = 0; i < u->n_addrs; i++) {
		const struct redis_addr *a = &u->addrs[i];

		if (strchr(a->host, ':'))
			str_addf(&s, "%s[%s]:%u", i ? "," : "", a->host, a->port);
		else
			str_addf(&s, "%s%s:%u", i ? "," : "", a->host, a->port);
	}
	str_addf(&s, "/%u", u->db);
	return str_take(&s);
}

bool redis_addr_same(const struct redis_addr *a, const struct redis_addr *b)
{
	return a->port == b->port && !strcmp(a->host, b->host);
}
