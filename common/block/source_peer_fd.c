/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors of block files that the daemon of this node passed: a bounded number, least recently
 * used leave first. Any thread; one leaf lock; closing and telling the daemon happen outside of it.
 * The daemon counts what it passed, so every descriptor that came is answered by one CLOSED. */
#include "common/block/source_peer.h"

#include "common/hashmap.h"

struct fd_cache {
	struct mtx lock;
	struct hashmap map GUARDED_BY(lock);
	struct list_node lru GUARDED_BY(lock); /* oldest first */
	unsigned n GUARDED_BY(lock), max;
};

struct fd_entry {
	struct hash_node node;
	struct list_node link;
	struct block_key key;
	int fd;
	struct peer *peer;
	bool bulk;     /* over which of its connections it came */
	unsigned refs; /* atomic; the cache's is one */
};

int fd_cache_new(unsigned max, struct fd_cache **ret)
{
	struct fd_cache *c = calloc(1, sizeof(*c));

	if (!c || hashmap_init(&c->map, max) < 0) {
		free(c);
		return -ENOMEM;
	}
	mtx_init(&c->lock);
	list_init(&c->lru);
	c->max = max;
	*ret = c;
	return 0;
}

void fd_cache_free(struct fd_cache *c)
{
	struct list_node *n;

	if (!c)
		return;
	while ((n = list_pop(&c->lru)))
		fd_entry_unref(container_of(n, struct fd_entry, link));
	hashmap_fini(&c->map);
	mtx_fini(&c->lock);
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
	__atomic_fetch_add(&e->refs, 1, __ATOMIC_RELAXED);
	return e;
}

static void remove_locked(struct fd_cache *c, struct fd_entry *e)
{
	hashmap_del(&c->map, &e->node);
	list_del(&e->link);
	c->n--;
}

struct fd_entry *fd_cache_find(struct fd_cache *c, const struct block_key *k)
{
	struct fd_entry *e;

	mtx_lock(&c->lock);
	e = find_locked(c, k);
	mtx_unlock(&c->lock);
	return e;
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

static void entry_close(struct fd_entry *e)
{
	close_and_tell(e->fd, &e->key, e->peer, e->bulk);
	free(e);
}

struct fd_entry *fd_cache_add(struct fd_cache *c, const struct block_key *k, int fd,
			      struct peer *peer, bool bulk)
{
	struct fd_entry *e = calloc(1, sizeof(*e)), *old, *leaves = NULL;

	if (!e) {
		close_and_tell(fd, k, peer, bulk);
		return NULL;
	}
	e->key = *k;
	e->fd = fd;
	e->peer = peer;
	e->bulk = bulk;
	e->refs = 2;
	mtx_lock(&c->lock);
	old = find_locked(c, k);
	if (!old) {
		hashmap_add(&c->map, &e->node, k->digest);
		list_add_tail(&c->lru, &e->link);
		if (++c->n > c->max) {
			leaves = container_of(c->lru.next, struct fd_entry, link);
			remove_locked(c, leaves);
		}
	}
	mtx_unlock(&c->lock);
	if (old)
		entry_close(e); /* two asked at once */
	if (leaves)
		fd_entry_unref(leaves);
	return old ? old : e;
}

void fd_cache_drop(struct fd_cache *c, const struct block_key *k)
{
	struct fd_entry *e;

	mtx_lock(&c->lock);
	e = find_locked(c, k);
	if (e)
		remove_locked(c, e);
	mtx_unlock(&c->lock);
	if (e) {
		fd_entry_unref(e); /* find's */
		fd_entry_unref(e); /* the cache's */
	}
}

int fd_entry_fd(const struct fd_entry *e)
{
	return e->fd;
}

void fd_entry_unref(struct fd_entry *e)
{
	if (__atomic_sub_fetch(&e->refs, 1, __ATOMIC_ACQ_REL) == 0)
		entry_close(e);
}
