/* SPDX-License-Identifier: Apache-2.0 */
/* How full the volume is, and how full it looks below a directory with quotas above it. Any thread
 * that may block. */
#include "client/meta/quotas.h"

#include "common/clock.h"

/* df and the desktop must not hang with Redis: then what was read last is shown */
enum { PATIENCE_US = 150000 };

struct clamp {
	struct meta_redis *mr;
	struct meta_statfs *s;
	struct amount used; /* of the lowest quota */
	bool any;
};

/* a quota that more is used of than it allows shows as full */
static struct amount shown_used(const struct quota_entry *e)
{
	int64_t space = e->used.space + e->flying.space + e->fresh.space;
	int64_t inodes = e->used.inodes + e->flying.inodes + e->fresh.inodes;

	space = MAX(space, 0);
	inodes = MAX(inodes, 0);
	return (struct amount){space, inodes};
}

static uint64_t left(int64_t max, int64_t used)
{
	return max > used ? (uint64_t)(max - used) : 0;
}

static bool clamp_dir(void *arg, uint64_t dir)
{
	struct clamp *c = arg;
	struct amount max = {-1, -1}, used = {0};
	const struct quota_entry *e;

	mtx_lock(&c->mr->quotas->lock);
	e = quota_find_locked(c->mr->quotas, QUOTA_DIR, dir);
	if (e) {
		max = e->max;
		used = shown_used(e);
	}
	mtx_unlock(&c->mr->quotas->lock);
	if (e && !c->any) {
		c->used = used;
		c->any = true;
	}
	if (max.space > 0)
		c->s->avail_bytes = MIN(c->s->avail_bytes, left(max.space, used.space));
	if (max.inodes > 0)
		c->s->avail_inodes = MIN(c->s->avail_inodes, left(max.inodes, used.inodes));
	return true;
}

void quota_clamp(struct meta_redis *mr, uint64_t dir, struct meta_statfs *s)
{
	struct clamp c = {.mr = mr, .s = s};

	if (!has_dirs(mr) || quota_way_up(mr, dir, clamp_dir, &c) || !c.any)
		return;
	s->total_bytes = (uint64_t)c.used.space + s->avail_bytes;
	s->used_inodes = (uint64_t)c.used.inodes;
}

static int counters_read(struct meta_redis *mr, uint64_t deadline_us, int64_t *ret_space,
			 int64_t *ret_inodes)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	int r = redis_once(mr->redis, deadline_us, &reply, "MGET %susedSpace %stotalInodes",
			   mr->prefix, mr->prefix);

	if (r)
		return op_error(r);
	if (reply_len(reply) != 2)
		return -EIO;
	*ret_space = reply_int(reply_at(reply, 0));
	*ret_space = MAX(*ret_space, 0);
	*ret_inodes = reply_int(reply_at(reply, 1));
	*ret_inodes = MAX(*ret_inodes, 0);
	__atomic_store_n(&mr->full_space, *ret_space, __ATOMIC_RELAXED);
	__atomic_store_n(&mr->full_inodes, *ret_inodes, __ATOMIC_RELAXED);
	return 0;
}

int redis_statfs(struct meta *m, uint64_t inode, struct meta_statfs *ret)
{
	struct meta_redis *mr = redis_engine(m);
	int64_t space = __atomic_load_n(&mr->full_space, __ATOMIC_RELAXED);
	int64_t inodes = __atomic_load_n(&mr->full_inodes, __ATOMIC_RELAXED);
	bool known = space >= 0 && inodes >= 0;
	uint64_t deadline = op_deadline(mr);
	int r;

	if (known)
		deadline = MIN(deadline, clock_us() + PATIENCE_US);
	r = counters_read(mr, deadline, &space, &inodes);
	if (r && !(known && r == -EIO))
		return r;
	meta_fill_statfs(m, (uint64_t)space, (uint64_t)inodes, ret);
	/* the way up may ask Redis, too */
	if (inode && !r)
		quota_clamp(mr, inode, ret);
	return 0;
}
