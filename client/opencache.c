/* SPDX-License-Identifier: Apache-2.0 */
/* One leaf lock over a hash table and a list in order of use. References are given up without
 * it. */
#include "client/opencache.h"

#include "common/hashmap.h"
#include "common/list.h"
#include "common/mtx.h"

/* pieces of slice lists that a closed file may keep: a larger file's are read again */
enum { PIECES_MAX = 256 };

struct opened {
	struct hash_node node;
	struct list_node used;
	uint64_t inode, asked_us;
	struct attr attr;
	struct rfile *lists; /* NULL: none are kept */
};

struct opencache {
	uint64_t us;
	size_t max;
	void (*put)(struct rfile *f);
	struct mtx lock;
	struct hashmap map;
	struct list_node used; /* oldest first */
};

static uint64_t inode_hash(uint64_t inode)
{
	return inode * UINT64_C(0x9E3779B97F4A7C15);
}

static bool inode_eq(const struct hash_node *n, const void *key)
{
	return container_of(n, const struct opened, node)->inode == *(const uint64_t *)key;
}

int opencache_new(uint64_t us, size_t max, void (*put)(struct rfile *f), struct opencache **ret)
{
	struct opencache *c = calloc(1, sizeof(*c));

	assert(max > 0);
	if (!c)
		return -ENOMEM;
	if (hashmap_init(&c->map, 256) < 0) {
		free(c);
		return -ENOMEM;
	}
	mtx_init(&c->lock);
	list_init(&c->used);
	c->us = us;
	c->max = max;
	c->put = put;
	*ret = c;
	return 0;
}

static void opened_free(struct opencache *c, struct opened *o)
{
	if (o && o->lists)
		c->put(o->lists);
	free(o);
}

void opencache_forget_all(struct opencache *c)
{
	struct list_node gone, *n;

	if (!c)
		return;
	list_init(&gone);
	mtx_lock(&c->lock);
	while ((n = list_pop(&c->used))) {
		hashmap_del(&c->map, &container_of(n, struct opened, used)->node);
		list_add_tail(&gone, n);
	}
	mtx_unlock(&c->lock);
	while ((n = list_pop(&gone)))
		opened_free(c, container_of(n, struct opened, used));
}

void opencache_free(struct opencache *c)
{
	if (!c)
		return;
	opencache_forget_all(c);
	hashmap_fini(&c->map);
	mtx_fini(&c->lock);
	free(c);
}

/* found, as the one that was used last, or NULL */
static struct opened *find_locked(struct opencache *c, uint64_t inode) REQUIRES(c->lock)
{
	struct hash_node *n = hashmap_find(&c->map, inode_hash(inode), inode_eq, &inode);
	struct opened *o = n ? container_of(n, struct opened, node) : NULL;

	if (o) {
		list_del(&o->used);
		list_add_tail(&c->used, &o->used);
	}
	return o;
}

void opencache_seen(struct opencache *c, uint64_t inode, const struct attr *a, uint64_t asked_us)
{
	struct opened *fresh, *o, *gone = NULL;

	if (!c)
		return;
	fresh = calloc(1, sizeof(*fresh));
	mtx_lock(&c->lock);
	o = find_locked(c, inode);
	if (!o && fresh) {
		if (c->map.count >= c->max) {
			gone = container_of(list_pop(&c->used), struct opened, used);
			hashmap_del(&c->map, &gone->node);
		}
		o = TAKE_PTR(fresh);
		o->inode = inode;
		hashmap_add(&c->map, &o->node, inode_hash(inode));
		list_add_tail(&c->used, &o->used);
	}
	if (o && asked_us >= o->asked_us) {
		o->attr = *a;
		o->asked_us = asked_us;
	}
	mtx_unlock(&c->lock);
	free(fresh);
	opened_free(c, gone);
}

bool opencache_get(struct opencache *c, uint64_t inode, uint64_t now_us, struct attr *ret,
		   uint64_t *ret_asked_us)
{
	struct opened *o;
	bool young;

	if (!c)
		return false;
	mtx_lock(&c->lock);
	o = find_locked(c, inode);
	young = o && now_us - o->asked_us < c->us;
	if (young) {
		*ret = o->attr;
		*ret_asked_us = o->asked_us;
	}
	mtx_unlock(&c->lock);
	return young;
}

void opencache_keep(struct opencache *c, uint64_t inode, struct rfile *f, size_t pieces)
{
	struct rfile *old = f;
	struct hash_node *n;

	if (pieces <= PIECES_MAX) {
		mtx_lock(&c->lock);
		n = hashmap_find(&c->map, inode_hash(inode), inode_eq, &inode);
		if (n) {
			struct opened *o = container_of(n, struct opened, node);

			old = o->lists;
			o->lists = f;
		}
		mtx_unlock(&c->lock);
	}
	if (old)
		c->put(old);
}
