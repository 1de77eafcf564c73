/* SPDX-License-Identifier: Apache-2.0 */
/* What this mount knows of inodes beyond the kernel's own caches. Attributes themselves are cached
 * by the kernel, for the time it was given; this table keeps what must outlive that:
 *
 *	order			an answer of the metadata engine that was asked for before a newer
 *				one, or before a change made here, is stale and must not be passed
 *				on (to readers, or to the kernel by a directory snapshot)
 *	attributes		of the newest answer, and of a directory as a change of its names
 *				left it, which the kernel forgets with each such change and asks for
 *				before the next; only as long as the kernel might keep them itself
 *	identity of pages	the file version (inode, ctime, mtime, length) whose bytes the
 *				kernel's page cache may hold
 *
 * Bounded: the inode that was used longest ago is forgotten, which costs a dropped page cache at
 * its next open. Thread-safe. */
#ifndef STOKE_CLIENT_ATTRCACHE_H
#define STOKE_CLIENT_ATTRCACHE_H

#include "client/meta/attr.h"

struct attrcache;

/* max: inodes remembered, at least 1. 0 or -ENOMEM */
int attrcache_new(size_t max, struct attrcache **ret);
void attrcache_free(struct attrcache *c);

/* An answer about inode that was asked for at asked_us (before the question left) is here: true
 * when nothing newer is known. */
bool attrcache_seen(struct attrcache *c, uint64_t inode, uint64_t asked_us);
/* this mount changed the inode (its attributes, its data, or the names in it) just now */
void attrcache_changed(struct attrcache *c, uint64_t inode, uint64_t now_us);
/* true when this mount changed the inode at or after since_us */
bool attrcache_changed_since(struct attrcache *c, uint64_t inode, uint64_t since_us);

/* A change of the names in directory inode begins, and ends: a is what it left (NULL: not known),
 * of a question asked at asked_us. It is kept unless another change of the directory began
 * meanwhile. */
uint64_t attrcache_names_begin(struct attrcache *c, uint64_t inode);
void attrcache_names_end(struct attrcache *c, uint64_t inode, uint64_t token, const struct attr *a,
			 uint64_t asked_us, uint64_t now_us);
/* The newest answer about an inode is kept too: a, asked for at asked_us and seen by
 * attrcache_seen. */
void attrcache_keep(struct attrcache *c, uint64_t inode, const struct attr *a, uint64_t asked_us);
/* this mount changed inodes that it cannot name just now (who loses a name): answers up to now are
 * kept no longer */
void attrcache_changed_some(struct attrcache *c, uint64_t now_us);
/* one of the directories changed that nobody can name: none that is kept counts any more */
void attrcache_dirs_forget(struct attrcache *c, uint64_t now_us);
/* true: *ret is what was kept, asked for at *ret_asked_us */
bool attrcache_dir(struct attrcache *c, uint64_t inode, struct attr *ret, uint64_t *ret_asked_us);

/* An open, or who got a lock, saw attributes a: true when the kernel's pages, if it has some, are
 * of this very version. Else they are to be dropped, and are of version a then: *ret_drop is for
 * attrcache_pages_dropped once that has happened. Until then nobody is told that they match: two
 * who ask at once would be answered in any order, and one would read what the other has not dropped
 * yet. ret_drop NULL: there is nothing to be dropped. */
bool attrcache_pages_match(struct attrcache *c, uint64_t inode, const struct attr *a,
			   uint64_t *ret_drop);
void attrcache_pages_dropped(struct attrcache *c, uint64_t inode, uint64_t drop);
/* true unless a is the version that is known; remembers nothing */
bool attrcache_pages_other(struct attrcache *c, uint64_t inode, const struct attr *a);
/* The length that the kernel knows of: set with the version, and grown by what was written; false:
 * not known */
bool attrcache_length(struct attrcache *c, uint64_t inode, uint64_t *ret);
void attrcache_grew(struct attrcache *c, uint64_t inode, uint64_t end);
/* the times of a known version are a's from now on */
void attrcache_times(struct attrcache *c, uint64_t inode, const struct attr *a);
/* the pages' version is unknown from now on (data changed here) */
void attrcache_pages_forget(struct attrcache *c, uint64_t inode);

/* The volume became another one, or an older one of itself: answers that were asked for up to now
 * are stale, and no version of pages is known. */
void attrcache_volume_moved(struct attrcache *c, uint64_t now_us);

#endif
