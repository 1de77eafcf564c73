/* SPDX-License-Identifier: Apache-2.0 */
/* One function for each kind of field; the first that fails ends it. */
#include "client/cmd/config_edit.h"

#include "client/meta/config.h"
#include "client/cmd/probe.h"
#include "common/object/crypt.h"
#include "common/parse.h"

enum { TIER_MAX = 3, TRASH_DAYS_MAX = 36500 };

struct edit {
	const struct config_options *o;
	const struct setting *s;
	json_t *root;
	struct config_touch *touch;
	struct str *msg, *err;
	int r;
};

static void bad(struct edit *e, const char *option, const char *value, const char *why)
{
	if (e->r)
		return;
	e->r = -EINVAL;
	str_addf(e->err, "--%s %s: %s", option, value, why);
}

static void set(struct edit *e, json_t *object, const char *field, json_t *v)
{
	if (!v || json_object_set_new(object, field, v)) {
		if (!e->r)
			e->r = -ENOMEM;
	}
}

static const char *old_text(const json_t *object, const char *field)
{
	const char *s = json_string_value(json_object_get(object, field));

	return s ? s : "";
}

/* true: it changed */
static bool edit_text(struct edit *e, const char *option, const char *field, const char *new)
{
	const char *old = old_text(e->root, field);
	json_t *v;

	if (e->r || !new || !strcmp(old, new))
		return false;
	v = json_string(new);
	if (!v) {
		bad(e, option, "", "is not UTF-8");
		return false;
	}
	str_addf(e->msg, "%s: %s -> %s\n", option, old, new);
	set(e, e->root, field, v);
	return true;
}

static bool edit_number(struct edit *e, const char *option, const char *field, const char *new,
			uint64_t max, unsigned shift)
{
	uint64_t v, stored, old = (uint64_t)json_integer_value(json_object_get(e->root, field));

	if (e->r || !new)
		return false;
	if (parse_u64(new, max, &v)) {
		bad(e, option, new, "not a number in its range");
		return false;
	}
	stored = v << shift;
	if (stored == old)
		return false;
	str_addf(e->msg, "%s: %llu -> %llu\n", option, (unsigned long long)(old >> shift),
		 (unsigned long long)v);
	set(e, e->root, field, json_integer((json_int_t)stored));
	return true;
}

static bool edit_bool(struct edit *e, const char *option, const char *field, bool given, bool new)
{
	bool old = json_is_true(json_object_get(e->root, field));

	if (e->r || !given || old == new)
		return false;
	str_addf(e->msg, "%s: %s -> %s\n", option, old ? "true" : "false", new ? "true" : "false");
	set(e, e->root, field, json_boolean(new));
	return true;
}

/* clients that do not know what the volume has from now on are kept out */
static void need_client(struct edit *e, const char *version)
{
	const char *old = old_text(e->root, "MinClientVersion");

	if (e->r || setting_version_cmp(old, version) >= 0)
		return;
	(void)edit_text(e, "min-client-version", "MinClientVersion", version);
}

/* --- tiers --- */

static json_t *tier_of(struct edit *e, unsigned id)
{
	json_t *tiers = json_object_get(e->root, "Tiers"), *tier;
	char name[8];

	(void)snprintf(name, sizeof(name), "%u", id);
	if (!json_is_object(tiers)) {
		set(e, e->root, "Tiers", json_object());
		tiers = json_object_get(e->root, "Tiers");
	}
	tier = json_object_get(tiers, name);
	if (!json_is_object(tier) && !e->r) {
		set(e, tiers, name,
		    json_pack("{s:i,s:s,s:s}", "ID", (int)id, "StorageClass",
			      id ? "" : old_text(e->root, "StorageClass"), "Tag", ""));
		tier = json_object_get(tiers, name);
	}
	return e->r ? NULL : tier;
}

static void edit_tier_text(struct edit *e, json_t *tier, const char *option, const char *field,
			   unsigned id, const char *new)
{
	const char *old = old_text(tier, field);

	if (e->r || !new || !strcmp(old, new))
		return;
	for (const char *p = new; *p; p++)
		if (*p < ' ' || *p > '~')
			bad(e, option, new, "only plain characters");
	str_addf(e->msg, "%s of tier %u: %s -> %s\n", option, id, old, new);
	set(e, tier, field, json_string(new));
	e->touch->storage = true;
}

static void edit_tiers(struct edit *e)
{
	const struct config_options *o = e->o;
	uint64_t id = 0;
	json_t *tier;

	if (e->r || (!o->storage_class && !o->tag && !o->tier))
		return;
	if (o->tier && parse_u64(o->tier, TIER_MAX, &id)) {
		bad(e, "tier", o->tier, "0 to 3");
		return;
	}
	if (o->tag && *o->tag && !probe_tag_ok(o->tag))
		bad(e, "tag", o->tag, "KEY=VALUE, of letters, digits and \" +-._:/@\"");
	if (o->tier && !o->storage_class && !o->tag)
		bad(e, "tier", o->tier, "give its --storage-class or --tag too");
	tier = e->r ? NULL : tier_of(e, (unsigned)id);
	if (!tier)
		return;
	edit_tier_text(e, tier, "storage-class", "StorageClass", (unsigned)id, o->storage_class);
	edit_tier_text(e, tier, "tag", "Tag", (unsigned)id, o->tag);
	/* clients of before 1.4 know this one only */
	if (id == 0 && o->storage_class && json_object_get(e->root, "StorageClass"))
		set(e, e->root, "StorageClass", json_string(o->storage_class));
	if (o->tier || o->tag)
		need_client(e, "1.4.0-A");
}

/* --- secrets --- */

static bool edit_secret(struct edit *e, const char *option, const char *field, const char *new)
{
	if (e->r || !new)
		return false;
	str_addf(e->msg, "%s: updated\n", option);
	set(e, e->root, field, json_string(new));
	return true;
}

static int seal_field(const struct setting *s, json_t *root, const char *field, bool fresh)
{
	_cleanup_(freep) char *sealed = NULL;
	const char *text = json_string_value(json_object_get(root, field));
	int r;

	if (!text || !*text || !strcmp(text, "removed") || (s->sealed && !fresh))
		return 0;
	r = crypt_seal(s->uuid, setting_is_sm4(s), text, &sealed);
	if (r == 0 && json_object_set_new(root, field, json_string(sealed)))
		r = -ENOMEM;
	return r;
}

int config_seal(const struct config_options *o, const struct setting *s, json_t *root)
{
	bool secret = o->secret_key && *o->secret_key,
	     token = o->session_token && *o->session_token;
	int r;

	if (!s->sealed && !o->encrypt_secret && !secret && !token)
		return 0;
	r = seal_field(s, root, "SecretKey", o->secret_key);
	if (r == 0)
		r = seal_field(s, root, "SessionToken", o->session_token);
	if (r == 0)
		r = seal_field(s, root, "EncryptKey", false);
	if (r == 0 && json_object_set_new(root, "KeyEncrypted", json_true()))
		r = -ENOMEM;
	return r;
}

/* --- versions and files --- */

static void edit_version(struct edit *e, const char *option, const char *field, const char *new)
{
	if (new &&*new && (*new < '0' || *new > '9' || !strchr(new, '.')))
		bad(e, option, new, "not a version, such as 1.2.0");
	if (edit_text(e, option, field, new))
		e->touch->clients = true;
}

/* what the volume has needs it */
static const char *least_client(const json_t *root)
{
	if (*old_text(root, "KerbConf") || json_object_size(json_object_get(root, "Tiers")) > 1)
		return "1.4.0-A";
	if (*old_text(root, "RangerRestUrl"))
		return "1.3.0-A";
	return json_is_true(json_object_get(root, "EnableACL")) ? "1.2.0-A" : "0";
}

static void edit_versions(struct edit *e)
{
	const char *min = e->o->min_client;

	if (min && !e->o->force && setting_version_cmp(min, least_client(e->root)) < 0)
		bad(e, "min-client-version", min,
		    "older clients do not know what this volume has (ACLs, tiers …)");
	edit_version(e, "min-client-version", "MinClientVersion", min);
	edit_version(e, "max-client-version", "MaxClientVersion", e->o->max_client);
}

static void edit_kerberos(struct edit *e)
{
	char *text = NULL;
	const char *file = e->o->kerberos_file;

	if (e->r || !file)
		return;
	if (*file)
		e->r = probe_key_file(file, &text, e->err);
	if (edit_text(e, "kerberos-config-file", "KerbConf", text ? text : ""))
		need_client(e, "1.4.0-A");
	free(text);
}

static void edit_bucket(struct edit *e)
{
	const char *storage = e->o->storage ? e->o->storage : e->s->storage;
	char *bucket;

	if (!e->o->bucket || e->r)
		return;
	bucket = strdup(e->o->bucket);
	if (!bucket)
		e->r = -ENOMEM;
	else if (!strcmp(storage, "file"))
		e->r = probe_dir(&bucket, e->s->shards > 1, e->err);
	if (bucket && edit_text(e, "bucket", "Bucket", bucket))
		e->touch->storage = true;
	free(bucket);
}

static void edit_storage(struct edit *e)
{
	const struct config_options *o = e->o;
	struct config_touch *t = e->touch;

	if (edit_text(e, "storage", "Storage", o->storage))
		t->storage = true;
	edit_bucket(e);
	if (edit_text(e, "access-key", "AccessKey", o->access_key))
		t->storage = true;
	if (edit_secret(e, "secret-key", "SecretKey", o->secret_key))
		t->storage = true;
	if (edit_secret(e, "session-token", "SessionToken", o->session_token))
		t->storage = true;
	edit_tiers(e);
	(void)edit_number(e, "upload-limit", "UploadLimit", o->upload_limit, 1 << 30, 0);
	(void)edit_number(e, "download-limit", "DownloadLimit", o->download_limit, 1 << 30, 0);
}

static void edit_change_log(struct edit *e)
{
	enum { TWO_HOURS = 7200 };
	uint64_t us;

	if (e->o->log_age && !e->r) {
		if (parse_duration(e->o->log_age, &us))
			bad(e, "changelog-max-age", e->o->log_age, "not a time, such as 2h");
		else {
			str_addf(e->msg, "changelog-max-age: %llu s\n",
				 (unsigned long long)(us / 1000000));
			set(e, e->root, "ChangeLogMaxAge",
			    json_integer((json_int_t)(us / 1000000)));
		}
	}
	(void)edit_number(e, "changelog-max-lines", "ChangeLogMaxLines", e->o->log_lines, INT64_MAX,
			  0);
	if (edit_bool(e, "changelog", "ChangeLog", e->o->log_given, e->o->change_log) &&
	    e->o->change_log && !e->o->log_age &&
	    !json_integer_value(json_object_get(e->root, "ChangeLogMaxAge"))) {
		str_addf(e->msg, "changelog-max-age: %d s (default)\n", TWO_HOURS);
		set(e, e->root, "ChangeLogMaxAge", json_integer(TWO_HOURS));
	}
}

static void edit_features(struct edit *e)
{
	const struct config_options *o = e->o;
	struct config_touch *t = e->touch;

	if (o->acl_given && !o->enable_acl && e->s->enable_acl)
		bad(e, "enable-acl", "false", "ACLs cannot be disabled again");
	if (edit_bool(e, "enable-acl", "EnableACL", o->acl_given, o->enable_acl))
		need_client(e, "1.2.0-A");
	if (edit_bool(e, "dir-stats", "DirStats", o->stats_given, o->dir_stats)) {
		t->stats_off = !o->dir_stats;
		t->reset |= o->dir_stats ? CONFIG_DIR_STATS : 0;
	}
	if (edit_bool(e, "user-group-quota", "UserGroupQuota", o->ug_given, o->user_group_quota))
		t->reset |= o->user_group_quota ? CONFIG_USER_GROUP : 0;
	if (edit_text(e, "ranger-rest-url", "RangerRestUrl", o->ranger_url))
		need_client(e, "1.3.0-A");
	if (edit_text(e, "ranger-service", "RangerService", o->ranger_service))
		need_client(e, "1.3.0-A");
	edit_kerberos(e);
	edit_change_log(e);
}

int config_edit(const struct config_options *o, const struct setting *s, json_t *root,
		struct config_touch *ret, struct str *msg, struct str *err)
{
	struct edit e = {.o = o, .s = s, .root = root, .touch = ret, .msg = msg, .err = err};

	*ret = (struct config_touch){.reset = 0};
	edit_storage(&e);
	if (edit_number(&e, "capacity", "Capacity", o->capacity, UINT64_C(1) << 33, 30))
		ret->quota = true;
	if (edit_number(&e, "inodes", "Inodes", o->inodes, INT64_MAX, 0))
		ret->quota = true;
	if (edit_number(&e, "trash-days", "TrashDays", o->trash_days, TRASH_DAYS_MAX, 0))
		ret->trash = true;
	edit_features(&e);
	edit_versions(&e);
	if (o->encrypt_secret && !s->sealed &&
	    (s->secret_key || s->session_token || s->encrypt_key))
		str_add(msg, "encrypt-secret: secrets are sealed\n");
	return e.r ? e.r : str_error(msg);
}
