/* SPDX-License-Identifier: Apache-2.0 */
/* Readers of files, timed.
 *
 *	readload seq KIB FILE…		one thread a file reads it once from start to end, KIB KiB a
 *					request
 *	readload rand COUNT FILE…	one thread a file reads COUNT random aligned 4 KiB pieces
 *	readload small COUNT DIR…	one thread a DIR opens, reads whole and closes its part of
 *					the files DIR/f0 … f(COUNT - 1), in an order of its own;
 *					the same DIR several times: threads that share them out
 *
 * Prints one line of JSON: bytes, seconds, mib_s, iops, p50_us, p99_us, errors. Buffered reads; the
 * caller drops caches before. */
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>

#include "common/base.h"
#include "common/clock.h"
#include "common/parse.h"

enum { FILES_MAX = 64, SAMPLES_MAX = 1 << 20 };

struct reader {
	const char *path;
	bool random;
	size_t part, parts; /* small: which of the files */
	uint64_t arg, bytes, errors, n;
	uint32_t *us;
};

static uint64_t next_random(uint64_t *x)
{
	*x ^= *x << 13;
	*x ^= *x >> 7;
	*x ^= *x << 17;
	return *x;
}

static void sample(struct reader *r, ssize_t got, uint64_t us)
{
	if (got < 0)
		r->errors++;
	else
		r->bytes += (uint64_t)got;
	if (r->n < SAMPLES_MAX)
		r->us[r->n++] = (uint32_t)us;
}

static void *read_file(void *arg)
{
	struct reader *r = arg;
	size_t len = r->random ? 4096 : r->arg << 10;
	_cleanup_(freep) void *buf = aligned_alloc(4096, ROUND_UP(len, (size_t)4096));
	_cleanup_(closep) int fd = open(r->path, O_RDONLY | O_CLOEXEC);
	uint64_t seed = (uint64_t)(uintptr_t)r * 2654435761u | 1;
	struct stat st;

	if (!buf || fd < 0 || fstat(fd, &st) < 0 || st.st_size < 4096) {
		r->errors++;
		return NULL;
	}
	if (r->random)
		(void)posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
	for (uint64_t i = 0, off = 0; r->random ? i < r->arg : off < (uint64_t)st.st_size; i++) {
		uint64_t at =
			r->random ? next_random(&seed) % ((uint64_t)st.st_size / 4096) * 4096 : off;
		uint64_t t = clock_us();
		ssize_t got = pread(fd, buf, len, (off_t)at);

		sample(r, got, clock_us() - t);
		if (got <= 0 && !r->random)
			break;
		off += got > 0 ? (uint64_t)got : 0;
	}
	return NULL;
}

/* One file, whole; a sample is all of it, from open to close. */
static void read_small(struct reader *r, uint64_t i, void *buf, size_t len)
{
	uint64_t t = clock_us();
	ssize_t got = -1, sum = 0;
	char path[512];
	int fd;

	(void)snprintf(path, sizeof(path), "%s/f%llu", r->path, (unsigned long long)i);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	while (fd >= 0 && (got = read(fd, buf, len)) > 0)
		sum += got;
	if (fd >= 0)
		(void)close(fd);
	sample(r, got < 0 || sum == 0 ? -1 : sum, clock_us() - t);
}

static void *read_smalls(void *arg)
{
	enum { LEN = 1 << 20 };
	struct reader *r = arg;
	uint64_t n = r->arg / r->parts, seed = r->part * 2654435761u | 1;
	_cleanup_(freep) uint32_t *order = calloc(n + 1, sizeof(*order));
	_cleanup_(freep) void *buf = aligned_alloc(4096, LEN);

	if (!order || !buf) {
		r->errors++;
		return NULL;
	}
	for (uint64_t i = 0; i < n; i++) {
		uint64_t k = next_random(&seed) % (i + 1);

		order[i] = order[k];
		order[k] = (uint32_t)(i * r->parts + r->part);
	}
	for (uint64_t i = 0; i < n; i++)
		read_small(r, order[i], buf, LEN);
	return NULL;
}

static int by_value(const void *a, const void *b)
{
	const uint32_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

static void report(struct reader *r, size_t n, double seconds)
{
	uint64_t bytes = 0, errors = 0, count = 0;
	uint32_t *all;

	for (size_t i = 0; i < n; i++) {
		bytes += r[i].bytes;
		errors += r[i].errors;
		count += r[i].n;
	}
	all = calloc(count + 1, sizeof(*all));
	if (!all)
		return;
	for (size_t i = 0, k = 0; i < n; k += r[i++].n)
		memcpy(all + k, r[i].us, r[i].n * sizeof(*all));
	qsort(all, count, sizeof(*all), by_value);
	(void)printf("{\"bytes\": %llu, \"seconds\": %.6f, \"mib_s\": %.1f, \"iops\": %.0f, "
		     "\"p50_us\": %u, \"p99_us\": %u, \"errors\": %llu}\n",
		     (unsigned long long)bytes, seconds, (double)bytes / 1048576 / seconds,
		     (double)count / seconds, all[count / 2], all[count * 99 / 100],
		     (unsigned long long)errors);
	free(all);
}

int main(int argc, char **argv)
{
	static struct reader r[FILES_MAX];
	pthread_t t[FILES_MAX];
	size_t n = argc > 3 ? (size_t)argc - 3 : 0;
	bool random = argc > 1 && strcmp(argv[1], "rand") == 0;
	bool small = argc > 1 && strcmp(argv[1], "small") == 0;
	uint64_t arg = 0, start;

	if (n == 0 || n > FILES_MAX || (!random && !small && strcmp(argv[1], "seq") != 0) ||
	    parse_u64(argv[2], 1 << 20, &arg) < 0 || arg == 0) {
		(void)fprintf(stderr, "usage: readload seq KIB FILE… | readload rand COUNT FILE… | "
				      "readload small COUNT DIR…\n");
		return 2;
	}
	for (size_t i = 0; i < n; i++) {
		r[i] = (struct reader){.path = argv[3 + i],
				       .random = random,
				       .part = i,
				       .parts = n,
				       .arg = arg,
				       .us = calloc(SAMPLES_MAX, sizeof(uint32_t))};
		if (!r[i].us)
			return 1;
	}
	start = clock_us();
	for (size_t i = 0; i < n; i++)
		if (pthread_create(&t[i], NULL, small ? read_smalls : read_file, &r[i]))
			return 1;
	for (size_t i = 0; i < n; i++)
		(void)pthread_join(t[i], NULL);
	report(r, n, (double)(clock_us() - start) / 1e6);
	return 0;
}
