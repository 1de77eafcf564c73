/* SPDX-License-Identifier: Apache-2.0 */
/* Directories: entries have records of their kind, records of directories the right number of
 * links, directories statistics. Sums are compared only when that was asked for: they lag behind a
 * volume in use by a second. */
#include "client/cmd/fsck.h"

#include <inttypes.h>

#include "client/maint/repair.h"
#include "client/meta/reply.h"
#include "common/clock.h"

enum { REPAIR_TRIES = 3 };

struct tree {
	struct fsck *f;
	struct numtable *files;
	struct numtable links; /* files with several names that were counted */
	int64_t used, inodes;  /* of the volume */
};

static int entry(void *arg, const struct walk_dir *dir, const char *name, uint64_t inode,
		 uint8_t type, const struct attr *attr)
{
	struct tree *t = arg;
	char path[4096];
	struct numslot *s;

	t->f->nodes++;
	__atomic_fetch_add(&t->f->m->progress.files, 1, __ATOMIC_RELAXED);
	(void)snprintf(path, sizeof(path), "%s/%s", strcmp(dir->path, "/") ? dir->path : "", name);
	/* a directory tells of itself when it is left */
	if (!attr && (type != INODE_DIR || !t->f->conf->recursive))
		fsck_found(t->f, inode, path, "its attributes are missing%s",
			   type == INODE_DIR ? ": fsck --repair --path PATH makes new ones"
					     : "; remove it, or restore them from a dump");
	if (attr && attr->type != type)
		fsck_found(t->f, inode, path, "its entry says that it is of kind %u, its record %u",
			   type, attr->type);
	if (attr && type == INODE_FILE && t->files) {
		s = numtable_at(t->files, inode, 0);
		if (!s)
			return -ENOMEM;
		s->v = attr->length;
	}
	if (attr && type != INODE_DIR && attr->nlink > 1) {
		s = numtable_at(&t->links, inode, 0);
		if (!s)
			return -ENOMEM;
		if (s->v++)
			return 0;
	}
	t->used += (int64_t)align4k(attr && type == INODE_FILE ? attr->length : 0);
	t->inodes++;
	return 0;
}

static bool stat_of(const struct redis_reply *r, int64_t *ret)
{
	*ret = reply_int(r);
	return reply_type(r) == REDIS_STR;
}

/* what the volume says the directory holds; *ret_bad: it says nothing, or nonsense */
static int check_stat(struct tree *t, const struct walk_dir *d, bool *ret_bad)
{
	const struct setting *set = t->f->m->setting;
	char field[24];
	int64_t space, inodes;
	struct pipe p;
	bool has;
	int r;

	(void)snprintf(field, sizeof(field), "%" PRIu64, d->inode);
	pipe_init(&p, &t->f->m->scan);
	pipe_add(&p, "HGET", "dirUsedSpace", field, (char *)NULL);
	pipe_add(&p, "HGET", "dirUsedInodes", field, (char *)NULL);
	r = pipe_run(&p);
	if (r == 0 && set->dir_stats) {
		has = stat_of(p.reply[0], &space);
		has = stat_of(p.reply[1], &inodes) && has;
		*ret_bad = !has || space < 0 || inodes < 0;
		if (*ret_bad)
			fsck_found(t->f, d->inode, d->path,
				   "its statistics are missing or negative");
		else if (t->f->conf->sync_stat && (space != d->space || inodes != d->inodes)) {
			*ret_bad = true;
			fsck_found(t->f, d->inode, d->path,
				   "its statistics say %" PRId64 " bytes in %" PRId64
				   " entries, but it has %" PRId64 " in %" PRId64,
				   space, inodes, d->space, d->inodes);
		}
	}
	pipe_fini(&p);
	return r;
}

struct again {
	struct tree *t;
	struct attr attr;
	bool fix_attr, fix_stat;
};

static int repair_one(void *arg, const struct walk_dir *d)
{
	const struct again *a = arg;
	const struct attr *base = d->has_attr ? &d->attr : &a->attr;

	return meta_repair_dir(&a->t->f->m->scan, a->t->f->m->setting, d, a->fix_attr ? base : NULL,
			       a->fix_stat);
}

/* a directory that changes meanwhile is counted again */
static int repair(struct tree *t, const struct walk_dir *d, bool fix_attr, bool fix_stat)
{
	static const struct walk_ops ops = {.leave = repair_one};
	struct again a = {.t = t, .fix_attr = fix_attr, .fix_stat = fix_stat};
	int r = -EAGAIN;

	a.attr = (struct attr){.type = INODE_DIR,
			       .mode = t->f->dir_mode,
			       .length = 4096,
			       .parent = d->parent ? d->parent : INODE_ROOT};
	clock_real(&a.attr.ctime.sec, &a.attr.ctime.nsec);
	a.attr.atime = a.attr.mtime = a.attr.ctime;
	for (int i = 0; i < REPAIR_TRIES && r == -EAGAIN; i++)
		r = i ? walk_tree(&t->f->m->scan, d->inode, d->path, false, &ops, &a)
		      : repair_one(&a, d);
	if (r == -EAGAIN) {
		maint_warn(t->f->m, "a directory changes all the time and was not repaired");
		return 0;
	}
	if (r == 0)
		t->f->repaired++;
	return r;
}

static int leave(void *arg, const struct walk_dir *d)
{
	struct tree *t = arg;
	const struct fsck_conf *conf = t->f->conf;
	uint64_t before = t->f->findings;
	bool fix_attr = false, fix_stat = false;
	size_t removed = 0;
	int r = 0;

	/* the trash's top is made up when it is not there, and nobody counts its links */
	if (d->inode != INODE_TRASH && !d->has_attr) {
		fsck_found(t->f, d->inode, d->path, "its attributes are missing%s",
			   conf->repair ? "" : ": fsck --repair makes new ones");
		fix_attr = true;
	} else if (d->inode < INODE_TRASH && d->attr.nlink != 2 + d->subdirs) {
		fsck_found(t->f, d->inode, d->path, "it has %" PRIu32 " links, not %" PRIu32,
			   d->attr.nlink, 2 + d->subdirs);
		fix_attr = true;
	}
	if (d->damaged) {
		fsck_found(t->f, d->inode, d->path, "%zu of its entries are damaged%s", d->damaged,
			   conf->repair ? "" : ": fsck --repair --path PATH removes them");
		r = conf->repair ? meta_repair_entries(&t->f->m->scan, d->inode, &removed) : 0;
		t->f->repaired += r == 0 && removed;
	}
	/* a directory in the trash has none */
	if (r == 0 && d->inode < INODE_TRASH && d->inode != INODE_ROOT && d->parent < INODE_TRASH)
		r = check_stat(t, d, &fix_stat);
	if (conf->sync_stat && d->inode < INODE_TRASH && d->parent < INODE_TRASH)
		fix_stat |= conf->repair && t->f->m->setting->dir_stats;
	if (r == 0 && conf->repair && (fix_attr || fix_stat))
		r = repair(t, d, fix_attr, fix_stat);
	/* what was put right is told, but wrong no more */
	if (r == 0 && conf->repair && (fix_attr || fix_stat || removed) && removed >= d->damaged)
		t->f->findings = before;
	return r;
}

/* --- the volume's sums --- */

static int counters(struct tree *t, int64_t ret[2])
{
	struct pipe p;
	int r;

	pipe_init(&p, &t->f->m->scan);
	pipe_add(&p, "GET", "usedSpace", (char *)NULL);
	pipe_add(&p, "GET", "totalInodes", (char *)NULL);
	r = pipe_run(&p);
	if (r == 0) {
		ret[0] = reply_int(p.reply[0]);
		ret[1] = reply_int(p.reply[1]);
	}
	pipe_fini(&p);
	return r;
}

/* files that sessions keep open have no name, but count */
static int add_sustained(void *arg, size_t n, const struct scan_item *items)
{
	struct tree *t = arg;
	struct pipe p, q;
	int r;

	pipe_init(&p, &t->f->m->scan);
	pipe_init(&q, &t->f->m->scan);
	for (size_t i = 0; i < n; i++)
		pipe_add(&p, "SMEMBERS", items[i].name, (char *)NULL);
	r = pipe_run(&p);
	for (size_t i = 0; i < n && r == 0; i++) {
		for (size_t j = 0; j < reply_len(p.reply[i]); j++) {
			size_t len;
			const char *text = reply_text(reply_at(p.reply[i], j), &len);
			uint64_t inode;

			if (text && scan_u64(text, len, &inode))
				pipe_add_inode(&q, "GET", "i", inode);
		}
	}
	if (r == 0)
		r = pipe_run(&q);
	for (size_t i = 0; i < q.n && r == 0; i++) {
		size_t len;
		const char *v = reply_text(q.reply[i], &len);
		struct attr a;

		if (!v || attr_decode((const uint8_t *)v, len, &a) < 0 || a.nlink > 0)
			continue;
		t->used += (int64_t)align4k(a.length);
		t->inodes++;
	}
	pipe_fini(&p);
	pipe_fini(&q);
	return r;
}

/* Only a volume at rest can be corrected: what others add meanwhile would be lost. */
static int volume_sums(struct tree *t, const int64_t before[2])
{
	struct scan *s = &t->f->m->scan;
	int64_t now[2];
	int r = scan_keys(s, "session[0-9]*", add_sustained, t);

	if (r == 0)
		r = counters(t, now);
	if (r || (now[0] == t->used && now[1] == t->inodes))
		return r;
	if (now[0] != before[0] || now[1] != before[1]) {
		maint_warn(t->f->m, "the volume is in use: its sums were not checked");
		return 0;
	}
	maint_say(t->f->m,
		  "volume: its sums say %" PRId64 " bytes in %" PRId64
		  " inodes, but it has %" PRId64 " in %" PRId64,
		  now[0], now[1], t->used, t->inodes);
	if (!t->f->conf->repair) {
		t->f->findings++;
		return 0;
	}
	for (int i = 0; i < 2 && r == 0; i++) {
		_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;

		r = redis_once(s->redis, clock_us() + s->timeout_us, &reply, "SET %s%s %lld",
			       s->prefix, i ? "totalInodes" : "usedSpace",
			       (long long)(i ? t->inodes : t->used));
	}
	t->f->repaired += r == 0;
	return r;
}

int fsck_tree(struct fsck *f, uint64_t inode, uint8_t type, const char *path,
	      struct numtable *files)
{
	static const struct walk_ops ops = {.entry = entry, .leave = leave};
	struct tree t = {.f = f, .files = files};
	bool whole = inode == INODE_ROOT && f->conf->recursive && f->conf->sync_stat;
	int64_t before[2] = {0, 0};
	int r = 0;

	if (type != INODE_DIR)
		return 0;
	maint_begin(f->m, "entries", NULL);
	if (whole)
		r = counters(&t, before);
	if (r == 0)
		r = walk_tree(&f->m->scan, inode, path, f->conf->recursive, &ops, &t);
	if (r == 0 && inode == INODE_ROOT && f->conf->recursive) {
		struct numtable *keep = t.files;

		t.files = NULL;
		r = walk_tree(&f->m->scan, INODE_TRASH, "/.trash", true, &ops, &t);
		t.files = keep;
	}
	if (r == 0 && whole)
		r = volume_sums(&t, before);
	maint_end(f->m);
	numtable_fini(&t.links);
	return r;
}
