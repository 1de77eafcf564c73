/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks on their way to the object store: at most so many at once, the rest waits in line. */
#ifndef STOKE_CLIENT_UPLOAD_H
#define STOKE_CLIENT_UPLOAD_H

#include "common/block/source.h"

struct uploads;

struct upload {
	struct block_key key;
	/* The whole block. Empty: it was stored as `old` before; it is read back first, and must
	 * have the same bytes. */
	struct blob data;
	struct block_key old;
	uint8_t tier;		 /* of the file */
	uint64_t sum;		 /* hash of the bytes, set by the first upload */
	char reason[REQ_REASON]; /* of a failure */
	/* once, any thread, maybe before upload_start returned; data is the caller's again */
	void (*done)(struct upload *up, int status);
	struct list_node link; /* private: these two */
	struct uploads *u;
};

int uploads_new(struct req_env *env, struct source *chain, unsigned max, struct uploads **ret);
/* nothing is on its way; NULL is fine */
void uploads_free(struct uploads *u);
/* never waits; the object store retries by itself */
void upload_start(struct uploads *u, struct upload *up);

#endif
