/* SPDX-License-Identifier: Apache-2.0 */
/* The member list in Redis: one script does it all (member.lua); here its arguments are made and
 * its answer becomes a snapshot. Stateless but for the prepared script; any thread that may
 * block. */
#include "common/block/registry.h"

#include <inttypes.h>

#include "common/embed.h"
#include "common/parse.h"

EMBED(member_lua, "common/block/member.lua");

enum { GROUP_MAX = MSG_NAME_MAX, KEYS = 8, ARGS = 8, FIRST = 7 };
enum { RECORD_MAX = MEMBER_ADDR_MAX + MEMBER_SUB_MAX + 48, PROGRESS_MAX = 48 };
enum { KEY_MAX = REDIS_PREFIX_MAX + GROUP_MAX + 32 };

struct registry {
	struct redis *redis;
	struct redis_script script;
	char group[GROUP_MAX + 1];
	char setting[KEY_MAX], gen[KEY_MAX], groups[KEY_MAX];
	char members[KEY_MAX], versions[KEY_MAX], seen[KEY_MAX], state[KEY_MAX], notes[KEY_MAX];
};

static bool group_valid(const char *group)
{
	size_t n = strnlen(group, GROUP_MAX + 1);

	if (n == 0 || n > GROUP_MAX)
		return false;
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)group[i] <= ' ' || group[i] == 127)
			return false;
	return true;
}

int registry_new(struct redis *r, const char *group, struct registry **ret)
{
	const char *p = redis_prefix(r);
	struct registry *g;
	int rc;

	if (!group_valid(group))
		return -EINVAL;
	g = calloc(1, sizeof(*g));
	if (!g)
		return -ENOMEM;
	rc = redis_script_init(&g->script, "member", "", member_lua);
	if (rc < 0) {
		free(g);
		return rc;
	}
	g->redis = r;
	snprintf(g->group, sizeof(g->group), "%s", group);
	snprintf(g->members, sizeof(g->members), "%s_group:%s:members", p, group);
	snprintf(g->versions, sizeof(g->versions), "%s_group:%s:versions", p, group);
	snprintf(g->seen, sizeof(g->seen), "%s_group:%s:seen", p, group);
	snprintf(g->state, sizeof(g->state), "%s_group:%s:state", p, group);
	snprintf(g->notes, sizeof(g->notes), "%s_group:%s:notes", p, group);
	snprintf(g->setting, sizeof(g->setting), "%ssetting", p);
	snprintf(g->gen, sizeof(g->gen), "%s_gen", p);
	snprintf(g->groups, sizeof(g->groups), "%s_groups", p);
	*ret = g;
	return 0;
}

void registry_free(struct registry *g)
{
	if (!g)
		return;
	redis_script_fini(&g->script);
	free(g);
}

static void registry_freep(struct registry **g)
{
	registry_free(*g);
}

/* "state weight port addr", and " sub-group" when there is one */
static void record_print(const struct member *m, char ret[RECORD_MAX])
{
	snprintf(ret, RECORD_MAX, "%d %" PRIu32 " %u %s%s%s", (int)m->state, m->weight,
		 (unsigned)m->port, m->addr, m->sub_group[0] ? " " : "", m->sub_group);
}

static int record_number(const char **p, uint64_t max, uint64_t *ret)
{
	const char *end = strchr(*p, ' ');
	char text[24];

	if (!end || end == *p || (size_t)(end - *p) >= sizeof(text))
		return -EINVAL;
	memcpy(text, *p, (size_t)(end - *p));
	text[end - *p] = '\0';
	*p = end + 1;
	return parse_u64(text, max, ret);
}

static int record_parse(const char *id, const char *record, struct member *ret)
{
	struct member m = {.port = 0};
	uint64_t state, weight, port;
	const char *sub;
	int n;

	if (record_number(&record, MEMBER_DRAINING, &state) < 0 ||
	    record_number(&record, MEMBER_WEIGHT_MAX, &weight) < 0 ||
	    record_number(&record, UINT16_MAX, &port) < 0)
		return -EINVAL;
	m.state = (enum member_state)state;
	m.weight = (uint32_t)weight;
	m.port = (uint16_t)port;
	n = snprintf(m.id, sizeof(m.id), "%s", id);
	if (n < 0 || (size_t)n >= sizeof(m.id))
		return -EINVAL;
	sub = strchr(record, ' ');
	if (sub) {
		n = snprintf(m.sub_group, sizeof(m.sub_group), "%s", sub + 1);
		if (n <= 0 || (size_t)n >= sizeof(m.sub_group))
			return -EINVAL;
	}
	n = snprintf(m.addr, sizeof(m.addr), "%.*s",
		     (int)(sub ? (size_t)(sub - record) : strlen(record)), record);
	if (n < 0 || (size_t)n >= sizeof(m.addr) || !member_valid(&m))
		return -EINVAL;
	*ret = m;
	return 0;
}

static int member_by_id(const void *a, const void *b)
{
	return strcmp(((const struct member *)a)->id, ((const struct member *)b)->id);
}

/* The changes of an answer, sorted by id; those who are gone have state 0. What does not parse is
 * gone, too: one bad record must not cost the others their ring. */
static int changes_read(const struct redis_reply *reply, struct member **ret, size_t *ret_n)
{
	size_t pairs = (redis_reply_len(reply) - FIRST) / 2, n = 0;
	struct member *m;

	if (pairs > 2 * CLUSTER_MEMBERS_MAX)
		return -EPROTO;
	m = calloc(pairs + 1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	for (size_t i = 0; i < pairs; i++) {
		size_t len;
		const char *id = redis_reply_str(redis_reply_at(reply, FIRST + 2 * i), &len);
		const char *rec = redis_reply_str(redis_reply_at(reply, FIRST + 2 * i + 1), &len);

		if (!id || !rec || strlen(id) >= sizeof(m->id))
			continue;
		if (record_parse(id, rec, &m[n]) < 0) {
			memset(&m[n], 0, sizeof(m[n]));
			snprintf(m[n].id, sizeof(m[n].id), "%s", id);
		}
		n++;
	}
	qsort(m, n, sizeof(*m), member_by_id);
	*ret = m;
	*ret_n = n;
	return 0;
}

/* old (NULL: nothing) with the changes, or the changes are everybody: both are sorted */
static int cluster_changed(const struct cluster *old, bool everybody, uint64_t version,
			   const struct member *change, size_t n, struct cluster **ret)
{
	size_t have = old && !everybody ? old->n : 0, i = 0, k = 0, all = 0,
	       passed_by = everybody && old;
	_cleanup_(freep) struct member *m = calloc(have + n + 1, sizeof(*m));

	if (!m)
		return -ENOMEM;
	while (i < have || k < n) {
		int d = i == have ? 1 : k == n ? -1 : strcmp(old->members[i].id, change[k].id);

		if (d < 0)
			m[all++] = old->members[i++];
		else if (change[k].state)
			m[all++] = change[k++];
		else
			passed_by += change[k++].state == 0 && d > 0; /* came and went meanwhile */
		i += d == 0;
	}
	if (all > CLUSTER_MEMBERS_MAX)
		return -EPROTO;
	*ret = cluster_next(old, version, m, all);
	if (!*ret)
		return -ENOMEM;
	(*ret)->losses += passed_by;
	return 0;
}

enum answer_kind { SAME, CHANGES, EVERYBODY };

static int answer_apply(const struct redis_reply *reply, uint64_t version, int64_t kind,
			struct cluster **io)
{
	_cleanup_(freep) struct member *change = NULL;
	struct cluster *c = NULL;
	size_t n = 0;
	int r;

	if (kind == SAME)
		return 0;
	if (kind != EVERYBODY && (kind != CHANGES || !*io))
		return -EPROTO;
	r = changes_read(reply, &change, &n);
	if (r < 0)
		return r;
	/* a server that lost the list is not believed: the ring stays as it was (G11) */
	if (kind == EVERYBODY && n == 0 && *io && (*io)->n > 0)
		return 0;
	r = cluster_changed(*io, kind == EVERYBODY, version, change, n, &c);
	if (r < 0)
		return r;
	cluster_unref(*io);
	*io = c;
	return 0;
}

static int answer_read(const struct redis_reply *reply, struct cluster **io,
		       struct generation *ret_gen, struct registry_beat *ret_beat)
{
	struct generation gen = {{0}};
	const char *text, *version;
	uint64_t v;
	size_t n;
	int r;

	if (redis_reply_len(reply) == 1 && redis_reply_int(redis_reply_at(reply, 0)) == 0)
		return -ENOENT;
	text = redis_reply_str(redis_reply_at(reply, 1), &n);
	if (!text || (n != 0 && n != sizeof(gen.b)))
		return -EPROTO;
	memcpy(gen.b, text, n);
	version = redis_reply_str(redis_reply_at(reply, 2), &n);
	if (!version || parse_u64(version, UINT64_MAX, &v) < 0 || redis_reply_len(reply) < FIRST ||
	    (redis_reply_len(reply) - FIRST) % 2)
		return -EPROTO;
	if (ret_beat) {
		int64_t ago = redis_reply_int(redis_reply_at(reply, 5));

		ret_beat->drain = redis_reply_int(redis_reply_at(reply, 4)) != 0;
		ret_beat->slowed_ago_us = ago < 0 ? UINT64_MAX : (uint64_t)ago * 1000;
		ret_beat->members = (unsigned)redis_reply_int(redis_reply_at(reply, 6));
	}
	r = answer_apply(reply, v, redis_reply_int(redis_reply_at(reply, 3)), io);
	if (r == 0)
		*ret_gen = gen;
	return r;
}

/* what travels to the script beside the registry's keys */
struct call {
	const char *mode, *id, *record, *kind;
	struct registry_beat *beat; /* NULL: no heartbeat */
};

static int registry_call(struct registry *g, uint64_t deadline_us, const struct call *call,
			 struct cluster **io, struct generation *ret_gen)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	const struct registry_beat *b = call->beat;
	char version[24], progress[PROGRESS_MAX] = "";
	const char *argv[KEYS + ARGS] = {
		g->setting, g->gen,    g->members,   g->versions, g->seen,
		g->state,   g->groups, g->notes,     call->mode,  version,
		g->group,   call->id,  call->record, call->kind,  b && b->slowed ? "1" : "",
		progress};
	size_t lens[KEYS + ARGS];
	int r;

	snprintf(version, sizeof(version), "%" PRIu64, *io ? (*io)->version : 0);
	if (b && b->to_move)
		snprintf(progress, sizeof(progress), "%" PRIu64 " %" PRIu64, b->moved, b->to_move);
	for (unsigned i = 0; i < KEYS + ARGS; i++)
		lens[i] = strlen(argv[i]);
	r = redis_eval(g->redis, deadline_us, &g->script, KEYS, KEYS + ARGS, argv, lens, &reply);
	return r < 0 ? r : answer_read(reply, io, ret_gen, call->beat);
}

int registry_heartbeat(struct registry *g, uint64_t deadline_us, struct registry_beat *beat,
		       struct cluster **io, struct generation *ret_gen)
{
	static const char *const kinds[] = {"", "first", "forced", "same"};
	char record[RECORD_MAX];
	struct call call = {"beat", beat->self->id, record, kinds[beat->kind], beat};

	if (!member_valid(beat->self))
		return -EINVAL;
	record_print(beat->self, record);
	return registry_call(g, deadline_us, &call, io, ret_gen);
}

int registry_fetch(struct registry *g, uint64_t deadline_us, struct cluster **io,
		   struct generation *ret_gen)
{
	const struct call call = {"fetch", "", "", "", NULL};

	return registry_call(g, deadline_us, &call, io, ret_gen);
}

int registry_leave(struct registry *g, uint64_t deadline_us, const char *id, uint64_t lost,
		   struct cluster **io)
{
	char text[24];
	const struct call call = {"leave", id, text, io ? "same" : "", NULL};
	struct cluster *none = NULL;
	struct generation gen;
	int r;

	snprintf(text, sizeof(text), "%" PRIu64, lost);
	r = registry_call(g, deadline_us, &call, io ? io : &none, &gen);
	cluster_unref(none);
	return r;
}

int registry_wish(struct registry *g, uint64_t deadline_us, const char *id, bool drain)
{
	const struct call call = {"wish", id, drain ? "1" : "", "", NULL};
	struct cluster *none = NULL;
	struct generation gen;
	int r = registry_call(g, deadline_us, &call, &none, &gen);

	cluster_unref(none);
	return r;
}

int registry_left(struct registry *g, uint64_t deadline_us, const char *id, uint64_t *ret_lost)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	char field[MEMBER_ID_MAX + 8];
	const char *value;
	int r;

	snprintf(field, sizeof(field), "left %s", id);
	r = redis_once(g->redis, deadline_us, &reply, "HGET %s %s", g->notes, field);
	if (r < 0)
		return r;
	value = redis_reply_str(reply, NULL);
	if (!value)
		return 0;
	if (record_number(&value, UINT64_MAX, ret_lost) < 0) /* a version before wrote no number */
		*ret_lost = 0;
	return 1;
}

/* --- status --- */

/* "drain id" or "progress id" and its value, of a member of c; others are left out */
static void note_read(const struct cluster *c, const char *field, const char *value,
		      struct registry_note *notes)
{
	const char *id = strchr(field, ' ');
	int i = id ? cluster_index(c, id + 1) : -1;

	if (i < 0)
		return;
	if (strncmp(field, "drain ", 6) == 0)
		notes[i].drain = true;
	else if (record_number(&value, UINT64_MAX, &notes[i].moved) < 0 ||
		 parse_u64(value, UINT64_MAX, &notes[i].to_move) < 0)
		notes[i].moved = notes[i].to_move = 0;
}

static int notes_get(struct registry *g, uint64_t deadline_us, const struct cluster *c,
		     struct registry_note **ret)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	_cleanup_(freep) struct registry_note *notes = calloc(c->n + 1, sizeof(*notes));
	int r = notes ? redis_once(g->redis, deadline_us, &reply, "HGETALL %s", g->notes) : -ENOMEM;

	if (r < 0)
		return r;
	for (size_t i = 0; i + 1 < redis_reply_len(reply); i += 2) {
		const char *field = redis_reply_str(redis_reply_at(reply, i), NULL);
		const char *value = redis_reply_str(redis_reply_at(reply, i + 1), NULL);

		if (field && value)
			note_read(c, field, value, notes);
	}
	*ret = TAKE_PTR(notes);
	return 0;
}

int registry_each(struct redis *r, uint64_t deadline_us, registry_each_fn *fn, void *arg)
{
	_cleanup_(redis_reply_freep) struct redis_reply *names = NULL;
	int rc = redis_once(r, deadline_us, &names, "SMEMBERS %s_groups", redis_prefix(r));

	for (size_t i = 0; rc == 0 && i < redis_reply_len(names); i++) {
		const struct call peek = {"peek", "", "", "", NULL};
		_cleanup_(registry_freep) struct registry *g = NULL;
		_cleanup_(freep) struct registry_note *notes = NULL;
		const char *name = redis_reply_str(redis_reply_at(names, i), NULL);
		struct cluster *c = NULL;
		struct generation gen;

		if (!name || registry_new(r, name, &g) < 0)
			continue;
		rc = registry_call(g, deadline_us, &peek, &c, &gen);
		if (rc == 0 && c)
			rc = notes_get(g, deadline_us, c, &notes);
		if (rc == 0 && c)
			fn(name, c, notes, arg);
		cluster_unref(c);
	}
	return rc;
}
