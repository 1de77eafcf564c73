/* SPDX-License-Identifier: Apache-2.0 */
/* The frame header <-> struct frame. Pure: no I/O, no memory. */
#include "proto/frame.h"

#include <assert.h>

#include "proto/bytes.h"

/* CRC-32C, bit by bit: 28 bytes a frame, and proto links nothing */
static uint32_t header_crc(const uint8_t *p, size_t n)
{
	static const uint32_t half[16] = {
		0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
		0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
		0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
	};
	uint32_t c = 0xffffffffU;

	for (size_t i = 0; i < n; i++) {
		c ^= p[i];
		c = (c >> 4) ^ half[c & 15];
		c = (c >> 4) ^ half[c & 15];
	}
	return ~c;
}

static int op_limit(unsigned op, uint32_t *ret)
{
	switch (op) {
#define OP(name, number, max_body)                                                                 \
	case number:                                                                               \
		*ret = (uint32_t)(max_body);                                                       \
		return 0;
#include "proto/ops.def"
	default:
		return -1;
	}
}

static int status_known(unsigned status)
{
	switch (status) {
#define STATUS(name, number, err)                                                                  \
	case number:                                                                               \
		return 1;
#include "proto/ops.def"
	default:
		return 0;
	}
}

/* Only a good answer to GET carries block data; RING's grows with the group. */
static uint32_t answer_limit(unsigned op, unsigned status)
{
	if (status == ST_OK && op == OP_GET)
		return FRAME_BODY_MAX;
	if (status == ST_OK && op == OP_RING)
		return FRAME_RING_MAX;
	if (status == ST_OK && op == OP_LIST)
		return FRAME_LIST_MAX;
	return FRAME_SMALL_MAX;
}

void frame_encode(const struct frame *f, uint8_t *p)
{
	put32(p, FRAME_MAGIC);
	p[4] = f->version;
	p[5] = f->op;
	put16(p + 6, f->status);
	put64(p + 8, f->id);
	put32(p + 16, f->flags);
	put32(p + 20, f->left_us);
	put32(p + 24, f->body_len);
	put32(p + 28, header_crc(p, 28));
}

ssize_t frame_decode(const uint8_t *p, size_t n, int is_answer, struct frame *ret)
{
	struct frame f;
	uint32_t limit;

	/* a stranger is told apart by his first bytes, not after 32 of them */
	if (n >= 4 && get32(p) != FRAME_MAGIC)
		return -EPROTO;
	if (n < FRAME_HEADER)
		return -EAGAIN;
	if (header_crc(p, 28) != get32(p + 28))
		return -EPROTO;
	f.version = p[4];
	f.op = p[5];
	f.status = get16(p + 6);
	f.id = get64(p + 8);
	f.flags = get32(p + 16);
	f.left_us = get32(p + 20);
	f.body_len = get32(p + 24);
	if (f.version != FRAME_VERSION || (f.flags & ~(uint32_t)FRAME_ALL_FLAGS) ||
	    op_limit(f.op, &limit) < 0)
		return -EPROTO;
	if (is_answer) {
		if (!status_known(f.status))
			return -EPROTO;
		limit = answer_limit(f.op, f.status);
	} else if (f.status != ST_OK) {
		return -EPROTO;
	}
	if (f.body_len > limit)
		return -EPROTO;
	*ret = f;
	return FRAME_HEADER;
}

const char *op_name(unsigned op)
{
	switch (op) {
#define OP(name, number, max_body)                                                                 \
	case number:                                                                               \
		return #name;
#include "proto/ops.def"
	default:
		return "?";
	}
}

const char *status_name(unsigned status)
{
	switch (status) {
#define STATUS(name, number, err)                                                                  \
	case number:                                                                               \
		return #name;
#include "proto/ops.def"
	default:
		return "?";
	}
}
