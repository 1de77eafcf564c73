/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of a Redis reply that may not be there: NULL has no type, text, number or elements. Private
 * to client/meta. */
#ifndef STOKE_CLIENT_META_REPLY_H
#define STOKE_CLIENT_META_REPLY_H

#include "common/redis.h"

static inline enum redis_type reply_type(const struct redis_reply *r)
{
	return r ? redis_reply_type(r) : REDIS_NIL;
}

static inline int64_t reply_int(const struct redis_reply *r)
{
	return r ? redis_reply_int(r) : 0;
}

static inline const char *reply_text(const struct redis_reply *r, size_t *len)
{
	*len = 0;
	return r ? redis_reply_str(r, len) : NULL;
}

static inline size_t reply_len(const struct redis_reply *r)
{
	return r ? redis_reply_len(r) : 0;
}

static inline const struct redis_reply *reply_at(const struct redis_reply *r, size_t i)
{
	return r ? redis_reply_at(r, i) : NULL;
}

#endif
