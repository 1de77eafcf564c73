/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of frames <-> structs. Parsers return the bytes used, -EAGAIN (too short) or -EPROTO
 * (refused); encoders write into buffers whose size the header states and return the length. No
 * allocation: texts point into the body. */
#ifndef STOKE_PROTO_MSG_H
#define STOKE_PROTO_MSG_H

#include <stdbool.h>

#include "proto/frame.h"

enum {
	MSG_KEY = 32,
	MSG_GET = 40,
	MSG_FILL = 40,
	MSG_MGET = 48, /* one of an MGET's: the id of its answer, and a GET */
	MSG_MGET_MAX = 40,
	MSG_NONCE = 32,
	MSG_HMAC = 32,
	MSG_NAME_MAX = 128, /* group and node names */
	MSG_HELLO_MAX = 1024,
	MSG_STAT = 80,
	MSG_STAT_1 = 64, /* in version 1 */
	MSG_LIST = 20,
	MSG_LIST_HEAD = 8, /* of an answer to LIST, then keys */
	MSG_LIST_KEY = 24,
	MSG_REASON_MAX = 1024,
};

/* which bytes: volume id ‖ slice ‖ index ‖ size, 32 bytes on the wire; digests are taken over
 * exactly these */
struct msg_key {
	uint8_t volume[16];
	uint64_t slice;
	uint32_t index, size;
};
/* range: off is a multiple of FRAME_PIECE, and so is len unless the range ends with the block */
struct msg_get {
	struct msg_key key;
	uint32_t off, len;
};

/* the date (unix seconds; in the past: no longer) only when pins, and only from version 2 on */
struct msg_fill {
	struct msg_key key;
	bool pins;
	uint64_t until;
};

enum msg_role { ROLE_MOUNT = 1, ROLE_MEMBER = 2, ROLE_TOOL = 3 };

struct msg_hello {
	uint8_t role, version_min, version_max;
	uint8_t volume[16];
	uint8_t nonce[MSG_NONCE];
	const char *group, *node; /* not NUL-terminated */
	size_t group_len, node_len;
};
/* the daemon's: the same fields (version_min = version_max = chosen), then its proof; zeros on the
 * unix socket */
struct msg_welcome {
	struct msg_hello hello;
	uint8_t hmac[MSG_HMAC];
};

struct msg_stat {
	uint64_t blocks, bytes, capacity_bytes, hits, misses, fills, evictions, uptime_us;
	uint64_t pinned_blocks, pinned_bytes; /* version 2 */
};

/* LIST: the walk's cursor (0: from the start), the weight that the asking member has,
 * and XXH3-64 of its id. Answer: the next cursor (0: that was all), then keys without their volume,
 * which is the connection's, each with the date until which it is pinned (0: it is not). */
struct msg_list {
	uint64_t cursor, member;
	uint32_t weight;
};

void msg_key_encode(const struct msg_key *k, uint8_t p[MSG_KEY]);
/* size 0 or above FRAME_BLOCK_MAX: -EPROTO */
ssize_t msg_key_decode(const uint8_t *p, size_t n, struct msg_key *ret);
size_t msg_get_encode(const struct msg_get *g, uint8_t p[MSG_GET]);
/* range outside the block or not whole pieces: -EPROTO */
ssize_t msg_get_decode(const uint8_t *p, size_t n, struct msg_get *ret);
/* one entry of an MGET */
void msg_mget_encode(uint64_t id, const uint8_t get[MSG_GET], uint8_t p[MSG_MGET]);
/* the id of the entry at p; *ret_get: its GET, inside p. n is the rest of the body. Returns the
 * bytes used or -EPROTO */
ssize_t msg_mget_decode(const uint8_t *p, size_t n, uint64_t *ret_id, const uint8_t **ret_get);
size_t msg_fill_encode(const struct msg_fill *f, uint8_t p[MSG_FILL]);
/* n must be the body's length */
ssize_t msg_fill_decode(const uint8_t *p, size_t n, struct msg_fill *ret);
size_t msg_hello_encode(const struct msg_hello *h, uint8_t p[MSG_HELLO_MAX]);
ssize_t msg_hello_decode(const uint8_t *p, size_t n, struct msg_hello *ret);
size_t msg_welcome_encode(const struct msg_welcome *w, uint8_t p[MSG_HELLO_MAX]);
ssize_t msg_welcome_decode(const uint8_t *p, size_t n, struct msg_welcome *ret);
void msg_list_encode(const struct msg_list *l, uint8_t p[MSG_LIST]);
ssize_t msg_list_decode(const uint8_t *p, size_t n, struct msg_list *ret);
void msg_list_key_encode(const struct msg_key *k, uint64_t until, uint8_t p[MSG_LIST_KEY]);
/* ret's volume is left alone. Refuses what msg_key_decode refuses */
ssize_t msg_list_key_decode(const uint8_t *p, size_t n, struct msg_key *ret, uint64_t *ret_until);
size_t msg_stat_encode(const struct msg_stat *s, uint8_t p[MSG_STAT]);
/* also the shorter one of version 1: nothing is pinned then */
ssize_t msg_stat_decode(const uint8_t *p, size_t n, struct msg_stat *ret);

/* bytes of checksums behind len bytes of data */
size_t msg_sums_len(size_t len);
/* status of the wire <-> negative errno; FILLING is not an error and asserts. Unknown statuses
 * become -EIO. */
int msg_status_to_errno(unsigned status);
unsigned msg_errno_to_status(int err);

#endif
