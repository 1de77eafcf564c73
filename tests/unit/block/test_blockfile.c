/* SPDX-License-Identifier: Apache-2.0 */
/* A block as a file: what was written is read, what was damaged is not. */
#include "tests/unit/check.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "common/block/blockfile.h"

enum { SIZE = 5 * FRAME_PIECE + 1234 };

static uint8_t data[SIZE], sums[24], buf[6 * FRAME_PIECE + 24];
static struct block_key k;

static int file_of_block(void)
{
	const struct hash128 volume = {{1}};
	int fd = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	for (size_t i = 0; i < SIZE; i++)
		data[i] = (uint8_t)(i * 31 + (i >> 8));
	block_key_init(&k, &volume, 3, 1, SIZE);
	assert_int_equal(msg_sums_len(SIZE), sizeof(sums));
	block_sums(&k, 0, data, SIZE, sums);
	assert_int_equal(blockfile_write(fd, &k, data, sums), 0);
	assert_int_equal(lseek(fd, 0, SEEK_END), blockfile_len(SIZE));
	return fd;
}

static void every_range_is_read_back(void **state)
{
	static const uint32_t at[] = {0,
				      1,
				      FRAME_PIECE - 1,
				      FRAME_PIECE,
				      FRAME_PIECE + 1,
				      2 * FRAME_PIECE,
				      5 * FRAME_PIECE,
				      SIZE - 1,
				      SIZE};
	int fd = file_of_block();

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(at); i++)
		for (size_t j = i + 1; j < ARRAY_LEN(at); j++) {
			uint32_t len = at[j] - at[i];
			size_t skip = 0;

			assert_true(blockfile_room(at[i], len) <= sizeof(buf));
			assert_int_equal(blockfile_read(fd, &k, at[i], len, false, buf, &skip), 0);
			assert_memory_equal(buf + skip, data + at[i], len);
			/* just written, so it is in memory */
			assert_int_equal(blockfile_read(fd, &k, at[i], len, true, buf, &skip), 0);
		}
	close(fd);
}

static void damage_is_seen_where_it_is_and_only_there(void **state)
{
	int fd = file_of_block();
	size_t skip;

	(void)state;
	assert_int_equal(pwrite(fd, "x", 1, 2 * FRAME_PIECE + 7), 1);
	assert_int_equal(blockfile_read(fd, &k, 0, SIZE, false, buf, &skip), -EBADMSG);
	assert_int_equal(blockfile_read(fd, &k, 2 * FRAME_PIECE, 1, false, buf, &skip), -EBADMSG);
	assert_int_equal(blockfile_read(fd, &k, 0, 2 * FRAME_PIECE, false, buf, &skip), 0);
	assert_int_equal(blockfile_read(fd, &k, 3 * FRAME_PIECE, 5, false, buf, &skip), 0);
	/* a checksum may be what is damaged */
	assert_int_equal(pwrite(fd, "xxxx", 4, SIZE), 4);
	assert_int_equal(blockfile_read(fd, &k, 0, 1, false, buf, &skip), -EBADMSG);
	close(fd);
}

static void a_file_of_another_length_is_damaged(void **state)
{
	static const off_t lengths[] = {0, 1, SIZE, SIZE + 23, SIZE + 25};
	size_t skip;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
		int fd = file_of_block();

		assert_int_equal(ftruncate(fd, lengths[i]), 0);
		assert_int_equal(blockfile_read(fd, &k, 0, 1, false, buf, &skip), -EBADMSG);
		close(fd);
	}
}

static void zeros_after_a_power_loss_are_damage(void **state)
{
	int fd = file_of_block();
	size_t skip;

	(void)state;
	assert_int_equal(ftruncate(fd, 0), 0);
	assert_int_equal(ftruncate(fd, (off_t)blockfile_len(SIZE)), 0);
	assert_int_equal(blockfile_read(fd, &k, 0, SIZE, false, buf, &skip), -EBADMSG);
	close(fd);
}

static void another_blocks_file_does_not_pass(void **state)
{
	const struct hash128 volume = {{1}};
	int fd = file_of_block();
	struct block_key other;
	size_t skip;

	(void)state;
	block_key_init(&other, &volume, 3, 2, SIZE);
	assert_int_equal(blockfile_read(fd, &other, 0, SIZE, false, buf, &skip), -EBADMSG);
	close(fd);
}

static void what_is_no_file_gives_its_error(void **state)
{
	size_t skip;

	(void)state;
	assert_int_equal(blockfile_read(-1, &k, 0, 1, false, buf, &skip), -EBADF);
	assert_int_equal(blockfile_write(-1, &k, data, sums), -EBADF);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_range_is_read_back),
		cmocka_unit_test(damage_is_seen_where_it_is_and_only_there),
		cmocka_unit_test(a_file_of_another_length_is_damaged),
		cmocka_unit_test(zeros_after_a_power_loss_are_damage),
		cmocka_unit_test(another_blocks_file_does_not_pass),
		cmocka_unit_test(what_is_no_file_gives_its_error),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
