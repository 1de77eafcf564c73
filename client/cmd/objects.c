/* SPDX-License-Identifier: Apache-2.0 */
/* Requests are started from the caller's thread, and waited for there. */
#include "client/cmd/objects.h"

#include <inttypes.h>

#include "client/delete.h"
#include "common/block/key.h"
#include "common/clock.h"
#include "common/mtx.h"
#include "common/object/crypt_block.h"

enum { CALL_US = 300000000, ROOM = 1 << 16 };

struct objects {
	const struct setting *set;
	struct loop *loop;
	struct object_store *store;
	struct client_delete del;
	struct str where;
	bool codec;
	size_t more_least, more_most; /* what encryption adds */
	unsigned parallel;
};

/* by how much an object is longer than what it holds; without the key, what all keys have */
static void added_bytes(struct objects *o)
{
	enum { FRAME = 2 + 1 + 12 + 16, KEY_LEAST = 16, KEY_MOST = 2048 };
	_cleanup_(str_fini) struct str why = STR_INIT;
	struct crypt_block *crypt = NULL;

	if (!o->set->encrypted)
		return;
	o->more_least = FRAME + KEY_LEAST;
	o->more_most = FRAME + KEY_MOST;
	if (volume_open_crypt(o->set, &crypt, &why) == 0) {
		o->more_least = crypt_block_overhead_least(crypt);
		o->more_most = crypt_block_overhead(crypt);
		crypt_block_free(crypt);
	}
}

int objects_open(const struct setting *set, unsigned parallel, struct objects **ret,
		 struct str *err)
{
	struct object_conf conf = {.storage = set->storage, .bucket = set->bucket};
	struct objects *o = calloc(1, sizeof(*o));
	int r;

	if (!o)
		return -ENOMEM;
	o->set = set;
	o->parallel = parallel ? parallel : 1;
	o->codec = set->codec != CODEC_NONE;
	added_bytes(o);
	r = loop_new("objects", &o->loop);
	if (r == 0)
		r = volume_open_store(set, o->loop, o->parallel, NULL, &o->store, err);
	if (r < 0) {
		if (err->len == 0)
			str_addf(err, "the object store: %s", strerror(-r));
		objects_free(o);
		return r;
	}
	object_describe(&conf, &o->where);
	o->del = (struct client_delete){.store = o->store,
					.volume_name = set->name,
					.hash_prefix = set->hash_prefix,
					.block_size = set->block_size};
	*ret = o;
	return 0;
}

void objects_free(struct objects *o)
{
	if (!o)
		return;
	object_free(o->store);
	loop_free(o->loop);
	str_fini(&o->where);
	free(o);
}

const char *objects_where(const struct objects *o)
{
	return str_c(&o->where);
}

struct loop *objects_loop(struct objects *o)
{
	return o->loop;
}

struct object_store *objects_store(struct objects *o)
{
	return o->store;
}

bool objects_size_fits(const struct objects *o, uint32_t plain, uint64_t stored)
{
	if (o->codec)
		return stored > o->more_least;
	return stored >= plain + o->more_least && stored <= plain + o->more_most;
}

const char *objects_unsure(const struct objects *o)
{
	if (o->codec)
		return "objects are compressed: whether one was cut short shows only when it is "
		       "read";
	if (o->more_least < o->more_most)
		return "objects are encrypted, and their exact lengths not known without the "
		       "passphrase (JFS_RSA_PASSPHRASE): one that was cut by a little shows only "
		       "when it is read";
	return NULL;
}

uint32_t objects_count(const struct objects *o, uint32_t size)
{
	return (uint32_t)DIV_UP((uint64_t)size, o->set->block_size);
}

static void block_name(const struct objects *o, uint64_t slice, uint32_t index, uint32_t plain,
		       char ret[BLOCK_NAME_MAX])
{
	const struct hash128 any = {{0}};
	struct block_key k;

	block_key_init(&k, &any, slice, index, plain);
	block_key_object(&k, o->set->name, o->set->hash_prefix, ret);
}

/* --- listing --- */

static void recognize(const struct objects *o, const char *key, struct object_found *f)
{
	const struct hash128 any = {{0}};
	const char *slash = strrchr(key, '/');
	char want[BLOCK_NAME_MAX];
	struct block_key k;

	f->block = slash && block_key_parse(slash + 1, &any, &k) == 0;
	if (!f->block)
		return;
	block_key_object(&k, o->set->name, o->set->hash_prefix, want);
	f->block = strcmp(want, key) == 0;
	f->slice = k.slice;
	f->index = k.index;
	f->plain = k.size;
}

static int page(struct objects *o, struct object_req *req, objects_fn *fn, void *arg)
{
	int r = 0;

	for (size_t i = 0; i < req->n_list && r == 0; i++) {
		struct object_found f = {.key = req->list[i].key,
					 .size = req->list[i].size,
					 .mtime = req->list[i].mtime};

		recognize(o, f.key, &f);
		r = fn(arg, &f);
	}
	return r;
}

int objects_each(struct objects *o, const int *cancel, objects_fn *fn, void *arg, struct str *err)
{
	_cleanup_(freep) char *last = NULL;
	_cleanup_(str_fini) struct str prefix = STR_INIT;
	bool more = true;
	int r = 0;

	str_addf(&prefix, "%s/chunks/", o->set->name);
	if (str_error(&prefix) < 0)
		return -ENOMEM;
	while (more && r == 0) {
		struct object_req req = {
			.op = OBJECT_LIST, .key = str_c(&prefix), .start_after = last};

		if (cancel && __atomic_load_n(cancel, __ATOMIC_RELAXED))
			return -EINTR;
		r = object_run(o->store, &req);
		if (r < 0) {
			str_addf(err, "%s", req.reason);
			return r;
		}
		r = page(o, &req, fn, arg);
		more = req.more && req.n_list > 0;
		if (more && r == 0) {
			free(last);
			last = strdup(req.list[req.n_list - 1].key);
			r = last ? 0 : -ENOMEM;
		}
		object_list_free(&req);
	}
	return r;
}

/* --- looking at blocks --- */

struct checking {
	struct mtx lock;
	struct cond done;
	unsigned running;
};
struct head {
	struct object_req req;
	struct checking *c;
	const struct object_slice *s;
	char key[BLOCK_NAME_MAX];
	uint32_t index, plain;
	int status;
};

static void head_done(struct object_req *req, int status)
{
	struct head *h = container_of(req, struct head, req);
	struct checking *c = h->c;

	mtx_lock(&c->lock);
	h->status = status;
	c->running--;
	cond_signal(&c->done);
	mtx_unlock(&c->lock);
}

static void head_all(struct objects *o, struct checking *c, struct head *h, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		mtx_lock(&c->lock);
		while (c->running >= o->parallel)
			cond_wait(&c->done, &c->lock);
		c->running++;
		mtx_unlock(&c->lock);
		h[i].req =
			(struct object_req){.op = OBJECT_HEAD, .key = h[i].key, .done = head_done};
		object_start(o->store, &h[i].req);
	}
	mtx_lock(&c->lock);
	while (c->running > 0)
		cond_wait(&c->done, &c->lock);
	mtx_unlock(&c->lock);
}

static size_t heads_of(struct objects *o, struct checking *c, const struct object_slice *s,
		       struct head *h)
{
	uint32_t n = objects_count(o, s->size);

	for (uint32_t i = 0; i < n; i++) {
		h[i].c = c;
		h[i].s = s;
		h[i].index = i;
		h[i].plain = block_size_at(s->size, o->set->block_size, i);
		block_name(o, s->slice, i, h[i].plain, h[i].key);
	}
	return n;
}

int objects_check(struct objects *o, const struct object_slice *s, size_t n,
		  const struct object_check *oc)
{
	struct checking c = {.running = 0};
	size_t all = 0, at = 0;
	struct head *h;

	for (size_t i = 0; i < n; i++)
		all += objects_count(o, s[i].size);
	h = calloc(all ? all : 1, sizeof(*h));
	if (!h)
		return -ENOMEM;
	mtx_init(&c.lock);
	cond_init(&c.done);
	for (size_t i = 0; i < n; i++)
		at += heads_of(o, &c, &s[i], h + at);
	head_all(o, &c, h, all);
	mtx_fini(&c.lock);
	cond_fini(&c.done);
	for (size_t i = 0; i < all; i++) {
		if (h[i].status == -ENOENT)
			oc->bad(oc->arg, h[i].s, h[i].index, h[i].plain, -1);
		else if (h[i].status < 0)
			oc->unknown(oc->arg, h[i].req.reason);
		else if (!objects_size_fits(o, h[i].plain, h[i].req.got))
			oc->bad(oc->arg, h[i].s, h[i].index, h[i].plain, (int64_t)h[i].req.got);
	}
	free(h);
	return 0;
}

/* --- storage classes --- */

static int run(struct objects *o, struct object_req *req, struct str *err)
{
	int r;

	req->deadline_us = clock_us() + CALL_US;
	r = object_run(o->store, req);
	if (r < 0)
		str_addf(err, "%s", req->reason[0] ? req->reason : strerror(-r));
	return r;
}

int objects_store_again(struct objects *o, const struct object_slice *s, uint8_t tier,
			uint64_t *ret_bytes, struct str *err)
{
	/* compressed bytes are never twice as many */
	size_t cap = (size_t)2 * o->set->block_size + ROOM + o->more_most;
	_cleanup_(freep) unsigned char *buf = malloc(cap);
	char key[BLOCK_NAME_MAX];
	int r = buf ? 0 : -ENOMEM;

	*ret_bytes = 0;
	if (strcmp(o->set->storage, "file") == 0)
		return r;
	for (uint32_t i = 0; i < objects_count(o, s->size) && r == 0; i++) {
		struct object_req get = {.op = OBJECT_GET, .key = key, .buf = buf, .cap = cap};
		struct object_req put = {.op = OBJECT_PUT, .key = key, .buf = buf, .tier = tier};

		block_name(o, s->slice, i, block_size_at(s->size, o->set->block_size, i), key);
		r = run(o, &get, err);
		put.cap = get.got;
		if (r == 0)
			r = run(o, &put, err);
		*ret_bytes += r == 0 ? put.cap : 0;
	}
	return r;
}

int objects_restore(struct objects *o, const struct object_slice *s, unsigned days, struct str *err)
{
	char key[BLOCK_NAME_MAX];
	int r = 0;

	for (uint32_t i = 0; i < objects_count(o, s->size) && r == 0; i++) {
		struct object_req req = {.op = OBJECT_RESTORE, .key = key, .days = days};

		block_name(o, s->slice, i, block_size_at(s->size, o->set->block_size, i), key);
		r = run(o, &req, err);
	}
	return r;
}

/* --- deleting --- */

int objects_delete(struct objects *o, const char *const *keys, size_t n, struct str *err)
{
	struct object_req req = {.op = OBJECT_DELETE_MANY, .keys = keys, .n_keys = n};
	int r = n ? object_run(o->store, &req) : 0;

	if (r < 0 && r != -ENOENT)
		str_addf(err, "%s", req.reason);
	return r == -ENOENT ? 0 : r;
}

int objects_delete_slice(void *arg, uint64_t slice, uint32_t size)
{
	struct objects *o = arg;

	return client_delete_slice(&o->del, slice, size);
}
