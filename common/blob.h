/* SPDX-License-Identifier: Apache-2.0 */
/* A counted, read-only range of bytes: of a pool buffer, or of an open file (sent with sendfile, or
 * passed on as a descriptor). A struct blob is a value that holds one reference; an empty one ({0})
 * holds none. */
#ifndef STOKE_COMMON_BLOB_H
#define STOKE_COMMON_BLOB_H

#include "common/pool.h"

struct blob_file {
	int fd;
	unsigned refs;
	void (*last)(struct blob_file *f, void *arg);
	void *arg;
	struct list_node link; /* its maker's, after the last use */
};
struct blob {
	struct buf *buf;
	struct blob_file *file;
	uint64_t off;
	size_t len;
};

/* takes over the caller's reference of buf */
struct blob blob_of_buf(struct buf *buf, size_t off, size_t len);
/* takes over the caller's reference of file */
struct blob blob_of_file(struct blob_file *file, uint64_t off, size_t len);
/* takes over fd; one reference; last (may be NULL) is called instead of blob_file_close when there
 * is none left: closing may wait for a disk. NULL: no memory, fd stays the caller's */
struct blob_file *blob_file_new(int fd, void (*last)(struct blob_file *f, void *arg), void *arg);
/* closes and frees what has no reference any more */
void blob_file_close(struct blob_file *f);
struct blob_file *blob_file_ref(struct blob_file *f);
void blob_file_unref(struct blob_file *f);
/* another reference to bytes [off, off + len) of b; asserts that they are inside */
struct blob blob_slice(const struct blob *b, size_t off, size_t len);
/* drops the reference and empties b; harmless on an empty one */
void blob_fini(struct blob *b);
/* its bytes when it is memory, NULL when it is a file or empty */
const unsigned char *blob_mem(const struct blob *b);

#endif
