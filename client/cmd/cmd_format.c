/* SPDX-License-Identifier: Apache-2.0 */
/* stoke format: makes a volume that JuiceFS and Stoke mount alike. The object store is tried
 * (write, read, delete) before anything is written to Redis. Doing it again with the same name
 * changes nothing. One thread; blocks. */
#include <ctype.h>
#include <inttypes.h>

#include "client/cmd/cmd.h"
#include "client/meta/meta.h"
#include "client/cmd/probe.h"
#include "common/clock.h"
#include "common/loop.h"
#include "common/redis.h"

enum { FORMAT_TIMEOUT_US = 30000000, KEY_MAX = 256 };

struct format_conf {
	char *storage, *bucket, *access_key, *secret_key, *session_token, *compress;
	char *storage_class, *tag, *encrypt_key_file, *encrypt_algo;
	uint64_t block_size, trash_days, capacity_gib, inodes, shards;
	bool hash_prefix, enable_acl, force, no_update;
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
	{"storage-class", 0, CONF_STR, offsetof(struct format_conf, storage_class), NULL, NULL,
	 "storage class of new objects, as the object store names it"},
	{"tag", 0, CONF_STR, offsetof(struct format_conf, tag), NULL, NULL,
	 "KEY=VALUE: tag of new objects"},
	{"block-size", 0, CONF_SIZE_KIB, offsetof(struct format_conf, block_size), "4M", NULL,
	 "size of blocks, a power of two from 64K to 16M; KiB unless a unit is given"},
	{"compress", 0, CONF_STR, offsetof(struct format_conf, compress), "none", NULL,
	 "none, lz4 or zstd"},
	{"encrypt-rsa-key", 0, CONF_STR, offsetof(struct format_conf, encrypt_key_file), NULL, NULL,
	 "file with a private key (PEM): objects are encrypted with it; its passphrase from the "
	 "environment variable JFS_RSA_PASSPHRASE"},
	{"encrypt-algo", 0, CONF_STR, offsetof(struct format_conf, encrypt_algo), "aes256gcm-rsa",
	 NULL, "aes256gcm-rsa, chacha20-rsa or sm4gcm"},
	{"shards", 0, CONF_U64, offsetof(struct format_conf, shards), "0", NULL,
	 "spread objects over so many buckets; --bucket has a %d for the number"},
	{"hash-prefix", 0, CONF_FLAG, offsetof(struct format_conf, hash_prefix), "false", NULL,
	 "spread object names over 256 prefixes"},
	{"trash-days", 0, CONF_U64, offsetof(struct format_conf, trash_days), "1", NULL,
	 "days that removed files stay in .trash; 0: removed at once"},
	{"capacity", 0, CONF_U64, offsetof(struct format_conf, capacity_gib), "0", NULL,
	 "limit of the volume in GiB; 0: none"},
	{"inodes", 0, CONF_U64, offsetof(struct format_conf, inodes), "0", NULL,
	 "limit of files; 0: none"},
	{"enable-acl", 0, CONF_FLAG, offsetof(struct format_conf, enable_acl), "false", NULL,
	 "POSIX ACLs; for good"},
	{"force", 0, CONF_FLAG, offsetof(struct format_conf, force), "false", NULL,
	 "take a prefix of the object store that is not empty"},
	{"no-update", 0, CONF_FLAG, offsetof(struct format_conf, no_update), "false", NULL,
	 "a volume that is there is left alone, and that is no error"},
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
	if (c->shards > 256) {
		str_add(err, "--shards: at most 256");
		return -EINVAL;
	}
	if (c->tag && !probe_tag_ok(c->tag)) {
		str_addf(err, "--tag %s: KEY=VALUE, of letters, digits and \" +-._:/@\"", c->tag);
		return -EINVAL;
	}
	return strcmp(c->storage, "file") == 0 ? probe_dir(&c->bucket, c->shards > 1, err) : 0;
}

struct job {
	struct format_conf conf;
	const char *name;
	enum codec codec;
	char *key; /* PEM; NULL: not encrypted */
	struct crypt_block *crypt;
	struct redis *redis;
	struct loop *loop;
	struct object_store *store;
};

/* a key that does not open now would not open at a mount either */
static int open_key(struct job *j, struct str *err)
{
	const struct format_conf *c = &j->conf;
	struct str why = STR_INIT;
	int r;

	if (!c->encrypt_key_file || !*c->encrypt_key_file)
		return 0;
	r = probe_key_file(c->encrypt_key_file, &j->key, err);
	if (r)
		return r;
	r = crypt_block_new(j->key, getenv(CRYPT_PASSPHRASE_ENV), c->encrypt_algo, &j->crypt, &why);
	if (r)
		str_addf(err, "%s: %s", c->encrypt_key_file, str_c(&why));
	str_fini(&why);
	return r;
}

static int open_store(struct job *j, struct str *err)
{
	const struct format_conf *c = &j->conf;
	struct object_tier tier = {.storage_class =
					   c->storage_class ? c->storage_class : (char[]){""},
				   .tag = c->tag ? c->tag : (char[]){""}};
	struct object_conf oc = {.storage = c->storage,
				 .bucket = c->bucket,
				 .access_key = c->access_key,
				 .secret_key = c->secret_key,
				 .session_token = c->session_token,
				 .retries = 3,
				 .shards = (unsigned)c->shards,
				 .tiers = &tier,
				 .n_tiers = 1};

	return object_open(&oc, j->loop, &j->store, err);
}

static int make_volume(struct job *j, struct str *err)
{
	const struct format_conf *c = &j->conf;
	struct format_request f = {.name = j->name,
				   .storage = c->storage,
				   .bucket = c->bucket,
				   .access_key = c->access_key,
				   .secret_key = c->secret_key,
				   .session_token = c->session_token,
				   .storage_class = c->storage_class,
				   .tag = c->tag,
				   .encrypt_key = j->key,
				   .encrypt_algo = j->crypt ? crypt_block_algo(j->crypt) : NULL,
				   .block_size = (uint32_t)c->block_size,
				   .codec = j->codec,
				   .hash_prefix = c->hash_prefix,
				   .enable_acl = c->enable_acl,
				   .trash_days = (unsigned)c->trash_days,
				   .shards = (unsigned)c->shards,
				   .capacity = c->capacity_gib << 30,
				   .inodes = c->inodes};
	_cleanup_(setting_freep) struct setting *s = NULL;
	char key[KEY_MAX];
	bool created;
	int r = meta_format(j->redis, clock_us() + FORMAT_TIMEOUT_US, &f, &s, &created, err);

	if (r < 0)
		return r;
	(void)snprintf(key, sizeof(key), "%s/juicefs_uuid", j->name);
	if (created)
		r = probe_put(j->store, key, j->crypt, s->uuid, strlen(s->uuid), err);
	if (r == 0)
		(void)printf("%s volume %s (%s) in %s: %s\n",
			     created ? "formatted" : "unchanged:", s->name, s->uuid,
			     redis_name(j->redis), s->bucket);
	return r;
}

static int with_store(struct job *j, bool exists, struct str *err)
{
	int r = open_key(j, err);

	if (r == 0)
		r = open_store(j, err);
	if (r == 0)
		r = probe_store(j->store, j->name, j->crypt, err);
	if (r == 0 && !exists && !j->conf.force)
		r = probe_empty(j->store, j->name, err);
	return r < 0 ? r : make_volume(j, err);
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
	if (old && j->conf.no_update) {
		(void)printf("unchanged: volume %s (%s) in %s\n", old->name, old->uuid,
			     redis_name(j->redis));
		return 0;
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
	crypt_block_free(j.crypt);
	if (j.key)
		explicit_bzero(j.key, strlen(j.key));
	free(j.key);
	loop_free(j.loop);
	redis_free(j.redis);
	conf_fini(&table, &j.conf);
	str_fini(&err);
	return r < 0;
}

const struct cmd cmd_format = {"format", "make a volume", format_run, &table};
