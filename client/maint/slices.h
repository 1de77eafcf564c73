/* SPDX-License-Identifier: Apache-2.0 */
/* Which slices a volume's metadata knows, and why: for fsck and gc. Reads everything once, in the
 * order in which slices move (lists, then the delayed ones, then references), so that one that
 * moves meanwhile is seen. Blocks; any thread. */
#ifndef STOKE_CLIENT_MAINT_SLICES_H
#define STOKE_CLIENT_MAINT_SLICES_H

#include "client/meta/meta.h"
#include "client/maint/numtable.h"
#include "client/meta/scan.h"

/* why a slice is known: the lowest that holds */
enum slice_use {
	SLICE_FILE,    /* in the list of a file */
	SLICE_WAITING, /* in the list of a deleted file that waits in delfiles */
	SLICE_TRASH,   /* replaced by compaction, waits in delSlices */
	SLICE_PENDING, /* without references, its objects are to be deleted */
	SLICE_USES
};

enum { TWICE_TOLD = 100 };

/* a chunk's list whose file is gone */
struct leaked_chunk {
	uint64_t inode;
	uint32_t index;
};
struct slices {
	struct numtable slice;	 /* (id, size): v inode of one that has it; w use | seen << 2 */
	struct numtable deleted; /* inodes in delfiles: v length, w when (seconds) */
	/* (id, i): v the i-th size of slices of that number; w of (id, 0): how many there are. More
	 * than one: the number was given twice, by a database that went back. */
	struct numtable by_id;
	/* (id, size): v how often lists and delSlices show it beyond the first time, w what
	 * sliceRef says; only of slices that are there more than once */
	struct numtable again;
	struct leaked_chunk *leaked;
	size_t n_leaked;
	size_t twice;		/* numbers with slices of several sizes */
	size_t damaged;		/* lists with a record that is none */
	uint64_t waiting_bytes; /* length of the files in delfiles */
};

static inline enum slice_use slice_use(const struct numslot *s)
{
	return (enum slice_use)(s->w & 3);
}

void slices_fini(struct slices *s);
/* the slice of that number that has a block of plain bytes at index; NULL: none */
struct numslot *slices_find(const struct slices *s, uint64_t id, uint32_t index, uint32_t plain,
			    uint32_t block_size);
/* p->files counts slices. warn: a line for each damaged list, and for numbers given twice (the
 * first TWICE_TOLD of them) */
int slices_read(const struct scan *scan, struct meta_progress *p,
		void (*warn)(void *arg, const char *line), void *arg, struct slices *ret);

/* a list's key "c{inode}_{index}"; false: it is none */
bool slices_chunk_key(const struct scan_item *it, uint64_t *ret_inode, uint32_t *ret_index);

/* every record of a file's list; not 0 ends it */
typedef int slices_fn(void *arg, uint64_t inode, uint32_t index, const struct slice *s);
/* lists of all files, or of one (all its chunks) */
int slices_each(const struct scan *scan, slices_fn *fn, void *arg);
int slices_of_file(const struct scan *scan, uint64_t inode, uint64_t length, slices_fn *fn,
		   void *arg);
/* the records of a list that was read; -EPROTO: one of them is none */
int slices_of_list(const struct redis_reply *list, uint64_t inode, uint32_t index, slices_fn *fn,
		   void *arg);
/* what waits in delSlices */
typedef int slices_delayed_fn(void *arg, uint64_t id, uint32_t size);
int slices_delayed(const struct scan *scan, slices_delayed_fn *fn, void *arg);

#endif
