/* SPDX-License-Identifier: Apache-2.0 */
/* A walk in the order of the keys: the names of one directory are sorted with a '/' behind those of
 * directories, which makes the order of a depth-first walk the order of the full keys. Subtrees
 * that cannot hold a wanted key are not opened. Blocks; one thread a call. */
#include "common/object/object_file_list.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>

enum { MAX_LIST = 1000, MAX_DEPTH = 64 };

struct walk {
	const char *root, *prefix, *after;
	struct object_req *req;
	unsigned depth;
};

struct names {
	char **name;
	size_t n, cap;
};

static void names_fini(struct names *v)
{
	for (size_t i = 0; i < v->n; i++)
		free(v->name[i]);
	free(v->name);
}

static int names_add(struct names *v, const char *name, bool is_dir)
{
	size_t len = strlen(name);
	char *copy;

	if (v->n == v->cap) {
		size_t cap = v->cap ? 2 * v->cap : 64;
		char **grown = reallocarray(v->name, cap, sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		v->name = grown;
		v->cap = cap;
	}
	copy = malloc(len + 2);
	if (!copy)
		return -ENOMEM;
	memcpy(copy, name, len);
	copy[len] = is_dir ? '/' : '\0';
	copy[len + 1] = '\0';
	v->name[v->n++] = copy;
	return 0;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool is_temporary(const char *name)
{
	return name[0] == '.' && strstr(name, ".tmp.");
}

static int names_read(struct names *v, const char *dir)
{
	DIR *d = opendir(dir);
	int r = 0;

	if (!d)
		return errno == ENOENT || errno == ENOTDIR ? 0 : -errno;
	while (r == 0) {
		struct dirent *e;
		struct stat st;
		bool is_dir;

		errno = 0;
		e = readdir(d);
		if (!e) {
			r = -errno;
			break;
		}
		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
		    is_temporary(e->d_name))
			continue;
		is_dir = e->d_type == DT_DIR;
		if (e->d_type == DT_UNKNOWN || e->d_type == DT_LNK) {
			if (fstatat(dirfd(d), e->d_name, &st, 0) < 0)
				continue;
			is_dir = S_ISDIR(st.st_mode);
		}
		r = names_add(v, e->d_name, is_dir);
	}
	closedir(d);
	if (r == 0 && v->n)
		qsort(v->name, v->n, sizeof(*v->name), by_name);
	return r;
}

static bool has_prefix(const char *s, const char *prefix)
{
	return strncmp(s, prefix, strlen(prefix)) == 0;
}

/* may a key that begins with dir ("a/b/") be wanted? */
static bool may_hold(const struct walk *w, const char *dir)
{
	if (!has_prefix(dir, w->prefix) && !has_prefix(w->prefix, dir))
		return false;
	return strcmp(dir, w->after) >= 0 || has_prefix(w->after, dir);
}

static int add_file(struct walk *w, const char *key)
{
	struct object_req *req = w->req;
	char path[PATH_MAX];
	struct stat st;
	char *copy;

	if (!has_prefix(key, w->prefix) || strcmp(key, w->after) <= 0)
		return 0;
	if (snprintf(path, sizeof(path), "%s%s", w->root, key) >= PATH_MAX)
		return -ENAMETOOLONG;
	if (stat(path, &st) < 0 || !S_ISREG(st.st_mode))
		return 0; /* deleted meanwhile */
	if (req->n_list == MAX_LIST) {
		req->more = true;
		return 0;
	}
	copy = strdup(key);
	if (!copy)
		return -ENOMEM;
	req->list[req->n_list++] = (struct object_info){
		.key = copy,
		.size = (uint64_t)st.st_size,
		.mtime = st.st_mtim.tv_sec,
	};
	return 0;
}

/* NOLINTNEXTLINE(misc-no-recursion): MAX_DEPTH bounds it */
static int walk_dir(struct walk *w, const char *dir)
{
	_cleanup_(names_fini) struct names v = {.n = 0};
	char key[PATH_MAX];
	int r;

	if (snprintf(key, sizeof(key), "%s%s", w->root, dir) >= PATH_MAX)
		return -ENAMETOOLONG;
	r = names_read(&v, key);
	for (size_t i = 0; r == 0 && i < v.n && !w->req->more; i++) {
		int n = snprintf(key, sizeof(key), "%s%s", dir, v.name[i]);

		if (n >= PATH_MAX)
			return -ENAMETOOLONG;
		if (key[n - 1] != '/') {
			r = add_file(w, key);
		} else if (may_hold(w, key)) {
			if (++w->depth > MAX_DEPTH)
				return -ELOOP;
			r = walk_dir(w, key);
			w->depth--;
		}
	}
	return r;
}

int object_file_list(const char *root, struct object_req *req)
{
	struct walk w = {
		.root = root,
		.prefix = req->key,
		.after = req->start_after ? req->start_after : "",
		.req = req,
	};
	int r;

	if (access(root, F_OK) < 0)
		return -errno;
	req->list = calloc(MAX_LIST, sizeof(*req->list));
	if (!req->list)
		return -ENOMEM;
	r = walk_dir(&w, "");
	if (r < 0)
		object_list_free(req);
	return r;
}
