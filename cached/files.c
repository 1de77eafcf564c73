/* SPDX-License-Identifier: Apache-2.0 */
/* Open block files by key, least recently used first out. Any thread; one leaf lock, under which
 * nothing is closed. */
#include "cached/files.h"

#include "common/hashmap.h"
#include "common/mtx.h"

struct open_file {
	struct hash_node node;
	struct list_node age; /* oldest at the tail */
	struct block_key key;
	struct blob_file *file;
};

struct files {
	struct mtx lock;
	struct hashmap map;
	struct list_node ages;
	struct list_node unused; /* blob_file.link: to be closed */
	unsigned max;
};

static bool open_file_eq(const struct hash_node *n, const void *key)
{
	return block_key_eq(&container_of(n, const struct open_file, node)->key, key);
}

int files_new(unsigned max, struct files **ret)
{
	struct files *f = calloc(1, sizeof(*f));

	if (!f || hashmap_init(&f->map, max) < 0) {
		free(f);
		return -ENOMEM;
	}
	mtx_init(&f->lock);
	list_init(&f->ages);
	list_init(&f->unused);
	f->max = max;
	*ret = f;
	return 0;
}

static void open_file_free(struct open_file *o)
{
	if (!o)
		return;
	blob_file_unref(o->file);
	free(o);
}

static struct open_file *find_locked(struct files *f, const struct block_key *k)
{
	struct hash_node *n = hashmap_find(&f->map, k->digest, open_file_eq, k);

	return n ? container_of(n, struct open_file, node) : NULL;
}

static void remove_locked(struct files *f, struct open_file *o)
{
	hashmap_del(&f->map, &o->node);
	list_del(&o->age);
}

struct blob_file *files_get(struct files *f, const struct block_key *k)
{
	struct blob_file *file = NULL;
	struct open_file *o;

	mtx_lock(&f->lock);
	o = find_locked(f, k);
	if (o) {
		list_del(&o->age);
		list_add_head(&f->ages, &o->age);
		file = blob_file_ref(o->file);
	}
	mtx_unlock(&f->lock);
	return file;
}

void files_put(struct files *f, const struct block_key *k, struct blob_file *file)
{
	struct open_file *o = calloc(1, sizeof(*o)), *out = NULL;

	if (!o)
		return;
	o->key = *k;
	o->file = blob_file_ref(file);
	mtx_lock(&f->lock);
	if (find_locked(f, k)) {
		out = o;
	} else {
		if (f->map.count >= f->max) {
			out = container_of(f->ages.prev, struct open_file, age);
			remove_locked(f, out);
		}
		hashmap_add(&f->map, &o->node, k->digest);
		list_add_head(&f->ages, &o->age);
	}
	mtx_unlock(&f->lock);
	open_file_free(out);
}

static struct open_file *take_locked(struct files *f, const struct block_key *k)
{
	struct open_file *o;

	if (k)
		o = find_locked(f, k);
	else
		o = list_empty(&f->ages) ? NULL : container_of(f->ages.next, struct open_file, age);
	if (o)
		remove_locked(f, o);
	return o;
}

void files_drop(struct files *f, const struct block_key *k)
{
	struct open_file *o;

	do {
		mtx_lock(&f->lock);
		o = take_locked(f, k);
		mtx_unlock(&f->lock);
		open_file_free(o);
	} while (o && !k);
}

void files_later(struct files *f, struct blob_file *file)
{
	mtx_lock(&f->lock);
	list_add_tail(&f->unused, &file->link);
	mtx_unlock(&f->lock);
}

void files_close(struct files *f, const void *arg)
{
	struct list_node out, *n, *next;

	list_init(&out);
	mtx_lock(&f->lock);
	list_for_each_safe(n, next, &f->unused)
	{
		if (arg && container_of(n, struct blob_file, link)->arg != arg)
			continue;
		list_del(n);
		list_add_tail(&out, n);
	}
	mtx_unlock(&f->lock);
	while ((n = list_pop(&out)))
		blob_file_close(container_of(n, struct blob_file, link));
}

void files_drop_of(struct files *f, const void *arg)
{
	struct list_node out, *n, *next;

	list_init(&out);
	mtx_lock(&f->lock);
	list_for_each_safe(n, next, &f->ages)
	{
		struct open_file *o = container_of(n, struct open_file, age);

		if (o->file->arg != arg)
			continue;
		remove_locked(f, o);
		list_add_tail(&out, &o->age);
	}
	mtx_unlock(&f->lock);
	while ((n = list_pop(&out)))
		open_file_free(container_of(n, struct open_file, age));
	files_close(f, arg);
}

void files_free(struct files *f)
{
	if (!f)
		return;
	files_drop(f, NULL);
	files_close(f, NULL);
	hashmap_fini(&f->map);
	mtx_fini(&f->lock);
	free(f);
}
