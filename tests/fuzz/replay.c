/* SPDX-License-Identifier: Apache-2.0 */
/* main of a fuzz driver when it is not built with libFuzzer: every file named (or in the
 * directories named) is given to it once. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "common/base.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static int run_file(const char *path, unsigned *count)
{
	_cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
	_cleanup_(freep) uint8_t *data = NULL;
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	/* exactly as long as the input, so that ASan sees a read behind the end */
	data = malloc(st.st_size ? (size_t)st.st_size : 1);
	if (!data || read(fd, data, (size_t)st.st_size) != st.st_size)
		return -EIO;
	(void)LLVMFuzzerTestOneInput(data, (size_t)st.st_size);
	(*count)++;
	return 0;
}

static int run_dir(const char *path, unsigned *count)
{
	DIR *d = opendir(path);
	struct dirent *e;
	int r = 0;

	if (!d)
		return -errno;
	while (r == 0 && (e = readdir(d))) {
		char file[4096];

		if (e->d_name[0] == '.')
			continue;
		(void)snprintf(file, sizeof(file), "%s/%s", path, e->d_name);
		r = run_file(file, count);
	}
	(void)closedir(d);
	return r;
}

int main(int argc, char **argv)
{
	unsigned count = 0;

	for (int i = 1; i < argc; i++) {
		struct stat st;
		int r = stat(argv[i], &st) < 0 ? -errno
			: S_ISDIR(st.st_mode)  ? run_dir(argv[i], &count)
					       : run_file(argv[i], &count);

		if (r < 0) {
			(void)fprintf(stderr, "%s: %s\n", argv[i], strerror(-r));
			return 1;
		}
	}
	(void)printf("%u inputs\n", count);
	return count == 0;
}
