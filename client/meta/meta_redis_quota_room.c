/* SPDX-License-Identifier: Apache-2.0 */
/* Whether there is room for a change: the owner's limits, then those of the directories above. What
 * must be known for that is read first, so a volume with limits costs a question more. Any thread.
 * */
#include "client/meta/quotas.h"

#include <inttypes.h>

#include "common/hash.h"

static bool over(const struct quota_entry *e, struct amount more)
{
	if (more.space > 0 && e->max.space > 0 &&
	    e->used.space + e->flying.space + e->fresh.space + more.space > e->max.space)
		return true;
	return more.inodes > 0 && e->max.inodes > 0 &&
	       e->used.inodes + e->flying.inodes + e->fresh.inodes + more.inodes > e->max.inodes;
}

static bool over_id(struct meta_redis *mr, int kind, uint64_t id, struct amount more)
{
	const struct quota_entry *e;
	bool is;

	mtx_lock(&mr->quotas->lock);
	e = quota_find_locked(mr->quotas, kind, id);
	is = e && over(e, more);
	mtx_unlock(&mr->quotas->lock);
	return is;
}

/* more are not looked through for one operation */
enum { LEAST_OF = 256 };

static int64_t left(int64_t max, int64_t used)
{
	return max <= 0 ? INT64_MAX : MAX(max - used, 0);
}

static bool least_of(struct hash_node *n, void *arg)
{
	const struct quota_entry *e = container_of(n, struct quota_entry, node);
	struct amount *least = arg;

	least->space = MIN(least->space,
			   left(e->max.space, e->used.space + e->flying.space + e->fresh.space));
	least->inodes = MIN(least->inodes, left(e->max.inodes, e->used.inodes + e->flying.inodes +
								       e->fresh.inodes));
	return true;
}

/* what the tightest of these kinds has left; nothing when they are too many to say */
static struct amount least_left(struct meta_redis *mr, int first, int last)
{
	struct amount least = {INT64_MAX, INT64_MAX};
	struct quotas *q = mr->quotas;

	mtx_lock(&q->lock);
	for (int k = first; k <= last; k++) {
		if (q->of[k].count > LEAST_OF)
			least = (struct amount){0};
		else
			hashmap_each(&q->of[k], least_of, &least);
	}
	mtx_unlock(&q->lock);
	return least;
}

/* nobody of these kinds can be over */
static bool roomy(struct meta_redis *mr, int first, int last, struct amount more)
{
	struct amount least = least_left(mr, first, last);

	return more.space <= least.space && more.inodes <= least.inodes;
}

void quota_room_text(struct meta_redis *mr, char ret[21])
{
	int64_t room = INT64_MAX;

	ret[0] = '\0';
	if (!has_limits(mr))
		return;
	room = least_left(mr, QUOTA_DIR, has_owners(mr) ? QUOTA_GROUP : QUOTA_DIR).space;
	if (room != INT64_MAX)
		snprintf(ret, 21, "%" PRId64, room);
}

struct climb {
	struct meta_redis *mr;
	struct amount more;
	bool over;
	uint64_t *list; /* collect: dirs with quotas */
	size_t n, cap;
	const struct climb *but; /* not what is on this way too */
	int error;
};

static bool on_way(const struct climb *c, uint64_t dir)
{
	for (size_t i = 0; c && i < c->n; i++) {
		if (c->list[i] == dir)
			return true;
	}
	return false;
}

static bool check_dir(void *arg, uint64_t dir)
{
	struct climb *c = arg;

	if (on_way(c->but, dir))
		return false; /* from here on both ways are one */
	c->over = over_id(c->mr, QUOTA_DIR, dir, c->more);
	return !c->over;
}

static bool collect_dir(void *arg, uint64_t dir)
{
	struct climb *c = arg;
	uint64_t *more;

	if (c->n == c->cap) {
		more = realloc(c->list, (c->cap + 16) * sizeof(*more));
		if (!more) {
			c->error = -ENOMEM;
			return false;
		}
		c->list = more;
		c->cap += 16;
	}
	c->list[c->n++] = dir;
	return true;
}

/* the volume has no room either: that is what JuiceFS says first */
static int no_room(struct meta_redis *mr, struct amount more)
{
	uint64_t capacity, inodes;
	struct meta_statfs s;
	bool stats;

	meta_limits(&mr->base, &capacity, &inodes, &stats);
	if ((capacity || inodes) && !redis_statfs(&mr->base, 0, &s) &&
	    ((capacity && more.space > 0 && (int64_t)s.avail_bytes < more.space) ||
	     (inodes && more.inodes > 0 && (int64_t)s.avail_inodes < more.inodes)))
		return -ENOSPC;
	return -EDQUOT;
}

static int room_dir(struct meta_redis *mr, uint64_t dir, struct amount more)
{
	struct climb c = {.mr = mr, .more = more};
	int r;

	if (!has_dirs(mr) || roomy(mr, QUOTA_DIR, QUOTA_DIR, more))
		return 0;
	r = quota_way_up(mr, dir, check_dir, &c);
	return r ? r : c.over ? no_room(mr, more) : 0;
}

static int room_owner(struct meta_redis *mr, const uint32_t *uid, const uint32_t *gid,
		      struct amount more)
{
	if (!has_owners(mr))
		return 0;
	if ((uid && over_id(mr, QUOTA_USER, *uid, more)) ||
	    (gid && over_id(mr, QUOTA_GROUP, *gid, more)))
		return -EDQUOT;
	return 0;
}

int quota_room_tree(struct meta_redis *mr, uint64_t dir, const struct meta_ctx *c, int64_t space,
		    int64_t inodes)
{
	struct amount more = {space, inodes};
	uint32_t gid;
	struct attr a;
	int r = 0;

	if (!has_limits(mr))
		return 0;
	if (c && has_owners(mr) && !roomy(mr, QUOTA_USER, QUOTA_GROUP, more)) {
		gid = c->gid;
		r = redis_getattr(&mr->base, dir, &a);
		if (r)
			return r == -ENOENT ? 0 : r;
		if (a.mode & S_ISGID)
			gid = a.gid;
		r = room_owner(mr, &c->uid, &gid, more);
	}
	return r ? r : room_dir(mr, dir, more);
}

int quota_room_make(struct meta_redis *mr, uint64_t dir, const struct meta_ctx *c)
{
	return quota_room_tree(mr, dir, c, (int64_t)align4k(0), 1);
}

static int64_t space_of(const struct attr *a)
{
	return (int64_t)align4k(a->type == INODE_FILE ? a->length : 0);
}

int quota_room_link(struct meta_redis *mr, uint64_t inode, uint64_t dir)
{
	struct attr a;
	int r;

	if (!has_dirs(mr))
		return 0;
	r = redis_getattr(&mr->base, inode, &a);
	if (r)
		return r == -ENOENT ? 0 : r;
	return room_dir(mr, dir, (struct amount){space_of(&a), 1});
}

int quota_room_grow(struct meta_redis *mr, uint64_t inode, uint64_t length)
{
	_cleanup_(redis_reply_freep) struct redis_reply *links = NULL;
	struct amount more = {0};
	struct attr a;
	int r;

	if (!has_limits(mr))
		return 0;
	r = redis_getattr(&mr->base, inode, &a);
	if (r)
		return r == -ENOENT ? 0 : r;
	more.space = (int64_t)(align4k(length) - align4k(a.length));
	if (length <= a.length || more.space == 0)
		return 0;
	r = room_owner(mr, &a.uid, &a.gid, more);
	if (r || !has_dirs(mr) || a.nlink == 0)
		return r;
	if (a.parent)
		return room_dir(mr, a.parent, more);
	r = op_error(redis_once(mr->redis, op_deadline(mr), &links, "HGETALL %sp%llu", mr->prefix,
				(unsigned long long)inode));
	for (size_t i = 0; !r && i + 1 < reply_len(links); i += 2) {
		int64_t dir = reply_int(reply_at(links, i)), n = reply_int(reply_at(links, i + 1));

		if (dir > 0 && n > 0)
			r = room_dir(mr, (uint64_t)dir, (struct amount){more.space * n, 0});
	}
	return r;
}

int quota_room_chown(struct meta_redis *mr, uint64_t inode, const uint32_t *uid,
		     const uint32_t *gid)
{
	struct attr a;
	int r;

	if (!has_limits(mr) || !has_owners(mr))
		return 0;
	r = redis_getattr(&mr->base, inode, &a);
	if (r)
		return r == -ENOENT ? 0 : r;
	if (uid && *uid == a.uid)
		uid = NULL;
	if (gid && *gid == a.gid)
		gid = NULL;
	return room_owner(mr, uid, gid, (struct amount){space_of(&a), 1});
}

int quota_room_copy(struct meta_redis *mr, uint64_t in, uint64_t off_in, uint64_t out,
		    uint64_t off_out, uint64_t len)
{
	struct attr a;
	int r;

	if (!has_limits(mr))
		return 0;
	r = redis_getattr(&mr->base, in, &a);
	if (r || a.length <= off_in)
		return r == -ENOENT ? 0 : r;
	return quota_room_grow(mr, out, off_out + MIN(len, a.length - off_in));
}

/* what an entry stands for, and of a directory what is below it; sums: without a list */
static int weigh(struct meta_redis *mr, uint64_t dir, const char *name, bool sums,
		 struct amount *ret, struct quota_weight *w)
{
	struct tree_sum sum = {0};
	struct amount own;
	uint64_t inode;
	struct attr a;
	int r = redis_lookup(&mr->base, NULL, dir, name, &inode, &a);

	if (r)
		return r == -ENOENT ? 0 : r; /* the operation says it */
	own = (struct amount){space_of(&a), 1};
	if (a.type == INODE_DIR) {
		/* what this client did is in the statistics first */
		r = stat_flush(mr, op_deadline(mr));
		if (!r && sums)
			r = tree_sum(mr, inode, false, NULL, &sum);
		else if (!r)
			r = tree_list(mr, inode, QUOTA_LIST_MAX, &sum, &w->list, &w->list_len);
	}
	if (r)
		return r;
	w->known = a.type == INODE_DIR;
	w->space = sum.space;
	w->inodes = sum.inodes;
	*ret = (struct amount){own.space + sum.space, own.inodes + sum.inodes};
	return 0;
}

static bool has_quota(struct meta_redis *mr, uint64_t dir)
{
	bool has;

	mtx_lock(&mr->quotas->lock);
	has = quota_find_locked(mr->quotas, QUOTA_DIR, dir) != NULL;
	mtx_unlock(&mr->quotas->lock);
	return has;
}

/* a quota lies on the way a, but not on b */
static bool only_on(struct meta_redis *mr, const struct climb *a, const struct climb *b)
{
	for (size_t i = 0; i < a->n; i++) {
		if (!on_way(b, a->list[i]) && has_quota(mr, a->list[i]))
			return true;
	}
	return false;
}

int quota_room_move(struct meta_redis *mr, uint64_t from, const char *name, uint64_t to,
		    const char *other_name, bool look, bool sums, struct quota_weight ret[2])
{
	struct climb up = {.mr = mr}, back = {.mr = mr};
	struct amount there = {0}, here = {0};
	int r;

	if (from == to || (!look && !has_dirs(mr)))
		return 0;
	r = quota_way_up(mr, from, collect_dir, &up);
	if (!r)
		r = quota_way_up(mr, to, collect_dir, &back);
	if (!r)
		r = up.error ? up.error : back.error;
	/* the same quotas hold at both ends: nothing is carried from one to another */
	if (r || (!look && !only_on(mr, &up, &back) && !only_on(mr, &back, &up)))
		goto out;
	r = weigh(mr, from, name, sums, &there, &ret[0]);
	if (!r && other_name)
		r = weigh(mr, to, other_name, sums, &here, &ret[1]);
	if (!r) {
		struct climb c = {.mr = mr,
				  .but = &up,
				  .more = {there.space - here.space, there.inodes - here.inodes}};

		r = quota_way_up(mr, to, check_dir, &c);
		if (!r && c.over)
			r = -EDQUOT;
		if (!r && other_name) {
			c = (struct climb){
				.mr = mr,
				.but = &back,
				.more = {here.space - there.space, here.inodes - there.inodes}};
			r = quota_way_up(mr, from, check_dir, &c);
			if (!r && c.over)
				r = -EDQUOT;
		}
	}
out:
	free(up.list);
	free(back.list);
	return r;
}
