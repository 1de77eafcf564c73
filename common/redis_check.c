/* SPDX-License-Identifier: Apache-2.0 */
/* What a server is and how it is set: asked once at the beginning, and its role with each
 * connection where that may change. Any thread that may block. */
#include "common/redis_inner.h"

#include "common/clock.h"

enum { OLDEST_MAJOR = 4 };

/* the value behind "name:" in the text of INFO, up to the end of its line; NULL: not there */
static const char *info_field(const char *info, const char *name, size_t *ret_len)
{
	size_t n = strlen(name);

	for (const char *s = info; s && *s; s = strchr(s, '\n') ? strchr(s, '\n') + 1 : NULL) {
		if (strncmp(s, name, n) != 0 || s[n] != ':')
			continue;
		*ret_len = strcspn(s + n + 1, "\r\n");
		return s + n + 1;
	}
	return NULL;
}

static bool info_is(const char *info, const char *name, const char *value)
{
	size_t n;
	const char *s = info_field(info, name, &n);

	return s && n == strlen(value) && !strncmp(s, value, n);
}

static int check_info(struct redis_conn *c, uint64_t deadline_us, struct str *why)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	const char *text, *v;
	size_t n;
	int r = redis_cmd(c, deadline_us, &reply, "INFO");

	if (r == -EACCES && !strncmp(redis_error(c), "NOPERM", 6))
		return 0; /* a user who may not ask can be served all the same */
	if (r < 0) {
		str_add(why, redis_error(c));
		return r == -EIO ? -EPROTO : r;
	}
	text = redis_reply_str(reply, NULL);
	v = text ? info_field(text, "redis_version", &n) : NULL;
	if (!v) {
		str_add(why, "the server does not answer INFO as Redis does");
		return -EPROTO;
	}
	if (strtol(v, NULL, 10) < OLDEST_MAJOR) {
		str_addf(why, "Redis %.*s is too old, 4.0 is needed", (int)n, v);
		return -EPROTO;
	}
	c->r->on_replica = c->r->mode == REDIS_SINGLE && info_is(text, "role", "slave");
	return 0;
}

/* An error means: no cluster, or not allowed to ask. The word of SELECT comes later. */
static int check_cluster(struct redis_conn *c, uint64_t deadline_us)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	const char *text;
	int r = redis_cmd(c, deadline_us, &reply, "CLUSTER INFO");

	if (c->broken)
		return r;
	text = r == 0 ? redis_reply_str(reply, NULL) : NULL;
	if (text && strstr(text, "cluster_state:"))
		c->r->mode = REDIS_CLUSTER;
	return 0;
}

int redis_check_first(struct redis_conn *c, uint64_t deadline_us, struct str *why)
{
	int r = c->r->mode == REDIS_SINGLE ? check_cluster(c, deadline_us) : 0;

	if (r < 0) {
		str_add(why, redis_error(c));
		return r;
	}
	return check_info(c, deadline_us, why);
}

int redis_check_role(struct redis_conn *c, uint64_t deadline_us, bool replica, struct str *why)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	const char *role;
	int r = redis_cmd(c, deadline_us, &reply, "ROLE");

	if (r < 0) {
		if (why)
			str_add(why, redis_error(c));
		return r == -EACCES ? 0 : r; /* a user who may not ask: trusts the sentinels */
	}
	role = redis_reply_len(reply) ? redis_reply_str(redis_reply_at(reply, 0), NULL) : NULL;
	if (role && (!strcmp(role, "master") || (replica && !strcmp(role, "slave"))))
		return 0;
	if (why)
		str_addf(why, "the server that the sentinels name is a %s",
			 role ? role : "stranger");
	return -EAGAIN;
}

/* --- advice --- */

static int policy_set(struct redis *r, uint64_t deadline_us)
{
	struct redis_reply *reply;
	int e = redis_once(r, deadline_us, &reply, "CONFIG SET maxmemory-policy noeviction");

	if (e == 0)
		redis_reply_free(reply);
	return e;
}

static void advise_policy(struct redis *r, uint64_t deadline_us, const char *info, bool change,
			  struct str *out)
{
	size_t n;
	const char *policy = info_field(info, "maxmemory_policy", &n);

	if (!policy || info_is(info, "maxmemory_policy", "noeviction"))
		return;
	if (info_is(info, "storage_provider", "flash")) /* KeyDB: evicts to its disk */
		return;
	str_addf(out, "%smaxmemory-policy is %.*s, which loses metadata when memory runs out; ",
		 out->len ? "\n" : "", (int)n, policy);
	if (change && policy_set(r, deadline_us) == 0)
		str_add(out, "it was set to noeviction until the next restart of the server");
	else
		str_add(out, "set it to noeviction");
}

int redis_advise(struct redis *r, uint64_t deadline_us, bool change, struct str *out)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	const char *info;
	int e = redis_once(r, deadline_us, &reply, "INFO");

	if (e < 0)
		return e;
	info = redis_reply_str(reply, NULL);
	if (!info)
		return -EPROTO;
	if (info_is(info, "aof_enabled", "0"))
		str_addf(out, "AOF is off: what was written since the last snapshot is lost when "
			      "the server ends (appendonly yes)");
	advise_policy(r, deadline_us, info, change, out);
	return str_error(out);
}
