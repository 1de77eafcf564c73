/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of one open file and their windows. Pure: the caller locks. */
#include "client/readahead.h"

void readahead_init(struct readahead *ra, uint32_t block_size, uint64_t max_window)
{
	assert(block_size > 0 && (block_size & (block_size - 1)) == 0);
	*ra = (struct readahead){.block_size = block_size};
	if (max_window >= block_size)
		ra->max_window = max_window;
}

void readahead_limit(struct readahead *ra, uint64_t max_window)
{
	if (ra->max_window)
		ra->max_window = MAX(max_window, (uint64_t)ra->block_size);
}

static uint64_t block_down(const struct readahead *ra, uint64_t off)
{
	return off & ~((uint64_t)ra->block_size - 1);
}

static uint64_t block_up(const struct readahead *ra, uint64_t off)
{
	return ROUND_UP(off, (uint64_t)ra->block_size);
}

/* Several kernel requests of one stream arrive in any order: a little behind the end is as good as
 * behind it. */
static bool session_near(const struct readahead *ra, const struct ra_session *s, uint64_t off,
			 uint32_t len)
{
	uint64_t slack = MAX((uint64_t)ra->block_size, 4 * (uint64_t)len);

	return s->used && off + MAX(s->window / 4, slack) >= s->end &&
	       off <= s->end + s->window + slack;
}

static struct ra_session *session_find(struct readahead *ra, uint64_t off, uint32_t len)
{
	struct ra_session *best = NULL, *oldest = &ra->session[0];

	for (unsigned i = 0; i < RA_SESSIONS; i++) {
		struct ra_session *s = &ra->session[i];

		if (session_near(ra, s, off, len) && (!best || s->end > best->end))
			best = s;
		if (s->used < oldest->used)
			oldest = s;
	}
	if (!best) {
		best = oldest;
		*best = (struct ra_session){.start = off, .end = off};
	}
	best->used = ++ra->tick;
	return best;
}

static void session_grow(const struct readahead *ra, struct ra_session *s, uint64_t off,
			 uint32_t len)
{
	bool first = s->total == 0;

	s->total += len;
	s->start = MIN(s->start, off);
	s->end = MAX(s->end, off + len);
	if (s->total < (s->end - s->start) / RA_SPARSE) {
		*s = (struct ra_session){
			.start = off, .end = off + len, .total = len, .used = s->used};
		return;
	}
	if (s->window == 0) {
		if (off == 0 || !first)
			s->window = ra->block_size;
	} else if (s->total >= s->window / 2) {
		s->window *= 2;
	}
	s->window = MIN(s->window, ra->max_window);
}

/* true once per block, as long as it is among the last 64; older ones count as entered */
static bool session_enter(struct ra_session *s, uint64_t block)
{
	uint64_t back;

	if (s->entered && block <= s->top) {
		back = s->top - block;
		if (back >= 64 || s->entered >> back & 1)
			return false;
		s->entered |= UINT64_C(1) << back;
		return true;
	}
	back = s->entered ? block - s->top : 64;
	s->entered = (back >= 64 ? 0 : s->entered << back) | 1;
	s->top = block;
	return true;
}

void readahead_plan(struct readahead *ra, uint64_t off, uint32_t len, uint64_t length,
		    uint64_t budget, struct ra_plan *ret)
{
	struct ra_session *s;
	uint64_t last, from, to;

	assert(len > 0);
	*ret = (struct ra_plan){.random = true};
	if (ra->max_window == 0 || off >= length)
		return;
	s = session_find(ra, off, len);
	session_grow(ra, s, off, len);
	if (s->window == 0)
		return;
	ret->random = false;

	last = MIN(block_up(ra, off + len), length);
	for (from = block_down(ra, off); from < last; from += ra->block_size) {
		bool planned = from >= s->ahead_from && from < s->ahead;

		if (!session_enter(s, from / ra->block_size) || planned)
			continue;
		if (ret->now.len == 0)
			ret->now.off = from;
		ret->now.len = MIN(from + ra->block_size, last) - ret->now.off;
	}

	from = MAX(s->ahead, block_up(ra, last));
	to = MIN(block_up(ra, s->end + s->window), length);
	if (from < to && to - from > budget)
		to = MAX(from, block_down(ra, from + budget));
	if (from < to) {
		ret->ahead = (struct ra_range){from, to - from};
		if (from != s->ahead)
			s->ahead_from = from;
		s->ahead = to;
	}
}
