/* SPDX-License-Identifier: Apache-2.0 */
/* A thread of its own: the one that ends the mount waits for others. */
#include "client/ending.h"

#include <inttypes.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include "client/maint/paths.h"
#include "client/mount_text.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mtx.h"
#include "common/thread.h"

enum {
	FIRST_US = 2000000,	 /* then it says for the first time that it waits */
	NEXT_US = 10000000,	 /* and then again and again */
	PATIENCE_US = 330000000, /* longer than one slice or block is tried (5 minutes) */
	NAMES_US = 2000000,	 /* to ask Redis for paths */
	NAMED_MAX = 1000,
};

struct ending {
	struct ending_conf conf;
	pthread_t thread;
	int over; /* eventfd */
	struct mtx lock;
	struct cond never;
	bool stopped, gives_up;
	uint64_t stored, stored_us; /* blocks and slices so far; when there was a new one */
};

/* --- giving up --- */

static void lost(const struct writer_file *f, const struct paths *paths)
{
	_cleanup_(str_fini) struct str path = STR_INIT;
	char size[16];

	(void)mount_bytes(f->bytes, size);
	if (paths_get(paths, f->inode, &path) == 0)
		log_error("lost path=%s inode=%" PRIu64 " size=%s", str_c(&path), f->inode, size);
	else if (f->name[0])
		log_error("lost name=%s directory=%" PRIu64 " inode=%" PRIu64 " size=%s", f->name,
			  f->parent, f->inode, size);
	else
		log_error("lost inode=%" PRIu64 " directory=%" PRIu64 " size=%s", f->inode,
			  f->parent, size);
}

/* what is not stored; names as Redis has them, if it answers, else as this mount knows them */
static void name_lost(struct ending *e)
{
	struct writer_file *f = calloc(NAMED_MAX, sizeof(*f));
	struct numtable inodes = {.slot = NULL};
	struct paths paths = {.names = STR_INIT};
	size_t n = f ? writer_pending(e->conf.writer, f, NAMED_MAX) : 0;
	struct scan scan;

	for (size_t i = 0; i < MIN(n, (size_t)NAMED_MAX); i++)
		(void)numtable_at(&inodes, f[i].inode, 0);
	if (meta_redis(e->conf.meta)) {
		scan_init(&scan, meta_redis(e->conf.meta), NULL);
		scan.timeout_us = NAMES_US;
		(void)paths_find(&paths, &scan, &inodes);
	}
	for (size_t i = 0; i < MIN(n, (size_t)NAMED_MAX); i++)
		lost(&f[i], &paths);
	if (n > NAMED_MAX)
		log_error("lost, too: %zu more files", n - NAMED_MAX);
	log_error("given up: what was written to %zu files and not stored is lost", n);
}

static void leave_tree(const char *point)
{
	pid_t pid;

	if (umount2(point, MNT_DETACH) == 0 || errno == EINVAL)
		return;
	pid = fork();
	if (pid == 0) {
		execlp("fusermount3", "fusermount3", "-u", "-z", "-q", "--", point, (char *)NULL);
		_exit(127);
	}
	if (pid > 0)
		(void)waitpid(pid, NULL, 0);
}

/* false: everything ended meanwhile */
static bool give_up(struct ending *e, const char *why)
{
	bool stopped;

	mtx_lock(&e->lock);
	stopped = e->stopped;
	e->gives_up = !stopped;
	mtx_unlock(&e->lock);
	if (stopped)
		return false;
	log_error("giving up: %s", why);
	name_lost(e);
	leave_tree(e->conf.mount_point);
	_exit(1);
}

/* --- looking on --- */

static void say(struct ending *e, uint64_t now)
{
	uint64_t bytes, quiet = now - e->stored_us;
	unsigned files;
	char size[16];

	writer_stat(e->conf.writer, &bytes, &files);
	if (files)
		log_warn("ending: %s of %u files are not stored yet, for %" PRIu64
			 " s nothing was; given up in %" PRIu64
			 " s, or at once and lost with one more SIGTERM or SIGINT",
			 mount_bytes(bytes, size), files, quiet / 1000000,
			 (PATIENCE_US - MIN(quiet, (uint64_t)PATIENCE_US)) / 1000000);
	else
		log_warn("ending: everything that was written is stored; waiting for requests "
			 "under way and for Redis to close the session");
}

static void *look_on(void *arg)
{
	struct ending *e = arg;
	uint64_t next = clock_us() + FIRST_US;

	for (;;) {
		struct pollfd p[] = {{.fd = e->over, .events = POLLIN},
				     {.fd = e->conf.again_fd, .events = POLLIN}};
		uint64_t now = clock_us(), stored = writer_stored(e->conf.writer);
		int n;

		if (stored != e->stored) {
			e->stored = stored;
			e->stored_us = now;
		}
		if (now - e->stored_us >= PATIENCE_US && !give_up(e, "nothing was stored for long"))
			return NULL;
		if (now >= next) {
			say(e, now);
			next = now + NEXT_US;
		}
		n = poll(p, ARRAY_LEN(p), (int)((next - now) / 1000) + 1);
		if (n > 0 && p[0].revents)
			return NULL;
		if (n > 0 && p[1].revents && e->conf.again(e->conf.arg) &&
		    !give_up(e, "told to end a second time"))
			return NULL;
	}
}

struct ending *ending_start(const struct ending_conf *conf)
{
	struct ending *e = calloc(1, sizeof(*e));

	if (!e)
		return NULL;
	e->conf = *conf;
	e->stored = writer_stored(conf->writer);
	e->stored_us = clock_us();
	e->over = eventfd(0, EFD_CLOEXEC);
	mtx_init(&e->lock);
	cond_init(&e->never);
	if (e->over >= 0 && thread_start("ending", look_on, e, &e->thread) == 0)
		return e;
	log_warn("nobody looks on while the mount ends");
	(void)close(e->over);
	mtx_fini(&e->lock);
	cond_fini(&e->never);
	free(e);
	return NULL;
}

void ending_stop(struct ending *e)
{
	uint64_t one = 1;

	if (!e)
		return;
	mtx_lock(&e->lock);
	while (e->gives_up) /* the process ends: nothing it looks at may be freed */
		cond_wait(&e->never, &e->lock);
	e->stopped = true;
	mtx_unlock(&e->lock);
	if (write(e->over, &one, sizeof(one)) < 0)
		log_error("eventfd: %s", strerror(errno));
	(void)pthread_join(e->thread, NULL);
	(void)close(e->over);
	mtx_fini(&e->lock);
	cond_fini(&e->never);
	free(e);
}
