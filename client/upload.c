/* SPDX-License-Identifier: Apache-2.0 */
/* Puts of whole blocks through the chain, bounded. Any thread; nothing waits.
 *
 * One thread at a time starts what waits in line (pumping): a store that completes at once does not
 * make the stack grow. */
#include "client/upload.h"

#include "common/mtx.h"

struct uploads {
	struct req_env *env;
	struct source *chain;
	unsigned max;
	struct mtx lock;
	struct list_node waiting;
	unsigned running;
	bool pumping;
	struct cond pumped;
};

int uploads_new(struct req_env *env, struct source *chain, unsigned max, struct uploads **ret)
{
	struct uploads *u = calloc(1, sizeof(*u));

	if (!u)
		return -ENOMEM;
	u->env = env;
	u->chain = chain;
	u->max = max ? max : 1;
	mtx_init(&u->lock);
	cond_init(&u->pumped);
	list_init(&u->waiting);
	*ret = u;
	return 0;
}

void uploads_free(struct uploads *u)
{
	if (!u)
		return;
	/* who started the last one may not be out of the pump yet */
	mtx_lock(&u->lock);
	while (u->pumping)
		cond_wait(&u->pumped, &u->lock);
	assert(u->running == 0 && list_empty(&u->waiting));
	mtx_unlock(&u->lock);
	cond_fini(&u->pumped);
	mtx_fini(&u->lock);
	free(u);
}

static void uploads_pump(struct uploads *u);

static void upload_end(struct upload *up, int status)
{
	struct uploads *u = up->u;

	mtx_lock(&u->lock);
	u->running--;
	mtx_unlock(&u->lock);
	uploads_pump(u);
	/* last: the whole writer may be gone afterwards */
	up->done(up, status);
}

static void put_done(struct block_req *req, int status, void *arg)
{
	struct upload *up = arg;

	if (status < 0)
		(void)snprintf(up->reason, sizeof(up->reason), "%s", req->reason);
	req_free(req);
	upload_end(up, status);
}

static void upload_put(struct upload *up)
{
	struct req_env *env = up->u->env;
	struct block_req *req = req_new(env, &up->key, 0, up->key.size, 0, POOL_UPLOAD);
	size_t need = req_put_need(env, up->key.size);

	if (!req) {
		upload_end(up, -ENOMEM);
		return;
	}
	assert(up->data.len == up->key.size);
	req->data = blob_slice(&up->data, 0, up->data.len);
	req->tier = up->tier;
	/* without it the encoding of this block takes its turn at the store's spare buffer */
	if (need && pool_reserve(env->pool, POOL_UPLOAD, need, NULL) == 0)
		req->reserved = need;
	source_put(up->u->chain, req, put_done, up);
}

static void back_done(struct block_req *req, int status, void *arg)
{
	struct upload *up = arg;

	if (status == 0 && hash64(blob_mem(&req->data), req->data.len) != up->sum) {
		/* its number was given out twice, and somebody else's bytes lie there now */
		(void)snprintf(req->reason, sizeof(req->reason),
			       "the stored block is not what was written");
		status = -EIO;
	}
	if (status == 0) {
		up->data = req->data;
		req->data = (struct blob){0};
	} else {
		(void)snprintf(up->reason, sizeof(up->reason), "%s", req->reason);
	}
	req_free(req);
	if (status < 0)
		upload_end(up, status);
	else
		upload_put(up);
}

static void upload_go(struct upload *up)
{
	struct block_req *req;

	if (up->data.len) {
		up->sum = hash64(blob_mem(&up->data), up->data.len);
		upload_put(up);
		return;
	}
	req = req_new(up->u->env, &up->old, 0, up->old.size, REQ_NO_ADMIT, POOL_UPLOAD);
	if (req)
		source_get(up->u->chain, req, back_done, up);
	else
		upload_end(up, -ENOMEM);
}

static void uploads_pump(struct uploads *u)
{
	mtx_lock(&u->lock);
	if (!u->pumping) {
		u->pumping = true;
		while (u->running < u->max && !list_empty(&u->waiting)) {
			struct upload *up =
				container_of(list_pop(&u->waiting), struct upload, link);

			u->running++;
			mtx_unlock(&u->lock);
			upload_go(up);
			mtx_lock(&u->lock);
		}
		u->pumping = false;
		cond_broadcast(&u->pumped);
	}
	mtx_unlock(&u->lock);
}

void upload_start(struct uploads *u, struct upload *up)
{
	up->u = u;
	up->reason[0] = 0;
	mtx_lock(&u->lock);
	list_add_tail(&u->waiting, &up->link);
	mtx_unlock(&u->lock);
	uploads_pump(u);
}
