/* SPDX-License-Identifier: Apache-2.0 */
/* Compaction: a list that is too long becomes a short one that shows the same bytes. What is to be
 * written is written first (meta_compact_fn), then one script puts the new records in the place of
 * those that were read, if they are still there; then what nobody refers to any more is deleted, or
 * waits in the trash.
 *
 * Threads: THREADS of the compactor's own; whoever asks for it explicitly; and a writer whose list
 * became far too long, since somebody must pay. One at a time a chunk; what does not fit into the
 * queue is left to the next write or read.
 *
 *	state of a chunk	what makes it
 *	free			compact_end
 *	taken			compact_begin: by a thread at work, or a job in the queue
 *	futile			its list did not become shorter: left alone until it has half as
 *				many records more */
#include "client/meta/meta_redis.h"

#include <inttypes.h>

#include "client/meta/compact_plan.h"
#include "common/hash.h"
#include "common/log.h"

enum {
	THREADS = 4,
	TAKEN_MAX = 128,
	FUTILE = 1024,
	READ_RECORDS = 5,
	WRITE_EVERY = 100,
	WRITE_ALWAYS = 350,
	WRITE_NOW = 2500,
	ROUNDS = 100, /* of an explicit compaction: each looks at COMPACT_RECORDS */
};

struct chunk_id {
	uint64_t inode;
	uint32_t index;
};

struct compactor {
	struct workq *q;
	struct mtx lock;
	struct cond freed;
	struct chunk_id taken[TAKEN_MAX];
	unsigned n_taken;
	bool stopping;
	struct {
		struct chunk_id c;
		uint64_t records;
	} futile[FUTILE];
};

struct compact_queued {
	struct workq_job job;
	struct meta_redis *mr;
	struct chunk_id c;
};

int compactor_start(struct meta_redis *mr)
{
	struct compactor *p;
	int r;

	if (!mr->base.compact_fn)
		return 0;
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	r = workq_new("meta-compact", THREADS, TAKEN_MAX, &p->q);
	if (r) {
		free(p);
		return r;
	}
	mtx_init(&p->lock);
	cond_init(&p->freed);
	mr->compactor = p;
	return 0;
}

void compactor_stop(struct meta_redis *mr)
{
	struct compactor *p = mr->compactor;

	if (!p)
		return;
	mtx_lock(&p->lock);
	p->stopping = true;
	cond_broadcast(&p->freed);
	while (p->n_taken) /* those that wait in the queue end at once */
		cond_wait(&p->freed, &p->lock);
	mtx_unlock(&p->lock);
	workq_free(TAKE_PTR(p->q));
}

void compactor_free(struct meta_redis *mr)
{
	struct compactor *p = mr->compactor;

	if (!p)
		return;
	assert(!p->q && p->n_taken == 0);
	cond_fini(&p->freed);
	mtx_fini(&p->lock);
	free(p);
}

static bool same_chunk(const struct chunk_id *a, const struct chunk_id *b)
{
	return a->inode == b->inode && a->index == b->index;
}

static bool is_taken_locked(const struct compactor *p, const struct chunk_id *c) REQUIRES(p->lock)
{
	for (unsigned i = 0; i < p->n_taken; i++) {
		if (same_chunk(&p->taken[i], c))
			return true;
	}
	return false;
}

/* wait: until it is free; false: not now */
static bool compact_begin(struct compactor *p, const struct chunk_id *c, bool wait)
{
	bool ok;

	mtx_lock(&p->lock);
	while (wait && !p->stopping && (is_taken_locked(p, c) || p->n_taken == TAKEN_MAX))
		cond_wait(&p->freed, &p->lock);
	ok = !p->stopping && !is_taken_locked(p, c) && p->n_taken < TAKEN_MAX;
	if (ok)
		p->taken[p->n_taken++] = *c;
	mtx_unlock(&p->lock);
	return ok;
}

static void compact_end(struct compactor *p, const struct chunk_id *c)
{
	mtx_lock(&p->lock);
	for (unsigned i = 0; i < p->n_taken; i++) {
		if (same_chunk(&p->taken[i], c)) {
			p->taken[i] = p->taken[--p->n_taken];
			break;
		}
	}
	cond_broadcast(&p->freed);
	mtx_unlock(&p->lock);
}

static unsigned futile_slot(const struct chunk_id *c)
{
	const uint64_t v[2] = {c->inode, c->index};

	return (unsigned)(hash64(v, sizeof(v)) % FUTILE);
}

static void futile_set(struct compactor *p, const struct chunk_id *c, uint64_t records)
{
	unsigned i = futile_slot(c);

	mtx_lock(&p->lock);
	p->futile[i].c = *c;
	p->futile[i].records = records;
	mtx_unlock(&p->lock);
}

static bool is_futile(struct compactor *p, const struct chunk_id *c, uint64_t records)
{
	unsigned i = futile_slot(c);
	bool is;

	mtx_lock(&p->lock);
	is = same_chunk(&p->futile[i].c, c) && records >= p->futile[i].records &&
	     records <= p->futile[i].records + p->futile[i].records / 2;
	mtx_unlock(&p->lock);
	return is;
}

/* --- one round --- */

struct round {
	struct chunk_id c;
	struct chunk_list list;
	struct compact_plan plan;
	size_t written;	 /* runs [0, written) have what they need */
	uint64_t number; /* the first new slice's */
	struct hash128 volume;
};

static void round_drop(struct meta_redis *mr, struct round *r)
{
	for (size_t i = 0; i < r->written; i++) {
		const struct compact_run *run = &r->plan.runs[i];

		/* what fails here no record knows: gc finds it */
		if (run->rewrite && run->record.id && mr->base.delete_fn)
			(void)mr->base.delete_fn(mr->base.delete_arg, run->record.id,
						 run->record.size);
	}
}

static int round_write(struct meta_redis *mr, struct round *r)
{
	int err = redis_new_slice(&mr->base, &r->number, &r->volume);

	for (size_t i = 0; i < r->plan.n_runs && !err; i++) {
		struct compact_run *run = &r->plan.runs[i];
		struct compact_job job = {.pieces = r->plan.view.pieces + run->first,
					  .n = run->n,
					  .size = run->record.len,
					  .tier = r->list.attr.tier};

		r->written = i + 1;
		if (!run->rewrite)
			continue;
		err = redis_new_slice(&mr->base, &job.id, &job.volume);
		if (!err && !hash128_eq(&job.volume, &r->volume))
			err = -ESTALE;
		if (err)
			break;
		run->record.id = job.id;
		err = mr->base.compact_fn(mr->base.compact_arg, &job);
	}
	if (err && err != -ESTALE)
		round_drop(mr, r);
	return err;
}

/* -EBUSY: the list is another one by now */
static int round_commit(struct meta_redis *mr, struct round *r, struct redis_reply **ret)
{
	size_t n = r->plan.records, runs = r->plan.n_runs, kept = 0;
	uint8_t *seen = calloc(n + runs + 1, SLICE_LEN), *new = seen + n *SLICE_LEN;
	struct slice newest = {.id = r->number};
	struct args args;
	struct mark k;
	int err = seen ? 0 : -ENOMEM;

	for (size_t i = 0; i < n && !err; i++)
		slice_encode(&r->list.slices[i], seen + i * SLICE_LEN);
	for (size_t i = 0; i < runs && !err; i++) {
		slice_encode(&r->plan.runs[i].record, new + kept++ *SLICE_LEN);
		if (r->plan.runs[i].rewrite)
			newest.id = MAX(newest.id, r->plan.runs[i].record.id);
	}
	if (!err)
		err = slice_mark(mr, &newest, &k);
	if (!err) {
		args_init(&args, mr);
		op_begin(mr, &args);
		args_u64(&args, r->c.inode);
		args_u64(&args, r->c.index);
		args_bytes(&args, seen, n * SLICE_LEN);
		args_u64(&args, r->plan.skipped);
		args_bytes(&args, new, kept * SLICE_LEN);
		args_u64(&args, r->number);
		args_text(&args, meta_setting(&mr->base)->trash_days ? "1" : "0");
		err = op_eval_once(mr, SC_COMPACT, &args, data_deadline(mr), &k, ret);
		op_end(mr, &args);
		if (err == -ESTALE)
			(void)generation_check(mr, &k, op_deadline(mr));
	}
	free(seen);
	if (!err && !reply_is(reply_at(*ret, 0), "done"))
		err = -EBUSY;
	/* After anything else nobody knows whether it happened, or (-ESTALE) whose the numbers are:
	 * the objects stay, for gc */
	if (err == -EBUSY || err == -ENOMEM)
		round_drop(mr, r);
	return err;
}

static void round_free_old(struct meta_redis *mr, const struct redis_reply *reply,
			   uint64_t *ret_freed)
{
	for (size_t i = 1; i + 1 < reply_len(reply); i += 2) {
		int64_t id = reply_int(reply_at(reply, i));
		int64_t size = reply_int(reply_at(reply, i + 1));

		*ret_freed += size > 0 ? (uint64_t)size : 0;
		/* what is not deleted now stays below zero, for the hourly job */
		if (id > 0 && size > 0 && mr->base.delete_fn && mr->base.conf.max_deletes)
			(void)slice_delete(mr, (uint64_t)id, (uint32_t)size);
	}
}

/* -EALREADY: there is nothing to gain (any more) */
static int compact_round(struct meta_redis *mr, const struct chunk_id *c, uint64_t *ret_freed)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct round r = {.c = *c};
	int err = lists_read(mr, c->inode, c->index, 1, data_deadline(mr), &r.list);

	if (err)
		return err;
	err = compact_plan_make(r.list.slices, r.list.n, &r.plan);
	if (err == -EALREADY && mr->compactor)
		futile_set(mr->compactor, c, r.list.n);
	if (!err)
		err = round_write(mr, &r);
	if (!err)
		err = round_commit(mr, &r, &reply);
	if (!err)
		round_free_old(mr, reply, ret_freed);
	compact_plan_fini(&r.plan);
	chunk_list_fini(&r.list);
	return err;
}

/* --- who asks --- */

static void compact_log(const struct chunk_id *c, int r)
{
	static struct log_rate rate;
	unsigned quiet;

	if (r && r != -EALREADY && r != -EBUSY && r != -ENOENT && r != -ECANCELED &&
	    log_rate_ok(&rate, 10 * 1000000, &quiet))
		log_warn("chunk %" PRIu32 " of inode %" PRIu64 " not compacted: %s", c->index,
			 c->inode, strerror(-r));
}

static void compact_run_queued(struct workq_job *job)
{
	struct compact_queued *d = container_of(job, struct compact_queued, job);
	struct compactor *p = d->mr->compactor;
	uint64_t freed = 0;
	bool stop;

	mtx_lock(&p->lock);
	stop = p->stopping;
	mtx_unlock(&p->lock);
	if (!stop)
		compact_log(&d->c, compact_round(d->mr, &d->c, &freed));
	compact_end(p, &d->c);
	free(d);
}

static void compact_soon(struct meta_redis *mr, const struct chunk_id *c)
{
	struct compactor *p = mr->compactor;
	struct compact_queued *d;

	if (!compact_begin(p, c, false))
		return;
	d = calloc(1, sizeof(*d));
	if (d) {
		*d = (struct compact_queued){.job.fn = compact_run_queued, .mr = mr, .c = *c};
		if (workq_push(p->q, &d->job) == 0)
			return;
	}
	free(d);
	compact_end(p, c);
}

void compact_written(struct meta_redis *mr, uint64_t inode, uint32_t index, uint64_t records)
{
	const struct chunk_id c = {inode, index};
	uint64_t freed = 0;

	if (!mr->compactor ||
	    (records % WRITE_EVERY != WRITE_EVERY - 1 && records <= WRITE_ALWAYS) ||
	    is_futile(mr->compactor, &c, records))
		return;
	if (records < WRITE_NOW) {
		compact_soon(mr, &c);
	} else if (compact_begin(mr->compactor, &c, true)) {
		compact_log(&c, compact_round(mr, &c, &freed));
		compact_end(mr->compactor, &c);
	}
}

void compact_read(struct meta_redis *mr, uint64_t inode, const struct chunk_list *l)
{
	const struct chunk_id c = {inode, l->index};
	struct slice_view v;
	bool many = l->n >= READ_RECORDS;

	/* n records show at most 2n - 1 pieces of data */
	if (!mr->compactor || l->n < (READ_RECORDS + 1) / 2 || is_futile(mr->compactor, &c, l->n))
		return;
	if (!many && slice_view_build(l->slices, l->n, &v) == 0) {
		many = compact_pieces(&v) >= READ_RECORDS;
		slice_view_fini(&v);
	}
	if (many)
		compact_soon(mr, &c);
}

int redis_compact(struct meta *m, uint64_t inode, uint32_t index, uint64_t *ret_freed)
{
	struct meta_redis *mr = redis_engine(m);
	const struct chunk_id c = {inode, index};
	uint64_t freed = 0;
	int r = 0;

	if (!mr->compactor)
		return -EOPNOTSUPP;
	if (!compact_begin(mr->compactor, &c, true))
		return -ECANCELED;
	for (int i = 0; i < ROUNDS && !r; i++) {
		r = compact_round(mr, &c, &freed);
		if (r == -EBUSY) /* somebody else was faster: look again */
			r = 0;
	}
	compact_end(mr->compactor, &c);
	if (r && r != -EALREADY)
		return r;
	*ret_freed = freed;
	return 0;
}
