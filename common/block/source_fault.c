/* SPDX-License-Identifier: Apache-2.0 */
/* Tests only: a layer that fails, delays, damages or holds back the gets that its rules name. Any
 * thread; one leaf lock over rules and lists. */
#include "common/block/source.h"

#include "common/block/source_clock.h"
#include "common/clock.h"
#include "common/mtx.h"

enum { RULES = 16 };

struct source_fault {
	struct source base;
	struct mtx lock;
	struct fault_rule rules[RULES];
	size_t n_rules;
	unsigned seen;
	struct list_node hung; /* struct hung */
};

struct hung {
	struct list_node link;
	struct block_req *req;
	int status; /* at the release; 0: pass it on */
};

struct delayed {
	struct req_timer timer;
	struct block_req *req;
	struct source *next;
};

static void pass_up(struct block_req *req, int status, void *arg)
{
	(void)arg;
	req_done(req, status);
}

/* a damaged copy, since the bytes may be shared */
static void corrupt(struct block_req *req, int status, void *arg)
{
	size_t reserved = pool_cost(req->len);
	struct buf *b = NULL;

	(void)arg;
	if (status || !blob_mem(&req->data)) {
		req_done(req, status);
		return;
	}
	if (!pool_reserve(req->env->pool, POOL_DEMAND, reserved, NULL))
		b = pool_take(req->env->pool, POOL_DEMAND, req->len, &reserved);
	if (!b) {
		req_done(req, -ENOMEM);
		return;
	}
	memcpy(b->mem, blob_mem(&req->data), req->len);
	b->mem[req->len / 2] ^= 1;
	blob_fini(&req->data);
	req->data = blob_of_buf(b, 0, req->len);
	req_done(req, 0);
}

static void delay_over(struct req_timer *timer)
{
	struct delayed *d = container_of(timer, struct delayed, timer);
	struct block_req *req = d->req;
	struct source *next = d->next;

	free(d);
	source_get(next, req, pass_up, NULL);
}

static void delay(struct source_fault *ft, struct block_req *req, uint64_t us)
{
	struct delayed *d = calloc(1, sizeof(*d));

	assert(ft->base.env->clock);
	if (!d) {
		req_done(req, -ENOMEM);
		return;
	}
	d->req = req;
	d->next = ft->base.next;
	d->timer.fn = delay_over;
	req_clock_add(ft->base.env->clock, &d->timer, clock_us() + us);
}

/* the first rule that names this request */
static bool rule_of(struct source_fault *ft, struct fault_rule *ret)
{
	bool found = false;
	unsigned nth;

	mtx_lock(&ft->lock);
	nth = ft->seen++;
	for (size_t i = 0; i < ft->n_rules && !found; i++) {
		const struct fault_rule *r = &ft->rules[i];

		if (nth < r->after || (r->count && nth - r->after >= r->count))
			continue;
		*ret = *r;
		found = true;
	}
	mtx_unlock(&ft->lock);
	return found;
}

static void hang(struct source_fault *ft, struct block_req *req, int status)
{
	struct hung *h = malloc(sizeof(*h));

	if (!h) {
		req_done(req, -ENOMEM);
		return;
	}
	*h = (struct hung){.req = req, .status = status};
	mtx_lock(&ft->lock);
	list_add_tail(&ft->hung, &h->link);
	mtx_unlock(&ft->lock);
}

static void fault_get(struct source *s, struct block_req *req)
{
	struct source_fault *ft = container_of(s, struct source_fault, base);
	struct fault_rule r;

	if (!rule_of(ft, &r)) {
		source_get(s->next, req, pass_up, NULL);
		return;
	}
	switch (r.kind) {
	case FAULT_FAIL:
		req_fail(req, r.status, "fault: %s", strerror(-r.status));
		break;
	case FAULT_DELAY:
		delay(ft, req, r.delay_us);
		break;
	case FAULT_CORRUPT:
		source_get(s->next, req, corrupt, NULL);
		break;
	case FAULT_HANG:
		hang(ft, req, r.status);
		break;
	}
}

void source_fault_add(struct source *s, const struct fault_rule *rule)
{
	struct source_fault *ft = container_of(s, struct source_fault, base);

	mtx_lock(&ft->lock);
	assert(ft->n_rules < RULES);
	ft->rules[ft->n_rules++] = *rule;
	mtx_unlock(&ft->lock);
}

void source_fault_release(struct source *s)
{
	struct source_fault *ft = container_of(s, struct source_fault, base);
	struct list_node hung, *n;

	list_init(&hung);
	mtx_lock(&ft->lock);
	list_splice_tail(&hung, &ft->hung);
	mtx_unlock(&ft->lock);
	while ((n = list_pop(&hung))) {
		struct hung *h = container_of(n, struct hung, link);
		struct block_req *req = h->req;
		int status = h->status;

		free(h);
		if (status)
			req_done(req, status);
		else
			source_get(s->next, req, pass_up, NULL);
	}
}

unsigned source_fault_seen(struct source *s)
{
	struct source_fault *ft = container_of(s, struct source_fault, base);
	unsigned n;

	mtx_lock(&ft->lock);
	n = ft->seen;
	mtx_unlock(&ft->lock);
	return n;
}

static void fault_free(struct source *s)
{
	struct source_fault *ft = container_of(s, struct source_fault, base);

	assert(list_empty(&ft->hung));
	source_fini(s);
	mtx_fini(&ft->lock);
	free(ft);
}

static const struct source_ops fault_ops = {.name = "fault", .get = fault_get, .free = fault_free};

int source_fault_new(struct req_env *env, struct source *next, struct source **ret)
{
	struct source_fault *ft = calloc(1, sizeof(*ft));

	if (!ft)
		return -ENOMEM;
	list_init(&ft->hung);
	if (source_init(&ft->base, &fault_ops, env, next)) {
		free(ft);
		return -ENOMEM;
	}
	mtx_init(&ft->lock);
	*ret = &ft->base;
	return 0;
}
