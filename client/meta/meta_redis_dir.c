/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a directory, page by page: an HSCAN for names, and their records in one MGET. Any thread
 * that may block. */
#include "client/meta/tree.h"

#include "common/clock.h"

/* The first page is little more than what the kernel asks for first, so that it waits for no more;
 * the next ones are there before it has made use of those before them. */
enum { FIRST_BATCH = 256, RECORD_BATCH = 1000 };

static int add_name(struct meta_list *l, const struct redis_reply *name,
		    const struct redis_reply *value)
{
	size_t n = 0, len = 0;
	const char *s = name ? reply_text(name, &n) : NULL;
	const char *v = value ? reply_text(value, &len) : NULL;
	struct meta_entry e = {.name = s, .name_len = n};

	/* one that is damaged must not hide the others */
	if (!s || n == 0 || n > NAME_LEN_MAX || memchr(s, '/', n) || memchr(s, '\0', n) || !v ||
	    entry_decode((const uint8_t *)v, len, &e.attr.type, &e.inode)) {
		l->damaged++;
		return 0;
	}
	return dirlist_add(l, &e);
}

static int add_names(void *arg, const struct redis_reply *page)
{
	int r = 0;

	for (size_t i = 0; i + 1 < reply_len(page) && !r; i += 2)
		r = add_name(arg, reply_at(page, i), reply_at(page, i + 1));
	return r;
}

static int read_names(struct meta_redis *mr, struct meta_list *l, unsigned count)
{
	char key[48];
	int r;

	snprintf(key, sizeof(key), "%sd%llu", mr->prefix, (unsigned long long)l->inode);
	r = redis_page(mr->redis, mr->base.conf.timeout_us, "HSCAN", key, count, &l->cursor,
		       add_names, l);
	if (!r && l->cursor.end && l->damaged)
		tree_damaged(l->inode, l->damaged);
	l->names_end = !r && l->cursor.end;
	return op_error(r);
}

/* a decimal number and its NUL before end; where it begins */
static char *number_before(char *end, uint64_t v)
{
	*--end = 0;
	do {
		*--end = (char)('0' + v % 10);
		v /= 10;
	} while (v);
	return end;
}

/* the records of the n entries behind those that are complete, and what tells whether they are of
 * the mark's volume: -ESTALE if not */
static int read_records(struct meta_redis *mr, const struct mark *k, struct meta_list *l, size_t n)
{
	enum { KEY_ROOM = REDIS_PREFIX_MAX + 24 };
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	_cleanup_(freep) char *keys = malloc((n + 2) * KEY_ROOM);
	const char *v[RECORD_BATCH + 3] = {"MGET"};
	size_t len[RECORD_BATCH + 3] = {4}, prefix = strlen(mr->prefix);
	int r;

	if (!keys)
		return -ENOMEM;
	for (size_t i = 0; i < n + 2; i++) {
		char *end = keys + (i + 1) * KEY_ROOM, *p = end - KEY_ROOM;

		if (i < n) {
			p = number_before(end, dirlist_entry(l, l->loaded_n + i)->inode);
			*--p = 'i';
			p = memcpy(p - prefix, mr->prefix, prefix);
			len[1 + i] = (size_t)(end - 1 - p);
		} else {
			len[1 + i] = (size_t)snprintf(p, KEY_ROOM, "%s%s", mr->prefix,
						      i == n ? "_gen" : mark_key(k));
		}
		v[1 + i] = p;
	}
	r = op_cmdv(mr, (int)(n + 3), v, len, &reply);
	if (!r && !mark_fits(k, reply_at(reply, n), reply_at(reply, n + 1)))
		r = -ESTALE;
	for (size_t i = 0; !r && i < n; i++) {
		struct meta_entry *e = dirlist_entry(l, l->loaded_n + i);

		e->full = !reply_attr(reply_at(reply, i), &e->attr);
	}
	return r;
}

static int read_page(struct meta_redis *mr, struct meta_list *l)
{
	size_t batch = MAX(l->loaded_n, (size_t)FIRST_BATCH), n;
	struct mark k;
	int r = mark_take(mr, &k);

	batch = MIN(batch, (size_t)RECORD_BATCH);
	if (!r && !l->names_end && l->n - l->loaded_n < batch)
		r = read_names(mr, l, (unsigned)batch);
	n = MIN(l->n - l->loaded_n, batch);
	/* an empty directory is of the volume, too */
	if (!r && (n || l->names_end))
		r = read_records(mr, &k, l, l->with_attr ? n : 0);
	if (!r)
		l->loaded_n += n;
	if (r == -ESTALE && generation_check(mr, &k, op_deadline(mr)))
		r = -EIO;
	return r;
}

int redis_list_page(struct meta *m, struct meta_list *l)
{
	struct meta_redis *mr = redis_engine(m);
	uint64_t begin = clock_us();
	int r = -ESTALE;

	for (int i = 0; i < MARK_TRIES && r == -ESTALE; i++) {
		r = i ? dirlist_again(l) : 0;
		if (!r)
			r = read_page(mr, l);
	}
	metric_observe_us(mr->seconds[OP_READDIR], clock_us() - begin);
	return r == -ESTALE ? -EIO : r;
}

int redis_readdir(struct meta *m, uint64_t inode, bool with_attr, struct meta_dir **ret)
{
	struct meta_list *l = dirlist_new(m, inode, with_attr);
	int r = l ? dirlist_whole(l, ret) : -ENOMEM;

	meta_list_put(l);
	return r;
}
