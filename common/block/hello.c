/* SPDX-License-Identifier: Apache-2.0 */
/* The handshake's bytes: who says what, and the two proofs over it. No thread, no state but the
 * caller's struct hello_state. OpenSSL only for HMAC, random nonces, constant-time comparison and
 * wiping. */
#include "common/block/hello.h"

#include <ctype.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

static const char DAEMON[] = "daemon", ASKER[] = "asker";

/* HMAC(secret, who ‖ asker's hello ‖ daemon's hello) */
static int hello_hmac(const struct secret *s, const char *who, const struct hello_state *st,
		      bool mine_first, uint8_t ret[MSG_HMAC])
{
	uint8_t all[sizeof(DAEMON) + 2 * MSG_HELLO_MAX];
	const uint8_t *a = mine_first ? st->mine : st->theirs;
	const uint8_t *b = mine_first ? st->theirs : st->mine;
	size_t an = mine_first ? st->mine_len : st->theirs_len;
	size_t bn = mine_first ? st->theirs_len : st->mine_len;
	size_t n = strlen(who);
	unsigned len = MSG_HMAC;

	memcpy(all, who, n);
	memcpy(all + n, a, an);
	memcpy(all + n + an, b, bn);
	if (!HMAC(EVP_sha256(), s->b, (int)s->len, all, n + an + bn, ret, &len) || len != MSG_HMAC)
		return -EACCES;
	return 0;
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
	st->mine_len = msg_hello_encode(&h, st->mine);
	memcpy(body, st->mine, st->mine_len);
	return st->mine_len;
}

int hello_prove(const struct hello_id *id, struct hello_state *st, const uint8_t *body, size_t n,
		uint8_t proof[MSG_HMAC])
{
	static const uint8_t zero[MSG_HMAC];
	uint8_t want[MSG_HMAC];
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
	r = hello_hmac(id->secret, DAEMON, st, true, want);
	if (r < 0)
		return r;
	if (CRYPTO_memcmp(w.hmac, want, MSG_HMAC) != 0)
		return -EACCES;
	return hello_hmac(id->secret, ASKER, st, true, proof);
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
		r = hello_hmac(id->secret, DAEMON, st, false, w.hmac);
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
	uint8_t want[MSG_HMAC];
	int r;

	if (!id->secret || n != MSG_HMAC || st->theirs_len == 0 || st->mine_len == 0)
		return -EACCES;
	r = hello_hmac(id->secret, ASKER, st, false, want);
	if (r < 0)
		return r;
	return CRYPTO_memcmp(proof, want, MSG_HMAC) == 0 ? 0 : -EACCES;
}

static int secret_read(const char *file, char *buf, size_t cap, size_t *ret_n, struct str *err)
{
	_cleanup_(closep) int fd = open(file, O_RDONLY | O_CLOEXEC | O_NOCTTY);
	struct stat st;
	size_t n = 0;

	if (fd < 0 || fstat(fd, &st) < 0) {
		int e = errno;

		str_addf(err, "group secret %s: %s", file, strerror(e));
		return -e;
	}
	if (st.st_mode & S_IRWXO) {
		str_addf(err, "group secret %s can be read by others: chmod o= %s", file, file);
		return -EACCES;
	}
	while (n < cap) {
		ssize_t r = read(fd, buf + n, cap - n);

		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0) {
			int e = errno;

			str_addf(err, "group secret %s: %s", file, strerror(e));
			return -e;
		}
		if (r == 0)
			break;
		n += (size_t)r;
	}
	*ret_n = n;
	return 0;
}

int secret_load(const char *file, struct secret *ret, struct str *err)
{
	char buf[HELLO_SECRET_MAX + 2];
	const char *from = file ? file : "STOKE_GROUP_SECRET";
	size_t n = 0;
	int r = 0;

	if (file) {
		r = secret_read(file, buf, sizeof(buf), &n, err);
	} else {
		const char *env = getenv("STOKE_GROUP_SECRET");

		if (!env) {
			str_add(err, "a group over TCP needs a secret: give --group-secret-file or "
				     "the environment variable STOKE_GROUP_SECRET");
			return -ENOENT;
		}
		n = strnlen(env, sizeof(buf));
		memcpy(buf, env, n);
	}
	while (r == 0 && n > 0 && isspace((unsigned char)buf[n - 1]))
		n--;
	if (r == 0 && (n < HELLO_SECRET_MIN || n > HELLO_SECRET_MAX)) {
		str_addf(err,
			 "group secret (%s) must have %d to %d bytes; make one with: head -c "
			 "32 /dev/urandom | base64",
			 from, HELLO_SECRET_MIN, HELLO_SECRET_MAX);
		r = -EINVAL;
	}
	if (r == 0) {
		uint8_t *b = malloc(n);

		if (b) {
			memcpy(b, buf, n);
			ret->b = b;
			ret->len = n;
		} else {
			r = -ENOMEM;
		}
	}
	OPENSSL_cleanse(buf, sizeof(buf));
	return r;
}

void secret_fini(struct secret *s)
{
	if (s->b)
		OPENSSL_cleanse(s->b, s->len);
	free(s->b);
	s->b = NULL;
	s->len = 0;
}
