/* SPDX-License-Identifier: Apache-2.0 */
/* Consistent hashing over sorted points. Pure; immutable once made: readers need no lock.
 *
 * Places are even over 64 bits, so their highest bits tell where in the array they are: `first` has
 * for each value of those the first point at or after it. That makes a look-up two cache misses,
 * and sorting one pass and a few steps for each point. */
#include "common/ring.h"

#include "common/hash.h"

enum { RING_NODES_MAX = 10000, RING_POINTS_MAX = 4000000, PER_SLOT = 4 };

struct ring {
	unsigned refs; /* atomic */
	size_t n_points, n_nodes;
	double scale;
	uint64_t *place;
	uint16_t *node;
	uint32_t *first; /* slots + 1 */
	unsigned shift;	 /* place >> shift is the slot */
	size_t slots;
};

/* points that are on their way into a ring */
struct points {
	size_t n;
	uint64_t *place;
	uint16_t *node;
};

/* --- points --- */

/* the node's share of points: in proportion to its weight, at least one unless the weight is 0 */
static uint32_t points_of(uint32_t weight, double scale)
{
	double n = (double)weight * RING_POINTS_PER_UNIT / RING_WEIGHT_UNIT * scale;

	if (weight == 0)
		return 0;
	return n < 1 ? 1 : (uint32_t)n;
}

static double scale_of(const struct ring_node *nodes, size_t n)
{
	double sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += (double)nodes[i].weight * RING_POINTS_PER_UNIT / RING_WEIGHT_UNIT;
	/* leave room for the nodes that are rounded up to one point */
	return sum > RING_POINTS_MAX - RING_NODES_MAX ? (RING_POINTS_MAX - RING_NODES_MAX) / sum
						      : 1;
}

static uint64_t point_place(const char *id, size_t len, uint32_t number)
{
	uint8_t text[256 + 8];
	size_t n = MIN(len, (size_t)256);

	memcpy(text, id, n);
	text[n] = '#';
	text[n + 1] = (uint8_t)(number >> 24);
	text[n + 2] = (uint8_t)(number >> 16);
	text[n + 3] = (uint8_t)(number >> 8);
	text[n + 4] = (uint8_t)number;
	return hash64(text, n + 5);
}

static int points_init(struct points *p, size_t n)
{
	p->n = 0;
	p->place = calloc(n + 1, sizeof(*p->place));
	p->node = calloc(n + 1, sizeof(*p->node));
	return p->place && p->node ? 0 : -ENOMEM;
}

static void points_fini(struct points *p)
{
	free(p->place);
	free(p->node);
}

/* Equal places (they happen once in 2^64 / points) are ordered by node id, so that the order of the
 * input does not matter. */
static bool before(const struct ring_node *nodes, uint64_t pa, uint16_t a, uint64_t pb, uint16_t b)
{
	return pa != pb ? pa < pb : strcmp(nodes[a].id, nodes[b].id) < 0;
}

/* for n points: slots of about PER_SLOT of them */
static unsigned slot_bits(size_t n)
{
	unsigned bits = 1;

	while (n >> bits > PER_SLOT)
		bits++;
	return bits;
}

/* by the slot that the highest bits name, then each with its few neighbours */
static int points_sort(struct points *p, const struct ring_node *nodes)
{
	unsigned bits = slot_bits(p->n);
	_cleanup_(freep) uint32_t *at = calloc(((size_t)1 << bits) + 1, sizeof(*at));
	struct points s;

	if (points_init(&s, p->n) < 0 || !at) {
		points_fini(&s);
		return -ENOMEM;
	}
	for (size_t i = 0; i < p->n; i++)
		at[(p->place[i] >> (64 - bits)) + 1]++;
	for (size_t i = 0; i < (size_t)1 << bits; i++)
		at[i + 1] += at[i];
	for (size_t i = 0; i < p->n; i++) {
		uint32_t to = at[p->place[i] >> (64 - bits)]++;

		s.place[to] = p->place[i];
		s.node[to] = p->node[i];
	}
	s.n = p->n;
	for (size_t i = 1; i < s.n; i++) {
		uint64_t place = s.place[i];
		uint16_t node = s.node[i];
		size_t k = i;

		for (; k > 0 && before(nodes, place, node, s.place[k - 1], s.node[k - 1]); k--) {
			s.place[k] = s.place[k - 1];
			s.node[k] = s.node[k - 1];
		}
		s.place[k] = place;
		s.node[k] = node;
	}
	points_fini(p);
	*p = s;
	return 0;
}

/* of the nodes that come from no old ring, sorted */
static int points_make(struct points *p, const struct ring_node *nodes, size_t n,
		       const uint32_t *from, double scale)
{
	size_t total = 0;

	for (size_t i = 0; i < n; i++)
		if (!from || from[i] == RING_NONE)
			total += points_of(nodes[i].weight, scale);
	if (points_init(p, total) < 0)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		uint32_t points = points_of(nodes[i].weight, scale);
		size_t len = strlen(nodes[i].id);

		if (from && from[i] != RING_NONE)
			continue;
		for (uint32_t j = 0; j < points; j++) {
			p->place[p->n] = point_place(nodes[i].id, len, j);
			p->node[p->n++] = (uint16_t)i;
		}
	}
	return points_sort(p, nodes);
}

/* --- making --- */

static void index_points(struct ring *r)
{
	size_t slot = 0;

	for (size_t i = 0; i < r->n_points; i++)
		while (slot <= r->place[i] >> r->shift)
			r->first[slot++] = (uint32_t)i;
	while (slot <= r->slots)
		r->first[slot++] = (uint32_t)r->n_points;
}

static int ring_alloc(size_t n_points, double scale, struct ring **ret)
{
	struct ring *r = calloc(1, sizeof(*r));
	unsigned bits = slot_bits(n_points);

	if (!r)
		return -ENOMEM;
	r->refs = 1;
	r->scale = scale;
	r->shift = 64 - bits;
	r->slots = (size_t)1 << bits;
	r->place = calloc(n_points + 1, sizeof(*r->place));
	r->node = calloc(n_points + 1, sizeof(*r->node));
	r->first = calloc(r->slots + 1, sizeof(*r->first));
	if (!r->place || !r->node || !r->first) {
		ring_free(r);
		return -ENOMEM;
	}
	*ret = r;
	return 0;
}

/* old's points under their new numbers, without those who are gone (to[] is RING_NONE), and p's:
 * both are sorted */
static void ring_merge(struct ring *r, const struct ring *old, const uint32_t *to,
		       const struct points *p, const struct ring_node *nodes)
{
	size_t have = old ? old->n_points : 0, i = 0, k = 0, all = 0;

	while (i < have || k < p->n) {
		uint32_t node = i < have ? to[old->node[i]] : RING_NONE;

		if (i < have && node == RING_NONE) {
			i++;
		} else if (k == p->n || (i < have && before(nodes, old->place[i], (uint16_t)node,
							    p->place[k], p->node[k]))) {
			r->place[all] = old->place[i++];
			r->node[all++] = (uint16_t)node;
		} else {
			r->place[all] = p->place[k];
			r->node[all++] = p->node[k++];
		}
	}
	r->n_points = all;
}

int ring_derive(const struct ring *old, const uint32_t *from, const struct ring_node *nodes,
		size_t n, struct ring **ret)
{
	_cleanup_(freep) uint32_t *to = NULL;
	double scale = scale_of(nodes, n);
	struct points p = {0, NULL, NULL};
	struct ring *r = NULL;
	size_t total = 0;
	int rc;

	if (n > RING_NODES_MAX)
		return -EINVAL;
	if (old && old->scale != scale)
		old = NULL;
	to = malloc((size_t)(RING_NODES_MAX) * sizeof(*to));
	if (!to)
		return -ENOMEM;
	memset(to, 0xff, (size_t)(RING_NODES_MAX) * sizeof(*to));
	for (size_t i = 0; i < n; i++) {
		total += points_of(nodes[i].weight, scale);
		if (old && from[i] != RING_NONE)
			to[from[i]] = (uint32_t)i;
	}
	rc = points_make(&p, nodes, n, old ? from : NULL, scale);
	if (rc == 0)
		rc = ring_alloc(total, scale, &r);
	if (rc == 0) {
		ring_merge(r, old, to, &p, nodes);
		assert(r->n_points == total);
		for (size_t i = 0; i < n; i++)
			r->n_nodes += nodes[i].weight > 0;
		index_points(r);
		*ret = r;
	}
	points_fini(&p);
	return rc;
}

int ring_new(const struct ring_node *nodes, size_t n, struct ring **ret)
{
	return ring_derive(NULL, NULL, nodes, n, ret);
}

struct ring *ring_ref(struct ring *r)
{
	__atomic_fetch_add(&r->refs, 1, __ATOMIC_RELAXED);
	return r;
}

void ring_free(struct ring *r)
{
	if (!r || __atomic_sub_fetch(&r->refs, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	free(r->place);
	free(r->node);
	free(r->first);
	free(r);
}

/* --- looking --- */

size_t ring_points(const struct ring *r)
{
	return r->n_points;
}

size_t ring_start(const struct ring *r, uint64_t key_hash)
{
	size_t slot = key_hash >> r->shift, at = r->first[slot], end = r->first[slot + 1];

	while (at < end && r->place[at] < key_hash)
		at++;
	return at == r->n_points ? 0 : at;
}

uint32_t ring_step(const struct ring *r, size_t *io_at)
{
	uint32_t node = r->node[*io_at];

	if (++*io_at == r->n_points)
		*io_at = 0;
	return node;
}

static bool seen(const uint32_t *nodes, size_t n, uint32_t node)
{
	for (size_t i = 0; i < n; i++)
		if (nodes[i] == node)
			return true;
	return false;
}

size_t ring_find(const struct ring *r, uint64_t key_hash, uint32_t *ret_nodes, size_t max)
{
	size_t found = 0, at;

	if (r->n_points == 0)
		return 0;
	at = ring_start(r, key_hash);
	max = MIN(max, r->n_nodes);
	for (size_t i = 0; i < r->n_points && found < max; i++) {
		uint32_t node = ring_step(r, &at);

		if (!seen(ret_nodes, found, node))
			ret_nodes[found++] = node;
	}
	return found;
}
