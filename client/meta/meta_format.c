/* SPDX-License-Identifier: Apache-2.0 */
/* A new volume: `setting` as JuiceFS writes it (its fields, its order, one element a line), and the
 * records of the two roots. One script writes all of it, so two formats at once make one volume.
 * Blocks; any thread. */
#include "client/meta/config.h"
#include "client/meta/engine.h"
#include "client/meta/reply.h"

#include <jansson.h>
#include <strings.h>

#include "common/clock.h"
#include "common/embed.h"
#include "common/object/crypt.h"

EMBED(lua_format, "client/meta/format.lua");
extern const char lua_prelude[] __attribute__((visibility("hidden"))); /* meta_redis.c */

/* "Name": "text" with a comma before it unless it is the first */
static void add_text(struct str *out, const char *field, const char *text)
{
	json_t *j = json_string(text);
	char *quoted = j ? json_dumps(j, JSON_ENCODE_ANY) : NULL;

	if (quoted)
		str_addf(out, "%s\n\"%s\": %s", out->len > 1 ? "," : "", field, quoted);
	else
		out->err = j ? -ENOMEM : -EINVAL; /* not UTF-8 */
	free(quoted);
	json_decref(j);
}

static void add_number(struct str *out, const char *field, uint64_t v)
{
	str_addf(out, ",\n\"%s\": %llu", field, (unsigned long long)v);
}

static void add_sealed(struct str *out, const char *field, const char *uuid, bool sm4,
		       const char *plain)
{
	_cleanup_(freep) char *sealed = NULL;

	if (crypt_seal(uuid, sm4, plain, &sealed) == 0)
		add_text(out, field, sealed);
	else
		out->err = -ENOMEM;
}

static bool given(const char *s)
{
	return s && *s;
}

static const char *text_of(const char *s)
{
	return s ? s : "";
}

static void add_tier(struct str *out, const struct format_request *f)
{
	str_add(out, ",\n\"Tiers\": {\n\"0\": {\n\"ID\": 0");
	add_text(out, "StorageClass", text_of(f->storage_class));
	add_text(out, "Tag", text_of(f->tag));
	str_add(out, "\n}\n}");
}

static void add_keys(struct str *out, const struct format_request *f, const char *uuid)
{
	bool sm4 = f->encrypt_algo && !strcasecmp(f->encrypt_algo, "sm4gcm");

	if (given(f->access_key))
		add_text(out, "AccessKey", f->access_key);
	if (given(f->secret_key))
		add_sealed(out, "SecretKey", uuid, sm4, f->secret_key);
	if (given(f->session_token))
		add_sealed(out, "SessionToken", uuid, sm4, f->session_token);
}

/* a client that does not know what the volume has must not mount it */
static const char *least_client(const struct format_request *f)
{
	return given(f->tag) ? "1.4.0-A" : f->enable_acl ? "1.2.0-A" : "1.1.0-A";
}

/* an empty field is left out where JuiceFS leaves it out */
static int setting_text(const struct format_request *f, const char *uuid, struct str *out)
{
	_cleanup_(str_fini) struct str bucket = STR_INIT;
	bool sm4 = f->encrypt_algo && !strcasecmp(f->encrypt_algo, "sm4gcm");
	bool secrets = given(f->secret_key) || given(f->session_token) || given(f->encrypt_key);

	str_add(&bucket, f->bucket);
	if (!strcmp(f->storage, "file") && bucket.len && bucket.s[bucket.len - 1] != '/')
		str_add(&bucket, "/");
	str_add(out, "{");
	add_text(out, "Name", f->name);
	add_text(out, "UUID", uuid);
	add_text(out, "Storage", f->storage);
	if (given(f->storage_class))
		add_text(out, "StorageClass", f->storage_class);
	add_tier(out, f);
	add_text(out, "Bucket", str_c(&bucket));
	add_keys(out, f, uuid);
	add_number(out, "BlockSize", f->block_size / 1024);
	add_text(out, "Compression", codec_name(f->codec));
	if (f->shards > 1)
		add_number(out, "Shards", f->shards);
	if (f->hash_prefix)
		str_add(out, ",\n\"HashPrefix\": true");
	if (f->capacity)
		add_number(out, "Capacity", f->capacity);
	if (f->inodes)
		add_number(out, "Inodes", f->inodes);
	if (given(f->encrypt_key))
		add_sealed(out, "EncryptKey", uuid, sm4, f->encrypt_key);
	add_text(out, "EncryptAlgo", f->encrypt_algo ? f->encrypt_algo : "aes256gcm-rsa");
	if (secrets)
		str_add(out, ",\n\"KeyEncrypted\": true");
	add_number(out, "TrashDays", f->trash_days);
	add_number(out, "MetaVersion", 1);
	add_text(out, "MinClientVersion", least_client(f));
	str_addf(out, ",\n\"DirStats\": true,\n\"EnableACL\": %s\n}",
		 f->enable_acl ? "true" : "false");
	if (out->err == -EINVAL || bucket.err)
		return out->err ? out->err : -ENOMEM;
	return str_error(out);
}

/* what can never change on a volume that is there */
static int same_volume(const struct setting *s, const struct format_request *f, struct str *err)
{
	const char *field = NULL;

	if (strcmp(s->name, f->name) != 0) {
		str_addf(err, "the database holds the volume \"%s\" already", s->name);
		return -EEXIST;
	}
	if (s->block_size != f->block_size)
		field = "block size";
	else if (s->codec != f->codec)
		field = "compression";
	else if (s->hash_prefix != f->hash_prefix)
		field = "hash prefix";
	else if (strcmp(s->storage, f->storage) != 0)
		field = "storage";
	else if (MAX(s->shards, 1U) != MAX(f->shards, 1U))
		field = "number of shards";
	else if (s->encrypted != given(f->encrypt_key))
		field = "encryption";
	if (!field)
		return 0;
	str_addf(err, "the volume \"%s\" is there already with another %s, which cannot change",
		 s->name, field);
	return -EEXIST;
}

size_t meta_root_record(uint16_t mode, uint8_t ret[ATTR_MAX])
{
	struct attr a = {.type = INODE_DIR, .mode = mode, .nlink = 2, .length = 4096};

	clock_real(&a.atime.sec, &a.atime.nsec);
	a.atime.nsec = 0; /* whole seconds, as JuiceFS has it */
	a.mtime = a.ctime = a.atime;
	a.parent = INODE_ROOT;
	return attr_encode(&a, ret);
}

static int format_eval(struct redis *r, uint64_t deadline_us, const struct str *text,
		       unsigned trash_days, struct redis_reply **ret)
{
	uint8_t root[ATTR_MAX], trash[ATTR_MAX];
	size_t root_len = meta_root_record(0777, root), trash_len = meta_root_record(0555, trash);
	char setting[REDIS_PREFIX_MAX + 8];
	const char *v[] = {setting, str_c(text), (const char *)root, (const char *)trash};
	size_t len[] = {(size_t)snprintf(setting, sizeof(setting), "%ssetting", redis_prefix(r)),
			text->len, root_len, trash_days ? trash_len : 0};
	struct redis_script script;
	int rc = redis_script_init(&script, "format", lua_prelude, lua_format);

	if (rc)
		return rc;
	/* asked twice because the answer was lost, it finds its own setting */
	rc = redis_eval(r, deadline_us, &script, 1, ARRAY_LEN(v), v, len, ret);
	redis_script_fini(&script);
	return rc;
}

int meta_format(struct redis *r, uint64_t deadline_us, const struct format_request *f,
		struct setting **ret, bool *ret_created, struct str *err)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	_cleanup_(setting_freep) struct setting *s = NULL;
	_cleanup_(str_fini) struct str text = STR_INIT;
	char uuid[37];
	const char *there;
	size_t n;
	int rc;

	crypt_uuid(uuid);
	rc = setting_text(f, uuid, &text);
	if (rc == -EINVAL)
		str_add(err, "name, bucket and keys must be UTF-8");
	if (!rc)
		rc = format_eval(r, deadline_us, &text, f->trash_days, &reply);
	if (rc == -EEXIST)
		str_addf(err, "%s holds something else than a volume: choose an empty database",
			 redis_name(r));
	else if (rc && err->len == 0)
		str_addf(err, "%s: %s", redis_name(r), strerror(-rc));
	if (rc)
		return rc;
	there = reply_text(reply_at(reply, 1), &n);
	rc = there ? setting_parse(there, n, &s, err)
		   : setting_parse(str_c(&text), text.len, &s, err);
	if (rc)
		return rc;
	rc = same_volume(s, f, err);
	if (rc)
		return rc;
	*ret_created = !there || !strcmp(s->uuid, uuid);
	*ret = TAKE_PTR(s);
	return 0;
}
