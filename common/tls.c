/* SPDX-License-Identifier: Apache-2.0 */
/* OpenSSL over a non-blocking socket. Threads: whoever holds the struct tls; OpenSSL's queue of
 * errors is the thread's, so it is emptied before each call and read behind it.
 *
 * Out: one SSL_write a record. When the socket is full, OpenSSL has encrypted the record and wants
 * to be given the same bytes again; so they are copied to `stuck` and count as taken, and the
 * caller's buffers may change (an answer from memory may become one from a file). */
#include "common/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/stat.h>

struct tls_ctx {
	SSL_CTX *ctx;
	char *name;
	unsigned refs; /* atomic */
};

struct tls {
	struct tls_ctx *ctx;
	SSL *ssl;
	int fd;
	bool server, up, want_write;
	uint8_t *stuck; /* TLS_RECORD bytes; NULL: none */
	size_t stuck_len;
	char error[160];
};

/* --- certificates --- */

static int no_passphrase(char *buf, int size, int rw, void *arg)
{
	(void)buf;
	(void)size;
	(void)rw;
	*(bool *)arg = true;
	return -1;
}

static const char *reason(void)
{
	unsigned long e = ERR_peek_last_error();
	const char *s = e ? ERR_reason_error_string(e) : NULL;

	return s ? s : "unknown error";
}

static int file_bad(struct str *err, const char *option, const char *path)
{
	if (access(path, R_OK) < 0) {
		int e = errno;

		str_addf(err, "--%s %s: %s", option, path, strerror(e));
		return -e;
	}
	str_addf(err, "--%s %s: %s", option, path, reason());
	return -EINVAL;
}

static int load_key(SSL_CTX *ctx, const struct tls_files *f, struct str *err)
{
	bool asked = false;
	struct stat st;
	int r = 0;

	if (stat(f->key, &st) == 0 && (st.st_mode & S_IRWXO)) {
		str_addf(err, "--group-tls-key %s can be read by others: chmod o= %s", f->key,
			 f->key);
		return -EACCES;
	}
	SSL_CTX_set_default_passwd_cb(ctx, no_passphrase);
	SSL_CTX_set_default_passwd_cb_userdata(ctx, &asked);
	if (SSL_CTX_use_PrivateKey_file(ctx, f->key, SSL_FILETYPE_PEM) != 1) {
		if (asked)
			str_addf(err, "--group-tls-key %s: a key with a passphrase cannot be used",
				 f->key);
		r = asked ? -EINVAL : file_bad(err, "group-tls-key", f->key);
	}
	SSL_CTX_set_default_passwd_cb(ctx, NULL);
	SSL_CTX_set_default_passwd_cb_userdata(ctx, NULL);
	return r;
}

static int load(SSL_CTX *ctx, const struct tls_files *f, struct str *err)
{
	ERR_clear_error();
	if (SSL_CTX_use_certificate_chain_file(ctx, f->cert) != 1)
		return file_bad(err, "group-tls-cert", f->cert);
	if (SSL_CTX_load_verify_locations(ctx, f->ca, NULL) != 1)
		return file_bad(err, "group-tls-ca", f->ca);
	return load_key(ctx, f, err);
}

static bool setup(SSL_CTX *ctx)
{
	/* No tickets: connections live long, and a session of before proves nothing. No TLS in
	 * the kernel: OpenSSL 3 then sends a record again from where it was at first, not from
	 * `stuck` */
	SSL_CTX_set_options(ctx, SSL_OP_NO_TICKET);
	SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
	SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
				      SSL_MODE_RELEASE_BUFFERS);
	SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
	return SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) == 1 &&
	       SSL_CTX_set_num_tickets(ctx, 0) == 1 &&
	       SSL_CTX_set_ciphersuites(ctx, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:"
					     "TLS_CHACHA20_POLY1305_SHA256") == 1;
}

int tls_ctx_new(const struct tls_files *files, struct tls_ctx **ret, struct str *err)
{
	struct tls_ctx *c = calloc(1, sizeof(*c));
	int r = -ENOMEM;

	if (!c)
		return -ENOMEM;
	c->refs = 1;
	c->ctx = SSL_CTX_new(TLS_method());
	if (files->name)
		c->name = strdup(files->name);
	if (c->ctx && setup(c->ctx) && !files->name == !c->name)
		r = load(c->ctx, files, err);
	if (r < 0)
		tls_ctx_unref(c);
	else
		*ret = c;
	return r;
}

struct tls_ctx *tls_ctx_ref(struct tls_ctx *c)
{
	__atomic_fetch_add(&c->refs, 1, __ATOMIC_RELAXED);
	return c;
}

void tls_ctx_unref(struct tls_ctx *c)
{
	if (!c || __atomic_fetch_sub(&c->refs, 1, __ATOMIC_ACQ_REL) > 1)
		return;
	SSL_CTX_free(c->ctx);
	free(c->name);
	free(c);
}

/* --- a session --- */

int tls_new(struct tls_ctx *ctx, int fd, bool server, struct tls **ret)
{
	struct tls *t = calloc(1, sizeof(*t));

	if (!t)
		return -ENOMEM;
	ERR_clear_error();
	t->ctx = tls_ctx_ref(ctx);
	t->fd = fd;
	t->server = server;
	t->ssl = SSL_new(ctx->ctx);
	if (!t->ssl || SSL_set_fd(t->ssl, fd) != 1 ||
	    (ctx->name && SSL_set1_host(t->ssl, ctx->name) != 1)) {
		tls_free(t);
		return -ENOMEM;
	}
	if (server)
		SSL_set_accept_state(t->ssl);
	else
		SSL_set_connect_state(t->ssl);
	*ret = t;
	return 0;
}

void tls_free(struct tls *t)
{
	if (!t)
		return;
	/* no farewell: frames have lengths, and who reads on finds the end of the connection */
	SSL_free(t->ssl);
	ERR_clear_error();
	tls_ctx_unref(t->ctx);
	free(t->stuck);
	free(t);
}

static int fail(struct tls *t, int r, const char *what)
{
	snprintf(t->error, sizeof(t->error), "%s", what);
	return r;
}

/* the other side did not like us, or we it */
static int protocol_error(struct tls *t)
{
	long verdict = SSL_get_verify_result(t->ssl);
	int why = ERR_GET_REASON(ERR_peek_last_error());

	if (why == SSL_R_CERTIFICATE_VERIFY_FAILED && verdict != X509_V_OK) {
		snprintf(t->error, sizeof(t->error), "TLS: the other side's certificate: %s",
			 X509_verify_cert_error_string(verdict));
		return -EACCES;
	}
	if (why == SSL_R_UNEXPECTED_EOF_WHILE_READING)
		return fail(t, t->up ? 0 : -ECONNRESET, "closed in the TLS handshake");
	snprintf(t->error, sizeof(t->error), "TLS: %s", reason());
	switch (why) {
	case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
	case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
	case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
	case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
	case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
	case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
	case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
	case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
	case SSL_R_TLSV1_ALERT_ACCESS_DENIED:
		return -EACCES;
	default:
		return -EPROTO;
	}
}

/* what SSL_… answered when it did not do it */
static int verdict(struct tls *t, int ret)
{
	int e = errno;

	switch (SSL_get_error(t->ssl, ret)) {
	case SSL_ERROR_WANT_READ:
		return -EAGAIN;
	case SSL_ERROR_WANT_WRITE:
		t->want_write = true;
		return -EAGAIN;
	case SSL_ERROR_ZERO_RETURN:
		return t->up ? 0 : fail(t, -ECONNRESET, "closed in the TLS handshake");
	case SSL_ERROR_SYSCALL:
		return fail(t, -ECONNRESET, e ? strerror(e) : "closed by the other side");
	default:
		return protocol_error(t);
	}
}

static void begin(struct tls *t)
{
	ERR_clear_error();
	errno = 0;
	t->want_write = false;
}

/* the first byte tells: a TLS record of a handshake begins with 22, a frame of ours with "S" */
static int look(struct tls *t)
{
	uint8_t byte;
	ssize_t n = recv(t->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return -EAGAIN;
	if (n > 0 && byte != 22)
		return fail(t, -EPROTOTYPE, "plain bytes where TLS is expected");
	return n > 0 ? 0 : fail(t, -ECONNRESET, "closed before the TLS handshake");
}

int tls_handshake(struct tls *t)
{
	int r = 0;

	if (t->server && SSL_get_state(t->ssl) == TLS_ST_BEFORE)
		r = look(t);
	if (r < 0)
		return r;
	begin(t);
	r = SSL_do_handshake(t->ssl);
	if (r == 1) {
		t->up = true;
		return 0;
	}
	return verdict(t, r);
}

bool tls_is_up(const struct tls *t)
{
	return t->up;
}

int tls_binding(struct tls *t, uint8_t ret[TLS_BINDING])
{
	static const char label[] = "EXPORTER-stoke-hello";

	ERR_clear_error();
	if (SSL_export_keying_material(t->ssl, ret, TLS_BINDING, label, sizeof(label) - 1, NULL, 0,
				       0) == 1)
		return 0;
	return fail(t, -EPROTO, "TLS: no keying material");
}

ssize_t tls_recv(struct tls *t, void *p, size_t n)
{
	int got;

	begin(t);
	got = SSL_read(t->ssl, p, (int)MIN(n, (size_t)INT32_MAX));
	return got > 0 ? got : verdict(t, got);
}

bool tls_pending(const struct tls *t)
{
	return SSL_pending(t->ssl) > 0;
}

int tls_flush(struct tls *t)
{
	int put;

	if (!t->stuck)
		return 0;
	begin(t);
	put = SSL_write(t->ssl, t->stuck, (int)t->stuck_len);
	if (put > 0) {
		assert((size_t)put == t->stuck_len); /* a record goes whole */
		free(TAKE_PTR(t->stuck));
		return 0;
	}
	put = verdict(t, put);
	return put < 0 ? put : -ECONNRESET;
}

/* one record; n at most TLS_RECORD. 0 or -errno: then nothing was taken */
static int put_record(struct tls *t, const uint8_t *p, size_t n)
{
	int put, r;

	begin(t);
	put = SSL_write(t->ssl, p, (int)n);
	if (put > 0) {
		assert((size_t)put == n);
		return 0;
	}
	r = verdict(t, put);
	if (r != -EAGAIN)
		return r < 0 ? r : -ECONNRESET;
	t->stuck = malloc(TLS_RECORD);
	if (!t->stuck)
		return -ENOMEM;
	memcpy(t->stuck, p, n);
	t->stuck_len = n;
	return 0;
}

/* the next record of v from skip on: in place when one part fills it, else gathered in room */
static const uint8_t *next_record(const struct iovec *v, unsigned n, size_t skip, uint8_t *room,
				  size_t *ret_n)
{
	size_t have = 0;

	while (n > 0 && skip >= v->iov_len) {
		skip -= v->iov_len;
		v++;
		n--;
	}
	if (n > 0 && (v->iov_len - skip >= TLS_RECORD || n == 1)) {
		*ret_n = MIN(v->iov_len - skip, (size_t)TLS_RECORD);
		return (const uint8_t *)v->iov_base + skip;
	}
	for (; n > 0 && have < TLS_RECORD; v++, n--) {
		size_t part = MIN(v->iov_len - skip, TLS_RECORD - have);

		memcpy(room + have, (const uint8_t *)v->iov_base + skip, part);
		have += part;
		skip = 0;
	}
	*ret_n = have;
	return room;
}

ssize_t tls_send(struct tls *t, const struct iovec *v, unsigned n)
{
	uint8_t room[TLS_RECORD];
	size_t done = 0;
	int r = tls_flush(t);

	while (r == 0 && !t->stuck) {
		size_t len;
		const uint8_t *p = next_record(v, n, done, room, &len);

		if (len == 0)
			break;
		r = put_record(t, p, len);
		if (r == 0)
			done += len;
	}
	return done ? (ssize_t)done : r;
}

ssize_t tls_sendfile(struct tls *t, int fd, uint64_t off, size_t n)
{
	uint8_t room[TLS_RECORD];
	ssize_t got;
	int r = tls_flush(t);

	if (r < 0)
		return r;
	do
		got = pread(fd, room, MIN(n, sizeof(room)), (off_t)off);
	while (got < 0 && errno == EINTR);
	if (got <= 0)
		return got == 0 ? -ENODATA : -errno;
	r = put_record(t, room, (size_t)got);
	return r < 0 ? r : got;
}

bool tls_wants_write(const struct tls *t)
{
	return t->stuck || t->want_write;
}

const char *tls_error(const struct tls *t)
{
	return t->error;
}
