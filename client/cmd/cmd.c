/* SPDX-License-Identifier: Apache-2.0 */
/* What the subcommands share: how they say that something did not work, and sizes for people. */
#include "client/cmd/cmd.h"

#include <stdarg.h>

#include "client/mount_text.h"

int cmd_error(const char *name, const char *fmt, ...)
{
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	(void)fprintf(stderr, "stoke %s: %s\n", name, text);
	return 1;
}

const char *cmd_bytes(uint64_t n, char ret[16])
{
	return mount_bytes(n, ret);
}
