/* SPDX-License-Identifier: Apache-2.0 */
/* The engine in memory, for tests: the same rules as the scripts of the Redis engine, on plain
 * structs. Private to client/meta. */
#ifndef STOKE_CLIENT_META_META_MEM_H
#define STOKE_CLIENT_META_META_MEM_H

#include "client/meta/engine.h"
#include "common/clock.h"
#include "common/list.h"

struct mem_entry {
	struct list_node link;
	uint8_t type;
	uint64_t inode;
	size_t name_len;
	char name[]; /* NUL behind it */
};

struct mem_parent {
	struct list_node link;
	uint64_t dir;
	int64_t count;
};

struct mem_xattr {
	struct list_node link;
	char *value;
	size_t len;
	char name[];
};

struct mem_chunk {
	struct list_node link;
	uint32_t index;
	size_t n, cap;
	struct slice *slices;
};

struct mem_inode {
	struct hash_node node;
	uint64_t inode;
	struct attr a;
	char *target;
	struct list_node entries, parents, xattrs, chunks;
	size_t n_entries;
};

struct mem_ref {
	struct hash_node node;
	uint64_t slice;
	uint64_t more; /* records beyond the first */
};

struct meta_mem {
	struct meta base;
	struct mtx lock; /* all that follows; never together with the base's */
	struct hashmap inodes;
	struct hashmap refs; /* struct mem_ref: slices that more than one record refers to */
	uint64_t next_inode, next_slice, next_trash;
	struct list_node rules; /* ACLs */
	uint32_t last_rule;
	int64_t used, total;
};

static inline struct meta_mem *mem_engine(struct meta *m)
{
	return container_of(m, struct meta_mem, base);
}

static inline struct time_ns time_now(void)
{
	struct time_ns t;

	clock_real(&t.sec, &t.nsec);
	return t;
}

struct mem_inode *mem_find_locked(struct meta_mem *mm, uint64_t inode) REQUIRES(mm->lock);
struct mem_inode *mem_make_locked(struct meta_mem *mm, uint64_t inode, const struct attr *a)
	REQUIRES(mm->lock);
/* takes the inode out; the caller frees it with mem_inode_free after unlocking */
void mem_take_locked(struct meta_mem *mm, struct mem_inode *i) REQUIRES(mm->lock);
void mem_xattrs_free(struct mem_inode *i);
/* deletes the objects of its slices if data is set, then the inode */
void mem_inode_free(struct meta_mem *mm, struct mem_inode *i, bool data);
struct mem_entry *mem_entry_find(struct mem_inode *dir, const char *name);

/* a directory where something may get a name */
int mem_check_into(const struct mem_inode *dir);
/* an inode to be made in a directory, without its entry. meta_mem_make.c */
struct mem_make {
	const struct meta_ctx *c;
	uint8_t type;
	uint32_t mode, umask, rdev;
	const char *target;
	struct time_ns now;
};
int mem_make_in_locked(struct meta_mem *mm, const struct mem_inode *dir, const struct mem_make *k,
		       struct mem_inode **ret) REQUIRES(mm->lock);
int mem_tmpfile(struct meta *m, const struct meta_ctx *c, uint64_t parent, uint32_t mode,
		uint32_t umask, uint64_t *ret, struct attr *ret_attr);

/* meta_mem_acl.c */
void mem_rules_free(struct meta_mem *mm);
int mem_rule_get_locked(struct meta_mem *mm, uint32_t id, struct acl *ret) REQUIRES(mm->lock);
int mem_rule_number_locked(struct meta_mem *mm, const struct acl *a, uint32_t *ret)
	REQUIRES(mm->lock);
uint16_t mem_rule_mode(const struct acl *a);
void mem_rule_chmod(struct acl *a, uint16_t mode);
/* the ACLs that a new inode gets from its directory, and the mode with them */
int mem_inherit_locked(struct meta_mem *mm, const struct attr *dir, struct attr *a)
	REQUIRES(mm->lock);
int mem_getfacl(struct meta *m, uint64_t inode, enum acl_type type, struct acl *ret);
int mem_setfacl(struct meta *m, const struct meta_ctx *c, uint64_t inode, enum acl_type type,
		const struct acl *rule, struct attr *ret);

int mem_lookup(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name,
	       uint64_t *ret, struct attr *ret_attr);
int mem_mknod(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name,
	      uint8_t type, uint32_t mode, uint32_t umask, uint32_t rdev, const char *target,
	      uint64_t *ret, struct attr *ret_attr);
int mem_link(struct meta *m, const struct meta_ctx *c, uint64_t inode, uint64_t parent,
	     const char *name, struct attr *ret);
int mem_unlink(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name);
int mem_rmdir(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name);
int mem_rename(struct meta *m, const struct meta_ctx *c, uint64_t parent, const char *name,
	       uint64_t new_parent, const char *new_name, unsigned flags, uint64_t *ret,
	       struct attr *ret_attr);
int mem_close(struct meta *m, uint64_t inode);

int mem_truncate(struct meta *m, const struct meta_ctx *c, uint64_t inode, uint64_t length,
		 bool through_handle, struct attr *ret);
int mem_open(struct meta *m, const struct meta_ctx *c, uint64_t inode, int flags,
	     struct chunk_list *ret);
int mem_read(struct meta *m, uint64_t inode, uint32_t index, uint32_t n, struct chunk_list *ret);
int mem_write(struct meta *m, uint64_t inode, uint32_t index, const struct slice *s,
	      struct time_ns mtime, struct attr *ret);
int mem_new_slice(struct meta *m, uint64_t *ret, struct hash128 *ret_volume);
/* meta_mem_range.c */
int mem_fallocate(struct meta *m, const struct meta_ctx *c, uint64_t inode, int mode, uint64_t off,
		  uint64_t len, struct attr *ret);
int mem_copy_file_range(struct meta *m, const struct meta_ctx *c, uint64_t in, uint64_t off_in,
			uint64_t out, uint64_t off_out, uint64_t len, uint64_t *ret_copied,
			struct attr *ret_out);
int mem_ref_add_locked(struct meta_mem *mm, uint64_t slice) REQUIRES(mm->lock);
/* true: that was the last record of it */
bool mem_ref_drop(struct meta_mem *mm, uint64_t slice);
void mem_refs_free(struct meta_mem *mm);
struct mem_chunk *mem_chunk_find(struct mem_inode *i, uint32_t index);
int mem_chunk_append(struct mem_inode *i, uint32_t index, const struct slice *s);

int mem_setattr(struct meta *m, const struct meta_ctx *c, uint64_t inode, unsigned set,
		const struct attr *want, struct attr *ret);
int mem_getxattr(struct meta *m, uint64_t inode, const char *name, char **ret, size_t *ret_len);
int mem_setxattr(struct meta *m, uint64_t inode, const char *name, const void *value, size_t len,
		 int flags);
int mem_listxattr(struct meta *m, uint64_t inode, char **ret, size_t *ret_len);
int mem_removexattr(struct meta *m, uint64_t inode, const char *name);
int mem_touch_atime(struct meta *m, uint64_t inode, struct attr *a);

#endif
