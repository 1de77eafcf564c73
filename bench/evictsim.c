/* SPDX-License-Identifier: Apache-2.0 */
/* Which policy keeps what training reads: traces of accesses to a cache of a fixed number of
 * blocks, and the hit ratio that each policy gets on them. The daemon's policy runs as it is
 * (cached/evict.h), in as many shards as the index has; FIFO, LRU, 2-random, SIEVE and S3-FIFO
 * are here for comparison, and OPT (Belady's, which knows the future and may keep a block out)
 * is the bound.
 *
 *	evictsim [BLOCKS [SEED]]
 *
 * Prints a table in Markdown: reads that hit in the measured part of each trace, and blocks
 * written to the cache per read of it, for the daemon's policy and for SIEVE. */
#include <stdio.h>

#include "cached/evict.h"
#include "common/base.h"
#include "common/parse.h"

enum { SHARDS = 16, WRITE = 1u << 31 };

static uint32_t cache_blocks = 32000;
static uint64_t rng = 1;

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ULL;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
	return x ^ x >> 31;
}

static uint64_t rnd(uint64_t below)
{
	return mix(rng++) % below;
}

static void *must(void *p)
{
	if (!p) {
		(void)fputs("evictsim: no memory\n", stderr);
		exit(1);
	}
	return p;
}

/* --- traces --- */

struct trace {
	uint32_t *op; /* block, or block | WRITE */
	size_t n, cap;
	size_t from, to; /* what is measured */
	uint32_t blocks; /* numbers below this */
};

static void add_op(struct trace *t, uint32_t op)
{
	if (t->n == t->cap) {
		t->cap = t->cap ? t->cap * 2 : 1 << 16;
		t->op = must(realloc(t->op, t->cap * sizeof(t->op[0])));
	}
	t->op[t->n++] = op;
	t->blocks = MAX(t->blocks, (op & ~WRITE) + 1);
}

static uint32_t *in_order(uint32_t n, uint32_t first)
{
	uint32_t *p = must(malloc(n * sizeof(*p)));

	for (uint32_t i = 0; i < n; i++)
		p[i] = first + i;
	return p;
}

static void shuffle(uint32_t *p, uint32_t n)
{
	for (uint32_t i = n; i > 1; i--) {
		uint32_t j = (uint32_t)rnd(i), x = p[i - 1];

		p[i - 1] = p[j];
		p[j] = x;
	}
}

static void epochs(struct trace *t, uint32_t first, uint32_t n, unsigned times, bool shuffled)
{
	uint32_t *p = in_order(n, first);

	for (unsigned e = 0; e < times; e++) {
		if (shuffled)
			shuffle(p, n);
		for (uint32_t i = 0; i < n; i++)
			add_op(t, p[i]);
	}
	free(p);
}

static uint32_t percent(unsigned p)
{
	return (uint32_t)((uint64_t)cache_blocks * p / 100);
}

/* epochs of a data set of p % of the cache; the first two warm up */
static void loop_trace(struct trace *t, unsigned p, bool shuffled)
{
	epochs(t, 0, percent(p), 2, shuffled);
	t->from = t->n;
	epochs(t, 0, percent(p), 6, shuffled);
	t->to = t->n;
}

/* A training job in shuffled epochs; a validation set of 5 % read whole ten times an epoch;
 * every fifth access a random read, uneven, out of another data set as large as the cache; two
 * checkpoints of 10 % written an epoch, which nobody reads. */
static void mixed_trace(struct trace *t, unsigned p)
{
	uint32_t n = percent(p), val = percent(5), other = percent(100), ck = percent(10);
	uint32_t first_val = n, first_other = n + val, next_ck = first_other + other;
	uint32_t *order = in_order(n, 0);

	for (unsigned e = 0; e < 8; e++) {
		if (e == 2)
			t->from = t->n;
		shuffle(order, n);
		for (uint32_t i = 0; i < n; i++) {
			add_op(t, order[i]);
			if (i % 4 == 0) {
				double u = (double)rnd(1 << 24) / (1 << 24);

				add_op(t, first_other + (uint32_t)(u * u * u * (other - 1)));
			}
			if (i % (n / 10) == 0)
				epochs(t, first_val, val, 1, false);
			if (i % (n / 2) == n / 4)
				for (uint32_t k = 0; k < ck; k++)
					add_op(t, next_ck++ | WRITE);
		}
	}
	t->to = t->n;
	free(order);
}

/* a job over a data set of a %, then another over one of b %: its epochs 2 to 4 are measured */
static void switch_trace(struct trace *t, unsigned a, unsigned b)
{
	epochs(t, 0, percent(a), 4, true);
	epochs(t, percent(a), percent(b), 1, true);
	t->from = t->n;
	epochs(t, percent(a), percent(b), 3, true);
	t->to = t->n;
}

/* a job over 80 %, beside whose third epoch somebody reads twice the cache once; epochs 3 to 5 of
 * the job, and the scan's own misses, are measured */
static void scan_trace(struct trace *t, bool beside)
{
	uint32_t n = percent(80), scan = percent(200), at = n;
	uint32_t *order = in_order(n, 0);

	epochs(t, 0, n, 2, true);
	t->from = t->n;
	if (!beside)
		for (uint32_t i = 0; i < scan / 4; i++)
			add_op(t, at++);
	for (unsigned e = 0; e < 3; e++) {
		shuffle(order, n);
		for (uint32_t i = 0; i < n; i++) {
			add_op(t, order[i]);
			for (unsigned k = 0; beside && e == 0 && k < scan / n; k++)
				add_op(t, at++);
		}
	}
	t->to = t->n;
	free(order);
}

/* popular blocks: cube of a uniform number, of ten times the cache */
static void uneven_trace(struct trace *t)
{
	uint32_t n = percent(1000);

	for (uint32_t i = 0; i < 12 * cache_blocks; i++) {
		double u = (double)rnd(1 << 24) / (1 << 24);

		if (i == 4 * cache_blocks)
			t->from = t->n;
		add_op(t, (uint32_t)(u * u * u * u * (n - 1)));
	}
	t->to = t->n;
}

/* --- policies for comparison --- */

struct plain {
	struct evict base;
	struct list_node queue, small;
	struct list_node *hand;
	size_t n_small;
	struct evict_node **slot; /* 2-random: all nodes, tag is the place */
	size_t cap;
	uint32_t now;
	uint32_t *ghost; /* S3-FIFO: ring of tags, and their set */
	size_t ghosts, at;
	uint8_t *is_ghost; /* by tag */
};

static struct plain *plain_of(struct evict *e)
{
	return container_of(e, struct plain, base);
}

static bool plain_admit(struct evict *e, uint32_t tag)
{
	(void)e;
	(void)tag;
	return true;
}

static void plain_add(struct evict *e, struct evict_node *n, enum evict_kind kind)
{
	(void)kind;
	list_add_head(&plain_of(e)->queue, &n->link);
}

static void plain_remove(struct evict *e, struct evict_node *n)
{
	struct plain *p = plain_of(e);

	if (p->hand == &n->link)
		p->hand = n->link.prev == &p->queue ? NULL : n->link.prev;
	list_del(&n->link);
}

static struct evict_node *last_of(struct list_node *q)
{
	return list_empty(q) ? NULL : container_of(q->prev, struct evict_node, link);
}

static struct evict_node *plain_victim(struct evict *e)
{
	return last_of(&plain_of(e)->queue);
}

static void plain_free(struct evict *e)
{
	struct plain *p = plain_of(e);

	free(p->slot);
	free(p->ghost);
	free(p->is_ghost);
	free(p);
}

static void fifo_hit(struct evict *e, struct evict_node *n)
{
	(void)e;
	(void)n;
}

static void lru_hit(struct evict *e, struct evict_node *n)
{
	list_del(&n->link);
	list_add_head(&plain_of(e)->queue, &n->link);
}

static void sieve_hit(struct evict *e, struct evict_node *n)
{
	(void)e;
	n->queue = 1;
}

static struct evict_node *sieve_victim(struct evict *e)
{
	struct plain *p = plain_of(e);
	struct evict_node *n;

	if (!e->count)
		return NULL;
	for (;;) {
		if (!p->hand)
			p->hand = p->queue.prev;
		n = container_of(p->hand, struct evict_node, link);
		if (!n->queue)
			return n;
		n->queue = 0;
		p->hand = p->hand->prev == &p->queue ? NULL : p->hand->prev;
	}
}

/* the one of two that was used longer ago */
static void random_add(struct evict *e, struct evict_node *n, enum evict_kind kind)
{
	struct plain *p = plain_of(e);

	(void)kind;
	if (e->count > p->cap) {
		p->cap = e->count * 2;
		p->slot = must(realloc(p->slot, p->cap * sizeof(struct evict_node *)));
	}
	n->tag = (uint32_t)e->count - 1;
	n->used = p->now++;
	p->slot[n->tag] = n;
}

static void random_hit(struct evict *e, struct evict_node *n)
{
	n->used = plain_of(e)->now++;
}

static void random_remove(struct evict *e, struct evict_node *n)
{
	struct plain *p = plain_of(e);

	p->slot[n->tag] = p->slot[e->count];
	p->slot[n->tag]->tag = n->tag;
}

static struct evict_node *random_victim(struct evict *e)
{
	struct plain *p = plain_of(e);
	struct evict_node *a, *b;

	if (!e->count)
		return NULL;
	a = p->slot[rnd(e->count)];
	b = p->slot[rnd(e->count)];
	return a->used < b->used ? a : b;
}

/* S3-FIFO (Yang et al., SOSP 2023): a tenth is the small queue; uses count to 3 in n->used */
static void s3_add(struct evict *e, struct evict_node *n, enum evict_kind kind)
{
	struct plain *p = plain_of(e);

	(void)kind;
	n->used = 0;
	n->queue = p->is_ghost[n->tag];
	p->is_ghost[n->tag] = 0;
	p->n_small += !n->queue;
	list_add_head(n->queue ? &p->queue : &p->small, &n->link);
}

static void s3_hit(struct evict *e, struct evict_node *n)
{
	(void)e;
	n->used = MIN(n->used + 1, 3u);
}

static void s3_remove(struct evict *e, struct evict_node *n)
{
	plain_of(e)->n_small -= !n->queue;
	list_del(&n->link);
}

static void s3_ghost(struct plain *p, uint32_t tag)
{
	if (p->ghosts < p->base.count) {
		p->ghosts = p->base.count;
		p->ghost = must(realloc(p->ghost, p->ghosts * sizeof(p->ghost[0])));
		for (size_t i = p->at; i < p->ghosts; i++)
			p->ghost[i] = UINT32_MAX;
	}
	p->at %= p->ghosts;
	if (p->ghost[p->at] != UINT32_MAX)
		p->is_ghost[p->ghost[p->at]] = 0;
	p->ghost[p->at++] = tag;
	p->is_ghost[tag] = 1;
}

static struct evict_node *s3_victim(struct evict *e)
{
	struct plain *p = plain_of(e);
	struct evict_node *n;

	if (!e->count)
		return NULL;
	for (;;) {
		bool small = p->n_small * 10 >= e->count || list_empty(&p->queue);

		n = last_of(small ? &p->small : &p->queue);
		assert(n); /* one of the queues has some */
		if (small && n->used <= 1) {
			s3_ghost(p, n->tag);
			return n;
		}
		if (!small && !n->used)
			return n;
		list_del(&n->link);
		list_add_head(&p->queue, &n->link);
		p->n_small -= small;
		n->used = small ? 0 : n->used - 1;
		n->queue = 1;
	}
}

static const struct evict_ops plain_ops[] = {
	{"FIFO", plain_admit, plain_add, fifo_hit, plain_remove, plain_victim, plain_free, NULL},
	{"LRU", plain_admit, plain_add, lru_hit, plain_remove, plain_victim, plain_free, NULL},
	{"2-random", plain_admit, random_add, random_hit, random_remove, random_victim, plain_free,
	 NULL},
	{"SIEVE", plain_admit, plain_add, sieve_hit, plain_remove, sieve_victim, plain_free, NULL},
	{"S3-FIFO", plain_admit, s3_add, s3_hit, s3_remove, s3_victim, plain_free, NULL},
};
enum { PLAIN = ARRAY_LEN(plain_ops), SIEVE_AT = 3 };

static struct evict *policy_new(unsigned which, uint32_t blocks)
{
	struct plain *p;

	if (which == PLAIN)
		return must(evict_loop_new());
	p = must(calloc(1, sizeof(*p)));
	p->base.ops = &plain_ops[which];
	list_init(&p->queue);
	list_init(&p->small);
	p->is_ghost = must(calloc(blocks, 1));
	return &p->base;
}

/* --- runs --- */

struct result {
	uint64_t reads, hits, written;
};

struct cache {
	struct evict *shard[SHARDS];
	struct evict_node *node; /* by block */
	uint8_t *in;
	uint32_t count, turn;
};

static struct evict *shard_of(struct cache *c, uint32_t block)
{
	return c->shard[mix(block) >> 60];
}

static void make_room(struct cache *c)
{
	struct evict_node *n = NULL;

	for (unsigned i = 0; i < SHARDS && !n; i++)
		n = evict_victim(c->shard[c->turn++ % SHARDS]);
	c->in[n - c->node] = 0;
	c->count--;
}

/* one access; true: it was there */
static bool use(struct cache *c, uint32_t block, bool write, unsigned which, uint64_t *written)
{
	/* the bits that choose the shard are not those of the tag; the others want a block's
	 * number */
	uint64_t digest = which == PLAIN ? mix(block) : block;
	struct evict *e = shard_of(c, block);

	if (c->in[block]) {
		evict_hit(e, &c->node[block]);
		return true;
	}
	if (!write && !evict_admit(e, digest))
		return false;
	if (c->count == cache_blocks)
		make_room(c);
	evict_add(e, &c->node[block], digest, write ? EVICT_WRITE : EVICT_READ);
	c->in[block] = 1;
	c->count++;
	++*written;
	return false;
}

static struct result run(const struct trace *t, unsigned which)
{
	struct result r = {0};
	struct cache c = {.node = must(calloc(t->blocks, sizeof(c.node[0]))),
			  .in = must(calloc(t->blocks, 1))};

	for (unsigned i = 0; i < SHARDS; i++)
		c.shard[i] = policy_new(which, t->blocks);
	for (size_t i = 0; i < t->to; i++) {
		bool write = t->op[i] & WRITE;
		uint64_t written = 0;
		bool hit = use(&c, t->op[i] & ~WRITE, write, which, &written);

		if (i < t->from)
			continue;
		r.reads += !write;
		r.hits += !write && hit;
		r.written += written;
	}
	for (unsigned i = 0; i < SHARDS; i++)
		evict_free(c.shard[i]);
	free(c.node);
	free(c.in);
	return r;
}

/* --- the bound --- */

struct heap {
	uint64_t
		*item; /* next use << 32 | block, largest first; old ones stay until they surface */
	size_t n, cap;
};

static void heap_push(struct heap *h, uint64_t v)
{
	size_t i = h->n++;

	if (h->n > h->cap) {
		h->cap = h->n * 2;
		h->item = must(realloc(h->item, h->cap * sizeof(h->item[0])));
	}
	for (; i && h->item[(i - 1) / 2] < v; i = (i - 1) / 2)
		h->item[i] = h->item[(i - 1) / 2];
	h->item[i] = v;
}

static void heap_pop(struct heap *h)
{
	uint64_t v = h->item[--h->n];
	size_t i = 0, k;

	while ((k = 2 * i + 1) < h->n) {
		if (k + 1 < h->n && h->item[k + 1] > h->item[k])
			k++;
		if (h->item[k] <= v)
			break;
		h->item[i] = h->item[k];
		i = k;
	}
	h->item[i] = v;
}

static double run_opt(const struct trace *t)
{
	uint32_t *next = must(malloc(t->to * sizeof(*next)));
	uint32_t *seen = must(malloc(t->blocks * sizeof(*seen)));
	uint32_t *in = must(calloc(t->blocks, sizeof(*in))); /* its next use, 0: not inside */
	uint64_t reads = 0, hits = 0;
	uint32_t count = 0;
	struct heap h = {0};

	memset(seen, 0xff, t->blocks * sizeof(*seen));
	for (size_t i = t->to; i-- > 0;) {
		uint32_t b = t->op[i] & ~WRITE;

		next[i] = seen[b];
		if (t->op[i] & WRITE)
			next[i] = UINT32_MAX; /* never read: left out */
		seen[b] = (uint32_t)i;
	}
	for (size_t i = 0; i < t->to; i++) {
		uint32_t b = t->op[i] & ~WRITE;
		bool read = !(t->op[i] & WRITE);

		if (i >= t->from) {
			reads += read;
			hits += read && in[b];
		}
		count += !in[b];
		in[b] = next[i];
		heap_push(&h, (uint64_t)next[i] << 32 | b);
		while (count > cache_blocks) {
			uint32_t far = (uint32_t)h.item[0];

			if (in[far] == h.item[0] >> 32) {
				in[far] = 0;
				count--;
			}
			heap_pop(&h);
		}
	}
	free(next);
	free(seen);
	free(in);
	free(h.item);
	return reads ? (double)hits / (double)reads : 0;
}

static void row(const char *what, struct trace *t)
{
	struct result r[PLAIN + 1];

	(void)printf("| %s |", what);
	for (unsigned i = 0; i <= PLAIN; i++) {
		r[i] = run(t, i);
		(void)printf(i == PLAIN ? " **%.1f** |" : " %.1f |",
			     100.0 * (double)r[i].hits / (double)r[i].reads);
	}
	(void)printf(" %.1f | %.2f | %.2f |\n", 100 * run_opt(t),
		     (double)r[SIEVE_AT].written / (double)r[SIEVE_AT].reads,
		     (double)r[PLAIN].written / (double)r[PLAIN].reads);
	(void)fflush(stdout);
	free(t->op);
	*t = (struct trace){0};
}

int main(int argc, char **argv)
{
	static const unsigned sizes[] = {50, 75, 90, 100, 110, 125, 150, 300};
	struct trace t = {0};
	char what[64];
	uint64_t n;

	if ((argc > 1 && (parse_u64(argv[1], 10000000, &n) < 0 || n < 1000)) ||
	    (argc > 2 && parse_u64(argv[2], UINT64_MAX, &rng) < 0)) {
		(void)fputs("usage: evictsim [BLOCKS [SEED]]\n", stderr);
		return 2;
	}
	if (argc > 1)
		cache_blocks = (uint32_t)n;
	(void)printf("| hits, %% of reads |");
	for (unsigned i = 0; i < PLAIN; i++)
		(void)printf(" %s |", plain_ops[i].name);
	(void)printf(" ours | OPT | written/read: SIEVE | ours |\n|---|");
	for (unsigned i = 0; i < PLAIN + 4; i++)
		(void)printf("---|");
	(void)printf("\n");
	for (unsigned i = 0; i < ARRAY_LEN(sizes); i++) {
		loop_trace(&t, sizes[i], true);
		(void)snprintf(what, sizeof(what), "shuffled epochs of %u %%", sizes[i]);
		row(what, &t);
	}
	loop_trace(&t, 110, false);
	row("the same order each epoch, 110 %", &t);
	loop_trace(&t, 150, false);
	row("the same order each epoch, 150 %", &t);
	mixed_trace(&t, 50);
	row("mixed jobs, training on 50 %", &t);
	mixed_trace(&t, 80);
	row("mixed jobs, training on 80 %", &t);
	mixed_trace(&t, 120);
	row("mixed jobs, training on 120 %", &t);
	switch_trace(&t, 80, 80);
	row("another data set: 80 % after 80 %", &t);
	switch_trace(&t, 150, 90);
	row("another data set: 90 % after 150 %", &t);
	switch_trace(&t, 90, 150);
	row("another data set: 150 % after 90 %", &t);
	switch_trace(&t, 100, 30);
	row("another data set: 30 % after 100 %", &t);
	scan_trace(&t, true);
	row("a scan of 200 % beside training on 80 %", &t);
	scan_trace(&t, false);
	row("a scan of 50 % between epochs of 80 %", &t);
	uneven_trace(&t);
	row("uneven random reads of 1000 %", &t);
	return 0;
}
