/* SPDX-License-Identifier: Apache-2.0 */
/* What both engines share. Private to client/meta.
 *
 * struct meta is embedded first in an engine's struct. Its lock is a leaf: nothing under it talks
 * to Redis. */
#ifndef STOKE_CLIENT_META_ENGINE_H
#define STOKE_CLIENT_META_ENGINE_H

#include "client/meta/meta.h"
#include "common/hashmap.h"
#include "common/mtx.h"
#include "common/redis.h"

enum {
	OPEN_LIST_MAX = 128, /* as many open files are named to a script that removes */
	SETTINGS_MAX = 256,  /* settings kept because somebody may still look at them */
};

struct meta {
	const struct meta_ops *ops;
	struct meta_conf conf; /* texts are copies */
	struct mtx lock;

	/* under the lock */
	struct setting *setting;
	struct setting *retired[SETTINGS_MAX];
	unsigned n_retired;
	struct generation gen;
	bool has_gen;
	struct hash128 volume;
	struct hashmap open;  /* struct open_file by inode */
	struct hashmap rules; /* ACL rules that were seen, of rules_volume */
	struct hash128 rules_volume;
	size_t rules_bytes;
	bool refuse_writes; /* the volume got something that we do not handle */
	bool gone;	    /* no volume there any more, or another one */
	void (*lapsed)(void *arg);
	void *lapsed_arg;

	uint64_t session; /* relaxed atomic; 0: none; another one when it is not ours alone */
	/* set before start, read only afterwards */
	uint64_t root; /* what inode 1 of the caller is: with --subdir another one */
	meta_delete_fn *delete_fn;
	void *delete_arg;
	meta_compact_fn *compact_fn;
	void *compact_arg;
	void (*changed)(void *arg, bool gone);
	void *changed_arg;
	void (*configured)(void *arg, const struct setting *old, const struct setting *s);
	void *configured_arg;
};

static inline uint64_t session_now(const struct meta *m)
{
	return __atomic_load_n(&m->session, __ATOMIC_RELAXED);
}

/* base: conf's texts are copied; s is taken over, also on failure. 0 or -ENOMEM */
int meta_init(struct meta *m, const struct meta_ops *ops, const struct meta_conf *conf,
	      struct setting *s);
void meta_fini(struct meta *m);
/* s takes the place of the setting; false: it is the caller's still (too many already) */
bool meta_swap_setting(struct meta *m, struct setting *s);
void meta_set_generation(struct meta *m, const struct generation *gen);
void meta_set_generation_locked(struct meta *m, const struct generation *gen,
				const struct hash128 *volume) REQUIRES(m->lock);

/* -EIO: the volume is gone; and -EROFS: it may not be written */
int meta_check_there(struct meta *m);
int meta_check_writable(struct meta *m);
/* an operation that not every engine has */
#define META_HAS(m, op) ((m)->ops->op ? 0 : -EOPNOTSUPP)

/* meta_rooted's way back; a record's parent */
uint64_t meta_shown(const struct meta *m, uint64_t inode);
void meta_show(const struct meta *m, uint64_t inode, struct attr *a);
/* r, behind meta_show when that is 0 */
int meta_shown_attr(const struct meta *m, int r, uint64_t inode, struct attr *a);
/* finds or makes conf.subdir; a session is there */
int root_resolve(struct meta *m, struct str *err);

/* ACL rules by number. find: -ENOENT when it was not seen */
int rules_find(struct meta *m, uint32_t id, struct acl *ret);
void rules_add(struct meta *m, const struct hash128 *volume, uint32_t id, const void *p, size_t n);
void rules_fini(struct meta *m);
/* names of the ACLs that a record has, with their NULs */
void acl_names(const struct attr *a, struct str *out);
enum { ACCESS_EXECUTE = 1, ACCESS_WRITE = 2, ACCESS_READ = 4 };
enum { SET_TIMES = SET_ATIME | SET_MTIME | SET_ATIME_NOW | SET_MTIME_NOW };
/* 0 or -EACCES: by the mode, or the ACL that takes its place; inode as the engine has it */
int access_check(struct meta *m, const struct meta_ctx *c, uint64_t inode, const struct attr *a,
		 unsigned want);

/* open files of this client: counts, and which of them have no name any more */
int open_ref(struct meta *m, uint64_t inode);
/* *ret_delete: that was the last one, and the file has no name */
int open_unref(struct meta *m, uint64_t inode, bool *ret_delete);
bool open_is(struct meta *m, uint64_t inode);
/* true: it is open and will be deleted at its last close; false: nobody has it open, delete it
 * now */
bool open_unnamed(struct meta *m, uint64_t inode);
void open_named(struct meta *m, uint64_t inode);
/* inodes of those without a name, freed by the caller; 0 or -ENOMEM */
int open_unnamed_list(struct meta *m, uint64_t **ret, size_t *ret_n);
/* 8 bytes for each open file; false when there are more than OPEN_LIST_MAX */
bool open_list(struct meta *m, uint8_t ret[OPEN_LIST_MAX * 8], size_t *ret_len);

static inline struct time_ns time_of(int64_t sec, uint32_t nsec)
{
	return (struct time_ns){sec, nsec};
}

static inline void be64(uint8_t p[8], uint64_t v)
{
	for (int i = 0; i < 8; i++)
		p[i] = (uint8_t)(v >> (56 - 8 * i));
}

/* the trash's directory of this hour, as it is named now; "" when the trash is off or parent lies
 * in it */
void trash_hour_name(struct meta *m, uint64_t parent, int64_t now_sec, char ret[16]);
/* limits of the volume as they are now */
void meta_limits(struct meta *m, uint64_t *ret_capacity, uint64_t *ret_inodes, bool *ret_dir_stats);
/* modes of fallocate that the volume's format has; else -EOPNOTSUPP, or -EINVAL */
int meta_fallocate_mode(int mode);
/* statfs from the two counters */
void meta_fill_statfs(struct meta *m, uint64_t used, uint64_t inodes, struct meta_statfs *ret);

/* A listing (meta_list.c). Up to loaded_n the entries are complete, up to n their names are known,
 * and names_end says that there are no more; the engine moves these three. */
enum { LIST_BLOCK = 256, LIST_BLOCKS = 24, LIST_AHEAD = 8192 };
struct list_slot {
	uint32_t number, hash;
};
struct meta_list {
	struct meta *m;
	uint64_t inode;
	bool with_attr, show; /* show: as a caller of meta.h sees it */
	size_t n, loaded_n;
	bool names_end;
	struct redis_cursor cursor; /* the engine's */
	size_t damaged;		    /* left out */

	struct mtx lock;
	struct cond loaded;
	bool loading; /* under lock */
	bool end, ahead;
	unsigned refs;
	size_t there, reached; /* atomic, as the three above */
	struct meta_entry *blocks[LIST_BLOCKS];
	struct arena *names;
	struct list_slot *table;
	size_t slots;
};
/* inode as the engine knows it; NULL: no memory */
struct meta_list *dirlist_new(struct meta *m, uint64_t inode, bool with_attr);
/* the names are to be asked for from the start: those that are not complete are forgotten. 0 or
 * -ENOMEM */
int dirlist_again(struct meta_list *l);
/* a copy of e with its name; nothing when the name is there. 0 or -ENOMEM */
int dirlist_add(struct meta_list *l, const struct meta_entry *e);
struct meta_entry *dirlist_entry(struct meta_list *l, size_t i);
/* all of it, in one; l stays the caller's */
int dirlist_whole(struct meta_list *l, struct meta_dir **ret);

#endif
