/* SPDX-License-Identifier: Apache-2.0 */
/* stoke destroy: removes a volume for good: its objects, then its metadata. The setting goes last
 * but for our own keys, so that a destroy that was broken off can be done again. What in the
 * database is not the volume's stays. One thread; blocks. */
#include <ctype.h>
#include <inttypes.h>
#include <time.h>

#include "client/cmd/maint.h"
#include "common/clock.h"
#include "common/loop.h"

enum { STEP_US = 60000000, MANY = 1000 };

struct destroy_conf {
	bool yes, force;
};

static const struct conf_option options[] = {
	{"yes", 'y', CONF_FLAG, offsetof(struct destroy_conf, yes), "false", NULL, "do not ask"},
	{"force", 0, CONF_FLAG, offsetof(struct destroy_conf, force), "false", NULL,
	 "also while clients have it mounted, and when objects cannot be deleted"},
};

static const struct conf_table table = {
	.options = options,
	.n = ARRAY_LEN(options),
	.usage = "stoke destroy [options] META UUID",
	.summary = "remove a volume for good: all objects and all metadata",
	.min_args = 2,
	.max_args = 2,
};

struct job {
	struct destroy_conf conf;
	struct maint m;
	struct str err;
	uint64_t keys, strangers, failed;
};

/* --- objects --- */

static bool cancelled(const struct job *j)
{
	return __atomic_load_n(&j->m.progress.cancel, __ATOMIC_RELAXED);
}

static int delete_page(struct job *j, struct object_store *s, const struct object_req *list)
{
	const char *keys[MANY];
	struct object_req del = {.op = OBJECT_DELETE_MANY, .keys = keys};
	uint64_t bytes = 0;
	int r;

	for (size_t i = 0; i < list->n_list && i < MANY; i++) {
		keys[del.n_keys++] = list->list[i].key;
		bytes += list->list[i].size;
	}
	r = del.n_keys ? object_run(s, &del) : 0;
	if (r) {
		str_reset(&j->err);
		str_addf(&j->err, "%s", del.reason);
		j->failed += del.n_keys;
		return j->conf.force ? 0 : r;
	}
	__atomic_add_fetch(&j->m.progress.files, del.n_keys, __ATOMIC_RELAXED);
	__atomic_add_fetch(&j->m.progress.bytes, bytes, __ATOMIC_RELAXED);
	return 0;
}

static int delete_below(struct job *j, struct object_store *s, const char *prefix)
{
	_cleanup_(freep) char *after = NULL;
	bool more = true;
	int r = 0;

	while (r == 0 && more) {
		struct object_req list = {.op = OBJECT_LIST, .key = prefix, .start_after = after};

		if (cancelled(j))
			return -EINTR;
		r = object_run(s, &list);
		if (r) {
			str_addf(&j->err, "%s", list.reason);
			return r;
		}
		more = list.more;
		r = delete_page(j, s, &list);
		free(after);
		after = list.n_list ? strdup(list.list[list.n_list - 1].key) : NULL;
		more = more && after;
		object_list_free(&list);
	}
	return r;
}

static int delete_objects(struct job *j)
{
	const struct setting *set = j->m.setting;
	struct object_store *store = NULL;
	struct loop *loop = NULL;
	char prefix[80];
	int r = loop_new("destroy", &loop);

	if (r == 0)
		r = volume_open_store(set, loop, 8, NULL, &store, &j->err);
	if (r == 0) {
		(void)snprintf(prefix, sizeof(prefix), "%s/", set->name);
		maint_begin(&j->m, "objects deleted", "bytes");
		r = delete_below(j, store, prefix);
		maint_end(&j->m);
	}
	object_free(store);
	loop_free(loop);
	if (r == -ENODATA) { /* no bucket, no objects */
		str_reset(&j->err);
		r = 0;
	}
	return r;
}

/* --- metadata --- */

static bool is_number(const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!isdigit((unsigned char)s[i]))
			return false;
	return n > 0;
}

/* docs/format.md §2.1: "i1", "c1_0", "session7" */
static bool is_numbered(const char *key, size_t n)
{
	static const char *const kinds[] = {"i",       "d",	 "p",	  "x",	  "s",
					    "session", "locked", "lockf", "lockp"};
	const char *low;

	/* "k1_4096": a slice's references as they were before sliceRef */
	if (n > 2 && (key[0] == 'c' || key[0] == 'k') && (low = memchr(key, '_', n)))
		return is_number(key + 1, (size_t)(low - key) - 1) &&
		       is_number(low + 1, n - (size_t)(low - key) - 1);
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		size_t k = strlen(kinds[i]);

		if (n > k && !memcmp(key, kinds[i], k) && is_number(key + k, n - k))
			return true;
	}
	return false;
}

static bool is_named(const char *key, size_t n)
{
	static const char *const names[] = {
		"nextinode",
		"nextchunk",
		"nextsession",
		"nextTrash",
		"usedSpace",
		"totalInodes",
		"aclMaxId",
		"acl",
		"krbTokenMaxId",
		"krbToken",
		"allSessions",
		"sessionInfos",
		"delfiles",
		"delSlices",
		"sliceRef",
		"detachedNodes",
		"dirDataLength",
		"dirUsedSpace",
		"dirUsedInodes",
		"dirQuota",
		"dirQuotaUsedSpace",
		"dirQuotaUsedInodes",
		"userQuota",
		"userQuotaUsedSpace",
		"userQuotaUsedInodes",
		"groupQuota",
		"groupQuotaUsedSpace",
		"groupQuotaUsedInodes",
		"txnLog",
		"txnLastLog",
		"lastCleanupSessions",
		"lastCleanupFiles",
		"lastCleanupTrash",
		"lastCleanupChangelog",
		"nextCleanupSlices",
		"nextCleanupFiles",
	};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (strlen(names[i]) == n && !memcmp(key, names[i], n))
			return true;
	return false;
}

struct sweep {
	struct job *j;
	struct pipe pipe;
	bool own; /* the keys that are ours alone, "_…" */
};

static int sweep_page(void *arg, size_t n, const struct scan_item *items)
{
	struct sweep *w = arg;
	struct job *j = w->j;
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++) {
		const char *key = items[i].name;
		size_t len = items[i].name_len;
		bool own = key[0] == '_', setting = len == 7 && !memcmp(key, "setting", 7);

		if (own != w->own || setting)
			continue;
		if (!own && !is_named(key, len) && !is_numbered(key, len)) {
			j->strangers++;
			continue;
		}
		pipe_add(&w->pipe, "UNLINK", key, (char *)NULL);
		j->keys++;
		__atomic_add_fetch(&j->m.progress.files, 1, __ATOMIC_RELAXED);
	}
	if (w->pipe.n)
		r = pipe_run(&w->pipe);
	pipe_reset(&w->pipe);
	return r;
}

static int sweep(struct job *j, bool own)
{
	struct sweep w = {.j = j, .own = own};
	int r;

	pipe_init(&w.pipe, &j->m.scan);
	r = scan_keys(&j->m.scan, own ? "_*" : "*", sweep_page, &w);
	pipe_fini(&w.pipe);
	return r;
}

static int delete_key(struct job *j, const char *prefix, const char *key)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;

	return redis_once(j->m.redis, clock_us() + STEP_US, &reply, "DEL %s%s", prefix, key);
}

static int delete_metadata(struct job *j)
{
	const char *prefix = redis_prefix(j->m.redis);
	int r;

	__atomic_store_n(&j->m.progress.files, 0, __ATOMIC_RELAXED);
	maint_begin(&j->m, "keys deleted", NULL);
	r = sweep(j, false);
	if (r == 0) /* clients of before 1.0 knew no prefix */
		r = delete_key(j, "", "sessions");
	if (r == 0)
		r = delete_key(j, prefix, "setting");
	/* nobody writes these while there is no setting */
	if (r == 0)
		r = sweep(j, true);
	maint_end(&j->m);
	return r;
}

/* --- may it be? --- */

static int count_sessions(struct job *j, int64_t *ret)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	int r = redis_once(j->m.redis, clock_us() + STEP_US, &reply,
			   "ZCOUNT %sallSessions %lld +inf", redis_prefix(j->m.redis),
			   (long long)time(NULL));

	if (r == 0)
		*ret = redis_reply_int(reply);
	return r;
}

static int may_destroy(struct job *j, const char *uuid)
{
	const struct setting *s = j->m.setting;
	struct str where = STR_INIT;
	char question[600];
	int64_t sessions = 0;
	int r;

	if (strcmp(uuid, s->uuid) != 0) {
		str_addf(&j->err, "the volume in this database is %s, not %s", s->uuid, uuid);
		return -EINVAL;
	}
	r = j->conf.force ? 0 : count_sessions(j, &sessions);
	if (r == 0 && sessions) {
		str_addf(&j->err,
			 "%lld clients have the volume mounted: unmount it there first (stoke "
			 "status "
			 "names them), or --force",
			 (long long)sessions);
		return -EBUSY;
	}
	if (r)
		return r;
	str_addf(&where, "%s %s", s->storage, s->bucket);
	(void)snprintf(
		question, sizeof(question),
		"volume %s (%s): all of its data in %.300s and its metadata in %.100s will be "
		"gone for good; go on",
		s->name, s->uuid, strchr(s->bucket, '@') ? s->storage : str_c(&where),
		redis_name(j->m.redis));
	str_fini(&where);
	return maint_sure("destroy", j->conf.yes, question) ? 0 : -ECANCELED;
}

static int destroy(struct job *j, const char *uuid)
{
	int r = may_destroy(j, uuid);
	uint64_t objects;

	if (r == 0)
		r = delete_objects(j);
	objects = __atomic_load_n(&j->m.progress.files, __ATOMIC_RELAXED);
	if (r == 0)
		r = delete_metadata(j);
	if (r)
		return r;
	maint_say(&j->m, "destroyed volume %s (%s): %" PRIu64 " objects, %" PRIu64 " keys",
		  j->m.setting->name, j->m.setting->uuid, objects, j->keys + 1);
	if (j->failed)
		maint_say(&j->m, "%" PRIu64 " objects could not be deleted: %s", j->failed,
			  str_c(&j->err));
	if (j->strangers)
		maint_say(&j->m, "%" PRIu64 " keys in the database are not the volume's, and stay",
			  j->strangers);
	return 0;
}

static int destroy_run(int argc, char **argv)
{
	struct job j = {.m.name = "destroy", .err = STR_INIT};
	char **args;
	size_t n;
	int r = maint_args("destroy", &table, &j.conf, argc, argv, &args, &n);

	if (r) {
		conf_fini(&table, &j.conf);
		return r - 1;
	}
	r = 1;
	if (maint_open(&j.m, "destroy", args[0], false) == 0) {
		r = destroy(&j, args[1]);
		r = r == -ECANCELED ? 1 : maint_exit(&j.m, r, &j.err);
	}
	maint_close(&j.m);
	str_fini(&j.err);
	conf_fini(&table, &j.conf);
	return r || j.failed;
}

const struct cmd cmd_destroy = {"destroy", "remove a volume for good", destroy_run, &table};
