/* SPDX-License-Identifier: Apache-2.0 */
/* One volume in many buckets (docs/format.md §5.6): an object lies in the bucket that the FNV-1a
 * hash of its full key names. Requests for one object go to its bucket's store as they are; those
 * for many (list, delete many, create bucket) become one for each bucket, and end when the last of
 * them has. No thread of its own; the lock is over the count of a request's parts. */
#include <strings.h>
#include <sys/stat.h>

#include "common/mtx.h"
#include "common/object/object.h"
#include "common/workq.h"

enum { SHARDS_MAX = 256, LIST_MAX = 1000, SUM_THREADS = 2, SUM_QUEUE = 1 << 16, CONNS_LEAST = 4 };

struct shards {
	struct object_store base;
	struct workq *sums; /* of all the stores */
	unsigned n;
	struct object_store *store[];
};

static uint32_t fnv1a(const char *key)
{
	uint32_t h = 2166136261;

	for (; *key; key++)
		h = (h ^ (unsigned char)*key) * 16777619;
	return h;
}

static unsigned shard_of(const struct shards *s, const char *key)
{
	return fnv1a(key) % s->n;
}

/* --- one request for each bucket --- */

struct part {
	struct object_req req;
	struct fan *fan;
	const char **keys; /* DELETE_MANY */
	size_t at;	   /* LIST: entries taken */
};

struct fan {
	struct shards *s;
	struct object_req *req; /* the caller's */
	struct mtx lock;
	unsigned running;
	int status; /* of the first part that failed */
	struct part part[];
};

static void fan_free(struct fan *f)
{
	for (unsigned i = 0; i < f->s->n; i++) {
		object_list_free(&f->part[i].req);
		free(f->part[i].keys);
	}
	mtx_fini(&f->lock);
	free(f);
}

/* the store whose next entry is the smallest; NULL: none has any */
static struct part *smallest(struct fan *f)
{
	struct part *best = NULL;

	for (unsigned i = 0; i < f->s->n; i++) {
		struct part *p = &f->part[i];

		if (p->at < p->req.n_list &&
		    (!best || strcmp(p->req.list[p->at].key, best->req.list[best->at].key) < 0))
			best = p;
	}
	return best;
}

/* Sorted lists become one. It ends where a store's list ended that has more: what lies behind is
 * not known yet. */
static int merge(struct fan *f)
{
	struct object_req *req = f->req;
	struct part *p;

	req->list = calloc(LIST_MAX, sizeof(*req->list));
	if (!req->list)
		return -ENOMEM;
	while (req->n_list < LIST_MAX && (p = smallest(f))) {
		req->list[req->n_list++] = p->req.list[p->at];
		p->req.list[p->at].key = NULL; /* the caller's now */
		p->at++;
		if (p->at == p->req.n_list && p->req.more)
			break;
	}
	req->more = smallest(f) != NULL;
	for (unsigned i = 0; i < f->s->n; i++)
		if (f->part[i].req.more)
			req->more = true;
	if (req->n_list == 0)
		req->more = false;
	return 0;
}

static void fan_end(struct fan *f)
{
	struct object_req *req = f->req;
	int status = f->status;

	if (status == 0 && req->op == OBJECT_LIST)
		status = merge(f);
	fan_free(f);
	/* its parts were counted */
	req->done(req, status);
}

static void part_done(struct object_req *req, int status)
{
	struct part *p = container_of(req, struct part, req);
	struct fan *f = p->fan;
	bool last;

	/* each may be there from an earlier try */
	if (req->op == OBJECT_CREATE_BUCKET && status == -EEXIST)
		status = 0;
	mtx_lock(&f->lock);
	if (status && !f->status) {
		f->status = status;
		memcpy(f->req->reason, req->reason, sizeof(req->reason));
	}
	last = --f->running == 0;
	mtx_unlock(&f->lock);
	if (last)
		fan_end(f);
}

static int split_keys(struct fan *f)
{
	const struct object_req *req = f->req;

	for (size_t i = 0; i < req->n_keys; i++) {
		struct part *p = &f->part[shard_of(f->s, req->keys[i])];

		if (!p->keys)
			p->keys = calloc(req->n_keys, sizeof(*p->keys));
		if (!p->keys)
			return -ENOMEM;
		p->keys[p->req.n_keys++] = req->keys[i];
	}
	return 0;
}

static int fan_new(struct shards *s, struct object_req *req, struct fan **ret)
{
	struct fan *f = calloc(1, sizeof(*f) + s->n * sizeof(f->part[0]));

	if (!f)
		return -ENOMEM;
	f->s = s;
	f->req = req;
	mtx_init(&f->lock);
	for (unsigned i = 0; i < s->n; i++) {
		struct part *p = &f->part[i];

		p->fan = f;
		p->req = (struct object_req){.op = req->op,
					     .key = req->key,
					     .start_after = req->start_after,
					     .deadline_us = req->deadline_us,
					     .persist_us = req->persist_us,
					     .done = part_done};
	}
	if (req->op == OBJECT_DELETE_MANY && split_keys(f) < 0) {
		fan_free(f);
		return -ENOMEM;
	}
	*ret = f;
	return 0;
}

static void fan_start(struct shards *s, struct object_req *req)
{
	struct fan *f;
	unsigned n = s->n;
	int r = fan_new(s, req, &f);

	if (r) {
		object_done(&s->base, req, r);
		return;
	}
	/* one more than there are: nobody ends it before all have begun */
	f->running = n + 1;
	for (unsigned i = 0; i < n; i++) {
		struct part *p = &f->part[i];

		p->req.keys = p->keys;
		if (req->op == OBJECT_DELETE_MANY && p->req.n_keys == 0)
			part_done(&p->req, 0);
		else
			object_start(s->store[i], &p->req);
	}
	part_done(&f->part[0].req, 0);
}

/* --- the store --- */

static void shard_start(struct object_store *base, struct object_req *req)
{
	struct shards *s = container_of(base, struct shards, base);
	struct object_store *store;

	switch (req->op) {
	case OBJECT_GET:
	case OBJECT_PUT:
	case OBJECT_HEAD:
	case OBJECT_DELETE:
	case OBJECT_RESTORE:
		store = s->store[shard_of(s, req->key)];
		store->ops->start(store, req);
		break;
	case OBJECT_DELETE_MANY:
	case OBJECT_LIST:
	case OBJECT_CREATE_BUCKET:
		fan_start(s, req);
		break;
	}
}

static void shard_free(struct object_store *base)
{
	struct shards *s = container_of(base, struct shards, base);

	workq_free(s->sums); /* runs what is there, which the stores then end */
	for (unsigned i = 0; i < s->n; i++)
		if (s->store[i])
			s->store[i]->ops->free(s->store[i]);
	free(s);
}

/* the template with %d replaced, or its kin that Go's Sprintf takes for a number: %v, %02d … */
static int bucket_name(const char *template, unsigned i, struct str *out, struct str *err)
{
	const char *p = strchr(template, '%');
	size_t digits = p ? strspn(p + 1, "0123456789") : 0;
	unsigned width = 0;
	bool zero = p && p[1] == '0';

	if (!p || (p[1 + digits] != 'd' && p[1 + digits] != 'v') || digits > 2 ||
	    strchr(p + 1 + digits, '%')) {
		str_addf(err,
			 "bucket \"%.200s\": with shards it needs one %%d for the number of the "
			 "bucket",
			 template);
		return -EINVAL;
	}
	for (size_t d = 0; d < digits; d++)
		width = width * 10 + (unsigned)(p[1 + d] - '0');
	str_addn(out, template, (size_t)(p - template));
	str_addf(out, zero ? "%0*u" : "%*u", (int)width, i);
	str_add(out, p + 2 + digits);
	return str_error(out);
}

static int each_conf(const struct object_conf *conf, unsigned i, struct workq *sums,
		     struct str *bucket, struct object_conf *ret, struct str *err)
{
	int r = bucket_name(conf->bucket, i, bucket, err);

	*ret = *conf;
	ret->bucket = str_c(bucket);
	ret->shards = 0;
	ret->sums = sums;
	/* keys spread evenly, by and large */
	ret->max_conns = conf->max_conns ? MIN(conf->max_conns, 2 * conf->max_conns / conf->shards +
									(unsigned)CONNS_LEAST)
					 : 0;
	return r;
}

/* JuiceFS makes a directory with the first object that goes there: others are missing. What cannot
 * be made shows at the first object, too. */
static void make_directory(const struct object_conf *conf)
{
	if (strcasecmp(conf->storage, "file") == 0)
		(void)mkdir(conf->bucket, 0755);
}

/* all of them or none: a name that is wrong for one is wrong for the first already */
static int shard_change(struct object_store *base, const struct object_conf *conf, struct str *err)
{
	struct shards *s = container_of(base, struct shards, base);
	int r = 0;

	if (conf->shards != s->n || !s->store[0]->ops->change) {
		str_add(err, "shards cannot change while they are in use");
		return -EOPNOTSUPP;
	}
	for (unsigned i = 0; i < s->n && r == 0; i++) {
		struct str bucket = STR_INIT;
		struct object_conf one;

		r = each_conf(conf, i, s->sums, &bucket, &one, err);
		if (r == 0)
			r = s->store[i]->ops->change(s->store[i], &one, err);
		str_fini(&bucket);
	}
	return r;
}

static const struct object_ops shard_ops = {"shards", shard_start, shard_free, shard_change};

int object_shard_new(const struct object_conf *conf, struct loop *loop, struct object_metrics *om,
		     struct object_store **ret, struct str *err)
{
	struct shards *s;
	int r;

	if (conf->shards > SHARDS_MAX)
		return -EINVAL;
	s = calloc(1, sizeof(*s) + conf->shards * sizeof(s->store[0]));
	if (!s)
		return -ENOMEM;
	s->base.ops = &shard_ops;
	s->n = conf->shards;
	r = workq_new("s3sum", SUM_THREADS, SUM_QUEUE, &s->sums);
	for (unsigned i = 0; i < s->n && r == 0; i++) {
		struct str bucket = STR_INIT;
		struct object_conf one;

		r = each_conf(conf, i, s->sums, &bucket, &one, err);
		if (r == 0)
			make_directory(&one);
		if (r == 0)
			r = object_open_one(&one, loop, &s->store[i], err);
		if (r == 0)
			s->store[i]->metrics = om;
		str_fini(&bucket);
	}
	if (r) {
		shard_free(&s->base);
		return r;
	}
	*ret = &s->base;
	return 0;
}
