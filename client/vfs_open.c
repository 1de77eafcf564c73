/* SPDX-License-Identifier: Apache-2.0 */
/* Opening, closing, listing. Open and release block on Redis: meta workq.
 *
 * A directory handle keeps what its last reading from offset 0 finds; offsets are numbers of
 * entries in it, so that seekdir works and a listing is stable while names come and go. A snapshot
 * that this mount changed things under gives names without attributes: the kernel must not make
 * entries of names that were removed, or of attributes that are old, out of it. */
#include <fcntl.h>
#include <sys/stat.h>

#include "client/attrcache.h"
#include "client/opencache.h"
#include "client/vfs.h"

#include "common/clock.h"

static bool for_writing(int flags)
{
	return (flags & O_ACCMODE) != O_RDONLY;
}

static bool for_reading(int flags)
{
	return (flags & O_ACCMODE) != O_WRONLY;
}

/* gives up what hangs on a file handle, and the handle; the engine's open is closed */
static void file_free(struct handle *h)
{
	struct vfs *v = h->vfs;
	uint64_t inode = h->inode;

	rhandle_free(h->reader);
	if (h->wfile)
		wfile_put(h->wfile);
	if (h->rfile && v->opened)
		opencache_keep(v->opened, inode, h->rfile, rfile_pieces(h->rfile));
	else if (h->rfile)
		rfile_put(h->rfile);
	handle_free(&v->handles, h);
	(void)meta_close(v->conf.meta, inode);
}

/* The data path of a file that the engine has opened; its answer counts unless this mount knows
 * something newer, such as a commit that overtook it: then the list is read again. */
static int file_attach(struct vfs *v, struct handle *h, const struct chunk_list *first,
		       bool has_list, uint64_t asked, bool *ret_newest)
{
	bool newest = false;
	uint64_t epoch;
	int r = rfile_get(v->reader, h->inode, &h->rfile);

	if (r == 0) {
		epoch = rfile_epoch(h->rfile);
		newest = attrcache_seen(v->known, h->inode, asked);
		if (newest)
			vfs_keep(v, h->inode, &first->attr, asked);
		if (newest && has_list)
			r = rfile_first(h->rfile, first, epoch);
		else if (newest)
			rfile_attr(h->rfile, &first->attr, epoch);
	}
	*ret_newest = newest;
	if (r == 0 && for_reading(h->flags))
		r = rhandle_new(h->rfile, &h->reader);
	if (r == 0 && for_writing(h->flags))
		r = wfile_get(v->writer, h->inode, first->attr.length, &h->wfile);
	if (r == 0 && h->wfile)
		wfile_set_tier(h->wfile, first->attr.tier);
	return r;
}

/* O_TRUNC, which the kernel leaves to us (FUSE_CAP_ATOMIC_O_TRUNC), and with it what it would have
 * cleared: the suid bit, and sgid of those who may execute, when somebody else than root writes */
static int cut_at_open(struct vfs *v, const struct meta_ctx *c, struct handle *h)
{
	struct vfs_entry e;
	struct attr a;
	int r = vfs_truncate(v, c, h->inode, 0, true, &a);
	unsigned bits;

	if (r < 0 || c->uid == 0)
		return r;
	bits = S_ISUID | (a.mode & S_IXGRP ? S_ISGID : 0);
	if (!(a.mode & bits))
		return 0;
	a.mode &= (uint16_t)~bits;
	return vfs_setattr(v, c, h->inode, SET_MODE, &a, NULL, h, &e);
}

/* what the engine has opened becomes a handle, or is closed again. first: asked for at asked */
static int open_handle(struct vfs *v, const struct meta_ctx *c, uint64_t inode, int flags,
		       const struct chunk_list *first, bool has_list, uint64_t asked,
		       struct handle **ret, bool *ret_keep)
{
	struct handle *h = handle_new(&v->handles, v, HANDLE_FILE, inode, flags);
	bool newest;
	int r;

	if (!h) {
		(void)meta_close(v->conf.meta, inode);
		return -ENOMEM;
	}
	h->length = first->attr.length;
	r = file_attach(v, h, first, has_list, asked, &newest);
	if (r == 0)
		*ret_keep =
			newest && attrcache_pages_match(v->known, inode, &first->attr, &h->drop);
	if (!newest)
		attrcache_pages_forget(v->known, inode);
	h->trashed = first->attr.parent > INODE_TRASH;
	h->kernel_other = attrcache_pages_other(v->told, inode, &first->attr);
	/* with a time of 0 the kernel asks again by itself, before it reads */
	h->kernel_old = h->kernel_other && v->conf.attr_us > 0;
	if (r == 0 && (flags & O_TRUNC)) {
		r = cut_at_open(v, c, h);
		*ret_keep = false;
	}
	if (r < 0) {
		file_free(h);
		return r;
	}
	*ret = h;
	return 0;
}

/* An open for reading that goes by what the one before it saw, a moment ago (--open-cache); false:
 * it has to ask. Not where the engine is to check who may read. */
static bool open_again(struct vfs *v, const struct meta_ctx *c, uint64_t inode, int flags,
		       int *ret_r, struct handle **ret, bool *ret_keep)
{
	struct chunk_list known = {.volume = meta_volume_id(v->conf.meta)};
	uint64_t asked;

	if (c->check || for_writing(flags) || (flags & O_TRUNC) ||
	    !opencache_get(v->opened, inode, clock_us(), &known.attr, &asked) ||
	    attrcache_changed_since(v->known, inode, asked))
		return false;
	*ret_r = meta_open_known(v->conf.meta, inode, &known.attr);
	if (*ret_r == 0)
		*ret_r = open_handle(v, c, inode, flags, &known, false, asked, ret, ret_keep);
	return true;
}

int vfs_open(struct vfs *v, const struct meta_ctx *c, uint64_t inode, int flags,
	     struct handle **ret, bool *ret_keep)
{
	_cleanup_(chunk_list_fini) struct chunk_list first = {0};
	uint64_t asked = clock_us();
	int r;

	if ((for_writing(flags) || (flags & O_TRUNC)) && !v->writer)
		return -EROFS;
	if (open_again(v, c, inode, flags, &r, ret, ret_keep))
		return r;
	r = meta_open(v->conf.meta, c, inode, flags & ~(O_CREAT | O_EXCL), &first);
	if (r < 0)
		return r;
	if (for_reading(flags) && v->conf.atime != ATIME_NONE)
		(void)meta_touch_atime(v->conf.meta, inode, &first.attr);
	opencache_seen(v->opened, inode, &first.attr, asked);
	return open_handle(v, c, inode, flags, &first, true, asked, ret, ret_keep);
}

/* what this mount has just made, at asked or later: nobody needs to be asked, and its mode does not
 * bind who made it */
static int open_fresh(struct vfs *v, const struct meta_ctx *c, const struct vfs_entry *e, int flags,
		      uint64_t asked, struct handle **ret)
{
	struct chunk_list first = {.volume = meta_volume_id(v->conf.meta), .attr = e->attr};
	int r = meta_open_known(v->conf.meta, e->inode, &e->attr);
	bool keep;

	return r < 0 ? r : open_handle(v, c, e->inode, flags, &first, true, asked, ret, &keep);
}

int vfs_tmpfile(struct vfs *v, const struct meta_ctx *c, uint64_t parent, uint32_t mode,
		uint32_t umask, int flags, struct vfs_entry *ret_entry, struct handle **ret)
{
	struct vfs_entry e = {0};
	uint64_t asked = clock_us();
	int r;

	if (!v->writer)
		return -EROFS;
	r = meta_tmpfile(v->conf.meta, c, parent, mode, umask, &e.inode, &e.attr);
	if (r == 0)
		r = open_fresh(v, c, &e, flags & ~O_TRUNC, asked, ret);
	/* without a handle it goes with the session */
	if (r < 0)
		return r;
	vfs_fill(v, &e);
	*ret_entry = e;
	return 0;
}

enum { AGAIN_US = 100000, CLOCKS_APART_US = 1000000 };

static bool kernel_misled(struct handle *h)
{
	uint64_t length;

	if (h->trashed && h->kernel_other)
		return true;
	return (h->flags & O_APPEND) && h->wfile &&
	       attrcache_length(h->vfs->told, h->inode, &length) && length != h->length;
}

/* true once, then not for a while */
static bool once(struct vfs *v, uint64_t inode)
{
	uint64_t now = clock_us();

	if (attrcache_changed_since(v->told, inode, now - AGAIN_US))
		return false;
	attrcache_changed(v->told, inode, now);
	return true;
}

bool vfs_open_again(struct handle *h)
{
	return kernel_misled(h) && once(h->vfs, h->inode);
}

int vfs_again(struct vfs *v, uint64_t inode, int status)
{
	struct attr a;

	if (inode >= INODE_INTERNAL || inode == INODE_ROOT ||
	    handles_inode_open(&v->handles, inode))
		return status;
	/* in the trash since the kernel heard of it */
	if (status == -EPERM &&
	    (meta_getattr(v->conf.meta, inode, &a) < 0 || a.parent <= INODE_TRASH ||
	     !attrcache_pages_other(v->told, inode, &a)))
		return status;
	if (status != -EPERM && status != -ENOENT)
		return status;
	return once(v, inode) ? -ESTALE : status;
}

struct flush_wait {
	struct vfs_io io;
	struct mtx lock;
	struct cond changed;
	bool done;
	int status;
};

static void flush_waited(struct vfs_io *io, int status, const struct iovec *iov, int n,
			 size_t total)
{
	struct flush_wait *w = container_of(io, struct flush_wait, io);

	(void)iov;
	(void)n;
	(void)total;
	mtx_lock(&w->lock);
	w->done = true;
	w->status = status;
	cond_broadcast(&w->changed);
	mtx_unlock(&w->lock);
}

/* vfs_flush_inode, in this thread: only where an inode becomes known too late for its asker to do
 * it, and has dirty data besides, which is rare */
static int flush_and_wait(struct vfs *v, uint64_t inode)
{
	struct flush_wait w = {.io = {.done = flush_waited}};

	mtx_init(&w.lock);
	cond_init(&w.changed);
	vfs_flush_inode(v, inode, &w.io);
	mtx_lock(&w.lock);
	while (!w.done)
		cond_wait(&w.changed, &w.lock);
	mtx_unlock(&w.lock);
	cond_fini(&w.changed);
	mtx_fini(&w.lock);
	return w.status;
}

/* another client may remove the name between EEXIST and the look-up, or make it between ENOENT and
 * the creation */
enum { CREATE_TRIES = 8 };

int vfs_create(struct vfs *v, const struct meta_ctx *c, uint64_t parent, const char *name,
	       uint32_t mode, uint32_t umask, int flags, struct vfs_entry *ret_entry,
	       struct handle **ret, bool *ret_keep)
{
	struct vfs_entry e;
	int r = -EIO;

	if (!v->writer)
		return -EROFS;
	for (int i = 0; i < CREATE_TRIES; i++) {
		uint64_t asked = clock_us();

		*ret_keep = false;
		r = vfs_mknod(v, c, parent, name, INODE_FILE, mode, umask, 0, NULL, &e);
		if (r == 0) {
			r = open_fresh(v, c, &e, flags & ~O_TRUNC, asked, ret);
			break;
		}
		if (r != -EEXIST || (flags & O_EXCL))
			break;
		r = vfs_lookup(v, c, parent, name, &e);
		if (r == 0 && (e.attr.type != INODE_FILE || e.inode >= INODE_INTERNAL))
			r = e.attr.type == INODE_DIR ? -EISDIR : -EEXIST;
		/* else what was written before would come back after the cut */
		if (r == 0 && (flags & O_TRUNC))
			r = flush_and_wait(v, e.inode);
		if (r == 0)
			r = vfs_open(v, c, e.inode, flags, ret, ret_keep);
		if (r != -ENOENT)
			break;
	}
	if (r < 0)
		return r;
	if ((*ret)->wfile)
		wfile_named((*ret)->wfile, parent, name);
	if (flags & O_TRUNC)
		e.attr.length = 0;
	vfs_fill(v, &e);
	*ret_entry = e;
	return 0;
}

int vfs_open_internal(struct vfs *v, const struct meta_ctx *c, uint64_t inode, int flags,
		      struct handle **ret)
{
	struct vfs_entry e;
	struct handle *h;
	int r;

	if (inode == INODE_TRASH || !vfs_getattr_made_up(v, inode, &e))
		return -ENOENT;
	if (for_writing(flags) && inode != INODE_CONTROL)
		return -EACCES;
	h = handle_new(&v->handles, v, HANDLE_INTERNAL, inode, flags);
	if (!h)
		return -ENOMEM;
	r = internal_open(v->conf.internal, c, inode, &h->internal);
	if (r < 0) {
		handle_free(&v->handles, h);
		return r;
	}
	*ret = h;
	return 0;
}

void vfs_when_idle(struct handle *h, void (*then)(struct handle *h), void *arg)
{
	handle_when_idle(&h->vfs->handles, h, then, arg);
}

void vfs_release(struct handle *h)
{
	struct vfs *v = h->vfs;

	vfs_open_over(h);
	switch (h->kind) {
	case HANDLE_FILE:
		file_free(h);
		break;
	case HANDLE_DIR:
		meta_list_leave(h->dir.list);
		handle_free(&v->handles, h);
		break;
	case HANDLE_INTERNAL:
		internal_close(h->internal);
		handle_free(&v->handles, h);
		break;
	}
}

void vfs_stop(struct vfs *v)
{
	struct handle *h;

	handles_wait_idle(&v->handles);
	/* files still open when the connection ended: the kernel sends no release for them */
	while ((h = handles_any(&v->handles)))
		vfs_release(h);
}

void vfs_free(struct vfs *v)
{
	if (!v)
		return;
	vfs_stop(v);
	handles_fini(&v->handles);
	vfs_root_fini(&v->root);
	attrcache_free(v->known);
	attrcache_free(v->told);
	attrcache_free(v->listed);
	opencache_free(v->opened);
	free(v);
}

/* --- directories --- */

/* the directory is as the kernel's listing shows it */
static bool unchanged(struct vfs *v, uint64_t inode)
{
	struct attr a;

	return meta_getattr(v->conf.meta, inode, &a) == 0 &&
	       !attrcache_pages_other(v->listed, inode, &a);
}

static int64_t time_us(const struct time_ns *t)
{
	return t->sec > INT64_MAX / 2000000 ? INT64_MAX / 2 : t->sec * 1000000 + t->nsec / 1000;
}

static int64_t real_us(void)
{
	struct time_ns now;

	clock_real(&now.sec, &now.nsec);
	return time_us(&now);
}

/* A listing asked for at asked shows the directory as it was with a. Its times change at most every
 * --skip-dir-mtime, so one that changed a moment before may have changed again behind the listing,
 * with the same times. */
static void note_listed(struct vfs *v, uint64_t inode, const struct attr *a, uint64_t asked)
{
	int64_t age = real_us() - (int64_t)(clock_us() - asked) -
		      MAX(time_us(&a->mtime), time_us(&a->ctime));

	if (age > (int64_t)v->conf.listed_us + CLOCKS_APART_US &&
	    !attrcache_changed_since(v->known, inode, asked))
		(void)attrcache_pages_match(v->listed, inode, a, NULL);
	else
		attrcache_pages_forget(v->listed, inode);
}

int vfs_opendir(struct vfs *v, const struct meta_ctx *c, uint64_t inode, struct handle **ret,
		bool *ret_keep)
{
	int r = c->check ? meta_access(v->conf.meta, c, inode, 4, NULL) : 0;
	struct handle *h;

	if (r < 0)
		return r;
	h = handle_new(&v->handles, v, HANDLE_DIR, inode, O_RDONLY);
	if (!h)
		return -ENOMEM;
	*ret_keep = v->listed && unchanged(v, inode);
	*ret = h;
	return 0;
}

static uint64_t made_up_count(struct handle *h)
{
	uint64_t count = 2;

	if (h->inode != INODE_ROOT)
		return count;
	while (internal_listed(count - 2, &(uint64_t){0}))
		count++;
	return count + !h->vfs->conf.no_trash;
}

void vfs_hold(struct handle *h)
{
	handle_use_begin(&h->vfs->handles, h);
}

void vfs_let(struct handle *h)
{
	handle_use_end(&h->vfs->handles, h);
}

static int list_anew(struct handle *h, bool with_attr, struct dir_reading *d)
{
	struct vfs *v = h->vfs;
	struct vfs_entry self;
	int r = 0;

	d->asked_us = clock_us();
	/* mostly the kernel looked it up a moment ago */
	if (v->listed || v->conf.atime != ATIME_NONE || !vfs_getattr_known(v, h->inode, &self))
		r = vfs_getattr(v, h->inode, &self);
	if (!r)
		r = meta_list(v->conf.meta, h->inode, with_attr, &d->list);
	if (!r)
		r = meta_list_load(d->list, 1);
	if (r < 0)
		return r;
	d->made_up = made_up_count(h);
	d->parent = self.attr.parent ? self.attr.parent : INODE_ROOT;
	if (v->listed)
		note_listed(v, h->inode, &self.attr, d->asked_us);
	if (v->conf.atime != ATIME_NONE)
		(void)meta_touch_atime(v->conf.meta, h->inode, &self.attr);
	return 0;
}

bool vfs_readdir_ready(struct handle *h, uint64_t off)
{
	const struct dir_reading *d = &h->dir;

	return off > 0 && d->list &&
	       (off < d->made_up || meta_list_ready(d->list, off - d->made_up + 1));
}

struct dir_reading vfs_readdir_begin(struct handle *h, uint64_t off)
{
	struct dir_reading d = {.list = NULL};

	if (off > 0 && h->dir.list) {
		d = h->dir;
		(void)meta_list_ref(d.list);
	}
	return d;
}

int vfs_readdir_load(struct handle *h, uint64_t off, bool with_attr, struct dir_reading *d)
{
	int r = d->list ? 0 : list_anew(h, with_attr, d);

	if (!r && off >= d->made_up)
		r = meta_list_load(d->list, off - d->made_up + 1);
	return r;
}

void vfs_readdir_use(struct handle *h, struct dir_reading *d)
{
	if (d->list == h->dir.list)
		meta_list_put(d->list);
	else
		meta_list_leave(h->dir.list);
	h->dir = *d;
	d->list = NULL;
}

struct meta_list *vfs_readdir_reached(struct handle *h, uint64_t off)
{
	struct dir_reading *d = &h->dir;

	meta_list_reached(d->list, off > d->made_up ? off - d->made_up : 0);
	return meta_list_wants(d->list) ? meta_list_ref(d->list) : NULL;
}

/* entries that no directory record has: . and .., in the root the mount's own */
static void made_up_at(struct handle *h, uint64_t n, struct vfs_dirent *d)
{
	uint64_t inode = INODE_TRASH;
	const char *name;

	if (n < 2) {
		name = n ? ".." : ".";
		inode = n ? h->dir.parent : h->inode;
	} else {
		name = internal_listed(n - 2, &inode);
		name = name ? name : ".trash";
	}
	*d = (struct vfs_dirent){
		.name = name, .name_len = strlen(name), .entry.inode = inode, .next = n + 1};
	d->full = n >= 2 && vfs_getattr_made_up(h->vfs, inode, &d->entry);
	if (n < 2)
		d->entry.attr.type = INODE_DIR;
}

bool vfs_readdir_at(struct handle *h, uint64_t off, struct vfs_dirent *ret)
{
	struct vfs *v = h->vfs;
	const struct meta_entry *m;

	if (!h->dir.list)
		return false;
	if (off < h->dir.made_up) {
		made_up_at(h, off, ret);
		return true;
	}
	m = meta_list_at(h->dir.list, off - h->dir.made_up);
	if (!m)
		return false;
	ret->name = m->name;
	ret->name_len = m->name_len;
	ret->entry = (struct vfs_entry){.inode = m->inode, .attr = m->attr};
	ret->full = m->full && !attrcache_changed_since(v->known, h->inode, h->dir.asked_us) &&
		    !attrcache_changed_since(v->known, m->inode, h->dir.asked_us);
	ret->next = off + 1;
	if (ret->full)
		vfs_fill(v, &ret->entry);
	return true;
}
