/* SPDX-License-Identifier: Apache-2.0 */
/* Redis for callers that may block: a bounded set of connections, commands, pipelines, scripts.
 * hiredis and OpenSSL stay behind this header.
 *
 * URLs as JuiceFS types them (docs/format.md §1):
 *	redis://[user]:[password]@host[:port]/db	one server, or a node of a cluster
 *	redis://…@master,sentinel[:port],…/db		the master that the sentinels name
 *	redis://…@host:port,host:port,…/db		nodes of a cluster
 *	host:port/db, unix://…@/path.sock?db=N, rediss:// (TLS) for redis://
 * Password: URL, else REDIS_PASSWORD, else META_PASSWORD, else the file META_PASSWORD_FILE; the
 * sentinels': SENTINEL_PASSWORD.
 *
 * Fail-over. Where the URL names sentinels or a cluster, the server is looked up, in its role, with
 * the first connection; and again when a connection breaks, when the server says that it is not
 * the one (READONLY, MOVED, MASTERDOWN, CLUSTERDOWN), and when it is silent for a second.
 * Connections to a server that was left are never used again. Such an error is -EAGAIN or
 * -ECONNRESET, so what is retried (redis_once, redis_eval) goes on with the new server until the
 * deadline: nothing that was acknowledged is lost but what Redis loses, since it copies to replicas
 * after it answered. To bound that, on the servers: min-replicas-to-write, min-replicas-max-lag and
 * appendonly yes.
 *
 * In a cluster all keys begin with redis_prefix, so they lie in one slot, and every connection goes
 * to that slot's node. While the slot is moved to another node, plain commands follow ASK; scripts
 * wait (-EAGAIN) until it is moved whole, since half of their keys are somewhere else. */
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
	/* nothing will be changed, and what is read may be a little old: then route-read of the URL
	 * counts (replica; random and latency in a cluster) */
	bool read_only;
};

/* Parses url and connects once: -EINVAL (malformed, or a file of certificates is), -EOPNOTSUPP
 * (another engine), -ECONNREFUSED, -ETIMEDOUT, -EACCES (password, certificate), -ENOENT (no such
 * master, no such file), -EPROTO (not Redis, or older than 4.0), -EAGAIN (it is still loading, or a
 * fail-over is under way): err then holds one line that names the server without its password. */
int redis_new(const char *url, const struct redis_conf *conf, struct redis **ret, struct str *err);
void redis_free(struct redis *r);
/* the url for people: password replaced by **** */
const char *redis_name(const struct redis *r);
/* what every key of the volume begins with: "", or "{N}" in a cluster, N the database of the url */
const char *redis_prefix(const struct redis *r);
/* overwrites the password inside the caller's copy of the url (argv) with '*' */
void redis_blank_password(char *url);

/* true where reads come from a replica: such a connection changes nothing */
bool redis_reads_replica(const struct redis *r);
/* How the server is set against what a volume needs: lines for people in out, "" when all is well.
 * change: an eviction policy is changed as well. 0 or -errno (not allowed to ask). */
int redis_advise(struct redis *r, uint64_t deadline_us, bool change, struct str *out);

/* A connected connection, or -ETIMEDOUT / -ECONNREFUSED when deadline_us passes (monotonic, here
 * and below; 0: none); reconnects with back-off and jitter */
int redis_acquire(struct redis *r, uint64_t deadline_us, struct redis_conn **ret);
/* gives it back; broken ones are closed. A connection must not have unread replies or an open
 * MULTI. */
void redis_release(struct redis_conn *c);

/* One command. fmt as hiredis: %s text, %b pointer and size_t, %d %lld %llu numbers. 0: *ret is the
 * reply, freed by redis_reply_free. An error reply of the server is mapped: -ENOSPC (OOM), -EACCES
 * (NOAUTH, NOPERM, WRONGPASS), -EAGAIN (LOADING, BUSY, NOREPLICAS, TRYAGAIN, CLUSTERDOWN,
 * MASTERDOWN, EXECABORT, MOVED, ASK, READONLY), -EROFS (READONLY where the URL names a replica, or
 * reads come from one), -EXDEV (a key without the prefix, in a cluster: redis_once asks the node
 * that has it), -ENOEXEC (NOSCRIPT), else -EIO; redis_error(c) is its text. -ETIMEDOUT /
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

/* What the server said when it last refused a command of redis_once or redis_eval for good, which
 * is logged as well, once a minute, and another text once a second: NOPERM, MISCONF, WRONGTYPE, OOM
 * and the like. "" if it never did. */
void redis_refusal(struct redis *r, struct str *out);

/* acquire, one command, release; retried over new connections until deadline_us while the network
 * fails or the server is -EAGAIN: for commands that may be done twice */
int redis_once(struct redis *r, uint64_t deadline_us, struct redis_reply **ret, const char *fmt,
	       ...);

/* All pages of a cursor: HSCAN, SSCAN or ZSCAN of key (whole, with its prefix), or SCAN (key NULL)
 * of the keys that match (a glob, with the prefix; NULL: of all). page_us: the time for one page.
 * fn gets each page's array: 0 to go on, else the end and the result; and NULL before the first
 * page, which may happen again: a cursor means nothing to another server, nor to one that was
 * started anew, so then all begins from the start and what was given before is void. No connection
 * is held while fn runs. */
typedef int redis_page_fn(void *arg, const struct redis_reply *page);
int redis_pages(struct redis *r, uint64_t page_us, const char *verb, const char *key,
		const char *match, unsigned count, redis_page_fn *fn, void *arg);
/* One page of it, from the cursor on ({0}: the first), with no call of fn(NULL): when the cursor
 * means nothing any more, all comes again from the start, behind what was given before. c->end:
 * that was the last. */
struct redis_cursor {
	char text[24];
	uint64_t births; /* it means something to the connections that were open then */
	bool end;
};
int redis_page(struct redis *r, uint64_t page_us, const char *verb, const char *key, unsigned count,
	       struct redis_cursor *c, redis_page_fn *fn, void *arg);
/* Every key that matches prefix + match (a glob), without its prefix; a key may come more than
 * once, and all of them again when the server changes. fn: 0 to go on, else the end and the result.
 * In a cluster only the node with the slot is asked. */
int redis_scan(struct redis *r, uint64_t page_us, const char *match,
	       int (*fn)(void *arg, const char *key, size_t len), void *arg);

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
