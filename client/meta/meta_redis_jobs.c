/* SPDX-License-Identifier: Apache-2.0 */
/* The volume's clean-ups. Thread of the background ones: one of the engine's own, so that neither
 * heartbeat nor operations wait for them; a few more where a tree is removed. Of all clients one
 * does each, whoever is first in the period to set its stamp.
 *
 *	stamp			period	what is done
 *	lastCleanupFiles	1 h	data of files deleted more than an hour ago
 *	nextCleanupSlices	1 h	slices that nobody refers to, objects still there
 *	lastCleanupTrash	1 h	hours of the trash, and slices in it, that are too old
 *	lastCleanupChangelog	5 min	lines of the change log
 *	(none)			1 min	members of delfiles in a form of very old clients,
 *					until there are none */
#include "client/meta/jobs.h"

#include <inttypes.h>
#include <time.h>

#include "client/meta/meta_redis.h"
#include "client/meta/meta_redis_quota.h"
#include "client/meta/scan.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/object/crypt.h"
#include "common/parse.h"

enum {
	MINUTE = 60,
	HOUR = 3600,
	DAY = 86400,
	PAGE = 1000,
	DELAYED_STEP = 50,
	TRASH_GRACE = 2 * HOUR,
	LEGACY_LENGTH = 1 << 30,
};

static void count(struct meta_progress *p, uint64_t files, uint64_t bytes)
{
	if (!p)
		return;
	__atomic_add_fetch(&p->files, files, __ATOMIC_RELAXED);
	__atomic_add_fetch(&p->bytes, bytes, __ATOMIC_RELAXED);
}

static bool cancelled(const struct meta_progress *p)
{
	return p && __atomic_load_n(&p->cancel, __ATOMIC_RELAXED);
}

static bool deletes(const struct meta *m)
{
	return m->delete_fn && m->conf.max_deletes;
}

/* --- deleted files --- */

/* "{inode}:{length}", exactly as it would be written: it is removed by its name */
static bool member_parse(const char *p, size_t n, struct dead_file *ret)
{
	char text[44], *colon;
	struct dead_file f;

	if (!p || n >= sizeof(text))
		return false;
	memcpy(text, p, n + 1);
	colon = strchr(text, ':');
	if (!colon)
		return false;
	*colon = '\0';
	if (parse_u64(text, UINT64_MAX, &f.inode) ||
	    parse_u64(colon + 1, FILE_LENGTH_MAX, &f.length))
		return false;
	snprintf(text, sizeof(text), "%" PRIu64 ":%" PRIu64, f.inode, f.length);
	if (strlen(text) != n || memcmp(text, p, n) != 0)
		return false;
	*ret = f;
	return true;
}

/* some of the members older than that, from the offset on; legacy: whatever is not parsed */
static int deleted_page(struct meta_redis *mr, int64_t before_sec, size_t offset,
			struct redis_reply **ret)
{
	return redis_once(mr->own_redis, op_deadline(mr), ret,
			  "ZRANGEBYSCORE %sdelfiles -inf %lld LIMIT %lu %d", mr->prefix,
			  (long long)before_sec, (unsigned long)offset, PAGE);
}

int meta_deleted_clean(struct meta *m, int64_t before_sec, struct meta_progress *p)
{
	struct meta_redis *mr = redis_engine(m);
	struct dead_file *v;
	size_t n = 1, left = 0; /* members that stay, and are passed over */
	int r = 0;

	if (!meta_redis(m) || !deletes(m))
		return -EOPNOTSUPP;
	v = calloc(PAGE, sizeof(*v));
	if (!v)
		return -ENOMEM;
	while (!r && n && !cancelled(p)) {
		_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
		size_t k = 0, len;
		int one;

		r = deleted_page(mr, before_sec, left, &reply);
		n = reply_len(reply);
		for (size_t i = 0; !r && i < n; i++) {
			const char *text = reply_text(reply_at(reply, i), &len);

			k += member_parse(text, len, &v[k]);
		}
		one = r ? 0 : files_delete(mr, v, k);
		if (one)
			left += n; /* they are tried again in an hour */
		else
			left += n - k;
		count(p, one ? 0 : k, 0);
	}
	free(v);
	return r ? r : cancelled(p) ? -EINTR : 0;
}

/* false: none left */
static bool legacy_clean(struct meta_redis *mr, int64_t before_sec)
{
	bool found = false;
	size_t offset = 0, n = PAGE;

	while (n == PAGE && !cancelled(&mr->jobs)) {
		_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;

		if (deleted_page(mr, before_sec, offset, &reply))
			return true;
		n = reply_len(reply);
		offset += n;
		for (size_t i = 0; i < n; i++) {
			size_t len;
			const char *s = reply_text(reply_at(reply, i), &len);
			const char *last = s ? strrchr(s, ':') : NULL;
			uint64_t inode = s ? strtoull(s, NULL, 10) : 0, length = LEGACY_LENGTH;

			if (!inode || (last && strchr(s, ':') == last))
				continue;
			if (last)
				length = strtoull(last + 1, NULL, 10);
			found = true;
			(void)delete_file(mr, inode, MIN(length, FILE_LENGTH_MAX), s);
		}
	}
	return found;
}

void files_clean(struct meta_redis *mr, uint64_t age_sec, uint64_t deadline_us)
{
	struct time_ns now;
	int r = 0;

	clock_real(&now.sec, &now.nsec);
	if (!deletes(&mr->base))
		return;
	if (job_gate(mr, "nextCleanupSlices", now.sec, UINT64_C(1000000) * HOUR, deadline_us))
		r = slices_clean(mr);
	if (r)
		log_warn("slices without references left for a later clean-up: %s", strerror(-r));
	r = 0;
	if (job_gate(mr, "lastCleanupFiles", now.sec, UINT64_C(1000000) * HOUR, deadline_us))
		r = meta_deleted_clean(&mr->base, now.sec - (int64_t)age_sec, &mr->jobs);
	if (r && r != -EINTR)
		log_warn("deleted files left for a later clean-up: %s", strerror(-r));
}

int meta_slices_clean(struct meta *m, struct meta_progress *p)
{
	if (!meta_redis(m) || !deletes(m))
		return -EOPNOTSUPP;
	(void)p;
	return slices_clean(redis_engine(m));
}

int meta_chunk_clean(struct meta *m, uint64_t inode, uint32_t index, struct meta_progress *p)
{
	bool cut = false;
	int r;

	if (!meta_redis(m) || !deletes(m))
		return -EOPNOTSUPP;
	r = delete_chunk(redis_engine(m), inode, index, &cut);
	if (!r)
		count(p, 1, 0);
	return r;
}

int meta_inode_clean(struct meta *m, uint64_t inode, struct meta_progress *p)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct meta_redis *mr = redis_engine(m);
	uint64_t length, owner;
	struct args args;
	int r;

	if (!meta_redis(m))
		return -EOPNOTSUPP;
	if (inode == INODE_ROOT || inode >= INODE_INTERNAL)
		return -EPERM;
	args_init(&args, mr);
	op_begin(mr, &args);
	args_u64(&args, inode);
	r = op_eval(mr, SC_DEADINODE, &args, &reply);
	op_end(mr, &args);
	if (r || !reply_is(reply_at(reply, 0), "gone"))
		return r;
	r = reply_be64(reply_at(reply, 2), &length);
	if (!r)
		r = reply_be64(reply_at(reply, 3), &owner);
	if (r)
		return r;
	quota_owner(mr, (uint32_t)(owner >> 32), (uint32_t)owner, -(int64_t)align4k(length), -1);
	if (reply_int(reply_at(reply, 1)) == INODE_FILE)
		delete_later(mr, inode, length);
	count(p, 1, length);
	return 0;
}

/* --- the trash --- */

static int64_t hour_sec(const char *name, size_t n)
{
	struct tm tm = {0};
	char text[16];
	char *end;

	if (n != 13)
		return -1;
	memcpy(text, name, n);
	text[n] = '\0';
	end = strptime(text, "%Y-%m-%d-%H", &tm);
	return end && !*end ? (int64_t)timegm(&tm) : -1;
}

static int hour_cmp(const void *a, const void *b)
{
	const struct trash_hour *x = a, *y = b;

	return x->sec != y->sec ? (x->sec < y->sec ? -1 : 1) : 0;
}

int meta_trash_hours(struct meta *m, struct trash_hour **ret, size_t *ret_n)
{
	struct trash_hour *v;
	struct meta_dir *d;
	size_t n = 0;
	int r;

	if (!meta_redis(m))
		return -EOPNOTSUPP;
	r = redis_readdir(m, INODE_TRASH, false, &d);
	if (r)
		return r;
	v = calloc(d->n + 1, sizeof(*v));
	for (size_t i = 0; v && i < d->n; i++) {
		const struct meta_entry *e = &d->entries[i];
		int64_t sec = hour_sec(e->name, e->name_len);

		/* anything else is no hour of ours: left alone */
		if (sec < 0 || e->attr.type != INODE_DIR || e->inode <= INODE_TRASH)
			continue;
		v[n] = (struct trash_hour){.inode = e->inode, .sec = sec};
		memcpy(v[n++].name, e->name, e->name_len);
	}
	meta_dir_free(d);
	if (!v)
		return -ENOMEM;
	qsort(v, n, sizeof(*v), hour_cmp);
	*ret = v;
	*ret_n = n;
	return 0;
}

int meta_trash_expire(struct meta *m, int64_t before_sec, struct meta_progress *p)
{
	static const struct meta_ctx root = {0};
	struct trash_hour *v;
	size_t n;
	int r = meta_trash_hours(m, &v, &n);

	if (r)
		return r;
	for (size_t i = 0; i < n && !r && v[i].sec < before_sec; i++) {
		r = remove_below(redis_engine(m), v[i].inode, true, p);
		if (!r)
			r = remove_dir(redis_engine(m), &root, INODE_TRASH, v[i].name, true);
		/* somebody else removes it too; or still puts something in: the next time */
		if (r == -ENOENT || r == -ENOTEMPTY)
			r = 0;
	}
	free(v);
	return r;
}

/* --- slices that compaction left --- */

struct delayed {
	struct meta_redis *mr;
	int64_t before_sec;
	struct meta_progress *p;
	char field[DELAYED_STEP][48];
	size_t n;
	int failed; /* of the object store: the others are done all the same */
};

static int delayed_step(struct delayed *d)
{
	size_t at = 0;

	while (at < d->n) {
		_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
		struct args args;
		int64_t done;
		int r;

		args_init(&args, d->mr);
		op_begin(d->mr, &args);
		for (size_t i = at; i < d->n; i++)
			args_text(&args, d->field[i]);
		r = own_eval(d->mr, SC_DELAYED, &args, op_deadline(d->mr), &reply);
		op_end(d->mr, &args);
		if (r)
			return r;
		done = reply_int(reply_at(reply, 0));
		if (done <= 0 || done > (int64_t)(d->n - at))
			return -EIO;
		r = slices_gone(d->mr, reply, 1);
		d->failed = d->failed ? d->failed : r;
		count(d->p, (reply_len(reply) - 1) / 2, 0);
		at += (size_t)done;
	}
	d->n = 0;
	return 0;
}

/* "{slice}_{second}" */
static bool delayed_due(const struct delayed *d, const struct scan_item *i)
{
	char text[48], *bar;
	uint64_t id, sec;

	if (i->name_len >= sizeof(text))
		return false;
	memcpy(text, i->name, i->name_len + 1);
	bar = strchr(text, '_');
	if (!bar)
		return false;
	*bar = '\0';
	return parse_u64(text, UINT64_MAX, &id) == 0 && parse_u64(bar + 1, INT64_MAX, &sec) == 0 &&
	       (int64_t)sec < d->before_sec;
}

static int delayed_page(void *arg, size_t n, const struct scan_item *items)
{
	struct delayed *d = arg;
	int r = 0;

	for (size_t i = 0; i < n && !r; i++) {
		if (!delayed_due(d, &items[i]))
			continue;
		snprintf(d->field[d->n++], sizeof(d->field[0]), "%s", items[i].name);
		if (d->n == DELAYED_STEP)
			r = delayed_step(d);
	}
	return r;
}

int meta_delayed_clean(struct meta *m, int64_t before_sec, struct meta_progress *p)
{
	struct delayed d = {.mr = redis_engine(m), .before_sec = before_sec, .p = p};
	struct scan scan;
	int r;

	if (!meta_redis(m) || !deletes(m))
		return -EOPNOTSUPP;
	scan_init(&scan, d.mr->own_redis, p ? &p->cancel : NULL);
	r = scan_hash(&scan, "delSlices", delayed_page, &d);
	if (!r)
		r = delayed_step(&d);
	return r ? r : d.failed;
}

/* --- clones that were never finished --- */

int meta_detached_clean(struct meta *m, int64_t before_sec, struct meta_progress *p)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct meta_redis *mr = redis_engine(m);
	int r, one;

	if (!meta_redis(m))
		return -EOPNOTSUPP;
	r = redis_once(mr->own_redis, op_deadline(mr), &reply,
		       "ZRANGEBYSCORE %sdetachedNodes -inf (%lld", mr->prefix,
		       (long long)before_sec);
	for (size_t i = 0; i < reply_len(reply) && !cancelled(p); i++) {
		int64_t inode = reply_int(reply_at(reply, i));

		if (inode <= (int64_t)INODE_ROOT)
			continue;
		one = detached_clean(mr, (uint64_t)inode, p);
		r = r ? r : one;
	}
	return r ? r : cancelled(p) ? -EINTR : 0;
}

/* --- the change log --- */

int meta_log_trim(struct meta *m)
{
	const struct setting *s = meta_setting(m);
	struct meta_redis *mr = redis_engine(m);
	struct time_ns now;
	int64_t n = 1;
	int r = 0;

	if (!meta_redis(m))
		return -EOPNOTSUPP;
	clock_real(&now.sec, &now.nsec);
	while (!r && n && !cancelled(&mr->jobs)) {
		_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
		struct args args;

		args_init(&args, mr);
		args_i64(&args, s->log_max_age && (int64_t)s->log_max_age < now.sec
					? now.sec - (int64_t)s->log_max_age
					: 0);
		args_u64(&args, s->log_max_lines);
		r = own_eval(mr, SC_LOGTRIM, &args, op_deadline(mr), &reply);
		n = reply_int(reply);
	}
	return r;
}

/* --- in the background --- */

static void trash_job(struct meta_redis *mr, int64_t now_sec)
{
	int64_t days = meta_setting(&mr->base)->trash_days;
	int r = meta_trash_expire(&mr->base, now_sec - days * DAY - TRASH_GRACE, &mr->jobs), one;

	one = deletes(&mr->base) ? meta_delayed_clean(&mr->base, now_sec - days * DAY, &mr->jobs)
				 : 0;
	r = r ? r : one;
	if (r && r != -EINTR)
		log_warn("the trash is left for a later clean-up: %s", strerror(-r));
}

static bool trash_there(struct meta_redis *mr)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;

	return redis_once(mr->own_redis, op_deadline(mr), &reply, "EXISTS %si%llu", mr->prefix,
			  (unsigned long long)INODE_TRASH) == 0 &&
	       reply_int(reply) == 1;
}

void jobs_hourly(struct meta_redis *mr)
{
	uint64_t deadline = op_deadline(mr);
	struct time_ns now;

	clock_real(&now.sec, &now.nsec);
	files_clean(mr, HOUR, deadline);
	if (trash_there(mr) &&
	    job_gate(mr, "lastCleanupTrash", now.sec, UINT64_C(1000000) * HOUR, op_deadline(mr)))
		trash_job(mr, now.sec);
}

static void log_job(struct meta_redis *mr)
{
	struct time_ns now;
	int r = 0;

	clock_real(&now.sec, &now.nsec);
	if (meta_setting(&mr->base)->change_log &&
	    job_gate(mr, "lastCleanupChangelog", now.sec, UINT64_C(5000000) * MINUTE,
		     op_deadline(mr)))
		r = meta_log_trim(&mr->base);
	if (r)
		log_warn("the change log is left for a later clean-up: %s", strerror(-r));
}

/* us ± 5 %, so that a thousand mounts started together spread out; false: the end */
static bool jobs_wait(struct meta_redis *mr, uint64_t us)
{
	uint32_t random;
	uint64_t until;
	bool stop;

	crypt_random(&random, sizeof(random));
	until = clock_us() + us - us / 20 + (uint64_t)random % (us / 10 + 1);
	mtx_lock(&mr->base.lock);
	while (!mr->stopping && (mr->base.gone || clock_left(until)))
		cond_wait_us(&mr->wake, &mr->base.lock, MAX(clock_left(until), UINT64_C(1000000)));
	stop = mr->stopping;
	mtx_unlock(&mr->base.lock);
	return !stop;
}

void *jobs_main(void *arg)
{
	struct meta_redis *mr = arg;
	unsigned minutes = 0;
	bool legacy = deletes(&mr->base);

	while (jobs_wait(mr, UINT64_C(1000000) * MINUTE)) {
		struct time_ns now;

		clock_real(&now.sec, &now.nsec);
		minutes++;
		if (legacy)
			legacy = legacy_clean(mr, now.sec - HOUR);
		if (minutes % 5 == 0)
			log_job(mr);
		if (minutes % 60 == 0)
			jobs_hourly(mr);
	}
	return NULL;
}
