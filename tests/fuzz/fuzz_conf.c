/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration file of the daemon: whatever is in it, it is taken or refused with one line. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "cached/daemon.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const struct conf_option options[] = {
#define OPTION(member, name, letter, type, dflt, env, help)                                        \
	{name, letter, CONF_##type, offsetof(struct daemon_conf, member), dflt, NULL, help},
#include "cached/conf.def"
#undef OPTION
};

static const struct conf_table table = {
	.options = options,
	.n = ARRAY_LEN(options),
	.usage = "fuzz",
	.summary = "fuzz",
	.max_args = 1,
};

static char program[] = "fuzz", flag[] = "--config", path[64];

/* in memory, by the name that the system has for it */
static int file_of(const uint8_t *data, size_t n)
{
	static int fd = -1;

	if (fd < 0) {
		fd = memfd_create("conf", MFD_CLOEXEC);
		assert(fd >= 0 && fchmod(fd, 0600) == 0);
		(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	}
	return ftruncate(fd, 0) == 0 && pwrite(fd, data, n, 0) == (ssize_t)n ? 0 : -errno;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	char *argv[] = {program, flag, path, NULL}, **args;
	struct daemon_conf conf = {0};
	struct str err = STR_INIT, out = STR_INIT;
	size_t n_args;
	int r;

	assert(file_of(data, n) == 0);
	r = conf_parse(&table, &conf, 3, argv, &args, &n_args, &err);
	assert(r == 0 || (r < 0 && err.len > 0));
	if (r == 0) {
		assert(conf.free_space_ratio >= 0 && conf.free_space_ratio <= 1);
		assert(!conf.cache_dir || strlen(conf.cache_dir) <= n);
		conf_print_json(&table, &conf, &out);
		assert(str_error(&out) == 0);
	}
	conf_fini(&table, &conf);
	str_fini(&err);
	str_fini(&out);
	return 0;
}
