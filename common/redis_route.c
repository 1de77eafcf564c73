/* SPDX-License-Identifier: Apache-2.0 */
/* Which server is asked: the one of the URL, or the one that sentinels or a cluster's nodes name.
 * Any thread that may block; one at a time looks, the others wait for what it finds.
 *
 *	state		what makes it
 *	unknown		the beginning; doubt: its server failed, refused, or is silent
 *	looking		get, by one thread; left, which leaves what is known in force meanwhile
 *	known		somebody named it; moved: the server itself named another one
 *
 * Invariant: epoch grows with each change of node, and a connection is used only while its epoch is
 * this one. */
#include "common/redis_inner.h"

#include "common/clock.h"

enum { CHECK_US = 1000000 };

void redis_nodes_add(struct redis_nodes *n, const struct redis_addr *a)
{
	struct redis_addr *v;

	for (size_t i = 0; i < n->n; i++)
		if (redis_addr_same(&n->v[i], a))
			return;
	v = n->n < REDIS_ADDRS_MAX ? reallocarray(n->v, n->n + 1, sizeof(*v)) : NULL;
	if (!v)
		return; /* one less to ask */
	n->v = v;
	n->v[n->n++] = *a;
}

void redis_nodes_replace(struct redis_nodes *old, struct redis_nodes *by)
{
	if (!by->n)
		return;
	free(old->v);
	*old = *by;
}

static int look_at(struct redis *r, const struct redis_addr *who, uint64_t deadline_us,
		   const struct redis_addr *keep, struct redis_addr *ret, struct str *why)
{
	bool sentinel = r->mode == REDIS_SENTINEL;
	uint64_t until = clock_us() + MIN(clock_left(deadline_us), (uint64_t)REDIS_PROBE_US);

	if (why) {
		str_reset(why);
		str_addf(why, "%s %s:%u: ", sentinel ? "sentinel" : "node", who->host, who->port);
	}
	return sentinel ? redis_sentinel_ask(r, who, until, keep, ret, why)
			: redis_cluster_ask(r, who, until, keep, ret, why);
}

/* Those that were learned, then those of the URL, until one knows. Starts behind the one that was
 * asked last, since one that is cut off tells of the past, and one that hangs takes all the time
 * there is. */
static int look(struct redis *r, uint64_t deadline_us, const struct redis_addr *keep,
		struct redis_addr *ret, struct str *why)
{
	struct redis_nodes all = {.n = 0};
	unsigned first = r->first;
	int e = -ECONNREFUSED, worst = e;

	for (size_t i = 0; i < r->nodes.n; i++)
		redis_nodes_add(&all, &r->nodes.v[i]);
	for (size_t i = 0; i < r->url.n_addrs; i++)
		redis_nodes_add(&all, &r->url.addrs[i]);
	for (unsigned i = 0; i < all.n && clock_left(deadline_us); i++) {
		r->first = (first + i) % (unsigned)all.n;
		e = look_at(r, &all.v[r->first++], deadline_us, keep, ret, why);
		if (e == 0)
			break;
		/* says more than that one of them is away */
		if (e != -ECONNREFUSED && e != -ETIMEDOUT && e != -ECONNRESET)
			worst = e;
	}
	free(all.v);
	return e ? worst : 0;
}

static void looked_locked(struct redis *r, int result, const struct redis_addr *found)
	REQUIRES(r->lock)
{
	if (result == 0 && !redis_addr_same(&r->node, found)) {
		r->node = *found;
		r->epoch++;
	}
	if (result == 0)
		r->known = true;
	r->looking = false;
	r->look_result = result;
	r->n_looks++;
	r->looked_us = clock_us();
	cond_broadcast(&r->found);
}

/* 1: the caller is to look; 0: it is known; else what the one who looked got */
static int await_locked(struct redis *r, uint64_t deadline_us) REQUIRES(r->lock)
{
	uint64_t before = r->n_looks;

	while (!r->known && r->looking) {
		uint64_t left = clock_left(deadline_us);

		if (!left)
			return -ETIMEDOUT;
		(void)cond_wait_us(&r->found, &r->lock, left);
	}
	if (r->known)
		return 0;
	if (r->n_looks != before && r->look_result < 0)
		return r->look_result;
	r->looking = true;
	return 1;
}

int redis_route_get(struct redis *r, uint64_t deadline_us, struct redis_addr *ret,
		    uint64_t *ret_epoch, struct str *why)
{
	struct redis_addr found;
	int e;

	mtx_lock(&r->lock);
	e = await_locked(r, deadline_us);
	mtx_unlock(&r->lock);
	if (e == 1) {
		e = look(r, deadline_us, NULL, &found, why);
		mtx_lock(&r->lock);
		looked_locked(r, e, &found);
		mtx_unlock(&r->lock);
	}
	if (e < 0)
		return e;
	mtx_lock(&r->lock);
	*ret = r->node;
	*ret_epoch = r->epoch;
	mtx_unlock(&r->lock);
	return 0;
}

void redis_route_doubt(struct redis *r, uint64_t epoch)
{
	if (r->mode == REDIS_SINGLE)
		return; /* there is no other; its name is resolved with each connection */
	mtx_lock(&r->lock);
	if (epoch == r->epoch)
		r->known = false;
	mtx_unlock(&r->lock);
}

void redis_route_moved(struct redis *r, uint64_t epoch, const struct redis_addr *to)
{
	mtx_lock(&r->lock);
	if (epoch == r->epoch && !redis_addr_same(&r->node, to)) {
		r->node = *to;
		r->epoch++;
		r->known = true;
	}
	mtx_unlock(&r->lock);
}

bool redis_route_left(struct redis *r, uint64_t epoch)
{
	struct redis_addr keep, found;
	bool mine, left;
	int e;

	mtx_lock(&r->lock);
	mine = epoch == r->epoch && !r->looking && clock_us() - r->looked_us >= CHECK_US;
	r->looking = r->looking || mine;
	keep = r->node;
	mtx_unlock(&r->lock);
	if (mine) {
		e = look(r, clock_us() + REDIS_PROBE_US, &keep, &found, NULL);
		mtx_lock(&r->lock);
		looked_locked(r, e, &found);
		mtx_unlock(&r->lock);
	}
	mtx_lock(&r->lock);
	left = epoch != r->epoch;
	mtx_unlock(&r->lock);
	return left;
}
