/* SPDX-License-Identifier: Apache-2.0 */
/* Subcommands of stoke. Each cmd_<name>.c defines one; main.c has the table. run gets the words
 * from the subcommand on (argv[0] = "mount") and returns the exit status: 0; 1 it did not work; 2
 * wrong usage. Errors are one line on stderr: "stoke mount: what: why (the way out)". */
#ifndef STOKE_CLIENT_CMD_CMD_H
#define STOKE_CLIENT_CMD_CMD_H

#include "common/conf.h"

struct cmd {
	const char *name;
	const char *summary;
	int (*run)(int argc, char **argv);
	const struct conf_table *table;
};

extern const struct cmd cmd_format, cmd_mount, cmd_umount, cmd_warmup, cmd_status, cmd_version;
extern const struct cmd cmd_dump, cmd_load, cmd_fsck, cmd_gc, cmd_info, cmd_summary, cmd_rmr,
	cmd_clone, cmd_compact, cmd_restore, cmd_quota, cmd_tier;

extern const struct cmd cmd_config, cmd_destroy, cmd_debug, cmd_drain;

/* "stoke NAME: " + text + newline on stderr; returns 1 */
int cmd_error(const char *name, const char *fmt, ...) _printf_(2, 3);
/* "1.2 GiB" into ret */
const char *cmd_bytes(uint64_t n, char ret[16]);

#endif
