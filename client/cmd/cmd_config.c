/* SPDX-License-Identifier: Apache-2.0 */
/* stoke config: shows the setting of a volume, or changes it. Only what is given changes; fields
 * that this program does not know stay. What is written is tried first (object store, limits), what
 * cannot be undone is asked, and nothing is written over somebody else's change: then it begins
 * anew. One thread; blocks. */
#include "client/cmd/config_edit.h"
#include "client/cmd/maint.h"
#include "client/meta/config.h"
#include "client/cmd/probe.h"
#include "common/clock.h"
#include "common/loop.h"

enum { TIMEOUT_US = 30000000, ATTEMPTS = 5 };

#define TEXT(name, member, help)                                                                   \
	{                                                                                          \
		name, 0, CONF_STR, offsetof(struct config_options, member), NULL, NULL, help       \
	}
#define FLAG(name, letter, member, help)                                                           \
	{                                                                                          \
		name, letter, CONF_FLAG, offsetof(struct config_options, member), "false", NULL,   \
			help                                                                       \
	}

static const struct conf_option options[] = {
	TEXT("storage", storage, "object storage: s3 (or a JuiceFS name of one), file"),
	TEXT("bucket", bucket, "URL of the bucket, or a directory"),
	TEXT("access-key", access_key, "access key of the object store"),
	TEXT("secret-key", secret_key,
	     "its secret key; \"env\" takes it from the environment variable SECRET_KEY, where "
	     "other "
	     "processes do not see it"),
	TEXT("session-token", session_token,
	     "its session token; \"env\" takes it from the environment variable SESSION_TOKEN"),
	TEXT("storage-class", storage_class, "storage class of new objects (of --tier, else 0)"),
	TEXT("tag", tag, "KEY=VALUE: tag of new objects (of --tier, else 0)"),
	TEXT("tier", tier, "0 to 3: whose --storage-class and --tag are given"),
	TEXT("upload-limit", upload_limit, "what each client may upload, Mbit/s; 0: no limit"),
	TEXT("download-limit", download_limit,
	     "what each client may download, Mbit/s; 0: no limit"),
	TEXT("capacity", capacity, "limit of the volume in GiB; 0: none"),
	TEXT("inodes", inodes, "limit of files; 0: none"),
	TEXT("trash-days", trash_days,
	     "days that removed files stay in .trash; 0: removed at once"),
	FLAG("enable-acl", 0, enable_acl, "POSIX ACLs; for good"),
	TEXT("ranger-rest-url", ranger_url, "URL of Ranger, for JuiceFS's Java clients"),
	TEXT("ranger-service", ranger_service, "name of the service in Ranger"),
	TEXT("kerberos-config-file", kerberos_file, "file for JuiceFS's Java clients"),
	FLAG("encrypt-secret", 0, encrypt_secret, "seal secrets that are stored in plain"),
	TEXT("min-client-version", min_client, "older clients are refused"),
	TEXT("max-client-version", max_client, "newer clients are refused"),
	FLAG("dir-stats", 0, dir_stats, "keep sums of directories, which directory quotas need"),
	FLAG("user-group-quota", 0, user_group_quota, "keep usage and quotas of users and groups"),
	FLAG("changelog", 0, change_log, "keep a log of all changes"),
	TEXT("changelog-max-age", log_age, "how long its lines stay; 0: for good"),
	TEXT("changelog-max-lines", log_lines, "how many of them stay; 0: all"),
	FLAG("yes", 'y', yes, "do not ask"),
	FLAG("force", 0, force, "do not check whether the new values make sense"),
};

static const struct conf_table table = {
	.options = options,
	.n = ARRAY_LEN(options),
	.usage = "stoke config [options] META",
	.summary = "show the setting of a volume, or change what is given",
	.min_args = 1,
	.max_args = 1,
};

struct job {
	struct config_options conf;
	struct maint m;
	struct setting *setting;
	char *stored;
	json_t *root;
	struct str msg, err;
};

/* --- argv --- */

/* was a flag given, with whatever value? */
static bool given(int argc, char **argv, const char *name)
{
	size_t n = strlen(name);

	for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
		if (!strncmp(argv[i], "--", 2) && !strncmp(argv[i] + 2, name, n) &&
		    (!argv[i][2 + n] || argv[i][2 + n] == '='))
			return true;
	return false;
}

/* arguments can be read by everybody */
static void blank(int argc, char **argv, const char *name)
{
	size_t n = strlen(name);

	for (int i = 1; i < argc && argv[i]; i++) {
		char *value = NULL;

		if (strncmp(argv[i], "--", 2) != 0 || strncmp(argv[i] + 2, name, n) != 0)
			continue;
		if (argv[i][2 + n] == '=')
			value = argv[i] + 3 + n;
		else if (!argv[i][2 + n] && i + 1 < argc)
			value = argv[i + 1];
		if (value)
			memset(value, '*', strlen(value));
	}
}

static int from_environment(char **value, const char *option, const char *name, struct str *err)
{
	const char *v;

	if (!*value || strcmp(*value, "env") != 0)
		return 0;
	v = getenv(name);
	if (!v) {
		str_addf(err, "--%s env: the environment has no %s", option, name);
		return -EINVAL;
	}
	free(*value);
	*value = strdup(v);
	return *value ? 0 : -ENOMEM;
}

/* --- reading --- */

/* a secret that a dump took out counts as none while it is replaced */
static char *without_removed(const char *text)
{
	static const char *const secrets[] = {"SecretKey", "SessionToken", "EncryptKey"};
	json_t *root = json_loads(text, 0, NULL);
	char *out;

	for (size_t i = 0; root && i < ARRAY_LEN(secrets); i++) {
		const char *v = json_string_value(json_object_get(root, secrets[i]));

		if (v && !strcmp(v, "removed"))
			(void)json_object_del(root, secrets[i]);
	}
	out = root ? json_dumps(root, 0) : strdup(text);
	json_decref(root);
	return out;
}

static int load(struct job *j)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	_cleanup_(freep) char *lenient = NULL;
	struct redis *redis = j->m.redis;
	const char *text;
	size_t n;
	int r = redis_once(redis, clock_us() + TIMEOUT_US, &reply, "GET %ssetting",
			   redis_prefix(redis));

	if (r) {
		str_addf(&j->err, "%s: %s", redis_name(redis), strerror(-r));
		return r;
	}
	text = redis_reply_str(reply, &n);
	if (!text) {
		str_addf(&j->err, "%s: no volume in this database; make one with \"stoke format\"",
			 redis_name(redis));
		return -ENOENT;
	}
	free(j->stored);
	json_decref(j->root);
	setting_free(TAKE_PTR(j->setting));
	j->stored = strdup(text);
	j->root = json_loads(text, 0, NULL);
	lenient = without_removed(text);
	if (!j->stored || !lenient)
		return -ENOMEM;
	r = setting_parse(lenient, strlen(lenient), &j->setting, &j->err);
	return r == 0 && !j->root ? -EINVAL : r;
}

static int show(struct job *j)
{
	struct str out = STR_INIT;
	int r = setting_redacted(j->setting, &out);

	if (r == 0)
		(void)puts(str_c(&out));
	str_fini(&out);
	return r;
}

/* --- checks --- */

/* what is to be, as a mount would read it */
static int parse_new(struct job *j, struct setting **ret)
{
	_cleanup_(freep) char *lenient = NULL;
	struct str text = STR_INIT;
	int r = setting_write(j->root, &text);

	lenient = r ? NULL : without_removed(str_c(&text));
	str_fini(&text);
	return lenient ? setting_parse(lenient, strlen(lenient), ret, &j->err) : -ENOMEM;
}

static int try_store(struct job *j, const struct setting *s)
{
	struct crypt_block *crypt = NULL;
	struct object_store *store = NULL;
	struct loop *loop = NULL;
	int r = volume_open_crypt(s, &crypt, &j->err);

	if (r == 0)
		r = loop_new("config", &loop);
	if (r == 0)
		r = volume_open_store(s, loop, 4, NULL, &store, &j->err);
	if (r == 0)
		r = probe_store(store, s->name, crypt, &j->err);
	object_free(store);
	loop_free(loop);
	crypt_block_free(crypt);
	return r;
}

static int counter(struct job *j, const char *key, int64_t *ret)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct redis *redis = j->m.redis;
	int r = redis_once(redis, clock_us() + TIMEOUT_US, &reply, "GET %s%s", redis_prefix(redis),
			   key);

	if (r == 0)
		*ret = redis_reply_int(reply);
	return r;
}

static int sure(struct job *j, const char *question)
{
	return maint_sure("config", j->conf.yes, question) ? 0 : -ECANCELED;
}

static int check_limits(struct job *j, const struct setting *s)
{
	int64_t space, inodes;
	char question[256];
	int r = counter(j, "usedSpace", &space);

	if (r == 0)
		r = counter(j, "totalInodes", &inodes);
	if (r || ((!s->capacity || space < 0 || (uint64_t)space < s->capacity) &&
		  (!s->inodes || inodes < 0 || (uint64_t)inodes < s->inodes)))
		return r;
	(void)snprintf(question, sizeof(question),
		       "the new limit is reached already (used / limit): %lld / %llu bytes, %lld / "
		       "%llu files: nothing more can be written",
		       (long long)space, (unsigned long long)s->capacity, (long long)inodes,
		       (unsigned long long)s->inodes);
	return sure(j, question);
}

static int check_dir_quotas(struct job *j)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct redis *redis = j->m.redis;
	int r = redis_once(redis, clock_us() + TIMEOUT_US, &reply, "HLEN %sdirQuota",
			   redis_prefix(redis));

	if (r || redis_reply_int(reply) == 0)
		return r;
	str_addf(
		&j->err,
		"--dir-stats=false: there are %lld directory quotas, which need them: delete these "
		"first",
		(long long)redis_reply_int(reply));
	return -EINVAL;
}

static int check(struct job *j, const struct setting *s, const struct config_touch *t)
{
	struct str why = STR_INIT;
	int r = t->storage ? try_store(j, s) : 0;

	if (r == 0 && t->quota)
		r = check_limits(j, s);
	if (r == 0 && t->trash && s->trash_days == 0)
		r = sure(j, "what is in the trash will be deleted, and removed files are gone at "
			    "once from now on");
	if (r == 0 && t->stats_off)
		r = check_dir_quotas(j);
	if (r == 0 && t->clients && setting_check(s, &why) == -EPROTONOSUPPORT)
		r = sure(j, "this program itself, and all of its version, will be refused");
	str_fini(&why);
	return r;
}

/* --- writing --- */

static int replace(struct job *j, const struct config_touch *t)
{
	struct str text = STR_INIT;
	struct config_request c = {
		.old = j->stored,
		.reset = t->reset,
		.change_log = json_is_true(json_object_get(j->root, "ChangeLog")),
		.has_trash = json_integer_value(json_object_get(j->root, "TrashDays")) > 0,
	};
	int r = setting_write(j->root, &text);

	if (r == 0) {
		c.text = str_c(&text);
		r = setting_replace(j->m.redis, clock_us() + TIMEOUT_US, &c);
	}
	str_fini(&text);
	return r;
}

static int change_once(struct job *j)
{
	_cleanup_(setting_freep) struct setting *s = NULL;
	struct config_touch t;
	int r;

	str_reset(&j->msg);
	r = config_edit(&j->conf, j->setting, j->root, &t, &j->msg, &j->err);
	if (r == 0 && j->msg.len == 0) {
		(void)puts("Nothing changed.");
		return 0;
	}
	if (r == 0) /* new secrets are in plain until here */
		r = config_seal(&j->conf, j->setting, j->root);
	if (r == 0)
		r = parse_new(j, &s);
	if (r == 0 && !j->conf.force)
		r = check(j, s, &t);
	if (r == 0)
		r = replace(j, &t);
	if (r == 0)
		(void)fputs(str_c(&j->msg), stdout);
	return r;
}

static int change(struct job *j)
{
	int r = -EAGAIN;

	for (int i = 0; i < ATTEMPTS && r == -EAGAIN; i++) {
		r = i ? load(j) : 0;
		if (r == 0)
			r = change_once(j);
	}
	if (r == -EAGAIN)
		str_add(&j->err, "somebody else changes the setting all the time");
	return r;
}

static int config(struct job *j, const char *url, bool shows)
{
	struct config_options *o = &j->conf;
	int r = from_environment(&o->secret_key, "secret-key", "SECRET_KEY", &j->err);

	if (r == 0)
		r = from_environment(&o->session_token, "session-token", "SESSION_TOKEN", &j->err);
	if (r == 0)
		r = redis_new(url, NULL, &j->m.redis, &j->err);
	if (r == 0)
		r = load(j);
	if (r)
		return r;
	return shows ? show(j) : change(j);
}

static bool is_something(const struct config_options *o)
{
	return o->storage || o->bucket || o->access_key || o->secret_key || o->session_token ||
	       o->storage_class || o->tag || o->tier || o->upload_limit || o->download_limit ||
	       o->capacity || o->inodes || o->trash_days || o->min_client || o->max_client ||
	       o->ranger_url || o->ranger_service || o->kerberos_file || o->log_age ||
	       o->log_lines || o->acl_given || o->stats_given || o->ug_given || o->log_given ||
	       o->encrypt_secret;
}

static int config_run(int argc, char **argv)
{
	struct job j = {.m.name = "config", .msg = STR_INIT, .err = STR_INIT};
	bool acl = given(argc, argv, "enable-acl"), stats = given(argc, argv, "dir-stats"),
	     ug = given(argc, argv, "user-group-quota"), log = given(argc, argv, "changelog");
	_cleanup_(freep) char *url = NULL;
	char **args;
	size_t n;
	int r = maint_args("config", &table, &j.conf, argc, argv, &args, &n);

	blank(argc, argv, "secret-key");
	blank(argc, argv, "session-token");
	if (r) {
		conf_fini(&table, &j.conf);
		return r - 1;
	}
	j.conf.acl_given = acl;
	j.conf.stats_given = stats;
	j.conf.ug_given = ug;
	j.conf.log_given = log;
	url = strdup(args[0]);
	redis_blank_password(args[0]);
	r = url ? config(&j, url, !is_something(&j.conf)) : -ENOMEM;
	if (r < 0 && r != -ECANCELED)
		(void)cmd_error("config", "%s", j.err.len ? str_c(&j.err) : strerror(-r));
	redis_free(j.m.redis);
	setting_free(j.setting);
	json_decref(j.root);
	free(j.stored);
	str_fini(&j.msg);
	str_fini(&j.err);
	conf_fini(&table, &j.conf);
	return r < 0;
}

const struct cmd cmd_config = {"config", "show or change the setting of a volume", config_run,
			       &table};
