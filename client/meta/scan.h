/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a whole volume's keys, for maintenance: iterators over keys and over the fields of big
 * hashes and sorted sets, and pipelines of reads. Key names go in and come out without the prefix.
 *
 * Redis gives what is there from the first to the last step of an iteration; what comes or goes in
 * between may be seen or not, and anything may be seen twice: all of it when another server
 * answers, since cursors mean nothing to that one. All calls block, are retried while
 * the network fails (they read only), and end with -EINTR when cancel is set. */
#ifndef STOKE_CLIENT_META_SCAN_H
#define STOKE_CLIENT_META_SCAN_H

#include "common/redis.h"

struct scan {
	struct redis *redis;
	const char *prefix;  /* redis_prefix */
	uint64_t timeout_us; /* of one step */
	const int *cancel;   /* relaxed atomic; may be NULL */
};

enum { SCAN_TIMEOUT_US = 60000000, PIPE_MAX = 1000 };

void scan_init(struct scan *s, struct redis *r, const int *cancel);

/* a key (value NULL), or a field and its value; NUL behind each */
struct scan_item {
	const char *name, *value;
	size_t name_len, value_len;
};
/* a page of them, never empty; not 0 ends the iteration and is what it returns */
typedef int scan_fn(void *arg, size_t n, const struct scan_item *items);

/* keys that match the glob; the prefix is quoted and put before it */
int scan_keys(const struct scan *s, const char *pattern, scan_fn *fn, void *arg);
/* fields of a hash, or members of a sorted set with their scores; a missing key is empty */
int scan_hash(const struct scan *s, const char *key, scan_fn *fn, void *arg);
int scan_zset(const struct scan *s, const char *key, scan_fn *fn, void *arg);

/* Reads in one go: commands are collected, then sent at once. */
struct pipe {
	const struct scan *scan;
	struct str words; /* of all commands, one behind the other */
	size_t *len;	  /* of each word */
	unsigned *argc;	  /* of each command */
	size_t n_words, cap_words, n, cap;
	struct redis_reply **reply;
	int err;
};
void pipe_init(struct pipe *p, const struct scan *s);
void pipe_fini(struct pipe *p);
/* forgets commands and replies */
void pipe_reset(struct pipe *p);
/* a command: verb, key (the prefix is put before it), then more words up to NULL */
void pipe_add(struct pipe *p, const char *verb, const char *key, ...) __attribute__((sentinel));
/* key is a kind and an inode: "i", 7 → "i7" */
void pipe_add_inode(struct pipe *p, const char *verb, const char *kind, uint64_t inode);
/* sends them; 0: reply[0…n) are there (an error of the server's ends it). -ENOMEM of pipe_add comes
 * out here. */
int pipe_run(struct pipe *p);

/* decimal text of n bytes; false: it is none, or does not fit */
bool scan_u64(const char *s, size_t n, uint64_t *ret);

#endif
