/* SPDX-License-Identifier: Apache-2.0 */
/* The volume's setting: JSON that JuiceFS writes (docs/format.md §2.2), read field by field, never
 * written back. No state; the calls with a struct redis block. */
#include "common/block/setting.h"

#include <ctype.h>
#include <jansson.h>
#include <pthread.h>
#include <strings.h>

#include "common/object/crypt.h"
#include "common/parse.h"
#include "proto/frame.h"

enum { SETTING_MAX = 1 << 20, NAME_LEN_MAX = 63, UUID_LEN = 36 };

/* --- fields --- */

struct reader {
	const json_t *root;
	struct str *err;
	int r;
};

static void fail(struct reader *rd, int r, const char *field, const char *what)
{
	if (rd->r)
		return;
	rd->r = r;
	str_addf(rd->err, "setting: %s %s", field, what);
}

/* NULL when absent, which is an error if must */
static const char *get_text(struct reader *rd, const char *field, bool must)
{
	const json_t *v = json_object_get(rd->root, field);

	if (v && json_is_string(v))
		return json_string_value(v);
	if (v && !json_is_null(v))
		fail(rd, -EINVAL, field, "is not a text");
	else if (must)
		fail(rd, -EINVAL, field, "is missing");
	return NULL;
}

static uint64_t get_number(struct reader *rd, const char *field, uint64_t max)
{
	const json_t *v = json_object_get(rd->root, field);

	if (!v || json_is_null(v))
		return 0;
	if (!json_is_integer(v) || json_integer_value(v) < 0 ||
	    (uint64_t)json_integer_value(v) > max) {
		fail(rd, -EINVAL, field, "is not a number in its range");
		return 0;
	}
	return (uint64_t)json_integer_value(v);
}

static bool get_bool(struct reader *rd, const char *field)
{
	const json_t *v = json_object_get(rd->root, field);

	if (v && !json_is_null(v) && !json_is_boolean(v))
		fail(rd, -EINVAL, field, "is neither true nor false");
	return v && json_is_true(v);
}

static char *copy(struct reader *rd, const char *s)
{
	char *c = s ? strdup(s) : NULL;

	if (s && !c && !rd->r)
		rd->r = -ENOMEM;
	return c;
}

static char *get_copy(struct reader *rd, const char *field, bool must)
{
	return copy(rd, get_text(rd, field, must));
}

static bool has_text(struct reader *rd, const char *field)
{
	const char *s = get_text(rd, field, false);

	return s && *s;
}

/* --- checks of single fields --- */

static void read_name(struct reader *rd, struct setting *s)
{
	s->name = get_copy(rd, "Name", true);
	if (!s->name)
		return;
	if (!*s->name || strlen(s->name) > NAME_LEN_MAX)
		fail(rd, -EINVAL, "Name", "has a length outside 1 to 63");
	for (const char *p = s->name; *p; p++)
		if (!isalnum((unsigned char)*p) && *p != '-' && *p != '_' && *p != '.')
			fail(rd, -EINVAL, "Name", "has a character that no volume's name has");
	if (!strcmp(s->name, ".") || !strcmp(s->name, ".."))
		fail(rd, -EINVAL, "Name", "is no name");
}

static void read_uuid(struct reader *rd, struct setting *s)
{
	s->uuid = get_copy(rd, "UUID", true);
	if (s->uuid &&
	    (strlen(s->uuid) != UUID_LEN || strspn(s->uuid, "0123456789abcdefABCDEF-") != UUID_LEN))
		fail(rd, -EINVAL, "UUID", "is not a UUID");
}

static void read_block_size(struct reader *rd, struct setting *s)
{
	uint64_t kib = get_number(rd, "BlockSize", FRAME_BLOCK_MAX >> 10);

	if (kib < 64 || (kib & (kib - 1)))
		fail(rd, -EINVAL, "BlockSize", "is not a power of two from 64 KiB to 16 MiB");
	s->block_size = (uint32_t)kib << 10;
}

static void read_codec(struct reader *rd, struct setting *s)
{
	const char *name = get_text(rd, "Compression", false);

	s->compression = copy(rd, name ? name : "");
	if (codec_parse(name ? name : "", &s->codec))
		s->codec = CODEC_NONE; /* setting_check names it */
}

/* the text of what is absent is "" */
static void set_tier(struct reader *rd, struct object_tier *t, unsigned id, const char *class,
		     const char *tag)
{
	free(t->storage_class);
	free(t->tag);
	t->id = (uint8_t)id;
	t->storage_class = copy(rd, class ? class : "");
	t->tag = copy(rd, tag ? tag : "");
}

/* a header's value: what cannot stand there would end it, or the request */
static bool is_header_text(const char *s)
{
	for (; s && *s; s++)
		if (*s < ' ' || *s > '~')
			return false;
	return true;
}

static void read_tier(struct reader *rd, struct setting *s, const char *id, json_t *tier)
{
	struct reader tr = {.root = tier, .err = rd->err};
	const char *class, *tag;
	uint64_t n;

	if (!json_is_object(tier) || parse_u64(id, UINT8_MAX, &n) < 0) {
		fail(rd, -EINVAL, "Tiers", "holds what is no tier");
		return;
	}
	class = get_text(&tr, "StorageClass", false);
	tag = get_text(&tr, "Tag", false);
	if (tr.r)
		rd->r = tr.r;
	else if (!is_header_text(class) || !is_header_text(tag))
		fail(rd, -EINVAL, "Tiers", "holds a text that no request can carry");
	else
		set_tier(rd, &s->tiers[n ? s->n_tiers++ : 0], (unsigned)n, class, tag);
}

/* Tier 0 is what StorageClass says where Tiers, which came with 1.4, does not name it. */
static void read_tiers(struct reader *rd, struct setting *s)
{
	json_t *tiers = json_object_get(rd->root, "Tiers");
	const char *class = get_text(rd, "StorageClass", false), *id;
	json_t *tier;

	if (!is_header_text(class))
		fail(rd, -EINVAL, "StorageClass", "is a text that no request can carry");
	if (tiers && !json_is_null(tiers) && !json_is_object(tiers))
		fail(rd, -EINVAL, "Tiers", "is not an object");
	if (rd->r)
		return;
	s->tiers = calloc(1 + json_object_size(tiers), sizeof(*s->tiers));
	if (!s->tiers) {
		rd->r = -ENOMEM;
		return;
	}
	s->n_tiers = 1;
	set_tier(rd, &s->tiers[0], 0, class, NULL);
	json_object_foreach(tiers, id, tier)
	{
		if (!rd->r)
			read_tier(rd, s, id, tier);
	}
}

static char *read_secret(struct reader *rd, const struct setting *s, const char *field)
{
	const char *text = get_text(rd, field, false);
	char *plain = NULL;
	int r;

	if (!text || !*text)
		return NULL;
	if (!strcmp(text, "removed")) {
		fail(rd, -EBADMSG, field, "was removed when the volume was dumped; set it again");
		return NULL;
	}
	if (!s->sealed)
		return copy(rd, text);
	r = crypt_unseal(s->uuid, setting_is_sm4(s), text, &plain);
	if (r == -ENOMEM && !rd->r)
		rd->r = r;
	else if (r)
		fail(rd, -EBADMSG, field, "does not unseal with the volume's UUID");
	return plain;
}

static void read_secrets(struct reader *rd, struct setting *s)
{
	const char *algo = get_text(rd, "EncryptAlgo", false);

	s->encrypt_algo = copy(rd, algo ? algo : "");
	s->sealed = get_bool(rd, "KeyEncrypted");
	s->access_key = get_copy(rd, "AccessKey", false);
	s->encrypted = has_text(rd, "EncryptKey");
	if (rd->r)
		return;
	s->secret_key = read_secret(rd, s, "SecretKey");
	s->session_token = read_secret(rd, s, "SessionToken");
	s->encrypt_key = read_secret(rd, s, "EncryptKey");
}

static void read_fields(struct reader *rd, struct setting *s)
{
	read_name(rd, s);
	read_uuid(rd, s);
	s->storage = get_copy(rd, "Storage", true);
	s->bucket = get_copy(rd, "Bucket", true);
	read_block_size(rd, s);
	read_codec(rd, s);
	read_secrets(rd, s);
	s->hash_prefix = get_bool(rd, "HashPrefix");
	s->dir_stats = get_bool(rd, "DirStats");
	s->user_group_quota = get_bool(rd, "UserGroupQuota");
	s->enable_acl = get_bool(rd, "EnableACL");
	s->change_log = get_bool(rd, "ChangeLog");
	s->log_max_age = get_number(rd, "ChangeLogMaxAge", INT64_MAX);
	s->log_max_lines = get_number(rd, "ChangeLogMaxLines", INT64_MAX);
	read_tiers(rd, s);
	s->kerberos = has_text(rd, "KerbConf");
	s->ranger = has_text(rd, "RangerRestUrl");
	s->shards = (unsigned)get_number(rd, "Shards", 256);
	s->trash_days = (unsigned)get_number(rd, "TrashDays", 100000);
	s->meta_version = (unsigned)get_number(rd, "MetaVersion", 1000000);
	s->capacity = get_number(rd, "Capacity", INT64_MAX);
	s->inodes = get_number(rd, "Inodes", INT64_MAX);
	s->upload_limit = get_number(rd, "UploadLimit", 1 << 30);
	s->download_limit = get_number(rd, "DownloadLimit", 1 << 30);
	s->min_client = get_copy(rd, "MinClientVersion", false);
	s->max_client = get_copy(rd, "MaxClientVersion", false);
}

/* Without memory jansson cuts texts short and goes on as if nothing was (seen with 2.14), so
 * failures are noted here. */
static _Thread_local bool no_memory;
static pthread_once_t noting = PTHREAD_ONCE_INIT;

static void *noting_malloc(size_t n)
{
	void *p = malloc(n);

	if (!p)
		no_memory = true;
	return p;
}

static void note_failures(void)
{
	json_set_alloc_funcs(noting_malloc, free);
}

static int parse_root(const json_t *root, const char *json, size_t n, struct setting **ret,
		      struct str *err)
{
	struct reader rd = {.root = root, .err = err};
	struct setting *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	read_fields(&rd, s);
	s->text = strndup(json, n);
	if (!rd.r && !s->text)
		rd.r = -ENOMEM;
	if (rd.r)
		setting_free(s);
	else
		*ret = s;
	return rd.r;
}

int setting_parse(const char *json, size_t n, struct setting **ret, struct str *err)
{
	json_error_t at;
	json_t *root;
	int r = -EINVAL;

	if (n > SETTING_MAX) {
		str_addf(err, "setting: %zu bytes are too many", n);
		return -EINVAL;
	}
	if (memchr(json, 0, n)) { /* jansson takes some for white space */
		str_addf(err, "setting: holds a zero byte");
		return -EINVAL;
	}
	pthread_once(&noting, note_failures);
	no_memory = false;
	root = json_loadb(json, n, 0, &at);
	if (no_memory)
		r = -ENOMEM;
	else if (!root)
		str_addf(err, "setting: not JSON: %s at byte %d", at.text, at.position);
	else if (!json_is_object(root))
		str_addf(err, "setting: JSON, but not an object");
	else
		r = parse_root(root, json, n, ret, err);
	json_decref(root);
	return r;
}

static void free_secret(char *s)
{
	if (s)
		explicit_bzero(s, strlen(s));
	free(s);
}

void setting_free(struct setting *s)
{
	if (!s)
		return;
	free(s->name);
	free(s->uuid);
	free(s->storage);
	free(s->bucket);
	free(s->compression);
	free(s->access_key);
	free_secret(s->secret_key);
	free_secret(s->session_token);
	free_secret(s->encrypt_key);
	free(s->encrypt_algo);
	for (size_t i = 0; i < s->n_tiers; i++) {
		free(s->tiers[i].storage_class);
		free(s->tiers[i].tag);
	}
	free(s->tiers);
	free(s->min_client);
	free(s->max_client);
	free_secret(s->text);
	free(s);
}

void setting_freep(struct setting **s)
{
	setting_free(*s);
}

/* --- for people --- */

/* user and password in front of the host become four stars */
static int redact_url(json_t *root)
{
	const char *url = json_string_value(json_object_get(root, "Bucket"));
	const char *host = url ? strstr(url, "://") : NULL;
	size_t n;

	if (!host)
		return 0;
	host += 3;
	n = strcspn(host, "/?");
	const char *at = memrchr(host, '@', n);

	if (!at)
		return 0;
	return json_object_set_new(root, "Bucket",
				   json_sprintf("%.*s****%s", (int)(host - url), url, at));
}

static bool is_secret(const char *key)
{
	return strcmp(key, "SecretKey") == 0 || strcmp(key, "SessionToken") == 0 ||
	       strcmp(key, "EncryptKey") == 0;
}

/* secrets at any depth: nobody knows what other clients put into a setting */
static int redact_secrets(json_t *node)
{
	const char *key;
	json_t *value;
	size_t i;
	int r = 0;

	json_array_foreach(node, i, value)
	{
		r = redact_secrets(value);
		if (r)
			return r;
	}
	json_object_foreach(node, key, value)
	{
		const char *text = json_string_value(value);

		if (!is_secret(key))
			r = redact_secrets(value);
		else if (!text || *text)
			r = json_object_set_new(node, key, json_string("****"));
		if (r)
			return r;
	}
	return 0;
}

int setting_redacted(const struct setting *s, struct str *out)
{
	json_t *root = json_loads(s->text, 0, NULL);
	char *text = NULL;
	int r = root ? redact_url(root) : -1;

	if (!r)
		r = redact_secrets(root);
	if (!r)
		text = json_dumps(root, JSON_INDENT(2));
	json_decref(root);
	if (!text)
		return -ENOMEM;
	str_add(out, text);
	free(text);
	return str_error(out);
}

/* --- what is handled --- */

struct version {
	unsigned long number[3];
	const char *pre;
	size_t pre_len;
};

static struct version version_of(const char *s)
{
	struct version v = {.pre = ""};
	size_t n = strcspn(s, "+");
	const char *dash = memchr(s, '-', n), *end = dash ? dash : s + n;

	if (dash) {
		v.pre = dash + 1;
		v.pre_len = n - (size_t)(dash + 1 - s);
	}
	for (int i = 0; i < 3 && s < end; i++) {
		for (; s < end && isdigit((unsigned char)*s); s++)
			if (v.number[i] < 100000000)
				v.number[i] = v.number[i] * 10 + (unsigned long)(*s - '0');
		while (s < end && *s != '.')
			s++;
		if (s < end)
			s++;
	}
	return v;
}

int setting_version_cmp(const char *a, const char *b)
{
	struct version x = version_of(a), y = version_of(b);
	int r;

	for (int i = 0; i < 3; i++)
		if (x.number[i] != y.number[i])
			return x.number[i] < y.number[i] ? -1 : 1;
	/* a release comes after its pre-releases */
	if (!x.pre_len || !y.pre_len)
		return (x.pre_len == 0) - (y.pre_len == 0);
	r = memcmp(x.pre, y.pre, MIN(x.pre_len, y.pre_len));
	if (r)
		return r < 0 ? -1 : 1;
	return (x.pre_len > y.pre_len) - (x.pre_len < y.pre_len);
}

static int check_versions(const struct setting *s, struct str *why)
{
	if (s->meta_version > 1)
		str_addf(why, "metadata of version %u (1 is known)", s->meta_version);
	else if (s->min_client && *s->min_client &&
		 setting_version_cmp(s->min_client, SETTING_AS_JUICEFS) > 0)
		str_addf(why, "clients before %s (this one counts as %s)", s->min_client,
			 SETTING_AS_JUICEFS);
	else if (s->max_client && *s->max_client &&
		 setting_version_cmp(s->max_client, SETTING_AS_JUICEFS) < 0)
		str_addf(why, "clients after %s (this one counts as %s)", s->max_client,
			 SETTING_AS_JUICEFS);
	else
		return 0;
	return -EPROTONOSUPPORT;
}

int setting_check(const struct setting *s, struct str *ret_why)
{
	enum codec codec;
	int r = check_versions(s, ret_why);

	if (r == 0 && codec_parse(s->compression, &codec) != 0) {
		str_addf(ret_why, "compression %s", s->compression);
		r = -EOPNOTSUPP;
	}
	return r;
}

/* --- in Redis --- */

int setting_load(struct redis *r, uint64_t deadline_us, struct setting **ret, struct str *err)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	const char *text;
	size_t n;
	int rc = redis_once(r, deadline_us, &reply, "GET %ssetting", redis_prefix(r));

	if (rc) {
		str_addf(err, "%s: %s", redis_name(r), strerror(-rc));
		return rc;
	}
	text = redis_reply_str(reply, &n);
	if (!text) {
		str_addf(err, "%s: no volume in this database; make one with \"stoke format\"",
			 redis_name(r));
		return -ENOENT;
	}
	return setting_parse(text, n, ret, err);
}

/* KEYS setting, _gen; ARGV the value to set, or "". Sending it twice is harmless: the second time
 * finds the value of the first. */
static const char generation_lua[] = "if redis.call('EXISTS', KEYS[1]) == 0 then return false end\n"
				     "local g = redis.call('GET', KEYS[2])\n"
				     "if g or ARGV[1] == '' then return g end\n"
				     "redis.call('SET', KEYS[2], ARGV[1])\n"
				     "return ARGV[1]\n";

int volume_generation(struct redis *r, uint64_t deadline_us, bool create, struct generation *ret)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct redis_script script;
	struct generation fresh;
	char setting[REDIS_PREFIX_MAX + 8], gen[REDIS_PREFIX_MAX + 8];
	const char *argv[] = {setting, gen, (const char *)fresh.b};
	size_t lens[3] = {0, 0, create ? sizeof(fresh.b) : 0};
	const char *text;
	size_t n;
	int rc;

	lens[0] = (size_t)snprintf(setting, sizeof(setting), "%ssetting", redis_prefix(r));
	lens[1] = (size_t)snprintf(gen, sizeof(gen), "%s_gen", redis_prefix(r));
	crypt_random(fresh.b, sizeof(fresh.b));
	rc = redis_script_init(&script, "generation", "", generation_lua);
	if (rc)
		return rc;
	rc = redis_eval(r, deadline_us, &script, 2, 3, argv, lens, &reply);
	redis_script_fini(&script);
	if (rc)
		return rc;
	text = redis_reply_str(reply, &n);
	if (!text)
		return -ENOENT;
	if (n != sizeof(ret->b))
		return -EBADMSG;
	memcpy(ret->b, text, n);
	return 0;
}

struct hash128 volume_id(const char *uuid, const struct generation *gen)
{
	uint8_t text[UUID_LEN + sizeof(gen->b)];

	assert(strlen(uuid) == UUID_LEN);
	memcpy(text, uuid, UUID_LEN);
	memcpy(text + UUID_LEN, gen->b, sizeof(gen->b));
	return hash128(text, sizeof(text));
}
