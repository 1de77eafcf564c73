/* SPDX-License-Identifier: Apache-2.0 */
/* The engine over Redis: opening, checking what the volume needs, and the table. An operation is
 * one script, so that JuiceFS's WATCH/MULTI and ours exclude each other; the scripts are
 * client/meta/ *.lua behind a common prelude.
 *
 * Threads: operations run in the caller's; heartbeat and statistics have one each, deletes a
 * few. */
#include "client/meta/meta_redis.h"

#include "client/meta/meta_redis_quota.h"
#include "client/meta/script_text.h"
#include "common/clock.h"
#include "common/embed.h"
#include "common/object/crypt.h"

enum { SCAN_CONNS = 8 };

#define LUA(name) EMBED(lua_##name, "client/meta/" #name ".lua")
LUA(prelude);
LUA(trash);
#define SCRIPT(number, name, prelude) LUA(name);
#include "client/meta/scripts.def"
#undef SCRIPT

enum prelude { PRELUDE_common, PRELUDE_removing };
static const struct {
	const char *name, *body;
	enum prelude prelude;
} script_table[SC_COUNT] = {
#define SCRIPT(number, name, prelude) [SC_##number] = {#name, lua_##name, PRELUDE_##prelude},
#include "client/meta/scripts.def"
#undef SCRIPT
};

static void redis_free_engine(struct meta *m);

/* what the server has against it belongs to the line, too */
static void add_refusal(struct meta_redis *mr, struct str *err)
{
	_cleanup_(str_fini) struct str why = STR_INIT;

	redis_refusal(mr->own_redis, &why);
	if (!why.len)
		redis_refusal(mr->redis, &why);
	if (why.len)
		str_addf(err, " (%s)", str_c(&why));
}

static int start(struct meta *m, struct str *err)
{
	int r = redis_start(m, err);

	if (r)
		add_refusal(redis_engine(m), err);
	return r;
}

static const struct meta_ops redis_ops = {
	.name = "redis",
	.lookup = redis_lookup,
	.getattr = redis_getattr,
	.setattr = redis_setattr,
	.truncate = redis_truncate,
	.mknod = redis_mknod,
	.link = redis_link,
	.unlink = redis_unlink,
	.rmdir = redis_rmdir,
	.rename = redis_rename,
	.readlink = redis_readlink,
	.readdir = redis_readdir,
	.list_page = redis_list_page,
	.open = redis_open,
	.close = redis_close,
	.read = redis_read,
	.write = redis_write,
	.new_slice = redis_new_slice,
	.statfs = redis_statfs,
	.getxattr = redis_getxattr,
	.setxattr = redis_setxattr,
	.listxattr = redis_listxattr,
	.removexattr = redis_removexattr,
	.getfacl = redis_getfacl,
	.setfacl = redis_setfacl,
	.touch_atime = redis_touch_atime,
	.tmpfile = redis_tmpfile,
	.flock = redis_flock,
	.setlk = redis_setlk,
	.getlk = redis_getlk,
	.fallocate = redis_fallocate,
	.next_chunk = redis_next_chunk,
	.copy_file_range = redis_copy_file_range,
	.compact = redis_compact,
	.quota_set = redis_quota_set,
	.quota_get = redis_quota_get,
	.quota_list = redis_quota_list,
	.quota_delete = redis_quota_delete,
	.quota_check = redis_quota_check,
	.remove_tree = redis_remove_tree,
	.clone = redis_clone,
	.start = start,
	.stop = redis_stop,
	.free = redis_free_engine,
};

struct redis *meta_redis(struct meta *m)
{
	struct meta_redis *mr = redis_engine(m);

	if (m->ops != &redis_ops)
		return NULL;
	/* the group's registry writes */
	return redis_reads_replica(mr->redis) ? mr->own_redis : mr->redis;
}

static int scripts_init(struct meta_redis *mr)
{
	_cleanup_(str_fini) struct str removing = STR_INIT;
	int r = 0;

	str_add(&removing, lua_prelude);
	str_add(&removing, lua_trash);
	if (str_error(&removing))
		return -ENOMEM;
	for (int i = 0; i < SC_COUNT && !r; i++) {
		_cleanup_(str_fini) struct str text = STR_INIT;

		r = script_text_add(&text,
				    script_table[i].prelude == PRELUDE_removing ? str_c(&removing)
										: lua_prelude,
				    script_table[i].body);
		if (!r)
			r = redis_script_init(&mr->scripts[i], script_table[i].name, "",
					      str_c(&text));
	}
	return r;
}

static void metrics_init(struct meta_redis *mr, struct metrics *m)
{
	static const char *const plain[] = {"getattr", "readdir"};
	char label[40];

	for (int i = 0; m && i < OP_COUNT; i++) {
		snprintf(label, sizeof(label), "op=\"%s\"",
			 i < SC_COUNT ? script_table[i].name : plain[i - SC_COUNT]);
		mr->seconds[i] = metrics_get(m, "stoke_meta_seconds", label, METRIC_HISTOGRAM,
					     "Metadata operations and how long Redis took");
	}
}

static int setting_allowed(const struct setting *s, struct str *err)
{
	_cleanup_(str_fini) struct str why = STR_INIT;
	int r = setting_check(s, &why);

	if (r == -EOPNOTSUPP)
		str_addf(err, "the volume uses %s, which is not handled", str_c(&why));
	else if (r)
		str_add(err, str_c(&why));
	return r;
}

/* the generation that block keys are made with; a reader of a volume that never had one goes
 * without */
static int generation_init(struct meta_redis *mr, uint64_t deadline_us, struct str *err)
{
	struct generation gen;
	int r = volume_generation(mr->redis, deadline_us, !mr->base.conf.read_only, &gen);

	if (r == -ENOENT && mr->base.conf.read_only)
		return 0;
	if (r) {
		str_addf(err, "%s: the volume's generation cannot be read: %s",
			 redis_name(mr->redis), strerror(-r));
		return r;
	}
	meta_set_generation(&mr->base, &gen);
	return 0;
}

static int engine_open(struct meta_redis *mr, const struct meta_conf *conf, struct str *err)
{
	uint64_t deadline = clock_us() + conf->timeout_us;
	struct setting *s = NULL;
	int r = setting_load(mr->redis, deadline, &s, err);

	if (r)
		return r;
	r = meta_init(&mr->base, &redis_ops, conf, s); /* takes s */
	if (!r)
		r = setting_allowed(s, err);
	if (!r)
		r = generation_init(mr, deadline, err);
	return r;
}

static int keys_init(struct meta_redis *mr)
{
	const char *p = redis_prefix(mr->redis);
	struct str s = STR_INIT;

	str_addf(&s, "%ssetting", p);
	mr->setting_key = str_take(&s);
	mr->prefix = strdup(p);
	return mr->prefix && mr->setting_key ? 0 : -ENOMEM;
}

int meta_redis_new(const char *url, const struct meta_conf *conf, struct meta **ret,
		   struct str *err)
{
	/* 16 threads each of metadata and data, warm-ups, the group's registry: none of them may
	 * wait for another's connection while Redis is slow */
	const struct redis_conf shared = {.max_conns = 48, .read_only = conf->read_only};
	static const struct redis_conf own = {.max_conns = DELETE_THREADS + 8};
	static const struct redis_conf scans = {.max_conns = SCAN_CONNS};
	struct meta_conf c = *conf;
	struct meta_redis *mr;
	int r;

	if (!c.timeout_us)
		c.timeout_us = 30 * 1000000;
	if (!c.data_timeout_us)
		c.data_timeout_us = MAX(c.timeout_us, UINT64_C(300) * 1000000);
	if (!c.heartbeat_us)
		c.heartbeat_us = 12 * 1000000;
	mr = calloc(1, sizeof(*mr));
	if (!mr)
		return -ENOMEM;
	mtx_init(&mr->base.lock);
	cond_init(&mr->slot_free);
	cond_init(&mr->pool_filled);
	cond_init(&mr->wake);
	cond_init(&mr->stat_flushed);
	list_init(&mr->dead);
	mr->full_space = mr->full_inodes = -1;
	crypt_random(&mr->nonce, sizeof(mr->nonce));
	metrics_init(mr, c.metrics);
	r = hashmap_init(&mr->dirs, 64);
	if (!r)
		r = quotas_new(&mr->quotas);
	if (!r)
		r = scripts_init(mr);
	if (!r)
		r = redis_new(url, &shared, &mr->redis, err);
	if (!r)
		r = redis_new(url, &own, &mr->own_redis, err);
	if (!r)
		r = redis_new(url, &scans, &mr->scan_redis, err);
	if (!r)
		r = keys_init(mr);
	if (!r) {
		r = engine_open(mr, &c, err);
		if (r)
			add_refusal(mr, err);
	}
	if (r) {
		redis_free_engine(&mr->base);
		return r;
	}
	*ret = &mr->base;
	return 0;
}

static void redis_free_engine(struct meta *m)
{
	struct meta_redis *mr = redis_engine(m);

	compactor_free(mr);
	for (int i = 0; i < SC_COUNT; i++)
		redis_script_fini(&mr->scripts[i]);
	redis_free(mr->scan_redis);
	redis_free(mr->own_redis);
	redis_free(mr->redis);
	stat_drop(mr);
	quotas_free(mr->quotas);
	cond_fini(&mr->slot_free);
	cond_fini(&mr->pool_filled);
	cond_fini(&mr->wake);
	cond_fini(&mr->stat_flushed);
	free(mr->session_json);
	free(mr->setting_key);
	free(mr->prefix);
	meta_fini(m);
	free(mr);
}
