/* SPDX-License-Identifier: Apache-2.0 */
/* What both engines share about ACLs: rules that were seen (a number's rule never changes while the
 * volume is the same), what a caller may do, names for listings. Any thread; the engine's lock.
 *
 * The rules of a volume are few: past RULES_MAX none is remembered any more. */
#include "client/meta/engine.h"

#include "common/hash.h"

enum { RULES_MAX = 16384, RULES_BYTES_MAX = 8 << 20 };

struct rule {
	struct hash_node node;
	uint32_t id;
	size_t len;
	uint8_t text[];
};

static bool rule_eq(const struct hash_node *n, const void *key)
{
	return container_of(n, struct rule, node)->id == *(const uint32_t *)key;
}

static struct hash_node *rule_find_locked(struct meta *m, uint32_t id) REQUIRES(m->lock)
{
	return hashmap_find(&m->rules, hash64(&id, sizeof(id)), rule_eq, &id);
}

static bool rule_free(struct hash_node *n, void *arg)
{
	(void)arg;
	free(container_of(n, struct rule, node));
	return true;
}

void rules_fini(struct meta *m)
{
	if (m->rules.slot)
		hashmap_each(&m->rules, rule_free, NULL);
	hashmap_fini(&m->rules);
}

/* another volume's rules go: it may have given the same numbers to others */
static bool rules_of_locked(struct meta *m, const struct hash128 *volume) REQUIRES(m->lock)
{
	struct hashmap fresh;

	if (!memcmp(&m->rules_volume, volume, sizeof(*volume)) && m->rules.slot)
		return true;
	if (hashmap_init(&fresh, 64))
		return false;
	rules_fini(m);
	m->rules = fresh;
	m->rules_bytes = 0;
	m->rules_volume = *volume;
	return true;
}

int rules_find(struct meta *m, uint32_t id, struct acl *ret)
{
	struct hash_node *n;
	int r = -ENOENT;

	mtx_lock(&m->lock);
	n = rules_of_locked(m, &m->volume) ? rule_find_locked(m, id) : NULL;
	if (n) {
		const struct rule *rule = container_of(n, struct rule, node);

		r = acl_decode(rule->text, rule->len, ret);
	}
	mtx_unlock(&m->lock);
	return r;
}

void rules_add(struct meta *m, const struct hash128 *volume, uint32_t id, const void *p, size_t n)
{
	struct rule *rule = calloc(1, sizeof(*rule) + n);

	if (!rule)
		return; /* asked for again the next time */
	rule->id = id;
	rule->len = n;
	memcpy(rule->text, p, n);
	mtx_lock(&m->lock);
	if (!memcmp(&m->volume, volume, sizeof(*volume)) && rules_of_locked(m, volume) &&
	    !rule_find_locked(m, id) && m->rules.count < RULES_MAX &&
	    m->rules_bytes + n <= RULES_BYTES_MAX) {
		m->rules_bytes += n;
		hashmap_add(&m->rules, &rule->node, hash64(&id, sizeof(id)));
		rule = NULL;
	}
	mtx_unlock(&m->lock);
	free(rule);
}

void acl_names(const struct attr *a, struct str *out)
{
	if (a->access_acl)
		str_addn(out, ACL_NAME_ACCESS, sizeof(ACL_NAME_ACCESS));
	if (a->default_acl)
		str_addn(out, ACL_NAME_DEFAULT, sizeof(ACL_NAME_DEFAULT));
}

static bool of_group(const struct meta_ctx *c, uint32_t gid)
{
	for (size_t i = 0; c->gid != gid && i < c->n_gids; i++) {
		if (c->gids[i] == gid)
			return true;
	}
	return c->gid == gid;
}

static bool mode_grants(const struct attr *a, const struct meta_ctx *c, unsigned want)
{
	unsigned perm = a->mode;

	if (c->uid == a->uid)
		perm >>= 6;
	else if (of_group(c, a->gid))
		perm >>= 3;
	return (perm & want) == want;
}

static int rule_grants(struct meta *m, const struct meta_ctx *c, uint64_t inode,
		       const struct attr *a, unsigned want)
{
	struct acl rule;
	uint32_t *gids;
	bool ok;
	int r = m->ops->getfacl(m, inode, ACL_ACCESS, &rule);

	if (r == -ENODATA)
		return mode_grants(a, c, want) ? 0 : -EACCES;
	if (r)
		return r;
	gids = calloc(c->n_gids + 1, sizeof(*gids));
	if (!gids) {
		acl_fini(&rule);
		return -ENOMEM;
	}
	gids[0] = c->gid;
	for (size_t i = 0; i < c->n_gids; i++)
		gids[i + 1] = c->gids[i];
	ok = acl_grants(&rule, a->uid, a->gid, c->uid, gids, c->n_gids + 1, want);
	free(gids);
	acl_fini(&rule);
	return ok ? 0 : -EACCES;
}

int access_check(struct meta *m, const struct meta_ctx *c, uint64_t inode, const struct attr *a,
		 unsigned want)
{
	want &= 7;
	if (c->uid == 0) {
		bool runs = a->type == INODE_DIR || (a->mode & 0111);

		return (want & ACCESS_EXECUTE) && !runs ? -EACCES : 0;
	}
	/* a mask that lets nothing through: what the rule grants is in the mode already */
	if (a->access_acl && (a->mode & 070) && m->ops->getfacl)
		return rule_grants(m, c, inode, a, want);
	return mode_grants(a, c, want) ? 0 : -EACCES;
}
