/* SPDX-License-Identifier: Apache-2.0 */
/* stoke tier: which storage class the objects of files have. Directories say what is made in them
 * gets, so they are set first, while the tree is walked; then objects are stored once more, under
 * their new class, by a few threads; then files are set, of which nothing is known to be left
 * behind. What was broken off is done again by the same command. */
#include <inttypes.h>

#include "client/cmd/objects.h"
#include "client/cmd/maint.h"
#include "client/cmd/table.h"
#include "client/maint/dump.h"
#include "client/maint/repair.h"
#include "client/maint/slices.h"
#include "client/meta/reply.h"
#include "common/mtx.h"

enum { TIERS = 4 };

struct tier_conf {
	char *tier;
	bool recursive, force;
	uint64_t days, threads;
};

static const struct conf_option options[] = {
	{"tier", 0, CONF_STR, offsetof(struct tier_conf, tier), NULL, NULL,
	 "set: 0 to 3, as config --tier N --storage-class CLASS made them; 0: the default"},
	{"recursive", 'r', CONF_FLAG, offsetof(struct tier_conf, recursive), "false", NULL,
	 "everything below a directory, too"},
	{"force", 'f', CONF_FLAG, offsetof(struct tier_conf, force), "false", NULL,
	 "set: store objects again also of files that are in that tier (after its class changed)"},
	{"days", 0, CONF_U64, offsetof(struct tier_conf, days), "3", NULL,
	 "restore: how long objects stay readable"},
	{"threads", 'p', CONF_U64, offsetof(struct tier_conf, threads), "10", NULL,
	 "objects that are worked on at once"},
};

static const struct conf_table table = {
	.options = options,
	.n = ARRAY_LEN(options),
	.usage = "stoke tier list META | set META PATH --tier N | restore META PATH",
	.summary = "list storage tiers; move a file or directory of the volume (PATH from its "
		   "root) to one; "
		   "make archived objects readable",
	.min_args = 2,
	.max_args = 3,
};

struct tier {
	struct maint *m;
	const struct tier_conf *conf;
	bool restore;
	uint64_t id;
	struct objects *o;
	struct numtable files;	/* inode: v length */
	struct numtable slices; /* (id, size) */
	struct mtx lock;
	size_t next; /* in slices.slot; under lock, as what follows */
	uint64_t stored, failed, files_set, dirs_set;
	int error;
	struct str err;
};

/* --- what there is --- */

static const struct object_tier *tier_of(const struct setting *s, uint64_t id)
{
	for (size_t i = 0; i < s->n_tiers; i++) {
		if (s->tiers[i].id == id)
			return &s->tiers[i];
	}
	return NULL;
}

static void list(const struct setting *s)
{
	struct table t;

	table_init(&t, "tier\tstorageClass\ttag");
	for (unsigned id = 0; id < TIERS; id++) {
		const struct object_tier *it = tier_of(s, id);
		_cleanup_(str_fini) struct str row = STR_INIT;

		if (!it && id > 0)
			continue;
		str_addf(&row, "%u\t%s\t%s", id, it ? it->storage_class : "", it ? it->tag : "");
		table_row(&t, str_c(&row));
	}
	table_print(&t, 2);
	table_fini(&t);
}

/* --- the tree --- */

static int set_one(struct tier *t, uint64_t inode)
{
	int r = meta_set_tier(&t->m->scan, t->m->setting, inode, (uint8_t)t->id);

	return r == -EAGAIN ? -ENOENT : r;
}

static int add_slice(void *arg, uint64_t inode, uint32_t index, const struct slice *s)
{
	struct tier *t = arg;

	(void)inode;
	(void)index;
	return numtable_at(&t->slices, s->id, s->size) ? 0 : -ENOMEM;
}

static int take(struct tier *t, uint64_t inode, const struct attr *a)
{
	struct numslot *s;
	int r = 0;

	if (a->type == INODE_DIR) {
		if (!t->restore && a->tier != t->id) {
			r = set_one(t, inode);
			t->dirs_set += r == 0;
		}
		return r == -ENOENT ? 0 : r;
	}
	if (a->type != INODE_FILE || (!t->restore && a->tier == t->id && !t->conf->force))
		return 0;
	s = numtable_at(&t->files, inode, 0);
	if (!s)
		return -ENOMEM;
	s->v = a->length;
	s->w = a->tier != t->id;
	__atomic_fetch_add(&t->m->progress.files, 1, __ATOMIC_RELAXED);
	r = slices_of_file(&t->m->scan, inode, a->length, add_slice, t);
	return r == -EPROTO ? 0 : r; /* damaged: fsck tells */
}

static int entry(void *arg, const struct walk_dir *dir, const char *name, uint64_t inode,
		 uint8_t type, const struct attr *attr)
{
	(void)dir;
	(void)name;
	(void)type;
	return attr ? take(arg, inode, attr) : 0;
}

static int collect(struct tier *t, uint64_t inode, const char *path)
{
	static const struct walk_ops ops = {.entry = entry};
	struct attr a = {.type = 0};
	struct pipe p;
	int r;

	pipe_init(&p, &t->m->scan);
	pipe_add_inode(&p, "GET", "i", inode);
	r = pipe_run(&p);
	if (r == 0) {
		size_t n;
		const char *v = reply_text(p.reply[0], &n);

		r = v ? attr_decode((const uint8_t *)v, n, &a) : -ENOENT;
		r = MIN(r, 0);
	}
	pipe_fini(&p);
	if (r == 0 && a.type != INODE_FILE && a.type != INODE_DIR) {
		str_addf(&t->err, "%s: only files and directories have a tier", path);
		return -EINVAL;
	}
	if (r == 0)
		r = take(t, inode, &a);
	if (r == 0 && a.type == INODE_DIR && t->conf->recursive)
		r = walk_tree(&t->m->scan, inode, path, true, &ops, t);
	return r;
}

/* --- the objects --- */

static bool next_slice(struct tier *t, struct object_slice *ret)
{
	bool found = false;

	mtx_lock(&t->lock);
	while (!found && t->next < t->slices.cap && !t->error &&
	       !__atomic_load_n(&t->m->progress.cancel, __ATOMIC_RELAXED)) {
		const struct numslot *s = &t->slices.slot[t->next++];

		found = s->used;
		if (found)
			*ret = (struct object_slice){s->a, (uint32_t)s->b};
	}
	mtx_unlock(&t->lock);
	return found;
}

static void *work(void *arg)
{
	struct tier *t = arg;
	struct object_slice s;

	while (next_slice(t, &s)) {
		_cleanup_(str_fini) struct str err = STR_INIT;
		uint64_t bytes = 0;
		int r = t->restore ? objects_restore(t->o, &s, (unsigned)t->conf->days, &err)
				   : objects_store_again(t->o, &s, (uint8_t)t->id, &bytes, &err);

		__atomic_fetch_add(&t->m->progress.bytes, bytes, __ATOMIC_RELAXED);
		mtx_lock(&t->lock);
		t->stored += r == 0;
		t->failed += r < 0;
		if (r < 0 && !t->error) {
			t->error = r;
			str_add(&t->err, str_c(&err));
		}
		mtx_unlock(&t->lock);
	}
	return NULL;
}

static int work_all(struct tier *t)
{
	maint_threads("tier", t->conf->threads, work, t);
	if (__atomic_load_n(&t->m->progress.cancel, __ATOMIC_RELAXED))
		return -EINTR;
	return t->error;
}

static int set_files(struct tier *t)
{
	int r = 0;

	for (size_t i = 0; i < t->files.cap && r == 0; i++) {
		const struct numslot *s = &t->files.slot[i];

		if (!s->used || !s->w)
			continue;
		r = set_one(t, s->a);
		t->files_set += r == 0;
		r = r == -ENOENT ? 0 : r;
	}
	return r;
}

static int run(struct tier *t, const char *path)
{
	uint64_t inode;
	uint8_t type;
	int r = scan_resolve(&t->m->scan, path, &inode, &type);

	if (r) {
		str_addf(&t->err, "%s: %s", path, strerror(-r));
		return r;
	}
	r = objects_open(t->m->setting, (unsigned)t->conf->threads, &t->o, &t->err);
	if (r)
		return r;
	mtx_init(&t->lock);
	maint_begin(t->m, "files", "stored again");
	r = collect(t, inode, path);
	if (r == 0)
		r = work_all(t);
	if (r == 0 && !t->restore)
		r = set_files(t);
	maint_end(t->m);
	mtx_fini(&t->lock);
	objects_free(t->o);
	return r;
}

static int said(const char *what)
{
	(void)cmd_error("tier", "%s", what);
	return -EINVAL;
}

/* 0; else told */
static int check(struct tier *t, char **args, size_t n)
{
	char *end;

	if (!strcmp(args[0], "list"))
		return n == 2 ? 0 : said("list META: nothing else");
	t->restore = !strcmp(args[0], "restore");
	if (!t->restore && strcmp(args[0], "set") != 0)
		return said("list, set or restore");
	if (n != 3 || args[2][0] != '/')
		return said("give the path within the volume, from /");
	if (t->restore)
		return t->conf->days && t->conf->days < 10000 ? 0 : said("--days: 1 to 9999");
	if (!t->conf->tier)
		return said("set: --tier N is missing");
	t->id = strtoul(t->conf->tier, &end, 10);
	return *end || end == t->conf->tier || t->id >= TIERS ? said("--tier: 0 to 3") : 0;
}

static int tier_exists(const struct tier *t)
{
	if (t->restore || t->id == 0 || tier_of(t->m->setting, t->id))
		return 0;
	return cmd_error("tier",
			 "tier %" PRIu64 " has no storage class: stoke config META --tier %" PRIu64
			 " --storage-class CLASS",
			 t->id, t->id);
}

static void summary(const struct tier *t, const char *path)
{
	if (t->restore)
		maint_say(t->m, "%s: %" PRIu64 " slices of %zu files are asked for", path,
			  t->stored, t->files.n);
	else
		maint_say(t->m,
			  "%s: tier %" PRIu64 ": %" PRIu64 " directories and %" PRIu64
			  " files set, %" PRIu64 " slices stored again",
			  path, t->id, t->dirs_set, t->files_set, t->stored);
}

static int tier_run(int argc, char **argv)
{
	struct maint m = {.name = "tier"};
	struct tier_conf conf;
	struct tier t = {.m = &m, .conf = &conf, .err = STR_INIT};
	char **args;
	size_t n;
	int r = maint_args("tier", &table, &conf, argc, argv, &args, &n);

	if (r == 0 && check(&t, args, n) < 0)
		r = 3;
	if (r) {
		conf_fini(&table, &conf);
		return r - 1;
	}
	r = 1;
	if (maint_open(&m, "tier", args[1], false) == 0 && tier_exists(&t) == 0) {
		if (n == 2) {
			list(m.setting);
			r = 0;
		} else {
			r = maint_exit(&m, run(&t, args[2]), &t.err);
		}
		if (r == 0 && n == 3)
			summary(&t, args[2]);
	}
	maint_close(&m);
	numtable_fini(&t.files);
	numtable_fini(&t.slices);
	str_fini(&t.err);
	conf_fini(&table, &conf);
	return r;
}

const struct cmd cmd_tier = {"tier", "list storage tiers; move files to one", tier_run, &table};
