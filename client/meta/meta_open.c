/* SPDX-License-Identifier: Apache-2.0 */
/* Files that this client has open. A file that loses its last name while it is open stays, without
 * a name, until its last close; other clients know nothing of our opens. Any thread; the engine's
 * lock.
 *
 *	count > 0	named		open_ref, open_named
 *	count > 0	unnamed		open_unnamed: the last open_unref says delete
 *	not there			open_unnamed says: delete now */
#include "client/meta/engine.h"

#include "common/hash.h"

struct open_file {
	struct hash_node node;
	uint64_t inode;
	unsigned count;
	bool unnamed;
};

static bool open_eq(const struct hash_node *n, const void *key)
{
	return container_of(n, struct open_file, node)->inode == *(const uint64_t *)key;
}

static struct open_file *open_find_locked(struct meta *m, uint64_t inode) REQUIRES(m->lock)
{
	struct hash_node *n = hashmap_find(&m->open, hash64(&inode, 8), open_eq, &inode);

	return n ? container_of(n, struct open_file, node) : NULL;
}

int open_ref(struct meta *m, uint64_t inode)
{
	struct open_file *spare = calloc(1, sizeof(*spare)), *f;

	if (!spare)
		return -ENOMEM;
	mtx_lock(&m->lock);
	f = open_find_locked(m, inode);
	if (!f) {
		f = TAKE_PTR(spare);
		f->inode = inode;
		hashmap_add(&m->open, &f->node, hash64(&inode, 8));
	}
	f->count++;
	mtx_unlock(&m->lock);
	free(spare);
	return 0;
}

int open_unref(struct meta *m, uint64_t inode, bool *ret_delete)
{
	struct open_file *f, *last = NULL;

	mtx_lock(&m->lock);
	f = open_find_locked(m, inode);
	if (f && --f->count == 0) {
		last = f;
		hashmap_del(&m->open, &f->node);
	}
	mtx_unlock(&m->lock);
	*ret_delete = last && last->unnamed;
	free(last);
	return f ? 0 : -EBADF;
}

bool open_is(struct meta *m, uint64_t inode)
{
	bool is;

	mtx_lock(&m->lock);
	is = open_find_locked(m, inode);
	mtx_unlock(&m->lock);
	return is;
}

bool open_unnamed(struct meta *m, uint64_t inode)
{
	struct open_file *f;

	mtx_lock(&m->lock);
	f = open_find_locked(m, inode);
	if (f)
		f->unnamed = true;
	mtx_unlock(&m->lock);
	return f;
}

void open_named(struct meta *m, uint64_t inode)
{
	struct open_file *f;

	mtx_lock(&m->lock);
	f = open_find_locked(m, inode);
	if (f)
		f->unnamed = false;
	mtx_unlock(&m->lock);
}

struct open_unnamed {
	uint64_t *v;
	size_t n;
};

static bool open_add_unnamed(struct hash_node *n, void *arg)
{
	const struct open_file *f = container_of(n, struct open_file, node);
	struct open_unnamed *u = arg;

	if (f->unnamed && u->v)
		u->v[u->n] = f->inode;
	u->n += f->unnamed;
	return true;
}

/* counted, then allocated outside of the lock, until it fits */
int open_unnamed_list(struct meta *m, uint64_t **ret, size_t *ret_n)
{
	struct open_unnamed u = {0};
	size_t cap = 0;

	for (;;) {
		struct open_unnamed count = {0};

		mtx_lock(&m->lock);
		hashmap_each(&m->open, open_add_unnamed, &count);
		if (u.v && count.n <= cap)
			hashmap_each(&m->open, open_add_unnamed, &u);
		mtx_unlock(&m->lock);
		if (u.v && count.n <= cap)
			break;
		free(u.v);
		cap = count.n;
		u = (struct open_unnamed){.v = calloc(cap + 1, sizeof(*u.v))};
		if (!u.v)
			return -ENOMEM;
	}
	*ret = u.v;
	*ret_n = u.n;
	return 0;
}

struct open_dump {
	uint8_t *p;
	size_t len;
};

static bool open_dump(struct hash_node *n, void *arg)
{
	struct open_dump *d = arg;

	be64(d->p + d->len, container_of(n, struct open_file, node)->inode);
	d->len += 8;
	return d->len < OPEN_LIST_MAX * 8;
}

bool open_list(struct meta *m, uint8_t ret[OPEN_LIST_MAX * 8], size_t *ret_len)
{
	struct open_dump d = {.p = ret};
	bool fits;

	mtx_lock(&m->lock);
	fits = m->open.count <= OPEN_LIST_MAX;
	if (fits)
		hashmap_each(&m->open, open_dump, &d);
	mtx_unlock(&m->lock);
	*ret_len = d.len;
	return fits;
}
