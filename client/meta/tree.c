/* SPDX-License-Identifier: Apache-2.0 */
/* Trees, depth first, without recursion: each thread has a stack of its own on the heap. A
 * subdirectory goes to another thread when one is idle, else the one that found it goes on with it.
 * A thread that waits for others waits only for ones that run: each has a thread of its own. */
#include "client/meta/tree.h"

#include <inttypes.h>

#include "client/meta/scan.h"
#include "common/log.h"
#include "common/workq.h"

enum { AGAIN = 20 };

struct sub {
	uint64_t inode;
	size_t name, name_len;
};
/* an open directory */
struct frame {
	struct tree_dir d;
	struct frame *below; /* on the stack */
	struct sub *subs;
	size_t n, cap, next;
	struct str names;
	bool read;
	unsigned again;
	size_t damaged;
	unsigned others; /* threads at its subdirectories; under the tree's lock */
};
struct helper {
	struct workq_job job;
	struct tree *t;
	struct frame *first, *of;
};

static int tree_error(struct tree *t)
{
	int r;

	if (t->progress && __atomic_load_n(&t->progress->cancel, __ATOMIC_RELAXED))
		return -EINTR;
	mtx_lock(&t->lock);
	r = t->error;
	mtx_unlock(&t->lock);
	return r;
}

static void tree_failed(struct tree *t, int r)
{
	mtx_lock(&t->lock);
	if (r && !t->error)
		t->error = r;
	mtx_unlock(&t->lock);
}

void tree_damaged(uint64_t inode, size_t n)
{
	static struct log_rate rate;
	unsigned quiet;

	if (log_rate_ok(&rate, 60 * 1000000, &quiet))
		log_error("directory %" PRIu64 ": %zu damaged entries are left out (stoke fsck "
			  "--repair --path PATH removes them)",
			  inode, n);
}

int tree_ring(uint64_t inode)
{
	static struct log_rate rate;
	unsigned quiet;

	if (log_rate_ok(&rate, 10 * 1000000, &quiet))
		log_error("directory %" PRIu64 " lies in itself: the volume is damaged (stoke fsck "
			  "--path / -r names the entry that leads back to it)",
			  inode);
	return -ELOOP;
}

void tree_count(struct tree *t, uint64_t files, uint64_t bytes)
{
	if (!t->progress)
		return;
	__atomic_add_fetch(&t->progress->files, files, __ATOMIC_RELAXED);
	__atomic_add_fetch(&t->progress->bytes, bytes, __ATOMIC_RELAXED);
}

static struct frame *frame_new(const struct tree_dir *up, uint64_t inode, uint64_t tag,
			       const char *name, size_t name_len)
{
	struct frame *f = calloc(1, sizeof(*f));

	if (!f)
		return NULL;
	f->d = (struct tree_dir){.up = up, .inode = inode, .tag = tag, .name_len = name_len};
	memcpy(f->d.name, name, name_len);
	return f;
}

static void frame_free(struct frame *f)
{
	free(f->subs);
	str_fini(&f->names);
	free(f);
}

static int frame_sub(struct frame *f, const struct tree_entry *e)
{
	if (f->n == f->cap) {
		size_t cap = f->cap ? f->cap * 2 : 16;
		struct sub *p = reallocarray(f->subs, cap, sizeof(*p));

		if (!p)
			return -ENOMEM;
		f->subs = p;
		f->cap = cap;
	}
	f->subs[f->n++] = (struct sub){e->inode, f->names.len, e->name_len};
	str_addn(&f->names, e->name, e->name_len);
	str_addn(&f->names, "", 1);
	return str_error(&f->names);
}

/* --- reading a directory --- */

struct reading {
	struct tree *t;
	struct frame *f;
	struct tree_entry files[TREE_BATCH];
	size_t n;
};

static int reading_flush(struct reading *rd)
{
	size_t n = rd->n;
	int r = n ? tree_error(rd->t) : 0;

	rd->n = 0;
	return n && !r ? rd->t->ops->files(rd->t, &rd->f->d, rd->files, n) : r;
}

static bool name_ok(const struct scan_item *i)
{
	return i->name_len && i->name_len <= NAME_LEN_MAX && !memchr(i->name, '/', i->name_len) &&
	       !memchr(i->name, '\0', i->name_len);
}

static int reading_page(void *arg, size_t n, const struct scan_item *items)
{
	struct reading *rd = arg;
	int r = 0;

	for (size_t i = 0; i < n && !r; i++) {
		struct tree_entry e = {.name = items[i].name, .name_len = items[i].name_len};

		/* what is no entry is left where it is */
		if (!name_ok(&items[i]) || entry_decode((const uint8_t *)items[i].value,
							items[i].value_len, &e.type, &e.inode)) {
			rd->f->damaged++;
			continue;
		}
		if (e.type == INODE_DIR) {
			r = frame_sub(rd->f, &e);
			continue;
		}
		rd->files[rd->n++] = e;
		if (rd->n == TREE_BATCH)
			r = reading_flush(rd);
	}
	/* the names are the page's */
	return r ? r : reading_flush(rd);
}

static int frame_read(struct tree *t, struct frame *f)
{
	struct reading rd = {.t = t, .f = f};
	struct scan scan;
	char key[24];
	int r;

	f->n = f->next = f->damaged = 0;
	f->read = true;
	str_fini(&f->names);
	f->names = (struct str)STR_INIT;
	scan_init(&scan, t->mr->scan_redis, t->progress ? &t->progress->cancel : NULL);
	snprintf(key, sizeof(key), "d%" PRIu64, f->d.inode);
	r = scan_hash(&scan, key, reading_page, &rd);
	if (!r && f->damaged) {
		tree_damaged(f->d.inode, f->damaged);
		__atomic_store_n(&t->damaged, true, __ATOMIC_RELAXED);
	}
	return r;
}

/* --- walking --- */

static void walk(struct tree *t, struct frame *top);

static void helper_run(struct workq_job *job)
{
	struct helper *h = container_of(job, struct helper, job);
	struct tree *t = h->t;

	walk(t, h->first);
	mtx_lock(&t->lock);
	h->of->others--;
	t->idle++;
	cond_broadcast(&t->ended);
	mtx_unlock(&t->lock);
	free(h);
}

/* another thread walks first, a subdirectory of f; false: nobody is idle */
static bool helper_start(struct tree *t, struct frame *f, struct frame *first)
{
	struct helper *h;
	bool idle;

	mtx_lock(&t->lock);
	idle = t->idle > 0;
	if (idle) {
		t->idle--;
		f->others++;
	}
	mtx_unlock(&t->lock);
	if (!idle)
		return false;
	h = calloc(1, sizeof(*h));
	if (h) {
		*h = (struct helper){.job.fn = helper_run, .t = t, .first = first, .of = f};
		if (workq_push(t->threads, &h->job) == 0)
			return true; /* at once: an idle thread was taken */
	}
	free(h);
	mtx_lock(&t->lock);
	t->idle++;
	f->others--;
	mtx_unlock(&t->lock);
	return false;
}

static void others_wait(struct tree *t, struct frame *f)
{
	mtx_lock(&t->lock);
	while (f->others)
		cond_wait(&t->ended, &t->lock);
	mtx_unlock(&t->lock);
}

/* the next subdirectory of f: *ret is to be walked by the caller, or NULL */
static int frame_descend(struct tree *t, struct frame *f, struct frame **ret)
{
	const struct sub *s = &f->subs[f->next++];
	const struct tree_entry e = {f->names.s + s->name, s->name_len, INODE_DIR, s->inode};
	uint64_t tag = 0;
	struct frame *sub;
	int r = t->ops->enter ? t->ops->enter(t, &f->d, &e, &tag) : 0;

	*ret = NULL;
	for (const struct tree_dir *up = &f->d; up && !r; up = up->up)
		r = up->inode == e.inode ? tree_ring(e.inode) : 0;
	if (r)
		return MIN(r, 0);
	sub = frame_new(&f->d, e.inode, tag, e.name, e.name_len);
	if (!sub)
		return -ENOMEM;
	if (!helper_start(t, f, sub))
		*ret = sub;
	return 0;
}

static int frame_leave(struct tree *t, struct frame *f)
{
	int r;

	others_wait(t, f);
	r = tree_error(t);
	if (!r && t->ops->leave)
		r = t->ops->leave(t, &f->d);
	if (r == -ENOTEMPTY && f->damaged)
		return -EIO; /* only fsck takes that out */
	if (r == -ENOTEMPTY && f->again++ < AGAIN) {
		f->read = false;
		return 1;
	}
	return r;
}

/* first and all below it; frees it */
static void walk(struct tree *t, struct frame *top)
{
	while (top) {
		struct frame *sub = NULL, *done = NULL;
		int r = tree_error(t);

		if (!r && !top->read) {
			r = frame_read(t, top);
		} else if (!r && top->next < top->n) {
			r = frame_descend(t, top, &sub);
		} else {
			r = r ? r : frame_leave(t, top);
			if (r <= 0)
				done = top;
			r = MIN(r, 0);
		}
		tree_failed(t, r);
		if (sub) {
			sub->below = top;
			top = sub;
		} else if (done || r) {
			others_wait(t, top);
			done = top;
			top = top->below;
			frame_free(done);
		}
	}
}

int tree_walk(struct tree *t, uint64_t inode, uint64_t tag)
{
	struct frame *top = frame_new(NULL, inode, tag, "", 0);
	unsigned want = t->progress ? t->progress->threads : 0;
	unsigned others = MIN(want ? want : TREE_THREADS, (unsigned)TREE_THREADS_MAX) - 1;
	int r;

	if (!top)
		return -ENOMEM;
	r = workq_new("meta-tree", MAX(others, 1U), MAX(others, 1U), &t->threads);
	if (r) {
		frame_free(top);
		return r;
	}
	mtx_init(&t->lock);
	cond_init(&t->ended);
	t->idle = others;
	t->error = 0;
	walk(t, top);
	workq_free(t->threads);
	r = tree_error(t);
	cond_fini(&t->ended);
	mtx_fini(&t->lock);
	return r;
}
