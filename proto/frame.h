/* SPDX-License-Identifier: Apache-2.0 */
/* The fixed header before every body, in both directions. All numbers big-endian. proto/README.md
 * is the protocol in prose.
 *
 *	off size
 *	 0   4  magic 0x53544b45 "STKE"
 *	 4   1  version of this frame layout and its operation (1)
 *	 5   1  operation (ops.def); an answer repeats the request's
 *	 6   2  status (ops.def); 0 in requests
 *	 8   8  request id, chosen by the asker: unique among those in flight on the connection
 *	16   4  flags (enum frame_flag)
 *	20   4  remaining time in microseconds that the asker will wait; 0: no limit. 0 in answers
 *	24   4  length of the body that follows, at most FRAME_BODY_MAX
 *	28   4  CRC-32C of bytes 0…27
 */
#ifndef STOKE_PROTO_FRAME_H
#define STOKE_PROTO_FRAME_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
	FRAME_MAGIC = 0x53544b45,
	FRAME_VERSION = 1,
	FRAME_HEADER = 32,
	FRAME_PIECE = 32768,	    /* unit of checksums; ranges on the wire are whole pieces */
	FRAME_BLOCK_MAX = 16 << 20, /* largest block of a volume */
	FRAME_SUMS_MAX = 4 * (FRAME_BLOCK_MAX / FRAME_PIECE),
	FRAME_SMALL_MAX = 4096,	  /* bodies without block data */
	FRAME_RING_MAX = 4 << 20, /* answer to RING: all members */
	FRAME_LIST_MAX = 65536,	  /* answer to LIST */
	FRAME_BODY_MAX = FRAME_BLOCK_MAX + FRAME_SUMS_MAX + 64,
};

enum frame_flag {
	FRAME_NO_FILL = 1,  /* look in the store only */
	FRAME_PREFETCH = 2, /* nobody waits for it yet */
	FRAME_WANT_FD = 4,  /* unix socket: answer with a descriptor if the block is a file */
	FRAME_HAS_FD = 8,   /* answer: a descriptor came with the header (SCM_RIGHTS), no body */
	FRAME_ALL_FLAGS = 15,
};

struct frame {
	uint8_t version, op;
	uint16_t status;
	uint64_t id;
	uint32_t flags, left_us, body_len;
};

enum op {
#define OP(name, number, max_body) OP_##name = number,
#include "proto/ops.def"
};

enum status {
#define STATUS(name, number, err) ST_##name = number,
#include "proto/ops.def"
};

/* writes FRAME_HEADER bytes */
void frame_encode(const struct frame *f, uint8_t *p);
/* FRAME_HEADER; -EAGAIN: fewer bytes than a header; -EPROTO: wrong magic, version, checksum,
 * unknown operation or flag, or a body longer than this operation may have (so that nothing is
 * allocated for it). is_answer: status and the limits of answers apply. */
ssize_t frame_decode(const uint8_t *p, size_t n, int is_answer, struct frame *ret);
const char *op_name(unsigned op); /* "GET"; "?" if unknown */
const char *status_name(unsigned status);

#endif
