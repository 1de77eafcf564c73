/* SPDX-License-Identifier: Apache-2.0 */
/* What clients that are gone left behind. Thread: the heartbeat's, over the engine's own
 * connections. One client a period does it, whoever is first to set the stamp.
 *
 *	stamp			what is done
 *	lastCleanupSessions	locks of dead sessions are given up and their unlinked open files
 *				deleted, as JuiceFS does with its own and ours
 *
 * An expiry is its client's clock and is compared with ours, and when the database was away nobody
 * could move his. So a session is dead only when it lapsed by that and did not move while we looked
 * at it for LOOK_BEATS, and in no look of ours the database was missing. The scripts that take
 * something from it ask again.
 *
 *	session		what makes it
 *	(unknown)	its expiry is to come, or moved; or a look failed
 *	lapsed		in the table since the first look that found it so
 *	dead		that was LOOK_BEATS ago */
#include "client/meta/meta_redis.h"

#include <inttypes.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/parse.h"

enum {
	STALE_MAX = 1000,
	LOOK_BEATS = 3,
	LOOK_SLACK_US = 1000000,
	SWEEP_COUNT = 1000,
	SWEEP_FIELDS = 400,   /* of one script */
	SWEEP_AGE_SEC = 3600, /* no operation asks again for so long */
	FIELD_MAX = 32,
	SUSTAIN_STEP = 40, /* texts of numbers that args have room for */
};

struct lapsed {
	uint64_t sid, since_us;
	char expiry[32];
};

int session_unlock(struct meta_redis *mr, uint64_t sid, const char *seen, uint64_t deadline_us)
{
	_cleanup_(redis_reply_freep) struct redis_reply *keys = NULL;
	int r = redis_once(mr->own_redis, deadline_us, &keys, "SMEMBERS %slocked%llu", mr->prefix,
			   (unsigned long long)sid);

	for (size_t i = 0; !r && i < reply_len(keys); i++) {
		_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
		struct args args;
		size_t n;
		const char *key = reply_text(reply_at(keys, i), &n);

		if (!key)
			continue;
		args_init(&args, mr);
		args_u64(&args, sid);
		args_bytes(&args, key, n);
		args_text(&args, seen);
		r = own_eval(mr, SC_UNLOCK, &args, deadline_us, &reply);
		if (!r && reply_int(reply) < 0)
			r = -EAGAIN;
	}
	return r;
}

/* files without a name that a session left open: their last close is now */
int sustained_end(struct meta_redis *mr, uint64_t sid, const char *seen)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	int r = redis_once(mr->own_redis, op_deadline(mr), &reply, "SMEMBERS %ssession%llu",
			   mr->prefix, (unsigned long long)sid);

	for (size_t i = 0; !r && i < reply_len(reply); i++)
		r = sustained_delete(mr, sid, seen, (uint64_t)reply_int(reply_at(reply, i)));
	return r;
}

int session_leave(struct meta_redis *mr, uint64_t sid, const char *seen, uint64_t deadline_us)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct args args;
	int r;

	args_init(&args, mr);
	args_u64(&args, sid);
	args_text(&args, seen);
	args_now(&args);
	r = own_eval(mr, SC_LEAVE, &args, deadline_us, &reply);
	return !r && reply_int(reply) == 0 ? -EAGAIN : r;
}

/* open files without a name, lost ones counted */
static int sustain(struct meta_redis *mr, const uint64_t *v, size_t n, uint64_t deadline_us,
		   size_t *ret_lost)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct args args;
	int r;

	args_init(&args, mr);
	args_u64(&args, session_now(&mr->base));
	for (size_t i = 0; i < n; i++)
		args_u64(&args, v[i]);
	r = own_eval(mr, SC_SUSTAIN, &args, deadline_us, &reply);
	*ret_lost += reply_len(reply);
	for (size_t i = 0; i < reply_len(reply); i++)
		log_warn("inode %" PRId64 ", open without a name, was deleted by others",
			 reply_int(reply_at(reply, i)));
	return r;
}

int session_restore(struct meta_redis *mr, uint64_t deadline_us)
{
	struct meta *m = &mr->base;
	void (*fn)(void *arg);
	size_t n, lost = 0;
	uint64_t *v;
	void *arg;
	int r = open_unnamed_list(m, &v, &n);

	if (r)
		return r;
	for (size_t i = 0; i < n && !r; i += SUSTAIN_STEP)
		r = sustain(mr, v + i, MIN(n - i, (size_t)SUSTAIN_STEP), deadline_us, &lost);
	free(v);
	if (r)
		return r;
	log_warn("session %" PRIu64 " had lapsed: of %zu open files without a name %zu are lost; "
		 "locks are taken again where they are free",
		 session_now(m), n, lost);
	mtx_lock(&m->lock);
	fn = m->lapsed;
	arg = m->lapsed_arg;
	mtx_unlock(&m->lock);
	if (fn)
		fn(arg);
	return 0;
}

bool job_gate(struct meta_redis *mr, const char *stamp, int64_t now_sec, uint64_t period_us,
	      uint64_t deadline_us)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct args args;

	args_init(&args, mr);
	args_text(&args, stamp);
	args_i64(&args, now_sec);
	args_u64(&args, period_us * 9 / 10000000);
	return own_eval(mr, SC_GATE, &args, deadline_us, &reply) == 0 && reply_int(reply) == 1;
}

/* since when that session lapsed with this expiry, as far as we saw it */
static uint64_t lapsed_since(const struct meta_redis *mr, const struct lapsed *l)
{
	for (size_t i = 0; i < mr->n_lapsed; i++) {
		if (mr->lapsed[i].sid == l->sid && !strcmp(mr->lapsed[i].expiry, l->expiry))
			return mr->lapsed[i].since_us;
	}
	return l->since_us;
}

/* the table becomes what is there now; -ENOMEM, or of the look */
static int lapsed_look(struct meta_redis *mr, int64_t now_sec, uint64_t deadline_us)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	uint64_t now_us = clock_us();
	struct lapsed *table;
	size_t n = 0;
	int r = redis_once(mr->own_redis, deadline_us, &reply,
			   "ZRANGEBYSCORE %sallSessions -inf %lld WITHSCORES LIMIT 0 %d",
			   mr->prefix, (long long)now_sec, STALE_MAX);

	if (r)
		return r;
	if (now_us - mr->looked_us > 2 * mr->base.conf.heartbeat_us + LOOK_SLACK_US)
		mr->n_lapsed = 0; /* nor could others tell that they live */
	mr->looked_us = now_us;
	table = calloc(reply_len(reply) + 1, sizeof(*table));
	if (!table)
		return -ENOMEM;
	for (size_t i = 0; i + 1 < reply_len(reply); i += 2) {
		struct lapsed l = {.sid = (uint64_t)reply_int(reply_at(reply, i)),
				   .since_us = now_us};
		size_t len;
		const char *expiry = reply_text(reply_at(reply, i + 1), &len);

		if (!expiry || len >= sizeof(l.expiry) || l.sid == 0 ||
		    l.sid == session_now(&mr->base))
			continue;
		memcpy(l.expiry, expiry, len);
		l.since_us = lapsed_since(mr, &l);
		table[n++] = l;
	}
	free(mr->lapsed);
	mr->lapsed = table;
	mr->n_lapsed = n;
	return 0;
}

static void session_clean(struct meta_redis *mr, const struct lapsed *l, uint64_t deadline_us)
{
	int r = session_unlock(mr, l->sid, l->expiry, deadline_us);

	if (!r)
		r = sustained_end(mr, l->sid, l->expiry);
	if (!r)
		r = session_leave(mr, l->sid, l->expiry, deadline_us);
	if (r == -EAGAIN)
		log_info("lapsed session %" PRIu64 " lives, or others cleaned it up", l->sid);
	else if (r)
		log_warn("lapsed session %" PRIu64 " not cleaned up: %s", l->sid, strerror(-r));
	else
		log_info("lapsed session %" PRIu64 " cleaned up", l->sid);
}

void stale_clean(struct meta_redis *mr, uint64_t deadline_us)
{
	uint64_t beat_us = mr->base.conf.heartbeat_us;
	struct time_ns now;

	clock_real(&now.sec, &now.nsec);
	if (lapsed_look(mr, now.sec, deadline_us) ||
	    !job_gate(mr, "lastCleanupSessions", now.sec, beat_us, deadline_us))
		return;
	for (size_t i = 0; i < mr->n_lapsed; i++) {
		if (mr->looked_us - mr->lapsed[i].since_us >= LOOK_BEATS * beat_us)
			session_clean(mr, &mr->lapsed[i], deadline_us);
	}
}

/* --- stored results --- */

struct sweep {
	struct meta_redis *mr;
	uint64_t deadline_us;
	const struct redis_reply *live; /* members of allSessions */
	struct args args;
	char field[SWEEP_FIELDS][FIELD_MAX];
	unsigned n;
};

static int sweep_send(struct sweep *s)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	int r;

	if (s->n == 0)
		return 0;
	args_init(&s->args, s->mr);
	args_now(&s->args);
	args_u64(&s->args, SWEEP_AGE_SEC);
	for (unsigned i = 0; i < s->n; i++)
		args_text(&s->args, s->field[i]);
	r = own_eval(s->mr, SC_SWEEP, &s->args, s->deadline_us, &reply);
	s->n = 0;
	return r;
}

static bool sweep_live(const struct sweep *s, const char *field)
{
	uint64_t sid = strtoull(field, NULL, 10);

	for (size_t i = 0; i < reply_len(s->live); i++) {
		if ((uint64_t)reply_int(reply_at(s->live, i)) == sid)
			return true;
	}
	return false;
}

static int sweep_page(void *arg, const struct redis_reply *page)
{
	struct sweep *s = arg;
	int r = 0;

	for (size_t i = 0; page && i + 1 < reply_len(page) && !r; i += 2) {
		size_t n;
		const char *field = reply_text(reply_at(page, i), &n);

		/* longer ones are none of ours */
		if (!field || n >= FIELD_MAX || strlen(field) != n || sweep_live(s, field))
			continue;
		memcpy(s->field[s->n++], field, n + 1);
		if (s->n == SWEEP_FIELDS)
			r = sweep_send(s);
	}
	return r;
}

/* more results than the sessions that are there can have */
static bool sweep_needed(struct meta_redis *mr, size_t sessions, uint64_t deadline_us)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;

	return redis_once(mr->own_redis, deadline_us, &reply, "HLEN %s_ops", mr->prefix) == 0 &&
	       reply_int(reply) > (int64_t)sessions * SLOTS;
}

void stale_sweep(struct meta_redis *mr, bool maybe, uint64_t deadline_us)
{
	_cleanup_(redis_reply_freep) struct redis_reply *live = NULL;
	char key[32];
	struct sweep *s;

	if (redis_once(mr->own_redis, deadline_us, &live, "ZRANGE %sallSessions 0 -1",
		       mr->prefix) ||
	    (maybe && !sweep_needed(mr, reply_len(live), deadline_us)))
		return;
	s = calloc(1, sizeof(*s));
	if (!s)
		return;
	s->mr = mr;
	s->deadline_us = deadline_us;
	s->live = live;
	snprintf(key, sizeof(key), "%s_ops", mr->prefix);
	if (redis_pages(mr->own_redis, mr->base.conf.heartbeat_us, "HSCAN", key, NULL, SWEEP_COUNT,
			sweep_page, s) == 0)
		(void)sweep_send(s);
	free(s);
}
