/* SPDX-License-Identifier: Apache-2.0 */
/* Who has the volume mounted, for status: every session in allSessions with what sessionInfos says
 * about it. Blocks; any thread. */
#include "client/meta/meta.h"

#include <jansson.h>

#include "client/meta/reply.h"

enum { SESSIONS_MAX = 10000 };

static json_t *session_object(struct redis *r, uint64_t deadline_us, const struct redis_reply *sid,
			      const struct redis_reply *expire)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	const char *text = NULL;
	json_t *o = NULL;
	size_t n;

	if (redis_once(r, deadline_us, &reply, "HGET %ssessionInfos %lld", redis_prefix(r),
		       (long long)reply_int(sid)) == 0)
		text = reply_text(reply, &n);
	if (text)
		o = json_loadb(text, n, 0, NULL);
	if (!json_is_object(o)) { /* a session without, or with broken, information is one too */
		json_decref(o);
		o = json_object();
	}
	json_object_set_new(o, "Sid", json_integer(reply_int(sid)));
	json_object_set_new(o, "Expire", json_integer(reply_int(expire)));
	return o;
}

int meta_sessions_json(struct redis *r, uint64_t deadline_us, struct str *out)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	json_t *list;
	char *text;
	int rc = redis_once(r, deadline_us, &reply, "ZRANGE %sallSessions 0 %d WITHSCORES",
			    redis_prefix(r), SESSIONS_MAX - 1);

	if (rc)
		return rc;
	list = json_array();
	for (size_t i = 0; i + 1 < reply_len(reply); i += 2)
		json_array_append_new(list, session_object(r, deadline_us, reply_at(reply, i),
							   reply_at(reply, i + 1)));
	text = json_dumps(list, JSON_COMPACT);
	json_decref(list);
	if (!text)
		return -ENOMEM;
	str_add(out, text);
	free(text);
	return str_error(out);
}
