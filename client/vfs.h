/* SPDX-License-Identifier: Apache-2.0 */
/* POSIX on top of the metadata engine, the reader and the writer. Knows nothing of FUSE: 0 or
 * negative errno, JuiceFS's records.
 *
 * Two kinds of calls. Those named "blocks" ask Redis and run in the meta workq. All others return
 * at once; those with a struct vfs_io answer by io->done, once, on any thread, maybe before the
 * call returned.
 *
 * Coherence (close-to-open): open asks Redis; close, fsync and release commit what was written.
 * Attributes of an inode with dirty data show the length that was written, and are not to be
 * cached. Anything that would be overtaken by a later commit (times, size, reading, another open)
 * flushes first: vfs_flush_inode. */
#ifndef STOKE_CLIENT_VFS_H
#define STOKE_CLIENT_VFS_H

#include "client/handle.h"
#include "client/internal.h"

struct vfs;

struct vfs_conf {
	struct meta *meta;
	struct internal *internal;
	uint64_t attr_us, entry_us, dir_entry_us; /* how long the kernel may keep them */
	bool no_trash; /* a part of the volume is mounted (--subdir): the trash is not in it */
	bool read_only, xattr, acl; /* acl: the volume has POSIX ACLs */
	bool readdir_cache;
	uint64_t open_us; /* --open-cache; 0: none */
	size_t open_max;
	/* a directory that did not change for so long when it was listed will show every later
	 * change in its times */
	uint64_t listed_us;
	enum atime_mode atime;
	size_t remembered; /* inodes in attrcache; 0: 65536 */
};

int vfs_new(const struct vfs_conf *conf, struct vfs **ret);
/* the data path, made after the vfs because the writer reports to it; writer NULL: read-only */
/* how the kernel is told to forget what it knows; not yet called: nobody tells it. What was changed
 * by the kernel's own requests needs no telling. Any thread may tell, and none waits for it. */
struct vfs_kernel {
	void (*entry)(void *arg, uint64_t parent, const char *name);
	void (*inode)(void *arg, uint64_t inode); /* attributes and pages */
	void *arg;
};
void vfs_set_kernel(struct vfs *v, const struct vfs_kernel *k);
/* This mount changed what a name stands for (NULL: the inode itself) by something else than a
 * request of the kernel, such as a command that it runs. */
void vfs_changed_inside(struct vfs *v, uint64_t inode, const char *name);
void vfs_attach(struct vfs *v, struct reader *reader, struct writer *writer);
/* writer_conf.committed: arg is the vfs */
void vfs_committed(void *arg, uint64_t inode, const struct attr *a);
/* The volume became another one, or an older one of itself: what this mount knows of it counts no
 * more, nor do the kernel's pages at their next open. Any thread. */
void vfs_volume_moved(struct vfs *v);
/* blocks: ends every handle that is left. No call may be under way, but vfs_volume_moved */
void vfs_stop(struct vfs *v);
/* vfs_stop, then frees; NULL is fine */
void vfs_free(struct vfs *v);

/* an inode as the kernel is told of it, with the time it may keep that; attributes not to be
 * trusted (damaged volume): full is false */
struct vfs_entry {
	uint64_t inode;
	struct attr attr;
	uint64_t attr_us, entry_us;
};

/* --- names and attributes (vfs.c, vfs_name.c): block --- */
int vfs_lookup(struct vfs *v, const struct meta_ctx *c, uint64_t parent, const char *name,
	       struct vfs_entry *ret);
int vfs_getattr(struct vfs *v, uint64_t inode, struct vfs_entry *ret);
/* The root's (vfs_root.c): asked for in q, but when that takes more than 300 ms, or fails, what was
 * known last; blocks for no longer. 0 or -ENOMEM. q must have ended before vfs_free. */
int vfs_getattr_root(struct vfs *v, struct workq *q, struct vfs_entry *ret);
/* true: answered without Redis (internal files, the trash's root); does not block */
bool vfs_getattr_made_up(struct vfs *v, uint64_t inode, struct vfs_entry *ret);
/* blocks: asks, and tells whether the kernel's pages of a file are of another version: they are to
 * be dropped then, and vfs_pages_dropped is to be called with *ret_drop when they are */
bool vfs_pages_old(struct vfs *v, uint64_t inode, uint64_t *ret_drop);
void vfs_pages_dropped(struct vfs *v, uint64_t inode, uint64_t drop);
/* true: a directory as this mount's last change of its names left it, not older than the kernel may
 * keep it; does not block */
bool vfs_getattr_known(struct vfs *v, uint64_t inode, struct vfs_entry *ret);
bool vfs_lookup_made_up(struct vfs *v, uint64_t parent, const char *name, struct vfs_entry *ret);
/* size (NULL: unchanged) first, then set's bits; h: the handle it came through, or NULL. The inode
 * was flushed. */
int vfs_setattr(struct vfs *v, const struct meta_ctx *c, uint64_t inode, unsigned set,
		const struct attr *want, const uint64_t *size, struct handle *h,
		struct vfs_entry *ret);
/* target: of a symlink, else NULL */
int vfs_mknod(struct vfs *v, const struct meta_ctx *c, uint64_t parent, const char *name,
	      uint8_t type, uint32_t mode, uint32_t umask, uint32_t rdev, const char *target,
	      struct vfs_entry *ret);
int vfs_unlink(struct vfs *v, const struct meta_ctx *c, uint64_t parent, const char *name);
int vfs_rmdir(struct vfs *v, const struct meta_ctx *c, uint64_t parent, const char *name);
int vfs_rename(struct vfs *v, const struct meta_ctx *c, uint64_t parent, const char *name,
	       uint64_t new_parent, const char *new_name, unsigned flags);
int vfs_link(struct vfs *v, const struct meta_ctx *c, uint64_t inode, uint64_t parent,
	     const char *name, struct vfs_entry *ret);
/* freed by the caller */
int vfs_readlink(struct vfs *v, uint64_t inode, char **ret);
/* want: of 4 read, 2 write, 1 execute */
int vfs_access(struct vfs *v, const struct meta_ctx *c, uint64_t inode, unsigned want);
int vfs_statfs(struct vfs *v, uint64_t inode, struct meta_statfs *ret);
/* -ENOTSUP unless conf.xattr, for ACLs unless conf.acl; security.capability and security.selinux
 * are never stored: -ENODATA to read, -ENOTSUP to change */
bool vfs_xattr_unknown(const char *name); /* one of the two; does not block */
int vfs_getxattr(struct vfs *v, const struct meta_ctx *c, uint64_t inode, const char *name,
		 char **ret, size_t *ret_len);
int vfs_setxattr(struct vfs *v, const struct meta_ctx *c, uint64_t inode, const char *name,
		 const void *value, size_t len, int flags);
/* trusted.* only to root, as elsewhere */
int vfs_listxattr(struct vfs *v, const struct meta_ctx *c, uint64_t inode, char **ret,
		  size_t *ret_len);
int vfs_removexattr(struct vfs *v, const struct meta_ctx *c, uint64_t inode, const char *name);

/* --- opening and closing (vfs_open.c) --- */
/* blocks; flags: open(2)'s. *ret_keep: the kernel's pages of this inode are of the version that was
 * opened. With O_TRUNC the inode was flushed. */
int vfs_open(struct vfs *v, const struct meta_ctx *c, uint64_t inode, int flags,
	     struct handle **ret, bool *ret_keep);
/* true: the open is to be answered ESTALE, so that the kernel looks the name up again; once, then
 * it is left as it is. Either another mount put the file into the trash, so that the name may be
 * another's; or it is an open for appending, and the kernel would write at the end that it knows,
 * which another mount has moved. */
bool vfs_open_again(struct handle *h);
/* The same for what was refused with status (blocks): the inode that the kernel named is gone, or
 * in the trash, where nothing may be changed. -ESTALE instead of status, or status. */
int vfs_again(struct vfs *v, uint64_t inode, int status);
/* blocks; an existing file is opened unless O_EXCL */
int vfs_create(struct vfs *v, const struct meta_ctx *c, uint64_t parent, const char *name,
	       uint32_t mode, uint32_t umask, int flags, struct vfs_entry *ret_entry,
	       struct handle **ret, bool *ret_keep);
/* blocks; a file without a name in the file system of parent, open */
int vfs_tmpfile(struct vfs *v, const struct meta_ctx *c, uint64_t parent, uint32_t mode,
		uint32_t umask, int flags, struct vfs_entry *ret_entry, struct handle **ret);
/* an internal file: does not block; -ENOENT when inode is none */
int vfs_open_internal(struct vfs *v, const struct meta_ctx *c, uint64_t inode, int flags,
		      struct handle **ret);
/* blocks; what was written through h was flushed. h is gone. */
void vfs_release(struct handle *h);
/* before vfs_release: then(h) runs when no read uses h any more, with h->idle_arg set to arg; any
 * thread, maybe at once */
void vfs_when_idle(struct handle *h, void (*then)(struct handle *h), void *arg);
/* Blocks only if c is to be checked or listings are cached. *ret_keep: the kernel's listing is what
 * it would be given now. */
int vfs_opendir(struct vfs *v, const struct meta_ctx *c, uint64_t inode, struct handle **ret,
		bool *ret_keep);

/* Between these two h stays, whoever releases it meanwhile (vfs_when_idle) */
void vfs_hold(struct handle *h);
void vfs_let(struct handle *h);
/* what is at offset off (not 0) is there; does not block */
bool vfs_readdir_ready(struct handle *h, uint64_t off);
/* The reading that goes on at off, with a reference of its own; list NULL: it begins anew */
struct dir_reading vfs_readdir_begin(struct handle *h, uint64_t off);
/* blocks until what is at off is there, or the end is. Leaves h as it is. */
int vfs_readdir_load(struct handle *h, uint64_t off, bool with_attr, struct dir_reading *d);
/* what was loaded for off is h's now: the reference is given up. One reader at a time. */
void vfs_readdir_use(struct handle *h, struct dir_reading *d);
/* the reader comes to off; not NULL: what is behind it is to be read ahead, by meta_list_ahead */
struct meta_list *vfs_readdir_reached(struct handle *h, uint64_t off);
struct vfs_dirent {
	const char *name; /* of h, until it is loaded again or released; not NUL-terminated */
	size_t name_len;
	struct vfs_entry entry;
	bool full;     /* attributes may be told; else only inode and attr.type */
	uint64_t next; /* offset of the entry behind it */
};
/* entry at offset off (0: the first); false: it is not there (yet). Does not block. */
bool vfs_readdir_at(struct handle *h, uint64_t off, struct vfs_dirent *ret);

/* --- data (vfs_data.c) --- */
struct vfs_io {
	struct handle *h;
	uint64_t off;
	uint32_t len;
	const void *data; /* write: lives until done */
	/* read: iov[n] holds total bytes, valid during the call; write: total is len */
	void (*done)(struct vfs_io *io, int status, const struct iovec *iov, int n, size_t total);
	/* private */
	bool begun;
	struct read_op read;
	struct write_op write;
	struct flush_op flush;
	struct wfile *held;
	void (*asker)(struct vfs_io *io, int status, const struct iovec *iov, int n, size_t total);
	struct list_node link;
	uint64_t since_us;
};
/* Something comes through the handle: the kernel has dropped the pages that its open told it to. */
void vfs_open_over(struct handle *h);
/* The three calls below keep io->h until io is done, whatever the kernel releases meanwhile.
 * Whoever may tell the kernel of the end before the call is made begins first; vfs_io_end: instead
 * of the call. */
void vfs_io_begin(struct vfs_io *io);
void vfs_io_end(struct handle *h);
void vfs_read(struct vfs_io *io);
void vfs_write(struct vfs_io *io);
/* commits what was written through this inode before; report: errors of the past too, once (close,
 * fsync) */
void vfs_flush(struct vfs_io *io, bool report);
/* something of its inode is not committed: a flush would take time */
bool vfs_dirty(struct handle *h);
/* io->h may be NULL; done at once when the inode has no dirty data */
void vfs_flush_inode(struct vfs *v, uint64_t inode, struct vfs_io *io);

/* --- ranges (vfs_range.c): block; the inodes were flushed --- */
int vfs_fallocate(struct vfs *v, const struct meta_ctx *c, struct handle *h, int mode, uint64_t off,
		  uint64_t len);
int vfs_copy_range(struct vfs *v, const struct meta_ctx *c, struct handle *in, uint64_t off_in,
		   struct handle *out, uint64_t off_out, uint64_t len, uint64_t *ret_copied);
/* where data (hole: a hole) begins at or behind off; -ENXIO */
int vfs_seek(struct vfs *v, uint64_t inode, uint64_t off, bool hole, uint64_t *ret);

size_t vfs_open_handles(struct vfs *v);

/* --- between the vfs' own files --- */
struct attrcache;
struct vfs_root {
	struct mtx lock;
	struct cond answered;
	bool known;
	struct vfs_entry last;
	unsigned late; /* questions that were left and are not answered yet */
};
void vfs_root_init(struct vfs_root *root);
void vfs_root_fini(struct vfs_root *root);
struct vfs {
	struct vfs_conf conf;
	struct reader *reader;
	struct writer *writer;
	struct handles handles;
	struct attrcache *known;
	struct attrcache
		*told; /* attributes that the kernel has, in the place of pages' versions */
	struct attrcache
		*listed; /* directories as the kernel's listings show them; NULL: it keeps none */
	struct opencache *opened;
	struct vfs_kernel kernel;
	struct time_ns mounted;
	struct vfs_root root;
};
/* attributes asked for at asked_us arrived: readers hear of them unless they are stale */
void vfs_seen(struct vfs *v, uint64_t inode, const struct attr *a, uint64_t asked_us);
/* an answer that attrcache_seen took for the newest: the kernel's next question may go without
 * Redis */
void vfs_keep(struct vfs *v, uint64_t inode, const struct attr *a, uint64_t asked_us);
/* this mount changed the inode; a: its attributes now, or NULL. data: its bytes changed too */
void vfs_changed(struct vfs *v, uint64_t inode, const struct attr *a, bool data);
/* blocks; -EFBIG above FILE_LENGTH_MAX */
int vfs_truncate(struct vfs *v, const struct meta_ctx *c, uint64_t inode, uint64_t size,
		 bool through_handle, struct attr *ret);
/* times and dirty length of ret->inode, ret->attr */
void vfs_fill(struct vfs *v, struct vfs_entry *ret);
/* Behind vfs_fill. An answer of Redis from before a commit of this mount, put together after it,
 * knows of the length neither as committed nor as dirty. The kernel would believe it, since it
 * asked after the write, and the next append would go where the last one is: true, and it is asked
 * again. */
bool vfs_overtaken(struct vfs *v, const struct vfs_entry *e, uint64_t asked_us);

#endif
