/* SPDX-License-Identifier: Apache-2.0 */
/* Index from program to program. Written by main's thread when nothing is served any more; read by
 * the disks' keepers, with threads of their own. */
#include "cached/snapshot.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "common/hash.h"
#include "common/log.h"
#include "common/thread.h"
#include "proto/bytes.h"

enum { LOADERS = 8, AT_ONCE = 4096 /* blocks that a thread takes */ };

static const char MAGIC[8] = {'s', 't', 'o', 'k', 'e', 'i', 'd', 'x'};

int snapshot_place(const struct disk *d, struct snapshot_place *ret)
{
	struct stat st;

	if (fstat(d->fd, &st) < 0)
		return -errno;
	*ret = (struct snapshot_place){hash64(d->dir, strlen(d->dir)), st.st_dev, st.st_ino};
	return 0;
}

/* --- writing --- */

struct writing {
	uint8_t *at, *end;
	bool full;
};

static void write_block(const struct index_block *b, void *arg)
{
	struct writing *w = arg;

	if (w->end - w->at < SNAPSHOT_BLOCK) {
		w->full = true;
		return;
	}
	put64(w->at, b->slice);
	put32(w->at + 8, b->index);
	put32(w->at + 12, b->size);
	put32(w->at + 16, b->kind);
	w->at += SNAPSHOT_BLOCK;
}

static size_t write_all(struct index *ix, const struct hash128 *volume,
			const struct snapshot_row *rows, unsigned n_rows, uint8_t *p, size_t n)
{
	uint8_t *disks = p + SNAPSHOT_HEAD, *blocks = disks + (size_t)n_rows * SNAPSHOT_DISK;
	struct writing w = {.at = blocks, .end = p + n};

	for (unsigned i = 0; i < n_rows; i++) {
		uint8_t *row = disks + (size_t)i * SNAPSHOT_DISK, *from = w.at;

		for (unsigned part = 0; part < INDEX_PARTS; part++)
			index_list(ix, part, rows[i].disk, write_block, &w);
		put64(row, rows[i].place.dir);
		put64(row + 8, rows[i].place.device);
		put64(row + 16, rows[i].place.inode);
		put64(row + 24, (uint64_t)(from - blocks) / SNAPSHOT_BLOCK);
		put64(row + 32, (uint64_t)(w.at - from) / SNAPSHOT_BLOCK);
		put32(row + 40, rows[i].checked);
		put32(row + 44, 0);
	}
	if (w.full)
		return 0;
	memcpy(p, MAGIC, sizeof(MAGIC));
	put32(p + 8, SNAPSHOT_VERSION);
	put32(p + 12, n_rows);
	put64(p + 16, (uint64_t)(w.at - blocks) / SNAPSHOT_BLOCK);
	memcpy(p + 24, volume->b, sizeof(volume->b));
	put64(p + 40, hash64(disks, (size_t)(w.at - disks)));
	return (size_t)(w.at - p);
}

int snapshot_write(struct index *ix, const struct hash128 *volume, const struct snapshot_row *rows,
		   unsigned n_rows, int *ret_fd)
{
	_cleanup_(closep) int fd = memfd_create("stoke-index", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	size_t room = SNAPSHOT_HEAD + (size_t)n_rows * SNAPSHOT_DISK +
		      (size_t)index_count(ix) * SNAPSHOT_BLOCK,
	       used;
	uint8_t *p;

	if (fd < 0 || ftruncate(fd, (off_t)room) < 0)
		return -errno;
	p = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return -errno;
	used = write_all(ix, volume, rows, n_rows, p, room);
	(void)munmap(p, room);
	if (!used)
		return -EAGAIN; /* blocks came meanwhile */
	if (ftruncate(fd, (off_t)used) < 0 ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0)
		return -errno;
	*ret_fd = TAKE_FD(fd);
	return 0;
}

/* --- reading --- */

int snapshot_parse(const uint8_t *p, size_t n, struct snapshot_view *ret)
{
	struct snapshot_view v;
	size_t left;

	if (n < SNAPSHOT_HEAD || memcmp(p, MAGIC, sizeof(MAGIC)) != 0)
		return -EBADMSG;
	if (get32(p + 8) != SNAPSHOT_VERSION)
		return -EPROTO;
	v.n_disks = get32(p + 12);
	v.n_blocks = get64(p + 16);
	memcpy(v.volume.b, p + 24, sizeof(v.volume.b));
	v.disks = p + SNAPSHOT_HEAD;
	left = n - SNAPSHOT_HEAD;
	if (v.n_disks > INDEX_DISKS_MAX || left < (size_t)v.n_disks * SNAPSHOT_DISK)
		return -EBADMSG;
	left -= (size_t)v.n_disks * SNAPSHOT_DISK;
	v.blocks = v.disks + (size_t)v.n_disks * SNAPSHOT_DISK;
	if (left % SNAPSHOT_BLOCK || left / SNAPSHOT_BLOCK != v.n_blocks ||
	    hash64(v.disks, n - SNAPSHOT_HEAD) != get64(p + 40))
		return -EBADMSG;
	*ret = v;
	return 0;
}

int snapshot_block(const struct snapshot_view *v, uint64_t i, struct block_key *ret,
		   enum evict_kind *ret_kind)
{
	const uint8_t *p = v->blocks + i * SNAPSHOT_BLOCK;
	uint32_t size = get32(p + 12), kind = get32(p + 16);

	assert(i < v->n_blocks);
	if (!size || size > FRAME_BLOCK_MAX || kind > EVICT_GUEST)
		return -EBADMSG;
	block_key_init(ret, &v->volume, get64(p), get32(p + 8), size);
	*ret_kind = kind;
	return 0;
}

int snapshot_find(const struct snapshot_view *v, const struct snapshot_place *place,
		  uint64_t *ret_first, uint64_t *ret_n, unsigned *ret_checked)
{
	for (unsigned i = 0; i < v->n_disks; i++) {
		const uint8_t *row = v->disks + (size_t)i * SNAPSHOT_DISK;
		uint64_t first = get64(row + 24), n = get64(row + 32);

		if (get64(row) != place->dir || get64(row + 8) != place->device ||
		    get64(row + 16) != place->inode)
			continue;
		if (first > v->n_blocks || n > v->n_blocks - first)
			return -ENOENT;
		*ret_first = first;
		*ret_n = n;
		*ret_checked = MIN(get32(row + 40), (uint32_t)RECOVER_DIRS);
		return 0;
	}
	return -ENOENT;
}

struct snapshot {
	void *p;
	size_t n;
	struct snapshot_view view;
};

struct snapshot *snapshot_take(int fd)
{
	struct snapshot *sn = fd < 0 ? NULL : calloc(1, sizeof(*sn));
	struct stat st;
	int r;

	if (!sn || fstat(fd, &st) < 0) {
		closep(&fd);
		free(sn);
		return NULL;
	}
	sn->n = (size_t)st.st_size;
	sn->p = mmap(NULL, sn->n, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
	(void)close(fd);
	r = sn->p == MAP_FAILED ? -errno : snapshot_parse(sn->p, sn->n, &sn->view);
	if (r == 0)
		return sn;
	log_warn("the index of the program before is not taken over (%s): it is made of the names "
		 "of files",
		 r == -EPROTO ? "of another version" : strerror(-r));
	snapshot_free(sn);
	return NULL;
}

void snapshot_free(struct snapshot *sn)
{
	if (!sn)
		return;
	if (sn->p != MAP_FAILED)
		(void)munmap(sn->p, sn->n);
	free(sn);
}

struct load {
	const struct snapshot_view *view;
	struct disk *disk;
	struct index *ix;
	uint64_t end;
	/* of all threads */
	atomic_uint_fast64_t next, n, bytes;
	atomic_int error;
};

static int load_some(struct load *l, uint64_t from, uint64_t to)
{
	uint64_t n = 0, bytes = 0;
	enum evict_kind kind;
	struct block_key k;
	int r = 0;

	for (uint64_t i = from; r == 0 && i < to; i++) {
		r = snapshot_block(l->view, i, &k, &kind);
		if (r == 0)
			r = index_add(l->ix, &k, l->disk->number, kind);
		if (r == 0) {
			n++;
			bytes += disk_cost(k.size);
		} else if (r == -EEXIST || r == -EBUSY) { /* another disk has it by now */
			r = 0;
		}
	}
	atomic_fetch_add_explicit(&l->disk->used, bytes, memory_order_relaxed);
	atomic_fetch_add_explicit(&l->disk->blocks, n, memory_order_relaxed);
	atomic_fetch_add_explicit(&l->bytes, bytes, memory_order_relaxed);
	atomic_fetch_add_explicit(&l->n, n, memory_order_relaxed);
	return r;
}

static void *load_blocks(void *arg)
{
	struct load *l = arg;
	uint64_t from;
	int r = 0;

	while (r == 0 && !atomic_load(&l->error) &&
	       (from = atomic_fetch_add(&l->next, AT_ONCE)) < l->end)
		r = load_some(l, from, MIN(from + AT_ONCE, l->end));
	if (r < 0)
		atomic_store(&l->error, r);
	return NULL;
}

int snapshot_recover(const struct snapshot *sn, struct disk *d, struct index *ix,
		     const struct hash128 *volume, struct recover_stat *ret)
{
	struct load l = {.view = &sn->view, .disk = d, .ix = ix};
	pthread_t threads[LOADERS - 1];
	struct snapshot_place place = {0};
	unsigned n = 0, checked = 0;
	uint64_t first = 0, blocks = 0;
	int r = hash128_eq(volume, &sn->view.volume) ? snapshot_place(d, &place) : -ENOENT;

	if (r == 0)
		r = snapshot_find(&sn->view, &place, &first, &blocks, &checked);
	if (r == 0)
		r = disk_volume_prepare(d, volume);
	if (r < 0)
		return r;
	l.next = first;
	l.end = first + blocks;
	while (n < LOADERS - 1 && n < blocks / AT_ONCE &&
	       thread_start("recover", load_blocks, &l, &threads[n]) == 0)
		n++;
	(void)load_blocks(&l); /* fewer threads only take longer */
	while (n > 0)
		(void)pthread_join(threads[--n], NULL);
	*ret = (struct recover_stat){.blocks = l.n, .bytes = l.bytes, .checked = checked};
	return atomic_load(&l.error);
}
