/* SPDX-License-Identifier: Apache-2.0 */
/* The options of a Redis URL, as JuiceFS and go-redis have them (docs/format.md §1.3). Pure; any
 * thread. */
#include "common/redis_url.h"

#include "common/parse.h"

static int bad(struct str *err, const char *name, const char *what)
{
	str_addf(err, "metadata URL: %s %s", name, what);
	return -EINVAL;
}

static int take_duration(const char *value, const char *name, uint64_t *ret, struct str *err)
{
	if (*value == '-') { /* go-redis: none */
		*ret = 0;
		return 0;
	}
	return parse_duration(value, ret) < 0 ? bad(err, name, "is not a duration") : 0;
}

static int take_text(const char *value, char **ret)
{
	free(*ret);
	*ret = *value ? strdup(value) : NULL;
	return *value && !*ret ? -ENOMEM : 0;
}

static int take_route(const char *value, struct redis_url *u, struct str *err)
{
	static const char *const names[] = {[ROUTE_REPLICA] = "replica",
					    [ROUTE_RANDOM] = "random",
					    [ROUTE_LATENCY] = "latency"};

	u->route = ROUTE_PRIMARY;
	for (enum redis_route i = ROUTE_REPLICA; i <= ROUTE_LATENCY && *value; i++)
		if (!strcmp(value, names[i]))
			u->route = i;
	return *value && u->route == ROUTE_PRIMARY
		       ? bad(err, "route-read", "is none of replica, random, latency")
		       : 0;
}

/* What tunes go-redis, or the cache that JuiceFS keeps of what Redis told it: that cache only says
 * how JuiceFS avoids questions, so a client without it reads the same. The time of an answer
 * (read-timeout) includes that of its question. */
static bool is_foreign(const char *name)
{
	static const char *const known[] = {
		"client-cache",
		"client-cache-size",
		"client-cache-expire",
		"client-cache-preload",
		"write-timeout",
		"write_timeout",
		"protocol",
		"client_name",
		"max_retries",
		"pool_fifo",
		"pool_size",
		"pool_timeout",
		"min_idle_conns",
		"max_idle_conns",
		"max_active_conns",
		"conn_max_idle_time",
		"conn_max_lifetime",
		"idle_timeout",
		"max_conn_age",
		"idle_check_frequency",
	};

	for (size_t i = 0; i < ARRAY_LEN(known); i++)
		if (!strcmp(name, known[i]))
			return true;
	return false;
}

static int take(const char *name, const char *value, struct redis_url *u, struct str *err)
{
	const struct {
		const char *name;
		uint64_t *us;
	} durations[] = {
		{"read-timeout", &u->read_timeout_us},
		{"read_timeout", &u->read_timeout_us},
		{"dial_timeout", &u->dial_timeout_us},
		{"min-retry-backoff", &u->min_backoff_us},
		{"min_retry_backoff", &u->min_backoff_us},
		{"max-retry-backoff", &u->max_backoff_us},
		{"max_retry_backoff", &u->max_backoff_us},
	};
	const struct {
		const char *name;
		char **text;
	} texts[] = {
		{"tls-cert-file", &u->tls_conf.cert},
		{"tls-key-file", &u->tls_conf.key},
		{"tls-ca-cert-file", &u->tls_conf.ca},
		{"tls-server-name", &u->tls_conf.server_name},
	};

	for (size_t i = 0; i < ARRAY_LEN(durations); i++)
		if (!strcmp(name, durations[i].name))
			return take_duration(value, name, durations[i].us, err);
	for (size_t i = 0; i < ARRAY_LEN(texts); i++)
		if (!strcmp(name, texts[i].name))
			return take_text(value, texts[i].text);
	if (!strcmp(name, "db"))
		return redis_url_db(value, strlen(value), u, err);
	if (!strcmp(name, "route-read"))
		return take_route(value, u, err);
	if (!strcmp(name, "insecure-skip-verify")) {
		u->tls_conf.skip_verify = *value;
		return 0;
	}
	if (!strcmp(name, "skip_verify")) { /* go-redis's own: a bool */
		if (parse_bool(value, &u->tls_conf.skip_verify) < 0)
			return bad(err, name, "is neither true nor false");
		return 0;
	}
	if (is_foreign(name))
		return 0;
	str_addf(err, "metadata URL: unknown option '%.64s'", name);
	return -EINVAL;
}

/* name=value */
static int parse_option(const char *s, size_t n, struct redis_url *u, struct str *err)
{
	const char *eq = memchr(s, '=', n);
	size_t name_len = eq ? (size_t)(eq - s) : n;
	_cleanup_(freep) char *name = NULL, *value = NULL;
	int r = redis_url_unescape(s, name_len, true, &name);

	if (r == 0 && eq)
		r = redis_url_unescape(eq + 1, n - name_len - 1, true, &value);
	if (r == -EINVAL)
		return bad(err, "an option", "has a % that is not followed by two hex digits");
	if (r < 0)
		return r;
	return take(name ? name : "", value ? value : "", u, err);
}

int redis_url_options(const char *query, struct redis_url *u, struct str *err)
{
	while (query && *query) {
		size_t n = strcspn(query, "&");
		int r = n ? parse_option(query, n, u, err) : 0;

		if (r < 0)
			return r;
		query += n + (query[n] == '&');
	}
	if (!u->tls_conf.cert != !u->tls_conf.key)
		return bad(err, "tls-cert-file and tls-key-file", "are needed both, or none");
	return 0;
}
