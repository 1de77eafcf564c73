/* SPDX-License-Identifier: Apache-2.0 */
/* The front of every object store: picks the implementation, counts what comes back, and waits for
 * those who may. Any thread; a store's completions run wherever the store ends them. */
#include "common/object/object.h"

#include <stdarg.h>
#include <strings.h>

#include "common/clock.h"
#include "common/mtx.h"
#include "common/object/object_limit.h"
#include "common/object/object_s3_url.h"

enum { OPS = OBJECT_RESTORE + 1 };
enum result { RESULT_OK, RESULT_ABSENT, RESULT_DENIED, RESULT_TIMEOUT, RESULT_ERROR, RESULTS };

struct object_metrics {
	struct metric *requests[OPS][2][RESULTS]; /* second index: range */
	struct metric *bytes[OPS];
	struct metric *seconds[OPS];
	struct metric *retries, *slow_downs, *cuts;
	struct object_limit *limit; /* the front's, for parts of it; NULL: none */
	bool slowed;		    /* atomic */
};

static const char *const op_names[OPS] = {"get",	 "put",	 "head",	  "delete",
					  "delete_many", "list", "create_bucket", "restore"};
static const char *const result_names[RESULTS] = {"ok", "absent", "denied", "timeout", "error"};

const char *object_op_name(enum object_op op)
{
	return op_names[op];
}

static int metrics_init(struct object_metrics *om, struct metrics *m)
{
	char labels[96];

	for (int op = 0; op < OPS; op++) {
		for (int i = 0; i < 2 * RESULTS; i++) {
			(void)snprintf(labels, sizeof(labels),
				       "op=\"%s\",range=\"%d\",result=\"%s\"", op_names[op],
				       i / RESULTS, result_names[i % RESULTS]);
			if (i >= RESULTS && op != OBJECT_GET)
				continue;
			om->requests[op][i / RESULTS][i % RESULTS] = metrics_get(
				m, "stoke_object_requests_total", labels, METRIC_COUNTER,
				"requests to the object store by outcome");
			if (!om->requests[op][i / RESULTS][i % RESULTS])
				return -ENOMEM;
		}
		(void)snprintf(labels, sizeof(labels), "op=\"%s\"", op_names[op]);
		om->seconds[op] =
			metrics_get(m, "stoke_object_seconds", labels, METRIC_HISTOGRAM,
				    "time of a request to the object store, retries included");
		om->bytes[op] = metrics_get(m, "stoke_object_bytes_total", labels, METRIC_COUNTER,
					    "bytes read from or written to the object store");
		if (!om->seconds[op] || !om->bytes[op])
			return -ENOMEM;
	}
	om->retries = metrics_get(m, "stoke_object_retries_total", "", METRIC_COUNTER,
				  "attempts at the object store that failed and were repeated");
	om->slow_downs = metrics_get(m, "stoke_object_slow_downs_total", "", METRIC_COUNTER,
				     "attempts that the object store answered with a wish for "
				     "fewer requests");
	om->cuts = metrics_get(m, "stoke_object_cuts_total", "", METRIC_COUNTER,
			       "times that the rate of reads from the object store was halved, on "
			       "its own wish or another member's");
	return om->retries && om->slow_downs && om->cuts ? 0 : -ENOMEM;
}

/* names of storages are taken in any case, as JuiceFS does */
static bool is_file(const struct object_conf *conf)
{
	return strcasecmp(conf->storage, "file") == 0;
}

int object_open_one(const struct object_conf *conf, struct loop *loop, struct object_store **ret,
		    struct str *err)
{
	if (is_file(conf))
		return object_file_new(conf, ret, err);
	if (s3_storage_known(conf->storage))
		return object_s3_new(conf, loop, ret, err);
	str_addf(err,
		 "object storage \"%s\" is not handled: give its S3 endpoint as storage \"s3\", if "
		 "it has one",
		 conf->storage);
	return -EOPNOTSUPP;
}

int object_open(const struct object_conf *conf, struct loop *loop, struct object_store **ret,
		struct str *err)
{
	struct object_metrics *om = calloc(1, sizeof(*om));
	struct object_store *s = NULL;
	int r;

	if (!om)
		return -ENOMEM;
	r = conf->metrics ? metrics_init(om, conf->metrics) : 0;
	if (r == 0)
		r = conf->shards > 1
			    ? object_shard_new(conf, loop, conf->metrics ? om : NULL, &s, err)
			    : object_open_one(conf, loop, &s, err);
	if (r < 0) {
		free(om);
		return r;
	}
	assert(s);
	s->metrics = om;
	r = loop ? object_limit_new(s, loop, &s->limit) : 0;
	if (r < 0) {
		object_free(s);
		return r;
	}
	if (s->limit)
		object_limit_set(s->limit, conf->upload_limit, conf->download_limit);
	om->limit = s->limit;
	*ret = s;
	return 0;
}

void object_free(struct object_store *s)
{
	struct object_metrics *om;

	if (!s)
		return;
	om = s->metrics; /* its counters are needed until the last request ended */
	if (om)
		__atomic_store_n(&om->limit, NULL, __ATOMIC_RELEASE);
	object_limit_free(s->limit);
	s->limit = NULL;
	s->ops->free(s);
	free(om);
}

int object_change(struct object_store *s, const struct object_conf *conf, struct str *err)
{
	int r = -EOPNOTSUPP;

	if (s->ops->change)
		r = s->ops->change(s, conf, err);
	else
		str_addf(err, "storage %s cannot change while it is in use", s->ops->name);
	return r;
}

void object_change_limits(struct object_store *s, uint64_t upload, uint64_t download)
{
	if (s->limit)
		object_limit_set(s->limit, upload, download);
}

void object_share(struct object_store *s, unsigned processes)
{
	if (s->limit)
		object_limit_share(s->limit, processes);
}

static void slow(struct object_metrics *om)
{
	struct object_limit *l = __atomic_load_n(&om->limit, __ATOMIC_ACQUIRE);

	if (l && object_limit_slow(l))
		metric_add(om->cuts, 1);
}

void object_slow(struct object_store *s)
{
	slow(s->metrics);
}

bool object_was_slowed(struct object_store *s)
{
	return __atomic_exchange_n(&s->metrics->slowed, false, __ATOMIC_RELAXED);
}

static bool is_valid(const struct object_req *req)
{
	switch (req->op) {
	case OBJECT_DELETE_MANY:
		return req->n_keys <= 1000;
	case OBJECT_LIST:
		return req->key != NULL;
	case OBJECT_CREATE_BUCKET:
		return true;
	case OBJECT_GET:
		return req->key && *req->key && (req->buf || req->cap == 0) && req->len <= req->cap;
	case OBJECT_PUT:
		return req->key && *req->key && (req->buf || req->cap == 0);
	case OBJECT_HEAD:
	case OBJECT_DELETE:
	case OBJECT_RESTORE:
		return req->key && *req->key;
	}
	return false;
}

void object_start(struct object_store *s, struct object_req *req)
{
	assert(req->done && is_valid(req));
	req->got = 0;
	req->list = NULL;
	req->n_list = 0;
	req->more = false;
	req->reason[0] = '\0';
	req->priv = NULL;
	req->start_us = clock_us();
	list_init(&req->link);
	if (s->limit)
		object_limit_start(s->limit, req);
	else
		s->ops->start(s, req);
}

static enum result result_of(int status)
{
	switch (status) {
	case 0:
		return RESULT_OK;
	case -ENOENT:
	case -ENODATA:
		return RESULT_ABSENT;
	case -EACCES:
		return RESULT_DENIED;
	case -ETIMEDOUT:
		return RESULT_TIMEOUT;
	default:
		return RESULT_ERROR;
	}
}

static void count(const struct object_metrics *om, const struct object_req *req, int status)
{
	bool range = req->op == OBJECT_GET && (req->len || req->off);

	metric_add(om->requests[req->op][range][result_of(status)], 1);
	metric_observe_us(om->seconds[req->op], clock_us() - req->start_us);
	if (status == 0 && req->op == OBJECT_GET)
		metric_add(om->bytes[OBJECT_GET], req->got);
	else if (status == 0 && req->op == OBJECT_PUT)
		metric_add(om->bytes[OBJECT_PUT], req->cap);
}

void object_done(struct object_store *s, struct object_req *req, int status)
{
	if (s->metrics)
		count(s->metrics, req, status);
	if (s->limit)
		object_limit_done(s->limit, req);
	if (status < 0 && !req->reason[0])
		object_reason(req, "%s", strerror(-status));
	req->done(req, status);
}

void object_retried(struct object_store *s, bool later)
{
	struct object_metrics *om = s->metrics;

	if (!om)
		return;
	metric_add(om->retries, 1);
	if (!later)
		return;
	metric_add(om->slow_downs, 1);
	__atomic_store_n(&om->slowed, true, __ATOMIC_RELAXED);
	slow(om);
}

void object_reason(struct object_req *req, const char *fmt, ...)
{
	const char *key = req->op != OBJECT_DELETE_MANY ? req->key
			  : req->n_keys			? req->keys[0]
							: NULL;
	int n = snprintf(req->reason, sizeof(req->reason), "%s %.150s: ", op_names[req->op],
			 key && *key ? key : "bucket");
	va_list ap;

	if (n > 0 && (size_t)n < sizeof(req->reason)) {
		va_start(ap, fmt);
		(void)vsnprintf(req->reason + n, sizeof(req->reason) - (size_t)n, fmt, ap);
		va_end(ap);
	}
	/* one line, whatever a server wrote into its message */
	for (char *p = req->reason; *p; p++) {
		if ((unsigned char)*p < ' ' || *p == 0x7f)
			*p = ' ';
	}
}

struct waiter {
	struct mtx lock;
	struct cond cond;
	bool done;
	int status;
};

static void run_done(struct object_req *req, int status)
{
	struct waiter *w = req->arg;

	/* signalled under the lock: once it is free, w may be gone */
	mtx_lock(&w->lock);
	w->done = true;
	w->status = status;
	cond_signal(&w->cond);
	mtx_unlock(&w->lock);
}

int object_run(struct object_store *s, struct object_req *req)
{
	struct waiter w = {.done = false};
	void (*done)(struct object_req * r, int status) = req->done;
	void *arg = req->arg;

	mtx_init(&w.lock);
	cond_init(&w.cond);
	req->done = run_done;
	req->arg = &w;
	object_start(s, req);
	mtx_lock(&w.lock);
	while (!w.done)
		cond_wait(&w.cond, &w.lock);
	mtx_unlock(&w.lock);
	cond_fini(&w.cond);
	mtx_fini(&w.lock);
	req->done = done;
	req->arg = arg;
	return w.status;
}

void object_list_free(struct object_req *req)
{
	for (size_t i = 0; i < req->n_list; i++)
		free(req->list[i].key);
	free(req->list);
	req->list = NULL;
	req->n_list = 0;
}

void object_describe(const struct object_conf *conf, struct str *out)
{
	const char *bucket = conf->bucket;
	const char *scheme = strstr(bucket, "://");
	const char *host = scheme ? scheme + 3 : bucket;
	const char *at = strchr(host, '@');

	/* a URL may carry user:password@, and a query with anything */
	str_addf(out, "%s %.*s", conf->storage, scheme ? (int)(host - bucket) : 0, bucket);
	if (at && !is_file(conf) && at < host + strcspn(host, "/?"))
		host = at + 1;
	if (is_file(conf))
		str_add(out, host);
	else
		str_addn(out, host, strcspn(host, "?"));
}
