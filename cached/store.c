/* SPDX-License-Identifier: Apache-2.0 */
/* The store as a layer: hits, misses, fills, and what the daemon asks of it. Called on any thread
 * and never waits there: files are opened and removed in the disks' own threads (store_keep.c has
 * what comes and goes, store_disks.c what is done about the disks). */
#include "cached/store.h"

#include <sys/stat.h>

#include "cached/store_inner.h"
#include "common/block/blockfile.h"
#include "common/clock.h"

static void job_late(struct disk_job *job, int status)
{
	struct block_job *j = container_of(job, struct block_job, job);

	(void)status;
	if (j->file)
		blob_file_unref(j->file);
	free(j);
}

int store_push_job(struct store *s, struct disk *d, enum disk_work w, struct block_req *req,
		   const struct block_key *k, int (*run)(struct disk_job *j),
		   void (*end)(struct disk_job *j, int status))
{
	struct block_job *j = calloc(1, sizeof(*j));
	int r;

	if (!j)
		return -ENOMEM;
	*j = (struct block_job){
		.job = {.run = run, .end = end, .late = job_late},
		.store = s,
		.disk = d,
		.req = req,
		.key = *k,
	};
	/* bounded: one per request in flight, and connections bound those; verifications bound
	 * themselves */
	r = diskq_push(d->q[w], &j->job);
	if (r < 0)
		free(j);
	return r;
}

void store_job_over(struct block_job *j, int status)
{
	if (status != -ETIMEDOUT)
		free(j);
}

/* --- get --- */

static bool is_top(const struct store *s, const struct block_req *req)
{
	return req->frame[req->depth - 1].source == &s->top;
}

static void kept(struct block_req *req, int status, void *arg)
{
	struct store *s = arg;

	if (status == 0)
		source_admit(&s->keep, req);
	req_done(req, status);
}

static void passed(struct block_req *req, int status, void *arg)
{
	(void)arg;
	req_done(req, status);
}

/* reads are counted by the upper layer alone */
static void miss(struct store *s, struct block_req *req)
{
	if (is_top(s, req)) {
		metric_add(s->conf.counters->misses, 1);
		source_get(s->top.next, req, passed, s);
	} else if (req->flags & REQ_NO_FILL) {
		req_done(req, -ENOENT);
	} else {
		source_get(s->keep.next, req, kept, s);
	}
}

static void hit(struct store *s, struct block_req *req, struct blob data)
{
	if (is_top(s, req))
		metric_add(s->conf.counters->hits, 1);
	req->data = data;
	req->via = VIA_STORE;
	req_done(req, 0);
}

void store_drop_damaged(struct store *s, const struct block_key *k, const char *what)
{
	static struct log_rate rate;
	unsigned disk, suppressed;

	if (index_take(s->ix, k, &disk) < 0)
		return;
	(void)store_remove(s, s->conf.disks[disk], k);
	metric_add(s->conf.counters->damaged, 1);
	if (log_rate_ok(&rate, 1000000, &suppressed))
		log_warn("block %llu_%u_%u in %s is %s: dropped (suppressed=%u)",
			 (unsigned long long)k->slice, k->index, k->size, s->conf.disks[disk]->dir,
			 what, suppressed);
}

static struct disk *disk_of(const struct blob *b)
{
	return ((struct store_disk *)b->file->arg)->disk;
}

/* In any thread, also in a loop: who closes a file that was removed meanwhile frees its space, and
 * waits for the disk. */
static void used_last(struct blob_file *f, void *arg)
{
	struct store_disk *sd = arg;
	struct stat st;

	if (!atomic_load_explicit(&sd->store->ends, memory_order_acquire) &&
	    (disk_state(sd->disk) != DISK_WELL || (fstat(f->fd, &st) == 0 && st.st_nlink == 0)))
		files_later(sd->store->files, f);
	else
		blob_file_close(f);
}

/* opens the block's file, and keeps it open for others. In a disk's thread */
static int open_block(struct store *s, struct disk *d, const struct block_key *k,
		      struct blob_file **ret)
{
	struct blob_file *file;
	int fd = -1, r = disk_open_block(d, k, &fd);

	if (r < 0)
		return r;
	file = blob_file_new(fd, used_last, &s->disk[d->number]);
	if (!file) {
		(void)close(fd);
		return -ENOMEM;
	}
	files_put(s->files, k, file);
	if (!index_peek(s->ix, k)) /* removed meanwhile: an open file would hold its space */
		files_drop(s->files, k);
	*ret = file;
	return 0;
}

/* A file that is not there is a block that went, unless all of the disk is gone. */
static int opened(struct store *s, struct disk *d, const struct block_key *k, int r, uint64_t us)
{
	int there = r == -ENOENT ? disk_there(d) : 0;

	if (there < 0)
		r = there;
	if (r == -ENOENT || r == -EBADMSG)
		store_drop_damaged(s, k, r == -ENOENT ? "missing" : "cut short");
	else
		disk_result(d, DISK_READS, r, us);
	return r;
}

static int open_run(struct disk_job *job)
{
	struct block_job *j = container_of(job, struct block_job, job);
	uint64_t began = clock_us();
	int r = open_block(j->store, j->disk, &j->key, &j->file);

	return opened(j->store, j->disk, &j->key, r, clock_us() - began);
}

static void open_end(struct disk_job *job, int status)
{
	struct block_job *j = container_of(job, struct block_job, job);
	struct block_req *req = j->req;
	struct store *s = j->store;
	struct blob_file *file = status == 0 ? j->file : NULL;

	store_job_over(j, status);
	if (file)
		hit(s, req, blob_of_file(file, req->off, req->len));
	else
		miss(s, req);
}

/* an open file of the block whose length is still right; not of a disk that is set aside */
static struct blob_file *find_open(struct store *s, const struct block_key *k)
{
	struct blob_file *file = files_get(s->files, k);

	if (!file || blockfile_is_whole(file->fd, k))
		return file;
	files_drop(s->files, k);
	blob_file_unref(file);
	return NULL;
}

static void look(struct store *s, struct block_req *req)
{
	struct blob_file *file;
	struct blob data;
	struct disk *d;

	if (store_pending(s, &req->key, req->off, req->len, &data)) {
		hit(s, req, data);
		return;
	}
	d = store_disk_of(s, &req->key, true);
	if (!d) {
		miss(s, req);
		return;
	}
	file = find_open(s, &req->key);
	if (file)
		hit(s, req, blob_of_file(file, req->off, req->len));
	else if (store_push_job(s, d, DISK_READS, req, &req->key, open_run, open_end) < 0)
		miss(s, req);
}

static void fill(struct store *s, struct block_req *req);

static void top_get(struct source *base, struct block_req *req)
{
	struct store *s = store_of_top(base);

	if (req->flags & REQ_PROBE)
		req_done(req, store_disk_of(s, &req->key, false) ? 0 : -ENOENT);
	else if (req->flags & REQ_PIN && store_pin(s, req))
		return;
	else if (req->flags & REQ_FILL)
		fill(s, req);
	else
		look(s, req);
}

static void keep_get(struct source *base, struct block_req *req)
{
	look(store_of_keep(base), req);
}

/* --- fill, put, admit --- */

static void filled(struct block_req *whole, int status, void *arg)
{
	struct block_req *req = arg;
	struct store *s = store_of_top(req->frame[req->depth - 1].source);

	if (status == 0) {
		store_keep(s, whole, req, s->conf.counters->fills);
	} else {
		memcpy(req->reason, whole->reason, sizeof(req->reason));
		req_done(req, status);
	}
	req_free(whole);
}

static void fill(struct store *s, struct block_req *req)
{
	struct block_req *whole;

	if (store_pending_wait(s, req, false))
		return;
	if (store_disk_of(s, &req->key, true)) {
		req_done(req, 0);
		return;
	}
	whole = req_new(s->env, &req->key, 0, req->key.size, 0, req->klass);
	if (!whole) {
		req_done(req, -ENOMEM);
		return;
	}
	whole->inner = true;
	source_get(s->top.next, whole, filled, req);
}

static void top_admit(struct source *base, struct block_req *req)
{
	struct store *s = store_of_top(base);

	store_keep(s, req, NULL, s->conf.counters->fills);
}

static void keep_admit(struct source *base, struct block_req *req)
{
	struct store *s = store_of_keep(base);

	store_keep(s, req, NULL, s->conf.counters->fills);
}

static void top_put(struct source *base, struct block_req *req)
{
	struct store *s = store_of_top(base);

	assert(req->data.len == req->key.size && blob_mem(&req->data));
	store_keep(s, req, req, s->conf.counters->puts);
}

/* --- drop --- */

static int drop_run(struct disk_job *job)
{
	struct block_job *j = container_of(job, struct block_job, job);
	unsigned disk;
	int r = index_take(j->store->ix, &j->key, &disk);

	if (r == 0) {
		r = store_remove(j->store, j->store->conf.disks[disk], &j->key);
		metric_add(j->store->conf.counters->drops, 1);
	}
	/* not there, or somebody else is removing it: gone all the same */
	return r == -ENOENT || r == -EBUSY ? 0 : r;
}

static void drop_end(struct disk_job *job, int status)
{
	struct block_job *j = container_of(job, struct block_job, job);
	struct block_req *req = j->req;

	store_job_over(j, status);
	req_done(req, status < 0 ? -EBUSY : 0);
}

/* a block on a disk that is set aside: its file may come back with the disk */
static void top_drop(struct source *base, struct block_req *req)
{
	struct store *s = store_of_top(base);
	unsigned disk = 0;
	int r;

	if (store_pending_wait(s, req, true))
		return;
	if (!index_find(s->ix, &req->key, &disk)) {
		req_done(req, 0);
		return;
	}
	r = store_push_job(s, s->conf.disks[disk], DISK_WRITES, req, &req->key, drop_run, drop_end);
	if (r < 0)
		req_done(req, r == -ENOMEM ? r : -EBUSY);
}

/* --- start, move, end --- */

static void store_free(struct store *s)
{
	(void)store_stop(s, UINT64_MAX);
	assert(!s->pending.count);
	if (s->pending.slot)
		hashmap_fini(&s->pending);
	files_free(s->files);
	passed_free(s->passed);
	pins_free(s->pins);
	index_free(s->ix);
	if (atomic_load_explicit(&s->unlooked, memory_order_acquire))
		snapshot_free(s->conf.snapshot);
	ring_free(s->placement);
	cond_fini(&s->end);
	mtx_fini(&s->lock);
	free(s->conf.disks);
	free(s);
}

void store_unref(struct store *s)
{
	if (s && atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) == 1)
		store_free(s);
}

static void top_free(struct source *base)
{
	struct store *s = store_of_top(base);

	source_fini(base);
	store_unref(s);
}

static void keep_free(struct source *base)
{
	struct store *s = store_of_keep(base);

	source_fini(base);
	store_unref(s);
}

static const struct source_ops top_ops = {
	.name = "store",
	.get = top_get,
	.put = top_put,
	.admit = top_admit,
	.drop = top_drop,
	.free = top_free,
};

static const struct source_ops keep_ops = {
	.name = "keep",
	.get = keep_get,
	.admit = keep_admit,
	.free = keep_free,
};

static int add_layer(struct store *s, struct source *layer, const struct source_ops *ops,
		     struct source *next, struct source **ret)
{
	int r = source_init(layer, ops, s->env, next);

	if (r < 0)
		return r;
	atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
	*ret = layer;
	return 0;
}

int store_keep_new(struct store *s, struct source *next, struct source **ret)
{
	return add_layer(s, &s->keep, &keep_ops, next, ret);
}

int store_top_new(struct store *s, struct source *next, struct source **ret)
{
	return add_layer(s, &s->top, &top_ops, next, ret);
}

static int start(struct store *s)
{
	const struct store_conf *conf = &s->conf;
	int r = hashmap_init(&s->pending, 64);

	if (r == 0)
		r = files_new(MAX(conf->max_open, 16u), &s->files);
	if (r == 0)
		r = passed_new(&s->passed);
	if (r == 0)
		r = pins_new(&conf->volume, conf->n_disks, &s->pins);
	if (r == 0)
		r = index_new(&conf->volume, conf->n_disks, conf->policy, &s->ix);
	if (r == 0)
		r = store_place_disks(s);
	return r < 0 ? r : store_start_disks(s);
}

int store_new(struct req_env *env, const struct store_conf *conf, struct store **ret)
{
	struct store *s = calloc(1, sizeof(*s));
	int r;

	assert(conf->n_disks > 0 && conf->n_disks <= INDEX_DISKS_MAX);
	if (!s) {
		snapshot_free(conf->snapshot);
		return -ENOMEM;
	}
	mtx_init(&s->lock);
	cond_init(&s->end);
	s->refs = 1;
	s->env = env;
	s->conf = *conf;
	s->volume = conf->volume;
	s->started_us = clock_us();
	s->unlooked = conf->n_disks;
	for (unsigned i = 0; i < conf->n_disks; i++)
		s->disk[i] = (struct store_disk){.store = s, .disk = conf->disks[i]};
	s->conf.disks = calloc(conf->n_disks, sizeof(struct disk *));
	if (s->conf.disks)
		memcpy(s->conf.disks, conf->disks, conf->n_disks * sizeof(struct disk *));
	r = s->conf.disks ? start(s) : -ENOMEM;
	if (r < 0) {
		s->conf.n_disks = 0; /* they stay the caller's */
		store_free(s);
		return r;
	}
	*ret = s;
	return 0;
}

struct hash128 store_volume(struct store *s)
{
	struct hash128 v;

	mtx_lock(&s->lock);
	v = s->volume;
	mtx_unlock(&s->lock);
	return v;
}

bool store_has(struct store *s, const struct block_key *k)
{
	return store_disk_of(s, k, false) || store_pending(s, k, 0, 0, NULL);
}

void store_stat(struct store *s, struct msg_stat *ret)
{
	const struct counters *c = s->conf.counters;
	struct pins_stat pinned;

	pins_stat(s->pins, &pinned);
	*ret = (struct msg_stat){
		.blocks = index_count(s->ix),
		.hits = metric_value(c->hits),
		.misses = metric_value(c->misses),
		.fills = metric_value(c->fills),
		.evictions = metric_value(c->evictions),
		.uptime_us = clock_us() - s->started_us,
		.pinned_blocks = pinned.blocks,
		.pinned_bytes = pinned.bytes,
	};
	for (unsigned i = 0; i < s->conf.n_disks; i++) {
		ret->bytes += atomic_load_explicit(&s->conf.disks[i]->used, memory_order_relaxed);
		ret->capacity_bytes += s->conf.disks[i]->capacity;
	}
}

int store_each(struct store *s, uint64_t *io_cursor, struct block_key *ret, size_t max,
	       size_t *ret_n)
{
	return index_each(s->ix, io_cursor, ret, max, ret_n);
}

bool store_fetching(struct store *s, const struct block_req *req, bool *ret_listed)
{
	return source_flight_joins(s->top.next, req, ret_listed);
}

struct passed *store_passed(struct store *s)
{
	return s->passed;
}

int store_push(struct store *s, const struct block_key *k, struct disk_job *j)
{
	struct disk *d = store_disk_of(s, k, true);

	return d ? diskq_push(d->q[DISK_READS], j) : -ENOENT;
}

int store_push_read(const struct blob *b, struct disk_job *j)
{
	struct disk *d = disk_of(b);

	return diskq_push(d->q[DISK_READS], j);
}

int store_file(struct store *s, const struct block_key *k, struct blob_file **ret)
{
	struct blob_file *file = find_open(s, k);
	struct disk *d = file ? NULL : store_disk_of(s, k, true);

	if (!file && !d)
		return -ENOENT;
	if (!file)
		return open_block(s, d, k, ret);
	*ret = file;
	return 0;
}

void store_failed(struct store *s, const struct block_key *k, const struct blob *b, int r)
{
	disk_result(disk_of(b), DISK_READS, r == -EBADMSG ? 0 : r, 0);
	if (r == -EBADMSG || r == -EIO) /* one bad place is not the whole disk */
		store_drop_damaged(s, k, r == -EIO ? "not to be read" : "cut short");
}

int store_touch(struct store *s, const struct block_key *k, const struct blob *b)
{
	uint64_t began = clock_us();
	ssize_t n;
	char byte;
	int r;

	do
		n = pread(b->file->fd, &byte, 1, (off_t)b->off);
	while (n < 0 && errno == EINTR);
	r = n < 0 ? -errno : n == 0 ? -EBADMSG : 0;
	if (r == 0)
		disk_result(disk_of(b), DISK_READS, 0, clock_us() - began);
	else
		store_failed(s, k, b, r);
	return r;
}
