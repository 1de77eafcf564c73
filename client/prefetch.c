/* SPDX-License-Identifier: Apache-2.0 */
/* Reading ahead: plans of readahead.c become requests that nobody waits for, whole blocks that the
 * chain's memory layer keeps. Any thread; waits for nothing: without memory, or with too much on
 * its way, a block is left out and the read that needs it asks for its range.
 *
 * The windows of all streams together fill at most half of the pool, else they would push each
 * other's blocks out before they are read. */
#include "client/rfile.h"

#include "common/clock.h"

enum { PREFETCHES_MAX = 512, PERIOD_US = 2000000 };

/* How many handles stream: the larger of this period and the one before. */
static unsigned streams_count(struct reader *r)
{
	uint64_t period = clock_us() / PERIOD_US + 1;
	unsigned n;

	mtx_lock(&r->lock);
	if (r->period != period) {
		r->streams_before = r->period + 1 == period ? r->streams : 0;
		r->streams = 0;
		r->period = period;
	}
	n = r->streams > r->streams_before ? r->streams : r->streams_before;
	mtx_unlock(&r->lock);
	return n ? n : 1;
}

static void stream_seen(struct reader *r, struct rhandle *h)
{
	mtx_lock(&r->lock);
	if (h->period != r->period) {
		h->period = r->period;
		r->streams++;
	}
	mtx_unlock(&r->lock);
}

void prefetch_plan(struct rhandle *h, uint64_t off, uint32_t len, struct ra_plan *ret)
{
	struct reader *r = h->f->r;
	uint64_t used = __atomic_load_n(&r->prefetching, __ATOMIC_RELAXED), length;
	uint64_t window = r->share / streams_count(r);

	mtx_lock(&h->f->lock);
	length = MAX(h->f->length, h->f->writer_length);
	mtx_unlock(&h->f->lock);
	mtx_lock(&h->lock);
	readahead_limit(&h->ra, MIN(r->conf.max_readahead, window));
	readahead_plan(&h->ra, off, len, length,
		       used < r->prefetch_max ? r->prefetch_max - used : 0, ret);
	mtx_unlock(&h->lock);
	if (!ret->random)
		stream_seen(r, h);
}

static void prefetch_done(struct block_req *req, int status, void *arg)
{
	struct reader *r = arg;

	if (status == -ENOBUFS)
		metric_add(r->refused, 1);
	__atomic_sub_fetch(&r->prefetching, req->len, __ATOMIC_RELAXED);
	__atomic_sub_fetch(&r->prefetches, 1, __ATOMIC_RELEASE);
	req_free(req);
}

int prefetch_whole(struct reader *r, const struct block_key *key)
{
	struct block_req *req;

	if (__atomic_load_n(&r->prefetches, __ATOMIC_RELAXED) >= PREFETCHES_MAX)
		return -ENOBUFS;
	req = req_new(r->conf.env, key, 0, key->size, REQ_PREFETCH, POOL_PREFETCH);
	if (!req)
		return -ENOMEM;
	__atomic_add_fetch(&r->prefetching, key->size, __ATOMIC_RELAXED);
	__atomic_add_fetch(&r->prefetches, 1, __ATOMIC_RELAXED);
	source_get(r->conf.chain, req, prefetch_done, r);
	return 0;
}

struct prefetch {
	struct reader *r;
	struct ra_range asked;
	struct hash128 volume; /* of the view that is being cut */
	uint64_t off;	       /* in the file, of the range that is being cut */
	uint64_t slice;	       /* the block before this one */
	uint32_t index;
};

static int prefetch_block(const struct block_range *b, void *arg)
{
	struct prefetch *p = arg;
	uint64_t at = p->off + b->out_off;
	struct block_key key;

	if (b->slice == 0 || (b->slice == p->slice && b->index == p->index))
		return 0;
	if (b->len == b->size && at >= p->asked.off && at + b->len <= p->asked.off + p->asked.len)
		return 0;
	p->slice = b->slice;
	p->index = b->index;
	block_key_init(&key, &p->volume, b->slice, b->index, b->size);
	return prefetch_whole(p->r, &key);
}

/* The list of the chunk that a stream enters next is fetched before its blocks are planned. */
static void hint_next(struct rfile *f, uint64_t end)
{
	uint64_t next = ((end - 1) >> CHUNK_BITS) + 1, length;

	mtx_lock(&f->lock);
	length = MAX(f->length, f->writer_length);
	mtx_unlock(&f->lock);
	if (next << CHUNK_BITS < length)
		view_unref(rfile_peek(f, (uint32_t)next));
}

void prefetch_range(struct rfile *f, const struct ra_range *range, const struct ra_range *asked)
{
	struct prefetch p = {.r = f->r, .asked = *asked, .off = range->off};
	uint64_t end = range->off + range->len;
	int r = 0;

	while (p.off < end && r == 0) {
		uint32_t pos = (uint32_t)(p.off & (CHUNK_SIZE - 1));
		uint32_t len = (uint32_t)MIN(end - p.off, (uint64_t)CHUNK_SIZE - pos);
		struct view *v = rfile_peek(f, (uint32_t)(p.off >> CHUNK_BITS));

		if (v)
			p.volume = v->volume;
		if (v)
			r = slice_view_ranges(&v->v, f->r->conf.env->block_size, pos, len,
					      prefetch_block, &p);
		view_unref(v);
		p.off += len;
	}
	if (range->len)
		hint_next(f, end);
}
