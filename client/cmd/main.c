/* SPDX-License-Identifier: Apache-2.0 */
/* stoke: the table of subcommands. */
#include <signal.h>

#include "client/cmd/cmd.h"
#include "common/log.h"

static const struct cmd *const commands[] = {
	&cmd_mount,   &cmd_umount,  &cmd_format,  &cmd_warmup,	&cmd_status, &cmd_drain,
	&cmd_version, &cmd_config,  &cmd_destroy, &cmd_debug,	&cmd_dump,   &cmd_load,
	&cmd_fsck,    &cmd_gc,	    &cmd_info,	  &cmd_summary, &cmd_rmr,    &cmd_clone,
	&cmd_compact, &cmd_restore, &cmd_quota,	  &cmd_tier,
};

static void usage(FILE *out)
{
	fprintf(out, "usage: stoke COMMAND [options] …\n\n"
		     "Mounts JuiceFS volumes and reads them through a cache group.\n\n");
	for (size_t i = 0; i < ARRAY_LEN(commands); i++)
		fprintf(out, "  %-9s %s\n", commands[i]->name, commands[i]->summary);
	fprintf(out, "  %-9s this text; help COMMAND: its options\n", "help");
}

static const struct cmd *find(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
		if (strcmp(commands[i]->name, name) == 0)
			return commands[i];
	}
	return NULL;
}

static bool is_any(const char *s, const char *a, const char *b, const char *c)
{
	return !strcmp(s, a) || !strcmp(s, b) || !strcmp(s, c);
}

static int help(const char *name)
{
	_cleanup_(str_fini) struct str text = STR_INIT;
	const struct cmd *c = find(name);

	if (!c) {
		fprintf(stderr, "stoke help: unknown command %s: see stoke help\n", name);
		return 2;
	}
	if (!c->table) {
		printf("usage: stoke %s\n\n%s\n", c->name, c->summary);
		return 0;
	}
	conf_help(c->table, &text);
	fputs(str_c(&text), stdout);
	return 0;
}

/* what was to be read did not arrive: no success */
static int written(int status)
{
	if ((fflush(stdout) || ferror(stdout)) && status == 0) {
		fputs("stoke: cannot write to standard output\n", stderr);
		return 1;
	}
	return status;
}

int main(int argc, char **argv)
{
	const struct cmd *c;

	/* a socket or a pipe whose other end went away is an error of the write, not the end of the
	 * process */
	signal(SIGPIPE, SIG_IGN);
	log_init("stoke", LOG_LVL_INFO);
	if (argc < 2) {
		usage(stderr);
		return 2;
	}
	if (is_any(argv[1], "help", "--help", "-h")) {
		if (argc > 2)
			return written(help(argv[2]));
		usage(stdout);
		return written(0);
	}
	c = is_any(argv[1], "version", "--version", "-V") ? &cmd_version : find(argv[1]);
	if (!c) {
		fprintf(stderr, "stoke: unknown command %s: see stoke help\n", argv[1]);
		return 2;
	}
	return written(c->run(argc - 1, argv + 1));
}
