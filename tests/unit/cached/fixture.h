/* SPDX-License-Identifier: Apache-2.0 */
/* What the daemon's tests share: a cache directory of their own, an object store whose bytes follow
 * from the name, the real chain over both, and requests that a test can wait for. */
#ifndef STOKE_TESTS_UNIT_CACHED_FIXTURE_H
#define STOKE_TESTS_UNIT_CACHED_FIXTURE_H

#include "tests/unit/check.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <time.h>

#include "cached/chain.h"
#include "common/block/blockfile.h"
#include "common/clock.h"

enum { BLOCK = 128 << 10 };
#define UUID "01234567-89ab-cdef-0123-456789abcdef"

static const struct hash128 volume_a = {{0xaa, 1}}, volume_b = {{0xbb, 2}};

static inline void fill_pattern(uint64_t slice, uint32_t index, uint32_t size, unsigned char *p,
				uint32_t off, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint32_t at = off + (uint32_t)i;

		p[i] = (unsigned char)(slice * 31 + index * 7 + size + at + (at >> 8) * 13);
	}
}

static inline bool has_pattern(const struct block_key *k, uint32_t off, const unsigned char *p,
			       size_t n)
{
	unsigned char *want = malloc(n);
	bool same;

	assert_non_null(want);
	fill_pattern(k->slice, k->index, k->size, want, off, n);
	same = !memcmp(want, p, n);
	free(want);
	return same;
}

static inline struct block_key key_of(const struct hash128 *volume, uint64_t slice, uint32_t size)
{
	struct block_key k;

	block_key_init(&k, volume, slice, 0, size);
	return k;
}

/* --- an object store --- */

struct objects {
	struct object_store base;
	struct loop *loop;
	atomic_uint gets;
	atomic_int status; /* of every request, 0: good */
	atomic_uint delay_us;
};

struct objects_job {
	struct loop_job job;
	struct loop_timer timer;
	struct objects *store;
	struct object_req *req;
};

static inline void objects_finish(struct objects_job *j)
{
	struct object_req *req = j->req;
	struct objects *o = j->store;
	int r = atomic_load(&o->status);
	struct block_key k;
	size_t len;

	free(j);
	if (r == 0) {
		assert_int_equal(block_key_parse(strrchr(req->key, '/') + 1, &volume_a, &k), 0);
		len = req->len ? (size_t)req->len : k.size;
		assert_true(len <= req->cap);
		fill_pattern(k.slice, k.index, k.size, req->buf, (uint32_t)req->off, len);
		req->got = len;
	}
	object_done(&o->base, req, r);
}

static inline void objects_timer(struct loop_timer *t)
{
	objects_finish(container_of(t, struct objects_job, timer));
}

static inline void objects_job(struct loop_job *job)
{
	struct objects_job *j = container_of(job, struct objects_job, job);
	unsigned us = atomic_load(&j->store->delay_us);

	if (!us) {
		objects_finish(j);
		return;
	}
	loop_timer_init(&j->timer, j->store->loop, objects_timer);
	loop_timer_start(&j->timer, us);
}

static inline void objects_start(struct object_store *s, struct object_req *req)
{
	struct objects *o = container_of(s, struct objects, base);
	struct objects_job *j = calloc(1, sizeof(*j));

	assert_non_null(j);
	assert_int_equal(req->op, OBJECT_GET);
	atomic_fetch_add(&o->gets, 1);
	*j = (struct objects_job){.job.fn = objects_job, .store = o, .req = req};
	loop_post(o->loop, &j->job);
}

static inline void objects_free(struct object_store *s)
{
	(void)s;
}

static const struct object_ops objects_ops = {
	.name = "pattern", .start = objects_start, .free = objects_free};

/* --- the world --- */

struct world {
	char dir[64];
	struct loop *loop;
	struct pool *pool;
	struct metrics *metrics;
	struct counters counters;
	struct objects objects;
	struct req_env env;
	struct source *chain;
	struct store *store;
	struct hash128 volume;
	struct disk *disks[4];
	uint64_t capacity; /* of each disk; uneven: of the first, the second has twice as much … */
	bool uneven;
	unsigned n_disks;
	struct source_peer_conf peer; /* peers NULL: asks no other daemon */
	struct snapshot *snapshot;    /* for the next world_open */
};

static inline int remove_one(const char *path, const struct stat *st, int flag, struct FTW *at)
{
	(void)st;
	(void)flag;
	(void)at;
	return remove(path);
}

static inline struct disk *world_disk(struct world *w, unsigned i)
{
	struct str err = STR_INIT;
	struct disk *d = NULL;
	char dir[80];

	(void)snprintf(dir, sizeof(dir), "%s/%u", w->dir, i);
	if (disk_open(dir, UUID, i, w->capacity * (w->uneven ? i + 1 : 1), 0.0001, &d, &err) < 0)
		fail_msg("%s", str_c(&err));
	str_fini(&err);
	return d;
}

static inline void world_open(struct world *w)
{
	struct disk **disks = w->disks;
	struct chain_conf conf = {
		.object = {.store = &w->objects.base, .volume_name = "v"},
		.peer = w->peer,
		.store = {.disks = disks,
			  .n_disks = w->n_disks,
			  .volume = w->volume,
			  .policy = evict_loop_new,
			  .counters = &w->counters,
			  .max_open = 16,
			  .snapshot = w->snapshot},
	};

	for (unsigned i = 0; i < w->n_disks; i++)
		disks[i] = world_disk(w, i);
	w->metrics = metrics_new();
	assert_non_null(w->metrics);
	memset(&w->counters, 0, sizeof(w->counters));
	assert_int_equal(counters_init(&w->counters, w->metrics), 0);
	w->env = (struct req_env){.pool = w->pool,
				  .timers = w->loop,
				  .metrics = w->metrics,
				  .block_size = BLOCK,
				  .want_sums = true};
	assert_int_equal(chain_new(&w->env, &conf, &w->chain, &w->store), 0);
}

static inline void world_close(struct world *w)
{
	req_env_drain(&w->env);
	source_free(w->chain);
	metrics_free(w->metrics);
	w->chain = NULL;
}

static inline struct world *world_new(uint64_t capacity, unsigned n_disks)
{
	struct world *w = calloc(1, sizeof(*w));

	assert_non_null(w);
	(void)snprintf(w->dir, sizeof(w->dir), "/tmp/stoke-cached-test-XXXXXX");
	assert_non_null(mkdtemp(w->dir));
	w->capacity = capacity;
	w->n_disks = n_disks;
	w->volume = volume_a;
	assert_int_equal(loop_new("test", &w->loop), 0);
	assert_int_equal(pool_new(16 << 20, BLOCK + FRAME_SUMS_MAX, &w->pool), 0);
	w->objects.base.ops = &objects_ops;
	w->objects.loop = w->loop;
	world_open(w);
	return w;
}

static inline void world_free(struct world *w)
{
	if (w->chain)
		world_close(w);
	loop_free(w->loop);
	pool_free(w->pool);
	(void)nftw(w->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	free(w);
}

/* --- disks that stand still --- */

struct gate {
	struct disk_job job;
	atomic_bool *open;
	atomic_bool running, gone;
};

static inline int gate_run(struct disk_job *job)
{
	struct gate *g = container_of(job, struct gate, job);
	const struct timespec ms = {.tv_nsec = 1000000};

	atomic_store(&g->running, true);
	while (!atomic_load(g->open))
		nanosleep(&ms, NULL);
	return 0;
}

static inline void gate_end(struct disk_job *job, int status)
{
	if (status != -ETIMEDOUT)
		atomic_store(&container_of(job, struct gate, job)->gone, true);
}

static inline void gate_late(struct disk_job *job, int status)
{
	gate_end(job, status);
}

/* all n threads of a disk's queue stand still until *open */
static inline void hold(struct world *w, unsigned disk, enum disk_work q, struct gate *gate,
			unsigned n, atomic_bool *open)
{
	const struct timespec ms = {.tv_nsec = 1000000};

	for (unsigned i = 0; i < n; i++) {
		gate[i] = (struct gate){
			.job = {.run = gate_run, .end = gate_end, .late = gate_late}, .open = open};
		assert_int_equal(diskq_push(w->disks[disk]->q[q], &gate[i].job), 0);
	}
	for (unsigned i = 0; i < n; i++)
		while (!atomic_load(&gate[i].running))
			nanosleep(&ms, NULL);
}

/* --- requests --- */

struct waited {
	struct mtx lock;
	struct cond done;
	bool over;
	int status;
};

static inline void waited_done(struct block_req *req, int status, void *arg)
{
	struct waited *x = arg;

	(void)req;
	mtx_lock(&x->lock);
	x->over = true;
	x->status = status;
	cond_signal(&x->done);
	mtx_unlock(&x->lock);
}

static inline int waited_end(struct waited *x)
{
	mtx_lock(&x->lock);
	while (!x->over)
		cond_wait(&x->done, &x->lock);
	mtx_unlock(&x->lock);
	cond_fini(&x->done);
	mtx_fini(&x->lock);
	return x->status;
}

static inline void waited_begin(struct waited *x)
{
	memset(x, 0, sizeof(*x));
	mtx_init(&x->lock);
	cond_init(&x->done);
}

/* what a consumer does with an answer: checks the checksums that come with it, in the file or not.
 * 0 or -EBADMSG */
static inline int consume(const struct block_req *req)
{
	unsigned char *buf;
	size_t skip = 0;
	int r;

	if (blob_mem(&req->data))
		return has_pattern(&req->key, req->off, blob_mem(&req->data), req->len) ? 0
											: -EBADMSG;
	buf = malloc(blockfile_room(req->off, req->len));
	assert_non_null(buf);
	r = blockfile_read(req->data.file->fd, &req->key, req->off, req->len, false, buf, &skip);
	/* a copy that passes the checksums must be the right one */
	if (r == 0)
		assert_true(has_pattern(&req->key, req->off, buf + skip, req->len));
	free(buf);
	return r;
}

/* a get of the range as a consumer does it: 0 with *ret_via, or the error; -EBADMSG when the
 * checksums do not match */
static inline int get(struct world *w, const struct block_key *k, uint32_t off, uint32_t len,
		      uint32_t flags, enum req_via *ret_via)
{
	struct block_req *req = req_new(&w->env, k, off, len, flags, POOL_DEMAND);
	struct waited x;
	int r;

	assert_non_null(req);
	waited_begin(&x);
	source_get(w->chain, req, waited_done, &x);
	r = waited_end(&x);
	if (r == 0 && !(flags & (REQ_FILL | REQ_PROBE))) {
		if (ret_via)
			*ret_via = req->via;
		r = consume(req);
	}
	req_free(req);
	return r;
}

static inline int fill(struct world *w, const struct block_key *k)
{
	return get(w, k, 0, k->size, REQ_FILL, NULL);
}

static inline bool probe(struct world *w, const struct block_key *k)
{
	return get(w, k, 0, k->size, REQ_PROBE, NULL) == 0;
}

static inline int drop(struct world *w, const struct block_key *k)
{
	struct block_req *req = req_new(&w->env, k, 0, k->size, 0, POOL_DEMAND);
	struct waited x;
	int r;

	assert_non_null(req);
	waited_begin(&x);
	source_drop(w->chain, req, waited_done, &x);
	r = waited_end(&x);
	req_free(req);
	return r;
}

static inline int put(struct world *w, const struct block_key *k)
{
	struct block_req *req = req_new(&w->env, k, 0, k->size, 0, POOL_UPLOAD);
	size_t reserved = pool_cost(k->size);
	struct waited x;
	struct buf *b;
	int r;

	assert_non_null(req);
	assert_int_equal(pool_reserve(w->pool, POOL_UPLOAD, reserved, NULL), 0);
	b = pool_take(w->pool, POOL_UPLOAD, k->size, &reserved);
	assert_non_null(b);
	fill_pattern(k->slice, k->index, k->size, b->mem, 0, k->size);
	req->data = blob_of_buf(b, 0, k->size);
	waited_begin(&x);
	source_put(w->chain, req, waited_done, &x);
	r = waited_end(&x);
	req_free(req);
	return r;
}

/* waits until what is true, 10 s at most */
#define eventually(what)                                                                           \
	do {                                                                                       \
		const struct timespec ms_ = {.tv_nsec = 1000000};                                  \
		uint64_t end_ = clock_us() + 10000000;                                             \
		while (!(what) && clock_us() < end_)                                               \
			nanosleep(&ms_, NULL);                                                     \
		assert_true(what);                                                                 \
	} while (0)

/* where the test finds the block's file */
static inline void block_file(struct world *w, unsigned disk, const struct block_key *k,
			      char ret[320])
{
	char name[BLOCK_CACHE_NAME_MAX], blocks[DISK_PATH_MAX];

	block_key_cache_name(k, name);
	disk_blocks_path(&k->volume, blocks);
	(void)snprintf(ret, 320, "%s/%u/" UUID "/%s/%s", w->dir, disk, blocks, name);
}

#endif
