/* SPDX-License-Identifier: Apache-2.0 */
/* .stats, .config, .accesslog and .control, and the warm-up behind it: over the engine in memory
 * and a layer that only counts. */
#include "tests/unit/check.h"

#include "client/control.h"
#include "client/internal.h"
#include "client/vfs.h"
#include "common/clock.h"
#include "common/mtx.h"

enum { BS = 65536, KEYS = 4096 };

static const struct meta_ctx root = {.uid = 0};

/* --- reads that may be parked --- */

struct reading {
	struct vfs_io io;
	struct mtx lock;
	struct cond cond;
	bool done;
	int status;
	char text[4096];
	size_t n;
};

static void reading_done(struct vfs_io *io, int status, const struct iovec *iov, int n,
			 size_t total)
{
	struct reading *r = container_of(io, struct reading, io);

	mtx_lock(&r->lock);
	r->status = status;
	r->n = total;
	if (n > 0 && total > 0)
		memcpy(r->text, iov->iov_base, total);
	r->text[total] = 0;
	r->done = true;
	cond_signal(&r->cond);
	mtx_unlock(&r->lock);
}

static void reading_start(struct reading *r, struct ifile *f, uint64_t off)
{
	*r = (struct reading){.io = {.off = off, .len = sizeof(r->text) - 1, .done = reading_done}};
	mtx_init(&r->lock);
	cond_init(&r->cond);
	internal_read(f, &r->io);
}

static bool reading_is_done(struct reading *r)
{
	bool done;

	mtx_lock(&r->lock);
	done = r->done;
	mtx_unlock(&r->lock);
	return done;
}

static const char *reading_wait(struct reading *r)
{
	mtx_lock(&r->lock);
	while (!r->done)
		cond_wait(&r->cond, &r->lock);
	mtx_unlock(&r->lock);
	assert_int_equal(r->status, 0);
	return r->text;
}

/* everything until the end of the file */
static void read_all(struct ifile *f, struct str *out)
{
	struct reading r;

	do {
		reading_start(&r, f, 0);
		str_add(out, reading_wait(&r));
	} while (r.n > 0);
}

static struct ifile *open_file(struct internal *in, uint64_t inode)
{
	struct ifile *f;

	assert_int_equal(internal_open(in, &root, inode, &f), 0);
	return f;
}

/* --- a chain that counts --- */

struct counting {
	struct source base;
	struct mtx lock;
	struct {
		uint64_t slice;
		uint32_t index, size, flags;
		unsigned times;
	} key[KEYS];
	unsigned keys, gets, drops;
	unsigned fail; /* so many next ones */
	int fail_status;
	bool probe_finds; /* status of a PROBE */
};

static void count_locked(struct counting *c, const struct block_req *req)
{
	for (unsigned i = 0; i < c->keys; i++) {
		if (c->key[i].slice == req->key.slice && c->key[i].index == req->key.index) {
			c->key[i].times++;
			return;
		}
	}
	assert_true(c->keys < KEYS);
	c->key[c->keys].slice = req->key.slice;
	c->key[c->keys].index = req->key.index;
	c->key[c->keys].size = req->key.size;
	c->key[c->keys].flags = req->flags;
	c->key[c->keys++].times = 1;
}

static void counting_get(struct source *s, struct block_req *req)
{
	struct counting *c = container_of(s, struct counting, base);
	int status = 0;

	mtx_lock(&c->lock);
	c->gets++;
	count_locked(c, req);
	if (c->fail > 0) {
		c->fail--;
		status = c->fail_status;
	} else if ((req->flags & REQ_PROBE) && !c->probe_finds) {
		status = -ENOENT;
	}
	mtx_unlock(&c->lock);
	req_done(req, status);
}

static void counting_drop(struct source *s, struct block_req *req)
{
	struct counting *c = container_of(s, struct counting, base);

	mtx_lock(&c->lock);
	c->drops++;
	count_locked(c, req);
	mtx_unlock(&c->lock);
	req_done(req, 0);
}

static void counting_free(struct source *s)
{
	source_fini(s);
}

static const struct source_ops counting_ops = {
	.name = "counting", .get = counting_get, .drop = counting_drop, .free = counting_free};

/* --- a mount of nothing else --- */

struct world {
	struct meta *meta;
	struct req_env env;
	struct counting chain;
	struct control_conf control;
	struct internal *in;
	struct loop *loop;
	struct metrics *metrics;
};

static void start(struct world *w)
{
	const struct meta_conf mc = {.timeout_us = 1000000, .heartbeat_us = 12000000};
	struct internal_conf ic;
	struct str err = STR_INIT;

	memset(w, 0, sizeof(*w));
	assert_int_equal(meta_mem_new(&mc, BS, 0, &w->meta), 0);
	assert_int_equal(meta_start(w->meta, &err), 0);
	assert_int_equal(loop_new("timers", &w->loop), 0);
	assert_int_equal(pool_new(16 << 20, BS, &w->env.pool), 0);
	w->env.timers = w->loop;
	w->env.block_size = BS;
	mtx_init(&w->chain.lock);
	assert_int_equal(source_init(&w->chain.base, &counting_ops, &w->env, NULL), 0);
	w->control = (struct control_conf){
		.meta = w->meta, .env = &w->env, .chain = &w->chain.base, .info = "{\"pid\":1}"};
	w->metrics = metrics_new();
	assert_non_null(w->metrics);
	metric_add(metrics_get(w->metrics, "stoke_test_total", "kind=\"x\"", METRIC_COUNTER,
			       "for the test"),
		   7);
	ic = (struct internal_conf){.metrics = w->metrics,
				    .config = "{\"a\":1}",
				    .control = &w->control,
				    .loop = w->loop};
	assert_int_equal(internal_new(&ic, &w->in), 0);
}

static void stop(struct world *w)
{
	internal_free(w->in);
	req_env_drain(&w->env);
	source_free(&w->chain.base);
	meta_stop(w->meta);
	meta_free(w->meta);
	loop_free(w->loop);
	pool_free(w->env.pool);
	metrics_free(w->metrics);
}

/* a file of n slices of size bytes each, one behind the other; its inode */
static uint64_t make_file(struct world *w, const char *name, unsigned n, uint32_t size)
{
	struct attr a;
	uint64_t inode;

	assert_int_equal(meta_mknod(w->meta, &root, INODE_ROOT, name, INODE_FILE, 0644, 0, 0, NULL,
				    &inode, &a),
			 0);
	for (unsigned i = 0; i < n; i++) {
		struct slice s = {.pos = i * size, .size = size, .len = size};

		assert_int_equal(meta_new_slice(w->meta, &s.id, &(struct hash128){{0}}), 0);
		assert_int_equal(meta_write(w->meta, inode, 0, &s, (struct time_ns){1, i}, &a), 0);
	}
	return inode;
}

static void ask(struct world *w, const char *request, struct str *out)
{
	struct ifile *f = open_file(w->in, INODE_CONTROL);

	assert_int_equal(internal_write(f, request, strlen(request)), 0);
	read_all(f, out);
	internal_close(f);
}

static const char *last_line(const struct str *s)
{
	const char *end = str_c(s), *p;

	for (p = end; *p; p++) {
		if (p[0] == '\n' && p[1])
			end = p + 1;
	}
	return end;
}

/* --- tests --- */

static void names_and_modes(void **state)
{
	struct world w;
	struct ifile *f;
	struct attr a;
	uint64_t inode;

	(void)state;
	start(&w);
	assert_true(internal_find(".control", &inode));
	assert_int_equal(inode, INODE_CONTROL);
	assert_false(internal_find(".trash", &inode));
	for (size_t i = 0; internal_listed(i, &inode); i++)
		assert_int_not_equal(inode, INODE_CONTROL);
	assert_true(internal_attr(w.in, INODE_CONTROL, &a));
	assert_int_equal(a.mode, 0600);
	assert_false(internal_attr(w.in, INODE_ROOT, &a));
	assert_int_equal(
		internal_open(w.in, &(struct meta_ctx){.uid = getuid() + 1}, INODE_CONTROL, &f),
		-EACCES);
	f = open_file(w.in, INODE_STATS);
	assert_int_equal(internal_write(f, "x", 1), -EACCES);
	internal_close(f);
	stop(&w);
}

static void stats_and_config_are_text_of_the_moment(void **state)
{
	struct world w;
	struct reading r;
	struct ifile *f;

	(void)state;
	start(&w);
	f = open_file(w.in, INODE_STATS);
	reading_start(&r, f, 0);
	assert_string_equal(reading_wait(&r), "stoke_test_total{kind=\"x\"} 7\n");
	reading_start(&r, f, 6);
	assert_string_equal(reading_wait(&r), "test_total{kind=\"x\"} 7\n");
	reading_start(&r, f, 1000);
	assert_string_equal(reading_wait(&r), "");
	internal_close(f);
	f = open_file(w.in, INODE_CONFIG);
	reading_start(&r, f, 0);
	assert_string_equal(reading_wait(&r), "{\"a\":1}\n");
	internal_close(f);
	stop(&w);
}

static void a_reader_of_the_log_waits_for_a_line(void **state)
{
	struct reading a, b;
	struct ifile *fa, *fb;
	struct world w;

	(void)state;
	start(&w);
	assert_false(internal_logging(w.in));
	fa = open_file(w.in, INODE_ACCESSLOG);
	fb = open_file(w.in, INODE_ACCESSLOG);
	assert_true(internal_logging(w.in));
	reading_start(&a, fa, 0);
	assert_false(reading_is_done(&a));
	internal_log(w.in, "[uid:0] read (%d): OK", 5);
	internal_log(w.in, "second");
	assert_non_null(strstr(reading_wait(&a), " [uid:0] read (5): OK\n"));
	assert_null(strstr(a.text, "second"));
	/* everybody who has it open reads every line */
	reading_start(&b, fb, 0);
	assert_non_null(strstr(reading_wait(&b), "read (5): OK\n"));
	assert_non_null(strstr(b.text, "second\n"));
	assert_int_equal(strspn(b.text, "0123456789. :"), strcspn(b.text, "["));
	internal_close(fa);
	internal_close(fb);
	assert_false(internal_logging(w.in));
	stop(&w);
}

static void an_idle_log_says_so_after_a_second(void **state)
{
	struct world w;
	struct reading r;
	struct ifile *f;
	uint64_t began = clock_us();

	(void)state;
	start(&w);
	f = open_file(w.in, INODE_ACCESSLOG);
	reading_start(&r, f, 0);
	assert_string_equal(reading_wait(&r), ACCESSLOG_IDLE);
	assert_true(clock_us() - began >= 1000000);
	internal_close(f);
	stop(&w);
}

static void a_slow_reader_of_the_log_loses_lines_and_is_told(void **state)
{
	struct str all = STR_INIT;
	struct world w;
	struct reading r;
	struct ifile *f;
	char line[1000];

	(void)state;
	memset(line, 'x', sizeof(line) - 1);
	line[sizeof(line) - 1] = 0;
	start(&w);
	f = open_file(w.in, INODE_ACCESSLOG);
	for (int i = 0; i < 1100; i++)
		internal_log(w.in, "%s", line);
	do {
		reading_start(&r, f, 0);
		str_add(&all, reading_wait(&r));
	} while (r.n == sizeof(r.text) - 1);
	assert_true(all.len <= ACCESSLOG_BUFFER);
	internal_log(w.in, "after");
	reading_start(&r, f, 0);
	assert_non_null(strstr(reading_wait(&r), " lines lost\n"));
	assert_non_null(strstr(r.text, "after\n"));
	internal_close(f);
	str_fini(&all);
	stop(&w);
}

static void info_is_one_line(void **state)
{
	struct str out = STR_INIT;
	struct world w;

	(void)state;
	start(&w);
	ask(&w, "info\n", &out);
	assert_string_equal(str_c(&out), "{\"pid\":1}\n");
	str_fini(&out);
	stop(&w);
}

static void what_is_not_the_protocol_is_refused(void **state)
{
	static const char *const bad[] = {"hello\n",
					  "warmup\n",
					  "warmup fill\n",
					  "warmup fill 0\n",
					  "warmup fill 99999\n",
					  "warmup steal 1\n",
					  "info now\n",
					  "warmup fill 1 2 3\n",
					  "warmup fill 1\nabc\n"};
	struct world w;
	struct ifile *f;

	(void)state;
	start(&w);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		f = open_file(w.in, INODE_CONTROL);
		assert_int_equal(internal_write(f, bad[i], strlen(bad[i])), -EINVAL);
		internal_close(f);
	}
	/* a request is one */
	f = open_file(w.in, INODE_CONTROL);
	assert_int_equal(internal_write(f, "info\n", 5), 0);
	assert_int_equal(internal_write(f, "info\n", 5), -EBUSY);
	internal_close(f);
	stop(&w);
}

static void without_a_group_a_warm_up_says_why(void **state)
{
	struct str out = STR_INIT;
	struct world w;

	(void)state;
	start(&w);
	w.control.no_group = "no group here";
	ask(&w, "warmup fill 4\n\n", &out);
	assert_string_equal(str_c(&out), "error 0 no group here\ndone 0 0 0 0 1\n");
	str_fini(&out);
	stop(&w);
}

/* two names of one inode, a file that shares nothing, one of holes, one that is not there, a
 * directory */
static void every_block_is_filled_once(void **state)
{
	struct str out = STR_INIT, request = STR_INIT;
	uint64_t a, b, c, size = 3 * BS;
	struct world w;
	struct attr attr;

	(void)state;
	start(&w);
	a = make_file(&w, "a", 3, BS * 2 + 5); /* 3 slices of 3 blocks */
	b = make_file(&w, "b", 1, 100);
	c = make_file(&w, "c", 0, 0);
	assert_int_equal(meta_truncate(w.meta, &root, c, size, false, &attr), 0);
	str_addf(&request, "warmup fill 7\n%llu\n%llu\n%llu\n%llu\n%llu\n%d\n\n",
		 (unsigned long long)a, (unsigned long long)b, (unsigned long long)a,
		 (unsigned long long)c, 987654ull, 1);
	ask(&w, str_c(&request), &out);
	assert_non_null(strstr(str_c(&out), "error 987654 No such file or directory\n"));
	assert_string_equal(last_line(&out), "done 4 10 393331 0 1\n");
	assert_int_equal(w.chain.keys, 10);
	assert_int_equal(w.chain.gets, 10);
	for (unsigned i = 0; i < w.chain.keys; i++)
		assert_int_equal(w.chain.key[i].flags, REQ_FILL);
	str_fini(&out);
	str_fini(&request);
	stop(&w);
}

static void an_overwritten_slice_is_not_warmed(void **state)
{
	struct str out = STR_INIT, request = STR_INIT;
	struct slice s = {.size = 2 * BS, .len = 2 * BS};
	struct world w;
	struct attr attr;
	uint64_t a;

	(void)state;
	start(&w);
	a = make_file(&w, "a", 1, 2 * BS);
	assert_int_equal(meta_new_slice(w.meta, &s.id, &(struct hash128){{0}}), 0);
	assert_int_equal(meta_write(w.meta, a, 0, &s, (struct time_ns){2, 2}, &attr), 0);
	str_addf(&request, "warmup fill 2\n%llu\n\n", (unsigned long long)a);
	ask(&w, str_c(&request), &out);
	assert_string_equal(last_line(&out), "done 1 2 131072 0 0\n");
	for (unsigned i = 0; i < w.chain.keys; i++)
		assert_int_equal(w.chain.key[i].slice, s.id);
	str_fini(&out);
	str_fini(&request);
	stop(&w);
}

/* a damaged volume: one slice, two sizes, and the second far beyond the first */
static void a_slice_of_two_sizes_is_two(void **state)
{
	struct slice records[] = {
		{.pos = 0, .size = 100, .len = 5},
		{.pos = 5, .size = 2 * BS, .len = 5},
		{.pos = 10, .size = UINT32_MAX, .off = 3u << 30, .len = 5},
	};
	struct str out = STR_INIT, request = STR_INIT;
	struct world w;
	struct attr attr;
	uint64_t a, id;

	(void)state;
	start(&w);
	a = make_file(&w, "a", 0, 0);
	assert_int_equal(meta_new_slice(w.meta, &id, &(struct hash128){{0}}), 0);
	for (unsigned i = 0; i < ARRAY_LEN(records); i++) {
		records[i].id = id;
		assert_int_equal(
			meta_write(w.meta, a, 0, &records[i], (struct time_ns){2, i}, &attr), 0);
	}
	str_addf(&request, "warmup fill 2\n%llu\n\n", (unsigned long long)a);
	ask(&w, str_c(&request), &out);
	assert_string_equal(last_line(&out), "done 1 3 131172 0 0\n");
	assert_int_equal(w.chain.gets, 3);
	str_fini(&out);
	str_fini(&request);
	stop(&w);
}

static void a_failed_fill_is_tried_again_and_then_missing(void **state)
{
	struct str out = STR_INIT, request = STR_INIT;
	struct world w;
	uint64_t a;

	(void)state;
	start(&w);
	a = make_file(&w, "a", 1, 5 * BS);
	str_addf(&request, "warmup fill 2\n%llu\n\n", (unsigned long long)a);
	w.chain.fail = 3;
	w.chain.fail_status = -EHOSTDOWN;
	ask(&w, str_c(&request), &out);
	assert_string_equal(last_line(&out), "done 1 5 327680 0 0\n");
	assert_int_equal(w.chain.gets, 8);
	/* the object store's verdict is final */
	w.chain.gets = 0;
	w.chain.fail = 2;
	w.chain.fail_status = -ENODATA;
	str_reset(&out);
	ask(&w, str_c(&request), &out);
	assert_string_equal(last_line(&out), "done 1 5 327680 2 2\n");
	assert_int_equal(w.chain.gets, 5);
	/* for ever down: the last try counts */
	w.chain.gets = 0;
	w.chain.fail = 1000;
	w.chain.fail_status = -EHOSTDOWN;
	str_reset(&out);
	ask(&w, str_c(&request), &out);
	assert_string_equal(last_line(&out), "done 1 5 327680 5 5\n");
	assert_int_equal(w.chain.gets, 5 * CONTROL_TRIES);
	str_fini(&out);
	str_fini(&request);
	stop(&w);
}

static void check_counts_what_is_missing_and_evict_drops(void **state)
{
	struct str out = STR_INIT, request = STR_INIT;
	struct world w;
	uint64_t a;

	(void)state;
	start(&w);
	a = make_file(&w, "a", 1, 4 * BS);
	str_addf(&request, "warmup check 2\n%llu\n\n", (unsigned long long)a);
	ask(&w, str_c(&request), &out);
	assert_string_equal(last_line(&out), "done 1 4 262144 4 0\n");
	w.chain.probe_finds = true;
	str_reset(&out);
	ask(&w, str_c(&request), &out);
	assert_string_equal(last_line(&out), "done 1 4 262144 0 0\n");
	str_reset(&request);
	str_reset(&out);
	str_addf(&request, "warmup evict 2\n%llu\n\n", (unsigned long long)a);
	ask(&w, str_c(&request), &out);
	assert_string_equal(last_line(&out), "done 1 4 262144 4 0\n");
	assert_int_equal(w.chain.drops, 4);
	str_fini(&out);
	str_fini(&request);
	stop(&w);
}

/* the request comes in pieces that break lines anywhere, and is given up in the middle */
static void a_closed_file_ends_its_warm_up(void **state)
{
	static const char request[] = "warmup fill 3\n2\n3\n4\n\n";
	struct world w;
	struct ifile *f;

	(void)state;
	start(&w);
	(void)make_file(&w, "a", 100, BS);
	f = open_file(w.in, INODE_CONTROL);
	w.chain.fail = UINT32_MAX;
	w.chain.fail_status = -EHOSTDOWN;
	for (const char *p = request; *p; p++)
		assert_int_equal(internal_write(f, p, 1), 0);
	internal_close(f);
	stop(&w); /* waits for the thread */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_and_modes),
		cmocka_unit_test(stats_and_config_are_text_of_the_moment),
		cmocka_unit_test(a_reader_of_the_log_waits_for_a_line),
		cmocka_unit_test(an_idle_log_says_so_after_a_second),
		cmocka_unit_test(a_slow_reader_of_the_log_loses_lines_and_is_told),
		cmocka_unit_test(info_is_one_line),
		cmocka_unit_test(what_is_not_the_protocol_is_refused),
		cmocka_unit_test(without_a_group_a_warm_up_says_why),
		cmocka_unit_test(every_block_is_filled_once),
		cmocka_unit_test(an_overwritten_slice_is_not_warmed),
		cmocka_unit_test(a_slice_of_two_sizes_is_two),
		cmocka_unit_test(a_failed_fill_is_tried_again_and_then_missing),
		cmocka_unit_test(check_counts_what_is_missing_and_evict_drops),
		cmocka_unit_test(a_closed_file_ends_its_warm_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
