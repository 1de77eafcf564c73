/* SPDX-License-Identifier: Apache-2.0 */
/* The group's secret and the certificates, swapped whole under a leaf lock. Threads: loops look the
 * secret up for a handshake (microseconds); files are read by a thread that may block. */
#include "common/block/keys.h"

#include <ctype.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "common/log.h"

struct keys {
	struct keys_conf conf;
	struct stat seen[4]; /* keys_look's thread: the files as they were read */
	struct mtx lock;
	struct secret secret GUARDED_BY(lock);
	struct tls_ctx *tls GUARDED_BY(lock);
};

/* --- secrets --- */

static int secret_read(const char *file, char *buf, size_t cap, size_t *ret_n, struct str *err)
{
	_cleanup_(closep) int fd = open(file, O_RDONLY | O_CLOEXEC | O_NOCTTY);
	struct stat st;
	size_t n = 0;

	if (fd < 0 || fstat(fd, &st) < 0) {
		int e = errno;

		str_addf(err, "group secret %s: %s", file, strerror(e));
		return -e;
	}
	if (st.st_mode & S_IRWXO) {
		str_addf(err, "group secret %s can be read by others: chmod o= %s", file, file);
		return -EACCES;
	}
	while (n < cap) {
		ssize_t r = read(fd, buf + n, cap - n);

		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0) {
			int e = errno;

			str_addf(err, "group secret %s: %s", file, strerror(e));
			return -e;
		}
		if (r == 0)
			break;
		n += (size_t)r;
	}
	*ret_n = n;
	return 0;
}

static int secret_take(const char *from, const char *p, size_t n, struct secret *ret,
		       struct str *err)
{
	if (n < SECRET_MIN || n > SECRET_MAX) {
		str_addf(err,
			 "group secret (%s) must have %d to %d bytes; make one with: head -c "
			 "32 /dev/urandom | base64",
			 from, SECRET_MIN, SECRET_MAX);
		return -EINVAL;
	}
	ret->b = malloc(n);
	if (!ret->b)
		return -ENOMEM;
	memcpy(ret->b, p, n);
	ret->len = n;
	return 0;
}

/* one a line */
static int secret_split(const char *from, const char *p, size_t n, struct secret *ret,
			struct str *err)
{
	struct secret *at = ret;
	unsigned lines = 0;
	int r = 0;

	for (size_t end; r == 0 && n > 0; p += end, n -= end) {
		const char *nl = memchr(p, '\n', n);
		size_t from_c = 0, to = nl ? (size_t)(nl - p) : n;

		end = nl ? to + 1 : n;
		while (from_c < to && isspace((unsigned char)p[from_c]))
			from_c++;
		while (to > from_c && isspace((unsigned char)p[to - 1]))
			to--;
		if (from_c == to)
			continue;
		if (++lines > SECRETS_MAX) {
			str_addf(err, "group secret (%s): at most %d lines, the one to use first",
				 from, SECRETS_MAX);
			return -EINVAL;
		}
		if (lines > 1) {
			at->next = calloc(1, sizeof(*at));
			at = at->next;
		}
		r = at ? secret_take(from, p + from_c, to - from_c, at, err) : -ENOMEM;
	}
	return r == 0 && lines == 0 ? secret_take(from, p, 0, ret, err) : r;
}

int secret_load(const char *file, struct secret *ret, struct str *err)
{
	char buf[SECRETS_MAX * (SECRET_MAX + 2) + 1];
	const char *from = file ? file : "STOKE_GROUP_SECRET";
	struct secret s = {0};
	size_t n = 0;
	int r = 0;

	if (file) {
		r = secret_read(file, buf, sizeof(buf), &n, err);
	} else {
		const char *env = getenv("STOKE_GROUP_SECRET");

		if (!env) {
			str_add(err, "a group over TCP needs a secret: give --group-secret-file or "
				     "the environment variable STOKE_GROUP_SECRET");
			return -ENOENT;
		}
		n = strnlen(env, sizeof(buf));
		memcpy(buf, env, n);
	}
	if (r == 0)
		r = secret_split(from, buf, n, &s, err);
	if (r == 0)
		*ret = s;
	else
		secret_fini(&s);
	explicit_bzero(buf, sizeof(buf));
	return r;
}

void secret_fini(struct secret *s)
{
	struct secret *next = s->next;

	if (s->b)
		explicit_bzero(s->b, s->len);
	free(s->b);
	*s = (struct secret){0};
	if (!next)
		return;
	secret_fini(next); /* SECRETS_MAX deep */
	free(next);
}

bool secret_eq(const struct secret *a, const struct secret *b)
{
	for (; a && b; a = a->next, b = b->next)
		if (a->len != b->len || (a->len && memcmp(a->b, b->b, a->len) != 0))
			return false;
	return a == b;
}

/* --- all of it --- */

static const char *keys_file(const struct keys *k, unsigned i)
{
	const char *const files[] = {k->conf.secret_file, k->conf.tls.cert, k->conf.tls.key,
				     k->conf.tls.ca};

	return files[i];
}

/* true: one of them is another file, or has other bytes, than at the last look */
static bool keys_moved(struct keys *k)
{
	bool moved = false;

	for (unsigned i = 0; i < ARRAY_LEN(k->seen); i++) {
		struct stat st = {0};

		if (!keys_file(k, i) || stat(keys_file(k, i), &st) < 0)
			continue;
		moved |= st.st_ino != k->seen[i].st_ino || st.st_size != k->seen[i].st_size ||
			 st.st_mtim.tv_sec != k->seen[i].st_mtim.tv_sec ||
			 st.st_mtim.tv_nsec != k->seen[i].st_mtim.tv_nsec;
		k->seen[i] = st;
	}
	return moved;
}

static int tls_files_check(const struct tls_files *f, struct str *err)
{
	if (!f->cert == !f->key && !f->cert == !f->ca)
		return 0;
	str_add(err, "TLS needs all three of --group-tls-cert, --group-tls-key and --group-tls-ca");
	return -EINVAL;
}

int keys_reload(struct keys *k, bool *ret_changed, struct str *err)
{
	struct secret secret = {0}, old_secret;
	struct tls_ctx *tls = NULL, *old_tls;
	int r;

	(void)keys_moved(k); /* what changes from here on is read the next time */
	r = tls_files_check(&k->conf.tls, err);
	if (r == 0)
		r = secret_load(k->conf.secret_file, &secret, err);
	if (r == 0 && k->conf.tls.cert)
		r = tls_ctx_new(&k->conf.tls, &tls, err);
	if (r < 0) {
		secret_fini(&secret);
		return r;
	}
	mtx_lock(&k->lock);
	*ret_changed = !secret_eq(&k->secret, &secret);
	old_secret = k->secret;
	old_tls = k->tls;
	k->secret = secret;
	k->tls = tls;
	mtx_unlock(&k->lock);
	*ret_changed |= old_tls != NULL; /* certificates are not compared */
	secret_fini(&old_secret);
	tls_ctx_unref(old_tls);
	return 0;
}

void keys_look(struct keys *k)
{
	_cleanup_(str_fini) struct str err = STR_INIT;
	bool changed = false;

	if (!keys_moved(k))
		return;
	if (keys_reload(k, &changed, &err) < 0)
		log_warn("%s: the secret and certificates of before stay in use", str_c(&err));
	else if (changed)
		log_info("the group's secret or certificates changed and are used from now on");
}

int keys_new(const struct keys_conf *conf, struct keys **ret, struct str *err)
{
	struct keys *k = calloc(1, sizeof(*k));
	bool changed;
	int r;

	if (!k)
		return -ENOMEM;
	k->conf = *conf;
	mtx_init(&k->lock);
	r = keys_reload(k, &changed, err);
	if (r < 0)
		keys_free(k);
	else
		*ret = k;
	return r;
}

void keys_free(struct keys *k)
{
	if (!k)
		return;
	secret_fini(&k->secret);
	tls_ctx_unref(k->tls);
	mtx_fini(&k->lock);
	free(k);
}

NO_ANALYSIS const struct secret *keys_lock(struct keys *k)
{
	if (!k)
		return NULL;
	mtx_lock(&k->lock);
	return &k->secret;
}

NO_ANALYSIS void keys_unlock(struct keys *k)
{
	if (k)
		mtx_unlock(&k->lock);
}

struct tls_ctx *keys_tls(struct keys *k)
{
	struct tls_ctx *tls = NULL;

	if (!k)
		return NULL;
	mtx_lock(&k->lock);
	if (k->tls)
		tls = tls_ctx_ref(k->tls);
	mtx_unlock(&k->lock);
	return tls;
}
