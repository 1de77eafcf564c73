/* SPDX-License-Identifier: Apache-2.0 */
/* The last layer: the object store. A get is one GET of the object or of a range of it; encoded
 * blocks always come whole and are decoded in the codecs' threads. What came is checked by length,
 * and never handed on when it is not exactly the block: no layer above could tell. Completions run
 * on the store's thread or, with work for the processor, on a codecs' thread. No lock but the one
 * over the spare buffer.
 *
 *	get: asked -> memory reserved -> object_start -> got -> [decoded, sums] -> done
 *	put: asked -> [buffer to encode into: reserved, or the spare one in turn -> encoded]
 *	     -> object_start -> done */
#include "common/block/source.h"

#include <inttypes.h>

#include "common/mtx.h"

enum { PUT_PERSIST_US = 300 * 1000000 }; /* an upload is not given up sooner */

struct source_object {
	struct source base;
	struct source_object_conf conf;
	/* Encode buffer for puts that came without memory for theirs: with it one of them always
	 * goes on. Made when blocks are encoded. */
	struct mtx lock;
	unsigned char *spare;
	bool spare_lent;
	struct list_node waiting; /* for the spare: block_req.link */
};

/* one get or put under way */
struct transfer {
	struct object_req obj;
	struct source_object *so;
	struct block_req *req;
	struct blob data;   /* get: the answer, with room for sums behind it */
	struct buf *object; /* encoded object; NULL when plain, and for the spare */
	bool spare;
	struct workq_job job;
	char name[BLOCK_NAME_MAX];
};

static struct transfer *transfer_new(struct source_object *so, struct block_req *req)
{
	struct transfer *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	t->so = so;
	t->req = req;
	block_key_object(&req->key, so->conf.volume_name, so->conf.hash_prefix, t->name);
	t->obj.key = t->name;
	t->obj.deadline_us = req->deadline_us;
	t->obj.arg = t;
	return t;
}

static void transfer_free(struct transfer *t)
{
	blob_fini(&t->data);
	buf_unref(t->object);
	free(t);
}

static void in_codecs(struct transfer *t, void (*fn)(struct workq_job *job))
{
	t->job.fn = fn;
	if (t->so->conf.codecs)
		/* bounded by the memory that each of them holds */
		workq_push_always(t->so->conf.codecs, &t->job);
	else
		fn(&t->job);
}

/* the store's verdict as a block's: what every layer above takes for final */
static int verdict(int status)
{
	switch (status) {
	case -ENOENT:
		return -ENODATA;
	case -EACCES:
	case -ETIMEDOUT:
	case -ENOMEM:
	case -ECANCELED:
		return status;
	default:
		return -EIO;
	}
}

/* the way out of a refusal, for whoever reads the one line in the log */
static const char refused[] =
	"; renew ACCESS_KEY and SECRET_KEY of this host's stoke and restart it";

/* completes with what went wrong; the transfer ends */
static void transfer_failed(struct transfer *t, int status)
{
	struct block_req *req = t->req;
	bool named = strstr(t->obj.reason, t->name);
	const char *hint = status == -EACCES ? refused : "";
	char text[BLOCK_NAME_MAX + sizeof(t->obj.reason) + 4];

	if (!t->obj.reason[0])
		snprintf(text, sizeof(text), "%s: %s", t->name, strerror(-status));
	else
		snprintf(text, sizeof(text), "%s%s%s", named ? "" : t->name, named ? "" : ": ",
			 t->obj.reason);
	transfer_free(t);
	req_fail(req, verdict(status), "%.*s%s", (int)(REQ_REASON - 1 - strlen(hint)), text, hint);
}

/* --- get --- */

static bool whole(const struct block_req *req)
{
	return req->len == req->key.size;
}

static void get_finish(struct transfer *t)
{
	struct block_req *req = t->req;
	size_t sums_len = msg_sums_len(req->len);

	if (whole(req) && req->env->want_sums) {
		block_sums(&req->key, 0, blob_mem(&t->data), req->len, t->data.buf->mem + req->len);
		req->sums = blob_of_buf(buf_ref(t->data.buf), req->len, sums_len);
	}
	req->data = t->data;
	t->data = (struct blob){0};
	req->via = VIA_OBJECT;
	transfer_free(t);
	req_done(req, 0);
}

static void get_job(struct workq_job *job)
{
	struct transfer *t = container_of(job, struct transfer, job);
	struct block_req *req = t->req;

	if (t->object) {
		int r = coding_decode(req_coding(req->env), t->object->mem, t->obj.got,
				      t->data.buf->mem, req->len);

		if (r == -ENOMEM) {
			transfer_failed(t, r);
			return;
		}
		if (r) {
			snprintf(t->obj.reason, sizeof(t->obj.reason),
				 "%s: object of %zu bytes does not %s to the block's %" PRIu32,
				 t->name, t->obj.got, req->env->crypt ? "decrypt" : "decode",
				 req->len);
			transfer_failed(t, -EIO);
			return;
		}
		buf_unref(TAKE_PTR(t->object));
	}
	get_finish(t);
}

static void get_done(struct object_req *obj, int status)
{
	struct transfer *t = obj->arg;
	struct block_req *req = t->req;

	if (status == -EMSGSIZE && !obj->reason[0])
		snprintf(obj->reason, sizeof(obj->reason),
			 "%s: object is longer than the %zu bytes expected", t->name, obj->cap);
	if (status) {
		transfer_failed(t, status);
	} else if (!t->object && obj->got != req->len) {
		snprintf(obj->reason, sizeof(obj->reason),
			 "%s: got %zu bytes of [%" PRIu32 ", +%" PRIu32 "), %" PRIu32 " expected",
			 t->name, obj->got, req->off, req->len, req->len);
		transfer_failed(t, -EIO);
	} else if (t->object || (whole(req) && req->env->want_sums)) {
		in_codecs(t, get_job);
	} else {
		get_finish(t);
	}
}

static void get_progress(struct object_req *obj, size_t valid)
{
	struct transfer *t = obj->arg;

	req_progress(t->req, &t->data, MIN(valid, (size_t)t->req->len));
}

/* the answer's buffer, and the object's when it is encoded */
static bool get_buffers(struct transfer *t)
{
	struct block_req *req = t->req;
	struct coding coding = req_coding(req->env);
	struct buf *b;

	b = req_take(req,
		     req->len + (whole(req) && req->env->want_sums ? msg_sums_len(req->len) : 0));
	if (!b)
		return false;
	t->data = blob_of_buf(b, 0, req->len);
	if (coding_is_plain(coding))
		return true;
	t->object = req_take(req, coding_bound(coding, req->key.size));
	return t->object;
}

static void get_reserved(struct block_req *req, int status, void *arg)
{
	struct source_object *so = arg;
	struct transfer *t;

	if (status) {
		req_done(req, status);
		return;
	}
	t = transfer_new(so, req);
	if (!t || !get_buffers(t)) {
		if (t)
			transfer_free(t);
		req_done(req, -ENOMEM);
		return;
	}
	t->obj.op = OBJECT_GET;
	t->obj.done = get_done;
	if (t->object) {
		t->obj.buf = t->object->mem;
		t->obj.cap = coding_bound(req_coding(req->env), req->key.size);
	} else {
		t->obj.buf = t->data.buf->mem;
		t->obj.cap = req->len;
		t->obj.progress = req->progress ? get_progress : NULL;
		if (!whole(req)) {
			t->obj.off = req->off;
			t->obj.len = req->len;
		}
	}
	object_start(so->conf.store, &t->obj);
}

static struct source *top_of(struct source *s)
{
	while (s->prev)
		s = s->prev;
	return s;
}

static void object_get(struct source *s, struct block_req *req)
{
	struct source_object *so = container_of(s, struct source_object, base);

	if (req->flags & (REQ_NO_FILL | REQ_FILL | REQ_PROBE)) {
		req_done(req, -ENOENT);
	} else if (!coding_is_plain(req_coding(req->env)) && !whole(req)) {
		/* from the top, where equal ones become one and the whole block is kept */
		req_whole(req, top_of(s));
	} else {
		__atomic_store_n(&req->way, WAY_OBJECT, __ATOMIC_RELEASE);
		req_reserve(req, get_reserved, so);
	}
}

/* --- put --- */

static void put_encode(struct source_object *so, struct block_req *req, struct buf *object);

/* the spare goes to the next in line */
static void spare_release(struct source_object *so)
{
	struct list_node *n;

	mtx_lock(&so->lock);
	n = list_pop(&so->waiting);
	so->spare_lent = n;
	mtx_unlock(&so->lock);
	if (n)
		put_encode(so, container_of(n, struct block_req, link), NULL);
}

static void put_done(struct object_req *obj, int status)
{
	struct transfer *t = obj->arg;
	struct source_object *so = t->so;
	struct block_req *req = t->req;
	bool spare = t->spare;

	if (spare)
		spare_release(so);
	if (status) {
		transfer_failed(t, status);
		return;
	}
	transfer_free(t);
	req_done(req, 0);
}

static void put_start(struct transfer *t, unsigned char *mem, size_t len)
{
	t->obj.op = OBJECT_PUT;
	t->obj.done = put_done;
	t->obj.persist_us = PUT_PERSIST_US;
	t->obj.tier = t->req->tier;
	t->obj.buf = mem;
	t->obj.cap = len;
	object_start(t->so->conf.store, &t->obj);
}

static void put_job(struct workq_job *job)
{
	struct transfer *t = container_of(job, struct transfer, job);
	struct block_req *req = t->req;
	struct coding coding = req_coding(req->env);
	unsigned char *mem = t->spare ? t->so->spare : t->object->mem;
	ssize_t n = coding_encode(coding, blob_mem(&req->data), req->key.size, mem,
				  coding_bound(coding, req->key.size));

	if (n > 0)
		put_start(t, mem, (size_t)n);
	else
		put_done(&t->obj, n == -ENOMEM ? -ENOMEM : -EIO);
}

/* object: where to encode; NULL: in the spare, which is this request's now */
static void put_encode(struct source_object *so, struct block_req *req, struct buf *object)
{
	struct transfer *t = transfer_new(so, req);

	if (t) {
		t->object = object;
		t->spare = !object;
		in_codecs(t, put_job);
		return;
	}
	if (object)
		buf_unref(object);
	else
		spare_release(so);
	req_done(req, -ENOMEM);
}

/* in the spare now, or when it comes back */
static void put_in_spare(struct source_object *so, struct block_req *req)
{
	bool now;

	mtx_lock(&so->lock);
	now = !so->spare_lent;
	so->spare_lent = true;
	if (!now)
		list_add_tail(&so->waiting, &req->link);
	mtx_unlock(&so->lock);
	if (now)
		put_encode(so, req, NULL);
}

static void put_plain(struct source_object *so, struct block_req *req)
{
	struct transfer *t = transfer_new(so, req);

	if (t)
		put_start(t, req->data.buf->mem + req->data.off, req->data.len);
	else
		req_done(req, -ENOMEM);
}

static void object_put(struct source *s, struct block_req *req)
{
	struct source_object *so = container_of(s, struct source_object, base);
	size_t need = req_put_need(s->env, req->key.size);
	struct buf *b = NULL;

	assert(blob_mem(&req->data) && req->data.len == req->key.size);
	if (coding_is_plain(req_coding(s->env))) {
		put_plain(so, req);
		return;
	}
	if (req->reserved < need && !pool_reserve(s->env->pool, req->klass, need, NULL))
		req->reserved += need;
	if (req->reserved >= need)
		b = req_take(req, coding_bound(req_coding(s->env), req->key.size));
	if (b)
		put_encode(so, req, b);
	else
		put_in_spare(so, req);
}

/* --- the layer --- */

static void object_layer_free(struct source *s)
{
	struct source_object *so = container_of(s, struct source_object, base);

	assert(!so->spare_lent);
	source_fini(s);
	mtx_fini(&so->lock);
	free(so->spare);
	free(so);
}

static const struct source_ops object_layer_ops = {
	.name = "object", .get = object_get, .put = object_put, .free = object_layer_free};

int source_object_new(struct req_env *env, const struct source_object_conf *conf,
		      struct source **ret)
{
	struct source_object *so = calloc(1, sizeof(*so));

	if (!so)
		return -ENOMEM;
	so->conf = *conf;
	list_init(&so->waiting);
	if (!coding_is_plain(req_coding(env))) {
		so->spare = malloc(coding_bound(req_coding(env), env->block_size));
		if (!so->spare) {
			free(so);
			return -ENOMEM;
		}
	}
	if (source_init(&so->base, &object_layer_ops, env, NULL)) {
		free(so->spare);
		free(so);
		return -ENOMEM;
	}
	mtx_init(&so->lock);
	*ret = &so->base;
	return 0;
}
