/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of frames <-> structs. Pure: texts of parsed messages point into the body. */
#include "proto/msg.h"

#include <assert.h>
#include <string.h>

#include "proto/bytes.h"

/* role, two versions, 1 spare, volume, nonce, two length bytes */
enum { HELLO_FIXED = 4 + 16 + MSG_NONCE + 2 };

void msg_key_encode(const struct msg_key *k, uint8_t p[MSG_KEY])
{
	memcpy(p, k->volume, 16);
	put64(p + 16, k->slice);
	put32(p + 24, k->index);
	put32(p + 28, k->size);
}

ssize_t msg_key_decode(const uint8_t *p, size_t n, struct msg_key *ret)
{
	uint32_t size;

	if (n < MSG_KEY)
		return -EAGAIN;
	size = get32(p + 28);
	if (size == 0 || size > FRAME_BLOCK_MAX || get64(p + 16) == 0)
		return -EPROTO;
	memcpy(ret->volume, p, 16);
	ret->slice = get64(p + 16);
	ret->index = get32(p + 24);
	ret->size = size;
	return MSG_KEY;
}

size_t msg_get_encode(const struct msg_get *g, uint8_t p[MSG_GET])
{
	msg_key_encode(&g->key, p);
	put32(p + 32, g->off);
	put32(p + 36, g->len);
	return MSG_GET;
}

ssize_t msg_get_decode(const uint8_t *p, size_t n, struct msg_get *ret)
{
	struct msg_get g;
	ssize_t r;

	if (n < MSG_GET)
		return -EAGAIN;
	r = msg_key_decode(p, n, &g.key);
	if (r < 0)
		return r;
	g.off = get32(p + 32);
	g.len = get32(p + 36);
	if (g.len == 0 || g.off >= g.key.size || g.len > g.key.size - g.off || g.off % FRAME_PIECE)
		return -EPROTO;
	if (g.len % FRAME_PIECE && g.off + g.len != g.key.size)
		return -EPROTO;
	*ret = g;
	return MSG_GET;
}

void msg_mget_encode(uint64_t id, const uint8_t get[MSG_GET], uint8_t p[MSG_MGET])
{
	put64(p, id);
	memcpy(p + 8, get, MSG_GET);
}

ssize_t msg_mget_decode(const uint8_t *p, size_t n, uint64_t *ret_id, const uint8_t **ret_get)
{
	if (n < MSG_MGET)
		return -EPROTO;
	*ret_id = get64(p);
	*ret_get = p + 8;
	return MSG_MGET;
}

size_t msg_fill_encode(const struct msg_fill *f, uint8_t p[MSG_FILL])
{
	msg_key_encode(&f->key, p);
	if (!f->pins)
		return MSG_KEY;
	put64(p + MSG_KEY, f->until);
	return MSG_FILL;
}

ssize_t msg_fill_decode(const uint8_t *p, size_t n, struct msg_fill *ret)
{
	ssize_t r = msg_key_decode(p, n, &ret->key);

	if (r < 0)
		return r;
	if (n != MSG_KEY && n != MSG_FILL)
		return -EPROTO;
	ret->pins = n == MSG_FILL;
	ret->until = ret->pins ? get64(p + MSG_KEY) : 0;
	return (ssize_t)n;
}

size_t msg_hello_encode(const struct msg_hello *h, uint8_t p[MSG_HELLO_MAX])
{
	uint8_t *q = p + HELLO_FIXED;

	assert(h->group_len <= MSG_NAME_MAX && h->node_len <= MSG_NAME_MAX);
	p[0] = h->role;
	p[1] = h->version_min;
	p[2] = h->version_max;
	p[3] = 0;
	memcpy(p + 4, h->volume, 16);
	memcpy(p + 20, h->nonce, MSG_NONCE);
	p[20 + MSG_NONCE] = (uint8_t)h->group_len;
	p[21 + MSG_NONCE] = (uint8_t)h->node_len;
	if (h->group_len)
		memcpy(q, h->group, h->group_len);
	q += h->group_len;
	if (h->node_len)
		memcpy(q, h->node, h->node_len);
	return HELLO_FIXED + h->group_len + h->node_len;
}

ssize_t msg_hello_decode(const uint8_t *p, size_t n, struct msg_hello *ret)
{
	struct msg_hello h;

	if (n < HELLO_FIXED)
		return -EAGAIN;
	h.role = p[0];
	h.version_min = p[1];
	h.version_max = p[2];
	if (h.role < ROLE_MOUNT || h.role > ROLE_TOOL || h.version_min == 0 ||
	    h.version_max < h.version_min || p[3] != 0)
		return -EPROTO;
	memcpy(h.volume, p + 4, 16);
	memcpy(h.nonce, p + 20, MSG_NONCE);
	h.group_len = p[20 + MSG_NONCE];
	h.node_len = p[21 + MSG_NONCE];
	if (h.group_len > MSG_NAME_MAX || h.node_len > MSG_NAME_MAX)
		return -EPROTO;
	if (n < HELLO_FIXED + h.group_len + h.node_len)
		return -EAGAIN;
	h.group = (const char *)p + HELLO_FIXED;
	h.node = h.group + h.group_len;
	*ret = h;
	return (ssize_t)(HELLO_FIXED + h.group_len + h.node_len);
}

size_t msg_welcome_encode(const struct msg_welcome *w, uint8_t p[MSG_HELLO_MAX])
{
	size_t n = msg_hello_encode(&w->hello, p);

	memcpy(p + n, w->hmac, MSG_HMAC);
	return n + MSG_HMAC;
}

ssize_t msg_welcome_decode(const uint8_t *p, size_t n, struct msg_welcome *ret)
{
	ssize_t used = msg_hello_decode(p, n, &ret->hello);

	if (used < 0)
		return used;
	if (n - (size_t)used < MSG_HMAC)
		return -EAGAIN;
	memcpy(ret->hmac, p + used, MSG_HMAC);
	return used + MSG_HMAC;
}

void msg_list_encode(const struct msg_list *l, uint8_t p[MSG_LIST])
{
	put64(p, l->cursor);
	put32(p + 8, l->weight);
	put64(p + 12, l->member);
}

ssize_t msg_list_decode(const uint8_t *p, size_t n, struct msg_list *ret)
{
	if (n < MSG_LIST)
		return -EAGAIN;
	ret->cursor = get64(p);
	ret->weight = get32(p + 8);
	ret->member = get64(p + 12);
	return MSG_LIST;
}

void msg_list_key_encode(const struct msg_key *k, uint64_t until, uint8_t p[MSG_LIST_KEY])
{
	put64(p, k->slice);
	put32(p + 8, k->index);
	put32(p + 12, k->size);
	put64(p + 16, until);
}

ssize_t msg_list_key_decode(const uint8_t *p, size_t n, struct msg_key *ret, uint64_t *ret_until)
{
	uint32_t size;

	if (n < MSG_LIST_KEY)
		return -EAGAIN;
	size = get32(p + 12);
	if (size == 0 || size > FRAME_BLOCK_MAX || get64(p) == 0)
		return -EPROTO;
	ret->slice = get64(p);
	ret->index = get32(p + 8);
	ret->size = size;
	*ret_until = get64(p + 16);
	return MSG_LIST_KEY;
}

size_t msg_stat_encode(const struct msg_stat *s, uint8_t p[MSG_STAT])
{
	put64(p, s->blocks);
	put64(p + 8, s->bytes);
	put64(p + 16, s->capacity_bytes);
	put64(p + 24, s->hits);
	put64(p + 32, s->misses);
	put64(p + 40, s->fills);
	put64(p + 48, s->evictions);
	put64(p + 56, s->uptime_us);
	put64(p + 64, s->pinned_blocks);
	put64(p + 72, s->pinned_bytes);
	return MSG_STAT;
}

ssize_t msg_stat_decode(const uint8_t *p, size_t n, struct msg_stat *ret)
{
	if (n < MSG_STAT_1)
		return -EAGAIN;
	ret->blocks = get64(p);
	ret->bytes = get64(p + 8);
	ret->capacity_bytes = get64(p + 16);
	ret->hits = get64(p + 24);
	ret->misses = get64(p + 32);
	ret->fills = get64(p + 40);
	ret->evictions = get64(p + 48);
	ret->uptime_us = get64(p + 56);
	ret->pinned_blocks = n < MSG_STAT ? 0 : get64(p + 64);
	ret->pinned_bytes = n < MSG_STAT ? 0 : get64(p + 72);
	return n < MSG_STAT ? MSG_STAT_1 : MSG_STAT;
}

size_t msg_sums_len(size_t len)
{
	return 4 * ((len + FRAME_PIECE - 1) / FRAME_PIECE);
}

int msg_status_to_errno(unsigned status)
{
	assert(status != ST_FILLING);
	switch (status) {
#define STATUS(name, number, err)                                                                  \
	case number:                                                                               \
		return -(err);
#include "proto/ops.def"
	default:
		return -EIO;
	}
}

unsigned msg_errno_to_status(int err)
{
	static const struct {
		int err;
		unsigned status;
	} row[] = {
#define STATUS(name, number, e) {e, number},
#include "proto/ops.def"
		{ENOBUFS, ST_NO_MEMORY},
		{EAGAIN, ST_BUSY},
		{ECANCELED, ST_STOPPING},
	};

	/* the first row is OK, so that 0 is never taken for FILLING */
	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
		if (row[i].err == -err)
			return row[i].status;
	return ST_STORE_ERROR;
}
