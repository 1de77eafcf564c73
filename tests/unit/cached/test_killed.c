/* SPDX-License-Identifier: Apache-2.0 */
/* D03, B10: a process that ends at any call of the ways that change a cache directory (with the
 * call done, not done, or done by half), and what a power loss makes of files that were written
 * without a sync: whatever is found at the next start, no wrong byte is served, what is damaged
 * is dropped and counted, and left-overs go.
 *
 * The calls are stood in for below: the program's own definitions come before the C library's. */
#include "tests/unit/cached/fixture.h"

#include <stdarg.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "cached/store_inner.h"

enum how { NOT_DONE, HALF, DONE, HOWS };
enum { KEPT = 4, FULL = 24, KILLED = 9 };

static uint64_t count(struct metric *m)
{
	return metric_value(m);
}

static unsigned calls_left; /* 0: no end */
static enum how end_how;

/* true: this call is the last, and only half of it happens */
static bool last_call(enum how *ret)
{
	*ret = DONE;
	if (!calls_left || --calls_left)
		return false;
	*ret = end_how;
	return true;
}

static _Noreturn void die(void)
{
	_exit(KILLED);
}

#define LAST_CALL(call)                                                                            \
	do {                                                                                       \
		enum how how_;                                                                     \
		bool last_ = last_call(&how_);                                                     \
		long r_;                                                                           \
		if (last_ && how_ != DONE)                                                         \
			die();                                                                     \
		r_ = (call);                                                                       \
		if (last_)                                                                         \
			die();                                                                     \
		return (int)r_;                                                                    \
	} while (0)

int openat(int dir, const char *path, int flags, ...)
{
	mode_t mode = 0;
	va_list ap;

	va_start(ap, flags);
	if (flags & O_CREAT)
		mode = va_arg(ap, mode_t);
	va_end(ap);
	LAST_CALL(syscall(SYS_openat, dir, path, flags, mode));
}

int renameat(int from_dir, const char *from, int to_dir, const char *to)
{
	LAST_CALL(syscall(SYS_renameat2, from_dir, from, to_dir, to, 0));
}

int unlinkat(int dir, const char *path, int flags)
{
	LAST_CALL(syscall(SYS_unlinkat, dir, path, flags));
}

int mkdirat(int dir, const char *path, mode_t mode)
{
	LAST_CALL(syscall(SYS_mkdirat, dir, path, mode));
}

int fdatasync(int fd)
{
	LAST_CALL(syscall(SYS_fdatasync, fd));
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
	enum how how;
	bool last = last_call(&how);
	ssize_t r;

	if (last && how == NOT_DONE)
		die();
	r = syscall(SYS_pwrite64, fd, p, how == HALF ? n / 2 : n, at);
	if (last)
		die();
	return r;
}

ssize_t write(int fd, const void *p, size_t n)
{
	enum how how;
	bool last = last_call(&how);
	ssize_t r;

	if (last && how == NOT_DONE)
		die();
	r = syscall(SYS_write, fd, p, how == HALF ? n / 2 : n);
	if (last)
		die();
	return r;
}

static void write_one(struct disk *d, uint64_t slice)
{
	struct block_key k = key_of(&volume_a, slice, BLOCK);
	unsigned char *data = malloc(BLOCK);
	uint8_t sums[FRAME_SUMS_MAX];

	if (!data)
		_exit(1);
	fill_pattern(slice, 0, BLOCK, data, 0, BLOCK);
	block_sums(&k, 0, data, BLOCK, sums);
	if (disk_write_block(d, &k, data, sums) < 0)
		_exit(2);
	free(data);
}

/* what the store does to a directory, one call after the other: a block comes, comes again, goes;
 * pins are appended, and written anew */
static void change(const char *uuid_dir, unsigned calls, enum how how)
{
	struct disk d = {.fd = open(uuid_dir, O_RDONLY | O_DIRECTORY), .lock_fd = -1};
	struct block_key k = key_of(&volume_a, 2, BLOCK);
	struct pins *p;

	mtx_init(&d.lock);
	if (d.fd < 0 || pins_new(&volume_a, 1, &p) < 0)
		_exit(3);
	end_how = how;
	calls_left = calls;
	write_one(&d, 10);
	write_one(&d, 1);
	(void)disk_remove_block(&d, &k);
	for (unsigned i = 0; i < 2; i++) {
		k = key_of(&volume_a, 1 + i, BLOCK);
		(void)pins_set(p, 0, &k, UINT64_MAX, 1, UINT64_MAX, NULL);
		(void)pins_flush(p, 0, i ? -1 : d.fd); /* fails once: then all of it */
	}
	(void)pins_flush(p, 0, d.fd);
	calls_left = 0;
	_exit(0);
}

static unsigned left_overs(const char *uuid_dir)
{
	char blocks[DISK_PATH_MAX], tmp[400];
	struct dirent *e;
	unsigned n = 0;
	DIR *s;

	disk_blocks_path(&volume_a, blocks);
	*strchr(blocks, '/') = '\0';
	(void)snprintf(tmp, sizeof(tmp), "%s/%s/tmp", uuid_dir, blocks);
	s = opendir(tmp);
	assert_non_null(s);
	while ((e = readdir(s)))
		n += e->d_name[0] != '.';
	(void)closedir(s);
	return n;
}

static void check_after_kill(struct world *w, const char *uuid_dir)
{
	struct pins_stat st;

	world_open(w);
	assert_int_equal(left_overs(uuid_dir), 0);
	for (uint64_t i = 0; i <= 10; i++) {
		struct block_key k = key_of(&volume_a, i, BLOCK);
		int r = get(w, &k, 0, BLOCK, REQ_NO_FILL, NULL); /* checks the bytes */

		assert_true(r == 0 || r == -ENOENT);
		/* what was there and was not to go is there */
		if (i < KEPT && i != 2)
			assert_int_equal(r, 0);
	}
	assert_int_equal(count(w->counters.damaged), 0);
	pins_stat(w->store->pins, &st);
	assert_true(st.blocks <= 2 && st.damaged <= 1);
	world_close(w);
}

static void an_end_at_any_call_leaves_whole_blocks(void **state)
{
	struct world *w = world_new(64 << 20, 1);
	unsigned kills = 0, most = 0;
	char uuid_dir[160];

	(void)state;
	(void)snprintf(uuid_dir, sizeof(uuid_dir), "%s/0/" UUID, w->dir);
	for (uint64_t i = 0; i < KEPT; i++) {
		struct block_key k = key_of(&volume_a, i, BLOCK);

		assert_int_equal(fill(w, &k), 0);
	}
	world_close(w);
	for (enum how how = NOT_DONE; how < HOWS; how++)
		for (unsigned calls = 1;; calls++) {
			pid_t pid = fork();
			int status;

			assert_true(pid >= 0);
			if (pid == 0)
				change(uuid_dir, calls, how);
			assert_int_equal(waitpid(pid, &status, 0), pid);
			assert_true(WIFEXITED(status));
			check_after_kill(w, uuid_dir);
			if (WEXITSTATUS(status) == 0)
				break;
			assert_int_equal(WEXITSTATUS(status), KILLED);
			most = MAX(most, calls);
			kills++;
		}
	print_message("%u ends, of up to %u calls\n", kills, most);
	assert_true(most >= 15);
	world_free(w);
}

/* --- afterwards --- */

enum damage { WHOLE, EMPTY, CUT, ZEROS, ZERO_HEAD, ZERO_SUMS, OTHERS, GONE, DAMAGES };

static void put_zeros(int fd, off_t at, size_t n)
{
	static const char zeros[BLOCK];

	assert_true(n <= BLOCK);
	assert_int_equal(pwrite(fd, zeros, n, at), n);
}

static void damage(struct world *w, uint64_t slice, enum damage how)
{
	struct block_key k = key_of(&volume_a, slice, BLOCK);
	struct block_key next = key_of(&volume_a, slice + FULL, BLOCK);
	char path[320], other[320];
	int fd;

	block_file(w, 0, &k, path);
	block_file(w, 0, &next, other);
	fd = open(path, O_RDWR);
	assert_true(fd >= 0);
	switch (how) {
	case EMPTY:
		assert_int_equal(ftruncate(fd, 0), 0);
		break;
	case CUT:
		assert_int_equal(ftruncate(fd, (off_t)((unsigned)random() % BLOCK)), 0);
		break;
	case ZEROS:
		put_zeros(fd, 0, BLOCK);
		put_zeros(fd, BLOCK, msg_sums_len(BLOCK));
		break;
	case ZERO_HEAD:
		put_zeros(fd, 0, 4096);
		break;
	case ZERO_SUMS:
		put_zeros(fd, BLOCK, msg_sums_len(BLOCK));
		break;
	case OTHERS: /* a name that the next one should have */
		assert_int_equal(rename(path, other), 0);
		break;
	case GONE:
		assert_int_equal(unlink(path), 0);
		break;
	default:
		break;
	}
	assert_int_equal(close(fd), 0);
}

/* as a consumer does: what he finds damaged he reports */
static void use(struct world *w, uint64_t slice)
{
	struct block_key k = key_of(&volume_a, slice, BLOCK);
	int r = get(w, &k, 0, BLOCK, REQ_NO_FILL, NULL);

	assert_true(r == 0 || r == -ENOENT || r == -EBADMSG);
	if (r == -EBADMSG) {
		store_verify(w->store, &k);
		eventually(!probe(w, &k));
	}
	assert_int_equal(get(w, &k, 0, BLOCK, 0, NULL), 0);
}

static void a_power_loss_is_a_miss(void **state)
{
	unsigned seed = (unsigned)time(NULL), expected = 0;
	struct world *w = world_new(64 << 20, 1);
	enum req_via via;

	(void)state;
	print_message("seed %u\n", seed);
	srandom(seed);
	for (uint64_t i = 0; i < FULL; i++) {
		struct block_key k = key_of(&volume_a, i, BLOCK);

		assert_int_equal(fill(w, &k), 0);
	}
	world_close(w);
	for (uint64_t i = 0; i < FULL; i++)
		damage(w, i, (enum damage)(i % DAMAGES));
	world_open(w);
	for (uint64_t i = 0; i < 2 * FULL; i++) {
		enum damage how = (enum damage)(i % DAMAGES);

		use(w, i);
		/* short ones went at the start; those of another one's name are found at the
		 * name */
		expected += i < FULL ? how == ZEROS || how == ZERO_HEAD || how == ZERO_SUMS
				     : how == OTHERS;
	}
	assert_int_equal(count(w->counters.damaged), expected);
	for (uint64_t i = 0; i < 2 * FULL; i++) {
		struct block_key k = key_of(&volume_a, i, BLOCK);

		assert_int_equal(fill(w, &k), 0);
	}
	world_close(w);
	world_open(w);
	for (uint64_t i = 0; i < 2 * FULL; i++) {
		struct block_key k = key_of(&volume_a, i, BLOCK);

		assert_int_equal(get(w, &k, 0, BLOCK, REQ_NO_FILL, &via), 0);
		assert_int_equal(via, VIA_STORE);
	}
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_end_at_any_call_leaves_whole_blocks),
		cmocka_unit_test(a_power_loss_is_a_miss),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
