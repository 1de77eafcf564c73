/* SPDX-License-Identifier: Apache-2.0 */
/* Every list of the volume, by a few threads: keys come from a scan, threads take them from a
 * bounded queue. The caller's thread scans. */
#include "client/meta/jobs.h"

#include <inttypes.h>

#include "client/meta/meta_redis.h"
#include "client/meta/scan.h"
#include "common/parse.h"

enum { WAITING_MAX = 4096, THREADS_MAX = 64 };

struct all {
	struct meta *m;
	struct scan scan;
	struct meta_progress *p;
	struct workq *q;
	struct mtx lock;
	struct cond room;
	unsigned waiting;
	int error;
};
struct one {
	struct workq_job job;
	struct all *all;
	uint64_t inode;
	uint32_t index;
};

static void one_run(struct workq_job *job)
{
	struct one *o = container_of(job, struct one, job);
	struct all *a = o->all;
	uint64_t freed = 0;
	int r = 0;

	if (!a->p || !__atomic_load_n(&a->p->cancel, __ATOMIC_RELAXED))
		r = redis_compact(a->m, o->inode, o->index, &freed);
	if (a->p) {
		__atomic_add_fetch(&a->p->files, 1, __ATOMIC_RELAXED);
		__atomic_add_fetch(&a->p->bytes, freed, __ATOMIC_RELAXED);
	}
	mtx_lock(&a->lock);
	a->waiting--;
	if (r && r != -ENOENT && !a->error)
		a->error = r;
	cond_broadcast(&a->room);
	mtx_unlock(&a->lock);
	free(o);
}

/* "c{inode}_{index}" */
static bool chunk_parse(const struct scan_item *i, uint64_t *ret_inode, uint64_t *ret_index)
{
	char text[40], *bar;

	if (i->name_len < 4 || i->name_len >= sizeof(text))
		return false;
	memcpy(text, i->name + 1, i->name_len);
	bar = strchr(text, '_');
	if (!bar)
		return false;
	*bar = '\0';
	return parse_u64(text, UINT64_MAX, ret_inode) == 0 &&
	       parse_u64(bar + 1, UINT32_MAX, ret_index) == 0;
}

static int all_push(struct all *a, uint64_t inode, uint32_t index)
{
	struct one *o = calloc(1, sizeof(*o));

	if (!o)
		return -ENOMEM;
	*o = (struct one){.job.fn = one_run, .all = a, .inode = inode, .index = index};
	mtx_lock(&a->lock);
	while (a->waiting >= WAITING_MAX)
		cond_wait(&a->room, &a->lock);
	a->waiting++;
	mtx_unlock(&a->lock);
	workq_push_always(a->q, &o->job);
	return 0;
}

static int all_page(void *arg, size_t n, const struct scan_item *items)
{
	struct all *a = arg;
	uint64_t inode, index;
	struct pipe pipe;
	int r = 0;

	for (size_t at = 0; at < n && !r; at += PIPE_MAX) {
		size_t k = MIN(n - at, (size_t)PIPE_MAX);

		pipe_init(&pipe, &a->scan);
		for (size_t i = 0; i < k; i++)
			pipe_add(&pipe, "LLEN", items[at + i].name, (char *)NULL);
		r = pipe_run(&pipe);
		for (size_t i = 0; i < k && !r; i++) {
			if (reply_int(pipe.reply[i]) > 1 &&
			    chunk_parse(&items[at + i], &inode, &index))
				r = all_push(a, inode, (uint32_t)index);
		}
		pipe_fini(&pipe);
	}
	return r;
}

int meta_compact_all(struct meta *m, unsigned threads, struct meta_progress *p)
{
	struct all a = {.m = m, .p = p};
	int r;

	if (!meta_redis(m) || !redis_engine(m)->compactor)
		return -EOPNOTSUPP;
	scan_init(&a.scan, redis_engine(m)->own_redis, p ? &p->cancel : NULL);
	threads = MAX(threads, 1U);
	r = workq_new("compact-all", MIN(threads, (unsigned)THREADS_MAX), WAITING_MAX, &a.q);
	if (r)
		return r;
	mtx_init(&a.lock);
	cond_init(&a.room);
	r = scan_keys(&a.scan, "c[0-9]*_*", all_page, &a);
	workq_free(a.q);
	cond_fini(&a.room);
	mtx_fini(&a.lock);
	return r ? r : a.error;
}
