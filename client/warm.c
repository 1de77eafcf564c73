/* SPDX-License-Identifier: Apache-2.0 */
/* Warm-up: inodes -> what their chunks show -> distinct blocks -> FILL, PROBE or DROP to the top of
 * the chain, PARALLEL at a time. Runs in the thread of its request; answers come on any thread and
 * only count.
 *
 *	a block: found -> in flight -> stored | missing | again
 *	again (a fill that failed, up to CONTROL_TRIES) -> in flight …
 *
 * A block is counted once however many files, chunks or inodes of the request show it: the set of
 * blocks seen is a bitmap for each slice. Records of a damaged volume may give one slice several
 * sizes, and a block's identity has its size in it: each size has a bitmap of its own. */
#include "client/warm.h"

#include <inttypes.h>

#include "client/meta/slice.h"
#include "common/clock.h"

enum { CHUNKS_AT_ONCE = 256, TICK_US = 1000000, RETRY_US = 300000, ERRORS_TOLD = 100 };

struct seen_key {
	struct hash128 volume;
	uint64_t id, size;
};

struct seen_slice {
	struct hash_node node;
	struct seen_key key;
	uint64_t bits[]; /* one a block */
};

struct warm {
	struct control *c;
	struct hashmap seen;
	uint64_t told_us;
	uint32_t block_size;
	bool stop; /* the file was closed */
};

struct warm_block {
	struct list_node link;
	struct control *c;
	struct hash128 volume;
	uint64_t slice;
	uint32_t index, size;
	unsigned tries;
};

/* --- what was seen --- */

static bool seen_eq(const struct hash_node *n, const void *key)
{
	const struct seen_key *a = &container_of(n, const struct seen_slice, node)->key, *b = key;

	return a->id == b->id && a->size == b->size && hash128_eq(&a->volume, &b->volume);
}

static bool seen_free(struct hash_node *n, void *arg)
{
	struct warm *w = arg;

	hashmap_del(&w->seen, n);
	free(container_of(n, struct seen_slice, node));
	return true;
}

/* bitmap of a slice of size bytes; NULL: no memory */
static struct seen_slice *seen_get(struct warm *w, const struct hash128 *volume, uint64_t id,
				   uint32_t size)
{
	struct seen_key key = {*volume, id, size};
	uint64_t hash = hash64(&key, sizeof(key));
	struct hash_node *n = hashmap_find(&w->seen, hash, seen_eq, &key);
	size_t words = DIV_UP(DIV_UP((size_t)size, w->block_size), 64);
	struct seen_slice *s;

	if (n)
		return container_of(n, struct seen_slice, node);
	s = calloc(1, sizeof(*s) + words * sizeof(s->bits[0]));
	if (!s)
		return NULL;
	s->key = key;
	hashmap_add(&w->seen, &s->node, hash);
	return s;
}

/* --- one block --- */

static void say_progress(struct warm *w)
{
	struct control *c = w->c;
	uint64_t files, blocks, bytes, missing, errors, found;

	w->told_us = clock_us();
	mtx_lock(&c->lock);
	files = c->files;
	blocks = c->blocks;
	bytes = c->bytes;
	missing = c->missing;
	errors = c->errors;
	found = c->found;
	mtx_unlock(&c->lock);
	control_say(c, false,
		    "progress %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64
		    "\n",
		    files, blocks, bytes, missing, errors, found);
}

/* waits until at most most blocks are in flight; progress is told meanwhile */
static void wait_flight(struct warm *w, unsigned most)
{
	struct control *c = w->c;

	for (;;) {
		bool go;

		mtx_lock(&c->lock);
		if (c->in_flight > most)
			cond_wait_us(&c->changed, &c->lock, TICK_US);
		go = c->in_flight <= most;
		w->stop = c->closed;
		mtx_unlock(&c->lock);
		if (clock_us() - w->told_us >= TICK_US)
			say_progress(w);
		if (go)
			return;
	}
}

/* a fill is worth another try unless the object store has spoken */
static bool try_again(const struct warm_block *b, int status)
{
	if (status == -ENODATA || status == -EACCES || status == -ENOMEM ||
	    (status == -ENOSPC && b->c->pin_until))
		return false;
	return b->tries < CONTROL_TRIES && b->c->mode != WARM_CHECK && b->c->mode != WARM_EVICT &&
	       !b->c->closed;
}

static void error_line(struct warm_block *b, const struct block_req *req, int status)
{
	control_say(b->c, false, "error 0 block %" PRIu64 "_%u_%u: %s%s%s\n", b->slice, b->index,
		    b->size, strerror(-status), req->reason[0] ? ": " : "", req->reason);
}

static void answered(struct block_req *req, int status, void *arg)
{
	struct warm_block *b = arg;
	struct control *c = b->c;
	bool tell = false, keep = false;

	mtx_lock(&c->lock);
	if (try_again(b, status) && status < 0) {
		list_add_tail(&c->again, &b->link);
		keep = true;
	} else {
		bool gone = c->mode == WARM_EVICT && (status == 0 || status == -ENOENT);
		bool absent = c->mode == WARM_CHECK && status == -ENOENT;

		c->blocks++;
		c->bytes += b->size;
		if (gone || absent || (status < 0 && c->mode != WARM_EVICT))
			c->missing++;
		c->refused += c->pin_until && status == -ENOSPC;
		if (status < 0 && !gone && !absent)
			tell = c->errors++ < ERRORS_TOLD;
	}
	mtx_unlock(&c->lock);
	if (tell)
		error_line(b, req, status);
	req_free(req);
	if (!keep)
		free(b);
	/* last: the run may end and free what b and req hang on */
	mtx_lock(&c->lock);
	c->in_flight--;
	cond_broadcast(&c->changed);
	mtx_unlock(&c->lock);
}

static void send(struct warm *w, struct warm_block *b)
{
	static const uint32_t flags[] = {
		[WARM_FILL] = REQ_FILL,
		[WARM_CHECK] = REQ_PROBE,
		[WARM_EVICT] = 0,
		[WARM_UNPIN] = REQ_FILL | REQ_PIN, /* until a date that is over */
	};
	struct control *c = w->c;
	uint32_t pin = c->pin_until ? REQ_PIN : 0;
	struct block_req *req = NULL;
	struct block_key key;

	wait_flight(w, c->parallel - 1);
	block_key_init(&key, &b->volume, b->slice, b->index, b->size);
	/* no memory now: others give some back */
	while (!w->stop &&
	       !(req = req_new(c->conf->env, &key, 0, b->size, flags[c->mode] | pin, POOL_DEMAND)))
		usleep(1000);
	if (w->stop) {
		if (req)
			req_free(req);
		free(b);
		return;
	}
	req->pin_until = c->pin_until;
	b->tries++;
	mtx_lock(&c->lock);
	c->in_flight++;
	mtx_unlock(&c->lock);
	if (c->mode == WARM_EVICT)
		source_drop(c->conf->chain, req, answered, b);
	else
		source_get(c->conf->chain, req, answered, b);
}

/* --- files --- */

static int add_block(struct warm *w, struct seen_slice *s, uint32_t index)
{
	uint64_t bit = UINT64_C(1) << (index % 64);
	struct warm_block *b;

	/* the engine gives no record that leaves its slice */
	assert(index < DIV_UP(s->key.size, w->block_size));
	if (s->bits[index / 64] & bit)
		return 0;
	b = calloc(1, sizeof(*b));
	if (!b)
		return -ENOMEM;
	s->bits[index / 64] |= bit;
	b->c = w->c;
	b->volume = s->key.volume;
	b->slice = s->key.id;
	b->index = index;
	b->size = block_size_at(s->key.size, w->block_size, index);
	mtx_lock(&w->c->lock);
	w->c->found++;
	mtx_unlock(&w->c->lock);
	send(w, b);
	return 0;
}

/* the blocks that one visible piece lies in */
static int add_piece(struct warm *w, const struct hash128 *volume, const struct slice *p)
{
	struct seen_slice *s;
	int r = 0;

	if (p->id == 0 || p->len == 0)
		return 0;
	s = seen_get(w, volume, p->id, p->size);
	if (!s)
		return -ENOMEM;
	for (uint32_t i = p->off / w->block_size;
	     i <= (p->off + p->len - 1) / w->block_size && r == 0 && !w->stop; i++)
		r = add_block(w, s, i);
	return r;
}

static int add_chunk(struct warm *w, const struct chunk_list *l)
{
	struct slice_view v;
	int r = slice_view_build(l->slices, l->n, &v);

	if (r < 0)
		return r;
	for (size_t i = 0; i < v.n && r == 0 && !w->stop; i++)
		r = add_piece(w, &l->volume, &v.pieces[i]);
	slice_view_fini(&v);
	return r;
}

static int add_file(struct warm *w, uint64_t inode, uint64_t length)
{
	struct meta *m = w->c->conf->meta;
	uint64_t chunks = DIV_UP(length, (uint64_t)CHUNK_SIZE);
	struct chunk_list *lists = calloc(CHUNKS_AT_ONCE, sizeof(*lists));
	int r = lists ? 0 : -ENOMEM;

	for (uint64_t at = 0; at < chunks && r == 0 && !w->stop; at += CHUNKS_AT_ONCE) {
		uint32_t n = (uint32_t)MIN(chunks - at, (uint64_t)CHUNKS_AT_ONCE);

		memset(lists, 0, CHUNKS_AT_ONCE * sizeof(*lists));
		r = meta_read(m, inode, (uint32_t)at, n, lists);
		if (r < 0)
			break;
		for (uint32_t i = 0; i < n; i++) {
			if (r == 0)
				r = add_chunk(w, &lists[i]);
			chunk_list_fini(&lists[i]);
		}
	}
	free(lists);
	return r;
}

static void add_inode(struct warm *w, uint64_t inode)
{
	struct control *c = w->c;
	struct attr a;
	int r = inode >= INODE_INTERNAL && inode <= INODE_TRASH
			? -EINVAL
			: meta_getattr(c->conf->meta, inode, &a);

	if (r == 0 && a.type == INODE_FILE)
		r = add_file(w, inode, a.length);
	mtx_lock(&c->lock);
	if (r < 0)
		c->errors++;
	else if (a.type == INODE_FILE)
		c->files++;
	mtx_unlock(&c->lock);
	if (r < 0)
		control_say(c, true, "error %" PRIu64 " %s\n", inode, strerror(-r));
}

/* --- the run --- */

/* fills that failed, once more, after a pause; false: none were left */
static bool once_more(struct warm *w)
{
	struct control *c = w->c;
	struct list_node list, *n;

	list_init(&list);
	wait_flight(w, 0);
	mtx_lock(&c->lock);
	list_splice_tail(&list, &c->again);
	mtx_unlock(&c->lock);
	if (list_empty(&list))
		return false;
	usleep(RETRY_US);
	/* a stopped run frees them in send */
	while ((n = list_pop(&list)))
		send(w, container_of(n, struct warm_block, link));
	return true;
}

void warm_run(struct control *c)
{
	struct warm w = {.c = c,
			 .told_us = clock_us(),
			 .block_size = meta_setting(c->conf->meta)->block_size};

	if (c->conf->no_group) {
		control_say(c, true, "error 0 %s\ndone 0 0 0 0 1\n", c->conf->no_group);
		return;
	}
	if (hashmap_init(&w.seen, 1024) < 0) {
		control_say(c, true, "error 0 no memory\ndone 0 0 0 0 1\n");
		return;
	}
	for (size_t i = 0; i < c->n_inodes && !w.stop; i++) {
		add_inode(&w, c->inodes[i]);
		if (clock_us() - w.told_us >= TICK_US)
			say_progress(&w);
	}
	while (once_more(&w))
		;
	hashmap_each(&w.seen, seen_free, &w);
	hashmap_fini(&w.seen);
	if (c->refused)
		control_say(c, true, "refused %" PRIu64 "\n", c->refused);
	control_say(c, true, "done %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
		    c->files, c->blocks, c->bytes, c->missing, c->errors);
}
