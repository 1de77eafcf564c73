/* SPDX-License-Identifier: Apache-2.0 */
/* The objects of a slice are deleted, in one request where there are several. Threads of the
 * metadata engine and of the meta queue. */
#include "client/delete.h"

#include "common/block/key.h"

enum { MANY = 1000 };

static int delete_one(const struct client_delete *d, char *key)
{
	struct object_req req = {.op = OBJECT_DELETE, .key = key};
	int r = object_run(d->store, &req);

	return r == -ENOENT ? 0 : r;
}

static int delete_many(const struct client_delete *d, char (*names)[BLOCK_NAME_MAX], size_t n)
{
	const char **keys = calloc(n, sizeof(*keys));
	struct object_req req = {.op = OBJECT_DELETE_MANY, .keys = keys, .n_keys = n};
	int r;

	if (!keys)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		keys[i] = names[i];
	r = object_run(d->store, &req);
	free(keys);
	return r == -ENOENT ? 0 : r;
}

int client_delete_slice(void *arg, uint64_t slice, uint32_t size)
{
	const struct client_delete *d = arg;
	const struct hash128 any = {{0}};
	uint32_t n = (uint32_t)DIV_UP((uint64_t)size, d->block_size), room = MIN(n, (uint32_t)MANY);
	char(*names)[BLOCK_NAME_MAX];
	int r = 0;

	if (n == 0)
		return 0;
	names = calloc(room, sizeof(*names));
	if (!names)
		return -ENOMEM;
	for (uint32_t i = 0; i < n && r == 0;) {
		uint32_t k = 0;

		for (; k < room && i < n; k++, i++) {
			struct block_key key;

			block_key_init(&key, &any, slice, i, block_size_at(size, d->block_size, i));
			block_key_object(&key, d->volume_name, d->hash_prefix, names[k]);
		}
		r = k == 1 ? delete_one(d, names[0]) : delete_many(d, names, k);
	}
	free(names);
	return r;
}
