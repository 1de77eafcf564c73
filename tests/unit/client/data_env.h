/* SPDX-License-Identifier: Apache-2.0 */
/* What reader and writer stand on, in one process: an object store in memory that can fail and
 * counts, a metadata engine of one file that checks that no record comes before its objects, the
 * real chain between them, and calls that wait. */
#ifndef STOKE_TESTS_UNIT_CLIENT_DATA_ENV_H
#define STOKE_TESTS_UNIT_CLIENT_DATA_ENV_H

#include "tests/unit/check.h"

#include <time.h>

#include "client/chain.h"
#include "client/delete.h"
#include "client/meta/engine.h"
#include "client/reader.h"
#include "client/writer.h"
#include "common/hashmap.h"

enum { KIB = 1024, MIB = 1024 * 1024, INODE = 7, CHUNKS = 600 };

/* --- objects --- */

struct mem_object {
	struct hash_node node;
	char key[BLOCK_NAME_MAX];
	unsigned char *data;
	size_t n;
};

struct mem_store {
	struct object_store base;
	struct mtx lock;
	struct hashmap objects;
	struct workq *q;
	unsigned gets, puts, deletes, running, most_running;
	uint64_t got_bytes;
	unsigned fail_puts;	  /* so many next ones */
	unsigned fail_puts_after; /* after so many good ones */
	unsigned delay_us, delay_deletes_us;
};

struct mem_job {
	struct workq_job job;
	struct mem_store *s;
	struct object_req *req;
};

static bool mem_is(const struct hash_node *n, const void *key)
{
	return strcmp(container_of(n, struct mem_object, node)->key, key) == 0;
}

static struct mem_object *mem_find_locked(struct mem_store *s, const char *key)
{
	struct hash_node *n = hashmap_find(&s->objects, hash64(key, strlen(key)), mem_is, key);

	return n ? container_of(n, struct mem_object, node) : NULL;
}

static void mem_put_locked(struct mem_store *s, const char *key, const unsigned char *data,
			   size_t n)
{
	struct mem_object *o = mem_find_locked(s, key);

	if (!o) {
		o = calloc(1, sizeof(*o));
		assert_non_null(o);
		(void)snprintf(o->key, sizeof(o->key), "%s", key);
		hashmap_add(&s->objects, &o->node, hash64(key, strlen(key)));
	}
	free(o->data);
	o->data = malloc(n + 1);
	assert_non_null(o->data);
	memcpy(o->data, data, n);
	o->n = n;
}

static int mem_delete_locked(struct mem_store *s, const char *key)
{
	struct mem_object *o = mem_find_locked(s, key);

	if (!o)
		return -ENOENT;
	hashmap_del(&s->objects, &o->node);
	free(o->data);
	free(o);
	s->deletes++;
	return 0;
}

static int mem_get_locked(struct mem_store *s, struct object_req *req)
{
	struct mem_object *o = mem_find_locked(s, req->key);

	s->gets++;
	if (!o)
		return -ENOENT;
	if (req->off < o->n)
		req->got = req->len ? MIN(req->len, o->n - req->off) : o->n - req->off;
	if (req->got > req->cap)
		return -EMSGSIZE;
	memcpy(req->buf, o->data + req->off, req->got);
	s->got_bytes += req->got;
	return 0;
}

static int mem_put_req_locked(struct mem_store *s, struct object_req *req)
{
	s->puts++;
	if (s->fail_puts_after) {
		s->fail_puts_after--;
	} else if (s->fail_puts) {
		s->fail_puts--;
		return -EIO;
	}
	mem_put_locked(s, req->key, req->buf, req->cap);
	return 0;
}

static int mem_do_locked(struct mem_store *s, struct object_req *req)
{
	switch (req->op) {
	case OBJECT_GET:
		return mem_get_locked(s, req);
	case OBJECT_PUT:
		return mem_put_req_locked(s, req);
	case OBJECT_DELETE:
		return mem_delete_locked(s, req->key);
	case OBJECT_DELETE_MANY:
		for (size_t i = 0; i < req->n_keys; i++)
			(void)mem_delete_locked(s, req->keys[i]);
		return 0;
	default:
		return -EINVAL;
	}
}

static void mem_run(struct workq_job *job)
{
	struct mem_job *j = container_of(job, struct mem_job, job);
	struct mem_store *s = j->s;
	struct object_req *req = j->req;
	int r;

	free(j);
	if (s->delay_us)
		usleep(s->delay_us);
	if (req->op == OBJECT_DELETE || req->op == OBJECT_DELETE_MANY)
		usleep(s->delay_deletes_us);
	mtx_lock(&s->lock);
	r = mem_do_locked(s, req);
	s->running--;
	mtx_unlock(&s->lock);
	if (r < 0)
		(void)snprintf(req->reason, sizeof(req->reason), "%s: made to fail",
			       req->key ? req->key : "");
	object_done(&s->base, req, r);
}

static void mem_start(struct object_store *base, struct object_req *req)
{
	struct mem_store *s = container_of(base, struct mem_store, base);
	struct mem_job *j = calloc(1, sizeof(*j));

	if (!j) {
		object_done(base, req, -ENOMEM);
		return;
	}
	*j = (struct mem_job){.job.fn = mem_run, .s = s, .req = req};
	mtx_lock(&s->lock);
	s->running++;
	s->most_running = MAX(s->most_running, s->running);
	mtx_unlock(&s->lock);
	workq_push_always(s->q, &j->job);
}

static bool mem_free_one(struct hash_node *n, void *arg)
{
	struct mem_object *o = container_of(n, struct mem_object, node);

	(void)arg;
	free(o->data);
	free(o);
	return true;
}

static void mem_free(struct object_store *base)
{
	struct mem_store *s = container_of(base, struct mem_store, base);

	workq_free(s->q);
	hashmap_each(&s->objects, mem_free_one, NULL);
	hashmap_fini(&s->objects);
	mtx_fini(&s->lock);
	free(s);
}

static const struct object_ops mem_ops = {.name = "memory", .start = mem_start, .free = mem_free};

/* --- metadata --- */

struct one_meta {
	struct meta base;
	void (*hook)(void); /* at the end of read and new_slice, in their thread */
	struct mem_store *store;
	uint32_t block_size;
	struct mtx lock;
	struct attr attr;
	struct {
		struct slice *s;
		size_t n;
	} chunk[CHUNKS];
	uint64_t next_slice;
	struct hash128 volume;
	unsigned reads, writes;
	struct time_ns written; /* mtime of the last write */
	unsigned times;		/* how often it was another one than before */
	unsigned stale;		/* so many next writes: the generation changed */
	int fail;		/* status of the next write */
	unsigned delay_us;
	/* largest length that was recorded before the bytes in front of it were, minus those; for
	 * the order of commits */
	uint64_t gap;
};

static void one_touch_locked(struct one_meta *m)
{
	m->attr.ctime.nsec++;
	m->attr.mtime = m->attr.ctime;
}

static int one_read(struct meta *base, uint64_t inode, uint32_t index, uint32_t n,
		    struct chunk_list *ret)
{
	struct one_meta *m = container_of(base, struct one_meta, base);

	assert_int_equal(inode, INODE);
	if (m->delay_us)
		usleep(m->delay_us);
	mtx_lock(&m->lock);
	m->reads++;
	for (uint32_t i = 0; i < n; i++) {
		size_t k = index + i < CHUNKS ? m->chunk[index + i].n : 0;

		ret[i] = (struct chunk_list){.index = index + i,
					     .volume = m->volume,
					     .attr = m->attr,
					     .n = k,
					     .slices = calloc(k + 1, sizeof(struct slice))};
		assert_non_null(ret[i].slices);
		if (k)
			memcpy(ret[i].slices, m->chunk[index + i].s, k * sizeof(struct slice));
	}
	mtx_unlock(&m->lock);
	if (m->hook)
		m->hook();
	return 0;
}

static void one_record_locked(struct one_meta *m, uint32_t index, const struct slice *s)
{
	struct slice *more = realloc(m->chunk[index].s, (m->chunk[index].n + 1) * sizeof(*more));

	assert_non_null(more);
	more[m->chunk[index].n++] = *s;
	m->chunk[index].s = more;
	m->attr.length = MAX(m->attr.length, ((uint64_t)index << CHUNK_BITS) + s->pos + s->len);
	one_touch_locked(m);
}

static bool has_objects(struct one_meta *m, const struct slice *s)
{
	bool all = true;

	for (uint32_t i = 0; i * (uint64_t)m->block_size < s->size; i++) {
		const struct hash128 any = {{0}};
		struct block_key key;
		char name[BLOCK_NAME_MAX];

		block_key_init(&key, &any, s->id, i, block_size_at(s->size, m->block_size, i));
		block_key_object(&key, "vol", false, name);
		mtx_lock(&m->store->lock);
		all = all && mem_find_locked(m->store, name);
		mtx_unlock(&m->store->lock);
	}
	return all;
}

static int one_write(struct meta *base, uint64_t inode, uint32_t index, const struct slice *s,
		     struct time_ns mtime, struct attr *ret)
{
	struct one_meta *m = container_of(base, struct one_meta, base);
	uint64_t start = ((uint64_t)index << CHUNK_BITS) + s->pos;
	int r = 0;

	assert_int_equal(inode, INODE);
	assert_true(index < CHUNKS && s->len == s->size && s->off == 0);
	assert_true(has_objects(m, s));
	if (m->delay_us)
		usleep(m->delay_us);
	mtx_lock(&m->lock);
	m->writes++;
	if (m->writes > 1 && (mtime.sec != m->written.sec || mtime.nsec != m->written.nsec))
		m->times++;
	m->written = mtime;
	if (m->stale) {
		m->stale--;
		m->next_slice += 1000;
		r = -ESTALE;
	} else if (m->fail) {
		r = m->fail;
		m->fail = 0;
	} else {
		if (start > m->attr.length)
			m->gap = MAX(m->gap, start - m->attr.length);
		one_record_locked(m, index, s);
		*ret = m->attr;
	}
	mtx_unlock(&m->lock);
	if (r == -ESTALE) {
		mtx_lock(&base->lock);
		base->volume.b[0]++;
		mtx_unlock(&base->lock);
	}
	return r;
}

static int one_new_slice(struct meta *base, uint64_t *ret, struct hash128 *ret_volume)
{
	struct one_meta *m = container_of(base, struct one_meta, base);

	mtx_lock(&m->lock);
	*ret = ++m->next_slice;
	*ret_volume = m->volume;
	mtx_unlock(&m->lock);
	if (m->hook)
		m->hook();
	return 0;
}

static const struct meta_ops one_ops = {
	.name = "one file", .read = one_read, .write = one_write, .new_slice = one_new_slice};

/* --- all of it --- */

struct data_env {
	struct mem_store *store;
	struct one_meta meta;
	struct meta *m;
	uint64_t inode;
	struct client_delete deleter;
	struct workq *metaq, *deleteq, *codecs;
	struct loop *timers;
	struct req_env env;
	struct source *chain;
	struct reader *reader;
	struct writer *writer;
	struct rfile *rfile;
	struct rhandle *handle;
	struct wfile *wfile;
};

static void env_committed(void *arg, uint64_t inode, const struct attr *a)
{
	struct data_env *e = arg;

	assert_int_equal(inode, e->inode);
	if (e->rfile)
		rfile_attr(e->rfile, a, rfile_epoch(e->rfile));
}

/* an engine of its own (with an inode), or NULL: the one of one file */
static void env_start_over(struct data_env *e, struct meta *meta, uint64_t inode,
			   uint32_t block_size, size_t pool_bytes, enum codec codec,
			   uint64_t max_readahead)
{
	const struct meta_conf mc = {0};

	*e = (struct data_env){.m = meta ? meta : &e->meta.base, .inode = inode};
	e->store = calloc(1, sizeof(*e->store));
	assert_non_null(e->store);
	e->store->base.ops = &mem_ops;
	mtx_init(&e->store->lock);
	assert_int_equal(hashmap_init(&e->store->objects, 64), 0);
	assert_int_equal(workq_new("store", 4, 10000, &e->store->q), 0);

	assert_int_equal(meta_init(&e->meta.base, &one_ops, &mc, NULL), 0);
	e->meta.store = e->store;
	e->meta.block_size = block_size;
	mtx_init(&e->meta.lock);
	e->meta.attr = (struct attr){.type = INODE_FILE,
				     .mode = 0644,
				     .nlink = 1,
				     .ctime = {1000, 0},
				     .mtime = {1000, 0}};

	assert_int_equal(workq_new("meta", 3, 10000, &e->metaq), 0);
	assert_int_equal(workq_new("delete", 2, 10000, &e->deleteq), 0);
	if (codec != CODEC_NONE)
		assert_int_equal(workq_new("codec", 2, 10000, &e->codecs), 0);
	assert_int_equal(loop_new("timers", &e->timers), 0);
	e->env.timers = e->timers;
	e->env.codec = codec;
	e->env.block_size = block_size;
	/* an encoded block may be longer than the block */
	assert_int_equal(pool_new(pool_bytes, codec_bound(codec, block_size), &e->env.pool), 0);

	const struct client_chain_conf cc = {
		.env = &e->env,
		.ram_bytes = pool_bytes / 2,
		.store = &e->store->base,
		.volume_name = "vol",
		.codecs = e->codecs,
	};
	assert_int_equal(client_chain_new(&cc, &e->chain), 0);

	e->deleter = (struct client_delete){&e->store->base, "vol", false, block_size};

	const struct reader_conf rc = {
		.meta = e->m,
		.metaq = e->metaq,
		.env = &e->env,
		.chain = e->chain,
		.max_readahead = max_readahead,
		.io_retries = 4,
	};
	assert_int_equal(reader_new(&rc, &e->reader), 0);
	const struct writer_conf wc = {
		.meta = e->m,
		.metaq = e->metaq,
		.env = &e->env,
		.chain = e->chain,
		.max_uploads = 6,
		.flush_us = 5000000,
		.committed = env_committed,
		.arg = e,
		.deleteq = e->deleteq,
		.delete_slice = client_delete_slice,
		.delete_arg = &e->deleter,
	};
	assert_int_equal(writer_new(&wc, &e->writer), 0);
	assert_int_equal(rfile_get(e->reader, inode, &e->rfile), 0);
	assert_int_equal(rhandle_new(e->rfile, &e->handle), 0);
	assert_int_equal(wfile_get(e->writer, inode, 0, &e->wfile), 0);
}

static inline void env_start(struct data_env *e, uint32_t block_size, size_t pool_bytes,
			     enum codec codec, uint64_t max_readahead)
{
	env_start_over(e, NULL, INODE, block_size, pool_bytes, codec, max_readahead);
}

static void env_stop(struct data_env *e)
{
	(void)writer_flush_all(e->writer);
	wfile_put(e->wfile);
	rhandle_free(e->handle);
	req_env_drain(&e->env);
	workq_free(e->metaq);
	workq_free(e->deleteq);
	rfile_put(e->rfile);
	writer_free(e->writer);
	reader_free(e->reader);
	source_free(e->chain);
	object_free(&e->store->base);
	workq_free(e->codecs);
	loop_free(e->timers);
	pool_free(e->env.pool);
	for (unsigned i = 0; i < CHUNKS; i++)
		free(e->meta.chunk[i].s);
	mtx_fini(&e->meta.lock);
	meta_fini(&e->meta.base);
}

/* --- calls that wait --- */

struct waited {
	struct mtx lock;
	struct cond cond;
	bool done;
	int status;
	size_t total;
	unsigned char *to;
};

static void waited_init(struct waited *w)
{
	*w = (struct waited){0};
	mtx_init(&w->lock);
	cond_init(&w->cond);
}

static void waited_done(struct waited *w, int status)
{
	mtx_lock(&w->lock);
	w->status = status;
	w->done = true;
	cond_signal(&w->cond);
	mtx_unlock(&w->lock);
}

static int waited_wait(struct waited *w)
{
	mtx_lock(&w->lock);
	while (!w->done)
		cond_wait(&w->cond, &w->lock);
	mtx_unlock(&w->lock);
	cond_fini(&w->cond);
	mtx_fini(&w->lock);
	return w->status;
}

struct a_write {
	struct write_op op;
	struct waited w;
};
struct a_flush {
	struct flush_op op;
	struct waited w;
};
struct a_read {
	struct read_op op;
	struct waited w;
};

static void a_write_done(struct write_op *op, int status)
{
	waited_done(&container_of(op, struct a_write, op)->w, status);
}

static inline void a_write_start(struct data_env *e, struct a_write *a, uint64_t off,
				 const void *data, uint32_t len)
{
	a->op = (struct write_op){
		.f = e->wfile, .data = data, .len = len, .off = off, .done = a_write_done};
	waited_init(&a->w);
	writer_write(&a->op);
}

static inline int env_write(struct data_env *e, uint64_t off, const void *data, uint32_t len)
{
	struct a_write a;

	a_write_start(e, &a, off, data, len);
	return waited_wait(&a.w);
}

static void a_flush_done(struct flush_op *op, int status)
{
	waited_done(&container_of(op, struct a_flush, op)->w, status);
}

static inline void a_flush_start(struct data_env *e, struct a_flush *a, bool report)
{
	a->op = (struct flush_op){.f = e->wfile, .report = report, .done = a_flush_done};
	waited_init(&a->w);
	writer_flush(&a->op);
}

static inline int env_flush(struct data_env *e, bool report)
{
	struct a_flush a;

	a_flush_start(e, &a, report);
	return waited_wait(&a.w);
}

static void a_read_done(struct read_op *op, int status, const struct iovec *iov, int n,
			size_t total)
{
	struct a_read *a = container_of(op, struct a_read, op);
	size_t at = 0;

	for (int i = 0; i < n; i++) {
		memcpy(a->w.to + at, iov[i].iov_base, iov[i].iov_len);
		at += iov[i].iov_len;
	}
	assert_int_equal(at, total);
	a->w.total = total;
	waited_done(&a->w, status);
}

static inline void a_read_start(struct rhandle *h, struct a_read *a, uint64_t off, void *to,
				uint32_t len)
{
	a->op = (struct read_op){.h = h, .off = off, .len = len, .done = a_read_done};
	waited_init(&a->w);
	a->w.to = to;
	reader_read(&a->op);
}

/* bytes read, or a negative errno */
static inline int env_read(struct data_env *e, uint64_t off, void *to, uint32_t len)
{
	struct a_read a;
	int r;

	a_read_start(e->handle, &a, off, to, len);
	r = waited_wait(&a.w);
	return r < 0 ? r : (int)a.w.total;
}

/* another client writes: objects and a record, by hand */
static inline uint64_t env_put_slice(struct data_env *e, uint32_t index, uint32_t pos,
				     const unsigned char *data, uint32_t len)
{
	const struct hash128 any = {{0}};
	struct slice s = {.pos = pos, .size = len, .len = len};

	(void)one_new_slice(&e->meta.base, &s.id, &(struct hash128){{0}});
	for (uint32_t i = 0; i * (uint64_t)e->env.block_size < len; i++) {
		struct block_key key;
		char name[BLOCK_NAME_MAX];

		block_key_init(&key, &any, s.id, i, block_size_at(len, e->env.block_size, i));
		block_key_object(&key, "vol", false, name);
		mtx_lock(&e->store->lock);
		mem_put_locked(e->store, name, data + i * (size_t)e->env.block_size, key.size);
		mtx_unlock(&e->store->lock);
	}
	mtx_lock(&e->meta.lock);
	one_record_locked(&e->meta, index, &s);
	mtx_unlock(&e->meta.lock);
	return s.id;
}

static inline struct attr env_attr(struct data_env *e)
{
	struct attr a;

	mtx_lock(&e->meta.lock);
	a = e->meta.attr;
	mtx_unlock(&e->meta.lock);
	return a;
}

static inline void fill(unsigned char *p, size_t n, unsigned seed)
{
	uint64_t x = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;

	for (size_t i = 0; i < n; i++) {
		x = x * UINT64_C(6364136223846793005) + 1442695040888963407u;
		p[i] = (unsigned char)(x >> 56);
	}
}

#endif
