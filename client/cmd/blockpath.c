/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cmd/blockpath.h"

#include "client/chain.h"
#include "common/object/coding.h"
#include "common/object/crypt_block.h"

enum { POOL_BLOCKS = 24, POOL_LEAST = 64 << 20, CODEC_THREADS = 2, CODEC_QUEUE = 4096 };

struct blockpath {
	struct req_env env;
	struct pool *pool;
	struct workq *codecs;
	struct crypt_block *crypt;
	struct source *chain;
	struct client_compact compact;
};

static int make(struct blockpath *b, const struct setting *set, struct loop *loop,
		struct object_store *store, struct str *err)
{
	struct client_chain_conf conf = {.env = &b->env,
					 .store = store,
					 .volume_name = set->name,
					 .hash_prefix = set->hash_prefix};
	size_t block = set->block_size + msg_sums_len(set->block_size);
	struct coding coding;
	int r = volume_open_crypt(set, &b->crypt, err);

	if (r < 0)
		return r;
	coding = (struct coding){set->codec, b->crypt};
	if (!coding_is_plain(coding))
		block += coding_bound(coding, set->block_size);
	r = pool_new(MAX((size_t)POOL_LEAST, block * POOL_BLOCKS),
		     MAX((size_t)FRAME_RING_MAX, block), &b->pool);
	if (r == 0 && !coding_is_plain(coding))
		r = workq_new("codec", CODEC_THREADS, CODEC_QUEUE, &b->codecs);
	if (r < 0)
		return r;
	b->env = (struct req_env){.pool = b->pool,
				  .timers = loop,
				  .codec = set->codec,
				  .crypt = b->crypt,
				  .block_size = set->block_size};
	conf.codecs = b->codecs;
	conf.ram_bytes = 4 * (size_t)set->block_size;
	r = client_chain_new(&conf, &b->chain);
	return r < 0 ? r : client_compact_init(&b->compact, &b->env, b->chain);
}

int blockpath_new(const struct setting *set, struct loop *loop, struct object_store *store,
		  struct blockpath **ret, struct str *err)
{
	struct blockpath *b = calloc(1, sizeof(*b));
	int r = b ? make(b, set, loop, store, err) : -ENOMEM;

	if (r < 0) {
		if (err->len == 0)
			str_addf(err, "cannot make the data path: %s", strerror(-r));
		blockpath_free(b);
		return r;
	}
	*ret = b;
	return 0;
}

struct client_compact *blockpath_compact(struct blockpath *b)
{
	return &b->compact;
}

void blockpath_free(struct blockpath *b)
{
	if (!b)
		return;
	if (b->chain)
		req_env_drain(&b->env);
	client_compact_fini(&b->compact);
	source_free(b->chain);
	workq_free(b->codecs);
	crypt_block_free(b->crypt);
	pool_free(b->pool);
	free(b);
}
