/* SPDX-License-Identifier: Apache-2.0 */
/* The Redis engine, shared by meta_redis_*.c. An operation is one script (client/meta/ *.lua):
 * arguments are built into struct args, which also holds the token that makes a changing script
 * happen once. */
#ifndef STOKE_CLIENT_META_META_REDIS_H
#define STOKE_CLIENT_META_META_REDIS_H

#include "client/meta/engine.h"
#include "client/meta/reply.h"
#include "common/workq.h"

enum script {
#define SCRIPT(number, name, prelude) SC_##number,
#include "client/meta/scripts.def"
#undef SCRIPT
	SC_COUNT,
	/* not scripts, but counted like them */
	OP_GETATTR = SC_COUNT,
	OP_READDIR,
	OP_COUNT
};

enum {
	SLOTS = 64,	/* changing operations at once */
	SEQ_LEN = 24,	/* the length of an operation's number in _ops */
	ARGS_MAX = 416, /* keys and arguments of a script, without the three that all end with */
	INODE_BATCH = 1024,
	SLICE_BATCH = 4096,
	STAT_BATCH = 80,
	DIRS_MAX = 16384, /* directories with statistics to flush */
	DELETES_MAX = 65536,
	DELETE_THREADS = 10, /* at most */
	UUID_TEXT = 36,
	MARK_TRIES = 3, /* so often may the volume move under one operation */
};

/* numbers handed out one by one, reserved in batches */
struct id_pool {
	uint64_t next, end;
	bool filling;
};

struct meta_redis {
	struct meta base;
	struct redis *redis;	  /* operations */
	struct redis *scan_redis; /* walks of trees: the heartbeat never waits for them */
	struct redis *own_redis;  /* heartbeat, statistics, deletes: never behind the operations */
	char *prefix;		  /* of every key: "", or "{N}" in a cluster */
	char *setting_key;	  /* KEYS[1] of every script */
	struct redis_script scripts[SC_COUNT];
	struct metric *seconds[OP_COUNT]; /* NULL without a registry */
	uint32_t nonce;			  /* of this process, in every operation's number */
	uint64_t logged; /* number of the last script of a volume with a change log; atomic */

	/* under base.lock */
	uint64_t slots; /* a bit for each slot in use */
	uint64_t seq;
	struct cond slot_free, pool_filled, wake;
	struct id_pool inodes, slices;
	/* nextchunk as it was seen: numbers up to it were handed out, so it never falls. Records of
	 * slices tell nothing about it: one that is damaged must not rotate the generation */
	uint64_t highest_slice;
	uint64_t old_slices; /* numbers up to it that we reserved were of another generation */
	struct hashmap dirs; /* struct dir_delta by inode */
	struct cond stat_flushed;
	bool stat_flushing;
	struct stat_flight *stat_flight; /* not answered yet; of the one that flushes */
	struct quotas *quotas;		 /* has a lock of its own */
	bool stopping;
	struct list_node dead; /* files whose data is to be deleted, by deleters jobs */
	unsigned n_dead, deleters;

	char *session_json;
	pthread_t beat_thread, stat_thread, job_thread;
	bool beat_running, stat_running, job_running;
	struct meta_progress jobs; /* of the background jobs: how they are stopped */
	struct workq *deletes;
	int64_t full_space, full_inodes; /* what statfs read last; relaxed atomics, -1: never */
	/* what a sign of life found out, for the heartbeat's thread; under base.lock */
	bool had_lapsed, not_ours;
	struct lapsed *lapsed; /* of the heartbeat's thread: sessions that look dead */
	size_t n_lapsed;
	uint64_t looked_us;	     /* when that was seen */
	struct compactor *compactor; /* NULL: nothing is compacted */
	uint64_t delete_until_us;    /* stopping: deletes give up then; relaxed atomic, 0: none */
};

/* What an operation knows the volume by, and sends: its answer is of that volume, or -ESTALE. */
struct mark {
	char id[UUID_TEXT]; /* the generation, or the UUID where there is none */
	size_t id_len;
	uint64_t highest_slice;
	struct hash128 volume;
};

enum { SLOT_NONE = -2 };
struct args {
	int n;
	const char *v[ARGS_MAX + 3];
	size_t len[ARGS_MAX + 3];
	unsigned used;
	char scratch[1024];
	struct time_ns now;
	int slot; /* -1: changes nothing; SLOT_NONE: none was free in time, nothing is run */
	uint64_t deadline_us; /* of op_begin; 0: of the call that runs it */
};

static inline struct meta_redis *redis_engine(struct meta *m)
{
	return container_of(m, struct meta_redis, base);
}

void args_init(struct args *a, const struct meta_redis *mr);
void args_bytes(struct args *a, const void *p, size_t n); /* kept by pointer */
void args_text(struct args *a, const char *s);		  /* kept by pointer */
void args_u64(struct args *a, uint64_t v);		  /* decimal */
void args_i64(struct args *a, int64_t v);
void args_be64(struct args *a, uint64_t v);
void args_time(struct args *a, struct time_ns t);
void args_now(struct args *a);
/* 4 bytes for each group of the caller, the first is his own; kept in buf (str_error tells) */
void args_gids(struct args *a, const struct meta_ctx *c, struct str *buf);
/* a changing script: waits for a slot (for as long as an operation may take, or until then; without
 * one the script is not run: -ETIMEDOUT), adds token, number and now; op_end gives the slot back */
void op_begin(struct meta_redis *mr, struct args *a);
void op_begin_until(struct meta_redis *mr, struct args *a, uint64_t deadline_us);
void op_end(struct meta_redis *mr, struct args *a);

uint64_t op_deadline(const struct meta_redis *mr);
/* what the network or the server did becomes -EIO; answers of scripts stay */
int op_error(int r);
/* for data: readers and writers wait longer than those who look for names */
uint64_t data_deadline(const struct meta_redis *mr);

/* -EIO: the volume is gone */
int mark_take(struct meta_redis *mr, struct mark *ret);
/* the key that tells beside _gen: without a generation it is the setting */
const char *mark_key(const struct mark *k);
/* gen, setting: what the database says now under _gen and mark_key */
bool mark_fits(const struct mark *k, const struct redis_reply *gen,
	       const struct redis_reply *setting);
/* runs a script once, over the operations' connections; -ESTALE: the volume is not the mark's */
int op_eval_once(struct meta_redis *mr, enum script s, struct args *a, uint64_t deadline_us,
		 const struct mark *k, struct redis_reply **ret);
/* with the volume as it is now: -EIO when it is gone or does not come to rest */
int op_eval_until(struct meta_redis *mr, enum script s, struct args *a, uint64_t deadline_us,
		  struct mark *ret_mark, struct redis_reply **ret);
int op_eval(struct meta_redis *mr, enum script s, struct args *a, struct redis_reply **ret);
/* the record of an inode under a key of that kind ("i", "s"): element 0 of the reply */
int op_get(struct meta_redis *mr, const char *kind, uint64_t inode, struct redis_reply **ret);
/* a command that may be done twice, its words given */
int op_cmdv(struct meta_redis *mr, int argc, const char **argv, const size_t *lens,
	    struct redis_reply **ret);
/* over the engine's own connections; errors of the network stay */
int own_eval(struct meta_redis *mr, enum script s, struct args *a, uint64_t deadline_us,
	     struct redis_reply **ret);

/* parts of replies; -EIO when they are not what the script says */
int reply_attr(const struct redis_reply *r, struct attr *ret);
int reply_be64(const struct redis_reply *r, uint64_t *ret);
bool reply_is(const struct redis_reply *r, const char *text);

/* a number from a pool (of which a batch is taken when it is empty), and the volume it is of */
int id_pool_take(struct meta_redis *mr, struct id_pool *pool, uint64_t *ret,
		 struct hash128 *ret_volume);
/* nextchunk, as a script answered it */
void nextchunk_seen(struct meta_redis *mr, const struct redis_reply *text);
/* An operation was refused: unless the volume moved since k was taken, it is looked at (and its
 * generation changed, if the database went back): a heartbeat, now. */
int generation_check(struct meta_redis *mr, const struct mark *k, uint64_t deadline_us);

/* what removal scripts answer */
enum { REMOVED_LEN = 6 }; /* elements of one */
struct removed {
	const char *what;
	uint8_t type;
	uint64_t inode, length, hour;
	bool owned; /* uid and gid are known */
	uint32_t uid, gid;
};
int reply_removed(const struct redis_reply *r, size_t at, struct removed *ret);
/* what follows from it: statistics of parent (its entry went) and of the hour, deletes */
void removed_done(struct meta_redis *mr, uint64_t parent, const struct removed *d);

/* Changes of a directory's statistics, added up and flushed each second. What is told is what a
 * script answered, never what was read beside it: others change the same files. */
void stat_add(struct meta_redis *mr, uint64_t dir, int64_t length, int64_t space, int64_t inodes);
/* dirs: those that name it, when several do, as the script that resized it found them (prelude.lua:
 * named) */
void stat_resized(struct meta_redis *mr, const struct attr *now, uint64_t before,
		  const struct redis_reply *dirs);
int stat_flush(struct meta_redis *mr, uint64_t deadline_us);
/* what could not be told is given up, with the table */
void stat_drop(struct meta_redis *mr);
int stat_begin(struct meta_redis *mr, uint64_t deadline_us);
void *stat_main(void *arg);

/* Our session had lapsed: what others took from it is taken again where it can be. An error: not
 * all could be asked for, again */
int session_restore(struct meta_redis *mr, uint64_t deadline_us);

/* sessions of dead clients */
void stale_clean(struct meta_redis *mr, uint64_t deadline_us);
/* stored results of sessions that are no more; maybe: only when there are surely some */
void stale_sweep(struct meta_redis *mr, bool maybe, uint64_t deadline_us);
/* seen: "", or the session's expiry: nothing is done, and -EAGAIN, when it is another by now (or
 * the session is gone) */
/* gives up all locks of session sid */
int session_unlock(struct meta_redis *mr, uint64_t sid, const char *seen, uint64_t deadline_us);
/* deletes the files without a name that session sid has open; the last close of one */
int sustained_end(struct meta_redis *mr, uint64_t sid, const char *seen);
int sustained_delete(struct meta_redis *mr, uint64_t sid, const char *seen, uint64_t inode);
int session_leave(struct meta_redis *mr, uint64_t sid, const char *seen, uint64_t deadline_us);

/* deletes the data of a file whose record is gone, later */
void delete_later(struct meta_redis *mr, uint64_t inode, uint64_t length);
/* the same now: of a file chunk by chunk (member: its name in delfiles), of several that have few
 * chunks at once. 0, or the first error; what failed is found again by the hourly jobs */
struct dead_file {
	uint64_t inode, length;
};
struct gone_slice {
	uint64_t id;
	uint32_t size;
};
int delete_file(struct meta_redis *mr, uint64_t inode, uint64_t length, const char *member);
int delete_chunk(struct meta_redis *mr, uint64_t inode, uint32_t index, bool *ret_cut);
int files_delete(struct meta_redis *mr, const struct dead_file *v, size_t n);
/* objects of slices, {id, size, …} from element from on, and what was counted of them */
int slices_gone(struct meta_redis *mr, const struct redis_reply *list, size_t from);
/* only what was counted */
int slices_counted(struct meta_redis *mr, const struct gone_slice *v, size_t n);
/* deletes slices whose last reference went and whose data did not; now, or by the deleting
 * threads */
int slices_clean(struct meta_redis *mr);
void slices_clean_later(struct meta_redis *mr);

/* Background jobs (meta_redis_jobs.c, jobs.h). job_gate: this client is the first in this period
 * (clean-ups agree by nothing else) */
bool job_gate(struct meta_redis *mr, const char *stamp, int64_t now_sec, uint64_t period_us,
	      uint64_t deadline_us);
void *jobs_main(void *arg);
void jobs_hourly(struct meta_redis *mr);
/* hourly: slices without references, and data of files deleted longer than age_sec ago, by clients
 * that did not get to it */
void files_clean(struct meta_redis *mr, uint64_t age_sec, uint64_t deadline_us);

/* Chunks of a file in [first, end) that have a list, in order; what their keys hold are lists, or
 * -EIO. Over a connection of the caller's, or over one of its own */
struct lists {
	uint32_t *v, n, cap;
};
int lists_find(struct meta_redis *mr, struct redis_conn *c, uint64_t deadline_us, uint64_t inode,
	       uint32_t first, uint32_t end, struct lists *ret);
int lists_find_alone(struct meta_redis *mr, uint64_t inode, uint32_t first, uint32_t end,
		     struct lists *ret);
void lists_fini(struct lists *l);

/* the lists of chunks [index, index + n), with the attributes they belong to */
int lists_read(struct meta_redis *mr, uint64_t inode, uint32_t index, uint32_t n,
	       uint64_t deadline_us, struct chunk_list *ret);
/* the volume that the slice's number is of; -ESTALE: there is another one by now */
int slice_mark(struct meta_redis *mr, const struct slice *s, struct mark *ret);
/* the objects of a slice, and what was counted of it */
int slice_delete(struct meta_redis *mr, uint64_t id, uint32_t size);

/* Compaction (meta_redis_compact.c). written, read: what was seen tells whether a list is too long;
 * it becomes shorter soon, or, when it is far too long, before written returns */
int compactor_start(struct meta_redis *mr);
/* what runs is ended; nothing begins any more */
void compactor_stop(struct meta_redis *mr);
void compactor_free(struct meta_redis *mr);
void compact_written(struct meta_redis *mr, uint64_t inode, uint32_t index, uint64_t records);
void compact_read(struct meta_redis *mr, uint64_t inode, const struct chunk_list *l);
int redis_compact(struct meta *m, uint64_t inode, uint32_t index, uint64_t *ret_freed);

/* meta_redis_remove.c: the entry and all below it; hour: through the trash. force: flags do not
 * protect */
int redis_remove_tree(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name,
		      bool skip_trash, struct meta_progress *p);
/* all in a directory, past the trash; the directory stays */
int remove_below(struct meta_redis *mr, uint64_t dir, bool force, struct meta_progress *p);
/* a directory of this name that is empty */
int remove_dir(struct meta_redis *mr, const struct meta_ctx *c, uint64_t parent, const char *name,
	       bool skip_trash);
/* meta_redis_clone.c */
int redis_clone(struct meta *m, const struct meta_ctx *c, uint64_t src, uint64_t parent,
		const char *name, bool preserve, uint32_t umask, struct meta_progress *p);
/* a detached directory and all below it; one that is no longer detached stays */
int detached_clean(struct meta_redis *mr, uint64_t inode, struct meta_progress *p);

/* meta_redis_range.c */
int redis_next_chunk(struct meta *m, uint64_t inode, uint32_t first, uint32_t end, uint32_t *ret);
int redis_fallocate(struct meta *m, const struct meta_ctx *c, uint64_t inode, int mode,
		    uint64_t off, uint64_t len, struct attr *ret);
int redis_copy_file_range(struct meta *m, const struct meta_ctx *c, uint64_t in, uint64_t off_in,
			  uint64_t out, uint64_t off_out, uint64_t len, uint64_t *ret_copied,
			  struct attr *ret_out);

/* meta_redis_name.c */
int redis_lookup(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name,
		 uint64_t *ret, struct attr *ret_attr);
int redis_mknod(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name,
		uint8_t type, uint32_t mode, uint32_t umask, uint32_t rdev, const char *target,
		uint64_t *ret, struct attr *ret_attr);
int redis_link(struct meta *m, const struct meta_ctx *c, uint64_t inode, uint64_t parent,
	       const char *name, struct attr *ret);
int redis_unlink(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name);
int redis_rmdir(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name);
int redis_rename(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name,
		 uint64_t new_parent, const char *new_name, unsigned flags, uint64_t *ret,
		 struct attr *ret_attr);
int redis_readlink(struct meta *m, uint64_t inode, char **ret);
int redis_tmpfile(struct meta *m, const struct meta_ctx *c, uint64_t parent, uint32_t mode,
		  uint32_t umask, uint64_t *ret, struct attr *ret_attr);
/* meta_redis_dir.c */
int redis_readdir(struct meta *m, uint64_t inode, bool with_attr, struct meta_dir **ret);
int redis_list_page(struct meta *m, struct meta_list *l);
/* meta_redis_attr.c */
int redis_getattr(struct meta *m, uint64_t inode, struct attr *ret);
int redis_setattr(struct meta *m, const struct meta_ctx *c, uint64_t inode, unsigned set,
		  const struct attr *want, struct attr *ret);
int redis_getxattr(struct meta *m, uint64_t inode, const char *name, char **ret, size_t *ret_len);
int redis_setxattr(struct meta *m, uint64_t inode, const char *name, const void *value, size_t len,
		   int flags);
int redis_listxattr(struct meta *m, uint64_t inode, char **ret, size_t *ret_len);
int redis_removexattr(struct meta *m, uint64_t inode, const char *name);
int redis_touch_atime(struct meta *m, uint64_t inode, struct attr *a);
/* meta_redis_acl.c */
int redis_getfacl(struct meta *m, uint64_t inode, enum acl_type type, struct acl *ret);
int redis_setfacl(struct meta *m, const struct meta_ctx *c, uint64_t inode, enum acl_type type,
		  const struct acl *rule, struct attr *ret);
/* meta_redis_data.c */
int redis_open(struct meta *m, const struct meta_ctx *c, uint64_t inode, int flags,
	       struct chunk_list *ret);
int redis_close(struct meta *m, uint64_t inode);
int redis_read(struct meta *m, uint64_t inode, uint32_t index, uint32_t n, struct chunk_list *ret);
int redis_write(struct meta *m, uint64_t inode, uint32_t index, const struct slice *s,
		struct time_ns mtime, struct attr *ret);
int redis_new_slice(struct meta *m, uint64_t *ret, struct hash128 *ret_volume);
/* meta_redis_lock.c */
int redis_flock(struct meta *m, uint64_t inode, uint64_t owner, uint32_t type);
int redis_setlk(struct meta *m, uint64_t inode, uint64_t owner, const struct meta_lock *l);
int redis_getlk(struct meta *m, uint64_t inode, uint64_t owner, struct meta_lock *l);
/* meta_redis_quota.c, meta_redis_quota_set.c */
int redis_statfs(struct meta *m, uint64_t inode, struct meta_statfs *ret);
int redis_quota_set(struct meta *m, const struct quota *q);
int redis_quota_get(struct meta *m, enum quota_kind kind, uint64_t id, struct quota *ret);
int redis_quota_list(struct meta *m, enum quota_kind kind, struct quota **ret, size_t *ret_n);
int redis_quota_delete(struct meta *m, enum quota_kind kind, uint64_t id);
int redis_quota_check(struct meta *m, enum quota_kind kind, uint64_t id, bool repair,
		      struct quota *ret_told, struct quota *ret, struct meta_progress *p);
/* meta_redis_truncate.c */
int redis_truncate(struct meta *m, const struct meta_ctx *c, uint64_t inode, uint64_t length,
		   bool through_handle, struct attr *ret);
/* meta_redis_session.c */
int redis_start(struct meta *m, struct str *err);
void redis_stop(struct meta *m);

#endif
