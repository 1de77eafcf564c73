/* SPDX-License-Identifier: Apache-2.0 */
/* The values of a dump that fit into memory: each is taken out as text, read with jansson, checked
 * and written. One thread; blocks. */
#include "client/maint/load.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>

#include "client/maint/dump_text.h"

enum { RUN = 12 /* words of one command */, QUOTAS_MAX = 1000000 };

int load_bad(struct load *l, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(l->why, sizeof(l->why), fmt, ap);
	va_end(ap);
	return -EPROTO;
}

static int take(struct load *l, json_t **ret)
{
	int r = json_value(l->in, &l->text);

	if (r)
		return r;
	*ret = json_loadb(str_c(&l->text), l->text.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
	return *ret ? 0 : load_bad(l, "a value is not JSON in UTF-8");
}

/* an integer field; absent: 0; false also where there is no object to have it */
static bool number(const json_t *o, const char *name, int64_t min, int64_t max, int64_t *ret)
{
	const json_t *v = json_object_get(o, name);

	*ret = v ? json_integer_value(v) : 0;
	return json_is_object(o) && (!v || json_is_integer(v)) && *ret >= min && *ret <= max;
}

static bool number_u32(const json_t *o, const char *name, uint32_t *ret)
{
	int64_t v;
	bool ok = number(o, name, 0, UINT32_MAX, &v);

	*ret = (uint32_t)v;
	return ok;
}

/* --- setting, counters --- */

/* one element a line without indentation, as JuiceFS stores it */
static char *setting_lines(const json_t *o)
{
	char *text = json_dumps(o, JSON_INDENT(1)), *to = text;
	bool start = false;

	for (const char *p = text; p && *p; p++) {
		if (start && *p == ' ')
			continue;
		start = *p == '\n';
		*to++ = *p;
	}
	if (to)
		*to = '\0';
	return text;
}

/* A secret that was left out is no reason to refuse the rest, so it is not looked at. */
static int check_setting(struct load *l, json_t *o)
{
	static const char *const secrets[] = {"SecretKey", "SessionToken", "EncryptKey"};
	_cleanup_(setting_freep) struct setting *s = NULL;
	_cleanup_(str_fini) struct str err = STR_INIT;
	_cleanup_(freep) char *text = NULL;
	json_t *copy = json_copy(o);
	int r;

	if (!copy)
		return -ENOMEM;
	for (size_t i = 0; i < ARRAY_LEN(secrets); i++) {
		const char *v = json_string_value(json_object_get(o, secrets[i]));

		if (v && strcmp(v, "removed") == 0) {
			l->secret_removed = true;
			(void)json_object_del(copy, secrets[i]);
		}
	}
	text = json_dumps(copy, 0);
	json_decref(copy);
	if (!text)
		return -ENOMEM;
	r = setting_parse(text, strlen(text), &s, &err);
	if (r == -ENOMEM)
		return r;
	if (r)
		return load_bad(l, "Setting: %.100s", str_c(&err));
	l->owner_quotas = s->user_group_quota;
	l->name = strdup(s->name);
	return l->name ? 0 : -ENOMEM;
}

int load_setting(struct load *l)
{
	json_t *o = NULL;
	int r = l->setting ? load_bad(l, "Setting is there twice") : take(l, &o);

	if (r == 0)
		r = check_setting(l, o);
	if (r == 0) {
		l->setting = setting_lines(o);
		r = l->setting ? 0 : -ENOMEM;
	}
	json_decref(o);
	return r;
}

/* Those of the dump are kept where they are higher than what the tree shows: numbers that were
 * given to what is gone, but lies in the object store still, must not be given again. */
int load_counters(struct load *l)
{
	int64_t inode = 0, chunk = 0, session = 0, trash = 0;
	json_t *o = NULL;
	int r = take(l, &o);

	if (r == 0 && (!number(o, "nextInodes", 0, INODE_INTERNAL, &inode) ||
		       !number(o, "nextChunk", 0, INT64_MAX / 2, &chunk) ||
		       !number(o, "nextSession", 0, INT64_MAX / 2, &session) ||
		       !number(o, "nextTrash", 0, INT32_MAX, &trash)))
		r = load_bad(l, "Counters: a number is out of range");
	if (r == 0) {
		l->has_counters = true;
		l->next_inode = MAX(l->next_inode, (uint64_t)inode);
		l->next_chunk = MAX(l->next_chunk, (uint64_t)chunk);
		l->next_session = MAX(l->next_session, (uint64_t)session);
		l->next_trash = MAX(l->next_trash, (uint64_t)trash);
	}
	json_decref(o);
	return r;
}

/* --- lists --- */

static int load_delfile(struct load *l)
{
	int64_t inode = 0, length = 0, when = 0;
	char member[48], score[24];
	json_t *o = NULL;
	int r = take(l, &o);

	if (r == 0 && (!number(o, "inode", 2, INT64_MAX, &inode) ||
		       !number(o, "length", 0, INT64_MAX, &length) ||
		       !number(o, "expire", INT64_MIN, INT64_MAX, &when)))
		r = load_bad(l, "DelFiles: a number is out of range");
	json_decref(o);
	if (r)
		return r;
	(void)snprintf(member, sizeof(member), "%" PRId64 ":%" PRId64, inode, length);
	(void)snprintf(score, sizeof(score), "%" PRId64, when);
	return load_put_text(&l->out, "ZADD", "delfiles", score, member);
}

/* null is an empty list to Go */
static int is_null(struct load *l, bool *ret)
{
	char c;
	int r = json_peek(l->in, &c);

	*ret = r == 0 && c == 'n';
	return *ret ? json_skip(l->in) : r;
}

int load_delfiles(struct load *l)
{
	bool more = false, none;
	int r = is_null(l, &none);

	if (r || none)
		return r;
	r = json_take(l->in, '[');
	for (bool first = true; r == 0; first = false) {
		r = json_more(l->in, ']', first, &more);
		if (r || !more)
			break;
		r = load_delfile(l);
	}
	return r;
}

struct load_quota *load_quota_of(struct load *l, enum quota_kind kind, uint64_t id)
{
	for (size_t i = 0; i < l->n_quotas; i++) {
		if (l->quotas[i].kind == kind && l->quotas[i].id == id)
			return &l->quotas[i];
	}
	return NULL;
}

static int add_quota(struct load *l, enum quota_kind kind, const char *key, const json_t *v)
{
	struct load_quota q = {.kind = kind}, *more;

	if (!scan_u64(key, strlen(key), &q.id) ||
	    !number(v, "maxSpace", INT64_MIN, INT64_MAX, &q.max_space) ||
	    !number(v, "maxInodes", INT64_MIN, INT64_MAX, &q.max_inodes) ||
	    l->n_quotas == QUOTAS_MAX)
		return load_bad(l, "a quota of %.40s is out of range", key);
	/* doubled: grown at every power of two */
	if ((l->n_quotas & (l->n_quotas - 1)) == 0) {
		size_t cap = l->n_quotas ? l->n_quotas * 2 : 1;

		more = reallocarray(l->quotas, cap, sizeof(*more));
		if (!more)
			return -ENOMEM;
		l->quotas = more;
	}
	l->quotas[l->n_quotas++] = q;
	return 0;
}

int load_quotas(struct load *l, enum quota_kind kind)
{
	json_t *o = NULL, *v;
	const char *key;
	int r = take(l, &o);

	if (r == 0 && l->has_tree)
		r = load_bad(l, "quotas come behind the tree that they count");
	if (r == 0 && !json_is_object(o) && !json_is_null(o))
		r = load_bad(l, "quotas are no object");
	json_object_foreach(o, key, v)
	{
		if (r == 0)
			r = add_quota(l, kind, key, v);
	}
	json_decref(o);
	return r;
}

/* --- parts of an entry --- */

static bool time_field(const json_t *o, const char *sec, const char *nsec, struct time_ns *ret)
{
	return number(o, sec, INT64_MIN, INT64_MAX, &ret->sec) && number_u32(o, nsec, &ret->nsec);
}

int load_attr(struct load *l, uint64_t *ret_inode, struct attr *ret)
{
	int64_t inode = 0, flags = 0, mode = 0, length = 0, tier = 0;
	struct attr a = {0};
	const char *type;
	json_t *o = NULL;
	int r = take(l, &o);

	if (r)
		return r;
	type = json_string_value(json_object_get(o, "type"));
	a.type = type ? dump_type(type) : 0;
	if (!number(o, "inode", 1, INT64_MAX, &inode) || !a.type ||
	    !number(o, "flags", 0, 255, &flags) || !number(o, "mode", 0, 65535, &mode) ||
	    !number_u32(o, "uid", &a.uid) || !number_u32(o, "gid", &a.gid) ||
	    !time_field(o, "atime", "atimensec", &a.atime) ||
	    !time_field(o, "mtime", "mtimensec", &a.mtime) ||
	    !time_field(o, "ctime", "ctimensec", &a.ctime) || !number_u32(o, "rdev", &a.rdev) ||
	    !number(o, "length", 0, FILE_LENGTH_MAX, &length) || !number(o, "tier", 0, 3, &tier))
		r = load_bad(l,
			     "attributes of inode %" PRId64 ": a field is missing or out of range",
			     inode);
	json_decref(o);
	a.flags = (uint8_t)flags;
	a.mode = (uint16_t)(mode & 07777);
	a.tier = (uint8_t)tier;
	a.length = a.type == INODE_FILE ? (uint64_t)length : a.type == INODE_DIR ? 4096 : 0;
	*ret_inode = (uint64_t)inode;
	*ret = a;
	return r;
}

static int put_inode(struct load *l, const char *verb, const char *kind, uint64_t inode, int n,
		     const char *const *word, const size_t *len)
{
	char key[40];

	(void)snprintf(key, sizeof(key), "%s%" PRIu64, kind, inode);
	return load_put(&l->out, verb, key, n, word, len);
}

static int put_xattr(struct load *l, uint64_t inode, const json_t *o)
{
	const json_t *name = json_object_get(o, "name"), *value = json_object_get(o, "value");
	size_t len[2] = {json_string_length(name), json_string_length(value)};
	const char *word[2] = {json_string_value(name), NULL};
	_cleanup_(freep) char *bytes = NULL;

	if (!word[0] || !json_is_string(value) || len[0] == 0 || len[0] > NAME_LEN_MAX)
		return load_bad(l, "an xattr of inode %" PRIu64 " is none", inode);
	bytes = malloc(len[1] + 1);
	if (!bytes)
		return -ENOMEM;
	memcpy(bytes, json_string_value(value), len[1] + 1);
	len[1] = dump_unescape(bytes, len[1]);
	word[1] = bytes;
	if (len[1] > XATTR_VALUE_MAX)
		return load_bad(l, "an xattr of inode %" PRIu64 " is too long", inode);
	return put_inode(l, "HSET", "x", inode, 2, word, len);
}

int load_xattrs(struct load *l, uint64_t inode, bool keep)
{
	json_t *o = NULL, *v;
	size_t i;
	int r = take(l, &o);

	if (r == 0 && !json_is_array(o) && !json_is_null(o))
		r = load_bad(l, "the xattrs of inode %" PRIu64 " are no list", inode);
	json_array_foreach(o, i, v)
	{
		if (r == 0 && keep)
			r = put_xattr(l, inode, v);
	}
	json_decref(o);
	return r;
}

static bool acl_part(const json_t *o, const char *name, struct acl_entry **ret, size_t *ret_n)
{
	const json_t *list = json_object_get(o, name), *v;
	size_t n = json_array_size(list), i;

	*ret = calloc(n ? n : 1, sizeof(**ret));
	*ret_n = *ret ? n : 0;
	if (!*ret || n > ACL_ENTRIES_MAX)
		return false;
	json_array_foreach(list, i, v)
	{
		int64_t perm;

		if (!number_u32(v, "id", &(*ret)[i].id) || !number(v, "perm", 0, 65535, &perm))
			return false;
		(*ret)[i].perm = (uint16_t)perm;
	}
	return true;
}

static int same_rule(struct load *l, struct str *text, uint32_t *ret_id)
{
	struct load_acl *a;

	if (str_error(text) < 0)
		return -ENOMEM;
	for (a = l->acls; a; a = a->next) {
		if (a->text.len == text->len && memcmp(a->text.s, text->s, text->len) == 0) {
			*ret_id = a->id;
			return 0;
		}
	}
	a = calloc(1, sizeof(*a));
	if (!a)
		return -ENOMEM;
	a->text = *text;
	*text = (struct str)STR_INIT;
	a->id = *ret_id = ++l->acl_max;
	a->next = l->acls;
	l->acls = a;
	return 0;
}

int load_rule(struct load *l, uint32_t *ret_id)
{
	_cleanup_(str_fini) struct str text = STR_INIT;
	int64_t owner = 0, group = 0, mask = 0, other = 0;
	struct acl a = {0};
	json_t *o = NULL;
	int r = take(l, &o);

	*ret_id = 0;
	if (r == 0 && json_is_null(o)) {
		json_decref(o);
		return 0;
	}
	if (r == 0 &&
	    (!number(o, "owner", 0, 65535, &owner) || !number(o, "group", 0, 65535, &group) ||
	     !number(o, "mask", 0, 65535, &mask) || !number(o, "other", 0, 65535, &other) ||
	     !acl_part(o, "users", &a.users, &a.n_users) ||
	     !acl_part(o, "groups", &a.groups, &a.n_groups)))
		r = load_bad(l, "an ACL rule is out of range");
	if (r == 0) {
		a.owner = (uint16_t)owner;
		a.group = (uint16_t)group;
		a.mask = (uint16_t)mask;
		a.other = (uint16_t)other;
		acl_encode(&a, &text);
		r = same_rule(l, &text, ret_id);
	}
	acl_fini(&a);
	json_decref(o);
	return r;
}

static bool slice_of(const json_t *o, struct slice *ret)
{
	uint8_t b[SLICE_LEN];
	int64_t id, old;

	if (!number(o, "id", 0, INT64_MAX / 2, &id) ||
	    !number(o, "chunkid", 0, INT64_MAX / 2, &old) || !number_u32(o, "pos", &ret->pos) ||
	    !number_u32(o, "size", &ret->size) || !number_u32(o, "off", &ret->off) ||
	    !number_u32(o, "len", &ret->len))
		return false;
	ret->id = (uint64_t)(id ? id : old); /* dumps of JuiceFS before 1.0 */
	slice_encode(ret, b);
	return slice_decode(b, sizeof(b), ret) == 0;
}

/* records of one chunk, RUN a command */
static int put_slices(struct load *l, uint64_t inode, uint32_t index, const json_t *list)
{
	uint8_t b[RUN][SLICE_LEN];
	const char *word[RUN];
	size_t len[RUN], i;
	char key[48];
	const json_t *v;
	int n = 0, r = 0;

	if (list && !json_is_array(list) && !json_is_null(list))
		return load_bad(l, "the slices of inode %" PRIu64 " are no list", inode);
	(void)snprintf(key, sizeof(key), "c%" PRIu64 "_%" PRIu32, inode, index);
	json_array_foreach(list, i, v)
	{
		struct numslot *ref;
		struct slice s;

		if (!slice_of(v, &s))
			return load_bad(l,
					"chunk %" PRIu32 " of inode %" PRIu64
					" has a slice out of range",
					index, inode);
		if (s.id) {
			ref = numtable_at(&l->refs, s.id, s.size);
			if (!ref)
				return -ENOMEM;
			ref->v++;
			l->next_chunk = MAX(l->next_chunk, s.id + 1);
		}
		slice_encode(&s, b[n]);
		word[n] = (const char *)b[n];
		len[n++] = SLICE_LEN;
		if (n == RUN || i + 1 == json_array_size(list)) {
			r = load_put(&l->out, "RPUSH", key, n, word, len);
			n = 0;
		}
		if (r)
			break;
	}
	return r;
}

int load_chunks(struct load *l, uint64_t inode, bool keep)
{
	bool more = false, none;
	int r = is_null(l, &none);

	if (r || none)
		return r;
	r = json_take(l->in, '[');
	for (bool first = true; r == 0; first = false) {
		json_t *o = NULL;
		uint32_t index;

		r = json_more(l->in, ']', first, &more);
		if (r || !more)
			break;
		r = take(l, &o);
		if (r == 0 && !number_u32(o, "index", &index))
			r = load_bad(l, "a chunk of inode %" PRIu64 " has no index", inode);
		if (r == 0 && keep)
			r = put_slices(l, inode, index, json_object_get(o, "slices"));
		json_decref(o);
	}
	return r;
}

int load_target(struct load *l, uint64_t inode, bool keep, size_t *ret_len)
{
	int r = json_text(l->in, &l->text);
	const char *word[1];
	size_t len[1];

	if (r)
		return r;
	len[0] = l->text.len ? dump_unescape(l->text.s, l->text.len) : 0;
	word[0] = str_c(&l->text);
	if (len[0] > SYMLINK_MAX + 1)
		return load_bad(l, "the target of symlink %" PRIu64 " is too long", inode);
	*ret_len = len[0];
	return keep ? put_inode(l, "SET", "s", inode, 1, word, len) : 0;
}
