/* SPDX-License-Identifier: Apache-2.0 */
/* What has to be copied, and how long it counts. Pure. */
#include "cached/mover.h"

static bool is_active(const struct member *m)
{
	return m && m->weight > 0 && m->state == MEMBER_ACTIVE;
}

static bool push_holds(const struct member *before, const struct member *now)
{
	if (is_active(before) != is_active(now))
		return false;
	return !is_active(now) || before->weight == now->weight;
}

bool mover_holds(const struct cluster *base, const struct cluster *now, const char *self,
		 unsigned tasks)
{
	size_t i = 0, k = 0;

	/* A block may have gone from one whom we asked too early to one whom we asked too late. Who
	 * comes does no harm: he makes paths longer, or has copied what he hides. */
	if (tasks & MOVER_PULL && base->losses != now->losses)
		return false;
	if (!(tasks & MOVER_PUSH))
		return true;
	while (i < base->n || k < now->n) {
		const struct member *b = i < base->n ? &base->members[i] : NULL;
		const struct member *n = k < now->n ? &now->members[k] : NULL, *one;
		int d = !b ? 1 : !n ? -1 : strcmp(b->id, n->id);

		b = d <= 0 ? b : NULL;
		n = d >= 0 ? n : NULL;
		i += d <= 0;
		k += d >= 0;
		one = b ? b : n;
		if (!one || strcmp(one->id, self) == 0)
			continue;
		if (!push_holds(b, n))
			return false;
	}
	return true;
}

struct cluster *mover_target(const struct cluster *base, const char *self,
			     const struct mover_goal *goal)
{
	_cleanup_(freep) struct member *m = calloc(base->n + 1, sizeof(*m));
	size_t n = 0;

	if (!m)
		return NULL;
	for (size_t i = 0; i < base->n; i++) {
		bool own = strcmp(base->members[i].id, self) == 0;

		if (own && goal->leave)
			continue;
		m[n] = base->members[i];
		if (own) {
			m[n].state = MEMBER_ACTIVE;
			m[n].weight = goal->weight;
		}
		n++;
	}
	return cluster_next(base, base->version, m, n);
}

int mover_heir(const struct cluster *base, const struct cluster *target, const char *self,
	       const struct block_key *k)
{
	int was = cluster_index(base, self), is = cluster_index(target, self), heir;

	if (was < 0 || !cluster_on_path(base, k, (uint32_t)was))
		return -1;
	if (is >= 0 && cluster_on_path(target, k, (uint32_t)is))
		return -1;
	heir = cluster_find_active(target, k);
	return heir < 0 ? -1 : cluster_index(base, target->members[heir].id);
}

bool mover_turn(const struct member *self, uint32_t weight, bool leave, struct member *ret)
{
	struct member m = *self;

	if (leave || weight < self->weight) {
		m.state = MEMBER_DRAINING;
	} else if (weight > self->weight) {
		m.weight = weight;
		m.state = MEMBER_JOINING;
	} else if (self->state == MEMBER_DRAINING) {
		m.state = MEMBER_JOINING;
	}
	if (m.state == self->state && m.weight == self->weight)
		return false;
	*ret = m;
	return true;
}

struct mover_goal mover_choose(const struct member *self, uint32_t weight, bool leave)
{
	struct mover_goal g = {.weight = weight, .leave = leave};

	if (self->state == MEMBER_DRAINING)
		g.tasks = MOVER_PUSH;
	else if (self->state == MEMBER_JOINING)
		g.tasks = MOVER_PULL;
	return g;
}

struct member mover_next(const struct member *self, const struct mover_goal *goal)
{
	struct member m = *self;

	assert(!goal->leave);
	if (goal->tasks == MOVER_PULL) {
		m.state = MEMBER_ACTIVE;
	} else {
		m.state = MEMBER_JOINING;
		m.weight = goal->weight;
	}
	return m;
}
