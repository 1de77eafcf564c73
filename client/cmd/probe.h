/* SPDX-License-Identifier: Apache-2.0 */
/* What commands ask of an object store before a volume's setting names it. They block. */
#ifndef STOKE_CLIENT_CMD_PROBE_H
#define STOKE_CLIENT_CMD_PROBE_H

#include "common/object/coding.h"
#include "common/object/object.h"

/* One operation within half a minute; the reason of a failure goes to err (may be NULL). */
int probe_run(struct object_store *s, struct object_req *req, struct str *err);
/* makes the bucket when it is missing; then what is written below name/testing/ must come back, and
 * go away: wrong keys, a read-only bucket and a broken proxy show here. crypt: NULL when the volume
 * is not encrypted */
int probe_store(struct object_store *s, const char *name, const struct crypt_block *crypt,
		struct str *err);
/* a small object; encrypted like all of the volume's */
int probe_put(struct object_store *s, const char *key, const struct crypt_block *crypt,
	      const void *data, size_t n, struct str *err);
/* -ENOTEMPTY: something but name/testing/ lies below name/ */
int probe_empty(struct object_store *s, const char *name, struct str *err);
/* A directory as JuiceFS writes it: absolute, with a slash at its end; made when it is missing,
 * unless it is a template for shards. *bucket is replaced. */
int probe_dir(char **bucket, bool template, struct str *err);
/* the text of a private key's file: *ret is freed by the caller, who wipes it */
int probe_key_file(const char *path, char **ret, struct str *err);
/* KEY=VALUE with what S3 allows in tags */
bool probe_tag_ok(const char *tag);

#endif
