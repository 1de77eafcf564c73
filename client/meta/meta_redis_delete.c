/* SPDX-License-Identifier: Apache-2.0 */
/* Data of deleted files: lists of chunks go, references are counted down, slices that nobody refers
 * to any more are deleted from the object store. Threads: a few of the engine's own; what does not
 * fit, or fails, stays in delfiles and sliceRef for anybody's hourly clean-up. */
#include "client/meta/meta_redis.h"

#include <inttypes.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/parse.h"

enum { LLEN_BATCH = 1000, SCAN_FROM = 10000, FILES_STEP = 50, SLICES_STEP = 400 };

struct delete_job {
	struct workq_job job;
	struct meta_redis *mr;
};

static uint64_t own_deadline(const struct meta_redis *mr)
{
	return clock_us() + mr->base.conf.timeout_us;
}

int slice_delete(struct meta_redis *mr, uint64_t id, uint32_t size)
{
	const struct gone_slice v = {id, size};
	int r = mr->base.delete_fn(mr->base.delete_arg, id, size);

	return r ? r : slices_counted(mr, &v, 1);
}

/* the first records of a list, or all */
static int chunk_step(struct meta_redis *mr, uint64_t inode, uint32_t index, bool *ret_cut,
		      bool *ret_more)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct args args;
	int r;

	args_init(&args, mr);
	op_begin(mr, &args);
	args_u64(&args, inode);
	args_u64(&args, index);
	r = own_eval(mr, SC_DELCHUNK, &args, own_deadline(mr), &reply);
	op_end(mr, &args);
	*ret_more = !r && reply_int(reply_at(reply, 1)) == 1;
	if (r)
		return r;
	if (reply_int(reply_at(reply, 0)))
		*ret_cut = true;
	return slices_gone(mr, reply, 2);
}

/* *ret_cut becomes true when the list tells that the file was once longer */
int delete_chunk(struct meta_redis *mr, uint64_t inode, uint32_t index, bool *ret_cut)
{
	bool more = true;
	int r = 0, one;

	while (more) {
		one = chunk_step(mr, inode, index, ret_cut, &more);
		r = r ? r : one;
	}
	return r;
}

/* the chunks of [from, from + n) that have a list */
static int delete_range(struct meta_redis *mr, uint64_t inode, uint32_t from, uint32_t n,
			bool *ret_cut)
{
	uint64_t deadline = own_deadline(mr);
	bool has[LLEN_BATCH] = {false};
	struct redis_conn *c;
	int r = redis_acquire(mr->own_redis, deadline, &c);

	if (r)
		return r;
	for (uint32_t i = 0; i < n && !r; i++)
		r = redis_append(c, "LLEN %sc%llu_%lu", mr->prefix, (unsigned long long)inode,
				 (unsigned long)from + i);
	for (uint32_t i = 0; i < n && !r; i++) {
		_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;

		r = redis_next(c, deadline, &reply);
		has[i] = !r && reply_int(reply) > 0;
	}
	redis_release(c);
	for (uint32_t i = 0; i < n && !r; i++) {
		if (has[i])
			r = delete_chunk(mr, inode, from + i, ret_cut);
	}
	return r;
}

struct deletion {
	struct meta_redis *mr;
	uint64_t inode;
	size_t skip; /* of a key, before the number of the chunk */
};

/* what is met again, because the scan began anew, is gone and costs one question */
static int delete_page(void *arg, const struct redis_reply *page)
{
	const struct deletion *d = arg;
	bool cut = false;
	int r = 0;

	for (size_t i = 0; page && i < reply_len(page) && !r; i++) {
		size_t n;
		const char *key = reply_text(reply_at(page, i), &n);

		if (key && n > d->skip)
			r = delete_chunk(d->mr, d->inode,
					 (uint32_t)strtoul(key + d->skip, NULL, 10), &cut);
	}
	return r;
}

/* of a file with very many chunks: those that a scan of the database finds */
static int delete_found(struct meta_redis *mr, uint64_t inode)
{
	struct deletion d = {.mr = mr, .inode = inode};
	char match[48];

	d.skip = (size_t)snprintf(match, sizeof(match), "%sc%" PRIu64 "_*", mr->prefix, inode) - 1;
	return redis_pages(mr->own_redis, mr->base.conf.timeout_us, "SCAN", NULL, match, 10000,
			   delete_page, &d);
}

/* chunk by chunk; member: its name in delfiles */
int delete_file(struct meta_redis *mr, uint64_t inode, uint64_t length, const char *member)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	/* with the chunk in which the length lies even if it has no byte of it: a file that was cut
	 * has zeros there */
	uint64_t chunks = (length >> CHUNK_BITS) + 1;
	bool cut = false;
	int r = 0;

	if (chunks > SCAN_FROM)
		r = delete_found(mr, inode);
	for (uint64_t i = 0; chunks <= SCAN_FROM && i < chunks && !r; i += LLEN_BATCH) {
		cut = false;
		r = delete_range(mr, inode, (uint32_t)i,
				 (uint32_t)MIN(chunks - i, (uint64_t)LLEN_BATCH), &cut);
	}
	/* lists behind the end would stay for ever; longer files than that are left to gc, as
	 * JuiceFS leaves all */
	if (!r && cut)
		r = delete_range(mr, inode, (uint32_t)chunks, LLEN_BATCH, &cut);
	if (r)
		return r;
	return redis_once(mr->own_redis, own_deadline(mr), &reply, "ZREM %sdelfiles %s", mr->prefix,
			  member);
}

/* --- many small files at once --- */

struct delete_item {
	struct list_node link;
	uint64_t inode, length;
};

int slices_counted(struct meta_redis *mr, const struct gone_slice *v, size_t n)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	char text[SLICES_STEP][36];
	struct args args;
	int r = 0;

	for (size_t at = 0; at < n && !r; at += SLICES_STEP) {
		args_init(&args, mr);
		op_begin(mr, &args);
		for (size_t i = at; i < n && i < at + SLICES_STEP; i++) {
			char *p = text[i - at];

			snprintf(p, sizeof(text[0]), "k%" PRIu64 "_%" PRIu32, v[i].id, v[i].size);
			args_text(&args, p);
		}
		redis_reply_freep(&reply);
		reply = NULL;
		r = own_eval(mr, SC_DELSLICES, &args, own_deadline(mr), &reply);
		op_end(mr, &args);
	}
	return r;
}

int slices_gone(struct meta_redis *mr, const struct redis_reply *list, size_t from)
{
	size_t room = reply_len(list) / 2 + 1, n = 0;
	struct gone_slice *v = calloc(room, sizeof(*v));
	int r = v ? 0 : -ENOMEM, one;

	for (size_t i = from; v && i + 1 < reply_len(list); i += 2) {
		int64_t id = reply_int(reply_at(list, i));
		int64_t size = reply_int(reply_at(list, i + 1));

		if (id <= 0 || size <= 0)
			continue;
		v[n] = (struct gone_slice){(uint64_t)id, (uint32_t)size};
		one = mr->base.delete_fn(mr->base.delete_arg, v[n].id, v[n].size);
		n += !one;
		r = r ? r : one;
	}
	one = n ? slices_counted(mr, v, n) : 0;
	free(v);
	return r ? r : one;
}

/* the first of the files; *ret_n: how many */
static int files_step(struct meta_redis *mr, const struct dead_file *v, size_t n, size_t *ret_n)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	const struct redis_reply *slow;
	char text[FILES_STEP][44];
	struct args args;
	int64_t seen;
	int r, one;

	n = MIN(n, (size_t)FILES_STEP);
	args_init(&args, mr);
	op_begin(mr, &args);
	for (size_t i = 0; i < n; i++) {
		snprintf(text[i], sizeof(text[i]), "%" PRIu64 ":%" PRIu64, v[i].inode, v[i].length);
		args_text(&args, text[i]);
	}
	r = own_eval(mr, SC_DELFILES, &args, own_deadline(mr), &reply);
	op_end(mr, &args);
	if (r)
		return r;
	seen = reply_int(reply_at(reply, 0));
	if (seen <= 0 || seen > (int64_t)n)
		return -EIO;
	*ret_n = (size_t)seen;
	r = slices_gone(mr, reply_at(reply, 2), 0);
	slow = reply_at(reply, 1);
	for (size_t i = 0; i < reply_len(slow); i++) {
		int64_t k = reply_int(reply_at(slow, i));

		if (k < 1 || k > seen)
			return -EIO;
		one = delete_file(mr, v[k - 1].inode, v[k - 1].length, text[k - 1]);
		r = r ? r : one;
	}
	return r;
}

int files_delete(struct meta_redis *mr, const struct dead_file *v, size_t n)
{
	int r = 0, one;

	for (size_t at = 0, done; at < n; at += done) {
		done = 0;
		one = files_step(mr, v + at, n - at, &done);
		r = r ? r : one;
		if (!done)
			return r ? r : -EIO;
	}
	return r;
}

static size_t delete_take(struct meta_redis *mr, struct dead_file v[FILES_STEP])
{
	struct delete_item *item[FILES_STEP];
	size_t n = 0;

	mtx_lock(&mr->base.lock);
	while (n < FILES_STEP && !list_empty(&mr->dead)) {
		item[n] = container_of(list_pop(&mr->dead), struct delete_item, link);
		n++;
	}
	mr->n_dead -= (unsigned)n;
	if (n == 0)
		mr->deleters--;
	mtx_unlock(&mr->base.lock);
	for (size_t i = 0; i < n; i++) {
		v[i] = (struct dead_file){item[i]->inode, item[i]->length};
		free(item[i]);
	}
	return n;
}

static void delete_run(struct workq_job *job)
{
	struct delete_job *d = container_of(job, struct delete_job, job);
	struct dead_file v[FILES_STEP];
	static struct log_rate rate;
	unsigned quiet;
	size_t n;

	while ((n = delete_take(d->mr, v))) {
		uint64_t until = __atomic_load_n(&d->mr->delete_until_us, __ATOMIC_RELAXED);
		int r = !until || clock_us() < until ? files_delete(d->mr, v, n) : -ECANCELED;

		if (r && log_rate_ok(&rate, 10 * 1000000, &quiet))
			log_warn("data of deleted files left for a later clean-up: %s",
				 strerror(-r));
	}
	free(d);
}

void delete_later(struct meta_redis *mr, uint64_t inode, uint64_t length)
{
	unsigned threads = MIN(mr->base.conf.max_deletes, (unsigned)DELETE_THREADS);
	struct delete_item *item;
	struct delete_job *d;
	bool full, start;

	if (!mr->base.delete_fn || !threads || !mr->deletes)
		return;
	item = calloc(1, sizeof(*item));
	d = calloc(1, sizeof(*d));
	if (!item || !d) {
		free(item);
		free(d);
		return; /* it stays in delfiles */
	}
	*item = (struct delete_item){.inode = inode, .length = length};
	*d = (struct delete_job){.job.fn = delete_run, .mr = mr};
	mtx_lock(&mr->base.lock);
	full = mr->n_dead >= DELETES_MAX;
	start = !full && mr->deleters < threads;
	if (!full) {
		list_add_tail(&mr->dead, &item->link);
		mr->n_dead++;
	}
	mr->deleters += start;
	mtx_unlock(&mr->base.lock);
	if (full)
		free(item);
	if (start)
		workq_push_always(mr->deletes, &d->job); /* at most one a thread */
	else
		free(d);
}

/* --- references below zero: the data was to be deleted, and the object store failed --- */

static bool slice_field_parse(const char *p, size_t n, uint64_t *ret_id, uint64_t *ret_size)
{
	char text[40], *bar;

	if (!p || n < 2 || n >= sizeof(text) || p[0] != 'k')
		return false;
	memcpy(text, p + 1, n);
	bar = strchr(text, '_');
	if (!bar)
		return false;
	*bar = '\0';
	return parse_u64(text, UINT64_MAX, ret_id) == 0 &&
	       parse_u64(bar + 1, UINT32_MAX, ret_size) == 0 && *ret_id && *ret_size;
}

static int slices_page(struct meta_redis *mr, const struct redis_reply *page)
{
	size_t room = reply_len(page) / 2 + 1, n_gone = 0, n;
	struct gone_slice *gone = calloc(room, sizeof(*gone));
	int r = gone ? 0 : -ENOMEM, one;
	uint64_t id, size;

	for (size_t i = 0; gone && i + 1 < reply_len(page); i += 2) {
		const char *p = reply_text(reply_at(page, i), &n);
		const struct redis_reply *count = reply_at(page, i + 1);

		if (!slice_field_parse(p, n, &id, &size) ||
		    (reply_int(count) >= 0 && !reply_is(count, "0")))
			continue;
		one = reply_int(count) < 0
			      ? mr->base.delete_fn(mr->base.delete_arg, id, (uint32_t)size)
			      : 0;
		if (!one)
			gone[n_gone++] = (struct gone_slice){id, (uint32_t)size};
		r = r ? r : one;
	}
	one = n_gone ? slices_counted(mr, gone, n_gone) : 0;
	free(gone);
	return r ? r : one;
}

/* the references that were read are those of our volume: else its objects are another one's */
static int slices_ours(struct meta_redis *mr, const struct mark *k)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	int r = redis_once(mr->own_redis, own_deadline(mr), &reply, "GET %s_gen", mr->prefix);

	return r || mark_fits(k, reply, NULL) ? r : -ESTALE;
}

int slices_clean(struct meta_redis *mr)
{
	char cursor[24] = "0";
	struct mark k;

	if (mark_take(mr, &k))
		return -EIO;
	do {
		_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
		const char *next;
		size_t n;
		int r = redis_once(mr->own_redis, own_deadline(mr), &reply,
				   "HSCAN %ssliceRef %s COUNT 1000", mr->prefix, cursor);

		if (!r)
			r = slices_ours(mr, &k);
		if (!r)
			r = slices_page(mr, reply_at(reply, 1));
		if (r)
			return r;
		next = reply_text(reply_at(reply, 0), &n);
		if (!next || n >= sizeof(cursor))
			return -EIO;
		memcpy(cursor, next, n + 1);
	} while (strcmp(cursor, "0") != 0);
	return 0;
}

static void slices_run(struct workq_job *job)
{
	struct delete_job *d = container_of(job, struct delete_job, job);
	int r = __atomic_load_n(&d->mr->delete_until_us, __ATOMIC_RELAXED) ? 0
									   : slices_clean(d->mr);

	if (r)
		log_warn("slices without references left for a later clean-up: %s", strerror(-r));
	free(d);
}

void slices_clean_later(struct meta_redis *mr)
{
	struct delete_job *d;

	if (!mr->base.delete_fn || !mr->base.conf.max_deletes || !mr->deletes)
		return;
	d = calloc(1, sizeof(*d));
	if (!d)
		return; /* the next hour does it */
	*d = (struct delete_job){.job.fn = slices_run, .mr = mr};
	if (workq_push(mr->deletes, &d->job))
		free(d);
}
