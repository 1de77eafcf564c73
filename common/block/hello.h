/* SPDX-License-Identifier: Apache-2.0 */
/* The handshake: mutual HMAC-SHA256 with the group secret over role, versions, volume, group, node
 * ids and both nonces, and over TLS what binds it to the session. Pure but for random nonces.
 *
 *	asker  -> HELLO		msg_hello, nonce A; its last HELLO_KEY_ID bytes tell which secret
 *				the asker has, so that the daemon proves with that one
 *	daemon -> WELCOME	msg_hello with the chosen version, nonce B;
 *				HMAC(secret, "daemon" ‖ A's body ‖ B's body)
 *	asker  -> PROOF		HMAC(secret, "asker" ‖ A's body ‖ B's body); answered OK or DENIED
 *
 * On the unix socket WELCOME's HMAC is zero and PROOF is not sent: file permissions guard it. */
#ifndef STOKE_COMMON_BLOCK_HELLO_H
#define STOKE_COMMON_BLOCK_HELLO_H

#include "common/block/keys.h"
#include "common/hash.h"
#include "proto/msg.h"

/* the protocol's versions that are spoken; tests build a program that speaks older ones alone */
#ifndef HELLO_VERSION_MAX
#define HELLO_VERSION_MAX 2
#endif
enum { HELLO_VERSION_MIN = 1, HELLO_KEY_ID = 8 };

struct hello_id {
	uint8_t role;
	struct hash128 volume;
	const char *group, *node;
	const struct secret *secret; /* NULL: unix socket */
	const uint8_t *binding;	     /* TLS: TLS_BINDING bytes of the session; NULL: plain */
};

struct hello_state {
	uint8_t mine[MSG_HELLO_MAX], theirs[MSG_HELLO_MAX];
	size_t mine_len, theirs_len;
	uint8_t version;
};

/* asker: HELLO's body (room: MSG_HELLO_MAX); returns its length */
size_t hello_ask(const struct hello_id *id, struct hello_state *st, uint8_t *body);
/* asker: checks the daemon's answer: 0 and the PROOF body (MSG_HMAC bytes); -EACCES wrong proof or
 * group, -ESTALE other volume, -EPROTO, -EPROTONOSUPPORT */
int hello_prove(const struct hello_id *id, struct hello_state *st, const uint8_t *body, size_t n,
		uint8_t proof[MSG_HMAC]);
/* daemon: checks HELLO, writes the WELCOME body; *ret_role: the asker's. Same errors */
int hello_answer(const struct hello_id *id, struct hello_state *st, const uint8_t *body, size_t n,
		 uint8_t *ret_body, size_t *ret_len, uint8_t *ret_role);
/* daemon: checks PROOF, in constant time; -EACCES */
int hello_verify(const struct hello_id *id, const struct hello_state *st, const uint8_t *proof,
		 size_t n);

#endif
