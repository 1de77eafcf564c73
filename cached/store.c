/* SPDX-License-Identifier: Apache-2.0 */
/* The store as a layer: hits, misses, fills, and what the daemon asks of it. Called on any thread
 * and never waits there: files are opened, verified and removed in the disks' own threads
 * (store_keep.c has what comes and goes). */
#include "cached/store.h"

#include <sys/stat.h>

#include "cached/recover.h"
#include "cached/store_inner.h"
#include "common/block/blockfile.h"
#include "common/clock.h"

enum { VERIFY_MAX = 64 };

struct disk_job { /* something about one block to do in a disk's thread */
	struct workq_job job;
	struct store *store;
	struct disk *disk;
	struct block_req *req; /* NULL: nobody waits */
	struct block_key key;
};

static int push_job(struct store *s, struct disk *d, struct workq *q, struct block_req *req,
		    const struct block_key *k, void (*fn)(struct workq_job *job))
{
	struct disk_job *j = calloc(1, sizeof(*j));

	if (!j)
		return -ENOMEM;
	*j = (struct disk_job){.job.fn = fn, .store = s, .disk = d, .req = req, .key = *k};
	/* bounded: one per request in flight, and connections bound those; verifications bound
	 * themselves */
	workq_push_always(q, &j->job);
	return 0;
}

static struct disk_job job_take(struct workq_job *job)
{
	struct disk_job *j = container_of(job, struct disk_job, job), copy = *j;

	free(j);
	return copy;
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

/* the copy is not what the index says: out with it, said once */
static void drop_damaged(struct store *s, const struct block_key *k, const char *what)
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

/* opens the block's file, and keeps it open for others. In a disk's thread */
static int open_block(struct store *s, struct disk *d, const struct block_key *k,
		      struct blob_file **ret)
{
	struct blob_file *file;
	int fd = -1, r = disk_open_block(d, k, &fd);

	if (r < 0)
		return r;
	file = blob_file_new(fd, NULL, d);
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

static void open_job(struct workq_job *job)
{
	struct disk_job j = job_take(job);
	struct store *s = j.store;
	struct blob_file *file;
	int r = open_block(s, j.disk, &j.key, &file);

	if (r == 0) {
		hit(s, j.req, blob_of_file(file, j.req->off, j.req->len));
		return;
	}
	if (r == -ENOENT || r == -EBADMSG)
		drop_damaged(s, &j.key, r == -ENOENT ? "missing" : "cut short");
	else
		store_disk_result(s, j.disk, "open", r);
	miss(s, j.req);
}

/* an open file of the block whose length is still right */
static struct blob_file *find_open(struct store *s, const struct block_key *k)
{
	struct blob_file *file = files_get(s->files, k);
	struct stat st;

	if (!file)
		return NULL;
	if (fstat(file->fd, &st) == 0 && st.st_nlink > 0 &&
	    (uint64_t)st.st_size == blockfile_len(k->size))
		return file;
	files_drop(s->files, k);
	blob_file_unref(file);
	return NULL;
}

static void look(struct store *s, struct block_req *req)
{
	struct blob_file *file;
	struct blob data;
	unsigned disk;

	if (store_pending(s, &req->key, req->off, req->len, &data)) {
		hit(s, req, data);
	} else if (!index_find(s->ix, &req->key, &disk)) {
		miss(s, req);
	} else {
		file = find_open(s, &req->key);
		if (file)
			hit(s, req, blob_of_file(file, req->off, req->len));
		else if (push_job(s, s->conf.disks[disk], s->conf.disks[disk]->reads, req,
				  &req->key, open_job) < 0)
			miss(s, req);
	}
}

static void fill(struct store *s, struct block_req *req);

static void top_get(struct source *base, struct block_req *req)
{
	struct store *s = store_of_top(base);

	if (req->flags & REQ_PROBE)
		req_done(req, index_peek(s->ix, &req->key) ? 0 : -ENOENT);
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
	if (index_find(s->ix, &req->key, NULL)) {
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

static void drop_job(struct workq_job *job)
{
	struct disk_job j = job_take(job);
	unsigned disk;
	int r = index_take(j.store->ix, &j.key, &disk);

	if (r == 0) {
		r = store_remove(j.store, j.store->conf.disks[disk], &j.key);
		metric_add(j.store->conf.counters->drops, 1);
	}
	/* not there, or somebody else is removing it: gone all the same */
	req_done(j.req, r == -ENOENT || r == -EBUSY ? 0 : r);
}

static void top_drop(struct source *base, struct block_req *req)
{
	struct store *s = store_of_top(base);
	unsigned disk = 0;

	if (store_pending_wait(s, req, true))
		return;
	if (!index_find(s->ix, &req->key, &disk))
		req_done(req, 0);
	else if (push_job(s, s->conf.disks[disk], s->conf.disks[disk]->writes, req, &req->key,
			  drop_job) < 0)
		req_done(req, -ENOMEM);
}

/* --- start, move, end --- */

static void store_free(struct store *s)
{
	workq_free(s->janitor);
	for (unsigned i = 0; s->conf.disks && i < s->conf.n_disks; i++)
		disk_close(s->conf.disks[i]); /* ends what is queued */
	assert(!s->pending.count);
	if (s->pending.slot)
		hashmap_fini(&s->pending);
	files_free(s->files);
	passed_free(s->passed);
	index_free(s->ix);
	ring_free(s->placement);
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

static int recover_all(struct store *s, const struct hash128 *volume, struct recover_stat *ret)
{
	*ret = (struct recover_stat){0};
	for (unsigned i = 0; i < s->conf.n_disks; i++) {
		struct recover_stat st;
		int r = recover_disk(s->conf.disks[i], s->ix, volume, RECOVER_LENGTHS_US, &st);

		if (r < 0)
			return r;
		ret->blocks += st.blocks;
		ret->bytes += st.bytes;
		ret->removed += st.removed;
		/* a clean-up of the generation before may be at work: it reads either */
		__atomic_store_n(&s->conf.disks[i]->checked, st.checked, __ATOMIC_RELAXED);
	}
	return 0;
}

/* blocks spread over the disks as their room does; a disk's place hangs on its directory's name, so
 * that adding one moves few blocks */
static int place_disks(struct store *s)
{
	struct ring_node nodes[INDEX_DISKS_MAX];
	uint64_t most = 1;

	if (s->conf.n_disks == 1)
		return 0;
	for (unsigned i = 0; i < s->conf.n_disks; i++)
		most = MAX(most, s->conf.disks[i]->capacity);
	for (unsigned i = 0; i < s->conf.n_disks; i++) {
		double share = (double)s->conf.disks[i]->capacity / (double)most;
		uint32_t weight = (uint32_t)(share * RING_WEIGHT_UNIT);

		nodes[i] = (struct ring_node){.id = s->conf.disks[i]->dir,
					      .weight = weight ? weight : 1};
	}
	return ring_new(nodes, s->conf.n_disks, &s->placement);
}

static int start(struct store *s)
{
	const struct store_conf *conf = &s->conf;
	struct recover_stat found;
	int r = hashmap_init(&s->pending, 64);

	if (r == 0)
		r = files_new(MAX(conf->max_open, 16u), &s->files);
	if (r == 0)
		r = passed_new(&s->passed);
	if (r == 0)
		r = workq_new("janitor", 1, 4, &s->janitor);
	if (r == 0)
		r = index_new(&conf->volume, conf->n_disks, conf->policy, &s->ix);
	if (r == 0)
		r = place_disks(s);
	return r < 0 ? r : recover_all(s, &conf->volume, &found);
}

int store_new(struct req_env *env, const struct store_conf *conf, struct store **ret)
{
	struct store *s = calloc(1, sizeof(*s));
	int r;

	assert(conf->n_disks > 0 && conf->n_disks <= INDEX_DISKS_MAX);
	if (!s)
		return -ENOMEM;
	mtx_init(&s->lock);
	s->refs = 1;
	s->env = env;
	s->conf = *conf;
	s->volume = conf->volume;
	s->started_us = clock_us();
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

int store_move(struct store *s, const struct hash128 *volume)
{
	struct recover_stat found;

	mtx_lock(&s->lock);
	s->volume = *volume;
	mtx_unlock(&s->lock);
	index_reset(s->ix, volume);
	for (unsigned i = 0; i < s->conf.n_disks; i++)
		atomic_store_explicit(&s->conf.disks[i]->used, 0, memory_order_relaxed);
	files_drop(s->files, NULL);
	return recover_all(s, volume, &found);
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
	return index_peek(s->ix, k) || store_pending(s, k, 0, 0, NULL);
}

/* --- in the background --- */

struct clean_job {
	struct workq_job job;
	struct store *store;
};

static void wrong_length(const struct block_key *k, void *arg)
{
	struct store *s = arg;

	drop_damaged(s, k, "cut short");
}

static struct hash128 current_volume(void *arg)
{
	return store_volume(arg);
}

static void clean_job(struct workq_job *job)
{
	struct clean_job *c = container_of(job, struct clean_job, job);
	struct store *s = c->store;
	struct hash128 keep;

	for (unsigned i = 0; i < s->conf.n_disks; i++) {
		int n = disk_remove_others(s->conf.disks[i], current_volume, s);

		if (n > 0)
			log_info("cache directory %s: removed what %d other generation(s) of this "
				 "volume left",
				 s->conf.disks[i]->dir, n);
	}
	/* what start had no time for */
	keep = store_volume(s);
	for (unsigned i = 0; i < s->conf.n_disks; i++)
		(void)recover_lengths(s->conf.disks[i], &keep,
				      __atomic_load_n(&s->conf.disks[i]->checked, __ATOMIC_RELAXED),
				      wrong_length, s);
	free(c);
}

void store_clean(struct store *s)
{
	struct clean_job *c = calloc(1, sizeof(*c));

	if (!c)
		return; /* the next start or move cleans */
	c->job.fn = clean_job;
	c->store = s;
	if (workq_push(s->janitor, &c->job) < 0)
		free(c);
}

static int verify_pieces(int fd, const struct block_key *k, unsigned char *buf)
{
	size_t skip;
	int r = 0;

	for (uint32_t off = 0; r == 0 && off < k->size; off += FRAME_PIECE)
		r = blockfile_read(fd, k, off, MIN((uint32_t)FRAME_PIECE, k->size - off), false,
				   buf, &skip);
	return r;
}

static int verify_block(struct disk *d, const struct block_key *k)
{
	unsigned char *buf = malloc(blockfile_room(0, FRAME_PIECE));
	int fd = -1, r = buf ? disk_open_block(d, k, &fd) : -ENOMEM;

	if (r == 0)
		r = verify_pieces(fd, k, buf);
	closep(&fd);
	free(buf);
	return r;
}

static void verify_job(struct workq_job *job)
{
	struct disk_job j = job_take(job);
	int r = verify_block(j.disk, &j.key);

	if (r == -EBADMSG || r == -ENOENT)
		drop_damaged(j.store, &j.key, r == -ENOENT ? "missing" : "damaged");
	else if (r < 0 && r != -ENOMEM)
		store_disk_result(j.store, j.disk, "read", r);
	mtx_lock(&j.store->lock);
	j.store->verifying--;
	mtx_unlock(&j.store->lock);
}

void store_verify(struct store *s, const struct block_key *k)
{
	unsigned disk;
	bool busy;

	if (!index_find(s->ix, k, &disk))
		return;
	mtx_lock(&s->lock);
	busy = s->verifying >= VERIFY_MAX;
	if (!busy)
		s->verifying++;
	mtx_unlock(&s->lock);
	if (busy ||
	    push_job(s, s->conf.disks[disk], s->conf.disks[disk]->reads, NULL, k, verify_job) == 0)
		return;
	mtx_lock(&s->lock);
	s->verifying--;
	mtx_unlock(&s->lock);
}

static void trim_job(struct workq_job *job)
{
	struct disk_job j = job_take(job);

	(void)store_make_room(j.store, j.disk, 0);
	mtx_lock(&j.store->lock);
	j.store->health[j.disk->number].trimming = false;
	mtx_unlock(&j.store->lock);
}

void store_trim(struct store *s)
{
	static const struct block_key none;

	for (unsigned i = 0; i < s->conf.n_disks; i++) {
		struct disk_health *h = &s->health[i];
		bool busy;

		mtx_lock(&s->lock);
		busy = h->trimming;
		h->trimming = true;
		mtx_unlock(&s->lock);
		if (busy || push_job(s, s->conf.disks[i], s->conf.disks[i]->writes, NULL, &none,
				     trim_job) == 0)
			continue;
		mtx_lock(&s->lock);
		h->trimming = false;
		mtx_unlock(&s->lock);
	}
}

void store_stat(struct store *s, struct msg_stat *ret)
{
	const struct counters *c = s->conf.counters;

	*ret = (struct msg_stat){
		.blocks = index_count(s->ix),
		.hits = metric_value(c->hits),
		.misses = metric_value(c->misses),
		.fills = metric_value(c->fills),
		.evictions = metric_value(c->evictions),
		.uptime_us = clock_us() - s->started_us,
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

bool store_fetching(struct store *s, const struct block_req *req)
{
	return source_flight_joins(s->top.next, req);
}

struct passed *store_passed(struct store *s)
{
	return s->passed;
}

struct workq *store_place(struct store *s, const struct block_key *k)
{
	unsigned disk;

	return index_find(s->ix, k, &disk) ? s->conf.disks[disk]->reads : NULL;
}

int store_file(struct store *s, const struct block_key *k, struct blob_file **ret)
{
	struct blob_file *file = find_open(s, k);
	unsigned disk;

	if (!file && !index_find(s->ix, k, &disk))
		return -ENOENT;
	if (!file)
		return open_block(s, s->conf.disks[disk], k, ret);
	*ret = file;
	return 0;
}

struct workq *store_readers(const struct blob *b)
{
	const struct disk *d = b->file->arg;

	return d->reads;
}
