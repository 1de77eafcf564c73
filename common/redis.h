/* SPDX-License-Identifier: Apache-2.0 */
/* Redis for callers that may block: a bounded set of connections, commands, pipelines, scripts.
 * hiredis stays behind this header.
 *
 * URLs as JuiceFS types them (docs/format.md §1.1): redis://[user]:[password]@host[:port]/db,
 * host:port/db, unix://…/path.sock?db=N. Password: URL, else REDIS_PASSWORD, else META_PASSWORD,
 * else the file META_PASSWORD_FILE. Sentinel, Cluster and TLS forms are recognised and refused by
 * name (-EOPNOTSUPP). */
#ifndef STOKE_COMMON_REDIS_H
#define STOKE_COMMON_REDIS_H

#include "common/str.h"

struct redis;	   /* a server and its connections; thread-safe */
struct redis_conn; /* one connection, lent to one thread */
struct redis_reply;

enum { REDIS_PREFIX_MAX = 16 }; /* with its NUL */

enum redis_type { REDIS_NIL, REDIS_INT, REDIS_STR, REDIS_STATUS, REDIS_ERR, REDIS_ARRAY };

struct redis_conf {
	unsigned max_conns;	     /* redis_acquire waits beyond it; 0: 32 */
	uint64_t connect_timeout_us; /* 0: 5 s */
	uint64_t io_timeout_us;	     /* one answer, unless the deadline is nearer; 0: 30 s */
};

/* Parses url and connects once: -EINVAL (malformed), -EOPNOTSUPP (a form not handled),
 * -ECONNREFUSED, -ETIMEDOUT, -EACCES (password), -EPROTO (not Redis, or older than 4.0), -EAGAIN
 * (it is still loading): err then holds one line that names the server without its password. */
int redis_new(const char *url, const struct redis_conf *conf, struct redis **ret, struct str *err);
void redis_free(struct redis *r);
/* the url for people: password replaced by **** */
const char *redis_name(const struct redis *r);
/* what every key of the volume begins with: "", or "{N}" in a cluster, N the database of the url */
const char *redis_prefix(const struct redis *r);
/* overwrites the password inside the caller's copy of the url (argv) with '*' */
void redis_blank_password(char *url);

/* A connected connection, or -ETIMEDOUT / -ECONNREFUSED when deadline_us passes (monotonic, here
 * and below; 0: none); reconnects with back-off and jitter */
int redis_acquire(struct redis *r, uint64_t deadline_us, struct redis_conn **ret);
/* gives it back; broken ones are closed. A connection must not have unread replies or an open
 * MULTI. */
void redis_release(struct redis_conn *c);

/* One command. fmt as hiredis: %s text, %b pointer and size_t, %d %lld %llu numbers. 0: *ret is the
 * reply, freed by redis_reply_free. An error reply of the server is mapped: -ENOSPC (OOM), -EACCES
 * (NOAUTH, NOPERM, WRONGPASS), -EROFS (READONLY), -EAGAIN (LOADING, BUSY, TRYAGAIN, CLUSTERDOWN,
 * MASTERDOWN, EXECABORT), -ENOEXEC (NOSCRIPT), else -EIO; redis_error(c) is its text. -ETIMEDOUT /
 * -ECONNRESET: the connection is broken and the outcome unknown. */
int redis_cmd(struct redis_conn *c, uint64_t deadline_us, struct redis_reply **ret, const char *fmt,
	      ...);
int redis_cmdv(struct redis_conn *c, uint64_t deadline_us, struct redis_reply **ret, int argc,
	       const char **argv, const size_t *lens);
/* pipeline: append several, then take as many replies (error replies are mapped as above) */
int redis_append(struct redis_conn *c, const char *fmt, ...);
int redis_appendv(struct redis_conn *c, int argc, const char **argv, const size_t *lens);
int redis_next(struct redis_conn *c, uint64_t deadline_us, struct redis_reply **ret);
const char *redis_error(const struct redis_conn *c);

/* acquire, one command, release; retried over new connections until deadline_us while the network
 * fails or the server is -EAGAIN: for commands that may be done twice */
int redis_once(struct redis *r, uint64_t deadline_us, struct redis_reply **ret, const char *fmt,
	       ...);

struct redis_script {
	const char *name;
	char *text;
	char sha[41];
};
/* text: prelude followed by body (either may be ""); the digest is computed here. 0 or -ENOMEM */
int redis_script_init(struct redis_script *s, const char *name, const char *prelude,
		      const char *body);
void redis_script_fini(struct redis_script *s);
/* EVALSHA, loading the script on NOSCRIPT; argv holds n_keys keys, then arguments. Retried over new
 * connections until deadline_us while the network fails or the server is -EAGAIN: so a changing
 * script carries a token that makes it happen once. A reply of redis.error_reply("ERRNO n") is
 * returned as -n. */
int redis_eval(struct redis *r, uint64_t deadline_us, const struct redis_script *s, int n_keys,
	       int argc, const char **argv, const size_t *lens, struct redis_reply **ret);

enum redis_type redis_reply_type(const struct redis_reply *r);
int64_t redis_reply_int(const struct redis_reply *r); /* 0 unless INT, or a decimal STR */
/* bytes (NUL behind them) and length; NULL, 0 unless STR, STATUS or ERR */
const char *redis_reply_str(const struct redis_reply *r, size_t *len);
size_t redis_reply_len(const struct redis_reply *r); /* elements of an ARRAY, else 0 */
const struct redis_reply *redis_reply_at(const struct redis_reply *r, size_t i); /* NULL outside */
void redis_reply_free(struct redis_reply *r);
void redis_reply_freep(struct redis_reply **r);

#endif
