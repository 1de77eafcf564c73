/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes, extended attributes, and how full the volume is. Any thread that may block. */
#include "client/meta/meta_redis.h"

#include "client/meta/meta_redis_quota.h"

#include "common/clock.h"

int redis_getattr(struct meta *m, uint64_t inode, struct attr *ret)
{
	struct meta_redis *mr = redis_engine(m);
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	uint64_t begin = clock_us();
	int r = op_get(mr, "i", inode, &reply);

	metric_observe_us(mr->seconds[OP_GETATTR], clock_us() - begin);
	if (r)
		return r;
	if (reply_type(reply_at(reply, 0)) == REDIS_NIL)
		return -ENOENT;
	return reply_attr(reply_at(reply, 0), ret);
}

int redis_setattr(struct meta *m, const struct meta_ctx *c, uint64_t inode, unsigned set,
		  const struct attr *want, struct attr *ret)
{
	struct meta_redis *mr = redis_engine(m);
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	_cleanup_(str_fini) struct str gids = STR_INIT;
	bool may_write = false;
	struct args args;
	uint64_t owner;
	int r = 0;

	if (set & (SET_UID | SET_GID))
		r = quota_room_chown(mr, inode, set & SET_UID ? &want->uid : NULL,
				     set & SET_GID ? &want->gid : NULL);
	if (r)
		return r;
	if (c->check && (set & SET_TIMES)) {
		r = meta_access(m, c, inode, ACCESS_WRITE, NULL);
		if (r && r != -EACCES)
			return r;
		may_write = !r;
	}
	args_init(&args, mr);
	op_begin(mr, &args);
	args_u64(&args, inode);
	args_u64(&args, set);
	args_u64(&args, want->mode);
	args_u64(&args, want->uid);
	args_u64(&args, want->gid);
	args_time(&args, want->atime);
	args_time(&args, want->mtime);
	args_u64(&args, want->flags);
	args_u64(&args, c->uid);
	if (c->check)
		args_gids(&args, c, &gids);
	else
		args_text(&args, "");
	args_text(&args, may_write ? "1" : "0");
	args_text(&args, open_is(m, inode) ? "1" : "0");
	r = str_error(&gids);
	if (!r)
		r = op_eval(mr, SC_SETATTR, &args, &reply);
	op_end(mr, &args);
	if (!r)
		r = reply_attr(reply_at(reply, 0), ret);
	if (!r && set & (SET_UID | SET_GID) && !reply_be64(reply_at(reply, 1), &owner)) {
		int64_t space = (int64_t)align4k(ret->type == INODE_FILE ? ret->length : 0);

		quota_owner(mr, (uint32_t)(owner >> 32), (uint32_t)owner, -space, -1);
		quota_owner(mr, ret->uid, ret->gid, space, 1);
	}
	return r;
}

/* a copy of a reply's bytes that ends with a NUL */
static int take_bytes(const char *p, size_t n, char **ret, size_t *ret_len)
{
	char *s = malloc(n + 1);

	if (!s)
		return -ENOMEM;
	memcpy(s, p, n);
	s[n] = '\0';
	*ret = s;
	*ret_len = n;
	return 0;
}

int redis_getxattr(struct meta *m, uint64_t inode, const char *name, char **ret, size_t *ret_len)
{
	struct meta_redis *mr = redis_engine(m);
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	const char *p;
	size_t n;
	int r = redis_once(mr->redis, op_deadline(mr), &reply, "HGET %sx%llu %s", mr->prefix,
			   (unsigned long long)inode, name);

	if (r)
		return op_error(r);
	p = reply_text(reply, &n);
	return p ? take_bytes(p, n, ret, ret_len) : -ENODATA;
}

int redis_setxattr(struct meta *m, uint64_t inode, const char *name, const void *value, size_t len,
		   int flags)
{
	struct meta_redis *mr = redis_engine(m);
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct args args;
	int r;

	args_init(&args, mr);
	op_begin(mr, &args);
	args_u64(&args, inode);
	args_text(&args, name);
	args_bytes(&args, len ? value : "", len);
	args_u64(&args, (uint64_t)flags);
	r = op_eval(mr, SC_SETXATTR, &args, &reply);
	op_end(mr, &args);
	return r;
}

int redis_listxattr(struct meta *m, uint64_t inode, char **ret, size_t *ret_len)
{
	struct meta_redis *mr = redis_engine(m);
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	_cleanup_(str_fini) struct str names = STR_INIT;
	const struct redis_reply *list;
	struct args args;
	struct attr a;
	int r;

	args_init(&args, mr);
	args_u64(&args, inode);
	r = op_eval(mr, SC_LISTXATTR, &args, &reply);
	if (r)
		return r;
	list = reply_at(reply, 1);
	for (size_t i = 0; i < reply_len(list); i++) {
		size_t n;
		const char *p = reply_text(reply_at(list, i), &n);

		if (p && n)
			str_addn(&names, p, n + 1); /* a reply's bytes end with a NUL */
	}
	if (meta_setting(m)->enable_acl && reply_attr(reply_at(reply, 0), &a) == 0)
		acl_names(&a, &names);
	if (str_error(&names))
		return -ENOMEM;
	return take_bytes(str_c(&names), names.len, ret, ret_len);
}

int redis_removexattr(struct meta *m, uint64_t inode, const char *name)
{
	struct meta_redis *mr = redis_engine(m);
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct args args;
	int r;

	args_init(&args, mr);
	op_begin(mr, &args);
	args_u64(&args, inode);
	args_text(&args, name);
	r = op_eval(mr, SC_REMOVEXATTR, &args, &reply);
	op_end(mr, &args);
	return r;
}

int redis_touch_atime(struct meta *m, uint64_t inode, struct attr *a)
{
	struct meta_redis *mr = redis_engine(m);
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct args args;
	int r;

	args_init(&args, mr);
	op_begin(mr, &args);
	args_u64(&args, inode);
	args_text(&args, m->conf.atime == ATIME_STRICT ? "2" : "1");
	r = op_eval(mr, SC_ATIME, &args, &reply);
	op_end(mr, &args);
	return r ? r : reply_attr(reply_at(reply, 0), a);
}
