/* SPDX-License-Identifier: Apache-2.0 */
/* Pinned blocks of the store: the table (pins.h) says until when, the index does not offer them for
 * eviction. Any thread. A block is pinned before it is fetched, so that nothing takes it away in
 * between; whoever comes second, the pin or the block, tells the index. */
#include "cached/store_inner.h"
#include "common/clock.h"

enum { EXPIRE_AT_ONCE = 256, SHARE = 80 /* % of a disk that may be pinned */ };

static uint64_t today(void)
{
	uint32_t nsec;
	int64_t sec;

	clock_real(&sec, &nsec);
	return sec > 0 ? (uint64_t)sec : 0;
}

void store_pin_align(struct store *s, const struct block_key *k)
{
	bool pinned;

	do { /* until nobody changed the table meanwhile */
		pinned = pins_until(s->pins, k);
		(void)index_pin(s->ix, k, pinned);
	} while ((pins_until(s->pins, k) != 0) != pinned);
}

static void show(struct store *s)
{
	const struct counters *c = s->conf.counters;
	struct pins_stat st;

	pins_stat(s->pins, &st);
	metric_set(c->pinned_blocks, (int64_t)st.blocks);
	metric_set(c->pinned_bytes, (int64_t)st.bytes);
	metric_set(c->pins_damaged, (int64_t)st.damaged);
}

static void refuse(struct store *s, struct block_req *req, const struct disk *d, int r)
{
	if (r != -ENOSPC) {
		req_done(req, r);
		return;
	}
	metric_add(s->conf.counters->pins_refused, 1);
	req_fail(req, r,
		 "not pinned: what is pinned may take %d %% of a cache directory (%llu MiB here), "
		 "and it does",
		 SHARE, (unsigned long long)(d->capacity / 100 * SHARE >> 20));
}

/* the disk whose file knows of the pin; NULL: none takes any */
static struct disk *disk_for(struct store *s, const struct block_key *k)
{
	unsigned i;

	return index_where(s->ix, k, &i) ? s->conf.disks[i] : store_choose_disk(s, k);
}

static int set(struct store *s, const struct disk *d, const struct block_key *k, uint64_t until,
	       uint64_t now)
{
	int r = pins_set(s->pins, d->number, k, until, now, d->capacity / 100 * SHARE, NULL);

	if (r == 0)
		store_pin_align(s, k);
	return r;
}

uint64_t store_pinned(struct store *s, const struct block_key *k)
{
	return pins_until(s->pins, k);
}

void store_pin_moved(struct store *s, const struct block_key *k, uint64_t until)
{
	struct disk *d = until > pins_until(s->pins, k) ? disk_for(s, k) : NULL;

	if (d && set(s, d, k, until, today()) == -ENOSPC)
		metric_add(s->conf.counters->pins_refused, 1);
}

bool store_pin(struct store *s, struct block_req *req)
{
	uint64_t now = today();
	struct disk *d = disk_for(s, &req->key);
	int r;

	if (!d) {
		req_done(req, -EBUSY);
		return true;
	}
	r = set(s, d, &req->key, req->pin_until, now);
	if (r < 0) {
		refuse(s, req, d, r);
		return true;
	}
	show(s);
	if (req->pin_until > now)
		return false;
	req_done(req, 0);
	return true;
}

void store_pins_expire(struct store *s)
{
	struct block_key k[EXPIRE_AT_ONCE];
	size_t n;

	do {
		n = pins_expired(s->pins, today(), k, EXPIRE_AT_ONCE);
		for (size_t i = 0; i < n; i++)
			store_pin_align(s, &k[i]);
	} while (n == EXPIRE_AT_ONCE);
	show(s);
}

static void loaded(const struct block_key *k, void *arg)
{
	store_pin_align(arg, k);
}

int store_pins_load(struct store *s, struct disk *d)
{
	int r = pins_load(s->pins, d->number, d->fd, today(), loaded, s);

	show(s);
	return r;
}
