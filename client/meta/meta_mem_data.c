/* SPDX-License-Identifier: Apache-2.0 */
/* The engine in memory: lists of slices; the rules are those of read.lua, write.lua and
 * truncate.lua. */
#include "client/meta/meta_mem.h"

struct mem_chunk *mem_chunk_find(struct mem_inode *i, uint32_t index)
{
	struct list_node *n;

	list_for_each(n, &i->chunks)
	{
		struct mem_chunk *c = container_of(n, struct mem_chunk, link);

		if (c->index == index)
			return c;
	}
	return NULL;
}

int mem_chunk_append(struct mem_inode *i, uint32_t index, const struct slice *s)
{
	struct mem_chunk *c = mem_chunk_find(i, index);

	if (!c) {
		c = calloc(1, sizeof(*c));
		if (!c)
			return -ENOMEM;
		c->index = index;
		list_add_tail(&i->chunks, &c->link);
	}
	if (c->n == c->cap) {
		size_t cap = c->cap ? c->cap * 2 : 8;
		struct slice *p = reallocarray(c->slices, cap, sizeof(*p));

		if (!p)
			return -ENOMEM;
		c->slices = p;
		c->cap = cap;
	}
	c->slices[c->n++] = *s;
	return 0;
}

static int chunk_zeros(struct mem_inode *i, uint32_t index, uint32_t pos, uint32_t len)
{
	struct slice s = {.pos = pos, .len = len};

	return mem_chunk_append(i, index, &s);
}

static int chunk_copy(struct mem_inode *i, uint32_t index, struct chunk_list *ret)
{
	struct mem_chunk *c = i->a.type == INODE_FILE ? mem_chunk_find(i, index) : NULL;

	*ret = (struct chunk_list){.index = index, .attr = i->a};
	if (!c)
		return 0;
	ret->slices = calloc(c->n + 1, sizeof(*ret->slices));
	if (!ret->slices)
		return -ENOMEM;
	memcpy(ret->slices, c->slices, c->n * sizeof(*c->slices));
	ret->n = c->n;
	return 0;
}

int mem_read(struct meta *m, uint64_t inode, uint32_t index, uint32_t n, struct chunk_list *ret)
{
	struct meta_mem *mm = mem_engine(m);
	struct mem_inode *i;
	struct hash128 volume = meta_volume_id(m);
	uint32_t k;
	int r = -ENOENT;

	mtx_lock(&mm->lock);
	i = mem_find_locked(mm, inode);
	for (k = 0; i && k < n; k++) {
		r = chunk_copy(i, index + k, &ret[k]);
		if (r)
			break;
		ret[k].volume = volume;
	}
	mtx_unlock(&mm->lock);
	while (r && k-- > 0)
		chunk_list_fini(&ret[k]);
	return r;
}

int mem_open(struct meta *m, const struct meta_ctx *c, uint64_t inode, int flags,
	     struct chunk_list *ret)
{
	(void)c;
	(void)flags;
	return mem_read(m, inode, 0, 1, ret);
}

/* zeros between the two lengths, as every client relies on */
static int truncate_lists(struct mem_inode *i, uint64_t left, uint64_t right)
{
	uint32_t first = (uint32_t)(left >> CHUNK_BITS), last = (uint32_t)(right >> CHUNK_BITS);
	uint32_t lo = (uint32_t)(left % CHUNK_SIZE), ro = (uint32_t)(right % CHUNK_SIZE);
	struct list_node *n;
	int r = chunk_zeros(i, first, lo, first == last ? ro - lo : CHUNK_SIZE - lo);

	list_for_each(n, &i->chunks)
	{
		struct mem_chunk *c = container_of(n, struct mem_chunk, link);

		if (!r && c->index > first && c->index < last)
			r = chunk_zeros(i, c->index, 0, CHUNK_SIZE);
	}
	if (!r && last > first && ro)
		r = chunk_zeros(i, last, 0, ro);
	return r;
}

int mem_truncate(struct meta *m, const struct meta_ctx *c, uint64_t inode, uint64_t length,
		 bool through_handle, struct attr *ret)
{
	struct meta_mem *mm = mem_engine(m);
	struct time_ns now = time_now();
	struct mem_inode *i;
	uint64_t before;
	int r = 0;

	(void)c;
	mtx_lock(&mm->lock);
	i = mem_find_locked(mm, inode);
	if (!i)
		r = -ENOENT;
	else if (i->a.type != INODE_FILE || (i->a.flags & (ATTR_IMMUTABLE | ATTR_APPEND)) ||
		 (!through_handle && i->a.parent > INODE_TRASH))
		r = -EPERM;
	if (!r && i->a.length == length)
		i->a.mtime = i->a.ctime = now;
	if (!r && i->a.length != length) {
		before = i->a.length;
		r = truncate_lists(i, MIN(before, length), MAX(before, length));
		mm->used += (int64_t)(align4k(length) - align4k(before));
		i->a.length = length;
		i->a.mtime = i->a.ctime = now;
	}
	if (!r)
		*ret = i->a;
	mtx_unlock(&mm->lock);
	return r;
}

static bool time_after(const struct time_ns *a, const struct time_ns *b)
{
	return a->sec != b->sec ? a->sec > b->sec : a->nsec > b->nsec;
}

int mem_write(struct meta *m, uint64_t inode, uint32_t index, const struct slice *s,
	      struct time_ns mtime, struct attr *ret)
{
	struct meta_mem *mm = mem_engine(m);
	uint64_t end = ((uint64_t)index << CHUNK_BITS) + s->pos + s->len;
	struct time_ns now = time_now();
	struct mem_inode *i;
	int r = 0;

	mtx_lock(&mm->lock);
	i = mem_find_locked(mm, inode);
	if (s->id >= mm->next_slice)
		r = -ESTALE;
	else if (!i)
		r = -ENOENT;
	else if (i->a.type != INODE_FILE)
		r = -EPERM;
	if (!r)
		r = mem_chunk_append(i, index, s);
	if (!r) {
		uint64_t length = MAX(i->a.length, end);

		mm->used += (int64_t)(align4k(length) - align4k(i->a.length));
		i->a.length = length;
		i->a.mtime = mtime;
		/* as whoever asked in between was told; but it always moves */
		i->a.ctime = time_after(&mtime, &i->a.ctime) ? mtime : now;
		*ret = i->a;
	}
	mtx_unlock(&mm->lock);
	return r;
}

int mem_new_slice(struct meta *m, uint64_t *ret, struct hash128 *ret_volume)
{
	struct meta_mem *mm = mem_engine(m);

	mtx_lock(&mm->lock);
	*ret = mm->next_slice++;
	mtx_unlock(&mm->lock);
	*ret_volume = meta_volume_id(m);
	return 0;
}
