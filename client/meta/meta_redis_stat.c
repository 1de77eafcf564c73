/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of directories (length, space and number of their entries). Operations add deltas
 * here; one thread writes them each second, as JuiceFS does, outside the operations. A directory
 * without statistics is counted anew instead. What Redis does not answer waits. */
#include "client/meta/meta_redis.h"

#include <inttypes.h>

#include "client/meta/meta_redis_quota.h"
#include "common/clock.h"
#include "common/hash.h"
#include "common/log.h"

enum { PERIOD_US = 1000000, COUNT_BATCH = 1000 };

struct dir_delta {
	struct hash_node node;
	uint64_t inode, above; /* 0: not known */
	int64_t length, space, inodes;
};

static bool delta_eq(const struct hash_node *n, const void *key)
{
	return container_of(n, struct dir_delta, node)->inode == *(const uint64_t *)key;
}

static void delta_more(struct dir_delta *d, uint64_t above, int64_t length, int64_t space,
		       int64_t inodes)
{
	d->above = above ? above : d->above;
	d->length += length;
	d->space += space;
	d->inodes += inodes;
}

void stat_add(struct meta_redis *mr, uint64_t dir, int64_t length, int64_t space, int64_t inodes)
{
	struct dir_delta *spare, *d = NULL;
	struct hash_node *n;
	uint64_t above;
	bool full;

	if (!meta_setting(&mr->base)->dir_stats)
		return;
	above = quota_dir_begin(mr, dir, space, inodes);
	spare = calloc(1, sizeof(*spare));
	mtx_lock(&mr->base.lock);
	n = hashmap_find(&mr->dirs, hash64(&dir, 8), delta_eq, &dir);
	if (n) {
		d = container_of(n, struct dir_delta, node);
	} else if (spare) {
		d = TAKE_PTR(spare);
		d->inode = dir;
		hashmap_add(&mr->dirs, &d->node, hash64(&dir, 8));
	}
	if (d)
		delta_more(d, above, length, space, inodes);
	full = mr->dirs.count > DIRS_MAX;
	mtx_unlock(&mr->base.lock);
	quota_dir_end(mr);
	free(spare);
	if (full)
		(void)stat_flush(mr, op_deadline(mr));
}

void stat_resized(struct meta_redis *mr, const struct attr *now, uint64_t before,
		  const struct redis_reply *dirs)
{
	int64_t length = (int64_t)(now->length - before);
	int64_t space = (int64_t)(align4k(now->length) - align4k(before));

	quota_owner(mr, now->uid, now->gid, space, 0);
	/* a file without a name counts in no directory */
	if (length == 0 || now->nlink == 0 || !meta_setting(&mr->base)->dir_stats)
		return;
	if (now->parent) {
		stat_add(mr, now->parent, length, space, 0);
		return;
	}
	for (size_t i = 0; i + 1 < reply_len(dirs); i += 2) {
		int64_t dir = reply_int(reply_at(dirs, i));
		int64_t n = reply_int(reply_at(dirs, i + 1));

		if (dir > 0 && n > 0)
			stat_add(mr, (uint64_t)dir, length * n, space * n, 0);
	}
}

/* sums over a directory's entries */
struct dir_count {
	int64_t length, space, inodes;
};

static int count_page(struct meta_redis *mr, const struct meta_entry *e, size_t n,
		      struct dir_count *c)
{
	(void)mr;
	for (size_t i = 0; i < n; i++) {
		uint64_t len = e[i].full && e[i].attr.type == INODE_FILE ? e[i].attr.length : 0;

		c->length += (int64_t)len;
		c->space += (int64_t)align4k(len);
		c->inodes++;
	}
	return 0;
}

static int stat_recount(struct meta_redis *mr, uint64_t dir, uint64_t deadline_us)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct dir_count c = {0};
	struct meta_dir *d;
	struct args args;
	int r = redis_readdir(&mr->base, dir, true, &d);

	if (r)
		return r;
	count_page(mr, d->entries, d->n, &c);
	meta_dir_free(d);
	args_init(&args, mr);
	args_u64(&args, dir);
	args_i64(&args, c.length);
	args_i64(&args, c.space);
	args_i64(&args, c.inodes);
	args_now(&args);
	return own_eval(mr, SC_DIRCOUNT, &args, deadline_us, &reply);
}

/* The root of a fresh volume is the one directory that nobody gave statistics. It is counted before
 * the first operation: later, what happens while it is counted could be counted twice, by the count
 * and by its own delta. */
int stat_begin(struct meta_redis *mr, uint64_t deadline_us)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	int r;

	if (!meta_setting(&mr->base)->dir_stats)
		return 0;
	r = redis_once(mr->own_redis, deadline_us, &reply, "HEXISTS %sdirUsedSpace 1", mr->prefix);
	if (!r && !reply_int(reply))
		r = stat_recount(mr, INODE_ROOT, deadline_us);
	return r;
}

/* A script's arguments stay until it is known what became of it: a batch that was not answered is
 * asked for again by the same number, so it is added once. */
struct stat_flight {
	struct args args;
	char text[STAT_BATCH * 5][21];
	struct hashmap *from;
	struct dir_delta *d[STAT_BATCH];
	size_t n;
};

static bool flight_take(struct hash_node *n, void *arg)
{
	struct stat_flight *f = arg;

	if (f->n == STAT_BATCH)
		return false;
	hashmap_del(f->from, n);
	f->d[f->n++] = container_of(n, struct dir_delta, node);
	return true;
}

/* the first of them were told; the others go back to what is to be told */
static void flight_end(struct meta_redis *mr, struct stat_flight *f, size_t told)
{
	op_end(mr, &f->args);
	for (size_t i = 0; i < f->n; i++) {
		struct dir_delta *d = f->d[i];
		struct hash_node *n = NULL;

		mtx_lock(&mr->base.lock);
		if (i >= told) {
			n = hashmap_find(&mr->dirs, hash64(&d->inode, 8), delta_eq, &d->inode);
			if (n)
				delta_more(container_of(n, struct dir_delta, node), 0, d->length,
					   d->space, d->inodes);
			else
				hashmap_add(&mr->dirs, &TAKE_PTR(d)->node,
					    hash64(&f->d[i]->inode, 8));
		}
		mtx_unlock(&mr->base.lock);
		free(d);
	}
	free(f);
}

static void args_delta(struct args *a, const struct dir_delta *d, char text[5][21])
{
	const int64_t v[3] = {d->length, d->space, d->inodes};

	snprintf(text[0], 21, "%" PRIu64, d->inode);
	for (int i = 0; i < 3; i++)
		snprintf(text[i + 1], 21, "%" PRId64, v[i]);
	snprintf(text[4], 21, "%" PRIu64, d->above);
	for (int i = 0; i < 5; i++)
		args_text(a, text[i]);
}

/* some of what is to be told; NULL: nothing, or no memory */
static struct stat_flight *flight_new(struct meta_redis *mr)
{
	struct stat_flight *f = malloc(sizeof(*f));

	if (!f)
		return NULL;
	f->from = &mr->dirs;
	f->n = 0;
	mtx_lock(&mr->base.lock);
	hashmap_each(&mr->dirs, flight_take, f);
	mtx_unlock(&mr->base.lock);
	if (f->n == 0) {
		free(f);
		return NULL;
	}
	args_init(&f->args, mr);
	op_begin(mr, &f->args);
	for (size_t i = 0; i < f->n; i++)
		args_delta(&f->args, f->d[i], f->text + i * 5);
	return f;
}

static int flight_land(struct meta_redis *mr, struct stat_flight *f, uint64_t deadline_us)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	int r;

	quota_tell(mr);
	r = own_eval(mr, SC_DIRSTAT, &f->args, deadline_us, &reply);
	quota_told(mr, r ? NULL : reply_at(reply, 2), true);
	if (r)
		return r;
	flight_end(mr, f, (size_t)MAX(1, reply_int(reply_at(reply, 3))));
	quota_version(mr, (uint64_t)reply_int(reply_at(reply, 0)), deadline_us);
	/* one that cannot be counted now has no statistics still: its next change comes here too */
	for (size_t i = 0; i < reply_len(reply_at(reply, 1)); i++)
		(void)stat_recount(mr, (uint64_t)reply_int(reply_at(reply_at(reply, 1), i)),
				   deadline_us);
	return 0;
}

/* the answer was no, and will be: what it is added to is damaged, or the volume is gone */
static bool refused(int r)
{
	return r && (r == -EIO || op_error(r) != -EIO);
}

static bool flush_begin(struct meta_redis *mr)
{
	bool work;

	mtx_lock(&mr->base.lock);
	while (mr->stat_flushing)
		cond_wait(&mr->stat_flushed, &mr->base.lock);
	work = mr->dirs.count || mr->stat_flight;
	mr->stat_flushing = work;
	mtx_unlock(&mr->base.lock);
	return work;
}

/* When it returns 0, all that was told before it was called is in Redis, whoever brought it there.
 * */
int stat_flush(struct meta_redis *mr, uint64_t deadline_us)
{
	static struct log_rate rate;
	uint64_t mark = quota_mark(mr);
	struct stat_flight *f;
	unsigned quiet;
	int r = 0;

	if (!flush_begin(mr)) {
		quota_all_told(mr, mark);
		return 0;
	}
	f = mr->stat_flight; /* nobody else flushes */
	if (!f)
		f = flight_new(mr);
	while (f && !r) {
		r = flight_land(mr, f, deadline_us);
		if (refused(r)) {
			if (log_rate_ok(&rate, 10 * 1000000, &quiet))
				log_warn("statistics of some directories are lost (fsck "
					 "--sync-dir-stat, quota check --repair): %s",
					 strerror(-r));
			flight_end(mr, f, f->n);
			r = 0;
		}
		if (!r) {
			mark = quota_mark(mr);
			f = flight_new(mr);
		}
	}
	if (!r)
		quota_all_told(mr, mark);
	mtx_lock(&mr->base.lock);
	mr->stat_flight = f;
	mr->stat_flushing = false;
	cond_broadcast(&mr->stat_flushed);
	mtx_unlock(&mr->base.lock);
	if (r && log_rate_ok(&rate, 60 * 1000000, &quiet))
		log_warn("statistics of directories wait: %s", strerror(-r));
	return r;
}

void stat_drop(struct meta_redis *mr)
{
	struct stat_flight *f = mr->stat_flight;

	for (; f; f = flight_new(mr)) {
		for (size_t i = 0; i < f->n; i++)
			free(f->d[i]);
		op_end(mr, &f->args);
		free(f);
	}
	hashmap_fini(&mr->dirs);
}

void *stat_main(void *arg)
{
	struct meta_redis *mr = arg;
	bool stop = false;

	while (!stop) {
		mtx_lock(&mr->base.lock);
		if (!mr->stopping)
			cond_wait_us(&mr->wake, &mr->base.lock, PERIOD_US);
		stop = mr->stopping;
		mtx_unlock(&mr->base.lock);
		(void)stat_flush(mr, clock_us() + mr->base.conf.timeout_us);
		if (quota_waiting(mr))
			quota_flush(mr, clock_us() + mr->base.conf.timeout_us);
	}
	return NULL;
}
