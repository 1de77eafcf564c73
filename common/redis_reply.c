/* SPDX-License-Identifier: Apache-2.0 */
/* What a Redis answered, behind a header without hiredis. Pure; any thread. */
#include "common/redis.h"

#include <hiredis/hiredis.h>
#undef REDIS_ERR /* hiredis's return code of that name is not used here; ours is a type */

static const redisReply *reply_of(const struct redis_reply *r)
{
	return (const redisReply *)(const void *)r;
}

enum redis_type redis_reply_type(const struct redis_reply *r)
{
	switch (reply_of(r)->type) {
	case REDIS_REPLY_INTEGER:
		return REDIS_INT;
	case REDIS_REPLY_STRING:
		return REDIS_STR;
	case REDIS_REPLY_STATUS:
		return REDIS_STATUS;
	case REDIS_REPLY_ERROR:
		return REDIS_ERR;
	case REDIS_REPLY_ARRAY:
		return REDIS_ARRAY;
	default:
		return REDIS_NIL;
	}
}

int64_t redis_reply_int(const struct redis_reply *r)
{
	const redisReply *h = reply_of(r);
	char *end;
	long long v;

	if (h->type == REDIS_REPLY_INTEGER)
		return h->integer;
	if (h->type != REDIS_REPLY_STRING || !h->len)
		return 0;
	errno = 0;
	v = strtoll(h->str, &end, 10);
	return errno || end != h->str + h->len ? 0 : v;
}

const char *redis_reply_str(const struct redis_reply *r, size_t *len)
{
	const redisReply *h = reply_of(r);
	bool text = h->type == REDIS_REPLY_STRING || h->type == REDIS_REPLY_STATUS ||
		    h->type == REDIS_REPLY_ERROR;

	if (len)
		*len = text ? (size_t)h->len : 0;
	return text ? h->str : NULL;
}

size_t redis_reply_len(const struct redis_reply *r)
{
	const redisReply *h = reply_of(r);

	return h->type == REDIS_REPLY_ARRAY ? h->elements : 0;
}

const struct redis_reply *redis_reply_at(const struct redis_reply *r, size_t i)
{
	const redisReply *h = reply_of(r);

	if (h->type != REDIS_REPLY_ARRAY || i >= h->elements)
		return NULL;
	return (const struct redis_reply *)(const void *)h->element[i];
}

void redis_reply_free(struct redis_reply *r)
{
	if (r)
		freeReplyObject(r);
}

void redis_reply_freep(struct redis_reply **r)
{
	redis_reply_free(*r);
}
