/* SPDX-License-Identifier: Apache-2.0 */
/* Quotas in memory (quotas.h): tables, the way from a directory up to the root, and what operations
 * tell behind a change. Any thread. */
#include "client/meta/meta_redis_quota.h"

#include "client/meta/quotas.h"

#include "common/hash.h"

enum {
	PARENTS_MAX = 65536,
	DEPTH_MAX = 2000 /* as the scripts */
};

struct dir_parent {
	struct hash_node node;
	uint64_t dir, parent;
};

int quotas_new(struct quotas **ret)
{
	struct quotas *q = calloc(1, sizeof(*q));
	int r = q ? hashmap_init(&q->parents, 64) : -ENOMEM;

	if (!r)
		r = hashmap_init(&q->detached, 16);

	for (int k = 0; k < QUOTA_KINDS && !r; k++)
		r = hashmap_init(&q->of[k], 16);
	if (r) {
		for (int k = 0; q && k < QUOTA_KINDS; k++)
			hashmap_fini(&q->of[k]);
		if (q) {
			hashmap_fini(&q->parents);
			hashmap_fini(&q->detached);
		}
		free(q);
		return r;
	}
	mtx_init(&q->lock);
	cond_init(&q->flushed);
	*ret = q;
	return 0;
}

bool quota_free_node(struct hash_node *n, void *arg)
{
	(void)arg;
	free(n); /* the node is the first member of all that is in a table here */
	return true;
}

void quota_empty_locked(struct hashmap *m)
{
	struct hashmap old = *m;

	if (hashmap_init(m, 64)) {
		*m = old; /* stays as it is: no memory */
		return;
	}
	hashmap_each(&old, quota_free_node, NULL);
	hashmap_fini(&old);
}

void quotas_free(struct quotas *q)
{
	if (!q)
		return;
	for (int k = 0; k < QUOTA_KINDS; k++) {
		hashmap_each(&q->of[k], quota_free_node, NULL);
		hashmap_fini(&q->of[k]);
	}
	hashmap_each(&q->parents, quota_free_node, NULL);
	hashmap_fini(&q->parents);
	hashmap_each(&q->detached, quota_free_node, NULL);
	hashmap_fini(&q->detached);
	free(q->flight);
	cond_fini(&q->flushed);
	mtx_fini(&q->lock);
	free(q);
}

bool quota_entry_eq(const struct hash_node *n, const void *key)
{
	return container_of(n, struct quota_entry, node)->id == *(const uint64_t *)key;
}

static bool parent_eq(const struct hash_node *n, const void *key)
{
	return container_of(n, struct dir_parent, node)->dir == *(const uint64_t *)key;
}

struct quota_entry *quota_find_locked(struct quotas *q, int kind, uint64_t id) REQUIRES(q->lock)
{
	struct hash_node *n = hashmap_find(&q->of[kind], hash64(&id, 8), quota_entry_eq, &id);

	return n ? container_of(n, struct quota_entry, node) : NULL;
}

/* takes spare when there is none yet; NULL: neither */
static struct quota_entry *get_locked(struct quotas *q, int kind, uint64_t id,
				      struct quota_entry **spare) REQUIRES(q->lock)
{
	struct quota_entry *e = quota_find_locked(q, kind, id);

	if (e || !*spare)
		return e;
	e = TAKE_PTR(*spare);
	*e = (struct quota_entry){.id = id, .max = {-1, -1}};
	hashmap_add(&q->of[kind], &e->node, hash64(&id, 8));
	return e;
}

/* --- the way up --- */

static void parent_keep(struct quotas *q, uint64_t dir, uint64_t parent, uint64_t moves)
{
	struct dir_parent *d = calloc(1, sizeof(*d));
	struct hash_node *n;

	if (!d)
		return;
	mtx_lock(&q->lock);
	if (q->parents.count >= PARENTS_MAX)
		quota_empty_locked(&q->parents);
	n = hashmap_find(&q->parents, hash64(&dir, 8), parent_eq, &dir);
	if (q->moves == moves && (n || q->parents.count < PARENTS_MAX)) {
		if (!n) {
			d->dir = dir;
			hashmap_add(&q->parents, &d->node, hash64(&dir, 8));
			n = &TAKE_PTR(d)->node;
		}
		container_of(n, struct dir_parent, node)->parent = parent;
	}
	mtx_unlock(&q->lock);
	free(d);
}

static int parent_of(struct meta_redis *mr, uint64_t dir, uint64_t *ret)
{
	struct quotas *q = mr->quotas;
	struct hash_node *n;
	uint64_t moves, parent = 0;
	struct attr a;
	int r;

	mtx_lock(&q->lock);
	n = hashmap_find(&q->detached, hash64(&dir, 8), parent_eq, &dir);
	if (!n)
		n = hashmap_find(&q->parents, hash64(&dir, 8), parent_eq, &dir);
	if (n)
		parent = container_of(n, struct dir_parent, node)->parent;
	moves = q->moves;
	mtx_unlock(&q->lock);
	if (!n) {
		r = redis_getattr(&mr->base, dir, &a);
		if (r)
			return r;
		parent = a.parent;
		parent_keep(q, dir, parent, moves);
	}
	*ret = parent;
	return 0;
}

void quota_learn(struct meta_redis *mr, uint64_t dir, const struct attr *a)
{
	uint64_t moves;

	if (!has_dirs(mr) || dir == INODE_ROOT)
		return;
	mtx_lock(&mr->quotas->lock);
	moves = mr->quotas->moves;
	mtx_unlock(&mr->quotas->lock);
	parent_keep(mr->quotas, dir, a->parent, moves);
}

/* fn(dir) for dir and all above it, until it says false; 0, or why the way ends too early */
int quota_way_up(struct meta_redis *mr, uint64_t dir, bool (*fn)(void *arg, uint64_t dir),
		 void *arg)
{
	int r = 0;

	/* a damaged volume may go in circles */
	for (int i = 0; i < DEPTH_MAX && dir && dir < INODE_INTERNAL; i++) {
		if (!fn(arg, dir) || dir == INODE_ROOT)
			return 0;
		r = parent_of(mr, dir, &dir);
		if (r)
			return r == -ENOENT ? 0
					    : r; /* gone meanwhile: its own operation finds out */
	}
	return 0;
}

/* --- behind a change --- */

struct adding {
	struct meta_redis *mr;
	struct amount more;
};

static bool add_dir(void *arg, uint64_t dir)
{
	struct adding *c = arg;
	struct quotas *q = c->mr->quotas;
	struct quota_entry *e;

	mtx_lock(&q->lock);
	e = quota_find_locked(q, QUOTA_DIR, dir);
	if (e) {
		e->fresh.space += c->more.space;
		e->fresh.inodes += c->more.inodes;
	}
	mtx_unlock(&q->lock);
	return true;
}

uint64_t quota_dir_begin(struct meta_redis *mr, uint64_t dir, int64_t space, int64_t inodes)
{
	struct adding c = {mr, {space, inodes}};
	uint64_t up = 0;

	mtx_lock(&mr->quotas->lock);
	mr->quotas->begun++;
	mtx_unlock(&mr->quotas->lock);
	if (!has_dirs(mr) || (space == 0 && inodes == 0) || dir >= INODE_INTERNAL)
		return 0;
	/* what cannot be asked now is told all the same: the script finds the way */
	if (quota_way_up(mr, dir, add_dir, &c) || dir == INODE_ROOT || parent_of(mr, dir, &up))
		return 0;
	return up;
}

void quota_dir_end(struct meta_redis *mr)
{
	mtx_lock(&mr->quotas->lock);
	mr->quotas->ended++;
	mtx_unlock(&mr->quotas->lock);
}

uint64_t quota_mark(struct meta_redis *mr)
{
	struct quotas *q = mr->quotas;
	uint64_t mark;

	mtx_lock(&q->lock);
	mark = q->begun == q->ended ? q->begun : UINT64_MAX;
	mtx_unlock(&q->lock);
	return mark;
}

static bool fresh_ends(struct hash_node *n, void *arg)
{
	(void)arg;
	container_of(n, struct quota_entry, node)->fresh = (struct amount){0};
	return true;
}

void quota_all_told(struct meta_redis *mr, uint64_t mark)
{
	struct quotas *q = mr->quotas;

	mtx_lock(&q->lock);
	if (q->begun == mark)
		hashmap_each(&q->of[QUOTA_DIR], fresh_ends, NULL);
	mtx_unlock(&q->lock);
}

void quota_tell(struct meta_redis *mr)
{
	mtx_lock(&mr->quotas->lock);
	mr->quotas->telling++;
	mtx_unlock(&mr->quotas->lock);
}

void quota_told(struct meta_redis *mr, const struct redis_reply *list, bool behind)
{
	struct quotas *q = mr->quotas;

	mtx_lock(&q->lock);
	q->telling--;
	q->flush_no++;
	for (size_t i = 0; i + 2 < reply_len(list); i += 3) {
		uint64_t id = (uint64_t)reply_int(reply_at(list, i));
		struct quota_entry *e = quota_find_locked(q, QUOTA_DIR, id);

		if (!e)
			continue;
		e->flush_no = q->flush_no;
		e->used.space += reply_int(reply_at(list, i + 1));
		e->used.inodes += reply_int(reply_at(list, i + 2));
		if (behind) {
			e->fresh.space -= reply_int(reply_at(list, i + 1));
			e->fresh.inodes -= reply_int(reply_at(list, i + 2));
		}
	}
	mtx_unlock(&q->lock);
}

bool quota_limited(struct meta_redis *mr)
{
	return has_limits(mr);
}

void quota_detach(struct meta_redis *mr, uint64_t dir)
{
	struct dir_parent *d = calloc(1, sizeof(*d));
	struct quotas *q = mr->quotas;

	if (!d)
		return; /* what fails below it then is found by a check */
	d->dir = dir;
	mtx_lock(&q->lock);
	hashmap_add(&q->detached, &d->node, hash64(&dir, 8));
	mtx_unlock(&q->lock);
}

void quota_attach(struct meta_redis *mr, uint64_t dir)
{
	struct quotas *q = mr->quotas;
	struct hash_node *n;

	mtx_lock(&q->lock);
	n = hashmap_find(&q->detached, hash64(&dir, 8), parent_eq, &dir);
	if (n)
		hashmap_del(&q->detached, n);
	mtx_unlock(&q->lock);
	if (n)
		free(container_of(n, struct dir_parent, node));
}

void quota_reparented(struct meta_redis *mr, uint64_t dir)
{
	struct quotas *q = mr->quotas;
	struct hash_node *n;

	if (!has_dirs(mr))
		return;
	mtx_lock(&q->lock);
	q->moves++;
	n = hashmap_find(&q->parents, hash64(&dir, 8), parent_eq, &dir);
	if (n) {
		hashmap_del(&q->parents, n);
		free(container_of(n, struct dir_parent, node));
	}
	mtx_unlock(&q->lock);
}

void quota_owner(struct meta_redis *mr, uint32_t uid, uint32_t gid, int64_t space, int64_t inodes)
{
	const uint32_t ids[] = {uid, gid};
	struct quotas *q = mr->quotas;

	if (!has_owners(mr) || (space == 0 && inodes == 0))
		return;
	for (int i = 0; i < 2; i++) {
		struct quota_entry *spare = calloc(1, sizeof(*spare)), *e;

		mtx_lock(&q->lock);
		e = get_locked(q, QUOTA_USER + i, ids[i], &spare);
		if (e) {
			e->fresh.space += space;
			e->fresh.inodes += inodes;
		}
		mtx_unlock(&q->lock);
		free(spare);
	}
}
