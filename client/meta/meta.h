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

#include "client/meta/attr.h"
#include "common/block/setting.h"
#include "common/metrics.h"

struct meta;
struct meta_dir;

/* who asks */
struct meta_ctx {
	uint32_t uid, gid;
	uint32_t pid;
};

struct meta_conf {
	bool read_only;
	uint64_t timeout_us;	    /* --meta-timeout */
	uint64_t data_timeout_us;   /* of read, write and new_slice; 0: 5 minutes or timeout_us */
	uint64_t heartbeat_us;	    /* 12 s */
	uint64_t skip_dir_mtime_us; /* 100 ms */
	const char *subdir;	    /* NULL; anything else is refused with -EOPNOTSUPP */
	const char *mount_point;    /* for the session */
	bool no_bgjob;
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
	SET_MTIME_NOW = 256
};
enum { RENAME_F_NOREPLACE = 1, RENAME_F_EXCHANGE = 2 };

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
	int (*statfs)(struct meta *m, struct meta_statfs *ret);
	/* value freed by the caller; list: names with their NULs */
	int (*getxattr)(struct meta *m, uint64_t inode, const char *name, char **ret,
			size_t *ret_len);
	int (*setxattr)(struct meta *m, uint64_t inode, const char *name, const void *value,
			size_t len, int flags);
	int (*listxattr)(struct meta *m, uint64_t inode, char **ret, size_t *ret_len);
	int (*removexattr)(struct meta *m, uint64_t inode, const char *name);
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
void meta_set_delete(struct meta *m, meta_delete_fn *fn, void *arg);
/* called when the volume id moved or the volume is gone (gone: everything fails with -EIO from now
 * on), by whichever thread found out: the heartbeat's, or one in an operation, before that
 * returns */
void meta_set_changed(struct meta *m, void (*fn)(void *arg, bool gone), void *arg);

/* JuiceFS's and ours: sessions of the volume as a JSON array, for status */
int meta_sessions_json(struct redis *r, uint64_t deadline_us, struct str *out);
/* writes `setting`, root and trash root of a new volume; setting text as JuiceFS would write it.
 * For format: idempotent; -EEXIST: another volume is there */
struct format_request {
	const char *name, *storage, *bucket, *access_key, *secret_key, *session_token;
	uint32_t block_size;
	enum codec codec;
	bool hash_prefix;
	unsigned trash_days;
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
int meta_open(struct meta *m, const struct meta_ctx *c, uint64_t inode, int flags,
	      struct chunk_list *ret);
int meta_close(struct meta *m, uint64_t inode);
int meta_read(struct meta *m, uint64_t inode, uint32_t index, uint32_t n, struct chunk_list *ret);
int meta_write(struct meta *m, uint64_t inode, uint32_t index, const struct slice *s,
	       struct time_ns mtime, struct attr *ret);
int meta_new_slice(struct meta *m, uint64_t *ret, struct hash128 *ret_volume);
int meta_statfs(struct meta *m, struct meta_statfs *ret);
int meta_getxattr(struct meta *m, uint64_t inode, const char *name, char **ret, size_t *ret_len);
int meta_setxattr(struct meta *m, uint64_t inode, const char *name, const void *value, size_t len,
		  int flags);
int meta_listxattr(struct meta *m, uint64_t inode, char **ret, size_t *ret_len);
int meta_removexattr(struct meta *m, uint64_t inode, const char *name);
int meta_start(struct meta *m, struct str *err);
void meta_stop(struct meta *m);

#endif
