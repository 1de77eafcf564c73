/* SPDX-License-Identifier: Apache-2.0 */
/* Which peers are asked for a block: the ring's answer, as this process reaches them, the healthy
 * first. A member asks the others on the path by NO_FILL. Who is not the ring's owner, but asked in
 * his place, asks him last, as a mount would: so whoever is asked, it is the owner who goes to the
 * object store, once for all, as long as he lives. Any thread; no state. */
#include "common/block/source_peer.h"

struct pick {
	struct source_peer *sp;
	const struct cluster *c;
	const struct block_req *req;
	int self; /* the member on this node; -1: none */
	struct peer **ret;
	unsigned n, max;
};

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

/* each once */
static void pick_add(struct pick *k, struct peer *p)
{
	for (unsigned i = 0; i < k->n; i++)
		if (k->ret[i] == p)
			return;
	if (p && k->n < k->max)
		k->ret[k->n++] = p;
}

static void pick_add_members(struct pick *k, const uint32_t *m, size_t n)
{
	for (size_t i = 0; i < n; i++)
		pick_add(k, member_peer(k->sp, &k->c->members[m[i]]));
}

/* who is down or slow goes last; the order is kept otherwise */
static void pick_healthy_first(struct pick *k)
{
	struct peer *sick[PEER_TARGETS] = {NULL};
	unsigned well = 0, n_sick = 0;

	for (unsigned i = 0; i < k->n; i++)
		if (healthy(k->ret[i]))
			k->ret[well++] = k->ret[i];
		else
			sick[n_sick++] = k->ret[i];
	memcpy(k->ret + well, sick, n_sick * sizeof(*sick));
}

/* The daemon of this node when it is a consumer, the sub-group's owner, owner, successor. Who fills
 * for all (FILL), and who knows for all (PROBE), is the owner. */
static void pick_owners(struct pick *k)
{
	const struct source_peer_conf *conf = &k->sp->conf;
	uint32_t m[PEER_OWNERS];

	if (is_get(k->req) && conf->mode == PEER_OWNER && conf->socket && conf->self && k->self < 0)
		pick_add(k, peers_get(conf->peers, conf->socket, 0));
	if (is_get(k->req) && conf->sub_group)
		pick_add_members(k, m, cluster_find_sub(k->c, &k->req->key, conf->sub_group, m, 1));
	pick_add_members(k, m, cluster_find(k->c, &k->req->key, m, PEER_OWNERS));
	if (is_get(k->req))
		pick_healthy_first(k);
}

/* The ring's owner, who gets the block for all; NULL: that is this member, or he is silent. */
static struct peer *pick_owner(const struct pick *k)
{
	uint32_t owner;
	struct peer *p;

	if (cluster_find(k->c, &k->req->key, &owner, 1) == 0 || owner == (uint32_t)k->self)
		return NULL;
	p = member_peer(k->sp, &k->c->members[owner]);
	return p && healthy(p) ? p : NULL;
}

/* the others on the path, but one */
static void pick_path(struct pick *k, const struct peer *but)
{
	uint32_t m[PEER_TARGETS + 1];
	size_t found = cluster_find_path(k->c, &k->req->key, m, ARRAY_LEN(m));

	for (size_t i = 0; i < found; i++) {
		struct peer *p = member_peer(k->sp, &k->c->members[m[i]]);

		if (p && p != but && healthy(p))
			pick_add(k, p);
	}
}

unsigned peer_pick(struct source_peer *sp, const struct block_req *req, bool member,
		   struct peer *ret[PEER_TARGETS], unsigned *ret_no_fill)
{
	struct cluster *c = cluster_view_get(sp->conf.view);
	struct pick k = {.sp = sp, .c = c, .req = req, .self = -1, .ret = ret, .max = PEER_TARGETS};

	*ret_no_fill = 0;
	if (!c)
		return 0;
	if (sp->conf.self)
		k.self = cluster_index(c, sp->conf.self);
	if (sp->conf.mode == PEER_OWNER ||
	    (__atomic_load_n(&sp->conf.view->consumer, __ATOMIC_RELAXED) && !member)) {
		pick_owners(&k);
	} else {
		struct peer *owner = member ? NULL : pick_owner(&k);

		k.max -= owner != NULL;
		pick_path(&k, owner);
		*ret_no_fill = k.n;
		k.max = PEER_TARGETS;
		pick_add(&k, owner);
	}
	cluster_unref(c);
	return k.n;
}

/* who may have a copy */
unsigned peer_pick_copies(struct source_peer *sp, const struct block_req *req,
			  struct peer *ret[PEER_COPIES])
{
	struct cluster *c = cluster_view_get(sp->conf.view);
	struct pick k = {.sp = sp, .c = c, .req = req, .ret = ret, .max = PEER_COPIES};
	uint32_t m[PEER_TARGETS];

	if (!c)
		return 0;
	pick_add_members(&k, m, cluster_find(c, &req->key, m, PEER_OWNERS));
	pick_add_members(&k, m, cluster_find_path(c, &req->key, m, PEER_TARGETS));
	if (sp->conf.sub_group)
		pick_add_members(&k, m, cluster_find_sub(c, &req->key, sp->conf.sub_group, m, 1));
	/* the daemon of this node, member or not */
	if (sp->conf.socket && sp->conf.self)
		pick_add(&k, peers_get(sp->conf.peers, sp->conf.socket, 0));
	cluster_unref(c);
	return k.n;
}
