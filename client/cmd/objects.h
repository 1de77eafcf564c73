/* SPDX-License-Identifier: Apache-2.0 */
/* A volume's objects, for fsck, gc and the like: lists them, looks at one, deletes. Blocks; never
 * on a loop or FUSE thread. */
#ifndef STOKE_CLIENT_CMD_OBJECTS_H
#define STOKE_CLIENT_CMD_OBJECTS_H

#include "common/block/setting.h"

struct objects;

/* one line in err */
int objects_open(const struct setting *set, unsigned parallel, struct objects **ret,
		 struct str *err);
void objects_free(struct objects *o);

/* an object below NAME/chunks/ */
struct object_found {
	const char *key; /* full */
	uint64_t size;	 /* stored */
	int64_t mtime;	 /* seconds */
	/* block: its name is a block's and it lies where that block belongs */
	bool block;
	uint64_t slice;
	uint32_t index, plain; /* plain: bytes of the block */
};
typedef int objects_fn(void *arg, const struct object_found *f);
/* all of them; not 0 from fn ends it. cancel as in scan.h; err: what the store said */
int objects_each(struct objects *o, const int *cancel, objects_fn *fn, void *arg, struct str *err);

/* blocks of a slice of size bytes */
uint32_t objects_count(const struct objects *o, uint32_t size);
/* Looks at all blocks of some slices, many at once. bad is called for each that is not there
 * (stored -1) or has not the size that it must have; unknown for one that the store would not tell
 * of. */
struct object_slice {
	uint64_t slice;
	uint32_t size;
};
enum { OBJECTS_AT_ONCE = 256 };
struct object_check {
	void (*bad)(void *arg, const struct object_slice *s, uint32_t index, uint32_t plain,
		    int64_t stored);
	void (*unknown)(void *arg, const char *why);
	void *arg;
};
int objects_check(struct objects *o, const struct object_slice *s, size_t n,
		  const struct object_check *c);
/* A stored size that a block of plain bytes can have. Of a block that is encrypted alone the size
 * is known when the passphrase is; of one that is compressed only that it holds something. */
bool objects_size_fits(const struct objects *o, uint32_t plain, uint64_t stored);

/* what that leaves open, for people; NULL: nothing */
const char *objects_unsure(const struct objects *o);

/* at most 1 000 full keys; missing ones are fine */
int objects_delete(struct objects *o, const char *const *keys, size_t n, struct str *err);
/* all blocks of a slice; meta_delete_fn, arg is a struct objects */
int objects_delete_slice(void *arg, uint64_t slice, uint32_t size);
/* The blocks of a slice, read and stored once more as they are, with the storage class of a tier.
 * A store without classes: nothing to do. 0; one line in err */
int objects_store_again(struct objects *o, const struct object_slice *s, uint8_t tier,
			uint64_t *ret_bytes, struct str *err);
/* archived blocks are made readable for days; others are fine. -EOPNOTSUPP: not by this store */
int objects_restore(struct objects *o, const struct object_slice *s, unsigned days,
		    struct str *err);
/* for a data path beside it */
struct loop *objects_loop(struct objects *o);
struct object_store *objects_store(struct objects *o);
/* "s3 http://host/bucket", no secrets */
const char *objects_where(const struct objects *o);

#endif
