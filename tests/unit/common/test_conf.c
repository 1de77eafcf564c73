/* SPDX-License-Identifier: Apache-2.0 */
/* conf: who wins, what is refused and how it is told, and that the help says it all. */
#include "common/conf.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define OPTIONS                                                                                    \
	OPTION(size, "cache-size", 0, SIZE_MIB, "100", NULL,                                       \
	       "NVMe to use; MiB unless a unit is given")                                          \
	OPTION(bucket, "bucket", 'b', STR, NULL, "TEST_BUCKET", "where blocks are")                \
	OPTION(threads, "threads", 'p', U64, "4", "TEST_THREADS", "threads")                       \
	OPTION(debug, "debug", 'd', FLAG, NULL, NULL, "tell more")                                 \
	OPTION(compress, "compress", 0, FLAG, "true", NULL, "make smaller")                        \
	OPTION(wait, "wait-time", 0, DURATION, "1.5", NULL, "how long to wait")                    \
	OPTION(free, "free-ratio", 0, RATIO, "0.1", NULL, "to be left free")                       \
	OPTION(secret, "secret", 0, SECRET, NULL, "TEST_SECRET", "the group's secret")             \
	OPTION(key, "private-key", 0, SECRET, NULL, NULL, "a key")                                 \
	OPTION(config, "config", 0, STR, NULL, NULL, "a file of options")

struct test_conf {
#define OPTION(member, name, letter, type, dflt, env, help) CONF_MEMBER(member, type)
	OPTIONS
#undef OPTION
};

static const struct conf_option options[] = {
#define OPTION(member, name, letter, type, dflt, env, help)                                        \
	CONF_ROW(struct test_conf, member, name, letter, type, dflt, env, help)
	OPTIONS
#undef OPTION
};

static const struct conf_table table = {
	.options = options,
	.n = ARRAY_LEN(options),
	.usage = "test [options] A B…",
	.summary = "does nothing",
	.min_args = 1,
	.max_args = 3,
};

static struct test_conf conf;
static struct str err;
static char **args;
static size_t n_args;
static char *argv[24];
static char path[] = "/tmp/stoke-conf-XXXXXX";

/* words are separated by blanks; "_" is an empty word */
static int run(const char *line)
{
	static char text[512];
	char *at = text, *word;
	int argc = 1;

	conf_fini(&table, &conf);
	memset(&conf, 0xa5, sizeof(conf)); /* what was in it does not matter */
	str_reset(&err);
	snprintf(text, sizeof(text), "%s", line);
	argv[0] = text + sizeof(text) - 1;
	while ((word = strsep(&at, " ")))
		argv[argc++] = strcmp(word, "_") ? word : argv[0];
	return conf_parse(&table, &conf, argc, argv, &args, &n_args, &err);
}

static void refused(const char *line, const char *says)
{
	assert_int_equal(run(line), -EINVAL);
	if (!strstr(str_c(&err), says) || !strstr(str_c(&err), "see --help") ||
	    strchr(str_c(&err), '\n'))
		fail_msg("%s: '%s'", line, str_c(&err));
}

static int begin(void **state)
{
	int fd = mkstemp(path);

	(void)state;
	close(fd);
	unsetenv("TEST_BUCKET");
	unsetenv("TEST_THREADS");
	unsetenv("TEST_SECRET");
	return fd < 0;
}

static int end(void **state)
{
	(void)state;
	conf_fini(&table, &conf);
	str_fini(&err);
	return unlink(path);
}

static void write_file(const char *text)
{
	int fd = open(path, O_WRONLY | O_TRUNC);

	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

static void conf_defaults_are_as_typed(void **state)
{
	(void)state;
	assert_int_equal(run("a"), 0);
	assert_int_equal(conf.size, 100 << 20);
	assert_null(conf.bucket);
	assert_int_equal(conf.threads, 4);
	assert_false(conf.debug);
	assert_true(conf.compress);
	assert_int_equal(conf.wait, 1500000);
	assert_true(conf.free > 0.0999 && conf.free < 0.1001);
	assert_int_equal(n_args, 1);
	assert_string_equal(args[0], "a");
}

static void conf_options_stand_anywhere(void **state)
{
	(void)state;
	assert_int_equal(run("a --cache-size 2G b -p 7 -d --compress=false -- --bucket"), 0);
	assert_int_equal(conf.size, 2ULL << 30);
	assert_int_equal(conf.threads, 7);
	assert_true(conf.debug);
	assert_false(conf.compress);
	assert_null(conf.bucket);
	assert_int_equal(n_args, 3);
	assert_string_equal(args[0], "a");
	assert_string_equal(args[1], "b");
	assert_string_equal(args[2], "--bucket");
	assert_int_equal(run("-b=x=y -p 1 -p 2 --free-ratio=0.25 --wait-time=1m30s -"), 0);
	assert_string_equal(conf.bucket, "x=y");
	assert_int_equal(conf.threads, 2);
	assert_true(conf.free == 0.25);
	assert_int_equal(conf.wait, 90000000);
	assert_string_equal(args[0], "-");
	assert_int_equal(run("--bucket _ a"), 0);
	assert_string_equal(conf.bucket, "");
}

static void conf_tells_what_is_wrong(void **state)
{
	(void)state;
	refused("a --cachesize 5", "unknown option --cachesize (did you mean --cache-size?)");
	refused("a --zzzzzzzz=5", "unknown option --zzzzzzzz;");
	refused("a -x", "unknown option -x");
	refused("a -pd", "unknown option -pd");
	refused("a --threads", "--threads needs a value");
	refused("a --threads=", "--threads: '' is not a number");
	refused("a --threads=-1", "--threads: '-1' is not a number");
	refused("a --threads 18446744073709551616", "--threads: 18446744073709551616 is too large");
	refused("a --cache-size=5X", "--cache-size: '5X' is not a size");
	refused("a --wait-time=5y", "--wait-time: '5y' is not a duration");
	refused("a --debug=maybe", "--debug: 'maybe' is not true or false");
	refused("a --free-ratio=1.5", "--free-ratio");
	refused("a --free-ratio=1G", "--free-ratio: '1G' is not a number from 0 to 1");
	refused("-d", "too few arguments: usage: test [options] A B…");
	refused("a b c d", "too many arguments");
}

static void conf_takes_no_secret_from_argv(void **state)
{
	(void)state;
	refused("a --secret=geheim", "environment variable TEST_SECRET");
	assert_null(strstr(str_c(&err), "geheim"));
	refused("a --private-key geheim", "configuration file");
	assert_null(strstr(str_c(&err), "geheim"));
	setenv("TEST_SECRET", "geheim", 1);
	assert_int_equal(run("a"), 0);
	assert_string_equal(conf.secret, "geheim");
	str_reset(&err);
	conf_print_json(&table, &conf, &err);
	assert_null(strstr(str_c(&err), "geheim"));
	assert_null(strstr(str_c(&err), "secret"));
	unsetenv("TEST_SECRET");
}

static void conf_argv_beats_environment_beats_file_beats_default(void **state)
{
	char line[128];

	(void)state;
	write_file("# comment\n\n  cache-size = 7 \nbucket=of file\nthreads = 1\nprivate-key = "
		   "k\ncompress = no");
	snprintf(line, sizeof(line), "a --config %s", path);
	assert_int_equal(run(line), 0);
	assert_int_equal(conf.size, 7 << 20);
	assert_string_equal(conf.bucket, "of file");
	assert_int_equal(conf.threads, 1);
	assert_string_equal(conf.key, "k");
	assert_false(conf.compress);
	assert_int_equal(conf.wait, 1500000);
	setenv("TEST_THREADS", "2", 1);
	setenv("TEST_BUCKET", "of env", 1);
	snprintf(line, sizeof(line), "a --threads 3 --config=%s b", path);
	assert_int_equal(run(line), 0);
	assert_string_equal(conf.bucket, "of env");
	assert_int_equal(conf.threads, 3);
	assert_int_equal(n_args, 2);
	setenv("TEST_THREADS", "x", 1);
	refused("a", "$TEST_THREADS: 'x' is not a number");
	unsetenv("TEST_THREADS");
	unsetenv("TEST_BUCKET");
}

static void conf_file_errors_name_the_line(void **state)
{
	char line[128], says[128];

	(void)state;
	snprintf(line, sizeof(line), "a --config %s", path);
	write_file("cache-size = 7\nnothing = 5\n");
	snprintf(says, sizeof(says), "%s:2: unknown option 'nothing'", path);
	refused(line, says);
	write_file("cache-size = many\n");
	snprintf(says, sizeof(says), "%s:1: cache-size: 'many' is not a size", path);
	refused(line, says);
	write_file("cache-size 7\n");
	assert_int_equal(run(line), -EINVAL);
	assert_int_equal(run("a --config /nowhere"), -ENOENT);
	assert_non_null(strstr(str_c(&err), "/nowhere: No such file"));
}

static void conf_help_lists_every_option(void **state)
{
	struct str out = STR_INIT;

	(void)state;
	conf_help(&table, &out);
	for (size_t i = 0; i < table.n; i++)
		assert_non_null(strstr(str_c(&out), options[i].help));
	assert_non_null(strstr(str_c(&out), "usage: test [options] A B…\n"));
	assert_non_null(strstr(str_c(&out), "-p, --threads N"));
	assert_non_null(strstr(str_c(&out), "(default: 100)"));
	assert_non_null(strstr(str_c(&out), "[$TEST_BUCKET]"));
	assert_null(strstr(str_c(&out), "--secret"));
	assert_non_null(strstr(str_c(&out), "TEST_SECRET"));
	str_fini(&out);
}

static void what_is_only_taken_is_not_offered(void **state)
{
	static const struct conf_option rows[] = {
		{"fast", 0, CONF_FLAG, offsetof(struct test_conf, threads), NULL, NULL, NULL},
	};
	static const struct conf_table silent = {
		.options = rows, .n = 1, .usage = "t", .summary = "s", .max_args = 1};
	struct str out = STR_INIT;

	(void)state;
	conf_help(&silent, &out);
	assert_null(strstr(str_c(&out), "fast"));
	str_fini(&out);
}

static void conf_prints_itself_as_json(void **state)
{
	struct str out = STR_INIT;

	(void)state;
	assert_int_equal(run("--bucket q\"\\x a"), 0);
	conf_print_json(&table, &conf, &out);
	assert_string_equal(str_c(&out),
			    "\"cache-size\":104857600,\"bucket\":\"q\\\"\\\\x\",\"threads\":4,"
			    "\"debug\":false,\"compress\":true,\"wait-time\":1.5,"
			    "\"free-ratio\":0.1,\"config\":null");
	str_fini(&out);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(conf_defaults_are_as_typed),
		cmocka_unit_test(conf_options_stand_anywhere),
		cmocka_unit_test(conf_tells_what_is_wrong),
		cmocka_unit_test(conf_takes_no_secret_from_argv),
		cmocka_unit_test(conf_argv_beats_environment_beats_file_beats_default),
		cmocka_unit_test(conf_file_errors_name_the_line),
		cmocka_unit_test(conf_help_lists_every_option),
		cmocka_unit_test(what_is_only_taken_is_not_offered),
		cmocka_unit_test(conf_prints_itself_as_json),
	};

	return cmocka_run_group_tests(tests, begin, end);
}
