/* SPDX-License-Identifier: Apache-2.0 */
/* ACLs over Redis: rules in the database, inheritance, chmod. */
#include "tests/unit/meta/volume.h"

static uint64_t make(struct meta *m, const char *name, uint8_t type)
{
	return make_mode(m, &root_ctx, INODE_ROOT, name, type, 0755);
}

static void equal_rules_are_stored_once(void **state)
{
	struct acl_entry e;
	struct acl rule = rule_for(&e, 6), got;
	struct attr a;
	uint64_t f[3];
	struct meta *m;

	(void)state;
	NEED_SERVER();
	acl_volume();
	m = open_redis(NULL);
	for (int i = 0; i < 3; i++)
		f[i] = make(m, (char[]){'f', (char)('0' + i), 0}, INODE_FILE);
	assert_int_equal(meta_setfacl(m, &root_ctx, f[0], ACL_ACCESS, &rule, &a), 0);
	assert_int_equal(a.access_acl, 1);
	assert_int_equal(a.mode, 0670); /* the mask is the group's part */
	assert_int_equal(raw_of("STRLEN i", f[0]), 80);
	assert_int_equal(meta_setfacl(m, &root_ctx, f[1], ACL_ACCESS, &rule, &a), 0);
	assert_int_equal(a.access_acl, 1);
	assert_int_equal(raw_int("HLEN acl"), 1);
	assert_int_equal(raw_int("HSTRLEN acl 1"), 22);
	assert_int_equal(raw_int("GET aclMaxId"), 1);

	/* seen once: not asked for again */
	assert_int_equal(meta_getfacl(m, f[0], ACL_ACCESS, &got), 0);
	acl_fini(&got);
	raw_run("RENAME acl elsewhere");
	assert_int_equal(meta_getfacl(m, f[1], ACL_ACCESS, &got), 0);
	assert_int_equal(got.users[0].perm, 6);
	acl_fini(&got);
	raw_run("RENAME elsewhere acl");

	/* what our index says is only believed when the table says the same */
	raw_run("HSET acl 1 0123456789abcdef");
	assert_int_equal(meta_setfacl(m, &root_ctx, f[2], ACL_ACCESS, &rule, &a), 0);
	assert_int_equal(a.access_acl, 2);
	/* a number that somebody took without counting is nobody's */
	raw_run("HSET acl 3 0123456789abcdef");
	rule.other = 1;
	assert_int_equal(meta_setfacl(m, &root_ctx, f[2], ACL_ACCESS, &rule, &a), -EIO);

	assert_int_equal(meta_setfacl(m, &root_ctx, f[1], ACL_ACCESS, NULL, &a), 0);
	assert_int_equal(a.access_acl, 0);
	assert_int_equal(raw_of("STRLEN i", f[1]), 72);
	assert_int_equal(meta_getfacl(m, f[1], ACL_ACCESS, &got), -ENODATA);
	close_meta(m);
}

static void a_volume_without_acls_has_none(void **state)
{
	struct acl got;
	struct meta *m;
	char *p;
	size_t n;

	(void)state;
	NEED_SERVER();
	fresh_volume(1);
	m = open_redis(NULL);
	assert_int_equal(meta_getfacl(m, INODE_ROOT, ACL_ACCESS, &got), -EOPNOTSUPP);
	assert_int_equal(meta_getxattr(m, INODE_ROOT, ACL_NAME_DEFAULT, &p, &n), -EOPNOTSUPP);
	assert_int_equal(meta_removexattr(m, INODE_ROOT, ACL_NAME_ACCESS), -EOPNOTSUPP);
	close_meta(m);
}

static void files_inherit_the_default_rule_of_their_directory(void **state)
{
	struct acl_entry e;
	struct acl rule = rule_for(&e, 7), got;
	uint64_t dir, sub, f;
	struct meta *m;
	struct attr a;
	char *list;
	size_t n;

	(void)state;
	NEED_SERVER();
	acl_volume();
	m = open_redis(NULL);
	dir = make(m, "dir", INODE_DIR);
	assert_int_equal(
		meta_setfacl(m, &root_ctx, make(m, "f", INODE_FILE), ACL_DEFAULT, &rule, &a),
		-EACCES);
	assert_int_equal(meta_setfacl(m, &root_ctx, dir, ACL_DEFAULT, &rule, &a), 0);
	assert_int_equal(a.mode, 0755);
	/* the umask is the rule's */
	assert_int_equal(meta_mknod(m, &root_ctx, dir, "f", INODE_FILE, 02664, 0777, 0, "", &f, &a),
			 0);
	assert_int_equal(a.mode, 02660);
	assert_int_equal(a.default_acl, 0);
	assert_int_equal(meta_getfacl(m, f, ACL_ACCESS, &got), 0);
	assert_int_equal(got.owner, 6);
	assert_int_equal(got.group, 4);
	assert_int_equal(got.mask, 6);
	assert_int_equal(got.other, 0);
	assert_int_equal(got.users[0].perm, 7);
	acl_fini(&got);
	assert_int_equal(
		meta_mknod(m, &root_ctx, dir, "sub", INODE_DIR, 0777, 022, 0, "", &sub, &a), 0);
	assert_int_equal(a.default_acl, attr_of(m, dir).default_acl);
	assert_int_equal(a.mode, 0670);
	assert_int_equal(meta_listxattr(m, sub, &list, &n), 0);
	assert_int_equal(n, sizeof(ACL_NAME_ACCESS) + sizeof(ACL_NAME_DEFAULT));
	free(list);
	/* symlinks and files without a name */
	assert_int_equal(meta_mknod(m, &root_ctx, dir, "l", INODE_SYMLINK, 0777, 0, 0, "t", &f, &a),
			 0);
	assert_int_equal(a.access_acl, 0);
	assert_int_equal(meta_tmpfile(m, &root_ctx, dir, 0600, 0, &f, &a), 0);
	assert_int_equal(a.mode, 0600);
	assert_int_not_equal(a.access_acl, 0);

	/* minimal: only the mode */
	rule.n_users = 0;
	rule.mask = ACL_ABSENT;
	assert_int_equal(meta_setfacl(m, &root_ctx, dir, ACL_DEFAULT, &rule, &a), 0);
	assert_int_equal(meta_mknod(m, &root_ctx, dir, "g", INODE_FILE, 0777, 0777, 0, "", &f, &a),
			 0);
	assert_int_equal(a.mode, 0640);
	assert_int_equal(a.access_acl, 0);
	close_meta(m);
}

/* the caller is no member of the file's group */
static void only_a_new_access_rule_takes_sgid_off(void **state)
{
	struct acl_entry e;
	struct acl rule = rule_for(&e, 7);
	struct attr a, want = {.gid = 7, .mode = 02770};
	struct meta *m;
	uint64_t d;

	(void)state;
	NEED_SERVER();
	acl_volume();
	m = open_redis(NULL);
	d = make_mode(m, &user_ctx, INODE_ROOT, "d", INODE_DIR, 0755);
	assert_int_equal(meta_setattr(m, &root_ctx, d, SET_GID, &want, &a), 0);
	assert_int_equal(meta_setattr(m, &root_ctx, d, SET_MODE, &want, &a), 0);
	assert_int_equal(meta_setfacl(m, &user_ctx, d, ACL_DEFAULT, &rule, &a), 0);
	assert_int_equal(a.mode, 02770);
	assert_int_equal(meta_setfacl(m, &root_ctx, d, ACL_ACCESS, &rule, &a), 0);
	assert_int_equal(a.mode, 02670);
	assert_int_equal(meta_setfacl(m, &user_ctx, d, ACL_ACCESS, NULL, &a), 0);
	assert_int_equal(a.mode, 02670);
	assert_int_equal(meta_setfacl(m, &user_ctx, d, ACL_ACCESS, &rule, &a), 0);
	assert_int_equal(a.mode, 0670);
	close_meta(m);
}

static void chmod_changes_the_rule(void **state)
{
	struct acl_entry e;
	struct acl rule = rule_for(&e, 7), got;
	struct attr a, want = {.mode = 04711};
	struct meta *m;
	uint64_t f;

	(void)state;
	NEED_SERVER();
	acl_volume();
	m = open_redis(NULL);
	f = make(m, "f", INODE_FILE);
	assert_int_equal(meta_setfacl(m, &root_ctx, f, ACL_ACCESS, &rule, &a), 0);
	assert_int_equal(meta_setattr(m, &root_ctx, f, SET_MODE, &want, &a), 0);
	assert_int_equal(a.mode, 04711);
	assert_int_equal(a.access_acl, 2);
	assert_int_equal(meta_getfacl(m, f, ACL_ACCESS, &got), 0);
	assert_int_equal(got.owner, 7);
	assert_int_equal(got.group, 4); /* the mask is changed, not the group */
	assert_int_equal(got.mask, 1);
	assert_int_equal(got.other, 1);
	acl_fini(&got);
	/* and back: the first rule again */
	want.mode = 0670;
	assert_int_equal(meta_setattr(m, &root_ctx, f, SET_MODE, &want, &a), 0);
	assert_int_equal(a.access_acl, 1);
	assert_int_equal(raw_int("HLEN acl"), 2);
	raw_run("DEL acl");
	want.mode = 0600;
	assert_int_equal(meta_setattr(m, &root_ctx, f, SET_MODE, &want, &a), -EIO);
	close_meta(m);
}

/* its owner may, as the kernel says who asks first; JuiceFS does not let him */
static void owner_of_a_sticky_directory_moves_others_out(void **state)
{
	struct meta_ctx asked = user_ctx;
	uint64_t sticky, out, moved;
	struct deleted d = {0};
	struct attr a;

	(void)state;
	NEED_SERVER();
	acl_volume();
	for (int k = 0; k < 2; k++) {
		struct meta *m = k ? open_redis(NULL) : open_mem(1, &d);

		sticky = make_mode(m, &user_ctx, INODE_ROOT, "sticky", INODE_DIR, 01777);
		out = make_mode(m, &user_ctx, INODE_ROOT, "out", INODE_DIR, 0777);
		make_mode(m, &other_ctx, sticky, "dir", INODE_DIR, 0777);
		asked.check = true;
		assert_int_equal(meta_rename(m, &asked, sticky, "dir", out, "dir", 0, &moved, &a),
				 -EACCES);
		assert_int_equal(
			meta_rename(m, &user_ctx, sticky, "dir", out, "dir", 0, &moved, &a), 0);
		close_meta(m);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(equal_rules_are_stored_once),
		cmocka_unit_test(a_volume_without_acls_has_none),
		cmocka_unit_test(files_inherit_the_default_rule_of_their_directory),
		cmocka_unit_test(only_a_new_access_rule_takes_sgid_off),
		cmocka_unit_test(chmod_changes_the_rule),
		cmocka_unit_test(owner_of_a_sticky_directory_moves_others_out),
	};

	return cmocka_run_group_tests(tests, start_server, stop_server);
}
