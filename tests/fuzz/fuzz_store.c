/* SPDX-License-Identifier: Apache-2.0 */
/* What lies in a cache directory. First byte: a block's name; a record of pins; a file of pins; the
 * file of a block. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "cached/disk.h"
#include "cached/pins.h"
#include "common/block/blockfile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { SIZE_MAX_HERE = 100000 };

static const struct hash128 volume = {{0xf0}};

/* what is taken for a block's name is the one that its block is stored under, or is removed */
static void fuzz_name(const uint8_t *data, size_t n)
{
	char name[BLOCK_CACHE_NAME_MAX] = "", again[BLOCK_CACHE_NAME_MAX];
	struct block_key k, same;

	memcpy(name, data, MIN(n, sizeof(name) - 1));
	if (block_key_parse(name, &volume, &k) < 0)
		return;
	assert(k.size > 0 && k.size <= FRAME_BLOCK_MAX);
	block_key_cache_name(&k, again);
	assert(block_key_parse(again + 3, &volume, &same) == 0 && block_key_eq(&k, &same));
}

static void fuzz_record(const uint8_t *data, size_t n)
{
	uint8_t again[PINS_RECORD];
	struct block_key k;
	uint64_t until;

	if (n < PINS_RECORD || pins_decode(data, &volume, &k, &until) < 0)
		return;
	assert(k.size > 0 && k.size <= FRAME_BLOCK_MAX);
	pins_encode(&k, until, again);
	assert(memcmp(again, data, PINS_RECORD) == 0);
}

static void count_pin(const struct block_key *k, void *arg)
{
	assert(k->size > 0 && k->size <= FRAME_BLOCK_MAX);
	++*(uint64_t *)arg;
}

/* a directory with one file of pins; made once */
static int pins_dir(const uint8_t *data, size_t n)
{
	static int dir = -1;
	static char path[PINS_PATH_MAX + 8];
	char where[] = "/tmp/stoke-fuzz-XXXXXX";
	int fd;

	if (dir < 0) {
		char blocks[DISK_PATH_MAX];

		disk_blocks_path(&volume, blocks);
		*strchr(blocks, '/') = '\0';
		assert(mkdtemp(where));
		dir = open(where, O_RDONLY | O_DIRECTORY);
		assert(dir >= 0 && mkdirat(dir, blocks, 0700) == 0);
		(void)snprintf(path, sizeof(path), "%.40s/pins", blocks);
	}
	fd = openat(dir, path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	assert(fd >= 0 && write(fd, data, n) == (ssize_t)n);
	(void)close(fd);
	return dir;
}

/* what was read is written, and is the same when it is read again */
static void fuzz_pins(const uint8_t *data, size_t n)
{
	uint64_t now = 1000, first = 0, again = 0;
	struct pins_stat st, st_again;
	int dir = pins_dir(data, n);
	struct block_key k;
	struct pins *p;

	assert(pins_new(&volume, 1, &p) == 0);
	assert(pins_load(p, 0, dir, now, count_pin, &first) == 0);
	pins_stat(p, &st);
	assert(st.blocks == first && first <= n / PINS_RECORD);
	block_key_init(&k, &volume, 1, 2, 3);
	assert(pins_set(p, 0, &k, UINT64_MAX, now, UINT64_MAX, NULL) == 0);
	assert(pins_flush(p, 0, dir) == 0);
	pins_stat(p, &st);
	pins_free(p);
	assert(pins_new(&volume, 1, &p) == 0);
	assert(pins_load(p, 0, dir, now, count_pin, &again) == 0);
	pins_stat(p, &st_again);
	assert(st_again.blocks == st.blocks && again == st.blocks);
	pins_free(p);
}

/* no more is believed than its checksums say */
static void fuzz_block(const uint8_t *data, size_t n)
{
	static unsigned char buf[2 * SIZE_MAX_HERE];
	uint32_t size =
		n < 4 ? 1 : 1 + (data[0] | data[1] << 8 | (data[2] & 1) << 16) % SIZE_MAX_HERE;
	uint32_t off = n < 4 ? 0 : data[3] * 400u % size;
	size_t skip = 0, pieces;
	struct block_key k;
	int fd = memfd_create("block", MFD_CLOEXEC), r;

	assert(fd >= 0);
	if (n > 4)
		assert(write(fd, data + 4, n - 4) == (ssize_t)(n - 4));
	block_key_init(&k, &volume, 1, 0, size);
	if (n > 4 && data[2] & 2) /* the right length */
		assert(ftruncate(fd, (off_t)blockfile_len(size)) == 0);
	r = blockfile_read(fd, &k, off, size - off, false, buf, &skip);
	assert(blockfile_room(off, size - off) <= sizeof(buf));
	if (r == 0) {
		pieces = size - off / FRAME_PIECE * FRAME_PIECE;
		assert(skip == off % FRAME_PIECE);
		assert(block_sums_check(&k, off / FRAME_PIECE * FRAME_PIECE, buf, pieces,
					buf + pieces, NULL) == 0);
	}
	(void)close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	if (n == 0)
		return 0;
	n--;
	switch (*data++ % 4) {
	case 0:
		fuzz_name(data, n);
		break;
	case 1:
		fuzz_record(data, n);
		break;
	case 2:
		fuzz_pins(data, n);
		break;
	default:
		fuzz_block(data, n);
	}
	return 0;
}
