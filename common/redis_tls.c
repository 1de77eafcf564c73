/* SPDX-License-Identifier: Apache-2.0 */
/* OpenSSL for connections to Redis. Threads: any that may block; OpenSSL's queue of errors is the
 * thread's, so it is emptied before each call and read behind it. */
#include "common/redis_tls.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>

#include "common/clock.h"
#include "common/fiber.h"

struct redis_tls {
	SSL_CTX *ctx;
	char *server_name;
};

struct redis_tls_conn {
	SSL *ssl;
	int fd;
	char error[160];
};

/* a key that wants a passphrase: nobody is asked, nothing is looked up */
static int no_passphrase(char *buf, int size, int rw, void *arg)
{
	(void)buf;
	(void)size;
	(void)rw;
	*(bool *)arg = true;
	return -1;
}

static const char *ssl_reason(void)
{
	unsigned long e = ERR_peek_last_error();
	const char *s = e ? ERR_reason_error_string(e) : NULL;

	return s ? s : "unknown error";
}

static int file_bad(struct str *err, const char *what, const char *path)
{
	if (access(path, R_OK) < 0) {
		int e = errno;

		str_addf(err, "%s %s: %s", what, path, strerror(e));
		return -e;
	}
	str_addf(err, "%s %s: %s", what, path, ssl_reason());
	return -EINVAL;
}

static int load_own(SSL_CTX *ctx, const struct redis_tls_conf *conf, struct str *err)
{
	bool asked = false;
	int r = 0;

	if (!conf->cert)
		return 0;
	SSL_CTX_set_default_passwd_cb(ctx, no_passphrase);
	SSL_CTX_set_default_passwd_cb_userdata(ctx, &asked);
	ERR_clear_error();
	if (SSL_CTX_use_certificate_chain_file(ctx, conf->cert) != 1) {
		r = file_bad(err, "tls-cert-file", conf->cert);
	} else if (SSL_CTX_use_PrivateKey_file(ctx, conf->key, SSL_FILETYPE_PEM) != 1) {
		if (asked) {
			str_addf(err, "tls-key-file %s: a key with a passphrase cannot be used",
				 conf->key);
			r = -EINVAL;
		} else {
			r = file_bad(err, "tls-key-file", conf->key);
		}
	}
	SSL_CTX_set_default_passwd_cb(ctx, NULL);
	SSL_CTX_set_default_passwd_cb_userdata(ctx, NULL);
	return r;
}

static int load_ca(SSL_CTX *ctx, const struct redis_tls_conf *conf, struct str *err)
{
	ERR_clear_error();
	if (!conf->ca)
		return SSL_CTX_set_default_verify_paths(ctx) == 1 ? 0 : -ENOMEM;
	if (SSL_CTX_load_verify_locations(ctx, conf->ca, NULL) != 1)
		return file_bad(err, "tls-ca-cert-file", conf->ca);
	return 0;
}

int redis_tls_new(const struct redis_tls_conf *conf, struct redis_tls **ret, struct str *err)
{
	struct redis_tls *t = calloc(1, sizeof(*t));
	int r = -ENOMEM;

	if (!t)
		return -ENOMEM;
	t->ctx = SSL_CTX_new(TLS_client_method());
	if (conf->server_name)
		t->server_name = strdup(conf->server_name);
	if (t->ctx && !conf->server_name == !t->server_name) {
		SSL_CTX_set_min_proto_version(t->ctx, TLS1_2_VERSION);
		SSL_CTX_set_mode(t->ctx, SSL_MODE_ENABLE_PARTIAL_WRITE |
						 SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
		SSL_CTX_set_verify(t->ctx, conf->skip_verify ? SSL_VERIFY_NONE : SSL_VERIFY_PEER,
				   NULL);
		r = load_own(t->ctx, conf, err);
		if (r == 0)
			r = load_ca(t->ctx, conf, err);
	}
	if (r < 0) {
		redis_tls_free(t);
		return r;
	}
	*ret = t;
	return 0;
}

void redis_tls_free(struct redis_tls *t)
{
	if (!t)
		return;
	SSL_CTX_free(t->ctx);
	free(t->server_name);
	free(t);
}

int redis_fd_wait(int fd, short events, uint64_t deadline_us)
{
	for (;;) {
		uint64_t left = clock_left(deadline_us);
		int r;

		if (!left)
			return -ETIMEDOUT;
		left = MIN(left, (uint64_t)60000000);
		r = fiber_poll(fd, events, (int)DIV_UP(left, 1000));
		if (r > 0)
			return 0;
		if (r < 0 && errno != EINTR)
			return -errno;
	}
}

static int fail(struct redis_tls_conn *c, int r, const char *what)
{
	snprintf(c->error, sizeof(c->error), "%s", what);
	return r;
}

/* the server did not like us, or we it */
static int protocol_error(struct redis_tls_conn *c)
{
	unsigned long e = ERR_peek_last_error();
	long verdict = SSL_get_verify_result(c->ssl);
	int reason = ERR_GET_REASON(e);

	if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED && verdict != X509_V_OK) {
		snprintf(c->error, sizeof(c->error), "TLS: the server's certificate: %s",
			 X509_verify_cert_error_string(verdict));
		return -EACCES;
	}
	if (reason == SSL_R_UNEXPECTED_EOF_WHILE_READING)
		return fail(c, -ECONNRESET, "connection closed by the server");
	snprintf(c->error, sizeof(c->error), "TLS: %s", ssl_reason());
	switch (reason) {
	case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
	case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
	case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
	case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
	case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
	case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
	case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
	case SSL_R_TLSV1_ALERT_ACCESS_DENIED:
	case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE: /* TLS 1.2's word for a missing certificate */
		return -EACCES;
	default:
		return -EPROTO;
	}
}

/* what SSL_… answered: 1 when it is to be done again, 0 at the end, or an errno */
static int step(struct redis_tls_conn *c, int ret, uint64_t deadline_us)
{
	int e = errno, r;

	switch (SSL_get_error(c->ssl, ret)) {
	case SSL_ERROR_WANT_READ:
		r = redis_fd_wait(c->fd, POLLIN, deadline_us);
		break;
	case SSL_ERROR_WANT_WRITE:
		r = redis_fd_wait(c->fd, POLLOUT, deadline_us);
		break;
	case SSL_ERROR_ZERO_RETURN:
		return 0;
	case SSL_ERROR_SYSCALL:
		return fail(c, -ECONNRESET, e ? strerror(e) : "connection closed by the server");
	default:
		return protocol_error(c);
	}
	if (r == -ETIMEDOUT)
		return fail(c, r, "timed out");
	return r < 0 ? fail(c, -ECONNRESET, strerror(-r)) : 1;
}

/* the name that the certificate must have, asked for by SNI when it is one */
static bool expect_name(SSL *ssl, const char *name)
{
	uint8_t number[16];

	if (inet_pton(AF_INET, name, number) == 1 || inet_pton(AF_INET6, name, number) == 1)
		return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name) == 1;
	return SSL_set1_host(ssl, name) == 1 && SSL_set_tlsext_host_name(ssl, name) == 1;
}

int redis_tls_connect(struct redis_tls *t, int fd, const char *host, uint64_t deadline_us,
		      struct redis_tls_conn **ret, struct str *why)
{
	struct redis_tls_conn *c = calloc(1, sizeof(*c));
	int r = -ENOMEM, done;

	if (!c)
		return -ENOMEM;
	c->fd = fd;
	ERR_clear_error();
	c->ssl = SSL_new(t->ctx);
	if (!c->ssl || SSL_set_fd(c->ssl, fd) != 1 ||
	    !expect_name(c->ssl, t->server_name ? t->server_name : host)) {
		redis_tls_close(c);
		return -ENOMEM;
	}
	do {
		ERR_clear_error();
		errno = 0;
		done = SSL_connect(c->ssl);
		r = done == 1 ? 0 : step(c, done, deadline_us);
	} while (r == 1);
	if (done != 1) {
		if (r == 0)
			r = fail(c, -ECONNRESET, "connection closed by the server");
		if (why)
			str_addf(why, "%s%s", c->error,
				 r == -ETIMEDOUT
					 ? " in the TLS handshake: does the server speak TLS?"
					 : "");
		redis_tls_close(c);
		return r;
	}
	*ret = c;
	return 0;
}

void redis_tls_close(struct redis_tls_conn *c)
{
	if (!c)
		return;
	ERR_clear_error();
	/* a word of farewell, if the socket takes it; nothing waits for the answer */
	if (c->ssl && SSL_is_init_finished(c->ssl))
		(void)SSL_shutdown(c->ssl);
	SSL_free(c->ssl);
	ERR_clear_error();
	free(c);
}

ssize_t redis_tls_read(struct redis_tls_conn *c, void *p, size_t n, uint64_t deadline_us)
{
	for (;;) {
		int got, r;

		ERR_clear_error();
		errno = 0;
		got = SSL_read(c->ssl, p, (int)MIN(n, (size_t)INT32_MAX));
		if (got > 0)
			return got;
		r = step(c, got, deadline_us);
		if (r != 1)
			return r;
	}
}

/* A server that closed may have said why: with TLS 1.3 it judges our certificate when we are done
 * with the handshake. */
static int last_word(struct redis_tls_conn *c)
{
	char byte;
	int got;

	ERR_clear_error();
	got = SSL_peek(c->ssl, &byte, 1);
	if (got > 0 || SSL_get_error(c->ssl, got) != SSL_ERROR_SSL)
		return -ECONNRESET;
	return protocol_error(c);
}

ssize_t redis_tls_write(struct redis_tls_conn *c, const void *p, size_t n, uint64_t deadline_us)
{
	for (;;) {
		int put, r;

		ERR_clear_error();
		errno = 0;
		put = SSL_write(c->ssl, p, (int)MIN(n, (size_t)INT32_MAX));
		if (put > 0)
			return put;
		r = step(c, put, deadline_us);
		if (r == 0)
			return fail(c, -ECONNRESET, "connection closed by the server");
		if (r == -ECONNRESET)
			return last_word(c);
		if (r != 1)
			return r;
	}
}

bool redis_tls_is_quiet(struct redis_tls_conn *c)
{
	char byte;
	int r;

	if (recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN)
		return !SSL_pending(c->ssl);
	/* tickets of TLS 1.3 come when they like, and are taken here */
	ERR_clear_error();
	r = SSL_peek(c->ssl, &byte, 1);
	return r <= 0 && SSL_get_error(c->ssl, r) == SSL_ERROR_WANT_READ;
}

const char *redis_tls_error(const struct redis_tls_conn *c)
{
	return c->error;
}
