/* SPDX-License-Identifier: Apache-2.0 */
/* The scrubber: a thread that walks over the index and keeps the pace; the reading is a job of the
 * block's disk. A job that hangs in its disk is given up there (diskq.h), and keeps its own memory
 * until it comes back.
 *
 *	idle	the pace, or reads that wait		the thread sleeps
 *	asked	a job is on its way			the thread waits for its end */
#include "cached/scrub.h"

#include <fcntl.h>
#include <sys/syscall.h>

#include "cached/store_inner.h"
#include "common/block/blockfile.h"
#include "common/clock.h"
#include "common/parse.h"
#include "common/thread.h"

enum {
	STEP = 1 << 20, /* bytes read at once; whole pieces */
	ALIGN = 4096,
	BUSY_US = 100000,   /* until a busy disk is looked at again */
	EMPTY_US = 1000000, /* until an empty store is */
	WEEK_S = 7 * 24 * 3600,
	/* ioprio_set(2): behind the others, but not the idle class, in which a read may starve so
	 * long that the disk would seem to hang */
	LAST_LEVEL = 2 << 13 | 7,
};

struct scrub {
	struct store *store;
	uint64_t rate; /* 0: a pass a week */
	uint64_t read; /* blocks of this pass; the thread's */
	pthread_t thread;
	struct mtx lock; /* over the members below */
	struct cond changed;
	bool stop, asked;
};

struct scrub_job {
	struct disk_job job;
	struct scrub *scrub;
	struct store *store;
	struct disk *disk;
	struct block_key key;
};

/* all of [at, at + n) that the file has, at least least; aligned for O_DIRECT */
static int read_part(int fd, unsigned char *buf, size_t n, off_t at, size_t least)
{
	size_t have = 0;

	while (have < least) {
		ssize_t got = pread(fd, buf + have, n - have, at + (off_t)have);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return got < 0 ? -errno : -EBADMSG;
		have += (size_t)got;
	}
	return 0;
}

/* buf: STEP + ALIGN, aligned. The sums stand behind the bytes, and are read first. */
static int verify(int fd, const struct block_key *k, unsigned char *buf, struct disk_job *job)
{
	size_t sums_len = msg_sums_len(k->size), tail = k->size % ALIGN;
	uint8_t *sums = malloc(sums_len);
	int r = sums ? 0 : -ENOMEM;

	if (r == 0)
		r = read_part(fd, buf, ROUND_UP(tail + sums_len, (size_t)ALIGN),
			      (off_t)(k->size - tail), tail + sums_len);
	if (r == 0)
		memcpy(sums, buf + tail, sums_len);
	for (uint32_t off = 0; r == 0 && off < k->size; off += STEP) {
		size_t n = MIN((size_t)STEP, (size_t)(k->size - off));

		r = read_part(fd, buf, ROUND_UP(n, (size_t)ALIGN), off, n);
		if (r == 0)
			r = block_sums_check(k, off, buf, n, sums + msg_sums_len(off), NULL);
		diskq_progress(job);
	}
	free(sums);
	return r;
}

static int verify_file(struct scrub_job *j)
{
	_cleanup_(closep) int fd = -1;
	void *buf = NULL;
	bool direct;
	int r = disk_open_block(j->disk, &j->key, &fd);

	if (r < 0)
		return r;
	if (posix_memalign(&buf, ALIGN, STEP + ALIGN) != 0)
		return -ENOMEM;
	direct = fcntl(fd, F_SETFL, O_DIRECT) == 0;
	r = verify(fd, &j->key, buf, &j->job);
	if (r == -EINVAL && direct) { /* a file system that says so only when it reads */
		direct = false;
		r = fcntl(fd, F_SETFL, 0) < 0 ? -errno : verify(fd, &j->key, buf, &j->job);
	}
	if (!direct)
		(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	free(buf);
	return r;
}

static int run(struct disk_job *job)
{
	struct scrub_job *j = container_of(job, struct scrub_job, job);
	const struct counters *c = j->store->conf.counters;
	uint64_t began = clock_us();
	int r;

	(void)syscall(SYS_ioprio_set, 1, 0, LAST_LEVEL);
	r = verify_file(j);
	(void)syscall(SYS_ioprio_set, 1, 0, 0);
	if (r == -EBADMSG || r == -ENOENT || r == -EIO) {
		if (!index_peek(j->store->ix, &j->key))
			return 0; /* it left meanwhile */
		if (r == -EIO)
			disk_result(j->disk, DISK_READS, r, clock_us() - began);
		else if (disk_there(j->disk) < 0)
			return r;
		metric_add(c->scrub_damaged, 1);
		store_drop_damaged(j->store, &j->key,
				   r == -ENOENT ? "missing"
				   : r == -EIO	? "unreadable"
						: "damaged");
	} else if (r == 0) {
		metric_add(c->scrubbed, 1);
		metric_add(c->scrubbed_bytes, j->key.size);
	}
	return r;
}

static void late(struct disk_job *job, int status)
{
	(void)status;
	free(container_of(job, struct scrub_job, job));
}

static void end(struct disk_job *job, int status)
{
	struct scrub_job *j = container_of(job, struct scrub_job, job);
	struct scrub *sc = j->scrub;

	if (status != -ETIMEDOUT)
		free(j);
	mtx_lock(&sc->lock);
	sc->asked = false;
	cond_signal(&sc->changed);
	mtx_unlock(&sc->lock);
}

/* until the end or for us; false: to stop */
static bool sleep_for(struct scrub *sc, uint64_t us)
{
	uint64_t until = clock_us() + us, now;
	bool go;

	mtx_lock(&sc->lock);
	while (!sc->stop && (now = clock_us()) < until)
		(void)cond_wait_us(&sc->changed, &sc->lock, until - now);
	go = !sc->stop;
	mtx_unlock(&sc->lock);
	return go;
}

static void ask(struct scrub *sc, struct disk *d, const struct block_key *k)
{
	struct scrub_job *j = calloc(1, sizeof(*j));

	if (!j)
		return;
	*j = (struct scrub_job){.job = {.run = run, .end = end, .late = late},
				.scrub = sc,
				.store = sc->store,
				.disk = d,
				.key = *k};
	mtx_lock(&sc->lock);
	sc->asked = true;
	mtx_unlock(&sc->lock);
	if (diskq_push(d->q[DISK_READS], &j->job) < 0) {
		end(&j->job, -EHOSTDOWN);
		return;
	}
	mtx_lock(&sc->lock);
	while (sc->asked)
		cond_wait(&sc->changed, &sc->lock);
	mtx_unlock(&sc->lock);
}

/* how long a block of this size may take at this pace */
static uint64_t pace_us(struct scrub *sc, uint32_t size)
{
	uint64_t used = 0;

	if (sc->rate)
		return (uint64_t)((double)size * 1e6 / (double)sc->rate);
	for (unsigned i = 0; i < sc->store->conf.n_disks; i++)
		used += atomic_load_explicit(&sc->store->conf.disks[i]->used, memory_order_relaxed);
	return (uint64_t)((double)size / (double)MAX(used, UINT64_C(1)) * WEEK_S * 1e6);
}

/* false: to stop */
static bool scrub_block(struct scrub *sc, const struct block_key *k)
{
	struct disk *d = store_disk_of(sc->store, k, false);

	if (!d)
		return true; /* gone, or its disk is away */
	if (!sleep_for(sc, pace_us(sc, k->size)))
		return false;
	while (diskq_waiting(d->q[DISK_READS]) > 0)
		if (!sleep_for(sc, BUSY_US))
			return false;
	ask(sc, d, k);
	sc->read++;
	return true;
}

static void *walk(void *arg)
{
	struct scrub *sc = arg;
	struct block_key k[INDEX_EACH_MIN];
	/* not always from the same shard on: a daemon may be started more often than a pass ends */
	uint64_t cursor = clock_us() % 16 << 32;
	size_t n;

	for (;;) {
		if (store_each(sc->store, &cursor, k, INDEX_EACH_MIN, &n) < 0)
			cursor = n = 0;
		for (size_t i = 0; i < n; i++)
			if (!scrub_block(sc, &k[i]))
				return NULL;
		if (cursor)
			continue;
		if (sc->read)
			metric_add(sc->store->conf.counters->scrub_passes, 1);
		else if (!sleep_for(sc, EMPTY_US))
			return NULL;
		sc->read = 0;
	}
}

int scrub_start(struct store *s, const char *rate, struct scrub **ret, struct str *err)
{
	uint64_t bytes = 0;
	struct scrub *sc;
	int r;

	if (strcmp(rate, "weekly") != 0) {
		r = parse_size(rate, 1, &bytes);
		if (r < 0)
			str_addf(err, "--scrub-rate %s: give bytes a second (1M), weekly, or 0",
				 rate);
		if (r < 0 || !bytes)
			return r;
	}
	sc = calloc(1, sizeof(*sc));
	if (!sc)
		return -ENOMEM;
	sc->store = s;
	sc->rate = bytes;
	mtx_init(&sc->lock);
	cond_init(&sc->changed);
	r = thread_start("scrub", walk, sc, &sc->thread);
	if (r < 0) {
		free(sc);
		return r;
	}
	*ret = sc;
	return 0;
}

void scrub_stop(struct scrub *sc)
{
	if (!sc)
		return;
	mtx_lock(&sc->lock);
	sc->stop = true;
	cond_signal(&sc->changed);
	mtx_unlock(&sc->lock);
	(void)pthread_join(sc->thread, NULL);
	cond_fini(&sc->changed);
	mtx_fini(&sc->lock);
	free(sc);
}
