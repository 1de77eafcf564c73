/* SPDX-License-Identifier: Apache-2.0 */
/* Writing a compacted slice through the real chain, against a store in memory. */
#include "tests/unit/client/data_env.h"

#include "client/compact.h"

enum { BLOCK = 64 * KIB, POOL = 4 * MIB };

static unsigned char byte_at(uint64_t slice, uint32_t off)
{
	return (unsigned char)(slice * 31 + off * 7 + off / 251);
}

static void slice_put(struct data_env *e, uint64_t id, uint32_t size)
{
	const struct hash128 any = {{0}};

	for (uint32_t i = 0; i * BLOCK < size; i++) {
		uint32_t len = block_size_at(size, BLOCK, i);
		unsigned char *p = malloc(len);
		char name[BLOCK_NAME_MAX];
		struct block_key key;

		assert_non_null(p);
		for (uint32_t k = 0; k < len; k++)
			p[k] = byte_at(id, i * BLOCK + k);
		block_key_init(&key, &any, id, i, len);
		block_key_object(&key, "vol", false, name);
		mtx_lock(&e->store->lock);
		mem_put_locked(e->store, name, p, len);
		mtx_unlock(&e->store->lock);
		free(p);
	}
}

/* byte off of slice id, as it was stored; size in all */
static int stored_at(struct data_env *e, uint64_t id, uint32_t size, uint32_t off)
{
	const struct hash128 any = {{0}};
	char name[BLOCK_NAME_MAX];
	struct mem_object *o;
	struct block_key key;
	int v;

	block_key_init(&key, &any, id, off / BLOCK, block_size_at(size, BLOCK, off / BLOCK));
	block_key_object(&key, "vol", false, name);
	mtx_lock(&e->store->lock);
	o = mem_find_locked(e->store, name);
	v = o && o->n == key.size ? o->data[off % BLOCK] : -1;
	mtx_unlock(&e->store->lock);
	return v;
}

static void pieces_become_blocks(void **state)
{
	static const struct slice pieces[] = {
		{.pos = 1000, .id = 1, .size = 3 * BLOCK, .off = BLOCK - 5, .len = BLOCK + 100},
		{.pos = BLOCK + 1100, .len = 400},
		{.pos = BLOCK + 1500, .id = 2, .size = 70, .off = 3, .len = 60},
		{.pos = BLOCK + 1560, .id = 3, .size = 4 * BLOCK, .len = 4 * BLOCK},
	};
	struct compact_job job = {
		.pieces = pieces, .n = ARRAY_LEN(pieces), .id = 9, .size = 5 * BLOCK + 560};
	struct client_compact c;
	struct data_env e;
	uint32_t at = 0;

	(void)state;
	env_start(&e, BLOCK, POOL, CODEC_NONE, 0);
	slice_put(&e, 1, 3 * BLOCK);
	slice_put(&e, 2, 70);
	slice_put(&e, 3, 4 * BLOCK);
	assert_int_equal(client_compact_init(&c, &e.env, e.chain), 0);
	assert_int_equal(client_compact_slice(&c, &job), 0);
	for (size_t i = 0; i < ARRAY_LEN(pieces); i++) {
		for (uint32_t k = 0; k < pieces[i].len; k++, at++) {
			int want = pieces[i].id ? byte_at(pieces[i].id, pieces[i].off + k) : 0;

			if (stored_at(&e, 9, job.size, at) != want)
				fail_msg("byte %u", at);
		}
	}
	assert_int_equal(at, job.size);
	client_compact_fini(&c);
	env_stop(&e);
}

static void a_missing_object_or_a_store_that_fails_is_told(void **state)
{
	static const struct slice pieces[] = {
		{.pos = 0, .id = 1, .size = BLOCK, .len = BLOCK},
		{.pos = BLOCK, .id = 2, .size = 100, .len = 100},
	};
	struct compact_job job = {.pieces = pieces, .n = 2, .id = 9, .size = BLOCK + 100};
	struct client_compact c;
	struct data_env e;

	(void)state;
	env_start(&e, BLOCK, POOL, CODEC_NONE, 0);
	slice_put(&e, 1, BLOCK);
	assert_int_equal(client_compact_init(&c, &e.env, e.chain), 0);
	assert_int_equal(client_compact_slice(&c, &job), -ENOENT);
	slice_put(&e, 2, 100);
	e.store->fail_puts = 1;
	assert_int_equal(client_compact_slice(&c, &job), -EIO);
	assert_int_equal(client_compact_slice(&c, &job), 0);
	client_compact_fini(&c);
	env_stop(&e);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pieces_become_blocks),
		cmocka_unit_test(a_missing_object_or_a_store_that_fails_is_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
