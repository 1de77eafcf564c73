/* SPDX-License-Identifier: Apache-2.0 */
/* The handshake's bytes: who says what, and the two proofs over it. No thread, no state but the
 * caller's struct hello_state. OpenSSL only for HMAC, random nonces, constant-time comparison and
 * wiping. */
#include "common/block/hello.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "common/tls.h"

static const char DAEMON[] = "daemon", ASKER[] = "asker";

/* HMAC(secret, who ‖ asker's hello ‖ daemon's hello ‖ the TLS session's binding) */
static int hello_hmac(const struct secret *s, const char *who, const struct hello_id *id,
		      const struct hello_state *st, bool mine_first, uint8_t ret[MSG_HMAC])
{
	uint8_t all[sizeof(DAEMON) + 2 * MSG_HELLO_MAX + TLS_BINDING];
	const uint8_t *a = mine_first ? st->mine : st->theirs;
	const uint8_t *b = mine_first ? st->theirs : st->mine;
	size_t an = mine_first ? st->mine_len : st->theirs_len;
	size_t bn = mine_first ? st->theirs_len : st->mine_len;
	size_t n = strlen(who);
	unsigned len = MSG_HMAC;

	memcpy(all, who, n);
	memcpy(all + n, a, an);
	memcpy(all + n + an, b, bn);
	n += an + bn;
	if (id->binding) {
		memcpy(all + n, id->binding, TLS_BINDING);
		n += TLS_BINDING;
	}
	if (!HMAC(EVP_sha256(), s->b, (int)s->len, all, n, ret, &len) || len != MSG_HMAC)
		return -EACCES;
	return 0;
}

/* which of our secrets the other side proved; NULL: none. Each is looked at, in constant time. */
static const struct secret *hello_proved(const struct hello_id *id, const char *who,
					 const struct hello_state *st, bool mine_first,
					 const uint8_t proof[MSG_HMAC])
{
	const struct secret *found = NULL;
	uint8_t want[MSG_HMAC];

	for (const struct secret *s = id->secret; s; s = s->next)
		if (hello_hmac(s, who, id, st, mine_first, want) == 0 &&
		    CRYPTO_memcmp(proof, want, MSG_HMAC) == 0 && !found)
			found = s;
	return found;
}

/* names a secret to who has it, and tells nothing about it that the proofs do not */
static int secret_id(const struct secret *s, uint8_t ret[HELLO_KEY_ID])
{
	uint8_t mac[MSG_HMAC];
	unsigned len = MSG_HMAC;

	if (!HMAC(EVP_sha256(), s->b, (int)s->len, (const uint8_t *)"stoke key id", 12, mac, &len))
		return -EACCES;
	memcpy(ret, mac, HELLO_KEY_ID);
	return 0;
}

/* the one that the asker names, else the first */
static const struct secret *secret_named(const struct secret *first, const struct msg_hello *h)
{
	uint8_t id[HELLO_KEY_ID];

	for (const struct secret *s = first; s; s = s->next)
		if (secret_id(s, id) == 0 &&
		    memcmp(id, h->nonce + MSG_NONCE - HELLO_KEY_ID, HELLO_KEY_ID) == 0)
			return s;
	return first;
}

static int hello_fill(const struct hello_id *id, uint8_t vmin, uint8_t vmax, struct msg_hello *h)
{
	memset(h, 0, sizeof(*h));
	h->role = id->role;
	h->version_min = vmin;
	h->version_max = vmax;
	memcpy(h->volume, id->volume.b, sizeof(h->volume));
	if (RAND_bytes(h->nonce, sizeof(h->nonce)) != 1)
		return -EIO;
	h->group = id->group ? id->group : "";
	h->group_len = strnlen(h->group, MSG_NAME_MAX);
	h->node = id->node ? id->node : "";
	h->node_len = strnlen(h->node, MSG_NAME_MAX);
	return 0;
}

/* the other side's volume, group and version range against ours; *ret_version: the highest both
 * know */
static int hello_match(const struct hello_id *id, const struct msg_hello *h, uint8_t *ret_version)
{
	const char *group = id->group ? id->group : "";

	if (memcmp(h->volume, id->volume.b, sizeof(h->volume)) != 0)
		return -ESTALE;
	if (h->group_len != strnlen(group, MSG_NAME_MAX) ||
	    memcmp(h->group, group, h->group_len) != 0)
		return -EACCES;
	if (h->version_min > h->version_max || h->version_min > HELLO_VERSION_MAX ||
	    h->version_max < HELLO_VERSION_MIN)
		return -EPROTONOSUPPORT;
	*ret_version = MIN(h->version_max, (uint8_t)HELLO_VERSION_MAX);
	return 0;
}

size_t hello_ask(const struct hello_id *id, struct hello_state *st, uint8_t *body)
{
	struct msg_hello h;

	memset(st, 0, sizeof(*st));
	if (hello_fill(id, HELLO_VERSION_MIN, HELLO_VERSION_MAX, &h) < 0)
		return 0;
	/* to a daemon of version 1 this is part of the nonce, whose other bytes are enough */
	if (id->secret && secret_id(id->secret, h.nonce + MSG_NONCE - HELLO_KEY_ID) < 0)
		return 0;
	st->mine_len = msg_hello_encode(&h, st->mine);
	memcpy(body, st->mine, st->mine_len);
	return st->mine_len;
}

int hello_prove(const struct hello_id *id, struct hello_state *st, const uint8_t *body, size_t n,
		uint8_t proof[MSG_HMAC])
{
	static const uint8_t zero[MSG_HMAC];
	const struct secret *s;
	struct msg_welcome w;
	ssize_t used = msg_welcome_decode(body, n, &w);
	int r;

	if (used < MSG_HMAC || (size_t)used != n || n - MSG_HMAC > sizeof(st->theirs))
		return -EPROTO;
	if (w.hello.version_min != w.hello.version_max)
		return -EPROTO;
	r = hello_match(id, &w.hello, &st->version);
	if (r < 0)
		return r;
	st->theirs_len = n - MSG_HMAC;
	memcpy(st->theirs, body, st->theirs_len);
	memset(proof, 0, MSG_HMAC);
	if (!id->secret)
		return CRYPTO_memcmp(w.hmac, zero, MSG_HMAC) == 0 ? 0 : -EACCES;
	s = hello_proved(id, DAEMON, st, true, w.hmac);
	return s ? hello_hmac(s, ASKER, id, st, true, proof) : -EACCES;
}

int hello_answer(const struct hello_id *id, struct hello_state *st, const uint8_t *body, size_t n,
		 uint8_t *ret_body, size_t *ret_len, uint8_t *ret_role)
{
	struct msg_welcome w;
	struct msg_hello h;
	ssize_t used = msg_hello_decode(body, n, &h);
	int r;

	memset(st, 0, sizeof(*st));
	if (used < 0 || (size_t)used != n || n > sizeof(st->theirs))
		return -EPROTO;
	r = hello_match(id, &h, &st->version);
	if (r < 0)
		return r;
	st->theirs_len = n;
	memcpy(st->theirs, body, n);

	memset(&w, 0, sizeof(w));
	r = hello_fill(id, st->version, st->version, &w.hello);
	if (r < 0)
		return r;
	st->mine_len = msg_hello_encode(&w.hello, st->mine);
	if (id->secret) {
		r = hello_hmac(secret_named(id->secret, &h), DAEMON, id, st, false, w.hmac);
		if (r < 0)
			return r;
	}
	*ret_len = msg_welcome_encode(&w, ret_body);
	*ret_role = h.role;
	return 0;
}

int hello_verify(const struct hello_id *id, const struct hello_state *st, const uint8_t *proof,
		 size_t n)
{
	if (!id->secret || n != MSG_HMAC || st->theirs_len == 0 || st->mine_len == 0)
		return -EACCES;
	return hello_proved(id, ASKER, st, false, proof) ? 0 : -EACCES;
}
