/* SPDX-License-Identifier: Apache-2.0 */
/* POSIX access control lists: a rule as the volume stores it (docs/format.md §2.13), as the
 * kernel's xattr has it, and what it grants. Pure; decoders take what anybody may have written. */
#ifndef STOKE_CLIENT_META_ACL_H
#define STOKE_CLIENT_META_ACL_H

#include "common/str.h"

enum acl_type { ACL_ACCESS = 1, ACL_DEFAULT = 2 };
enum {
	ACL_ABSENT = 0xffff, /* of a permission: not said; of mask: a minimal rule */
	ACL_ENTRIES_MAX =
		4096, /* named users and groups together: more than 64 KiB of xattr hold none */
};
#define ACL_NAME_ACCESS	 "system.posix_acl_access"
#define ACL_NAME_DEFAULT "system.posix_acl_default"

struct acl_entry {
	uint32_t id;
	uint16_t perm;
};
struct acl {
	uint16_t owner, group, mask, other;
	size_t n_users, n_groups;
	struct acl_entry *users, *groups; /* owned: acl_fini */
};

void acl_fini(struct acl *a);
/* the volume's form; appended to out (str_error tells of memory) */
void acl_encode(const struct acl *a, struct str *out);
/* 0, -EPROTO, -ENOMEM */
int acl_decode(const void *p, size_t n, struct acl *ret);
/* the kernel's xattr form (version 2); -EINVAL, -EOPNOTSUPP (version), -ENOMEM. n 0 or no entries:
 * an empty rule, acl_is_empty */
int acl_from_xattr(const void *p, size_t n, struct acl *ret);
void acl_to_xattr(const struct acl *a, struct str *out);
bool acl_is_empty(const struct acl *a);
/* only owner, group, other: mode bits say it all */
bool acl_is_minimal(const struct acl *a);
/* want: of 4 read, 2 write, 1 execute */
bool acl_grants(const struct acl *a, uint32_t owner_uid, uint32_t owner_gid, uint32_t uid,
		const uint32_t *gids, size_t n_gids, unsigned want);

#endif
