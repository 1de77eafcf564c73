/* SPDX-License-Identifier: Apache-2.0 */
/* Consistent hashing over sorted points. Pure; immutable after ring_new: readers need no lock. */
#include "common/ring.h"

#include "common/hash.h"

enum { RING_NODES_MAX = 10000, RING_POINTS_MAX = 4000000 };

struct point {
	uint64_t place;
	uint32_t node;
};

struct ring {
	size_t n_points, n_nodes;
	struct point *points;
};

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

/* Equal places (they happen once in 2^64 / points) are ordered by node id, so that the order of the
 * input does not matter. */
static int point_cmp(const void *a, const void *b, void *arg)
{
	const struct point *x = a, *y = b;
	const struct ring_node *nodes = arg;

	if (x->place != y->place)
		return x->place < y->place ? -1 : 1;
	return strcmp(nodes[x->node].id, nodes[y->node].id);
}

int ring_new(const struct ring_node *nodes, size_t n, struct ring **ret)
{
	double scale;
	size_t total = 0, k = 0;
	struct ring *r;

	if (n > RING_NODES_MAX)
		return -EINVAL;
	scale = scale_of(nodes, n);
	for (size_t i = 0; i < n; i++)
		total += points_of(nodes[i].weight, scale);
	r = calloc(1, sizeof(*r));
	if (!r)
		return -ENOMEM;
	r->points = calloc(total ? total : 1, sizeof(*r->points));
	if (!r->points) {
		free(r);
		return -ENOMEM;
	}
	for (size_t i = 0; i < n; i++) {
		uint32_t points = points_of(nodes[i].weight, scale);
		size_t len = strlen(nodes[i].id);

		if (points)
			r->n_nodes++;
		for (uint32_t j = 0; j < points; j++)
			r->points[k++] =
				(struct point){point_place(nodes[i].id, len, j), (uint32_t)i};
	}
	r->n_points = total;
	qsort_r(r->points, total, sizeof(*r->points), point_cmp, (void *)(uintptr_t)nodes);
	*ret = r;
	return 0;
}

void ring_free(struct ring *r)
{
	if (!r)
		return;
	free(r->points);
	free(r);
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
	size_t lo = 0, hi = r->n_points, found = 0;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (r->points[mid].place < key_hash)
			lo = mid + 1;
		else
			hi = mid;
	}
	max = MIN(max, r->n_nodes);
	for (size_t i = 0; i < r->n_points && found < max; i++) {
		uint32_t node = r->points[(lo + i) % r->n_points].node;

		if (!seen(ret_nodes, found, node))
			ret_nodes[found++] = node;
	}
	return found;
}
