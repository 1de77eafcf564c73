/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a reader is sequential, and which blocks it will want. One struct readahead per open file
 * handle; pure, not locked.
 *
 * A handle has RA_SESSIONS streams. A read belongs to the stream whose end it lies near; else it
 * starts a new one in place of the one unused for longest. A stream at offset 0, or with a second
 * read near its end, is sequential: it has a window, which starts at one block and doubles with
 * what was read up to max_window. Until then it is random and nothing is fetched that was not asked
 * for. It stays sequential as long as it reads a part of RA_SPARSE of what it passes: random reads
 * of a file of a few hundred MiB often come to lie near one another. */
#ifndef STOKE_CLIENT_READAHEAD_H
#define STOKE_CLIENT_READAHEAD_H

#include "common/base.h"

enum { RA_SESSIONS = 2, RA_SPARSE = 8 };

struct ra_session {
	uint64_t start, end;	    /* of the first in the file, and of the furthest read */
	uint64_t total;		    /* bytes read in sequence */
	uint64_t window;	    /* 0: random so far */
	uint64_t ahead_from, ahead; /* what was planned ahead without a gap */
	/* bit i of entered: block top - i was planned as a current one (top: in blocks) */
	uint64_t top, entered;
	uint64_t used; /* tick of the last read; 0: free */
};
struct readahead {
	uint32_t block_size;
	uint64_t max_window; /* 0: never reads ahead */
	uint64_t tick;
	struct ra_session session[RA_SESSIONS];
};

struct ra_range {
	uint64_t off, len;
};
struct ra_plan {
	bool random; /* fetch the range asked for alone */
	/* the blocks that this read enters and that were not planned ahead; len 0: none */
	struct ra_range now;
	/* blocks behind them that were not planned yet; len 0: none */
	struct ra_range ahead;
};

/* block_size: a power of two. A max_window below one block turns reading ahead off */
void readahead_init(struct readahead *ra, uint32_t block_size, uint64_t max_window);
/* another largest window from now on (many streams share one pool); at least one block, nothing
 * where reading ahead is off */
void readahead_limit(struct readahead *ra, uint64_t max_window);
/* A read of [off, off + len) of a file of length bytes, len > 0. Ranges begin at multiples of the
 * block size and end at one or at the end of the file. At most budget bytes (rounded down to
 * blocks) are planned ahead now; what was left out is planned by a later read. */
void readahead_plan(struct readahead *ra, uint64_t off, uint32_t len, uint64_t length,
		    uint64_t budget, struct ra_plan *ret);

#endif
