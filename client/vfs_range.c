/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges of a file: given space, punched out, copied without moving data, and where data lies. All
 * block on Redis: meta workq; what was written through the inodes was flushed before. */
#include <fcntl.h>

#include "client/meta/slice.h"
#include "client/vfs.h"

enum {
	LISTS = 64,
	NEAR = 4 * LISTS /* chunks that are read one after the other before data is looked for */
};

/* the file's length and bytes are others now; readers and the writer hear of it */
static void range_changed(struct vfs *v, uint64_t inode, const struct attr *a)
{
	struct wfile *f = v->writer ? wfile_find(v->writer, inode) : NULL;

	if (f) {
		wfile_set_length(f, a->length);
		wfile_put(f);
	}
	vfs_changed(v, inode, a, true);
}

static bool is_open_file(const struct handle *h)
{
	return h->kind == HANDLE_FILE;
}

int vfs_fallocate(struct vfs *v, const struct meta_ctx *c, struct handle *h, int mode, uint64_t off,
		  uint64_t len)
{
	struct attr a;
	int r;

	if (h->kind == HANDLE_INTERNAL)
		return -EPERM;
	if (!is_open_file(h) || !h->wfile)
		return -EBADF;
	if (off > FILE_LENGTH_MAX || len > FILE_LENGTH_MAX - off)
		return -EFBIG;
	r = meta_fallocate(v->conf.meta, c, h->inode, mode, off, len, &a);
	if (r == 0)
		range_changed(v, h->inode, &a);
	return r;
}

int vfs_copy_range(struct vfs *v, const struct meta_ctx *c, struct handle *in, uint64_t off_in,
		   struct handle *out, uint64_t off_out, uint64_t len, uint64_t *ret_copied)
{
	struct attr a;
	int r;

	/* the kernel copies those by reading and writing */
	if (in->kind == HANDLE_INTERNAL || out->kind == HANDLE_INTERNAL)
		return -EOPNOTSUPP;
	if (!is_open_file(in) || !in->reader || !is_open_file(out) || !out->wfile)
		return -EBADF;
	r = meta_copy_file_range(v->conf.meta, c, in->inode, off_in, out->inode, off_out, len,
				 ret_copied, &a);
	if (r == 0 && *ret_copied > 0)
		range_changed(v, out->inode, &a);
	return r;
}

/* --- where data lies --- */

struct seek {
	uint64_t at, length; /* length: of the newest list */
	bool hole, found;
};

/* one chunk's list; on return s->at is found, or at the chunk's end */
static int seek_in_list(struct seek *s, const struct chunk_list *l)
{
	uint64_t begin = (uint64_t)l->index << CHUNK_BITS;
	uint32_t off = s->at > begin ? (uint32_t)(s->at - begin) : 0, to;
	struct slice_view view;
	int r = slice_view_build(l->slices, l->n, &view);

	if (r < 0)
		return r;
	to = slice_view_seek(&view, off, s->hole);
	slice_view_fini(&view);
	s->length = l->attr.length;
	s->at = begin + to;
	s->found = to < CHUNK_SIZE;
	return 0;
}

/* where there is nothing for long: on to the next chunk that has a list. Holes are found by the
 * first one that has none. */
static int seek_list(struct vfs *v, uint64_t inode, struct seek *s)
{
	uint32_t first = (uint32_t)(s->at >> CHUNK_BITS), next;
	uint32_t end = (uint32_t)((s->length - 1) >> CHUNK_BITS) + 1;
	int r = meta_next_chunk(v->conf.meta, inode, first, end, &next);

	if (r == -EOPNOTSUPP)
		return 0;
	if (r == 0 && next > first)
		s->at = (uint64_t)next << CHUNK_BITS;
	return r;
}

int vfs_seek(struct vfs *v, uint64_t inode, uint64_t off, bool hole, uint64_t *ret)
{
	struct chunk_list lists[LISTS];
	struct seek s = {.at = off, .hole = hole};
	uint32_t empty = 0; /* chunks read in a row */
	struct attr a;
	int r = meta_getattr(v->conf.meta, inode, &a);

	if (r < 0)
		return r;
	s.length = a.length;
	while (r == 0 && !s.found && s.at < s.length) {
		uint32_t index = (uint32_t)(s.at >> CHUNK_BITS);
		uint64_t left = ((s.length - 1) >> CHUNK_BITS) - index + 1;
		uint32_t n = (uint32_t)MIN(left, (uint64_t)LISTS);

		r = meta_read(v->conf.meta, inode, index, n, lists);
		if (r < 0)
			return r;
		for (uint32_t i = 0; i < n; i++) {
			if (r == 0 && !s.found)
				r = seek_in_list(&s, &lists[i]);
			chunk_list_fini(&lists[i]);
		}
		empty += n;
		if (r == 0 && !hole && !s.found && s.at < s.length && empty >= NEAR) {
			r = seek_list(v, inode, &s);
			empty = 0;
		}
	}
	if (r < 0)
		return r;
	/* behind the last byte there is a hole, but nobody may look from there */
	if (off >= s.length || (!hole && s.at >= s.length))
		return -ENXIO;
	*ret = MIN(s.at, s.length);
	return 0;
}
