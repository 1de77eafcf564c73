/* SPDX-License-Identifier: Apache-2.0 */
/* FUSE low level <-> vfs: decodes requests, hands those that block to the meta workq, replies,
 * counts, and writes the access log. errno's sign flips here. */
#ifndef STOKE_CLIENT_FUSE_OPS_H
#define STOKE_CLIENT_FUSE_OPS_H

#include "client/vfs.h"

struct fuse_ops;
/* --root-squash, --all-squash: who callers are taken for */
struct squash {
	bool on;
	uint32_t uid, gid;
};
struct fuse_lowlevel_ops;

struct fuse_ops_conf {
	struct vfs *vfs;
	struct internal *internal;
	struct fuse_notify *notify;
	struct workq *meta;   /* 16 threads */
	struct workq *local;  /* what takes time but asks nobody: it goes on without Redis */
	uint64_t negative_us; /* how long the kernel may know that a name is missing; 0: not */
	bool xattr, acl;      /* acl: the volume has POSIX ACLs: the kernel applies them */
	bool ioctl;	      /* chattr may change flags */
	bool readdir_cache;   /* the kernel may keep listings */
	bool check;	      /* the engine checks permissions, not the kernel */
	struct squash root_squash, all_squash;
	int umask; /* in place of the caller's; -1: his */
	struct metrics *metrics;
	void (*ready)(void *arg); /* the kernel said INIT: the mount answers */
	void *arg;
};

int fuse_ops_new(const struct fuse_ops_conf *conf, struct fuse_ops **ret);
/* blocks until every request that was taken is answered; no receive thread runs any more */
void fuse_ops_drain(struct fuse_ops *f);
void fuse_ops_free(struct fuse_ops *f);
/* the table for fuse_session_new; its userdata is the struct fuse_ops */
const struct fuse_lowlevel_ops *fuse_ops_table(size_t *ret_size);

#endif
