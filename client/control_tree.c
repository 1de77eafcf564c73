/* SPDX-License-Identifier: Apache-2.0 */
/* The work runs in one thread more, so that the request's own can tell of its progress and see that
 * its asker went away: then the work is told to stop. */
#include "client/control_tree.h"

#include <inttypes.h>

#include "client/maint/compact_lists.h"
#include "client/maint/dump_text.h"
#include "client/maint/inspect.h"
#include "client/vfs.h"
#include "client/warm.h"
#include "common/parse.h"
#include "common/thread.h"

enum { WORDS_MAX = 9, THREADS_MAX = 64, DEPTH_MAX = 10, ENTRIES_MAX = 100, TICK_US = 200000 };

/* --- requests --- */

static bool number(const char *text, uint64_t max, uint64_t *ret)
{
	return text && parse_u64(text, max, ret) == 0;
}

static bool flag(const char *text, bool *ret)
{
	uint64_t v;

	if (!number(text, 1, &v))
		return false;
	*ret = v == 1;
	return true;
}

static bool name_of(const char *text, struct str *ret)
{
	str_add(ret, text ? text : "");
	if (str_error(ret) < 0 || ret->len == 0)
		return false;
	ret->len = dump_unescape(ret->s, ret->len);
	ret->s[ret->len] = '\0';
	return true;
}

static bool arguments(struct tree_ask *a, const char *const *w)
{
	uint64_t depth, entries, mask;

	switch (a->verb) {
	case TREE_INSPECT:
		return number(w[1], UINT64_MAX, &a->inode) && flag(w[2], &a->recursive) &&
		       flag(w[3], &a->raw) && !w[4];
	case TREE_SUMMARY:
		if (!number(w[1], UINT64_MAX, &a->inode) || !number(w[2], DEPTH_MAX, &depth) ||
		    !number(w[3], ENTRIES_MAX, &entries) || w[4])
			return false;
		a->depth = (unsigned)depth;
		a->entries = (unsigned)entries;
		return true;
	case TREE_REMOVE:
		return flag(w[1], &a->skip_trash) && number(w[2], UINT64_MAX, &a->inode) &&
		       name_of(w[3], &a->name) && !w[4];
	case TREE_CLONE:
		if (!number(w[1], UINT64_MAX, &a->src) || !flag(w[2], &a->preserve) ||
		    !number(w[3], 07777, &mask) || !number(w[4], UINT64_MAX, &a->inode))
			return false;
		a->umask = (uint32_t)mask;
		return name_of(w[5], &a->name) && !w[6];
	default:
		return number(w[1], UINT64_MAX, &a->inode) && !w[2];
	}
}

int tree_ask_parse(const char *line, struct tree_ask **ret)
{
	static const char *const verbs[] = {[TREE_INSPECT] = "inspect",
					    [TREE_SUMMARY] = "summary",
					    [TREE_REMOVE] = "rmr",
					    [TREE_CLONE] = "clone",
					    [TREE_COMPACT] = "compact"};
	_cleanup_(freep) char *copy = strdup(line);
	const char *w[WORDS_MAX + 1] = {NULL};
	struct tree_ask *a;
	char *save;
	size_t n = 0, verb = 0;
	uint64_t threads = 0;

	*ret = NULL;
	if (!copy)
		return -ENOMEM;
	for (char *t = strtok_r(copy, " ", &save); t; t = strtok_r(NULL, " ", &save)) {
		if (n == WORDS_MAX)
			return -EINVAL;
		w[n++] = t;
	}
	if (n > 2 && !strcmp(w[0], "threads")) {
		if (!number(w[1], THREADS_MAX, &threads))
			return -EINVAL;
		memmove(w, w + 2, sizeof(w) - 2 * sizeof(w[0]));
		n -= 2;
	}
	while (n && verb < ARRAY_LEN(verbs) && strcmp(w[0], verbs[verb]) != 0)
		verb++;
	if (n == 0 || verb == ARRAY_LEN(verbs))
		return 0;
	a = calloc(1, sizeof(*a));
	if (!a)
		return -ENOMEM;
	a->verb = (enum tree_verb)verb;
	a->threads = (unsigned)threads;
	if (!arguments(a, w)) {
		tree_ask_free(a);
		return -EINVAL;
	}
	*ret = a;
	return 0;
}

void tree_ask_free(struct tree_ask *a)
{
	if (!a)
		return;
	str_fini(&a->name);
	free(a);
}

/* --- the work --- */

struct work {
	struct control *c;
	const struct tree_ask *ask;
	struct meta_progress progress;
	struct mtx lock;
	struct cond ended;
	bool over;
	int result;
	uint64_t chunks;
};

static void emit(void *arg, const char *line)
{
	control_text(arg, line);
}

static int remove_it(struct work *w)
{
	const struct control_conf *conf = w->c->conf;
	const struct tree_ask *a = w->ask;
	int r = meta_remove_tree(conf->meta, &w->c->who, a->inode, a->name.s, a->skip_trash,
				 &w->progress);

	/* also when it was not finished */
	if (conf->vfs)
		vfs_changed_inside(conf->vfs, a->inode, a->name.s);
	return r;
}

static int clone_it(struct work *w)
{
	const struct control_conf *conf = w->c->conf;
	const struct tree_ask *a = w->ask;
	int r = meta_clone(conf->meta, &w->c->who, a->src, a->inode, a->name.s, a->preserve,
			   a->umask, &w->progress);

	if (conf->vfs)
		vfs_changed_inside(conf->vfs, a->inode, a->name.s);
	return r;
}

static int work(struct work *w)
{
	const struct tree_ask *a = w->ask;
	struct meta *m = w->c->conf->meta;

	switch (a->verb) {
	case TREE_INSPECT:
		return meta_inspect(m, a->inode, a->recursive, a->raw, &w->progress, emit, w->c);
	case TREE_SUMMARY:
		return meta_summary(m, a->inode, a->depth, a->entries, &w->progress, emit, w->c);
	case TREE_REMOVE:
		return remove_it(w);
	case TREE_CLONE:
		return clone_it(w);
	default:
		return meta_compact_tree(m, a->inode, &w->progress, &w->chunks);
	}
}

static void *work_main(void *arg)
{
	struct work *w = arg;
	int r = work(w);

	mtx_lock(&w->lock);
	w->result = r;
	w->over = true;
	cond_signal(&w->ended);
	mtx_unlock(&w->lock);
	return NULL;
}

static void watch(struct work *w)
{
	bool over = false;

	while (!over) {
		mtx_lock(&w->lock);
		if (!w->over)
			(void)cond_wait_us(&w->ended, &w->lock, TICK_US);
		over = w->over;
		mtx_unlock(&w->lock);
		if (over)
			return;
		if (control_closed(w->c))
			__atomic_store_n(&w->progress.cancel, 1, __ATOMIC_RELAXED);
		control_say(w->c, false, "progress %" PRIu64 " %" PRIu64 "\n",
			    __atomic_load_n(&w->progress.files, __ATOMIC_RELAXED),
			    __atomic_load_n(&w->progress.bytes, __ATOMIC_RELAXED));
	}
}

void tree_run(struct control *c, const struct tree_ask *a)
{
	struct work w = {.c = c, .ask = a, .progress.threads = a->threads};
	pthread_t thread;
	int r;

	mtx_init(&w.lock);
	cond_init(&w.ended);
	r = thread_start("tree", work_main, &w, &thread);
	if (r == 0) {
		watch(&w);
		(void)pthread_join(thread, NULL);
		r = w.result;
	}
	if (r)
		control_say(c, true, "failed %d\n", -r);
	else
		control_say(c, true, "done %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", w.progress.files,
			    w.progress.bytes, w.chunks);
	cond_fini(&w.ended);
	mtx_fini(&w.lock);
}
