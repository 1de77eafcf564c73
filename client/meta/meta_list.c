/* SPDX-License-Identifier: Apache-2.0 */
/* A directory that is read page by page. Any thread that may block loads, one at a time; any thread
 * looks at what is there, without a lock: entries stay where they are put, in arrays of doubling
 * size, and count once there says so. A name that comes again (a hash that is being resized repeats
 * some, and a server that was started anew all) is left out.
 *
 *	entry		[0, there)	complete: may be looked at
 *			[there, n)	its name is known; of who loads
 *	listing		loading		by one thread, or not
 *			ended		there is all */
#include "client/meta/engine.h"

#include "common/hash.h"

enum { ARENA_BYTES = 64 << 10, FIRST_SLOTS = 1024 };

struct arena {
	struct arena *next;
	size_t used, room;
	char bytes[];
};

struct meta_list *dirlist_new(struct meta *m, uint64_t inode, bool with_attr)
{
	struct meta_list *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	l->m = m;
	l->inode = inode;
	l->with_attr = with_attr;
	l->refs = 1;
	mtx_init(&l->lock);
	cond_init(&l->loaded);
	return l;
}

int meta_list(struct meta *m, uint64_t inode, bool with_attr, struct meta_list **ret)
{
	int r = meta_check_there(m);

	if (r)
		return r;
	*ret = dirlist_new(m, meta_rooted(m, inode), with_attr);
	if (!*ret)
		return -ENOMEM;
	(*ret)->show = m->root != INODE_ROOT;
	return 0;
}

struct meta_list *meta_list_ref(struct meta_list *l)
{
	__atomic_add_fetch(&l->refs, 1, __ATOMIC_RELAXED);
	return l;
}

void meta_list_put(struct meta_list *l)
{
	if (!l || __atomic_sub_fetch(&l->refs, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	for (size_t i = 0; i < ARRAY_LEN(l->blocks); i++)
		free(l->blocks[i]);
	while (l->names) {
		struct arena *next = l->names->next;

		free(l->names);
		l->names = next;
	}
	free(l->table);
	mtx_fini(&l->lock);
	cond_fini(&l->loaded);
	free(l);
}

/* --- entries --- */

/* block b begins at LIST_BLOCK * (2^b - 1) and has LIST_BLOCK * 2^b */
static unsigned block_of(size_t i, size_t *ret_within)
{
	unsigned b = 63 - (unsigned)__builtin_clzll(i / LIST_BLOCK + 1);

	*ret_within = i - LIST_BLOCK * (((size_t)1 << b) - 1);
	return b;
}

struct meta_entry *dirlist_entry(struct meta_list *l, size_t i)
{
	size_t within;
	unsigned b = block_of(i, &within);

	return l->blocks[b] + within;
}

const struct meta_entry *meta_list_at(struct meta_list *l, size_t i)
{
	return i < __atomic_load_n(&l->there, __ATOMIC_ACQUIRE) ? dirlist_entry(l, i) : NULL;
}

static char *name_keep(struct meta_list *l, const char *name, size_t len)
{
	struct arena *a = l->names;
	char *p;

	if (!a || a->room - a->used < len + 1) {
		a = malloc(sizeof(*a) + ARENA_BYTES);
		if (!a)
			return NULL;
		*a = (struct arena){.next = l->names, .room = ARENA_BYTES};
		l->names = a;
	}
	p = a->bytes + a->used;
	memcpy(p, name, len);
	p[len] = 0;
	a->used += len + 1;
	return p;
}

/* of the names that are there */
static int table_make(struct meta_list *l, size_t slots)
{
	struct list_slot *table = calloc(slots, sizeof(*table));

	if (!table)
		return -ENOMEM;
	for (size_t i = 0; i < l->slots; i++) {
		size_t h = l->table[i].hash & (slots - 1);

		if (!l->table[i].number || l->table[i].number > l->n)
			continue;
		while (table[h].number)
			h = (h + 1) & (slots - 1);
		table[h] = l->table[i];
	}
	free(l->table);
	l->table = table;
	l->slots = slots;
	return 0;
}

int dirlist_again(struct meta_list *l)
{
	l->n = l->loaded_n;
	l->names_end = false;
	l->damaged = 0;
	l->cursor = (struct redis_cursor){.end = false};
	return l->slots ? table_make(l, l->slots) : 0;
}

/* where the name is, or would be */
static struct list_slot *table_find(struct meta_list *l, const char *name, size_t len,
				    uint32_t hash)
{
	size_t h = hash & (l->slots - 1);

	for (; l->table[h].number; h = (h + 1) & (l->slots - 1)) {
		const struct meta_entry *e;

		if (l->table[h].hash != hash)
			continue;
		e = dirlist_entry(l, l->table[h].number - 1);
		if (e->name_len == len && !memcmp(e->name, name, len))
			break;
	}
	return &l->table[h];
}

int dirlist_add(struct meta_list *l, const struct meta_entry *e)
{
	uint32_t hash = (uint32_t)hash64(e->name, e->name_len);
	struct list_slot *slot;
	size_t within;
	unsigned b = block_of(l->n, &within);
	char *name;

	if (l->n >= UINT32_MAX / 4 ||
	    (l->n * 2 >= l->slots && table_make(l, MAX(l->slots * 4, (size_t)FIRST_SLOTS))))
		return -ENOMEM;
	slot = table_find(l, e->name, e->name_len, hash);
	if (slot->number)
		return 0;
	assert(b < ARRAY_LEN(l->blocks));
	if (!l->blocks[b])
		l->blocks[b] = malloc((LIST_BLOCK << b) * sizeof(*e));
	name = l->blocks[b] ? name_keep(l, e->name, e->name_len) : NULL;
	if (!name)
		return -ENOMEM;
	l->blocks[b][within] = *e;
	l->blocks[b][within].name = name;
	*slot = (struct list_slot){.number = (uint32_t)++l->n, .hash = hash};
	return 0;
}

/* --- loading --- */

/* an engine that has no pages: all at once */
static int load_whole(struct meta_list *l)
{
	struct meta_dir *d;
	int r = l->m->ops->readdir(l->m, l->inode, l->with_attr, &d);

	if (r)
		return r;
	for (size_t i = 0; i < d->n && !r; i++)
		r = dirlist_add(l, &d->entries[i]);
	meta_dir_free(d);
	l->loaded_n = l->n;
	l->names_end = true;
	return r;
}

/* one more page */
static int load(struct meta_list *l)
{
	size_t from = l->loaded_n;
	int r = l->m->ops->list_page ? l->m->ops->list_page(l->m, l) : load_whole(l);

	for (; l->show && from < l->loaded_n; from++)
		meta_show(l->m, dirlist_entry(l, from)->inode, &dirlist_entry(l, from)->attr);
	__atomic_store_n(&l->there, l->loaded_n, __ATOMIC_RELEASE);
	if (!r && l->names_end && l->loaded_n == l->n)
		__atomic_store_n(&l->end, true, __ATOMIC_RELEASE);
	return r;
}

bool meta_list_ready(struct meta_list *l, size_t n)
{
	return __atomic_load_n(&l->end, __ATOMIC_ACQUIRE) ||
	       __atomic_load_n(&l->there, __ATOMIC_ACQUIRE) >= n;
}

int meta_list_load(struct meta_list *l, size_t n)
{
	int r = 0;

	while (!r && !meta_list_ready(l, n)) {
		mtx_lock(&l->lock);
		if (l->loading) {
			cond_wait(&l->loaded, &l->lock);
			mtx_unlock(&l->lock);
			continue;
		}
		l->loading = true;
		mtx_unlock(&l->lock);
		r = meta_list_ready(l, n) ? 0 : load(l);
		mtx_lock(&l->lock);
		l->loading = false;
		cond_broadcast(&l->loaded);
		mtx_unlock(&l->lock);
	}
	return r;
}

/* --- reading ahead --- */

static bool wants(struct meta_list *l, size_t ahead)
{
	size_t at = __atomic_load_n(&l->reached, __ATOMIC_RELAXED);

	return at != SIZE_MAX && !meta_list_ready(l, at + ahead);
}

void meta_list_reached(struct meta_list *l, size_t n)
{
	__atomic_store_n(&l->reached, n, __ATOMIC_RELAXED);
}

void meta_list_leave(struct meta_list *l)
{
	if (l)
		meta_list_reached(l, SIZE_MAX);
	meta_list_put(l);
}

bool meta_list_wants(struct meta_list *l)
{
	return wants(l, LIST_AHEAD / 2) && !__atomic_exchange_n(&l->ahead, true, __ATOMIC_ACQ_REL);
}

void meta_list_ahead(struct meta_list *l)
{
	int r = 0;

	while (!r && wants(l, LIST_AHEAD))
		r = meta_list_load(l, __atomic_load_n(&l->there, __ATOMIC_RELAXED) + 1);
	/* an error is found again by who needs the page */
	__atomic_store_n(&l->ahead, false, __ATOMIC_RELEASE);
	meta_list_put(l);
}

/* --- all of it --- */

int dirlist_whole(struct meta_list *l, struct meta_dir **ret)
{
	struct meta_dir *d = calloc(1, sizeof(*d));
	size_t bytes = 0;
	char *p;
	int r = d ? meta_list_load(l, SIZE_MAX) : -ENOMEM;

	for (size_t i = 0; !r && i < l->n; i++)
		bytes += dirlist_entry(l, i)->name_len + 1;
	if (!r) {
		d->entries = calloc(l->n + 1, sizeof(*d->entries));
		d->names = malloc(bytes + 1);
		r = d->entries && d->names ? 0 : -ENOMEM;
	}
	if (r) {
		meta_dir_free(d);
		return r;
	}
	p = d->names;
	for (; d->n < l->n; d->n++) {
		struct meta_entry *e = &d->entries[d->n];

		*e = *dirlist_entry(l, d->n);
		memcpy(p, e->name, e->name_len + 1);
		e->name = p;
		p += e->name_len + 1;
	}
	*ret = d;
	return 0;
}
