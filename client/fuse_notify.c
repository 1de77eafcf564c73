/* SPDX-License-Identifier: Apache-2.0 */
/* Two threads, so that what may take long (pages that are being read) holds up no open: one lane
 * has notes about attributes, which the kernel forgets at once, the other notes about pages,
 * entries and inodes. Notes, whose owners wait (their bound is the kernel's: a request each), go
 * before entries and inodes, for which nobody waits. One leaf lock. */
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

struct lane {
	struct fuse_notify *n;
	struct cond changed;
	struct list_node notes, items; /* under the lock */
	pthread_t thread;
};

struct fuse_notify {
	struct fuse_session *se;
	struct mtx lock; /* of all below, and of what is in the lanes */
	struct lane attrs, rest;
	unsigned n_items;
	uint64_t lost;
	bool running;
};

/* the next of either queue; false: the end */
static bool next(struct lane *l, struct fuse_note **ret_note, struct item **ret_item)
{
	struct fuse_notify *n = l->n;
	struct list_node *p;
	bool running;

	*ret_note = NULL;
	*ret_item = NULL;
	mtx_lock(&n->lock);
	while (n->running && list_empty(&l->notes) && list_empty(&l->items))
		cond_wait(&l->changed, &n->lock);
	running = n->running;
	if (running && (p = list_pop(&l->notes))) {
		*ret_note = container_of(p, struct fuse_note, link);
	} else if (running && (p = list_pop(&l->items))) {
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
	struct lane *l = arg;
	struct fuse_note *note;
	struct item *item;

	while (next(l, &note, &item)) {
		if (note) {
			(void)fuse_lowlevel_notify_inval_inode(l->n->se, note->inode,
							       note->pages ? 0 : -1, 0);
			note->done(note);
		} else if (item) {
			tell(l->n, item);
			free(item);
		}
	}
	return NULL;
}

/* --- what is asked for --- */

void fuse_notify_note(struct fuse_notify *n, struct fuse_note *note)
{
	struct lane *l = note->pages ? &n->rest : &n->attrs;
	bool running;

	mtx_lock(&n->lock);
	running = n->running;
	if (running) {
		list_add_tail(&l->notes, &note->link);
		cond_signal(&l->changed);
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
		list_add_tail(&n->rest.items, &i->link);
		n->n_items++;
		cond_signal(&n->rest.changed);
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

static void lane_init(struct lane *l, struct fuse_notify *n)
{
	l->n = n;
	cond_init(&l->changed);
	list_init(&l->notes);
	list_init(&l->items);
}

int fuse_notify_new(struct fuse_notify **ret)
{
	struct fuse_notify *n = calloc(1, sizeof(*n));

	if (!n)
		return -ENOMEM;
	mtx_init(&n->lock);
	lane_init(&n->attrs, n);
	lane_init(&n->rest, n);
	*ret = n;
	return 0;
}

static void stop_running(struct fuse_notify *n)
{
	mtx_lock(&n->lock);
	n->running = false;
	cond_broadcast(&n->attrs.changed);
	cond_broadcast(&n->rest.changed);
	mtx_unlock(&n->lock);
}

int fuse_notify_start(struct fuse_notify *n, struct fuse_session *se)
{
	int r;

	n->se = se;
	n->running = true;
	r = thread_start("notify-attr", run, &n->attrs, &n->attrs.thread);
	if (r < 0) {
		n->running = false;
		return r;
	}
	r = thread_start("notify", run, &n->rest, &n->rest.thread);
	if (r < 0) {
		stop_running(n);
		pthread_join(n->attrs.thread, NULL);
	}
	return r;
}

void fuse_notify_stop(struct fuse_notify *n)
{
	struct list_node notes, *p;
	bool running;

	list_init(&notes);
	mtx_lock(&n->lock);
	running = n->running;
	mtx_unlock(&n->lock);
	if (!running)
		return;
	stop_running(n);
	pthread_join(n->attrs.thread, NULL);
	pthread_join(n->rest.thread, NULL);
	mtx_lock(&n->lock);
	list_splice_tail(&notes, &n->attrs.notes);
	list_splice_tail(&notes, &n->rest.notes);
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
	while ((p = list_pop(&n->rest.items)))
		free(container_of(p, struct item, link));
	cond_fini(&n->attrs.changed);
	cond_fini(&n->rest.changed);
	mtx_fini(&n->lock);
	free(n);
}
