/* SPDX-License-Identifier: Apache-2.0 */
/* Open block files that were used lately, so that a hot block costs no open() and can be answered
 * without a disk thread. Bounded; any thread. */
#ifndef STOKE_CACHED_FILES_H
#define STOKE_CACHED_FILES_H

#include "common/blob.h"
#include "common/block/key.h"

struct files;

/* at most max files; 0 or -ENOMEM */
int files_new(unsigned max, struct files **ret);
void files_free(struct files *f);
/* a reference, or NULL */
struct blob_file *files_get(struct files *f, const struct block_key *k);
/* keeps a reference of its own to file; the one used longest ago may go. Without memory it keeps
 * nothing. */
void files_put(struct files *f, const struct block_key *k, struct blob_file *file);
/* the block is being removed, or (NULL) all of them */
void files_drop(struct files *f, const struct block_key *k);

/* all whose file was made with this arg (blob.h), and what waits to be closed. Closing waits for
 * the disk */
void files_drop_of(struct files *f, const void *arg);
/* file has no reference left, and here is not the place to wait for its disk: until the next
 * files_close. Never waits */
void files_later(struct files *f, struct blob_file *file);
/* closes those that were made with arg (NULL: all). Waits for the disk */
void files_close(struct files *f, const void *arg);

#endif
