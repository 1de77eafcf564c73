/* SPDX-License-Identifier: Apache-2.0 */
/* Open files and directories. Any thread; one leaf lock over the list of handles and the count of
 * opens per inode. */
#include "client/handle.h"

struct open_inode {
	struct hash_node node;
	uint64_t inode;
	unsigned opens;
};

static uint64_t inode_hash(uint64_t inode)
{
	return inode * UINT64_C(0x9E3779B97F4A7C15);
}

static bool inode_eq(const struct hash_node *n, const void *key)
{
	return container_of(n, const struct open_inode, node)->inode == *(const uint64_t *)key;
}

int handles_init(struct handles *t)
{
	memset(t, 0, sizeof(*t));
	if (hashmap_init(&t->open, 256) < 0)
		return -ENOMEM;
	mtx_init(&t->lock);
	list_init(&t->all);
	return 0;
}

void handles_fini(struct handles *t)
{
	assert(list_empty(&t->all));
	hashmap_fini(&t->open);
	mtx_fini(&t->lock);
}

static struct open_inode *find_locked(struct handles *t, uint64_t inode) REQUIRES(t->lock)
{
	struct hash_node *n = hashmap_find(&t->open, inode_hash(inode), inode_eq, &inode);

	return n ? container_of(n, struct open_inode, node) : NULL;
}

struct handle *handle_new(struct handles *t, struct vfs *v, enum handle_kind kind, uint64_t inode,
			  int flags)
{
	struct open_inode *fresh = calloc(1, sizeof(*fresh));
	struct handle *h = calloc(1, sizeof(*h));

	if (!h || !fresh) {
		free(h);
		free(fresh);
		return NULL;
	}
	h->kind = kind;
	h->vfs = v;
	h->inode = inode;
	h->flags = flags;
	mtx_lock(&t->lock);
	if (kind == HANDLE_FILE) {
		struct open_inode *o = find_locked(t, inode);

		if (!o) {
			o = TAKE_PTR(fresh);
			o->inode = inode;
			hashmap_add(&t->open, &o->node, inode_hash(inode));
		}
		o->opens++;
	}
	h->number = ++t->last;
	list_add_tail(&t->all, &h->link);
	t->n++;
	mtx_unlock(&t->lock);
	free(fresh);
	return h;
}

void handle_free(struct handles *t, struct handle *h)
{
	struct open_inode *gone = NULL;

	mtx_lock(&t->lock);
	list_del(&h->link);
	t->n--;
	if (h->kind == HANDLE_FILE) {
		gone = find_locked(t, h->inode);
		assert(gone && gone->opens > 0);
		if (--gone->opens == 0)
			hashmap_del(&t->open, &gone->node);
		else
			gone = NULL;
	}
	mtx_unlock(&t->lock);
	free(gone);
	free(h);
}

void handle_use_begin(struct handles *t, struct handle *h)
{
	mtx_lock(&t->lock);
	h->uses++;
	t->in_use++;
	mtx_unlock(&t->lock);
}

void handle_use_end(struct handles *t, struct handle *h)
{
	void (*idle)(struct handle * h) = NULL;

	mtx_lock(&t->lock);
	assert(h->uses > 0);
	t->in_use--;
	if (--h->uses == 0)
		idle = TAKE_PTR(h->idle);
	mtx_unlock(&t->lock);
	if (idle)
		idle(h);
}

void handle_when_idle(struct handles *t, struct handle *h, void (*idle)(struct handle *h),
		      void *arg)
{
	bool now;

	mtx_lock(&t->lock);
	h->idle_arg = arg;
	now = h->uses == 0;
	if (!now)
		h->idle = idle;
	mtx_unlock(&t->lock);
	if (now)
		idle(h);
}

bool handles_inode_open(struct handles *t, uint64_t inode)
{
	bool open;

	mtx_lock(&t->lock);
	open = find_locked(t, inode) != NULL;
	mtx_unlock(&t->lock);
	return open;
}

struct handle *handles_any(struct handles *t)
{
	struct handle *h = NULL;

	mtx_lock(&t->lock);
	if (!list_empty(&t->all))
		h = container_of(t->all.next, struct handle, link);
	mtx_unlock(&t->lock);
	return h;
}

void handles_wait_idle(struct handles *t)
{
	for (size_t in_use = 1; in_use > 0;) {
		mtx_lock(&t->lock);
		in_use = t->in_use;
		mtx_unlock(&t->lock);
		/* once in a mount's life: not worth a wake-up at every read's end */
		if (in_use > 0)
			usleep(1000);
	}
}

size_t handles_count(struct handles *t)
{
	size_t n;

	mtx_lock(&t->lock);
	n = t->n;
	mtx_unlock(&t->lock);
	return n;
}
