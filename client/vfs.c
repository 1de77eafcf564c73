/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the vfs share, and attributes: who hears of them, and how long the kernel may
 * keep them. Any thread; no lock of its own (handles and attrcache have theirs).
 *
 * Order of answers: attributes are passed on to readers (which clip to their length and drop slice
 * lists of another ctime) only if they were asked for after everything this mount knows already,
 * see attrcache.h. */
#include "client/vfs.h"

#include "client/attrcache.h"
#include "client/opencache.h"
#include "common/clock.h"

enum { REMEMBERED = 65536, LISTED = 16384 };
/* what made-up inodes get: they do not change */
#define MADE_UP_US UINT64_C(3600000000)

int vfs_new(const struct vfs_conf *conf, struct vfs **ret)
{
	struct vfs *v = calloc(1, sizeof(*v));
	int r;

	if (!v)
		return -ENOMEM;
	v->conf = *conf;
	clock_real(&v->mounted.sec, &v->mounted.nsec);
	r = handles_init(&v->handles);
	if (r < 0) {
		free(v);
		return r;
	}
	r = attrcache_new(conf->remembered ? conf->remembered : REMEMBERED, &v->known);
	if (r == 0)
		r = attrcache_new(conf->remembered ? conf->remembered : REMEMBERED, &v->told);
	if (r == 0 && conf->readdir_cache)
		r = attrcache_new(LISTED, &v->listed);
	if (r == 0 && conf->open_us > 0)
		r = opencache_new(conf->open_us, conf->open_max, rfile_put, &v->opened);
	if (r < 0) {
		attrcache_free(v->known);
		attrcache_free(v->told);
		attrcache_free(v->listed);
		handles_fini(&v->handles);
		free(v);
		return r;
	}
	vfs_root_init(&v->root);
	*ret = v;
	return 0;
}

void vfs_attach(struct vfs *v, struct reader *reader, struct writer *writer)
{
	v->reader = reader;
	v->writer = writer;
}

size_t vfs_open_handles(struct vfs *v)
{
	return handles_count(&v->handles);
}

/* --- attributes pass by --- */

/* length of the inode with what is not committed yet; 0: nothing is dirty */
static uint64_t dirty_length(struct vfs *v, uint64_t inode, struct time_ns *ret_mtime)
{
	struct wfile *f = v->writer ? wfile_find(v->writer, inode) : NULL;
	uint64_t length = 0;

	if (f) {
		if (!wfile_dirty(f, &length, ret_mtime))
			length = 0;
		wfile_put(f);
	}
	return length;
}

/* the inode's rfile, with a reference, if it is open; else NULL */
static struct rfile *open_rfile(struct vfs *v, uint64_t inode)
{
	struct rfile *f;

	if (!handles_inode_open(&v->handles, inode) || rfile_get(v->reader, inode, &f) < 0)
		return NULL;
	return f;
}

static void tell_reader(struct vfs *v, uint64_t inode, const struct attr *a, bool data)
{
	struct rfile *f = open_rfile(v, inode);
	struct time_ns mtime;

	if (!f)
		return;
	if (a)
		rfile_attr(f, a, rfile_epoch(f));
	if (data) {
		rfile_invalidate(f);
		/* what is dirty still, if anything, counts beside the committed length */
		rfile_set_length(f, dirty_length(v, inode, &mtime));
	}
	rfile_put(f);
}

void vfs_keep(struct vfs *v, uint64_t inode, const struct attr *a, uint64_t asked_us)
{
	/* else reading changes them, elsewhere too */
	if (v->conf.atime == ATIME_NONE)
		attrcache_keep(v->known, inode, a, asked_us);
}

void vfs_seen(struct vfs *v, uint64_t inode, const struct attr *a, uint64_t asked_us)
{
	struct rfile *f = a->type == INODE_FILE ? open_rfile(v, inode) : NULL;
	uint64_t epoch = f ? rfile_epoch(f) : 0;

	if (attrcache_seen(v->known, inode, asked_us)) {
		vfs_keep(v, inode, a, asked_us);
		if (f)
			rfile_attr(f, a, epoch);
	}
	rfile_put(f);
}

void vfs_changed(struct vfs *v, uint64_t inode, const struct attr *a, bool data)
{
	attrcache_changed(v->known, inode, clock_us());
	if (v->listed)
		attrcache_pages_forget(v->listed, inode);
	if (data)
		attrcache_pages_forget(v->known, inode);
	if (data || (a && a->type == INODE_FILE))
		tell_reader(v, inode, a, data);
}

void vfs_volume_moved(struct vfs *v)
{
	attrcache_volume_moved(v->known, clock_us());
	if (v->listed)
		attrcache_volume_moved(v->listed, clock_us());
	opencache_forget_all(v->opened);
	reader_volume_moved(v->reader);
}

void vfs_committed(void *arg, uint64_t inode, const struct attr *a)
{
	struct vfs *v = arg;

	vfs_changed(v, inode, a, true);
	/* The kernel forgot its times with the write, and was told none to keep while it was dirty:
	 * the next open has nothing to make it forget. The length is another matter: others may
	 * have written, too. */
	if (a)
		attrcache_times(v->told, inode, a);
}

void vfs_fill(struct vfs *v, struct vfs_entry *e)
{
	struct time_ns mtime;
	uint64_t length;

	e->attr_us = v->conf.attr_us;
	e->entry_us = e->attr.type == INODE_DIR ? v->conf.dir_entry_us : v->conf.entry_us;
	length = e->attr.type == INODE_FILE ? dirty_length(v, e->inode, &mtime) : 0;
	if (length > 0) {
		/* as the commit will leave them */
		e->attr.mtime = mtime;
		if (e->attr.ctime.sec < mtime.sec ||
		    (e->attr.ctime.sec == mtime.sec && e->attr.ctime.nsec < mtime.nsec))
			e->attr.ctime = mtime;
		e->attr.length = MAX(e->attr.length, length);
		/* the commit will change them, unseen by the kernel */
		e->attr_us = 0;
	}
	if (e->attr.type == INODE_FILE)
		(void)attrcache_pages_match(v->told, e->inode, &e->attr, NULL);
}

/* --- the kernel --- */

void vfs_set_kernel(struct vfs *v, const struct vfs_kernel *k)
{
	v->kernel = *k;
}

void vfs_changed_inside(struct vfs *v, uint64_t inode, const char *name)
{
	attrcache_changed_some(v->known, clock_us());
	vfs_changed(v, inode, NULL, !name);
	if (name && v->kernel.entry)
		v->kernel.entry(v->kernel.arg, inode, name);
	/* a directory's own attributes change with its names */
	if (v->kernel.inode)
		v->kernel.inode(v->kernel.arg, inode);
}

/* --- made up --- */

static void trash_attr(struct vfs *v, struct attr *ret)
{
	*ret = (struct attr){
		.type = INODE_DIR,
		.mode = 0555,
		.nlink = 2,
		.parent = INODE_ROOT,
		.atime = v->mounted,
		.mtime = v->mounted,
		.ctime = v->mounted,
	};
}

bool vfs_getattr_made_up(struct vfs *v, uint64_t inode, struct vfs_entry *ret)
{
	struct vfs_entry e = {.inode = inode, .attr_us = MADE_UP_US, .entry_us = MADE_UP_US};

	if (inode == INODE_TRASH)
		trash_attr(v, &e.attr);
	else if (!internal_attr(v->conf.internal, inode, &e.attr))
		return false;
	*ret = e;
	return true;
}

bool vfs_pages_old(struct vfs *v, uint64_t inode, uint64_t *ret_drop)
{
	struct vfs_entry e;

	if (vfs_getattr_made_up(v, inode, &e) || vfs_getattr(v, inode, &e) < 0 ||
	    e.attr.type != INODE_FILE)
		return false;
	return !attrcache_pages_match(v->known, inode, &e.attr, ret_drop);
}

void vfs_pages_dropped(struct vfs *v, uint64_t inode, uint64_t drop)
{
	attrcache_pages_dropped(v->known, inode, drop);
}

bool vfs_getattr_known(struct vfs *v, uint64_t inode, struct vfs_entry *ret)
{
	struct vfs_entry e = {.inode = inode};
	uint64_t asked, age;

	if (!attrcache_dir(v->known, inode, &e.attr, &asked))
		return false;
	age = clock_us() - asked;
	if (age >= v->conf.attr_us)
		return false;
	vfs_fill(v, &e);
	if (vfs_overtaken(v, &e, asked))
		return false;
	e.attr_us -= MIN(e.attr_us, age);
	*ret = e;
	return true;
}

bool vfs_lookup_made_up(struct vfs *v, uint64_t parent, const char *name, struct vfs_entry *ret)
{
	uint64_t inode;

	if (parent != INODE_ROOT || name[0] != '.')
		return false;
	if (strcmp(name, ".trash") == 0 && !v->conf.no_trash)
		inode = INODE_TRASH;
	else if (!internal_find(name, &inode))
		return false;
	return vfs_getattr_made_up(v, inode, ret);
}

/* --- look-ups --- */

enum { ASK_TRIES = 16 };

bool vfs_overtaken(struct vfs *v, const struct vfs_entry *e, uint64_t asked_us)
{
	return e->attr.type == INODE_FILE && attrcache_changed_since(v->known, e->inode, asked_us);
}

int vfs_lookup(struct vfs *v, const struct meta_ctx *c, uint64_t parent, const char *name,
	       struct vfs_entry *ret)
{
	struct vfs_entry e;
	uint64_t asked;
	int tries = 0;

	if (vfs_lookup_made_up(v, parent, name, ret))
		return 0;
	do {
		int r;

		e = (struct vfs_entry){0};
		asked = clock_us();
		r = meta_lookup(v->conf.meta, c, parent, name, &e.inode, &e.attr);
		if (r < 0)
			return r;
		vfs_seen(v, e.inode, &e.attr, asked);
		vfs_fill(v, &e);
	} while (vfs_overtaken(v, &e, asked) && ++tries < ASK_TRIES);
	*ret = e;
	return 0;
}

int vfs_getattr(struct vfs *v, uint64_t inode, struct vfs_entry *ret)
{
	struct vfs_entry e;
	uint64_t asked;
	int tries = 0;

	if (vfs_getattr_made_up(v, inode, ret))
		return 0;
	do {
		int r;

		e = (struct vfs_entry){.inode = inode};
		asked = clock_us();
		r = meta_getattr(v->conf.meta, inode, &e.attr);
		if (r < 0)
			return r;
		vfs_seen(v, inode, &e.attr, asked);
		vfs_fill(v, &e);
	} while (vfs_overtaken(v, &e, asked) && ++tries < ASK_TRIES);
	*ret = e;
	return 0;
}

int vfs_setattr(struct vfs *v, const struct meta_ctx *c, uint64_t inode, unsigned set,
		const struct attr *want, const uint64_t *size, struct handle *h,
		struct vfs_entry *ret)
{
	struct vfs_entry e = {.inode = inode};
	int r = 0;

	if (inode >= INODE_INTERNAL && inode <= INODE_TRASH)
		return -EPERM;
	if (size) {
		r = vfs_truncate(v, c, inode, *size, h != NULL, &e.attr);
		if (r < 0)
			return r;
	}
	if (set) {
		uint64_t asked = clock_us();
		bool stale;

		r = meta_setattr(v->conf.meta, c, inode, set, want, &e.attr);
		if (r < 0)
			return r;
		vfs_fill(v, &e);
		stale = vfs_overtaken(v, &e, asked);
		vfs_changed(v, inode, &e.attr, false);
		if (stale)
			return vfs_getattr(v, inode, ret);
	}
	if (!size && !set)
		return vfs_getattr(v, inode, ret);
	vfs_fill(v, &e);
	*ret = e;
	return 0;
}

int vfs_truncate(struct vfs *v, const struct meta_ctx *c, uint64_t inode, uint64_t size,
		 bool through_handle, struct attr *ret)
{
	struct wfile *f;
	int r;

	if (size > FILE_LENGTH_MAX)
		return -EFBIG;
	r = meta_truncate(v->conf.meta, c, inode, size, through_handle, ret);
	if (r < 0)
		return r;
	f = v->writer ? wfile_find(v->writer, inode) : NULL;
	if (f) {
		wfile_set_length(f, ret->length);
		wfile_put(f);
	}
	vfs_changed(v, inode, ret, true);
	return 0;
}

int vfs_access(struct vfs *v, const struct meta_ctx *c, uint64_t inode, unsigned want)
{
	struct vfs_entry e;
	unsigned bits;

	if (!vfs_getattr_made_up(v, inode, &e))
		return meta_access(v->conf.meta, c, inode, want, NULL);
	if (c->uid == 0)
		return 0;
	bits = e.attr.mode >> (c->uid == e.attr.uid ? 6 : c->gid == e.attr.gid ? 3 : 0);
	return (bits & want) == want ? 0 : -EACCES;
}

int vfs_statfs(struct vfs *v, uint64_t inode, struct meta_statfs *ret)
{
	return meta_statfs(v->conf.meta, inode, ret);
}
