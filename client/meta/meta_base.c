/* SPDX-License-Identifier: Apache-2.0 */
/* What both engines embed: configuration, the setting and its successors, generation and volume id.
 * Any thread; the engine's lock.
 *
 * A setting that was replaced lives on until the engine ends: meta_setting() hands out plain
 * pointers. */
#include "client/meta/engine.h"

#include <time.h>

static char *text_copy(const char *s)
{
	return s ? strdup(s) : NULL;
}

int meta_init(struct meta *m, const struct meta_ops *ops, const struct meta_conf *conf,
	      struct setting *s)
{
	*m = (struct meta){.ops = ops, .conf = *conf, .setting = s};
	mtx_init(&m->lock);
	m->root = INODE_ROOT;
	m->conf.subdir = text_copy(conf->subdir);
	m->conf.mount_point = text_copy(conf->mount_point);
	if ((conf->mount_point && !m->conf.mount_point) || (conf->subdir && !m->conf.subdir))
		return -ENOMEM;
	return hashmap_init(&m->open, 64);
}

static bool free_node(struct hash_node *n, void *arg)
{
	(void)arg;
	free(n); /* the node is a struct open_file's first member */
	return true;
}

void meta_fini(struct meta *m)
{
	if (m->open.slot)
		hashmap_each(&m->open, free_node, NULL);
	hashmap_fini(&m->open);
	rules_fini(m);
	for (unsigned i = 0; i < m->n_retired; i++)
		setting_free(m->retired[i]);
	setting_free(m->setting);
	free((void *)(uintptr_t)m->conf.mount_point);
	free((void *)(uintptr_t)m->conf.subdir);
	mtx_fini(&m->lock);
}

bool meta_swap_setting(struct meta *m, struct setting *s)
{
	bool ok;

	mtx_lock(&m->lock);
	ok = m->n_retired < SETTINGS_MAX;
	if (ok) {
		m->retired[m->n_retired++] = m->setting;
		m->setting = s;
	}
	mtx_unlock(&m->lock);
	return ok;
}

void meta_set_generation_locked(struct meta *m, const struct generation *gen,
				const struct hash128 *volume)
{
	m->gen = *gen;
	m->has_gen = true;
	m->volume = *volume;
}

void meta_set_generation(struct meta *m, const struct generation *gen)
{
	struct hash128 id = volume_id(m->setting->uuid, gen);

	mtx_lock(&m->lock);
	meta_set_generation_locked(m, gen, &id);
	mtx_unlock(&m->lock);
}

const struct setting *meta_setting(const struct meta *m)
{
	struct meta *w = (struct meta *)(uintptr_t)m;
	const struct setting *s;

	mtx_lock(&w->lock);
	s = m->setting;
	mtx_unlock(&w->lock);
	return s;
}

struct hash128 meta_volume_id(struct meta *m)
{
	struct hash128 id;

	mtx_lock(&m->lock);
	id = m->volume;
	mtx_unlock(&m->lock);
	return id;
}

bool meta_has_generation(const struct meta *m)
{
	struct meta *w = (struct meta *)(uintptr_t)m;
	bool has;

	mtx_lock(&w->lock);
	has = m->has_gen;
	mtx_unlock(&w->lock);
	return has;
}

uint64_t meta_session_id(const struct meta *m)
{
	return session_now(m);
}

void meta_set_delete(struct meta *m, meta_delete_fn *fn, void *arg)
{
	m->delete_fn = fn;
	m->delete_arg = arg;
}

void meta_set_compact(struct meta *m, meta_compact_fn *fn, void *arg)
{
	m->compact_fn = fn;
	m->compact_arg = arg;
}

void meta_set_lapsed(struct meta *m, void (*fn)(void *arg), void *arg)
{
	mtx_lock(&m->lock);
	m->lapsed = fn;
	m->lapsed_arg = arg;
	mtx_unlock(&m->lock);
}

void meta_set_changed(struct meta *m, void (*fn)(void *arg, bool gone), void *arg)
{
	m->changed = fn;
	m->changed_arg = arg;
}

void meta_set_configured(struct meta *m,
			 void (*fn)(void *arg, const struct setting *old, const struct setting *s),
			 void *arg)
{
	m->configured_arg = arg;
	m->configured = fn;
}

void trash_hour_name(struct meta *m, uint64_t parent, int64_t now_sec, char ret[16])
{
	time_t t = (time_t)now_sec;
	struct tm tm;

	ret[0] = '\0';
	if (parent >= INODE_TRASH || meta_setting(m)->trash_days == 0 || !gmtime_r(&t, &tm))
		return;
	if (strftime(ret, 16, "%Y-%m-%d-%H", &tm) == 0)
		ret[0] = '\0';
}

void meta_limits(struct meta *m, uint64_t *ret_capacity, uint64_t *ret_inodes, bool *ret_dir_stats)
{
	const struct setting *s = meta_setting(m);

	*ret_capacity = s->capacity;
	*ret_inodes = s->inodes;
	*ret_dir_stats = s->dir_stats;
}

void meta_fill_statfs(struct meta *m, uint64_t used, uint64_t inodes, struct meta_statfs *ret)
{
	const struct setting *s = meta_setting(m);
	uint64_t total = s->capacity, avail_inodes;

	/* without a limit there is always room: JuiceFS's way of showing it */
	if (!total) {
		for (total = UINT64_C(1) << 50; total / 10 * 8 < used && total < UINT64_C(1) << 62;)
			total *= 2;
	}
	if (s->inodes) {
		avail_inodes = s->inodes > inodes ? s->inodes - inodes : 0;
	} else {
		for (avail_inodes = 10 << 20;
		     avail_inodes * 4 < inodes && avail_inodes < UINT64_C(1) << 60;)
			avail_inodes *= 2;
	}
	*ret = (struct meta_statfs){
		.total_bytes = total,
		.avail_bytes = total > used ? total - used : 0,
		.used_inodes = inodes,
		.avail_inodes = avail_inodes,
	};
}

int meta_fallocate_mode(int mode)
{
	enum { KEEP = 1, PUNCH = 2, COLLAPSE = 8, ZERO = 16, INSERT = 32 };

	switch (mode) {
	case 0:
	case KEEP:
	case PUNCH | KEEP:
	case ZERO:
	case ZERO | KEEP:
		return 0;
	case PUNCH:
	case PUNCH | ZERO:
	case PUNCH | ZERO | KEEP:
		return -EINVAL;
	default: /* collapse, insert, and what the kernel may invent */
		return mode & (COLLAPSE | INSERT) && mode & (mode - 1) ? -EINVAL : -EOPNOTSUPP;
	}
}
