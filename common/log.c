/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines. Any thread: a line is put together on the stack and leaves in one write, so lines
 * never mix and no lock is needed. */
#include "common/log.h"

#include <fcntl.h>
#include <stdarg.h>
#include <time.h>

#include "common/clock.h"

enum { LOG_LINE_BYTES = 2048 };

static char log_program[32] = "stoke";
static int log_max = LOG_LVL_INFO;
static int log_fd = STDERR_FILENO;

static const char *const level_names[] = {"error", "warn", "info", "debug"};

void log_init(const char *program, enum log_level max)
{
	snprintf(log_program, sizeof(log_program), "%s", program);
	__atomic_store_n(&log_max, (int)max, __ATOMIC_RELAXED);
}

int log_to_file(const char *path)
{
	int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
	int old;

	if (fd < 0)
		return -errno;
	old = __atomic_exchange_n(&log_fd, fd, __ATOMIC_ACQ_REL);
	/* Another thread may be about to write to the old file, and its number must not become
	 * somebody else's: it gets the new file instead of being closed. */
	if (old != STDERR_FILENO) {
		(void)dup3(fd, old, O_CLOEXEC);
		(void)__atomic_exchange_n(&log_fd, old, __ATOMIC_ACQ_REL);
		(void)close(fd);
	}
	return 0;
}

static size_t log_head(char *line, size_t cap, enum log_level lvl)
{
	int64_t sec;
	uint32_t nsec;
	struct tm tm;
	time_t t;
	int n;

	clock_real(&sec, &nsec);
	t = (time_t)sec;
	gmtime_r(&t, &tm);
	n = snprintf(line, cap, "%04d-%02d-%02dT%02d:%02d:%02d.%06uZ %-5s %s[%d] ",
		     tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec,
		     nsec / 1000, level_names[lvl], log_program, (int)getpid());
	return n < 0 ? 0 : MIN((size_t)n, cap - 1);
}

void log_line(enum log_level lvl, const char *fmt, ...)
{
	char line[LOG_LINE_BYTES];
	int keep = errno;
	size_t i, head, len;
	va_list ap;
	int n;

	if ((int)lvl > __atomic_load_n(&log_max, __ATOMIC_RELAXED))
		return;
	head = log_head(line, sizeof(line), lvl);
	va_start(ap, fmt);
	errno = keep; /* %m */
	n = vsnprintf(line + head, sizeof(line) - head, fmt, ap);
	va_end(ap);
	len = head + (n < 0 ? 0 : (size_t)n);
	if (len > sizeof(line) - 2) {
		len = sizeof(line) - 2;
		memcpy(line + len - 3, "...", 3);
	}
	/* what a peer or a user said must not forge a second line or move the cursor */
	for (i = head; i < len; i++)
		if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
			line[i] = ' ';
	line[len++] = '\n';
	if (write(__atomic_load_n(&log_fd, __ATOMIC_ACQUIRE), line, len) < 0) {
		/* nowhere left to tell it */
	}
	errno = keep;
}

bool log_rate_ok(struct log_rate *r, uint64_t period_us, unsigned *suppressed)
{
	uint64_t now = clock_us();
	uint64_t next = __atomic_load_n(&r->next_us, __ATOMIC_RELAXED);

	if (now < next || !__atomic_compare_exchange_n(&r->next_us, &next, now + period_us, false,
						       __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
		__atomic_fetch_add(&r->swallowed, 1, __ATOMIC_RELAXED);
		return false;
	}
	*suppressed = __atomic_exchange_n(&r->swallowed, 0, __ATOMIC_RELAXED);
	return true;
}
