/* SPDX-License-Identifier: Apache-2.0 */
/* Counted ranges of memory or of a file. Any thread: the counts are atomic, a struct blob itself
 * belongs to its holder. */
#include "common/blob.h"

struct blob blob_of_buf(struct buf *buf, size_t off, size_t len)
{
	assert(off <= buf->cap && len <= buf->cap - off);
	return (struct blob){.buf = buf, .off = off, .len = len};
}

struct blob blob_of_file(struct blob_file *file, uint64_t off, size_t len)
{
	return (struct blob){.file = file, .off = off, .len = len};
}

struct blob_file *blob_file_new(int fd, void (*last)(struct blob_file *f, void *arg), void *arg)
{
	struct blob_file *f = malloc(sizeof(*f));

	if (f)
		*f = (struct blob_file){.fd = fd, .refs = 1, .last = last, .arg = arg};
	return f;
}

struct blob_file *blob_file_ref(struct blob_file *f)
{
	unsigned before = __atomic_fetch_add(&f->refs, 1, __ATOMIC_RELAXED);

	assert(before > 0);
	(void)before;
	return f;
}

void blob_file_close(struct blob_file *f)
{
	assert(f->refs == 0);
	closep(&f->fd);
	free(f);
}

void blob_file_unref(struct blob_file *f)
{
	unsigned before;

	if (!f)
		return;
	before = __atomic_fetch_sub(&f->refs, 1, __ATOMIC_ACQ_REL);
	assert(before > 0);
	if (before > 1)
		return;
	if (f->last)
		f->last(f, f->arg);
	else
		blob_file_close(f);
}

struct blob blob_slice(const struct blob *b, size_t off, size_t len)
{
	struct blob s = *b;

	assert(off <= b->len && len <= b->len - off);
	if (s.buf)
		buf_ref(s.buf);
	if (s.file)
		blob_file_ref(s.file);
	s.off += off;
	s.len = len;
	return s;
}

void blob_fini(struct blob *b)
{
	buf_unref(b->buf);
	blob_file_unref(b->file);
	*b = (struct blob){0};
}

const unsigned char *blob_mem(const struct blob *b)
{
	return b->buf ? b->buf->mem + b->off : NULL;
}
