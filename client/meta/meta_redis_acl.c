/* SPDX-License-Identifier: Apache-2.0 */
/* POSIX ACLs. Rules are never changed, so one that was seen is not asked for again. Any thread that
 * may block. */
#include "client/meta/meta_redis.h"

static uint32_t acl_id(const struct attr *a, enum acl_type type)
{
	return type == ACL_ACCESS ? a->access_acl : a->default_acl;
}

/* the record and the rule in one step, for the next time */
static int rule_fetch(struct meta_redis *mr, uint64_t inode, enum acl_type type, struct acl *ret)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct args args;
	struct mark k;
	struct attr a;
	const char *p;
	size_t n;
	int r;

	args_init(&args, mr);
	args_u64(&args, inode);
	args_u64(&args, type);
	r = op_eval_until(mr, SC_GETFACL, &args, op_deadline(mr), &k, &reply);
	if (r)
		return r;
	if (reply_type(reply_at(reply, 0)) == REDIS_NIL)
		return -ENOENT;
	r = reply_attr(reply_at(reply, 0), &a);
	if (r)
		return r;
	if (!acl_id(&a, type))
		return -ENODATA; /* it went in the meantime */
	p = reply_text(reply_at(reply, 1), &n);
	r = p ? acl_decode(p, n, ret) : -EPROTO;
	if (r)
		return r == -EPROTO ? -EIO : r;
	rules_add(&mr->base, &k.volume, acl_id(&a, type), p, n);
	return 0;
}

int redis_getfacl(struct meta *m, uint64_t inode, enum acl_type type, struct acl *ret)
{
	struct meta_redis *mr = redis_engine(m);
	struct attr a;
	int r = redis_getattr(m, inode, &a);

	if (r)
		return r;
	if (!acl_id(&a, type))
		return -ENODATA;
	r = rules_find(m, acl_id(&a, type), ret);
	return r == -ENOENT ? rule_fetch(mr, inode, type, ret) : r;
}

int redis_setfacl(struct meta *m, const struct meta_ctx *c, uint64_t inode, enum acl_type type,
		  const struct acl *rule, struct attr *ret)
{
	static const struct acl none = {
		.owner = ACL_ABSENT, .group = ACL_ABSENT, .mask = ACL_ABSENT, .other = ACL_ABSENT};
	struct meta_redis *mr = redis_engine(m);
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	_cleanup_(str_fini) struct str text = STR_INIT, gids = STR_INIT;
	struct args args;
	int r;

	acl_encode(rule ? rule : &none, &text);
	if (str_error(&text))
		return -ENOMEM;
	args_init(&args, mr);
	op_begin(mr, &args);
	args_u64(&args, inode);
	args_u64(&args, type);
	args_bytes(&args, text.s, text.len);
	args_u64(&args, c->uid);
	args_gids(&args, c, &gids);
	r = str_error(&gids);
	if (!r)
		r = op_eval(mr, SC_SETFACL, &args, &reply);
	op_end(mr, &args);
	return r ? r : reply_attr(reply_at(reply, 0), ret);
}
