/* SPDX-License-Identifier: Apache-2.0 */
/* POSIX rules of the vfs, over the engine in memory, the real reader, writer and chain, and an
 * object store in memory. */
#include "tests/unit/client/vfs_world.h"

static bool opens_with_pages(struct world *w, uint64_t inode)
{
	struct handle *h;
	bool keep;

	assert_int_equal(vfs_open(w->v, &root, inode, O_RDONLY, &h, &keep), 0);
	release(h);
	return keep;
}

/* --- tests --- */

static void what_was_written_is_seen_before_it_is_committed(void **state)
{
	struct vfs_entry e;
	struct world w;
	struct handle *h;
	uint64_t inode;
	struct attr a;
	char buf[32];

	(void)state;
	start(&w, false);
	h = create(&w, "f", &inode);
	assert_int_equal(put(h, 0, "hello world", 11), 11);
	assert_int_equal(vfs_getattr(w.v, inode, &e), 0);
	assert_int_equal(e.attr.length, 11);
	assert_int_equal(e.attr_us, 0); /* the commit will change it behind the kernel's back */
	assert_int_equal(meta_getattr(w.meta, inode, &a), 0);
	assert_int_equal(a.length, 0);
	assert_int_equal(get(h, 6, buf, sizeof(buf)), 5);
	assert_memory_equal(buf, "world", 5);
	assert_int_equal(meta_getattr(w.meta, inode, &a), 0);
	assert_int_equal(a.length, 11); /* the read has flushed */
	assert_int_equal(vfs_getattr(w.v, inode, &e), 0);
	assert_int_equal(e.attr_us, 1000000);
	close_handle(h);
	stop(&w);
}

static void pages_are_kept_until_somebody_changes_the_file(void **state)
{
	struct world w;
	struct handle *h;
	uint64_t inode, slice;
	struct time_ns mtime;
	struct attr a;

	(void)state;
	start(&w, false);
	h = create(&w, "f", &inode);
	assert_int_equal(put(h, 0, "1", 1), 1);
	close_handle(h);
	assert_false(opens_with_pages(&w, inode));
	assert_true(opens_with_pages(&w, inode));
	/* another client writes as many bytes and puts mtime back: ctime tells */
	assert_int_equal(meta_new_slice(w.meta, &slice, &(struct hash128){{0}}), 0);
	assert_int_equal(meta_getattr(w.meta, inode, &a), 0);
	mtime = a.mtime;
	usleep(2000);
	assert_int_equal(
		meta_write(w.meta, inode, 0, &(struct slice){0, slice, 1, 0, 1}, mtime, &a), 0);
	assert_int_equal(a.mtime.nsec, mtime.nsec);
	assert_int_equal(a.length, 1);
	assert_false(opens_with_pages(&w, inode));
	assert_true(opens_with_pages(&w, inode));
	/* this mount writes */
	assert_int_equal(vfs_open(w.v, &root, inode, O_WRONLY, &h, &(bool){false}), 0);
	assert_int_equal(put(h, 0, "2", 1), 1);
	close_handle(h);
	assert_false(opens_with_pages(&w, inode));
	stop(&w);
}

/* the engine in memory, whose next answer to an open is on its way while something is done */
static struct {
	const struct meta_ops *engine;
	struct meta_ops ops;
	struct handle *writer;
	const char *text;
} overtaken;

static int overtaken_open(struct meta *m, const struct meta_ctx *c, uint64_t inode, int flags,
			  struct chunk_list *ret)
{
	int r = overtaken.engine->open(m, c, inode, flags, ret);
	size_t len = strlen(overtaken.text);

	m->ops = overtaken.engine;
	usleep(2);
	assert_int_equal(put(overtaken.writer, 0, overtaken.text, (uint32_t)len), len);
	assert_int_equal(flush_handle(overtaken.writer), 0);
	return r;
}

static void overtake_next_open(struct world *w, struct handle *writer, const char *text)
{
	overtaken.engine = w->meta->ops;
	overtaken.ops = *overtaken.engine;
	overtaken.ops.open = overtaken_open;
	overtaken.writer = writer;
	overtaken.text = text;
	w->meta->ops = &overtaken.ops;
}

static void an_open_takes_back_nothing_that_was_committed_meanwhile(void **state)
{
	struct world w;
	struct handle *h, *other;
	uint64_t inode;
	char buf[8];
	bool keep;

	(void)state;
	start(&w, false);
	h = create(&w, "f", &inode);
	assert_int_equal(put(h, 0, "old", 3), 3);
	assert_int_equal(flush_handle(h), 0);
	overtake_next_open(&w, h, "newer");
	assert_int_equal(vfs_open(w.v, &root, inode, O_RDWR, &other, &keep), 0);
	assert_false(keep);
	assert_int_equal(get(h, 0, buf, sizeof(buf)), 5);
	assert_memory_equal(buf, "newer", 5);
	assert_int_equal(get(other, 0, buf, sizeof(buf)), 5);
	assert_memory_equal(buf, "newer", 5);
	/* nor do the kernel's pages count as those of the version that was asked for */
	assert_false(opens_with_pages(&w, inode));
	close_handle(other);
	close_handle(h);
	stop(&w);
}

/* the same of attributes: by look-up, getattr, link and setattr, which then are asked for again */
static void overtake(struct meta *m)
{
	size_t len = strlen(overtaken.text);

	m->ops = overtaken.engine;
	usleep(2);
	assert_int_equal(put(overtaken.writer, 0, overtaken.text, (uint32_t)len), len);
	assert_int_equal(flush_handle(overtaken.writer), 0);
}

static int overtaken_getattr(struct meta *m, uint64_t inode, struct attr *ret)
{
	int r = overtaken.engine->getattr(m, inode, ret);

	overtake(m);
	return r;
}

static int overtaken_lookup(struct meta *m, const struct meta_ctx *c, uint64_t parent,
			    const char *name, uint64_t *ret, struct attr *ret_attr)
{
	int r = overtaken.engine->lookup(m, c, parent, name, ret, ret_attr);

	overtake(m);
	return r;
}

static int overtaken_link(struct meta *m, const struct meta_ctx *c, uint64_t inode, uint64_t parent,
			  const char *name, struct attr *ret)
{
	int r = overtaken.engine->link(m, c, inode, parent, name, ret);

	overtake(m);
	return r;
}

static int overtaken_setattr(struct meta *m, const struct meta_ctx *c, uint64_t inode, unsigned set,
			     const struct attr *want, struct attr *ret)
{
	int r = overtaken.engine->setattr(m, c, inode, set, want, ret);

	overtake(m);
	return r;
}

static void no_answer_shows_less_than_was_committed_meanwhile(void **state)
{
	const struct attr want = {.mode = 0600};
	struct vfs_entry e;
	struct world w;
	struct handle *h;
	uint64_t inode;

	(void)state;
	start(&w, false);
	h = create(&w, "f", &inode);
	overtake_next_open(&w, h, "1");
	overtaken.ops = *overtaken.engine;
	overtaken.ops.getattr = overtaken_getattr;
	assert_int_equal(vfs_getattr(w.v, inode, &e), 0);
	assert_int_equal(e.attr.length, 1);
	overtake_next_open(&w, h, "22");
	overtaken.ops = *overtaken.engine;
	overtaken.ops.lookup = overtaken_lookup;
	assert_int_equal(vfs_lookup(w.v, &root, INODE_ROOT, "f", &e), 0);
	assert_int_equal(e.attr.length, 2);
	overtake_next_open(&w, h, "333");
	overtaken.ops = *overtaken.engine;
	overtaken.ops.link = overtaken_link;
	assert_int_equal(vfs_link(w.v, &root, inode, INODE_ROOT, "g", &e), 0);
	assert_int_equal(e.attr.length, 3);
	overtake_next_open(&w, h, "4444");
	overtaken.ops = *overtaken.engine;
	overtaken.ops.setattr = overtaken_setattr;
	assert_int_equal(vfs_setattr(w.v, &root, inode, SET_MODE, &want, NULL, NULL, &e), 0);
	assert_int_equal(e.attr.length, 4);
	close_handle(h);
	stop(&w);
}

static void truncate_cuts_what_readers_and_writers_believe(void **state)
{
	struct vfs_entry e;
	struct world w;
	struct handle *h;
	uint64_t inode, size = 10;
	char buf[200], data[100];

	(void)state;
	memset(data, 'x', sizeof(data));
	start(&w, false);
	h = create(&w, "f", &inode);
	assert_int_equal(put(h, 0, data, 100), 100);
	assert_int_equal(flush_inode(&w, inode), 0);
	assert_int_equal(vfs_setattr(w.v, &root, inode, 0, NULL, &size, h, &e), 0);
	assert_int_equal(e.attr.length, 10);
	assert_int_equal(get(h, 0, buf, sizeof(buf)), 10);
	assert_int_equal(put(h, 2, "yy", 2), 2);
	assert_int_equal(vfs_getattr(w.v, inode, &e), 0);
	assert_int_equal(e.attr.length, 10); /* not the 100 from before */
	size = 20;
	assert_int_equal(flush_inode(&w, inode), 0);
	assert_int_equal(vfs_setattr(w.v, &root, inode, 0, NULL, &size, NULL, &e), 0);
	assert_int_equal(get(h, 0, buf, sizeof(buf)), 20);
	assert_memory_equal(buf, "xxyyxxxxxx\0\0\0\0\0\0\0\0\0\0", 20);
	size = FILE_LENGTH_MAX + 1;
	assert_int_equal(vfs_setattr(w.v, &root, inode, 0, NULL, &size, NULL, &e), -EFBIG);
	assert_int_equal(put(h, FILE_LENGTH_MAX, "z", 1), -EFBIG);
	close_handle(h);
	stop(&w);
}

static void open_with_trunc_empties(void **state)
{
	struct world w;
	struct handle *h;
	uint64_t inode;
	char buf[8];
	bool keep;

	(void)state;
	start(&w, false);
	h = create(&w, "f", &inode);
	assert_int_equal(put(h, 0, "12345", 5), 5);
	close_handle(h);
	assert_int_equal(vfs_open(w.v, &root, inode, O_RDWR | O_TRUNC, &h, &keep), 0);
	assert_false(keep);
	assert_int_equal(get(h, 0, buf, sizeof(buf)), 0);
	close_handle(h);
	stop(&w);
}

static void times_set_behind_a_flush_survive_the_close(void **state)
{
	struct attr want = {.mtime = {12345, 678}}, a;
	struct vfs_entry e;
	struct world w;
	struct handle *h;
	uint64_t inode;

	(void)state;
	start(&w, false);
	h = create(&w, "f", &inode);
	assert_int_equal(put(h, 0, "12345", 5), 5);
	assert_int_equal(flush_inode(&w, inode), 0);
	assert_int_equal(vfs_setattr(w.v, &root, inode, SET_MTIME, &want, NULL, h, &e), 0);
	close_handle(h);
	assert_int_equal(meta_getattr(w.meta, inode, &a), 0);
	assert_int_equal(a.mtime.sec, 12345);
	assert_int_equal(a.mtime.nsec, 678);
	stop(&w);
}

static void an_unlinked_open_file_lives_until_its_release(void **state)
{
	struct world w;
	struct handle *h;
	uint64_t inode;
	struct attr a;
	char buf[8];

	(void)state;
	start(&w, false);
	h = create(&w, "f", &inode);
	assert_int_equal(put(h, 0, "12345", 5), 5);
	assert_int_equal(vfs_unlink(w.v, &root, INODE_ROOT, "f"), 0);
	assert_int_equal(put(h, 5, "6", 1), 1);
	assert_int_equal(get(h, 0, buf, sizeof(buf)), 6);
	assert_int_equal(meta_getattr(w.meta, inode, &a), 0);
	assert_int_equal(a.nlink, 0);
	close_handle(h);
	assert_int_equal(meta_getattr(w.meta, inode, &a), -ENOENT);
	stop(&w);
}

static void create_opens_what_is_there_unless_exclusive(void **state)
{
	struct vfs_entry e;
	struct world w;
	struct handle *h;
	uint64_t inode;
	char buf[8];
	bool keep;

	(void)state;
	start(&w, false);
	h = create(&w, "f", &inode);
	assert_int_equal(put(h, 0, "12345", 5), 5);
	close_handle(h);
	assert_int_equal(
		vfs_create(w.v, &root, INODE_ROOT, "f", 0644, 0, O_RDWR | O_CREAT, &e, &h, &keep),
		0);
	assert_int_equal(e.inode, inode);
	assert_int_equal(e.attr.length, 5);
	assert_int_equal(get(h, 0, buf, sizeof(buf)), 5);
	close_handle(h);
	assert_int_equal(
		vfs_create(w.v, &root, INODE_ROOT, "f", 0644, 0, O_RDWR | O_EXCL, &e, &h, &keep),
		-EEXIST);
	assert_int_equal(vfs_mknod(w.v, &root, INODE_ROOT, "d", INODE_DIR, 0755, 022, 0, NULL, &e),
			 0);
	assert_int_equal(e.entry_us, 3000000);
	assert_int_equal(vfs_create(w.v, &root, INODE_ROOT, "d", 0644, 0, O_RDWR, &e, &h, &keep),
			 -EISDIR);
	assert_int_equal(
		vfs_create(w.v, &root, INODE_ROOT, "f", 0644, 0, O_RDWR | O_TRUNC, &e, &h, &keep),
		0);
	assert_int_equal(e.attr.length, 0);
	assert_int_equal(get(h, 0, buf, sizeof(buf)), 0);
	close_handle(h);
	stop(&w);
}

static void create_cuts_off_what_was_written_before(void **state)
{
	struct vfs_entry e;
	struct handle *h, *other;
	struct world w;
	uint64_t inode;
	struct attr a;
	bool keep;

	(void)state;
	start(&w, false);
	h = create(&w, "f", &inode);
	assert_int_equal(put(h, 0, "12345", 5), 5);
	assert_int_equal(vfs_create(w.v, &root, INODE_ROOT, "f", 0644, 0, O_RDWR | O_TRUNC, &e,
				    &other, &keep),
			 0);
	assert_int_equal(flush_handle(h), 0);
	assert_int_equal(meta_getattr(w.meta, inode, &a), 0);
	assert_int_equal(a.length, 0);
	close_handle(other);
	close_handle(h);
	stop(&w);
}

static const struct meta_ops *engine;
static unsigned root_delay_us; /* atomic */

static int slow_getattr(struct meta *m, uint64_t inode, struct attr *ret)
{
	unsigned us = __atomic_load_n(&root_delay_us, __ATOMIC_RELAXED);

	if (us)
		usleep(us);
	return engine->getattr(m, inode, ret);
}

static uint64_t root_mode(struct world *w, uint64_t *ret_us)
{
	uint64_t began = clock_us();
	struct vfs_entry e;

	assert_int_equal(vfs_getattr_root(w->v, w->e.metaq, &e), 0);
	*ret_us = clock_us() - began;
	assert_int_equal(e.inode, INODE_ROOT);
	assert_int_equal(e.attr.type, INODE_DIR);
	return e.attr.mode;
}

static void the_root_is_there_while_the_engine_hangs(void **state)
{
	struct attr want = {.mode = 0711}, a;
	struct meta_ops ops;
	struct world w;
	uint64_t us;

	(void)state;
	start(&w, false);
	engine = w.meta->ops;
	ops = *engine;
	ops.getattr = slow_getattr;
	w.meta->ops = &ops;
	__atomic_store_n(&root_delay_us, 1500000, __ATOMIC_RELAXED);
	assert_int_equal(root_mode(&w, &us), 0777); /* nothing known yet */
	assert_in_range(us, 300000, 1000000);
	assert_int_equal(root_mode(&w, &us), 0777);
	assert_in_range(us, 0, 100000); /* one is late already */
	__atomic_store_n(&root_delay_us, 0, __ATOMIC_RELAXED);
	assert_int_equal(meta_setattr(w.meta, &root, INODE_ROOT, SET_MODE, &want, &a), 0);
	usleep(1700000);
	assert_int_equal(root_mode(&w, &us), 0711);
	__atomic_store_n(&root_delay_us, 1000000, __ATOMIC_RELAXED);
	want.mode = 0755;
	assert_int_equal(meta_setattr(w.meta, &root, INODE_ROOT, SET_MODE, &want, &a), 0);
	assert_int_equal(root_mode(&w, &us), 0711); /* what was known last */
	workq_free(TAKE_PTR(w.e.metaq));
	w.meta->ops = engine;
	stop(&w);
}

static void names_of_our_own_are_there_and_stay(void **state)
{
	static const char *const names[] = {".accesslog", ".config", ".stats", ".control",
					    ".trash"};
	struct vfs_entry e;
	struct world w;
	struct handle *h;

	(void)state;
	start(&w, false);
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		assert_true(vfs_lookup_made_up(w.v, INODE_ROOT, names[i], &e));
		assert_false(vfs_lookup_made_up(w.v, 5, names[i], &e));
		assert_int_equal(vfs_mknod(w.v, &root, INODE_ROOT, names[i], INODE_FILE, 0644, 0, 0,
					   NULL, &e),
				 -EEXIST);
		assert_int_equal(vfs_unlink(w.v, &root, INODE_ROOT, names[i]), -EPERM);
		assert_int_equal(vfs_rename(w.v, &root, INODE_ROOT, names[i], INODE_ROOT, "x", 0),
				 -EPERM);
	}
	assert_int_equal(vfs_lookup(w.v, &root, INODE_ROOT, ".trash", &e), 0);
	assert_int_equal(e.inode, INODE_TRASH);
	assert_int_equal(e.attr.mode, 0555);
	assert_int_equal(e.attr.nlink, 2);
	assert_int_equal(e.attr.length, 0);
	assert_int_equal(vfs_open_internal(w.v, &root, INODE_STATS, O_RDWR, &h), -EACCES);
	assert_int_equal(vfs_open_internal(w.v, &root, INODE_TRASH, O_RDONLY, &h), -ENOENT);
	assert_int_equal(vfs_setattr(w.v, &root, INODE_STATS, SET_MODE,
				     &(struct attr){.mode = 0777}, NULL, NULL, &e),
			 -EPERM);
	stop(&w);
}

static void load(struct handle *h)
{
	struct dir_reading d = vfs_readdir_begin(h, 0);

	assert_int_equal(vfs_readdir_load(h, 0, true, &d), 0);
	vfs_readdir_use(h, &d);
}

/* names of a directory from offset off, in one string; *ret_full: how many with attributes */
static void list(struct handle *h, uint64_t off, struct str *out, unsigned *ret_full)
{
	struct vfs_dirent d;

	*ret_full = 0;
	for (; vfs_readdir_at(h, off, &d); off = d.next) {
		str_addn(out, d.name, d.name_len);
		str_add(out, " ");
		*ret_full += d.full;
	}
}

static void a_listing_is_a_snapshot_that_offsets_count(void **state)
{
	struct str all = STR_INIT, rest = STR_INIT;
	struct vfs_dirent d;
	struct vfs_entry e;
	unsigned full;
	struct world w;
	struct handle *h;

	(void)state;
	start(&w, false);
	assert_int_equal(vfs_mknod(w.v, &root, INODE_ROOT, "one", INODE_FILE, 0644, 0, 0, NULL, &e),
			 0);
	usleep(2);
	assert_int_equal(vfs_opendir(w.v, &root, INODE_ROOT, &h, &(bool){false}), 0);
	assert_false(vfs_readdir_at(h, 0, &d)); /* nothing loaded */
	load(h);
	list(h, 0, &all, &full);
	assert_string_equal(str_c(&all), ". .. .accesslog .config .stats .trash one ");
	assert_int_equal(full, 5);
	list(h, 6, &rest, &full);
	assert_string_equal(str_c(&rest), "one ");
	assert_int_equal(full, 1);
	/* gone in this mount: the name may still be listed, its attributes must not come back to
	 * the kernel */
	usleep(2);
	assert_int_equal(vfs_unlink(w.v, &root, INODE_ROOT, "one"), 0);
	str_reset(&rest);
	list(h, 6, &rest, &full);
	assert_int_equal(full, 0);
	usleep(2);
	load(h);
	str_reset(&rest);
	list(h, 6, &rest, &full);
	assert_string_equal(str_c(&rest), "");
	vfs_release(h);
	str_fini(&all);
	str_fini(&rest);
	stop(&w);
}

static void a_changed_inode_is_listed_without_attributes(void **state)
{
	struct vfs_dirent d;
	struct vfs_entry e;
	struct world w;
	struct handle *dir, *h;
	uint64_t inode;

	(void)state;
	start(&w, false);
	assert_int_equal(vfs_mknod(w.v, &root, INODE_ROOT, "d", INODE_DIR, 0755, 0, 0, NULL, &e),
			 0);
	assert_int_equal(meta_mknod(w.meta, &root, e.inode, "f", INODE_FILE, 0644, 0, 0, NULL,
				    &inode, &e.attr),
			 0);
	assert_int_equal(vfs_opendir(w.v, &root, e.inode, &dir, &(bool){false}), 0);
	load(dir);
	assert_true(vfs_readdir_at(dir, 2, &d));
	assert_true(d.full);
	usleep(2);
	assert_int_equal(vfs_open(w.v, &root, inode, O_RDWR, &h, &(bool){false}), 0);
	assert_int_equal(put(h, 0, "123", 3), 3);
	assert_true(vfs_readdir_at(dir, 2, &d));
	assert_false(d.full); /* it would tell a length of 0 */
	assert_int_equal(d.entry.attr.type, INODE_FILE);
	close_handle(h);
	vfs_release(dir);
	stop(&w);
}

static void a_read_only_mount_changes_nothing(void **state)
{
	struct vfs_entry e;
	struct world w;
	struct handle *h;
	uint64_t inode;
	bool keep;

	(void)state;
	start(&w, true);
	assert_int_equal(meta_mknod(w.meta, &root, INODE_ROOT, "f", INODE_FILE, 0644, 0, 0, NULL,
				    &inode, &e.attr),
			 0);
	assert_int_equal(vfs_open(w.v, &root, inode, O_RDWR, &h, &keep), -EROFS);
	assert_int_equal(vfs_create(w.v, &root, INODE_ROOT, "g", 0644, 0, O_RDWR, &e, &h, &keep),
			 -EROFS);
	assert_int_equal(vfs_open(w.v, &root, inode, O_RDONLY, &h, &keep), 0);
	assert_int_equal(put(h, 0, "x", 1), -EBADF);
	assert_int_equal(flush_handle(h), 0);
	/* left open: vfs_free ends it */
	stop(&w);
}

static void labels_of_the_kernel_are_never_stored(void **state)
{
	struct vfs_entry e;
	struct world w;
	char *value = NULL;
	size_t len;

	(void)state;
	start(&w, false);
	assert_int_equal(vfs_mknod(w.v, &root, INODE_ROOT, "f", INODE_FILE, 0644, 0, 0, NULL, &e),
			 0);
	assert_int_equal(vfs_getxattr(w.v, &root, e.inode, "security.capability", &value, &len),
			 -ENODATA);
	assert_int_equal(vfs_setxattr(w.v, &root, e.inode, "security.selinux", "x", 1, 0),
			 -ENOTSUP);
	assert_int_equal(vfs_setxattr(w.v, &root, e.inode, "system.posix_acl_access", "x", 1, 0),
			 -ENOTSUP);
	assert_int_equal(vfs_setxattr(w.v, &root, e.inode, "user.a", "value", 5, 0), 0);
	assert_int_equal(vfs_getxattr(w.v, &root, e.inode, "user.a", &value, &len), 0);
	assert_int_equal(len, 5);
	assert_memory_equal(value, "value", 5);
	free(value);
	assert_int_equal(vfs_listxattr(w.v, &root, INODE_TRASH, &value, &len), -ENODATA);
	assert_int_equal(vfs_removexattr(w.v, &root, e.inode, "user.a"), 0);
	assert_int_equal(vfs_removexattr(w.v, &root, e.inode, "user.a"), -ENODATA);
	stop(&w);
}

/* its asker was killed, so the kernel did not wait for the read before it sent the release */
static void a_release_waits_for_a_read_that_nobody_waits_for(void **state)
{
	struct an_io a = {.io = {.len = 5, .done = io_done}};
	struct waited idle;
	struct world w;
	struct handle *h;
	uint64_t inode;
	char buf[8];
	bool done, keep;

	(void)state;
	start(&w, false);
	h = create(&w, "f", &inode);
	assert_int_equal(put(h, 0, "12345", 5), 5);
	close_handle(h);
	assert_int_equal(vfs_open(w.v, &root, inode, O_RDONLY, &h, &keep), 0);
	w.e.store->delay_us = 100000;
	waited_init(&a.w);
	waited_init(&idle);
	a.w.to = (unsigned char *)buf;
	a.io.h = h;
	vfs_read(&a.io);
	vfs_when_idle(h, release_idle, &idle);
	mtx_lock(&idle.lock);
	done = idle.done;
	mtx_unlock(&idle.lock);
	assert_false(done);
	assert_int_equal(waited_wait(&a.w), 0);
	assert_int_equal(a.w.total, 5);
	assert_int_equal(waited_wait(&idle), 0);
	assert_int_equal(vfs_open_handles(w.v), 0);
	stop(&w);
}

/* a write and a flush whose askers were killed: their release comes, and the data is stored */
static void a_release_waits_for_what_killed_processes_wrote(void **state)
{
	static char data[BS];
	struct an_io a = {.io = {.len = BS, .data = data, .done = io_done}};
	struct an_io b = {.io = {.done = io_done}};
	struct waited idle;
	struct world w;
	struct handle *h;
	uint64_t inode;
	struct attr attr;
	bool done;

	(void)state;
	start(&w, false);
	h = create(&w, "f", &inode);
	w.e.store->delay_us = 100000;
	/* more than the writer's memory: the last write waits */
	for (unsigned i = 0; i < 47; i++)
		assert_int_equal(put(h, (uint64_t)i * BS, data, BS), BS);
	waited_init(&a.w);
	waited_init(&b.w);
	waited_init(&idle);
	a.io.h = b.io.h = h;
	a.io.off = UINT64_C(47) * BS;
	vfs_io_begin(&a.io);
	vfs_write(&a.io);
	vfs_flush(&b.io, true);
	vfs_when_idle(h, release_idle, &idle);
	mtx_lock(&idle.lock);
	done = idle.done;
	mtx_unlock(&idle.lock);
	assert_false(done);
	assert_int_equal(waited_wait(&a.w), 0);
	assert_int_equal(waited_wait(&b.w), 0);
	assert_int_equal(waited_wait(&idle), 0);
	assert_int_equal(vfs_open_handles(w.v), 0);
	assert_int_equal(writer_flush_all(w.writer), 0);
	assert_int_equal(meta_getattr(w.meta, inode, &attr), 0);
	assert_int_equal(attr.length, 48 * BS);
	stop(&w);
}

static void an_upload_that_failed_is_told_at_close(void **state)
{
	struct world w;
	struct handle *h;
	uint64_t inode;

	(void)state;
	start(&w, false);
	h = create(&w, "f", &inode);
	w.e.store->fail_puts = 1;
	assert_int_equal(put(h, 0, "12345", 5), 5);
	assert_int_equal(flush_handle(h), -EIO);
	assert_int_equal(flush_handle(h), 0); /* told once */
	release(h);
	stop(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_was_written_is_seen_before_it_is_committed),
		cmocka_unit_test(pages_are_kept_until_somebody_changes_the_file),
		cmocka_unit_test(an_open_takes_back_nothing_that_was_committed_meanwhile),
		cmocka_unit_test(no_answer_shows_less_than_was_committed_meanwhile),
		cmocka_unit_test(truncate_cuts_what_readers_and_writers_believe),
		cmocka_unit_test(open_with_trunc_empties),
		cmocka_unit_test(times_set_behind_a_flush_survive_the_close),
		cmocka_unit_test(an_unlinked_open_file_lives_until_its_release),
		cmocka_unit_test(create_opens_what_is_there_unless_exclusive),
		cmocka_unit_test(create_cuts_off_what_was_written_before),
		cmocka_unit_test(the_root_is_there_while_the_engine_hangs),
		cmocka_unit_test(names_of_our_own_are_there_and_stay),
		cmocka_unit_test(a_listing_is_a_snapshot_that_offsets_count),
		cmocka_unit_test(a_changed_inode_is_listed_without_attributes),
		cmocka_unit_test(a_read_only_mount_changes_nothing),
		cmocka_unit_test(labels_of_the_kernel_are_never_stored),
		cmocka_unit_test(a_release_waits_for_a_read_that_nobody_waits_for),
		cmocka_unit_test(a_release_waits_for_what_killed_processes_wrote),
		cmocka_unit_test(an_upload_that_failed_is_told_at_close),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
