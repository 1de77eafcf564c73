/* SPDX-License-Identifier: Apache-2.0 */
/* The machine has no memory: the k-th allocation of this thread fails, k = 1, 2, … until nothing
 * fails any more. Each time the answer is right or -ENOMEM, and afterwards as many pieces are
 * allocated as before. Needs the C library's own allocator, so sanitizer builds run the same steps
 * without failures. */
#include "tests/unit/block/world.h"

#include "common/block/setting.h"

static _Thread_local long fail_at; /* allocations of this thread until one fails; 0: none does */
static _Thread_local bool failed;
static long live; /* pieces allocated */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(__clang__)
enum { CAN_FAIL = 0 };
#else
enum { CAN_FAIL = 1 };

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
void __libc_free(void *p);

static bool fails(void)
{
	if (!fail_at || --fail_at)
		return false;
	failed = true;
	errno = ENOMEM;
	return true;
}

static void *counted(void *p)
{
	if (p)
		__atomic_fetch_add(&live, 1, __ATOMIC_RELAXED);
	return p;
}

void *malloc(size_t n)
{
	return fails() ? NULL : counted(__libc_malloc(n));
}

void *calloc(size_t n, size_t size)
{
	return fails() ? NULL : counted(__libc_calloc(n, size));
}

void *realloc(void *p, size_t n)
{
	if (fails())
		return NULL;
	return p ? __libc_realloc(p, n) : counted(__libc_realloc(p, n));
}

void *aligned_alloc(size_t align, size_t n)
{
	return fails() ? NULL : counted(__libc_memalign(align, n));
}

int posix_memalign(void **ret, size_t align, size_t n)
{
	void *p = fails() ? NULL : counted(__libc_memalign(align, n));

	if (!p)
		return ENOMEM;
	*ret = p;
	return 0;
}

void free(void *p)
{
	if (p)
		__atomic_fetch_sub(&live, 1, __ATOMIC_RELAXED);
	__libc_free(p);
}
#endif

/* step runs with the k-th allocation failing; its result must be 0 or -ENOMEM, and 0 when none
 * failed */
static unsigned until_success(int (*step)(void *arg), void (*before)(void *arg),
			      void (*after)(void *arg), void *arg)
{
	/* what libraries keep for ever is there afterwards */
	before(arg);
	assert_int_equal(step(arg), 0);
	after(arg);
	for (long k = 1;; k++) {
		long was = __atomic_load_n(&live, __ATOMIC_RELAXED);
		int r;

		before(arg);
		failed = false;
		fail_at = CAN_FAIL ? k : 0;
		r = step(arg);
		fail_at = 0;
		if (r && r != -ENOMEM)
			print_message("allocation %ld: %s\n", k, strerror(-r));

		assert_true(r == 0 || r == -ENOMEM);
		assert_true(failed || r == 0);
		after(arg);
		assert_int_equal(__atomic_load_n(&live, __ATOMIC_RELAXED), was);
		if (!failed)
			return (unsigned)k;
	}
}

/* what the store of the test allocates does not count */
static void pause_failing(bool on)
{
	static _Thread_local long kept;

	if (on)
		kept = fail_at;
	fail_at = on ? 0 : kept;
}

/* --- layers --- */

static struct world w;
static enum codec codec;
static bool daemon_side;

static void bare_before(void *arg)
{
	(void)arg;
	memset(&w, 0, sizeof(w));
	assert_int_equal(loop_new("test", &w.loop), 0);
	assert_int_equal(pool_new(16 * MIB, BLOCK + 4096, &w.pool), 0);
	w.metrics = metrics_new();
	assert_non_null(w.metrics);
	w.env = (struct req_env){.pool = w.pool,
				 .timers = w.loop,
				 .metrics = w.metrics,
				 .codec = codec,
				 .block_size = BLOCK,
				 .want_sums = true};
	w.store.base.ops = &mem_ops;
	w.store.pause = pause_failing;
	w.store.coding.codec = codec;
	mtx_init(&w.store.lock);
	list_init(&w.store.held);
}

static int make_layers(void *arg)
{
	const struct source_object_conf conf = {.store = &w.store.base, .volume_name = "vol"};
	int r = source_object_new(&w.env, &conf, &w.top);

	(void)arg;
	if (!r)
		r = source_fault_new(&w.env, w.top, &w.top);
	if (!r)
		r = source_flight_new(&w.env, w.top, daemon_side, &w.top);
	if (!r)
		r = source_ram_new(&w.env, w.top, 8 * MIB, &w.top);
	return r;
}

static void bare_after(void *arg)
{
	struct pool_stat st;

	(void)arg;
	req_env_drain(&w.env);
	source_free(w.top);
	pool_stat(w.pool, &st);
	assert_int_equal(st.used, 0);
	pool_free(w.pool);
	loop_free(w.loop);
	metrics_free(w.metrics);
	for (size_t i = 0; i < ARRAY_LEN(w.store.put); i++)
		free(w.store.put[i].mem);
	mtx_fini(&w.store.lock);
}

static void making_layers(void **state)
{
	(void)state;
	codec = CODEC_LZ4;
	assert_true(until_success(make_layers, bare_before, bare_after, NULL) >
		    (CAN_FAIL ? 20 : 0));
}

/* --- a request's life --- */

static struct waiter wt;

static void chain_before(void *arg)
{
	bare_before(arg);
	assert_int_equal(make_layers(NULL), 0);
	waiter_init(&wt);
}

static void chain_after(void *arg)
{
	waiter_fini(&wt);
	bare_after(arg);
}

static int get(const struct block_key *k, uint32_t off, uint32_t len, uint32_t flags)
{
	struct read rd = {.wt = &wt};
	long left;
	int status;

	rd.req = req_new(&w.env, k, off, len, flags, POOL_DEMAND);
	if (!rd.req)
		return -ENOMEM;
	wt.pending++;
	source_get(w.top, rd.req, read_done, &rd);
	left = fail_at;
	fail_at = 0; /* waiting and checking are the test's own */
	waiter_wait(&wt);
	status = rd.status;
	read_check(&rd, status);
	fail_at = left;
	return status;
}

/* two ranges, of which the second starts a whole fetch in a daemon, the whole block, a prefetch, a
 * hit */
static int gets(void *arg)
{
	struct block_key k = key_of(1, 0), other = key_of(1, 1);
	int r = get(&k, 5, 10, 0);

	(void)arg;
	if (!r)
		r = get(&k, 500, 10, 0);
	if (!r)
		r = get(&other, 0, BLOCK, 0);
	if (!r)
		r = get(&other, 0, 1, REQ_PREFETCH);
	return r;
}

static void gets_of_all_kinds(void **state)
{
	(void)state;
	/* zstd cannot tell a lack of memory from a damaged object: an error, but another one */
	for (codec = CODEC_NONE; codec <= CODEC_LZ4; codec++)
		for (int side = 0; side < 2; side++) {
			daemon_side = side;
			assert_true(until_success(gets, chain_before, chain_after, NULL) >
				    (CAN_FAIL ? 4 : 0));
		}
}

static int put(void *arg)
{
	struct block_key k = key_of(2, 0);
	size_t cost = pool_cost(BLOCK);
	struct read rd = {.wt = &wt};
	struct buf *b;
	int status;

	(void)arg;
	rd.req = req_new(&w.env, &k, 0, BLOCK, 0, POOL_UPLOAD);
	if (!rd.req)
		return -ENOMEM;
	assert_int_equal(pool_reserve(w.pool, POOL_UPLOAD, cost, NULL), 0);
	b = pool_take(w.pool, POOL_UPLOAD, BLOCK, &cost);
	if (!b) {
		pool_unreserve(w.pool, POOL_UPLOAD, cost);
		req_free(rd.req);
		return -ENOMEM;
	}
	memset(b->mem, 7, BLOCK);
	rd.req->data = blob_of_buf(b, 0, BLOCK);
	wt.pending++;
	source_put(w.top, rd.req, read_done, &rd);
	fail_at = 0;
	waiter_wait(&wt);
	status = rd.status;
	req_free(rd.req);
	return status;
}

static void puts_of_all_kinds(void **state)
{
	(void)state;
	/* the encoders allocate on their own and say nothing when they cannot, so only plain ones
	 * end alike */
	codec = CODEC_NONE;
	until_success(put, chain_before, chain_after, NULL);
}

/* --- forks --- */

static void lost(struct block_req *parent, int status, unsigned running, void *arg)
{
	(void)arg;
	if (!running)
		req_done(parent, status);
}

static void tick(struct block_req *parent, void *arg)
{
	(void)parent;
	(void)arg;
}

/* a layer that forks, and goes on alone when it cannot */
static void forker_back(struct block_req *req, int status, void *arg)
{
	(void)arg;
	req_done(req, status);
}

static void forker_get(struct source *s, struct block_req *req)
{
	struct block_req *child = req_fork(req, req->flags, 10000000, lost, s);

	if (!child) {
		source_get(s->next, req, forker_back, NULL);
		return;
	}
	(void)req_race_timer(req, 10000000, tick, s);
	req_fork_start(child, s->next);
}

static void forker_free(struct source *s)
{
	source_fini(s);
	s->ops = NULL;
}

static const struct source_ops forker_ops = {
	.name = "forker", .get = forker_get, .free = forker_free};
static struct source forker;

static void forker_before(void *arg)
{
	chain_before(arg);
	assert_int_equal(source_init(&forker, &forker_ops, &w.env, w.top), 0);
	w.top = &forker;
}

static int forked_get(void *arg)
{
	struct block_key k = key_of(3, 0);

	(void)arg;
	return get(&k, 0, BLOCK, 0);
}

static void forks(void **state)
{
	(void)state;
	codec = CODEC_NONE;
	daemon_side = false;
	assert_true(until_success(forked_get, forker_before, chain_after, NULL) >
		    (CAN_FAIL ? 6 : 0));
}

/* --- setting --- */

static struct str text;

static void nothing(void *arg)
{
	(void)arg;
}

static int parse(void *arg)
{
	struct str err = STR_INIT, out = STR_INIT;
	struct setting *s = NULL;
	int r = setting_parse(text.s, text.len, &s, &err);

	(void)arg;
	if (!r)
		r = setting_redacted(s, &out);
	setting_free(s);
	str_fini(&err);
	str_fini(&out);
	return r;
}

static void reading_a_setting(void **state)
{
	FILE *f = fopen("tests/golden/settings/plain.json", "r");
	char buf[4096];

	(void)state;
	assert_non_null(f);
	str_addn(&text, buf, fread(buf, 1, sizeof(buf), f));
	fclose(f);
	assert_true(until_success(parse, nothing, nothing, NULL) > (CAN_FAIL ? 30 : 0));
	str_fini(&text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(making_layers),     cmocka_unit_test(gets_of_all_kinds),
		cmocka_unit_test(puts_of_all_kinds), cmocka_unit_test(forks),
		cmocka_unit_test(reading_a_setting),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
