/* SPDX-License-Identifier: Apache-2.0 */
/* The engine in memory: ACLs; the rules are those of prelude.lua and setfacl.lua. Any thread. */
#include "client/meta/meta_mem.h"

enum { SGID = 02000 };

struct mem_rule {
	struct list_node link;
	uint32_t id;
	size_t len;
	uint8_t text[];
};

void mem_rules_free(struct meta_mem *mm)
{
	struct list_node *n;

	while ((n = list_pop(&mm->rules)))
		free(container_of(n, struct mem_rule, link));
}

int mem_rule_get_locked(struct meta_mem *mm, uint32_t id, struct acl *ret)
{
	struct list_node *n;

	list_for_each(n, &mm->rules)
	{
		const struct mem_rule *r = container_of(n, struct mem_rule, link);

		if (r->id == id)
			return acl_decode(r->text, r->len, ret);
	}
	return -EIO;
}

int mem_rule_number_locked(struct meta_mem *mm, const struct acl *a, uint32_t *ret)
{
	_cleanup_(str_fini) struct str text = STR_INIT;
	struct mem_rule *rule;
	struct list_node *n;

	acl_encode(a, &text);
	if (str_error(&text))
		return -ENOMEM;
	list_for_each(n, &mm->rules)
	{
		rule = container_of(n, struct mem_rule, link);
		if (rule->len == text.len && !memcmp(rule->text, text.s, text.len)) {
			*ret = rule->id;
			return 0;
		}
	}
	rule = calloc(1, sizeof(*rule) + text.len);
	if (!rule)
		return -ENOMEM;
	rule->id = ++mm->last_rule;
	rule->len = text.len;
	memcpy(rule->text, text.s, text.len);
	list_add_tail(&mm->rules, &rule->link);
	*ret = rule->id;
	return 0;
}

uint16_t mem_rule_mode(const struct acl *a)
{
	unsigned group = acl_is_minimal(a) ? a->group : a->mask;

	return (uint16_t)((a->owner & 7U) << 6 | (group & 7U) << 3 | (a->other & 7U));
}

static void set_perm(uint16_t *perm, unsigned to)
{
	*perm = (uint16_t)((*perm & ~7U) | (to & 7));
}

void mem_rule_chmod(struct acl *a, uint16_t mode)
{
	set_perm(&a->owner, mode >> 6);
	set_perm(acl_is_minimal(a) ? &a->group : &a->mask, mode >> 3);
	set_perm(&a->other, mode);
}

int mem_inherit_locked(struct meta_mem *mm, const struct attr *dir, struct attr *a)
{
	struct acl rule;
	int r = mem_rule_get_locked(mm, dir->default_acl, &rule);

	if (r)
		return r;
	if (a->type == INODE_DIR)
		a->default_acl = dir->default_acl;
	if (acl_is_minimal(&rule)) {
		a->mode &= 07000 | mem_rule_mode(&rule);
	} else {
		rule.owner &= a->mode >> 6 & 7;
		rule.mask &= a->mode >> 3 & 7;
		rule.other &= a->mode & 7;
		r = mem_rule_number_locked(mm, &rule, &a->access_acl);
		a->mode = (uint16_t)((a->mode & 07000) | mem_rule_mode(&rule));
	}
	acl_fini(&rule);
	return r;
}

int mem_getfacl(struct meta *m, uint64_t inode, enum acl_type type, struct acl *ret)
{
	struct meta_mem *mm = mem_engine(m);
	struct mem_inode *i;
	uint32_t id = 0;
	int r = -ENOENT;

	mtx_lock(&mm->lock);
	i = mem_find_locked(mm, inode);
	if (i)
		id = type == ACL_ACCESS ? i->a.access_acl : i->a.default_acl;
	if (i)
		r = id ? mem_rule_get_locked(mm, id, ret) : -ENODATA;
	mtx_unlock(&mm->lock);
	return r;
}

static void perm_of_mode(uint16_t *perm, unsigned mode)
{
	if (*perm == ACL_ABSENT)
		*perm = mode & 7;
}

static int set_rule_locked(struct meta_mem *mm, const struct attr *cur, enum acl_type type,
			   const struct acl *rule, struct attr *a) REQUIRES(mm->lock)
{
	uint32_t *id = type == ACL_ACCESS ? &a->access_acl : &a->default_acl;
	struct acl full;

	if (!rule) {
		*id = 0;
		return 0;
	}
	if (type == ACL_DEFAULT && cur->type != INODE_DIR)
		return -EACCES;
	full = *rule; /* lists stay the caller's */
	perm_of_mode(&full.owner, a->mode >> 6);
	perm_of_mode(&full.group, a->mode >> 3);
	perm_of_mode(&full.other, a->mode);
	if (type == ACL_ACCESS) {
		a->mode = (uint16_t)((a->mode & 07000) | mem_rule_mode(&full));
		if (acl_is_minimal(&full)) {
			*id = 0;
			return 0;
		}
	}
	return mem_rule_number_locked(mm, &full, id);
}

static bool of_group(const struct meta_ctx *c, uint32_t gid)
{
	for (size_t i = 0; i < c->n_gids; i++) {
		if (c->gids[i] == gid)
			return true;
	}
	return c->gid == gid;
}

static int setfacl_locked(struct meta_mem *mm, struct mem_inode *i, const struct meta_ctx *c,
			  enum acl_type type, const struct acl *rule) REQUIRES(mm->lock)
{
	struct attr a = i->a;
	int r;

	if ((c->uid != 0 && c->uid != a.uid) || a.parent > INODE_TRASH ||
	    (a.flags & (ATTR_APPEND | ATTR_IMMUTABLE)))
		return -EPERM;
	if (type == ACL_ACCESS && rule && c->uid != 0 && !of_group(c, a.gid))
		a.mode &= (uint16_t)~SGID;
	r = set_rule_locked(mm, &i->a, type, rule, &a);
	if (r)
		return r;
	if (a.access_acl != i->a.access_acl || a.default_acl != i->a.default_acl ||
	    a.mode != i->a.mode)
		a.ctime = time_now();
	i->a = a;
	return 0;
}

int mem_setfacl(struct meta *m, const struct meta_ctx *c, uint64_t inode, enum acl_type type,
		const struct acl *rule, struct attr *ret)
{
	struct meta_mem *mm = mem_engine(m);
	struct mem_inode *i;
	int r = -ENOENT;

	mtx_lock(&mm->lock);
	i = mem_find_locked(mm, inode);
	if (i)
		r = setfacl_locked(mm, i, c, type, rule);
	if (!r)
		*ret = i->a;
	mtx_unlock(&mm->lock);
	return r;
}
