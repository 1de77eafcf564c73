/* SPDX-License-Identifier: Apache-2.0 */
/* .stats, .config, .accesslog and .control below the root of a mount. Any thread; one leaf lock
 * over what is open and who waits.
 *
 *	.stats, .config	text made at open
 *	.accesslog	each open file has its own buffer; a read that finds it empty is parked
 *			until a line comes or a second passed
 *	.control	a read that finds no answer is parked until the request's thread says more
 *			or ends
 *
 * A parked read is completed by whoever takes it off the list, after the lock is released. */
#include "client/internal.h"

#include <stdarg.h>
#include <time.h>

#include "client/control.h"
#include "client/vfs.h"
#include "common/clock.h"
#include "common/mtx.h"

enum { TICK_US = 1000000 };

struct internal {
	struct internal_conf conf;
	struct mtx lock;
	struct list_node open; /* all ifiles */
	unsigned logs;	       /* of them, .accesslog; atomic to read */
	struct loop_timer tick;
	struct time_ns made;
};

struct ifile {
	struct internal *in;
	struct list_node link;
	uint64_t inode;
	struct str text;	 /* .stats, .config: all of it; .accesslog: lines not read */
	uint64_t lost;		 /* .accesslog: lines that found no room */
	struct list_node parked; /* struct vfs_io */
	unsigned wakes;		 /* how often something came */
	struct control *control;
};

static const struct {
	const char *name;
	uint64_t inode;
	uint16_t mode;
	bool listed;
} files[] = {
	{".accesslog", INODE_ACCESSLOG, 0400, true},
	{".config", INODE_CONFIG, 0400, true},
	{".stats", INODE_STATS, 0444, true},
	{".control", INODE_CONTROL, 0600, false},
};

/* --- which --- */

bool internal_find(const char *name, uint64_t *ret_inode)
{
	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		if (strcmp(files[i].name, name) == 0) {
			*ret_inode = files[i].inode;
			return true;
		}
	}
	return false;
}

const char *internal_listed(size_t n, uint64_t *ret_inode)
{
	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		if (!files[i].listed || n-- > 0)
			continue;
		*ret_inode = files[i].inode;
		return files[i].name;
	}
	return NULL;
}

bool internal_attr(struct internal *in, uint64_t inode, struct attr *ret)
{
	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		if (files[i].inode != inode)
			continue;
		*ret = (struct attr){
			.type = INODE_FILE,
			.mode = files[i].mode,
			.uid = getuid(),
			.gid = getgid(),
			.nlink = 1,
			.parent = INODE_ROOT,
			.atime = in->made,
			.mtime = in->made,
			.ctime = in->made,
		};
		return true;
	}
	return false;
}

/* --- parked reads --- */

/* what a parked or new read of f can be given now: bytes into buf; false: it has to wait */
static bool ready(struct ifile *f, struct vfs_io *io, char *buf, size_t *ret_n)
{
	bool end = false;

	if (f->control) {
		*ret_n = control_read(f->control, buf, io->len, &end);
		return *ret_n > 0 || end;
	}
	mtx_lock(&f->in->lock);
	*ret_n = MIN((size_t)io->len, f->text.len);
	if (*ret_n > 0) {
		memcpy(buf, f->text.s, *ret_n);
		memmove(f->text.s, f->text.s + *ret_n, f->text.len - *ret_n);
		f->text.len -= *ret_n;
	}
	mtx_unlock(&f->in->lock);
	return *ret_n > 0;
}

static void give(struct vfs_io *io, char *buf, size_t n)
{
	struct iovec iov = {buf, n};

	io->done(io, 0, &iov, 1, n);
}

/* tries one read; true: it was answered */
static bool try_read(struct ifile *f, struct vfs_io *io)
{
	char *buf = malloc(MAX(io->len, 1u));
	size_t n;
	bool answer;

	if (!buf) {
		io->done(io, -ENOMEM, NULL, 0, 0);
		return true;
	}
	answer = ready(f, io, buf, &n);
	if (answer)
		give(io, buf, n);
	free(buf);
	return answer;
}

/* answers io now, or parks it until the next wake-up; nothing of f is touched after the answer,
 * which lets the kernel release it */
static void try_or_park(struct ifile *f, struct vfs_io *io)
{
	struct internal *in = f->in;

	for (;;) {
		unsigned wakes;
		bool parked = false;

		mtx_lock(&in->lock);
		wakes = f->wakes;
		mtx_unlock(&in->lock);
		if (try_read(f, io))
			return;
		mtx_lock(&in->lock);
		/* else something came between the look and here */
		if (f->wakes == wakes) {
			list_add_tail(&f->parked, &io->link);
			parked = true;
		}
		mtx_unlock(&in->lock);
		if (parked)
			return;
	}
}

/* something may have come for f's parked reads */
static void serve_parked(struct ifile *f)
{
	struct list_node list, *n;

	list_init(&list);
	mtx_lock(&f->in->lock);
	f->wakes++;
	list_splice_tail(&list, &f->parked);
	mtx_unlock(&f->in->lock);
	while ((n = list_pop(&list)))
		try_or_park(f, container_of(n, struct vfs_io, link));
}

void internal_read(struct ifile *f, struct vfs_io *io)
{
	if (f->inode == INODE_STATS || f->inode == INODE_CONFIG) {
		size_t off = MIN(io->off, (uint64_t)f->text.len);

		give(io, f->text.s + off, MIN((size_t)io->len, f->text.len - off));
		return;
	}
	io->since_us = clock_us();
	try_or_park(f, io);
}

/* --- the log --- */

static void collect_idle(struct internal *in, uint64_t now, struct list_node *ret)
{
	struct list_node *n, *p, *t;

	mtx_lock(&in->lock);
	list_for_each(n, &in->open)
	{
		struct ifile *f = container_of(n, struct ifile, link);

		if (f->inode != INODE_ACCESSLOG)
			continue;
		list_for_each_safe(p, t, &f->parked)
		{
			struct vfs_io *io = container_of(p, struct vfs_io, link);

			if (now - io->since_us >= TICK_US) {
				list_del(p);
				list_add_tail(ret, p);
			}
		}
	}
	mtx_unlock(&in->lock);
}

static void tick(struct loop_timer *t)
{
	struct internal *in = container_of(t, struct internal, tick);
	static char idle[] = ACCESSLOG_IDLE;
	struct list_node list, *n;

	list_init(&list);
	collect_idle(in, clock_us(), &list);
	while ((n = list_pop(&list))) {
		struct vfs_io *io = container_of(n, struct vfs_io, link);

		give(io, idle, MIN((size_t)io->len, sizeof(idle) - 1));
	}
	loop_timer_start(t, TICK_US);
}

bool internal_logging(struct internal *in)
{
	return __atomic_load_n(&in->logs, __ATOMIC_RELAXED) > 0;
}

static void stamp(struct str *line)
{
	int64_t sec;
	uint32_t nsec;
	char text[64];
	struct tm tm;
	time_t t;

	clock_real(&sec, &nsec);
	t = (time_t)sec;
	localtime_r(&t, &tm);
	strftime(text, sizeof(text), "%Y.%m.%d %H:%M:%S", &tm);
	str_addf(line, "%s.%06u ", text, nsec / 1000);
}

static void log_add_locked(struct internal *in, struct ifile *f, const struct str *line)
	REQUIRES(in->lock)
{
	(void)in;
	if (f->text.len + line->len > ACCESSLOG_BUFFER) {
		f->lost++;
		return;
	}
	if (f->lost > 0)
		str_addf(&f->text, "# %llu lines lost\n", (unsigned long long)f->lost);
	f->lost = 0;
	str_addn(&f->text, line->s, line->len);
	f->wakes++;
}

/* the next parked read of any log that has something to read, taken off its list */
static struct vfs_io *log_reader(struct internal *in, struct ifile **ret)
{
	struct vfs_io *io = NULL;
	struct list_node *n;

	mtx_lock(&in->lock);
	list_for_each(n, &in->open)
	{
		struct ifile *f = container_of(n, struct ifile, link);

		if (f->inode != INODE_ACCESSLOG || f->text.len == 0 || list_empty(&f->parked))
			continue;
		io = container_of(list_pop(&f->parked), struct vfs_io, link);
		*ret = f;
		break;
	}
	mtx_unlock(&in->lock);
	return io;
}

void internal_log(struct internal *in, const char *fmt, ...)
{
	_cleanup_(str_fini) struct str line = STR_INIT;
	struct list_node *n;
	struct vfs_io *io;
	struct ifile *f = NULL;
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	stamp(&line);
	str_add(&line, text);
	str_add(&line, "\n");
	if (str_error(&line) < 0)
		return;
	mtx_lock(&in->lock);
	list_for_each(n, &in->open)
	{
		f = container_of(n, struct ifile, link);
		if (f->inode == INODE_ACCESSLOG)
			log_add_locked(in, f, &line);
	}
	mtx_unlock(&in->lock);
	/* a file with a parked read is not released, so f stays while its read is ours */
	while ((io = log_reader(in, &f)))
		try_or_park(f, io);
}

/* --- open and close --- */

/* metrics without comments: "name value" lines */
static void stats_text(struct metrics *m, struct str *out)
{
	_cleanup_(str_fini) struct str all = STR_INIT;
	const char *p;

	if (!m)
		return;
	metrics_print(m, &all);
	for (p = str_c(&all); *p;) {
		size_t n = strcspn(p, "\n");

		if (*p != '#' && n > 0) {
			str_addn(out, p, n);
			str_add(out, "\n");
		}
		p += n + (p[n] == '\n');
	}
}

static void woken(void *arg)
{
	serve_parked(arg);
}

static int fill(struct ifile *f)
{
	struct internal *in = f->in;

	switch (f->inode) {
	case INODE_STATS:
		stats_text(in->conf.metrics, &f->text);
		return str_error(&f->text);
	case INODE_CONFIG:
		str_add(&f->text, in->conf.config ? in->conf.config : "{}");
		str_add(&f->text, "\n");
		return str_error(&f->text);
	case INODE_CONTROL:
		if (!in->conf.control)
			return -ENODEV;
		return control_open(in->conf.control, woken, f, &f->control);
	default:
		return 0;
	}
}

int internal_open(struct internal *in, const struct meta_ctx *c, uint64_t inode, struct ifile **ret)
{
	struct ifile *f;
	int r;

	/* also checked by the kernel, unless default_permissions was taken away */
	if (inode != INODE_STATS && c->uid != 0 && c->uid != getuid())
		return -EACCES;
	f = calloc(1, sizeof(*f));
	if (!f)
		return -ENOMEM;
	f->in = in;
	f->inode = inode;
	list_init(&f->parked);
	r = fill(f);
	if (f->control)
		control_as(f->control, c);
	if (r < 0) {
		str_fini(&f->text);
		free(f);
		return r;
	}
	mtx_lock(&in->lock);
	list_add_tail(&in->open, &f->link);
	if (inode == INODE_ACCESSLOG)
		__atomic_add_fetch(&in->logs, 1, __ATOMIC_RELAXED);
	mtx_unlock(&in->lock);
	*ret = f;
	return 0;
}

void internal_close(struct ifile *f)
{
	struct internal *in = f->in;
	struct list_node *n;

	if (f->control)
		control_close(f->control);
	mtx_lock(&in->lock);
	list_del(&f->link);
	if (f->inode == INODE_ACCESSLOG)
		__atomic_sub_fetch(&in->logs, 1, __ATOMIC_RELAXED);
	mtx_unlock(&in->lock);
	/* only at the end of the mount: the kernel releases a file after its reads */
	while ((n = list_pop(&f->parked))) {
		struct vfs_io *io = container_of(n, struct vfs_io, link);

		io->done(io, -EINTR, NULL, 0, 0);
	}
	str_fini(&f->text);
	free(f);
}

int internal_write(struct ifile *f, const void *data, size_t len)
{
	return f->control ? control_write(f->control, data, len) : -EACCES;
}

/* --- life --- */

static void start_tick(void *arg)
{
	struct internal *in = arg;

	loop_timer_init(&in->tick, in->conf.loop, tick);
	loop_timer_start(&in->tick, TICK_US);
}

static void stop_tick(void *arg)
{
	struct internal *in = arg;

	loop_timer_stop(&in->tick);
}

int internal_new(const struct internal_conf *conf, struct internal **ret)
{
	struct internal *in = calloc(1, sizeof(*in));

	if (!in)
		return -ENOMEM;
	in->conf = *conf;
	mtx_init(&in->lock);
	list_init(&in->open);
	clock_real(&in->made.sec, &in->made.nsec);
	if (conf->loop)
		loop_run_sync(conf->loop, start_tick, in);
	*ret = in;
	return 0;
}

void internal_free(struct internal *in)
{
	if (!in)
		return;
	assert(list_empty(&in->open));
	if (in->conf.loop)
		loop_run_sync(in->conf.loop, stop_tick, in);
	control_wait();
	mtx_fini(&in->lock);
	free(in);
}
