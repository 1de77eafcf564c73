/* SPDX-License-Identifier: Apache-2.0 */
/* A script without an engine: the record that was read is what guards against changes. */
#include "client/maint/repair.h"

#include <inttypes.h>

#include "client/maint/listing.h"
#include "client/meta/reply.h"
#include "client/meta/script_text.h"
#include "common/clock.h"
#include "common/embed.h"

EMBED(lua_repairdir, "client/maint/repairdir.lua");
EMBED(lua_foldref, "client/maint/foldref.lua");
EMBED(lua_setref, "client/maint/setref.lua");
EMBED(lua_settier, "client/maint/settier.lua");
EMBED(lua_repairentry, "client/maint/repairentry.lua");
extern const char lua_prelude[] __attribute__((visibility("hidden"))); /* meta_redis.c */

static void put_time(char p[12], struct time_ns t)
{
	for (int i = 0; i < 8; i++)
		p[i] = (char)((uint64_t)t.sec >> (56 - 8 * i));
	for (int i = 0; i < 4; i++)
		p[8 + i] = (char)(t.nsec >> (24 - 8 * i));
}

static int run(const struct scan *s, const char *body, int argc, const char **v, const size_t *len)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	_cleanup_(str_fini) struct str text = STR_INIT;
	struct redis_script script;
	int r = script_text_add(&text, lua_prelude, body);

	if (r == 0)
		r = redis_script_init(&script, "repair", "", str_c(&text));
	if (r)
		return r;
	r = redis_eval(s->redis, clock_us() + s->timeout_us, &script, 1, argc, v, len, &reply);
	redis_script_fini(&script);
	if (r == 0 && reply_int(reply) != 1)
		r = -EAGAIN;
	return r;
}

int meta_repair_dir(const struct scan *s, const struct setting *set, const struct walk_dir *dir,
		    const struct attr *attr, bool stat)
{
	char inode[24], entries[24], sums[3][24] = {"", "", ""}, now[12], record[ATTR_MAX];
	_cleanup_(str_fini) struct str key = STR_INIT;
	struct attr fixed = attr ? *attr : (struct attr){.type = INODE_DIR};
	struct time_ns t;
	size_t n = 0;

	clock_real(&t.sec, &t.nsec);
	put_time(now, t);
	fixed.nlink = 2 + dir->subdirs;
	if (attr)
		n = attr_encode(&fixed, (uint8_t *)record);
	(void)snprintf(inode, sizeof(inode), "%" PRIu64, dir->inode);
	(void)snprintf(entries, sizeof(entries), "%" PRId64, dir->inodes);
	if (stat) {
		(void)snprintf(sums[0], sizeof(sums[0]), "%" PRId64, dir->length);
		(void)snprintf(sums[1], sizeof(sums[1]), "%" PRId64, dir->space);
		(void)snprintf(sums[2], sizeof(sums[2]), "%" PRId64, dir->inodes);
	}
	str_addf(&key, "%ssetting", s->prefix);
	if (str_error(&key) < 0)
		return -ENOMEM;
	const char *v[] = {
		str_c(&key), inode,   dir->record ? dir->record : "", record, now, entries, sums[0],
		sums[1],     sums[2], set->change_log ? "0,1" : "",   "0",    ""};
	const size_t len[] = {key.len,
			      strlen(inode),
			      dir->record ? dir->record_len : 0,
			      n,
			      sizeof(now),
			      strlen(entries),
			      strlen(sums[0]),
			      strlen(sums[1]),
			      strlen(sums[2]),
			      strlen(v[9]),
			      1,
			      0};
	return run(s, lua_repairdir, ARRAY_LEN(v), v, len);
}

/* --- what is no entry --- */

struct sweep {
	const struct scan *scan;
	const char *key, *inode;
	size_t n;
};

static int sweep_page(void *arg, size_t n, const struct scan_item *items)
{
	struct sweep *w = arg;
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++) {
		const struct scan_item *it = &items[i];
		const char *v[] = {w->key, w->inode, it->name, it->value, "", "0", ""};
		const size_t len[] = {
			strlen(w->key), strlen(w->inode), it->name_len, it->value_len, 0, 1, 0};

		if (listing_is_entry(it))
			continue;
		r = run(w->scan, lua_repairentry, ARRAY_LEN(v), v, len);
		w->n += r == 0;
		r = r == -EAGAIN ? 0 : r; /* it is another by now, or gone */
	}
	return r;
}

int meta_repair_entries(const struct scan *s, uint64_t inode, size_t *ret_n)
{
	_cleanup_(str_fini) struct str setting = STR_INIT;
	char key[32];
	struct sweep w = {.scan = s, .inode = key + 1};
	int r;

	(void)snprintf(key, sizeof(key), "d%" PRIu64, inode);
	str_addf(&setting, "%ssetting", s->prefix);
	r = str_error(&setting);
	w.key = str_c(&setting);
	if (r == 0)
		r = scan_hash(s, key, sweep_page, &w);
	*ret_n = w.n;
	return r;
}

/* --- references of old --- */

static bool is_ref_key(const struct scan_item *it)
{
	const char *under = memchr(it->name, '_', it->name_len);
	uint64_t id, size;

	return it->name_len > 3 && it->name[0] == 'k' && under &&
	       scan_u64(it->name + 1, (size_t)(under - it->name) - 1, &id) &&
	       scan_u64(under + 1, it->name_len - (size_t)(under + 1 - it->name), &size);
}

static int fold_page(void *arg, size_t n, const struct scan_item *items)
{
	struct sweep *w = arg;
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++) {
		const char *v[] = {w->key, items[i].name, "", "0", ""};
		const size_t len[] = {strlen(w->key), items[i].name_len, 0, 1, 0};

		if (!is_ref_key(&items[i]))
			continue;
		r = run(w->scan, lua_foldref, ARRAY_LEN(v), v, len);
		w->n += r == 0;
	}
	return r;
}

int meta_fold_refs(const struct scan *s, size_t *ret_n)
{
	_cleanup_(str_fini) struct str setting = STR_INIT;
	struct sweep w = {.scan = s};
	int r;

	str_addf(&setting, "%ssetting", s->prefix);
	r = str_error(&setting);
	w.key = str_c(&setting);
	if (r == 0)
		r = scan_keys(s, "k[0-9]*_*", fold_page, &w);
	*ret_n = w.n;
	return r;
}

int meta_set_ref(const struct scan *s, uint64_t id, uint32_t size, int64_t was, int64_t now)
{
	_cleanup_(str_fini) struct str key = STR_INIT;
	char text[3][48];

	(void)snprintf(text[0], sizeof(text[0]), "k%" PRIu64 "_%" PRIu32, id, size);
	(void)snprintf(text[1], sizeof(text[1]), "%" PRId64, was);
	(void)snprintf(text[2], sizeof(text[2]), "%" PRId64, now);
	str_addf(&key, "%ssetting", s->prefix);
	if (str_error(&key) < 0)
		return -ENOMEM;
	const char *v[] = {str_c(&key), text[0], text[1], text[2], "", "0", ""};
	const size_t len[] = {key.len, strlen(text[0]), strlen(text[1]), strlen(text[2]), 0, 1, 0};
	return run(s, lua_setref, ARRAY_LEN(v), v, len);
}

/* --- tiers --- */

int meta_set_tier(const struct scan *s, const struct setting *set, uint64_t inode, uint8_t tier)
{
	_cleanup_(str_fini) struct str key = STR_INIT;
	char number[24], id[8], now[12];
	const char *uuid = set->uuid ? set->uuid : "";
	struct time_ns t;

	clock_real(&t.sec, &t.nsec);
	put_time(now, t);
	(void)snprintf(number, sizeof(number), "%" PRIu64, inode);
	(void)snprintf(id, sizeof(id), "%u", tier);
	str_addf(&key, "%ssetting", s->prefix);
	if (str_error(&key) < 0)
		return -ENOMEM;
	const char *v[] = {str_c(&key), number, id, now, set->change_log ? "0,1" : "", "0", uuid};
	const size_t len[] = {key.len, strlen(number), strlen(id), sizeof(now), strlen(v[4]),
			      1,       strlen(uuid)};
	return run(s, lua_settier, ARRAY_LEN(v), v, len);
}
