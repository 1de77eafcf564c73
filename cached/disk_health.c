/* SPDX-License-Identifier: Apache-2.0 */
/* When a disk is asked, and when not. Each disk has a keeper: the one thread that may be lost in it
 * without harm. It opens the disk, rebuilds its index, cleans it, and probes it while it is not
 * well. What others find out about it they say with disk_result, and the store's watcher with
 * disk_watch.
 *
 *	state		goes to		when
 *	AWAY		WELL		the keeper attached and probed it, no thread is stuck in
 *					it, and its index is rebuilt
 *	WELL		READ_ONLY	EROFS, or SICK_AFTER writes failed in a row
 *	READ_ONLY	WELL		the probe worked
 *	either		AWAY		it is gone (ENODEV), SICK_AFTER reads failed in a row or
 *					took too long, or one call made no progress for
 *					HANG_TICKS
 *
 * Full is not sick. One line says that a disk left WELL, one that it is back. */
#include "cached/disk.h"

#include <time.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/thread.h"

enum {
	OPEN_US = 3000000, /* at start, for one disk; it goes on by itself afterwards */
	PROBE_FIRST_US = 500000,
	PROBE_MAX_US = 5000000,
	SICK_AFTER = 3,
	HANG_TICKS = 500000 / DISKQ_TICK_US,
	/* writes are buffered and nobody waits for them; the kernel holds them back when it is
	 * behind */
	HANG_WRITE_TICKS = 2000000 / DISKQ_TICK_US,
	PATIENCE_TICKS = 200000 / DISKQ_TICK_US, /* at least that for one read */
	PATIENCE = 10,				 /* times the p99 */
	SAMPLES = 1000,				 /* before that is known */
	QUEUE_TICKS = 1000000 / DISKQ_TICK_US,	 /* for a read to begin */
	LEARN_TICKS = 1000000 / DISKQ_TICK_US,	 /* between looks at the p99 */
};

struct disk_health {
	atomic_uint state, failures[DISK_WORKS], stuck[DISK_WORKS];
	uint64_t ticks, patience; /* the watcher's */
	pthread_t keeper;
	bool has_keeper;
	struct mtx lock; /* over the members below */
	struct cond wake, done;
	const struct disk_user *user;
	unsigned orders;
	bool working; /* the keeper carries some out */
	bool closing, ended;
	bool said;	/* that it is not well */
	bool opened;	/* attached once */
	int open_error; /* of the first attempt */
	bool tried;
	struct str why; /* the same in words */
	uint64_t pause_us;
};

enum disk_state disk_state(const struct disk *d)
{
	return atomic_load_explicit(&d->health->state, memory_order_acquire);
}

/* --- leaving --- */

/* to a worse state; true: it was better */
static bool worsen(struct disk_health *h, unsigned state)
{
	unsigned old = atomic_load_explicit(&h->state, memory_order_relaxed);

	while (old < state)
		if (atomic_compare_exchange_weak_explicit(
			    &h->state, &old, state, memory_order_acq_rel, memory_order_relaxed))
			return true;
	return false;
}

static void set_aside(struct disk *d, unsigned state, const char *what)
{
	struct disk_health *h = d->health;
	bool said;

	if (!worsen(h, state))
		return;
	mtx_lock(&h->lock);
	said = h->said;
	h->said = true;
	h->pause_us = PROBE_FIRST_US;
	cond_broadcast(&h->wake);
	mtx_unlock(&h->lock);
	if (!said) {
		metric_add(d->metrics.set_aside, 1);
		log_warn("cache directory %s is set aside%s: %s; it is tried again, and taken back "
			 "when it works",
			 d->dir, state == DISK_READ_ONLY ? " for new blocks" : "", what);
	}
	diskq_shut(d->q[DISK_WRITES]);
	if (state == DISK_AWAY)
		diskq_shut(d->q[DISK_READS]);
}

static void fail(struct disk *d, enum disk_work w, int r)
{
	unsigned n =
		1 + atomic_fetch_add_explicit(&d->health->failures[w], 1, memory_order_relaxed);
	char what[96];

	if (r == -ENODEV) {
		set_aside(d, DISK_AWAY, "it is gone");
		return;
	}
	if (n < SICK_AFTER && r != -EROFS)
		return;
	(void)snprintf(what, sizeof(what), "%s: %s", w == DISK_READS ? "reading" : "writing",
		       r == -ETIMEDOUT ? "it is slow" : strerror(-r));
	set_aside(d, w == DISK_READS ? DISK_AWAY : DISK_READ_ONLY, what);
}

void disk_result(struct disk *d, enum disk_work w, int r, uint64_t us)
{
	metric_observe_us(d->metrics.seconds[w], us);
	if (r == -ENOSPC || r == -EDQUOT || r == -ENOMEM)
		return;
	if (r < 0) {
		metric_add(d->metrics.errors, 1);
		fail(d, w, r);
	} else if (atomic_load_explicit(&d->health->failures[w], memory_order_relaxed)) {
		atomic_store_explicit(&d->health->failures[w], 0, memory_order_relaxed);
	}
}

/* how long one read may take: what is far from usual is given up before it counts as a hang */
static uint64_t patience(const struct disk *d)
{
	struct metric *m = d->metrics.seconds[DISK_READS];
	uint64_t ticks;

	if (!m || metric_value(m) < SAMPLES)
		return HANG_TICKS;
	ticks = PATIENCE * metric_quantile_us(m, 0.99) / DISKQ_TICK_US;
	ticks = MAX(ticks, (uint64_t)PATIENCE_TICKS);
	return MIN(ticks, (uint64_t)HANG_TICKS);
}

static void look(struct disk *d, enum disk_work w, uint64_t run, uint64_t queue, uint64_t hang)
{
	struct diskq_look look;

	diskq_watch(d->q[w], run, queue, &look);
	atomic_store_explicit(&d->health->stuck[w], look.stuck, memory_order_relaxed);
	if (look.given_up)
		metric_add(d->metrics.given_up, look.given_up);
	if (look.longest > hang)
		set_aside(d, DISK_AWAY, "it hangs");
	else if (look.given_up && disk_state(d) != DISK_AWAY)
		fail(d, w, -ETIMEDOUT);
}

void disk_watch(struct disk *d)
{
	struct disk_health *h = d->health;

	if (h->ticks++ % LEARN_TICKS == 0)
		h->patience = patience(d);
	look(d, DISK_READS, h->patience, QUEUE_TICKS, HANG_TICKS);
	look(d, DISK_WRITES, HANG_WRITE_TICKS, UINT64_MAX, HANG_WRITE_TICKS);
}

/* --- the keeper --- */

static int attach(struct disk *d)
{
	struct disk_health *h = d->health;
	struct str err = STR_INIT;
	int r = disk_attach(d, &err);

	mtx_lock(&h->lock);
	if (r == 0)
		h->opened = true;
	if (!h->tried) {
		h->tried = true;
		h->open_error = r;
		str_add(&h->why, str_c(&err));
		cond_broadcast(&h->done);
	}
	mtx_unlock(&h->lock);
	str_fini(&err);
	return r;
}

static bool is_stuck(const struct disk_health *h)
{
	return atomic_load_explicit(&h->stuck[DISK_READS], memory_order_relaxed) ||
	       atomic_load_explicit(&h->stuck[DISK_WRITES], memory_order_relaxed);
}

static int recover(struct disk *d, const struct disk_user *u)
{
	return u ? u->recover(d, u->arg) : -EAGAIN;
}

/* unless something worse was found out meanwhile */
static void take_back(struct disk *d, unsigned from)
{
	struct disk_health *h = d->health;
	bool said;

	for (unsigned w = 0; w < DISK_WORKS; w++) {
		atomic_store_explicit(&h->failures[w], 0, memory_order_relaxed);
		diskq_open(d->q[w]);
	}
	if (!atomic_compare_exchange_strong_explicit(&h->state, &from, DISK_WELL,
						     memory_order_acq_rel, memory_order_relaxed)) {
		diskq_shut(d->q[DISK_READS]);
		diskq_shut(d->q[DISK_WRITES]);
		return;
	}
	mtx_lock(&h->lock);
	said = h->said;
	h->said = false;
	mtx_unlock(&h->lock);
	if (said)
		log_info("cache directory %s works again", d->dir);
}

static void try_back(struct disk *d, const struct disk_user *u)
{
	struct disk_health *h = d->health;
	unsigned from = disk_state(d);
	bool away = from == DISK_AWAY;
	int r;

	if (away && u)
		u->away(d, u->arg);
	r = attach(d);
	if (r == 0)
		r = disk_probe(d);
	if (r == 0 && is_stuck(h))
		r = -EBUSY;
	if (r == 0 && away)
		r = recover(d, u);
	if (r == 0)
		(void)disk_keep_node(d); /* full or not, it is good for its blocks */
	if (r == 0) {
		take_back(d, from);
		return;
	}
	mtx_lock(&h->lock);
	h->pause_us = MIN(2 * h->pause_us, (uint64_t)PROBE_MAX_US);
	mtx_unlock(&h->lock);
}

/* orders, or time for a probe: *ret_orders, *ret_user; false: the end */
static bool next_work(struct disk *d, unsigned *ret_orders, const struct disk_user **ret_user)
{
	struct disk_health *h = d->health;
	bool waited = false;

	mtx_lock(&h->lock);
	h->working = false;
	cond_broadcast(&h->done);
	while (!h->closing && !h->orders && h->tried && !waited) {
		if (disk_state(d) == DISK_WELL || (!h->user && h->opened))
			cond_wait(&h->wake, &h->lock);
		else
			waited = !cond_wait_us(&h->wake, &h->lock, h->pause_us);
	}
	h->working = true;
	*ret_orders = h->orders;
	*ret_user = h->user;
	h->orders = 0;
	waited = !h->closing;
	mtx_unlock(&h->lock);
	return waited;
}

static void *keep(void *arg)
{
	struct disk *d = arg;
	struct disk_health *h = d->health;
	const struct disk_user *u;
	unsigned orders;

	while (next_work(d, &orders, &u)) {
		enum disk_state before = disk_state(d);

		if (before != DISK_WELL)
			try_back(d, u);
		if (!u || disk_state(d) == DISK_AWAY)
			continue;
		if ((orders & DISK_RECOVER) && before != DISK_AWAY)
			(void)recover(d, u);
		if (orders & DISK_CLEAN)
			u->clean(d, u->arg);
	}
	mtx_lock(&h->lock);
	h->ended = true;
	cond_broadcast(&h->done);
	mtx_unlock(&h->lock);
	return NULL;
}

void disk_order(struct disk *d, unsigned orders)
{
	struct disk_health *h = d->health;

	mtx_lock(&h->lock);
	h->orders |= orders;
	cond_broadcast(&h->wake);
	mtx_unlock(&h->lock);
}

void disk_node(struct disk *d, char ret[DISK_NODE_ID + 1])
{
	struct disk_health *h = d->health;

	ret[0] = '\0';
	mtx_lock(&h->lock);
	if (h->opened)
		memcpy(ret, d->node, sizeof(d->node));
	mtx_unlock(&h->lock);
}

void disk_set_node(struct disk *d, const char id[DISK_NODE_ID + 1])
{
	memcpy(d->wanted, id, sizeof(d->wanted));
}

void disk_use(struct disk *d, const struct disk_user *u)
{
	struct disk_health *h = d->health;

	mtx_lock(&h->lock);
	h->user = u;
	h->orders |= DISK_RECOVER;
	h->pause_us = PROBE_FIRST_US;
	cond_broadcast(&h->wake);
	mtx_unlock(&h->lock);
}

void disk_wait(struct disk *d, uint64_t us)
{
	struct disk_health *h = d->health;
	uint64_t end = clock_us() + us, now;

	mtx_lock(&h->lock);
	while ((h->orders || h->working) && (now = clock_us()) < end)
		(void)cond_wait_us(&h->done, &h->lock, end - now);
	mtx_unlock(&h->lock);
}

/* --- life --- */

static int health_new(struct disk *d)
{
	struct disk_health *h = calloc(1, sizeof(*h));
	int r;

	if (!h)
		return -ENOMEM;
	d->health = h;
	h->state = DISK_AWAY;
	h->patience = HANG_TICKS;
	h->pause_us = PROBE_FIRST_US;
	mtx_init(&h->lock);
	cond_init(&h->wake);
	cond_init(&h->done);
	r = thread_start("keeper", keep, d, &h->keeper);
	h->has_keeper = r == 0;
	return r;
}

static int disk_new(const char *dir, const char *uuid, unsigned number, struct disk **ret)
{
	struct disk *d = calloc(1, sizeof(*d));
	char name[16];
	int r = 0;

	if (!d)
		return -ENOMEM;
	*ret = d;
	d->fd = -1;
	d->lock_fd = -1;
	d->number = number;
	mtx_init(&d->lock);
	d->dir = strdup(dir);
	d->uuid = strdup(uuid);
	if (!d->dir || !d->uuid)
		return -ENOMEM;
	(void)snprintf(name, sizeof(name), "read%u", number);
	r = diskq_new(name, DISK_READ_THREADS, &d->q[DISK_READS]);
	(void)snprintf(name, sizeof(name), "write%u", number);
	return r < 0 ? r : diskq_new(name, DISK_WRITE_THREADS, &d->q[DISK_WRITES]);
}

/* what the user has to put right, and no disk does by itself */
static bool is_wrong(int r)
{
	return r == -EBUSY || r == -EEXIST || r == -EACCES || r == -EPERM || r == -ENOTDIR ||
	       r == -ELOOP || r == -ENAMETOOLONG || r == -ENOMEM || r == -EMFILE || r == -ENFILE;
}

/* the first attempt: 0, or what is wrong */
static int opened(struct disk *d, struct str *err)
{
	struct disk_health *h = d->health;
	uint64_t end = clock_us() + OPEN_US, now;
	int r;

	mtx_lock(&h->lock);
	while (!h->tried && (now = clock_us()) < end)
		(void)cond_wait_us(&h->done, &h->lock, end - now);
	r = h->tried ? h->open_error : -ETIMEDOUT;
	h->said = r < 0 && !is_wrong(r);
	if (r < 0 && h->tried)
		str_add(err, str_c(&h->why));
	mtx_unlock(&h->lock);
	if (r < 0 && !err->len)
		str_addf(err, "cache directory %s: %s", d->dir,
			 r == -ETIMEDOUT ? "it hangs" : strerror(-r));
	if (r == 0 || is_wrong(r))
		return r;
	log_warn("%s: set aside; it is tried again, and taken back when it works", str_c(err));
	str_reset(err);
	return 0;
}

int disk_open(const char *dir, const char *uuid, unsigned number, uint64_t capacity,
	      double free_ratio, struct disk **ret, struct str *err)
{
	struct disk *d = NULL;
	int r = disk_new(dir, uuid, number, &d);

	if (r == 0) {
		d->capacity = capacity;
		d->free_ratio = free_ratio;
		r = health_new(d);
	}
	if (r == 0)
		r = opened(d, err);
	if (r < 0) {
		if (!err->len)
			str_addf(err, "cache directory %s: %s", dir, strerror(-r));
		(void)disk_close(d, UINT64_MAX);
		return r;
	}
	*ret = d;
	return 0;
}

static bool keeper_ended(struct disk_health *h, uint64_t end)
{
	uint64_t now;
	bool ended;

	mtx_lock(&h->lock);
	h->closing = true;
	cond_broadcast(&h->wake);
	while (h->has_keeper && !h->ended && (now = clock_us()) < end)
		(void)cond_wait_us(&h->done, &h->lock, MIN(end - now, (uint64_t)OPEN_US));
	ended = !h->has_keeper || h->ended;
	mtx_unlock(&h->lock);
	if (ended && h->has_keeper)
		(void)pthread_join(h->keeper, NULL);
	h->has_keeper = h->has_keeper && !ended;
	return ended;
}

static uint64_t left(uint64_t end)
{
	uint64_t now = clock_us();

	return end == UINT64_MAX ? end : end > now ? end - now : 0;
}

/* the lock goes first: a thread that hangs may outlive the process's main thread for long */
bool disk_close(struct disk *d, uint64_t us)
{
	uint64_t end = us == UINT64_MAX ? us : clock_us() + us;
	int lock_fd;

	if (!d)
		return true;
	for (unsigned w = 0; w < DISK_WORKS; w++) {
		if (!diskq_free(d->q[w], left(end)))
			break;
		d->q[w] = NULL;
	}
	if (d->q[DISK_READS] || d->q[DISK_WRITES] || (d->health && !keeper_ended(d->health, end))) {
		lock_fd = atomic_exchange_explicit(&d->lock_fd, -1, memory_order_relaxed);
		closep(&lock_fd);
		return false;
	}
	if (d->health) {
		cond_fini(&d->health->wake);
		cond_fini(&d->health->done);
		mtx_fini(&d->health->lock);
		str_fini(&d->health->why);
		free(d->health);
	}
	lock_fd = d->lock_fd;
	closep(&lock_fd);
	closep(&d->fd);
	mtx_fini(&d->lock);
	free(d->dir);
	free(d->uuid);
	free(d);
	return true;
}

/* --- metrics --- */

static double value_state(void *arg)
{
	return disk_state(arg);
}

static double value_bytes(void *arg)
{
	struct disk *d = arg;

	return (double)atomic_load_explicit(&d->used, memory_order_relaxed);
}

static double value_blocks(void *arg)
{
	struct disk *d = arg;

	return (double)atomic_load_explicit(&d->blocks, memory_order_relaxed);
}

static double value_capacity(void *arg)
{
	struct disk *d = arg;

	return (double)d->capacity;
}

static double value_queue(void *arg)
{
	struct disk *d = arg;

	return diskq_waiting(d->q[DISK_READS]) + diskq_waiting(d->q[DISK_WRITES]);
}

static int count_values(struct disk *d, struct metrics *m, const char *labels)
{
	static const struct {
		const char *name, *help;
		double (*fn)(void *arg);
	} rows[] = {
		{"stoke_cached_disk_state", "0: well, 1: set aside for new blocks, 2: set aside",
		 value_state},
		{"stoke_cached_disk_bytes", "bytes of the directory in use for blocks",
		 value_bytes},
		{"stoke_cached_disk_capacity_bytes", "bytes that blocks may use there",
		 value_capacity},
		{"stoke_cached_disk_blocks", "blocks there", value_blocks},
		{"stoke_cached_disk_queue",
		 "reads and writes that wait for the directory's threads", value_queue},
	};
	int r = 0;

	for (size_t i = 0; r == 0 && i < ARRAY_LEN(rows); i++)
		r = metrics_callback(m, rows[i].name, labels, METRIC_GAUGE, rows[i].help,
				     rows[i].fn, d);
	return r;
}

static int count_metrics(struct disk *d, struct metrics *m, const char *labels)
{
	struct disk_metrics *dm = &d->metrics;

	dm->seconds[DISK_READS] =
		metrics_get(m, "stoke_cached_disk_read_seconds", labels, METRIC_HISTOGRAM,
			    "time for the first bytes of a block, or to open it");
	dm->seconds[DISK_WRITES] =
		metrics_get(m, "stoke_cached_disk_write_seconds", labels, METRIC_HISTOGRAM,
			    "time to write a block, with the room made for it");
	dm->errors = metrics_get(m, "stoke_cached_disk_errors_total", labels, METRIC_COUNTER,
				 "calls that the disk failed");
	dm->given_up = metrics_get(m, "stoke_cached_disk_given_up_total", labels, METRIC_COUNTER,
				   "reads and writes that took too long and went elsewhere");
	dm->set_aside = metrics_get(m, "stoke_cached_disk_set_aside_total", labels, METRIC_COUNTER,
				    "times that the directory was set aside");
	dm->skipped = metrics_get(m, "stoke_cached_disk_skipped_total", labels, METRIC_COUNTER,
				  "blocks not kept there: full, too many on their way, or failed");
	return dm->seconds[DISK_READS] && dm->seconds[DISK_WRITES] && dm->errors && dm->given_up &&
			       dm->set_aside && dm->skipped
		       ? 0
		       : -ENOMEM;
}

int disk_count(struct disk *d, struct metrics *m)
{
	struct str labels = STR_INIT;
	int r = 0;

	if (m) {
		metrics_label(&labels, "dir", d->dir);
		r = count_metrics(d, m, str_c(&labels));
		if (r == 0)
			r = count_values(d, m, str_c(&labels));
	}
	str_fini(&labels);
	return r;
}
