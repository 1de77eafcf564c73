/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges of files, files without names, access lists, and what the kernel is told when another
 * mount (here: the engine, behind the vfs' back) changes a file. */
#include "tests/unit/client/vfs_world.h"

enum { PUNCH = 2 | 1, KEEP = 1 };

static void a_hole_is_zeros_and_growth_is_seen(void **state)
{
	struct vfs_entry e;
	struct world w;
	struct handle *h;
	uint64_t inode, at;
	char buf[16];

	(void)state;
	start(&w, false);
	h = create(&w, "f", &inode);
	assert_int_equal(put(h, 0, "0123456789", 10), 10);
	assert_int_equal(flush_inode(&w, inode), 0);
	assert_int_equal(get(h, 0, buf, 10), 10);
	assert_int_equal(vfs_fallocate(w.v, &root, h, PUNCH, 2, 5), 0);
	assert_int_equal(get(h, 0, buf, 10), 10);
	assert_memory_equal(buf,
			    "01\0\0\0\0\0"
			    "789",
			    10);
	assert_int_equal(vfs_seek(w.v, inode, 0, true, &at), 0);
	assert_int_equal(at, 2);
	assert_int_equal(vfs_seek(w.v, inode, 2, false, &at), 0);
	assert_int_equal(at, 7);
	assert_int_equal(vfs_fallocate(w.v, &root, h, 0, 0, 100), 0);
	assert_int_equal(vfs_getattr(w.v, inode, &e), 0);
	assert_int_equal(e.attr.length, 100);
	assert_int_equal(get(h, 95, buf, 16), 5);
	assert_int_equal(vfs_seek(w.v, inode, 10, false, &at), -ENXIO);
	assert_int_equal(vfs_seek(w.v, inode, 50, true, &at), 0);
	assert_int_equal(at, 50);
	assert_int_equal(vfs_seek(w.v, inode, 100, true, &at), -ENXIO);
	/* a write behind it knows the length */
	assert_int_equal(put(h, 98, "x", 1), 1);
	assert_int_equal(vfs_getattr(w.v, inode, &e), 0);
	assert_int_equal(e.attr.length, 100);
	close_handle(h);
	stop(&w);
}

static void data_is_found_across_many_chunks(void **state)
{
	const uint64_t far = (uint64_t)CHUNK_SIZE * 100 + 7;
	struct world w;
	struct handle *h;
	uint64_t inode, at;

	(void)state;
	start(&w, false);
	h = create(&w, "f", &inode);
	assert_int_equal(put(h, far, "x", 1), 1);
	assert_int_equal(flush_inode(&w, inode), 0);
	assert_int_equal(vfs_seek(w.v, inode, 0, false, &at), 0);
	assert_int_equal(at, far);
	assert_int_equal(vfs_seek(w.v, inode, far, true, &at), 0);
	assert_int_equal(at, far + 1);
	close_handle(h);
	stop(&w);
}

static void a_copy_is_seen_by_open_readers(void **state)
{
	struct world w;
	struct handle *from, *to;
	uint64_t a, b, copied;
	char buf[8];

	(void)state;
	start(&w, false);
	from = create(&w, "from", &a);
	to = create(&w, "to", &b);
	assert_int_equal(put(from, 0, "abcdef", 6), 6);
	assert_int_equal(put(to, 0, "------", 6), 6);
	assert_int_equal(flush_inode(&w, a), 0);
	assert_int_equal(flush_inode(&w, b), 0);
	assert_int_equal(get(to, 0, buf, 6), 6);
	assert_int_equal(vfs_copy_range(w.v, &root, from, 1, to, 4, 100, &copied), 0);
	assert_int_equal(copied, 5);
	assert_int_equal(get(to, 0, buf, 8), 8);
	assert_memory_equal(buf, "----bcde", 8);
	close_handle(from);
	close_handle(to);
	stop(&w);
}

static void a_file_without_a_name_is_gone_with_its_last_close(void **state)
{
	struct vfs_entry e, named;
	struct world w;
	struct handle *h;
	struct attr a;

	(void)state;
	start(&w, false);
	assert_int_equal(vfs_tmpfile(w.v, &root, INODE_ROOT, 0600, 0, O_RDWR, &e, &h), 0);
	assert_int_equal(e.attr.nlink, 0);
	assert_int_equal(put(h, 0, "x", 1), 1);
	close_handle(h);
	assert_int_equal(meta_getattr(w.meta, e.inode, &a), -ENOENT);
	assert_int_equal(vfs_tmpfile(w.v, &root, INODE_ROOT, 0600, 0, O_RDWR, &e, &h), 0);
	assert_int_equal(put(h, 0, "x", 1), 1);
	assert_int_equal(flush_inode(&w, e.inode), 0);
	assert_int_equal(vfs_link(w.v, &root, e.inode, INODE_ROOT, "named", &named), 0);
	assert_int_equal(named.attr.nlink, 1);
	close_handle(h);
	assert_int_equal(meta_getattr(w.meta, e.inode, &a), 0);
	assert_int_equal(a.length, 1);
	stop(&w);
}

static int append(struct world *w, uint64_t inode, struct handle **ret)
{
	bool keep;

	return vfs_open(w->v, &root, inode, O_WRONLY | O_APPEND, ret, &keep);
}

static void an_append_looks_again_where_another_mount_appended(void **state)
{
	struct vfs_entry e;
	struct world w;
	struct handle *h;
	struct attr a;
	uint64_t inode;

	(void)state;
	start(&w, false);
	h = create(&w, "f", &inode);
	close_handle(h);
	assert_int_equal(vfs_getattr(w.v, inode, &e), 0);
	assert_int_equal(append(&w, inode, &h), 0);
	assert_false(vfs_open_again(h));
	/* its own writes are no news to the kernel */
	assert_int_equal(put(h, 0, "12345", 5), 5);
	close_handle(h);
	assert_int_equal(append(&w, inode, &h), 0);
	assert_false(vfs_open_again(h));
	assert_false(h->kernel_old);
	release(h);
	assert_int_equal(meta_truncate(w.meta, &root, inode, 9, false, &a), 0);
	assert_int_equal(append(&w, inode, &h), 0);
	assert_true(h->kernel_old);
	assert_true(vfs_open_again(h));
	assert_false(vfs_open_again(h)); /* not twice in a row */
	release(h);
	assert_int_equal(vfs_getattr(w.v, inode, &e), 0);
	assert_int_equal(append(&w, inode, &h), 0);
	assert_false(h->kernel_old);
	assert_false(vfs_open_again(h));
	release(h);
	stop(&w);
}

static void what_is_gone_is_looked_up_again_once(void **state)
{
	struct world w;
	struct handle *h;
	uint64_t inode;

	(void)state;
	start(&w, false);
	h = create(&w, "f", &inode);
	assert_int_equal(vfs_again(w.v, inode, -ENOENT), -ENOENT); /* open here: it is what it is */
	close_handle(h);
	assert_int_equal(vfs_again(w.v, inode, -EIO), -EIO);
	assert_int_equal(vfs_again(w.v, inode, -EPERM), -EPERM); /* not in the trash */
	assert_int_equal(vfs_again(w.v, inode, -ENOENT), -ESTALE);
	assert_int_equal(vfs_again(w.v, inode, -ENOENT), -ENOENT);
	stop(&w);
}

static void access_lists_need_a_volume_that_has_them(void **state)
{
	static const unsigned char rule[] = {2,	  0,   0, 0, 1,	  0,   6,   0,	 255, 255,
					     255, 255, 4, 0, 4,	  0,   255, 255, 255, 255,
					     32,  0,   0, 0, 255, 255, 255, 255};
	struct world w;
	struct handle *h;
	struct vfs_entry e;
	uint64_t inode;
	char *value;
	size_t len;

	(void)state;
	start(&w, false);
	h = create(&w, "f", &inode);
	close_handle(h);
	assert_int_equal(vfs_setxattr(w.v, &root, inode, ACL_NAME_ACCESS, rule, sizeof(rule), 0),
			 -ENOTSUP);
	w.v->conf.acl = true;
	/* a rule that mode bits can say is no rule */
	assert_int_equal(vfs_setxattr(w.v, &root, inode, ACL_NAME_ACCESS, rule, sizeof(rule), 0),
			 0);
	assert_int_equal(vfs_getattr(w.v, inode, &e), 0);
	assert_int_equal(e.attr.mode, 0640);
	assert_int_equal(vfs_setxattr(w.v, &root, inode, ACL_NAME_ACCESS, rule, 7, 0), -EINVAL);
	assert_int_equal(vfs_getxattr(w.v, &root, inode, ACL_NAME_DEFAULT, &value, &len), -ENODATA);
	stop(&w);
}

static void trusted_names_are_for_root(void **state)
{
	const struct meta_ctx other = {.uid = 7, .gid = 7};
	struct world w;
	struct handle *h;
	uint64_t inode;
	char *list;
	size_t len;

	(void)state;
	start(&w, false);
	h = create(&w, "f", &inode);
	close_handle(h);
	assert_int_equal(vfs_setxattr(w.v, &root, inode, "trusted.a", "1", 1, 0), 0);
	assert_int_equal(vfs_setxattr(w.v, &root, inode, "user.b", "2", 1, 0), 0);
	assert_int_equal(vfs_listxattr(w.v, &root, inode, &list, &len), 0);
	assert_int_equal(len, strlen("trusted.a") + strlen("user.b") + 2);
	free(list);
	assert_int_equal(vfs_listxattr(w.v, &other, inode, &list, &len), 0);
	assert_int_equal(len, strlen("user.b") + 1);
	assert_string_equal(list, "user.b");
	free(list);
	stop(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_hole_is_zeros_and_growth_is_seen),
		cmocka_unit_test(data_is_found_across_many_chunks),
		cmocka_unit_test(a_copy_is_seen_by_open_readers),
		cmocka_unit_test(a_file_without_a_name_is_gone_with_its_last_close),
		cmocka_unit_test(an_append_looks_again_where_another_mount_appended),
		cmocka_unit_test(what_is_gone_is_looked_up_again_once),
		cmocka_unit_test(access_lists_need_a_volume_that_has_them),
		cmocka_unit_test(trusted_names_are_for_root),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
