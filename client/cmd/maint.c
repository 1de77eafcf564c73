/* SPDX-License-Identifier: Apache-2.0 */
/* Commands run in the main thread; the progress line has one of its own that only reads counters.
 * A signal sets a flag that the work looks at between its steps. */
#include "client/cmd/maint.h"

#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>

#include "common/clock.h"
#include "common/mtx.h"
#include "common/thread.h"

enum {
	TTY_US = 200000,
	QUIET_US = 10000000,
	OPEN_TIMEOUT_US = 30000000,
	HEARTBEAT_US = 12000000,
	SKIP_DIR_MTIME_US = 100000,
};

struct maint_bar {
	struct maint *m;
	const char *files, *bytes;
	struct mtx lock;
	struct cond wake;
	bool end, tty, shown;
	pthread_t thread;
};

static int *volatile cancel_flag; /* for the signal handler */

static void on_signal(int sig)
{
	int *flag = cancel_flag;

	if (!flag || __atomic_exchange_n(flag, 1, __ATOMIC_RELAXED)) {
		(void)signal(sig, SIG_DFL);
		(void)raise(sig);
	}
}

void maint_catch(struct maint *m, const char *name)
{
	struct sigaction sa = {.sa_handler = on_signal, .sa_flags = 0};

	m->name = name;
	cancel_flag = &m->progress.cancel;
	(void)sigaction(SIGINT, &sa, NULL);
	(void)sigaction(SIGTERM, &sa, NULL);
}

int maint_args(const char *name, const struct conf_table *t, void *conf, int argc, char **argv,
	       char ***args, size_t *n_args)
{
	_cleanup_(str_fini) struct str err = STR_INIT;
	int r = conf_parse(t, conf, argc, argv, args, n_args, &err);

	if (r < 0)
		(void)cmd_error(name, "%s", str_c(&err));
	return r < 0 ? 3 : r;
}

int maint_open(struct maint *m, const char *name, char *url, bool empty_ok)
{
	_cleanup_(str_fini) struct str err = STR_INIT;
	int r;

	*m = (struct maint){.name = name, .url = strdup(url)};
	redis_blank_password(url);
	if (!m->url) {
		(void)cmd_error(name, "%s", strerror(ENOMEM));
		return -ENOMEM;
	}
	r = redis_new(m->url, NULL, &m->redis, &err);
	if (r == 0)
		r = setting_load(m->redis, clock_us() + OPEN_TIMEOUT_US, &m->setting, &err);
	if (r == -ENOENT && empty_ok)
		r = 0;
	if (r < 0) {
		(void)cmd_error(name, "%s", err.len ? str_c(&err) : strerror(-r));
		maint_close(m);
		return r;
	}
	maint_catch(m, name);
	scan_init(&m->scan, m->redis, &m->progress.cancel);
	return 0;
}

void maint_close(struct maint *m)
{
	maint_end(m);
	cancel_flag = NULL;
	setting_free(m->setting);
	redis_free(m->redis);
	free(m->url);
	m->setting = NULL;
	m->redis = NULL;
	m->url = NULL;
}

int maint_engine(struct maint *m, const struct maint_engine_conf *c, struct meta **ret)
{
	struct meta_conf conf = {.read_only = !c->change,
				 .timeout_us = OPEN_TIMEOUT_US,
				 .heartbeat_us = HEARTBEAT_US,
				 .skip_dir_mtime_us = SKIP_DIR_MTIME_US,
				 .mount_point = m->name,
				 .no_bgjob = true,
				 .max_deletes = c->deletes};
	_cleanup_(str_fini) struct str err = STR_INIT;
	int r = meta_redis_new(m->url, &conf, ret, &err);

	if (r == 0) {
		if (c->remove)
			meta_set_delete(*ret, c->remove, c->remove_arg);
		if (c->compact)
			meta_set_compact(*ret, c->compact, c->compact_arg);
		r = meta_start(*ret, &err);
		if (r < 0) {
			meta_free(*ret);
			*ret = NULL;
		}
	}
	if (r < 0)
		(void)cmd_error(m->name, "%s", err.len ? str_c(&err) : strerror(-r));
	return r;
}

void maint_engine_free(struct meta *meta)
{
	if (!meta)
		return;
	meta_stop(meta);
	meta_free(meta);
}

void maint_threads(const char *name, uint64_t n, void *(*fn)(void *arg), void *arg)
{
	pthread_t thread[MAINT_THREADS];
	unsigned others = 0;

	while (others + 1 < MIN(n, (uint64_t)MAINT_THREADS) &&
	       thread_start(name, fn, arg, &thread[others]) == 0)
		others++;
	(void)fn(arg);
	while (others)
		(void)pthread_join(thread[--others], NULL);
}

/* --- progress --- */

static void show(struct maint_bar *b)
{
	const struct meta_progress *p = &b->m->progress;
	char size[16];
	uint64_t files = __atomic_load_n(&p->files, __ATOMIC_RELAXED);
	uint64_t bytes = __atomic_load_n(&p->bytes, __ATOMIC_RELAXED);

	(void)fprintf(stderr, "%sstoke %s: %" PRIu64 " %s", b->tty ? "\r\033[K" : "", b->m->name,
		      files, b->files);
	if (b->bytes)
		(void)fprintf(stderr, ", %s %s", cmd_bytes(bytes, size), b->bytes);
	(void)fputs(b->tty ? "" : "\n", stderr);
	(void)fflush(stderr);
	b->shown = true;
}

static void *bar_main(void *arg)
{
	struct maint_bar *b = arg;

	for (;;) {
		bool end;

		mtx_lock(&b->lock);
		if (!b->end)
			(void)cond_wait_us(&b->wake, &b->lock, b->tty ? TTY_US : QUIET_US);
		end = b->end;
		mtx_unlock(&b->lock);
		if (end)
			return NULL;
		show(b);
	}
}

void maint_begin(struct maint *m, const char *files, const char *bytes)
{
	struct maint_bar *b = calloc(1, sizeof(*b));

	maint_end(m);
	m->progress.files = m->progress.bytes = 0;
	if (!b)
		return; /* it goes without */
	*b = (struct maint_bar){.m = m, .files = files, .bytes = bytes};
	b->tty = isatty(STDERR_FILENO);
	mtx_init(&b->lock);
	cond_init(&b->wake);
	if (thread_start("progress", bar_main, b, &b->thread) < 0) {
		mtx_fini(&b->lock);
		cond_fini(&b->wake);
		free(b);
		return;
	}
	m->bar = b;
}

void maint_end(struct maint *m)
{
	struct maint_bar *b = m->bar;

	if (!b)
		return;
	mtx_lock(&b->lock);
	b->end = true;
	cond_signal(&b->wake);
	mtx_unlock(&b->lock);
	(void)pthread_join(b->thread, NULL);
	if (b->tty && b->shown)
		(void)fputs("\r\033[K", stderr);
	mtx_fini(&b->lock);
	cond_fini(&b->wake);
	free(b);
	m->bar = NULL;
}

void maint_warn(void *arg, const char *line)
{
	struct maint *m = arg;

	if (m->bar && m->bar->tty)
		(void)fputs("\r\033[K", stderr);
	(void)cmd_error(m->name, "%s", line);
}

void maint_say(struct maint *m, const char *fmt, ...)
{
	va_list ap;

	if (m->bar && m->bar->tty)
		(void)fputs("\r\033[K", stderr);
	va_start(ap, fmt);
	(void)vprintf(fmt, ap);
	va_end(ap);
	(void)putchar('\n');
	(void)fflush(stdout);
}

bool maint_sure(const char *name, bool yes, const char *question)
{
	char answer[16];

	if (yes)
		return true;
	if (!isatty(STDIN_FILENO)) {
		(void)cmd_error(name, "%s: nobody is there to ask; say --yes to do it", question);
		return false;
	}
	(void)fprintf(stderr, "%s? [y/N] ", question);
	(void)fflush(stderr);
	if (!fgets(answer, sizeof(answer), stdin))
		return false;
	return answer[0] == 'y' || answer[0] == 'Y';
}

int maint_exit(struct maint *m, int r, const struct str *err)
{
	maint_end(m);
	if (r < 0 && err && err->len)
		(void)cmd_error(m->name, "%s", str_c(err));
	else if (r == -EINTR)
		(void)cmd_error(m->name, "interrupted");
	else if (r < 0)
		(void)cmd_error(m->name, "%s: %s", m->redis ? redis_name(m->redis) : "",
				strerror(-r));
	return r < 0;
}
