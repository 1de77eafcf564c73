/* SPDX-License-Identifier: Apache-2.0 */
/* What the store does about its disks: which block goes where, which disk may be asked, what a
 * keeper does for a disk (its thread), and the watcher, a thread that only counts time: it finds
 * jobs that hang, and what it ends goes on in the chain from there. */
#include <time.h>

#include "cached/recover.h"
#include "cached/store_inner.h"
#include "common/block/blockfile.h"
#include "common/clock.h"
#include "common/thread.h"

enum { VERIFY_MAX = 64, START_WAIT_US = 5000000, MOVE_WAIT_US = 2000000, SHUT_US = 100000 };

int store_place_disks(struct store *s)
{
	struct ring_node nodes[INDEX_DISKS_MAX];
	uint64_t most = 1;

	if (s->conf.n_disks == 1)
		return 0;
	/* a disk's place hangs on its directory's name, so that adding one moves few blocks */
	for (unsigned i = 0; i < s->conf.n_disks; i++)
		most = MAX(most, s->conf.disks[i]->capacity);
	for (unsigned i = 0; i < s->conf.n_disks; i++) {
		double share = (double)s->conf.disks[i]->capacity / (double)most;
		uint32_t weight = (uint32_t)(share * RING_WEIGHT_UNIT);

		nodes[i] = (struct ring_node){.id = s->conf.disks[i]->dir,
					      .weight = weight ? weight : 1};
	}
	return ring_new(nodes, s->conf.n_disks, &s->placement);
}

struct disk *store_disk_of(struct store *s, const struct block_key *k, bool hit)
{
	unsigned i;

	if (!(hit ? index_find(s->ix, k, &i) : index_where(s->ix, k, &i)) ||
	    disk_state(s->conf.disks[i]) == DISK_AWAY)
		return NULL;
	return s->conf.disks[i];
}

/* --- for the keepers --- */

/* each disk may take what the program before left for it, once; the last one frees it */
static int take_over(struct store *s, struct disk *d, const struct hash128 *volume,
		     struct recover_stat *ret)
{
	struct snapshot *sn = s->conf.snapshot;
	uint64_t began = clock_us();
	int r = -ENOENT;

	if (s->disk[d->number].looked)
		return r;
	s->disk[d->number].looked = true;
	if (sn)
		r = snapshot_recover(sn, d, s->ix, volume, ret);
	if (atomic_fetch_sub_explicit(&s->unlooked, 1, memory_order_acq_rel) == 1)
		snapshot_free(sn);
	if (r == 0)
		log_info("cache directory %s: %llu blocks taken over in %.3f s", d->dir,
			 (unsigned long long)ret->blocks, (double)(clock_us() - began) / 1e6);
	return r;
}

/* after the disk was away, what is on it is looked at anew: it may be another one by now */
static int user_recover(struct disk *d, void *arg)
{
	struct store *s = arg;
	struct hash128 volume = store_volume(s);
	struct recover_stat found = {0};
	int r = take_over(s, d, &volume, &found);

	if (r < 0)
		r = recover_disk(d, s->ix, &volume, RECOVER_LENGTHS_US, &found);
	if (r == 0)
		r = store_pins_load(s, d);
	if (r == 0)
		r = snapshot_place(d, &s->disk[d->number].place);
	if (r == 0) {
		d->checked = found.checked;
		atomic_store_explicit(&s->disk[d->number].complete, true, memory_order_release);
	}
	return r == -ESTALE ? -EAGAIN : r;
}

static void user_away(struct disk *d, void *arg)
{
	struct store *s = arg;

	files_drop_of(s->files, &s->disk[d->number]);
}

static void wrong_length(const struct block_key *k, void *arg)
{
	store_drop_damaged(arg, k, "cut short");
}

static struct hash128 current_volume(void *arg)
{
	return store_volume(arg);
}

static void user_clean(struct disk *d, void *arg)
{
	struct store *s = arg;
	struct hash128 keep;
	int n = disk_remove_others(d, current_volume, s);

	if (n > 0)
		log_info("cache directory %s: removed what %d other generation(s) of this volume "
			 "left",
			 d->dir, n);
	/* what start had no time for */
	keep = store_volume(s);
	if (recover_lengths(d, &keep, d->checked, wrong_length, s) == 0)
		d->checked = RECOVER_DIRS;
}

void store_clean(struct store *s)
{
	for (unsigned i = 0; i < s->conf.n_disks; i++)
		disk_order(s->conf.disks[i], DISK_CLEAN);
}

static void wait_for_keepers(struct store *s, uint64_t us)
{
	uint64_t end = clock_us() + us, now;

	for (unsigned i = 0; i < s->conf.n_disks; i++) {
		now = clock_us();
		disk_wait(s->conf.disks[i], end > now ? end - now : 0);
	}
}

int store_move(struct store *s, const struct hash128 *volume)
{
	mtx_lock(&s->lock);
	s->volume = *volume;
	mtx_unlock(&s->lock);
	index_reset(s->ix, volume);
	pins_reset(s->pins, volume);
	for (unsigned i = 0; i < s->conf.n_disks; i++) {
		atomic_store_explicit(&s->disk[i].complete, false, memory_order_relaxed);
		atomic_store_explicit(&s->conf.disks[i]->used, 0, memory_order_relaxed);
		atomic_store_explicit(&s->conf.disks[i]->blocks, 0, memory_order_relaxed);
	}
	files_drop(s->files, NULL);
	for (unsigned i = 0; i < s->conf.n_disks; i++)
		disk_order(s->conf.disks[i], DISK_RECOVER);
	wait_for_keepers(s, MOVE_WAIT_US);
	return 0;
}

/* --- the watcher --- */

static void *watch(void *arg)
{
	struct store *s = arg;
	bool end = false;

	while (!end) {
		for (unsigned i = 0; i < s->conf.n_disks; i++)
			disk_watch(s->conf.disks[i]);
		mtx_lock(&s->lock);
		if (!s->ending)
			(void)cond_wait_us(&s->end, &s->lock, DISKQ_TICK_US);
		end = s->ending;
		mtx_unlock(&s->lock);
	}
	return NULL;
}

int store_start_disks(struct store *s)
{
	int r = 0;

	for (unsigned i = 0; r == 0 && i < s->conf.n_disks; i++)
		r = disk_count(s->conf.disks[i], s->env->metrics);
	if (r == 0)
		r = thread_start("disks", watch, s, &s->watcher);
	if (r < 0)
		return r;
	s->has_watcher = true;
	s->user = (struct disk_user){user_recover, user_clean, user_away, s};
	for (unsigned i = 0; i < s->conf.n_disks; i++)
		disk_use(s->conf.disks[i], &s->user);
	wait_for_keepers(s, START_WAIT_US);
	return 0;
}

/* true: all that was queued for the disks is done */
static bool wait_idle(struct store *s, uint64_t us)
{
	const struct timespec ms = {.tv_nsec = 1000000};
	uint64_t end = clock_us() + us;
	bool idle;

	do {
		idle = true;
		for (unsigned i = 0; idle && i < s->conf.n_disks; i++)
			idle = disk_state(s->conf.disks[i]) == DISK_AWAY ||
			       diskq_idle(s->conf.disks[i]->q[DISK_WRITES]);
	} while (!idle && clock_us() < end && nanosleep(&ms, NULL) == 0);
	return idle;
}

int store_hand_over(struct store *s, uint64_t us)
{
	struct snapshot_row rows[INDEX_DISKS_MAX];
	struct hash128 volume = store_volume(s);
	unsigned n = 0;
	int fd = -1, r;

	store_trim(s); /* what was pinned last is written */
	(void)wait_idle(s, us);
	for (unsigned i = 0; i < s->conf.n_disks; i++)
		diskq_shut(s->conf.disks[i]->q[DISK_WRITES]);
	(void)wait_idle(s, SHUT_US);
	for (unsigned i = 0; i < s->conf.n_disks; i++) {
		struct disk *d = s->conf.disks[i];

		/* what a write that hangs leaves behind only its name tells */
		if (disk_state(d) == DISK_WELL && diskq_idle(d->q[DISK_WRITES]) &&
		    atomic_load_explicit(&s->disk[i].complete, memory_order_acquire))
			rows[n++] = (struct snapshot_row){s->disk[i].place, i, d->checked};
	}
	r = n ? snapshot_write(s->ix, &volume, rows, n, &fd) : -EAGAIN;
	if (r < 0)
		log_warn("the index is not handed over (%s): it will be made of the names of files",
			 strerror(-r));
	return fd;
}

bool store_stop(struct store *s, uint64_t us)
{
	uint64_t end = us == UINT64_MAX ? us : clock_us() + us, now;
	bool ended = true;

	if (s->has_watcher) {
		store_trim(s); /* what was pinned last is written */
		mtx_lock(&s->lock);
		s->ending = true;
		cond_signal(&s->end);
		mtx_unlock(&s->lock);
		(void)pthread_join(s->watcher, NULL);
		s->has_watcher = false;
	}
	atomic_store_explicit(&s->ends, true, memory_order_release);
	for (unsigned i = 0; s->conf.disks && i < s->conf.n_disks; i++) {
		struct disk **d = &s->conf.disks[i];

		now = clock_us();
		if (disk_close(*d, us == UINT64_MAX ? us : end > now ? end - now : 0)) {
			*d = NULL;
			continue;
		}
		ended = false;
		log_warn("cache directory %s still hangs: ending without it", (*d)->dir);
	}
	return ended;
}

/* --- a look at one block --- */

static int verify_pieces(int fd, const struct block_key *k, unsigned char *buf,
			 struct disk_job *job)
{
	size_t skip;
	int r = 0;

	for (uint32_t off = 0; r == 0 && off < k->size; off += FRAME_PIECE) {
		r = blockfile_read(fd, k, off, MIN((uint32_t)FRAME_PIECE, k->size - off), false,
				   buf, &skip);
		diskq_progress(job);
	}
	return r;
}

static int verify_run(struct disk_job *job)
{
	struct block_job *j = container_of(job, struct block_job, job);
	unsigned char *buf = malloc(blockfile_room(0, FRAME_PIECE));
	uint64_t began = clock_us();
	int fd = -1, r = buf ? disk_open_block(j->disk, &j->key, &fd) : -ENOMEM;

	if (r == 0)
		r = verify_pieces(fd, &j->key, buf, job);
	closep(&fd);
	free(buf);
	if (r == -EBADMSG || r == -ENOENT)
		store_drop_damaged(j->store, &j->key, r == -ENOENT ? "missing" : "damaged");
	else if (r < 0)
		disk_result(j->disk, DISK_READS, r, clock_us() - began);
	return r;
}

static void verify_end(struct disk_job *job, int status)
{
	struct block_job *j = container_of(job, struct block_job, job);

	mtx_lock(&j->store->lock);
	j->store->verifying--;
	mtx_unlock(&j->store->lock);
	store_job_over(j, status);
}

void store_verify(struct store *s, const struct block_key *k)
{
	struct disk *d = store_disk_of(s, k, true);
	bool busy;

	if (!d)
		return;
	mtx_lock(&s->lock);
	busy = s->verifying >= VERIFY_MAX;
	if (!busy)
		s->verifying++;
	mtx_unlock(&s->lock);
	if (busy || store_push_job(s, d, DISK_READS, NULL, k, verify_run, verify_end) == 0)
		return;
	mtx_lock(&s->lock);
	s->verifying--;
	mtx_unlock(&s->lock);
}

/* --- free space --- */

static int trim_run(struct disk_job *job)
{
	struct block_job *j = container_of(job, struct block_job, job);
	int r = store_make_room(j->store, j->disk, 0, job);

	if (r == 0 || r == -ENOSPC)
		r = pins_flush(j->store->pins, j->disk->number, j->disk->fd);
	if (r < 0)
		disk_result(j->disk, DISK_WRITES, r, 0);
	return r;
}

static void trimmed(struct store *s, unsigned disk)
{
	mtx_lock(&s->lock);
	s->trimming[disk] = false;
	mtx_unlock(&s->lock);
}

static void trim_end(struct disk_job *job, int status)
{
	struct block_job *j = container_of(job, struct block_job, job);

	trimmed(j->store, j->disk->number);
	store_job_over(j, status);
}

void store_trim(struct store *s)
{
	static const struct block_key none;

	store_pins_expire(s);
	for (unsigned i = 0; i < s->conf.n_disks; i++) {
		struct disk *d = s->conf.disks[i];
		bool busy;

		mtx_lock(&s->lock);
		busy = s->trimming[i];
		s->trimming[i] = true;
		mtx_unlock(&s->lock);
		if (!busy && store_push_job(s, d, DISK_WRITES, NULL, &none, trim_run, trim_end) < 0)
			trimmed(s, i);
	}
}
