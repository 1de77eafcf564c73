/* SPDX-License-Identifier: Apache-2.0 */
/* A vfs over the engine in memory, the real reader, writer and chain, and an object store in
 * memory; calls that wait for its answers. */
#ifndef STOKE_TESTS_VFS_WORLD_H
#define STOKE_TESTS_VFS_WORLD_H

#include "tests/unit/client/data_env.h"

#include <fcntl.h>

#include "client/vfs.h"
#include "common/clock.h"

enum { BS = 64 * KIB };

static const struct meta_ctx root = {.uid = 0, .gid = 0, .pid = 1};

struct world {
	struct data_env e;
	struct meta *meta;
	struct internal *internal;
	struct writer *writer;
	struct vfs *v;
};

static inline void start(struct world *w, bool read_only)
{
	const struct meta_conf mc = {.timeout_us = 1000000, .heartbeat_us = 12000000};
	const struct internal_conf ic = {0};
	struct vfs_conf vc = {.attr_us = 1000000,
			      .entry_us = 2000000,
			      .dir_entry_us = 3000000,
			      .read_only = read_only,
			      .xattr = true};
	struct str err = STR_INIT;

	assert_int_equal(meta_mem_new(&mc, BS, 0, &w->meta), 0);
	assert_int_equal(meta_start(w->meta, &err), 0);
	env_start_over(&w->e, w->meta, 1000000, BS, 64 * BS, CODEC_NONE, 8 * BS);
	assert_int_equal(internal_new(&ic, &w->internal), 0);
	vc.meta = w->meta;
	vc.internal = w->internal;
	assert_int_equal(vfs_new(&vc, &w->v), 0);

	const struct writer_conf wc = {
		.meta = w->meta,
		.metaq = w->e.metaq,
		.env = &w->e.env,
		.chain = w->e.chain,
		.max_uploads = 4,
		.flush_us = 60000000,
		.committed = vfs_committed,
		.arg = w->v,
	};
	w->writer = NULL;
	if (!read_only)
		assert_int_equal(writer_new(&wc, &w->writer), 0);
	vfs_attach(w->v, w->e.reader, w->writer);
}

static inline void stop(struct world *w)
{
	if (w->writer)
		(void)writer_flush_all(w->writer);
	vfs_free(w->v);
	internal_free(w->internal);
	req_env_drain(&w->e.env);
	writer_free(w->writer);
	meta_stop(w->meta);
	env_stop(&w->e);
	meta_free(w->meta);
}

/* --- calls that wait --- */

struct an_io {
	struct vfs_io io;
	struct waited w;
};

static inline void io_done(struct vfs_io *io, int status, const struct iovec *iov, int n,
			   size_t total)
{
	struct an_io *a = container_of(io, struct an_io, io);
	size_t at = 0;

	for (int i = 0; i < n; i++) {
		memcpy(a->w.to + at, iov[i].iov_base, iov[i].iov_len);
		at += iov[i].iov_len;
	}
	a->w.total = total;
	waited_done(&a->w, status);
}

static inline int put(struct handle *h, uint64_t off, const void *data, uint32_t len)
{
	struct an_io a = {.io = {.h = h, .off = off, .len = len, .data = data, .done = io_done}};
	int r;

	waited_init(&a.w);
	vfs_write(&a.io);
	r = waited_wait(&a.w);
	return r < 0 ? r : (int)a.w.total;
}

static inline int get(struct handle *h, uint64_t off, void *to, uint32_t len)
{
	struct an_io a = {.io = {.h = h, .off = off, .len = len, .done = io_done}};
	int r;

	waited_init(&a.w);
	a.w.to = to;
	vfs_read(&a.io);
	r = waited_wait(&a.w);
	return r < 0 ? r : (int)a.w.total;
}

static inline int flush_handle(struct handle *h)
{
	struct an_io a = {.io = {.h = h, .done = io_done}};

	waited_init(&a.w);
	vfs_flush(&a.io, true);
	return waited_wait(&a.w);
}

static inline int flush_inode(struct world *w, uint64_t inode)
{
	struct an_io a = {.io = {.done = io_done}};

	waited_init(&a.w);
	vfs_flush_inode(w->v, inode, &a.io);
	return waited_wait(&a.w);
}

static inline struct handle *create(struct world *w, const char *name, uint64_t *ret_inode)
{
	struct vfs_entry e;
	struct handle *h;
	bool keep;

	assert_int_equal(vfs_create(w->v, &root, INODE_ROOT, name, 0644, 0,
				    O_RDWR | O_CREAT | O_EXCL, &e, &h, &keep),
			 0);
	*ret_inode = e.inode;
	return h;
}

static inline void release_idle(struct handle *h)
{
	struct waited *w = h->idle_arg;

	vfs_release(h);
	waited_done(w, 0);
}

/* as the kernel's release: the last read may still be on its way out */
static inline void release(struct handle *h)
{
	struct waited idle;

	waited_init(&idle);
	vfs_when_idle(h, release_idle, &idle);
	assert_int_equal(waited_wait(&idle), 0);
}

static inline void close_handle(struct handle *h)
{
	assert_int_equal(flush_handle(h), 0);
	release(h);
}

#endif
