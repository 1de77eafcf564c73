/* SPDX-License-Identifier: Apache-2.0 */
/* The last layer: names, lengths, codecs, checksums, errors, and uploads. */
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>

#include "tests/unit/block/world.h"

static struct world w;
static struct waiter wt;
static struct read rd[32];

static void begin(unsigned flags, enum codec codec)
{
	world_init(&w, flags, codec, 16 * MIB);
	waiter_init(&wt);
}

static void end(void)
{
	waiter_fini(&wt);
	world_fini(&w);
}

static void ranges_and_whole_blocks_of_every_codec(void **state)
{
	static const enum codec codecs[] = {CODEC_NONE, CODEC_LZ4, CODEC_ZSTD};

	(void)state;
	for (size_t c = 0; c < ARRAY_LEN(codecs); c++) {
		struct block_key k = key_of(1, 0);
		enum req_via via;

		begin(WITH_SUMS, codecs[c]);
		assert_int_equal(get_once(&w, &k, 0, BLOCK, 0, &via, NULL), 0);
		assert_int_equal(via, VIA_OBJECT);
		assert_int_equal(get_once(&w, &k, 0, 1, 0, &via, NULL), 0);
		assert_int_equal(get_once(&w, &k, BLOCK - 777, 777, 0, &via, NULL), 0);
		assert_int_equal(via, VIA_OBJECT);
		/* only plain objects can be read in part */
		assert_int_equal(w.store.whole_gets, codecs[c] == CODEC_NONE ? 1 : 3);
		end();
	}
}

static void sums_are_made_for_whole_blocks_only(void **state)
{
	struct block_key k = key_of(2, 0);

	(void)state;
	begin(WITH_SUMS, CODEC_LZ4);
	read_go(&w, &wt, &rd[0], &k, 0, BLOCK, 0);
	read_go(&w, &wt, &rd[1], &k, 5, 10, 0);
	waiter_wait(&wt);
	assert_int_equal(rd[0].req->sums.len, msg_sums_len(BLOCK));
	assert_int_equal(block_sums_check(&k, 0, blob_mem(&rd[0].req->data), BLOCK,
					  blob_mem(&rd[0].req->sums), NULL),
			 0);
	assert_int_equal(rd[1].req->sums.len, 0);
	read_check(&rd[0], 0);
	read_check(&rd[1], 0);
	end();
}

static void an_object_of_another_length_is_an_error_that_tells_both(void **state)
{
	struct block_key k = key_of(3, 0);
	char reason[REQ_REASON];

	(void)state;
	begin(WITH_SYNC, CODEC_NONE);
	w.store.longer = -1000;
	assert_int_equal(get_once(&w, &k, 0, BLOCK, 0, NULL, reason), -EIO);
	assert_non_null(strstr(reason, "vol/chunks/0/0/3_0_262144"));
	assert_non_null(strstr(reason, "261144"));
	assert_non_null(strstr(reason, " 262144 expected"));
	assert_int_equal(get_once(&w, &k, BLOCK - 1001, 1001, 0, NULL, reason), -EIO);
	assert_non_null(strstr(reason, "got 1 bytes"));
	w.store.longer = 1;
	assert_int_equal(get_once(&w, &k, 0, BLOCK, 0, NULL, reason), -EIO);
	end();
}

static void an_encoded_object_must_decode_to_exactly_its_block(void **state)
{
	struct block_key k = key_of(4, 0);
	char reason[REQ_REASON];

	(void)state;
	for (enum codec c = CODEC_LZ4; c <= CODEC_ZSTD; c++) {
		begin(0, c);
		w.store.longer = -1;
		assert_int_equal(get_once(&w, &k, 0, BLOCK, 0, NULL, reason), -EIO);
		assert_non_null(strstr(reason, "vol/chunks/0/0/4_0_262144"));
		w.store.longer = 1;
		assert_int_equal(get_once(&w, &k, 0, BLOCK, 0, NULL, NULL), -EIO);
		w.store.longer = 0;
		w.store.broken = true;
		assert_int_equal(get_once(&w, &k, 10, 10, 0, NULL, reason), -EIO);
		assert_non_null(strstr(reason, "decode"));
		end();
	}
}

static void the_stores_errors_keep_their_meaning(void **state)
{
	static const struct {
		int store, status;
	} verdicts[] = {{-ENOENT, -ENODATA}, {-EACCES, -EACCES},       {-ENODATA, -EIO},
			{-EIO, -EIO},	     {-ETIMEDOUT, -ETIMEDOUT}, {-ESTALE, -EIO},
			{-EINVAL, -EIO}};
	struct block_key k = key_of(5, 0);
	char reason[REQ_REASON];

	(void)state;
	begin(WITH_SYNC, CODEC_NONE);
	for (size_t i = 0; i < ARRAY_LEN(verdicts); i++) {
		w.store.status = verdicts[i].store;
		assert_int_equal(get_once(&w, &k, 0, BLOCK, 0, NULL, reason), verdicts[i].status);
		assert_non_null(strstr(reason, "vol/chunks/0/0/5_0_262144"));
		/* the one that somebody has to do something about */
		assert_true(!strstr(reason, "renew ACCESS_KEY") == (verdicts[i].store != -EACCES));
	}
	end();
}

static void what_only_looks_into_stores_never_reaches_the_object_store(void **state)
{
	static const uint32_t flags[] = {REQ_NO_FILL, REQ_FILL, REQ_PROBE};
	struct block_key k = key_of(6, 0);

	(void)state;
	begin(WITH_SYNC, CODEC_NONE);
	for (size_t i = 0; i < ARRAY_LEN(flags); i++)
		assert_int_equal(get_once(&w, &k, 0, BLOCK, flags[i], NULL, NULL), -ENOENT);
	assert_int_equal(mem_gets(&w.store), 0);
	end();
}

static void the_deadline_travels_to_the_store(void **state)
{
	struct block_key k = key_of(7, 0);
	struct object_req *obj;

	(void)state;
	begin(WITH_SYNC, CODEC_NONE);
	mem_hold(&w.store);
	read_start(&w, &wt, &rd[0], &k, 0, BLOCK, 0);
	rd[0].req->deadline_us = 123456789;
	read_send(&w, &rd[0]);
	obj = mem_take_held(&w.store);
	if (!obj) {
		fail();
		return;
	}
	assert_int_equal(obj->deadline_us, 123456789);
	mem_go(&w.store, obj);
	read_check(&rd[0], 0);
	end();
}

/* --- put --- */

static void put_start(int i, const struct block_key *k, size_t reserve)
{
	size_t data = pool_cost(BLOCK);
	struct buf *b;

	assert_int_equal(pool_reserve(w.pool, POOL_UPLOAD, data, NULL), 0);
	b = pool_take(w.pool, POOL_UPLOAD, BLOCK, &data);
	assert_non_null(b);
	for (uint32_t at = 0; at < BLOCK; at++)
		b->mem[at] = pattern(k->slice, k->index, at);
	rd[i] = (struct read){.wt = &wt};
	rd[i].req = req_new(&w.env, k, 0, BLOCK, 0, POOL_UPLOAD);
	assert_non_null(rd[i].req);
	rd[i].req->data = blob_of_buf(b, 0, BLOCK);
	if (reserve)
		assert_int_equal(pool_reserve(w.pool, POOL_UPLOAD, reserve, NULL), 0);
	rd[i].req->reserved = reserve;
	mtx_lock(&wt.lock);
	wt.pending++;
	mtx_unlock(&wt.lock);
	source_put(w.top, rd[i].req, read_done, &rd[i]);
}

static void check_object(enum codec codec, const struct mem_object *o)
{
	static unsigned char plain[BLOCK];
	struct block_key k;

	key_of_object(o->name, &k);
	if (codec == CODEC_NONE) {
		assert_int_equal(o->len, BLOCK);
		memcpy(plain, o->mem, BLOCK);
	} else {
		assert_int_equal(codec_decode(codec, o->mem, o->len, plain, BLOCK), 0);
	}
	assert_true(is_pattern(&k, 0, plain, BLOCK));
}

static void blocks_are_put_under_their_names(void **state)
{
	(void)state;
	for (enum codec c = CODEC_NONE; c <= CODEC_ZSTD; c++) {
		begin(0, c);
		for (int i = 0; i < 8; i++) {
			struct block_key k = key_of(8, (uint32_t)i);

			put_start(i, &k, req_put_need(&w.env, BLOCK));
		}
		waiter_wait(&wt);
		assert_int_equal(w.store.puts, 8);
		for (int i = 0; i < 8; i++) {
			read_check(&rd[i], 0);
			check_object(c, &w.store.put[i]);
		}
		end();
	}
}

/* All memory is in blocks that wait to be uploaded: encoding still goes on, one after the other. */
static void encoding_needs_no_memory_that_uploads_hold(void **state)
{
	size_t taken = 0;
	int n = 0;

	(void)state;
	begin(0, CODEC_LZ4);
	mem_hold(&w.store);
	for (; n < 8; n++) {
		struct block_key k = key_of(9, (uint32_t)n);

		if (n == 2) {
			/* room for the data of the others, and not a page for encoding */
			taken = 6 * pool_cost(BLOCK);
			assert_int_equal(pool_reserve(w.pool, POOL_UPLOAD, taken, NULL), 0);
			while (!pool_reserve(w.pool, POOL_UPLOAD, 4096, NULL))
				taken += 4096;
		}
		if (n >= 2) {
			pool_unreserve(w.pool, POOL_UPLOAD, pool_cost(BLOCK));
			taken -= pool_cost(BLOCK);
		}
		put_start(n, &k, 0);
	}
	mem_release(&w.store);
	waiter_wait(&wt);
	assert_int_equal(w.store.puts, n);
	for (int i = 0; i < n; i++) {
		read_check(&rd[i], 0);
		check_object(CODEC_LZ4, &w.store.put[i]);
	}
	pool_unreserve(w.pool, POOL_UPLOAD, taken);
	end();
}

/* --- encrypted --- */

static struct crypt_block *make_key(void)
{
	EVP_PKEY *key = EVP_RSA_gen(1024);
	BIO *b = BIO_new(BIO_s_mem());
	struct crypt_block *c = NULL;
	struct str err = STR_INIT;
	char *pem;

	assert_int_equal(PEM_write_bio_PKCS8PrivateKey(b, key, NULL, NULL, 0, NULL, NULL), 1);
	assert_int_equal(BIO_write(b, "", 1), 1);
	assert_true(BIO_get_mem_data(b, &pem) > 0);
	assert_int_equal(crypt_block_new(pem, NULL, "", &c, &err), 0);
	str_fini(&err);
	BIO_free(b);
	EVP_PKEY_free(key);
	return c;
}

static bool grew;

static void on_growth(struct block_req *req, const struct blob *data, size_t valid, void *arg)
{
	(void)req;
	(void)data;
	(void)valid;
	(void)arg;
	grew = true;
}

static void encrypted_blocks_come_whole_and_are_never_shown_half(void **state)
{
	struct crypt_block *crypt = make_key();

	(void)state;
	world_crypt = crypt;
	for (enum codec c = CODEC_NONE; c <= CODEC_ZSTD; c++) {
		struct block_key k = key_of(11, 0);
		char reason[REQ_REASON];
		struct block_req *req;

		begin(WITH_SUMS, c);
		w.store.step = 4096;
		assert_int_equal(get_once(&w, &k, 0, BLOCK, 0, NULL, NULL), 0);
		assert_int_equal(get_once(&w, &k, 5, 10, 0, NULL, NULL), 0);
		assert_int_equal(w.store.whole_gets, 2);
		req = req_new(&w.env, &k, 0, BLOCK, 0, POOL_DEMAND);
		assert_non_null(req);
		/* answer and object in one step */
		assert_int_equal(req_need(req),
				 pool_cost(BLOCK + msg_sums_len(BLOCK)) +
					 pool_cost(coding_bound(req_coding(&w.env), BLOCK)));
		req_free(req);
		grew = false;
		read_go(&w, &wt, &rd[0], &k, 0, BLOCK, 0);
		rd[0].req->progress = on_growth;
		waiter_wait(&wt);
		read_check(&rd[0], 0);
		assert_false(grew);
		w.store.broken = true;
		assert_int_equal(get_once(&w, &k, 0, BLOCK, 0, NULL, reason), -EIO);
		assert_non_null(strstr(reason, "does not decrypt"));
		w.store.broken = false;
		w.store.longer = -1;
		assert_int_equal(get_once(&w, &k, 0, BLOCK, 0, NULL, reason), -EIO);
		end();
	}
	world_crypt = NULL;
	crypt_block_free(crypt);
}

static void what_is_put_is_encrypted(void **state)
{
	static unsigned char plain[BLOCK];
	struct crypt_block *crypt = make_key();

	(void)state;
	world_crypt = crypt;
	for (enum codec c = CODEC_NONE; c <= CODEC_ZSTD; c++) {
		begin(0, c);
		for (int i = 0; i < 4; i++) {
			struct block_key k = key_of(12, (uint32_t)i);

			/* with memory for it, or in turn in the spare buffer */
			put_start(i, &k, i & 1 ? req_put_need(&w.env, BLOCK) : 0);
		}
		waiter_wait(&wt);
		assert_int_equal(w.store.puts, 4);
		for (int i = 0; i < 4; i++) {
			struct mem_object *o = &w.store.put[i];
			struct block_key k;

			read_check(&rd[i], 0);
			key_of_object(o->name, &k);
			assert_int_equal(
				coding_decode(req_coding(&w.env), o->mem, o->len, plain, BLOCK), 0);
			assert_true(is_pattern(&k, 0, plain, BLOCK));
		}
		end();
	}
	world_crypt = NULL;
	crypt_block_free(crypt);
}

static void a_failed_put_says_why(void **state)
{
	struct block_key k = key_of(10, 0);

	(void)state;
	begin(WITH_SYNC, CODEC_NONE);
	w.store.status = -EACCES;
	put_start(0, &k, 0);
	assert_int_equal(rd[0].status, -EACCES);
	assert_non_null(strstr(rd[0].req->reason, "vol/chunks/0/0/10_0_262144"));
	req_free(rd[0].req);
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ranges_and_whole_blocks_of_every_codec),
		cmocka_unit_test(sums_are_made_for_whole_blocks_only),
		cmocka_unit_test(an_object_of_another_length_is_an_error_that_tells_both),
		cmocka_unit_test(an_encoded_object_must_decode_to_exactly_its_block),
		cmocka_unit_test(the_stores_errors_keep_their_meaning),
		cmocka_unit_test(what_only_looks_into_stores_never_reaches_the_object_store),
		cmocka_unit_test(the_deadline_travels_to_the_store),
		cmocka_unit_test(blocks_are_put_under_their_names),
		cmocka_unit_test(encoding_needs_no_memory_that_uploads_hold),
		cmocka_unit_test(encrypted_blocks_come_whole_and_are_never_shown_half),
		cmocka_unit_test(what_is_put_is_encrypted),
		cmocka_unit_test(a_failed_put_says_why),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
