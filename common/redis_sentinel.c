/* SPDX-License-Identifier: Apache-2.0 */
/* The server that a sentinel names: the master, or a replica of it for those who only read. Called
 * by one thread at a time (redis_route.c). */
#include "common/redis_inner.h"

#include "common/clock.h"
#include "common/parse.h"

/* host and port as texts */
static bool addr_read(const struct redis_reply *host, const struct redis_reply *port,
		      struct redis_addr *ret)
{
	size_t n = 0;
	const char *h = host ? redis_reply_str(host, &n) : NULL;
	const char *p = port ? redis_reply_str(port, NULL) : NULL;
	uint64_t v;

	if (!h || !p || !n || n > REDIS_HOST_MAX || parse_u64(p, UINT16_MAX, &v) < 0 || !v)
		return false;
	*ret = (struct redis_addr){.port = (uint16_t)v};
	memcpy(ret->host, h, n);
	return true;
}

static int ask_master(struct redis_conn *c, uint64_t deadline_us, struct redis_addr *ret,
		      struct str *why)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	const char *master = c->r->url.master;
	int r = redis_cmd(c, deadline_us, &reply, "SENTINEL get-master-addr-by-name %s", master);

	if (r < 0) {
		if (why)
			str_add(why, redis_error(c));
		return r;
	}
	if (addr_read(redis_reply_at(reply, 0), redis_reply_at(reply, 1), ret))
		return 0;
	if (why)
		str_addf(why, "the sentinels know no master named '%s'", master);
	return -ENOENT;
}

/* a field of the flat list name, value, name, value … */
static const struct redis_reply *field(const struct redis_reply *list, const char *name)
{
	for (size_t i = 0; i + 1 < redis_reply_len(list); i += 2) {
		const char *s = redis_reply_str(redis_reply_at(list, i), NULL);

		if (s && !strcmp(s, name))
			return redis_reply_at(list, i + 1);
	}
	return NULL;
}

static bool replica_serves(const struct redis_reply *one, struct redis_addr *ret)
{
	const struct redis_reply *flags = field(one, "flags");
	const struct redis_reply *link = field(one, "master-link-status");
	const char *f = flags ? redis_reply_str(flags, NULL) : NULL;
	const char *l = link ? redis_reply_str(link, NULL) : NULL;

	return f && !strstr(f, "down") && !strstr(f, "disconnected") && l && !strcmp(l, "ok") &&
	       addr_read(field(one, "ip"), field(one, "port"), ret);
}

/* one that is up, by chance, or keep if it is one of them; false: there is none */
static bool ask_replica(struct redis_conn *c, uint64_t deadline_us, const struct redis_addr *keep,
			struct redis_addr *ret)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	unsigned seen = 0, seed = (unsigned)clock_us();

	if (redis_cmd(c, deadline_us, &reply, "SENTINEL slaves %s", c->r->url.master) < 0)
		return false;
	for (size_t i = 0; i < redis_reply_len(reply); i++) {
		struct redis_addr a;

		if (!replica_serves(redis_reply_at(reply, i), &a))
			continue;
		if (keep && redis_addr_same(&a, keep)) {
			*ret = a;
			return true;
		}
		if ((unsigned)rand_r(&seed) % ++seen == 0)
			*ret = a;
	}
	return seen;
}

/* the other sentinels, so that those of the URL may all be gone one day */
static void sentinels_learn(struct redis_conn *c, uint64_t deadline_us)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct redis_nodes nodes = {.n = 0};
	struct redis_addr a;

	if (redis_cmd(c, deadline_us, &reply, "SENTINEL sentinels %s", c->r->url.master) < 0)
		return;
	redis_nodes_add(&nodes, &c->addr);
	for (size_t i = 0; i < redis_reply_len(reply); i++) {
		const struct redis_reply *one = redis_reply_at(reply, i);

		if (addr_read(field(one, "ip"), field(one, "port"), &a))
			redis_nodes_add(&nodes, &a);
	}
	redis_nodes_replace(&c->r->nodes, &nodes);
}

int redis_sentinel_ask(struct redis *r, const struct redis_addr *sentinel, uint64_t deadline_us,
		       const struct redis_addr *keep, struct redis_addr *ret, struct str *why)
{
	struct redis_conn *c;
	int e = redis_conn_open(r, sentinel, NULL, r->url.sentinel_password, deadline_us, &c, why);

	if (e < 0)
		return e;
	/* without a replica the master answers those who read, too */
	if (r->route == ROUTE_PRIMARY || !ask_replica(c, deadline_us, keep, ret))
		e = ask_master(c, deadline_us, ret, why);
	if (e == 0)
		sentinels_learn(c, deadline_us);
	redis_conn_close(c);
	return e;
}
