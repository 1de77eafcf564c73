/* SPDX-License-Identifier: Apache-2.0 */
/* Key -> place, sharded. No thread of its own. An entry is in its shard's table from begin to abort
 * or gone, and in a policy only while present and not pinned. */
#include "cached/index.h"

#include <stdatomic.h>

#include "common/hashmap.h"
#include "common/mtx.h"

enum { SHARD_BITS = 4, SHARDS = INDEX_PARTS, EACH_STEPS = 4096 };
enum entry_state { ENTRY_WRITING, ENTRY_PRESENT, ENTRY_LEAVING };

struct entry {
	struct hash_node node; /* hash: the key's digest */
	struct evict_node rank;
	uint64_t slice;
	uint32_t index, size;
	uint8_t disk, state;
	bool pinned; /* present, and in no policy: in its shard's list instead */
};

struct shard {
	struct mtx lock;
	struct hash128 volume;
	struct hashmap map;
	struct evict **policy;	 /* one per disk */
	struct list_node pinned; /* entry.rank.link */
	uint64_t present;
};

struct index {
	unsigned n_disks;
	atomic_uint next_shard[INDEX_DISKS_MAX]; /* where the next victim of a disk is looked for */
	struct shard shard[SHARDS];
};

static struct shard *shard_of(struct index *ix, const struct block_key *k)
{
	return &ix->shard[k->digest >> (64 - SHARD_BITS)];
}

static bool entry_eq(const struct hash_node *n, const void *key)
{
	const struct entry *e = container_of(n, const struct entry, node);
	const struct block_key *k = key;

	return e->slice == k->slice && e->index == k->index && e->size == k->size;
}

/* volume and digest are equal when this finds one: a shard holds one volume */
static struct entry *find_locked(struct shard *s, const struct block_key *k)
{
	struct hash_node *n;

	if (memcmp(s->volume.b, k->volume.b, sizeof(k->volume.b)) != 0)
		return NULL;
	n = hashmap_find(&s->map, k->digest, entry_eq, k);
	return n ? container_of(n, struct entry, node) : NULL;
}

static void forget_locked(struct shard *s, struct entry *e)
{
	hashmap_del(&s->map, &e->node);
	free(e);
}

static void unrank_locked(struct shard *s, struct entry *e)
{
	if (!e->pinned)
		evict_remove(s->policy[e->disk], &e->rank);
	else
		list_del(&e->rank.link);
	e->pinned = false;
}

static bool forget_each(struct hash_node *n, void *arg)
{
	struct shard *s = arg;
	struct entry *e = container_of(n, struct entry, node);

	if (e->state == ENTRY_PRESENT)
		unrank_locked(s, e);
	forget_locked(s, e);
	return true;
}

static int shard_init(struct shard *s, const struct hash128 *volume, unsigned n_disks,
		      evict_new_fn *policy)
{
	s->volume = *volume;
	s->policy = calloc(n_disks, sizeof(struct evict *));
	if (!s->policy)
		return -ENOMEM;
	for (unsigned i = 0; i < n_disks; i++) {
		s->policy[i] = policy();
		if (!s->policy[i])
			return -ENOMEM;
	}
	return hashmap_init(&s->map, 64);
}

int index_new(const struct hash128 *volume, unsigned n_disks, evict_new_fn *policy,
	      struct index **ret)
{
	struct index *ix;
	int r;

	assert(n_disks > 0 && n_disks <= INDEX_DISKS_MAX);
	ix = calloc(1, sizeof(*ix));
	if (!ix)
		return -ENOMEM;
	ix->n_disks = n_disks;
	for (unsigned i = 0; i < SHARDS; i++)
		mtx_init(&ix->shard[i].lock);
	for (unsigned i = 0; i < SHARDS; i++)
		list_init(&ix->shard[i].pinned);
	for (unsigned i = 0; i < SHARDS; i++) {
		r = shard_init(&ix->shard[i], volume, n_disks, policy);
		if (r < 0) {
			index_free(ix);
			return r;
		}
	}
	*ret = ix;
	return 0;
}

void index_free(struct index *ix)
{
	if (!ix)
		return;
	for (unsigned i = 0; i < SHARDS; i++) {
		struct shard *s = &ix->shard[i];

		if (s->map.slot) {
			hashmap_each(&s->map, forget_each, s);
			hashmap_fini(&s->map);
		}
		for (unsigned d = 0; s->policy && d < ix->n_disks; d++)
			evict_free(s->policy[d]);
		free(s->policy);
		mtx_fini(&s->lock);
	}
	free(ix);
}

void index_reset(struct index *ix, const struct hash128 *volume)
{
	for (unsigned i = 0; i < SHARDS; i++) {
		struct shard *s = &ix->shard[i];

		mtx_lock(&s->lock);
		hashmap_each(&s->map, forget_each, s);
		s->volume = *volume;
		s->present = 0;
		mtx_unlock(&s->lock);
	}
}

static bool find(struct index *ix, const struct block_key *k, bool hit, unsigned *ret_disk)
{
	struct shard *s = shard_of(ix, k);
	struct entry *e;
	bool found;

	mtx_lock(&s->lock);
	e = find_locked(s, k);
	found = e && e->state == ENTRY_PRESENT;
	if (found && hit && !e->pinned)
		evict_hit(s->policy[e->disk], &e->rank);
	if (found && ret_disk)
		*ret_disk = e->disk;
	mtx_unlock(&s->lock);
	return found;
}

bool index_find(struct index *ix, const struct block_key *k, unsigned *ret_disk)
{
	return find(ix, k, true, ret_disk);
}

bool index_peek(struct index *ix, const struct block_key *k)
{
	return find(ix, k, false, NULL);
}

bool index_where(struct index *ix, const struct block_key *k, unsigned *ret_disk)
{
	return find(ix, k, false, ret_disk);
}

bool index_admit(struct index *ix, const struct block_key *k, unsigned disk)
{
	struct shard *s = shard_of(ix, k);
	bool yes;

	assert(disk < ix->n_disks);
	mtx_lock(&s->lock);
	yes = evict_admit(s->policy[disk], k->digest);
	mtx_unlock(&s->lock);
	return yes;
}

static int begin_locked(struct shard *s, const struct block_key *k, struct entry *fresh)
{
	struct entry *e;

	if (memcmp(s->volume.b, k->volume.b, sizeof(k->volume.b)) != 0)
		return -ESTALE;
	e = find_locked(s, k);
	if (e)
		return e->state == ENTRY_PRESENT ? -EEXIST : -EBUSY;
	fresh->slice = k->slice;
	fresh->index = k->index;
	fresh->size = k->size;
	fresh->state = ENTRY_WRITING;
	hashmap_add(&s->map, &fresh->node, k->digest);
	return 0;
}

int index_begin(struct index *ix, const struct block_key *k)
{
	struct shard *s = shard_of(ix, k);
	struct entry *fresh = calloc(1, sizeof(*fresh));
	int r;

	if (!fresh)
		return -ENOMEM;
	mtx_lock(&s->lock);
	r = begin_locked(s, k, fresh);
	mtx_unlock(&s->lock);
	if (r < 0)
		free(fresh);
	return r;
}

static void commit_locked(struct shard *s, struct entry *e, uint64_t digest, unsigned disk,
			  enum evict_kind kind)
{
	e->state = ENTRY_PRESENT;
	e->disk = (uint8_t)disk;
	evict_add(s->policy[disk], &e->rank, digest, kind);
	s->present++;
}

int index_add(struct index *ix, const struct block_key *k, unsigned disk, enum evict_kind kind)
{
	struct shard *s = shard_of(ix, k);
	struct entry *fresh = calloc(1, sizeof(*fresh));
	int r;

	assert(disk < ix->n_disks);
	if (!fresh)
		return -ENOMEM;
	mtx_lock(&s->lock);
	r = begin_locked(s, k, fresh);
	if (r == 0)
		commit_locked(s, fresh, k->digest, disk, kind);
	mtx_unlock(&s->lock);
	if (r < 0)
		free(fresh);
	return r;
}

int index_commit(struct index *ix, const struct block_key *k, unsigned disk, enum evict_kind kind)
{
	struct shard *s = shard_of(ix, k);
	struct entry *e;

	assert(disk < ix->n_disks);
	mtx_lock(&s->lock);
	e = find_locked(s, k);
	if (e) {
		assert(e->state == ENTRY_WRITING);
		commit_locked(s, e, k->digest, disk, kind);
	}
	mtx_unlock(&s->lock);
	return e ? 0 : -ESTALE;
}

static void forget(struct index *ix, const struct block_key *k, enum entry_state state)
{
	struct shard *s = shard_of(ix, k);
	struct entry *e;

	mtx_lock(&s->lock);
	e = find_locked(s, k);
	if (e) {
		assert(e->state == state);
		forget_locked(s, e);
	}
	mtx_unlock(&s->lock);
}

void index_abort(struct index *ix, const struct block_key *k)
{
	forget(ix, k, ENTRY_WRITING);
}

void index_gone(struct index *ix, const struct block_key *k)
{
	forget(ix, k, ENTRY_LEAVING);
}

int index_take(struct index *ix, const struct block_key *k, unsigned *ret_disk)
{
	struct shard *s = shard_of(ix, k);
	struct entry *e;
	int r = 0;

	mtx_lock(&s->lock);
	e = find_locked(s, k);
	if (!e) {
		r = -ENOENT;
	} else if (e->state != ENTRY_PRESENT) {
		r = -EBUSY;
	} else {
		unrank_locked(s, e);
		e->state = ENTRY_LEAVING;
		s->present--;
		*ret_disk = e->disk;
	}
	mtx_unlock(&s->lock);
	return r;
}

bool index_pin(struct index *ix, const struct block_key *k, bool pinned)
{
	struct shard *s = shard_of(ix, k);
	struct entry *e;
	bool there;

	mtx_lock(&s->lock);
	e = find_locked(s, k);
	there = e && e->state == ENTRY_PRESENT;
	if (there && pinned != e->pinned) {
		if (pinned) {
			evict_remove(s->policy[e->disk], &e->rank);
			list_add_tail(&s->pinned, &e->rank.link);
		} else {
			list_del(&e->rank.link);
			evict_add(s->policy[e->disk], &e->rank, k->digest, EVICT_ASKED);
		}
		e->pinned = pinned;
	}
	mtx_unlock(&s->lock);
	return there;
}

static bool victim_locked(struct shard *s, unsigned disk, struct block_key *ret)
{
	struct evict_node *n = evict_victim(s->policy[disk]);
	struct entry *e;

	if (!n)
		return false;
	e = container_of(n, struct entry, rank);
	e->state = ENTRY_LEAVING;
	s->present--;
	block_key_init(ret, &s->volume, e->slice, e->index, e->size);
	return true;
}

int index_victim(struct index *ix, unsigned disk, struct block_key *ret)
{
	assert(disk < ix->n_disks);
	for (unsigned tries = 0; tries < SHARDS; tries++) {
		/* any shard will do: digests spread evenly, so taking turns is close to one
		 * queue */
		unsigned i =
			atomic_fetch_add_explicit(&ix->next_shard[disk], 1, memory_order_relaxed);
		struct shard *s = &ix->shard[i % SHARDS];
		bool found;

		mtx_lock(&s->lock);
		found = victim_locked(s, disk, ret);
		mtx_unlock(&s->lock);
		if (found)
			return 0;
	}
	return -ENOENT;
}

/* the present ones of a chain; false: they do not fit */
static bool take_chain_locked(const struct shard *s, struct hash_node *n, struct block_key *ret,
			      size_t room, size_t *ret_n)
{
	size_t found = 0;

	for (; n; n = n->next) {
		const struct entry *e = container_of(n, struct entry, node);

		if (e->state != ENTRY_PRESENT)
			continue;
		if (found == room)
			return false;
		block_key_init(&ret[found++], &s->volume, e->slice, e->index, e->size);
	}
	*ret_n = found;
	return true;
}

/* the cursor: the shard's number, then the place in its table */
int index_each(struct index *ix, uint64_t *io_cursor, struct block_key *ret, size_t max,
	       size_t *ret_n)
{
	uint64_t number = *io_cursor >> 32;
	uint32_t at = (uint32_t)*io_cursor, here;
	size_t n = 0, more, steps = 0;
	bool fits = true;
	struct shard *s;

	assert(max >= INDEX_EACH_MIN);
	if (number >= SHARDS)
		return -EINVAL; /* cursors come from peers */
	s = &ix->shard[number];
	mtx_lock(&s->lock);
	do {
		here = at;
		fits = take_chain_locked(s, hashmap_step(&s->map, &at), ret + n, max - n, &more);
		n += fits ? more : 0;
	} while (fits && at && ++steps < EACH_STEPS);
	mtx_unlock(&s->lock);
	if (!fits && n == 0)
		return -EOVERFLOW; /* a table that found no memory to grow for long */
	if (!fits)
		at = here;
	*io_cursor = fits && !at ? (number + 1) % SHARDS << 32 : number << 32 | at;
	*ret_n = n;
	return 0;
}

struct listing {
	void (*fn)(const struct index_block *b, void *arg);
	void *arg;
};

static void list_one(struct evict_node *n, enum evict_kind kind, void *arg)
{
	const struct entry *e = container_of(n, struct entry, rank);
	const struct index_block b = {e->slice, e->index, e->size, kind};
	const struct listing *l = arg;

	l->fn(&b, l->arg);
}

void index_list(struct index *ix, unsigned part, unsigned disk,
		void (*fn)(const struct index_block *b, void *arg), void *arg)
{
	struct listing l = {fn, arg};
	struct list_node *n;
	struct shard *s;

	assert(part < INDEX_PARTS && disk < ix->n_disks);
	s = &ix->shard[part];
	mtx_lock(&s->lock);
	evict_each(s->policy[disk], list_one, &l);
	list_for_each(n, &s->pinned)
	{
		struct evict_node *rank = container_of(n, struct evict_node, link);

		if (container_of(rank, struct entry, rank)->disk == disk)
			list_one(rank, EVICT_ASKED, &l);
	}
	mtx_unlock(&s->lock);
}

uint64_t index_count(struct index *ix)
{
	uint64_t n = 0;

	for (unsigned i = 0; i < SHARDS; i++) {
		mtx_lock(&ix->shard[i].lock);
		n += ix->shard[i].present;
		mtx_unlock(&ix->shard[i].lock);
	}
	return n;
}
