/* SPDX-License-Identifier: Apache-2.0 */
/* Pinned blocks. No thread of its own; one leaf lock over the table and the changes that are not
 * written yet. A file is read and written without the lock.
 *
 * A change goes into the table at once and into its disk's list of changes; flush takes the list
 * and appends it. Where a list grew too long, or was lost with a failed write, the disk is
 * `whole`: its file is to be written anew from the table. */
#include "cached/pins.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "cached/disk.h"
#include "common/hashmap.h"
#include "proto/bytes.h"

enum {
	CHANGES_MAX = 1 << 20, /* bytes of changes in memory; beyond, the file is written anew */
	SLACK = 1024,	       /* records that may be out of date */
	READ_AT_ONCE = 2048 * PINS_RECORD,
};

struct pin {
	struct hash_node node;
	uint64_t slice, until;
	uint32_t index, size;
	unsigned disk;
};

struct pins_disk {
	struct str changes;
	bool whole;
	bool loaded;	  /* the table knows better than the file */
	uint64_t records; /* in the file */
	uint64_t blocks, bytes;
};

struct pins {
	struct mtx lock;
	struct hash128 volume;
	struct hashmap map;
	uint64_t next; /* no date is over before; UINT64_MAX: there are none */
	uint64_t damaged;
	unsigned n_disks;
	struct pins_disk disk[];
};

void pins_encode(const struct block_key *k, uint64_t until, uint8_t ret[PINS_RECORD])
{
	put64(ret, k->slice);
	put32(ret + 8, k->index);
	put32(ret + 12, k->size);
	put64(ret + 16, until);
	put32(ret + 24, 0);
	put32(ret + 28, crc32c(crc32c(0, k->volume.b, sizeof(k->volume.b)), ret, 28));
}

int pins_decode(const uint8_t p[PINS_RECORD], const struct hash128 *volume, struct block_key *ret,
		uint64_t *ret_until)
{
	uint32_t size = get32(p + 12);

	if (get32(p + 28) != crc32c(crc32c(0, volume->b, sizeof(volume->b)), p, 28) ||
	    get32(p + 24) != 0 || !size || size > FRAME_BLOCK_MAX)
		return -EBADMSG;
	block_key_init(ret, volume, get64(p), get32(p + 8), size);
	*ret_until = get64(p + 16);
	return 0;
}

int pins_new(const struct hash128 *volume, unsigned n_disks, struct pins **ret)
{
	struct pins *p = calloc(1, sizeof(*p) + n_disks * sizeof(p->disk[0]));

	if (!p || hashmap_init(&p->map, 64) < 0) {
		free(p);
		return -ENOMEM;
	}
	mtx_init(&p->lock);
	p->volume = *volume;
	p->n_disks = n_disks;
	p->next = UINT64_MAX;
	*ret = p;
	return 0;
}

static void remove_locked(struct pins *p, struct pin *pin)
{
	struct pins_disk *d = &p->disk[pin->disk];

	d->blocks--;
	d->bytes -= disk_cost(pin->size);
	hashmap_del(&p->map, &pin->node);
	free(pin);
}

static bool remove_each(struct hash_node *n, void *arg)
{
	remove_locked(arg, container_of(n, struct pin, node));
	return true;
}

void pins_free(struct pins *p)
{
	if (!p)
		return;
	hashmap_each(&p->map, remove_each, p);
	hashmap_fini(&p->map);
	for (unsigned i = 0; i < p->n_disks; i++)
		str_fini(&p->disk[i].changes);
	mtx_fini(&p->lock);
	free(p);
}

void pins_reset(struct pins *p, const struct hash128 *volume)
{
	mtx_lock(&p->lock);
	hashmap_each(&p->map, remove_each, p);
	for (unsigned i = 0; i < p->n_disks; i++) {
		str_reset(&p->disk[i].changes);
		p->disk[i].whole = p->disk[i].loaded = false;
		p->disk[i].records = 0;
	}
	p->volume = *volume;
	p->next = UINT64_MAX;
	mtx_unlock(&p->lock);
}

static bool pin_eq(const struct hash_node *n, const void *key)
{
	const struct pin *pin = container_of(n, const struct pin, node);
	const struct block_key *k = key;

	return pin->slice == k->slice && pin->index == k->index && pin->size == k->size;
}

static struct pin *find_locked(struct pins *p, const struct block_key *k)
{
	struct hash_node *n;

	if (!hash128_eq(&p->volume, &k->volume))
		return NULL;
	n = hashmap_find(&p->map, k->digest, pin_eq, k);
	return n ? container_of(n, struct pin, node) : NULL;
}

static void note_locked(struct pins *p, unsigned disk, const struct block_key *k, uint64_t until)
{
	struct pins_disk *d = &p->disk[disk];
	uint8_t record[PINS_RECORD];

	if (d->whole)
		return;
	pins_encode(k, until, record);
	str_addn(&d->changes, record, sizeof(record));
	if (str_error(&d->changes) == 0 && d->changes.len < CHANGES_MAX)
		return;
	str_fini(&d->changes);
	d->whole = true;
}

/* with the pin's disk: where it was noted first, its file knows it */
static int pin_locked(struct pins *p, unsigned disk, const struct block_key *k, uint64_t until)
{
	struct pin *pin = find_locked(p, k);

	if (!pin) {
		pin = calloc(1, sizeof(*pin));
		if (!pin)
			return -ENOMEM;
		pin->slice = k->slice;
		pin->index = k->index;
		pin->size = k->size;
		pin->disk = disk;
		p->disk[disk].blocks++;
		p->disk[disk].bytes += disk_cost(k->size);
		hashmap_add(&p->map, &pin->node, k->digest);
	}
	pin->until = until;
	p->next = MIN(p->next, until);
	return 0;
}

static int set_locked(struct pins *p, unsigned disk, const struct block_key *k, uint64_t until,
		      uint64_t now, uint64_t most, bool *ret_was)
{
	struct pin *pin = find_locked(p, k);
	int r = 0;

	if (!hash128_eq(&p->volume, &k->volume))
		return -ESTALE;
	if (pin)
		disk = pin->disk;
	if (ret_was)
		*ret_was = pin;
	if (until <= now) {
		if (!pin)
			return 0;
		remove_locked(p, pin);
		until = 0;
	} else {
		if (!pin && p->disk[disk].bytes + disk_cost(k->size) > most)
			return -ENOSPC;
		if (pin && pin->until == until)
			return 0;
		r = pin_locked(p, disk, k, until);
	}
	if (r == 0)
		note_locked(p, disk, k, until);
	return r;
}

int pins_set(struct pins *p, unsigned disk, const struct block_key *k, uint64_t until, uint64_t now,
	     uint64_t most, bool *ret_was)
{
	int r;

	assert(disk < p->n_disks);
	mtx_lock(&p->lock);
	r = set_locked(p, disk, k, until, now, most, ret_was);
	mtx_unlock(&p->lock);
	return r;
}

uint64_t pins_until(struct pins *p, const struct block_key *k)
{
	struct pin *pin;
	uint64_t until;

	mtx_lock(&p->lock);
	pin = find_locked(p, k);
	until = pin ? pin->until : 0;
	mtx_unlock(&p->lock);
	return until;
}

struct expiry {
	struct pins *pins;
	uint64_t now, next;
	struct block_key *ret;
	size_t max, n;
};

static bool expire_each(struct hash_node *n, void *arg)
{
	struct pin *pin = container_of(n, struct pin, node);
	struct expiry *x = arg;
	struct block_key *k;

	if (pin->until > x->now) {
		x->next = MIN(x->next, pin->until);
		return true;
	}
	if (x->n == x->max) {
		x->next = 0; /* more are waiting */
		return false;
	}
	k = &x->ret[x->n++];
	block_key_init(k, &x->pins->volume, pin->slice, pin->index, pin->size);
	note_locked(x->pins, pin->disk, k, 0);
	remove_locked(x->pins, pin);
	return true;
}

size_t pins_expired(struct pins *p, uint64_t now, struct block_key *ret, size_t max)
{
	struct expiry x = {.pins = p, .now = now, .next = UINT64_MAX, .ret = ret, .max = max};

	mtx_lock(&p->lock);
	if (p->next <= now) {
		hashmap_each(&p->map, expire_each, &x);
		p->next = x.next;
	}
	mtx_unlock(&p->lock);
	return x.n;
}

void pins_stat(struct pins *p, struct pins_stat *ret)
{
	*ret = (struct pins_stat){0};
	mtx_lock(&p->lock);
	for (unsigned i = 0; i < p->n_disks; i++) {
		ret->blocks += p->disk[i].blocks;
		ret->bytes += p->disk[i].bytes;
	}
	ret->damaged = p->damaged;
	mtx_unlock(&p->lock);
}

/* --- the file --- */

static void path_of(const struct hash128 *volume, const char *suffix, char ret[PINS_PATH_MAX])
{
	char blocks[DISK_PATH_MAX];

	disk_blocks_path(volume, blocks); /* "{volume id}/blocks" */
	*strchr(blocks, '/') = '\0';
	(void)snprintf(ret, PINS_PATH_MAX, "%.40s/pins%s", blocks, suffix);
}

/* the last word about a block at now; a pin whose date is over is one no longer */
static int load_record(struct pins *p, unsigned disk, const uint8_t *record,
		       const struct hash128 *volume, uint64_t now)
{
	struct block_key k;
	struct pin *pin;
	uint64_t until;
	int r = 0;

	mtx_lock(&p->lock);
	p->disk[disk].records++;
	if (!hash128_eq(&p->volume, volume)) {
		r = -ESTALE;
	} else if (pins_decode(record, volume, &k, &until) < 0) {
		p->damaged++;
		p->disk[disk].whole = true;
	} else if (until > now) {
		r = pin_locked(p, disk, &k, until);
	} else {
		pin = find_locked(p, &k);
		if (pin && pin->disk == disk)
			remove_locked(p, pin);
	}
	mtx_unlock(&p->lock);
	return r;
}

static int load_file(struct pins *p, unsigned disk, int fd, const struct hash128 *volume,
		     uint64_t now)
{
	uint8_t *buf = malloc(READ_AT_ONCE);
	size_t have = 0, at;
	ssize_t n = 1;
	int r = buf ? 0 : -ENOMEM;

	while (r == 0 && n > 0) {
		n = read(fd, buf + have, READ_AT_ONCE - have);
		if (n < 0)
			r = errno == EINTR ? 0 : -errno;
		if (n < 0 && r == 0) {
			n = 1;
			continue;
		}
		have += n > 0 ? (size_t)n : 0;
		for (at = 0; r == 0 && have - at >= PINS_RECORD; at += PINS_RECORD)
			r = load_record(p, disk, buf + at, volume, now);
		memmove(buf, buf + at, have - at);
		have -= at;
	}
	if (r == 0 && have) { /* cut short: appending behind it would shift what follows */
		mtx_lock(&p->lock);
		p->damaged++;
		p->disk[disk].whole = true;
		mtx_unlock(&p->lock);
	}
	free(buf);
	return r;
}

struct told {
	struct pins *pins;
	unsigned disk;
	struct str *out; /* records, or keys */
	bool keys;
};

static bool tell_each(struct hash_node *n, void *arg)
{
	const struct pin *pin = container_of(n, struct pin, node);
	uint8_t record[PINS_RECORD];
	struct told *t = arg;
	struct block_key k;

	if (pin->disk != t->disk)
		return true;
	block_key_init(&k, &t->pins->volume, pin->slice, pin->index, pin->size);
	pins_encode(&k, pin->until, record);
	if (t->keys)
		str_addn(t->out, &k, sizeof(k));
	else
		str_addn(t->out, record, sizeof(record));
	return true;
}

static int load_from(struct pins *p, unsigned disk, int dir, const struct hash128 *volume,
		     uint64_t now)
{
	_cleanup_(closep) int fd = -1;
	char path[PINS_PATH_MAX];

	path_of(volume, "", path);
	fd = openat(dir, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	return load_file(p, disk, fd, volume, now);
}

int pins_load(struct pins *p, unsigned disk, int dir, uint64_t now,
	      void (*pinned)(const struct block_key *k, void *arg), void *arg)
{
	struct str keys = STR_INIT;
	struct told t = {.pins = p, .disk = disk, .out = &keys, .keys = true};
	struct hash128 volume;
	bool loaded;
	int r = 0;

	assert(disk < p->n_disks);
	mtx_lock(&p->lock);
	volume = p->volume;
	loaded = p->disk[disk].loaded;
	if (loaded) /* it was away, and whatever is there now is to be as the table is */
		p->disk[disk].whole = true;
	else
		p->disk[disk].records = 0;
	mtx_unlock(&p->lock);
	if (!loaded)
		r = load_from(p, disk, dir, &volume, now);
	mtx_lock(&p->lock);
	if (r == 0 && hash128_eq(&p->volume, &volume))
		p->disk[disk].loaded = true;
	hashmap_each(&p->map, tell_each, &t);
	mtx_unlock(&p->lock);
	if (r == 0)
		r = str_error(&keys);
	for (size_t i = 0; r == 0 && i < keys.len / sizeof(struct block_key); i++) {
		struct block_key k;

		memcpy(&k, keys.s + i * sizeof(k), sizeof(k));
		pinned(&k, arg);
	}
	str_fini(&keys);
	return r;
}

static int write_file(int dir, const char *path, int flags, const struct str *out)
{
	_cleanup_(closep) int fd =
		openat(dir, path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
	size_t at = 0;

	if (fd < 0)
		return -errno;
	while (at < out->len) {
		ssize_t n = write(fd, out->s + at, out->len - at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		at += (size_t)n;
	}
	return fdatasync(fd) < 0 ? -errno : 0;
}

/* what is to be written: the changes, or the whole; false: nothing */
static bool take_changes(struct pins *p, unsigned disk, struct str *out, struct hash128 *ret_volume,
			 bool *ret_whole)
{
	struct pins_disk *d = &p->disk[disk];
	struct told t = {.pins = p, .disk = disk, .out = out};
	bool any;

	mtx_lock(&p->lock);
	*ret_volume = p->volume;
	any = d->whole || d->changes.len;
	if (d->records + d->changes.len / PINS_RECORD > 2 * d->blocks + SLACK)
		d->whole |= any;
	*ret_whole = d->whole;
	if (d->whole) {
		hashmap_each(&p->map, tell_each, &t);
		str_reset(&d->changes);
		d->records = 0;
	} else {
		*out = d->changes;
		d->changes = (struct str)STR_INIT;
	}
	d->records += out->len / PINS_RECORD;
	d->whole = false;
	mtx_unlock(&p->lock);
	return any;
}

int pins_flush(struct pins *p, unsigned disk, int dir)
{
	char path[PINS_PATH_MAX], aside[PINS_PATH_MAX];
	struct str out = STR_INIT;
	struct hash128 volume;
	bool whole;
	int r;

	assert(disk < p->n_disks);
	if (!take_changes(p, disk, &out, &volume, &whole))
		return 0;
	path_of(&volume, "", path);
	path_of(&volume, ".new", aside);
	r = str_error(&out);
	if (r == 0)
		r = write_file(dir, whole ? aside : path, whole ? O_TRUNC : O_APPEND, &out);
	if (r == 0 && whole && renameat(dir, aside, dir, path) < 0)
		r = -errno;
	str_fini(&out);
	if (r < 0) {
		mtx_lock(&p->lock);
		p->disk[disk].whole = true;
		mtx_unlock(&p->lock);
	}
	return r;
}
