/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's thread finds lists of more than one record, by a scan or by walking a tree; threads
 * take them from a bounded queue. */
#include "client/maint/compact_lists.h"

#include "client/maint/slices.h"
#include "client/maint/walk.h"
#include "client/meta/reply.h"
#include "common/mtx.h"
#include "common/workq.h"

enum { WAITING_MAX = 4096, THREADS_MAX = 64, THREADS = 10 };

struct compacting {
	struct meta *m;
	struct scan scan;
	struct meta_progress *p;
	struct workq *q;
	struct mtx lock;
	struct cond room;
	unsigned waiting;
	int error;
	uint64_t done;
	/* the list that a walk is at */
	uint64_t inode;
	uint32_t index;
	size_t n; /* its records */
};
struct one {
	struct workq_job job;
	struct compacting *c;
	uint64_t inode;
	uint32_t index;
};

static void one_run(struct workq_job *job)
{
	struct one *o = container_of(job, struct one, job);
	struct compacting *c = o->c;
	uint64_t freed = 0;
	int r = -EINTR;

	if (!__atomic_load_n(&c->p->cancel, __ATOMIC_RELAXED))
		r = meta_compact(c->m, o->inode, o->index, &freed);
	__atomic_add_fetch(&c->p->bytes, freed, __ATOMIC_RELAXED);
	mtx_lock(&c->lock);
	c->waiting--;
	c->done += r == 0;
	if (r && r != -ENOENT && !c->error)
		c->error = r;
	cond_broadcast(&c->room);
	mtx_unlock(&c->lock);
	free(o);
}

static int push(struct compacting *c, uint64_t inode, uint32_t index)
{
	struct one *o = calloc(1, sizeof(*o));

	if (!o)
		return -ENOMEM;
	*o = (struct one){.job.fn = one_run, .c = c, .inode = inode, .index = index};
	mtx_lock(&c->lock);
	while (c->waiting >= WAITING_MAX)
		cond_wait(&c->room, &c->lock);
	c->waiting++;
	mtx_unlock(&c->lock);
	workq_push_always(c->q, &o->job);
	return 0;
}

static int begin(struct compacting *c, struct meta *m, struct meta_progress *p)
{
	unsigned threads = p->threads ? p->threads : THREADS;
	int r;

	*c = (struct compacting){.m = m, .p = p};
	if (!meta_redis(m))
		return -EOPNOTSUPP;
	scan_init(&c->scan, meta_redis(m), &p->cancel);
	r = workq_new("squeeze", MIN(threads, (unsigned)THREADS_MAX), WAITING_MAX, &c->q);
	if (r)
		return r;
	mtx_init(&c->lock);
	cond_init(&c->room);
	return 0;
}

/* all that was pushed is done; the first error */
static int end(struct compacting *c, int r)
{
	workq_free(c->q);
	cond_fini(&c->room);
	mtx_fini(&c->lock);
	return r ? r : c->error;
}

/* --- of the volume --- */

static int all_page(void *arg, size_t n, const struct scan_item *items)
{
	struct compacting *c = arg;
	uint64_t inode;
	uint32_t index;
	struct pipe pipe;
	int r = 0;

	for (size_t at = 0; at < n && !r; at += PIPE_MAX) {
		size_t k = MIN(n - at, (size_t)PIPE_MAX);

		pipe_init(&pipe, &c->scan);
		for (size_t i = 0; i < k; i++)
			pipe_add(&pipe, "LLEN", items[at + i].name, (char *)NULL);
		r = pipe_run(&pipe);
		for (size_t i = 0; i < k && !r; i++) {
			if (reply_int(pipe.reply[i]) < 2 ||
			    !slices_chunk_key(&items[at + i], &inode, &index))
				continue;
			r = push(c, inode, index);
			__atomic_add_fetch(&c->p->files, 1, __ATOMIC_RELAXED);
		}
		pipe_fini(&pipe);
	}
	return r;
}

int meta_compact_all(struct meta *m, struct meta_progress *p)
{
	struct compacting c;
	int r = begin(&c, m, p);

	return r ? r : end(&c, scan_keys(&c.scan, "c[0-9]*_*", all_page, &c));
}

/* --- of a tree --- */

/* one record is as compact as it gets */
static int list_end(struct compacting *c)
{
	size_t n = c->n;

	c->n = 0;
	return n > 1 ? push(c, c->inode, c->index) : 0;
}

static int count_record(void *arg, uint64_t inode, uint32_t index, const struct slice *s)
{
	struct compacting *c = arg;
	int r = 0;

	(void)s;
	if (c->inode != inode || c->index != index) {
		r = list_end(c);
		c->inode = inode;
		c->index = index;
	}
	c->n++;
	return r;
}

static int file(struct compacting *c, uint64_t inode, uint64_t length)
{
	int r = slices_of_file(&c->scan, inode, length, count_record, c);

	if (r == 0)
		r = list_end(c);
	__atomic_fetch_add(&c->p->files, 1, __ATOMIC_RELAXED);
	return r;
}

static int entry(void *arg, const struct walk_dir *dir, const char *name, uint64_t inode,
		 uint8_t type, const struct attr *attr)
{
	(void)dir;
	(void)name;
	return type == INODE_FILE && attr ? file(arg, inode, attr->length) : 0;
}

int meta_compact_tree(struct meta *m, uint64_t inode, struct meta_progress *p, uint64_t *ret_chunks)
{
	static const struct walk_ops ops = {.entry = entry};
	struct attr a = {.type = 0};
	struct compacting c;
	int r = begin(&c, m, p);

	if (r)
		return r;
	r = meta_getattr(m, inode, &a);
	inode = meta_rooted(m, inode);
	if (r == 0 && a.type == INODE_DIR)
		r = walk_tree(&c.scan, inode, "/", true, &ops, &c);
	else if (r == 0 && a.type == INODE_FILE)
		r = file(&c, inode, a.length);
	r = end(&c, r);
	*ret_chunks = c.done;
	return r;
}
