/* SPDX-License-Identifier: Apache-2.0 */
/* Whole blocks in memory, the least recently used one given up first: when there are more bytes
 * than allowed, when the pool needs room, and while somebody waits for room. A hit is a slice of
 * the kept buffer. Any thread; one leaf lock over table and order. References are dropped outside
 * of it, since a buffer's last one may wake who waits for memory.
 *
 * A block of which as many bytes were given out as it has (the front counts) was most likely read
 * once from end to end, and the kernel has its pages: streams shall not fill all of the pool with
 * what they have left behind, since a few buffers that are used again and again stay in the
 * processor's cache. So such blocks may take an eighth of the bytes allowed, and go first.
 *
 *	kept	-> spent	given out once in full
 *	spent	-> hot		asked for once more: it is used again, and no stream's any longer */
#include "common/block/source.h"

#include "common/hashmap.h"
#include "common/mtx.h"

struct source_ram {
	struct source base;
	size_t max_bytes;
	struct mtx lock;
	struct hashmap blocks;
	struct list_node lru;	/* kept and hot, oldest first */
	struct list_node spent; /* the same */
	size_t bytes, spent_bytes;
};

enum { SPENT_SHARE = 8 }; /* the part of max_bytes that spent blocks may take */

struct ram_block {
	struct hash_node node;
	struct list_node link;
	struct block_key key;
	struct blob data, sums;
	size_t cost; /* what the buffers behind the blobs take */
	enum ram_state { RAM_KEPT, RAM_SPENT, RAM_HOT } state;
	uint64_t given; /* bytes given out */
};

static bool same_key(const struct hash_node *n, const void *key)
{
	return block_key_eq(&container_of(n, const struct ram_block, node)->key, key);
}

static struct ram_block *block_of(struct list_node *n)
{
	return container_of(n, struct ram_block, link);
}

static void remove_locked(struct source_ram *ram, struct ram_block *b, struct list_node *removed)
{
	hashmap_del(&ram->blocks, &b->node);
	list_del(&b->link);
	ram->bytes -= b->cost;
	if (b->state == RAM_SPENT)
		ram->spent_bytes -= b->cost;
	list_add_tail(removed, &b->link);
}

static void free_removed(struct list_node *removed)
{
	struct list_node *n;

	while ((n = list_pop(removed))) {
		struct ram_block *b = block_of(n);

		blob_fini(&b->data);
		blob_fini(&b->sums);
		free(b);
	}
}

/* nobody else has the buffer, so that giving the block up frees it */
static bool only_ours(const struct ram_block *b)
{
	unsigned refs = __atomic_load_n(&b->data.buf->refs, __ATOMIC_RELAXED);

	return refs == 1U + (b->sums.buf == b->data.buf);
}

/* takes the oldest blocks of list out until so many bytes were; unused: only those whose memory
 * comes back at once */
static size_t take_of_locked(struct source_ram *ram, struct list_node *list, size_t bytes,
			     bool unused, struct list_node *removed)
{
	struct list_node *n, *next;
	size_t taken = 0;

	list_for_each_safe(n, next, list)
	{
		if (taken >= bytes)
			break;
		if (unused && !only_ours(block_of(n)))
			continue;
		taken += block_of(n)->cost;
		remove_locked(ram, block_of(n), removed);
	}
	return taken;
}

static size_t take_oldest_locked(struct source_ram *ram, size_t bytes, bool unused,
				 struct list_node *removed)
{
	size_t taken = take_of_locked(ram, &ram->spent, bytes, unused, removed);

	if (taken < bytes)
		taken += take_of_locked(ram, &ram->lru, bytes - taken, unused, removed);
	return taken;
}

/* Gives up the oldest blocks, first those that nobody uses. The others' memory comes back when
 * their users are done: were they kept, a waiter could wait for them for ever. False: there are
 * none left. */
static bool give_up(struct source_ram *ram, size_t bytes)
{
	struct list_node removed;
	size_t taken;

	list_init(&removed);
	mtx_lock(&ram->lock);
	taken = take_oldest_locked(ram, bytes, true, &removed);
	if (taken < bytes)
		taken += take_oldest_locked(ram, bytes - taken, false, &removed);
	mtx_unlock(&ram->lock);
	free_removed(&removed);
	return taken;
}

static void ram_reclaim(void *arg, size_t bytes)
{
	give_up(arg, bytes);
}

static size_t cost_of(const struct block_req *req)
{
	const struct blob *sums = &req->sums;
	size_t cost = req->data.buf->cap;

	return sums->buf && sums->buf != req->data.buf ? cost + sums->buf->cap : cost;
}

static struct ram_block *ram_block_new(const struct block_req *req)
{
	struct ram_block *b = calloc(1, sizeof(*b));

	if (!b)
		return NULL;
	b->key = req->key;
	b->data = blob_slice(&req->data, 0, req->data.len);
	if (req->sums.buf)
		b->sums = blob_slice(&req->sums, 0, req->sums.len);
	b->cost = cost_of(req);
	return b;
}

static void ram_admit(struct source *s, struct block_req *req)
{
	struct source_ram *ram = container_of(s, struct source_ram, base);
	struct ram_block *b;
	struct list_node removed;

	if (cost_of(req) > ram->max_bytes)
		return;
	b = ram_block_new(req);
	if (!b)
		return; /* it is only a cache */
	list_init(&removed);
	mtx_lock(&ram->lock);
	if (hashmap_find(&ram->blocks, b->key.digest, same_key, &b->key)) {
		list_add_tail(&removed, &b->link);
	} else {
		if (ram->bytes + b->cost > ram->max_bytes)
			take_oldest_locked(ram, ram->bytes + b->cost - ram->max_bytes, false,
					   &removed);
		hashmap_add(&ram->blocks, &b->node, b->key.digest);
		list_add_tail(&ram->lru, &b->link);
		ram->bytes += b->cost;
	}
	mtx_unlock(&ram->lock);
	free_removed(&removed);
	while (pool_pressed(s->env->pool) && give_up(ram, 1))
		;
}

static struct ram_block *find_locked(struct source_ram *ram, const struct block_key *key)
{
	struct hash_node *n = hashmap_find(&ram->blocks, key->digest, same_key, key);

	return n ? container_of(n, struct ram_block, node) : NULL;
}

static bool ram_find(struct source_ram *ram, struct block_req *req)
{
	struct ram_block *b;

	mtx_lock(&ram->lock);
	b = find_locked(ram, &req->key);
	if (b) {
		if (b->state == RAM_SPENT && req->klass == POOL_DEMAND) {
			ram->spent_bytes -= b->cost;
			b->state = RAM_HOT;
		}
		list_del(&b->link);
		list_add_tail(b->state == RAM_SPENT ? &ram->spent : &ram->lru, &b->link);
		req->data = blob_slice(&b->data, req->off, req->len);
		if (b->sums.len && req->len == req->key.size)
			req->sums = blob_slice(&b->sums, 0, b->sums.len);
	}
	mtx_unlock(&ram->lock);
	return b;
}

static void ram_filled(struct block_req *req, int status, void *arg)
{
	if (!status && !(req->flags & (REQ_FILL | REQ_PROBE)))
		source_admit(arg, req);
	req_done(req, status);
}

static void ram_get(struct source *s, struct block_req *req)
{
	struct source_ram *ram = container_of(s, struct source_ram, base);

	if (!(req->flags & (REQ_FILL | REQ_PROBE)) && ram_find(ram, req)) {
		req->via = VIA_RAM;
		req_done(req, 0);
		return;
	}
	source_get(s->next, req, ram_filled, s);
}

static void pass_up(struct block_req *req, int status, void *arg)
{
	(void)arg;
	req_done(req, status);
}

static void ram_drop(struct source *s, struct block_req *req)
{
	struct source_ram *ram = container_of(s, struct source_ram, base);
	struct list_node removed;
	struct hash_node *n;

	list_init(&removed);
	mtx_lock(&ram->lock);
	n = hashmap_find(&ram->blocks, req->key.digest, same_key, &req->key);
	if (n)
		remove_locked(ram, container_of(n, struct ram_block, node), &removed);
	mtx_unlock(&ram->lock);
	free_removed(&removed);
	source_drop(s->next, req, pass_up, NULL);
}

static void ram_free(struct source *s)
{
	struct source_ram *ram = container_of(s, struct source_ram, base);
	struct list_node removed;

	pool_set_reclaim(s->env->pool, NULL, NULL);
	list_init(&removed);
	list_splice_tail(&removed, &ram->lru);
	list_splice_tail(&removed, &ram->spent);
	free_removed(&removed);
	source_fini(s);
	hashmap_fini(&ram->blocks);
	mtx_fini(&ram->lock);
	free(ram);
}

static const struct source_ops ram_ops = {
	.name = "ram", .get = ram_get, .admit = ram_admit, .drop = ram_drop, .free = ram_free};
/* the same below [flight], with counters of its own */
static const struct source_ops keep_ops = {
	.name = "keep", .get = ram_get, .admit = ram_admit, .drop = ram_drop, .free = ram_free};

static int ram_new(struct req_env *env, struct source *next, size_t max_bytes,
		   const struct source_ops *ops, struct source **ret)
{
	struct source_ram *ram = calloc(1, sizeof(*ram));
	int r;

	if (!ram)
		return -ENOMEM;
	ram->max_bytes = max_bytes;
	list_init(&ram->lru);
	list_init(&ram->spent);
	r = hashmap_init(&ram->blocks, 256);
	if (!r) {
		r = source_init(&ram->base, ops, env, next);
		if (r)
			hashmap_fini(&ram->blocks);
	}
	if (r) {
		free(ram);
		return r;
	}
	mtx_init(&ram->lock);
	pool_set_reclaim(env->pool, ram_reclaim, ram);
	*ret = &ram->base;
	return 0;
}

int source_ram_new(struct req_env *env, struct source *next, size_t max_bytes, struct source **ret)
{
	return ram_new(env, next, max_bytes, &ram_ops, ret);
}

int source_keep_new(struct req_env *env, struct source *next, size_t max_bytes, struct source **ret)
{
	return ram_new(env, next, max_bytes, &keep_ops, ret);
}

/* --- the upper half: answers from a [keep] further down --- */

struct source_front {
	struct source base;
	struct source_ram *keep;
};

/* bytes of the block were given to a reader */
static void keep_given(struct source_ram *keep, const struct block_req *req)
{
	size_t room = keep->max_bytes / SPENT_SHARE;
	struct list_node removed;
	struct ram_block *b;

	if (req->klass != POOL_DEMAND || (req->flags & (REQ_FILL | REQ_PROBE)))
		return;
	list_init(&removed);
	mtx_lock(&keep->lock);
	b = find_locked(keep, &req->key);
	if (b && b->state == RAM_KEPT && (b->given += req->len) >= b->key.size) {
		b->state = RAM_SPENT;
		list_del(&b->link);
		list_add_tail(&keep->spent, &b->link);
		keep->spent_bytes += b->cost;
		if (keep->spent_bytes > room)
			take_of_locked(keep, &keep->spent, keep->spent_bytes - room, false,
				       &removed);
	}
	mtx_unlock(&keep->lock);
	free_removed(&removed);
}

static void front_passed(struct block_req *req, int status, void *arg)
{
	if (!status)
		keep_given(arg, req);
	req_done(req, status);
}

static void front_get(struct source *s, struct block_req *req)
{
	struct source_ram *keep = container_of(s, struct source_front, base)->keep;

	if (!(req->flags & (REQ_FILL | REQ_PROBE)) && ram_find(keep, req)) {
		req->via = VIA_RAM;
		keep_given(keep, req);
		req_done(req, 0);
		return;
	}
	source_get(s->next, req, front_passed, keep);
}

static void front_free(struct source *s)
{
	source_fini(s);
	free(container_of(s, struct source_front, base));
}

static const struct source_ops front_ops = {.name = "ram", .get = front_get, .free = front_free};

int source_front_new(struct req_env *env, struct source *next, struct source *keep,
		     struct source **ret)
{
	struct source_front *f = calloc(1, sizeof(*f));
	int r;

	assert(keep->ops == &keep_ops);
	if (!f)
		return -ENOMEM;
	f->keep = container_of(keep, struct source_ram, base);
	r = source_init(&f->base, &front_ops, env, next);
	if (r < 0) {
		free(f);
		return r;
	}
	*ret = &f->base;
	return 0;
}
