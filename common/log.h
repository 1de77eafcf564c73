/* SPDX-License-Identifier: Apache-2.0 */
/* One line an event on stderr (or a file): time level program[pid] text. Libraries do not log, they
 * return errors; the line is written once, where the error stops travelling. Never give a secret to
 * these. Any thread. */
#ifndef STOKE_COMMON_LOG_H
#define STOKE_COMMON_LOG_H

#include "common/base.h"

enum log_level { LOG_LVL_ERROR, LOG_LVL_WARN, LOG_LVL_INFO, LOG_LVL_DEBUG };

void log_init(const char *program, enum log_level max);
/* lines go to path (appended, 0644) from now on; 0 or -errno */
int log_to_file(const char *path);
void log_line(enum log_level lvl, const char *fmt, ...) _printf_(2, 3);

#define log_error(...) log_line(LOG_LVL_ERROR, __VA_ARGS__)
#define log_warn(...)  log_line(LOG_LVL_WARN, __VA_ARGS__)
#define log_info(...)  log_line(LOG_LVL_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_LVL_DEBUG, __VA_ARGS__)

/* True at most once per period for this spot; *suppressed tells how many were swallowed since. For
 * lines that could flood:
 *
 *	static struct log_rate rate;
 *	unsigned n;
 *
 *	if (log_rate_ok(&rate, 1000000, &n))
 *		log_warn("… suppressed=%u", n); */
struct log_rate {
	uint64_t next_us;
	unsigned swallowed;
};
bool log_rate_ok(struct log_rate *r, uint64_t period_us, unsigned *suppressed);

#endif
