/* SPDX-License-Identifier: Apache-2.0 */
/* The node of a Redis Cluster that has the volume's slot: all keys of a volume begin with {N}, so
 * they lie in one slot and one master at a time serves them. Any node tells which; those that are
 * known are asked in turn. Called by one thread at a time (redis_route.c). */
#include "common/redis_inner.h"

#include "common/clock.h"

enum { SLOTS = 16384, REPLICAS_MAX = 64 };

/* CRC-16/XMODEM, as the Redis Cluster specification has it */
static uint16_t crc16(const char *s, size_t n)
{
	uint16_t crc = 0;

	for (size_t i = 0; i < n; i++) {
		crc ^= (uint16_t)((uint8_t)s[i] << 8);
		for (int k = 0; k < 8; k++)
			crc = (uint16_t)(crc & 0x8000 ? crc << 1 ^ 0x1021 : crc << 1);
	}
	return crc;
}

unsigned redis_cluster_slot(const char *key, size_t len)
{
	const char *open = memchr(key, '{', len);
	const char *close = open ? memchr(open, '}', len - (size_t)(open - key)) : NULL;

	if (close && close > open + 1)
		return crc16(open + 1, (size_t)(close - open - 1)) % SLOTS;
	return crc16(key, len) % SLOTS;
}

/* {host, port, id …}; a node that does not know its own address is who was asked */
static bool node_read(const struct redis_conn *c, const struct redis_reply *one,
		      struct redis_addr *ret)
{
	const struct redis_reply *host = one ? redis_reply_at(one, 0) : NULL;
	const struct redis_reply *port = one ? redis_reply_at(one, 1) : NULL;
	size_t n = 0;
	const char *h = host ? redis_reply_str(host, &n) : NULL;
	int64_t p = port ? redis_reply_int(port) : 0;

	if (p <= 0 || p > UINT16_MAX || n > REDIS_HOST_MAX)
		return false;
	*ret = (struct redis_addr){.port = (uint16_t)p};
	if (h && n && *h != '?')
		memcpy(ret->host, h, n);
	else if (*c->addr.host)
		snprintf(ret->host, sizeof(ret->host), "%s", c->addr.host);
	else
		snprintf(ret->host, sizeof(ret->host), "127.0.0.1"); /* a unix socket */
	return true;
}

/* all nodes that the answer names: any of them can be asked the next time */
static void nodes_learn(struct redis *r, const struct redis_conn *c, const struct redis_reply *all)
{
	struct redis_nodes nodes = {.n = 0};
	struct redis_addr a;

	if (*c->addr.host)
		redis_nodes_add(&nodes, &c->addr);
	for (size_t i = 0; i < redis_reply_len(all); i++) {
		const struct redis_reply *range = redis_reply_at(all, i);

		for (size_t k = 2; k < redis_reply_len(range); k++)
			if (node_read(c, redis_reply_at(range, k), &a))
				redis_nodes_add(&nodes, &a);
	}
	redis_nodes_replace(&r->nodes, &nodes);
}

static const struct redis_reply *range_of(const struct redis_reply *all, unsigned slot)
{
	for (size_t i = 0; i < redis_reply_len(all); i++) {
		const struct redis_reply *range = redis_reply_at(all, i);

		if (redis_reply_len(range) >= 3 &&
		    redis_reply_int(redis_reply_at(range, 0)) <= slot &&
		    slot <= redis_reply_int(redis_reply_at(range, 1)))
			return range;
	}
	return NULL;
}

/* how long a node takes to answer; UINT64_MAX when it does not */
static uint64_t latency(struct redis *r, const struct redis_addr *a, uint64_t deadline_us)
{
	struct redis_reply *reply;
	struct redis_conn *c;
	uint64_t begin, took = UINT64_MAX;

	if (redis_conn_open(r, a, r->url.user, r->url.password, deadline_us, &c, NULL) < 0)
		return UINT64_MAX;
	begin = clock_us();
	if (redis_cmd(c, deadline_us, &reply, "PING") == 0) {
		took = clock_us() - begin;
		redis_reply_free(reply);
	}
	redis_conn_close(c);
	return took;
}

/* which of the nodes of a slot is asked: the first is the master, replicas follow */
static bool choose(struct redis *r, const struct redis_conn *c, const struct redis_reply *range,
		   uint64_t deadline_us, const struct redis_addr *keep, struct redis_addr *ret)
{
	struct redis_addr all[REPLICAS_MAX];
	uint64_t best = UINT64_MAX;
	unsigned n = 0, from, seed = (unsigned)clock_us();

	for (size_t k = 2; k < redis_reply_len(range) && n < REPLICAS_MAX; k++)
		n += node_read(c, redis_reply_at(range, k), &all[n]);
	if (!n)
		return false;
	*ret = all[0];
	if (r->route == ROUTE_PRIMARY || n == 1)
		return true;
	from = r->route == ROUTE_REPLICA;
	for (unsigned i = from; keep && i < n; i++) {
		if (redis_addr_same(&all[i], keep)) {
			*ret = all[i];
			return true;
		}
	}
	if (r->route != ROUTE_LATENCY) {
		*ret = all[from + (unsigned)rand_r(&seed) % (n - from)];
		return true;
	}
	for (unsigned i = 0; i < n; i++) {
		uint64_t took = latency(r, &all[i], deadline_us);

		if (took < best)
			*ret = all[i];
		best = MIN(best, took);
	}
	return true;
}

int redis_cluster_ask(struct redis *r, const struct redis_addr *node, uint64_t deadline_us,
		      const struct redis_addr *keep, struct redis_addr *ret, struct str *why)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	const struct redis_reply *range;
	struct redis_conn *c;
	int e = redis_conn_open(r, node, r->url.user, r->url.password, deadline_us, &c, why);

	if (e < 0)
		return e;
	e = redis_cmd(c, deadline_us, &reply, "CLUSTER SLOTS");
	if (e < 0) {
		if (why)
			str_add(why, redis_error(c));
	} else {
		range = range_of(reply, r->slot);
		if (!range || !choose(r, c, range, deadline_us, keep, ret)) {
			if (why)
				str_addf(why, "the cluster has no node for slot %u", r->slot);
			e = -EAGAIN;
		} else {
			nodes_learn(r, c, reply);
		}
	}
	redis_conn_close(c);
	return e;
}

int redis_cluster_learn(struct redis_conn *c, uint64_t deadline_us)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	int e = redis_cmd(c, deadline_us, &reply, "CLUSTER SLOTS");

	if (e == 0)
		nodes_learn(c->r, c, reply);
	return e;
}
