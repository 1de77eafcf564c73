/* SPDX-License-Identifier: Apache-2.0 */
/* stoke version. */
#include "client/cmd/cmd.h"

static int run(int argc, char **argv)
{
	(void)argv;
	if (argc > 1) {
		(void)cmd_error("version", "takes no arguments");
		return 2;
	}
	printf("stoke version %s\n", STOKE_VERSION);
	return fflush(stdout) == 0 ? 0 : cmd_error("version", "cannot write: %s", strerror(errno));
}

const struct cmd cmd_version = {"version", "print the version", run, NULL};
