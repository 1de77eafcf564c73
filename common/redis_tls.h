/* SPDX-License-Identifier: Apache-2.0 */
/* TLS for connections to Redis: OpenSSL over the socket of redis_connect_fd. hiredis has a TLS of
 * its own only where it was built with it (Debian 12 has 0.14, without), and that one cannot keep a
 * deadline; so of hiredis only its formatter and its parser of answers are used, and the bytes come
 * and go here or over the plain socket. TLS 1.2 or later.
 *
 * Sockets are non-blocking; a call waits until its deadline (monotonic, 0: none) and no longer. A
 * struct redis_tls may be used by any threads, a connection by one at a time. */
#ifndef STOKE_COMMON_REDIS_TLS_H
#define STOKE_COMMON_REDIS_TLS_H

#include "common/redis_url.h"

struct redis_tls;      /* certificates and what is expected of servers */
struct redis_tls_conn; /* TLS on one socket, which stays the caller's */

/* Reads the files. -EINVAL (not PEM, a key with a passphrase, a key of another certificate), -errno
 * of a file, -ENOMEM: err holds a line. */
int redis_tls_new(const struct redis_tls_conf *conf, struct redis_tls **ret, struct str *err);
void redis_tls_free(struct redis_tls *t);

/* Handshake with the server of that name or number. -EACCES (a certificate is not accepted, by
 * either side), -EPROTO (no TLS, or none that both know), -ECONNRESET, -ETIMEDOUT, -ENOMEM; a line
 * is appended to why (may be NULL). */
int redis_tls_connect(struct redis_tls *t, int fd, const char *host, uint64_t deadline_us,
		      struct redis_tls_conn **ret, struct str *why);
void redis_tls_close(struct redis_tls_conn *c);

/* bytes moved (> 0), 0: the server closed, or an errno as above */
ssize_t redis_tls_read(struct redis_tls_conn *c, void *p, size_t n, uint64_t deadline_us);
ssize_t redis_tls_write(struct redis_tls_conn *c, const void *p, size_t n, uint64_t deadline_us);
/* nothing was said unasked, and the server has not closed */
bool redis_tls_is_quiet(struct redis_tls_conn *c);
/* about the last error */
const char *redis_tls_error(const struct redis_tls_conn *c);

/* waits for events (poll) on fd: 0, -ETIMEDOUT or -errno */
int redis_fd_wait(int fd, short events, uint64_t deadline_us);

#endif
