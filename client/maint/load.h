/* SPDX-License-Identifier: Apache-2.0 */
/* Load: a dump (ours or JuiceFS's, JSON) into an empty database. The file is read once, nothing of
 * the tree is kept but the number, parent and link count of each inode and the reference count of
 * each slice (32 bytes each). Counters, link counts, directory statistics and usages are counted
 * anew; numbers that were given before are never given again. The volume has no generation of its
 * own until somebody makes one: caches of the volume that was dumped do not serve it.
 *
 * `setting` comes last: what is half loaded cannot be mounted. Blocks; any thread. */
#ifndef STOKE_CLIENT_MAINT_LOAD_H
#define STOKE_CLIENT_MAINT_LOAD_H

#include "client/maint/json_stream.h"
#include "client/meta/meta.h"
#include "client/maint/numtable.h"
#include "client/meta/scan.h"

struct load_result {
	char *name; /* of the volume; freed by the caller */
	uint64_t inodes, bytes;
	bool secret_removed; /* it has to be given anew */
};

/* -EEXIST: the database is not empty; -EPROTO: the file, and where; -EINTR; errors of Redis; err:
 * one line, which says so when a part was loaded */
int meta_load(const struct scan *s, json_read_fn *read, void *arg, struct meta_progress *p,
	      void (*warn)(void *arg, const char *line), void *warn_arg, struct load_result *ret,
	      struct str *err);

/* --- parts, for load*.c --- */

/* writes, many at once, in order; the first error stays */
struct load_out {
	const struct scan *scan;
	struct redis_conn *conn;
	unsigned pending;
	size_t bytes;
	int err;
	bool wrote;
	char text[160]; /* of the server's error */
};
int load_begin(struct load_out *o, const struct scan *s);
/* waits for what was sent, and gives the connection back */
int load_end(struct load_out *o);
int load_flush(struct load_out *o);
/* key: without prefix; words behind it */
int load_put(struct load_out *o, const char *verb, const char *key, int n, const char *const *word,
	     const size_t *len);
int load_put_text(struct load_out *o, const char *verb, const char *key, const char *a,
		  const char *b);
int load_put_number(struct load_out *o, const char *verb, const char *key, uint64_t field,
		    int64_t value);

/* a directory with a quota, or somebody's */
struct load_quota {
	enum quota_kind kind;
	uint64_t id;
	int64_t max_space, max_inodes, used_space, used_inodes;
	bool seen;
};
struct load_acl {
	struct load_acl *next;
	struct str text; /* as the volume has it */
	uint32_t id;
};

struct load {
	const struct scan *scan;
	struct json_stream *in;
	struct meta_progress *progress;
	void (*warn)(void *arg, const char *line);
	void *warn_arg;
	struct load_out out;
	struct str text; /* scratch */
	char why[128];	 /* what is wrong with the file, "" when it is not JSON */

	struct numtable inodes; /* by inode: v first parent, w links */
	struct numtable refs;	/* by slice and its size: v references */
	struct numtable owners; /* by kind and id: v space, w inodes */
	struct load_quota *quotas;
	size_t n_quotas;
	struct load_acl *acls;
	uint32_t acl_max;
	char *setting, *name;
	bool owner_quotas, secret_removed, has_tree, has_counters;
	/* text fields of Counters, and what was found */
	uint64_t used_space, used_inodes, next_inode, next_chunk, next_session, next_trash;
};

/* load_parts.c: values that are taken out whole */
int load_setting(struct load *l);
int load_counters(struct load *l);
int load_delfiles(struct load *l);
int load_quotas(struct load *l, enum quota_kind kind);
int load_attr(struct load *l, uint64_t *ret_inode, struct attr *ret);
int load_xattrs(struct load *l, uint64_t inode, bool keep);
int load_rule(struct load *l, uint32_t *ret_id);
int load_chunks(struct load *l, uint64_t inode, bool keep);
int load_target(struct load *l, uint64_t inode, bool keep, size_t *ret_len);
struct load_quota *load_quota_of(struct load *l, enum quota_kind kind, uint64_t id);
/* -EPROTO with why */
int load_bad(struct load *l, const char *fmt, ...) _printf_(2, 3);
/* load_tree.c: FSTree, Trash */
int load_tree(struct load *l, bool trash);

#endif
