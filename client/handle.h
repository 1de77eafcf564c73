/* SPDX-License-Identifier: Apache-2.0 */
/* Open files and directories of a mount, and which inodes are open. A handle belongs to the
 * kernel's open file: made by open, create and opendir, ended by release, which the kernel sends
 * after the last answer that uses it. Thread-safe. */
#ifndef STOKE_CLIENT_HANDLE_H
#define STOKE_CLIENT_HANDLE_H

#include "client/meta/meta.h"
#include "client/reader.h"
#include "client/writer.h"
#include "common/hashmap.h"
#include "common/mtx.h"

struct vfs;
struct ifile;

enum handle_kind { HANDLE_FILE, HANDLE_DIR, HANDLE_INTERNAL };

/* a directory as it is listed from offset 0 on */
struct dir_reading {
	struct meta_list *list; /* NULL: nothing was read */
	uint64_t asked_us, parent;
	uint64_t made_up; /* entries before the list's first */
};

struct handle {
	enum handle_kind kind;
	struct vfs *vfs;
	uint64_t inode, number;
	int flags;
	bool trashed, kernel_other; /* at the open; the kernel knew other attributes */
	bool kernel_old;	    /* the kernel's attributes are not those that the open saw */
	uint64_t length;	    /* what the open saw */
	uint64_t drop; /* of attrcache_pages_match: done by the kernel before anything comes through
			* the handle; 0: nothing, or known; atomic */
	struct list_node link;	/* the table's */
	struct rfile *rfile;	/* file */
	struct rhandle *reader; /* file open for reading */
	struct wfile *wfile;	/* file open for writing */
	struct dir_reading dir; /* directory: its last reading from offset 0 */
	struct ifile *internal;
	bool locked;			/* somebody asked for a lock through it; atomic */
	unsigned uses;			/* under way; under the table's lock, as idle */
	void (*idle)(struct handle *h); /* to be called when they have ended */
	void *idle_arg;
};

struct handles {
	struct mtx lock;
	struct list_node all;
	struct hashmap open; /* inodes with at least one file handle */
	uint64_t last;
	size_t n, in_use;
};

int handles_init(struct handles *t);
/* every handle must be gone */
void handles_fini(struct handles *t);
/* a handle in the table; files count as an open of their inode. NULL: no memory */
struct handle *handle_new(struct handles *t, struct vfs *v, enum handle_kind kind, uint64_t inode,
			  int flags);
/* out of the table and freed; what hangs on it was given up by the caller */
void handle_free(struct handles *t, struct handle *h);
/* A read, write or flush may outlive the kernel's wish to wait for it (its asker was killed), and
 * so the release. Each of h stands between these two; h may be gone after the second */
void handle_use_begin(struct handles *t, struct handle *h);
void handle_use_end(struct handles *t, struct handle *h);
/* idle(h) runs once nothing is under way, at once or in the thread that ends the last one; at most
 * one idle a handle */
void handle_when_idle(struct handles *t, struct handle *h, void (*idle)(struct handle *h),
		      void *arg);
bool handles_inode_open(struct handles *t, uint64_t inode);
/* any handle that is left, for the end of the mount; NULL: none */
struct handle *handles_any(struct handles *t);
/* blocks until nothing is under way; for the end of the mount */
void handles_wait_idle(struct handles *t);
size_t handles_count(struct handles *t);

#endif
