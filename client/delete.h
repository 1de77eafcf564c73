/* SPDX-License-Identifier: Apache-2.0 */
/* Deleting the objects of a slice that nobody refers to any more. */
#ifndef STOKE_CLIENT_DELETE_H
#define STOKE_CLIENT_DELETE_H

#include "common/object/object.h"

struct client_delete {
	struct object_store *store;
	const char *volume_name;
	bool hash_prefix;
	uint32_t block_size;
};

/* A meta_delete_fn; arg: struct client_delete. Blocks. 0: none of the slice's objects is there any
 * more, or the store's first error */
int client_delete_slice(void *arg, uint64_t slice, uint32_t size);

#endif
