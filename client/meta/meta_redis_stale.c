/* SPDX-License-Identifier: Apache-2.0 */
/* What clients that are gone left behind. Thread: the heartbeat's, over the engine's own
 * connections. One client a period does it, whoever is first to set the stamp.
 *
 *	stamp			what is done
 *	lastCleanupSessions	locks of dead sessions are given up and their unlinked open files
 *				deleted, as JuiceFS does with its own and ours
 */
#include "client/meta/meta_redis.h"

#include <inttypes.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/parse.h"

enum { STALE_MAX = 1000 };

int session_unlock(struct meta_redis *mr, uint64_t sid, uint64_t deadline_us)
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
		r = own_eval(mr, SC_UNLOCK, &args, deadline_us, &reply);
	}
	return r;
}

/* files without a name that a session left open: their last close is now */
int sustained_end(struct meta_redis *mr, uint64_t sid)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	int r = redis_once(mr->own_redis, op_deadline(mr), &reply, "SMEMBERS %ssession%llu",
			   mr->prefix, (unsigned long long)sid);

	for (size_t i = 0; !r && i < reply_len(reply); i++)
		r = sustained_delete(mr, sid, (uint64_t)reply_int(reply_at(reply, i)));
	return r;
}

int session_leave(struct meta_redis *mr, uint64_t sid, int64_t now_sec, uint64_t deadline_us)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct args args;

	args_init(&args, mr);
	args_u64(&args, sid);
	if (now_sec)
		args_i64(&args, now_sec);
	else
		args_text(&args, "");
	args_now(&args);
	return own_eval(mr, SC_LEAVE, &args, deadline_us, &reply);
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

void stale_clean(struct meta_redis *mr, uint64_t deadline_us)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct time_ns now;

	clock_real(&now.sec, &now.nsec);
	if (!job_gate(mr, "lastCleanupSessions", now.sec, mr->base.conf.heartbeat_us, deadline_us))
		return;
	if (redis_once(mr->own_redis, deadline_us, &reply,
		       "ZRANGEBYSCORE %sallSessions -inf %lld LIMIT 0 %d", mr->prefix,
		       (long long)now.sec, STALE_MAX))
		return;
	for (size_t i = 0; i < reply_len(reply); i++) {
		uint64_t sid = (uint64_t)reply_int(reply_at(reply, i));
		int r;

		if (sid == 0 || sid == mr->base.session)
			continue;
		r = session_unlock(mr, sid, deadline_us);
		if (!r)
			r = sustained_end(mr, sid);
		if (!r)
			r = session_leave(mr, sid, now.sec, deadline_us);
		if (r)
			log_warn("lapsed session %" PRIu64 " not cleaned up: %s", sid,
				 strerror(-r));
		else
			log_info("lapsed session %" PRIu64 " cleaned up", sid);
	}
}
