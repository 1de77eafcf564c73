/* SPDX-License-Identifier: Apache-2.0 */
/* A dump's first part: the setting, counters, files of sessions, files that wait for their
 * deletion, quotas. Any thread that may block. */
#include "client/maint/dump.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>

#include "client/meta/reply.h"

/* a JSON value at one level of indentation */
static int add_json(json_t *v, const char *name, struct str *out)
{
	char *text = json_dumps(v, JSON_INDENT(2) | JSON_ENCODE_ANY);

	if (!text)
		return -ENOMEM;
	str_addf(out, "\n  \"%s\": ", name);
	for (const char *p = text; *p;) {
		const char *nl = strchrnul(p, '\n');

		str_addn(out, p, (size_t)(nl - p));
		if (!*nl)
			break;
		str_add(out, "\n  ");
		p = nl + 1;
	}
	str_add(out, ",");
	free(text);
	return str_error(out);
}

/* JuiceFS adds what volumes made before 1.4 lack, and would load its absence as null */
static json_t *with_tiers(json_t *v)
{
	json_t *o = json_object(), *member;
	const char *name;

	json_object_foreach(v, name, member)
	{
		(void)json_object_set(o, name, member);
		if (strcmp(name, json_object_get(v, "StorageClass") ? "StorageClass" : "Storage") ==
		    0)
			(void)json_object_set_new(o, "Tiers",
						  json_pack("{s:{s:i, s:s, s:s}}", "0", "ID", 0,
							    "StorageClass", "", "Tag", ""));
	}
	json_decref(v);
	return o;
}

static int add_setting(const struct setting *set, bool keep_secret, struct str *out)
{
	static const char *const secrets[] = {"SecretKey", "SessionToken"};
	json_t *v = json_loads(set->text, 0, NULL);
	int r;

	if (v && !json_is_object(json_object_get(v, "Tiers")) && json_object_get(v, "Storage"))
		v = with_tiers(v);
	if (!v)
		return -EPROTO;
	for (size_t i = 0; i < ARRAY_LEN(secrets) && !keep_secret; i++) {
		if (json_string_length(json_object_get(v, secrets[i])) > 0)
			(void)json_object_set_new(v, secrets[i], json_string("removed"));
	}
	r = add_json(v, "Setting", out);
	json_decref(v);
	return r;
}

static int add_counters(const struct scan *s, bool change_log, struct str *out)
{
	/* nextinode and nextchunk are the last numbers given; a dump has the next ones */
	static const struct {
		const char *key, *name;
		int64_t add;
	} counters[] = {
		{"usedSpace", "usedSpace", 0},	    {"totalInodes", "usedInodes", 0},
		{"nextinode", "nextInodes", 1},	    {"nextchunk", "nextChunk", 1},
		{"nextsession", "nextSession", 0},  {"nextTrash", "nextTrash", 0},
		{"txnLastLog", "lastChangelog", 0},
	};
	size_t n = ARRAY_LEN(counters) - (change_log ? 0 : 1);
	struct pipe p;
	int r;

	pipe_init(&p, s);
	for (size_t i = 0; i < n; i++)
		pipe_add(&p, "GET", counters[i].key, (char *)NULL);
	r = pipe_run(&p);
	str_add(out, "\n  \"Counters\": {");
	for (size_t i = 0; i < n && r == 0; i++) {
		int64_t v = reply_int(p.reply[i]);

		if (i < 6 || v)
			str_addf(out, "%s\n    \"%s\": %" PRId64, i ? "," : "", counters[i].name,
				 v < INT64_MAX ? v + counters[i].add : v);
	}
	str_add(out, "\n  },");
	pipe_fini(&p);
	return r;
}

static int by_number(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

/* one session and the inodes that it keeps; nothing when it keeps none */
static int add_session(const struct redis_reply *members, const char *sid, json_t *list)
{
	size_t n = reply_len(members), kept = 0, len;
	uint64_t *inode = calloc(n ? n : 1, sizeof(*inode));
	json_t *o = json_object(), *inodes = json_array();
	uint64_t id;
	int r = inode && o && inodes ? 0 : -ENOMEM;

	for (size_t i = 0; i < n && r == 0; i++) {
		const char *text = reply_text(reply_at(members, i), &len);

		if (text && scan_u64(text, len, &inode[kept]))
			kept++;
	}
	if (r == 0)
		qsort(inode, kept, sizeof(*inode), by_number);
	for (size_t i = 0; i < kept; i++)
		(void)json_array_append_new(inodes, json_integer((json_int_t)inode[i]));
	free(inode);
	if (r == 0 && kept && scan_u64(sid, strlen(sid), &id)) {
		(void)json_object_set_new(o, "sid", json_integer((json_int_t)id));
		(void)json_object_set(o, "inodes", inodes);
		(void)json_array_append(list, o);
	}
	json_decref(inodes);
	json_decref(o);
	return r;
}

struct collect {
	const struct scan *scan;
	json_t *list;
	const struct dump_conf *conf;
};

static int sessions_page(void *arg, size_t n, const struct scan_item *items)
{
	struct collect *c = arg;
	struct pipe p;
	char key[64];
	int r;

	pipe_init(&p, c->scan);
	for (size_t i = 0; i < n; i++) {
		(void)snprintf(key, sizeof(key), "session%.24s", items[i].name);
		pipe_add(&p, "SMEMBERS", key, (char *)NULL);
	}
	r = pipe_run(&p);
	for (size_t i = 0; i < n && r == 0; i++)
		r = add_session(p.reply[i], items[i].name, c->list);
	pipe_fini(&p);
	return r;
}

static void warn(const struct dump_conf *conf, const char *what, const char *name)
{
	char line[320];

	(void)snprintf(line, sizeof(line), "%s %.255s is damaged: left out", what, name);
	if (conf->warn)
		conf->warn(conf->warn_arg, line);
}

static int delfiles_page(void *arg, size_t n, const struct scan_item *items)
{
	struct collect *c = arg;

	for (size_t i = 0; i < n; i++) {
		const struct scan_item *it = &items[i];
		const char *colon = memchr(it->name, ':', it->name_len);
		double when = strtod(it->value, NULL);
		uint64_t inode, length;

		if (!colon || !scan_u64(it->name, (size_t)(colon - it->name), &inode) ||
		    !scan_u64(colon + 1, it->name_len - (size_t)(colon + 1 - it->name), &length) ||
		    !isfinite(when) || fabs(when) > 1e15) {
			warn(c->conf, "deleted file", it->name);
			continue;
		}
		if (json_array_append_new(c->list,
					  json_pack("{s:I, s:I, s:I}", "inode", (json_int_t)inode,
						    "length", (json_int_t)length, "expire",
						    (json_int_t)when)) < 0)
			return -ENOMEM;
	}
	return 0;
}

static int64_t be_i64(const char *s)
{
	const unsigned char *p = (const unsigned char *)s;
	uint64_t v = 0;

	for (int i = 0; i < 8; i++)
		v = v << 8 | p[i];
	return (int64_t)v;
}

static int quotas_page(void *arg, size_t n, const struct scan_item *items)
{
	struct collect *c = arg;

	for (size_t i = 0; i < n; i++) {
		const struct scan_item *it = &items[i];
		int64_t space, inodes;
		uint64_t id;

		if (it->value_len != 16 || !scan_u64(it->name, it->name_len, &id)) {
			warn(c->conf, "quota", it->name);
			continue;
		}
		space = be_i64(it->value);
		inodes = be_i64(it->value + 8);
		if (space == -1 && inodes == -1)
			continue; /* somebody who merely owns something */
		if (json_object_set_new(c->list, it->name,
					json_pack("{s:I, s:I}", "maxSpace", (json_int_t)space,
						  "maxInodes", (json_int_t)inodes)) < 0)
			return -ENOMEM;
	}
	return 0;
}

static int by_key(const void *a, const void *b)
{
	const char *const *x = a, *const *y = b;

	return strcmp(*x, *y);
}

/* members in the order of their names, as Go writes a map; empty: left out */
static int add_sorted(json_t *o, const char *name, struct str *out)
{
	size_t n = json_object_size(o), i = 0;
	const char **keys = calloc(n ? n : 1, sizeof(*keys)), *key;
	json_t *sorted = json_object(), *v;
	int r = keys && sorted ? 0 : -ENOMEM;

	if (r == 0) {
		json_object_foreach(o, key, v) keys[i++] = key;
		qsort(keys, n, sizeof(*keys), by_key);
		for (i = 0; i < n; i++)
			(void)json_object_set(sorted, keys[i], json_object_get(o, keys[i]));
		if (n)
			r = add_json(sorted, name, out);
	}
	free(keys);
	json_decref(sorted);
	return r;
}

static int add_quotas(const struct scan *s, const struct dump_conf *conf, const char *key,
		      const char *name, struct str *out)
{
	struct collect c = {.scan = s, .list = json_object(), .conf = conf};
	int r = c.list ? scan_hash(s, key, quotas_page, &c) : -ENOMEM;

	if (r == 0)
		r = add_sorted(c.list, name, out);
	json_decref(c.list);
	return r;
}

static int add_list(const struct scan *s, const struct dump_conf *conf, const char *key,
		    scan_fn *page, const char *name, struct str *out)
{
	struct collect c = {.scan = s, .list = json_array(), .conf = conf};
	int r = c.list ? scan_zset(s, key, page, &c) : -ENOMEM;

	if (r == 0)
		r = add_json(c.list, name, out);
	json_decref(c.list);
	return r;
}

int dump_head(const struct scan *s, const struct setting *set, const struct dump_conf *conf,
	      bool whole, struct str *out)
{
	int r;

	str_add(out, "{");
	r = add_setting(set, conf->keep_secret, out);
	if (r == 0)
		r = add_counters(s, set->change_log, out);
	if (r == 0)
		r = add_list(s, conf, "allSessions", sessions_page, "Sustained", out);
	if (r == 0)
		r = add_list(s, conf, "delfiles", delfiles_page, "DelFiles", out);
	if (r == 0)
		r = add_quotas(s, conf, "dirQuota", "Quotas", out);
	if (r == 0 && whole)
		r = add_quotas(s, conf, "userQuota", "UserQuotas", out);
	if (r == 0 && whole)
		r = add_quotas(s, conf, "groupQuota", "GroupQuotas", out);
	return r ? r : str_error(out);
}
