/* SPDX-License-Identifier: Apache-2.0 */
/* Reading, writing, flushing. Nothing here waits: what has to (dirty data before a read, memory for
 * a write) is parked in the reader or the writer, and goes on in whatever thread ends the wait.
 *
 *	read	inode dirty in this mount -> flush -> reader_read -> done; else reader_read at once
 *	write	writer_write -> readers hear of the new length -> done */
#include "client/attrcache.h"
#include "client/vfs.h"

#include "common/clock.h"

void vfs_open_over(struct handle *h)
{
	uint64_t drop;

	if (!__atomic_load_n(&h->drop, __ATOMIC_RELAXED))
		return;
	drop = __atomic_exchange_n(&h->drop, 0, __ATOMIC_RELAXED);
	if (drop)
		attrcache_pages_dropped(h->vfs->known, h->inode, drop);
}

void vfs_io_begin(struct vfs_io *io)
{
	io->begun = true;
	vfs_open_over(io->h);
	handle_use_begin(&io->h->vfs->handles, io->h);
}

void vfs_io_end(struct handle *h)
{
	handle_use_end(&h->vfs->handles, h);
}

/* io is gone afterwards */
static void finish_data(struct vfs_io *io, int status, const struct iovec *iov, int n, size_t total)
{
	struct handle *h = io->begun ? io->h : NULL;

	io->done(io, status, iov, n, total);
	if (h)
		vfs_io_end(h);
}

static void finish(struct vfs_io *io, int status)
{
	finish_data(io, status, NULL, 0, 0);
}

/* the inode's wfile, with a reference, if something of it is not committed */
static struct wfile *dirty_file(struct vfs *v, uint64_t inode)
{
	struct wfile *f = v->writer ? wfile_find(v->writer, inode) : NULL;
	uint64_t length;

	if (f && !wfile_length(f, &length)) {
		wfile_put(f);
		f = NULL;
	}
	return f;
}

/* --- flush --- */

static void flushed(struct flush_op *op, int status)
{
	struct vfs_io *io = container_of(op, struct vfs_io, flush);

	wfile_put(TAKE_PTR(io->held));
	finish(io, status);
}

/* takes over the reference f; done is called with op->status once f's data is committed */
static void flush(struct vfs_io *io, struct wfile *f, bool report,
		  void (*done)(struct flush_op *op, int status))
{
	io->held = f;
	io->flush = (struct flush_op){.f = f, .report = report, .done = done};
	writer_flush(&io->flush);
}

void vfs_flush_inode(struct vfs *v, uint64_t inode, struct vfs_io *io)
{
	struct wfile *f = dirty_file(v, inode);

	if (!f) {
		finish(io, 0);
		return;
	}
	flush(io, f, false, flushed);
}

void vfs_flush(struct vfs_io *io, bool report)
{
	struct handle *h = io->h;
	struct wfile *f;

	if (!io->begun)
		vfs_io_begin(io);
	if (h->kind != HANDLE_FILE || !h->wfile) {
		finish(io, 0);
		return;
	}
	/* not only when dirty: an error of the past is to be reported */
	f = wfile_find(h->vfs->writer, h->inode);
	if (!f) {
		finish(io, 0);
		return;
	}
	flush(io, f, report, flushed);
}

bool vfs_dirty(struct handle *h)
{
	struct wfile *f = h->kind == HANDLE_FILE ? dirty_file(h->vfs, h->inode) : NULL;

	wfile_put(f);
	return f != NULL;
}

/* --- read --- */

static void read_done(struct read_op *op, int status, const struct iovec *iov, int n, size_t total)
{
	finish_data(container_of(op, struct vfs_io, read), status, iov, n, total);
}

static void read_start(struct vfs_io *io)
{
	io->read = (struct read_op){
		.h = io->h->reader, .off = io->off, .len = io->len, .done = read_done};
	reader_read(&io->read);
}

static void read_flushed(struct flush_op *op, int status)
{
	struct vfs_io *io = container_of(op, struct vfs_io, flush);

	wfile_put(TAKE_PTR(io->held));
	if (status < 0)
		read_done(&io->read, status, NULL, 0, 0);
	else
		read_start(io);
}

static void internal_done(struct vfs_io *io, int status, const struct iovec *iov, int n,
			  size_t total)
{
	struct handle *h = io->h;

	io->asker(io, status, iov, n, total);
	vfs_io_end(h);
}

void vfs_read(struct vfs_io *io)
{
	struct handle *h = io->h;
	struct wfile *f;

	if (!io->begun)
		vfs_io_begin(io);
	if (h->kind == HANDLE_INTERNAL) {
		io->asker = io->done;
		io->done = internal_done;
		internal_read(h->internal, io);
		return;
	}
	if (h->kind != HANDLE_FILE || !h->reader) {
		finish(io, h->kind == HANDLE_DIR ? -EISDIR : -EBADF);
		return;
	}
	f = dirty_file(h->vfs, h->inode);
	if (f)
		flush(io, f, false, read_flushed);
	else
		read_start(io);
}

/* --- write --- */

static void written(struct write_op *op, int status)
{
	struct vfs_io *io = container_of(op, struct vfs_io, write);
	struct handle *h = io->h;
	uint64_t length;

	if (status == 0) {
		attrcache_changed(h->vfs->known, h->inode, clock_us());
		attrcache_grew(h->vfs->told, h->inode, io->off + io->len);
		if (wfile_length(h->wfile, &length))
			rfile_set_length(h->rfile, length);
	}
	finish_data(io, status, NULL, 0, status == 0 ? io->len : 0);
}

void vfs_write(struct vfs_io *io)
{
	struct handle *h = io->h;
	int r;

	if (!io->begun)
		vfs_io_begin(io);
	if (h->kind == HANDLE_INTERNAL) {
		r = internal_write(h->internal, io->data, io->len);
		finish_data(io, r, NULL, 0, r == 0 ? io->len : 0);
		return;
	}
	if (h->kind != HANDLE_FILE || !h->wfile) {
		finish(io, -EBADF);
		return;
	}
	if (io->off > FILE_LENGTH_MAX || io->len > FILE_LENGTH_MAX - io->off) {
		finish(io, -EFBIG);
		return;
	}
	io->write = (struct write_op){
		.f = h->wfile, .data = io->data, .len = io->len, .off = io->off, .done = written};
	writer_write(&io->write);
}
