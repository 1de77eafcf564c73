/* SPDX-License-Identifier: Apache-2.0 */
/* The order of answers and the version of cached pages, per inode. Any thread; one leaf lock over a
 * hash table and a list in order of use. An entry is made by the first call that has something to
 * remember. */
#include "client/attrcache.h"

#include "common/hashmap.h"
#include "common/list.h"
#include "common/mtx.h"

struct pages {
	bool known;
	struct time_ns mtime, ctime;
	uint64_t length;
};

struct known {
	struct hash_node node;
	struct list_node used;
	uint64_t inode;
	uint64_t asked_us;   /* the newest answer's question */
	uint64_t changed_us; /* our last change; 0: none */
	struct pages pages;
	uint64_t drop;		/* pages of another version may be there still; 0: none are */
	uint64_t turn;		/* of the last change that began */
	bool has_dir, answered; /* answered: dir is an answer, not what a change left */
	struct attr dir;
	uint64_t dir_us; /* when dir was asked for */
};

struct attrcache {
	struct mtx lock;
	struct hashmap map;
	struct list_node used; /* oldest first */
	size_t max;
	uint64_t moved_us;   /* when the volume became another one; 0: never */
	uint64_t changed_us; /* the newest change of any; atomic */
	uint64_t some_us;    /* when inodes without a number were changed here */
	uint64_t turns;	     /* changes that began, counted */
	uint64_t drops;	     /* of pages, counted */
	uint64_t dirs_us;    /* directories kept of questions before it count no more; 0: all do */
};

static uint64_t inode_hash(uint64_t inode)
{
	return inode * UINT64_C(0x9E3779B97F4A7C15);
}

static bool inode_eq(const struct hash_node *n, const void *key)
{
	return container_of(n, const struct known, node)->inode == *(const uint64_t *)key;
}

int attrcache_new(size_t max, struct attrcache **ret)
{
	struct attrcache *c = calloc(1, sizeof(*c));

	assert(max > 0);
	if (!c)
		return -ENOMEM;
	if (hashmap_init(&c->map, 1024) < 0) {
		free(c);
		return -ENOMEM;
	}
	mtx_init(&c->lock);
	list_init(&c->used);
	c->max = max;
	*ret = c;
	return 0;
}

void attrcache_free(struct attrcache *c)
{
	struct list_node *n;

	if (!c)
		return;
	while ((n = list_pop(&c->used)))
		free(container_of(n, struct known, used));
	hashmap_fini(&c->map);
	mtx_fini(&c->lock);
	free(c);
}

/* found and moved to the young end, or NULL */
static struct known *find_locked(struct attrcache *c, uint64_t inode) REQUIRES(c->lock)
{
	struct hash_node *n = hashmap_find(&c->map, inode_hash(inode), inode_eq, &inode);
	struct known *k;

	if (!n)
		return NULL;
	k = container_of(n, struct known, node);
	list_del(&k->used);
	list_add_tail(&c->used, &k->used);
	return k;
}

/* found or made; at the limit the oldest entry is used again. NULL: no memory */
static struct known *get_locked(struct attrcache *c, uint64_t inode) REQUIRES(c->lock)
{
	struct known *k = find_locked(c, inode);

	if (k)
		return k;
	if (c->map.count >= c->max) {
		k = container_of(list_pop(&c->used), struct known, used);
		hashmap_del(&c->map, &k->node);
		memset(k, 0, sizeof(*k));
	} else {
		k = calloc(1, sizeof(*k));
		if (!k)
			return NULL;
	}
	k->inode = inode;
	hashmap_add(&c->map, &k->node, inode_hash(inode));
	list_add_tail(&c->used, &k->used);
	return k;
}

bool attrcache_seen(struct attrcache *c, uint64_t inode, uint64_t asked_us)
{
	struct known *k;
	bool newest = true;

	mtx_lock(&c->lock);
	k = get_locked(c, inode);
	if (k) {
		newest = asked_us >= k->asked_us && (!k->changed_us || asked_us > k->changed_us) &&
			 (!c->moved_us || asked_us > c->moved_us);
		if (newest)
			k->asked_us = asked_us;
	}
	mtx_unlock(&c->lock);
	return newest;
}

/* read without the lock, where nothing has changed for long */
static void change_locked(struct attrcache *c, struct known *k, uint64_t now_us) REQUIRES(c->lock)
{
	k->changed_us = MAX(k->changed_us, now_us);
	if (now_us > c->changed_us)
		__atomic_store_n(&c->changed_us, now_us, __ATOMIC_RELEASE);
}

void attrcache_changed(struct attrcache *c, uint64_t inode, uint64_t now_us)
{
	struct known *k;

	mtx_lock(&c->lock);
	k = get_locked(c, inode);
	if (k) {
		change_locked(c, k, now_us);
		k->turn = ++c->turns;
		k->has_dir = false;
	}
	mtx_unlock(&c->lock);
}

uint64_t attrcache_names_begin(struct attrcache *c, uint64_t inode)
{
	struct known *k;
	uint64_t turn;

	mtx_lock(&c->lock);
	k = get_locked(c, inode);
	turn = ++c->turns;
	if (k) {
		k->turn = turn;
		k->has_dir = false;
	}
	mtx_unlock(&c->lock);
	return turn;
}

void attrcache_names_end(struct attrcache *c, uint64_t inode, uint64_t token, const struct attr *a,
			 uint64_t asked_us, uint64_t now_us)
{
	struct known *k;

	mtx_lock(&c->lock);
	k = get_locked(c, inode);
	if (k) {
		change_locked(c, k, now_us);
		k->has_dir = false;
		if (a && k->turn == token && asked_us > c->moved_us) {
			k->has_dir = true;
			k->answered = false;
			k->dir = *a;
			k->dir_us = asked_us;
		}
	}
	mtx_unlock(&c->lock);
}

void attrcache_keep(struct attrcache *c, uint64_t inode, const struct attr *a, uint64_t asked_us)
{
	struct known *k;

	mtx_lock(&c->lock);
	k = find_locked(c, inode);
	if (k && k->asked_us == asked_us && asked_us > k->changed_us && asked_us > c->moved_us &&
	    asked_us > c->some_us) {
		k->has_dir = k->answered = true;
		k->dir = *a;
		k->dir_us = asked_us;
	}
	mtx_unlock(&c->lock);
}

void attrcache_changed_some(struct attrcache *c, uint64_t now_us)
{
	mtx_lock(&c->lock);
	c->some_us = MAX(c->some_us, now_us);
	mtx_unlock(&c->lock);
}

void attrcache_dirs_forget(struct attrcache *c, uint64_t now_us)
{
	mtx_lock(&c->lock);
	c->dirs_us = MAX(c->dirs_us, now_us);
	mtx_unlock(&c->lock);
}

bool attrcache_dir(struct attrcache *c, uint64_t inode, struct attr *ret, uint64_t *ret_asked_us)
{
	struct known *k;
	bool has;

	mtx_lock(&c->lock);
	k = find_locked(c, inode);
	has = k && k->has_dir && k->dir_us > c->dirs_us && (!k->answered || k->dir_us > c->some_us);
	if (has) {
		*ret = k->dir;
		*ret_asked_us = k->dir_us;
	}
	mtx_unlock(&c->lock);
	return has;
}

bool attrcache_changed_since(struct attrcache *c, uint64_t inode, uint64_t since_us)
{
	struct known *k;
	bool changed;

	if (__atomic_load_n(&c->changed_us, __ATOMIC_ACQUIRE) < since_us)
		return false;
	mtx_lock(&c->lock);
	k = find_locked(c, inode);
	changed = k && k->changed_us && k->changed_us >= since_us;
	mtx_unlock(&c->lock);
	return changed;
}

static bool time_eq(const struct time_ns *a, const struct time_ns *b)
{
	return a->sec == b->sec && a->nsec == b->nsec;
}

static bool pages_are(const struct pages *p, const struct attr *a)
{
	return p->known && time_eq(&p->mtime, &a->mtime) && time_eq(&p->ctime, &a->ctime) &&
	       p->length == a->length;
}

bool attrcache_pages_other(struct attrcache *c, uint64_t inode, const struct attr *a)
{
	struct known *k;
	bool other;

	mtx_lock(&c->lock);
	k = find_locked(c, inode);
	other = !k || !pages_are(&k->pages, a);
	mtx_unlock(&c->lock);
	return other;
}

bool attrcache_pages_match(struct attrcache *c, uint64_t inode, const struct attr *a,
			   uint64_t *ret_drop)
{
	struct known *k;
	uint64_t drop = 0;
	bool match = false;

	mtx_lock(&c->lock);
	k = get_locked(c, inode);
	if (k) {
		match = pages_are(&k->pages, a);
		if (!match)
			k->drop = ret_drop ? ++c->drops : 0;
		k->pages = (struct pages){true, a->mtime, a->ctime, a->length};
		drop = k->drop;
	}
	mtx_unlock(&c->lock);
	if (ret_drop)
		*ret_drop = drop;
	return match && !drop;
}

void attrcache_pages_dropped(struct attrcache *c, uint64_t inode, uint64_t drop)
{
	struct known *k;

	mtx_lock(&c->lock);
	k = find_locked(c, inode);
	if (k && k->drop == drop)
		k->drop = 0;
	mtx_unlock(&c->lock);
}

void attrcache_pages_forget(struct attrcache *c, uint64_t inode)
{
	struct known *k;

	mtx_lock(&c->lock);
	k = find_locked(c, inode);
	if (k)
		k->pages.known = false;
	mtx_unlock(&c->lock);
}

bool attrcache_length(struct attrcache *c, uint64_t inode, uint64_t *ret)
{
	struct known *k;
	bool known;

	mtx_lock(&c->lock);
	k = find_locked(c, inode);
	known = k && k->pages.known;
	if (known)
		*ret = k->pages.length;
	mtx_unlock(&c->lock);
	return known;
}

void attrcache_grew(struct attrcache *c, uint64_t inode, uint64_t end)
{
	struct known *k;

	mtx_lock(&c->lock);
	k = find_locked(c, inode);
	if (k && k->pages.known)
		k->pages.length = MAX(k->pages.length, end);
	mtx_unlock(&c->lock);
}

void attrcache_times(struct attrcache *c, uint64_t inode, const struct attr *a)
{
	struct known *k;

	mtx_lock(&c->lock);
	k = find_locked(c, inode);
	if (k && k->pages.known) {
		k->pages.mtime = a->mtime;
		k->pages.ctime = a->ctime;
	}
	mtx_unlock(&c->lock);
}

void attrcache_volume_moved(struct attrcache *c, uint64_t now_us)
{
	mtx_lock(&c->lock);
	c->moved_us = now_us;
	for (struct list_node *n = c->used.next; n != &c->used; n = n->next) {
		struct known *k = container_of(n, struct known, used);

		k->pages.known = k->has_dir = false;
	}
	mtx_unlock(&c->lock);
}
