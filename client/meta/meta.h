/* SPDX-License-Identifier: Apache-2.0 */
/* The metadata engine: calls with answers. They block (on Redis), so they run in the meta workq, in
 * commands, or in threads of the engine, never in a FUSE or loop thread. Two engines:
 * meta_redis_*.c and meta_mem*.c (tests). The wrappers in meta.c check arguments, the rules of the
 * trash, and whether the volume may be written at all; engine.h has what both engines share.
 *
 * Errors are POSIX's, negative, with JuiceFS's meaning (docs/format.md §3.4, §3.5); -EIO after
 * meta_timeout; -EROFS on a read-only volume; -ESTALE (write only) the generation changed since the
 * slice's number was given: write again under a new one. Once the volume is gone from the database,
 * or another one is there, everything answers -EIO. */
#ifndef STOKE_CLIENT_META_META_H
#define STOKE_CLIENT_META_META_H

#include <sys/stat.h>

#include "client/meta/acl.h"
#include "client/meta/attr.h"
#include "common/block/setting.h"
#include "common/metrics.h"

struct meta;
struct meta_dir;
struct meta_list;

/* who asks */
struct meta_ctx {
	uint32_t uid, gid;
	uint32_t pid;
	/* Permissions are the engine's to check: the kernel does not (--root-squash, --all-squash,
	 * --non-default-permission). gids: every group of the caller, only looked at then */
	bool check;
	const uint32_t *gids;
	size_t n_gids;
	/* Out, where a change of names puts the attributes that its directory has now; [1]: a
	 * rename's new directory. Two of them, set to 0 by the caller; type stays 0 where they are
	 * not known. NULL: not wanted */
	struct attr *ret_dirs;
	/* Out, of a rename: the inode that was exchanged. Set to 0 by the caller; NULL: not
	 * wanted */
	uint64_t *ret_other;
};

enum atime_mode { ATIME_NONE, ATIME_RELATIVE, ATIME_STRICT };

struct meta_conf {
	bool read_only;
	uint64_t timeout_us;	    /* --meta-timeout */
	uint64_t data_timeout_us;   /* of read, write and new_slice; 0: 5 minutes or timeout_us */
	uint64_t heartbeat_us;	    /* 12 s */
	uint64_t skip_dir_mtime_us; /* 100 ms */
	const char *subdir;	    /* NULL: the volume's root; made when it is missing */
	const char *mount_point;    /* for the session */
	bool no_bgjob;
	unsigned max_deletes; /* threads that delete objects (10); 0: this client deletes none */
	enum atime_mode atime;
	struct metrics *metrics;
};

struct meta_entry {
	uint64_t inode;
	struct attr attr;
	bool full; /* attr is complete, else only type */
	size_t name_len;
	const char *name;
};
/* slices of one chunk with the attributes they belong to, read in one step; volume: the id that
 * their blocks have */
struct chunk_list {
	uint32_t index;
	struct hash128 volume;
	struct attr attr;
	size_t n;
	struct slice *slices;
};
void chunk_list_fini(struct chunk_list *l);

enum meta_set {
	SET_MODE = 1,
	SET_UID = 2,
	SET_GID = 4,
	SET_ATIME = 16,
	SET_MTIME = 32,
	SET_ATIME_NOW = 128,
	SET_MTIME_NOW = 256,
	SET_FLAGS = 32768 /* attr.flags (chattr) */
};
/* rename(2)'s; RESTORE: out of the trash, also into a directory that lies in it (JuiceFS's
 * number) */
enum {
	RENAME_F_NOREPLACE = 1,
	RENAME_F_EXCHANGE = 2,
	RENAME_F_WHITEOUT = 4,
	RENAME_F_RESTORE = 32
};

/* A POSIX record lock; end is inclusive, LOCK_EOF: to the end of the file */
struct meta_lock {
	uint32_t type; /* F_RDLCK, F_WRLCK, F_UNLCK */
	uint32_t pid;  /* getlk: 0 when another session holds it */
	uint64_t start, end;
};
#define LOCK_EOF UINT64_C(0x7FFFFFFFFFFFFFFF)

enum quota_kind { QUOTA_DIR, QUOTA_USER, QUOTA_GROUP };
struct quota {
	enum quota_kind kind;
	uint64_t id;		       /* inode of the directory, uid, gid */
	int64_t max_space, max_inodes; /* bytes; <= 0: no limit */
	int64_t used_space, used_inodes;
};

/* What long work has done so far: shown while it runs. Numbers only grow. */
struct meta_progress {
	uint64_t files, bytes; /* relaxed atomics */
	int cancel;	       /* relaxed atomic; set by who waits: the work ends with -EINTR */
	unsigned threads;      /* that work on it, within what the work allows; 0: as usual */
};

struct meta_statfs {
	uint64_t total_bytes, avail_bytes, used_inodes, avail_inodes;
};

struct meta_ops {
	const char *name;
	/* namespace; attr outputs are the new state */
	int (*lookup)(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name,
		      uint64_t *ret, struct attr *ret_attr);
	int (*getattr)(struct meta *m, uint64_t inode, struct attr *ret);
	int (*setattr)(struct meta *m, const struct meta_ctx *c, uint64_t inode, unsigned set,
		       const struct attr *want, struct attr *ret);
	/* through_handle: allowed on a trashed file that is open */
	int (*truncate)(struct meta *m, const struct meta_ctx *c, uint64_t inode, uint64_t length,
			bool through_handle, struct attr *ret);
	/* mode without type bits; target for symlinks. parent's changed attributes need not be
	 * returned: the caller drops its copy */
	int (*mknod)(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name,
		     uint8_t type, uint32_t mode, uint32_t umask, uint32_t rdev, const char *target,
		     uint64_t *ret, struct attr *ret_attr);
	int (*link)(struct meta *m, const struct meta_ctx *c, uint64_t inode, uint64_t parent,
		    const char *name, struct attr *ret);
	int (*unlink)(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name);
	int (*rmdir)(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name);
	/* *ret: inode that moved */
	int (*rename)(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name,
		      uint64_t new_parent, const char *new_name, unsigned flags, uint64_t *ret,
		      struct attr *ret_attr);
	/* target freed by the caller */
	int (*readlink)(struct meta *m, uint64_t inode, char **ret);
	/* everything in the directory but . and .., each name once; with_attr: MGET too. *ret freed
	 * with meta_dir_free */
	int (*readdir)(struct meta *m, uint64_t inode, bool with_attr, struct meta_dir **ret);
	/* adds one page to a listing, of names, attributes or both; NULL: readdir, all at once */
	int (*list_page)(struct meta *m, struct meta_list *l);
	/* data. open brings the first chunk's list of a file (index 0) in the same round trip; open
	 * counts keep unlinked files */
	int (*open)(struct meta *m, const struct meta_ctx *c, uint64_t inode, int flags,
		    struct chunk_list *ret);
	int (*close)(struct meta *m, uint64_t inode);
	/* lists of chunks [index, index + n), n <= 256; ret has room for n */
	int (*read)(struct meta *m, uint64_t inode, uint32_t index, uint32_t n,
		    struct chunk_list *ret);
	/* commits a slice whose blocks are stored; mtime: of the last write in it. -ESTALE: the
	 * volume is not the one that new_slice gave with the slice's number any more */
	int (*write)(struct meta *m, uint64_t inode, uint32_t index, const struct slice *s,
		     struct time_ns mtime, struct attr *ret);
	/* a number that no slice has yet, and the id of the volume that its blocks belong to */
	int (*new_slice)(struct meta *m, uint64_t *ret, struct hash128 *ret_volume);
	/* as seen below a directory: no more than its quotas allow; inode 0: the volume's */
	int (*statfs)(struct meta *m, uint64_t inode, struct meta_statfs *ret);
	/* value freed by the caller; list: names with their NULs */
	int (*getxattr)(struct meta *m, uint64_t inode, const char *name, char **ret,
			size_t *ret_len);
	int (*setxattr)(struct meta *m, uint64_t inode, const char *name, const void *value,
			size_t len, int flags);
	int (*listxattr)(struct meta *m, uint64_t inode, char **ret, size_t *ret_len);
	int (*removexattr)(struct meta *m, uint64_t inode, const char *name);
	/* POSIX ACLs (acl.h). get: -ENODATA when there is none; set: an empty rule (NULL)
	 * removes it; setting an access rule takes sgid off when c is not in the file's
	 * group (gids: looked at here always) */
	int (*getfacl)(struct meta *m, uint64_t inode, enum acl_type type, struct acl *ret);
	int (*setfacl)(struct meta *m, const struct meta_ctx *c, uint64_t inode, enum acl_type type,
		       const struct acl *rule, struct attr *ret);
	/* reading touches atime as conf.atime says; a: what the reader has, updated */
	int (*touch_atime)(struct meta *m, uint64_t inode, struct attr *a);
	/* Locks: never wait, -EAGAIN when another owner is in the way. They end with the
	 * session. */
	int (*flock)(struct meta *m, uint64_t inode, uint64_t owner, uint32_t type);
	int (*setlk)(struct meta *m, uint64_t inode, uint64_t owner, const struct meta_lock *l);
	/* in: what would be asked for; out: the first lock in its way, or F_UNLCK */
	int (*getlk)(struct meta *m, uint64_t inode, uint64_t owner, struct meta_lock *l);
	/* mode: fallocate(2)'s; -EOPNOTSUPP for those JuiceFS lacks (collapse, insert) */
	int (*fallocate)(struct meta *m, const struct meta_ctx *c, uint64_t inode, int mode,
			 uint64_t off, uint64_t len, struct attr *ret);
	/* no data is copied; both files' dirty data is committed. *ret_copied: clipped to the
	 * source's length */
	int (*copy_file_range)(struct meta *m, const struct meta_ctx *c, uint64_t in,
			       uint64_t off_in, uint64_t out, uint64_t off_out, uint64_t len,
			       uint64_t *ret_copied, struct attr *ret_out);
	/* the first chunk in [first, end) with a list, or end: may be a scan of the volume; NULL:
	 * whoever asks reads the lists */
	int (*next_chunk)(struct meta *m, uint64_t inode, uint32_t first, uint32_t end,
			  uint32_t *ret);
	/* A file without a name, open in this client (O_TMPFILE); linked later, or gone at its last
	 * close. Counted as open by meta_open only. */
	int (*tmpfile)(struct meta *m, const struct meta_ctx *c, uint64_t parent, uint32_t mode,
		       uint32_t umask, uint64_t *ret, struct attr *ret_attr);
	/* Trees: may take long. remove: the entry and all below it, past the trash when
	 * skip_trash */
	int (*remove_tree)(struct meta *m, const struct meta_ctx *c, uint64_t parent,
			   const char *name, bool skip_trash, struct meta_progress *p);
	/* preserve: modes, owners and times are kept (cp -p); else the caller's, and now */
	int (*clone)(struct meta *m, const struct meta_ctx *c, uint64_t src, uint64_t parent,
		     const char *name, bool preserve, uint32_t umask, struct meta_progress *p);
	/* Makes one slice of what a chunk's list holds. *ret_freed: bytes of slices that nobody
	 * refers to any more (0 with the trash on: they wait); 0 when there is nothing to gain. */
	int (*compact)(struct meta *m, uint64_t inode, uint32_t index, uint64_t *ret_freed);
	/* Quotas. set: limits < 0 leave that side as it is; a directory's usage is summed up when
	 * it gets its first limit. -ENOENT: none. list: of a kind, *ret freed by the caller. check:
	 * counts what there is, *ret_told: as it was found, *ret: as counted; repair: writes it.
	 * When they differ, others get seconds to tell what they did, and it is counted again. */
	int (*quota_set)(struct meta *m, const struct quota *q);
	int (*quota_get)(struct meta *m, enum quota_kind kind, uint64_t id, struct quota *ret);
	int (*quota_list)(struct meta *m, enum quota_kind kind, struct quota **ret, size_t *ret_n);
	int (*quota_delete)(struct meta *m, enum quota_kind kind, uint64_t id);
	int (*quota_check)(struct meta *m, enum quota_kind kind, uint64_t id, bool repair,
			   struct quota *ret_told, struct quota *ret, struct meta_progress *p);
	/* life */
	/* session, heartbeat thread, flushers; read-only: no session, no flushers */
	int (*start)(struct meta *m, struct str *err);
	/* flushes, cleans our own session up, ends threads */
	void (*stop)(struct meta *m);
	void (*free)(struct meta *m);
};

struct meta_dir {
	size_t n;
	struct meta_entry *entries;
	void *names;
};
void meta_dir_free(struct meta_dir *d);

/* Deletes the objects of a slice; called from an engine thread, may block; 0 when all are gone (a
 * missing one is gone) */
typedef int meta_delete_fn(void *arg, uint64_t slice, uint32_t size);
/* Writes slice id (of volume): the bytes of view's pieces one after the other (id 0: zeros), size
 * of them all. Called from an engine thread, may block; 0 when every block is stored. */
struct compact_job {
	const struct slice *pieces;
	size_t n;
	uint64_t id;
	uint32_t size;
	uint8_t tier;
	struct hash128 volume;
};
typedef int meta_compact_fn(void *arg, const struct compact_job *job);

/* Connects, loads the setting, checks it: -EOPNOTSUPP with what is not handled, by name, in err
 * (read-write; or what makes reading wrong when read_only); -EPROTONOSUPPORT version gates; errors
 * of redis_new and setting_load. */
int meta_redis_new(const char *url, const struct meta_conf *conf, struct meta **ret,
		   struct str *err);
/* an empty volume in memory, block size as given, trash_days as given */
int meta_mem_new(const struct meta_conf *conf, uint32_t block_size, unsigned trash_days,
		 struct meta **ret);
void meta_free(struct meta *m);

const struct setting *meta_setting(const struct meta *m);
struct hash128 meta_volume_id(struct meta *m); /* moves when the generation does */
/* false: read-only mount of a volume without `_gen`: use no group. When a loaded volume has lost
 * its `_gen`, a read-only mount goes on under an id of its own, that no cache knows, until there is
 * a new one */
bool meta_has_generation(const struct meta *m);
struct redis *meta_redis(struct meta *m); /* NULL for memory */
uint64_t meta_session_id(const struct meta *m);
/* an inode as the calls below name it (1: the mount's root) -> as the volume does */
uint64_t meta_rooted(const struct meta *m, uint64_t inode);
void meta_set_delete(struct meta *m, meta_delete_fn *fn, void *arg);
/* without it this client compacts nothing */
void meta_set_compact(struct meta *m, meta_compact_fn *fn, void *arg);
/* called when the volume id moved or the volume is gone (gone: everything fails with -EIO from now
 * on), by whichever thread found out: the heartbeat's, or one in an operation, before that
 * returns */
void meta_set_changed(struct meta *m, void (*fn)(void *arg, bool gone), void *arg);
/* called by the heartbeat's thread when our session had lapsed, so that others may have given up
 * our locks, or when it became another one. May block. NULL: nobody; a call may be under way then,
 * which ends before meta_stop returns. */
void meta_set_lapsed(struct meta *m, void (*fn)(void *arg), void *arg);
/* called when the volume's setting changed (both live as long as the engine), by the heartbeat's
 * thread */
void meta_set_configured(struct meta *m,
			 void (*fn)(void *arg, const struct setting *old, const struct setting *s),
			 void *arg);

/* JuiceFS's and ours: sessions of the volume as a JSON array, for status */
int meta_sessions_json(struct redis *r, uint64_t deadline_us, struct str *out);
/* writes `setting`, root and trash root of a new volume; setting text as JuiceFS would write it.
 * For format: idempotent; -EEXIST: another volume is there */
struct format_request {
	const char *name, *storage, *bucket, *access_key, *secret_key, *session_token;
	const char *storage_class, *tag;	/* of tier 0; NULL: none */
	const char *encrypt_key, *encrypt_algo; /* PEM, NULL: not encrypted; NULL: aes256gcm-rsa */
	uint32_t block_size;
	enum codec codec;
	bool hash_prefix, enable_acl;
	unsigned trash_days, shards;
	uint64_t capacity, inodes;
};
int meta_format(struct redis *r, uint64_t deadline_us, const struct format_request *f,
		struct setting **ret, bool *ret_created, struct str *err);

/* wrappers, same contract as the table: they check names (-EINVAL, -ENAMETOOLONG), the trash,
 * read-only, and map inode 0 to root */
int meta_lookup(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name,
		uint64_t *ret, struct attr *ret_attr);
int meta_getattr(struct meta *m, uint64_t inode, struct attr *ret);
int meta_setattr(struct meta *m, const struct meta_ctx *c, uint64_t inode, unsigned set,
		 const struct attr *want, struct attr *ret);
int meta_truncate(struct meta *m, const struct meta_ctx *c, uint64_t inode, uint64_t length,
		  bool through_handle, struct attr *ret);
int meta_mknod(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name,
	       uint8_t type, uint32_t mode, uint32_t umask, uint32_t rdev, const char *target,
	       uint64_t *ret, struct attr *ret_attr);
int meta_link(struct meta *m, const struct meta_ctx *c, uint64_t inode, uint64_t parent,
	      const char *name, struct attr *ret);
int meta_unlink(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name);
int meta_rmdir(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name);
int meta_rename(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name,
		uint64_t new_parent, const char *new_name, unsigned flags, uint64_t *ret,
		struct attr *ret_attr);
int meta_readlink(struct meta *m, uint64_t inode, char **ret);
int meta_readdir(struct meta *m, uint64_t inode, bool with_attr, struct meta_dir **ret);
/* The same, page by page. A name that is there all the while comes once; entries stay where they
 * are. meta_list asks nobody; _load blocks until n entries are there, or the end is (_ready: now),
 * waiting for whoever loads already; _at: NULL when that one is not there yet, or behind the end.
 * Loading ahead of the reader is its owner's: he tells how far he read (_reached), and when it
 * _wants (true: now, once), calls _ahead with a reference in a thread that may block, which
 * stops where the owner is far enough behind, or has left. Any thread. */
int meta_list(struct meta *m, uint64_t inode, bool with_attr, struct meta_list **ret);
struct meta_list *meta_list_ref(struct meta_list *l);
void meta_list_put(struct meta_list *l); /* NULL is fine */
int meta_list_load(struct meta_list *l, size_t n);
bool meta_list_ready(struct meta_list *l, size_t n);
const struct meta_entry *meta_list_at(struct meta_list *l, size_t i);
void meta_list_reached(struct meta_list *l, size_t n);
bool meta_list_wants(struct meta_list *l);
void meta_list_ahead(struct meta_list *l);
void meta_list_leave(struct meta_list *l); /* the owner's reference; NULL is fine */
int meta_open(struct meta *m, const struct meta_ctx *c, uint64_t inode, int flags,
	      struct chunk_list *ret);
/* Counts an open of a file whose attributes the caller knows, so nobody is asked: it made the file
 * a moment ago, or may go on with what it knows (--open-cache). Ends with meta_close. 0 or
 * -ENOMEM */
int meta_open_known(struct meta *m, uint64_t inode, const struct attr *a);
int meta_close(struct meta *m, uint64_t inode);
int meta_read(struct meta *m, uint64_t inode, uint32_t index, uint32_t n, struct chunk_list *ret);
int meta_write(struct meta *m, uint64_t inode, uint32_t index, const struct slice *s,
	       struct time_ns mtime, struct attr *ret);
int meta_new_slice(struct meta *m, uint64_t *ret, struct hash128 *ret_volume);
int meta_statfs(struct meta *m, uint64_t inode, struct meta_statfs *ret);
int meta_getxattr(struct meta *m, uint64_t inode, const char *name, char **ret, size_t *ret_len);
int meta_setxattr(struct meta *m, uint64_t inode, const char *name, const void *value, size_t len,
		  int flags);
int meta_listxattr(struct meta *m, uint64_t inode, char **ret, size_t *ret_len);
int meta_removexattr(struct meta *m, uint64_t inode, const char *name);
int meta_getfacl(struct meta *m, uint64_t inode, enum acl_type type, struct acl *ret);
int meta_setfacl(struct meta *m, const struct meta_ctx *c, uint64_t inode, enum acl_type type,
		 const struct acl *rule, struct attr *ret);
/* want: of 4 read, 2 write, 1 execute; 0 or -EACCES. ctx.check need not be set */
int meta_access(struct meta *m, const struct meta_ctx *c, uint64_t inode, unsigned want,
		struct attr *ret_attr);
int meta_touch_atime(struct meta *m, uint64_t inode, struct attr *a);
int meta_flock(struct meta *m, uint64_t inode, uint64_t owner, uint32_t type);
int meta_setlk(struct meta *m, uint64_t inode, uint64_t owner, const struct meta_lock *l);
int meta_getlk(struct meta *m, uint64_t inode, uint64_t owner, struct meta_lock *l);
int meta_fallocate(struct meta *m, const struct meta_ctx *c, uint64_t inode, int mode, uint64_t off,
		   uint64_t len, struct attr *ret);
int meta_copy_file_range(struct meta *m, const struct meta_ctx *c, uint64_t in, uint64_t off_in,
			 uint64_t out, uint64_t off_out, uint64_t len, uint64_t *ret_copied,
			 struct attr *ret_out);
int meta_next_chunk(struct meta *m, uint64_t inode, uint32_t first, uint32_t end, uint32_t *ret);
int meta_tmpfile(struct meta *m, const struct meta_ctx *c, uint64_t parent, uint32_t mode,
		 uint32_t umask, uint64_t *ret, struct attr *ret_attr);
int meta_remove_tree(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name,
		     bool skip_trash, struct meta_progress *p);
int meta_clone(struct meta *m, const struct meta_ctx *c, uint64_t src, uint64_t parent,
	       const char *name, bool preserve, uint32_t umask, struct meta_progress *p);
int meta_compact(struct meta *m, uint64_t inode, uint32_t index, uint64_t *ret_freed);
int meta_quota_set(struct meta *m, const struct quota *q);
int meta_quota_get(struct meta *m, enum quota_kind kind, uint64_t id, struct quota *ret);
int meta_quota_list(struct meta *m, enum quota_kind kind, struct quota **ret, size_t *ret_n);
int meta_quota_delete(struct meta *m, enum quota_kind kind, uint64_t id);
int meta_quota_check(struct meta *m, enum quota_kind kind, uint64_t id, bool repair,
		     struct quota *ret_told, struct quota *ret, struct meta_progress *p);
int meta_start(struct meta *m, struct str *err);
void meta_stop(struct meta *m);

#endif
