/* SPDX-License-Identifier: Apache-2.0 */
/* Records of the metadata, as they lie in Redis (docs/format.md §2.4 – §2.7). Pure; every decoder
 * takes what anybody may have written. */
#ifndef STOKE_CLIENT_META_ATTR_H
#define STOKE_CLIENT_META_ATTR_H

#include "common/base.h"

enum inode_type {
	INODE_FILE = 1,
	INODE_DIR,
	INODE_SYMLINK,
	INODE_FIFO,
	INODE_BLOCK,
	INODE_CHAR,
	INODE_SOCKET
};
enum attr_flag { ATTR_IMMUTABLE = 1, ATTR_APPEND = 2, ATTR_SKIP_TRASH = 32 };

enum {
	ATTR_MAX = 81,
	ENTRY_LEN = 9,
	SLICE_LEN = 24,
	CHUNK_BITS = 26,
	CHUNK_SIZE = 1 << CHUNK_BITS,
	NAME_LEN_MAX = 255,
	SYMLINK_MAX = 4095,
	XATTR_VALUE_MAX = 65536,
};
#define INODE_ROOT  UINT64_C(1)
#define INODE_TRASH UINT64_C(0x7FFFFFFF10000000)
/* this and above: not a user's file (internal files, trash) */
#define INODE_INTERNAL	UINT64_C(0x7FFFFFFF00000000)
#define FILE_LENGTH_MAX ((UINT64_C(1) << 57) - 1)

struct time_ns {
	int64_t sec;
	uint32_t nsec;
};
struct attr {
	uint8_t flags, type, tier;
	uint16_t mode; /* 07777 */
	uint32_t uid, gid, rdev, nlink, access_acl, default_acl;
	uint64_t length, parent; /* parent 0: see p{inode} */
	struct time_ns atime, mtime, ctime;
};
/* one record of a chunk's list */
struct slice {
	uint32_t pos;
	uint64_t id;
	uint32_t size, off, len;
};

size_t attr_encode(const struct attr *a, uint8_t p[ATTR_MAX]);
/* 0 or -EPROTO (shorter than the fixed part, unknown type) */
int attr_decode(const uint8_t *p, size_t n, struct attr *ret);
void entry_encode(uint8_t type, uint64_t inode, uint8_t p[ENTRY_LEN]);
int entry_decode(const uint8_t *p, size_t n, uint8_t *ret_type, uint64_t *ret_inode);
void slice_encode(const struct slice *s, uint8_t p[SLICE_LEN]);
/* -EPROTO: wrong length, or a record that leaves its chunk or its slice */
int slice_decode(const uint8_t *p, size_t n, struct slice *ret);
/* what a length costs in usedSpace: 4096 for 0, else up to the next multiple of 4096 */
uint64_t align4k(uint64_t length);
/* st_mode's type bits of a type, and back (0: none) */
uint32_t inode_type_to_mode(uint8_t type);
uint8_t inode_type_from_mode(uint32_t mode);

#endif
