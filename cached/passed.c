/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors of blocks' files that went out. Any thread; one leaf lock. A record for each, in the
 * map by its block; those of one file share a struct file. A block that was evicted and came back
 * has two files.
 *
 *	a file is	that is
 *	present		what the next descriptor of its block goes out for
 *	unlinked	in the list of those, oldest first, and counted in its disk's held
 *	expired		neither: unlinked for longer than PASSED_WAIT_US
 *
 * It ends with its last record. */
#include "cached/passed.h"

#include "common/clock.h"
#include "common/hashmap.h"

struct file {
	struct list_node link; /* in unlinked */
	unsigned records;
	bool unlinked;
	struct disk *disk; /* NULL: not counted there (any more) */
	uint64_t bytes, since_us;
};

struct record {
	struct hash_node node;
	struct list_node link; /* in the holder's all */
	struct block_key key;
	struct passed_holder *holder;
	struct file *file;
};

struct passed {
	struct mtx lock;
	struct hashmap records;
	struct list_node unlinked;
};

int passed_new(struct passed **ret)
{
	struct passed *p = calloc(1, sizeof(*p));

	if (!p || hashmap_init(&p->records, 256) < 0) {
		free(p);
		return -ENOMEM;
	}
	mtx_init(&p->lock);
	list_init(&p->unlinked);
	*ret = p;
	return 0;
}

void passed_free(struct passed *p)
{
	if (!p)
		return;
	assert(!p->records.count);
	hashmap_fini(&p->records);
	mtx_fini(&p->lock);
	free(p);
}

void passed_holder_init(struct passed_holder *h)
{
	list_init(&h->all);
	h->n = 0;
}

/* which record: of this block, and (where it is not NULL) of this holder */
struct wanted {
	const struct block_key *key;
	const struct passed_holder *holder;
	bool unlinked;
};

static bool wanted_eq(const struct hash_node *n, const void *arg)
{
	const struct record *r = container_of(n, const struct record, node);
	const struct wanted *w = arg;

	return r->file->unlinked == w->unlinked && (!w->holder || r->holder == w->holder) &&
	       block_key_eq(&r->key, w->key);
}

static struct record *find_locked(struct passed *p, const struct block_key *k,
				  const struct passed_holder *h, bool unlinked)
{
	const struct wanted w = {k, h, unlinked};
	struct hash_node *n = hashmap_find(&p->records, k->digest, wanted_eq, &w);

	return n ? container_of(n, struct record, node) : NULL;
}

/* the disk need not wait for it any more */
static void uncount(struct file *f)
{
	struct disk *d = TAKE_PTR(f->disk);

	list_del(&f->link);
	list_init(&f->link);
	if (d)
		atomic_fetch_sub_explicit(&d->held, f->bytes, memory_order_relaxed);
}

static void record_end_locked(struct passed *p, struct record *r)
{
	struct file *f = r->file;

	hashmap_del(&p->records, &r->node);
	list_del(&r->link);
	r->holder->n--;
	free(r);
	if (--f->records)
		return;
	uncount(f);
	free(f);
}

int passed_add(struct passed *p, struct passed_holder *h, const struct block_key *k)
{
	struct record *r = calloc(1, sizeof(*r)), *other;
	struct file *f = calloc(1, sizeof(*f));

	if (!r || !f) {
		free(r);
		free(f);
		return -ENOMEM;
	}
	r->key = *k;
	r->holder = h;
	list_init(&f->link);
	mtx_lock(&p->lock);
	other = find_locked(p, k, NULL, false);
	r->file = other ? other->file : f;
	r->file->records++;
	hashmap_add(&p->records, &r->node, k->digest);
	list_add_tail(&h->all, &r->link);
	h->n++;
	mtx_unlock(&p->lock);
	if (other)
		free(f);
	return 0;
}

bool passed_closed(struct passed *p, struct passed_holder *h, const struct block_key *k)
{
	struct record *r;

	mtx_lock(&p->lock);
	r = find_locked(p, k, h, true); /* who has both lets go of the old one first */
	if (!r)
		r = find_locked(p, k, h, false);
	if (r)
		record_end_locked(p, r);
	mtx_unlock(&p->lock);
	return r;
}

void passed_drop(struct passed *p, struct passed_holder *h)
{
	mtx_lock(&p->lock);
	while (!list_empty(&h->all))
		record_end_locked(p, container_of(h->all.next, struct record, link));
	mtx_unlock(&p->lock);
}

void passed_unlinked(struct passed *p, struct disk *d, const struct block_key *k, uint64_t bytes)
{
	struct record *r;

	mtx_lock(&p->lock);
	r = find_locked(p, k, NULL, false);
	if (r) {
		struct file *f = r->file;

		f->unlinked = true;
		f->disk = d;
		f->bytes = bytes;
		f->since_us = clock_us();
		list_add_tail(&p->unlinked, &f->link);
		atomic_fetch_add_explicit(&d->held, bytes, memory_order_relaxed);
	}
	mtx_unlock(&p->lock);
}

void passed_expire(struct passed *p)
{
	uint64_t now = clock_us();

	mtx_lock(&p->lock);
	while (!list_empty(&p->unlinked)) {
		struct file *f = container_of(p->unlinked.next, struct file, link);

		if (now - f->since_us < PASSED_WAIT_US)
			break;
		uncount(f);
	}
	mtx_unlock(&p->lock);
}
