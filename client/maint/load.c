/* SPDX-License-Identifier: Apache-2.0 */
/* One pass over the file, then what can only be known at its end: records of files with several
 * names, counters, references, usages, and last the setting. One thread; blocks. */
#include "client/maint/load.h"

#include <inttypes.h>

#include "client/meta/reply.h"
#include "common/clock.h"

enum { LINKS_AT_ONCE = 500 };

static int found_key(void *arg, size_t n, const struct scan_item *items)
{
	(void)arg;
	(void)n;
	(void)items;
	return -EEXIST;
}

/* In a cluster other volumes may lie beside: only keys with this prefix count. */
static int check_empty(const struct scan *s, struct str *err)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	int r;

	if (*s->prefix) {
		r = scan_keys(s, "*", found_key, NULL);
	} else {
		r = redis_once(s->redis, clock_us() + s->timeout_us, &reply, "DBSIZE");
		if (r == 0 && reply_int(reply) > 0)
			r = -EEXIST;
	}
	if (r == -EEXIST)
		str_addf(err, "%s is not empty: choose an empty database", redis_name(s->redis));
	return r;
}

static int take_part(struct load *l, const char *name)
{
	if (strcmp(name, "Setting") == 0)
		return load_setting(l);
	if (strcmp(name, "Counters") == 0)
		return load_counters(l);
	if (strcmp(name, "DelFiles") == 0)
		return load_delfiles(l);
	if (strcmp(name, "Quotas") == 0)
		return load_quotas(l, QUOTA_DIR);
	if (strcmp(name, "UserQuotas") == 0)
		return load_quotas(l, QUOTA_USER);
	if (strcmp(name, "GroupQuotas") == 0)
		return load_quotas(l, QUOTA_GROUP);
	if (strcmp(name, "FSTree") != 0 && strcmp(name, "Trash") != 0)
		return json_skip(l->in);
	if (!l->setting)
		return load_bad(l, "there is no Setting before the tree");
	return load_tree(l, name[0] == 'T');
}

static int read_file(struct load *l)
{
	int r = json_take(l->in, '{');
	bool more = false;
	char name[24];

	for (bool first = true; r == 0; first = false) {
		r = json_more(l->in, '}', first, &more);
		if (r || !more)
			break;
		r = json_name(l->in, &l->text);
		if (r)
			break;
		(void)snprintf(name, sizeof(name), "%.23s", str_c(&l->text));
		r = take_part(l, name);
	}
	if (r == 0)
		r = json_end(l->in);
	if (r == 0 &&
	    (!l->setting || !l->has_counters || !numtable_find(&l->inodes, INODE_ROOT, 0)))
		r = load_bad(l, "there is no Setting, no Counters or no FSTree");
	return r;
}

/* --- the end --- */

static void patch(char *record, uint64_t links)
{
	for (int i = 0; i < 4; i++)
		record[47 + i] = (char)(links >> (24 - 8 * i));
	memset(record + 63, 0, 8); /* the parents are in p{inode} */
}

static int put_links(struct load *l, struct pipe *p, const struct numslot *const *slot, size_t n)
{
	int r = load_flush(&l->out);

	if (r == 0)
		r = pipe_run(p);
	for (size_t i = 0; i < n && r == 0; i++) {
		char record[ATTR_MAX], key[32];
		const char *word[] = {record};
		size_t len;
		const char *v = reply_text(p->reply[i], &len);

		if (!v || len < 71 || len > sizeof(record))
			return -EIO;
		memcpy(record, v, len);
		patch(record, slot[i]->w);
		(void)snprintf(key, sizeof(key), "i%" PRIu64, slot[i]->a);
		r = load_put(&l->out, "SET", key, 1, word, &len);
	}
	pipe_reset(p);
	return r;
}

static int all_links(struct load *l)
{
	const struct numslot *slot[LINKS_AT_ONCE];
	struct pipe p;
	size_t n = 0;
	int r = 0;

	pipe_init(&p, l->scan);
	for (size_t i = 0; i < l->inodes.cap && r == 0; i++) {
		const struct numslot *s = &l->inodes.slot[i];

		if (s->used && s->w > 1) {
			slot[n++] = s;
			pipe_add_inode(&p, "GET", "i", s->a);
		}
		if (n == LINKS_AT_ONCE) {
			r = put_links(l, &p, slot, n);
			n = 0;
		}
	}
	if (r == 0)
		r = put_links(l, &p, slot, n);
	pipe_fini(&p);
	return r;
}

static int all_refs(struct load *l)
{
	int r = 0;

	for (size_t i = 0; i < l->refs.cap && r == 0; i++) {
		const struct numslot *s = &l->refs.slot[i];
		char field[48], value[24];

		if (!s->used || s->v < 2)
			continue;
		(void)snprintf(field, sizeof(field), "k%" PRIu64 "_%" PRIu64, s->a, s->b);
		(void)snprintf(value, sizeof(value), "%" PRIu64, s->v - 1);
		r = load_put_text(&l->out, "HSET", "sliceRef", field, value);
	}
	return r;
}

static int put_quota(struct load *l, const struct load_quota *q)
{
	static const char *const keys[][3] = {
		[QUOTA_DIR] = {"dirQuota", "dirQuotaUsedSpace", "dirQuotaUsedInodes"},
		[QUOTA_USER] = {"userQuota", "userQuotaUsedSpace", "userQuotaUsedInodes"},
		[QUOTA_GROUP] = {"groupQuota", "groupQuotaUsedSpace", "groupQuotaUsedInodes"},
	};
	char id[24], limits[16];
	const char *word[] = {id, limits};
	size_t len[2] = {0, sizeof(limits)};
	int r;

	len[0] = (size_t)snprintf(id, sizeof(id), "%" PRIu64, q->id);
	for (int i = 0; i < 8; i++) {
		limits[i] = (char)((uint64_t)q->max_space >> (56 - 8 * i));
		limits[8 + i] = (char)((uint64_t)q->max_inodes >> (56 - 8 * i));
	}
	r = load_put(&l->out, "HSET", keys[q->kind][0], 2, word, len);
	if (r == 0)
		r = load_put_number(&l->out, "HSET", keys[q->kind][1], q->id, q->used_space);
	if (r == 0)
		r = load_put_number(&l->out, "HSET", keys[q->kind][2], q->id, q->used_inodes);
	return r;
}

static int all_quotas(struct load *l)
{
	int r = 0;

	for (size_t i = 0; i < l->n_quotas && r == 0; i++) {
		struct load_quota *q = &l->quotas[i];
		struct numslot *s = numtable_find(&l->owners, (uint64_t)q->kind, q->id);
		char line[96];

		if (q->kind == QUOTA_DIR && !q->seen) {
			(void)snprintf(line, sizeof(line),
				       "quota of directory %" PRIu64
				       ", which is not in the file: left out",
				       q->id);
			if (l->warn)
				l->warn(l->warn_arg, line);
			continue;
		}
		if (q->kind != QUOTA_DIR && s) {
			q->used_space = (int64_t)s->v;
			q->used_inodes = (int64_t)s->w;
		}
		r = put_quota(l, q);
	}
	/* who owns something without a limit */
	for (size_t i = 0; i < l->owners.cap && r == 0; i++) {
		const struct numslot *s = &l->owners.slot[i];
		struct load_quota q = {.max_space = -1, .max_inodes = -1};

		if (!s->used || load_quota_of(l, (enum quota_kind)s->a, s->b))
			continue;
		q.kind = (enum quota_kind)s->a;
		q.id = s->b;
		q.used_space = (int64_t)s->v;
		q.used_inodes = (int64_t)s->w;
		r = put_quota(l, &q);
	}
	return r;
}

static int all_rules(struct load *l)
{
	char id[24];
	int r = 0;

	for (const struct load_acl *a = l->acls; a && r == 0; a = a->next) {
		const char *word[] = {id, str_c(&a->text)};
		size_t len[] = {0, a->text.len};

		len[0] = (size_t)snprintf(id, sizeof(id), "%" PRIu32, a->id);
		r = load_put(&l->out, "HSET", "acl", 2, word, len);
	}
	if (r == 0 && l->acl_max) {
		(void)snprintf(id, sizeof(id), "%" PRIu32, l->acl_max);
		r = load_put_text(&l->out, "SET", "aclMaxId", id, NULL);
	}
	return r;
}

static int put_counter(struct load *l, const char *key, uint64_t v)
{
	char text[24];

	(void)snprintf(text, sizeof(text), "%" PRIu64, v);
	return load_put_text(&l->out, "SET", key, text, NULL);
}

static int all_counters(struct load *l)
{
	int r = put_counter(l, "usedSpace", l->used_space);

	if (r == 0)
		r = put_counter(l, "totalInodes", l->used_inodes);
	/* a dump has the next numbers, Redis the last ones */
	if (r == 0)
		r = put_counter(l, "nextinode", l->next_inode - 1);
	if (r == 0)
		r = put_counter(l, "nextchunk", l->next_chunk - 1);
	if (r == 0)
		r = put_counter(l, "nextsession", l->next_session);
	if (r == 0)
		r = put_counter(l, "nextTrash", l->next_trash);
	return r;
}

static int finish(struct load *l)
{
	int r = all_links(l);

	if (r == 0)
		r = all_refs(l);
	if (r == 0)
		r = all_quotas(l);
	if (r == 0)
		r = all_rules(l);
	if (r == 0)
		r = all_counters(l);
	if (r == 0)
		r = load_flush(&l->out);
	if (r == 0)
		r = load_put_text(&l->out, "SETNX", "setting", l->setting, NULL);
	return r ? r : load_flush(&l->out);
}

static void tell(struct load *l, int r, struct str *err)
{
	if (r == -EPROTO)
		str_addf(err, "byte %" PRIu64 " of the file: %s", json_offset(l->in),
			 l->why[0] ? l->why : "not JSON");
	else if (l->out.err && l->out.text[0])
		str_addf(err, "%s: %s", redis_name(l->scan->redis), l->out.text);
	else
		str_addf(err, "%s", r == -EINTR ? "interrupted" : strerror(-r));
	if (!l->out.wrote)
		return;
	/* in a cluster other volumes lie beside it */
	if (*l->scan->prefix)
		str_addf(err,
			 "; the cluster holds a part of it now: remove the keys %s* before you "
			 "try again (and no others: never FLUSHDB)",
			 l->scan->prefix);
	else
		str_add(err, "; the database holds a part of it now: empty it (FLUSHDB) before you "
			     "try again");
}

static void load_fini(struct load *l)
{
	numtable_fini(&l->inodes);
	numtable_fini(&l->refs);
	numtable_fini(&l->owners);
	while (l->acls) {
		struct load_acl *a = l->acls;

		l->acls = a->next;
		str_fini(&a->text);
		free(a);
	}
	free(l->quotas);
	free(l->setting);
	free(l->name);
	str_fini(&l->text);
	json_stream_fini(l->in);
}

int meta_load(const struct scan *s, json_read_fn *read, void *arg, struct meta_progress *p,
	      void (*warn)(void *arg, const char *line), void *warn_arg, struct load_result *ret,
	      struct str *err)
{
	struct json_stream in;
	struct load l = {.scan = s,
			 .in = &in,
			 .progress = p,
			 .warn = warn,
			 .warn_arg = warn_arg,
			 .next_inode = 2,
			 .next_chunk = 1};
	int r = check_empty(s, err), e;

	json_stream_init(&in, read, arg);
	if (r == 0)
		r = load_begin(&l.out, s);
	if (r == 0) {
		r = read_file(&l);
		if (r == 0)
			r = finish(&l);
		e = load_end(&l.out);
		r = r ? r : e;
	}
	if (r && err->len == 0)
		tell(&l, r, err);
	if (r == 0) {
		*ret = (struct load_result){.inodes = l.used_inodes,
					    .bytes = l.used_space,
					    .secret_removed = l.secret_removed};
		ret->name = TAKE_PTR(l.name);
	}
	load_fini(&l);
	return r;
}
