/* SPDX-License-Identifier: Apache-2.0 */
/* Records of the metadata as they lie in Redis: bytes <-> structs, big-endian. Pure. */
#include "client/meta/attr.h"

#include <sys/stat.h>

enum {
	FIXED_LEN = 63,	 /* up to and with rdev; the oldest records end here (and a pad) */
	PARENT_END = 71, /* what follows is optional and positional: both ACL ids, tier, pad */
};

static void put32(uint8_t *p, uint32_t v)
{
	p[0] = (uint8_t)(v >> 24);
	p[1] = (uint8_t)(v >> 16);
	p[2] = (uint8_t)(v >> 8);
	p[3] = (uint8_t)v;
}

static void put64(uint8_t *p, uint64_t v)
{
	put32(p, (uint32_t)(v >> 32));
	put32(p + 4, (uint32_t)v);
}

static uint32_t get32(const uint8_t *p)
{
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static uint64_t get64(const uint8_t *p)
{
	return (uint64_t)get32(p) << 32 | get32(p + 4);
}

static void put_time(uint8_t *p, struct time_ns t)
{
	put64(p, (uint64_t)t.sec);
	put32(p + 8, t.nsec);
}

static struct time_ns get_time(const uint8_t *p)
{
	return (struct time_ns){.sec = (int64_t)get64(p), .nsec = get32(p + 8)};
}

size_t attr_encode(const struct attr *a, uint8_t p[ATTR_MAX])
{
	uint32_t typ_mode = (uint32_t)a->type << 12 | (a->mode & 07777U);
	size_t n = PARENT_END;

	p[0] = a->flags;
	p[1] = (uint8_t)(typ_mode >> 8);
	p[2] = (uint8_t)typ_mode;
	put32(p + 3, a->uid);
	put32(p + 7, a->gid);
	put_time(p + 11, a->atime);
	put_time(p + 23, a->mtime);
	put_time(p + 35, a->ctime);
	put32(p + 47, a->nlink);
	put64(p + 51, a->length);
	put32(p + 59, a->rdev);
	put64(p + 63, a->parent);
	if (a->access_acl || a->default_acl) {
		put32(p + n, a->access_acl);
		put32(p + n + 4, a->default_acl);
		n += 8;
	}
	if (a->tier)
		p[n++] = a->tier;
	p[n++] = 0; /* JuiceFS reserves one byte more than the fields take */
	return n;
}

int attr_decode(const uint8_t *p, size_t n, struct attr *ret)
{
	struct attr a = {0};
	size_t at = PARENT_END;

	if (n < FIXED_LEN)
		return -EPROTO;
	a.flags = p[0];
	a.type = p[1] >> 4;
	a.mode = (uint16_t)((p[1] & 0xf) << 8 | p[2]);
	if (a.type < INODE_FILE || a.type > INODE_SOCKET)
		return -EPROTO;
	a.uid = get32(p + 3);
	a.gid = get32(p + 7);
	a.atime = get_time(p + 11);
	a.mtime = get_time(p + 23);
	a.ctime = get_time(p + 35);
	a.nlink = get32(p + 47);
	a.length = get64(p + 51);
	a.rdev = get32(p + 59);
	/* by what remains, not by the total: 71 and 79 bytes are as good as 72 and 80 */
	if (n >= PARENT_END)
		a.parent = get64(p + FIXED_LEN);
	if (n >= PARENT_END + 8) {
		a.access_acl = get32(p + at);
		a.default_acl = get32(p + at + 4);
		at += 8;
	}
	if (n > at)
		a.tier = p[at];
	*ret = a;
	return 0;
}

void entry_encode(uint8_t type, uint64_t inode, uint8_t p[ENTRY_LEN])
{
	p[0] = type;
	put64(p + 1, inode);
}

int entry_decode(const uint8_t *p, size_t n, uint8_t *ret_type, uint64_t *ret_inode)
{
	if (n != ENTRY_LEN || p[0] < INODE_FILE || p[0] > INODE_SOCKET)
		return -EPROTO;
	*ret_type = p[0];
	*ret_inode = get64(p + 1);
	return 0;
}

void slice_encode(const struct slice *s, uint8_t p[SLICE_LEN])
{
	put32(p, s->pos);
	put64(p + 4, s->id);
	put32(p + 12, s->size);
	put32(p + 16, s->off);
	put32(p + 20, s->len);
}

int slice_decode(const uint8_t *p, size_t n, struct slice *ret)
{
	struct slice s;

	if (n != SLICE_LEN)
		return -EPROTO;
	s = (struct slice){
		.pos = get32(p),
		.id = get64(p + 4),
		.size = get32(p + 12),
		.off = get32(p + 16),
		.len = get32(p + 20),
	};
	if (s.pos > CHUNK_SIZE || s.len > CHUNK_SIZE - s.pos)
		return -EPROTO;
	if (!s.id) {
		s.size = s.off = 0; /* copies of holes carry anything there */
	} else if (s.off > s.size || s.len > s.size - s.off) {
		return -EPROTO;
	}
	*ret = s;
	return 0;
}

uint64_t align4k(uint64_t length)
{
	return length ? ROUND_UP(length, 4096) : 4096;
}

static const uint32_t mode_of_type[] = {
	[INODE_FILE] = S_IFREG,	   [INODE_DIR] = S_IFDIR,   [INODE_SYMLINK] = S_IFLNK,
	[INODE_FIFO] = S_IFIFO,	   [INODE_BLOCK] = S_IFBLK, [INODE_CHAR] = S_IFCHR,
	[INODE_SOCKET] = S_IFSOCK,
};

uint32_t inode_type_to_mode(uint8_t type)
{
	return type < ARRAY_LEN(mode_of_type) ? mode_of_type[type] : 0;
}

uint8_t inode_type_from_mode(uint32_t mode)
{
	for (unsigned t = INODE_FILE; t < ARRAY_LEN(mode_of_type); t++) {
		if (mode_of_type[t] == (mode & S_IFMT))
			return (uint8_t)t;
	}
	return 0;
}
