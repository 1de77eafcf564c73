/* SPDX-License-Identifier: Apache-2.0 */
/* The S3 store: who is on the wire, who waits, who tries again.
 *
 * Threads: object_start runs anywhere; a PUT passes the sums' threads first; all else is the
 * loop's.
 *
 *	summing		PUT only: CRC-32C, and SHA-256 when it goes over http
 *			s3_start -> sums_run
 *	inbox		under the lock, until the loop takes it
 *			deliver -> inbox_taken
 *	queued		first in, first out; ended by its deadline
 *			queue_timer_fired
 *	on wire		in a slot, one attempt
 *			pump -> attempt
 *	waiting		in its slot, between two attempts: a store that fails sees fewer requests
 *			attempt_failed -> wait_fired
 *	done		end
 *
 * Payloads: over https the signature leaves the body out (UNSIGNED-PAYLOAD), since TLS guards it;
 * over http the body's SHA-256 is signed, so that a server refuses bytes that changed on the way.
 * It costs 2.4 ms of a core a 4 MiB block, off the loop. */
#include "common/object/object_s3.h"

#include "common/clock.h"
#include "common/hash.h"
#include "common/object/crypt.h"
#include "common/sigv4.h"

enum {
	MAX_CONNS = 64,
	RETRIES = 10,
	SUM_THREADS = 2,
	SUM_QUEUE = 1 << 16,
	WAIT_FIRST_US = 100000, /* doubles each time */
	WAIT_LATER_US = 400000,
	WAIT_MAX_US = 10000000,
	WAIT_LATER_MAX_US = 20000000,
	KNOCK_US = 500000, /* the longest pause where nobody answers the door */
	FIRST_LEAST_US = 5000000,
};

static void pump(struct s3 *s);

/* --- the end of a request --- */

static void slot_release(struct s3_slot *slot)
{
	free(TAKE_PTR(slot->sums));
	str_reset(&slot->text);
	slot->req = NULL;
	list_add_head(&slot->s3->idle, &slot->link); /* the last one used is warm */
}

static void end(struct s3_slot *slot, int status)
{
	struct s3 *s = slot->s3;
	struct object_req *req = slot->req;

	loop_timer_stop(&slot->wait);
	slot_release(slot);
	object_done(&s->base, req, status);
}

static void end_queued(struct s3 *s, struct object_req *req, int status)
{
	free(req->priv);
	req->priv = NULL;
	object_done(&s->base, req, status);
}

/* --- attempts --- */

/* the reason, and how often it was tried */
static void tell_tries(struct object_req *req, unsigned n)
{
	char why[sizeof(req->reason)];

	(void)snprintf(why, sizeof(why), "%s", req->reason);
	(void)snprintf(req->reason, sizeof(req->reason), "%.*s (tried %u times in %.1f s)",
		       (int)sizeof(why) - 40, why, n, (double)(clock_us() - req->start_us) / 1e6);
}

/* An object store that says nothing is asked once more while there is time. */
static uint64_t first_byte_us(const struct object_req *req)
{
	uint64_t us = clock_left(req->deadline_us) / 3;

	us = MAX(us, (uint64_t)FIRST_LEAST_US);
	return MIN(us, (uint64_t)S3_HTTP_FIRST_US);
}

static void attempt(struct s3_slot *slot)
{
	const struct s3_keys *k;
	int r;

	if (clock_left(slot->req->deadline_us) == 0) {
		if (slot->attempt + slot->knocks)
			tell_tries(slot->req, slot->attempt + slot->knocks);
		end(slot, -ETIMEDOUT);
		return;
	}
	k = s3_cred_get(slot->s3->cred);
	if (!k) {
		/* its turn comes again when keys are there; it waits in its slot, which nobody else
		 * can use now either */
		loop_timer_start(&slot->wait,
				 MIN((uint64_t)WAIT_FIRST_US, clock_left(slot->req->deadline_us)));
		return;
	}
	slot->begun = false;
	slot->growing = false;
	slot->tried_us = clock_us();
	slot->answer = (struct s3_answer){.etag = ""};
	str_reset(&slot->text);
	r = s3_op_build(slot, k);
	slot->x.deadline_us = slot->req->deadline_us;
	slot->x.first_us = first_byte_us(slot->req);
	if (r == 0)
		r = s3_exchange_start(&slot->x);
	if (r < 0)
		end(slot, r);
}

static uint64_t random_below(uint64_t n)
{
	uint64_t v;

	crypt_random(&v, sizeof(v));
	return n ? v % n : 0;
}

/* Full jitter after a fault; half of the ceiling at least when the server asked for less, so that
 * ten attempts span more than 50 s of it. */
static uint64_t pause_us(unsigned failed, bool later)
{
	uint64_t max = later ? WAIT_LATER_MAX_US : WAIT_MAX_US;
	uint64_t ceiling = later ? WAIT_LATER_US : WAIT_FIRST_US;

	while (--failed && ceiling < max)
		ceiling *= 2;
	ceiling = MIN(ceiling, max);
	return later ? ceiling / 2 + random_below(ceiling / 2) : random_below(ceiling);
}

static bool may_retry(const struct s3_slot *slot)
{
	const struct object_req *req = slot->req;

	return slot->attempt <= slot->s3->retries ||
	       (req->persist_us && clock_us() < req->start_us + req->persist_us);
}

/* what was received stays when it can be continued: same object, known by its strong ETag */
static int keep_or_forget(struct s3_slot *slot)
{
	struct object_req *req = slot->req;

	if (req->op != OBJECT_GET || (req->got && slot->etag[0]))
		return 0;
	if (slot->shown && req->got) {
		object_reason(req, "broken off, and its server names no ETag to go on with");
		return -ESTALE;
	}
	req->got = 0;
	slot->crc = 0;
	slot->etag[0] = '\0';
	slot->has_crc = false;
	return 0;
}

/* Refused or reset at once: no server is there. To knock again costs nobody anything and is none of
 * the attempts: reads go on until their deadline, uploads as long as they persist, and notice at
 * once that it is back. */
static bool is_nobody(const struct s3_slot *slot)
{
	const struct object_req *req = slot->req;
	uint64_t now = clock_us();

	return slot->x.status == 0 && now - slot->tried_us < KNOCK_US &&
	       (req->deadline_us || (req->persist_us && now < req->start_us + req->persist_us));
}

static void attempt_failed(struct s3_slot *slot, bool later)
{
	struct object_req *req = slot->req;
	uint64_t pause;
	int r;

	if (slot->s3->closing) {
		end(slot, -ECANCELED);
		return;
	}
	if (is_nobody(slot)) {
		slot->knocks++;
		pause = MIN(pause_us(slot->knocks, false), (uint64_t)KNOCK_US);
	} else {
		slot->attempt++;
		pause = pause_us(slot->attempt, later);
	}
	if (!may_retry(slot)) {
		tell_tries(req, slot->attempt + slot->knocks);
		end(slot, -EIO);
		return;
	}
	r = keep_or_forget(slot);
	if (r < 0) {
		end(slot, r);
		return;
	}
	object_retried(&slot->s3->base, later);
	loop_timer_start(&slot->wait, MIN(pause, clock_left(req->deadline_us)));
}

static void wait_fired(struct loop_timer *t)
{
	struct s3_slot *slot = container_of(t, struct s3_slot, wait);
	struct s3 *s = slot->s3;

	attempt(slot);
	pump(s); /* its slot may be free now */
}

static void exchange_done(struct s3_exchange *x, int r)
{
	struct s3_slot *slot = container_of(x, struct s3_slot, x);
	struct s3 *s = slot->s3;
	int status = 0;

	switch (s3_op_judge(slot, r, &status)) {
	case S3_END:
		if (status == -ETIMEDOUT)
			tell_tries(slot->req, slot->attempt + slot->knocks + 1);
		end(slot, status);
		break;
	case S3_AGAIN:
		attempt(slot);
		break;
	case S3_RETRY:
		attempt_failed(slot, false);
		break;
	case S3_RETRY_LATER:
		attempt_failed(slot, true);
		break;
	}
	pump(s);
}

/* --- the queue --- */

static void slot_take(struct s3_slot *slot, struct object_req *req)
{
	slot->req = req;
	slot->sums = req->priv;
	req->priv = NULL;
	slot->attempt = 0;
	slot->knocks = 0;
	slot->shown = false;
	slot->etag[0] = '\0';
	slot->has_crc = false;
	slot->crc = 0;
	slot->no_location = false;
	slot->renewed = false;
	slot->relocated = false;
	attempt(slot);
}

static void pump(struct s3 *s)
{
	while (!s->closing && !list_empty(&s->queue) && s3_cred_get(s->cred)) {
		struct list_node *slot = list_pop(&s->idle), *n;

		if (!slot)
			return;
		n = list_pop(&s->queue);
		slot_take(container_of(slot, struct s3_slot, link),
			  container_of(n, struct object_req, link));
	}
	/* without keys keys_changed goes on */
}

static void keys_changed(void *arg)
{
	pump(arg);
}

static void set_queue_timer(struct s3 *s)
{
	uint64_t left = UINT64_MAX;
	struct list_node *n;

	list_for_each(n, &s->queue) left =
		MIN(left, clock_left(container_of(n, struct object_req, link)->deadline_us));
	if (left == UINT64_MAX)
		loop_timer_stop(&s->queue_timer);
	else
		loop_timer_start(&s->queue_timer, left);
}

static void queue_timer_fired(struct loop_timer *t)
{
	struct s3 *s = container_of(t, struct s3, queue_timer);
	struct list_node late, *n, *next;

	list_init(&late);
	list_for_each_safe(n, next, &s->queue)
	{
		if (clock_left(container_of(n, struct object_req, link)->deadline_us) == 0) {
			list_del(n);
			list_add_tail(&late, n);
		}
	}
	set_queue_timer(s);
	while ((n = list_pop(&late))) {
		struct object_req *req = container_of(n, struct object_req, link);

		object_reason(req, "its deadline passed while it waited for a connection");
		end_queued(s, req, -ETIMEDOUT);
	}
}

static void enqueue(struct s3 *s, struct object_req *req)
{
	uint64_t left = clock_left(req->deadline_us);

	if (s->closing) {
		end_queued(s, req, -ECANCELED);
		return;
	}
	list_add_tail(&s->queue, &req->link);
	pump(s);
	/* a request that got a slot at once needs no timer; req may be gone then, so only the list
	 * is looked at */
	if (left != UINT64_MAX && !list_empty(&s->queue))
		set_queue_timer(s);
}

static void inbox_taken(struct loop_job *job)
{
	struct s3 *s = container_of(job, struct s3, job);
	struct list_node batch, *n;

	list_init(&batch);
	mtx_lock(&s->lock);
	s->posted = false;
	list_splice_tail(&batch, &s->inbox);
	mtx_unlock(&s->lock);
	while ((n = list_pop(&batch)))
		enqueue(s, container_of(n, struct object_req, link));
}

/* any thread */
static void deliver(struct s3 *s, struct object_req *req)
{
	bool post;

	mtx_lock(&s->lock);
	list_add_tail(&s->inbox, &req->link);
	post = !s->posted;
	s->posted = true;
	mtx_unlock(&s->lock);
	if (post)
		loop_post(s->loop, &s->job);
}

static void sums_run(struct workq_job *job)
{
	struct s3_sums *sums = container_of(job, struct s3_sums, job);
	const struct object_req *req = sums->req;

	sums->crc = crc32c(0, req->buf, req->cap);
	if (sums->s3->endpoint.https)
		(void)snprintf(sums->sha256, sizeof(sums->sha256), "UNSIGNED-PAYLOAD");
	else
		sha256_hex(req->buf, req->cap, sums->sha256);
	deliver(sums->s3, sums->req);
}

static void s3_start(struct object_store *base, struct object_req *req)
{
	struct s3 *s = container_of(base, struct s3, base);
	struct s3_sums *sums;

	if (req->op != OBJECT_PUT) {
		deliver(s, req);
		return;
	}
	sums = calloc(1, sizeof(*sums));
	if (!sums) {
		object_done(base, req, -ENOMEM);
		return;
	}
	*sums = (struct s3_sums){.job.fn = sums_run, .s3 = s, .req = req};
	req->priv = sums;
	workq_push_always(s->sums, &sums->job);
}

/* --- start and end of the store --- */

static void tiers_free(struct object_tier *t, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		free(t[i].storage_class);
		free(t[i].tag);
	}
	free(t);
}

static int tiers_copy(const struct object_conf *conf, struct object_tier **ret)
{
	struct object_tier *t = calloc(conf->n_tiers + 1, sizeof(*t));
	bool ok = t;

	for (size_t i = 0; ok && i < conf->n_tiers; i++) {
		t[i].id = conf->tiers[i].id;
		t[i].storage_class = strdup(conf->tiers[i].storage_class);
		t[i].tag = strdup(conf->tiers[i].tag);
		ok = t[i].storage_class && t[i].tag;
	}
	if (!ok) {
		if (t)
			tiers_free(t, conf->n_tiers);
		return -ENOMEM;
	}
	*ret = t;
	return 0;
}

static void slots_fini(struct s3 *s)
{
	for (unsigned i = 0; s->slots && i < s->max_conns; i++) {
		struct s3_slot *slot = &s->slots[i];

		s3_exchange_fini(&slot->x);
		loop_timer_stop(&slot->wait);
		str_fini(&slot->url);
		str_fini(&slot->headers);
		str_fini(&slot->body);
		str_fini(&slot->text);
	}
	free(s->slots);
	s->slots = NULL;
}

static void cancel_all(struct s3 *s)
{
	struct list_node *n;

	s->closing = true;
	inbox_taken(&s->job);
	for (unsigned i = 0; s->slots && i < s->max_conns; i++) {
		struct s3_slot *slot = &s->slots[i];

		if (!slot->req)
			continue;
		s3_exchange_fini(&slot->x);
		end(slot, -ECANCELED);
	}
	while ((n = list_pop(&s->queue)))
		end_queued(s, container_of(n, struct object_req, link), -ECANCELED);
}

static void loop_side_fini(void *arg)
{
	struct s3 *s = arg;

	cancel_all(s);
	slots_fini(s);
	s3_cred_free(s->cred);
	s3_http_free(s->http);
	loop_timer_stop(&s->queue_timer);
}

static void s3_free(struct object_store *base)
{
	struct s3 *s = container_of(base, struct s3, base);

	if (s->own_sums)
		workq_free(s->sums); /* runs what is there: all of it is in the inbox then */
	if (s->queue_timer.loop)
		loop_run_sync(s->loop, loop_side_fini, s);
	tiers_free(s->tiers, s->n_tiers);
	mtx_fini(&s->lock);
	free(s);
}

struct start {
	struct s3 *s;
	const struct object_conf *conf;
	int r;
};

static void loop_side_init(void *arg)
{
	struct start *st = arg;
	struct s3 *s = st->s;

	loop_timer_init(&s->queue_timer, s->loop, queue_timer_fired);
	st->r = s3_http_new(s->loop, s->max_conns, &s->http);
	if (st->r < 0)
		return;
	st->r = s3_cred_new(st->conf, s->http, keys_changed, s, &s->cred);
	if (st->r < 0)
		return;
	s->slots = calloc(s->max_conns, sizeof(*s->slots));
	if (!s->slots) {
		st->r = -ENOMEM;
		return;
	}
	for (unsigned i = 0; i < s->max_conns; i++) {
		struct s3_slot *slot = &s->slots[i];

		slot->s3 = s;
		s3_exchange_init(&slot->x, s->http);
		slot->x.header = s3_op_header;
		slot->x.data = s3_op_data;
		slot->x.done = exchange_done;
		loop_timer_init(&slot->wait, s->loop, wait_fired);
		list_add_tail(&s->idle, &slot->link);
	}
}

/* --- a setting that changed --- */

struct change {
	struct s3 *s;
	const struct object_conf *conf;
	const struct s3_endpoint *endpoint;
	struct object_tier *tiers; /* in: the new ones; out: the old ones */
	size_t n_tiers;
	int r;
};

/* on the loop: between two steps of any request */
static void loop_side_change(void *arg)
{
	struct change *c = arg;
	struct s3 *s = c->s;
	struct object_tier *tiers = s->tiers;
	size_t n = s->n_tiers;
	struct s3_cred *cred;

	c->r = s3_cred_new(c->conf, s->http, keys_changed, s, &cred);
	if (c->r)
		return;
	s3_cred_free(s->cred);
	s->cred = cred;
	s->endpoint = *c->endpoint;
	s->tiers = c->tiers;
	s->n_tiers = c->n_tiers;
	c->tiers = tiers;
	c->n_tiers = n;
	pump(s);
}

static int s3_change(struct object_store *base, const struct object_conf *conf, struct str *err)
{
	struct s3 *s = container_of(base, struct s3, base);
	struct s3_endpoint e;
	struct change c = {.s = s, .conf = conf, .endpoint = &e, .n_tiers = conf->n_tiers};
	int r = s3_endpoint_parse(conf->storage, conf->bucket, &e, err);

	/* threads that sum read it */
	if (r == 0 && e.https != s->endpoint.https) {
		str_add(err, "the bucket's new URL changes between http and https");
		r = -EOPNOTSUPP;
	}
	if (r == 0)
		r = tiers_copy(conf, &c.tiers);
	if (r)
		return r;
	loop_run_sync(s->loop, loop_side_change, &c);
	tiers_free(c.tiers, c.n_tiers);
	return c.r;
}

static const struct object_ops s3_ops = {"s3", s3_start, s3_free, s3_change};

int object_s3_new(const struct object_conf *conf, struct loop *loop, struct object_store **ret,
		  struct str *err)
{
	struct s3 *s = calloc(1, sizeof(*s));
	struct start st = {.s = s, .conf = conf};

	if (!s)
		return -ENOMEM;
	s->base.ops = &s3_ops;
	s->loop = loop;
	s->retries = conf->retries ? conf->retries : RETRIES;
	s->max_conns = conf->max_conns ? MIN(conf->max_conns, 1024U) : MAX_CONNS;
	s->job.fn = inbox_taken;
	mtx_init(&s->lock);
	list_init(&s->inbox);
	list_init(&s->queue);
	list_init(&s->idle);
	list_init(&s->job.link);
	st.r = s3_endpoint_parse(conf->storage, conf->bucket, &s->endpoint, err);
	if (st.r == 0)
		st.r = tiers_copy(conf, &s->tiers);
	if (st.r == 0)
		s->n_tiers = conf->n_tiers;
	s->sums = conf->sums;
	s->own_sums = !conf->sums;
	if (st.r == 0 && s->own_sums)
		st.r = workq_new("s3sum", SUM_THREADS, SUM_QUEUE, &s->sums);
	if (st.r == 0)
		loop_run_sync(loop, loop_side_init, &st);
	if (st.r < 0) {
		s3_free(&s->base);
		return st.r;
	}
	*ret = &s->base;
	return 0;
}
