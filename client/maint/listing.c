/* SPDX-License-Identifier: Apache-2.0 */
#include "client/maint/listing.h"

#include <inttypes.h>

#include "client/meta/reply.h"

void listing_fini(struct listing *l)
{
	free(l->e);
	str_fini(&l->names);
	*l = (struct listing){.e = NULL};
}

bool listing_is_entry(const struct scan_item *it)
{
	uint64_t inode;
	uint8_t type;

	return it->name_len && it->name_len <= NAME_LEN_MAX &&
	       !memchr(it->name, '\0', it->name_len) && !memchr(it->name, '/', it->name_len) &&
	       entry_decode((const uint8_t *)it->value, it->value_len, &type, &inode) == 0;
}

static int add(struct listing *l, const struct scan_item *it)
{
	struct listed e = {.name = l->names.len, .name_len = (uint16_t)it->name_len};

	if (!listing_is_entry(it)) {
		l->damaged++;
		return 0;
	}
	(void)entry_decode((const uint8_t *)it->value, it->value_len, &e.type, &e.inode);
	if (l->n == l->cap) {
		size_t cap = l->cap ? l->cap * 2 : 64;
		struct listed *more = reallocarray(l->e, cap, sizeof(*more));

		if (!more)
			return -ENOMEM;
		l->e = more;
		l->cap = cap;
	}
	str_addn(&l->names, it->name, it->name_len);
	str_addn(&l->names, "", 1);
	l->e[l->n++] = e;
	return str_error(&l->names);
}

int listing_page(struct listing *l, size_t n, const struct scan_item *items)
{
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++)
		r = add(l, &items[i]);
	return r;
}

static int by_name(const void *a, const void *b, void *arg)
{
	const struct listed *x = a, *y = b;
	const struct listing *l = arg;

	return strcmp(l->names.s + x->name, l->names.s + y->name);
}

void listing_sort(struct listing *l)
{
	size_t kept = 0;

	if (l->n == 0)
		return;
	qsort_r(l->e, l->n, sizeof(*l->e), by_name, l);
	for (size_t i = 1; i < l->n; i++) {
		if (by_name(&l->e[kept], &l->e[i], l) != 0)
			l->e[++kept] = l->e[i];
	}
	l->n = kept + 1;
}

static int page(void *arg, size_t n, const struct scan_item *items)
{
	return listing_page(arg, n, items);
}

int listing_read(const struct scan *s, uint64_t inode, struct listing *ret)
{
	struct listing l = {.e = NULL};
	char key[32];
	int r;

	(void)snprintf(key, sizeof(key), "d%" PRIu64, inode);
	r = scan_hash(s, key, page, &l);
	if (r) {
		listing_fini(&l);
		return r;
	}
	listing_sort(&l);
	*ret = l;
	return 0;
}

int listing_from_reply(const struct redis_reply *r, struct listing *ret)
{
	struct listing l = {.e = NULL};
	const struct redis_reply *fields = reply_at(r, 1);
	size_t n;
	const char *cursor = reply_text(reply_at(r, 0), &n);
	int e = 0;

	if (!cursor || !fields || strcmp(cursor, "0") != 0)
		return -EAGAIN;
	for (size_t i = 0; i + 1 < reply_len(fields) && e == 0; i += 2) {
		struct scan_item it;

		it.name = reply_text(reply_at(fields, i), &it.name_len);
		it.value = reply_text(reply_at(fields, i + 1), &it.value_len);
		if (it.name && it.value)
			e = add(&l, &it);
	}
	if (e) {
		listing_fini(&l);
		return e;
	}
	listing_sort(&l);
	*ret = l;
	return 0;
}
