/* SPDX-License-Identifier: Apache-2.0 */
/* What proves to the others of a group who we are: its secret, and certificates where it speaks
 * TLS. Read from files, and again when they changed, while connections go on. */
#ifndef STOKE_COMMON_BLOCK_KEYS_H
#define STOKE_COMMON_BLOCK_KEYS_H

#include "common/mtx.h"
#include "common/tls.h"

enum { SECRET_MIN = 16, SECRET_MAX = 1024, SECRETS_MAX = 2 };

/* A group's secrets while one replaces the other: the first is used to ask, all are accepted. */
struct secret {
	size_t len;
	uint8_t *b;
	struct secret *next; /* at most SECRETS_MAX in all */
};
/* From the file (not readable by others, else -EACCES), else from the environment
 * STOKE_GROUP_SECRET; one a line, white space around it is cut. -ENOENT: neither is given; -EINVAL:
 * none, too many, too short or too long. err names the way out. */
int secret_load(const char *file, struct secret *ret, struct str *err);
void secret_fini(struct secret *s); /* wiped */
bool secret_eq(const struct secret *a, const struct secret *b);

struct keys_conf {
	const char *secret_file; /* NULL: the environment */
	struct tls_files tls;	 /* all NULL: plain TCP */
};
struct keys;

/* texts are kept by pointer. 0, or -errno with a line in err */
int keys_new(const struct keys_conf *conf, struct keys **ret, struct str *err);
void keys_free(struct keys *k); /* NULL is fine */
/* Reads everything again; *ret_changed: something was another. On an error, with a line in err, all
 * stays as it was. Any thread that may block. */
int keys_reload(struct keys *k, bool *ret_changed, struct str *err);
/* keys_reload when one of the files is another than at the last look, with a line in the log */
void keys_look(struct keys *k);
/* The secrets until keys_unlock; nothing that locks or waits in between. k may be NULL: NULL */
const struct secret *keys_lock(struct keys *k);
void keys_unlock(struct keys *k);
/* a reference, NULL: plain TCP. k may be NULL */
struct tls_ctx *keys_tls(struct keys *k);

#endif
