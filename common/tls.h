/* SPDX-License-Identifier: Apache-2.0 */
/* TLS 1.3 between daemons and mounts, with certificates on both sides, over non-blocking sockets.
 * Nothing here waits: a call does what the socket allows and says what is missing.
 *
 * A tls_ctx may be used by any threads; a struct tls by one at a time: while a disk thread sends,
 * nobody reads. OpenSSL writes to the socket by write(2): SIGPIPE is to be ignored. */
#ifndef STOKE_COMMON_TLS_H
#define STOKE_COMMON_TLS_H

#include <sys/types.h>
#include <sys/uio.h>

#include "common/str.h"

struct tls_files {
	const char *cert, *key, *ca; /* PEM; all three, or none */
	const char *name; /* the other side's certificate must have it; NULL: any of the CA */
};
struct tls_ctx; /* what the files held; counted */
struct tls;	/* TLS on one socket, which stays the caller's */

enum {
	TLS_BINDING = 32,
	TLS_RECORD = 16384, /* most plain bytes of one record */
};

/* Reads the files. -EACCES: the key can be read by others; -EINVAL: not PEM, a key with a
 * passphrase or of another certificate; -errno of a file; -ENOMEM. err holds a line with the way
 * out. */
int tls_ctx_new(const struct tls_files *files, struct tls_ctx **ret, struct str *err);
struct tls_ctx *tls_ctx_ref(struct tls_ctx *c);
void tls_ctx_unref(struct tls_ctx *c); /* NULL is fine */

/* holds a reference of ctx. 0 or -ENOMEM */
int tls_new(struct tls_ctx *ctx, int fd, bool server, struct tls **ret);
void tls_free(struct tls *t); /* NULL is fine */

/* 0: done; -EAGAIN: wait for the socket to be readable, or writable if tls_wants_write; -EPROTOTYPE
 * (server): what comes is no TLS at all; -EACCES: a certificate is not accepted; -EPROTO;
 * -ECONNRESET */
int tls_handshake(struct tls *t);
bool tls_is_up(const struct tls *t);
/* a value that both sides of this session have and nobody else (RFC 8446 7.5, RFC 9266): what is
 * proved over it cannot be carried to another session. After the handshake; 0 or -EPROTO */
int tls_binding(struct tls *t, uint8_t ret[TLS_BINDING]);

/* bytes (> 0), 0: the other side closed, -EAGAIN, or an errno as of the handshake */
ssize_t tls_recv(struct tls *t, void *p, size_t n);
/* bytes that have been received and not been asked for: the socket does not tell of them */
bool tls_pending(const struct tls *t);
/* Bytes taken (> 0): they need not be kept, although the last of them may still wait for the socket
 * (tls_wants_write). -EAGAIN: none; -errno */
ssize_t tls_send(struct tls *t, const struct iovec *v, unsigned n);
/* The same from a file. -ENODATA: it ends before */
ssize_t tls_sendfile(struct tls *t, int fd, uint64_t off, size_t n);
/* Sends what has been taken. 0: nothing waits any more; -EAGAIN, -errno */
int tls_flush(struct tls *t);
bool tls_wants_write(const struct tls *t);
/* about the last error, for people */
const char *tls_error(const struct tls *t);

#endif
