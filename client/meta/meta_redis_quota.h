/* SPDX-License-Identifier: Apache-2.0 */
/* Quotas of the Redis engine: what operations ask before they change something, and tell behind it.
 * Private to client/meta.
 *
 * Two kinds of sums are kept, as JuiceFS keeps them. A directory's usage is that of all entries
 * below it: a file with two links counts at both, what goes to the trash leaves it at once. It
 * changes with the statistics of directories, and stat_add tells both. A user's or group's is that
 * of the inodes it owns for as long as they are there, also in the trash or without a name:
 * usedSpace and totalInodes are the same sums over everybody. Space is in bytes, in whole pages.
 *
 * Directories move, also by others' hands, so a directory's usage is told with its statistics, and
 * the script that takes both (dirstat.lua) finds the quotas above; a rename carries along what was
 * told until then, and the rest is told where the directory is by then. What is kept in memory is
 * for limits alone.
 *
 * Nothing of this costs anything while the volume has no quotas: each call looks at a flag first.
 * All may block (on Redis, for the parents of a directory that is not known), and are called
 * without locks. */
#ifndef STOKE_CLIENT_META_META_REDIS_QUOTA_H
#define STOKE_CLIENT_META_META_REDIS_QUOTA_H

#include "client/meta/meta.h"

struct meta_redis;
struct quotas;
struct redis_reply;

int quotas_new(struct quotas **ret);
void quotas_free(struct quotas *q);

/* Before a change: 0, -EDQUOT, -ENOSPC when the volume is full too, or the error of reading what
 * must be known for the answer. */

/* something is made in dir by c: one inode and a page */
int quota_room_make(struct meta_redis *mr, uint64_t dir, const struct meta_ctx *c);
/* the same for a whole tree, whose owner is c or (NULL) those that it has */
/* whether anybody has a limit at all: for who would have to sum up first */
bool quota_limited(struct meta_redis *mr);
int quota_room_tree(struct meta_redis *mr, uint64_t dir, const struct meta_ctx *c, int64_t space,
		    int64_t inodes);
/* inode gets one more link, in dir */
int quota_room_link(struct meta_redis *mr, uint64_t inode, uint64_t dir);
/* what the tightest limit of anybody has left: bytes as text, "": there are no limits */
void quota_room_text(struct meta_redis *mr, char ret[21]);
/* a file becomes length long, if it is shorter now */
int quota_room_grow(struct meta_redis *mr, uint64_t inode, uint64_t length);
/* the same by bytes of another one, as far as it has them */
int quota_room_copy(struct meta_redis *mr, uint64_t in, uint64_t off_in, uint64_t out,
		    uint64_t off_out, uint64_t len);
/* inode gets another owner; NULL: that one stays */
int quota_room_chown(struct meta_redis *mr, uint64_t inode, const uint32_t *uid,
		     const uint32_t *gid);
/* What is below a directory that moves, for rename.lua: the directory and all below it (8 bytes
 * each) when they are few, for sums that are those of this moment; else sums. */
struct quota_weight {
	bool known;
	int64_t space, inodes;
	uint8_t *list; /* the caller frees it */
	size_t list_len;
};
/* name in from goes to directory to (other_name of to comes back when exchanged, else NULL). look:
 * the script says that it must be known what is below; sums: not to the moment, lists did not do.
 * ret: of both, as far as somebody looked. */
int quota_room_move(struct meta_redis *mr, uint64_t from, const char *name, uint64_t to,
		    const char *other_name, bool look, bool sums, struct quota_weight ret[2]);

/* Behind a change. */
/* a directory that nobody sees yet: what is done below it counts nowhere, until it is attached */
void quota_detach(struct meta_redis *mr, uint64_t dir);
void quota_attach(struct meta_redis *mr, uint64_t dir);
/* a directory has another parent now */
void quota_reparented(struct meta_redis *mr, uint64_t dir);
/* Entries of dir became so much more (or less): limits see it until it is told. Returns what is
 * above dir, 0: not known. Ended when what is to be told stands where who tells it finds it. */
uint64_t quota_dir_begin(struct meta_redis *mr, uint64_t dir, int64_t space, int64_t inodes);
void quota_dir_end(struct meta_redis *mr);
/* dir has this record now */
void quota_learn(struct meta_redis *mr, uint64_t dir, const struct attr *a);
/* A script that tells usage runs; what it answered (prelude.lua: quota_write), NULL: it failed.
 * behind: it is what quota_dir_begin got. */
void quota_tell(struct meta_redis *mr);
void quota_told(struct meta_redis *mr, const struct redis_reply *list, bool behind);
/* Taken before it was found that nothing is to be told: all that quota_dir_begin got was told,
 * unless there was more since. */
uint64_t quota_mark(struct meta_redis *mr);
void quota_all_told(struct meta_redis *mr, uint64_t mark);
/* inodes of an owner became so much more */
void quota_owner(struct meta_redis *mr, uint32_t uid, uint32_t gid, int64_t space, int64_t inodes);

/* limits and usage as they are in Redis; any: whether there is a quota at all */
int quota_load(struct meta_redis *mr, bool any, uint64_t deadline_us);
/* the same with each sign of life: the parents that are remembered are forgotten, too */
void quota_beat(struct meta_redis *mr, bool any, uint64_t deadline_us);
/* for who has no signs of life: asks whether there is a quota at all */
void quota_look(struct meta_redis *mr, uint64_t deadline_us);
/* somebody changed limits: version is what the database has now under _quotas */
void quota_version(struct meta_redis *mr, uint64_t version, uint64_t deadline_us);
/* what operations told goes to Redis */
void quota_flush(struct meta_redis *mr, uint64_t deadline_us);
bool quota_waiting(struct meta_redis *mr);

/* what a volume's numbers are below dir: no more than the tightest quota on the way up */
void quota_clamp(struct meta_redis *mr, uint64_t dir, struct meta_statfs *s);

/* meta_redis_tree.c: sums over what is below a directory, which is not counted itself */
struct tree_sum {
	int64_t length, space, inodes;
};
/* exact: every entry is looked at; else statistics of directories are used where they are there.
 * -ELOOP: a directory lies in itself. */
int tree_sum(struct meta_redis *mr, uint64_t dir, bool exact, struct meta_progress *p,
	     struct tree_sum *ret);
/* so many directories are summed up by a script, in a few milliseconds */
enum { QUOTA_LIST_MAX = 500 };

/* the same by statistics, and which directories these are: dir first, 8 bytes each; *ret_list is
 * NULL when they are more than most */
int tree_list(struct meta_redis *mr, uint64_t dir, size_t most, struct tree_sum *ret,
	      uint8_t **ret_list, size_t *ret_len);

#endif
