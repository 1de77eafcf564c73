/* SPDX-License-Identifier: Apache-2.0 */
/* Metadata operations, timed: THREADS threads, each with a directory of its own below DIR, COUNT
 * operations each.
 *
 *	metaload DIR THREADS COUNT [STAGE…]
 *
 * Prints one line of JSON: operations per second of mkdir, create, stat, open (open + close),
 * rename, unlink, rmdir; or of the stages named, which take the files as those before them left
 * them. readdir reads the directory of the files, and counts its entries. */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>

#include "common/base.h"
#include "common/clock.h"
#include "common/parse.h"

enum { THREADS_MAX = 64 };

struct worker {
	char dir[512];
	uint64_t count, errors;
	int (*op)(const char *dir, uint64_t i);
};

static int path_of(char *p, size_t n, const char *dir, const char *kind, uint64_t i)
{
	return snprintf(p, n, "%s/%s%llu", dir, kind, (unsigned long long)i) < (int)n ? 0 : -1;
}

static int op_mkdir(const char *dir, uint64_t i)
{
	char p[600];

	return path_of(p, sizeof(p), dir, "d", i) < 0 ? -1 : mkdir(p, 0755);
}

static int op_create(const char *dir, uint64_t i)
{
	char p[600];
	int fd = path_of(p, sizeof(p), dir, "f", i) < 0
			 ? -1
			 : open(p, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);

	return fd < 0 ? -1 : close(fd);
}

static int op_stat(const char *dir, uint64_t i)
{
	char p[600];
	struct stat st;

	return path_of(p, sizeof(p), dir, "f", i) < 0 ? -1 : stat(p, &st);
}

static int op_open(const char *dir, uint64_t i)
{
	char p[600];
	int fd = path_of(p, sizeof(p), dir, "f", i) < 0 ? -1 : open(p, O_RDONLY | O_CLOEXEC);

	return fd < 0 ? -1 : close(fd);
}

static int op_rename(const char *dir, uint64_t i)
{
	char p[600], q[600];

	return path_of(p, sizeof(p), dir, "f", i) < 0 || path_of(q, sizeof(q), dir, "r", i) < 0
		       ? -1
		       : rename(p, q);
}

static int op_unlink(const char *dir, uint64_t i)
{
	char p[600];

	return path_of(p, sizeof(p), dir, "r", i) < 0 ? -1 : unlink(p);
}

static int op_rmdir(const char *dir, uint64_t i)
{
	char p[600];

	return path_of(p, sizeof(p), dir, "d", i) < 0 ? -1 : rmdir(p);
}

/* all of it in one: every call but the first has nothing to do */
static int op_readdir(const char *dir, uint64_t i)
{
	struct dirent *e;
	DIR *d;

	if (i > 0)
		return 0;
	d = opendir(dir);
	if (!d)
		return -1;
	do {
		errno = 0;
		e = readdir(d);
	} while (e);
	i = (uint64_t)errno;
	(void)closedir(d);
	return i ? -1 : 0;
}

static void *work(void *arg)
{
	struct worker *w = arg;

	for (uint64_t i = 0; i < w->count; i++)
		w->errors += w->op(w->dir, i) < 0;
	return NULL;
}

static const struct {
	const char *name;
	int (*op)(const char *dir, uint64_t i);
} stages[] = {
	{"mkdir", op_mkdir},   {"create", op_create}, {"stat", op_stat},   {"open", op_open},
	{"rename", op_rename}, {"unlink", op_unlink}, {"rmdir", op_rmdir}, {"readdir", op_readdir},
};
enum { DEFAULT_STAGES = 7 };

/* without names: all but the last */
static bool wanted(size_t stage, int argc, char **argv)
{
	if (argc == 4)
		return stage < DEFAULT_STAGES;
	for (int i = 4; i < argc; i++) {
		if (!strcmp(argv[i], stages[stage].name))
			return true;
	}
	return false;
}

int main(int argc, char **argv)
{
	static struct worker w[THREADS_MAX];
	pthread_t t[THREADS_MAX];
	uint64_t threads = 0, count = 0, errors = 0;

	if (argc < 4 || parse_u64(argv[2], THREADS_MAX, &threads) < 0 ||
	    parse_u64(argv[3], 1000000, &count) < 0 || !threads || !count) {
		(void)fprintf(stderr, "usage: metaload DIR THREADS COUNT [STAGE…]\n");
		return 2;
	}
	for (uint64_t i = 0; i < threads; i++) {
		if (path_of(w[i].dir, sizeof(w[i].dir), argv[1], "t", i) < 0 ||
		    (mkdir(w[i].dir, 0755) < 0 && errno != EEXIST)) {
			perror(w[i].dir);
			return 1;
		}
		w[i].count = count;
	}
	(void)printf("{");
	for (size_t s = 0; s < ARRAY_LEN(stages); s++) {
		uint64_t start = clock_us();

		if (!wanted(s, argc, argv))
			continue;
		for (uint64_t i = 0; i < threads; i++) {
			w[i].op = stages[s].op;
			if (pthread_create(&t[i], NULL, work, &w[i]))
				return 1;
		}
		for (uint64_t i = 0; i < threads; i++)
			(void)pthread_join(t[i], NULL);
		(void)printf("\"%s\": %.0f, ", stages[s].name,
			     (double)(threads * count) * 1e6 /
				     (double)MAX(clock_us() - start, UINT64_C(1)));
	}
	for (uint64_t i = 0; i < threads; i++)
		errors += w[i].errors;
	(void)printf("\"errors\": %llu}\n", (unsigned long long)errors);
	return errors != 0;
}
