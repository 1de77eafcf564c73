/* SPDX-License-Identifier: Apache-2.0 */
/* The engine in memory: ranges of files; the rules are those of fallocate.lua and copy.lua. */
#include "client/meta/meta_mem.h"

#include "client/meta/slice.h"
#include "common/hash.h"

enum { KEEP = 1, PUNCH = 2, ZERO = 16 };

static void resize(struct meta_mem *mm, struct mem_inode *i, uint64_t length)
{
	mm->used += (int64_t)(align4k(length) - align4k(i->a.length));
	i->a.length = length;
	i->a.mtime = i->a.ctime = time_now();
}

/* zeros over [off, end) */
static int punch(struct mem_inode *i, uint64_t off, uint64_t end)
{
	int r = 0;

	while (off < end && !r) {
		uint32_t pos = (uint32_t)(off % CHUNK_SIZE);
		struct slice s = {.pos = pos};

		s.len = (uint32_t)MIN(end - off, (uint64_t)CHUNK_SIZE - pos);
		r = mem_chunk_append(i, (uint32_t)(off >> CHUNK_BITS), &s);
		off += s.len;
	}
	return r;
}

static int fallocate_check(const struct mem_inode *i, int mode)
{
	if (!i)
		return -ENOENT;
	if (i->a.type == INODE_FIFO)
		return -EPIPE;
	if (i->a.type != INODE_FILE || (i->a.flags & ATTR_IMMUTABLE) ||
	    ((i->a.flags & ATTR_APPEND) && mode > KEEP))
		return -EPERM;
	return 0;
}

int mem_fallocate(struct meta *m, const struct meta_ctx *c, uint64_t inode, int mode, uint64_t off,
		  uint64_t len, struct attr *ret)
{
	struct meta_mem *mm = mem_engine(m);
	struct mem_inode *i;
	int r = meta_fallocate_mode(mode);

	(void)c;
	if (r)
		return r;
	mtx_lock(&mm->lock);
	i = mem_find_locked(mm, inode);
	r = fallocate_check(i, mode);
	if (!r && (mode & (PUNCH | ZERO)))
		r = punch(i, off, MIN(off + len, i->a.length));
	if (!r) {
		resize(mm, i, mode & KEEP ? i->a.length : MAX(i->a.length, off + len));
		*ret = i->a;
	}
	mtx_unlock(&mm->lock);
	return r;
}

static bool ref_eq(const struct hash_node *n, const void *key)
{
	return container_of(n, struct mem_ref, node)->slice == *(const uint64_t *)key;
}

int mem_ref_add_locked(struct meta_mem *mm, uint64_t slice)
{
	struct hash_node *n = hashmap_find(&mm->refs, hash64(&slice, 8), ref_eq, &slice);
	struct mem_ref *f;

	if (n) {
		container_of(n, struct mem_ref, node)->more++;
		return 0;
	}
	f = calloc(1, sizeof(*f));
	if (!f)
		return -ENOMEM;
	f->slice = slice;
	f->more = 1;
	hashmap_add(&mm->refs, &f->node, hash64(&slice, 8));
	return 0;
}

bool mem_ref_drop(struct meta_mem *mm, uint64_t slice)
{
	struct hash_node *n;
	struct mem_ref *f = NULL;
	bool last;

	mtx_lock(&mm->lock);
	n = hashmap_find(&mm->refs, hash64(&slice, 8), ref_eq, &slice);
	last = !n;
	if (n && --container_of(n, struct mem_ref, node)->more == 0) {
		f = container_of(n, struct mem_ref, node);
		hashmap_del(&mm->refs, n);
	}
	mtx_unlock(&mm->lock);
	free(f);
	return last;
}

static bool ref_free(struct hash_node *n, void *arg)
{
	(void)arg;
	free(container_of(n, struct mem_ref, node));
	return true;
}

void mem_refs_free(struct meta_mem *mm)
{
	hashmap_each(&mm->refs, ref_free, NULL);
	hashmap_fini(&mm->refs);
}

/* what chunk index shows of [from, from + len) goes to out_off */
static int copy_chunk_locked(struct meta_mem *mm, struct mem_inode *in, uint32_t index,
			     uint32_t from, uint32_t len, struct mem_inode *out, uint64_t out_off)
	REQUIRES(mm->lock)
{
	struct mem_chunk *c = mem_chunk_find(in, index);
	struct slice_view v = {0};
	int r = c ? slice_view_build(c->slices, c->n, &v) : 0;

	/* holes are whatever no piece covers */
	if (!r)
		r = punch(out, out_off, out_off + len);
	for (size_t k = 0; k < v.n && !r; k++) {
		const struct slice *p = &v.pieces[k];
		uint32_t at = MAX(p->pos, from), end = MIN(p->pos + p->len, from + len);

		while (p->id && at < end && !r) {
			uint64_t to = out_off + (at - from);
			struct slice s = {.pos = (uint32_t)(to % CHUNK_SIZE),
					  .id = p->id,
					  .size = p->size,
					  .off = p->off + (at - p->pos)};

			s.len = MIN(end - at, (uint32_t)CHUNK_SIZE - s.pos);
			r = mem_chunk_append(out, (uint32_t)(to >> CHUNK_BITS), &s);
			if (!r)
				r = mem_ref_add_locked(mm, p->id);
			at += s.len;
		}
	}
	slice_view_fini(&v);
	return r;
}

static int copy_locked(struct meta_mem *mm, uint64_t in, uint64_t off_in, uint64_t out,
		       uint64_t off_out, uint64_t len, uint64_t *ret_copied, struct attr *ret)
	REQUIRES(mm->lock)
{
	struct mem_inode *a = mem_find_locked(mm, in), *b = mem_find_locked(mm, out);
	uint64_t n, done;
	int r = 0;

	if (!a || !b)
		return -ENOENT;
	if (a->a.type != INODE_FILE || b->a.type != INODE_FILE)
		return -EINVAL;
	if (b->a.flags & (ATTR_IMMUTABLE | ATTR_APPEND))
		return -EPERM;
	n = off_in < a->a.length ? MIN(len, a->a.length - off_in) : 0;
	for (done = 0; done < n && !r;) {
		uint32_t pos = (uint32_t)((off_in + done) % CHUNK_SIZE);
		uint32_t part = (uint32_t)MIN(n - done, (uint64_t)CHUNK_SIZE - pos);

		r = copy_chunk_locked(mm, a, (uint32_t)((off_in + done) >> CHUNK_BITS), pos, part,
				      b, off_out + done);
		done += part;
	}
	if (r)
		return r;
	if (n)
		resize(mm, b, MAX(b->a.length, off_out + n));
	*ret_copied = n;
	*ret = b->a;
	return 0;
}

int mem_copy_file_range(struct meta *m, const struct meta_ctx *c, uint64_t in, uint64_t off_in,
			uint64_t out, uint64_t off_out, uint64_t len, uint64_t *ret_copied,
			struct attr *ret_out)
{
	struct meta_mem *mm = mem_engine(m);
	int r;

	(void)c;
	mtx_lock(&mm->lock);
	r = copy_locked(mm, in, off_in, out, off_out, len, ret_copied, ret_out);
	mtx_unlock(&mm->lock);
	return r;
}
