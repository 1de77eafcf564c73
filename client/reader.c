/* SPDX-License-Identifier: Apache-2.0 */
/* Reads: a file range becomes block ranges (rfile.c gives the views), those become requests to the
 * chain, their answers one vector. Runs in the caller's thread until it would have to wait, then in
 * whatever thread completes; nothing here waits.
 *
 * A read (struct rread) goes from step to step:
 *	rfile_views	gives the views of its chunks, at once or later
 *	rread_ready	cuts it into parts, plans ahead
 *	rread_issue	sends up to PARALLEL parts at a time
 *	rread_finish	completes it, or sends it back to the first step
 *
 * It goes back when an object is missing (the slices may have been compacted; not twice for the
 * same object) or the group
 * failed to answer (io_retries times, later and later). A read that needs more than one block
 * copies each answer out as it comes: it holds no memory of the pool while it waits for more. The
 * copy comes from malloc: at most one request of the kernel (1 MiB) a read, and as many of them as
 * it lets run at once (128 that nobody waits for, and one a task that reads). */
#include "client/reader.h"

#include "client/rfile.h"

#include "common/clock.h"
#include "common/log.h"

enum {
	PARALLEL = 32,
	IOV_MOST = 256,
	REREADS = 16,
	ZEROS = 1 << 20,
	SILENT_US = 1000000, /* a block that was given up is not asked for again sooner */
};

/* never written: untouched pages cost nothing */
static unsigned char zeros[ZEROS];

/* one block's part of a read; slice 0: zeros */
struct part {
	struct rread *rr;
	struct block_range range;
	uint32_t out_off;
	struct blob data;
	struct block_req *failed; /* with its reason */
	int status;
};

struct rread {
	struct read_op *op;
	struct reader *r;
	struct rfile *f;
	struct view_wait wait;
	struct hash128 volume; /* of the views */
	struct part *parts;
	size_t n, room, issued;
	unsigned requests;     /* parts that are not zeros */
	unsigned char *bounce; /* the answer, when it is put together */
	unsigned pending;      /* atomic: requests out, and one for whoever issues */
	unsigned failures;     /* atomic */
	unsigned tries;
	uint64_t deadline_us; /* of all tries together; 0: none */
	unsigned rereads;
	struct block_range missing; /* for which the list was read again */
	bool random, planned;
	struct loop_job job;
	struct loop_timer timer;
};

/* --- life --- */

int reader_new(const struct reader_conf *conf, struct reader **ret)
{
	struct reader *r = calloc(1, sizeof(*r));
	struct metrics *m = conf->metrics;
	struct pool_stat ps;

	if (!r)
		return -ENOMEM;
	if (hashmap_init(&r->files, 64) < 0) {
		free(r);
		return -ENOMEM;
	}
	r->conf = *conf;
	mtx_init(&r->lock);
	pool_stat(conf->env->pool, &ps);
	r->share = ps.budget / 2;
	r->prefetch_max = coding_is_plain(req_coding(conf->env)) ? ps.budget / 2 : ps.budget / 4;
	if (m) {
		r->refused = metrics_get(m, "stoke_prefetch_refused_total", "", METRIC_COUNTER,
					 "Blocks not read ahead for want of memory");
		r->retried = metrics_get(m, "stoke_read_retries_total", "", METRIC_COUNTER,
					 "Reads tried again");
		r->failed = metrics_get(m, "stoke_read_errors_total", "", METRIC_COUNTER,
					"Reads that failed");
		r->lists = metrics_get(m, "stoke_slice_lists_total", "", METRIC_COUNTER,
				       "Slice lists read");
	}
	*ret = r;
	return 0;
}

void reader_free(struct reader *r)
{
	if (!r)
		return;
	assert(r->files.count == 0);
	assert(__atomic_load_n(&r->prefetches, __ATOMIC_ACQUIRE) == 0);
	hashmap_fini(&r->files);
	mtx_fini(&r->lock);
	free(r);
}

void reader_volume_moved(struct reader *r)
{
	__atomic_add_fetch(&r->moved, 1, __ATOMIC_RELEASE);
}

int rhandle_new(struct rfile *f, struct rhandle **ret)
{
	struct rhandle *h = calloc(1, sizeof(*h));

	if (!h)
		return -ENOMEM;
	h->f = f;
	mtx_init(&h->lock);
	readahead_init(&h->ra, f->r->conf.env->block_size, f->r->conf.max_readahead);
	*ret = h;
	return 0;
}

void rhandle_free(struct rhandle *h)
{
	if (!h)
		return;
	mtx_fini(&h->lock);
	free(h);
}

/* --- the read --- */

static void rread_ready(struct view_wait *w, int status);

static void parts_free(struct rread *rr)
{
	for (size_t i = 0; i < rr->n; i++) {
		blob_fini(&rr->parts[i].data);
		if (rr->parts[i].failed)
			req_free(rr->parts[i].failed);
	}
	free(rr->parts);
	free(rr->bounce);
	rr->parts = NULL;
	rr->bounce = NULL;
	rr->n = rr->room = rr->issued = 0;
	rr->requests = rr->failures = 0;
}

static void rread_done(struct rread *rr, int status, const struct iovec *iov, int n, size_t total)
{
	if (status < 0)
		metric_add(rr->r->failed, 1);
	/* another client removed the file: no read(2) knows of names */
	if (status == -ENOENT)
		status = -ESTALE;
	rr->op->done(rr->op, status, iov, n, total);
	/* op, its handle and file may be gone */
	parts_free(rr);
	free(rr);
}

/* Few pieces go out as they lie; many are put together, which a reply's limit on vectors needs. */
static int rread_vector(struct rread *rr, struct iovec iov[IOV_MOST])
{
	int n = 0;

	if (rr->bounce) {
		iov[0] = (struct iovec){rr->bounce, rr->wait.clipped};
		return 1;
	}
	for (size_t i = 0; i < rr->n; i++) {
		struct part *p = &rr->parts[i];
		const unsigned char *mem = p->range.slice ? blob_mem(&p->data) : zeros;
		uint32_t left = p->range.len, step = p->range.slice ? left : ZEROS;

		for (; left; left -= MIN(left, step)) {
			if (n == IOV_MOST)
				return -E2BIG;
			iov[n].iov_len = MIN(left, step);
			memcpy(&iov[n++].iov_base, &mem, sizeof(mem));
		}
	}
	return n;
}

static void rread_success(struct rread *rr)
{
	struct iovec iov[IOV_MOST];
	int n = rread_vector(rr, iov);

	assert(n >= 0);
	rread_done(rr, 0, iov, n, rr->wait.clipped);
}

static void rread_again(struct rread *rr)
{
	metric_add(rr->r->retried, 1);
	parts_free(rr);
	rfile_views(rr->f, &rr->wait);
}

static void rread_timer(struct loop_timer *t)
{
	rread_again(container_of(t, struct rread, timer));
}

static void rread_later(struct loop_job *job)
{
	struct rread *rr = container_of(job, struct rread, job);
	uint64_t us = MIN(UINT64_C(10000) * rr->tries * rr->tries, UINT64_C(1000000));

	loop_timer_init(&rr->timer, rr->r->conf.env->timers, rread_timer);
	loop_timer_start(&rr->timer, us);
}

/* how bad: the object store's own verdict over what another try may heal */
static unsigned badness(int status)
{
	switch (status) {
	case 0:
		return 0;
	case -EBADMSG:
	case -ETIMEDOUT:
	case -EHOSTDOWN:
	case -EBUSY:
	case -ECONNREFUSED:
	case -ENOENT:
	case -ENOMEM:
	case -ENOBUFS:
		return 1;
	case -ENODATA:
		return 2;
	default:
		return 3;
	}
}

static void rread_log(struct rread *rr, const struct part *p)
{
	static struct log_rate rate;
	unsigned swallowed;

	if (p->status == -ECANCELED || !log_rate_ok(&rate, 1000000, &swallowed))
		return;
	log_error("read failed inode=%llu offset=%llu block=%llu_%u_%u: %s%s%s suppressed=%u",
		  (unsigned long long)rr->f->inode, (unsigned long long)(rr->op->off + p->out_off),
		  (unsigned long long)p->range.slice, p->range.index, p->range.size,
		  strerror(-p->status), p->failed && p->failed->reason[0] ? ": " : "",
		  p->failed ? p->failed->reason : "", swallowed);
}

/* The kernel asks again, page by page, for what it could not read ahead: without the whole time
 * being waited for once more. */
static void silent_note(struct rread *rr, const struct part *p)
{
	mtx_lock(&rr->f->lock);
	rr->f->silent = p->range;
	__atomic_store_n(&rr->f->silent_us, clock_us(), __ATOMIC_RELAXED);
	mtx_unlock(&rr->f->lock);
}

static bool is_silent(struct rread *rr, const struct part *p)
{
	struct rfile *f = rr->f;
	bool yes;

	if (!__atomic_load_n(&f->silent_us, __ATOMIC_RELAXED))
		return false;
	mtx_lock(&f->lock);
	yes = p->range.slice == f->silent.slice && p->range.index == f->silent.index &&
	      clock_us() - f->silent_us < SILENT_US;
	mtx_unlock(&f->lock);
	return yes;
}

static void rread_failed(struct rread *rr)
{
	struct part *worst = &rr->parts[0];

	for (size_t i = 1; i < rr->n; i++)
		if (badness(rr->parts[i].status) > badness(worst->status))
			worst = &rr->parts[i];
	/* the same block again: it is really gone, and no list was compacted meanwhile */
	if (worst->status == -ENODATA && rr->rereads < REREADS &&
	    (worst->range.slice != rr->missing.slice || worst->range.index != rr->missing.index)) {
		rr->rereads++;
		rr->missing = worst->range;
		rfile_invalidate(rr->f);
		rread_again(rr);
		return;
	}
	if (badness(worst->status) == 1 && rr->tries < rr->r->conf.io_retries &&
	    clock_left(rr->deadline_us) > 0) {
		rr->tries++;
		rr->job.fn = rread_later;
		loop_post(rr->r->conf.env->timers, &rr->job);
		return;
	}
	if (badness(worst->status) == 1 && clock_left(rr->deadline_us) == 0)
		silent_note(rr, worst);
	rread_log(rr, worst);
	rfile_invalidate(rr->f);
	rread_done(rr, -EIO, NULL, 0, 0);
}

static void rread_finish(struct rread *rr)
{
	if (__atomic_load_n(&rr->failures, __ATOMIC_ACQUIRE))
		rread_failed(rr);
	else
		rread_success(rr);
}

static void rread_issue(struct rread *rr);

/* A stream's range had to be fetched by itself: its block is neither in memory nor on its way,
 * because there was no room for it, or it was pushed out again. The ranges behind it shall find
 * it. */
static void part_missed(struct rread *rr, const struct block_req *req)
{
	if (rr->random || req->len == req->key.size || rr->r->conf.max_readahead < req->key.size)
		return;
	if (req->via == VIA_PEER || req->via == VIA_OBJECT)
		(void)prefetch_whole(rr->r, &req->key);
}

static void part_done(struct block_req *req, int status, void *arg)
{
	struct part *p = arg;
	struct rread *rr = p->rr;

	p->status = status;
	if (status == 0) {
		/* descriptors are read by the layer that got them: here is memory */
		assert(blob_mem(&req->data));
		if (rr->bounce) {
			memcpy(rr->bounce + p->out_off, blob_mem(&req->data), req->len);
		} else {
			p->data = req->data;
			req->data = (struct blob){0};
		}
		part_missed(rr, req);
		req_free(req);
	} else {
		p->failed = req;
		__atomic_add_fetch(&rr->failures, 1, __ATOMIC_RELAXED);
	}
	if (__atomic_sub_fetch(&rr->pending, 1, __ATOMIC_ACQ_REL) == 0)
		rread_issue(rr);
}

/* false: no memory */
static bool part_start(struct rread *rr, struct part *p)
{
	struct reader *r = rr->r;
	struct block_key key;
	struct block_req *req;

	block_key_init(&key, &rr->volume, p->range.slice, p->range.index, p->range.size);
	req = req_new(r->conf.env, &key, p->range.off, p->range.len,
		      rr->random ? REQ_RANGE_ONLY : 0, POOL_DEMAND);
	if (!req)
		return false;
	req->deadline_us = rr->deadline_us;
	__atomic_add_fetch(&rr->pending, 1, __ATOMIC_RELAXED);
	source_get(r->conf.chain, req, part_done, p);
	return true;
}

/* Sends the next parts; called at the start, and by the last one of the parts before to come
 * back. */
static void rread_issue(struct rread *rr)
{
	while (rr->issued < rr->n && !__atomic_load_n(&rr->failures, __ATOMIC_ACQUIRE)) {
		unsigned sent = 0;

		__atomic_store_n(&rr->pending, 1, __ATOMIC_RELAXED);
		while (rr->issued < rr->n && sent < PARALLEL) {
			struct part *p = &rr->parts[rr->issued++];

			if (p->range.slice == 0)
				continue;
			if (is_silent(rr, p)) {
				p->status = -EIO;
				__atomic_add_fetch(&rr->failures, 1, __ATOMIC_RELAXED);
				break;
			}
			if (!part_start(rr, p)) {
				p->status = -ENOMEM;
				__atomic_add_fetch(&rr->failures, 1, __ATOMIC_RELAXED);
				break;
			}
			sent++;
		}
		if (__atomic_sub_fetch(&rr->pending, 1, __ATOMIC_ACQ_REL) > 0)
			return;
	}
	rread_finish(rr);
}

struct cut {
	struct rread *rr;
	uint32_t base;
};

static int part_add(const struct block_range *b, void *arg)
{
	struct cut *cut = arg;
	struct rread *rr = cut->rr;

	if (rr->n == rr->room) {
		size_t room = rr->room ? rr->room * 2 : 4;
		struct part *p = realloc(rr->parts, room * sizeof(*p));

		if (!p)
			return -ENOMEM;
		rr->parts = p;
		rr->room = room;
	}
	rr->parts[rr->n++] =
		(struct part){.rr = rr, .range = *b, .out_off = cut->base + b->out_off};
	rr->requests += b->slice != 0;
	return 0;
}

/* views -> parts; the views are given back */
static int rread_cut(struct rread *rr)
{
	uint32_t block_size = rr->r->conf.env->block_size,
		 pos = (uint32_t)(rr->op->off & (CHUNK_SIZE - 1));
	uint32_t first = MIN(rr->wait.clipped, CHUNK_SIZE - pos);
	struct view **v = rr->wait.views;
	struct cut cut = {rr, 0};
	int r = 0;

	if (v[0])
		rr->volume = v[0]->volume;
	if (first)
		r = slice_view_ranges(&v[0]->v, block_size, pos, first, part_add, &cut);
	cut.base = first;
	if (r == 0 && rr->wait.clipped > first)
		r = slice_view_ranges(&v[1]->v, block_size, 0, rr->wait.clipped - first, part_add,
				      &cut);
	view_unref(v[0]);
	view_unref(v[1]);
	/* more than one request, or more pieces than a vector should have */
	if (r == 0 && (rr->requests > 1 || rr->n > IOV_MOST - DIV_UP(CHUNK_SIZE, ZEROS) - 1)) {
		rr->bounce = calloc(1, rr->wait.clipped);
		if (!rr->bounce)
			r = -ENOMEM;
	}
	return r;
}

static void rread_ready(struct view_wait *w, int status)
{
	struct rread *rr = container_of(w, struct rread, wait);
	struct rfile *f = rr->f;
	struct ra_range asked = {w->off, w->clipped};
	struct ra_plan plan = {0};

	if (status == 0)
		status = rread_cut(rr);
	if (status < 0 || w->clipped == 0) {
		rread_done(rr, status, NULL, 0, 0);
		return;
	}
	if (!rr->planned) {
		rr->planned = true;
		prefetch_plan(rr->op->h, rr->op->off, w->clipped, &plan);
		rr->random = plan.random;
		/* first the block whole, then the range, which joins it on its way, then what comes
		 * later */
		prefetch_range(f, &plan.now, &asked);
		if (plan.ahead.len)
			rfile_ref(f);
	}
	rread_issue(rr);
	/* the read may be over, and its handle closed */
	if (plan.ahead.len) {
		prefetch_range(f, &plan.ahead, &asked);
		rfile_put(f);
	}
}

void reader_read(struct read_op *op)
{
	struct rread *rr = calloc(1, sizeof(*rr));

	if (!rr) {
		op->done(op, -ENOMEM, NULL, 0, 0);
		return;
	}
	rr->op = op;
	rr->f = op->h->f;
	rr->r = rr->f->r;
	if (rr->r->conf.env->budget_us)
		rr->deadline_us = clock_us() + rr->r->conf.env->budget_us;
	rr->wait.off = op->off;
	rr->wait.len = MIN(op->len, (uint32_t)CHUNK_SIZE);
	rr->wait.ready = rread_ready;
	op->priv = rr;
	rfile_views(rr->f, &rr->wait);
}
