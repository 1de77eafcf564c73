/* SPDX-License-Identifier: Apache-2.0 */
/* A block as a file: data, then the checksums of its pieces. Stateless; runs in a disk's threads,
 * or inline when warm_only. */
#include "common/block/blockfile.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>

uint64_t blockfile_len(uint32_t size)
{
	return (uint64_t)size + msg_sums_len(size);
}

/* what the kernel knows without asking the disk (or a server) again */
static bool known(int fd, struct statx *ret)
{
	return statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_NLINK | STATX_SIZE, ret) ==
	       0;
}

bool blockfile_has_name(int fd)
{
	struct statx st = {0};

	return known(fd, &st) && st.stx_nlink > 0;
}

bool blockfile_is_whole(int fd, const struct block_key *k)
{
	struct statx st = {0};

	return known(fd, &st) && st.stx_nlink > 0 && st.stx_size == blockfile_len(k->size);
}

/* the whole pieces that cover [off, off + len) of a block: their start, and their end if the block
 * had no end */
static uint32_t pieces_start(uint32_t off)
{
	return off / FRAME_PIECE * FRAME_PIECE;
}

static uint64_t pieces_end(uint32_t off, uint32_t len)
{
	return ROUND_UP((uint64_t)off + len, (uint64_t)FRAME_PIECE);
}

size_t blockfile_room(uint32_t off, uint32_t len)
{
	size_t data = pieces_end(off, len) - pieces_start(off);

	return data + msg_sums_len(data);
}

/* All of [at, at + n), or -EBADMSG when the file ends before, or -EAGAIN when the disk would have
 * to be waited for. */
static int read_all(int fd, void *buf, size_t n, off_t at, int flags)
{
	char *p = buf;

	while (n) {
		struct iovec v = {.iov_base = p, .iov_len = n};
		ssize_t got = preadv2(fd, &v, 1, at, flags);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && errno == EOPNOTSUPP && (flags & RWF_NOWAIT))
			return -EAGAIN; /* the file system cannot tell: ask a thread */
		if (got < 0)
			return -errno;
		if (got == 0)
			return -EBADMSG;
		p += got;
		n -= (size_t)got;
		at += got;
	}
	return 0;
}

int blockfile_read(int fd, const struct block_key *k, uint32_t off, uint32_t len, bool warm_only,
		   unsigned char *buf, size_t *ret_skip)
{
	uint32_t start = pieces_start(off);
	size_t data = (size_t)(MIN(pieces_end(off, len), (uint64_t)k->size) - start);
	int flags = warm_only ? RWF_NOWAIT : 0;
	struct statx st = {0};
	int r;

	assert(len && (uint64_t)off + len <= k->size);
	if (!known(fd, &st))
		return -errno;
	if (st.stx_size != blockfile_len(k->size))
		return -EBADMSG;
	r = read_all(fd, buf, data, start, flags);
	if (!r)
		r = read_all(fd, buf + data, msg_sums_len(data),
			     (off_t)(k->size + msg_sums_len(start)), flags);
	if (!r)
		r = block_sums_check(k, start, buf, data, buf + data, NULL);
	if (!r)
		*ret_skip = off - start;
	return r;
}

static int write_all(int fd, const void *buf, size_t n, off_t at)
{
	const char *p = buf;

	while (n) {
		ssize_t put = pwrite(fd, p, n, at);

		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			return -errno;
		if (put == 0)
			return -EIO;
		p += put;
		n -= (size_t)put;
		at += put;
	}
	return 0;
}

int blockfile_write(int fd, const struct block_key *k, const void *data, const uint8_t *sums)
{
	int r = write_all(fd, data, k->size, 0);

	return r ? r : write_all(fd, sums, msg_sums_len(k->size), k->size);
}
