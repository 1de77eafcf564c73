/* SPDX-License-Identifier: Apache-2.0 */
/* Data of deleted files: lists of chunks go, references are counted down, slices that nobody refers
 * to any more are deleted from the object store. Threads: a few of the engine's own; what does not
 * fit, or fails, stays in delfiles and sliceRef for anybody's hourly clean-up. */
#include "client/meta/meta_redis.h"

#include <inttypes.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/parse.h"

enum { LLEN_BATCH = 1000, SCAN_FROM = 10000 };

struct delete_job {
	struct workq_job job;
	struct meta_redis *mr;
	uint64_t inode, length;
};

static uint64_t own_deadline(const struct meta_redis *mr)
{
	return clock_us() + mr->base.conf.timeout_us;
}

int slice_delete(struct meta_redis *mr, uint64_t id, uint32_t size)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	int r = mr->base.delete_fn(mr->base.delete_arg, id, size);

	if (r)
		return r;
	return redis_once(mr->own_redis, own_deadline(mr), &reply, "HDEL %ssliceRef k%llu_%lu",
			  mr->prefix, (unsigned long long)id, (unsigned long)size);
}

/* *ret_cut becomes true when the list tells that the file was once longer */
static int delete_chunk(struct meta_redis *mr, uint64_t inode, uint32_t index, bool *ret_cut)
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
	if (!r && reply_int(reply_at(reply, 0)))
		*ret_cut = true;
	for (size_t i = 1; !r && i + 1 < reply_len(reply); i += 2) {
		int64_t id = reply_int(reply_at(reply, i));
		int64_t size = reply_int(reply_at(reply, i + 1));

		if (id > 0 && size > 0)
			r = slice_delete(mr, (uint64_t)id, (uint32_t)size);
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

/* of a file with very many chunks: those that a scan of the database finds */
static int delete_found(struct meta_redis *mr, uint64_t inode)
{
	char cursor[24] = "0", match[32];
	size_t skip = strlen(mr->prefix) + 1;
	bool cut;

	skip += (size_t)snprintf(match, sizeof(match), "%" PRIu64 "_", inode);
	do {
		_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
		const struct redis_reply *page;
		const char *next;
		size_t n;
		int r = redis_once(mr->own_redis, own_deadline(mr), &reply,
				   "SCAN %s MATCH %sc%s* COUNT 10000", cursor, mr->prefix, match);

		if (r)
			return r;
		page = reply_at(reply, 1);
		next = page ? reply_text(reply_at(reply, 0), &n) : NULL;
		if (!next || n >= sizeof(cursor))
			return -EIO;
		memcpy(cursor, next, n + 1);
		for (size_t i = 0; i < reply_len(page) && !r; i++) {
			const char *key = reply_text(reply_at(page, i), &n);

			if (key && n > skip)
				r = delete_chunk(mr, inode, (uint32_t)strtoul(key + skip, NULL, 10),
						 &cut);
		}
		if (r)
			return r;
	} while (strcmp(cursor, "0") != 0);
	return 0;
}

static int delete_file(struct meta_redis *mr, uint64_t inode, uint64_t length)
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
	return redis_once(mr->own_redis, own_deadline(mr), &reply, "ZREM %sdelfiles %llu:%llu",
			  mr->prefix, (unsigned long long)inode, (unsigned long long)length);
}

static void delete_run(struct workq_job *job)
{
	struct delete_job *d = container_of(job, struct delete_job, job);
	uint64_t until = __atomic_load_n(&d->mr->delete_until_us, __ATOMIC_RELAXED);
	static struct log_rate rate;
	unsigned quiet;
	int r = -ECANCELED;

	if (!until || clock_us() < until)
		r = delete_file(d->mr, d->inode, d->length);
	if (r && log_rate_ok(&rate, 10 * 1000000, &quiet))
		log_warn("data of deleted inode %" PRIu64 " left for a later clean-up: %s",
			 d->inode, strerror(-r));
	free(d);
}

void delete_later(struct meta_redis *mr, uint64_t inode, uint64_t length)
{
	struct delete_job *d;

	if (!mr->base.delete_fn || !mr->base.conf.max_deletes || !mr->deletes)
		return;
	d = calloc(1, sizeof(*d));
	if (!d)
		return; /* it stays in delfiles */
	*d = (struct delete_job){.job.fn = delete_run, .mr = mr, .inode = inode, .length = length};
	if (workq_push(mr->deletes, &d->job))
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
	uint64_t id, size;
	size_t n;
	int r = 0;

	for (size_t i = 0; !r && i + 1 < reply_len(page); i += 2) {
		const char *p = reply_text(reply_at(page, i), &n);

		if (reply_int(reply_at(page, i + 1)) < 0 && slice_field_parse(p, n, &id, &size))
			r = slice_delete(mr, id, (uint32_t)size);
	}
	return r;
}

/* the references that were read are those of our volume: else its objects are another one's */
static int slices_ours(struct meta_redis *mr, const struct mark *k)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	int r = redis_once(mr->own_redis, own_deadline(mr), &reply, "GET %s_gen", mr->prefix);

	return r || mark_fits(k, reply, NULL) ? r : -ESTALE;
}

static int slices_scan(struct meta_redis *mr)
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
	int r = __atomic_load_n(&d->mr->delete_until_us, __ATOMIC_RELAXED) ? 0 : slices_scan(d->mr);

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
