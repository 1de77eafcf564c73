/* SPDX-License-Identifier: Apache-2.0 */
/* Members and the ring of their points as one immutable snapshot, its wire form, and the place
 * where the current one hangs. Any thread; the count is atomic, the view has a leaf lock.
 *
 * Wire form (body of a RING answer), big-endian:
 *	version 8 ‖ number of members 4 ‖ per member, ascending by id:
 *	state 1 ‖ weight 4 ‖ port 2 ‖ id length 1 ‖ addr length 1 ‖ id ‖ addr
 * When a member has a sub-group, and only to who speaks version 2 of the protocol: the highest bit
 * of the version is set, and behind each addr: length 1 ‖ sub-group */
#include "common/block/cluster.h"

#include "common/str.h"

enum { WIRE_HEAD = 12, WIRE_MEMBER = 9 };
#define WIRE_SUB_GROUPS (UINT64_C(1) << 63)

/* printable, without blanks, and it ends */
static bool name_valid(const char *s, size_t size, size_t min)
{
	size_t n = strnlen(s, size);

	if (n < min || n == size)
		return false;
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)s[i] <= ' ' || s[i] == 127)
			return false;
	return true;
}

bool member_valid(const struct member *m)
{
	if (!name_valid(m->id, sizeof(m->id), 1) || !name_valid(m->addr, sizeof(m->addr), 1) ||
	    !name_valid(m->sub_group, sizeof(m->sub_group), 0))
		return false;
	if ((m->addr[0] == '/') != (m->port == 0))
		return false;
	return m->weight <= MEMBER_WEIGHT_MAX && m->state >= MEMBER_JOINING &&
	       m->state <= MEMBER_DRAINING;
}

static int member_cmp(const void *a, const void *b)
{
	return strcmp(((const struct member *)a)->id, ((const struct member *)b)->id);
}

/* --- making --- */

static void cluster_free(struct cluster *c)
{
	if (!c)
		return;
	ring_free(c->ring);
	free(c->state);
	free(c->sub);
	free(c->sub_name);
	free(c->sub_serving);
	free(c->members);
	free(c);
}

static void cluster_freep(struct cluster **c)
{
	cluster_free(*c);
}

/* where each member was in old, with the same weight; *ret_same: all are where they were, and
 * nobody else was there */
static void cluster_compare(const struct cluster *c, const struct cluster *old, uint32_t *from,
			    bool *ret_same)
{
	size_t k = 0;

	*ret_same = c->n == old->n;
	for (size_t i = 0; i < c->n; i++) {
		const struct member *m = &c->members[i];

		while (k < old->n && member_cmp(&old->members[k], m) < 0)
			k++;
		from[i] = k < old->n && member_cmp(&old->members[k], m) == 0 &&
					  old->members[k].weight == m->weight
				  ? (uint32_t)k
				  : RING_NONE;
		if (from[i] != i)
			*ret_same = false;
	}
}

static int cluster_ring(struct cluster *c, const struct cluster *old)
{
	_cleanup_(freep) struct ring_node *nodes = calloc(c->n + 1, sizeof(*nodes));
	_cleanup_(freep) uint32_t *from = calloc(c->n + 1, sizeof(*from));
	bool same = false;

	if (!nodes || !from)
		return -ENOMEM;
	if (old)
		cluster_compare(c, old, from, &same);
	if (same) {
		c->ring = ring_ref(old->ring);
		return 0;
	}
	for (size_t i = 0; i < c->n; i++)
		nodes[i] = (struct ring_node){c->members[i].id, c->members[i].weight};
	return ring_derive(old ? old->ring : NULL, from, nodes, c->n, &c->ring);
}

static int name_cmp(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static unsigned cluster_sub_number(const struct cluster *c, const char *sub_group)
{
	const char **found = sub_group[0] && c->n_subs ? bsearch(&sub_group, c->sub_name, c->n_subs,
								 sizeof(*c->sub_name), name_cmp)
						       : NULL;

	return found ? (unsigned)(found - c->sub_name) + 1 : 0;
}

static void cluster_name_subs(struct cluster *c)
{
	size_t n = 0, unique = 0;

	for (size_t i = 0; i < c->n; i++)
		if (c->members[i].sub_group[0])
			c->sub_name[n++] = c->members[i].sub_group;
	qsort(c->sub_name, n, sizeof(*c->sub_name), name_cmp);
	for (size_t i = 0; i < n; i++)
		if (i == 0 || strcmp(c->sub_name[i], c->sub_name[unique - 1]) != 0)
			c->sub_name[unique++] = c->sub_name[i];
	c->n_subs = unique;
}

static void cluster_summarize(struct cluster *c)
{
	cluster_name_subs(c);
	for (size_t i = 0; i < c->n; i++) {
		const struct member *m = &c->members[i];

		c->state[i] = (uint8_t)m->state;
		c->sub[i] = (uint16_t)cluster_sub_number(c, m->sub_group);
		if (m->weight == 0)
			continue;
		c->serving += m->state != MEMBER_DRAINING;
		c->holding += m->state != MEMBER_JOINING;
		c->active += m->state == MEMBER_ACTIVE;
		if (c->sub[i] && m->state != MEMBER_DRAINING)
			c->sub_serving[c->sub[i] - 1]++;
	}
}

static uint64_t cluster_count_losses(const struct cluster *old, const struct cluster *c)
{
	uint64_t losses = old->losses;

	for (size_t i = 0, k = 0; i < old->n; i++) {
		const struct member *was = &old->members[i], *is;

		while (k < c->n && member_cmp(&c->members[k], was) < 0)
			k++;
		is = k < c->n && member_cmp(&c->members[k], was) == 0 ? &c->members[k] : NULL;
		if (was->weight == 0 ||
		    (is && is->weight == was->weight &&
		     (is->state == was->state ||
		      (was->state == MEMBER_JOINING && is->state == MEMBER_ACTIVE))))
			continue;
		losses++;
	}
	return losses;
}

struct cluster *cluster_next(const struct cluster *old, uint64_t version,
			     const struct member *members, size_t n)
{
	_cleanup_(cluster_freep) struct cluster *c = calloc(1, sizeof(*c));

	assert(n <= CLUSTER_MEMBERS_MAX);
	if (!c)
		return NULL;
	c->refs = 1;
	c->version = version;
	c->n = n;
	c->members = calloc(n + 1, sizeof(*c->members));
	c->state = calloc(n + 1, sizeof(*c->state));
	c->sub = calloc(n + 1, sizeof(*c->sub));
	c->sub_name = calloc(n + 1, sizeof(*c->sub_name));
	c->sub_serving = calloc(n + 1, sizeof(*c->sub_serving));
	if (!c->members || !c->state || !c->sub || !c->sub_name || !c->sub_serving)
		return NULL;
	if (n > 0)
		memcpy(c->members, members, n * sizeof(*members));
	qsort(c->members, n, sizeof(*c->members), member_cmp);
	for (size_t i = 1; i < n; i++)
		assert(member_cmp(&c->members[i - 1], &c->members[i]) < 0);
	if (cluster_ring(c, old) < 0)
		return NULL;
	cluster_summarize(c);
	if (old)
		c->losses = cluster_count_losses(old, c);
	return TAKE_PTR(c);
}

struct cluster *cluster_new(uint64_t version, const struct member *members, size_t n)
{
	return cluster_next(NULL, version, members, n);
}

struct cluster *cluster_ref(struct cluster *c)
{
	__atomic_fetch_add(&c->refs, 1, __ATOMIC_RELAXED);
	return c;
}

void cluster_unref(struct cluster *c)
{
	if (c && __atomic_sub_fetch(&c->refs, 1, __ATOMIC_ACQ_REL) == 0)
		cluster_free(c);
}

/* --- who has a key --- */

static bool among(const uint32_t *members, size_t n, uint32_t m)
{
	for (size_t i = 0; i < n; i++)
		if (members[i] == m)
			return true;
	return false;
}

/* up to max members along the ring, but for those in one state, and of one sub-group (0: of any);
 * there are at most `all` */
static size_t cluster_walk(const struct cluster *c, const struct block_key *k,
			   enum member_state skip, unsigned sub, size_t all, uint32_t *ret,
			   size_t max)
{
	size_t steps = ring_points(c->ring), at, found = 0;

	max = MIN(max, all);
	if (max == 0)
		return 0;
	at = ring_start(c->ring, k->digest);
	while (steps-- > 0 && found < max) {
		uint32_t m = ring_step(c->ring, &at);

		if (c->state[m] != skip && (!sub || c->sub[m] == sub) && !among(ret, found, m))
			ret[found++] = m;
	}
	return found;
}

size_t cluster_find(const struct cluster *c, const struct block_key *k, uint32_t *ret, size_t max)
{
	return cluster_walk(c, k, MEMBER_DRAINING, 0, c->serving, ret, max);
}

size_t cluster_find_holders(const struct cluster *c, const struct block_key *k, uint32_t *ret,
			    size_t max)
{
	return cluster_walk(c, k, MEMBER_JOINING, 0, c->holding, ret, max);
}

size_t cluster_find_sub(const struct cluster *c, const struct block_key *k, const char *sub_group,
			uint32_t *ret, size_t max)
{
	unsigned sub = cluster_sub_number(c, sub_group);

	return sub ? cluster_walk(c, k, MEMBER_DRAINING, sub, c->sub_serving[sub - 1], ret, max)
		   : 0;
}

size_t cluster_find_path(const struct cluster *c, const struct block_key *k, uint32_t *ret,
			 size_t max)
{
	size_t steps = ring_points(c->ring), at, found;

	if (steps == 0 || max == 0)
		return 0;
	found = cluster_find_holders(c, k, ret, 1);
	at = ring_start(c->ring, k->digest);
	while (steps-- > 0 && found < max && found < c->n) {
		uint32_t m = ring_step(c->ring, &at);

		if (!among(ret, found, m))
			ret[found++] = m;
		if (c->state[m] == MEMBER_ACTIVE)
			break;
	}
	return found;
}

bool cluster_on_path(const struct cluster *c, const struct block_key *k, uint32_t member)
{
	size_t steps = ring_points(c->ring), at;

	if (c->members[member].weight == 0)
		return false;
	at = ring_start(c->ring, k->digest);
	while (steps-- > 0) {
		uint32_t m = ring_step(c->ring, &at);

		if (m == member || c->state[m] == MEMBER_ACTIVE)
			return m == member;
	}
	return false;
}

int cluster_find_active(const struct cluster *c, const struct block_key *k)
{
	size_t steps = c->active ? ring_points(c->ring) : 0, at;

	if (steps == 0)
		return -1;
	at = ring_start(c->ring, k->digest);
	while (steps-- > 0) {
		uint32_t m = ring_step(c->ring, &at);

		if (c->state[m] == MEMBER_ACTIVE)
			return (int)m;
	}
	return -1;
}

int cluster_index(const struct cluster *c, const char *id)
{
	size_t lo = 0, hi = c->n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		int d = strcmp(c->members[mid].id, id);

		if (d == 0)
			return (int)mid;
		if (d < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return -1;
}

static void put_be(uint8_t *p, uint64_t v, unsigned bytes)
{
	for (unsigned i = 0; i < bytes; i++)
		p[i] = (uint8_t)(v >> (8 * (bytes - 1 - i)));
}

static uint64_t get_be(const uint8_t *p, unsigned bytes)
{
	uint64_t v = 0;

	for (unsigned i = 0; i < bytes; i++)
		v = v << 8 | p[i];
	return v;
}

static bool has_sub_groups(const struct member *m, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (m[i].sub_group[0])
			return true;
	return false;
}

int cluster_encode(const struct cluster *c, unsigned version, struct str *out)
{
	bool subs = version >= 2 && has_sub_groups(c->members, c->n);
	uint8_t head[WIRE_HEAD];

	put_be(head, c->version | (subs ? WIRE_SUB_GROUPS : 0), 8);
	put_be(head + 8, c->n, 4);
	str_addn(out, head, sizeof(head));
	for (size_t i = 0; i < c->n; i++) {
		const struct member *m = &c->members[i];
		size_t id = strlen(m->id), addr = strlen(m->addr);
		uint8_t b[WIRE_MEMBER];

		b[0] = (uint8_t)m->state;
		put_be(b + 1, m->weight, 4);
		put_be(b + 5, m->port, 2);
		b[7] = (uint8_t)id;
		b[8] = (uint8_t)addr;
		str_addn(out, b, sizeof(b));
		str_addn(out, m->id, id);
		str_addn(out, m->addr, addr);
		if (subs) {
			uint8_t sub = (uint8_t)strlen(m->sub_group);

			str_addn(out, &sub, 1);
			str_addn(out, m->sub_group, sub);
		}
	}
	return str_error(out);
}

/* bytes used, or -EPROTO */
static ssize_t member_decode(const uint8_t *p, size_t n, bool subs, struct member *m)
{
	size_t id, addr, used, sub = 0;

	if (n < WIRE_MEMBER)
		return -EPROTO;
	id = p[7];
	addr = p[8];
	if (id >= sizeof(m->id) || addr >= sizeof(m->addr) || n - WIRE_MEMBER < id + addr)
		return -EPROTO;
	memset(m, 0, sizeof(*m));
	if (p[0] < MEMBER_JOINING || p[0] > MEMBER_DRAINING)
		return -EPROTO;
	m->state = (enum member_state)p[0];
	m->weight = (uint32_t)get_be(p + 1, 4);
	m->port = (uint16_t)get_be(p + 5, 2);
	memcpy(m->id, p + WIRE_MEMBER, id);
	memcpy(m->addr, p + WIRE_MEMBER + id, addr);
	used = WIRE_MEMBER + id + addr;
	if (subs) {
		sub = used < n ? p[used] : sizeof(m->sub_group);
		if (sub >= sizeof(m->sub_group) || n - used - 1 < sub)
			return -EPROTO;
		memcpy(m->sub_group, p + used + 1, sub);
		used += 1 + sub;
	}
	if (strlen(m->id) != id || strlen(m->addr) != addr || strlen(m->sub_group) != sub ||
	    !member_valid(m))
		return -EPROTO;
	return (ssize_t)used;
}

int cluster_decode(const struct cluster *old, const uint8_t *p, size_t n, struct cluster **ret)
{
	_cleanup_(freep) struct member *m = NULL;
	struct cluster *c;
	uint64_t version;
	size_t count;
	bool subs;

	if (n < WIRE_HEAD)
		return -EPROTO;
	version = get_be(p, 8);
	subs = version & WIRE_SUB_GROUPS;
	version &= ~WIRE_SUB_GROUPS;
	count = (size_t)get_be(p + 8, 4);
	p += WIRE_HEAD;
	n -= WIRE_HEAD;
	if (count > CLUSTER_MEMBERS_MAX || count > n / WIRE_MEMBER)
		return -EPROTO;
	m = calloc(count + 1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++) {
		ssize_t used = member_decode(p, n, subs, &m[i]);

		if (used < 0 || (i > 0 && member_cmp(&m[i - 1], &m[i]) >= 0))
			return -EPROTO;
		p += used;
		n -= (size_t)used;
	}
	if (n != 0 || (subs && !has_sub_groups(m, count)))
		return -EPROTO;
	c = cluster_next(old, version, m, count);
	if (!c)
		return -ENOMEM;
	*ret = c;
	return 0;
}

void cluster_view_init(struct cluster_view *v)
{
	mtx_init(&v->lock);
	v->current = NULL;
	v->consumer = false;
}

void cluster_view_fini(struct cluster_view *v)
{
	cluster_unref(TAKE_PTR(v->current));
	mtx_fini(&v->lock);
}

struct cluster *cluster_view_get(struct cluster_view *v)
{
	struct cluster *c;

	mtx_lock(&v->lock);
	c = v->current ? cluster_ref(v->current) : NULL;
	mtx_unlock(&v->lock);
	return c;
}

void cluster_view_set(struct cluster_view *v, struct cluster *c)
{
	struct cluster *old;

	mtx_lock(&v->lock);
	old = v->current;
	v->current = c;
	mtx_unlock(&v->lock);
	cluster_unref(old);
}
