/* SPDX-License-Identifier: Apache-2.0 */
/* The setting as text, and its change in one step against everybody else's. Blocks; any thread. */
#include "client/meta/config.h"

#include "client/meta/attr.h"
#include "client/meta/engine.h"
#include "common/embed.h"

EMBED(lua_config, "client/meta/config.lua");

/* in JuiceFS's order; always: also when it is empty */
static const struct {
	const char *name;
	bool always;
} fields[] = {
	{"Name", true},
	{"UUID", true},
	{"Storage", true},
	{"StorageClass", false},
	{"Tiers", true},
	{"Bucket", true},
	{"AccessKey", false},
	{"SecretKey", false},
	{"SessionToken", false},
	{"BlockSize", true},
	{"Compression", false},
	{"Shards", false},
	{"HashPrefix", false},
	{"Capacity", false},
	{"Inodes", false},
	{"EncryptKey", false},
	{"EncryptAlgo", false},
	{"KeyEncrypted", false},
	{"UploadLimit", false},
	{"DownloadLimit", false},
	{"TrashDays", true},
	{"MetaVersion", false},
	{"MinClientVersion", false},
	{"MaxClientVersion", false},
	{"DirStats", false},
	{"UserGroupQuota", false},
	{"EnableACL", true},
	{"RangerRestUrl", false},
	{"RangerService", false},
	{"ChangeLog", false},
	{"ChangeLogMaxAge", false},
	{"ChangeLogMaxLines", false},
	{"KerbConf", false},
};

static bool is_empty(const json_t *v)
{
	const char *s = json_string_value(v);

	return json_is_null(v) || json_is_false(v) || (s && !*s) ||
	       (json_is_integer(v) && json_integer_value(v) == 0);
}

static bool is_known(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(fields); i++)
		if (strcmp(name, fields[i].name) == 0)
			return true;
	return false;
}

static json_t *in_order(const json_t *root)
{
	json_t *out = json_object(), *v;
	const char *name;
	int r = out ? 0 : -1;

	for (size_t i = 0; i < ARRAY_LEN(fields) && r == 0; i++) {
		v = json_object_get(root, fields[i].name);
		if (v && (fields[i].always || !is_empty(v)))
			r = json_object_set(out, fields[i].name, v);
	}
	json_object_foreach((json_t *)(uintptr_t)root, name, v)
	{
		if (r == 0 && !is_known(name))
			r = json_object_set(out, name, v);
	}
	if (r) {
		json_decref(out);
		return NULL;
	}
	return out;
}

int setting_write(const json_t *root, struct str *out)
{
	json_t *ordered = in_order(root);
	char *text = ordered ? json_dumps(ordered, JSON_INDENT(1)) : NULL;

	json_decref(ordered);
	if (!text)
		return -ENOMEM;
	/* Go's writer with an empty indent: lines begin at once. No text holds a line's end. */
	for (const char *p = text; *p;) {
		const char *end = strchrnul(p, '\n');

		str_addn(out, p, (size_t)(end - p) + (*end != 0));
		p = end + (*end != 0);
		p += strspn(p, " ");
	}
	explicit_bzero(text, strlen(text));
	free(text);
	return str_error(out);
}

int setting_replace(struct redis *r, uint64_t deadline_us, const struct config_request *c)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	char key[REDIS_PREFIX_MAX + 8];
	uint8_t trash[ATTR_MAX];
	const char *v[] = {key,
			   c->old,
			   c->text,
			   c->reset & CONFIG_DIR_STATS ? "1" : "0",
			   c->reset & CONFIG_USER_GROUP ? "1" : "0",
			   c->change_log ? "1" : "0",
			   (const char *)trash};
	size_t len[] = {(size_t)snprintf(key, sizeof(key), "%ssetting", redis_prefix(r)),
			strlen(c->old),
			strlen(c->text),
			1,
			1,
			1,
			c->has_trash ? meta_root_record(0555, trash) : 0};
	struct redis_script script;
	int rc = redis_script_init(&script, "config", "", lua_config);

	if (rc)
		return rc;
	rc = redis_eval(r, deadline_us, &script, 1, ARRAY_LEN(v), v, len, &reply);
	redis_script_fini(&script);
	if (rc)
		return rc;
	return redis_reply_int(reply) == 1 ? 0 : -EAGAIN;
}
