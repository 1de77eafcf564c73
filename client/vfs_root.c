/* SPDX-License-Identifier: Apache-2.0 */
/* The root's attributes, also while Redis hangs: the kernel asks for them on the way to every name,
 * and so to .stats and .config too, which must be readable then.
 *
 * The question runs in the meta queue; who asks waits for it in a thread of the local queue, and
 * leaves after a while with what was known last. As long as one that was left is on its way
 * (late), nobody asks and nobody waits.
 *
 *	asked	 -> answered	in time: the asker frees it
 *		 -> left	not in time; freed when the answer comes */
#include "client/vfs.h"

#include "common/clock.h"

enum { PATIENCE_US = 300000 };

struct root_ask {
	struct workq_job job;
	struct vfs *v;
	bool done, left; /* under v->root.lock */
	int status;
	struct vfs_entry e;
};

void vfs_root_init(struct vfs_root *root)
{
	mtx_init(&root->lock);
	cond_init(&root->answered);
}

void vfs_root_fini(struct vfs_root *root)
{
	assert(root->late == 0);
	cond_fini(&root->answered);
	mtx_fini(&root->lock);
}

static void ask_run(struct workq_job *job)
{
	struct root_ask *a = container_of(job, struct root_ask, job);
	struct vfs_root *root = &a->v->root;
	struct vfs_entry e = {0};
	int r = vfs_getattr(a->v, INODE_ROOT, &e);
	bool left;

	mtx_lock(&root->lock);
	if (r == 0) {
		root->last = e;
		root->known = true;
	}
	a->status = r;
	a->e = e;
	a->done = true;
	left = a->left;
	root->late -= left;
	cond_broadcast(&root->answered);
	mtx_unlock(&root->lock);
	if (left)
		free(a);
}

static void last_locked(struct vfs *v, struct vfs_entry *ret) REQUIRES(v->root.lock)
{
	if (v->root.known) {
		*ret = v->root.last;
	} else {
		*ret = (struct vfs_entry){.inode = INODE_ROOT};
		ret->attr = (struct attr){
			.type = INODE_DIR,
			.mode = 0777,
			.nlink = 2,
			.length = 4096,
			.parent = INODE_ROOT,
			.atime = v->mounted,
			.mtime = v->mounted,
			.ctime = v->mounted,
		};
	}
	ret->attr_us = 0; /* to be asked again */
}

int vfs_getattr_root(struct vfs *v, struct workq *q, struct vfs_entry *ret)
{
	uint64_t until = clock_us() + PATIENCE_US;
	struct vfs_root *root = &v->root;
	struct root_ask *a;
	bool late, done;

	mtx_lock(&v->root.lock);
	late = root->late > 0;
	if (late)
		last_locked(v, ret);
	mtx_unlock(&v->root.lock);
	if (late)
		return 0;
	a = calloc(1, sizeof(*a));
	if (!a)
		return -ENOMEM;
	a->v = v;
	a->job.fn = ask_run;
	/* bounded by the threads that wait here, and nobody comes here while one is late */
	workq_push_always(q, &a->job);
	mtx_lock(&v->root.lock);
	while (!a->done && clock_us() < until)
		cond_wait_us(&root->answered, &v->root.lock, clock_left(until));
	done = a->done;
	if (done && a->status == 0) {
		*ret = a->e;
	} else {
		last_locked(v, ret);
		a->left = !done;
		root->late += !done;
	}
	mtx_unlock(&v->root.lock);
	if (done)
		free(a);
	return 0;
}
