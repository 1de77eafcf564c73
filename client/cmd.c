/* SPDX-License-Identifier: Apache-2.0 */
/* What the subcommands share: how they say that something did not work, and sizes for people. */
#include "client/cmd.h"

#include <stdarg.h>

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
	static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
	double v = (double)n;
	unsigned u = 0;

	while (v >= 1024 && u + 1 < ARRAY_LEN(unit)) {
		v /= 1024;
		u++;
	}
	(void)snprintf(ret, 16, u ? "%.1f %s" : "%.0f %s", v, unit[u]);
	return ret;
}
