/* SPDX-License-Identifier: Apache-2.0 */
/* Who holds descriptors of which blocks' files: an unlinked file frees no space before the last one
 * is closed, so eviction has to wait for it rather than to unlink the next one, too. Any thread. */
#ifndef STOKE_CACHED_PASSED_H
#define STOKE_CACHED_PASSED_H

#include "cached/disk.h"

struct passed;

/* a connection that descriptors went out over; n: how many it holds. Its thread only */
struct passed_holder {
	struct list_node all;
	unsigned n;
};

/* after that long an unlinked file that is still held is no space that will come back, but space
 * that the disk lacks */
enum { PASSED_WAIT_US = 30000000 };

/* 0 or -ENOMEM */
int passed_new(struct passed **ret);
/* nobody holds anything any more. NULL is fine */
void passed_free(struct passed *p);
void passed_holder_init(struct passed_holder *h);
/* one descriptor goes out to h. 0 or -ENOMEM */
int passed_add(struct passed *p, struct passed_holder *h, const struct block_key *k);
/* h closed one; false: it has none */
bool passed_closed(struct passed *p, struct passed_holder *h, const struct block_key *k);
/* h is gone, and all that it held is closed */
void passed_drop(struct passed *p, struct passed_holder *h);
/* The block's file on d was unlinked: its bytes count as d->held while somebody has it. */
void passed_unlinked(struct passed *p, struct disk *d, const struct block_key *k, uint64_t bytes);
/* takes out of every d->held what has been waited for long enough; now and then */
void passed_expire(struct passed *p);

#endif
