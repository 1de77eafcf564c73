/* SPDX-License-Identifier: Apache-2.0 */
/* stoke format: makes a volume that JuiceFS and Stoke mount alike. The object store is tried
 * (write, read, delete) before anything is written to Redis. Doing it again with the same name
 * changes nothing. One thread; blocks. */
#include <ctype.h>
#include <inttypes.h>
#include <limits.h>
#include <sys/stat.h>

#include "client/cmd.h"
#include "client/meta/meta.h"
#include "common/clock.h"
#include "common/loop.h"
#include "common/object/crypt.h"
#include "common/redis.h"

enum { FORMAT_TIMEOUT_US = 30000000, PROBE_LEN = 100, KEY_MAX = 256 };

struct format_conf {
	char *storage, *bucket, *access_key, *secret_key, *session_token, *compress;
	uint64_t block_size, trash_days, capacity_gib, inodes;
	bool hash_prefix;
};

static const struct conf_option options[] = {
	{"storage", 0, CONF_STR, offsetof(struct format_conf, storage), "file", NULL,
	 "where blocks go: s3 (or a JuiceFS name of a store that speaks S3), file"},
	{"bucket", 0, CONF_STR, offsetof(struct format_conf, bucket), NULL, NULL,
	 "URL of the bucket (http://host:port/bucket, https://bucket.s3.region.amazonaws.com), or "
	 "a directory"},
	{"access-key", 0, CONF_STR, offsetof(struct format_conf, access_key), NULL, "ACCESS_KEY",
	 "access key of the object store"},
	{"secret-key", 0, CONF_SECRET, offsetof(struct format_conf, secret_key), NULL, "SECRET_KEY",
	 "secret key of the object store; from the environment only"},
	{"session-token", 0, CONF_SECRET, offsetof(struct format_conf, session_token), NULL,
	 "SESSION_TOKEN", "session token of temporary keys; from the environment only"},
	{"block-size", 0, CONF_SIZE_KIB, offsetof(struct format_conf, block_size), "4M", NULL,
	 "size of blocks, a power of two from 64K to 16M; KiB unless a unit is given"},
	{"compress", 0, CONF_STR, offsetof(struct format_conf, compress), "none", NULL,
	 "none, lz4 or zstd"},
	{"hash-prefix", 0, CONF_FLAG, offsetof(struct format_conf, hash_prefix), "false", NULL,
	 "spread object names over 256 prefixes"},
	{"trash-days", 0, CONF_U64, offsetof(struct format_conf, trash_days), "1", NULL,
	 "days that removed files stay in .trash; 0: removed at once"},
	{"capacity", 0, CONF_U64, offsetof(struct format_conf, capacity_gib), "0", NULL,
	 "limit of the volume in GiB; 0: none"},
	{"inodes", 0, CONF_U64, offsetof(struct format_conf, inodes), "0", NULL,
	 "limit of files; 0: none"},
};

static const struct conf_table table = {
	.options = options,
	.n = ARRAY_LEN(options),
	.usage = "stoke format [options] META NAME",
	.summary = "make a volume: metadata in the Redis database META, blocks in an object store",
	.min_args = 2,
	.max_args = 2,
};

static bool name_ok(const char *name)
{
	size_t n = strlen(name);

	if (n < 3 || n > 63 || name[0] == '-' || name[n - 1] == '-')
		return false;
	for (size_t i = 0; i < n; i++)
		if (!isascii(name[i]) || (!isalnum((unsigned char)name[i]) && name[i] != '-'))
			return false;
	return true;
}

/* A directory becomes absolute and ends in a slash, as JuiceFS writes it; it is made when it is not
 * there. */
static int dir_bucket(struct format_conf *c, struct str *err)
{
	_cleanup_(freep) char *real = NULL;
	_cleanup_(freep) char *full = NULL;

	if (mkdir(c->bucket, 0755) < 0 && errno != EEXIST) {
		int r = -errno;

		str_addf(err, "%s: %s", c->bucket, strerror(-r));
		return r;
	}
	real = realpath(c->bucket, NULL);
	if (!real || asprintf(&full, "%s/", real) < 0) {
		str_addf(err, "%s: %s", c->bucket, strerror(errno));
		return -EINVAL;
	}
	free(c->bucket);
	c->bucket = TAKE_PTR(full);
	return 0;
}

static int check_options(struct format_conf *c, const char *name, enum codec *codec,
			 struct str *err)
{
	if (!name_ok(name)) {
		str_addf(err, "NAME %s: 3 to 63 letters, digits and '-', not at the ends", name);
		return -EINVAL;
	}
	if (!c->bucket) {
		str_add(err, "--bucket is missing: the URL of a bucket, or a directory with "
			     "--storage file");
		return -EINVAL;
	}
	if (c->block_size < 64 << 10 || c->block_size > 16 << 20 ||
	    (c->block_size & (c->block_size - 1))) {
		str_add(err, "--block-size: a power of two from 64K to 16M");
		return -EINVAL;
	}
	if (codec_parse(c->compress, codec) < 0) {
		str_addf(err, "--compress %s: none, lz4 or zstd", c->compress);
		return -EINVAL;
	}
	if (c->trash_days > 36500 || c->capacity_gib > UINT64_C(1) << 33) {
		str_add(err, c->trash_days > 36500 ? "--trash-days: at most 36500"
						   : "--capacity: at most 2^33 GiB");
		return -EINVAL;
	}
	return strcmp(c->storage, "file") == 0 ? dir_bucket(c, err) : 0;
}

/* one operation; the reason of a failure goes to err */
static int run(struct object_store *s, struct object_req *req, struct str *err)
{
	int r;

	req->deadline_us = clock_us() + FORMAT_TIMEOUT_US;
	r = object_run(s, req);
	if (r < 0 && err)
		str_addf(err, "%s", req->reason[0] ? req->reason : strerror(-r));
	return r;
}

static int put(struct object_store *s, const char *key, const void *data, size_t n, struct str *err)
{
	unsigned char copy[PROBE_LEN];
	struct object_req req = {.op = OBJECT_PUT, .key = key, .buf = copy, .cap = n};

	assert(n <= sizeof(copy));
	memcpy(copy, data, n);
	return run(s, &req, err);
}

/* what is written must come back, and go away: wrong keys, a read-only bucket and a broken proxy
 * show here */
static int try_store(struct object_store *s, const char *name, struct str *err)
{
	unsigned char want[PROBE_LEN], got[PROBE_LEN];
	char key[KEY_MAX], uuid[37];
	struct object_req create = {.op = OBJECT_CREATE_BUCKET, .key = ""};
	struct object_req get = {.op = OBJECT_GET, .key = key, .buf = got, .cap = sizeof(got)};
	struct object_req del = {.op = OBJECT_DELETE, .key = key};
	int r = run(s, &create, NULL);

	/* who may not create buckets may still use one: the write below tells */
	if (r < 0 && r != -EEXIST && r != -EACCES && create.reason[0]) {
		str_addf(err, "%s", create.reason);
		return r;
	}
	crypt_uuid(uuid);
	crypt_random(want, sizeof(want));
	(void)snprintf(key, sizeof(key), "%s/testing/%.10s", name, uuid);
	r = put(s, key, want, sizeof(want), err);
	if (r < 0)
		return r;
	r = run(s, &get, err);
	if (r == 0 && (get.got != sizeof(got) || memcmp(want, got, sizeof(got)) != 0)) {
		str_addf(err, "%s: read back other bytes than were written", key);
		r = -EIO;
	}
	/* the probe goes away in any case; the first error is the one to tell */
	return run(s, &del, r ? NULL : err) < 0 && r == 0 ? -EIO : r;
}

/* A new volume must not inherit somebody's objects. */
static int must_be_empty(struct object_store *s, const char *name, struct str *err)
{
	char prefix[KEY_MAX], testing[KEY_MAX];
	struct object_req list = {.op = OBJECT_LIST, .key = prefix};
	int r;

	(void)snprintf(prefix, sizeof(prefix), "%s/", name);
	(void)snprintf(testing, sizeof(testing), "%s/testing/", name);
	r = run(s, &list, err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < list.n_list; i++) {
		const char *key = list.list[i].key;

		if (strncmp(key, testing, strlen(testing)) != 0 && strcmp(key, prefix) != 0) {
			str_addf(err,
				 "the bucket already holds %s: choose another NAME, or remove what "
				 "lies below %s",
				 key, prefix);
			r = -ENOTEMPTY;
			break;
		}
	}
	object_list_free(&list);
	return r;
}

struct job {
	struct format_conf conf;
	const char *name;
	enum codec codec;
	struct redis *redis;
	struct loop *loop;
	struct object_store *store;
};

static int with_store(struct job *j, bool exists, struct str *err)
{
	struct object_conf oc = {.storage = j->conf.storage,
				 .bucket = j->conf.bucket,
				 .access_key = j->conf.access_key,
				 .secret_key = j->conf.secret_key,
				 .session_token = j->conf.session_token,
				 .retries = 3};
	struct format_request f = {.name = j->name,
				   .storage = j->conf.storage,
				   .bucket = j->conf.bucket,
				   .access_key = j->conf.access_key,
				   .secret_key = j->conf.secret_key,
				   .session_token = j->conf.session_token,
				   .block_size = (uint32_t)j->conf.block_size,
				   .codec = j->codec,
				   .hash_prefix = j->conf.hash_prefix,
				   .trash_days = (unsigned)j->conf.trash_days,
				   .capacity = j->conf.capacity_gib << 30,
				   .inodes = j->conf.inodes};
	_cleanup_(setting_freep) struct setting *s = NULL;
	char key[KEY_MAX];
	bool created;
	int r;

	r = object_open(&oc, j->loop, &j->store, err);
	if (r < 0)
		return r;
	r = try_store(j->store, j->name, err);
	if (r == 0 && !exists)
		r = must_be_empty(j->store, j->name, err);
	if (r < 0)
		return r;
	r = meta_format(j->redis, clock_us() + FORMAT_TIMEOUT_US, &f, &s, &created, err);
	if (r < 0)
		return r;
	(void)snprintf(key, sizeof(key), "%s/juicefs_uuid", j->name);
	if (created)
		r = put(j->store, key, s->uuid, strlen(s->uuid), err);
	if (r == 0)
		(void)printf("%s volume %s (%s) in %s: %s\n",
			     created ? "formatted" : "unchanged:", s->name, s->uuid,
			     redis_name(j->redis), s->bucket);
	return r;
}

static int format(struct job *j, const char *url, struct str *err)
{
	_cleanup_(setting_freep) struct setting *old = NULL;
	struct str ignored = STR_INIT;
	int r;

	r = check_options(&j->conf, j->name, &j->codec, err);
	if (r < 0)
		return r;
	r = redis_new(url, NULL, &j->redis, err);
	if (r < 0)
		return r;
	r = setting_load(j->redis, clock_us() + FORMAT_TIMEOUT_US, &old, &ignored);
	if (r < 0 && r != -ENOENT)
		str_add(err, str_c(&ignored));
	str_fini(&ignored);
	if (r < 0 && r != -ENOENT)
		return r;
	if (old && strcmp(old->name, j->name) != 0) {
		str_addf(err, "%s already holds volume %s: choose another database",
			 redis_name(j->redis), old->name);
		return -EEXIST;
	}
	r = loop_new("format", &j->loop);
	return r < 0 ? r : with_store(j, old != NULL, err);
}

static int format_run(int argc, char **argv)
{
	struct job j = {.name = NULL};
	struct str err = STR_INIT;
	char **args;
	size_t n;
	_cleanup_(freep) char *url = NULL;
	int r;

	r = conf_parse(&table, &j.conf, argc, argv, &args, &n, &err);
	if (r) {
		if (r < 0)
			(void)cmd_error("format", "%s", str_c(&err));
		str_fini(&err);
		conf_fini(&table, &j.conf);
		return r < 0 ? 2 : 0;
	}
	url = strdup(args[0]);
	redis_blank_password(args[0]);
	j.name = args[1];
	r = url ? format(&j, url, &err) : -ENOMEM;
	if (r < 0)
		(void)cmd_error("format", "%s", err.len ? str_c(&err) : strerror(-r));
	object_free(j.store);
	loop_free(j.loop);
	redis_free(j.redis);
	conf_fini(&table, &j.conf);
	str_fini(&err);
	return r < 0;
}

const struct cmd cmd_format = {"format", "make a volume", format_run, &table};
