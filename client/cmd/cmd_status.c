/* SPDX-License-Identifier: Apache-2.0 */
/* stoke status: the volume, who has it mounted, and its cache groups, as JSON. Secrets are left
 * out. One thread; blocks. */
#include <inttypes.h>
#include <jansson.h>

#include "client/cmd/cmd.h"
#include "client/meta/meta.h"
#include "common/block/peer.h"
#include "common/block/registry.h"
#include "common/clock.h"

enum { STATUS_TIMEOUT_US = 10000000, STAT_TIMEOUT_US = 2000000 };

struct status_conf {
	char *secret_file, *tls_cert, *tls_key, *tls_ca, *tls_name;
};

static const struct conf_option options[] = {
	{"group-secret-file", 0, CONF_STR, offsetof(struct status_conf, secret_file), NULL, NULL,
	 "file with the group's secret, to ask each daemon what it holds (or STOKE_GROUP_SECRET)"},
	{"group-tls-cert", 0, CONF_STR, offsetof(struct status_conf, tls_cert), NULL, NULL,
	 "file with a certificate (PEM), for a group that speaks TLS"},
	{"group-tls-key", 0, CONF_STR, offsetof(struct status_conf, tls_key), NULL, NULL,
	 "file with its key"},
	{"group-tls-ca", 0, CONF_STR, offsetof(struct status_conf, tls_ca), NULL, NULL,
	 "file with the CA that every certificate of the group is of"},
	{"group-tls-name", 0, CONF_STR, offsetof(struct status_conf, tls_name), NULL, NULL,
	 "name that the daemons' certificates must have"},
};

static const struct conf_table table = {
	.options = options,
	.n = ARRAY_LEN(options),
	.usage = "stoke status [options] META",
	.summary = "show a volume: its setting, sessions, cache groups and what each member holds "
		   "(JSON)",
	.min_args = 1,
	.max_args = 1,
};

struct inquiry {
	struct redis *redis;
	struct setting *setting;
	struct loop *loop;
	struct pool *pool;
	struct keys *keys; /* NULL: nobody can be asked */
	struct hash128 volume;
	json_t *groups;
};

/* one STAT, waited for */
struct asked {
	struct peer_call call;
	struct mtx lock;
	struct cond cond;
	bool over;
	int status;
};

static void asked_over(struct asked *a, int status)
{
	mtx_lock(&a->lock);
	if (!a->over)
		a->status = status;
	a->over = true;
	cond_signal(&a->cond);
	mtx_unlock(&a->lock);
}

static void answered(struct peer_call *c, int status)
{
	asked_over(container_of(c, struct asked, call), status);
}

/* on the loop, so that no answer comes in between */
static void give_up(void *arg)
{
	struct asked *a = arg;

	if (a->over)
		return;
	peer_abandon(&a->call);
	asked_over(a, -ETIMEDOUT);
}

static int ask(struct inquiry *st, struct peer *p, struct buf *in, struct msg_stat *ret)
{
	struct asked a = {.call = {.op = OP_STAT,
				   .timeout_us = STAT_TIMEOUT_US,
				   .in = in,
				   .in_cap = FRAME_SMALL_MAX,
				   .fd = -1,
				   .done = answered}};
	bool over;

	mtx_init(&a.lock);
	cond_init(&a.cond);
	peer_start(p, &a.call, false);
	mtx_lock(&a.lock);
	while (!a.over && cond_wait_us(&a.cond, &a.lock, STAT_TIMEOUT_US))
		;
	over = a.over;
	mtx_unlock(&a.lock);
	if (!over)
		loop_run_sync(st->loop, give_up, &a);
	mtx_fini(&a.lock);
	cond_fini(&a.cond);
	if (a.status == 0 && msg_stat_decode(in->mem, a.call.in_len, ret) < 0)
		return -EPROTO;
	return a.status;
}

static void add_totals(struct inquiry *st, struct peers *peers, const struct member *m, json_t *o)
{
	size_t reserved = pool_cost(FRAME_SMALL_MAX);
	struct peer *p = peers_get(peers, m->addr, m->port);
	struct msg_stat s = {0};
	struct buf *in;
	int r;

	if (!p || pool_reserve(st->pool, POOL_DEMAND, reserved, NULL) < 0)
		return;
	in = pool_take(st->pool, POOL_DEMAND, FRAME_SMALL_MAX, &reserved);
	if (!in) {
		pool_unreserve(st->pool, POOL_DEMAND, reserved);
		return;
	}
	r = ask(st, p, in, &s);
	buf_unref(in);
	if (r < 0) {
		(void)json_object_set_new(o, "Error", json_string(strerror(-r)));
		return;
	}
	(void)json_object_set_new(o, "Blocks", json_integer((json_int_t)s.blocks));
	(void)json_object_set_new(o, "Bytes", json_integer((json_int_t)s.bytes));
	(void)json_object_set_new(o, "CapacityBytes", json_integer((json_int_t)s.capacity_bytes));
	(void)json_object_set_new(o, "PinnedBlocks", json_integer((json_int_t)s.pinned_blocks));
	(void)json_object_set_new(o, "PinnedBytes", json_integer((json_int_t)s.pinned_bytes));
	(void)json_object_set_new(o, "Hits", json_integer((json_int_t)s.hits));
	(void)json_object_set_new(o, "Misses", json_integer((json_int_t)s.misses));
	(void)json_object_set_new(o, "Fills", json_integer((json_int_t)s.fills));
	(void)json_object_set_new(o, "Evictions", json_integer((json_int_t)s.evictions));
	(void)json_object_set_new(o, "UptimeSeconds",
				  json_integer((json_int_t)(s.uptime_us / 1000000)));
}

static const char *state_name(enum member_state s)
{
	return s == MEMBER_JOINING ? "joining" : s == MEMBER_ACTIVE ? "active" : "draining";
}

/* the sub-group, and how far a member is that comes or goes */
static void add_note(const struct member *m, const struct registry_note *note, json_t *o)
{
	if (m->sub_group[0])
		(void)json_object_set_new(o, "SubGroup", json_string(m->sub_group));
	if (note->drain)
		(void)json_object_set_new(o, "AskedToLeave", json_true());
	if (!note->to_move)
		return;
	(void)json_object_set_new(o, "BlocksMoved", json_integer((json_int_t)note->moved));
	(void)json_object_set_new(o, "BlocksToMove", json_integer((json_int_t)note->to_move));
}

static void add_group(const char *group, const struct cluster *c, const struct registry_note *notes,
		      void *arg)
{
	struct inquiry *st = arg;
	struct peers_conf pc = {
		.id = {.role = ROLE_TOOL, .volume = st->volume, .group = group, .node = "status"},
		.keys = st->keys,
		.loops = &st->loop,
		.n_loops = 1};
	json_t *members = json_array();
	struct peers *peers = NULL;

	if (st->keys && peers_new(&pc, &peers) < 0)
		peers = NULL;
	for (size_t i = 0; i < c->n; i++) {
		const struct member *m = &c->members[i];
		json_t *o = json_pack("{s:s, s:s, s:i, s:i, s:s}", "Id", m->id, "Address", m->addr,
				      "Port", (int)m->port, "Weight", (int)m->weight, "State",
				      state_name(m->state));

		if (o)
			add_note(m, &notes[i], o);
		if (o && peers)
			add_totals(st, peers, m, o);
		(void)json_array_append_new(members, o);
	}
	peers_free(peers);
	(void)json_array_append_new(st->groups,
				    json_pack("{s:s, s:I, s:o}", "Name", group, "RingVersion",
					      (json_int_t)c->version, "Members", members));
}

static int counter(struct redis *r, const char *key, json_int_t *ret)
{
	struct redis_reply *reply;
	int e = redis_once(r, clock_us() + STATUS_TIMEOUT_US, &reply, "GET %s%s", redis_prefix(r),
			   key);

	if (e < 0)
		return e;
	*ret = redis_reply_int(reply);
	redis_reply_free(reply);
	return 0;
}

static int collect(struct inquiry *st, json_t *root, struct str *err)
{
	struct str setting = STR_INIT, sessions = STR_INIT;
	json_int_t used = 0, inodes = 0;
	uint64_t deadline = clock_us() + STATUS_TIMEOUT_US;
	int r = setting_redacted(st->setting, &setting);

	if (r == 0)
		r = meta_sessions_json(st->redis, deadline, &sessions);
	if (r == 0)
		r = counter(st->redis, "usedSpace", &used);
	if (r == 0)
		r = counter(st->redis, "totalInodes", &inodes);
	if (r == 0) {
		(void)json_object_set_new(root, "Setting", json_loads(str_c(&setting), 0, NULL));
		(void)json_object_set_new(root, "Sessions", json_loads(str_c(&sessions), 0, NULL));
		(void)json_object_set_new(
			root, "Statistic",
			json_pack("{s:I, s:I}", "UsedSpace", used, "UsedInodes", inodes));
		r = registry_each(st->redis, deadline, add_group, st);
		(void)json_object_set(root, "Groups", st->groups);
	}
	if (r < 0)
		str_addf(err, "%s: %s", redis_name(st->redis), strerror(-r));
	str_fini(&setting);
	str_fini(&sessions);
	return r;
}

static int prepare(struct inquiry *st, const char *url, const struct keys_conf *keys,
		   struct str *err)
{
	uint64_t deadline = clock_us() + STATUS_TIMEOUT_US;
	struct generation gen;
	int r = redis_new(url, NULL, &st->redis, err);

	if (r == 0)
		r = setting_load(st->redis, deadline, &st->setting, err);
	if (r < 0)
		return r;
	r = keys_new(keys, &st->keys, err);
	if (r < 0 && r != -ENOENT)
		return r;
	/* without a secret, or before any daemon made a generation, there is nobody to ask */
	if (volume_generation(st->redis, deadline, false, &gen) < 0)
		keys_free(TAKE_PTR(st->keys));
	str_reset(err);
	if (st->keys)
		st->volume = volume_id(st->setting->uuid, &gen);
	r = loop_new("status", &st->loop);
	return r < 0 ? r : pool_new(UINT64_C(1) << 20, 64 << 10, &st->pool);
}

static int status(struct inquiry *st, const char *url, const struct keys_conf *keys,
		  struct str *err)
{
	json_t *root = json_object();
	char *text;
	int r = prepare(st, url, keys, err);

	st->groups = json_array();
	if (r == 0)
		r = root && st->groups ? collect(st, root, err) : -ENOMEM;
	text = r == 0 ? json_dumps(root, JSON_INDENT(2)) : NULL;
	if (text)
		(void)printf("%s\n", text);
	free(text);
	json_decref(root);
	json_decref(st->groups);
	return r;
}

static int status_run(int argc, char **argv)
{
	struct status_conf conf;
	struct keys_conf keys;
	struct inquiry st = {.redis = NULL};
	struct str err = STR_INIT;
	_cleanup_(freep) char *url = NULL;
	char **args;
	size_t n;
	int r = conf_parse(&table, &conf, argc, argv, &args, &n, &err);

	if (r) {
		if (r < 0)
			(void)cmd_error("status", "%s", str_c(&err));
		str_fini(&err);
		conf_fini(&table, &conf);
		return r < 0 ? 2 : 0;
	}
	keys = (struct keys_conf){
		.secret_file = conf.secret_file,
		.tls = {conf.tls_cert, conf.tls_key, conf.tls_ca, conf.tls_name},
	};
	url = strdup(args[0]);
	redis_blank_password(args[0]);
	r = url ? status(&st, url, &keys, &err) : -ENOMEM;
	if (r < 0)
		(void)cmd_error("status", "%s", err.len ? str_c(&err) : strerror(-r));
	loop_free(st.loop);
	pool_free(st.pool);
	setting_free(st.setting);
	redis_free(st.redis);
	keys_free(st.keys);
	conf_fini(&table, &conf);
	str_fini(&err);
	return r < 0;
}

const struct cmd cmd_status = {"status", "show a volume and its cache groups", status_run, &table};
