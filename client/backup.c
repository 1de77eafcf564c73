/* SPDX-License-Identifier: Apache-2.0 */
/* The dump goes into a temporary file without a name, and from there to the store as one object: it
 * is as large as the volume's metadata, and memory is not for that. */
#include "client/backup.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include "client/maint/dump.h"
#include "client/meta/jobs.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mtx.h"
#include "common/object/crypt.h"
#include "common/thread.h"

enum {
	LOOKS = 10, /* an interval */
	DAY = 86400,
	KEEP_ALL = 2,
	PUT_US = 300000000,
	CALL_US = 30000000,
	DELETES = 1000,
	SIZE_MAX_BYTES = 1 << 30, /* of one PUT, and of one message of the cipher */
};

struct backup {
	struct backup_conf conf;
	struct meta_progress progress; /* its cancel ends a dump */
	pthread_t thread;
	struct mtx lock;
	struct cond wake;
	bool stop;
	struct metric *last, *failed;
};

/* --- which are kept --- */

/* in which window after the first two days, 1 and up; 0: in those */
static uint64_t window(int64_t age_sec)
{
	uint64_t days;

	if (age_sec <= KEEP_ALL * DAY)
		return 0;
	/* a window's younger edge is its own: exactly three days is the first window's */
	days = ((uint64_t)age_sec + DAY - 1) / DAY - KEEP_ALL;
	if (days <= 12) /* to two weeks, by the day */
		return days;
	days -= 12;
	if (days <= 49) /* to 63 days, by the week */
		return 12 + (days + 6) / 7;
	return 19 + (days - 49 + 29) / 30;
}

static bool time_of(const char *name, int64_t *ret)
{
	struct tm tm = {.tm_year = 0};
	const char *end;

	if (strlen(name) != BACKUP_NAME_LEN || strncmp(name, "dump-", 5) != 0)
		return false;
	end = strptime(name + 5, "%Y-%m-%d-%H%M%S", &tm);
	if (!end || strcmp(end, ".json.gz") != 0)
		return false;
	*ret = (int64_t)timegm(&tm);
	return true;
}

void backup_thin(const char **names, size_t n, int64_t now_sec, size_t *ret_n)
{
	uint64_t last = 0, w;
	size_t out = 0;
	int64_t at;

	/* from the oldest: the first of each window stays */
	for (size_t i = 0; i < n; i++) {
		if (!time_of(names[i], &at))
			continue;
		w = window(now_sec - at);
		if (w && w == last)
			names[out++] = names[i];
		last = w;
	}
	*ret_n = out;
}

/* --- in the object store --- */

static int list_all(struct backup *b, const char *prefix, struct object_info **ret, size_t *ret_n)
{
	struct object_info *all = NULL;
	size_t n = 0;
	bool more = true;
	int r = 0;

	while (more && r == 0) {
		struct object_req req = {.op = OBJECT_LIST,
					 .key = prefix,
					 .start_after = n ? all[n - 1].key : NULL,
					 .deadline_us = clock_us() + CALL_US};
		struct object_info *bigger;

		r = object_run(b->conf.store, &req);
		if (r)
			break;
		bigger = reallocarray(all, n + req.n_list + 1, sizeof(*all));
		if (bigger) {
			all = bigger;
			memcpy(all + n, req.list, req.n_list * sizeof(*all));
			n += req.n_list;
			req.n_list = 0; /* their names are ours now */
		}
		more = req.more && n > 0;
		r = bigger ? 0 : -ENOMEM;
		object_list_free(&req);
	}
	*ret = all;
	*ret_n = n;
	return r;
}

static void thin_out(struct backup *b, const char *prefix, int64_t now_sec)
{
	size_t cut = strlen(prefix) - strlen("dump-"), n = 0, gone = 0;
	struct object_info *all = NULL;
	const char **names = NULL;
	int r = list_all(b, prefix, &all, &n);

	if (r == 0 && !(names = calloc(n + 1, sizeof(*names))))
		r = -ENOMEM;
	for (size_t i = 0; i < n && r == 0; i++)
		names[i] = all[i].key + cut;
	if (r == 0)
		backup_thin(names, n, now_sec, &gone);
	for (size_t at = 0; at < gone && r == 0; at += DELETES) {
		struct object_req req = {.op = OBJECT_DELETE_MANY,
					 .deadline_us = clock_us() + CALL_US};

		req.n_keys = MIN((size_t)DELETES, gone - at);
		for (size_t i = 0; i < req.n_keys; i++)
			names[at + i] -= cut;
		req.keys = names + at;
		r = object_run(b->conf.store, &req);
	}
	if (r && r != -ENOENT)
		log_warn("old backups of the metadata are left: %s", strerror(-r));
	for (size_t i = 0; i < n; i++)
		free(all[i].key);
	free(all);
	free(names);
}

static int put(struct backup *b, const char *key, const void *data, size_t n, struct str *err)
{
	const struct coding c = {CODEC_NONE, b->conf.crypt};
	struct object_req req = {.op = OBJECT_PUT,
				 .key = key,
				 .deadline_us = clock_us() + PUT_US,
				 .persist_us = PUT_US};
	_cleanup_(freep) unsigned char *sealed = NULL;
	ssize_t len = (ssize_t)n;
	int r;

	if (b->conf.crypt) {
		sealed = malloc(coding_bound(c, n));
		len = sealed ? coding_encode(c, data, n, sealed, coding_bound(c, n)) : -ENOMEM;
	}
	if (len < 0)
		return (int)len;
	req.buf = sealed ? sealed : (unsigned char *)(uintptr_t)data;
	req.cap = (size_t)len;
	r = object_run(b->conf.store, &req);
	if (r && req.reason[0])
		str_addf(err, "%s", req.reason);
	return r;
}

static int upload(struct backup *b, const char *key, const char *path, struct str *err)
{
	_cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	void *map;
	int r;

	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (st.st_size <= 0 || st.st_size > SIZE_MAX_BYTES)
		return -EFBIG;
	map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (map == MAP_FAILED)
		return -errno;
	r = put(b, key, map, (size_t)st.st_size, err);
	(void)munmap(map, (size_t)st.st_size);
	return r;
}

/* --- making one --- */

static void ignore(void *arg, const char *line)
{
	(void)arg;
	log_warn("backup of the metadata: %s", line);
}

/* path ends in .gz; readable by this user alone */
static int dump_into(struct backup *b, const char *path, struct str *err)
{
	const struct dump_conf conf = {.skip_trash = b->conf.skip_trash, .warn = ignore};
	struct dumpfile *f;
	struct scan scan;
	int r = dumpfile_create(path, &f), e;

	if (r)
		return r;
	scan_init(&scan, meta_redis(b->conf.meta), &b->progress.cancel);
	r = meta_dump(&scan, meta_setting(b->conf.meta), &conf, f, &b->progress, err);
	e = dumpfile_close(f, r == 0);
	return r ? r : e;
}

static void make(struct backup *b, int64_t now_sec)
{
	_cleanup_(str_fini) struct str err = STR_INIT, path = STR_INIT, key = STR_INIT,
				       prefix = STR_INIT;
	const char *dir = getenv("TMPDIR");
	uint64_t begun = clock_us();
	const time_t now = (time_t)now_sec;
	char stamp[24] = "";
	uint32_t random;
	struct tm tm;
	int r;

	if (gmtime_r(&now, &tm))
		(void)strftime(stamp, sizeof(stamp), "%Y-%m-%d-%H%M%S", &tm);
	crypt_random(&random, sizeof(random));
	str_addf(&path, "%s/stoke-backup-%d-%08" PRIx32 ".json.gz", dir && *dir ? dir : "/tmp",
		 (int)getpid(), random);
	str_addf(&prefix, "%s/meta/dump-", meta_setting(b->conf.meta)->name);
	str_addf(&key, "%s%s.json.gz", str_c(&prefix), stamp);
	r = str_error(&path) || str_error(&prefix) || str_error(&key) ? -ENOMEM : 0;
	if (r == 0)
		r = dump_into(b, str_c(&path), &err);
	if (r == 0)
		r = upload(b, str_c(&key), str_c(&path), &err);
	(void)unlink(str_c(&path));
	if (r) {
		metric_add(b->failed, 1);
		log_error("backup of the metadata failed: %s",
			  err.len ? str_c(&err) : strerror(-r));
		return;
	}
	metric_set(b->last, now_sec);
	log_info("metadata backed up object=%s entries=%" PRIu64 " seconds=%.1f", str_c(&key),
		 b->progress.files, (double)(clock_us() - begun) / 1e6);
	thin_out(b, str_c(&prefix), now_sec);
}

static void look(struct backup *b)
{
	int64_t now;
	uint32_t nsec;
	int r;

	clock_real(&now, &nsec);
	b->progress.files = b->progress.bytes = 0;
	r = meta_backup_due(b->conf.meta, b->conf.interval_us / 1000000, now);
	if (r == 1)
		make(b, now);
	else if (r == -EFBIG)
		log_warn("no backup of the metadata: more than a million inodes are too many for "
			 "one an hour (--backup-meta 6h)");
	else if (r == -EBADMSG)
		log_warn("no backup of the metadata: the root's attribute lastBackup is no time");
	else if (r < 0)
		log_warn("no backup of the metadata: %s", strerror(-r));
}

/* a tenth of the interval ± 5 %, so that many mounts look at different times */
static bool wait_turn(struct backup *b)
{
	uint64_t us = b->conf.interval_us / LOOKS, until;
	uint32_t random;
	bool stop;

	crypt_random(&random, sizeof(random));
	until = clock_us() + us - us / 20 + random % (us / 10 + 1);
	mtx_lock(&b->lock);
	while (!b->stop && clock_left(until))
		(void)cond_wait_us(&b->wake, &b->lock, clock_left(until));
	stop = b->stop;
	mtx_unlock(&b->lock);
	return !stop;
}

static void *backup_main(void *arg)
{
	struct backup *b = arg;

	while (wait_turn(b))
		look(b);
	return NULL;
}

int backup_start(const struct backup_conf *conf, struct backup **ret)
{
	struct backup *b = calloc(1, sizeof(*b));
	int r;

	if (!b)
		return -ENOMEM;
	b->conf = *conf;
	mtx_init(&b->lock);
	cond_init(&b->wake);
	b->last = metrics_get(conf->metrics, "stoke_backup_last_seconds", "", METRIC_GAUGE,
			      "When this mount last backed the metadata up, seconds since 1970");
	b->failed = metrics_get(conf->metrics, "stoke_backup_failed_total", "", METRIC_COUNTER,
				"Backups of the metadata that failed");
	r = thread_start("backup", backup_main, b, &b->thread);
	if (r) {
		cond_fini(&b->wake);
		mtx_fini(&b->lock);
		free(b);
		return r;
	}
	*ret = b;
	return 0;
}

void backup_stop(struct backup *b)
{
	if (!b)
		return;
	mtx_lock(&b->lock);
	b->stop = true;
	cond_broadcast(&b->wake);
	mtx_unlock(&b->lock);
	__atomic_store_n(&b->progress.cancel, 1, __ATOMIC_RELAXED);
	(void)pthread_join(b->thread, NULL);
	cond_fini(&b->wake);
	mtx_fini(&b->lock);
	free(b);
}
