/* SPDX-License-Identifier: Apache-2.0 */
/* POSIX access control lists: the volume's form, the kernel's form, and what a rule grants. Pure.
 *
 * The volume's form is big-endian: owner, group, mask, other (16 bits each), then named users and
 * named groups, each list with its number in front (32 bits) and 6 bytes an entry. The kernel's is
 * little-endian: its version, then 8 bytes an entry (linux/posix_acl_xattr.h). */
#include "client/meta/acl.h"

enum {
	HEAD_LEN = 8,
	ENTRY_BYTES = 6,
	PERM_ALL = 7,
	XATTR_VERSION = 2,
	XATTR_HEAD = 4,
	XATTR_ENTRY = 8,
	XATTR_ENTRIES_MAX = 65536 / XATTR_ENTRY,
};
#define NO_ID UINT32_MAX

enum tag {
	TAG_USER_OBJ = 0x01,
	TAG_USER = 0x02,
	TAG_GROUP_OBJ = 0x04,
	TAG_GROUP = 0x08,
	TAG_MASK = 0x10,
	TAG_OTHER = 0x20
};

void acl_fini(struct acl *a)
{
	free(a->users);
	free(a->groups);
	*a = (struct acl){0};
}

static void add16(struct str *out, uint16_t v)
{
	const uint8_t b[2] = {(uint8_t)(v >> 8), (uint8_t)v};

	str_addn(out, b, 2);
}

static void add32(struct str *out, uint32_t v)
{
	add16(out, (uint16_t)(v >> 16));
	add16(out, (uint16_t)v);
}

static uint16_t get16(const uint8_t *p)
{
	return (uint16_t)(p[0] << 8 | p[1]);
}

static uint32_t get32(const uint8_t *p)
{
	return (uint32_t)get16(p) << 16 | get16(p + 2);
}

static void entries_encode(const struct acl_entry *e, size_t n, struct str *out)
{
	add32(out, (uint32_t)n);
	for (size_t i = 0; i < n; i++) {
		add32(out, e[i].id);
		add16(out, e[i].perm);
	}
}

void acl_encode(const struct acl *a, struct str *out)
{
	add16(out, a->owner);
	add16(out, a->group);
	add16(out, a->mask);
	add16(out, a->other);
	entries_encode(a->users, a->n_users, out);
	entries_encode(a->groups, a->n_groups, out);
}

/* one list at *p; *p and *n move behind it */
static int entries_decode(const uint8_t **p, size_t *n, struct acl_entry **ret, size_t *ret_n)
{
	struct acl_entry *e = NULL;
	size_t count;

	if (*n < 4)
		return -EPROTO;
	count = get32(*p);
	*p += 4;
	*n -= 4;
	if (count > ACL_ENTRIES_MAX || count * ENTRY_BYTES > *n)
		return -EPROTO;
	if (count) {
		e = calloc(count, sizeof(*e));
		if (!e)
			return -ENOMEM;
	}
	for (size_t i = 0; i < count; i++)
		e[i] = (struct acl_entry){.id = get32(*p + i * ENTRY_BYTES),
					  .perm = get16(*p + i * ENTRY_BYTES + 4)};
	*p += count * ENTRY_BYTES;
	*n -= count * ENTRY_BYTES;
	*ret = e;
	*ret_n = count;
	return 0;
}

int acl_decode(const void *data, size_t n, struct acl *ret)
{
	const uint8_t *p = data;
	struct acl a = {0};
	int r;

	if (n < HEAD_LEN)
		return -EPROTO;
	a.owner = get16(p);
	a.group = get16(p + 2);
	a.mask = get16(p + 4);
	a.other = get16(p + 6);
	p += HEAD_LEN;
	n -= HEAD_LEN;
	r = entries_decode(&p, &n, &a.users, &a.n_users);
	if (!r)
		r = entries_decode(&p, &n, &a.groups, &a.n_groups);
	if (!r && (n || a.n_users + a.n_groups > ACL_ENTRIES_MAX))
		r = -EPROTO;
	if (r) {
		acl_fini(&a);
		return r;
	}
	*ret = a;
	return 0;
}

static uint32_t le(const uint8_t *p, unsigned bytes)
{
	uint32_t v = 0;

	while (bytes--)
		v = v << 8 | p[bytes];
	return v;
}

/* Tags come in ascending order, as the kernel demands of everybody: owner, named users, group,
 * named groups, mask, other. */
static int from_entry(struct acl *a, unsigned tag, unsigned perm, uint32_t id)
{
	uint16_t *one = NULL;

	if (perm > PERM_ALL)
		return -EINVAL;
	switch (tag) {
	case TAG_USER:
	case TAG_GROUP:
		if (id == NO_ID)
			return -EINVAL;
		if (tag == TAG_USER)
			a->users[a->n_users++] = (struct acl_entry){id, (uint16_t)perm};
		else
			a->groups[a->n_groups++] = (struct acl_entry){id, (uint16_t)perm};
		return 0;
	case TAG_USER_OBJ:
		one = &a->owner;
		break;
	case TAG_GROUP_OBJ:
		one = &a->group;
		break;
	case TAG_MASK:
		one = &a->mask;
		break;
	case TAG_OTHER:
		one = &a->other;
		break;
	default:
		break;
	}
	if (!one || *one != ACL_ABSENT)
		return -EINVAL;
	*one = (uint16_t)perm;
	return 0;
}

static int from_entries(const uint8_t *p, size_t n, struct acl *a)
{
	unsigned last = 0;

	for (size_t i = 0; i < n; i++, p += XATTR_ENTRY) {
		unsigned tag = le(p, 2);
		int r = tag < last ? -EINVAL : from_entry(a, tag, le(p + 2, 2), le(p + 4, 4));

		if (r)
			return r;
		last = tag;
	}
	if (a->owner == ACL_ABSENT || a->group == ACL_ABSENT || a->other == ACL_ABSENT)
		return -EINVAL;
	/* who names somebody needs a mask */
	if (a->mask == ACL_ABSENT && a->n_users + a->n_groups)
		return -EINVAL;
	return a->n_users + a->n_groups > ACL_ENTRIES_MAX ? -EINVAL : 0;
}

int acl_from_xattr(const void *data, size_t n, struct acl *ret)
{
	static const struct acl empty = {
		.owner = ACL_ABSENT, .group = ACL_ABSENT, .mask = ACL_ABSENT, .other = ACL_ABSENT};
	const uint8_t *p = data;
	struct acl a = empty;
	size_t count;
	int r;

	if (n == 0) {
		*ret = empty;
		return 0;
	}
	if (n < XATTR_HEAD)
		return -EINVAL;
	if (le(p, 4) != XATTR_VERSION)
		return -EOPNOTSUPP;
	count = (n - XATTR_HEAD) / XATTR_ENTRY;
	if ((n - XATTR_HEAD) % XATTR_ENTRY || count > XATTR_ENTRIES_MAX)
		return -EINVAL;
	if (count == 0) {
		*ret = empty;
		return 0;
	}
	a.users = calloc(count, sizeof(*a.users));
	a.groups = calloc(count, sizeof(*a.groups));
	r = a.users && a.groups ? from_entries(p + XATTR_HEAD, count, &a) : -ENOMEM;
	if (r) {
		acl_fini(&a);
		return r;
	}
	*ret = a;
	return 0;
}

static void add_entry(struct str *out, unsigned tag, unsigned perm, uint32_t id)
{
	const uint8_t b[XATTR_ENTRY] = {(uint8_t)tag,	     0,
					(uint8_t)perm,	     (uint8_t)(perm >> 8),
					(uint8_t)id,	     (uint8_t)(id >> 8),
					(uint8_t)(id >> 16), (uint8_t)(id >> 24)};

	str_addn(out, b, sizeof(b));
}

void acl_to_xattr(const struct acl *a, struct str *out)
{
	static const uint8_t head[XATTR_HEAD] = {XATTR_VERSION, 0, 0, 0};

	str_addn(out, head, sizeof(head));
	if (a->owner != ACL_ABSENT)
		add_entry(out, TAG_USER_OBJ, a->owner, NO_ID);
	for (size_t i = 0; i < a->n_users; i++)
		add_entry(out, TAG_USER, a->users[i].perm, a->users[i].id);
	if (a->group != ACL_ABSENT)
		add_entry(out, TAG_GROUP_OBJ, a->group, NO_ID);
	for (size_t i = 0; i < a->n_groups; i++)
		add_entry(out, TAG_GROUP, a->groups[i].perm, a->groups[i].id);
	if (a->mask != ACL_ABSENT)
		add_entry(out, TAG_MASK, a->mask, NO_ID);
	if (a->other != ACL_ABSENT)
		add_entry(out, TAG_OTHER, a->other, NO_ID);
}

bool acl_is_empty(const struct acl *a)
{
	return a->owner == ACL_ABSENT && a->group == ACL_ABSENT && a->mask == ACL_ABSENT &&
	       a->other == ACL_ABSENT && a->n_users + a->n_groups == 0;
}

bool acl_is_minimal(const struct acl *a)
{
	return a->mask == ACL_ABSENT && a->n_users + a->n_groups == 0;
}

static bool has(unsigned perm, unsigned want)
{
	return (perm & want) == want;
}

static bool member(uint32_t gid, const uint32_t *gids, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (gids[i] == gid)
			return true;
	}
	return false;
}

/* POSIX 1003.1e's algorithm: the first class that the caller is of decides; among groups any one
 * that grants all is enough */
bool acl_grants(const struct acl *a, uint32_t owner_uid, uint32_t owner_gid, uint32_t uid,
		const uint32_t *gids, size_t n_gids, unsigned want)
{
	unsigned mask = a->mask; /* absent: all bits, it takes nothing away */
	bool of_group = false;

	want &= PERM_ALL;
	if (uid == owner_uid)
		return has(a->owner, want);
	for (size_t i = 0; i < a->n_users; i++) {
		if (a->users[i].id == uid)
			return has(a->users[i].perm & mask, want);
	}
	if (member(owner_gid, gids, n_gids)) {
		if (has(a->group & mask, want))
			return true;
		of_group = true;
	}
	for (size_t i = 0; i < a->n_groups; i++) {
		if (!member(a->groups[i].id, gids, n_gids))
			continue;
		if (has(a->groups[i].perm & mask, want))
			return true;
		of_group = true;
	}
	return !of_group && has(a->other, want);
}
