/* SPDX-License-Identifier: Apache-2.0 */
/* Which chunks of a file have a list: each is asked for when there are not too many, else a scan of
 * the database finds them. For what touches more keys than one script may. Any thread that may
 * block. */
#include "client/meta/meta_redis.h"

#include <inttypes.h>

#include "common/clock.h"

enum { PROBE_MAX = 10000, PROBE_BATCH = 1000 };

static int list_add(struct lists *l, uint32_t index)
{
	if (l->n == l->cap) {
		uint32_t cap = l->cap ? l->cap * 2 : 64;
		uint32_t *p = reallocarray(l->v, cap, sizeof(*p));

		if (!p)
			return -ENOMEM;
		l->v = p;
		l->cap = cap;
	}
	l->v[l->n++] = index;
	return 0;
}

static int lists_scan(struct meta_redis *mr, struct redis_conn *c, uint64_t deadline,
		      uint64_t inode, uint32_t first, uint32_t end, struct lists *l)
{
	char cursor[24] = "0", match[64];
	size_t skip = strlen(mr->prefix) + 1;

	skip += (size_t)snprintf(match, sizeof(match), "%" PRIu64 "_", inode);
	do {
		_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
		const struct redis_reply *page;
		const char *next;
		size_t n;
		int r = redis_cmd(c, deadline, &reply, "SCAN %s MATCH %sc%s* COUNT 10000", cursor,
				  mr->prefix, match);

		if (r)
			return r;
		page = reply_at(reply, 1);
		next = page ? reply_text(reply_at(reply, 0), &n) : NULL;
		if (!next || n >= sizeof(cursor))
			return -EIO;
		memcpy(cursor, next, n + 1);
		for (size_t i = 0; !r && i < reply_len(page); i++) {
			const char *key = reply_text(reply_at(page, i), &n);
			unsigned long index = key && n > skip ? strtoul(key + skip, NULL, 10) : 0;

			if (key && n > skip && index >= first && index < end)
				r = list_add(l, (uint32_t)index);
		}
		if (r)
			return r;
	} while (strcmp(cursor, "0") != 0);
	return 0;
}

static int u32_cmp(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

/* SCAN may name a key twice */
static void lists_unique(struct lists *l)
{
	uint32_t kept = 0;

	if (l->n)
		qsort(l->v, l->n, sizeof(*l->v), u32_cmp);
	for (uint32_t i = 0; i < l->n; i++) {
		if (!kept || l->v[kept - 1] != l->v[i])
			l->v[kept++] = l->v[i];
	}
	l->n = kept;
}

/* lengths of lists: the pipelined LLEN of n chunks; those that are there stay in v */
static int probe_batch(struct meta_redis *mr, struct redis_conn *c, uint64_t deadline,
		       uint64_t inode, const uint32_t *chunks, uint32_t n, uint32_t *v,
		       uint32_t *kept)
{
	int r = 0;

	for (uint32_t i = 0; i < n && !r; i++)
		r = redis_append(c, "LLEN %sc%llu_%lu", mr->prefix, (unsigned long long)inode,
				 (unsigned long)chunks[i]);
	if (r)
		return r; /* a connection that owes answers is closed */
	for (uint32_t i = 0; i < n; i++) {
		_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
		int one = redis_next(c, deadline, &reply);

		if (one == -ECONNRESET || one == -ETIMEDOUT)
			return one;
		r = r ? r : one;
		if (!one && reply_int(reply) > 0)
			v[(*kept)++] = chunks[i];
	}
	return r;
}

int lists_find(struct meta_redis *mr, struct redis_conn *c, uint64_t deadline_us, uint64_t inode,
	       uint32_t first, uint32_t end, struct lists *ret)
{
	uint32_t kept = 0;
	int r = 0;

	ret->n = 0;
	if (first >= end)
		return 0;
	if (end - first > PROBE_MAX) {
		r = lists_scan(mr, c, deadline_us, inode, first, end, ret);
		lists_unique(ret);
	} else {
		for (uint32_t i = first; i < end && !r; i++)
			r = list_add(ret, i);
	}
	for (uint32_t i = 0; !r && i < ret->n; i += PROBE_BATCH)
		r = probe_batch(mr, c, deadline_us, inode, ret->v + i,
				MIN(ret->n - i, (uint32_t)PROBE_BATCH), ret->v, &kept);
	ret->n = kept;
	return r;
}

int lists_find_alone(struct meta_redis *mr, uint64_t inode, uint32_t first, uint32_t end,
		     struct lists *ret)
{
	uint64_t deadline = op_deadline(mr);
	struct redis_conn *c;
	int r = -ECONNRESET;

	while ((r == -ECONNRESET || r == -ETIMEDOUT || r == -EAGAIN) && clock_left(deadline)) {
		r = redis_acquire(mr->redis, deadline, &c);
		if (r)
			break;
		r = lists_find(mr, c, deadline, inode, first, end, ret);
		redis_release(c);
	}
	return op_error(r);
}

/* those nearby are asked for, and only when there is none the database is gone through */
int redis_next_chunk(struct meta *m, uint64_t inode, uint32_t first, uint32_t end, uint32_t *ret)
{
	struct meta_redis *mr = redis_engine(m);
	uint32_t near = end - first > PROBE_MAX ? first + PROBE_MAX : end;
	struct lists l = {0};
	int r = lists_find_alone(mr, inode, first, near, &l);

	if (!r && l.n == 0 && near < end)
		r = lists_find_alone(mr, inode, near, end, &l);
	if (!r)
		*ret = l.n ? l.v[0] : end;
	lists_fini(&l);
	return r;
}

void lists_fini(struct lists *l)
{
	free(l->v);
	*l = (struct lists){0};
}
