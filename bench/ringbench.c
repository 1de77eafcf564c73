/* SPDX-License-Identifier: Apache-2.0 */
/* What a large group costs: ringbench [MEMBERS]. Prints how even the arcs are, a look-up, a change
 * of the members and the memory of two snapshots (the one in force and its successor). */
#include <malloc.h>
#include <stdio.h>
#include <time.h>

#include "common/block/cluster.h"
#include "common/hash.h"

enum { LOOKUPS = 2000000, CHANGES = 20, SAMPLES = 20000000 };

/* CPU time: nothing here waits, and other programs shall not be measured */
static uint64_t cpu_us(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static int by_value(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

static struct member member(unsigned i)
{
	struct member m = {.port = 7000, .weight = 100, .state = MEMBER_ACTIVE};
	uint64_t h = hash64(&i, sizeof(i));

	(void)snprintf(m.id, sizeof(m.id), "%016llx%016llx", (unsigned long long)h,
		       (unsigned long long)~h);
	(void)snprintf(m.addr, sizeof(m.addr), "10.%u.%u.%u", i >> 16, i >> 8 & 255, i & 255);
	return m;
}

static struct block_key key(uint64_t i)
{
	return (struct block_key){.slice = i, .size = 4 << 20, .digest = hash64(&i, sizeof(i))};
}

/* the arcs themselves, not a sample: the ring is walked by its points */
static void arcs(const struct cluster *c, unsigned n)
{
	double *part = calloc(n, sizeof(*part)), lo = 1e9, hi = 0;

	for (uint64_t i = 0; part && i < SAMPLES; i++) {
		size_t at = ring_start(c->ring, i * (UINT64_MAX / SAMPLES));

		part[ring_step(c->ring, &at)] += 1.0 * n / SAMPLES;
	}
	for (unsigned i = 0; part && i < n; i++) {
		lo = part[i] < lo ? part[i] : lo;
		hi = part[i] > hi ? part[i] : hi;
	}
	printf("arcs: %.1f %% … %.1f %% of fair\n", 100 * lo, 100 * hi);
	free(part);
}

static void lookups(const struct cluster *c, const char *what)
{
	uint64_t t = cpu_us();
	uint32_t m[2], sum = 0;

	for (uint64_t i = 0; i < LOOKUPS; i++) {
		struct block_key k = key(i);

		sum += (uint32_t)cluster_find(c, &k, m, 2) + m[0];
	}
	printf("look-up of owner and successor, %s: %.0f ns (%u)\n", what,
	       (double)(cpu_us() - t) * 1e3 / LOOKUPS, sum & 1);
}

int main(int argc, char **argv)
{
	unsigned n = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 1000;
	struct member *m = calloc(n + 2, sizeof(*m));
	struct cluster *c, *next;
	size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
	uint64_t t, us[CHANGES];

	if (!m || n < 2 || n > CLUSTER_MEMBERS_MAX - 1)
		return 1;
	for (unsigned i = 0; i <= n; i++)
		m[i] = member(i);
	t = cpu_us();
	c = cluster_new(1, m, n);
	if (!c)
		return 1;
	printf("%u members, from nothing: %.1f ms\n", n, (double)(cpu_us() - t) / 1e3);
	arcs(c, n);
	lookups(c, "all active");
	for (unsigned i = 0; i < CHANGES; i++) { /* one more, one less, in turn */
		t = cpu_us();
		next = cluster_next(c, c->version + 1, m, n + !(i & 1));
		if (!next)
			return 1;
		us[i] = cpu_us() - t;
		if (i == 0)
			printf("memory of two snapshots: %.1f MiB\n",
			       (double)(mallinfo2().uordblks + mallinfo2().hblkhd - before) /
				       (1 << 20));
		cluster_unref(c);
		c = next;
	}
	qsort(us, CHANGES, sizeof(us[0]), by_value);
	printf("a member comes or goes, median of %d: %.1f ms, worst: %.1f ms\n", CHANGES,
	       (double)us[CHANGES / 2] / 1e3, (double)us[CHANGES - 1] / 1e3);
	for (unsigned i = 0; i < n; i++)
		m[i].state = i % 2 ? MEMBER_JOINING : MEMBER_ACTIVE;
	t = cpu_us();
	next = cluster_next(c, c->version + 1, m, n);
	if (!next)
		return 1;
	printf("states change: %.2f ms\n", (double)(cpu_us() - t) / 1e3);
	lookups(next, "half of them joining");
	cluster_unref(next);
	cluster_unref(c);
	free(m);
	return 0;
}
