/* SPDX-License-Identifier: Apache-2.0 */
/* stoke quota: limits of directories, users and groups. The verb is the first word. One thread;
 * blocks. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>

#include "client/cmd/maint.h"
#include "client/maint/dump.h"
#include "client/maint/paths.h"
#include "client/cmd/table.h"
#include "common/parse.h"

struct quota_conf {
	char *path, *uid, *gid, *capacity, *inodes;
	bool create, repair, strict;
};

static const struct conf_option options[] = {
	{"path", 0, CONF_STR, offsetof(struct quota_conf, path), NULL, NULL,
	 "directory of the volume, from its root"},
	{"uid", 0, CONF_STR, offsetof(struct quota_conf, uid), NULL, NULL, "a user, by number"},
	{"gid", 0, CONF_STR, offsetof(struct quota_conf, gid), NULL, NULL, "a group, by number"},
	{"capacity", 0, CONF_STR, offsetof(struct quota_conf, capacity), NULL, NULL,
	 "set: most space, in GiB; 0: no limit"},
	{"inodes", 0, CONF_STR, offsetof(struct quota_conf, inodes), NULL, NULL,
	 "set: most files and directories; 0: no limit"},
	{"create", 0, CONF_FLAG, offsetof(struct quota_conf, create), "false", NULL,
	 "set: make the directory when it is missing"},
	{"repair", 0, CONF_FLAG, offsetof(struct quota_conf, repair), "false", NULL,
	 "check: write the usage that was counted"},
	{"strict", 0, CONF_FLAG, offsetof(struct quota_conf, strict), "false", NULL, NULL},
};

static const struct conf_table table = {
	.options = options,
	.n = ARRAY_LEN(options),
	.usage = "stoke quota set|get|list|check|delete [options] META",
	.summary = "limits of directories, users and groups",
	.min_args = 2,
	.max_args = 2,
};

enum verb { VERB_SET, VERB_GET, VERB_LIST, VERB_CHECK, VERB_DELETE };

struct quotas {
	struct maint *m;
	const struct quota_conf *conf;
	struct meta *meta;
	enum verb verb;
	/* what --path, --uid or --gid name; one of them at most */
	bool given;
	enum quota_kind kind;
	uint64_t id;
	struct table rows;
};

static int said(const char *fmt, ...) _printf_(1, 2);
static int said(const char *fmt, ...)
{
	char line[400];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	(void)cmd_error("quota", "%s", line);
	return -EINVAL;
}

/* --- what it is about --- */

static int make_dir(struct quotas *q, const char *path)
{
	static const struct meta_ctx root = {.uid = 0};
	uint64_t at = INODE_ROOT, next;
	struct attr attr;
	int r = 0;

	while (r == 0 && *(path += strspn(path, "/"))) {
		_cleanup_(freep) char *name = strndup(path, strcspn(path, "/"));

		if (!name)
			return -ENOMEM;
		path += strlen(name);
		r = meta_lookup(q->meta, &root, at, name, &next, &attr);
		if (r == -ENOENT)
			r = meta_mknod(q->meta, &root, at, name, INODE_DIR, 0755, 022, 0, NULL,
				       &next, &attr);
		at = next;
	}
	q->id = at;
	return r;
}

static int find_dir(struct quotas *q, const char *path)
{
	uint8_t type = INODE_DIR;
	int r = scan_resolve(&q->m->scan, path, &q->id, &type);

	if (r == -ENOENT && q->verb == VERB_SET && q->conf->create)
		r = make_dir(q, path);
	if (r == 0 && type != INODE_DIR)
		r = -ENOTDIR;
	if (r)
		(void)said("--path %s: %s", path, strerror(-r));
	return r;
}

static int find_target(struct quotas *q)
{
	const struct quota_conf *c = q->conf;
	const char *id = c->uid ? c->uid : c->gid;

	if (!!c->path + !!c->uid + !!c->gid > 1)
		return said("give one of --path, --uid and --gid");
	q->given = c->path || id;
	if (!q->given)
		return q->verb == VERB_LIST || q->verb == VERB_CHECK
			       ? 0
			       : said("say what: --path DIR, --uid N or --gid N");
	q->kind = c->path ? QUOTA_DIR : c->uid ? QUOTA_USER : QUOTA_GROUP;
	if (c->path)
		return find_dir(q, c->path);
	if (parse_u64(id, UINT32_MAX, &q->id) < 0)
		return said("--%s %s: not a number", c->uid ? "uid" : "gid", id);
	return 0;
}

/* --- showing --- */

static void add_size(struct str *out, int64_t n)
{
	char text[16];

	str_add(out, cmd_bytes((uint64_t)MAX(n, 0), text));
}

static void add_percent(struct str *out, int64_t used, int64_t most)
{
	if (most > 0)
		str_addf(out, "%.0f%%", floor((double)MAX(used, 0) * 100 / (double)most));
}

static void name_it(struct quotas *q, const struct quota *it, struct str *out)
{
	_cleanup_(str_fini) struct str path = STR_INIT;

	if (it->kind != QUOTA_DIR)
		str_addf(out, "%s:%" PRIu64, it->kind == QUOTA_USER ? "uid" : "gid", it->id);
	else if (path_of(&q->m->scan, it->id, &path) == 0)
		str_add(out, str_c(&path));
	else
		str_addf(out, "inode:%" PRIu64, it->id);
	for (size_t i = 0; i < out->len; i++) {
		if ((unsigned char)out->s[i] < 32)
			out->s[i] = '?';
	}
}

static void add_row(struct quotas *q, const struct quota *it)
{
	_cleanup_(str_fini) struct str row = STR_INIT;

	name_it(q, it, &row);
	str_add(&row, "\t");
	if (it->max_space > 0)
		add_size(&row, it->max_space);
	else
		str_add(&row, "unlimited");
	str_add(&row, "\t");
	add_size(&row, it->used_space);
	str_add(&row, "\t");
	add_percent(&row, it->used_space, it->max_space);
	if (it->max_inodes > 0)
		str_addf(&row, "\t%" PRId64, it->max_inodes);
	else
		str_add(&row, "\tunlimited");
	str_addf(&row, "\t%" PRId64 "\t", it->used_inodes);
	add_percent(&row, it->used_inodes, it->max_inodes);
	table_row(&q->rows, str_c(&row));
}

static int by_name(const void *a, const void *b)
{
	char *const *x = a, *const *y = b;

	return strcmp(*x, *y);
}

/* rows in the order of their names */
static void print_rows(struct quotas *q)
{
	const char *head = q->rows.text.s, *p = head + strlen(head) + 1;
	char **rows = calloc(q->rows.n + 1, sizeof(*rows));
	struct table sorted;

	if (!rows || str_error(&q->rows.text) < 0) {
		free(rows);
		return;
	}
	for (size_t i = 0; i < q->rows.n; i++) {
		rows[i] = q->rows.text.s + (p - head);
		p += strlen(p) + 1;
	}
	qsort(rows, q->rows.n, sizeof(*rows), by_name);
	table_init(&sorted, head);
	for (size_t i = 0; i < q->rows.n; i++)
		table_row(&sorted, rows[i]);
	table_print(&sorted, 1);
	table_fini(&sorted);
	free(rows);
}

static int show_one(struct quotas *q)
{
	struct quota it;
	int r = meta_quota_get(q->meta, q->kind, q->id, &it);

	if (r == 0)
		add_row(q, &it);
	return r;
}

/* --- verbs --- */

static int limit(const char *text, uint64_t unit, const char *name, int64_t *ret)
{
	uint64_t n;

	*ret = -1; /* as it is */
	if (!text)
		return 0;
	if (parse_u64(text, INT64_MAX / unit, &n) < 0)
		return said("--%s %s: not a number", name, text);
	*ret = (int64_t)(n * unit);
	return 0;
}

static int set(struct quotas *q)
{
	struct quota it = {.kind = q->kind, .id = q->id};
	int r = limit(q->conf->capacity, UINT64_C(1) << 30, "capacity", &it.max_space);

	if (r == 0)
		r = limit(q->conf->inodes, 1, "inodes", &it.max_inodes);
	if (r == 0 && it.max_space < 0 && it.max_inodes < 0)
		r = said("say how much: --capacity GiB, --inodes N");
	if (r)
		return r;
	r = meta_quota_set(q->meta, &it);
	return r ? r : show_one(q);
}

/* limits only; users and groups without any merely own something */
static int list_kind(struct quotas *q, enum quota_kind kind,
		     int (*fn)(struct quotas *q, const struct quota *it))
{
	struct quota *list = NULL;
	size_t n = 0;
	int r = meta_quota_list(q->meta, kind, &list, &n);

	for (size_t i = 0; i < n && r == 0; i++) {
		if (list[i].max_space > 0 || list[i].max_inodes > 0 || kind == QUOTA_DIR)
			r = fn(q, &list[i]);
	}
	free(list);
	return r == -ENOENT || r == -EOPNOTSUPP ? 0 : r;
}

static int list_row(struct quotas *q, const struct quota *it)
{
	add_row(q, it);
	return 0;
}

static int check_one(struct quotas *q, const struct quota *it)
{
	_cleanup_(str_fini) struct str name = STR_INIT;
	struct quota told, counted;
	int r = meta_quota_check(q->meta, it->kind, it->id, q->conf->repair, &told, &counted,
				 &q->m->progress);

	if (r)
		return r;
	name_it(q, it, &name);
	if (counted.used_space == told.used_space && counted.used_inodes == told.used_inodes) {
		maint_say(q->m, "quota of %s is consistent", str_c(&name));
	} else {
		maint_say(q->m,
			  "quota of %s says %" PRId64 " bytes in %" PRId64
			  " inodes, but it has %" PRId64 " in %" PRId64 "%s",
			  str_c(&name), told.used_space, told.used_inodes, counted.used_space,
			  counted.used_inodes,
			  q->conf->repair ? ": repaired" : ": quota check --repair puts it right");
		if (!q->conf->repair)
			r = -EUCLEAN;
	}
	counted.max_space = it->max_space;
	counted.max_inodes = it->max_inodes;
	add_row(q, &counted);
	return r;
}

/* goes on behind one that is wrong */
static int check_next(struct quotas *q, const struct quota *it)
{
	int r = check_one(q, it);

	if (r == -EUCLEAN) {
		q->given = true; /* remembered: the exit status */
		r = 0;
	}
	return r;
}

static int each_kind(struct quotas *q, int (*fn)(struct quotas *q, const struct quota *it))
{
	int r = list_kind(q, QUOTA_DIR, fn);

	if (r == 0)
		r = list_kind(q, QUOTA_USER, fn);
	return r ? r : list_kind(q, QUOTA_GROUP, fn);
}

static int check(struct quotas *q)
{
	struct quota it;
	int r;

	maint_begin(q->m, "entries", NULL);
	if (q->given) {
		r = meta_quota_get(q->meta, q->kind, q->id, &it);
		r = r ? r : check_one(q, &it);
	} else {
		r = each_kind(q, check_next);
		if (r == 0 && q->given)
			r = -EUCLEAN;
	}
	maint_end(q->m);
	return r;
}

static int run_verb(struct quotas *q)
{
	switch (q->verb) {
	case VERB_SET:
		return set(q);
	case VERB_GET:
		return show_one(q);
	case VERB_LIST:
		return q->given ? show_one(q) : each_kind(q, list_row);
	case VERB_CHECK:
		return check(q);
	default:
		return meta_quota_delete(q->meta, q->kind, q->id);
	}
}

static int work(struct quotas *q)
{
	bool change = q->verb == VERB_SET || q->verb == VERB_DELETE || q->conf->repair;
	int r = maint_engine(q->m, &(struct maint_engine_conf){.change = change}, &q->meta);

	if (r)
		return 1;
	table_init(&q->rows, "Path/ID\tSize\tUsed\tUse%\tInodes\tIUsed\tIUse%");
	r = find_target(q);
	if (r == 0) {
		r = run_verb(q);
		if (q->rows.n)
			print_rows(q);
		if (r == -ENOENT)
			(void)said("it has no quota: see stoke quota list, or set one");
		else if (r == -EOPNOTSUPP)
			(void)said(
				"the volume keeps no such quotas: stoke config --user-group-quota, "
				"--dir-stats");
		else if (r == -ELOOP)
			(void)said("a directory below it lies in itself: the volume is damaged");
		else if (r && r != -EINVAL && r != -EUCLEAN)
			(void)said("%s", strerror(-r));
	}
	table_fini(&q->rows);
	maint_engine_free(q->meta);
	return r == -EINVAL ? 2 : r != 0;
}

static bool verb_of(const char *word, enum verb *ret)
{
	static const struct {
		const char *word;
		enum verb verb;
	} verbs[] = {{"set", VERB_SET},	  {"get", VERB_GET},	 {"list", VERB_LIST},
		     {"ls", VERB_LIST},	  {"check", VERB_CHECK}, {"delete", VERB_DELETE},
		     {"del", VERB_DELETE}};

	for (size_t i = 0; i < ARRAY_LEN(verbs); i++) {
		if (strcmp(verbs[i].word, word) == 0) {
			*ret = verbs[i].verb;
			return true;
		}
	}
	return false;
}

static int quota_run(int argc, char **argv)
{
	struct maint m = {.name = "quota"};
	struct quota_conf conf;
	struct quotas q = {.m = &m, .conf = &conf};
	char **args;
	size_t n;
	int r = maint_args("quota", &table, &conf, argc, argv, &args, &n);

	if (r == 0 && !verb_of(args[0], &q.verb)) {
		(void)said("%s: none of set, get, list, check, delete", args[0]);
		r = 3;
	}
	if (r) {
		conf_fini(&table, &conf);
		return r - 1;
	}
	r = 1;
	if (maint_open(&m, "quota", args[1], false) == 0)
		r = work(&q);
	maint_close(&m);
	conf_fini(&table, &conf);
	return r;
}

const struct cmd cmd_quota = {"quota", "limits of directories, users and groups", quota_run,
			      &table};
