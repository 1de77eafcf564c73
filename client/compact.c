/* SPDX-License-Identifier: Apache-2.0 */
/* A slice out of pieces of others, block by block: the block's parts are fetched, some at a time,
 * into memory of its own; then they move into a buffer of the pool and go to the object store.
 * Threads of the metadata engine, which wait here. */
#include "client/compact.h"

#include "client/meta/slice.h"
#include "common/log.h"
#include "common/mtx.h"

enum { PARALLEL = 16, UPLOADS = 8 };

int client_compact_init(struct client_compact *c, struct req_env *env, struct source *chain)
{
	*c = (struct client_compact){.env = env, .chain = chain};
	return uploads_new(env, chain, UPLOADS, &c->uploads);
}

void client_compact_fini(struct client_compact *c)
{
	uploads_free(TAKE_PTR(c->uploads));
}

/* one block on its way; under lock: running and what follows */
struct gather {
	struct client_compact *c;
	const struct compact_job *job;
	unsigned char *mem;
	struct mtx lock;
	struct cond moved;
	unsigned running;
	int status;
	char reason[REQ_REASON];
};

struct part {
	struct gather *g;
	uint32_t out_off;
};

static void gather_ended(struct gather *g, int status, const char *reason)
{
	mtx_lock(&g->lock);
	g->running--;
	if (status && !g->status) {
		g->status = status;
		snprintf(g->reason, sizeof(g->reason), "%s", reason);
	}
	/* under the lock: the waiter frees g as soon as he has it */
	cond_signal(&g->moved);
	mtx_unlock(&g->lock);
}

static void part_done(struct block_req *req, int status, void *arg)
{
	struct part *p = arg;
	char reason[REQ_REASON];

	snprintf(reason, sizeof(reason), "%s", req->reason);
	if (status == 0)
		memcpy(p->g->mem + p->out_off, blob_mem(&req->data), req->len);
	req_free(req);
	gather_ended(p->g, status, reason);
	free(p);
}

/* returns with at most so many running */
static int gather_wait(struct gather *g, unsigned running)
{
	int r;

	mtx_lock(&g->lock);
	while (g->running > running)
		cond_wait(&g->moved, &g->lock);
	r = g->status;
	mtx_unlock(&g->lock);
	return r;
}

static int part_get(const struct block_range *b, void *arg)
{
	struct gather *g = arg;
	struct block_req *req;
	struct block_key key;
	struct part *p;
	int r;

	if (!b->slice) {
		memset(g->mem + b->out_off, 0, b->len);
		return 0;
	}
	r = gather_wait(g, PARALLEL - 1);
	if (r)
		return r;
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	*p = (struct part){g, b->out_off};
	block_key_init(&key, &g->job->volume, b->slice, b->index, b->size);
	/* the block is about to go: nobody shall keep it */
	req = req_new(g->c->env, &key, b->off, b->len, REQ_NO_ADMIT | REQ_RANGE_ONLY, POOL_UPLOAD);
	if (!req) {
		free(p);
		return -ENOMEM;
	}
	mtx_lock(&g->lock);
	g->running++;
	mtx_unlock(&g->lock);
	source_get(g->c->chain, req, part_done, p);
	return 0;
}

struct room {
	struct pool_wait wait;
	struct gather *g;
};

static void room_there(struct pool_wait *w)
{
	gather_ended(container_of(w, struct room, wait)->g, 0, "");
}

static int buffer_take(struct gather *g, uint32_t len, struct buf **ret)
{
	struct pool *pool = g->c->env->pool;
	struct room room = {.wait.fn = room_there, .g = g};
	size_t reserved = pool_cost(len);
	int r;

	g->running = 1;
	r = pool_reserve(pool, POOL_UPLOAD, reserved, &room.wait);
	if (r == -EAGAIN)
		r = gather_wait(g, 0);
	else
		g->running = 0;
	if (r)
		return r;
	*ret = pool_take(pool, POOL_UPLOAD, len, &reserved);
	if (!*ret)
		pool_unreserve(pool, POOL_UPLOAD, reserved);
	return *ret ? 0 : -ENOMEM;
}

struct put {
	struct upload up;
	struct gather *g;
};

static void put_done(struct upload *up, int status)
{
	gather_ended(container_of(up, struct put, up)->g, status, up->reason);
}

static int block_put(struct gather *g, uint32_t index, uint32_t len)
{
	struct put put = {.g = g};
	struct buf *buf;
	int r = buffer_take(g, len, &buf);

	if (r)
		return r;
	memcpy(buf->mem, g->mem, len);
	put.up.data = blob_of_buf(buf, 0, len);
	put.up.done = put_done;
	put.up.tier = g->job->tier;
	block_key_init(&put.up.key, &g->job->volume, g->job->id, index, len);
	g->running = 1;
	upload_start(g->c->uploads, &put.up);
	r = gather_wait(g, 0);
	blob_fini(&put.up.data);
	return r;
}

static int slice_write(struct gather *g)
{
	const struct slice_view v = {.n = g->job->n,
				     .pieces = (struct slice *)(uintptr_t)g->job->pieces};
	uint32_t block = g->c->env->block_size, first = g->job->pieces[0].pos;
	int r = 0, waited;

	for (uint32_t i = 0, off = 0; off < g->job->size && !r; i++, off += block) {
		uint32_t len = MIN(block, g->job->size - off);

		r = slice_view_ranges(&v, block, first + off, len, part_get, g);
		waited = gather_wait(g, 0);
		r = r ? r : waited;
		if (!r)
			r = block_put(g, i, len);
	}
	return r;
}

int client_compact_slice(void *arg, const struct compact_job *job)
{
	struct client_compact *c = arg;
	struct gather g = {.c = c, .job = job};
	static struct log_rate rate;
	unsigned quiet;
	int r;

	g.mem = malloc(MIN(c->env->block_size, job->size));
	if (!g.mem)
		return -ENOMEM;
	mtx_init(&g.lock);
	cond_init(&g.moved);
	r = slice_write(&g);
	if (r && g.reason[0] && r != -ECANCELED && log_rate_ok(&rate, 10000000, &quiet))
		log_warn("compaction: %s", g.reason);
	cond_fini(&g.moved);
	mtx_fini(&g.lock);
	free(g.mem);
	/* what a reader would look for again: the list may be another one by now */
	return r == -ENODATA ? -ENOENT : r;
}
