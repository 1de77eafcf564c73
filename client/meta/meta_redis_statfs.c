/* SPDX-License-Identifier: Apache-2.0 */
/* How full the volume is, and how full it looks below a directory with quotas above it. Any thread
 * that may block. */
#include "client/meta/quotas.h"

struct clamp {
	struct meta_redis *mr;
	struct meta_statfs *s;
	struct amount used; /* of the lowest quota */
	bool any;
};

/* a quota that more is used of than it allows shows as full */
static struct amount shown_used(const struct quota_entry *e)
{
	return (struct amount){MAX(e->used.space + e->flying.space + e->fresh.space, 0),
			       MAX(e->used.inodes + e->flying.inodes + e->fresh.inodes, 0)};
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

int redis_statfs(struct meta *m, uint64_t inode, struct meta_statfs *ret)
{
	struct meta_redis *mr = redis_engine(m);
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	int64_t used, inodes;
	int r = redis_once(mr->redis, op_deadline(mr), &reply, "MGET %susedSpace %stotalInodes",
			   mr->prefix, mr->prefix);

	if (r)
		return op_error(r);
	if (reply_len(reply) != 2)
		return -EIO;
	used = reply_int(reply_at(reply, 0));
	inodes = reply_int(reply_at(reply, 1));
	meta_fill_statfs(m, used > 0 ? (uint64_t)used : 0, inodes > 0 ? (uint64_t)inodes : 0, ret);
	if (inode)
		quota_clamp(mr, inode, ret);
	return 0;
}
