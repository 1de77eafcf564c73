/* SPDX-License-Identifier: Apache-2.0 */
/* One block as a file: its bytes from offset 0, behind them the checksums of its pieces (4 bytes
 * each, big-endian). The length must be exactly size + msg_sums_len(size). Used by the daemon's
 * store and by a mount that was given the descriptor. Calls block on the disk. */
#ifndef STOKE_COMMON_BLOCK_BLOCKFILE_H
#define STOKE_COMMON_BLOCK_BLOCKFILE_H

#include "common/block/key.h"

uint64_t blockfile_len(uint32_t size);
/* As far as the kernel knows, and without waiting for the disk: the file has a name still; and the
 * right length, too. */
bool blockfile_has_name(int fd);
bool blockfile_is_whole(int fd, const struct block_key *k);
/* Reads the pieces that cover [off, off + len) into buf (room: blockfile_room(off, len)) and checks
 * them. *ret_skip: where the wanted bytes start in buf. warm_only: -EAGAIN instead of waiting for
 * the disk (RWF_NOWAIT). -EBADMSG: damaged or short; -EIO … */
int blockfile_read(int fd, const struct block_key *k, uint32_t off, uint32_t len, bool warm_only,
		   unsigned char *buf, size_t *ret_skip);
size_t blockfile_room(uint32_t off, uint32_t len);
/* writes data and sums to an empty file; no sync */
int blockfile_write(int fd, const struct block_key *k, const void *data, const uint8_t *sums);

#endif
