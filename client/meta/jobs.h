/* SPDX-License-Identifier: Apache-2.0 */
/* The volume's clean-ups, done now: for commands, and for the background. They block until they are
 * done; each script they run touches few keys, so that Redis never stands still for them. The
 * engine is started, over Redis (else -EOPNOTSUPP), and deletes objects where that is the point:
 * with meta_set_delete, and conf.max_deletes not 0. What one of them begins and does not end is
 * found by the next.
 *
 * p may be NULL; files counts what was done (as said at each), bytes their size. Edges are seconds
 * since 1970: what is older. 0, or the first error; -EINTR: cancelled. */
#ifndef STOKE_CLIENT_META_JOBS_H
#define STOKE_CLIENT_META_JOBS_H

#include "client/meta/meta.h"

/* directories of the trash, one an hour, oldest first; *ret freed by the caller */
struct trash_hour {
	uint64_t inode;
	int64_t sec; /* when it begins */
	char name[16];
};
int meta_trash_hours(struct meta *m, struct trash_hour **ret, size_t *ret_n);
/* removes the hours that began before, with all in them, past the trash; files: entries */
int meta_trash_expire(struct meta *m, int64_t before_sec, struct meta_progress *p);
/* slices that compaction left in the trash before that; files: slices deleted */
int meta_delayed_clean(struct meta *m, int64_t before_sec, struct meta_progress *p);
/* clones that were never finished; files: entries */
int meta_detached_clean(struct meta *m, int64_t before_sec, struct meta_progress *p);
/* data of files deleted before; files: such files */
int meta_deleted_clean(struct meta *m, int64_t before_sec, struct meta_progress *p);
/* slices whose count says that nobody refers to them */
int meta_slices_clean(struct meta *m, struct meta_progress *p);
/* one list of a file that is gone: -EEXIST when it is not */
int meta_chunk_clean(struct meta *m, uint64_t inode, uint32_t index, struct meta_progress *p);
/* one record that no directory names (the caller knows): its data is deleted as any file's */
int meta_inode_clean(struct meta *m, uint64_t inode, struct meta_progress *p);
/* the change log's lines that the setting calls too old or too many */
int meta_log_trim(struct meta *m);
/* Metadata backups: 1: it is this client's turn, and the volume says so now; 0: there is one of
 * this interval; -EFBIG: too many inodes for one an hour; -EBADMSG: nobody can tell when the last
 * one was. */
int meta_backup_due(struct meta *m, uint64_t interval_sec, int64_t now_sec);
/* "2026-11-30T19:17:10Z" or with +HH:MM; -EINVAL. Pure. */
int backup_time(const char *text, int64_t *ret_sec);

#endif
