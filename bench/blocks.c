/* SPDX-License-Identifier: Apache-2.0 */
/* What blocks as single files cost a cache directory, with the daemon's own names, files and
 * index:
 *
 *	blocks fill DIR FIRST N SIZE	N blocks of SIZE bytes, from slice FIRST on; "sparse": of
 *					100 KB, with their lengths only
 *	blocks recover DIR		the index from the names, as at a start
 *	blocks handover DIR		the same, and how it passes to the next program at
 *					SIGUSR2: written, and taken over
 *	blocks lengths DIR		what is looked at behind it, in the background
 *	blocks read DIR N		N random blocks, whole, checked
 *	blocks evict DIR N		N blocks leave
 *
 * DIR is made; where it is a daemon's own ({cache-dir}/{UUID}), its volume is taken. Prints one
 * line of JSON: what was done, seconds, processor time, and resident memory. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>

#include "cached/snapshot.h"
#include "common/block/blockfile.h"
#include "common/clock.h"
#include "common/parse.h"

enum { SPARSE = 100000 };

static struct hash128 volume = {{0xbe, 0x9c}};
static char no_name[] = "";
static struct disk disk = {.dir = no_name, .fd = -1, .lock_fd = -1};

static void die(const char *what, int r)
{
	(void)fprintf(stderr, "blocks: %s: %s\n", what, strerror(-r));
	exit(1);
}

static long resident_kib(void)
{
	FILE *f = fopen("/proc/self/status", "r");
	char line[256];
	long kib = 0;

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "VmRSS: %ld", &kib) == 1)
			break;
	if (f)
		(void)fclose(f);
	return kib;
}

/* processor time since the last line, of all threads: what is left of seconds on a busy machine */
static void say(const char *what, uint64_t n, uint64_t began)
{
	static double before;
	double cpu = (double)clock() / CLOCKS_PER_SEC;

	(void)printf("{\"what\": \"%s\", \"blocks\": %llu, \"seconds\": %.3f, \"cpu\": %.3f, "
		     "\"resident_mib\": %.1f}\n",
		     what, (unsigned long long)n, (double)(clock_us() - began) / 1e6, cpu - before,
		     (double)resident_kib() / 1024);
	before = cpu;
}

static uint64_t number(const char *s, uint64_t max)
{
	uint64_t v;

	if (parse_u64(s, max, &v) < 0)
		die(s, -EINVAL);
	return v;
}

/* a file of the right name and length without a byte in it */
static int make_sparse(const struct block_key *k)
{
	char dir[DISK_PATH_MAX], name[BLOCK_CACHE_NAME_MAX], path[2 * DISK_PATH_MAX];
	int fd, r = 0;

	disk_blocks_path(&volume, dir);
	block_key_cache_name(k, name);
	(void)snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = openat(disk.fd, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, (off_t)blockfile_len(k->size)) < 0)
		r = -errno;
	if (fd >= 0)
		(void)close(fd);
	return r;
}

static void fill(uint64_t first, uint64_t n, const char *size)
{
	bool sparse = !strcmp(size, "sparse");
	uint32_t len = sparse ? SPARSE : (uint32_t)number(size, FRAME_BLOCK_MAX);
	unsigned char *data = calloc(1, len);
	uint8_t *sums = malloc(msg_sums_len(len));
	uint64_t began = clock_us();
	struct block_key k;
	int r = data && sums ? 0 : -ENOMEM;

	for (uint64_t i = 0; i < n && r == 0; i++) {
		block_key_init(&k, &volume, first + i, 0, len);
		if (sparse) {
			r = make_sparse(&k);
			continue;
		}
		memcpy(data, &i, MIN(sizeof(i), (size_t)len));
		block_sums(&k, 0, data, len, sums);
		r = disk_write_block(&disk, &k, data, sums);
	}
	if (r < 0)
		die("fill", r);
	say("fill", n, began);
	free(data);
	free(sums);
}

static struct index *recover(bool told)
{
	uint64_t began = clock_us();
	struct recover_stat st;
	struct index *ix;
	int r = index_new(&volume, 1, evict_loop_new, &ix);

	if (r == 0)
		r = recover_disk(&disk, ix, &volume, 0, &st);
	if (r < 0)
		die("recover", r);
	if (told)
		say("recover", st.blocks, began);
	return ix;
}

static void hand_over(void)
{
	struct index *was = recover(true), *is = NULL;
	struct snapshot_row row = {0};
	struct recover_stat st;
	struct snapshot *sn;
	uint64_t began = clock_us();
	int fd = -1, r = snapshot_place(&disk, &row.place);

	if (r == 0)
		r = snapshot_write(was, &volume, &row, 1, &fd);
	if (r < 0)
		die("snapshot", r);
	say("write", index_count(was), began);
	began = clock_us();
	sn = snapshot_take(fd);
	if (!sn || index_new(&volume, 1, evict_loop_new, &is) < 0)
		die("snapshot", -EINVAL);
	r = snapshot_recover(sn, &disk, is, &volume, &st);
	if (r < 0)
		die("snapshot", r);
	say("take over", st.blocks, began);
	snapshot_free(sn);
	index_free(was);
	index_free(is);
}

static void count_bad(const struct block_key *k, void *arg)
{
	(void)k;
	++*(uint64_t *)arg;
}

static void lengths(void)
{
	uint64_t began = clock_us(), bad = 0;
	int r = recover_lengths(&disk, &volume, 0, count_bad, &bad);

	if (r < 0)
		die("lengths", r);
	say("lengths", bad, began);
}

static void read_blocks(uint64_t n)
{
	struct index *ix = recover(false);
	struct block_key *keys = calloc(index_count(ix) + INDEX_EACH_MIN, sizeof(*keys));
	unsigned char *buf = malloc(blockfile_room(0, FRAME_BLOCK_MAX));
	uint64_t cursor = 0, began, rng = 1;
	size_t have = 0, got, skip;
	int r = keys && buf ? 0 : -ENOMEM;

	do {
		if (r == 0)
			r = index_each(ix, &cursor, keys + have, INDEX_EACH_MIN, &got);
		have += got;
	} while (r == 0 && cursor && have < index_count(ix));
	if (r < 0 || !have)
		die("read", r < 0 ? r : -ENOENT);
	began = clock_us();
	for (uint64_t i = 0; i < n; i++) {
		const struct block_key *k = &keys[(rng = hash64(&rng, sizeof(rng))) % have];
		int fd = -1;

		r = disk_open_block(&disk, k, &fd);
		if (r == 0)
			r = blockfile_read(fd, k, 0, k->size, false, buf, &skip);
		if (r < 0)
			die("read", r);
		(void)close(fd);
	}
	say("read", n, began);
	free(keys);
	free(buf);
	index_free(ix);
}

static void evict(uint64_t n)
{
	struct index *ix = recover(false);
	uint64_t began = clock_us(), done = 0;
	struct block_key k;

	while (done < n && index_victim(ix, 0, &k) == 0) {
		int r = disk_remove_block(&disk, &k);

		if (r < 0)
			die("evict", r);
		index_gone(ix, &k);
		done++;
	}
	say("evict", done, began);
	index_free(ix);
}

/* the volume that has a folder there, if any */
static void take_volume(const char *dir)
{
	DIR *s = opendir(dir);
	struct dirent *e;

	while (s && (e = readdir(s))) {
		if (strlen(e->d_name) != 32)
			continue;
		for (unsigned i = 0; i < 16; i++)
			(void)sscanf(e->d_name + 2 * i, "%2hhx", &volume.b[i]);
	}
	if (s)
		(void)closedir(s);
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "";
	int r;

	if (argc > 2 && mkdir(argv[2], 0755) < 0 && errno != EEXIST)
		die(argv[2], -errno);
	if (argc > 2)
		disk.fd = open(argv[2], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (argc > 2 && disk.fd < 0)
		die(argv[2], -errno);
	mtx_init(&disk.lock);
	if (argc > 2)
		take_volume(argv[2]);
	r = argc > 2 ? disk_volume_prepare(&disk, &volume) : 0;
	if (r < 0)
		die(argv[2], r);
	if (argc == 6 && !strcmp(what, "fill"))
		fill(number(argv[3], UINT64_MAX), number(argv[4], UINT64_MAX), argv[5]);
	else if (argc == 3 && !strcmp(what, "recover"))
		index_free(recover(true));
	else if (argc == 3 && !strcmp(what, "handover"))
		hand_over();
	else if (argc == 3 && !strcmp(what, "lengths"))
		lengths();
	else if (argc == 4 && !strcmp(what, "read"))
		read_blocks(number(argv[3], UINT64_MAX));
	else if (argc == 4 && !strcmp(what, "evict"))
		evict(number(argv[3], UINT64_MAX));
	else
		die("usage: blocks fill|recover|handover|lengths|read|evict DIR …", -EINVAL);
	return 0;
}
