/* SPDX-License-Identifier: Apache-2.0 */
/* Drop: everybody who may have a copy of a block is told to forget it; the request ends with the
 * last answer. Any thread. */
#include "common/block/source_peer.h"

enum { DROP_US = 5000000 };

struct dropping {
	struct block_req *req;
	unsigned left, dropped; /* atomic */
	int status;		/* atomic: of one that could not */
};

struct drop_call {
	struct peer_call call;
	struct dropping *d;
};

static void dropping_less(struct dropping *d)
{
	struct block_req *req = d->req;
	int status;

	if (__atomic_sub_fetch(&d->left, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	status = d->dropped ? 0 : d->status;
	free(d);
	req_done(req, status);
}

static void drop_answered(struct peer_call *c, int status)
{
	struct dropping *d = container_of(c, struct drop_call, call)->d;

	if (status == 0 || status == -ENOENT)
		__atomic_fetch_add(&d->dropped, 1, __ATOMIC_RELAXED);
	else
		__atomic_store_n(&d->status, status, __ATOMIC_RELAXED);
	free(container_of(c, struct drop_call, call));
	dropping_less(d);
}

static void drop_ask(struct dropping *d, struct peer *p)
{
	struct drop_call *dc = calloc(1, sizeof(*dc));
	struct msg_key m;

	if (!dc) {
		__atomic_store_n(&d->status, -ENOMEM, __ATOMIC_RELAXED);
		return;
	}
	block_key_to_msg(&d->req->key, &m);
	msg_key_encode(&m, dc->call.head);
	dc->d = d;
	dc->call.head_len = MSG_KEY;
	dc->call.op = OP_DROP;
	dc->call.quiet_us = DROP_US;
	dc->call.done = drop_answered;
	__atomic_fetch_add(&d->left, 1, __ATOMIC_RELAXED);
	peer_start(p, &dc->call, false);
}

void peer_drop(struct source *s, struct block_req *req)
{
	struct source_peer *sp = container_of(s, struct source_peer, base);
	struct peer *p[PEER_COPIES];
	struct dropping *d;
	unsigned n;

	if (sp->env.fds)
		fd_cache_drop(sp->env.fds, &req->key);
	n = peer_pick_copies(sp, req, p);
	d = n > 0 ? calloc(1, sizeof(*d)) : NULL;
	if (!d) {
		req_done(req, n > 0 ? -ENOMEM : 0);
		return;
	}
	d->req = req;
	d->left = 1;
	for (unsigned i = 0; i < n; i++)
		drop_ask(d, p[i]);
	dropping_less(d);
}
