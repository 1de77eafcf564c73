/* SPDX-License-Identifier: Apache-2.0 */
/* Putting right what fsck found, in one step each. Blocks; any thread. */
#ifndef STOKE_CLIENT_MAINT_REPAIR_H
#define STOKE_CLIENT_MAINT_REPAIR_H

#include "client/meta/meta.h"
#include "client/maint/walk.h"

/* The directory as the walk left it: its record gets the number of sub-directories that were
 * counted (attr: the record to begin with, NULL: leave it alone), its statistics what was counted
 * (stat). Also logged in the change log. -EAGAIN: it changed since it was walked, nothing was
 * done. */
int meta_repair_dir(const struct scan *s, const struct setting *set, const struct walk_dir *dir,
		    const struct attr *attr, bool stat);
/* Removes what is no entry from a directory: a field whose value is not one, or whose name cannot
 * be one. *ret_n: how many */
int meta_repair_entries(const struct scan *s, uint64_t inode, size_t *ret_n);
/* Moves references that stand in keys of their own ("k{id}_{size}", volumes of before JuiceFS 1.0)
 * to sliceRef, where everybody looks; before anything that counts references. *ret_n: how many */
int meta_fold_refs(const struct scan *s, size_t *ret_n);
/* sliceRef of a slice goes from was to now, once, however often it is asked. -EAGAIN: it is
 * neither */
int meta_set_ref(const struct scan *s, uint64_t id, uint32_t size, int64_t was, int64_t now);
/* what new blocks of a file, or new files of a directory, get. -EAGAIN: it is gone */
int meta_set_tier(const struct scan *s, const struct setting *set, uint64_t inode, uint8_t tier);

#endif
