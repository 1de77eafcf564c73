/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors of block files that the daemon of this node passed: a bounded number of a bounded
 * size, least recently used leave first. Any thread; one leaf lock; closing and telling the daemon
 * happen outside of it. The daemon counts what it passed, so every descriptor that came is answered
 * by one CLOSED.
 *
 * A file that the daemon removed takes its disk's space until it is closed here, and the daemon
 * waits for that. So such ones leave when they are found: at their next use, or by the sweep on the
 * loop, which also closes what was not used for a while.
 *
 * A disk may hang under a read. The loop watches the threads that read; while one of them is stuck,
 * and some time longer, no descriptor is found or asked for, and the daemon sends bytes. */
#include "common/block/source_peer.h"

#include "common/block/blockfile.h"
#include "common/clock.h"
#include "common/hashmap.h"

enum {
	TICK_US = 100000,
	SWEEP_TICKS = 3,
	HANG_TICKS = 5,	  /* of one read, or of its wait for a thread */
	OFF_US = 3000000, /* after that */
	SWEEP_MOST = 32,  /* closed at a time: the end of a large file is work */
	IDLE_US = 30000000,
};

struct fd_cache {
	struct mtx lock;
	struct hashmap map GUARDED_BY(lock);
	struct list_node lru GUARDED_BY(lock); /* oldest first */
	unsigned n GUARDED_BY(lock), max;
	uint64_t bytes GUARDED_BY(lock), max_bytes;
	struct loop *loop; /* NULL: no sweep */
	struct loop_timer timer;
	unsigned ticks;
	struct diskq *disk;    /* NULL: not watched */
	uint64_t off_until_us; /* atomic */
	struct fd_entry **all; /* the sweep's: room for max */
};

struct fd_entry {
	struct hash_node node;
	struct list_node link;
	struct block_key key;
	int fd;
	struct peer *peer;
	bool bulk;     /* over which of its connections it came */
	bool listed;   /* in the cache; under its lock */
	unsigned refs; /* atomic; the cache's is one */
	uint64_t used_us;
};

static void sweep_start(void *arg);
static void sweep_stop(void *arg);

int fd_cache_new(unsigned max, uint64_t max_bytes, struct loop *loop, struct diskq *disk,
		 struct fd_cache **ret)
{
	struct fd_cache *c = calloc(1, sizeof(*c));

	if (c)
		c->all = calloc(max, sizeof(*c->all));
	if (!c || !c->all || hashmap_init(&c->map, max) < 0) {
		if (c)
			free(c->all);
		free(c);
		return -ENOMEM;
	}
	mtx_init(&c->lock);
	list_init(&c->lru);
	c->max = max;
	c->max_bytes = max_bytes;
	c->loop = loop;
	c->disk = disk;
	if (loop)
		loop_run_sync(loop, sweep_start, c);
	*ret = c;
	return 0;
}

void fd_cache_free(struct fd_cache *c)
{
	struct list_node *n;

	if (!c)
		return;
	if (c->loop)
		loop_run_sync(c->loop, sweep_stop, c);
	while ((n = list_pop(&c->lru)))
		fd_entry_unref(container_of(n, struct fd_entry, link));
	hashmap_fini(&c->map);
	mtx_fini(&c->lock);
	free(c->all);
	free(c);
}

static bool entry_eq(const struct hash_node *n, const void *key)
{
	return block_key_eq(&container_of(n, const struct fd_entry, node)->key, key);
}

static struct fd_entry *find_locked(struct fd_cache *c, const struct block_key *k)
{
	struct hash_node *n = hashmap_find(&c->map, k->digest, entry_eq, k);
	struct fd_entry *e;

	if (!n)
		return NULL;
	e = container_of(n, struct fd_entry, node);
	list_del(&e->link);
	list_add_tail(&c->lru, &e->link);
	e->used_us = clock_us();
	__atomic_fetch_add(&e->refs, 1, __ATOMIC_RELAXED);
	return e;
}

static void remove_locked(struct fd_cache *c, struct fd_entry *e)
{
	hashmap_del(&c->map, &e->node);
	list_del(&e->link);
	e->listed = false;
	c->bytes -= e->key.size;
	c->n--;
}

/* whoever has a reference; the cache's goes */
static void entry_forget(struct fd_cache *c, struct fd_entry *e)
{
	bool listed;

	mtx_lock(&c->lock);
	listed = e->listed;
	if (listed)
		remove_locked(c, e);
	mtx_unlock(&c->lock);
	if (listed)
		fd_entry_unref(e);
}

/* the daemon removed the file */
static bool entry_gone(const struct fd_entry *e)
{
	return !blockfile_has_name(e->fd);
}

struct fd_entry *fd_cache_find(struct fd_cache *c, const struct block_key *k)
{
	struct fd_entry *e;

	if (fd_cache_off(c))
		return NULL;
	mtx_lock(&c->lock);
	e = find_locked(c, k);
	mtx_unlock(&c->lock);
	if (e && entry_gone(e))
		entry_forget(c, e); /* its bytes are good, once more */
	return e;
}

bool fd_cache_off(const struct fd_cache *c)
{
	uint64_t until = __atomic_load_n(&c->off_until_us, __ATOMIC_RELAXED);

	return until && clock_us() < until;
}

static void close_and_tell(int fd, const struct block_key *k, struct peer *peer, bool bulk)
{
	uint8_t body[MSG_KEY];
	struct msg_key m;

	close(fd);
	block_key_to_msg(k, &m);
	msg_key_encode(&m, body);
	peer_tell(peer, bulk, OP_CLOSED, body, sizeof(body));
}

struct fd_entry *fd_cache_add(struct fd_cache *c, const struct block_key *k, int fd,
			      struct peer *peer, bool bulk)
{
	struct fd_entry *e = calloc(1, sizeof(*e)), *old;
	struct list_node leaving, *n;

	if (!e) {
		close_and_tell(fd, k, peer, bulk);
		return NULL;
	}
	e->key = *k;
	e->fd = fd;
	e->peer = peer;
	e->bulk = bulk;
	e->refs = 2;
	e->used_us = clock_us();
	list_init(&leaving);
	mtx_lock(&c->lock);
	old = find_locked(c, k);
	if (!old) {
		hashmap_add(&c->map, &e->node, k->digest);
		list_add_tail(&c->lru, &e->link);
		e->listed = true;
		c->bytes += k->size;
		c->n++;
		while (c->n > 1 && (c->n > c->max || c->bytes > c->max_bytes)) {
			struct list_node *oldest = c->lru.next;

			remove_locked(c, container_of(oldest, struct fd_entry, link));
			list_add_tail(&leaving, oldest);
		}
	}
	mtx_unlock(&c->lock);
	if (old) { /* two asked at once */
		close_and_tell(e->fd, &e->key, e->peer, e->bulk);
		free(e);
	}
	while ((n = list_pop(&leaving)))
		fd_entry_unref(container_of(n, struct fd_entry, link));
	return old ? old : e;
}

void fd_cache_drop(struct fd_cache *c, const struct block_key *k)
{
	struct fd_entry *e;

	mtx_lock(&c->lock);
	e = find_locked(c, k);
	mtx_unlock(&c->lock);
	if (!e)
		return;
	entry_forget(c, e);
	fd_entry_unref(e);
}

/* --- the sweep --- */

/* references of all that are there */
static unsigned collect(struct fd_cache *c)
{
	struct list_node *node;
	unsigned n = 0;

	mtx_lock(&c->lock);
	list_for_each(node, &c->lru)
	{
		struct fd_entry *e = container_of(node, struct fd_entry, link);

		__atomic_fetch_add(&e->refs, 1, __ATOMIC_RELAXED);
		c->all[n++] = e;
	}
	mtx_unlock(&c->lock);
	return n;
}

static bool is_idle(struct fd_cache *c, const struct fd_entry *e, uint64_t now)
{
	uint64_t used;

	mtx_lock(&c->lock);
	used = e->used_us;
	mtx_unlock(&c->lock);
	return now > used && now - used > IDLE_US;
}

/* true: there is more to do */
static bool sweep(struct fd_cache *c)
{
	unsigned n = collect(c), left = 0;
	uint64_t now = clock_us();

	for (unsigned i = 0; i < n; i++) {
		struct fd_entry *e = c->all[i];

		if (left < SWEEP_MOST && (entry_gone(e) || is_idle(c, e, now))) {
			entry_forget(c, e);
			left++;
		}
		fd_entry_unref(e);
	}
	return left == SWEEP_MOST;
}

static void watch(struct fd_cache *c)
{
	struct diskq_look look;

	if (!c->disk)
		return;
	diskq_watch(c->disk, HANG_TICKS, HANG_TICKS, &look);
	if (look.stuck || look.given_up)
		__atomic_store_n(&c->off_until_us, clock_us() + OFF_US, __ATOMIC_RELAXED);
}

static void tick(struct loop_timer *t)
{
	struct fd_cache *c = container_of(t, struct fd_cache, timer);
	bool more = false;

	watch(c);
	if (++c->ticks % SWEEP_TICKS == 0 && !fd_cache_off(c)) /* a close may wait for the disk */
		more = sweep(c);
	loop_timer_start(t, more ? TICK_US / 4 : TICK_US);
	if (more)
		c->ticks--;
}

static void sweep_start(void *arg)
{
	struct fd_cache *c = arg;

	loop_timer_init(&c->timer, c->loop, tick);
	loop_timer_start(&c->timer, TICK_US);
}

static void sweep_stop(void *arg)
{
	struct fd_cache *c = arg;

	loop_timer_stop(&c->timer);
}

int fd_entry_fd(const struct fd_entry *e)
{
	return e->fd;
}

void fd_entry_unref(struct fd_entry *e)
{
	if (__atomic_sub_fetch(&e->refs, 1, __ATOMIC_ACQ_REL))
		return;
	close_and_tell(e->fd, &e->key, e->peer, e->bulk);
	FREE_COUNTED(e);
}
