/* SPDX-License-Identifier: Apache-2.0 */
/* Which peers are asked for a block: the ring's answer, as this process reaches them, the healthy
 * first. Any thread; no state. */
#include "common/block/source_peer.h"

/* the member as this process reaches it; NULL: not at all */
static struct peer *member_peer(const struct source_peer *sp, const struct member *m)
{
	const struct source_peer_conf *conf = &sp->conf;

	if (conf->self && strcmp(m->id, conf->self) == 0) {
		if (conf->mode == PEER_HOLDER)
			return NULL;
		if (conf->socket)
			return peers_get(conf->peers, conf->socket, 0);
	}
	return peers_get(conf->peers, m->addr, m->port);
}

static bool healthy(struct peer *p)
{
	struct peer_health h;

	peer_health(p, &h);
	if (!h.down && !h.slow)
		return true;
	peer_probe(p);
	return false;
}

/* owner, then successor; who is down or slow goes last, unless it must be the owner (FILL,
 * PROBE) */
static unsigned pick_owners(struct source_peer *sp, const struct cluster *c,
			    const struct block_req *req, struct peer **ret)
{
	uint32_t m[PEER_TARGETS];
	size_t found = cluster_find(c, &req->key, m, PEER_TARGETS);
	unsigned n = 0;

	for (size_t i = 0; i < found; i++) {
		struct peer *p = member_peer(sp, &c->members[m[i]]);

		if (p)
			ret[n++] = p;
	}
	if (n == 2 && is_get(req) && !healthy(ret[0]) && healthy(ret[1])) {
		struct peer *last = ret[0];

		ret[0] = ret[1];
		ret[1] = last;
	}
	return n;
}

/* the holder ring's owner, or when that is me (or when I am only a successor, it is he anyway) the
 * ring's owner */
static unsigned pick_holder(struct source_peer *sp, const struct cluster *c,
			    const struct block_req *req, struct peer **ret)
{
	uint32_t m;
	struct peer *p = NULL;

	if (cluster_find_holders(c, &req->key, &m, 1) == 1)
		p = member_peer(sp, &c->members[m]);
	if (!p && cluster_find(c, &req->key, &m, 1) == 1)
		p = member_peer(sp, &c->members[m]);
	if (!p || !healthy(p))
		return 0;
	ret[0] = p;
	return 1;
}

unsigned peer_pick(struct source_peer *sp, const struct block_req *req,
		   struct peer *ret[PEER_TARGETS])
{
	struct cluster *c = cluster_view_get(sp->conf.view);
	unsigned n = 0;

	if (c && sp->conf.mode == PEER_OWNER)
		n = pick_owners(sp, c, req, ret);
	else if (c)
		n = pick_holder(sp, c, req, ret);
	cluster_unref(c);
	return n;
}

/* who may have a copy: owner and successor of both rings, and the daemon of this node */
unsigned peer_pick_copies(struct source_peer *sp, const struct block_req *req,
			  struct peer *ret[PEER_COPIES])
{
	struct cluster *c = cluster_view_get(sp->conf.view);
	uint32_t m[PEER_COPIES];
	size_t found;
	unsigned n = 0;
	int self;

	if (!c)
		return 0;
	found = cluster_find(c, &req->key, m, PEER_TARGETS);
	found += cluster_find_holders(c, &req->key, m + found, PEER_TARGETS);
	self = sp->conf.self ? cluster_index(c, sp->conf.self) : -1;
	if (self >= 0)
		m[found++] = (uint32_t)self;
	for (size_t i = 0; i < found; i++) {
		struct peer *p = member_peer(sp, &c->members[m[i]]);
		bool again = !p;

		for (unsigned k = 0; k < n; k++)
			again = again || ret[k] == p;
		if (!again)
			ret[n++] = p;
	}
	cluster_unref(c);
	return n;
}
