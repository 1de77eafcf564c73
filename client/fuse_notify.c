/* SPDX-License-Identifier: Apache-2.0 */
/* The notify thread and its two queues: notes, whose owners wait (their bound is the kernel's, a
 * request each), go before entries and inodes, for which nobody waits. One leaf lock. */
#include "client/fuse_notify.h"

#include <fuse_lowlevel.h>
#include <pthread.h>

#include "common/mtx.h"
#include "common/thread.h"

struct item {
	struct list_node link;
	uint64_t inode;
	char name[]; /* empty: the inode itself */
};

struct fuse_notify {
	struct fuse_session *se;
	struct mtx lock; /* of all below but the thread */
	struct cond changed;
	struct list_node notes, items;
	unsigned n_items;
	uint64_t lost;
	bool running;
	pthread_t thread;
};

/* the next of either queue; false: the end */
static bool next(struct fuse_notify *n, struct fuse_note **ret_note, struct item **ret_item)
{
	struct list_node *p;
	bool running;

	*ret_note = NULL;
	*ret_item = NULL;
	mtx_lock(&n->lock);
	while (n->running && list_empty(&n->notes) && list_empty(&n->items))
		cond_wait(&n->changed, &n->lock);
	running = n->running;
	if (running && (p = list_pop(&n->notes))) {
		*ret_note = container_of(p, struct fuse_note, link);
	} else if (running && (p = list_pop(&n->items))) {
		*ret_item = container_of(p, struct item, link);
		n->n_items--;
	}
	mtx_unlock(&n->lock);
	return running;
}

/* what the kernel does not know, or no longer, is forgotten already: no answer matters */
static void tell(struct fuse_notify *n, const struct item *i)
{
	if (i->name[0])
		(void)fuse_lowlevel_notify_inval_entry(n->se, i->inode, i->name, strlen(i->name));
	else
		(void)fuse_lowlevel_notify_inval_inode(n->se, i->inode, 0, 0);
}

static void *run(void *arg)
{
	struct fuse_notify *n = arg;
	struct fuse_note *note;
	struct item *item;

	while (next(n, &note, &item)) {
		if (note) {
			(void)fuse_lowlevel_notify_inval_inode(n->se, note->inode, -1, 0);
			note->done(note);
		} else if (item) {
			tell(n, item);
			free(item);
		}
	}
	return NULL;
}

/* --- what is asked for --- */

void fuse_notify_attr(struct fuse_notify *n, struct fuse_note *note)
{
	bool running;

	mtx_lock(&n->lock);
	running = n->running;
	if (running) {
		list_add_tail(&n->notes, &note->link);
		cond_signal(&n->changed);
	}
	mtx_unlock(&n->lock);
	if (!running)
		note->done(note);
}

static void add(struct fuse_notify *n, uint64_t inode, const char *name)
{
	size_t len = strlen(name) + 1;
	struct item *i = malloc(sizeof(*i) + len);

	if (i) {
		i->inode = inode;
		memcpy(i->name, name, len);
	}
	mtx_lock(&n->lock);
	if (i && n->running && n->n_items < FUSE_NOTIFY_MAX) {
		list_add_tail(&n->items, &i->link);
		n->n_items++;
		cond_signal(&n->changed);
		i = NULL;
	} else {
		n->lost++;
	}
	mtx_unlock(&n->lock);
	free(i);
}

void fuse_notify_entry(struct fuse_notify *n, uint64_t parent, const char *name)
{
	add(n, parent, name);
}

void fuse_notify_inode(struct fuse_notify *n, uint64_t inode)
{
	add(n, inode, "");
}

uint64_t fuse_notify_lost(struct fuse_notify *n)
{
	uint64_t lost;

	mtx_lock(&n->lock);
	lost = n->lost;
	mtx_unlock(&n->lock);
	return lost;
}

/* --- life --- */

int fuse_notify_new(struct fuse_notify **ret)
{
	struct fuse_notify *n = calloc(1, sizeof(*n));

	if (!n)
		return -ENOMEM;
	mtx_init(&n->lock);
	cond_init(&n->changed);
	list_init(&n->notes);
	list_init(&n->items);
	*ret = n;
	return 0;
}

int fuse_notify_start(struct fuse_notify *n, struct fuse_session *se)
{
	int r;

	n->se = se;
	n->running = true;
	r = thread_start("notify", run, n, &n->thread);
	if (r < 0)
		n->running = false;
	return r;
}

void fuse_notify_stop(struct fuse_notify *n)
{
	struct list_node notes, *p;
	bool running;

	list_init(&notes);
	mtx_lock(&n->lock);
	running = n->running;
	n->running = false;
	cond_broadcast(&n->changed);
	mtx_unlock(&n->lock);
	if (!running)
		return;
	pthread_join(n->thread, NULL);
	mtx_lock(&n->lock);
	list_splice_tail(&notes, &n->notes);
	mtx_unlock(&n->lock);
	while ((p = list_pop(&notes))) {
		struct fuse_note *note = container_of(p, struct fuse_note, link);

		note->done(note);
	}
}

void fuse_notify_free(struct fuse_notify *n)
{
	struct list_node *p;

	if (!n)
		return;
	assert(!n->running);
	while ((p = list_pop(&n->items)))
		free(container_of(p, struct item, link));
	cond_fini(&n->changed);
	mtx_fini(&n->lock);
	free(n);
}
